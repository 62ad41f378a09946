#!/usr/bin/env python3
"""speech.py - torchaudio, kaldi-native-fbank, librosa, flashlight-text and pyctcdecode, for bench/speech.c

usage: speech.py FOLDER      the folder that speech.c writes its sound, scores, lexicon and model to

Reads the name of a job a line and answers with its CPU seconds, one thread; nan where the package is absent.
"wer NAME" is the word error rate of a decoder's last answers."""
import sys
import time

import numpy as np
import torch
from safetensors.numpy import load_file

folder = sys.argv[1]
torch.set_num_threads(1)
torch.version.cuda = "13.0"  # torchaudio refuses a torch of another CUDA release, which does not matter here
x = torch.from_numpy(load_file(f"{folder}/sound.safetensors")["x"].copy())
ready, answers = {}, {}


def torchaudio_fbank():
    import torchaudio
    m = torchaudio.transforms.MelSpectrogram(16000, 400, hop_length=160, n_mels=80)
    return lambda: torch.log(torch.clamp(m(x), min=1e-10))


def kaldi_fbank():
    import kaldi_native_fbank as knf
    o = knf.FbankOptions()
    o.frame_opts.samp_freq, o.frame_opts.dither, o.mel_opts.num_bins = 16000, 0, 80
    samples = (x.numpy() * 32768).astype("f4").tolist()

    def run():
        f = knf.OnlineFbank(o)
        f.accept_waveform(16000, samples)
        f.input_finished()
        return [f.get_frame(i) for i in range(f.num_frames_ready)]
    return run


def librosa_fbank():
    import librosa
    y = x.numpy()
    return lambda: librosa.power_to_db(librosa.feature.melspectrogram(y=y, sr=16000, n_fft=400, hop_length=160, n_mels=80))


def resample(old, new):
    import torchaudio
    r = torchaudio.transforms.Resample(old, new)
    return lambda: r(x)


def ctc():
    torch.manual_seed(1)
    z = torch.randn(500, 16, 32, requires_grad=True)
    t, n, m = torch.randint(0, 31, (16, 60)), torch.full((16,), 500), torch.full((16,), 60)

    def run():
        z.grad = None
        torch.nn.functional.ctc_loss(z.log_softmax(-1), t, n, m, blank=31).backward()
    return run


def utterances():
    return [np.ascontiguousarray(e) for _, e in sorted(load_file(f"{folder}/scores.safetensors").items())]


def flashlight():
    import flashlight.lib.text.decoder as fl
    from flashlight.lib.text.decoder.kenlm import KenLM
    from flashlight.lib.text.dictionary import Dictionary
    letters = open(f"{folder}/tokens").read().split()
    known, spellings = Dictionary(), [line.split() for line in open(f"{folder}/lexicon")]
    for w, *_ in spellings:
        known.add_entry(w)
    known.add_entry("<unk>")
    lm = KenLM(f"{folder}/lm.arpa", known)
    trie, start = fl.Trie(len(letters), 0), lm.start(False)
    for w, *spelling in spellings:
        i = known.get_index(w)
        trie.insert([letters.index(c) for c in spelling], i, lm.score(start, i)[1])
    trie.smear(fl.SmearingMode.MAX)
    o = fl.LexiconDecoderOptions(beam_size=500, beam_size_token=len(letters), beam_threshold=25, lm_weight=2.3, word_score=0,
                                 unk_score=-np.inf, sil_score=0, log_add=False, criterion_type=fl.CriterionType.CTC)
    d = fl.LexiconDecoder(o, trie, lm, 0, len(letters) - 1, known.get_index("<unk>"), [], False)
    kept = lm, trie, known

    def run():
        best = (kept and d.decode(e.ctypes.data, e.shape[0], e.shape[1])[0] for e in utterances())
        answers["flashlight"] = [" ".join(known.get_entry(w) for w in b.words if w >= 0) for b in best]
    return run


def pyctcdecode():
    import logging
    logging.disable(logging.CRITICAL)
    from pyctcdecode import build_ctcdecoder
    letters = open(f"{folder}/tokens").read().split()
    labels = [{"|": " ", "#": ""}.get(c, c) for c in letters]
    words = [line.split()[0] for line in open(f"{folder}/lexicon")]
    d = build_ctcdecoder(labels, f"{folder}/lm.arpa", words)

    def run():
        answers["pyctcdecode"] = [d.decode(e) for e in utterances()]
    return run


def wer(name):
    def edits(a, b):
        row = list(range(len(b) + 1))
        for i, p in enumerate(a, 1):
            last, row[0] = row[0], i
            for j, q in enumerate(b, 1):
                last, row[j] = row[j], min(last + (p != q), row[j] + 1, row[j - 1] + 1)
        return row[-1]
    refs = [line.split() for line in open(f"{folder}/refs")]
    return 100 * sum(edits(r, a.split()) for r, a in zip(refs, answers[name])) / sum(map(len, refs))


JOBS = {"fbank torchaudio": torchaudio_fbank, "fbank kaldi": kaldi_fbank, "fbank librosa": librosa_fbank, "ctc": ctc,
        "flashlight": flashlight, "pyctcdecode": pyctcdecode}
print("torch", torch.__version__, flush=True)
for line in sys.stdin:
    name = line.strip()
    try:
        if name.startswith("wer "):
            print(wer(name[4:]), flush=True)
            continue
        if name not in ready:
            ready[name] = resample(*map(int, name.split()[1:])) if name.startswith("resample") else JOBS[name]()
            ready[name]()
        start = time.process_time()
        ready[name]()
        print(time.process_time() - start, flush=True)
    except Exception as e:  # what is absent, or does not fit, is one line
        print(f"{name}: {e}", file=sys.stderr)
        print("nan", flush=True)
