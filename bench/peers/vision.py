#!/usr/bin/env python3
"""vision.py - Pillow, torchvision, DataLoader, pycocotools, faster-coco-eval, SciPy, transformers, for bench/vision.c

usage: vision.py FOLDER      of JPEG files in class folders

Reads the name of a job a line and answers with its CPU seconds, those of its workers too; nan where a package is
absent. "load memory" is the peak of the last "load" in MB."""
import contextlib
import io
import resource
import subprocess
import sys

import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

torch.set_num_threads(1)
ready, state = {}, {}
norm = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([.485, .456, .406], [.229, .224, .225])]


def cpu():
    return sum(sum(resource.getrusage(w)[:2]) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def files():
    if "files" not in state:
        data = torchvision.datasets.ImageFolder(sys.argv[1])
        state["files"] = [open(p, "rb").read() for p, _ in data.samples]
        state["images"] = [Image.open(io.BytesIO(b)).convert("RGB") for b in state["files"]]
        state["tensors"] = [torch.from_numpy(np.array(i)).permute(2, 0, 1).contiguous() for i in state["images"]]
    return state["files"]


def decode(how):
    if how == "Pillow": return lambda: [Image.open(io.BytesIO(b)).convert("RGB") for b in files()]
    data = [torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in files()]
    return lambda: [torchvision.io.decode_jpeg(b, mode="RGB") for b in data]


def resize(how):
    files()
    if how == "Pillow": return lambda: [i.resize((224, 224), Image.BILINEAR) for i in state["images"]]
    return lambda: [F.resize(t, [224, 224], antialias=True) for t in state["tensors"]]


TRANSFORMS = {
    "horizontal_flip": F.horizontal_flip, "vertical_flip": F.vertical_flip, "center_crop": lambda t: F.center_crop(t, [200]),
    "pad": lambda t: F.pad(t, [16]), "resize": lambda t: F.resize(t, [160, 160], antialias=True),
    "resize_bicubic": lambda t: F.resize(t, [160, 160], F.InterpolationMode.BICUBIC, antialias=True),
    "resize_up": lambda t: F.resize(t, [400, 400], antialias=True),
    "brightness": lambda t: F.adjust_brightness(t, 1.3), "contrast": lambda t: F.adjust_contrast(t, 1.3),
    "saturation": lambda t: F.adjust_saturation(t, 1.3), "hue": lambda t: F.adjust_hue(t, 0.1),
    "grayscale": lambda t: F.rgb_to_grayscale(t, 3), "sharpness": lambda t: F.adjust_sharpness(t, 1.5),
    "posterize": lambda t: F.posterize(t, 4), "solarize": lambda t: F.solarize(t, 128), "autocontrast": F.autocontrast,
    "equalize": F.equalize, "invert": F.invert, "rotate": lambda t: F.rotate(t, 15),
    "shear": lambda t: F.affine(t, 0, [0, 0], 1, [11.3, 0]), "blur": lambda t: F.gaussian_blur(t, [7, 7], [1, 1])}


def transform(name, size):
    files()
    images = [F.resize(t, [int(n) for n in size.split("x")], antialias=True).contiguous() for t in state["tensors"][:8]]
    return lambda: [TRANSFORMS[name](t) for _ in range(4) for t in images]


def loader(kind, workers="2"):
    def run():
        if kind == "cifar":
            from torchvision.datasets.vision import VisionDataset
            pictures = np.zeros((8192, 32, 32, 3), np.uint8)

            class Pictures(VisionDataset):  # as torchvision's CIFAR10 reads them
                def __getitem__(self, i): return self.transform(Image.fromarray(pictures[i])), 0
                def __len__(self): return len(pictures)
            steps = v2.Compose([v2.RandomCrop(32, 4), v2.RandomHorizontalFlip(), v2.ToImage()] + norm)
            data, batch = Pictures("", transform=steps), 128
        else:
            tensor = kind == "torchvision"
            steps = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
            steps = v2.Compose((steps if tensor else steps + [v2.ToImage()]) + norm)
            read = (lambda p: torchvision.io.decode_image(p, mode="RGB")) if tensor else (lambda p: Image.open(p).convert("RGB"))
            data, batch = torchvision.datasets.ImageFolder(sys.argv[1], steps, loader=read), 16
        for _ in torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=int(workers)): pass
    return run


def tfdata():
    """tf.data with as many calls at once as it likes, in one process: its seconds are those of all threads."""
    import tensorflow as tf
    tf.config.threading.set_intra_op_parallelism_threads(2)
    mean, std = tf.constant([.485, .456, .406]), tf.constant([.229, .224, .225])

    def sample(path):
        data = tf.io.read_file(path)
        shape = tf.io.extract_jpeg_shape(data)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), aspect_ratio_range=(3 / 4, 4 / 3), area_range=(.08, 1.), max_attempts=10,
            use_image_if_no_bounding_boxes=True)
        window = tf.concat([begin[:2], size[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3, dct_method="INTEGER_ACCURATE")
        image = tf.image.random_flip_left_right(tf.image.resize(image, [224, 224], antialias=True))
        return (image / 255 - mean) / std
    paths = [p for p, _ in torchvision.datasets.ImageFolder(sys.argv[1]).samples]

    def run():
        for _ in tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths)).map(sample, 2).batch(16).prefetch(2): pass
    return run


def assign():
    from scipy.optimize import linear_sum_assignment
    costs = [np.random.default_rng(k).integers(0, 1 << 31, (100, 100)).astype(float) for k in range(100)]
    return lambda: [linear_sum_assignment(c) for c in costs]


def ap(who):
    if who == "faster": from faster_coco_eval import COCO, COCOeval_faster as COCOeval
    else:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    truth = COCO("build/bench-vision/truth.json")
    found = truth.loadRes("build/bench-vision/found.json")

    def run():
        e = COCOeval(truth, found, "bbox")
        e.evaluate(), e.accumulate(), e.summarize()
    return run


def load(what=None):
    """In a process of its own, which has a peak of its own; without the imports' seconds."""
    def run():
        if what: return state["peak"]
        code = ("import time,resource;from pycocotools.coco import COCO;t=time.process_time();"
                "COCO('build/bench-vision/large.json');print(time.process_time()-t,resource.getrusage(0).ru_maxrss/1e3)")
        seconds, state["peak"] = map(float, subprocess.check_output([sys.executable, "-c", code]).split()[-2:])
        return seconds
    return run


def detr():
    torch.version.cuda = "13.0"  # torchaudio, which transformers imports, refuses a torch of another CUDA release
    from transformers import DetrConfig, DetrForObjectDetection
    c = DetrConfig(backbone="resnet50", use_timm_backbone=True, use_pretrained_backbone=False, num_labels=91, auxiliary_loss=True)
    m = DetrForObjectDetection(c).train()
    o = torch.optim.AdamW(m.parameters(), lr=1e-4, weight_decay=1e-4)
    i = torch.arange(20) * 1.0
    boxes = torch.stack([.2 + .03 * i, .2 + .03 * i, .1 + .01 * i, .1 + .01 * i], 1)
    x, target = torch.randn(1, 3, 800, 800), [{"class_labels": torch.arange(20), "boxes": boxes}]

    def run():
        o.zero_grad()
        m(pixel_values=x, pixel_mask=torch.ones(1, 800, 800, dtype=torch.long), labels=target).loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)
        o.step()
    return run


JOBS = {"decode": decode, "resize": resize, "loader": loader, "tfdata": tfdata, "assign": assign, "ap": ap, "load": load, "detr": detr}
print("torch", torch.__version__, "torchvision", torchvision.__version__, flush=True)
for line in sys.stdin:
    name, *rest = line.split()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            once = name in ("ap", "load")  # minutes; what they import does not count
            if line not in ready:
                ready[line] = JOBS[name](*rest) if name in JOBS else transform(name, *rest)
                if not once: ready[line]()
            start = cpu()
            answer = ready[line]()
            took = cpu() - start
        print(answer if name == "load" else took, flush=True)
    except Exception as e:  # what is absent, or does not fit, is one line
        print(f"{line.strip()}: {e}", file=sys.stderr)
        print("nan", flush=True)
# MIT licence: see LICENSE.
