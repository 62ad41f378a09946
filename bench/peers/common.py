"""What the peers' model programs share: arguments, presets, timing and the TSV line of bench/README.md.

Import it before the framework: thread pools and malloc read the environment when they are loaded, so a
variant that needs another environment starts the program anew with it."""
import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import time

# name: (batch, size) of the three presets; size is the side of an image, tokens or frames. A tiny preset
# also has fewer layers: it is for trying the programs out, and no measure of ours.
PRESETS = {
    "alexnet": {"cpu": (32, 224), "paper": (32, 224), "tiny": (1, 224)},
    "vgg16": {"cpu": (4, 224), "paper": (32, 224), "tiny": (1, 224)},
    "resnet50": {"cpu": (4, 224), "paper": (32, 224), "tiny": (1, 64)},
    "bert": {"cpu": (1, 128), "paper": (8, 128), "tiny": (1, 16)},
    "asr": {"cpu": (1, 600), "paper": (10, 1500), "tiny": (1, 60)},
    "vit": {"cpu": (4, 224), "paper": (128, 224), "tiny": (1, 224)},
    "resnet34": {"cpu": (4, 224), "paper": (192, 224), "tiny": (1, 64)},
    "lm": {"cpu": (1, 256), "paper": (1, 2048), "tiny": (1, 16)},
    "detr": {"cpu": (1, 800), "paper": (12, 800), "tiny": (1, 128)},
    "capsule": {"cpu": (32, 28), "paper": (128, 28), "tiny": (2, 28)},
    "gpt_small": {"cpu": (24, 128), "tiny": (1, 16)},
    "unet": {"cpu": (8, 64), "tiny": (1, 16)},
    "dcgan": {"cpu": (8, 64), "tiny": (2, 64)},
    "wgan": {"cpu": (8, 64), "tiny": (2, 64)},
    "vit_tiny": {"cpu": (32, 32), "tiny": (1, 32)},
    "lstm_lm": {"cpu": (20, 35), "tiny": (1, 16)},
}
PARAMETERS = {  # of the presets that are not tiny
    "alexnet": 61100840, "vgg16": 138357544, "resnet50": 25557032, "bert": 406828032, "asr": 262946088,
    "vit": 86567656, "resnet34": 21797672, "lm": 256996864, "capsule": 6804224,
    "gpt_small": 2743680, "unet": 472899, "dcgan": 6342340, "wgan": 6341444, "vit_tiny": 5553832, "lstm_lm": 6709008,
}
CLASSES, WORDS, PIECES, MELS = 1000, 50265, 9000, 80
LAYER_DROP = 0.4

# malloc that keeps what it has and asks for huge pages, as a training program would want it
HUGE = ("glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=68719476736:"
        "glibc.malloc.top_pad=67108864")
ONE_POOL = "/usr/lib/x86_64-linux-gnu/openblas-openmp"
HERE = os.path.dirname(os.path.abspath(__file__))
MKL512 = os.path.join(HERE, "..", "..", "build", "mkl512.so")
ENVIRONMENT = {  # by part of a variant
    "huge": {"GLIBC_TUNABLES": HUGE},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "onepool": {"LD_LIBRARY_PATH": ONE_POOL},
    "mkl512": {"LD_PRELOAD": MKL512},
}


def has_mkl512():
    """Whether mkl512.c helps MKL here, which then is compiled: not where Intel made the processor, or has no AVX-512."""
    with open("/proc/cpuinfo") as f:
        processor = f.read()
    if "GenuineIntel" in processor or "avx512f" not in processor:
        return False
    os.makedirs(os.path.dirname(MKL512), exist_ok=True)
    command = ["cc", "-shared", "-fPIC", "-o", MKL512, os.path.join(HERE, "mkl512.c")]
    return os.path.exists(MKL512) or subprocess.run(command).returncode == 0


def arguments(description, models, variant="eager"):
    p = argparse.ArgumentParser(description=description)
    p.add_argument("model", choices=models)
    p.add_argument("--list", action="store_true", help="print the variants for this model, best bets first")
    p.add_argument("--variant", default=variant, help="parts joined by +, see --list")
    p.add_argument("--dtype", default="f32", choices=["f32", "tf32", "bf16"])
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    p.add_argument("--preset", default="cpu", choices=["cpu", "paper", "tiny"])
    p.add_argument("--batch", type=int, default=0)
    p.add_argument("--size", type=int, default=0, help="side of the image, tokens or frames")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--loading", default="", help="a folder of classes: its images through a DataLoader of two workers")
    p.add_argument("--warmup", type=int, default=2, help="iterations before the clock starts")
    p.add_argument("--iterations", type=int, default=5)
    p.add_argument("--mode", default="train", choices=["train", "inference"])
    p.add_argument("--weights", default="", help="for inference: what our model wrote by --save")
    p.add_argument("--export", default="", help="write the network in evaluation mode as ONNX here, and stop")
    p.add_argument("--peak", type=float, default=0, help="FMA peak in GFLOP/s, for the column in per cent")
    p.add_argument("--gflop", type=float, default=0, help="of an iteration, for a framework that cannot tell")
    a = p.parse_args()
    if a.preset not in PRESETS[a.model]:
        sys.exit(f"{a.model} has no preset {a.preset}")
    batch, size = PRESETS[a.model][a.preset]
    a.batch, a.size = a.batch or batch, a.size or size
    a.tiny = a.preset == "tiny"
    a.parts = a.variant.split("+")
    if not a.list:
        use_environment(a)
    return a


def use_environment(a):
    """Threads and the variant's environment; the program starts anew where that needs it."""
    wanted = {k: str(a.threads) for k in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")}
    wanted.update(TF_CPP_MIN_LOG_LEVEL="3")
    if a.device == "cpu":
        wanted.update(CUDA_VISIBLE_DEVICES="")
    if "mkl512" in a.parts and not has_mkl512():
        sys.exit("mkl512 is for AVX-512 processors that are not Intel's, and wants a C compiler")
    for part in a.parts:
        wanted.update(ENVIRONMENT.get(part, {}))
    unwanted = [k for k in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if k in os.environ]
    if unwanted or any(os.environ.get(k) != v for k, v in wanted.items()):
        env = {k: v for k, v in os.environ.items() if k not in unwanted}
        os.execve(sys.executable, [sys.executable] + sys.argv, dict(env, **wanted))


def left_out(layers):
    """Layers that layer drop leaves out, its mean: the same in all iterations, so that they cost the same."""
    return random.Random(1).sample(range(layers), round(layers * LAYER_DROP))


def max_rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(a, iteration):
    """Seconds: the median and the minimum of the whole, medians of forward, backward and step, and the first.

    iteration() does one and returns the seconds of its forward, backward and step."""
    whole, parts = [], []
    for _ in range(a.warmup + a.iterations):
        start = time.perf_counter()
        parts.append(iteration())
        whole.append(time.perf_counter() - start)
    first, whole, parts = whole[0], whole[a.warmup:], parts[a.warmup:]
    median = [statistics.median(p[i] for p in parts) for i in range(3)]
    return [statistics.median(whole), min(whole)] + median + [first]


def check_parameters(a, count):
    if a.tiny or a.model not in PARAMETERS:
        return
    if count != PARAMETERS[a.model]:
        sys.exit(f"{a.model}: {count} parameters instead of {PARAMETERS[a.model]}")


def line(a, framework, seconds, flops, memory, rss, difference=None):
    """flops are of one iteration; memory, and difference from our result, None where nothing can tell."""
    rate = flops / seconds[0] * 1e-9
    fields = [a.model, f"{framework}/{a.variant}", a.batch, a.device, a.dtype, a.threads, a.mode]
    fields += [f"{s:.6g}" for s in seconds[:5]]
    fields += [f"{rate:.4g}", f"{100 * rate / a.peak:.3g}" if a.peak else "-"]
    fields += ["-" if memory is None else int(memory), rss, "-", f"{flops * 1e-9:.5g}", "-", f"{seconds[5]:.6g}"]
    fields.append("-" if difference is None else f"{difference:.3g}")
    print("\t".join(str(f) for f in fields), flush=True)
# MIT licence: see LICENSE.
