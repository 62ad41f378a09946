/* fl_speech.h - speech: sound in files, features, augmentation, alignment, decoding

   >>example
    #define FL_IMPLEMENTATION
    #if defined(FL_CALLS_H) && !defined(FL_SPEECH_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_speech.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_SPEECH_DECLARED
#include "fl_speech.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_uniform(FL_SHAPE(16000), -1, 1, FL_F32, NULL); // or fl_speech_load_audio("a.wav")
        fl_speech_conf c;
        fl_speech_preset(&c, "kaldi", 16000);
        c.bands = 80;
        fl_speech_features *f = fl_speech_features_new(&c);
        fl_print(fl_speech_features_of(f, x)); // [98, 80]
        fl_speech_features_free(f);
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: one room of fl/speech/ each.
     audio.h     sound in files: WAV, SPHERE, raw; with libsndfile FLAC, Ogg, Opus, MP3; writing WAV
     resample.h  another number of samples a second, whole or in pieces
     spectrum.h  spectra, bands and cepstra of frames as one op
     features.h  presets of HTK, Kaldi, torchaudio, librosa, Whisper; streams; deltas, normalisations
     augment.h   features masked
     effects.h   sounds with noise, rooms, echoes, another tempo; chains of effects from JSON
     lattice.h   losses of ASG and of transducers, as ops
     attend.h    decoders that attend: GRUs and transformers, ten attentions
     vad.h       where somebody speaks: Silero's detector
     align.h     when the tokens of a known transcript were said
     criteria.h  losses, best paths and alignments of CTC, ASG, transducers, attention, jointly
     pretrained.h wav2vec 2.0 and Whisper of Hugging Face's folders
     models.h    acoustic models from arch files
     lexicon.h   words as strings of tokens, and their tree
     search.h    beam search token after token: transducers, attention
     targets.h   lists, transcripts as tokens and back, WER and LER by speaker, sclite's files
     decode.h    beam search with a lexicon and a language model, for CTC and ASG

   Macros, all optional (besides those of fl_mem.h)
     FL_USE_SNDFILE   reads what libsndfile does (link -lsndfile)

   Concepts
     Sound    f32, samples within [-1, 1), [..., t]; channels first.
     Errors   Functions about files and lists return NULL or false, with a text, and never stop; functions
              of tensors raise, as tensor functions do (fl_mem.h).
     Pieces   What comes in pieces (a resampler, a stream of features) gives the same bits as the whole. */
#include "fl_nn.h"
#include "fl_text.h"
#include "fl/speech/audio.h"
#include "fl/speech/resample.h"
#include "fl/speech/spectrum.h"
#include "fl/speech/features.h"
#include "fl/speech/augment.h"
#include "fl/speech/effects.h"
#include "fl/speech/lattice.h"
#include "fl/speech/attend.h"
#include "fl/speech/vad.h"
#include "fl/speech/align.h"
#include "fl/speech/criteria.h"
FL__GLUE_BEGIN
#include "fl/speech/models.h"
#include "fl/speech/pretrained.h"
FL__GLUE_END
#include "fl/speech/lexicon.h"
#include "fl/speech/targets.h"
#include "fl/speech/search.h"
#include "fl/speech/decode.h"

/* MIT licence: see LICENSE. */
