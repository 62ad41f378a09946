/* tests/bounds_data.h - expensive files for the readers of fl_data.h: rows of tests/test_bounds.c */

static void data_write_deep_json(FILE *f, int64_t n) {
    for (int64_t i = 0; i < n; i++) fputc('[', f);
}
static void data_write_json_names(FILE *f, int64_t n) {
    fputc('{', f);
    for (int64_t i = 0; 8 * i < n; i++) fprintf(f, "%s\"%x\":1", i ? "," : "", (unsigned)i);
    fputc('}', f);
}
static void data_read_json(const char *path) {
    fl_data_json *j = fl_data_json_open(path);
    while (j) {
        const fl_data_json_event e = fl_data_json_next(j);
        if (e == FL_DATA_JSON_END || e == FL_DATA_JSON_ERROR) break;
    }
    fl_data_json_close(j);
}

static void data_write_npy_shape(FILE *f, int64_t n) {
    char header[118] = "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }";
    memset(header + strlen(header), ' ', sizeof header - strlen(header));
    fwrite("\x93NUMPY\1\0\x76\0", 1, 10, f);
    fwrite(header, 1, sizeof header, f);
    for (int64_t i = 128; i < n; i++) fputc(0, f);
}
static void data_read_npy(const char *path) { fl_data_load_npy(path); }

static void data_read_settings(const char *path) {
    fl_data_settings s = {0};
    fl_data_settings_read(&s, path, "settings");
    fl_data_settings_free(&s);
}
static void data_write_long_names(FILE *f, int64_t n) { /* each value has the names around it in its own */
    fputs("{\"", f);
    for (int i = 0; i < 190; i++) fputc('x', f);
    fputs("\":{", f);
    for (int64_t i = 0; 7 * i < n; i++) fprintf(f, "%s\"%x\":1", i ? "," : "", (unsigned)i & 0xff);
    fputs("}}", f);
}
static void data_write_settings_arrays(FILE *f, int64_t n) { /* two bytes are a value with a name of 190 */
    fputs("{\"", f);
    for (int i = 0; i < 185; i++) fputc('x', f);
    fputs("\":{\"a\":[0", f);
    for (int64_t i = 1; 2 * i < n; i++) fputs(i % 9000 ? ",1" : "],\"a\":[0", f);
    fputs("]}}", f);
}

/* ---- safetensors ---- */

static void data_put_header(FILE *f, const char *text) {
    const uint64_t n = strlen(text);
    fwrite(&n, 8, 1, f);
    fwrite(text, 1, n, f);
}
static void data_write_st_length(FILE *f, int64_t n) {
    fwrite(&(uint64_t){UINT64_MAX / 2}, 8, 1, f);
    for (int64_t i = 8; i < n; i++) fputc('{', f);
}
static void data_write_st_shape(FILE *f, int64_t n) {
    data_put_header(f, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1099511627776],"
                       "\"data_offsets\":[0,4398046511104]}}");
    for (int64_t i = 0; i < n; i++) fputc(0, f);
}
/* Many tensors without bytes, in the order that sorts worst. */
static void data_write_st_names(FILE *f, int64_t n) {
    fl_data_text t = {0};
    fl_data_text_print(&t, "{");
    for (int64_t i = 0; t.n < n - 60; i++)
        fl_data_text_print(&t, "%s\"%llx\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                           i ? "," : "", (unsigned long long)(n - i));
    fl_data_text_print(&t, "}");
    data_put_header(f, t.p);
    fl_heap_free(t.p);
}
static void data_write_st_meta(FILE *f, int64_t n) {
    fl_data_text t = {0};
    fl_data_text_print(&t, "{\"__metadata__\":{");
    for (int64_t i = 0; t.n < n - 20; i++)
        fl_data_text_print(&t, "%s\"%llx\":\"\"", i ? "," : "", (long long)i);
    fl_data_text_print(&t, "}}");
    data_put_header(f, t.p);
    fl_heap_free(t.p);
}
/* The fields of one tensor in two million arrays: they are read, and refused. */
static void data_write_st_nested(FILE *f, int64_t n) {
    fwrite(&(uint64_t){(uint64_t)n}, 8, 1, f);
    fputs("{\"a\":{\"shape\":", f);
    for (int64_t i = 14; i < n; i++) fputc('[', f);
}
static void data_read_named_file(fl_data_file *f) {
    for (int64_t i = 0; i < fl_data_count(f); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_read(f, fl_data_name(f, i));
        fl_scope_end(&s);
    }
    fl_data_meta(f, "x");
    fl_data_close(f);
}
static void data_read_safetensors(const char *path) { data_read_named_file(fl_data_open_safetensors(path)); }
static void data_read_mapped(const char *path) { data_read_named_file(fl_data_map_safetensors(path, true)); }
static void data_read_module(const char *path) {
    fl_nn_module *m = fl_nn_linear(2, 2);
    fl_nn_load(m, path, .partial = true);
    fl_nn_free(m);
}
static void data_read_checkpoint(const char *path) {
    fl_nn_module *m = fl_nn_linear(2, 2);
    fl_optim *o = fl_optim_adam(fl_nn_parameters(m));
    fl_optim_load_checkpoint(path, m, o, NULL);
    fl_optim_free(o);
    fl_nn_free(m);
}
/* A checkpoint with many tensors that it should not have. */
static void data_write_optim_names(FILE *f, int64_t n) {
    fl_data_text t = {0};
    fl_data_text_print(&t, "{\"__metadata__\":{\"checkpoint.version\":\"1\",\"step\":\"1\",\"epoch\":\"1\","
                           "\"position\":\"1\",\"rng.key\":\"1\",\"rng.counter\":\"1\",\"optim\":\"adam\"}");
    for (int64_t i = 0; t.n < n - 60; i++)
        fl_data_text_print(&t, ",\"optim.%llx\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                           (unsigned long long)i);
    fl_data_text_print(&t, "}");
    data_put_header(f, t.p);
    fl_heap_free(t.p);
}

/* ---- the index of shards ---- */

static void data_write_index_shards(FILE *f, int64_t n) {
    fputs("{\"weight_map\":{", f);
    for (int64_t i = 0; 33 * i < n; i++)
        fprintf(f, "%s\"%x\":\"%07x.safetensors\"", i ? "," : "", (unsigned)i, (unsigned)i);
    fputs("}}", f);
}
static void data_write_index_meta(FILE *f, int64_t n) {
    fputs("{\"weight_map\":{},\"metadata\":{", f);
    for (int64_t i = 0; 9 * i < n; i++) fprintf(f, "%s\"%x\":\"\"", i ? "," : "", (unsigned)i);
    fputs("}}", f);
}
/* Saving reads the names of the shards that an old index has. */
static void data_save_over_index(const char *path) { fl_data_save_sharded(path, NULL, 0, NULL, 0, 0); }

/* ---- npy, npz, idx ---- */

static void data_write_npy_header(FILE *f, int64_t n) {
    const int64_t size = n - 10 < 65535 ? n - 10 : 65535;
    fwrite("\x93NUMPY\1\0", 1, 8, f);
    fputc((int)(size & 255), f), fputc((int)(size >> 8), f);
    fputs("{'descr': '", f);
    for (int64_t i = 21; i < n; i++) fputc(' ', f);
}
static void data_put_number(FILE *f, uint64_t v) { fwrite(&v, 8, 1, f); }
/* Without zlib nothing is deflated, nor read. */
static void data_written(bool ok) {
    CHECK(ok || (fl_error() && strstr(fl_error(), "install zlib")));
    fl_error_clear();
}
/* The bytes of the file at path go to f, and the file goes. */
static void data_move(const char *path, FILE *f) {
    FILE *from = fopen(path, "rb");
    for (int c; from && (c = fgetc(from)) != EOF;) fputc(c, f);
    if (from) fclose(from);
    remove(path);
}
/* An archive of as many small members as n bytes hold. */
static void data_write_npz(FILE *f, int64_t n, bool deflate) {
    enum { MOST = 6000 };
    static fl_data_named_tensor list[MOST];
    static char name[MOST][8];
    char path[300];
    const int members = n / 300 < MOST ? (int)(n / 300) : MOST;
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_zeros(FL_SHAPE(1), FL_U8);
    for (int i = 0; i < members; i++) {
        snprintf(name[i], sizeof name[i], "%d", i);
        list[i] = (fl_data_named_tensor){name[i], x};
    }
    snprintf(path, sizeof path, "%s", test_file("members"));
    data_written(fl_data_save_npz(path, list, members, deflate));
    data_move(path, f);
    fl_scope_end(&s);
}
static void data_write_npz_stored(FILE *f, int64_t n) { data_write_npz(f, n, false); }
static void data_write_npz_deflated(FILE *f, int64_t n) { data_write_npz(f, n, true); }
/* Zeros that deflate to a thousandth. */
static void data_write_npz_bomb(FILE *f, int64_t n) {
    char path[300];
    fl_scope s = fl_scope_begin();
    snprintf(path, sizeof path, "%s", test_file("bomb"));
    fl_tensor *zeros = fl_zeros(FL_SHAPE(1000 * n / 8), FL_U8);
    data_written(fl_data_save_npz(path, (fl_data_named_tensor[]){{"a", zeros}}, 1, true));
    fl_scope_end(&s);
    data_move(path, f);
}
/* The same as gzip with an idx header. */
static void data_write_idx_bomb(FILE *f, int64_t n) {
    fl_data_stream to;
    char path[300];
    const uint32_t size = (uint32_t)(1000 * n / 8);
    unsigned char *bytes = calloc(1, size + 8);
    if (!CHECK(bytes != NULL)) return;
    memcpy(bytes, "\0\0\x8\1", 4);
    for (int i = 0; i < 4; i++) bytes[4 + i] = (unsigned char)(size >> (24 - 8 * i));
    snprintf(path, sizeof path, "%s", test_file("bomb"));
    const fl_data_piece piece = {bytes, size + 8};
    if (!CHECK(fl_data_stream_open(&to, "bounds", path, FL_DATA_REPLACE))) return;
    data_written(fl_data_deflate(&to, 0, &piece, 1) > 0);
    to.io.close(to.io.user, to.file);
    fwrite("\x1f\x8b\x8\0\0\0\0\0\0\xff", 1, 10, f);
    data_move(path, f);
    const uint32_t end[2] = {fl_data_crc32(0, bytes, size + 8), size + 8};
    fwrite(end, 4, 2, f);
    free(bytes);
}
static void data_read_npz(const char *path) { data_read_named_file(fl_data_open_npz(path)); }

static void data_write_idx_dims(FILE *f, int64_t n) {
    fwrite("\0\0\x8\x8", 1, 4, f);
    for (int i = 0; i < 32; i++) fputc(i % 4 == 2 ? 255 : 0, f);
    for (int64_t i = 36; i < n; i++) fputc(0, f);
}
static void data_read_idx(const char *path) { fl_data_load_idx(path); }

/* ---- csv, lists, blobs, logs ---- */

static void data_write_csv_columns(FILE *f, int64_t n) {
    for (int64_t i = 0; i < n; i++) fputc(',', f);
}
static void data_write_csv_quotes(FILE *f, int64_t n) {
    for (int64_t i = 0; i < n; i++) fputc('"', f);
}
static void data_write_csv_rows(FILE *f, int64_t n) {
    for (int64_t i = 0; i < n; i++) fputc('\n', f);
}
static void data_read_csv(const char *path) {
    fl_data_csv *c = fl_data_csv_open(path, .no_header = true);
    double x;
    while (c && fl_data_csv_next(c))
        for (int64_t i = 0; i < c->n; i++) fl_data_csv_double(c, i, &x);
    fl_data_csv_close(c);
    c = fl_data_csv_open(path);
    fl_data_csv_close(c);
}
static bool data_take_field(const fl_data_list_entry *e, fl_data_sample *out, void *user) {
    (void)user;
    return e->n > 0 && (out->t[out->n++] = fl_ones(FL_SCALAR_SHAPE, FL_F32)) != NULL;
}
static void data_read_set(fl_data_set *set) {
    for (int64_t i = 0; set && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        fl_data_get(set, i, &b);
        fl_data_length(set, i);
        fl_scope_end(&s);
    }
    fl_data_free(set);
}
static void data_read_list(const char *path) { data_read_set(fl_data_list(path, data_take_field)); }
static void data_write_list_lines(FILE *f, int64_t n) {
    for (int64_t i = 0; 2 * i < n; i++) fputs("a\n", f);
}
static void data_write_list_fields(FILE *f, int64_t n) {
    fputc('a', f);
    for (int64_t i = 0; i < n; i++) fputc('\t', f);
}
/* Samples without fields, which an index of n bytes can hold. */
static void data_write_blob_samples(FILE *f, int64_t n) {
    fwrite("flblob1\n", 1, 8, f);
    const int64_t samples = n / 8;
    for (int64_t i = 0; i < samples; i++) data_put_number(f, 0);
    data_put_number(f, 8), data_put_number(f, (uint64_t)samples), fwrite("flblob1\n", 1, 8, f);
}
/* All samples are the same bytes, the whole file. */
static void data_write_blob_overlap(FILE *f, int64_t n) {
    const int64_t data = n / 2 / 8 * 8, samples = n / 2 / 40;
    fwrite("flblob1\n", 1, 8, f);
    for (int64_t i = 0; i < data; i++) fputc(0, f);
    for (int64_t i = 0; i < samples; i++) {
        data_put_number(f, 1), fwrite("u8\0\0\0\0\0\0", 1, 8, f), data_put_number(f, 1);
        data_put_number(f, 8), data_put_number(f, (uint64_t)data);
    }
    data_put_number(f, (uint64_t)(8 + data)), data_put_number(f, (uint64_t)samples);
    fwrite("flblob1\n", 1, 8, f);
}
/* One sample: what all cost is the user's choice. */
static void data_read_blob(const char *path) {
    fl_data_set *set = fl_data_open_blob(path);
    fl_data_sample b;
    if (set && fl_data_size(set)) fl_data_get(set, 0, &b);
    fl_data_free(set);
}
static void data_read_log(const char *path) { fl_data_log_close(fl_data_log_open(path)); }
static void data_write_log_line(FILE *f, int64_t n) {
    fputs("{\"step\":", f);
    for (int64_t i = 8; i < n; i++) fputc('1', f);
}
static void data_write_log_records(FILE *f, int64_t n) { /* records of 0 bytes */
    static const unsigned char record[16] = {0,    0,    0,    0,    0,    0,    0,    0,
                                             0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2};
    for (int64_t i = 0; 16 * i < n; i++) fwrite(record, 1, 16, f);
}

static const bounds_row data_rows[] = {
    {"JSON: nested arrays", data_write_deep_json, data_read_json, ".json"},
    {"JSON: an object of many names", data_write_json_names, data_read_json, ".json"},
    {"settings: nested arrays", data_write_deep_json, data_read_settings, ".json"},
    {"settings: many names", data_write_json_names, data_read_settings, ".json"},
    {"settings: short names in a long one", data_write_long_names, data_read_settings, ".json"},
    {"settings: arrays in a long name", data_write_settings_arrays, data_read_settings, ".json"},
    {"safetensors: a header of 2^63 bytes", data_write_st_length, data_read_safetensors, NULL},
    {"safetensors: a shape of 2^40", data_write_st_shape, data_read_safetensors, NULL},
    {"safetensors: many names", data_write_st_names, data_read_safetensors, NULL},
    {"safetensors: many names, mapped", data_write_st_names, data_read_mapped, NULL},
    {"safetensors: much metadata", data_write_st_meta, data_read_safetensors, NULL},
    {"safetensors: nested arrays", data_write_st_nested, data_read_safetensors, NULL},
    {"fl_nn_load: many names", data_write_st_names, data_read_module, NULL},
    {"checkpoint: many names", data_write_optim_names, data_read_checkpoint, NULL},
    {"index: many shards", data_write_index_shards, data_read_safetensors, ".safetensors.index.json"},
    {"index: many shards, replaced", data_write_index_shards, data_save_over_index,
     ".safetensors.index.json"},
    {"index: much metadata", data_write_index_meta, data_read_safetensors, ".safetensors.index.json"},
    {"index: nested arrays", data_write_deep_json, data_read_safetensors, ".safetensors.index.json"},
    {"npy: a shape of 2^40", data_write_npy_shape, data_read_npy, ".npy"},
    {"npy: a long header", data_write_npy_header, data_read_npy, ".npy"},
    {"npz: many members", data_write_npz_stored, data_read_npz, ".npz"},
    {"npz: many deflated members", data_write_npz_deflated, data_read_npz, ".npz"},
    {"npz: zeros", data_write_npz_bomb, data_read_npz, ".npz"},
    {"idx: zeros in gzip", data_write_idx_bomb, data_read_idx, ".gz"},
    {"idx: dims of 2^48", data_write_idx_dims, data_read_idx, NULL},
    {"CSV: commas", data_write_csv_columns, data_read_csv, ".csv"},
    {"CSV: quotes", data_write_csv_quotes, data_read_csv, ".csv"},
    {"CSV: empty lines", data_write_csv_rows, data_read_csv, ".csv"},
    {"list: short lines", data_write_list_lines, data_read_list, NULL},
    {"list: a line of many fields", data_write_list_fields, data_read_list, NULL},
    {"blob: many samples", data_write_blob_samples, data_read_blob, NULL},
    {"blob: samples of the same bytes", data_write_blob_overlap, data_read_blob, NULL},
    {"log: a line that does not end", data_write_log_line, data_read_log, ".jsonl"},
    {"log: records of no bytes", data_write_log_records, data_read_log, ".tfevents"},
    {"JSON lines, nested", data_write_deep_json, data_read_log, ".jsonl"},
};
/* MIT licence: see LICENSE. */
