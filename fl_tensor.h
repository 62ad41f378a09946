/* fl_tensor.h - tensors and scopes: shapes, creating, reading; it includes all ops

   A tensor is a small handle: shape, strides, dtype, and a piece of a buffer (or a backend's own
   state). Every op builds one call record and hands it to the backend of its operands: fl_backend.h has
   these, for who replaces them.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_tensor.h"
    int main(void) {
        fl_scope s = fl_scope_begin();               // owns every temporary below
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
   Files that are included with it: fl/ops/ has one file per family of ops, with prototypes on tensors
   (fl_) and on variables (fv_); fl/tensor/ has casts, copies and views, and what dispatch needs; fl/tools/ has
     print.h    tensors as text            anomaly.h  the first NaN, or infinity
     profile.h  where the time goes        alive.h    what is alive, and who made it
     cost.h     operations and bytes of a call
   fl_backend.h, for who replaces the inside, has the op tables, call records, backends and hooks.

   >>build: macros, all optional (besides those of fl_mem.h)
     FL_DEBUG                   ops refuse a tensor or variable that is used after its scope ended, other
                                functions a module, set, optimizer, tokenizer ... that was freed
     FL_TENSOR_BACKEND=cpu      backend of new tensors; fl_backend_<name>() must exist
     FL_TENSOR_BACKEND_H='"x"'  header that brings it, included by the implementation
     FL_USE_CUDA                backend cuda (kernels/cuda/backend.h), with the libfl.a of make CUDA=1
     FL_USE_OPENBLAS            matrix products through cblas (link -lopenblas)
     FL_USE_LAPACK              solve, lu, cholesky, qr, svd, eigh, eig, det (link -lopenblas or -llapack)

   Concepts
     Life time   A function that returns a fl_tensor * returns a value owned by the innermost scope
                 of this thread: nobody frees temporaries. fl_keep adds a reference to what you
                 store, fl_drop removes it. Arguments are borrowed. Views share storage.
     Errors      See fl_mem.h. Every function below returns NULL (or false) after recording what was
                 wrong.
     Broadcast   NumPy's rule: align trailing dims, 1 stretches.
     Promotion   PyTorch's: category b8 < integer < float; within a category the wider one; 0-d weak
                 numbers (fl_num) never promote within a category. Float default f32, index and
                 integer default i64.
     Semantics   PyTorch 2.x decides. Integers wrap; true division of integers gives float;
                 remainder follows the divisor's sign; float -> integer saturates and NaN gives 0;
                 f16 and bf16 compute in f32, narrow integers in i64, and round or wrap once at the
                 end of the op; NaN propagates through maximum, minimum, relu, amax, amin; sums of
                 b8 and integers are i64; empty: sum 0, prod 1, mean NaN, amax an error. There are
                 no complex dtypes: a last axis of 2 holds real and imaginary parts (fl/ops/fft.h). */
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
/* FL_SHAPE(2, 3); the shape of a 0-d tensor is FL_SCALAR_SHAPE. */
#define FL_SHAPE(...) FL_LITERAL(fl_shape, FL_COUNT(int64_t, __VA_ARGS__), {__VA_ARGS__})
#define FL_SCALAR_SHAPE FL_LITERAL(fl_shape, 0, {0})
/* Axes of a reduction: {.keepdim = true} keeps the dims as 1. FL_AXES(0, -1); FL_ALL_AXES. */
typedef struct fl_axes {
    int n;
    int axis[FL_MAX_DIMS];
    bool keepdim;
} fl_axes;
#define FL_AXES(...) FL_LITERAL(fl_axes, FL_COUNT(int, __VA_ARGS__), {__VA_ARGS__}, false)
#define FL_AXES_KEEP(...) FL_LITERAL(fl_axes, FL_COUNT(int, __VA_ARGS__), {__VA_ARGS__}, true)
#define FL_ALL_AXES FL_LITERAL(fl_axes, 0, {0}, false) /* no axis named: all of them */
/* Product of the dims (1 for 0-d); -1 if a dim is negative or the product passes 2^62. */
FL_API int64_t fl_shape_numel(fl_shape s);
/* "[2, 3]" into buf; returns buf. */
FL_API char *fl_shape_text(fl_shape s, char *buf, size_t size);

/* >>tensors ------------------------------------------------------------------------------------ */

/* What a scope holds: the first member of fl_tensor, fl_var and of any type of yours that scopes
   should own. */
typedef struct fl_obj fl_obj;
struct fl_obj {
    int refs_;
    uint32_t size_;
    void (*drop_)(fl_obj *self); /* at the last reference: releases what self holds, then fl_obj_free */
};

typedef struct fl_tensor fl_tensor;
typedef struct fl_var fl_var;   /* fl_autograd.h: a tensor with its gradient, and */
typedef struct fl_node fl_node; /* the record of what made it */
typedef int fl_op;              /* FL_OP_<name> in op_table.h and fl_backend.h, fl_op_<name> if registered */
enum { FL_OP_NONE = 0 };
typedef struct fl_call fl_call;  /* the record of one op: fl_backend.h */
struct fl_tensor {
    fl_obj obj;
    fl_dtype dtype;
    uint8_t backend;               /* index of its backend; FL_ANY_BACKEND for weak numbers */
    bool weak;                    /* a number of fl_num: value in `f64` (float) or `i64`, no storage */
    bool copied;                  /* of a view that its backend refused: writing it would be lost */
    int ndim;
    int64_t shape[FL_MAX_DIMS];   /* of a 0-d tensor shape[0] and stride[0] are 1: see fl_axis_of */
    int64_t stride[FL_MAX_DIMS];  /* in elements; 0 where broadcast, may be negative */
    int64_t offset;               /* of element [0, ...], in elements from the buffer's start */
    fl_buffer *buffer;            /* NULL for weak numbers and for backends with storage of their own */
    void *impl;                   /* the backend's own state */
    double f64;                   /* weak value as float ... */
    int64_t i64;                  /* ... and as integer; both are always set */
    /* private */
    uint32_t version_;            /* writes, where there is no buffer to count them */
    fl_tensor *base_;             /* of a view without buffer: the handle that owns the storage */
};
#define FL_ANY_BACKEND 255

FL_API fl_shape fl_shape_of(const fl_tensor *t);
FL_API int64_t fl_numel(const fl_tensor *t);      /* 0 for NULL */
FL_API bool fl_is_contiguous(const fl_tensor *t); /* row-major without gaps */
/* [n, c, ...] of two or more dims, stored as [n, ..., c] without gaps: see fl_channels_last. */
FL_API bool fl_is_channels_last(const fl_tensor *t);
/* Without gaps, in some order of its axes; false for NULL. */
FL_API bool fl_is_dense(const fl_tensor *t);
FL_API const char *fl_backend_name(const fl_tensor *t);
/* Number of in-place writes to t's storage so far, through any view. */
FL_API uint32_t fl_version_of(const fl_tensor *t);

/* One more reference; returns t. NULL passes. */
FL_API fl_tensor *fl_keep(fl_tensor *t);
/* One reference less. NULL is fine. */
FL_API void fl_drop(fl_tensor *t);
/* Tensor handles alive in the process. */
FL_API int64_t fl_live_tensors(void);

/* For types of your own: a zeroed object with one reference, from bounded per-thread free lists;
   size <= 1024.
   NULL after fl_fail. */
FL_API void *fl_obj_new(size_t size, void (*drop)(fl_obj *self));
FL_API void fl_obj_free(fl_obj *o);
FL_API void fl_obj_keep(fl_obj *o);
FL_API void fl_obj_drop(fl_obj *o);
/* As fl_obj_keep, but the reference is the innermost scope's own if o is what it got last: for an
   object that goes into another of that scope, as a variable's value does, or out of it. */
FL_API void fl_obj_steal(fl_obj *o);
/* Gives the caller's reference to the innermost scope. False (and the reference is dropped) when
   memory is out. */
FL_API bool fl_scope_adopt(fl_obj *o);

/* >>scopes ------------------------------------------------------------------------------------- */

typedef struct fl_scope {
    int64_t depth_; /* its place in this thread's stack of scopes */
} fl_scope;
FL_API fl_scope fl_scope_begin(void);
/* The same for a function that is made of others: until it ends errors name fn, the first of several
   (fl_scope_of(__func__); fv_ and _opt are left away, private names do not count); for what runs
   functions, a module: until it ends they say what `describe` writes, and the last of several counts. */
FL_API fl_scope fl_scope_of(const char *fn);
FL_API fl_scope fl_scope_in(const void *of, void (*describe)(const void *of, char *buf, size_t size));
FL_API fl_scope fl_scope_at(const fl_error_place *place); /* the same with all that a place says */
/* Drops the values owned by the scope and by inner ones left open (early return, longjmp); restores
   the flags. */
FL_API void fl_scope_end(fl_scope *s);
/* Ends the scope and hands t to the enclosing one; returns t. NULL passes. */
FL_API fl_tensor *fl_scope_return(fl_scope *s, fl_tensor *t);
/* Hands o, any object, to the scope around s, which stays open, and returns it; NULL after an
   error. For several results.
   NULL passes. */
FL_API void *fl_promote(fl_scope *s, void *o);
/* Values that the innermost scope owns now; scopes of this thread that are open. */
FL_API int64_t fl_scope_size(void);
FL_API int64_t fl_scope_depth(void);
/* The scopes of fl_scope_in and fl_scope_at that are open on this thread, outermost first: what runs, a
   module within another. `number` tells one such call of this thread from the next. Returns how many of
   them are in places, at most `most`: the outermost. */
typedef struct fl_call_frame {
    fl_error_place at;
    int64_t number;
} fl_call_frame;
FL_API int fl_call_stack(fl_call_frame *places, int most);
/* Notes of who made what, by fl_call_stack_text, for those who look later at what a record left: NULL, and no
   error, unless fl_provenance_enable was asked for more often (+1) than not any more (-1), or if memory is out. The
   caller gets the reference. */
typedef struct fl_provenance {
    fl_obj obj;
    char text[232];
} fl_provenance;
FL_API void fl_provenance_enable(int delta);
FL_API fl_provenance *fl_provenance_here(void);
/* What is made until on is false again, or the scope ends, is to stay: parameters, an optimizer's state.
   Memory managers are told (fl_mem_info.lifetime). Returns the setting before. */
FL_API bool fl_persistent(bool on);
/* A word of this thread that scopes save and restore, for the layers above. Starts 0; bit 0 is no-grad,
   bits 8 to 15 are FL_AUTOCAST_FLAGS, 16 to 23 fl_stream's number, bit 40 a cache's (fl_nn_forward_cached),
   bit 41 is FL_SHAPES_ONLY, the three highest fl's own. */
FL_API uint64_t fl_flags(void);
FL_API void fl_set_flags(uint64_t flags);
#define FL_AUTOCAST_FLAGS ((uint64_t)0xFF << 8) /* of fl_flags: the dtype, or 0 */
/* While set, tensors of one value or random ones (fl_zeros, fl_full, fl_uniform, fl_normal ...) have a shape,
   but all their elements are one 0 (stride 0): a module takes next to no memory or time then, whatever its
   size. For loaders: they compare its shapes with the file's, and then replace the values. Generators of
   random numbers advance as usual; fl_nn_init_ functions leave such parameters as they are. */
#define FL_SHAPES_ONLY ((uint64_t)1 << 41)
/* What this thread computes goes into stream n of its device from now on, 0 to 255 (0 at the start), until it
   is told otherwise or the scope ends. Streams run beside each other; a tensor that one uses after another
   is waited for (fl_buffer_use). Backends without streams, as cpu, run on. Returns the number before, -1
   after an error. */
FL_API int fl_stream(int n);

/* >>options ------------------------------------------------------------------------------------ */

/* Options are designated initialisers after the required arguments: fl_conv(x, w, NULL,
   .stride = {2}, .pad = {FL_SAME}). Zero means default. Where 0 is a legal other value it is written
   FL_ZERO (float) or FL_I0 (integer). */
#define FL_ZERO (-0.0)
#define FL_I0 INT32_MIN
#define FL_SAME (-1) /* padding: output size = ceil(input size / stride), an odd one at the end */
FL_API double fl_option(double value, double otherwise);  /* 0 -> otherwise, FL_ZERO -> 0 */
FL_API int64_t fl_option_int(int64_t value, int64_t otherwise); /* 0 -> otherwise, FL_I0 -> 0 */

/* >>create ------------------------------------------------------------------------------------- */

typedef struct fl_rng {
    uint64_t key, counter;
} fl_rng; /* Philox 4x32-10; one counter step gives four 32-bit words */
/* Uninitialised. dtype FL_DTYPE_NONE: f32. */
FL_API fl_tensor *fl_empty(fl_shape shape, fl_dtype dtype);
/* The same on a backend that may be another than the default one: "cpu" for what the host fills. */
FL_API fl_tensor *fl_empty_on(const char *backend, fl_shape shape, fl_dtype dtype);
/* Every element = value (converted as by fl_cast); every number of an element that is a block. */
FL_API fl_tensor *fl_full(fl_shape shape, double value, fl_dtype dtype);
FL_API fl_tensor *fl_zeros(fl_shape shape, fl_dtype dtype);
FL_API fl_tensor *fl_ones(fl_shape shape, fl_dtype dtype);
/* Shape, dtype and backend of t, and its layout if that has no gaps. */
FL_API fl_tensor *fl_empty_like(fl_tensor *t);
FL_API fl_tensor *fl_full_like(fl_tensor *t, double value);
/* The same of another shape, row-major. */
FL_API fl_tensor *fl_new_full(const fl_tensor *t, fl_shape shape, double value);
/* Copies shape.numel elements of dtype, row-major, from host memory. */
FL_API fl_tensor *fl_from_host(const void *data, fl_shape shape, fl_dtype dtype);
/* A weak 0-d number: takes part in ops without promoting within its category (fl_num float, fl_int
   integer). */
FL_API fl_tensor *fl_num(double value);
FL_API fl_tensor *fl_int(int64_t value);
/* The same values on another backend (the same tensor if it is there already). */
FL_API fl_tensor *fl_to(fl_tensor *t, const char *backend);

/* >>read --------------------------------------------------------------------------------------- */

typedef enum fl_access { FL_READ = 1, FL_WRITE = 2 } fl_access;
/* The bytes of element [0, ...], laid out by t->stride, on the host, until fl_unmap with the same
   access (FL_READ, FL_WRITE or both). Waits for t. Writing counts as an in-place write. NULL after
   fl_fail. */
FL_API void *fl_map(fl_tensor *t, int access);
FL_API void fl_unmap(fl_tensor *t, int access);
/* The same of a tensor with a buffer that is mapped, or inside a slot. */
static inline void *fl_data(const fl_tensor *t) {
    return (char *)t->buffer->ptr + (t->offset ? t->offset * (int64_t)fl_dtype_size(t->dtype) : 0);
}
/* How often fl_map, and with it fl_item and fl_to_host, gave something to read so far: each waits for the
   tensor's device. Ops read if their shape depends on values (fl_nonzero, fl_unique, fl_bincount ...), if
   indices may count from the end (fl_index, fl_take ...), if they check lengths or probabilities (fl_rnn,
   fl_length_mask, fl_bernoulli), and the integer ones that iterate (fl_gcd). Layers and steps do not. */
FL_API int64_t fl_host_reads(void);
/* Copies all elements, row-major, in t's dtype; bytes must be numel * size. */
FL_API bool fl_to_host(fl_tensor *t, void *dst, size_t bytes);
/* Overwrites t from host memory, as fl_to_host reads it. */
FL_API bool fl_set_host(fl_tensor *t, const void *src, size_t bytes);
/* The value of a one-element tensor; NaN, or 0, after an error. Elements that are blocks of several numbers
   (fl_dtype_info) have none: cast them. */
FL_API double fl_item(fl_tensor *t);
FL_API int64_t fl_item_int(fl_tensor *t);
/* One element on the host, as a number: f is always set, i if it is an integer (of a u64 its bits).
   NaN for NULL, an unknown dtype, or a registered one whose elements are blocks of several numbers. */
typedef struct fl_number {
    bool real; /* the value is f; else i */
    double f;
    int64_t i;
} fl_number;
FL_API fl_number fl_number_load(fl_dtype d, const void *p);
/* Stores v as a cast does; NULL passes, blocks of several numbers stay as they are. */
FL_API void fl_number_store(fl_dtype d, void *p, fl_number v);
/* >>backends --------------------------------------------------------------------------------- */

/* A backend is known by its name; tensors carry its index. fl_backend.h has its table. */

/* The instruction set that its kernels use: portable, avx2, avx512, avx512_bf16, which is avx512 with dot
   products of bf16, or amx, which has tiles of it besides. The best that the build and the processor have, at
   most FL_CPU_LEVEL of the environment. */
FL_API const char *fl_cpu_level(void);
/* Makes any fallback on the cpu an error; returns the setting before. */
FL_API bool fl_backend_strict(bool on);
/* Calls that fell back on the cpu so far. */
FL_API int64_t fl_backend_fallbacks(void);
/* Backend of new tensors (creation, randomness), process-wide: at the start FL_TENSOR_BACKEND, or what the
   environment names in FL_DEVICE.
   Returns false if unknown. */
FL_API bool fl_backend_set_default(const char *name);
FL_API int fl_backend_default(void);
/* Index of a backend, -1 with an error if there is none; the name of index i, NULL past the last. */
FL_API int fl_backend_index(const char *name);
FL_API const char *fl_backend_name_of(int i);
/* True if the backend runs op by a slot of its own (or an `any`), false if by composition or
   fallback. */
FL_API bool fl_backend_has(int backend, fl_op op);
/* "matmul"; "" for FL_OP_NONE and what is no op. */
FL_API const char *fl_op_name(fl_op op);
/* Waits for all work of t's backend. */
FL_API bool fl_sync(const fl_tensor *t);
/* True if t's backend computes while the program goes on, so that reading t would wait for it. */
FL_API bool fl_is_async(const fl_tensor *t);

/* >>checks ------------------------------------------------------------------------------------ */

/* "[2, 3]", of a tensor and of a shape: lives until the end of the full expression. */
#define FL_SHAPE_TEXT(t) (fl_text_of_shape(fl_shape_of(t)).s)
#define FL_TEXT_OF(shape) (fl_text_of_shape(shape).s)
typedef struct fl_str200 {
    char s[200];
} fl_str200;
FL_API fl_str200 fl_text_of_shape(fl_shape s);
/* True for an operand that is NULL: an error of its own, unless one is pending. */
FL_API bool fl_is_null_arg(const char *fn, const void *p);
/* Under FL_DEBUG true, with an error, for an object whose last reference is gone: those that went last
   (thousands) stay marked, and count as alive in fl_live_tensors. Else false. */
FL_API bool fl_is_dropped(const char *fn, const void *p);
/* True if an op may write into t: it is no number, no copied view, and no element has two indices. */
FL_API bool fl_is_writable(const char *fn, const fl_tensor *t);
FL_API bool fl_same_shape(const fl_tensor *a, const fl_tensor *b);
FL_API bool fl_shape_is(const fl_tensor *t, fl_shape s);
/* *s becomes what it and t's shape broadcast to; false, and no error, if they do not. */
FL_API bool fl_broadcast_shape(fl_shape *s, const fl_tensor *t);
/* The dtype that n operands promote to. */
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

/* Shape and dtype as given by a caller. */
static bool fl__creatable(const char *fn, fl_shape shape, fl_dtype dtype) {
    if (fl_dtype_size(dtype) == 0)
        return fl_err_false("%s: dtype %d is not known", fn, (int)dtype);
    if (fl_shape_numel(shape) < 0)
        return fl_err_false("%s: shape %s is not valid", fn, FL_TEXT_OF(shape));
    return true;
}

/* A handle on the default backend, without storage. */
fl_tensor *fl_out_new(const char *fn, fl_shape shape, fl_dtype dtype, fl_dtype otherwise) {
    if (dtype == FL_DTYPE_NONE) dtype = otherwise;
    if (!fl__creatable(fn, shape, dtype)) return NULL;
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
    if (!fl__creatable("fl_empty_on", shape, dtype)) return NULL;
    fl_tensor *t = fl_out_on(f, shape, dtype);
    return t && fl_out_allocate(t) ? t : fl_raise();
}

/* A tensor like the handle t, as FL_SHAPES_ONLY says. */
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
    fl_tensor *y = fl_out_lay_as(fl_out_like(t, t->dtype), t);
    return y && fl_out_allocate(y) ? y : fl_raise();
}

fl_tensor *fl_full_like(fl_tensor *t, double value) {
    if (fl_is_null_arg("fl_full_like", t) || !(t = fl_materialise(t))) return NULL;
    fl_tensor *y = fl_out_lay_as(fl_out_like(t, t->dtype), t);
    return y ? fl__fill(y, value) : fl_raise();
}

fl_tensor *fl_new_full(const fl_tensor *t, fl_shape shape, double value) {
    if (fl_is_null_arg("fl_new_full", t)) return NULL;
    if (t->weak) return fl_err_null("fl_new_full: a weak number has no backend");
    fl_tensor *y = fl_out_on(t->backend, shape, t->dtype);
    return y ? fl__fill(y, value) : fl_raise();
}

fl_tensor *fl_from_host(const void *data, fl_shape shape, fl_dtype dtype) {
    fl_tensor *t = fl_out_new("fl_from_host", shape, dtype, FL_F32);
    if (!t) return NULL;
    if (!data && fl_numel(t))
        return fl_err_null("fl_from_host: the data for shape %s is NULL", FL_SHAPE_TEXT(t));
    if (!fl_out_allocate(t)) return fl_raise();
    size_t bytes = (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
    return fl_set_host(t, data, bytes) ? t : NULL;
}

/* bytes == numel * size, or an error. */
static bool fl__bytes_match(const char *fn, const fl_tensor *t, const void *p, size_t bytes) {
    size_t need = (size_t)fl_numel(t) * fl_dtype_size(t->dtype);
    if (bytes == need && (p || !bytes)) return true;
    return fl_err_false("%s: %zu bytes%s for %s of shape %s, which has %zu", fn, bytes,
                   p ? "" : " at NULL", fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t), need);
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

/* Rounded once; of a u64 past INT64_MAX i is negative and f is not. */
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

/* The one element of t as f64 and i64. */
static bool fl__one(const char *fn, fl_tensor *t, double *f, int64_t *i) {
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
    return fl__one("fl_item", t, &f, &i) ? f : (double)NAN;
}

int64_t fl_item_int(fl_tensor *t) {
    double f = 0;
    int64_t i = 0;
    return fl__one("fl_item_int", t, &f, &i) ? i : 0;
}

/* An in-place op may write t: it has elements of its own. */
bool fl_is_writable(const char *fn, const fl_tensor *t) {
    if (fl_is_null_arg(fn, t)) return false;
    if (t->weak) return fl_err_false("%s: a weak number cannot be written", fn);
    if (t->copied)
        return fl_err_false("%s: backend '%s' copies views: the write would be lost; write the whole tensor",
                   fn, fl_backend_name(t));
    for (int i = 0; i < t->ndim; i++)
        if (t->stride[i] == 0 && t->shape[i] > 1)
            return fl_err_false("%s: shape %s is broadcast, one element would be written several times",
                           fn, FL_SHAPE_TEXT(t));
    return true;
}

#endif /* FL_TENSOR_IMPL */
#endif

/* The files of this header. An object of the Makefile (FL_IMPL_ONLY) includes those that it uses. */
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
