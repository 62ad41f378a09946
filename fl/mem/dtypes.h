/* fl/mem/dtypes.h - element types: sizes, names, promotion to compute types, registered block formats */
#ifndef FL_MEM_DTYPES_H
#define FL_MEM_DTYPES_H
#include "build.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. FL_DTYPE_NONE (0) means "the default" wherever a dtype is an option. */
typedef enum fl_dtype {
    FL_DTYPE_NONE,
    FL_B8,  /* truth value, one byte, 0 or 1 */
    FL_U8,
    FL_I8,
    FL_I16,
    FL_I32,
    FL_I64, /* the default integer */
    FL_U16,
    FL_U32,
    FL_U64, /* storage, casts, comparisons, and arithmetic that is exact modulo 2^64: add sub mul neg,
               maximum minimum, bitwise_*, shift_left */
    FL_F16,  /* IEEE binary16 */
    FL_BF16, /* the upper half of an f32 */
    FL_F32,  /* the default float */
    FL_F64,
    FL_DTYPE_COUNT
} fl_dtype;
/* A registered dtype, such as a quantised block format: each element of `size` bytes packs `block` numbers,
   along a tensor's last axis. Tensors of it can be created (fl_full), stored, viewed, copied, gathered from
   (fl_index_select), cast from and to floats, and used by fl_matmul and fl_linear; other ops report an error
   that asks for a cast. n counts blocks. */
typedef struct fl_dtype_info {
    const char *name; /* a string literal: the pointer is stored */
    size_t size;
    int block;
    void (*unpack)(const void *blocks, float *numbers, int64_t n);
    void (*pack)(const float *numbers, void *blocks, int64_t n); /* NULL: casts to this dtype are errors */
} fl_dtype_info;
/* Registers a dtype, or returns the existing one of that name. FL_DTYPE_NONE with an error if a field is
   missing or 64 are registered already. Thread-safe. */
FL_API fl_dtype fl_dtype_register(const fl_dtype_info *info);
/* The description of a registered dtype; NULL (no error) for built-in and unknown ones. */
FL_API const fl_dtype_info *fl_dtype_registered(fl_dtype d);
/* Bytes of one element; 0 for an unknown dtype. */
FL_API size_t fl_dtype_size(fl_dtype d);
/* "f32", "i64", ...; "?" for an unknown dtype. */
FL_API const char *fl_dtype_name(fl_dtype d);
/* The dtype of that name; FL_DTYPE_NONE (no error) if it is unknown or NULL. */
FL_API fl_dtype fl_dtype_by_name(const char *name);
/* True for f16, bf16, f32 and f64. */
FL_API bool fl_dtype_is_float(fl_dtype d);
/* The compute type of d: f32 for f16, bf16 and registered dtypes, i64 for integers, otherwise d. */
FL_API fl_dtype fl_dtype_wide(fl_dtype d);

#ifdef __cplusplus
}
#endif
#endif /* FL_MEM_DTYPES_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_MEM_DTYPES) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#if !defined(FL_MEM_DTYPES_IMPL) && (defined(FL__MEM_DECLARED) || defined(FL_IMPL_ONLY))
#define FL_MEM_DTYPES_IMPL
#include "shared.h"
#include "errors.h"
#include <string.h>

static const struct {
    const char *name;
    size_t size;
    fl_dtype wide;
} fl__dtypes[FL_DTYPE_COUNT] = {
    [FL_B8] = {"b8", 1, FL_B8},     [FL_U8] = {"u8", 1, FL_I64},     [FL_I8] = {"i8", 1, FL_I64},
    [FL_I16] = {"i16", 2, FL_I64},  [FL_I32] = {"i32", 4, FL_I64},   [FL_I64] = {"i64", 8, FL_I64},
    [FL_U16] = {"u16", 2, FL_I64},  [FL_U32] = {"u32", 4, FL_I64},   [FL_U64] = {"u64", 8, FL_I64},
    [FL_F16] = {"f16", 2, FL_F32},  [FL_BF16] = {"bf16", 2, FL_F32}, [FL_F32] = {"f32", 4, FL_F32},
    [FL_F64] = {"f64", 8, FL_F64},
};

enum { FL__OWN_DTYPES = 64 };
static fl_dtype_info fl__own_dtypes[FL__OWN_DTYPES]; /* dtype FL_DTYPE_COUNT and up */
static int fl__n_own_dtypes;                         /* entries below this index never change */

FL_API const fl_dtype_info *fl_dtype_registered(fl_dtype d) {
    /* d may be any number (ranks receive it), so compare before the subtraction, which could overflow */
    if ((int)d < FL_DTYPE_COUNT) return NULL;
    int i = (int)d - FL_DTYPE_COUNT;
    return i < __atomic_load_n(&fl__n_own_dtypes, __ATOMIC_ACQUIRE) ? &fl__own_dtypes[i] : NULL;
}

FL_API fl_dtype fl_dtype_register(const fl_dtype_info *info) {
    if (!info || !info->name || info->size < 1 || info->block < 1 || !info->unpack) {
        fl_fail("fl_dtype_register: a name, a size, a block and unpack are required");
        return FL_DTYPE_NONE;
    }
    pthread_mutex_lock(&fl__lock);
    fl_dtype d = fl_dtype_by_name(info->name);
    bool full = fl__n_own_dtypes == FL__OWN_DTYPES;
    if (d == FL_DTYPE_NONE && !full) {
        fl__own_dtypes[fl__n_own_dtypes] = *info;
        d = (fl_dtype)(FL_DTYPE_COUNT + fl__n_own_dtypes);
        __atomic_store_n(&fl__n_own_dtypes, fl__n_own_dtypes + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&fl__lock);
    if (d == FL_DTYPE_NONE)
        fl_fail("fl_dtype_register: cannot register '%s': the limit of %d dtypes is reached", info->name,
                FL__OWN_DTYPES);
    return d;
}

FL_API size_t fl_dtype_size(fl_dtype d) {
    if ((unsigned)d < FL_DTYPE_COUNT) return fl__dtypes[d].size;
    const fl_dtype_info *own = fl_dtype_registered(d);
    return own ? own->size : 0;
}

FL_API const char *fl_dtype_name(fl_dtype d) {
    if (d > FL_DTYPE_NONE && d < FL_DTYPE_COUNT) return fl__dtypes[d].name;
    const fl_dtype_info *own = fl_dtype_registered(d);
    return own ? own->name : "?";
}

FL_API fl_dtype fl_dtype_by_name(const char *name) {
    for (int d = FL_DTYPE_NONE + 1; name && d < FL_DTYPE_COUNT; d++)
        if (!strcmp(name, fl__dtypes[d].name)) return (fl_dtype)d;
    for (int i = 0; name && i < __atomic_load_n(&fl__n_own_dtypes, __ATOMIC_ACQUIRE); i++)
        if (!strcmp(name, fl__own_dtypes[i].name)) return (fl_dtype)(FL_DTYPE_COUNT + i);
    return FL_DTYPE_NONE;
}

FL_API bool fl_dtype_is_float(fl_dtype d) {
    return d >= FL_F16 && d <= FL_F64;
}

FL_API fl_dtype fl_dtype_wide(fl_dtype d) {
    if ((unsigned)d < FL_DTYPE_COUNT) return fl__dtypes[d].wide;
    return fl_dtype_registered(d) ? FL_F32 : FL_DTYPE_NONE;
}

#endif
#endif

/* MIT licence: see LICENSE. */
