/* fl/data/shards.h - sharded safetensors files with an index */
#ifndef FL_DATA_SHARDS_H
#define FL_DATA_SHARDS_H
#include "named.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a sharded model by its index, as Hugging Face writes it (model.safetensors.index.json: an object with
   "weight_map", from a tensor's name to a file in the same folder, and "metadata", whose strings fl_data_meta
   returns). All shards (4096 at most) are opened, and their headers checked; map, verify: see
   fl_data_map_safetensors. Tensors of a shard that the index does not name are ignored. An index written by
   fl_data_save_sharded has a checksum ("crc32c") and the id of its save ("save_id"), as have its shards: a
   damaged index, or shards of two saves, are an error. If a save replaces the index while its shards are
   opened, the new index is opened instead. */
FL_API fl_data_file *fl_data_open_sharded(const char *path, bool map, bool verify);
/* Writes n named tensors in shards of at most max_shard bytes of data (0 -> 5 GB; a larger tensor gets its
   own shard), then the index, path, which must end with ".safetensors.index.json". A kill at any moment
   leaves the old index with its shards or the new one with its own; a second concurrent writer of the same
   path gets an error. Shards get new names each time, "model-v2-00001-of-00003.safetensors" next to
   "model.safetensors.index.json". Each save removes the shards of older ones, including those of killed
   saves: files with such a name and such contents that the index does not name. */
FL_API bool fl_data_save_sharded(const char *path, const fl_data_named_tensor *tensors, int n,
                                 const fl_data_key_value *meta, int n_meta, int64_t max_shard);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_SHARDS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_SHARDS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_SHARDS_IMPL
#define FL_DATA_SHARDS_IMPL
#include "checksum.h"
#include "json.h"
#include "safetensors.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

/* The files named by an index. */
typedef struct fl__shards {
    struct fl__shard {
        const char *name; /* in the index's folder */
        fl_data_file *file;
    } *shard;
    int64_t n, cap;
    fl_data_arena names;
    const char *id, *crc; /* NULL: written by another program or an older version */
    bool map, verify;
} fl__shards;

enum { FL__SHARDS_MOST = 4096 }; /* all are open at once */

/* The path of a file in the index's folder; heap memory. */
static char *fl__shards_path(const char *index, const char *name) {
    const char *slash = strrchr(index, '/');
    const size_t n = slash ? (size_t)(slash - index) + 1 : 0, size = n + strlen(name) + 1;
    char *path = fl_heap_alloc(size);
    if (path) snprintf(path, size, "%.*s%s", (int)n, index, name);
    return path;
}

static int64_t fl__shards_find(const fl__shards *s, const char *name) {
    int64_t i = s->n - 1; /* tensors come shard by shard */
    while (i >= 0 && strcmp(s->shard[i].name, name)) i--;
    return i;
}

static bool fl__shards_add(fl__shards *s, const char *name) {
    if (!fl_heap_grow(&s->shard, &s->cap, s->n + 1, sizeof *s->shard)) return false;
    s->shard[s->n] = (struct fl__shard){fl_data_arena_add(&s->names, name, strlen(name)), NULL};
    return s->shard[s->n].name && ++s->n;
}

/* The index of the shard that j's string names, added if new; -1 after fl_fail. */
static int64_t fl__shards_take(fl__shards *s, fl_data_json *j) {
    const int64_t i = fl__shards_find(s, j->text);
    if (i >= 0) return i;
    if (*j->text == '.' || strpbrk(j->text, "/\\:") || !fl_data_ends(j->text, ".safetensors"))
        return fl_data_json_fail(j, "'%.100s' is not the name of a .safetensors file in the same folder",
                                 j->text) -
               1;
    if (s->n == FL__SHARDS_MOST) return fl_data_json_fail(j, "more than %d shards", FL__SHARDS_MOST) - 1;
    return fl__shards_add(s, j->text) ? s->n - 1 : -1;
}

/* Reads one tensor of the weight map, j being at its name; f NULL: only its shard. */
static bool fl__shards_weight(fl__shards *s, fl_data_file *f, fl_data_json *j) {
    fl_data_entry *e = f ? fl_data_file_add(f, j->text, j->n) : NULL;
    if ((f && !e) || !fl_data_json_string(j)) return false;
    const int64_t k = fl__shards_take(s, j);
    if (k < 0 || !f) return k >= 0;
    struct fl__shard *shard = &s->shard[k];
    if (!shard->file) {
        char *path = fl__shards_path(f->f.path, shard->name);
        if (path)
            shard->file =
                s->map ? fl_data_map_safetensors(path, s->verify) : fl_data_open_safetensors(path);
        fl_heap_free(path);
        if (!shard->file) return false;
    }
    const int64_t i = fl_data_find(shard->file, e->name);
    if (i < 0) return fl_data_json_fail(j, "tensor '%.100s' is not in %.100s", e->name, shard->name);
    e->dtype = fl_data_dtype(shard->file, i), e->shape = fl_data_shape(shard->file, i), e->part = (int)k;
    return true;
}

/* Reads the strings of the metadata, j being before it. */
static bool fl__shards_meta(fl_data_file *f, fl_data_json *j) {
    if (!fl_data_json_expect(j, FL_DATA_JSON_OBJECT)) return false;
    while (fl_data_json_more(j)) {
        const int depth = j->depth;
        if (!fl_data_file_add_meta(f, j->text, "")) return false;
        if (fl_data_json_next(j) != FL_DATA_JSON_STRING) {
            f->n_meta--;
            while (j->event && j->depth > depth) fl_data_json_next(j);
        } else if (!(f->meta[f->n_meta - 1].value = fl_data_arena_add(&f->texts, j->text, (size_t)j->n)))
            return false;
    }
    return j->event != FL_DATA_JSON_ERROR;
}

/* Reads an index; f NULL: only the names of its shards. */
static bool fl__shards_read(fl__shards *s, fl_data_file *f, fl_data_json *j) {
    bool ok = j && fl_data_json_expect(j, FL_DATA_JSON_OBJECT), weights = false, meta = false;
    while (ok && fl_data_json_more(j)) {
        if (!strcmp(j->text, "weight_map")) {
            ok = weights ? fl_data_json_fail(j, "duplicate weight_map")
                         : fl_data_json_expect(j, FL_DATA_JSON_OBJECT);
            weights = true;
            while (ok && fl_data_json_more(j)) ok = fl__shards_weight(s, f, j);
        } else if (f && !strcmp(j->text, "metadata")) {
            ok = meta ? fl_data_json_fail(j, "duplicate metadata") : fl__shards_meta(f, j);
            meta = true;
        } else if (f && (!strcmp(j->text, "save_id") || !strcmp(j->text, "crc32c"))) {
            const char **text = *j->text == 's' ? &s->id : &s->crc;
            ok = fl_data_json_string(j) && (*text = fl_data_arena_add(&s->names, j->text, (size_t)j->n));
        } else ok = fl_data_json_skip(j);
    }
    return ok && fl_data_json_next(j) == FL_DATA_JSON_END &&
           (weights || fl_data_json_fail(j, "weight_map is missing"));
}

static void fl__shards_free(fl__shards *s) {
    for (int64_t i = 0; i < s->n; i++) fl_data_close(s->shard[i].file);
    fl_heap_free(s->shard);
    fl_data_arena_free(&s->names);
}

static void fl__shards_close(fl_data_file *f) {
    fl__shards_free(f->user);
    fl_heap_free(f->user);
}

static fl_tensor *fl__shards_tensor(fl_data_file *f, const fl_data_entry *e) {
    return fl_data_read(((fl__shards *)f->user)->shard[e->part].file, e->name);
}

/* The index's checksum covers its contents in sorted order, so that other programs may rewrite the JSON. */
static uint32_t fl__shards_crc(const fl__shards *s, const fl_data_file *f, const char *id) {
    uint32_t crc = fl_data_crc32c(0, id, strlen(id) + 1);
    for (int64_t i = 0; i < f->n; i++) {
        const fl_data_entry *e = f->sorted_[i];
        const char *shard = s->shard[e->part].name;
        crc = fl_data_crc32c(crc, e->name, strlen(e->name) + 1);
        crc = fl_data_crc32c(crc, shard, strlen(shard) + 1);
    }
    for (int64_t i = 0; i < f->n_meta; i++) {
        crc = fl_data_crc32c(crc, f->meta[i].key, strlen(f->meta[i].key) + 1);
        crc = fl_data_crc32c(crc, f->meta[i].value, strlen(f->meta[i].value) + 1);
    }
    return crc;
}

/* Checks that the index and all its shards are from one save. */
static bool fl__shards_check(const fl__shards *s, const fl_data_file *f) {
    char crc[9] = "";
    if (!s->id != !s->crc)
        return fl_fail("%s: %s: got only one of save_id and crc32c, expected both or neither", f->f.who,
                       f->f.path);
    if (s->id) snprintf(crc, sizeof crc, "%08x", (unsigned)fl__shards_crc(s, f, s->id));
    if (s->id && strcmp(crc, s->crc))
        return fl_fail("%s: %s: the index's checksum does not match", f->f.who, f->f.path);
    for (int64_t i = 0; i < s->n; i++) {
        const char *id = fl_data_meta(s->shard[i].file, "save_id");
        if (!id != !s->id || (id && strcmp(id, s->id)))
            return fl_fail("%s: %s: %.100s is of another save than the index: save_id %.20s, expected %.20s",
                           f->f.who, f->f.path, s->shard[i].name, id ? id : "(none)",
                           s->id ? s->id : "(none)");
    }
    return true;
}

/* Whether the file at f's path now differs from f, which was opened earlier. */
static bool fl__shards_replaced(const fl_data_stream *f) {
    char a[1024], b[1024];
    fl_data_stream now;
    if (!fl_data_stream_open(&now, f->who, f->path, FL_DATA_READ)) return false;
    bool ok = true, same = now.size == f->size;
    for (int64_t at = 0, n; ok && same && at < f->size; at += n) {
        n = f->size - at < (int64_t)sizeof a ? f->size - at : (int64_t)sizeof a;
        ok = fl_data_stream_read(f, a, (size_t)n, at) && fl_data_stream_read(&now, b, (size_t)n, at);
        same = ok && !memcmp(a, b, (size_t)n);
    }
    now.io.close(now.io.user, now.file);
    return ok && !same;
}

static fl_data_file *fl__shards_open(const char *path, bool map, bool verify, bool *replaced) {
    fl_data_file *f = fl_data_file_new("fl_data_open_sharded", path);
    fl__shards *s = f ? fl_heap_alloc(sizeof *s) : NULL;
    if (s) {
        s->map = map, s->verify = verify;
        f->user = s;
        f->read = fl__shards_tensor;
        f->close = fl__shards_close;
        fl_data_json *j = fl_data_json_in(&f->f, 0, f->f.size, (fl_data_json_opts){.c_strings = true});
        const bool ok = fl__shards_read(s, f, j) && fl_data_file_ready(f) && fl__shards_check(s, f);
        fl_data_json_close(j);
        if (ok) return f;
    }
    *replaced = f && fl__shards_replaced(&f->f);
    fl_data_close(f);
    return NULL;
}

FL_API fl_data_file *fl_data_open_sharded(const char *path, bool map, bool verify) {
    const bool pending = fl_error() != NULL;
    for (int i = 0;; i++) {
        bool replaced = false;
        fl_data_file *f = fl__shards_open(path, map, verify, &replaced);
        if (f || !replaced || i == 100) return f;
        if (!pending) fl_error_clear();
    }
}

/* ---- saving ---- */

#define FL__SHARDS_END ".safetensors.index.json"

typedef struct fl__shards_saver {
    const char *path, *base; /* of the index; base: its name without folder and suffix, n_base bytes */
    int n_base, version;
    char id[17];
    fl__shards old, new_; /* new_: names only */
    bool failed;
} fl__shards_saver;

static bool fl__shards_puts(fl_data_text *t, const char *text) {
    return fl_data_text_put(t, text, strlen(text));
}

static bool fl__shards_put_pair(fl_data_text *t, const char *key, const char *value) {
    return fl_data_json_put_string(t, key, strlen(key)) && fl__shards_puts(t, ": ") &&
           fl_data_json_put_string(t, value, strlen(value));
}

static int64_t fl__shards_bytes(const fl_data_named_tensor *t) {
    return t->tensor ? fl_numel(t->tensor) * (int64_t)fl_dtype_size(t->tensor->dtype) : 0;
}

/* The end of the tensors, from `from` on, that go into one shard. */
static int fl__shards_cut(const fl_data_named_tensor *tensors, int from, int n, int64_t most) {
    int64_t bytes = 0;
    int to = from;
    while (to < n && (to == from || fl__shards_bytes(&tensors[to]) <= most - bytes))
        bytes += fl__shards_bytes(&tensors[to++]);
    return to;
}

/* Returns the version in the name of a shard that a save of s->path wrote, 0 for any other name. *temporary
   becomes true for an unfinished file (".tmp"). */
static int fl__shards_version(const fl__shards_saver *s, const char *name, bool *temporary) {
    char end[80];
    int version, i, n;
    if (strncmp(name, s->base, (size_t)s->n_base)) return 0;
    name += s->n_base;
    if (sscanf(name, "-v%9d-%9d-of-%9d", &version, &i, &n) != 3 || version < 1) return 0;
    const int length = snprintf(end, sizeof end, "-v%d-%05d-of-%05d.safetensors.tmp", version, i, n);
    *temporary = !strcmp(name, end);
    end[length - 4] = 0;
    return *temporary || !strcmp(name, end) ? version : 0;
}

/* Returns true if a file begins like those of fl_data_save_safetensors. The header is written last: an
   unfinished file may have zeros in its place. */
static bool fl__shards_ours(const char *path, bool temporary) {
    static const char want[] = "{\"__metadata__\":{\"crc32c\":";
    char head[8 + sizeof want - 1] = {0};
    fl_data_stream f;
    const bool pending = fl_error() != NULL;
    bool ours = fl_data_stream_open(&f, "fl_data_save_sharded", path, FL_DATA_READ);
    if (ours) {
        const size_t n = f.size < (int64_t)sizeof head ? (size_t)f.size : sizeof head;
        ours = (temporary || n == sizeof head) && fl_data_stream_read(&f, head, n, 0);
        for (size_t i = 8; ours && i < sizeof head; i++)
            ours = head[i] == want[i - 8] || (temporary && !head[i]);
        f.io.close(f.io.user, f.file);
    }
    if (!pending) fl_error_clear(); /* unreadable files are kept */
    return ours;
}

/* Removes the shard `name` of that version if fl wrote it; versions of other files are not reused. */
static bool fl__shards_remove(fl__shards_saver *s, const char *name, int version, bool temporary) {
    char *path = fl__shards_path(s->path, name);
    if (!path) return false;
    if (fl__shards_ours(path, temporary)) fl_data_remove(path);
    else if (s->version <= version) s->version = version + 1;
    fl_heap_free(path);
    return true;
}

/* Removes the shards left by killed saves. */
static bool fl__shards_sweep(void *arg, const char *name, bool folder) {
    fl__shards_saver *s = arg;
    bool temporary;
    const int version = folder ? 0 : fl__shards_version(s, name, &temporary);
    s->failed = version && fl__shards_find(&s->old, name) < 0 &&
                !fl__shards_remove(s, name, version, temporary);
    return !s->failed;
}

/* Reads the names in the old index, and removes shards that no index names. */
static bool fl__shards_begin(fl__shards_saver *s, const fl_data_io *io, const char *who) {
    bool temporary;
    const int exists = fl_data_exists(who, s->path);
    if (exists < 0) return false;
    if (exists) {
        fl_data_json *j = fl_data_json_open(s->path, .who = who, .c_strings = true);
        const bool ok = fl__shards_read(&s->old, NULL, j);
        fl_data_json_close(j);
        if (!ok) return false;
    }
    for (int64_t i = 0; i < s->old.n; i++) {
        const int version = fl__shards_version(s, s->old.shard[i].name, &temporary);
        if (s->version <= version) s->version = version + 1;
    }
    char *folder = fl__shards_path(s->path, ".");
    if (folder && io->list) io->list(io->user, folder, fl__shards_sweep, s);
    fl_heap_free(folder);
    if (!folder || s->failed) return false;
    return s->version < 1000000000 ||
           fl_fail("%s: %s: a shard in the folder has the last possible version, %d", who, s->path,
                   s->version - 1);
}

/* Names the shards, and assigns one to each tensor of `all`. */
static bool fl__shards_plan(fl__shards_saver *s, fl_data_file *all, const fl_data_named_tensor *tensors,
                            int64_t most) {
    const int n = (int)all->n;
    char end[64];
    int shards = 0;
    for (int at = 0; at < n; shards++) at = fl__shards_cut(tensors, at, n, most);
    if (shards > FL__SHARDS_MOST)
        return fl_fail("%s: %s: max_shard %lld needs %d shards, expected at most %d", all->f.who, s->path,
                       (long long)most, shards, FL__SHARDS_MOST);
    fl_data_text name = {0};
    bool ok = fl_data_text_put(&name, s->base, (size_t)s->n_base);
    for (int i = 0, at = 0; ok && i < shards; i++) {
        const int to = fl__shards_cut(tensors, at, n, most);
        while (at < to) all->entry[at++].part = i;
        snprintf(end, sizeof end, "-v%d-%05d-of-%05d.safetensors", s->version, i + 1, shards);
        name.n = s->n_base;
        ok = fl__shards_puts(&name, end) && fl__shards_add(&s->new_, name.p);
    }
    fl_heap_free(name.p);
    return ok;
}

static bool fl__shards_save(const fl__shards_saver *s, const fl_data_file *all,
                            const fl_data_named_tensor *tensors) {
    const fl_data_key_value meta[] = {{"save_id", s->id}, {"format", fl_data_meta(all, "format")}};
    bool ok = true;
    for (int64_t i = 0, from = 0, to; ok && i < s->new_.n; i++, from = to) {
        for (to = from; to < all->n && all->entry[to].part == i;) to++;
        char *path = fl__shards_path(s->path, s->new_.shard[i].name);
        ok = path && fl_data_save_safetensors(path, tensors + from, (int)(to - from), meta,
                                              meta[1].value ? 2 : 1);
        fl_heap_free(path);
    }
    return ok;
}

static bool fl__shards_compose(const fl__shards_saver *s, const fl_data_file *all, int64_t bytes,
                               fl_data_text *t) {
    bool ok = fl_data_text_print(t, "{\n  \"metadata\": {\n    \"total_size\": %lld", (long long)bytes);
    for (int64_t i = 0; ok && i < all->n_meta; i++)
        ok = fl__shards_puts(t, ",\n    ") && fl__shards_put_pair(t, all->meta[i].key, all->meta[i].value);
    ok = ok && fl__shards_puts(t, "\n  },\n  \"weight_map\": {");
    for (int64_t i = 0; ok && i < all->n; i++)
        ok = fl__shards_puts(t, i ? ",\n    " : "\n    ") &&
             fl__shards_put_pair(t, all->entry[i].name, s->new_.shard[all->entry[i].part].name);
    const uint32_t crc = ok ? fl__shards_crc(&s->new_, all, s->id) : 0;
    return ok && fl_data_text_print(t, "\n  },\n  \"save_id\": \"%s\",\n  \"crc32c\": \"%08x\"\n}\n",
                                    s->id, (unsigned)crc);
}

/* Removes the shards of a set that fl wrote. */
static void fl__shards_clear(fl__shards_saver *s, const fl__shards *set) {
    bool temporary;
    for (int64_t i = 0; i < set->n; i++) {
        const int version = fl__shards_version(s, set->shard[i].name, &temporary);
        if (version) fl__shards_remove(s, set->shard[i].name, version, false);
    }
}

static bool fl__shards_is_utf8(const char *s) {
    size_t n = strlen(s);
    for (size_t k; n; s += k, n -= k)
        if (!(k = fl_data_utf8(s, n))) return false;
    return true;
}

/* Adds the names and metadata to be saved. */
static bool fl__shards_list(fl_data_file *all, const fl_data_named_tensor *tensors, int n,
                            const fl_data_key_value *meta,
                            int n_meta) {
    for (int i = 0; i < n_meta; i++) {
        if (!meta[i].key || !meta[i].value || !strcmp(meta[i].key, "total_size"))
            return fl_fail("%s: %s: metadata pair %d has a NULL, or the reserved key total_size", all->f.who,
                           all->f.path, i);
        if (!fl__shards_is_utf8(meta[i].key) || !fl__shards_is_utf8(meta[i].value))
            return fl_fail("%s: %s: metadata pair %d is not UTF-8", all->f.who, all->f.path, i);
        if (!fl_data_file_add_meta(all, meta[i].key, meta[i].value)) return false;
    }
    for (int i = 0; i < n; i++) {
        if (!tensors[i].name) return fl_fail("%s: %s: a name is NULL", all->f.who, all->f.path);
        if (!fl_data_file_add(all, tensors[i].name, (int64_t)strlen(tensors[i].name))) return false;
    }
    return fl_data_file_ready(all);
}

/* An id that differs for each save: from the time, and an address that differs between processes. */
static void fl__shards_make_id(char id[17]) {
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t x = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    x = (x ^ (uint64_t)(uintptr_t)id << 20) * 0x9e3779b97f4a7c15u;
    snprintf(id, 17, "%016llx", (unsigned long long)(x ^ x >> 32));
}

FL_API bool fl_data_save_sharded(const char *path, const fl_data_named_tensor *tensors, int n,
                                 const fl_data_key_value *meta, int n_meta, int64_t max_shard) {
    static const char who[] = "fl_data_save_sharded";
    if (!path || n < 0 || n_meta < 0 || (n && !tensors) || (n_meta && !meta) || max_shard < 0)
        return fl_fail("%s: path, tensors or meta is NULL, or a count negative", who);
    if (!fl_data_ends(path, FL__SHARDS_END))
        return fl_fail("%s: %s does not end with " FL__SHARDS_END, who, path);
    const char *slash = strrchr(path, '/');
    fl__shards_saver s = {.path = path, .base = slash ? slash + 1 : path, .version = 1};
    s.n_base = (int)(strlen(s.base) - sizeof FL__SHARDS_END + 1);
    fl__shards_make_id(s.id);
    fl_data_file all = {.f = {.who = who, .path = path}};
    fl_data_text text = {0};
    fl_data_replacement index; /* opened first, to exclude other writers until it is replaced */
    int64_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += fl__shards_bytes(&tensors[i]);
    bool ok = fl__shards_list(&all, tensors, n, meta, n_meta) && fl_data_replace_begin(&index, who, path);
    if (ok) {
        ok = fl__shards_begin(&s, &index.f.io, who) &&
             fl__shards_plan(&s, &all, tensors, max_shard ? max_shard : 5000000000) &&
             fl__shards_save(&s, &all, tensors) && fl__shards_compose(&s, &all, bytes, &text) &&
             fl_data_stream_write(&index.f, text.p, (size_t)text.n, 0);
        if (!ok) fl__shards_clear(&s, &s.new_); /* not named by any index */
        ok = fl_data_replace_end(&index, ok);
        if (ok) fl__shards_clear(&s, &s.old);
    }
    fl__shards_free(&s.old);
    fl__shards_free(&s.new_);
    fl_data_file_clear(&all);
    fl_heap_free(text.p);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
