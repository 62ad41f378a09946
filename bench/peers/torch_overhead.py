#!/usr/bin/env python3
"""The rows of bench/overhead.c and bench/mnist.c in PyTorch: python3 bench/peers/torch_overhead.py [overhead|mnist] [iterations]

Prints `figure <tab> value <tab> unit <tab> note`, medians like ours. Needs torch (Debian: python3-torch)."""
import os
import statistics
import sys
import time

os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)
import torch
from torch import nn


def line(figure, value, unit, note):
    print(f"{figure}\t{value:.4g}\t{unit}\t{note}", flush=True)


def median_seconds(fn, rounds, repeat):
    sample = []
    for r in range(rounds + 1):
        start = time.perf_counter()
        for _ in range(repeat):
            fn()
        sample.append((time.perf_counter() - start) / repeat)
    return statistics.median(sample[1:])


def overhead():
    torch.set_num_threads(1)
    for n in (1, 64):
        a, b = torch.ones(n), torch.ones(n)
        line(f"add_{n}", median_seconds(lambda: a + b, 21, 20000) * 1e9, "ns", f"torch {torch.__version__}")
    a, b, ones = torch.ones(64, requires_grad=True), torch.ones(64), torch.ones(64)

    def chain():
        x = a
        for _ in range(20):
            x = x + b
        return x

    def chain_backward():
        chain().backward(ones)
        a.grad = None

    line("add_record", median_seconds(chain, 21, 500) / 20 * 1e9, "ns", "per op")
    line("add_record_backward", median_seconds(chain_backward, 21, 500) / 20 * 1e9, "ns", "per op")
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    optim = torch.optim.SGD(net.parameters(), lr=1e-3)
    x, y = torch.ones(8, 32), torch.ones(8, 32)

    def step():
        optim.zero_grad(set_to_none=True)
        nn.functional.mse_loss(net(x), y).backward()
        optim.step()

    line("mlp_step", median_seconds(step, 21, 200) * 1e6, "us", "3 layers, width 32, batch 8, MSE, SGD")
    row = torch.ones(1, 32)
    with torch.inference_mode():
        line("mlp_forward", median_seconds(lambda: net(row), 21, 1000) * 1e6, "us", "one sample, inference_mode")


def mnist(iterations):
    net = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(3136, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 10), nn.LogSoftmax(1))
    optim = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))

    def run(n):
        for _ in range(n):
            loss = nn.functional.nll_loss(net(x), y)
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()

    seconds = {1: [], 2: []}
    for _ in range(5):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            run(3)
            start = time.perf_counter()
            run(iterations)
            seconds[threads].append((time.perf_counter() - start) * 100 / iterations)
    for threads, note in ((1, "thread"), (2, "threads")):
        line(f"mnist_100_iterations_{threads}_{note}", statistics.median(seconds[threads]), "s", "batch 64")


what = sys.argv[1] if len(sys.argv) > 1 else "all"
if what in ("all", "overhead"):
    overhead()
if what in ("all", "mnist"):
    mnist(int(sys.argv[2]) if len(sys.argv) > 2 else 100)
# MIT licence: see LICENSE.
