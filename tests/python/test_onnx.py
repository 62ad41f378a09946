# test_onnx.py - steps that fl wrote as ONNX models, checked by onnx and run by ONNX Runtime beside fl's own results
#
# The program test_onnx writes models, and files of an input and of what fl computes for it: of the recorded sizes and of
# others. Results must agree within 1e-4 of the largest. ONNX_PYTHON: an interpreter that has onnx and onnxruntime.
import glob
import os
import subprocess
import sys
import tempfile

from check import BUILD, check, done, module, skip

if os.environ.get("ONNX_PYTHON"):
    python = os.environ.pop("ONNX_PYTHON")
    os.execv(python, [python] + sys.argv)
PROGRAM = os.path.join(BUILD, "tests", "test_onnx")


def read(path):
    """The tensors of a safetensors file: f32, i64."""
    import json

    import numpy as np

    with open(path, "rb") as f:
        n = int.from_bytes(f.read(8), "little")
        header, data = json.loads(f.read(n)), f.read()
    header.pop("__metadata__", None)
    dtypes = {"F32": np.float32, "F64": np.float64, "I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U64": np.uint64, "BOOL": np.bool_, "U8": np.uint8}
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], dtypes[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}


def compare(onnx, runtime, np, path):
    name = os.path.basename(path)[:-5]
    onnx.checker.check_model(path, full_check=True)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as e:
        if "NOT_IMPLEMENTED" in str(e) and name.startswith("op_"):  # of this dtype, though ONNX has it
            return skip(f"{name}: {str(e)[-80:]}")
        raise
    for file in sorted(glob.glob(f"{glob.escape(path[:-5])}-*.safetensors")):
        case = read(file)
        inputs = {i.name: case[i.name] for i in session.get_inputs()}
        for output, y in zip(session.get_outputs(), session.run(None, inputs)):
            expected = case[output.name]
            if not check(y.shape == expected.shape and y.dtype == expected.dtype,
                         f"{name}: {output.name} is {y.dtype} {y.shape}, expected {expected.dtype} {expected.shape}"):
                continue
            if expected.dtype.kind != "f":
                check(np.array_equal(y, expected), f"{name}: {output.name} is equal")
                continue
            with np.errstate(invalid="ignore"):
                same = (y == expected) | (np.isnan(y) & np.isnan(expected))
                off = np.where(same, 0, np.abs(y - expected)).max(initial=0)
            largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
            check(off <= 1e-4 * largest, f"{name}: {output.name} is off by {off} of {largest}")


def main():
    onnx, runtime, np = module("onnx"), module("onnxruntime"), module("numpy")
    if not onnx or not runtime or not np:
        return
    if not os.path.exists(PROGRAM):
        return skip(f"test_onnx.py without {PROGRAM}")
    with tempfile.TemporaryDirectory() as folder:
        out = subprocess.run([PROGRAM] + sys.argv[1:], env=dict(os.environ, ONNX=folder), capture_output=True, text=True)
        check(out.returncode == 0, f"models are written: {out.stdout[-500:]}{out.stderr[-500:]}")
        models = sorted(glob.glob(f"{folder}/*.onnx"))
        check(len(glob.glob(f"{folder}/*-*.safetensors")) >= 0.8 * len(models) > 0, "most models have cases")
        for path in models:
            try:
                compare(onnx, runtime, np, path)
            except Exception as e:  # of the checker or the runtime: the next model is tried
                check(False, f"{os.path.basename(path)}: {e}")


main()
done()
# MIT licence: see LICENSE.
