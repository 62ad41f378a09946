/* fuzz_lm.c - GGUF files, llama2.c's files, folders of Hugging Face and token files of any content

   Two files lie in memory behind fl_data's table of file operations: config.json, and another one. Their
   bytes
   are the input, or those of a whole model of which the input changes some. What opens is read: ids are in
   range, tensors have the bytes that they say, and all of it costs no more than tests/cost.h allows. */
#include "fuzz.h"

static struct {
    size_t size;
    char bytes[1 << 12];
} config;
static void *open_one(void *user, const char *path, fl_data_mode mode) {
    if (mode == FL_DATA_READ && config.size && fl_data_ends(path, "config.json")) return &config;
    return fuzz_mem_open(user, path, mode);
}
static int64_t read_one(void *user, void *handle, void *dst, size_t n, int64_t at) {
    if (handle != &config) return fuzz_mem_read(user, handle, dst, n, at);
    if (at < 0) fuzz_bug("a read at %" PRId64, at);
    if ((uint64_t)at >= config.size) return 0;
    if (n > config.size - (size_t)at) n = config.size - (size_t)at;
    memcpy(dst, config.bytes + at, n);
    return (int64_t)n;
}
static int64_t size_of_one(void *user, void *handle) {
    return handle == &config ? (int64_t)config.size : fuzz_mem_size(user, handle);
}
static const fl_data_io disk = {
    .open = open_one, .read = read_one, .size = size_of_one, .close = fuzz_mem_close};

/* Types of GGUF: numbers and bytes of a block. The first seven are for matrices of 32 columns. */
static const struct { unsigned type, numbers, bytes;
} gguf_types[] = {{2, 32, 18},    {3, 32, 20},    {6, 32, 22},    {7, 32, 24},    {8, 32, 34},
                  {20, 32, 18},   {39, 32, 17},   {10, 256, 84},  {11, 256, 110}, {12, 256, 144},
                  {13, 256, 176}, {14, 256, 210}, {15, 256, 292}, {23, 256, 136}, {28, 1, 8}};

/* A model of one layer of 32 in GGUF, tensors of several types; or with one of each other type too. */
static void put_gguf(void) {
    static const struct { const char *name; uint64_t dims[2];
    } tensors[] = {{"token_embd.weight", {32, 4}},     {"blk.0.attn_norm.weight", {32, 0}},
                   {"blk.0.attn_q.weight", {32, 32}},  {"blk.0.attn_k.weight", {32, 32}},
                   {"blk.0.attn_v.weight", {32, 32}},  {"blk.0.attn_output.weight", {32, 32}},
                   {"blk.0.ffn_norm.weight", {32, 0}}, {"blk.0.ffn_gate.weight", {32, 32}},
                   {"blk.0.ffn_up.weight", {32, 32}},  {"blk.0.ffn_down.weight", {32, 32}},
                   {"output_norm.weight", {32, 0}}};
    static const char *const keys[] = {"llama.block_count", "llama.embedding_length",
                                       "llama.attention.head_count", "llama.feed_forward_length",
                                       "llama.context_length"};
    static const unsigned values[] = {1, 32, 4, 32, 8};
    const int more = fuzz_byte() % 2 ? 8 : 0, first = fuzz_below(7);
    fuzz_append("GGUF", 4), fuzz_append_int(3, 4), fuzz_append_int(11 + (unsigned)more,
                                                                   8), fuzz_append_int(7, 8);
    fuzz_append_text("general.architecture"), fuzz_append_int(8, 4), fuzz_append_text("llama");
    fuzz_append_text("tokens"), fuzz_append_int(9, 4), fuzz_append_int(8, 4), fuzz_append_int(2, 8), fuzz_append_text("a"), fuzz_append_text("bc");
    for (int i = 0; i < 5; i++) fuzz_append_text(keys[i]), fuzz_append_int(4, 4), fuzz_append_int(values[i],
                                                                                                  4);
    uint64_t at = 0;
    for (int i = 0; i < 11; i++) {
        const int two = tensors[i].dims[1] > 0, k = (first + i) % 7;
        const unsigned type = two ? gguf_types[k].type : 0;
        fuzz_append_text(tensors[i].name), fuzz_append_int(two ? 2 : 1, 4), fuzz_append(tensors[i].dims, two
                                                                                        ? 16 : 8);
        fuzz_append_int(type, 4), fuzz_append_int(at, 8);
        at += (two ? tensors[i].dims[1] * gguf_types[k].bytes : 32 * 4) + 31;
        at -= at % 32;
    }
    for (int k = 7; k < 7 + more; k++) { /* beside the model's, which then is none: a row of two blocks */
        const char name[] = {(char)('a' + k), 0};
        fuzz_append_text(name), fuzz_append_int(1, 4), fuzz_append_int(2 * gguf_types[k].numbers, 8), fuzz_append_int(gguf_types[k].type, 4);
        fuzz_append_int(at, 8), at += 2 * gguf_types[k].bytes + 31, at -= at % 32;
    }
    while (fuzz_mem.size % 32) fuzz_append_int(0, 1);
    for (uint64_t i = 0; i < at; i++) fuzz_append_int(i % 7, 1);
}

/* The same in llama2.c's format, of hidden 16, and a vocabulary of 4 with its own head or without. */
static void put_llama2c(void) {
    const int32_t vocabulary = fuzz_byte() % 2 ? 4 : -4, head[] = {32, 16, 1, 4, 2, vocabulary, 8};
    fuzz_append(head, sizeof head);
    for (int i = 0; i < 4 * (4 * 32 * (vocabulary < 0 ? 2 : 1) + 3 * 32 + 32 * 96 + 3 * 16 * 32 + 8 * 8); i++)
        fuzz_append_int((unsigned)i % 7, 1);
}

/* A number that fits, or rarely any. */
static long long near(long long n) { return fuzz_rarely(24) ? (long long)fuzz_int() : n; }

/* A Llama, Qwen2, GPT-2 or BERT of Hugging Face of one layer of 8, and a vocabulary of 4. */
static void put_folder(void) {
    static const struct { const char *type, *text, *names; } kinds[] = {
        {"llama", "\"num_hidden_layers\":%lld,\"hidden_size\":%lld,\"num_attention_heads\":%lld,"
         "\"intermediate_size\":%lld,\"max_position_embeddings\":%lld,\"vocab_size\":%lld",
         "4,8 model.embed_tokens.weight;8 model.layers.0.input_layernorm.weight;"
         "8,8 model.layers.0.self_attn.q_proj.weight;8,8 model.layers.0.self_attn.k_proj.weight;"
         "8,8 model.layers.0.self_attn.v_proj.weight;8,8 model.layers.0.self_attn.o_proj.weight;"
         "8 model.layers.0.post_attention_layernorm.weight;16,8 model.layers.0.mlp.gate_proj.weight;"
         "16,8 model.layers.0.mlp.up_proj.weight;8,16 model.layers.0.mlp.down_proj.weight;"
         "8 model.norm.weight;4,8 lm_head.weight;"},
        {"gpt2", "\"n_layer\":%lld,\"n_embd\":%lld,\"n_head\":%lld,\"n_inner\":%lld,\"n_positions\":%lld,"
         "\"vocab_size\":%lld",
         "4,8 wte.weight;6,8 wpe.weight;8 h.0.ln_1.weight;8 h.0.ln_1.bias;8,24 h.0.attn.c_attn.weight;"
         "24 h.0.attn.c_attn.bias;8,8 h.0.attn.c_proj.weight;8 h.0.attn.c_proj.bias;8 h.0.ln_2.weight;"
         "8 h.0.ln_2.bias;8,16 h.0.mlp.c_fc.weight;16 h.0.mlp.c_fc.bias;16,8 h.0.mlp.c_proj.weight;"
         "8 h.0.mlp.c_proj.bias;8 ln_f.weight;8 ln_f.bias;"}};
    const int k = fuzz_below(2);
    config.size = (size_t)snprintf(config.bytes, sizeof config.bytes, "{\"model_type\":\"%s\",",
                                   kinds[k].type);
    const long long layers = near(1), dim = near(8), heads = near(2), hidden = near(16), context = near(6),
                    words = near(4);
    config.size += (size_t)snprintf(config.bytes + config.size, sizeof config.bytes - config.size,
                                    kinds[k].text, layers, dim, heads, hidden, context, words);
    config.bytes[config.size++] = '}';
    char json[4096] = "{";
    size_t n = 1;
    long long at = 0;
    for (const char *p = kinds[k].names; *p; p = strchr(p, ';') + 1) {
        char *name;
        const long long rows = near(strtoll(p, &name, 10));
        const long long columns = *name == ',' ? near(strtoll(name + 1, &name, 10)) : 0;
        long long bytes = 4;
        if (__builtin_mul_overflow(bytes, rows, &bytes) ||
            (columns &&
             __builtin_mul_overflow(bytes, columns, &bytes)) || bytes < 0 || bytes > 4096) bytes = 4;
        n += (size_t)snprintf(json + n, sizeof json - n, "%s\"%.*s\":{\"dtype\":\"F32\",\"shape\":[%lld",
                              n > 1 ? "," : "", (int)strcspn(name + 1, ";"), name + 1, rows);
        if (columns) n += (size_t)snprintf(json + n, sizeof json - n, ",%lld", columns);
        n += (size_t)snprintf(json + n, sizeof json - n, "],\"data_offsets\":[%lld,%lld]}", at, at + bytes);
        at += bytes;
    }
    json[n++] = '}';
    fuzz_append_int(n, 8), fuzz_append(json, n);
    for (long long i = 0; i < at; i++) fuzz_append_int(0, 1);
}

/* Some bytes, mostly of the first ones, become others; the end may go. */
static void change(size_t first) {
    for (unsigned k = fuzz_byte() % 6; k > 0; k--) {
        const size_t at = (size_t)fuzz_word(2) % (fuzz_byte() % 4 ? first : fuzz_mem.size);
        fuzz_mem.bytes[at] = (char)fuzz_byte();
    }
    if (fuzz_rarely(4)) fuzz_mem.size = (size_t)fuzz_word(2) % fuzz_mem.size;
}

static void read_all(fl_data_file *f) {
    for (int64_t i = 0; f && i < fl_data_count(f); i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *t = fl_data_read(f, fl_data_name(f, i));
        if (t) fuzz_check_tensor(t);
        if (t && (t = fl_cast(t, FL_F32))) fuzz_check_tensor(t);
        fl_error_clear();
        fl_scope_end(&s);
    }
    fl_data_close(f);
}

static bool count_element(const char *text, int64_t n, double number, void *user) {
    (void)number;
    if (text && strlen(text) > (size_t)n) fuzz_bug("an element without end");
    ++*(int64_t *)user;
    return true;
}

static void read_model(const char *path) {
    fl_nn_module *m = fl_text_load(path, .stored = fuzz_byte() % 2);
    if (!m && !fl_error() && !fuzz_memory.failed) fuzz_bug("no model and no error");
    fl_nn_free(m);
}

static void fuzz_one(void) {
    static const char *const paths[] = {"a.gguf", "a.gguf", "a.bin", "x/model.safetensors", "tokens",
                                        "lines",  "a.bin",  "x/config.json"};
    const unsigned kind = fuzz_byte() % 8;
    fl_data_io_use(&disk);
    fuzz_mem.path = paths[kind], fuzz_mem.size = config.size = 0;
    if (kind == 1) put_gguf(), change(900);
    else if (kind == 2) put_llama2c(), change(28);
    else if (kind == 3) put_folder();
    else
        while (fuzz_input.left && fuzz_mem.size < FUZZ_MEM_ROOM) fuzz_append_int(fuzz_byte(), 1);
    fuzz_doing = paths[kind];
    fl_scope s = fl_scope_begin();
    fuzz_cost_begin();
    if (kind < 2) {
        fl_data_file *f = fl_text_open_gguf(fuzz_mem.path);
        int64_t n = 0;
        if (f && fl_text_gguf_array(f, "tokens", count_element, &n) > (int64_t)fuzz_mem.size)
            fuzz_bug("too many elements");
        read_all(f);
        fl_error_clear();
    }
    if (kind < 4 || kind > 5) read_model(kind == 3 || kind == 7 ? "x" : fuzz_mem.path);
    else if (kind == 5) {
        fl_text_tokenizer *t = fl_text_char_tokenizer("abcdefgh 0123", 13);
        fl_data_set *set = t ? fl_text_lines(fuzz_mem.path, t, (int64_t)fuzz_mem.size % 14 - 1) : NULL;
        fl_data_sample b;
        for (int64_t i = 0; i < fl_data_size(set); i++, fl_error_clear())
            if (fl_data_get(set, i, &b)) fuzz_check_tensor(b.t[0]), fuzz_check_tensor(b.t[1]);
        fl_data_free(set);
        fl_text_tokenizer_free(t);
    } else {
        fl_text_tokens *t = fl_text_tokens_open(fuzz_mem.path, .raw = true, .vocabulary = 300);
        int64_t id[8];
        for (int64_t i = 0; t && i + 8 <= fl_text_tokens_count(t); i += 8)
            if (fl_text_tokens_read(t, i, 8, id))
                for (int k = 0; k < 8; k++)
                    if (id[k] < 0 || id[k] >= 300) fuzz_bug("an id that is %" PRId64, id[k]);
        fl_text_tokens_free(t);
    }
    fuzz_cost_end(fuzz_mem.size + config.size);
    fl_error_clear();
    fl_scope_end(&s);
    fl_data_io_use(NULL);
}
/* MIT licence: see LICENSE. */
