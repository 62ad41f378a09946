/* tokenizers.c - encoding War and Peace, training, loading, in CPU seconds of one thread, and, where
   PEER_PYTHON names a Python with tokenizers, tiktoken and sentencepiece, theirs in turn with ours (make
   bench-tokenizers). ARGS: the folder of texts (../shared/data/text). Every figure is the median of ROUNDS;
   ratios are medians of each round's, theirs / ours. Ours always give offsets too. */
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

/* A job of ours, and the same of up to two others, in turn. */
static void compare(const char *figure, void (*ours)(void), const char *first, const char *second) {
    const char *const other[2] = {first, second};
    double mine[ROUNDS], theirs[2][ROUNDS], ratio[2][ROUNDS];
    char name[100];
    ours(); /* warm */
    for (int i = 0; i < ROUNDS; i++) {
        const clock_t start = clock();
        ours();
        mine[i] = (double)(clock() - start) / CLOCKS_PER_SEC;
        for (int k = 0; k < 2 && other[k]; k++) {
            snprintf(name, sizeof name, "%s:%s", figure, other[k]);
            theirs[k][i] = bench_peer_ask(&peer, "%s", name);
            ratio[k][i] = theirs[k][i] / mine[i];
        }
    }
    bench_line(figure, 1e3 * bench_median(mine, ROUNDS), "ms", "ours");
    for (int k = 0; k < 2 && other[k] && peer.to; k++) {
        snprintf(name, sizeof name, "%s:%s", figure, other[k]);
        bench_line(name, 1e3 * bench_median(theirs[k], ROUNDS), "ms", "theirs");
        bench_line(name, bench_median(ratio[k], ROUNDS), "ratio", "theirs / ours");
    }
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
    compare("gpt2", encode, "tokenizers", "tiktoken");
    fl_text_tokenizer_free(tokenizer);
    tokenizer = fl_text_wordpiece_load(path_of("bert/bert-base-uncased-vocab.txt"), false);
    compare("wordpiece", encode, "tokenizers", NULL);
    fl_text_tokenizer_free(tokenizer);
    tokenizer = fl_text_sentencepiece_load(path_of("sentencepiece/test_model.model"));
    compare("unigram", encode, "sentencepiece", NULL);
    fl_text_tokenizer_free(tokenizer);
    compare("train", train, "tokenizers", NULL);
    compare("load", load, "tokenizers", NULL);
    fl_text_encoding_free(&encoding);
    fl_heap_free(text);
    bench_peer_end(&peer);
    return 0;
}
