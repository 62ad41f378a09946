#!/usr/bin/env python3
"""torch_data - PyTorch's DataLoader, for bench/data.c

usage: torch_data.py DIR BATCH    (the folder of MNIST's files; without them random bytes of that shape)

Reads lines with the name of a variant from standard input and answers each with the seconds of an epoch of
shuffled batches of a TensorDataset: workers_0, _1 and _2 join samples as DataLoader does by default;
whole_0, _1 and _2 index the tensors once for a batch (a sampler of index tensors, no collation); _single: one
thread within an operation, which a busy machine likes better."""
import gzip
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

folder, batch = sys.argv[1], int(sys.argv[2])


def images():
    path = os.path.join(folder, "train-images-idx3-ubyte.gz")
    if not os.path.exists(path):
        return torch.randint(0, 256, (60000, 28, 28), dtype=torch.uint8)
    with gzip.open(path) as f:
        return torch.frombuffer(bytearray(f.read()[16:]), dtype=torch.uint8).view(-1, 28, 28)


class Batches:
    def __iter__(self):
        return iter(torch.randperm(len(X)).split(batch))

    def __len__(self):
        return (len(X) + batch - 1) // batch


def loader(variant):
    kind, workers = variant.split("_")[:2]
    torch.set_num_threads(1 if variant.endswith("_single") else THREADS)
    more = {"num_workers": int(workers), "persistent_workers": workers != "0"}
    if kind == "workers":
        return DataLoader(SET, batch_size=batch, shuffle=True, **more)
    return DataLoader(SET, sampler=Batches(), batch_size=None, **more)


X = images()
SET = TensorDataset(X, torch.arange(len(X)))
LOADERS, THREADS = {}, torch.get_num_threads()
print(torch.__version__, len(X), flush=True)
for line in sys.stdin:
    name = line.strip()
    if name not in LOADERS:
        LOADERS.clear()
        LOADERS[name] = loader(name)
        for _ in LOADERS[name]:  # workers start
            pass
    start, n = time.perf_counter(), 0
    for x, y in LOADERS[name]:
        n += len(y)
    assert n == len(X)
    print(time.perf_counter() - start, flush=True)
# MIT licence: see LICENSE.
