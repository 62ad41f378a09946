#!/usr/bin/env python3
"""The rows of bench/attention.c in PyTorch: python3 bench/peers/torch_attention.py [threads [decode]]

scaled_dot_product_attention where torch has it, else matmul, softmax, matmul; heads are views of
[batch, tokens, heads, d] as in a model. Best of several runs. Needs torch (Debian: python3-torch)."""
import os
import sys
import time

os.environ.pop("OPENBLAS_CORETYPE", None)
os.environ.pop("OPENBLAS_L2_SIZE", None)
import torch

SETTINGS = [("bert", 8, 16, 128, 64, False), ("asr", 1, 4, 600, 192, False),
            ("vit", 4, 12, 197, 64, False), ("lm", 8, 8, 2048, 128, True)]


def attention(q, k, v, causal):
    fused = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    if fused:
        return fused(q, k, v, is_causal=causal)
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.matmul(scores.softmax(-1), v)


def best(run, rounds):
    run()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def decode(heads, kv_heads, keys=4096, dim=128, layers=8):
    """One token behind a cache: GB/s of keys and values read, of layers in turn."""
    q = torch.rand(1, heads, 1, dim)
    cache = [[torch.rand(1, kv_heads, keys, dim) for _ in range(2)] for _ in range(layers)]
    fused, turn = getattr(torch.nn.functional, "scaled_dot_product_attention", None), [0]

    def run():
        k, v = cache[turn[0] % layers]
        turn[0] += 1
        if fused and heads != kv_heads:
            return fused(q, k, v, enable_gqa=True)
        if heads != kv_heads:
            k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
        return attention(q, k, v, False)

    s = best(run, 20 * layers)
    print(f"decode_{keys}_keys_{heads}q_{kv_heads}kv\t{8 * kv_heads * keys * dim / s / 1e9:.4g}\tGB/s\t"
        f"{s * 1e6:.3g} us, torch {torch.__version__}", flush=True)


def main():
    if len(sys.argv) > 1:
        torch.set_num_threads(int(sys.argv[1]))
    with torch.no_grad():
        decode(8, 8)
        decode(32, 8)
    if sys.argv[2:] == ["decode"]:
        return
    for name, batch, heads, n, d, causal in SETTINGS:
        x = [torch.rand(batch, n, heads, d, requires_grad=True) for _ in range(3)]
        dy = torch.rand(batch, heads, n, d)

        def forward():
            return attention(*(t.transpose(1, 2) for t in x), causal)

        def both():
            forward().backward(dy)
            for t in x:
                t.grad = None

        rounds = 2 if n > 1000 else 10
        for how, run, flop in (("forward", forward, 4), ("forward_backward", both, 14)):
            s = best(run, rounds)
            flop *= batch * heads * n * n * d / (2 if causal else 1)
            print(f"{name}_{how}\t{flop / s / 1e9:.4g}\tGFLOP/s\t{s * 1e3:.3g} ms, torch {torch.__version__}",
                  flush=True)


main()
# MIT licence: see LICENSE.
