/* fl/optim/checkpoint.h - checkpoints: models, optimizers, schedules and progress in one file */
#ifndef FL_OPTIM_CHECKPOINT_H
#define FL_OPTIM_CHECKPOINT_H
#include "ema.h"
#include "optim.h"
#include "schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version written, "checkpoint.version" in the file's metadata. All older versions can be read; newer
   ones are an error. */
#define FL_OPTIM_CHECKPOINT_VERSION 1

/* Progress of training, for the caller's use; nothing here interprets it. */
typedef struct fl_optim_progress {
    int64_t step, epoch;
    int64_t position; /* samples (or batches) done in the epoch: fl_data_next counts both */
} fl_optim_progress;
/* Writes model ("model." + path), optimizer ("optim." + index + name), the global generator and *at (NULL:
   zeros) to one safetensors file, which is replaced atomically. To load the weights only: fl_nn_load(m, path,
   .prefix = "model."). The metadata "cpu.bf16" records how the cpu backend rounded bf16 products
   (fl_cpu_bf16_used): loading warns where rounding differs. Returns false after an error, never aborts. */
FL_API bool fl_optim_save_checkpoint(const char *path, fl_nn_module *m, fl_optim *o,
                                     const fl_optim_progress *at);
/* Restores all of it; everything is checked before anything is changed. The optimizer must be of the saved
   type, over the same list of parameters in the same groups; its lr and hyperparameters are restored too.
   Returns false after an error and never aborts. */
FL_API bool fl_optim_load_checkpoint(const char *path, fl_nn_module *m, fl_optim *o,
                                     fl_optim_progress *at);
/* Adds the optimizer's tensors and hyperparameters under prefix, for custom files (see fl_nn_state).
   Hyperparameters that were read take effect with the next fl_optim_step. */
FL_API bool fl_optim_state(fl_optim *o, const char *prefix, fl_nn_state *state);

/* A checkpoint of several models, optimizers, schedules, averages and custom state. List what belongs to it,
   in the same way for saving and loading:
     fl_optim_checkpoint c = {.at = &at};
     fl_nn_state *s = &c.state;
     bool ok = fl_nn_state_add_module(s, "gen.", gen) && fl_optim_checkpoint_add(&c, "g.", g) &&
               fl_nn_state_add_module(s, "disc.", disc) && fl_optim_checkpoint_add(&c, "d.", d) &&
               fl_optim_schedule_state(&schedule, "lr.", s) && fl_optim_scaler_state(scaler, "scaler.", s) &&
               fl_optim_ema_state(ema, "ema.", s) && fl_nn_state_add_rng(s, "", "noise", &noise) &&
               fl_nn_state_add_number(s, "", "best", &best) && fl_nn_state_add(s, "", "history", history) &&
               fl_nn_state_add_fixed(s, "", "batches", fl_data_size(set)) &&
               (save ? fl_optim_checkpoint_save(&c, path) : fl_optim_checkpoint_load(&c, path));
     fl_optim_checkpoint_free(&c);
   Both include the global generator. They do not include generators that modules were given (.rng): add
   those. Numbers are saved as they were when added, tensors as they are when saved. Save between steps:
   gradients are not included. Resumed training gives the same bits as uninterrupted training if batches come
   from
     while (at.epoch < epochs && fl_data_next(set, &at.epoch, &at.position, &batch)) ... */
typedef struct fl_optim_checkpoint {
    fl_nn_state state;
    fl_optim_progress *at; /* NULL: zeros, and not restored */
    struct {
        fl_optim *optim;
        char prefix[48];
    } optim[8];
    int n;
} fl_optim_checkpoint;
FL_API bool fl_optim_checkpoint_add(fl_optim_checkpoint *c, const char *prefix, fl_optim *o);
/* Fails while an optimizer has a factor for a step that was not made (fl_optim_scale, _clip). */
FL_API bool fl_optim_checkpoint_save(fl_optim_checkpoint *c, const char *path);
/* All or nothing: the error names the first mismatch, and nothing is changed. */
FL_API bool fl_optim_checkpoint_load(fl_optim_checkpoint *c, const char *path);
FL_API void fl_optim_checkpoint_free(fl_optim_checkpoint *c);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPTIM_CHECKPOINT_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_OPTIM_CHECKPOINT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPTIM_CHECKPOINT_IMPL
#define FL_OPTIM_CHECKPOINT_IMPL
#include "../../kernels/cpu/bf16.h"
#include "../ops/random.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool fl__optim_add_slot(fl_nn_state *state, const char *prefix, const fl_optim_type *type,
                               fl_optim_slot *slot, int64_t i) {
    char name[FL_NN_PATH];
    for (int k = 0; k < fl__optim_names(type->state, FL_OPTIM_STATES); k++) {
        snprintf(name, sizeof name, "%" PRId64 ".%s", i, type->state[k]);
        if (slot->state[k] && !fl_nn_state_add(state, prefix, name, slot->state[k])) return false;
    }
    snprintf(name, sizeof name, "%" PRId64 ".master", i);
    if (slot->master && !fl_nn_state_add(state, prefix, name, slot->master)) return false;
    snprintf(name, sizeof name, "%" PRId64 ".step", i);
    return fl_nn_state_add(state, prefix, name, slot->steps);
}

/* "beta1" in group 0, "group2.beta1" in group 2. */
static const char *fl__optim_number_name(char name[FL_NN_PATH], int group, const char *number) {
    if (group) snprintf(name, FL_NN_PATH, "group%d.%s", group, number);
    else snprintf(name, FL_NN_PATH, "%s", number);
    return name;
}

FL_API bool fl_optim_state(fl_optim *o, const char *prefix, fl_nn_state *state) {
    char name[FL_NN_PATH];
    if (!fl_given(o, "fl_optim_state", "the optimizer") ||
        (!state && !fl_fail("fl_optim_state: the state is NULL")) ||
        !fl_nn_state_add_number(state, prefix, "lr", &o->lr))
        return false;
    for (int g = 0; g < o->n_groups; g++) {
        if (g && !fl_nn_state_add_number(state, prefix, fl__optim_number_name(name, g, "lr_scale"),
                                       &o->group[g].lr_scale))
            return false;
        for (int k = 0; k < fl__optim_names(o->type->hyper, FL_OPTIM_HYPERS); k++)
            if (!fl_nn_state_add_number(state, prefix, fl__optim_number_name(name, g, o->type->hyper[k]),
                                      &o->group[g].hyper[k]))
                return false;
    }
    for (int64_t i = 0; i < o->n; i++)
        if (!fl__optim_add_slot(state, prefix, o->type, &o->slot[i], i)) return false;
    return true;
}

/* The numbers in the metadata, in the order of their keys. */
enum { FL__META_VERSION, FL__META_STEP, FL__META_EPOCH, FL__META_POSITION, FL__META_KEY, FL__META_COUNTER,
       FL__META_COUNT, FL__META_OPTIMS = 8 };
#define FL__META_BF16 "cpu.bf16"
static const char *const fl__optim_keys[] = {"checkpoint.version", "step", "epoch", "position", "rng.key",
                                             "rng.counter"};

FL_API bool fl_optim_checkpoint_add(fl_optim_checkpoint *c, const char *prefix, fl_optim *o) {
    if (!fl_given(c, "fl_optim_checkpoint_add", "the checkpoint") ||
        !fl_given(prefix, "fl_optim_checkpoint_add", "the prefix"))
        return false;
    if (c->n == FL__META_OPTIMS) return fl_fail("fl_optim_checkpoint_add: at most %d optimizers are possible",
                                                c->n);
    if (!*prefix || strlen(prefix) >= sizeof c->optim[0].prefix)
        return fl_fail("fl_optim_checkpoint_add: prefix must have 1 to 47 characters, got '%s'", prefix);
    snprintf(c->optim[c->n].prefix, sizeof c->optim[0].prefix, "%s", prefix);
    c->optim[c->n].optim = o;
    if (!fl_optim_state(o, prefix, &c->state)) return false;
    c->n++;
    return true;
}

FL_API void fl_optim_checkpoint_free(fl_optim_checkpoint *c) {
    if (c) fl_nn_state_free(&c->state);
}

/* Metadata of optimizer i: its type under "optim" (the prefix without its dot) and, if there are several
   groups, the group of each parameter as a letter under "optim.groups". Heap strings. */
static char *fl__optim_key(const fl_optim_checkpoint *c, int i, const char *more) {
    const char *prefix = c->optim[i].prefix;
    const size_t n = strlen(prefix), size = n + strlen(more) + 1;
    char *key = fl_heap_alloc(size);
    if (key) snprintf(key, size, "%.*s%s", (int)(n - (prefix[n - 1] == '.')), prefix, more);
    return key;
}

static char *fl__optim_groups(const fl_optim *o) {
    char *text = fl_heap_alloc((size_t)o->n + 1);
    for (int64_t i = 0; text && i < o->n; i++) text[i] = (char)('a' + (o->slot[i].group - o->group));
    if (text) text[o->n] = '\0';
    return text;
}

FL_API bool fl_optim_checkpoint_save(fl_optim_checkpoint *c, const char *path) {
    if (!fl_given(c, "fl_optim_checkpoint_save", "the checkpoint") ||
        !fl_given(path, "fl_optim_checkpoint_save", "the path"))
        return false;
    const fl_optim_progress at = c->at ? *c->at : (fl_optim_progress){0};
    const fl_rng rng = fl_rng_state();
    const uint64_t numbers[FL__META_COUNT] = {FL_OPTIM_CHECKPOINT_VERSION, (uint64_t)at.step,
                                              (uint64_t)at.epoch, (uint64_t)at.position, rng.key,
                                              rng.counter};
    char text[FL__META_COUNT][24], *owned[3 * FL__META_OPTIMS] = {NULL};
    fl_data_key_value meta[FL__META_COUNT + 2 * FL__META_OPTIMS + 1];
    int n = 0, n_owned = 0;
    bool ok = true;
    for (int i = 0; ok && i < c->n; i++)
        ok = !c->optim[i].optim->factor ||
             fl_fail("fl_optim_checkpoint_save: optimizer '%s' is within a step: a factor is set for its "
                     "gradients", c->optim[i].prefix);
    for (; n < FL__META_COUNT; n++) {
        snprintf(text[n], sizeof text[n], "%" PRIu64, numbers[n]);
        meta[n] = (fl_data_key_value){fl__optim_keys[n], text[n]};
    }
    if (fl_cpu_bf16_used()) meta[n++] = (fl_data_key_value){FL__META_BF16, fl_cpu_bf16_used()};
    for (int i = 0; ok && i < c->n; i++) {
        const fl_optim *o = c->optim[i].optim;
        char *key = owned[n_owned++] = fl__optim_key(c, i, "");
        ok = key != NULL;
        meta[n++] = (fl_data_key_value){key, o->type->name};
        if (!ok || o->n_groups == 1) continue;
        key = owned[n_owned++] = fl__optim_key(c, i, ".groups");
        char *groups = owned[n_owned++] = fl__optim_groups(o);
        meta[n++] = (fl_data_key_value){key, groups};
        ok = key && groups;
    }
    ok = ok && fl_nn_state_save(&c->state, path, meta, n);
    while (n_owned > 0) fl_heap_free(owned[--n_owned]);
    return ok;
}

/* Parses a decimal number of 64 bits without anything after it. */
static bool fl__optim_parse(const char *text, uint64_t *out) {
    if (!text || *text < '0' || *text > '9') return false;
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return !*end && !errno;
}

/* Reads the metadata numbers of f; fails unless its version is known. */
static bool fl__optim_read_numbers(const fl_data_file *f, const char *what, uint64_t *numbers) {
    if (!fl_data_meta(f, fl__optim_keys[FL__META_VERSION]))
        return fl_fail("%s: not a checkpoint: metadata 'checkpoint.version' is missing (fl_nn_load reads "
                       "weights)", what);
    for (int i = 0; i < FL__META_COUNT; i++) {
        if (!fl__optim_parse(fl_data_meta(f, fl__optim_keys[i]), &numbers[i]))
            return fl_fail("%s: metadata '%s' is not a number: got '%s'", what, fl__optim_keys[i],
                           fl_data_meta(f, fl__optim_keys[i]) ? fl_data_meta(f, fl__optim_keys[i]) : "");
        if (i == FL__META_VERSION && numbers[i] > FL_OPTIM_CHECKPOINT_VERSION)
            return fl_fail("%s: checkpoint version %" PRIu64 " was written by a newer fl: expected at "
                           "most %d", what, numbers[i], FL_OPTIM_CHECKPOINT_VERSION);
    }
    return true;
}

/* Checks that optimizer i has the type and groups of the file. */
static bool fl__optim_fits(const fl_optim_checkpoint *c, int i, const fl_data_file *f, const char *what) {
    const fl_optim *o = c->optim[i].optim;
    char *key = fl__optim_key(c, i, ""), *key2 = fl__optim_key(c, i, ".groups"), *mine = fl__optim_groups(o);
    bool ok = key && key2 && mine;
    const char *name = ok ? fl_data_meta(f, key) : NULL, *theirs = ok ? fl_data_meta(f, key2) : NULL;
    if (ok && !name) ok = fl_fail("%s: the file has no optimizer '%s'", what, key);
    else if (ok && strcmp(name, o->type->name))
        ok = fl_fail("%s: optimizer '%s' is '%s' in the file, but '%s' here", what, key, name, o->type->name);
    else if (ok && (theirs ? strcmp(theirs, mine) != 0 : o->n_groups > 1))
        ok = fl_fail("%s: optimizer '%s' has parameter groups '%s' in the file, but '%s' here", what, key,
                     theirs ? theirs : "a ...", mine);
    fl_heap_free(key);
    fl_heap_free(key2);
    fl_heap_free(mine);
    return ok;
}

/* Checks that the hyperparameters read for optimizer i are valid. */
static bool fl__optim_numbers_fit(const fl_optim_checkpoint *c, int i, const char *what) {
    const fl_optim *o = c->optim[i].optim;
    for (int64_t k = 0; k < c->state.n; k++) {
        const fl_nn_state_item *item = &c->state.item[k];
        const double *at = item->host;
        if (!item->loaded_ || !at) continue;
        int hyper = at == &o->lr ? -1 : FL_OPTIM_HYPERS;
        for (int g = 0; g < o->n_groups; g++) {
            if (at == &o->group[g].lr_scale) hyper = -1;
            if (at >= o->group[g].hyper && at < o->group[g].hyper + FL_OPTIM_HYPERS)
                hyper = (int)(at - o->group[g].hyper);
        }
        if (hyper < FL_OPTIM_HYPERS && !fl__optim_is_valid(o->type, hyper, fl_item(item->loaded_)))
            return fl_fail("%s: '%s' is out of range: got %g", what, item->name, fl_item(item->loaded_));
    }
    return true;
}

/* Warns if bf16 products are rounded otherwise than in the run that wrote f, which changes bits. */
static void fl__optim_warn_of_bf16(const fl_data_file *f, const char *what) {
    const char *was = fl_data_meta(f, FL__META_BF16);
    if (!was || !strcmp(was, fl_cpu_bf16())) return;
    fl_log_message(FL_LOG_WARN,
                   "%s: bf16 products were computed by '%s' and are now by '%s', which gives other "
                   "bits; FL_CPU_BF16=%s selects the former if the processor supports it", what, was,
                   fl_cpu_bf16(), was);
}

FL_API bool fl_optim_checkpoint_load(fl_optim_checkpoint *c, const char *path) {
    static const char fn[] = "fl_optim_load_checkpoint";
    if (!fl_given(c, fn, "the checkpoint") || !fl_given(path, fn, "the path")) return false;
    char what[FL_NN_PATH];
    uint64_t numbers[FL__META_COUNT] = {0};
    snprintf(what, sizeof what, "%s: %s", fn, path);
    fl_quiet(+1);
    fl_data_file *f = fl_data_open_safetensors(path);
    bool ok = f && fl__optim_read_numbers(f, what, numbers);
    for (int i = 0; ok && i < c->n; i++) ok = fl__optim_fits(c, i, f, what);
    ok = ok && fl_nn_state_read(&c->state, f, what, "", false);
    for (int i = 0; ok && i < c->n; i++) ok = fl__optim_numbers_fit(c, i, what);
    ok = ok && fl_nn_state_commit(&c->state);
    for (int i = 0; ok && i < c->n; i++) {
        fl_optim *o = c->optim[i].optim;
        fl_drop(o->factor); /* of an abandoned step */
        o->factor = NULL;
        ok = fl__optim_write_hypers(o);
    }
    if (ok) fl__optim_warn_of_bf16(f, what);
    fl_data_close(f);
    fl_quiet(-1);
    if (!ok) return false;
    if (c->at)
        *c->at = (fl_optim_progress){(int64_t)numbers[FL__META_STEP], (int64_t)numbers[FL__META_EPOCH],
                                     (int64_t)numbers[FL__META_POSITION]};
    fl_rng_set_state((fl_rng){numbers[FL__META_KEY], numbers[FL__META_COUNTER]});
    return true;
}

/* Lists one model and one optimizer. */
static bool fl__optim_checkpoint_of(fl_optim_checkpoint *c, const char *path, fl_nn_module *m, fl_optim *o,
                                    const char *fn) {
    if (!fl_given(o, fn, "the optimizer")) return false;
    if (!path || !m) return fl_error() ? false : fl_fail("%s: the %s is NULL", fn, path ? "module" : "path");
    return fl_nn_state_add_module(&c->state, "model.", m) && fl_optim_checkpoint_add(c, "optim.", o);
}

FL_API bool fl_optim_save_checkpoint(const char *path, fl_nn_module *m, fl_optim *o,
                                     const fl_optim_progress *at) {
    fl_optim_progress progress = at ? *at : (fl_optim_progress){0};
    fl_optim_checkpoint c = {.at = &progress};
    const bool ok = fl__optim_checkpoint_of(&c, path, m, o, "fl_optim_save_checkpoint") &&
                    fl_optim_checkpoint_save(&c, path);
    fl_optim_checkpoint_free(&c);
    return ok;
}

FL_API bool fl_optim_load_checkpoint(const char *path, fl_nn_module *m, fl_optim *o, fl_optim_progress *at) {
    fl_optim_checkpoint c = {.at = at};
    const bool ok = fl__optim_checkpoint_of(&c, path, m, o, "fl_optim_load_checkpoint") &&
                    fl_optim_checkpoint_load(&c, path);
    fl_optim_checkpoint_free(&c);
    return ok;
}

#endif
#endif
/* MIT licence: see LICENSE. */
