#!/usr/bin/env python3
"""The rows of bench/checkpoint.c in PyTorch: python3 bench/peers/torch_checkpoint.py [folder]

torch.save of ResNet-50's state and that of SGD with momentum, with fsync and rename, as ours, and as PyTorch's
users write it (no fsync); torch.load of it and load_state_dict of both. Prints `figure <tab> value <tab> unit
<tab> note`, medians of nine like ours. Needs torch."""
import os
import statistics
import sys
import time

# torch_models starts the program again, with its own arguments.
FOLDER = os.environ.setdefault("BENCH_FOLDER", sys.argv[1] if len(sys.argv) > 1 else ".")
sys.argv = [sys.argv[0], "resnet50"]  # which torch_models reads

import torch

from torch_models import resnet50

ROUNDS = 9


def line(figure, value, unit, note=""):
    print(f"{figure}\t{value:.4g}\t{unit}\t{note}", flush=True)


path = os.path.join(FOLDER, "bench_checkpoint.pt")
net = resnet50(False)
optim = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for p in net.parameters():
    optim.state[p]["momentum_buffer"] = torch.rand_like(p)


def save(sync):
    with open(path + ".tmp", "wb") as f:
        torch.save({"model": net.state_dict(), "optim": optim.state_dict()}, f)
        if sync:
            f.flush()
            os.fsync(f.fileno())
    os.rename(path + ".tmp", path)


def load():
    state = torch.load(path, map_location="cpu")
    net.load_state_dict(state["model"])
    optim.load_state_dict(state["optim"])


def forget():
    f = os.open(path, os.O_RDONLY)
    os.fsync(f)
    os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(f)


def measure(figure, job, before=lambda: None):
    seconds = []
    for r in range(ROUNDS + 1):
        before()
        start = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - start)
    s = statistics.median(seconds[1:])
    line(f"{figure}_seconds", s, "s", f"torch {torch.__version__}")
    line(f"{figure}_rate", os.path.getsize(path) / s / 1e6, "MB/s")


save(True)
line("bytes", os.path.getsize(path), "bytes")
measure("save", lambda: save(True))
measure("save_without_sync", lambda: save(False))
measure("load_cold", load, forget)
measure("load", load)
os.remove(path)
# MIT licence: see LICENSE.
