/* tests/bounds_lm.h - expensive files for the readers of language models: rows of tests/test_bounds.c */
#include <sys/stat.h>
#include <unistd.h>

static void lm_put_number(FILE *f, uint64_t v, size_t bytes) { fwrite(&v, 1, bytes, f); }
static void put_zeros(FILE *f, int64_t n) {
    while (n-- > 0) fputc(0, f);
}

static uint64_t next_random(uint64_t *x) {
    return (*x = *x * 6364136223846793005u + 1442695040888963407u) >> 33;
}

/* ---- GGUF ---- */

static void put_name(FILE *f, const char *s) { lm_put_number(f, strlen(s), 8), fputs(s, f); }
static void put_size(FILE *f, const char *key, unsigned value) {
    put_name(f, key), lm_put_number(f, 4, 4), lm_put_number(f, value, 4);
}
/* The header of a Llama of that many layers of dim `dim`, and its tensors' number. */
static void put_llama(FILE *f, unsigned layers, unsigned dim, unsigned hidden, uint64_t tensors) {
    fputs("GGUF", f), lm_put_number(f, 3, 4), lm_put_number(f, tensors, 8), lm_put_number(f, 6, 8);
    put_name(f, "general.architecture"), lm_put_number(f, 8, 4), put_name(f, "llama");
    put_size(f, "llama.block_count", layers), put_size(f, "llama.embedding_length", dim);
    put_size(f, "llama.attention.head_count", 1), put_size(f, "llama.feed_forward_length", hidden);
    put_size(f, "llama.context_length", INT32_MAX);
}
static void put_tensor(FILE *f, const char *name, uint64_t dim, uint64_t rows) {
    put_name(f, name), lm_put_number(f, rows ? 2 : 1, 4), lm_put_number(f, dim, 8);
    if (rows) lm_put_number(f, rows, 8);
    lm_put_number(f, 0, 4), lm_put_number(f, 0, 8);
}
/* The layers that the description says, by the one tensor of each that has no numbers in it. */
static void write_gguf_sizes(FILE *f, int64_t n) {
    const unsigned layers = n > 100000 ? 1000 : 1;
    put_llama(f, layers, 1 << 14, 1 << 14, layers + 1);
    put_tensor(f, "token_embd.weight", 0, 1);
    for (unsigned i = 0; i < layers; i++) {
        char name[40];
        snprintf(name, sizeof name, "blk.%u.ffn_down.weight", i);
        put_tensor(f, name, 0, 1);
    }
    put_zeros(f, n - ftell(f));
}
/* All tensors of as many layers as fit, each of one number: what is said of each layer costs most. */
static void write_gguf_layers(FILE *f, int64_t n) {
    static const char *const names[] = {"attn_norm",   "attn_q",   "attn_k",   "attn_v",  "attn_output",
                                        "ffn_norm",    "ffn_gate", "ffn_up",   "ffn_down"};
    const unsigned layers = (unsigned)(n / 820);
    uint64_t at = 0;
    put_llama(f, layers, 1, 1, 9 * layers + 2);
    for (unsigned i = 0; i < 9 * layers + 2; i++, at += 32) {
        const bool norm = i < 9 * layers ? i % 9 == 0 || i % 9 == 5 : i == 9 * layers;
        char name[40];
        if (i < 9 * layers) snprintf(name, sizeof name, "blk.%u.%s.weight", i / 9, names[i % 9]);
        else snprintf(name, sizeof name, "%s", norm ? "output_norm.weight" : "token_embd.weight");
        put_name(f, name), lm_put_number(f, norm ? 1 : 2, 4), lm_put_number(f, 1, 8);
        if (!norm) lm_put_number(f, 1, 8);
        lm_put_number(f, 0, 4), lm_put_number(f, at, 8);
    }
    while (ftell(f) % 32) fputc(0, f);
    put_zeros(f, (int64_t)at);
}
/* A model of one layer whose feed-forward weights, of Q2_K, are all of the file: a byte is three numbers. */
static void write_gguf_blocks(FILE *f, int64_t n) {
    static const char *const names[] = {
        "blk.0.ffn_gate.weight",    "blk.0.ffn_up.weight",   "blk.0.ffn_down.weight", "blk.0.attn_q.weight",
        "blk.0.attn_k.weight",      "blk.0.attn_v.weight",   "blk.0.attn_output.weight", "token_embd.weight",
        "blk.0.attn_norm.weight",   "blk.0.ffn_norm.weight", "output_norm.weight"};
    const unsigned dim = 256, hidden = (unsigned)(n / (3 * 84)) / dim * dim;
    uint64_t at = 0;
    put_llama(f, 1, dim, hidden, 11);
    for (int i = 0; i < 11; i++) {
        const uint64_t rows = i == 7 ? 1 : i < 2 ? hidden : dim, columns = i == 2 ? hidden : dim;
        put_name(f, names[i]), lm_put_number(f, i < 8 ? 2 : 1, 4);
        lm_put_number(f, columns, 8);
        if (i < 8) lm_put_number(f, rows, 8);
        lm_put_number(f, i < 8 ? 10 : 0, 4), lm_put_number(f, at, 8);
        at += ((i < 8 ? rows * columns / 256 * 84 : dim * 4) + 31) / 32 * 32;
    }
    while (ftell(f) % 32) fputc(0, f);
    put_zeros(f, (int64_t)at);
}
/* Arrays of empty texts, and keys of few bytes. */
static void write_gguf_texts(FILE *f, int64_t n) {
    const uint64_t each = (uint64_t)n / 2;
    fputs("GGUF", f), lm_put_number(f, 3, 4), lm_put_number(f, 0, 8), lm_put_number(f, 1 + each / 17, 8);
    put_name(f, "tokens"), lm_put_number(f, 9, 4), lm_put_number(f, 8, 4), lm_put_number(f, each / 8, 8);
    put_zeros(f, (int64_t)(each / 8 * 8));
    for (uint64_t i = 0; i < each / 17; i++) {
        char key[8];
        snprintf(key, sizeof key, "%04x", (unsigned)i);
        put_name(f, key), lm_put_number(f, 0, 4), fputc(1, f);
    }
}
/* A tensor for every 36 bytes. */
static void write_gguf_tensors(FILE *f, int64_t n) {
    const uint64_t tensors = (uint64_t)n / 36;
    fputs("GGUF", f), lm_put_number(f, 3, 4), lm_put_number(f, tensors, 8), lm_put_number(f, 0, 8);
    for (uint64_t i = 0; i < tensors; i++) {
        char name[8];
        snprintf(name, sizeof name, "%04x", (unsigned)i);
        put_tensor(f, name, 0, 0);
    }
    while (ftell(f) % 32) fputc(0, f);
}
/* A tokenizer: its kind, and the beginning of an array. */
static void put_text_key(FILE *f, const char *key, const char *text) {
    put_name(f, key), lm_put_number(f, 8, 4), put_name(f, text);
}
static void put_array(FILE *f, const char *key, unsigned type, uint64_t n) {
    put_name(f, key), lm_put_number(f, 9, 4), lm_put_number(f, type, 4), lm_put_number(f, n, 8);
}
static void put_tokenizer(FILE *f, const char *model, uint64_t keys) {
    fputs("GGUF", f), lm_put_number(f, 3, 4), lm_put_number(f, 0, 8), lm_put_number(f, keys, 8);
    put_text_key(f, "tokenizer.ggml.model", model), put_text_key(f, "tokenizer.ggml.pre", "gpt-2");
}
/* So many tokens "<number>" of that type, each with a score. */
static void put_gguf_pieces(FILE *f, uint64_t n, unsigned type) {
    char text[20];
    put_array(f, "tokenizer.ggml.token_type", 5, n);
    for (uint64_t i = 0; i < n; i++) lm_put_number(f, i == 0 ? 2 : i % 2 ? type : 1, 4);
    put_array(f, "tokenizer.ggml.scores", 6, n);
    for (uint64_t i = 0; i < n; i++) lm_put_number(f, 0, 4);
    put_array(f, "tokenizer.ggml.tokens", 8, n);
    for (uint64_t i = 0; i < n; i++) snprintf(text, sizeof text, "<%x>", (unsigned)i), put_name(f, text);
}
static void write_gguf_pieces(FILE *f, int64_t n) {
    put_tokenizer(f, "t5", 5), put_gguf_pieces(f, (uint64_t)n / 22, 1);
}
static void write_gguf_control(FILE *f, int64_t n) {
    put_tokenizer(f, "llama", 6);
    put_name(f, "tokenizer.fl.special_in_text"), lm_put_number(f, 7, 4), fputc(1, f);
    put_gguf_pieces(f, (uint64_t)n / 22, 3);
}
static void write_gguf_words(FILE *f, int64_t n) {
    put_tokenizer(f, "bert", 5), put_gguf_pieces(f, (uint64_t)n / 22, 4);
}
/* Pieces a, aa, aaa and so on, of equal scores: each is two others in as many ways as it is long. */
static void write_gguf_stairs(FILE *f, int64_t n) {
    uint64_t most = 1;
    while ((int64_t)(most * (16 + most / 2)) < n && most < 4000) most++;
    put_tokenizer(f, "llama", 4), put_array(f, "tokenizer.ggml.scores", 6, most);
    for (uint64_t i = 0; i < most; i++) lm_put_number(f, 0, 4);
    put_array(f, "tokenizer.ggml.tokens", 8, most);
    for (uint64_t i = 1; i <= most; i++) {
        lm_put_number(f, i, 8);
        for (uint64_t k = 0; k < i; k++) fputc('a', f);
    }
}
/* The same merge again and again. */
static void write_gguf_merges(FILE *f, int64_t n) {
    put_tokenizer(f, "gpt2", 4), put_array(f, "tokenizer.ggml.tokens", 8, 2);
    put_name(f, "a"), put_name(f, "aa");
    put_array(f, "tokenizer.ggml.merges", 8, (uint64_t)n / 11);
    for (int64_t i = 0; i < n / 11; i++) put_name(f, "a a");
}
static void text_use(fl_text_tokenizer *t); /* of tests/bounds_text.h */
static void read_gguf_tokenizer(const char *path) { text_use(fl_text_gguf_tokenizer_load(path)); }

static bool count_text(const char *text, int64_t n, double number, void *user) {
    (void)text, (void)n, (void)number;
    return ++*(int64_t *)user;
}
static void read_gguf(const char *path) {
    fl_data_file *f = fl_text_open_gguf(path);
    int64_t texts = 0;
    if (f) fl_text_gguf_array(f, "tokens", count_text, &texts);
    for (int64_t i = 0; i < fl_data_count(f); i++) fl_data_read(f, fl_data_name(f, i));
    fl_data_close(f);
}
static void read_model(const char *path) {
    fl_nn_free(fl_text_load(path));
    fl_error_clear();
    fl_nn_free(fl_text_load(path, .stored = true));
}

/* ---- llama2.c ---- */

/* Layers whose tensors have one number each, so that a layer is 36 bytes: a module of it takes 7,000. */
static void write_llama2c(FILE *f, int64_t n) {
    const int32_t layers = n > 36 * 999 + 40 ? 999 : (int32_t)(n - 40) / 36;
    const int32_t head[] = {1, 1, layers, 1, 1, 1, 1};
    fwrite(head, 1, sizeof head, f);
    put_zeros(f, 36 * (int64_t)layers + 12);
}
/* Sizes whose product is far beyond the file. */
static void write_llama2c_sizes(FILE *f, int64_t n) {
    const int32_t head[] = {1 << 16, 1 << 16, 999, 1 << 10, 1 << 10, 1 << 20, 1 << 20};
    fwrite(head, 1, sizeof head, f);
    put_zeros(f, n - 28);
}

/* ---- folders of Hugging Face ---- */

/* Loads the tensors beside that config.json; config NULL: the file is the config. */
static void read_lm_folder(const char *path, const char *config) {
    char folder[340], name[360], tensors[360];
    snprintf(folder, sizeof folder, "%s.folder", path);
    snprintf(name, sizeof name, "%s/config.json", folder);
    snprintf(tensors, sizeof tensors, "%s/model.safetensors", folder);
    mkdir(folder, 0700);
    FILE *f = config ? fopen(name, "wb") : NULL;
    if (f) fputs(config, f), fclose(f);
    rename(path, config ? tensors : name);
    read_model(folder);
    rename(config ? tensors : name, path);
    remove(name);
    rmdir(folder);
}
static void put_header(FILE *f, const char *json) { lm_put_number(f, strlen(json), 8), fputs(json, f); }
/* One tensor: of the last layer's last weight, from which loaders may count layers. A file of 286 bytes once
   took
   5.1 GB so. */
static void put_one_tensor(FILE *f, int64_t n, const char *name) {
    char json[400];
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%lld],\"data_offsets\":[0,%lld]}}",
             name,
             (long long)n, (long long)n);
    put_header(f, json), put_zeros(f, n);
}
static void write_llama(FILE *f, int64_t n) { put_one_tensor(f, n, "model.layers.0.mlp.down_proj.weight"); }
static void write_gpt2(FILE *f, int64_t n) { put_one_tensor(f, n, "transformer.h.0.mlp.c_proj.weight"); }
static void write_bert(FILE *f, int64_t n) {
    put_one_tensor(f, n, "bert.encoder.layer.0.output.dense.weight");
}
static void read_llama(const char *path) {
    read_lm_folder(path, "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":16384,"
                      "\"num_attention_heads\":16,\"intermediate_size\":16384,\"vocab_size\":16384}");
}
static void read_gpt2(const char *path) {
    read_lm_folder(path, "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_embd\":2,\"n_head\":1,"
                      "\"n_positions\":2147483647,\"vocab_size\":2147483647}");
}
static void read_bert(const char *path) {
    read_lm_folder(path, "{\"model_type\":\"bert\",\"num_hidden_layers\":1,\"hidden_size\":2,"
                      "\"num_attention_heads\":1,\"intermediate_size\":2147483647,\"vocab_size\":2,"
                      "\"type_vocab_size\":2147483647}");
}
/* Many settings of the name that is asked for last. */
static void write_settings(FILE *f, int64_t n) {
    fputs("{\"model_type\":\"llama\"", f);
    for (int64_t i = 0; 22 * i < n; i++) fprintf(f, ",\"%x.%x\":1", (unsigned)i, (unsigned)i);
    fputc('}', f);
}
static void read_config(const char *path) { read_lm_folder(path, NULL); }

/* ---- adapters ---- */

static void write_adapter(FILE *f, int64_t n) {
    fputs("        {", f);
    for (int64_t i = 0; 80 * i < n; i++)
        fprintf(f, "%s\"%x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? "," : "",
                (unsigned)i);
    fputc('}', f);
    const int64_t end = ftell(f);
    fseek(f, 0, SEEK_SET), lm_put_number(f, (uint64_t)end - 8, 8), fseek(f, 0, SEEK_END);
}
static void read_adapter(const char *path) {
    char folder[340], name[380];
    snprintf(folder, sizeof folder, "%s.folder", path);
    snprintf(name, sizeof name, "%s/adapter_model.safetensors", folder);
    mkdir(folder, 0700);
    rename(path, name);
    fl_nn_module *m = fl_text_lm(5, .layers = 1, .dim = 8, .heads = 2, .context = 4);
    fl_text_lora *l = fl_text_lora_new(m);
    fl_text_lora_load(l, folder);
    fl_text_lora_free(l), fl_nn_free(m);
    rename(name, path);
    rmdir(folder);
}

/* ---- token files and lines ---- */

/* Documents that each begin at 0, as if all were the whole file. */
static void write_tokens(FILE *f, int64_t n) {
    char json[400];
    const long long each = n / 16;
    snprintf(json, sizeof json, "{\"starts\":{\"dtype\":\"I64\",\"shape\":[%lld],\"data_offsets\":[0,%lld]},"
             "\"tokens\":{\"dtype\":\"U16\",\"shape\":[%lld],\"data_offsets\":[%lld,%lld]}}",
             each, 8 * each, 4 * each, 8 * each, 16 * each);
    put_header(f, json);
    for (int64_t i = 0; i < each; i++) lm_put_number(f, i % 2 ? 4 * (uint64_t)each : 0, 8);
    put_zeros(f, 8 * each);
}
static void read_set(fl_data_set *set) {
    fl_data_sample b;
    bool ok = set != NULL;
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        ok = fl_data_get(set, i, &b);
        fl_scope_end(&s);
    }
    fl_data_free(set);
}
static void read_tokens(const char *path) {
    fl_text_tokens *t = fl_text_tokens_open(path);
    if (t) read_set(fl_text_documents(t, 0));
    fl_text_tokens_free(t);
}
static void read_raw_tokens(const char *path) {
    fl_text_tokens *t = fl_text_tokens_open(path, .raw = true);
    if (t) read_set(fl_text_blocks(t, 1));
    fl_text_tokens_free(t);
}
static void write_short_lines(FILE *f, int64_t n) {
    for (int64_t i = 0; i < n; i++) fputc(i % 2 ? '\n' : 'a', f);
}
static void write_one_line(FILE *f, int64_t n) {
    for (int64_t i = 0; i < n; i++) fputc('a', f);
}
static void read_lines(const char *path) {
    fl_text_tokenizer *t = fl_text_char_tokenizer("ab", 2);
    read_set(fl_text_lines(path, t, 0));
    fl_text_tokenizer_free(t);
}

/* ---- n-gram models ---- */

/* A pruned model: each n-gram of order 8 asks for all shorter ones that it ends with or begins with. */
static void write_pruned_arpa(FILE *f, int64_t n) {
    const int64_t grams = n / 20;
    uint64_t x = 1;
    fprintf(f, "\\data\\\nngram 1=52\n");
    for (int k = 2; k < 8; k++) fprintf(f, "ngram %d=0\n", k);
    fprintf(f, "ngram 8=%lld\n\n\\1-grams:\n0 <s>\n0 </s>\n", (long long)grams);
    for (int c = 0; c < 50; c++) fprintf(f, "0 %c\n", 'A' + c);
    for (int k = 2; k < 8; k++) fprintf(f, "\n\\%d-grams:\n", k);
    fprintf(f, "\n\\8-grams:\n");
    for (int64_t i = 0; i < grams; i++) {
        fputc('0', f);
        for (int k = 0; k < 8; k++) fprintf(f, " %c", 'A' + (int)(next_random(&x) % 50));
        fputc('\n', f);
    }
    fprintf(f, "\n\\end\\\n");
}
/* Counts that the file has room for, and no n-grams. */
static void write_arpa_counts(FILE *f, int64_t n) {
    fprintf(f, "\\data\\\nngram 1=%lld\nngram 2=%lld\n\n\\1-grams:\n", (long long)(n / 4),
            (long long)(n / 6));
    for (int64_t i = 0; i < n; i++) fputc('\n', f);
}
static void write_arpa_words(FILE *f, int64_t n) {
    fprintf(f, "\\data\\\nngram 1=%lld\n\n\\1-grams:\n0 <s>\n0 </s>\n", (long long)(n / 7 + 2));
    for (int64_t i = 0; i < n / 7; i++) fprintf(f, "0 %04x\n", (unsigned)i);
    fprintf(f, "\\end\\\n");
}
/* 2-grams whose places in the table are all near each other. */
static void write_arpa_collisions(FILE *f, int64_t n) {
    const int64_t words = n / 40, grams = n / 14;
    const uint64_t slots = (uint64_t)(grams + grams / 2 + 8);
    fprintf(f, "\\data\\\nngram 1=%lld\nngram 2=%lld\n\n\\1-grams:\n0 <s>\n0 </s>\n", (long long)words + 2,
            (long long)grams);
    for (int64_t i = 0; i < words; i++) fprintf(f, "0 %x\n", (unsigned)i);
    fprintf(f, "\n\\2-grams:\n");
    int64_t made = 0;
    for (int64_t i = 0; made < grams && i < words; i++)
        for (int64_t j = 0; made < grams && j < words; j++)
            if (fl_text_ngram_key((uint64_t)i + 3, (int32_t)j + 3) % slots < slots / 64)
                fprintf(f, "0 %x %x\n", (unsigned)j, (unsigned)i), made++;
    fprintf(f, "\\end\\\n");
}
/* A KenLM file of order 2 and type `type` whose counts its tables have no room for. */
static void put_kenlm(FILE *f, uint32_t type, uint64_t words, uint64_t grams) {
    static const char magic[56] = "mmap lm http://kheafield.com/code format version 5\n";
    const uint32_t tests[] = {0, 0x3f800000u, 0xbf000000u, 1, 0xffffffffu, 0, 1, 0};
    const float multiplier = 1.5f;
    fwrite(magic, 1, sizeof magic, f), fwrite(tests, 1, sizeof tests, f);
    lm_put_number(f, 2, 4), fwrite(&multiplier, 1, 4, f), lm_put_number(f, type, 4), lm_put_number(f, 1, 4);
    lm_put_number(f, type > 1, 4), lm_put_number(f, words, 8), lm_put_number(f, grams, 8);
    while (ftell(f) % 8) fputc(0, f);
}
static const uint64_t kenlm_hashes[] = {0x758639bd217e70u, 0x6be0737df1f76c0au}; /* of <s> and </s> */
/* Tables without a free slot: whatever is looked for is compared with all of them. */
static void write_kenlm_probing(FILE *f, int64_t n) {
    const uint64_t words = (uint64_t)n / 60, slots = words + words / 2;
    put_kenlm(f, 0, words, words);
    lm_put_number(f, words, 8);
    for (uint64_t i = 0; i < slots; i++) {
        const bool known = slots - i <= 2;
        lm_put_number(f, known ? kenlm_hashes[slots - i - 1] : i + 1, 8), lm_put_number(f, known ? slots - i :
                                                                                        0, 4);
    }
    while (ftell(f) < n) fputc(1, f);
}
/* The ends of the lists of n-grams are far beyond the tables. */
static void write_kenlm_trie(FILE *f, int64_t n) {
    const uint64_t words = (uint64_t)n / 60;
    put_kenlm(f, 2, words, words);
    lm_put_number(f, words, 8);
    for (uint64_t i = 0; i < words; i++)
        lm_put_number(f, i + 2 >= words ? kenlm_hashes[i + 2 - words] : (i + 1) << 40, 8);
    while (ftell(f) < n) fputc(255, f);
}
static void write_kenlm_counts(FILE *f, int64_t n) {
    put_kenlm(f, 5, (uint64_t)n / 60, (uint64_t)n * 8), put_zeros(f, n);
}
static void read_ngram(const char *path) {
    fl_text_ngram *m = fl_text_ngram_load(path);
    fl_text_ngram_sum sum = {0};
    if (m) fl_text_ngram_score_text(m, "a b c a b c d e f g\n", 20, &sum);
    fl_text_ngram_free(m);
}
/* Random words of two letters: nearly all n-grams of two and more come once. */
static void write_random_words(FILE *f, int64_t n) {
    uint64_t x = 1;
    for (int64_t i = 0; i < n; i++)
        fputc(i % 40 == 39 ? '\n' : i % 3 == 2 ? ' ' : (int)('a' + next_random(&x) % 26), f);
}
static void train_ngram(const char *path) {
    int64_t n;
    char *text = fl_text_read_file("train_ngram", path, &n), arpa[400];
    snprintf(arpa, sizeof arpa, "%s.arpa", path);
    if (text) fl_text_ngram_train(text, n, arpa);
    remove(arpa);
    fl_heap_free(text);
}

static const bounds_row lm_rows[] = {
    {"GGUF: a model far beyond the file", write_gguf_sizes, read_model, ".gguf"},
    {"GGUF: many layers of one number", write_gguf_layers, read_model, ".gguf"},
    {"GGUF: a model of Q2_K", write_gguf_blocks, read_model, ".gguf"},
    {"GGUF: many texts and keys", write_gguf_texts, read_gguf, ".gguf"},
    {"GGUF: many empty tensors", write_gguf_tensors, read_gguf, ".gguf"},
    {"GGUF: many unigram pieces", write_gguf_pieces, read_gguf_tokenizer, ".gguf"},
    {"GGUF: many control tokens", write_gguf_control, read_gguf_tokenizer, ".gguf"},
    {"GGUF: many pieces of words", write_gguf_words, read_gguf_tokenizer, ".gguf"},
    {"GGUF: pieces a, aa, aaa, ...", write_gguf_stairs, read_gguf_tokenizer, ".gguf"},
    {"GGUF: a merge many times", write_gguf_merges, read_gguf_tokenizer, ".gguf"},
    {"llama2.c: layers of one number", write_llama2c, read_model, ".bin"},
    {"llama2.c: sizes far beyond the file", write_llama2c_sizes, read_model, ".bin"},
    {"safetensors: a Llama of one tensor", write_llama, read_llama, NULL},
    {"safetensors: a GPT-2 of 2^31 positions", write_gpt2, read_gpt2, NULL},
    {"safetensors: a BERT of 2^31 types", write_bert, read_bert, NULL},
    {"config.json: many settings", write_settings, read_config, NULL},
    {"LoRA: many empty tensors", write_adapter, read_adapter, NULL},
    {"tokens: documents that overlap", write_tokens, read_tokens, NULL},
    {"tokens: u16, blocks of one", write_tokens, read_raw_tokens, NULL},
    {"lines: of one letter", write_short_lines, read_lines, NULL},
    {"lines: a long one", write_one_line, read_lines, NULL},
    {"ARPA: pruned, of order 8", write_pruned_arpa, read_ngram, NULL},
    {"ARPA: counts without n-grams", write_arpa_counts, read_ngram, NULL},
    {"ARPA: many short words", write_arpa_words, read_ngram, NULL},
    {"ARPA: n-grams that collide", write_arpa_collisions, read_ngram, NULL},
    {"KenLM: a hash without free slots", write_kenlm_probing, read_ngram, NULL},
    {"KenLM: a trie of ones", write_kenlm_trie, read_ngram, NULL},
    {"KenLM: counts beyond the file", write_kenlm_counts, read_ngram, NULL},
    {"n-gram training: random words", write_random_words, train_ngram, NULL},
};

/* MIT licence: see LICENSE. */
