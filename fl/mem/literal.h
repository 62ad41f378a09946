/* fl/mem/literal.h - FL_LITERAL: compound literals that compile as C and as C++ */
#ifndef FL_MEM_LITERAL_H
#define FL_MEM_LITERAL_H

/* C++ has no compound literals and, before C++20, no designators; g++ also warns of fields that designators
   omit. __extension__ silences the first two warnings, the system header pragma the last. C needs
   neither. */
#ifdef __cplusplus
#pragma GCC system_header
#endif

/* A value of type T from elements or designated fields. */
#define FL_LITERAL(T, ...) (__extension__(T){__VA_ARGS__})

#endif /* FL_MEM_LITERAL_H */

/* MIT licence: see LICENSE. */
