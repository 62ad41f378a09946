#!/usr/bin/env python3
"""Peer of examples/research/beam_search.c: python3 bench/peers/lattice.py [FRAMES [STATES]]

PyTorch's ns of a node of the lattice, and of one scalar op, with one thread of the processor."""
import sys
import time

import torch

torch.set_num_threads(1)
frames, states = [int(v) for v in sys.argv[1:3] + ["300", "200"][len(sys.argv) - 1:]]


def timed(name, count, forward):
    """Prints ns of forward and backward for each of `count`, the median of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        y = forward()
        middle = time.perf_counter()
        y.backward()
        times.append((middle - start, time.perf_counter() - middle))
    ahead, back = (sorted(t)[2] * 1e9 / count for t in zip(*times))
    print(f"{name}: forward {ahead:.0f} ns, backward {back:.0f} ns")


def lattice():
    """All paths through the lattice, a frame at a time: each state from itself and the two before it."""
    x = torch.randn(frames, states, requires_grad=True)
    w = torch.tensor([0.1, -0.2, -0.4], requires_grad=True)
    none = torch.full((2,), -1e30)
    at = torch.cat([none, x[0, :1], torch.full((states - 1,), -1e30)])
    for f in range(1, frames):
        ways = torch.stack([at[2:] + w[0], at[1:-1] + w[1], at[:-2] + w[2]])
        at = torch.cat([none, torch.logsumexp(ways, 0) + x[f]])
    return torch.logsumexp(at[-3:], 0)


def scalars():
    y = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for i in range(5000):
        y = torch.log(y) if i % 2 else torch.exp(y)
    return y


timed(f"PyTorch {torch.__version__}, a node by ops on frames", frames * states, lattice)
timed("one scalar op", 5000, scalars)
# MIT licence: see LICENSE.
