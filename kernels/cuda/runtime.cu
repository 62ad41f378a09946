/* kernels/cuda/runtime.cu - wrappers of the CUDA runtime: devices, memory, streams, copies, graphs, faults

   No function may be called before flk_start. Memory, streams and events are created on the thread's current
   device; later calls for a stream use its own device. Error texts are in a thread-local buffer. */
#include "common.cuh"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct flk_event {
    cudaEvent_t event;
    int device;
    flk_event *next; /* list of unused events */
};
static struct {
    bool started;                      /* atomic */
    cudaStream_t stream[FLK_STREAMS];  /* created on first use; atomic */
    flk_fault *fault_host, *fault;     /* in mapped memory, and in the device's */
    flk_event *spare;                  /* unused events; under the lock, like n_spare */
    int n_spare;
} flk_devices[FLK_DEVICES];
static pthread_mutex_t flk_lock = PTHREAD_MUTEX_INITIALIZER;
static int flk_present;                /* devices; atomic */
static thread_local int flk_used = -1; /* this thread's current device */
static thread_local cudaStream_t flk_current; /* its current stream; NULL: number 0 */
static thread_local const uint64_t *flk_captured_word; /* of the graph being captured; or NULL */
static pid_t flk_pid;                                /* the process that started CUDA; 0: none yet */
static thread_local char flk_text[300];
static const char *flk_broken; /* atomic: the first unrecoverable error */

static bool flk_is_sticky(cudaError_t e) {
    return e == cudaErrorIllegalAddress || e == cudaErrorLaunchFailure || e == cudaErrorLaunchTimeout ||
           e == cudaErrorMisalignedAddress || e == cudaErrorIllegalInstruction || e == cudaErrorAssert ||
           e == cudaErrorECCUncorrectable;
}

/* Calls a function of the runtime: NULL, or the error. */
#define FLK_CALL(function, ...) flk_error(function(__VA_ARGS__), #function)
const char *flk_error(cudaError_t e, const char *call) {
    if (e == cudaSuccess) return NULL;
    snprintf(flk_text, sizeof flk_text, "%s: %s (%s)", call, cudaGetErrorString(e), cudaGetErrorName(e));
    cudaGetLastError(); /* clears it: the next launch would report it again */
    static char first[sizeof flk_text + 50];
    static bool broke;
    if (flk_is_sticky(e) && !__atomic_exchange_n(&broke, true, __ATOMIC_ACQ_REL)) {
        snprintf(first, sizeof first, "%s%s", flk_text,
                 getenv("CUDA_LAUNCH_BLOCKING") ? "" : "; CUDA_LAUNCH_BLOCKING=1 names the kernel");
        __atomic_store_n(&flk_broken, (const char *)first, __ATOMIC_RELEASE);
    }
    const char *broken = __atomic_load_n(&flk_broken, __ATOMIC_ACQUIRE);
    return broken ? broken : flk_text;
}

static const char *(*flk_waiting)(void);     /* atomic */
static thread_local bool flk_runs_waiting;    /* what this thread starts is that work */
static thread_local const char *flk_work_why; /* error of queued work */

void flk_before_next(const char *(*work)(void)) { __atomic_store_n(&flk_waiting, work, __ATOMIC_RELEASE); }

const char *flk_run(const char *(*work)(void)) {
    flk_runs_waiting = true;
    const char *why = work();
    flk_runs_waiting = false;
    return why;
}

static const char *flk_run_waiting(void) {
    const char *(*work)(void) = flk_runs_waiting ? NULL : __atomic_load_n(&flk_waiting, __ATOMIC_ACQUIRE);
    return work ? work() : NULL;
}

int flk_device(void) { return flk_used < 0 ? 0 : flk_used; }
void *flk_stream_in_use(void) { return flk_current ? flk_current : flk_devices[flk_device()].stream[0]; }
cudaStream_t flk_stream(void) {
    const char *why = flk_run_waiting();
    if (why) flk_work_why = why;
    return (cudaStream_t)flk_stream_in_use();
}
void *flk_stream_now(void) { return flk_stream(); }
const uint64_t *flk_rng_word(void) { return flk_captured_word; }
flk_fault *flk_faults(void) { return flk_devices[flk_device()].fault; }
const char *flk_launched(int error, const char *what) {
    const char *why = flk_error((cudaError_t)error, what), *before = flk_work_why;
    flk_work_why = NULL;
    return before ? before : why;
}
const char *flk_started(const char *kernel) { return flk_launched(cudaGetLastError(), kernel); }

/* ---- devices ---- */

/* With several devices, code beside fl may have changed the current one. */
static const char *flk_use(int device) {
    if (device == flk_used && __atomic_load_n(&flk_present, __ATOMIC_RELAXED) < 2) return NULL;
    const char *why = FLK_CALL(cudaSetDevice, device);
    if (!why && device != flk_used) flk_used = device, flk_current = NULL;
    return why;
}

static const char *flk_make_stream(int n) {
    cudaStream_t s = NULL;
    const char *why = FLK_CALL(cudaStreamCreateWithFlags, &s, cudaStreamNonBlocking);
    if (!why) __atomic_store_n(&flk_devices[flk_used].stream[n], s, __ATOMIC_RELEASE);
    return why;
}

static const char *flk_find_driver(int device) {
    int n = 0, driver = 0;
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
    if (e == cudaSuccess) __atomic_store_n(&flk_present, n, __ATOMIC_RELAXED);
    if (e != cudaSuccess || device < n) return flk_error(e, "cudaGetDeviceCount");
    snprintf(flk_text, sizeof flk_text, "there is no CUDA device %d: they are %d, counted from 0; "
             "FL_DEVICE=cpu runs without one", device, n);
    return flk_text;
}

#ifndef FLK_ARCHS
#define FLK_ARCHS "?" /* -DFLK_ARCHS='"80 90"': what the kernels are compiled for, as the Makefile says */
#endif
static __global__ void flk_any_kernel() {}

/* Checks that the kernels were compiled for this device. */
static const char *flk_built_for(int device) {
    cudaFuncAttributes a;
    cudaDeviceProp p = {};
    const cudaError_t e = cudaFuncGetAttributes(&a, flk_any_kernel);
    if (e != cudaErrorNoKernelImageForDevice) return flk_error(e, "cudaFuncGetAttributes");
    cudaGetLastError();
    cudaGetDeviceProperties(&p, device);
    const bool dropped = p.major * 10 + p.minor < 75; /* by CUDA 13, as V100 */
    snprintf(flk_text, sizeof flk_text,
             "the kernels were built for sm_" FLK_ARCHS ", device %d is sm_%d%d (%.80s): "
             "make CUDA=1 CUDA_ARCH=%d%d%s; FL_DEVICE=cpu runs without it",
             device, p.major, p.minor, p.name, p.major, p.minor, dropped ? " (by nvcc 12: 13 cannot)" : "");
    return flk_text;
}

static const char *flk_find_device(int device) {
    auto *d = &flk_devices[device];
    flk_fault none = {}, *host = NULL;
    const char *why = flk_find_driver(device);
    if (!why) why = flk_use(device);
    if (!why) why = flk_built_for(device);
    if (!why && !d->fault_host) {
        why = FLK_CALL(cudaHostAlloc, (void **)&host, sizeof *host, cudaHostAllocMapped);
        if (!why) d->fault_host = (flk_fault *)memset(host, 0, sizeof *host);
    }
    if (!why) why = FLK_CALL(cudaHostGetDevicePointer, (void **)&none.host, d->fault_host, 0);
    if (!why && !d->fault) why = FLK_CALL(cudaMalloc, (void **)&d->fault, sizeof none);
    if (!why && !d->stream[0]) why = flk_make_stream(0);
    if (!why)
        why = FLK_CALL(cudaMemcpyAsync, d->fault, &none, sizeof none, cudaMemcpyDefault, d->stream[0]);
    return why ? why : FLK_CALL(cudaStreamSynchronize, d->stream[0]);
}

const char *flk_start(int device) {
    const pid_t by = __atomic_load_n(&flk_pid, __ATOMIC_ACQUIRE);
#ifdef FL_CUDA_EMU /* its memory also exists in a child, which test programs use */
    const bool forked = by && by != getpid() && getenv("CUDA_EMU_FORK");
#else
    const bool forked = by && by != getpid();
#endif
    if (forked) return "this process was forked after its parent used the device; use exec";
    const char *why = __atomic_load_n(&flk_broken, __ATOMIC_ACQUIRE);
    bool *started = &flk_devices[device].started;
    if (why) return why;
    if (__atomic_load_n(started, __ATOMIC_ACQUIRE)) return flk_use(device);
    pthread_mutex_lock(&flk_lock);
    if (!*started && !(why = flk_find_device(device))) {
        __atomic_store_n(&flk_pid, getpid(), __ATOMIC_RELEASE);
        __atomic_store_n(started, true, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&flk_lock);
    return why ? why : flk_use(device);
}

/* ---- streams ---- */

const char *flk_use_stream(int device, int n, void **stream) {
    const char *why = flk_start(device);
    if (why) return why;
    cudaStream_t *s = &flk_devices[device].stream[n];
    if (n && !__atomic_load_n(s, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&flk_lock);
        if (!*s) why = flk_make_stream(n);
        pthread_mutex_unlock(&flk_lock);
    }
    if (!why) *stream = flk_current = __atomic_load_n(s, __ATOMIC_ACQUIRE);
    return why;
}

static int flk_device_of(void *stream) {
    for (int d = 0; d < FLK_DEVICES; d++)
        for (int i = 0; i < FLK_STREAMS && __atomic_load_n(&flk_devices[d].started, __ATOMIC_ACQUIRE); i++)
            if (__atomic_load_n(&flk_devices[d].stream[i], __ATOMIC_ACQUIRE) == stream) return d;
    return flk_device();
}

/* If the device cannot be used, the error is reported by the next work. */
void *flk_swap_stream(void *stream) {
    void *was = flk_stream_in_use();
    if (stream == was || !stream) return was;
    const char *why = flk_use(flk_device_of(stream));
    if (why) flk_work_why = why;
    else flk_current = (cudaStream_t)stream;
    return was;
}

static const char *flk_event_take(flk_event **event, int device) {
    flk_event *e;
    pthread_mutex_lock(&flk_lock);
    if ((e = flk_devices[device].spare)) flk_devices[device].spare = e->next, flk_devices[device].n_spare--;
    pthread_mutex_unlock(&flk_lock);
    if ((*event = e)) return NULL;
    if (!(e = (flk_event *)calloc(1, sizeof *e))) return "out of memory for an event";
    void *const now = flk_stream_in_use();
    const int was = flk_used;
    const char *why = flk_use(e->device = device);
    if (!why) why = FLK_CALL(cudaEventCreateWithFlags, &e->event, cudaEventDisableTiming);
    if (was >= 0 && !flk_use(was)) flk_current = (cudaStream_t)now;
    if (why) return free(e), why;
    *event = e;
    return NULL;
}

const char *flk_mark(void **event, void *stream) {
    flk_event *e = NULL;
    const char *why = flk_run_waiting();
    if (!why) why = flk_event_take(&e, flk_device_of(stream));
    if (why) return why;
    cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
    pthread_mutex_lock(&flk_lock); /* no capture begins */
    why = FLK_CALL(cudaStreamIsCapturing, (cudaStream_t)stream, &captured);
    const bool records = !why && captured == cudaStreamCaptureStatusNone;
    if (records) why = FLK_CALL(cudaEventRecord, e->event, (cudaStream_t)stream);
    pthread_mutex_unlock(&flk_lock);
    if (records && !why) *event = e;
    else flk_unmark(e);
    return why;
}
const char *flk_wait(void *stream, void *event) {
    if (!event) return NULL;
    const cudaEvent_t e = ((flk_event *)event)->event;
    if (!stream) return FLK_CALL(cudaEventSynchronize, e);
    return FLK_CALL(cudaStreamWaitEvent, (cudaStream_t)stream, e, 0);
}
int flk_waits(void *event) {
    const cudaError_t e = event ? cudaEventQuery(((flk_event *)event)->event) : cudaSuccess;
    if (e != cudaSuccess) cudaGetLastError(); /* or the next launch reports it */
    return e == cudaErrorNotReady;
}
void flk_unmark(void *event) {
    enum { SPARE = 64 };
    flk_event *e = (flk_event *)event;
    if (!e) return;
    pthread_mutex_lock(&flk_lock);
    auto *d = &flk_devices[e->device];
    const bool room = d->n_spare < SPARE;
    if (room) e->next = d->spare, d->spare = e, d->n_spare++;
    pthread_mutex_unlock(&flk_lock);
    if (room) return;
    cudaEventDestroy(e->event);
    free(e);
}

/* ---- memory ---- */

/* Errors for calls that are not allowed during capture: the driver would reject both. */
static const char *flk_refuse_capture(const char *what) {
    if (!flk_captured_word) return NULL;
    snprintf(flk_text, sizeof flk_text, "%s while a graph is captured", what);
    return flk_text;
}

const char *flk_get(void **p, size_t bytes) {
    const char *why = flk_refuse_capture("device memory cannot be allocated");
    return why ? why : FLK_CALL(cudaMalloc, p, bytes);
}
const char *flk_put(void *p) { return FLK_CALL(cudaFree, p); }
const char *flk_host_get(void **p, size_t bytes) {
    const char *why = flk_refuse_capture("the host cannot read or write");
    return why ? why : FLK_CALL(cudaHostAlloc, p, bytes, cudaHostAllocPortable);
}
const char *flk_host_put(void *p) { return FLK_CALL(cudaFreeHost, p); }

/* cudaMemcpyDefault infers the direction from the addresses, also between two devices. */
const char *flk_copy_later(void *dst, const void *src, size_t bytes) {
    if (!bytes) return NULL;
    const cudaStream_t s = flk_stream();
    const char *why = flk_launched(cudaSuccess, NULL);
    return why ? why : FLK_CALL(cudaMemcpyAsync, dst, src, bytes, cudaMemcpyDefault, s);
}

/* Pageable memory is copied before the call returns, pinned memory later: so it waits, except for copies
   within a device. */
const char *flk_copy(void *dst, const void *src, size_t bytes) {
    cudaPointerAttributes a, b;
    const bool within = !bytes || (cudaPointerGetAttributes(&a, dst) == cudaSuccess &&
                                   a.type == cudaMemoryTypeDevice &&
                                   cudaPointerGetAttributes(&b, src) == cudaSuccess &&
                                   b.type == cudaMemoryTypeDevice);
    const char *why = within ? NULL : flk_refuse_capture("the host cannot read or write");
    if (!why) why = flk_copy_later(dst, src, bytes);
    return why || within ? why : flk_sync_stream();
}

const char *flk_sync_stream(void) {
    const char *why = flk_run_waiting();
    return why ? why : FLK_CALL(cudaStreamSynchronize, flk_stream());
}

const char *flk_zero(void *p, size_t bytes) {
    return FLK_CALL(cudaMemsetAsync, p, 0, bytes, flk_stream());
}

/* By events, which flk_mark does not record on a stream that another thread captures: its work has ended, and
   waiting for it would be an error, and end its capture. */
const char *flk_sync(int device) {
    const char *why = flk_run_waiting();
    if (!why) why = flk_refuse_capture("the host cannot wait");
    for (int i = 0; i < FLK_STREAMS && !why; i++) {
        void *event = NULL, *s = __atomic_load_n(&flk_devices[device].stream[i], __ATOMIC_ACQUIRE);
        if (s) why = flk_mark(&event, s);
        if (!why) why = flk_wait(NULL, event);
        flk_unmark(event);
    }
    return why;
}
const char *flk_sync_all(void) {
    const char *why = NULL;
    for (int d = 0; d < FLK_DEVICES && !why; d++)
        if (__atomic_load_n(&flk_devices[d].started, __ATOMIC_ACQUIRE)) why = flk_sync(d);
    return why;
}

/* ---- graphs ---- */

__global__ void flk_set_word(uint64_t *word, uint64_t value) { *word = value; }

const char *flk_capture(void *stream, const uint64_t *word) {
    const char *why = flk_run_waiting();
    pthread_mutex_lock(&flk_lock);
    if (!why) why = FLK_CALL(cudaStreamBeginCapture, (cudaStream_t)stream, cudaStreamCaptureModeThreadLocal);
    pthread_mutex_unlock(&flk_lock);
    if (!why) flk_captured_word = word;
    return why;
}

/* Always ends the capture. */
const char *flk_captured(void *stream, void **graph) {
    cudaGraph_t g = NULL;
    const char *before = flk_run_waiting();
    flk_captured_word = NULL;
    const char *why = FLK_CALL(cudaStreamEndCapture, (cudaStream_t)stream, &g);
    if (!why && !before) why = FLK_CALL(cudaGraphInstantiate, (cudaGraphExec_t *)graph, g, 0);
    if (g) cudaGraphDestroy(g);
    return before ? before : why;
}

const char *flk_replay(void *graph, uint64_t *word, uint64_t value) {
    const char *why = FLK_LAUNCH(flk_set_word, 1, 1, word, value);
    return why ? why : FLK_CALL(cudaGraphLaunch, (cudaGraphExec_t)graph, flk_stream());
}
void flk_graph_put(void *graph) {
    if (graph) cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

/* ---- programs ---- */

int flk_architecture(void) {
    cudaDeviceProp p = {};
    return cudaGetDeviceProperties(&p, flk_device()) == cudaSuccess ? p.major * 10 + p.minor : 0;
}

const char *flk_kernel_load(void **kernel, const void *code, const char *name) {
    cudaLibrary_t library = NULL;
    cudaKernel_t k = NULL;
    const char *why = FLK_CALL(cudaLibraryLoadData, &library, code, NULL, NULL, 0, NULL, NULL, 0);
    if (why) return why;
    if ((why = FLK_CALL(cudaLibraryGetKernel, &k, library, name))) cudaLibraryUnload(library);
    *kernel = (void *)k;
    return why;
}

const char *flk_kernel_launch(void *kernel, int64_t blocks, int threads, void **args) {
    const cudaStream_t stream = flk_stream();
    const dim3 grid((unsigned)blocks), block((unsigned)threads);
    return flk_launched(cudaLaunchKernel(kernel, grid, block, args, 0, stream), "a launch");
}

const char *flk_program_run(void *kernel, const flk_program *p) {
    void *args[] = {(void *)p};
    return p->n ? flk_kernel_launch(kernel, flk_blocks(p->n), FLK_BLOCK, args) : NULL;
}

size_t flk_limit(void) {
    size_t left = 0, all = 0;
    return cudaMemGetInfo(&left, &all) == cudaSuccess ? all : 0;
}

uint64_t flk_model(void) {
    cudaDeviceProp p;
    uint64_t model = 1;
    if (cudaGetDeviceProperties(&p, flk_device()) != cudaSuccess) return 0;
    for (const char *s = p.name; *s; s++) model = model * 31 + (unsigned char)*s;
    return model * 1000 + (uint64_t)p.multiProcessorCount;
}

flk_fault flk_take_fault(int device) {
    auto *d = &flk_devices[device];
    flk_fault f = {}, *at = d->fault_host;
    if (!__atomic_load_n(&d->started, __ATOMIC_ACQUIRE)) return f;
    pthread_mutex_lock(&flk_lock);
    if (__atomic_load_n(&at->op, __ATOMIC_ACQUIRE)) {
        f = *at;
        __atomic_store_n(&at->op, 0, __ATOMIC_RELEASE);
        if (!flk_use(device) && !cudaMemsetAsync(d->fault, 0, sizeof(int), d->stream[0]))
            cudaStreamSynchronize(d->stream[0]); /* before other streams' kernels */
        cudaGetLastError();
    }
    pthread_mutex_unlock(&flk_lock);
    return f;
}
/* MIT licence: see LICENSE. */
