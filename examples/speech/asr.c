/* asr.c - one program for recognisers: train, continue, fork, test, align, transcribe

   make speech-asr ARGS="train --train=list --arch=file --criterion=ctc --rundir=dir ..."

   Flags have the names of Flashlight's, as --name=value or in a file of such lines (--flagsfile). Lists are
   lines "id path milliseconds transcript", paths below --datadir. train leaves in --rundir: flags,
   last.checkpoint after each epoch, best.safetensors of the valid list (or train's); continue goes on from
   there with the same bits, fork starts from --am. test prints word and letter error rates by speaker; align
   writes a CTM file and Audacity's labels; transcribe the words of a file. */
#include "../arguments.h"
#include "fl.h"
#include <math.h>
#include <sys/stat.h>

typedef struct flags {
    const char *train, *valid, *test, *datadir, *tokens, *arch, *criterion, *am, *rundir, *netoptim,
        *attention, *attnWindow, *ctm, *audacity, *file, *flagsfile, *onorm;
    int64_t iter, batchsize, warmup, seed, filterbanks, samplerate, replabel, encoderdim, decoder_layers,
        hidden, context, heads, linseg, pretrainWindow, maxdecoderoutputlen, reportiters, evalevery;
    double ctc_weight, lr, maxgradnorm, weightdecay, momentum, transdiag, labelsmooth, pctteacherforcing,
        dropout, stopwer, width;
    bool show, lrcosine, sqnorm;
} flags;

static flags f = {.criterion = "ctc",
                  .netoptim = "adam",
                  .iter = 100,
                  .batchsize = 4,
                  .seed = 1,
                  .filterbanks = 80,
                  .samplerate = 16000,
                  .encoderdim = 256,
                  .decoder_layers = 1,
                  .heads = 4,
                  .maxdecoderoutputlen = 500,
                  .evalevery = 10,
                  .lr = 1e-3,
                  .maxgradnorm = 1,
                  .pctteacherforcing = 100,
                  .stopwer = -1,
                  .pretrainWindow = 20,
                  .onorm = "none"};

static const argument table[] = {
    {"train", .text = &f.train},
    {"valid", .text = &f.valid},
    {"test", .text = &f.test},
    {"datadir", .text = &f.datadir},
    {"tokens", .text = &f.tokens},
    {"arch", .text = &f.arch},
    {"criterion", .text = &f.criterion},
    {"am", .text = &f.am},
    {"rundir", .text = &f.rundir},
    {"netoptim", .text = &f.netoptim},
    {"attention", .text = &f.attention},
    {"attnWindow", .text = &f.attnWindow},
    {"softwstd", .number = &f.width, .high = 1e6},
    {"ctm", .text = &f.ctm},
    {"audacity", .text = &f.audacity},
    {"file", .text = &f.file},
    {"flagsfile", .text = &f.flagsfile},
    {"onorm", .text = &f.onorm},
    {"sqnorm", .on = &f.sqnorm},
    {"iter", .whole = &f.iter, .low = 0, .high = 1e9},
    {"batchsize", .whole = &f.batchsize, .low = 1, .high = 1e6},
    {"warmup", .whole = &f.warmup, .low = 0, .high = 1e9},
    {"seed", .whole = &f.seed, .low = 0, .high = 9e15},
    {"filterbanks", .whole = &f.filterbanks, .low = 1, .high = 1000},
    {"samplerate", .whole = &f.samplerate, .low = 1000, .high = 1e6},
    {"replabel", .whole = &f.replabel, .low = 0, .high = 9},
    {"encoderdim", .whole = &f.encoderdim, .low = 1, .high = 1e5},
    {"am_decoder_tr_layers", .whole = &f.decoder_layers, .low = 1, .high = 16},
    {"transducer_hidden", .whole = &f.hidden, .low = 0, .high = 1e5},
    {"ctc_weight", .number = &f.ctc_weight, .low = 0, .high = 1},
    {"transducer_context", .whole = &f.context, .low = 0, .high = 16},
    {"numattnhead", .whole = &f.heads, .low = 1, .high = 100},
    {"linseg", .whole = &f.linseg, .low = 0, .high = 1e9},
    {"pretrainWindow", .whole = &f.pretrainWindow, .low = 0, .high = 1e9},
    {"maxdecoderoutputlen", .whole = &f.maxdecoderoutputlen, .low = 1, .high = 1e6},
    {"reportiters", .whole = &f.reportiters, .low = 0, .high = 1e9},
    {"evalevery", .whole = &f.evalevery, .low = 1, .high = 1e9},
    {"lr", .number = &f.lr, .low = 0, .high = 1e3},
    {"lrcosine", .on = &f.lrcosine},
    {"maxgradnorm", .number = &f.maxgradnorm, .low = 0, .high = 1e9},
    {"weightdecay", .number = &f.weightdecay, .low = 0, .high = 1e3},
    {"momentum", .number = &f.momentum, .low = 0, .high = 1},
    {"transdiag", .number = &f.transdiag, .low = -1e3, .high = 1e3},
    {"labelsmooth", .number = &f.labelsmooth, .low = 0, .high = 1},
    {"pctteacherforcing", .number = &f.pctteacherforcing, .low = 0, .high = 100},
    {"am_decoder_tr_dropout", .number = &f.dropout, .low = 0, .high = 1},
    {"stopwer", .number = &f.stopwer, .low = -1, .high = 100}, /* ends training */
    {"show", .on = &f.show},
    {NULL, .low = 0}};

/* ---- flags ---- */

static fl_data_arena texts;
static const char *args[1024];
static int count;

/* The name of the table that takes the fewest edits. */
static const char *nearest(const char *name) {
    const char *best = table[0].name;
    int64_t least = INT64_MAX, a[64], b[64];
    for (const argument *t = table; t->name; t++) {
        fl_data_edits e = {0};
        int64_t n = 0, m = 0;
        for (; name[n] && n < 64; n++) a[n] = name[n];
        for (; t->name[m] && m < 64; m++) b[m] = t->name[m];
        if (!fl_data_edits_add(&e, a, n, b, m)) return best;
        const int64_t edits = e.substitutions + e.insertions + e.deletions;
        if (edits < least) least = edits, best = t->name;
    }
    return best;
}

/* "--name=value" as arguments.h takes it; where: what it stands in. */
static bool add_flag(const char *where, const char *text, size_t n) {
    const char *is = memchr(text, '=', n);
    const size_t name = is ? (size_t)(is - text) : n;
    const argument *t = table;
    if (n < 3 || strncmp(text, "--", 2)) return fl_fail("%s: '%.*s' is no --name=value", where, (int)n, text);
    char *copy = fl_data_arena_add(&texts, text, name),
         *value = is ? fl_data_arena_add(&texts, is + 1, n - name - 1) : NULL;
    if (!copy || (is && !value) || count + 2 > 1000) return false;
    while (t->name && strcmp(t->name, copy + 2)) t++;
    if (!t->name) return fl_fail("%s: there is no flag %s, perhaps --%s", where, copy, nearest(copy + 2));
    if (t->on && value && (!strcmp(value, "false") || !strcmp(value, "0"))) return true;
    args[count++] = copy;
    if (!t->on && value) args[count++] = value;
    return true;
}

/* Lines of flags; # begins a comment. */
static bool add_file(const char *path) {
    int64_t n, line = 1;
    char *text = fl_text_read_file("asr", path, &n), where[600];
    bool ok = text != NULL;
    for (char *p = text; ok && p < text + n; line++) {
        size_t k = strcspn(p, "\n"), m = strcspn(p, "#\n");
        while (m && (p[m - 1] == ' ' || p[m - 1] == '\t' || p[m - 1] == '\r')) m--;
        snprintf(where, sizeof where, "%s:%lld", path, (long long)line);
        if (m) ok = add_flag(where, p, m);
        p += k + 1;
    }
    fl_heap_free(text);
    return ok;
}

/* Flags of files first, so that the command line's stand. */
static bool read_flags(int argc, char **argv) {
    char path[1000];
    args[count++] = argv[0];
    for (int i = 2; i < argc; i++) {
        path[0] = 0;
        if (!strncmp(argv[i], "--flagsfile=", 12)) snprintf(path, sizeof path, "%s", argv[i] + 12);
        if (!strncmp(argv[i], "--am=", 5)) snprintf(path, sizeof path, "%s.flags", argv[i] + 5);
        if (!strncmp(argv[i], "--rundir=", 9) && !strcmp(argv[1], "continue"))
            snprintf(path, sizeof path, "%s/flags", argv[i] + 9);
        if (*path && !add_file(path)) return false;
    }
    for (int i = 2; i < argc; i++)
        if (!add_flag("arguments", argv[i], strlen(argv[i]))) return false;
    return arguments_read(count, (char **)args, table) || fl_fail("bad arguments");
}

static bool write_flags(const char *path) {
    FILE *out = fopen(path, "w");
    for (const argument *t = table; out && t->name; t++) {
        if (t->text && *t->text && strcmp(t->name, "am") && strcmp(t->name, "flagsfile"))
            fprintf(out, "--%s=%s\n", t->name, *t->text);
        if (t->whole) fprintf(out, "--%s=%lld\n", t->name, (long long)*t->whole);
        if (t->number) fprintf(out, "--%s=%.17g\n", t->name, *t->number);
        if (t->on && *t->on) fprintf(out, "--%s\n", t->name);
    }
    return (out && !fclose(out)) || fl_fail("asr: %s cannot be written", path);
}

/* ---- the recogniser ---- */

typedef struct recogniser {
    fl_text_dictionary *tokens;
    fl_speech_features *features;
    fl_nn_module *net, *criterion, *both;
} recogniser;

static fl_speech_target_opts target_opts(void) {
    return (fl_speech_target_opts){.separator = "|", .replabels = f.replabel, .skip = false};
}

/* Those of a file, or letters. Replabels are tokens of their own. */
static bool get_tokens(recogniser *r) {
    static const char letters[] = "|'abcdefghijklmnopqrstuvwxyz";
    r->tokens = f.tokens ? fl_text_dictionary_load(f.tokens) : fl_text_dictionary_new();
    bool ok = r->tokens != NULL;
    for (int i = 0; ok && !f.tokens && letters[i]; i++)
        ok = fl_text_dictionary_add(r->tokens, letters + i, 1) >= 0;
    for (int64_t k = 1; ok && k <= f.replabel; k++) {
        char label[24];
        snprintf(label, sizeof label, "<%d>", (int)k);
        if (fl_text_dictionary_find(r->tokens, label, (int64_t)strlen(label)) < 0)
            ok = fl_text_dictionary_add(r->tokens, label, (int64_t)strlen(label)) >= 0;
    }
    return ok;
}

static bool scale_mode(fl_speech_scale_mode *mode) {
    static const char *const names[] = {"none", "input", "target"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(f.onorm, names[i])) {
            *mode = (fl_speech_scale_mode)(i ? 2 * i - 1 + f.sqnorm : 0);
            return true;
        }
    return fl_fail("asr: --onorm=%s: none input target", f.onorm);
}

static bool make_recogniser(recogniser *r) {
    fl_speech_conf conf;
    fl_speech_scale_mode mode = FL_SPEECH_SCALE_NONE;
    if (!strcmp(f.criterion, "asg") && !f.replabel) f.replabel = 1;
    if (!f.arch) return fl_fail("asr: --arch=FILE is needed");
    if (!get_tokens(r) || !scale_mode(&mode) || !fl_speech_preset(&conf, "kaldi", (double)f.samplerate))
        return false;
    conf.bands = f.filterbanks;
    /* the criterion's own class is the last: a blank, or eos; asg has none */
    const bool scores = !strcmp(f.criterion, "ctc") || !strcmp(f.criterion, "asg");
    const int64_t classes = fl_text_dictionary_size(r->tokens) + (strcmp(f.criterion, "asg") != 0);
    const int64_t dim = scores ? classes : f.encoderdim;
    r->features = fl_speech_features_new(&conf);
    r->net = fl_speech_arch(f.arch, f.filterbanks, dim);
    r->criterion =
        r->net ? fl_speech_criterion(f.criterion, dim, classes, .scale = mode, .too_long = FL_SPEECH_CUT,
                                     .diagonal = f.transdiag, .hidden = f.hidden, .context = f.context,
                                     .ctc_weight = f.ctc_weight,
                                     .attend = {.attention = f.attention,
                                                .window = f.attnWindow,
                                                .width = f.width,
                                                .heads = f.heads,
                                                .rounds = f.decoder_layers,
                                                .dropout = f.dropout,
                                                .smoothing = f.labelsmooth,
                                                .replaced = 1 - f.pctteacherforcing / 100})
               : NULL;
    r->both = r->criterion ? fl_nn_module_list(r->net, r->criterion) : NULL;
    return r->features && r->both && (!f.am || fl_nn_load(r->both, f.am));
}

static void free_recogniser(recogniser *r) {
    if (r->both) fl_nn_free(r->both);
    else fl_nn_free(r->net), fl_nn_free(r->criterion);
    fl_speech_features_free(r->features);
    fl_text_dictionary_free(r->tokens);
}

static fl_tensor *features_of(const recogniser *r, fl_tensor *sound) {
    return fl_speech_normalize(fl_speech_features_of(r->features, sound));
}

/* ---- training ---- */

typedef struct corpus {
    fl_speech_list *list;
    fl_data_set *sounds;
    const recogniser *r;
} corpus;

static bool open_corpus(corpus *c, const char *path, const recogniser *r) {
    c->r = r;
    c->list = path ? fl_speech_list_load(path, f.datadir) : (fl_fail("asr: a list is needed"), NULL);
    return c->list && (c->sounds = fl_speech_list_sounds(c->list, f.samplerate)) != NULL;
}

static void close_corpus(corpus *c) {
    fl_data_free(c->sounds);
    fl_speech_list_free(c->list);
}

/* Features and target of a sound. */
static bool make_sample(fl_data_sample *s, fl_rng *rng, void *user) {
    const corpus *c = user;
    int64_t *target = NULL, cap = 0;
    const char *text = fl_speech_list_get(c->list, fl_item_int(s->t[1]))->transcript;
    const int64_t n = fl_speech_target_opt(c->r->tokens, text, &target, &cap, target_opts());
    (void)rng;
    s->t[0] = n < 0 ? NULL : features_of(c->r, s->t[0]);
    s->t[1] = n < 0 ? NULL : fl_from_host(target, FL_SHAPE(n), FL_I64);
    fl_heap_free(target);
    return s->t[0] && s->t[1];
}

static fl_data_set *batches(corpus *c) {
    fl_data_set *set = fl_data_transform(fl_data_shuffle(c->sounds, (uint64_t)f.seed), make_sample, c);
    c->sounds = NULL;
    return fl_data_prefetch(fl_data_batches(set, .size = f.batchsize, .pad = true, .lengths = 3), 2, 4);
}

static fl_optim *make_optim(recogniser *r) {
    fv_list all = fl_nn_parameters(r->both);
    if (!strcmp(f.netoptim, "sgd"))
        return fl_optim_sgd(all, .lr = f.lr, .momentum = f.momentum, .weight_decay = f.weightdecay);
    if (!strcmp(f.netoptim, "adam")) return fl_optim_adam(all, .lr = f.lr, .weight_decay = f.weightdecay);
    fl_fail("asr: --netoptim=%s: sgd adam", f.netoptim);
    return NULL;
}

static bool checkpoint(recogniser *r, fl_optim *o, fl_optim_progress *at, bool save) {
    char path[1000];
    if (!f.rundir) return true;
    snprintf(path, sizeof path, "%s/last.checkpoint", f.rundir);
    return save ? fl_optim_save_checkpoint(path, r->both, o, at)
                : fl_optim_load_checkpoint(path, r->both, o, at);
}

static bool train_step(recogniser *r, fl_optim *o, const fl_data_sample *b, const fl_optim_progress *at,
                       int64_t total, double *sum) {
    fl_tensor *steps;
    const double warm = f.warmup ? fmin(1, (double)(at->step + 1) / (double)f.warmup) : 1;
    const double lr = f.lrcosine ? fl_optim_lr_cosine(f.lr, 0, at->step, total) : f.lr;
    const double warming = (double)(!strcmp(f.criterion, "asg") ? f.linseg : f.pretrainWindow);
    fl_speech_criterion_warm(r->criterion, warming > 0 ? fmax(0, 1 - (double)at->epoch / warming) : 0);
    fl_optim_zero_grad(o);
    fl_var *x = fl_speech_arch_forward(r->net, fv_const(b->t[0]), b->t[2], &steps);
    fl_var *loss = x ? fl_speech_criterion_loss(r->criterion, x, steps, b->t[1], b->t[3]) : NULL;
    const bool ok = loss && fl_optim_set_lr(o, warm * lr) && fl_backward(loss) &&
                    (f.maxgradnorm == 0 || fl_optim_clip(o, f.maxgradnorm)) && fl_optim_step(o);
    if (ok) *sum += fl_item(fv_value(loss));
    return ok;
}

static bool evaluate(recogniser *r, const char *path, bool show, double *wer);

/* Every so many epochs: the valid list's errors; the best model is kept. */
static bool look(recogniser *r, double *best, bool *done) {
    double wer;
    char path[1000], flags_path[1010];
    if (!evaluate(r, f.valid ? f.valid : f.train, false, &wer)) return false;
    *done = wer <= f.stopwer;
    if (wer >= *best || !f.rundir) return true;
    *best = wer;
    snprintf(path, sizeof path, "%s/best.safetensors", f.rundir);
    snprintf(flags_path, sizeof flags_path, "%s.flags", path);
    return fl_nn_save(r->both, path) && write_flags(flags_path);
}

static bool train(recogniser *r, bool go_on) {
    corpus c = {NULL, NULL, NULL};
    fl_optim_progress at = {.step = 0};
    fl_data_set *set = open_corpus(&c, f.train, r) ? batches(&c) : NULL;
    fl_optim *o = set ? make_optim(r) : NULL;
    const int64_t size = set ? fl_data_size(set) : 0;
    double sum = 0, began = fl_data_now(), best = INFINITY;
    bool ok = o != NULL, done = false;
    if (ok && f.rundir) {
        char path[1000];
        mkdir(f.rundir, 0777);
        snprintf(path, sizeof path, "%s/flags", f.rundir);
        ok = go_on ? checkpoint(r, o, &at, false) : write_flags(path);
    }
    if (ok)
        printf("%s: %lld parameters, %lld batches an epoch\n", f.criterion, (long long)fl_nn_count(r->both),
               (long long)size);
    while (ok && !done && at.epoch < f.iter) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        const int64_t epoch = at.epoch;
        ok = fl_data_next(set, &at.epoch, &at.position, &b);
        const fl_optim_progress now = {.step = at.step, .epoch = epoch};
        ok = ok && train_step(r, o, &b, &now, size * f.iter, &sum);
        fl_scope_end(&s);
        at.step++;
        if (!ok || at.epoch == epoch) continue;
        printf("epoch %lld  loss %.4f  %.0f s\n", (long long)at.epoch, sum / (double)size,
               fl_data_now() - began);
        sum = 0;
        ok = checkpoint(r, o, &at, true) && (at.epoch % f.evalevery || look(r, &best, &done));
        fflush(stdout);
    }
    fl_optim_free(o);
    fl_data_free(set);
    close_corpus(&c);
    return ok;
}

/* ---- test, align, transcribe ---- */

/* What the network makes of a sound: [t', dim]. */
static fl_tensor *frames_of(recogniser *r, fl_tensor *sound, int64_t *features) {
    fl_tensor *x = features_of(r, sound);
    if (!x) return NULL;
    *features = x->shape[0];
    fl_var *y = fl_speech_arch_forward(r->net, fv_const(fl_unsqueeze(x, 0)), NULL, NULL);
    return y ? fl_select(fv_value(y), 0, 0) : NULL;
}

static bool say(recogniser *r, fl_tensor *sound, fl_data_text *text) {
    int64_t features, *best = fl_heap_alloc((size_t)f.maxdecoderoutputlen * sizeof *best);
    fl_tensor *x = best ? frames_of(r, sound, &features) : NULL;
    const int64_t n = x ? fl_speech_criterion_best(r->criterion, x, best, f.maxdecoderoutputlen) : -1;
    text->n = 0;
    const bool ok = n >= 0 && fl_data_text_put(text, "", 0) &&
                    fl_speech_text_of_opt(r->tokens, best, n, text, target_opts());
    fl_heap_free(best);
    return ok;
}

/* Calls fn for each sound of a list. */
static bool each(recogniser *r, const char *path,
                 bool (*fn)(recogniser *r, const fl_speech_listed *e, fl_tensor *sound, void *user),
                 void *user) {
    corpus c = {NULL, NULL, NULL};
    bool ok = open_corpus(&c, path, r);
    fl_nn_train(r->both, false);
    for (int64_t i = 0; ok && i < fl_data_size(c.sounds); i++) {
        fl_scope s = fl_scope_begin();
        fl_data_sample x;
        fl_no_grad(true);
        ok = fl_data_get(c.sounds, i, &x) && fn(r, fl_speech_list_get(c.list, i), x.t[0], user);
        fl_scope_end(&s);
    }
    fl_nn_train(r->both, true);
    close_corpus(&c);
    return ok;
}

typedef struct tested {
    fl_speech_scores *scores;
    fl_data_text text;
    bool show;
} tested;

static bool test_one(recogniser *r, const fl_speech_listed *e, fl_tensor *sound, void *user) {
    tested *t = user;
    char speaker[64];
    snprintf(speaker, sizeof speaker, "%.*s", (int)strcspn(e->id, "-_"), e->id);
    if (!say(r, sound, &t->text)) return false;
    if (t->show) printf("%s\n|T|: %s\n|P|: %s\n", e->id, e->transcript, t->text.p);
    return fl_speech_scores_add(t->scores, speaker, t->text.p, e->transcript);
}

static bool evaluate(recogniser *r, const char *path, bool show, double *wer) {
    tested t = {.scores = fl_speech_scores_new(), .show = show};
    fl_data_edits word, letter;
    const bool ok =
        t.scores && each(r, path, test_one, &t) && fl_speech_scores_of(t.scores, NULL, &word, &letter);
    if (ok) *wer = fl_data_edits_percent(&word);
    t.text.n = 0;
    if (ok && show && fl_speech_scores_table(t.scores, &t.text)) fputs(t.text.p, stdout);
    if (ok) printf("%s: WER %.2f %%, LER %.2f %%\n", path, *wer, fl_data_edits_percent(&letter));
    fl_heap_free(t.text.p);
    fl_speech_scores_free(t.scores);
    return ok;
}

/* A word from begin to end, in seconds. */
static void put_word(const recogniser *r, const fl_speech_listed *e, const fl_speech_span *span, int64_t n,
                     double frame, FILE *ctm, FILE *audacity) {
    char word[256];
    size_t k = 0;
    double sure = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t bytes;
        const char *t = fl_text_dictionary_entry(r->tokens, span[i].token, &bytes);
        if (*t == '<' && bytes == 3 && k) t = &word[k - 1], bytes = 1; /* a replabel */
        if (k + (size_t)bytes < sizeof word) memcpy(word + k, t, (size_t)bytes), k += (size_t)bytes;
        sure += span[i].confidence / (double)n;
    }
    word[k] = 0;
    const double begin = (double)span[0].begin * frame, end = (double)span[n - 1].end * frame;
    if (ctm) fprintf(ctm, "%s 1 %.3f %.3f %s %.4f\n", e->id, begin, end - begin, word, sure);
    if (audacity) fprintf(audacity, "%.3f\t%.3f\t%s\n", begin, end, word);
}

typedef struct aligned {
    FILE *ctm, *audacity;
} aligned;

static bool align_one(recogniser *r, const fl_speech_listed *e, fl_tensor *sound, void *user) {
    const aligned *a = user;
    int64_t *target = NULL, cap = 0, features = 0, from = 0;
    const int64_t n = fl_speech_target_opt(r->tokens, e->transcript, &target, &cap, target_opts());
    const int64_t space = fl_text_dictionary_find(r->tokens, "|", 1);
    fl_speech_span *span = n > 0 ? fl_heap_alloc((size_t)n * sizeof *span) : NULL;
    fl_tensor *x = span ? frames_of(r, sound, &features) : NULL;
    const bool ok = x && !isnan(fl_speech_criterion_align(r->criterion, x, target, n, span));
    const double frame = ok ? 0.01 * (double)features / (double)x->shape[0] : 0;
    for (int64_t i = 0; ok && i <= n; i++) {
        if (i < n && span[i].token != space) continue;
        if (i > from) put_word(r, e, span + from, i - from, frame, a->ctm, a->audacity);
        from = i + 1;
    }
    fl_heap_free(span);
    fl_heap_free(target);
    return ok || n == 0;
}

static bool align(recogniser *r) {
    aligned a = {f.ctm ? fopen(f.ctm, "w") : stdout, f.audacity ? fopen(f.audacity, "w") : NULL};
    bool ok = (a.ctm && (a.audacity || !f.audacity)) || fl_fail("asr: the files to write cannot be opened");
    ok = ok && each(r, f.test ? f.test : f.train, align_one, &a);
    if (a.ctm && a.ctm != stdout && fclose(a.ctm)) ok = fl_fail("asr: %s cannot be written", f.ctm);
    if (a.audacity && fclose(a.audacity)) ok = fl_fail("asr: %s cannot be written", f.audacity);
    return ok;
}

static bool transcribe(recogniser *r) {
    fl_data_text text = {NULL, 0, 0};
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    fl_nn_train(r->both, false);
    fl_tensor *x = f.file ? fl_speech_load_audio(f.file, .rate = f.samplerate, .channel = -1)
                          : (fl_fail("asr: --file=SOUND is needed"), NULL);
    const bool ok = x && say(r, fl_select(x, 0, 0), &text);
    if (ok) puts(text.p);
    fl_heap_free(text.p);
    fl_scope_end(&s);
    return ok;
}

int main(int argc, char **argv) {
    static const char *const commands[] = {"train", "continue", "fork", "test", "align", "transcribe"};
    int command = 0;
    while (command < 6 && (argc < 2 || strcmp(argv[1], commands[command]))) command++;
    if (command == 6) {
        fprintf(stderr, "usage: asr train|continue|fork|test|align|transcribe --name=value ...\n");
        return 2;
    }
    recogniser r = {NULL, NULL, NULL, NULL, NULL};
    bool ok = read_flags(argc, argv);
    double wer = 0;
    fl_seed((uint64_t)f.seed);
    fl_scope s = fl_scope_begin();
    ok = ok && make_recogniser(&r);
    if (ok && command < 3) ok = train(&r, command == 1);
    if (ok && (command == 3 || (command < 3 && f.test))) ok = evaluate(&r, f.test, f.show, &wer);
    if (ok && command == 4) ok = align(&r);
    if (ok && command == 5) ok = transcribe(&r);
    if (!ok) fprintf(stderr, "asr: %s\n", fl_error() ? fl_error() : "failed");
    free_recogniser(&r);
    fl_scope_end(&s);
    fl_data_arena_free(&texts);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
