/* kernels/cuda/flk.h - interface between backend.h (C) and the kernels (CUDA): plain structs, flk_ functions

   Functions start kernels on this thread's current stream and return NULL, or an error text, which stays
   valid. Sizes are in elements; pointers are device pointers to element [0, ...]. The caller checks shapes
   and dtypes; errors that depend on the data (an index out of range, x % 0) are stored, the first only, for
   flk_take_fault. */
#ifndef FLK_H
#define FLK_H

#ifndef __CUDACC_RTC__ /* NVRTC includes rtc.h first */
#include <stddef.h>
#include <stdint.h>
#endif
#include "pass.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- runtime ---- */

/* flk_start opens driver and device, and makes it this thread's current device; cheap when repeated. */
enum { FLK_DEVICES = 8 };
const char *flk_start(int device);
int flk_device(void); /* this thread's current device; initially 0 */
const char *flk_get(void **p, size_t bytes);
const char *flk_put(void *p);
const char *flk_host_get(void **p, size_t bytes); /* pinned */
const char *flk_host_put(void *p);
/* Copies between host and device, or within the device. Waits unless both are on the device. */
const char *flk_copy(void *dst, const void *src, size_t bytes);
const char *flk_copy_later(void *dst, const void *src, size_t bytes); /* does not wait for pinned memory */
const char *flk_zero(void *p, size_t bytes);
const char *flk_sync(int device);  /* waits for all streams of a device */
const char *flk_sync_all(void);    /* waits for all devices */
const char *flk_sync_stream(void); /* waits for the current stream */
size_t flk_limit(void);
uint64_t flk_model(void); /* a hash of the current device's model */
/* Registers a callback, called before any thread starts, copies or waits for other work: flushes a queue. It
   takes the queue's lock, so that every thread waits until it has ended, launches by flk_run, and then
   unregisters (NULL). */
void flk_before_next(const char *(*work)(void));
const char *flk_run(const char *(*work)(void)); /* calls work, in which this thread does not flush */

/* Streams by number, and as cudaStream_t: those of fl_stream, then those of process groups (fl_dist.h). */
enum { FLK_GROUP_STREAM = 256, FLK_GROUP_STREAMS = 32, FLK_STREAMS = FLK_GROUP_STREAM + FLK_GROUP_STREAMS };
const char *flk_use_stream(int device, int n, void **stream); /* sets this thread's current stream */
void *flk_stream_now(void);    /* the current stream, after flushing the queue */
void *flk_stream_in_use(void); /* the current stream, without flushing */
/* After a launch: the text of `error`, a cudaError_t of `what`, or of queued work launched before. */
const char *flk_launched(int error, const char *what);
void *flk_swap_stream(void *stream); /* changes it temporarily: returns the old one; NULL changes nothing */
/* flk_mark records an event after all work of `stream`; it leaves *event while the stream is captured, as all
   its work ended before. flk_wait makes later work of `stream`, on any device, wait for it, or, if stream is
   NULL, the host. flk_waits: whether it is still to come. No event (NULL) has happened. */
const char *flk_mark(void **event, void *stream);
const char *flk_wait(void *stream, void *event);
int flk_waits(void *event);
void flk_unmark(void *event);

/* Between flk_capture and flk_captured the stream's work is captured, not run, and this thread may not wait
   or allocate. Random numbers start at counter + *word, which flk_replay sets. */
const char *flk_capture(void *stream, const uint64_t *word);
const char *flk_captured(void *stream, void **graph);
const char *flk_replay(void *graph, uint64_t *word, uint64_t value);
void flk_graph_put(void *graph);
const uint64_t *flk_rng_word(void); /* device pointer of the graph being captured; or NULL */

/* The first error in the data since the last call, after a flk_sync: the op that met it, or 0. */
typedef struct flk_fault {
    int op, zero; /* zero: integer division by 0; else an index out of range */
    int64_t index, size, axis;
    struct flk_fault *host; /* of the one on the device: where the host reads it */
} flk_fault;
flk_fault flk_take_fault(int device);

/* ---- element-wise: operands are y, x or y, a, b; of gradients dx, x, y, dy or da, a, b, y, dy (also db;
   da, db, a, b, y, dy). `dtype` is the wide one of the computation. ---- */

enum { FLK_Y, FLK_DA, FLK_DB, FLK_DA_DB };
const char *flk_formula(const flk_pass *p, int which, int dtype);
const char *flk_where(const flk_pass *p, int dtype); /* y, condition, a, b */
const char *flk_convert(const flk_pass *p);          /* y, x of any dtypes: a cast or a strided copy */
/* Copies of several tensors y, x of one dtype in one launch. Sets n and first. */
enum { FLK_PARTS = 8 };
typedef struct flk_parts {
    int parts;
    int64_t n, first[FLK_PARTS]; /* threads; first thread of each part, at the start of a block */
    flk_pass part[FLK_PARTS];
} flk_parts;
const char *flk_concat(flk_parts *p);
const char *flk_fill(const flk_pass *p, uint64_t bits);
const char *flk_iota(const flk_pass *p, double f_start, double f_step, int64_t i_start, int64_t i_step);
/* fl_random_args: y is contiguous. dist: 0 uniform, 1 normal, 2 integer. */
typedef struct flk_random_args {
    void *y;
    int64_t n;
    int dtype, dist;
    double a, b;
    int64_t ia, ib;
    uint64_t key, counter;
    const uint64_t *word; /* flk_rng_word */
} flk_random_args;
const char *flk_random(const flk_random_args *a);

/* ---- kernels that are compiled while the process runs (nvrtc.h) ---- */

int flk_architecture(void); /* of the current device: 90 for sm_90; 0: unknown */
/* *kernel: of machine code for the current device's architecture, on all such devices; it stays loaded. */
const char *flk_kernel_load(void **kernel, const void *code, const char *name);
const char *flk_kernel_launch(void *kernel, int64_t blocks, int threads, void **args);
const char *flk_program_run(void *kernel, const flk_program *p); /* a kernel named "program" */

/* ---- reductions: t[0] is y by the kept dims, t[1] x, whose other dims follow. Both are ordered by x's
   memory, but for argmin/argmax in logical order. inner: the innermost reduced dim is closer in memory than
   the innermost kept one ---- */

enum { FLK_SUM, FLK_PROD, FLK_AMAX, FLK_AMIN, FLK_ARGMAX, FLK_ARGMIN };
typedef struct flk_reduction {
    flk_pass kept;
    int ndim, inner;
    int64_t n, shape[FLK_DIMS], stride[FLK_DIMS];
    int64_t parts, size; /* the n elements in parts of `size`; part: parts kept.n values, if parts > 1 */
    void *part;
} flk_reduction;
int64_t flk_reduce_parts(flk_reduction *r, int kind); /* sets parts and size */
const char *flk_reduce(const flk_reduction *r, int kind, int dtype);

/* ---- along one axis: a pass over all other dims, and the strides along the axis ---- */

typedef struct flk_lines {
    flk_pass pass; /* pass.n lines */
    int64_t length, step[FLK_OPERANDS];
    int64_t size; /* size of the indexed axis */
    int axis;
} flk_lines;
enum { FLK_GATHER, FLK_SCATTER, FLK_SCATTER_ADD };
const char *flk_scan(const flk_lines *l, int product, int dtype);  /* y, x */
const char *flk_index(const flk_lines *l, int kind, int dtype);    /* y, index, x or src */
/* FLK_SCATTER_ADD if all lines share an index (its other strides are 0): f32, f64, i64. */
size_t flk_scatter_rows_work(const flk_lines *l); /* bytes of work */
const char *flk_scatter_rows(const flk_lines *l, int dtype, int64_t *work);
/* y, index, x, where y and index have size <= length elements per line; work has space for 2 n length i64. */
const char *flk_sort(const flk_lines *l, int descending, int dtype, int64_t *work);
const char *flk_nonzero(const void *x, int64_t n, int ndim, const int64_t *shape, int64_t *y);

/* ---- products ---- */

/* y[b] = a[b] c[b] for batches over b's dims, with strides of rows and columns. f32, f64, i64. */
typedef struct flk_product {
    flk_pass batch; /* y, a, b */
    int64_t m, n, k;
    int64_t row[3], column[3];
} flk_product;
const char *flk_matmul(const flk_product *p, int dtype);

/* y [m, n], contiguous f32, = x [m, k] w [n, k]^T, x f32 and w half: for few rows. */
typedef struct flk_stored {
    flk_operand x, w;
    float *y;
    int64_t m, n, k;
} flk_stored;
const char *flk_linear_stored(const flk_stored *s);

/* By strides: y [n, o, oh, ow], x [n, c, h, w], w [o, c / groups, kh, kw]. f32, f64. */
typedef struct flk_conv {
    flk_operand y, x, w;
    int64_t shape_y[4], shape_x[4], shape_w[4];
    int64_t stride[2], pad[2], dilation[2], groups;
} flk_conv;
enum { FLK_CONV, FLK_CONV_GRAD_INPUT, FLK_CONV_GRAD_WEIGHT };
const char *flk_conv2d(const flk_conv *c, int which, int dtype);

/* ---- rows, channels, windows. The computation is in dtype, f32 or f64; operands with a dtype field have
   that or a narrower one, `void *` have dtype. NULL pointers: unused or absent. ---- */

const char *flk_softmax(const flk_lines *l, int log, int grad, int dtype); /* y, x;  dx, y, dy */

/* fl_cross_entropy_args, on contiguous rows; dx selects the gradient. */
typedef struct flk_cross_entropy_rows {
    flk_operand x, dx;
    const int64_t *target;
    void *loss, *largest, *sum;
    const void *dy;
    int64_t rows, classes, ignore;
    double smoothing;
    int fault_op; /* the op blamed for a target out of range */
} flk_cross_entropy_rows;
const char *flk_cross_entropy(const flk_cross_entropy_rows *e, int dtype);

/* fl_norm_args, on contiguous rows of n. In the gradient y is dx. work: flk_norm_parts(rows) * 2 n values if
   dw or db are computed. With a branch, x is first set to add + dropout(branch). */
typedef struct flk_norm {
    flk_operand x, y, dy, w, b, branch, add;
    void *mean, *rstd, *dw, *db;
    int64_t rows, n;
    double eps, drop, scale; /* flk_norm_run sets scale, and word to flk_rng_word */
    uint64_t key, counter;
    const uint64_t *word;
    int rms;
} flk_norm;
int64_t flk_norm_parts(int64_t rows);
const char *flk_norm_run(flk_norm *a, int dtype);
const char *flk_norm_grad(const flk_norm *a, void *work, int dtype);

/* fl_batch_norm_args, on contiguous images: channels are innermost (last), or planes of `width`. count
   values per channel, in `parts` of `size`; part: parts * 2 * channels values of statistics and gradients,
   NULL in a gradient of add alone. flk_batch_norm_run updates running_mean, running_var and batches, if they
   are not NULL. A block has a part of one of `columns` rows of channels: `lanes`
   threads by `each` channels. */
typedef struct flk_batch_norm {
    flk_operand x, y, add, dy, dx, dadd, w, b;
    void *mean, *var, *dw, *db, *part, *running_mean, *running_var;
    int64_t *batches, channels, width, count, size, parts, columns;
    double eps, momentum, unbiased;
    int last, relu, lanes, each;
} flk_batch_norm;
void flk_batch_norm_parts(flk_batch_norm *a, int dtype); /* sets size, parts, columns, lanes and each */
const char *flk_batch_statistics(const flk_batch_norm *a, int dtype); /* mean and var */
const char *flk_batch_norm_run(const flk_batch_norm *a);
const char *flk_batch_norm_grad(const flk_batch_norm *a, int dtype);

/* fl_batch_norm_args with groups, on contiguous images: `images` with channels of `width`, innermost if last.
   known: mean and var [images, groups] are given. In the gradient y is dx; part: 2 images channels values. */
typedef struct flk_group_norm {
    flk_operand x, y, dy, w, b;
    void *mean, *var, *dw, *db, *part;
    int64_t images, channels, groups, width;
    double eps;
    int last, known;
} flk_group_norm;
const char *flk_group_norm_run(const flk_group_norm *a, int dtype);
const char *flk_group_norm_grad(const flk_group_norm *a, int dtype);

/* fl_resample_args: lines y, x along the axis, of `size` and n elements; k contiguous taps per element of y,
   or of x in the adjoint, `taps` in all. inside may be NULL. work: 2 size numbers for the adjoint. */
typedef struct flk_resampling {
    flk_lines lines;
    const int64_t *at;
    const void *weight;
    const uint8_t *inside;
    int64_t *work;
    int64_t n, size, k, taps;
    int adjoint;
} flk_resampling;
const char *flk_resample(const flk_resampling *s, int dtype);

/* fl_pool2d_args, by strides. in -> out: x -> y, or dy -> dx. index: u8 (in windows) or, forward, i64.
   flk_pool2d sets threads and last, whether channels are innermost. */
typedef struct flk_pool {
    flk_operand in, out, index;
    int64_t image[4], pooled[4], kernel[2], stride[2], pad[2], threads;
    int count_pad, last;
} flk_pool;
const char *flk_pool2d(const flk_pool *a, int max, int grad, int dtype); /* max: else average */

const char *flk_dropout(const flk_pass *p, double drop, uint64_t key, uint64_t counter, int dtype); /* y, x */
const char *flk_glu(const flk_pass *p, int grad, int dtype); /* y, a, g;  da, dg, a, g, dy */

/* fl_attention_args, on contiguous rows of scores q k^T: n queries by m keys per batch. Mask: b8, of the
   scores' dtype, or a number for none. lse, scores and dweights (gradient by the dropped-out weights) have
   the dtype; weights and dscores may overwrite their inputs. */
typedef struct flk_attention {
    flk_pass batch; /* the mask */
    int64_t mask_row, mask_column, rows, n, m, offset, window;
    const void *scores, *dweights;
    flk_operand weights, dscores;
    void *lse;
    double scale, softcap, drop;
    uint64_t key, counter;
    const uint64_t *word; /* flk_rng_word */
    int causal;
} flk_attention;
const char *flk_attention_weights(const flk_attention *a, int dtype);   /* also computes lse */
const char *flk_attention_dscores(const flk_attention *a, int dtype); /* recomputes the weights from lse */
/* Corrects lines of y and lse (f32) of queries without a visible key: if lse < `least`, y becomes 0 and lse
   inf. */
const char *flk_attention_blind(const flk_lines *l, double least);

/* fl_ctc_args, by strides: x and dx [t, n, c], of any floats, target [n, longest]; dx selects the gradient.
   work: flk_ctc_work numbers. A length or label out of range is an error of fault_op, and makes its sequence
   impossible. */
typedef struct flk_ctc {
    flk_operand x, target, steps, lengths, total, dy, dx;
    void *work;
    int64_t t, n, classes, longest, places, blank; /* places: 2 longest + 1 */
    int fault_op;
} flk_ctc;
int64_t flk_ctc_work(const flk_ctc *c);
const char *flk_ctc_run(const flk_ctc *c, int dtype);

/* fl_lattice_args, contiguous: first and second are the two float operands and total; d_first selects the
   gradient of both. Transducer: [n, t, l + 1] and [n, t, l]; asg: [t, n, c] and [c, c], target [n, l]. work:
   flk_lattice_work numbers. Counts and labels out of range are errors of fault_op, and make their sequences
   impossible. */
typedef struct flk_lattice {
    const void *first, *second, *dy;
    void *total, *d_first, *d_second;
    const int64_t *target, *steps, *lengths;
    double *work;
    int64_t n, t, c, l;
    int asg, full, fault_op;
} flk_lattice;
int64_t flk_lattice_work(const flk_lattice *x);
const char *flk_lattice_run(const flk_lattice *x, int dtype);

/* fl_rnn_args, contiguous: step `step` of all sequences, for the second direction counted from the end. Rows
   are x's. [rows, ways, ...] are gate (gates hidden numbers), extra (`more`), y, dy, old (the previous
   states) and projected (out), dx and dh (gradients of the gates by x and by h, which differ in a GRU).
   [ways, n, ...] are h, c and the step's own:
     FORWARD  sums: h by W_hh; computes gate, extra (may be NULL), next h, c and y; projected: work instead
     PUT      sums: work by W_hr; computes h and y
     MEET     h and sums (NULL at the end): the rest of dh; computes old, work, projected: dy of this step
     BACK     the same without projection, else work: dy by W_hr; computes old, dx, dh, moment (dh of this
              step), h; c is dc */
typedef struct flk_rnn {
    void *gate, *extra, *y, *h, *c, *work, *projected, *dx, *dh, *moment, *old;
    const void *sums, *bias_x, *bias_h, *dy, *h0, *c0; /* biases, h0 and c0 may be NULL */
    const int64_t *lengths;                            /* NULL: steps */
    int64_t step, steps, n, hidden, out, more;
    int mode, gates, ways, batch_first;
} flk_rnn;
enum { FLK_RNN_FORWARD, FLK_RNN_PUT, FLK_RNN_MEET, FLK_RNN_BACK };
const char *flk_rnn_step(const flk_rnn *r, int what, int dtype);

/* fl_fft_args: lines of n complex numbers, `inner` apart; x and y contiguous. flk_fft_plan reads n, lines and
   inverse, sets the rest and returns the size of work in bytes. */
typedef struct flk_fft {
    const void *x;
    void *y, *work;
    int64_t n, inner, lines, m, blocks;
    int inverse, passes;
    uint8_t radix[64];
} flk_fft;
size_t flk_fft_plan(flk_fft *f);
const char *flk_fft_run(const flk_fft *f, int dtype);

/* ---- steps ---- */

/* kernel: the rule's, of program.h. */
const char *flk_step(const flk_step_rule *r, flk_step_list *l, void *kernel);

/* Sum of squares of p's elements, added to `before`, or 0; follows: added to the previous entry. y: NULL if
   only the next entry needs it. part: FLK_MANY * FLK_SQUARES_PARTS numbers; *ended: 0. */
enum { FLK_SQUARES_PARTS = 256 };
typedef struct flk_squares_entry {
    int64_t n;
    const void *p;
    const double *before;
    double *y;
    int follows;
} flk_squares_entry;
typedef struct flk_squares_list {
    int n, first[FLK_MANY + 1];
    flk_squares_entry entry[FLK_MANY];
} flk_squares_list;
const char *flk_squares(flk_squares_list *l, int dtype, double *part, int *ended);

#ifdef __cplusplus
}
#endif
#endif
/* MIT licence: see LICENSE. */
