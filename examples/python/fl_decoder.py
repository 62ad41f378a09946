"""fl_decoder.py - beam search with a lexicon and a language model, from Python: fl.py, ctypes and libfl.so

    import fl_decoder
    d = fl_decoder.Decoder("tokens.txt", "lexicon.txt", "lm.arpa", blank="#", separator="|", lm_weight=2, smearing="max")
    for h in d(scores, nbest=5):                       # an array or nested lists [frames, classes], log probabilities
        print(h.score, " ".join(w.text for w in h.words), h.words[0].begin, h.words[0].confidence)
    d.begin(); d.step(part); d.best(); d.prune(); d.endpoint(); d.end()         # online: prune gives what is final

usage: fl_decoder.py EMISSIONS.npy TOKENS [LEXICON [LM]]       prints what make speech-decode prints, of one utterance
Options are the fields of fl_speech_decoder_opts (fl/speech/decode.h), token names for blank and separator; hot={"word":
bonus} are hot words. A decoder is for one thread; Parts may be shared by many."""
import array
import ctypes
from typing import NamedTuple

import fl


class Word(NamedTuple):
    text: str
    begin: int  # frames, from the utterance's first
    end: int
    confidence: float


class Hypothesis(NamedTuple):
    score: float
    acoustic: float
    lm: float
    words: list


def _made(pointer):
    if not pointer:
        why = fl.lib.fl_error().decode()
        fl.lib.fl_error_clear()
        raise fl.Error(why)
    return pointer


def _options(name, **fields):
    return fl.struct(name)(**fields)


class Parts:
    """Tokens, lexicon and language model: what decoders share."""

    SMEARING = {"none": 0, "max": 1, "logadd": 2}

    def __init__(self, tokens, lexicon=None, lm=None, smearing="none", hot=None, token_lm=False, flashlight=False):
        self._lexicon = self._ngram = self._lm = self._hot = None
        self._tokens = _made(fl.lib.fl_text_dictionary_load_opt(tokens.encode(), _options("fl_text_dictionary_opts")))
        if lexicon:
            o = _options("fl_speech_lexicon_opts")
            self._lexicon = _made(fl.lib.fl_speech_lexicon_load_opt(lexicon.encode(), self._tokens, o))
        self.names = fl.lib.fl_speech_lexicon_words(self._lexicon) if lexicon else self._tokens
        said = self._tokens if token_lm else self.names
        if lm:
            self._ngram = _made(fl.lib.fl_text_ngram_load(lm.encode()))
            self._lm = _made(fl.lib.fl_text_ngram_scorer(self._ngram, said))
        self.scorer = self._lm
        if hot:
            words = array.array("q", [self._index(said, w) for w in hot])
            bonus = array.array("d", hot.values())
            addresses = words.buffer_info()[0], bonus.buffer_info()[0]
            self.scorer = self._hot = _made(fl.lib.fl_speech_hot_words(self._lm, *addresses, len(words)))
        model = None if token_lm else self.scorer
        if lexicon:
            _made(fl.lib.fl_speech_lexicon_finish(self._lexicon, self.SMEARING[smearing], model, flashlight))
        self.classes = fl.lib.fl_text_dictionary_size(self._tokens)
        self.token_lm, self.flashlight = token_lm, flashlight

    @staticmethod
    def _index(dictionary, name):
        index = fl.lib.fl_text_dictionary_find(dictionary, name.encode(), len(name.encode()))
        if index < 0:
            raise fl.Error(f"fl_decoder: '{name}' is not known")
        return index

    def token(self, name):
        """The option that names a class: 0 would mean none."""
        index = self._index(self._tokens, name)
        return index or fl.constant("FL_I0")

    def text(self, word):
        entry = fl.lib.fl_text_dictionary_entry(self.names, word, None)
        return ctypes.string_at(entry).decode() if entry else "<unk>"

    def __del__(self):
        fl.lib.fl_text_scorer_free(self._hot)
        fl.lib.fl_text_scorer_free(self._lm)
        fl.lib.fl_text_ngram_free(self._ngram)
        fl.lib.fl_speech_lexicon_free(self._lexicon)
        fl.lib.fl_text_dictionary_free(self._tokens)


class Decoder:
    def __init__(self, tokens, lexicon=None, lm=None, blank="#", separator=None, smearing="none", hot=None, **options):
        """tokens: a file, or Parts that another decoder has."""
        self._d = None
        shared = {k: options.pop(k) for k in ("token_lm", "flashlight") if k in options}
        own = not isinstance(tokens, Parts)
        self.parts = p = Parts(tokens, lexicon, lm, smearing, hot, **shared) if own else tokens
        if not options.get("asg"):
            options["blank"] = p.token(blank)
        if separator is not None:
            options["separator"] = p.token(separator)
        o = _options("fl_speech_decoder_opts", lm=p.scorer, token_lm=p.token_lm, flashlight=p.flashlight, **options)
        self._d = _made(fl.lib.fl_speech_decoder_new_opt(p.classes, p._lexicon, o))

    def __del__(self):
        if self._d:
            fl.lib.fl_speech_decoder_free(self._d)

    def begin(self):
        _made(fl.lib.fl_speech_decoder_begin(self._d))

    def step(self, scores):
        rows = [r for r in scores.tolist()] if hasattr(scores, "tolist") else scores
        if any(len(r) != self.parts.classes for r in rows):
            raise fl.Error(f"fl_decoder: scores are not of {self.parts.classes} classes")
        flat = array.array("f", [v for r in rows for v in r])
        _made(fl.lib.fl_speech_decoder_step(self._d, flat.buffer_info()[0], len(rows)))

    def end(self):
        _made(fl.lib.fl_speech_decoder_end(self._d))

    def _words(self, at, n):
        words = ctypes.cast(at, ctypes.POINTER(fl.struct("fl_speech_word")))
        return [Word(self.parts.text(w.word), w.begin, w.end, w.confidence) for w in (words[i] for i in range(n))]

    def best(self, nbest=1):
        """The best hypotheses of the moment."""
        out = (fl.struct("fl_speech_result") * nbest)()
        n = fl.lib.fl_speech_decoder_best(self._d, nbest, out)
        if n < 0:
            _made(None)
        return [Hypothesis(r.score, r.acoustic, r.lm, self._words(r.word, r.words)) for r in out[:n]]

    def prune(self):
        """Words that are final from now on, and not among later results."""
        out = ctypes.c_void_p()
        n = fl.lib.fl_speech_decoder_prune(self._d, ctypes.byref(out))
        if n < 0:
            _made(None)
        return self._words(out, n) if n else []

    def endpoint(self, **seconds):
        """1, 2, 3: the rule by which the utterance should end; 0: it goes on."""
        return fl.lib.fl_speech_decoder_endpoint_opt(self._d, _options("fl_speech_endpoint_opts", **seconds))

    def __call__(self, scores, nbest=1):
        self.begin()
        self.step(scores)
        self.end()
        return self.best(nbest)


if __name__ == "__main__":
    import sys

    import numpy

    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for rank, h in enumerate(Decoder(*sys.argv[2:])(numpy.load(sys.argv[1]), 5), 1):
        text = " ".join(w.text for w in h.words)
        print(f"{rank}\t{h.score:.5f}\t{h.acoustic:.5f}\t{h.lm:.5f}\t{text}")
# MIT licence: see LICENSE.
