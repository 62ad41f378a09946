/* kernels/cuda/runtime.cu - device, memory, copies and faults: all that touches the CUDA runtime by hand

   Nothing is called before flk_start. An error text lives in its thread's buffer. */
#include "common.cuh"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t flk_lock = PTHREAD_MUTEX_INITIALIZER;
static cudaStream_t flk_the_stream;
static flk_fault *flk_fault_host, *flk_fault_device; /* mapped: one memory, two addresses */
static pid_t flk_pid;                                /* that started; 0: nobody yet */
static thread_local char flk_text[300];
static char flk_broken[300]; /* the first error that no later call survives */

static bool flk_is_sticky(cudaError_t e) {
    return e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure || e == cudaErrorLaunchTimeout ||
           e == cudaErrorMisalignedAddress || e == cudaErrorIllegalInstruction || e == cudaErrorAssert ||
           e == cudaErrorECCUncorrectable;
}

const char *flk_error(cudaError_t e, const char *call) {
    if (e == cudaSuccess) return NULL;
    snprintf(flk_text, sizeof flk_text, "%s: %s (%s)", call, cudaGetErrorString(e), cudaGetErrorName(e));
    cudaGetLastError(); /* else the next launch reports it again */
    if (flk_is_sticky(e) && !*flk_broken) snprintf(flk_broken, sizeof flk_broken, "%s", flk_text);
    return *flk_broken ? flk_broken : flk_text;
}

static const char *(*flk_waiting)(void);     /* atomic */
static thread_local const char *flk_work_why; /* what was wrong with work that waited */

void flk_before_next(const char *(*work)(void)) { __atomic_store_n(&flk_waiting, work, __ATOMIC_RELEASE); }

static const char *flk_run_waiting(void) {
    if (!__atomic_load_n(&flk_waiting, __ATOMIC_ACQUIRE)) return NULL;
    const char *(*work)(void) = __atomic_exchange_n(&flk_waiting, NULL, __ATOMIC_ACQ_REL);
    return work ? work() : NULL;
}

cudaStream_t flk_stream(void) {
    const char *why = flk_run_waiting();
    if (why) flk_work_why = why;
    return flk_the_stream;
}
void *flk_stream_now(void) { return flk_stream(); }
flk_fault *flk_faults(void) { return flk_fault_device; }
const char *flk_started(const char *kernel) {
    const char *why = flk_error(cudaGetLastError(), kernel), *before = flk_work_why;
    flk_work_why = NULL;
    return before ? before : why;
}

static const char *flk_find_device(void) {
    int n = 0, driver = 0;
    const char *why;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver) {
        cudaDriverGetVersion(&driver);
        if (!driver) return "there is no CUDA driver; FL_DEVICE=cpu runs without one";
        snprintf(flk_text, sizeof flk_text, "the driver is of CUDA %d.%d, which is too old for %d.%d; "
                 "FL_DEVICE=cpu runs without one", driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                 CUDART_VERSION % 1000 / 10);
        return flk_text;
    }
    if (e == cudaErrorNoDevice || (e == cudaSuccess && !n))
        return "there is no CUDA device; FL_DEVICE=cpu runs without one";
    if ((why = flk_error(e, "cudaGetDeviceCount")) || (why = flk_error(cudaSetDevice(0), "cudaSetDevice")))
        return why;
    if (!flk_fault_host) {
        if ((why = flk_error(cudaHostAlloc((void **)&flk_fault_host, sizeof *flk_fault_host,
                                           cudaHostAllocMapped), "cudaHostAlloc")))
            return flk_fault_host = NULL, why;
        memset(flk_fault_host, 0, sizeof *flk_fault_host);
    }
    if ((why = flk_error(cudaHostGetDevicePointer((void **)&flk_fault_device, flk_fault_host, 0),
                         "cudaHostGetDevicePointer")))
        return why;
    return flk_error(cudaStreamCreateWithFlags(&flk_the_stream, cudaStreamNonBlocking),
                     "cudaStreamCreateWithFlags");
}

const char *flk_start(void) {
    const pid_t by = __atomic_load_n(&flk_pid, __ATOMIC_ACQUIRE);
#ifdef FL_CUDA_EMU /* whose memory a child has too, which test programs use */
    const bool forked = by && by != getpid() && getenv("CUDA_EMU_FORK");
#else
    const bool forked = by && by != getpid();
#endif
    if (forked) return "this process was forked after its parent used the device; use exec";
    if (*flk_broken) return flk_broken;
    if (by) return NULL;
    pthread_mutex_lock(&flk_lock);
    const char *why = flk_pid ? NULL : flk_find_device();
    if (!why) __atomic_store_n(&flk_pid, getpid(), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&flk_lock);
    return why;
}

const char *flk_get(void **p, size_t bytes) { return flk_error(cudaMalloc(p, bytes), "cudaMalloc"); }
const char *flk_put(void *p) {
    const char *why = flk_run_waiting(), *mine = flk_error(cudaFree(p), "cudaFree");
    return why ? why : mine;
}
const char *flk_host_get(void **p, size_t bytes) {
    return flk_error(cudaHostAlloc(p, bytes, cudaHostAllocDefault), "cudaHostAlloc");
}
const char *flk_host_put(void *p) { return flk_error(cudaFreeHost(p), "cudaFreeHost"); }

/* cudaMemcpyDefault tells by the addresses which side is whose. Pageable memory is read before it returns,
   pinned memory later: so it waits, but for a copy within the device. */
const char *flk_copy(void *dst, const void *src, size_t bytes) {
    if (!bytes) return NULL;
    cudaPointerAttributes a, b;
    const char *why = flk_run_waiting();
    if (why) return why;
    why = flk_error(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, flk_the_stream),
                                "cudaMemcpyAsync");
    if (why) return why;
    const bool within = cudaPointerGetAttributes(&a, dst) == cudaSuccess && a.type == cudaMemoryTypeDevice &&
                        cudaPointerGetAttributes(&b, src) == cudaSuccess && b.type == cudaMemoryTypeDevice;
    return within ? NULL : flk_sync();
}

const char *flk_zero(void *p, size_t bytes) {
    return flk_error(cudaMemsetAsync(p, 0, bytes, flk_stream()), "cudaMemsetAsync");
}

const char *flk_sync(void) {
    const char *why = flk_run_waiting();
    if (why) return why;
    return flk_error(cudaStreamSynchronize(flk_the_stream), "cudaStreamSynchronize");
}

size_t flk_limit(void) {
    size_t left = 0, all = 0;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? all : 0;
}

flk_fault flk_take_fault(void) {
    flk_fault f = {};
    if (!flk_fault_host || !flk_fault_host->op) return f;
    f = *flk_fault_host;
    flk_fault_host->op = 0;
    return f;
}
/* MIT licence: see LICENSE. */
