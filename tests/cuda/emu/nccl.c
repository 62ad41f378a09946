/* tests/cuda/emu/nccl.c - an NCCL for emulated devices: libnccl.so.2 between processes of one host

   Ranks exchange messages in a file that all map; collectives are made of messages, summed in the order of
   ranks, in the emulated stream. Until all ranks run a call, the stream of one waits in it, as on a device.
   It refuses what the real one would, and what would be wrong there: memory of the host or of another
   device, no stream, a communicator that ends before its calls. As in the real one's non-blocking mode a
   call is on the stream only when ncclCommGetAsyncError says so. */
#include "../../../kernels/dist/nccl_calls.h"
#include "mock.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 8, CHUNK = 1 << 16, POLLS = 3, FAILED = 3 };

/* calls: collectives and group calls; refused: of memory or streams; beside: the most work that waited in
   other streams when a call ran. fail_at: that call of the library, from the next one, fails; async_error:
   what ncclCommGetAsyncError tells. */
MOCK extern int mock_nccl_calls, mock_nccl_refused, mock_nccl_fail_at, mock_nccl_async_error,
    mock_nccl_abort_hangs, mock_nccl_finalize_hangs, mock_nccl_aborts;
int mock_nccl_calls, mock_nccl_refused, mock_nccl_fail_at, mock_nccl_async_error, mock_nccl_abort_hangs,
    mock_nccl_finalize_hangs, mock_nccl_aborts;
MOCK extern int64_t mock_nccl_beside;
int64_t mock_nccl_beside;

typedef struct mailbox {
    atomic_ullong sent, taken; /* chunks */
    char data[CHUNK];
} mailbox;
typedef struct world {
    atomic_int joined;
    mailbox box[RANKS][RANKS]; /* from, to */
} world;
typedef struct message {
    bool out;
    char *p;
    size_t n, done;
    int other;
} message;
typedef struct work {
    fl__nccl_comm comm;
    void *stream;
    message m[2 * RANKS];
    int n;
    fl__nccl_dtype dtype; /* of a sum */
    fl__nccl_op op;
    size_t count;
    char *sum, *parts; /* sum NULL: none here */
} work;
struct fl__nccl_comm_data {
    world *w;
    char path[128];
    int rank, size, device, polls;
    bool finalized;
    atomic_bool aborted;
    atomic_int refs; /* of the communicator and its work */
    work *next; /* not on the stream yet */
};
static _Thread_local work *group; /* of ncclGroupStart */
static _Thread_local bool grouped;

static bool fails(void) {
    return mock_nccl_fail_at > 0 && --mock_nccl_fail_at == 0;
}
static fl__nccl_status bad(const char *what) {
    mock_nccl_refused++;
    fprintf(stderr, "mock NCCL: %s\n", what);
    return FL__NCCL_INVALID;
}
static void drop(fl__nccl_comm c) {
    if (--c->refs) return;
    munmap(c->w, sizeof *c->w);
    free(c);
}

/* ---- communicators ---- */

#define EXPORT(result, name, args) MOCK result name args;
FL__NCCL_CALLS(EXPORT)

const char *ncclGetErrorString(fl__nccl_status e) {
    return e == FL__NCCL_INVALID  ? "invalid argument"
           : e == FL__NCCL_REMOTE ? "remote process exited or there was a network error"
                                  : "internal error";
}

fl__nccl_status ncclGetUniqueId(fl__nccl_id *id) {
    strcpy(id->internal, "/tmp/fl-nccl-XXXXXX");
    const int fd = fails() ? -1 : mkstemp(id->internal);
    const bool ok = fd >= 0 && !ftruncate(fd, sizeof(world));
    if (fd >= 0) close(fd);
    return ok ? 0 : FAILED;
}

fl__nccl_status ncclCommInitRankConfig(fl__nccl_comm *comm, int size, fl__nccl_id id, int rank,
                                       fl__nccl_config *config) {
    if (config->blocking || config->size != sizeof *config || size > RANKS) return bad("a config");
    const int fd = fails() ? -1 : open(id.internal, O_RDWR);
    world *w = fd >= 0 ? mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    fl__nccl_comm c = w != MAP_FAILED ? calloc(1, sizeof *c) : NULL;
    if (fd >= 0) close(fd);
    if (!c) return FAILED;
    c->w = w;
    snprintf(c->path, sizeof c->path, "%s", id.internal);
    c->rank = rank;
    c->size = size;
    c->device = cuda_emu_device();
    c->refs = 1;
    c->polls = POLLS;
    w->joined++;
    *comm = c;
    return FL__NCCL_IN_PROGRESS;
}

static fl__nccl_status start(work *w);

fl__nccl_status ncclCommGetAsyncError(fl__nccl_comm c, fl__nccl_status *e) {
    *e = 0;
    if (fails()) return FAILED;
    if (mock_nccl_async_error) *e = (fl__nccl_status)mock_nccl_async_error;
    else if (c->w->joined < c->size || c->polls-- > 0 || (c->finalized && mock_nccl_finalize_hangs))
        *e = FL__NCCL_IN_PROGRESS;
    else if (c->path[0] && !c->rank) unlink(c->path), c->path[0] = 0;
    if (*e || !c->next) return 0;
    work *w = c->next;
    c->next = NULL;
    *e = start(w);
    return 0;
}

fl__nccl_status ncclCommFinalize(fl__nccl_comm c) {
    if (c->refs > 1 || c->next) return bad("a communicator ends before its calls");
    c->finalized = true;
    c->polls = POLLS;
    return FL__NCCL_IN_PROGRESS;
}
fl__nccl_status ncclCommDestroy(fl__nccl_comm c) {
    if (!c->finalized) return bad("a communicator is destroyed that is not finalized");
    return drop(c), 0;
}
fl__nccl_status ncclCommAbort(fl__nccl_comm c) {
    mock_nccl_aborts++;
    while (*(volatile int *)&mock_nccl_abort_hangs) usleep(1000);
    c->aborted = true;
    return drop(c), 0;
}

/* ---- work of the stream ---- */

static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

/* out = op(out, in) of n numbers. */
static void fold(fl__nccl_dtype dtype, fl__nccl_op op, char *out, const char *in, size_t n) {
#define FOLD(number, type)                                                                       \
    case number:                                                                                 \
        for (size_t i = 0; i < n; i++) {                                                         \
            type *a = (type *)out + i, b = ((const type *)in)[i];                                \
            *a = op == FL__NCCL_MAX ? (*a > b ? *a : b) : op == FL__NCCL_MIN ? (*a < b ? *a : b) \
                                                                             : (type)(*a + b);   \
        }                                                                                        \
        return;
    switch (dtype) {
        FOLD(FL__NCCL_I8, int8_t)
        FOLD(FL__NCCL_U8, uint8_t)
        FOLD(FL__NCCL_I32, int32_t)
        FOLD(FL__NCCL_U32, uint32_t)
        FOLD(FL__NCCL_I64, int64_t)
        FOLD(FL__NCCL_U64, uint64_t)
        FOLD(FL__NCCL_F32, float)
        FOLD(FL__NCCL_F64, double)
    }
    const int type = dtype == FL__NCCL_F16 ? F16 : BF16_OF_DNN;
    for (size_t i = 0; i < n; i++) {
        const double a = load(type, out, (int64_t)i), b = load(type, in, (int64_t)i);
        store(type, out, (int64_t)i,
              op == FL__NCCL_MAX ? fmax(a, b) : op == FL__NCCL_MIN ? fmin(a, b) : a + b);
    }
}

static void halve(fl__nccl_dtype dtype, char *out, size_t n, int ranks) {
    const int type = dtype == FL__NCCL_F32   ? F32
                     : dtype == FL__NCCL_F64 ? F64
                     : dtype == FL__NCCL_F16 ? F16
                                             : BF16_OF_DNN;
    for (size_t i = 0; i < n; i++) store(type, out, (int64_t)i, load(type, out, (int64_t)i) / ranks);
}

/* Moves a chunk, if the other rank is ready for it. */
static bool moves(const work *w, message *m) {
    const int me = w->comm->rank;
    mailbox *b = m->out ? &w->comm->w->box[me][m->other] : &w->comm->w->box[m->other][me];
    const size_t n = m->n - m->done < CHUNK ? m->n - m->done : CHUNK;
    if (!n || (m->out ? b->sent != b->taken : b->sent == b->taken)) return false;
    memcpy(m->out ? b->data : m->p + m->done, m->out ? m->p + m->done : b->data, n);
    m->done += n;
    if (m->out) b->sent++;
    else b->taken++;
    return true;
}

static void run(void *arg) {
    work *w = arg;
    const size_t bytes = w->count * sizes[w->dtype];
    const int64_t beside = cuda_emu_waiting_beside(w->stream);
    if (beside > mock_nccl_beside) mock_nccl_beside = beside;
    for (bool done = false; !done && !w->comm->aborted;) {
        bool moved = false;
        done = true;
        for (int i = 0; i < w->n; i++) {
            moved |= moves(w, &w->m[i]);
            done &= w->m[i].done == w->m[i].n;
        }
        if (!moved && !done) usleep(50);
    }
    if (!w->sum || w->comm->aborted) return;
    memcpy(w->sum, w->parts, bytes);
    for (int k = 1; k < w->comm->size; k++)
        fold(w->dtype, w->op, w->sum, w->parts + (size_t)k * bytes, w->count);
    if (w->op == FL__NCCL_AVG) halve(w->dtype, w->sum, w->count, w->comm->size);
}

static void end(void *arg) {
    work *w = arg;
    drop(w->comm);
    free(w->parts);
    free(w);
}

static fl__nccl_status start(work *w) {
    return cuda_emu_start(run, w, w->stream, end) ? 0 : FAILED;
}

/* ---- calls ---- */

/* New work, after checks of the memory: `in` and `out` may be NULL. */
static work *work_of(fl__nccl_comm c, const void *in, const void *out, void *stream) {
    const bool here = (!in || cuda_emu_device_of(in) == c->device) &&
                      (!out || cuda_emu_device_of(out) == c->device);
    if (!here) return bad("memory that is not the device's"), NULL;
    if (!stream) return bad("the legacy stream, for which others do not wait"), NULL;
    if (c->next) return bad("a call before the last one is on the stream"), NULL;
    work *w = calloc(1, sizeof *w);
    *w = (work){.comm = c, .stream = stream};
    c->refs++;
    return w;
}

static void add(work *w, bool out, const void *p, size_t n, int other) {
    w->m[w->n++] = (message){out, (char *)(uintptr_t)p, n, 0, other};
}

static fl__nccl_status later(work *w) {
    mock_nccl_calls++;
    if (fails()) return end(w), FAILED;
    w->comm->next = w;
    w->comm->polls = POLLS;
    return FL__NCCL_IN_PROGRESS;
}

/* Parts of all ranks: part r of `in`, `step` bytes after the last, to rank r of those that take a sum. */
static fl__nccl_status sums(const void *in, void *out, size_t n, fl__nccl_dtype dtype, fl__nccl_op op,
                            int root, size_t step, fl__nccl_comm c, void *stream) {
    const size_t bytes = n * sizes[dtype];
    work *w = work_of(c, in, out, stream);
    if (!w) return FL__NCCL_INVALID;
    w->dtype = dtype, w->op = op, w->count = n;
    for (int k = 0; k < c->size; k++)
        if (root < 0 || k == root) add(w, true, (const char *)in + (size_t)k * step, bytes, k);
    if (root < 0 || root == c->rank) {
        w->sum = out;
        w->parts = malloc(bytes * (size_t)c->size + 1);
        for (int k = 0; k < c->size; k++) add(w, false, w->parts + (size_t)k * bytes, bytes, k);
    }
    return later(w);
}

fl__nccl_status ncclAllReduce(const void *in, void *out, size_t n, fl__nccl_dtype dtype, fl__nccl_op op,
                              fl__nccl_comm c, fl__nccl_stream s) {
    return sums(in, out, n, dtype, op, -1, 0, c, s);
}
fl__nccl_status ncclReduce(const void *in, void *out, size_t n, fl__nccl_dtype dtype, fl__nccl_op op,
                           int root, fl__nccl_comm c, fl__nccl_stream s) {
    return sums(in, out, n, dtype, op, root, 0, c, s);
}
fl__nccl_status ncclReduceScatter(const void *in, void *out, size_t n, fl__nccl_dtype dtype, fl__nccl_op op,
                                  fl__nccl_comm c, fl__nccl_stream s) {
    return sums(in, out, n, dtype, op, -1, n * sizes[dtype], c, s);
}
fl__nccl_status ncclBroadcast(const void *in, void *out, size_t n, fl__nccl_dtype dtype, int root,
                              fl__nccl_comm c, fl__nccl_stream s) {
    work *w = work_of(c, in, out, s);
    if (!w) return FL__NCCL_INVALID;
    for (int k = 0; k < c->size && root == c->rank; k++)
        if (k != root) add(w, true, in, n * sizes[dtype], k);
    if (root != c->rank) add(w, false, out, n * sizes[dtype], root);
    return later(w);
}
fl__nccl_status ncclAllGather(const void *in, void *out, size_t n, fl__nccl_dtype dtype, fl__nccl_comm c,
                              fl__nccl_stream s) {
    const size_t bytes = n * sizes[dtype];
    work *w = work_of(c, in, out, s);
    if (!w) return FL__NCCL_INVALID;
    for (int k = 0; k < c->size; k++) {
        add(w, true, in, bytes, k);
        add(w, false, (char *)out + (size_t)k * bytes, bytes, k);
    }
    return later(w);
}

fl__nccl_status ncclGroupStart(void) {
    grouped = true;
    return 0;
}
static fl__nccl_status message_of(bool out, const void *p, size_t n, int other, fl__nccl_comm c, void *s) {
    if (!grouped) return bad("a message outside of a group");
    if (cuda_emu_device_of(p) != c->device) return bad("memory that is not the device's");
    if (!group && !(group = work_of(c, NULL, NULL, s))) return FL__NCCL_INVALID;
    add(group, out, p, n, other);
    return FL__NCCL_IN_PROGRESS;
}
fl__nccl_status ncclSend(const void *in, size_t n, fl__nccl_dtype dtype, int to, fl__nccl_comm c,
                         fl__nccl_stream s) {
    return message_of(true, in, n * sizes[dtype], to, c, s);
}
fl__nccl_status ncclRecv(void *out, size_t n, fl__nccl_dtype dtype, int from, fl__nccl_comm c,
                         fl__nccl_stream s) {
    return message_of(false, out, n * sizes[dtype], from, c, s);
}
fl__nccl_status ncclGroupEnd(void) {
    work *w = group;
    group = NULL;
    grouped = false;
    return w ? later(w) : 0;
}
/* MIT licence: see LICENSE. */
