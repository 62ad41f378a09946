/* examples/research/schedule.c - preordained schedules: a training step in half of its memory, three ways

   The paper (Flashlight, ICML 2022, section 5.2.3) names schedules that are made before a step runs: a table
   of which tensor is generated, preserved or fetched when. MODeL (ICML 2023, arXiv 2210.12924) makes such
   tables by integer programming. DTR (ICLR 2021, arXiv 2006.09616) needs none: it sees allocations and calls,
   drops what is stale, large and cheap, and makes it again when a call needs it.

   This program records a step of ResNet-50 and of ViT (forward, backward, SGD with momentum, which updates
   each parameter in the backward pass) by fl_graph.h, and runs it again from the same weights within 100, 70
   and 50 % of the bytes that live at its peak, by schedules of a greedy planner and of an integer program,
   which page (to a file) or drop, and by DTR, which drops. It fails if the state after a step has other
   bits than by itself, or if a call exceeds the budget. Managed and counted are the values that the step
   makes: not weights, nor the workspaces of kernels.
     again   calls that ran another time       paged, fetched   MiB written to the file, read from it
     model   seconds beyond the step's by constants of schedule.h, which the integer program minimises
     bound   of its choices: each value comes back when it is used next, by the file or from values that are
             in memory then or have died; the order of calls is the program's
   Then DTR runs chains of N layers forward and backward in c sqrt(N) tensors. Its paper proves that calls
   stay proportional to N; the program fails at four times those of the chain.
   make research-schedule [ARGS="--model vit --batch 16 --budget 40 --limit 10 --repeats 5 --table rows.tsv"]
   To change it: a planner is a line of planners.h (`greedy`, `dtr`). */
#include "../arguments.h"
#include "../html.h"
#include "planners.h"

enum { CHAIN = 4096, REPEATS = 15, PLANNERS = 3, RUNS = 3 * PLANNERS };

/* ---- a step ---- */

/* A step of a model, or of a chain of `layers`; hash, seconds, peak: what it is by itself. */
typedef struct recording {
    const model *m;
    model_preset preset;
    model_batch batch;
    fl_nn_module *net;
    fl_var *x;
    int64_t layers, peak;
    fl_optim *optim;
    fl_graph *g;
    step s;
    before from;
    uint32_t hash; /* of the state after it */
    double seconds;
} recording;

/* One step, recorded or not. */
static void run_step(recording *r, bool records) {
    if (records) fl_graph_begin(r->g);
    fl_scope scope = fl_scope_begin();
    fl_var *y = r->x;
    for (int64_t i = 0; i < r->layers; i++) y = fv_sin(y);
    fl_backward(r->m ? r->m->loss(r->net, &r->preset, &r->batch) : fv_sum(y, FL_ALL_AXES));
    fl_optim_step(r->optim);
    if (!r->m) fl_optim_zero_grad(r->optim);
    fl_scope_end(&scope);
    if (records) fl_graph_end(r->g);
}

static recording recording_new(const model *m, model_preset preset, int64_t layers) {
    recording r = {.m = m, .preset = preset, .layers = layers, .g = fl_graph_new()};
    fl_seed(1);
    if (m) {
        r.net = m->build(&r.preset);
        fl_nn_channels_last(r.net);
        r.batch = m->batch(&r.preset);
        if (r.batch.t[0]->ndim == 4) r.batch.t[0] = fl_channels_last(r.batch.t[0]);
    } else r.x = fv_param(fl_uniform(FL_SHAPE(CHAIN), 0, 1, FL_F32, NULL));
    r.optim = fl_optim_sgd(m ? fl_nn_parameters(r.net) : FV_LIST(r.x), .lr = 1e-3, .momentum = m ? 0.9 : 0);
    fl_optim_step_in_backward(r.optim, m != NULL);
    run_step(&r, false); /* makes the momentum */
    run_step(&r, true);  /* shows what is state */
    r.from = before_new(fl_graph_calls(r.g));
    fl_mem_stats_reset_peak(fl_mem_caching());
    r.peak = -fl_mem_stats_of(fl_mem_caching()).in_use;
    r.seconds = -fl_data_now();
    run_step(&r, false);
    r.seconds += fl_data_now();
    r.peak += fl_mem_stats_of(fl_mem_caching()).peak_in_use;
    r.hash = before_restore(&r.from, true);
    run_step(&r, true);
    if (!fl_error() && before_restore(&r.from, true) != r.hash) fl_fail("the recorded step has other bits");
    if (fl_error()) fprintf(stderr, "schedule: %s\n", fl_error()), exit(1);
    r.s = step_new(fl_graph_calls(r.g));
    return r;
}

static void recording_free(recording *r) {
    step_free(&r->s);
    before_free(&r->from);
    fl_graph_free(r->g);
    fl_optim_free(r->optim), fl_nn_free(r->net);
}

/* ---- the table ---- */

typedef struct outputs {
    fl_data_text page;
    FILE *rows;
    int64_t limit, repeats, percent; /* limit: seconds of the integer program; percent: 0: 100, 70, 50 */
    uint32_t hash;
} outputs;

/* The schedule as a picture, values (downwards) by time: blue preserved, red generated again, yellow fetched,
   grey absent but still to be used; and its rows as text. */
static bool show(outputs *out, const step *s, const schedule *plan, const char *caption) {
    static const unsigned char color[5][3] = {
        {255, 255, 255}, {205, 205, 205}, {70, 110, 180}, {235, 170, 60}, {200, 60, 50}};
    const int64_t n = s->l.n_values, calls = s->l.n;
    char *here = schedule_alloc(n, 1), *cell = schedule_alloc(n * calls, 1); /* cell: a color */
    int64_t i = 0, rows = 0;
    for (int64_t t = 0; t < calls; t++) {
        char *now = cell + t * n;
        for (int64_t v = 0; v < n; v++) now[v] = here[v] ? 2 : s->v[v].first <= t && t < s->v[v].last;
        for (; i < plan->n && plan->row[i].time == t; i++) {
            const row w = plan->row[i];
            const int one[] = {w.what, -1};
            for (const int *v = w.action == GENERATE ? s->value[w.what] : one; *v >= 0; v++) {
                const bool comes = w.action == GENERATE || w.action == FETCH;
                if (comes && !here[*v]) now[*v] = w.action == FETCH ? 3 : w.what == t ? 2 : 4;
                here[*v] = comes;
            }
            if (!out->rows) continue;
            fprintf(out->rows, "%s\t%d\t%s\t%s%d\n", caption, w.time, action_name[w.action],
                    w.action == GENERATE ? fl_op_name(s->l.call[w.what].call.op) : "%", w.what);
        }
    }
    unsigned char *pixel = schedule_alloc(3 * n * calls, 1);
    for (int64_t v = 0; v < n; v++) rows += is_large(s, (int)v);
    for (int64_t v = 0, y = 0; v < n; y += is_large(s, (int)v++))
        for (int64_t t = 0; t < calls && is_large(s, (int)v); t++)
            for (int64_t k = 0; k < 3; k++)
                pixel[(k * rows + y) * calls + t] = color[(int)cell[t * n + v]][k];
    const bool ok = fl_data_text_print(&out->page, "<figure>") &&
                    html_image(&out->page, fl_from_host(pixel, FL_SHAPE(3, rows, calls), FL_U8),
                               "width=400 height=180") &&
                    fl_data_text_print(&out->page, "<figcaption>%s</figcaption></figure>\n", caption);
    free(here), free(cell), free(pixel);
    return ok;
}

/* ---- measuring ---- */

typedef struct attempt {
    int planner; /* 0 greedy, 1 the integer program, 2 DTR */
    bool planned;
    int64_t percent, budget, peak, sum[ACTIONS];
    schedule plan;
    gaps choice;
    double planning, seconds[REPEATS];
} attempt;

/* Runs it, and checks bits and bytes. DTR plans while it runs, and may fail: then `planned` is false. */
static bool attempt_run(const recording *of, attempt *a, int round) {
    const step *s = &of->s;
    runner r = {.s = s, .file = tmpfile(), .budget = a->budget};
    r.b = schedule_alloc(s->l.n_values, sizeof *r.b);
    bool ok = r.file || fl_fail("schedule: cannot make a file");
    const bool online = a->planner == 2;
    if (online) free(a->plan.row);
    a->seconds[round] = -fl_data_now();
    if (online) a->planned = plan_online(s, &dtr, a->budget, &r, &a->plan);
    for (int64_t i = 0; !online && ok && i < a->plan.n; i++) ok = runner_row(&r, a->plan.row[i]);
    a->seconds[round] += fl_data_now();
    a->peak = r.peak;
    memcpy(a->sum, r.sum, sizeof a->sum);
    const uint32_t hash = before_restore(&of->from, true);
    if (!a->planned) { /* and not a row that cannot run */
        free(a->plan.row);
        ok = !plan_online(s, &dtr, a->budget, NULL, &a->plan);
        if (ok) fl_error_clear();
    } else if (ok && hash != of->hash)
        ok = fl_fail("schedule: other bits: got %08x, expected %08x", (unsigned)hash, (unsigned)of->hash);
    for (int v = 0; v < s->l.n_values; v++) runner_drop(&r, v);
    if (r.file) fclose(r.file);
    free(r.b);
    return ok;
}

static int by_number(const void *a, const void *b) {
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

/* All budgets and planners on a model. */
static bool report(const model *m, model_preset preset, outputs *out) {
    static const char *const name[] = {"greedy", "optimal", "DTR"};
    static attempt all[RUNS];
    fl_scope scope = fl_scope_begin();
    recording r = recording_new(m, preset, 0);
    const step *s = &r.s;
    const int n = out->percent ? PLANNERS : RUNS;
    printf("%s, batch %lld: %lld calls make %.1f MiB, %.0f %% of which cannot be made again; peak %.1f, one"
           " call needs %.1f\n  by itself: %.3f s (model %.3f), %.1f MiB with workspaces; hash %08x\n"
           "    %%          budget    peak  seconds  again   paged fetched    model planning\n",
           m->name, (long long)preset.batch, (long long)s->l.n, (double)s->made / MIB,
           100 * (double)s->fixed / (double)s->made, (double)s->peak / MIB, (double)s->largest / MIB,
           r.seconds, s->seconds, (double)r.peak / MIB, (unsigned)r.hash);
    bool ok = fl_data_text_print(&out->page, "<h2>%s</h2>\n", m->name);
    for (int i = 0; i < n && ok; i++) {
        const int64_t percent = out->percent ? out->percent : (int64_t[]){100, 70, 50}[i / PLANNERS];
        const int k = i % PLANNERS;
        attempt *a = &all[i];
        *a = (attempt){.planner = k, .percent = percent, .budget = s->peak * percent / 100};
        const rule optimal = {.pages = true, .foresees = true, .chosen = gap_chosen, .user = &a->choice};
        a->planning = -fl_data_now();
        if (k == 1) a->choice = gaps_new(s);
        a->planned = k != 1 || gaps_choose(s, &a->choice, a->budget, (int)out->limit);
        if (k < 2 && a->planned)
            a->planned = plan_online(s, k ? &optimal : &greedy, a->budget, NULL, &a->plan);
        a->planning += fl_data_now();
        if (!a->planned) printf("  %3lld %-8s %s\n", (long long)percent, name[k], fl_error());
        ok = a->planned || k || a->budget < s->largest; /* greedy finds one if calls fit */
        if (ok) fl_error_clear();
    }
    for (int round = 0; round < out->repeats; round++)
        for (int i = 0; i < n && ok; i++) ok = !all[i].planned || attempt_run(&r, &all[i], round);
    for (int i = 0; i < n && ok; i++) {
        attempt *a = &all[i];
        char text[80];
        snprintf(text, sizeof text, "%s, %s, %lld %%", m->name, name[a->planner], (long long)a->percent);
        printf("  %3lld %-8s", (long long)a->percent, name[a->planner]);
        qsort(a->seconds, (size_t)out->repeats, sizeof *a->seconds, by_number);
        if (a->planned)
            printf(" %7.1f %7.1f %8.3f %6lld %7.1f %7.1f %8.4f %8.2f", (double)a->budget / MIB,
                   (double)a->peak / MIB, a->seconds[out->repeats / 2],
                   (long long)(a->sum[GENERATE] - s->l.n), (double)a->sum[PAGE] / MIB,
                   (double)a->sum[FETCH] / MIB, plan_seconds(s, &a->plan) - s->seconds, a->planning);
        if (a->planned && a->planner == 1)
            printf("  of %.4f, bound %.4f, unforeseen %lld", a->choice.seconds, a->choice.bound,
                   (long long)a->plan.evicting);
        puts(a->planned ? "" : " no schedule");
        ok = !a->planned || show(out, s, &a->plan, text);
        free(a->plan.row), free(a->choice.g);
    }
    out->hash = fl_data_crc32c(out->hash, &r.hash, sizeof r.hash);
    recording_free(&r);
    fl_scope_end(&scope);
    fflush(stdout);
    return ok;
}

/* DTR on a chain in c sqrt(N) tensors. False if bits are wrong, or calls too many. */
static bool chain(int64_t layers, double c, outputs *out) {
    fl_scope scope = fl_scope_begin();
    recording r = recording_new(NULL, (model_preset){0}, layers);
    const int64_t bytes = 4 * CHAIN;
    attempt a = {.planner = 2, .budget = (int64_t)(c * sqrt((double)layers)) * bytes};
    bool ok = attempt_run(&r, &a, 0) && a.planned;
    const double ratio = (double)a.sum[GENERATE] / (double)r.s.l.n;
    printf("  %6lld %8lld %9lld %8lld %8lld %7.2f\n", (long long)layers, (long long)(r.s.peak / bytes),
           (long long)(a.peak / bytes), (long long)r.s.l.n, (long long)a.sum[GENERATE], ratio);
    if (ok && ratio >= 4) ok = fl_fail("schedule: calls of a chain: got %.2f N, expected 4 N at most", ratio);
    out->hash = fl_data_crc32c(out->hash, &r.hash, sizeof r.hash);
    free(a.plan.row);
    recording_free(&r);
    fl_scope_end(&scope);
    return ok;
}

int main(int argc, char **argv) {
    const char *preset = NULL, *only = NULL, *table_path = NULL;
    int64_t batch = 0;
    outputs out = {.limit = 60, .repeats = 1};
    double c = 2;
    bool small = false;
    const argument table[] = {
        {"preset", .text = &preset, .about = "sizes, as in bench/models: cpu, tiny"},
        {"model", .text = &only, .about = "one of bench/models, instead of resnet50 and vit; chain: none"},
        {"batch", .whole = &batch, .low = 1, .high = 1024, .about = "samples, instead of the preset's"},
        {"budget", .whole = &out.percent, .low = 1, .high = 100, .about = "per cent, instead of 100, 70, 50"},
        {"limit", .whole = &out.limit, .low = 1, .high = 3600, .about = "seconds of the integer program"},
        {"repeats", .whole = &out.repeats, .low = 1, .high = REPEATS, .about = "runs; seconds: the median"},
        {"tensors", .number = &c, .low = 1, .high = 100, .about = "of chains: this times sqrt(N)"},
        {"table", .text = &table_path, .about = "writes the rows of all schedules as TSV"},
        {"small", .on = &small, .about = "tiny models, bert too; short chains"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, table)) return 2;
    if (table_path && !(out.rows = fopen(table_path, "w")))
        return fprintf(stderr, "schedule: cannot write %s\n", table_path), 1;
    const double start = fl_data_now();
    bool ok = html_begin(&out.page, "schedule", "figure{display:inline-block;margin:4px}");
    for (int i = 0; i < (only ? 1 : 2 + small) && ok && (!only || strcmp(only, "chain")); i++) {
        const model *m = model_find(only ? only : (const char *[]){"resnet50", "vit", "bert"}[i]);
        const model_preset *p = m ? model_preset_find(m, preset ? preset : small ? "tiny" : "cpu") : NULL;
        if (!p) return fprintf(stderr, "schedule: no such model or preset\n"), 2;
        model_preset now = *p;
        if (batch || small) now.batch = batch ? batch : 8;
        ok = report(m, now, &out);
    }
    printf("DTR on chains of N layers:\n       N     live in memory    calls      run   ratio\n");
    for (int64_t n = 64; n <= (small ? 256 : 1024) && ok; n *= 2) ok = chain(n, c, &out);
    if (out.rows) ok &= fclose(out.rows) == 0;
    char beside[1024];
    snprintf(beside, sizeof beside, "%s.html", argv[0]);
    ok = ok && fl_data_replace("schedule", beside, out.page.p, (size_t)out.page.n);
    fl_heap_free(out.page.p);
    printf("%.0f s, hash %08x%s%s\n", fl_data_now() - start, (unsigned)out.hash, ok ? "" : ": FAILED: ",
           fl_error() ? fl_error() : "");
    return !ok;
}
/* MIT licence: see LICENSE. */
