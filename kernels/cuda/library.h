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

/* Loads the functions of a library into a struct of n pointers, in the order of their names. If the library
   or a function is missing, returns false, after one warning that says what runs instead. */
FL_PRIVATE bool fl__cuda_library(const char *file, const char *instead, const char *const *names,
                                 void *functions, int n);
/* Opens a library, if it exists, on behalf of another one that would search fewer folders. */
FL_PRIVATE void *fl__cuda_library_open(const char *file);
#endif

#if defined(FL_IMPL_ONLY_CUDA_LIBRARY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_LIBRARY_IMPL
#define FL_CUDA_LIBRARY_IMPL
#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
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

FL_PRIVATE bool fl__cuda_library(const char *file, const char *instead, const char *const *names,
                                 void *functions, int n) {
    void *library = fl__cuda_library_open(file);
    const char *missing = library ? NULL : file;
    for (int i = 0; i < n && !missing; i++) {
        void *f = dlsym(library, names[i]);
        if (!f) missing = names[i];
        memcpy((char *)functions + (size_t)i * sizeof f, &f, sizeof f);
    }
    if (missing)
        fl_log_message(FL_LOG_WARN, "cuda: %s%s%s is not found (FL_CUDA_LIBS): %s", library ? missing : "",
                       library ? " of " : "", file, instead);
    return !missing;
}

#endif
#endif
/* MIT licence: see LICENSE. */
