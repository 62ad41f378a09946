/* numbers.h - a small data set, for the tests of sets: include it behind fl_data.h */
#ifndef NUMBERS_H
#define NUMBERS_H

/* x f32 [n, 2] with x[i] = (2i, 2i + 1), and y i64 [n] with y[i] = i. */
static inline fl_data_set *numbers(int64_t n) {
    fl_scope s = fl_scope_begin();
    fl_tensor *t[2] = {fl_reshape(fl_arange(0, 2 * (double)n, 1, FL_F32), FL_SHAPE(n, 2)),
                       fl_arange(0, (double)n, 1, FL_I64)};
    fl_data_set *set = fl_data_tensors(t, 2);
    fl_scope_end(&s);
    return set;
}

#endif
/* MIT licence: see LICENSE. */
