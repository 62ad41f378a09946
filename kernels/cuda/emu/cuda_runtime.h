/* kernels/cuda/emu/cuda_runtime.h - CUDA for g++: as much of it as kernels/cuda uses, on the processor

   What it checks that a GPU would not tell:
     - Work runs late: launches and copies within the device wait in a queue until somebody must wait for
       them, or for some others, drawn from a seed. So the host may not count on them.
     - Device memory cannot be read or written by the host but in kernels and copies: it crashes.
     - The threads of a block run in a drawn order, each until it ends or meets a barrier. A barrier that
       some threads never reach, and one of a warp that meets one of the block, end the program.
     - Any runtime call can be made to fail: cuda_emu_fail_in(n), the n-th from now; cuda_emu_break(): with an
       error that no later call survives. cuda_emu_launches() counts.
   Environment: CUDA_EMU_SEED=n; CUDA_EMU_DEVICES=0: no device, -1: no driver.

   Blocks and grids have one dimension. Blocks run one after the other, so races between them do not show;
   nor do times, registers, memory that is not coalesced, and what the compilers do differently. */
#ifndef FL_CUDA_EMU_RUNTIME_H
#define FL_CUDA_EMU_RUNTIME_H

#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
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
    cudaErrorECCUncorrectable = 214,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorAssert = 710,
    cudaErrorIllegalInstruction = 715,
    cudaErrorMisalignedAddress = 716,
    cudaErrorLaunchFailure = 719,
    cudaErrorUnknown = 999
};
enum cudaMemcpyKind { cudaMemcpyDefault };
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice };
enum { cudaHostAllocDefault, cudaHostAllocMapped = 2, cudaStreamNonBlocking = 1 };
struct cudaPointerAttributes {
    cudaMemoryType type;
};
typedef struct emu_stream *cudaStream_t;

namespace emu {

/* ---- device memory: one range of addresses, first fit ---- */

constexpr size_t RANGE = (size_t)1 << 36, UNIT = 512;
inline char *memory;
inline size_t used; /* from the range's start, ever */
inline size_t limit = RANGE, in_use; /* what there is, and what is taken */
inline std::map<size_t, size_t> taken, spare; /* offset -> bytes */
inline std::recursive_mutex lock;
inline int64_t fail_in, launches;
inline cudaError_t last_error, broken; /* broken: sticky, as on a device; every later call gives it */
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
inline bool is_device(const void *p) {
    return memory && (const char *)p >= memory && (const char *)p < memory + RANGE;
}
inline void protect(int how) {
    if (used && mprotect(memory, (used + 4095) / 4096 * 4096, how)) stop("device memory cannot be protected");
}
inline void *get(size_t bytes) {
    const size_t n = (bytes + UNIT - 1) / UNIT * UNIT;
    if (!memory) {
        void *p = mmap(NULL, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) return NULL;
        memory = (char *)p;
    }
    if (n > limit || in_use > limit - n) return NULL;
    in_use += n;
    for (auto s = spare.begin(); s != spare.end(); ++s)
        if (s->second >= n) {
            const size_t at = s->first, left = s->second - n;
            spare.erase(s);
            if (left) spare[at + n] = left;
            taken[at] = n;
            return memory + at;
        }
    if (n > RANGE - used) return NULL;
    taken[used] = n;
    used += n;
    return memory + used - n;
}

/* ---- threads of a block: fibers. One runs thread after thread until a barrier holds it. ---- */

struct fiber {
    ucontext_t begin;
    jmp_buf at;
    bool begun;
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
inline std::vector<fiber *> idle;
inline fiber *running;
inline unsigned n_threads, n_begun;
inline jmp_buf scheduler;
inline uint64_t exchanged[1024];

inline void leave() {
    if (!_setjmp(running->at)) _longjmp(scheduler, 1);
}
inline void work() {
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
inline void enter(fiber *f) {
    running = f;
    if (_setjmp(scheduler)) return;
    if (f->begun) _longjmp(f->at, 1);
    f->begun = true;
    setcontext(&f->begin);
}
inline fiber *idle_fiber() {
    constexpr size_t STACK = 64 << 10;
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

/* ---- the stream ---- */

inline std::deque<std::function<void()>> queue;
inline void run_all() {
    if (queue.empty()) return;
    protect(PROT_READ | PROT_WRITE);
    for (; !queue.empty(); queue.pop_front())
        if (!broken) queue.front()();
    protect(PROT_NONE);
}
inline void put(std::function<void()> f) {
    queue.push_back(std::move(f));
    if (draw(32) == 0) run_all();
}
template <class K, class... A> void launch(K kernel, dim3 grid, dim3 block, cudaStream_t, A... args) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (fails(cudaErrorUnknown)) return;
    launches++;
    if (!grid.x || !block.x || block.x > 1024 || grid.y * grid.z * block.y * block.z != 1) {
        last_error = cudaErrorInvalidValue;
        return;
    }
    put([=] {
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
    const int old = *p;
    if (old == was) *p = now;
    return old;
}

/* ---- the runtime ---- */

#define EMU_CALL(e) \
    std::lock_guard<std::recursive_mutex> hold(emu::lock); \
    if (const cudaError_t failed = emu::fails(e)) return failed;

inline cudaError_t cudaGetLastError() {
    const cudaError_t e = emu::last_error;
    emu::last_error = cudaSuccess;
    return e;
}
inline const char *cudaGetErrorName(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
           : e == cudaErrorLaunchFailure  ? "cudaErrorLaunchFailure"
                                          : "cudaErrorUnknown";
}
inline const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory"
           : e == cudaErrorLaunchFailure  ? "unspecified launch failure"
                                          : "unknown error";
}
inline cudaError_t cudaGetDeviceCount(int *n) {
    EMU_CALL(cudaErrorUnknown)
    const char *text = getenv("CUDA_EMU_DEVICES"), *seed = getenv("CUDA_EMU_SEED");
    const int devices = text ? atoi(text) : 1;
    if (seed) emu::seed = strtoull(seed, NULL, 10);
    if (devices < 0) return cudaErrorInsufficientDriver;
    *n = devices;
    return devices ? cudaSuccess : cudaErrorNoDevice;
}
inline cudaError_t cudaDriverGetVersion(int *v) { return *v = 0, cudaSuccess; }
inline cudaError_t cudaSetDevice(int) {
    EMU_CALL(cudaErrorUnknown)
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, int) {
    EMU_CALL(cudaErrorUnknown)
    return *s = NULL, cudaSuccess;
}
inline cudaError_t cudaMalloc(void **p, size_t bytes) {
    EMU_CALL(cudaErrorMemoryAllocation)
    *p = emu::get(bytes ? bytes : 1);
    return *p ? cudaSuccess : emu::last_error = cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void *p) {
    std::lock_guard<std::recursive_mutex> hold(emu::lock);
    emu::run_all();
    const auto at = emu::taken.find((size_t)((char *)p - emu::memory));
    if (at == emu::taken.end()) return emu::last_error = cudaErrorInvalidValue;
    emu::spare[at->first] = at->second;
    emu::in_use -= at->second;
    emu::taken.erase(at);
    return cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned) {
    EMU_CALL(cudaErrorMemoryAllocation)
    *p = malloc(bytes ? bytes : 1);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    EMU_CALL(cudaErrorUnknown)
    return *device = host, cudaSuccess;
}
inline cudaError_t cudaFreeHost(void *p) { return free(p), cudaSuccess; }
inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) {
    a->type = emu::is_device(p) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    EMU_CALL(cudaErrorUnknown)
    emu::queue.push_back([=] { memcpy(dst, src, bytes); });
    if (!emu::is_device(dst) || !emu::is_device(src)) emu::run_all();
    return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t) {
    EMU_CALL(cudaErrorUnknown)
    emu::queue.push_back([=] { memset(p, value, bytes); });
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
    EMU_CALL(cudaErrorUnknown)
    emu::run_all();
    return emu::broken;
}
inline cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    *all = emu::RANGE;
    *left = emu::RANGE - emu::used;
    return cudaSuccess;
}
#undef EMU_CALL

#define EMU_HOOK extern "C" __attribute__((weak, used))
EMU_HOOK void cuda_emu_fail_in(int64_t n) { emu::fail_in = n; }
EMU_HOOK void cuda_emu_break(void) { emu::broken = cudaErrorLaunchFailure; }
EMU_HOOK int64_t cuda_emu_launches(void) { return emu::launches; }
EMU_HOOK void cuda_emu_limit(int64_t bytes) { emu::limit = bytes ? (size_t)bytes : emu::RANGE; }
/* What the mock libraries of emu/ start: work of the stream, as a kernel. False: the call fails. */
EMU_HOOK int cuda_emu_start(void (*work)(void *), void *arg, void *) {
    std::lock_guard<std::recursive_mutex> hold(emu::lock);
    const bool failed = emu::fails(cudaErrorUnknown);
    if (failed) emu::last_error = cudaSuccess; /* a library's failure is not the runtime's */
    else emu::put([=] { work(arg); });
    return !failed;
}

#endif
/* MIT licence: see LICENSE. */
