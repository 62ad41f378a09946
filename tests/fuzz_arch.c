/* fuzz_arch.c - arch files of any text: refused with a line, or the network runs, whole and in pieces; what
   reading them costs

   Tokens and small numbers are drawn so that lines are often good; then some bytes are changed. */
#include "fuzz.h"

static const struct { const char *name; int least, most; /* arguments */
} tokens[] = {{"V", 1, 8},
              {"RO", 1, 8},
              {"PD", 3, 9},
              {"C", 4, 6},
              {"C1", 4, 6},
              {"C2", 6, 10},
              {"AC", 4, 7},
              {"TDS", 3, 7},
              {"TR", 5, 8},
              {"CFR", 6, 7},
              {"POSEMB", 2, 3},
              {"SINPOSEMB", 1, 2},
              {"L", 2, 3},
              {"E", 2, 2},
              {"BN", 2, 4},
              {"LN", 1, 3},
              {"WN 3 C", 4, 6},
              {"DO 0", 0, 0},
              {"M", 4, 6},
              {"A", 4, 6},
              {"ELU", 0, 0},
              {"R", 0, 0},
              {"R6", 0, 0},
              {"PR", 0, 2},
              {"LG", 0, 0},
              {"HT", 0, 0},
              {"T", 0, 0},
              {"SH", 0, 1},
              {"GLU", 1, 1},
              {"LSM", 1, 1},
              {"RNN", 2, 5},
              {"GRU", 2, 5},
              {"LSTM", 2, 5},
              {"RES", 2, 3},
              {"RES 1 1\nR\nSKIP 0 2", 0, 1},
              {"SKIP", 2, 3},
              {"SAUG 0 1 1 1 1 1", 0, 0},
              {"PC f32", 0, 0},
              {"RO 2 0 3 1", 0, 0},
              {"RO 0 2 1", 0, 0},
              {"AC 3 4 3 1 -1", 0, 2},
              {"V -1 1 NFEAT 0", 0, 0},
              {"C 3 4 3 1 1", 0, 0},
              {"#", 0, 0}};

static size_t draw(char *text, size_t room) {
    size_t n = 0;
    for (int lines = 1 + fuzz_below(6); lines > 0 && n + 100 < room; lines--) {
        const int t = fuzz_below(sizeof tokens / sizeof *tokens);
        n += (size_t)snprintf(text + n, room - n, "%s", tokens[t].name);
        for (int args = tokens[t].least + fuzz_below(tokens[t].most - tokens[t].least + 1); args > 0; args--)
            n += (size_t)snprintf(text + n, room - n, " %d",
                                  fuzz_rarely(8)   ? -1
                                  : fuzz_rarely(3) ? fuzz_below(7)
                                                   : 1 + fuzz_below(3));
        text[n++] = '\n';
    }
    for (int raw = fuzz_rarely(8) ? 200 : 0; raw > 0 && n < room; raw--) text[n++] = (char)fuzz_byte();
    for (int changes = fuzz_rarely(4) ? fuzz_below(4) : 0; n && changes > 0; changes--)
        text[fuzz_word(2) % n] = "0123456789-. \n#NLCTWRES"[fuzz_below(23)];
    return n;
}

static void run(fl_nn_module *m) {
    fl_tensor *x = fl_uniform(FL_SHAPE(5, 3), -1, 1, FL_F32, NULL), *y = NULL, *z = NULL;
    fuzz_doing = "running";
    fl_nn_train(m, false);
    fl_var *whole = fl_speech_arch_forward(m, fv_const(fl_unsqueeze(x, 0)), NULL, NULL);
    if (!whole && !fl_error()) fuzz_bug("no result and no error");
    fl_error_clear();
    whole = whole && fl_item(fl_sum(fl_isfinite(fv_value(whole)), FL_ALL_AXES)) ==
                         (double)fl_numel(fv_value(whole))
                ? whole
                : NULL;
    fuzz_doing = "in pieces";
    fl_speech_arch_stream *s = fl_speech_arch_stream_new(m, .frames = 64);
    if (!s && !fl_error()) fuzz_bug("refused without a reason");
    if (s && (!fl_speech_arch_stream_push(s, fl_slice(x, 0, 0, 2, 1), false, &y) ||
              !fl_speech_arch_stream_push(s, fl_slice(x, 0, 2, 5, 1), true, &z)) && !fl_error())
        fuzz_bug("a piece failed without an error");
    fl_tensor *part[] = {y ? y : z, z},
              *all = s && !fl_error() && (y || z) ? fl_concat(part, 1 + (y && z), 0) : NULL;
    if (whole && all) {
        fl_tensor *want = fl_select(fv_value(whole), 0, 0);
        const double top = fl_item(fl_amax(fl_abs(want), FL_ALL_AXES));
        if (!fl_same_shape(want, all))
            fuzz_bug("%s in pieces, %s whole", FL_SHAPE_TEXT(all), FL_SHAPE_TEXT(want));
        if (!(fl_item(fl_amax(fl_abs(fl_sub(all, want)), FL_ALL_AXES)) <= 1e-3 * (1 + top)))
            fuzz_bug("others in pieces");
    }
    fl_speech_arch_stream_free(s);
    fl_error_clear();
}

static void fuzz_one(void) {
    static char text[1 << 12];
    fuzz_doing = "reading";
    const size_t n = draw(text, sizeof text - 100);
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    fuzz_cost_begin();
    fl_nn_module *m =
        fl_speech_arch_parse("f.arch", text, (int64_t)n, 3, 4,
                             (fl_speech_arch_opts){.max_parameters = 1 << 15, .max_layers = 24});
    fuzz_cost_end(n);
    if (!m && (!fl_error() || !strstr(fl_error(), "f.arch")))
        fuzz_bug("refused without file: %s", fl_error() ? fl_error() : "");
    fl_error_clear();
    if (m) run(m);
    fl_nn_free(m);
    fl_scope_end(&s);
}
/* MIT licence: see LICENSE. */
