/* kernels/cpu/step.h - optimizer steps: any rule of fl/ops/step.h, one pass over the tensors, in place

   A rule is constant-folded before the pass: whatever depends on numbers alone is computed here, once, in
   f64; what remains is a program of tensors and constants for the executor (formula.h). */
#ifndef FL_CPU_STEP_H
#define FL_CPU_STEP_H
#include "../../fl/records/step.h"
#include "slots.h"
#include "formula.h"
#include "primitives.h"
/* Registers the slots of this file. */
FL_PRIVATE void fl__cpu_step_slots(fl_backend *cpu);
#endif

#if defined(FL_IMPL_ONLY_CPU_STEP) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CPU_STEP_IMPL
#define FL_CPU_STEP_IMPL
FL__LOOPS_BEGIN

/* A value that does not depend on tensors: a number, or a condition in the first byte. */
typedef union fl__cell {
    double number;
    bool condition;
} fl__cell;

typedef struct fl__folding {
    fl_formula f;                       /* the remaining program */
    bool known[FL_FORMULA_OPERANDS];      /* the place has a known value, cell[], instead of a tensor's block */
    fl__cell cell[FL_FORMULA_OPERANDS];
    uint8_t alias[FL_FORMULA_OPERANDS];   /* the place is an alias of this one */
    int shift;                          /* of outputs: 1 if a narrow copy comes first */
} fl__folding;

/* The place of a constant of that value, added if new; -1 if there are too many. */
static int fl__fold_constant(fl_formula *f, double value) {
    int i = 0;
    while (i < f->n_constants && memcmp(&f->constant[i], &value, sizeof value)) i++;
    if (i == FL_FORMULA_CONSTANTS) return -1;
    f->constant[i] = value;
    if (i == f->n_constants) f->n_constants++;
    return FL_FORMULA_CONSTANT + i;
}

static uint8_t fl__fold_place(const fl__folding *w, int place) {
    const bool output = place >= FL_FORMULA_OUTPUT && place < FL_FORMULA_CONSTANT;
    return (uint8_t)(place + (output ? w->shift : 0));
}

static bool fl__fold_emit(fl__folding *w, fl_formula_step s, int operands) {
    for (int k = 0; k < operands; k++) {
        const int place = w->known[s.in[k]] ? fl__fold_constant(&w->f, w->cell[s.in[k]].number)
                                            : fl__fold_place(w, w->alias[s.in[k]]);
        if (place < 0) return fl_fail("fl_step: the rule needs more than %d constants", FL_FORMULA_CONSTANTS);
        s.in[k] = (uint8_t)place;
    }
    w->known[s.to] = false;
    w->alias[s.to] = s.to;
    s.to = fl__fold_place(w, s.to);
    w->f.step[w->f.n_steps++] = s;
    return true;
}

/* Whether the place that step i of f writes can be an alias of x as long as it is read: not if x is written
   before. */
static bool fl__fold_can_alias(const fl_step_args *rule, int i, int x) {
    const fl_formula *f = &rule->program;
    const int y = f->step[i].to, tensors = rule->n_reads + rule->n_writes;
    const bool in_place = x >= rule->n_reads && x < tensors; /* outputs are the same memory */
    bool lost = false;
    while (++i < f->n_steps) {
        const fl_formula_step *s = &f->step[i];
        for (int k = 0; k < fl_primitive_operands((fl_primitive)s->primitive); k++)
            if (s->in[k] == y && lost) return false;
        if (s->to == y) return true;
        lost |= s->to == x || (in_place && s->to >= FL_FORMULA_OUTPUT);
    }
    for (i = 0; i < f->n_out; i++)
        if (f->out[i] == y && lost) return false;
    return true;
}

/* Step i is y = x: copies the known value, makes y an alias, or emits a step with the bits of x. */
static bool fl__fold_copy(fl__folding *w, const fl_step_args *rule, int i, int x) {
    const int y = rule->program.step[i].to;
    if ((w->known[y] = w->known[x])) {
        w->cell[y] = w->cell[x];
        return true;
    }
    if (fl__fold_can_alias(rule, i, w->alias[x])) {
        w->alias[y] = w->alias[x];
        return true;
    }
    const fl_formula_step same = {FL_PRIMITIVE_maximum, 0, (uint8_t)y, {(uint8_t)x, (uint8_t)x, 0}};
    return fl__fold_emit(w, same, 2);
}

static bool fl__fold_step(fl__folding *w, const fl_step_args *rule, int i) {
    const fl_formula_step s = rule->program.step[i];
    const int operands = fl_primitive_operands((fl_primitive)s.primitive);
    fl__cell *const x = w->cell;
    int known = 0;
    for (int k = 0; k < operands; k++) known += w->known[s.in[k]];
    if (known == operands) {
        fl__cell y = {0};
        fl__loop loop = fl__primitive_loop((fl_primitive)s.primitive, s.logical ? FL_B8 : FL_F64);
        loop((void *[]){&y, &x[s.in[0]], &x[s.in[1]], &x[s.in[2]]}, 1, NULL);
        x[s.to] = y;
        return w->known[s.to] = true;
    }
    if (s.primitive == FL_PRIMITIVE_where && w->known[s.in[0]])
        return fl__fold_copy(w, rule, i, s.in[x[s.in[0]].condition ? 1 : 2]);
    for (int k = 0; k < 2 && s.primitive == FL_PRIMITIVE_mul; k++)
        if (w->known[s.in[k]] && x[s.in[k]].number == 1) return fl__fold_copy(w, rule, i, s.in[1 - k]);
    return fl__fold_emit(w, s, operands);
}

/* The place of a constant of f among those of `used`; other places are unchanged. */
static uint8_t fl__fold_move(const fl_formula *f, fl_formula *used, uint8_t place) {
    return place < FL_FORMULA_CONSTANT
               ? place
               : (uint8_t)fl__fold_constant(used, f->constant[place - FL_FORMULA_CONSTANT]);
}

/* Dead code elimination: drops steps whose results are not read, branches not taken, and unused constants. */
static void fl__fold_prune(fl_formula *f) {
    fl_formula used = *f;
    bool read[FL_FORMULA_OPERANDS] = {false}, keep[FL_FORMULA_STEPS];
    for (int i = 0; i < f->n_out; i++) read[f->out[i]] = true;
    for (int i = f->n_steps; i-- > 0;) {
        const fl_formula_step *s = &f->step[i];
        if (!(keep[i] = read[s->to])) continue;
        read[s->to] = false;
        for (int k = 0; k < fl_primitive_operands((fl_primitive)s->primitive); k++) read[s->in[k]] = true;
    }
    used.n_steps = used.n_constants = 0;
    for (int i = 0; i < f->n_steps; i++) {
        fl_formula_step s = f->step[i];
        if (!keep[i]) continue;
        for (int k = 0; k < fl_primitive_operands((fl_primitive)s.primitive); k++)
            s.in[k] = fl__fold_move(f, &used, s.in[k]);
        used.step[used.n_steps++] = s;
    }
    for (int i = 0; i < f->n_out; i++) used.out[i] = fl__fold_move(f, &used, f->out[i]);
    *f = used;
}

/* Folds rule with these numbers; w->f is the remaining program. */
static bool fl__fold_rule(fl__folding *w, const fl_step_args *rule, const double *number, int shift) {
    const fl_formula *f = &rule->program;
    const int tensors = rule->n_reads + rule->n_writes;
    memset(w, 0, sizeof *w);
    w->shift = shift;
    for (int i = 0; i < FL_FORMULA_OPERANDS; i++) w->alias[i] = (uint8_t)i;
    for (int i = tensors; i < f->n_in; i++) {
        w->known[i] = true;
        w->cell[i].number = number[i - tensors];
    }
    for (int i = 0; i < f->n_constants; i++) {
        w->known[FL_FORMULA_CONSTANT + i] = true;
        w->cell[FL_FORMULA_CONSTANT + i].number = f->constant[i];
    }
    for (int i = 0; i < f->n_steps; i++)
        if (!fl__fold_step(w, rule, i)) return false;
    w->f.n_in = (uint8_t)tensors;
    w->f.n_out = (uint8_t)(f->n_out + shift);
    w->f.n_registers = f->n_registers;
    w->f.reads = f->reads & ((1u << tensors) - 1);
    for (int i = 0; i < w->f.n_out; i++) {
        const int place = f->out[i < shift ? 0 : i - shift];
        const int at = w->known[place] ? fl__fold_constant(&w->f, w->cell[place].number)
                                       : fl__fold_place(w, w->alias[place]);
        if (at < 0) return fl_fail("fl_step: the rule needs more than %d constants", FL_FORMULA_CONSTANTS);
        w->f.out[i] = (uint8_t)at;
    }
    fl__fold_prune(&w->f);
    return true;
}

/* The argument of a pass's loop, whose operands are the reads, a narrow output, the writes. It is cached with
   its key, as the next parameter nearly always has the same numbers. */
typedef struct fl__step_job {
    fl__executor e;
    fl__loop loop; /* that runs e, and its argument */
    const void *arg;
    fl__folding w;
    int reads, outputs, shift;
    fl_step_args rule; /* a copy: the record's memory may be reused by the next step */
    double number[FL_FORMULA_INPUTS];
    fl_dtype wide;
    fl__loop level; /* the loop of an addition identifies the current level */
    _Alignas(FL_ALIGN) char rows[FL__FORMULA_MEMORY];
} fl__step_job;

/* Compares the used part of the programs, a small part of the structs. */
static bool fl__step_same(const fl_step_args *a, const fl_step_args *b) {
    const fl_formula *f = &a->program;
    const size_t bytes = (size_t)((const char *)&f->step[f->n_steps] - (const char *)a);
    return !memcmp(a, b, bytes) &&
           !memcmp(f->constant, b->program.constant, f->n_constants * sizeof *f->constant);
}

/* Whether the numbers that the program reads are those of the job; unread ones, such as a step count, may
   differ. */
static bool fl__step_same_numbers(const fl__step_job *job, const double *number) {
    unsigned reads = job->rule.program.reads >> (job->rule.n_reads + job->rule.n_writes);
    for (int i = 0; reads >> i; i++)
        if (reads >> i & 1 && memcmp(&job->number[i], &number[i], sizeof *number)) return false;
    return true;
}

static fl__step_job *fl__step_prepare(const fl_call *c, const fl_step_args *rule, const double *number,
                                      fl_dtype wide) {
    static _Thread_local fl__step_job job;
    const int shift = c->n_out - rule->n_writes;
    const size_t bytes = (size_t)(rule->program.n_in - rule->n_reads - rule->n_writes) * sizeof *number;
    const fl__loop level = fl__primitive_loop(FL_PRIMITIVE_add, wide);
    job.e.streaming = false;
    if (job.wide == wide && job.shift == shift && job.level == level &&
        fl__step_same(&job.rule, rule) && fl__step_same_numbers(&job, number))
        return &job;
    job.wide = FL_DTYPE_NONE;
    if (!fl__fold_rule(&job.w, rule, number, shift)) return NULL;
    if (!fl__executor_begin(&job.e, &job.w.f, wide)) return fl__no_kernel(c, wide), NULL;
    fl__executor_fill(&job.e, job.rows);
    memcpy(job.number, number, bytes);
    job.reads = rule->n_reads;
    job.outputs = c->n_out;
    job.shift = shift;
    job.wide = wide;
    job.level = level;
    memcpy(&job.rule, rule, sizeof *rule); /* including padding, which fl__step_same compares */
    return &job;
}

static void fl__step_loop(void *const p[], int64_t n, const void *arg) {
    const fl__step_job *j = arg;
    void *at[FL_FORMULA_OUTPUTS + FL__OPERANDS];
    int k = 0;
    for (int i = 0; i < j->outputs; i++) at[k++] = p[j->reads + i];
    for (int i = 0; i < j->reads; i++) at[k++] = p[i];
    for (int i = j->shift; i < j->outputs; i++) at[k++] = p[j->reads + i];
    j->loop(at, n, j->arg);
}

/* Reads the numbers that follow the tensors of the record; returns false if the first one skips the step. */
static bool fl__step_numbers(const fl_call *c, const fl_step_args *rule, double *number) {
    const double *first = number;
    for (int i = rule->n_reads + rule->n_writes; i < c->n_in; i++) {
        const fl_tensor *t = c->in[i];
        if (t->weak) {
            *number++ = t->f64;
            continue;
        }
        const char *at = fl_data(t);
        const int64_t step = t->stride[0] * (int64_t)fl_dtype_size(t->dtype), n = fl_numel(t);
        for (int64_t k = 0; k < n; k++, at += step)
            *number++ =
                t->dtype == FL_F64 ? *(const double *)(const void *)at : fl_number_load(t->dtype, at).f;
    }
    return *first != 0 || !rule->skips;
}

static bool fl__cpu_step(const fl_backend *self, const fl_call *c) {
    const fl_step_args *rule = fl_step_args_of(c);
    if (!rule) return false;
    const fl_tensor *last = c->out[c->n_out - 1];
    const fl_dtype wide = fl_dtype_wide(last->dtype);
    const int reads = rule->n_reads, n = reads + c->n_out, first = n - rule->n_writes;
    double number[FL_FORMULA_INPUTS];
    (void)self;
    if (!fl__step_numbers(c, rule, number)) return true;
    fl__step_job *job = fl__step_prepare(c, rule, number, wide);
    if (!job) return false;
    job->loop = fl__executor_loop(&job->e, fl_numel(last), false, &job->arg);
    fl_tensor *t[FL__OPERANDS];
    void *at[FL__OPERANDS];
    bool dense = true;
    for (int i = 0; i < n; i++) {
        t[i] = i < reads ? c->in[i] : c->out[i - reads];
        at[i] = fl_data(t[i]);
        dense &= t[i]->dtype == wide && fl_is_contiguous(t[i]);
    }
    if (dense && fl_numel(last) <= FL__GRAIN) { /* such as the many biases of a network */
        fl__step_loop(at, fl_numel(last), job);
        return true;
    }
    fl__pass p;
    job->e.streaming = true;
    fl__pass_begin(&p, fl__step_loop, job);
    p.streaming = wide == FL_F32;
    fl__pass_follow(&p, last);
    for (int i = 0; i < n; i++)
        fl__pass_add_wide(&p, t[i], i < reads ? FL_READ : i < first ? FL_WRITE : FL_READ | FL_WRITE, wide);
    fl__pass_run(&p, fl_numel(last));
    return true;
}

FL_PRIVATE void fl__cpu_step_slots(fl_backend *cpu) {
    fl_backend_set(cpu, fl_op_step, fl__cpu_step, FL_SLOT_NARROW);
}

FL__LOOPS_END
#endif
#endif
/* MIT licence: see LICENSE. */
