/* fl/text/models/train.h - training and evaluation of language models: steps, checkpoints, perplexity */
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

/* Result of an evaluation: nats / tokens is the loss, its exp the perplexity. Divide nats by bytes or words
   of the text to compare models with different tokenizers. */
typedef struct fl_text_loss_sum {
    double nats; /* sum of -log P(token | preceding tokens) */
    int64_t tokens; /* predicted tokens */
} fl_text_loss_sum;
typedef struct fl_text_evaluate_opts {
    fl_opts_guard guard_;
    int64_t begin, end; /* range of tokens; end 0 -> all */
    int64_t context;    /* window length in tokens, 0 -> the model's context */
    int64_t stride;     /* step from window to window, 0 -> context / 2: each token is predicted once, given
                           at least context - stride tokens, except at the beginning */
    int64_t batch;      /* windows per batch, 0 -> 16 */
    fl_dtype dtype;     /* of matrix products, see fl_autocast; 0 -> f32 */
    char _end;
} fl_text_evaluate_opts;
/* Predicts all tokens but the first, each once. Preserves training mode. Returns false after an error. */
#define fl_text_evaluate(...) FL_TEXT__EVALUATE(__VA_ARGS__, ._end = 0)
#define FL_TEXT__EVALUATE(m, t, out, ...) \
    fl_text_evaluate_opt(m, t, out, FL_LITERAL(fl_text_evaluate_opts, __VA_ARGS__))
FL_API bool fl_text_evaluate_opt(fl_nn_module *m, const fl_text_tokens *t, fl_text_loss_sum *out,
                                 fl_text_evaluate_opts o);
/* The same for a set whose samples are batches x, y [n, t] (optionally a mask): sums over one epoch. */
FL_API bool fl_text_evaluate_set(fl_nn_module *m, fl_data_set *set, fl_text_loss_sum *out, fl_dtype dtype);

/* Trains a model by an optimizer on a set whose samples are batches: x, y i64 [n, t] and optionally a mask b8
   [n, t], true where a token is not padding. Set the fields you need, the rest is 0:
     fl_text_training t = {.model = m, .optim = optim, .set = set, .schedule = &schedule, .clip = 1};
     while (ok && t.at.step < 2000) ok = fl_text_training_step(&t, &loss);
   A step is `accumulate` batches; its loss is the mean over all their targets. */
typedef struct fl_text_training {
    fl_nn_module *model;
    fl_optim *optim;
    fl_optim_schedule *schedule; /* started; NULL: constant learning rate */
    fl_optim_scaler *scaler;     /* for f16 */
    fl_text_lora *lora;          /* the optimizer has its parameters; NULL: the model's own */
    fl_data_set *set;
    fl_dtype dtype;              /* of matrix products, see fl_autocast; 0 -> f32 */
    int64_t accumulate;          /* batches per step, 0 -> 1 */
    double clip;                 /* maximum norm of the gradients; 0: none */
    /* progress: */
    fl_optim_progress at;
    int64_t tokens;              /* targets so far */
    double best; /* for the caller: best evaluation loss; stored in checkpoints */
} fl_text_training;
/* Runs one step; *loss in nats per target. Returns false after an error, with parameters unchanged. */
FL_API bool fl_text_training_step(fl_text_training *t, double *loss);
/* Saves the whole training state in one file (fl_optim_checkpoint); training resumed from it is
   bit-identical to uninterrupted training. */
FL_API bool fl_text_training_save(fl_text_training *t, const char *path);
/* Loads a file of fl_text_training_save into a training with the same setup. */
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

/* ---- evaluation ---- */

/* Adds the loss on x and y [n, t], of which `counted` targets are not -100. */
static bool fl__lm_measure_add(fl_nn_module *m, fl_vars in, fl_tensor *y, fl_dtype dtype, int64_t counted,
                               fl_text_loss_sum *out) {
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    fl_var *loss = !dtype || fl_autocast(dtype) ? fl_text_loss(m, in, y, FL_SUM) : NULL;
    const double nats = loss ? fl_item(fv_value(loss)) : (double)NAN;
    const bool ok = loss && !fl_error();
    fl_scope_end(&s);
    if (ok) out->nats += nats, out->tokens += counted;
    return ok;
}

/* Evaluates windows first to last - 1, of equal length, as one batch; `id` is the buffer for their ids. */
static bool fl__lm_measure_windows(fl_nn_module *m, const fl_text_tokens *t, int64_t first, int64_t last,
                                   int64_t length, const fl_text_evaluate_opts *o, int64_t *id,
                                   fl_text_loss_sum *out) {
    const int64_t n = last - first;
    int64_t *x = id, *y = x + n * length, *read = y + n * length, counted = 0;
    for (int64_t w = first; w < last; w++, x += length, y += length) {
        if (!fl_text_tokens_read(t, o->begin + w * o->stride, length + 1, read)) return false;
        memcpy(x, read, (size_t)length * sizeof *x);
        for (int64_t i = 0; i < length; i++) {
            const bool seen = w && i < o->context - o->stride; /* predicted in the window before */
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

FL_API bool fl_text_evaluate_opt(fl_nn_module *m, const fl_text_tokens *t, fl_text_loss_sum *out,
                                 fl_text_evaluate_opts o) {
    const fl_text_lm_opts *info = m ? fl_text_lm_info(m, NULL) : NULL;
    if (!info || !out)
        return fl_err_false("fl_text_evaluate: the model is not one of fl_text_lm, or out is NULL");
    if (!o.end) o.end = fl_text_tokens_count(t);
    if (!o.context) o.context = info->context;
    if (!o.stride) o.stride = (o.context + 1) / 2;
    if (!o.batch) o.batch = 16;
    if (!t || o.begin < 0 || o.end > fl_text_tokens_count(t) || o.end - o.begin < 2 || o.context < 1 ||
        o.stride < 1 || o.stride > o.context || o.batch < 1)
        return fl_err_false("fl_text_evaluate: options are out of range: got tokens [%" PRId64 ", %" PRId64
                            ") of %" PRId64 ", expected 2 or more; context %" PRId64 ", stride %" PRId64
                            ", batch %" PRId64 ", expected >= 1 and stride <= context",
                            o.begin, o.end, fl_text_tokens_count(t), o.context, o.stride, o.batch);
    const int64_t n = o.end - o.begin - 1; /* targets */
    const int64_t whole = n < o.context ? 0 : (n - o.context) / o.stride + 1;
    const int64_t rest = n - whole * o.stride; /* inputs of the last, shorter window */
    const bool train = m->train, more = rest > (whole ? o.context - o.stride : 0);
    fl_text_loss_sum sum = {0};
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

/* x, and the mask if there is one. */
static fl_vars fl__lm_inputs(const fl_data_sample *b) {
    fl_vars in = FL_VARS(fv_const(b->t[0]));
    if (b->n > 2) in.v[in.n++] = fv_const(b->t[2]);
    return in;
}

static bool fl__lm_batch_ok(const fl_data_sample *b) {
    return (b->n >= 2 && b->n <= 3 && b->t[0]->ndim == 2 && b->t[0]->dtype == FL_I64 &&
            b->t[1]->dtype == FL_I64 && fl_same_shape(b->t[0], b->t[1])) ||
           fl_fail("fl_text_training_step: a batch must be x and y, i64 [n, t], and optionally a mask: got "
                   "%d fields",
                   b->n);
}

static int64_t fl__lm_counted(fl_tensor *y) {
    return fl_item_int(fl_sum(fl_cast(fl_ne(y, fl_int(-100)), FL_I64), FL_ALL_AXES));
}

FL_API bool fl_text_evaluate_set(fl_nn_module *m, fl_data_set *set, fl_text_loss_sum *out, fl_dtype dtype) {
    if (!m || !set || !out) return fl_err_false("fl_text_evaluate_set: the model, the set or out is NULL");
    const bool train = m->train;
    fl_text_loss_sum sum = {0};
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

/* Adds the gradients of the summed loss of one batch. */
static bool fl__lm_backward(fl_text_training *t, fl_text_loss_sum *sum) {
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
    fl_text_loss_sum sum = {0};
    const int64_t parts = t->accumulate > 1 ? t->accumulate : 1;
    fl_optim_progress before = t->at;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    bool ok = true;
    fl_optim_zero_grad(t->optim);
    for (int64_t i = 0; ok && i < parts; i++) ok = fl__lm_backward(t, &sum);
    if (ok && !sum.tokens) ok = fl_fail("fl_text_training_step: the step has no targets: all are -100");
    if (ok && !isfinite(sum.nats) && !t->scaler)
        ok = fl_fail("fl_text_training_step: loss is not finite: got %g at step %" PRId64, sum.nats,
                     t->at.step);
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
