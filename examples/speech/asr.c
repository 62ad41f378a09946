/* examples/speech/asr.c - speech recognition: train, continue, fork, test, decode, align, transcribe

   make speech-asr ARGS="train --train=list --arch=file --criterion=ctc --rundir=dir ..."

   Flags are named as in Flashlight, given as --name=value or in a file of such lines (--flagsfile). Lists
   have lines "id path milliseconds transcript", with paths relative to --datadir. train writes to --rundir:
   flags, last.checkpoint after each epoch, best.safetensors by the valid list (default: the train list);
   continue resumes from there with bitwise equal results, fork starts from --am. test prints word and letter
   error rates by speaker for greedy decoding, decode for beam search, with --lexicon, --lm and --lmweight,
   or the best weight of a grid (--lmweight_low ..._high ..._step), which train also uses for its valid list
   if there is an --lm. --sclite and --labels write the hypotheses: for NIST's tool, and as a list for
   training. align writes a CTM file and Audacity labels; transcribe prints the words of a file. Several
   ranks (examples/launch) share each epoch. --unlabeled=list, whose transcripts are ignored: every
   --relabelevery epochs its hypotheses are added to the training data (rundir/pseudo.<epoch>).
   --fl_amp_use_mixed_precision multiplies in bf16. */
#include "../arguments.h"
#include "fl_speech.h"
#include "fl_dist.h"
#include "fl.h"
#include <math.h>
#include <sys/stat.h>

typedef struct flags {
    const char *train, *valid, *test, *datadir, *tokens, *arch, *criterion, *am, *rundir, *netoptim,
        *attention, *attnWindow, *ctm, *audacity, *file, *flagsfile, *onorm, *lexicon, *lm, *smearing,
        *decodertype, *sclite, *labels, *whisper, *language, *unlabeled;
    int64_t iter, batchsize, warmup, seed, filterbanks, samplerate, replabel, encoderdim, decoder_layers,
        beamsize, beamsizetoken, hidden, context, heads, linseg, pretrainWindow, maxdecoderoutputlen,
        reportiters, evalevery, relabelevery;
    double ctc_weight, lr, maxgradnorm, weightdecay, momentum, transdiag, labelsmooth, pctteacherforcing,
        dropout, stopwer, width, lmweight, lmweight_low, lmweight_high, lmweight_step, wordscore, silscore,
        eosscore, unkscore, beamthreshold;
    bool logadd, show, lrcosine, sqnorm, mixed;
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
                  .relabelevery = 10,
                  .lr = 1e-3,
                  .maxgradnorm = 1,
                  .pctteacherforcing = 100,
                  .stopwer = -1,
                  .pretrainWindow = 20,
                  .onorm = "none",
                  .smearing = "max",
                  .decodertype = "wrd",
                  .beamsize = 100,
                  .beamthreshold = 25,
                  .unkscore = -INFINITY,
                  .language = "en"};

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
    {"whisper", .text = &f.whisper}, /* transcribe: a Hugging Face folder, in place of --am */
    {"language", .text = &f.language},
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
    {"unlabeled", .text = &f.unlabeled},
    {"relabelevery", .whole = &f.relabelevery, .low = 1, .high = 1e9},
    {"fl_amp_use_mixed_precision", .on = &f.mixed},
    {"lr", .number = &f.lr, .low = 0, .high = 1e3},
    {"lrcosine", .on = &f.lrcosine},
    {"maxgradnorm", .number = &f.maxgradnorm, .low = 0, .high = 1e9},
    {"weightdecay", .number = &f.weightdecay, .low = 0, .high = 1e3},
    {"momentum", .number = &f.momentum, .low = 0, .high = 1},
    {"transdiag", .number = &f.transdiag, .low = -1e3, .high = 1e3},
    {"labelsmooth", .number = &f.labelsmooth, .low = 0, .high = 1},
    {"pctteacherforcing", .number = &f.pctteacherforcing, .low = 0, .high = 100},
    {"am_decoder_tr_dropout", .number = &f.dropout, .low = 0, .high = 1},
    {"stopwer", .number = &f.stopwer, .low = -1, .high = 100}, /* stops training at this WER */
    {"lexicon", .text = &f.lexicon},
    {"lm", .text = &f.lm},
    {"smearing", .text = &f.smearing},
    {"decodertype", .text = &f.decodertype}, /* units of the language model: wrd or tkn */
    {"sclite", .text = &f.sclite},
    {"labels", .text = &f.labels},
    {"beamsize", .whole = &f.beamsize, .low = 1, .high = 1e6},
    {"beamsizetoken", .whole = &f.beamsizetoken, .low = 0, .high = 1e9},
    {"beamthreshold", .number = &f.beamthreshold, .low = 0, .high = 1e9},
    {"lmweight", .number = &f.lmweight, .low = -1e3, .high = 1e3},
    {"lmweight_low", .number = &f.lmweight_low, .low = -1e3, .high = 1e3},
    {"lmweight_high", .number = &f.lmweight_high, .low = -1e3, .high = 1e3},
    {"lmweight_step", .number = &f.lmweight_step, .low = 0, .high = 1e3},
    {"wordscore", .number = &f.wordscore, .low = -1e3, .high = 1e3},
    {"silscore", .number = &f.silscore, .low = -1e3, .high = 1e3},
    {"eosscore", .number = &f.eosscore, .low = -1e3, .high = 1e3},
    {"unkscore", .number = &f.unkscore},
    {"logadd", .on = &f.logadd},
    {"show", .on = &f.show},
    {NULL, .low = 0}};

/* ---- flags ---- */

static fl_data_arena texts;
static const char *args[1024];
static int count;

/* The flag with the smallest edit distance. */
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

/* Adds a flag "--name=value" in the form for arguments.h; where: its source, for errors. */
static bool add_flag(const char *where, const char *text, size_t n) {
    const char *is = memchr(text, '=', n);
    const size_t name = is ? (size_t)(is - text) : n;
    const argument *t = table;
    if (n < 3 || strncmp(text, "--", 2))
        return fl_fail("%s: '%.*s' is not --name=value", where, (int)n, text);
    char *copy = fl_data_arena_add(&texts, text, name),
         *value = is ? fl_data_arena_add(&texts, is + 1, n - name - 1) : NULL;
    if (!copy || (is && !value) || count + 2 > 1000) return false;
    while (t->name && strcmp(t->name, copy + 2)) t++;
    if (!t->name) return fl_fail("%s: unknown flag %s, did you mean --%s?", where, copy, nearest(copy + 2));
    if (t->on && value && (!strcmp(value, "false") || !strcmp(value, "0"))) return true;
    args[count++] = copy;
    if (!t->on && value) args[count++] = value;
    return true;
}

/* Reads lines of flags; # begins a comment. */
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

/* Reads flags from files first, so that the command line overrides them. */
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
    return (out && !fclose(out)) || fl_fail("asr: cannot write %s", path);
}

/* ---- the recogniser ---- */

typedef struct recogniser {
    fl_text_dictionary *tokens;
    fl_speech_features *features;
    fl_nn_module *net, *criterion, *both;
    fl_speech_lexicon *lexicon; /* for beam search, like lm */
    fl_text_ngram *ngram;
    fl_text_scorer *lm;
    fl_dist_group *ranks;
} recogniser;

static bool first_rank(const recogniser *r) { return !r->ranks || fl_dist_rank(r->ranks) == 0; }

static fl_speech_target_opts target_opts(void) {
    return (fl_speech_target_opts){.separator = "|", .replabels = f.replabel, .skip = false};
}

/* Loads the tokens of --tokens, default: letters. Adds the replabels. */
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
    return fl_fail("asr: --onorm=%s is unknown; known: none, input, target", f.onorm);
}

static bool make_recogniser(recogniser *r) {
    fl_speech_conf conf;
    fl_speech_scale_mode mode = FL_SPEECH_SCALE_NONE;
    if (!strcmp(f.criterion, "asg") && !f.replabel) f.replabel = 1;
    if (!f.arch) return fl_fail("asr: --arch=FILE is required");
    if (!get_tokens(r) || !scale_mode(&mode) || !fl_speech_preset(&conf, "kaldi", (double)f.samplerate))
        return false;
    conf.bands = f.filterbanks;
    /* the last class is the criterion's: the blank, or eos; asg has none */
    const bool scores = !strcmp(f.criterion, "ctc") || !strcmp(f.criterion, "asg");
    const int64_t classes = fl_text_dictionary_size(r->tokens) + (strcmp(f.criterion, "asg") != 0);
    const int64_t dim = scores ? classes : f.encoderdim;
    r->features = fl_speech_features_new(&conf);
    r->net = fl_speech_arch(f.arch, f.filterbanks, dim);
    r->criterion =
        r->net ? fl_speech_criterion(f.criterion, dim, classes, .scale = mode, .too_long = FL_SPEECH_CUT,
                                     .linseg_by_frames = true, .diagonal = f.transdiag,
                                     .hidden = f.hidden, .context = f.context,
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

/* Loads lexicon and language model for beam search. */
static bool get_models(recogniser *r) {
    static const char *const names[] = {"none", "max", "logadd"};
    int smear = 0;
    while (smear < 3 && strcmp(f.smearing, names[smear])) smear++;
    if (smear == 3) return fl_fail("asr: --smearing=%s is unknown; known: none, max, logadd", f.smearing);
    const bool of_words = f.lexicon && strcmp(f.decodertype, "tkn");
    if (f.lexicon && !(r->lexicon = fl_speech_lexicon_load(f.lexicon, r->tokens))) return false;
    const fl_text_dictionary *units = of_words ? fl_speech_lexicon_words(r->lexicon) : r->tokens;
    if (f.lm && (!(r->ngram = fl_text_ngram_load(f.lm)) || !(r->lm = fl_text_ngram_scorer(r->ngram, units))))
        return false;
    return !r->lexicon ||
           fl_speech_lexicon_finish(r->lexicon, (fl_speech_smear)smear, of_words ? r->lm : NULL, false);
}

static void free_recogniser(recogniser *r) {
    fl_text_scorer_free(r->lm);
    fl_text_ngram_free(r->ngram);
    fl_speech_lexicon_free(r->lexicon);
    if (r->both) fl_nn_free(r->both);
    else fl_nn_free(r->net), fl_nn_free(r->criterion);
    fl_speech_features_free(r->features);
    fl_text_dictionary_free(r->tokens);
}

static fl_tensor *features_of(const recogniser *r, fl_tensor *sound) {
    return fl_speech_normalize(fl_speech_features_compute(r->features, sound));
}

/* ---- training ---- */

typedef struct corpus {
    fl_speech_list *list;
    fl_data_set *sounds;
    const recogniser *r;
} corpus;

static bool open_corpus(corpus *c, const char *path, const recogniser *r) {
    c->r = r;
    c->list = path ? fl_speech_list_load(path, f.datadir) : (fl_fail("asr: a list is required"), NULL);
    return c->list && (c->sounds = fl_speech_list_sounds(c->list, f.samplerate)) != NULL;
}

static void close_corpus(corpus *c) {
    fl_data_free(c->sounds);
    fl_speech_list_free(c->list);
}

/* Computes features and target of a sound. */
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
    fl_data_set *set = fl_data_shuffle(c->sounds, (uint64_t)f.seed);
    if (c->r->ranks) set = fl_data_shard(set, fl_dist_rank(c->r->ranks), fl_dist_size(c->r->ranks));
    set = fl_data_transform(set, make_sample, c);
    c->sounds = NULL;
    return fl_data_prefetch(fl_data_batches(set, .size = f.batchsize, .pad = true, .lengths = 3), 2, 4);
}

static fl_optim *make_optim(fl_dist_model *m) {
    fv_list all = fl_dist_parameters(m);
    if (!strcmp(f.netoptim, "sgd"))
        return fl_optim_sgd(all, .lr = f.lr, .momentum = f.momentum, .weight_decay = f.weightdecay);
    if (!strcmp(f.netoptim, "adam")) return fl_optim_adam(all, .lr = f.lr, .weight_decay = f.weightdecay);
    fl_fail("asr: --netoptim=%s is unknown; known: sgd, adam", f.netoptim);
    return NULL;
}

static bool checkpoint(fl_dist_model *m, fl_optim *o, fl_optim_progress *at, bool save) {
    char path[1000];
    if (!f.rundir) return true;
    snprintf(path, sizeof path, "%s/last.checkpoint", f.rundir);
    return save ? fl_dist_save_checkpoint(m, path, o, at) : fl_dist_load_checkpoint(m, path, o, at);
}

static bool train_step(recogniser *r, fl_dist_model *m, fl_optim *o, const fl_data_sample *b,
                       const fl_optim_progress *at, int64_t total, double *sum) {
    fl_tensor *steps;
    const double warm = f.warmup ? fmin(1, (double)(at->step + 1) / (double)f.warmup) : 1;
    const double lr = f.lrcosine ? fl_optim_lr_cosine(f.lr, 0, at->step, total) : f.lr;
    const double warming = (double)(!strcmp(f.criterion, "asg") ? f.linseg : f.pretrainWindow);
    fl_speech_criterion_warmup(r->criterion, warming > 0 ? fmax(0, 1 - (double)at->epoch / warming) : 0);
    fl_optim_zero_grad(o);
    if (f.mixed && !fl_autocast(FL_BF16)) return false;
    fl_var *x = fl_speech_arch_forward(r->net, fv_const(b->t[0]), b->t[2], &steps);
    fl_var *loss = x ? fl_speech_criterion_loss(r->criterion, x, steps, b->t[1], b->t[3]) : NULL;
    const bool ok = loss && fl_optim_set_lr(o, warm * lr) && fl_backward(loss) &&
                    fl_dist_step(m, o, f.maxgradnorm);
    if (ok) *sum += fl_item(fv_value(loss));
    return ok;
}

static bool evaluate(recogniser *r, const char *path, bool search, bool show, double *wer);
static bool relabel(recogniser *r, const char *path);

/* Batches of the current epoch: --train, or --train and the last hypotheses for --unlabeled. */
static fl_data_set *open_epoch(corpus *c, const recogniser *r, int64_t epoch) {
    char path[1000];
    snprintf(path, sizeof path, "%s/pseudo.%lld", f.rundir, (long long)(epoch - epoch % f.relabelevery));
    return open_corpus(c, f.unlabeled && epoch >= f.relabelevery ? path : f.train, r) ? batches(c) : NULL;
}

/* At the end of an epoch: relabels if it is due. */
static bool next_epoch(corpus *c, recogniser *r, int64_t epoch, fl_data_set **set) {
    char path[1000];
    if (!f.unlabeled || epoch % f.relabelevery) return true;
    snprintf(path, sizeof path, "%s/pseudo.%lld", f.rundir, (long long)epoch);
    if (!relabel(r, path)) return false;
    fl_data_free(*set);
    close_corpus(c);
    return (*set = open_epoch(c, r, epoch)) != NULL;
}

/* Evaluates on the valid list, and saves the best model. */
static bool evaluate_epoch(recogniser *r, double *best, bool *done) {
    double wer;
    char path[1000], flags_path[1010];
    if (!evaluate(r, f.valid ? f.valid : f.train, f.lm != NULL, false, &wer)) return false;
    *done = wer <= f.stopwer;
    if (wer >= *best || !f.rundir || !first_rank(r)) return true;
    *best = wer;
    snprintf(path, sizeof path, "%s/best.safetensors", f.rundir);
    snprintf(flags_path, sizeof flags_path, "%s.flags", path);
    return fl_nn_save(r->both, path) && write_flags(flags_path);
}

static bool train(recogniser *r, bool go_on) {
    corpus c = {NULL, NULL, NULL};
    fl_optim_progress at = {.step = 0};
    fl_dist_model *model = fl_dist_data_parallel(r->ranks, r->both);
    fl_optim *o = model ? make_optim(model) : NULL;
    fl_data_set *set = NULL;
    double sum = 0, began = fl_data_now(), best = INFINITY;
    bool ok = o != NULL, done = false;
    if (f.unlabeled && !f.rundir) ok = fl_fail("asr: --unlabeled needs a --rundir");
    if (ok && f.rundir) {
        char path[1000];
        mkdir(f.rundir, 0777);
        snprintf(path, sizeof path, "%s/flags", f.rundir);
        ok = go_on ? checkpoint(model, o, &at, false) : !first_rank(r) || write_flags(path);
    }
    ok = ok && (set = open_epoch(&c, r, at.epoch)) != NULL;
    int64_t size = ok ? fl_data_size(set) : 0;
    if (ok && first_rank(r))
        printf("%s: %lld parameters, %lld batches an epoch\n", f.criterion, (long long)fl_nn_count(r->both),
               (long long)size);
    while (ok && !done && at.epoch < f.iter) {
        fl_scope s = fl_scope_begin();
        fl_data_sample b;
        const int64_t epoch = at.epoch;
        ok = fl_data_next(set, &at.epoch, &at.position, &b);
        const fl_optim_progress now = {.step = at.step, .epoch = epoch};
        ok = ok && train_step(r, model, o, &b, &now, size * f.iter, &sum);
        fl_scope_end(&s);
        at.step++;
        if (!ok || at.epoch == epoch) continue;
        if (first_rank(r))
            printf("epoch %lld  loss %.4f  %.0f s\n", (long long)at.epoch, sum / (double)size,
                   fl_data_now() - began);
        sum = 0;
        ok = next_epoch(&c, r, at.epoch, &set) && checkpoint(model, o, &at, true) &&
             (at.epoch % f.evalevery || evaluate_epoch(r, &best, &done));
        size = ok ? fl_data_size(set) : 0;
        fflush(stdout);
    }
    fl_optim_free(o);
    fl_dist_model_free(model);
    fl_data_free(set);
    close_corpus(&c);
    return ok;
}

/* ---- test, align, transcribe ---- */

/* The network's output for a sound: [t', dim]. */
static fl_tensor *frames_of(recogniser *r, fl_tensor *sound, int64_t *features) {
    fl_tensor *x = features_of(r, sound);
    if (!x) return NULL;
    *features = x->shape[0];
    fl_var *y = fl_speech_arch_forward(r->net, fv_const(fl_unsqueeze(x, 0)), NULL, NULL);
    return y ? fl_select(fv_value(y), 0, 0) : NULL;
}

/* Greedy decoding of frames x. */
static bool greedy(recogniser *r, fl_tensor *x, fl_data_text *text) {
    int64_t *best = fl_heap_alloc((size_t)f.maxdecoderoutputlen * sizeof *best);
    const int64_t n =
        x && best ? fl_speech_criterion_best(r->criterion, x, best, f.maxdecoderoutputlen) : -1;
    text->n = 0;
    const bool ok = n >= 0 && fl_data_text_put(text, "", 0) &&
                    fl_speech_target_text_opt(r->tokens, best, n, text, target_opts());
    fl_heap_free(best);
    return ok;
}

static bool put_words(const recogniser *r, const fl_speech_result *best, fl_data_text *text) {
    bool ok = fl_data_text_put(text, "", 0);
    for (int64_t k = 0; ok && r->lexicon && k < best->words; k++) {
        const fl_text_dictionary *words = fl_speech_lexicon_words(r->lexicon);
        const char *w = fl_text_dictionary_entry(words, best->word[k].word, NULL);
        w = w ? w : "<unk>";
        ok = (!k || fl_data_text_put(text, " ", 1)) && fl_data_text_put(text, w, strlen(w));
    }
    int64_t *token = r->lexicon || !ok ? NULL : fl_heap_alloc((size_t)(best->words + 1) * sizeof *token);
    for (int64_t k = 0; token && k < best->words; k++) token[k] = best->word[k].word;
    if (!r->lexicon) {
        int64_t n = 0; /* omit the blank */
        for (int64_t k = 0; token && k < best->words; k++)
            if (token[k] < fl_text_dictionary_size(r->tokens)) token[n++] = token[k];
        ok = token && fl_speech_target_text_opt(r->tokens, token, n, text, target_opts());
    }
    fl_heap_free(token);
    return ok;
}

/* Beam search through frames x with a weight of the language model. */
static bool search(recogniser *r, fl_tensor *x, double weight, fl_data_text *text) {
    fl_speech_result best = {.words = 0}; /* empty if there is no hypothesis */
    const char *kind = fl_speech_criterion_name(r->criterion);
    const bool asg = !strcmp(kind, "asg"), frames = asg || !strcmp(kind, "ctc");
    const bool token_lm = !strcmp(f.decodertype, "tkn");
    const int64_t space = fl_text_dictionary_find(r->tokens, "|", 1), steps = x->shape[0];
    bool ok;
    text->n = 0;
    if (frames) {
        fl_var *w = asg ? fl_speech_criterion_transitions(r->criterion) : NULL;
        x = fl_contiguous(asg ? x : fl_log_softmax(x, 1));
        fl_speech_decoder *d = fl_speech_decoder_new(
            x->shape[1], r->lexicon, .beam = f.beamsize, .tokens = f.beamsizetoken,
            .threshold = f.beamthreshold, .log_add = f.logadd, .lm_weight = weight, .word_score = f.wordscore,
            .sil_score = f.silscore, .unknown_words = f.unkscore > -INFINITY, .unknown_score = f.unkscore,
            .unknown = -1, .lm = r->lm, .token_lm = token_lm, .asg = asg,
            .transitions = w ? fl_map(fv_value(w), FL_READ) : NULL,
            .separator = space > 0 ? space : space < 0 ? 0 : FL_I0);
        const float *p = d ? fl_map(x, FL_READ) : NULL;
        ok = p && fl_speech_decoder_step(d, p, steps) && fl_speech_decoder_end(d) &&
             fl_speech_decoder_best(d, 1, &best) >= 0 && put_words(r, &best, text);
        if (p) fl_unmap(x, FL_READ);
        if (w) fl_unmap(fv_value(w), FL_READ);
        fl_speech_decoder_free(d);
        return ok;
    }
    fl_speech_predictor *p =
        fl_speech_criterion_predictor(r->criterion, x, f.beamsize, f.maxdecoderoutputlen);
    const bool transducer = p && p->transducer;
    fl_speech_search *d =
        p ? fl_speech_search_new(p, r->lexicon, .beam = f.beamsize, .tokens = f.beamsizetoken,
                                 .most = transducer ? 0 : f.maxdecoderoutputlen, .threshold = f.beamthreshold,
                                 .log_add = f.logadd, .lm_weight = weight, .word_score = f.wordscore,
                                 .end_score = f.eosscore, .lm = r->lm, .token_lm = token_lm)
          : NULL;
    ok = d && fl_speech_search_step(d, transducer ? steps : f.maxdecoderoutputlen + 1) &&
         fl_speech_search_end(d) && fl_speech_search_best(d, 1, &best) >= 0 && put_words(r, &best, text);
    fl_speech_search_free(d);
    fl_speech_predictor_free(p);
    return ok;
}

/* Calls fn for each sound of a list. */
static bool each(recogniser *r, const char *path,
                 bool (*fn)(recogniser *r, const fl_speech_list_entry *e, fl_tensor *sound, void *user),
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

/* Appends a line of a list, with its path relative to --datadir. */
static bool put_line(fl_data_text *list, const fl_speech_list_entry *e, const char *text) {
    const char *path = e->path + (f.datadir ? strlen(f.datadir) + 1 : 0);
    return fl_data_text_print(list, "%s %s %g %s\n", e->id, path, e->ms, text);
}

typedef struct relabelled {
    fl_data_text text, list;
} relabelled;

static bool recognise(recogniser *r, fl_tensor *x, fl_data_text *text) {
    return x && (f.lexicon || f.lm ? search(r, x, f.lmweight, text) : greedy(r, x, text));
}

/* Appends a line with the hypothesis, unless it is empty. */
static bool relabel_one(recogniser *r, const fl_speech_list_entry *e, fl_tensor *sound, void *user) {
    relabelled *l = user;
    int64_t features;
    if (!recognise(r, frames_of(r, sound, &features), &l->text)) return false;
    return !*l->text.p || put_line(&l->list, e, l->text.p);
}

/* Writes the new training list: that of --train, and the hypotheses for --unlabeled. */
static bool relabel(recogniser *r, const char *path) {
    relabelled l = {{NULL, 0, 0}, {NULL, 0, 0}};
    int64_t n;
    char *known = fl_text_read_file("asr", f.train, &n);
    bool ok = known && fl_data_text_put(&l.list, known, (size_t)n) && fl_data_text_put(&l.list, "\n", 1);
    ok = ok && each(r, f.unlabeled, relabel_one, &l);
    ok = ok && (!first_rank(r) || fl_data_replace("asr", path, l.list.p, (size_t)l.list.n));
    if (r->ranks) ok = fl_dist_barrier(r->ranks) && ok;
    fl_heap_free(known), fl_heap_free(l.text.p), fl_heap_free(l.list.p);
    return ok;
}

enum { WEIGHTS = 64 };
typedef struct tested {
    fl_speech_scores *scores[WEIGHTS]; /* per weight of the grid */
    fl_data_text text, trn[2], list;   /* trn: hypotheses and references */
    double weight[WEIGHTS];
    int weights; /* 0: greedy decoding */
    bool show;
} tested;

static bool test_one(recogniser *r, const fl_speech_list_entry *e, fl_tensor *sound, void *user) {
    tested *t = user;
    char speaker[64];
    int64_t features;
    fl_tensor *x = frames_of(r, sound, &features);
    bool ok = x != NULL;
    snprintf(speaker, sizeof speaker, "%.*s", (int)strcspn(e->id, "-_"), e->id);
    for (int k = 0; ok && k < (t->weights ? t->weights : 1); k++) {
        ok = t->weights ? search(r, x, t->weight[k], &t->text) : greedy(r, x, &t->text);
        ok = ok && fl_speech_scores_add(t->scores[k], speaker, t->text.p, e->transcript);
    }
    if (ok && t->show) printf("%s\n|T|: %s\n|P|: %s\n", e->id, e->transcript, t->text.p);
    return ok && fl_data_text_print(&t->trn[0], "%s (%s)\n", t->text.p, e->id) &&
           fl_data_text_print(&t->trn[1], "%s (%s)\n", e->transcript, e->id) &&
           put_line(&t->list, e, t->text.p);
}

static bool save_tested(const tested *t) {
    char path[1000];
    for (int k = 0; f.sclite && k < 2; k++) {
        snprintf(path, sizeof path, "%s.%s", f.sclite, k ? "ref" : "hyp");
        if (!fl_data_replace("asr", path, t->trn[k].p, (size_t)t->trn[k].n)) return false;
    }
    return !f.labels || fl_data_replace("asr", f.labels, t->list.p, (size_t)t->list.n);
}

/* Error rates on a list; with several weights those of the best one, which becomes --lmweight. */
static bool evaluate(recogniser *r, const char *path, bool by_search, bool show, double *wer) {
    tested t = {.weights = by_search, .weight = {f.lmweight}, .show = show && first_rank(r)};
    bool ok = true;
    if (by_search && f.lmweight_step > 0)
        for (t.weights = 0; t.weights < WEIGHTS; t.weights++) {
            t.weight[t.weights] = f.lmweight_low + t.weights * f.lmweight_step;
            if (t.weight[t.weights] > f.lmweight_high + 1e-9) break;
        }
    for (int k = 0; ok && k <= t.weights && k < WEIGHTS; k++)
        ok = (t.scores[k] = fl_speech_scores_new()) != NULL;
    fl_data_edits word, letter, best_word = {0}, best_letter = {0};
    int best = 0;
    ok = ok && each(r, path, test_one, &t);
    for (int k = 0; ok && k < (t.weights ? t.weights : 1); k++) {
        ok = fl_speech_scores_of(t.scores[k], NULL, &word, &letter);
        if (ok && t.weights > 1 && first_rank(r))
            printf("lmweight %g: WER %.2f %%\n", t.weight[k], fl_data_edits_percent(&word));
        if (k && fl_data_edits_percent(&word) >= fl_data_edits_percent(&best_word)) continue;
        best = k, best_word = word, best_letter = letter;
    }
    if (ok && t.weights) f.lmweight = t.weight[best];
    if (ok) *wer = fl_data_edits_percent(&best_word);
    t.text.n = 0;
    if (ok && t.show && fl_speech_scores_table(t.scores[best], &t.text)) fputs(t.text.p, stdout);
    if (ok && first_rank(r))
        printf("%s: WER %.2f %%, LER %.2f %%\n", path, *wer, fl_data_edits_percent(&best_letter));
    ok = ok && (!first_rank(r) || save_tested(&t));
    fl_data_text *const all[] = {&t.text, &t.trn[0], &t.trn[1], &t.list};
    for (int k = 0; k < 4; k++) fl_heap_free(all[k]->p);
    for (int k = 0; k < WEIGHTS; k++) fl_speech_scores_free(t.scores[k]);
    return ok;
}

/* Writes a word with its times in seconds. */
static void put_word(const recogniser *r, const fl_speech_list_entry *e, const fl_speech_span *span,
                     int64_t n,
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

static bool align_one(recogniser *r, const fl_speech_list_entry *e, fl_tensor *sound, void *user) {
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
    bool ok = (a.ctm && (a.audacity || !f.audacity)) || fl_fail("asr: cannot open the output files");
    ok = ok && each(r, f.test ? f.test : f.train, align_one, &a);
    if (a.ctm && a.ctm != stdout && fclose(a.ctm)) ok = fl_fail("asr: cannot write %s", f.ctm);
    if (a.audacity && fclose(a.audacity)) ok = fl_fail("asr: cannot write %s", f.audacity);
    return ok;
}

static bool transcribe(recogniser *r) {
    fl_data_text text = {NULL, 0, 0};
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    fl_nn_train(r->both, false);
    fl_tensor *x = f.file ? fl_speech_load_audio(f.file, .rate = f.samplerate, .channel = -1)
                          : (fl_fail("asr: --file=SOUND is required"), NULL);
    int64_t features;
    x = x ? frames_of(r, fl_select(x, 0, 0), &features) : NULL;
    const bool ok = recognise(r, x, &text);
    if (ok) puts(text.p);
    fl_heap_free(text.p);
    fl_scope_end(&s);
    return ok;
}

/* ---- Whisper ---- */

static int32_t special(const fl_text_tokenizer *t, const char *name) {
    char text[64];
    snprintf(text, sizeof text, "<|%s|>", name);
    return fl_text_id_of(t, text, (int64_t)strlen(text));
}

/* Prints a line: begin, end, text. */
static bool put_segment(const fl_speech_whisper_segment *s, void *user) {
    const fl_text_tokenizer *t = user;
    const int32_t end = special(t, "endoftext");
    int32_t *id = fl_heap_alloc((size_t)s->n * sizeof *id);
    fl_data_text text = {NULL, 0, 0};
    int64_t n = 0;
    for (int64_t i = 0; id && i < s->n; i++)
        if (s->token[i] < end) id[n++] = (int32_t)s->token[i];
    const bool ok = id && fl_text_decode(t, id, n, false, &text) && fl_data_text_put(&text, "", 1);
    if (ok) printf("%.2f\t%.2f\t%s\n", s->begin, s->end, text.p + strspn(text.p, " "));
    fl_heap_free(id);
    fl_heap_free(text.p);
    return ok;
}

static bool transcribe_whisper(void) {
    fl_speech_conf c;
    fl_text_tokenizer *t = fl_text_tokenizer_open(f.whisper);
    fl_nn_module *m = t ? fl_speech_pretrained(f.whisper) : NULL;
    bool ok = m && f.file && fl_speech_preset(&c, "whisper", 16000);
    if (m && !f.file) fl_fail("asr: --file=SOUND is required");
    fl_scope s = fl_scope_begin();
    fl_nn_module *conv = ok ? fl_nn_find(m, "model.encoder.conv1") : NULL;
    if (conv) c.bands = fv_value(fl_nn_get_param(conv, "weight"))->shape[1], c.pad_to = 0;
    fl_speech_features *features = conv ? fl_speech_features_new(&c) : NULL;
    fl_tensor *x = features ? fl_speech_load_audio(f.file, .rate = 16000, .channel = -1) : NULL;
    x = x ? fl_speech_features_compute(features, fl_select(x, 0, 0)) : NULL;
    int64_t prompt[3], n = 0; /* English-only models have no language and task tokens */
    const char *const names[] = {"startoftranscript", f.language, "transcribe"};
    for (int k = 0; x && k < 3; k++)
        if ((prompt[n] = special(t, names[k])) >= 0) n++;
    const int64_t none = x ? special(t, "notimestamps") : -1;
    ok = x && (x = fl_contiguous(fl_transpose(x, 0, 1))) &&
         fl_speech_whisper_long(m, x, put_segment, t, .prompt = n ? prompt : NULL, .n_prompt = n,
                                .times = none >= 0, .first_time = none >= 0 ? none + 1 : 0,
                                .seed = (uint64_t)f.seed);
    fl_scope_end(&s);
    fl_speech_features_free(features);
    fl_nn_free(m);
    fl_text_tokenizer_free(t);
    return ok;
}

int main(int argc, char **argv) {
    static const char *const commands[] = {"train",  "continue", "fork",      "test",
                                           "decode", "align",    "transcribe"};
    enum { TRAIN, CONTINUE, FORK, TEST, DECODE, ALIGN, TRANSCRIBE, COMMANDS };
    static const char how[] = "train|continue|fork|test|decode|align|transcribe --name=value ...";
    int command = 0;
    arguments_help(argc, argv, how, table);
    while (command < COMMANDS && (argc < 2 || strcmp(argv[1], commands[command]))) command++;
    if (command == COMMANDS) {
        fprintf(stderr, "usage: asr %s\n", how);
        return 2;
    }
    recogniser r = {.tokens = NULL};
    bool ok = read_flags(argc, argv);
    double wer = 0;
    fl_seed((uint64_t)f.seed);
    fl_scope s = fl_scope_begin();
    const bool whisper = command == TRANSCRIBE && f.whisper;
    if (ok && whisper) ok = transcribe_whisper();
    ok = ok && (whisper || ((command > FORK || (r.ranks = fl_dist_init())) && make_recogniser(&r) &&
                            get_models(&r)));
    if (ok && command <= FORK) ok = train(&r, command == CONTINUE);
    if (ok && (command == TEST || command == DECODE || (command <= FORK && f.test)))
        ok = evaluate(&r, f.test, command == DECODE, f.show, &wer);
    if (ok && command == ALIGN) ok = align(&r);
    if (ok && command == TRANSCRIBE && !whisper) ok = transcribe(&r);
    if (!ok) fprintf(stderr, "asr: %s\n", fl_error() ? fl_error() : "failed");
    free_recogniser(&r);
    fl_dist_close(r.ranks);
    fl_scope_end(&s);
    fl_data_arena_free(&texts);
    return ok ? 0 : 1;
}
/* MIT licence: see LICENSE. */
