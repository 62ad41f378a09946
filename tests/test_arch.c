/* test_arch.c - acoustic models from arch files: every token, errors, masks, steps beside PyTorch's */
#include "../fl_all.h"
#include "test.h"

static fl_nn_module *limited(const char *text, int64_t max_parameters, int64_t max_layers) {
    const fl_speech_arch_opts o = {.max_parameters = max_parameters, .max_layers = max_layers};
    return fl_speech_arch_parse("a.arch", text, (int64_t)strlen(text), 3, 7, o);
}

static fl_nn_module *arch(const char *text, int64_t features, int64_t labels, fl_rng *rng) {
    return fl_speech_arch_parse("a.arch", text, (int64_t)strlen(text), features, labels,
                                (fl_speech_arch_opts){.rng = rng});
}

/* What a layer makes of [1, 2, 3, 4] (batch, channels, features, time), sizes written fastest first. */
TEST(every_token_runs) {
    static const struct { const char *line, *shape; int64_t parameters;
    } table[] = {
        {"V 0 6 1 0", "[1, 1, 6, 4]", 0},
        {"V 12 -1 1 1", "[1, 1, 2, 12]", 0},
        {"V -1 0", "[1, 1, 3, 8]", 0},
        {"V 24", "[1, 1, 1, 24]", 0},
        {"V 2 2 3 2 1\nRO 4 3 2 1 0", "[2, 2, 3, 2, 1]", 0},
        {"RO 2 0 3 1", "[3, 1, 4, 2]", 0},
        {"RO 0 2 1", "[1, 3, 2, 4]", 0},
        {"PD 0 1 2 0 3", "[1, 2, 6, 7]", 0},
        {"C 2 5 3 1", "[1, 5, 3, 2]", 35},
        {"C1 2 5 3 2 -1", "[1, 5, 3, 2]", 35},
        {"C 2 5 3 1 2 2", "[1, 5, 3, 4]", 35},
        {"C2 2 5 3 2 1 1 1 0", "[1, 5, 2, 4]", 65},
        {"C2 2 5 2 2 1 1 0 -1 2 1", "[1, 5, 3, 2]", 45},
        {"C2 2 5 3 2 1 1", "[1, 5, 2, 2]", 65},
        {"AC 2 5 3 1 2", "[1, 5, 3, 6]", 35},
        {"AC 2 5 3 1 1 0", "[1, 5, 3, 4]", 35},
        {"AC 2 5 3 1 -1 0", "[1, 5, 3, 4]", 35},
        {"AC 2 5 4 3 -1 1 2", "[1, 5, 3, 2]", 45},
        {"TDS 2 3 3", "[1, 2, 3, 4]", 2 * 2 * 3 + 2 + 2 * (36 + 6) + 4},
        {"TDS 2 3 3 0.1 8 0 0", "[1, 2, 3, 4]", 14 + 48 + 8 + 48 + 6 + 4},
        {"TR 4 8 2 5 0.1 0.1 1 1", "[1, 2, 3, 4]", 4 * 16 + 16 + 9 * 2 + 32 + 8 + 32 + 4 + 16},
        {"CFR 4 8 2 5 3 0.1", "[1, 2, 3, 4]", 374},
        {"POSEMB 4 9 0.1", "[1, 2, 3, 4]", 36},
        {"SINPOSEMB 4 2", "[1, 2, 3, 4]", 0},
        {"L 4 6", "[1, 2, 3, 6]", 30},
        {"L 4 6 0", "[1, 2, 3, 6]", 24},
        {"BN 2 2", "[1, 2, 3, 4]", 4},
        {"BN 6 1 2", "[1, 2, 3, 4]", 12},
        {"LN 0 1 2", "[1, 2, 3, 4]", 2},
        {"LN 2", "[1, 2, 3, 4]", 2},
        {"WN 3 C 2 5 3 1", "[1, 5, 3, 2]", 40},
        {"WN 0 L 4 6", "[1, 2, 3, 6]", 36},
        {"DO 0.5", "[1, 2, 3, 4]", 0},
        {"M 2 1 2 1", "[1, 2, 3, 2]", 0},
        {"A 3 3 1 1 1 1", "[1, 2, 3, 4]", 0},
        {"ELU", "[1, 2, 3, 4]", 0},
        {"R", "[1, 2, 3, 4]", 0},
        {"R6", "[1, 2, 3, 4]", 0},
        {"PR 1 0.1", "[1, 2, 3, 4]", 1},
        {"LG", "[1, 2, 3, 4]", 0},
        {"HT", "[1, 2, 3, 4]", 0},
        {"T", "[1, 2, 3, 4]", 0},
        {"SH", "[1, 2, 3, 4]", 0},
        {"SH 2", "[1, 2, 3, 4]", 0},
        {"GLU 2", "[1, 1, 3, 4]", 0},
        {"LSM 0", "[1, 2, 3, 4]", 0},
        {"RNN 4 5", "[1, 2, 3, 5]", 20 + 25 + 10},
        {"GRU 4 5 2 1", "[1, 2, 3, 10]", 2 * 3 * (20 + 25 + 10) + 2 * 3 * (50 + 25 + 10)},
        {"LSTM 4 5 1 0 0.1", "[1, 2, 3, 5]", 4 * 55},
        {"PC f32", "[1, 2, 3, 4]", 0},
        {"RES 2 1\nL 4 5\nL 5 4\nSKIP 0 3 0.5", "[1, 2, 3, 4]", 25 + 24},
        {"RES 2 2 3\nL 4 5\nL 5 4\nSKIP 0 2\nSKIPL 0 3 1\nL 4 4", NULL, 0},
        {"RES 2 2 3\nL 4 4\nR\nSKIP 1 3\nSKIPL 0 3 2\nL 4 5\nL 5 4", "[1, 2, 3, 4]", 3 * (20 + 25 + 24)}};
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_uniform(FL_SHAPE(1, 2, 3, 4), 0.1, 1, FL_F32, NULL);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fl_nn_module *m = arch(table[i].line, 3, 7, NULL);
        if (!CHECK(m != NULL)) {
            printf("%s: %s\n", table[i].line, fl_error());
            fl_error_clear();
            continue;
        }
        fl_var *y = fl_nn_forward(m, fv_const(x));
        if (!table[i].shape) CHECK_ERROR("does not match");
        else if (!CHECK(y && !strcmp(FL_SHAPE_TEXT(fv_value(y)), table[i].shape)) ||
                 !CHECK_EQ_INT(fl_nn_count(m), table[i].parameters))
            printf("%s: %s\n", table[i].line, y ? FL_SHAPE_TEXT(fv_value(y)) : fl_error());
        /* It is made where its parameters are allowed, and one fewer is too few. */
        fl_nn_module *same = limited(table[i].line, fl_nn_count(m), 0);
        if (!CHECK(same && !fl_error())) printf("%s: %s\n", table[i].line, fl_error()), fl_error_clear();
        fl_nn_free(same);
        if (fl_nn_count(m) > 1) {
            CHECK(!limited(table[i].line, fl_nn_count(m) - 1, 0));
            CHECK_ERROR(".max_parameters");
        }
        fl_nn_free(m);
    }
    fl_nn_module *m = arch("SAUG 0 2 1 3 1 1", 3, 7, NULL);
    fl_var *y = fl_nn_forward(m, fv_const(fl_ones(FL_SHAPE(2, 1, 3, 40), FL_F32)));
    CHECK(y && fl_item(fl_sum(fv_value(y), FL_ALL_AXES)) <= 240);
    fl_nn_train(m, false);
    y = fl_nn_forward(m, fv_const(fl_ones(FL_SHAPE(2, 1, 3, 40), FL_F32)));
    CHECK(y && fl_item(fl_sum(fv_value(y), FL_ALL_AXES)) == 240);
    fl_nn_free(m);
    m = arch("E 6 5", 3, 7, NULL);
    y = fl_nn_forward(m, fv_const(fl_zeros(FL_SHAPE(2, 3), FL_I64)));
    CHECK(y && fv_value(y)->shape[2] == 6);
    fl_nn_free(m);
    for (int k = 0; k < 2; k++) {
        const char *text = k ? "ADAPTIVEE 8 2,5" : "E 6 5";
        m = arch(text, 3, 7, NULL);
        CHECK_EQ_INT(m ? fl_nn_count(m) : 0, k ? 8 * (2 + 8) + 2 * (3 + 8) : 30);
        CHECK(!limited(text, m ? fl_nn_count(m) - 1 : 0, 0));
        CHECK_ERROR(".max_parameters");
        fl_nn_module *same = limited(text, m ? fl_nn_count(m) : 0, 0);
        CHECK(same != NULL);
        fl_nn_free(same);
        fl_nn_free(m);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

TEST(errors_name_file_line_and_token) {
    static const struct { const char *text, *want;
    } table[] = {{"", "a.arch: the file has no layers"},
                 {"# nothing\n\nX 1", "a.arch:3: X: unknown layer"},
                 {"R\nC 1 2", "a.arch:2: C: got 2 arguments, expected 4 to 6"},
                 {"C 1 2 3 1 1 1 1", "a.arch:1: C: got 7 arguments"},
                 {"L 4 x", "a.arch:1: L: argument 2, 'x', is not a number below 1e9"},
                 {"L 4 -3", "a.arch:1: L: fl_nn_linear"},
                 {"RES 2 1\nR", "a.arch:2: RES: the file ends before all its layers"},
                 {"RES 1 1\nR\nL 4 4", "a.arch:3: L: expected SKIP or SKIPL"},
                 {"RES 1 1\nR\nSKIP 0 5", "a.arch:3: SKIP: the layers do not exist"},
                 {"RES 1 1 0\nR\nSKIP 0 2", "a.arch:1: RES: expected 1 to 1000 layers"},
                 {"WN 3 R", "a.arch:1: WN: the layer has no weight"},
                 {"WN 9 L 3 4", "a.arch:1: WN: the weight does not have this axis"},
                 {"WN x L 3 4", "a.arch:1: WN: the axis is not a number"},
                 {"RO 0 1 2 4", "a.arch:1: RO: axes must be 0 to 3"},
                 {"RO 0 2 2", "a.arch:1: RO: axes must be 0 to 2, each once"},
                 {"RO 0 1 3", "a.arch:1: RO: axes must be 0 to 2, each once"},
                 {"V -1 -1 2 4", "a.arch:1: V: at most one size may be -1"},
                 {"V 1 2 1 1 1 -2", "a.arch:1: V: sizes must be >= 1, 0 (unchanged) or -1 (inferred)"},
                 {"AC 4 4 3 1 -2", "a.arch:1: AC: a padding must be >= 0, or -1 (same length)"},
                 {"AC 4 4 3 1 -1 1.5", "AC: the fraction of padding at the end must be in [0, 1], got 1.5"},
                 {"PD 0 1 2 3", "a.arch:1: PD: expected pairs"},
                 {"PC int", "a.arch:1: PC: unknown dtype 'int'; known: f16, bf16, f32, f64"},
                 {"ADAPTIVEE 8 2,x", "a.arch:1: ADAPTIVEE: invalid cutoffs '2,x'"},
                 {"TR 10 8 4 5 0", "a.arch:1: TR: fl_nn_attention"},
                 {"C 4 4 0 1", "a.arch:1: C: kernels, strides and sizes must be >= 1"},
                 {"C 4 4 3 0", "a.arch:1: C: kernels"},
                 {"C 0 4 3 1", "a.arch:1: C: fl_nn_conv2d: in, out, kernel"},
                 {"C 4 4 3 1 -2", "a.arch:1: C: a padding must be >= 0, or -1 (same length)"},
                 {"C2 1 2 3 3 0 1 0 0", "a.arch:1: C2: kernels"},
                 {"AC 4 4 3 1 1 0.5 0", "a.arch:1: AC: kernels"},
                 {"TDS 0 3 4", "a.arch:1: TDS: kernels"},
                 {"TDS 2 3 4 2", "a.arch:1: TDS: fl_nn_dropout: p must be in [0, 1]"},
                 {"TR 8 8 0 5 0", "a.arch:1: TR: fl_nn_attention: dim and heads must be positive"},
                 {"CFR 8 8 3 5 3 0", "a.arch:1: CFR: fl_nn_attention: dim (8) is not divisible by heads (3)"},
                 {"POSEMB 8 0", "a.arch:1: POSEMB: fl_nn_position: steps and dim must be positive"},
                 {"SINPOSEMB 0", "a.arch:1: SINPOSEMB: fl_nn_sinusoid: dim must be positive"},
                 {"E 0 3", "a.arch:1: E: fl_nn_embedding: n and dim must be positive"},
                 {"BN 4 7", "a.arch:1: BN: axes must be in 0 to 3"},
                 {"LN 1.5", "a.arch:1: LN: axes must be in 0 to 3"},
                 {"M 2 2 0 1", "a.arch:1: M: kernels"},
                 {"PR 0", "a.arch:1: PR: fl_nn_prelu: n must be positive"},
                 {"GLU", "a.arch:1: GLU: got 0 arguments, expected 1 to 1"},
                 {"LSTM 4 4 0", "a.arch:1: LSTM: kernels"},
                 {"RES 1 1\nR\nSKIPL 0 2 0", "a.arch:3: SKIPL: expected 1 to 100 layers"},
                 {"L 4 1e12", "a.arch:1: L: argument 2, '1e12', is not a number below 1e9"},
                 {"C 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17", "a.arch:1: C: got more than 15 arguments"},
                 {"POSEMB 1 900000000",
                  "POSEMB: the network has 900000000 parameters, .max_parameters is 536870912"},
                 {"R\nE 999999999 999999999", "a.arch:2: E: the network has 999999998000000000 parameters"},
                 {"ADAPTIVEE 8 2,999999999999", "a.arch:1: ADAPTIVEE: "},
                 {"RES 1 0 1000\nRES 1 0 999\nL 9 9", "a.arch:3: L: the network has 4097 layers"},
                 {"RES 1 0 1000\nL 900 900", "a.arch:2: L: the network has 537626700 parameters"},
                 {"RNN 1 1 99999999", "a.arch:1: RNN: the network has 99999999 layers, .max_layers is 4096"},
                 {"L "
                  "NFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEATNFEAT"
                  "NFEATNFEATNFEATNFEATNFEATNFEAT 1",
                  "a.arch:1: a field: it is longer than 40 bytes"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        CHECK(!arch(table[i].text, 80, 7, NULL));
        CHECK_ERROR(table[i].want);
    }
    CHECK(!fl_speech_arch("/nowhere.arch", 1, 1));
    CHECK_ERROR("/nowhere.arch");
    fl_nn_module *m = arch("R", 3, 7, NULL);
    fl_scope s = fl_scope_begin();
    CHECK(!fl_speech_arch_forward(m, fv_const(fl_ones(FL_SHAPE(2, 5, 3), FL_F32)), NULL, NULL));
    CHECK_ERROR("the network's output is [2, 1, 3, 5], expected [1, 2, t, labels]");
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* Arguments of a line that is good, one after the other replaced by one that is not. */
TEST(every_argument_is_checked) {
    static const struct { const char *line; int from, to; const char *bad, *why;
    } table[] = {{"C 2 5 3 1 1 1", 3, 5, "0", "kernels"},   {"C 2 5 3 1 1 1", 3, 5, "1.5", "kernels"},
                 {"C 2 5 3 1 1 1", 5, 6, "-2", "padding"},  {"C 2 5 3 1 1 1", 6, 7, "0", "kernels"},
                 {"C1 2 5 3 1 1 1", 3, 5, "0", "kernels"},  {"C1 2 5 3 1 1 1", 5, 6, "-2", "padding"},
                 {"C1 2 5 3 1 1 1", 6, 7, "0", "kernels"},  {"C2 2 5 2 2 1 1 0 0 1 1", 3, 7, "0", "kernels"},
                 {"C2 2 5 2 2 1 1 0 0 1 1", 7, 9, "-2", "padding"},
                 {"C2 2 5 2 2 1 1 0 0 1 1", 9, 11, "0", "kernels"},
                 {"AC 2 5 3 1 1 0.5 1", 3, 5, "0", "kernels"}, {"AC 2 5 3 1 1 0.5 1", 7, 8, "0", "kernels"},
                 {"M 2 1 2 1 0 0", 1, 5, "0", "kernels"},   {"M 2 1 2 1 0 0", 5, 7, "-2", "padding"},
                 {"A 2 1 2 1 0 0", 1, 5, "0", "kernels"},   {"A 2 1 2 1 0 0", 5, 7, "-2", "padding"},
                 {"RNN 4 5 1", 1, 4, "0", "kernels"},       {"GRU 4 5 1", 1, 4, "0", "kernels"},
                 {"LSTM 4 5 1", 1, 4, "0.5", "kernels"},    {"TDS 2 3 3", 1, 4, "0", "kernels"},
                 {"RO 2 0 3 1", 1, 5, "4", "axes"},         {"RO 2 0 3 1", 1, 5, "-1", "axes"},
                 {"LN 0 1 2", 1, 4, "4", "axes"},           {"BN 2 2 1 0", 2, 5, "4", "axes"},
                 {"GLU 2", 1, 2, "4", "axes"},              {"LSM 0", 1, 2, "-1", "axes"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fl_scope s = fl_scope_begin();
        fl_nn_module *m = arch(table[i].line, 3, 7, NULL);
        if (!CHECK(m != NULL)) printf("%s: %s\n", table[i].line, fl_error()), fl_error_clear();
        fl_nn_free(m);
        for (int k = table[i].from; k < table[i].to; k++) {
            char text[80] = "";
            const char *p = table[i].line, *end = p + strlen(p), *f;
            int64_t n;
            for (int field = 0; (f = fl_text_field(&p, end, &n)); field++)
                snprintf(text + strlen(text), sizeof text - strlen(text), " %.*s",
                         field == k ? (int)strlen(table[i].bad) : (int)n, field == k ? table[i].bad : f);
            m = arch(text, 3, 7, NULL);
            if (!CHECK(!m)) printf("%s\n", text);
            CHECK_ERROR(table[i].why);
            fl_nn_free(m);
        }
        fl_scope_end(&s);
    }
    CHECK_NOTHING_LIVES();
}

/* Too many arguments are refused by their number. */
TEST(arguments_are_counted) {
    static const struct { const char *token; int least, most;
    } table[] = {{"V", 1, 8},    {"RO", 1, 8},  {"PD", 3, 9},        {"C", 4, 6},        {"C1", 4, 6},
                 {"C2", 6, 10},  {"AC", 4, 7},  {"TDS", 3, 7},       {"TR", 5, 8},       {"CFR", 6, 7},
                 {"L", 2, 3},    {"E", 2, 2},   {"ADAPTIVEE", 2, 2}, {"SINPOSEMB", 1, 2}, {"BN", 2, 4},
                 {"LN", 1, 3},   {"DO", 1, 1},  {"POSEMB", 2, 3},    {"M", 4, 6},        {"A", 4, 6},
                 {"ELU", 0, 0},  {"R", 0, 0},   {"R6", 0, 0},        {"PR", 0, 2},       {"LG", 0, 0},
                 {"HT", 0, 0},   {"T", 0, 0},   {"SH", 0, 1},        {"GLU", 1, 1},      {"LSM", 1, 1},
                 {"RNN", 2, 5},  {"GRU", 2, 5}, {"LSTM", 2, 5},      {"SAUG", 6, 6},     {"PC", 1, 1},
                 {"RES", 2, 3}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[80], why[80];
        int n = snprintf(text, sizeof text, "%s", table[i].token);
        for (int k = 0; k < 12; k++) n += snprintf(text + n, sizeof text - (size_t)n, " 1");
        snprintf(why, sizeof why, "%s: got 12 arguments, expected %d to %d", table[i].token, table[i].least,
                 table[i].most);
        CHECK(!arch(text, 3, 7, NULL));
        CHECK_ERROR(why);
    }
    CHECK_NOTHING_LIVES();
}

/* Frames that AC pads with, as Flashlight's: half on each side, of which |1 - 2 future|, rounded down, moves
   to the other. As many frames where the padding is -1. */
TEST(asymmetric_padding) {
    static const struct { const char *end; int64_t low, high;
    } table[] = {{"-1 0", 4, 0},   {"-1 0.25", 3, 1}, {"-1 0.3", 2, 2},   {"-1 0.5", 2, 2}, {"-1 0.75", 1, 3},
                 {"-1 1", 0, 4},   {"-1", 0, 4},      {"-1 0 2", 8, 0},   {"3 0.3", 4, 2},  {"3 0.2", 4, 2},
                 {"3 0.1", 5, 1},  {"2 0", 4, 0},     {"0 0", 0, 0},      {"2 0.8", 1, 3}};
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_const(fl_uniform(FL_SHAPE(1, 2, 3, 20), -1, 1, FL_F32, NULL));
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[100];
        fl_rng rng[] = {fl_data_rng(5, 0, 0), fl_data_rng(5, 0, 0)};
        snprintf(text, sizeof text, "AC 2 4 5 1 %s", table[i].end);
        fl_nn_module *m = arch(text, 3, 7, &rng[0]);
        snprintf(text, sizeof text, "PD 0 %d %d\nC 2 4 5 1 0 %d", (int)table[i].low, (int)table[i].high,
                 strcmp(table[i].end, "-1 0 2") ? 1 : 2);
        fl_nn_module *same = arch(text, 3, 7, &rng[1]);
        fl_var *y = fl_nn_forward(m, x), *z = fl_nn_forward(same, x);
        if (!CHECK(y && z && fl_same_shape(fv_value(y), fv_value(z)) &&
                   fl_item(fl_amax(fl_abs(fl_sub(fv_value(y), fv_value(z))), FL_ALL_AXES)) == 0))
            printf("AC %s\n", table[i].end), fl_error_clear();
        fl_nn_free(m), fl_nn_free(same);
    }
    fl_nn_module *m = arch("RO 0 2 1", 3, 7, NULL);
    CHECK(!fl_nn_forward(m, fv_const(fl_ones(FL_SHAPE(2, 2, 3, 4), FL_F32))));
    CHECK_ERROR("RO lists 3 axes, the input [2, 2, 3, 4] has 4");
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* What is padded changes nothing of what counts, where the layers look at single frames and attention. */
TEST(attention_sees_no_padding) {
    static const char *const layer[] = {"TR 8 16 2 9 0", "TR 8 16 2 9 0 0 1 1"};
    fl_scope s = fl_scope_begin();
    for (int k = 0; k < 2; k++) {
        char text[200];
        snprintf(text, sizeof text, "V -1 1 NFEAT 0\nC NFEAT 8 1 1\nRO 2 0 3 1\n%s\nL 8 NLABEL\n", layer[k]);
        fl_nn_module *m = arch(text, 3, 7, NULL);
        fl_tensor *x = fl_uniform(FL_SHAPE(2, 6, 3), -1, 1, FL_F32, NULL), *out;
        fl_tensor *steps = fl_from_host((int64_t[]){6, 4}, FL_SHAPE(2), FL_I64);
        fl_var *y = fl_speech_arch_forward(m, fv_const(x), steps, &out);
        fl_tensor *part = fl_slice(fl_slice(x, 0, 1, 2, 1), 1, 0, 4, 1);
        fl_var *z = fl_speech_arch_forward(m, fv_const(part), NULL, NULL);
        if (CHECK(y && z)) {
            fl_tensor *off = fl_sub(fl_slice(fl_slice(fv_value(y), 0, 1, 2, 1), 1, 0, 4, 1), fv_value(z));
            CHECK(fl_item(fl_amax(fl_abs(off), FL_ALL_AXES)) < 1e-5);
            CHECK_EQ_INT(fl_item_int(fl_sum(out, FL_ALL_AXES)), 10);
            CHECK_EQ_INT(fv_value(y)->shape[2], 7);
        }
        fl_nn_free(m);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* The files of the examples, run on a second of features. */
TEST(arch_files_run) {
    static const struct { const char *name; int64_t frames, least, most;
    } table[] = {{"conv_glu", 400, 695, 695}, {"tds", 400, 50, 50}, {"tds_streaming", 400, 45, 50},
                 {"transformer", 400, 50, 50}, {"conformer", 400, 100, 100}};
    char path[100];
    fl_scope s = fl_scope_begin();
    fl_tensor *x = fl_uniform(FL_SHAPE(1, 400, 80), -1, 1, FL_F32, NULL);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        snprintf(path, sizeof path, "examples/speech/arch/%s.arch", table[i].name);
        fl_nn_module *m = fl_speech_arch(path, 80, 31);
        fl_no_grad(true);
        if (!CHECK(m != NULL)) {
            puts(fl_error()), fl_error_clear();
            continue;
        }
        fl_nn_train(m, false);
        fl_var *y = fl_speech_arch_forward(m, fv_const(x), NULL, NULL);
        const int64_t t = y ? fv_value(y)->shape[1] : -1;
        CHECK(y && t >= table[i].least && t <= table[i].most && fv_value(y)->shape[2] == 31);
        printf("%s: %.1f million parameters, %lld frames of 400\n", table[i].name,
               (double)fl_nn_count(m) / 1e6, (long long)t);
        fl_nn_free(m);
        fl_no_grad(false);
    }
    /* With blocks, and axes of three as Flashlight's recurrent layers leave them. */
    static const char text[] =
        "V -1 1 NFEAT 0\nC NFEAT 32 5 1 -1\nR\nRES 4 2 3\nC 32 16 5 1 -1\nR\nC 16 32 5 1 -1\nR\n"
        "SKIP 0 4 0.4\nSKIPL 1 5 3\nRO 2 1 0 3\nL 16 32\nRO 2 1 0 3\nRO 2 3 0 1\nGRU 32 25 3 1\n"
        "RO 0 2 1\nV 50 0 0\nL 50 NLABEL\n";
    fl_nn_module *m = arch(text, 80, 31, NULL);
    fl_var *y = m ? fl_speech_arch_forward(m, fv_const(fl_uniform(FL_SHAPE(2, 40, 80), -1, 1, FL_F32, NULL)),
                                           NULL, NULL) : NULL;
    if (!CHECK(y && !strcmp(FL_SHAPE_TEXT(fv_value(y)), "[2, 40, 31]"))) puts(fl_error()), fl_error_clear();
    fl_nn_free(m);
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- in pieces ---- */

static double in_pieces(fl_nn_module *m, int64_t frames, int64_t features, int64_t piece, int64_t *ahead) {
    fl_tensor *x = fl_uniform(FL_SHAPE(frames, features), -1, 1, FL_F32, NULL), *part[256];
    fl_nn_train(m, false);
    fl_var *whole = fl_speech_arch_forward(m, fv_const(fl_unsqueeze(x, 0)), NULL, NULL);
    fl_speech_arch_stream *s = fl_speech_arch_stream_new(m);
    double off = INFINITY;
    if (!CHECK(whole && s)) return puts(fl_error()), INFINITY;
    *ahead = fl_speech_arch_stream_ahead(s);
    for (int round = 0; round < 2; round++) {
        int64_t n = 0;
        for (int64_t t = 0; t < frames; t += piece) {
            const int64_t end = t + piece < frames ? t + piece : frames;
            CHECK(fl_speech_arch_stream_push(s, fl_slice(x, 0, t, end, 1), end == frames, &part[n]));
            n += part[n] != NULL;
        }
        fl_tensor *y = n ? fl_concat(part, (int)n, 0) : NULL, *want = fl_select(fv_value(whole), 0, 0);
        if (CHECK(y && fl_same_shape(y, want))) off = fl_item(fl_amax(fl_abs(fl_sub(y, want)), FL_ALL_AXES));
    }
    fl_speech_arch_stream_free(s);
    return off;
}

TEST(pieces_give_the_whole) {
    static const struct { const char *text; int64_t ahead;
    } table[] = {
        {"V -1 1 NFEAT 0\nC NFEAT 8 5 1 2\nR\nC 8 8 3 1 -1 2\nRO 2 0 3 1\nL 8 NLABEL\n", 4},
        {"V -1 1 NFEAT 0\nWN 3 C NFEAT 8 4 2 1\nGLU 2\nAC 4 8 5 1 2 0.25\nLN 2\nRO 2 0 3 1\nL 8 NLABEL\n", 4},
        {"V -1 1 NFEAT\nAC NFEAT 8 5 1 -1 0.25\nR\nRO 2 1 0\nL 8 NLABEL\nRO 0 2 1\n", 1},
        {"PD 0 3 1\nC2 1 2 5 3 2 1 0 1\nR\nLN 1 2\nTDS 2 5 NFEAT 0 0 1 0\nTDS 2 3 NFEAT 0 4 0 0\nV 0 -1 1 "
         "0\nRO 1 0 3 2\nL 12 NLABEL\n",
         3},
        {"C2 1 2 3 3 1 2 -1 -1\nM 2 1 2 1\nV 0 -1 1 0\nRO 1 0 3 2\nTR 6 8 2 40 0 0 1 1\nL 6 NLABEL\n", 2},
        {"V -1 1 NFEAT 0\nC NFEAT 6 3 1 0\nBN 6 2\nHT\nRO 2 3 0 1\nLSTM 6 5\nGRU 5 4\nRO 0 2 1 3\nL 4 "
         "NLABEL\n",
         2}};
    static const struct { const char *text, *why;
    } refused[] = {{"R\nTR 8 8 2 9 0", "line 2: TR cannot be streamed: it is not causal"},
                   {"CFR 8 16 2 9 3 0", "line 1: CFR cannot be streamed: it needs the whole sequence"},
                   {"\nTDS 2 3 3", "line 2: TDS cannot be streamed: its norms include time"},
                   {"C 1 2 3 2 -1", "line 1: C cannot be streamed: its padding depends on the length"},
                   {"RO 2 0 3 1\nLN 1", "line 2: LN cannot be streamed: its axes include time"},
                   {"RO 2 3 0 1\nLSTM 3 4 1 1", "line 2: LSTM cannot be streamed: it is bidirectional"},
                   {"L 4 4", "line 1: L cannot be streamed: it combines frames"},
                   {"V 4 3 1 1", "line 1: V cannot be streamed: it fixes the number of frames"},
                   {"V 0 3 2 1 1", "line 1: V cannot be streamed: it has more than 4 axes"},
                   {"RES 1 1\nR\nSKIP 0 2", "layer 0, RES: blocks with shortcuts cannot be streamed"}};
    fl_scope s = fl_scope_begin();
    double worst = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fl_nn_module *m = arch(table[i].text, 6, 5, NULL);
        if (!CHECK(m != NULL)) puts(fl_error());
        for (int64_t piece = 1; m && piece < 40; piece = piece * 2 + 1) {
            int64_t ahead = -1;
            const double off = in_pieces(m, 33, 6, piece, &ahead);
            if (!CHECK(off <= 1e-5) || !CHECK_EQ_INT(ahead, table[i].ahead))
                printf("case %d, pieces of %d: off by %g\n", (int)i, (int)piece, off);
            worst = fmax(worst, off);
        }
        /* weights of linear layers as bf16: near what f32 gives, and pieces are the whole */
        fl_nn_train(m, false);
        fl_tensor *x = fl_sin(fl_mul(fl_arange(0, 33 * 6, 1, FL_F32), fl_num(0.7)));
        fl_var *in = fv_const(fl_reshape(x, FL_SHAPE(1, 33, 6)));
        fl_tensor *want = fv_value(fl_speech_arch_forward(m, in, NULL, NULL));
        CHECK(fl_nn_store(m, FL_BF16));
        fl_tensor *got = fv_value(fl_speech_arch_forward(m, in, NULL, NULL));
        const double narrow = fl_item(fl_amax(fl_abs(fl_sub(got, want)), FL_ALL_AXES));
        CHECK(narrow > 0 && narrow < 0.03 * fl_item(fl_amax(fl_abs(want), FL_ALL_AXES)));
        CHECK(in_pieces(m, 33, 6, 3, &(int64_t){0}) <= 1e-5);
        fl_nn_free(m);
    }
    printf("off by %.2g\n", worst);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        fl_nn_module *m = arch(refused[i].text, 6, 5, NULL);
        CHECK(m && !fl_speech_arch_stream_new(m));
        CHECK_ERROR(refused[i].why);
        fl_nn_free(m);
    }
    fl_scope_end(&s);
    CHECK_NOTHING_LIVES();
}

/* ---- ten steps beside PyTorch's (tests/speech_models.py) ---- */

static fl_tensor *formula(fl_shape s, double scale, double a, double b, double plus) {
    const int64_t n = fl_shape_numel(s);
    double *v = malloc((size_t)n * sizeof *v);
    for (int64_t j = 0; j < n; j++) v[j] = scale * sin(a * (double)j + b) + plus;
    fl_tensor *t = fl_cast(fl_from_host(v, s, FL_F64), FL_F32);
    free(v);
    return t;
}

/* Gains are what was 1 everywhere, and the lengths of weight norms. */
static bool fill(const char *path, fl_var *p, fl_tensor *buffer, void *user) {
    if (!p) return buffer != NULL;
    const bool gain = strstr(path, "weight_g") || (fl_item(fl_amin(fv_value(p), FL_ALL_AXES)) == 1 &&
                                                   fl_item(fl_amax(fv_value(p), FL_ALL_AXES)) == 1);
    return fl_assign(fv_value(p),
                     formula(fl_shape_of(fv_value(p)), 0.2, 0.7, 1.3 * (*(int *)user)++, gain)) != NULL;
}

static void ten_steps(const char *line, const char *name, const char *text, const char *kind) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = text ? arch(text, 6, 5, NULL) : fl_nn_linear(6, *kind == 'a' ? 5 : 6);
    fl_nn_module *m = fl_speech_criterion(kind, *kind == 's' ? 6 : 5, 5);
    fl_nn_module *both = fl_nn_module_list(net, m);
    fl_tensor *x = formula(FL_SHAPE(2, 12, 6), 1, 0.9, 0, 0), *full = fl_full(FL_SHAPE(2), 12, FL_I64),
              *steps = full;
    fl_tensor *target = fl_from_host((int64_t[]){0, 1, 1, 2, 3, -1}, FL_SHAPE(2, 3), FL_I64);
    fl_tensor *lengths = fl_from_host((int64_t[]){3, 2}, FL_SHAPE(2), FL_I64);
    int count = 0;
    CHECK(fl_nn_visit_tensors(both, fill, &count));
    fl_optim *optim = fl_optim_sgd(fl_nn_parameters(both), .lr = 0.1);
    for (int k = 0; k < 10; k++) {
        fl_scope step = fl_scope_begin();
        fl_var *y =
            text ? fl_speech_arch_forward(net, fv_const(x), full, &steps) : fl_nn_forward(net, fv_const(x));
        fl_var *loss = y ? fl_speech_criterion_loss(m, y, steps, target, lengths) : NULL;
        line = strchr(line, '\t');
        if (!CHECK(loss && line)) break;
        const double want = strtod(++line, NULL), got = fl_item(fv_value(loss));
        if (!CHECK(fabs(got - want) <= 1e-4)) printf("%s, step %d: %.9g, PyTorch %.9g\n", name, k, got, want);
        fl_optim_zero_grad(optim);
        CHECK(fl_backward(loss) && fl_optim_step(optim));
        fl_scope_end(&step);
    }
    fl_optim_free(optim);
    fl_nn_free(both);
    fl_scope_end(&s);
}

TEST(ten_steps_are_those_of_pytorch) {
    static const struct { const char *name, *kind, *text;
    } table[] = {{"conv_glu", "ctc",
                  "V -1 1 NFEAT 0\nWN 3 C NFEAT 8 3 1 1\nGLU 2\nWN 3 C 4 8 3 2 1\nGLU 2\nRO 2 0 3 1\nWN 0 L "
                  "4 NLABEL\n"},
                 {"tds", "ctc",
                  "C2 1 2 3 1 2 1 1 0\nR\nLN 0 1 2\nTDS 2 3 NFEAT\nTDS 2 3 NFEAT 0 5 0 0\nV 0 -1 1 0\nRO 1 0 "
                  "3 2\nL 12 NLABEL\n"},
                 {"conformer", "ctc", "V 0 -1 1 0\nRO 1 0 3 2\nL NFEAT 8\nCFR 8 16 2 9 3 0\nL 8 NLABEL\n"},
                 {"asg", "asg", NULL},
                 {"seq2seq", "seq2seq", NULL}};
    char line[512];
    size_t found = 0;
    FILE *f = fopen("tests/golden/speech.tsv", "r");
    while (f && fgets(line, sizeof line, f))
        for (size_t i = 0; i < sizeof table / sizeof *table; i++)
            if (!strncmp(line, table[i].name, strcspn(line, "\t")))
                ten_steps(line, table[i].name, table[i].text, table[i].kind), found++;
    if (f) fclose(f);
    CHECK_EQ_INT((int64_t)found, 5);
    CHECK_NOTHING_LIVES();
}

int main(int argc, char **argv) {
    fl_set_error_handler(test__ignore_error, NULL);
    return test_main(argc, argv);
}
/* MIT licence: see LICENSE. */
