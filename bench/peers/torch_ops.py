#!/usr/bin/env python3
"""The rows `nets` of bench/ops.c in PyTorch: python3 bench/peers/torch_ops.py [figure's start]

Prints `figure <tab> value <tab> unit <tab> note` like ours, minima like ours, the same minimal traffic. The C library
keeps large blocks instead of returning them to the system (which otherwise costs PyTorch more than the ops do); set
MALLOC=plain to leave it alone. Needs torch (Debian: python3-torch)."""
import ctypes
import os
import sys
import time

os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)
KEPT = os.environ.get("MALLOC") != "plain"
if KEPT:
    libc = ctypes.CDLL(None)
    for option, value in ((-1, 2**31 - 1), (-4, 0)):  # M_TRIM_THRESHOLD, M_MMAP_MAX
        libc.mallopt(option, value)
import torch
import torch.nn.functional as F

torch.set_num_threads(2)
LARGE, SMALL = (16384, 768), (512, 768)
IMAGE, WIDE = (32, 64, 56, 56), (32, 64, 112, 112)


def norm(x, w, b):
    return F.batch_norm(x, None, None, w, b, training=True)


# figure, op of x, weight, bias (the last dim's or the channels'), shape, bytes per element forward, and with gradients
ROWS = [
    ("add", lambda x, w, b: x + x, LARGE, 12, 0),
    ("relu", lambda x, w, b: F.relu(x), LARGE, 8, 20),
    ("gelu", lambda x, w, b: F.gelu(x), LARGE, 8, 20),
    ("gelu_tanh", lambda x, w, b: F.gelu(x, approximate="tanh"), LARGE, 8, 20),
    ("softmax", lambda x, w, b: F.softmax(x, -1), LARGE, 8, 20),
    ("dropout", lambda x, w, b: F.dropout(x, 0.1), LARGE, 8, 16),
    ("layer_norm", lambda x, w, b: F.layer_norm(x, (768,), w, b), LARGE, 8, 20),
    ("batch_norm", norm, IMAGE, 12, 32),
    ("batch_norm_cl", norm, IMAGE, 12, 32),
    ("max_pool", lambda x, w, b: F.max_pool2d(x, 3, 2, 1), WIDE, 7, 14),
    ("max_pool_cl", lambda x, w, b: F.max_pool2d(x, 3, 2, 1), WIDE, 7, 14),
    ("avg_pool", lambda x, w, b: F.avg_pool2d(x, 2), WIDE, 5, 10),
    ("avg_pool_cl", lambda x, w, b: F.avg_pool2d(x, 2), WIDE, 5, 10),
    ("cross_entropy", None, (2048, 50265), 4, 12),
    ("relu_small", lambda x, w, b: F.relu(x), SMALL, 8, 20),
    ("gelu_small", lambda x, w, b: F.gelu(x), SMALL, 8, 20),
    ("softmax_small", lambda x, w, b: F.softmax(x, -1), SMALL, 8, 20),
    ("dropout_small", lambda x, w, b: F.dropout(x, 0.1), SMALL, 8, 16),
    ("layer_norm_small", lambda x, w, b: F.layer_norm(x, (768,), w, b), SMALL, 8, 20),
    ("batch_norm_small", norm, (4, 64, 39, 39), 12, 32),
    ("batch_norm_cl_small", norm, (4, 64, 39, 39), 12, 32),
]


def spread(shape, name):
    t = torch.randn(shape)
    return t.to(memory_format=torch.channels_last) if "_cl" in name else t


def measure(name, op, shape, backward):
    x = spread(shape, name).requires_grad_()
    w, b = torch.ones(shape[1], requires_grad=True), torch.zeros(shape[1], requires_grad=True)
    if op is None:
        target = torch.randint(0, shape[1], shape[:1])
        op = lambda x, w, b: F.cross_entropy(x, target)
    y = op(x, w, b)
    dy = torch.randn(y.shape).contiguous(
        memory_format=torch.channels_last if "_cl" in name else torch.contiguous_format)
    del y
    least = 1e9
    for _ in range(200 if x.numel() < 1 << 20 else 7):
        start = time.perf_counter()
        if backward:
            op(x, w, b).backward(dy)
            x.grad = w.grad = b.grad = None
        else:
            with torch.no_grad():
                op(x, w, b)
        least = min(least, time.perf_counter() - start)
    return least


for name, op, shape, *bytes_ in ROWS:
    if not name.startswith(sys.argv[1] if len(sys.argv) > 1 else ""):
        continue
    for backward in (0, 1):
        if not bytes_[backward]:
            continue
        seconds = measure(name, op, shape, backward)
        rate = bytes_[backward] * torch.Size(shape).numel() / seconds / 1e9
        print(f"{name}_{'both' if backward else 'forward'}\t{rate:.4g}\tGB/s\t{seconds * 1e3:.3g} ms, torch "
              f"{torch.__version__}, malloc {'kept' if KEPT else 'plain'}", flush=True)
# MIT licence: see LICENSE.
