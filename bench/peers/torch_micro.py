#!/usr/bin/env python3
"""The rows of bench/micro.c in PyTorch: python3 bench/peers/torch_micro.py [threads]

Memory is the most the process had resident, above what it had with torch imported."""
import os
import resource
import statistics
import sys
import time

for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(name, None)
import torch
from torch import nn

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))


def line(figure, value, unit, note=""):
    print(f"{figure}\t{value:.4g}\t{unit}\t{note}", flush=True)


def median_seconds(fn, rounds, repeat=1):
    sample = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        for _ in range(repeat):
            fn()
        sample.append((time.perf_counter() - start) / repeat)
    return statistics.median(sample[1:])


def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def steps():
    start = time.perf_counter()
    net = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(64, 784), torch.randint(0, 10, (64,))

    def train():
        optim.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(net(x), y).backward()
        optim.step()

    train()
    line("first_step", (time.perf_counter() - start) * 1e3, "ms", f"torch {torch.__version__}")
    line("later_step", median_seconds(train, 11, 5) * 1e3, "ms")


def scaling(figure, fn):
    least = [float("inf")] * 2
    for i in range(10):
        torch.set_num_threads(THREADS if i % 2 else 1)
        least[i % 2] = min(least[i % 2], median_seconds(fn, 3))
    line(figure, least[0] / least[1], "x", "one thread / all")


before = resident()
torch.set_num_threads(THREADS)
steps()
square, long = torch.ones(1024, 1024), torch.ones(1 << 24)
scaling("scaling_product", lambda: square @ square)
scaling("scaling_add", lambda: long + long)
line("peak_memory", resident() - before, "MB")
# MIT licence: see LICENSE.
