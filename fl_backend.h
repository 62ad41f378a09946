/* fl_backend.h - extending fl: op tables, call records, kernel slots, hooks, backends

   Every op builds one call record and passes it to the backend of its operands, whose slot for the op is
   the kernel. With this header you replace a slot, add a backend, observe calls, or write an op with the
   functions that the ops of fl/ops/ use.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_backend.h"
    #include <stdio.h>
    static void print_op(const fl_call *c, void *user) {
        (void)user;
        printf("%s\n", fl_op_get_info(c->op)->name);
    }
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_call_hook(print_op, NULL, NULL);
        fl_softmax(fl_ones(FL_SHAPE(2, 3), FL_F32), 1);
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>tables >>records >>backends >>for op writers >>implementation */
#if !defined(FL_TENSOR_H) || \
    (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY) && !defined(FL_TENSOR_IMPL))
#include "fl_tensor.h"
#endif
#include "fl/tensor/formula.h"
#include "fl/tensor/memo.h"
#include "fl/tensor/op_table.h"
#ifndef FL_BACKEND_H
#define FL_BACKEND_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>tables ------------------------------------------------------------------------------------- */

/* Element-wise ops with formulas, FL_UNARY_OPS and FL_BINARY_OPS: see fl/tensor/op_table.h. */

/* Ops that are not element-wise formulas, as inputs -> outputs, any strides unless stated otherwise.
   need: CORE ops without a slot in a backend fall back to the cpu, COMPILED ops are composed.
   uses: the CORE ops that a composition runs; "cpu": no composition, the op falls back to the cpu.

         op                  need  args              uses                                         */
#define FL_OTHER_OPS(X) \
    /* x -> y: same shape, any strides and dtypes; y may have storage; \
       either may be an alias (see >>backends) */ \
    X(copy,                CORE, fl_no_args,      "") \
    /* -> y, every element = value */ \
    X(fill,                CORE, fl_fill_args,    "") \
    /* -> y[n] = start + i * step */ \
    X(iota,                CORE, fl_iota_args,    "") \
    /* -> y, see fl_random_args */ \
    X(random,              CORE, fl_random_args,  "") \
    /* c b8, a, b -> y = c ? a : b; all the same shape (a or b may be weak) */ \
    X(where,               CORE, fl_no_args,      "") \
    /* x -> y, reduced over args.axes; y has the final shape, with or without the reduced dims; sums and \
       products of integers are i64; b8 arrives as an integer */ \
    X(sum,                 CORE, fl_reduce_args,  "") \
    X(prod,                CORE, fl_reduce_args,  "") \
    X(amax,                CORE, fl_reduce_args,  "") \
    X(amin,                CORE, fl_reduce_args,  "") \
    /* x -> i64 index of the first extreme (NaN is the most extreme) along the one axis of args.axes */ \
    X(argmax,              CORE, fl_reduce_args,  "") \
    X(argmin,              CORE, fl_reduce_args,  "") \
    /* x -> y of x's shape: inclusive prefix sum, product along one axis */ \
    X(cumsum,              CORE, fl_axis_args,    "") \
    X(cumprod,             CORE, fl_axis_args,    "") \
    /* x, index i64 -> y of index's shape: y[..i..] = x[..index[..i..]..]; indices are in range \
       (checked by the slot) */ \
    X(gather,              CORE, fl_axis_args,    "") \
    /* x, index, src -> y = copy of x, then y[..index[..i..]..] += src[..i..] in order of i */ \
    X(scatter_add,         CORE, fl_axis_args,    "") \
    /* x, index, src -> y = copy of x, then y[..index[..i..]..] = src[..i..]; if an index \
       repeats, the last write wins */ \
    X(scatter,             CORE, fl_axis_args,    "") \
    /* x -> y, index i64: stable sort along one axis, NaN largest; y = x at index. If y is shorter than x \
       along the axis, only the first elements (top k) */ \
    X(sort,                CORE, fl_sort_args,    "") \
    /* x b8 -> y i64 [n, ndim]: coordinates of the true elements, row-major; the core has counted n */ \
    X(nonzero,             CORE, fl_no_args,      "") \
    /* a [..., m, k], b [..., k, n] -> [..., m, n]; ndim >= 2; batch dims equal (stride 0 \
       where broadcast) */ \
    X(matmul,              CORE, fl_no_args,      "") \
    /* x [n, c, h, w], w [o, c / groups, kh, kw] -> [n, o, oh, ow] */ \
    X(conv2d,              CORE, fl_conv2d_args,  "") \
    /* dy, w -> dx (its shape is out's);  x, dy -> dw (its shape is out's) */ \
    X(conv2d_grad_input,   CORE, fl_conv2d_args,  "") \
    X(conv2d_grad_weight,  CORE, fl_conv2d_args,  "") \
    /* the gradient formula of args.op: x, y, dy -> dx;  a, b, y, dy -> da, db, of which one may be \
       unneeded (out[i] is NULL) */ \
    X(grad1,               COMPILED, fl_grad_args,    "") \
    X(grad2,               COMPILED, fl_grad_args,    "")

/* Hash of the op names in order, checked by tests/compile/tables.awk. Every object file refers to a symbol
   with the hash in its name, so that one compiled with different op tables than the library fails to link:
   undefined fl__tables_of_<hash>. */
#define FL_TABLE_VERSION 0x12025ca0

enum {
    FL__OP_BEFORE_OTHERS = FL__OP_AFTER_FORMULAS - 1,
#define FL__ENUM(op, ...) FL_OP_##op,
    FL_OTHER_OPS(FL__ENUM)
#undef FL__ENUM
    FL_TABLE_OPS,     /* 1 + the last op of the tables */
    FL_MAX_OPS = 512, /* limit of table and registered ops: the size of a backend's slot array */
};

typedef enum fl_op_class {
    FL_CLASS_NONE,
    FL_CLASS_FLOAT,
    FL_CLASS_NUM,
    FL_CLASS_ANY,
    FL_CLASS_INT,
    FL_CLASS_CMP,
    FL_CLASS_BOOL
} fl_op_class;
/* A composition computes an op by other ops: sets value[i] for each output c->out[i] that is not NULL. Runs
   in its own scope. False after an error. */
typedef bool (*fl_compose_fn)(const fl_call *c, fl_tensor **value);
typedef struct fl_op_info {
    const char *name;
    size_t args_size;     /* size of the op's argument struct */
    /* Names of all ops that its composition runs, directly or indirectly, except copy and fill. An override
       of one of them disables the op's slot, so that the override takes effect. "cpu": there is no
       composition. */
    const char *uses;
    fl_compose_fn compose;
    /* Backward function of its records on the tape, see fv_record_op; NULL: not differentiable */
    void (*gradient)(fl_node *n, fl_var *dy);
    size_t rng_end; /* end, in bytes, of the fl_rng in the arguments; 0: none */
    int64_t (*macs)(const fl_call *c); /* multiply-adds of its matrix products; NULL: none
                                          (fl/tools/cost.h) */
    /* ops of the tables only: */
    int arity;       /* formula of 1 (x) or 2 (a, b) operands; 0: no formula */
    fl_op_class cls; /* of a formula: the dtypes it supports */
    bool required;   /* CORE */
    const char *formula; /* y; NULL if it has no formula */
    const char *grad[2]; /* dx, or da and db */
} fl_op_info;
/* Registers an op outside the built-in tables, as most ops of fl/ops/ and all custom ones are. Backends may
   set a slot for it (fl_backend_set); the others run its composition. info is not copied and must stay
   valid. Call it before other threads start; also possible before main. FL_OP_NONE after an error: the name
   is taken, there are FL_MAX_OPS already, or `uses` has an unknown name. After an override, the op's first
   call verifies `uses` against the ops that its composition runs, and fails if one is missing. */
FL_API fl_op fl_op_register(const fl_op_info *info);
FL_API int fl_op_count(void); /* ops are numbered 1 to fl_op_count() - 1 */
/* Description of an op; NULL if there is no such op. */
FL_API const fl_op_info *fl_op_get_info(fl_op op);
/* The op of that name, FL_OP_NONE if none. */
FL_API fl_op fl_op_by_name(const char *name);
/* True if op's composition (its formula, or `uses`) runs the op `part`. */
FL_API bool fl_op_uses(fl_op op, fl_op part);
/* True if op's gradient formula for operand i (0, 1) runs `part`. */
FL_API bool fl_op_grad_uses(fl_op op, int i, fl_op part);
/* Number of steps of that gradient formula: 0 if it is dy itself or a constant, 1 for a single op. */
FL_API int fl_op_grad_steps(fl_op op, int i);
/* The random generator in the arguments of an op's record, which a replay must advance; NULL if the op is
   deterministic. */
FL_API fl_rng *fl_op_rng(fl_op op, void *args);
/* The parsed formulas of an op: Y of (x) or (a, b); DA: dx of (x, y, dy), or da of (a, b, y, dy); DB: db;
   DA_DB: both. Parsed at the first call. NULL after fl_fail if the op has no such formula. */
typedef enum fl_program {
    FL_PROGRAM_Y,
    FL_PROGRAM_DA,
    FL_PROGRAM_DB,
    FL_PROGRAM_DA_DB
} fl_program;
FL_API const fl_formula *fl_op_program(fl_op op, fl_program which);
FL_API fl_op fl_primitive_op(fl_primitive primitive); /* the op of a step of a formula */

/* >>records ------------------------------------------------------------------------------------ */

/* Arguments are plain data without pointers to temporaries, and without padding: a taker may copy
   args_size bytes, compare them and replay them. So truth values are integers as wide as their neighbours. */
typedef struct fl_no_args {
    char _;
} fl_no_args;
typedef struct fl_fill_args {
    double f64;
    int64_t i64;
} fl_fill_args; /* the value, for float and for integer outputs */
typedef struct fl_iota_args {
    double f_start, f_step;
    int64_t i_start, i_step;
} fl_iota_args;
typedef enum fl_random_kind { FL_UNIFORM, FL_NORMAL, FL_INTEGER } fl_random_kind;
/* Element i (row-major) uses w words of Philox block rng.counter + i * w / 4, from word i * w % 4 on:
   UNIFORM f32 w = 1: a + (b - a) * (word >> 8) * 2^-24
           f64 w = 2: ((second word >> 5) * 2^26 + (first word >> 6)) * 2^-53
   NORMAL  f32 w = 1 and f64 w = 2: Box-Muller on the pair of elements 2j (cos), 2j + 1 (sin), see
           flm_normal_f32 and flm_normal_f64 in kernels/fl_math.h; mean a, standard deviation b
   INTEGER i64 w = 2: ia + high 64 bits of (second word * 2^32 + first word) * (ib - ia) */
typedef struct fl_random_args {
    int64_t dist; /* fl_random_kind */
    double a, b;
    int64_t ia, ib;
    fl_rng rng;
} fl_random_args;
typedef struct fl_reduce_args {
    uint32_t axes, keepdim;
} fl_reduce_args; /* bit i: axis i is reduced */
typedef struct fl_axis_args {
    int axis;
} fl_axis_args;
typedef struct fl_sort_args {
    int axis, descending;
} fl_sort_args;
typedef struct fl_conv2d_args {
    int64_t stride[2], pad_lo[2], pad_hi[2], dilation[2], groups;
    int64_t relu; /* y = max(0, conv): set only for conv2d_bias */
} fl_conv2d_args; /* h, w */
typedef struct fl_grad_args {
    fl_op op;
} fl_grad_args;
struct fl_call {
    fl_op op;
    int n_out, n_in;
    fl_tensor *out[4], *in[8];
    const void *args; /* the op's argument struct, NULL for fl_no_args */
};

/* Runs a record: hooks, then slot, composition or fallback. All public ops end here. Outputs are handles of
   fl_out_on (shape and dtype set, no storage), or tensors to be written in place. False after fl_fail; does
   not call the error handler. */
FL_API bool fl_call_run(const fl_call *c);
/* Begins a record; the caller sets its n_out outputs and n_in inputs. The unused ones stay uninitialised: a
   struct initialiser would clear them by a string instruction that takes as long as an op on few
   elements. */
static inline void fl_call_begin(fl_call *c, fl_op op, int n_out, int n_in, const void *args) {
    c->op = op;
    c->n_out = n_out;
    c->n_in = n_in;
    c->args = args;
}
/* An output handle for a record: contiguous strides, no storage, owned by the innermost scope.
   backend: index. */
FL_API fl_tensor *fl_out_on(int backend, fl_shape shape, fl_dtype dtype);
typedef void (*fl_call_hook_fn)(const fl_call *c, void *user);
/* Hooks on the calls of this thread, including those of compositions. Replaces the previous pair, which is
   returned; either may be NULL; may be called inside a hook. Each `before` is followed by an `after`, in
   which fl_error() is set if the call failed. Not reported: calls made by hooks, implicit casts (for slots
   without narrow dtypes), copies (for slots that need contiguous operands) and transfers between
   backends. */
typedef struct fl_call_hooks {
    fl_call_hook_fn before, after;
    void *user;
} fl_call_hooks;
FL_API fl_call_hooks fl_call_hook(fl_call_hook_fn before, fl_call_hook_fn after, void *user);
/* Watchers: any number of hook pairs for the calls of all threads, run in order of registration before the
   thread's own pair. The caller owns the struct, which must stay valid while calls may run. For a call that
   runs on another thread during registration `before` or `after` may be missing. An `after` that calls
   fl_fail makes the call fail. Both functions may be called from any thread and inside hooks. */
typedef struct fl_call_watcher fl_call_watcher;
struct fl_call_watcher {
    fl_call_hook_fn before, after;
    void *user;
    bool recorded; /* see a call that is taken (fl_take_calls) when it is made; else when it runs */
    fl_call_watcher *next_; /* private */
};
FL_API void fl_watch_calls(fl_call_watcher *w);
FL_API void fl_unwatch_calls(fl_call_watcher *w);

/* A taker receives the calls of a thread where their slots would run: after promotion, widening, composition
   and copies for contiguity, so that they are the records of eager execution. Calls that a taker makes in
   its functions are not taken. All but `call` may be NULL. */
typedef enum fl_taken { FL_DECLINED, FL_TAKEN, FL_FAILED } fl_taken;
typedef struct fl_taker {
    /* DECLINED: the slot runs now. TAKEN: the taker has copied the record, handles included, runs it later by
       fl_call_run_taken, and has given new outputs a buffer (fl_buffer_new_lazy), which a backend with a
       `make` of its own does not have: decline its calls. FAILED: after fl_fail. */
    fl_taken (*call)(const fl_call *c, void *user);
    /* Storage that is asked for outside of slots, by fl_empty or fl_concat: TAKEN sets t->buffer, on info's
       device. Not called for backends with a `make` of their own. */
    fl_taken (*make)(fl_tensor *t, size_t bytes, const fl_mem_info *info, void *user);
    /* The host is about to map t, or has drawn a random number (t NULL, access 0). False after fl_fail. */
    bool (*map)(const fl_tensor *t, int access, void *user);
    void (*end)(void *user); /* the thread ends */
    void *user;
} fl_taker;
/* Installs *t, which must stay valid, as the taker of this thread (NULL: none); returns the previous one. May
   be called by a taker. */
FL_API const fl_taker *fl_take_calls(const fl_taker *t);
/* Runs a call that was taken; `state` is fl_call_state() when it was. Versions of outputs do not change:
   fl_call_run has counted the writes. Watchers without `recorded` see it now. */
FL_API bool fl_call_run_taken(const fl_call *c, uint64_t state);
/* What of the thread's state slots and compositions depend on: its flags, internal ones included. */
FL_API uint64_t fl_call_state(void);
/* Tells the taker of an access by the host: fl_taker.map. */
FL_PRIVATE bool fl__host_access(const fl_tensor *t, int access);
/* True if a scope of this thread sets these flags again when it ends. */
FL_PRIVATE bool fl__flags_return(uint64_t flags);
/* fl_mem_info.lifetime of results of a call in that state, and its stream (fl_stream). */
FL_PRIVATE int fl__call_lifetime(uint64_t state);
FL_PRIVATE int fl__call_stream(uint64_t state);
/* Number of times that a backend's table was installed. */
FL_PRIVATE int64_t fl__table_changes(void);
/* True if a watcher or hook sees the calls of this thread. */
FL_PRIVATE bool fl__is_watched(void);
#ifndef __cplusplus
/* Number of places set or left so far on this thread: fl_call_stack writes the same while it is the same. */
FL__PRIVATE_VARIABLE _Thread_local int64_t fl__places;
/* Deferred calls run at once, so that an error comes from the call that causes it. Atomic. */
FL__PRIVATE_VARIABLE bool fl__defers_nothing;
#endif
/* fl_call_stack leaves out the scopes up to that depth; returns the previous depth. */
FL_PRIVATE int64_t fl__places_hide(int64_t depth);
/* fl_scope_at with the frame number of an earlier scope; 0: a new one. */
FL_PRIVATE fl_scope fl__scope_at(const fl_error_context *place, int64_t number);

/* True if the f32 operands of the call that runs on this thread were cast from bf16: matrix products may
   convert them back without loss. */
FL_PRIVATE bool fl__of_bf16(void);

/* >>backends ----------------------------------------------------------------------------------- */

typedef struct fl_backend fl_backend;
/* A sequence of calls that runs again, its operands at the same addresses: see fl_backend.replay. */
typedef struct fl_replay {
    bool (*run)(void *user); /* runs the calls one by one */
    void *user;
    fl_rng from;             /* calls that draw take the numbers of this generator's next blocks, in the same */
    uint64_t draws;          /* places each time; their number */
} fl_replay;
/* A slot: the kernel of one op.
   Outputs  have shape, dtype and strides, but no storage: an eager slot calls fl_out_make(out) first (no
            effect on outputs written in place), a lazy one sets out->impl.
   Inputs   are promoted and expanded (stride 0), with any strides unless the flags ask for contiguous ones.
            Weak inputs of element-wise ops are numbers: copy them, do not store the handles. In element-wise
            ops an output may be an input.
   Returns false after fl_fail; an asynchronous backend reports errors that depend on the data (an index out
   of range, x % 0) at its next sync or map. Inside a slot fl_data is valid for every tensor with a buffer. */
typedef bool (*fl_slot)(const fl_backend *self, const fl_call *c);
/* Flags of a slot. CONTIGUOUS: inputs are made contiguous first. NARROW: the slot supports f16, bf16 and the
   integers narrower than i64; otherwise the core casts operands to the wide dtype (fl_dtype_wide) and
   results back; copy and fill always get every dtype. BLOCKS: it supports registered dtypes; otherwise the
   composition, if any, runs. */
enum { FL_SLOT_CONTIGUOUS = 1, FL_SLOT_NARROW = 2, FL_SLOT_BLOCKS = 4 };

struct fl_backend {
    const char *name;
    void *user;
    /* Hooks. NULL: the default, storage in a fl_buffer of the host. */
    /* Sets info's device and stream: storage is a fl_buffer there, whose calls can be deferred. */
    bool (*place)(const fl_backend *self, fl_mem_info *info);
    /* Allocates storage for out, laid out by out->stride; info describes the request. Calls of such a backend
       are not deferred. */
    bool (*make)(const fl_backend *self, fl_tensor *out, const fl_mem_info *info);
    void (*drop)(const fl_backend *self, fl_tensor *t);   /* t is being freed: release impl */
    /* Waits for t; returns the host address of element [0, ...], the others by t->stride. */
    void *(*map)(const fl_backend *self, fl_tensor *t, int access);
    void (*unmap)(const fl_backend *self, fl_tensor *t, int access);
    /* Makes out, with its shape, strides and offset, a view of in's storage. Returns false, without an
       error, to decline: the core copies instead. NULL: shares the buffer of `in`, declines if it has
       none. */
    bool (*view)(const fl_backend *self, fl_tensor *out, fl_tensor *in);
    /* Copies src to dst, of the same shape and dtype; at least one is on this backend. Returns false,
       without an error, to decline; the destination's backend is asked first, then the source's; if both
       decline, both tensors are mapped to the host. */
    bool (*move)(const fl_backend *self, fl_tensor *dst, fl_tensor *src);
    bool (*sync)(const fl_backend *self); /* waits for all work */
    /* Runs a sequence of calls, all of this backend and on the current stream, by r->run or by what it
       recorded when it ran before: *memo, NULL at first. r NULL: frees *memo. Needs `move`. */
    bool (*replay)(const fl_backend *self, void **memo, const fl_replay *r);
    fl_slot op[FL_MAX_OPS];
    uint8_t flags[FL_MAX_OPS];
    /* Formulas whose gradient must not use grad1/grad2 (set by fl_backend_override). */
    bool no_grad[FL_TABLE_OPS];
    /* private */
    bool shipped_;    /* a copy of fl_backend_cpu() */
    bool overridden_; /* fl_backend_override was called */
};
/* For a backend that declines views, the record of a copy may contain an alias: a handle with the impl of
   another tensor (dense, as allocated) but different shape, strides and offset. Only `copy` ever gets
   one. */

/* The built-in cpu backend. To modify the current one, copy *fl_backend_at(fl_backend_index("cpu")), which
   has the kernels of registered ops and earlier overrides: fl_backend_use rejects a modified copy of the
   built-in table that would lose them. */
FL_API const fl_backend *fl_backend_cpu(void);
/* Installs *b, which is copied, as the backend b->name, replacing one of that name, for the whole process
   and for existing tensors too. *old (may be NULL) receives the previous table (name NULL if new). Only the
   slot of copy is required. False after an error. */
FL_API bool fl_backend_use(const fl_backend *b, fl_backend *old);
/* Sets b's slot for op, with flags (FL_SLOT_ bits): to fill a backend's table. False, with an error, if the
   op does not exist. */
FL_API bool fl_backend_set(fl_backend *b, fl_op op, fl_slot slot, unsigned flags);
/* Replaces b's slot for op, and clears those slots and fused gradients of b that use op, so that they are
   composed and call the new slot. Of the flags, CONTIGUOUS stays, so that the new slot may call the old one;
   set others by fl_backend_set. False after an error. Then call fl_backend_use. */
FL_API bool fl_backend_override(fl_backend *b, fl_op op, fl_slot slot);
/* The installed table of a backend index (fl_backend_index); NULL if none. */
FL_API const fl_backend *fl_backend_at(int backend);
/* For slots: allocates the storage of an output; true if it already has some. */
FL_API bool fl_out_make(fl_tensor *out);
/* For slots whose memory the host reads: makes the outputs of an element-wise call and runs loop over its
   operands, in parallel. p: the n elements of each output, then of each input, dense whatever the layout (a
   strided operand is copied block by block, a weak number repeated), in the wide dtype of each
   (fl_dtype_wide; a weak number in that of the first other input), so that the slot may be NARROW. NULL
   outputs have no p. False after an error: the shapes differ, or a dtype is registered. */
FL_API bool fl_cpu_loop(const fl_call *c, void (*loop)(void *const p[], int64_t n, const void *arg),
                        const void *arg);

/* >>for op writers ----------------------------------------------------------------------------- */

/* An op checks its operands, infers the result's shape and dtype, and runs one record. fn is the name of the
   public function, for error texts. */

/* True if a and b are on the same backend (weak numbers match any); otherwise an error. */
FL_API bool fl_same_backend(const char *fn, const fl_tensor *a, const fl_tensor *b);
/* Normalises axis, which may count from the end, to [0, ndim); -1 after an error. As in PyTorch, a 0-d
   tensor accepts 0 and -1: its shape[0] and stride[0] are 1, so that loops and slots see one element. */
FL_API int fl_axis_of(const char *fn, const fl_tensor *t, int axis);
/* fl_axis_of for ops that split or join along the axis: a 0-d tensor has no axis. */
FL_API int fl_own_axis_of(const char *fn, const fl_tensor *t, int axis);

/* The dtype in which an op of class cls computes operands that promote to d; FL_DTYPE_NONE: not
   supported. */
FL_API fl_dtype fl_compute_dtype(fl_op_class cls, fl_dtype d);
/* True if t's dtype is computed in a wider one. */
FL_API bool fl_is_narrow(const fl_tensor *t);
/* t cast to d; weak numbers are returned unchanged. */
FL_API fl_tensor *fl_operand(fl_tensor *t, fl_dtype d);
/* t; a weak number becomes a 0-d tensor with storage. */
FL_API fl_tensor *fl_materialise(fl_tensor *t);
/* A weak number that adopts the dtype of the other operand: a constant of a formula. */
FL_API fl_tensor *fl_constant(double value);

/* An output handle with t's shape and backend, row-major, without storage. */
FL_API fl_tensor *fl_out_like(const fl_tensor *t, fl_dtype dtype);
/* Gives a handle without storage the strides of t, if t has the same shape and is dense (so channels-last
   images stay channels-last). Returns out. */
FL_API fl_tensor *fl_out_layout_like(fl_tensor *out, const fl_tensor *t);
/* Gives a handle without storage dense strides in t's axis order, for a shape other than t's. Returns
   out. */
FL_API fl_tensor *fl_out_order_as(fl_tensor *out, const fl_tensor *t);
/* order[] = the axes of t by descending stride; stable. */
FL_API void fl_axes_by_stride(const fl_tensor *t, int order[FL_MAX_DIMS]);
/* As fl_as_strided (fl/tensor/view.h), without checks; stride is required. */
FL_API fl_tensor *fl_view_of(fl_tensor *t, fl_shape shape, const int64_t *stride, int64_t offset);
/* Allocates a handle's storage, uninitialised, outside of slots; true if it already has some. */
FL_API bool fl_out_allocate(fl_tensor *t);

/* Runs c and returns its first output; on failure calls the error handler and returns NULL. */
FL_API fl_tensor *fl_call_result(const fl_call *c);
/* y = op(a, b): fl_call_result for one output and at most two operands (b, or both, may be NULL). y NULL,
   from a failed allocation, is passed on as a failure. */
FL_API fl_tensor *fl_call_into(fl_op op, fl_tensor *y, fl_tensor *a, fl_tensor *b, const void *args);
/* Computes c by the composition of its op: for slots that do not handle all cases. */
FL_API bool fl_call_compose(const fl_call *c);
/* Runs c in the wide dtypes: for NARROW slots that do not handle all cases. */
FL_PRIVATE bool fl__call_widen(const fl_call *c);

/* y = op(x) for a unary op of the tables: checks, promotes, and runs the record. */
FL_API fl_tensor *fl_unary_op(fl_op op, fl_tensor *x);
/* y = op(a, b) for a binary op of the tables: also broadcasts. */
FL_API fl_tensor *fl_binary_op(fl_op op, fl_tensor *a, fl_tensor *b);
/* Evaluates a formula by ops, one per step, and returns its first output; `in` in the order of its input
   names. A constant formula gives a weak number. NULL passes. */
FL_API fl_tensor *fl_formula_value(const fl_formula *f, fl_tensor *const *in);
/* A handle on the default backend, with shape and dtype checked (NONE: `otherwise`), for creation
   functions. */
FL_API fl_tensor *fl_out_new(const char *fn, fl_shape shape, fl_dtype dtype, fl_dtype otherwise);

/* private */
/* Registers the ops of fl/ops/ at library start: fl/ops/ops.h. */
FL_PRIVATE void fl__register_ops(void);
/* FL__REGISTER(glu, .uses = "mul", ...); defines a static const fl_op_info with .name = "glu" and the given
   fields (at least one), and sets fl_op_glu = fl_op_register(&info). */
#define FL__REGISTER(op, ...) \
    do { \
        static const fl_op_info info_of_##op = {.name = #op, __VA_ARGS__}; \
        fl_op_##op = fl_op_register(&info_of_##op); \
    } while (0)

#define FL__PASTE_(a, b) a##b
#define FL__PASTE(a, b) FL__PASTE_(a, b)
#define FL__TABLES FL__PASTE(fl__tables_of_, FL_TABLE_VERSION)
#ifndef FL_STATIC
FL_DATA const char FL__TABLES;
static const char *const fl__tables_linked __attribute__((used)) = &FL__TABLES;
#endif

#ifdef __cplusplus
}
#endif
#endif /* FL_BACKEND_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_BACKEND) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_BACKEND_IMPL
#define FL_BACKEND_IMPL
#include "fl/tensor/copy.h"
#include "fl/tensor/view.h"
#include "fl/tensor/where.h"
/* >>implementation ----------------------------------------------------------------------------- */

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/fl_math.h"
#ifdef FL_TENSOR_BACKEND_H
#include FL_TENSOR_BACKEND_H
#endif

#ifdef FL_DEBUG
/* Quarantine of freed objects, hashed by address: a new entry releases the older one in its slot. */
static fl_obj *fl__freed_objs[1 << 14];
static fl_obj **fl__freed_slot(const void *p) {
    return &fl__freed_objs[((uintptr_t)p >> 6) % (sizeof fl__freed_objs / sizeof *fl__freed_objs)];
}
static fl_obj *fl__quarantine(fl_obj *o) {
    return __atomic_exchange_n(fl__freed_slot(o), o, __ATOMIC_ACQ_REL);
}

bool fl_is_dropped(const char *fn, const void *p) {
    if (!p || __atomic_load_n(fl__freed_slot(p), __ATOMIC_ACQUIRE) != p) return false;
    if (!fl_error()) fl_err_null("%s: an operand is used after its scope ended, or after fl_drop", fn);
    return true;
}
#else
static inline fl_obj *fl__quarantine(fl_obj *o) {
    return o;
}

bool fl_is_dropped(const char *fn, const void *p) {
    return (void)fn, (void)p, false;
}
#endif

bool fl_is_null_arg(const char *fn, const void *p) {
    if (p) return fl_is_dropped(fn, p);
    if (!fl_error()) fl_err_null("%s: an operand is NULL", fn);
    return true;
}

/* fl_is_null_arg for the operands of a table op. */
static bool fl__null_operand(const fl_op_info *info, const void *p) {
#ifdef FL_DEBUG
    char fn[100];
    snprintf(fn, sizeof fn, "fl_%s", info ? info->name : "none");
    if (p) return fl_is_dropped(fn, p);
#else
    if (p) return false;
#endif
    if (!fl_error()) fl_err_null("fl_%s: an operand is NULL", info ? info->name : "none");
    return true;
}

/* ---- objects and scopes: per thread, a stack of owned objects and a stack of marks into it ---- */

#define FL__ROOT_WARN 100000 /* values in the root scope that trigger the warning */
#define FL__ROOT_WARN_BYTES ((int64_t)1 << 30)
#define FL__ROOT_INTERVAL 1000 /* interval, in values, at which bytes are checked */

typedef struct fl__mark {
    int64_t base;   /* index of the scope's first value */
    uint64_t flags; /* saved flags, restored at the end as is place */
    fl_error_context place;
    int64_t number; /* for a scope that set the place: see fl_call_frame */
} fl__mark;

typedef struct fl__context {
    fl_obj **value;
    int64_t n, cap;
    fl__mark *scope; /* scope[0] is the root */
    int64_t depth, scope_cap;
    uint64_t flags;
    fl_call_hook_fn before, after;
    void *hook_user;
    const fl_taker *taker, *taking; /* taking: NULL while the taker's own calls run */
    const char *op; /* running op, for memory traces */
    int64_t next_check, bytes; /* number of values at the next check; bytes in use at the first check */
    int64_t hidden;         /* scopes up to this depth are not on the call stack */
    bool registered, checked, warned;
} fl__context;

static _Thread_local fl__context fl__thread_context;
FL_PRIVATE _Thread_local int64_t fl__places;
FL_PRIVATE bool fl__defers_nothing;
/* Internal bits of `flags`, restored by scopes like the others: calls are not reported to hooks, */
#define FL__HOOKS_OFF ((uint64_t)1 << 63)
/* allocations are long-lived (fl_persistent), */
#define FL__PERSISTENT ((uint64_t)1 << 62)
/* operands were cast from bf16, so that matrix products may convert them back. */
#define FL__OF_BF16 ((uint64_t)1 << 61)
/* the innermost scope is not the root (of fl_call_state alone). */
#define FL__SCOPED ((uint64_t)1 << 60)
#define FL__OWN_FLAGS (FL__HOOKS_OFF | FL__PERSISTENT | FL__OF_BF16 | FL__SCOPED)
static int fl__n_hooks; /* number of threads with hooks, plus watchers; atomic; 0: fast path */

/* At thread exit: drops all values that its scopes own. */
static void fl__context_end(void) {
    fl__context *th = &fl__thread_context;
    if (th->taker && th->taker->end) th->taker->end(th->taker->user);
    th->depth = 0;
    fl_call_hook(NULL, NULL, NULL);
    while (th->n > 0) fl_obj_drop(th->value[--th->n]);
    fl_heap_free(th->value);
    fl_heap_free(th->scope);
    memset(th, 0, sizeof *th);
}

static void fl__context_begin(fl__context *th) {
    if (!th->registered) th->registered = fl__at_thread_end(fl__context_end);
}

/* An object, not cleared beyond its header. */
static FL__HOT void *fl__obj_raw(int kind, size_t bytes, void (*drop)(fl_obj *self)) {
    fl_obj *o = fl__record_get(kind, bytes);
    if (!o) return NULL;
    __atomic_store_n(&o->refs_, 1, __ATOMIC_RELAXED);
    o->size_ = (uint32_t)bytes;
    o->drop_ = drop;
    return o;
}

void *fl_obj_new(size_t size, void (*drop)(fl_obj *self)) {
    if (size < sizeof(fl_obj) || size > FL__RECORD_SIZES * 64) {
        fl_fail("fl_obj_new: size must be between %zu and %d bytes, got %zu", sizeof(fl_obj),
                FL__RECORD_SIZES * 64, size);
        return NULL;
    }
    const int kind = (int)((size - 1) / 64);
    char *o = fl__obj_raw(kind, (size_t)(kind + 1) * 64, drop);
    if (!o) return NULL;
    memset(o + sizeof(fl_obj), 0, 64 - sizeof(fl_obj));
    for (size_t at = 64; at < size; at += 64) memset(o + at, 0, 64); /* records are multiples of 64 bytes */
    return o;
}

static void fl__tensor_drop(fl_obj *o);

void fl_obj_free(fl_obj *o) {
    if (!(o = fl__quarantine(o))) return;
    fl__record_put(o->drop_ == fl__tensor_drop ? FL__RECORD_TENSOR : (int)((o->size_ - 1) / 64), o);
}

void fl_obj_keep(fl_obj *o) {
    if (o) __atomic_fetch_add(&o->refs_, 1, __ATOMIC_RELAXED);
}

void fl_obj_drop(fl_obj *o) {
    if (!o) return;
    /* If it is the only reference, no other thread can add one: no read-modify-write needed. */
    if (__atomic_load_n(&o->refs_, __ATOMIC_ACQUIRE) == 1 ||
        __atomic_fetch_sub(&o->refs_, 1, __ATOMIC_ACQ_REL) == 1)
        o->drop_(o);
}

void fl_obj_steal(fl_obj *o) {
    fl__context *th = &fl__thread_context;
    int64_t base = th->depth ? th->scope[th->depth].base : 0;
    if (th->n > base && th->value[th->n - 1] == o) th->n--;
    else fl_obj_keep(o);
}

/* Grows a full stack; on failure drops o. */
static FL__COLD bool fl__scope_grow(fl__context *th, fl_obj *o) {
    fl__context_begin(th);
    if (fl_heap_grow(&th->value, &th->cap, th->n + 1, sizeof *th->value)) return true;
    fl_obj_drop(o);
    return false;
}

static FL__COLD void fl__root_warn(fl__context *th) {
    const bool before = th->n <= FL__ROOT_WARN;
    th->next_check = th->n + FL__ROOT_INTERVAL;
    if (before && th->next_check > FL__ROOT_WARN) th->next_check = FL__ROOT_WARN;
    if (th->depth || th->warned) return;
    const int64_t bytes = fl_mem_stats_of(NULL).in_use;
    if (!th->checked) th->bytes = bytes;
    th->checked = true;
    if (before && bytes - th->bytes <= FL__ROOT_WARN_BYTES) return;
    th->warned = true;
    fl_log_message(FL_LOG_WARN,
                   "the root scope of this thread owns %lld values, and %lld MiB are in use: call "
                   "fl_scope_begin before and fl_scope_end after each step to free temporaries",
                   (long long)th->n, (long long)(bytes >> 20));
}

static inline bool fl__scope_push(fl__context *th, fl_obj *o) {
    if (th->n == th->cap && !fl__scope_grow(th, o)) return false;
    th->value[th->n++] = o;
    if (th->n > th->next_check) fl__root_warn(th);
    return true;
}

bool fl_scope_adopt(fl_obj *o) {
    return fl__scope_push(&fl__thread_context, o);
}

fl_scope fl_scope_begin(void) {
    fl__context *th = &fl__thread_context;
    if (th->depth + 1 >= th->scope_cap) {
        fl__context_begin(th);
        if (!fl_heap_grow(&th->scope, &th->scope_cap, th->depth + 2, sizeof *th->scope))
            return (fl_scope){-1};
        th->scope[0].base = 0;
    }
    fl__mark *m = &th->scope[++th->depth];
    m->base = th->n;
    m->flags = th->flags;
    m->place = fl__place;
    return (fl_scope){th->depth};
}

fl_scope fl_scope_of(const char *fn) {
    const fl_scope s = fl_scope_begin();
    const bool named = fn && (!strncmp(fn, "fl_", 3) || !strncmp(fn, "fv_", 3));
    if (s.depth_ > 0 && !fl__place.fn && named && fn[3] != '_') fl__place.fn = fn;
    return s;
}

FL_PRIVATE fl_scope fl__scope_at(const fl_error_context *place, int64_t number) {
    const fl_scope s = fl_scope_begin();
    if (s.depth_ < 1 || !fl_given(place, "fl_scope_at", "the error context")) return s;
    fl__place = *place;
    fl__places++;
    fl__thread_context.scope[s.depth_].number = number ? number : fl__places;
    return s;
}

fl_scope fl_scope_at(const fl_error_context *place) {
    return fl__scope_at(place, 0);
}

fl_scope fl_scope_in(const void *of, void (*describe)(const void *of, char *buf, size_t size)) {
    return fl_scope_at(&(fl_error_context){NULL, of, describe, NULL});
}

int64_t fl_scope_depth(void) {
    return fl__thread_context.depth;
}

FL_PRIVATE int64_t fl__places_hide(int64_t depth) {
    const int64_t was = fl__thread_context.hidden;
    fl__thread_context.hidden = depth;
    return was;
}

/* The place that scope d set is the one that scope d + 1 saved. */
int fl_call_stack(fl_call_frame *places, int most) {
    const fl__context *th = &fl__thread_context;
    int n = 0;
    for (int64_t d = th->hidden + 1; d <= th->depth && n < most; d++) {
        const fl__mark *m = &th->scope[d];
        const fl_error_context *set = d < th->depth ? &m[1].place : &fl__place;
        if (set->of && set->of != m->place.of) places[n++] = (fl_call_frame){*set, m->number};
    }
    return n;
}

static int fl__provenance_count; /* atomic */

void fl_provenance_enable(int delta) {
    __atomic_fetch_add(&fl__provenance_count, delta, __ATOMIC_RELAXED);
}

static FL__COLD fl_provenance *fl__provenance_new(void) {
    const bool failed = fl_error();
    fl_provenance *note = fl_obj_new(sizeof *note, fl_obj_free);
    if (note) fl_call_stack_text(note->text, sizeof note->text);
    else if (!failed) fl_error_clear();
    return note;
}

fl_provenance *fl_provenance_here(void) {
    return __atomic_load_n(&fl__provenance_count, __ATOMIC_RELAXED) > 0 ? fl__provenance_new() : NULL;
}

void fl_scope_end(fl_scope *s) {
    fl__context *th = &fl__thread_context;
    if (!s || s->depth_ < 1 || s->depth_ > th->depth) return;
    fl__mark m = th->scope[s->depth_];
    th->depth = s->depth_ - 1;
    th->flags = m.flags;
    if (fl__place.of != m.place.of) fl__places++;
    fl__place = m.place;
    while (th->n > m.base) fl_obj_drop(th->value[--th->n]);
    s->depth_ = -1;
}

fl_tensor *fl_scope_return(fl_scope *s, fl_tensor *t) {
    if (t) fl_obj_steal(&t->obj);
    fl_scope_end(s);
    if (t && !fl_scope_adopt(&t->obj)) return fl_raise();
    return t;
}

void *fl_scope_escape(fl_scope *s, void *obj) {
    fl__context *th = &fl__thread_context;
    fl_obj *o = obj;
    if (!o || !s || s->depth_ < 1 || s->depth_ > th->depth) return o;
    fl_obj_keep(o);
    if (!fl_scope_adopt(o)) return fl_raise();
    /* o is on top now: move it to the end of the enclosing scope's values, and shift the marks above by
       one. */
    int64_t at = th->scope[s->depth_].base;
    if (s->depth_ == th->depth) {
        th->value[th->n - 1] = th->value[at];
    } else {
        memmove(th->value + at + 1, th->value + at, (size_t)(th->n - 1 - at) * sizeof *th->value);
    }
    th->value[at] = o;
    for (int64_t d = s->depth_; d <= th->depth; d++) th->scope[d].base++;
    return o;
}

int64_t fl_scope_size(void) {
    fl__context *th = &fl__thread_context;
    return th->n - (th->depth ? th->scope[th->depth].base : 0);
}

uint64_t fl_flags(void) {
    return fl__thread_context.flags & ~FL__OWN_FLAGS;
}
void fl_set_flags(uint64_t flags) {
    fl__thread_context.flags = (fl__thread_context.flags & FL__OWN_FLAGS) | (flags & ~FL__OWN_FLAGS);
}

int fl_stream(int n) {
    const uint64_t flags = fl__thread_context.flags;
    if (n < 0 || n > 255) return fl_err_false("fl_stream: n must be in [0, 255], got %d", n), -1;
    fl__thread_context.flags = (flags & ~((uint64_t)255 << 16)) | (uint64_t)n << 16;
    return fl__call_stream(flags);
}

FL_PRIVATE bool fl__of_bf16(void) { return fl__thread_context.flags & FL__OF_BF16; }

bool fl_persistent(bool on) {
    const bool was = fl__thread_context.flags & FL__PERSISTENT;
    fl__thread_context.flags = (fl__thread_context.flags & ~FL__PERSISTENT) | (on ? FL__PERSISTENT : 0);
    return was;
}

int64_t fl_live_tensors(void) {
    return fl__records_live(FL__RECORD_TENSOR);
}

/* ---- op tables as arrays ---- */

#ifndef FL_STATIC
const char FL__TABLES = 0;
#endif

static const fl_op_info fl__table[FL_TABLE_OPS] = {
#define FL__IS_CORE true
#define FL__IS_CORE_HOT true
#define FL__IS_COMPILED false
#define FL__IS_COMPOSED false
#define FL__U(op, class_, need, f, g) \
    [FL_OP_##op] = {#op, 0, .arity = 1, .cls = FL_CLASS_##class_, .required = FL__IS_##need, \
                    .formula = #f, .grad = {#g, NULL}},
#define FL__B(op, class_, need, f, ga, gb) \
    [FL_OP_##op] = {#op, 0, .arity = 2, .cls = FL_CLASS_##class_, .required = FL__IS_##need, \
                    .formula = #f, .grad = {#ga, #gb}},
#define FL__O(op, need, args_type, uses) \
    [FL_OP_##op] = {#op, sizeof(args_type), uses, .required = FL__IS_##need},
    FL_UNARY_OPS(FL__U) FL_BINARY_OPS(FL__B) FL_OTHER_OPS(FL__O)
#undef FL__U
#undef FL__B
#undef FL__O
#undef FL__IS_CORE
#undef FL__IS_CORE_HOT
#undef FL__IS_COMPILED
#undef FL__IS_COMPOSED
};
/* Table ops, then registered ops. */
static const fl_op_info *fl__ops[FL_MAX_OPS];
static int fl__n_ops;
static int fl__n_library_ops; /* ops of the library, which come before those of the program */

/* Op of each formula primitive. */
static const fl_op fl__primitive_ops[] = {
#define FL__P(word, op, ...) [FL_PRIMITIVE_##op] = FL_OP_##op,
    FL_PRIMITIVES(FL__P)
#undef FL__P
};

static void fl__ops_init(void) {
    if (fl__n_ops) return;
    for (fl__n_ops = 1; fl__n_ops < FL_TABLE_OPS; fl__n_ops++) fl__ops[fl__n_ops] = &fl__table[fl__n_ops];
}

int fl_op_count(void) {
    return fl__n_ops;
}

static bool fl__op_exists(fl_op op) {
    return op > FL_OP_NONE && op < fl__n_ops;
}

const fl_op_info *fl_op_get_info(fl_op op) {
    return fl__op_exists(op) ? fl__ops[op] : NULL;
}

const char *fl_op_name(fl_op op) {
    return fl__op_exists(op) ? fl__ops[op]->name : "";
}

fl_op fl_op_by_name(const char *name) {
    for (int i = 1; i < fl__n_ops; i++)
        if (name && !strcmp(fl__ops[i]->name, name)) return i;
    return FL_OP_NONE;
}

/* The first word of list that is not an op's name, and its length; NULL if none. */
static const char *fl__unknown_word(const char *list, int *length) {
    char word[64];
    for (const char *p = list; p && *p; p += *length, p += *p == ' ') {
        *length = (int)strcspn(p, " ");
        snprintf(word, sizeof word, "%.*s", *length, p);
        if (*length && fl_op_by_name(word) == FL_OP_NONE && strcmp(list, "cpu") != 0) return p;
    }
    return NULL;
}

fl_op fl_op_register(const fl_op_info *info) {
    fl__ops_init(); /* registrations may run before this file's constructor */
    if (!info || !info->name) return fl_err_null("fl_op_register: info or its name is NULL"), FL_OP_NONE;
    if (fl_op_by_name(info->name))
        return fl_err_null("fl_op_register: an op '%s' exists already", info->name), FL_OP_NONE;
    if (fl__n_ops == FL_MAX_OPS)
        return fl_err_null("fl_op_register: cannot register '%s': the limit of %d ops is reached", info->name,
                           FL_MAX_OPS),
               FL_OP_NONE;
    int length = 0; /* not checked for the library's ops, which may name later ones */
    const char *unknown = fl__n_library_ops ? fl__unknown_word(info->uses, &length) : NULL;
    if (unknown)
        return fl_err_null("fl_op_register: `uses` of '%s' has '%.*s', which is not an op", info->name,
                           length, unknown),
               FL_OP_NONE;
    fl__ops[fl__n_ops] = info;
    return fl__n_ops++;
}

fl_op fl_primitive_op(fl_primitive primitive) {
    return (unsigned)primitive < FL_PRIMITIVE_COUNT ? fl__primitive_ops[primitive] : FL_OP_NONE;
}

const fl_formula *fl_op_program(fl_op op, fl_program which) {
    static fl_formula programs[FL_OP_copy][FL_PROGRAM_DA_DB + 1];
    static bool known[FL_OP_copy][FL_PROGRAM_DA_DB + 1];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const fl_op_info *info = fl_op_get_info(op);
    const int arity = info ? info->arity : 0;
    if (!arity || (unsigned)which > (arity == 1 ? FL_PROGRAM_DA : FL_PROGRAM_DA_DB)) {
        fl_fail("fl_op_program: op %d '%s' has no formula %d", (int)op, fl_op_name(op), (int)which);
        return NULL;
    }
    fl_formula *f = &programs[op][which];
    if (__atomic_load_n(&known[op][which], __ATOMIC_ACQUIRE)) return f;
    char both[2048];
    const char *text = which == FL_PROGRAM_Y    ? info->formula
                       : which < FL_PROGRAM_DA_DB ? info->grad[which - FL_PROGRAM_DA]
                                                : both;
    const char *y_of = arity == 1 ? "x" : "a b", *dx_of = arity == 1 ? "x y dy" : "a b y dy";
    if (text == both) snprintf(both, sizeof both, "%s, %s", info->grad[0], info->grad[1]);
    pthread_mutex_lock(&lock);
    bool ok = known[op][which] || fl_formula_parse(f, text, which == FL_PROGRAM_Y ? y_of : dx_of);
    __atomic_store_n(&known[op][which], ok, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return ok ? f : NULL;
}

/* True if that formula runs the op `part`. */
static bool fl__program_uses(fl_op op, fl_program which, fl_op part) {
    for (int i = 0; i < FL_PRIMITIVE_COUNT; i++)
        if (fl__primitive_ops[i] == part) return fl_formula_has(fl_op_program(op, which), (fl_primitive)i);
    return false;
}

/* True if `name` is a word of the space-separated list. */
static bool fl__listed(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *p = list; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == n && !memcmp(p, name, n)) return true;
    return false;
}

bool fl_op_uses(fl_op op, fl_op part) {
    if (!fl__op_exists(op) || !fl__op_exists(part)) return false;
    if (fl__ops[op]->arity) return op != part && fl__program_uses(op, FL_PROGRAM_Y, part);
    return fl__listed(fl__ops[op]->uses, fl__ops[part]->name);
}

bool fl_op_grad_uses(fl_op op, int i, fl_op part) {
    return fl__op_exists(op) && i >= 0 && i < fl__ops[op]->arity &&
           fl__program_uses(op, i ? FL_PROGRAM_DB : FL_PROGRAM_DA, part);
}

fl_rng *fl_op_rng(fl_op op, void *args) {
    if (op == FL_OP_random) return args ? &((fl_random_args *)args)->rng : NULL;
    const size_t end = args && fl__op_exists(op) ? fl__ops[op]->rng_end : 0;
    return end ? (fl_rng *)(void *)((char *)args + end) - 1 : NULL;
}

int fl_op_grad_steps(fl_op op, int i) {
    return fl__op_exists(op) && i >= 0 && i < fl__ops[op]->arity
               ? fl_op_program(op, i ? FL_PROGRAM_DB : FL_PROGRAM_DA)->n_steps
               : 0;
}

/* ---- shapes ---- */

static int fl__normalise_axis(int n, const char *fn, const fl_tensor *t, int axis) {
    const int a = axis < 0 ? axis + n : axis;
    if (a >= 0 && a < n) return a;
    fl_err_null("%s: axis %d is out of range for shape %s", fn, axis, FL_SHAPE_TEXT(t));
    return -1;
}
int fl_axis_of(const char *fn, const fl_tensor *t, int axis) {
    return fl_is_null_arg(fn, t) ? -1 : fl__normalise_axis(t->ndim ? t->ndim : 1, fn, t, axis);
}
int fl_own_axis_of(const char *fn, const fl_tensor *t, int axis) {
    return fl_is_null_arg(fn, t) ? -1 : fl__normalise_axis(t->ndim, fn, t, axis);
}

int64_t fl_shape_numel(fl_shape s) {
    int64_t n = 1;
    bool zero = false;
    if (s.ndim < 0 || s.ndim > FL_MAX_DIMS) return -1;
    for (int i = 0; i < s.ndim; i++) {
        if (s.dim[i] < 0) return -1;
        if (s.dim[i] == 0)
            zero = true;
        else if (__builtin_mul_overflow(n, s.dim[i], &n) || n > (int64_t)1 << 62)
            return -1;
    }
    if (zero) return n > (int64_t)1 << 59 ? -1 : 0; /* strides in bytes must fit */
    return n;
}

char *fl_shape_text(fl_shape s, char *buf, size_t size) {
    size_t at = (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < s.ndim && i < FL_MAX_DIMS && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, i ? ", %lld" : "%lld", (long long)s.dim[i]);
    if (s.ndim > FL_MAX_DIMS && at < size)
        at += (size_t)snprintf(buf + at, size - at, ", ... of %d dims", s.ndim);
    if (at < size) snprintf(buf + at, size - at, "]");
    return buf;
}

fl_str200 fl_text_of_shape(fl_shape s) {
    fl_str200 x;
    fl_shape_text(s, x.s, sizeof x.s);
    return x;
}

fl_shape fl_shape_of(const fl_tensor *t) {
    fl_shape s = {0, {1}};
    if (!t) return s;
    s.ndim = t->ndim;
    for (int i = 0; i < t->ndim; i++) s.dim[i] = t->shape[i];
    return s;
}

int64_t fl_numel(const fl_tensor *t) {
    if (!t) return 0;
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

bool fl_is_contiguous(const fl_tensor *t) {
    int64_t n = 1;
    if (!t) return false;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] == 0) return true;
        if (t->shape[i] != 1 && t->stride[i] != n) return false;
        n *= t->shape[i];
    }
    return true;
}

bool fl_is_channels_last(const fl_tensor *t) {
    if (!t || t->ndim < 2) return false;
    int64_t step = t->shape[1];
    bool ok = t->stride[1] == 1 || t->shape[1] == 1;
    for (int i = t->ndim - 1; ok && i >= 0; i--) {
        if (i == 1) continue;
        ok = t->stride[i] == step || t->shape[i] == 1;
        step *= t->shape[i];
    }
    return ok;
}

bool fl_same_shape(const fl_tensor *a, const fl_tensor *b) {
    if (fl_is_null_arg("fl_same_shape", a) || fl_is_null_arg("fl_same_shape", b)) return false;
    if (a->ndim != b->ndim) return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i]) return false;
    return true;
}

bool fl_shape_is(const fl_tensor *t, fl_shape s) {
    if (fl_is_null_arg("fl_shape_is", t)) return false;
    if (t->ndim != s.ndim) return false;
    for (int i = 0; i < s.ndim; i++)
        if (t->shape[i] != s.dim[i]) return false;
    return true;
}

bool fl_broadcast_shape(fl_shape *s, const fl_tensor *t) {
    if (fl_is_null_arg("fl_broadcast_shape", s) || fl_is_null_arg("fl_broadcast_shape", t)) return false;
    fl_shape r = *s;
    if (t->ndim > r.ndim) {
        for (int i = 0; i < t->ndim; i++) {
            int j = i - (t->ndim - s->ndim);
            r.dim[i] = j < 0 ? 1 : s->dim[j];
        }
        r.ndim = t->ndim;
    }
    for (int i = 0; i < t->ndim; i++) {
        int64_t *d = &r.dim[r.ndim - t->ndim + i];
        if (*d == t->shape[i] || t->shape[i] == 1) continue;
        if (*d != 1) return false;
        *d = t->shape[i];
    }
    *s = r;
    return true;
}

/* ---- handles ---- */

#define FL__MAX_BACKENDS 32
static fl_backend fl__backends[FL__MAX_BACKENDS];
static int fl__n_backends;
static int fl__default_backend;
static bool fl__strict_mode;
static int64_t fl__fallback_count;

static bool fl__has_storage(const fl_tensor *t) {
    return t->buffer || t->impl;
}

static void fl__tensor_drop(fl_obj *o) {
    fl_tensor *t = (fl_tensor *)(void *)o;
    if (t->buffer) fl_buffer_drop(t->buffer);
    if (t->impl) {
        const fl_backend *be = &fl__backends[t->backend];
        if (be->drop) be->drop(be, t);
    }
    if (t->base_) fl_obj_drop(&t->base_->obj);
    fl_obj_free(o);
}

/* A handle without storage, owned by the innermost scope; shape and strides are not set. NULL after
   fl_fail. */
static FL__HOT fl_tensor *fl__handle(int backend, fl_dtype dtype, int ndim) {
    fl__context *th = &fl__thread_context;
    fl_tensor *t = fl__obj_raw(FL__RECORD_TENSOR, sizeof *t, fl__tensor_drop);
    if (!t) return NULL;
    t->dtype = dtype;
    t->backend = (uint8_t)backend;
    t->weak = t->copied = false;
    t->ndim = ndim;
    t->shape[0] = t->stride[0] = 1; /* remains so for a 0-d tensor */
    t->offset = 0;
    t->buffer = NULL;
    t->impl = NULL;
    t->version_ = 0;
    t->base_ = NULL;
    return fl__scope_push(th, &t->obj) ? t : NULL;
}

fl_tensor *fl_out_on(int backend, fl_shape shape, fl_dtype dtype) {
    if (fl_shape_numel(shape) < 0) {
        fl_fail("fl_out_on: shape %s is not valid: expected up to %d dims >= 0, numel <= 2^62",
                FL_TEXT_OF(shape), FL_MAX_DIMS);
        return NULL;
    }
    fl_tensor *t = fl__handle(backend, dtype, shape.ndim);
    if (!t) return NULL;
    int64_t n = 1;
    memcpy(t->shape, shape.dim, sizeof t->shape); /* constant size: compiles to moves, not to a slow string
                                                     instruction */
    if (!shape.ndim) t->shape[0] = 1;
    for (int i = shape.ndim - 1; i >= 0; i--) {
        t->stride[i] = n;
        n *= shape.dim[i] ? shape.dim[i] : 1;
    }
    return t;
}

/* An output handle with the shape of t, which is known to be valid; *dense: t is row-major. */
static inline fl_tensor *fl__out_shaped(const fl_tensor *t, fl_dtype dtype, bool *dense) {
    fl_tensor *o = fl__handle(t->backend, dtype, t->ndim);
    if (!o) return NULL;
    int64_t n = 1;
    *dense = true;
    for (int i = t->ndim - 1; i >= 0; i--) {
        int64_t dim = t->shape[i];
        o->shape[i] = dim;
        o->stride[i] = n;
        *dense &= dim == 1 || t->stride[i] == n;
        n *= dim ? dim : 1;
    }
    return o;
}

fl_tensor *fl_out_like(const fl_tensor *t, fl_dtype dtype) {
    bool dense;
    return fl_is_null_arg("fl_out_like", t) ? NULL : fl__out_shaped(t, dtype, &dense);
}

/* The same with t's layout too: the output of element-wise ops. */
static inline fl_tensor *fl__out_same(const fl_tensor *t, fl_dtype dtype) {
    bool dense;
    fl_tensor *o = fl__out_shaped(t, dtype, &dense);
    return !o || dense ? o : fl_out_layout_like(o, t);
}

void fl_axes_by_stride(const fl_tensor *t, int order[FL_MAX_DIMS]) {
    if (fl_is_null_arg("fl_axes_by_stride", t)) return;
    for (int i = 0; i < t->ndim; i++) {
        int k = i;
        for (; k > 0 && llabs(t->stride[order[k - 1]]) < llabs(t->stride[i]); k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

/* True if contiguous after sorting the axes by stride. */
static bool fl__dense_in_order(const fl_tensor *t) {
    int order[FL_MAX_DIMS];
    int64_t n = 1;
    fl_axes_by_stride(t, order);
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[order[i]] != 1 && t->stride[order[i]] != n) return false;
        n *= t->shape[order[i]];
    }
    return true;
}

bool fl_is_dense(const fl_tensor *t) {
    return fl_is_contiguous(t) || (t && fl__dense_in_order(t));
}

fl_tensor *fl_out_layout_like(fl_tensor *out, const fl_tensor *t) {
    if (!out || t->weak || t->ndim < 2 || fl_is_contiguous(t) || !fl_same_shape(out, t)) return out;
    if (fl__dense_in_order(t)) memcpy(out->stride, t->stride, sizeof out->stride);
    return out;
}

fl_tensor *fl_out_order_as(fl_tensor *out, const fl_tensor *t) {
    int order[FL_MAX_DIMS];
    int64_t n = 1;
    if (!out) return NULL;
    fl_axes_by_stride(t, order);
    for (int i = t->ndim - 1; i >= 0; n *= out->shape[order[i--]]) out->stride[order[i]] = n;
    return out;
}

fl_tensor *fl_keep(fl_tensor *t) {
    if (t) fl_obj_keep(&t->obj);
    return t;
}

void fl_drop(fl_tensor *t) {
    if (t) fl_obj_drop(&t->obj);
}

const char *fl_backend_name(const fl_tensor *t) {
    return !t ? "none" : t->backend == FL_ANY_BACKEND ? "any" : fl__backends[t->backend].name;
}

static uint32_t *fl__version(const fl_tensor *t) {
    if (t->buffer) return &t->buffer->version;
    return t->base_ ? &t->base_->version_ : &((fl_tensor *)(uintptr_t)t)->version_;
}

uint32_t fl_version_of(const fl_tensor *t) {
    return t ? *fl__version(t) : 0;
}

/* ---- backends ---- */

#define FL__STRING_(x) #x
#define FL__STRING(x) FL__STRING_(x)
FL_API const fl_backend *FL__PASTE(fl_backend_, FL_TENSOR_BACKEND)(void);
#ifdef FL_USE_CUDA
const fl_backend *fl_backend_cuda_of(int device); /* kernels/cuda/backend.h */
#endif

static int fl__backend_of(const char *fn, const char *name) {
    for (int i = 0; i < fl__n_backends; i++)
        if (name && !strcmp(fl__backends[i].name, name)) return i;
    char known[200] = "";
    for (int i = 0, n = 0; i < fl__n_backends && n < 180; i++)
        n += snprintf(known + n, sizeof known - (size_t)n, "%s%s", i ? ", " : "", fl__backends[i].name);
    fl_fail("%s: there is no backend '%s'; known: %s", fn, name ? name : "(null)", known);
    return -1;
}

static void fl__default_from_environment(void) {
    const char *name = getenv("FL_DEVICE");
    const int backend = name ? fl__backend_of("FL_DEVICE", name) : fl__default_backend;
    if (backend >= 0) {
        fl__default_backend = backend;
        return;
    }
    fl_log_message(FL_LOG_WARN, "%s: using '%s'", fl_error(), fl__backends[fl__default_backend].name);
    fl_error_clear();
}

__attribute__((constructor)) static void fl__backends_init(void) {
    fl__ops_init();
    fl__register_ops();
    fl__n_library_ops = fl__n_ops;
    fl_backend_use(fl_backend_cpu(), NULL);
#ifdef FL_USE_CUDA
    for (int i = 0; fl_backend_cuda_of(i); i++) fl_backend_use(fl_backend_cuda_of(i), NULL);
#endif
    const fl_backend *chosen = FL__PASTE(fl_backend_, FL_TENSOR_BACKEND)();
    if (strcmp(FL__STRING(FL_TENSOR_BACKEND), "cpu") && fl_backend_use(chosen, NULL))
        fl__default_backend = fl__backend_of("FL_TENSOR_BACKEND", chosen->name);
    fl__default_from_environment();
}

int fl_backend_index(const char *name) {
    return fl__backend_of("fl_backend_index", name);
}

const fl_backend *fl_backend_at(int backend) {
    return backend >= 0 && backend < fl__n_backends ? &fl__backends[backend] : NULL;
}

/* The first op whose current slot would be lost by installing b, a modified copy of the built-in table;
   NONE: none. */
static fl_op fl__lost_slot(const fl_backend *b, const fl_backend *now) {
    const fl_backend *shipped = fl_backend_cpu();
    const bool changed = b->shipped_ && !strcmp(b->name, shipped->name) && memcmp(b, shipped, sizeof *b) != 0;
    for (fl_op i = 1; changed && i < fl__n_ops; i++)
        if (now->op[i] && now->op[i] != shipped->op[i] && b->op[i] == shipped->op[i]) return i;
    return FL_OP_NONE;
}

static uint32_t fl__override_state; /* incremented when a table with overrides is installed; atomic */

static int64_t fl__tables_installed; /* atomic */

FL_PRIVATE int64_t fl__table_changes(void) {
    return __atomic_load_n(&fl__tables_installed, __ATOMIC_RELAXED);
}

bool fl_backend_use(const fl_backend *b, fl_backend *old) {
    if (!b || !b->name) return fl_err_false("fl_backend_use: the backend or its name is NULL");
    if (!b->op[FL_OP_copy])
        return fl_err_false(
            "fl_backend_use: backend '%s' has no copy slot, which fallbacks to the cpu need",
            b->name);
    int at = 0;
    while (at < fl__n_backends && strcmp(fl__backends[at].name, b->name)) at++;
    if (at == FL__MAX_BACKENDS)
        return fl_err_false("fl_backend_use: cannot add '%s': the limit of %d backends is reached", b->name,
                            FL__MAX_BACKENDS);
    const fl_op dropped = at < fl__n_backends ? fl__lost_slot(b, &fl__backends[at]) : FL_OP_NONE;
    if (dropped != FL_OP_NONE)
        return fl_err_false("fl_backend_use: this copy of fl_backend_cpu() lacks the current kernel of %s: "
                            "modify a copy of *fl_backend_at(fl_backend_index(\"cpu\")) instead",
                            fl__ops[dropped]->name);
    if (!fl_sync(NULL)) return fl_raise() != NULL; /* calls that wait were made for the table before */
    if (old) memset(old, 0, sizeof *old);
    if (old && at < fl__n_backends) *old = fl__backends[at];
    if (b != &fl__backends[at]) fl__backends[at] = *b;
    __atomic_fetch_add(&fl__tables_installed, 1, __ATOMIC_RELAXED);
    fl__backends[at].shipped_ = false;
    if (b->overridden_) __atomic_fetch_add(&fl__override_state, 1, __ATOMIC_RELAXED);
    if (at == fl__n_backends) fl__n_backends++;
    return true;
}

bool fl_backend_set(fl_backend *b, fl_op op, fl_slot slot, unsigned flags) {
    if (!b || !fl__op_exists(op))
        return fl_err_false("fl_backend_set: the backend is NULL, or op %d does not exist", op);
    b->op[op] = slot;
    b->flags[op] = (uint8_t)flags;
    return true;
}

bool fl_backend_override(fl_backend *b, fl_op op, fl_slot slot) {
    if (!b || !fl__op_exists(op))
        return fl_err_false("fl_backend_override: the backend is NULL, or op %d does not exist", op);
    b->op[op] = slot;
    b->flags[op] &= FL_SLOT_CONTIGUOUS;
    b->overridden_ = true;
    for (fl_op i = 1; i < fl__n_ops; i++) {
        if (!fl__ops[i]->required && fl_op_uses(i, op)) b->op[i] = NULL;
        if (i < FL_TABLE_OPS && (fl_op_grad_uses(i, 0, op) || fl_op_grad_uses(i, 1, op)))
            b->no_grad[i] = true;
    }
    return true;
}

bool fl_backend_strict(bool on) {
    bool was = fl__strict_mode;
    fl__strict_mode = on;
    return was;
}

int64_t fl_backend_fallbacks(void) {
    return __atomic_load_n(&fl__fallback_count, __ATOMIC_RELAXED);
}

bool fl_backend_set_default(const char *name) {
    int f = fl__backend_of("fl_backend_set_default", name);
    if (f < 0) return fl_raise() != NULL;
    fl__default_backend = f;
    return true;
}

int fl_backend_default(void) {
    return fl__default_backend;
}

bool fl_backend_has(int backend, fl_op op) {
    const fl_backend *be = fl_backend_at(backend);
    return be && fl__op_exists(op) && be->op[op];
}

const char *fl_backend_name_of(int i) {
    const fl_backend *be = fl_backend_at(i);
    return be ? be->name : NULL;
}

bool fl_is_async(const fl_tensor *t) {
    return t && !t->weak && fl__backends[t->backend].sync;
}

bool fl_sync(const fl_tensor *t) {
    if (!t) return fl__await_all_calls();
    if (t->weak) return true;
    if (!fl__await_calls(t->buffer, false)) return false;
    const fl_backend *be = &fl__backends[t->backend];
    return !be->sync || be->sync(be);
}

fl_call_hooks fl_call_hook(fl_call_hook_fn before, fl_call_hook_fn after, void *user) {
    fl__context *th = &fl__thread_context;
    const fl_call_hooks replaced = {th->before, th->after, th->hook_user};
    const int was = th->before || th->after, is = before || after;
    if (is) fl__context_begin(th);
    if (is != was) __atomic_fetch_add(&fl__n_hooks, is - was, __ATOMIC_RELAXED);
    th->before = before;
    th->after = after;
    th->hook_user = user;
    return replaced;
}

const fl_taker *fl_take_calls(const fl_taker *t) {
    fl__context *th = &fl__thread_context;
    const fl_taker *was = th->taker;
    if (t) fl__context_begin(th);
    if (th->taking || !th->taker) th->taking = t; /* else a function of the taker runs */
    th->taker = t;
    return was;
}

uint64_t fl_call_state(void) {
    return fl__thread_context.flags | (fl__thread_context.depth ? FL__SCOPED : 0);
}

FL_PRIVATE bool fl__flags_return(uint64_t flags) {
    const fl__context *th = &fl__thread_context;
    for (int64_t d = 1; d <= th->depth; d++)
        if (th->scope[d].flags & flags) return true;
    return false;
}

FL_PRIVATE int fl__call_lifetime(uint64_t state) {
    return state & FL__PERSISTENT ? 3 : state & FL__SCOPED ? 2 : 0;
}

FL_PRIVATE int fl__call_stream(uint64_t state) {
    return (int)(state >> 16 & 255);
}

FL_PRIVATE bool fl__is_watched(void) {
    return __atomic_load_n(&fl__n_hooks, __ATOMIC_RELAXED) &&
           !(fl__thread_context.flags & FL__HOOKS_OFF);
}

static fl_call_watcher *fl__watchers; /* atomic, as is next_: a removed watcher still links to the rest */
static pthread_mutex_t fl__watchers_lock = PTHREAD_MUTEX_INITIALIZER;

/* The link that points to w, or the last link. */
static fl_call_watcher **fl__link_to(const fl_call_watcher *w) {
    fl_call_watcher **at = &fl__watchers;
    while (*at && *at != w) at = &(*at)->next_;
    return at;
}

void fl_unwatch_calls(fl_call_watcher *w) {
    if (fl_is_null_arg("fl_unwatch_calls", w)) return;
    pthread_mutex_lock(&fl__watchers_lock);
    fl_call_watcher **at = fl__link_to(w);
    if (*at) {
        __atomic_store_n(at, w->next_, __ATOMIC_RELEASE);
        __atomic_fetch_sub(&fl__n_hooks, 1, __ATOMIC_RELAXED);
    }
    pthread_mutex_unlock(&fl__watchers_lock);
}

void fl_watch_calls(fl_call_watcher *w) {
    if (fl_is_null_arg("fl_watch_calls", w)) return;
    fl_unwatch_calls(w);
    pthread_mutex_lock(&fl__watchers_lock);
    __atomic_store_n(&w->next_, NULL, __ATOMIC_RELAXED);
    __atomic_store_n(fl__link_to(w), w, __ATOMIC_RELEASE);
    __atomic_fetch_add(&fl__n_hooks, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__watchers_lock);
}

/* Asks the taker about a call, or about storage for t. */
static FL__COLD fl_taken fl__take(const fl_call *c, fl_tensor *t, size_t bytes, const fl_mem_info *info) {
    fl__context *th = &fl__thread_context;
    const fl_taker *taker = th->taking;
    if (!c && !taker->make) return FL_DECLINED;
    th->taking = NULL;
    const fl_taken taken = c ? taker->call(c, taker->user) : taker->make(t, bytes, info, taker->user);
    th->taking = th->taker;
    return taken;
}

static FL__HOT bool fl__storage_new(fl_tensor *t) {
    const fl_backend *be = &fl__backends[t->backend];
    fl_mem_info info = {.op = fl__thread_context.op, .step = fl_mem_step_now(), .ndim = t->ndim,
                        .shape = t->shape, .lifetime = fl__call_lifetime(fl_call_state())};
    if (be->make) return be->make(be, t, &info);
    size_t bytes;
    if (__builtin_mul_overflow((size_t)fl_numel(t), fl_dtype_size(t->dtype), &bytes))
        return fl_fail("fl_out_make: the bytes of shape %s of %s overflow size_t", FL_SHAPE_TEXT(t),
                       fl_dtype_name(t->dtype));
    if (be->place && !be->place(be, &info)) return false;
    if (__builtin_expect(fl__thread_context.taking != NULL, 0)) {
        const fl_taken taken = fl__take(NULL, t, bytes, &info);
        if (taken != FL_DECLINED) return taken == FL_TAKEN;
    }
    t->buffer = fl_buffer_new(bytes, &info);
    return t->buffer != NULL;
}

bool fl_out_allocate(fl_tensor *t) {
    if (fl_is_null_arg("fl_out_allocate", t)) return false;
    return fl__has_storage(t) || fl__storage_new(t);
}

/* Slots access memory by fl_data, so pageable buffers are mapped while a slot runs: inputs and in-place
   outputs before it starts, new outputs from fl_out_make on. Deferred calls that must come first run then. */
static bool fl__pin_tensor(fl_tensor *t, bool write) {
    if (!t || !t->buffer) return true;
    return fl__await_calls(t->buffer, write) && (!t->buffer->pageable || fl__buffer_map(t->buffer));
}
static void fl__unpin_tensor(fl_tensor *t) {
    if (t && t->buffer && t->buffer->pageable) fl_buffer_unmap(t->buffer);
}

bool fl_out_make(fl_tensor *out) {
    if (!out) return fl_err_false("fl_out_make: the output is NULL");
    if (fl__has_storage(out)) return true;
    if (!fl__storage_new(out)) return false;
    if (fl__pin_tensor(out, true)) return true;
    fl_buffer_drop(out->buffer);
    out->buffer = NULL;
    return false;
}

static int fl__call_backend(const fl_call *c) {
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]) return c->out[i]->backend;
    return fl__default_backend;
}

/* A bit for each built-in dtype, and one for all others: for sets of dtypes. */
static inline uint32_t fl__dtype_bit(fl_dtype d) {
    return 1u << ((unsigned)d < FL_DTYPE_COUNT ? (unsigned)d : (unsigned)FL_DTYPE_COUNT);
}

/* Properties of a call's operands that decide how it runs. */
typedef struct fl__traits {
    uint32_t dtypes;  /* set of the dtypes */
    uint32_t written; /* bit set of the outputs that have storage: written in place */
    bool paged;       /* a buffer is pageable and must be pinned, or deferred calls wait for it */
} fl__traits;

static inline fl__traits fl__traits_of(const fl_call *c) {
    fl__traits r = {0, 0, false};
    for (int i = 0; i < c->n_out; i++) {
        const fl_tensor *t = c->out[i];
        if (!t) continue;
        r.dtypes |= fl__dtype_bit(t->dtype);
        r.written |= (uint32_t)fl__has_storage(t) << i;
        if (t->buffer) r.paged |= t->buffer->pageable | fl__is_waited_for(t->buffer);
    }
    for (int i = 0; i < c->n_in; i++) { /* weak numbers count as f32 or i64, which is harmless */
        const fl_tensor *t = c->in[i];
        r.dtypes |= fl__dtype_bit(t->dtype);
        if (t->buffer) r.paged |= t->buffer->pageable | fl__is_waited_for(t->buffer);
    }
    return r;
}

static FL__COLD bool fl__run_pinned(const fl_backend *be, const fl_call *c, fl_slot slot) {
    int in = 0, out = 0;
    bool ok = true;
    for (; ok && out < c->n_out; out++) ok = fl__pin_tensor(c->out[out], true);
    for (; ok && in < c->n_in; in++) ok = fl__pin_tensor(c->in[in], false);
    if (!ok) { /* the last one was not pinned */
        if (in > 0)
            in--;
        else
            out--;
    }
    ok = ok && slot(be, c);
    for (int i = 0; i < in; i++) fl__unpin_tensor(c->in[i]);
    for (int i = 0; i < out; i++) fl__unpin_tensor(c->out[i]);
    return ok;
}

static FL__COLD bool fl__run_taken(const fl_backend *be, const fl_call *c, fl_slot slot, bool paged);

static FL__HOT bool fl__run_slot(const fl_backend *be, const fl_call *c, fl_slot slot, bool paged) {
    if (__builtin_expect(fl__thread_context.taking != NULL, 0)) return fl__run_taken(be, c, slot, paged);
    if (paged) return fl__run_pinned(be, c, slot);
    bool ok = slot(be, c);
    for (int i = 0; i < c->n_out; i++) fl__unpin_tensor(c->out[i]); /* pinned by fl_out_make */
    return ok;
}

/* Disables hooks; returns the flags to restore. */
static uint64_t fl__hooks_off(void) {
    const uint64_t flags = fl__thread_context.flags;
    fl__thread_context.flags |= FL__HOOKS_OFF;
    return flags;
}

/* Runs c with copies of the inputs that are not contiguous. */
static FL__COLD bool fl__run_contiguous(const fl_backend *be, const fl_call *c, fl_slot slot) {
    fl_scope s = fl_scope_begin();
    fl_call d = *c;
    bool ok = true;
    const uint64_t flags = fl__hooks_off();
    for (int i = 0; ok && i < d.n_in; i++)
        if (!d.in[i]->weak) ok = (d.in[i] = fl_contiguous(d.in[i])) != NULL;
    fl__thread_context.flags = flags; /* hooks see the calls of a slot that composes */
    ok = ok && fl__run_slot(be, &d, slot, fl__traits_of(&d).paged);
    fl_scope_end(&s);
    return ok;
}

/* Copies src to dst, of the same shape and dtype, between backends: by a `move` of either, or through the
   host. */
static bool fl__transfer(fl_tensor *dst, fl_tensor *src) {
    const fl_backend *const backends[2] = {&fl__backends[dst->backend], &fl__backends[src->backend]};
    const char *pending = fl_error();
    if (!fl__host_access(src, FL_READ) || !fl__host_access(dst, FL_WRITE) ||
        !fl__await_calls(dst->buffer, true) || !fl__await_calls(src->buffer, false))
        return false;
    for (int i = 0; i < 2; i++) {
        if (backends[i]->move && backends[i]->move(backends[i], dst, src)) return true;
        if (fl_error() != pending) return false;
    }
    void *from = fl_map(src, FL_READ);
    if (!from) return false;
    void *to = fl_map(dst, FL_WRITE);
    if (to) memcpy(to, from, (size_t)fl_numel(src) * fl_dtype_size(src->dtype));
    if (to) fl_unmap(dst, FL_WRITE);
    fl_unmap(src, FL_READ);
    return to != NULL;
}

static bool fl__fallback_allowed(const fl_backend *be, const fl_call *c) {
    static uint8_t warned[FL__MAX_BACKENDS][FL_MAX_OPS];
    long backend = be - fl__backends;
    if (backend == 0)
        return fl_fail("fl_%s: the cpu backend has no slot for this op", fl__ops[c->op]->name);
    if (fl__strict_mode)
        return fl_fail(
            "fl_%s: backend '%s' has no slot for this op, and fallbacks are errors (fl_backend_strict)",
            fl__ops[c->op]->name, be->name);
    __atomic_fetch_add(&fl__fallback_count, 1, __ATOMIC_RELAXED);
    if (!__atomic_exchange_n(&warned[backend][c->op], 1, __ATOMIC_RELAXED))
        fl_log_message(FL_LOG_WARN, "backend '%s' has no slot for %s: it runs on the cpu", be->name,
                       fl__ops[c->op]->name);
    return true;
}

/* Fallback for a missing slot: copies operands to the cpu, runs the op there, copies results back. */
static FL__COLD bool fl__run_fallback(const fl_backend *be, const fl_call *c) {
    if (!fl__fallback_allowed(be, c)) return false;
    fl_scope s = fl_scope_begin();
    fl_call d = *c;
    bool ok = true;
    fl__hooks_off();
    for (int i = 0; ok && i < d.n_in; i++)
        if (!d.in[i]->weak) ok = (d.in[i] = fl_to(d.in[i], fl__backends[0].name)) != NULL;
    for (int i = 0; ok && i < d.n_out; i++) {
        if (!c->out[i]) continue;
        d.out[i] = fl__has_storage(c->out[i])
                       ? fl_to(c->out[i], fl__backends[0].name)
                       : fl_out_layout_like(fl_out_on(0, fl_shape_of(c->out[i]), c->out[i]->dtype),
                                         c->out[i]);
        ok = d.out[i] != NULL;
    }
    ok = ok && fl_call_run(&d);
    for (int i = 0; ok && i < d.n_out; i++)
        if (c->out[i]) ok = fl_out_allocate(c->out[i]) && fl__transfer(c->out[i], d.out[i]);
    fl_scope_end(&s);
    return ok;
}

/* True if op falls back to the cpu without a slot: it is CORE, or has no composition. */
static bool fl__falls_back(fl_op op) {
    return fl__ops[op]->required || (fl__ops[op]->uses && !strcmp(fl__ops[op]->uses, "cpu"));
}

/* True for a fused gradient whose formula uses an overridden op. */
static bool fl__replaced_gradient(const fl_backend *be, const fl_call *c) {
    return (c->op == FL_OP_grad1 || c->op == FL_OP_grad2) &&
           be->no_grad[((const fl_grad_args *)c->args)->op];
}

/* Bit set of the dtypes that are computed in a wider one. */
#define FL__NARROW_DTYPES \
    (1u << FL_U8 | 1u << FL_I8 | 1u << FL_I16 | 1u << FL_I32 | 1u << FL_U16 | 1u << FL_U32 | \
     1u << FL_U64 | 1u << FL_F16 | 1u << FL_BF16)

bool fl_is_narrow(const fl_tensor *t) {
    return !fl_is_null_arg("fl_is_narrow", t) && (FL__NARROW_DTYPES & fl__dtype_bit(t->dtype)) != 0;
}

static bool fl__takes_narrow(const fl_backend *be, fl_op op) {
    return op == FL_OP_copy || op == FL_OP_fill || (be->op[op] && be->flags[op] & FL_SLOT_NARROW);
}

static bool fl__run_by(const fl_backend *be, const fl_call *c);
static bool fl__run_composed(const fl_call *c);

/* Output i of the wide record d for c: the cast input if c works in place, or a new handle. */
static fl_tensor *fl__wide_out(const fl_call *c, const fl_call *d, int i) {
    fl_tensor *y = c->out[i];
    if (!y || !fl_is_narrow(y)) return y;
    for (int k = 0; k < c->n_in; k++)
        if (c->in[k] == y) return d->in[k];
    if (fl__has_storage(y)) return fl_cast(y, fl_dtype_wide(y->dtype));
    return fl_out_layout_like(fl_out_on(y->backend, fl_shape_of(y), fl_dtype_wide(y->dtype)), y);
}

/* Runs c in the wide dtypes; results are rounded or wrapped once. */
static FL__COLD bool fl__run_wide(const fl_backend *be, const fl_call *c) {
    fl_scope s = fl_scope_begin();
    fl_call d = *c;
    bool ok = true;
    const uint64_t flags = fl__hooks_off();
    for (int i = 0; ok && i < d.n_in; i++)
        if (!d.in[i]->weak && fl_is_narrow(d.in[i]))
            ok = (d.in[i] = fl_cast(d.in[i], fl_dtype_wide(d.in[i]->dtype))) != NULL;
    for (int i = 0; ok && i < d.n_out; i++)
        if (c->out[i]) ok = (d.out[i] = fl__wide_out(c, &d, i)) != NULL;
    fl__thread_context.flags = flags; /* hooks see a composition */
    const bool mixed = c->out[0] && !fl_is_narrow(c->out[0]); /* other operands are wider */
    for (int i = 0; i < c->n_in && !mixed; i++)
        if (!c->in[i]->weak && c->in[i]->dtype == FL_BF16) fl__thread_context.flags |= FL__OF_BF16;
    ok = ok && fl__run_by(be, &d);
    fl__thread_context.flags = flags;
    for (int i = 0; ok && i < d.n_out; i++) {
        fl_call copy = {
            .op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {c->out[i]}, .in = {d.out[i]}};
        if (d.out[i] != c->out[i]) ok = fl__run_by(be, &copy);
    }
    fl_scope_end(&s);
    return ok;
}

/* *alias = t seen as bytes, with an additional last axis: blocks are copied as bytes. */
static void fl__as_bytes(fl_tensor *alias, const fl_tensor *t) {
    int64_t size = (int64_t)fl_dtype_size(t->dtype);
    *alias = *t;
    alias->dtype = FL_U8;
    alias->offset *= size;
    for (int i = 0; i < t->ndim; i++) alias->stride[i] *= size;
    alias->shape[t->ndim] = size;
    alias->stride[t->ndim] = 1;
    alias->ndim++;
}

/* Copies `from` to `to` as bytes; either may already be u8. */
static bool fl__copy_blocks(const fl_backend *be, fl_tensor *to, fl_tensor *from) {
    fl_tensor bytes[2];
    fl_call copy = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {to}, .in = {from}};
    if (!fl_out_allocate(to)) return false;
    if (to->dtype != FL_U8) fl__as_bytes(copy.out[0] = &bytes[0], to);
    if (from->dtype != FL_U8) fl__as_bytes(copy.in[0] = &bytes[1], from);
    return fl__run_by(be, &copy);
}

/* Fills y with one block that is packed on the host. */
static bool fl__fill_blocks(const fl_backend *be, fl_tensor *y, const fl_fill_args *a) {
    static const int64_t stride[FL_MAX_DIMS] = {0};
    const fl_dtype_info *info = fl_dtype_registered(y->dtype);
    const size_t numbers = (size_t)info->block * sizeof(float);
    float *number = fl_heap_alloc(numbers + info->size);
    for (int i = 0; number && i < info->block; i++) number[i] = (float)a->f64;
    if (number) info->pack(number, number + info->block, 1);
    fl_tensor *one = number ? fl_out_on(y->backend, FL_SCALAR_SHAPE, y->dtype) : NULL;
    bool ok = one && fl_out_allocate(one) && fl_set_host(one, number + info->block, info->size);
    fl_heap_free(number);
    one = ok ? fl_view_of(one, fl_shape_of(y), stride, 0) : NULL;
    return one && fl__copy_blocks(be, y, one);
}

/* x as bytes, with an additional axis: a view if it has a buffer, otherwise a copy. */
static fl_tensor *fl__bytes_of(const fl_backend *be, fl_tensor *x) {
    fl_tensor as;
    fl__as_bytes(&as, x);
    fl_tensor *t = fl_out_on(x->backend, fl_shape_of(&as), FL_U8);
    if (!t || !x->buffer) return t && fl__copy_blocks(be, t, x) ? t : NULL;
    memcpy(t->stride, as.stride, sizeof t->stride);
    t->offset = as.offset;
    t->buffer = fl_buffer_keep(x->buffer);
    return t;
}

/* Gathers each byte of the blocks. */
static bool fl__gather_blocks(const fl_backend *be, const fl_call *c) {
    fl_tensor *index = c->in[1], *x = fl__bytes_of(be, c->in[0]);
    fl_shape shape = fl_shape_of(index);
    int64_t stride[FL_MAX_DIMS];
    if (!x) return false;
    memcpy(stride, index->stride, sizeof stride);
    shape.dim[shape.ndim] = x->shape[x->ndim - 1];
    stride[shape.ndim++] = 0;
    fl_call bytes = *c;
    bytes.in[0] = x;
    bytes.in[1] = fl_view_of(index, shape, stride, index->offset);
    bytes.out[0] = fl_out_on(x->backend, shape, FL_U8);
    return bytes.in[1] && bytes.out[0] && fl__run_by(be, &bytes) &&
           fl__copy_blocks(be, c->out[0], bytes.out[0]);
}

/* Runs a record with registered dtypes: by a slot with FL_SLOT_BLOCKS, a composition, or by copying
   bytes. */
static FL__COLD bool fl__run_blocks(const fl_backend *be, const fl_call *c) {
    const bool alike = c->op == FL_OP_fill || (!c->in[0]->weak && c->in[0]->dtype == c->out[0]->dtype);
    if (be->op[c->op] && be->flags[c->op] & FL_SLOT_BLOCKS)
        return fl__run_slot(be, c, be->op[c->op], fl__traits_of(c).paged);
    if (fl__ops[c->op]->compose) return fl__run_composed(c);
    if (!alike || (c->op != FL_OP_copy && c->op != FL_OP_fill && c->op != FL_OP_gather)) {
        fl_dtype d = c->out[0]->dtype;
        for (int i = 0; i < c->n_in; i++)
            if (fl_dtype_registered(c->in[i]->dtype)) d = c->in[i]->dtype;
        return fl_fail("fl_%s: takes no blocks, as dtype %s has: cast to a float first", fl__ops[c->op]->name,
                       fl_dtype_name(d));
    }
    if (c->out[0]->ndim == FL_MAX_DIMS)
        return fl_fail("fl_%s: too many dims for a dtype of blocks: got %d, expected at most %d",
                       fl__ops[c->op]->name, FL_MAX_DIMS, FL_MAX_DIMS - 1);
    fl_scope s = fl_scope_begin();
    const uint64_t flags = fl__hooks_off();
    const bool ok = c->op == FL_OP_copy   ? fl__copy_blocks(be, c->out[0], c->in[0])
                    : c->op == FL_OP_fill ? fl__fill_blocks(be, c->out[0], c->args)
                                          : fl__gather_blocks(be, c);
    fl__thread_context.flags = flags;
    fl_scope_end(&s);
    return ok;
}

typedef struct fl__uses_check {
    fl_op op;
    char missing[200]; /* names of ops, each preceded by a space */
} fl__uses_check;

static void fl__check_use(const fl_call *c, void *user) {
    fl__uses_check *parts = user;
    const char *name = fl__ops[c->op]->name;
    if (c->op == FL_OP_copy || c->op == FL_OP_fill || fl_op_uses(parts->op, c->op) ||
        fl__listed(parts->missing + 1, name))
        return;
    const size_t n = strlen(parts->missing);
    snprintf(parts->missing + n, sizeof parts->missing - n, " %s", name);
}

/* Verifies that `uses` of a registered op is complete, without which an override would not disable its slot:
   runs the composition with a hook, once after each override. */
static FL__COLD bool fl__uses_complete(const fl_backend *be, const fl_call *c) {
    static uint32_t checked[FL_MAX_OPS]; /* atomic: fl__override_state of the last successful check */
    const uint32_t state = __atomic_load_n(&fl__override_state, __ATOMIC_RELAXED);
    if (c->op < fl__n_library_ops || !be->op[c->op] || !fl__ops[c->op]->compose) return true;
    if (__atomic_load_n(&checked[c->op], __ATOMIC_RELAXED) == state) return true;
    if (fl__thread_context.flags & FL__HOOKS_OFF) return true;
    fl_scope s = fl_scope_begin();
    fl__uses_check parts = {.op = c->op};
    fl_call d = *c;
    bool ok = true;
    for (int i = 0; ok && i < c->n_out; i++)
        if (c->out[i]) ok = (d.out[i] = fl_out_like(c->out[i], c->out[i]->dtype)) != NULL;
    const fl_call_hooks hooks = fl_call_hook(fl__check_use, NULL, &parts);
    ok = ok && fl__run_composed(&d);
    fl_call_hook(hooks.before, hooks.after, hooks.user);
    fl_scope_end(&s);
    if (ok && parts.missing[0])
        return fl_fail("fl_%s: `uses` in its fl_op_info lacks ops that its composition runs:%s",
                       fl__ops[c->op]->name, parts.missing);
    if (ok) __atomic_store_n(&checked[c->op], state, __ATOMIC_RELAXED);
    return ok;
}

static FL__HOT bool fl__run_as(const fl_backend *be, const fl_call *c, fl__traits is) {
    fl_slot slot = be->op[c->op];
    if (__builtin_expect(be->overridden_, 0) && !fl__uses_complete(be, c)) return false;
    if (is.dtypes >> FL_DTYPE_COUNT) return fl__run_blocks(be, c);
    if (is.dtypes & FL__NARROW_DTYPES && !fl__takes_narrow(be, c->op)) return fl__run_wide(be, c);
    if (!slot && fl__falls_back(c->op)) return fl__run_fallback(be, c);
    if (!slot || fl__replaced_gradient(be, c)) return fl__run_composed(c);
    if (be->flags[c->op] & FL_SLOT_CONTIGUOUS) return fl__run_contiguous(be, c, slot);
    return fl__run_slot(be, c, slot, is.paged);
}

static bool fl__run_by(const fl_backend *be, const fl_call *c) {
    return fl__run_as(be, c, fl__traits_of(c));
}

/* Watchers of the calls that are made now, and of those that run now. */
enum { FL__MADE = 1, FL__RUNS = 2 };

static void fl__call_watchers(const fl_call *c, bool ran, int which) {
    for (fl_call_watcher *w = __atomic_load_n(&fl__watchers, __ATOMIC_ACQUIRE); w;
         w = __atomic_load_n(&w->next_, __ATOMIC_ACQUIRE)) {
        const fl_call_hook_fn fn = ran ? w->after : w->before;
        if (fn && which & (w->recorded ? FL__MADE : FL__RUNS)) fn(c, w->user);
    }
}

static FL__COLD bool fl__run_hooked(const fl_backend *be, const fl_call *c, fl__traits is) {
    fl__context *th = &fl__thread_context;
    if (th->flags & FL__HOOKS_OFF) return fl__run_as(be, c, is);
    const fl_call_hook_fn after = th->after;
    const int which = th->taking ? FL__MADE : FL__MADE | FL__RUNS;
    const uint64_t flags = fl__hooks_off();
    fl__call_watchers(c, false, which);
    if (th->before) th->before(c, th->hook_user);
    th->flags = flags;
    bool ok = fl__run_as(be, c, is);
    const bool failed = fl_error();
    fl__hooks_off();
    fl__call_watchers(c, true, which);
    if (after && after == th->after) after(c, th->hook_user);
    th->flags = flags;
    return ok && (failed || !fl_error());
}

/* Runs c, by slot if it is given, between the watchers that see calls when they run. */
static bool fl__run_watched(const fl_backend *be, const fl_call *c, fl_slot slot, fl__traits is) {
    fl__context *th = &fl__thread_context;
    const bool watched = fl__is_watched();
    const uint64_t flags = th->flags;
    const bool failed = fl_error();
    if (watched) fl__hooks_off(), fl__call_watchers(c, false, FL__RUNS), th->flags = flags;
    bool ok = slot ? fl__run_slot(be, c, slot, is.paged) : fl__run_as(be, c, is);
    if (watched) fl__hooks_off(), fl__call_watchers(c, true, FL__RUNS), th->flags = flags;
    return ok && (failed || !fl_error());
}

static FL__COLD bool fl__run_taken(const fl_backend *be, const fl_call *c, fl_slot slot, bool paged) {
    fl__context *th = &fl__thread_context;
    const fl_taken taken = fl__take(c, NULL, 0, NULL);
    if (taken != FL_DECLINED) return taken == FL_TAKEN;
    th->taking = NULL;
    const bool ok = fl__run_watched(be, c, slot, (fl__traits){.paged = paged});
    th->taking = th->taker;
    return ok;
}

bool fl_call_run_taken(const fl_call *c, uint64_t state) {
    if (fl_is_null_arg("fl_call_run_taken", c)) return false;
    fl__context *th = &fl__thread_context;
    const fl_taker *taking = th->taking;
    const char *outer = th->op;
    const uint64_t flags = th->flags;
    const fl_backend *be = &fl__backends[fl__call_backend(c)];
    const fl_slot slot = fl__replaced_gradient(be, c) ? NULL : be->op[c->op];
    uint32_t version[4];
    fl__traits is = {0}; /* its list runs the call, so that nothing has to be awaited */
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->buffer) is.paged |= c->in[i]->buffer->pageable;
    for (int i = 0; i < c->n_out; i++) {
        if (!c->out[i]) continue;
        if (c->out[i]->buffer) is.paged |= c->out[i]->buffer->pageable;
        version[i] = *fl__version(c->out[i]);
    }
    if (!slot) is.dtypes = fl__traits_of(c).dtypes; /* the table has changed since */
    th->taking = NULL;
    th->op = fl__ops[c->op]->name;
    th->flags = state;
    const bool ok = fl__run_watched(be, c, slot, is);
    th->flags = flags;
    th->op = outer;
    th->taking = taking;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]) *fl__version(c->out[i]) = version[i];
    return ok;
}

bool fl_call_run(const fl_call *c) {
    fl__context *th = &fl__thread_context;
    if (!c || !fl__op_exists(c->op))
        return fl_fail("fl_call_run: the record is NULL, or op %d does not exist", c ? (int)c->op : -1);
    if (fl_in_parallel())
        return fl_fail("fl_%s: ops must not be called inside a task of fl_parallel", fl__ops[c->op]->name);
    const fl_backend *be = &fl__backends[fl__call_backend(c)];
    const fl__traits is = fl__traits_of(c);
    const char *outer = th->op;
    th->op = fl__ops[c->op]->name;
    const bool watched = __builtin_expect(__atomic_load_n(&fl__n_hooks, __ATOMIC_RELAXED), 0);
    bool ok = watched ? fl__run_hooked(be, c, is) : fl__run_as(be, c, is);
    th->op = outer;
    for (int i = 0; ok && is.written >> i; i++)
        if (is.written >> i & 1) ++*fl__version(c->out[i]);
    return ok;
}

fl_tensor *fl_call_result(const fl_call *c) {
    return fl_call_run(c) ? c->out[0] : fl_raise();
}

fl_tensor *fl_call_into(fl_op op, fl_tensor *y, fl_tensor *a, fl_tensor *b, const void *args) {
    fl_call c;
    fl_call_begin(&c, op, 1, b ? 2 : a ? 1 : 0, args);
    c.out[0] = y;
    c.in[0] = a;
    c.in[1] = b;
    return y && fl_call_run(&c) ? y : fl_raise();
}

/* ---- views ---- */

fl_tensor *fl_view_of(fl_tensor *t, fl_shape shape, const int64_t *stride,
                                int64_t offset) {
    if (fl_is_null_arg("fl_view_of", t)) return NULL;
    const fl_backend *be = &fl__backends[t->backend];
    fl_tensor *v = fl__handle(t->backend, t->dtype, shape.ndim);
    if (!v) return fl_raise();
    for (int i = 0; i < shape.ndim; i++) {
        v->shape[i] = shape.dim[i];
        v->stride[i] = stride[i];
    }
    v->offset = offset;
    v->copied = t->copied;
    if (be->view && be->view(be, v, t)) {
        if (!v->buffer) v->base_ = fl_keep(t->base_ ? t->base_ : t);
        return v;
    }
    if (!be->view && t->buffer) {
        v->buffer = fl_buffer_keep(t->buffer);
        return v;
    }
    if (fl_error()) return fl_raise();
    fl_tensor alias = *t; /* used only by the call below */
    alias.ndim = shape.ndim;
    alias.offset = offset;
    memcpy(alias.shape, v->shape, sizeof alias.shape);
    memcpy(alias.stride, v->stride, sizeof alias.stride);
    fl_tensor *copy = fl_out_on(t->backend, shape, t->dtype);
    if (!copy) return fl_raise();
    copy->copied = true;
    return fl_call_into(FL_OP_copy, copy, &alias, NULL, NULL);
}

/* Weak numbers become 0-d f32 or i64 tensors. */
fl_tensor *fl_materialise(fl_tensor *t) {
    if (fl_is_null_arg("fl_materialise", t)) return NULL;
    if (!t->weak) return t;
    fl_fill_args a = {t->f64, t->i64};
    fl_tensor *o = fl_out_on(fl__default_backend, FL_SCALAR_SHAPE,
                               t->dtype == FL_DTYPE_NONE ? FL_F32 : t->dtype);
    return fl_call_into(FL_OP_fill, o, NULL, NULL, &a);
}

/* ---- promotion ---- */

static int fl__category(fl_dtype d) {
    return d == FL_DTYPE_NONE ? -1 : d == FL_B8 ? 0 : fl_dtype_is_float(d) ? 2 : 1;
}

static bool fl__unsigned(fl_dtype d) {
    return d == FL_U8 || (d >= FL_U16 && d <= FL_U64);
}

/* Promotion within a category: the narrowest dtype that represents both: u8, i8: i16; f16, bf16: f32; but
   u64 and a signed integer: i64. */
static fl_dtype fl__wider(fl_dtype a, fl_dtype b) {
    static const fl_dtype twice[] = {[FL_U8] = FL_I16, [FL_U16] = FL_I32, [FL_U32] = FL_I64,
                                     [FL_U64] = FL_I64};
    int ca = fl__category(a), cb = fl__category(b);
    if (ca != cb) return ca > cb ? a : b;
    if (a == b) return a;
    size_t size_a = fl_dtype_size(a), size_b = fl_dtype_size(b);
    if (ca == 2) return size_a == size_b ? FL_F32 : size_a > size_b ? a : b;
    if (fl__unsigned(a) == fl__unsigned(b)) return size_a > size_b ? a : b;
    fl_dtype without = fl__unsigned(a) ? a : b, with = fl__unsigned(a) ? b : a;
    return fl_dtype_size(with) > fl_dtype_size(without) ? with : twice[without];
}

/* PyTorch's rule: tensors with dims take precedence; 0-d tensors, then weak numbers, count only if of a
   higher category. A weak number of dtype NONE (a constant of a formula) never counts. */
fl_dtype fl_result_type(int n, fl_tensor *const *t) {
    fl_dtype rank[3] = {FL_DTYPE_NONE, FL_DTYPE_NONE, FL_DTYPE_NONE};
    bool alike = n > 0 && t[0]->dtype != FL_DTYPE_NONE;
    for (int i = 1; i < n; i++) alike &= t[i]->dtype == t[0]->dtype;
    if (alike) return t[0]->dtype;
    for (int i = 0; i < n; i++) {
        fl_dtype *r = &rank[t[i]->weak ? 2 : t[i]->ndim == 0];
        *r = fl__wider(*r, t[i]->dtype);
    }
    fl_dtype d = rank[0];
    for (int i = 1; i < 3; i++)
        if (fl__category(rank[i]) > fl__category(d)) d = rank[i];
    return d == FL_DTYPE_NONE ? FL_F32 : d;
}

/* Bit sets of the dtypes that an op of each class computes without a cast. */
#define FL__FLOAT_DTYPES (1u << FL_F16 | 1u << FL_BF16 | 1u << FL_F32 | 1u << FL_F64)
#define FL__INTEGER_DTYPES \
    (1u << FL_U8 | 1u << FL_I8 | 1u << FL_I16 | 1u << FL_I32 | 1u << FL_I64 | 1u << FL_U16 | \
     1u << FL_U32)
static const uint32_t fl__class_dtypes[] = {
    [FL_CLASS_FLOAT] = FL__FLOAT_DTYPES,
    [FL_CLASS_NUM] = FL__FLOAT_DTYPES | FL__INTEGER_DTYPES,
    [FL_CLASS_ANY] = FL__FLOAT_DTYPES | FL__INTEGER_DTYPES | 1u << FL_B8,
    [FL_CLASS_INT] = FL__INTEGER_DTYPES | 1u << FL_B8,
    [FL_CLASS_CMP] = (1u << FL_DTYPE_COUNT) - 1,
    [FL_CLASS_BOOL] = 1u << FL_B8,
};

static bool fl__class_takes(fl_op_class cls, fl_dtype d) {
    return (fl__class_dtypes[cls] & fl__dtype_bit(d)) != 0;
}

/* Slots get this dtype, or its wide one. */
fl_dtype fl_compute_dtype(fl_op_class cls, fl_dtype d) {
    if (fl__class_takes(cls, d)) return d;
    if (cls == FL_CLASS_BOOL) return FL_B8;
    bool whole = cls == FL_CLASS_FLOAT && fl__class_takes(FL_CLASS_INT, d);
    return whole ? FL_F32 : FL_DTYPE_NONE;
}

static fl_dtype fl__result_dtype(fl_op_class cls, fl_dtype compute) {
    return cls == FL_CLASS_CMP ? FL_B8 : compute;
}

fl_tensor *fl_constant(double value) {
    fl_tensor *t = fl_num(value);
    if (t) t->dtype = FL_DTYPE_NONE;
    return t;
}

/* Weak numbers are returned unchanged, except that for b8 they become 0 or 1. */
fl_tensor *fl_operand(fl_tensor *t, fl_dtype d) {
    if (fl_is_null_arg("fl_operand", t)) return NULL;
    if (t->weak && d == FL_B8) return fl_constant(t->f64 != 0);
    return t->weak || t->dtype == d ? t : fl_cast(t, d);
}

bool fl_same_backend(const char *fn, const fl_tensor *a, const fl_tensor *b) {
    if (fl_is_null_arg(fn, a) || fl_is_null_arg(fn, b)) return false;
    if (a->weak || b->weak || a->backend == b->backend) return true;
    return fl_err_false("fl_%s: operands are on different backends, '%s' and '%s': move one with fl_to", fn,
                   fl_backend_name(a), fl_backend_name(b));
}

/* ---- table ops with a formula: by slot or composed ---- */

static void *fl__formula_number(double value, void *user) {
    (void)user;
    return fl_constant(value);
}

static void *fl__formula_step(fl_primitive primitive, void *const x[], void *user) {
    (void)user;
    const fl_op op = fl__primitive_ops[primitive];
    if (op == FL_OP_where) return fl_where(x[0], x[1], x[2]);
    return fl__ops[op]->arity == 1 ? fl_unary_op(op, x[0]) : fl_binary_op(op, x[0], x[1]);
}

fl_tensor *fl_formula_value(const fl_formula *f, fl_tensor *const *in) {
    static const fl_formula_vtable tensors = {fl__formula_number, fl__formula_step, NULL};
    void *x[FL_FORMULA_INPUTS], *y[FL_FORMULA_OUTPUTS];
    for (int i = 0; f && i < f->n_in; i++) x[i] = in[i];
    return f && fl_formula_run(f, &tensors, x, y) ? y[0] : NULL;
}

/* Converts a weak operand of a composition to the dtype and backend of the other operand: combined only with
   constants it would become f32 on the default backend. */
static fl_tensor *fl__materialise_like(fl_tensor *t, const fl_tensor *like) {
    if (!t->weak) return t;
    fl_fill_args a = {t->f64, t->i64};
    fl_tensor *o = fl_out_on(like->backend, FL_SCALAR_SHAPE, like->dtype);
    return fl_call_into(FL_OP_fill, o, NULL, NULL, &a);
}

static fl_tensor *fl__formula(fl_op op, fl_tensor *a, fl_tensor *b) {
    if (b && a->weak != b->weak) {
        const fl_tensor *like = a->weak ? b : a;
        if (!(a = fl__materialise_like(a, like)) || !(b = fl__materialise_like(b, like))) return NULL;
    }
    return fl_formula_value(fl_op_program(op, FL_PROGRAM_Y), (fl_tensor *[]){a, b});
}

/* The cast is for constant formulas. */
static fl_tensor *fl__compose(fl_op op, fl_tensor *a, fl_tensor *b, fl_dtype dtype) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl__formula(op, a, b);
    return fl_scope_return(&s, y ? fl_cast(y, dtype) : NULL);
}

/* True if op runs as a record on t's backend rather than composed here: it has a slot, is CORE (never
   composed), or t is narrow, so that fl__run_wide casts first. */
static bool fl__by_slot(const fl_tensor *t, fl_op op) {
    const fl_backend *be = &fl__backends[t->backend];
    return fl__ops[op]->required || be->op[op] || fl_is_narrow(t);
}

/* Ops whose result modulo 2^64 is the same for signed and unsigned operands. */
static bool fl__exact_u64(fl_op op) {
    return op == FL_OP_add || op == FL_OP_sub || op == FL_OP_mul || op == FL_OP_neg ||
           op == FL_OP_bitwise_and || op == FL_OP_bitwise_or || op == FL_OP_bitwise_xor ||
           op == FL_OP_bitwise_not || op == FL_OP_shift_left;
}

/* Maps u64 to i64, preserving the order: flips the top bit. */
static fl_tensor *fl__ordered(fl_tensor *t) {
    if (t->weak) return fl_int(t->i64 ^ INT64_MIN);
    return fl_binary_op(FL_OP_bitwise_xor, fl_cast(t, FL_I64), fl_int(INT64_MIN));
}

/* x mod z of u64 values stored as i64. floor(x / 2) mod z is computed on non-negative i64; twice that, plus
   the last bit of x, is below 2 z, so one conditional subtraction remains. For z >= 2^63 the quotient is 0
   or 1. */
static fl_tensor *fl__remainder_u64(fl_tensor *x, fl_tensor *z) {
    fl_tensor *large = fl_binary_op(FL_OP_lt, z, fl_int(0));
    fl_tensor *last = fl_binary_op(FL_OP_bitwise_and, x, fl_int(1));
    fl_tensor *half = fl_binary_op(FL_OP_shift_right, x, fl_int(1));
    half = fl_binary_op(FL_OP_bitwise_and, half, fl_int(INT64_MAX));
    fl_tensor *rest = fl_binary_op(FL_OP_remainder, half, fl_where(large, fl_int(1), z));
    rest = fl_binary_op(FL_OP_add, fl_binary_op(FL_OP_mul, rest, fl_int(2)), last);
    rest = fl_where(large, x, rest);
    fl_tensor *less = rest ? fl_binary_op(FL_OP_lt, fl__ordered(rest), fl__ordered(z)) : NULL;
    return less ? fl_where(less, rest, fl_binary_op(FL_OP_sub, rest, z)) : NULL;
}

/* Binary ops on u64 by those on i64: sums, differences, products and bits agree; comparisons use
   fl__ordered. */
static fl_tensor *fl__binary_u64(fl_op op, fl_tensor *a, fl_tensor *b) {
    const bool compares = fl__ops[op]->cls == FL_CLASS_CMP;
    const bool ordered = compares || op == FL_OP_maximum || op == FL_OP_minimum || op == FL_OP_fmax ||
                         op == FL_OP_fmin;
    const bool rest = op == FL_OP_remainder || op == FL_OP_fmod;
    if (!ordered && !rest && !fl__exact_u64(op))
        return fl_err_null("fl_%s: dtypes %s and %s are not supported", fl__ops[op]->name,
                           fl_dtype_name(a->dtype), fl_dtype_name(b->dtype));
    fl_scope s = fl_scope_begin();
    fl_tensor *x = ordered ? fl__ordered(a) : fl_operand(a, FL_I64);
    fl_tensor *z = ordered ? fl__ordered(b) : fl_operand(b, FL_I64);
    fl_tensor *y = !x || !z ? NULL : rest ? fl__remainder_u64(x, z) : fl_binary_op(op, x, z);
    if (y && ordered && !compares) y = fl_binary_op(FL_OP_bitwise_xor, y, fl_int(INT64_MIN));
    return fl_scope_return(&s, y && !compares ? fl_cast(y, FL_U64) : y);
}

fl_tensor *fl_unary_op(fl_op op, fl_tensor *x) {
    const fl_op_info *info = fl__ops[op];
    if (fl__null_operand(info, x) || (x->weak && !(x = fl_materialise(x)))) return NULL;
    const bool exact = x->dtype == FL_U64 && fl__exact_u64(op);
    fl_dtype d = exact ? FL_U64 : fl_compute_dtype(info->cls, x->dtype);
    if (d == FL_DTYPE_NONE)
        return fl_err_null("fl_%s: dtype %s is not supported", info->name, fl_dtype_name(x->dtype));
    if (x->dtype != d && !(x = fl_cast(x, d))) return NULL;
    if (!fl__by_slot(x, op)) return fl__compose(op, x, NULL, fl__result_dtype(info->cls, d));
    return fl_call_into(op, fl__out_same(x, fl__result_dtype(info->cls, d)), x, NULL, NULL);
}

/* t expanded to shape; weak numbers are returned unchanged. */
static fl_tensor *fl__broadcast(fl_tensor *t, fl_shape shape) {
    return t->weak || fl_shape_is(t, shape) ? t : fl_expand(t, shape);
}

/* Slow path of fl_binary_op: operands of different shapes or dtypes, or weak ones that promote. */
static FL__COLD fl_tensor *fl__binary_general(fl_op op, fl_tensor *a, fl_tensor *b) {
    const fl_op_info *info = fl__ops[op];
    if (a->weak && b->weak && !(a = fl_materialise(a))) return NULL;
    if (!fl_same_backend(info->name, a, b)) return NULL;
    fl_dtype d = fl_result_type(2, (fl_tensor *[]){a, b});
    if (d == FL_U64 && info->cls != FL_CLASS_FLOAT && info->cls != FL_CLASS_BOOL)
        return fl__binary_u64(op, a, b);
    d = fl_compute_dtype(info->cls, d);
    if (d == FL_DTYPE_NONE)
        return fl_err_null("fl_%s: dtypes %s and %s are not supported", info->name, fl_dtype_name(a->dtype),
                           fl_dtype_name(b->dtype));
    if (!(a = fl_operand(a, d)) || !(b = fl_operand(b, d))) return NULL;
    fl_tensor *strong = a->weak ? b : a;
    fl_shape shape = fl_shape_of(strong);
    if (!b->weak && !fl_broadcast_shape(&shape, b))
        return fl_err_null("fl_%s: shapes %s and %s do not broadcast", info->name, FL_SHAPE_TEXT(a),
                       FL_SHAPE_TEXT(b));
    if (!fl__by_slot(strong, op)) return fl__compose(op, a, b, fl__result_dtype(info->cls, d));
    if (!(a = fl__broadcast(a, shape)) || !(b = fl__broadcast(b, shape)))
        return NULL;
    fl_tensor *y = fl_out_on(strong->backend, shape, fl__result_dtype(info->cls, d));
    return fl_call_into(op, fl_out_layout_like(fl_out_layout_like(y, b), a), a, b, NULL);
}

/* True if a and b agree in shape, dtype and backend; one may be a weak number that does not promote. */
static inline bool fl__same_kind(const fl_tensor *a, const fl_tensor *b) {
    if (!a->weak && !b->weak)
        return a->dtype == b->dtype && a->backend == b->backend && fl_same_shape(a, b);
    const fl_tensor *strong = a->weak ? b : a, *number = a->weak ? a : b;
    return !strong->weak && strong->dtype != FL_B8 &&
           fl__category(number->dtype) <= fl__category(strong->dtype);
}

fl_tensor *fl_binary_op(fl_op op, fl_tensor *a, fl_tensor *b) {
    const fl_op_info *info = fl__ops[op];
    if (fl__null_operand(info, a) || fl__null_operand(info, b)) return NULL;
    const fl_tensor *x = a->weak ? b : a;
    bool plain = fl__same_kind(a, b) && fl__class_takes(info->cls, x->dtype) && x->dtype != FL_U64 &&
                 fl__by_slot(x, op);
    if (!plain) return fl__binary_general(op, a, b);
    return fl_call_into(op, fl__out_same(x, fl__result_dtype(info->cls, x->dtype)), a, b, NULL);
}

/* ---- compositions ---- */

/* Writes the composed value v, which may be a weak number or broadcast, to the output y. */
static bool fl__composed_out(fl_tensor *y, fl_tensor *v) {
    if (v && v->weak) { /* a constant formula */
        fl_fill_args a = {v->f64, v->i64};
        fl_call fill = {.op = FL_OP_fill, .n_out = 1, .out = {y}, .args = &a};
        return fl_call_run(&fill);
    }
    v = v ? fl_expand(v, fl_shape_of(y)) : NULL;
    if (!v) return false;
    fl_call copy = {.op = FL_OP_copy, .n_out = 1, .n_in = 1, .out = {y}, .in = {v}};
    return fl_call_run(&copy);
}

/* Composition of a table op by its formula. */
static bool fl__compose_formula(const fl_call *c, fl_tensor **value) {
    if (fl__ops[c->op]->arity)
        return (value[0] = fl__formula(c->op, c->in[0], c->n_in > 1 ? c->in[1] : NULL)) != NULL;
    const fl_op of = ((const fl_grad_args *)c->args)->op;
    bool ok = true;
    for (int i = 0; ok && i < c->n_out; i++)
        if (c->out[i])
            ok = (value[i] = fl_formula_value(fl_op_program(of, i ? FL_PROGRAM_DB : FL_PROGRAM_DA),
                                              c->in)) != NULL;
    return ok;
}

/* Compositions run in wide floats: records with half-precision operands are widened first. */
static bool fl__run_composed(const fl_call *c) {
    const fl_op_info *info = fl_op_get_info(c->op);
    fl_tensor *value[4] = {NULL};
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->dtype == FL_F16 || c->in[i]->dtype == FL_BF16)
            return fl__run_wide(&fl__backends[fl__call_backend(c)], c);
    fl_compose_fn compose = info->compose;
    if (!compose && (info->arity || c->op == FL_OP_grad1 || c->op == FL_OP_grad2))
        compose = fl__compose_formula;
    if (!compose)
        return fl_err_false("fl_%s: the op has no composition, and the call has no slot", info->name);
    fl_scope s = fl_scope_begin();
    bool ok = compose(c, value);
    for (int i = 0; ok && i < c->n_out; i++)
        if (c->out[i]) ok = fl__composed_out(c->out[i], value[i]);
    fl_scope_end(&s);
    return ok;
}

/* Pins new outputs that the slot did not allocate itself, as fl_out_make does: the caller of the slot unpins
   them. */
static bool fl__leave_pinned(const fl_call *c, uint32_t written, bool ok) {
    for (int i = 0; i < c->n_out; i++) {
        fl_tensor *y = c->out[i];
        if (!y || written >> i & 1 || fl__pin_tensor(y, true)) continue;
        fl_buffer_drop(y->buffer);
        y->buffer = NULL;
        ok = false;
    }
    return ok;
}

bool fl_call_compose(const fl_call *c) {
    if (fl_is_null_arg("fl_call_compose", c)) return false;
    const uint32_t written = fl__traits_of(c).written;
    return fl__leave_pinned(c, written, fl__run_composed(c));
}

FL_PRIVATE bool fl__call_widen(const fl_call *c) {
    const uint32_t written = fl__traits_of(c).written;
    return fl__leave_pinned(c, written, fl__run_wide(&fl__backends[fl__call_backend(c)], c));
}

/* ---- options, creation and reading ---- */

static fl_tensor *fl__weak(double f64, int64_t i64, fl_dtype dtype) {
    fl_tensor *t = fl__handle(FL_ANY_BACKEND, dtype, 0);
    if (!t) return fl_raise();
    t->weak = true;
    t->f64 = f64;
    t->i64 = i64;
    return t;
}
fl_tensor *fl_num(double value) {
    return fl__weak(value, flm_f64_to_i64(value), FL_F32);
}
fl_tensor *fl_int(int64_t value) {
    return fl__weak((double)value, value, FL_I64);
}

fl_tensor *fl_to(fl_tensor *t, const char *backend) {
    if (fl_is_null_arg("fl_to", t)) return NULL;
    int f = fl__backend_of("fl_to", backend);
    if (f < 0) return fl_raise();
    if (t->weak || t->backend == f) return t;
    fl_scope s = fl_scope_begin();
    fl_tensor *src = fl_contiguous(t), *o = src ? fl_out_on(f, fl_shape_of(t), t->dtype) : NULL;
    if (o && (!fl_out_allocate(o) || !fl__transfer(o, src))) o = NULL;
    fl_scope_return(&s, o);
    return o ? o : fl_raise();
}

static int64_t fl__byte_offset(const fl_tensor *t) {
    return t->offset * (int64_t)fl_dtype_size(t->dtype);
}

/* A lazy backend runs its calls here; hooks do not see them, because they are not the user's. */
static void *fl__map_by_hook(const fl_backend *be, fl_tensor *t, int access) {
    if (t->buffer && !fl__buffer_map(t->buffer)) return NULL; /* its call has failed */
    const uint64_t flags = fl__hooks_off();
    void *p = be->map(be, t, access);
    fl__thread_context.flags = flags;
    if (t->buffer) fl_buffer_unmap(t->buffer);
    return p;
}

static int64_t fl__host_reads; /* atomic */

int64_t fl_host_reads(void) {
    return __atomic_load_n(&fl__host_reads, __ATOMIC_RELAXED);
}

FL_PRIVATE bool fl__host_access(const fl_tensor *t, int access) {
    fl__context *th = &fl__thread_context;
    const fl_taker *taker = th->taking;
    if (!taker || !taker->map) return true;
    th->taking = NULL;
    const bool ok = taker->map(t, access, taker->user);
    th->taking = th->taker;
    return ok;
}

void *fl_map(fl_tensor *t, int access) {
    if (fl_is_null_arg("fl_map", t)) return NULL;
    if (t->weak) return fl_err_null("fl_map: t is a weak number, which has no storage");
    if (!fl__has_storage(t)) return fl_err_null("fl_map: the tensor has no storage yet");
    if ((access & FL_WRITE) && t->copied)
        return fl_err_null("fl_map: t is a copied view, for backend '%s' copies views: a write would be lost",
                       fl_backend_name(t));
    const fl_backend *be = &fl__backends[t->backend];
    const bool hooked = be->map && !(access & FL_ON_DEVICE);
    if (!hooked && !t->buffer)
        return fl_err_null("fl_map: backend '%s' has no addresses for FL_ON_DEVICE", fl_backend_name(t));
    if (!fl__host_access(t, access) || !fl__await_calls(t->buffer, access & FL_WRITE)) return fl_raise();
    if (!be->map && !fl_sync(t))
        return fl_raise(); /* a map hook waits itself, only for t */
    char *p = hooked ? fl__map_by_hook(be, t, access) : fl__buffer_map(t->buffer);
    if (!p) return fl_raise();
    if (access & FL_READ && (hooked || !be->map)) __atomic_fetch_add(&fl__host_reads, 1, __ATOMIC_RELAXED);
    if (access & FL_WRITE) ++*fl__version(t);
    return hooked ? p : p + fl__byte_offset(t);
}

void fl_unmap(fl_tensor *t, int access) {
    if (!t || t->weak || !fl__has_storage(t)) return;
    const fl_backend *be = &fl__backends[t->backend];
    if (access & FL_ON_DEVICE || (!be->unmap && !be->map))
        fl_buffer_unmap(t->buffer);
    else if (be->unmap)
        be->unmap(be, t, access);
}

#endif /* FL_BACKEND_IMPL */
#endif
/* MIT licence: see LICENSE. */
