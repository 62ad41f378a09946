/* tests/cuda/emu/streams.h - a part of cuda_runtime.h: work waits in its stream until somebody must wait
   for it; which stream goes on is drawn */
#ifndef FL_CUDA_EMU_STREAMS_H
#define FL_CUDA_EMU_STREAMS_H
namespace emu {

/* They outlive the process's end, where the last tensors go. */
inline emu_stream &first = *new emu_stream(); /* NULL */
inline auto &streams = *new std::vector<emu_stream *>{&first};
inline thread_local emu_stream *capturing; /* this thread; NULL: none */
inline bool capture_failed, drops_waits, break_next;

inline emu_stream *of(cudaStream_t s) { return s ? s : &first; }
inline bool ready(const emu_stream *s) {
    return !s->queue.empty() && (!s->queue.front().until || *s->queue.front().until);
}
inline size_t waiting(const emu_stream *of) {
    size_t n = 0;
    for (const auto *s : streams) n += !of || of == s ? s->queue.size() : 0;
    return n;
}
/* Until nothing waits in that stream (NULL: in all), or until that is done: a few pieces of one stream that
   can go on, then of another. */
inline void run_until(const emu_stream *wanted, const bool *done = nullptr) {
    const auto goes_on = [=] { return done ? !*done : waiting(wanted) > 0; };
    while (goes_on()) {
        std::vector<emu_stream *> able;
        for (auto *s : streams)
            if (ready(s)) able.push_back(s);
        if (able.empty()) {
            stop("all streams wait for each other");
            break;
        }
        emu_stream *s = able[draw(able.size())];
        for (uint64_t n = 1 + draw(16); n && ready(s) && goes_on(); n--) {
            open(s->queue.front().reach);
            if (!broken) s->queue.front().run();
            if (break_next) break_next = false, stop("a kernel fails, as it is told to");
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
inline cudaError_t start(std::function<void()> f, dim3 grid, dim3 block, cudaStream_t stream) {
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (const cudaError_t failed = fails(cudaErrorUnknown)) return failed;
    launches++;
    if (!grid.x || !block.x || block.x > 1024 || grid.y * grid.z * block.y * block.z != 1)
        return last_error = cudaErrorInvalidValue;
    if (of(stream)->device != current) return last_error = cudaErrorInvalidResourceHandle;
    put(stream, std::move(f));
    if (!getenv("CUDA_LAUNCH_BLOCKING") || of(stream)->capture) return cudaSuccess;
    run_until(of(stream));
    return last_error = broken;
}
template <class K, class... A> void launch(K kernel, dim3 grid, dim3 block, cudaStream_t stream, A... args) {
    start([=] {
        body = [=] { kernel(args...); };
        run_grid(grid, block);
    }, grid, block, stream);
}

} // namespace emu
#endif
/* MIT licence: see LICENSE. */
