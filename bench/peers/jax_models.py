#!/usr/bin/env python3
"""The six models in JAX: bench/peers/jax_models.py vit --variant rbg --threads 2

The line's seconds are of one jitted step; forward is a jitted loss alone, backward what a jitted gradient
takes longer, and the step what the whole takes longer than that. Variants: rbg, threefry: what draws the
dropouts' random numbers."""
import statistics
import sys
import time

import common
import plain_models

ARGS = common.arguments(__doc__.split("\n")[0], list(plain_models.MAKERS), "rbg")

import jax
import jax.numpy as jnp
from jax import lax


class Jax:
    """One pass over a network; see plain_models.py."""

    def __init__(self, p, key):
        self.p, self.key, self.flops = p, key, 0

    matmul, reshape, transpose = staticmethod(jnp.matmul), staticmethod(jnp.reshape), staticmethod(jnp.transpose)
    concat, broadcast = staticmethod(jnp.concatenate), staticmethod(jnp.broadcast_to)
    relu, sigmoid, softmax = staticmethod(jax.nn.relu), staticmethod(jax.nn.sigmoid), staticmethod(jax.nn.softmax)

    def gelu(self, x):
        return jax.nn.gelu(x, approximate=False)

    def mean(self, x, axes):
        return x.mean(axes)

    def gather(self, table, index):
        return table[index]

    def conv(self, x, w, stride, pad):
        pads = [(p, p) for p in (pad if isinstance(pad, tuple) else (pad, pad))]
        return lax.conv_general_dilated(x, w, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def max_pool(self, x, k, stride, pad):
        pads = ((0, 0), (pad, pad), (pad, pad), (0, 0))
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, k, k, 1), (1, stride, stride, 1), pads)

    def normalize(self, x, axes, eps):
        y = x - x.mean(axes, keepdims=True)
        return y * lax.rsqrt((y * y).mean(axes, keepdims=True) + eps)

    def batch_norm(self, x, scale, shift):
        return self.normalize(x, (0, 1, 2), 1e-5) * scale + shift

    def dropout(self, x, rate):
        if rate == 0:
            return x
        self.key, key = jax.random.split(self.key)
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


def cross_entropy(logits, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()


def ctc(logits, y):
    """Mean over the batch of -log P(y), by the forward recursion; blank is 0."""
    logs = jnp.swapaxes(jax.nn.log_softmax(logits), 0, 1)  # [t, n, pieces]
    n, length = y.shape
    path = jnp.zeros((n, 2 * length + 1), y.dtype).at[:, 1::2].set(y)
    skips = jnp.concatenate([jnp.zeros((n, 2), bool), (path[:, 2:] != path[:, :-2]) & (path[:, 2:] != 0)], 1)
    emitted = jnp.take_along_axis(logs, jnp.broadcast_to(path, (logs.shape[0],) + path.shape), 2)
    never = -1e30
    back = lambda alpha, k: jnp.pad(alpha[:, :-k], ((0, 0), (k, 0)), constant_values=never)

    def step(alpha, now):
        both = jnp.logaddexp(alpha, back(alpha, 1))
        return jnp.logaddexp(both, jnp.where(skips, back(alpha, 2), never)) + now, None

    first = jnp.full(path.shape, never).at[:, :2].set(emitted[0, :, :2])
    last, _ = lax.scan(step, first, emitted[1:])
    return -(jnp.logaddexp(last[:, -1], last[:, -2]) / length).mean()


def make_step(model, loss_of, dtype, counted):
    """Jitted (loss, gradient, whole step) of (params, key, x, y), the step's with the momentum behind params."""
    def loss(p, key, x, y):
        f = Jax([v.astype(dtype) for v in p], key)
        out = model(f, x if x.dtype == jnp.int32 else x.astype(dtype))
        counted.append(f.flops)
        return loss_of(out.astype(jnp.float32), y)

    def step(p, momentum, key, x, y):
        value, grads = jax.value_and_grad(loss)(p, key, x, y)
        momentum = [0.9 * m + g for m, g in zip(momentum, grads)]
        return value, [v - 1e-4 * m for v, m in zip(p, momentum)], momentum

    return jax.jit(loss), jax.jit(jax.value_and_grad(loss)), jax.jit(step, donate_argnums=(0, 1))


def main(a):
    if a.list:
        print("rbg\nthreefry")
        return
    if a.variant not in ("rbg", "threefry"):
        sys.exit(f"jax: no variant {a.variant}")
    jax.config.update("jax_default_prng_impl", "rbg" if a.variant == "rbg" else "threefry2x32")
    model, params, x, y = plain_models.make(a)
    p, x, y, counted = [jnp.asarray(v) for v in params], jnp.asarray(x), jnp.asarray(y), []
    params.clear()
    momentum, key = [jnp.zeros_like(v) for v in p], jax.random.key(0)
    dtype = jnp.bfloat16 if a.dtype == "bf16" else jnp.float32
    loss, gradient, step = make_step(model, ctc if a.model == "asr" else cross_entropy, dtype, counted)
    begin = time.perf_counter()
    whole = step.lower(p, momentum, key, x, y).compile()
    compiling = time.perf_counter() - begin
    memory = whole.memory_analysis()

    def iteration():
        nonlocal p, momentum, key
        key, now = jax.random.split(key)
        value, p, momentum = whole(p, momentum, now, x, y)
        jax.block_until_ready((value, p))
        return 0, 0, 0

    def timed(fn):
        seconds = []
        for _ in range(1 + a.iterations):
            start = time.perf_counter()
            jax.block_until_ready(fn(p, key, x, y))
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[1:])

    seconds, rss = common.measure(a, iteration), common.max_rss()
    forward, both = timed(loss), timed(gradient)
    seconds[2:] = [forward, both - forward, max(0.0, seconds[0] - both), compiling + seconds[5]]
    common.line(a, "jax-" + jax.__version__, seconds, 3 * counted[0], memory and memory.temp_size_in_bytes, rss)


if __name__ == "__main__":
    main(ARGS)
# MIT licence: see LICENSE.
