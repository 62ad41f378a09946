/* test_blocks.c - registered dtypes: numbers packed in blocks, and single ones */
#include "../examples/extend/naive.h"
#include "../fl_all.h"
#include "../kernels/fl_math.h"
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
    CHECK(!strcmp(fl_dtype_name(q->dtype), "q8") && fl_dtype_by_name("q8") == fl_q8());
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

/* Root of the mean square of what packing changes, over that of x. */
static double relative_error(fl_tensor *x, fl_dtype d) {
    fl_tensor *off = fl_sub(fl_cast(fl_cast(x, d), FL_F32), x);
    return sqrt(fl_item(fl_sum(fl_mul(off, off), FL_ALL_AXES)) / fl_item(fl_sum(fl_mul(x, x), FL_ALL_AXES)));
}

/* Beside ggml's reference quantisers on the same numbers: normal ones, their magnitudes, cubes, and channels
   of seven sizes. */
TEST(k_blocks_are_nearer_than_the_reference) {
    fl_scope s = fl_scope_begin();
    fl_tensor *x = normal(FL_SHAPE(7, 16, 1024)), *sizes = fl_arange(1, 8, 1, FL_F32);
    fl_tensor *of[] = {x, fl_abs(x), fl_mul(fl_mul(x, x), x),
                       fl_mul(x, fl_reshape(sizes, FL_SHAPE(7, 1, 1)))};
    static const double reference[4][2] = {
        {0.07146, 0.01776}, {0.04224, 0.01773}, {0.09030, 0.02467}, {0.07146, 0.01778}};
    for (int i = 0; i < 4; i++) {
        const double q4 = relative_error(of[i], fl_q4_k()), q6 = relative_error(of[i], fl_q6_k());
        printf("q4_k %.5f (ggml %.5f), q6_k %.5f (ggml %.5f)\n", q4, reference[i][0], q6, reference[i][1]);
        CHECK(q4 > 0.01 && q4 < reference[i][0] && q6 > 0.01 && q6 < reference[i][1]);
    }
    fl_scope_end(&s);
}

/* Blocks of one number, of zeros, of numbers past f16 and below it, of infinities and NaN. */
TEST(k_blocks_of_special_numbers) {
    static const float values[] = {0,      1,      -1,       65504,     -3e38f, 1e-7f,
                                   1e-30f, 1e-44f, INFINITY, -INFINITY, NAN};
    const fl_dtype dtypes[] = {fl_q4_k(), fl_q6_k()};
    for (int i = 0; i < 2 * 11 * 3; i++) {
        fl_scope s = fl_scope_begin();
        const float v = values[i / 2 % 11];
        float x[256], y[256];
        for (int k = 0; k < 256; k++)
            x[k] = i / 22 == 0 ? v : i / 22 == 1 ? (k == 77 ? v : 0) : k % 3 ? v : 1;
        fl_tensor *q = fl_cast(fl_from_host(x, FL_SHAPE(256), FL_F32), dtypes[i % 2]);
        CHECK(fl_to_host(fl_cast(q, FL_F32), y, sizeof y));
        const bool near = fabsf(v) <= 1e5f && fabsf(v) > 1e-4f;
        bool good = true;
        for (int k = 0; k < 256; k++)
            good = good && isfinite(y[k]) && (!near || fabsf(y[k] - x[k]) <= 0.07f * fmaxf(1, fabsf(v)));
        if (!CHECK(good)) printf("%s: %g, %d\n", fl_dtype_name(dtypes[i % 2]), (double)v, i / 22);
        fl_scope_end(&s);
    }
}

static void signs_pack(const float *x, void *blocks, int64_t n);
static void signs_unpack(const void *blocks, float *x, int64_t n);

/* A weight [n, k] of that dtype; of q5_k, which is only read, random blocks of scales 2^-10. */
static fl_tensor *stored_weight(int64_t n, int64_t k, fl_dtype d) {
    if (d != fl_q5_k()) return fl_cast(normal(FL_SHAPE(n, k)), d);
    fl_rng rng = {3, 0};
    fl_tensor *bytes = fl_cast(fl_randint(FL_SHAPE(n * k / 256, 176), 0, 256, &rng), FL_U8);
    fl_assign(fl_slice(bytes, 1, 0, 4, 2), fl_zeros(FL_SHAPE(1), FL_U8));
    fl_assign(fl_slice(bytes, 1, 1, 4, 2), fl_full(FL_SHAPE(1), 0x14, FL_U8));
    fl_tensor *w = fl_from_host(fl_map(bytes, FL_READ), FL_SHAPE(n, k / 256), d);
    fl_unmap(bytes, FL_READ);
    return w;
}

/* Of all dtypes, of sizes around those of strips and of groups of rows: what the product of the converted
   weight is. */
TEST(stored_weights_are_read_as_they_lie) {
    static const int64_t rows[] = {1, 2, 3, 7, 8, 9}, outs[] = {1, 4, 37}, ins[] = {32, 1024, 1056, 2080};
    const fl_dtype dtypes[] = {FL_F16, FL_BF16, fl_q8(), fl_q4(), fl_q4_k(), fl_q5_k(), fl_q6_k(),
                               fl_dtype_register(&(fl_dtype_info){"sign8", 5, 8, signs_unpack, signs_pack})};
    for (int i = 0; i < 6 * 3 * 4 * 8; i++) {
        fl_scope s = fl_scope_begin();
        const int64_t m = rows[i % 6], n = outs[i / 6 % 3],
                      k = ins[i / 18 % 4] * (i / 72 >= 4 && i / 72 <= 6 ? 8 : 1); /* blocks of 256 */
        fl_tensor *x = normal(FL_SHAPE(m, k)), *w = stored_weight(n, k, dtypes[i / 72]);
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
    CHECK(d >= FL_DTYPE_COUNT && fl_dtype_register(&info) == d && fl_dtype_by_name("sign8") == d);
    CHECK(fl_dtype_wide(d) == FL_F32 && !fl_dtype_is_float(d));
    CHECK(fl_dtype_registered(d)->block == 8 && fl_dtype_registered(FL_F32) == NULL);
    const float x[] = {1, -1, 1, -1, -1, 1, 1, 1}, all = 2;
    fl_tensor *q = fl_cast(fl_mul(fl_from_host(x, FL_SHAPE(8), FL_F32), fl_num(all)), d);
    CHECK(same(fl_cast(q, FL_I32), fl_mul(fl_from_host(x, FL_SHAPE(8), FL_F32), fl_num(all))));
    fl_scope_end(&s);
}

/* ---- dtypes whose elements are single numbers: f8_e5m2, the upper half of an f16 ---- */

static void e5m2_pack(const float *x, void *blocks, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const uint32_t half = flm_f32_to_f16(x[i]);
        ((uint8_t *)blocks)[i] = (uint8_t)((half + 127 + (half >> 8 & 1)) >> 8); /* ties to even */
    }
}

static void e5m2_unpack(const void *blocks, float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = flm_f16_to_f32((uint16_t)(((const uint8_t *)blocks)[i] << 8));
}

static fl_dtype e5m2(void) {
    return fl_dtype_register(&(fl_dtype_info){"f8_e5m2", 1, 1, e5m2_unpack, e5m2_pack});
}

TEST(single_numbers_are_read_and_written) {
    fl_scope s = fl_scope_begin();
    const fl_dtype d = e5m2();
    uint8_t byte = 0;
    fl_number_store(d, &byte, (fl_number){true, -1.75, 0});
    CHECK_EQ_INT(byte, 0xbf);
    CHECK_NEAR(fl_number_load(d, &byte).f, -1.75, 0);
    fl_tensor *x = fl_cast(fl_arange(0, 12, 1, FL_F32), d), *one = fl_select(x, 0, 7);
    CHECK_NEAR(fl_item(one), 7, 0);
    CHECK_EQ_INT(fl_item_int(one), 7);
    CHECK_NEAR(fl_item(fl_cast(fl_num(2.5), d)), 2.5, 0);
    CHECK(x && fl_assign(x, fl_num(3)) && fl_item(fl_sum(fl_cast(x, FL_F32), FL_ALL_AXES)) == 36);
    char text[100];
    CHECK(fl_format(fl_full(FL_SHAPE(2), 1.5, d), text, sizeof text) > 0 && strstr(text, "1.5000"));
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

/* On the backend that is the default one now; returns to the cpu. */
static void make_and_select(void) {
    fl_scope s = fl_scope_begin();
    const fl_dtype dtypes[] = {fl_q8(), fl_q4(), e5m2()};
    for (int i = 0; i < 3; i++) {
        const fl_dtype d = dtypes[i];
        const int block = fl_dtype_registered(d)->block;
        fl_tensor *full = fl_full(FL_SHAPE(3, 2), 1.5, d), *zeros = fl_zeros(FL_SHAPE(2), d);
        CHECK(full && full->dtype == d);
        CHECK(largest(fl_sub(fl_cast(full, FL_F32), fl_full(FL_SHAPE(3, 2 * block), 1.5, FL_F32))) < 1e-3);
        CHECK(zeros && same(fl_cast(zeros, FL_F32), fl_zeros(FL_SHAPE(2 * block), FL_F32)));
        fl_tensor *like = fl_cast(fl_full_like(full, -2), FL_F32);
        CHECK(largest(fl_add(like, fl_num(2))) < 1e-3 && like->shape[1] == 2 * block);
        fl_tensor *x = fl_cast(fl_reshape(fl_arange(0, 5 * 2 * block, 1, FL_F32), FL_SHAPE(5, 2 * block)), d);
        fl_tensor *rows = fl_from_host((int64_t[]){4, 0, 4}, FL_SHAPE(3), FL_I64), *wide = fl_cast(x, FL_F32);
        CHECK(same(fl_cast(fl_index_select(x, 0, rows), FL_F32), fl_index_select(wide, 0, rows)));
        fl_tensor *turned = fl_transpose(x, 0, 1), *column = fl_full(FL_SHAPE(1), 1, FL_I64);
        CHECK(same(fl_cast(fl_transpose(fl_index_select(turned, 0, column), 0, 1), FL_F32),
                   fl_slice(wide, 1, block, 2 * block, 1)));
    }
    CHECK_NO_ERROR();
    fl_scope_end(&s);
}

TEST(blocks_are_made_and_selected) {
    make_and_select();
    REQUIRE(fl_backend_use(fl_backend_naive(), NULL) && fl_backend_set_default("naive"));
    make_and_select();
    fl_backend_set_default("cpu");
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

TEST(modules_are_stored_in_blocks) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_sequential(fl_nn_linear(32, 64), fl_nn_relu(), fl_nn_linear(64, 8));
    fl_var *x = fv_const(normal(FL_SHAPE(3, 32)));
    fl_tensor *y = fv_value(fl_nn_forward(m, x));
    REQUIRE(fl_nn_store(m, fl_q8()));
    const fl_var *w = fl_nn_get_param(m, "0.weight");
    CHECK(w->value->dtype == fl_q8() && !w->requires_grad && w->value->shape[1] == 1);
    CHECK(largest(fl_sub(fv_value(fl_nn_forward(m, x)), y)) < 0.05);
    CHECK(fl_nn_cast(m, FL_F32) && fl_nn_get_param(m, "0.weight")->value->shape[1] == 32);
    CHECK(largest(fl_sub(fv_value(fl_nn_forward(m, x)), y)) < 0.05);
    REQUIRE(fl_nn_cast(m, e5m2()));
    CHECK(fl_nn_get_param(m, "2.bias")->value->dtype == e5m2());
    REQUIRE(fl_nn_cast(m, FL_F32));
    CHECK(largest(fl_sub(fv_value(fl_nn_forward(m, x)), y)) < 0.5);
    test_errors_return();
    CHECK(!fl_nn_cast(m, fl_q8())); /* the last bias has 8 numbers */
    CHECK_ERROR("must be a multiple of 32");
    CHECK(fl_nn_get_param(m, "0.weight")->value->dtype == FL_F32);
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

TEST(safetensors_of_registered_dtypes) {
    static const char path[] = "build/test_blocks.safetensors";
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_cast(normal(FL_SHAPE(4, 6)), e5m2());
    const fl_data_named_tensor named = {"w", x};
    REQUIRE(fl_data_save_safetensors(path, &named, 1, NULL, 0));
    for (int mapped = 0; mapped < 2; mapped++) {
        fl_data_file *f = mapped ? fl_data_map_safetensors(path, true) : fl_data_open_safetensors(path);
        fl_tensor *y = f ? fl_data_read(f, "w") : NULL;
        CHECK(y && y->dtype == e5m2() && same(fl_cast(y, FL_F32), fl_cast(x, FL_F32)));
        fl_data_close(f);
    }
    test_errors_return();
    const fl_data_named_tensor blocks = {"w", fl_zeros(FL_SHAPE(2), fl_q8())};
    CHECK(!fl_data_save_safetensors(path, &blocks, 1, NULL, 0));
    CHECK_ERROR("safetensors has no dtype q8");
    static const char header[] = "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}    ";
    FILE *f = fopen(path, "wb");
    REQUIRE(f);
    const uint64_t n = sizeof header - 1;
    fwrite(&n, 8, 1, f), fwrite(header, 1, sizeof header, f);
    fclose(f);
    CHECK(!fl_data_open_safetensors(path));
    CHECK_ERROR("tensor 'w' has the dtype 'F8_E4M3': register 'f8_e4m3' (fl_dtype_register)");
    remove(path);
    fl_scope_end(&s);
    CHECK_EQ_INT(fl_live_tensors(), 0);
}

/* Runs in a process of its own: it fills the table. */
TEST(wrong_use_of_blocks) {
    fl_scope s = fl_scope_begin();
    test_errors_return();
    fl_tensor *x = normal(FL_SHAPE(4, 33)), *q = fl_cast(normal(FL_SHAPE(4, 64)), fl_q8());
    CHECK(fl_cast(x, fl_q8()) == NULL);
    CHECK_ERROR("the last axis of shape [4, 33] must be a multiple of 32");
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
    CHECK(fl_scatter(q, 0, fl_zeros(FL_SHAPE(1, 2), FL_I64), fl_slice(q, 0, 0, 1, 1)) == NULL);
    CHECK_ERROR("fl_scatter: takes no blocks");
    CHECK(fl_where(fl_ones(FL_SHAPE(1, 1), FL_B8), q, q) == NULL);
    CHECK_ERROR("fl_where: takes no blocks, as dtype q8 has");
    CHECK(fl_gather(q, 0, fl_full(FL_SHAPE(1, 2), 4, FL_I64)) == NULL);
    CHECK_ERROR("index 4 is out of range");
    CHECK(isnan(fl_item(fl_slice(fl_slice(q, 0, 0, 1, 1), 1, 0, 1, 1))));
    CHECK_ERROR("fl_item: an element of q8 is a block of 32 numbers");
    CHECK(fl_dtype_register(NULL) == FL_DTYPE_NONE);
    CHECK_ERROR("fl_dtype_register");
    CHECK(fl_cast(normal(FL_SHAPE(1, 256)), fl_q2_k()) == NULL);
    CHECK_ERROR("cannot cast f32 to q2_k, which has no `pack` function");
    static char names[65][8];
    fl_dtype last = FL_B8;
    for (int i = 0; i < 65 && last; i++) {
        snprintf(names[i], sizeof names[i], "d%d", i);
        last = fl_dtype_register(&(fl_dtype_info){names[i], 5, 8, signs_unpack, signs_pack});
        if (!last) break;
        fl_tensor *many = fl_cast(fl_ones(FL_SHAPE(2, 8), FL_F32), last);
        fl_tensor *y = fl_cast(fl_index_select(many, 0, fl_full(FL_SHAPE(1), 1, FL_I64)), FL_F32);
        CHECK(y && y->shape[1] == 8 && fl_item(fl_sum(y, FL_ALL_AXES)) == 8);
        CHECK(!fl_is_narrow(many) && !fl_add(many, many));
        if (!CHECK_ERROR(names[i])) printf("  dtype %d\n", (int)last);
    }
    CHECK(last == FL_DTYPE_NONE);
    CHECK_ERROR("the limit of 64 dtypes is reached");
    fl_scope_end(&s);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
