/* examples/rnn_classification.c - predicts the language of a name with a GRU

   cc -O2 -I. examples/rnn_classification.c fl.c -lm -lpthread

   Sequences of different lengths: a name is read letter by letter by a GRU that goes both ways, and its last
   states are classified. Batches are padded; the lengths go with them, so that no padding is read.

   ./rnn_classification [NAME ...]     trains for a second, then says what it thinks of these names */
#include "arguments.h"
#include "fl.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { LANGUAGES = 4, NAMES = 40, LETTERS = 27, EPOCHS = 30, BATCH = 16 };

static const char *const language[LANGUAGES] = {"Finnish", "Italian", "Japanese", "Polish"};
/* Of each language 40 common family names; every fifth is held out. */
static const char *const names[LANGUAGES] = {
    "korhonen virtanen makinen nieminen makela hamalainen laine heikkinen koskinen jarvinen lehtonen "
    "lehtinen saarinen salminen heinonen niemi heikkila kinnunen salonen turunen salo laitinen tuominen "
    "rantanen karjalainen jokinen mattila savolainen lahtinen ahonen ojala leppanen hiltunen vaisanen "
    "leinonen miettinen kallio pitkanen aaltonen manninen",
    "rossi russo ferrari esposito bianchi romano colombo ricci marino greco bruno gallo conti deluca "
    "mancini costa giordano rizzo lombardi moretti barbieri fontana santoro mariani rinaldi caruso "
    "ferrara galli martini leone longo gentile martinelli vitale lombardo serra coppola desantis "
    "marchetti parisi",
    "sato suzuki takahashi tanaka watanabe ito yamamoto nakamura kobayashi kato yoshida yamada sasaki "
    "yamaguchi matsumoto inoue kimura hayashi shimizu yamazaki mori abe ikeda hashimoto yamashita "
    "ishikawa nakajima maeda fujita ogawa goto okada hasegawa murakami kondo ishii saito sakamoto endo "
    "aoki",
    "nowak kowalski wisniewski wojcik kowalczyk kaminski lewandowski zielinski szymanski wozniak "
    "dabrowski kozlowski jankowski mazur wojciechowski kwiatkowski krawczyk kaczmarek piotrowski "
    "grabowski zajac pawlowski michalski krol wieczorek jablonski wrobel nowakowski majewski olszewski "
    "stepien malinowski jaworski adamczyk dudek nowicki pawlak gorski witkowski walczak"};

/* Letters as numbers from 1, i64 [length]. */
static fl_tensor *spelled(const char *name, size_t n) {
    int64_t letter[64];
    if (n > 64) n = 64;
    for (size_t i = 0; i < n; i++) {
        const int c = tolower((unsigned char)name[i]);
        letter[i] = c >= 'a' && c <= 'z' ? c - 'a' + 1 : 0;
    }
    return fl_from_host(letter, FL_SHAPE((int64_t)n), FL_I64);
}

/* Name i, of language i % LANGUAGES, and that: a fl_data_get_fn. */
static bool get_name(int64_t i, fl_data_sample *out, void *user) {
    (void)user;
    const int64_t k = i % LANGUAGES;
    const char *name = names[k];
    for (int64_t skip = i / LANGUAGES; skip; skip--) name = strchr(name, ' ') + 1;
    out->n = 2;
    out->t[0] = spelled(name, strcspn(name, " "));
    out->t[1] = fl_from_host(&k, FL_SCALAR_SHAPE, FL_I64);
    return out->t[0] && out->t[1];
}

/* Batches of letters [n, t], languages [n], and lengths [n]. Every fifth name is for the test. */
static fl_data_set *batches(bool test) {
    int64_t index[LANGUAGES * NAMES], n = 0;
    for (int64_t i = 0; i < LANGUAGES * NAMES; i++)
        if ((i / LANGUAGES % 5 == 4) == test) index[n++] = i;
    fl_data_set *set = fl_data_subset(fl_data_callback(LANGUAGES * NAMES, get_name, NULL), index, n);
    if (!test) set = fl_data_shuffle(set, 1);
    return fl_data_batches(set, .size = BATCH, .pad = true, .lengths = 1);
}

/* Scores [n, LANGUAGES] of letters [n, t] with lengths [n]. */
static fl_var *classify(fl_nn_module *net, fl_tensor *letters, fl_tensor *lengths) {
    fl_var *x = fl_nn_forward(net->child[0], fv_const(letters));
    fl_vars y = fl_nn_forward_vars(net->child[1], FL_VARS(x, fv_const(lengths)));
    fl_var *last = fv_transpose(y.v[1], 0, 1); /* the states of both directions, [n, 2, hidden] */
    return fl_nn_forward(net->child[2], fv_flatten(last, 1, 2));
}

static double evaluate(fl_nn_module *net, fl_data_set *set, fl_data_confusion *confusion) {
    fl_data_frame_error error = {0};
    for (int64_t i = 0; i < fl_data_size(set); i++) {
        fl_scope s = fl_scope_begin();
        fl_no_grad(true);
        fl_data_sample b;
        if (!fl_data_get(set, i, &b)) break;
        fl_tensor *scores = fv_value(classify(net, b.t[0], b.t[2]));
        fl_data_frame_error_add(&error, scores, b.t[1]);
        if (confusion) fl_data_confusion_add(confusion, scores, b.t[1]);
        fl_scope_end(&s);
    }
    return fl_data_accuracy_percent(&error);
}

static void print_confusion(const fl_data_confusion *c) {
    printf("\n%-10s", "taken for");
    for (int k = 0; k < LANGUAGES; k++) printf("%10s", language[k]);
    for (int i = 0; i < LANGUAGES * LANGUAGES; i++) {
        if (i % LANGUAGES == 0) printf("\n%-10s", language[i / LANGUAGES]);
        printf("%10lld", (long long)c->count[i]);
    }
    putchar('\n');
}

static void print_guess(fl_nn_module *net, const char *name) {
    float p[LANGUAGES];
    fl_scope s = fl_scope_begin();
    fl_tensor *letters = fl_unsqueeze(spelled(name, strlen(name)), 0);
    fl_tensor *length = fl_from_host(&letters->shape[1], FL_SHAPE(1), FL_I64);
    fl_to_host(fl_softmax(fv_value(classify(net, letters, length)), 1), p, sizeof p);
    fl_scope_end(&s);
    printf("%-12s", name);
    for (int k = 0; k < LANGUAGES; k++) printf("  %s %.0f %%", language[k], 100 * p[k]);
    putchar('\n');
}

int main(int argc, char **argv) {
    arguments_help(argc, argv, "[NAME ...]", NULL);
    fl_seed(1);
    fl_data_set *train = batches(false), *test = batches(true);
    fl_nn_module *net = fl_nn_module_list(fl_nn_embedding(LETTERS, 16),
                                          fl_nn_gru(16, 32, .bidirectional = true),
                                          fl_nn_linear(64, LANGUAGES));
    fl_optim *optim = fl_optim_adam(fl_nn_parameters(net), .lr = 0.005);
    fl_data_sample b;
    for (int64_t epoch = 0, index = 0; epoch < EPOCHS;) {
        fl_scope s = fl_scope_begin();
        if (!fl_data_next(train, &epoch, &index, &b)) break;
        fl_var *loss = fv_cross_entropy(classify(net, b.t[0], b.t[2]), b.t[1]);
        fl_optim_zero_grad(optim);
        fl_backward(loss);
        fl_optim_clip(optim, 1);
        fl_optim_step(optim);
        if (index == 0 && epoch % 5 == 0)
            printf("epoch %2lld: loss %.4f, right %5.1f %% of the training names, %5.1f %% of the others\n",
                   (long long)epoch, fl_item(fv_value(loss)), evaluate(net, train, NULL),
                   evaluate(net, test, NULL));
        fl_scope_end(&s);
    }
    fl_data_confusion confusion = {.classes = LANGUAGES};
    const double right = evaluate(net, test, &confusion);
    print_confusion(&confusion);
    for (int i = 1; i < argc; i++) print_guess(net, argv[i]);
    if (argc == 1) print_guess(net, "Kuznetsova"), print_guess(net, "Miyazaki"), print_guess(net, "Sibelius");
    fl_data_confusion_free(&confusion);
    fl_optim_free(optim);
    fl_nn_free(net);
    fl_data_free(train);
    fl_data_free(test);
    return !(right > 70);
}
/* MIT licence: see LICENSE. */
