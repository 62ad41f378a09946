/* tests/cuda/emu/nccl.c - an NCCL for emulated devices: libnccl.so.2 between processes of one host

   Ranks append messages to files that the receivers read; collectives are made of messages, summed in the
   order of ranks, in the emulated stream, which waits until a rank's messages have come, as on a device.
   It refuses what the real one would, and what would be wrong there: memory of the host or of another
   device, no stream, a communicator that ends before its calls. As in the real one's non-blocking mode a
   call is on the stream only when ncclCommGetAsyncError says so. */
#include "../../../kernels/dist/nccl_calls.h"
#include "mock.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS = 8, POLLS = 3, FAILED = 3, ALL = -1, NO_SUM = -1 };

/* calls: collectives and group calls; refused: of memory or streams; beside: the most work that waited in
   other streams when a call ran. fail_at: that call of the library, from the next one, fails; async_error:
   what ncclCommGetAsyncError tells. */
MOCK int mock_nccl_calls, mock_nccl_refused, mock_nccl_fail_at, mock_nccl_async_error, mock_nccl_abort_hangs,
    mock_nccl_finalize_hangs, mock_nccl_aborts;
MOCK int64_t mock_nccl_beside;

typedef struct message {
    bool out;
    char *p;
    size_t n;
    int other;
} message;
typedef struct work {
    fl__nccl_comm comm;
    void *stream;
    message m[2 * RANKS];
    int n, type, op; /* of a sum */
    size_t count;
    char *sum, *parts; /* parts NULL: no sum here */
} work;
struct fl__nccl_comm_data {
    char folder[128];          /* "": removed, as all have opened its files */
    int out[RANKS], in[RANKS]; /* files of messages to ranks and from them */
    off_t taken[RANKS];        /* bytes */
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
    for (int k = 0; k < c->size; k++) close(c->out[k]), close(c->in[k]);
    free(c);
}

/* ---- work of the stream ---- */

static const int types[] = {I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16};

/* Sends first: what comes may take the place of what is sent. */
static void run(void *arg) {
    work *w = arg;
    fl__nccl_comm c = w->comm;
    const int64_t beside = cuda_emu_waiting_beside(w->stream);
    if (beside > mock_nccl_beside) mock_nccl_beside = beside;
    for (const message *m = w->m; m < w->m + w->n; m++)
        if (m->out && write(c->out[m->other], m->p, m->n) != (ssize_t)m->n) bad("a full disk");
    for (const message *m = w->m; m < w->m + w->n; m++)
        for (size_t done = 0; !m->out && done < m->n && !c->aborted;) {
            const ssize_t n = pread(c->in[m->other], m->p + done, m->n - done, c->taken[m->other]);
            if (n <= 0) usleep(50);
            else done += (size_t)n, c->taken[m->other] += n;
        }
    for (size_t i = 0; w->parts && i < w->count && !c->aborted; i++) {
        long double sum = load(w->type, w->parts, (int64_t)i);
        for (int k = 1; k < c->size; k++) {
            const long double v = load(w->type, w->parts, (int64_t)((size_t)k * w->count + i));
            sum = w->op == FL__NCCL_MAX ? fmaxl(sum, v) : w->op == FL__NCCL_MIN ? fminl(sum, v) : sum + v;
        }
        store(w->type, w->sum, (int64_t)i, w->op == FL__NCCL_AVG ? sum / c->size : sum);
    }
}

static void end(void *arg) {
    work *w = arg;
    drop(w->comm);
    free(w->parts);
    free(w);
}

/* ---- communicators ---- */

FL__NCCL_CALLS(MOCK_DECLARE)

const char *ncclGetErrorString(fl__nccl_status e) {
    return e == FL__NCCL_INVALID  ? "invalid argument"
           : e == FL__NCCL_REMOTE ? "remote process exited or there was a network error"
                                  : "internal error";
}

fl__nccl_status ncclGetUniqueId(fl__nccl_id *id) {
    strcpy(id->internal, "/tmp/fl-nccl-XXXXXX");
    return !fails() && mkdtemp(id->internal) ? 0 : FAILED;
}

static const char *path_of(fl__nccl_comm c, int from, int to) {
    static _Thread_local char path[160];
    snprintf(path, sizeof path, "%s/%d-%d", c->folder, from, to);
    return path;
}

fl__nccl_status ncclCommInitRankConfig(fl__nccl_comm *comm, int size, fl__nccl_id id, int rank,
                                       fl__nccl_config *config) {
    if (config->blocking || config->size != sizeof *config || size > RANKS) return bad("a config");
    if (fails()) return FAILED;
    fl__nccl_comm c = *comm = calloc(1, sizeof *c);
    memcpy(c->folder, id.internal, sizeof c->folder);
    c->rank = rank;
    c->size = size;
    c->device = cuda_emu_device();
    c->refs = 1;
    c->polls = POLLS;
    for (int k = 0; k < size; k++) {
        c->out[k] = open(path_of(c, rank, k), O_WRONLY | O_CREAT | O_APPEND, 0600);
        c->in[k] = open(path_of(c, k, rank), O_RDONLY | O_CREAT, 0600);
        c->taken[k] = 1;
    }
    for (int k = 0; k < size; k++)
        if (write(c->out[k], "", 1) != 1) return FAILED; /* it is here, and has opened all */
    return FL__NCCL_IN_PROGRESS;
}

static bool all_joined(fl__nccl_comm c) {
    struct stat is;
    for (int k = 0; k < c->size; k++)
        if (fstat(c->in[k], &is) || !is.st_size) return false;
    for (int k = 0; k < c->size && c->folder[0]; k++) unlink(path_of(c, k, c->rank));
    rmdir(c->folder); /* the last one's works */
    c->folder[0] = 0;
    return true;
}

fl__nccl_status ncclCommGetAsyncError(fl__nccl_comm c, fl__nccl_status *e) {
    *e = 0;
    if (fails()) return FAILED;
    if (mock_nccl_async_error) *e = (fl__nccl_status)mock_nccl_async_error;
    else if (!all_joined(c) || c->polls-- > 0 || (c->finalized && mock_nccl_finalize_hangs))
        *e = FL__NCCL_IN_PROGRESS;
    if (*e || !c->next) return 0;
    work *w = c->next;
    c->next = NULL;
    *e = cuda_emu_start(run, w, w->stream, end) ? 0 : FAILED;
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
    w->m[w->n++] = (message){out, (char *)(uintptr_t)p, n, other};
}

static fl__nccl_status later(work *w) {
    mock_nccl_calls++;
    if (fails()) return end(w), FAILED;
    w->comm->next = w;
    w->comm->polls = POLLS;
    return FL__NCCL_IN_PROGRESS;
}

/* Sends part k of `in`, each `step` bytes after the last, to rank k; from ALL or one, to ALL or one. What
   comes is summed by op, or lies in `out` in the order of ranks. */
static fl__nccl_status collective(const void *in, size_t step, void *out, size_t n, fl__nccl_dtype dtype,
                                  int op, int from, int to, fl__nccl_comm c, void *stream) {
    const size_t bytes = n * size_of(types[dtype]);
    work *w = work_of(c, in, out, stream);
    if (!w) return FL__NCCL_INVALID;
    const bool sends = from == ALL || from == c->rank, takes = to == ALL || to == c->rank;
    w->type = types[dtype], w->op = op, w->count = n, w->sum = out;
    if (takes && op != NO_SUM) w->parts = malloc(bytes * (size_t)c->size + 1);
    char *at = w->parts ? w->parts : out;
    for (int k = 0; k < c->size; k++) {
        if (sends && (to == ALL || to == k)) add(w, true, (const char *)in + (size_t)k * step, bytes, k);
        if (!takes || (from != ALL && from != k)) continue;
        add(w, false, at, bytes, k);
        at += bytes;
    }
    return later(w);
}

fl__nccl_status ncclAllReduce(const void *in, void *out, size_t n, fl__nccl_dtype dtype, fl__nccl_op op,
                              fl__nccl_comm c, fl__nccl_stream s) {
    return collective(in, 0, out, n, dtype, (int)op, ALL, ALL, c, s);
}
fl__nccl_status ncclReduce(const void *in, void *out, size_t n, fl__nccl_dtype dtype, fl__nccl_op op,
                           int root, fl__nccl_comm c, fl__nccl_stream s) {
    return collective(in, 0, out, n, dtype, (int)op, ALL, root, c, s);
}
fl__nccl_status ncclReduceScatter(const void *in, void *out, size_t n, fl__nccl_dtype dtype, fl__nccl_op op,
                                  fl__nccl_comm c, fl__nccl_stream s) {
    return collective(in, n * size_of(types[dtype]), out, n, dtype, (int)op, ALL, ALL, c, s);
}
fl__nccl_status ncclBroadcast(const void *in, void *out, size_t n, fl__nccl_dtype dtype, int root,
                              fl__nccl_comm c, fl__nccl_stream s) {
    return collective(in, 0, out, n, dtype, NO_SUM, root, ALL, c, s);
}
fl__nccl_status ncclAllGather(const void *in, void *out, size_t n, fl__nccl_dtype dtype, fl__nccl_comm c,
                              fl__nccl_stream s) {
    return collective(in, 0, out, n, dtype, NO_SUM, ALL, ALL, c, s);
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
    return message_of(true, in, n * size_of(types[dtype]), to, c, s);
}
fl__nccl_status ncclRecv(void *out, size_t n, fl__nccl_dtype dtype, int from, fl__nccl_comm c,
                         fl__nccl_stream s) {
    return message_of(false, out, n * size_of(types[dtype]), from, c, s);
}
fl__nccl_status ncclGroupEnd(void) {
    work *w = group;
    group = NULL;
    grouped = false;
    return w ? later(w) : 0;
}
/* MIT licence: see LICENSE. */
