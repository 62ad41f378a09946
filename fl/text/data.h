/* fl/text/data.h - token files, data sets for language models, masking */
#ifndef FL_TEXT_DATA_H
#define FL_TEXT_DATA_H
#ifndef FL_DATA_H
#include "../../fl_data.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* A long sequence of tokens. A token file is a safetensors file with "tokens", u16 or i32 [n]; "starts", i64
   [documents], the index of each document's first token, starting at 0 (optional; without it there is one
   document); and in the metadata "tokenizer", a string that identifies the tokenizer, such as its hash. The
   file is memory-mapped. Each id is checked when it is read, not when the file is opened. */
typedef struct fl_text_tokens fl_text_tokens;
typedef struct fl_text_tokens_opts {
    fl_opts_guard guard_;
    const char *tokenizer; /* the file's must be equal; NULL: any */
    int64_t vocabulary;    /* ids must be below it; 0: any */
    bool raw;              /* the file is little-endian u16 without a header, as nanoGPT's */
    char _end;
} fl_text_tokens_opts;
/* Returns NULL after fl_fail. */
#define fl_text_tokens_open(...) FL_TEXT__TOKENS_OPEN(__VA_ARGS__, ._end = 0)
#define FL_TEXT__TOKENS_OPEN(path, ...) \
    fl_text_tokens_open_opt(path, FL_LITERAL(fl_text_tokens_opts, __VA_ARGS__))
FL_API fl_text_tokens *fl_text_tokens_open_opt(const char *path, fl_text_tokens_opts o);
/* The same from tensors in memory (references are kept): tokens u16, i32 or i64 [n]; starts i64, or NULL. */
FL_API fl_text_tokens *fl_text_tokens_of(fl_tensor *tokens, fl_tensor *starts, int64_t vocabulary);
FL_API void fl_text_tokens_free(fl_text_tokens *t); /* NULL is fine; free sets that use it first */
/* Writes a token file, as u16 if all ids are below 65,536, else as i32. Returns false after fl_fail. */
FL_API bool fl_text_tokens_save(const char *path, fl_tensor *tokens, fl_tensor *starts,
                                const char *tokenizer);
FL_API int64_t fl_text_tokens_count(const fl_text_tokens *t);     /* 0 for NULL */
FL_API int64_t fl_text_tokens_documents(const fl_text_tokens *t); /* 0 for NULL */
/* Copies tokens begin to begin + n - 1 into out. From any thread. Returns false after fl_fail. */
FL_API bool fl_text_tokens_read(const fl_text_tokens *t, int64_t begin, int64_t n, int64_t *out);
/* The token range [*begin, *end) of document i. From any thread. Returns false after fl_fail. */
FL_API bool fl_text_tokens_span(const fl_text_tokens *t, int64_t i, int64_t *begin, int64_t *end);
/* The token range of a rank, for .begin and .end below: whole documents, in shares as even as these allow,
   which do not overlap and together cover all tokens. A share may be empty. */
FL_API bool fl_text_tokens_shard(const fl_text_tokens *t, int64_t rank, int64_t ranks, int64_t *begin,
                                 int64_t *end);

/* Data sets. A sample is x and y, i64 [length], where y is the token after each token of x. They borrow t. */

typedef struct fl_text_blocks_opts {
    fl_opts_guard guard_;
    int64_t begin, end; /* range of tokens; end 0 -> all */
    bool drop_last;     /* drops the last block if it is shorter */
    bool random;        /* random offsets, drawn anew in each epoch, instead of consecutive blocks */
    int64_t size;       /* random: samples per epoch; 0 -> as many as fit without overlap */
    uint64_t seed;
    char _end;
} fl_text_blocks_opts;
/* Consecutive blocks of `length` tokens: each token but the first is a target once. The last is shorter. */
#define fl_text_blocks(...) FL_TEXT__BLOCKS(__VA_ARGS__, ._end = 0)
#define FL_TEXT__BLOCKS(t, length, ...) \
    fl_text_blocks_opt(t, length, FL_LITERAL(fl_text_blocks_opts, __VA_ARGS__))
FL_API fl_data_set *fl_text_blocks_opt(const fl_text_tokens *t, int64_t length, fl_text_blocks_opts o);
/* One sample per document, as Flashlight's break mode "eos": framed by the id eos; -1: not framed. The set
   reports lengths, for batches by a budget of tokens of documents of similar length, with a mask:
     fl_data_set *set = fl_data_sort_by_length(fl_data_shuffle(fl_text_documents(t, eos), seed), 1000);
     set = fl_data_batches(set, .budget = 4096, .pad = true, .pad_value = {pad, -100}, .masks = 1); */
FL_API fl_data_set *fl_text_documents(const fl_text_tokens *t, int64_t eos);

typedef struct fl_text_mask_opts {
    fl_opts_guard guard_;
    int64_t vocabulary; /* number of ids */
    int64_t mask;       /* the id of [MASK] */
    const bool *special; /* [vocabulary], copied: ids that are neither masked nor drawn; NULL: only mask */
    double part;        /* fraction of tokens that are selected, 0 -> 0.15 */
    double masked, random; /* of those: become mask, 0 -> 0.8; a random id, 0 -> 0.1; the rest stay */
    uint64_t seed;
    char _end;
} fl_text_mask_opts;
/* Masked language modelling (BERT): x with `part` of the tokens selected independently, at least one; y is
   the original id of selected tokens, -100 elsewhere. Deterministic in (seed, epoch, fl_data_id). A sample
   of only special tokens is left unchanged, with y -100 throughout. */
#define fl_text_mask(...) FL_TEXT__MASK(__VA_ARGS__, ._end = 0)
#define FL_TEXT__MASK(set, ...) fl_text_mask_opt(set, FL_LITERAL(fl_text_mask_opts, __VA_ARGS__))
FL_API fl_data_set *fl_text_mask_opt(fl_data_set *set, fl_text_mask_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_DATA_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_DATA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_DATA_IMPL
#define FL_TEXT_DATA_IMPL
#include "../ops/copy.h"
#include "../ops/random.h"
#include "../ops/reduce.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct fl_text_tokens {
    fl_tensor *tokens, *starts; /* referenced and mapped; tokens NULL: raw */
    const void *id;
    const int64_t *start;
    int64_t n, documents, vocabulary;
    fl_data_stream f; /* if raw */
    char *path;       /* heap; NULL: from tensors */
};

/* ---- files ---- */

FL_API void fl_text_tokens_free(fl_text_tokens *t) {
    if (!t) return;
    if (t->id) fl_unmap(t->tokens, FL_READ);
    if (t->start) fl_unmap(t->starts, FL_READ);
    fl_drop(t->tokens);
    fl_drop(t->starts);
    if (t->f.file) t->f.io.close(t->f.io.user, t->f.file);
    fl_heap_free(t->path);
    fl_heap_free(t);
}

static const char *fl__tokens_name(const fl_text_tokens *t) { return t->path ? t->path : "tokens"; }

/* Takes references to the tensors and maps them, if they have the right type and shape. */
static bool fl__tokens_take(fl_text_tokens *t, fl_tensor *tokens, fl_tensor *starts) {
    if (tokens->ndim != 1 || (starts && (starts->ndim != 1 || starts->dtype != FL_I64)) ||
        (tokens->dtype != FL_U16 && tokens->dtype != FL_I32 && tokens->dtype != FL_I64))
        return fl_fail("fl_text_tokens: %s: got tokens %s %s, starts %s%s%s, expected u16, i32 or i64 [n] "
                       "and i64 [documents]", fl__tokens_name(t), fl_dtype_name(tokens->dtype),
                       FL_SHAPE_TEXT(tokens), starts ? fl_dtype_name(starts->dtype) : "none",
                       starts ? " " : "", starts ? FL_SHAPE_TEXT(starts) : "");
    tokens = fl_contiguous(tokens), starts = starts ? fl_contiguous(starts) : NULL;
    if (!tokens) return false;
    t->tokens = fl_keep(tokens), t->n = tokens->shape[0], t->documents = t->n > 0;
    t->id = t->n ? fl_map(tokens, FL_READ) : NULL;
    if (!starts) return t->id || !t->n;
    t->starts = fl_keep(starts), t->documents = starts->shape[0];
    t->start = t->documents ? fl_map(starts, FL_READ) : NULL;
    return (t->id || !t->n) && (t->start || !t->documents);
}

static bool fl__tokens_map(fl_text_tokens *t, const fl_text_tokens_opts *o) {
    fl_data_file *f = fl_data_map_safetensors(t->path, false);
    if (!f) return false;
    const char *of = fl_data_meta(f, "tokenizer");
    bool ok = !o->tokenizer || (of && !strcmp(of, o->tokenizer)) ||
              fl_fail("fl_text_tokens_open: %s: tokenizer differs: got '%.100s', expected '%.100s'",
                      t->path, of ? of : "", o->tokenizer);
    fl_tensor *tokens = ok ? fl_data_read(f, "tokens") : NULL;
    fl_tensor *starts = tokens && fl_data_find(f, "starts") >= 0 ? fl_data_read(f, "starts") : NULL;
    ok = tokens && (starts || fl_data_find(f, "starts") < 0) && fl__tokens_take(t, tokens, starts);
    fl_data_close(f);
    return ok;
}

static bool fl__tokens_raw(fl_text_tokens *t) {
    if (!fl_data_stream_open(&t->f, "fl_text_tokens_open", t->path, FL_DATA_READ)) return false;
    t->n = t->f.size / 2, t->documents = t->n > 0;
    return t->f.size % 2 == 0 ||
           fl_fail("fl_text_tokens_open: %s: %" PRId64 " bytes are not a multiple of 2, the size of u16",
                   t->path,
                   t->f.size);
}

static fl_text_tokens *fl__tokens_made(fl_text_tokens *t, bool ok) {
    if (!ok) fl_text_tokens_free(t);
    return ok ? t : NULL;
}

FL_API fl_text_tokens *fl_text_tokens_open_opt(const char *path, fl_text_tokens_opts o) {
    if (!path || o.vocabulary < 0) {
        fl_fail("fl_text_tokens_open: path is NULL, or vocabulary is negative: got %" PRId64, o.vocabulary);
        return NULL;
    }
    fl_text_tokens *t = fl_heap_alloc(sizeof *t);
    const size_t n = strlen(path) + 1;
    if (t) t->vocabulary = o.vocabulary, t->path = fl_heap_alloc(n);
    bool ok = t && t->path;
    if (ok) memcpy(t->path, path, n);
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    ok = ok && (o.raw ? fl__tokens_raw(t) : fl__tokens_map(t, &o));
    fl_scope_end(&s);
    fl_quiet(-1);
    return fl__tokens_made(t, ok);
}

FL_API fl_text_tokens *fl_text_tokens_of(fl_tensor *tokens, fl_tensor *starts, int64_t vocabulary) {
    if (!tokens) return fl_fail("fl_text_tokens_of: tokens is NULL"), NULL;
    fl_text_tokens *t = fl_heap_alloc(sizeof *t);
    if (t) t->vocabulary = vocabulary;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    const bool ok = t && fl__tokens_take(t, tokens, starts);
    fl_scope_end(&s);
    fl_quiet(-1);
    return fl__tokens_made(t, ok);
}

FL_API bool fl_text_tokens_save(const char *path, fl_tensor *tokens, fl_tensor *starts,
                                const char *tokenizer) {
    static const char fn[] = "fl_text_tokens_save";
    if (!path || !tokens || tokens->ndim != 1 || fl_dtype_is_float(tokens->dtype) ||
        (starts && (starts->ndim != 1 || starts->dtype != FL_I64)))
        return fl_fail("%s: path is NULL, tokens is not an integer tensor [n], or starts not i64 [documents]",
                       fn);
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_tensor *wide = fl_cast(tokens, FL_I64);
    const int64_t low = wide && fl_numel(wide) ? fl_item_int(fl_amin(wide, FL_ALL_AXES)) : 0;
    const int64_t high = wide && fl_numel(wide) ? fl_item_int(fl_amax(wide, FL_ALL_AXES)) : 0;
    bool ok = wide && !fl_error() &&
              ((low >= 0 && high <= INT32_MAX) ||
               fl_fail("%s: %s: ids are out of range: got %" PRId64 " to %" PRId64 ", expected [0, 2^31)",
                       fn, path,
                       low, high));
    fl_tensor *packed = ok ? fl_cast(wide, high < 65536 ? FL_U16 : FL_I32) : NULL;
    const fl_data_key_value meta[] = {{"tokenizer", tokenizer}};
    const fl_data_named_tensor named[] = {{"tokens", packed}, {"starts", starts}};
    ok = packed && fl_data_save_safetensors(path, named, starts ? 2 : 1, meta, tokenizer != NULL);
    fl_scope_end(&s);
    fl_quiet(-1);
    return ok;
}

FL_API int64_t fl_text_tokens_count(const fl_text_tokens *t) { return t ? t->n : 0; }
FL_API int64_t fl_text_tokens_documents(const fl_text_tokens *t) { return t ? t->documents : 0; }

FL_API bool fl_text_tokens_read(const fl_text_tokens *t, int64_t begin, int64_t n, int64_t *out) {
    if (!t || !out || begin < 0 || n < 0 || begin > t->n - n)
        return fl_fail("fl_text_tokens_read: range is invalid: got [%" PRId64 ", %" PRId64 ") of %" PRId64
                       " tokens, or an argument is NULL", begin, begin + n, fl_text_tokens_count(t));
    if (!t->tokens) { /* reads into the second part of out, then widens from the start */
        uint8_t *raw = (uint8_t *)(out + n) - 2 * n;
        if (!fl_data_stream_read(&t->f, raw, (size_t)n * 2, 2 * begin)) return false;
        for (int64_t i = 0; i < n; i++) out[i] = raw[2 * i] | raw[2 * i + 1] << 8;
    } else if (t->tokens->dtype == FL_U16)
        for (int64_t i = 0; i < n; i++) out[i] = ((const uint16_t *)t->id)[begin + i];
    else if (t->tokens->dtype == FL_I32)
        for (int64_t i = 0; i < n; i++) out[i] = ((const int32_t *)t->id)[begin + i];
    else if (n) memcpy(out, (const int64_t *)t->id + begin, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        if (out[i] < 0 || (t->vocabulary && out[i] >= t->vocabulary))
            return fl_fail("fl_text_tokens: %s: token %" PRId64 " is out of range: got id %" PRId64
                           ", the vocabulary has %" PRId64 " (0: any)",
                           fl__tokens_name(t), begin + i, out[i], t->vocabulary);
    return true;
}

FL_API bool fl_text_tokens_span(const fl_text_tokens *t, int64_t i, int64_t *begin, int64_t *end) {
    if (!t || i < 0 || i >= t->documents)
        return fl_fail("fl_text_tokens_span: document is out of range: got %" PRId64 ", expected [0, %" PRId64
                       ")", i, fl_text_tokens_documents(t));
    *begin = t->start ? t->start[i] : 0;
    *end = t->start && i + 1 < t->documents ? t->start[i + 1] : t->n;
    return (*begin >= 0 && *begin <= *end && *end <= t->n) ||
           fl_fail("fl_text_tokens: %s: document %" PRId64 " has an invalid range: got [%" PRId64 ", %" PRId64
                   ") of %" PRId64 " tokens", fl__tokens_name(t), i, *begin, *end, t->n);
}

/* The start of the first document that begins at or after `at`. */
static int64_t fl__tokens_from(const fl_text_tokens *t, int64_t at) {
    int64_t low = 0, high = t->documents;
    while (t->start && low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (t->start[middle] < at) low = middle + 1;
        else high = middle;
    }
    return !t->start ? at : at > 0 && low < t->documents ? t->start[low] : at > 0 ? t->n : 0;
}

FL_API bool fl_text_tokens_shard(const fl_text_tokens *t, int64_t rank, int64_t ranks, int64_t *begin,
                                 int64_t *end) {
    if (!t || !begin || !end || rank < 0 || rank >= ranks || ranks > INT32_MAX)
        return fl_fail("fl_text_tokens_shard: rank is out of range: got %" PRId64 " of %" PRId64
                       " ranks, or an argument is NULL", rank, ranks);
    const int64_t each = t->n / ranks, more = t->n % ranks;
    for (int k = 0; k < 2; k++) {
        const int64_t r = rank + k, at = r * each + (r < more ? r : more);
        *(k ? end : begin) = r == ranks ? t->n : fl__tokens_from(t, at);
    }
    return (*begin >= 0 && *begin <= *end && *end <= t->n) ||
           fl_fail("fl_text_tokens: %s: starts of documents are not in ascending order", fl__tokens_name(t));
}

/* ---- sets ---- */

/* x and y of tokens begin to end - 1, framed by eos (unless -1). */
static bool fl__lm_pair(const fl_text_tokens *t, int64_t begin, int64_t end, int64_t eos,
                        fl_data_sample *out) {
    const int64_t more = eos >= 0, n = end - begin + 2 * more - 1;
    int64_t *id = fl_heap_alloc((size_t)(n + 1) * sizeof *id);
    bool ok = id && fl_text_tokens_read(t, begin, end - begin, id + more);
    if (ok && more) id[0] = id[n] = eos;
    for (int k = 0; ok && k < 2; k++) {
        out->t[k] = fl_data_host_tensor(FL_SHAPE(n), FL_I64);
        ok = out->t[k] && (!n || fl_set_host(out->t[k], id + k, (size_t)n * sizeof *id));
    }
    out->n = 2;
    fl_heap_free(id);
    return ok;
}

typedef struct fl__lm_blocks {
    const fl_text_tokens *t;
    int64_t length, epoch;
    fl_text_blocks_opts o;
} fl__lm_blocks;

static bool fl__lm_blocks_start(fl_data_set *self, int64_t epoch) {
    ((fl__lm_blocks *)self->user)->epoch = epoch;
    return true;
}

static bool fl__lm_blocks_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__lm_blocks *b = self->user;
    int64_t begin = b->o.begin + i * b->length;
    if (b->o.random) { /* among all offsets of whole blocks; the modulo's bias is negligible in 64 bits */
        const fl_rng rng = fl_data_rng(b->o.seed, b->epoch, i);
        begin = b->o.begin + (int64_t)(rng.key % (uint64_t)(b->o.end - b->o.begin - b->length));
    }
    const int64_t end = begin + b->length + 1;
    return fl__lm_pair(b->t, begin, end < b->o.end ? end : b->o.end, -1, out);
}

static void fl__lm_free_user(fl_data_set *self) { fl_heap_free(self->user); }

FL_API fl_data_set *fl_text_blocks_opt(const fl_text_tokens *t, int64_t length, fl_text_blocks_opts o) {
    if (!o.end) o.end = fl_text_tokens_count(t);
    const int64_t n = o.end - o.begin - 1;
    if (!t || length < 1 || o.begin < 0 || o.end > t->n || n < (o.random || o.drop_last ? length : 1) ||
        o.size < 0) {
        fl_fail("fl_text_blocks: length must be >= 1 and fit in the tokens: got %" PRId64
                " for tokens [%" PRId64 ", %" PRId64 ") of %" PRId64 "; size must be >= 0, got %" PRId64,
                length, o.begin, o.end, fl_text_tokens_count(t), o.size);
        return NULL;
    }
    fl__lm_blocks *b = fl_heap_alloc(sizeof *b);
    if (!b) return NULL;
    *b = (fl__lm_blocks){t, length, 0, o};
    const int64_t whole = n / length, all = whole + (n % length && !o.drop_last && !o.random);
    return fl_data_set_new(&(fl_data_set){.size = o.random && o.size ? o.size : all,
                                          .get = fl__lm_blocks_get, .start = fl__lm_blocks_start,
                                          .close = fl__lm_free_user, .user = b}, NULL, 0);
}

typedef struct fl__lm_documents {
    const fl_text_tokens *t;
    int64_t eos;
} fl__lm_documents;

static bool fl__lm_documents_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__lm_documents *d = self->user;
    int64_t begin, end;
    return fl_text_tokens_span(d->t, i, &begin, &end) &&
           (end > begin || d->eos >= 0 ||
            fl_fail("fl_text_documents: %s: document %" PRId64 " is empty, and eos is -1",
                    fl__tokens_name(d->t), i)) &&
           fl__lm_pair(d->t, begin, end, d->eos, out);
}

static int64_t fl__lm_documents_length(fl_data_set *self, int64_t i) {
    const fl__lm_documents *d = self->user;
    int64_t begin, end;
    return fl_text_tokens_span(d->t, i, &begin, &end) ? end - begin + (d->eos >= 0 ? 1 : -1) : -2;
}

FL_API fl_data_set *fl_text_documents(const fl_text_tokens *t, int64_t eos) {
    if (!t || eos < -1 || (t->vocabulary && eos >= t->vocabulary)) {
        fl_fail("fl_text_documents: tokens is NULL, or eos is not -1 or an id: got %" PRId64, eos);
        return NULL;
    }
    fl__lm_documents *d = fl_heap_alloc(sizeof *d);
    if (!d) return NULL;
    *d = (fl__lm_documents){t, eos};
    return fl_data_set_new(&(fl_data_set){.size = t->documents, .get = fl__lm_documents_get,
                                          .length = fl__lm_documents_length, .close = fl__lm_free_user,
                                          .user = d}, NULL, 0);
}

/* ---- masking ---- */

typedef struct fl__lm_mask {
    fl_text_mask_opts o;
    int64_t ordinary; /* number of ids that may be drawn, listed in `id` */
    int32_t *id;
    bool *special;
} fl__lm_mask;

static bool fl__lm_masked(const fl__lm_mask *m, fl_rng *rng, int64_t *x, int64_t *y, int64_t n) {
    int64_t ordinary = 0, hidden = 0;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] < 0 || x[i] >= m->o.vocabulary)
            return fl_fail("fl_text_mask: token %" PRId64 " is out of range: got id %" PRId64
                           ", expected [0, %" PRId64 ")", i, x[i], m->o.vocabulary);
        ordinary += !m->special[x[i]];
    }
    int64_t sure = ordinary ? (int64_t)(fl_rng_uniform(rng) * (double)ordinary) : -1; /* the fallback */
    for (int pass = 0; pass < 2 && !hidden; pass++) /* the second only if the first selected nothing */
        for (int64_t i = 0, k = 0; i < n; i++) {
            if (pass == 0) y[i] = -100;
            if (m->special[x[i]]) continue;
            if (pass ? k++ != sure : fl_rng_uniform(rng) >= m->o.part) continue;
            const double draw = fl_rng_uniform(rng);
            y[i] = x[i], hidden++;
            if (draw < m->o.masked) x[i] = m->o.mask;
            else if (draw < m->o.masked + m->o.random)
                x[i] = m->id[(int64_t)(fl_rng_uniform(rng) * (double)m->ordinary)];
        }
    return true;
}

static bool fl__lm_mask_fn(fl_data_sample *s, fl_rng *rng, void *user) {
    const fl__lm_mask *m = user;
    if (s->n < 1 || s->t[0]->dtype != FL_I64 || s->t[0]->ndim != 1)
        return fl_fail("fl_text_mask: field 0 of a sample must be i64 [n]");
    const int64_t n = s->t[0]->shape[0];
    int64_t *x = fl_heap_alloc((size_t)n * 2 * sizeof *x + 1);
    fl_rng own = {m->o.seed ^ rng->key, rng->counter};
    bool ok =
        x && (!n || fl_to_host(s->t[0], x, (size_t)n * sizeof *x)) && fl__lm_masked(m, &own, x, x + n, n);
    for (int k = 0; ok && k < 2; k++) {
        fl_tensor *t = fl_data_host_tensor(FL_SHAPE(n), FL_I64);
        ok = t && (!n || fl_set_host(t, x + k * n, (size_t)n * sizeof *x));
        s->t[k] = t;
    }
    s->n = 2;
    fl_heap_free(x);
    return ok;
}

static void fl__lm_mask_close(fl_data_set *self) {
    fl__lm_mask *m = self->user;
    fl_heap_free(m->id);
    fl_heap_free(m->special);
    fl_heap_free(m);
}

static bool fl__lm_mask_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    return fl_data_get(fl_data_inner(self, 0), i, out);
}

FL_API fl_data_set *fl_text_mask_opt(fl_data_set *set, fl_text_mask_opts o) {
    o.part = fl_option(o.part, 0.15), o.masked = fl_option(o.masked, 0.8),
    o.random = fl_option(o.random, 0.1);
    fl__lm_mask *m = NULL;
    if (!set || o.vocabulary < 2 || o.vocabulary > INT32_MAX || o.mask < 0 || o.mask >= o.vocabulary ||
        !(o.part > 0 && o.part <= 1) || !(o.masked >= 0 && o.random >= 0 && o.masked + o.random <= 1 + 1e-12))
        fl_fail("fl_text_mask: set is NULL, mask (%" PRId64 ") is not in [0, vocabulary = %" PRId64
                "), or fractions are not in [0, 1]: part %g, masked %g, random %g",
                o.mask, o.vocabulary, o.part, o.masked, o.random);
    else m = fl_heap_alloc(sizeof *m);
    if (m) {
        m->o = o;
        m->id = fl_heap_alloc((size_t)o.vocabulary * sizeof *m->id);
        m->special = fl_heap_alloc((size_t)o.vocabulary);
    }
    for (int64_t i = 0; m && m->id && m->special && i < o.vocabulary; i++) {
        m->special[i] = i == o.mask || (o.special && o.special[i]);
        if (!m->special[i]) m->id[m->ordinary++] = (int32_t)i;
    }
    const bool ok = m && m->id && m->special &&
                    (m->ordinary || fl_fail("fl_text_mask: all %" PRId64 " ids are special", o.vocabulary));
    /* the transform, wrapped in a set that frees its data */
    fl_data_set *masked = ok ? fl_data_transform(set, fl__lm_mask_fn, m) : NULL;
    if (!ok) fl_data_free(set);
    if (masked)
        return fl_data_set_new(&(fl_data_set){.size = fl_data_size(masked), .get = fl__lm_mask_get,
                                              .close = fl__lm_mask_close, .user = m}, &masked, 1);
    if (m) fl__lm_mask_close(&(fl_data_set){.user = m});
    return NULL;
}

#endif
#endif

/* MIT licence: see LICENSE. */
