/* examples/rnn_lm.c - a character-level LSTM language model: cc -O2 -I. examples/rnn_lm.c fl.c -lm -lpthread

   The text is cut into BATCH rows that are read in parallel, STEPS characters at a time; the state is
   carried over from step to step without its history (fv_detach): truncated backpropagation through time.
   The loss of a character is -log P(character | all before); exp(loss) is the perplexity.

   ./rnn_lm                                         overfits a built-in sonnet ./rnn_lm --data FILE [--steps
   N] [--log FILE]    trains on a text file, such as tinyshakespeare's input.txt */
#include "arguments.h"
#include "fl.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, BATCH = 8, STEPS = 32, HIDDEN = 128 };

static const char sonnet[] =
    "Shall I compare thee to a summer's day?\nThou art more lovely and more temperate:\n"
    "Rough winds do shake the darling buds of May,\nAnd summer's lease hath all too short a date;\n"
    "Sometime too hot the eye of heaven shines,\nAnd often is his gold complexion dimm'd;\n"
    "And every fair from fair sometime declines,\nBy chance or nature's changing course untrimm'd;\n"
    "But thy eternal summer shall not fade,\nNor lose possession of that fair thou ow'st;\n"
    "Nor shall death brag thou wander'st in his shade,\nWhen in eternal lines to time thou grow'st:\n"
    "So long as men can breathe or eyes can see,\nSo long lives this, and this gives life to thee.\n\n";

typedef struct options {
    const char *data, *log;
    int64_t steps;
} options;

/* The bytes of a file, or the sonnet four times, as i64 [BATCH, length]. */
static fl_tensor *read_text(const char *path) {
    fl_tensor *bytes = fl_from_host(sonnet, FL_SHAPE(sizeof sonnet - 1), FL_U8);
    if (path) {
        fl_data_stream f;
        if (!fl_data_stream_open(&f, "rnn_lm", path, FL_DATA_READ)) return NULL;
        bytes = fl_empty(FL_SHAPE(f.size), FL_U8);
        const bool ok = f.size && fl_data_stream_read(&f, fl_map(bytes, FL_WRITE), (size_t)f.size, 0);
        if (f.size) fl_unmap(bytes, FL_WRITE);
        f.io.close(f.io.user, f.file);
        if (!ok) return NULL;
    } else bytes = fl_concat((fl_tensor *[]){bytes, bytes, bytes, bytes}, 4, 0);
    const int64_t row = fl_numel(bytes) / BATCH;
    return fl_cast(fl_reshape(fl_slice(bytes, 0, 0, row * BATCH, 1), FL_SHAPE(BATCH, row)), FL_I64);
}

/* The LSTM's state: h and c [1, n, HIDDEN], kept from step to step; NULL: initial. */
typedef struct lstm_state {
    fl_var *h, *c;
} lstm_state;

static void set_state(lstm_state *m, fl_var *h, fl_var *c) {
    fl_var *old[] = {m->h, m->c};
    m->h = h ? fv_keep(fv_detach(h)) : NULL;
    m->c = c ? fv_keep(fv_detach(c)) : NULL;
    fv_drop(old[0]);
    fv_drop(old[1]);
}

/* Scores [n, t, BYTES] of the next character after each of the characters i64 [n, t]. */
static fl_var *next_scores(fl_nn_module *net, fl_tensor *letters, lstm_state *m) {
    fl_var *x = fl_nn_forward(net->child[0], fv_const(letters));
    fl_vars y = fl_nn_forward_vars(net->child[1], m->h ? FL_VARS(x, m->h, m->c) : FL_VARS(x));
    set_state(m, y.v[1], y.v[2]);
    return fl_nn_forward(net->child[2], y.v[0]);
}

/* Generates n characters from `start`, sampled from softmax(scores / temperature). */
static void write_text(fl_nn_module *net, const char *start, int n, double temperature) {
    lstm_state m = {NULL, NULL};
    fl_scope all = fl_scope_begin();
    fl_no_grad(true);
    int64_t letter = (unsigned char)*start;
    for (int i = 0; i < n; i++) {
        fl_scope s = fl_scope_begin();
        putchar((int)letter);
        fl_var *scores = next_scores(net, fl_from_host(&letter, FL_SHAPE(1, 1), FL_I64), &m);
        fl_tensor *p = fl_softmax(fl_div(fv_value(scores), fl_num(temperature)), 2);
        const int64_t drawn = fl_item_int(fl_multinomial(fl_reshape(p, FL_SHAPE(BYTES)), 1, true, NULL));
        letter = *start && *++start ? (unsigned char)*start : drawn;
        fl_scope_end(&s);
    }
    putchar('\n');
    set_state(&m, NULL, NULL);
    fl_scope_end(&all);
}

/* Returns the last loss. */
static double train(fl_nn_module *net, fl_tensor *text, const options *o, fl_data_log *log) {
    static fl_data_curve curve = {.name = "bits per letter"};
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(net), .lr = 0.01);
    fl_data_progress bar = fl_data_progress_begin(stderr, "reading", o->steps);
    lstm_state m = {NULL, NULL};
    double loss_now = (double)NAN;
    int64_t at = 0;
    for (int64_t step = 0; step < o->steps; step++, at += STEPS) {
        fl_scope s = fl_scope_begin();
        if (at + STEPS + 1 > text->shape[1]) at = 0, set_state(&m, NULL, NULL); /* restart */
        fl_tensor *x = fl_slice(text, 1, at, at + STEPS, 1);
        fl_tensor *next = fl_slice(text, 1, at + 1, at + STEPS + 1, 1);
        fl_var *scores = fv_reshape(next_scores(net, x, &m), FL_SHAPE(BATCH * STEPS, BYTES));
        fl_var *loss = fv_cross_entropy(scores, fl_reshape(next, FL_SHAPE(BATCH * STEPS)));
        fl_optim_set_lr(optim, fl_optim_lr_cosine(0.01, 0, step, o->steps));
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_clip(optim, 1); /* against exploding gradients */
        fl_optim_step(optim);
        loss_now = fl_item(fv_value(loss));
        fl_data_curve_add(&curve, (double)step, loss_now / 0.693147);
        fl_data_progress_step(&bar, step + 1, "loss %.3f", loss_now);
        if (log) fl_data_log_add(log, step, "loss", loss_now);
        fl_scope_end(&s);
    }
    fl_data_progress_end(&bar);
    set_state(&m, NULL, NULL);
    fl_optim_free(optim);
    fl_data_plot_print(stdout, FL_DATA_CURVES(&curve), .x_label = "step");
    return loss_now;
}

int main(int argc, char **argv) {
    options o = {.steps = 300};
    const argument list[] = {{"data", .text = &o.data, .about = "a text file; without: a sonnet"},
                             {"log", .text = &o.log, .about = ".csv, .jsonl or TensorBoard's *tfevents*"},
                             {"steps", .whole = &o.steps, .low = 1, .high = 1e9},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return 2;
    fl_seed(1);
    fl_scope all = fl_scope_begin();
    fl_tensor *text = read_text(o.data);
    fl_data_log *log = o.log ? fl_data_log_open(o.log) : NULL;
    bool ok = text && (log || !o.log) && (text->shape[1] > STEPS ||
                                          fl_fail("the text is too short: got %d characters per row, "
                                                  "expected more "
                                                  "than %d", (int)text->shape[1], STEPS));
    if (ok) {
        fl_nn_module *net = fl_nn_module_list(fl_nn_embedding(BYTES, 32), fl_nn_lstm(32, HIDDEN),
                                              fl_nn_linear(HIDDEN, BYTES));
        const double loss = train(net, text, &o, log);
        printf("loss %.3f, perplexity %.1f; a sample:\n\n", loss, exp(loss));
        write_text(net, "Shall I ", 300, 0.7);
        ok = loss < (o.data ? 3.5 : 1);
        fl_nn_free(net);
    } else fprintf(stderr, "rnn_lm: %s\n", fl_error());
    ok = fl_data_log_close(log) && ok;
    fl_scope_end(&all);
    return !ok;
}
/* MIT licence: see LICENSE. */
