/* test_image_sets.c - folders of classes, tables of synsets, lists, CIFAR and tar files

   What is read, what is said of malformed ones, and what is left when memory or the disk fails. */
#include "pictures.h"

static const char ppm[] = "P5 2 2 255\nabcd";

static void put_ppm(const char *path, char first) {
    char bytes[sizeof ppm];
    memcpy(bytes, ppm, sizeof ppm);
    bytes[11] = first;
    disk_write(path, bytes, sizeof ppm - 1);
}

/* Takes the set; all its samples as one batch of bytes. */
static bool read_all(fl_data_set *set) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    bool ok = set != NULL;
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) ok = fl_data_get(set, i, &b);
    fl_data_free(set);
    fl_scope_end(&s);
    return ok;
}

/* Every allocation, every buffer and every operation of the disk fails once. */
static void sweep_all(bool (*action)(void)) {
    sweep_reader(action);
    CHECK(sweep_heap(action, false) > 3), CHECK(sweep_heap(action, true) > 3);
    CHECK(sweep_buffers(action, false) > 0);
}

/* ---- classes in folders ---- */

static bool folder_it(void) {
    return read_all(fl_vision_folder("root"));
}

static bool table_it(void) {
    return read_all(fl_vision_imagenet("root", "table"));
}

static bool list_it(void) {
    return read_all(fl_vision_list("list", "root"));
}

static void put_classes(void) {
    put_ppm("root/n3/b.ppm", 'b'), put_ppm("root/n1/c.PPM", 'c'), put_ppm("root/n3/a.ppm", 'a');
    disk_write("root/n3/notes.txt", "x", 1), disk_write("root/readme", "x", 1);
    disk_write("list", "n3/a.ppm\t5\nn1/c.PPM\t6\n", 22);
}

static const char table[] = "n9\tnine\nn3\tthree\nn1\r\n";

/* A part that is decoded alone is nearly that of the whole. */
TEST(folders_of_classes) {
    begin();
    fl_scope s = fl_scope_begin();
    const bool jpegs = reads(jpeg, sizeof jpeg);
    put_classes();
    for (int k = 0; jpegs && k < 3; k++)
        disk_write((const char *[]){"root/n3/b.ppm", "root/n1/c.PPM", "root/n3/a.ppm"}[k], jpeg, sizeof jpeg);
    const fl_vision_transform steps[] = {fl_vision_random_resized_crop(8, 0, 0, FL_VISION_BILINEAR)};
    fl_data_sample b[2];
    for (int k = 0; k < 2; k++) {
        fl_data_set *set = fl_vision_folder("root");
        REQUIRE(set && fl_data_size(set) == 3);
        CHECK_STR(fl_data_class_name(set, 0), "n1"), CHECK_STR(fl_data_class_name(set, 1), "n3");
        set = fl_vision_batch(set, 3, .steps = steps, .n_steps = 1, .region = k, .u8 = true, .seed = 3);
        REQUIRE(set && fl_data_get(set, 0, &b[k]));
        CHECK(b[k].n == 2 && b[k].t[0]->shape[0] == 3 && b[k].t[0]->shape[2] == 8);
        for (int i = 0; i < 3; i++) CHECK_EQ_INT(((int64_t *)fl_data(b[k].t[1]))[i], i > 0);
        fl_data_free(set);
    }
    fl_tensor *far =
        fl_amax(fl_abs(fl_sub(fl_cast(b[0].t[0], FL_F32), fl_cast(b[1].t[0], FL_F32))), FL_ALL_AXES);
    CHECK(fl_item(far) <= 1);
    /* .region is about a crop that comes first: elsewhere nothing changes */
    const fl_vision_transform whole[] = {fl_vision_resize_to(12, 12, FL_VISION_BILINEAR), steps[0]};
    for (int k = 0; k < 2; k++) {
        fl_data_set *set = fl_vision_folder("root");
        set = fl_vision_batch(set, 3, .steps = whole, .n_steps = 2, .region = k, .u8 = true, .seed = 3);
        REQUIRE(set && fl_data_get(set, 0, &b[k]));
        fl_data_free(set);
    }
    far = fl_amax(fl_abs(fl_sub(fl_cast(b[0].t[0], FL_F32), fl_cast(b[1].t[0], FL_F32))), FL_ALL_AXES);
    CHECK(fl_item(far) == 0);
    end(&s);
}

TEST(folders_tables_and_lists_survive_failures) {
    begin();
    fl_scope s = fl_scope_begin();
    put_classes();
    disk_write("table", table, sizeof table - 1);
    sweep_all(folder_it), sweep_all(table_it), sweep_all(list_it);
    end(&s);
}

TEST(classes_of_a_table) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    put_classes();
    disk_write("table", table, sizeof table - 1);
    fl_data_set *set = fl_vision_imagenet("root", "table");
    REQUIRE(set && fl_data_size(set) == 3);
    for (int64_t i = 0; i < 3; i++)
        CHECK(fl_data_get(set, i, &b) && *(int64_t *)fl_data(b.t[1]) == (i ? 1 : 2));
    CHECK_STR(fl_vision_synset(set, 1), "three"), CHECK_STR(fl_vision_synset(set, 2), "n1");
    CHECK(!fl_vision_synset(set, 3) && !fl_vision_synset(set, -1));
    fl_data_free(set);
    /* tables of the folders n1 and n3: what is said, or what n1 is called and its place */
    static const struct {
        const char *text, *want;
        int64_t n, place;
    } tables[] = {{"", "table has no line for the folder 'n1'", 0, 0},
                  {"n1", "no line for the folder 'n3'", 2, 0},
                  {"n3\n", "no line for the folder 'n1'", 3, 0},
                  {"n1 one\nn3\n", "no line for the folder 'n1'", 10, 0},
                  {" n1\nn3\n", "no line for the folder 'n1'", 7, 0},
                  {"N1\nn3\n", "no line for the folder 'n1'", 6, 0},
                  {"n1\tone\nn30\n", "no line for the folder 'n3'", 11, 0},
                  {"\tn1\n\tn3\n", "no line for the folder 'n1'", 8, 0},
                  {"\xef\xbb\xbfn1\nn3\n", "no line for the folder 'n1'", 9, 0},
                  {"n3\0n1\n", "no line for the folder 'n1'", 6, 0}, /* a zero byte ends a table */
                  {"n1\nn3", "n1", 5, 0},
                  {"n3\rn1\r", "n1", 6, 1},
                  {"\n\nn3\n\nn1\ta\tb\n", "a", 14, 4},
                  {"n1\t\nn3\n", "", 7, 0},
                  {"\n", "'n1'", 1, 0},
                  {"\r\n\r\n", "'n1'", 4, 0},
                  {"\t\n", "'n1'", 2, 0},
                  {"n\n1\nn3\n", "'n1'", 7, 0},
                  {"n11\nn3\n", "'n1'", 7, 0},
                  {"1n\nn3\n", "'n1'", 6, 0},
                  {"n3\tn1\n", "'n1'", 6, 0},
                  {"n1,one\nn3\n", "'n1'", 10, 0},
                  {"\"n1\"\nn3\n", "'n1'", 8, 0},
                  {"n1/\nn3/\n", "'n1'", 8, 0},
                  {"./n1\n./n3\n", "'n1'", 10, 0},
                  {"root/n1\nroot/n3\n", "'n1'", 16, 0},
                  {"n1\vone\nn3\n", "'n1'", 10, 0},
                  {"n1\fone\nn3\n", "'n1'", 10, 0},
                  {"one\tn1\nthree\tn3\n", "'n1'", 16, 0},
                  {"0\tn1\n2\tn3\n", "'n1'", 10, 0},
                  {"#n1\nn3\n", "'n1'", 7, 0},
                  {"n1 \nn3\n", "'n1'", 7, 0},
                  {"\xef\xbd\x8e" "1\nn3\n", "'n1'", 8, 0},
                  {"n\0" "1\0\n\0n\0" "3\0", "'n1'", 10, 0}, /* two bytes a letter */
                  {"\0n1\nn3\n", "'n1'", 7, 0},
                  {"n1\0\nn3\n", "'n3'", 7, 0},
                  {"n1\n\0n3\n", "'n3'", 7, 0},
                  {"n1\nn\0" "3\n", "'n3'", 7, 0},
                  {"n1\nN3\n", "'n3'", 6, 0},
                  {"n1\nn3 \n", "'n3'", 7, 0},
                  {"n1\n n3\n", "'n3'", 7, 0},
                  {"n1\nn\t3\n", "'n3'", 7, 0},
                  {"n1\tn3\n", "'n3'", 6, 0},
                  {"n1\nn3", "'n3'", 4, 0}, /* cut in the middle */
                  {"n1\n", "'n3'", 3, 0},
                  {"n1\n3\n", "'n3'", 5, 0}};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        disk_write("table", tables[i].text, (size_t)tables[i].n);
        set = fl_vision_imagenet("root", "table");
        if (!set) CHECK_ERROR(tables[i].want);
        else {
            CHECK_STR(fl_vision_synset(set, tables[i].place), tables[i].want);
            CHECK(fl_data_get(set, 0, &b) && *(int64_t *)fl_data(b.t[1]) == tables[i].place);
        }
        fl_error_clear(), fl_data_free(set);
    }
    CHECK(!fl_vision_imagenet("root", "none")), CHECK_ERROR("cannot open"), fl_error_clear();
    CHECK(!fl_vision_imagenet("nowhere", "table")), CHECK_ERROR("nowhere"), fl_error_clear();
    put_ppm("flat/a.ppm", 'a');
    CHECK(!fl_vision_folder("flat")), CHECK_ERROR("flat: no samples found"), fl_error_clear();
    disk_write("root/n2/x.gif", "x", 1);
    CHECK(!fl_vision_folder("root")), CHECK_ERROR("root: class 'n2' has no file"), fl_error_clear();
    end(&s);
}

/* Blocks of the heap in use. */
static int64_t blocks;
static void *count_blocks(void *user, void *p, size_t bytes) {
    (void)user;
    blocks += !p && bytes ? 1 : p && !bytes ? -1 : 0;
    return bytes ? realloc(p, bytes) : (free(p), NULL);
}

TEST(ten_thousand_batches_keep_memory_flat) {
    enum { BATCHES = 10000 };
    begin();
    fl_scope s = fl_scope_begin();
    const fl_vision_transform steps[] = {fl_vision_random_resized_crop(8, 0.08, 1, FL_VISION_BILINEAR),
                                         fl_vision_random_horizontal_flip(0.5)};
    int64_t held[2][4] = {{0}};
    put_classes();
    fl_heap_use(count_blocks, NULL);
    fl_data_set *set = fl_data_shuffle(fl_vision_list("list", "root"), 1);
    set = fl_vision_batch(set, 1, .steps = steps, .n_steps = 2, .mean = {0.5}, .std = {0.5});
    REQUIRE(set && fl_data_size(set) == 2);
    for (int64_t i = 0; i < BATCHES; i++) {
        fl_scope batch = fl_scope_begin();
        fl_data_sample b;
        REQUIRE(fl_data_set_epoch(set, i / 2) && fl_data_get(set, i % 2, &b));
        fl_scope_end(&batch);
        const int64_t now[] = {blocks, fl_live_tensors(), test_live_buffers(),
                               fl_mem_stats_of(NULL).peak_in_use};
        if (i == 99 || i == BATCHES - 1) memcpy(held[i > 99], now, sizeof now);
    }
    for (int k = 0; k < 4; k++) CHECK_EQ_INT(held[1][k], held[0][k]);
    fl_data_free(set);
    fl_heap_use(heap_fn, NULL);
    end(&s);
}

/* ---- CIFAR ---- */

enum { RECORD = 3073 };
static int hundred, coarse;

/* n records and `extra` bytes: pixel p of image i is i + p % 251. */
static void write_cifar(const char *file, int n, int extra) {
    static unsigned char bytes[4 * RECORD];
    for (int i = 0; i < n; i++) {
        bytes[i * RECORD] = (unsigned char)(i % 10);
        for (int p = 0; p < RECORD - 1; p++) bytes[i * RECORD + 1 + p] = (unsigned char)(i + p % 251);
    }
    memset(bytes + n * RECORD, 200, (size_t)extra);
    disk_write(file, bytes, (size_t)(n * RECORD + extra));
}

static bool cifar_it(void) {
    fl_scope s = fl_scope_begin();
    fl_vision_arrays a = {0};
    const bool ok = fl_vision_cifar("c", "train", &a, .hundred = hundred, .coarse = coarse);
    fl_scope_end(&s);
    return ok;
}

TEST(cifar_files) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_vision_arrays a;
    CHECK(!fl_vision_cifar("c", "train", &a)), CHECK_ERROR("cannot list the folder"), fl_error_clear();
    write_cifar("c/test_batch.bin", 1, 0);
    CHECK(!fl_vision_cifar("c", "train", &a)), CHECK_ERROR("no *.bin file of part 'train'"), fl_error_clear();
    write_cifar("c/data_batch_2.bin", 2, 0), write_cifar("c/data_batch_1.bin", 3, 0);
    REQUIRE(fl_vision_cifar("c", "train", &a));
    CHECK(a.image->shape[0] == 5 && a.image->shape[1] == 3 && a.image->stride[1] == 1);
    CHECK_EQ_INT(fl_item(fl_select(a.label, 0, 2)), 2);
    CHECK_EQ_INT(fl_item(fl_select(a.label, 0, 3)), 0);
    CHECK_EQ_INT(at(fl_select(a.image, 0, 1), 2, 3, 4), 1 + (2048 + 3 * 32 + 4) % 251);
    sweep_all(cifar_it);
    end(&s);
}

TEST(bad_cifar_files) {
    begin();
    fl_scope s = fl_scope_begin();
    /* the name of a file of two records, how many bytes it has, a byte that is changed; CIFAR-10, 100 by fine
       and by coarse labels; NULL: nothing is wrong */
    static const struct {
        const char *name;
        int size, at, byte, kind;
        const char *want;
    } bad[] = {{"train.bin", 2 * RECORD, 0, 9, 0, NULL},
               {"train.bin", 2 * RECORD, 0, 10, 0, "c/train.bin: offset 0: label is 10, expected 0 to 9"},
               {"train.bin", 2 * RECORD, 0, 255, 0, "offset 0: label is 255, expected 0 to 9"},
               {"train.bin", 2 * RECORD, RECORD, 10, 0, "offset 3073: label is 10, expected 0 to 9"},
               {"train.bin", 2 * RECORD, RECORD, 128, 0, "offset 3073: label is 128, expected 0 to 9"},
               {"train.bin", 0, 0, 0, 0, "got 0 bytes, expected a multiple of the record's 3073"},
               {"train.bin", 1, 0, 0, 0, "got 1 bytes, expected a multiple of the record's 3073"},
               {"train.bin", RECORD - 1, 0, 0, 0, "got 3072 bytes, expected a multiple"},
               {"train.bin", RECORD + 1, 0, 0, 0, "got 3074 bytes, expected a multiple"},
               {"train.bin", 2 * RECORD - 1, 0, 0, 0, "got 6145 bytes, expected a multiple"},
               {"train.bin", 2 * RECORD + 5, 0, 0, 0, "got 6151 bytes, expected a multiple"},
               {"train.bin", 3 * RECORD, 2 * RECORD, 200, 0, "offset 6146: label is 200, expected 0 to 9"},
               {"data_batch_9.bin", 2 * RECORD, 0, 11, 0, "c/data_batch_9.bin: offset 0: label is 11"},
               {"train.BIN", 2 * RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"train", 2 * RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {".bin", 2 * RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"data_batc.bin", 2 * RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"test_batch.bin", 2 * RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"train.bin.gz", 2 * RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"train.bin/x", 2 * RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"train.bin", 2 * RECORD, 0, 0, 1, "got 6146 bytes, expected a multiple of the record's 3074"},
               {"train.bin", 2 * RECORD, 0, 0, 2, "got 6146 bytes, expected a multiple of the record's 3074"},
               {"train.bin", RECORD + 1, 1, 99, 1, NULL},
               {"train.bin", RECORD + 1, 1, 100, 1, "offset 0: label is 100, expected 0 to 99"},
               {"train.bin", RECORD + 1, 0, 255, 1, NULL}, /* nobody asks for the coarse one */
               {"train.bin", RECORD + 1, 0, 20, 2, "offset 0: label is 20, expected 0 to 19"},
               {"train.bin", 2 * RECORD + 2, RECORD + 1, 21, 2, "offset 3074: label is 21, expected 0 to 19"},
               {"train.bin", 2 * RECORD + 2, RECORD + 2, 101, 1,
                "offset 3074: label is 101, expected 0 to 99"},
               {"train.bin", RECORD + 1, 1, 255, 2, NULL},
               {"train.bin", 2 * RECORD - 2, 0, 0, 0,
                "got 6144 bytes, expected a multiple of the record's 3073"},
               {"train.bin", 2 * RECORD + 2, 0, 0, 0,
                "got 6148 bytes, expected a multiple of the record's 3073"},
               {"train.bin", RECORD, 0, 0, 1, "got 3073 bytes, expected a multiple of the record's 3074"},
               {"train.bin", RECORD + 2, 0, 0, 2, "got 3075 bytes, expected a multiple of the record's 3074"},
               {"train.bin", 0, 0, 0, 2, "got 0 bytes, expected a multiple of the record's 3074"},
               {"train.bin", 2, 1, 0, 1, "got 2 bytes, expected a multiple of the record's 3074"},
               {"train.bin", RECORD, 0, 16, 0, "offset 0: label is 16, expected 0 to 9"},
               {"train.bin", 4 * RECORD, 3 * RECORD, 10, 0, "offset 9219: label is 10, expected 0 to 9"},
               {"train.bin", RECORD + 1, 1, 127, 1, "offset 0: label is 127, expected 0 to 99"},
               {"train.bin", RECORD + 1, 1, 255, 1, "offset 0: label is 255, expected 0 to 99"},
               {"train.bin", RECORD + 1, 0, 255, 2, "offset 0: label is 255, expected 0 to 19"},
               {"Train.bin", RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"train.bi", RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"train_bin", RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"data-batch-1.bin", RECORD, 0, 0, 0, "no *.bin file of part 'train'"},
               {"data_batch_1.txt", RECORD, 0, 0, 0, "no *.bin file of part 'train'"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[64];
        snprintf(path, sizeof path, "c/%s", bad[i].name);
        disk_reset();
        write_cifar(path, 0, bad[i].size);
        memset(disk_find(path)->file->bytes, 0, (size_t)bad[i].size);
        disk_find(path)->file->bytes[bad[i].at] = (unsigned char)bad[i].byte;
        hundred = bad[i].kind > 0, coarse = bad[i].kind == 2;
        if (!CHECK_EQ_INT(cifar_it(), !bad[i].want) || (bad[i].want && !CHECK_ERROR(bad[i].want)))
            printf("  row %zu\n", i);
        fl_error_clear();
    }
    hundred = coarse = 0;
    end(&s);
}

/* ---- lists and shards ---- */

static char said[4000];
static int n_said;
static void hear(fl_log_level level, const char *text, void *user) {
    (void)level, (void)user;
    snprintf(said, sizeof said, "%s", text);
    n_said++;
}

static bool shards_it(void) {
    static const char *const paths[] = {"t-000000.tar"};
    return read_all(fl_vision_shards(paths, 1));
}

static bool pack_it(void) {
    fl_scope s = fl_scope_begin();
    fl_data_set *set = fl_vision_list("l.tsv", NULL);
    const bool ok = set && fl_vision_pack(set, "u", 2) == 2;
    fl_data_free(set);
    fl_scope_end(&s);
    return ok;
}

TEST(lists_shards_and_bad_files) {
    begin();
    fl_scope s = fl_scope_begin();
    for (int i = 0; i < 3; i++) {
        const char file[] = {(char)('a' + i), 0};
        put_ppm(file, file[0]);
    }
    disk_write("b", ppm, 6); /* damaged */
    disk_write("l.tsv", "a\t5\nb\t6\nc\t7\n", 12);
    disk_write("bad.tsv", "a\tx\n", 4);
    fl_data_sample b;
    fl_data_set *set = fl_vision_list("bad.tsv", NULL);
    CHECK(set && !fl_data_get(set, 0, &b));
    CHECK_ERROR("line 1: class 'x' is not an integer");
    fl_error_clear(), fl_data_free(set);
    for (int skip = 0; skip < 2; skip++) {
        set = fl_data_prefetch(
            fl_vision_batch(fl_vision_list("l.tsv", NULL), 3, .u8 = true, .skip_bad = skip), 1, 2);
        fl_log_set_sink(hear, NULL, FL_LOG_WARN);
        n_said = 0;
        for (int64_t e = 0; e < 2; e++) {
            CHECK(set && fl_data_set_epoch(set, e) && fl_data_get(set, 0, &b) == skip);
            if (!skip) CHECK_ERROR("fl_vision_read: b: offset 6: the image is truncated");
            fl_error_clear();
        }
        fl_log_set_sink(NULL, NULL, FL_LOG_WARN);
        CHECK_EQ_INT(fl_vision_skipped_samples(set), skip);
        CHECK_EQ_INT(n_said, skip);
        if (skip) {
            const int64_t labels[] = {5, 7, 7};
            CHECK(strstr(said, "b is left out: fl_vision_read: b: ") == said &&
                  !memcmp(fl_data(b.t[1]), labels, sizeof labels));
            CHECK(at(fl_select(b.t[0], 0, 0), 0, 0, 0) == 'a' && at(fl_select(b.t[0], 0, 1), 0, 0, 0) == 'c');
        }
        fl_data_free(set);
    }
    put_ppm("b", 'c');
    set = fl_vision_list("l.tsv", NULL);
    CHECK_EQ_INT(fl_vision_pack(set, "t", 2), 2);
    fl_data_free(set);
    static const char *const paths[] = {"t-000000.tar", "t-000001.tar"};
    set = fl_data_shuffle(fl_vision_shards(paths, 2), 4);
    REQUIRE(set && fl_data_size(set) == 3);
    int64_t labels = 0;
    for (int64_t i = 0; i < 3; i++) {
        REQUIRE(fl_data_get(set, i, &b));
        const int64_t label = *(int64_t *)fl_data(b.t[1]);
        CHECK(fl_numel(b.t[0]) == 15 && ((char *)fl_data(b.t[0]))[11] == (label == 5 ? 'a' : 'c'));
        labels += label;
    }
    CHECK_EQ_INT(labels, 18);
    fl_data_free(set);
    sweep_all(shards_it);
    CHECK(sweep_heap(pack_it, false) > 3);
    end(&s);
}

/* Of a list: what is said when it is opened, or when its sample is read. */
TEST(bad_lists) {
    begin();
    fl_scope s = fl_scope_begin();
    static const char *const bad[][2] = {{"", "list: no samples found"},
                                         {"\n \n\r\n", "no samples found"},
                                         {"n3/a.ppm\n", "line 1: got 1 fields, expected at least 2"},
                                         {"n3/a.ppm 5\n", "line 1: got 1 fields, expected at least 2"},
                                         {"\t5\n", "line 1: field 0, the path, is empty"},
                                         {"n3/a.ppm\t5\n\t6\n", "line 2: field 0, the path, is empty"},
                                         {"n3/a.ppm\t\n", "line 1: class '' is not an integer"},
                                         {"n3/a.ppm\tx\n", "line 1: class 'x' is not an integer"},
                                         {"n3/a.ppm\t5x\n", "line 1: class '5x' is not an integer"},
                                         {"n3/a.ppm\t5 \n", "line 1: class '5 ' is not an integer"},
                                         {"n3/a.ppm\t5\t6\n", "line 1: class '5\t6' is not an integer"},
                                         {"n3/a.ppm\t1.5\n", "line 1: class '1.5' is not an integer"},
                                         {"n3/a.ppm\t0x10\n", "line 1: class '0x10' is not an integer"},
                                         {"n3/a.ppm\t99999999999999999999\n", "is not an integer"},
                                         {"n3/a.ppm\t-99999999999999999999\n", "is not an integer"},
                                         {"n3/none.ppm\t5\n", "root/n3/none.ppm: cannot open"},
                                         {"n3\t5\n", "root/n3: cannot open"},
                                         {"/n3/b\t5\n", "list: line 1: the path '/n3/b' is outside root"},
                                         {"n3/a.ppm", "line 1: got 1 fields, expected at least 2"},
                                         {"n3/a.ppm,5\n", "line 1: got 1 fields, expected at least 2"},
                                         {"n3/a.ppm\t5\n\nn3/b.ppm\n", "line 3: got 1 fields"},
                                         {"n3/a.ppm\t5\r\nn3/a.ppm\r\n", "line 2: got 1 fields"},
                                         {"\t\n", "no samples found"},
                                         {"n3/a.ppm\t+\n", "class '+' is not an integer"},
                                         {"n3/a.ppm\t-\n", "class '-' is not an integer"},
                                         {"n3/a.ppm\t--5\n", "class '--5' is not an integer"},
                                         {"n3/a.ppm\t+-5\n", "class '+-5' is not an integer"},
                                         {"n3/a.ppm\t5,\n", "class '5,' is not an integer"},
                                         {"n3/a.ppm\t5.\n", "class '5.' is not an integer"},
                                         {"n3/a.ppm\t5e3\n", "class '5e3' is not an integer"},
                                         {"n3/a.ppm\t1_000\n", "class '1_000' is not an integer"},
                                         {"n3/a.ppm\t1,000\n", "class '1,000' is not an integer"},
                                         {"n3/a.ppm\tfive\n", "class 'five' is not an integer"},
                                         {"n3/a.ppm\tnan\n", "class 'nan' is not an integer"},
                                         {"n3/a.ppm\tinf\n", "class 'inf' is not an integer"},
                                         {"n3/a.ppm\t\"5\"\n", "class '\"5\"' is not an integer"},
                                         {"n3/a.ppm\t\xd9\xa5\n", "is not an integer"},
                                         {"n3/a.ppm\t9223372036854775808\n", "is not an integer"},
                                         {"n3/a.ppm\t-9223372036854775809\n", "is not an integer"},
                                         {"n3/A.PPM\t5\n", "root/n3/A.PPM: cannot open"},
                                         {"n3/a.ppm \t5\n", "root/n3/a.ppm : cannot open"},
                                         {"../n3/a.ppm\t5\n",
                                          "list: line 1: the path '../n3/a.ppm' is outside"},
                                         {"n3/..\t5\n", "line 1: the path 'n3/..' is outside root"},
                                         {"n3/../../a\t5\n", "line 1: the path 'n3/../../a' is outside root"},
                                         {"n3/a.ppm\t5\n..\t5\n", "line 2: the path '..' is outside root"},
                                         {"n3/.../a\t5\n", "root/n3/.../a: cannot open"},
                                         {"n3/..a\t5\n", "root/n3/..a: cannot open"},
                                         {"n3/a..\t5\n", "root/n3/a..: cannot open"},
                                         {"n9/a.ppm\t5\n", "root/n9/a.ppm: cannot open"}};
    put_classes();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        disk_write("list", bad[i][0], strlen(bad[i][0]));
        if (!CHECK(!list_it()) || !CHECK_ERROR(bad[i][1])) printf("  %s\n", bad[i][0]);
        fl_error_clear();
    }
    disk_write("list", "n3/a.ppm\t5\0\n", 12);
    CHECK(!list_it()), CHECK_ERROR("line 1: the line contains a NUL byte"), fl_error_clear();
    end(&s);
}

/* A header of a tar file with its sum, as POSIX has it. */
static void tar_header(unsigned char *b, const char *file, const char *size, char kind) {
    unsigned sum = 8 * ' ';
    snprintf((char *)b, 100, "%s", file), snprintf((char *)b + 124, 13, "%s", size);
    b[156] = (unsigned char)kind;
    memcpy(b + 257, "ustar\0" "00", 8);
    for (int i = 0; i < 512; i++) sum += i < 148 || i > 155 ? b[i] : 0;
    snprintf((char *)b + 148, 8, "%06o", sum), b[155] = ' ';
}

/* Two files: name and size of the first, name and text of the second; the first one's kind; a byte that is
   changed; where the archive is cut. NULL: nothing is wrong. */
static const struct {
    const char *name, *size, *second, *text;
    char kind;
    int at, byte, cut;
    const char *want;
} bad_tar[] = {
#define TAR(name, size, second, text, want) {name, size, second, text, '0', 0, 0, 0, want}
#define TAR_AT(at, byte, want) {"a.ppm", "00000000017", "a.cls", "3", '0', at, byte, 0, want}
#define TAR_CUT(cut, want) {"a.ppm", "00000000017", "a.cls", "3", '0', 0, 0, cut, want}
    TAR("a.ppm", "00000000017", "a.cls", "3", NULL),
    TAR("a.ppm", "00000000017", "a.cls", "3\n", NULL),
    TAR("a.ppm", "00000000017", "a.cls", "3\r\n", NULL),
    TAR("a.ppm", "     17 ", "a.cls", "0", NULL),
    TAR("a.ppm", "00000000017", "b.ppm", "", NULL),
    TAR("a.ppm", "00000000017", "a.cls", "", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "x", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "-1", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "+1", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", " 1", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "1 ", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "1.0", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "1\n2", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "1\n\n\n", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "2147483648", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "99999999999", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "a.cls", "000000000001", "offset 1536: the class must be decimal digits"),
    TAR("a.ppm", "00000000017", "b.cls", "3", "offset 2048: sample 'b' ends without an image"),
    TAR("a.txt", "00000000017", "a.cls", "3", "offset 2048: sample 'a' ends without an image"),
    TAR("a.txt", "00000000017", "b.ppm", "", "offset 1024: sample 'a' ends without an image"),
    TAR("a.cls", "00000000001", "b.ppm", "", "offset 512: the class must be decimal digits"),
    TAR("a", "00000000017", "b.ppm", "", "offset 1024: sample 'a' ends without an image"),
    TAR("", "00000000017", "b.ppm", "", "offset 1024: sample '' ends without an image"),
    TAR("d.e/a.ppm", "00000000017", "d.f/a.cls", "3", "offset 2048: sample 'd.f/a' ends without an image"),
    TAR("a.ppm.gz", "00000000017", "a.cls", "3", "sample 'a' ends without an image"),
    TAR("a.ppm", "00000000000", "b.ppm", "", "offset 512: tar header with a wrong checksum"),
    TAR("a.ppm", "00000001001", "b.ppm", "x", "offset 1536: tar header with a wrong checksum"),
    TAR("a.ppm", "77777777777", "b.ppm", "", "offset 0: entry of 8589934591 bytes, but 2560 are left"),
    TAR("a.ppm", "00000005001", "b.ppm", "", "offset 0: entry of 2561 bytes, but 2560 are left"),
    TAR("a.ppm", "0000000001x", "b.ppm", "", "offset 0: entry of -1 bytes"),
    TAR("a.ppm", "0000000017 9", "b.ppm", "", NULL), /* what stands behind the blank is not the size */
    TAR("a.ppm", "-0000000017", "b.ppm", "", "offset 0: entry of -1 bytes"),
    TAR("a.ppm", "\x80", "b.ppm", "", "offset 0: entry of -1 bytes"),
    TAR("a.ppm", "9", "b.ppm", "", "offset 0: entry of -1 bytes"),
    {"a.ppm", "00000000017", "b.ppm", "", 'L', 0, 0, 0, "offset 0: GNU long name, expected a ustar header"},
    {"a.ppm", "00000000017", "b.ppm", "", 'K', 0, 0, 0, "offset 0: GNU long name"},
    {"a.ppm", "00000000017", "b.ppm", "", '5', 0, 0, 0, NULL}, /* a folder */
    {"a.ppm", "00000000017", "a.cls", "1", 'x', 0, 0, 0, "sample 'a' ends without an image"},
    {"a.ppm", "00000000017", "b.ppm", "", 0, 0, 0, 0, NULL}, /* as before POSIX */
    TAR_AT(0, 'b', "offset 0: tar header with a wrong checksum"),
    TAR_AT(148, '7', "offset 0: tar header with a wrong checksum"),
    TAR_AT(148, '8', "offset 0: tar header with a wrong checksum"),
    TAR_AT(154, '1', "offset 0: tar header with a wrong checksum"),
    TAR_AT(124, '1', "offset 0: tar header with a wrong checksum"),
    TAR_AT(511, 1, "offset 0: tar header with a wrong checksum"),
    TAR_AT(1024, 'b', "offset 1024: tar header with a wrong checksum"),
    TAR_CUT(1, "offset 0: the archive is truncated"),
    TAR_CUT(511, "offset 0: the archive is truncated"),
    TAR_CUT(512, "offset 0: entry of 15 bytes, but 0 are left"),
    TAR_CUT(526, "offset 0: entry of 15 bytes, but 14 are left"),
    TAR_CUT(527, NULL), /* without its padding */
    TAR_CUT(1025, "offset 1024: the archive is truncated"),
    TAR_CUT(1535, "offset 1024: the archive is truncated"),
    TAR_CUT(1536, "offset 1024: entry of 1 bytes, but 0 are left"),
};

TEST(bad_tar_files) {
    begin();
    fl_scope s = fl_scope_begin();
    for (size_t i = 0; i < sizeof bad_tar / sizeof *bad_tar; i++) {
        unsigned char b[3072] = {0};
        char size[13];
        tar_header(b, bad_tar[i].name, bad_tar[i].size, bad_tar[i].kind);
        memcpy(b + 512, ppm, 15);
        snprintf(size, sizeof size, "%011o", (unsigned)strlen(bad_tar[i].text));
        tar_header(b + 1024, bad_tar[i].second, size, '0');
        if (bad_tar[i].at || bad_tar[i].byte) b[bad_tar[i].at] = (unsigned char)bad_tar[i].byte;
        memcpy(b + 1536, bad_tar[i].text, strlen(bad_tar[i].text));
        disk_write("t-000000.tar", b, bad_tar[i].cut ? (size_t)bad_tar[i].cut : sizeof b);
        const char *want = bad_tar[i].want;
        if (!CHECK_EQ_INT(shards_it(), !want) || (want && !CHECK_ERROR(want)))
            printf("  row %zu: %s\n", i, fl_error() ? fl_error() : "");
        fl_error_clear();
    }
    for (size_t n = 0; n < 2048; n += 7) { /* prefixes: an error, or a sample without its class */
        unsigned char b[2048] = {0};
        tar_header(b, "a.ppm", "00000000017", '0'), tar_header(b + 1024, "a.cls", "00000000001", '0');
        b[1536] = '3';
        disk_write("t-000000.tar", b, n);
        CHECK(shards_it() == !fl_error());
        fl_error_clear();
    }
    end(&s);
}

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
