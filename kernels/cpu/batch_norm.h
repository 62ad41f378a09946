/* kernels/cpu/batch_norm.h - batch norm in training, with an optional sum and ReLU after it; group norm

   Two passes over memory forward and two backward, the minimum: sums, then values. Images are planes of one
   channel, or have their channels innermost; all of a record have the same layout. Sums are computed over
   units of fixed size, in parallel, then over a channel's units in order.

   A column is what has its own mean and scale: a channel, or with groups a channel of one image. Group norm
   computes the sums of columns, then those of a group's columns, which get one mean and one variance. f16 and
   bf16 images are widened and rounded unit by unit; everything else is then f32. */
#ifndef FL_CPU_BATCH_NORM_H
#define FL_CPU_BATCH_NORM_H
#include "slots.h"
#include "scratch.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_batch_norm_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_BATCH_NORM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_BATCH_NORM_IMPL
#define FL_CPU_BATCH_NORM_IMPL
#include "../../fl/records/norm.h"
FL__LOOPS_BEGIN

enum {
    FL__BNORM_UNIT = 8192, /* elements of a block of rows, unless the rows are long */
    FL__BNORM_ROWS = 512,  /* most and fewest rows of it */
    FL__BNORM_FEW = 64,
    FL__BNORM_IMAGES = 5   /* most images that a step over units reads and writes */
};

typedef struct fl__bnorm {
    const void *x, *dy, *add;          /* images; NULL if absent */
    void *y, *dx, *dadd;
    const void *w, *b;                 /* one number per column, as in the next two lines */
    void *mean, *var;
    void *scale, *rstd, *mean_of[2];
    void *dw, *db;                     /* one number per channel */
    void *group_mean, *group_var;      /* one number per group of an image */
    void *part;                        /* two numbers per column of each unit */
    int64_t channels, columns;         /* channels: those of a unit; with planes and groups: all columns */
    int64_t width, units, count;       /* width: of a plane; count: values per column */
    int64_t rows, rows_of_unit, units_of_image; /* channels innermost */
    int64_t of_image, groups;          /* channels and groups of an image; 0 groups: batch norm */
    void *running[2];                  /* mean and var, updated if they are not NULL */
    double eps, momentum, unbiased;
    bool last, relu;                   /* last: channels are innermost */
    int64_t origin;                    /* the element at which the images begin */
    fl__loop widen, narrow;            /* for f16 and bf16, or NULL */
    fl__scratch scratch;
    const struct fl__bnorm_kernels *kernels;
} fl__bnorm;

typedef struct fl__bnorm_kernels {
    void (*moments)(const fl__bnorm *s, int64_t unit);
    void (*statistics)(const fl__bnorm *s, int64_t column);
    void (*scales)(const fl__bnorm *s);
    void (*update)(const fl__bnorm *s);
    void (*apply)(const fl__bnorm *s, int64_t unit);
    void (*grad_sums)(const fl__bnorm *s, int64_t unit);
    void (*grad_statistics)(const fl__bnorm *s, int64_t column);
    void (*grad_apply)(const fl__bnorm *s, int64_t unit);
    void (*merge)(const fl__bnorm *s, int64_t group);
    void (*broadcast)(const fl__bnorm *s, int64_t group);
    void (*grad_weights)(const fl__bnorm *s, int64_t channel);
    void (*grad_join)(const fl__bnorm *s, int64_t group);
} fl__bnorm_kernels;

/* The first element of a unit; its rows, with channels innermost; its first column. */
static inline int64_t fl__bnorm_at(const fl__bnorm *s, int64_t unit) {
    const int64_t n = s->units_of_image;
    return (s->last ? (unit / n * s->rows + unit % n * s->rows_of_unit) * s->channels : unit * s->width) -
           s->origin;
}

static inline int64_t fl__bnorm_rows(const fl__bnorm *s, int64_t unit) {
    return fl__min(s->rows_of_unit, s->rows - unit % s->units_of_image * s->rows_of_unit);
}

static inline int64_t fl__bnorm_column(const fl__bnorm *s, int64_t unit) {
    return s->last ? unit / s->units_of_image * s->channels : unit % s->channels;
}

/* The index of a unit's first number in the parts. */
static inline int64_t fl__bnorm_part(const fl__bnorm *s, int64_t unit) {
    return unit * 2 * (s->last ? s->channels : 1);
}

/* The parts of a column: n numbers at first + k step, and their second numbers `second` later; part k sums
   fl__bnorm_size values. */
typedef struct fl__bnorm_iter {
    int64_t n, first, step, second;
} fl__bnorm_iter;

static inline fl__bnorm_iter fl__bnorm_of(const fl__bnorm *s, int64_t column) {
    const int64_t c = s->channels, n = s->units_of_image;
    return s->last ? (fl__bnorm_iter){n, column / c * n * 2 * c + column % c, 2 * c, c}
                   : (fl__bnorm_iter){s->units / c, 2 * column, 2 * c, 1};
}

static inline int64_t fl__bnorm_size(const fl__bnorm *s, int64_t k) {
    return s->last ? fl__bnorm_rows(s, k) : s->width;
}

#define FL__LEVEL_TEXT "batch_norm.inc"
#define FL__UNIT bnorm
#define FL__WITH_F64 FL__ONCE
#include "levels.inc"
static const fl__bnorm_kernels *const fl__bnorm_kernels_of[FL__VARIANTS] = {
    FL__AT_FLOATS(&fl__bnorm_kernels)};

/* Whether t is a number, or has x's dtype and layout. */
static bool fl__bnorm_same_layout(const fl_tensor *t, const fl_tensor *x) {
    bool ok = t->weak || (t->dtype == x->dtype && t->ndim == x->ndim);
    for (int i = 0; ok && !t->weak && i < x->ndim; i++)
        ok = t->shape[i] == x->shape[i] && (t->stride[i] == x->stride[i] || x->shape[i] == 1);
    return ok;
}

/* Whether w is a number, or dense, of the compute dtype: one number per channel. */
static bool fl__bnorm_per_channel(const fl_tensor *w, const fl_tensor *x) {
    return w->weak || (w->dtype == fl_dtype_wide(x->dtype) && fl_is_contiguous(w));
}

/* Whether the kernels take images like x; then fills *s with the sizes. */
static bool fl__bnorm_begin(fl__bnorm *s, const fl_call *c) {
    const fl_batch_norm_args *a = c->args;
    const fl_tensor *x = c->in[0];
    const fl_dtype wide = fl_dtype_wide(x->dtype);
    int64_t numel = fl_numel(x);
    *s = (fl__bnorm){.eps = a->eps, .relu = a->relu, .groups = a->groups, .of_image = x->shape[1],
                     .width = 1};
    s->kernels = fl__bnorm_kernels_of[fl__variant(wide)];
    if (numel == 0 || !s->kernels || (a->groups && a->relu)) return false;
    for (int i = 2; i < x->ndim; i++) s->width *= x->shape[i];
    s->last = fl_is_channels_last(x);
    if (!s->last && !fl_is_contiguous(x)) return false;
    s->columns = a->groups ? x->shape[0] * x->shape[1] : x->shape[1];
    s->channels = s->last ? x->shape[1] : s->columns;
    s->rows = s->count = numel / s->columns;
    int64_t rows = fl__min(FL__BNORM_UNIT / s->channels, FL__BNORM_ROWS);
    s->rows_of_unit = rows > FL__BNORM_FEW ? rows : FL__BNORM_FEW;
    s->units_of_image = fl__ceil_div(s->rows, s->rows_of_unit);
    s->units = s->last ? s->units_of_image * (s->columns / s->channels) : numel / s->width;
    s->x = fl_data(x);
    if (wide != x->dtype) {
        s->widen = fl__cast_loop(x->dtype, wide);
        s->narrow = fl__cast_loop(wide, x->dtype);
    }
    return true;
}

static int64_t fl__bnorm_unit(const fl__bnorm *s) {
    return s->last ? s->rows_of_unit * s->channels : s->width;
}

/* Allocates n rows of one number per column, the parts, and for f16 and bf16 units of the images. */
static bool fl__bnorm_open(fl__bnorm *s, int64_t size, void **row[], int n, const char *op) {
    const int64_t space = n * s->columns + 2 * s->units * (s->last ? s->channels : 1);
    if (!fl__scratch_open(&s->scratch, s->units, s->widen ? FL__BNORM_IMAGES * fl__bnorm_unit(s) * size : 0,
                          space * size, op))
        return false;
    for (int i = 0; i < n; i++) *row[i] = s->scratch.shared + i * s->columns * size;
    s->part = s->scratch.shared + n * s->columns * size;
    return true;
}

/* A tensor's numbers, repeated for each image with groups, or `row` filled with the number that it is. */
static const void *fl__bnorm_row(const fl__bnorm *s, const fl_tensor *w, fl_dtype d, void *row) {
    const int64_t size = (int64_t)fl_dtype_size(d);
    uint64_t bits = w->weak ? fl__weak_bits(w, d) : 0;
    if (!w->weak && !s->groups) return fl_data(w);
    if (w->weak) fl__fill_row(row, (const char *)&bits, s->columns, (int)size);
    for (int64_t i = 0; !w->weak && i < s->columns; i += s->of_image)
        memcpy((char *)row + i * size, fl_data(w), (size_t)(s->of_image * size));
    return row;
}

/* A step over units, columns, channels or groups; writes: it writes images. */
typedef struct fl__bnorm_step {
    const fl__bnorm *s;
    void (*run)(const fl__bnorm *s, int64_t i);
    bool writes;
} fl__bnorm_step;

static void fl__bnorm_task(void *arg, int64_t begin, int64_t end) {
    const fl__bnorm_step *step = arg;
    for (int64_t i = begin; i < end; i++) step->run(step->s, i);
}

/* An f16 or bf16 image at p, widened: the next unit of the workspace, with the unit's elements if they are
   read. */
static float *fl__bnorm_widened(const fl__bnorm *s, const void *p, float **space, int64_t at, int64_t n,
                                bool read) {
    float *to = *space;
    if (!p) return NULL;
    *space += fl__bnorm_unit(s);
    if (read) s->widen((void *[]){to, (uint16_t *)(uintptr_t)p + at}, n, NULL);
    return to;
}

/* A unit of f16 or bf16. Steps that write no image read x alone, or also dy. */
static void fl__bnorm_narrow(const fl__bnorm_step *step, int64_t unit) {
    const fl__bnorm *s = step->s;
    const int64_t at = fl__bnorm_at(s, unit), n = s->last ? fl__bnorm_rows(s, unit) * s->channels : s->width;
    const bool back = s->dy != NULL;
    char *workspace = fl__scratch_take(&s->scratch);
    float *space = (float *)(void *)workspace;
    fl__bnorm w = *s;
    w.origin = at;
    w.x = fl__bnorm_widened(s, s->x, &space, at, n, true);
    w.dy = fl__bnorm_widened(s, s->dy, &space, at, n, true);
    w.y = fl__bnorm_widened(s, s->y, &space, at, n, back);
    if (step->writes) {
        w.add = fl__bnorm_widened(s, s->add, &space, at, n, true);
        w.dx = fl__bnorm_widened(s, s->dx, &space, at, n, false);
        w.dadd = fl__bnorm_widened(s, s->dadd, &space, at, n, false);
    }
    step->run(&w, unit);
    void *const from[] = {w.y, w.dx, w.dadd}, *const to[] = {s->y, s->dx, s->dadd};
    for (int i = back; step->writes && i < (back ? 3 : 1); i++)
        if (to[i]) s->narrow((void *[]){(uint16_t *)to[i] + at, from[i]}, n, NULL);
    fl__scratch_give_back(&s->scratch, workspace);
}

static void fl__bnorm_narrow_task(void *arg, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) fl__bnorm_narrow(arg, i);
}

/* Runs a step over all units; writes: it writes images. */
static void fl__bnorm_units(const fl__bnorm *s, void (*run)(const fl__bnorm *s, int64_t unit), bool writes) {
    fl_parallel(s->units, fl__ceil_div(FL__GRAIN, fl__bnorm_unit(s)),
                s->widen ? fl__bnorm_narrow_task : fl__bnorm_task, &(fl__bnorm_step){s, run, writes});
}

/* Runs a step over n columns, channels or groups, of `values` values each. */
static void fl__bnorm_each(const fl__bnorm *s, int64_t n, int64_t values,
                           void (*run)(const fl__bnorm *s, int64_t i)) {
    fl_parallel(n, fl__ceil_div(FL__GRAIN / 4, values), fl__bnorm_task, &(fl__bnorm_step){s, run, false});
}

static void fl__bnorm_columns(const fl__bnorm *s, void (*run)(const fl__bnorm *s, int64_t i)) {
    fl__bnorm_each(s, s->columns, s->last ? s->units_of_image : s->units / s->channels, run);
}

static void fl__bnorm_groups(const fl__bnorm *s, void (*run)(const fl__bnorm *s, int64_t i)) {
    fl__bnorm_each(s, s->columns / s->of_image * s->groups, s->of_image / s->groups, run);
}

/* Sets mean and var of the record, per group or per column. */
static void fl__bnorm_statistics(fl__bnorm *s, void *mean, void *var) {
    *(s->groups ? &s->group_mean : &s->mean) = mean;
    *(s->groups ? &s->group_var : &s->var) = var;
}

/* Sets mean and var to those in statistics [2, c]. */
static void fl__bnorm_both(fl__bnorm *s, const fl_tensor *statistics) {
    s->mean = fl_data(statistics);
    s->var = (char *)s->mean + (size_t)s->columns * fl_dtype_size(statistics->dtype);
}

static bool fl__cpu_batch_statistics(const fl_backend *self, const fl_call *c) {
    fl__bnorm s;
    (void)self;
    if (!fl__bnorm_begin(&s, c)) return fl_call_compose(c);
    const int64_t size = (int64_t)fl_dtype_size(c->out[0]->dtype);
    if (!fl_out_make(c->out[0]) || !fl__bnorm_open(&s, size, NULL, 0, "batch_statistics")) return false;
    fl__bnorm_both(&s, c->out[0]);
    fl__bnorm_units(&s, s.kernels->moments, false);
    fl__bnorm_columns(&s, s.kernels->statistics);
    fl__scratch_close(&s.scratch);
    return true;
}

static bool fl__bnorm_forward(fl__bnorm *s, const fl_call *c) {
    const fl_dtype d = fl_dtype_wide(c->in[0]->dtype);
    void *w, *b;
    if (!fl__bnorm_open(s, (int64_t)fl_dtype_size(d),
                        (void **[]){&w, &b, &s->scale, &s->rstd, &s->mean, &s->var}, 6, "batch_norm"))
        return false;
    if (c->n_in == 8) fl__bnorm_both(s, c->in[4]);
    else
        fl__bnorm_statistics(s, fl_data(c->n_in == 4 ? c->out[1] : c->in[4]),
                             fl_data(c->n_in == 4 ? c->out[2] : c->in[5]));
    s->w = fl__bnorm_row(s, c->in[1], d, w);
    s->b = fl__bnorm_row(s, c->in[2], d, b);
    if (c->n_in == 4) {
        fl__bnorm_units(s, s->kernels->moments, false);
        fl__bnorm_columns(s, s->kernels->statistics);
        if (s->groups) fl__bnorm_groups(s, s->kernels->merge);
    }
    if (s->groups) fl__bnorm_groups(s, s->kernels->broadcast);
    s->kernels->scales(s);
    fl__bnorm_units(s, s->kernels->apply, true);
    if (c->n_in == 8) s->kernels->update(s);
    if (c->n_in == 8 && c->out[3]) ++*(int64_t *)fl_data(c->out[3]);
    fl__scratch_close(&s->scratch);
    return true;
}

static bool fl__cpu_batch_norm(const fl_backend *self, const fl_call *c) {
    const fl_tensor *x = c->in[0], *add = c->in[3];
    fl__bnorm s;
    (void)self;
    bool ok = fl__bnorm_begin(&s, c) && fl__bnorm_same_layout(add, x) &&
              fl__bnorm_same_layout(c->out[0], x) && !(add->weak && add->f64 != 0);
    for (int i = 1; ok && i < c->n_in && i < 7; i++) ok = i == 3 || fl__bnorm_per_channel(c->in[i], x);
    if (!ok) return fl_call_compose(c);
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i] && !fl_out_make(c->out[i])) return false;
    if (c->n_in == 8) {
        const fl_batch_norm_args *a = c->args;
        s.running[0] = fl_data(c->out[1]), s.running[1] = fl_data(c->out[2]);
        s.momentum = a->momentum, s.unbiased = a->unbiased;
    }
    s.add = add->weak ? NULL : fl_data(add);
    s.y = fl_data(c->out[0]);
    return fl__bnorm_forward(&s, c);
}

static bool fl__bnorm_backward(fl__bnorm *s, const fl_call *c) {
    const fl_dtype d = fl_dtype_wide(c->in[0]->dtype);
    void *w;
    if (!fl__bnorm_open(s, (int64_t)fl_dtype_size(d),
                        (void **[]){&w, &s->scale, &s->rstd, &s->mean_of[0], &s->mean_of[1], &s->mean,
                                    &s->var}, 7, "batch_norm_grad"))
        return false;
    fl__bnorm_statistics(s, fl_data(c->in[2]), fl_data(c->in[3]));
    s->w = fl__bnorm_row(s, c->in[1], d, w);
    if (s->groups) fl__bnorm_groups(s, s->kernels->broadcast);
    s->kernels->scales(s);
    fl__bnorm_units(s, s->kernels->grad_sums, false);
    fl__bnorm_columns(s, s->kernels->grad_statistics);
    if (s->groups) {
        fl__bnorm_each(s, s->of_image, s->columns / s->of_image, s->kernels->grad_weights);
        fl__bnorm_groups(s, s->kernels->grad_join);
    }
    if (s->dx || s->dadd) fl__bnorm_units(s, s->kernels->grad_apply, true);
    fl__scratch_close(&s->scratch);
    return true;
}

static bool fl__cpu_batch_norm_grad(const fl_backend *self, const fl_call *c) {
    const fl_tensor *x = c->in[0], *y = c->in[4], *dy = c->in[5];
    fl__bnorm s;
    (void)self;
    bool ok = fl__bnorm_begin(&s, c) && !dy->weak && fl__bnorm_same_layout(dy, x) &&
              fl__bnorm_same_layout(y, x) && s.relu == !y->weak;
    for (int i = 1; ok && i < 4; i++) ok = fl__bnorm_per_channel(c->in[i], x);
    for (int i = 0; ok && i < 4; i += 3) ok = !c->out[i] || fl__bnorm_same_layout(c->out[i], x);
    if (!ok) return fl_call_compose(c);
    void **out[] = {&s.dx, &s.dw, &s.db, &s.dadd};
    for (int i = 0; i < 4; i++) {
        if (!c->out[i]) continue;
        if (!fl_out_make(c->out[i])) return false;
        *out[i] = fl_data(c->out[i]);
    }
    s.y = y->weak ? NULL : fl_data(y);
    s.dy = fl_data(dy);
    return fl__bnorm_backward(&s, c);
}

FL_PRIVATE void fl__cpu_batch_norm_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_batch_statistics, fl__cpu_batch_statistics, FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_batch_norm, fl__cpu_batch_norm, FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_batch_norm_grad, fl__cpu_batch_norm_grad, FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_group_norm, fl__cpu_batch_norm, FL_SLOT_NARROW);
    fl_backend_set(cpu, fl_op_group_norm_grad, fl__cpu_batch_norm_grad, FL_SLOT_NARROW);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
