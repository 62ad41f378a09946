/* kernels/cuda/graph.h - CUDA graphs: captures a training step and replays it with one launch

     fl_cuda_graph *g = fl_cuda_graph_new();
     for (...) {
         fl_assign(x, batch);                       outside: x stays at the address the graph reads
         if (fl_cuda_graph_ready(g)) fl_cuda_graph_replay(g);
         else {
             fl_cuda_graph_begin(g);
             ... forward, fl_backward, clip, step, without host reads ...
             fl_cuda_graph_end(g);
         }
     }

   The first two steps run normally: they create state, plans and tuned choices, and fill the graph's memory
   pool. The third is captured, then launched, so each round is one step. A replay computes the same again:
   tensors alive at the end of the capture get new values, as if written in place, and are kept by the graph,
   as are all its inputs. Dropout and other draws from the default generator continue as without a graph, bit
   by bit, and advance the generator. Decisions of the host are fixed at capture: branches, layer drop,
   BatchNorm's count of batches. (A learning rate set by fl_optim_set_lr before a replay is read.) */
#ifndef FL_CUDA_GRAPH_H
#define FL_CUDA_GRAPH_H
#include "backend.h"

typedef struct fl_cuda_graph fl_cuda_graph;
/* Creates a graph for steps on the device of the default backend, or of cuda if that is another backend. A
   step may use one device only. */
FL_API fl_cuda_graph *fl_cuda_graph_new(void);
/* This thread's work from begin to end is the step. During capture it is an error if an op makes the host
   wait, read or write, draws from a generator of the user's, changes the stream, or needs more memory than
   the warm-up steps; so are two graphs at once. After an error, end discards the capture, none of which was
   computed, undoes its draws, fails, and two steps warm up again. */
FL_API bool fl_cuda_graph_begin(fl_cuda_graph *g);
FL_API bool fl_cuda_graph_end(fl_cuda_graph *g);
FL_API bool fl_cuda_graph_ready(const fl_cuda_graph *g);
/* Runs the step again, on the stream of its capture. An error before it is ready, and, if the step draws,
   after fl_seed: the numbers would not be those of the seed. */
FL_API bool fl_cuda_graph_replay(fl_cuda_graph *g);
FL_API void fl_cuda_graph_free(fl_cuda_graph *g); /* waits; NULL is allowed */
#endif

#if defined(FL_IMPL_ONLY_CUDA_GRAPH) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_GRAPH_IMPL
#define FL_CUDA_GRAPH_IMPL
#include "../../fl/records/attention.h"
#include "../../fl/records/random.h"
#include "../../fl/tensor/rng.h"
#include <string.h>

typedef struct fl__cuda_used {
    fl_buffer *buffer; /* kept */
    bool writes;
} fl__cuda_used;

struct fl_cuda_graph {
    int device;
    void *graph, *stream; /* graph: NULL until it is ready */
    fl_buffer *word;      /* on the device: added by a replay to the counters of draws */
    fl_rng first;         /* generator at the start of the capture */
    uint64_t draws;       /* counter steps per step */
    int warm;             /* number of steps run */
    bool spoilt;
    fl__cuda_used *used;
    int64_t n, cap;
};
static _Thread_local fl_cuda_graph *fl__cuda_graph; /* between begin and end */

FL_API fl_cuda_graph *fl_cuda_graph_new(void) {
    const fl_backend *backend = fl_backend_at(fl_backend_default());
    fl_cuda_graph *g = fl_heap_alloc(sizeof *g);
    if (!g) return fl_raise();
    *g = (fl_cuda_graph){.graph = NULL};
    for (int i = 0; i < FLK_DEVICES; i++)
        if (!strcmp(backend->name, fl__cuda_device(i)->name)) g->device = i;
    return g;
}

FL_PRIVATE bool fl__cuda_graph_spoil(void) {
    if (fl__cuda_graph) fl__cuda_graph->spoilt = true;
    return false;
}

static bool fl__cuda_graph_add(fl_cuda_graph *g, fl_buffer *b, bool writes) {
    if (!fl_heap_grow(&g->used, &g->cap, g->n + 1, sizeof *g->used)) return fl__cuda_graph_spoil();
    g->used[g->n++] = (fl__cuda_used){fl_buffer_keep(b), writes};
    return true;
}

FL_PRIVATE bool fl__cuda_graph_use(fl_buffer *b, bool writes) {
    fl_cuda_graph *g = fl__cuda_graph;
    if (fl__cuda_is_born(b)) return true;
    for (int64_t i = 0; i < g->n; i++) {
        if (g->used[i].buffer != b) continue;
        g->used[i].writes |= writes;
        return true;
    }
    return fl__cuda_graph_add(g, b, writes);
}

FL_PRIVATE bool fl__cuda_graph_takes(const fl_call *c, const void *stream) {
    const fl_cuda_graph *g = fl__cuda_graph;
    const char *name = fl_op_get_info(c->op)->name;
    if (stream != g->stream)
        return fl_fail("fl_%s: cuda: the stream differs from that of the graph being captured", name);
    const bool attends = c->op == fl_op_attention || c->op == fl_op_attention_grad;
    if (attends ? ((const fl_attention_args *)c->args)->p <= 0
                : c->op != FL_OP_random && c->op != fl_op_dropout)
        return true;
    const fl_rng now = fl_rng_state(), *at = fl_op_rng(c->op, (void *)(uintptr_t)c->args);
    return (at->key == now.key && at->counter - g->first.counter < now.counter - g->first.counter) ||
           fl_fail("fl_%s: cuda: a captured graph can draw from the default generator only",
                   name);
}

/* Resets the graph to its state before the first begin. */
static void fl__cuda_graph_reset(fl_cuda_graph *g) {
    for (int64_t i = 0; i < g->n; i++) fl_buffer_drop(g->used[i].buffer);
    flk_graph_put(g->graph);
    fl_buffer_drop(g->word);
    fl_heap_free(g->used);
    *g = (fl_cuda_graph){.device = g->device, .stream = g->stream};
}

static bool fl__cuda_graph_capture(fl_cuda_graph *g) {
    const char *why = flk_sync_all();
    if (!why) why = flk_capture(g->stream, g->word->ptr);
    if (why) return fl_fail("fl_cuda_graph_begin: cuda: %s", why);
    g->first = fl_rng_state();
    fl__cuda_memory_for(fl__cuda_device(g->device), g, true);
    return true;
}

FL_API bool fl_cuda_graph_begin(fl_cuda_graph *g) {
    if (fl_error()) return false;
    if (!g || fl__cuda_graph || g->graph)
        return fl_err_false("fl_cuda_graph_begin: %s", !g               ? "the graph is NULL"
                                                    : fl__cuda_graph ? "another graph has begun on this "
                                                    "thread"
                                                                     : "the step is captured: replay it");
    if (!(g->stream = fl__cuda_begin(g->device)))
        return fl_err_false("fl_cuda_graph_begin: the stream cannot be used");
    fl__cuda_end();
    const fl_mem_info info = {.device = fl__cuda_device(g->device), .stream = g->stream,
                              .op = "cuda_graph_begin", .lifetime = 3};
    if (!g->word && !(g->word = fl_buffer_new(sizeof(uint64_t), &info))) return fl_raise();
    fl__cuda_memory_for(info.device, g, false);
    if (g->warm == 2 && !fl__cuda_graph_capture(g)) {
        fl__cuda_memory_for(NULL, NULL, false);
        return fl_err_false("fl_cuda_graph_begin: the capture failed");
    }
    g->spoilt = false;
    fl__cuda_graph = g;
    return true;
}

static void fl__cuda_graph_add_born(fl_buffer *b, void *g) {
    fl__cuda_graph_add(g, b, true);
}

static bool fl__cuda_graph_launch(fl_cuda_graph *g, uint64_t drawn) {
    if (!fl__cuda_begin(g->device)) return false;
    bool ok = true;
    void *const was = flk_swap_stream(g->stream);
    for (int64_t i = 0; ok && i < g->n; i++) ok = fl_buffer_use(g->used[i].buffer, g->stream);
    const char *why = ok ? flk_replay(g->graph, g->word->ptr, drawn) : NULL;
    flk_swap_stream(was);
    fl__cuda_end();
    return ok && (!why || fl_fail("fl_cuda_graph_replay: cuda: %s", why));
}

/* Ends the capture and instantiates the graph. */
static bool fl__cuda_graph_finish(fl_cuda_graph *g) {
    const bool before = !fl_error();
    const char *why = flk_captured(g->stream, &g->graph);
    fl__cuda_memory_for(NULL, NULL, false);
    fl__cuda_memory_born(fl__cuda_device(g->device), g, fl__cuda_graph_add_born, g);
    g->draws = fl_rng_state().counter - g->first.counter;
    const bool ok = before && !g->spoilt && !why && fl__cuda_graph_launch(g, 0);
    if (ok) return true;
    fl_fail("fl_cuda_graph_end: cuda: %s", why ? why : "the step had an error: nothing of it was computed");
    fl_rng_set_state(g->first);
    fl__cuda_graph_reset(g);
    return false;
}

FL_API bool fl_cuda_graph_end(fl_cuda_graph *g) {
    if (!g || fl__cuda_graph != g)
        return fl_err_false("fl_cuda_graph_end: %s",
                            g ? "the graph has not begun on this thread" : "the graph is NULL");
    const bool captures = fl__cuda_captures();
    fl__cuda_graph = NULL;
    if (captures) return fl__cuda_graph_finish(g) || fl_raise();
    fl__cuda_memory_for(NULL, NULL, false);
    if (fl_error()) return false;
    g->warm++;
    return true;
}

FL_API bool fl_cuda_graph_ready(const fl_cuda_graph *g) {
    return g && g->graph;
}

FL_API bool fl_cuda_graph_replay(fl_cuda_graph *g) {
    if (fl_error()) return false;
    if (!g || !g->graph)
        return fl_err_false("fl_cuda_graph_replay: %s", g ? "no step is captured yet: that needs three steps"
                                                       : "the graph is NULL");
    if (g->draws && fl_rng_state().key != g->first.key)
        return fl_err_false("fl_cuda_graph_replay: fl_seed was called since: capture the step again");
    const fl_rng at = fl_rng_take(NULL, (int64_t)(2 * g->draws));
    if (!fl__cuda_graph_launch(g, at.counter - g->first.counter)) return fl_raise();
    for (int64_t i = 0; i < g->n; i++) g->used[i].buffer->version += g->used[i].writes;
    return true;
}

FL_API void fl_cuda_graph_free(fl_cuda_graph *g) {
    if (!g) return;
    if (fl__cuda_graph == g && fl__cuda_captures()) fl__cuda_graph_spoil(), fl_cuda_graph_end(g);
    if (fl__cuda_graph == g) fl_cuda_graph_end(g);
    if (g->stream) flk_sync(g->device);
    fl__cuda_graph_reset(g);
    fl__cuda_memory_end(fl__cuda_device(g->device), g, g->stream);
    fl_heap_free(g);
}

#endif
#endif
/* MIT licence: see LICENSE. */
