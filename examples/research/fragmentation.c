/* examples/research/fragmentation.c - memory fragmentation: one recorded trace through eleven allocators

   The paper (Flashlight, ICML 2022, section 5.2.2) recorded the allocations of its models together with the
   ops that asked for them, saw that splitting large cached blocks fragments memory, and reports over 20 %
   less fragmentation on most models from a caching manager that splits them no more.

   This program does so at the public interface. A memory manager (trace.h) records op, shape, bytes and life
   time of each allocation of some training steps of the paper's six models; every second step has half a
   batch, as the last one of an epoch. The trace is then replayed, without memory, through allocators that are
   plain C over a range of addresses (allocators.h):
     caching          Flashlight's and PyTorch's: best fit in segments of 2 MiB (requests up to 1 MiB), 20 MiB
                      (up to 10 MiB), or of their own; blocks are split, free neighbours merged
     caching, limit   blocks above the limit are not split, nor used if 20 MiB or more would be left over
     fl               fl's default: size classes below 64 KiB, above best fit in slabs of 32 MiB
     first, best fit  one range that grows by pages of 2 MiB; "limit": requests up to it take no free block
                      above it
     buddy            powers of two, halved and merged, in segments of 32 MiB or more
     size classes     four per power of two, in runs of 512 KiB or alone
     plan             addresses planned from the whole trace, greedily by size (arXiv 2001.03288), and handed
                      out while it runs, as STAlloc does (arXiv 2507.16274)
     plan of 2 steps  planned from the first two steps; later requests take the places of the step before the
                      last, and if they differ or the place is in use, best fit behind the plan
   Unless --limit gives one, the limit is a power of two MiB (for caching 20 MiB times one, as PyTorch allows
   no smaller ones), that with the smallest device for the model.

   Per cent of the bytes reserved, where `in use` are the bytes requested at their peak, `granted` those of
   their blocks at that time, and `reserved` the most bytes ever taken from the device:
     internal = (granted - in use) / reserved    lost within blocks
     external = (reserved - granted) / reserved  free, but not where they would be of use
     sum = 1 - in use / reserved                 fragmentation; less: than that of `caching`
   `device` is the smallest device, in MiB, on which the trace passes when an allocator that fills it gives
   back unused segments and tries again: what the limit is for. Its sum and less: with that size as reserved.
   `ns`: the median time of a call of these plain lists. Another replay checks that live blocks are disjoint
   and within what is reserved; it must also find the wrong address that is put into one more.

   make research-fragmentation [ARGS="--preset tiny --limit 64 --page f.html --trace f.tsv"]
   To change it: a line of `policies` is an allocator of other sizes; heap_get and heap_put hold the rules. */
#include "../../bench/models/model.h"
#include "../arguments.h"
#include "../html.h"
#include "trace.h"

enum { WIDTH = 300, HEIGHT = 110, TIMED = 5 };
#define MIB ((int64_t)1 << 20)

/* Records training steps, of which every second one has half a batch. An error ends the program. */
static void record(trace *t, const model *m, const model_preset *p, int64_t steps) {
    fl_mem_manager manager = recorder_new(t), *before = fl_mem_set_current(&manager);
    fl_scope scope = fl_scope_begin();
    fl_seed(1);
    fl_nn_module *net = m->build(p);
    fl_nn_channels_last(net);
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(net), .lr = 1e-4, .momentum = 0.9);
    for (int64_t i = 0; i < steps; i++) {
        model_preset now = *p;
        now.batch = i % 2 ? (p->batch + 1) / 2 : p->batch > 1 ? p->batch : 2;
        fl_mem_step();
        fl_scope step = fl_scope_begin();
        model_batch batch = m->batch(&now);
        if (batch.t[0]->ndim == 4) batch.t[0] = fl_channels_last(batch.t[0]);
        fl_optim_zero_grad(optim);
        fl_backward(m->loss(net, &now, &batch));
        fl_optim_step(optim);
        fl_scope_end(&step);
    }
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_scope_end(&scope);
    fl_mem_set_current(before);
    recorder_end(t);
}

/* ---- measuring ---- */

#define SEGMENTS .round = 512, .page = 2 * MIB, .small = MIB, .middle = 10 * MIB, \
                 .slab = {2 * MIB, 20 * MIB}, .rest = {512, MIB}
#define RANGE .round = FL_ALIGN, .page = 2 * MIB, .rest = {FL_ALIGN, FL_ALIGN}, .grows = true
static const policy policies[] = {
    {.name = "caching", SEGMENTS},
    {.name = "caching, limit", SEGMENTS, .limit = 1, .close = 20 * MIB},
    {.name = "fl", .round = 4096, .spare = 2 * FL_ALIGN, .page = 4096, .classes = 64 << 10,
     .middle = 32 * MIB, .slab = {0, 32 * MIB}, .rest = {0, 64 << 10}},
    {.name = "first fit", RANGE, .first = true},
    {.name = "first fit, limit", RANGE, .first = true, .limit = 1},
    {.name = "best fit", RANGE},
    {.name = "best fit, limit", RANGE, .limit = 1},
    {.name = "buddy", .round = 512, .page = 32 * MIB, .rest = {HEAP_NO_LIMIT, HEAP_NO_LIMIT}, .buddy = true},
    {.name = "size classes", .round = FL_ALIGN, .page = FL_ALIGN, .classes = INT64_MAX, .rest = {1, 1}},
    {.name = "plan", RANGE, .plan = 1},
    {.name = "plan of 2 steps", RANGE, .plan = 2},
};
enum { POLICIES = sizeof policies / sizeof *policies };

static int by_number(const void *a, const void *b) {
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

/* The smallest device, in MiB, on which the trace passes, by bisection. */
static int64_t smallest_device(const replay *r) {
    int64_t low = r->t->peak / MIB, high = low + 1; /* fails, passes */
    double ns;
    while (!replay_passes(r, high * MIB, &ns)) low = high, high *= 2;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        *(replay_passes(r, middle * MIB, &ns) ? &high : &low) = middle;
    }
    return high;
}

/* All figures of an allocator. limit: of blocks, in MiB; 0: the one with the smallest device. Sets device, in
   MiB, and ns. */
static figures measure(replay *r, int64_t limit, int64_t *device, double *ns) {
    double all[TIMED];
    int64_t best = limit;
    for (int64_t l = r->p.close ? 20 : 1; r->p.limit && !limit && l <= 1280; l *= 2) {
        r->p.limit = l * MIB;
        const int64_t needed = smallest_device(r);
        if (!best || needed < *device) *device = needed, best = l;
    }
    r->p.limit = r->p.limit ? best * MIB : HEAP_NO_LIMIT;
    figures f = replay_check(r, true);
    if (!f.errors) fprintf(stderr, "fragmentation: the check misses a fault\n"), exit(1);
    free(f.placed);
    f = replay_check(r, false);
    *device = smallest_device(r);
    for (int k = 0; k < TIMED; k++) replay_passes(r, HEAP_NO_LIMIT, &all[k]);
    qsort(all, TIMED, sizeof *all, by_number);
    *ns = all[TIMED / 2];
    return f;
}

/* What fl's own manager reserves for the trace beyond what it had, by allocating: checks the policy "fl". */
static int64_t reserved_by_fl(const trace *t) {
    fl_buffer **b = array_new(t->n, sizeof *b);
    fl_mem_trim();
    fl_mem_stats_reset_peak(fl_mem_caching());
    const int64_t before = fl_mem_stats_of(fl_mem_caching()).reserved;
    for (int64_t e = 0; e < t->n_events; e++) {
        const int64_t i = t->event[e];
        if (i < 0) fl_buffer_drop(b[~i]), b[~i] = NULL;
        else b[i] = fl_buffer_from(fl_mem_caching(), (size_t)t->r[i].bytes, NULL);
    }
    for (int64_t i = 0; i < t->n; i++) fl_buffer_drop(b[i]);
    free(b);
    return fl_mem_stats_of(fl_mem_caching()).peak_reserved - before;
}

/* ---- the report ---- */

/* Paints addresses (HEIGHT rows of row bytes, from the bottom) by events: blue what lives for more than a
   third of the trace, red workspace, yellow the rest, grey what is free below the highest address so far. */
static void paint(const trace *t, const place *placed, int64_t row, unsigned char *pixel) {
    static const unsigned char color[4][3] = {{215, 215, 215}, {70, 110, 180}, {200, 60, 50}, {235, 170, 60}};
    memset(pixel, 255, 3 * HEIGHT * WIDTH);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0, top = 0; i < t->n; i++) {
            const request *r = &t->r[i];
            const int64_t end = placed[i].at + placed[i].bytes, from = pass ? placed[i].at : top;
            const int64_t first = r->get * WIDTH / t->n_events;
            const int64_t last = pass ? (r->put * WIDTH + t->n_events - 1) / t->n_events : WIDTH;
            const int kind = !pass ? 0 : 3 * (r->put - r->get) > t->n_events ? 1 : r->lifetime == 1 ? 2 : 3;
            for (int64_t y = (from + row / 2) / row; y < (end + row / 2) / row && y < HEIGHT; y++)
                for (int c = 0; c < 3; c++)
                    memset(&pixel[(c * HEIGHT + HEIGHT - 1 - y) * WIDTH + first], color[kind][c],
                           (size_t)(last - first));
            if (end > top) top = end;
        }
}

/* Measures all allocators on a trace: a table, a row of images; counts in fewer where their fragmentation is
   20 % below that of the first one, by what is reserved and by the device. False if blocks overlap. */
static bool report(const trace *t, const char *net, fl_data_text *page, int64_t limit, int64_t fewer[][2],
                   uint32_t *hash) {
    const double peak = (double)t->peak, mib = (double)MIB;
    double base[2] = {0};
    figures f[POLICIES];
    int64_t most = 0;
    bool ok = fl_data_text_print(page, "<h2>%s: %.1f MiB in use at the peak</h2>\n", net, peak / mib);
    printf("%s: %lld requests, %.1f MiB in use at the peak\n", net, (long long)t->n, peak / mib);
    printf("  %-21s reserved  internal external    sum    less   device    sum    less     ns\n", "");
    for (int i = 0; i < POLICIES; i++) {
        replay r = replay_new(&policies[i], t);
        int64_t device;
        double ns;
        f[i] = measure(&r, limit, &device, &ns);
        const double reserved = (double)f[i].reserved, granted = (double)f[i].granted;
        const double sum[] = {1 - peak / reserved, 1 - peak / ((double)device * mib)};
        char name[40];
        snprintf(name, sizeof name, policies[i].limit ? "%s %lld" : "%s", policies[i].name,
                 (long long)(r.p.limit / MIB));
        for (int k = 0; k < 2; k++) {
            if (!i) base[k] = sum[k];
            fewer[i][k] += sum[k] <= 0.8 * base[k];
        }
        printf("  %-21s %8.1f  %6.1f %%  %5.1f %% %5.1f %% %5.0f %% %8lld %5.1f %% %5.0f %% %6.0f%s\n", name,
               reserved / mib, 100 * (granted - peak) / reserved, 100 * (reserved - granted) / reserved,
               100 * sum[0], 100 * (1 - sum[0] / base[0]), (long long)device, 100 * sum[1],
               100 * (1 - sum[1] / base[1]), ns, f[i].errors ? "  BLOCKS OVERLAP" : "");
        if (f[i].reserved > most) most = f[i].reserved;
        ok &= !f[i].errors;
        *hash = fl_data_crc32c(fl_data_crc32c(*hash, &f[i].hash, sizeof f[i].hash), &device, sizeof device);
        replay_free(&r);
    }
    printf("  fl's own manager reserved %.1f MiB\n", (double)reserved_by_fl(t) / mib);
    fflush(stdout);
    for (int i = 0; i < POLICIES; i++) {
        static unsigned char pixel[3 * HEIGHT * WIDTH];
        paint(t, f[i].placed, most / HEIGHT + 1, pixel);
        free(f[i].placed);
        fl_scope scope = fl_scope_begin();
        ok = ok && fl_data_text_print(page, "<figure>") &&
             html_image(page, fl_from_host(pixel, FL_SHAPE(3, HEIGHT, WIDTH), FL_U8), "") &&
             fl_data_text_print(page, "<figcaption>%s: %.1f MiB</figcaption></figure>\n", policies[i].name,
                                (double)f[i].reserved / mib);
        fl_scope_end(&scope);
    }
    return ok;
}

int main(int argc, char **argv) {
    static const char *const names[] = {"alexnet", "vit", "vgg16", "resnet50", "bert", "asr"};
    const char *preset = NULL, *path = NULL, *trace_path = NULL, *only = NULL;
    int64_t steps = 4, limit = 0, fewer[POLICIES][2] = {{0}};
    bool small = false;
    const argument table[] = {
        {"preset", .text = &preset, .about = "sizes of the models, as in bench/models: cpu, tiny"},
        {"model", .text = &only, .about = "one of the models alone"},
        {"steps", .whole = &steps, .low = 1, .high = 64, .about = "training steps to record"},
        {"limit", .whole = &limit, .low = 0, .high = 4096, .about = "split limit, in MiB; 0: the best"},
        {"page", .text = &path, .about = "writes addresses by time as HTML; the program.html if not given"},
        {"trace", .text = &trace_path, .about = "writes the requests of all models as TSV"},
        {"small", .on = &small, .about = "two models, tiny"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, table)) return 2;
    fl_data_text page = {0};
    uint32_t hash = 0;
    int n = 0;
    bool ok = html_begin(&page, "fragmentation", "figure{display:inline-block;margin:4px}") &&
              fl_data_text_print(&page, "Addresses (upwards) by time. Blue: lives for more than a third of "
                                        "the trace; red: workspace; yellow: other; grey: free. MiB: reserved.\n");
    const time_t start = time(NULL);
    FILE *tsv = trace_path ? fopen(trace_path, "w") : NULL;
    if (trace_path && !tsv) return fprintf(stderr, "fragmentation: cannot write %s\n", trace_path), 1;
    fl_set_threads(1); /* one order of requests */
    for (int i = 0; i < (small ? 2 : 6) && ok; i++) {
        const model *m = model_find(names[i]);
        const model_preset *p = model_preset_find(m, preset ? preset : small ? "tiny" : "cpu");
        if (only && strcmp(only, names[i])) continue;
        if (!p) return fprintf(stderr, "fragmentation: %s has no preset %s\n", names[i], preset), 2;
        trace t;
        record(&t, m, p, steps);
        ok = report(&t, names[i], &page, limit, fewer, &hash) && (!tsv || trace_write(&t, names[i], tsv));
        trace_free(&t);
        n++;
    }
    printf("models with 20 %% less fragmentation than caching, by reserved and by device (paper: most):\n");
    for (int i = 1; i < POLICIES; i++)
        printf("  %-16s %lld and %lld of %d\n", policies[i].name, (long long)fewer[i][0],
               (long long)fewer[i][1], n);
    if (tsv) ok &= fclose(tsv) == 0;
    char beside[1024];
    snprintf(beside, sizeof beside, "%s.html", argv[0]);
    ok = ok && fl_data_replace("fragmentation", path ? path : beside, page.p, (size_t)page.n);
    fl_heap_free(page.p);
    printf("%lld s, hash %08x%s\n", (long long)(time(NULL) - start), (unsigned)hash, ok ? "" : ": FAILED");
    return !ok;
}
/* MIT licence: see LICENSE. */
