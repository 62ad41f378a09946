/* examples/research/paged_cache.c - memory of serving: a reserved, a paged and a virtual key/value cache

   make research-paged_cache [ARGS="--requests 64 --budget 4 --rate 0.2 --seed 1"]

   A server of a language model runs as many requests at once as their keys and values fit into memory. How
   long an answer gets is not known before, so that a cache of one piece reserves the longest. PagedAttention
   (Kwon et al., SOSP 2023) measures 60 to 80 % of such memory wasted, and less than 4 % by blocks of 16
   tokens with a table for each sequence, for which attention needs kernels of its own. vAttention (Prabhu et
   al., arXiv 2405.04437) keeps the addresses of the one piece, and has the system map pages behind them as a
   sequence grows: kernels stay as they are.

   Requests arrive at random (`rate` of them a step); prompts and answers have log-normal lengths with the
   means of ShareGPT in the first paper, 161 and 338 of at most 2,048 tokens. A small GPT of random weights
   answers them, a token of each running request a step, prompts as a whole, oldest first. If no memory is
   left, the newest request stops, and later starts again with the tokens it has. Memory is that of `budget`
   longest sequences:
     reserved         fl_text_decoder of as many sequences
     paged, gathered  blocks and tables; each step copies a sequence's blocks together, for fl_attention
     paged, kernel    the same blocks, read by the kernel block_attend of paged_memory.h
     virtual, n KiB   fl_text_decoder of 64 sequences, unchanged, whose buffers are of a memory manager that
                      maps pages of that size (paged_memory.h)
   Means over the steps in which a request waits: requests that run, the share of the memory that tokens
   fill, the share of what the requests took that they do not. Microseconds of a token of an answer: of
   attention with gathering; of growing and releasing. stopped: requests, for want of memory. hash: of all
   tokens. The program fails if more than a twentieth of the answers differ from those of `reserved`: rounding
   may change a token.

   To change it: `ways` holds the memories; `serve` is the scheduler, `draw` the load. */
#define _GNU_SOURCE /* memfd_create */
#include "../arguments.h"
#include "fl_backend.h"
#include "paged_memory.h"

enum { WORDS = 128, SLOTS = 64, WAYS = 6 };
static struct {
    int64_t requests, budget, longest, layers, seed;
    double rate, prompt, answer;
} opt = {64, 4, 2048, 6, 1, 0.2, 161, 338};

typedef struct request {
    int64_t arrives, prompt, total, n, cached, slot; /* n: tokens so far; slot -1: not running */
    int64_t *token;
} request;

typedef struct way {
    const char *name;
    int64_t page; /* KiB of virtual memory, or 0 */
    bool blocks, copies;
    int64_t steps, most, stopped, waits; /* figures; waits: steps in which a request waits */
    double running, used, wasted, seconds; /* the first three: sums over these steps */
    fl_data_curve curve; /* the share of memory that tokens fill */
    uint32_t hash;
} way;

/* ---- the model on blocks ---- */

/* As fl_text_decoder_read: appends token id[i] to slot of[i], which has grown. Sets the scores of each slot
   after its last one. */
static bool blocks_read(blocks *b, int64_t n, const int64_t *of, const int64_t *id, float (*score)[WORDS]) {
    int64_t *position = fl_heap_alloc((size_t)n * 2 * sizeof *position), *last = position + n, n_last = 0;
    if (!position) return false;
    block_rows r = {.b = b, .n = n, .of = of, .position = position};
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    for (int64_t i = 0; i < n; i++) {
        position[i] = b->length[of[i]]++;
        if (i + 1 == n || of[i + 1] != of[i]) last[n_last++] = i;
    }
    fl_nn_module *layers = fl_nn_find(b->net, "layers");
    fl_var *x = fv_add(fl_text_embed(b->net, fv_const(fl_from_host(id, FL_SHAPE(n), FL_I64))),
                       fv_embedding(fl_from_host(position, FL_SHAPE(n), FL_I64),
                                    fl_nn_param_at(fl_nn_find(b->net, "position"), 0), -1));
    for (; x && r.layer < b->layers; r.layer++) x = block_layer(&r, layers->child[r.layer], x, last, n_last);
    fl_tensor *ends = fl_from_host(last, FL_SHAPE(n_last), FL_I64);
    x = x ? fv_const(fl_index_select(fv_value(x), 0, ends)) : NULL;
    x = x ? fl_text_scores(b->net, fl_nn_forward(fl_nn_find(b->net, "norm"), x)) : NULL;
    for (int64_t i = 0; x && i < n_last; i++)
        memcpy(score[of[last[i]]], (float *)fl_data(fv_value(x)) + i * WORDS, sizeof *score);
    fl_scope_end(&s);
    fl_heap_free(position);
    return x != NULL;
}

typedef struct memory { /* one of the ways */
    fl_text_decoder *decoder; /* NULL: blocks */
    virtual_memory *pages;    /* of the decoder; NULL: it has all memory from the start */
    blocks *blocks;
    int64_t token, slots; /* bytes of keys and values of a token */
    bool busy[SLOTS];
    float score[SLOTS][WORDS]; /* of blocks */
    double moving, attention, begun; /* seconds of growing and releasing; of the decoder's attention */
} memory;

static void attention_begins(const fl_call *c, void *user) {
    if (c->op == fl_op_attention) ((memory *)user)->begun = fl_data_now();
}
static void attention_ends(const fl_call *c, void *user) {
    memory *m = user;
    if (c->op == fl_op_attention) m->attention += fl_data_now() - m->begun;
}

static bool memory_open(memory *m, const way *w, fl_nn_module *net) {
    *m = (memory){.token = opt.layers * 2 * KV_HEADS * COLUMNS * (int64_t)sizeof(float),
                  .slots = w->blocks || w->page ? SLOTS : opt.budget};
    const int64_t budget = opt.budget * opt.longest * m->token;
    if (w->blocks) return (m->blocks = blocks_new(net, SLOTS, budget, w->copies)) != NULL;
    const fl_shape shape = FL_SHAPE(SLOTS, KV_HEADS, opt.longest, COLUMNS);
    if (w->page && !(m->pages = virtual_memory_new(shape, FL_F32, budget, w->page << 10))) return false;
    fl_mem_manager *before = m->pages ? fl_mem_set_current(&m->pages->table) : NULL;
    m->decoder = fl_text_decoder_new(net, m->slots);
    if (m->pages) fl_mem_set_current(before);
    for (int64_t i = 0; m->decoder && m->pages && i < SLOTS; i++) virtual_memory_release(m->pages, i);
    return m->decoder && !fl_error();
}

/* Memory for that many tokens of a slot, 0: none. False, and nothing changes, if too little is left. */
static bool memory_resize(memory *m, int64_t slot, int64_t tokens) {
    const double begun = fl_data_now();
    bool ok = true;
    if (m->decoder && !tokens) fl_text_decoder_rewind(m->decoder, slot, 0);
    if (m->pages && !tokens) ok = virtual_memory_release(m->pages, slot);
    if (m->pages && tokens) ok = virtual_memory_grow(m->pages, slot, tokens);
    if (m->blocks && !tokens) blocks_release(m->blocks, slot);
    if (m->blocks && tokens) ok = blocks_grow(m->blocks, slot, tokens);
    if (ok) m->busy[slot] = tokens > 0;
    m->moving += fl_data_now() - begun;
    return ok;
}

/* Bytes that `running` requests have. */
static int64_t memory_taken(const memory *m, int64_t running) {
    if (m->pages) return (m->pages->n_pages - m->pages->n_free) * m->pages->page;
    if (m->blocks) return (m->blocks->n_blocks - m->blocks->n_free) * m->blocks->bytes;
    return running * opt.longest * m->token;
}

/* Log-normal with that mean, at least 1. */
static int64_t draw_length(fl_rng *rng, double mean) {
    const double size = sqrt(-2 * log(1 - fl_rng_uniform(rng))), angle = 2 * 3.14159265 * fl_rng_uniform(rng);
    return 1 + (int64_t)(mean * exp(size * cos(angle) - 0.5));
}

static bool draw(request *r) {
    fl_rng rng = {(uint64_t)opt.seed, 0};
    double at = 0;
    for (int64_t i = 0; i < opt.requests; i++, r++) {
        at -= log(1 - fl_rng_uniform(&rng)) / opt.rate;
        const int64_t prompt = draw_length(&rng, opt.prompt), answer = draw_length(&rng, opt.answer);
        *r = (request){.arrives = (int64_t)at, .slot = -1};
        r->n = r->prompt = prompt < opt.longest / 2 ? prompt : opt.longest / 2;
        r->total = r->prompt + answer < opt.longest ? r->prompt + answer : opt.longest;
        r->token = fl_heap_alloc((size_t)r->total * sizeof *r->token);
        if (!r->token) return false;
        for (int64_t t = 0; t < r->prompt; t++) r->token[t] = (int64_t)(fl_rng_uniform(&rng) * WORDS);
    }
    return true;
}

/* The next token of request i, the largest score with Gumbel's noise. True if the answer is complete. */
static bool advance(memory *m, request *r, int64_t i) {
    const float *score = m->blocks ? m->score[r->slot] : fl_text_decoder_scores(m->decoder, r->slot);
    fl_rng rng = {(uint64_t)(opt.seed + 1 + i), (uint64_t)(r->n * WORDS)};
    double best = -INFINITY;
    for (int64_t k = 0; k < WORDS; k++) {
        const double noisy = score[k] - log(-log(fl_rng_uniform(&rng)));
        if (noisy > best) best = noisy, r->token[r->n] = k;
    }
    r->cached = r->n++;
    return r->n == r->total;
}

static void stop(memory *m, request *r) {
    memory_resize(m, r->slot, 0);
    r->slot = -1, r->cached = 0;
}

/* Memory for the next token of what runs, oldest first; the newest stop for it. Returns how many did. */
static int64_t grow_all(memory *m, request *r) {
    int64_t stopped = 0, newest = opt.requests - 1;
    for (int64_t i = 0; i < opt.requests; i++)
        for (; r[i].slot >= 0 && !memory_resize(m, r[i].slot, r[i].n) && !fl_error(); stopped++) {
            while (r[newest].slot < 0) newest--;
            stop(m, &r[newest]);
        }
    return stopped;
}

/* Whether request r gets a slot and memory. */
static bool admit(memory *m, request *r) {
    int64_t slot = 0;
    while (slot < m->slots && m->busy[slot]) slot++;
    if (slot < m->slots && memory_resize(m, slot, r->n)) r->slot = slot;
    return r->slot >= 0;
}

/* Answers all requests, which are sorted by arrival. */
static bool serve(memory *m, way *w, request *r) {
    const int64_t n = opt.requests, most = SLOTS * opt.longest;
    int64_t *of = fl_heap_alloc((size_t)most * 2 * sizeof *of), *id = of + most, done = 0;
    const double begun = fl_data_now(), budget = (double)(opt.budget * opt.longest * m->token);
    bool ok = of != NULL;
    for (int64_t clock = 0; ok && done < n; clock++) {
        const int64_t stopped = grow_all(m, r);
        int64_t rows = 0, running = 0, tokens = 0;
        bool waits = stopped > 0;
        for (int64_t i = 0; i < n && r[i].arrives <= clock; i++) {
            if (r[i].n < r[i].total && r[i].slot < 0) waits = waits || !admit(m, &r[i]);
            if (r[i].slot < 0) continue;
            for (int64_t t = r[i].cached; t < r[i].n; t++) of[rows] = r[i].slot, id[rows++] = r[i].token[t];
            running++, tokens += r[i].n;
        }
        if (!rows) continue;
        ok = !fl_error() && (m->blocks ? blocks_read(m->blocks, rows, of, id, m->score)
                                       : fl_text_decoder_read(m->decoder, rows, of, id));
        const double filled = (double)(tokens * m->token), taken = (double)memory_taken(m, running);
        fl_data_curve_add(&w->curve, (double)w->steps++, filled / budget);
        w->most = running > w->most ? running : w->most, w->stopped += stopped;
        if (waits) w->waits++, w->running += (double)running;
        if (waits) w->used += filled / budget, w->wasted += 1 - filled / taken;
        for (int64_t i = 0; ok && i < n; i++)
            if (r[i].slot >= 0 && advance(m, &r[i], i)) stop(m, &r[i]), done++;
    }
    w->seconds = fl_data_now() - begun;
    fl_heap_free(of);
    return ok && !fl_error();
}

/* Serves in one way and prints its figures. */
static bool run(way *w, fl_nn_module *net, request *r) {
    memory m = {.token = 0};
    w->curve.name = w->name;
    fl_call_watcher watcher = {.before = attention_begins, .after = attention_ends, .user = &m};
    bool ok = draw(r) && memory_open(&m, w, net);
    fl_watch_calls(&watcher);
    ok = ok && serve(&m, w, r);
    fl_unwatch_calls(&watcher);
    double answered = 0, waits = w->waits ? (double)w->waits : (double)NAN;
    for (request *end = r + opt.requests; ok && r < end; r++) {
        answered += (double)(r->total - r->prompt);
        w->hash = fl_data_crc32c(w->hash, r->token, (size_t)r->total * sizeof *r->token);
    }
    if (ok) printf("%-15s %7.1f %4lld %5.1f %% %5.1f %% %6lld %8.1f %8.0f %9.0f %6.1f %7lld  %08x\n", w->name,
                   w->running / waits, (long long)w->most, 100 * w->used / waits, 100 * w->wasted / waits,
                   (long long)w->steps, w->seconds, answered / w->seconds,
                   1e6 / answered * (m.blocks ? m.blocks->seconds : m.attention), 1e6 / answered * m.moving,
                   (long long)w->stopped, (unsigned)w->hash);
    fflush(stdout);
    fl_text_decoder_free(m.decoder);
    if (m.pages) fl_mem_close(&m.pages->table);
    if (m.blocks) blocks_free(m.blocks);
    return ok;
}

int main(int argc, char **argv) {
    bool small = false;
    const argument list[] = {
        {"requests", .whole = &opt.requests, .low = 1, .high = 1e5},
        {"budget", .whole = &opt.budget, .low = 1, .high = SLOTS, .about = "longest sequences that fit"},
        {"longest", .whole = &opt.longest, .low = 256, .high = 1 << 16, .about = "tokens of a sequence"},
        {"layers", .whole = &opt.layers, .low = 1, .high = 100, .about = "of the model"},
        {"rate", .number = &opt.rate, .low = 1e-4, .high = 1e4, .about = "of requests, a step"},
        {"prompt", .number = &opt.prompt, .low = 1, .high = 1e5, .about = "mean tokens"},
        {"answer", .number = &opt.answer, .low = 1, .high = 1e5, .about = "mean tokens"},
        {"seed", .whole = &opt.seed, .low = 0, .high = 1e9},
        {"small", .on = &small, .about = "a few seconds"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (small) opt.requests = 40, opt.longest = 256, opt.layers = 1;
    if (small) opt.rate = 2, opt.prompt = 20, opt.answer = 42;
    static way ways[] = {{.name = "reserved"}, {.name = "paged, gathered", .blocks = true, .copies = true},
                         {.name = "paged, kernel", .blocks = true}, {.name = "virtual, 4 KiB", .page = 4},
                         {.name = "virtual, 16 KiB", .page = 16}, {.name = "virtual, 64 KiB", .page = 64}};
    request *r = fl_heap_alloc(WAYS * (size_t)opt.requests * sizeof *r);
    fl_rng rng = {(uint64_t)opt.seed, 0};
    fl_nn_module *net = fl_text_lm(WORDS, .layers = opt.layers, .dim = HEADS * COLUMNS, .heads = HEADS,
                                   .kv_heads = KV_HEADS, .context = opt.longest, .std = 0.1, .rng = &rng);
    int64_t differ = 0;
    bool ok = r && net;
    if (ok) fl_nn_train(net, false);
    printf("%15s running, most  used  wasted  steps  seconds tokens/s attention memory stopped  hash\n", "");
    for (int i = 0; ok && i < WAYS; i++) {
        ok = run(&ways[i], net, r + i * opt.requests);
        for (request *a = r, *b = r + i * opt.requests; ok && a < r + opt.requests; a++, b++)
            differ += memcmp(a->token, b->token, (size_t)a->total * sizeof *a->token) != 0;
    }
    if (!ok) fprintf(stderr, "paged_cache: %s\n", fl_error());
    printf("%lld answers differ\n", (long long)differ);
    char page[1024];
    snprintf(page, sizeof page, "%s.svg", argv[0]);
    ok = ok && differ <= opt.requests / 20 &&
         fl_data_plot_svg(page, FL_DATA_CURVES(&ways[0].curve, &ways[2].curve, &ways[3].curve, &ways[4].curve,
                                               &ways[5].curve),
                          .title = "share of the memory that tokens fill", .x_label = "step");
    for (int64_t i = 0; r && i < WAYS * opt.requests; i++) fl_heap_free(r[i].token);
    fl_heap_free(r);
    fl_nn_free(net);
    printf("%s\n", ok ? page : "failed: see above");
    return !ok;
}
/* MIT licence: see LICENSE. */
