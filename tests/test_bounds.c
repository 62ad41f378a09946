/* tests/test_bounds.c - every file format: what reading a hostile file costs in memory and CPU time

   A row names a format and a way to make reading expensive, writes such a file of about n bytes, and reads
   it.
   Each is tried with a small file (limits that do not depend on size) and with one of 1 MB (limits that do).
   The rows of a package are in tests/bounds_<package>.h. */
#include "../fl_all.h"
#include "cost.h"
#include "test.h"

typedef struct bounds_row {
    const char *format; /* "npy: shape of 2^40" */
    /* The text or bytes of a file of about n bytes. */
    void (*write)(FILE *f, int64_t n);
    /* Reads all of it, as a user would; may fail. Frees what it gets. */
    void (*read)(const char *path);
    const char *end; /* of the file's name, where a reader goes by it: ".json"; NULL: none */
} bounds_row;

#include "bounds_data.h"
#include "bounds_speech.h"
#include "bounds_lm.h"
#include "bounds_text.h"
#include "bounds_vision.h"

static void check_rows(const bounds_row *row, size_t n_rows) {
    enum { SMALL = 2000, LARGE = 1000000 };
    test_errors_return();
    cost_begin();
    for (size_t i = 0; i < 2 * n_rows; i++) {
        const bounds_row *r = row + i / 2;
        char path[300];
        snprintf(path, sizeof path, "%s%s", test_file("bounds"), r->end ? r->end : "");
        FILE *f = fopen(path, "wb");
        REQUIRE(f);
        r->write(f, i % 2 ? LARGE : SMALL);
        const int64_t n = ftell(f);
        fclose(f);
        CHECK(cost_check(r->format, r->read, path, n));
        remove(path);
    }
}

TEST(data) { check_rows(data_rows, sizeof data_rows / sizeof *data_rows); }
TEST(speech) { check_rows(speech_rows, sizeof speech_rows / sizeof *speech_rows); }
TEST(lm) { check_rows(lm_rows, sizeof lm_rows / sizeof *lm_rows); }
TEST(text) { check_rows(text_rows, sizeof text_rows / sizeof *text_rows); }
TEST(vision) { check_rows(vision_rows, sizeof vision_rows / sizeof *vision_rows); }

int main(int argc, char **argv) { return test_main(argc, argv); }
/* MIT licence: see LICENSE. */
