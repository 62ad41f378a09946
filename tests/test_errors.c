/* test_errors.c - every public function with wrong arguments: message, result, nothing changed

   Each ROW is a call that must fail. It runs three times: with a handler that returns, with an
   error pending already, and with a handler that leaves by longjmp. One test compares the functions
   that have rows with the headers' prototypes.
     test_errors [--root DIR] [filter]   DIR: the folder of fl.h, default . (make's) or .. */
#include "../fl_all.h"
#include "../kernels/cpu/bf16.h"
#include "test.h"

#include <glob.h>
#include <setjmp.h>
#include <unistd.h>

/* ---- operands: nothing may change them ---- */

static struct {
    fl_tensor *f23, *f34, *f4, *f2, *d23, *i23, *b23, *u23, *f03, *image, *kernel, *index, *number;
    fl_var *v23, *v34, *v4, *vi, *vb, *image_v, *kernel_v;
    fl_nn_module *net;
    fl_optim *optim, *lbfgs;
    fl_optim_scaler *scaler;
    fl_data_set *set;
    char file[64], idx[64];
} o;

static fl_tensor *kept(fl_tensor *t) { return fl_keep(t); }

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n);
    if (f) fclose(f);
}

static void operands_make(void) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {1, 0};
    o.f23 = kept(fl_uniform(FL_SHAPE(2, 3), 1, 2, FL_F32, &rng));
    o.f34 = kept(fl_uniform(FL_SHAPE(3, 4), 1, 2, FL_F32, &rng));
    o.f4 = kept(fl_ones(FL_SHAPE(4), FL_F32));
    o.f2 = kept(fl_ones(FL_SHAPE(2), FL_F32));
    o.d23 = kept(fl_cast(o.f23, FL_F64));
    o.i23 = kept(fl_randint(FL_SHAPE(2, 3), 1, 3, &rng));
    o.b23 = kept(fl_gt(o.f23, fl_num(1.5)));
    o.u23 = kept(fl_cast(o.i23, FL_U64));
    o.f03 = kept(fl_zeros(FL_SHAPE(0, 3), FL_F32));
    o.image = kept(fl_uniform(FL_SHAPE(1, 2, 4, 4), 0, 1, FL_F32, &rng));
    o.kernel = kept(fl_uniform(FL_SHAPE(3, 2, 3, 3), 0, 1, FL_F32, &rng));
    o.index = kept(fl_full(FL_SHAPE(2, 1), 7, FL_I64)); /* out of range for f23 */
    o.number = kept(fl_num(2));
    o.v23 = fv_keep(fv_param(o.f23));
    o.v34 = fv_keep(fv_param(o.f34));
    o.v4 = fv_keep(fv_param(o.f4));
    o.vi = fv_keep(fv_const(o.i23));
    o.vb = fv_keep(fv_const(o.b23));
    o.image_v = fv_keep(fv_param(o.image));
    o.kernel_v = fv_keep(fv_param(o.kernel));
    o.net = fl_nn_sequential(fl_nn_linear(3, 4), fl_nn_relu());
    o.optim = fl_optim_sgd(fl_nn_parameters(o.net));
    o.lbfgs = fl_optim_lbfgs(fl_nn_parameters(o.net), .history = 2);
    o.scaler = fl_optim_scaler_new(0);
    o.set = fl_data_tensors(&o.f23, 1);
    snprintf(o.file, sizeof o.file, P_tmpdir "/fl_errors_%d.safetensors", (int)getpid());
    snprintf(o.idx, sizeof o.idx, P_tmpdir "/fl_errors_%d.idx", (int)getpid());
    CHECK(fl_nn_save(o.net, o.file));
    write_file(o.idx, "\0\0\x08\x01\0\0\0\x09", 8); /* nine bytes that are not there */
    fl_scope_end(&s);
}

static void operands_free(void) {
    fl_tensor *t[] = {o.f23, o.f34, o.f4,    o.f2,     o.d23,   o.i23,   o.b23,
                      o.u23, o.f03, o.image, o.kernel, o.index, o.number};
    fl_var *v[] = {o.v23, o.v34, o.v4, o.vi, o.vb, o.image_v, o.kernel_v};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) fl_drop(t[i]);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) fv_drop(v[i]);
    fl_data_free(o.set);
    fl_optim_free(o.optim);
    fl_optim_free(o.lbfgs);
    fl_optim_scaler_free(o.scaler);
    fl_nn_free(o.net);
    remove(o.file);
    remove(o.idx);
}

static uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return h;
}

static uint64_t hash_tensor(uint64_t h, fl_tensor *t) {
    if (!t || !t->buffer) return h;
    h = hash_bytes(h, t->shape, sizeof t->shape);
    h = hash_bytes(h, &t->buffer->version, sizeof t->buffer->version);
    const void *p = fl_buffer_map(t->buffer);
    h = hash_bytes(h, p, t->buffer->bytes);
    fl_buffer_unmap(t->buffer);
    return h;
}

/* Everything that a failing call could have changed. */
typedef struct snapshot {
    int64_t tensors, buffers, scope;
    uint64_t bytes, flags;
    fl_rng rng;
} snapshot;

static snapshot snapshot_now(void) {
    fl_tensor *t[] = {o.f23, o.f34, o.f4,    o.f2,     o.d23,  o.i23,
                      o.b23, o.u23, o.image, o.kernel, o.index};
    fl_var *v[] = {o.v23, o.v34, o.v4, o.image_v, o.kernel_v};
    snapshot s = {fl_live_tensors(),  test_live_buffers(), fl_scope_size(), 1469598103934665603u,
                  fl_flags(), fl_rng_state()};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) s.bytes = hash_tensor(s.bytes, t[i]);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) s.bytes = hash_tensor(s.bytes, fv_grad(v[i]));
    for (int64_t i = 0; o.optim && i < o.optim->n; i++) {
        s.bytes = hash_tensor(s.bytes, fv_value(o.optim->slot[i].param));
        s.bytes = hash_tensor(s.bytes, fv_grad(o.optim->slot[i].param));
    }
    s.bytes = hash_bytes(s.bytes, &o.optim->lr, sizeof o.optim->lr);
    return s;
}

static void check_unchanged(const snapshot *was) {
    const snapshot now = snapshot_now();
    CHECK_EQ_INT(now.tensors, was->tensors);
    CHECK_EQ_INT(now.buffers, was->buffers);
    CHECK_EQ_INT(now.scope, was->scope);
    CHECK(now.bytes == was->bytes && now.flags == was->flags);
    CHECK(now.rng.key == was->rng.key && now.rng.counter == was->rng.counter);
}

/* ---- rows ---- */

typedef enum row_mode { LIST, RETURNING, PENDING, JUMPING } row_mode;
typedef enum row_kind {
    RAISES, /* returns a value: the handler is called once */
    QUIET,  /* about files, data, memory: never calls it */
    SILENT, /* NULL is fine, or an answer: no error at all */
} row_kind;

static struct {
    row_mode mode;
    row_kind kind;
    const char *fn, *who; /* the function, and its name in messages (NULL: much the same) */
    int line, calls, failures;
    bool failed;
    char text[1024];
    snapshot before;
    fl_scope scope;
    jmp_buf leave;
    const char *seen[1400]; /* functions that have rows */
    int n_seen;
} row;

static void on_error(const char *text, void *user) {
    (void)user;
    row.calls++;
    snprintf(row.text, sizeof row.text, "%s", text);
    if (row.mode == JUMPING) longjmp(row.leave, 1);
}

static bool listed(const char *const *list, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (!strcmp(list[i], name)) return true;
    return false;
}

static bool row_begin(row_kind kind, const char *fn, const char *who, int line) {
    if (row.mode == LIST) {
        if (!listed(row.seen, row.n_seen, fn) && row.n_seen < 1400) row.seen[row.n_seen++] = fn;
        return false;
    }
    row.kind = kind;
    row.fn = fn;
    row.who = who;
    row.line = line;
    row.failures = test__failures;
    row.failed = true;
    row.before = snapshot_now();
    row.scope = fl_scope_begin();
    if (row.mode == PENDING) {
        fl_quiet(+1);
        fl_fail("pending");
        fl_quiet(-1);
        const row_mode was = row.mode;
        row.mode = RETURNING;
        fl_raise();
        row.mode = was;
    }
    row.calls = 0;
    return true;
}

/* fv_add reports as fl_add, fl_conv_opt as fl_conv. */
static const char *name_in_message(const char *fn, char *buf, size_t size) {
    snprintf(buf, size, "%s", fn);
    if (!strncmp(buf, "fv_", 3)) buf[1] = 'l';
    static const char *const endings[] = {"_opt", "_run", "_resolve", "_of", "_args", "_vars"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t n = strlen(buf), k = strlen(endings[i]);
        if (n > k && !strcmp(buf + n - k, endings[i])) buf[n - k] = 0;
    }
    return buf;
}

static void check_message(const char *const *parts) {
    const char *text = fl_error();
    char name[100];
    if (row.kind == SILENT) {
        CHECK(text == NULL);
        return;
    }
    if (row.who)
        CHECK_STR(text, row.who);
    else if (!text || !strstr(text, row.fn))
        CHECK_STR(text, name_in_message(row.fn, name, sizeof name));
    for (; *parts; parts++) CHECK_STR(text, *parts);
}

static void row_end(const char *const *parts) {
    CHECK(row.failed);
    if (row.mode == PENDING) {
        CHECK_STR(fl_error(), "pending");
        CHECK_EQ_INT(row.calls, 0);
    } else {
        check_message(parts);
        CHECK_EQ_INT(row.calls, row.kind == RAISES);
        if (row.calls && fl_error()) CHECK(!strcmp(row.text, fl_error()));
    }
    fl_error_clear();
    fl_scope_end(&row.scope);
    check_unchanged(&row.before);
    fl_scope s = fl_scope_begin();
    CHECK(fl_item(fl_add(o.number, fl_num(3))) == 5); /* all is well afterwards */
    fl_scope_end(&s);
    if (test__failures != row.failures)
        printf("  row of %s in line %d, %s\n", row.fn, row.line,
               row.mode == PENDING   ? "an error pending"
               : row.mode == JUMPING ? "longjmp"
                                     : "handler returns");
}

/* Deferred calls fail when they run, with the same text. */
static bool fails_later(void) {
    if (row.kind == SILENT || fl_sync(NULL)) return false;
    if (row.kind == RAISES) fl_raise();
    return true;
}

#define ROW_OF(kind, fn, who, failing, ...)                                      \
    do {                                                                         \
        if (row_begin(kind, fn, who, __LINE__)) {                                \
            if (!setjmp(row.leave)) row.failed = (failing) || fails_later();     \
            row_end((const char *const[]){__VA_ARGS__, NULL});                   \
        }                                                                        \
    } while (0)

#define ROW(kind, fn, failing, ...) ROW_OF(kind, fn, NULL, failing, __VA_ARGS__)
/* NO(f, (args), parts...): f(args) is NULL, false or 0, raised. NO_AS: the message is that of
   another function, which f calls. */
#define NO(f, args, ...) ROW(RAISES, #f, !(f args), __VA_ARGS__)
#define NO_AS(f, who, args, ...) ROW_OF(RAISES, #f, who, !(f args), __VA_ARGS__)
#define NO_FILE(f, args, ...) ROW(QUIET, #f, !(f args), __VA_ARGS__)
#define NO_FILE_AS(f, who, args, ...) ROW_OF(QUIET, #f, who, !(f args), __VA_ARGS__)
#define FINE(f, cond) ROW(SILENT, #f, (cond), "")
#define NULLS "is NULL"

static const fl_shape negative = {2, {2, -3}}, huge = {3, {INT64_MAX, INT64_MAX, 2}},
                      too_long = {9, {1, 1, 1, 1, 1, 1, 1, 1}}, no_shape = {-1, {0}},
                      least = {INT32_MIN, {0}};

/* ---- fl_mem.h ---- */

static bool never_restores(fl_buffer *b) {
    (void)b;
    return false;
}

static bool buffer_without_bytes(void) {
    fl_buffer *b = fl_buffer_new_lazy(100, NULL, never_restores, NULL);
    const bool failed = b && !fl_buffer_map(b);
    fl_buffer_drop(b);
    return failed;
}

static void rows_of_memory(void) {
    FINE(fl_dtype_size, fl_dtype_size((fl_dtype)99) == 0 && fl_dtype_size((fl_dtype)-1) == 0);
    FINE(fl_dtype_name,
         !strcmp(fl_dtype_name((fl_dtype)99), "?") && !strcmp(fl_dtype_name((fl_dtype)-1), "?"));
    FINE(fl_dtype_by_name, !fl_dtype_by_name("f99") && !fl_dtype_by_name(NULL) && !fl_dtype_by_name(""));
    FINE(fl_dtype_is_float, !fl_dtype_is_float((fl_dtype)99));
    NO_FILE(fl_dtype_register, (NULL), "a name, a size, a block");
    FINE(fl_dtype_registered,
         !fl_dtype_registered((fl_dtype)-1) && !fl_dtype_registered((fl_dtype)99));
    FINE(fl_dtype_wide, !fl_dtype_wide((fl_dtype)99) && !fl_dtype_wide((fl_dtype)-1));
    FINE(fl_number_load, isnan(fl_number_load(FL_F32, NULL).f) && isnan(fl_number_load(99, "x").f));
    FINE(fl_number_store, (fl_number_store(FL_F32, NULL, (fl_number){0}), true));
    NO_FILE(fl_set_threads, (1 << 20), "too many threads: got 1048576");
    FINE(fl_parallel, (fl_parallel(0, 1, NULL, NULL), fl_parallel(-5, 1, NULL, NULL), true));
    NO_FILE(fl_buffer_new, (SIZE_MAX, NULL), "out of memory: asked for 18446744073709551615 bytes");
    NO_FILE(fl_buffer_new, (SIZE_MAX / 2, NULL),
            "out of memory: asked for 9223372036854775807 bytes");
    NO_FILE(fl_buffer_new_lazy, (8, NULL, NULL, NULL), "restore is NULL");
    NO_FILE(fl_buffer_fill, (NULL, NULL), NULLS);
    NO_FILE(fl_buffer_map, (NULL), NULLS);
    ROW(QUIET, "fl_buffer_map", buffer_without_bytes(), "cannot restore a buffer of 100 bytes");
    FINE(fl_buffer_keep, !fl_buffer_keep(NULL));
    FINE(fl_buffer_drop, (fl_buffer_drop(NULL), true));
    FINE(fl_buffer_unmap, (fl_buffer_unmap(NULL), true));
    FINE(fl_buffer_swap, !fl_buffer_swap(NULL, NULL));
    NO_FILE(fl_buffer_freeze, (NULL, true), NULLS);
    FINE(fl_buffer_is_frozen, !fl_buffer_is_frozen(NULL));
    FINE(fl_buffer_cache_get, !fl_buffer_cache_get(NULL, "", 1));
    NO_FILE(fl_buffer_cache_add, (NULL, "", 1, NULL), "not frozen");
    NO_FILE(fl_buffer_use, (NULL, NULL), NULLS);
    FINE(fl_heap_free, (fl_heap_free(NULL), true));
    NO_FILE(fl_heap_grow, (NULL, NULL, 1, 1), NULLS);
    FINE(fl_object_free, (fl_object_free(NULL, "", ""), true));
    FINE(fl_is_freed, !fl_is_freed(NULL, "", ""));
    FINE(fl_mem_close, (fl_mem_close(NULL), fl_mem_close(fl_mem_native()), true));
    NO_FILE(fl_mem_trace_begin, (-1), "max_events must not be negative, got -1");
    NO_FILE(fl_mem_trace_save, (NULL), NULLS);
    NO_FILE(fl_mem_trace_save, ("/no/folder/x.json"), "no trace was begun");
}

/* ---- fl_tensor.h ---- */

static bool no_slot(const fl_backend *self, const fl_call *c) {
    (void)self, (void)c;
    return false;
}

static bool run_unknown_op(void) {
    fl_call c = {.op = (fl_op)9999, .n_out = 1, .n_in = 1, .in = {o.f23}};
    return fl_call_run(&c);
}

static fl_tensor *map_and_back(fl_tensor *t, int access) {
    void *p = fl_map(t, access);
    fl_unmap(p ? t : NULL, access);
    return p ? t : NULL;
}

static void rows_of_handles(void) {
    char text[32];
    FINE(fl_shape_numel, fl_shape_numel(negative) == -1 && fl_shape_numel(huge) == -1 &&
                             fl_shape_numel(too_long) == -1 && fl_shape_numel(no_shape) == -1 &&
                             fl_shape_numel(least) == -1);
    FINE(fl_shape_text, !strcmp(fl_shape_text(negative, text, sizeof text), "[2, -3]") &&
                            !strncmp(fl_shape_text(huge, text, 4), "[92", 4) &&
                            fl_shape_text(too_long, text, sizeof text));
    FINE(fl_shape_of, fl_shape_of(NULL).ndim == 0);
    FINE(fl_numel, fl_numel(NULL) == 0);
    FINE(fl_is_channels_last, !fl_is_channels_last(NULL));
    FINE(fl_is_contiguous, !fl_is_contiguous(NULL));
    FINE(fl_is_dense, !fl_is_dense(NULL));
    FINE(fl_is_async, !fl_is_async(NULL) && !fl_is_async(o.number));
    FINE(fl_backend_name, !strcmp(fl_backend_name(NULL), "none"));
    FINE(fl_version_of, fl_version_of(NULL) == 0);
    FINE(fl_keep, !fl_keep(NULL));
    FINE(fl_drop, (fl_drop(NULL), true));
    NO_FILE(fl_obj_new, (0, NULL), "got 0");
    NO_FILE(fl_obj_new, (5000, NULL), "got 5000");
    FINE(fl_scope_end, (fl_scope_end(NULL), true));
    FINE(fl_scope_return, !fl_scope_return(NULL, NULL));
    FINE(fl_scope_escape, (fl_scope_escape(NULL, o.f23), fl_scope_escape(&(fl_scope){-1}, o.f23),
                           fl_scope_escape(&(fl_scope){99}, NULL), true));
    NO(fl_op_register, (NULL), "name is NULL");
    NO(fl_op_register, (&(fl_op_info){.name = "add"}), "an op 'add' exists already");
    FINE(fl_op_count, fl_op_count() > FL_TABLE_OPS);
    NO(fl_backend_set, (NULL, FL_OP_add, no_slot, 0), "the backend is NULL");
    NO(fl_backend_set, (&(fl_backend){.name = "x"}, FL_MAX_OPS, no_slot, 0), "does not exist");
    if (!fl_backend_at(1)) { /* a build without backend cuda */
        NO(fl_cuda_set, (FL_OP_add, no_slot, 0), "make CUDA=1");
        NO_FILE(fl_cuda_slot, (fl_backend_at(0), NULL, no_slot), "make CUDA=1");
        NO_FILE(fl_cuda_stream, (), "make CUDA=1");
        NO_FILE(fl_cuda_launched, (NULL, 0), "make CUDA=1");
        NO_FILE(fl_cuda_launch, (NULL, "", "kernel", 1, 1, NULL), "make CUDA=1");
    } else {
        NO(fl_cuda_set, (FL_MAX_OPS, no_slot, 0), "does not exist");
        NO_FILE(fl_cuda_slot, (fl_backend_at(1), NULL, no_slot), "the call is NULL");
        NO_FILE(fl_cuda_launched, (NULL, 0), "the call is NULL");
        NO_FILE(fl_cuda_launch, (NULL, "", "kernel", 1, 1, NULL), "the call is NULL");
        FINE(fl_cuda_stream, (fl_cuda_stream(), true));
    }
    FINE(fl_op_get_info, !fl_op_get_info((fl_op)-1) && !fl_op_get_info(FL_OP_NONE));
    FINE(fl_op_by_name, fl_op_by_name(NULL) == FL_OP_NONE && fl_op_by_name("no such op") == FL_OP_NONE);
    FINE(fl_op_uses, !fl_op_uses(FL_OP_NONE, FL_OP_add) && !fl_op_uses(FL_OP_gelu, (fl_op)-1));
    FINE(fl_op_grad_uses, !fl_op_grad_uses(FL_OP_NONE, 0, FL_OP_add) &&
                               !fl_op_grad_uses(FL_OP_mul, 2, FL_OP_mul));
    FINE(fl_op_rng, !fl_op_rng(FL_OP_NONE, NULL) && !fl_op_rng(FL_OP_random, NULL));
    FINE(fl_op_grad_steps,
         fl_op_grad_steps(FL_OP_NONE, 0) == 0 && fl_op_grad_steps(FL_OP_mul, -1) == 0);
    NO_FILE(fl_op_program, (FL_OP_NONE, FL_PROGRAM_Y), "has no formula");
    NO_FILE(fl_op_program, (FL_OP_relu, FL_PROGRAM_DB), "has no formula");
    FINE(fl_primitive_op, fl_primitive_op(FL_PRIMITIVE_COUNT) == FL_OP_NONE);
    NO_FILE(fl_formula_parse, (&(fl_formula){0}, NULL, "x"), "NULL");
    NO_FILE(fl_formula_parse, (&(fl_formula){0}, "ADD(x, z)", "x y"), "no input of this name at character 8");
    fl_formula program;
    fl_formula_builder builder;
    fl_memo_entry *slots[2] = {NULL};
    fl_memo memo = {.most = 1, .size = sizeof(double), .slot = slots};
    double number;
    NO_FILE(fl_formula_build, (NULL, &program, 1, 0), NULLS);
    NO_FILE(fl_formula_build, (&builder, NULL, 1, 0), NULLS);
    NO_FILE(fl_formula_build, (&builder, &program, 21, 0), "got 21 inputs, expected 0 to 20");
    ROW(QUIET, "fl_formula_build_number", fl_formula_build_number(NULL, 0) < 0, NULLS);
    ROW(QUIET, "fl_formula_build_step", fl_formula_build_step(NULL, FL_PRIMITIVE_add, NULL) < 0, NULLS);
    NO_FILE(fl_formula_build_end, (NULL, 1, NULL), NULLS);
    FINE(fl_formula_build_step,
         fl_formula_build(&builder, &program, 1, 0) &&
             fl_formula_build_step(&builder, FL_PRIMITIVE_add, (int[]){0, 1}) < 0 &&
             fl_formula_build_step(&builder, FL_PRIMITIVE_COUNT, (int[]){0, 0}) < 0 &&
             !fl_formula_build_end(&builder, 1, (int[]){FL_FORMULA_VALUE}) &&
             !fl_formula_build_end(&builder, 5, (int[]){0, 0, 0, 0, 0}));
    NO_FILE(fl_memo_find, (NULL, "key", 3, 0), NULLS);
    NO_FILE(fl_memo_find, (&memo, NULL, 3, 0), NULLS);
    NO_FILE(fl_memo_add, (NULL, "key", 3, 0, &number), NULLS);
    NO_FILE(fl_memo_add, (&memo, NULL, 3, 0, &number), NULLS);
    NO_FILE(fl_memo_add, (&memo, "key", 3, 0, NULL), NULLS);
    NO_FILE(fl_formula_number, (NULL, 1, &number), NULLS);
    NO_FILE(fl_formula_number, ("1", 1, NULL), NULLS);
    FINE(fl_formula_number, !fl_formula_number("1x", 2, &number) && !fl_formula_number("", 0, &number));
    NO_FILE(fl_formula_args_of, (NULL, NULL), NULLS);
    NO_FILE(fv_primitive, (FL_PRIMITIVE_add, NULL, NULL), NULLS);
    NO_FILE(fl_call_run, (NULL), "fl_call_run");
    ROW(QUIET, "fl_call_run", !run_unknown_op(), "fl_call_run", "9999");
    NO_FILE(fl_out_on, (0, negative, FL_F32), "[2, -3]");
    NO_FILE(fl_out_on, (0, least, FL_F32), "shape");
    NO(fl_backend_use, (NULL, NULL), "name is NULL");
    NO(fl_backend_use, (&(fl_backend){.name = NULL}, NULL), "name is NULL");
    NO(fl_backend_override, (NULL, FL_OP_add, no_slot), "the backend is NULL");
    NO(fl_backend_override, (&(fl_backend){.name = "x"}, (fl_op)-1, no_slot), "does not exist");
    ROW(QUIET, "fl_backend_index", fl_backend_index("none") == -1, "no backend 'none'");
    ROW(QUIET, "fl_backend_index", fl_backend_index(NULL) == -1, "no backend");
    FINE(fl_backend_at, !fl_backend_at(-1) && !fl_backend_at(99));
    FINE(fl_backend_name_of, !fl_backend_name_of(-1) && !fl_backend_name_of(99));
    FINE(fl_op_name, !*fl_op_name(FL_OP_NONE) && !*fl_op_name(-1) && !*fl_op_name(9999));
    NO(fl_empty_on, (NULL, FL_SHAPE(2), FL_F32), NULLS);
    NO_AS(fl_empty_on, "fl_backend_index", ("none", FL_SHAPE(2), FL_F32), "no backend 'none'");
    NO(fl_empty_on, ("cpu", negative, FL_F32), "[2, -3]");
    NO(fl_empty_on, ("cpu", FL_SHAPE(2), (fl_dtype)99), "dtype 99");
    ROW(RAISES, "fl_backend_set_default", !fl_backend_set_default("none"), "'none'");
    ROW(RAISES, "fl_stream", fl_stream(256) == -1, "fl_stream: n must be in [0, 255], got 256");
    FINE(fl_cpu_level, fl_cpu_level() != NULL);
    FINE(fl_cpu_bf16, fl_cpu_bf16() != NULL);
    NO(fl_cpu_set_bf16, ("tf32"), "'tf32' is unknown or not supported here");
    FINE(fl_backend_has, !fl_backend_has(-1, FL_OP_add) && !fl_backend_has(0, FL_OP_NONE));
    FINE(fl_sync, fl_sync(NULL));
    FINE(fl_option, fl_option(0, 3) == 3 && fl_option(FL_ZERO, 3) == 0);
    FINE(fl_option_int, fl_option_int(0, 3) == 3 && fl_option_int(FL_I0, 3) == 0);
}

static void no_loop(void *const p[], int64_t n, const void *arg) { (void)p, (void)n, (void)arg; }

/* What ops are written with. */
static void rows_of_op_writers(void) {
    fl_shape s = FL_SHAPE(2, 3), other = FL_SHAPE(7);
    int order[FL_MAX_DIMS] = {0};
    fl_tensor *out = fl_out_on(0, s, FL_F32), *number = fl_num(2);
    NO_AS(fl_stable_max, "fl_amax", (NULL, FL_ALL_AXES), NULLS);
    NO_AS(fl_unary_op, "fl_exp", (FL_OP_exp, NULL), NULLS);
    NO_AS(fl_binary_op, "fl_add", (FL_OP_add, o.f23, o.f34), "[2, 3]", "[3, 4]");
    FINE(fl_formula_value, !fl_formula_value(NULL, NULL));
    NO(fl_out_new, ("fl_out_new", negative, FL_F32, FL_F32), "[2, -3]");
    FINE(fl_text_of_shape, !strcmp(fl_text_of_shape(s).s, "[2, 3]"));
    ROW(RAISES, "fl_is_null_arg", fl_is_null_arg("fl_is_null_arg", NULL), NULLS);
    FINE(fl_is_null_arg, !fl_is_null_arg("fl_is_null_arg", out));
    FINE(fl_same_backend, fl_same_backend("x", o.f23, number));
    NO(fl_is_writable, ("fl_is_writable", number), "weak number");
    NO(fl_is_writable, ("fl_is_writable", fl_expand(o.f4, FL_SHAPE(2, 4))), "broadcast");
    ROW(RAISES, "fl_axis_of", fl_axis_of("fl_axis_of", o.f23, 2) == -1, "axis 2", "[2, 3]");
    ROW(RAISES, "fl_own_axis_of", fl_own_axis_of("fl_own_axis_of", o.number, 0) == -1, "axis 0", "[]");
    FINE(fl_same_shape, fl_same_shape(o.f23, o.d23) && !fl_same_shape(o.f23, o.f34));
    FINE(fl_shape_is, fl_shape_is(o.f23, s) && !fl_shape_is(o.f23, other));
    FINE(fl_broadcast_shape, !fl_broadcast_shape(&other, o.f23) && other.dim[0] == 7);
    FINE(fl_result_type, fl_result_type(2, (fl_tensor *[]){o.i23, number}) == FL_F32);
    FINE(fl_compute_dtype, fl_compute_dtype(FL_CLASS_INT, FL_F32) == FL_DTYPE_NONE &&
                               fl_compute_dtype(FL_CLASS_FLOAT, FL_I64) == FL_F32);
    FINE(fl_is_narrow, !fl_is_narrow(o.f23));
    FINE(fl_operand, fl_operand(number, FL_F64) == number && fl_operand(o.f23, FL_F64)->dtype == FL_F64);
    FINE(fl_materialise, fl_materialise(o.f23) == o.f23 && !fl_materialise(number)->weak);
    FINE(fl_constant, fl_constant(2)->dtype == FL_DTYPE_NONE);
    FINE(fl_out_like, !fl_out_like(o.f23, FL_I64)->buffer);
    FINE(fl_out_layout_like, !fl_out_layout_like(NULL, o.f23));
    FINE(fl_out_order_as, !fl_out_order_as(NULL, o.f23));
    FINE(fl_axes_by_stride, (fl_axes_by_stride(fl_transpose(o.f23, 0, 1), order), order[0] == 1));
    FINE(fl_view_of, fl_view_of(o.f23, FL_SHAPE(3), (int64_t[]){1}, 3)->buffer == o.f23->buffer);
    FINE(fl_out_allocate, fl_out_allocate(o.f23));
    ROW_OF(RAISES, "fl_call_result", "fl_call_run", !fl_call_result(&(fl_call){.op = FL_MAX_OPS}), "512");
    NO_AS(fl_call_into, "fl_call_run", (FL_OP_NONE, out, NULL, NULL, NULL), "does not exist");
    ROW_OF(RAISES, "fl_call_compose", "fl_sum",
        !fl_call_compose(&(fl_call){.op = FL_OP_sum, .n_out = 1, .out = {out}}), "no composition");
    const fl_call unequal = {.op = FL_OP_neg, .n_out = 1, .n_in = 1, .out = {out}, .in = {o.f4}};
    ROW(QUIET, "fl_cpu_loop", !fl_cpu_loop(&unequal, NULL, NULL), "the loop is NULL");
    ROW(QUIET, "fl_cpu_loop", !fl_cpu_loop(&unequal, no_loop, NULL), "expected a built-in dtype and shape");
    FINE(fv_recomputed, !fv_recomputed(NULL));
    FINE(fv_record_opt, !fv_record_opt(NULL, NULL));
    NO(fv_record_formula, (FL_OP_add, o.v23, o.f23), "no formula of x");
    FINE(fv_formula_reads_x, !fv_formula_reads_x(FL_OP_NONE) && !fv_formula_reads_x(FL_OP_add) &&
                                 !fv_formula_reads_x(FL_OP_relu) && fv_formula_reads_x(FL_OP_gelu));
    ROW(RAISES, "fv_record_op", !fv_record_op(FL_OP_NONE, o.f23, FV_NONE, FV_NONE, NULL), "no op 0");
}

static bool creation_is_refused(fl_shape shape, fl_dtype dtype) { return !fl_empty(shape, dtype); }

static void rows_of_creation(void) {
    const fl_dtype none = (fl_dtype)99;
    NO(fl_empty, (negative, FL_F32), "[2, -3]");
    NO(fl_empty, (huge, FL_F32), "9223372036854775807");
    NO(fl_empty, (too_long, FL_F32), "shape");
    NO(fl_empty, (least, FL_F32), "shape");
    NO(fl_empty, (FL_SHAPE(2), none), "dtype 99");
    ROW(RAISES, "fl_out_make", creation_is_refused(FL_SHAPE((int64_t)1 << 62), FL_F64), "overflow size_t",
        "fl_out_make");
    ROW(RAISES, "fl_buffer_new", creation_is_refused(FL_SHAPE((int64_t)1 << 58), FL_F64),
        "out of memory: asked for");
    NO(fl_full, (negative, 1, FL_F32), "[2, -3]");
    NO(fl_full, (FL_SHAPE(2), 1, none), "dtype 99");
    NO(fl_zeros, (huge, FL_F32), "9223372036854775807");
    NO(fl_ones, (no_shape, FL_F32), "shape");
    NO(fl_full_like, (NULL, 1), NULLS);
    NO(fl_new_full, (NULL, FL_SHAPE(2), 1), NULLS);
    NO_AS(fl_new_full, "fl_out_on", (o.f23, negative, 1), "[2, -3]");
    NO(fl_arange, (0, 1, 0, FL_I64), "from 0 to 1 by 0");
    NO(fl_arange, (0, 1e30, 1, FL_I64), "from 0 to 1e+30");
    NO(fl_arange, (0, (double)NAN, 1, FL_I64), "nan");
    NO(fl_arange, (0, 9, 1, none), "dtype 99");
    NO(fl_new_arange, (NULL, 0, 9, 1, FL_I64), NULLS);
    NO(fl_new_arange, (fl_num(1), 0, 9, 1, FL_I64), "a weak number");
    NO(fl_new_arange, (o.f23, 0, 1, 0, FL_I64), "from 0 to 1 by 0");
    NO(fl_new_arange, (o.f23, 0, 9, 1, FL_B8), "b8");
    NO(fl_eye, (-1, 3, FL_F32), "-1");
    NO(fl_eye, (3, INT64_MIN, FL_F32), "[3, -9223372036854775808]");
    NO(fl_eye, (INT64_MAX, INT64_MAX, FL_F32), "9223372036854775807");
    NO(fl_eye, (2, 2, none), "dtype 99");
    NO(fl_from_host, (NULL, FL_SHAPE(2, 3), FL_F32), "NULL", "[2, 3]");
    NO(fl_from_host, ("", negative, FL_F32), "[2, -3]");
    NO(fl_from_host, ("", FL_SHAPE(2), none), "dtype 99");
    NO(fl_to, (NULL, "cpu"), NULLS);
    NO(fl_to, (o.f23, "none"), "no backend 'none'");
    NO(fl_to, (o.f23, NULL), "no backend");
}

static void rows_of_reading(void) {
    float out[6] = {-1};
    NO(fl_map, (NULL, FL_READ), NULLS);
    NO(fl_map, (o.number, FL_READ), "weak number");
    ROW(RAISES, "fl_map", !map_and_back(fl_out_on(0, FL_SHAPE(2), FL_F32), FL_READ),
        "no storage");
    FINE(fl_unmap, (fl_unmap(NULL, FL_READ), fl_unmap(o.number, FL_READ), true));
    NO(fl_to_host, (NULL, out, sizeof out), NULLS);
    NO(fl_to_host, (o.f23, out, 20), "20 bytes", "f32", "[2, 3]", "24");
    NO(fl_to_host, (o.f23, NULL, 24), "NULL", "[2, 3]");
    NO(fl_set_host, (NULL, out, 24), NULLS);
    NO(fl_set_host, (o.f23, out, SIZE_MAX), "18446744073709551615 bytes", "f32", "[2, 3]");
    NO(fl_set_host, (o.f23, NULL, 24), "NULL");
    NO(fl_set_host, (o.number, out, 4), "weak number");
    ROW(RAISES, "fl_item", isnan(fl_item(NULL)), NULLS);
    ROW(RAISES, "fl_item", isnan(fl_item(o.f23)), "[2, 3]", "6 elements");
    NO(fl_item_int, (NULL), NULLS);
    NO(fl_item_int, (o.f03), "[0, 3]");
    ROW(RAISES, "fl_format", fl_format(NULL, NULL, 0) == -1, NULLS);
    ROW(RAISES, "fl_format", !fl_print(NULL), NULLS); /* fl_print formats */
    FINE(fl_print, true);
    CHECK(row.mode == LIST || out[0] == -1);
}

static void rows_of_movement(void) {
    const int twice[] = {0, 0}, far[] = {0, 5};
    fl_tensor *unlike[] = {o.f23, o.f34}, *number[] = {o.number}, *with_null[] = {o.f23, NULL};
    NO(fl_reshape, (NULL, FL_SHAPE(6)), NULLS);
    NO(fl_reshape, (o.f23, FL_SHAPE(4)), "[2, 3] (6 elements)", "[4]");
    NO(fl_reshape, (o.f23, FL_SHAPE(-1, -1)), "[-1, -1]");
    NO(fl_reshape, (o.f23, FL_SHAPE(-2, -3)), "[-2, -3]");
    NO(fl_reshape, (o.f23, FL_SHAPE(0, -1)), "[0, -1]");
    NO(fl_reshape, (o.f23, huge), "9223372036854775807");
    NO(fl_reshape, (o.f23, too_long), "got 9");
    NO(fl_reshape, (o.f23, least), "dims");
    NO(fl_permute, (NULL, 2, twice), NULLS);
    NO(fl_permute, (o.f23, 2, NULL), NULLS);
    NO(fl_permute, (o.f23, 2, twice), "axis 0 appears twice");
    NO(fl_permute, (o.f23, 2, far), "axis 5", "[2, 3]");
    NO(fl_permute, (o.f23, 3, twice), "3 axes", "[2, 3]");
    NO(fl_permute, (o.f23, -1, twice), "-1 axes");
    NO(fl_transpose, (NULL, 0, 1), NULLS);
    NO(fl_transpose, (o.f23, 0, 2), "axis 2", "[2, 3]");
    NO(fl_transpose, (o.f23, INT32_MIN, 0), "axis -2147483648");
    NO(fl_expand, (NULL, FL_SHAPE(2)), NULLS);
    NO(fl_expand, (o.f23, FL_SHAPE(4, 3)), "[2, 3]", "[4, 3]");
    NO(fl_expand, (o.f23, FL_SHAPE(3)), "[2, 3]", "[3]");
    NO(fl_expand, (o.f23, FL_SHAPE(-1, 2, 3)), "[-1, 2, 3]");
    NO(fl_expand, (o.number, huge), "9223372036854775807");
    NO(fl_expand, (o.f23, least), "[2, 3]");
    NO(fl_slice, (NULL, 0, 0, 1, 1), NULLS);
    NO(fl_slice, (o.f23, 2, 0, 1, 1), "axis 2", "[2, 3]");
    NO(fl_slice, (o.f23, 0, 0, 1, 0), "step must not be 0 or INT64_MIN, got 0");
    NO(fl_slice, (o.f23, 0, 0, 1, INT64_MIN), "got -9223372036854775808");
    NO(fl_select, (NULL, 0, 0), NULLS);
    NO(fl_select, (o.f23, 0, 2), "index 2", "axis 0", "[2, 3]");
    NO(fl_select, (o.f23, 0, INT64_MIN), "index -9223372036854775808");
    NO(fl_select, (o.f23, -3, 0), "axis -3");
    NO(fl_squeeze, (NULL, 0), NULLS);
    NO(fl_squeeze, (o.f23, 0), "axis 0", "[2, 3]");
    NO(fl_squeeze, (o.f23, INT32_MAX), "axis 2147483647");
    NO(fl_unsqueeze, (NULL, 0), NULLS);
    NO(fl_unsqueeze, (o.f23, 4), "axis 4", "[2, 3]");
    NO(fl_unsqueeze, (o.f23, INT32_MIN), "axis -2147483648");
    NO(fl_flatten, (NULL, 0, -1), NULLS);
    NO(fl_flatten, (o.f23, 1, 0), "the last axis, 0, is before the first, 1");
    NO(fl_flatten, (o.f23, 0, 2), "axis 2", "[2, 3]");
    const int64_t back[] = {-1}, far_apart[] = {INT64_MAX};
    NO(fl_as_strided, (NULL, FL_SHAPE(2), NULL, 0), NULLS);
    NO(fl_as_strided, (o.f23, negative, NULL, 0), "[2, -3] is not valid");
    NO(fl_as_strided, (o.f23, FL_SHAPE(2), NULL, 1000), "[2] from element 1000 leaves the storage");
    NO(fl_as_strided, (o.f23, FL_SHAPE(2), NULL, -1), "from element -1");
    NO(fl_as_strided, (o.f23, FL_SHAPE(2), back, 0), "leaves the storage");
    NO(fl_as_strided, (o.f23, FL_SHAPE(3), far_apart, 0), "leaves the storage");
    NO(fl_from_buffer, (NULL, FL_F32, FL_SHAPE(2), NULL, 0), NULLS);
    NO(fl_from_buffer, (o.f4->buffer, (fl_dtype)99, FL_SHAPE(2), NULL, 0), "dtype 99");
    NO_AS(fl_from_buffer, "fl_out_on", (o.f4->buffer, FL_F32, negative, NULL, 0), "[2, -3]");
    NO(fl_from_buffer, (o.f4->buffer, FL_F32, FL_SHAPE(5), NULL, 0),
       "[5] from element 0 leaves the storage, which has 4");
    NO(fl_concat, (NULL, 2, 0), NULLS);
    NO(fl_concat, (unlike, 0, 0), "0 tensors");
    NO(fl_concat, (unlike, 2, 0), "[2, 3]", "[3, 4]");
    NO(fl_concat, (unlike, 1, 2), "axis 2", "[2, 3]");
    NO(fl_concat, (number, 1, 0), "weak number");
    NO(fl_concat, (with_null, 2, 0), NULLS);
    NO(fl_stack, (NULL, 2, 0), NULLS);
    NO(fl_stack, (unlike, -2, 0), "-2 tensors");
    NO(fl_stack, (unlike, 2, 0), "[2, 3]", "[3, 4]");
    NO(fl_stack, (unlike, 1, 9), "axis 9", "[2, 3]");
    NO(fl_stack, (with_null, 2, 0), NULLS);
    NO(fl_cast, (NULL, FL_F32), NULLS);
    NO(fl_cast, (o.f23, (fl_dtype)99), "dtype 99");
    NO(fl_cast, (o.f23, (fl_dtype)-1), "dtype -1");
    NO(fl_contiguous, (NULL), NULLS);
    NO(fl_clone, (NULL), NULLS);
    NO(fl_assign, (NULL, o.f23), NULLS);
    NO(fl_assign, (o.f23, NULL), NULLS);
    NO(fl_assign, (o.f23, o.f34), "[3, 4]", "[2, 3]");
    NO(fl_assign, (o.f4, o.f34), "[3, 4]", "[4]");
    NO(fl_assign, (o.number, o.f23), "weak number");
    NO(fl_assign, (fl_expand(o.f4, FL_SHAPE(3, 4)), o.f34), "[3, 4] is broadcast");
    NO(fl_move_into, (NULL, o.f23), NULLS);
    NO(fl_move_into, (o.f23, NULL), NULLS);
    NO(fl_move_into, (o.number, o.f23), "weak number");
    NO_AS(fl_move_into, "fl_assign", (o.f4, o.f34), "[3, 4]", "[4]");
    NO(fl_assign_op, (NULL, FL_OP_add, o.f23, o.f23), NULLS);
    NO(fl_assign_op, (o.f23, FL_OP_add, NULL, o.f23), NULLS);
    NO(fl_assign_op, (o.f23, FL_OP_add, o.f23, NULL), NULLS);
    NO(fl_assign_op, (o.number, FL_OP_add, o.f23, o.f23), "weak number");
    NO(fl_assign_op, (o.f23, FL_OP_exp, o.f23, o.f23), "'exp' is not a binary op");
    NO(fl_assign_op, (o.f23, 9999, o.f23, o.f23), "'' is not a binary op");
    NO(fl_assign_op, (o.f23, FL_OP_lt, o.f23, o.f23), "lt cannot compute in dst's dtype, f32");
    NO(fl_assign_op, (o.i23, FL_OP_div, o.i23, o.i23), "div cannot compute in dst's dtype, i64");
    NO(fl_assign_op, (o.u23, FL_OP_maximum, o.u23, o.u23), "maximum cannot compute in dst's dtype, u64");
    NO(fl_assign_op, (o.i23, FL_OP_add, o.i23, o.f23), "cannot cast an operand of f32 to dst's i64");
    NO(fl_assign_op, (o.i23, FL_OP_add, o.i23, fl_num(2)), "cannot cast an operand of f32 to dst's i64");
    NO(fl_assign_op, (o.f23, FL_OP_add, o.f23, o.f34), "[3, 4]", "[2, 3]");
}

/* One operand that an op of this class does not take; NULL if it takes all. */
static fl_tensor *refused_by(fl_op_class c) {
    return c == FL_CLASS_INT    ? o.f23
           : c == FL_CLASS_NUM  ? o.b23
           : c == FL_CLASS_FLOAT ? o.u23
                                 : NULL;
}

static void unary_rows(const char *fl, fl_op_class cls, fl_tensor *(*f)(fl_tensor *),
                       const char *fv, fl_var *(*g)(fl_var *)) {
    fl_tensor *const volatile bad = row.mode == LIST ? NULL : refused_by(cls);
    ROW(RAISES, fl, !f(NULL), "an operand is NULL");
    ROW(RAISES, fv, !g(NULL), "an operand is NULL");
    if (!bad) return;
    ROW(RAISES, fl, !f(bad), fl_dtype_name(bad->dtype), "not supported");
    ROW(RAISES, fv, !g(fv_const(bad)), fl_dtype_name(bad->dtype), "not supported");
}

static void binary_rows(const char *fl, fl_op_class cls, fl_tensor *(*f)(fl_tensor *, fl_tensor *),
                        const char *fv, fl_var *(*g)(fl_var *, fl_var *)) {
    fl_tensor *const volatile bad = row.mode == LIST ? NULL : refused_by(cls);
    fl_tensor *x = cls == FL_CLASS_INT ? o.i23 : o.f23;
    fl_var *v = cls == FL_CLASS_INT ? o.vi : o.v23;
    ROW(RAISES, fl, !f(NULL, x), "an operand is NULL");
    ROW(RAISES, fl, !f(x, NULL), "an operand is NULL");
    ROW(RAISES, fv, !g(NULL, v), "an operand is NULL");
    ROW(RAISES, fv, !g(v, NULL), "an operand is NULL");
    ROW(RAISES, fl, !f(x, fl_slice(x, 1, 0, 2, 1)), "shapes [2, 3] and [2, 2] do not broadcast");
    ROW(RAISES, fv, !g(v, fv_slice(v, 1, 0, 2, 1)), "shapes [2, 3] and [2, 2] do not broadcast");
    if (!bad) return;
    ROW(RAISES, fl, !f(bad, bad), fl_dtype_name(bad->dtype), "not supported");
    ROW(RAISES, fv, !g(fv_const(bad), fv_const(bad)), fl_dtype_name(bad->dtype), "not supported");
}

static void rows_of_formulas(void) {
#define UNARY(op, cls, ...) unary_rows("fl_" #op, FL_CLASS_##cls, fl_##op, "fv_" #op, fv_##op);
#define BINARY(op, cls, ...) binary_rows("fl_" #op, FL_CLASS_##cls, fl_##op, "fv_" #op, fv_##op);
    FL_UNARY_OPS(UNARY)
    FL_BINARY_OPS(BINARY)
#undef UNARY
#undef BINARY
    NO(fl_remainder, (o.i23, fl_int(0)), "division by zero");
    NO(fl_where, (NULL, o.f23, o.f23), NULLS);
    NO(fl_where, (o.b23, NULL, o.f23), NULLS);
    NO(fl_where, (o.b23, o.f23, NULL), NULLS);
    NO(fl_where, (o.i23, o.f23, o.f23), "must be b8, got i64");
    NO(fl_where, (o.b23, o.f23, o.f34), "[2, 3]", "[3, 4]");
    NO(fl_elu, (NULL, 1), NULLS);
    NO(fl_celu, (NULL, 1), NULLS);
    NO(fl_leaky_relu, (NULL, 0.1), NULLS);
    NO(fl_threshold, (NULL, 0, 1), NULLS);
    NO(fl_hardshrink, (NULL, 1), NULLS);
    NO(fl_softshrink, (NULL, 1), NULLS);
    NO(fl_swish, (NULL, 1), NULLS);
    NO(fl_round, (NULL, 1), NULLS);
    NO(fl_nan_to_num, (NULL, 0, 1, -1), NULLS);
    NO(fl_glu, (NULL, 0), NULLS);
    NO(fl_clamp, (NULL, NULL, NULL), NULLS);
    NO(fl_lgamma, (NULL), NULLS);
    NO(fl_digamma, (NULL), NULLS);
    NO(fl_erfc, (NULL), NULLS);
    NO(fl_erfinv, (NULL), NULLS);
    NO(fl_hypot, (NULL, o.f23), NULLS);
    NO(fl_hypot, (o.f23, NULL), NULLS);
    NO(fl_trunc_divide, (NULL, o.f23), NULLS);
    NO(fl_trunc_divide, (o.f23, NULL), NULLS);
    NO(fl_floor_divide, (NULL, o.f23), NULLS);
    NO(fl_floor_divide, (o.f23, NULL), NULLS);
    NO(fl_addcmul, (NULL, o.f23, o.f23, 1), NULLS);
    NO(fl_addcmul, (o.f23, NULL, o.f23, 1), NULLS);
    NO(fl_addcdiv, (NULL, o.f23, o.f23, 1), NULLS);
    NO(fl_addcdiv, (o.f23, NULL, o.f23, 1), NULLS);
    NO(fl_lerp, (NULL, o.f23, o.f23), NULLS);
    NO(fl_lerp, (o.f23, NULL, o.f23), NULLS);
    NO(fl_glu, (o.f23, 1), "axis 1", "3 elements");
    NO(fv_elu, (NULL, 1), NULLS);
    NO(fv_celu, (NULL, 1), NULLS);
    NO(fv_leaky_relu, (NULL, 0.1), NULLS);
    NO(fv_threshold, (NULL, 0, 1), NULLS);
    NO(fv_hardshrink, (NULL, 1), NULLS);
    NO(fv_softshrink, (NULL, 1), NULLS);
    NO(fv_swish, (NULL, 1), NULLS);
    NO(fv_round, (NULL, 1), NULLS);
    NO(fv_nan_to_num, (NULL, 0, 1, -1), NULLS);
    NO(fv_glu, (NULL, 0), NULLS);
    NO(fv_clamp, (NULL, NULL, NULL), NULLS);
    NO(fv_lgamma, (NULL), NULLS);
    NO(fv_digamma, (NULL), NULLS);
    NO(fv_erfc, (NULL), NULLS);
    NO(fv_erfinv, (NULL), NULLS);
    NO(fv_hypot, (NULL, o.v23), NULLS);
    NO(fv_hypot, (o.v23, NULL), NULLS);
    NO(fv_trunc_divide, (NULL, o.v23), NULLS);
    NO(fv_trunc_divide, (o.v23, NULL), NULLS);
    NO(fv_floor_divide, (NULL, o.v23), NULLS);
    NO(fv_floor_divide, (o.v23, NULL), NULLS);
    NO(fv_addcmul, (NULL, o.v23, o.v23, 1), NULLS);
    NO(fv_addcmul, (o.v23, NULL, o.v23, 1), NULLS);
    NO(fv_addcdiv, (NULL, o.v23, o.v23, 1), NULLS);
    NO(fv_addcdiv, (o.v23, NULL, o.v23, 1), NULLS);
    NO(fv_lerp, (NULL, o.v23, o.v23), NULLS);
    NO(fv_lerp, (o.v23, NULL, o.v23), NULLS);
    ROW(RAISES, "fv_glu", !fv_glu(o.v23, 1), "axis 1", "3 elements");
    NO(fl_apply, (NULL, (fl_tensor *[]){o.f23}, 1), NULLS);
    NO(fl_apply, ("(x) { return x; }", NULL, 1), NULLS);
    NO(fl_apply, ("(x) { return x; }", (fl_tensor *[]){NULL}, 1), NULLS);
    NO(fl_apply, ("(x) { return x; }", (fl_tensor *[]){o.f23}, 0), "got 0 inputs, expected 1 to 8");
    NO(fl_apply, ("(x) { return x }", (fl_tensor *[]){o.f23}, 1), "expected ';' at line 1, column 16");
    NO(fl_apply, ("(x, y) { return x / y; }", (fl_tensor *[]){o.f23, o.f34}, 2), "[2, 3]", "[3, 4]");
    NO_AS(fv_apply, "fl_apply", (NULL, (fl_var *[]){o.v23}, 1), NULLS);
    NO_AS(fv_apply, "fl_apply", ("(x) { return x; }", NULL, 1), NULLS);
    NO(fl_isclose, (NULL, o.f23, 0, 0, false), NULLS);
    NO(fv_where, (NULL, o.v23, o.v23), NULLS);
    NO(fv_where, (o.v23, o.v23, o.v23), "must be b8, got f32");
    NO(fv_where, (o.vb, o.v23, o.v34), "[2, 3]", "[3, 4]");
    NO(fv_cast, (NULL, FL_F32), NULLS);
    NO(fv_cast, (o.v23, (fl_dtype)99), "dtype 99");
}

/* Reductions over axes, what they share: f of [2, 3] is called as call(x, axes). */
#define REDUCTION(f, call, x)                                              \
    do {                                                                   \
        ROW(RAISES, #f, !call(NULL, FL_ALL_AXES), NULLS);                  \
        ROW(RAISES, #f, !call(x, FL_AXES(2)), "axis 2", "[2, 3]");         \
        ROW(RAISES, #f, !call(x, FL_AXES(0, -2)), "axis 0 appears twice"); \
        ROW(RAISES, #f, !call(x, ((fl_axes){9, {0}, false})), "9 axes");   \
        ROW(RAISES, #f, !call(x, ((fl_axes){-1, {0}, false})), "-1 axes"); \
    } while (0)

static fl_tensor *variance(fl_tensor *x, fl_axes axes) { return fl_variance(x, axes, 1); }
static fl_var *variance_var(fl_var *x, fl_axes axes) { return fv_variance(x, axes, 1); }

static void rows_of_reductions(void) {
    REDUCTION(fl_sum, fl_sum, o.f23);
    REDUCTION(fl_prod, fl_prod, o.f23);
    REDUCTION(fl_mean, fl_mean, o.f23);
    REDUCTION(fl_variance, variance, o.f23);
    REDUCTION(fl_amax, fl_amax, o.f23);
    REDUCTION(fl_amin, fl_amin, o.f23);
    REDUCTION(fl_all, fl_all, o.b23);
    REDUCTION(fl_any, fl_any, o.b23);
    REDUCTION(fl_logsumexp, fl_logsumexp, o.f23);
    REDUCTION(fv_sum, fv_sum, o.v23);
    REDUCTION(fv_prod, fv_prod, o.v23);
    REDUCTION(fv_mean, fv_mean, o.v23);
    REDUCTION(fv_variance, variance_var, o.v23);
    REDUCTION(fv_amax, fv_amax, o.v23);
    REDUCTION(fv_amin, fv_amin, o.v23);
    REDUCTION(fv_logsumexp, fv_logsumexp, o.v23);
    NO(fl_mean, (o.i23, FL_ALL_AXES), "i64");
    NO(fl_variance, (o.b23, FL_ALL_AXES, 1), "b8");
    NO(fl_amax, (o.u23, FL_ALL_AXES), "u64");
    NO(fl_amax, (o.f03, FL_AXES(0)), "no elements", "[0, 3]");
    NO(fl_amin, (o.f03, FL_ALL_AXES), "no elements", "[0, 3]");
    NO(fl_argmax, (NULL, 0, false), NULLS);
    NO(fl_argmax, (o.f23, 2, false), "axis 2", "[2, 3]");
    NO(fl_argmax, (o.f03, 0, false), "no elements", "[0, 3]");
    NO(fl_argmin, (NULL, 0, false), NULLS);
    NO(fl_argmin, (o.u23, 0, false), "u64");
    NO(fv_sum_to, (NULL, FL_SHAPE(3)), NULLS);
    NO(fv_sum_to, (o.v23, FL_SHAPE(4)), "[2, 3]", "[4]");
    NO(fv_sum_to, (o.v23, least), "[2, 3]");
}

#include "errors_reduce.h"

static void rows_of_order(void) {
    NO(fl_cumsum, (NULL, 0), NULLS);
    NO(fl_cumsum, (o.f23, 2), "axis 2", "[2, 3]");
    NO(fl_cumprod, (NULL, 0), NULLS);
    NO(fl_cumprod, (o.f23, -3), "axis -3", "[2, 3]");
    NO(fl_sort, (NULL, 0, false, NULL), NULLS);
    NO(fl_sort, (o.f23, 2, false, NULL), "axis 2", "[2, 3]");
    NO(fl_argsort, (NULL, 0, false), NULLS);
    NO(fl_topk, (NULL, 1, 0, false, NULL), NULLS);
    NO(fl_topk, (o.f23, 4, 1, false, NULL), "4 of axis 1 of shape [2, 3]");
    NO(fl_topk, (o.f23, -1, 1, false, NULL), "-1 of axis 1");
    NO(fl_topk, (o.f23, 1, 2, false, NULL), "axis 2");
    NO(fl_nonzero, (NULL), NULLS);
    NO(fv_cumsum, (NULL, 0), NULLS);
    NO(fv_cumprod, (NULL, 0), NULLS);
    NO(fv_cumprod, (o.v23, 2), "axis 2");
    NO(fv_sort, (NULL, 0, false, NULL), NULLS);
    NO(fv_topk, (o.v23, 4, 1, false, NULL), "4 of axis 1");
}

static void rows_of_indexing(void) {
    fl_tensor *i = o.i23;
    NO(fl_gather, (NULL, 0, i), NULLS);
    NO(fl_gather, (o.f23, 0, NULL), NULLS);
    NO(fl_gather, (o.f23, 2, i), "axis 2", "[2, 3]");
    NO(fl_gather, (o.f23, 0, o.f23), "f32", "expected i64 or i32");
    NO(fl_gather, (o.f34, 1, fl_zeros(FL_SHAPE(4, 2), FL_I64)), "[4, 2]", "[3, 4]");
    NO(fl_gather, (o.f23, 1, o.index), "index 7", "axis 1", "size 3");
    NO(fl_scatter_add, (NULL, 0, i, o.f23), NULLS);
    NO(fl_scatter_add, (o.f23, 0, NULL, o.f23), NULLS);
    NO(fl_scatter_add, (o.f23, 0, i, NULL), NULLS);
    NO(fl_scatter_add, (o.f23, 0, i, o.f34), "[2, 3]", "[3, 4]");
    NO(fl_scatter_add, (o.f23, 0, i, o.d23), "f32", "f64");
    NO(fl_scatter_add, (o.b23, 0, i, o.b23), "b8");
    NO(fl_scatter_add, (o.f23, 0, o.f23, o.f23), "f32", "expected i64 or i32");
    NO(fl_scatter_add, (o.f23, -3, i, o.f23), "axis -3");
    NO(fl_scatter_add, (o.f23, 1, o.index, fl_slice(o.f23, 1, 0, 1, 1)), "index 7");
    NO(fl_scatter, (NULL, 0, i, o.f23), NULLS);
    NO(fl_scatter, (o.f23, 0, NULL, o.f23), NULLS);
    NO(fl_scatter, (o.f23, 0, i, NULL), NULLS);
    NO(fl_scatter, (o.f23, 0, i, o.f34), "[2, 3]", "[3, 4]");
    NO(fl_scatter, (o.f23, 0, i, o.d23), "f32", "f64");
    NO(fl_scatter, (o.f23, 0, o.f23, o.f23), "f32", "expected i64 or i32");
    NO(fl_scatter, (o.f23, 1, o.index, fl_slice(o.f23, 1, 0, 1, 1)), "index 7");
    NO(fl_index_select, (NULL, 0, i), NULLS);
    NO(fl_index_select, (o.f23, 0, NULL), NULLS);
    NO(fl_index_select, (o.f23, 0, i), "[2, 3]");
    NO(fl_index_select, (o.f23, 5, o.f4), "axis 5");
    NO(fl_index_select, (o.f23, 0, o.f4), "f32", "expected i64 or i32");
    NO(fl_one_hot, (NULL, 3), NULLS);
    NO(fl_one_hot, (o.f23, 3), "f32", "expected integers");
    NO(fl_one_hot, (i, -1), "-1 classes");
    NO(fl_one_hot, (i, INT64_MAX), "9223372036854775807 classes");
    NO(fv_gather, (NULL, 0, i), NULLS);
    NO(fv_gather, (o.v23, 0, NULL), NULLS);
    NO(fv_gather, (o.v23, 1, o.index), "index 7");
    NO(fv_scatter_add, (NULL, 0, i, o.v23), NULLS);
    NO(fv_scatter_add, (o.v23, 0, i, NULL), NULLS);
    NO(fv_scatter_add, (o.v23, 0, i, o.v34), "[2, 3]", "[3, 4]");
    NO(fv_scatter, (NULL, 0, i, o.v23), NULLS);
    NO(fv_scatter, (o.v23, 0, i, NULL), NULLS);
    NO(fv_scatter, (o.v23, 0, i, o.v34), "[2, 3]", "[3, 4]");
    NO(fv_index_select, (NULL, 0, i), NULLS);
    NO(fv_index_select, (o.v23, 0, i), "[2, 3]");
    FINE(fl_matmul_precision, fl_matmul_precision() == FL_F32);
    NO(fl_set_matmul_precision, (FL_F16), "got f16, expected f32 or bf16");
    NO(fl_set_matmul_precision, ((fl_dtype)99), "got ?, expected f32 or bf16");
    NO(fl_autocast, (FL_F64), "f16 or bf16, or f32 to turn it off, got f64");
    FINE(fl_autocast_dtype, fl_autocast_dtype() == FL_F32);
    NO(fl_autocast_set_policy, (-1, FL_AUTOCAST_WIDE), "op -1 or policy 2 does not exist");
    NO(fl_autocast_set_policy, (FL_OP_add, (fl_autocast_policy)9), "policy 9 does not exist");
    FINE(fl_autocast_get_policy, fl_autocast_get_policy(-1) == FL_AUTOCAST_NONE);
    FINE(fv_autocast_operands, fv_autocast_operands(FL_OP_exp, &(fl_var *){NULL}, 1));
    NO(fl_matmul, (NULL, o.f23), NULLS);
    NO(fl_matmul, (o.f23, NULL), NULLS);
    NO(fl_matmul, (o.f23, o.f23), "[2, 3] and [2, 3]");
    NO(fl_matmul, (o.f23, o.number), "[2, 3]", "[]");
    NO(fl_matmul, (o.b23, fl_transpose(o.b23, 0, 1)), "b8 and b8");
    NO(fl_matmul, (fl_ones(FL_SHAPE(2, 1, 3), FL_F32), fl_ones(FL_SHAPE(3, 3, 2), FL_F32)),
       "[2, 1, 3]", "batch");
    NO(fv_matmul, (NULL, o.v23), NULLS);
    NO(fv_matmul, (o.v23, o.v23), "[2, 3] and [2, 3]");
}

static fl_conv2d_args conv_args(int64_t stride, int64_t groups) {
    return (fl_conv2d_args){{stride, stride}, {1, 1}, {1, 1}, {1, 1}, groups, false};
}

static void rows_of_convolution(void) {
    const fl_conv2d_args good = conv_args(1, 1), zero = {.groups = 0};
    const fl_shape image = FL_SHAPE(1, 2, 4, 4), kernel = FL_SHAPE(3, 2, 3, 3);
    fl_tensor *x = o.image, *w = o.kernel,
              *dy = row.mode == LIST ? NULL : fl_ones(FL_SHAPE(1, 3, 4, 4), FL_F32);
    const fl_conv_opts plain = {.groups = 0};
    NO(fl_conv_opt, (NULL, w, NULL, plain), NULLS);
    NO(fl_conv_opt, (x, NULL, NULL, plain), NULLS);
    NO(fl_conv_opt, (o.f23, w, NULL, plain), "[2, 3]");
    NO(fl_conv_opt, (x, w, NULL, (fl_conv_opts){.stride = {-1}}), "stride -1");
    NO(fl_conv_opt, (x, w, NULL, (fl_conv_opts){.stride = {FL_I0}}), "stride 0");
    NO(fl_conv_opt, (x, w, NULL, (fl_conv_opts){.pad = {INT64_MAX}}), "pad 9223372036854775807");
    NO(fl_conv_opt, (x, w, NULL, (fl_conv_opts){.dilation = {INT64_MAX}}),
       "dilation 9223372036854775807");
    NO(fl_conv_opt, (x, w, NULL, (fl_conv_opts){.dilation = {2}}), "dilation 2", "[3, 2, 3, 3]",
       "[1, 2, 4, 4]");
    NO_AS(fl_conv_opt, "fl_conv2d", (x, w, NULL, (fl_conv_opts){.groups = 2}), "2 groups", "[1, 2, 4, 4]");
    NO_AS(fl_conv_opt, "fl_conv2d", (x, w, NULL, (fl_conv_opts){.groups = -1}), "-1 groups");
    NO_AS(fl_conv_opt, "fl_conv2d", (x, w, o.f4, plain), "[4]", "[3, 2, 3, 3]");
    NO(fl_conv_opt, (x, fl_cast(w, FL_F64), NULL, plain), "f32", "f64");
    NO(fl_conv_opt, (fl_cast(x, FL_I64), fl_cast(w, FL_I64), NULL, plain), "i64");
    NO(fl_conv2d_run, (NULL, w, NULL, good), NULLS);
    NO(fl_conv2d_run, (x, w, NULL, conv_args(1, 3)), "3 groups");
    NO(fl_conv2d_run, (x, w, NULL, conv_args(0, 1)), "stride 0");
    NO(fl_conv2d_run,
       (fl_zeros(FL_SHAPE(1, 0, 4, 4), FL_F32), fl_zeros(FL_SHAPE(3, 0, 3, 3), FL_F32), NULL, zero),
       "groups");
    NO(fl_conv2d_run, (x, w, o.f4, good), "[4]");
    NO(fl_conv2d_grad_input, (NULL, w, image, good), NULLS);
    NO(fl_conv2d_grad_input, (dy, NULL, image, good), NULLS);
    NO(fl_conv2d_grad_input, (dy, w, FL_SHAPE(1, 2, 5, 4), good), "[1, 2, 5, 4]", "[3, 2, 3, 3]",
       "[1, 3, 4, 4]");
    NO(fl_conv2d_grad_input, (dy, w, FL_SHAPE(2, 3), good), "[2, 3]");
    NO(fl_conv2d_grad_input, (dy, w, image, zero), "0 groups");
    NO(fl_conv2d_grad_input, (dy, w, image, conv_args(0, 1)), "stride 0");
    NO(fl_conv2d_grad_weight, (NULL, dy, kernel, good), NULLS);
    NO(fl_conv2d_grad_weight, (x, NULL, kernel, good), NULLS);
    NO(fl_conv2d_grad_weight, (x, dy, FL_SHAPE(3, 2, 3, 4), good), "[3, 2, 3, 4]");
    NO(fl_conv2d_grad_weight, (x, fl_cast(dy, FL_F64), kernel, good), "f32 and f64");
    NO(fl_conv2d_grad_weight, (x, dy, kernel, conv_args(0, 1)), "stride 0");
    NO_AS(fv_conv_opt, "fv_conv", (NULL, o.kernel_v, NULL, plain), NULLS);
    NO_AS(fv_conv_opt, "fv_conv", (o.image_v, NULL, NULL, plain), NULLS);
    NO_AS(fv_conv_opt, "fl_conv2d", (o.image_v, o.kernel_v, o.v4, plain), "[4]");
    NO_AS(fv_conv_opt, "fl_conv2d", (o.image_v, o.kernel_v, NULL, (fl_conv_opts){.groups = 2}), "2 groups");
    NO(fv_conv_opt, (o.v23, o.kernel_v, NULL, plain), "[2, 3]");
}

static void rows_of_pooling(void) {
    const fl_pool2d_args good = {{2, 2}, {2, 2}, {0, 0}, {0, 0}, true, false},
                         zero = {.kernel = {2, 2}};
    const fl_shape image = FL_SHAPE(1, 2, 4, 4);
    const bool list = row.mode == LIST;
    fl_tensor *x = o.image, *dy = list ? NULL : fl_ones(FL_SHAPE(1, 2, 2, 2), FL_F32);
    fl_tensor *at = list ? NULL : fl_zeros(FL_SHAPE(1, 2, 2, 2), FL_I64), *index = o.f23;
    const fl_pool_opts two = {.kernel = {2}};
    NO(fl_max_pool_opt, (NULL, &index, two), NULLS);
    NO(fl_max_pool_opt, (o.f23, &index, two), "f32", "[2, 3]");
    NO(fl_max_pool_opt, (fl_cast(x, FL_I64), &index, two), "i64", "[1, 2, 4, 4]");
    NO(fl_max_pool_opt, (x, &index, (fl_pool_opts){.kernel = {5}}), "[1, 2, 4, 4]", "window 5");
    NO(fl_max_pool_opt, (x, &index, (fl_pool_opts){.kernel = {2}, .pad = {2}}), "pad 2");
    NO(fl_max_pool_opt, (x, &index, (fl_pool_opts){.kernel = {0}}), "window 0");
    NO(fl_max_pool_opt, (x, &index, (fl_pool_opts){.kernel = {INT64_MAX}}), "window 9223372036854775807");
    NO(fl_max_pool_opt, (x, &index, (fl_pool_opts){.kernel = {2}, .stride = {INT64_MIN}}),
       "stride -9223372036854775808");
    NO(fl_avg_pool_opt, (NULL, two), NULLS);
    NO(fl_avg_pool_opt, (o.f4, two), "f32", "[4]");
    NO(fl_avg_pool2d_run, (NULL, good), NULLS);
    NO(fl_avg_pool2d_run, (o.f23, good), "[2, 3]");
    NO(fl_avg_pool2d_run, (x, zero), "stride 0");
    NO(fl_max_pool2d_grad, (NULL, at, image), NULLS);
    NO(fl_max_pool2d_grad, (dy, NULL, image), NULLS);
    NO(fl_max_pool2d_grad, (dy, at, FL_SHAPE(2, 2, 4, 4)), "[1, 2, 2, 2]", "[2, 2, 4, 4]");
    NO(fl_max_pool2d_grad, (dy, at, FL_SHAPE(1, 2, -4, -4)), "[1, 2, -4, -4]");
    NO(fl_max_pool2d_grad, (dy, fl_cast(at, FL_F32), image), "f32");
    NO(fl_avg_pool2d_grad, (NULL, image, good), NULLS);
    NO(fl_avg_pool2d_grad, (dy, FL_SHAPE(1, 2, 9, 9), good), "[1, 2, 2, 2]", "[1, 2, 9, 9]");
    NO(fl_avg_pool2d_grad, (dy, image, zero), "stride 0");
    NO_AS(fv_max_pool_opt, "fv_max_pool", (NULL, NULL, two), NULLS);
    NO(fv_max_pool_opt, (o.v23, NULL, two), "[2, 3]");
    NO_AS(fv_avg_pool_opt, "fv_avg_pool", (NULL, two), NULLS);
    NO(fv_avg_pool_opt, (o.v23, two), "[2, 3]");
    NO(fv_avg_pool2d_run, (NULL, good), NULLS);
    NO(fv_avg_pool2d_run, (o.v23, good), "[2, 3]");
}

static void rows_of_softmax(void) {
    fl_tensor *da = o.f4, *db = o.f4;
    NO(fl_softmax, (NULL, 0), NULLS);
    NO(fl_softmax, (o.f23, 2), "axis 2", "[2, 3]");
    NO(fl_log_softmax, (NULL, 0), NULLS);
    NO(fl_log_softmax, (o.f23, -3), "axis -3", "[2, 3]");
    NO(fl_softmax_grad, (NULL, o.f23, 0), NULLS);
    NO(fl_softmax_grad, (o.f23, NULL, 0), NULLS);
    NO(fl_softmax_grad, (o.f23, o.f34, 0), "[2, 3]", "[3, 4]");
    NO(fl_softmax_grad, (o.f23, o.d23, 0), "f32", "f64");
    NO(fl_softmax_grad, (o.f23, o.f23, 7), "axis 7");
    NO(fl_log_softmax_grad, (NULL, o.f23, 0), NULLS);
    NO(fl_log_softmax_grad, (o.f23, o.f34, 0), "[2, 3]", "[3, 4]");
    NO(fl_grad1, ((fl_op)-1, o.f23, o.f23, o.f23, NULL), "op -1");
    NO(fl_grad1, (FL_OP_add, o.f23, o.f23, o.f23, NULL), "no formula of x");
    NO(fl_grad1, (FL_OP_exp, NULL, o.f23, o.f23, NULL), NULLS);
    NO(fl_grad1, (FL_OP_exp, o.f23, o.f23, NULL, NULL), NULLS);
    NO(fl_grad1, (FL_OP_gelu, o.f4, o.f23, o.f23, NULL), "[4]", "[2, 3]");
    NO(fl_grad1, (FL_OP_gelu, o.f23, o.f23, o.d23, NULL), "f32", "f64");
    NO(fl_grad2, (FL_OP_exp, 3, o.f23, o.f23, o.f23, o.f23, &da, &db), "no formula of a and b");
    NO(fl_grad2, (FL_OP_pow, 3, o.f23, NULL, o.f23, o.f23, &da, &db), NULLS);
    NO(fl_grad2, (FL_OP_pow, 3, o.f23, o.f4, o.f23, o.f23, &da, &db), "[4]", "[2, 3]");
    NO(fl_grad2, (FL_OP_pow, 3, o.f23, o.f23, o.f23, o.d23, &da, &db), "f32", "f64");
    CHECK(row.mode == LIST || (da == o.f4 && db == o.f4));
    NO(fv_softmax, (NULL, 0), NULLS);
    NO(fv_softmax, (o.v23, 2), "axis 2", "[2, 3]");
    NO(fv_log_softmax, (NULL, 0), NULLS);
    NO(fv_log_softmax, (o.v23, 2), "axis 2", "[2, 3]");
}

static void rows_of_randomness(void) {
    FINE(fl_rng_take, fl_rng_take(&(fl_rng){1, 2}, -5).counter == 2);
    NO(fl_uniform, (negative, 0, 1, FL_F32, NULL), "[2, -3]");
    NO(fl_uniform, (FL_SHAPE(2), 0, 1, FL_I64, NULL), "i64");
    NO(fl_uniform, (FL_SHAPE(2), 0, 1, (fl_dtype)99, NULL), "fl_uniform");
    NO(fl_normal, (huge, 0, 1, FL_F32, NULL), "9223372036854775807");
    NO(fl_normal, (FL_SHAPE(2), 0, 1, FL_B8, NULL), "b8");
    NO(fl_randint, (FL_SHAPE(2), 3, 3, NULL), "[3, 3)");
    NO(fl_randint, (FL_SHAPE(2), INT64_MAX, INT64_MIN, NULL), "9223372036854775807");
    NO(fl_randint, (negative, 0, 3, NULL), "[2, -3]");
    NO(fl_dropout, (NULL, 0.5, NULL), NULLS);
    NO(fl_dropout, (o.f23, 1.5, NULL), "p 1.5", "f32");
    NO(fl_dropout, (o.f23, (double)NAN, NULL), "p nan");
    NO(fl_dropout, (o.i23, 0.5, NULL), "i64");
    NO_AS(fl_dropout_at, "fl_dropout", (NULL, 0.5, (fl_rng){0, 0}), NULLS);
    NO_AS(fl_dropout_at, "fl_dropout", (o.f23, -1, (fl_rng){0, 0}), "p -1");
    NO(fv_dropout, (NULL, 0.5, NULL), NULLS);
    NO(fv_dropout, (o.v23, 7, NULL), "p 7");
}

static void rows_of_steps(void) {
    static fl_step_rule descent = {
        .reads = "g", .writes = "p", .numbers = "lr", .formula = "SUB(p, MUL(lr, g))"};
    static fl_step_rule odd = {.reads = "g", .writes = "p", .numbers = "lr", .formula = "g, p"};
    static fl_step_rule bad = {.reads = "g", .writes = "p", .numbers = "lr", .formula = "MUL(lr, q)"};
    fl_tensor *lr = fl_num(0.1), *two[] = {lr, lr}, *none = NULL;
#define OF(a, b) ((fl_tensor *[]){a, b})
    NO(fl_step, (NULL, OF(o.f23, o.f23), 1, &lr, NULL), NULLS);
    NO(fl_step, (&descent, NULL, 1, &lr, NULL), NULLS);
    NO(fl_step, (&descent, OF(NULL, o.f23), 1, &lr, NULL), NULLS);
    NO(fl_step, (&descent, OF(o.f23, NULL), 1, &lr, NULL), NULLS);
    NO(fl_step, (&descent, OF(o.f23, o.f23), 1, &none, NULL), NULLS);
    NO(fl_step, (&descent, OF(o.f34, o.f23), 1, &lr, NULL), "f32 [3, 4]", "f32 [2, 3]");
    NO(fl_step, (&descent, OF(o.d23, o.f23), 1, &lr, NULL), "f64 [2, 3]", "f32 [2, 3]");
    NO(fl_step, (&descent, OF(o.i23, o.i23), 1, &lr, NULL), "i64 [2, 3]");
    NO(fl_step, (&descent, OF(o.f34, fl_expand(o.f4, FL_SHAPE(3, 4))), 1, &lr, NULL), "[3, 4] is broadcast");
    NO(fl_step, (&descent, OF(o.f23, o.f23), 1, &lr, o.f34), "f32 [3, 4]");
    NO(fl_step, (&descent, OF(o.f23, o.f23), 2, two, NULL), "2 numbers for \"lr\"");
    NO(fl_step, (&odd, OF(o.f23, o.f23), 1, &lr, NULL), "2 formulas for \"p\"");
    NO_AS(fl_step, "fl_formula_parse", (&bad, OF(o.f23, o.f23), 1, &lr, NULL), "no input of this name");
#undef OF
    const fl_call unparsed = {.op = fl_op_step, .n_out = 1, .n_in = 2, .out = {o.f23}, .in = {o.f23, o.f23},
                              .args = &(fl_step_args){.n_reads = 1, .n_writes = 1}};
    NO_FILE(fl_step_args_of, (NULL), NULLS);
    NO_FILE_AS(fl_step_args_of, "fl_step", (&unparsed), "has no program");
    NO_FILE_AS(fl_call_run, "fl_step", (&unparsed), "has no program");
    NO(fl_sum_squares, (NULL), NULLS);
    NO(fl_sum_squares, (o.i23), "i64");
    NO_AS(fl_add_squares, "fl_sum_squares", (NULL, NULL), NULLS);
    NO(fl_add_squares, (o.f23, o.f23), "the sum is f32 [2, 3]");
}

/* ---- fl_autograd.h ---- */

static bool never_called;
static void dead_back(fl_node *n, fl_var *dy) {
    (void)n, (void)dy;
    never_called = true;
}

/* What backward functions may ask wrongly: run inside a backward pass. */
static int wrong_request;
static void asking_back(fl_node *n, fl_var *dy) {
    if (wrong_request == 0) CHECK(!fv_saved(n, 1));
    if (wrong_request == 1) CHECK(!fv_saved(n, -1));
    if (wrong_request == 2) fv_add_grad(n, 0, fv_const(fl_ones(FL_SHAPE(5), FL_F32)));
    if (wrong_request == 3) {
        CHECK(!fv_needs(n, 1) && !fv_needs(n, -1) && fv_in_shape(n, 1).ndim == 0 && !fv_args(n));
        fv_add_grad(n, 0, NULL);
        fv_add_grad(n, 0, dy);
    }
}

static bool backward_asking(int what) {
    wrong_request = what;
    fl_var *x = fv_param(o.f23);
    fl_var *y = fv_record(fl_clone(o.f23), asking_back, FV_IN(x), FV_SAVE(x));
    const bool ok = fl_backward(y, .grad = o.f23);
    CHECK(ok || !fv_grad(x));
    return ok;
}

static fl_var *dependent(void) { return fv_exp(o.v23); }

static bool backward_twice(void) {
    fl_var *x = fv_param(o.f23), *y = fv_sum(fv_exp(x), FL_ALL_AXES);
    return fl_backward(y) && fl_backward(y);
}

static void rows_of_variables(void) {
    FINE(fv_const, !fv_const(NULL));
    FINE(fv_param, !fv_param(NULL));
    NO(fv_param, (o.i23), "i64 [2, 3]");
    NO(fv_param, (o.number), "number");
    FINE(fv_value, !fv_value(NULL));
    FINE(fv_grad, !fv_grad(NULL));
    FINE(fv_detach, !fv_detach(NULL));
    FINE(fv_keep, !fv_keep(NULL));
    FINE(fv_drop, (fv_drop(NULL), true));
    FINE(fv_scope_return, !fv_scope_return(NULL, NULL));
    FINE(fv_zero_grad, (fv_zero_grad(NULL), true));
    NO(fv_set_grad, (NULL, o.v23), "the variable is NULL");
    NO(fv_set_grad, (o.v23, NULL), "the gradient is NULL");
    NO(fv_set_grad, (o.v23, o.v34), "f32 [3, 4]", "f32 [2, 3]");
    NO(fv_set_grad, (o.v23, fv_const(o.d23)), "f64 [2, 3]", "f32 [2, 3]");
    FINE(fv_hook, (fv_hook(NULL, NULL, NULL), true));
    FINE(fv_unhook, (fv_unhook(NULL, 1), fv_unhook(o.v23, 1), true));
    FINE(fv_list_of, fv_list_of(0, NULL).n == 0);
    NO_FILE_AS(fv_check_list, "test", ("test", "leaf", fv_list_of(0, NULL)),
               "test: the list of leafs is empty");
    ROW(RAISES, "fv_watch", (fv_watch(NULL), true), NULLS);
    FINE(fv_unwatch, (fv_unwatch(NULL), true));
    ROW(RAISES, "fl_watch_calls", (fl_watch_calls(NULL), true), NULLS);
    ROW(RAISES, "fl_unwatch_calls", (fl_unwatch_calls(NULL), true), NULLS);
    NO(fl_profile_print, (), "no profile is running");
    ROW(RAISES, "fl_profile_format", fl_profile_format(NULL, 0) < 0, "no profile is running");
    NO_FILE(fl_profile_save, (NULL), NULLS);
    NO_FILE(fl_profile_save, ("/no/folder/x.json"), "no profile is running");
    NO(fl_profile_add, ("gpu", "kernel", 0, 1), "no profile is running");
    NO(fl_profile_add, (NULL, "kernel", 0, 1), NULLS);
    double one[1], *room = one;
    NO(fl_jacobian, (NULL, FV_LIST(o.v23), &room), "fl_jacobian: y is NULL");
    NO(fl_jacobian, (o.v23, FV_NONE, &room), "got 0 variables, expected 1 to 8");
    NO_FILE_AS(fl_gradcheck_opt, "fl_gradcheck", (NULL, FV_LIST(o.v23), (fl_gradcheck_opts){.eps = 0}),
               "fn is NULL");
    NO_FILE_AS(fl_gradgradcheck_opt, "fl_gradgradcheck",
               (NULL, FV_LIST(o.v23), (fl_gradcheck_opts){.eps = 0}), "fn is NULL");
    ROW_OF(RAISES, "fl_tape_format_opt", "fl_tape_format", fl_tape_format(NULL, NULL, 0) < 0,
           "the variable is NULL");
    NO_FILE_AS(fl_tape_save_opt, "fl_tape_save", (o.v23, NULL, (fl_tape_opts){.user = NULL}),
               "the path is NULL");
    NO_FILE_AS(fl_tape_save_opt, "fl_tape_save", (o.v23, "/no/folder/x", (fl_tape_opts){.user = NULL}),
               "cannot open /no/folder/x.part");
    if (fl_profile_begin(1)) {
        NO_AS(fl_profile_begin_opt, "fl_profile_begin", (1, (fl_profile_opts){.sync = true}),
              "a profile is running");
        fl_profile_end();
    }
    if (fl_alive_begin()) {
        NO(fl_alive_begin, (), "recording is on already");
        FINE(fl_alive_format, fl_alive_format(NULL, 0) > 0);
        fl_alive_end();
    }
    fl_tensor *nine[9] = {o.f23};
    fl_var *results[9];
    const fv_record_opts several = {.name = "mine", .back = dead_back, .in = FV_IN(o.v23)};
    NO(fv_record_several, (9, nine, results, &several), "mine has 9 results, expected 1 to 8");
    NO(fv_record_several, (0, nine, results, &several), "0 results");
    FINE(fv_grad_of, true); /* in asking_back */
    FINE(fv_add_grad_part, true);
    FINE(fv_record, !fv_record(NULL, dead_back, FV_IN(o.v23), FV_NONE));
    NO(fv_record, (o.f23, NULL, FV_IN(o.v23), FV_NONE), "no backward function");
    NO_AS(fv_record_args, "fv_record: mine",
          ("mine", o.f23, dead_back, ((fv_list){9, (fl_var *[9]){o.v23}}), FV_NONE, NULL, 0),
          "9 inputs");
    ROW(RAISES, "fv_saved", !backward_asking(0), "fv_saved", "saved value 1 of", "it saved 1");
    ROW(RAISES, "fv_saved", !backward_asking(1), "saved value -1 of");
    ROW_OF(RAISES, "fv_add_grad", "fv_sum_to", !backward_asking(2), "[5]", "[2, 3]");
    FINE(fv_needs, row.mode != RETURNING || backward_asking(3));
    FINE(fv_in_shape, true); /* and fv_args: in asking_back */
    FINE(fv_args, true);
    FINE(fv_in_count, true);
    FINE(fv_saved_count, true); /* and the two below: in backward functions of every op */
    FINE(fv_op, true);
    FINE(fv_own_grad, true);
    CHECK(!never_called);
}

static void rows_of_backward(void) {
    NO(fl_backward_opt, (NULL, (fl_backward_opts){0}), NULLS);
    NO(fl_backward_opt, (o.v23, (fl_backward_opts){0}), "[2, 3]");
    NO(fl_backward_opt, (dependent(), (fl_backward_opts){0}), "f32 [2, 3]");
    NO(fl_backward_opt, (dependent(), (fl_backward_opts){.grad = o.f34}), "[3, 4]", "[2, 3]");
    NO(fl_backward_opt, (fv_const(o.f23), (fl_backward_opts){.grad = o.f23}), "root");
    ROW(RAISES, "fl_backward_opt", !backward_twice(), "freed by an earlier backward");
    NO(fl_grad, (NULL, o.v23, false), NULLS);
    NO(fl_grad, (o.v23, NULL, false), NULLS);
    NO(fl_grad, (dependent(), o.v23, false), "[2, 3]");
    const bool running = row.mode != LIST;
    fl_var *g[2], *y = running ? dependent() : NULL, *sum = running ? fv_sum(y, FL_ALL_AXES) : NULL;
    fl_var *other = fv_param(o.f23);
    const fv_list none = FV_NONE, ys = {1, &y}, sums = {1, &sum}, others = {1, &other};
    NO(fl_grads_opt, (none, others, g, (fl_grads_opts){0}), "list of outputs is empty");
    NO(fl_grads_opt, (sums, none, g, (fl_grads_opts){0}), "list of inputs is empty");
    NO(fl_grads_opt, (sums, FV_LIST(other, NULL), g, (fl_grads_opts){0}), "input 1 is NULL");
    NO(fl_grads_opt, (sums, others, NULL, (fl_grads_opts){0}), "array of gradients is NULL");
    NO(fl_grads_opt, (ys, ys, g, (fl_grads_opts){0}), "the root is f32 [2, 3]", ".given");
    NO(fl_grads_opt, (ys, ys, g, (fl_grads_opts){.given = FV_LIST(o.v34)}), ".given is f32 [3, 4]");
    NO(fl_grads_opt, (ys, ys, g, (fl_grads_opts){.given = FV_LIST(y, y)}),
       "has 2 gradients, expected one per output, 1");
    NO(fl_grads_opt, (sums, others, g, (fl_grads_opts){0}), "depends on input 0", "allow_unused");
    NO(fl_jvps, (none, others, others, g, false), "list of results is empty");
    NO(fl_jvps, (ys, none, others, g, false), "list of variables is empty");
    NO(fl_jvps, (ys, others, none, g, false), "got 0 directions, expected one per variable, 1");
    NO(fl_jvps, (ys, others, FV_LIST(o.v34), g, false), "[3, 4]", "[2, 3]");
    NO(fl_jvp, (NULL, o.v23, o.v23, false), NULLS);
    NO(fl_jvp, (o.v23, NULL, o.v23, false), NULLS);
    NO(fl_jvp, (o.v23, o.v23, NULL, false), NULLS);
    NO(fl_jvp, (fv_exp(fv_param(o.f23)), fv_param(o.f23), o.v34, false), "[3, 4]", "[2, 3]");
}

static void rows_of_var_movement(void) {
    const int twice[] = {0, 0};
    fl_var *unlike[9] = {o.v23, o.v34, o.v23, o.v23, o.v23, o.v23, o.v23, o.v23, o.v23},
           *with_null[] = {o.v23, NULL};
    NO(fv_reshape, (NULL, FL_SHAPE(6)), NULLS);
    NO(fv_reshape, (o.v23, FL_SHAPE(4)), "[2, 3]", "[4]");
    NO(fv_permute, (NULL, 2, twice), NULLS);
    NO(fv_permute, (o.v23, 2, NULL), NULLS);
    NO(fv_permute, (o.v23, 2, twice), "twice");
    NO(fv_transpose, (NULL, 0, 1), NULLS);
    NO(fv_transpose, (o.v23, 0, 2), "axis 2", "[2, 3]");
    NO(fv_expand, (NULL, FL_SHAPE(3)), NULLS);
    NO(fv_expand, (o.v23, FL_SHAPE(4, 3)), "[2, 3]", "[4, 3]");
    NO(fv_slice, (NULL, 0, 0, 1, 1), NULLS);
    NO(fv_slice, (o.v23, 0, 0, 1, 0), "step must not be 0 or INT64_MIN, got 0");
    NO(fv_select, (NULL, 0, 0), NULLS);
    NO(fv_select, (o.v23, 0, 9), "index 9", "[2, 3]");
    NO(fv_squeeze, (NULL, 0), NULLS);
    NO(fv_squeeze, (o.v23, 0), "axis 0", "[2, 3]");
    NO(fv_unsqueeze, (NULL, 0), NULLS);
    NO(fv_unsqueeze, (o.v23, 9), "axis 9", "[2, 3]");
    NO(fv_flatten, (NULL, 0, 1), NULLS);
    NO(fv_flatten, (o.v23, 0, 9), "axis 9", "[2, 3]");
    NO(fv_concat, (NULL, 2, 0), "fv_concat");
    NO(fv_concat, (with_null, 2, 0), NULLS);
    NO(fv_concat, (unlike, 2, 0), "[2, 3]", "[3, 4]");
    NO(fv_concat, (unlike, 0, 0), "0");
    NO(fv_stack, (NULL, 2, 0), "fv_stack");
    NO(fv_stack, (with_null, 2, 0), NULLS);
    NO(fv_stack, (unlike, 2, 0), "[2, 3]", "[3, 4]");
    NO(fv_stack, (unlike, -1, 0), "-1");
}

/* ---- fl_nn.h ---- */

static fl_vars no_result(fl_nn_module *m, fl_vars in) {
    (void)m, (void)in;
    return (fl_vars){0};
}
static fl_vars complaint(fl_nn_module *m, fl_vars in) {
    return fl_nn_fail(m, "%d inputs do not please", in.n);
}

/* The result of a module that is made for this call. */
static fl_var *through(fl_nn_module *m, fl_var *x) {
    fl_nn_module *volatile made = m;
    if (!made) return x; /* a maker's failure is no failure of forward */
    fl_nn_module *owner = fl_nn_sequential(made);
    fl_quiet(+1);
    fl_var *y = fl_nn_forward(owner, x);
    fl_quiet(-1);
    fl_nn_free(owner);
    return y ? y : fl_raise();
}

static bool add_twice(void) {
    fl_nn_module *child = o.net->child[0];
    return fl_nn_add(o.net, "again", child) != NULL;
}

static void rows_of_modules(void) {
    static const fl_nn_type nothing = {.name = "Nothing", .forward = no_result};
    fl_nn_module *net = o.net;
    NO(fl_nn_new, (NULL, NULL, 0), "type");
    FINE(fl_nn_free, (fl_nn_free(NULL), true));
    FINE(fl_nn_cache_free, (fl_nn_cache_free(NULL), true));
    FINE(fl_nn_cache_position, fl_nn_cache_position(NULL) == 0);
    NO(fl_nn_function, ("F", NULL, NULL, NULL), "forward is NULL");
    FINE(fl_nn_user, !fl_nn_user(NULL) && !fl_nn_user(net));
    NO(fl_nn_add, (NULL, "x", NULL), NULLS);
    NO(fl_nn_add, (net, "x", NULL), NULLS);
    NO(fl_nn_add, (NULL, "x", fl_nn_relu()), NULLS);
    NO(fl_nn_add, (net, "x.y", fl_nn_relu()), "'x.y' is not valid");
    NO(fl_nn_add, (net, "", fl_nn_relu()), "'' is not valid");
    NO(fl_nn_add, (net, "0", fl_nn_relu()), "already has a '0'");
    NO(fl_nn_add, (net, "me", net), "ancestor");
    ROW(RAISES, "fl_nn_add", !add_twice(), "belongs to another module");
    NO(fl_nn_add_param, (NULL, "p", o.v23), NULLS);
    NO(fl_nn_add_param, (net, "p", NULL), NULLS);
    NO(fl_nn_add_param, (net, NULL, o.v23), "not valid");
    NO(fl_nn_add_param, (net, "0", o.v23), "already has a '0'");
    NO(fl_nn_add_buffer, (NULL, "b", o.f23), NULLS);
    NO(fl_nn_add_buffer, (net, "b", NULL), NULLS);
    NO(fl_nn_add_buffer, (net, "a.b", o.f23), "'a.b' is not valid");
    NO(fl_nn_forward, (NULL, o.v23), NULLS);
    NO_AS(fl_nn_forward, "fl_nn_sequential", (net, NULL), "input 0 is NULL");
    ROW(RAISES, "fl_nn_forward_vars", !fl_nn_forward_vars(NULL, FL_VARS(o.v23)).n, NULLS);
    ROW_OF(RAISES, "fl_nn_forward_vars", "fl_nn_linear '0'",
           !fl_nn_forward_vars(net->child[0], ((fl_vars){9, {o.v23}})).n, "9 inputs");
    NO_AS(fl_nn_forward, "fl_nn_linear '0'", (net, o.v34), "[3, 4]", "[4, 3]");
    ROW_OF(RAISES, "fl_nn_forward", "Nothing '0'", !through(fl_nn_new(&nothing, NULL, 0), o.v23),
           "no result");
    ROW_OF(RAISES, "fl_nn_fail", "F '0'",
           !through(fl_nn_function("F", complaint, NULL, NULL), o.v23), "1 inputs do not please");
    NO_AS(fl_nn_sequential_of, "fl_nn_add", (1, (fl_nn_module *[]){NULL}), NULLS);
    NO_AS(fl_nn_sequential_of, "fl_nn_add", (2, (fl_nn_module *[]){fl_nn_relu(), NULL}), NULLS);
    ROW(RAISES, "fl_nn_run_sequence", fl_nn_run_sequence(NULL, 1, FL_VARS(o.v23)).n == 0, NULLS);
    ROW(RAISES, "fl_nn_parameters", fl_nn_parameters(NULL).n == 0, NULLS);
    NO_AS(fl_nn_count, "fl_nn_parameters", (NULL), NULLS);
    FINE(fl_nn_train, (fl_nn_train(NULL, true), true));
    FINE(fl_nn_zero_grad, (fl_nn_zero_grad(NULL), true));
    FINE(fl_nn_find, !fl_nn_find(NULL, "0") && !fl_nn_find(net, "7") && !fl_nn_find(net, NULL) &&
                         !fl_nn_find(NULL, NULL));
    FINE(fl_nn_get_param, !fl_nn_get_param(NULL, "0") && !fl_nn_get_param(net, "0.no") &&
                              !fl_nn_get_param(net, NULL));
    FINE(fl_nn_get_buffer, !fl_nn_get_buffer(NULL, "0") && !fl_nn_get_buffer(net, "0.no") &&
                               !fl_nn_get_buffer(net, NULL));
    ROW(QUIET, "fl_nn_visit_tensors", !fl_nn_visit_tensors(NULL, NULL, NULL), NULLS);
    ROW(QUIET, "fl_nn_visit_tensors", !fl_nn_visit_tensors(net, NULL, NULL), NULLS);
    ROW(QUIET, "fl_nn_visit_modules", !fl_nn_visit_modules(NULL, NULL, NULL), NULLS);
    NO_FILE_AS(fl_given, "fl_nn_mine", (NULL, "fl_nn_mine", "the input"), "the input is NULL");
    NO_FILE_AS(fl_nn_dtype_ok, "fl_nn_mine", ("fl_nn_mine", FL_I64), "must be a float dtype, got i64");
    NO_FILE_AS(fl_nn_sequence_ok, "fl_nn_sequential", (net, o.v23, 3, 2), "input [2, 3], expected [n, t, 3]");
    FINE(fl_nn_format, fl_nn_format(NULL, NULL, 0) == 0);
}

static void rows_of_layers(void) {
    fl_rng rng = {1, 0};
    NO(fl_nn_view, (FL_SHAPE(-1, -1, -1)), "[-1, -1, -1]");
    NO(fl_nn_view, (negative), "[2, -3]");
    NO(fl_nn_view, (least), "shape");
    NO(fl_nn_view, (huge), "9223372036854775807");
    ROW(RAISES, "fl_nn_view", !through(fl_nn_view(FL_SHAPE(-1, 5)), o.v23), "[2, 3]", "[-1, 5]");
    NO(fl_nn_linear_opt, (0, 4, (fl_nn_linear_opts){0}), "got 0 and 4");
    NO(fl_nn_linear_opt, (4, -1, (fl_nn_linear_opts){0}), "got 4 and -1");
    NO_AS(fl_nn_linear_opt, "fl_uniform", (INT64_MAX, 4, (fl_nn_linear_opts){0}),
          "9223372036854775807");
    NO(fl_nn_linear_opt, (3, 4, (fl_nn_linear_opts){.dtype = FL_I64}), "i64");
    NO(fl_nn_linear_opt, (3, 4, (fl_nn_linear_opts){.act = FL_OP_exp}), "not an activation");
    ROW(RAISES, "fl_nn_linear_opt", !through(fl_nn_linear(4, 2, .rng = &rng), o.v23),
        "fl_nn_linear '0'", "[2, 3]", "[2, 4]");
    NO(fl_nn_conv2d_opt, (0, 4, 3, (fl_nn_conv_opts){0}), "in 0");
    NO(fl_nn_conv2d_opt, (4, 4, -3, (fl_nn_conv_opts){0}), "-3");
    NO(fl_nn_conv2d_opt, (4, 4, 3, (fl_nn_conv_opts){.stride = -1}), "stride [-1");
    NO(fl_nn_conv2d_opt, (4, 4, 3, (fl_nn_conv_opts){.groups = 3}), "by groups (3)");
    NO_AS(fl_nn_conv2d_opt, "fl_uniform", (INT64_MAX, INT64_MAX, 3, (fl_nn_conv_opts){0}),
          "9223372036854775807");
    NO(fl_nn_conv2d_opt, (2, 2, 3, (fl_nn_conv_opts){.dtype = FL_B8}), "b8");
    ROW(RAISES, "fl_nn_conv2d_opt", !through(fl_nn_conv2d(3, 4, 3, .rng = &rng), o.image_v),
        "fl_nn_conv2d '0'", "[1, 2, 4, 4]", "3");
    ROW(RAISES, "fl_nn_channels_last", !fl_nn_channels_last(NULL), NULLS);
    NO(fl_nn_pool_before_relu, (NULL), NULLS);
    NO(fl_nn_batch_norm_reduce, (NULL, NULL, NULL), NULLS);
    NO(fl_nn_cast, (NULL, FL_F32), NULLS);
    NO(fl_nn_cast, (o.net, FL_I64), "got i64");
    NO(fl_nn_store, (NULL, FL_BF16), NULLS);
    NO(fl_nn_store, (o.net, FL_F32), "must be f16, bf16 or registered, got f32");
    NO(fl_nn_freeze, (NULL, true), NULLS);
    NO(fl_nn_to, (NULL, "cpu"), NULLS);
    NO(fl_nn_to, (o.net, NULL), NULLS);
    NO(fl_nn_to, (o.net, "moon"), "'moon'");
    NO(fl_nn_pool2d_opt, (0, (fl_nn_pool_opts){0}), "kernel 0");
    NO(fl_nn_pool2d_opt, (INT64_MIN, (fl_nn_pool_opts){0}), "kernel -9223372036854775808");
    ROW(RAISES, "fl_nn_pool2d_opt", !through(fl_nn_pool2d(2), o.v23), "[2, 3]");
    NO(fl_nn_activation, ("A", NULL), "is NULL");
    ROW_OF(RAISES, "fl_nn_log_softmax", "LogSoftmax '0'", !through(fl_nn_log_softmax(2), o.v23), "axis 2",
           "[2, 3]");
    NO(fl_nn_dropout_opt, (1.5, (fl_nn_dropout_opts){0}), "got 1.5");
    NO(fl_nn_dropout_opt, ((double)NAN, (fl_nn_dropout_opts){0}), "nan");
    NO(fl_nn_batch_norm2d_opt, (0, (fl_nn_batch_norm_opts){0}), "got 0, 0.1 and 1e-05");
    NO_AS(fl_nn_batch_norm2d_opt, "fl_ones", (INT64_MAX, (fl_nn_batch_norm_opts){0}),
          "9223372036854775807");
    NO(fl_nn_batch_norm2d_opt, (2, (fl_nn_batch_norm_opts){.eps = -1}), "got 2, 0.1 and -1");
    NO(fl_nn_batch_norm2d_opt, (2, (fl_nn_batch_norm_opts){.dtype = FL_I64}), "i64");
    ROW(RAISES, "fl_nn_batch_norm2d_opt", !through(fl_nn_batch_norm2d(3), o.image_v),
        "[1, 2, 4, 4]", "3");
    NO(fl_nn_layer_norm_opt, (FL_SCALAR_SHAPE, (fl_nn_layer_norm_opts){0}), "[]");
    NO(fl_nn_layer_norm_opt, (negative, (fl_nn_layer_norm_opts){0}), "[2, -3]");
    NO(fl_nn_layer_norm_opt, (huge, (fl_nn_layer_norm_opts){0}), "9223372036854775807");
    NO(fl_nn_layer_norm_opt, (FL_SHAPE(3), (fl_nn_layer_norm_opts){.dtype = FL_U8}), "u8");
    ROW(RAISES, "fl_nn_layer_norm_opt", !through(fl_nn_layer_norm(FL_SHAPE(4)), o.v23), "[2, 3]",
        "[4]");
}

static void rows_of_init(void) {
    int64_t in = 77, out = 77;
    NO(fl_nn_init_constant, (NULL, 1), NULLS);
    NO(fl_nn_init_uniform, (NULL, 0, 1, NULL), NULLS);
    NO(fl_nn_init_normal, (NULL, 0, 1, NULL), NULLS);
    NO(fl_nn_fan, (NULL, &in, &out), NULLS);
    NO(fl_nn_fan, (o.v4, &in, &out), "[4]");
    CHECK(row.mode == LIST || (in == 77 && out == 77));
    NO_AS(fl_nn_init_kaiming_uniform, "fl_nn_fan", (NULL, 0, NULL), NULLS);
    NO_AS(fl_nn_init_kaiming_uniform, "fl_nn_fan", (o.v4, 0, NULL), "[4]");
    NO_AS(fl_nn_init_kaiming_normal, "fl_nn_fan", (o.v4, 0, NULL), "[4]");
    NO_AS(fl_nn_init_glorot_uniform, "fl_nn_fan", (o.v4, 1, NULL), "[4]");
    NO_AS(fl_nn_init_glorot_normal, "fl_nn_fan", (o.v4, 1, NULL), "[4]");
}

static void rows_of_losses(void) {
    const fl_nll_loss_opts nll = {0};
    const fl_cross_entropy_opts ce = {0};
    const fl_nll_loss_opts weighted_nll = {.weight = o.f4},
        counted_nll = {.weight = fl_ones(FL_SHAPE(3), FL_I64)};
    const fl_cross_entropy_opts weighted = {.weight = o.f4}, ignoring = {.ignore = 2},
        sharp = {.smoothing = 2};
    fl_tensor *classes = fl_zeros(FL_SHAPE(2), FL_U8);
    NO(fl_nll_loss_opt, (o.f23, classes, weighted_nll), "weight f32 [4]", "expected floats [3]");
    NO(fl_nll_loss_opt, (o.f23, classes, counted_nll), "weight i64 [3]");
    NO(fl_nll_loss_opt, (o.f23, fl_cast(classes, FL_B8), nll), "integers", "b8 [2]");
    NO(fl_nll_loss_opt, (o.f23, o.f23, nll), "integers", "f32 [2, 3]");
    NO(fl_cross_entropy_opt, (o.f23, classes, weighted), "weight f32 [4]", "expected floats [3]");
    NO(fl_cross_entropy_opt, (o.f23, o.f23, weighted), "weight f32 [4]", "expected floats [3]");
    NO(fl_cross_entropy_opt, (o.f23, o.f23, ignoring), "ignore is 2", "probabilities");
    NO(fl_cross_entropy_opt, (o.f23, o.f34, ce), "integers", "f32 [3, 4]");
    NO(fl_cross_entropy_opt, (o.f23, o.f23, sharp), "smoothing must be in [0, 1], got 2");
    NO_AS(fv_nll_loss_opt, "fv_nll_loss", (NULL, o.i23, nll), NULLS);
    NO_AS(fv_nll_loss_opt, "fv_nll_loss", (o.v23, NULL, nll), NULLS);
    NO(fv_nll_loss_opt, (o.v23, o.i23, nll), "f32 [2, 3]", "i64 [2, 3]");
    NO(fv_nll_loss_opt, (o.v23, o.f2, nll), "f32 [2]");
    NO(fv_nll_loss_opt, (o.vi, fl_zeros(FL_SHAPE(2), FL_I64), nll), "i64 [2, 3]");
    NO(fv_nll_loss_opt, (o.v23, fl_full(FL_SHAPE(2), 3, FL_I64), nll), "index 3",
          "size 3");
    NO_AS(fv_cross_entropy_opt, "fv_cross_entropy", (NULL, o.i23, ce), NULLS);
    NO_AS(fv_cross_entropy_opt, "fv_cross_entropy", (o.v23, NULL, ce), NULLS);
    NO(fv_cross_entropy_opt, (o.v23, o.i23, ce), "f32 [2, 3]", "i64 [2, 3]");
    NO(fv_cross_entropy_opt, (o.v23, fl_full(FL_SHAPE(2), -1, FL_I64), ce),
          "index -1", "size 3");
    NO(fl_nll_loss_opt, (NULL, o.i23, nll), NULLS);
    NO(fl_nll_loss_opt, (o.f23, NULL, nll), NULLS);
    NO(fl_nll_loss_opt, (o.f23, o.i23, nll), "f32 [2, 3]", "i64 [2, 3]");
    NO(fl_nll_loss_opt, (o.f23, o.f2, nll), "f32 [2]");
    NO(fl_nll_loss_opt, (o.i23, fl_zeros(FL_SHAPE(2), FL_I64), nll), "i64 [2, 3]");
    NO(fl_nll_loss_opt, (o.f23, fl_full(FL_SHAPE(2), 3, FL_I64), nll), "index 3",
          "size 3");
    NO(fl_cross_entropy_opt, (NULL, o.i23, ce), NULLS);
    NO(fl_cross_entropy_opt, (o.f23, NULL, ce), NULLS);
    NO(fl_cross_entropy_opt, (o.f23, o.i23, ce), "f32 [2, 3]", "i64 [2, 3]");
    NO(fl_cross_entropy_opt, (o.f23, fl_full(FL_SHAPE(2), -1, FL_I64), ce),
          "index -1", "size 3");
}

static bool read_state(fl_tensor *t, const char *prefix) {
    fl_data_file *f = fl_data_open_safetensors(o.file);
    fl_nn_state s = {0};
    const bool ok =
        fl_nn_state_add(&s, "", "0.weight", t) && fl_nn_state_read(&s, f, "mine", prefix, false);
    fl_nn_state_free(&s);
    fl_data_close(f);
    return ok;
}

static void rows_of_saving(void) {
    fl_nn_state s = {0};
    const fl_nn_load_opts load = {0};
    NO_FILE(fl_nn_save, (NULL, o.file), NULLS);
    NO_FILE(fl_nn_save, (o.net, NULL), NULLS);
    NO_FILE_AS(fl_nn_save, "fl_data_save_safetensors", (o.net, "/no/folder/x"), "/no/folder/x",
               "No such file");
    NO_FILE(fl_nn_load_opt, (NULL, o.file, load), NULLS);
    NO_FILE(fl_nn_load_opt, (o.net, NULL, load), NULLS);
    NO_FILE_AS(fl_nn_load_opt, "fl_data_open_safetensors", (o.net, "/no/such/file", load),
               "/no/such/file");
    NO_FILE(fl_nn_load_opt, (o.net, o.file, (fl_nn_load_opts){.prefix = "model."}), "missing");
    NO_FILE_AS(fl_nn_load_opt, "fl_data_open_safetensors", (o.net, o.idx, load), o.idx);
    NO_FILE(fl_nn_state_add, (NULL, "", "a", o.f23), NULLS);
    NO_FILE(fl_nn_state_add, (&s, "", "a", NULL), NULLS);
    NO_FILE(fl_nn_state_add_host, (NULL, "", "a", &s, FL_SHAPE(1), FL_F32), NULLS);
    NO_FILE(fl_nn_state_add_host, (&s, "", "a", NULL, FL_SHAPE(1), FL_F32), NULLS);
    NO_FILE_AS(fl_nn_state_add_host, "fl_from_host", (&s, "", "a", &s, negative, FL_F32),
               "[2, -3]");
    NO_FILE_AS(fl_nn_state_add_host, "fl_from_host", (&s, "", "a", &s, FL_SHAPE(1), (fl_dtype)99),
               "dtype");
    NO_FILE(fl_nn_state_add_module, (&s, "", NULL), NULLS);
    NO_FILE_AS(fl_nn_state_add_number, "fl_nn_state_add_host", (&s, "", "a", NULL), NULLS);
    NO_FILE_AS(fl_nn_state_add_integer, "fl_nn_state_add_host", (&s, "", "a", NULL), NULLS);
    NO_FILE_AS(fl_nn_state_add_rng, "fl_nn_state_add_host", (&s, "", "a", NULL), NULLS);
    NO_FILE_AS(fl_nn_state_add_fixed, "fl_nn_state_add_host", (NULL, "", "a", 1), NULLS);
    NO_FILE(fl_nn_state_save, (NULL, o.file, NULL, 0), NULLS);
    NO_FILE_AS(fl_nn_state_save, "fl_data_save_safetensors", (&s, NULL, NULL, 0), NULLS);
    NO_FILE(fl_nn_state_read, (NULL, NULL, "mine", NULL, false), NULLS);
    ROW_OF(QUIET, "fl_nn_state_read", "mine: ", !read_state(o.f23, "0.weight"), "0.weight",
           "f32 [2, 3]", "f32 [4, 3]");
    ROW_OF(QUIET, "fl_nn_state_read", "mine: ", !read_state(o.f34, NULL), "unexpected");
    NO_FILE(fl_nn_state_commit, (NULL), NULLS);
    FINE(fl_nn_state_free, (fl_nn_state_free(NULL), true));
    CHECK(s.n == 0 && !s.item);
}

/* ---- fl_optim.h ---- */

static bool step_without_states(fl_optim *opt, fl_optim_slot *p) {
    (void)opt, (void)p;
    return true;
}

static fl_var *no_loss(void *user) {
    (void)user;
    return NULL;
}

static void rows_of_optimizers(fv_list one) {
    static const char group[] = "fl_optim_group_of_opt";
    const fv_list hole = FV_LIST(o.v23, NULL), vector = FV_LIST(fv_param(o.f4));
    const double inf = (double)INFINITY;
    NO(fl_optim_adamax_opt, (one, (fl_optim_adam_opts){.beta2 = 1}), "got 1");
    NO(fl_optim_nadam_opt, (one, (fl_optim_adam_opts){.lr = inf}), "got inf");
    NO(fl_optim_radam_opt, (one, (fl_optim_adam_opts){.beta1 = 1}), "got 1");
    NO(fl_optim_rprop_opt, (one, (fl_optim_rprop_opts){.etaminus = 1}), "got 1");
    NO(fl_optim_asgd_opt, (one, (fl_optim_asgd_opts){.lambd = -1}), "got -1");
    NO(fl_optim_adafactor_opt, (one, (fl_optim_adafactor_opts){.d = .5}), "d at least 1, got 0.5");
    NO(fl_optim_adafactor_opt, (one, (fl_optim_adafactor_opts){.beta2_decay = .8}), "got 0.8");
    NO(fl_optim_adadelta_opt, (one, (fl_optim_adadelta_opts){.rho = -1}), "got -1");
    NO(fl_optim_adagrad_opt, (hole, (fl_optim_adagrad_opts){0}), NULLS);
    NO(fl_optim_rmsprop_opt, (one, (fl_optim_rmsprop_opts){.momentum = (double)NAN}), "got nan");
    NO(fl_optim_lion_opt, (FV_NONE, (fl_optim_lion_opts){0}), "parameters is empty");
    NO(fl_optim_lamb_opt, (one, (fl_optim_lamb_opts){.eps = -1}), "got -1");
    NO(fl_optim_novograd_opt, (one, (fl_optim_novograd_opts){.weight_decay = -1}), "got -1");
    NO(fl_optim_muon_opt, (vector, (fl_optim_muon_opts){0}), "must have 2 dims, got [4] for parameter 0");
    NO(fl_optim_lbfgs_opt, (one, (fl_optim_lbfgs_opts){.history = -1}), "got 20, 25 and -1");
    NO(fl_optim_step, (o.lbfgs), "lbfgs evaluates loss and gradients itself: use fl_optim_step_closure");
    NO(fl_optim_step_in_backward, (o.lbfgs, true), "lbfgs evaluates loss and gradients itself");
    NO(fl_optim_scale, (o.lbfgs, o.f23), "lbfgs evaluates loss and gradients itself");
    ROW(RAISES, group, fl_optim_group_of_opt(o.lbfgs, o.net, "*", (fl_optim_group_opts){0}) < 0, "one group");
    NO(fl_optim_step_closure, (NULL, no_loss, NULL, NULL), NULLS);
    NO(fl_optim_step_closure, (o.lbfgs, NULL, NULL, NULL), NULLS);
    NO(fl_optim_step_closure, (o.lbfgs, no_loss, NULL, NULL), "the closure returned NULL");
    NO(fl_optim_step_closure, (o.optim, no_loss, NULL, NULL), "the closure returned NULL");
    NO(fl_optim_use_masters, (NULL), NULLS);
    NO(fl_optim_maximize, (NULL, true), NULLS);
    NO(fl_optim_step_in_backward, (NULL, true), NULLS);
    NO(fl_optim_set_lr, (o.optim, inf), "got inf");
    NO(fl_optim_set, (NULL, 0, "lr", 1), NULLS);
    NO(fl_optim_set, (o.optim, 0, NULL, 1), NULLS);
    NO(fl_optim_set, (o.optim, 3, "lr", 1), "got 3");
    NO(fl_optim_set, (o.optim, 0, "beta1", 0.5), "sgd has no hyperparameter 'beta1'");
    NO(fl_optim_set, (o.optim, 0, "momentum", (double)NAN), "got nan");
    NO(fl_optim_scale, (NULL, o.f23), NULLS);
    NO(fl_optim_scale, (o.optim, NULL), NULLS);
    NO(fl_optim_scale, (o.optim, o.f23), "f32 [2, 3]");
    ROW(RAISES, group, fl_optim_group_of_opt(NULL, o.net, "*", (fl_optim_group_opts){0}) < 0, NULLS);
    ROW(RAISES, group, fl_optim_group_of_opt(o.optim, o.net, NULL, (fl_optim_group_opts){0}) < 0, NULLS);
    ROW(RAISES, group, fl_optim_group_of_opt(o.optim, o.net, "*.wait", (fl_optim_group_opts){0}) < 0,
        "no parameter matches '*.wait'");
    ROW(RAISES, "fl_optim_set",
        fl_optim_group_of_opt(o.optim, o.net, "*", (fl_optim_group_opts){.lr = -1}) < 0,
        "got -1");
    FINE(fl_optim_free, o.optim->n_groups == 1);
    FINE(fl_optim_apply, true); /* within a step */
    FINE(fl_optim_factor, fl_optim_factor(o.optim) != NULL);
    FINE(fl_primitive_operands, fl_primitive_operands(FL_PRIMITIVE_where) == 3);
    FINE(fl_step_program, true); /* rows of fl_step */
    NO(fl_optim_grad_norm, (hole), NULLS);
    NO(fl_optim_clip, (NULL, 1), NULLS);
    NO(fl_optim_clip, (o.optim, (double)NAN), "got nan");
    NO(fl_optim_clip_grad_value, (one, -1), "got -1");
    NO(fl_optim_clip_grad_value, (hole, 1), NULLS);
}

static void rows_of_schedules(void) {
    fl_optim_schedule idle = {0};
    FINE(fl_optim_lr_multi_step, fl_optim_lr_multi_step(0.1, 5, 0, NULL, 0.5) == 0.1);
    FINE(fl_optim_lr_exponential, fl_optim_lr_exponential(0.1, 0, 0.5) == 0.1);
    FINE(fl_optim_lr_polynomial, fl_optim_lr_polynomial(0.1, 5, 0, 1) == 0);
    FINE(fl_optim_lr_cosine_restarts, fl_optim_lr_cosine_restarts(0.1, 0, 5, 0, 2) == 0.1);
    FINE(fl_optim_lr_inverse_sqrt, fl_optim_lr_inverse_sqrt(0.1, 0, 0) == 0.1);
    FINE(fl_optim_lr_wsd, fl_optim_lr_wsd(0.1, 0, 5, 0, 0, 0) == 0);
    FINE(fl_optim_momentum_one_cycle, fl_optim_momentum_one_cycle(0.8, 0.9, 5, 0, 0.3) == 0.9);
    FINE(fl_optim_lr_one_cycle, fl_optim_lr_one_cycle(25, 5, 0, 0.3) == 1e-4);
    FINE(fl_optim_schedule_at, fl_optim_schedule_at(&idle, 5) == 0);
    NO(fl_optim_schedule_start, (NULL, o.optim), NULLS);
    NO(fl_optim_schedule_start, (&idle, NULL), NULLS);
    NO(fl_optim_schedule_step, (NULL), NULLS);
    NO(fl_optim_schedule_step, (&idle), "fl_optim_schedule_start");
    NO(fl_optim_schedule_metric, (&idle, 1), "fl_optim_schedule_start");
}

static void rows_of_averages(fv_list one, fl_nn_state *s) {
    fl_optim_schedule idle = {0};
    fl_optim_checkpoint c = {.at = NULL};
    NO_AS(fl_optim_ema_new, "fl_optim_ema", (FV_NONE, 0.9), "parameters is empty");
    NO_AS(fl_optim_ema_new, "fl_optim_ema", (one, 1), "got 1");
    FINE(fl_optim_ema_free, (fl_optim_ema_free(NULL), true));
    NO(fl_optim_ema_update, (NULL), NULLS);
    NO(fl_optim_ema_swap, (NULL), NULLS);
    NO_FILE(fl_optim_ema_state, (NULL, "", s), NULLS);
    NO_FILE(fl_optim_schedule_state, (NULL, "", s), NULLS);
    NO_FILE_AS(fl_optim_schedule_state, "fl_nn_state_add_host", (&idle, "", NULL), NULLS);
    NO_FILE(fl_optim_checkpoint_add, (NULL, "a.", o.optim), NULLS);
    NO_FILE(fl_optim_checkpoint_add, (&c, NULL, o.optim), NULLS);
    NO_FILE(fl_optim_checkpoint_add, (&c, "", o.optim), "got ''");
    NO_FILE_AS(fl_optim_checkpoint_add, "fl_optim_state", (&c, "a.", NULL), NULLS);
    NO_FILE(fl_optim_checkpoint_save, (NULL, o.file), NULLS);
    NO_FILE(fl_optim_checkpoint_save, (&c, NULL), NULLS);
    NO_FILE_AS(fl_optim_checkpoint_load, "fl_optim_load_checkpoint", (NULL, o.file), NULLS);
    NO_FILE_AS(fl_optim_checkpoint_load, "fl_optim_load_checkpoint", (&c, NULL), NULLS);
    FINE(fl_optim_checkpoint_free, (fl_optim_checkpoint_free(NULL), true));
    fl_optim_checkpoint_free(&c);
}

static void rows_of_optim(void) {
    static const fl_optim_type mine = {.name = "mine", .step = step_without_states};
    const fv_list one = FV_LIST(o.v23), hole = FV_LIST(o.v23, NULL);
    fl_nn_state s = {0};
    fl_optim_progress at = {7, 7, 7};
    NO(fl_optim_new, (NULL, one, 0.1, NULL), "type");
    NO_AS(fl_optim_new, "fl_optim_mine", (&mine, FV_NONE, 0.1, NULL), "parameters is empty");
    NO_AS(fl_optim_new, "fl_optim_mine", (&mine, hole, 0.1, NULL), NULLS);
    NO_AS(fl_optim_new, "fl_optim_mine", (&mine, one, -1, NULL), "got -1");
    FINE(fl_optim_free, (fl_optim_free(NULL), true));
    NO(fl_optim_sgd_opt, (FV_NONE, (fl_optim_sgd_opts){0}), "parameters is empty");
    NO(fl_optim_sgd_opt, (hole, (fl_optim_sgd_opts){0}), NULLS);
    NO(fl_optim_sgd_opt, (one, (fl_optim_sgd_opts){.lr = -1}), "got -1");
    NO(fl_optim_sgd_opt, (one, (fl_optim_sgd_opts){.nesterov = true}), "got 0 and 0");
    NO(fl_optim_adam_opt, (FV_NONE, (fl_optim_adam_opts){0}), "parameters is empty");
    NO(fl_optim_adam_opt, (one, (fl_optim_adam_opts){.beta1 = 1}), "1");
    NO(fl_optim_adam_opt, (one, (fl_optim_adam_opts){.lr = (double)NAN}), "nan");
    NO(fl_optim_adamw_opt, (hole, (fl_optim_adam_opts){0}), NULLS);
    NO(fl_optim_adamw_opt, (one, (fl_optim_adam_opts){.eps = -1}), "-1");
    NO(fl_optim_step, (NULL), NULLS);
    FINE(fl_optim_zero_grad, (fl_optim_zero_grad(NULL), true));
    FINE(fl_optim_lr, isnan(fl_optim_lr(NULL)));
    NO(fl_optim_set_lr, (NULL, 1), NULLS);
    NO(fl_optim_set_lr, (o.optim, -1), "got -1");
    NO(fl_optim_set_lr, (o.optim, (double)NAN), "nan");
    NO(fl_optim_scaler_new_opt, (NAN, (fl_optim_scaler_opts){0}), "init nan");
    NO(fl_optim_scaler_new_opt, (0, (fl_optim_scaler_opts){.backoff = 1}), "backoff 1, interval");
    NO(fl_optim_scaler_new_opt, (0, (fl_optim_scaler_opts){.interval = -1}), "interval -1");
    NO(fl_optim_scaler_scale, (NULL, o.v23), NULLS);
    NO(fl_optim_scaler_scale, (o.scaler, NULL), NULLS);
    NO(fl_optim_scaler_unscale, (NULL, o.optim), NULLS);
    NO(fl_optim_scaler_unscale, (o.scaler, NULL), NULLS);
    NO(fl_optim_scaler_update, (NULL), NULLS);
    NO(fl_optim_scaler_update, (o.scaler), "no gradients were unscaled");
    ROW(QUIET, "fl_optim_scaler_state", !fl_optim_scaler_state(NULL, "", NULL), NULLS);
    FINE(fl_optim_scaler_free, (fl_optim_scaler_free(NULL), true));
    ROW(RAISES, "fl_optim_clip_grad_norm", !fl_optim_clip_grad_norm(one, -1),
        "got -1");
    ROW(RAISES, "fl_optim_clip_grad_norm", !fl_optim_clip_grad_norm(hole, 1), NULLS);
    FINE(fl_optim_lr_step, fl_optim_lr_step(0.1, 5, 0, 0.5) == 0.1);
    FINE(fl_optim_lr_cosine, fl_optim_lr_cosine(0.1, 0, 5, 0) == 0);
    FINE(fl_optim_lr_warmup, fl_optim_lr_warmup(0.1, 5, 0) == 0.1);
    rows_of_optimizers(one);
    rows_of_schedules();
    rows_of_averages(one, &s);
    NO_FILE(fl_optim_save_checkpoint, (NULL, o.net, o.optim, NULL), NULLS);
    NO_FILE(fl_optim_save_checkpoint, (o.file, NULL, o.optim, NULL), NULLS);
    NO_FILE(fl_optim_save_checkpoint, (o.file, o.net, NULL, NULL), NULLS);
    NO_FILE_AS(fl_optim_save_checkpoint, "fl_data_save_safetensors",
               ("/no/folder/x", o.net, o.optim, NULL), "/no/folder/x");
    NO_FILE(fl_optim_load_checkpoint, (NULL, o.net, o.optim, &at), NULLS);
    NO_FILE(fl_optim_load_checkpoint, (o.file, NULL, o.optim, &at), NULLS);
    NO_FILE(fl_optim_load_checkpoint, (o.file, o.net, NULL, &at), NULLS);
    NO_FILE(fl_optim_load_checkpoint, (o.file, o.net, o.optim, &at), o.file);
    CHECK(at.step == 7 && at.epoch == 7 && at.position == 7);
    NO_FILE(fl_optim_state, (NULL, "", &s), NULLS);
    NO_FILE(fl_optim_state, (o.optim, "", NULL), NULLS);
    CHECK(s.n == 0 && !s.item);
}

/* ---- fl_data.h ---- */

static bool refuses(fl_data_sample *sample, fl_rng *rng, void *user) {
    (void)sample, (void)rng;
    return user && fl_fail("refused");
}

/* A wrapper of a new set that fails frees what it took. */
static fl_data_set *fresh(void) { return row.mode == LIST ? NULL : fl_data_tensors(&o.f23, 1); }

static bool get_through(fl_data_set *set, int64_t i) {
    fl_data_sample s = {.n = 77};
    const bool ok = fl_data_get(set, i, &s);
    CHECK(ok || s.n == 77);
    fl_data_free(set);
    return ok;
}

static bool read_from(const char *name) {
    fl_data_file *f = fl_data_open_safetensors(o.file);
    const bool ok = fl_data_read(f, name);
    fl_data_close(f);
    return ok;
}

static bool outside_of_file(void) {
    fl_data_file *f = fl_data_open_safetensors(o.file);
    const bool failed =
        !fl_data_name(f, 2) && !fl_data_dtype(f, -1) && fl_data_shape(f, INT64_MAX).ndim == 0;
    fl_data_close(f);
    return failed;
}

static bool unknown_names(void) {
    fl_data_file *f = fl_data_open_safetensors(o.file);
    const bool none = fl_data_find(f, "no") == -1 && fl_data_find(f, NULL) == -1 &&
                      !fl_data_meta(f, "no") && !fl_data_meta(f, NULL) && fl_data_count(f) == 2;
    fl_data_close(f);
    return none;
}

static void rows_of_files(void) {
    const fl_data_named_tensor named[] = {
        {"a", o.f23}, {"a", o.f23}, {NULL, o.f23}, {"b", NULL}, {"c", o.number}};
    fl_data_stream stream;
    NO_FILE_AS(fl_data_stream_open, "fl_data_mine", (&stream, "fl_data_mine", NULL, FL_DATA_READ), NULLS);
    fl_data_replacement replacement;
    NO_FILE_AS(fl_data_replace_begin, "fl_data_mine", (&replacement, "fl_data_mine", NULL), NULLS);
    NO_FILE_AS(fl_data_replace_begin, "fl_data_mine", (&replacement, "fl_data_mine", "/no/folder/x"),
               "/no/folder/x");
    NO_FILE_AS(fl_data_file_new, "fl_data_mine", ("fl_data_mine", NULL), NULLS);
    NO_FILE_AS(fl_data_file_new, "fl_data_mine", ("fl_data_mine", "/no/such/file"), "/no/such/file");
    NO_FILE_AS(fl_data_host_tensor, "fl_empty_on", (huge, FL_F32), "not valid");
    FINE(fl_data_entry_fits, !fl_data_entry_fits(&(fl_data_entry){.dtype = FL_F32, .shape = huge}));
    NO_FILE(fl_data_load_npy, (NULL), NULLS);
    NO_FILE(fl_data_load_npy, ("/no/such/file"), "/no/such/file");
    NO_FILE(fl_data_load_npy, (o.file), o.file, "not an npy file");
    NO_FILE(fl_data_save_npy, (NULL, o.f23), NULLS);
    NO_FILE(fl_data_save_npy, ("/no/folder/x", o.f23), "/no/folder/x");
    NO_FILE_AS(fl_data_csv_open_opt, "fl_data_csv_open", (NULL, (fl_data_csv_opts){.delimiter = ';'}), NULLS);
    NO_FILE_AS(fl_data_csv_open_opt, "fl_data_csv_open",
               ("/no/such/file", (fl_data_csv_opts){.no_header = true}), "/no/such/file");
    FINE(fl_data_csv_close, (fl_data_csv_close(NULL), true));
    FINE(fl_data_csv_next, !fl_data_csv_next(NULL));
    ROW(QUIET, "fl_data_csv_column", fl_data_csv_column(NULL, "a") == -1, "no file: there is no column 'a'");
    ROW_OF(QUIET, "fl_data_csv_double", "fl_data_csv", !fl_data_csv_double(NULL, 0, &(double){0}),
           "no such field");
    ROW_OF(QUIET, "fl_data_csv_int", "fl_data_csv", !fl_data_csv_int(NULL, 0, &(int64_t){0}),
           "no such field");
    NO_FILE(fl_data_csv_tensor, (NULL, NULL, 1, FL_F32), "are NULL");
    NO_FILE(fl_data_save_csv, ("x", NULL, o.number), "not [rows, columns]");
    NO_FILE(fl_data_save_csv, ("/no/folder/x", NULL, o.f23), "/no/folder/x");
    NO_FILE_AS(fl_data_open_npz_opt, "fl_data_open_npz", (NULL, (fl_data_unpack_opts){0}), NULLS);
    NO_FILE_AS(fl_data_open_npz_opt, "fl_data_open_npz", ("/no/such/file", (fl_data_unpack_opts){0}),
               "/no/such/file");
    NO_FILE_AS(fl_data_open_npz_opt, "fl_data_open_npz", (o.file, (fl_data_unpack_opts){0}), o.file,
               "not a zip archive");
    const fl_data_stream small = {.who = "fl_data_mine", .path = "z", .size = 10};
    NO_FILE_AS(fl_data_may_unpack, "fl_data_mine", (&small, 9, &(fl_data_unpack_opts){.max_bytes = 8}),
               ".max_bytes, 8");
    NO_FILE(fl_data_save_npz, (NULL, named, 1, false), NULLS);
    NO_FILE(fl_data_save_npz, ("/no/folder/x", named, 1, false), "/no/folder/x");
    NO_FILE(fl_data_save_npz, ("x", named, -1, false), "negative");
    NO_FILE_AS(fl_data_load_idx_opt, "fl_data_load_idx", (NULL, (fl_data_unpack_opts){0}), NULLS);
    NO_FILE_AS(fl_data_load_idx_opt, "fl_data_load_idx", ("/no/such/file", (fl_data_unpack_opts){0}),
               "/no/such/file", "No such file");
    NO_FILE_AS(fl_data_load_idx_opt, "fl_data_load_idx", (o.file, (fl_data_unpack_opts){0}), o.file,
               "not an idx file");
    NO_FILE_AS(fl_data_load_idx_opt, "fl_data_load_idx", (o.idx, (fl_data_unpack_opts){0}), o.idx, "offset");
    NO_FILE(fl_data_save_safetensors, (NULL, named, 1, NULL, 0), NULLS);
    NO_FILE(fl_data_save_safetensors, (o.file, NULL, 1, NULL, 0), NULLS);
    NO_FILE(fl_data_save_safetensors, (o.file, named, -1, NULL, 0), "negative");
    NO_FILE(fl_data_save_safetensors, (o.file, named, 2, NULL, 0), "'a'");
    NO_FILE(fl_data_save_safetensors, (o.file, named + 2, 1, NULL, 0), "name is NULL");
    NO_FILE(fl_data_save_safetensors, (o.file, named + 3, 1, NULL, 0), "'b' is NULL");
    NO_FILE(fl_data_save_safetensors, (o.file, named + 4, 1, NULL, 0), "'c'");
    NO_FILE(fl_data_save_safetensors, ("/no/folder/x", named, 1, NULL, 0), "/no/folder/x");
    NO_FILE(fl_data_open_safetensors, (NULL), NULLS);
    NO_FILE(fl_data_open_safetensors, ("/no/such/file"), "/no/such/file");
    NO_FILE(fl_data_open_safetensors, (o.idx), o.idx);
    NO_FILE(fl_data_map_safetensors, (NULL, true), NULLS);
    NO_FILE(fl_data_map_safetensors, ("/no/such/file", true), "/no/such/file");
    NO_FILE(fl_data_map_safetensors, (o.idx, false), o.idx);
    NO_FILE(fl_data_open_sharded, (NULL, false, false), NULLS);
    NO_FILE(fl_data_open_sharded, ("/no/such/file", true, false), "/no/such/file");
    NO_FILE(fl_data_open_sharded, (o.idx, false, true), o.idx, "offset 0, line 1");
    NO_FILE(fl_data_save_sharded, (NULL, named, 1, NULL, 0, 0), NULLS);
    NO_FILE(fl_data_save_sharded, ("x.json", named, 1, NULL, 0, 0), "x.json does not end with");
    NO_FILE(fl_data_save_sharded, ("x.safetensors.index.json", named, 2, NULL, 0, 0), "'a'");
    NO_FILE(fl_data_save_sharded, ("/no/folder/x.safetensors.index.json", named, 1, NULL, 0, 0),
            "/no/folder/x.safetensors.index.json.tmp: cannot open");
    FINE(fl_data_exists,
         fl_data_exists("fl_data_mine", "/no/such/file") == 0 && fl_data_exists("x", o.idx) == 1);
    FINE(fl_data_close, (fl_data_close(NULL), true));
    FINE(fl_data_count, fl_data_count(NULL) == 0);
    ROW(QUIET, "fl_data_name", outside_of_file(), "got 2");
    NO_FILE(fl_data_dtype, (NULL, 0), "got 0");
    ROW(QUIET, "fl_data_shape", fl_data_shape(NULL, 0).ndim == 0, "got 0");
    FINE(fl_data_find, unknown_names());
    FINE(fl_data_meta, unknown_names());
    NO_FILE(fl_data_read, (NULL, "0.weight"), "no file");
    ROW(QUIET, "fl_data_read", !read_from("no"), o.file, "no tensor 'no'");
    ROW(QUIET, "fl_data_read", !read_from(NULL), o.file);
    FINE(fl_data_io_system, fl_data_io_system() != NULL);
}

/* What a reader of that text refuses. */
static bool json_refuses(const char *text, bool (*read)(fl_data_json *j)) {
    fl_data_json *j = fl_data_json_of(text, strlen(text));
    const bool ok = read(j);
    fl_data_json_close(j);
    return !ok;
}
static bool json_next(fl_data_json *j) { return fl_data_json_next(j) != FL_DATA_JSON_ERROR; }
static bool json_more(fl_data_json *j) {
    return fl_data_json_next(j) && fl_data_json_more(j) && fl_data_json_skip(j) && fl_data_json_more(j);
}
static bool json_object(fl_data_json *j) { return fl_data_json_expect(j, FL_DATA_JSON_OBJECT); }
static bool json_string(fl_data_json *j) { return fl_data_json_string(j) != NULL; }
static bool json_int(fl_data_json *j) { return fl_data_json_int(j, &(int64_t){0}); }
static bool json_double(fl_data_json *j) { return fl_data_json_double(j, &(double){0}); }
static bool json_bool(fl_data_json *j) { return fl_data_json_bool(j, &(bool){0}); }
static bool json_as_int(fl_data_json *j) {
    return fl_data_json_next(j) && fl_data_json_as_int(j, &(int64_t){0});
}
static bool json_as_double(fl_data_json *j) {
    return fl_data_json_next(j) && fl_data_json_as_double(j, &(double){0});
}
static bool json_fail(fl_data_json *j) { return fl_data_json_fail(j, "this is %d", 7); }
#define NO_JSON(f, text, read, ...) \
    ROW_OF(QUIET, #f, "fl_data_json_of", json_refuses(text, read) && !read(NULL), __VA_ARGS__)

static bool refuses_to_read(const fl_data_list_entry *e, fl_data_sample *out, void *user) {
    return (void)e, (void)out, (void)user, false;
}
static bool refuses_to_make(int64_t i, fl_data_sample *out, void *user) {
    return (void)i, (void)out, (void)user, false;
}
static bool keeps(const fl_data_sample *sample, void *user) { return (void)sample, (void)user, true; }

static void rows_of_more_sets(void) {
    fl_data_sample sample;
    int64_t index[] = {0, 2};
    const int64_t short_one[] = {1};
    NO_FILE(fl_data_get_many, (NULL, index, 1, &sample), NULLS);
    NO_FILE(fl_data_get_many, (o.set, index, 0, &sample), "got n 0");
    NO_FILE(fl_data_get_many, (o.set, index, 2, &sample), "got 2");
    FINE(fl_data_id, fl_data_id(NULL, 7) == 7);
    ROW(QUIET, "fl_data_length", fl_data_length(o.set, 2) == -1, "got 2");
    NO_FILE(fl_data_callback, (-1, refuses_to_make, NULL), "got size -1");
    NO_FILE(fl_data_callback, (1, NULL, NULL), NULLS);
    NO_FILE(fl_data_filter, (NULL, keeps, NULL), NULLS);
    NO_FILE(fl_data_filter, (fresh(), NULL, NULL), NULLS);
    NO_FILE(fl_data_sort_by_length, (NULL, 0), NULLS);
    NO_FILE(fl_data_sort_by_length, (fresh(), -1), "-1");
    NO_FILE(fl_data_repeat, (NULL, 2), NULLS);
    NO_FILE(fl_data_repeat, (fresh(), -1), "-1");
    NO_FILE(fl_data_lengths, (NULL, index, 2), NULLS);
    NO_FILE(fl_data_lengths, (fresh(), short_one, 1), "1");
    NO_FILE(fl_data_to, (NULL, "cpu"), NULLS);
    NO_FILE_AS(fl_data_to, "fl_backend_index", (fresh(), "nowhere"), "nowhere");
    NO_FILE_AS(fl_data_batches_opt, "fl_data_batches", (fresh(), (fl_data_batches_opts){.size = -1}), "-1");
    NO_FILE_AS(fl_data_batches_opt, "fl_data_batches",
               (fresh(), (fl_data_batches_opts){.size = 1, .masks = 1}), "require pad");
    NO_FILE(fl_data_save_blob, (NULL, o.set), NULLS);
    NO_FILE(fl_data_save_blob, ("/no/such/folder/x", o.set), "/no/such/folder/x");
    NO_FILE(fl_data_open_blob, (NULL), NULLS);
    NO_FILE(fl_data_open_blob, ("/no/such/file"), "/no/such/file");
    NO_FILE(fl_data_blob_of, (NULL, 0), NULLS);
    NO_FILE(fl_data_blob_of, ("flblob1", 8), "not a blob: got 8 bytes");
    FINE(fl_data_path_inside, fl_data_path_inside("a/b.png", 7) && !fl_data_path_inside("a/../../b", 9) &&
                                  !fl_data_path_inside("/b", 2));
    NO_FILE(fl_data_folder_names, ("fl_data_folder_names", NULL, NULL, NULL), NULLS);
    NO_FILE_AS(fl_data_list_opt, "fl_data_list",
               ("/no/such/list", refuses_to_read, (fl_data_list_opts){.root = NULL}), "/no/such/list");
    NO_FILE_AS(fl_data_list_opt, "fl_data_list", (NULL, refuses_to_read, (fl_data_list_opts){.root = NULL}),
               NULLS);
    NO_FILE_AS(fl_data_folder_opt, "fl_data_folder",
               ("/no/such/folder", refuses_to_read, (fl_data_folder_opts){.user = NULL}), "/no/such/folder");
    FINE(fl_data_class_name, fl_data_class_name(o.set, 9) == NULL);
    FINE(fl_data_listed_path, !fl_data_listed_path(o.set, 0, (char[8]){""}, 8));
}

static void rows_of_dlpack(void) {
    fl_dlpack newer = {.major = 2}, fixed = {.major = 1, .flags = FL_DLPACK_READ_ONLY};
    fl_dlpack_old far = {.tensor = {.device = {2, 0}, .type = {2, 32, 1}}};
    NO(fl_to_dlpack, (NULL), NULLS);
    NO(fl_to_dlpack_old, (NULL), NULLS);
    NO(fl_from_dlpack, (NULL), NULLS);
    NO(fl_from_dlpack, (&newer), "got DLPack version 2.0, expected 1");
    NO(fl_from_dlpack, (&fixed), "read-only");
    NO(fl_from_dlpack_old, (&far), "device 2:0");
}

static void rows_of_json(void) {
    NO_FILE_AS(fl_data_json_open_opt, "fl_data_json_open", (NULL, (fl_data_json_opts){.many = true}), NULLS);
    NO_FILE_AS(fl_data_json_open_opt, "fl_data_mine",
               ("/no/such/file", (fl_data_json_opts){.who = "fl_data_mine"}), "/no/such/file");
    NO_FILE_AS(fl_data_json_of_opt, "fl_data_json_of", (NULL, 0, (fl_data_json_opts){.many = true}),
               "are NULL");
    NO_FILE_AS(fl_data_json_of_opt, "fl_data_json_of", ("1", 1, (fl_data_json_opts){.max_depth = -1}),
               "max_depth -1");
    const fl_data_stream closed = {.who = "fl_data_mine", .path = "x"};
    NO_FILE_AS(fl_data_json_in, "fl_data_mine", (&closed, 0, 1, (fl_data_json_opts){.max_text = -1}),
               "max_text -1");
    FINE(fl_data_json_close, (fl_data_json_close(NULL), true));
    NO_JSON(fl_data_json_next, "", json_next, "offset 0, line 1", "ends early");
    NO_JSON(fl_data_json_more, "[1 2]", json_more, "offset 3, line 1", "','");
    NO_JSON(fl_data_json_expect, "[]", json_object, "expected an object, got an array");
    NO_JSON(fl_data_json_string, "1", json_string, "expected a string, got a number");
    NO_JSON(fl_data_json_int, "1.5", json_int, "integer, got '1.5'");
    NO_JSON(fl_data_json_double, "1e999", json_double, "'1e999' is out of range");
    NO_JSON(fl_data_json_bool, "null", json_bool, "expected true or false");
    NO_JSON(fl_data_json_as_int, "true", json_as_int, "expected a number");
    NO_JSON(fl_data_json_as_double, "true", json_as_double, "expected a number");
    NO_JSON(fl_data_json_skip, "]", fl_data_json_skip, "expected a value");
    ROW_OF(QUIET, "fl_data_json_fail", "fl_data_json_of", json_refuses("1", json_fail), "this is 7");
    fl_data_settings nothing = {0};
    ROW_OF(QUIET, "fl_data_settings_read", "fl_data_mine",
           !fl_data_settings_read(&nothing, "/no/such/file", "fl_data_mine"), "/no/such/file");
    FINE(fl_data_settings_free, (fl_data_settings_free(&nothing), true));
    FINE(fl_data_settings_text, !fl_data_settings_text(&nothing, "x"));
    FINE(fl_data_settings_number, fl_data_settings_number(&nothing, "x", 2) == 2);
    FINE(fl_data_settings_size, fl_data_settings_size(&nothing, "x", 2) == 2);
    FINE(fl_data_utf8, !fl_data_utf8("\xff", 1) && !fl_data_utf8("", 0));
    FINE(fl_data_parse_double, !fl_data_parse_double("1 ", 2, &(double){0}));
}

static void rows_of_sets(void) {
    const int64_t far[] = {0, 2};
    fl_tensor *unlike[] = {o.f23, o.f34};
    fl_data_sample sample;
    const fl_data_set no_get = {.size = 3};
    NO_FILE(fl_data_set_new, (NULL, NULL, 0), NULLS);
    NO_FILE(fl_data_set_new, (&no_get, NULL, 0), "no get");
    FINE(fl_data_inner,
         !fl_data_inner(NULL, 0) && !fl_data_inner(o.set, 5) && !fl_data_inner(o.set, -1));
    FINE(fl_data_free, (fl_data_free(NULL), true));
    FINE(fl_data_size, fl_data_size(NULL) == 0);
    NO_FILE(fl_data_get, (NULL, 0, &sample), NULLS);
    NO_FILE(fl_data_get, (o.set, 0, NULL), NULLS);
    NO_FILE(fl_data_get, (o.set, 2, &sample), "got 2");
    NO_FILE(fl_data_get, (o.set, INT64_MIN, &sample), "got -9223372036854775808");
    NO_FILE(fl_data_set_epoch, (NULL, 1), NULLS);
    NO_FILE(fl_data_next, (NULL, &(int64_t){0}, &(int64_t){0}, &sample), NULLS);
    NO_FILE(fl_data_tensors, (NULL, 1), "fl_data_tensors");
    NO_FILE(fl_data_tensors, (unlike, 9), "got 9");
    NO_FILE(fl_data_tensors, (unlike, 2), "tensor 1");
    NO_FILE(fl_data_tensors, ((fl_tensor *[]){NULL}, 1), "tensor 0");
    NO_FILE(fl_data_tensors, (&o.number, 1), "tensor 0");
    NO_FILE(fl_data_slice, (NULL, 0, 1), NULLS);
    NO_FILE(fl_data_slice, (fresh(), 1, 2), "exceeds the 2 samples");
    NO_FILE(fl_data_slice, (fresh(), INT64_MAX, INT64_MAX), "exceeds the 2 samples");
    NO_FILE(fl_data_slice, (fresh(), -1, 1), "got -1 and 1");
    NO_FILE(fl_data_subset, (NULL, far, 2), NULLS);
    NO_FILE(fl_data_subset, (fresh(), NULL, 2), NULLS);
    NO_FILE(fl_data_subset, (fresh(), far, -2), "got n -2");
    NO_FILE(fl_data_subset, (fresh(), far, 2), "index[1]", "got 2");
    NO_FILE(fl_data_shuffle, (NULL, 1), NULLS);
    NO_FILE(fl_data_shard, (NULL, 0, 1), NULLS);
    NO_FILE(fl_data_shard, (fresh(), 2, 2), "got 2 with ranks 2");
    NO_FILE(fl_data_shard, (fresh(), 0, 0), "got 0 with ranks 0");
    NO_FILE(fl_data_concat, (NULL, 1), "sets is NULL");
    NO_FILE(fl_data_concat, ((fl_data_set *[]){fresh(), NULL}, 2), "set 1 is NULL");
    NO_FILE(fl_data_zip, (NULL, 1), "sets is NULL");
    NO_FILE(fl_data_zip, ((fl_data_set *[]){fresh(), fl_data_slice(fresh(), 0, 1)}, 2), "set 1");
    NO_FILE(fl_data_batch, (NULL, 1, false), NULLS);
    NO_FILE(fl_data_batch, (fresh(), 0, false), "got 0");
    NO_FILE(fl_data_batch, (fresh(), INT64_MIN, false), "got -9223372036854775808");
    NO_FILE(fl_data_transform, (NULL, refuses, NULL), NULLS);
    NO_FILE(fl_data_transform, (fresh(), NULL, NULL), NULLS);
    ROW(QUIET, "fl_data_transform", !get_through(fl_data_transform(fresh(), refuses, NULL), 1),
        "false for sample 1");
    ROW_OF(QUIET, "fl_data_get", "refused",
           !get_through(fl_data_transform(fresh(), refuses, &o), 1), "refused");
    NO_FILE(fl_data_prefetch, (NULL, 1, 1), NULLS);
    NO_FILE(fl_data_prefetch, (fresh(), 0, 1), "got 0 and 1");
    NO_FILE(fl_data_prefetch, (fresh(), 1, 0), "got 1 and 0");
    ROW_OF(QUIET, "fl_data_prefetch", "refused",
           !get_through(fl_data_prefetch(fl_data_transform(fresh(), refuses, &o), 1, 1), 1),
           "refused");
}

static void rows_of_meters(void) {
    fl_data_average mean = {0};
    fl_data_frame_error wrong = {0};
    FINE(fl_data_average_add, (fl_data_average_add(&mean, 1, -1),
                               fl_data_average_add(&mean, 1, (double)NAN), mean.weight == 0));
    NO_FILE(fl_data_average_add_tensor, (&mean, NULL), NULLS);
    NO_FILE(fl_data_average_add_tensor, (NULL, o.f23), NULLS);
    FINE(fl_data_average_variance, isnan(fl_data_average_variance(&mean)));
    NO_FILE(fl_data_frame_error_add, (NULL, o.f23, o.i23), NULLS);
    NO_FILE(fl_data_frame_error_add, (&wrong, NULL, o.i23), NULLS);
    NO_FILE(fl_data_frame_error_add, (&wrong, o.f23, NULL), NULLS);
    NO_FILE(fl_data_frame_error_add, (&wrong, o.f23, o.f2), "f32");
    NO_FILE(fl_data_frame_error_add, (&wrong, o.f34, o.i23), "[3, 4]", "[2, 3]");
    FINE(fl_data_frame_error_percent, isnan(fl_data_frame_error_percent(&wrong)));
    FINE(fl_data_timer_per_unit, isnan(fl_data_timer_per_unit(&(fl_data_timer){0})));
    FINE(fl_data_progress_begin, fl_data_progress_begin(NULL, NULL, -5).out == NULL);
    NO_FILE(fl_data_average_add_squares, (&mean, o.f23, o.f34), "[2, 3]", "[3, 4]");
    FINE(fl_data_average_merge, (fl_data_average_merge(&mean, NULL), mean.weight == 0));
    NO_FILE(fl_data_counts_add, (&(fl_data_counts){0}, FL_DATA_COUNTS, 1), "16");
    NO_FILE(fl_data_counts_add, (&(fl_data_counts){{INT64_MAX}}, 0, 1), "overflows");
    NO_FILE(fl_data_counts_merge, (&(fl_data_counts){{INT64_MAX}}, &(fl_data_counts){{1}}), "overflows");
    CHECK(mean.weight == 0 && wrong.total == 0);
}

static void rows_of_scores(void) {
    fl_data_frame_error wrong = {0};
    fl_data_confusion none = {0}, two = {.classes = 2};
    fl_data_roc roc = {0};
    fl_data_calibration bins = {.bins = 101}, few = {.bins = 2, .total = 1}, many = {.bins = 3, .total = 1};
    fl_tensor *classes = row.mode == LIST ? NULL : fl_zeros(FL_SHAPE(2), FL_I64);
    NO_FILE(fl_data_top_k_add, (&wrong, o.f23, NULL, 1), NULLS);
    NO_FILE(fl_data_top_k_add, (&wrong, o.f23, classes, 0), "got 0");
    NO_FILE(fl_data_top_k_add, (&wrong, o.f34, classes, 1), "[3, 4]", "[2]");
    FINE(fl_data_accuracy_percent, isnan(fl_data_accuracy_percent(&wrong)));
    NO_FILE(fl_data_confusion_add, (&none, o.f23, classes), "got 0");
    NO_FILE(fl_data_confusion_add, (&two, o.f2, classes), "f32 [2]");
    NO_FILE_AS(fl_data_confusion_merge, "fl_data_confusion_merge",
               (&(fl_data_confusion){.classes = 3}, &(fl_data_confusion){2, &(int64_t){1}}),
               "differ: 3 and 2");
    FINE(fl_data_confusion_free, (fl_data_confusion_free(&two), two.classes == 0));
    FINE(fl_data_confusion_class, isnan(fl_data_confusion_class(&none, 0).f1));
    FINE(fl_data_confusion_macro, isnan(fl_data_confusion_macro(&none).f1));
    FINE(fl_data_confusion_micro, isnan(fl_data_confusion_micro(&none).f1));
    NO_FILE(fl_data_roc_add, (&roc, o.f23, classes), "[2, 3]", "[2]");
    NO_FILE(fl_data_roc_add, (&roc, fl_full(FL_SHAPE(2), NAN, FL_F32), classes), "sample 0", "nan");
    FINE(fl_data_roc_auc, isnan(fl_data_roc_auc(&roc)));
    FINE(fl_data_roc_average_precision, isnan(fl_data_roc_average_precision(&roc)));
    FINE(fl_data_roc_free, (fl_data_roc_free(&roc), roc.n == 0));
    NO_FILE(fl_data_calibration_add, (&bins, o.f23, classes), "got 101");
    NO_FILE(fl_data_calibration_merge, (&few, &many), "differ: 2 and 3");
    FINE(fl_data_calibration_error, isnan(fl_data_calibration_error(&bins)));
    FINE(fl_data_calibration_max, isnan(fl_data_calibration_max(&bins)));
    NO_FILE(fl_data_edits_add, (&(fl_data_edits){0}, NULL, 1, NULL, 0), NULLS);
    NO_FILE(fl_data_edits_add_tensor, (&(fl_data_edits){0}, o.f2, classes), "f32 [2]");
    FINE(fl_data_edits_percent, isnan(fl_data_edits_percent(&(fl_data_edits){0})));
    ROW(QUIET, "fl_data_align", fl_data_align(NULL, -1, NULL, 0, NULL) == -1, "negative");
    fl_data_host_view h;
    ROW(QUIET, "fl_data_host_begin",
        (wrong.wrong = !fl_data_host_begin(&h, NULL, FL_F64), fl_data_host_end(&h), wrong.wrong), NULLS);
}

static void rows_of_logs(void) {
    const fl_data_curves none = {1, {NULL}}, many = {17, {NULL}};
    const fl_data_plot_opts plain = {.log_y = true};
    fl_data_curve curve = {.name = "c"};
    NO_FILE_AS(fl_data_replace, "fl_data_mine", ("fl_data_mine", NULL, "", 0), NULLS);
    NO_FILE_AS(fl_data_replace, "fl_data_mine", ("fl_data_mine", "/no/folder/x", "", 0), "/no/folder/x.tmp");
    NO_FILE(fl_data_log_open, (NULL), NULLS);
    NO_FILE(fl_data_log_open, ("log.txt"), "log.txt", ".csv");
    NO_FILE(fl_data_log_open, ("/no/folder/x.csv"), "/no/folder/x.csv", "cannot open");
    NO_FILE(fl_data_log_add, (NULL, 0, "loss", 1), NULLS);
    NO_FILE(fl_data_log_text, (NULL, 0, "note", "text"), NULLS);
    NO_FILE(fl_data_log_histogram, (NULL, 0, "w", o.f23), NULLS);
    FINE(fl_data_log_close, fl_data_log_close(NULL));
    FINE(fl_data_curve_add, (fl_data_curve_add(&curve, NAN, 1), curve.n == 0));
    NO_FILE_AS(fl_data_plot_print_opt, "fl_data_plot_print", (NULL, none, plain), NULLS);
    NO_FILE_AS(fl_data_plot_print_opt, "fl_data_plot_print", (stderr, none, plain), NULLS);
    NO_FILE_AS(fl_data_plot_svg_opt, "fl_data_plot_svg", (NULL, none, plain), NULLS);
    NO_FILE_AS(fl_data_plot_svg_opt, "fl_data_plot_svg", ("x", many, plain), "range");
}

/* ---- running them ---- */

#include "errors_index.h"
#include "errors_graph.h"
#include "errors_image.h"
#include "errors_move.h"
#include "errors_linear.h"
#include "errors_neural.h"
#include "errors_layers.h"
#include "errors_vision.h"

static void (*const groups[])(void) = {
    rows_of_graphs,
    rows_of_more_movement, rows_of_parts, rows_of_more_creation, rows_of_nets, rows_of_var_nets,
    rows_of_memory, rows_of_handles, rows_of_op_writers, rows_of_creation, rows_of_reading,
    rows_of_movement, rows_of_formulas, rows_of_reductions, rows_of_composed_reductions, rows_of_order,
    rows_of_indexing, rows_of_convolution, rows_of_pooling, rows_of_softmax, rows_of_randomness,
    rows_of_steps, rows_of_variables, rows_of_backward, rows_of_var_movement, rows_of_modules,
    rows_of_layers, rows_of_sequences, rows_of_convolutions, rows_of_plain_layers, rows_of_containers,
    rows_of_embeddings, rows_of_attention, rows_of_caches, rows_of_recurrence, rows_of_vocabularies,
    rows_of_capsules, rows_of_init, rows_of_losses, rows_of_saving, rows_of_optim, rows_of_files,
    rows_of_dlpack, rows_of_json, rows_of_sets, rows_of_more_sets, rows_of_meters, rows_of_scores,
    rows_of_logs, rows_of_index_reads, rows_of_index_writes, rows_of_scatter_reduce, rows_of_quantized,
    rows_of_masks, rows_of_linear, rows_of_factor, rows_of_image_conv, rows_of_image_pooling,
    rows_of_image_places, rows_of_fft, rows_of_vision,
};

static void run_rows(void (*rows)(void)) {
    fl_set_error_handler(on_error, NULL);
    operands_make();
    for (row.mode = RETURNING; row.mode <= JUMPING; row.mode++) {
        fl_scope s = fl_scope_begin();
        rows();
        fl_scope_end(&s);
    }
    operands_free();
    CHECK_EQ_INT(fl_live_tensors(), 0);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

TEST(vision) { run_rows(rows_of_vision); }
TEST(more_movement) { run_rows(rows_of_more_movement); }
TEST(parts) { run_rows(rows_of_parts); }
TEST(more_creation) { run_rows(rows_of_more_creation); }
TEST(memory) { run_rows(rows_of_memory); }
TEST(handles_and_backends) { run_rows(rows_of_handles); }
TEST(op_writers) { run_rows(rows_of_op_writers); }
TEST(creation) { run_rows(rows_of_creation); }
TEST(reading) { run_rows(rows_of_reading); }
TEST(movement) { run_rows(rows_of_movement); }
TEST(formulas) { run_rows(rows_of_formulas); }
TEST(reductions) { run_rows(rows_of_reductions); }
TEST(order) { run_rows(rows_of_order); }
TEST(reductions_composed) { run_rows(rows_of_composed_reductions); }
TEST(indexing) { run_rows(rows_of_indexing); }
TEST(index_reads) { run_rows(rows_of_index_reads); }
TEST(index_writes) { run_rows(rows_of_index_writes); }
TEST(scatter_reduce) { run_rows(rows_of_scatter_reduce); }
TEST(quantized) { run_rows(rows_of_quantized); }
TEST(masks) { run_rows(rows_of_masks); }
TEST(convolution) { run_rows(rows_of_convolution); }
TEST(pooling) { run_rows(rows_of_pooling); }
TEST(image_convolution) { run_rows(rows_of_image_conv); }
TEST(image_places) { run_rows(rows_of_image_places); }
TEST(image_pooling) { run_rows(rows_of_image_pooling); }
TEST(softmax_and_gradients) { run_rows(rows_of_softmax); }
TEST(linear_algebra) { run_rows(rows_of_linear); }
TEST(factorisations) { run_rows(rows_of_factor); }
TEST(fourier) { run_rows(rows_of_fft); }
TEST(randomness) { run_rows(rows_of_randomness); }
TEST(optimizer_steps) { run_rows(rows_of_steps); }
TEST(variables) { run_rows(rows_of_variables); }
TEST(backward) { run_rows(rows_of_backward); }
TEST(movement_of_variables) { run_rows(rows_of_var_movement); }
TEST(modules) { run_rows(rows_of_modules); }
TEST(layers) { run_rows(rows_of_layers); }
TEST(convolution_layers) { run_rows(rows_of_convolutions); }
TEST(plain_layers) { run_rows(rows_of_plain_layers); }
TEST(containers) { run_rows(rows_of_containers); }
TEST(sequences) { run_rows(rows_of_sequences); }
TEST(embeddings) { run_rows(rows_of_embeddings); }
TEST(attention) { run_rows(rows_of_attention); }
TEST(caches) { run_rows(rows_of_caches); }
TEST(recurrence) { run_rows(rows_of_recurrence); }
TEST(vocabularies) { run_rows(rows_of_vocabularies); }
TEST(capsules) { run_rows(rows_of_capsules); }
TEST(initialisation) { run_rows(rows_of_init); }
TEST(losses) { run_rows(rows_of_losses); }
TEST(saving) { run_rows(rows_of_saving); }
TEST(optimizers) { run_rows(rows_of_optim); }
TEST(files) { run_rows(rows_of_files); }
TEST(json) { run_rows(rows_of_json); }
TEST(scores) { run_rows(rows_of_scores); }
TEST(more_sets) { run_rows(rows_of_more_sets); }
TEST(dlpack) { run_rows(rows_of_dlpack); }
TEST(logs) { run_rows(rows_of_logs); }
TEST(data_sets) { run_rows(rows_of_sets); }
TEST(meters) { run_rows(rows_of_meters); }

/* ---- every public function has a row ---- */

/* Functions that take nothing that could be wrong, or whose argument is the caller's word. */
static const char *const cannot_fail[] = {
    /* they make, report or read the error and the log themselves */
    "fl_fail",
    "fl_raise",
    "fl_err_null",
    "fl_err_false",
    "fl_error",
    "fl_error_clear",
    "fl_set_error_handler",
    "fl_quiet",
    "fl_log_message",
    "fl_log_set_sink",
    /* no arguments, or every value is good */
    "fl_rnn_part",
    "fl_rnn_reserve",
    "fl_version",
    "fl_in_parallel",
    "fl_threads",
    "fl_device_host",
    "fl_mem_current",
    "fl_mem_native",
    "fl_mem_caching",
    "fl_mem_trim",
    "fl_mem_step",
    "fl_mem_live_buffers",
    "fl_live_tensors",
    "fl_scope_size",
    "fl_flags",
    "fl_set_flags",
    "fl_q8",
    "fl_rotary_frequency",
    "fl_rotary_attention_factor",
    "fl_q4",
    "fl_q4_1",
    "fl_q5_0",
    "fl_q5_1",
    "fl_q2_k",
    "fl_q3_k",
    "fl_q4_k",
    "fl_q5_k",
    "fl_q6_k",
    "fl_q8_k",
    "fl_iq4_nl",
    "fl_iq4_xs",
    "fl_mxfp4",
    "fl_backend_cpu",
    "fl_formula_has",
    "fl_formula_run",
    "fl_backend_strict",
    "fl_backend_fallbacks",
    "fl_backend_default",
    "fl_seed",
    "fl_rng_state",
    "fl_rng_set_state",
    "fl_no_grad",
    "fl_set_recompute",
    "fl_grad_enabled",
    "fl_data_now",
    "fl_data_rng",
    "fl_call_hook",
    "fl_heap_use",
    "fl_heap_alloc", /* test_mem, test_faults: they fail for want of memory alone */
    "fl_heap_realloc",
    "fl_site_now",
    "fl_site_push",
    "fl_site_pop",
    "fl_call_stack_text",
    "fl_strbuf_printf",
    "fl_strbuf_vprintf",
    "fl_strbuf_put_json",
    "fl_write_file_atomic",
    "fl_nn_param_path",
    "fl_call_stack",
    "fl_scope_depth",
    "fl_provenance_enable",
    "fl_provenance_here",
    "fv_node_name",
    "fv_in_node",
    "fv_leaf_of",
    "fv_node_provenance",
    "fl_call_cost",
    "fl_cost_begin",
    "fl_cost_end",
    "fl_detect_anomaly",
    "fl_profile_end",
    "fl_alive_end",
    "fl_mem_set_current",
    "fl_mem_stats_of",
    "fl_mem_stats_reset_peak",
    "fl_mem_report",
    /* only memory can fail them: test_faults, test_mem */
    "fl_scope_begin",
    "fl_scope_of",
    "fl_scope_in",
    "fl_scope_at",
    "fl_persistent",
    "fl_mem_step_now",
    "fl_is_dropped",
    "fl_num",
    "fl_int",
    "fv_num",
    "fl_mem_failing",
    "fl_nn_identity",
    "fl_nn_relu",
    "fl_nn_relu6",
    "fl_nn_gelu",
    "fl_nn_gelu_tanh",
    "fl_nn_tanh",
    "fl_nn_sigmoid",
    "fl_nn_silu",
    "fl_nn_mish",
    "fl_nn_selu",
    "fl_nn_softsign",
    "fl_nn_logsigmoid",
    "fl_nn_tanhshrink",
    "fl_nn_hardsigmoid",
    "fl_nn_hardswish",
    "fl_nn_leaky_relu",
    "fl_nn_elu",
    "fl_nn_celu",
    "fl_nn_swish",
    "fl_nn_hardshrink",
    "fl_nn_softshrink",
    "fl_nn_softplus",
    "fl_nn_threshold",
    "fl_nn_print",
    "fl_alive_print",
    /* they read or set what this thread has */
    "fl_nn_set_call_hook",
    "fl_nn_dropout_of",
    "fl_nn_activation_of",
    "fl_nn_is_sequential",
    /* for types, slots and managers of one's own: they take what the library made, unchecked */
    "fl_obj_free",
    "fl_obj_keep",
    "fl_obj_steal",
    "fl_obj_drop",
    "fl_scope_adopt",
    "fl_out_make",
    "fl_nn_param_at",
    "fl_nn_add_affine",
    "fl_nn_add_uniform",
    "fl_nn_per_dim",
    "fl_nn_finish",
    "fl_nn_finish_with_weights",
    "fl_nn_put",
    "fl_nn_put_shape",
    "fl_nn_put_pair",
    "fl_nn_shape_text",
    "fl_buffer_from",
    "fl_mem_delegate",
    "fl_buffer_claim",
    "fl_buffer_resident",
    /* they count in the caller's own struct, or set a table */
    "fl_data_timer_start",
    "fl_data_timer_stop",
    "fl_data_timer_seconds",
    "fl_data_progress_step",
    "fl_data_progress_end",
    "fl_data_io_use",
    "fl_data_stream_read",
    "fl_data_stream_write",
    "fl_data_stream_fail",
    "fl_data_ends",
    "fl_data_swap_bytes",
    "fl_data_text_print",
    "fl_data_text_put",
    "fl_data_arena_add",
    "fl_data_arena_free",
    "fl_data_json_put_string",
    "fl_data_json_put_double",
    "fl_data_settings_add",
    "fl_data_csv_put",
    "fl_data_crc32c",
    "fl_host_reads",
    "fl_rng_uniform",
    "fl_data_host_end",
    "fl_data_timer_merge",
    "fl_data_frame_error_merge",
    "fl_data_roc_merge",
    "fl_data_edits_merge",
    "fl_data_crc32",
    /* with ranks, whose mistakes test_dist makes; and what only reads the group */
    "fl_dist_now",
    "fl_dist_kind_name",
    "fl_dist_accumulate",
    "fl_dist_run",
    "fl_dist_listen",
    "fl_dist_accept",
    "fl_dist_connect",
    "fl_dist_socket_io",
    "fl_dist_socket_close",
    "fl_dist_address_of",
    "fl_dist_connect_ranks",
    "fl_dist_init_opt",
    "fl_dist_close",
    "fl_dist_rank",
    "fl_dist_size",
    "fl_dist_local_rank",
    "fl_dist_impl_name",
    "fl_dist_impl_named",
    "fl_dist_impl_use",
    "fl_dist_split",
    "fl_dist_failure",
    "fl_dist_abort",
    "fl_dist_wait",
    "fl_dist_all_reduce_opt",
    "fl_dist_all_reduce_multiple_opt",
    "fl_dist_all_gather_opt",
    "fl_dist_reduce_scatter_opt",
    "fl_dist_broadcast_opt",
    "fl_dist_reduce_opt",
    "fl_dist_gather_opt",
    "fl_dist_scatter_opt",
    "fl_dist_all_to_all_opt",
    "fl_dist_send_opt",
    "fl_dist_recv_opt",
    "fl_dist_barrier",
    "fl_dist_sync",
    "fl_dist_data_parallel_opt",
    "fl_dist_model_free",
    "fl_dist_no_sync",
    "fl_dist_parameters",
    "fl_dist_step",
    "fl_dist_rng_per_rank",
    "fl_dist_sync_batch_norm",
    "fl_dist_save_checkpoint",
    "fl_dist_load_checkpoint",
    /* for readers and writers of files that are open; what may be wrong in these: test_files, test_formats */
    "fl_data_replace_end",
    "fl_data_remove",
    "fl_data_entry_read",
    "fl_data_file_map",
    "fl_data_file_add",
    "fl_data_file_add_meta",
    "fl_data_file_ready",
    "fl_data_file_clear",
    "fl_data_source_begin",
    "fl_data_source_read",
    "fl_data_source_finish",
    "fl_data_source_end",
    "fl_data_deflate",
    "fl_data_archive_open",
    "fl_data_archive_source",
    "fl_data_archive_put",
    "fl_data_archive_finish",
    "fl_data_archive_free",
    /* steps of images: what is wrong with one its application tells */
    "fl_vision_random_crop",
    "fl_vision_random_horizontal_flip",
    "fl_vision_random_vertical_flip",
    "fl_vision_cutout",
    "fl_vision_resize",
    "fl_vision_resize_to",
    "fl_vision_center_crop",
    "fl_vision_random_resized_crop",
    "fl_vision_pad",
    "fl_vision_random_choice",
    "fl_vision_random_apply",
    "fl_vision_random_adjust",
    "fl_vision_color_jitter",
    "fl_vision_random_affine",
    "fl_vision_random_erasing",
    "fl_vision_rand_augment",
    "fl_vision_trivial_augment_wide",
    "fl_vision_deit_augment",
};

static const char *root_dir;

/* The header up to its implementation, or NULL. */
static char *read_header(const char *path) {
    static char text[400000];
    FILE *f = fopen(path, "r");
    if (!f) return NULL;
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    char *end = strstr(text, "FL_IMPL_ONLY_");
    if (end) *end = 0;
    return end ? text : NULL;
}

/* The name before the first parenthesis of a prototype. */
static void prototype_name(const char *p, char *name, size_t size) {
    const char *end = strchr(p, '('), *begin = end;
    while (begin > p && (begin[-1] == '_' || (begin[-1] >= '0' && begin[-1] <= '9') ||
                         (begin[-1] >= 'a' && begin[-1] <= 'z')))
        begin--;
    snprintf(name, size, "%.*s", (int)(end - begin), begin);
}

/* The backend's headers and their rooms. */
static bool find_headers(const char *root, glob_t *found) {
    char path[600];
    snprintf(path, sizeof path, "%s/fl_*.h", root);
    if (glob(path, 0, NULL, found)) return false;
    snprintf(path, sizeof path, "%s/fl/*/*.h", root);
    if (glob(path, GLOB_APPEND, NULL, found)) return false;
    snprintf(path, sizeof path, "%s/fl/*/*/*.h", root);
    return glob(path, GLOB_APPEND, NULL, found) == 0;
}

/* Packages have tests of bad input of their own: test_text.c, and so on. */
static bool is_of_a_package(const char *path) {
    static const char *const package[] = {"fl_dist.h", "fl_speech.h", "fl_text.h", "fl_vision.h",
                                          "fl/distributed/",
                                          "fl/speech/", "fl/text/", "fl/vision/"};
    for (size_t i = 0; i < sizeof package / sizeof *package; i++)
        if (strstr(path, package[i])) return true;
    return false;
}

TEST(every_public_function_has_a_row) {
    const int n_free = sizeof cannot_fail / sizeof *cannot_fail;
    row.mode = LIST;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) groups[i]();
    CHECK(row.n_seen < 1400);
    int functions = 0;
    glob_t headers;
    if (!find_headers(root_dir ? root_dir : ".", &headers) && !find_headers("..", &headers))
        SKIP("the headers are not in . or ..: give --root DIR");
    for (size_t h = 0; h < headers.gl_pathc; h++) {
        char *text = read_header(headers.gl_pathv[h]), name[100];
        if (!text || is_of_a_package(headers.gl_pathv[h]))
            continue; /* fl.h and the like only include others */
        for (char *p = text; (p = strstr(p, "\nFL_API ")); p++, functions++) {
            prototype_name(p, name, sizeof name);
            const bool tested = listed(row.seen, row.n_seen, name),
                       free = listed(cannot_fail, n_free, name);
            if (!CHECK(tested || free)) printf("  %s has no row\n", name);
        }
    }
    globfree(&headers);
    CHECK(functions > 300);
}

/* ---- the rules of pending errors, and handlers ---- */

TEST(the_first_text_stays_and_nulls_are_silent) {
    fl_set_error_handler(on_error, NULL);
    operands_make();
    row.mode = RETURNING;
    fl_scope s = fl_scope_begin();
    /* one mistake in the middle of an expression: one text, one call */
    fl_tensor *t =
        fl_sum(fl_add(fl_mul(fl_exp(fl_matmul(o.f23, o.f23)), o.f23), o.f23), FL_ALL_AXES);
    CHECK(!t && row.calls == 1);
    CHECK_STR(fl_error(), "fl_matmul: shapes [2, 3] and [2, 3]");
    CHECK(!fl_add(o.f23, o.f34) && row.calls == 1); /* another mistake is not told */
    CHECK_STR(fl_error(), "fl_matmul");
    CHECK(fl_add(o.f23, o.f23)); /* what is right works on */
    CHECK(!fl_backward(fv_sum(o.v23, FL_ALL_AXES)) && !fv_grad(o.v23) && !fl_optim_step(o.optim) &&
          row.calls == 1);
    CHECK_ERROR("fl_matmul");
    CHECK(!fl_neg(NULL) && row.calls == 2); /* nothing pending: a mistake of its own */
    CHECK_ERROR("fl_neg: an operand is NULL");
    CHECK(fl_backward(fv_sum(o.v23, FL_ALL_AXES)) && fv_grad(o.v23) && fl_optim_step(o.optim));
    CHECK_NO_ERROR();
    fl_scope_end(&s);
    operands_free();
}

TEST(quiet_functions_leave_the_error_to_the_next_raise) {
    fl_set_error_handler(on_error, NULL);
    row.mode = RETURNING;
    CHECK(!fl_data_load_idx("/no/such/file") && row.calls == 0);
    CHECK_STR(fl_error(), "/no/such/file");
    CHECK(!fl_neg(NULL) && row.calls == 0); /* silent: the reason is known */
    fl_error_clear();
    CHECK(!fl_neg(NULL) && row.calls == 1);
    fl_error_clear();
}

static int read_end(int *ends, char *text, size_t size) {
    size_t n = 0;
    ssize_t got;
    close(ends[1]);
    while (n + 1 < size && (got = read(ends[0], text + n, size - 1 - n)) > 0) n += (size_t)got;
    text[n] = 0;
    close(ends[0]);
    return (int)n;
}

/* The default handler stops a program at its faulty line, and only value functions do. */
TEST(the_default_handler_stops_at_an_op) {
    int ends[2], status;
    char text[400];
    REQUIRE(pipe(ends) == 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 2);
        fl_data_load_idx("/no/such/file");
        if (!fl_error()) _exit(3);
        fl_error_clear();
        fl_matmul(fl_ones(FL_SHAPE(2, 3), FL_F32), fl_ones(FL_SHAPE(2, 3), FL_F32));
        _exit(0);
    }
    CHECK(read_end(ends, text, sizeof text) > 0);
    CHECK_STR(text, "fl: fl_matmul: shapes [2, 3] and [2, 3]");
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "--root")) {
        root_dir = argv[2];
        argv[2] = argv[0];
        argc -= 2, argv += 2;
    }
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
