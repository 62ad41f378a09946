/* managers.c - what every memory manager must do: make conformance-mem [MANAGER_H=mine.h]

   MANAGER_H: a header of yours with fl_mem_manager *fl_mem_mine(void), where mine is MANAGER_NAME; else fl's
   managers and those of examples/ are tried. A check returns NULL, or what is wrong in words. Managers with
   one fault each must fail the check that is named beside them. What a check cannot see is left to `make test
   SAN=address` and SAN=thread: spare bytes, lost memory, races. */
#include "../fl_all.h"
#include "test.h"
#include <pthread.h>
#include <stdarg.h>
#ifdef MANAGER_H
#include MANAGER_H
#define MANAGER_MADE(name) MANAGER_MADE_(name)
#define MANAGER_MADE_(name) fl_mem_##name()
#else
#include "../examples/extend/evictor.h"
#endif

enum { KIB = 1024, MIB = 1024 * KIB };

__attribute__((format(printf, 1, 2))) static const char *wrong(const char *format, ...) {
    static char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fl_error_clear();
    return text;
}

/* Random numbers, the same in each run; bytes from 1 to 4 MiB, small ones as often as large. */
static uint32_t draw(uint32_t *state) {
    return *state = *state * 1664525u + 1013904223u, *state >> 8;
}
static size_t draw_bytes(uint32_t *state) {
    const size_t most = (size_t)1 << draw(state) % 22;
    return most + draw(state) % most;
}

/* Fills, or compares, b with numbers that follow from its mark; false if it cannot be mapped or differs. */
static bool fill(fl_buffer *b, uint32_t mark) {
    unsigned char *p = fl_buffer_map(b);
    for (size_t i = 0; p && i < b->bytes; i++)
        p[i] = (unsigned char)(mark = mark * 69069 + 1, mark >> 24);
    if (p) fl_buffer_unmap(b);
    return p != NULL;
}
static bool is_filled(fl_buffer *b, uint32_t mark) {
    const unsigned char *p = fl_buffer_map(b);
    size_t i = 0;
    while (p && i < b->bytes && p[i] == (mark = mark * 69069 + 1, mark >> 24)) i++;
    if (p) fl_buffer_unmap(b);
    return p && i == b->bytes;
}

/* ---- the checks ---- */

static const char *any_size(fl_mem_manager *m) {
    const size_t sizes[] = {0,     1,     63,    64,      65,      1000,   4096,
                            65535, 65536, 65537, MIB - 1, MIB + 1, 5 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t n = sizes[i];
        fl_buffer *b = fl_buffer_from(m, n, NULL);
        unsigned char *p = b ? fl_buffer_map(b) : NULL;
        if (!p) return wrong("no memory for %zu bytes: %s", n, fl_error());
        if ((uintptr_t)p % FL_ALIGN)
            return wrong("%zu bytes at %p: expected a multiple of %d", n, (void *)p, FL_ALIGN);
        memset(p, 1, n);
        for (int k = 0; k < FL_ALIGN; k++) (void)((volatile unsigned char *)p)[n + (size_t)k];
        fl_buffer_unmap(b);
        fl_buffer_drop(b);
    }
    return NULL;
}

enum { HELD = 48, STEPS = 2000 };
static const char *contents_stay(fl_mem_manager *m) {
    fl_buffer *b[HELD] = {NULL};
    uint32_t mark[HELD] = {0}, state = 7;
    for (int step = 0; step < STEPS + HELD; step++) {
        const uint32_t k = step < STEPS ? draw(&state) % HELD : (uint32_t)(step - STEPS);
        if (b[k] && !is_filled(b[k], mark[k]))
            return wrong("%zu bytes changed while others were got and put: %s", b[k]->bytes,
                         fl_error() ? fl_error() : "they have one owner only");
        fl_buffer_drop(b[k]);
        b[k] = NULL;
        if (step >= STEPS) continue;
        if (!(b[k] = fl_buffer_from(m, draw_bytes(&state), NULL)) ||
            !fill(b[k], mark[k] = draw(&state)))
            return wrong("request %d of at most %d MiB in all failed: %s", step, HELD * 2,
                         fl_error());
    }
    return NULL;
}

/* The statistics are true while they are there; NULL: a manager without any. */
static const char *statistics_add_up(fl_mem_manager *m) {
    if (!m->stats) return NULL;
    const fl_mem_stats before = fl_mem_stats_of(m);
    enum { N = 40 };
    fl_buffer *b[N];
    int64_t bytes = 0;
    uint32_t state = 3;
    for (int i = 0; i < N; i++) {
        if (!(b[i] = fl_buffer_from(m, draw_bytes(&state), NULL)))
            return wrong("request %d: %s", i, fl_error());
        bytes += (int64_t)b[i]->bytes;
    }
    const fl_mem_stats now = fl_mem_stats_of(m);
    for (int i = 0; i < N; i++) fl_buffer_drop(b[i]);
    const fl_mem_stats after = fl_mem_stats_of(m);
    if (now.in_use - before.in_use < bytes)
        return wrong("in_use grew by %lld with %lld bytes got",
                     (long long)(now.in_use - before.in_use), (long long)bytes);
    if (now.gets - before.gets != N || after.puts - before.puts != N)
        return wrong("gets %lld, puts %lld, expected %d each", (long long)(now.gets - before.gets),
                     (long long)(after.puts - before.puts), N);
    if (after.in_use != before.in_use)
        return wrong("in_use is %lld when all is put back, and was %lld", (long long)after.in_use,
                     (long long)before.in_use);
    if (now.peak_in_use < now.in_use || now.peak_reserved < now.reserved)
        return wrong(
            "a peak is below the present value: %lld of %lld in use, %lld of %lld reserved",
            (long long)now.peak_in_use, (long long)now.in_use, (long long)now.peak_reserved,
            (long long)now.reserved);
    return NULL;
}

static const char *memory_serves_again(fl_mem_manager *m) {
    int64_t reserved = 0;
    for (int round = 0; round < 300; round++) {
        uint32_t state = 5; /* the same requests each time, put back in another order */
        fl_buffer *b[16];
        for (int i = 0; i < 16; i++)
            if (!(b[i] = fl_buffer_from(m, draw_bytes(&state), NULL)))
                return wrong("round %d of the same requests: %s", round, fl_error());
        for (int i = 0; i < 16; i++) fl_buffer_drop(b[(i * 7 + round) % 16]);
        const int64_t now = fl_mem_stats_of(m).reserved;
        if (round == 50) reserved = now;
        if (round > 50 && now > 2 * reserved + MIB)
            return wrong(
                "%lld bytes are reserved after %d rounds of the same requests, %lld after 50",
                (long long)now, round, (long long)reserved);
    }
    return NULL;
}

static const char *too_much_is_an_error(fl_mem_manager *m) {
    fl_buffer *held = fl_buffer_from(m, 5000, NULL);
    if (!held || !fill(held, 1)) return wrong("no memory: %s", fl_error());
    const size_t sizes[] = {(size_t)1 << 50, SIZE_MAX / 8, SIZE_MAX - FL_ALIGN / 2, SIZE_MAX};
    for (int i = 0; i < 4; i++) {
        fl_buffer *b = fl_buffer_from(m, sizes[i], NULL);
        if (b || !fl_error())
            return wrong("%zu bytes: got %s", sizes[i], b ? "a buffer" : "no error");
        fl_error_clear();
    }
    const bool same = is_filled(held, 1);
    fl_buffer_drop(held);
    held = fl_buffer_from(m, 5000, NULL);
    if (!same || !held)
        return wrong("after requests that failed %s", same ? "the next fails" : "bytes changed");
    fl_buffer_drop(held);
    return NULL;
}

/* Each thread fills buffers, and hands them to the next one, which compares and drops them. */
enum { THREADS = 4, HANDED = 600, DESK = 8 };
typedef struct desk {
    fl_mem_manager *m;
    pthread_mutex_t lock;
    fl_buffer *b[DESK];
    uint32_t mark[DESK], state;
    int failed;
} desk;
static void *work(void *arg) {
    desk *d = arg;
    pthread_mutex_lock(&d->lock);
    uint32_t state = d->state += 977;
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < HANDED; i++) {
        const uint32_t k = draw(&state) % DESK, mark = draw(&state);
        fl_buffer *b = fl_buffer_from(d->m, draw_bytes(&state) / 8, NULL), *old;
        const bool filled = b && fill(b, mark);
        pthread_mutex_lock(&d->lock);
        const uint32_t was = d->mark[k];
        old = d->b[k], d->b[k] = b, d->mark[k] = mark;
        d->failed += !filled;
        pthread_mutex_unlock(&d->lock);
        if (old && !is_filled(old, was)) __atomic_add_fetch(&d->failed, 1, __ATOMIC_RELAXED);
        fl_buffer_drop(old);
    }
    return NULL;
}
static const char *threads_share(fl_mem_manager *m) {
    static desk d;
    pthread_t thread[THREADS];
    d = (desk){.m = m, .lock = PTHREAD_MUTEX_INITIALIZER};
    int started = 0;
    while (started < THREADS && !pthread_create(&thread[started], NULL, work, &d)) started++;
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < DESK; i++) fl_buffer_drop(d.b[i]);
    if (started < THREADS) return wrong("no thread");
    return d.failed ? wrong("%d of %d buffers failed or had changed in another thread", d.failed,
                            THREADS * HANDED)
                    : NULL;
}

static const char *trim_leaves_what_lives(fl_mem_manager *m) {
    fl_buffer *b[20];
    uint32_t state = 11;
    for (uint32_t i = 0; i < 20; i++)
        if (!(b[i] = fl_buffer_from(m, draw_bytes(&state), NULL)) || !fill(b[i], i))
            return wrong("request %u: %s", i, fl_error());
    for (int i = 0; i < 20; i += 2) fl_buffer_drop(b[i]);
    if (m->trim) m->trim(m);
    for (uint32_t i = 1; i < 20; i += 2) {
        if (!is_filled(b[i], i)) return wrong("%zu bytes in use changed by a trim", b[i]->bytes);
        fl_buffer_drop(b[i]);
    }
    const fl_mem_stats s = fl_mem_stats_of(m);
    return s.reserved < s.in_use
               ? wrong("reserved %lld, in use %lld", (long long)s.reserved, (long long)s.in_use)
               : NULL;
}

/* A buffer that gets its memory when it is first mapped. */
static bool restore_mark(fl_buffer *b) {
    const uint32_t mark = *(const uint32_t *)b->tag;
    return fl_buffer_fill(b, NULL) && memset(b->ptr, (int)mark, b->bytes);
}
static const char *late_buffers(fl_mem_manager *m) {
    static uint32_t mark = 77;
    fl_mem_manager *before = fl_mem_set_current(m);
    fl_buffer *b = fl_buffer_new_lazy(100000, NULL, restore_mark, &mark);
    fl_mem_set_current(before);
    const unsigned char *p = b ? fl_buffer_map(b) : NULL;
    const bool right = p && p[0] == 77 && p[99999] == 77;
    if (p) fl_buffer_unmap(b);
    fl_buffer_drop(b);
    return right ? NULL
                 : wrong("a buffer that is made on its first map: %s",
                         fl_error() ? fl_error() : "wrong bytes");
}

/* A device with memory of its own, 1 MiB of it: a manager may refuse it, but not give what is not its. */
static _Alignas(FL_ALIGN) char far_memory[MIB];
static int far_blocks;
static void *far_get(const fl_device *self, size_t bytes, size_t align) {
    (void)self, (void)align;
    return far_blocks || bytes > MIB ? NULL : (far_blocks++, far_memory);
}
static void far_put(const fl_device *self, void *ptr, size_t bytes) {
    (void)self, (void)ptr, (void)bytes;
    far_blocks--;
}
static const char *other_devices(fl_mem_manager *m) {
    static const fl_device far_device = {.name = "far", .get = far_get, .put = far_put};
    fl_buffer *b = fl_buffer_from(m, 1000, &(fl_mem_info){.device = &far_device});
    if (!b)
        return fl_error() ? (fl_error_clear(), NULL)
                          : wrong("a request of another device fails without an error");
    const char *p = b->ptr;
    const bool its = p >= far_memory && p + 1000 <= far_memory + MIB;
    fl_buffer_drop(b);
    return its ? NULL : wrong("a request of another device got memory of the host");
}

static const char *managers_change(fl_mem_manager *m) {
    fl_buffer *b = fl_buffer_from(m, 3000, NULL), *other;
    if (!b || !fill(b, 5)) return wrong("no memory: %s", fl_error());
    fl_mem_manager *before = fl_mem_set_current(m);
    fl_mem_set_current(NULL);
    other = fl_buffer_new(3000, NULL);
    const bool same = other && fill(other, 6) && is_filled(b, 5);
    fl_buffer_drop(b), fl_buffer_drop(other);
    fl_mem_set_current(before);
    return same ? NULL : wrong("bytes changed when another manager became the current one");
}

/* A pageable buffer is where its map says until it is unmapped, whatever else is asked for. */
static const char *maps_pin(fl_mem_manager *m) {
    fl_buffer *b = fl_buffer_from(m, 100000, NULL), *more[24] = {NULL};
    if (!b || !fill(b, 9)) return wrong("no memory: %s", fl_error());
    const char *p = fl_buffer_map(b);
    if (p && b->pageable && fl_buffer_claim(b)) return wrong("a mapped buffer can be claimed");
    for (uint32_t i = 0; i < 24; i++)
        if ((more[i] = fl_buffer_from(m, MIB, NULL)) && !fill(more[i], i))
            return wrong("a map: %s", fl_error());
    fl_error_clear(); /* a budget may be reached */
    const bool here = p && b->ptr == p;
    fl_buffer_unmap(b);
    const bool same = is_filled(b, 9);
    for (uint32_t i = 0; i < 24; i++) {
        if (more[i] && !is_filled(more[i], i))
            return wrong("buffer %u of 24 changed: %s", i, fl_error());
        fl_buffer_drop(more[i]);
    }
    fl_buffer_drop(b);
    return here && same ? NULL : wrong("a mapped buffer %s", here ? "changed" : "moved");
}

/* Parameters after steps of training, whose bits no manager changes. */
static uint64_t trained(fl_mem_manager *m) {
    fl_mem_manager *before = fl_mem_set_current(m);
    fl_scope s = fl_scope_begin();
    fl_seed(3);
    fl_nn_module *net =
        fl_nn_sequential(fl_nn_linear(64, 128), fl_nn_relu(), fl_nn_linear(128, 10));
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(net), .lr = 0.01);
    uint64_t hash = 0;
    for (int i = 0; i < 5; i++) {
        fl_scope inner = fl_scope_begin();
        fl_var *x = fv_const(fl_normal(FL_SHAPE(32, 64), 0, 1, FL_F32, NULL));
        fl_tensor *y = fl_from_host((int64_t[32]){1, 2, 3}, FL_SHAPE(32), FL_I64);
        fl_optim_zero_grad(optim);
        fl_var *loss = fv_cross_entropy(fl_nn_forward(net, x), y);
        if (fl_backward(loss) && fl_optim_step(optim)) {
            const float value = (float)fl_item(fv_value(loss));
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            hash = hash * 1099511628211u + bits;
        }
        fl_scope_end(&inner);
    }
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&s);
    fl_mem_set_current(before);
    return hash;
}
static const char *training_has_the_same_bits(fl_mem_manager *m) {
    const uint64_t want = trained(NULL), got = trained(m);
    return got == want
               ? NULL
               : wrong("five steps of a network: %s", fl_error() ? fl_error() : "other losses");
}

static const struct {
    const char *name;
    const char *(*run)(fl_mem_manager *m);
} checks[] = {{"any_size", any_size},
              {"contents_stay", contents_stay},
              {"statistics_add_up", statistics_add_up},
              {"memory_serves_again", memory_serves_again},
              {"too_much_is_an_error", too_much_is_an_error},
              {"threads_share", threads_share},
              {"trim_leaves_what_lives", trim_leaves_what_lives},
              {"late_buffers", late_buffers},
              {"other_devices", other_devices},
              {"managers_change", managers_change},
              {"maps_pin", maps_pin},
              {"training_has_the_same_bits", training_has_the_same_bits}};
enum { CHECKS = sizeof checks / sizeof *checks };

static void conform(fl_mem_manager *m) {
    test_errors_return();
    REQUIRE(m != NULL);
    const int64_t live = fl_mem_live_buffers();
    for (int i = 0; i < CHECKS; i++) {
        const char *what = checks[i].run(m);
        if (!CHECK(!what)) printf("  %s, %s: %s\n", m->name, checks[i].name, what);
    }
    fl_sync(NULL);
    CHECK_EQ_INT(fl_mem_live_buffers(), live);
    fl_mem_close(m);
}

#ifdef MANAGER_H
TEST(yours) {
    conform(MANAGER_MADE(MANAGER_NAME));
}
#else
TEST(caching) {
    conform(fl_mem_caching());
}
TEST(native) {
    conform(fl_mem_native());
}
TEST(evictor) {
    conform(evictor_new(12 << 20, "managers.pages"));
}
#endif

/* ---- managers with one fault each ---- */

typedef enum fault {
    MISALIGNED,
    OVERLAPPING,
    LOSING,
    WITHOUT_PUTS,
    GROWING,
    SILENT,
    DESTRUCTIVE,
    OF_THE_HOST,
    FAULTS
} fault;
static const struct {
    fault fault;
    const char *check; /* which finds it */
} found[FAULTS] = {{MISALIGNED, "any_size"},
                   {OVERLAPPING, "contents_stay"},
                   {LOSING, "maps_pin"},
                   {WITHOUT_PUTS, "statistics_add_up"},
                   {GROWING, "memory_serves_again"},
                   {SILENT, "too_much_is_an_error"},
                   {DESTRUCTIVE, "trim_leaves_what_lives"},
                   {OF_THE_HOST, "other_devices"}};
static fault now;
static fl_mem_stats faulty_stats;
static char *last;
static size_t last_bytes;

static bool faulty_get(fl_mem_manager *self, fl_buffer *b, const fl_mem_info *info) {
    const fl_device *host = fl_device_host();
    static _Alignas(FL_ALIGN) char few[4 * MIB];
    static size_t at;
    if (now != OF_THE_HOST && b->device != host)
        return fl_mem_delegate(self, fl_mem_native(), b, info);
    if (b->bytes > (size_t)1 << 40) return now == SILENT;
    if (now == LOSING && last) memset(last, 0, last_bytes);
    if (now == OVERLAPPING && (at = (at + b->bytes + 127) / 64 * 64) + b->bytes < sizeof few)
        b->ptr = few + at;
    else if (now == OVERLAPPING)
        b->ptr = few, at = 0;
    else
        b->ptr = host->get(host, b->bytes + 2 * FL_ALIGN, FL_ALIGN);
    if (!b->ptr) return false;
    last = b->ptr, last_bytes = b->bytes;
    if (now == MISALIGNED) b->ptr = (char *)b->ptr + 8;
    faulty_stats.gets++;
    faulty_stats.in_use += (int64_t)b->bytes;
    faulty_stats.reserved += (int64_t)b->bytes;
    if (faulty_stats.in_use > faulty_stats.peak_in_use)
        faulty_stats.peak_in_use = faulty_stats.in_use;
    if (faulty_stats.reserved > faulty_stats.peak_reserved)
        faulty_stats.peak_reserved = faulty_stats.reserved;
    return true;
}
static void faulty_put(fl_mem_manager *self, fl_buffer *b) {
    const fl_device *host = fl_device_host();
    (void)self;
    if (!b->ptr) return;
    if (b->ptr == last) last = NULL;
    if (now != WITHOUT_PUTS) faulty_stats.puts++, faulty_stats.in_use -= (int64_t)b->bytes;
    if (now == GROWING) return; /* nor is the memory given back */
    faulty_stats.reserved -= (int64_t)b->bytes;
    if (now != OVERLAPPING)
        host->put(host, (char *)b->ptr - (now == MISALIGNED ? 8 : 0), b->bytes + 2 * FL_ALIGN);
}
static size_t faulty_trim(fl_mem_manager *self) {
    (void)self;
    if (now == DESTRUCTIVE && last) memset(last, 0, last_bytes);
    return 0;
}
static void faulty_get_stats(fl_mem_manager *self, fl_mem_stats *out) {
    (void)self;
    *out = faulty_stats;
}

TEST(faults_are_found) {
#ifdef TEST_SANITIZED
    SKIP("these managers lose memory, as do checks that fail");
#endif
    static fl_mem_manager m = {.name = "faulty",
                               .get = faulty_get,
                               .put = faulty_put,
                               .trim = faulty_trim,
                               .stats = faulty_get_stats};
    test_errors_return();
    for (int i = 0; i <= FAULTS; i++) { /* the last one has none */
        now = i < FAULTS ? found[i].fault : FAULTS;
        for (int k = 0; k < CHECKS; k++) {
            const bool expected = i < FAULTS && !strcmp(checks[k].name, found[i].check);
            if (i < FAULTS && !expected) continue;
            if (!strcmp(checks[k].name, "threads_share")) continue; /* it has no lock */
            faulty_stats = (fl_mem_stats){0}, last = NULL;
            const char *what = checks[k].run(&m);
            if (!CHECK(!what == !expected))
                printf("  fault %d, %s: %s\n", i, checks[k].name, what ? what : "not found");
        }
    }
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
