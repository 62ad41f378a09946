/* bench/text_steps.c - training steps of language models, alternating with PyTorch if PEER_PYTHON has it

   CPU seconds of all threads, medians (make bench-text PARTS=text_steps-nano)

     nano      4 layers of 128, batches of 12 x 64 characters: nanoGPT's small preset; and the cost of making
               its batches
     lstm      2 layers of 256 over 10,000 words, 20 x 35
     gpt2      GPT-2's 124 M parameters, 1 x 512; and the memory of the process while it trains

   BENCH_PART names one of them; by default all. AdamW, gradients clipped to 1, no dropout. */
#include "bench.h"
#include "peer.h"
#include <string.h>
#include <sys/resource.h>

static bench_peer peer;
static fl_text_training training;
static int64_t steps;

static void run(void) {
    for (int64_t i = 0; i < steps; i++)
        if (!fl_text_training_step(&training, NULL)) fprintf(stderr, "%s\n", fl_error());
}

static double most_memory(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_maxrss / 1024;
}

/* Tokens per second of making batches alone, beside a step's. */
static void loader(fl_data_set *set, double rate) {
    const clock_t start = clock();
    const int64_t n = fl_data_size(set) < 500 ? fl_data_size(set) : 500;
    int64_t tokens = 0;
    for (int64_t i = 0; i < n; i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        if (fl_data_get(set, i, &b)) tokens += fl_numel(b.t[0]);
        fl_scope_end(&s);
    }
    const double made = (double)tokens * CLOCKS_PER_SEC / (double)(clock() - start);
    bench_line("loader", made, "tokens/s", "batches alone");
    bench_line("loader:ratio", made / rate, "x", "tokens of a step");
}

static void part(const char *name, int64_t vocabulary, int64_t batch, int64_t length, int64_t each,
                 int rounds, fl_text_lm_opts o) {
    const char *only = getenv("BENCH_PART");
    if (only && *only && strcmp(only, name)) return;
    fl_rng rng = {1, 0};
    o.rng = &rng, steps = each;
    fl_nn_module *m = fl_text_lm_opt(vocabulary, o);
    fl_scope s = fl_scope_begin();
    fl_text_tokens *t =
        fl_text_tokens_of(fl_randint(FL_SHAPE(200000), 0, vocabulary, NULL), NULL, vocabulary);
    fl_scope_end(&s);
    fl_data_set *set =
        fl_data_batch(fl_text_blocks(t, length, .random = true, .size = batch * 1000), batch, true);
    training = (fl_text_training){
        .model = m, .optim = fl_optim_adamw(fl_nn_parameters(m), .lr = 1e-4), .set = set, .clip = 1};
    char figure[60], jobs[2][60];
    snprintf(figure, sizeof figure, "step_%s", name);
    snprintf(jobs[0], sizeof jobs[0], "%s", name);
    snprintf(jobs[1], sizeof jobs[1], "%s:compile", name);
    const bool compile = getenv("BENCH_COMPILE") != NULL;
    const char *const theirs[] = {jobs[0], compile ? jobs[1] : NULL, NULL};
    const double tokens = (double)(each * batch * length);
    run();
    const clock_t start = clock();
    run();
    const double rate = tokens * CLOCKS_PER_SEC / (double)(clock() - start);
    bench_beside(&peer, rounds, figure, run, theirs, tokens, "tokens/s");
    if (!strcmp(name, "nano")) loader(set, rate);
    const double ours = most_memory(), other = bench_peer_ask(&peer, "memory");
    bench_line("memory", ours, "MB", "ours, the process at most");
    if (other == other) bench_line("memory:torch", other, "MB", "theirs");
    fl_optim_free(training.optim);
    fl_data_free(set);
    fl_text_tokens_free(t);
    fl_nn_free(m);
}

int main(void) {
    char threads[20];
    snprintf(threads, sizeof threads, "%d", fl_threads());
    peer = bench_peer_begin("torch_text_steps.py", threads, NULL);
    part("nano", 65, 12, 64, 5, 7,
         (fl_text_lm_opts){
             .layers = 4, .dim = 128, .heads = 4, .context = 64, .no_bias = true, .activation = fv_gelu});
    part("lstm", 10000, 20, 35, 2, 5,
         (fl_text_lm_opts){.kind = FL_LM_LSTM, .layers = 2, .dim = 256, .untied = true});
    part("gpt2", 50257, 1, 512, 1, 3,
         (fl_text_lm_opts){.layers = 12, .dim = 768, .heads = 12, .context = 1024});
    bench_peer_end(&peer);
    return 0;
}
/* MIT licence: see LICENSE. */
