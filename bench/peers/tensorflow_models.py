#!/usr/bin/env python3
"""The six models in TensorFlow: bench/peers/tensorflow_models.py vit --variant graph --threads 2

The line's seconds are of one tf.function of the whole step; forward is one of the loss alone, backward what
one of the gradient takes longer, and the step what the whole takes longer than that. Variants: graph, xla
(the function compiled), each with or without +huge and +passive. f32 only. Nothing tells what the allocator
of the CPU holds, so that column stays empty."""
import statistics
import sys
import time

import common
import plain_models

ARGS = common.arguments(__doc__.split("\n")[0], list(plain_models.MAKERS), "graph")

import tensorflow as tf


class Tensorflow:
    """One pass over a network; see plain_models.py."""

    matmul, reshape, concat, broadcast = (staticmethod(f) for f in (tf.matmul, tf.reshape, tf.concat, tf.broadcast_to))
    relu, sigmoid, softmax, gather = (staticmethod(f) for f in (tf.nn.relu, tf.sigmoid, tf.nn.softmax, tf.gather))

    def __init__(self, p):
        self.p, self.flops = p, 0

    def transpose(self, x, order):
        return tf.transpose(x, order)

    def gelu(self, x):
        return tf.nn.gelu(x, approximate=False)

    def mean(self, x, axes):
        return tf.reduce_mean(x, axes)

    def conv(self, x, w, stride, pad):
        high, wide = pad if isinstance(pad, tuple) else (pad, pad)
        return tf.nn.conv2d(x, w, stride, [(0, 0), (high, high), (wide, wide), (0, 0)])

    def max_pool(self, x, k, stride, pad):
        x = tf.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)], constant_values=x.dtype.min) if pad else x
        return tf.nn.max_pool2d(x, k, stride, "VALID")

    def normalize(self, x, axes, eps):
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + eps)

    def batch_norm(self, x, scale, shift):
        return tf.compat.v1.nn.fused_batch_norm(x, scale, shift, epsilon=1e-5, is_training=True)[0]

    def dropout(self, x, rate):
        return tf.nn.dropout(x, rate) if rate else x


def cross_entropy(logits, y):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))


def ctc(logits, y):
    full = lambda n: tf.fill([logits.shape[0]], n)
    return tf.reduce_mean(tf.nn.ctc_loss(y, logits, full(y.shape[1]), full(logits.shape[1]), logits_time_major=False,
                                         blank_index=0))


def make_functions(model, loss_of, p, momentum, x, y, xla):
    """tf.functions of the loss, its gradient, the whole step; and a list that gets the flops of a forward."""
    flops = []

    def loss():
        f = Tensorflow([v.value() for v in p])
        value = loss_of(model(f, x), y)
        flops.append(f.flops)
        return value

    def gradient():
        with tf.GradientTape() as tape:
            value = loss()
        return value, [tf.convert_to_tensor(g) for g in tape.gradient(value, p)]

    def step():
        value, grads = gradient()
        for v, m, g in zip(p, momentum, grads):
            m.assign(0.9 * m + g)
            v.assign_sub(1e-4 * m)
        return value

    return [tf.function(fn, jit_compile=xla) for fn in (loss, gradient, step)], flops


def main(a):
    if a.list:
        names = [r + "+huge+passive" for r in ("graph", "xla")] + ["graph", "xla"]
        print("\n".join(names if a.dtype == "f32" else []))
        return
    if set(a.parts) - {"graph", "xla", "huge", "passive"} or a.dtype != "f32":
        sys.exit(f"tensorflow: no variant {a.variant} of {a.dtype}")
    tf.config.threading.set_intra_op_parallelism_threads(a.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.random.set_seed(0)
    model, params, x, y = plain_models.make(a)
    p, momentum = [tf.Variable(v) for v in params], [tf.Variable(tf.zeros(v.shape)) for v in params]
    params.clear()
    loss_of = ctc if a.model == "asr" else cross_entropy
    functions, flops = make_functions(model, loss_of, p, momentum, tf.constant(x), tf.constant(y), "xla" in a.parts)
    loss, gradient, step = functions

    def timed(fn):
        start = time.perf_counter()
        value = fn()
        (value[0] if isinstance(value, tuple) else value).numpy()
        return time.perf_counter() - start

    def iteration():
        timed(step)
        return 0, 0, 0

    seconds, rss = common.measure(a, iteration), common.max_rss()
    parts = [statistics.median([timed(fn) for _ in range(1 + a.iterations)][1:]) for fn in (loss, gradient)]
    seconds[2:5] = [parts[0], parts[1] - parts[0], max(0.0, seconds[0] - parts[1])]
    common.line(a, "tensorflow-" + tf.__version__, seconds, 3 * flops[0], None, rss)


if __name__ == "__main__":
    main(ARGS)
# MIT licence: see LICENSE.
