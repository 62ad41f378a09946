/* test_big.c - a tensor of more than 2^32 elements: indices and offsets past 32 bits in every kind of
   op. Takes 11 GB; skipped where less than 12 GB are free. */
#include "../fl_tensor.h"
#include "test.h"

/* MiB that the machine could give now, -1 if it does not say. */
static long free_mib(void) {
    FILE *f = fopen("/proc/meminfo", "r");
    char line[200];
    long kib = -1;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %ld", &kib) == 1) break;
    if (f) fclose(f);
    return kib < 0 ? -1 : kib / 1024;
}

static const int64_t rows = 50000, columns = 100000, n = 5000000000;

static void put(fl_tensor *x, int64_t i, int64_t value) {
    CHECK(fl_assign(fl_slice(x, 0, i, i + 1, 1), fl_int(value)) != NULL);
}

static int64_t at(fl_tensor *x, int64_t i) {
    return fl_item_int(fl_select(x, 0, i));
}

static void sums(fl_tensor *x) {
    fl_scope s = fl_scope_begin();
    CHECK_EQ_INT(fl_item_int(fl_sum(x, FL_ALL_AXES)), 3 * n + 97 + 96 - 101);
    CHECK_EQ_INT(fl_item_int(fl_argmax(x, 0, false)), n - 3);
    CHECK_EQ_INT(fl_item_int(fl_argmin(x, 0, false)), 3000000000);
    fl_tensor *m = fl_reshape(x, FL_SHAPE(rows, columns));
    fl_tensor *by_row = fl_sum(m, FL_AXES(1)), *by_column = fl_sum(m, FL_AXES(0));
    CHECK_EQ_INT(at(by_row, rows - 1), 3 * columns + 97 + 96);
    CHECK_EQ_INT(at(by_row, 30000), 3 * columns - 101);
    CHECK_EQ_INT(at(by_column, columns - 3), 3 * rows + 97);
    CHECK_EQ_INT(at(by_column, 0), 3 * rows - 101);
    fl_scope_end(&s);
}

static void views(fl_tensor *x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *back = fl_slice(x, 0, -1, FL_SLICE_END, -1);
    CHECK_EQ_INT(back->shape[0], n);
    CHECK_EQ_INT(at(back, 2), 100);
    fl_tensor *few = fl_contiguous(fl_slice(back, 0, 1, FL_SLICE_END, 999999999));
    CHECK_EQ_INT(few->shape[0], 6);
    CHECK_EQ_INT(at(few, 0), 99);
    fl_tensor *index = fl_from_host((int64_t[]){n - 3, 0, 3000000000}, FL_SHAPE(3), FL_I64);
    fl_tensor *picked = fl_gather(x, 0, index);
    CHECK_EQ_INT(at(picked, 0), 100);
    CHECK_EQ_INT(at(picked, 1), 3);
    CHECK_EQ_INT(at(picked, 2), -98);
    fl_tensor *turned = fl_transpose(fl_reshape(x, FL_SHAPE(rows, columns)), 0, 1);
    CHECK_EQ_INT(fl_item_int(fl_select(fl_select(turned, 0, columns - 2), 0, rows - 1)), 99);
    fl_scope_end(&s);
}

static void element_wise(fl_tensor *x) {
    fl_scope s = fl_scope_begin();
    fl_tensor *y = fl_add(x, fl_int(28));
    CHECK_EQ_INT(at(y, n - 3), -128); /* 100 + 28 wraps */
    CHECK_EQ_INT(at(y, n - 2), 127);
    CHECK_EQ_INT(at(y, 3000000000), -70);
    CHECK_EQ_INT(at(y, n - 1), 31);
    fl_scope_end(&s);
    fl_mem_trim();
}

TEST(five_billion_elements) {
    if (free_mib() < 12 * 1024) SKIP("less than 12 GB are free");
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_full(FL_SHAPE(n), 3, FL_I8);
    CHECK_EQ_INT(fl_numel(x), n);
    put(x, n - 3, 100);
    put(x, n - 2, 99);
    put(x, 3000000000, -98);
    sums(x);
    views(x);
    element_wise(x);
    fl_scope_end(&s);
    fl_mem_trim();
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
