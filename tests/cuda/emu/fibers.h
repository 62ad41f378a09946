/* tests/cuda/emu/fibers.h - a part of cuda_runtime.h: the threads of a block are run by fibers, each thread
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
    int wait;       /* 1: barrier of the block, 2: of the warp */
    bool done, odd; /* odd: the half of `exchanged` that it uses next */
    fiber *on;
};
inline dim3 thread_index, block_index, block_size, grid_size;
inline std::function<void()> body;
inline std::vector<thread> threads;
inline std::vector<unsigned> order, by_warp; /* drawn, of all threads; the same warp after warp */
inline auto &idle = *new std::vector<fiber *>; /* they outlive the end */
inline fiber *running;
inline std::vector<unsigned> released; /* in this order; so many of them went on */
inline unsigned n_threads, n_begun, n_released;
inline uint64_t exchanged[2][1024];
inline bool drops_barriers; /* a test of the tests */

/* From one fiber, or who began with them, to another. Sanitizers are told, as they cannot follow jumps
   between stacks: these are the compiler's, which they do not know. */
inline fiber scheduler;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK = 256 << 10;
inline const void *scheduler_stack;
inline size_t scheduler_size;
inline bool from_scheduler;
inline void leaving(fiber *from, fiber *to) {
    const bool back = to == &scheduler;
    from_scheduler = from == &scheduler;
    __sanitizer_start_switch_fiber(&from->known, back ? scheduler_stack : to->begin.uc_stack.ss_sp,
                                   back ? scheduler_size : to->begin.uc_stack.ss_size);
}
inline void arrived(fiber *at) {
    __sanitizer_finish_switch_fiber(at->known, from_scheduler ? &scheduler_stack : NULL,
                                    from_scheduler ? &scheduler_size : NULL);
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
    running = to;
    if (!__builtin_setjmp(from->at)) {
        if (to == &scheduler || to->begun) __builtin_longjmp(to->at, 1);
        to->begun = true;
        setcontext(&to->begin);
    }
}
/* Goes on with a thread that has not begun or was released, until there is none. */
inline fiber *idle_fiber();
inline void leave() {
    fiber *me = running, *to = &scheduler;
    if (n_begun < n_threads) to = idle_fiber();
    else if (n_released < released.size()) {
        const unsigned i = thread_index.x = released[n_released++];
        threads[i].wait = 0;
        to = threads[i].on;
    }
    go(me, to);
    arrived(me);
}
inline void work() {
    arrived(running);
    for (;;) {
        while (n_begun < n_threads) {
            thread_index.x = order[n_begun++];
            body();
            threads[thread_index.x].done = true;
        }
        idle.push_back(running);
        leave();
    }
}
/* Their stacks end at different places within a page, or all would want the same lines of a cache. */
inline fiber *idle_fiber() {
    static size_t made;
    if (idle.empty()) {
        fiber *f = (fiber *)calloc(1, sizeof *f);
        getcontext(&f->begin);
        f->begin.uc_stack.ss_sp = malloc(STACK);
        f->begin.uc_stack.ss_size = STACK - made++ * 832 % 16384;
        makecontext(&f->begin, work, 0);
        return f;
    }
    fiber *f = idle.back();
    idle.pop_back();
    return f;
}
inline void barrier(int kind) {
    if (drops_barriers) return;
    thread &me = threads[thread_index.x];
    me.wait = kind;
    me.on = running;
    leave();
}
/* Where a warp's threads all wait for it they are released; or the block is given up. */
inline bool release_warps() {
    for (unsigned w = 0; w < n_threads; w += 32) {
        const unsigned end = w + 32 < n_threads ? w + 32 : n_threads;
        int waits = 0, others = 0;
        for (unsigned i = w; i < end; i++)
            if (!threads[i].done) ++(threads[i].wait == 2 ? waits : others);
        if (waits && others) return stop("some threads of a warp wait for it, others for the block"), false;
        for (unsigned k = w; waits && k < end; k++)
            if (!threads[by_warp[k]].done) released.push_back(by_warp[k]);
    }
    return !released.empty();
}
inline void run_block() {
    for (auto &t : threads) t = thread();
    n_begun = 0;
    for (;;) {
        leave();
        released.clear();
        n_released = 0;
        if (release_warps()) continue;
        if (broken) return; /* its fibers stay where they are */
        unsigned done = 0;
        for (unsigned i = 0; i < n_threads; i++) done += threads[i].done;
        if (done == n_threads) return;
        if (done) return stop("__syncthreads that some threads never reach");
        released = order;
    }
}
inline void run_grid(dim3 grid, dim3 block) {
    unsigned at[32];
    grid_size = grid;
    block_size = block;
    running = &scheduler;
    n_threads = block.x;
    threads.resize(n_threads);
    order.resize(n_threads);
    by_warp.resize(n_threads);
    for (unsigned i = 0; i < n_threads; i++) order[i] = i;
    for (unsigned i = n_threads; i > 1; i--) std::swap(order[i - 1], order[draw(i)]);
    for (unsigned w = 0; w < 32; w++) at[w] = 32 * w;
    for (const unsigned i : order) by_warp[at[i / 32]++] = i;
    const uint64_t first = draw(grid.x), last = draw(2) ? grid.x - 1 : 0; /* from there, back or forth */
    for (uint64_t k = 0; k < grid.x && !broken; k++) {
        const uint64_t i = (first + k) % grid.x;
        block_index.x = (unsigned)(last ? last - i : i);
        run_block();
    }
}

/* The next one of a thread uses the other half, so that nobody writes what is still to be read. */
template <class T> T exchange(T v, int from) {
    const unsigned me = thread_index.x;
    uint64_t *const half = exchanged[threads[me].odd ^= true];
    memcpy(&half[me], &v, sizeof v);
    barrier(2);
    memcpy(&v, &half[(me & ~31u) + ((unsigned)from & 31)], sizeof v);
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
