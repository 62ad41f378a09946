/* fl/mem/log.h - log messages of the library: levels, threshold, sink */
#ifndef FL_MEM_LOG_H
#define FL_MEM_LOG_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fl_log_level { FL_LOG_DEBUG, FL_LOG_INFO, FL_LOG_WARN, FL_LOG_ERROR, FL_LOG_OFF } fl_log_level;
typedef void (*fl_log_fn)(fl_log_level level, const char *text, void *user);
/* Sends one line (printf format) to the sink if level is at or above the threshold. */
FL_API void fl_log_message(fl_log_level level, const char *format, ...) FL_PRINTF(2, 3);
/* Sets the sink (fn NULL: stderr, the default) and the threshold (default FL_LOG_WARN). */
FL_API void fl_log_set_sink(fl_log_fn fn, void *user, fl_log_level threshold);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_LOG_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_LOG) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_LOG_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_LOG_IMPL
#include "shared.h"
#include <stdio.h>

static struct {
    fl_log_fn fn;
    void *user;
    int threshold;                      /* atomic */
} fl__sink = {NULL, NULL, FL_LOG_WARN}; /* under fl__lock */

FL_API void fl_log_message(fl_log_level level, const char *format, ...) {
    static const char *const names[] = {"debug", "info", "warning", "error"};
    char text[FL__TEXT];
    if ((int)level < __atomic_load_n(&fl__sink.threshold, __ATOMIC_RELAXED) || level >= FL_LOG_OFF)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&fl__lock);
    fl_log_fn fn = fl__sink.fn;
    void *user = fl__sink.user;
    pthread_mutex_unlock(&fl__lock);
    if (fn)
        fn(level, text, user);
    else
        fprintf(stderr, "fl: %s: %s\n", names[level], text);
}

FL_API void fl_log_set_sink(fl_log_fn fn, void *user, fl_log_level threshold) {
    pthread_mutex_lock(&fl__lock);
    fl__sink.fn = fn;
    fl__sink.user = user;
    __atomic_store_n(&fl__sink.threshold, (int)threshold, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&fl__lock);
}

#endif
#endif

/* MIT licence: see LICENSE. */
