/* fl/text/models/lora.h - LoRA: fine-tuning by low-rank updates of weights (arXiv 2106.09685); peft files */
#ifndef FL_TEXT_MODELS_LORA_H
#define FL_TEXT_MODELS_LORA_H
#include "models.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_text_lora fl_text_lora;
typedef struct fl_text_lora_opts {
    fl_opts_guard guard_;
    int64_t rank;        /* r, 0 -> 8 */
    double alpha;        /* 0 -> 16 */
    const char *targets; /* separated by spaces; NULL: as peft: "q_proj v_proj", "c_attn", "query value" */
    fl_rng *rng;
    char _end;
} fl_text_lora_opts;
/* Adds LoRA to a transformer of fl_text_lm, which is borrowed. Targets are names of transformers' modules, or
   suffixes of these:
     BERT (bidirectional, post-norm)     attention.self.query, .key, .value, attention.output.dense,
                                         intermediate.dense, output.dense
     GPT-2 (learned positions, no gate)  attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj
     others, as Llama                    self_attn.q_proj, k_proj, v_proj, o_proj,
                                         mlp.gate_proj, up_proj, down_proj
   In each layer the target weights W [out, in] become W + alpha / rank B A, with A [rank, in] initialised as
   nn.Linear's weights, and B [out, rank] 0. The model's own parameters are frozen. Set fl_text_training.lora
   to train; outside of training steps the model computes without the updates, until they are merged. Returns
   NULL after an error. */
#define fl_text_lora_new(...) FL_TEXT__LORA_NEW(__VA_ARGS__, ._end = 0)
#define FL_TEXT__LORA_NEW(m, ...) fl_text_lora_new_opt(m, FL_LITERAL(fl_text_lora_opts, __VA_ARGS__))
FL_API fl_text_lora *fl_text_lora_new_opt(fl_nn_module *m, fl_text_lora_opts o);
FL_API void fl_text_lora_free(fl_text_lora *l); /* NULL is fine; call it before freeing the model */
/* A and B of all targets, for an optimizer. */
FL_API fv_list fl_text_lora_parameters(const fl_text_lora *l);
/* Applies the updates: until fl_text_lora_end, in the same scope, the model computes with W + alpha / rank B
   A. Returns false after an error. */
FL_API bool fl_text_lora_begin(fl_text_lora *l);
/* Restores the model's own weights. */
FL_API void fl_text_lora_end(fl_text_lora *l);
/* Adds the updates to the weights permanently and sets B to 0. Returns false after an error. */
FL_API bool fl_text_lora_merge(fl_text_lora *l);
/* Writes adapter_model.safetensors and adapter_config.json as peft does into an existing folder. Returns
   false after fl_fail. */
FL_API bool fl_text_lora_save(const fl_text_lora *l, const char *folder);
/* Reads such a folder; rank and targets must be equal. Returns false after fl_fail. */
FL_API bool fl_text_lora_load(fl_text_lora *l, const char *folder);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_MODELS_LORA_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_MODELS_LORA) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_MODELS_LORA_IMPL
#define FL_TEXT_MODELS_LORA_IMPL
#include "../../data/safetensors.h"
#include "../../ops/copy.h"
#include "../../ops/create.h"
#include "../../ops/elementwise.h"
#include "../../ops/linear.h"
#include "../../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* peft's names: the prefix of a layer's index, and the rows of our weights that each target is (of in_proj
   the first, second or third part; 0: all). */
enum { FL__LORA_LLAMA, FL__LORA_GPT2, FL__LORA_BERT };
static const struct fl__lora_arch {
    const char *layers, *targets; /* targets: the default */
} fl__lora_archs[] = {
    {"model.layers", "q_proj v_proj"}, {"transformer.h", "c_attn"}, {"bert.encoder.layer", "query value"}};

static const struct fl__lora_row {
    int arch;
    const char *path, *module, *param;
    int part;
} fl__lora_rows[] = {{FL__LORA_LLAMA, "self_attn.q_proj", "self_attn", "in_proj_weight", 1},
                     {FL__LORA_LLAMA, "self_attn.k_proj", "self_attn", "in_proj_weight", 2},
                     {FL__LORA_LLAMA, "self_attn.v_proj", "self_attn", "in_proj_weight", 3},
                     {FL__LORA_LLAMA, "self_attn.o_proj", "self_attn.out_proj", "weight", 0},
                     {FL__LORA_LLAMA, "mlp.gate_proj", "gate", "weight", 0},
                     {FL__LORA_LLAMA, "mlp.up_proj", "linear1", "weight", 0},
                     {FL__LORA_LLAMA, "mlp.down_proj", "linear2", "weight", 0},
                     {FL__LORA_GPT2, "attn.c_attn", "self_attn", "in_proj_weight", 0},
                     {FL__LORA_GPT2, "attn.c_proj", "self_attn.out_proj", "weight", 0},
                     {FL__LORA_GPT2, "mlp.c_fc", "linear1", "weight", 0},
                     {FL__LORA_GPT2, "mlp.c_proj", "linear2", "weight", 0},
                     {FL__LORA_BERT, "attention.self.query", "self_attn", "in_proj_weight", 1},
                     {FL__LORA_BERT, "attention.self.key", "self_attn", "in_proj_weight", 2},
                     {FL__LORA_BERT, "attention.self.value", "self_attn", "in_proj_weight", 3},
                     {FL__LORA_BERT, "attention.output.dense", "self_attn.out_proj", "weight", 0},
                     {FL__LORA_BERT, "intermediate.dense", "linear1", "weight", 0},
                     {FL__LORA_BERT, "output.dense", "linear2", "weight", 0}};
enum { FL__LORA_ROWS = sizeof fl__lora_rows / sizeof *fl__lora_rows };

/* One low-rank update, of rows `first` to first + rows - 1 of a parameter. */
typedef struct fl__lora_part {
    fl_nn_param *of;
    int64_t layer, first, rows;
    int row; /* index in fl__lora_rows */
    fl_var *a, *b, *base; /* base: the frozen weight, while the updated one replaces it */
} fl__lora_part;

enum { FL__LORA_TARGETS = 256 };
struct fl_text_lora {
    fl_nn_module *m;
    fl_text_lora_opts o;
    int arch;
    char targets[FL__LORA_TARGETS];
    fl__lora_part *part;
    fl_var **list; /* a and b of all parts */
    int64_t n;
};

FL_API void fl_text_lora_free(fl_text_lora *l) {
    if (!l) return;
    for (int64_t i = 0; i < l->n; i++) fv_drop(l->part[i].a), fv_drop(l->part[i].b);
    fl_heap_free(l->part);
    fl_heap_free(l->list);
    fl_heap_free(l);
}

static int fl__lora_arch_of(const fl_text_lm_opts *o) {
    return o->bidirectional && o->post_norm ? FL__LORA_BERT
           : o->place == FL_LM_LEARNED && !o->gated ? FL__LORA_GPT2 : FL__LORA_LLAMA;
}

/* Is one of the space-separated names a suffix of the row's path, as peft matches? */
static bool fl__lora_matches(const char *words, const struct fl__lora_row *r) {
    const size_t all = strlen(r->path);
    for (size_t n; *words; words += n + (words[n] == ' ')) {
        n = strcspn(words, " ");
        if (n && n <= all && !memcmp(r->path + all - n, words, n) &&
            (n == all || r->path[all - n - 1] == '.'))
            return true;
    }
    return false;
}

/* Number of rows of an architecture that the names select; 0 if one name selects none. */
static int fl__lora_count(const char *words, int arch) {
    int rows = 0;
    bool known = true;
    for (const char *w = words; known; w += strcspn(w, " ") + 1) {
        char word[FL__LORA_TARGETS] = "";
        const size_t n = strcspn(w, " ");
        if (n >= sizeof word) return 0;
        memcpy(word, w, n), known = false;
        for (int i = 0; i < FL__LORA_ROWS; i++)
            known |= fl__lora_rows[i].arch == arch && fl__lora_matches(word, &fl__lora_rows[i]);
        if (!w[n]) break;
    }
    for (int i = 0; known && i < FL__LORA_ROWS; i++)
        rows += fl__lora_rows[i].arch == arch && fl__lora_matches(words, &fl__lora_rows[i]);
    return rows;
}

static bool fl__lora_freeze(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix, (void)user;
    for (int64_t i = 0; i < m->n_param; i++) {
        fl_scope s = fl_scope_begin();
        fl_var *now = fv_const(fv_value(m->param[i].var));
        if (now) fv_drop(m->param[i].var), m->param[i].var = fv_keep(now);
        fl_scope_end(&s);
        if (!now) return false;
    }
    return true;
}

static bool fl__lora_add(fl_text_lora *l, fl_nn_module *layer, int64_t number, int row,
                         const fl_text_lm_opts *info) {
    const struct fl__lora_row *r = &fl__lora_rows[row];
    fl_nn_module *m = fl_nn_find(layer, r->module);
    int64_t at = 0;
    while (m && at < m->n_param && strcmp(m->param[at].name, r->param)) at++;
    if (!m || at == m->n_param)
        return fl_fail("fl_text_lora_new: layer %" PRId64 " has no weight '%s'", number, r->path);
    fl__lora_part *p = &l->part[l->n];
    const fl_tensor *w = fv_value(m->param[at].var);
    const int64_t columns = info->dim / info->heads, kv = info->kv_heads ? info->kv_heads : info->heads;
    *p = (fl__lora_part){.of = &m->param[at], .layer = number, .row = row, .rows = w->shape[0]};
    if (r->part) {
        p->first = r->part == 1 ? 0 : (info->heads + (r->part - 2) * kv) * columns;
        p->rows = (r->part == 1 ? info->heads : kv) * columns;
    }
    const fl_dtype_info *blocks = fl_dtype_registered(w->dtype);
    const int64_t in = w->shape[1] * (blocks ? blocks->block : 1);
    p->a = fv_keep(fv_param(fl_zeros(FL_SHAPE(l->o.rank, in), FL_F32)));
    p->b = fv_keep(fv_param(fl_zeros(FL_SHAPE(p->rows, l->o.rank), FL_F32)));
    l->n++;
    return p->a && p->b && fl_nn_init_uniform(p->a, -1 / sqrt((double)in), 1 / sqrt((double)in), l->o.rng) &&
           (l->list[2 * l->n - 2] = p->a) && (l->list[2 * l->n - 1] = p->b);
}

FL_API fl_text_lora *fl_text_lora_new_opt(fl_nn_module *m, fl_text_lora_opts o) {
    const fl_text_lm_opts *info = m ? fl_text_lm_info(m, NULL) : NULL;
    if (!info) return m ? NULL : fl_err_null("fl_text_lora_new: the model is NULL");
    if (!o.rank) o.rank = 8;
    if (o.alpha == 0) o.alpha = 16;
    const int arch = fl__lora_arch_of(info);
    if (!o.targets) o.targets = fl__lora_archs[arch].targets;
    fl_text_lora *l = fl_heap_alloc(sizeof *l);
    const int rows = fl__lora_count(o.targets, arch);
    bool ok = l != NULL;
    if (ok && (info->kind != FL_LM_TRANSFORMER || o.rank < 1 || o.rank > 1 << 16 || !(o.alpha > 0) || !rows ||
               strlen(o.targets) >= sizeof l->targets))
        ok = fl_fail("fl_text_lora_new: got rank %" PRId64
                     ", alpha %g, targets '%.100s' and a %s, expected rank 1 to 65536, alpha > 0, "
                     "listed targets separated by spaces, and a transformer",
                     o.rank, o.alpha, o.targets,
                     info->kind == FL_LM_TRANSFORMER ? "transformer" : "model of another kind");
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    if (ok) {
        l->m = m, l->o = o, l->arch = arch;
        memcpy(l->targets, o.targets, strlen(o.targets) + 1);
        l->part = fl_heap_alloc((size_t)(rows * info->layers) * sizeof *l->part);
        l->list = fl_heap_alloc((size_t)(2 * rows * info->layers) * sizeof(fl_var *));
        ok = l->part && l->list;
    }
    fl_nn_module *layers = fl_nn_find(m, "layers");
    for (int64_t i = 0; ok && i < info->layers; i++)
        for (int k = 0; ok && k < FL__LORA_ROWS; k++)
            if (fl__lora_rows[k].arch == arch && fl__lora_matches(o.targets, &fl__lora_rows[k]))
                ok = fl__lora_add(l, layers->child[i], i, k, info);
    ok = ok && fl_nn_visit_modules(m, fl__lora_freeze, NULL);
    fl_scope_end(&s);
    fl_quiet(-1);
    if (ok) return l;
    fl_text_lora_free(l);
    return fl_raise();
}

FL_API fv_list fl_text_lora_parameters(const fl_text_lora *l) {
    return l ? (fv_list){(int)(2 * l->n), l->list} : FV_NONE;
}

/* w + alpha / rank b a, in the rows of the update. */
static fl_var *fl__lora_sum(const fl_text_lora *l, const fl__lora_part *p, fl_var *w) {
    const int64_t end = p->first + p->rows, all = fv_value(w)->shape[0];
    fl_var *rows[3], *more = fv_mul(fv_matmul(p->b, p->a), fv_num(l->o.alpha / (double)l->o.rank));
    int n = 0;
    if (p->first) rows[n++] = fv_slice(w, 0, 0, p->first, 1);
    rows[n++] = fv_add(fv_slice(w, 0, p->first, end, 1), more);
    if (end < all) rows[n++] = fv_slice(w, 0, end, all, 1);
    return n > 1 ? fv_concat(rows, n, 0) : rows[0];
}

FL_API bool fl_text_lora_begin(fl_text_lora *l) {
    if (!l) return fl_err_false("fl_text_lora_begin: l is NULL");
    for (int64_t i = 0; i < l->n; i++) {
        fl__lora_part *p = &l->part[i];
        fl_var *w = p->of->var, *sum = fl__lora_sum(l, p, fv_cast(w, FL_F32));
        if (!sum) return fl_text_lora_end(l), false;
        p->base = w,
        p->of->var = sum; /* with several updates of one weight, each one's base is the sum before it */
    }
    return true;
}

FL_API void fl_text_lora_end(fl_text_lora *l) {
    for (int64_t i = l ? l->n : 0; i-- > 0;) {
        fl__lora_part *p = &l->part[i];
        if (p->base) p->of->var = p->base;
        p->base = NULL;
    }
}

FL_API bool fl_text_lora_merge(fl_text_lora *l) {
    if (!l) return fl_err_false("fl_text_lora_merge: l is NULL");
    bool ok = true;
    for (int64_t i = 0; ok && i < l->n; i++) {
        fl__lora_part *p = &l->part[i];
        fl_scope s = fl_scope_begin();
        fl_no_grad(true);
        fl_var *sum = fl__lora_sum(l, p, fv_cast(p->of->var, FL_F32));
        fl_var *now = sum ? fv_const(fl_contiguous(fv_value(sum))) : NULL;
        ok = now && fl_assign(fv_value(p->b), fl_num(0));
        if (ok) fv_drop(p->of->var), p->of->var = fv_keep(now);
        fl_scope_end(&s);
    }
    return ok;
}

/* ---- files ---- */

static void fl__lora_name(const fl__lora_part *p, int b, char name[200]) {
    const struct fl__lora_row *r = &fl__lora_rows[p->row];
    snprintf(name, 200, "base_model.model.%s.%" PRId64 ".%s.lora_%c.weight",
             fl__lora_archs[r->arch].layers, p->layer, r->path, b ? 'B' : 'A');
}

static bool fl__lora_ok(const fl_text_lora *l, const char *folder, const char *fn, char path[4096],
                        const char *file) {
    const fl_text_lm_opts *o = l ? fl_text_lm_info(l->m, NULL) : NULL;
    if (!l || !folder || snprintf(path, 4096, "%s/%s", folder, file) >= 4096)
        return fl_fail("%s: l or folder is NULL, or the path is longer than 4,095 bytes", fn);
    return l->arch != FL__LORA_LLAMA || (o->place == FL_LM_ROTARY && o->gated && !o->rope.interleaved) ||
           fl_fail("%s: peft has no names for this architecture; known: GPT-2, BERT, Llama, Mistral, Qwen2",
                   fn);
}

FL_API bool fl_text_lora_save(const fl_text_lora *l, const char *folder) {
    static const char fn[] = "fl_text_lora_save";
    char path[4096];
    if (!fl__lora_ok(l, folder, fn, path, "adapter_model.safetensors")) return false;
    char(*name)[200] = fl_heap_alloc((size_t)(2 * l->n) * sizeof *name);
    fl_data_named_tensor *list = name ? fl_heap_alloc((size_t)(2 * l->n) * sizeof *list) : NULL;
    for (int64_t i = 0; list && i < 2 * l->n; i++) {
        fl__lora_name(&l->part[i / 2], i & 1, name[i]);
        list[i] = (fl_data_named_tensor){name[i], fv_value(l->list[i])};
    }
    bool ok = list && fl_data_save_safetensors(path, list, (int)(2 * l->n), NULL, 0);
    fl_data_text t = {0};
    ok = ok && fl_data_text_print(
                   &t,
                   "{\n  \"peft_type\": \"LORA\",\n  \"task_type\": \"CAUSAL_LM\",\n  \"r\": %" PRId64
                   ",\n  \"lora_alpha\": %.17g,\n  \"lora_dropout\": 0.0,\n"
                   "  \"bias\": \"none\",\n  \"fan_in_fan_out\": %s,\n"
                   "  \"base_model_name_or_path\": null,\n  \"target_modules\": [\"",
                   l->o.rank, l->o.alpha, l->arch == FL__LORA_GPT2 ? "true" : "false");
    for (const char *p = l->targets; ok && *p; p++) /* "a b" becomes "a", "b" */
        ok = *p == ' ' ? fl_data_text_print(&t, "\", \"") : fl_data_text_put(&t, p, 1);
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    ok = ok && fl_data_text_print(&t, "\"]\n}\n") && fl_data_replace(fn, path, t.p, (size_t)t.n);
    fl_heap_free(t.p);
    fl_heap_free(name);
    fl_heap_free(list);
    return ok;
}

FL_API bool fl_text_lora_load(fl_text_lora *l, const char *folder) {
    static const char fn[] = "fl_text_lora_load";
    char path[4096], name[200];
    if (!fl__lora_ok(l, folder, fn, path, "adapter_model.safetensors")) return false;
    fl_data_file *f = fl_data_open_safetensors(path);
    bool ok = f != NULL;
    if (ok && fl_data_count(f) != 2 * l->n)
        ok = fl_fail("%s: %s: wrong number of tensors: got %" PRId64 ", expected %" PRId64, fn, path,
                     fl_data_count(f), 2 * l->n);
    for (int pass = 0; pass < 2; pass++) /* all are checked before any is changed */
        for (int64_t i = 0; ok && i < 2 * l->n; i++) {
            fl_scope s = fl_scope_begin();
            fl__lora_name(&l->part[i / 2], i & 1, name);
            const int64_t at = fl_data_find(f, name);
            if (at < 0) ok = fl_fail("%s: %s: tensor '%s' is missing", fn, path, name);
            else if (!fl_shape_is(fv_value(l->list[i]), fl_data_shape(f, at)))
                ok = fl_fail("%s: %s: wrong shape of '%s': got %s, expected %s", fn, path, name,
                             FL_TEXT_OF(fl_data_shape(f, at)), FL_SHAPE_TEXT(fv_value(l->list[i])));
            else if (pass) {
                fl_tensor *t = fl_data_read(f, name);
                ok = t && fl_assign(fv_value(l->list[i]), t);
            }
            fl_scope_end(&s);
        }
    fl_data_close(f);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
