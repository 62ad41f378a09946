/* examples/custom_layer.c - a custom layer: radial basis units

   cc -O2 -I. examples/custom_layer.c fl.c -lm -lpthread

   A kind of module is a table, of which only `forward` must be there, and a maker. What it adds as
   parameters and buffers is found by optimizers, files and fl_nn_print from then on; its errors say where
   in the net it stands. Here a layer of radial units, y_k = exp(-|x - c_k|^2 / (2 w_k^2)), each with a middle
   c and a width w that are trained, and a buffer with the mean answer of each unit so far. It tells points
   on a ring from those within, is saved, and gives the same in another net that reads it. */
#include "arguments.h"
#include "fl.h"
#include <stdio.h>

enum { SAMPLES = 400, UNITS = 12, STEPS = 200 };

/* The layer. Its data is plain bytes, which fl_nn_new copies. */
typedef struct radial {
    int64_t in, units;
    double momentum; /* of the means */
} radial;

/* x [n, in] -> y [n, units] */
static fl_vars radial_forward(fl_nn_module *m, fl_vars in) {
    const radial *r = m->data;
    fl_var *x = in.v[0], *middle = m->param[0].var, *log_width = m->param[1].var;
    fl_tensor *mean = m->buffer[0].tensor;
    char text[FL_NN_SHAPE];
    if (fv_value(x)->ndim != 2 || fv_value(x)->shape[1] != r->in)
        return fl_nn_fail(m, "input %s, wants [n, %lld]", fl_nn_shape_text(x, text), (long long)r->in);
    fl_var *apart = fv_sub(fv_unsqueeze(x, 1), middle); /* [n, 1, in] - [units, in] */
    fl_var *square = fv_sum(fv_square(apart), FL_AXES(2));
    fl_var *y = fv_exp(fv_div(square, fv_mul(fv_num(-2), fv_exp(fv_mul(log_width, fv_num(2))))));
    if (m->train && y) {
        fl_tensor *now = fl_mean(fv_value(y), FL_AXES(0));
        if (!fl_assign(mean, fl_lerp(mean, now, fl_num(r->momentum)))) return (fl_vars){0};
    }
    return FL_VARS(y);
}

/* What stands in the parentheses. */
static void radial_describe(const fl_nn_module *m, char *buf, size_t size) {
    const radial *r = m->data;
    snprintf(buf, size, "in=%lld, units=%lld", (long long)r->in, (long long)r->units);
}

static const fl_nn_type radial_type = {.name = "Radial", .maker = "radial_layer", .inputs = 1,
                                       .forward = radial_forward, .describe = radial_describe};

/* Middles are drawn like points, N(0, 1); all widths start as 1. NULL after an error. */
static fl_nn_module *radial_layer(int64_t in, int64_t units) {
    const radial r = {in, units, 0.1};
    if (in < 1 || units < 1)
        return fl_err_null("radial_layer: in %lld, units %lld", (long long)in, (long long)units);
    fl_quiet(+1); /* errors are raised at the end, when nothing is left half made */
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&radial_type, &r, sizeof r);
    const bool ok =
        m && fl_nn_add_param(m, "middle", fv_param(fl_normal(FL_SHAPE(units, in), 0, 1, FL_F32, NULL))) &&
        fl_nn_add_param(m, "log_width", fv_param(fl_zeros(FL_SHAPE(units), FL_F32))) &&
        fl_nn_add_buffer(m, "mean", fl_zeros(FL_SHAPE(units), FL_F32));
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

static fl_nn_module *make_net(void) {
    return fl_nn_sequential(radial_layer(2, UNITS), fl_nn_linear(UNITS, 1));
}

/* Points [n, 2] around the middle, and whether each lies between 0.7 and 1.4 of it, f32 [n, 1]. */
static void draw(fl_tensor **x, fl_tensor **y) {
    *x = fl_normal(FL_SHAPE(SAMPLES, 2), 0, 1, FL_F32, NULL);
    fl_tensor *far = fl_sqrt(fl_unsqueeze(fl_sum(fl_square(*x), FL_AXES(1)), 1));
    fl_tensor *ring = fl_bitwise_and(fl_gt(far, fl_num(0.7)), fl_lt(far, fl_num(1.4)));
    *y = fl_cast(ring, FL_F32);
}

int main(int argc, char **argv) {
    if (!arguments_read(argc, argv, (argument[]){{NULL, .low = 0}})) return 2;
    fl_seed(1);
    fl_scope all = fl_scope_begin();
    fl_tensor *x, *y;
    draw(&x, &y);
    fl_nn_module *net = make_net(), *other = make_net();
    fl_nn_print(net);
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(net), .lr = 0.05);
    for (int step = 1; step <= STEPS; step++) {
        fl_scope s = fl_scope_begin();
        fl_var *score = fl_nn_forward(net, fv_const(x));
        fl_var *loss = fv_binary_cross_entropy_with_logits(score, fv_const(y), FL_MEAN);
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_step(optim);
        if (step % 50 == 0) printf("step %3d: loss %.4f\n", step, fl_item(fv_value(loss)));
        fl_scope_end(&s);
    }
    fl_nn_train(net, false);
    fl_nn_train(other, false);
    fl_no_grad(true);
    fl_tensor *scores = fv_value(fl_nn_forward(net, fv_const(x)));
    fl_tensor *agree = fl_eq(fl_cast(fl_gt(scores, fl_num(0)), FL_F32), y);
    const double right = 100 * fl_item(fl_mean(fl_cast(agree, FL_F32), FL_ALL_AXES));
    printf("%.1f %% of the points are right\n", right);

    /* Parameters and buffers go by their paths: 0.middle, 0.log_width, 0.mean, 1.weight, 1.bias. */
    char file[256];
    snprintf(file, sizeof file, "%s/fl_custom_layer_%.0f.safetensors", P_tmpdir, fl_data_now() * 1e9);
    const bool saved = fl_nn_save(net, file) && fl_nn_load(other, file);
    remove(file);
    fl_tensor *same = fl_eq(fv_value(fl_nn_forward(other, fv_const(x))), scores);
    const double equal = saved ? fl_item(fl_mean(fl_cast(same, FL_F32), FL_ALL_AXES)) : 0;
    printf("saved and read by another net: %s\n", equal == 1 ? "the same scores" : "other scores");

    fl_quiet(+1); /* the program goes on: what a wrong shape says */
    const bool refused = !fl_nn_forward(net, fv_const(fl_zeros(FL_SHAPE(5, 3), FL_F32)));
    printf("%s\n", fl_error() ? fl_error() : "");
    fl_error_clear();
    fl_quiet(-1);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_nn_free(other);
    fl_scope_end(&all);
    return !(right > 90 && equal == 1 && refused);
}
/* MIT licence: see LICENSE. */
