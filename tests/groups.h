/* groups.h - groups of cases, each in a process of its own: a crash costs the rest of its group only */
#ifndef TESTS_GROUPS_H
#define TESTS_GROUPS_H
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct group {
    const char *name; /* of an op, if it has an optional slot */
    void (*run)(int);
    int arg;
} group;

/* The program's arguments behind the backend name groups; none: all are wanted. */
static inline bool group_wanted(const char *name, int argc, char **argv) {
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], name)) return true;
    return argc <= 2;
}

/* run(g) in a forked process, for at most TEST_TIMEOUT seconds, as for the other tests. If it ends early:
   false, and a line with `now`, which both processes share and run keeps up to date. */
static inline bool group_forked(const group *g, void (*run)(const group *), const char *now) {
    const char *limit = getenv("TEST_TIMEOUT");
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(limit ? (unsigned)atoi(limit) : 300);
        run(g);
        fflush(stdout);
        _exit(0);
    }
    int status = 0;
    if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status)) return true;
    printf("  group %s ended early (%s %d) in: %s\n", g->name, WIFSIGNALED(status) ? "signal" : "status",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), now);
    return false;
}

#endif /* MIT licence: see LICENSE. */
