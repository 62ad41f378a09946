/* bench/speech.c - log-mel features, resampling, CTC, transducers, training, Whisper, decoding

   Compared with torchaudio, kaldi-native-fbank, librosa, PyTorch, transformers, flashlight-text, pyctcdecode
   if PEER_PYTHON has them (make bench-speech ARGS="folder of texts"), a plain loop over FFTW if installed;
   and a streaming TDS network.

   CPU seconds of one thread, alternating, medians of ROUNDS; a ratio is the median of the rounds' ratios,
   theirs / ours. The decoders read letters of held-out lines of War and Peace, with so much noise that about
   every third word is wrong under greedy decoding; a 3-gram of the other lines, a lexicon of their words.
   Without ../shared/data/text the decoders are skipped. */
#define _GNU_SOURCE
#include "bench.h"
#include "peer.h"
#include "peers/mel_loop.h"
#include <ctype.h>
#include <malloc.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 3, RATE = 16000, SECONDS = 60, LETTERS = 29, BLANK = LETTERS - 1, UTTERANCES = 20 };
static const char letters[] = "|abcdefghijklmnopqrstuvwxyz'#";
static const char *folder = "build/bench-speech";
static bench_peer peer;

static const char *path_of(const char *name) {
    static char path[3][300];
    static int k;
    k = (k + 1) % 3;
    snprintf(path[k], sizeof path[k], "%s/%s", folder, name);
    return path[k];
}

static double cpu_now(void) { return (double)clock() / CLOCKS_PER_SEC; }

/* A job of ours and of some of theirs (bench/peer.h). */
static void compare(const char *figure, void (*ours)(void), const char *const *theirs, double scale,
                    const char *unit) {
    bench_beside(&peer, ROUNDS, figure, ours, theirs, scale, unit);
}

/* ---- features, resampling, CTC ---- */

static fl_tensor *sound;
static fl_speech_features *features[3];
static int preset;

static void log_mel(void) {
    fl_scope s = fl_scope_begin();
    if (!fl_speech_features_compute(features[preset], sound)) fprintf(stderr, "%s\n", fl_error());
    fl_scope_end(&s);
}

/* Our frames of a sound without padding, and those of the loop over FFTW, in turn. */
static void beside_fftw(int64_t n_fft) {
    fl_scope s = fl_scope_begin();
    fl_speech_conf c;
    fl_speech_preset(&c, "torchaudio", RATE);
    c.bands = 80, c.log = FL_SPEECH_LN, c.n_fft = c.window_length = n_fft, c.hop = RATE / 100;
    c.edges = FL_SPEECH_SNIP;
    features[2] = fl_speech_features_new(&c), preset = 2;
    fl_tensor *window = fl_speech_window_new(c.window, n_fft), *weight = fl_speech_filter_bank(&c);
    fl_tensor *x = fl_speech_features_compute(features[2], sound);
    fl_tensor *y = x ? fl_full_like(x, 0) : NULL;
    double ours[ROUNDS], theirs[ROUNDS], ratio[ROUNDS];
    char name[64];
    bool ok = window && weight && y;
    if (ok) window = fl_contiguous(fl_cast(window, FL_F32)), weight = fl_contiguous(fl_cast(weight, FL_F32));
    const mel_loop m = {(int)n_fft, RATE / 100, 80, ok ? fl_data(window) : NULL, ok ? fl_data(weight) : NULL};
    ok = ok && mel_loop_run(&m, fl_data(sound), RATE * SECONDS, fl_data(y)) == x->shape[0];
    for (int r = 0; ok && r < ROUNDS; r++) {
        double start = cpu_now();
        log_mel();
        ours[r] = cpu_now() - start, start = cpu_now();
        mel_loop_run(&m, fl_data(sound), RATE * SECONDS, fl_data(y));
        theirs[r] = cpu_now() - start, ratio[r] = theirs[r] / ours[r];
    }
    snprintf(name, sizeof name, "log-mel 80, %lld points", (long long)n_fft);
    if (!ok) {
        printf("absent: FFTW, for %s\n", name);
    } else {
        bench_line(name, SECONDS / bench_median(ours, ROUNDS), "x real time", "ours");
        bench_line(name, SECONDS / bench_median(theirs, ROUNDS), "x real time", "FFTW");
        bench_line(name, bench_median(ratio, ROUNDS), "x", "FFTW / ours");
        bench_line(name, fl_item(fl_amax(fl_abs(fl_sub(x, y)), FL_ALL_AXES)), "", "largest difference");
    }
    fl_speech_features_free(features[2]);
    fl_scope_end(&s);
}

static int64_t from, to;
static void resample(void) {
    fl_scope s = fl_scope_begin();
    if (!fl_speech_resample(sound, from, to)) fprintf(stderr, "%s\n", fl_error());
    fl_scope_end(&s);
}

static fl_tensor *logits, *target, *steps, *lengths;
static void ctc(void) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(logits);
    fl_var *loss = fv_ctc_loss(fv_log_softmax(x, -1), target, steps, lengths, .blank = 31);
    if (!loss || !fl_backward(loss)) fprintf(stderr, "%s\n", fl_error());
    fl_scope_end(&s);
}

static void make_ctc(void) {
    enum { T = 500, N = 16, C = 32, L = 60 };
    logits = fl_normal(FL_SHAPE(T, N, C), 0, 1, FL_F32, NULL);
    target = fl_randint(FL_SHAPE(N, L), 0, C - 1, NULL);
    steps = fl_full(FL_SHAPE(N), T, FL_I64);
    lengths = fl_full(FL_SHAPE(N), L, FL_I64);
}

/* ---- transducers ---- */

enum { TN = 4, TT = 200, TU = 60, TC = 64, TH = 128 };
static fl_tensor *cells, *labels, *frames_of, *labels_of, *part[4];
static void transducer(void) {
    fl_scope s = fl_scope_begin();
    fl_var *x = fv_param(cells), *loss = fv_transducer_loss(x, labels, frames_of, labels_of);
    if (!loss || !fl_backward(loss)) fprintf(stderr, "%s\n", fl_error());
    fl_scope_end(&s);
}

/* The joint with it: tanh(a + b) weight^T + bias. */
static void joint(void) {
    fl_scope s = fl_scope_begin();
    fl_var *v[4];
    for (int i = 0; i < 4; i++) v[i] = fv_param(part[i]);
    fl_var *p = fv_transducer_joint(v[0], v[1], v[2], v[3], labels);
    const fl_lattice_opts o = {.reduction = FL_MEAN};
    fl_var *loss = p ? fv_transducer_joint_loss(p, frames_of, labels_of, o) : NULL;
    if (!loss || !fl_backward(loss)) fprintf(stderr, "%s\n", fl_error());
    fl_scope_end(&s);
}

static void transducers(void) {
    static const char *const loss[] = {"transducer", NULL}, *const both[] = {"joint", NULL};
    const fl_shape shape[] = {FL_SHAPE(TN, TT, TH), FL_SHAPE(TN, TU + 1, TH), FL_SHAPE(TC, TH), FL_SHAPE(TC)};
    cells = fl_normal(FL_SHAPE(TN, TT, TU + 1, TC), 0, 1, FL_F32, NULL);
    labels = fl_randint(FL_SHAPE(TN, TU), 0, TC - 1, NULL);
    frames_of = fl_full(FL_SHAPE(TN), TT, FL_I64), labels_of = fl_full(FL_SHAPE(TN), TU, FL_I64);
    for (int i = 0; i < 4; i++) part[i] = fl_normal(shape[i], 0, 0.1, FL_F32, NULL);
    compare("transducer 4 x 200 x 61 x 64, both ways", transducer, loss, 0, "ms");
    compare("joint 128 and transducer, both ways", joint, both, 0, "ms");
    fl_mem_stats_reset_peak(NULL);
    const double before = (double)fl_mem_stats_of(NULL).in_use;
    joint();
    const double ours = ((double)fl_mem_stats_of(NULL).peak_in_use - before) / 1e6,
                 theirs = bench_peer_ask(&peer, "joint memory");
    bench_line("joint and transducer, memory", ours, "MB", "ours");
    if (theirs != theirs) return;
    bench_line("joint and transducer, memory:joint", theirs, "MB", "theirs");
    bench_line("joint and transducer, memory:ratio", ours / theirs, "x", "ours / theirs");
}

/* ---- Whisper of the smallest size at random, 30 s, 100 tokens ---- */

static fl_nn_module *whisper;
static fl_tensor *bands;
static void transcribe(void) {
    int64_t out[100];
    if (fl_speech_whisper(whisper, bands, out, 100, NULL, .least = FL_ZERO, .repeated = FL_ZERO,
                          .suppressed = (int64_t[]){50257}, .n_suppressed = 1) != 100)
        fprintf(stderr, "whisper: %s\n", fl_error());
}

static void whispers(void) {
    static const char *const theirs[] = {"whisper", NULL};
    const double made = bench_peer_ask(&peer, "whisper");
    whisper = made == made ? fl_speech_pretrained(path_of("whisper")) : NULL;
    bands = fl_normal(FL_SHAPE(80, 3000), 0, 1, FL_F32, NULL);
    if (whisper) compare("whisper tiny, 30 s, 100 tokens", transcribe, theirs, 0, "ms");
    else fprintf(stderr, "skipped: Whisper (%s)\n", fl_error() ? fl_error() : "no transformers");
    fl_error_clear();
    fl_nn_free(whisper);
}

/* ---- steps of training: features of 4 sounds of 4 s, CTC, SGD ---- */

static fl_nn_module *net;
static fl_optim *optim;
static fl_tensor *spelled_as;
static void train_step(void) {
    enum { N = 4, SAMPLES = 4 * RATE };
    fl_scope s = fl_scope_begin();
    fl_tensor *x[N], *all, *some = fl_full(FL_SHAPE(N), 20, FL_I64);
    for (int i = 0; i < N; i++)
        x[i] = fl_speech_normalize(
            fl_speech_features_compute(features[0], fl_slice(sound, 0, i * SAMPLES, (i + 1) * SAMPLES, 1)));
    all = fl_stack(x, N, 0);
    fl_var *y = all ? fl_speech_arch_forward(net, fv_const(all), NULL, NULL) : NULL;
    fl_tensor *counts = y ? fl_full(FL_SHAPE(N), (double)fv_value(y)->shape[1], FL_I64) : NULL;
    fl_var *p = counts ? fv_transpose(fv_log_softmax(y, 2), 0, 1) : NULL;
    fl_optim_zero_grad(optim);
    if (!p || !fl_backward(fv_ctc_loss(p, spelled_as, counts, some, .blank = 29)) || !fl_optim_step(optim))
        fprintf(stderr, "%s\n", fl_error());
    fl_scope_end(&s);
}

static void trainings(void) {
    static const char *const names[] = {"conv_glu", "tds", "conformer"};
    spelled_as = fl_randint(FL_SHAPE(4, 20), 0, 29, NULL);
    for (int k = 0; k < 3; k++) {
        char path[100], job[110], figure[60];
        const char *const theirs[] = {job, NULL};
        snprintf(path, sizeof path, "examples/speech/arch/%s.arch", names[k]);
        snprintf(job, sizeof job, "train %s", path), snprintf(figure, sizeof figure, "train %s", names[k]);
        net = fl_speech_arch(path, 80, 30);
        optim = net ? fl_optim_sgd(fl_nn_parameters(net), .lr = 1e-4) : NULL;
        if (optim) compare(figure, train_step, theirs, 0, "ms");
        else fprintf(stderr, "%s\n", fl_error());
        fl_optim_free(optim), fl_nn_free(net);
    }
}

/* ---- a streaming TDS, 80 ms at a time ---- */

static void listen(fl_dtype dtype) {
    enum { CHUNK = RATE * 8 / 100, CHUNKS = 200 };
    fl_set_threads(2); /* its weights are read once for a frame: memory is what it waits for */
    double took[CHUNKS], cpu[CHUNKS];
    fl_speech_conf c;
    fl_speech_preset(&c, "kaldi", RATE);
    c.bands = 80;
    net = fl_speech_arch("examples/speech/arch/tds_streaming.arch", 80, 30);
    if (net) fl_nn_train(net, false);
    if (net && dtype != FL_F32) fl_nn_store(net, dtype);
    char figure[60];
    snprintf(figure, sizeof figure, "streaming TDS, 80 ms, %s", fl_dtype_name(dtype));
    fl_speech_features *f = fl_speech_features_new(&c);
    fl_speech_stream *ear = f ? fl_speech_stream_new(f) : NULL;
    fl_speech_arch_stream *head = net ? fl_speech_arch_stream_new(net) : NULL;
    for (int k = 0; ear && head && k < CHUNKS; k++) {
        fl_scope s = fl_scope_begin();
        const double start = fl_data_now(), used = cpu_now();
        const float *samples = (const float *)fl_data(sound) + k * CHUNK;
        fl_tensor *x = fl_speech_stream_push(ear, samples, CHUNK, false), *y = NULL;
        if (!x || !fl_speech_arch_stream_push(head, x, false, &y)) fprintf(stderr, "%s\n", fl_error());
        fl_tensor *best = y ? fl_argmax(y, 1, false) : NULL;
        if (best) fl_speech_collapse(fl_data(best), best->shape[0], 29, fl_data(best));
        took[k] = fl_data_now() - start, cpu[k] = cpu_now() - used;
        fl_scope_end(&s);
    }
    if (head) {
        bench_line(figure, bench_median(took, CHUNKS) * 1e3, "ms", "median of 200 chunks");
        snprintf(figure, sizeof figure, "streaming TDS, 80 ms, %s:CPU", fl_dtype_name(dtype));
        bench_line(figure, bench_median(cpu, CHUNKS) * 1e3, "ms", "both threads");
    } else fprintf(stderr, "%s\n", fl_error());
    fl_set_threads(1);
    fl_speech_arch_stream_free(head), fl_speech_stream_free(ear), fl_speech_features_free(f);
    fl_nn_free(net);
}

/* ---- decoders ---- */

static fl_tensor *scores[UTTERANCES];
static fl_data_text said[UTTERANCES], wanted[UTTERANCES];
static fl_speech_lexicon *lexicon;
static fl_text_ngram *ngram;
static fl_text_scorer *lm;
static fl_speech_decoder *decoder;

/* A line in small letters, its words apart by a space each, put behind t. */
static void put_line(fl_data_text *t, const char *p, const char *end) {
    const int64_t begin = t->n;
    for (; p < end; p++) {
        const char c = (char)tolower((unsigned char)*p);
        if ((c >= 'a' && c <= 'z') || (c == '\'' && t->n > begin && t->p[t->n - 1] != ' '))
            fl_data_text_put(t, &c, 1);
        else if (t->n > begin && t->p[t->n - 1] != ' ') fl_data_text_put(t, " ", 1);
    }
    while (t->n > begin && t->p[t->n - 1] == ' ') t->n--;
}

static const double unclear = 4.25; /* how far the right letter stands out of noise of deviation 1 */

/* Log probabilities of a line's letters, each two or three frames long, some with a blank behind. */
static fl_tensor *scores_of(const char *text, fl_rng *rng) {
    int token[4096], n = 0;
    for (const char *p = text; n < 4000; p++) {
        const int k = *p && *p != ' ' ? (int)(strchr(letters, *p) - letters) : 0;
        for (int i = (int)fl_speech_draw(rng, 2, 3); i > 0; i--) token[n++] = k;
        if (p[0] == p[1] || fl_speech_draw(rng, 0, 1)) token[n++] = BLANK;
        if (!*p) break;
    }
    fl_tensor *x = fl_normal(FL_SHAPE(n, LETTERS), 0, 1, FL_F32, rng);
    for (int t = 0; t < n; t++) ((float *)fl_data(x))[t * LETTERS + token[t]] += (float)unclear;
    return fl_contiguous(fl_log_softmax(x, -1));
}

static void greedy(const fl_tensor *x, fl_data_text *t) {
    const float *p = fl_data(x);
    int last = BLANK;
    for (int64_t i = 0; i < x->shape[0]; i++) {
        int best = 0;
        for (int k = 1; k < LETTERS; k++)
            if (p[i * LETTERS + k] > p[i * LETTERS + best]) best = k;
        if (best != last && best != BLANK) fl_data_text_put(t, best ? &letters[best] : " ", 1);
        last = best;
    }
    fl_data_text_put(t, "", 1);
}

static double error_rate(const fl_data_text *guess) {
    fl_speech_scores *s = fl_speech_scores_new();
    fl_data_edits e = {0};
    for (int u = 0; u < UTTERANCES; u++) fl_speech_scores_add(s, "all", guess[u].p, wanted[u].p);
    fl_speech_scores_of(s, NULL, &e, NULL);
    fl_speech_scores_free(s);
    return fl_data_edits_percent(&e);
}

static bool decode_some(fl_speech_decoder *d, int first, int step) {
    bool ok = true;
    for (int u = first; ok && u < UTTERANCES; u += step) {
        fl_speech_result r;
        ok = fl_speech_decoder_begin(d) &&
             fl_speech_decoder_step(d, fl_data(scores[u]), scores[u]->shape[0]) &&
             fl_speech_decoder_end(d) && fl_speech_decoder_best(d, 1, &r) == 1;
        said[u].n = 0;
        for (int64_t k = 0; ok && k < r.words; k++) {
            const char *w = fl_text_dictionary_entry(fl_speech_lexicon_words(lexicon), r.word[k].word, NULL);
            if (k) fl_data_text_put(&said[u], " ", 1);
            fl_data_text_put(&said[u], w, strlen(w));
        }
        fl_data_text_put(&said[u], "", 1);
    }
    return ok;
}

static void decode(void) {
    if (!decode_some(decoder, 0, 1)) fprintf(stderr, "%s\n", fl_error());
}

/* Bytes of the heap in use. */
static int64_t in_use;
static void *counted(void *user, void *p, size_t bytes) {
    (void)user;
    in_use -= p ? (int64_t)malloc_usable_size(p) : 0;
    if (!bytes) return free(p), NULL;
    p = realloc(p, bytes);
    in_use += p ? (int64_t)malloc_usable_size(p) : 0;
    return p;
}

static fl_speech_decoder *new_decoder(bool flashlight) {
    /* Flashlight's model scores are log10: its weight is ln 10 times ours. */
    return fl_speech_decoder_new(LETTERS, lexicon, .beam = 500, .threshold = 25, .lm = lm,
                                 .lm_weight = flashlight ? 2.3 : 1, .separator = FL_I0,
                                 .flashlight = flashlight);
}

static void *decode_half(void *d) {
    static int half;
    const int first = __atomic_fetch_add(&half, 1, __ATOMIC_RELAXED) % 2;
    if (!decode_some(d, first, 2)) fprintf(stderr, "%s\n", fl_error());
    return NULL;
}

/* Two threads beside one, in turn: by the clock, and by what each costs in CPU seconds, which is what the
   clock would say if both had a core of their own. */
static void two_threads(void) {
    fl_speech_decoder *d[] = {new_decoder(false), new_decoder(false)};
    double clock_ratio[ROUNDS], cpu_ratio[ROUNDS];
    for (int r = -1; r < ROUNDS; r++) {
        pthread_t thread[2];
        double wall = fl_data_now(), cpu = cpu_now();
        decode_half(d[0]), decode_half(d[1]);
        wall = fl_data_now() - wall, cpu = cpu_now() - cpu;
        double wall2 = fl_data_now(), cpu2 = cpu_now();
        for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, decode_half, d[i]);
        for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
        wall2 = fl_data_now() - wall2, cpu2 = cpu_now() - cpu2;
        if (r >= 0) clock_ratio[r] = wall / wall2, cpu_ratio[r] = 2 * cpu / cpu2;
    }
    bench_line("decode: two threads", bench_median(clock_ratio, ROUNDS), "x", "by the clock");
    bench_line("decode: two threads", bench_median(cpu_ratio, ROUNDS), "x", "by CPU seconds");
    for (int i = 0; i < 2; i++) fl_speech_decoder_free(d[i]);
    fl_heap_use(counted, NULL);
    d[0] = new_decoder(false);
    if (!decode_some(d[0], 0, 1)) fprintf(stderr, "%s\n", fl_error());
    bench_line("decode: a stream", (double)in_use / 1024, "KiB", "decoder, beam 500");
    fl_speech_decoder_free(d[0]);
    fl_heap_use(NULL, NULL);
}

/* Cuts the book into what is learnt and what is heard, and writes what the peers need. */
static bool make_texts(const char *book) {
    int64_t size, used = 0;
    char *text = fl_text_read_file("bench", book, &size);
    fl_data_text known = {0}, spelled = {0}, names = {0}, refs = {0};
    fl_text_dictionary *words = fl_text_dictionary_new();
    if (!text) return false;
    for (const char *p = text, *end = text + size; p < end;) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        const bool unseen =
            p > text + size / 3 && used < UTTERANCES && (p - text) % 997 < 40 && stop - p > 55;
        fl_data_text *t = unseen ? &wanted[used] : &known;
        const int64_t begin = t->n;
        put_line(t, p, stop);
        if (unseen) used++, fl_data_text_put(t, "", 1);
        else if (t->n > begin) fl_data_text_put(t, "\n", 1);
        p = stop + 1;
    }
    const char *p = known.p, *end = known.p + known.n;
    int64_t n;
    lexicon = fl_speech_lexicon_new();
    for (const char *w; (w = fl_text_field(&p, end, &n));) {
        if (fl_text_dictionary_find(words, w, n) >= 0 || n > 60) continue;
        fl_text_dictionary_add(words, w, n);
        int32_t token[64];
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)n, w);
        fl_data_text_put(&spelled, w, (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            token[i] = (int32_t)(strchr(letters, w[i]) - letters);
            fl_data_text_put(&spelled, (char[]){' ', w[i]}, 2);
        }
        token[n] = 0;
        fl_data_text_put(&spelled, " |\n", 3);
        if (fl_speech_lexicon_add(lexicon, name, token, n + 1) < 0) return false;
    }
    fl_data_named_tensor named[UTTERANCES];
    static char id[UTTERANCES][8];
    for (int u = 0; u < UTTERANCES; u++) {
        fl_rng rng = fl_data_rng(7, 0, u);
        snprintf(id[u], sizeof id[u], "%04d", u);
        named[u] = (fl_data_named_tensor){id[u], scores[u] = scores_of(wanted[u].p, &rng)};
        fl_data_text_put(&refs, wanted[u].p, (size_t)wanted[u].n - 1);
        fl_data_text_put(&refs, "\n", 1);
    }
    for (const char *c = letters; *c; c++) fl_data_text_put(&names, (char[]){*c, '\n'}, 2);
    bool ok = used == UTTERANCES && fl_text_ngram_train(known.p, known.n, path_of("lm.arpa"), .order = 3) &&
              fl_data_save_safetensors(path_of("scores.safetensors"), named, UTTERANCES, NULL, 0) &&
              fl_data_replace("bench", path_of("lexicon"), spelled.p, (size_t)spelled.n) &&
              fl_data_replace("bench", path_of("refs"), refs.p, (size_t)refs.n) &&
              fl_data_replace("bench", path_of("tokens"), names.p, (size_t)names.n) &&
              (ngram = fl_text_ngram_load(path_of("lm.arpa"))) &&
              (lm = fl_text_ngram_scorer(ngram, fl_speech_lexicon_words(lexicon)));
    fl_data_text *const all[] = {&known, &spelled, &names, &refs};
    for (int k = 0; k < 4; k++) fl_heap_free(all[k]->p);
    fl_text_dictionary_free(words);
    fl_heap_free(text);
    return ok;
}

static void decoders(void) {
    static fl_data_text simple[UTTERANCES];
    double frames = 0;
    for (int u = 0; u < UTTERANCES; u++) greedy(scores[u], &simple[u]), frames += (double)scores[u]->shape[0];
    bench_line("decode:greedy", error_rate(simple), "WER %", "each frame's best letter");
    for (int flashlight = 0; flashlight < 2; flashlight++) {
        static const char *const theirs[] = {"flashlight", "pyctcdecode", NULL}, *const none[] = {NULL};
        if (!fl_speech_lexicon_finish(lexicon, FL_SPEECH_SMEAR_MAX, lm, flashlight) ||
            !(decoder = new_decoder(flashlight)))
            fprintf(stderr, "%s\n", fl_error());
        compare(flashlight ? "decode:flashlight's way" : "decode", decode, flashlight ? theirs : none, frames,
                "frames/s");
        bench_line(flashlight ? "decode:flashlight's way" : "decode", error_rate(said), "WER %", "ours");
        fl_speech_decoder_free(decoder);
        if (!flashlight) two_threads();
    }
    bench_line("decode:flashlight", bench_peer_ask(&peer, "wer flashlight"), "WER %", "theirs");
    bench_line("decode:pyctcdecode", bench_peer_ask(&peer, "wer pyctcdecode"), "WER %", "theirs");
}

int main(int argc, char **argv) {
    const char *texts = argc > 1 ? argv[1] : "../shared/data/text";
    char book[300];
    snprintf(book, sizeof book, "%s/gutenberg/war_and_peace_2600-0.txt", texts);
    if (system("mkdir -p build/bench-speech") != 0) return 1;
    fl_scope s = fl_scope_begin();
    fl_set_threads(1);
    fl_seed(1);
    sound = fl_normal(FL_SHAPE(RATE * SECONDS), 0, 0.1, FL_F32, NULL);
    bool ok = fl_data_save_safetensors(path_of("sound.safetensors"),
                                       &(fl_data_named_tensor){.name = "x", .tensor = sound}, 1, NULL, 0);
    const bool has_book = ok && make_texts(book);
    if (!has_book) fprintf(stderr, "skipped: decoders (%s)\n", fl_error()), fl_error_clear();
    peer = bench_peer_begin("speech.py", folder, NULL);
    static const char *const mel[][3] = {{"fbank torchaudio", "fbank librosa"}, {"fbank kaldi"}};
    for (preset = 0; ok && preset < 2; preset++) {
        fl_speech_conf c;
        fl_speech_preset(&c, preset ? "kaldi" : "torchaudio", RATE);
        c.bands = 80, c.log = FL_SPEECH_LN;
        if (!preset) c.n_fft = c.window_length = 400, c.hop = 160;
        ok = (features[preset] = fl_speech_features_new(&c)) != NULL;
        const char *const figure = preset ? "log-mel 80, kaldi" : "log-mel 80";
        if (ok) compare(figure, log_mel, mel[preset], SECONDS, "x real time");
    }
    if (ok) beside_fftw(400), beside_fftw(512);
    static const int64_t rates[][2] = {{16000, 8000}, {44100, 16000}, {8000, 16000}};
    for (int k = 0; ok && k < 3; k++) {
        char name[64];
        const char *const theirs[] = {name, NULL};
        from = rates[k][0], to = rates[k][1];
        snprintf(name, sizeof name, "resample %lld %lld", (long long)from, (long long)to);
        compare("resample", resample, theirs, 0, "ms");
    }
    static const char *const torch[] = {"ctc", NULL};
    make_ctc();
    compare("ctc 500 x 16 x 32, 60 labels, both ways", ctc, torch, 0, "ms");
    transducers();
    trainings();
    whispers();
    listen(FL_F32), listen(FL_BF16);
    if (has_book) decoders();
    bench_peer_end(&peer);
    fl_scope_end(&s);
    return !ok;
}
/* MIT licence: see LICENSE. */
