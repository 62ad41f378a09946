/* conformance_fft.h - Fourier transforms against the sum they stand for, in f64

   Of every length from 1 to 64, of primes and powers of two, along every axis; then what they must
   keep: the sum of squares, and the numbers themselves on the way there and back. */

enum { FFT, IFFT, FFT2, IFFT2, RFFT, IRFFT, FFT_OPS };
static const char *const fft_names[] = {"fft", "ifft", "fft2", "ifft2", "rfft", "irfft"};

/* x, pairs of this shape without the last axis, transformed along axis. */
static array transformed(const array *x, int axis, bool inverse) {
    array y = new_array(x->shape, FL_F64);
    int64_t n = x->shape.dim[axis], step = 2;
    for (int d = axis + 1; d < x->shape.ndim - 1; d++) step *= x->shape.dim[d];
    for (int64_t e = 0; e < y.n; e += 2) {
        int64_t k = e / step % n, first = e - k * step;
        for (int64_t j = 0; j < n; j++) {
            double angle = (inverse ? 2 : -2) * M_PI * (double)(j * k % n) / (double)n;
            double re = x->f[first + j * step], im = x->f[first + j * step + 1];
            double scale = inverse ? 1 / (double)n : 1;
            y.f[e] += scale * (re * cos(angle) - im * sin(angle));
            y.f[e + 1] += scale * (re * sin(angle) + im * cos(angle));
        }
    }
    return y;
}

/* Real x as pairs; the first n / 2 + 1 along axis. */
static array half_spectrum(const array *x, int axis) {
    fl_shape s = x->shape, h;
    s.dim[s.ndim++] = 2;
    array pairs = new_array(s, FL_F64);
    for (int64_t k = 0; k < x->n; k++) pairs.f[2 * k] = x->f[k];
    array all = transformed(&pairs, axis, false);
    h = s;
    h.dim[axis] = s.dim[axis] / 2 + 1;
    array y = new_array(h, FL_F64);
    int64_t c[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < y.n; k++) {
        coords_of(h, k, c);
        y.f[k] = all.f[index_of(s, c)];
    }
    return y;
}

/* n real numbers of a half spectrum along axis */
static array from_half(const array *x, int64_t n, int axis) {
    fl_shape s = x->shape, real;
    s.dim[axis] = n;
    array all = new_array(s, FL_F64);
    int64_t c[FL_MAX_DIMS] = {0};
    for (int64_t k = 0; k < all.n; k++) {
        coords_of(s, k, c);
        bool mirror = c[axis] > n / 2;
        if (mirror) c[axis] = n - c[axis];
        double v = x->f[index_of(x->shape, c)];
        all.f[k] = mirror && k % 2 ? -v : v;
    }
    all = transformed(&all, axis, true);
    real = s;
    real.ndim--;
    array y = new_array(real, FL_F64);
    for (int64_t k = 0; k < y.n; k++) y.f[k] = all.f[2 * k];
    return y;
}

static fl_tensor *run_transform(int op, fl_tensor *x, int64_t n, int axis) {
    return op == FFT     ? fl_fft(x, axis)
           : op == IFFT  ? fl_ifft(x, axis)
           : op == FFT2  ? fl_fft2(x)
           : op == IFFT2 ? fl_ifft2(x)
           : op == RFFT  ? fl_rfft(x, axis)
                         : fl_irfft(x, n, axis);
}

static array reference_of(int op, const array *x, int64_t n, int axis) {
    if (op == RFFT) return half_spectrum(x, axis);
    if (op == IRFFT) return from_half(x, n, axis);
    array y = transformed(x, axis, op == IFFT || op == IFFT2);
    return op == FFT || op == IFFT ? y : transformed(&y, axis - 1, op == IFFT2);
}

/* s: of the complex or real numbers, without the pairs' axis. */
static void fft_case(int op, fl_dtype d, layout l, fl_shape s, int axis) {
    int64_t n = s.dim[axis];
    fl_shape in = s;
    if (op == IRFFT) in.dim[axis] = n / 2 + 1;
    if (op != RFFT) in.dim[in.ndim++] = 2;
    char text[80];
    if (!layout_fits(l, in) || !case_begin(fft_names[op], d, l, "%s %d",
                                           fl_shape_text(s, text, sizeof text), axis))
        return;
    operand x = make_operand(in, d, l, TAME);
    array want = reference_of(op, &x.a, n, axis);
    array given = new_array(want.shape, is_float(d) ? d : FL_F32);
    double most = 1, *scale = take((size_t)want.n * 8 + 8);
    memcpy(given.f, want.f, (size_t)want.n * sizeof *want.f);
    for (int64_t k = 0; k < want.n; k++) most = fmax(most, fabs(want.f[k]));
    for (int64_t k = 0; k < want.n; k++) scale[k] = most;
    double slack = composed_run ? 8 + 2 * (double)n : 8 + log2((double)n);
    fl_tensor *y = run_transform(op, x.t, n, (op == FFT && n % 2) ? axis : axis - s.ndim);
    case_end(agrees(y, &given, (tolerance){1, slack, 0}, scale, false));
}

/* Products with the DFT's matrix, where there is no slot, are quadratic: fewer lengths then. */
static bool fft_is_fast(void) {
    return !composed_run && fl_backend_has(operand_backend(), fl_op_fft);
}

static void fft_cases(fl_dtype d, layout l) {
    static const int64_t more[] = {67, 97, 127, 128, 130, 143, 169, 211, 256, 360, 509, 512, 1000};
    bool fast = fft_is_fast();
    for (int64_t n = 1; n <= 64; n += fast ? 1 : 7)
        for (int op = FFT; op < FFT_OPS; op++)
            if (op != FFT2 && op != IFFT2 && (l == DENSE || n % 7 == 1))
                fft_case(op, d, l, FL_SHAPE(n), 0);
    for (int i = 0; i < (fast ? 13 : 2) && l == DENSE; i++) {
        fft_case(FFT, d, l, FL_SHAPE(more[i]), 0);
        fft_case(RFFT, d, l, FL_SHAPE(more[i]), 0);
    }
    for (int axis = 0; axis < 3; axis++)
        for (int op = FFT; op < FFT_OPS; op++)
            if (op == FFT2 || op == IFFT2) fft_case(op, d, l, FL_SHAPE(2, 3 + axis, 7 - axis), 2);
            else fft_case(op, d, l, FL_SHAPE(4, 3, 5), axis);
}

static bool alike(fl_tensor *a, fl_tensor *b) {
    return a && b && fl_same_shape(a, b) && fl_item(fl_amax(fl_abs(fl_sub(a, b)), FL_ALL_AXES)) < 1e-12;
}

/* Options against what they stand for, and frames there and back. */
static void fft_options(void) {
    fl_scope s = fl_scope_begin();
    fl_rng rng = {5, 0};
    fl_tensor *x = fl_normal(FL_SHAPE(2, 6, 2), 0, 1, FL_F64, &rng), *cut = fl_slice(x, 1, 0, 4, 1);
    fl_tensor *more = fl_pad(x, .high = {0, 3}), *t = fl_normal(FL_SHAPE(2, 40), 0, 1, FL_F64, &rng);
    check(alike(fl_fft(x, 1, .n = 4), fl_fft(cut, 1)), "fft, n = 4 of 6");
    check(alike(fl_ifft(x, 1, .n = 9), fl_ifft(more, 1)), "ifft, n = 9 of 6");
    fl_tensor *ortho = fl_fft(x, 1, .norm = FL_FFT_ORTHO), *sixth = fl_fft(x, 1, .norm = FL_FFT_FORWARD);
    check(alike(fl_ifft(ortho, 1, .norm = FL_FFT_ORTHO),
                x) && alike(fl_ifft(sixth, 1, .norm = FL_FFT_FORWARD), x) &&
              alike(fl_mul(sixth, fl_num(6)), fl_fft(x, 1)),
          "fft's norms");
    fl_tensor *cube = fl_normal(FL_SHAPE(3, 4, 5), 0, 1, FL_F64, &rng), *half = fl_rfftn(cube);
    check(alike(half, fl_fft(fl_fft(fl_rfft(cube, 2), 1), 0)), "rfftn by axes");
    check(alike(fl_fftn(half), fl_fft(fl_fft(fl_fft(half, 2), 1), 0)), "fftn by axes");
    check(alike(fl_irfftn(half, .s = FL_SHAPE(0, 0, 5)), cube) && alike(fl_ifftn(fl_fftn(half)), half) &&
              alike(fl_irfft2(fl_rfft2(cube), .s = FL_SHAPE(4, 5)), cube),
          "fftn, rfftn and rfft2 there and back");
    for (int i = 0; i < 4; i++) {
        fl_tensor *window = fl_hann_window(8, true, FL_F64);
        fl_stft_opts o = {.hop = 2 + i % 2, .window = window, .normalized = i & 1, .two_sided = i & 2};
        fl_tensor *y = fl_stft_opt(t, 8, o);
        o.length = 40 - 2 * i;
        check(y && y->shape[1] == (i & 2 ? 8 : 5) &&
                  alike(fl_istft_opt(y, 8, o), fl_slice(t, 1, 0, o.length, 1)),
              "stft there and back");
    }
    check(!fl_error(), "no error is left");
    fl_scope_end(&s);
}

static void fft_keeps(int64_t n) {
    char text[60];
    fl_scope s = fl_scope_begin();
    fl_rng rng = {(uint64_t)n, 0};
    fl_tensor *x = fl_normal(FL_SHAPE(n, 2), 0, 1, FL_F64, &rng), *y = fl_fft(x, 0);
    double before = fl_item(fl_sum(fl_mul(x, x), FL_ALL_AXES));
    double after = fl_item(fl_sum(fl_mul(y, y), FL_ALL_AXES)) / (double)n;
    double off = fl_item(fl_amax(fl_abs(fl_sub(fl_ifft(y, 0), x)), FL_ALL_AXES));
    fl_tensor *real = fl_contiguous(fl_select(x, 1, 0));
    fl_tensor *back = fl_irfft(fl_rfft(real, 0), n, 0);
    double off_real = fl_item(fl_amax(fl_abs(fl_sub(back, real)), FL_ALL_AXES));
    snprintf(text, sizeof text, "fft of %lld: Parseval, there and back", (long long)n);
    check(fabs(after - before) <= 1e-12 * before && off < 1e-13 && off_real < 1e-13, text);
    fl_scope_end(&s);
}

static void fft_group(int unused) {
    (void)unused;
    for (int op = FFT; op < FFT_OPS; op++) {
        expect_row(fft_names[op], FLOATS | I64, UNWEAK & ~(1u << CHANNELS_LAST), 0, 0);
        snprintf(row_of(fft_names[op])->tolerance, 64, "1 ulp + (8 + log2 n) eps of the largest");
    }
    for (int k = 0; k < DTYPES; k++)
        for (int l = DENSE; l <= BROADCAST && takes(FLOATS | I64, all_dtypes[k]); l++)
            fft_cases(all_dtypes[k], (layout)l);
    if (!quick_run) fft_options();
    if (!fft_is_fast() || quick_run) return;
    for (int64_t n = 1; n <= 1024; n += 1 + n / 3) fft_keeps(n);
    fft_keeps(10007);
    fft_keeps(65536);
}
/* MIT licence: see LICENSE. */
