/* kernels/cuda/emu/cuda_runtime.h - CUDA for g++: as much of it as kernels/cuda uses, on the processor

   What it checks that a GPU would not tell:
     - Work runs late: launches, and copies between device and pinned memory, wait in their stream's queue
       until somebody must wait for them, or for some others. Which stream goes on is drawn from a seed, so
       the host and other streams may count on nothing that no event or wait promises.
     - While a stream is captured no call that waits, allocates or frees is allowed, nor a wait for what was
       not captured: it fails, and so does the capture, as on a device.
     - Device memory cannot be read or written by the host but in kernels and copies: it crashes. So does a
       kernel that reads or writes another device's.
     - A kernel starts, and an event is recorded, on streams of their own device alone.
     - The threads of a block run in a drawn order, each until it ends or meets a barrier. A barrier that
       some threads never reach, and one of a warp that meets one of the block, end the program.
     - Any runtime call can be made to fail: cuda_emu_fail_in(n), the n-th from now; cuda_emu_break(): with an
       error that no later call survives. cuda_emu_launches() counts, those of a graph as one;
       cuda_emu_waiting(): pieces of work that have not run. cuda_emu_drop_waits(true): streams do not wait
       for events, which a test of the tests wants.
   Environment: CUDA_EMU_SEED=n; CUDA_EMU_DEVICES: 2 if it is not set; 0: no device, -1: no driver;
   CUDA_EMU_OTHER: devices of another architecture than the kernels'.

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
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define CUDART_VERSION 13000

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorECCUncorrectable = 214,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorAssert = 710,
    cudaErrorIllegalInstruction = 715,
    cudaErrorMisalignedAddress = 716,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
    cudaErrorStreamCaptureInvalidated = 901,
    cudaErrorStreamCaptureIsolation = 905,
    cudaErrorUnknown = 999
};
enum cudaMemcpyKind { cudaMemcpyDefault };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
enum { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
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

namespace emu {

/* ---- device memory: one range of addresses for each, first fit ---- */

constexpr size_t RANGE = (size_t)1 << 36, UNIT = 512;
constexpr int DEVICES = 8;
struct device {
    char *memory;
    size_t used, in_use; /* from the range's start, ever; now */
    bool open;
    std::map<size_t, size_t> taken, spare; /* offset -> bytes */
};
inline auto *const devices = new device[DEVICES]();
inline thread_local int current; /* this thread's */
inline size_t limit = RANGE;     /* what each has */
inline std::recursive_mutex lock;
inline auto &pinned = *new std::map<char *, size_t>; /* of the host */
inline int64_t fail_in, launches;
inline cudaError_t broken; /* sticky, as on a device; every later call gives it */
inline thread_local cudaError_t last_error;
inline uint64_t seed;

inline uint64_t draw(uint64_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}
inline cudaError_t fails(cudaError_t e) {
    if (fail_in > 0 && --fail_in == 0) return last_error = e;
    if (broken) last_error = broken;
    return broken;
}
inline void stop(const char *why) {
    fprintf(stderr, "cuda emulation: %s\n", why);
    if (!broken) broken = cudaErrorLaunchFailure;
}
/* Whose memory that is; -1: no device's. */
inline int device_of(const void *p) {
    for (int i = 0; i < DEVICES; i++)
        if (devices[i].memory && (size_t)((const char *)p - devices[i].memory) < RANGE) return i;
    return -1;
}
inline bool is_pinned(const void *p) {
    const auto next = pinned.upper_bound((char *)p);
    if (next == pinned.begin()) return false;
    return (size_t)((const char *)p - std::prev(next)->first) < std::prev(next)->second;
}
/* The memory of those devices, as bits, and of no other can be used. */
inline void open(unsigned reach) {
    for (int i = 0; i < DEVICES; i++) {
        device &d = devices[i];
        const bool opens = reach >> i & 1;
        if (opens == d.open || !d.used) continue;
        d.open = opens;
        if (mprotect(d.memory, (d.used + 4095) / 4096 * 4096, opens ? PROT_READ | PROT_WRITE : PROT_NONE))
            stop("device memory cannot be protected");
    }
}
inline void *get(size_t bytes) {
    const size_t n = (bytes + UNIT - 1) / UNIT * UNIT;
    device &d = devices[current];
    if (!d.memory) {
        void *p = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return NULL;
        d.memory = (char *)p;
    }
    if (n > limit || d.in_use > limit - n) return NULL;
    d.in_use += n;
    for (auto s = d.spare.begin(); s != d.spare.end(); ++s)
        if (s->second >= n) {
            const size_t at = s->first, left = s->second - n;
            d.spare.erase(s);
            if (left) d.spare[at + n] = left;
            d.taken[at] = n;
            return d.memory + at;
        }
    if (n > RANGE - d.used) return NULL;
    d.taken[d.used] = n;
    d.used += n;
    return d.memory + d.used - n;
}

/* ---- threads of a block: fibers. One runs thread after thread until a barrier holds it. ---- */

struct fiber {
    ucontext_t begin;
    void *at[5];
    bool begun;
    void *known; /* what a sanitizer knows it by */
};
struct thread {
    int wait; /* 1: barrier of the block, 2: of the warp */
    bool done;
    fiber *on;
};
inline dim3 thread_index, block_index, block_size, grid_size;
inline std::function<void()> body;
inline std::vector<thread> threads;
inline std::vector<unsigned> order;
inline auto &idle = *new std::vector<fiber *>; /* they outlive the end */
inline fiber *running;
inline unsigned n_threads, n_begun;
inline uint64_t exchanged[1024];

/* From who runs the fibers to one, and back. Sanitizers are told, as they cannot follow jumps between stacks:
   these are the compiler's, which they do not know. */
inline fiber scheduler;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK = 256 << 10;
inline const void *scheduler_stack;
inline size_t scheduler_size;
inline void leaving(fiber *from, fiber *to) {
    const bool back = to == &scheduler;
    __sanitizer_start_switch_fiber(&from->known, back ? scheduler_stack : to->begin.uc_stack.ss_sp,
                                   back ? scheduler_size : STACK);
}
inline void arrived(fiber *at) {
    const bool in_fiber = at != &scheduler;
    __sanitizer_finish_switch_fiber(at->known, in_fiber ? &scheduler_stack : NULL,
                                    in_fiber ? &scheduler_size : NULL);
}
#elif defined(__SANITIZE_THREAD__)
constexpr size_t STACK = 256 << 10;
inline void leaving(fiber *from, fiber *to) {
    if (from == &scheduler) from->known = __tsan_get_current_fiber();
    if (!to->known) to->known = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(to->known, 0);
}
inline void arrived(fiber *) {}
#else
constexpr size_t STACK = 64 << 10;
inline void leaving(fiber *, fiber *) {}
inline void arrived(fiber *) {}
#endif
__attribute__((noinline, no_sanitize("address", "thread"))) inline void go(fiber *from, fiber *to) {
    leaving(from, to);
    if (!__builtin_setjmp(from->at)) {
        if (to == &scheduler || to->begun) __builtin_longjmp(to->at, 1);
        to->begun = true;
        setcontext(&to->begin);
    }
}
inline void leave() {
    fiber *me = running;
    go(me, &scheduler);
    arrived(me);
}
inline void enter(fiber *f) {
    go(&scheduler, running = f);
    arrived(&scheduler);
}
inline void work() {
    arrived(running);
    for (;;) {
        while (n_begun < n_threads) {
            const unsigned me = thread_index.x = order[n_begun++];
            body();
            threads[thread_index.x].done = true;
            (void)me;
        }
        idle.push_back(running);
        leave();
    }
}
inline fiber *idle_fiber() {
    if (idle.empty()) {
        fiber *f = (fiber *)calloc(1, sizeof *f);
        getcontext(&f->begin);
        f->begin.uc_stack.ss_sp = malloc(STACK);
        f->begin.uc_stack.ss_size = STACK;
        makecontext(&f->begin, work, 0);
        return f;
    }
    fiber *f = idle.back();
    idle.pop_back();
    return f;
}
inline void barrier(int kind) {
    thread &me = threads[thread_index.x];
    me.wait = kind;
    me.on = running;
    leave();
}
inline void release(unsigned from, unsigned to, int kind) {
    for (unsigned k = 0; k < n_threads; k++) {
        const unsigned i = order[k];
        if (i < from || i >= to || threads[i].wait != kind) continue;
        threads[i].wait = 0;
        thread_index.x = i;
        enter(threads[i].on);
    }
}
/* Those of the warp all wait for it, or the block is given up. */
inline bool release_warps() {
    bool any = false;
    for (unsigned w = 0; w < n_threads; w += 32) {
        const unsigned end = w + 32 < n_threads ? w + 32 : n_threads;
        int waits = 0, others = 0;
        for (unsigned i = w; i < end; i++)
            if (!threads[i].done) ++(threads[i].wait == 2 ? waits : others);
        if (waits && others) return stop("some threads of a warp wait for it, others for the block"), false;
        if (waits) release(w, end, 2), any = true;
    }
    return any;
}
inline void run_block() {
    for (auto &t : threads) t = thread();
    n_begun = 0;
    for (;;) {
        while (n_begun < n_threads) enter(idle_fiber());
        if (release_warps()) continue;
        if (broken) return; /* its fibers stay where they are */
        unsigned done = 0;
        for (unsigned i = 0; i < n_threads; i++) done += threads[i].done;
        if (done == n_threads) return;
        if (done) return stop("__syncthreads that some threads never reach");
        release(0, n_threads, 1);
    }
}
inline void run_grid(dim3 grid, dim3 block) {
    grid_size = grid;
    block_size = block;
    n_threads = block.x;
    threads.resize(n_threads);
    order.resize(n_threads);
    for (unsigned i = 0; i < n_threads; i++) order[i] = i;
    for (unsigned i = n_threads; i > 1; i--) std::swap(order[i - 1], order[draw(i)]);
    for (block_index.x = 0; block_index.x < grid.x && !broken; block_index.x++) run_block();
}

/* ---- streams ---- */

/* They outlive the process's end, where the last tensors go. */
inline emu_stream &first = *new emu_stream(); /* NULL */
inline auto &streams = *new std::vector<emu_stream *>{&first};
inline thread_local emu_stream *capturing; /* this thread; NULL: none */
inline bool capture_failed, drops_waits;

inline emu_stream *of(cudaStream_t s) { return s ? s : &first; }
inline bool ready(const emu_stream *s) {
    return !s->queue.empty() && (!s->queue.front().until || *s->queue.front().until);
}
inline size_t waiting(const emu_stream *of) {
    size_t n = 0;
    for (const auto *s : streams) n += !of || of == s ? s->queue.size() : 0;
    return n;
}
/* Until nothing waits in that stream (NULL: in all): a few pieces of one that can go on, then of another. */
inline void run_until(const emu_stream *wanted) {
    if (!waiting(wanted)) return;
    while (waiting(wanted)) {
        std::vector<emu_stream *> able;
        for (auto *s : streams)
            if (ready(s)) able.push_back(s);
        if (able.empty()) {
            stop("all streams wait for each other");
            break;
        }
        emu_stream *s = able[draw(able.size())];
        for (uint64_t n = 1 + draw(16); n && ready(s) && waiting(wanted); n--) {
            open(s->queue.front().reach);
            if (!broken) s->queue.front().run();
            s->queue.pop_front();
        }
    }
    open(0);
}
/* reach: of others than the stream's own device. */
inline void put(cudaStream_t stream, std::function<void()> f, std::shared_ptr<bool> until = nullptr,
                unsigned reach = 0) {
    emu_stream *s = of(stream);
    if (s->capture) {
        s->capture->work.push_back(std::move(f));
        return;
    }
    s->queue.push_back({std::move(f), std::move(until), reach | 1u << s->device});
    if (draw(32) == 0) run_until(streams[draw(streams.size())]);
}
/* What no thread may do that captures. */
inline cudaError_t forbidden() {
    if (!capturing) return cudaSuccess;
    capture_failed = true;
    return last_error = cudaErrorStreamCaptureUnsupported;
}
template <class K, class... A> void launch(K kernel, dim3 grid, dim3 block, cudaStream_t stream, A... args) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (fails(cudaErrorUnknown)) return;
    launches++;
    if (!grid.x || !block.x || block.x > 1024 || grid.y * grid.z * block.y * block.z != 1) {
        last_error = cudaErrorInvalidValue;
        return;
    }
    if (of(stream)->device != current) {
        last_error = cudaErrorInvalidResourceHandle;
        return;
    }
    put(stream, [=] {
        body = [=] { kernel(args...); };
        run_grid(grid, block);
    });
}

template <class T> T exchange(T v, int from) {
    const unsigned me = thread_index.x;
    memcpy(&exchanged[me], &v, sizeof v);
    barrier(2);
    memcpy(&v, &exchanged[(me & ~31u) + ((unsigned)from & 31)], sizeof v);
    barrier(2);
    return v;
}

} // namespace emu

#define threadIdx (emu::thread_index)
#define blockIdx (emu::block_index)
#define blockDim (emu::block_size)
#define gridDim (emu::grid_size)

inline void __syncthreads() { emu::barrier(1); }
inline void __syncwarp(unsigned = ~0u) { emu::barrier(2); }
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) {
    return emu::exchange(v, (int)(emu::thread_index.x & 31) ^ mask);
}
inline void __threadfence() {}
inline int atomicAdd(int *p, int more) { return *p += more, *p - more; }
inline int atomicCAS(int *p, int was, int now) {
    __atomic_compare_exchange_n(p, &was, now, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return was; /* the host looks at it meanwhile */
}

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
    return e == cudaErrorMemoryAllocation           ? "cudaErrorMemoryAllocation"
           : e == cudaErrorLaunchFailure            ? "cudaErrorLaunchFailure"
           : e == cudaErrorInvalidResourceHandle    ? "cudaErrorInvalidResourceHandle"
           : e == cudaErrorStreamCaptureUnsupported ? "cudaErrorStreamCaptureUnsupported"
           : e == cudaErrorStreamCaptureInvalidated ? "cudaErrorStreamCaptureInvalidated"
           : e == cudaErrorStreamCaptureIsolation   ? "cudaErrorStreamCaptureIsolation"
                                          : "cudaErrorUnknown";
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
    if (devices < 0) return cudaErrorInsufficientDriver;
    *n = devices;
    return devices ? cudaSuccess : cudaErrorNoDevice;
}
inline cudaError_t cudaDriverGetVersion(int *v) { return *v = 0, cudaSuccess; }
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
inline cudaError_t cudaEventSynchronize(cudaEvent_t e) {
    EMU_WAITING_CALL(cudaErrorUnknown)
    if (e->done && !*e->done) {
        emu_stream until;
        until.queue.push_back({[] {}, e->done, 0});
        emu::streams.push_back(&until);
        emu::run_until(&until);
        emu::streams.pop_back();
    }
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
    p->multiProcessorCount = p->major = 1;
    return cudaSuccess;
}
template <class K> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *a, K) {
    EMU_CALL(cudaErrorUnknown)
    if (getenv("CUDA_EMU_OTHER")) return emu::last_error = cudaErrorNoKernelImageForDevice;
    a->numRegs = 0;
    return cudaSuccess;
}
#undef EMU_CALL
#undef EMU_WAITING_CALL

#define EMU_HOOK extern "C" __attribute__((weak, used))
EMU_HOOK void cuda_emu_fail_in(int64_t n) { emu::fail_in = n; }
EMU_HOOK void cuda_emu_break(void) { emu::broken = cudaErrorLaunchFailure; }
EMU_HOOK int64_t cuda_emu_launches(void) { return emu::launches; }
EMU_HOOK void cuda_emu_limit(int64_t bytes) { emu::limit = bytes ? (size_t)bytes : emu::RANGE; }
EMU_HOOK void cuda_emu_seed(uint64_t seed) { emu::seed = seed; }
EMU_HOOK int cuda_emu_device(void) { return emu::current; } /* this thread's */
EMU_HOOK int64_t cuda_emu_waiting(void) { return (int64_t)emu::waiting(NULL); }
EMU_HOOK void cuda_emu_drop_waits(int drop) { emu::drops_waits = drop; }
/* What the mock libraries of emu/ start: work of the stream, as a kernel, once or, of a graph, often; then
   done(arg). False: the call fails. */
EMU_HOOK int cuda_emu_start(void (*work)(void *), void *arg, void *stream, void (*done)(void *)) {
    std::lock_guard<std::recursive_mutex> hold(emu::lock);
    const bool failed = emu::fails(cudaErrorUnknown);
    if (failed || emu::of((cudaStream_t)stream)->device != emu::current) {
        emu::last_error = cudaSuccess; /* a library's failure is not the runtime's */
        return false;
    }
    const std::shared_ptr<void> kept(arg, done);
    emu::put((cudaStream_t)stream, [=] { work(kept.get()); });
    return true;
}

#endif
/* MIT licence: see LICENSE. */
