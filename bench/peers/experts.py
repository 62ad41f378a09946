#!/usr/bin/env python3
"""Peer of examples/research/experts.c: python3 bench/peers/experts.py [TOKENS [EXPERTS]]

PyTorch's ms of forward and backward of a layer of experts, 128 -> 512 -> 128: a loop over experts, batched
products padded to the largest, and a dense layer of as many operations, with experts drawn as there."""
import sys
import time

import torch

tokens, count = [int(v) for v in sys.argv[1:3] + ["2048", "16"][len(sys.argv) - 1:]]
D, H = 128, 512
torch.manual_seed(1)


def loop(x, index, gate, w1, w2):
    order = torch.argsort(index, stable=True)
    parts = x[order].split(torch.bincount(index, minlength=count).tolist())
    y = torch.cat([torch.nn.functional.gelu(p @ a) @ b for p, a, b in zip(parts, w1.unbind(0), w2.unbind(0))])
    return y[torch.argsort(order)] * gate


def padded(x, index, gate, w1, w2):
    order = torch.argsort(index, stable=True)
    size = torch.bincount(index, minlength=count)
    most = int(size.max())
    place = torch.empty_like(index)
    place[order] = torch.arange(tokens) - (size.cumsum(0) - size)[index[order]] + index[order] * most
    source = torch.zeros(count * most, dtype=torch.long)
    source[place] = torch.arange(tokens)
    y = torch.nn.functional.gelu(x[source].view(count, most, D) @ w1) @ w2
    return y.view(-1, D)[place] * gate


def dense(x, index, gate, w1, w2):
    return torch.nn.functional.gelu(x @ w1[0]) @ w2[0]


for skew in 0, 0.5, 1, 2:
    index = torch.multinomial(torch.arange(1, count + 1, dtype=torch.float) ** -skew, tokens, replacement=True)
    x, gate = torch.randn(tokens, D, requires_grad=True), torch.rand(tokens, 1, requires_grad=True)
    w1 = (torch.randn(count, D, H) / D ** 0.5).requires_grad_()
    w2 = (torch.randn(count, H, D) / H ** 0.5).requires_grad_()
    dy, times = torch.randn(tokens, D), {f: [] for f in (loop, padded, dense)}
    for _ in range(9):
        for f, of in times.items():
            for v in x, gate, w1, w2:
                v.grad = None
            start = time.perf_counter()
            f(x, index, gate, w1, w2).backward(dy)
            of.append(time.perf_counter() - start)
    largest = torch.bincount(index, minlength=count).max().item() * count / tokens
    print(f"PyTorch {torch.__version__}, largest {largest:.2f}:",
          ", ".join(f"{f.__name__} {sorted(t)[4] * 1e3:.1f} ms" for f, t in times.items()))
# MIT licence: see LICENSE.
