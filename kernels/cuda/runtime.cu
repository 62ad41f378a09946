/* kernels/cuda/runtime.cu - device, memory, streams, copies, graphs and faults: all that touches the CUDA
   runtime by hand

   Nothing is called before flk_start. An error text lives in its thread's buffer. */
#include "common.cuh"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t flk_lock = PTHREAD_MUTEX_INITIALIZER;
static cudaStream_t flk_streams[FLK_STREAMS]; /* made when they are first used */
static thread_local cudaStream_t flk_current; /* of this thread; NULL: number 0 */
static thread_local const uint64_t *flk_captured_word; /* of the graph that is captured here; NULL: none is */
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
    return flk_current ? flk_current : flk_streams[0];
}
void *flk_stream_now(void) { return flk_stream(); }
void *flk_stream_in_use(void) { return flk_current ? flk_current : flk_streams[0]; }
const uint64_t *flk_rng_word(void) { return flk_captured_word; }
flk_fault *flk_faults(void) { return flk_fault_device; }
const char *flk_started(const char *kernel) {
    const char *why = flk_error(cudaGetLastError(), kernel), *before = flk_work_why;
    flk_work_why = NULL;
    return before ? before : why;
}

static const char *flk_make_stream(int n) {
    cudaStream_t s = NULL;
    const char *why =
        flk_error(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    if (!why) __atomic_store_n(&flk_streams[n], s, __ATOMIC_RELEASE);
    return why;
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
    return flk_make_stream(0);
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

/* ---- streams ---- */

const char *flk_use_stream(int n, void **stream) {
    const char *why = flk_start();
    if (why) return why;
    if (n && !__atomic_load_n(&flk_streams[n], __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&flk_lock);
        if (!flk_streams[n]) why = flk_make_stream(n);
        pthread_mutex_unlock(&flk_lock);
    }
    if (!why) *stream = flk_current = __atomic_load_n(&flk_streams[n], __ATOMIC_ACQUIRE);
    return why;
}
void *flk_swap_stream(void *stream) {
    void *was = flk_current;
    flk_current = (cudaStream_t)stream;
    return was;
}

const char *flk_mark(void **event, void *stream) {
    const char *why = flk_run_waiting();
    if (!why && !*event)
        why = flk_error(cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming),
                        "cudaEventCreateWithFlags");
    return why ? why
               : flk_error(cudaEventRecord((cudaEvent_t)*event, (cudaStream_t)stream), "cudaEventRecord");
}
const char *flk_wait(void *stream, void *event) {
    if (!stream) return flk_error(cudaEventSynchronize((cudaEvent_t)event), "cudaEventSynchronize");
    return flk_error(cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0), "cudaStreamWaitEvent");
}
void flk_unmark(void *event) {
    if (event) cudaEventDestroy((cudaEvent_t)event);
}

/* ---- memory ---- */

/* What the host may not do while this thread captures a graph: the driver would refuse both. */
static const char *flk_refuse_capture(const char *what) {
    if (!flk_captured_word) return NULL;
    snprintf(flk_text, sizeof flk_text, "%s while a graph is captured", what);
    return flk_text;
}

const char *flk_get(void **p, size_t bytes) {
    const char *why = flk_refuse_capture("memory of the device is asked for");
    return why ? why : flk_error(cudaMalloc(p, bytes), "cudaMalloc");
}
const char *flk_put(void *p) {
    const char *why = flk_run_waiting(), *mine = flk_error(cudaFree(p), "cudaFree");
    return why ? why : mine;
}
const char *flk_host_get(void **p, size_t bytes) {
    const char *why = flk_refuse_capture("the host reads or writes");
    return why ? why : flk_error(cudaHostAlloc(p, bytes, cudaHostAllocDefault), "cudaHostAlloc");
}
const char *flk_host_put(void *p) { return flk_error(cudaFreeHost(p), "cudaFreeHost"); }

/* cudaMemcpyDefault tells by the addresses which side is whose. */
const char *flk_copy_later(void *dst, const void *src, size_t bytes) {
    if (!bytes) return NULL;
    const cudaStream_t s = flk_stream();
    const char *why = flk_work_why;
    flk_work_why = NULL;
    return why ? why : flk_error(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s), "cudaMemcpyAsync");
}

/* Pageable memory is read before it returns, pinned memory later: so it waits, but for a copy within the
   device. */
const char *flk_copy(void *dst, const void *src, size_t bytes) {
    cudaPointerAttributes a, b;
    const bool within = !bytes || (cudaPointerGetAttributes(&a, dst) == cudaSuccess &&
                                   a.type == cudaMemoryTypeDevice &&
                                   cudaPointerGetAttributes(&b, src) == cudaSuccess &&
                                   b.type == cudaMemoryTypeDevice);
    const char *why = within ? NULL : flk_refuse_capture("the host reads or writes");
    if (!why) why = flk_copy_later(dst, src, bytes);
    return why || within ? why : flk_sync_stream();
}

const char *flk_sync_stream(void) {
    const char *why = flk_run_waiting();
    return why ? why : flk_error(cudaStreamSynchronize(flk_stream()), "cudaStreamSynchronize");
}

const char *flk_zero(void *p, size_t bytes) {
    return flk_error(cudaMemsetAsync(p, 0, bytes, flk_stream()), "cudaMemsetAsync");
}

const char *flk_sync(void) {
    const char *why = flk_run_waiting();
    if (!why) why = flk_refuse_capture("the host waits");
    for (int i = 0; i < FLK_STREAMS && !why; i++) {
        const cudaStream_t s = __atomic_load_n(&flk_streams[i], __ATOMIC_ACQUIRE);
        if (s) why = flk_error(cudaStreamSynchronize(s), "cudaStreamSynchronize");
    }
    return why;
}

/* ---- graphs ---- */

__global__ void flk_set_word(uint64_t *word, uint64_t value) { *word = value; }

const char *flk_capture(void *stream, const uint64_t *word) {
    const char *why = flk_run_waiting();
    if (!why)
        why = flk_error(cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal),
                        "cudaStreamBeginCapture");
    if (!why) flk_captured_word = word;
    return why;
}

/* Ends the capture, whatever it returns. */
const char *flk_captured(void *stream, void **graph) {
    cudaGraph_t g = NULL;
    const char *before = flk_run_waiting();
    flk_captured_word = NULL;
    const char *why = flk_error(cudaStreamEndCapture((cudaStream_t)stream, &g), "cudaStreamEndCapture");
    if (!why && !before)
        why = flk_error(cudaGraphInstantiate((cudaGraphExec_t *)graph, g, 0), "cudaGraphInstantiate");
    if (g) cudaGraphDestroy(g);
    return before ? before : why;
}

const char *flk_replay(void *graph, uint64_t *word, uint64_t value) {
    const char *why = FLK_LAUNCH(flk_set_word, 1, 1, word, value);
    return why ? why : flk_error(cudaGraphLaunch((cudaGraphExec_t)graph, flk_stream()), "cudaGraphLaunch");
}
void flk_graph_put(void *graph) {
    if (graph) cudaGraphExecDestroy((cudaGraphExec_t)graph);
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
