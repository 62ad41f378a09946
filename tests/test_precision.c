/* test_precision.c - mixed precision: narrow operands of records, casts of modules, ops by policy, loss scaling */
#include "../fl.h"
#include "test.h"

/* ---- records keep narrow operands where a slot takes them; statistics are f32 ---- */

static int seen; /* calls of the slots below */

/* A slot of a device that reads and writes halves: it checks what it gets, and composes. */
static bool takes_halves(const fl_backend *self, const fl_call *c) {
    static const struct { const char *op, *in, *out; } rows[] = { /* h: bf16, w: f32, i: i64 */
        {"layer_norm", "hww", "hww"},       {"layer_norm_grad", "hwwwh", "hww"},
        {"batch_norm", "hwwhww", "hww"},    {"batch_norm_grad", "hwwwhh", "hwwh"},
        {"ctc", "hiii", "w"},               {"ctc_grad", "hiiiww", "h"},
    };
    (void)self;
    fl_scope s = fl_scope_begin();
    fl_call wide = *c;
    for (int r = 0; r < 6; r++) {
        if (strcmp(rows[r].op, fl_op_get_info(c->op)->name)) continue;
        seen |= 1 << r;
        for (int i = 0; i < c->n_in; i++) {
            const char k = rows[r].in[i];
            if (!c->in[i]->weak) CHECK(c->in[i]->dtype == (k == 'h' ? FL_BF16 : k == 'w' ? FL_F32 : FL_I64));
            if (c->in[i]->dtype == FL_BF16) wide.in[i] = fl_cast(c->in[i], FL_F32);
        }
        for (int i = 0; i < c->n_out; i++)
            if (c->out[i]) CHECK(c->out[i]->dtype == (rows[r].out[i] == 'h' ? FL_BF16 : FL_F32));
    }
    const bool ok = fl_call_compose(&wide);
    fl_scope_end(&s);
    return ok;
}

enum { NORMS = 5, NORM_RESULTS = 4 * NORMS };

/* Results and gradients of each norm and of ctc in bf16. */
static void narrow_work(fl_tensor **out) {
    fl_rng rng = {3, 0};
    fl_tensor *steps = fl_full(FL_SHAPE(2), 5, FL_I64), *lengths = fl_full(FL_SHAPE(2), 2, FL_I64);
    fl_tensor *labels = fl_add(fl_reshape(fl_arange(0, 4, 1, FL_I64), FL_SHAPE(2, 2)), fl_int(1));
    for (int i = 0; i < NORMS; i++) {
        fl_shape shape = i < 4 ? FL_SHAPE(5, 2, 6, 6) : FL_SHAPE(5, 2, 6);
        fl_var *x = fv_param(fl_normal(shape, 0.5, 2, FL_BF16, &rng));
        fl_var *add = fv_param(fl_normal(shape, 0, 1, FL_BF16, &rng));
        fl_var *w = fv_param(fl_normal(FL_SHAPE(i < 2 ? 6 : 2), 1, 0.2, FL_F32, &rng));
        fl_var *y = i == 0   ? fv_layer_norm(x, 1, w, NULL, 1e-5)
                    : i == 1 ? fv_rms_norm(x, 1, w, 1e-5)
                    : i == 2 ? fv_batch_norm(x, w, w, .train = true)
                    : i == 3 ? fv_batch_norm_add(x, w, w, add, .train = true, .relu = true)
                             : fv_ctc_loss(fv_log_softmax(x, 2), labels, steps, lengths);
        CHECK(y && y->value->dtype == FL_BF16);
        CHECK(fl_backward(y, .grad = y ? fl_full_like(y->value, 0.5) : NULL));
        out[4 * i] = fv_value(y);
        out[4 * i + 1] = fv_grad(x);
        out[4 * i + 2] = fv_grad(w);
        out[4 * i + 3] = fv_grad(add);
    }
}

TEST(slots_get_narrow_operands) {
    static const char *const ops[] = {"layer_norm", "layer_norm_grad", "batch_norm",
                                      "batch_norm_grad", "ctc", "ctc_grad"};
    fl_backend mock = *fl_backend_cpu(), old;
    fl_tensor *want[NORM_RESULTS] = {0}, *got[NORM_RESULTS] = {0};
    fl_scope s = fl_scope_begin();
    narrow_work(want);
    for (int i = 0; i < 6; i++)
        REQUIRE(fl_backend_set(&mock, fl_op_named(ops[i]), takes_halves, FL_SLOT_NARROW));
    REQUIRE(fl_backend_use(&mock, &old));
    narrow_work(got);
    REQUIRE(fl_backend_use(&old, NULL));
    CHECK_EQ_INT(seen, 63);
    for (int i = 0; i < NORM_RESULTS; i++) {
        if (!want[i] && !got[i]) continue;
        REQUIRE(want[i] && got[i] && want[i]->dtype == got[i]->dtype);
        fl_tensor *off = fl_abs(fl_sub(fl_cast(got[i], FL_F32), fl_cast(want[i], FL_F32)));
        const double size = fl_item(fl_amax(fl_abs(fl_cast(want[i], FL_F32)), FL_ALL_AXES));
        if (!CHECK(fl_item(fl_amax(off, FL_ALL_AXES)) <= 0.008 * (1 + size))) printf("  result %d\n", i);
    }
    fl_scope_end(&s);
    CHECK_NO_ERROR();
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
