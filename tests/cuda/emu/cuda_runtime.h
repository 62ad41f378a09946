/* tests/cuda/emu/cuda_runtime.h - CUDA for g++: as much of it as kernels/cuda uses, on the processor

   What it checks that a GPU would not tell:
     - Work runs late: launches, and copies between device and pinned memory, wait in their stream's queue
       until somebody must wait for them, or for some others. Which stream goes on is drawn from a seed, so
       the host and other streams may count on nothing that no event or wait promises.
     - While a stream is captured no call that waits, allocates or frees is allowed, nor a wait for what was
       not captured: it fails, and so does the capture, as on a device.
     - Device memory cannot be read or written by the host but in kernels and copies: it crashes. So does a
       kernel that reads or writes another device's.
     - A kernel starts, and an event is recorded, on streams of their own device alone.
     - The threads of a block run in a drawn order, each until it ends or meets a barrier; the blocks from a
       drawn one on, back or forth. A barrier that some threads never reach, and one of a warp that meets one
       of the block, break the device.
     - Any runtime call can be made to fail: cuda_emu_fail_in(n), the n-th from now; cuda_emu_break(): with an
       error that no later call survives. cuda_emu_launches() counts, those of a graph as one;
       cuda_emu_waiting(): pieces of work that have not run. cuda_emu_drop_waits(true): streams do not wait
       for events, which a test of the tests wants.
   Environment: CUDA_EMU_SEED=n; CUDA_EMU_DEVICES: 2 if it is not set; 0: no device, -1: no driver, or with
   CUDA_EMU_DRIVER=11040 one that is too old; CUDA_EMU_OTHER: devices of another architecture than the
   kernels'; CUDA_EMU_MAJOR: their compute capability; CUDA_EMU_NO_BARRIERS: kernels wait for nothing, which
   a test of the tests wants; CUDA_LAUNCH_BLOCKING: a launch returns when its kernel has run.

   Blocks and grids have one dimension. Blocks run one after the other, so races between them do not show;
   nor do times, registers, memory that is not coalesced, and what the compilers do differently. */
#ifndef FL_CUDA_EMU_RUNTIME_H
#define FL_CUDA_EMU_RUNTIME_H

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define CUDART_VERSION 13000

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define EMU_ERRORS(X) \
    X(InvalidValue, 1) X(MemoryAllocation, 2) X(InsufficientDriver, 35) X(NoDevice, 100) \
    X(InvalidDevice, 101) X(NoKernelImageForDevice, 209) X(ECCUncorrectable, 214) \
    X(InvalidResourceHandle, 400) X(NotReady, 600) X(IllegalAddress, 700) X(LaunchTimeout, 702) \
    X(Assert, 710) \
    X(IllegalInstruction, 715) X(MisalignedAddress, 716) X(LaunchFailure, 719) \
    X(StreamCaptureUnsupported, 900) X(StreamCaptureInvalidated, 901) X(StreamCaptureIsolation, 905) \
    X(Unknown, 999)
enum cudaError_t {
#define EMU_ERROR(name, number) cudaError##name = number,
    EMU_ERRORS(EMU_ERROR) cudaSuccess = 0
#undef EMU_ERROR
};
enum cudaMemcpyKind { cudaMemcpyDefault };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
enum { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone };
struct cudaDeviceProp {
    char name[256];
    int multiProcessorCount, major, minor;
};
struct cudaFuncAttributes {
    int numRegs;
};
struct cudaPointerAttributes {
    cudaMemoryType type;
};
typedef struct emu_stream *cudaStream_t;
typedef struct emu_event *cudaEvent_t;
typedef struct emu_graph *cudaGraph_t, *cudaGraphExec_t;

struct emu_graph {
    std::vector<std::function<void()>> work;
};
struct emu_event {
    std::shared_ptr<bool> done; /* what it was recorded behind last; none: never recorded */
    emu_graph *captured;        /* in which it was */
    int device;
};
struct emu_stream {
    struct item {
        std::function<void()> run;
        std::shared_ptr<bool> until; /* not before this */
        unsigned reach;              /* devices whose memory it may use, as bits */
    };
    std::deque<item> queue;
    emu_graph *capture; /* NULL: what comes is run */
    int device;
};

#include "devices.h"
#include "fibers.h"
#include "streams.h"

/* ---- the runtime ---- */

#define EMU_CALL(e) \
    std::lock_guard<std::recursive_mutex> hold(emu::lock); \
    if (const cudaError_t failed = emu::fails(e)) return failed;
/* The same of a call that waits, allocates or frees. */
#define EMU_WAITING_CALL(e) \
    EMU_CALL(e) \
    if (const cudaError_t failed = emu::forbidden()) return failed;

inline cudaError_t cudaGetLastError() {
    const cudaError_t e = emu::last_error;
    emu::last_error = cudaSuccess;
    return e;
}
inline const char *cudaGetErrorName(cudaError_t e) {
#define EMU_ERROR(name, number) \
    if (e == number) return "cudaError" #name;
    EMU_ERRORS(EMU_ERROR)
#undef EMU_ERROR
    return "cudaErrorUnknown";
}
inline const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory"
           : e == cudaErrorLaunchFailure  ? "unspecified launch failure"
           : e >= cudaErrorStreamCaptureUnsupported && e <= cudaErrorStreamCaptureIsolation
               ? "operation not permitted when stream is capturing"
               : "unknown error";
}
inline cudaError_t cudaGetDeviceCount(int *n) {
    EMU_CALL(cudaErrorUnknown)
    const char *text = getenv("CUDA_EMU_DEVICES"), *seed = getenv("CUDA_EMU_SEED");
    const int devices = text ? atoi(text) : 2;
    if (seed) emu::seed = strtoull(seed, NULL, 10);
    emu::drops_barriers = getenv("CUDA_EMU_NO_BARRIERS");
    if (devices < 0) return cudaErrorInsufficientDriver;
    *n = devices;
    return devices ? cudaSuccess : cudaErrorNoDevice;
}
inline cudaError_t cudaDriverGetVersion(int *v) {
    const char *text = getenv("CUDA_EMU_DRIVER");
    return *v = text ? atoi(text) : 0, cudaSuccess;
}
inline cudaError_t cudaSetDevice(int device) {
    EMU_CALL(cudaErrorUnknown)
    if (device < 0 || device >= emu::DEVICES) return emu::last_error = cudaErrorInvalidDevice;
    emu::current = device;
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, int) {
    EMU_CALL(cudaErrorUnknown)
    emu::streams.push_back(*s = new emu_stream());
    (*s)->device = emu::current;
    return cudaSuccess;
}
inline cudaError_t cudaMalloc(void **p, size_t bytes) {
    EMU_WAITING_CALL(cudaErrorMemoryAllocation)
    *p = emu::get(bytes ? bytes : 1);
    return *p ? cudaSuccess : emu::last_error = cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void *p) {
    std::lock_guard<std::recursive_mutex> hold(emu::lock);
    if (const cudaError_t failed = emu::forbidden()) return failed;
    emu::run_until(NULL);
    const int device = emu::device_of(p);
    if (device < 0) return emu::last_error = cudaErrorInvalidValue;
    emu::device &d = emu::devices[device];
    const auto at = d.taken.find((size_t)((char *)p - d.memory));
    if (at == d.taken.end()) return emu::last_error = cudaErrorInvalidValue;
    d.spare[at->first] = at->second;
    d.in_use -= at->second;
    d.taken.erase(at);
    return cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    EMU_WAITING_CALL(cudaErrorMemoryAllocation)
    *p = malloc(bytes ? bytes : 1);
    if (*p) emu::pinned[(char *)*p] = bytes;
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    EMU_CALL(cudaErrorUnknown)
    return *device = host, cudaSuccess;
}
inline cudaError_t cudaFreeHost(void *p) {
    std::lock_guard<std::recursive_mutex> hold(emu::lock);
    if (const cudaError_t failed = emu::forbidden()) return failed;
    emu::run_until(NULL);
    emu::pinned.erase((char *)p);
    free(p);
    return cudaSuccess;
}
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
    std::lock_guard<std::recursive_mutex> hold(emu::lock);
    a->type = emu::device_of(p) >= 0 ? cudaMemoryTypeDevice
              : emu::is_pinned(p)    ? cudaMemoryTypeHost
                                     : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}
/* Of memory that is neither the device's nor pinned it is done when it returns. */
inline cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind, cudaStream_t s) {
    EMU_CALL(cudaErrorUnknown)
    const int to = emu::device_of(dst), from = emu::device_of(src);
    const bool late = (to >= 0 || emu::is_pinned(dst)) && (from >= 0 || emu::is_pinned(src));
    const unsigned reach = (to < 0 ? 0 : 1u << to) | (from < 0 ? 0 : 1u << from);
    if (const cudaError_t failed = late ? cudaSuccess : emu::forbidden()) return failed;
    emu::put(s, [=] { memcpy(dst, src, bytes); }, nullptr, reach);
    if (!late) emu::run_until(emu::of(s));
    return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    EMU_CALL(cudaErrorUnknown)
    emu::put(s, [=] { memset(p, value, bytes); });
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t s) {
    EMU_WAITING_CALL(cudaErrorUnknown)
    if (emu::of(s)->capture) { /* by another thread */
        emu::capture_failed = true;
        return emu::last_error = cudaErrorStreamCaptureUnsupported;
    }
    emu::run_until(emu::of(s));
    return emu::broken;
}

/* ---- events and graphs ---- */

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
    EMU_CALL(cudaErrorUnknown)
    *e = new emu_event();
    (*e)->device = emu::current;
    return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    EMU_CALL(cudaErrorUnknown)
    if (e->device != emu::of(s)->device) return emu::last_error = cudaErrorInvalidResourceHandle;
    auto done = e->done = std::make_shared<bool>(false);
    e->captured = emu::of(s)->capture;
    if (!e->captured) emu::put(s, [=] { *done = true; });
    return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    EMU_CALL(cudaErrorUnknown)
    if (e->captured != emu::of(s)->capture) { /* a stream that joins a capture: not here */
        emu::capture_failed = true;
        return emu::last_error = cudaErrorStreamCaptureIsolation;
    }
    if (e->done && !e->captured && !emu::drops_waits) emu::put(s, [] {}, e->done);
    return cudaSuccess;
}
/* Never waits: what another thread does meanwhile is not done. */
inline cudaError_t cudaEventQuery(cudaEvent_t e) {
    std::unique_lock<std::recursive_mutex> mine(emu::lock, std::try_to_lock);
    if (!mine) return emu::last_error = cudaErrorNotReady;
    EMU_CALL(cudaErrorUnknown)
    return !e->done || *e->done ? cudaSuccess : emu::last_error = cudaErrorNotReady;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    EMU_WAITING_CALL(cudaErrorUnknown)
    if (e->done) emu::run_until(NULL, e->done.get());
    return emu::broken;
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    EMU_CALL(cudaErrorUnknown)
    if (emu::capturing || emu::of(s)->capture) return emu::last_error = cudaErrorInvalidValue;
    emu::capturing = emu::of(s);
    emu::capturing->capture = new emu_graph();
    emu::capture_failed = false;
    return cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status) {
    EMU_CALL(cudaErrorUnknown)
    return *status = (cudaStreamCaptureStatus)(emu::of(s)->capture != NULL), cudaSuccess;
}
/* Ends the capture whatever it returns. */
inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    std::lock_guard<std::recursive_mutex> hold(emu::lock);
    if (emu::capturing != emu::of(s)) return emu::last_error = cudaErrorInvalidValue;
    *g = emu::of(s)->capture;
    emu::of(s)->capture = NULL;
    emu::capturing = NULL;
    const cudaError_t failed = emu::fails(cudaErrorUnknown);
    if (*g && !failed && !emu::capture_failed) return cudaSuccess;
    delete *g;
    *g = NULL;
    return failed ? failed : emu::last_error = cudaErrorStreamCaptureInvalidated;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *to, cudaGraph_t g, unsigned long long) {
    EMU_WAITING_CALL(cudaErrorMemoryAllocation)
    *to = new emu_graph(*g);
    return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t g) { return delete g, cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) { return delete g, cudaSuccess; }
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) {
    EMU_CALL(cudaErrorUnknown)
    emu::launches++;
    for (const auto &f : g->work) emu::put(s, f);
    return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    *all = emu::RANGE;
    *left = emu::RANGE - emu::devices[emu::current].in_use;
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
    EMU_CALL(cudaErrorUnknown)
    snprintf(p->name, sizeof p->name, "emulation");
    p->multiProcessorCount = 1;
    p->major = getenv("CUDA_EMU_MAJOR") ? atoi(getenv("CUDA_EMU_MAJOR")) : 1;
    return cudaSuccess;
}
template <class K> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, K) {
    EMU_CALL(cudaErrorUnknown)
    if (getenv("CUDA_EMU_OTHER")) return emu::last_error = cudaErrorNoKernelImageForDevice;
    a->numRegs = 0;
    return cudaSuccess;
}

/* ---- kernels made while the program runs, by emu/nvrtc.c: code is the path of a shared object ---- */

typedef struct emu_library *cudaLibrary_t;
typedef struct emu_kernel *cudaKernel_t;
struct emu_kernel {
    void (*run)(void **args, unsigned grid, unsigned block);
    std::vector<size_t> bytes; /* of its arguments */
};
inline cudaError_t cudaLibraryLoadData(cudaLibrary_t *to, const void *code, void *, void *, unsigned, void *,
                                       void *, unsigned) {
    std::string path = (const char *)code;
    *to = (cudaLibrary_t)dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    unlink(path.c_str());
    rmdir(path.substr(0, path.rfind('/')).c_str());
    EMU_WAITING_CALL(cudaErrorInvalidValue)
    return *to ? cudaSuccess : emu::last_error = cudaErrorNoKernelImageForDevice;
}
inline cudaError_t cudaLibraryUnload(cudaLibrary_t l) { return dlclose(l), cudaSuccess; }
inline cudaError_t cudaLibraryGetKernel(cudaKernel_t *to, cudaLibrary_t l, const char *name) {
    EMU_CALL(cudaErrorInvalidValue)
    void *const run = dlsym(l, "emu_run"), *const bytes = dlsym(l, "emu_bytes");
    if (!run || !bytes || !dlsym(l, name)) return emu::last_error = cudaErrorInvalidValue;
    const size_t *n = ((const size_t *(*)())bytes)(); /* 0 ends them */
    emu_kernel k = {(void (*)(void **, unsigned, unsigned))run, {}};
    while (*n) k.bytes.push_back(*n++);
    *to = new emu_kernel(k);
    return cudaSuccess;
}
inline cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t,
                                    cudaStream_t s) {
    const emu_kernel k = *(const emu_kernel *)f;
    std::vector<std::string> copies; /* arguments are read now */
    for (size_t i = 0; i < k.bytes.size(); i++) copies.emplace_back((const char *)args[i], k.bytes[i]);
    return emu::start([=] {
        std::vector<void *> p;
        for (const auto &c : copies) p.push_back((void *)c.data());
        k.run(p.data(), grid.x, block.x);
    }, grid, block, s);
}
/* The same of a kernel that is compiled with the program. */
template <class... A, size_t... I>
void emu_launch(void (*f)(A...), dim3 grid, dim3 block, void **args, cudaStream_t s,
                std::index_sequence<I...>) {
    emu::launch(f, grid, block, s, *(A *)args[I]...);
}
template <class... A>
cudaError_t cudaLaunchKernel(void (*f)(A...), dim3 grid, dim3 block, void **args, size_t, cudaStream_t s) {
    emu_launch(f, grid, block, args, s, std::index_sequence_for<A...>());
    return cudaGetLastError();
}
#undef EMU_CALL
#undef EMU_WAITING_CALL

#define EMU_HOOK extern "C" __attribute__((weak, used))
EMU_HOOK void cuda_emu_fail_in(int64_t n) { emu::fail_in = n; }
EMU_HOOK void cuda_emu_break(void) { emu::broken = cudaErrorLaunchFailure; }
EMU_HOOK void cuda_emu_break_next(void) { emu::break_next = true; } /* the work that runs next does */
EMU_HOOK int cuda_emu_captures(void) { return emu::capturing != NULL; } /* this thread */
EMU_HOOK void cuda_emu_set_device(int device) { cudaSetDevice(device); } /* as code beside fl does */
EMU_HOOK int64_t cuda_emu_launches(void) { return emu::launches; }
EMU_HOOK void cuda_emu_limit(int64_t bytes) { emu::limit = bytes ? (size_t)bytes : emu::RANGE; }
EMU_HOOK void cuda_emu_seed(uint64_t seed) { emu::seed = seed; }
EMU_HOOK int cuda_emu_device(void) { return emu::current; } /* this thread's */
EMU_HOOK int64_t cuda_emu_waiting(void) { return (int64_t)emu::waiting(NULL); }
EMU_HOOK int64_t cuda_emu_waiting_beside(void *stream) { /* in others, for work that runs */
    return (int64_t)(emu::waiting(NULL) - emu::waiting(emu::of((cudaStream_t)stream)));
}
EMU_HOOK int cuda_emu_device_of(const void *p) { return emu::device_of(p); }
EMU_HOOK void cuda_emu_drop_waits(int drop) { emu::drops_waits = drop; }
/* What the mock libraries of emu/ start: work of the stream, as a kernel, once or, of a graph, often; then
   done(arg), also if the call fails (false). */
EMU_HOOK int cuda_emu_start(void (*work)(void *), void *arg, void *stream, void (*done)(void *)) {
    std::lock_guard<std::recursive_mutex> hold(emu::lock);
    const std::shared_ptr<void> kept(arg, done);
    const bool failed = emu::fails(cudaErrorUnknown);
    if (failed || emu::of((cudaStream_t)stream)->device != emu::current) {
        emu::last_error = cudaSuccess; /* a library's failure is not the runtime's */
        return false;
    }
    emu::put((cudaStream_t)stream, [=] { work(kept.get()); });
    return true;
}

#endif
/* MIT licence: see LICENSE. */
