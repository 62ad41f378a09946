/* fl/distributed/train.h - data-parallel training: gradient buckets, ZeRO-1 sharding, checkpoints

    fl_dist_group *d = fl_dist_init();
    fl_dist_model *m = fl_dist_data_parallel(d, net);
    ... unchanged loop: fl_optim_zero_grad(optim); fl_backward(loss); fl_optim_step(optim); ...
    fl_dist_model_free(m);
    fl_dist_close(d);

   fl_backward returns gradients of the joint batch: losses are means over a rank's batch, so gradients are
   means over ranks. Shuffle the data set, shard it (fl_data_shard(set, fl_dist_rank(d), fl_dist_size(d))),
   then batch it: the ranks' batches of n / size together are one rank's batch of n. Random transforms go
   before the shard. */
#ifndef FL_DIST_TRAIN_H
#define FL_DIST_TRAIN_H
#include "group.h"
#include "../../fl_optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_dist_model fl_dist_model;
typedef struct fl_dist_data_parallel_opts {
    fl_opts_guard guard_;
    int64_t bucket_bytes;       /* size of gradient buckets, which are reduced together; 0 -> 25 MiB */
    int64_t first_bucket_bytes; /* size of the first bucket: small, to start early; 0 -> 1 MiB */
    bool shard;                 /* ZeRO-1: each rank steps a slice of parameters and optimizer states */
    char _end;
} fl_dist_data_parallel_opts;
/* Makes net data-parallel. All ranks' nets become rank 0's: names, shapes and dtypes are compared, parameters
   and buffers are broadcast; the global random generator becomes a different one on each rank. From then on
   every fl_backward on this thread that reaches a parameter of net averages gradients over ranks; a parameter
   that no rank used gets no gradient. Buckets are reduced during backward, in reverse order of registration,
   and a gradient is a view of its bucket. d and net remain the caller's. NULL after
   fl_fail. */
#define fl_dist_data_parallel(...) FL_DIST__DATA_PARALLEL(__VA_ARGS__, ._end = 0)
#define FL_DIST__DATA_PARALLEL(d, net, ...) \
    fl_dist_data_parallel_opt(d, net, FL_LITERAL(fl_dist_data_parallel_opts, __VA_ARGS__))
FL_API fl_dist_model *fl_dist_data_parallel_opt(fl_dist_group *d, fl_nn_module *net,
                                                fl_dist_data_parallel_opts o);
/* Stops synchronising gradients and frees m, not net. NULL is ignored. */
FL_API void fl_dist_model_free(fl_dist_model *m);
/* Gradient accumulation: while on, gradients accumulate locally; the next pass with it off reduces their sum.
   Returns the previous setting. Not with .shard. */
FL_API bool fl_dist_no_sync(fl_dist_model *m, bool on);
/* The parameters for the optimizer: net's, or with .shard one variable per bucket, this rank's slice. */
FL_API fv_list fl_dist_parameters(fl_dist_model *m);
/* Clips gradients to a total norm of at most max_norm (0: no clipping), steps o, and with .shard gathers the
   parameters. o must be an optimizer of fl_dist_parameters; with .shard an elementwise one (SGD, Adam, AdamW
   ...). A pending error ends the group. False after fl_fail. */
FL_API bool fl_dist_step(fl_dist_model *m, fl_optim *o, double max_norm);
/* Synchronised batch norm: in training, batch norms of net use the statistics of all ranks' batches, forward
   and backward, reduced over d, which must stay open during training; preferably a group of its own
   (fl_dist_split). d NULL: disables it. */
FL_API bool fl_dist_sync_batch_norm(fl_dist_group *d, fl_nn_module *net);
/* Makes the global random generator different on each rank, as a function of its state and the rank. For use
   after loading a checkpoint, which holds rank 0's state. */
FL_API void fl_dist_rng_per_rank(const fl_dist_group *d);

/* Rank 0 writes one file in the format of fl_optim_save_checkpoint, which loads with any number of ranks and
   without a group. All ranks call it; at may be NULL. False after fl_fail. */
FL_API bool fl_dist_save_checkpoint(fl_dist_model *m, const char *path, fl_optim *o,
                                    const fl_optim_progress *at);
/* Loads such a file on every rank; all ranks call it; at may be NULL. False after fl_fail. */
FL_API bool fl_dist_load_checkpoint(fl_dist_model *m, const char *path, fl_optim *o,
                                    fl_optim_progress *at);

#ifdef __cplusplus
}
#endif
#endif /* FL_DIST_TRAIN_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DISTRIBUTED_TRAIN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DIST_TRAIN_IMPL
#define FL_DIST_TRAIN_IMPL
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../kernels/cpu/bf16.h"
#include "../ops/copy.h"
#include "../ops/elementwise.h"
#include "../ops/linear.h"
#include "../ops/random.h"
#include "../ops/view.h"

/* Parameters are numbered as in fl_nn_parameters; buckets hold them from last to first. The flat tensor of a
   bucket, new in each pass, holds the gradients, then a flag per parameter (not 0 if a rank used it), then
   padding to equal slices. After the pass gradients are views of it. */

typedef struct fl__dist_param {
    fl_var *var;
    int bucket;
    int64_t offset; /* in the flat tensor */
    bool ready;     /* in this pass */
} fl__dist_param;
typedef struct fl__dist_bucket {
    int first, last; /* parameters first, first - 1, ..., last */
    int waiting;     /* number of them not ready in this pass */
    bool launched;
    int64_t n_grads, size; /* elements of gradients; of the flat tensor */
    fl_tensor *flat;       /* NULL between passes */
    fl_dist_work *work;
    fl_var *slice;   /* with .shard: this rank's slice of the parameters, which the optimizer steps */
    fl_tensor *mean; /* the slice's averaged gradient, being reduced */
} fl__dist_bucket;
struct fl_dist_model {
    fv_watcher watcher; /* first */
    fl_dist_group *d;
    fl_nn_module *net;
    int n, n_buckets, next;              /* next: bucket to launch */
    bool shard, views, no_sync, reached; /* reached: the pass has reached a parameter */
    fl__dist_param *params;
    int last_found; /* the parameter found last */
    fl__dist_bucket *bucket;
    fl_var **slices;
};

/* ---- buckets ---- */

/* n rounded up to a multiple of step. */
static int64_t fl__dist_round_up(int64_t n, int64_t step) {
    return (n + step - 1) / step * step;
}

/* Assigns parameters to buckets; each bucket has one dtype and one backend. */
static void fl__dist_fill_buckets(fl_dist_model *m, int64_t most, int64_t first_most) {
    fl__dist_bucket *b = NULL;
    for (int i = m->n - 1; i >= 0; i--) {
        const fl_tensor *t = m->params[i].var->value, *last = b ? m->params[b->last].var->value : NULL;
        const int64_t size = (int64_t)fl_dtype_size(t->dtype),
                      limit = m->n_buckets > 1 ? most : first_most;
        if (!b || last->dtype != t->dtype || last->backend != t->backend ||
            (b->n_grads + fl_numel(t)) * size > limit) {
            b = &m->bucket[m->n_buckets++];
            *b = (fl__dist_bucket){.first = i};
        }
        m->params[i].bucket = (int)(b - m->bucket);
        m->params[i].offset = b->n_grads;
        b->last = i;
        b->n_grads += fl_numel(t);
    }
    for (int k = 0; k < m->n_buckets; k++) {
        b = &m->bucket[k];
        b->size =
            fl__dist_round_up(b->n_grads + b->first - b->last + 1, m->shard ? fl_dist_size(m->d) * 16 : 1);
    }
}

/* The view of a parameter in a flat tensor, in the parameter's memory order if it is dense. */
static fl_tensor *fl__dist_view(const fl_dist_model *m, int i, fl_tensor *flat) {
    const fl_tensor *t = m->params[i].var->value;
    return fl_as_strided(flat, fl_shape_of(t), fl_is_dense(t) ? t->stride : NULL,
                         flat->offset + m->params[i].offset);
}

static fl_tensor *fl__dist_flat(const fl_dist_model *m, const fl__dist_bucket *b, fl_dtype dtype) {
    return fl_empty_on(fl_backend_name(m->params[b->first].var->value), FL_SHAPE(b->size), dtype);
}

/* Writes g / size to the parameter's view in the flat tensor; zeros if g is NULL. */
static bool fl__dist_write_grad(const fl_dist_model *m, int i, fl_tensor *g) {
    fl_tensor *flat = m->bucket[m->params[i].bucket].flat, *to = fl__dist_view(m, i, flat);
    if (!to) return false;
    if (!g) return fl_assign(to, fl_zeros(FL_SCALAR_SHAPE, to->dtype)) != NULL;
    return fl_assign_op(to, FL_OP_mul, g, fl_num(1.0 / fl_dist_size(m->d))) != NULL;
}

/* For a backend without views: concatenates all gradients of a bucket. */
static fl_tensor *fl__dist_concat_grads(const fl_dist_model *m, const fl__dist_bucket *b) {
    const int n = b->first - b->last + 1;
    fl_tensor **list = (fl_tensor **)fl_heap_alloc((size_t)(n + 1) * sizeof *list), *flat = NULL;
    bool ok = list != NULL;
    for (int k = 0; ok && k < n; k++) {
        fl_var *x = m->params[b->first - k].var;
        fl_tensor *g =
            fv_grad(x) ? fl_mul(fv_grad(x), fl_num(1.0 / fl_dist_size(m->d))) : fl_full_like(x->value, 0);
        list[k] = g ? fl_flatten(g, 0, -1) : NULL;
        ok = list[k] != NULL;
    }
    if (ok && (list[n] = fl_new_full(list[0], FL_SHAPE(b->size - b->n_grads), 0)))
        flat = fl_concat(list, n + 1, 0);
    fl_heap_free(list);
    return flat;
}

/* Writes the flags of the parameters that this rank used. With .shard they are 0: not needed, and zeros do
   not change norms. */
static bool fl__dist_write_used(const fl_dist_model *m, const fl__dist_bucket *b) {
    const int64_t rest = b->size - b->n_grads;
    const size_t bytes = fl_dtype_size(b->flat->dtype);
    fl_tensor *tail = m->views ? fl_slice(b->flat, 0, b->n_grads, b->size, 1) : b->flat;
    char *p = tail ? fl_map(tail, FL_WRITE | (m->views ? 0 : FL_READ)) : NULL;
    if (!p) return false;
    if (!m->views) p += (size_t)b->n_grads * bytes;
    for (int64_t k = 0; k < rest; k++) {
        const bool used = !m->shard && k <= b->first - b->last && fv_grad(m->params[b->first - k].var);
        fl_number_store(b->flat->dtype, p + (size_t)k * bytes, (fl_number){true, used, used});
    }
    fl_unmap(tail, FL_WRITE | (m->views ? 0 : FL_READ));
    return true;
}

static bool fl__dist_used(const fl__dist_bucket *b, const char *bytes, int i) {
    const size_t at = (size_t)(b->n_grads + b->first - i) * fl_dtype_size(b->flat->dtype);
    return fl_number_load(b->flat->dtype, bytes + at).f > 0;
}

/* ---- a pass ---- */

static void fl__dist_reset_pass(fl_dist_model *m) {
    for (int k = 0; k < m->n_buckets; k++) {
        fl__dist_bucket *b = &m->bucket[k];
        if (b->work) fl_obj_drop((fl_obj *)b->work);
        fl_drop(b->flat);
        fl_drop(b->mean);
        b->work = NULL;
        b->flat = b->mean = NULL;
        b->launched = false;
        b->waiting = b->first - b->last + 1;
    }
    for (int i = 0; i < m->n; i++) m->params[i].ready = false;
    m->next = 0;
    m->reached = false;
}

static bool fl__dist_open_bucket(fl_dist_model *m, fl__dist_bucket *b) {
    if (!b->flat && m->views) b->flat = fl_keep(fl__dist_flat(m, b, m->params[b->first].var->value->dtype));
    return b->flat || !m->views;
}

/* Starts the reduction of a bucket. */
static bool fl__dist_launch(fl_dist_model *m, fl__dist_bucket *b) {
    if (!m->views && !(b->flat = fl_keep(fl__dist_concat_grads(m, b)))) return false;
    if (!fl__dist_write_used(m, b)) return false;
    fl_dist_work *w = NULL;
    bool ok;
    if (m->shard) {
        fl_tensor *t = m->bucket[b - m->bucket].slice->value;
        ok = (b->mean = fl_keep(fl_empty_like(t))) &&
             fl_dist_reduce_scatter(m->d, b->mean, b->flat, .work = &w);
    } else {
        ok = fl_dist_all_reduce(m->d, b->flat, .work = &w);
    }
    if (!ok) return false;
    fl_obj_keep((fl_obj *)w);
    b->work = w;
    return b->launched = true;
}

/* Handles a parameter whose gradient is complete (or absent): moves it to the bucket, and launches full
   buckets. */
static bool fl__dist_grad_ready(fl_dist_model *m, int i) {
    fl__dist_param *p = &m->params[i];
    fl__dist_bucket *b = &m->bucket[p->bucket];
    if (p->ready) return true;
    fl_scope s = fl_scope_begin();
    bool ok = fl__dist_open_bucket(m, b) && (!m->views || fl__dist_write_grad(m, i, fv_grad(p->var)));
    if (ok && m->views && !m->shard && fv_grad(p->var)) {
        fl_var *g = fv_const(fl__dist_view(m, i, b->flat));
        ok = g && fv_set_grad(p->var, g);
    }
    p->ready = ok;
    b->waiting -= ok;
    while (ok && m->next < m->n_buckets && !m->bucket[m->next].waiting)
        ok = fl__dist_launch(m, &m->bucket[m->next++]);
    fl_scope_end(&s);
    return ok;
}

/* The index of a parameter, or -1. A pass reaches parameters roughly from last to first, so the search starts
   before the one found last. */
static int fl__dist_find_param(fl_dist_model *m, const fl_var *x) {
    for (int k = 1; k <= m->n; k++) {
        const int i = (m->last_found + m->n - k) % m->n;
        if (m->params[i].var == x) return m->last_found = i;
    }
    return -1;
}

static void fl__dist_leaf_ready(fv_watcher *w, fl_var *x) {
    fl_dist_model *m = (fl_dist_model *)w;
    const int i = m->no_sync ? -1 : fl__dist_find_param(m, x);
    if (i < 0) return;
    m->reached = true;
    fl__dist_grad_ready(m, i);
}

/* Sets the gradients from a reduced bucket. Its flags are read, which waits for a device, only if this rank
   did not use all parameters. */
static bool fl__dist_set_grads(fl_dist_model *m, fl__dist_bucket *b) {
    bool ok = true, all = true;
    for (int i = b->first; i >= b->last; i--) all = all && fv_grad(m->params[i].var);
    const char *bytes = all ? NULL : fl_map(b->flat, FL_READ);
    for (int i = b->first; ok && i >= b->last; i--) {
        fl_var *x = m->params[i].var;
        ok = all || bytes;
        if (ok && !all && !fl__dist_used(b, bytes, i))
            fv_zero_grad(x);
        else if (ok && (!m->views || !fv_grad(x))) {
            fl_var *g = fv_const(fl__dist_view(m, i, b->flat));
            ok = g && fv_set_grad(x, g);
        }
    }
    if (bytes) fl_unmap(b->flat, FL_READ);
    return ok;
}

/* Adds the reduced gradient to the slice's, and removes the parameters' own gradients. */
static bool fl__dist_set_slice_grad(fl_dist_model *m, fl__dist_bucket *b) {
    fl_tensor *before = fv_grad(b->slice), *sum = before ? fl_add(before, b->mean) : b->mean;
    fl_var *g = fv_const(sum);
    for (int i = b->first; i >= b->last; i--) fv_zero_grad(m->params[i].var);
    return g && fv_set_grad(b->slice, g);
}

static void fl__dist_pass_end(fv_watcher *w, const char *error) {
    fl_dist_model *m = (fl_dist_model *)w;
    bool ok = !error && !fl_error();
    if (error)
        fl_dist_abort(m->d, error);
    else if (m->reached) {
        for (int i = m->n - 1; ok && i >= 0; i--) ok = fl__dist_grad_ready(m, i);
        for (int k = 0; ok && k < m->n_buckets; k++) ok = fl_dist_wait(m->bucket[k].work);
        for (int k = 0; ok && k < m->n_buckets; k++) {
            fl_scope s = fl_scope_begin();
            ok = m->shard ? fl__dist_set_slice_grad(m, &m->bucket[k]) : fl__dist_set_grads(m, &m->bucket[k]);
            fl_scope_end(&s);
        }
        if (!ok) fl_dist_abort(m->d, fl_error());
    }
    fl__dist_reset_pass(m);
}

/* ---- construction ---- */

/* Appends "0.weight f32 [3, 4]\n" for a parameter or buffer. */
static bool fl__dist_list_tensor(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    const fl_tensor *t = param ? param->value : buffer;
    fl_data_text *text = user;
    char line[FL_NN_PATH + 256];
    const int n =
        snprintf(line, sizeof line, "%s %s %s\n", path, fl_dtype_name(t->dtype), FL_SHAPE_TEXT(t));
    return fl_data_text_put(text, line, (size_t)n);
}

/* Fails with the first line that differs. */
static bool fl__dist_fail_differs(const fl_dist_group *d, const char *mine, const char *theirs) {
    const char *a = mine, *b = theirs; /* the beginnings of the lines */
    for (const char *p = mine, *q = theirs; *p && *p == *q; p++, q++)
        if (*p == '\n') a = p + 1, b = q + 1;
    return fl_fail("fl_dist_data_parallel: nets differ: rank %d has %.*s, rank 0 has %.*s", fl_dist_rank(d),
                   *a ? (int)strcspn(a, "\n") : 7, *a ? a : "nothing", *b ? (int)strcspn(b, "\n") : 7,
                   *b ? b : "nothing");
}

/* How this rank rounds products to bf16; "" if the net does not seem to use bf16. */
static const char *fl__dist_bf16(const char *names) {
    const bool rounds = fl_matmul_precision() == FL_BF16 || strstr(names, " bf16 ") || fl_cpu_bf16_used();
    return rounds ? fl_cpu_bf16() : "";
}

/* Checks that all nets have rank 0's tensors; warns if ranks round differently. */
static bool fl__dist_compare_nets(fl_dist_model *m) {
    fl_data_text text = {0};
    bool ok = fl_nn_visit_tensors(m->net, fl__dist_list_tensor, &text) && fl_data_text_put(&text, "", 1);
    const char *rounding = ok ? fl__dist_bf16(text.p) : ""; /* appended after the names */
    ok = ok && fl_data_text_put(&text, rounding, strlen(rounding) + 1);
    int64_t n = text.n;
    fl_tensor *length = ok ? fl__dist_new_tensor(m->d, FL_SHAPE(1), FL_I64) : NULL;
    ok = length && fl_set_host(length, &n, sizeof n) && fl_dist_broadcast(m->d, length, 0);
    n = ok ? fl_item_int(length) : 0;
    ok = ok && (n > 0 || fl_fail("fl_dist_data_parallel: got %" PRId64 " bytes of names, expected > 0", n));
    fl_tensor *theirs = ok ? fl__dist_new_tensor(m->d, FL_SHAPE(n), FL_U8) : NULL;
    ok = theirs && (fl_dist_rank(m->d) || fl_set_host(theirs, text.p, (size_t)n)) &&
         fl_dist_broadcast(m->d, theirs, 0);
    char *bytes = ok ? fl_map(theirs, FL_READ) : NULL;
    ok = bytes && !bytes[n - 1] && (!strcmp(text.p, bytes) || fl__dist_fail_differs(m->d, text.p, bytes));
    const char *first = ok ? bytes + strlen(bytes) + 1 : NULL; /* rank 0's rounding */
    if (ok && first < bytes + n && strcmp(rounding, first))
        fl_log_message(FL_LOG_WARN,
                       "fl_dist_data_parallel: rank %d rounds products to bf16 by '%s', rank 0 by "
                       "'%s', so results differ; set FL_CPU_BF16 to the same on all ranks",
                       fl_dist_rank(m->d), rounding, first);
    if (bytes) fl_unmap(theirs, FL_READ);
    fl_heap_free(text.p);
    return ok;
}

static bool fl__dist_send_tensor(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    (void)path;
    return fl_dist_broadcast((fl_dist_group *)user, param ? param->value : buffer, 0);
}

/* ---- slices ---- */

/* A sliced quantity: the parameters' values, or a state that optimizer `own` holds for slices and `whole` for
   whole parameters. */
enum { FL__DIST_VALUES = -2, FL__DIST_MASTERS = -1 };
typedef struct fl__dist_sliced {
    int state; /* one of the above, or the state's index */
    fl_optim *own, *whole;
} fl__dist_sliced;

static fl_tensor *fl__dist_sliced_tensor(fl__dist_sliced w, const fl_var *value, const fl_optim *o, int i) {
    if (w.state == FL__DIST_VALUES) return value->value;
    return w.state == FL__DIST_MASTERS ? o->slot[i].master : o->slot[i].state[w.state];
}

/* Copies between the tensors of a bucket's parameters and a flat tensor (pack: to it). */
static bool fl__dist_copy(const fl_dist_model *m, const fl__dist_bucket *b, fl__dist_sliced w,
                          fl_tensor *flat, bool pack) {
    bool ok = true;
    for (int i = b->first; ok && i >= b->last; i--) {
        fl_tensor *part = fl__dist_view(m, i, flat),
                  *whole = fl__dist_sliced_tensor(w, m->params[i].var, w.whole, i);
        ok = part && fl_assign(pack ? part : whole, pack ? whole : part);
    }
    return ok;
}

/* This rank's slice of the bucket's flattened tensors, zero-padded, with the dtype of `like`. */
static fl_tensor *fl__dist_slice_of(const fl_dist_model *m, const fl__dist_bucket *b, fl__dist_sliced w,
                                    fl_tensor *like) {
    const int64_t n = b->size / fl_dist_size(m->d), at = n * fl_dist_rank(m->d);
    fl_tensor *flat = fl_new_full(like, FL_SHAPE(b->size), 0);
    return flat && fl__dist_copy(m, b, w, flat, true) ? fl_slice(flat, 0, at, at + n, 1) : NULL;
}

/* gather: from all ranks' slices to whole tensors; else from whole tensors to this rank's slices. */
static bool fl__dist_transfer(fl_dist_model *m, fl__dist_sliced w, bool gather) {
    bool ok = true;
    for (int k = 0; ok && k < m->n_buckets; k++) {
        const fl__dist_bucket *b = &m->bucket[k];
        fl_tensor *own = fl__dist_sliced_tensor(w, b->slice, w.own, k);
        fl_scope s = fl_scope_begin();
        if (gather) {
            fl_tensor *flat = fl__dist_flat(m, b, own->dtype);
            ok = flat && fl_dist_all_gather(m->d, flat, own) && fl__dist_copy(m, b, w, flat, false);
        } else {
            fl_tensor *slice = fl__dist_slice_of(m, b, w, own);
            ok = slice && fl_assign(own, slice);
        }
        fl_scope_end(&s);
    }
    return ok;
}

static bool fl__dist_make_slices(fl_dist_model *m) {
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    bool ok = true;
    for (int k = 0; ok && k < m->n_buckets; k++) {
        fl__dist_bucket *b = &m->bucket[k];
        fl_tensor *slice = fl__dist_slice_of(m, b, (fl__dist_sliced){.state = FL__DIST_VALUES},
                                             m->params[b->first].var->value),
                  *own = slice ? fl_clone(slice) : NULL;
        ok = own && (m->slices[k] = b->slice = fv_keep(fv_param(own)));
    }
    fl_scope_end(&s);
    return ok;
}

FL_API void fl_dist_rng_per_rank(const fl_dist_group *d) {
    fl_rng rng = fl_rng_state();
    rng.key ^= (uint64_t)fl_dist_rank(d) * 0x9e3779b97f4a7c15;
    fl_rng_set_state(rng);
}

FL_API void fl_dist_model_free(fl_dist_model *m) {
    if (!m) return;
    fv_unwatch(&m->watcher);
    fl__dist_reset_pass(m);
    for (int i = 0; i < m->n; i++) fv_drop(m->params[i].var);
    for (int k = 0; k < m->n_buckets; k++) fv_drop(m->bucket[k].slice);
    fl_heap_free(m->params);
    fl_heap_free(m->bucket);
    fl_heap_free(m->slices);
    fl_heap_free(m);
}

static fl_dist_model *fl__dist_model_new(fl_dist_group *d, fl_nn_module *net) {
    const fv_list params = fl_nn_parameters(net);
    const size_t n = (size_t)params.n;
    fl_dist_model *m = fl_heap_alloc(sizeof *m);
    if (!m) return NULL;
    *m = (fl_dist_model){
        .watcher = {.leaf_ready = fl__dist_leaf_ready, .end = fl__dist_pass_end}, .d = d, .net = net};
    m->params = fl_heap_alloc(n * sizeof *m->params);
    m->bucket = fl_heap_alloc((n + 1) * sizeof *m->bucket);
    m->slices = (fl_var **)fl_heap_alloc((n + 1) * sizeof *m->slices);
    if (!m->params || !m->bucket || !m->slices) return fl_dist_model_free(m), NULL;
    m->n = params.n;
    for (int i = 0; i < m->n; i++) m->params[i].var = fv_keep(params.v[i]);
    return m;
}

FL_API fl_dist_model *fl_dist_data_parallel_opt(fl_dist_group *d, fl_nn_module *net,
                                                fl_dist_data_parallel_opts o) {
    static const char fn[] = "fl_dist_data_parallel";
    if (fl_error()) return d ? (fl_dist_abort(d, fl_error()), NULL) : NULL;
    if (!net) return fl_fail("%s: the net is NULL", fn), NULL;
    if (!d) return fl_fail("%s: the group is NULL", fn), NULL;
    if (o.bucket_bytes < 0 || o.first_bucket_bytes < 0)
        return fl_fail("%s: got bucket_bytes %" PRId64 ", first_bucket_bytes %" PRId64 ", expected >= 0", fn,
                       o.bucket_bytes, o.first_bucket_bytes),
               NULL;
    if (fl_nn_parameters(net).n < 1) return fl_fail("%s: the net has no parameters", fn), NULL;
    fl_dist_model *m = fl__dist_model_new(d, net);
    if (!m) return NULL;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    m->shard = o.shard;
    fl__dist_fill_buckets(m, fl_option_int(o.bucket_bytes, 25 << 20),
                          fl_option_int(o.first_bucket_bytes, 1 << 20));
    fl__dist_reset_pass(m);
    fl_tensor *flat = fl__dist_flat(m, m->bucket, m->params[m->n - 1].var->value->dtype),
              *view = flat ? fl__dist_view(m, m->n - 1, flat) : NULL;
    m->views = view && !view->copied;
    bool ok = view && (fl_dist_size(d) == 1 ||
                       (fl__dist_compare_nets(m) && fl_nn_visit_tensors(net, fl__dist_send_tensor, d)));
    if (ok && m->shard && !m->views) ok = fl_fail("%s: .shard requires a backend with views", fn);
    ok = ok && (!m->shard || fl__dist_make_slices(m)) && fl_dist_barrier(d); /* all ranks agree */
    fl_scope_end(&s);
    fl_quiet(-1);
    if (!ok) {
        if (fl_error()) fl_dist_abort(d, fl_error());
        return fl_dist_model_free(m), NULL;
    }
    if (fl_dist_size(d) > 1 || m->shard) fv_watch(&m->watcher);
    fl_dist_rng_per_rank(d);
    return m;
}

FL_API bool fl_dist_no_sync(fl_dist_model *m, bool on) {
    if (!m) return fl_fail("fl_dist_no_sync: the model is NULL");
    if (m->shard && on) return fl_fail("fl_dist_no_sync: not supported with .shard");
    const bool before = m->no_sync;
    m->no_sync = on;
    return before;
}

FL_API fv_list fl_dist_parameters(fl_dist_model *m) {
    if (!m) return FV_NONE;
    return m->shard ? fv_list_of(m->n_buckets, m->slices) : fl_nn_parameters(m->net);
}

static bool fl__dist_add_statistics(fl_tensor *sums, void *user) {
    return fl_dist_all_reduce((fl_dist_group *)user, sums);
}

FL_API bool fl_dist_sync_batch_norm(fl_dist_group *d, fl_nn_module *net) {
    if (!net) return fl_fail("fl_dist_sync_batch_norm: the net is NULL");
    return fl_nn_batch_norm_reduce(net, d && fl_dist_size(d) > 1 ? fl__dist_add_statistics : NULL, d);
}

/* ---- steps ---- */

/* Clips by the norm over all ranks' slices. */
static bool fl__dist_clip(fl_dist_model *m, fl_optim *o, double max_norm) {
    if (!m->shard) return fl_optim_clip(o, max_norm) != NULL;
    fl_tensor *norm = fl_optim_grad_norm(fl_dist_parameters(m)),
              *sum = norm ? fl_mul(norm, norm) : NULL;
    if (!sum || !fl_dist_all_reduce(m->d, sum)) return false;
    fl_tensor *bound = fl_div(fl_num(max_norm), fl_add(fl_sqrt(sum), fl_num(1e-6)));
    return bound && fl_optim_scale(o, fl_where(fl_ge(bound, fl_num(1)), fl_num(1), bound));
}

static bool fl__dist_optim_fits(const fl_dist_model *m, const fl_optim *o, const char *fn) {
    if (!o) return fl_fail("%s: the optimizer is NULL", fn);
    if (!m->shard) return true;
    if (o->type->step || o->type->prepare || o->type->apart)
        return fl_fail("%s: %s needs whole parameters, expected an elementwise optimizer with .shard", fn,
                       o->type->name);
    bool same = o->n == m->n_buckets;
    for (int k = 0; same && k < m->n_buckets; k++) same = o->slot[k].param == m->slices[k];
    return same || fl_fail("%s: the optimizer's parameters are not those of fl_dist_parameters", fn);
}

FL_API bool fl_dist_step(fl_dist_model *m, fl_optim *o, double max_norm) {
    static const char fn[] = "fl_dist_step";
    if (!m) return fl_error() ? false : fl_fail("%s: the model is NULL", fn);
    if (fl_error()) return fl_dist_abort(m->d, fl_error()), false;
    if (!fl__dist_optim_fits(m, o, fn)) return false;
    if (!(max_norm >= 0)) return fl_fail("%s: max_norm must be >= 0, got %g", fn, max_norm);
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    const bool ok = (max_norm == 0 || fl__dist_clip(m, o, max_norm)) && fl_optim_step(o) &&
                    (!m->shard || fl__dist_transfer(m, (fl__dist_sliced){.state = FL__DIST_VALUES}, true));
    fl_scope_end(&s);
    fl_quiet(-1);
    if (!ok && fl_error()) fl_dist_abort(m->d, fl_error());
    return ok;
}

/* ---- checkpoints ---- */

/* An optimizer of o's kind for the whole parameters, as without sharding. */
static fl_optim *fl__dist_whole(const fl_dist_model *m, const fl_optim *o) {
    fl_optim *whole = fl_optim_new(o->type, fl_nn_parameters(m->net), o->lr, o->group[0].hyper);
    bool ok = whole != NULL;
    if (ok && o->slot[0].master) ok = fl_optim_use_masters(whole);
    if (ok) return whole;
    fl_optim_free(whole);
    return NULL;
}

static bool fl__dist_transfer_states(fl_dist_model *m, fl_optim *o, fl_optim *whole, bool gather) {
    bool ok = true;
    for (int state = o->slot[0].master ? FL__DIST_MASTERS : 0;
         ok && state < FL_OPTIM_STATES && (state < 0 || o->type->state[state]); state++)
        ok = fl__dist_transfer(m, (fl__dist_sliced){state, o, whole}, gather);
    /* step counts: one per parameter, equal within a bucket */
    for (int i = 0; ok && i < m->n; i++) {
        fl_tensor *own = o->slot[m->params[i].bucket].steps, *all = whole->slot[i].steps;
        ok = (gather ? fl_assign(all, own) : fl_assign(own, all)) != NULL;
    }
    return ok;
}

/* Lets all ranks know whether every rank succeeded. */
static bool fl__dist_confirm(fl_dist_model *m, bool ok) {
    if (!ok && fl_error()) fl_dist_abort(m->d, fl_error());
    return ok && fl_dist_barrier(m->d);
}

/* Rank 0 writes; with .shard all ranks take part in gathering the states. The barrier finds failures of
   calls that a device still runs. */
static bool fl__dist_write_checkpoint(fl_dist_model *m, const char *path, fl_optim *o, fl_optim *whole,
                                      const fl_optim_progress *at) {
    if (!fl_dist_barrier(m->d)) return false;
    if (m->shard && !fl__dist_transfer_states(m, o, whole, true)) return false;
    return fl_dist_rank(m->d) || fl_optim_save_checkpoint(path, m->net, whole, at);
}

/* Every rank reads the file, and with .shard keeps its slices. */
static bool fl__dist_read_checkpoint(fl_dist_model *m, const char *path, fl_optim *o, fl_optim *whole,
                                     fl_optim_progress *at) {
    bool ok = fl_optim_load_checkpoint(path, m->net, whole, at);
    if (ok && m->shard) {
        ok = fl__dist_transfer_states(m, o, whole, false) &&
             fl__dist_transfer(m, (fl__dist_sliced){.state = FL__DIST_VALUES}, false);
        o->lr = whole->lr;
        memcpy(o->group[0].hyper, whole->group[0].hyper, sizeof o->group[0].hyper);
    }
    if (ok) fl_dist_rng_per_rank(m->d);
    return ok;
}

/* Loads into *read (reads), or saves with *at. */
static bool fl__dist_checkpoint(const char *fn, bool reads, fl_dist_model *m, const char *path, fl_optim *o,
                                const fl_optim_progress *at, fl_optim_progress *read) {
    if (!m || !path) return fl_error() ? false : fl_fail("%s: %s is NULL", fn, m ? "path" : "the model");
    if (!fl__dist_optim_fits(m, o, fn)) return false;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    fl_optim *whole = m->shard ? fl__dist_whole(m, o) : o;
    bool ok = whole && (reads ? fl__dist_read_checkpoint(m, path, o, whole, read)
                              : fl__dist_write_checkpoint(m, path, o, whole, at));
    if (m->shard) fl_optim_free(whole);
    ok = fl__dist_confirm(m, ok);
    fl_scope_end(&s);
    fl_quiet(-1);
    return ok;
}

FL_API bool fl_dist_save_checkpoint(fl_dist_model *m, const char *path, fl_optim *o,
                                    const fl_optim_progress *at) {
    return fl__dist_checkpoint("fl_dist_save_checkpoint", false, m, path, o, at, NULL);
}

FL_API bool fl_dist_load_checkpoint(fl_dist_model *m, const char *path, fl_optim *o,
                                    fl_optim_progress *at) {
    return fl__dist_checkpoint("fl_dist_load_checkpoint", true, m, path, o, NULL, at);
}

#endif
#endif
/* MIT licence: see LICENSE. */
