/* kernels/cpu/gemm/packed_cache.h - cache of packed frozen weights (fl_nn_freeze), attached to their
   buffer */
#ifndef FL_CPU_GEMM_PACKED_CACHE_H
#define FL_CPU_GEMM_PACKED_CACHE_H
#include "../../../fl_tensor.h"
#include "tile.h"

typedef enum fl__packed_cache_kind {
    FL__PACKED_PRODUCT,
    FL__PACKED_WINOGRAD,
    FL__PACKED_DIRECT
} fl__packed_cache_kind;
typedef struct fl__packed_cache {
    char *data;
    bool fresh; /* the caller must fill data before closing */
    /* private */
    fl_buffer *of, *buffer;
    int64_t key[6 + 2 * FL_MAX_DIMS];
} fl__packed_cache;
/* Finds the packed copy of w for that kind of work by the kernels ks, or allocates one of `bytes` bytes.
   Returns false, without an error, if w is not frozen or there is no memory. A fresh entry becomes visible to
   others when it is closed. */
FL_PRIVATE bool fl__packed_cache_open(fl__packed_cache *k, const fl_tensor *w, fl__packed_cache_kind kind,
                                      const fl__kernels *ks, int64_t bytes);
FL_PRIVATE void fl__packed_cache_close(fl__packed_cache *k);
FL_PRIVATE void fl__packed_cache_drop(fl__packed_cache *k); /* instead of close, if it was not filled */
static inline bool fl__packed_cacheable(const fl_tensor *w) { return fl_buffer_is_frozen(w->buffer); }

#endif /* FL_CPU_GEMM_PACKED_CACHE_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_GEMM_PACKED_CACHE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_GEMM_PACKED_CACHE_IMPL
#define FL_CPU_GEMM_PACKED_CACHE_IMPL
#include <string.h>

FL_PRIVATE bool fl__packed_cache_open(fl__packed_cache *k, const fl_tensor *w, fl__packed_cache_kind kind,
                                      const fl__kernels *ks, int64_t bytes) {
    if (!fl__packed_cacheable(w)) return false;
    int64_t head[6] = {kind, (int64_t)(uintptr_t)ks, bytes, (int64_t)w->dtype, w->ndim, w->offset};
    *k = (fl__packed_cache){.of = w->buffer};
    memcpy(k->key, head, sizeof head);
    for (int i = 0; i < w->ndim; i++) k->key[6 + i] = w->shape[i], k->key[6 + FL_MAX_DIMS + i] = w->stride[i];
    k->buffer = fl_buffer_cache_get(k->of, k->key, sizeof k->key);
    k->fresh = !k->buffer;
    if (k->fresh) k->buffer = fl_buffer_new((size_t)bytes, &(fl_mem_info){.op = "freeze"});
    k->data = k->buffer ? fl_buffer_map(k->buffer) : NULL;
    if (k->data) return true;
    if (k->fresh) fl_buffer_drop(k->buffer);
    fl_error_clear();
    return false;
}

FL_PRIVATE void fl__packed_cache_drop(fl__packed_cache *k) {
    fl_buffer_unmap(k->buffer);
    if (k->fresh) fl_buffer_drop(k->buffer);
}

FL_PRIVATE void fl__packed_cache_close(fl__packed_cache *k) {
    fl_buffer_unmap(k->buffer);
    if (k->fresh && !fl_buffer_cache_add(k->of, k->key, sizeof k->key, k->buffer)) fl_error_clear();
}

#endif
#endif
/* MIT licence: see LICENSE. */
