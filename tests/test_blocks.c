/* test_blocks.c - registered dtypes: numbers packed in blocks, q8 and one of the test's own */
#include "../fl.h"
#include "test.h"
#include <math.h>
#include <string.h>

static fl_tensor *normal(fl_shape shape) {
    fl_rng rng = {7, 0};
    return fl_normal(shape, 0, 1, FL_F32, &rng);
}

static double largest(fl_tensor *a) {
    return fl_item(fl_amax(fl_abs(a), FL_ALL_AXES));
}

static bool same(fl_tensor *a, fl_tensor *b) {
    return a && b && fl_item(fl_all(fl_eq(a, b), FL_ALL_AXES)) == 1;
}

TEST(q8_keeps_half_a_step) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_mul(normal(FL_SHAPE(3, 5, 64)), fl_num(100)), *q = fl_cast(x, fl_q8());
    CHECK_EQ_INT(q->shape[2], 2);
    CHECK_EQ_INT(fl_dtype_size(q->dtype), 34);
    CHECK(!strcmp(fl_dtype_name(q->dtype), "q8") && fl_dtype_named("q8") == fl_q8());
    fl_tensor *y = fl_cast(q, FL_F32);
    /* scale / 2, the f16 rounding of the scale (127 of them), and that of a number past 127 steps */
    fl_tensor *blocks = fl_reshape(x, FL_SHAPE(-1, 32));
    fl_tensor *step = fl_div(fl_amax(fl_abs(blocks), FL_AXES_KEEP(1)), fl_num(127));
    fl_tensor *off = fl_abs(fl_sub(fl_reshape(y, FL_SHAPE(-1, 32)), blocks));
    CHECK(fl_item(fl_all(fl_le(off, fl_mul(step, fl_num(0.57))), FL_ALL_AXES)) == 1);
    CHECK(largest(fl_sub(y, x)) > 0);
    CHECK(same(fl_cast(fl_cast(y, fl_q8()), FL_F32), y)); /* what it holds it keeps */
    fl_scope_end(&s);
}

TEST(q8_layout_and_special_values) {
    fl_scope s = fl_scope_begin();
    float x[96] = {0};
    unsigned char bytes[3 * 34];
    for (int i = 0; i < 32; i++) x[i] = (float)(i - 16);
    x[32] = INFINITY, x[33] = -1, x[34] = NAN;
    fl_tensor *q = fl_cast(fl_from_host(x, FL_SHAPE(96), FL_F32), fl_q8());
    CHECK(fl_to_host(q, bytes, sizeof bytes));
    CHECK_EQ_INT((int8_t)bytes[2], -127);                 /* -16 of a scale of 16 / 127 */
    CHECK_EQ_INT((int8_t)bytes[2 + 16], 0);
    CHECK_EQ_INT(bytes[34] | bytes[35] << 8, 0x7bff);     /* the largest f16 */
    CHECK_EQ_INT((int8_t)bytes[36], 127);
    CHECK_EQ_INT((int8_t)bytes[38], 0);
    for (int i = 68; i < 102; i++) CHECK_EQ_INT(bytes[i], 0);
    fl_tensor *again = fl_from_host(bytes, FL_SHAPE(3), fl_q8());
    CHECK(same(fl_cast(again, FL_F32), fl_cast(q, FL_F32)));
    fl_scope_end(&s);
}

TEST(blocks_are_elements_of_views_and_copies) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = normal(FL_SHAPE(4, 6, 96)), *q = fl_cast(x, fl_q8()), *y = fl_cast(q, FL_F32);
    CHECK(same(fl_cast(fl_slice(q, 1, 5, 0, -2), FL_F32), fl_slice(y, 1, 5, 0, -2)));
    CHECK(same(fl_cast(fl_slice(q, 2, 1, 3, 1), FL_F32), fl_slice(y, 2, 32, 96, 1)));
    CHECK(same(fl_cast(fl_transpose(q, 0, 1), FL_F32), fl_transpose(y, 0, 1)));
    fl_tensor *joined = fl_concat((fl_tensor *[]){q, fl_select(fl_unsqueeze(q, 0), 0, 0)}, 2, 0);
    CHECK(same(fl_cast(joined, FL_F32), fl_concat((fl_tensor *[]){y, y}, 2, 0)));
    fl_tensor *copy = fl_clone(fl_transpose(q, 0, 2));
    CHECK(same(fl_cast(fl_transpose(copy, 0, 2), FL_F64), y));
    CHECK(fl_assign(fl_select(copy, 1, 3), fl_select(copy, 1, 2)) != NULL);
    CHECK(same(fl_cast(fl_select(copy, 1, 3), FL_F32), fl_cast(fl_select(copy, 1, 2), FL_F32)));
    char text[2000];
    CHECK(fl_format(fl_select(fl_select(q, 0, 0), 0, 0), text, sizeof text) > 0);
    CHECK_STR(text, "dtype=q8");
    CHECK_EQ_INT(fl_numel(fl_cast(fl_empty(FL_SHAPE(0, 64), FL_F32), fl_q8())), 0);
    fl_scope_end(&s);
}

TEST(q8_feeds_matmul) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = normal(FL_SHAPE(7, 64)), *w = normal(FL_SHAPE(64, 96)), *q = fl_cast(w, fl_q8());
    fl_tensor *exact = fl_matmul(x, w), *got = fl_matmul(x, q);
    CHECK(same(got, fl_matmul(x, fl_cast(q, FL_F32))));
    double off = largest(fl_sub(got, exact));
    CHECK(off > 0 && off < 0.05 * largest(exact));
    fl_tensor *packed = fl_cast(x, fl_q8());
    CHECK(same(fl_matmul(packed, w), fl_matmul(fl_cast(packed, FL_F32), w)));
    fl_tensor *weight = fl_cast(normal(FL_SHAPE(5, 64)), fl_q8()); /* [out, in / 32] */
    CHECK(largest(fl_sub(fl_linear(x, weight, NULL), fl_linear(x, fl_cast(weight, FL_F32), NULL))) < 1e-4);
    fl_scope_end(&s);
}

TEST(q4_is_the_nearest_of_sixteen_steps) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = normal(FL_SHAPE(4, 64)), *y = fl_cast(fl_cast(x, fl_q4()), FL_F32);
    fl_tensor *top = fl_amax(fl_abs(fl_reshape(x, FL_SHAPE(4, 2, 32))), FL_AXES_KEEP(-1));
    fl_tensor *off = fl_reshape(fl_abs(fl_sub(x, y)), FL_SHAPE(4, 2, 32));
    CHECK(largest(fl_div(off, top)) <= 1.0 / 8 + 1e-3); /* the far end of the other sign has 7 steps */
    CHECK(same(fl_cast(fl_cast(y, fl_q4()), FL_F32), y));
    const float ends[32] = {-8, 7, 6.6f, 0.4f, -0.6f, -8.0f};
    float back[32];
    CHECK(fl_to_host(fl_cast(fl_cast(fl_from_host(ends, FL_SHAPE(32), FL_F32), fl_q4()), FL_F32), back,
                     sizeof back));
    CHECK(back[0] == -8 && back[1] == 7 && back[2] == 7 && back[3] == 0 && back[4] == -1 && back[31] == 0);
    fl_scope_end(&s);
}

static void signs_pack(const float *x, void *blocks, int64_t n);
static void signs_unpack(const void *blocks, float *x, int64_t n);

/* Of all dtypes, of sizes around those of strips and of groups of rows: what the product of the converted
   weight is. */
TEST(stored_weights_are_read_as_they_lie) {
    static const int64_t rows[] = {1, 2, 3, 7, 8, 9}, outs[] = {1, 4, 37}, ins[] = {32, 1024, 1056, 2080};
    const fl_dtype dtypes[] = {FL_F16, FL_BF16, fl_q8(), fl_q4(),
                               fl_dtype_register(&(fl_dtype_info){"sign8", 5, 8, signs_unpack, signs_pack})};
    for (int i = 0; i < 6 * 3 * 4 * 5; i++) {
        fl_scope s = fl_scope_begin();
        const int64_t m = rows[i % 6], n = outs[i / 6 % 3], k = ins[i / 18 % 4];
        fl_tensor *x = normal(FL_SHAPE(m, k)), *w = fl_cast(normal(FL_SHAPE(n, k)), dtypes[i / 72]);
        fl_tensor *want = fl_matmul(x, fl_transpose(fl_cast(w, FL_F32), 0, 1));
        fl_tensor *y = fl_linear(x, w, NULL);
        if (!CHECK(y && largest(fl_sub(y, want)) <= 2e-6 * (double)k))
            printf("%s: %d rows of %d, %d out: %g off\n", fl_dtype_name(w->dtype), (int)m, (int)k, (int)n,
                   largest(fl_sub(y, want)));
        fl_scope_end(&s);
    }
}

/* Eight signs in a byte and an f32 size: 1-bit blocks. */
static void signs_pack(const float *x, void *blocks, int64_t n) {
    char *to = blocks;
    for (int64_t b = 0; b < n; b++, x += 8, to += 5) {
        float size = 0;
        int bits = 0;
        for (int i = 0; i < 8; i++) size += fabsf(x[i]) / 8, bits |= (x[i] < 0) << i;
        memcpy(to, &size, 4);
        to[4] = (char)bits;
    }
}

static void signs_unpack(const void *blocks, float *x, int64_t n) {
    const char *from = blocks;
    for (int64_t b = 0; b < n; b++, x += 8, from += 5) {
        float size;
        memcpy(&size, from, 4);
        for (int i = 0; i < 8; i++) x[i] = from[4] >> i & 1 ? -size : size;
    }
}

TEST(a_dtype_of_the_test) {
    fl_scope s = fl_scope_begin();
    const fl_dtype_info info = {"sign8", 5, 8, signs_unpack, signs_pack};
    fl_dtype d = fl_dtype_register(&info);
    CHECK(d >= FL_DTYPE_COUNT && fl_dtype_register(&info) == d && fl_dtype_named("sign8") == d);
    CHECK(fl_dtype_wide(d) == FL_F32 && !fl_dtype_is_float(d));
    CHECK(fl_dtype_registered(d)->block == 8 && fl_dtype_registered(FL_F32) == NULL);
    const float x[] = {1, -1, 1, -1, -1, 1, 1, 1}, all = 2;
    fl_tensor *q = fl_cast(fl_mul(fl_from_host(x, FL_SHAPE(8), FL_F32), fl_num(all)), d);
    CHECK(same(fl_cast(q, FL_I32), fl_mul(fl_from_host(x, FL_SHAPE(8), FL_F32), fl_num(all))));
    fl_scope_end(&s);
}

/* Runs in a process of its own: it fills the table. */
TEST(wrong_use_of_blocks) {
    fl_scope s = fl_scope_begin();
    test_errors_return();
    fl_tensor *x = normal(FL_SHAPE(4, 33)), *q = fl_cast(normal(FL_SHAPE(4, 64)), fl_q8());
    CHECK(fl_cast(x, fl_q8()) == NULL);
    CHECK_ERROR("the last axis of shape [4, 33] has no whole blocks of 32");
    CHECK(fl_cast(fl_num(1), fl_q8()) == NULL);
    CHECK_ERROR("shape []");
    CHECK(fl_add(q, q) == NULL);
    CHECK_ERROR("q8");
    CHECK(fl_exp(q) == NULL);
    CHECK_ERROR("q8");
    CHECK(fl_eq(q, q) == NULL);
    CHECK_ERROR("q8");
    CHECK(fl_sum(q, FL_ALL_AXES) == NULL);
    CHECK_ERROR("q8");
    CHECK(fl_full(FL_SHAPE(2), 1, fl_q8()) == NULL);
    CHECK_ERROR("fl_fill");
    CHECK(fl_gather(q, 0, fl_zeros(FL_SHAPE(1, 2), FL_I64)) == NULL);
    CHECK(fl_error() != NULL);
    fl_error_clear();
    CHECK(isnan(fl_item(fl_slice(fl_slice(q, 0, 0, 1, 1), 1, 0, 1, 1))));
    fl_error_clear();
    CHECK(fl_dtype_register(NULL) == FL_DTYPE_NONE);
    CHECK_ERROR("fl_dtype_register");
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i",
                                        "j", "k", "l", "m", "n", "o", "p", "q"};
    fl_dtype last = FL_B8;
    for (int i = 0; i < 17 && last; i++)
        last = fl_dtype_register(&(fl_dtype_info){names[i], 5, 8, signs_unpack, signs_pack});
    CHECK(last == FL_DTYPE_NONE);
    CHECK_ERROR("one too many");
    fl_scope_end(&s);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
