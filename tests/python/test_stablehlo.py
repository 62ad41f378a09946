# test_stablehlo.py - steps that fl wrote as StableHLO, run by XLA on JAX's CPU client, beside fl's own results
#
# The programs test_write and random_modes write modules, with the memory of inputs and state before two steps and of
# results after them (tests/written.h). Ops alone on awkward views and random programs must agree within 1e-5 of the
# largest, models within 3e-5 or 1e-5; integers, truth values and the generator in every bit. FULL in the environment
# runs all models, else four; PROGRAMS in it 500 programs, which takes XLA half an hour, else ten. JAX_PYTHON: an
# interpreter that has JAX, which needs a newer NumPy than the other scripts may have.
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
PROGRAMS = [os.path.join(BUILD, "tests", p) for p in ("test_write", "random_modes")]
STEPS = 2
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
        self.dtypes = {"f32": np.float32, "f64": np.float64, "i64": np.int64, "i32": np.int32, "i16": np.int16,
                       "i8": np.int8, "i1": np.bool_, "ui8": np.uint8, "ui16": np.uint16, "ui32": np.uint32,
                       "ui64": np.uint64}

    def run(self, text, arguments, results, values):
        """The results of the steps; values: of the arguments, by name."""
        program = self.backend.compile_and_load(text.encode(), self.devices, self.xla.CompileOptions())
        for _ in range(STEPS):
            got = program.execute([self.jax.device_put(values[name].reshape(s)) for name, _, s in arguments])
            values |= {name: self.np.asarray(y) for (name, _, _), y in zip(results, got)}
        return [values[name] for name, _, _ in results]

    def ports(self, text):
        """Names, dtypes and shapes of arguments and results."""
        signature = re.search(r"@main\((.*)\) -> \((.*)\) \{", text)
        for kind, types in zip(("argument", "result"), signature.groups()):
            names = re.findall(rf"// {kind} \d+: (.*)", text)
            parts = [t.split("x") for t in re.findall(r"tensor<([^>]*)>", types)]
            yield [(n, self.dtypes[p[-1]], tuple(map(int, p[:-1]))) for n, p in zip(names, parts)]


def difference(np, x, y):
    return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, np.abs(x - y)).max(initial=0)


def compare(client, folder, name, near, floor):
    np = client.np
    with open(f"{folder}/{name}.mlir", encoding="utf-8") as f:
        text = f.read()
    arguments, results = client.ports(text)

    def memory(when, what, dtype):
        with open(f"{folder}/{name}-{when}-{what}", "rb") as f:
            return np.frombuffer(f.read(), dtype)

    try:
        got = client.run(text, arguments, results, {n: memory("before", n, d) for n, d, _ in arguments})
    except client.jax.errors.JaxRuntimeError as error:
        return check(False, f"{name}: {error}")
    compared = 0
    for (what, dtype, _), y in zip(results, got):
        if not os.path.exists(f"{folder}/{name}-after-{what}"):
            continue
        want, y, compared = memory("after", what, dtype), y.reshape(-1), compared + 1
        if want.dtype.kind != "f":
            check(np.array_equal(want, y), f"{name}: {what} is equal")
            continue
        with np.errstate(invalid="ignore"):
            off = difference(np, want, y)
            moved = os.path.exists(f"{folder}/{name}-near-{what}")  # inputs by their rounding, and so results
            slack = 8 * difference(np, want, memory("near", what, dtype)) if moved else 0
        finite = np.abs(want[np.isfinite(want)]).max(initial=0)
        check(off <= max(near * finite, floor, slack), f"{name}: {what} is off by {off} of {finite}")
    check(compared > 0, f"{name}: results")


def main():
    jax, np = module("jax"), module("numpy")
    if not jax or not np:
        return
    for program in PROGRAMS:
        if not os.path.exists(program):
            return skip(f"test_stablehlo.py without {program}")
    client = Client(jax, np)
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, STABLEHLO=folder)
        for what in ["programs_as_stablehlo", "ops_alone"] + MODELS:
            program = PROGRAMS[what.startswith("programs")]
            out = subprocess.run([program, what], env=environment, capture_output=True, text=True)
            check(out.returncode == 0, f"{what} is written: {out.stdout[-500:]}{out.stderr[-500:]}")
        for path in sorted(glob.glob(f"{folder}/*.mlir")):
            name = os.path.basename(path)[:-5]
            compare(client, folder, name, 3e-5 if name in MODELS else 1e-5, 0 if name.startswith("op_") else 1e-5)


main()
done()
# MIT licence: see LICENSE.
