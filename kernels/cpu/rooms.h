/* kernels/cpu/rooms.h - scratch for the tasks of a parallel loop: as many rooms as tasks run at a
   time, each taken by a task for as long as it runs */
#include "../../fl_tensor.h"
#ifndef FL_CPU_ROOMS_H
#define FL_CPU_ROOMS_H

typedef struct fl__rooms {
    fl_buffer *buffer;
    char *more;            /* `more` bytes for all of them */
    char *first;
    int64_t size, count;
    int *busy;
} fl__rooms;
/* Rooms of `size` bytes for a loop of `tasks`, and `more` bytes besides, aligned, with some
   readable bytes behind each. False after fl_fail. */
FL_PRIVATE bool fl__rooms_open(fl__rooms *r, int64_t tasks, int64_t size, int64_t more,
                               const char *op);
FL_PRIVATE void fl__rooms_close(fl__rooms *r);
/* A room that nobody else is in; to be left again. */
FL_PRIVATE char *fl__room_enter(const fl__rooms *r);
FL_PRIVATE void fl__room_leave(const fl__rooms *r, const char *room);

#endif /* FL_CPU_ROOMS_H: stop here if you only want the declarations */

#if defined(FL_IMPL_ONLY_CPU_ROOMS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_ROOMS_IMPL
#define FL_CPU_ROOMS_IMPL

#include <string.h>

/* Up to a multiple of FL_ALIGN, with as much again; -1 if that is too large. */
static int64_t fl__room_up(int64_t bytes) {
    return bytes < 0 || bytes > INT64_MAX / 4 ? -1 : (bytes / FL_ALIGN + 3) * FL_ALIGN;
}

FL_PRIVATE bool fl__rooms_open(fl__rooms *r, int64_t tasks, int64_t size, int64_t more,
                               const char *op) {
    const int64_t threads = fl_threads();
    size_t bytes;
    r->count = tasks < threads ? (tasks > 0 ? tasks : 1) : threads;
    r->size = fl__room_up(size);
    const int64_t flags = fl__room_up(r->count * (int64_t)sizeof *r->busy), rest = fl__room_up(more);
    if (r->size < 0 || rest < 0 || !fl__mul_size((size_t)r->count, (size_t)r->size, &bytes) ||
        bytes > SIZE_MAX - (size_t)(flags + rest))
        return fl_fail("fl_%s: scratch of %lld x %lld bytes is too large", op, (long long)r->count,
                       (long long)size);
    bytes += (size_t)(flags + rest);
    r->buffer = fl_buffer_new(bytes, &(fl_mem_info){.op = op, .lifetime = 1});
    char *at = r->buffer ? fl_buffer_map(r->buffer) : NULL;
    if (!at) {
        fl_buffer_drop(r->buffer);
        return false;
    }
    memset(at, 0, (size_t)flags);
    r->busy = (int *)(void *)at;
    r->more = at + flags;
    r->first = r->more + rest;
    return true;
}

FL_PRIVATE void fl__rooms_close(fl__rooms *r) {
    fl_buffer_unmap(r->buffer);
    fl_buffer_drop(r->buffer);
}

FL_PRIVATE char *fl__room_enter(const fl__rooms *r) {
    int64_t i = 0;
    while (__atomic_exchange_n(&r->busy[i], 1, __ATOMIC_ACQUIRE)) i = (i + 1) % r->count;
    return r->first + i * r->size;
}

FL_PRIVATE void fl__room_leave(const fl__rooms *r, const char *room) {
    __atomic_store_n(&r->busy[(room - r->first) / r->size], 0, __ATOMIC_RELEASE);
}

#endif
#endif
/* MIT licence: see LICENSE. */
