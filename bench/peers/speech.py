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


def rnnt():
    import torchaudio
    t, n, m = (torch.randint(0, 63, (4, 60), dtype=torch.int32), torch.full((4,), 200, dtype=torch.int32),
               torch.full((4,), 60, dtype=torch.int32))
    return lambda x: torchaudio.functional.rnnt_loss(x, t, n, m, blank=63)


def transducer():
    z, loss = torch.randn(4, 200, 61, 64, requires_grad=True), rnnt()

    def run():
        z.grad = None
        loss(z).backward()
    return run


def joint():
    a, b = torch.randn(4, 200, 128, requires_grad=True), torch.randn(4, 61, 128, requires_grad=True)
    out, loss = torch.nn.Linear(128, 64), rnnt()
    return lambda: loss(out(torch.tanh(a[:, :, None] + b[:, None]))).backward()


def joint_memory():
    """Not seconds but megabytes that a step takes at most, of the allocator's."""
    from torch.profiler import ProfilerActivity, profile
    step = joint()
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p:
        step()
    live = most = 0
    for e in sorted(p.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if e.name() == "[memory]":
            live += e.nbytes()
            most = max(most, live)
    return most / 1e6


class Arch(torch.nn.Module):
    """The layers of an arch file that bench/speech.c trains, on [n, 1, features, time] (conformers: torchaudio's,
    which have no relative positions; no SpecAugment)."""

    def __init__(self, path, features, labels):
        super().__init__()
        nn, self.lines, self.layers = torch.nn, [], torch.nn.ModuleList()
        for line in open(path):
            f = line.split("#")[0].replace("NFEAT", str(features)).replace("NLABEL", str(labels)).split()
            if not f or f[0] == "SAUG":
                continue
            norm = f[0] == "WN"
            f = f[2:] if norm else f
            a, m = [float(v) for v in f[1:]], nn.Identity()
            k = [int(v) for v in a]
            if f[0] == "C":
                m = nn.Conv2d(k[0], k[1], (1, k[2]), (1, k[3]), (0, k[4]))
            elif f[0] == "C2":
                m = nn.Conv2d(k[0], k[1], (k[3], k[2]), (k[5], k[4]), ((k[3] - 1) // 2, (k[2] - 1) // 2))
            elif f[0] == "L":
                m = nn.Linear(k[0], k[1])
            elif f[0] == "DO":
                m = nn.Dropout(a[0])
            elif f[0] == "CFR":
                from torchaudio.models.conformer import ConformerLayer
                m = ConformerLayer(k[0], k[1], k[2], k[4], a[5])
            elif f[0] == "TDS":
                d = k[0] * k[2]
                m = nn.ModuleList([nn.Conv2d(k[0], k[0], (1, k[1]), padding=(0, k[1] // 2)), nn.Linear(d, d),
                                   nn.Linear(d, d), nn.Dropout(a[3])])
            self.layers.append(nn.utils.parametrizations.weight_norm(m) if norm else m)
            self.lines.append((f[0], k))

    def forward(self, x):
        F = torch.nn.functional
        for (name, k), m in zip(self.lines, self.layers):
            if name == "R":
                x = torch.relu(x)
            elif name == "GLU":
                x = F.glu(x, 3 - k[0])
            elif name == "LN":
                x = F.layer_norm(x, x.shape[1:])
            elif name == "V":
                old = [x.shape[3 - i] if i < 4 and v == 0 else v for i, v in enumerate(k)][::-1]
                x = x.reshape(old)
            elif name == "RO":
                x = x.permute([3 - v for v in k][::-1])
            elif name == "CFR":
                x = m(x[0].transpose(0, 1), None).transpose(0, 1)[None]
            elif name == "TDS":
                n, c, w, t = x.shape
                y = F.layer_norm(x + m[3](torch.relu(m[0](x))), (c, w, t))
                z = m[3](torch.relu(m[1](y.reshape(n, c * w, t).transpose(1, 2))))
                x = F.layer_norm(y + m[3](m[2](z)).transpose(1, 2).reshape(n, c, w, t), (c, w, t))
            else:
                x = m(x)
        return x[0]


def train(path):
    """A step: features of 4 sounds of 4 s, CTC, SGD."""
    import torchaudio
    net, mel = Arch(path, 80, 30), torchaudio.transforms.MelSpectrogram(16000, 400, hop_length=160, n_mels=80)
    o, y = torch.optim.SGD(net.parameters(), 1e-4), torch.randint(0, 29, (4, 20))
    parts = x[:4 * 64000].reshape(4, 64000)

    def run():
        f = torch.log(torch.clamp(mel(parts), min=1e-10))
        p = net(((f - f.mean()) / f.std())[:, None]).log_softmax(2).transpose(0, 1)
        o.zero_grad()
        torch.nn.functional.ctc_loss(p, y, torch.full((4,), p.shape[0]), torch.full((4,), 20), blank=29).backward()
        o.step()
    return run


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    torch.manual_seed(1)
    m = WhisperForConditionalGeneration(WhisperConfig(suppress_tokens=None, begin_suppress_tokens=None)).eval()
    m.save_pretrained(f"{folder}/whisper")
    y = torch.randn(1, 80, 3000)
    return lambda: m.generate(y, max_new_tokens=100, min_new_tokens=100, do_sample=False)


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


JOBS = {"fbank torchaudio": torchaudio_fbank, "fbank kaldi": kaldi_fbank, "fbank librosa": librosa_fbank, "ctc": ctc, "transducer": transducer, "joint": joint, "whisper": whisper,
        "flashlight": flashlight, "pyctcdecode": pyctcdecode}
print("torch", torch.__version__, flush=True)
for line in sys.stdin:
    name = line.strip()
    try:
        if name.startswith("wer "):
            print(wer(name[4:]), flush=True)
            continue
        if name == "joint memory":
            print(joint_memory(), flush=True)
            continue
        if name not in ready:
            ready[name] = resample(*map(int, name.split()[1:])) if name.startswith("resample") else \
                train(name[6:]) if name.startswith("train ") else JOBS[name]()
            ready[name]()
        start = time.process_time()
        ready[name]()
        print(time.process_time() - start, flush=True)
    except Exception as e:  # what is absent, or does not fit, is one line
        print(f"{name}: {e}", file=sys.stderr)
        print("nan", flush=True)
# MIT licence: see LICENSE.
