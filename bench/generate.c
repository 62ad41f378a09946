/* bench/generate.c - text generation in tokens per second, one text at a time

   make bench-generate [DATA=../shared/data]

     stories260K   its file through fl_text_decoder, alternating with a plain C loop over it
                   (peers/llama_loop.c, compiled with -O3 -march=native -ffast-math); scores are compared too
     loader        batches for training, from a token file
     llama110m     random weights, 12 layers of 768, as f32, f16, q8, q4_k, q6_k: bytes of weights per second,
                   compared with plain reads by the same threads; a prompt of 512 tokens
     blocks        fl_cast of blocks of each type to f32, and of f32 to blocks: GB/s of f32
     loads         the same shapes from safetensors and GGUF (f16) files in the page cache: milliseconds,
                   compared with safetensors, gguf and, if installed, transformers
     PEER_PYTHON   names a Python with torch and transformers: eager, with cache, the same shapes */
#include "bench.h"
#include "peaks.h"
#include "peer.h"
#include "peers/llama_loop.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { ROUNDS = 7, TOKENS = 256 };

/* One thread is timed by the processor time that it had: on a busy machine that is what can be compared. */
static double now(void) {
    return fl_threads() == 1 ? (double)clock() / CLOCKS_PER_SEC : fl_data_now();
}

static double ours(fl_text_decoder *r, int64_t tokens) {
    const int64_t of = 0;
    int64_t id = 1;
    fl_text_decoder_rewind(r, 0, 0);
    const double start = now();
    for (int64_t i = 0; i < tokens; i++) {
        if (!fl_text_decoder_read(r, 1, &of, &id)) return NAN;
        const float *x = fl_text_decoder_scores(r, 0);
        id = 0;
        for (int64_t k = 1; k < fl_text_decoder_vocabulary(r); k++) id = x[k] > x[id] ? k : id;
    }
    return (now() - start) / (double)tokens;
}

static double theirs(llama_loop *m, int64_t tokens) {
    int id = 1;
    const double start = now();
    for (int i = 0; i < tokens; i++) {
        const float *x = llama_loop_step(m, id, i);
        id = 0;
        for (int k = 1; k < llama_loop_vocabulary(m); k++) id = x[k] > x[id] ? k : id;
    }
    return (now() - start) / (double)tokens;
}

/* The largest distance between the scores of both, on one text. */
static double apart(fl_text_decoder *r, llama_loop *m) {
    double most = 0;
    fl_text_decoder_rewind(r, 0, 0);
    for (int i = 0; i < TOKENS; i++) {
        const int64_t of = 0, id = i ? (i * 37 + 11) % 512 : 1;
        const float *x = llama_loop_step(m, (int)id, i);
        if (!fl_text_decoder_read(r, 1, &of, &id)) return NAN;
        for (int k = 0; k < llama_loop_vocabulary(m); k++) {
            const double off = fabs(x[k] - fl_text_decoder_scores(r, 0)[k]);
            most = off > most ? off : most;
        }
    }
    return most;
}

static double stories(const char *folder, fl_nn_module *m) {
    char path[4096];
    snprintf(path, sizeof path, "%s/weights/stories260K/stories260K.bin", folder);
    llama_loop *loop = llama_loop_open(path);
    fl_text_decoder *r = m && loop ? fl_text_decoder_new(m, 1) : NULL;
    double a[ROUNDS], b[ROUNDS], best = 0;
    for (int i = 0; r && i < ROUNDS; i++) b[i] = theirs(loop, TOKENS), a[i] = ours(r, TOKENS);
    if (r) {
        char note[100];
        const double mine = bench_median(a, ROUNDS), plain = bench_median(b, ROUNDS);
        snprintf(note, sizeof note, "plain loop %.0f, ratio %.2f, of the fastest %.2f, scores %.1e apart",
                 1 / plain, plain / mine, b[0] / a[0], apart(r, loop));
        bench_line("stories260K", best = 1 / mine, "tokens/s", note);
    }
    fl_text_decoder_free(r);
    llama_loop_close(loop);
    return best;
}

/* Every linear weight of m in another dtype. */
static bool convert(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix;
    for (int64_t i = 0; i < m->n_param; i++) {
        fl_scope s = fl_scope_begin();
        fl_var *old = m->param[i].var;
        if (fv_value(old)->ndim == 2) {
            m->param[i].var = fv_keep(fv_const(fl_cast(fv_value(old), *(fl_dtype *)user)));
            fv_drop(old);
        }
        fl_scope_end(&s);
    }
    return true;
}

static fl_nn_module *llama_new(void) {
    return fl_text_lm(32000, .layers = 12, .dim = 768, .heads = 12, .hidden = 2048, .context = 1024,
                      .place = FL_LM_ROTARY, .rms = true, .gated = true, .no_bias = true);
}

#define MADE "build/bench-models"
static const char *loaded; /* what load_made loads */
static void load_made(void) {
    fl_nn_module *m = fl_text_load(loaded);
    if (!m) fprintf(stderr, "%s\n", fl_error());
    fl_nn_free(m);
}

static void loads(void) {
    fl_nn_module *m = llama_new();
    mkdir("build", 0777), mkdir(MADE, 0777);
    const bool made = m && fl_text_save(m, MADE);
    fl_nn_free(m);
    if (!made) return;
    bench_peer peer = bench_peer_begin("models_load.py", MADE, NULL); /* makes the GGUF file */
    loaded = MADE;
    bench_beside(&peer, ROUNDS, "load_llama110m", load_made,
                 (const char *[]){"safetensors:transformers", "safetensors:safetensors", NULL}, 0, "ms");
    loaded = MADE "/model.gguf";
    if (peer.to)
        bench_beside(&peer, ROUNDS, "load_llama110m_gguf", load_made, (const char *[]){"gguf:gguf", NULL}, 0,
                     "ms");
    bench_peer_end(&peer);
}

static void llama(fl_dtype dtype, const char *name) {
    fl_nn_module *m = llama_new();
    if (dtype != FL_F32) fl_nn_visit_modules(m, convert, &dtype);
    fl_nn_train(m, false);
    fl_text_decoder *r = fl_text_decoder_new(m, 1);
    const fl_dtype_info *blocks = fl_dtype_registered(dtype);
    const double per = (double)fl_dtype_size(dtype) / (blocks ? blocks->block : 1);
    const int64_t bytes = (int64_t)((12 * (4 * 768 * 768 + 3 * 768 * 2048) + 32000 * 768) * per);
    double token = INFINITY, prompt = INFINITY, read = 0;
    static int64_t of[512], id[512];
    for (int i = 0; i < 512; i++) id[i] = i * 61 % 32000;
    for (int i = 0; r && i < 8; i++) { /* the best of each, in turn */
        token = fmin(token, ours(r, 4));
        read = fmax(read, peak_read_sample(now));
        fl_text_decoder_rewind(r, 0, 0);
        const double start = now();
        if (i < 3) fl_text_decoder_read(r, 512, of, id), prompt = fmin(prompt, now() - start);
    }
    char figure[40], note[100];
    const double rate = (double)bytes / token / 1e9;
    snprintf(figure, sizeof figure, "llama110m_%s", name);
    snprintf(note, sizeof note, "%.1f GB/s of weights, %.2f of reading alone", rate, rate / read);
    bench_line(figure, 1 / token, "tokens/s", note);
    snprintf(figure, sizeof figure, "llama110m_%s_prompt", name);
    bench_line(figure, 512 / prompt, "tokens/s", "512 at once");
    fl_text_decoder_free(r);
    fl_nn_free(m);
}

/* Casts of 4096 x 4096 numbers, the best of some rounds. */
static void blocks(void) {
    const fl_dtype dtypes[] = {fl_q8(),   fl_q4(),   fl_q4_1(),   fl_q5_0(),   fl_q5_1(),   fl_q2_k(),
                               fl_q3_k(), fl_q4_k(), fl_q5_k(),   fl_q6_k(),   fl_q8_k(),   fl_iq4_nl(),
                               fl_iq4_xs(), fl_mxfp4()};
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_normal(FL_SHAPE(4096, 4096), 0, 1, FL_F32, NULL);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        const fl_dtype_info *info = fl_dtype_registered(dtypes[i]);
        fl_tensor *q = fl_full(FL_SHAPE(4096, 4096 / info->block * (int64_t)info->size), 17, FL_U8);
        q = fl_from_host(fl_map(q, FL_READ), FL_SHAPE(4096, 4096 / info->block), dtypes[i]);
        double read = INFINITY, write = INFINITY;
        for (int round = 0; round < ROUNDS; round++) {
            fl_scope one = fl_scope_begin();
            double start = now();
            if (info->pack && round < 2 && fl_cast(x, dtypes[i])) write = fmin(write, now() - start);
            start = now();
            if (fl_cast(q, FL_F32)) read = fmin(read, now() - start);
            fl_scope_end(&one);
        }
        char figure[40];
        snprintf(figure, sizeof figure, "unpack_%s", info->name);
        bench_line(figure, 4096 * 4096 * 4 / read / 1e9, "GB/s", "of f32");
        snprintf(figure, sizeof figure, "pack_%s", info->name);
        if (info->pack) bench_line(figure, 4096 * 4096 * 4 / write / 1e9, "GB/s", "of f32");
    }
    fl_scope_end(&s);
}

/* Batches of 12 random blocks of 64, as the preset nano trains on, of a mapped file of a million tokens. */
static void loader(void) {
    enum { N = 1 << 20, BATCHES = 2000 };
    const char *path = "bench.tokens";
    fl_scope s = fl_scope_begin();
    fl_tensor *ids = fl_randint(FL_SHAPE(N), 0, 65, NULL);
    fl_text_tokens *t =
        fl_text_tokens_save(path, ids, NULL, NULL) ? fl_text_tokens_open(path, .vocabulary = 65) : NULL;
    fl_data_set *set =
        t ? fl_data_batch(fl_text_blocks(t, 64, .random = true, .size = 12 * BATCHES), 12, true) : NULL;
    const double start = now();
    for (int i = 0; set && i < BATCHES; i++) {
        fl_scope one = fl_scope_begin();
        fl_data_sample b;
        if (!fl_data_get(set, i, &b)) break;
        fl_scope_end(&one);
    }
    bench_line("loader", 12.0 * 64 * BATCHES / (now() - start), "tokens/s",
               "random blocks, batches of 12 x 64");
    fl_data_free(set);
    fl_text_tokens_free(t);
    fl_data_remove(path);
    fl_scope_end(&s);
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "../shared/data", *python = getenv("PEER_PYTHON");
    const char *only = getenv("BENCH_PART"); /* what ASKED names below */
    const bool all = !only || !*only, small = argc > 2; /* small: stories260K alone */
#define ASKED(part) (all || !strcmp(only, part))
    char path[4096];
    snprintf(path, sizeof path, "%s/weights/stories260K", folder);
    if (ASKED("stories")) {
        fl_nn_module *m = fl_text_load(path);
        if (!m) printf("stories260K\t0\ttokens/s\tskipped: %s\n", fl_error()), fl_error_clear();
        else fl_nn_train(m, false), stories(folder, m);
        fl_nn_free(m);
    }
    if (ASKED("loader")) loader();
    if (!small && ASKED("loads")) loads();
    if (!small && ASKED("f32")) llama(FL_F32, "f32");
    if (!small && ASKED("f16")) llama(FL_F16, "f16");
    if (!small && ASKED("q8")) llama(fl_q8(), "q8");
    if (!small && ASKED("q4_k")) llama(fl_q4_k(), "q4_k");
    if (!small && ASKED("q6_k")) llama(fl_q6_k(), "q6_k");
    if (!small && ASKED("blocks")) blocks();
    if (!python || !*python || !ASKED("torch")) return 0;
    snprintf(path, sizeof path, "%s bench/peers/torch_generate.py %s%s", python, folder,
             small ? " small" : "");
    fflush(stdout);
    return system(path) != 0;
}
/* MIT licence: see LICENSE. */
