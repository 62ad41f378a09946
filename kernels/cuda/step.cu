/* kernels/cuda/step.cu - optimizer steps, and sums of squares, of many tensors in one launch each

   A step's rule is a program (fl/tensor/formula.h). If it is not compiled (program.h), one thread per block
   computes what depends on scalars only, in f64; then all interpret the rest, a few elements at a time, on
   values in shared memory. */
#include "common.cuh"

enum {
#define FLK_NUMBER(word, op, ...) FLK_PRIMITIVE_##op,
    FL_PRIMITIVES(FLK_NUMBER)
#undef FLK_NUMBER
};

/* Primitive `which` of a, b, c; conditions are 1 or 0. */
#define FLK_ARGS_1 (a)
#define FLK_ARGS_2 (a, b)
#define FLK_IF_FLOAT(...) __VA_ARGS__
#define FLK_IF_NUM(...) __VA_ARGS__
#define FLK_IF_ANY(...) __VA_ARGS__
#define FLK_IF_CMP(...) __VA_ARGS__
#define FLK_IF_INT(...)
#define FLK_IF_CHOICE(...)
#define FLK_CASE(word, op, n, cls) \
    FLK_IF_##cls(case FLK_PRIMITIVE_##op : return (T)FLK_CALL(op) FLK_ARGS_##n;)
#define FLK_PRIMITIVE(type) \
    static __device__ __forceinline__ type flk_primitive(int which, type a, type b, type c) { \
        using T = type; \
        switch (which) { \
            FL_PRIMITIVES(FLK_CASE) \
        case FLK_PRIMITIVE_bitwise_and: return (T)(a != 0 && b != 0); \
        case FLK_PRIMITIVE_bitwise_or: return (T)(a != 0 || b != 0); \
        case FLK_PRIMITIVE_bitwise_xor: return (T)((a != 0) != (b != 0)); \
        case FLK_PRIMITIVE_bitwise_not: return (T)(a == 0); \
        default: return a != 0 ? b : c; \
        } \
    }
#define FLK_CALL(op) flm_##op##_f32
FLK_PRIMITIVE(float)
#undef FLK_CALL
#define FLK_CALL(op) flm_##op##_f64
FLK_PRIMITIVE(double)

enum { FLK_STEP_BYTES = 512, FLK_STEP_EACH = 2, FLK_STEP_TURNS = 16 };
/* Threads per block, such that its values fit into shared memory; elements per block. */
template <class T> static constexpr int FLK_STEP_BLOCK = FLK_STEP_BYTES / (int)sizeof(T);
template <class T>
static constexpr int64_t FLK_STEP_TAKES = FLK_STEP_BLOCK<T> *FLK_STEP_EACH *FLK_STEP_TURNS;

/* Computes the cells: scalars, constants, and words on them. */
static __device__ void flk_step_cells(const flk_step_rule &r, const flk_step_entry &e,
                                      double *cell) {
    flk_step_numbers(r, e, cell);
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

const char *flk_step(const flk_step_rule *r, flk_step_list *l, void *kernel) {
    const bool f64 = r->dtype[r->n_reads] == FLK_F64;
    const int64_t compiled = FLK_BLOCK * FLK_STEP_RUNS * (f64 ? FLK_VECTOR<double> : FLK_VECTOR<float>);
    const int64_t takes = kernel ? compiled : f64 ? FLK_STEP_TAKES<double> : FLK_STEP_TAKES<float>;
    void *args[] = {(void *)r, l};
    int64_t blocks = 0;
    for (int i = 0; i < l->n; i++) {
        l->first[i] = (int)blocks;
        blocks += (l->entry[i].n + takes - 1) / takes;
    }
    if (!blocks) return NULL;
    if (kernel) return flk_kernel_launch(kernel, blocks, FLK_BLOCK, args);
    return f64 ? FLK_LAUNCH(flk_step_kernel<double>, (unsigned)blocks, FLK_STEP_BLOCK<double>, *r, *l)
               : FLK_LAUNCH(flk_step_kernel<float>, (unsigned)blocks, FLK_STEP_BLOCK<float>, *r, *l);
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
