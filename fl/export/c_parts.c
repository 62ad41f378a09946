/* fl/export/c_parts.c - functions of the C files that fl_graph_save_c writes, as they stand there

   parts.awk makes c_parts.inc of it: a text for each >>section. Where they are written, STEP_ becomes the
   name of the step, and, of f64 or f32, REAL double or float, PRODUCT product_f64 or product, GEMM
   cblas_dgemm or cblas_sgemm. */

/* >>parallel */
#ifdef _OPENMP /* products and convolutions in parallel */
#define STEP_PARALLEL _Pragma("omp parallel for")
#else
#define STEP_PARALLEL
#endif
/* >>product */
/* y (+)= a b, m x k by k x n, each with its two strides. */
static void PRODUCT(int64_t m, int64_t n, int64_t k, const REAL *a, int64_t am, int64_t ak,
                    const REAL *b, int64_t bk, int64_t bn, REAL *y, int64_t ym, int64_t yn, int add) {
    enum { ROWS = 6, COLUMNS = 32, DEPTH = 256 };
    if (yn != 1 && ym == 1) {
        PRODUCT(n, m, k, b, bn, bk, a, ak, am, y, yn, ym, add);
        return;
    }
#ifdef STEP_BLAS
    if (yn == 1 && ym >= n && (am == 1 || ak == 1) && (bk == 1 || bn == 1) && m && n && k) {
        const int64_t lda = ak == 1 ? (m > 1 ? am : k) : ak;
        const int64_t ldb = bn == 1 ? (k > 1 ? bk : n) : bn;
        GEMM(CblasRowMajor, ak == 1 ? CblasNoTrans : CblasTrans, bn == 1 ? CblasNoTrans : CblasTrans,
             (int)m, (int)n, (int)k, 1, a,
             (int)(ak == 1 ? (lda < k ? k : lda) : (lda < m ? m : lda)), b,
             (int)(bn == 1 ? (ldb < n ? n : ldb) : (ldb < k ? k : ldb)), add ? 1 : 0, y, (int)ym);
        return;
    }
#endif
    for (int64_t i = 0; i < m && !add; i++)
        for (int64_t j = 0; j < n; j++) y[i * ym + j * yn] = 0;
    for (int64_t j0 = 0; j0 < n; j0 += COLUMNS)
        for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
            const int64_t depth = k - k0 < DEPTH ? k - k0 : DEPTH;
            const int64_t columns = n - j0 < COLUMNS ? n - j0 : COLUMNS;
            REAL panel[DEPTH][COLUMNS];
            for (int64_t l = 0; l < depth; l++)
                for (int64_t j = 0; j < COLUMNS; j++)
                    panel[l][j] = j < columns ? b[(k0 + l) * bk + (j0 + j) * bn] : 0;
            STEP_PARALLEL
            for (int64_t i0 = 0; i0 < m; i0 += ROWS) {
                REAL sum[ROWS][COLUMNS] = {{0}};
                const REAL *row[ROWS];
                for (int64_t i = 0; i < ROWS; i++)
                    row[i] = a + (i0 + i < m ? i0 + i : m - 1) * am + k0 * ak;
                for (int64_t l = 0; l < depth; l++)
                    for (int i = 0; i < ROWS; i++)
                        for (int j = 0; j < COLUMNS; j++)
                            sum[i][j] += row[i][l * ak] * panel[l][j];
                for (int64_t i = 0; i < ROWS && i0 + i < m; i++)
                    for (int64_t j = 0; j < columns; j++)
                        y[(i0 + i) * ym + (j0 + j) * yn] += sum[i][j];
            }
        }
}
/* >>conv */
/* Convolutions as products: of one image and group, a column for each pixel of y and a row for each
   weight of an output, in the weights' order in memory. */
typedef struct convolution {
    int64_t groups, channels, size[2], outputs, kernel[2], out[2], stride[2], pad[2], dilation[2];
    const int64_t *xs, *ws, *ys;
    float *columns;
} convolution;

/* x -> columns; back: columns are added to x. */
static void columns_of(const convolution *p, float *x, int back) {
    const int64_t pixels = p->out[0] * p->out[1];
    STEP_PARALLEL
    for (int64_t c = 0; c < p->channels / p->groups; c++)
        for (int64_t i = 0; i < p->kernel[0]; i++)
            for (int64_t j = 0; j < p->kernel[1]; j++) {
                float *row = p->columns + (c * p->ws[1] + i * p->ws[2] + j * p->ws[3]) * pixels;
                for (int64_t u = 0; u < p->out[0]; u++)
                    for (int64_t v = 0; v < p->out[1]; v++) {
                        const int64_t h = u * p->stride[0] - p->pad[0] + i * p->dilation[0];
                        const int64_t w = v * p->stride[1] - p->pad[1] + j * p->dilation[1];
                        const int inside = h >= 0 && h < p->size[0] && w >= 0 && w < p->size[1];
                        float *at = x + (inside ? c * p->xs[1] + h * p->xs[2] + w * p->xs[3] : 0);
                        if (back && inside) *at += row[u * p->out[1] + v];
                        if (!back) row[u * p->out[1] + v] = inside ? *at : 0;
                    }
            }
}

enum { CONV, CONV_IMAGE, CONV_KERNEL };
static void convolve(const convolution *p, int what, int64_t images, float *x, float *w,
                     float *y) {
    const int64_t pixels = p->out[0] * p->out[1], of = p->outputs / p->groups;
    const int64_t rows = p->channels / p->groups * p->kernel[0] * p->kernel[1];
    for (int64_t n = 0; n < images * p->groups; n++) {
        const int64_t image = n / p->groups, g = n % p->groups;
        float *xg = x + image * p->xs[0] + g * (p->channels / p->groups) * p->xs[1];
        float *wg = w + g * of * p->ws[0], *yg = y + image * p->ys[0] + g * of * p->ys[1];
        if (what != CONV_IMAGE) columns_of(p, xg, 0);
        if (what == CONV)
            product(of, pixels, rows, wg, p->ws[0], 1, p->columns, pixels, 1, yg, p->ys[1],
                    p->ys[3], 0);
        if (what == CONV_KERNEL)
            product(of, rows, pixels, yg, p->ys[1], p->ys[3], p->columns, 1, pixels, wg, p->ws[0],
                    1, image > 0);
        if (what == CONV_IMAGE) {
            product(rows, pixels, of, wg, 1, p->ws[0], yg, p->ys[1], p->ys[3], p->columns, pixels,
                    1, 0);
            columns_of(p, xg, 1);
        }
    }
}
/* >>sort */
typedef struct pair {
    uint64_t key;
    int64_t at;
} pair;

/* Unsigned integers in the order of numbers; NaN is the largest. */
static inline uint64_t key_int(int64_t x) { return (uint64_t)x ^ (uint64_t)1 << 63; }
static inline uint64_t key_float(double x) {
    int64_t bits;
    if (x == 0) x = 0; /* -0 too */
    memcpy(&bits, &x, 8);
    return x != x ? UINT64_MAX : bits < 0 ? ~(uint64_t)bits : key_int(bits);
}

/* Merges ever longer runs of p, by way of q; equal keys keep their order. */
static void sort(pair *p, pair *q, int64_t n) {
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t from = 0; from < n; from += 2 * run) {
            const int64_t mid = from + run < n ? from + run : n;
            const int64_t end = mid + run < n ? mid + run : n;
            for (int64_t i = from, j = mid, k = from; k < end; k++)
                q[k] = i < mid && (j == end || p[i].key <= p[j].key) ? p[i++] : p[j++];
        }
        memcpy(p, q, (size_t)n * sizeof *p);
    }
}
/* >>random */
/* Element n of the numbers that begin with block `from` (Philox 4x32-10). */
static inline double random_uniform(uint64_t key, uint64_t from, int64_t n) {
    uint32_t w[4];
    flm_philox(key, from + (uint64_t)n / 4, w);
    return flm_uniform_f32(w[n % 4]);
}
static inline double random_uniform_f64(uint64_t key, uint64_t from, int64_t n) {
    uint32_t w[4];
    flm_philox(key, from + (uint64_t)n / 2, w);
    return flm_uniform_f64(w[n % 2 * 2 + 1], w[n % 2 * 2]);
}
static inline double random_normal(uint64_t key, uint64_t from, int64_t n) {
    uint32_t w[4];
    float pair[2];
    flm_philox(key, from + (uint64_t)n / 4, w);
    flm_normal_f32(w[n % 4 / 2 * 2], w[n % 4 / 2 * 2 + 1], pair);
    return pair[n % 2];
}
static inline double random_normal_f64(uint64_t key, uint64_t from, int64_t n) {
    uint32_t w[4];
    double pair[2];
    flm_philox(key, from + (uint64_t)n / 2, w);
    flm_normal_f64(w, pair);
    return pair[n % 2];
}
static inline uint64_t random_int(uint64_t key, uint64_t from, int64_t n, uint64_t bound) {
    uint32_t w[4];
    flm_philox(key, from + (uint64_t)n / 2, w);
    return flm_bounded(w[n % 2 * 2 + 1], w[n % 2 * 2], bound);
}
/* >>file */
/* ---- the file of the state ---- */

enum { PARTS = sizeof part / sizeof *part - 1 };

/* The header of the file, which is `size` bytes long with its length before it. */
static char *header_of(size_t *size) {
    size_t n = 2;
    for (int i = 0; i < PARTS; i++) n += strlen(part[i].json) + (i > 0);
    n = (n + 7) / 8 * 8;
    char *text = malloc(8 + n + 1);
    if (!text) return NULL;
    for (int i = 0; i < 8; i++) text[i] = (char)((uint64_t)n >> 8 * i);
    char *at = text + 8;
    for (int i = 0; i < PARTS; i++) at += sprintf(at, "%c%s", i ? ',' : '{', part[i].json);
    if (!PARTS) *at++ = '{';
    *at++ = '}';
    memset(at, ' ', (size_t)(text + 8 + n - at));
    *size = 8 + n;
    return text;
}

static int state_read(STEP_state *s, const char *path) {
    size_t size = 0;
    char *mine = header_of(&size), *theirs = mine ? malloc(size) : NULL;
    FILE *f = theirs ? fopen(path, "rb") : NULL;
    int ok = f && fread(theirs, 1, size, f) == size && !memcmp(mine, theirs, size);
    for (int i = 0; ok && i < PARTS; i++)
        ok = fread(s->memory + part[i].at, 1, part[i].bytes, f) == part[i].bytes;
    ok = ok && fgetc(f) == EOF;
    if (f) fclose(f);
    free(mine), free(theirs);
    return ok;
}

int STEP_save(const STEP_state *s, const char *path) {
    size_t size = 0;
    char *header = header_of(&size), *aside = malloc(strlen(path) + 6);
    if (aside) sprintf(aside, "%s.part", path);
    FILE *f = header && aside ? fopen(aside, "wb") : NULL;
    int ok = f && fwrite(header, 1, size, f) == size;
    for (int i = 0; ok && i < PARTS; i++)
        ok = fwrite(s->memory + part[i].at, 1, part[i].bytes, f) == part[i].bytes;
    if (f && fclose(f)) ok = 0;
    ok = ok && !rename(aside, path);
    if (f && !ok) remove(aside);
    free(header), free(aside);
    return ok ? 0 : -1;
}

void STEP_close(STEP_state *s) {
    if (s) free(s->memory);
    free(s);
}
/* MIT licence: see LICENSE. */
