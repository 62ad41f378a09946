/* kernels/cpu/scratch.h - workspaces for the tasks of a parallel loop, and memory that they share

   There are as many workspaces as tasks run at a time; a task takes one for as long as it runs. */
#ifndef FL_CPU_SCRATCH_H
#define FL_CPU_SCRATCH_H
#include "../../fl_mem.h"

typedef struct fl__scratch {
    fl_buffer *buffer;
    char *shared;     /* shared by all tasks */
    char *workspaces;
    int64_t size;     /* stride of workspaces in bytes */
    int64_t count;    /* number of workspaces */
    int *busy;        /* [count] 1 while a task uses the workspace */
} fl__scratch;
/* Allocates workspaces of `size` bytes for a loop of `tasks`, and `shared` bytes, all aligned to FL_ALIGN and
   followed by at least FL_ALIGN readable bytes. Returns false after fl_fail. */
FL_PRIVATE bool fl__scratch_open(fl__scratch *s, int64_t tasks, int64_t size, int64_t shared,
                                 const char *op);
FL_PRIVATE void fl__scratch_close(fl__scratch *s);
/* Takes a free workspace, which must be given back. */
FL_PRIVATE char *fl__scratch_take(const fl__scratch *s);
FL_PRIVATE void fl__scratch_give_back(const fl__scratch *s, const char *workspace);

#endif /* FL_CPU_SCRATCH_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_SCRATCH) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_SCRATCH_IMPL
#define FL_CPU_SCRATCH_IMPL
#include <string.h>

/* Rounds up to a multiple of FL_ALIGN and adds the readable bytes; -1 on overflow. */
static int64_t fl__scratch_round_up(int64_t bytes) {
    return bytes < 0 || bytes > INT64_MAX / 4 ? -1 : (bytes / FL_ALIGN + 3) * FL_ALIGN;
}

FL_PRIVATE bool fl__scratch_open(fl__scratch *s, int64_t tasks, int64_t size, int64_t shared,
                                 const char *op) {
    const int64_t threads = fl_threads();
    size_t bytes;
    s->count = tasks < threads ? (tasks > 0 ? tasks : 1) : threads;
    s->size = fl__scratch_round_up(size);
    const int64_t flags = fl__scratch_round_up(s->count * (int64_t)sizeof *s->busy);
    const int64_t rest = fl__scratch_round_up(shared);
    if (s->size < 0 || rest < 0 || !fl__mul_size((size_t)s->count, (size_t)s->size, &bytes) ||
        bytes > SIZE_MAX - (size_t)(flags + rest))
        return fl_fail("fl_%s: a workspace of %lld x %lld bytes is too large", op, (long long)s->count,
                       (long long)size);
    bytes += (size_t)(flags + rest);
    s->buffer = fl_buffer_new(bytes, &(fl_mem_info){.op = op, .step = fl_mem_step_now(), .lifetime = 1});
    char *at = s->buffer ? fl_buffer_map(s->buffer) : NULL;
    if (!at) {
        fl_buffer_drop(s->buffer);
        return false;
    }
    memset(at, 0, (size_t)flags);
    s->busy = (int *)(void *)at;
    s->shared = at + flags;
    s->workspaces = s->shared + rest;
    return true;
}

FL_PRIVATE void fl__scratch_close(fl__scratch *s) {
    fl_buffer_unmap(s->buffer);
    fl_buffer_drop(s->buffer);
}

FL_PRIVATE char *fl__scratch_take(const fl__scratch *s) {
    int64_t i = 0;
    while (__atomic_exchange_n(&s->busy[i], 1, __ATOMIC_ACQUIRE)) i = (i + 1) % s->count;
    return s->workspaces + i * s->size;
}

FL_PRIVATE void fl__scratch_give_back(const fl__scratch *s, const char *workspace) {
    __atomic_store_n(&s->busy[(workspace - s->workspaces) / s->size], 0, __ATOMIC_RELEASE);
}

#endif
#endif
/* MIT licence: see LICENSE. */
