/* examples/research/planners.h - schedules of a recorded step: greedy, by integer programming, and by DTR

   All planners let one procedure write the rows: it follows the calls of the program, gets back the operands
   that are not in memory, and evicts when a call does not fit. They differ in what is evicted.
     greedy   foresees the step: evicts the value with the most bytes * calls until it is used / seconds to
              have it back, which are those to page it or those to make it again, whichever is less
     dtr      sees the calls so far: the most bytes * calls since it was used / seconds to make it, what it
              needs that was dropped, and what needs it that was dropped and is still used (Dynamic Tensor
              Rematerialization, arXiv 2006.09616, with the exact evicted neighbourhood); it does not page
     optimal  an integer program (GLPK): for each value and each gap between two of its uses page it, drop it
              or do neither, with the least seconds such that each call fits */
#ifndef RESEARCH_PLANNERS_H
#define RESEARCH_PLANNERS_H
#include "schedule.h"
#ifdef FL_USE_GLPK
#include <glpk.h>
#endif

typedef struct rule {
    bool pages, foresees;
    bool (*chosen)(const struct rule *of, int v, int time, bool *pages); /* evict v after that call? */
    const void *user;
} rule;

typedef struct planning {
    const step *s;
    const rule *rule;
    runner *run; /* each row at once; NULL: later */
    schedule *to;
    int64_t budget, in_use, clock, most;
    int now, mark;
    struct { bool here, stored; int pins, seen; int64_t used; } *at; /* stored: in the file */
} planning;

static inline bool plan_row(planning *p, action does, int what) {
    schedule *s = p->to;
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 4096;
        s->row = schedule_grow(s->row, s->cap, sizeof *s->row);
    }
    s->row[s->n++] = (row){p->now, what, does};
    if (s->n > p->most)
        return fl_fail("schedule: values are made over and over: got %lld rows, expected %lld at most",
                       (long long)s->n, (long long)p->most);
    return !p->run || runner_row(p->run, s->row[s->n - 1]);
}

/* Seconds to make v again, with what it needs and is not in memory. */
static inline double plan_above(planning *p, int v) {
    const int c = p->s->v[v].maker;
    double seconds = p->s->cost[c];
    p->at[v].seen = p->mark;
    for (const int *u = p->s->value[c]; *u >= 0; u++)
        if (p->s->v[*u].maker != c && !p->at[*u].here && p->at[*u].seen != p->mark)
            seconds += p->at[*u].stored ? READ_S * (double)p->s->v[*u].bytes : plan_above(p, *u);
    return seconds;
}

/* Seconds to make what was dropped, is still used, and needs v. */
static inline double plan_below(planning *p, int v) {
    const int *use = p->s->v[v].use;
    double seconds = 0;
    for (int i = 0; i < p->s->v[v].uses && use[i] < p->now; i++)
        for (const int *u = p->s->value[use[i]]; *u >= 0; u++) {
            const bool dropped = !p->at[*u].here && !p->at[*u].stored && p->s->v[*u].last >= p->now;
            if (p->s->v[*u].maker != use[i] || !dropped || p->at[*u].seen == p->mark) continue;
            p->at[*u].seen = p->mark;
            seconds += p->s->cost[use[i]] + plan_below(p, *u);
        }
    return seconds;
}

static inline bool plan_evict(planning *p, int v, bool pages) {
    const bool writes = pages && !p->at[v].stored;
    p->at[v].here = false;
    p->at[v].stored |= pages;
    p->in_use -= p->s->v[v].bytes;
    return plan_row(p, writes ? PAGE : DROP, v);
}

/* Evicts until that many bytes fit. */
static inline bool plan_space(planning *p, int64_t bytes) {
    while (p->in_use + bytes > p->budget) {
        double best = -1;
        int victim = -1;
        bool pages = false;
        for (int v = 0; v < p->s->l.n_values; v++) {
            if (!p->at[v].here || p->at[v].pins) continue;
            const double size = (double)p->s->v[v].bytes;
            const double page = size * ((p->at[v].stored ? 0 : WRITE_S) + READ_S);
            p->mark++;
            const double make = step_is_droppable(p->s, v) ? plan_above(p, v) + plan_below(p, v) : INFINITY;
            const double seconds = p->rule->pages ? fmin(page, make) : make;
            const int64_t idle =
                p->rule->foresees ? step_next(p->s, v, p->now, false) - p->now : p->clock - p->at[v].used;
            const double score = size * (double)idle / seconds;
            if (seconds < INFINITY && score > best) best = score, victim = v, pages = seconds < make;
        }
        if (victim < 0)
            return fl_fail("schedule: call %d does not fit: got %lld bytes, expected at most %lld", p->now,
                           (long long)(p->in_use + bytes), (long long)p->budget);
        p->to->evicting++;
        if (!plan_evict(p, victim, pages)) return false;
    }
    p->in_use += bytes;
    return true;
}

/* Call c, of which only value `only` is needed (-1: all): gets its operands back, and drops what died. */
static inline bool plan_generate(planning *p, int c, int only) {
    const step *s = p->s;
    int64_t bytes = 0;
    for (const int *v = s->value[c]; *v >= 0; v++) p->at[*v].pins++;
    for (const int *v = s->value[c]; *v >= 0; v++) {
        if (p->at[*v].here) continue;
        if (s->v[*v].maker == c) bytes += s->v[*v].bytes;
        if (s->v[*v].maker == c) continue;
        if (!p->at[*v].stored && !plan_generate(p, s->v[*v].maker, *v)) return false;
        if (p->at[*v].stored && !(plan_space(p, s->v[*v].bytes) && plan_row(p, FETCH, *v))) return false;
        p->at[*v].here = true;
    }
    if (!plan_space(p, bytes) || !plan_row(p, GENERATE, c)) return false;
    p->clock++;
    for (const int *v = s->value[c]; *v >= 0; v++) {
        p->at[*v].here = true;
        p->at[*v].pins--;
        p->at[*v].used = p->clock;
        if (!s->v[*v].once && step_writes(&s->l.call[c], *v)) p->at[*v].stored = false;
        const bool dead = s->v[*v].last < p->now + (c == p->now);
        if (dead && *v != only && !p->at[*v].pins && !plan_evict(p, *v, false)) return false;
    }
    return true;
}

/* Makes a schedule of s within the budget, and follows it at once if `run` is given. False after fl_fail. */
static inline bool plan_online(const step *s, const rule *of, int64_t budget, runner *run, schedule *to) {
    *to = (schedule){0};
    planning p = {.s = s, .rule = of, .run = run, .to = to, .budget = budget, .most = 40 * (s->l.n + 100)};
    p.at = schedule_alloc(s->l.n_values, sizeof *p.at);
    bool ok = true;
    for (p.now = 0; ok && p.now < s->l.n; p.now++) {
        ok = plan_generate(&p, p.now, -1);
        for (int v = 0; ok && of->chosen && v < s->l.n_values; v++) {
            bool pages = false;
            if (p.at[v].here && of->chosen(of, v, p.now, &pages)) ok = plan_evict(&p, v, pages);
        }
    }
    free(p.at);
    return ok;
}

static const rule greedy = {.pages = true, .foresees = true}, dtr = {.pages = false};

/* Seconds of a schedule by the model. */
static inline double plan_seconds(const step *s, const schedule *to) {
    double seconds = 0;
    for (int64_t i = 0; i < to->n; i++) {
        const row *w = &to->row[i];
        if (w->action == GENERATE) seconds += s->cost[w->what];
        if (w->action == PAGE) seconds += (double)s->v[w->what].bytes * WRITE_S;
        if (w->action == FETCH) seconds += (double)s->v[w->what].bytes * READ_S;
    }
    return seconds;
}

/* ---- optimal ---- */

enum { CLOSURE = 64 };

/* A value that is not used between two calls. pick: 1 paged after the first, 2 dropped. */
typedef struct gap {
    int v, from, to, pick, alive[CLOSURE], n_alive; /* alive: values that making it at `to` needs in memory */
    double make;                                    /* seconds; INFINITY: impossible */
    int64_t extra;                                  /* bytes of what is made beside it */
} gap;

typedef struct gaps {
    gap *g;
    int n;
    double seconds, bound; /* of the choice beyond the step, and what none is below */
} gaps;

/* What making v again before call `at` needs. Values that have died are made with it. */
static inline void gap_make(const step *s, gap *g, int v, int at) {
    const step_value *w = &s->v[v];
    if (!w->once || w->until < at || g->n_alive == CLOSURE) g->make = INFINITY;
    if (g->make == INFINITY) return;
    g->make += s->cost[w->maker];
    for (const int *u = s->value[w->maker]; *u >= 0; u++) {
        if (*u != v || v != g->v) g->extra += s->v[*u].maker == w->maker ? s->v[*u].bytes : 0;
        if (s->v[*u].maker == w->maker) continue;
        if (s->v[*u].last < at) gap_make(s, g, *u, at);
        else if (g->n_alive < CLOSURE) g->alive[g->n_alive++] = *u;
    }
}

/* The gaps of values that are not too small to matter. */
static inline gaps gaps_new(const step *s) {
    gaps to = {.g = NULL};
    for (int v = 0; v < s->l.n_values; v++)
        for (int i = 0; is_large(s, v) && i + 1 < s->v[v].uses; i++) {
            if (s->v[v].use[i + 1] - s->v[v].use[i] < 2) continue;
            to.g = schedule_grow(to.g, to.n + 1, sizeof *to.g);
            gap *g = &to.g[to.n++];
            *g = (gap){.v = v, .from = s->v[v].use[i], .to = s->v[v].use[i + 1]};
            gap_make(s, g, v, g->to);
            if (!step_is_droppable(s, v)) g->make = INFINITY;
        }
    return to;
}

static inline bool gap_chosen(const rule *of, int v, int time, bool *pages) {
    const gaps *all = of->user;
    const gap *g = all->g;
    while (g < all->g + all->n && (g->v != v || g->from != time)) g++;
    *pages = g < all->g + all->n && g->pick == 1;
    return g < all->g + all->n && g->pick;
}

#ifdef FL_USE_GLPK
static inline void gaps_note_bound(glp_tree *t, void *bound) {
    const int node = glp_ios_best_node(t);
    if (node) *(double *)bound = glp_ios_node_bound(t, node);
}

/* A row of n coefficients; kind: GLP_UP or GLP_LO. Columns of gap i: 2 i + 1 page, 2 i + 2 drop. */
static inline void gaps_row(glp_prob *p, int n, const int *column, const double *x, int kind, double limit) {
    const int i = glp_add_rows(p, 1);
    glp_set_row_bnds(p, i, kind, limit, limit);
    glp_set_mat_row(p, i, n, column, x);
}

/* Chooses for a budget, within some seconds. False after fl_fail: no choice was found. */
static inline bool gaps_choose(const step *s, gaps *all, int64_t budget, int seconds) {
    int *column = schedule_alloc(2 * all->n + 2, sizeof *column);
    double *value = schedule_alloc(2 * all->n + 2, sizeof *value);
    glp_prob *p = glp_create_prob();
    glp_term_out(GLP_OFF);
    glp_add_cols(p, 2 * all->n + 1);
    for (int i = 0; i < all->n; i++) {
        const gap *g = &all->g[i];
        const int page = 2 * i + 1, drop = page + 1;
        glp_set_col_kind(p, page, GLP_BV);
        glp_set_col_kind(p, drop, GLP_BV);
        glp_set_obj_coef(p, page, 1e3 * (WRITE_S + READ_S) * (double)s->v[g->v].bytes);
        gaps_row(p, 2, (int[]){0, page, drop}, (double[]){0, 1, 1}, GLP_UP, 1);
        if (g->make == INFINITY) {
            glp_set_col_bnds(p, drop, GLP_FX, 0, 0);
            continue;
        }
        glp_set_obj_coef(p, drop, 1e3 * g->make);
        for (int k = 0; k < g->n_alive; k++)
            for (int j = 0; j < all->n; j++) /* not evicted then */
                if (all->g[j].v == g->alive[k] && all->g[j].from < g->to && g->to < all->g[j].to)
                    gaps_row(p, 3, (int[]){0, drop, 2 * j + 1, 2 * j + 2}, (double[]){0, 1, 1, 1}, GLP_UP, 1);
    }
    for (int t = 0; t < s->l.n; t++) {
        int n = 0;
        int64_t most = s->live[t];
        for (int i = 0; i < all->n; i++) {
            const gap *g = &all->g[i];
            const double bytes = (double)s->v[g->v].bytes / MIB;
            if (g->from < t && t < g->to) {
                column[++n] = 2 * i + 1, value[n] = bytes;
                column[++n] = 2 * i + 2, value[n] = bytes;
            } else if (t == g->to && g->make < INFINITY && g->extra) {
                column[++n] = 2 * i + 2, value[n] = -(double)g->extra / MIB;
                most += g->extra;
            }
        }
        if (most > budget) gaps_row(p, n, column, value, GLP_LO, (double)(s->live[t] - budget) / MIB);
    }
    bool ok = glp_simplex(p, NULL) == 0 && glp_get_status(p) == GLP_OPT;
    all->bound = ok ? glp_get_obj_val(p) : 0;
    glp_iocp o;
    glp_init_iocp(&o);
    o.tm_lim = 1000 * seconds;
    o.mip_gap = 1e-3;
    o.mir_cuts = o.cov_cuts = GLP_ON;
    o.cb_func = gaps_note_bound;
    o.cb_info = &all->bound;
    ok = ok && (glp_intopt(p, &o), glp_mip_status(p) == GLP_OPT || glp_mip_status(p) == GLP_FEAS);
    all->seconds = glp_mip_obj_val(p) / 1e3;
    all->bound = fmin(all->bound / 1e3, all->seconds);
    for (int i = 0; ok && i < all->n; i++)
        all->g[i].pick = (int)lround(glp_mip_col_val(p, 2 * i + 1) + 2 * glp_mip_col_val(p, 2 * i + 2));
    glp_delete_prob(p);
    glp_free_env();
    free(column);
    free(value);
    return ok || fl_fail("schedule: the integer program found no solution in %d seconds", seconds);
}
#else
static inline bool gaps_choose(const step *s, gaps *all, int64_t budget, int seconds) {
    (void)s, (void)all, (void)budget, (void)seconds;
    return fl_fail("schedule: built without GLPK: apt-get install libglpk-dev");
}
#endif

#endif /* MIT licence: see LICENSE. */
