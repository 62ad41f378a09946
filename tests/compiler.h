/* tests/compiler.h - whether there is a compiler that fl_compile can use */
#ifndef TEST_COMPILER_H
#define TEST_COMPILER_H
#include <stdlib.h>

static inline bool test_has_compiler(void) {
    return !system("cc --version > /dev/null 2>&1");
}
#define NEEDS_COMPILER \
    if (!test_has_compiler()) SKIP("a C compiler called cc")

#endif
/* MIT licence: see LICENSE. */
