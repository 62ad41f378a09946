/* kernels/cuda/step.cu - optimizer steps, and sums of squares, of many tensors in one launch each

   A step's rule is a program (fl/tensor/formula.h). One thread per block computes what depends on scalars
   only, in f64; then all interpret the rest, a few elements at a time, on values in shared memory. */
#include "common.cuh"
#include "../../fl/tensor/op_table.h"

enum {
#define FLK_NUMBER(word, op, ...) FLK_PRIMITIVE_##op,
    FL_PRIMITIVES(FLK_NUMBER)
#undef FLK_NUMBER
};

/* Primitive `which` of a, b, c; conditions are 1 or 0. */
#define FLK_PRIMITIVE(T, s)                                                       \
    static __device__ __forceinline__ T flk_primitive(int which, T a, T b, T c) { \
        switch (which) {                                                          \
        case FLK_PRIMITIVE_add:                                                   \
            return flm_add_##s(a, b);                                             \
        case FLK_PRIMITIVE_sub:                                                   \
            return flm_sub_##s(a, b);                                             \
        case FLK_PRIMITIVE_mul:                                                   \
            return flm_mul_##s(a, b);                                             \
        case FLK_PRIMITIVE_div:                                                   \
            return flm_div_##s(a, b);                                             \
        case FLK_PRIMITIVE_neg:                                                   \
            return flm_neg_##s(a);                                                \
        case FLK_PRIMITIVE_abs:                                                   \
            return flm_abs_##s(a);                                                \
        case FLK_PRIMITIVE_exp:                                                   \
            return flm_exp_##s(a);                                                \
        case FLK_PRIMITIVE_log:                                                   \
            return flm_log_##s(a);                                                \
        case FLK_PRIMITIVE_log1p:                                                 \
            return flm_log1p_##s(a);                                              \
        case FLK_PRIMITIVE_expm1:                                                 \
            return flm_expm1_##s(a);                                              \
        case FLK_PRIMITIVE_sqrt:                                                  \
            return flm_sqrt_##s(a);                                               \
        case FLK_PRIMITIVE_sin:                                                   \
            return flm_sin_##s(a);                                                \
        case FLK_PRIMITIVE_cos:                                                   \
            return flm_cos_##s(a);                                                \
        case FLK_PRIMITIVE_tanh:                                                  \
            return flm_tanh_##s(a);                                               \
        case FLK_PRIMITIVE_erf:                                                   \
            return flm_erf_##s(a);                                                \
        case FLK_PRIMITIVE_atan2:                                                 \
            return flm_atan2_##s(a, b);                                           \
        case FLK_PRIMITIVE_pow:                                                   \
            return flm_pow_##s(a, b);                                             \
        case FLK_PRIMITIVE_remainder:                                             \
            return flm_remainder_##s(a, b);                                       \
        case FLK_PRIMITIVE_maximum:                                               \
            return flm_maximum_##s(a, b);                                         \
        case FLK_PRIMITIVE_minimum:                                               \
            return flm_minimum_##s(a, b);                                         \
        case FLK_PRIMITIVE_floor:                                                 \
            return flm_floor_##s(a);                                              \
        case FLK_PRIMITIVE_rint:                                                  \
            return flm_rint_##s(a);                                               \
        case FLK_PRIMITIVE_lt:                                                    \
            return (T)flm_lt_##s(a, b);                                           \
        case FLK_PRIMITIVE_le:                                                    \
            return (T)flm_le_##s(a, b);                                           \
        case FLK_PRIMITIVE_eq:                                                    \
            return (T)flm_eq_##s(a, b);                                           \
        case FLK_PRIMITIVE_bitwise_and:                                           \
            return (T)(a != 0 && b != 0);                                         \
        case FLK_PRIMITIVE_bitwise_or:                                            \
            return (T)(a != 0 || b != 0);                                         \
        case FLK_PRIMITIVE_bitwise_xor:                                           \
            return (T)((a != 0) != (b != 0));                                     \
        case FLK_PRIMITIVE_bitwise_not:                                           \
            return (T)(a == 0);                                                   \
        default:                                                                  \
            return a != 0 ? b : c;                                                \
        }                                                                         \
    }
FLK_PRIMITIVE(float, f32)
FLK_PRIMITIVE(double, f64)

enum { FLK_STEP_BYTES = 512, FLK_STEP_EACH = 2, FLK_STEP_RUNS = 16 };
/* Threads per block, such that its values fit into shared memory; elements per block. */
template <class T> static constexpr int FLK_STEP_BLOCK = FLK_STEP_BYTES / (int)sizeof(T);
template <class T>
static constexpr int64_t FLK_STEP_TAKES = FLK_STEP_BLOCK<T> *FLK_STEP_EACH *FLK_STEP_RUNS;

/* The entry that block b belongs to; *b becomes its index within the entry. */
static __device__ __forceinline__ int flk_entry_of(const int *first, int n, int *b) {
    int low = 0;
    for (int high = n; high - low > 1;) {
        const int half = (low + high) / 2;
        if (*b < first[half])
            high = half;
        else
            low = half;
    }
    *b -= first[low];
    return low;
}

static __device__ double flk_step_number(int dtype, const void *p, int64_t at) {
    return dtype == FLK_F64   ? ((const double *)p)[at]
           : dtype == FLK_F32 ? (double)((const float *)p)[at]
           : dtype == FLK_I64 ? (double)((const int64_t *)p)[at]
                              : (double)flk_load_at<float>(p, dtype, at);
}

/* Computes the cells: scalars, constants, and words on them. */
static __device__ void flk_step_cells(const flk_step_rule &r, const flk_step_entry &e,
                                      double *cell) {
    int n = 0;
    for (int i = 0; i < r.n_numbers; i++)
        for (int k = 0; k < r.numbers[i]; k++)
            cell[n++] = e.number[i]
                            ? flk_step_number(r.number_dtype[i], e.number[i], k * r.number_step[i])
                            : r.weak[i];
    for (int i = 0; i < r.n_constants; i++) cell[n++] = r.constant[i];
    for (int i = 0; i < r.n_first; i++) {
        const flk_word w = r.word[i];
        cell[w.to] = flk_primitive(w.primitive, cell[w.in[0]], cell[w.in[1]], cell[w.in[2]]);
    }
}

template <class T>
__global__ void __launch_bounds__(FLK_STEP_BLOCK<T>)
    flk_step_kernel(flk_step_rule r, flk_step_list l) {
    constexpr int WIDE = FLK_STEP_BLOCK<T> * FLK_STEP_EACH;
    __shared__ double cell[FLK_STEP_CELLS];
    __shared__ T number[FLK_STEP_CELLS], value[FLK_STEP_PLACES][WIDE];
    int block = (int)blockIdx.x;
    const int at = flk_entry_of(l.first, l.n, &block), me = (int)threadIdx.x;
    const flk_step_entry &e = l.entry[at];
    const int tensors = r.n_reads + r.n_writes;
    if (me == 0) flk_step_cells(r, e, cell);
    __syncthreads();
    if (r.skips && cell[0] == 0) return;
    for (int i = me; i < FLK_STEP_CELLS; i += FLK_STEP_BLOCK<T>) number[i] = (T)cell[i];
    __syncthreads();
    const int64_t begin = block * FLK_STEP_TAKES<T>, left = e.n - begin;
    const int64_t end = begin + (left < FLK_STEP_TAKES<T> ? left : FLK_STEP_TAKES<T>);
    for (int64_t i = begin + me; i < end; i += WIDE) {
        const int each = i + FLK_STEP_BLOCK<T> < end ? FLK_STEP_EACH : 1;
        for (int k = 0; k < tensors; k++)
            for (int j = 0; j < each; j++)
                value[k][me + j * FLK_STEP_BLOCK<T>] =
                    flk_load_at<T>(e.p[k], r.dtype[k], i + j * FLK_STEP_BLOCK<T>);
        for (int k = r.n_first; k < r.n_words; k++) {
            const flk_word w = r.word[k];
            for (int j = 0; j < FLK_STEP_EACH; j++) {
                const int column = me + j * FLK_STEP_BLOCK<T>;
                T in[3];
                for (int m = 0; m < 3; m++)
                    in[m] = w.in[m] < FLK_STEP_PLACES ? value[w.in[m]][column]
                                                      : number[w.in[m] - FLK_STEP_PLACES];
                value[w.to][column] = flk_primitive(w.primitive, in[0], in[1], in[2]);
            }
        }
        for (int k = 0; k < r.n_writes + r.narrow; k++) {
            const int from = r.out[k < r.n_writes ? k : 0];
            flk_operand to = {};
            to.p = e.p[r.n_reads + k];
            to.dtype = r.dtype[r.n_reads + k];
            for (int j = 0; j < each; j++) {
                const int column = me + j * FLK_STEP_BLOCK<T>;
                flk_store(to, i + j * FLK_STEP_BLOCK<T>,
                          from < FLK_STEP_PLACES ? value[from][column]
                                                 : number[from - FLK_STEP_PLACES]);
            }
        }
    }
}

template <class T> static const char *flk_step_of(const flk_step_rule *r, flk_step_list *l) {
    int64_t blocks = 0;
    for (int i = 0; i < l->n; i++) {
        l->first[i] = (int)blocks;
        blocks += (l->entry[i].n + FLK_STEP_TAKES<T> - 1) / FLK_STEP_TAKES<T>;
    }
    if (!blocks) return NULL;
    return FLK_LAUNCH(flk_step_kernel<T>, (unsigned)blocks, FLK_STEP_BLOCK<T>, *r, *l);
}

const char *flk_step(const flk_step_rule *r, flk_step_list *l) {
    return r->dtype[r->n_reads] == FLK_F64 ? flk_step_of<double>(r, l) : flk_step_of<float>(r, l);
}

/* ---- sums of squares: one block per part; the last block to finish adds the parts in order ---- */

template <class T>
__global__ void flk_squares_kernel(flk_squares_list l, int dtype, double *part, int *ended) {
    __shared__ int place;
    int block = (int)blockIdx.x;
    const int at = flk_entry_of(l.first, l.n, &block), parts = l.first[at + 1] - l.first[at];
    const flk_squares_entry &e = l.entry[at];
    const int64_t size = (e.n + parts - 1) / parts, begin = block * size;
    const int64_t end = begin + size < e.n ? begin + size : e.n;
    T sum = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += FLK_BLOCK) {
        const T v = flk_load_at<T>(e.p, dtype, i);
        sum += v * v;
    }
    sum = flk_team<FLK_BLOCK>(sum, flk_sum_of());
    if (threadIdx.x == 0) {
        part[blockIdx.x] = (double)sum;
        __threadfence();
        place = atomicAdd(ended, 1);
    }
    __syncthreads();
    if (threadIdx.x || place != (int)gridDim.x - 1) return;
    __threadfence();
    const volatile double *sums = part;
    double all = 0;
    for (int k = 0; k < l.n; k++) {
        double one = 0;
        if (!l.entry[k].follows) all = l.entry[k].before ? *l.entry[k].before : 0;
        for (int i = l.first[k]; i < l.first[k + 1]; i++) one += sums[i];
        all += one;
        if (l.entry[k].y) *l.entry[k].y = all;
    }
    *ended = 0;
}

const char *flk_squares(flk_squares_list *l, int dtype, double *part, int *ended) {
    int64_t blocks = 0;
    for (int i = 0; i < l->n; i++) {
        const int64_t parts = (l->entry[i].n + 8191) / 8192;
        l->first[i] = (int)blocks;
        blocks += parts < 1                            ? 1
                  : parts < (int64_t)FLK_SQUARES_PARTS ? parts
                                                       : (int64_t)FLK_SQUARES_PARTS;
    }
    l->first[l->n] = (int)blocks;
    if (!blocks) return NULL;
    if (dtype == FLK_F64)
        return FLK_LAUNCH(flk_squares_kernel<double>, (unsigned)blocks, FLK_BLOCK, *l, dtype, part,
                          ended);
    return FLK_LAUNCH(flk_squares_kernel<float>, (unsigned)blocks, FLK_BLOCK, *l, dtype, part,
                      ended);
}
/* MIT licence: see LICENSE. */
