/* bench/tokenizers.c - tokenizers: encoding War and Peace, training, loading, in CPU seconds of one thread

   Alternating with tokenizers, tiktoken and sentencepiece if PEER_PYTHON names a Python with them (make
   bench-tokenizers). ARGS: the folder of texts (../shared/data/text). Every figure is the median of ROUNDS;
   ratios are medians of the rounds' ratios, theirs / ours. Ours always include offsets. BENCH_PART: one of
   gpt2, threads, wordpiece, unigram, train, load, loads (of large synthetic vocabularies). */
#define _GNU_SOURCE
#include "bench.h"
#include "peer.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>
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

/* ---- large vocabularies ---- */

#define MADE "build/bench-vocabularies" /* the peer reads them there */

static uint32_t random_state = 1;
static int random_below(int n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (int)((random_state >> 8) % (unsigned)n);
}

/* A made-up word of 2 to 12 letters; its length. */
static int64_t make_word(char *word) {
    static const char letter[] = "eeeeettttaaaooiinnsshhrrddllcummwfgypbvkjxqz";
    const int n = 2 + random_below(6) + random_below(6);
    for (int i = 0; i < n; i++) word[i] = letter[random_below(sizeof letter - 1)];
    return n;
}

/* Adds words, each with that in front of it or not, until there are `size` entries. */
static void fill(fl_text_dictionary *d, int64_t size, const char *front) {
    while (fl_text_dictionary_size(d) < size) {
        char word[40] = "";
        if (random_below(2)) strcpy(word, front);
        const int64_t at = (int64_t)strlen(word), n = at + make_word(word + at);
        if (fl_text_dictionary_find(d, word, n) < 0) fl_text_dictionary_add(d, word, n);
    }
}

static void save(fl_text_model *m, const char *pipeline, const char *path) {
    fl_text_tokenizer *t = fl_text_tokenizer_new(m, pipeline, NULL, 0, "bench");
    if (!t || !fl_text_tokenizer_save(t, path)) fprintf(stderr, "%s\n", fl_error());
    fl_text_tokenizer_free(t);
}

/* 128,000 tokens, each of which joins two that came before. Also as ranks. */
static void make_bpe(void) {
    enum { SIZE = 128000 };
    static fl_text_merge merge[SIZE];
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    fl_text_dictionary *d = fl_text_dictionary_new();
    fl_data_text pipeline = {0}, ranks = {0};
    int64_t n = 0, len[2], id[2];
    for (int i = 0; i < 256; i++) fl_text_dictionary_add(d, &(char){(char)i}, 1);
    while (fl_text_dictionary_size(d) < SIZE) {
        char word[64];
        for (int k = 0; k < 2; k++) {
            const bool letter = random_below(4) == 0; /* else any token */
            id[k] = letter ? 'a' + random_below(26) : random_below((int)fl_text_dictionary_size(d));
            fl_text_dictionary_entry(d, id[k], &len[k]);
        }
        if (len[0] + len[1] > 16) continue;
        for (int k = 0; k < 2; k++)
            memcpy(word + k * len[0], fl_text_dictionary_entry(d, id[k], NULL), (size_t)len[k]);
        if (fl_text_dictionary_find(d, word, len[0] + len[1]) >= 0) continue;
        fl_text_dictionary_add(d, word, len[0] + len[1]);
        merge[n++] = (fl_text_merge){(int32_t)id[0], (int32_t)id[1]};
    }
    for (int64_t i = 0; i < SIZE; i++) {
        const uint8_t *s = (const uint8_t *)fl_text_dictionary_entry(d, i, len);
        for (int64_t k = 0; k < len[0]; k += 3) {
            char four[4];
            uint32_t v = 0;
            for (int64_t m = k; m < k + 3; m++) v = v << 8 | (m < len[0] ? s[m] : 0);
            for (int m = 0; m < 4; m++) four[m] = k + m > len[0] ? '=' : digit[v >> (18 - 6 * m) & 63];
            fl_data_text_put(&ranks, four, 4);
        }
        fl_data_text_print(&ranks, " %d\n", (int)i);
    }
    fl_data_replace("bench", MADE "/ranks.tiktoken", ranks.p, (size_t)ranks.n);
    fl_text_bytes_pipeline(&pipeline, FL_TEXT_SPLIT_GPT2);
    save(fl_text_bpe(d, .merge = merge, .n_merges = n, .bytes = true), pipeline.p, MADE "/bpe.json");
    fl_heap_free(ranks.p), fl_heap_free(pipeline.p);
}

static void make_wordpiece(void) {
    fl_text_dictionary *d = fl_text_dictionary_new();
    fl_text_dictionary_add(d, "[UNK]", 5);
    fill(d, 119000, "##");
    save(fl_text_wordpiece(d, "[UNK]", "##", 100, "bench"), "{}", MADE "/wordpiece.json");
}

/* A message's field of bytes. */
static void put_bytes(fl_data_text *t, char key, const char *bytes, int64_t n) {
    fl_data_text_put(t, (char[]){key, (char)n}, 2);
    fl_data_text_put(t, bytes, (size_t)n);
}

/* 250,000 pieces, as tokenizer.json and as SentencePiece's .model. */
static void make_unigram(void) {
    enum { SIZE = 250000 };
    static double score[SIZE];
    fl_text_dictionary *d = fl_text_dictionary_new();
    fl_data_text model = {0};
    fl_text_dictionary_add(d, "<unk>", 5);
    fill(d, SIZE, "\xe2\x96\x81");
    for (int64_t i = 0, n; i < SIZE; i++) {
        const char *s = fl_text_dictionary_entry(d, i, &n);
        fl_data_text piece = {0};
        const float low = (float)(score[i] = i ? -8 - 1e-5 * (double)i : 0);
        put_bytes(&piece, 10, s, n);
        fl_data_text_put(&piece, "\x15", 1);
        fl_data_text_put(&piece, (const char *)&low, 4);
        if (!i) fl_data_text_put(&piece, "\x18\2", 2); /* unknown */
        put_bytes(&model, 10, piece.p, piece.n);
        fl_heap_free(piece.p);
    }
    fl_data_replace("bench", MADE "/unigram.model", model.p, (size_t)model.n);
    save(fl_text_unigram(d, score, 0, false, false, "bench"), "{}", MADE "/unigram.json");
    fl_heap_free(model.p);
}

static const char *loaded; /* the file that load_made loads */
static void load_made(void) {
    fl_text_tokenizer *t = fl_data_ends(loaded, ".tiktoken")
                               ? fl_text_tiktoken_load(loaded, FL_TEXT_SPLIT_GPT2, NULL, 0)
                               : fl_text_tokenizer_open(loaded);
    if (!t) fprintf(stderr, "%s\n", fl_error());
    fl_text_tokenizer_free(t);
}

static void loads(void) {
    static const struct { const char *figure, *file, *theirs; } of[] = {
        {"load BPE 128,000", MADE "/bpe.json", "bpe.json:tokenizers"},
        {"load ranks 128,000", MADE "/ranks.tiktoken", "ranks.tiktoken:tiktoken"},
        {"load WordPiece 119,000", MADE "/wordpiece.json", "wordpiece.json:tokenizers"},
        {"load unigram 250,000", MADE "/unigram.json", "unigram.json:tokenizers"},
        {"load .model 250,000", MADE "/unigram.model", "unigram.model:sentencepiece"}};
    mkdir(MADE, 0777);
    make_bpe(), make_wordpiece(), make_unigram();
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        loaded = of[i].file;
        bench_beside(&peer, ROUNDS, of[i].figure, load_made, (const char *[]){of[i].theirs, NULL}, 0, "ms");
    }
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
    if (asked("loads")) loads();
    fl_text_encoding_free(&encoding);
    fl_heap_free(text);
    bench_peer_end(&peer);
    return 0;
}
/* MIT licence: see LICENSE. */
