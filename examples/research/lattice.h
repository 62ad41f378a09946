/* examples/research/lattice.h - sums over the paths of a lattice as one variable, on a tape of scalars

     states g = ...;                                     // what may follow what
     fl_var *y = fv_lattice(x, weight, &g, beam, &nodes); // log sum over paths of exp(score)

   A node of the tape is the sum over the paths to a state at a frame, which is the common sequence
   log(sum exp(add(node, weight))), add(emission), with one gradient for all of it:

     value = emission + log sum over arcs of exp(value of the arc's node + weight of the arc)

   Pruning: once the states of a frame are complete, those more than `beam` below the best one are dropped
   from the end of the tape, before anything refers to them. fl's graph has one node for a whole tape, which
   owns it; its memory is used again by the next one. */
#ifndef RESEARCH_LATTICE_H
#define RESEARCH_LATTICE_H
#include "fl.h"
#include <math.h>

typedef struct node {
    double value, grad;
    int32_t emission, n_arcs;
    int64_t arcs; /* the first one */
} node;
typedef struct arc {
    int32_t from, weight; /* a node or -1, of value 0; an index of the weights */
    float share;          /* of the sum: d value of the node / d value of `from` */
} arc;
typedef struct tape {
    node *node;
    arc *arc;
    int64_t n, cap, n_arcs, arc_cap;
} tape;

static inline double arc_score(const tape *t, const arc *a, const float *weight) {
    return (a->from < 0 ? 0 : t->node[a->from].value) + weight[a->weight];
}

/* Completes the node of the arcs since `arcs`, of which there is at least one. */
static inline void tape_sum(tape *t, int64_t arcs, int32_t emission, double added, const float *weight) {
    node *y = &t->node[t->n++];
    double most = -INFINITY, sum = 1; /* the best arc's part is 1 */
    int best = 0;
    const int n = (int)(t->n_arcs - arcs);
    arc *a = t->arc + arcs;
    for (int i = 0; i < n; i++) {
        const double score = arc_score(t, &a[i], weight);
        if (score > most) most = score, best = i;
    }
    for (int i = 0; i < n; i++)
        if (i != best) sum += a[i].share = expf((float)(arc_score(t, &a[i], weight) - most));
    a[best].share = 1;
    for (int i = 0; i < n; i++) a[i].share *= (float)(1 / sum);
    *y = (node){.value = most + log(sum) + added, .emission = emission, .n_arcs = n, .arcs = arcs};
}

/* Drops the nodes since `begin` that are more than `beam` below their best one; at: of each state, or -1. */
static inline void tape_prune(tape *t, int64_t begin, double beam, int32_t *at, int n_states) {
    double best = -INFINITY;
    for (int64_t i = begin; i < t->n; i++) best = fmax(best, t->node[i].value);
    int64_t end = begin, arcs = begin < t->n ? t->node[begin].arcs : t->n_arcs;
    for (int s = 0; s < n_states; s++) {
        if (at[s] < 0) continue;
        node x = t->node[at[s]];
        if (x.value < best - beam) {
            at[s] = -1;
            continue;
        }
        memmove(t->arc + arcs, t->arc + x.arcs, (size_t)x.n_arcs * sizeof *t->arc);
        x.arcs = arcs, arcs += x.n_arcs;
        at[s] = (int32_t)end;
        t->node[end++] = x;
    }
    t->n = end, t->n_arcs = arcs;
}

/* Adds the gradients of the last node, times g. */
static inline void tape_backward(tape *t, double g, float *emission, double *weight) {
    t->node[t->n - 1].grad = g;
    for (int64_t i = t->n - 1; i >= 0; i--) {
        node *y = &t->node[i];
        const double dy = y->grad;
        y->grad = 0; /* for another time */
        if (y->emission >= 0) emission[y->emission] += (float)dy;
        for (const arc *a = t->arc + y->arcs, *end = a + y->n_arcs; a < end; a++) {
            const double d = dy * a->share;
            weight[a->weight] += d;
            if (a->from >= 0) t->node[a->from].grad += d;
        }
    }
}

static tape tape_spare; /* the memory of the last one; for one thread */

static inline tape tape_new(void) {
    tape t = tape_spare;
    t.n = t.n_arcs = 0;
    tape_spare = (tape){0};
    return t;
}

static inline void tape_drop(void *at) {
    tape *t = at;
    fl_heap_free(tape_spare.node);
    fl_heap_free(tape_spare.arc);
    tape_spare = *t;
}

/* What may follow what: state s says label[s], and is reached from the states from[first[s] .. first[s + 1]),
   or -1, the start, with the weights weight[]. "State" n is the end of paths. */
typedef struct states {
    int n, n_labels;
    int32_t *label, *first, *from, *weight; /* first: n + 2 of them */
} states;

/* The paths of n_frames frames, of emission [n_frames][n_labels]; the last node is their sum. If no path ends
   within the beam, all are added. False after fl_fail. */
static inline bool lattice(tape *t, const states *g, const float *emission, const float *weight,
                           int64_t n_frames, double beam) {
    int32_t *at = fl_heap_alloc(2 * (size_t)g->n * sizeof *at), *before = at ? at + g->n : NULL;
    for (int s = 0; at && s < g->n; s++) before[s] = -1;
    for (int64_t f = 0; at && f <= n_frames; f++) {
        const int64_t begin = t->n, more_arcs = t->n_arcs + g->first[g->n + 1];
        if (!fl_heap_grow(&t->node, &t->cap, t->n + g->n + 1, sizeof *t->node) ||
            !fl_heap_grow(&t->arc, &t->arc_cap, more_arcs, sizeof *t->arc))
            return fl_heap_free(at), false;
        if (f == n_frames) break;
        for (int s = 0; s < g->n; s++) {
            const int64_t arcs = t->n_arcs;
            const int32_t e = (int32_t)(f * g->n_labels + g->label[s]);
            for (int i = g->first[s]; i < g->first[s + 1]; i++) {
                const int32_t from = g->from[i] < 0 ? -1 : before[g->from[i]];
                if (g->from[i] < 0 ? f > 0 : from < 0) continue;
                t->arc[t->n_arcs++] = (arc){from, g->weight[i], 0};
            }
            at[s] = t->n_arcs > arcs ? (int32_t)t->n : -1;
            if (at[s] >= 0) tape_sum(t, arcs, e, emission[e], weight);
        }
        tape_prune(t, begin, beam, at, g->n);
        memcpy(before, at, (size_t)g->n * sizeof *at);
    }
    if (!at) return false;
    const int64_t arcs = t->n_arcs;
    for (int i = g->first[g->n]; i < g->first[g->n + 1]; i++)
        if (before[g->from[i]] >= 0) t->arc[t->n_arcs++] = (arc){before[g->from[i]], g->weight[i], 0};
    fl_heap_free(at);
    if (t->n_arcs == arcs && beam < INFINITY) {
        t->n = t->n_arcs = 0;
        return lattice(t, g, emission, weight, n_frames, INFINITY);
    }
    if (t->n_arcs == arcs) return fl_fail("lattice: no path has %lld frames", (long long)n_frames);
    tape_sum(t, arcs, -1, 0, weight);
    return true;
}

/* Labels of n_frames frames: from the end, each time the arc with the largest share. */
static inline void lattice_best(const tape *t, int n_labels, int64_t n_frames, int64_t *label) {
    const node *y = &t->node[t->n - 1];
    for (int64_t f = n_frames - 1; f >= 0; f--) {
        const arc *best = t->arc + y->arcs;
        for (int i = 1; i < y->n_arcs; i++)
            if (t->arc[y->arcs + i].share > best->share) best = &t->arc[y->arcs + i];
        y = &t->node[best->from];
        label[f] = y->emission % n_labels;
    }
}

static inline void lattice_back(fl_node *n, fl_var *dy) {
    tape t = *(const tape *)fv_args(n);
    fl_tensor *x = fv_value(fv_saved(n, 0)), *w = fv_value(fv_saved(n, 1));
    fl_tensor *dx = fl_new_full(x, fl_shape_of(x), 0), *dw = fl_zeros(fl_shape_of(w), FL_F64);
    if (!dx || !dw) return;
    tape_backward(&t, fl_item(fv_value(dy)), fl_data(dx), fl_data(dw));
    *(double *)fl_data(dw) = 0; /* of arcs without a weight */
    fv_add_grad(n, 0, fv_const(dx));
    fv_add_grad(n, 1, fv_const(fl_cast(dw, w->dtype)));
}

/* log sum over the paths of g of exp(score): emissions x f32 [frames, labels], weights f32 [n], of which
   weight 0 must be 0. *nodes: of the tape. NULL after an error. */
static inline fl_var *fv_lattice(fl_var *x, fl_var *weight, const states *g, double beam, int64_t *nodes) {
    tape t = tape_new();
    fl_tensor *e = fl_contiguous(fv_value(x)), *w = fl_contiguous(fv_value(weight));
    const bool ok = e && w && lattice(&t, g, fl_data(e), fl_data(w), e->shape[0], beam);
    *nodes = t.n;
    if (!ok) return tape_drop(&t), NULL;
    return fv_record_opt(fl_full(FL_SCALAR_SHAPE, t.node[t.n - 1].value, FL_F32),
                         &(fv_record_opts){.name = "lattice", .back = lattice_back, .in = FV_IN(x, weight),
                                           .saved = FV_SAVE(x, weight), .args = &t, .bytes = sizeof t,
                                           .free_args = tape_drop});
}

#endif /* MIT licence: see LICENSE. */
