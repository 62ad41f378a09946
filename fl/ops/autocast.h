/* fl/ops/autocast.h - automatic mixed precision: which ops on variables run in f16 or bf16, and which in f32

   PyTorch's torch.autocast, with its op lists. Parameters stay f32. While autocast is on, fv_ functions cast
   their operands by recorded casts, so each gradient arrives in the dtype of its operand. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_AUTOCAST_H
#define FL_OPS_AUTOCAST_H

#ifdef __cplusplus
extern "C" {
#endif

/* Turns autocast on (FL_F16 or FL_BF16) or off (FL_F32) for fv_ functions on this thread until the scope
   ends; it is off within backward passes. The cast of a weight (a leaf that requires a gradient) is cached,
   and renewed after the weight was written. The cache lives until the scope in which autocast was first
   turned on ends, or autocast is turned off, so turn it on in the scope of a training step. Returns false
   after an error. */
FL_API bool fl_autocast(fl_dtype d);
/* The dtype in use; FL_F32 if autocast is off. */
FL_API fl_dtype fl_autocast_dtype(void);

/* How f16, bf16 and f32 operands of an op are cast. If an operand is f64, none is cast. */
typedef enum fl_autocast_policy {
    FL_AUTOCAST_NONE,   /* not cast: the usual promotion */
    FL_AUTOCAST_NARROW, /* cast to f16 or bf16 */
    FL_AUTOCAST_WIDE,   /* cast to f32; the result is f32 */
    FL_AUTOCAST_WIDEST  /* cast to f32 if one of them is f32 */
} fl_autocast_policy;
/* The policy table, shared by all threads: change it before starting others. Ops without an entry of their
   own: convolutions use conv2d's, group norm layer_norm's, losses cross_entropy's, norms and distances of
   vectors sum's. */
FL_API fl_autocast_policy fl_autocast_get_policy(fl_op op);
FL_API bool fl_autocast_set_policy(fl_op op, fl_autocast_policy p);

/* For op writers; in files that expand.h includes they are FL_AUTOCAST and FL_AUTOCAST_WIDE. */
/* Casts the n operands x of an fv_ function by op's policy; NULL entries stay. Returns false after an
   error. */
static inline bool fv_autocast(fl_op op, fl_var **x, int n);
/* True if op's policy now asks for an f32 result. */
static inline bool fv_autocast_wide(fl_op op);
FL_API bool fv_autocast_operands(fl_op op, fl_var **x, int n);
static inline bool fv_autocast(fl_op op, fl_var **x, int n) {
    return !(fl_flags() & FL_AUTOCAST_FLAGS) || fv_autocast_operands(op, x, n);
}
static inline bool fv_autocast_wide(fl_op op) {
    return fl_flags() & FL_AUTOCAST_FLAGS && fl_autocast_get_policy(op) == FL_AUTOCAST_WIDE;
}

FL_PRIVATE void fl__register_autocast(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_AUTOCAST_H */

#if defined(FL_IMPL_ONLY_OPS_AUTOCAST) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_AUTOCAST_IMPL
#define FL_OPS_AUTOCAST_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
#include "copy.h"
#include <string.h>

/* ---- the table ---- */

static uint8_t fl__policies[FL_MAX_OPS];

/* Runs after the backends have registered their ops. */
FL_PRIVATE void fl__register_autocast(void) {
    static const struct {
        fl_autocast_policy policy;
        const char *ops;
    } rows[] = {
        {FL_AUTOCAST_NARROW, "matmul linear conv2d attention"},
        {FL_AUTOCAST_WIDE, "exp expm1 exp2 log log1p log2 log10 pow reciprocal rsqrt acos asin cosh sinh tan "
                           "softplus sum prod cumsum cumprod softmax log_softmax layer_norm "
                           "cross_entropy ctc"},
        {FL_AUTOCAST_WIDEST, "atan2"},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (const char *p = rows[r].ops; *p; p += strspn(p, " ")) {
            char name[32] = "";
            const size_t n = strcspn(p, " ");
            memcpy(name, p, n);
            fl__policies[fl_op_by_name(name)] = (uint8_t)rows[r].policy; /* FL_OP_NONE if unknown */
            p += n;
        }
}

FL_API fl_autocast_policy fl_autocast_get_policy(fl_op op) {
    return fl_op_get_info(op) ? (fl_autocast_policy)fl__policies[op] : FL_AUTOCAST_NONE;
}

FL_API bool fl_autocast_set_policy(fl_op op, fl_autocast_policy p) {
    if (!fl_op_get_info(op) || (unsigned)p > FL_AUTOCAST_WIDEST)
        return fl_err_false("fl_autocast_set_policy: op %d or policy %d does not exist", op, (int)p);
    fl__policies[op] = (uint8_t)p;
    return true;
}

/* ---- cache of weight casts, an object of the scope in which autocast was turned on ---- */

typedef struct fl__weight_cast {
    fl_tensor *from, *to; /* references to both, so that no other tensor reuses from's address */
    uint32_t version;     /* fl_version_of(from) when it was cast */
} fl__weight_cast;
typedef struct fl__weight_casts {
    fl_obj obj;
    fl__weight_cast *all;
    int64_t n, cap;
} fl__weight_casts;
static _Thread_local fl__weight_casts *fl__autocast_cache;

static void fl__autocast_clear(fl__weight_casts *c) {
    for (int64_t i = 0; i < c->n; i++) {
        fl_drop(c->all[i].from);
        fl_drop(c->all[i].to);
    }
    fl_heap_free(c->all);
    c->all = NULL;
    c->n = c->cap = 0;
}

static void fl__autocast_drop(fl_obj *o) {
    fl__autocast_clear((fl__weight_casts *)(void *)o);
    fl__autocast_cache = NULL;
    fl_obj_free(o);
}

/* Returns t cast to d, from the cache if t was not written since; borrowed. NULL after an error. */
static fl_tensor *fl__cast_of_weight(fl_tensor *t, fl_dtype d) {
    fl__weight_casts *c = fl__autocast_cache;
    int64_t i = 0;
    while (i < c->n && c->all[i].from != t) i++;
    fl__weight_cast *w = i < c->n ? c->all + i : NULL;
    if (w && w->version == fl_version_of(t) && w->to->dtype == d) return w->to;
    if (i == c->n && !fl_heap_grow(&c->all, &c->cap, c->n + 1, sizeof *c->all)) return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_tensor *to = fl_keep(fl_cast(t, d));
    fl_scope_end(&s);
    if (!to) return NULL;
    if (i < c->n) fl_drop(c->all[i].to);
    else c->all[c->n++].from = fl_keep(t);
    c->all[i].to = to;
    c->all[i].version = fl_version_of(t);
    return to;
}

/* ---- modes ---- */

FL_API fl_dtype fl_autocast_dtype(void) {
    const uint64_t d = (fl_flags() & FL_AUTOCAST_FLAGS) >> 8;
    return d == FL_F16 || d == FL_BF16 ? (fl_dtype)d : FL_F32;
}

FL_API bool fl_autocast(fl_dtype d) {
    if (d != FL_F16 && d != FL_BF16 && d != FL_F32)
        return fl_err_false("fl_autocast: dtype must be f16 or bf16, or f32 to turn it off, got %s",
                            fl_dtype_name(d));
    const bool on = d != FL_F32;
    if (on && !fl__autocast_cache) {
        fl__weight_casts *c = fl_obj_new(sizeof *c, fl__autocast_drop);
        if (!c || !fl_scope_adopt(&c->obj)) return fl_raise() != NULL;
        fl__autocast_cache = c;
    }
    if (!on && fl__autocast_cache) fl__autocast_clear(fl__autocast_cache);
    fl_set_flags((fl_flags() & ~FL_AUTOCAST_FLAGS) | (on ? (uint64_t)d << 8 : 0));
    return true;
}

/* ---- operands ---- */

static void fv__autocast_back(fl_node *n, fl_var *dy) {
    fv_add_grad(n, 0, dy); /* casts dy to the input's dtype */
}

static fl_var *fv__autocast_one(fl_var *x, fl_dtype d) {
    if (d == FL_F32 || x->node || !x->requires_grad || !fl__autocast_cache) return fv_cast(x, d);
    fl_tensor *narrow = fl__cast_of_weight(x->value, d);
    return fv_record_args("cast", narrow, fv__autocast_back, FV_IN(x), FV_NONE, NULL, 0);
}

FL_API bool fv_autocast_operands(fl_op op, fl_var **x, int n) {
    const fl_autocast_policy policy = fl_autocast_get_policy(op);
    fl_dtype to = policy == FL_AUTOCAST_NARROW ? fl_autocast_dtype() : FL_F32;
    bool any_f32 = false;
    if (policy == FL_AUTOCAST_NONE) return true;
    for (int i = 0; i < n; i++) {
        if (!x[i] || x[i]->value->weak) continue;
        if (x[i]->value->dtype == FL_F64) return true;
        any_f32 |= x[i]->value->dtype == FL_F32;
    }
    if (policy == FL_AUTOCAST_WIDEST && !any_f32) return true;
    for (int i = 0; i < n; i++) {
        const fl_tensor *t = fv_value(x[i]);
        if (!t || t->weak || !fl_dtype_is_float(t->dtype) || t->dtype == to) continue;
        if (!(x[i] = fv__autocast_one(x[i], to))) return false;
    }
    return true;
}

#endif /* FL_OPS_AUTOCAST_IMPL */
#endif
/* MIT licence: see LICENSE. */
