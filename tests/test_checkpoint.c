/* test_checkpoint.c - training that stops and goes on, checkpoints of other versions, shapes and kinds,
   damaged files, failing disks and memory

   A training is everything at once: a net with dropout, an optimizer with groups, a schedule, a scaler, an
   average, a generator of its own, numbers, and data that are shuffled, augmented at random and made ahead by
   threads. Two trainings are the same if the files that they save are, byte by byte.

     test_checkpoint golden    writes tests/golden/checkpoint_*.safetensors of the version that this is; the
                               files of older versions stay as they are */
#include "../fl_all.h"
#include "../kernels/cpu/bf16.h"
#include "test.h"
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- files ---- */

/* The system's files that wait for no disk, and fail at call number fail_at, for ever or once: it is full. */
static struct {
    int calls, fail_at;
    bool for_ever;
} disk;

static bool disk_fails(void) {
    const int n = ++disk.calls, at = disk.fail_at;
    if (!at || n < at || (n > at && !disk.for_ever)) return false;
    errno = ENOSPC;
    return true;
}
#define SYSTEM fl_data_io_system()
static void *disk_open(void *u, const char *path, fl_data_mode mode) {
    return disk_fails() ? NULL : SYSTEM->open(u, path, mode);
}
static int64_t disk_read(void *u, void *f, void *dst, size_t n, int64_t at) {
    return disk_fails() ? -1 : SYSTEM->read(u, f, dst, n, at);
}
/* A full disk takes a part. */
static int64_t disk_write(void *u, void *f, const void *src, size_t n, int64_t at) {
    if (disk_fails()) return -1;
    return SYSTEM->write(u, f, src, disk.fail_at && n > 1 ? (n + 1) / 2 : n, at);
}
static int64_t disk_size(void *u, void *f) { return disk_fails() ? -1 : SYSTEM->size(u, f); }
static int disk_sync(void *u, void *f) { return (void)u, (void)f, disk_fails() ? -1 : 0; }
static int disk_close(void *u, void *f) {
    const int r = SYSTEM->close(u, f);
    return disk_fails() ? -1 : r;
}
static int disk_rename(void *u, const char *from, const char *to) {
    return disk_fails() ? -1 : SYSTEM->rename(u, from, to);
}
static int disk_remove(void *u, const char *path) { return disk_fails() ? -1 : SYSTEM->remove(u, path); }
static int disk_sync_dir(void *u, const char *path) { return (void)u, (void)path, disk_fails() ? -1 : 0; }
static const fl_data_io disk_io = {.open = disk_open, .read = disk_read, .write = disk_write,
                                   .size = disk_size, .sync = disk_sync, .close = disk_close,
                                   .rename = disk_rename, .remove = disk_remove, .sync_dir = disk_sync_dir};

static char folder[200];

static const char *file_of(const char *name) {
    static char path[4][240];
    static int turn;
    char *p = path[turn++ % 4];
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "%s/fl-checkpoint-XXXXXX", P_tmpdir);
        if (!mkdtemp(folder)) perror("mkdtemp");
        fl_data_io_use(&disk_io);
    }
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static void end_test(void) {
    static const char *const names[] = {"a", "b", "c", "a.tmp", "b.tmp", "c.tmp"};
    for (int i = 0; i < 6; i++) remove(file_of(names[i]));
    CHECK(remove(folder) == 0); /* nothing else was left there */
    CHECK_NO_ERROR();
    CHECK_EQ_INT(fl_live_tensors(), 0);
    CHECK_EQ_INT(test_live_buffers(), 0);
}

typedef struct bytes {
    unsigned char *p;
    size_t n;
} bytes;

static bytes read_file(const char *path) {
    bytes b = {NULL, 0};
    FILE *f = fopen(path, "rb");
    if (!CHECK(f != NULL)) return b;
    fseek(f, 0, SEEK_END);
    b.n = (size_t)ftell(f);
    rewind(f);
    b.p = malloc(b.n + 1);
    CHECK(fread(b.p, 1, b.n, f) == b.n);
    fclose(f);
    return b;
}

static void write_file(const char *path, const void *p, size_t n) {
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(p, 1, n, f) == n);
    if (f) fclose(f);
}

static bool same_files(const char *a, const char *b) {
    bytes x = read_file(a), y = read_file(b);
    const bool same = x.n > 0 && x.n == y.n && !memcmp(x.p, y.p, x.n);
    free(x.p);
    free(y.p);
    return same;
}

/* ---- a training ---- */

enum { SIDE = 6, SAMPLES = 22, BATCH = 4, MOST_STEPS = 40 };
typedef enum net_kind { CNN, LSTM, TRANSFORMER, NETS, TINY = NETS } net_kind;

typedef struct settings {
    net_kind net;
    fl_dtype dtype; /* of products; f16: with a scaler */
    fl_optim_schedule_kind schedule;
} settings;

typedef struct training {
    settings o;
    fl_nn_module *net;
    fl_optim *optim;
    fl_optim_scaler *scaler;
    fl_optim_ema *ema;
    fl_optim_schedule schedule;
    fl_data_set *set;
    fl_rng noise; /* of one dropout; the others use the process's generator */
    fl_optim_progress at;
    double best;
    int64_t seen;
} training;

static fl_nn_module *net_of(net_kind k, fl_rng *noise) {
    const int64_t pixels = SIDE * SIDE;
    if (k == TINY) return fl_nn_sequential(fl_nn_view(FL_SHAPE(-1, pixels)), fl_nn_linear(pixels, 3));
    if (k == CNN)
        return fl_nn_sequential(fl_nn_view(FL_SHAPE(-1, 1, SIDE, SIDE)),
                                fl_nn_conv2d(1, 3, 3, .pad = FL_SAME), fl_nn_batch_norm2d(3),
                                fl_nn_relu(), fl_nn_dropout(.2, .rng = noise),
                                fl_nn_view(FL_SHAPE(-1, 3 * pixels)), fl_nn_linear(3 * pixels, 8),
                                fl_nn_dropout(.3), fl_nn_relu(), fl_nn_linear(8, 3));
    if (k == LSTM)
        return fl_nn_sequential(fl_nn_lstm(SIDE, 5, .layers = 2, .dropout = .3, .rng = noise,
                                           .output_only = true),
                                fl_nn_dropout(.2), fl_nn_view(FL_SHAPE(-1, SIDE * 5)),
                                fl_nn_linear(SIDE * 5, 3));
    return fl_nn_sequential(fl_nn_linear(SIDE, 8), fl_nn_transformer(8, 2, 12, .dropout = .1),
                            fl_nn_dropout(.2, .rng = noise), fl_nn_view(FL_SHAPE(-1, SIDE * 8)),
                            fl_nn_linear(SIDE * 8, 3));
}

/* Noise, and every other sample mirrored. */
static bool augment(fl_data_sample *s, fl_rng *rng, void *user) {
    rng->key ^= *(const uint64_t *)user;
    const bool mirror = fl_item(fl_uniform(FL_SCALAR_SHAPE, 0, 1, FL_F32, rng)) < .5;
    fl_tensor *noise = fl_normal(FL_SHAPE(SIDE, SIDE), 0, .1, FL_F32, rng);
    s->t[0] = fl_add(mirror ? fl_flip(s->t[0], 1, (int[]){1}) : s->t[0], noise);
    return s->t[0] != NULL;
}

static fl_data_set *data_of(int threads) {
    static uint64_t seed = 77;
    fl_rng rng = {5, 0};
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_normal(FL_SHAPE(SAMPLES, SIDE, SIDE), 0, 1, FL_F32, &rng);
    fl_tensor *y = fl_randint(FL_SHAPE(SAMPLES), 0, 3, &rng);
    fl_data_set *set = fl_data_shuffle(fl_data_tensors((fl_tensor *[]){x, y}, 2), 3);
    set = fl_data_batch(fl_data_transform(set, augment, &seed), BATCH, false);
    fl_scope_end(&s);
    return threads ? fl_data_prefetch(set, threads, 3) : set;
}

static fl_optim *optimizer_of(net_kind k, fl_nn_module *net) {
    const fv_list p = fl_nn_parameters(net);
    if (k == CNN) return fl_optim_sgd(p, .lr = .05, .momentum = .9);
    return k == LSTM ? fl_optim_adam(p, .lr = .01) : fl_optim_adamw(p, .lr = .01, .amsgrad = true);
}

/* Starts with other weights and generators for each seed. */
static void training_begin(training *t, settings o, uint64_t seed) {
    *t = (training){.o = o, .noise = {seed, 100 * seed}, .best = INFINITY};
    fl_seed(seed);
    t->net = net_of(o.net, &t->noise);
    t->optim = optimizer_of(o.net, t->net);
    CHECK_EQ_INT(fl_optim_group_of(t->optim, t->net, "*bias*", .lr = .02, .weight_decay = FL_ZERO), 1);
    t->scaler = o.dtype == FL_F16 ? fl_optim_scaler_new(1024, .interval = 3) : NULL;
    t->ema = fl_optim_ema_new(fl_nn_parameters(t->net), .9);
    t->schedule = (fl_optim_schedule){.kind = o.schedule, .every = 4, .total = MOST_STEPS, .warmup = 3,
                                      .gamma = .7, .patience = 2, .decay = 5, .milestone = {3, 9, 14}};
    CHECK(fl_optim_schedule_start(&t->schedule, t->optim));
    t->set = data_of(2);
}

static void training_end(training *t) {
    fl_data_free(t->set);
    fl_optim_scaler_free(t->scaler);
    fl_optim_ema_free(t->ema);
    fl_optim_free(t->optim);
    fl_nn_free(t->net);
}

static bool backward(training *t, fl_var *loss) {
    if (!t->scaler) return fl_backward(loss) && fl_optim_clip(t->optim, 1);
    return fl_backward(fl_optim_scaler_scale(t->scaler, loss)) &&
           fl_optim_scaler_unscale(t->scaler, t->optim) && fl_optim_clip(t->optim, 1);
}

static void train(training *t, int steps) {
    for (int i = 0; i < steps; i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        fl_autocast(t->o.dtype);
        if (!CHECK(fl_data_next(t->set, &t->at.epoch, &t->at.position, &b))) break;
        fl_var *loss = fv_cross_entropy(fl_nn_forward(t->net, fv_const(b.t[0])), b.t[1]);
        fl_optim_zero_grad(t->optim);
        CHECK(backward(t, loss) && fl_optim_step(t->optim) && fl_optim_ema_update(t->ema));
        CHECK(!t->scaler || fl_optim_scaler_update(t->scaler));
        const double value = fl_item(fv_value(loss));
        CHECK(isfinite(value) && fl_optim_schedule_step(&t->schedule));
        if (t->o.schedule == FL_LR_PLATEAU) CHECK(fl_optim_schedule_metric(&t->schedule, value));
        t->best = fmin(t->best, value);
        t->seen += b.t[1]->shape[0];
        t->at.step++;
        fl_scope_end(&s);
    }
}

/* All that it is. */
static bool training_list(training *t, fl_optim_checkpoint *c) {
    fl_nn_state *s = &c->state;
    c->at = &t->at;
    return fl_nn_state_add_module(s, "model.", t->net) && fl_optim_checkpoint_add(c, "optim.", t->optim) &&
           fl_optim_schedule_state(&t->schedule, "lr.", s) &&
           (!t->scaler || fl_optim_scaler_state(t->scaler, "scaler.", s)) &&
           fl_optim_ema_state(t->ema, "ema.", s) && fl_nn_state_add_rng(s, "", "noise", &t->noise) &&
           fl_nn_state_add_number(s, "", "best", &t->best) &&
           fl_nn_state_add_integer(s, "", "seen", &t->seen) &&
           fl_nn_state_add_fixed(s, "", "batches", fl_data_size(t->set));
}

static bool training_file(training *t, const char *path, bool save) {
    fl_optim_checkpoint c = {.at = NULL};
    const bool ok = training_list(t, &c) &&
                    (save ? fl_optim_checkpoint_save(&c, path) : fl_optim_checkpoint_load(&c, path));
    fl_optim_checkpoint_free(&c);
    return ok;
}

/* a + b steps with everything made anew between them give the file of a + b steps at once. */
static void check_resumed(settings o, int a, int b) {
    training whole, first, second;
    training_begin(&whole, o, 1);
    train(&whole, a + b);
    CHECK(training_file(&whole, file_of("a"), true));
    training_end(&whole);
    training_begin(&first, o, 1);
    train(&first, a);
    CHECK(training_file(&first, file_of("b"), true));
    training_end(&first);
    training_begin(&second, o, 2);
    if (a % 2) train(&second, 2); /* and where it was is forgotten */
    CHECK(training_file(&second, file_of("b"), false));
    CHECK(training_file(&second, file_of("c"), true) && same_files(file_of("b"), file_of("c")));
    train(&second, b);
    CHECK(training_file(&second, file_of("c"), true));
    if (!CHECK(same_files(file_of("a"), file_of("c"))))
        printf("  net %d, %s, schedule %d, %d + %d steps\n", (int)o.net, fl_dtype_name(o.dtype),
               (int)o.schedule, a, b);
    training_end(&second);
}

/* An epoch is 6 batches, the last one of 2 samples. */
TEST(training_that_goes_on_gives_the_same_bits) {
    for (int k = 0; k < NETS; k++)
        for (int dtype = 0; dtype < 3; dtype++) {
            const settings o = {(net_kind)k, ((fl_dtype[]){FL_F32, FL_F16, FL_BF16})[dtype], FL_LR_COSINE};
            check_resumed(o, 3 + k, 9);
            check_resumed(o, 6, 7); /* between two epochs */
        }
    end_test();
}

TEST(every_schedule_goes_on) {
    for (int kind = FL_LR_CONSTANT; kind <= FL_LR_PLATEAU; kind++)
        check_resumed((settings){LSTM, FL_F32, (fl_optim_schedule_kind)kind}, 8, 9);
    end_test();
}

/* Threads and depth are no part of it: what was saved with two goes on with none. */
TEST(data_go_on_with_other_threads) {
    const settings o = {CNN, FL_F32, FL_LR_STEP};
    training t, u;
    training_begin(&t, o, 1);
    train(&t, 8);
    CHECK(training_file(&t, file_of("a"), true));
    train(&t, 7);
    CHECK(training_file(&t, file_of("b"), true));
    training_begin(&u, o, 9);
    fl_data_free(u.set);
    u.set = data_of(0);
    CHECK(training_file(&u, file_of("a"), false));
    train(&u, 7);
    CHECK(training_file(&u, file_of("c"), true) && same_files(file_of("b"), file_of("c")));
    training_end(&t);
    training_end(&u);
    end_test();
}

/* An average that is in the model's place goes back there. */
TEST(averages_are_saved_swapped) {
    const settings o = {CNN, FL_F32, FL_LR_CONSTANT};
    training t, u;
    training_begin(&t, o, 1);
    train(&t, 5);
    CHECK(fl_optim_ema_swap(t.ema) && training_file(&t, file_of("a"), true));
    CHECK(fl_optim_ema_swap(t.ema));
    train(&t, 2);
    training_begin(&u, o, 2);
    CHECK(training_file(&u, file_of("a"), false) && u.ema->swapped && fl_optim_ema_swap(u.ema));
    train(&u, 2);
    CHECK(training_file(&t, file_of("a"), true) && training_file(&u, file_of("b"), true));
    CHECK(same_files(file_of("a"), file_of("b")));
    training_end(&t);
    training_end(&u);
    end_test();
}

/* fl_data_next by itself: epochs follow, wherever one begins. */
TEST(samples_without_end) {
    fl_data_set *set = data_of(2), *again = data_of(0);
    int64_t epoch = 0, index = 0;
    double sum[15];
    for (int i = 0; i < 15; i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        CHECK(fl_data_next(set, &epoch, &index, &b));
        CHECK(epoch == (i + 1) / 6 && index == (i + 1) % 6);
        sum[i] = fl_item(fl_sum(b.t[0], FL_ALL_AXES));
        fl_scope_end(&s);
    }
    CHECK(sum[0] != sum[6] && sum[1] != sum[7]); /* other orders and augmentations */
    for (int i = 14; i >= 0; i--) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        CHECK(fl_data_set_epoch(set, i / 6) && fl_data_get(set, i % 6, &b));
        CHECK(fl_item(fl_sum(b.t[0], FL_ALL_AXES)) == sum[i]);
        epoch = i / 6, index = i % 6;
        CHECK(fl_data_next(again, &epoch, &index, &b));
        CHECK(fl_item(fl_sum(b.t[0], FL_ALL_AXES)) == sum[i]);
        fl_scope_end(&s);
    }
    fl_data_sample b = {.n = 0};
    index = 6;
    CHECK(!fl_data_next(set, &epoch, &index, &b) && index == 6 && b.n == 0);
    CHECK_ERROR("fl_data_get: sample index must be in [0, 6), got 6");
    CHECK(!fl_data_next(NULL, &epoch, &index, &b));
    CHECK_ERROR("fl_data_next: the set is NULL");
    fl_data_free(set);
    fl_data_free(again);
    end_test();
}

/* ---- what does not fit ---- */

static void put(bytes *b, const void *p, size_t n) {
    b->p = realloc(b->p, b->n + n + 1);
    memcpy(b->p + b->n, p, n);
    b->n += n;
}

/* Every byte that loading might touch. */
static bytes bytes_of(training *t) {
    bytes b = {NULL, 0};
    fl_optim_checkpoint c = {.at = NULL};
    const fl_rng rng = fl_rng_state();
    CHECK(training_list(t, &c));
    for (int64_t i = 0; i < c.state.n; i++) {
        fl_tensor *tensor = c.state.item[i].tensor;
        char room[4096];
        const size_t n = (size_t)fl_numel(tensor) * fl_dtype_size(tensor->dtype);
        CHECK(n <= sizeof room && fl_to_host(tensor, room, n));
        put(&b, room, n);
    }
    put(&b, &rng, sizeof rng);
    put(&b, &t->at, sizeof t->at);
    put(&b, &t->optim->group, sizeof t->optim->group);
    put(&b, &t->optim->lr, sizeof t->optim->lr);
    fl_optim_checkpoint_free(&c);
    return b;
}

static bool same_bytes(bytes a, bytes b) {
    const bool same = a.n == b.n && !memcmp(a.p, b.p, a.n);
    free(a.p);
    free(b.p);
    return same;
}

/* Loading fails with that text and touches nothing. */
static bool refuses(training *t, const char *path, const char *text) {
    const bytes before = bytes_of(t);
    const bool ok = CHECK(!training_file(t, path, false)) && CHECK_ERROR(text);
    return CHECK(same_bytes(before, bytes_of(t))) && ok;
}

static const settings tiny = {TINY, FL_F32, FL_LR_STEP};

TEST(checkpoints_that_do_not_fit) {
    const char *a = file_of("a");
    training saved, t;
    test_errors_return();
    training_begin(&saved, (settings){CNN, FL_F16, FL_LR_COSINE}, 1);
    train(&saved, 4);
    CHECK(training_file(&saved, a, true));
    training_end(&saved);
    static const struct { settings o; const char *text; } cases[] = {
        {{LSTM, FL_F16, FL_LR_COSINE}, "optimizer 'optim' is 'sgd' in the file, but 'adam' here"},
        {{TINY, FL_F16, FL_LR_COSINE}, "optimizer 'optim' is 'sgd' in the file, but 'amsgrad' here"},
        {{CNN, FL_F32, FL_LR_COSINE}, "0 names missing; 3 unexpected: scaler.scale, scaler.good"},
        {{CNN, FL_F16, FL_LR_PLATEAU}, "'lr.kind' is 10, but the file has 5"},
    };
    for (int i = 0; i < 4; i++) {
        training_begin(&t, cases[i].o, 2);
        train(&t, 2);
        refuses(&t, a, cases[i].text);
        training_end(&t);
    }
    /* Another count of batches; other groups; another shape; an optimizer of other numbers; no average. */
    training_begin(&t, (settings){CNN, FL_F16, FL_LR_COSINE}, 3);
    t.set = fl_data_slice(t.set, 0, 5);
    refuses(&t, a, "a: 'batches' is 5, but the file has 6");
    t.set = (fl_data_free(t.set), data_of(2));
    CHECK_EQ_INT(fl_optim_group_of(t.optim, t.net, "6.weight"), 2);
    refuses(&t, a, "optimizer 'optim' has parameter groups 'abababab' in the file, but 'ababcbab' here");
    training_end(&t);
    training_begin(&t, (settings){CNN, FL_F16, FL_LR_COSINE}, 3);
    fl_optim_checkpoint c = {.at = NULL};
    double x[4] = {0};
    CHECK(fl_nn_state_add_host(&c.state, "", "best", x, FL_SHAPE(4), FL_F64));
    CHECK(!fl_optim_checkpoint_load(&c, a));
    CHECK_ERROR("names missing; ");
    fl_optim_checkpoint_free(&c);
    CHECK(fl_optim_checkpoint_add(&c, "gen.", t.optim) && !fl_optim_checkpoint_load(&c, a));
    CHECK_ERROR("a: the file has no optimizer 'gen'");
    fl_optim_checkpoint_free(&c);
    fl_scope s = fl_scope_begin();
    CHECK(fl_optim_scale(t.optim, fl_full(FL_SCALAR_SHAPE, 2, FL_F32)));
    fl_scope_end(&s);
    CHECK(!training_file(&t, file_of("b"), true));
    CHECK_ERROR("fl_optim_checkpoint_save: optimizer 'optim.' is within a step");
    CHECK(training_file(&t, a, false)); /* which forgets the step */
    CHECK(training_file(&t, file_of("b"), true) && same_files(a, file_of("b")));
    training_end(&t);
    end_test();
}

/* Large parameters get the storage of what was read, where the caching manager gave both and nobody else
   holds theirs; elsewhere the bytes are copied, so that views see them. A graph of before refuses
   backward. */
static void hear_message(fl_log_level level, const char *text, void *user) {
    (void)level;
    snprintf(user, 600, "%s", text);
}

/* How the cpu rounds products to bf16 is in the file where one did; loading warns where it is another way. */
TEST(the_way_of_bf16) {
    static const char *const was[] = {NULL, "f32", "emulated_vdpbf16"};
    char said[600] = "";
    test_errors_return();
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_linear(128, 128);
    fl_optim *o = fl_optim_sgd(fl_nn_parameters(net), .lr = 0.1);
    const char *path = test_file("way.safetensors");
    fl_log_set_sink(hear_message, said, FL_LOG_INFO);
    for (int i = 0; i < 3; i++) {
        if (i) {
            CHECK(fl_set_matmul_precision(FL_BF16) && fl_cpu_set_bf16(was[i]));
            CHECK(fl_nn_forward(net, fv_const(fl_ones(FL_SHAPE(128, 128), FL_F32))) != NULL);
            char taken[40];
            snprintf(taken, sizeof taken, "use '%s' (as set)", was[i]);
            CHECK_STR(said, taken);
            CHECK_STR(fl_cpu_bf16_used(), was[i]);
        } else CHECK(!fl_cpu_bf16_used());
        CHECK(fl_optim_save_checkpoint(path, net, o, NULL));
        fl_data_file *f = fl_data_open_safetensors(path);
        const char *there = fl_data_meta(f, "cpu.bf16");
        CHECK(was[i] ? there && !strcmp(there, was[i]) : !there);
        fl_data_close(f);
        *said = 0;
        CHECK(fl_optim_load_checkpoint(path, net, o, NULL) && !*said);
        CHECK(fl_cpu_set_bf16("emulated"));
        CHECK(fl_optim_load_checkpoint(path, net, o, NULL));
        if (was[i]) CHECK_STR(said, "way.safetensors: bf16 products were computed by");
        else CHECK(!*said);
    }
    CHECK_STR(said, "computed by 'emulated_vdpbf16' and are now by 'emulated'");
    fl_optim_free(o);
    fl_nn_free(net);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(loading_large_parameters) {
    test_errors_return();
    for (int k = 0; k < 3; k++) {
        const bool native = k == 1, viewed = k == 2;
        if (native) fl_mem_set_current(fl_mem_native());
        fl_scope s = fl_scope_begin();
        fl_seed(1);
        fl_nn_module *saved = fl_nn_linear(200, 200), *net = fl_nn_linear(200, 200);
        fl_tensor *want = fv_value(fl_nn_get_param(saved, "weight"));
        fl_tensor *have = fv_value(fl_nn_get_param(net, "weight"));
        fl_tensor *view = viewed ? fl_slice(fl_transpose(have, 0, 1), 0, 3, 5, 1) : NULL;
        fl_var *x = fv_param(fl_ones(FL_SHAPE(2, 200), FL_F32)), *y = fl_nn_forward(net, x);
        const void *before = have->buffer->ptr;
        CHECK(fl_nn_save(saved, file_of("a")) && fl_nn_load(net, file_of("a")));
        CHECK((have->buffer->ptr == before) == (native || viewed));
        fl_tensor *same = fl_slice(fl_transpose(want, 0, 1), 0, 3, 5, 1);
        CHECK(fl_item(fl_all(fl_eq(have, want), FL_ALL_AXES)) == 1);
        CHECK(!view || fl_item(fl_all(fl_eq(view, same), FL_ALL_AXES)) == 1);
        CHECK(!fl_backward(fv_sum(y, FL_ALL_AXES)));
        CHECK_ERROR("in place");
        CHECK(!fl_buffer_swap(have->buffer, x->value->buffer) && !fl_buffer_swap(NULL, NULL));
        fl_nn_free(saved);
        fl_nn_free(net);
        fl_scope_end(&s);
        fl_mem_set_current(NULL);
    }
    end_test();
}

/* Writes the file's tensors again, with that version and without one key. */
static void rewrite(const char *from, const char *to, const char *version, const char *without) {
    static const char *const keys[] = {"checkpoint.version", "step", "epoch", "position",
                                       "rng.key", "rng.counter", "optim", "optim.groups"};
    fl_scope s = fl_scope_begin();
    fl_data_file *f = fl_data_open_safetensors(from);
    fl_data_named_tensor named[64];
    fl_data_key_value meta[8];
    int n = 0, m = 0;
    REQUIRE(f && fl_data_count(f) <= 64);
    for (; n < fl_data_count(f); n++)
        named[n] = (fl_data_named_tensor){fl_data_name(f, n), fl_data_read(f, fl_data_name(f, n))};
    for (int i = 0; i < 8; i++)
        if (!without || strcmp(keys[i], without))
            meta[m++] = (fl_data_key_value){keys[i], i || !version ? fl_data_meta(f, keys[i]) : version};
    CHECK(fl_data_save_safetensors(to, named, n, meta, m));
    fl_data_close(f);
    fl_scope_end(&s);
}

TEST(versions) {
    const char *a = file_of("a"), *b = file_of("b");
    training t;
    test_errors_return();
    training_begin(&t, tiny, 1);
    train(&t, 1);
    CHECK(training_file(&t, a, true));
    train(&t, 1);
    rewrite(a, b, "2", NULL);
    refuses(&t, b, "b: checkpoint version 2 was written by a newer fl: expected at most 1");
    rewrite(a, b, "18446744073709551615", NULL);
    refuses(&t, b, "version 18446744073709551615 was written by a newer fl");
    rewrite(a, b, "18446744073709551616", NULL);
    refuses(&t, b, "metadata 'checkpoint.version' is not a number");
    rewrite(a, b, "1 ", NULL);
    refuses(&t, b, "metadata 'checkpoint.version' is not a number");
    rewrite(a, b, NULL, "checkpoint.version");
    refuses(&t, b, "not a checkpoint: metadata 'checkpoint.version' is missing");
    rewrite(a, b, NULL, "rng.counter");
    refuses(&t, b, "metadata 'rng.counter' is not a number");
    rewrite(a, b, NULL, "optim.groups");
    refuses(&t, b, "optimizer 'optim' has parameter groups 'a ...' in the file, but 'ab' here");
    rewrite(a, b, NULL, NULL);
    CHECK(training_file(&t, b, false));
    training_end(&t);
    end_test();
}

/* ---- damage ---- */

TEST(every_cut_and_every_flipped_byte) {
    const char *a = file_of("a"), *b = file_of("b");
    training t;
    test_errors_return();
    training_begin(&t, tiny, 1);
    CHECK(training_file(&t, a, true));
    train(&t, 2);
    const bytes file = read_file(a);
    for (size_t n = 0; n < file.n; n++) {
        write_file(b, file.p, n);
        if (!refuses(&t, b, "b: ")) printf("  cut at %zu of %zu\n", n, file.n);
        file.p[n] ^= (unsigned char)(1 + n % 255);
        write_file(b, file.p, file.n);
        if (!refuses(&t, b, "b: ")) printf("  byte %zu of %zu\n", n, file.n);
        file.p[n] ^= (unsigned char)(1 + n % 255);
    }
    write_file(b, file.p, file.n);
    CHECK(file.n > 2000 && training_file(&t, b, false));
    free(file.p);
    training_end(&t);
    end_test();
}

#define INDEX "c.safetensors.index.json"

/* The checkpoint `from` again in shards: tensors of at most 100 bytes together, or one. Their number. */
static int shard(const char *from) {
    static const char *const keys[] = {"checkpoint.version", "step", "epoch", "position",
                                       "rng.key", "rng.counter", "optim", "optim.groups"};
    fl_scope s = fl_scope_begin();
    fl_data_file *f = fl_data_open_safetensors(from), *all = NULL;
    fl_data_named_tensor named[64];
    fl_data_key_value meta[8];
    const int n = f && fl_data_count(f) <= 64 ? (int)fl_data_count(f) : 0;
    for (int i = 0; i < n; i++)
        named[i] = (fl_data_named_tensor){fl_data_name(f, i), fl_data_read(f, fl_data_name(f, i))};
    for (int i = 0; i < 8; i++) meta[i] = (fl_data_key_value){keys[i], f ? fl_data_meta(f, keys[i]) : NULL};
    CHECK(n && fl_data_save_sharded(file_of(INDEX), named, n, meta, 8, 100));
    fl_data_close(f);
    all = fl_data_open_safetensors(file_of(INDEX));
    CHECK(all && fl_data_count(all) == n);
    fl_data_close(all);
    fl_scope_end(&s);
    int shards = 0;
    while (access(file_of(INDEX), F_OK) == 0 && shards < n) { /* the name says how many there are */
        char name[80];
        snprintf(name, sizeof name, "c-v1-00001-of-%05d.safetensors", ++shards);
        if (access(file_of(name), F_OK) == 0) break;
    }
    return shards;
}

/* A flipped bit of the index or of a shard is an error, or changes nothing. FULL=1: every bit of the index,
   and 20,000 flips in all. */
TEST(flipped_bits_of_a_sharded_checkpoint) {
    const char *a = file_of("a");
    const bool all = test_full();
    training t;
    test_errors_return();
    training_begin(&t, tiny, 1);
    train(&t, 3);
    CHECK(training_file(&t, a, true));
    const int n = shard(a);
    REQUIRE(n > 2 && training_file(&t, file_of(INDEX), false));
    const bytes want = bytes_of(&t);
    uint64_t random = 1;
    int64_t flips = 0, refused = 0, wrong = 0;
    for (int i = 0; i <= n; i++) { /* the index, and the shards */
        char name[80] = INDEX;
        if (i) snprintf(name, sizeof name, "c-v1-%05d-of-%05d.safetensors", i, n);
        const bytes file = read_file(file_of(name));
        const int64_t bits = 8 * (int64_t)file.n, rest = all ? (20000 - flips) / (n + 1 - i) : 40;
        for (int64_t k = 0; k < (i ? rest : all ? bits : bits / 8); k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            const int64_t any = (int64_t)(random >> 1) % bits, bit = i ? any : all ? k : 8 * k + any % 8;
            file.p[bit / 8] ^= (unsigned char)(1 << bit % 8);
            write_file(file_of(name), file.p, file.n);
            const bool ok = training_file(&t, file_of(INDEX), false);
            const bytes is = bytes_of(&t);
            CHECK(ok == !fl_error());
            fl_error_clear();
            flips++, refused += !ok;
            if (ok && (is.n != want.n || memcmp(is.p, want.p, is.n))) {
                wrong++;
                if (wrong < 4) printf("  %s: bit %lld: another checkpoint\n", name, (long long)bit);
            }
            free(is.p);
            file.p[bit / 8] ^= (unsigned char)(1 << bit % 8);
        }
        write_file(file_of(name), file.p, file.n);
        free(file.p);
    }
    printf("  %lld flips of an index and %d shards: %lld refused, %lld read as another checkpoint\n",
           (long long)flips, n, (long long)refused, (long long)wrong);
    CHECK(wrong == 0 && refused > flips / 2 && training_file(&t, file_of(INDEX), false));
    remove(file_of(INDEX));
    for (int i = 1; i <= n; i++) {
        char name[80];
        snprintf(name, sizeof name, "c-v1-%05d-of-%05d.safetensors", i, n);
        remove(file_of(name));
    }
    free(want.p);
    training_end(&t);
    end_test();
}

static struct {
    int64_t calls, fail_at;
    bool for_ever;
} heap;

static void *heap_fn(void *user, void *p, size_t n) {
    (void)user;
    if (!n) return free(p), NULL;
    const int64_t i = ++heap.calls, at = heap.fail_at;
    return at && (i == at || (i > at && heap.for_ever)) ? NULL : realloc(p, n);
}

/* What fails: the disk, the heap, buffers. */
typedef enum fault { DISK, HEAP, BUFFERS, FAULTS } fault;

/* training_file, whose n-th request of that kind fails. *reached: there were so many. */
static bool file_with_fault(training *t, const char *path, bool save, fault what, int n, bool for_ever,
                            bool *reached) {
    fl_mem_manager *failing = NULL, *before = NULL;
    disk.calls = 0, heap.calls = 0;
    disk.for_ever = heap.for_ever = for_ever;
    if (what == DISK) disk.fail_at = n;
    if (what == HEAP) heap.fail_at = n;
    if (what == BUFFERS) before = fl_mem_set_current(failing = fl_mem_failing(NULL, n, for_ever));
    const bool ok = training_file(t, path, save);
    if (failing) fl_mem_set_current(before), fl_mem_close(failing);
    *reached = what == DISK ? disk.calls >= n : what == HEAP ? heap.calls >= n : !ok;
    disk.fail_at = 0, heap.fail_at = 0;
    return ok;
}

/* Blocks have their size in front of them, and 16 bytes behind that stay as they are. */
static void *guarded_heap(void *user, void *p, size_t n) {
    enum { FRONT = 16, BACK = 16 };
    (void)user;
    char *block = p ? (char *)p - FRONT : NULL;
    for (int i = 0; block && i < BACK; i++)
        if (!CHECK(block[FRONT + *(size_t *)(void *)block + (size_t)i] == 0x5a)) break;
    if (!n) return free(block), NULL;
    if (!(block = realloc(block, FRONT + n + BACK))) return NULL;
    *(size_t *)(void *)block = n;
    memset(block + FRONT + n, 0x5a, BACK);
    return block + FRONT;
}

TEST(nothing_is_written_behind_a_block) {
    fl_heap_use(guarded_heap, NULL); /* before the library has any; until the process ends */
    const char *a = file_of("a");
    training t;
    test_errors_return();
    training_begin(&t, tiny, 1);
    train(&t, 2);
    CHECK(training_file(&t, a, true) && training_file(&t, a, false));
    training_end(&t);
    end_test();
}

/* Which of two checkpoints the file is, complete: 1 or 2; 0: neither. */
static int which(const char *path, const char *one, const char *two) {
    return same_files(path, one) ? 1 : same_files(path, two) ? 2 : 0;
}

/* Two trainings, each in a file, while every allocation may be made to fail. */
static void two_begin(training *one, training *two, const char *a, const char *b) {
    test_errors_return();
    fl_heap_use(heap_fn, NULL);
    training_begin(one, tiny, 1);
    training_begin(two, tiny, 2);
    CHECK(training_file(one, a, true) && training_file(two, b, true));
}

static void two_end(training *one, training *two) {
    training_end(one);
    training_end(two);
    fl_heap_use(NULL, NULL);
    end_test();
}

/* With an error or without, the old file or the new one is there, and saving again works. */
TEST(saving_that_fails_anywhere) {
    const char *a = file_of("a"), *b = file_of("b"), *c = file_of("c");
    training one, two;
    two_begin(&one, &two, a, b);
    for (int what = 0; what < FAULTS; what++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            int points = 0, kept = 0;
            for (bool reached = true; reached && points < 2000; points++) {
                CHECK(training_file(&one, c, true));
                const bool ok = file_with_fault(&two, c, true, (fault)what, points + 1, for_ever, &reached);
                CHECK(ok == !fl_error());
                if (!ok) CHECK_ERROR(what == DISK ? "No space left on device" : "memory");
                const int is = which(c, a, b);
                CHECK(is == 2 || (is == 1 && !ok));
                kept += is == 1;
                CHECK(training_file(&two, c, true) && which(c, a, b) == 2);
            }
            CHECK(points > (what == BUFFERS ? 3 : 10) && kept >= points - 4);
        }
    two_end(&one, &two);
}

/* All of it is loaded, or nothing is touched. */
TEST(loading_that_fails_anywhere) {
    const char *a = file_of("a"), *b = file_of("b"), *c = file_of("c");
    training one, two;
    two_begin(&one, &two, a, b);
    for (int what = 0; what < FAULTS; what++)
        for (int for_ever = 0; for_ever < 2; for_ever++) {
            int points = 0, failed = 0;
            for (bool reached = true; reached && points < 2000; points++) {
                CHECK(training_file(&two, b, false));
                const bytes before = bytes_of(&two);
                const bool ok = file_with_fault(&two, a, false, (fault)what, points + 1, for_ever, &reached);
                CHECK(ok == !fl_error());
                fl_error_clear();
                failed += !ok;
                const bytes after = bytes_of(&two);
                if (!CHECK(same_bytes(before, after) == !ok))
                    printf("  fault %d at %d, %d\n", what, points + 1, for_ever);
                if (ok) CHECK(training_file(&two, c, true) && same_files(a, c));
            }
            CHECK(failed > 5 && failed >= points - 3);
        }
    two_end(&one, &two);
}

/* ---- golden files ----

   Every kind of optimizer there is, masters, groups, a schedule, a scaler, an average, a generator, numbers.
   No value was computed: byte k of item i is a function of both, so that files of old versions can be told
   from what is read of them on any machine. */

enum { GOLDEN_FILES = 3, GOLDEN_OPTIMS = 6 };

static fl_optim *golden_optim(int i, fv_list p) {
    switch (i) {
    case 0: return fl_optim_sgd(p, .lr = .1, .momentum = .9, .master = true);
    case 1: return fl_optim_adam(p);
    case 2: return fl_optim_adamw(p, .master = true);
    case 3: return fl_optim_adam(p, .amsgrad = true);
    case 4: return fl_optim_adamax(p);
    case 5: return fl_optim_nadam(p);
    case 6: return fl_optim_adadelta(p);
    case 7: return fl_optim_adagrad(p);
    case 8: return fl_optim_rmsprop(p);
    case 9: return fl_optim_rmsprop(p, .centered = true, .momentum = .9);
    case 10: return fl_optim_lion(p);
    case 11: return fl_optim_lamb(p);
    case 12: return fl_optim_novograd(p);
    case 13: return fl_optim_muon(((fv_list){1, p.v})); /* matrices */
    case 14: return fl_optim_sgd(p, .lr = .1, .momentum = .9, .decoupled = true, .weight_decay = .01);
    default: return fl_optim_sgd(p, .lr = .1);
    }
}

typedef struct golden {
    fl_nn_module *net; /* narrow parameters, and buffers */
    fl_optim *optim[GOLDEN_OPTIMS];
    fl_optim_schedule schedule;
    fl_optim_scaler *scaler;
    fl_optim_ema *ema;
    fl_rng rng;
    double number;
    int64_t integer;
    uint8_t text[5];
    fl_tensor *tensor;
    fl_optim_progress at;
    fl_optim_checkpoint c;
} golden;

static void golden_begin(golden *g, int file) {
    static const char *const prefix[] = {"one.", "two.", "three.", "four.", "five.", "six."};
    *g = (golden){.schedule = {.kind = FL_LR_PLATEAU, .lr = .5}};
    fl_scope s = fl_scope_begin();
    g->net = fl_nn_sequential(fl_nn_linear(2, 3, .dtype = FL_BF16), fl_nn_batch_norm1d(3, .no_affine = true));
    const fv_list p = fl_nn_parameters(g->net);
    g->scaler = fl_optim_scaler_new(0);
    g->ema = fl_optim_ema_new(p, .9);
    g->tensor = fl_keep(fl_zeros(FL_SHAPE(2, 0, 3), FL_I16));
    g->c.at = &g->at;
    fl_nn_state *state = &g->c.state;
    bool ok = fl_nn_state_add_module(state, "net.", g->net);
    for (int i = 0; ok && i < GOLDEN_OPTIMS; i++) {
        g->optim[i] = golden_optim(file * GOLDEN_OPTIMS + i, p);
        if (i == 0) ok = fl_optim_group_of(g->optim[i], g->net, "*.bias", .lr = .5) == 1;
        ok = ok && fl_optim_checkpoint_add(&g->c, prefix[i], g->optim[i]);
    }
    ok = ok && fl_optim_schedule_start(&g->schedule, g->optim[0]) &&
         fl_optim_schedule_state(&g->schedule, "lr.", state) &&
         fl_optim_scaler_state(g->scaler, "scaler.", state) && fl_optim_ema_state(g->ema, "ema.", state) &&
         fl_nn_state_add_rng(state, "", "rng", &g->rng) &&
         fl_nn_state_add_number(state, "", "number", &g->number) &&
         fl_nn_state_add_integer(state, "", "integer", &g->integer) &&
         fl_nn_state_add_host(state, "", "text", g->text, FL_SHAPE(5), FL_U8) &&
         fl_nn_state_add(state, "", "tensor", g->tensor) && fl_nn_state_add_fixed(state, "", "batches", 7);
    CHECK(ok);
    fl_scope_end(&s);
}

static void golden_end(golden *g) {
    for (int i = 0; i < GOLDEN_OPTIMS; i++) fl_optim_free(g->optim[i]);
    fl_optim_checkpoint_free(&g->c);
    fl_optim_scaler_free(g->scaler);
    fl_optim_ema_free(g->ema);
    fl_drop(g->tensor);
    fl_nn_free(g->net);
}

/* What item i of a golden file is: finite, and in [0, 1) where an optimizer wants that. */
static void golden_bytes(const fl_nn_state_item *item, int64_t i, unsigned char *to, size_t n) {
    const double number = (double)(1 + i % 61) / 64;
    const bool flag = item->tensor->dtype == FL_B8;
    for (size_t k = 0; k < n; k++) to[k] = (unsigned char)(flag ? 1 : (7 * (size_t)i + 13 * k) % 60);
    for (size_t k = 0; item->tensor->dtype == FL_F64 && k < n; k += sizeof number)
        memcpy(to + k, &number, sizeof number);
}

/* Fills all that is listed, or checks it. */
static void golden_values(golden *g, bool check) {
    const fl_optim_progress at = {1 << 20, 3, 17};
    for (int64_t i = 0; i < g->c.state.n; i++) {
        const fl_nn_state_item *item = &g->c.state.item[i];
        unsigned char want[512], have[512];
        const size_t n = (size_t)fl_numel(item->tensor) * fl_dtype_size(item->tensor->dtype);
        REQUIRE(n <= sizeof want);
        if (item->fixed) continue;
        golden_bytes(item, i, want, n);
        if (!check) CHECK(fl_set_host(item->tensor, want, n));
        else if (item->host) memcpy(have, item->host, n);
        else CHECK(fl_to_host(item->tensor, have, n));
        if (check && !CHECK(!memcmp(want, have, n))) printf("  '%s'\n", item->name);
    }
    const fl_rng rng = fl_rng_state();
    if (check) CHECK(!memcmp(&g->at, &at, sizeof at) && rng.key == UINT64_MAX && rng.counter == 99);
    g->at = at;
    fl_rng_set_state((fl_rng){UINT64_MAX, 99});
}

static const char *golden_path(int version, int file) {
    static char path[100];
    snprintf(path, sizeof path, "tests/golden/checkpoint_%d_%d.safetensors", version, file);
    return path;
}

static int golden_write(void) {
    for (int file = 0; file < GOLDEN_FILES; file++) {
        golden g;
        golden_begin(&g, file);
        golden_values(&g, false);
        CHECK(fl_optim_checkpoint_save(&g.c, golden_path(FL_OPTIM_CHECKPOINT_VERSION, file)));
        puts(golden_path(FL_OPTIM_CHECKPOINT_VERSION, file));
        golden_end(&g);
    }
    return test__failures > 0;
}

TEST(checkpoints_of_every_version_load) {
    for (int version = 1; version <= FL_OPTIM_CHECKPOINT_VERSION; version++)
        for (int file = 0; file < GOLDEN_FILES; file++) {
            golden g;
            golden_begin(&g, file);
            fl_seed(1);
            CHECK(fl_optim_checkpoint_load(&g.c, golden_path(version, file)));
            CHECK_NO_ERROR();
            golden_values(&g, true);
            golden_end(&g);
        }
    end_test();
}

int main(int argc, char **argv) {
    return argc == 2 && !strcmp(argv[1], "golden") ? golden_write() : test_main(argc, argv);
}

/* MIT licence: see LICENSE. */
