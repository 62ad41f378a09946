/* bench/gpu.c - GPU ceilings, and fl's ops compared with them, as lines `figure value unit note` (make gpu)

     gpu op      the sum of a few numbers: whether a kernel runs at all
     gpu libraries  vendors' versions
     gpu probe   copy in GB/s; products in TFLOP/s; seconds of a small op
     gpu ops     bytes that an op must move / seconds, in GB/s and in per cent of the copy
     gpu json    the device as cuDNN describes it, for plans without one */
#include "../fl_backend.h"
#include "bench.h"

#include <dlfcn.h>
#include <string.h>

#include "../kernels/cuda/dnn_calls.h"
#include "../kernels/cuda/lt_calls.h"

enum { ROUNDS = 11 };

static fl_tensor *a, *b, *c;
static fl_tensor *(*unary)(fl_tensor *);

static void fail(const char *what) {
    fprintf(stderr, "skipped: %s: %s\n", what, fl_error() ? fl_error() : "not there");
    exit(1);
}

static void wait_for_device(void) {
    const fl_backend *be = fl_backend_at(fl_backend_default());
    if (be->sync && !be->sync(be)) fail("sync");
}

/* Median seconds of one call; each sample is of `repeat` calls, the device idle before and after. */
static double seconds_of(void (*fn)(void), int repeat) {
    double sample[ROUNDS];
    for (int r = -2; r < ROUNDS; r++) {
        wait_for_device();
        const double start = fl_data_now();
        for (int k = 0; k < repeat; k++) {
            fl_scope s = fl_scope_begin();
            fn();
            fl_scope_end(&s);
        }
        wait_for_device();
        if (r >= 0) sample[r] = (fl_data_now() - start) / repeat;
    }
    if (fl_error()) fail("an op");
    return bench_median(sample, ROUNDS);
}

static void copy_it(void) {
    fl_clone(a);
}
static void multiply(void) {
    fl_matmul(a, b);
}
static void run_unary(void) {
    unary(a);
}
static void run_add(void) {
    fl_add(a, b);
}
static void run_sum(void) {
    fl_sum(a, FL_AXES(1));
}
static void run_softmax(void) {
    fl_softmax(a, -1);
}
static void run_norm(void) {
    fl_layer_norm(a, 1, b, c, 1e-5);
}

static double copied; /* GB/s of a copy, read and written */

static void measure_copy(void) {
    fl_scope s = fl_scope_begin();
    if (!(a = fl_uniform(FL_SHAPE((int64_t)1 << 28), 0, 1, FL_F32, NULL))) fail("1 GiB");
    copied = 2 * (double)fl_numel(a) * 4 / seconds_of(copy_it, 4) * 1e-9;
    bench_line("copy", copied, "GB/s", "1 GiB of f32, bytes read and written");
    fl_scope_end(&s);
}

static void measure_product(const char *name, fl_dtype d, fl_dtype precision, int64_t n) {
    fl_scope s = fl_scope_begin();
    char note[64];
    snprintf(note, sizeof note, "%lld x %lld x %lld, random", (long long)n, (long long)n, (long long)n);
    fl_set_matmul_precision(precision);
    a = fl_cast(fl_normal(FL_SHAPE(n, n), 0, 1, FL_F32, NULL), d);
    b = fl_cast(fl_normal(FL_SHAPE(n, n), 0, 1, FL_F32, NULL), d);
    if (!a || !b) fail(name);
    bench_line(name, 2e-12 * (double)n * (double)n * (double)n / seconds_of(multiply, 3), "TFLOP/s", note);
    fl_set_matmul_precision(FL_F32);
    fl_scope_end(&s);
}

static void op(void) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_add(fl_ones(FL_SHAPE(4), FL_F32), fl_arange(0, 4, 1, FL_F32));
    const double sum = fl_item(fl_sum(y, FL_ALL_AXES));
    if (fl_error()) fail("a small op");
    bench_line("op", sum, "sum", "of four ones and 0 to 3");
    if (sum != 10) fprintf(stderr, "an op is wrong: got %g, expected 10\n", sum), exit(2);
    fl_scope_end(&s);
}

/* They are loaded once they were asked for something. */
static void libraries(void) {
    size_t (*lt)(void), (*dnn)(void);
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(1, 8, 8, 8), FL_F32);
    fl_conv(x, x, NULL);
    fl_matmul(fl_ones(FL_SHAPE(64, 64), FL_F32), fl_ones(FL_SHAPE(64, 64), FL_F32));
    wait_for_device();
    if (fl_error()) fail("a product or a convolution");
    void *f[2] = {dlsym(RTLD_DEFAULT, "cublasLtGetVersion"), dlsym(RTLD_DEFAULT, "cudnnGetVersion")};
    memcpy(&lt, &f[0], sizeof lt);
    memcpy(&dnn, &f[1], sizeof dnn);
    bench_line("cublaslt", lt ? (double)lt() : 0, "version", lt ? "" : "absent");
    bench_line("cudnn", dnn ? (double)dnn() : 0, "version", dnn ? "" : "absent");
    fl_scope_end(&s);
}

static void probe(void) {
    measure_copy();
    measure_product("product_bf16", FL_BF16, FL_F32, 8192);
    measure_product("product_tf32", FL_F32, FL_BF16, 8192);
    measure_product("product_f32", FL_F32, FL_F32, 4096);
    fl_scope s = fl_scope_begin();
    a = fl_ones(FL_SHAPE(64), FL_F32), b = a;
    bench_line("small_op", seconds_of(run_add, 1000) * 1e6, "us", "fl_add of 64 numbers, 1000 in a row");
    fl_scope_end(&s);
}

static void op_line(const char *name, void (*fn)(void), double passes) {
    const double bytes = passes * (double)fl_numel(a) * (double)fl_dtype_size(a->dtype);
    const double rate = bytes / seconds_of(fn, 4) * 1e-9;
    char figure[48], note[48];
    snprintf(figure, sizeof figure, "%s_%s", name, fl_dtype_name(a->dtype));
    snprintf(note, sizeof note, "%.0f %% of the copy", 100 * rate / copied);
    bench_line(figure, rate, "GB/s", note);
}

static void measure_ops(fl_dtype d) {
    static const struct {
        const char *name;
        fl_tensor *(*fn)(fl_tensor *);
    } unaries[] = {{"neg", fl_neg}, {"exp", fl_exp}, {"tanh", fl_tanh}, {"gelu", fl_gelu}, {"relu", fl_relu}};
    fl_scope s = fl_scope_begin();
    a = fl_cast(fl_normal(FL_SHAPE(1 << 16, 1 << 10), 0, 1, FL_F32, NULL), d);
    b = fl_cast(fl_normal(FL_SHAPE(1 << 16, 1 << 10), 0, 1, FL_F32, NULL), d);
    if (!a || !b) fail("ops");
    for (size_t i = 0; i < sizeof unaries / sizeof *unaries; i++) {
        unary = unaries[i].fn;
        op_line(unaries[i].name, run_unary, 2);
    }
    op_line("add", run_add, 3);
    op_line("sum_of_rows", run_sum, 1);
    op_line("softmax", run_softmax, 2);
    b = fl_ones(FL_SHAPE(1 << 10), FL_F32), c = fl_zeros(FL_SHAPE(1 << 10), FL_F32);
    op_line("layer_norm", run_norm, 2);
    fl_scope_end(&s);
}

static int print_json(void) {
    enum { HANDLE = 2701, JSON = FL__ATTR_DEVICEPROP_JSON_REPRESENTATION };
    fl_tensor *x = fl_ones(FL_SHAPE(1, 8, 8, 8), FL_F32);
    if (!x || !fl_conv(x, x, NULL)) fail("json");
    struct {
#define FIELD(result, name, args) result(*name) args;
        FL__DNN_CALLS(FIELD)
#undef FIELD
    } call;
#define NAME(result, name, args) #name,
    static const char *const names[] = {FL__DNN_CALLS(NAME)};
#undef NAME
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *f = dlsym(RTLD_DEFAULT, names[i]);
        if (!f) fail("json: cuDNN");
        memcpy((char *)&call + i * sizeof f, &f, sizeof f);
    }
    static char text[8192];
    fl__dnn_handle handle;
    fl__dnn_desc d;
    int64_t n = 0;
    if (call.cudnnCreate(&handle) ||
        call.cudnnBackendCreateDescriptor(FL__BACKEND_DEVICEPROP_DESCRIPTOR, &d) ||
        call.cudnnBackendSetAttribute(d, HANDLE, FL__TYPE_HANDLE, 1, &handle) ||
        call.cudnnBackendFinalize(d) ||
        call.cudnnBackendGetAttribute(d, JSON, FL__TYPE_CHAR, sizeof text - 1, &n, text))
        fail("json: cuDNN's description");
    return printf("%.*s\n", (int)n, text) < 0;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    static const char *const all[] = {"op", "libraries", "probe", "ops", "json"};
    bool known = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) known |= !strcmp(what, all[i]);
    if (!known) return fprintf(stderr, "usage: gpu op | libraries | probe | ops | json\n"), 2;
    fl_quiet(+1); /* errors are looked at here */
    const bool there = fl_backend_set_default("cuda");
    if (!there) fail("family cuda");
    fl_scope s = fl_scope_begin();
    if (!fl_ones(FL_SCALAR_SHAPE, FL_F32)) fail("device");
    if (!strcmp(what, "json")) return print_json();
    if (!strcmp(what, "op")) op();
    if (!strcmp(what, "libraries")) libraries();
    if (!strcmp(what, "probe")) probe();
    if (!strcmp(what, "ops")) {
        measure_copy();
        measure_ops(FL_F32);
        measure_ops(FL_BF16);
    }
    fl_scope_end(&s);
    return 0;
}
/* MIT licence: see LICENSE. */
