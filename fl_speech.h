/* fl_speech.h - speech recognition: audio files, features, augmentation, alignment, decoding

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_speech.h"
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_uniform(FL_SHAPE(16000), -1, 1, FL_F32, NULL); // or fl_speech_load_audio("a.wav")
        fl_speech_conf c;
        fl_speech_preset(&c, "kaldi", 16000);
        c.bands = 80;
        fl_speech_features *f = fl_speech_features_new(&c);
        fl_print(fl_speech_features_compute(f, x)); // [98, 80]
        fl_speech_features_free(f);
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: the files of fl/speech/.
     audio.h     audio files: WAV, SPHERE, raw; with libsndfile FLAC, Ogg, Opus, MP3; writing WAV
     resample.h  sample-rate conversion, whole signals and streaming
     spectrum.h  spectrogram, filter bank and cepstra as one op
     features.h  presets of HTK, Kaldi, torchaudio, librosa, Whisper; streaming; deltas, normalisation
     augment.h   SpecAugment: time warping, masking of features
     effects.h   sound effects: noise, reverberation, echo, tempo; chains of effects from JSON
     lattice.h   ASG and transducer losses as ops
     attend.h    attention decoders: GRU and transformer, ten kinds of attention
     vad.h       voice activity detection (Silero)
     align.h     forced alignment of a transcript
     criteria.h  losses, best paths and alignments of CTC, ASG, transducers, attention, joint CTC/attention
     pretrained.h wav2vec 2.0 and Whisper from Hugging Face folders
     models.h    acoustic models from arch files
     lexicon.h   pronunciation lexicon: words as token sequences, prefix tree
     search.h    label-synchronous beam search: transducers, attention
     targets.h   file lists, transcripts to tokens and back, WER and LER by speaker, sclite files
     decode.h    beam search with lexicon and language model for CTC and ASG

   Macros, all optional (besides those of fl_mem.h)
     FL_USE_SNDFILE   read all formats of libsndfile (link -lsndfile)

   Concepts
     Audio    f32 samples in [-1, 1), shape [..., t], channels first.
     Errors   Functions for files and lists return NULL or false, with an error text, and never call the
              error handler; functions on tensors do, as all tensor functions (fl_mem.h).
     Streams  Streaming (a resampler, features) gives results bit-identical to processing the whole
              signal. */
#if defined(FL_CALLS_H) && !defined(FL_SPEECH_DECLARED)
#error "fl: with FL_TRACE_CALLS include fl_speech.h before fl.h, or fl_all.h: functions are macros now"
#endif
#define FL_SPEECH_DECLARED
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
