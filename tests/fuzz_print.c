/* fuzz_print.c - text: tensors of any shape, layout, dtype and values, shapes, errors and trees of
   modules, into buffers of any size

   As snprintf: the length is that of the whole text whatever the room, what fits is its beginning,
   ended by a zero, and nothing behind the room is written (each buffer is a block of its own, which
   the address sanitizer guards; without it a byte behind does). */
#include "fuzz.h"

enum { TEXT = 1 << 16, PRINTS = 8 };

typedef int64_t (*writer)(const void *what, char *buf, size_t size);

static int64_t write_tensor(const void *t, char *buf, size_t size) {
    return fl_format((fl_tensor *)(uintptr_t)t, buf, size);
}

static int64_t write_module(const void *m, char *buf, size_t size) {
    return fl_nn_format(m, buf, size);
}

/* The whole text, and a beginning of it in `room` bytes. */
static void check_text(writer write, const void *what, size_t room) {
    static char whole[TEXT];
    const int64_t n = write(what, whole, sizeof whole);
    if (n < 0) {
        if (!fl_error()) fuzz_bug("failed without an error");
        return;
    }
    if (fl_error()) fuzz_bug("gave a text and an error");
    if (n < TEXT && (int64_t)strlen(whole) != n) fuzz_bug("says %" PRId64 " bytes", n);
    char *part = malloc(room + 1);
    if (!part) return;
    memset(part, '#', room + 1);
    const int64_t again = write(what, room ? part : NULL, room);
    const size_t fits = room == 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
    if (again != n) fuzz_bug("%" PRId64 " bytes, then %" PRId64, n, again);
    const bool begins = !room || fits >= TEXT || (!memcmp(part, whole, fits) && !part[fits]);
    if (!begins) fuzz_bug("not a beginning");
    if (part[room] != '#') fuzz_bug("wrote behind %zu bytes", room);
    fuzz_note(whole, strlen(whole));
    free(part);
}

/* ---- what is printed ---- */

/* Views of views. */
static fl_tensor *any_view(fl_tensor *t) {
    for (int i = fuzz_below(4); i > 0 && t; i--) {
        const int axis = fuzz_axis();
        const unsigned b = fuzz_byte();
        const int64_t start = fuzz_int(), step = fuzz_int();
        fl_shape s = fl_shape_of(t);
        for (int k = 0; k < s.ndim; k++)
            if (s.dim[k] == 1) s.dim[k] = fuzz_size();
        fl_tensor *v = b % 4 == 0   ? fl_slice(t, axis, start, FL_SLICE_END, step)
                       : b % 4 == 1 ? fl_transpose(t, axis, 0)
                       : b % 4 == 2 ? fl_expand(t, s)
                                    : fl_select(t, axis, start);
        fl_error_clear();
        if (v) t = v;
    }
    return t;
}

/* Often more than the 1000 elements that are summarised, or exactly as many. */
static fl_tensor *any_tensor(void) {
    const unsigned b = fuzz_byte();
    if (b < 160) return fuzz_tensor();
    const fl_dtype d = fuzz_dtype();
    const fl_shape s = b < 190   ? FL_SHAPE(1001)
                       : b < 210 ? FL_SHAPE(7, 150)
                       : b < 230 ? FL_SHAPE(9, 8, 16)
                       : b < 240 ? FL_SHAPE(1000)
                                 : FL_SHAPE(1, 2, 1, 600, 1);
    return fuzz_fill(s, d);
}

static void print_tensor(void) {
    fl_tensor *t = any_view(any_tensor());
    fl_error_clear();
    fuzz_show("tensor", t);
    const size_t room = fuzz_byte() & 1 ? (size_t)fuzz_below(256) : fuzz_word(2);
    if (fuzz_rarely(8)) fuzz_faults(1, 0);
    if (fuzz_rarely(8)) fuzz_faults(0, 1);
    if (fl_numel(t) > FUZZ_BUDGET) return; /* elements of a broadcast: only the time is too much */
    check_text(write_tensor, t, room);
    const bool pending = fl_error() != NULL;
    if (fuzz_rarely(32) && !pending && !fl_print(t) && !fl_error())
        fuzz_bug("fl_print failed without an error");
}

static void print_shape(void) {
    const fl_shape s = fuzz_shape();
    const size_t room = (size_t)fuzz_below(200);
    char *text = malloc(room + 1);
    if (!text) return;
    memset(text, '#', room + 1);
    if (fl_shape_text(s, text, room) != text) fuzz_bug("returns another buffer");
    if (room && !memchr(text, 0, room)) fuzz_bug("no end in %zu bytes", room);
    if (text[room] != '#') fuzz_bug("wrote behind %zu bytes", room);
    free(text);
}

/* Texts far longer than the record of an error; the first one stays. */
static void print_error(void) {
    static char text[3000];
    const int n = (int)(fuzz_word(2) % sizeof text);
    for (int i = 0; i < n; i++) text[i] = (char)(1 + i % 255);
    text[n] = 0;
    fl_fail("%s: %*d", text, fuzz_below(256), 5);
    const size_t first = fl_error() ? strlen(fl_error()) : 0;
    if (!first) fuzz_bug("no error is pending");
    if (strncmp(fl_error(), text, first < (size_t)n ? first : (size_t)n)) fuzz_bug("another text");
    fl_fail("%s", "second");
    if (strlen(fl_error()) != first) fuzz_bug("the second text replaced the first");
    fl_log_message(FL_LOG_WARN, "%s", text);
    fl_error_clear();
}

/* A message with the shapes of two tensors that do not fit, however many dims they have. */
static void print_mismatch(void) {
    const unsigned b = fuzz_byte();
    fl_shape s = {8, {2, 3, 5, 7, 11, 13, 1, 1}}, r = {8, {3, 2, 7, 5, 13, 11, 1, 1}};
    for (int i = 6; i < 8; i++) s.dim[i] = r.dim[i] = b & 1 ? 0 : INT64_MAX >> 20;
    s.ndim = r.ndim = 1 + (int)(b >> 1) % 8;
    fl_tensor *x = fl_expand(fl_num(1), s), *y = fl_expand(fl_num(2), r);
    if (fl_add(x, y) && s.dim[0]) fuzz_bug("shapes that differ were added");
    if (!fl_error()) fuzz_bug("no error is pending");
    fl_error_clear();
}

/* ---- modules ---- */

static fl_nn_module *any_module(int depth) {
    switch (fuzz_below(depth ? 9 : 8)) {
    case 0: return fl_nn_relu();
    case 1: return fl_nn_linear(1 + fuzz_below(3), 1 + fuzz_below(2), .no_bias = true);
    case 2: return fl_nn_conv2d(2, 2, 1, .pad = FL_SAME, .groups = 2, .stride = 3, .dilation = 2);
    case 3: return fl_nn_pool2d(2, .average = true, .pad = 1, .kernel_w = 3);
    case 4: return fl_nn_dropout(0.25);
    case 5: return fl_nn_batch_norm2d(2, .momentum = FL_ZERO, .cumulative = true);
    case 6: return fl_nn_layer_norm(FL_SHAPE(1, 2, 1, 2, 1, 2, 1, 2), .no_bias = true);
    case 7: return fl_nn_view((fl_shape){8, {-1, fuzz_int(), INT64_MAX, 1, 1, 1, 1, 1}});
    default: break;
    }
    fl_nn_module *m = fl_nn_sequential_of(0, NULL);
    for (int i = fuzz_below(4); m && i > 0; i--) {
        char name[FL_NN_NAME + 8];
        memset(name, 'n', sizeof name);
        name[fuzz_below((int)sizeof name)] = 0;
        name[sizeof name - 1] = 0;
        fl_nn_add(m, fuzz_byte() & 1 ? name : NULL, any_module(depth - 1));
    }
    return m;
}

static void print_module(void) {
    fl_nn_module *m = any_module(4);
    fl_error_clear();
    check_text(write_module, m, fuzz_word(2) % 600);
    fl_nn_free(m);
}

static void fuzz_one(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } rows[] = {{"print_tensor", print_tensor},     {"print_tensor", print_tensor},
                {"print_tensor", print_tensor},     {"print_shape", print_shape},
                {"print_error", print_error},       {"print_module", print_module},
                {"print_mismatch", print_mismatch}};
    for (int n = 0; n < PRINTS && fuzz_input.left; n++) {
        const int i = fuzz_below((int)(sizeof rows / sizeof rows[0]));
        fuzz_doing = rows[i].name;
        rows[i].run();
        fuzz_faults(0, 0);
        fl_error_clear();
    }
}
/* MIT licence: see LICENSE. */
