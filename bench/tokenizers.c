/* tokenizers.c - encoding War and Peace, training, loading, in CPU seconds of one thread, and, where
   PEER_PYTHON names a Python with tokenizers, tiktoken and sentencepiece, theirs in turn with ours (make
   bench-tokenizers). ARGS: the folder of texts (../shared/data/text). Every figure is the median of ROUNDS;
   ratios are medians of each round's, theirs / ours. Ours always give offsets too. BENCH_PART: one of gpt2,
   threads, wordpiece, unigram, train, load. */
#define _GNU_SOURCE
#include "bench.h"
#include "peer.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 3 };

static bench_peer peer;
static const char *folder;
static char *text;
static int64_t n_text;

static const char *path_of(const char *name) {
    static char path[2][600];
    static int which;
    which ^= 1;
    snprintf(path[which], sizeof path[which], "%s/%s", folder, name);
    return path[which];
}

static fl_text_tokenizer *tokenizer;
static fl_text_encoding encoding;

static void encode(void) {
    if (!fl_text_encode(tokenizer, text, n_text, &encoding)) fprintf(stderr, "%s\n", fl_error());
}

static void train(void) {
    fl_text_tokenizer_free(fl_text_bpe_train(text, n_text, .size = 8192));
}

static void load(void) {
    fl_text_tokenizer_free(fl_text_gpt2_load(path_of("gpt2/encoder.json"), path_of("gpt2/vocab.bpe")));
}

/* Lines of the text by all threads: wall seconds. */
static double encode_lines(int threads, const char *const *line, const int64_t *n, int64_t count,
                           fl_text_encoding *e) {
    fl_set_threads(threads);
    const double start = fl_data_now();
    if (!fl_text_encode_batch(tokenizer, line, n, count, e, (fl_text_encode_opts){0})) return NAN;
    return fl_data_now() - start;
}

/* Two threads beside one, in turn: the least of each. */
static void threads(void) {
    enum { PARTS = 256 };
    static const char *part[PARTS];
    static int64_t n[PARTS];
    static fl_text_encoding e[PARTS];
    double one = INFINITY, two = INFINITY;
    for (int64_t i = 0; i < PARTS; i++) part[i] = text + i * n_text / PARTS, n[i] = n_text / PARTS;
    for (int i = 0; i < 4 * ROUNDS; i++) {
        one = fmin(one, encode_lines(1, part, n, PARTS, e));
        two = fmin(two, encode_lines(2, part, n, PARTS, e));
    }
    fl_set_threads(1);
    bench_line("threads", one / two, "x", "two beside one, wall seconds, the least of each");
    for (int i = 0; i < PARTS; i++) fl_text_encoding_free(&e[i]);
}

/* Is the figure asked for? BENCH_PART names one; without it all are. */
static bool asked(const char *figure) {
    const char *only = getenv("BENCH_PART");
    return !only || !*only || !strcmp(only, figure);
}

static void compare(const char *figure, void (*ours)(void), const char *first, const char *second) {
    const char *const theirs[] = {first, second, NULL};
    if (asked(figure)) bench_beside(&peer, ROUNDS, figure, ours, theirs, 0, "ms");
}

int main(int argc, char **argv) {
    folder = argc > 1 ? argv[1] : "../shared/data/text";
    fl_set_threads(1);
    text = fl_text_read_file("tokenizers", path_of("gutenberg/war_and_peace_2600-0.txt"), &n_text);
    if (!text) {
        printf("skipped: no texts in %s\n", folder);
        return 0;
    }
    peer = bench_peer_begin("tokenizers_text.py", folder, NULL);
    tokenizer = fl_text_gpt2_load(path_of("gpt2/encoder.json"), path_of("gpt2/vocab.bpe"));
    compare("gpt2", encode, "gpt2:tokenizers", "gpt2:tiktoken");
    if (asked("threads")) threads();
    fl_text_tokenizer_free(tokenizer);
    tokenizer = fl_text_wordpiece_load(path_of("bert/bert-base-uncased-vocab.txt"), false);
    compare("wordpiece", encode, "wordpiece:tokenizers", NULL);
    fl_text_tokenizer_free(tokenizer);
    tokenizer = fl_text_sentencepiece_load(path_of("sentencepiece/test_model.model"));
    compare("unigram", encode, "unigram:sentencepiece", NULL);
    fl_text_tokenizer_free(tokenizer);
    compare("train", train, "train:tokenizers", NULL);
    compare("load", load, "load:tokenizers", NULL);
    fl_text_encoding_free(&encoding);
    fl_heap_free(text);
    bench_peer_end(&peer);
    return 0;
}
