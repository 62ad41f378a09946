/* examples/research/bit_flips.c - silent corruption: bits flipped in products, found and repaired

   make research-bit_flips [DATA=folder of MNIST] [ARGS="--steps 1000 --every 10 --slack 3"]

   Processors that compute wrong numbers without a signal are found in every large fleet (Dixit et al.,
   Silent Data Corruptions at Scale, arXiv 2102.11245). A product can be checked by fewer operations than it
   takes (Huang and Abraham, Algorithm-Based Fault Tolerance for Matrix Operations, IEEE ToC 1984): with
   C = A B the sum of each row of C is the product of that row of A with the row sums of B,

     | sum_j C[i][j] - sum_k A[i][k] sum_j B[k][j] |  <=  slack sum_k |A[i][k]| sum_j |B[k][j]|

   of which the slack allows what rounding may do: numbers of a row that are alike are rounded alike, so that
   it does not fall with their number. A product that fails is computed again.

   Here the kernel of FL_OP_matmul is replaced by one that calls the shipped one, flips a random bit of a
   random number of every so many results, and then checks, or not. fl_backend_override composes linear layers
   and their gradients, so that all products of a training step come here.

   1. Of one product, how many flips of each bit are found, and what those that are missed change.
   2. A network on digits: without flips, with them, and with flips and checks; what they cost.

   To change it: `harm` is the fault, `is_right` the check. */
#include "../extend/training.h"
#include <sys/stat.h>

static struct {
    const char *data;
    int64_t steps, every;
    double slack; /* in roundings, 2^-24 */
    bool small;
} opt = {"../shared/data/mnist", 1000, 10, 3, false};

/* ---- the replacement ---- */

static fl_slot shipped;
static bool checks, flips;
static int only_bit = -1; /* of each flip; -1: a random one */
static fl_rng noise;
static struct {
    int64_t products, flipped, found, needless; /* needless: computed again without a flip */
    double change; /* by the largest flip that was missed, beside the largest number of its product */
} seen;

static double at(const fl_tensor *t, int64_t i, int64_t j) {
    return ((const float *)fl_data(t))[i * t->stride[0] + j * t->stride[1]];
}

/* Whether the sums of c's rows agree with those of its operands, all f32 [m, k], [k, n] -> [m, n]. */
static bool is_right(const fl_call *c, double *sums) {
    const fl_tensor *a = c->in[0], *b = c->in[1], *y = c->out[0];
    const int64_t m = y->shape[0], n = y->shape[1], k = b->shape[0];
    double *sum = sums, *size = sums + k;
    for (int64_t i = 0; i < k; i++) {
        sum[i] = size[i] = 0;
        for (int64_t j = 0; j < n; j++) sum[i] += at(b, i, j), size[i] += fabs(at(b, i, j));
    }
    for (int64_t i = 0; i < m; i++) {
        double off = 0, most = 0;
        for (int64_t j = 0; j < n; j++) off += at(y, i, j);
        for (int64_t j = 0; j < k; j++) off -= at(a, i, j) * sum[j], most += fabs(at(a, i, j)) * size[j];
        if (!(fabs(off) <= opt.slack * 0x1p-24 * most)) return false; /* a NaN too */
    }
    return true;
}

/* Flips a bit of y; returns by how much that changes a number of it, beside its largest one. */
static double harm(const fl_tensor *y) {
    const int64_t i = (int64_t)(fl_rng_uniform(&noise) * (double)y->shape[0]);
    const int64_t j = (int64_t)(fl_rng_uniform(&noise) * (double)y->shape[1]);
    const int bit = (int)(fl_rng_uniform(&noise) * 32);
    float *p = (float *)fl_data(y) + i * y->stride[0] + j * y->stride[1], before = *p;
    double most = 0;
    for (int64_t r = 0; r < y->shape[0]; r++)
        for (int64_t q = 0; q < y->shape[1]; q++) most = fmax(most, fabs(at(y, r, q)));
    uint32_t word;
    memcpy(&word, p, sizeof word);
    word ^= 1u << (only_bit < 0 ? bit : only_bit);
    memcpy(p, &word, sizeof word);
    return fabs((double)*p - before) / most;
}

static bool guarded(const fl_backend *self, const fl_call *c) {
    const fl_tensor *y = c->out[0];
    if (!shipped(self, c)) return false;
    if (y->ndim != 2 || y->dtype != FL_F32)
        return fl_fail("bit_flips: a product is not f32 [m, n]: extend is_right");
    const bool flip = ++seen.products % opt.every == 0 && flips;
    const double change = flip ? harm(y) : 0;
    seen.flipped += flip;
    if (!checks) return true;
    double *sums = fl_heap_alloc(2 * (size_t)c->in[1]->shape[0] * sizeof *sums);
    const bool right = sums && is_right(c, sums);
    fl_heap_free(sums);
    if (!sums) return false;
    if (!right) *(flip ? &seen.found : &seen.needless) += 1;
    else seen.change = fmax(seen.change, change);
    return right || shipped(self, c);
}

/* ---- 1: one product ---- */

static bool one_product(void) {
    const int times = opt.small ? 20 : 200;
    fl_scope s = fl_scope_begin();
    fl_tensor *a = fl_normal(FL_SHAPE(32, 784), 0, 1, FL_F32, NULL);
    fl_tensor *b = fl_normal(FL_SHAPE(784, 256), 0, 1, FL_F32, NULL);
    flips = checks = false;
    fl_tensor *clean = fl_matmul(a, b);
    const int64_t every = opt.every;
    bool ok = clean != NULL;
    puts("flips of one bit of [32, 784] x [784, 256]\n bit            found   largest missed change");
    flips = checks = true, opt.every = 1;
    for (int group = 0; ok && group < 6; group++) {
        static const int first[] = {0, 8, 16, 20, 23, 31, 32};
        seen.flipped = seen.found = 0, seen.change = 0;
        for (int i = 0; ok && i < times; i++)
            for (only_bit = first[group]; ok && only_bit < first[group + 1]; only_bit++) {
                const int64_t found = seen.found;
                fl_scope each = fl_scope_begin();
                fl_tensor *y = fl_matmul(a, b);
                ok = y && (seen.found == found || fl_item(fl_all(fl_eq(y, clean), FL_ALL_AXES)) == 1);
                fl_scope_end(&each);
            }
        printf("%2d to %2d %-9s %5.1f %%   %.1e\n", first[group], first[group + 1] - 1,
               group < 4 ? "(fraction)" : group < 5 ? "(exponent)" : "(sign)",
               100 * (double)seen.found / (double)seen.flipped, seen.change);
    }
    only_bit = -1, opt.every = every;
    fl_scope_end(&s);
    return ok || (!fl_error() && fl_fail("a product computed again has other bits"));
}

/* ---- 2: a network ---- */

typedef struct result {
    double loss, seconds;
    uint64_t hash;
} result;

static bool train(digits d, const char *name, bool flip, bool check, result *r) {
    training_run run;
    fl_scope s = fl_scope_begin();
    fl_seed(1);
    noise = (fl_rng){5, 0};
    memset(&seen, 0, sizeof seen);
    flips = flip, checks = check;
    fl_nn_module *net = fl_nn_sequential(fl_nn_view(FL_SHAPE(-1, 784)), fl_nn_linear(784, 256), fl_nn_relu(),
                                         fl_nn_linear(256, 10), fl_nn_log_softmax(1));
    bool ok = training_begin_on(&run, net, d, 32);
    const double start = fl_data_now();
    double loss, last = 0;
    for (int64_t i = 0; ok && i < opt.steps; i++) {
        ok = training_step(&run, i, &loss);
        if (i >= opt.steps - 10) last += loss / 10;
    }
    *r = (result){last, fl_data_now() - start, 0};
    ok = ok && training_hash(&run, &r->hash);
    printf("%-18s %8lld %7lld %7lld %8lld %10.1e %8.4f %7.2f  %016llx\n", name, (long long)seen.products,
           (long long)seen.flipped, (long long)seen.found, (long long)seen.needless, seen.change, r->loss,
           r->seconds, (unsigned long long)r->hash);
    training_end(&run);
    fl_scope_end(&s);
    return ok;
}

static bool networks(void) {
    struct stat found;
    const bool drawn = opt.small || stat(opt.data, &found);
    result clean, harmed, guarded_one, guarded_clean;
    digits d;
    if (!(drawn ? digits_draw(2000, 1, &d) : digits_load(opt.data, "train", &d))) return false;
    printf("\n%lld steps on %s, a flip in one of %lld products\n%-18s %8s %7s %7s %8s %10s %8s %7s  hash\n",
           (long long)opt.steps, drawn ? "drawn digits" : "MNIST", (long long)opt.every, "", "products",
           "flipped", "found", "needless", "missed", "loss", "seconds");
    if (!train(d, "no flips", false, false, &clean) || !train(d, "flips", true, false, &harmed) ||
        !train(d, "flips, checked", true, true, &guarded_one) ||
        !train(d, "checked", false, true, &guarded_clean))
        return false;
    if (guarded_clean.hash != clean.hash) return fl_fail("checks alone changed the weights");
    return fabs(guarded_one.loss - clean.loss) < 0.05 * clean.loss ||
           fl_fail("the loss with checks is %g, %g without flips", guarded_one.loss, clean.loss);
}

int main(int argc, char **argv) {
    const argument list[] = {{"data", .text = &opt.data, .about = "folder of MNIST's files"},
                             {"steps", .whole = &opt.steps, .low = 10, .high = 1e6},
                             {"every", .whole = &opt.every, .low = 1, .high = 1e6, .about = "for a flip"},
                             {"slack", .number = &opt.slack, .low = 0, .high = 1e6, .about = "of the check"},
                             {"small", .on = &opt.small, .about = "a few seconds, on drawn digits"},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (opt.small) opt.steps = 40;
    fl_seed(1);
    fl_backend mine = *fl_backend_at(fl_backend_index("cpu")), original;
    shipped = mine.op[FL_OP_matmul];
    bool ok = fl_backend_override(&mine, FL_OP_matmul, guarded) && fl_backend_use(&mine, &original);
    ok = ok && one_product() && networks() && fl_backend_use(&original, NULL);
    if (!ok) fprintf(stderr, "bit_flips: %s\n", fl_error());
    return !ok;
}
/* MIT licence: see LICENSE. */
