#!/usr/bin/env python3
"""gguf_blocks.py - writes tests/golden/lm/blocks.gguf: random blocks of each type of GGUF, and what the
package gguf makes of them

    python3 tests/gguf_blocks.py        needs gguf (PyPI), which brings NumPy; no network

Tensor "Q4_K" [2, 2 blocks] has the blocks, "Q4_K.f32" the numbers; "Q8_0.made" what the package makes of the
f32 "made". tests/python/test_gguf.py compares many more."""
import os
import numpy as np, gguf

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "lm")
Q = gguf.GGMLQuantizationType
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "Q8_K": [], "IQ4_NL": [0],
          "IQ4_XS": [0], "MXFP4": []}  # where a block has numbers of f16, which are to be finite
MADE = ["Q8_0", "Q4_0"]  # types that fl makes of numbers as the package does


def blocks(name, rows, columns, rng):
    """Random bytes u8 [rows, bytes of columns blocks]."""
    kind = Q[name]
    out = rng.integers(0, 256, (rows * columns, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    for at in HALVES[name]:
        bits = rng.integers(0, 0x7c00, len(out), np.uint16) | rng.integers(0, 2, len(out), np.uint16) << 15
        out[:, at:at + 2] = bits.view(np.uint8).reshape(-1, 2)
    if name == "Q8_K":
        out[:, :4] = rng.normal(size=len(out)).astype(np.float32).view(np.uint8).reshape(-1, 4)
    return out.reshape(rows, -1)


def numbers(name, data):
    """What those bytes are in f32; Q8_K is not among the package's types: d q."""
    if name != "Q8_K":
        return gguf.quants.dequantize(data, Q[name])
    each = data.reshape(-1, gguf.GGML_QUANT_SIZES[Q.Q8_K][1])
    d = each[:, :4].copy().view(np.float32)
    return (d * each[:, 4:260].view(np.int8).astype(np.float32)).reshape(len(data), -1)


def write(path, types, rows, columns, rng):
    w = gguf.GGUFWriter(path, "blocks")
    for name in types:
        data = blocks(name, rows, columns, rng)
        w.add_tensor(name, data, raw_dtype=Q[name])
        w.add_tensor(name + ".f32", numbers(name, data))
    made = rng.normal(size=(rows, columns * 32)).astype(np.float32)
    made[0, :32] = np.append(127, np.arange(31) - 15.5)  # halves, which are rounded away from 0
    w.add_tensor("made", made)
    for name in MADE:
        w.add_tensor(name + ".made", gguf.quants.quantize(made, Q[name]), raw_dtype=Q[name])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    write(os.path.join(HERE, "blocks.gguf"), HALVES, 2, 2, np.random.default_rng(5))
# MIT licence: see LICENSE.
