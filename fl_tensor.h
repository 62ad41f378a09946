/* fl_tensor.h - tensors and scopes: shapes, creation, reading on the host; includes all ops

   A tensor is a small handle: shape, strides, dtype, and an offset into a buffer (or a backend's own
   state). Every op builds one call record and passes it to the backend of its operands. To write ops or
   backends, see fl_backend.h.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_tensor.h"
    int main(void) {
        fl_scope s = fl_scope_begin();               // owns all temporaries below
        fl_tensor *a = fl_arange(0, 6, 1, FL_F32);
        fl_tensor *m = fl_reshape(a, FL_SHAPE(2, 3));
        fl_print(fl_add(fl_mul(m, fl_num(2)), fl_ones(FL_SHAPE(3), FL_F32)));
        fl_print(fl_matmul(m, fl_transpose(m, 0, 1)));
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>build >>shapes >>tensors >>scopes >>options >>create >>read >>backends >>checks >>implementation
   Files (included automatically): fl/ops/ has one file per op group, with prototypes on tensors (fl_) and on
   variables (fv_); fl/tensor/ has casts, copies, views and internals of dispatch; fl/tools/ has
     print.h    tensors as text            anomaly.h  finds the first NaN or infinity
     profile.h  profiler                   alive.h    live objects, and where they were created
     cost.h     operation counts and bytes of a call

   >>build: macros, all optional (besides those of fl_mem.h)
     FL_DEBUG                   detect use after free: ops report tensors and variables used after their
                                scope ended, other functions freed modules, data sets, optimizers ...
     FL_TENSOR_BACKEND=cpu      backend of new tensors; fl_backend_<name>() must exist
     FL_TENSOR_BACKEND_H='"x"'  header that defines it, included by the implementation
     FL_USE_CUDA                backend cuda (kernels/cuda/backend.h); link the libfl.a of make CUDA=1
     FL_USE_OPENBLAS            matrix products through cblas (link -lopenblas)
     FL_USE_LAPACK              solve, lu, cholesky, qr, svd, eigh, eig, det (link -lopenblas or -llapack)

   Concepts
     Lifetime    A function that returns a fl_tensor * returns a value owned by the innermost scope of this
                 thread: you never free temporaries. fl_keep adds a reference to a value you store, fl_drop
                 removes it. Arguments are borrowed. Views share storage.
     Errors      See fl_mem.h. On failure every function below records an error and returns NULL (or false).
     Broadcast   NumPy's rule: trailing dims are aligned, dims of 1 are expanded.
     Promotion   PyTorch's: category b8 < integer < float; within a category the wider one; 0-d weak numbers
                 (fl_num) never promote within a category. Float default f32, index and integer default i64.
     Semantics   Those of PyTorch 2.x. Integers wrap; true division of integers gives float; remainder
                 follows the divisor's sign; float -> integer saturates and NaN gives 0; f16 and bf16
                 compute in f32, narrow integers in i64, and round or wrap once at the end of the op; NaN
                 propagates through maximum, minimum, relu, amax, amin; sums of b8 and integers are i64;
                 empty: sum 0, prod 1, mean NaN, amax an error. There are no complex dtypes: a last axis of
                 2 holds real and imaginary parts (fl/ops/fft.h). */
#include "fl_mem.h"
#ifndef FL_TENSOR_H
#define FL_TENSOR_H

#ifdef __cplusplus
extern "C" {
#endif

#ifndef FL_TENSOR_BACKEND
#define FL_TENSOR_BACKEND cpu
#endif

/* >>shapes ------------------------------------------------------------------------------------- */

#define FL_MAX_DIMS 8
typedef struct fl_shape {
    int ndim;
    int64_t dim[FL_MAX_DIMS];
} fl_shape;
/* A shape: FL_SHAPE(2, 3); FL_SCALAR_SHAPE for a 0-d tensor. */
#define FL_SHAPE(...) FL_LITERAL(fl_shape, FL_COUNT(int64_t, __VA_ARGS__), {__VA_ARGS__})
#define FL_SCALAR_SHAPE FL_LITERAL(fl_shape, 0, {0})
/* Axes of a reduction: FL_AXES(0, -1), negative ones count from the end; FL_ALL_AXES. FL_AXES_KEEP, or
   .keepdim, keeps the reduced dims as 1. */
typedef struct fl_axes {
    int n;
    int axis[FL_MAX_DIMS];
    bool keepdim;
} fl_axes;
#define FL_AXES(...) FL_LITERAL(fl_axes, FL_COUNT(int, __VA_ARGS__), {__VA_ARGS__}, false)
#define FL_AXES_KEEP(...) FL_LITERAL(fl_axes, FL_COUNT(int, __VA_ARGS__), {__VA_ARGS__}, true)
#define FL_ALL_AXES FL_LITERAL(fl_axes, 0, {0}, false) /* n = 0 means all axes */
/* Product of the dims (1 for 0-d); -1 if a dim is negative, ndim is out of range or the product exceeds
   2^62. */
FL_API int64_t fl_shape_numel(fl_shape s);
/* Writes "[2, 3]" into buf; returns buf. */
FL_API char *fl_shape_text(fl_shape s, char *buf, size_t size);

/* >>tensors ------------------------------------------------------------------------------------ */

/* Reference-counted object header: the first member of every type that scopes can own, such as fl_tensor and
   fl_var. */
typedef struct fl_obj fl_obj;
struct fl_obj {
    int refs_;
    uint32_t size_;
    void (*drop_)(fl_obj *self); /* destructor: releases what self owns, then calls fl_obj_free */
};

typedef struct fl_tensor fl_tensor;
typedef struct fl_var fl_var;   /* fl_autograd.h: a tensor with its gradient */
typedef struct fl_node fl_node; /* and the tape's record of the op that produced it */
typedef int fl_op;              /* FL_OP_<name> in op_table.h and fl_backend.h, fl_op_<name> if registered */
enum { FL_OP_NONE = 0 };
typedef struct fl_call fl_call;  /* the record of one op: fl_backend.h */
struct fl_tensor {
    fl_obj obj;
    fl_dtype dtype;
    uint8_t backend;               /* index of its backend; FL_ANY_BACKEND for weak numbers */
    bool weak;                    /* a number of fl_num or fl_int: value in f64 and i64, no storage */
    bool copied;                  /* a copy instead of a view, which the backend lacks: writes would be
                                     lost */
    int ndim;
    int64_t shape[FL_MAX_DIMS];   /* shape[0] and stride[0] of a 0-d tensor are 1: see fl_axis_of */
    int64_t stride[FL_MAX_DIMS];  /* in elements; 0 where broadcast, may be negative */
    int64_t offset;               /* of element [0, ...], in elements from the buffer's start */
    fl_buffer *buffer;            /* NULL for weak numbers and for backends with storage of their own */
    void *impl;                   /* the backend's own state */
    double f64;                   /* value of a weak number as float, */
    int64_t i64;                  /* and as integer; both are always set */
    /* private */
    uint32_t version_;            /* counts in-place writes if there is no buffer to do so */
    fl_tensor *base_;             /* for a view without buffer: the handle that owns the storage */
};
#define FL_ANY_BACKEND 255

FL_API fl_shape fl_shape_of(const fl_tensor *t);
FL_API int64_t fl_numel(const fl_tensor *t);      /* 0 for NULL */
FL_API bool fl_is_contiguous(const fl_tensor *t); /* row-major without gaps */
/* True if a shape [n, c, ...] is stored as [n, ..., c] without gaps: see fl_channels_last. */
FL_API bool fl_is_channels_last(const fl_tensor *t);
/* True if stored without gaps, in any order of its axes; false for NULL. */
FL_API bool fl_is_dense(const fl_tensor *t);
/* Name of its backend; "any" for weak numbers, "none" for NULL. */
FL_API const char *fl_backend_name(const fl_tensor *t);
/* Number of in-place writes to t's storage so far, through any view. */
FL_API uint32_t fl_version_of(const fl_tensor *t);

/* Adds a reference; returns t. NULL passes. */
FL_API fl_tensor *fl_keep(fl_tensor *t);
/* Removes a reference; the last one frees t. NULL is allowed. */
FL_API void fl_drop(fl_tensor *t);
/* Number of live tensor handles in the process. */
FL_API int64_t fl_live_tensors(void);

/* For custom object types: a zeroed object with one reference, from per-thread free lists; size <= 1024
   bytes. NULL after fl_fail. */
FL_API void *fl_obj_new(size_t size, void (*drop)(fl_obj *self));
/* Frees the memory of o; called by its destructor only. */
FL_API void fl_obj_free(fl_obj *o);
/* Adds a reference. NULL is allowed, here and below. */
FL_API void fl_obj_keep(fl_obj *o);
/* Removes a reference; calls the destructor with the last one. */
FL_API void fl_obj_drop(fl_obj *o);
/* Like fl_obj_keep, but takes over the innermost scope's reference if o is its newest entry, which saves an
   atomic increment. For storing an object in another one of that scope, or moving it out. */
FL_API void fl_obj_steal(fl_obj *o);
/* Passes the caller's reference to the innermost scope. False after fl_fail if out of memory; the reference
   is then dropped. */
FL_API bool fl_scope_adopt(fl_obj *o);

/* >>scopes ------------------------------------------------------------------------------------- */

typedef struct fl_scope {
    int64_t depth_; /* its index in this thread's stack of scopes */
} fl_scope;
/* Begins a scope: it owns all values that this thread creates until it ends. Scopes nest. */
FL_API fl_scope fl_scope_begin(void);
/* Drops the values owned by the scope and by inner scopes left open (early return, longjmp); restores the
   flags. */
FL_API void fl_scope_end(fl_scope *s);
/* Ends the scope and passes t to the enclosing one; returns t. NULL passes. */
FL_API fl_tensor *fl_scope_return(fl_scope *s, fl_tensor *t);
/* Passes o, any object, to the scope that encloses s; s stays open. For returning several results. Returns
   o; NULL after an error. NULL passes. */
FL_API void *fl_scope_escape(fl_scope *s, void *o);
/* Number of values that the innermost scope owns. */
FL_API int64_t fl_scope_size(void);
/* Number of open scopes of this thread. */
FL_API int64_t fl_scope_depth(void);
/* As fl_scope_begin, for a function composed of other ops: errors inside are attributed to fn; with nested
   ones the outermost wins. Pass __func__: fv_ and _opt are stripped, private names are ignored. */
FL_API fl_scope fl_scope_of(const char *fn);
/* As fl_scope_begin, for the runner of other functions, such as a module: errors inside begin with the text
   that describe(of) writes; with nested ones the innermost wins. */
FL_API fl_scope fl_scope_in(const void *of, void (*describe)(const void *of, char *buf, size_t size));
/* As fl_scope_begin, with a complete error context. */
FL_API fl_scope fl_scope_at(const fl_error_context *place);
/* The open scopes of fl_scope_in and fl_scope_at on this thread, outermost first: the nesting of running
   modules. `number` is unique per such call on this thread. Writes at most `most` of them, the outermost, to
   places and returns how many. */
typedef struct fl_call_frame {
    fl_error_context at;
    int64_t number;
} fl_call_frame;
FL_API int fl_call_stack(fl_call_frame *places, int most);
/* Provenance notes: fl_call_stack_text at the creation of an object, for later diagnostics. */
typedef struct fl_provenance {
    fl_obj obj;
    char text[232];
} fl_provenance;
/* Adds delta (+1, later -1) to a process-wide count; notes are made while it is positive. */
FL_API void fl_provenance_enable(int delta);
/* A note of the current call, owned by the caller; NULL, without an error, if disabled or out of memory. */
FL_API fl_provenance *fl_provenance_here(void);
/* Marks allocations as long-lived (parameters, optimizer state) until it is called with false or the scope
   ends: a hint for memory managers (fl_mem_info.lifetime). Returns the previous setting. */
FL_API bool fl_persistent(bool on);
/* Thread-local flags, saved and restored by scopes; initially 0. Bit 0: no-grad; bits 8 to 15:
   FL_AUTOCAST_FLAGS; 16 to 23: the stream (fl_stream); 40: KV cache (fl_nn_forward_cached); 41:
   FL_SHAPES_ONLY; 42: deferred execution (fl_lazy); 60 to 63: internal. */
FL_API uint64_t fl_flags(void);
/* Sets the flags; the internal ones are kept. */
FL_API void fl_set_flags(uint64_t flags);
#define FL_AUTOCAST_FLAGS ((uint64_t)0xFF << 8) /* bits of fl_flags: the autocast dtype, or 0 */
/* While set, constant and random tensors (fl_zeros, fl_full, fl_uniform, fl_normal ...) are created with
   their shape but a single element 0 for storage (stride 0), as on PyTorch's meta device: creating a module
   takes next to no memory or time. For loaders, which compare the shapes with a file's and then replace the
   values. Random generators advance as usual; the fl_nn_init_ functions do not change such parameters. */
#define FL_SHAPES_ONLY ((uint64_t)1 << 41)
/* Selects stream n (0 to 255, initially 0) of the device for the ops of this thread, until the next call or
   the end of the scope. Streams run concurrently; a tensor used in another stream is synchronised by
   fl_buffer_use. Backends without streams, such as cpu, ignore it. Returns the previous number, -1 after an
   error. */
FL_API int fl_stream(int n);

/* >>options ------------------------------------------------------------------------------------ */

/* Options are designated initialisers after the required arguments: fl_conv(x, w, NULL, .stride = {2}, .pad
   = {FL_SAME}). 0 means the default. Where 0 is a legal value other than the default, write FL_ZERO (float)
   or FL_I0 (integer) for it. */
#define FL_ZERO (-0.0)
#define FL_I0 INT32_MIN
#define FL_SAME (-1) /* padding: output size = ceil(input size / stride), an odd element goes to the end */
/* Resolves a float option: 0 gives otherwise, FL_ZERO gives 0. */
FL_API double fl_option(double value, double otherwise);
/* Resolves an integer option: 0 gives otherwise, FL_I0 gives 0. */
FL_API int64_t fl_option_int(int64_t value, int64_t otherwise);

/* >>create ------------------------------------------------------------------------------------- */

/* State of a random generator: Philox 4x32-10; each counter value gives four 32-bit words. */
typedef struct fl_rng {
    uint64_t key, counter;
} fl_rng;
/* Creation functions: on the default backend, row-major; dtype FL_DTYPE_NONE means f32. */
/* An uninitialised tensor. */
FL_API fl_tensor *fl_empty(fl_shape shape, fl_dtype dtype);
/* fl_empty on a given backend: "cpu" for tensors that the host fills. */
FL_API fl_tensor *fl_empty_on(const char *backend, fl_shape shape, fl_dtype dtype);
/* All elements are value, converted as by fl_cast; in a block dtype every number of each block. */
FL_API fl_tensor *fl_full(fl_shape shape, double value, fl_dtype dtype);
/* fl_full with value 0. */
FL_API fl_tensor *fl_zeros(fl_shape shape, fl_dtype dtype);
/* fl_full with value 1. */
FL_API fl_tensor *fl_ones(fl_shape shape, fl_dtype dtype);
/* Uninitialised, with shape, dtype and backend of t, and its axis order if t is dense. */
FL_API fl_tensor *fl_empty_like(fl_tensor *t);
/* fl_empty_like with all elements value. */
FL_API fl_tensor *fl_full_like(fl_tensor *t, double value);
/* All elements value, with dtype and backend of t but the given shape, row-major. */
FL_API fl_tensor *fl_new_full(const fl_tensor *t, fl_shape shape, double value);
/* Copies data, the elements of dtype in row-major order, from host memory. */
FL_API fl_tensor *fl_from_host(const void *data, fl_shape shape, fl_dtype dtype);
/* A weak 0-d float, as a Python scalar in PyTorch: it does not promote other floats. */
FL_API fl_tensor *fl_num(double value);
/* A weak 0-d integer: it does not promote other integers. */
FL_API fl_tensor *fl_int(int64_t value);
/* A copy on another backend; t itself if it is there already. */
FL_API fl_tensor *fl_to(fl_tensor *t, const char *backend);

/* >>read --------------------------------------------------------------------------------------- */

typedef enum fl_access { FL_READ = 1, FL_WRITE = 2, FL_ON_DEVICE = 4 } fl_access;
/* Host address of element [0, ...]; the others follow t->stride. Valid until fl_unmap with the same access
   (FL_READ, FL_WRITE or both). Waits for pending work on t. FL_WRITE counts as an in-place write. With
   FL_ON_DEVICE: the address for kernels on t's device, without waiting for it: see fl_buffer_use. NULL after
   an error. */
FL_API void *fl_map(fl_tensor *t, int access);
FL_API void fl_unmap(fl_tensor *t, int access);
/* The address that fl_map gives, for a tensor whose buffer is mapped, or inside a kernel slot. */
static inline void *fl_data(const fl_tensor *t) {
    char *p = (char *)t->buffer->ptr;
    return t->offset ? p + t->offset * (int64_t)fl_dtype_size(t->dtype) : p; /* NULL stays NULL */
}
/* Number of reads by the host so far (fl_map with FL_READ, and with it fl_item and fl_to_host), each of
   which synchronises with the device. Ops read if their output shape depends on values (fl_nonzero,
   fl_unique, fl_bincount ...), if indices may count from the end (fl_index, fl_take ...), if they check
   lengths or probabilities (fl_rnn, fl_length_mask, fl_bernoulli), and if they iterate (fl_gcd). Layers and
   optimizer steps do not. */
FL_API int64_t fl_host_reads(void);
/* Copies all elements, row-major, in t's dtype, to host memory; bytes must be numel * dtype size. */
FL_API bool fl_to_host(fl_tensor *t, void *dst, size_t bytes);
/* Overwrites t from host memory, in the layout of fl_to_host. */
FL_API bool fl_set_host(fl_tensor *t, const void *src, size_t bytes);
/* The value of a one-element tensor as float; NaN after an error, also for block dtypes (fl_dtype_info),
   which must be cast first. */
FL_API double fl_item(fl_tensor *t);
/* The same as integer (floats saturate); 0 after an error. */
FL_API int64_t fl_item_int(fl_tensor *t);
/* One element on the host as a number: f is always set, i for integer dtypes (a u64 bit by bit). NaN for
   NULL, unknown dtypes and block dtypes. */
typedef struct fl_number {
    bool real; /* the value is f; else i */
    double f;
    int64_t i;
} fl_number;
FL_API fl_number fl_number_load(fl_dtype d, const void *p);
/* Stores v at p, converted as by fl_cast. No effect if p is NULL or d is a block dtype. */
FL_API void fl_number_store(fl_dtype d, void *p, fl_number v);
/* >>backends --------------------------------------------------------------------------------- */

/* A backend (cpu, cuda ...) is known by its name; tensors carry its index. fl_backend.h defines its
   table. */

/* Instruction set of the cpu backend's kernels: "portable", "avx2", "avx512", "avx512_bf16" (avx512 with
   bf16 dot products) or "amx" (with AMX tiles as well): the best that the build and the CPU support, limited
   by the environment variable FL_CPU_LEVEL. */
FL_API const char *fl_cpu_level(void);
/* If on, a fallback to the cpu backend is an error; returns the previous setting. */
FL_API bool fl_backend_strict(bool on);
/* Number of calls that fell back to the cpu backend so far. */
FL_API int64_t fl_backend_fallbacks(void);
/* Sets the process-wide backend of new tensors (creation, random numbers). Initially that of the environment
   variable FL_DEVICE, or FL_TENSOR_BACKEND. False with an error if it is unknown. */
FL_API bool fl_backend_set_default(const char *name);
/* Index of the default backend. */
FL_API int fl_backend_default(void);
/* Index of a backend by name; -1 with an error if it is unknown. */
FL_API int fl_backend_index(const char *name);
/* Name of backend i; NULL past the last one. */
FL_API const char *fl_backend_name_of(int i);
/* True if the backend has its own kernel for op (a slot); false if it composes it or falls back. */
FL_API bool fl_backend_has(int backend, fl_op op);
/* "matmul"; "" for FL_OP_NONE and invalid values. */
FL_API const char *fl_op_name(fl_op op);
/* Waits for all pending work of t's backend. t NULL: runs all deferred calls (fl_lazy), of any thread. */
FL_API bool fl_sync(const fl_tensor *t);
/* True if t's backend executes asynchronously, so that reading t waits for it. */
FL_API bool fl_is_async(const fl_tensor *t);

/* >>checks ------------------------------------------------------------------------------------ */

/* The text "[2, 3]" of a tensor's shape, and of a shape; valid until the end of the full expression. */
#define FL_SHAPE_TEXT(t) (fl_text_of_shape(fl_shape_of(t)).s)
#define FL_TEXT_OF(shape) (fl_text_of_shape(shape).s)
typedef struct fl_str200 {
    char s[200];
} fl_str200;
FL_API fl_str200 fl_text_of_shape(fl_shape s);
/* True if the operand p is NULL; records an error unless one is pending. */
FL_API bool fl_is_null_arg(const char *fn, const void *p);
/* Under FL_DEBUG: true, with an error, for a use after free: p's last reference was dropped. The last few
   thousand objects are remembered (and counted as live by fl_live_tensors). Otherwise false. */
FL_API bool fl_is_dropped(const char *fn, const void *p);
/* True if an op may write into t; false, with an error, for a weak number, a copied view or a broadcast
   tensor, in which an element has several indices. */
FL_API bool fl_is_writable(const char *fn, const fl_tensor *t);
/* True if the shapes of a and b are equal. */
FL_API bool fl_same_shape(const fl_tensor *a, const fl_tensor *b);
/* True if t's shape is s. */
FL_API bool fl_shape_is(const fl_tensor *t, fl_shape s);
/* Broadcasts *s with t's shape, in place; false, without an error, if they are incompatible. */
FL_API bool fl_broadcast_shape(fl_shape *s, const fl_tensor *t);
/* The promoted dtype of n operands. */
FL_API fl_dtype fl_result_type(int n, fl_tensor *const *t);

#ifdef __cplusplus
}
#endif
#endif /* FL_TENSOR_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TENSOR) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_IMPL
#define FL_TENSOR_IMPL
#include "fl_backend.h"
#include "fl/tensor/copy.h"
/* >>implementation ----------------------------------------------------------------------------- */

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels/fl_math.h"

double fl_option(double value, double otherwise) {
    return value != 0 ? value : signbit(value) ? 0 : otherwise;
}

int64_t fl_option_int(int64_t value, int64_t otherwise) {
    return value == FL_I0 ? 0 : value ? value : otherwise;
}

/* Validates a shape and a dtype given by a caller. */
static bool fl__check_creation(const char *fn, fl_shape shape, fl_dtype dtype) {
    if (fl_dtype_size(dtype) == 0)
        return fl_err_false("%s: unknown dtype %d", fn, (int)dtype);
    if (fl_shape_numel(shape) < 0)
        return fl_err_false("%s: shape %s is not valid: expected up to %d dims >= 0, numel <= 2^62", fn,
                            FL_TEXT_OF(shape), FL_MAX_DIMS);
    return true;
}

/* A handle on the default backend, without storage. */
fl_tensor *fl_out_new(const char *fn, fl_shape shape, fl_dtype dtype, fl_dtype otherwise) {
    if (dtype == FL_DTYPE_NONE) dtype = otherwise;
    if (!fl__check_creation(fn, shape, dtype)) return NULL;
    fl_tensor *t = fl_out_on(fl_backend_default(), shape, dtype);
    return t ? t : fl_raise();
}

fl_tensor *fl_empty(fl_shape shape, fl_dtype dtype) {
    fl_tensor *t = fl_out_new("fl_empty", shape, dtype, FL_F32);
    return t && !fl_out_allocate(t) ? fl_raise() : t;
}

fl_tensor *fl_empty_on(const char *backend, fl_shape shape, fl_dtype dtype) {
    if (!fl_given(backend, "fl_empty_on", "the backend")) return fl_raise();
    const int f = fl_backend_index(backend);
    if (dtype == FL_DTYPE_NONE) dtype = FL_F32;
    if (f < 0) return fl_raise();
    if (!fl__check_creation("fl_empty_on", shape, dtype)) return NULL;
    fl_tensor *t = fl_out_on(f, shape, dtype);
    return t && fl_out_allocate(t) ? t : fl_raise();
}

/* The tensor for handle t under FL_SHAPES_ONLY: one element, expanded. */
static fl_tensor *fl__shape_only(const fl_tensor *t) {
    static const int64_t stride[FL_MAX_DIMS] = {0};
    const fl_fill_args zero = {0, 0};
    fl_tensor *one = fl_out_on(t->backend, FL_SCALAR_SHAPE, t->dtype);
    one = one ? fl_call_into(FL_OP_fill, one, NULL, NULL, &zero) : NULL;
    return one ? fl_view_of(one, fl_shape_of(t), stride, 0) : NULL;
}

static fl_tensor *fl__fill(fl_tensor *t, double value) {
    fl_fill_args a = {value, flm_f64_to_i64(value)};
    if (t && fl_flags() & FL_SHAPES_ONLY) return fl__shape_only(t);
    return t ? fl_call_into(FL_OP_fill, t, NULL, NULL, &a) : NULL;
}

fl_tensor *fl_full(fl_shape shape, double value, fl_dtype dtype) {
    return fl__fill(fl_out_new("fl_full", shape, dtype, FL_F32), value);
}

fl_tensor *fl_zeros(fl_shape shape, fl_dtype dtype) {
    return fl__fill(fl_out_new("fl_zeros", shape, dtype, FL_F32), 0);
}

fl_tensor *fl_ones(fl_shape shape, fl_dtype dtype) {
    return fl__fill(fl_out_new("fl_ones", shape, dtype, FL_F32), 1);
}

fl_tensor *fl_empty_like(fl_tensor *t) {
    if (fl_is_null_arg("fl_empty_like", t) || !(t = fl_materialise(t))) return NULL;
    fl_tensor *y = fl_out_layout_like(fl_out_like(t, t->dtype), t);
    return y && fl_out_allocate(y) ? y : fl_raise();
}

fl_tensor *fl_full_like(fl_tensor *t, double value) {
    if (fl_is_null_arg("fl_full_like", t) || !(t = fl_materialise(t))) return NULL;
    fl_tensor *y = fl_out_layout_like(fl_out_like(t, t->dtype), t);
    return y ? fl__fill(y, value) : fl_raise();
}

fl_tensor *fl_new_full(const fl_tensor *t, fl_shape shape, double value) {
    if (fl_is_null_arg("fl_new_full", t)) return NULL;
    if (t->weak) return fl_err_null("fl_new_full: t is a weak number, which has no backend");
    fl_tensor *y = fl_out_on(t->backend, shape, t->dtype);
    return y ? fl__fill(y, value) : fl_raise();
}

fl_tensor *fl_from_host(const void *data, fl_shape shape, fl_dtype dtype) {
    fl_tensor *t = fl_out_new("fl_from_host", shape, dtype, FL_F32);
    if (!t) return NULL;
    if (!data && fl_numel(t))
        return fl_err_null("fl_from_host: data is NULL, but shape %s is not empty", FL_SHAPE_TEXT(t));
    if (!fl_out_allocate(t)) return fl_raise();
    size_t bytes = (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
    return fl_set_host(t, data, bytes) ? t : NULL;
}

/* Checks that bytes is numel * dtype size and p is not NULL; false with an error. */
static bool fl__bytes_match(const char *fn, const fl_tensor *t, const void *p, size_t bytes) {
    size_t need = (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
    if (bytes == need && (p || !bytes)) return true;
    return fl_err_false("%s: %s of shape %s: got %zu bytes%s, expected %zu", fn, fl_dtype_name(t->dtype),
                        FL_SHAPE_TEXT(t), bytes, p ? "" : " at NULL", need);
}

bool fl_to_host(fl_tensor *t, void *dst, size_t bytes) {
    if (fl_is_null_arg("fl_to_host", t)) return false;
    fl_scope s = fl_scope_begin();
    bool ok = (t = fl_materialise(t)) && fl__bytes_match("fl_to_host", t, dst, bytes) &&
              (t = fl_contiguous(t)) != NULL;
    void *p = ok ? fl_map(t, FL_READ) : NULL;
    if (p && bytes) memcpy(dst, p, bytes);
    if (p) fl_unmap(t, FL_READ);
    fl_scope_end(&s);
    return p != NULL;
}

bool fl_set_host(fl_tensor *t, const void *src, size_t bytes) {
    if (fl_is_null_arg("fl_set_host", t)) return false;
    if (t->weak) return fl_err_false("fl_set_host: a weak number cannot be written");
    if (!fl__bytes_match("fl_set_host", t, src, bytes)) return false;
    if (!fl_is_contiguous(t)) {
        fl_scope s = fl_scope_begin();
        fl_tensor *dense = fl_out_on(t->backend, fl_shape_of(t), t->dtype);
        bool ok =
            dense && fl_out_allocate(dense) && fl_set_host(dense, src, bytes) && fl_assign(t, dense);
        fl_scope_end(&s);
        return ok;
    }
    void *p = fl_map(t, FL_WRITE);
    if (p && bytes) memcpy(p, src, bytes);
    if (p) fl_unmap(t, FL_WRITE);
    return p != NULL;
}

fl_number fl_number_load(fl_dtype d, const void *p) {
    if (!p) return (fl_number){true, (double)NAN, 0};
    switch (d) {
#define FL__NUMBER_LOAD(D, T, real, as_float, as_int)                \
    case D: {                                                 \
        T v;                                                  \
        memcpy(&v, p, sizeof v);                              \
        return (fl_number){real, (double)(as_float), as_int}; \
    }
        FL__NUMBER_LOAD(FL_B8, uint8_t, false, v, v)
        FL__NUMBER_LOAD(FL_U8, uint8_t, false, v, v)
        FL__NUMBER_LOAD(FL_I8, int8_t, false, v, v)
        FL__NUMBER_LOAD(FL_I16, int16_t, false, v, v)
        FL__NUMBER_LOAD(FL_I32, int32_t, false, v, v)
        FL__NUMBER_LOAD(FL_I64, int64_t, false, v, v)
        FL__NUMBER_LOAD(FL_U16, uint16_t, false, v, v)
        FL__NUMBER_LOAD(FL_U32, uint32_t, false, v, v)
        FL__NUMBER_LOAD(FL_U64, uint64_t, false, v, (int64_t)v)
        FL__NUMBER_LOAD(FL_F16, uint16_t, true, flm_f16_to_f32(v), 0)
        FL__NUMBER_LOAD(FL_BF16, uint16_t, true, flm_bf16_to_f32(v), 0)
        FL__NUMBER_LOAD(FL_F32, float, true, v, 0)
        FL__NUMBER_LOAD(FL_F64, double, true, v, 0)
#undef FL__NUMBER_LOAD
    default: break;
    }
    const fl_dtype_info *own = fl_dtype_registered(d);
    float number = NAN;
    if (own && own->block == 1) own->unpack(p, &number, 1);
    return (fl_number){true, (double)number, 0};
}

/* v as f32, rounded once; for a u64 above INT64_MAX v.i is negative and v.f positive. */
static float fl__number_f32(fl_number v) {
    if (v.real) return (float)v.f;
    return v.i < 0 && v.f > 0 ? (float)(uint64_t)v.i : (float)v.i;
}

void fl_number_store(fl_dtype d, void *p, fl_number v) {
    if (!p) return;
    switch (d) {
#define FL__NUMBER_STORE(D, T, name) \
    case D: memcpy(p, &(T){v.real ? flm_f64_to_##name(v.f) : (T)v.i}, sizeof(T)); break
        FL__NUMBER_STORE(FL_U8, uint8_t, u8);
        FL__NUMBER_STORE(FL_I8, int8_t, i8);
        FL__NUMBER_STORE(FL_I16, int16_t, i16);
        FL__NUMBER_STORE(FL_I32, int32_t, i32);
        FL__NUMBER_STORE(FL_I64, int64_t, i64);
        FL__NUMBER_STORE(FL_U16, uint16_t, u16);
        FL__NUMBER_STORE(FL_U32, uint32_t, u32);
        FL__NUMBER_STORE(FL_U64, uint64_t, u64);
#undef FL__NUMBER_STORE
    case FL_F16: memcpy(p, &(uint16_t){flm_f32_to_f16(fl__number_f32(v))}, 2); break;
    case FL_BF16: memcpy(p, &(uint16_t){flm_f32_to_bf16(fl__number_f32(v))}, 2); break;
    case FL_F32: memcpy(p, &(float){fl__number_f32(v)}, 4); break;
    case FL_F64: memcpy(p, &v.f, 8); break;
    case FL_B8: *(uint8_t *)p = v.real ? v.f != 0 : v.i != 0; break;
    default: {
        const fl_dtype_info *own = fl_dtype_registered(d);
        if (own && own->block == 1) own->pack(&(float){fl__number_f32(v)}, p, 1);
    }
    }
}

/* Reads the single element of t as f64 and i64. */
static bool fl__single_element(const char *fn, fl_tensor *t, double *f, int64_t *i) {
    if (fl_is_null_arg(fn, t)) return false;
    if (t->weak) {
        *f = t->f64;
        *i = t->i64;
        return true;
    }
    if (fl_numel(t) != 1)
        return fl_err_false("%s: shape %s has %lld elements, not one", fn, FL_SHAPE_TEXT(t),
                       (long long)fl_numel(t));
    const fl_dtype_info *own = fl_dtype_registered(t->dtype);
    if (own && own->block > 1)
        return fl_err_false("%s: an element of %s is a block of %d numbers: cast the tensor", fn, own->name,
                            own->block);
    const void *p = fl_map(t, FL_READ);
    if (!p) return false;
    const fl_number v = fl_number_load(t->dtype, p);
    *f = v.f;
    *i = v.real ? flm_f64_to_i64(v.f) : v.i;
    fl_unmap(t, FL_READ);
    return true;
}

double fl_item(fl_tensor *t) {
    double f = 0;
    int64_t i = 0;
    return fl__single_element("fl_item", t, &f, &i) ? f : (double)NAN;
}

int64_t fl_item_int(fl_tensor *t) {
    double f = 0;
    int64_t i = 0;
    return fl__single_element("fl_item_int", t, &f, &i) ? i : 0;
}

bool fl_is_writable(const char *fn, const fl_tensor *t) {
    if (fl_is_null_arg(fn, t)) return false;
    if (t->weak) return fl_err_false("%s: a weak number cannot be written", fn);
    if (t->copied)
        return fl_err_false("%s: backend '%s' copies views: the write would be lost; write the whole tensor",
                   fn, fl_backend_name(t));
    for (int i = 0; i < t->ndim; i++)
        if (t->stride[i] == 0 && t->shape[i] > 1)
            return fl_err_false("%s: shape %s is broadcast: an element would be written several times",
                           fn, FL_SHAPE_TEXT(t));
    return true;
}

#endif /* FL_TENSOR_IMPL */
#endif

/* The files of this header. Objects built by the Makefile (FL_IMPL_ONLY) include those that they use. */
#if !defined(FL_IMPL_ONLY) && !defined(FL_TENSOR_FILES)
#define FL_TENSOR_FILES
FL__GLUE_BEGIN
#include "fl/ops/ops.h"
FL__GLUE_END
#include "fl/tools/print.h"
#include "fl/tools/cost.h"
#include "fl/tools/profile.h"
#include "fl/tools/anomaly.h"
#include "fl/tools/alive.h"
#endif
#if defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY) && !defined(FL_TENSOR_FILES_IMPL)
#define FL_TENSOR_FILES_IMPL
#include "fl_backend.h"
#include "fl/tensor/formula.h"
#include "fl/tensor/memo.h"
#include "fl/tensor/blocks.h"
#include "fl/tensor/copy.h"
#include "fl/tensor/view.h"
#include "fl/tensor/where.h"
#include "fl/tensor/rng.h"
#include "fl/records/linear.h"
#include "fl/records/recurrent.h"
#include "fl/records/step.h"
#include "kernels/cpu/backend.h"
#ifdef FL_USE_CUDA
#include "kernels/cuda/backend.h"
#endif
FL__GLUE_BEGIN
#include "fl/ops/ops.h"
FL__GLUE_END
#include "fl/tools/print.h"
#include "fl/tools/cost.h"
#include "fl/tools/profile.h"
#include "fl/tools/anomaly.h"
#include "fl/tools/alive.h"
#endif

/* MIT licence: see LICENSE. */
