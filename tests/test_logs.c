/* test_logs.c - logs by step: what is in them, cut ones that go on, disks that fail */
#include "../fl_data.h"
#include "disk.h"
#ifndef _WIN32
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

static const char *const kinds[] = {"log.csv", "log.jsonl", "events.out.tfevents.1"};

static bool content_is(const char *path, const char *text) {
    const name *n = disk_find(path);
    const bool same = n && n->file->size == strlen(text) && !memcmp(n->file->bytes, text, strlen(text));
    if (n && !same) printf("  %s: %.*s\n", path, (int)n->file->size, (const char *)n->file->bytes);
    return same;
}

TEST(crc32c) {
    CHECK(fl_data_crc32c(0, "123456789", 9) == 0xe3069283u); /* RFC 3720's polynomial, its usual check */
    CHECK(fl_data_crc32c(fl_data_crc32c(0, "1234", 4), "56789", 5) == 0xe3069283u);
}

TEST(lines) {
    begin();
    fl_scope s = fl_scope_begin();
    for (int k = 0; k < 2; k++) {
        fl_data_log *log = fl_data_log_open(kinds[k]);
        REQUIRE(log);
        CHECK(fl_data_log_add(log, 0, "loss", 0.1));
        CHECK(fl_data_log_add(log, -3, "a,\"b\"\n", -1e-300));
        CHECK(fl_data_log_add(log, INT64_MAX, "loss", NAN) && fl_data_log_add(log, 1, "loss", -INFINITY));
        CHECK(fl_data_log_text(log, 2, "note", "x, \"y\"\nz\x01"));
        CHECK(fl_data_log_close(log));
        log = fl_data_log_open(kinds[k]); /* goes on behind */
        CHECK(fl_data_log_add(log, 3, "loss", 12345678.25) && fl_data_log_close(log));
    }
    CHECK(content_is("log.csv", "step,name,value\n0,loss,0.1\n-3,\"a,\"\"b\"\" \",-1e-300\n"
                                "9223372036854775807,loss,nan\n1,loss,-inf\n2,note,\"x, \"\"y\"\" z\x01\"\n"
                                "3,loss,12345678.25\n"));
    CHECK(content_is("log.jsonl", "{\"step\":0,\"name\":\"loss\",\"value\":0.1}\n"
                                  "{\"step\":-3,\"name\":\"a,\\\"b\\\"\\u000a\",\"value\":-1e-300}\n"
                                  "{\"step\":9223372036854775807,\"name\":\"loss\",\"value\":null}\n"
                                  "{\"step\":1,\"name\":\"loss\",\"value\":null}\n"
                                  "{\"step\":2,\"name\":\"note\",\"text\":\"x, \\\"y\\\"\\u000az\\u0001\"}\n"
                                  "{\"step\":3,\"name\":\"loss\",\"value\":12345678.25}\n"));
    end(&s);
}

/* Three records, of which two are of other kinds where there are such. */
static bool write_three(const char *path, int first) {
    fl_data_log *log = fl_data_log_open(path);
    bool ok = log && fl_data_log_add(log, first, "loss", 0.5);
    ok = fl_data_log_text(log, first + 1, "note", "so far") && ok;
    fl_scope s = fl_scope_begin();
    if (log && strstr(path, "tfevents"))
        ok = fl_data_log_histogram(log, first + 2, "w", fl_arange(0, 3, 1, FL_F32)) && ok;
    else ok = fl_data_log_add(log, first + 2, "loss", 0.25) && ok;
    fl_scope_end(&s);
    return fl_data_log_close(log) && ok;
}

/* Offsets of the records' ends, and 0; wall times, and the sums over them, are made zero, so that runs
   compare. -1: not made of whole records with good sums. */
static int record_ends(const char *path, size_t end[16]) {
    const name *file = disk_find(path);
    unsigned char *p = file->file->bytes, *last = p + file->file->size;
    int n = 1;
    end[0] = 0;
    if (!strstr(path, "tfevents")) {
        for (const unsigned char *q = p; q < last; q++)
            if (*q == '\n') end[n++] = (size_t)(q - p) + 1;
        return end[n - 1] == file->file->size ? n : -1;
    }
    for (unsigned char *q = p; q < last; n++) {
        uint64_t size;
        uint32_t sum, want;
        memcpy(&size, q, 8);
        if (last - q < 16 || size > (uint64_t)(last - q) - 16) return -1;
        memcpy(&sum, q + 12 + size, 4);
        want = fl_data_crc32c(0, q + 12, size);
        want = ((want >> 15) | (want << 17)) + 0xa282ead8u;
        if (sum != want && sum) return -1; /* 0: seen before */
        memset(q + 13, 0, 8);
        memset(q + 12 + size, 0, 4);
        q += 16 + size;
        end[n] = (size_t)(q - p);
    }
    return n;
}

/* A log that was cut at any byte goes on behind its last whole record. */
TEST(cut_logs_go_on) {
    begin();
    fl_scope s = fl_scope_begin();
    for (int k = 0; k < 3; k++) {
        static unsigned char whole[4096], both[8192];
        size_t end[16], size;
        CHECK(write_three(kinds[k], 1));
        const int n = record_ends(kinds[k], end);
        node *f = disk_find(kinds[k])->file;
        memcpy(whole, f->bytes, size = f->size);
        CHECK_EQ_INT(n, k == 1 ? 4 : 5); /* a header, or the version, comes first */
        CHECK(write_three(kinds[k], 4));
        CHECK_EQ_INT(record_ends(kinds[k], end), n + 3);
        memcpy(both, disk_find(kinds[k])->file->bytes, end[n + 2]);
        for (size_t cut = 0; cut <= size; cut++) {
            disk_reset(); /* a mended file is a new one */
            disk_write(kinds[k], whole, cut);
            CHECK(write_three(kinds[k], 4));
            int kept = 0;
            while (kept + 1 < n && end[kept + 1] <= cut) kept++;
            const int first = kept ? kept : k != 1; /* an empty one gets its header again */
            f = disk_find(kinds[k])->file;
            size_t now[16];
            CHECK_EQ_INT(record_ends(kinds[k], now), first + 4);
            CHECK(!memcmp(f->bytes, both, end[first]));
            CHECK_EQ_INT(f->size - end[first], end[n + 2] - end[n - 1]);
            CHECK(!memcmp(f->bytes + end[first], both + end[n - 1], f->size - end[first]));
        }
    }
    end(&s);
}

/* An event file with any byte changed is refused as it is, or goes on behind what its lengths say. */
TEST(changed_event_files) {
    begin();
    fl_scope s = fl_scope_begin();
    static unsigned char whole[4096];
    const char *path = kinds[2];
    CHECK(write_three(path, 1));
    const size_t size = disk_find(path)->file->size;
    memcpy(whole, disk_find(path)->file->bytes, size);
    int refused = 0;
    for (size_t at = 0; at < size; at++) {
        disk_reset();
        disk_write(path, whole, size);
        node *f = disk_find(path)->file;
        f->bytes[at] ^= (unsigned char)(1 << at % 8);
        fl_data_log *log = fl_data_log_open(path);
        if (log) CHECK(fl_data_log_add(log, 1, "a", 1) && fl_data_log_close(log));
        else CHECK_ERROR("not a record of an event file");
        refused += !log;
        f = disk_find(path)->file;
        CHECK(log ? f->size > size : f->size == size);
        CHECK_EQ_INT(f->bytes[at], whole[at] ^ (1 << at % 8));
    }
    CHECK_EQ_INT(refused, 4 * 12); /* four records' lengths and the sums over them */
    end(&s);
}

/* The disk fails, anywhere: one error, and nothing is lost unless the log could not be opened or closed. */
static void check_failing_disk(int k, fault kind) {
    static unsigned char want[4096];
    size_t end[16], size;
    disk_reset();
    disk_write(kinds[k], want, 0);
    disk_fault_at(0, FAULT_ERROR);
    CHECK(write_three(kinds[k], 1));
    const int calls = disk.calls;
    record_ends(kinds[k], end);
    node *f = disk_find(kinds[k])->file;
    memcpy(want, f->bytes, size = f->size);
    for (int at = 1; at <= calls; at++) {
        disk_write(kinds[k], want, 0);
        disk_fault_at(at, kind);
        const bool ok = write_three(kinds[k], 1);
        const bool absorbed = kind == FAULT_SHORT || kind == FAULT_EINTR;
        CHECK(absorbed || !ok);
        if (!ok) {
            const bool full = kind == FAULT_ERROR_FROM_HERE;
            CHECK(fl_error() != NULL);
            if (at > 3 && at < calls && !full) CHECK_STR(fl_error(), "cannot write");
            fl_error_clear();
        }
        disk_fault_at(0, FAULT_ERROR);
        CHECK_EQ_INT(disk.open, 0);
        f = disk_find(kinds[k])->file;
        if (kind != FAULT_ERROR_FROM_HERE && (ok || (at > 3 && at < calls))) {
            CHECK(record_ends(kinds[k], end) > 0);
            CHECK(f->size == size && !memcmp(f->bytes, want, size));
        }
        CHECK(write_three(kinds[k], 9));
        CHECK(record_ends(kinds[k], end) > 3);
    }
}

TEST(failing_disks) {
    begin();
    fl_scope s = fl_scope_begin();
    for (int k = 0; k < 3; k++)
        for (int kind = FAULT_ERROR; kind <= FAULT_SHORT; kind++) check_failing_disk(k, (fault)kind);
    end(&s);
}

/* A full disk: every call fails until there is room, and then all of it is there. */
TEST(a_full_disk_loses_nothing) {
    begin();
    fl_scope s = fl_scope_begin();
    fl_data_log *log = fl_data_log_open("log.csv");
    REQUIRE(log);
    disk_fault_at(1, FAULT_ERROR_FROM_HERE);
    for (int i = 0; i < 3; i++) {
        CHECK(!fl_data_log_add(log, i, "loss", i));
        CHECK_ERROR("fl_data_log_add: log.csv: cannot write");
    }
    disk_fault_at(0, FAULT_ERROR);
    CHECK(fl_data_log_add(log, 3, "loss", 3));
    CHECK(content_is("log.csv", "step,name,value\n0,loss,0\n1,loss,1\n2,loss,2\n3,loss,3\n"));
    static char long_text[700000];
    memset(long_text, 'x', sizeof long_text - 1);
    disk_fault_at(1, FAULT_ERROR_FROM_HERE);
    CHECK(!fl_data_log_text(log, 4, "kept", long_text) && fl_error());
    fl_error_clear();
    CHECK(!fl_data_log_text(log, 5, "past a MiB", long_text) && fl_error());
    fl_error_clear();
    disk_fault_at(0, FAULT_ERROR);
    CHECK(fl_data_log_close(log));
    const char *bytes = (const char *)disk_find("log.csv")->file->bytes;
    CHECK(strstr(bytes, "4,kept,xxx") && !strstr(bytes, "past a MiB"));
    end(&s);
}

static int kind_now;
static bool write_and_mend(void) {
    static const char *const cut[] = {"step,name", "{\"st", "abc"};
    disk_write(kinds[kind_now], cut[kind_now], strlen(cut[kind_now]));
    return write_three(kinds[kind_now], 1);
}
TEST(memory_runs_out) {
    begin();
    fl_scope s = fl_scope_begin();
    for (kind_now = 0; kind_now < 3; kind_now++) {
        CHECK(sweep_heap(write_and_mend, false) > 3);
        CHECK(sweep_heap(write_and_mend, true) > 3);
    }
    kind_now = 2;
    CHECK(sweep_buffers(write_and_mend, false) > 0);
    end(&s);
}

TEST(other_files_are_refused) {
    begin();
    fl_scope s = fl_scope_begin();
    CHECK(!fl_data_log_open(NULL));
    CHECK_ERROR("fl_data_log_open: path is NULL");
    CHECK(!fl_data_log_open("tfevents/log.txt"));
    CHECK_ERROR("fl_data_log_open: tfevents/log.txt: the name must end with .csv or .jsonl, or contain tfev");
    disk_write("log.csv", "epoch,loss\n1,2\n", 15);
    CHECK(!fl_data_log_open("log.csv"));
    CHECK_ERROR("fl_data_log_open: log.csv: the file does not begin as a log of the format its name says");
    CHECK(content_is("log.csv", "epoch,loss\n1,2\n"));
    disk_write("log.jsonl", "{\"a\": 1}", 8); /* a line without end, but none of a log: it stays */
    CHECK(!fl_data_log_open("log.jsonl"));
    CHECK_ERROR("log.jsonl: the file does not begin as");
    CHECK(content_is("log.jsonl", "{\"a\": 1}"));
    disk_write("a.tfevents", "no event file at all", 20);
    CHECK(!fl_data_log_open("a.tfevents"));
    CHECK_ERROR("fl_data_log_open: a.tfevents: offset 0: not a record of an event file");
    CHECK(content_is("a.tfevents", "no event file at all"));
    disk_write("log.csv", "", 0);
    fl_data_log *log = fl_data_log_open("log.csv");
    CHECK(!fl_data_log_add(log, 1, NULL, 1));
    CHECK_ERROR("fl_data_log_add: the log, the name or the value is NULL");
    CHECK(!fl_data_log_text(log, 1, "a", NULL));
    CHECK_ERROR("fl_data_log_text: the log, the name or the value is NULL");
    CHECK(!fl_data_log_histogram(log, 1, "a", fl_zeros(FL_SHAPE(1), FL_F32)));
    CHECK_ERROR("fl_data_log_histogram: log.csv: histograms are for event files only");
    CHECK(!fl_data_log_add(NULL, 1, "a", 1));
    CHECK_ERROR("the log, the name or the value is NULL");
    CHECK(fl_data_log_close(log) && fl_data_log_close(NULL));
    CHECK(content_is("log.csv", "step,name,value\n"));
    end(&s);
}

#ifndef _WIN32
/* A writer on the real disk is killed again and again, and a second one refused meanwhile. */
TEST(killed_writers_and_second_ones) {
    const char *path = test_file("log.jsonl");
    test_errors_return();
    for (int round = 0; round < 10; round++) {
        int ready[2];
        REQUIRE(pipe(ready) == 0);
        const pid_t pid = fork();
        if (!pid) {
            fl_data_log *log = fl_data_log_open(path);
            for (int64_t i = 0; log && i < 100000000; i++) {
                fl_data_log_add(log, i, "loss", (double)i / 3);
                if (i == 50 && write(ready[1], "", 1) != 1) break;
            }
            _exit(0);
        }
        close(ready[1]);
        char byte;
        CHECK(read(ready[0], &byte, 1) == 1);
        CHECK(!fl_data_log_open(path));
        CHECK_ERROR("the file is open for writing elsewhere");
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        close(ready[0]);
    }
    fl_data_log *log = fl_data_log_open(path);
    CHECK(log && fl_data_log_close(log));
    fl_data_json *j = fl_data_json_open(path, .many = true);
    int64_t records = 0;
    for (; j && fl_data_json_more(j); records++) CHECK(fl_data_json_skip(j));
    CHECK_NO_ERROR();
    CHECK(records > 500);
    fl_data_json_close(j);
    remove(path);
}
#endif

/* What tests/python/test_tensorboard.py reads, into the folder of the
   environment's LOG_SAMPLES. */
static int write_samples(const char *dir) {
    bool ok = true;
    for (int k = 0; k < 3; k++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, kinds[k]);
        fl_data_log *log = fl_data_log_open(path);
        if (!log) return 1;
        fl_scope s = fl_scope_begin();
        for (int64_t i = 0; i < 100; i++) {
            const char *curve = i % 2 ? "train/loss" : "acc\xc3\xa9";
            ok = fl_data_log_add(log, i * i * i, curve, 1.0 / (double)(1 + i)) && ok;
        }
        ok = fl_data_log_add(log, 7, "nan", NAN) && ok;
        ok = fl_data_log_text(log, 5, "note", "a, \"quoted\" text\nof \xe2\x82\xac two lines") && ok;
        if (k == 2) {
            ok = fl_data_log_histogram(log, 1, "w", fl_arange(0, 300, 1, FL_F32)) && ok;
            ok = fl_data_log_histogram(log, 2, "w", fl_full(FL_SHAPE(4), 2, FL_F32)) && ok;
            ok = fl_data_log_histogram(log, 3, "w", fl_full(FL_SHAPE(4), NAN, FL_F32)) && ok;
            ok = fl_data_log_histogram(log, 4, "w", fl_zeros(FL_SHAPE(0), FL_F32)) && ok;
        }
        fl_scope_end(&s);
        ok = fl_data_log_close(log) && ok;
    }
    return !ok;
}

int main(int argc, char **argv) {
    const char *samples = getenv("LOG_SAMPLES");
    return samples ? write_samples(samples) : test_main(argc, argv);
}

/* MIT licence: see LICENSE. */
