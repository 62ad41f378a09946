/* kernels/cuda/backend.h - the backends cuda, cuda:1 ...: tables, slots, allocation, mapping, synchronisation

   A slot translates a call into the plain structs of flk.h, whose functions start kernels on the current
   stream (fl_stream) and return; fl_sync and fl_map wait. Ops without a slot here are composed of those with
   one; those without a composition (factorisations) run on the cpu, with a warning. Errors that depend on
   the data, an index out of range or x % 0, are reported by the next sync or map.

   -DFL_USE_CUDA includes this file and registers the backends: cuda is device 0, cuda:1 to cuda:7 are
   others. -DFL_TENSOR_BACKEND=cuda makes cuda the default backend, unless FL_DEVICE=cpu is in the
   environment. Driver and device are opened when the first tensor is created: if they are missing, that is
   an error, not a silent run on the cpu. The operands of an op must be on one device; fl_to copies between
   two without the host.

   Tested without a GPU, by make cuda-check: the kernels' results (conformance, gradcheck, random, comparison
   with the cpu on large operands), that the host does not depend on unfinished work or read device memory,
   failure of each runtime call, errors for a missing driver, no memory, a broken device and fork; by nvcc,
   that all compile for sm_90 without spills. Not tested without a GPU: any run on a device, speed, races
   between blocks, rounding of nvcc's code (it fuses what fl_math.h fuses, g++ does not). See
   bench/README.md.

   The kernels here are simple, and slow where stated: one block reduces each output, one thread scans or
   scatters each line, except for sums at indices shared by all lines; convolutions are direct. layers.h,
   attention.h, ctc.h, fft.h and recurrent.h have the slots of registered ops, step.h those launched in
   batches, program.h compiled programs, graph.h sequences of calls that are launched as one. Products,
   convolutions and attention use cuBLASLt (lt.h) and cuDNN (dnn.h) if they are installed. fft, lattice and
   recurrent, .h and .cu, may be deleted: their ops are then composed of others. */
#ifndef FL_CUDA_BACKEND_H
#define FL_CUDA_BACKEND_H
#ifdef FL_STATIC
#error "fl: FL_USE_CUDA has one cache of device memory: define FL_IMPLEMENTATION in one file, not FL_STATIC"
#endif
#include "../../fl_cuda.h"
#include "flk.h"
#include "memory.h"
FL_API const fl_backend *fl_backend_cuda(void);
/* The backend of a device, which need not exist; NULL if the number is too large. */
FL_API const fl_backend *fl_backend_cuda_of(int device);

/* private: shared by the files with slots */
/* Returns this thread's current stream, NULL after fl_fail. Other threads wait until fl__cuda_end. */
FL_PRIVATE void *fl__cuda_begin(int device);
FL_PRIVATE void fl__cuda_end(void);
/* True if why is NULL, else false after an error of the call's op. */
FL_PRIVATE bool fl__cuda_started(const fl_call *c, const char *why);
FL_PRIVATE bool fl__cuda_refuses(const fl_call *c, fl_dtype d);
/* Describes t without its strides; a weak number by value. */
FL_PRIVATE void fl__cuda_operand(flk_operand *o, const fl_tensor *t);
FL_PRIVATE void fl__cuda_strided(flk_operand *o, const fl_tensor *t); /* with its strides */
/* Describes a pass over t[shaped]'s dims without `axis` (-1: all dims), ordered by memory layout or as they
   are. */
FL_PRIVATE void fl__cuda_pass(flk_pass *p, fl_op op, int n, fl_tensor *const t[], int shaped, int axis,
                              bool as_is);
/* As fl__cuda_pass, for lines along t[shaped]'s axis. */
FL_PRIVATE void fl__cuda_lines(flk_lines *l, fl_op op, int n, fl_tensor *const t[], int shaped, int axis);
/* Workspace on the current device for one slot's kernels, until it is dropped; running kernels keep it. */
FL_PRIVATE fl_buffer *fl__cuda_scratch(const fl_call *c, size_t bytes);
/* The same, dropped when the slot returns; one per slot. NULL after an error. */
FL_PRIVATE void *fl__cuda_work(const fl_call *c, size_t bytes);
/* While this thread captures (graph.h): keeps b; checks that c can be captured on the stream. */
FL_PRIVATE bool fl__cuda_graph_use(fl_buffer *b);
FL_PRIVATE bool fl__cuda_graph_takes(const fl_call *c, const void *stream);
/* Marks what is captured as impossible to capture. Returns false. */
FL_PRIVATE bool fl__cuda_graph_spoil(void);
#endif

#if defined(FL_IMPL_ONLY_CUDA_BACKEND) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_BACKEND_IMPL
#define FL_CUDA_BACKEND_IMPL
#include "attention.h"
#include "ctc.h"
#include "dnn.h"
#include "graph.h"
#include "layers.h"
#include "lt.h"
#include "program.h"
#include "step.h"
#if __has_include("fft.h") /* may be left out, with its .cu */
#include "fft.h"
#endif
#if __has_include("recurrent.h") /* the same */
#include "recurrent.h"
#endif
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define FL__SAME(d) (int)FL_##d == (int)FLK_##d
_Static_assert(FL__SAME(B8) && FL__SAME(U8) && FL__SAME(I8) && FL__SAME(I16) && FL__SAME(I32) &&
                   FL__SAME(I64) && FL__SAME(U16) && FL__SAME(U32) && FL__SAME(U64) && FL__SAME(F16) &&
                   FL__SAME(BF16) && FL__SAME(F32) && FL__SAME(F64),
               "flk.h numbers dtypes as fl_dtype");
#undef FL__SAME

/* ---- hooks ---- */

FL_PRIVATE bool fl__cuda_started(const fl_call *c, const char *why) {
    return !why || fl_fail("fl_%s: cuda: %s", fl_op_get_info(c->op)->name, why);
}

FL_PRIVATE bool fl__cuda_refuses(const fl_call *c, fl_dtype d) {
    return fl_fail("fl_%s: cuda has no kernel for %s", fl_op_get_info(c->op)->name, fl_dtype_name(d));
}

/* Held from a tensor's first use until its kernels are started, so that an event on its stream comes after
   them. Recursive: compositions run slots within slots. */
static pthread_mutex_t fl__cuda_starting;
static void fl__cuda_starting_init(void) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&fl__cuda_starting, &a);
    pthread_mutexattr_destroy(&a);
}

static int fl__cuda_ordinal(const fl_backend *self) {
    return (int)(intptr_t)self->user;
}

static void *fl__cuda_stream(int device) {
    void *stream = NULL;
    const char *why = flk_use_stream(device, fl__call_stream(fl_flags()), &stream);
    return why ? fl_fail("cuda: %s", why), NULL : stream;
}

FL_PRIVATE void *fl__cuda_begin(int device) {
    void *stream = fl__cuda_stream(device);
    if (stream) pthread_mutex_lock(&fl__cuda_starting);
    return stream;
}

FL_PRIVATE void fl__cuda_end(void) {
    pthread_mutex_unlock(&fl__cuda_starting);
}

static bool fl__cuda_use(const fl_call *c, const fl_tensor *t, void *stream) {
    if (!t || !t->buffer) return true;
    if (t->buffer->device != fl__cuda_device(flk_device()))
        return fl_fail("fl_%s: the operands are on '%s' and '%s': move one with fl_to",
                       fl_op_get_info(c->op)->name, t->buffer->device->name,
                       fl__cuda_device(flk_device())->name);
    if (fl__cuda_captures() && !fl__cuda_graph_use(t->buffer)) return false;
    return fl_buffer_use(t->buffer, stream);
}

static _Thread_local fl_buffer *fl__cuda_slot_work;

FL_API bool fl_cuda_slot(const fl_backend *self, const fl_call *c, fl_slot run) {
    static const char *const fn = "fl_cuda_slot";
    if (!fl_given(self, fn, "the backend") || !fl_given(c, fn, "the call")) return false;
    void *stream = fl__cuda_begin(fl__cuda_ordinal(self));
    if (!stream) return false;
    bool ok = !fl__cuda_captures() || fl__cuda_graph_takes(c, stream);
    for (int i = 0; ok && i < c->n_out; i++) ok = fl__cuda_use(c, c->out[i], stream);
    for (int i = 0; ok && i < c->n_in; i++) ok = fl__cuda_use(c, c->in[i], stream);
    fl_buffer *const outer = fl__cuda_slot_work; /* of the slot that runs this one */
    fl__cuda_slot_work = NULL;
    ok = ok && run(self, c);
    fl_buffer_drop(fl__cuda_slot_work);
    fl__cuda_slot_work = outer;
    fl__cuda_end();
    return ok || fl__cuda_graph_spoil();
}

FL_API void *fl_cuda_stream(void) {
    return flk_stream_now();
}

FL_API bool fl_cuda_launched(const fl_call *c, int error) {
    if (!fl_given(c, "fl_cuda_launched", "the call")) return false;
    return fl__cuda_started(c, flk_launched(error, "a launch"));
}

static bool fl__cuda_storage(const fl_backend *self, fl_mem_info *info) {
    info->device = fl__cuda_device(fl__cuda_ordinal(self));
    return (info->stream = fl__cuda_stream(fl__cuda_ordinal(self))) != NULL;
}

static bool fl__cuda_no_host(const char *fn) {
    fl__cuda_graph_spoil();
    return fl_fail("%s: cuda: the host cannot wait, read or write while a graph is captured", fn);
}

/* Waits, and reports errors that depend on the data. */
static bool fl__cuda_sync(const fl_backend *self) {
    if (fl__cuda_captures()) return fl__cuda_no_host("fl_sync");
    const char *why = flk_sync(fl__cuda_ordinal(self));
    if (why) return fl_fail("cuda: %s", why);
    const flk_fault f = flk_take_fault(fl__cuda_ordinal(self));
    if (!f.op) return true;
    const char *name = fl_op_get_info(f.op)->name;
    if (f.zero) return fl_fail("fl_%s: integer division by zero", name);
    return fl_fail("fl_%s: index %lld is out of range for axis %d of size %lld", name, (long long)f.index,
                   (int)f.axis, (long long)f.size);
}

/* Orders a copy after all uses of the buffer and of another one on a device or pinned (NULL: other). */
static bool fl__cuda_copy_behind(const fl_backend *self, const char *fn, fl_buffer *b, fl_buffer *also,
                                 void *dst, const void *src, size_t bytes, bool waits) {
    if (fl__cuda_captures()) return fl__cuda_no_host(fn);
    void *stream = fl__cuda_begin(fl__cuda_ordinal(self));
    if (!stream) return false;
    const bool ok = fl_buffer_use(b, stream) && (!also || fl_buffer_use(also, stream));
    const char *why = ok ? flk_copy_later(dst, src, bytes) : NULL;
    fl__cuda_end();
    if (ok && !why && waits) why = flk_sync_stream();
    return ok && (!why || fl_fail("%s: cuda: %s", fn, why));
}

FL_PRIVATE bool fl__cuda_lend(int device, fl_buffer *const b[2], void *stream, void **event) {
    if (fl__cuda_captures()) return fl__cuda_no_host("fl_dist");
    void *now = fl__cuda_begin(device);
    if (!now) return false;
    bool ok = true;
    for (int i = 0; i < 2 && ok; i++) ok = !b[i] || fl_buffer_use(b[i], now);
    const char *why = ok ? flk_mark(event, now) : NULL;
    for (int i = 0; i < 2 && ok && !why; i++)
        if (b[i]) b[i]->stream = stream;
    fl__cuda_end();
    return ok && (!why || fl_fail("cuda: %s", why));
}

FL_PRIVATE bool fl__cuda_take_back(fl_buffer *const b[2], void *stream, void *event) {
    bool ok = fl__cuda_begin(flk_device()) != NULL;
    const bool locked = ok;
    for (int i = 0; i < 2 && ok; i++) {
        void *const now = b[i] ? b[i]->stream : NULL;
        if (now) b[i]->stream = stream;
        ok = !now || fl_buffer_use(b[i], now);
    }
    if (locked) fl__cuda_end();
    flk_unmark(event);
    return ok;
}

static fl_buffer *fl__cuda_stage(const fl_backend *self, const char *fn, size_t bytes) {
    if (!fl__cuda_stream(fl__cuda_ordinal(self))) return NULL; /* pinned memory needs an open device */
    const fl_mem_info info = {.device = fl__cuda_pinned(), .op = fn, .lifetime = 1};
    return fl_buffer_new(bytes, &info);
}

/* A mapping: a host copy of the bytes from the first to the last element of a tensor. */
typedef struct fl__cuda_map {
    struct fl__cuda_map *next;
    const fl_tensor *of;
    char *device;
    fl_buffer *host; /* pinned */
    size_t bytes;
} fl__cuda_map;
static fl__cuda_map *fl__cuda_maps;
static pthread_mutex_t fl__cuda_maps_lock = PTHREAD_MUTEX_INITIALIZER;

/* Number of elements before element [0, ...] in memory, and in all, including gaps. */
static void fl__cuda_extent(const fl_tensor *t, int64_t *before, int64_t *all) {
    int64_t low = 0, high = 0;
    for (int i = 0; i < t->ndim; i++) {
        const int64_t step = (t->shape[i] - 1) * t->stride[i];
        if (step < 0) low += step;
        else high += step;
    }
    *before = -low;
    *all = fl_numel(t) ? high - low + 1 : 0;
}

static void *fl__cuda_map_tensor(const fl_backend *self, fl_tensor *t, int access) {
    int64_t before, all;
    const int64_t size = (int64_t)fl_dtype_size(t->dtype);
    if (fl__cuda_captures()) return fl__cuda_no_host("fl_map"), NULL;
    fl__cuda_extent(t, &before, &all);
    if (access & FL_READ && !fl__cuda_sync(self)) return NULL;
    fl__cuda_map *m = fl_heap_alloc(sizeof *m);
    if (!m) return NULL;
    m->of = t;
    m->bytes = (size_t)(all * size);
    m->device = (char *)fl_data(t) - before * size;
    m->host = fl__cuda_stage(self, "map", m->bytes);
    bool ok = m->host != NULL;
    if (ok && access & FL_READ)
        ok = fl__cuda_copy_behind(self, "fl_map", t->buffer, m->host, m->host->ptr, m->device, m->bytes,
                                  true);
    if (!ok) return fl_buffer_drop(m->host), fl_heap_free(m), NULL;
    pthread_mutex_lock(&fl__cuda_maps_lock);
    m->next = fl__cuda_maps;
    fl__cuda_maps = m;
    pthread_mutex_unlock(&fl__cuda_maps_lock);
    return (char *)m->host->ptr + before * size;
}

/* Copies the elements of a view with gaps, without those between them. */
static bool fl__cuda_bring_elements(const fl_backend *self, fl_tensor *t, const fl__cuda_map *m) {
    const fl_call c = {.op = FL_OP_copy};
    flk_pass p;
    if (!fl__cuda_begin(fl__cuda_ordinal(self))) return false;
    fl_buffer *stage = fl__cuda_scratch(&c, m->bytes);
    fl__cuda_end();
    bool ok = stage && fl__cuda_copy_behind(self, "fl_unmap", t->buffer, m->host, stage->ptr, m->host->ptr,
                                            m->bytes, false);
    if (ok && (ok = fl__cuda_begin(fl__cuda_ordinal(self)) != NULL)) {
        fl__cuda_pass(&p, FL_OP_copy, 2, (fl_tensor *[]){t, t}, 0, -1, false);
        p.t[1].p = (char *)stage->ptr + ((char *)fl_data(t) - m->device);
        ok = fl__cuda_started(&c, flk_convert(&p));
        fl__cuda_end();
    }
    fl_buffer_drop(stage);
    return ok;
}

/* Ends the last mapping of t. */
static void fl__cuda_unmap_tensor(const fl_backend *self, fl_tensor *t, int access) {
    pthread_mutex_lock(&fl__cuda_maps_lock);
    fl__cuda_map **at = &fl__cuda_maps, *m;
    while (*at && (*at)->of != t) at = &(*at)->next;
    if ((m = *at)) *at = m->next;
    pthread_mutex_unlock(&fl__cuda_maps_lock);
    if (!m) return;
    if (access & FL_WRITE && m->bytes == (size_t)fl_numel(t) * fl_dtype_size(t->dtype))
        fl__cuda_copy_behind(self, "fl_unmap", t->buffer, m->host, m->device, m->host->ptr, m->bytes, false);
    else if (access & FL_WRITE)
        fl__cuda_bring_elements(self, t, m);
    fl_buffer_drop(m->host);
    fl_heap_free(m);
}

/* Copies between host and device, two devices or within a device, by one copy on self's stream. Small copies
   to the device go through pinned memory, so that nothing waits. */
enum { FL__CUDA_STAGED = 64 << 20 };
static bool fl__cuda_move(const fl_backend *self, fl_tensor *dst, fl_tensor *src) {
    for (int i = 0; i < 2; i++) {
        const fl_tensor *t = i ? src : dst;
        if (!t->buffer || t->buffer->pageable || !t->buffer->ptr || !fl_is_contiguous(t)) return false;
        if (!fl__cuda_has(t->buffer) && !t->buffer->device->host) return false;
    }
    fl_buffer *to = dst->buffer, *from = src->buffer, *stage = NULL;
    const bool there = fl__cuda_has(to);
    if (fl__cuda_captures() && to->device != from->device) return fl__cuda_no_host("fl_to");
    if (!there && !fl__cuda_sync(self)) return false;
    const size_t bytes = (size_t)fl_numel(src) * fl_dtype_size(src->dtype);
    if (fl__cuda_has(from))
        return fl__cuda_copy_behind(self, "fl_to", from, there ? to : NULL, fl_data(dst), fl_data(src), bytes,
                                    !there);
    if (bytes > FL__CUDA_STAGED)
        return fl__cuda_copy_behind(self, "fl_to", to, NULL, fl_data(dst), fl_data(src), bytes, true);
    if (!(stage = fl__cuda_stage(self, "to", bytes))) return false;
    memcpy(stage->ptr, fl_data(src), bytes);
    const bool ok = fl__cuda_copy_behind(self, "fl_to", to, stage, fl_data(dst), stage->ptr, bytes, false);
    fl_buffer_drop(stage);
    return ok;
}

/* ---- passes ---- */

FL_PRIVATE void fl__cuda_operand(flk_operand *o, const fl_tensor *t) {
    o->p = t->weak ? NULL : fl_data(t);
    o->dtype = (int)t->dtype;
    o->f = t->f64;
    o->i = t->i64;
}

FL_PRIVATE void fl__cuda_strided(flk_operand *o, const fl_tensor *t) {
    fl__cuda_operand(o, t);
    memcpy(o->stride, t->stride, sizeof t->stride);
}

/* Adds a dim, outermost first; merges it with the one before if all operands are contiguous across both. */
static void fl__cuda_dim(flk_pass *p, int n, int64_t size, const int64_t *stride) {
    p->n *= size;
    if (size == 1) return;
    bool joins = p->ndim > 0;
    for (int k = 0; joins && k < n; k++) joins = p->t[k].stride[p->ndim - 1] == stride[k] * size;
    const int d = joins ? p->ndim - 1 : p->ndim++;
    p->shape[d] = joins ? p->shape[d] * size : size;
    for (int k = 0; k < n; k++) p->t[k].stride[d] = stride[k];
}

FL_PRIVATE void fl__cuda_pass(flk_pass *p, fl_op op, int n, fl_tensor *const t[], int shaped, int axis,
                              bool as_is) {
    int order[FL_MAX_DIMS];
    memset(p, 0, sizeof *p);
    p->op = op;
    p->n = 1;
    for (int k = 0; k < n; k++) fl__cuda_operand(&p->t[k], t[k]);
    fl_axes_by_stride(t[shaped], order);
    for (int i = 0; i < t[shaped]->ndim; i++) {
        const int d = as_is ? i : order[i];
        int64_t stride[FLK_OPERANDS];
        for (int k = 0; k < n; k++) stride[k] = t[k]->weak ? 0 : t[k]->stride[d];
        if (d != axis) fl__cuda_dim(p, n, t[shaped]->shape[d], stride);
    }
}

FL_PRIVATE void fl__cuda_lines(flk_lines *l, fl_op op, int n, fl_tensor *const t[], int shaped, int axis) {
    fl__cuda_pass(&l->pass, op, n, t, shaped, axis, false);
    l->axis = axis;
    l->length = t[shaped]->shape[axis];
    for (int k = 0; k < n; k++) l->step[k] = t[k]->stride[axis];
}

/* ---- slots ---- */

/* Allocates the outputs, and describes a pass over them and the inputs. */
static bool fl__cuda_elements(flk_pass *p, const fl_call *c) {
    fl_tensor *t[FLK_OPERANDS];
    int n = 0;
    if (!fl__cuda_outputs(c)) return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]) t[n++] = c->out[i];
    for (int i = 0; i < c->n_in; i++) t[n++] = c->in[i];
    fl__cuda_pass(p, c->op, n, t, 0, -1, false);
    return true;
}

/* If all inputs are weak numbers, y decides the dtype of the computation. */
FL_CUDA_SLOT(fl__cuda_formula) {
    fl_dtype d = c->out[0]->dtype;
    const fl_op_class cls = fl_op_get_info(c->op)->cls;
    bool found = false;
    flk_pass p;
    for (int i = c->n_in - 1; i >= 0; i--)
        if (!c->in[i]->weak) d = c->in[i]->dtype, found = true;
    if (!found && cls == FL_CLASS_CMP) d = FL_F64;
    if (!found && cls == FL_CLASS_BOOL) d = FL_B8;
    return fl__cuda_elements(&p, c) && fl__cuda_started(c, flk_formula(&p, FLK_Y, (int)fl_dtype_wide(d)));
}

FL_CUDA_SLOT(fl__cuda_grad) {
    const fl_tensor *da = c->out[0], *db = c->n_out > 1 ? c->out[1] : NULL;
    const int which = da && db ? FLK_DA_DB : da ? FLK_DA : FLK_DB;
    flk_pass p;
    if (!da && !db) return true;
    if (!fl__cuda_elements(&p, c)) return false;
    p.op = ((const fl_grad_args *)c->args)->op;
    return fl__cuda_started(c, flk_formula(&p, which, fl__cuda_wide(da ? da : db)));
}

FL_CUDA_SLOT(fl__cuda_where) {
    flk_pass p;
    return fl__cuda_elements(&p, c) && fl__cuda_started(c, flk_where(&p, fl__cuda_wide(c->out[0])));
}

static bool fl__cuda_fill_with(const fl_call *c, fl_number v) {
    fl_tensor *y = c->out[0];
    uint64_t bits = 0;
    flk_pass p;
    if (!fl_out_make(y)) return false;
    fl_number_store(y->dtype, &bits, v);
    fl__cuda_pass(&p, c->op, 1, &y, 0, -1, false);
    return fl__cuda_started(c, flk_fill(&p, bits));
}

FL_CUDA_SLOT(fl__cuda_fill) {
    const fl_fill_args *a = c->args;
    return fl__cuda_fill_with(c, (fl_number){c->out[0]->dtype != FL_I64, a->f64, a->i64});
}

FL_CUDA_SLOT(fl__cuda_copy_slot) {
    fl_tensor *x = c->in[0];
    flk_pass p;
    if (x->weak) return fl__cuda_fill_with(c, (fl_number){fl_dtype_is_float(x->dtype), x->f64, x->i64});
    return fl__cuda_elements(&p, c) && fl__cuda_started(c, flk_convert(&p));
}

FL_CUDA_SLOT(fl__cuda_iota) {
    fl_tensor *y = c->out[0];
    const fl_iota_args *a = c->args;
    flk_pass p;
    if (!fl_out_make(y)) return false;
    fl__cuda_pass(&p, c->op, 1, &y, 0, -1, true);
    return fl__cuda_started(c, flk_iota(&p, a->f_start, a->f_step, a->i_start, a->i_step));
}

/* In-place updates of tensors with gaps use a contiguous copy. */
FL_CUDA_SLOT(fl__cuda_random) {
    fl_tensor *y = c->out[0];
    const fl_random_args *a = c->args;
    if (!fl_out_make(y)) return false;
    const bool dense = fl_is_contiguous(y);
    fl_tensor *to = dense ? y : fl_out_on(y->backend, fl_shape_of(y), y->dtype);
    if (!to || (!dense && !fl_out_allocate(to))) return false;
    const flk_random_args r = {.y = fl_data(to), .n = fl_numel(to), .dtype = (int)to->dtype,
                               .dist = a->dist == FL_UNIFORM ? 0 : a->dist == FL_NORMAL ? 1 : 2,
                               .a = a->a, .b = a->b, .ia = a->ia, .ib = a->ib, .key = a->rng.key,
                               .counter = a->rng.counter, .word = flk_rng_word()};
    if (!fl__cuda_started(c, flk_random(&r)) || dense) return !fl_error();
    flk_pass p;
    fl__cuda_pass(&p, c->op, 2, (fl_tensor *[]){y, to}, 0, -1, false);
    return fl__cuda_started(c, flk_convert(&p));
}

/* Splits the dims of x into kept and reduced ones, outermost first. */
static void fl__cuda_reduction(flk_reduction *r, fl_tensor *y, fl_tensor *x, uint32_t axes, bool places) {
    flk_pass gone = {.n = 1};
    int order[FL_MAX_DIMS], at[FL_MAX_DIMS], kept = 0;
    fl__cuda_operand(&r->kept.t[0], y);
    fl__cuda_operand(&r->kept.t[1], x);
    fl_axes_by_stride(x, order);
    for (int d = 0; d < x->ndim; d++) {
        at[d] = y->ndim == x->ndim ? d : kept;
        kept += !(axes >> d & 1);
    }
    for (int i = 0; i < x->ndim; i++) {
        const int d = order[i];
        if (axes >> d & 1) continue;
        fl__cuda_dim(&r->kept, 2, x->shape[d], (int64_t[]){y->stride[at[d]], x->stride[d]});
    }
    for (int i = 0; i < x->ndim; i++) {
        const int d = places ? i : order[i];
        if (axes >> d & 1) fl__cuda_dim(&gone, 1, x->shape[d], &x->stride[d]);
    }
    r->n = gone.n;
    r->ndim = gone.ndim;
    memcpy(r->shape, gone.shape, sizeof r->shape);
    memcpy(r->stride, gone.t[0].stride, sizeof r->stride);
    const int last = r->kept.ndim - 1;
    r->inner = last < 0 || (r->ndim && llabs(r->stride[r->ndim - 1]) <= llabs(r->kept.t[1].stride[last]));
}

FL_CUDA_SLOT(fl__cuda_reduce) {
    static const uint8_t kinds[FL_TABLE_OPS] = {
        [FL_OP_sum] = FLK_SUM,   [FL_OP_prod] = FLK_PROD,     [FL_OP_amax] = FLK_AMAX,
        [FL_OP_amin] = FLK_AMIN, [FL_OP_argmax] = FLK_ARGMAX, [FL_OP_argmin] = FLK_ARGMIN};
    fl_tensor *y = c->out[0], *x = c->in[0];
    const fl_dtype wide = fl_dtype_wide(x->dtype);
    const bool places = c->op == FL_OP_argmax || c->op == FL_OP_argmin;
    flk_reduction r = {.kept = {.n = 1, .op = c->op}};
    if (!fl_out_make(y)) return false;
    fl__cuda_reduction(&r, y, x, ((const fl_reduce_args *)c->args)->axes, places);
    const int64_t parts = flk_reduce_parts(&r, kinds[c->op]);
    const size_t bytes = (size_t)(parts * r.kept.n) * fl_dtype_size(wide);
    if (parts > 1 && !(r.part = fl__cuda_work(c, bytes))) return false;
    return fl__cuda_started(c, flk_reduce(&r, kinds[c->op], (int)wide));
}

FL_CUDA_SLOT(fl__cuda_scan) {
    flk_lines l;
    if (!fl_out_make(c->out[0])) return false;
    fl__cuda_lines(&l, c->op, 2, (fl_tensor *[]){c->out[0], c->in[0]}, 1,
                   ((const fl_axis_args *)c->args)->axis);
    return fl__cuda_started(c, flk_scan(&l, c->op == FL_OP_cumprod, (int)c->in[0]->dtype));
}

FL_CUDA_SLOT(fl__cuda_gather) {
    const int axis = ((const fl_axis_args *)c->args)->axis;
    flk_lines l;
    if (!fl_out_make(c->out[0])) return false;
    fl__cuda_lines(&l, c->op, 3, (fl_tensor *[]){c->out[0], c->in[1], c->in[0]}, 0, axis);
    l.size = c->in[0]->shape[axis];
    return fl__cuda_started(c, flk_index(&l, FLK_GATHER, (int)c->out[0]->dtype));
}

FL_PRIVATE fl_buffer *fl__cuda_scratch(const fl_call *c, size_t bytes) {
    const fl_mem_info info = {.device = fl__cuda_device(flk_device()), .op = fl_op_get_info(c->op)->name,
                              .lifetime = 1, .step = fl_mem_step_now(), .stream = flk_stream_in_use()};
    return fl_buffer_new(bytes, &info);
}

FL_PRIVATE void *fl__cuda_work(const fl_call *c, size_t bytes) {
    fl__cuda_slot_work = fl__cuda_scratch(c, bytes + !bytes); /* a pointer even if it is empty */
    return fl__cuda_slot_work ? fl__cuda_slot_work->ptr : NULL;
}

/* Whether all lines along the axis share one index, which is long enough to sort first. */
static bool fl__cuda_shares_index(const fl_call *c, int axis) {
    enum { LONG = 64 };
    const fl_tensor *index = c->in[1];
    const fl_dtype d = c->out[0]->dtype;
    bool shares = c->op == FL_OP_scatter_add && index->shape[axis] >= LONG && d != FL_B8;
    for (int i = 0; i < index->ndim; i++)
        shares &= i == axis || index->stride[i] == 0 || index->shape[i] == 1;
    return shares;
}

FL_CUDA_SLOT(fl__cuda_scatter) {
    const int axis = ((const fl_axis_args *)c->args)->axis;
    fl_tensor *y = c->out[0];
    flk_lines l;
    flk_pass p;
    const bool shares = fl__cuda_shares_index(c, axis);
    if (c->op == FL_OP_scatter_add && fl_is_narrow(y) && !shares) return fl__call_widen(c);
    if (!fl_out_make(y)) return false;
    fl__cuda_pass(&p, c->op, 2, (fl_tensor *[]){y, c->in[0]}, 0, -1, false);
    if (!(y->buffer == c->in[0]->buffer && y->offset == c->in[0]->offset) &&
        !fl__cuda_started(c, flk_convert(&p)))
        return false;
    fl__cuda_lines(&l, c->op, 3, (fl_tensor *[]){y, c->in[1], c->in[2]}, 2, axis);
    l.size = y->shape[axis];
    if (shares) {
        int64_t *work = fl__cuda_work(c, flk_scatter_rows_work(&l));
        return work && fl__cuda_started(c, flk_scatter_rows(&l, fl__cuda_wide(y), work));
    }
    const int kind = c->op == FL_OP_scatter_add ? FLK_SCATTER_ADD : FLK_SCATTER;
    return fl__cuda_started(c, flk_index(&l, kind, (int)y->dtype));
}

FL_CUDA_SLOT(fl__cuda_sort) {
    const fl_sort_args *a = c->args;
    fl_tensor *y = c->out[0], *index = c->out[1], *x = c->in[0];
    flk_lines l;
    size_t bytes;
    if (!fl_out_make(y) || !fl_out_make(index)) return false;
    fl__cuda_lines(&l, c->op, 3, (fl_tensor *[]){y, index, x}, 2, a->axis);
    l.size = y->shape[a->axis];
    if (__builtin_mul_overflow((size_t)fl_numel(x), 2 * sizeof(int64_t), &bytes))
        return fl_fail("fl_sort: shape %s is too large", FL_SHAPE_TEXT(x));
    int64_t *work = fl__cuda_work(c, bytes);
    return work && fl__cuda_started(c, flk_sort(&l, a->descending, (int)x->dtype, work));
}

FL_CUDA_SLOT(fl__cuda_nonzero) {
    fl_tensor *y = c->out[0], *x = c->in[0];
    if (!fl_out_make(y)) return false;
    return fl__cuda_started(c, flk_nonzero(fl_data(x), fl_numel(x), x->ndim, x->shape, fl_data(y)));
}

FL_CUDA_SLOT(fl__cuda_matmul) {
    fl_tensor *t[3] = {c->out[0], c->in[0], c->in[1]};
    const int nd = t[0]->ndim;
    flk_product p = {.batch = {.n = 1, .op = c->op},
                     .m = t[0]->shape[nd - 2], .n = t[0]->shape[nd - 1], .k = t[1]->shape[nd - 1]};
    if (t[0]->dtype != FL_F32 && t[0]->dtype != FL_F64 && t[0]->dtype != FL_I64)
        return fl__cuda_refuses(c, t[0]->dtype);
    if (!fl_out_make(t[0])) return false;
    for (int k = 0; k < 3; k++) {
        fl__cuda_operand(&p.batch.t[k], t[k]);
        p.row[k] = t[k]->stride[nd - 2];
        p.column[k] = t[k]->stride[nd - 1];
    }
    for (int d = 0; d < nd - 2; d++)
        fl__cuda_dim(&p.batch, 3, t[0]->shape[d],
                     (int64_t[]){t[0]->stride[d], t[1]->stride[d], t[2]->stride[d]});
    return fl__cuda_started(c, flk_matmul(&p, (int)t[0]->dtype));
}

/* x, w -> y;  dy, w -> dx;  x, dy -> dw */
FL_CUDA_SLOT(fl__cuda_conv2d) {
    const fl_conv2d_args *a = c->args;
    const bool forward = c->op == FL_OP_conv2d, input = c->op == FL_OP_conv2d_grad_input;
    fl_tensor *out = c->out[0], *y = forward ? out : c->in[!input], *x = input ? out : c->in[0];
    fl_tensor *w = forward || input ? c->in[1] : out;
    flk_conv v = {.groups = a->groups};
    if (out->dtype != FL_F32 && out->dtype != FL_F64) return fl__cuda_refuses(c, out->dtype);
    if (!fl_out_make(out)) return false;
    fl__cuda_strided(&v.y, y);
    fl__cuda_strided(&v.x, x);
    fl__cuda_strided(&v.w, w);
    memcpy(v.shape_y, y->shape, sizeof v.shape_y);
    memcpy(v.shape_x, x->shape, sizeof v.shape_x);
    memcpy(v.shape_w, w->shape, sizeof v.shape_w);
    for (int i = 0; i < 2; i++) {
        v.stride[i] = a->stride[i];
        v.pad[i] = a->pad_lo[i];
        v.dilation[i] = a->dilation[i];
    }
    const int which = forward ? FLK_CONV : input ? FLK_CONV_GRAD_INPUT : FLK_CONV_GRAD_WEIGHT;
    return fl__cuda_started(c, flk_conv2d(&v, which, (int)out->dtype));
}

/* ---- the table ---- */

#define FL__FORMULA_SLOT(line, ...) {FL_OP_##line, fl__cuda_formula, FL_SLOT_NARROW},
static fl_backend *fl__cuda_table(void) {
    static fl_backend table = {.place = fl__cuda_storage,
                               .map = fl__cuda_map_tensor,
                               .unmap = fl__cuda_unmap_tensor,
                               .move = fl__cuda_move,
                               .sync = fl__cuda_sync,
                               .replay = fl__cuda_replay};
    static const struct {
        fl_op op;
        fl_slot slot;
        unsigned flags;
    } slots[] = {FL_UNARY_OPS(FL__FORMULA_SLOT) FL_BINARY_OPS(FL__FORMULA_SLOT) /* and: */
                 {FL_OP_copy, fl__cuda_copy_slot, 0},
                 {FL_OP_fill, fl__cuda_fill, 0},
                 {FL_OP_iota, fl__cuda_iota, 0},
                 {FL_OP_random, fl__cuda_random, 0},
                 {FL_OP_where, fl__cuda_where, FL_SLOT_NARROW},
                 {FL_OP_sum, fl__cuda_reduce, FL_SLOT_NARROW},
                 {FL_OP_prod, fl__cuda_reduce, FL_SLOT_NARROW},
                 {FL_OP_amax, fl__cuda_reduce, FL_SLOT_NARROW},
                 {FL_OP_amin, fl__cuda_reduce, FL_SLOT_NARROW},
                 {FL_OP_argmax, fl__cuda_reduce, FL_SLOT_NARROW},
                 {FL_OP_argmin, fl__cuda_reduce, FL_SLOT_NARROW},
                 {FL_OP_cumsum, fl__cuda_scan, 0},
                 {FL_OP_cumprod, fl__cuda_scan, 0},
                 {FL_OP_gather, fl__cuda_gather, FL_SLOT_NARROW},
                 {FL_OP_scatter_add, fl__cuda_scatter, FL_SLOT_NARROW},
                 {FL_OP_scatter, fl__cuda_scatter, FL_SLOT_NARROW},
                 {FL_OP_sort, fl__cuda_sort, 0},
                 {FL_OP_nonzero, fl__cuda_nonzero, FL_SLOT_CONTIGUOUS},
                 {FL_OP_matmul, fl__cuda_matmul, 0},
                 {FL_OP_conv2d, fl__cuda_conv2d, 0},
                 {FL_OP_conv2d_grad_input, fl__cuda_conv2d, 0},
                 {FL_OP_conv2d_grad_weight, fl__cuda_conv2d, 0},
                 {FL_OP_grad1, fl__cuda_grad, FL_SLOT_NARROW},
                 {FL_OP_grad2, fl__cuda_grad, FL_SLOT_NARROW}};
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        fl_backend_set(&table, slots[i].op, slots[i].slot, slots[i].flags);
    fl__cuda_layers_slots(&table);
    fl__cuda_attention_slots(&table);
    fl__cuda_ctc_slots(&table);
#ifdef FL_CUDA_FFT_H
    fl__cuda_fft_slots(&table);
#endif
#ifdef FL_CUDA_RECURRENT_H
    fl__cuda_recurrent_slots(&table);
#endif
    fl__cuda_step_slots(&table);
    fl__cuda_program_slots(&table);
    fl__cuda_lt_slots(&table); /* these two override our own kernels */
    fl__cuda_dnn_slots(&table);
    return &table;
}
#undef FL__FORMULA_SLOT

/* Called before main. */
FL_API const fl_backend *fl_backend_cuda_of(int device) {
    static fl_backend backend[FLK_DEVICES];
    if (device < 0 || device >= FLK_DEVICES) return NULL;
    if (!backend[0].name) {
        fl__cuda_memory_init();
        fl__cuda_starting_init();
        const fl_backend *table = fl__cuda_table();
        for (int i = 0; i < FLK_DEVICES; i++) {
            backend[i] = *table;
            backend[i].name = fl__cuda_device(i)->name;
            backend[i].user = (void *)(intptr_t)i;
        }
    }
    return &backend[device];
}

FL_API const fl_backend *fl_backend_cuda(void) {
    return fl_backend_cuda_of(0);
}

FL_API bool fl_cuda_set(fl_op op, fl_slot slot, unsigned flags) {
    for (int i = 0; i < FLK_DEVICES; i++) {
        fl_backend b = *fl_backend_at(fl_backend_index(fl__cuda_device(i)->name)); /* with earlier changes */
        if (!fl_backend_set(&b, op, slot, flags) || !fl_backend_use(&b, NULL)) return false;
    }
    return true;
}

#endif
#endif
/* MIT licence: see LICENSE. */
