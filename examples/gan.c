/* examples/gan.c - a generative adversarial network

   cc -O2 -I. examples/gan.c fl.c -lm -lpthread

   Two nets with opposite aims and an optimizer each: the generator turns noise into points, the
   discriminator tells them from true ones, which lie in six heaps on a circle. Each step trains the one,
   then the other; fv_detach is where the discriminator's loss ends. Generators like to settle on a few of
   the heaps: the last lines count how many were found, and how many points lie in one.
   (Goodfellow et al., 2014: Generative Adversarial Nets.) */
#include "arguments.h"
#include "fl.h"
#include <stdio.h>

enum { MODES = 6, NOISE = 8, HIDDEN = 64, BATCH = 128, STEPS = 1500, DRAWN = 1000 };
static const double spread = 0.1; /* of a heap; the circle has radius 2 */

/* The middles of the heaps, [MODES, 2]. */
static fl_tensor *middles(void) {
    fl_tensor *angle = fl_mul(fl_arange(0, MODES, 1, FL_F32), fl_num(2 * 3.14159265 / MODES));
    return fl_mul(fl_stack((fl_tensor *[]){fl_cos(angle), fl_sin(angle)}, 2, 1), fl_num(2));
}

/* True points [n, 2]. */
static fl_tensor *real_points(int64_t n) {
    fl_tensor *which = fl_randint(FL_SHAPE(n), 0, MODES, NULL);
    return fl_add(fl_index_select(middles(), 0, which), fl_normal(FL_SHAPE(n, 2), 0, spread, FL_F32, NULL));
}

static fl_var *made_points(fl_nn_module *generator, int64_t n) {
    return fl_nn_forward(generator, fv_const(fl_normal(FL_SHAPE(n, NOISE), 0, 1, FL_F32, NULL)));
}

/* How far the discriminator is from saying `real`, 1 or 0, of all points. */
static fl_var *judged(fl_nn_module *discriminator, fl_var *points, double real) {
    fl_var *score = fl_nn_forward(discriminator, points);
    return fv_binary_cross_entropy_with_logits(score, fv_const(fl_full_like(fv_value(score), real)), FL_MEAN);
}

static fl_nn_module *net(int64_t in, int64_t out) {
    return fl_nn_sequential(fl_nn_linear(in, HIDDEN), fl_nn_leaky_relu(0.2),
                            fl_nn_linear(HIDDEN, HIDDEN), fl_nn_leaky_relu(0.2),
                            fl_nn_linear(HIDDEN, out));
}

/* One step of optim down the loss. */
static double train(fl_optim *optim, fl_var *loss) {
    fl_optim_zero_grad(optim);
    fl_backward(loss);
    fl_optim_step(optim);
    return fl_item(fv_value(loss));
}

/* Share of the points [n, 2] that lie in a heap; how many of them in each. */
static double count_modes(fl_tensor *points, int count[MODES]) {
    const int64_t n = points->shape[0];
    static double distance[DRAWN];
    static int64_t nearest[DRAWN];
    fl_tensor *d = fl_cdist(points, middles(), 2);
    fl_to_host(fl_cast(fl_amin(d, FL_AXES(1)), FL_F64), distance, sizeof distance);
    fl_to_host(fl_argmin(d, 1, false), nearest, sizeof nearest);
    int64_t inside = 0;
    for (int64_t i = 0; i < n; i++) {
        if (distance[i] > 3 * spread) continue;
        inside++;
        count[nearest[i]]++;
    }
    return (double)inside / (double)n;
}

/* Where the points lie in the square of -2.5 to 2.5. */
static void print_points(fl_tensor *points) {
    enum { W = 48, H = 24 };
    static float at[DRAWN][2];
    static int seen[H][W];
    fl_to_host(points, at, sizeof at);
    for (int i = 0; i < DRAWN; i++) {
        const int x = (int)((at[i][0] + 2.5f) / 5 * W), y = (int)((2.5f - at[i][1]) / 5 * H);
        if (x >= 0 && x < W && y >= 0 && y < H) seen[y][x]++;
    }
    for (int i = 0; i < H * W; i++) {
        const int n = seen[i / W][i % W];
        putchar(" .oO@"[n < 4 ? n : 4]);
        if (i % W == W - 1) putchar('\n');
    }
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    fl_seed(1);
    fl_scope all = fl_scope_begin();
    fl_nn_module *generator = net(NOISE, 2), *discriminator = net(2, 1);
    fl_optim *g = fl_optim_adam(fl_nn_parameters(generator), .lr = 3e-3, .beta1 = 0.5);
    fl_optim *d = fl_optim_adam(fl_nn_parameters(discriminator), .lr = 3e-3, .beta1 = 0.5);
    /* Opponents chase each other round and round: where they end is no matter of luck if they slow down. */
    fl_optim_schedule g_schedule = {.kind = FL_LR_COSINE, .total = STEPS}, d_schedule = g_schedule;
    fl_optim_schedule_start(&g_schedule, g);
    fl_optim_schedule_start(&d_schedule, d);
    for (int step = 1; step <= STEPS && !fl_error(); step++) {
        fl_scope s = fl_scope_begin();
        fl_var *right = judged(discriminator, fv_const(real_points(BATCH)), 1);
        fl_var *caught = judged(discriminator, fv_detach(made_points(generator, BATCH)), 0);
        const double d_loss = train(d, fv_add(right, caught));
        /* The discriminator gets gradients here too; zero_grad drops them before its own step. */
        const double g_loss = train(g, judged(discriminator, made_points(generator, BATCH), 1));
        fl_optim_schedule_step(&g_schedule);
        fl_optim_schedule_step(&d_schedule);
        if (step % 300 == 0) printf("step %4d: discriminator %.3f, generator %.3f\n", step, d_loss, g_loss);
        fl_scope_end(&s);
    }

    fl_no_grad(true);
    fl_tensor *points = fv_value(made_points(generator, DRAWN));
    int count[MODES] = {0}, found = 0;
    const double inside = count_modes(points, count);
    print_points(points);
    /* A heap counts as found with a fifth of its share. */
    for (int k = 0; k < MODES; k++) found += count[k] >= DRAWN / MODES / 5;
    printf("%d of %d heaps found, %.0f %% of the points lie in one (of true ones %.0f %%)\n", found, MODES,
           100 * inside, 100 * count_modes(real_points(DRAWN), (int[MODES]){0}));
    fl_optim_free(g);
    fl_optim_free(d);
    fl_nn_free(generator);
    fl_nn_free(discriminator);
    fl_scope_end(&all);
    return !(found >= MODES - 1 && inside > 0.6);
}
/* MIT licence: see LICENSE. */
