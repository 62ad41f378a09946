/* tests/cuda/emu/devices.h - a part of cuda_runtime.h: the memory of emulated devices, one range of
   addresses for each, first fit, closed to the host; numbers that are drawn, errors that are due */
#ifndef FL_CUDA_EMU_DEVICES_H
#define FL_CUDA_EMU_DEVICES_H
namespace emu {

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
        d.spare[0] = RANGE;
    }
    if (n > limit || d.in_use > limit - n) return NULL;
    for (auto s = d.spare.begin(); s != d.spare.end(); ++s)
        if (s->second >= n) {
            const size_t at = s->first, left = s->second - n;
            d.spare.erase(s);
            if (left) d.spare[at + n] = left;
            d.taken[at] = n;
            d.in_use += n;
            if (at + n > d.used) d.used = at + n;
            return d.memory + at;
        }
    return NULL;
}

} // namespace emu
#endif
/* MIT licence: see LICENSE. */
