/* fl/tensor/rng.h - counter-based random generators (Philox 4x32-10): seeding, state */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TENSOR_RNG_H
#define FL_TENSOR_RNG_H

#ifdef __cplusplus
extern "C" {
#endif

/* Seeds the global generator: key `key` (initially 0), counter 0. Thread-safe, but which numbers a thread
   gets depends on the order of calls of all threads: for reproducible results give each thread its own
   fl_rng. */
FL_API void fl_seed(uint64_t key);
/* Reserves random numbers for n elements: returns the state of rng (NULL: the global generator) and advances
   it. */
FL_API fl_rng fl_rng_take(fl_rng *rng, int64_t n);
/* A uniform number in [0, 1), computed on the host; the same as fl_uniform(FL_SCALAR_SHAPE, 0, 1, FL_F32,
   rng). */
FL_API double fl_rng_uniform(fl_rng *rng);
/* State of the global generator, for checkpoints. */
FL_API fl_rng fl_rng_state(void);
/* Restores it. */
FL_API void fl_rng_set_state(fl_rng r);

#ifdef __cplusplus
}
#endif
#endif /* FL_TENSOR_RNG_H */

#if defined(FL_IMPL_ONLY_TENSOR_RNG) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TENSOR_RNG_IMPL
#define FL_TENSOR_RNG_IMPL
#include "../../fl_backend.h"
#include "../../kernels/fl_math.h"

static uint64_t fl__rng_key;

static uint64_t fl__rng_counter;

void fl_seed(uint64_t key) {
    fl_rng_set_state((fl_rng){key, 0});
}

fl_rng fl_rng_state(void) {
    return (fl_rng){__atomic_load_n(&fl__rng_key, __ATOMIC_RELAXED),
                    __atomic_load_n(&fl__rng_counter, __ATOMIC_RELAXED)};
}

void fl_rng_set_state(fl_rng r) {
    __atomic_store_n(&fl__rng_key, r.key, __ATOMIC_RELAXED);
    __atomic_store_n(&fl__rng_counter, r.counter, __ATOMIC_RELAXED);
}

fl_rng fl_rng_take(fl_rng *rng, int64_t n) {
    uint64_t blocks =
        n > 0 ? ((uint64_t)n + 1) / 2 : 0; /* at most two words per element, four per block */
    if (!rng)
        return (fl_rng){__atomic_load_n(&fl__rng_key, __ATOMIC_RELAXED),
                        __atomic_fetch_add(&fl__rng_counter, blocks, __ATOMIC_RELAXED)};
    fl_rng at = *rng;
    rng->counter += blocks;
    return at;
}

double fl_rng_uniform(fl_rng *rng) {
    const fl_rng at = fl_rng_take(rng, 1);
    uint32_t w[4];
    flm_philox(at.key, at.counter, w);
    fl__host_access(NULL, 0);
    return flm_uniform_f32(w[0]);
}
#endif /* FL_TENSOR_RNG_IMPL */
#endif
/* MIT licence: see LICENSE. */
