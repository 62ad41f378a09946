/* kernels/cuda/emu/fibers.h - a part of cuda_runtime.h: the threads of a block are run by fibers, each thread
   after thread until a barrier holds it */
#ifndef FL_CUDA_EMU_FIBERS_H
#define FL_CUDA_EMU_FIBERS_H
#include <ucontext.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace emu {

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
#endif
/* MIT licence: see LICENSE. */
