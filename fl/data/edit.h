/* fl/data/edit.h - edit distance: error rates and alignment of token sequences */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_DATA_EDIT_H
#define FL_DATA_EDIT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Levenshtein distance (1966): the fewest edits that turn targets into guesses, summed over all pairs: word,
   letter and phone error rates. Start with {0}. */
typedef struct fl_data_edits {
    int64_t tokens;                              /* of the targets */
    int64_t substitutions, insertions, deletions; /* deletion: a target token missing in the guess */
} fl_data_edits;
/* Of alignments with equally few edits, counts the one that, from the end, prefers a match or substitution,
   then a deletion. Time O(n n_target), memory O(n_target); at most FL_DATA_MAX_EDIT cells. */
FL_API bool fl_data_edits_add(fl_data_edits *m, const int64_t *guess, int64_t n, const int64_t *target,
                              int64_t n_target);
/* guess [n] and target [n_target] of integers. */
FL_API bool fl_data_edits_add_tensor(fl_data_edits *m, fl_tensor *guess, fl_tensor *target);
FL_API void fl_data_edits_merge(fl_data_edits *m, const fl_data_edits *other);
/* 100 (substitutions + insertions + deletions) / tokens; NaN without tokens. */
FL_API double fl_data_edits_percent(const fl_data_edits *m);
#define FL_DATA_MAX_EDIT ((int64_t)1 << 36)

/* Indices of aligned tokens of the guess and the target; -1: the other token has no counterpart. */
typedef struct fl_data_aligned {
    int64_t guess, target;
} fl_data_aligned;
/* Writes the alignment that fl_data_edits_add counts, from the beginning, to out, which has space for n +
   n_target pairs. Returns its length; -1 after fl_fail. Needs (n + 1) (n_target + 1) bytes, at most
   FL_DATA_MAX_ALIGN. */
FL_API int64_t fl_data_align(const int64_t *guess, int64_t n, const int64_t *target, int64_t n_target,
                             fl_data_aligned *out);
#define FL_DATA_MAX_ALIGN ((int64_t)1 << 28)

#ifdef __cplusplus
}
#endif
#endif /* FL_DATA_EDIT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_DATA_EDIT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_DATA_EDIT_IMPL
#define FL_DATA_EDIT_IMPL
#include "meter.h"
#include <math.h>
#include <string.h>

/* A cell of the Wagner-Fischer table (1974) holds the edits of its alignment, so that they are known without
   backtracking. */
typedef struct fl__edit_cell {
    int64_t substitutions, insertions, deletions;
} fl__edit_cell;

enum { FL__EDIT_BOTH, FL__EDIT_DELETE, FL__EDIT_INSERT };

static int64_t fl__edit_cost(const fl__edit_cell *c) {
    return c->substitutions + c->insertions + c->deletions;
}

/* The best of the three predecessors of a cell; returns which one. */
static int fl__edit_step(fl__edit_cell diagonal, fl__edit_cell left, fl__edit_cell up, bool same,
                         fl__edit_cell *out) {
    diagonal.substitutions += !same;
    left.deletions++;
    up.insertions++;
    const int64_t d = fl__edit_cost(&diagonal), l = fl__edit_cost(&left), u = fl__edit_cost(&up);
    const int move = d <= l && d <= u ? FL__EDIT_BOTH : l <= u ? FL__EDIT_DELETE : FL__EDIT_INSERT;
    *out = move == FL__EDIT_BOTH ? diagonal : move == FL__EDIT_DELETE ? left : up;
    return move;
}

/* Fills the table row by row over the guess; row has n_target + 1 cells and ends as the last row. moves, if
   not NULL, has (n + 1) (n_target + 1). */
static void fl__edit_fill(const int64_t *guess, int64_t n, const int64_t *target, int64_t n_target,
                          fl__edit_cell *row, unsigned char *moves) {
    for (int64_t j = 0; j <= n_target; j++) row[j] = (fl__edit_cell){.deletions = j};
    if (moves) memset(moves, FL__EDIT_DELETE, (size_t)n_target + 1);
    for (int64_t i = 1; i <= n; i++) {
        fl__edit_cell diagonal = row[0];
        row[0].insertions = i;
        if (moves) *(moves += n_target + 1) = FL__EDIT_INSERT;
        for (int64_t j = 1; j <= n_target; j++) {
            const fl__edit_cell up = row[j];
            const int move = fl__edit_step(diagonal, row[j - 1], up, guess[i - 1] == target[j - 1], &row[j]);
            if (moves) moves[j] = (unsigned char)move;
            diagonal = up;
        }
    }
}

/* Checks the arguments and the number of cells before anything is allocated. */
static bool fl__edit_fits(const char *who, const int64_t *guess, int64_t n, const int64_t *target,
                          int64_t n_target, int64_t most) {
    int64_t cells;
    if (n < 0 || n_target < 0 || (n && !guess) || (n_target && !target))
        return fl_fail("%s: a sequence is NULL or its length negative", who);
    if (n == INT64_MAX || n_target == INT64_MAX || __builtin_mul_overflow(n + 1, n_target + 1, &cells) ||
        cells > most)
        return fl_fail("%s: sequences of %lld and %lld tokens need too many cells, expected at most %lld",
                       who, (long long)n, (long long)n_target, (long long)most);
    return true;
}

FL_API bool fl_data_edits_add(fl_data_edits *m, const int64_t *guess, int64_t n, const int64_t *target,
                              int64_t n_target) {
    const char *who = "fl_data_edits_add";
    if (!m) return fl_fail("%s: the meter is NULL", who);
    if (!fl__edit_fits(who, guess, n, target, n_target, FL_DATA_MAX_EDIT)) return false;
    fl__edit_cell *row = fl_heap_alloc((size_t)(n_target + 1) * sizeof *row);
    if (!row) return false;
    fl__edit_fill(guess, n, target, n_target, row, NULL);
    m->tokens += n_target;
    m->substitutions += row[n_target].substitutions;
    m->insertions += row[n_target].insertions;
    m->deletions += row[n_target].deletions;
    fl_heap_free(row);
    return true;
}

FL_API bool fl_data_edits_add_tensor(fl_data_edits *m, fl_tensor *guess, fl_tensor *target) {
    if (!m || !guess || !target) return fl_fail("fl_data_edits_add_tensor: an argument is NULL");
    if (guess->ndim != 1 || target->ndim != 1 || fl_dtype_is_float(guess->dtype) ||
        fl_dtype_is_float(target->dtype))
        return fl_fail("fl_data_edits_add_tensor: guess and target must be integers of one dim, got %s %s "
                       "and %s %s", fl_dtype_name(guess->dtype), FL_SHAPE_TEXT(guess),
                       fl_dtype_name(target->dtype), FL_SHAPE_TEXT(target));
    fl_data_host_view x, y;
    bool ok = fl_data_host_begin(&x, guess, FL_I64);
    ok = fl_data_host_begin(&y, target, FL_I64) && ok && fl_data_edits_add(m, x.i, x.n, y.i, y.n);
    fl_data_host_end(&y);
    fl_data_host_end(&x);
    return ok;
}

FL_API void fl_data_edits_merge(fl_data_edits *m, const fl_data_edits *other) {
    if (!fl_given(m, "fl_data_edits_merge", "the meter") ||
        !fl_given(other, "fl_data_edits_merge", "the other meter")) return;
    m->tokens += other->tokens;
    m->substitutions += other->substitutions;
    m->insertions += other->insertions;
    m->deletions += other->deletions;
}

FL_API double fl_data_edits_percent(const fl_data_edits *m) {
    if (!fl_given(m, "fl_data_edits_percent", "the meter")) return NAN;
    return m->tokens ? 100.0 * (double)(m->substitutions + m->insertions + m->deletions) / (double)m->tokens
                     : (double)NAN;
}

FL_API int64_t fl_data_align(const int64_t *guess, int64_t n, const int64_t *target, int64_t n_target,
                             fl_data_aligned *out) {
    if (!fl__edit_fits("fl_data_align", guess, n, target, n_target, FL_DATA_MAX_ALIGN)) return -1;
    const int64_t width = n_target + 1;
    fl__edit_cell *row = fl_heap_alloc((size_t)width * sizeof *row);
    unsigned char *moves = row ? fl_heap_alloc((size_t)((n + 1) * width)) : NULL;
    int64_t length = 0;
    if (moves) {
        fl__edit_fill(guess, n, target, n_target, row, moves);
        for (int64_t i = n, j = n_target; i || j; length++) {
            const int move = moves[i * width + j];
            out[length].guess = move == FL__EDIT_DELETE ? -1 : --i;
            out[length].target = move == FL__EDIT_INSERT ? -1 : --j;
        }
        for (int64_t a = 0, b = length - 1; a < b; a++, b--) {
            const fl_data_aligned pair = out[a];
            out[a] = out[b], out[b] = pair;
        }
    } else length = -1;
    fl_heap_free(moves);
    fl_heap_free(row);
    return length;
}

#endif
#endif

/* MIT licence: see LICENSE. */
