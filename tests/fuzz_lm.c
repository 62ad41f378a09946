/* fuzz_lm.c - GGUF files, llama2.c's files, config.json and token files of any content

   One file lies in memory behind fl_data's table of file operations. Its bytes are the input, or those of a
   whole GGUF file of which the input changes some. What opens is read: ids are in range, tensors have the
   bytes that they say, and memory stays within 16 times the file plus 64 KiB. */
#include "fuzz.h"

static void put(const void *p, size_t n) {
    if (n > FUZZ_MEM_ROOM - fuzz_mem.size) n = FUZZ_MEM_ROOM - fuzz_mem.size;
    memcpy(fuzz_mem.bytes + fuzz_mem.size, p, n);
    fuzz_mem.size += n;
}
static void put_int(uint64_t v, size_t n) { put(&v, n); }
static void put_text(const char *s) { put_int(strlen(s), 8), put(s, strlen(s)); }

/* A model of one layer of 32 in GGUF, each tensor of one of its types. */
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
    put("GGUF", 4), put_int(3, 4), put_int(11, 8), put_int(7, 8);
    put_text("general.architecture"), put_int(8, 4), put_text("llama");
    put_text("tokens"), put_int(9, 4), put_int(8, 4), put_int(2, 8), put_text("a"), put_text("bc");
    for (int i = 0; i < 5; i++) put_text(keys[i]), put_int(4, 4), put_int(values[i], 4);
    uint64_t at = 0;
    for (int i = 0; i < 11; i++) {
        const int two = tensors[i].dims[1] > 0, type = two ? i % 2 ? 8 : 2 : 0;
        const uint64_t numbers = 32 * (two ? tensors[i].dims[1] : 1);
        put_text(tensors[i].name), put_int(two ? 2 : 1, 4), put(tensors[i].dims, two ? 16 : 8);
        put_int((unsigned)type, 4), put_int(at, 8);
        at += (type == 8 ? numbers / 32 * 34 : type == 2 ? numbers / 32 * 18 : numbers * 4) + 31;
        at -= at % 32;
    }
    while (fuzz_mem.size % 32) put_int(0, 1);
    for (uint64_t i = 0; i < at; i++) put_int(i % 7, 1);
}

static void read_all(fl_data_file *f) {
    for (int64_t i = 0; f && i < fl_data_count(f); i++) {
        fl_scope s = fl_scope_begin();
        fl_tensor *t = fl_data_read(f, fl_data_name(f, i));
        if (t) fuzz_check_tensor(t);
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

static void fuzz_one(void) {
    static const char *const paths[] = {"a.gguf", "a.gguf", "a.bin", "x/config.json", "tokens", "lines"};
    const unsigned kind = fuzz_byte() % 6;
    fl_data_io_use(&fuzz_disk);
    fuzz_mem.path = paths[kind], fuzz_mem.size = 0;
    if (kind == 1) {
        put_gguf();
        for (unsigned k = fuzz_byte() % 6; k > 0; k--) {
            const size_t at = (size_t)fuzz_word(2) % (fuzz_byte() % 4 ? 900 : fuzz_mem.size);
            fuzz_mem.bytes[at] = (char)fuzz_byte();
        }
        if (fuzz_rarely(4)) fuzz_mem.size = (size_t)fuzz_word(2) % fuzz_mem.size;
    } else
        while (fuzz_input.left && fuzz_mem.size < FUZZ_MEM_ROOM) put_int(fuzz_byte(), 1);
    fuzz_doing = paths[kind];
    fl_scope s = fl_scope_begin();
    const int64_t before = fuzz_memory.in_use + fuzz_memory.heap;
    fuzz_memory.peak = before;
    if (kind < 2) {
        fl_data_file *f = fl_text_open_gguf(fuzz_mem.path);
        const int64_t limit = 16 * (int64_t)fuzz_mem.size + 65536;
        if (fuzz_memory.peak - before > limit)
            fuzz_bug("%" PRId64 " bytes of memory for %zu of file", fuzz_memory.peak - before, fuzz_mem.size);
        int64_t n = 0;
        if (f && fl_text_gguf_array(f, "tokens", count_element, &n) > (int64_t)fuzz_mem.size)
            fuzz_bug("too many elements");
        read_all(f);
        fl_error_clear();
    }
    if (kind < 4) {
        fl_nn_module *m = fl_text_load(kind == 3 ? "x" : fuzz_mem.path);
        if (!m && !fl_error() && !fuzz_memory.failed) fuzz_bug("no model and no error");
        fl_nn_free(m);
    } else if (kind == 5) {
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
    fl_error_clear();
    fl_scope_end(&s);
    fl_data_io_use(NULL);
}
/* MIT licence: see LICENSE. */
