/* kernels/cuda/graph.h - CUDA graphs: records the launches of a sequence of calls and starts them as one

   The replay hook of the backend, which fl_graph uses for its replays and for rounds that repeat. The first
   time the calls run one by one, and fill a memory pool of the graph with their workspaces; the second time
   they are captured, then launched; from then on they are only launched. Where they cannot be captured (a
   call makes the host wait, or needs memory that the first run did not), they go on one by one, and the log
   says why at level FL_LOG_INFO. Random numbers: captured kernels add a word on the device to the counters
   of their draws, which a launch sets. */
#ifndef FL_CUDA_GRAPH_H
#define FL_CUDA_GRAPH_H
#include "backend.h"
FL_PRIVATE bool fl__cuda_replay(const fl_backend *self, void **memo, const fl_replay *r);
#endif

#if defined(FL_IMPL_ONLY_CUDA_GRAPH) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_GRAPH_IMPL
#define FL_CUDA_GRAPH_IMPL
#include "../../fl/records/attention.h"
#include "../../fl/records/norm.h"
#include "../../fl/records/random.h"
#include "../../fl/tensor/rng.h"
#include <string.h>

typedef struct fl__cuda_graph {
    int device;
    void *graph, *stream; /* graph: NULL until it is captured */
    fl_buffer *word;      /* on the device: added by a launch to the counters of draws */
    fl_rng first;         /* generator at the start of the capture */
    uint64_t draws;
    bool warm, spoilt;    /* has run once; a call cannot be captured */
    fl_buffer **used;     /* kept */
    int64_t n, cap;
} fl__cuda_graph;
static _Thread_local fl__cuda_graph *fl__cuda_capturing;

FL_PRIVATE bool fl__cuda_graph_spoil(void) {
    if (fl__cuda_capturing) fl__cuda_capturing->spoilt = true;
    return false;
}

static bool fl__cuda_graph_add(void *graph, fl_buffer *b) {
    fl__cuda_graph *g = graph;
    if (!fl_heap_grow(&g->used, &g->cap, g->n + 1, sizeof *g->used)) return fl__cuda_graph_spoil();
    g->used[g->n++] = fl_buffer_keep(b);
    return true;
}

FL_PRIVATE bool fl__cuda_graph_use(fl_buffer *b) {
    fl__cuda_graph *g = fl__cuda_capturing;
    if (fl__cuda_is_born(b)) return true;
    for (int64_t i = 0; i < g->n; i++)
        if (g->used[i] == b) return true;
    return fl__cuda_graph_add(g, b);
}

FL_PRIVATE bool fl__cuda_graph_takes(const fl_call *c, const void *stream) {
    const fl__cuda_graph *g = fl__cuda_capturing;
    const char *name = fl_op_get_info(c->op)->name;
    if (stream != g->stream)
        return fl_fail("fl_%s: cuda: the stream differs from that of the graph being captured", name);
    const fl_rng *at = fl_op_rng(c->op, (void *)(uintptr_t)c->args);
    const double p = c->op == fl_op_attention || c->op == fl_op_attention_grad
                         ? ((const fl_attention_args *)c->args)->p
                     : c->op == fl_op_add_layer_norm ? ((const fl_add_norm_args *)c->args)->p
                                                     : 1;
    if (!at || p <= 0) return true;
    return (at->key == g->first.key && at->counter - g->first.counter < g->draws) ||
           fl_fail("fl_%s: cuda: a captured graph can draw from the default generator only", name);
}

/* Forgets a capture. */
static void fl__cuda_graph_reset(fl__cuda_graph *g) {
    for (int64_t i = 0; i < g->n; i++) fl_buffer_drop(g->used[i]);
    g->n = 0;
    flk_graph_put(g->graph);
    g->graph = NULL;
}

static void fl__cuda_graph_free(fl__cuda_graph *g) {
    flk_sync(g->device);
    fl__cuda_graph_reset(g);
    fl_buffer_drop(g->word);
    fl__cuda_memory_end(fl__cuda_device(g->device), g, g->stream);
    fl_heap_free(g->used);
    fl_heap_free(g);
}

static bool fl__cuda_graph_launch(fl__cuda_graph *g, uint64_t drawn) {
    if (!fl__cuda_begin(g->device)) return false;
    bool ok = true;
    void *const was = flk_swap_stream(g->stream);
    for (int64_t i = 0; ok && i < g->n; i++) ok = fl_buffer_use(g->used[i], g->stream);
    const char *why = ok ? flk_replay(g->graph, g->word->ptr, drawn) : NULL;
    flk_swap_stream(was);
    fl__cuda_end();
    return ok && (!why || fl_fail("fl_graph_replay: cuda: %s", why));
}

/* Captures the calls, of which none is computed; what other threads start waits, or the graph would have it.
   On failure g stays spoilt, and errors are forgotten. */
static bool fl__cuda_graph_capture(fl__cuda_graph *g, const fl_replay *r) {
    const bool failed = fl_error() != NULL;
    const fl_device *device = fl__cuda_device(g->device);
    const fl_mem_info info = {.device = device, .stream = g->stream, .op = "graph", .lifetime = 3};
    if (!g->word && !(g->word = fl_buffer_new(sizeof(uint64_t), &info))) {
        if (!failed) fl_error_clear(); /* the next time perhaps */
        return false;
    }
    g->first = r->from;
    g->draws = r->draws;
    const char *why = flk_sync_all();
    if (!why) why = flk_capture(g->stream, g->word->ptr);
    g->spoilt = why != NULL;
    if (!g->spoilt) {
        fl__cuda_memory_for(device, g, true);
        fl__cuda_capturing = g;
        const bool ok = r->run(r->user);
        fl__cuda_capturing = NULL;
        fl__cuda_memory_for(NULL, NULL, false);
        why = flk_captured(g->stream, &g->graph);
        g->spoilt |= why || !ok;
        fl__cuda_memory_born(device, g, fl__cuda_graph_add, g);
    }
    if (!g->spoilt) return true;
    fl_log_message(FL_LOG_INFO, "cuda: a step cannot be captured, its calls run one by one: %s",
                   !failed && fl_error() ? fl_error() : why ? why : "out of memory");
    fl__cuda_graph_reset(g);
    fl__cuda_memory_end(device, g, g->stream);
    if (!failed) fl_error_clear();
    return false;
}

FL_PRIVATE bool fl__cuda_replay(const fl_backend *self, void **memo, const fl_replay *r) {
    fl__cuda_graph *g = *memo;
    if (!r) {
        if (g) fl__cuda_graph_free(g);
        *memo = NULL;
        return true;
    }
    const int device = (int)(intptr_t)self->user;
    void *stream = fl__cuda_begin(device);
    if (!stream) return false;
    if (!g && (*memo = g = fl_heap_alloc(sizeof *g)))
        *g = (fl__cuda_graph){.device = device, .stream = stream};
    else if (g && !g->graph && g->warm && !g->spoilt)
        fl__cuda_graph_capture(g, r);
    fl__cuda_end();
    if (!g) return false;
    if (g->graph) return fl__cuda_graph_launch(g, r->from.counter - g->first.counter);
    if (g->spoilt) return r->run(r->user);
    fl__cuda_memory_for(fl__cuda_device(device), g, false);
    g->warm = r->run(r->user);
    fl__cuda_memory_for(NULL, NULL, false);
    return g->warm;
}

#endif
#endif
/* MIT licence: see LICENSE. */
