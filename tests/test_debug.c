/* tests/test_debug.c - what FL_DEBUG adds: use after free, double free, freeing what another object owns

   The backend as one file, with its kernels in short. */
#define FL_STATIC
#define FL_DEBUG
#define FL_QUICK
#include "../fl_text.h"
#include "test.h"

/* Who makes such a mistake leaves objects behind. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "detect_leaks=0";
}

TEST(a_tensor_after_its_scope) {
    test_errors_return();
    fl_scope outer = fl_scope_begin(), s = fl_scope_begin();
    fl_tensor *x = fl_ones(FL_SHAPE(2, 3), FL_F32), *kept = fl_keep(fl_ones(FL_SHAPE(2, 3), FL_F32));
    fl_var *v = fv_param(kept);
    fl_scope_end(&s);
    fl_ones(FL_SHAPE(5), FL_F64); /* would have come to x's place */
    CHECK(!fl_add(x, kept));
    CHECK_ERROR("fl_add: an operand is used after its scope ended");
    CHECK(!fl_sum(x, FL_ALL_AXES));
    CHECK_ERROR("fl_sum: an operand is used after its scope ended");
    CHECK(!fl_print(x));
    CHECK_ERROR("used after its scope ended");
    CHECK(!fv_exp(v));
    CHECK_ERROR("used after its scope ended");
    CHECK(fl_item(fl_sum(kept, FL_ALL_AXES)) == 6);
    fl_drop(kept);
    CHECK(!fl_neg(kept));
    CHECK_ERROR("fl_neg: an operand is used after its scope ended, or after fl_drop");
    for (int i = 0; i < 100000; i++) { /* those that are marked are bounded */
        fl_scope step = fl_scope_begin();
        fl_ones(FL_SHAPE(3), FL_F32);
        fl_scope_end(&step);
    }
    CHECK(fl_live_tensors() < 20000);
    fl_scope_end(&outer);
}

/* Objects that users free: each mistake runs in a child process and must leave an error. */

static fl_nn_module *two_layers(void) {
    return fl_nn_sequential(fl_nn_linear(3, 4), fl_nn_linear(4, 2));
}

static fl_var *forward(fl_nn_module *m) {
    return fl_nn_forward(m, fv_const(fl_ones(FL_SHAPE(1, 3), FL_F32)));
}

static fl_data_set *numbers(void) {
    return fl_data_tensors((fl_tensor *[]){fl_arange(0, 6, 1, FL_F32)}, 1);
}

static fl_optim *optimizer(void) {
    return fl_optim_adam(FV_LIST(fv_param(fl_ones(FL_SHAPE(3), FL_F32))));
}

static fl_text_dictionary *words(void) {
    fl_text_dictionary *d = fl_text_dictionary_new();
    fl_text_dictionary_add(d, "a", 1);
    return d;
}

static fl_text_tokenizer *tokenizer(void) {
    fl_text_dictionary *d = words();
    fl_text_dictionary_set_default(d, 0);
    return fl_text_word_tokenizer(d);
}

static void module_freed_twice(void) {
    fl_nn_module *m = two_layers();
    fl_nn_free(m);
    fl_nn_free(m);
}

static void module_runs_after_free(void) {
    fl_nn_module *m = two_layers();
    fl_nn_free(m);
    two_layers(); /* would have come to its place */
    forward(m);
}

static void parameters_of_a_freed_module(void) {
    fl_nn_module *m = two_layers();
    fl_nn_free(m);
    fl_nn_parameters(m);
}

static void layer_freed_after_its_parent(void) {
    fl_nn_module *m = two_layers(), *layer = fl_nn_find(m, "1");
    fl_nn_free(m);
    fl_nn_free(layer);
}

static void layer_runs_after_its_parent_is_freed(void) {
    fl_nn_module *m = two_layers(), *layer = fl_nn_find(m, "0");
    fl_nn_free(m);
    forward(layer);
}

static void layer_in_two_parents(void) {
    fl_nn_module *m = two_layers();
    fl_nn_sequential(fl_nn_find(m, "0"));
}

static void module_inside_itself(void) {
    fl_nn_module *m = two_layers();
    fl_nn_add(fl_nn_find(m, "0"), "self", m);
}

static void freed_layer_added(void) {
    fl_nn_module *m = two_layers(), *layer = fl_nn_linear(2, 2);
    fl_nn_free(layer);
    fl_nn_add(m, "2", layer);
}

static void module_saved_after_free(void) {
    fl_nn_module *m = two_layers();
    fl_nn_free(m);
    fl_nn_save(m, test_file("x.safetensors"));
}

static void set_freed_twice(void) {
    fl_data_set *set = numbers();
    fl_data_free(set);
    fl_data_free(set);
}

static void set_read_after_free(void) {
    fl_data_sample sample;
    fl_data_set *set = numbers();
    fl_data_free(set);
    fl_data_get(set, 0, &sample);
}

static void set_freed_below_a_batch(void) {
    fl_data_sample sample;
    fl_data_set *set = numbers(), *batch = fl_data_batch(set, 2, false);
    fl_data_free(set);
    CHECK(fl_data_get(batch, 0, &sample)); /* it is still there */
    fl_data_free(batch);
}

static void set_freed_after_its_batch(void) {
    fl_data_set *set = numbers(), *batch = fl_data_batch(set, 2, false);
    fl_data_free(batch);
    fl_data_free(set);
}

static void set_in_two_batches(void) {
    fl_data_set *set = numbers(), *batch = fl_data_batch(set, 2, false);
    CHECK(!fl_data_batch(set, 3, false));
    fl_data_free(batch);
}

static void set_twice_in_one(void) {
    fl_data_set *set = numbers();
    CHECK(!fl_data_concat((fl_data_set *[]){set, set}, 2));
}

static void freed_set_shuffled(void) {
    fl_data_set *set = numbers();
    fl_data_free(set);
    fl_data_shuffle(set, 1);
}

static void optimizer_freed_twice(void) {
    fl_optim *o = optimizer();
    fl_optim_free(o);
    fl_optim_free(o);
}

static void optimizer_steps_after_free(void) {
    fl_optim *o = optimizer();
    fl_optim_free(o);
    fl_optim_step(o);
}

static void schedule_of_a_freed_optimizer(void) {
    fl_optim *o = optimizer();
    fl_optim_schedule s = {.kind = FL_LR_STEP, .every = 1};
    fl_optim_schedule_start(&s, o);
    fl_optim_free(o);
    fl_optim_schedule_step(&s);
}

static void tokenizer_freed_twice(void) {
    fl_text_tokenizer *t = tokenizer();
    fl_text_tokenizer_free(t);
    fl_text_tokenizer_free(t);
}

static void tokenizer_used_after_free(void) {
    fl_text_encoding e = {0};
    fl_text_tokenizer *t = tokenizer();
    fl_text_tokenizer_free(t);
    fl_text_encode(t, "a", 1, &e);
}

static void stream_of_a_freed_tokenizer(void) {
    int64_t n;
    fl_text_tokenizer *t = tokenizer();
    fl_text_stream s = {.tokenizer = t};
    fl_text_tokenizer_free(t);
    fl_text_stream_add(&s, 0, &n);
    fl_text_stream_free(&s);
}

static void model_freed_below_a_tokenizer(void) {
    fl_text_model *m = fl_text_word_model(words(), 0);
    fl_text_tokenizer *t = fl_text_tokenizer_new(m, "{}", NULL, 0, "test");
    fl_text_model_free(m);
    fl_text_tokenizer_free(t);
}

static void dictionary_freed_below_a_model(void) {
    fl_text_dictionary *d = words();
    fl_text_model *m = fl_text_word_model(d, 0);
    fl_text_dictionary_free(d);
    fl_text_model_free(m);
}

static void dictionary_in_two_models(void) {
    fl_text_dictionary *d = words();
    fl_text_model *m = fl_text_word_model(d, 0);
    CHECK(!fl_text_word_model(d, 0));
    fl_text_model_free(m);
}

static void reader_closed_twice(void) {
    fl_data_json *j = fl_data_json_of("1", 1);
    fl_data_json_close(j);
    fl_data_json_close(j);
}

static void file_read_after_close(void) {
    const char *path = test_file("y.npz");
    fl_data_save_npz(path, (fl_data_named_tensor[]){{"a", fl_ones(FL_SHAPE(3), FL_F32)}}, 1, false);
    fl_data_file *f = fl_data_open_npz(path);
    fl_data_close(f);
    fl_data_read(f, "a");
}

#define MISTAKE(name, text) \
    TEST(name##_is_told) { \
        test_errors_return(); \
        fl_scope s = fl_scope_begin(); \
        name(); \
        CHECK_ERROR(text); \
        fl_scope_end(&s); \
    }
MISTAKE(module_freed_twice, "fl_nn_free: the module was freed before: Sequential")
MISTAKE(module_runs_after_free, "fl_nn_forward: the module was freed before: Sequential")
MISTAKE(parameters_of_a_freed_module, "fl_nn_parameters: the module was freed before: Sequential")
MISTAKE(layer_freed_after_its_parent, "fl_nn_free: the module was freed before: Linear '1'")
MISTAKE(layer_runs_after_its_parent_is_freed, "fl_nn_forward: the module was freed before: Linear '0'")
MISTAKE(layer_in_two_parents, "belongs to another module")
MISTAKE(module_inside_itself, "is an ancestor of its new parent")
MISTAKE(freed_layer_added, "fl_nn_add: the child was freed before: Linear")
MISTAKE(module_saved_after_free, "fl_nn_save: the module was freed before: Sequential")
MISTAKE(set_freed_twice, "fl_data_free: the set was freed before: data set")
MISTAKE(set_read_after_free, "was freed before: data set")
MISTAKE(set_freed_below_a_batch, "fl_data_free: the set belongs to another set, which frees it")
MISTAKE(set_freed_after_its_batch, "fl_data_free: the set was freed before: data set")
MISTAKE(set_in_two_batches, "inner set 0 already belongs to another set")
MISTAKE(set_twice_in_one, "inner set 1 already belongs to another set")
MISTAKE(freed_set_shuffled, "fl_data_shuffle: the set was freed before: data set")
MISTAKE(optimizer_freed_twice, "fl_optim_free: the optimizer was freed before: adam")
MISTAKE(optimizer_steps_after_free, "fl_optim_step: the optimizer was freed before: adam")
MISTAKE(schedule_of_a_freed_optimizer, "the optimizer was freed before: adam")
MISTAKE(tokenizer_freed_twice, "fl_text_tokenizer_free: the tokenizer was freed before")
MISTAKE(tokenizer_used_after_free, "fl_text_encode: the tokenizer was freed before")
MISTAKE(stream_of_a_freed_tokenizer, "the tokenizer was freed before")
MISTAKE(model_freed_below_a_tokenizer, "fl_text_model_free: the model is owned by a tokenizer")
MISTAKE(dictionary_freed_below_a_model, "fl_text_dictionary_free: the dictionary is owned by a model")
MISTAKE(dictionary_in_two_models, "the vocabulary is owned by another model")
MISTAKE(reader_closed_twice, "fl_data_json_close: the reader was freed before: JSON reader")
MISTAKE(file_read_after_close, "fl_data_read: the file was freed before")

int main(int argc, char **argv) {
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
