/* text.h - golden files of text on the disk in memory */
#ifndef TESTS_TEXT_H
#define TESTS_TEXT_H
#include "../fl_all.h"
#include "disk.h"

static inline bool same(const char *a, int64_t n, const char *b) {
    return a && n == (int64_t)strlen(b) && !memcmp(a, b, (size_t)n);
}

static inline char *golden(const char *file, int64_t *n) {
    char path[300];
    snprintf(path, sizeof path, "tests/golden/text/%s", file);
    fl_data_io_use(NULL);
    char *text = fl_text_read_file("golden", path, n);
    fl_data_io_use(&disk_io);
    if (!text) printf("%s: %s\n", path, fl_error());
    return text;
}

static inline bool golden_to_disk(const char *file, const char *as) {
    int64_t n;
    char *bytes = golden(file, &n);
    if (!CHECK(bytes)) return false;
    disk_write(as, bytes, (size_t)n);
    fl_heap_free(bytes);
    return true;
}

/* The same tokenizer from its file. */
static inline fl_text_tokenizer *reloaded(fl_text_tokenizer *t) {
    const uint64_t hash = fl_text_tokenizer_hash(t);
    CHECK(fl_text_tokenizer_save(t, "t.json"));
    fl_text_tokenizer_free(t);
    t = fl_text_tokenizer_load("t.json");
    CHECK_NO_ERROR();
    CHECK(t && fl_text_tokenizer_hash(t) == hash);
    return t;
}

#endif /* MIT licence: see LICENSE. */
