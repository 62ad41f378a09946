/* literal.h - the struct values that macros make of their arguments, for C and C++ */
#ifndef FL_MEM_LITERAL_H
#define FL_MEM_LITERAL_H

/* C++ has no compound literals, before C++20 no designators, and g++ warns of the fields that designators leave
   out: __extension__ ends the first two warnings, a system header the last. In C none of them is given. */
#ifdef __cplusplus
#pragma GCC system_header
#endif

/* A value of type T with these elements or designated fields. */
#define FL_LITERAL(T, ...) (__extension__(T){__VA_ARGS__})

#endif /* FL_MEM_LITERAL_H */

/* MIT licence: see LICENSE. */
