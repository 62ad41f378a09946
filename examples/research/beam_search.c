/* examples/research/beam_search.c - autograd over 10^7 scalars: a differentiable beam search

   make research-beam_search DATA=../shared/data/speech [ARGS="--steps 1500 --beam 10 --blocks 1 --seeds 3"]
   make research-beam_search [ARGS="--frames 50000 --states 200"]      on synthesised digits (voices.h)

   The Flashlight paper (ICML 2022, section 5.2.1) names a workload that frameworks of tensors do not fit: the
   differentiable beam search decoder (Collobert, Hannun, Synnaeve, ICML 2019) builds a graph of millions of
   scalars for each step, whose shape depends on their values. Here that graph is a tape of its own
   (lattice.h), which fv_record_opt makes one node of fl's graph.

   1. Cost (lattice_cost.h): ns and bytes of a node; gradients beside those of an algorithm written by hand.
   2. Use: strings of two to five spoken digits, spelled in letters (spelling.h), are recognised by a network
      that is trained by log(paths that the search finds) - log(paths that spell the target), with a weight
      for each pair of letters. The search is for the ten words in any order, or for letters in any order.
      CTC trains the same network on the same strings for as many seconds of the processor, one thread. Each
      seed holds out another two of the six speakers.

   Fails if gradients by hand differ, or CTC's loss and gradient differ from those of its lattice.
   To change it: lattices are arrays (`states`): another lexicon is another `spelling`. */
#include "fl_speech.h"
#include "../extend/training.h"
#include "spelling.h"
#include "lattice_cost.h"
#include <time.h>

enum { MOST_FRAMES = 4096, MOST_SEEDS = 16, TEST_BEAM = 20 };
static struct {
    const char *data;
    int64_t frames, states, steps, seeds, seed, strings, tests, batch, width, blocks;
    double beam, rate, ctc_rate;
    bool small;
} options = {.frames = 50000, .states = 200, .steps = 1500, .seeds = 3, .seed = 1, .strings = 2000,
             .tests = 300, .batch = 8, .width = 64, .blocks = 1, .beam = 10, .rate = 0.003,
             .ctc_rate = 0.003};

/* ---- training ---- */

typedef struct model {
    fl_nn_module *net;
    fl_var *weight;       /* of pairs of letters */
    const states *search; /* NULL: CTC */
    int64_t steps, nodes, strings;
    double seconds;
} model;

/* The mean of the loss of a letter, over the strings. */
static fl_var *loss_of_ctc(fl_var *x, const fl_data_sample *b) {
    fl_tensor *frames = fl_floor_divide(fl_add(b->t[2], fl_int(SUBSAMPLING - 1)), fl_int(SUBSAMPLING));
    return fv_ctc_loss(fv_transpose(fv_log_softmax(x, -1), 0, 1), b->t[1], frames, b->t[3], .blank = BLANK);
}

/* The same of log(paths that the search finds) - log(paths of the text). */
static fl_var *loss_of_search(model *m, fl_var *x, const fl_data_sample *b) {
    fl_var *loss = fv_num(0);
    const int64_t n = b->t[0]->shape[0], longest = b->t[1]->shape[1];
    const int64_t *letter = fl_data(b->t[1]), *frames = fl_data(b->t[2]), *count = fl_data(b->t[3]);
    for (int64_t i = 0; i < n; i++) {
        spelling text;
        int64_t own = 0, found = 0;
        spelling_text(&text, letter + i * longest, count[i]);
        states target = spelling_states(&text);
        fl_var *one = fv_slice(fv_select(x, 0, i), 0, 0, (frames[i] + SUBSAMPLING - 1) / SUBSAMPLING, 1);
        fl_var *all = fv_lattice(one, m->weight, m->search, options.beam, &found);
        fl_var *truth = target.label ? fv_lattice(one, m->weight, &target, INFINITY, &own) : NULL;
        fl_heap_free(target.label);
        if (!all || !truth) return NULL;
        loss = fv_add(loss, fv_mul(fv_sub(all, truth), fv_num(1.0 / (double)(n * count[i]))));
        m->nodes += own + found, m->strings++;
    }
    return loss;
}

static double cpu_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* Trains for `seconds` of the processor, or for options.steps if 0. */
static bool train(model *m, string *list, double seconds, int64_t seed) {
    fl_data_set *set = fl_data_shuffle(fl_data_callback(options.strings, give_string, list), (uint64_t)seed);
    set = fl_data_batches(set, .size = options.batch, .pad = true, .pad_value = {SILENCE * 0.25 + 2},
                          .lengths = 3);
    const double rate = m->search ? options.rate : options.ctc_rate, start = cpu_seconds();
    fl_optim *optim = fl_optim_adamw(fl_nn_parameters(m->net), .lr = rate, .weight_decay = 1e-3);
    fl_optim *pairs = fl_optim_adam(FV_LIST(m->weight), .lr = rate);
    int64_t epoch = 0, index = 0;
    bool ok = set && optim && pairs;
    for (double done = 0; ok && done < 1;) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        const double lr = rate * fmin(1, (double)(m->steps + 1) / 50) * 0.5 * (1 + cos(3.14159265 * done));
        fl_optim_zero_grad(optim), fl_optim_zero_grad(pairs);
        ok = fl_optim_set_lr(optim, lr) && fl_optim_set_lr(pairs, lr) &&
             fl_data_next(set, &epoch, &index, &b);
        fl_var *x = ok ? fl_nn_forward(m->net, fv_const(b.t[0])) : NULL;
        fl_var *loss = !x ? NULL : m->search ? loss_of_search(m, x, &b) : loss_of_ctc(x, &b);
        ok = loss && fl_backward(loss) && fl_optim_clip(optim, 1) && fl_optim_step(optim) &&
             (!m->search || fl_optim_step(pairs));
        m->steps++, m->seconds = cpu_seconds() - start;
        done = seconds > 0 ? m->seconds / seconds : (double)m->steps / (double)options.steps;
        fl_scope_end(&s);
    }
    fl_optim_free(optim), fl_optim_free(pairs);
    fl_data_free(set);
    return ok;
}

/* ---- tests ---- */

/* Letters of the best path of g. Returns their number, -1 after an error. */
static int64_t decode(fl_tensor *x, fl_tensor *weight, const states *g, int64_t *letter) {
    const int64_t frames = x->shape[0];
    tape t = tape_new();
    const bool ok = frames <= MOST_FRAMES && lattice(&t, g, fl_data(x), fl_data(weight), frames, TEST_BEAM);
    if (ok) lattice_best(&t, CLASSES, frames, letter);
    tape_drop(&t);
    return ok ? fl_speech_collapse(letter, frames, BLANK, letter) : -1;
}

/* Percent that are wrong: letters, found in any order (g[0]), and words (g[1]). */
static bool test(const model *m, fl_tensor *weight, const string *list, int64_t n_tests, const states g[2],
                 double percent[2]) {
    static int64_t letter[MOST_FRAMES], word[MOST_FRAMES];
    fl_data_edits edits[2] = {{0}};
    bool ok = weight != NULL;
    fl_nn_train(m->net, false);
    for (int64_t i = 0; ok && i < n_tests; i++) {
        fl_scope s = fl_scope_begin();
        fl_no_grad(true);
        const string *one = &list[i];
        fl_tensor *x = fv_value(fl_nn_forward(m->net, fv_const(fl_unsqueeze(one->x, 0))));
        x = fl_contiguous(fl_select(m->search ? x : fl_log_softmax(x, -1), 0, 0));
        int64_t n = x ? decode(x, weight, &g[0], letter) : -1;
        ok = n >= 0 && fl_data_edits_add(&edits[0], letter, n, fl_data(one->letter), fl_numel(one->letter));
        n = ok ? decode(x, weight, &g[1], letter) : -1;
        if (n >= 0) n = spelling_read(letter, n, word);
        ok = n >= 0 && fl_data_edits_add(&edits[1], word, n, one->digit, one->digits);
        fl_scope_end(&s);
    }
    for (int i = 0; i < 2; i++) percent[i] = fl_data_edits_percent(&edits[i]);
    return ok;
}

/* Weights: logarithms of the probabilities of letters after letters in the training strings. */
static fl_tensor *bigram(const string *list) {
    float w[WEIGHTS] = {0};
    double pair[LETTERS][LETTERS] = {{0}};
    for (int64_t i = 0; i < options.strings; i++) {
        const int64_t *letter = fl_data(list[i].letter);
        for (int64_t k = 1; k < fl_numel(list[i].letter); k++) pair[letter[k - 1]][letter[k]]++;
    }
    for (int a = 0; a < LETTERS; a++) {
        double sum = LETTERS; /* one more of each */
        for (int b = 0; b < LETTERS; b++) sum += pair[a][b];
        for (int b = 0; b < LETTERS; b++) w[weight_of(a, b)] = (float)log((pair[a][b] + 1) / sum);
    }
    return fl_from_host(w, FL_SHAPE(WEIGHTS), FL_F32);
}

/* Weights: a bonus for each word after the first. */
static fl_tensor *word_bonus(double bonus) {
    float w[WEIGHTS] = {0};
    for (int b = 0; b < LETTERS; b++) w[weight_of(0, b)] = (float)bonus;
    return fl_from_host(w, FL_SHAPE(WEIGHTS), FL_F32);
}

/* ---- the table ---- */

enum { WORDS, ANY, CTC, CTC_BIGRAM, CTC_BONUS, ROWS };
static const char *const row_name[ROWS] = {"search for words", "search for letters", "CTC", "CTC, bigram",
                                           "CTC, bonus"};
static double percents[ROWS][MOST_SEEDS][2];

static void print_row(const model *m, int row, int64_t i) {
    uint64_t hash = TRAINING_HASH;
    fv_list p = fl_nn_parameters(m->net);
    for (int k = 0; k < p.n; k++)
        hash = training_mix(hash, fl_data(fv_value(p.v[k])), (size_t)fl_numel(fv_value(p.v[k])) * 4);
    printf("%4lld  %-18s %6lld %8.1f %6lld %8.2f %% %8.2f %%  %016llx\n", (long long)(options.seed + i),
           row_name[row], (long long)m->steps, m->seconds,
           (long long)(m->strings ? m->nodes / m->strings : 0), percents[row][i][0], percents[row][i][1],
           (unsigned long long)hash);
    fflush(stdout);
}

/* Trains by each loss and tests; i: of the seeds. The search for letters starts from the bigram's weights. */
static bool experiment(const corpus *c, const fl_speech_features *f, const states g[2], int64_t i) {
    const int64_t seed = options.seed + i;
    fl_scope s = fl_scope_begin();
    string *known = make_strings(c, f, options.strings, seed, false);
    string *tests = known ? make_strings(c, f, options.tests, seed, true) : NULL;
    bool ok = tests != NULL;
    double seconds = 0;
    for (int row = WORDS; ok && row <= CTC; row++) {
        fl_seed((uint64_t)seed);
        model m = {.net = recordings_net(options.width, (int)options.blocks),
                   .weight = fv_param(row == ANY ? bigram(known) : fl_zeros(FL_SHAPE(WEIGHTS), FL_F32)),
                   .search = row == CTC ? NULL : row == ANY ? &g[0] : &g[1]};
        ok = m.net && m.weight && train(&m, known, seconds, seed) &&
             test(&m, fv_value(m.weight), tests, options.tests, g, percents[row][i]);
        if (row == WORDS) seconds = m.seconds;
        if (ok) print_row(&m, row, i);
        if (ok && row == CTC) {
            double best = 0, least = INFINITY, percent[2];
            for (int bonus = 0; ok && bonus < 6; bonus++) { /* chosen on the strings it was trained with */
                ok = test(&m, word_bonus(bonus), known, options.tests / 2, g, percent);
                if (percent[1] < least) least = percent[1], best = bonus;
            }
            ok = ok && test(&m, bigram(known), tests, options.tests, g, percents[CTC_BIGRAM][i]) &&
                 test(&m, word_bonus(best), tests, options.tests, g, percents[CTC_BONUS][i]);
            for (row = CTC_BIGRAM; ok && row < ROWS; row++) print_row(&m, row, i);
        }
        fl_nn_free(m.net);
    }
    fl_heap_free(known), fl_heap_free(tests);
    fl_scope_end(&s);
    return ok;
}

static void print_means(void) {
    puts("\nmean (least to most)");
    for (int row = 0; row < ROWS; row++) {
        printf("%-18s", row_name[row]);
        for (int k = 0; k < 2; k++) {
            double sum = 0, least = INFINITY, most = 0;
            for (int64_t i = 0; i < options.seeds; i++) {
                const double p = percents[row][i][k];
                sum += p, least = fmin(least, p), most = fmax(most, p);
            }
            printf("  %s %.1f %% (%.1f to %.1f)", k ? "words" : "letters", sum / (double)options.seeds, least,
                   most);
        }
        puts("");
    }
}

int main(int argc, char **argv) {
    const argument list[] = {{"data", .text = &options.data},
                             {"frames", .whole = &options.frames, .low = 4, .high = 1e6},
                             {"states", .whole = &options.states, .low = 4, .high = 2000},
                             {"steps", .whole = &options.steps, .low = 1, .high = 1e6},
                             {"beam", .number = &options.beam, .low = 1e-3, .high = 1e6},
                             {"rate", .number = &options.rate, .low = 0, .high = 1},
                             {"ctc-rate", .number = &options.ctc_rate, .low = 0, .high = 1},
                             {"blocks", .whole = &options.blocks, .low = 0, .high = 5},
                             {"seeds", .whole = &options.seeds, .low = 1, .high = MOST_SEEDS},
                             {"seed", .whole = &options.seed, .low = 0, .high = 9e15},
                             {"small", .on = &options.small, .about = "a few seconds"},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (options.small)
        options.frames = 500, options.steps = 8, options.strings = 24, options.tests = 8, options.width = 16,
        options.seeds = 1;
    fl_set_threads(1);
    fl_seed((uint64_t)options.seed);
    corpus c = {0};
    spelling any, text;
    spelling_any(&any), spelling_words(&text);
    const states g[2] = {spelling_states(&any), spelling_states(&text)};
    fl_speech_features *f = recordings_features();
    bool ok = g[0].label && g[1].label && f && lattice_cost(options.frames, (int)options.states);
    ok = ok && spelling_check();
    if (options.data)
        ok = ok && load_list(options.data, "train.lst", &c) && load_list(options.data, "test.lst", &c);
    else ok = ok && synthesise_corpus(&c, options.small ? 12 : 300, 1);
    for (int64_t i = 0; !options.data && i < c.n; i++) c.r[i].speaker = (int)(i / DIGITS % 6); /* voices */
    if (ok) puts("seed                      steps  seconds  nodes    letters      words  hash");
    for (int64_t i = 0; ok && i < options.seeds; i++) ok = experiment(&c, f, g, i);
    if (ok) print_means();
    else fprintf(stderr, "beam_search: %s\n", fl_error());
    corpus_free(&c);
    fl_speech_features_free(f);
    fl_heap_free(g[0].label), fl_heap_free(g[1].label);
    return !ok;
}
/* MIT licence: see LICENSE. */
