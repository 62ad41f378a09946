/* test_targets.c - lists, transcripts as tokens and back, error rates, and files of any bytes */
#include "../fl_all.h"
#include "heap.h"
#include <pthread.h>

static bool same(const char *a, const char *b) {
    if (a && !strcmp(a, b)) return true;
    printf("'%s', not '%s'\n", a ? a : "NULL", b);
    return false;
}
#define CHECK_SAME(a, b) CHECK(same(a, b))

static const char *file(void) { return test_file("text"); }

static void write_bytes(const char *text, size_t n) {
    FILE *f = fopen(file(), "wb");
    fwrite(text, 1, n, f);
    fclose(f);
}

static fl_text_dictionary *dictionary(const char *names) {
    fl_text_dictionary *d = fl_text_dictionary_new();
    int64_t n;
    const char *end = names + strlen(names);
    for (const char *w; (w = fl_text_field(&names, end, &n));) CHECK(fl_text_dictionary_add(d, w, n) >= 0);
    return d;
}

/* The tokens' names, apart by spaces. */
static const char *names_of(const fl_text_dictionary *d, const int64_t *t, int64_t n) {
    static char text[512];
    *text = 0;
    for (int64_t i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "",
                 fl_text_dictionary_entry(d, t[i], NULL));
    return n < 0 ? "" : text;
}

/* ---- lists ---- */

TEST(a_list_is_read_as_it_stands) {
    static const char text[] = "a_1 x/a.wav 1500 hello  there\tworld \r\n\n  b\t/b.wav 12.5\nc c.wav 0 one";
    write_bytes(text, sizeof text - 1);
    for (int k = 0; k < 2; k++) {
        fl_speech_list *l = fl_speech_list_load(file(), k ? "/root" : NULL);
        CHECK_EQ_INT(fl_speech_list_size(l), 3);
        const fl_speech_list_entry *e = fl_speech_list_get(l, 0);
        CHECK_SAME(e->id, "a_1");
        CHECK_SAME(e->path, k ? "/root/x/a.wav" : "x/a.wav");
        CHECK_SAME(e->transcript, "hello there world");
        CHECK_NEAR(e->ms, 1500, 0);
        e = fl_speech_list_get(l, 1);
        CHECK_SAME(e->transcript, "");
        CHECK_EQ_INT(e->line, 3);
        CHECK_NEAR(e->ms, 12.5, 0);
        CHECK_SAME(fl_speech_list_get(l, 2)->transcript, "one");
        fl_speech_list_free(l);
    }
    static const struct { const char *text, *error; } bad[] = {
        {"", "the list is empty"}, {"\n \n", "the list is empty"}, {"a", ":1: got 1 fields"},
        {"\na b\n", ":2: got 2 fields"},
        {"a b c", ":1: invalid duration 'c'"}, {"a b -1", "invalid duration '-1'"},
        {"a b nan", "invalid duration 'nan'"},
        {"a b 1e99 x", "invalid duration '1e99'"}, {"a b 1x", "'1x'"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_bytes(bad[i].text, strlen(bad[i].text));
        CHECK(!fl_speech_list_load(file(), NULL));
        CHECK_ERROR(bad[i].error);
    }
    write_bytes("a b\0 1\n", 7);
    CHECK(!fl_speech_list_load(file(), NULL));
    CHECK_ERROR(":1: the line has a NUL byte");
    remove(file());
    CHECK_NOTHING_LIVES();
}

/* Batches hold at most so many milliseconds; the samples are the sounds'. */
TEST(batches_by_duration) {
    char text[1024] = "", path[128];
    snprintf(path, sizeof path, "%s", test_file("sound.wav"));
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(2, 800), 0.5, FL_F32);
    CHECK(fl_speech_save_audio(path, x, 8000, FL_SPEECH_F32));
    fl_scope_end(&s);
    for (int i = 0; i < 10; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%d %s %d w\n", i, path, 100 * (1 + i % 4));
    write_bytes(text, strlen(text));
    fl_speech_list *l = fl_speech_list_load(file(), NULL);
    fl_data_set *set = fl_data_batches(fl_data_sort_by_length(fl_speech_list_sounds(l, 16000), 0),
                                       .budget = 800, .pad = true);
    int64_t seen = 0;
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        s = fl_scope_begin();
        fl_data_sample b;
        double most = 0;
        CHECK(fl_data_get(set, i, &b));
        CHECK_EQ_INT(b.t[0]->shape[1], 1600);
        for (int64_t k = 0; k < b.t[1]->shape[0]; k++)
            most = fmax(most, fl_speech_list_get(l, ((int64_t *)fl_data(b.t[1]))[k])->ms);
        CHECK(most * (double)b.t[1]->shape[0] <= 800);
        seen += b.t[1]->shape[0];
        fl_scope_end(&s);
    }
    CHECK_EQ_INT(seen, 10);
    fl_data_free(set);
    fl_speech_list_free(l);
    remove(path);
    remove(file());
    CHECK_NOTHING_LIVES();
}

/* ---- targets ---- */

TEST(transcripts_become_tokens_and_come_back) {
    fl_text_dictionary *d = dictionary("a b c l o | <1> <2> $ \xc3\xa9 _a _ ");
    fl_speech_lexicon *lexicon = fl_speech_lexicon_new();
    fl_speech_lexicon_add(lexicon, "ab", (int32_t[]){0, 1}, 2);
    fl_speech_lexicon_add(lexicon, "ab", (int32_t[]){2}, 1);
    fl_speech_lexicon_add(lexicon, "ol", (int32_t[]){4, 3, 3}, 3);
    CHECK(fl_speech_lexicon_finish(lexicon, FL_SPEECH_NO_SMEARING, NULL, false));
    int64_t *t = NULL, cap = 0, n, skipped = 0;
    fl_data_text back = {0};
#define TARGET(words, want, ...) \
    do { \
        n = fl_speech_target(d, words, &t, &cap, __VA_ARGS__); \
        CHECK_SAME(names_of(d, t, n), want); \
    } while (0)
#define BACK(want, ...) \
    do { \
        back.n = 0; \
        CHECK(fl_speech_target_text(d, t, n, &back, __VA_ARGS__)); \
        CHECK_SAME(back.p, want); \
    } while (0)
    TARGET(" ball  a ", "b a l l | a |", .separator = "|");
    BACK("ball a", .separator = "|");
    TARGET("ball a", "b a l <1> | a |", .separator = "|", .replabels = 2);
    BACK("ball a", .separator = "|", .replabels = 2);
    TARGET("lllll", "l <2> l <1>", .replabels = 2);
    BACK("lllll", .replabels = 2);
    TARGET("ball", "| b a l | $", .separator = "|", .surround = "|", .asg = true, .eos = "$");
    BACK("bal", .separator = "|", .surround = "|", .eos = "$");
    TARGET("ab ol caf\xc3\xa9", "a b o l l c a \xc3\xa9 |", .lexicon = lexicon, .separator = "|",
           .skip = true, .skipped = &skipped);
    CHECK_EQ_INT(skipped, 1);
    TARGET("al bo", "_a l _ b o", .separator = "_", .pieces = true);
    BACK("al bo", .separator = "_");
    fl_rng rng = fl_data_rng(1, 0, 0);
    int64_t second = 0;
    for (int i = 0; i < 1000; i++)
        second += fl_speech_target(d, "ab", &t, &cap, .lexicon = lexicon, .sample = 0.5, .rng = &rng) == 1;
    printf("%lld of 1000 took the second spelling\n", (long long)second);
    CHECK(second > 200 && second < 300); /* half of the half */
    CHECK_EQ_INT(fl_speech_target(d, "a bxa", &t, &cap, .separator = "|"), -1);
    CHECK_ERROR("word 'bxa': the letter 'x' is not a token");
    CHECK_EQ_INT(fl_speech_target(d, "a", &t, &cap, .separator = "!"), -1);
    CHECK_ERROR("the separator '!' is not a token");
    CHECK_EQ_INT(fl_speech_target(d, "aaaa", &t, &cap, .replabels = 3), -1);
    CHECK_ERROR("replabel '<3>' is not a token");
    CHECK(!fl_speech_target_text(d, ((int64_t[]){77}), 1, &back));
    CHECK_ERROR("no token with index 77");
    int64_t path[] = {0, 0, 9, 0, 1, 1, 9, 9, 1};
    CHECK_EQ_INT(fl_speech_collapse(path, 9, 9, path), 4);
    CHECK(path[0] == 0 && path[1] == 0 && path[2] == 1 && path[3] == 1);
    const int32_t *spelling = fl_speech_lexicon_spelling(lexicon, 0, 1, &n);
    CHECK(spelling && n == 1 && spelling[0] == 2);
    CHECK(!fl_speech_lexicon_spelling(lexicon, 0, 2, &n) && n == 2);
    CHECK(!fl_speech_lexicon_spelling(lexicon, 2, 0, &n) && !fl_speech_lexicon_spelling(lexicon, -1, 0, &n));
    fl_speech_lexicon_free(lexicon);
    fl_text_dictionary_free(d);
    fl_heap_free(t);
    fl_heap_free(back.p);
    CHECK_NOTHING_LIVES();
}

/* Random transcripts come back under every trick. */
TEST(every_trick_can_be_undone) {
    fl_text_dictionary *d = dictionary("| a b <1> <2> <3> $");
    int64_t *t = NULL, cap = 0, longest = 0;
    fl_data_text back = {0};
    for (int i = 0; i < 2000; i++) {
        fl_rng rng = fl_data_rng(9, 0, i);
        char text[64] = "";
        const int64_t length = fl_speech_draw(&rng, 1, 30);
        for (int64_t k = 0; k < length; k++) {
            const int64_t c = fl_speech_draw(&rng, 0, 4);
            const bool space = !c && k && k + 1 < length && text[k - 1] != ' ';
            text[k] = space ? ' ' : c < 3 ? 'a' : 'b';
        }
        fl_speech_target_opts o = {.separator = "|", .replabels = fl_speech_draw(&rng, 0, 3)};
        o.asg = o.replabels == 3 && !strstr(text, "aaaaa") && !strstr(text, "bbbbb");
        if (fl_speech_draw(&rng, 0, 1)) o.surround = "|";
        if (fl_speech_draw(&rng, 0, 1)) o.eos = "$";
        back.n = 0;
        const int64_t n = fl_speech_target_opt(d, text, &t, &cap, o);
        CHECK(n > 0 && fl_speech_target_text_opt(d, t, n, &back, o));
        CHECK_SAME(back.p, text);
        for (int64_t k = 1; o.asg && k < n; k++) CHECK(t[k] != t[k - 1]);
        longest = n > longest ? n : longest;
    }
    CHECK(longest > 25);
    fl_text_dictionary_free(d);
    fl_heap_free(t);
    fl_heap_free(back.p);
    CHECK_NOTHING_LIVES();
}

/* In a thread of a small stack: the tree is as deep as the spelling is long. */
static void *finish(void *lexicon) {
    return fl_speech_lexicon_finish(lexicon, FL_SPEECH_NO_SMEARING, NULL, false) ? lexicon : NULL;
}

TEST(a_tree_of_any_depth) {
    static int32_t tokens[INT16_MAX + 1];
    pthread_attr_t small;
    pthread_t thread;
    void *done = NULL;
    int64_t nodes;
    fl_speech_lexicon *l = fl_speech_lexicon_new();
    for (int i = 0; i < 3; i++) {
        tokens[INT16_MAX - 1] = i;
        CHECK(fl_speech_lexicon_add(l, "long", tokens, INT16_MAX - i % 2) == 0);
    }
    CHECK(fl_speech_lexicon_add(l, "longer", tokens, INT16_MAX + 1) < 0);
    CHECK_ERROR("longer: a spelling must have 1 to 32767 tokens, got 32768");
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    REQUIRE(!pthread_create(&thread, &small, finish, l));
    pthread_join(thread, &done);
    pthread_attr_destroy(&small);
    CHECK(done == l);
    const fl_speech_node *node = fl_speech_lexicon_nodes(l, &nodes);
    CHECK_EQ_INT(nodes, INT16_MAX + 2); /* the root; the last token is 0 or 2 */
    CHECK(node[INT16_MAX].token == 0 && node[INT16_MAX].words == 1);
    CHECK(node[INT16_MAX + 1].token == 2 && node[INT16_MAX + 1].words == 1);
    CHECK(node[INT16_MAX - 1].words == 1 && node[INT16_MAX - 2].words == 0);
    fl_speech_lexicon_free(l);
    CHECK_NOTHING_LIVES();
}

/* ---- error rates ---- */

TEST(errors_are_counted_by_speaker) {
    fl_speech_scores *s = fl_speech_scores_new();
    CHECK(fl_speech_scores_add(s, "ann", "the cat  sat", "the cat sat")); /* nothing */
    CHECK(fl_speech_scores_add(s, "bob", "a hat on", "the hat"));         /* S, I; letters: 3 and 3 of 7 */
    CHECK(fl_speech_scores_add(s, "ann", "", "x y"));                     /* D D */
    fl_data_edits w, l;
    CHECK(fl_speech_scores_of(s, "ann", &w, &l));
    CHECK(w.tokens == 5 && w.deletions == 2 && w.substitutions + w.insertions == 0);
    CHECK(l.tokens == 14 && l.deletions == 3);
    CHECK(fl_speech_scores_of(s, "bob", &w, &l));
    CHECK(w.tokens == 2 && w.substitutions == 1 && w.insertions == 1);
    CHECK_EQ_INT(l.tokens, 7);
    CHECK_EQ_INT(l.substitutions + l.deletions + l.insertions, 6);
    CHECK(fl_speech_scores_of(s, NULL, &w, NULL));
    CHECK_NEAR(fl_data_edits_percent(&w), 400. / 7, 1e-9);
    CHECK(!fl_speech_scores_of(s, "eve", &w, &l));
    fl_data_text table = {0};
    CHECK(fl_speech_scores_table(s, &table));
    CHECK(table.p && strstr(table.p, "\nall                             7     57.14     1     2     1"));
    fl_heap_free(table.p);
    fl_speech_scores_free(s);
    static const char *const id[] = {"a-1", "b"}, *const text[] = {"one two", ""};
    CHECK(fl_speech_save_trn(file(), id, text, 2));
    int64_t n;
    char *said = fl_text_read_file("test", file(), &n);
    CHECK_SAME(said, "one two (a-1)\n (b)\n");
    fl_heap_free(said);
    static const char *const odd[] = {"a (b", "x"};
    CHECK(!fl_speech_save_trn(file(), id, odd, 2));
    CHECK_ERROR("line 1: 'a (b (a-1)' has parentheses");
    remove(file());
    CHECK_NOTHING_LIVES();
}

/* ---- files of any bytes ---- */

static const char list_text[] = "id /x 12.5 a b\nid2 /y 3\n", lexicon_text[] = "ab a b\nb b\nab b a a\n",
                  tokens_text[] = "a\nb B\n|\n";

/* Reads a file of one of the kinds, and uses it; whether it was read. */
static bool use(int kind) {
    fl_text_dictionary *d = dictionary("a b |");
    bool ok = false;
    if (kind == 0) {
        fl_speech_list *l = fl_speech_list_load(file(), "/r");
        for (int64_t i = 0; l && i < fl_speech_list_size(l); i++) {
            const fl_speech_list_entry *e = fl_speech_list_get(l, i);
            CHECK(*e->id && *e->path && e->ms >= 0 && strlen(e->transcript) < 64);
        }
        ok = l != NULL;
        fl_speech_list_free(l);
    } else if (kind == 1) {
        fl_speech_lexicon *l = fl_speech_lexicon_load(file(), d);
        ok = l != NULL;
        if (l && fl_speech_lexicon_finish(l, FL_SPEECH_NO_SMEARING, NULL, false)) {
            int64_t n, words = fl_text_dictionary_size(fl_speech_lexicon_words(l));
            for (int64_t i = 0; i < words; i++) CHECK(fl_speech_lexicon_spelling(l, i, 0, &n) && n > 0);
        }
        fl_speech_lexicon_free(l);
    } else {
        fl_text_dictionary *t = fl_text_dictionary_load(file());
        ok = t != NULL;
        fl_text_dictionary_free(t);
    }
    fl_text_dictionary_free(d);
    return ok;
}

TEST(prefixes_and_flips) {
    static const struct { const char *text; size_t n; } kind[] = {
        {list_text, sizeof list_text - 1},
        {lexicon_text, sizeof lexicon_text - 1},
        {tokens_text, sizeof tokens_text - 1}};
    int64_t read = 0, refused = 0;
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < 9 * kind[k].n; i++) {
            char copy[64];
            memcpy(copy, kind[k].text, kind[k].n);
            if (i >= kind[k].n) copy[(i - kind[k].n) / 8] ^= (char)(1 << (i - kind[k].n) % 8);
            write_bytes(copy, i < kind[k].n ? i : kind[k].n);
            if (use(k)) read++;
            else CHECK(fl_error()), refused++;
            fl_error_clear();
        }
    printf("%lld read, %lld refused\n", (long long)read, (long long)refused);
    CHECK(read > 150 && refused > 150);
    remove(file());
    CHECK_NOTHING_LIVES();
}

/* ---- memory ---- */

static bool all_of_it(void) {
    fl_text_dictionary *d = fl_text_dictionary_new();
    int64_t *t = NULL, cap = 0, n = -1;
    fl_data_text back = {0};
    fl_speech_scores *s = fl_speech_scores_new();
    fl_speech_list *l = fl_speech_list_load(file(), "/r");
    bool ok = d && s && l && fl_text_dictionary_add(d, "a", 1) >= 0 && fl_text_dictionary_add(d, "b", 1) >= 0;
    if (ok) n = fl_speech_target(d, "ab ba", &t, &cap, .skip = true);
    ok = ok && n == 4 && fl_speech_target_text(d, t, n, &back) && !strcmp(back.p, "abba") &&
         fl_speech_scores_add(s, "me", "a b", "a c") && fl_speech_scores_table(s, &back);
    fl_heap_free(t);
    fl_heap_free(back.p);
    fl_speech_list_free(l);
    fl_speech_scores_free(s);
    fl_text_dictionary_free(d);
    return ok;
}

TEST(any_request_for_memory_may_fail) {
    write_bytes(list_text, sizeof list_text - 1);
    fl_heap_use(heap_fn, NULL);
    const int64_t n = sweep_heap(all_of_it, false);
    fl_heap_use(NULL, NULL);
    printf("%lld requests\n", (long long)n);
    CHECK(n > 15);
    remove(file());
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    fl_set_error_handler(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
