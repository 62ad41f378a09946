/* test_debug.c - what FL_DEBUG adds: the family as one file, with its kernels in short */
#define FL_STATIC
#define FL_DEBUG
#define FL_QUICK
#include "../fl_autograd.h"
#include "test.h"

static void let_return(const char *text, void *user) { (void)text, (void)user; }

TEST(a_tensor_after_its_scope) {
    fl_on_error(let_return, NULL);
    fl_scope outer = fl_scope_begin(), s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32), *kept = fl_keep(fl_ones(FL_SHAPE(2, 3), FL_F32));
    fl_var *v = fv_param(kept);
    fl_scope_end(&s);
    fl_ones(FL_SHAPE(5), FL_F64); /* would have come to x's place */
    CHECK(!fl_add(x, kept));
    CHECK_ERROR("fl_add: an operand is used after its scope ended");
    CHECK(!fl_sum(x, FL_ALL_AXES));
    CHECK_ERROR("fl_sum: an operand is used after its scope ended");
    CHECK(!fl_print(x));
    CHECK_ERROR("used after its scope ended");
    CHECK(!fv_exp(v));
    CHECK_ERROR("used after its scope ended");
    CHECK(fl_item(fl_sum(kept, FL_ALL_AXES)) == 6);
    fl_drop(kept);
    CHECK(!fl_neg(kept));
    CHECK_ERROR("fl_neg: an operand is used after its scope ended, or after fl_drop");
    for (int i = 0; i < 100000; i++) { /* those that are marked are bounded */
        fl_scope step = fl_scope_begin();
        fl_ones(FL_SHAPE(3), FL_F32);
        fl_scope_end(&step);
    }
    CHECK(fl_live() < 20000);
    fl_scope_end(&outer);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
