# test_stablehlo.py - steps that fl wrote as StableHLO, run by XLA on JAX's CPU client, beside fl's own results
#
# The program test_write writes modules, with the memory of inputs and state before a step and of results after it. Ops
# alone on awkward views must agree within 1e-5 of the largest, models within 3e-5 or 1e-5; integers, truth values and
# the generator in every bit. FULL in the environment runs all models, else four. JAX_PYTHON: an interpreter that has
# JAX, which needs a newer NumPy than the other scripts may have.
import glob
import os
import re
import subprocess
import sys
import tempfile

from check import BUILD, check, done, module, skip

if os.environ.get("JAX_PYTHON"):
    python = os.environ.pop("JAX_PYTHON")
    os.execv(python, [python] + sys.argv)
PROGRAM = os.path.join(BUILD, "tests", "test_write")
MODELS = ["alexnet", "capsule", "gpt_small", "wgan"]
if os.environ.get("FULL"):
    MODELS += ["asr", "bert", "dcgan", "lstm_lm", "resnet34", "resnet50", "unet", "vgg16", "vit", "vit_tiny"]


class Client:
    def __init__(self, jax, np):
        from jax._src import xla_bridge
        from jax._src.lib import xla_client

        jax.config.update("jax_enable_x64", True)
        self.jax, self.np, self.xla = jax, np, xla_client
        self.backend = xla_bridge.get_backend("cpu")
        self.devices = xla_client.DeviceList(tuple(self.backend.local_devices()[:1]))
        self.dtypes = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i1": np.bool_,
                       "ui8": np.uint8, "ui64": np.uint64}

    def run(self, text, inputs):
        program = self.backend.compile_and_load(text.encode(), self.devices, self.xla.CompileOptions())
        return [self.np.asarray(y) for y in program.execute([self.jax.device_put(x) for x in inputs])]

    def ports(self, text):
        """Names, dtypes and shapes of arguments and results."""
        signature = re.search(r"@main\((.*)\) -> \((.*)\) \{", text)
        for kind, types in zip(("argument", "result"), signature.groups()):
            names = re.findall(rf"// {kind} \d+: (.*)", text)
            parts = [t.split("x") for t in re.findall(r"tensor<([^>]*)>", types)]
            yield [(n, self.dtypes[p[-1]], tuple(map(int, p[:-1]))) for n, p in zip(names, parts)]


def compare(client, folder, name, near, floor):
    np = client.np
    with open(f"{folder}/{name}.mlir", encoding="utf-8") as f:
        text = f.read()
    arguments, results = client.ports(text)

    def memory(when, what, dtype):
        with open(f"{folder}/{name}-{when}-{what}", "rb") as f:
            return np.frombuffer(f.read(), dtype)

    given = [memory("before", n, d).reshape(s) for n, d, s in arguments]
    got = client.run(text, given)
    compared = 0
    for (what, dtype, _), y in zip(results, got):
        if not os.path.exists(f"{folder}/{name}-after-{what}"):
            continue
        want, y, compared = memory("after", what, dtype), y.reshape(-1), compared + 1
        if want.dtype.kind != "f":
            check(np.array_equal(want, y), f"{name}: {what} is equal")
            continue
        with np.errstate(invalid="ignore"):
            off = np.where((want == y) | (np.isnan(want) & np.isnan(y)), 0, np.abs(want - y)).max(initial=0)
        finite = np.abs(want[np.isfinite(want)]).max(initial=0)
        check(off <= near * finite or off <= floor, f"{name}: {what} is off by {off} of {finite}")
    check(compared > 0, f"{name}: results")


def main():
    jax, np = module("jax"), module("numpy")
    if not jax or not np:
        return
    if not os.path.exists(PROGRAM):
        return skip(f"test_stablehlo.py without {PROGRAM}")
    client = Client(jax, np)
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, STABLEHLO=folder)
        for what in ["ops_alone"] + MODELS:
            out = subprocess.run([PROGRAM, what], env=environment, capture_output=True, text=True)
            check(out.returncode == 0, f"{what} is written: {out.stdout[-500:]}{out.stderr[-500:]}")
        for path in sorted(glob.glob(f"{folder}/*.mlir")):
            name = os.path.basename(path)[:-5]
            model = name in MODELS
            compare(client, folder, name, 3e-5 if model else 1e-5, 1e-5 if model else 0)


main()
done()
# MIT licence: see LICENSE.
