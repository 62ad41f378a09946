/* shards.h - safetensors in several files, with an index */
#ifndef FL_DATA_SHARDS_H
#define FL_DATA_SHARDS_H
#include "named.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The index of a model in several files, as Hugging Face writes it (model.safetensors.index.json: an object
   with "weight_map", from a tensor's name to a file beside the index, and "metadata", of which strings are
   given by fl_data_meta). All shards are opened, and their headers checked, at once; map, verify: as
   fl_data_map_safetensors has them. Tensors of a shard that the index does not name are left out. */
FL_API fl_data_file *fl_data_open_sharded(const char *path, bool map, bool verify);
/* Writes n named tensors in shards of at most max_shard bytes of data (0 -> 5 GB; a larger tensor has a shard
   of its own), and then the index, path, which ends with ".safetensors.index.json": a kill at any moment
   leaves the old index with its shards or the new one with its own. Shards have new names each time,
   "model-v2-00001-of-00003.safetensors" beside "model.safetensors.index.json"; those that the old index
   named in this way are removed at the end. What a killed save has left the next one overwrites if it
   makes as many shards. */
FL_API bool fl_data_save_sharded(const char *path, const fl_data_named *tensors, int n,
                                 const fl_data_pair *meta, int n_meta, int64_t max_shard);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_SHARDS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_SHARDS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_SHARDS_IMPL
#define FL_DATA_SHARDS_IMPL
#include "json.h"
#include "safetensors.h"
#include <stdio.h>
#include <string.h>

/* The files that an index names. */
typedef struct fl__shards {
    struct fl__shard {
        const char *name; /* in the index's folder */
        fl_data_file *file;
    } *shard;
    int64_t n, cap;
    fl_data_arena names;
    bool map, verify;
} fl__shards;

/* The path of a file beside the index; heap memory. */
static char *fl__shards_path(const char *index, const char *name) {
    const char *slash = strrchr(index, '/');
    const size_t n = slash ? (size_t)(slash - index) + 1 : 0, size = n + strlen(name) + 1;
    char *path = fl_heap_alloc(size);
    if (path) snprintf(path, size, "%.*s%s", (int)n, index, name);
    return path;
}

/* The shard that j's string names, one that is known or a new one; -1 after fl_fail. */
static int64_t fl__shards_find(fl__shards *s, fl_data_json *j) {
    for (int64_t i = s->n; i-- > 0;)
        if (!strcmp(s->shard[i].name, j->text)) return i;
    if (*j->text == '.' || strpbrk(j->text, "/\\:") || !fl_data_ends(j->text, ".safetensors"))
        return fl_data_json_fail(j, "'%.100s' is no name of a .safetensors file in the same folder",
                                 j->text) -
               1;
    if (!fl_heap_grow(&s->shard, &s->cap, s->n + 1, sizeof *s->shard)) return -1;
    s->shard[s->n] = (struct fl__shard){fl_data_arena_add(&s->names, j->text, (size_t)j->n), NULL};
    return s->shard[s->n].name ? s->n++ : -1;
}

/* One tensor of the weight map, j at its name; f NULL: only its shard counts. */
static bool fl__shards_weight(fl__shards *s, fl_data_file *f, fl_data_json *j) {
    fl_data_entry *e = f ? fl_data_file_add(f, j->text, j->n) : NULL;
    if ((f && !e) || !fl_data_json_string(j)) return false;
    const int64_t k = fl__shards_find(s, j);
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

/* The strings of the metadata, j in front of it. */
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

/* Reads an index; f NULL: only which shards it names. */
static bool fl__shards_read(fl__shards *s, fl_data_file *f, fl_data_json *j) {
    bool ok = j && fl_data_json_expect(j, FL_DATA_JSON_OBJECT), weights = false, meta = false;
    while (ok && fl_data_json_more(j)) {
        if (!strcmp(j->text, "weight_map")) {
            ok = weights ? fl_data_json_fail(j, "a second weight_map")
                         : fl_data_json_expect(j, FL_DATA_JSON_OBJECT);
            weights = true;
            while (ok && fl_data_json_more(j)) ok = fl__shards_weight(s, f, j);
        } else if (f && !strcmp(j->text, "metadata")) {
            ok = meta ? fl_data_json_fail(j, "a second metadata") : fl__shards_meta(f, j);
            meta = true;
        } else ok = fl_data_json_skip(j);
    }
    return ok && fl_data_json_next(j) == FL_DATA_JSON_END &&
           (weights || fl_data_json_fail(j, "it has no weight_map"));
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

FL_API fl_data_file *fl_data_open_sharded(const char *path, bool map, bool verify) {
    fl_data_file *f = fl_data_file_new("fl_data_open_sharded", path);
    fl__shards *s = f ? fl_heap_alloc(sizeof *s) : NULL;
    if (s) {
        s->map = map, s->verify = verify;
        f->user = s;
        f->read = fl__shards_tensor;
        f->close = fl__shards_close;
        fl_data_json *j = fl_data_json_in(&f->f, 0, f->f.size, (fl_data_json_opts){.c_strings = true});
        const bool ok = fl__shards_read(s, f, j) && fl_data_file_ready(f);
        fl_data_json_close(j);
        if (ok) return f;
    }
    fl_data_close(f);
    return NULL;
}

/* ---- saving ---- */

#define FL__SHARDS_END ".safetensors.index.json"

/* What is saved: the index's path, its name without folder and end, the version, how many shards. */
typedef struct fl__shards_saver {
    const char *path, *base;
    int n_base, version, n;
    fl_data_text index;
} fl__shards_saver;

static bool fl__shards_puts(fl_data_text *t, const char *text) {
    return fl_data_text_put(t, text, strlen(text));
}

static bool fl__shards_put_pair(fl_data_text *t, const char *key, const char *value) {
    return fl_data_json_put_string(t, key, strlen(key)) && fl__shards_puts(t, ": ") &&
           fl_data_json_put_string(t, value, strlen(value));
}

static int64_t fl__shards_bytes(const fl_data_named *t) {
    return t->tensor ? fl_numel(t->tensor) * (int64_t)fl_dtype_size(t->tensor->dtype) : 0;
}

/* The tensors from `from` on that go into one shard: their end. */
static int fl__shards_cut(const fl_data_named *tensors, int from, int n, int64_t most) {
    int64_t bytes = 0;
    int to = from;
    while (to < n && (to == from || fl__shards_bytes(&tensors[to]) <= most - bytes))
        bytes += fl__shards_bytes(&tensors[to++]);
    return to;
}

/* The name of shard i, and its path: the name is at its end. Heap memory. */
static char *fl__shards_name(const fl__shards_saver *s, int i, const char **name) {
    const size_t n_folder = (size_t)(s->base - s->path), size = strlen(s->path) + 80;
    char *path = fl_heap_alloc(size);
    if (path)
        snprintf(path, size, "%.*s-v%d-%05d-of-%05d.safetensors", (int)n_folder + s->n_base, s->path,
                 s->version, i + 1, s->n);
    *name = path ? path + n_folder : NULL;
    return path;
}

/* Saves shard i, and its lines of the index. */
static bool fl__shards_save(fl__shards_saver *s, int i, const fl_data_named *tensors, int n) {
    const char *name;
    char *path = fl__shards_name(s, i, &name);
    bool ok = path && fl_data_save_safetensors(path, tensors, n, NULL, 0);
    for (int k = 0; ok && k < n; k++)
        ok = fl__shards_puts(&s->index, i || k ? ",\n    " : "\n    ") &&
             fl__shards_put_pair(&s->index, tensors[k].name, name);
    fl_heap_free(path);
    return ok;
}

/* Was a shard named so by an earlier save? Its version then, 0 if not. */
static int fl__shards_version(const fl__shards_saver *s, const char *name) {
    int version = 0;
    if (strncmp(name, s->base, (size_t)s->n_base) || sscanf(name + s->n_base, "-v%d-", &version) != 1)
        return 0;
    return version > 0 ? version : 0;
}

static bool fl__shards_write(fl__shards_saver *s, const fl_data_named *tensors, int n,
                             const fl_data_pair *meta, int n_meta, int64_t most) {
    char total[80];
    int64_t bytes = 0;
    bool ok = true;
    for (int i = 0; i < n; i++) bytes += fl__shards_bytes(&tensors[i]);
    for (int at = 0; at < n; s->n++) at = fl__shards_cut(tensors, at, n, most);
    snprintf(total, sizeof total, "{\n  \"metadata\": {\n    \"total_size\": %lld", (long long)bytes);
    ok = fl__shards_puts(&s->index, total);
    for (int i = 0; ok && i < n_meta; i++)
        ok = fl__shards_puts(&s->index, ",\n    ") &&
             fl__shards_put_pair(&s->index, meta[i].key, meta[i].value);
    ok = ok && fl__shards_puts(&s->index, "\n  },\n  \"weight_map\": {");
    for (int i = 0, at = 0, end; ok && i < s->n; i++, at = end) {
        end = fl__shards_cut(tensors, at, n, most);
        ok = fl__shards_save(s, i, tensors + at, end - at);
    }
    ok = ok && fl__shards_puts(&s->index, "\n  }\n}\n");
    fl_data_replacement r;
    ok = ok && fl_data_replace_begin(&r, "fl_data_save_sharded", s->path);
    if (ok) return fl_data_replace_end(&r, fl_data_stream_write(&r.f, s->index.p, (size_t)s->index.n, 0));
    for (int i = 0; i < s->n; i++) { /* no index names them */
        const char *name;
        char *path = fl__shards_name(s, i, &name);
        if (path) fl_data_remove(path);
        fl_heap_free(path);
    }
    return false;
}

FL_API bool fl_data_save_sharded(const char *path, const fl_data_named *tensors, int n,
                                 const fl_data_pair *meta, int n_meta, int64_t max_shard) {
    static const char who[] = "fl_data_save_sharded";
    if (!path || n < 0 || n_meta < 0 || (n && !tensors) || (n_meta && !meta) || max_shard < 0)
        return fl_fail("%s: path, tensors or meta is NULL, or a count negative", who);
    if (!fl_data_ends(path, FL__SHARDS_END))
        return fl_fail("%s: %s does not end with " FL__SHARDS_END, who, path);
    for (int i = 0; i < n_meta; i++)
        if (!meta[i].key || !meta[i].value || !strcmp(meta[i].key, "total_size"))
            return fl_fail("%s: %s: metadata pair %d has a NULL or is total_size", who, path, i);
    const char *slash = strrchr(path, '/');
    fl__shards_saver s = {.path = path, .base = slash ? slash + 1 : path, .version = 1};
    s.n_base = (int)(strlen(s.base) - sizeof FL__SHARDS_END + 1);
    fl_data_file all = {.f = {.who = who, .path = path}};
    fl__shards old = {.verify = true};
    const int exists = fl_data_exists(who, path);
    bool ok = exists >= 0;
    for (int i = 0; ok && i < n; i++)
        ok = tensors[i].name
                 ? fl_data_file_add(&all, tensors[i].name, (int64_t)strlen(tensors[i].name)) != NULL
                 : fl_fail("%s: %s: a name is NULL", who, path);
    ok = ok && fl_data_file_ready(&all);
    if (ok && exists > 0) {
        fl_data_json *j = fl_data_json_open(path, .who = who, .c_strings = true);
        ok = fl__shards_read(&old, NULL, j);
        fl_data_json_close(j);
    }
    for (int64_t i = 0; i < old.n; i++)
        if (fl__shards_version(&s, old.shard[i].name) >= s.version)
            s.version = fl__shards_version(&s, old.shard[i].name) % 999999999 + 1;
    ok = ok && fl__shards_write(&s, tensors, n, meta, n_meta, max_shard ? max_shard : 5000000000);
    for (int64_t i = 0; ok && i < old.n; i++) {
        char *stale =
            fl__shards_version(&s, old.shard[i].name) ? fl__shards_path(path, old.shard[i].name) : NULL;
        if (stale) fl_data_remove(stale);
        fl_heap_free(stale);
    }
    fl__shards_free(&old);
    fl_data_file_clear(&all);
    fl_heap_free(s.index.p);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
