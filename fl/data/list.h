/* fl/data/list.h - data sets of files: from a list, a folder, or a folder per class */
#ifndef FL_DATA_LIST_H
#define FL_DATA_LIST_H
#include "file.h"
#include "set.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The description of a sample to read. */
typedef struct fl_data_list_entry {
    const char *path;         /* of the file, with root or folder */
    int n;                    /* fields of the line; in a folder 1: the path relative to the folder */
    const char *const *field;
    int64_t line;             /* number in the list, from 1; in a folder 0 */
    int64_t label;            /* the class in a folder of classes; else -1 */
} fl_data_list_entry;
/* Reads a sample. Called from several threads under fl_data_prefetch; e is valid until it returns. */
typedef bool (*fl_data_read_fn)(const fl_data_list_entry *e, fl_data_sample *out, void *user);

typedef struct fl_data_list_opts {
    fl_opts_guard guard_;
    void *user;       /* passed to read */
    const char *root; /* folder that all paths are in (fl_data_path_inside); NULL: paths are used as is */
    char separator;   /* of fields; 0: a tab */
    int columns;      /* required fields per line, the last takes the rest of the line; 0: any number */
    int path;         /* column of the path, from 0 */
    int length;       /* column, from 1, of the sample's length (fl_data_length; rounded up); 0: none */
    char _end;
} fl_data_list_opts;
/* A sample for each non-blank line of a text file. The list is read at once, the files later, by `read`.
   Invalid lines are errors that name file and line. */
#define fl_data_list(...) FL__DATA_LIST(__VA_ARGS__, ._end = 0)
#define FL__DATA_LIST(path, read, ...) \
    fl_data_list_opt(path, read, FL_LITERAL(fl_data_list_opts, __VA_ARGS__))
FL_API fl_data_set *fl_data_list_opt(const char *path, fl_data_read_fn read, fl_data_list_opts o);

typedef struct fl_data_folder_opts {
    fl_opts_guard guard_;
    void *user;             /* passed to read */
    const char *extensions; /* "png,jpg": only files with these extensions, ignoring case; NULL: all */
    bool flat;              /* ignore sub-folders */
    bool classes;           /* one sub-folder per class, sorted by name (torchvision's ImageFolder); class,
                               i64 [], is appended to the fields from read */
    char _end;
} fl_data_folder_opts;
/* A sample for each file in a folder and its sub-folders, up to 64 levels deep, sorted by the bytes of the
   names along their paths. Names that start with a dot are ignored. */
#define fl_data_folder(...) FL__DATA_FOLDER(__VA_ARGS__, ._end = 0)
#define FL__DATA_FOLDER(path, read, ...) \
    fl_data_folder_opt(path, read, FL_LITERAL(fl_data_folder_opts, __VA_ARGS__))
FL_API fl_data_set *fl_data_folder_opt(const char *path, fl_data_read_fn read, fl_data_folder_opts o);
/* The name of class k of such a set; NULL if out of range. Valid as long as the set. */
FL_API const char *fl_data_class_name(const fl_data_set *folder, int64_t k);

/* Writes the path of sample i of such a set, or of a list, as passed to `read`; false, without an error, for
   other sets. */
FL_API bool fl_data_listed_path(const fl_data_set *set, int64_t i, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_LIST_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_LIST) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_LIST_IMPL
#define FL_DATA_LIST_IMPL
#include "../ops/view.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line, or a path within a folder; kept small, because there may be many. */
typedef struct fl__data_line {
    union {
        const char *text;
        int64_t at; /* offset in text, while that may still move */
    };
    int64_t number; /* of the line; depth in a folder */
    int64_t value;  /* length of a list's sample, class in a folder; -1: none */
} fl__data_line;

typedef struct fl__data_listed {
    fl_data_read_fn read;
    fl_data_list_opts o; /* root is a copy */
    const char *extensions;
    bool is_list, flat, classes;
    char *root, *text;
    int64_t len, cap, n, line_cap, n_folder, folder_cap;
    fl__data_line *line, *folder; /* finally the classes */
    int64_t at;                   /* folder being read */
    bool ok;
} fl__data_listed;

static void fl__data_listed_free(fl__data_listed *d) {
    if (!d) return;
    fl_heap_free(d->root);
    fl_heap_free(d->text);
    fl_heap_free(d->line);
    fl_heap_free(d->folder);
    fl_heap_free(d);
}

static void fl__data_listed_close(fl_data_set *self) {
    fl__data_listed_free(self->user);
}

/* ---- samples ---- */

static int fl__data_count_fields(const char *text, const fl_data_list_opts *o) {
    int n = 1;
    while ((!o->columns || n < o->columns) && (text = strchr(text, o->separator))) n++, text++;
    return n;
}

/* Reads a sample with the fields of a line: pointers, a copy of the text and the path are in one block. */
static bool fl__data_read_line(const fl__data_listed *d, const fl__data_line *l, fl_data_sample *out) {
    const int n = d->o.separator ? fl__data_count_fields(l->text, &d->o) : 1;
    const size_t len = strlen(l->text), root = d->root ? strlen(d->root) : 0;
    char **field = fl_heap_alloc((size_t)n * sizeof *field + 2 * len + root + 3);
    if (!field) return false;
    char *text = (char *)(field + n), *path = text + len + 1;
    memcpy(text, l->text, len + 1);
    for (int k = 0; k < n; k++) {
        field[k] = text;
        if (k + 1 < n) *(text = strchr(text, d->o.separator)) = 0, text++;
    }
    snprintf(path, root + len + 2, "%s%s%s", d->root ? d->root : "", d->root ? "/" : "", field[d->o.path]);
    const int64_t label = d->is_list ? -1 : l->value;
    const fl_data_list_entry e = {path, n, (const char *const *)field, d->is_list ? l->number : 0, label};
    bool ok = d->read(&e, out, d->o.user) || fl_fail("fl_data_list: read returned false for %s", path);
    if (ok && label >= 0) {
        fl_tensor *t = fl_data_host_tensor(FL_SCALAR_SHAPE, FL_I64);
        ok = out->n < FL_DATA_FIELDS || fl_fail("fl_data_folder: %s: no field is left for the class", path);
        ok = ok && t && fl_set_host(t, &label, sizeof label);
        if (ok) out->t[out->n++] = t;
    }
    fl_heap_free(field);
    return ok;
}

static bool fl__data_listed_get(fl_data_set *self, int64_t i, fl_data_sample *out) {
    const fl__data_listed *d = self->user;
    return fl__data_read_line(d, &d->line[i], out);
}

static int64_t fl__data_listed_length(fl_data_set *self, int64_t i) {
    const fl__data_listed *d = self->user;
    return d->is_list ? d->line[i].value : -1;
}

/* Makes the set from d and takes ownership. */
static fl_data_set *fl__data_listed_set(fl__data_listed *d, const char *who, const char *path) {
    bool ok = d && d->ok;
    if (ok && !d->n) ok = fl_fail("%s: %s: no samples found", who, path);
    if (!ok) {
        fl__data_listed_free(d);
        return NULL;
    }
    return fl_data_set_new(&(fl_data_set){
        .size = d->n, .get = fl__data_listed_get, .length = fl__data_listed_length,
        .close = fl__data_listed_close, .user = d}, NULL, 0);
}

static fl__data_listed *fl__data_listed_new(const char *who, const char *root, fl_data_read_fn read) {
    if (!read) fl_fail("%s: read is NULL", who);
    fl__data_listed *d = read ? fl_heap_alloc(sizeof *d) : NULL;
    if (!d) return NULL;
    d->read = read;
    if (!root) return d;
    d->root = fl_heap_alloc(strlen(root) + 1);
    if (d->root) memcpy(d->root, root, strlen(root) + 1);
    if (d->root) return d;
    fl__data_listed_free(d);
    return NULL;
}

/* ---- a list ---- */

/* Copies field k of a line, up to size - 1 bytes; false if it is empty or too long. */
static bool fl__data_field(const char *text, const fl_data_list_opts *o, int k, char *buf, size_t size) {
    while (k--) text = strchr(text, o->separator) + 1;
    const size_t n = strcspn(text, (char[]){o->separator, 0});
    if (n == 0 || n >= size) return false;
    memcpy(buf, text, n);
    buf[n] = 0;
    return true;
}

/* Checks a line and adds it. */
static bool fl__data_add_line(fl__data_listed *d, const char *path, char *text, size_t n, int64_t number) {
    char buf[64], *end = buf;
    const fl_data_list_opts *o = &d->o;
    if (strlen(text) < n) return fl_fail("fl_data_list: %s: line %lld: the line contains a NUL byte", path,
                                         (long long)number);
    if (n && text[n - 1] == '\r') text[--n] = 0;
    if (strspn(text, " \t") == n) return true;
    const int columns = fl__data_count_fields(text, o);
    const int most = o->path > o->length - 1 ? o->path + 1 : o->length,
              least = o->columns > most ? o->columns : most;
    if (columns < least)
        return fl_fail("fl_data_list: %s: line %lld: got %d fields, expected at least %d", path,
                       (long long)number, columns, least);
    const char *file = text;
    for (int k = 0; k < o->path; k++) file = strchr(file, o->separator) + 1;
    if (!*file || (*file == o->separator && o->path + 1 != o->columns))
        return fl_fail("fl_data_list: %s: line %lld: field %d, the path, is empty", path, (long long)number,
                       o->path);
    const size_t n_file = o->path + 1 == o->columns ? strlen(file) : strcspn(file, (char[]){o->separator, 0});
    if (d->root && !fl_data_path_inside(file, n_file))
        return fl_fail("fl_data_list: %s: line %lld: the path '%.*s' is outside root", path,
                       (long long)number, n_file > 200 ? 200 : (int)n_file, file);
    double length = -1;
    if (o->length) {
        length = fl__data_field(text, o, o->length - 1, buf, sizeof buf) ? strtod(buf, &end) : -1;
        if (end == buf || *end || !(length >= 0 && length <= 0x1p53))
            return fl_fail("fl_data_list: %s: line %lld: field %d is not a length, a number from 0 to 2^53",
                           path, (long long)number, o->length - 1);
    }
    const int64_t whole = (int64_t)length;
    d->line[d->n++] = (fl__data_line){{text}, number, whole + ((double)whole < length)};
    return true;
}

static bool fl__data_read_list(fl__data_listed *d, const char *path) {
    fl_data_stream f;
    if (!fl_data_stream_open(&f, "fl_data_list", path, FL_DATA_READ)) return false;
    d->text = fl_heap_alloc((size_t)f.size + 1);
    bool ok = d->text && fl_data_stream_read(&f, d->text, (size_t)f.size, 0);
    f.io.close(f.io.user, f.file);
    if (!ok) return false;
    char *p = d->text, *end = p + f.size;
    int64_t lines = 1;
    for (const char *q = p; (q = memchr(q, '\n', (size_t)(end - q))); q++) lines++;
    d->line = fl_heap_alloc((size_t)lines * sizeof *d->line);
    if (!d->line) return false;
    if (f.size >= 3 && !memcmp(p, "\xef\xbb\xbf", 3)) p += 3; /* byte order mark of some editors */
    for (int64_t number = 1; ok && p < end; number++) {
        char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        *stop = 0;
        ok = fl__data_add_line(d, path, p, (size_t)(stop - p), number);
        p = stop + 1;
    }
    return ok;
}

FL_API fl_data_set *fl_data_list_opt(const char *path, fl_data_read_fn read, fl_data_list_opts o) {
    if (o.columns < 0 || o.path < 0 || o.length < 0 ||
        (o.columns && (o.path >= o.columns || o.length > o.columns))) {
        fl_fail("fl_data_list: columns must not be negative, path and length within them, got path %d, "
                "length %d, columns %d", o.path, o.length, o.columns);
        return NULL;
    }
    fl__data_listed *d = fl__data_listed_new("fl_data_list", o.root, read);
    if (d) {
        d->is_list = true;
        d->o = o;
        d->o.root = d->root;
        if (!o.separator) d->o.separator = '\t';
        d->ok = fl__data_read_list(d, path);
    }
    return fl__data_listed_set(d, "fl_data_list", path);
}

/* ---- a folder ---- */

static bool fl__data_has_extension(const char *name, const char *list) {
    const char *dot = strrchr(name, '.');
    for (; dot && *list; list += strcspn(list, ","), list += *list == ',') {
        const size_t n = strcspn(list, ",");
        size_t same = 0;
        while (same < n && dot[1 + same] &&
               tolower((unsigned char)dot[1 + same]) == tolower((unsigned char)list[same])) same++;
        if (same == n && !dot[1 + n]) return true;
    }
    return false;
}

/* Adds a name found in the folder being read. */
static bool fl__data_add_name(void *arg, const char *name, bool folder) {
    fl__data_listed *d = arg;
    const bool top = d->at < 0;
    if (*name == '.' || (folder && d->flat && !(top && d->classes))) return true;
    if (!folder && (top && d->classes)) return true;
    if (!folder && d->extensions && !fl__data_has_extension(name, d->extensions)) return true;
    const fl__data_line up = top ? (fl__data_line){.number = 0} : d->folder[d->at];
    const size_t before = top ? 0 : strlen(d->text + up.at) + 1, n = before + strlen(name) + 1;
    d->ok = fl_heap_grow(&d->text, &d->cap, d->len + (int64_t)n, 1) &&
            (folder ? fl_heap_grow(&d->folder, &d->folder_cap, d->n_folder + 1, sizeof *d->folder)
                    : fl_heap_grow(&d->line, &d->line_cap, d->n + 1, sizeof *d->line));
    if (!d->ok) return false;
    char *text = d->text + d->len;
    if (before) memcpy(text, d->text + up.at, before), text[before - 1] = '/';
    memcpy(text + before, name, n - before);
    const fl__data_line l = {.at = d->len, .number = up.number + 1, .value = -1};
    d->len += (int64_t)n;
    if (folder) d->folder[d->n_folder++] = l;
    else d->line[d->n++] = l;
    return true;
}

static bool fl__data_read_folder(fl__data_listed *d) {
    for (; d->ok && d->at < d->n_folder; d->at++) {
        const char *within = d->at < 0 ? "" : d->text + d->folder[d->at].at;
        const size_t size = strlen(d->root) + strlen(within) + 2;
        char *path = fl_heap_alloc(size);
        if (!path) return false;
        snprintf(path, size, "%s%s%s", d->root, *within ? "/" : "", within);
        if (d->at >= 0 && d->folder[d->at].number > 64)
            d->ok = fl_fail("fl_data_folder: %s: more than 64 nested folders (a cycle of links?)", path);
        else d->ok = fl_data_folder_names("fl_data_folder", path, fl__data_add_name, d) && d->ok;
        fl_heap_free(path);
    }
    return d->ok;
}

/* Sorts by the names along the path: '/' sorts before any other character. */
static int fl__data_by_text(const void *a, const void *b) {
    const char *x = ((const fl__data_line *)a)->text, *y = ((const fl__data_line *)b)->text;
    while (*x && *x == *y) x++, y++;
    const int u = *x == '/' ? 1 : (unsigned char)*x, v = *y == '/' ? 1 : (unsigned char)*y;
    return u - v;
}

static void fl__data_sort_lines(fl__data_line *line, int64_t n, const char *text) {
    for (int64_t i = 0; i < n; i++) line[i].text = text + line[i].at;
    if (n) qsort(line, (size_t)n, sizeof *line, fl__data_by_text);
}

/* Numbers the classes, i.e. the folders of the root, sorted by name; each must contain a file. */
static bool fl__data_number_classes(fl__data_listed *d) {
    int64_t n = 0, i = 0;
    while (n < d->n_folder && d->folder[n].number == 1) n++; /* they come first */
    d->n_folder = n;
    fl__data_sort_lines(d->folder, n, d->text);
    for (int64_t k = 0; k < n; k++) {
        const char *name = d->folder[k].text;
        const size_t size = strlen(name);
        const int64_t first = i;
        for (; i < d->n && !strncmp(d->line[i].text, name, size) && d->line[i].text[size] == '/'; i++)
            d->line[i].value = k;
        if (i == first) return fl_fail("fl_data_folder: %s: class '%s' has no file", d->root, name);
    }
    return true;
}

FL_API fl_data_set *fl_data_folder_opt(const char *path, fl_data_read_fn read, fl_data_folder_opts o) {
    if (!path) {
        fl_fail("fl_data_folder: path is NULL");
        return NULL;
    }
    fl__data_listed *d = fl__data_listed_new("fl_data_folder", path, read);
    if (d) {
        d->o = (fl_data_list_opts){.user = o.user};
        d->extensions = o.extensions;
        d->flat = o.flat, d->classes = o.classes, d->ok = true, d->at = -1;
        d->ok = fl__data_read_folder(d);
        if (d->ok) fl__data_sort_lines(d->line, d->n, d->text);
        d->ok = d->ok && (!o.classes || fl__data_number_classes(d));
        d->extensions = NULL;
    }
    return fl__data_listed_set(d, "fl_data_folder", path);
}

FL_API const char *fl_data_class_name(const fl_data_set *folder, int64_t k) {
    if (!folder || folder->get != fl__data_listed_get) return NULL;
    const fl__data_listed *d = folder->user;
    return d->classes && k >= 0 && k < d->n_folder ? d->folder[k].text : NULL;
}

FL_API bool fl_data_listed_path(const fl_data_set *set, int64_t i, char *buf, size_t size) {
    if (!set || set->get != fl__data_listed_get || i < 0 || i >= set->size || !buf || !size) return false;
    const fl__data_listed *d = set->user;
    const char *text = d->line[i].text;
    for (int k = 0; k < d->o.path; k++) text = strchr(text, d->o.separator) + 1;
    const bool last = !d->o.separator || d->o.path + 1 == d->o.columns;
    const int n = last ? (int)strlen(text) : (int)strcspn(text, (char[]){d->o.separator, 0});
    snprintf(buf, size, "%s%s%.*s", d->root ? d->root : "", d->root ? "/" : "", n, text);
    return true;
}

#endif
#endif

/* MIT licence: see LICENSE. */
