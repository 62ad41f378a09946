#!/usr/bin/python3
"""speech_models.py - writes tests/golden/speech.tsv: ten steps of tiny acoustic models in PyTorch

usage: speech_models.py [--verify]

A line is a name and the losses of SGD of rate 0.1 in f64: the mean over two utterances of a CTC, ASG or
seq2seq loss. Inputs and first weights are formulas, those of tests/test_arch.c; parameters stand in the order
in which fl lists them."""
import math
import os
import sys

import torch
import torch.nn.functional as F

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "speech.tsv")
FEATURES, LABELS, FRAMES = 6, 5, 12
TARGET = [[0, 1, 1], [2, 3]]
torch.set_default_dtype(torch.float64)


def formula(n, a, b):
    return torch.sin(a * torch.arange(n, dtype=torch.float64) + b)


X = formula(2 * FRAMES * FEATURES, 0.9, 0).reshape(2, FRAMES, FEATURES)


class Parameters:
    """Hands out parameters in order; the one of number i is 0.2 sin(0.7 j + 1.3 i), gains are 1 more."""

    def __init__(self):
        self.list, self.at = [], 0

    def __call__(self, *shape, gain=False):
        if self.at == len(self.list):
            value = 0.2 * formula(math.prod(shape), 0.7, 1.3 * len(self.list)).reshape(shape) + gain
            self.list.append(value.requires_grad_())
        self.at += 1
        return self.list[self.at - 1]


def weight_norm(v, g):
    return g * v / v.flatten(1).norm(dim=1).reshape(g.shape)


def glu_conv(x, p, channels, out, stride):
    v, bias, g = p(out, channels, 1, 3), p(out), p(out, 1, 1, 1, gain=True)
    y = F.conv2d(x, weight_norm(v, g), bias, (1, stride), (0, 1))
    return y[:, :out // 2] * torch.sigmoid(y[:, out // 2:])


def conv_glu(p):
    x = glu_conv(X.transpose(1, 2).unsqueeze(2), p, FEATURES, 8, 1)
    x = glu_conv(x, p, 4, 8, 2).squeeze(2).transpose(1, 2)
    v, bias, g = p(LABELS, 4), p(LABELS), p(LABELS, 1, gain=True)
    return F.linear(x, weight_norm(v, g), bias)


def norm(x, axes, gain, bias):
    mean = x.mean(axes, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(axes, keepdim=True) + 1e-5) * gain + bias


def tds_block(x, p, inner, right, axes):
    n, c, w, t = x.shape
    norms = [p(1, gain=k % 2 == 0) for k in range(4)]
    weight, bias = p(c, c, 1, 3), p(c)
    w1, b1, w2, b2 = p(inner, c * w), p(inner), p(c * w, inner), p(c * w)
    y = norm(x + F.relu(F.conv2d(F.pad(x, (2 - right, right)), weight, bias)), axes, norms[0], norms[1])
    z = F.linear(F.relu(F.linear(y.reshape(n, c * w, t).transpose(1, 2), w1, b1)), w2, b2)
    return norm(y + z.transpose(1, 2).reshape(n, c, w, t), axes, norms[2], norms[3])


def tds(p):
    x = F.relu(F.conv2d(X.transpose(1, 2).unsqueeze(1), p(2, 1, 1, 3), p(2), (1, 2), (0, 1)))
    x = norm(x, (1, 2, 3), p(1, gain=True), p(1))
    x = tds_block(x, p, 12, 1, (1, 2, 3))
    x = tds_block(x, p, 5, 0, (1, 2))
    x = x.reshape(2, 12, -1).transpose(1, 2)
    return F.linear(x, p(LABELS, 12), p(LABELS))


def feed_forward(x, p):
    y = F.layer_norm(x, (8,), p(8, gain=True), p(8))
    y = F.silu(F.linear(y, p(16, 8), p(16)))
    return F.linear(y, p(8, 16), p(8))


def attention(x, p, heads, reach):
    n, t, d = x.shape
    w, b, table = p(3 * d, d), p(3 * d), p(2 * reach - 1, d // heads)
    q, k, v = F.linear(x, w, b).reshape(n, t, 3, heads, d // heads).permute(2, 0, 3, 1, 4)
    place = torch.arange(t)
    distance = (place[None] - place[:, None]).clamp(1 - reach, reach - 1) + reach - 1
    scores = q @ k.transpose(-1, -2) + torch.einsum("nhid,ijd->nhij", q, table[distance])
    y = torch.softmax(scores / math.sqrt(d // heads), -1) @ v
    return F.linear(y.transpose(1, 2).reshape(n, t, d), p(d, d), p(d))


def conformer(p):
    x = F.linear(X, p(8, FEATURES), p(8))
    x = x + 0.5 * feed_forward(x, p)
    x = x + attention(F.layer_norm(x, (8,), p(8, gain=True), p(8)), p, 2, 9)
    y = F.layer_norm(x, (8,), p(8, gain=True), p(8)).transpose(1, 2)
    y = F.glu(F.conv1d(y, p(16, 8, 1), p(16)), 1)
    y = F.conv1d(y, p(8, 1, 3), p(8), padding=1, groups=8)
    y = F.silu(F.batch_norm(y, None, None, p(8, gain=True), p(8), True))
    x = x + F.conv1d(y, p(8, 8, 1), p(8)).transpose(1, 2)
    x = x + 0.5 * feed_forward(x, p)
    x = F.layer_norm(x, (8,), p(8, gain=True), p(8))
    return F.linear(x, p(LABELS, 8), p(LABELS))


def ctc(scores):
    steps, lengths = torch.tensor([scores.shape[1]] * 2), torch.tensor([len(y) for y in TARGET])
    target = torch.tensor([y + [0] * (3 - len(y)) for y in TARGET])
    return F.ctc_loss(scores.log_softmax(2).transpose(0, 1), target, steps, lengths, LABELS - 1,
                      "none").mean()


def asg(p):
    scores, w = F.linear(X, p(LABELS, FEATURES), p(LABELS)), p(LABELS, LABELS)
    losses = []
    for n, y in enumerate(TARGET):
        full, forced = scores[n, 0], [scores[n, 0, y[0]]] + [torch.tensor(-1e30)] * (len(y) - 1)
        for t in range(1, FRAMES):
            full = torch.logsumexp(full[None] + w, 1) + scores[n, t]
            forced = [torch.logsumexp(torch.stack([forced[s] + w[y[s], y[s]]] +
                                                  ([forced[s - 1] + w[y[s], y[s - 1]]] if s else [])), 0) +
                      scores[n, t, y[s]] for s in range(len(y))]
        losses.append(torch.logsumexp(full, 0) - forced[-1])
    return torch.stack(losses).mean()


def seq2seq(p):
    frames, d = F.linear(X, p(FEATURES, FEATURES), p(FEATURES)), FEATURES
    start, embed = p(d), p(LABELS, d)
    wi, wh, bi, bh = p(3 * d, d), p(3 * d, d), p(3 * d), p(3 * d)
    w, b = p(LABELS, d), p(LABELS)
    loss = 0
    for n, y in enumerate(TARGET):
        h = torch.zeros(d)
        for k, want in enumerate(y + [LABELS - 1]):
            x = embed[y[k - 1]] if k else start
            (ir, iz, ic), (hr, hz, hc) = F.linear(x, wi, bi).chunk(3), F.linear(h, wh, bh).chunk(3)
            z = torch.sigmoid(iz + hz)
            h = (1 - z) * torch.tanh(ic + torch.sigmoid(ir + hr) * hc) + z * h
            summary = torch.softmax(frames[n] @ h / math.sqrt(d), 0) @ frames[n]
            loss = loss - F.linear(h + summary, w, b).log_softmax(0)[want]
    return loss / 2


MODELS = {"conv_glu": lambda p: ctc(conv_glu(p)), "tds": lambda p: ctc(tds(p)),
          "conformer": lambda p: ctc(conformer(p)), "asg": asg, "seq2seq": seq2seq}


def steps(model):
    p, losses = Parameters(), []
    for _ in range(10):
        p.at = 0
        loss = model(p)
        losses.append(loss.item())
        for v, g in zip(p.list, torch.autograd.grad(loss, p.list)):
            with torch.no_grad():
                v -= 0.1 * g
    return losses


text = "".join(name + "".join("\t%.9g" % v for v in steps(m)) + "\n" for name, m in MODELS.items())
if "--verify" in sys.argv:
    old = [line.split("\t") for line in open(PATH)]
    new = [line.split("\t") for line in text.splitlines()]
    bad = [a[0] for a, b in zip(old, new) if any(abs(float(x) - float(y)) > 1e-6 for x, y in zip(a[1:], b[1:]))]
    sys.exit("differ: " + " ".join(bad) if bad or len(old) != len(new) else 0)
open(PATH, "w").write(text)
# MIT licence: see LICENSE.
