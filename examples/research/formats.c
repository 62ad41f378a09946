/* examples/research/formats.c - fp8, fp6, fp4, MX blocks, posit16 and bf16 rounded at random, as dtypes

   make research-formats [ARGS="--convert FILE"]
   python3 tests/python/test_number_formats.py      compares with ml_dtypes, bit for bit (after make)

   formats.h makes 20 dtypes of the two functions that fl asks for, pack and unpack, over a table of formats.
   - a table: bits, the largest and the smallest number, the error of normal numbers, and of a linear layer
     whose weights have the dtype, the time to pack and unpack a number
   - all codes are cast to f32 and back: the program fails if one becomes another
   - 2^-10 is added a thousand times to 1. In bf16, whose step is 2^-7 there, that changes nothing if sums are
     rounded to nearest; at random, up or down, the mean is right, or the program fails (Gupta et al., Deep
     Learning with Limited Numerical Precision, ICML 2015)
   - a hash of all of these numbers

   --convert FILE writes what test_number_formats.py compares. mxfp4.c trains with these formats. */
#include "../extend/training.h"
#include "formats.h"

static struct {
    const char *convert;
    bool small;
} opt = {"", false};

/* All codes of a dtype whose elements are single numbers. */
static fl_tensor *all_codes(const fl_dtype_info *info, fl_dtype d) {
    static uint16_t wide[65536];
    static uint8_t narrow[256];
    for (int i = 0; i < 65536; i++) wide[i] = (uint16_t)i, narrow[i % 256] = (uint8_t)i;
    return info->size == 1 ? fl_from_host(narrow, FL_SHAPE(256), d)
                           : fl_from_host(wide, FL_SHAPE(65536), d);
}

/* Whether codes [n] of d, whose numbers are f32, have these codes. NaN has several, of which one is made. */
static bool returns(fl_tensor *codes, fl_tensor *numbers, const fl_dtype_info *info, int64_t n) {
    const char *before = fl_data(codes), *after = fl_data(fl_cast(numbers, codes->dtype));
    const float *x = fl_data(numbers);
    for (int64_t i = 0; before && after && i < n; i++)
        if (!isnan(x[i * info->block]) &&
            memcmp(before + i * (int64_t)info->size, after + i * (int64_t)info->size, info->size))
            return fl_fail("formats: %s: code %lld, %g, becomes another", info->name, (long long)i,
                           (double)x[i * info->block]);
    return before && after;
}

static double norm(fl_tensor *x) {
    return sqrt(fl_item(fl_sum(fl_square(x), FL_ALL_AXES)));
}

/* A line of the table, for normal numbers x [rows, columns]. */
static bool measure(int i, fl_tensor *x, uint64_t *hash) {
    const fl_dtype d = format_dtype(i);
    const fl_dtype_info *info = fl_dtype_registered(d);
    const bool blocks = info->block > 1, scale = i == FORMAT_float8_e8m0fnu;
    const double count = (double)fl_numel(x);
    fl_scope s = fl_scope_begin();
    if (scale) x = fl_abs(x);
    const double start = fl_data_now();
    fl_tensor *packed = fl_cast(x, d);
    const double middle = fl_data_now();
    fl_tensor *back = packed ? fl_cast(packed, FL_F32) : NULL;
    const double end = fl_data_now();
    fl_tensor *in = fl_normal(FL_SHAPE(32, x->shape[1]), 0, 1, FL_F32, NULL), *exact = fl_linear(in, x, NULL);
    fl_tensor *y = back ? fl_linear(in, packed, NULL) : NULL, *codes = blocks ? packed : all_codes(info, d);
    fl_tensor *numbers = y && codes ? fl_cast(codes, FL_F32) : NULL;
    const int64_t n = blocks ? fl_numel(codes) : i <= FORMAT_bfloat16 ? 1 << format_bits(&formats[i]) : 65536;
    bool ok = numbers && returns(codes, numbers, info, n);
    if (ok) {
        const float *of = fl_data(numbers);
        double low = INFINITY, high = 0, error[] = {norm(fl_sub(back, x)) / norm(x),
                                                    norm(fl_sub(y, exact)) / norm(exact)};
        for (int64_t k = 0; k < n && !blocks; k++)
            if (isfinite(of[k]) && of[k] != 0) low = fmin(low, fabsf(of[k])), high = fmax(high, fabsf(of[k]));
        *hash = training_mix(*hash, error, sizeof error);
        *hash = training_mix(*hash, fl_data(packed), info->size * (size_t)fl_numel(packed));
        printf("%-20s %6.3f ", info->name, 8 * (double)info->size / info->block);
        if (blocks) printf("%10s %10s", "", "");
        else printf("%10.3g %10.3g", low, high);
        printf(" %8.5f %8.5f %6.1f %6.1f\n", error[0], error[1], (middle - start) / count * 1e9,
               (end - middle) / count * 1e9);
    }
    fl_scope_end(&s);
    return ok;
}

/* 1 + 1000 2^-10 in bf16, by 10,000 sums at once. */
static bool small_steps(uint64_t *hash) {
    static const int kinds[] = {FORMAT_bfloat16, FORMAT_bfloat16_stochastic};
    double mean[2];
    for (int kind = 0; kind < 2; kind++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *w = fl_ones(FL_SHAPE(10000), FL_F32);
        for (int i = 0; w && i < 1000; i++, format_seed++) {
            fl_scope each = fl_scope_begin();
            fl_assign(w, fl_cast(fl_cast(fl_add(w, fl_num(0x1p-10)), format_dtype(kinds[kind])), FL_F32));
            fl_scope_end(&each);
        }
        mean[kind] = w ? fl_item(fl_mean(w, FL_ALL_AXES)) : NAN;
        fl_scope_end(&s);
    }
    *hash = training_mix(*hash, mean, sizeof mean);
    printf("1 + 1000 2^-10: %g in bf16, %.4f rounded at random, exactly %.4f\n", mean[0], mean[1],
           1 + 1000 * 0x1p-10);
    return (mean[0] == 1 && fabs(mean[1] - 1 - 1000 * 0x1p-10) < 0.01) ||
           fl_fail("formats: rounded at random, 1 + 1000 2^-10 is %g", mean[1]);
}

/* Writes to the file PATH.out, of each dtype: the f32 of the file PATH in it, and the f32 of all codes, or of
   blocks those of the file. Prints names, numbers and bytes of an element. */
static bool convert(const char *path) {
    char name[1024];
    snprintf(name, sizeof name, "%s.out", path);
    FILE *from = fopen(path, "rb"), *to = from ? fopen(name, "wb") : NULL;
    bool ok = to && !fseek(from, 0, SEEK_END);
    const int64_t n = ok ? ftell(from) / 4 : 0;
    fl_tensor *x = fl_empty(FL_SHAPE(n), FL_F32);
    ok = ok && x && !fseek(from, 0, SEEK_SET) && fread(fl_data(x), 4, (size_t)n, from) == (size_t)n;
    for (int i = 0; ok && i < FORMAT_COUNT; i++) {
        const fl_dtype d = format_dtype(i);
        const fl_dtype_info *info = fl_dtype_registered(d);
        fl_tensor *packed = fl_cast(x, d), *codes = info->block > 1 ? packed : all_codes(info, d);
        fl_tensor *numbers = packed && codes ? fl_cast(codes, FL_F32) : NULL;
        ok = numbers && fwrite(fl_data(packed), info->size, (size_t)fl_numel(packed), to) &&
             fwrite(fl_data(numbers), 4, (size_t)fl_numel(numbers), to);
        printf("%s %d %zu\n", info->name, info->block, info->size);
    }
    if (from) fclose(from);
    if (to && fclose(to)) ok = false;
    return ok || fl_error() || fl_fail("formats: cannot read f32 from %s, or write %s", path, name);
}

int main(int argc, char **argv) {
    const argument list[] = {{"convert", .text = &opt.convert, .about = "file of f32, for a comparison"},
                             {"small", .on = &opt.small, .about = "fewer numbers"},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    const double start = fl_data_now();
    uint64_t hash = TRAINING_HASH;
    fl_seed(1);
    fl_tensor *x = fl_normal(FL_SHAPE(opt.small ? 64 : 4096, 256), 0, 1, FL_F32, NULL);
    bool ok = x != NULL;
    if (ok && *opt.convert) {
        ok = convert(opt.convert);
    } else if (ok) {
        puts("dtype                  bits   smallest    largest    error  product   pack unpack [ns]");
        for (int i = 0; ok && i < FORMAT_COUNT; i++) ok = measure(i, x, &hash);
        ok = ok && small_steps(&hash);
        if (ok) printf("hash %016llx\n%.1f s\n", (unsigned long long)hash, fl_data_now() - start);
    }
    if (!ok) fprintf(stderr, "%s\n", fl_error());
    return !ok;
}
/* MIT licence: see LICENSE. */
