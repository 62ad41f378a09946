/* fl/text/tokenizers/sentencepiece.h - SentencePiece .model files; pieces with scores and kinds */
#ifndef FL_TEXT_TOKENIZERS_SENTENCEPIECE_H
#define FL_TEXT_TOKENIZERS_SENTENCEPIECE_H
#include "tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of pieces, with their numbers in .model and GGUF files. */
typedef enum fl_text_piece_kind {
    FL_TEXT_NORMAL = 1,
    FL_TEXT_UNKNOWN,
    FL_TEXT_CONTROL,
    FL_TEXT_USER, /* user-defined: never split */
    FL_TEXT_UNUSED,
    FL_TEXT_BYTE
} fl_text_piece_kind;
typedef struct fl_text_pieces_opts {
    fl_opts_guard guard_;
    bool bpe;            /* BPE with merges by score; false: unigram */
    bool byte_fallback;  /* unknown characters become the pieces of their bytes */
    bool no_prefix;      /* no dummy space before the text */
    bool keep_spaces;    /* repeated spaces are kept */
    bool plain_spaces;   /* spaces are not replaced by U+2581 */
    bool suffix;         /* the dummy space is after the text */
    const char *charsmap; /* precompiled normalisation map, NULL: none */
    int64_t n_charsmap;
    int64_t bos, eos;    /* ids added around a text; 0: none (id 0 cannot be one) */
    const char *where;   /* prefix of error texts */
    char _end;
} fl_text_pieces_opts;
/* A tokenizer of n pieces with scores and kinds; takes vocab, where index k is piece k. kind NULL: piece 0
   is unknown, 1 and 2 are control pieces, "<0x0A>" are bytes, as in llama2.c's vocabulary. Also for GGUF's
   "llama" vocabularies. Returns NULL after fl_fail. */
FL_API fl_text_tokenizer *fl_text_pieces(fl_text_dictionary *vocab, const float *score,
                                         const int32_t *kind, fl_text_pieces_opts o);
/* Loads a .model file of type unigram or BPE; types word and char are errors. Saved as tokenizer.json it has
   the form of Hugging Face's converter, plus the keys "exact" and "unused", which other libraries ignore and
   which make it load as the same tokenizer. Returns NULL after fl_fail. */
FL_API fl_text_tokenizer *fl_text_sentencepiece_load(const char *path);
/* Loads llama2.c's tokenizer.bin with n pieces (0: all of them); texts begin with <s>. NULL after fl_fail. */
FL_API fl_text_tokenizer *fl_text_llama2c_load(const char *path, int64_t n);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_TOKENIZERS_SENTENCEPIECE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_TOKENIZERS_SENTENCEPIECE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_TOKENIZERS_SENTENCEPIECE_IMPL
#define FL_TEXT_TOKENIZERS_SENTENCEPIECE_IMPL
#include "../../data/json.h"
#include "bpe.h"
#include "bytes.h"
#include "normalize.h"
#include "unigram.h"
#include "vocabulary.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- pieces ---- */

static const char fl__sp_mark[] = "\xe2\x96\x81";

static fl_text_piece_kind fl__sp_kind(const fl_text_dictionary *d, const int32_t *kind, int64_t i) {
    int64_t n;
    if (kind) return (fl_text_piece_kind)kind[i];
    const char *text = fl_text_dictionary_entry(d, i, &n);
    if (i < 3) return i ? FL_TEXT_CONTROL : FL_TEXT_UNKNOWN;
    return n == 6 && !memcmp(text, "<0x", 3) && text[5] == '>' ? FL_TEXT_BYTE : FL_TEXT_NORMAL;
}

/* Where pieces contain U+2581, which tells where text may be split: once, at the start (split before each
   mark); several in a row at the start (before a mark that does not follow one); or inside (nowhere). */
typedef enum fl__sp_mark_kind { FL__SP_ONE, FL__SP_ROWS, FL__SP_WITHIN } fl__sp_mark_kind;
static fl__sp_mark_kind fl__sp_marks(const fl_text_dictionary *d, const int32_t *kind) {
    fl__sp_mark_kind kind_of_mark = FL__SP_ONE;
    for (int64_t i = 0, n; i < fl_text_dictionary_size(d); i++) {
        const char *s = fl_text_dictionary_entry(d, i, &n);
        const fl_text_piece_kind k = fl__sp_kind(d, kind, i);
        bool text = false;
        for (int64_t at = 0; s && (k == FL_TEXT_NORMAL || k == FL_TEXT_USER) && at < n;) {
            const bool mark = at + 3 <= n && !memcmp(s + at, fl__sp_mark, 3);
            if (mark && text) return FL__SP_WITHIN;
            if (mark && at) kind_of_mark = FL__SP_ROWS;
            text |= !mark, at += mark ? 3 : 1;
        }
    }
    return kind_of_mark;
}

static bool fl__sp_base64(fl_data_text *t, const char *p, int64_t n) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i += 3) {
        uint32_t v = 0;
        for (int64_t k = 0; k < 3; k++) v = v << 8 | (i + k < n ? (uint8_t)p[i + k] : 0);
        const char c[4] = {digit[v >> 18], digit[v >> 12 & 63],
                           i + 1 < n ? digit[v >> 6 & 63] : '=', i + 2 < n ? digit[v & 63] : '='};
        ok = fl_data_text_put(t, c, 4);
    }
    return ok;
}

static const char *fl__sp_bool(bool yes) {
    return yes ? "true" : "false";
}

/* Appends a Replace of a string, or of a regular expression in JSON form; % in them stands for the mark. */
static bool fl__sp_replace(fl_data_text *t, const char *mark, const char *from, const char *to) {
    bool ok = fl_data_text_print(t, "%s{\"type\":\"Replace\",\"pattern\":{\"%s\":\"",
                                 t->p[t->n - 1] == '[' ? "" : ",", from[1] ? "Regex" : "String");
    for (int k = 0; ok && k < 2; k++) {
        for (const char *p = k ? to : from; ok && *p; p++)
            ok = *p == '%' ? fl_data_text_print(t, "%s", mark) : fl_data_text_put(t, p, 1);
        ok = ok && fl_data_text_print(t, k ? "\"}" : "\"},\"content\":\"");
    }
    return ok;
}

/* SentencePiece's exact normalizer for fl, and its equivalent parts for other libraries: map, repeated
   spaces, marks. The dummy prefix is Metaspace's, which adds none before a mark or where a normalizer
   removed the first character: so one leading space is kept, and a mark that is not such a space gets one
   more. */
static bool fl__sp_normalizer(fl_data_text *t, const fl_text_pieces_opts *o) {
    const char *mark = o->plain_spaces ? " " : fl__sp_mark;
    const bool prefix = !o->no_prefix && !o->suffix, extra = !o->keep_spaces;
    bool ok = fl_data_text_print(t,
                                 "{\"type\":\"Sequence\",\"exact\":\"SentencePiece\",\"add_dummy_prefix\":%s,"
                                 "\"remove_extra_whitespaces\":%s,\"escape_whitespaces\":%s,"
                                 "\"treat_whitespace_as_suffix\":%s,\"normalizers\":[",
                                 fl__sp_bool(!o->no_prefix), fl__sp_bool(extra),
                                 fl__sp_bool(!o->plain_spaces), fl__sp_bool(o->suffix));
    if (ok && o->charsmap && o->n_charsmap)
        ok = fl_data_text_print(t, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"") &&
             fl__sp_base64(t, o->charsmap, o->n_charsmap) && fl_data_text_print(t, "\"}");
    if (ok && extra)
        ok = fl__sp_replace(t, mark, "[ %]+\\\\z", "") && fl__sp_replace(t, mark, " {2,}", " ") &&
             (prefix || fl__sp_replace(t, mark, "\\\\A ", ""));
    if (ok && prefix && extra && !o->plain_spaces) ok = fl__sp_replace(t, mark, "\\\\A%", "%%");
    if (ok && !o->plain_spaces) ok = fl__sp_replace(t, mark, " ", "%");
    if (ok && prefix && !extra) ok = fl__sp_replace(t, mark, "\\\\A%", "%%");
    if (ok && o->suffix && !o->no_prefix) ok = fl__sp_replace(t, mark, "\\\\z", "%");
    return ok && fl_data_text_print(t, "]}");
}

static bool fl__sp_pipeline(fl_data_text *t, const fl_text_dictionary *d, const int32_t *kind,
                            const char *unk, int64_t n_unk, const fl_text_pieces_opts *o) {
    const fl__sp_mark_kind marks = o->plain_spaces ? FL__SP_WITHIN : fl__sp_marks(d, kind);
    bool ok = fl_data_text_print(t, "{\"normalizer\":") && fl__sp_normalizer(t, o);
    if (ok && !o->suffix)
        ok = fl_data_text_print(t,
                                ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"%s\","
                                "\"prepend_scheme\":\"%s\",\"split\":%s,\"exact\":%s}",
                                o->plain_spaces ? " " : fl__sp_mark, o->no_prefix ? "never" : "first",
                                fl__sp_bool(marks == FL__SP_ONE),
                                marks == FL__SP_WITHIN ? "\"Sequence\",\"pretokenizers\":[]"
                                                       : "\"SentencePiece\"");
    ok = ok && fl_data_text_print(t, ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[");
    if (ok && unk)
        ok = fl_data_text_print(t, "{\"type\":\"Replace\",\"pattern\":{\"String\":") &&
             fl_data_json_put_string(t, unk, (size_t)n_unk) &&
             fl_data_text_print(t, "},\"content\":\" \xe2\x81\x87 \"},");
    ok = ok && fl_data_text_print(t, "{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    if (ok && (!o->no_prefix || !o->keep_spaces)) /* strip all leading marks, or the dummy prefix */
        ok = fl_data_text_print(t, ",{\"type\":\"Strip\",\"content\":\"%s\",\"start\":%d,\"stop\":0}",
                                fl__sp_mark, o->keep_spaces ? 1 : INT32_MAX);
    ok = ok && fl__sp_replace(t, fl__sp_mark, "%", " ") && fl_data_text_print(t, "]}");
    return ok && fl_text_put_template(d, o->bos ? o->bos : -1, o->eos ? o->eos : -1, t) &&
           fl_data_text_print(t, "}");
}

/* Added tokens: control pieces, which no text contains, and user-defined ones. Those that the normalizer
   does not change are matched in normalised text, where it has seen the spaces around them. */
static bool fl__sp_added(const fl_text_dictionary *d, const int32_t *kind, const fl_text_tree *pipeline,
                         bool suffix, fl_text_added_token **added, int64_t *n) {
    fl_text_steps steps = {0};
    fl_text_work w = {0};
    int64_t cap = 0;
    bool ok = fl_text_normalizers_of(&steps, fl_text_tree_at(pipeline, "normalizer"), "fl_text_pieces");
    for (int64_t i = 0; ok && i < fl_text_dictionary_size(d); i++) {
        const fl_text_piece_kind k = fl__sp_kind(d, kind, i);
        const bool control = k == FL_TEXT_CONTROL;
        fl_text_added_token a = {.id = (int32_t)i, .special = control, .unreachable = control};
        if (!control && k != FL_TEXT_USER) continue;
        a.text = fl_text_dictionary_entry(d, i, &a.n);
        fl_text_work_begin(&w, a.n);
        w.p = a.text, w.n = a.n, w.from = w.to = NULL;
        ok = fl_text_steps_run(&steps, &w) && fl_heap_grow(added, &cap, *n + 1, sizeof **added);
        a.normalized = !control && !suffix && w.n == a.n && !memcmp(w.p, a.text, (size_t)a.n);
        if (ok) (*added)[(*n)++] = a;
    }
    fl_text_steps_free(&steps);
    fl_text_work_free(&w);
    return ok;
}

FL_API fl_text_tokenizer *fl_text_pieces(fl_text_dictionary *d, const float *score,
                                         const int32_t *kind, fl_text_pieces_opts o) {
    const char *where = o.where ? o.where : "fl_text_pieces", *unk = NULL;
    fl_data_text json = {0};
    int64_t n = d ? fl_text_dictionary_size(d) : 0, unk_id = -1, n_unk = 0;
    const bool given = fl_given(d, "fl_text_pieces", "the vocabulary");
    double *high = given ? fl_heap_alloc((size_t)(n + 1) * sizeof *high) : NULL;
    float *low = high ? fl_heap_alloc((size_t)(n + 1) * sizeof *low) : NULL;
    bool ok = low != NULL;
    for (int64_t i = 0; ok && i < n; i++) {
        const fl_text_piece_kind k = fl__sp_kind(d, kind, i);
        const bool taken = k == FL_TEXT_NORMAL || k == FL_TEXT_USER;
        if (!fl_text_dictionary_entry(d, i, NULL))
            ok = fl_fail("%s: piece %lld is missing", where, (long long)i);
        if (k == FL_TEXT_UNKNOWN && unk_id < 0) unk = fl_text_dictionary_entry(d, i, &n_unk), unk_id = i;
        if (!(score[i] > -1e30f && score[i] < 1e30f))
            ok = fl_fail("%s: score of piece %lld is not finite: got %g", where, (long long)i,
                         (double)score[i]);
        high[i] = taken ? (double)score[i] : (double)NAN, low[i] = taken ? score[i] : -1e30f;
    }
    if (ok && (o.bos >= n || o.eos >= n || o.bos < 0 || o.eos < 0))
        ok = fl_fail("%s: bos or eos is out of range: got %lld, %lld, expected [0, %lld)", where,
                     (long long)o.bos,
                     (long long)o.eos, (long long)n);
    ok = ok && fl__sp_pipeline(&json, d, kind, unk, n_unk, &o);
    fl_data_json *j = ok ? fl_data_json_of(json.p, (size_t)json.n, .who = where) : NULL;
    fl_text_tree *pipeline = j ? fl_text_tree_read(j) : NULL;
    fl_text_added_token *added = NULL;
    int64_t n_added = 0;
    fl_data_json_close(j);
    ok = pipeline && fl__sp_added(d, kind, pipeline, o.suffix, &added, &n_added);
    fl_text_model *m = NULL;
    if (ok && o.bpe)
        m = fl_text_bpe(d, .score = low, .byte_fallback = o.byte_fallback, .fuse_unk = true,
                        .unk = unk, .where = where);
    else if (ok) m = fl_text_unigram(d, high, unk_id, o.byte_fallback, true, where);
    else fl_text_dictionary_free(d);
    fl_text_tokenizer *t = m ? fl_text_tokenizer_of(m, pipeline, added, n_added, where) : NULL;
    if (!m) fl_text_tree_free(pipeline);
    fl_heap_free(added);
    fl_heap_free(high);
    fl_heap_free(low);
    fl_heap_free(json.p);
    return t;
}

/* ---- protobuf ---- */

typedef struct fl__sp_pb {
    const uint8_t *p, *end;
} fl__sp_pb;

typedef struct fl__sp_field {
    uint32_t number, wire; /* wire 0: varint, 2: bytes, 5: four bytes in value */
    uint64_t value;
    fl__sp_pb bytes;
} fl__sp_field;

static bool fl__sp_varint(fl__sp_pb *b, uint64_t *v) {
    *v = 0;
    for (int shift = 0; shift < 64 && b->p < b->end; shift += 7) {
        *v |= (uint64_t)(*b->p & 127) << shift;
        if (*b->p++ < 128) return true;
    }
    return false;
}

/* Reads a field: 1; 0 at the end; -1 if the message is invalid. */
static int fl__sp_next(fl__sp_pb *b, fl__sp_field *f) {
    uint64_t key;
    if (b->p == b->end) return 0;
    if (!fl__sp_varint(b, &key) || key >> 3 == 0 || key >> 3 > 536870911) return -1;
    *f = (fl__sp_field){(uint32_t)(key >> 3), key & 7, 0, {b->p, b->p}};
    if (f->wire == 0) return fl__sp_varint(b, &f->value) ? 1 : -1;
    if (f->wire == 2 && !fl__sp_varint(b, &f->value)) return -1;
    const uint64_t n = f->wire == 1 ? 8 : f->wire == 5 ? 4 : f->wire == 2 ? f->value : UINT64_MAX;
    if (n > (uint64_t)(b->end - b->p)) return -1;
    f->bytes = (fl__sp_pb){b->p, b->p + n};
    if (f->wire == 5)
        f->value =
            b->p[0] | (uint32_t)b->p[1] << 8 | (uint32_t)b->p[2] << 16 | (uint32_t)b->p[3] << 24;
    b->p += n;
    return 1;
}

typedef struct fl__sp_model {
    const char *path;
    const uint8_t *start;
    fl_text_dictionary *d;
    float *score;
    int32_t *kind;
    int64_t type;
    fl_text_pieces_opts o;
} fl__sp_model;

static bool fl__sp_fail(const fl__sp_model *m, const uint8_t *at, const char *message) {
    return fl_fail("fl_text_sentencepiece_load: %s: offset %lld: %s", m->path,
                   (long long)(at - m->start), message);
}

static bool fl__sp_piece(fl__sp_model *m, fl__sp_pb b) {
    fl__sp_field f, text = {.wire = 0};
    const uint8_t *at = b.p;
    int32_t kind = FL_TEXT_NORMAL;
    float score = 0;
    int more;
    while ((more = fl__sp_next(&b, &f)) > 0) {
        if (f.number == 1 && f.wire == 2) text = f;
        if (f.number == 2 && f.wire == 5) memcpy(&score, &(uint32_t){(uint32_t)f.value}, sizeof score);
        if (f.number == 3 && f.wire == 0) kind = f.value <= FL_TEXT_BYTE ? (int32_t)f.value : 0;
    }
    if (more < 0) return fl__sp_fail(m, at, "a piece is not a valid message");
    if (!text.value || kind < FL_TEXT_NORMAL) return fl__sp_fail(m, at, "a piece has no text, or an unknown "
                                                                 "type");
    const char *s = (const char *)text.bytes.p;
    const int64_t n = fl_text_dictionary_size(m->d);
    if (fl_text_dictionary_find(m->d, s, (int64_t)text.value) >= 0)
        return fl__sp_fail(m, at, "duplicate piece");
    m->score[n] = score, m->kind[n] = kind;
    return fl_text_dictionary_add(m->d, s, (int64_t)text.value) >= 0;
}

static bool fl__sp_specs(fl__sp_model *m, fl__sp_pb b, bool trainer) {
    fl__sp_field f;
    const uint8_t *at = b.p;
    int more;
    while ((more = fl__sp_next(&b, &f)) > 0) {
        const bool yes = f.value != 0;
        if (trainer && f.wire == 0) {
            if (f.number == 3) m->type = (int64_t)f.value;
            if (f.number == 24) m->o.suffix = yes;
            if (f.number == 35) m->o.byte_fallback = yes;
        } else if (!trainer && f.number == 2 && f.wire == 2) {
            m->o.charsmap = (const char *)f.bytes.p, m->o.n_charsmap = (int64_t)f.value;
        } else if (!trainer && f.wire == 0) {
            if (f.number == 3) m->o.no_prefix = !yes;
            if (f.number == 4) m->o.keep_spaces = !yes;
            if (f.number == 5) m->o.plain_spaces = !yes;
        }
    }
    return more == 0 || fl__sp_fail(m, at, "trainer_spec or normalizer_spec is not a valid message");
}

static bool fl__sp_read(fl__sp_model *m, fl__sp_pb b) {
    fl__sp_field f;
    fl__sp_pb count = b;
    int64_t n = 0;
    int more;
    while (fl__sp_next(&count, &f) > 0) n += f.number == 1;
    m->score = fl_heap_alloc((size_t)(n + 1) * sizeof *m->score);
    m->kind = fl_heap_alloc((size_t)(n + 1) * sizeof *m->kind);
    if (!m->d || !m->score || !m->kind || !fl_text_dictionary_reserve(m->d, n)) return false;
    bool ok = true;
    while (ok && (more = fl__sp_next(&b, &f)) > 0) {
        if (f.number <= 3 && f.wire != 2) ok = fl__sp_fail(m, b.p, "a field has the wrong wire type");
        else if (f.number == 1) ok = fl__sp_piece(m, f.bytes);
        else if (f.number == 2 || f.number == 3) ok = fl__sp_specs(m, f.bytes, f.number == 2);
    }
    if (ok && more < 0) ok = fl__sp_fail(m, b.p, "not a protobuf message");
    if (ok && !n) ok = fl__sp_fail(m, b.p, "the model has no pieces");
    if (ok && m->type != 1 && m->type != 2)
        ok = fl_fail("fl_text_sentencepiece_load: %s: unsupported model_type %lld (%s); known: 1 (unigram), "
                     "2 (bpe)",
                     m->path, (long long)m->type,
                         m->type == 3 ? "words" : m->type == 4 ? "characters" : "unknown");
    return ok;
}

FL_API fl_text_tokenizer *fl_text_sentencepiece_load(const char *path) {
    int64_t n;
    char where[300];
    snprintf(where, sizeof where, "fl_text_sentencepiece_load: %.240s", path ? path : "NULL");
    char *bytes = fl_text_read_file("fl_text_sentencepiece_load", path, &n);
    fl__sp_model m = {.path = path,
                      .start = (const uint8_t *)bytes,
                      .type = 1,
                      .d = bytes ? fl_text_dictionary_new() : NULL};
    const bool ok = m.d && fl__sp_read(&m, (fl__sp_pb){m.start, m.start + n});
    m.o.bpe = m.type == 2, m.o.where = where;
    fl_text_tokenizer *t = fl_text_pieces(fl_text_dictionary_or_free(m.d, ok), m.score, m.kind, m.o);
    fl_heap_free(m.score);
    fl_heap_free(m.kind);
    fl_heap_free(bytes);
    return t;
}

/* ---- llama2.c ---- */

FL_API fl_text_tokenizer *fl_text_llama2c_load(const char *path, int64_t most) {
    static const char *const control[] = {NULL, "<s>", "</s>"};
    int64_t size, n = 0, at = 4;
    char where[300];
    snprintf(where, sizeof where, "fl_text_llama2c_load: %.240s", path ? path : "NULL");
    char *bytes = fl_text_read_file("fl_text_llama2c_load", path, &size);
    fl_text_dictionary *d = bytes ? fl_text_dictionary_new() : NULL;
    float *score = d ? fl_heap_alloc((size_t)(size / 8 + 1) * sizeof *score) : NULL;
    fl_data_text text = {0};
    bool ok = score != NULL;
    for (; ok && at + 8 <= size && (!most || n < most); n++) {
        int32_t len;
        memcpy(&score[n], bytes + at, 4);
        memcpy(&len, bytes + at + 4, 4);
        if (len < 0 || len > size - at - 8)
            ok = fl_fail("%s: offset %lld: length of a piece exceeds the file: got %d", where,
                         (long long)at + 4,
                         (int)len);
        text.n = 0;
        for (int32_t i = 0; ok && i < len; i++) { /* the exporter wrote spaces for U+2581 */
            const char *c = bytes + at + 8 + i;
            ok = *c == ' ' ? fl_data_text_put(&text, fl__sp_mark, 3) : fl_data_text_put(&text, c, 1);
        }
        at += 8 + (ok ? len : 0);
        if (n == 1 || n == 2) text.n = 0, ok = ok && fl_data_text_print(&text, "%s", control[n]);
        /* pieces may become equal when their spaces do */
        if (ok && fl_text_dictionary_find(d, text.p ? text.p : "", text.n) >= 0)
            text.n = 0, ok = fl_data_text_print(&text, "<piece %lld>", (long long)n);
        ok = ok && fl_text_dictionary_add(d, text.p ? text.p : "", text.n) >= 0;
    }
    if (ok && (n < 259 || (most ? n < most : at != size)))
        ok = fl_fail("%s: offset %lld: the file ends within a piece, or has too few: got %lld", where,
                     (long long)at, (long long)n);
    const fl_text_pieces_opts o = {.bpe = true, .byte_fallback = true, .keep_spaces = true, .bos = 1,
                                   .where = where};
    fl_text_tokenizer *t = fl_text_pieces(fl_text_dictionary_or_free(d, ok), score, NULL, o);
    fl_heap_free(text.p);
    fl_heap_free(score);
    fl_heap_free(bytes);
    return t;
}

#endif
#endif

/* MIT licence: see LICENSE. */
