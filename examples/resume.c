/* examples/resume.c - training that survives being killed: checkpoints, and the same bits after resuming

   cc -O2 -I.. resume.c ../fl.c -o resume -lm -lpthread      (add -DFL_USE_ZLIB -lz to read .gz files)
   ./resume                 stop it as you like (^C, kill -9, a power cut) and start it again
   ./resume --data dir      with MNIST's four idx files in dir
   ./resume --test          trains a little at once and in pieces, and compares the two

   What training changes stands in one struct, and is listed for the file in one function. Everything else,
   the order of the data and their augmentation by threads that work ahead, is a function of (seed, epoch,
   index). */
#include "arguments.h"
#include "digits.h"
#include <stdlib.h>

typedef struct settings {
    const char *data, *file;
    int64_t epochs, samples, batch, every; /* a checkpoint every so many steps */
} settings;

typedef struct training {
    fl_nn_module *net;
    fl_optim *optim;
    fl_optim_schedule schedule;
    fl_optim_ema *ema;
    fl_rng noise;         /* of the dropout */
    fl_optim_progress at; /* step, epoch, batch of the epoch */
    double best;          /* error on the held-out digits, per cent */
    fl_data_set *set, *valid;
} training;

enum { HELD_OUT = 500 };

/* Shifts an image by up to two pixels: a function of rng, which is one of (epoch, index). */
static bool shift(fl_data_sample *sample, fl_rng *rng, void *user) {
    fl_scope s = fl_scope_begin();
    (void)user;
    fl_tensor *by = fl_randint(FL_SHAPE(2), -2, 3, rng), *x = sample->t[0];
    int64_t pixels[2] = {0, 0};
    if (by && fl_to_host(by, pixels, sizeof pixels)) x = fl_roll(fl_roll(x, pixels[0], 0), pixels[1], 1);
    sample->t[0] = fl_scope_return(&s, x);
    return sample->t[0] != NULL;
}

static fl_data_set *training_set(digits all, int64_t n, int64_t batch) {
    fl_data_set *set = fl_data_slice(fl_data_tensors((fl_tensor *[]){all.image, all.label}, 2), 0, n);
    set = fl_data_batch(fl_data_transform(fl_data_shuffle(set, 1), shift, NULL), batch, true);
    return fl_data_prefetch(fl_data_transform(set, digits_normalize, NULL), 2, 4);
}

static bool training_begin(training *t, const settings *o, digits all) {
    *t = (training){.noise = {2, 0}, .best = 100};
    t->net = fl_nn_sequential(
        fl_nn_view(FL_SHAPE(-1, 1, 28, 28)), fl_nn_conv2d(1, 16, 5, .stride = 2), fl_nn_batch_norm2d(16),
        fl_nn_relu(), fl_nn_conv2d(16, 32, 5, .stride = 2), fl_nn_relu(), fl_nn_view(FL_SHAPE(-1, 512)),
        fl_nn_dropout(0.3, .rng = &t->noise), fl_nn_linear(512, 10));
    t->optim = t->net ? fl_optim_adamw(fl_nn_parameters(t->net), .lr = 2e-3) : NULL;
    t->ema = t->net ? fl_optim_ema_new(fl_nn_parameters(t->net), 0.99) : NULL;
    t->set = training_set(all, o->samples, o->batch);
    t->valid = digits_batches(all, o->samples, HELD_OUT, 250, 0);
    t->schedule = (fl_optim_schedule){.kind = FL_LR_COSINE, .total = fl_data_size(t->set) * o->epochs};
    return t->optim && t->ema && t->set && t->valid && fl_optim_schedule_start(&t->schedule, t->optim);
}

static void training_end(training *t) {
    fl_data_free(t->set);
    fl_data_free(t->valid);
    fl_optim_ema_free(t->ema);
    fl_optim_free(t->optim);
    fl_nn_free(t->net);
}

/* All that a step or an epoch changes; the process's generator comes along by itself. */
static bool training_file(training *t, const char *path, bool save) {
    fl_optim_checkpoint c = {.at = &t->at};
    fl_nn_state *s = &c.state;
    const bool ok = fl_nn_state_add_module(s, "model.", t->net) &&
                    fl_optim_checkpoint_add(&c, "optim.", t->optim) &&
                    fl_optim_schedule_state(&t->schedule, "lr.", s) &&
                    fl_optim_ema_state(t->ema, "ema.", s) &&
                    fl_nn_state_add_rng(s, "", "noise", &t->noise) &&
                    fl_nn_state_add_number(s, "", "best", &t->best) &&
                    fl_nn_state_add_fixed(s, "", "batches", fl_data_size(t->set)) &&
                    (save ? fl_optim_checkpoint_save(&c, path) : fl_optim_checkpoint_load(&c, path));
    fl_optim_checkpoint_free(&c);
    return ok;
}

/* The averaged weights on the held-out digits. */
static bool evaluate(training *t) {
    fl_data_frame_error wrong = {0};
    bool ok = fl_optim_ema_swap(t->ema);
    fl_nn_train(t->net, false);
    for (int64_t i = 0; ok && i < fl_data_size(t->valid); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        fl_no_grad(true);
        ok = fl_data_get(t->valid, i, &b);
        fl_var *y = ok ? fl_nn_forward(t->net, fv_const(b.t[0])) : NULL;
        ok = y && fl_data_frame_error_add(&wrong, fv_value(y), b.t[1]);
        fl_scope_end(&s);
    }
    fl_nn_train(t->net, true);
    const double error = fl_data_frame_error_percent(&wrong);
    printf("epoch %lld: step %lld, error %.2f %%\n", (long long)t->at.epoch, (long long)t->at.step, error);
    fflush(stdout);
    t->best = error < t->best ? error : t->best;
    return fl_optim_ema_swap(t->ema) && ok;
}

static bool step(training *t) {
    fl_scope s = fl_scope_begin();
    fl_data_sample b;
    bool ok = fl_data_next(t->set, &t->at.epoch, &t->at.position, &b);
    fl_var *loss = ok ? fv_cross_entropy(fl_nn_forward(t->net, fv_const(b.t[0])), b.t[1]) : NULL;
    fl_optim_zero_grad(t->optim);
    ok = loss && fl_backward(loss) && fl_optim_step(t->optim) && fl_optim_ema_update(t->ema) &&
         fl_optim_schedule_step(&t->schedule);
    t->at.step++;
    fl_scope_end(&s);
    return ok;
}

static bool exists(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

/* Goes on from the file, if there is one, for at most so many steps. The file is written behind the
   evaluation of an epoch, so that this is done once. *done: all epochs are. */
static bool train(const settings *o, digits all, int64_t steps, bool *done) {
    training t;
    bool ok = training_begin(&t, o, all) && (!exists(o->file) || training_file(&t, o->file, false));
    if (ok && t.at.step) printf("going on from %s at step %lld\n", o->file, (long long)t.at.step);
    while (ok && t.at.epoch < o->epochs && steps-- > 0) {
        ok = step(&t) && (t.at.position || evaluate(&t));
        if (ok && (t.at.position == 0 || t.at.step % o->every == 0)) ok = training_file(&t, o->file, true);
    }
    *done = t.at.epoch >= o->epochs;
    if (ok && *done) printf("done: %lld steps, best error %.2f %%\n", (long long)t.at.step, t.best);
    training_end(&t);
    return ok;
}

static bool same_files(const char *a, const char *b) {
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int x = 0, y = f && g ? 0 : 1;
    while (x == y && x != EOF) x = getc(f), y = getc(g);
    if (f) fclose(f);
    if (g) fclose(g);
    return x == y;
}

/* Once without a stop, and once with one after every 7 steps, 2 of which are forgotten each time. */
static bool test(settings o, digits all) {
    char whole[100], parts[110];
    snprintf(whole, sizeof whole, "%s/fl_resume_%.0f", P_tmpdir, fl_data_now() * 1e9);
    snprintf(parts, sizeof parts, "%s_parts", whole);
    bool done = false;
    o.file = whole;
    fl_seed(0);
    bool ok = train(&o, all, INT64_MAX, &done);
    o.file = parts;
    for (int i = 0; ok && (i == 0 || !done); i++) {
        fl_seed((uint64_t)i); /* whatever it is: the file's counts */
        ok = train(&o, all, 7, &done);
    }
    ok = ok && (same_files(whole, parts) || fl_fail("resume: training in parts gave other bits"));
    if (ok) puts("in parts and at once: the same bits");
    remove(whole);
    remove(parts);
    return ok;
}

int main(int argc, char **argv) {
    settings o = {.file = "resume.safetensors", .epochs = 5, .samples = 10000, .batch = 64, .every = 20};
    bool testing = false, done;
    const argument list[] = {
        {"data", .text = &o.data, .about = "MNIST's idx files; without: digits drawn here"},
        {"file", .text = &o.file, .about = "the checkpoint"},
        {"test", .on = &testing, .about = "trains at once and in pieces, and compares"},
        {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    if (testing) o = (settings){.data = o.data, .epochs = 2, .samples = 160, .batch = 16, .every = 5};
    fl_scope s = fl_scope_begin();
    digits all;
    bool ok = o.data ? digits_load(o.data, "train", &all) : digits_draw(o.samples + HELD_OUT, 1, &all);
    if (ok && o.data && !testing) o.samples = all.image->shape[0] - HELD_OUT;
    ok = ok && (testing ? test(o, all) : train(&o, all, INT64_MAX, &done));
    if (!ok) fprintf(stderr, "resume: %s\n", fl_error() ? fl_error() : "failed");
    fl_scope_end(&s);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
