#!/usr/bin/env python3
"""Peers of bench/programs.c: python3 bench/peers/programs.py torch|jax THREADS

Says what it is, then answers lines "FUNCTION ELEMENTS CALLS" with the seconds of one call, of the processor with
one thread. Functions are compiled and warm, and write their result where the last one was; malloc keeps its
memory, on huge pages."""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import common

peer, threads = sys.argv[1], int(sys.argv[2])
env = dict(common.ENVIRONMENT["huge"], OMP_NUM_THREADS=str(threads), CUDA_VISIBLE_DEVICES="",
           JAX_PLATFORMS="cpu")
if any(os.environ.get(k) != v for k, v in env.items()):
    os.execve(sys.executable, [sys.executable] + sys.argv, dict(os.environ, **env))
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])  # JAX has no other setting
if peer == "torch":
    import torch as np
else:
    import jax
    import jax.numpy as np
ROW = 1024


def chain(x, y, *_):
    t = x * y + 1
    t = t * t - x
    t = np.maximum(t * 0.5, y)
    return -(np.abs(t) + t * 0.1)


def gelu(x, *_):
    u = (x + x * x * (x * 0.044715)) * 0.7978845608
    return x * 0.5 * (np.tanh(u) + 1)


def adam(p, g, m, v):
    m = m * 0.9 + g * 0.1
    v = v * 0.999 + g * g * 0.001
    return p - m / 0.7 / (np.sqrt(v / 0.3) + 1e-8) * 1e-3, m, v


def softmax(x, *_):
    e = np.exp(x - np.amax(x, -1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, w, b, *_):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * w[0] + b[0]


def torch_calls(f, n):
    t = [np.rand(n // ROW, ROW) for _ in range(4)]
    to = [t[0], t[2], t[3]] if f is adam else [np.empty_like(t[0])]

    @np.compile
    def g(t, to):
        y = f(*t)
        for a, b in zip(to, y if f is adam else [y]):
            a.copy_(b)

    def calls(repeat):
        with np.no_grad():
            for _ in range(repeat):
                g(t, to)

    return calls


def jax_calls(f, n):
    t = [jax.random.uniform(jax.random.key(i), (n // ROW, ROW)) for i in range(4)]
    to = np.zeros_like(t[0])
    if f is adam:
        g = jax.jit(f, donate_argnums=(0, 2, 3))
    else:
        g = jax.jit(lambda to, *t: f(*t), donate_argnums=0, keep_unused=True)

    def calls(repeat):
        nonlocal to
        for _ in range(repeat):
            if f is adam:
                t[0], t[2], t[3] = g(*t)
            else:
                to = g(to, *t)
        (t[0] if f is adam else to).block_until_ready()

    return calls


def main():
    if peer == "torch":
        np.set_num_threads(threads)
    print(peer, (np if peer == "torch" else jax).__version__, f"{threads} threads", flush=True)
    clock = time.process_time if threads == 1 else time.perf_counter
    make = torch_calls if peer == "torch" else jax_calls
    now, calls = None, None
    for line in sys.stdin:
        name, n, repeat = line.split()
        if now != (name, n):
            now, calls = (name, n), None
            calls = make(globals()[name], int(n))
            calls(3)
        start = clock()
        calls(int(repeat))
        print((clock() - start) / int(repeat), flush=True)


main()
# MIT licence: see LICENSE.
