/* kernels/cuda/library.h - loads NVIDIA's libraries on first use

   Searches the folders of FL_CUDA_LIBS (separated by colons; "no": loads none), the dynamic loader's path,
   the toolkit's folder, and nvidia/<package>/lib of the current Python (of VIRTUAL_ENV, or the first in
   PATH), whose packages contain the same libraries. A library of CUDA 13 that is not found is looked for as
   that of CUDA 12, whose functions are the same. Libraries stay loaded. Relative folders are allowed in
   FL_CUDA_LIBS only; in PATH, CUDA_HOME and VIRTUAL_ENV they are skipped: otherwise anyone who can write to
   the current folder could have code loaded. */
#ifndef FL_CUDA_LIBRARY_H
#define FL_CUDA_LIBRARY_H
#include "../../fl_mem.h"
#include "flk.h"

enum { FL__CUDA_FUNCTIONS = 20 };
/* A library and how far it is loaded. */
typedef struct fl__cuda_library {
    const char *file, *instead; /* instead: what runs without it */
    const char *needs[2];       /* libraries that it would search in fewer folders */
    void *functions;            /* a struct of pointers, in the order of their names */
    const char *name[FL__CUDA_FUNCTIONS]; /* the others are NULL */
    const char *opened_by;      /* the function that `open` calls */
    const char *(*open)(void **handle); /* on the current device: returns NULL or why not; may be NULL */
    int loaded, state[FLK_DEVICES];     /* 0: not yet, 1: it is, -1: failed; state is atomic */
    void *handle[FLK_DEVICES];
} fl__cuda_library;
/* For lists X(result, function, arguments): the struct's fields, and the names. */
#define FL__CUDA_FIELD(result, name, args) result(*name) args;
#define FL__CUDA_NAME(result, name, args) #name,
/* Loads a library when it is first needed, and opens it on the current device. Returns false if it cannot,
   after one warning, which tells what runs instead. */
FL_PRIVATE bool fl__cuda_load(fl__cuda_library *l);
/* Opens a library, if it exists. */
FL_PRIVATE void *fl__cuda_library_open(const char *file);
#endif

#if defined(FL_IMPL_ONLY_CUDA_LIBRARY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_LIBRARY_IMPL
#define FL_CUDA_LIBRARY_IMPL
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Opens the first matching file that can be opened. */
static void *fl__cuda_open_match(const char *pattern) {
    void *library = NULL;
    glob_t found;
    if (glob(pattern, 0, NULL, &found)) return NULL;
    for (size_t i = 0; i < found.gl_pathc && !library; i++)
        library = dlopen(found.gl_pathv[i], RTLD_NOW | RTLD_GLOBAL);
    globfree(&found);
    return library;
}

/* Searches colon-separated folders for folder `under` file. */
static void *fl__cuda_open_in(const char *folders, const char *under, const char *file) {
    void *library = NULL;
    char path[PATH_MAX];
    for (const char *p = folders; p && *p && !library; p += strspn(p, ":")) {
        const int n = (int)strcspn(p, ":");
        if (snprintf(path, sizeof path, "%.*s%s%s", n, p, under, file) < (int)sizeof path)
            library = fl__cuda_open_match(path);
        p += n;
    }
    return library;
}

/* Searches the packages of the Python in folder bin, also following its links. */
static void *fl__cuda_open_python(const char *bin, size_t n, const char *file) {
    char python[PATH_MAX], to[PATH_MAX];
    void *library = NULL;
    if (*bin != '/' || snprintf(python, sizeof python, "%.*s/python3", (int)n, bin) >= (int)sizeof python)
        return NULL;
    for (int links = 0; links < 4 && !library && !access(python, X_OK); links++) {
        char *slash = strrchr(python, '/');
        *slash = 0;
        library = fl__cuda_open_in(python, "/../lib/python3*/*-packages/nvidia/*/lib/", file);
        *slash = '/';
        const ssize_t length = readlink(python, to, sizeof to - 1);
        if (length <= 0) break;
        to[length] = 0;
        if (*to == '/')
            *python = 0;
        else
            slash[1] = 0;
        if (strlen(python) + (size_t)length >= sizeof python) break;
        strcat(python, to);
    }
    return library;
}

/* The absolute path in an environment variable; NULL if it is unset or relative. */
static const char *fl__cuda_folder_of(const char *variable) {
    const char *folder = getenv(variable);
    return folder && *folder == '/' ? folder : NULL;
}

static void *fl__cuda_open_installed(const char *file) {
    const char *home = fl__cuda_folder_of("CUDA_HOME"), *path = getenv("PATH");
    void *library = dlopen(file, RTLD_NOW | RTLD_GLOBAL);
    if (!library) library = fl__cuda_open_in(home ? home : "/usr/local/cuda", "/lib64/", file);
    if (!library)
        library = fl__cuda_open_in(fl__cuda_folder_of("VIRTUAL_ENV"),
                                   "/lib/python3*/*-packages/nvidia/*/lib/", file);
    for (const char *p = path; p && *p && !library; p += strspn(p, ":")) {
        const size_t n = strcspn(p, ":");
        library = fl__cuda_open_python(p, n, file);
        p += n;
    }
    return library;
}

FL_PRIVATE void *fl__cuda_library_open(const char *file) {
    const char *own = getenv("FL_CUDA_LIBS"), *end = strstr(file, ".so.13");
    char older[64];
    if (own && !strcmp(own, "no")) return NULL;
    snprintf(older, sizeof older, "%.*s.so.12", end ? (int)(end - file) : 0, file);
    void *library = fl__cuda_open_in(own, "/", file);
    if (!library && end) library = fl__cuda_open_in(own, "/", older);
    if (!library) library = fl__cuda_open_installed(file);
    if (!library && end) library = fl__cuda_open_installed(older);
    return library;
}

static bool fl__cuda_load_functions(fl__cuda_library *l) {
    for (int i = 0; i < 2 && l->needs[i]; i++) fl__cuda_library_open(l->needs[i]);
    void *library = fl__cuda_library_open(l->file);
    const char *missing = library ? NULL : l->file;
    for (int i = 0; i < FL__CUDA_FUNCTIONS && l->name[i] && !missing; i++) {
        void *f = dlsym(library, l->name[i]);
        if (!f) missing = l->name[i];
        memcpy((char *)l->functions + (size_t)i * sizeof f, &f, sizeof f);
    }
    if (missing)
        fl_log_message(FL_LOG_WARN, "cuda: %s%s%s is not found (FL_CUDA_LIBS): %s", library ? missing : "",
                       library ? " of " : "", l->file, l->instead);
    return !missing;
}

static int fl__cuda_load_state(fl__cuda_library *l, int device) {
    if (!l->loaded) l->loaded = fl__cuda_load_functions(l) ? 1 : -1;
    const char *why = l->loaded > 0 && l->open ? l->open(&l->handle[device]) : NULL;
    if (why) fl_log_message(FL_LOG_WARN, "cuda: %s: %s: %s", l->opened_by, why, l->instead);
    return why ? -1 : l->loaded;
}

FL_PRIVATE bool fl__cuda_load(fl__cuda_library *l) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const int device = flk_device();
    int *state = &l->state[device];
    if (!__atomic_load_n(state, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&lock);
        if (!*state) __atomic_store_n(state, fl__cuda_load_state(l, device), __ATOMIC_RELEASE);
        pthread_mutex_unlock(&lock);
    }
    return __atomic_load_n(state, __ATOMIC_RELAXED) > 0;
}

#endif
#endif
/* MIT licence: see LICENSE. */
