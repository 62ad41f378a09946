/* examples/speech/decode.c - beam search: words from frame-wise scores of tokens

   make speech-decode EMISSIONS=e.safetensors TOKENS=tokens.txt [LEXICON=lexicon.txt] [LM=lm.arpa]
        [TRANSITIONS=t.safetensors] [NBEST=1] [ARGS="--beamsize 500 --lmweight 2 --times ..."]

   Every tensor of EMISSIONS is an utterance, [frames, classes]. Prints TSV: rank, score, acoustic score,
   language model score, words; preceded by the name if there are several utterances. --times adds a line for
   each word: rank, begin, end (in frames), confidence, word. Flags: --beamsize --beamsizetoken
   --beamthreshold --lmweight --wordscore --unkscore --silscore (numbers), --criterion ctc|asg, --smearing
   none|max|logadd, --blank --sil (tokens), --logadd --flashlight --times --token-lm. */
#include "../arguments.h"
#include "fl_speech.h"
#include "fl.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct job {
    const char *emissions, *tokens, *lexicon, *lm, *transitions, *criterion, *smearing, *blank, *sil;
    double nbest, beam, beam_token, threshold, lm_weight, word_score, unk_score, sil_score;
    bool log_add, flashlight, times, token_lm;
} job;

static bool parse(int argc, char **argv, job *j) {
    const argument list[] = {{"emissions", .text = &j->emissions},
                             {"tokens", .text = &j->tokens},
                             {"lexicon", .text = &j->lexicon},
                             {"lm", .text = &j->lm},
                             {"transitions", .text = &j->transitions},
                             {"criterion", .text = &j->criterion},
                             {"smearing", .text = &j->smearing},
                             {"blank", .text = &j->blank},
                             {"sil", .text = &j->sil},
                             {"nbest", .number = &j->nbest},
                             {"beamsize", .number = &j->beam},
                             {"beamsizetoken", .number = &j->beam_token},
                             {"beamthreshold", .number = &j->threshold},
                             {"lmweight", .number = &j->lm_weight},
                             {"wordscore", .number = &j->word_score},
                             {"unkscore", .number = &j->unk_score},
                             {"silscore", .number = &j->sil_score},
                             {"logadd", .on = &j->log_add},
                             {"flashlight", .on = &j->flashlight},
                             {"times", .on = &j->times},
                             {"token-lm", .on = &j->token_lm},
                             {NULL, .low = 0}};
    if (!arguments_read(argc, argv, list)) return false;
    if (j->beam < 1 || j->beam > 1e7 || j->nbest < 1)
        return fl_fail("decode: got --beamsize %g, --nbest %g; expected 1 to 1e7, and >= 1", j->beam,
                       j->nbest);
    return (j->emissions && j->tokens) || fl_fail("decode: --emissions FILE --tokens FILE are required");
}

static int64_t token_of(const fl_text_dictionary *d, const char *name) {
    return name ? fl_text_dictionary_find(d, name, (int64_t)strlen(name)) : -1;
}

typedef struct parts {
    fl_text_dictionary *tokens;
    fl_speech_lexicon *lexicon;
    fl_text_ngram *ngram;
    fl_text_scorer *lm;
    fl_speech_decoder *decoder;
    fl_tensor *transitions;
} parts;

static fl_tensor *first_tensor(const char *path) {
    fl_data_file *f = fl_data_open_safetensors(path);
    fl_tensor *t = f && fl_data_count(f) ? fl_data_read(f, fl_data_name(f, 0)) : NULL;
    fl_data_close(f);
    return t ? fl_contiguous(fl_cast(t, FL_F32)) : NULL;
}

static bool make_parts(parts *p, const job *j) {
    if (!(p->tokens = fl_text_dictionary_load(j->tokens))) return false;
    if (j->lexicon && !(p->lexicon = fl_speech_lexicon_load(j->lexicon, p->tokens))) return false;
    if (j->lm && !(p->ngram = fl_text_ngram_load(j->lm))) return false;
    const bool words = p->lexicon && !j->token_lm;
    if (p->ngram &&
        !(p->lm = fl_text_ngram_scorer(p->ngram, words ? fl_speech_lexicon_words(p->lexicon) : p->tokens)))
        return false;
    const fl_speech_smear how = !strcmp(j->smearing, "max")      ? FL_SPEECH_SMEAR_MAX
                                : !strcmp(j->smearing, "logadd") ? FL_SPEECH_SMEAR_LOGADD
                                                                 : FL_SPEECH_NO_SMEARING;
    if (p->lexicon && !fl_speech_lexicon_finish(p->lexicon, how, words ? p->lm : NULL, j->flashlight))
        return false;
    const bool asg = !strcmp(j->criterion, "asg");
    const int64_t classes = fl_text_dictionary_size(p->tokens), blank = token_of(p->tokens, j->blank),
                  sil = token_of(p->tokens, j->sil);
    if (!asg && blank < 0) return fl_fail("decode: the blank '%s' is not a token: set --blank TOKEN",
                                          j->blank);
    if (j->transitions && !(p->transitions = first_tensor(j->transitions))) return false;
    if (p->transitions && fl_numel(p->transitions) != classes * classes)
        return fl_fail("decode: got transitions %s, expected [%lld, %lld]", FL_SHAPE_TEXT(p->transitions),
                       (long long)classes, (long long)classes);
    p->decoder = fl_speech_decoder_new(
        classes, p->lexicon, .beam = (int64_t)j->beam, .tokens = (int64_t)j->beam_token,
        .threshold = j->threshold == 0 ? FL_ZERO : j->threshold, .log_add = j->log_add,
        .lm_weight = j->lm_weight, .word_score = j->word_score, .sil_score = j->sil_score,
        .unknown_words = j->unk_score > -INFINITY, .unknown_score = j->unk_score, .unknown = -1, .lm = p->lm,
        .token_lm = j->token_lm, .asg = asg, .blank = blank > 0 ? blank : FL_I0,
        .separator = sil > 0   ? sil
                     : sil < 0 ? 0
                               : FL_I0,
        .transitions = p->transitions ? fl_map(p->transitions, FL_READ) : NULL, .flashlight = j->flashlight);
    return p->decoder != NULL;
}

static void print_word(const parts *p, int64_t word) {
    const fl_text_dictionary *d = p->lexicon ? fl_speech_lexicon_words(p->lexicon) : p->tokens;
    const char *text = word >= 0 ? fl_text_dictionary_entry(d, word, NULL) : "<unk>";
    fputs(text ? text : "<unk>", stdout);
}

static bool decode(parts *p, const job *j, const char *name, fl_tensor *e) {
    if (e->ndim != 2 || e->shape[1] != fl_text_dictionary_size(p->tokens))
        return fl_fail("decode: %s: got scores %s, expected [frames, %lld]", name ? name : j->emissions,
                       FL_SHAPE_TEXT(e), (long long)fl_text_dictionary_size(p->tokens));
    fl_tensor *scores = fl_contiguous(fl_cast(e, FL_F32));
    fl_speech_result *r = fl_heap_alloc((size_t)j->nbest * sizeof *r);
    const float *frames = NULL;
    bool ok = scores && r && fl_speech_decoder_begin(p->decoder) &&
              (frames = fl_map(scores, FL_READ)) &&
              fl_speech_decoder_step(p->decoder, frames, e->shape[0]) && fl_speech_decoder_end(p->decoder);
    if (frames) fl_unmap(scores, FL_READ);
    const int64_t n = ok ? fl_speech_decoder_best(p->decoder, (int64_t)j->nbest, r) : -1;
    for (int64_t i = 0; i < n; i++) {
        if (name) printf("%s\t", name);
        printf("%lld\t%.5f\t%.5f\t%.5f\t", (long long)i + 1, r[i].score, r[i].acoustic, r[i].lm);
        for (int64_t k = 0; k < r[i].words; k++) {
            if (k) putchar(' ');
            print_word(p, r[i].word[k].word);
        }
        putchar('\n');
        for (int64_t k = 0; j->times && k < r[i].words; k++) {
            printf("%lld\t%lld\t%lld\t%.4f\t", (long long)i + 1, (long long)r[i].word[k].begin,
                   (long long)r[i].word[k].end, r[i].word[k].confidence);
            print_word(p, r[i].word[k].word);
            putchar('\n');
        }
    }
    fl_heap_free(r);
    return n >= 0;
}

int main(int argc, char **argv) {
    job j = {.criterion = "ctc",
             .smearing = "none",
             .blank = "#",
             .sil = "|",
             .nbest = 1,
             .beam = 2500,
             .threshold = 25,
             .unk_score = -INFINITY};
    parts p = {0};
    fl_scope s = fl_scope_begin();
    bool ok = parse(argc, argv, &j) && make_parts(&p, &j);
    fl_data_file *f = ok ? fl_data_open_safetensors(j.emissions) : NULL;
    ok = f != NULL;
    for (int64_t i = 0; ok && i < fl_data_count(f); i++) {
        fl_tensor *e = fl_data_read(f, fl_data_name(f, i));
        ok = e && decode(&p, &j, fl_data_count(f) > 1 ? fl_data_name(f, i) : NULL, e);
    }
    if (!ok && fl_error()) fprintf(stderr, "%s\n", fl_error());
    fl_data_close(f);
    fl_speech_decoder_free(p.decoder);
    if (p.decoder && p.transitions) fl_unmap(p.transitions, FL_READ);
    fl_text_scorer_free(p.lm);
    fl_text_ngram_free(p.ngram);
    fl_speech_lexicon_free(p.lexicon);
    fl_text_dictionary_free(p.tokens);
    fl_scope_end(&s);
    return !ok;
}
/* MIT licence: see LICENSE. */
