/* errors_linear.h - the rows of test_errors.c for linear algebra */

static void rows_of_linear(void) {
    fl_tensor *two[] = {o.f23, o.f34}, *none[] = {o.f23, NULL};
    fl_tensor *nine[] = {o.image, o.image, o.f4};
    fl_var *vars[] = {o.v23, o.v34};
    NO(fl_dot, (NULL, o.f4), NULLS);
    NO(fl_dot, (o.f4, o.f2), "[4] and [2]");
    NO(fv_dot, (o.v4, NULL), NULLS);
    NO(fv_dot, (o.v23, o.v23), "[2, 3] and [2, 3]");
    NO(fl_outer, (NULL, o.f4), NULLS);
    NO(fl_outer, (o.f4, o.f23), "[4] and [2, 3]");
    NO(fv_outer, (o.v4, NULL), NULLS);
    NO(fl_kron, (NULL, o.f4), NULLS);
    NO(fl_kron, (fl_ones(FL_SHAPE(1, 1, 1, 1, 1), FL_F32), o.f4), "[1, 1, 1, 1, 1] and [4]");
    NO(fv_kron, (o.v4, NULL), NULLS);
    NO(fl_cross, (NULL, o.f4, 0), NULLS);
    NO(fl_cross, (o.f23, o.f23, 0), "axis 0", "[2, 3]");
    NO(fl_cross, (o.f23, o.f23, 2), "axis 2");
    NO(fl_cross, (o.f23, fl_ones(FL_SHAPE(3), FL_F32), 1), "[2, 3] and [3]");
    NO(fv_cross, (o.v23, NULL, 1), NULLS);
    NO(fl_tensordot, (NULL, o.f23, 1, NULL, NULL), NULLS);
    NO(fl_tensordot, (o.f23, o.f23, 1, NULL, NULL), "[2, 3] and [2, 3]", "1 axes");
    NO(fl_tensordot, (o.f23, o.f34, 3, NULL, NULL), "3 axes");
    NO(fl_tensordot, (o.f23, o.f23, -1, NULL, NULL), "-1 axes");
    NO(fl_tensordot, (o.f23, o.f23, 2, (int[]){0, 0}, (int[]){0, 0}), "2 axes");
    NO(fl_tensordot, (o.f23, o.f23, 1, (int[]){2}, (int[]){0}), "1 axes");
    NO(fv_tensordot, (o.v23, NULL, 1, NULL, NULL), NULLS);
    NO(fl_trace, (NULL), NULLS);
    NO(fl_trace, (o.f4), "[4]");
    NO(fv_trace, (NULL), NULLS);
    NO(fl_addmm, (NULL, o.f23, o.f34, 1, 1), NULLS);
    NO(fl_addmm, (o.f4, NULL, o.f34, 1, 1), NULLS);
    NO(fl_addmm, (o.f4, o.f23, o.f23, 1, 1), "[2, 3] and [2, 3]");
    NO_AS(fl_addmm, "fl_add", (o.f23, o.f23, o.f34, 1, 1), "[2, 3]", "[2, 4]");
    NO(fv_addmm, (o.v4, o.v23, NULL, 1, 1), NULLS);
    NO(fl_cdist, (NULL, o.f23, 2), NULLS);
    NO(fl_cdist, (o.f23, o.f34, 2), "[2, 3] and [3, 4]");
    NO(fl_cdist, (o.f23, o.f23, -1), "p = -1");
    NO(fl_cdist, (o.f23, o.f23, NAN), "p = nan");
    NO(fl_cdist, (o.f4, o.f4, 2), "[4] and [4]");
    NO(fv_cdist, (o.v23, NULL, 2), NULLS);
    NO(fl_linear, (NULL, o.f23, NULL), NULLS);
    NO(fl_linear, (o.f23, o.f4, NULL), "[4], expected [out, in]");
    NO_AS(fl_linear, "fl_matmul", (o.f4, o.f23, NULL), "[4] and [3, 2]");
    NO(fv_linear, (o.v23, NULL, NULL), NULLS);
    NO(fl_linear_act, (o.f23, NULL, NULL, FL_OP_relu), NULLS);
    NO(fl_linear_act, (o.f23, o.f23, NULL, FL_OP_exp), "unsupported activation exp");
    NO(fl_linear_act, (o.f23, o.f23, NULL, -1), "unsupported activation (no op)");
    FINE(fl_linear_has_act,
         fl_linear_has_act(FL_OP_NONE) && fl_linear_has_act(FL_OP_relu) && !fl_linear_has_act(FL_OP_exp));
    FINE(fv_linear_act_of, fv_linear_act_of(fv_gelu) == FL_OP_gelu && fv_linear_act_of(fv_exp) == FL_OP_NONE);
    NO_AS(fl_linear_act, "fl_matmul", (o.f4, o.f23, NULL, FL_OP_relu), "[4] and [3, 2]");
    NO_AS(fl_linear_act, "fl_add", (o.f23, o.f23, o.f4, FL_OP_relu), "[2, 2]", "[4]");
    NO(fv_linear_act, (NULL, o.v23, NULL, FL_OP_relu), NULLS);
    NO(fv_linear_act, (o.v23, o.v23, NULL, FL_OP_matmul), "unsupported activation matmul");
    NO(fl_bilinear, (o.f23, o.f23, NULL, NULL), NULLS);
    NO(fl_bilinear, (o.f23, o.f23, o.f23, NULL), "operand 1", "[2, 3]");
    NO(fv_bilinear, (o.v23, NULL, o.v23, NULL), NULLS);
    NO(fl_einsum, (NULL, two, 2), NULLS);
    NO(fl_einsum, ("ij,jk", NULL, 2), NULLS);
    NO(fl_einsum, ("ij,jk", none, 2), NULLS);
    NO(fl_einsum, ("ij,jk", two, 0), "0 operands");
    NO(fl_einsum, ("ij,jk", two, 9), "9 operands");
    NO(fl_einsum, ("ij;jk", two, 2), "\"ij;jk\"", "no letter at 2");
    NO(fl_einsum, ("ij,..jk", two, 2), "no letter at 3");
    NO(fl_einsum, ("i...j...,jk", two, 2), "a second \"...\" at 5");
    NO(fl_einsum, ("abcdefghi,jk", two, 2), "too many dims at 8");
    NO(fl_einsum, ("ij", two, 2), "fewer terms than operands at 2");
    NO(fl_einsum, ("ij->ij", two, 2), "fewer terms than operands at 2");
    NO(fl_einsum, ("ij,jk,kl", two, 2), "more terms than operands at 5");
    NO(fl_einsum, ("ij,jk-ik", two, 2), "no \"->\" at 5");
    NO(fl_einsum, ("ij,jk->ik,", two, 2), "more than one result at 9");
    NO(fl_einsum, ("ij,jk->ii", two, 2), "twice in the result at 7");
    NO(fl_einsum, ("ij,jk->im", two, 2), "of no operand", "at 7");
    NO(fl_einsum, ("ijk,jk", two, 2), "operand 0 of shape [2, 3] has 3 letters");
    NO(fl_einsum, ("i,jk", two, 2), "operand 0 of shape [2, 3] has 1 letters");
    NO(fl_einsum, ("ij,ik", two, 2), "dim 0 of operand 1", "[3, 4]", "does not fit 2");
    NO(fl_einsum, ("ii,jk", two, 2), "dim 1 of operand 0", "[2, 3]");
    NO(fl_einsum, ("abcd,efgh,i", nine, 3), "more than 8 dims at 11");
    NO(fv_einsum, ("ij,ik", vars, 2), "dim 0 of operand 1");
}

/* What takes square float matrices alone, called as call(x). */
#define SQUARE_ONLY(f, call, v)                                       \
    do {                                                              \
        ROW(RAISES, #f, !call(NULL), NULLS);                          \
        ROW(RAISES, #f, !call(v(o.f23)), "square matrices [..., n, n], got shape [2, 3]"); \
        ROW(RAISES, #f, !call(v(o.f4)), "[4]");                       \
    } while (0)
#define ITSELF(t) (t)
static fl_tensor *some_tensor;
static fl_var *some_var;
static fl_tensor *power(fl_tensor *x) { return fl_matrix_power(x, 2); }
static fl_var *power_var(fl_var *x) { return fv_matrix_power(x, 2); }
static fl_tensor *slogdet(fl_tensor *x) { return fl_slogdet(x, &some_tensor); }
static fl_var *slogdet_var(fl_var *x) { return fv_slogdet(x, NULL); }
static fl_tensor *eigh(fl_tensor *x) { return fl_eigh(x, &some_tensor); }
static fl_var *eigh_var(fl_var *x) { return fv_eigh(x, &some_var); }

static void rows_of_factor(void) {
    SQUARE_ONLY(fl_inverse, fl_inverse, ITSELF);
    SQUARE_ONLY(fv_inverse, fv_inverse, fv_const);
    SQUARE_ONLY(fl_matrix_power, power, ITSELF);
    SQUARE_ONLY(fv_matrix_power, power_var, fv_const);
    SQUARE_ONLY(fl_matrix_exp, fl_matrix_exp, ITSELF);
    SQUARE_ONLY(fv_matrix_exp, fv_matrix_exp, fv_const);
    SQUARE_ONLY(fl_det, fl_det, ITSELF);
    SQUARE_ONLY(fv_det, fv_det, fv_const);
    SQUARE_ONLY(fl_slogdet, slogdet, ITSELF);
    SQUARE_ONLY(fv_slogdet, slogdet_var, fv_const);
    SQUARE_ONLY(fl_cholesky, fl_cholesky, ITSELF);
    SQUARE_ONLY(fv_cholesky, fv_cholesky, fv_const);
    SQUARE_ONLY(fl_eigh, eigh, ITSELF);
    SQUARE_ONLY(fv_eigh, eigh_var, fv_const);
    NO(fl_lu_factor, (NULL, &some_tensor), NULLS);
    NO(fl_lu_factor, (o.f23, NULL), NULLS);
    NO(fl_lu_factor, (o.f4, &some_tensor), "matrices [..., m, n], got shape [4]");
    NO(fl_lu, (NULL, &some_tensor, &some_tensor), NULLS);
    NO(fl_lu, (o.f23, NULL, &some_tensor), NULLS);
    NO(fl_lu, (o.f23, &some_tensor, NULL), NULLS);
    NO(fl_lu, (o.f4, &some_tensor, &some_tensor), "matrices [..., m, n], got shape [4]");
    NO(fl_lu, (o.i23, &some_tensor, &some_tensor), "must be a float, got i64");
    NO(fv_lu, (NULL, &some_var, &some_tensor), NULLS);
    NO(fv_lu, (o.v23, &some_var, NULL), NULLS);
    NO(fv_lu, (o.v4, &some_var, &some_tensor), "matrices [..., m, n], got shape [4]");
    NO(fl_qr, (NULL, &some_tensor), NULLS);
    NO(fl_qr, (o.f23, NULL), NULLS);
    NO(fl_qr, (o.f4, &some_tensor), "matrices [..., m, n], got shape [4]");
    NO(fl_qr, (o.i23, &some_tensor), "must be a float, got i64");
    NO(fv_qr, (NULL, &some_var), NULLS);
    NO(fv_qr, (o.v23, NULL), NULLS);
    NO(fv_qr, (o.v4, &some_var), "matrices [..., m, n], got shape [4]");
    NO(fl_svd, (NULL, &some_tensor, &some_tensor), NULLS);
    NO(fl_svd, (o.f23, NULL, &some_tensor), NULLS);
    NO(fl_svd, (o.f23, &some_tensor, NULL), NULLS);
    NO(fl_svd, (o.i23, &some_tensor, &some_tensor), "must be a float, got i64");
    NO(fv_svd, (o.v23, NULL, &some_var), NULLS);
    NO(fv_svd, (NULL, &some_var, &some_var), NULLS);
    NO(fv_svd, (o.v4, &some_var, &some_var), "[4]");
    /* "inf or NaN", or that there is no LAPACK */
    NO_AS(fl_svdvals, "fl_svd", (fl_full(FL_SHAPE(3, 3), INFINITY, FL_F32)), "fl_svd: ");
    NO(fl_svdvals, (NULL), NULLS);
    NO(fl_svdvals, (o.f4), "[4]");
    NO(fv_svdvals, (NULL), NULLS);
    NO(fl_solve, (NULL, o.f23), NULLS);
    NO(fl_solve, (o.f23, o.f23), "square matrices [..., n, n], got shape [2, 3]");
    NO(fl_solve, (fl_eye(2, 2, FL_F32), o.f34), "[2, 2] and [3, 4]");
    NO(fl_solve, (fl_eye(2, 2, FL_F32), o.number), "[2, 2] and []");
    NO(fl_solve, (fl_ones(FL_SHAPE(3, 2, 2), FL_F32), fl_ones(FL_SHAPE(2, 2, 1), FL_F32)),
       "do not broadcast");
    NO(fv_solve, (o.v23, NULL), NULLS);
    NO(fl_solve_triangular, (NULL, o.f23, false, false), NULLS);
    NO(fl_solve_triangular, (o.f23, o.f23, false, false), "square matrices [..., n, n], got shape [2, 3]");
    NO(fl_solve_triangular, (fl_eye(2, 2, FL_F32), o.f4, false, false), "[2, 2] and [4]");
    NO(fv_solve_triangular, (NULL, o.v23, false, false), NULLS);
    NO(fl_lstsq, (NULL, o.f23), NULLS);
    NO(fl_lstsq, (o.f23, o.f34), "[2, 3] and [3, 4]");
    NO(fv_lstsq, (o.v23, NULL), NULLS);
    NO(fl_eig, (NULL, &some_tensor, &some_tensor, &some_tensor), NULLS);
    NO(fl_eig, (o.f23, NULL, &some_tensor, &some_tensor), NULLS);
    NO(fl_eig, (o.f23, &some_tensor, NULL, &some_tensor), NULLS);
    NO(fl_eig, (o.f23, &some_tensor, &some_tensor, NULL), NULLS);
    NO(fl_eig, (o.f23, &some_tensor, &some_tensor, &some_tensor),
       "square matrices [..., n, n], got shape [2, 3]");
    NO(fv_eig, (NULL, &some_var, &some_var, &some_var), NULLS);
    NO(fv_eig, (o.v23, &some_var, NULL, &some_var), NULLS);
    NO(fv_eig, (o.v23, &some_var, &some_var, &some_var), "square matrices [..., n, n], got shape [2, 3]");
    NO(fl_eigvals, (o.f23, NULL), NULLS);
    NO(fl_eigvals, (o.f4, &some_tensor), "square matrices [..., n, n], got shape [4]");
    NO(fv_eigvals, (NULL, &some_var), NULLS);
    NO(fv_eigvals, (o.v23, &some_var), "square matrices [..., n, n], got shape [2, 3]");
    NO(fl_matrix_norm, (NULL, 1), NULLS);
    NO(fl_matrix_norm, (o.i23, 1), "must be a float, got i64");
    NO(fl_matrix_norm, (o.f4, 1), "[4]");
    NO(fl_matrix_norm, (o.f23, 3), "p must be 0, 1, -1, 2, -2, inf or -inf, got 3");
    NO(fv_matrix_norm, (NULL, 1), NULLS);
    NO(fl_nuclear_norm, (NULL), NULLS);
    NO(fl_nuclear_norm, (o.f4), "[4]");
    NO(fv_nuclear_norm, (NULL), NULLS);
    NO(fl_cholesky_solve, (NULL, o.f23), NULLS);
    NO(fl_cholesky_solve, (o.f23, o.f23), "square matrices [..., n, n], got shape [2, 3]");
    NO(fl_cholesky_solve, (fl_eye(2, 2, FL_F32), o.f4), "[2, 2] and [4]");
    NO(fv_cholesky_solve, (o.v23, NULL), NULLS);
    NO(fl_cond, (NULL, 1), NULLS);
    NO(fl_cond, (o.i23, 2), "must be a float, got i64");
    NO(fl_cond, (o.f23, 1), "square matrices [..., n, n], got shape [2, 3]");
    NO(fl_cond, (o.f23, 2.5), "square matrices [..., n, n], got shape [2, 3]");
    NO(fl_cond, (fl_eye(2, 2, FL_F32), 3), "p must be 0, 1, -1, 2, -2, inf or -inf, got 3");
    NO(fv_cond, (NULL, 1), NULLS);
    NO(fl_matrix_rank, (NULL, 0, 0), NULLS);
    NO(fl_matrix_rank, (o.f4, 0, 0), "matrices [..., m, n], got shape [4]");
    NO(fl_matrix_rank, (o.f23, -1, 0), "atol and rtol must be 0 or more, got -1 and 0");
    NO(fl_matrix_rank, (o.f23, 0, NAN), "got 0 and nan");
    NO(fl_pinv, (NULL, 0), NULLS);
    NO(fl_pinv, (o.i23, 0), "must be a float, got i64");
    NO(fv_pinv, (NULL, 0), NULLS);
}

static void rows_of_fft(void) {
    const fl_fft_opts plain = {0}, odd = {.norm = (fl_fft_norm)5}, below = {.n = -2};
    const fl_stft_opts exact = {0};
    fl_tensor *pairs = fl_zeros(FL_SHAPE(3, 2), FL_F32), *line = fl_zeros(FL_SHAPE(8), FL_F32);
    fl_tensor *frames = fl_zeros(FL_SHAPE(3, 2, 2), FL_F32);
    NO(fl_fft_opt, (pairs, 0, odd), "norm 5");
    NO(fl_rfft_opt, (o.f23, 0, below), "n is -2");
    NO(fl_irfft_opt, (pairs, 4, 0, (fl_fft_opts){.n = 4}), "4 numbers of 3 frequencies");
    NO_AS(fl_stft_opt, "fl_stft", (NULL, 4, exact), NULLS);
    NO_AS(fv_stft_opt, "fv_stft", (NULL, 4, exact), NULLS);
    NO(fl_stft_opt, (o.i23, 4, exact), "i64 of shape [2, 3]");
    NO(fl_stft_opt, (line, 0, exact), "n_fft 0");
    NO(fl_stft_opt, (line, 4, (fl_stft_opts){.hop = -1}), "hop -1");
    NO(fl_stft_opt, (line, 4, (fl_stft_opts){.win_length = 5}), "win_length 5");
    NO(fl_stft_opt, (line, 4, (fl_stft_opts){.window = o.f2}), "window f32 [2]", "must be floats [4]");
    NO(fl_stft_opt, (line, 16, exact), "[8] is too short for frames of 16");
    NO(fl_stft_opt, (line, 9, (fl_stft_opts){.no_center = true}), "too short for frames of 9");
    NO_AS(fl_istft_opt, "fl_istft", (NULL, 4, exact), NULLS);
    NO_AS(fv_istft_opt, "fv_istft", (NULL, 4, exact), NULLS);
    NO(fl_istft_opt, (frames, 8, exact), "f32 of shape [3, 2, 2]", "[..., 5, frames, 2]");
    NO(fl_istft_opt, (frames, 4, (fl_stft_opts){.hop = 9}), "leave elements out", "hop 9");
    NO(fl_istft_opt, (frames, 4, (fl_stft_opts){.length = -1}), "length -1");
    NO_AS(fl_fft_opt, "fl_fft", (NULL, 0, plain), NULLS);
    NO_AS(fl_fft_opt, "fl_fft", (o.f23, 0, plain), "shape [2, 3] has no pairs");
    NO_AS(fl_fft_opt, "fl_fft", (o.f2, 0, plain), "shape [2] has no pairs");
    NO_AS(fl_fft_opt, "fl_fft", (fl_zeros(FL_SHAPE(3, 2), FL_F32), 1, plain), "axis 1 of shape [3, 2]");
    NO_AS(fl_fft_opt, "fl_fft", (fl_zeros(FL_SHAPE(3, 2), FL_F32), -2, plain), "axis -2");
    NO_AS(fl_fft_opt, "fl_fft", (fl_zeros(FL_SHAPE(0, 2), FL_F32), 0, plain), "[0, 2]");
    NO_AS(fv_fft_opt, "fv_fft", (NULL, 0, plain), NULLS);
    NO_AS(fl_ifft_opt, "fl_ifft", (NULL, 0, plain), NULLS);
    NO_AS(fl_ifft_opt, "fl_ifft", (o.f23, 0, plain), "shape [2, 3] has no pairs");
    NO_AS(fv_ifft_opt, "fl_ifft", (o.v23, 0, plain), "shape [2, 3] has no pairs");
    NO_AS(fl_fft2_opt, "fl_fft2", (NULL, plain), NULLS);
    NO_AS(fl_fft2_opt, "fl_fft2", (fl_zeros(FL_SHAPE(3, 2), FL_F32), plain), "axis -2 of shape [3, 2]");
    NO_AS(fv_fft2_opt, "fl_fft2", (o.v23, plain), "shape [2, 3] has no pairs");
    NO_AS(fl_ifft2_opt, "fl_ifft2", (NULL, plain), NULLS);
    NO_AS(fv_ifft2_opt, "fl_ifft2", (o.v23, plain), "shape [2, 3] has no pairs");
    const fl_fftn_opts all = {0}, twice = {.axes = FL_AXES(0, -1)}, three = {.s = FL_SHAPE(1, 2, 3)};
    NO_AS(fl_fftn_opt, "fl_fftn", (NULL, all), NULLS);
    NO_AS(fv_fftn_opt, "fl_fftn", (o.v23, all), "shape [2, 3] has no pairs");
    NO_AS(fl_fftn_opt, "fl_fftn", (pairs, twice), "axis 0 is given twice");
    NO_AS(fl_ifftn_opt, "fl_ifftn", (pairs, three), "0 axes and 3 sizes for shape [3, 2]");
    NO_AS(fl_ifftn_opt, "fl_ifftn", (pairs, (fl_fftn_opts){.norm = (fl_fft_norm)3}), "norm 3");
    NO_AS(fl_rfftn_opt, "fl_rfftn", (fl_zeros(FL_SCALAR_SHAPE, FL_F32), all), "0 axes and 0 sizes");
    NO_AS(fl_rfftn_opt, "fl_rfftn", (o.f23, (fl_fftn_opts){.axes = FL_AXES(2)}), "axis 2 of shape [2, 3]");
    NO_AS(fl_rfftn_opt, "fl_rfftn", (o.f23, (fl_fftn_opts){.s = FL_SHAPE(-1)}), "n is -1");
    NO_AS(fl_rfft2_opt, "fl_rfft2", (o.f2, all), "axis -2 of shape [2]");
    NO_AS(fl_rfft2_opt, "fl_rfft2", (o.f23, (fl_fftn_opts){.s = FL_SHAPE(4)}), "2 axes and 1 sizes");
    NO_AS(fl_irfftn_opt, "fl_irfftn", (o.f23, all), "shape [2, 3] has no pairs");
    NO_AS(fl_irfftn_opt, "fl_irfftn", (fl_zeros(FL_SHAPE(1, 2), FL_F32), all), "0 numbers of 1 frequencies");
    NO_AS(fv_ifftn_opt, "fv_ifftn", (NULL, all), NULLS);
    NO_AS(fv_rfftn_opt, "fv_rfftn", (NULL, all), NULLS);
    NO_AS(fv_rfft2_opt, "fv_rfft2", (NULL, all), NULLS);
    NO_AS(fv_irfftn_opt, "fv_irfftn", (NULL, all), NULLS);
    NO_AS(fv_irfft2_opt, "fv_irfft2", (NULL, all), NULLS);
    NO_AS(fl_irfft2_opt, "fl_irfft2", (pairs, all), "axis -2 of shape [3, 2]");
    NO_AS(fl_rfft_opt, "fl_rfft", (NULL, 0, plain), NULLS);
    NO_AS(fl_rfft_opt, "fl_rfft", (o.f23, 2, plain), "axis 2 of shape [2, 3]");
    NO_AS(fl_rfft_opt, "fl_rfft", (o.f03, 0, plain), "axis 0 of shape [0, 3]");
    NO_AS(fv_rfft_opt, "fl_rfft", (o.v23, -3, plain), "axis -3");
    NO_AS(fl_irfft_opt, "fl_irfft", (NULL, 4, 0, plain), NULLS);
    NO_AS(fl_irfft_opt, "fl_irfft", (o.f23, 4, 0, plain), "shape [2, 3] has no pairs");
    NO_AS(fl_irfft_opt, "fl_irfft", (fl_zeros(FL_SHAPE(3, 2), FL_F32), 6, 0, plain),
          "6 numbers of 3 frequencies");
    NO_AS(fl_irfft_opt, "fl_irfft", (fl_zeros(FL_SHAPE(3, 2), FL_F32), 0, 0, plain), "0 numbers");
    NO_AS(fv_irfft_opt, "fl_irfft", (o.v23, 4, 0, plain), "shape [2, 3] has no pairs");
}
/* MIT licence: see LICENSE. */
