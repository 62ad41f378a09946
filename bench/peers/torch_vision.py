"""torch_vision.py - what bench/vision.c measures, by Pillow, torchvision, DataLoader and SciPy

usage: torch_vision.py FOLDER"""
import io
import statistics
import sys
import time

import numpy as np
import torch
import torchvision
from PIL import Image
from scipy.optimize import linear_sum_assignment
from torchvision.transforms import v2

torch.set_num_threads(1)
ROUNDS = 5
data = torchvision.datasets.ImageFolder(sys.argv[1])
files = [open(p, "rb").read() for p, _ in data.samples]
images = [Image.open(io.BytesIO(b)).convert("RGB") for b in files]
tensors = [torch.from_numpy(np.array(i)).permute(2, 0, 1) for i in images]
costs = [np.random.default_rng(k).integers(0, 1 << 31, (100, 100)).astype(float) for k in range(100)]
norm = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([.485, .456, .406], [.229, .224, .225])]


def report(figure, count, f, unit, note):
    took = []
    for _ in range(ROUNDS):
        t = time.perf_counter()
        f()
        took.append(time.perf_counter() - t)
    print(f"{figure}\t{count / statistics.median(took):.1f}\t{unit}\t{note}", flush=True)


def loader(workers, tensor):
    steps = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
    steps = v2.Compose((steps if tensor else steps + [v2.ToImage()]) + norm)
    read = (lambda p: torchvision.io.decode_image(p, mode="RGB")) if tensor else (lambda p: Image.open(p).convert("RGB"))
    set_ = torchvision.datasets.ImageFolder(sys.argv[1], steps, loader=read)
    for _ in torch.utils.data.DataLoader(set_, 16, num_workers=workers): pass


n = len(files)
report("decode", n, lambda: [Image.open(io.BytesIO(b)).convert("RGB") for b in files], "images/s", "Pillow")
report("resize 224", n, lambda: [i.resize((224, 224), Image.BILINEAR) for i in images], "images/s", "Pillow")
report("resize 224", n, lambda: [v2.functional.resize(t, [224, 224], antialias=True) for t in tensors], "images/s", "torch u8")
for w in (1, 2):
    report("training batches", n, lambda: loader(w, False), "images/s", f"DataLoader, Pillow, {w} workers")
    report("training batches", n, lambda: loader(w, True), "images/s", f"DataLoader, torchvision, {w} workers")
report("assignment 100 x 100", 100, lambda: [linear_sum_assignment(c) for c in costs], "1/s", "SciPy")
