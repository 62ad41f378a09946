/* fl/text/models/train.h - training language models, and measuring them */
#ifndef FL_TEXT_MODELS_TRAIN_H
#define FL_TEXT_MODELS_TRAIN_H
#ifndef FL_OPTIM_H
#include "../../../fl_optim.h"
#endif
#include "../data.h"
#include "lora.h"
#include "models.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a model makes of a text: nats / tokens is the loss, exp of it the perplexity; divide by bytes or words
   of the text where models of different tokens are compared. */
typedef struct fl_text_measure {
    double nats; /* the sum of -log P(token | those before) */
    int64_t tokens; /* that were predicted */
} fl_text_measure;
typedef struct fl_text_evaluate_opts {
    fl_opts_guard guard_;
    int64_t begin, end; /* of the tokens that are taken; end 0 -> all */
    int64_t context;    /* tokens in a window, 0 -> the model's */
    int64_t stride;     /* from window to window, 0 -> context / 2: each token is predicted once, with
                           context - stride or more before it, but at the beginning */
    int64_t batch;      /* windows at a time, 0 -> 16 */
    fl_dtype dtype;     /* of products, see fl_autocast; 0 -> f32 */
    char _end;
} fl_text_evaluate_opts;
/* All tokens but the first, each once. Leaves training mode as it was. False after an error. */
#define fl_text_evaluate(...) FL_TEXT__EVALUATE(__VA_ARGS__, ._end = 0)
#define FL_TEXT__EVALUATE(m, t, out, ...) \
    fl_text_evaluate_opt(m, t, out, FL_LITERAL(fl_text_evaluate_opts, __VA_ARGS__))
FL_API bool fl_text_evaluate_opt(fl_nn_module *m, const fl_text_tokens *t, fl_text_measure *out,
                                 fl_text_evaluate_opts o);
/* Of a set whose samples are batches of x, y [n, t] (and perhaps masks): sums over one epoch. */
FL_API bool fl_text_evaluate_set(fl_nn_module *m, fl_data_set *set, fl_text_measure *out, fl_dtype dtype);

/* Training of a model by an optimizer, on a set whose samples are batches: x, y i64 [n, t], and perhaps b8
   [n, t] of what is no padding. Fill in what you want, the rest is 0:
     fl_text_training t = {.model = m, .optim = optim, .set = set, .schedule = &schedule, .clip = 1};
     while (ok && t.at.step < 2000) ok = fl_text_training_step(&t, &loss);
   A step is `accumulate` batches: the loss is the mean over all their targets. */
typedef struct fl_text_training {
    fl_nn_module *model;
    fl_optim *optim;
    fl_optim_schedule *schedule; /* started; NULL: the rate stays */
    fl_optim_scaler *scaler;     /* for f16 */
    fl_text_lora *lora;          /* whose parameters the optimizer has; NULL: the model's own */
    fl_data_set *set;
    fl_dtype dtype;              /* of products, see fl_autocast; 0 -> f32 */
    int64_t accumulate;          /* batches of a step, 0 -> 1 */
    double clip;                 /* of the gradients' norm; 0: none */
    /* where it stands: */
    fl_optim_progress at;
    int64_t tokens;              /* targets so far */
    double best; /* yours: the best loss of evaluations, for a file of its own; in checkpoints */
} fl_text_training;
/* One step; *loss in nats per target. False after an error, and parameters are what they were. */
FL_API bool fl_text_training_step(fl_text_training *t, double *loss);
/* All that training changes, in one file (fl_optim_checkpoint): going on from it gives the bits of training
   that did not stop. */
FL_API bool fl_text_training_save(fl_text_training *t, const char *path);
FL_API bool fl_text_training_load(fl_text_training *t, const char *path);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_MODELS_TRAIN_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_MODELS_TRAIN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_MODELS_TRAIN_IMPL
#define FL_TEXT_MODELS_TRAIN_IMPL
#include "../../ops/autocast.h"
#include "../../ops/copy.h"
#include "../../ops/elementwise.h"
#include "../../ops/reduce.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- measuring ---- */

/* Adds what the model makes of x and y [n, t], of which `counted` targets are none of -100. */
static bool fl__lm_measure_add(fl_nn_module *m, fl_vars in, fl_tensor *y, fl_dtype dtype, int64_t counted,
                                 fl_text_measure *out) {
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    fl_var *loss = !dtype || fl_autocast(dtype) ? fl_text_loss(m, in, y, FL_SUM) : NULL;
    const double nats = loss ? fl_item(fv_value(loss)) : (double)NAN;
    const bool ok = loss && !fl_error();
    fl_scope_end(&s);
    if (ok) out->nats += nats, out->tokens += counted;
    return ok;
}

/* Windows first to last - 1 of one length, as one batch: x and y from `id`, which holds their ids. */
static bool fl__lm_measure_windows(fl_nn_module *m, const fl_text_tokens *t, int64_t first, int64_t last,
                                     int64_t length, const fl_text_evaluate_opts *o, int64_t *id,
                                     fl_text_measure *out) {
    const int64_t n = last - first;
    int64_t *x = id, *y = x + n * length, *read = y + n * length, counted = 0;
    for (int64_t w = first; w < last; w++, x += length, y += length) {
        if (!fl_text_tokens_read(t, o->begin + w * o->stride, length + 1, read)) return false;
        memcpy(x, read, (size_t)length * sizeof *x);
        for (int64_t i = 0; i < length; i++) {
            const bool seen = w && i < o->context - o->stride; /* by the window before */
            y[i] = seen ? -100 : read[i + 1], counted += !seen;
        }
    }
    fl_scope s = fl_scope_begin();
    fl_tensor *tx = fl_from_host(id, FL_SHAPE(n, length), FL_I64);
    fl_tensor *ty = fl_from_host(id + n * length, FL_SHAPE(n, length), FL_I64);
    const bool ok = tx && ty && fl__lm_measure_add(m, FL_VARS(fv_const(tx)), ty, o->dtype, counted, out);
    fl_scope_end(&s);
    return ok;
}

FL_API bool fl_text_evaluate_opt(fl_nn_module *m, const fl_text_tokens *t, fl_text_measure *out,
                                 fl_text_evaluate_opts o) {
    const fl_text_lm_opts *info = m ? fl_text_lm_info(m, NULL) : NULL;
    if (!info || !out) return fl_err_false("fl_text_evaluate: the model is none of fl_text_lm, or out is NULL");
    if (!o.end) o.end = fl_text_tokens_count(t);
    if (!o.context) o.context = info->context;
    if (!o.stride) o.stride = (o.context + 1) / 2;
    if (!o.batch) o.batch = 16;
    if (!t || o.begin < 0 || o.end > fl_text_tokens_count(t) || o.end - o.begin < 2 || o.context < 1 ||
        o.stride < 1 || o.stride > o.context || o.batch < 1)
        return fl_err_false("fl_text_evaluate: tokens %" PRId64 " to %" PRId64 " of %" PRId64
                            ", windows of %" PRId64 " every %" PRId64 ", %" PRId64 " at a time",
                            o.begin, o.end, fl_text_tokens_count(t), o.context, o.stride, o.batch);
    const int64_t n = o.end - o.begin - 1; /* targets */
    const int64_t whole = n < o.context ? 0 : (n - o.context) / o.stride + 1;
    const int64_t rest = n - whole * o.stride; /* inputs of the last window, which is shorter */
    const bool train = m->train, more = rest > (whole ? o.context - o.stride : 0);
    fl_text_measure sum = {0};
    fl_quiet(+1);
    int64_t *id = fl_heap_alloc((size_t)(2 * o.batch * o.context + o.context + 1) * sizeof *id);
    bool ok = id != NULL;
    fl_nn_train(m, false);
    for (int64_t w = 0; ok && w < whole; w += o.batch)
        ok = fl__lm_measure_windows(m, t, w, w + o.batch < whole ? w + o.batch : whole, o.context, &o, id,
                                    &sum);
    if (ok && more) ok = fl__lm_measure_windows(m, t, whole, whole + 1, rest, &o, id, &sum);
    fl_nn_train(m, train);
    fl_heap_free(id);
    fl_quiet(-1);
    if (ok) *out = sum;
    return ok || fl_raise();
}

/* x, and the mask where there is one */
static fl_vars fl__lm_inputs(const fl_data_sample *b) {
    fl_vars in = FL_VARS(fv_const(b->t[0]));
    if (b->n > 2) in.v[in.n++] = fv_const(b->t[2]);
    return in;
}

static bool fl__lm_batch_ok(const fl_data_sample *b) {
    return (b->n >= 2 && b->n <= 3 && b->t[0]->ndim == 2 && b->t[0]->dtype == FL_I64 &&
            b->t[1]->dtype == FL_I64 && fl_same_shape(b->t[0], b->t[1])) ||
           fl_fail(
               "fl_text_training_step: a batch of %d fields: wants x and y i64 [n, t], and perhaps a mask",
               b->n);
}

static int64_t fl__lm_counted(fl_tensor *y) {
    return fl_item_int(fl_sum(fl_cast(fl_ne(y, fl_int(-100)), FL_I64), FL_ALL_AXES));
}

FL_API bool fl_text_evaluate_set(fl_nn_module *m, fl_data_set *set, fl_text_measure *out, fl_dtype dtype) {
    if (!m || !set || !out) return fl_err_false("fl_text_evaluate_set: the model, the set or out is NULL");
    const bool train = m->train;
    fl_text_measure sum = {0};
    bool ok = true;
    fl_quiet(+1);
    fl_nn_train(m, false);
    for (int64_t i = 0; ok && i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        ok = fl_data_get(set, i, &b) && fl__lm_batch_ok(&b) &&
             fl__lm_measure_add(m, fl__lm_inputs(&b), b.t[1], dtype, fl__lm_counted(b.t[1]), &sum);
        fl_scope_end(&s);
    }
    fl_nn_train(m, train);
    fl_quiet(-1);
    if (ok) *out = sum;
    return ok || fl_raise();
}

/* ---- training ---- */

/* Adds the gradients of one batch's sum of losses. */
static bool fl__lm_backward(fl_text_training *t, fl_text_measure *sum) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    bool ok = fl_data_next(t->set, &t->at.epoch, &t->at.position, &b) && fl__lm_batch_ok(&b) &&
              (!t->dtype || fl_autocast(t->dtype));
    const int64_t counted = ok ? fl__lm_counted(b.t[1]) : 0;
    ok = ok && (!t->lora || fl_text_lora_begin(t->lora));
    fl_var *loss = ok ? fl_text_loss(t->model, fl__lm_inputs(&b), b.t[1], FL_SUM) : NULL;
    fl_text_lora_end(t->lora);
    ok = loss && fl_backward(t->scaler ? fl_optim_scaler_scale(t->scaler, loss) : loss);
    if (ok) sum->nats += fl_item(fv_value(loss)), sum->tokens += counted;
    ok = ok && !fl_error();
    fl_scope_end(&s);
    return ok;
}

FL_API bool fl_text_training_step(fl_text_training *t, double *loss) {
    if (!t || !t->model || !t->optim || !t->set)
        return fl_err_false("fl_text_training_step: model, optim or set is NULL");
    fl_text_measure sum = {0};
    const int64_t parts = t->accumulate > 1 ? t->accumulate : 1;
    fl_optim_progress before = t->at;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    bool ok = true;
    fl_optim_zero_grad(t->optim);
    for (int64_t i = 0; ok && i < parts; i++) ok = fl__lm_backward(t, &sum);
    if (ok && !sum.tokens) ok = fl_fail("fl_text_training_step: a step without targets");
    if (ok && !isfinite(sum.nats) && !t->scaler)
        ok = fl_fail("fl_text_training_step: the loss of step %" PRId64 " is %g", t->at.step, sum.nats);
    ok = ok && (!t->scaler || fl_optim_scaler_unscale(t->scaler, t->optim)) &&
         fl_optim_scale(t->optim, fl_num(1 / (double)sum.tokens)) &&
         (t->clip <= 0 || fl_optim_clip(t->optim, t->clip)) && fl_optim_step(t->optim) &&
         (!t->scaler || fl_optim_scaler_update(t->scaler)) &&
         (!t->schedule || fl_optim_schedule_step(t->schedule));
    fl_scope_end(&s);
    fl_quiet(-1);
    if (!ok) {
        t->at = before;
        return fl_raise();
    }
    t->at.step++, t->tokens += sum.tokens;
    if (loss) *loss = sum.nats / (double)sum.tokens;
    return true;
}

static bool fl__lm_training_file(fl_text_training *t, const char *path, bool save) {
    if (!t || !t->model || !t->optim || !t->set || !path)
        return fl_fail("fl_text_training_%s: model, optim, set or path is NULL", save ? "save" : "load");
    fl_optim_checkpoint c = {.at = &t->at};
    fl_nn_state *s = &c.state;
    const fv_list added = t->lora ? fl_text_lora_parameters(t->lora) : FV_NONE;
    bool ok = true;
    for (int i = 0; ok && i < added.n; i++) {
        char name[20];
        snprintf(name, sizeof name, "%d", i);
        ok = fl_nn_state_add(s, "lora.", name, fv_value(added.v[i]));
    }
    ok = ok && fl_nn_state_add_module(s, "model.", t->model) &&
         fl_optim_checkpoint_add(&c, "optim.", t->optim) &&
         (!t->schedule || fl_optim_schedule_state(t->schedule, "lr.", s)) &&
         (!t->scaler || fl_optim_scaler_state(t->scaler, "scaler.", s)) &&
         fl_nn_state_add_number(s, "", "best", &t->best) &&
         fl_nn_state_add_integer(s, "", "tokens", &t->tokens) &&
         fl_nn_state_add_fixed(s, "", "batches", fl_data_size(t->set)) &&
         (save ? fl_optim_checkpoint_save(&c, path) : fl_optim_checkpoint_load(&c, path));
    fl_optim_checkpoint_free(&c);
    return ok;
}

FL_API bool fl_text_training_save(fl_text_training *t, const char *path) {
    return fl__lm_training_file(t, path, true);
}

FL_API bool fl_text_training_load(fl_text_training *t, const char *path) {
    return fl__lm_training_file(t, path, false);
}

#endif
#endif

/* MIT licence: see LICENSE. */
