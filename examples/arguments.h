/* examples/arguments.h - command-line parsing for the example programs, from a table of arguments

   Not part of the library. */
#ifndef EXAMPLES_ARGUMENTS_H
#define EXAMPLES_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --name value, which is a text or a number, or a switch, --name. A table ends with a NULL name. */
typedef struct argument {
    const char *name; /* without the dashes */
    const char **text;
    int64_t *whole;
    double *number, low, high; /* limits of whole and number; both 0: none */
    bool *on;
    const char *about; /* a line of --help; NULL: none */
} argument;

/* If --help or -h is among the arguments: prints "usage: program `usage`" (NULL: that of the table), then the
   table's arguments (NULL: none) with their limits and default values, and ends the program. */
static inline void arguments_help(int argc, char **argv, const char *usage, const argument *table) {
    bool wanted = false;
    for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
    if (!wanted) return;
    const char *slash = strrchr(argv[0], '/');
    const bool any = table && table->name;
    if (!usage) usage = any ? "[--name value ...]" : "(no arguments)";
    printf("usage: %s %s\n", slash ? slash + 1 : argv[0], usage);
    for (const argument *a = table; any && a->name; a++) {
        char name[64];
        snprintf(name, sizeof name, "--%s%s", a->name, a->on ? "" : a->text ? " TEXT" : " N");
        printf("  %-20s", name);
        if (a->about) printf(" %s", a->about);
        if (a->low != 0 || a->high != 0) printf(" (%g to %g)", a->low, a->high);
        if (a->text && *a->text && **a->text) printf(" [%s]", *a->text);
        if (a->whole && *a->whole) printf(" [%lld]", (long long)*a->whole);
        if (a->number && *a->number == *a->number && *a->number != 0) printf(" [%g]", *a->number);
        putchar('\n');
    }
    exit(0);
}

static inline bool argument_number(const char *program, const argument *a, const char *value) {
    char *end;
    const double v = strtod(value, &end);
    const bool limits = a->low != 0 || a->high != 0, is_number = *value && !*end && v == v;
    const bool is_whole = is_number && v >= -9e15 && v <= 9e15 && (double)(int64_t)v == v;
    if ((a->whole ? is_whole : is_number) && (!limits || (v >= a->low && v <= a->high))) {
        if (a->whole) *a->whole = (int64_t)v;
        else *a->number = v;
        return true;
    }
    fprintf(stderr, "%s: --%s %s is not a %snumber", program, a->name, value, a->whole ? "whole " : "");
    if (limits) fprintf(stderr, " from %g to %g", a->low, a->high);
    fputc('\n', stderr);
    return false;
}

/* Sets what argv[1] and the following ones say; false after a text on stderr that names argv[0]. --help ends
   the program. A program without arguments has a table without rows. */
static inline bool arguments_read(int argc, char **argv, const argument *table) {
    arguments_help(argc, argv, NULL, table);
    for (int i = 1; i < argc; i++) {
        const argument *a = table;
        while (a->name && (strncmp(argv[i], "--", 2) || strcmp(argv[i] + 2, a->name))) a++;
        if (a->name && a->on) {
            *a->on = true;
        } else if (a->name && i + 1 < argc) {
            const char *value = argv[++i];
            if (a->text) *a->text = value;
            else if (!argument_number(argv[0], a, value)) return false;
        } else {
            const char *what = a->name ? "wants a value" : "is not an argument";
            fprintf(stderr, "%s: %s %s\narguments:", argv[0], argv[i], what);
            for (a = table; a->name; a++)
                fprintf(stderr, " --%s%s", a->name, a->on ? "" : a->text ? " TEXT" : " N");
            fputc('\n', stderr);
            return false;
        }
    }
    return true;
}

#endif
/* MIT licence: see LICENSE. */
