#!/usr/bin/env python3
"""The models of torch_models.py in ONNX Runtime, inference: bench/peers/onnx_models.py vit --mode inference --threads 2

torch_models.py exports the network, in a process of its own, with the weights of --weights, beside which the
file stays. The first call's seconds have the making of the session in them, which is where graphs are optimised.
Variants: all, extended (what the graph is optimised to), each with or without +huge. f32 only."""
import os
import subprocess
import sys
import time

import common
import weights

ARGS = common.arguments(__doc__.split("\n")[0], list(common.PRESETS), "all")

import onnxruntime as ort


def exported(a):
    """The network's file: as old as the weights, or made anew."""
    path = a.weights + ".onnx"
    if not os.path.exists(path) or os.path.getmtime(path) < os.path.getmtime(a.weights):
        here = os.path.dirname(os.path.abspath(__file__))
        subprocess.run([sys.executable, os.path.join(here, "torch_models.py"), a.model, "--mode", "inference", "--preset",
                        a.preset, "--batch", str(a.batch), "--size", str(a.size), "--weights", a.weights, "--export",
                        path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return path


def main(a):
    if a.list:
        print("\n".join(["all+huge", "all", "extended+huge"] if a.dtype == "f32" and a.mode == "inference" else []))
        return
    levels = {"all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL, "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED}
    if a.dtype != "f32" or a.mode != "inference" or a.parts[0] not in levels or not a.weights:
        sys.exit(f"onnxruntime: f32 inference by --weights only, no variant {a.variant} of {a.dtype}")
    path, saved = exported(a), weights.ends(a.weights)
    options = ort.SessionOptions()
    options.graph_optimization_level = levels[a.parts[0]]
    options.intra_op_num_threads, options.inter_op_num_threads = a.threads, 1
    start = time.perf_counter()
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    making, name, y = time.perf_counter() - start, session.get_inputs()[0].name, None

    def iteration():
        nonlocal y
        begin = time.perf_counter()
        y, = session.run(None, {name: saved["input"]})
        return time.perf_counter() - begin, 0, 0

    seconds, rss = common.measure(a, iteration), common.max_rss()
    seconds[5] += making
    common.line(a, "onnxruntime-" + ort.__version__, seconds, a.gflop * 1e9, None, rss,
                weights.difference(y, saved["output"]))


if __name__ == "__main__":
    main(ARGS)
# MIT licence: see LICENSE.
