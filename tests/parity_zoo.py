#!/usr/bin/python3
"""parity_zoo.py - networks beside torchvision's, timm's and Hugging Face's

usage: parity_zoo.py PROGRAM [FILTER]     PROGRAM: build/<variant>/examples/vision_predict

Each network gets random weights (norm statistics too) there, is saved, loaded here, and run on a random image. Prints the
largest difference of the logits over the largest logit; more than 1e-4 is a failure."""
import importlib.machinery
import os
import subprocess
import sys
import tempfile
import types

import torch
from safetensors.torch import load_file, save_file

try:
    import torchvision
except ImportError as e:
    print("skipped:", e)
    sys.exit(0)

torch.set_num_threads(2)
fake = types.ModuleType("torchaudio")  # transformers wants it only for sound
fake.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
sys.modules.setdefault("torchaudio", fake)


def tv(name, size, **o):
    return "torchvision", name, size, lambda: getattr(torchvision.models, name)(**o), 0


def timm_of(name, theirs, size=224):
    def make():
        import timm
        return timm.create_model(theirs)
    return "timm", name, size, make, 0


def hf_vit():
    from transformers import ViTConfig, ViTForImageClassification
    return ViTForImageClassification(ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768, num_labels=1000))


class Renamed(torch.nn.Module):
    """hf_vit with the names of files of before transformers 5."""
    NAMES = (("vit.layers", "vit.encoder.layer"), ("attention.o_proj", "attention.output.dense"), ("q_proj", "attention.query"),
             ("k_proj", "attention.key"), ("v_proj", "attention.value"), ("mlp.fc1", "intermediate.dense"), ("mlp.fc2", "output.dense"))

    def __init__(self):
        super().__init__()
        self.net = hf_vit()

    def forward(self, x):
        return self.net(x)

    def state_dict(self):
        d = self.net.state_dict()
        for a, b in self.NAMES: d = {k.replace(a, b): v for k, v in d.items()}
        return d


def hf_detr(old=False):
    from transformers import DetrConfig, DetrForObjectDetection
    net = DetrForObjectDetection(DetrConfig(backbone="resnet50", use_timm_backbone=True, use_pretrained_backbone=False, num_labels=91))
    assert net.class_labels_classifier.out_features == 92
    return net


def hf_resnet():
    from transformers import ResNetConfig, ResNetForImageClassification
    return ResNetForImageClassification(ResNetConfig(num_labels=1000))


CASES = [tv("alexnet", 95), tv("vgg11", 64), tv("vgg13_bn", 64), tv("vgg16", 32), tv("vgg19_bn", 32), tv("resnet18", 64),
         tv("resnet34", 75), tv("resnet50", 64), tv("resnet101", 64), tv("resnet152", 64), tv("mobilenet_v2", 64),
         tv("vit_b_16", 224), tv("vit_b_32", 224), tv("vit_l_16", 224), timm_of("vit_ti_16", "vit_tiny_patch16_224"),
         timm_of("deit_s", "deit_small_patch16_224"), timm_of("resnet50", "resnet50", 64),
         ("hf", "vit_ti_16", 224, hf_vit, 1), ("hf", "resnet50", 64, hf_resnet, 1), ("hf", "vit_ti_16", 224, Renamed, 1),
         ("hf", "detr_resnet50", 96, hf_detr, 2)]
failed = 0
for names, name, size, make, hf in CASES:
    if len(sys.argv) > 2 and sys.argv[2] not in names + ":" + name: continue
    torch.manual_seed(1)
    try: net = make().eval()
    except Exception as e:
        print(f"skipped: {names}:{name}: {e}")
        continue
    with torch.no_grad():
        for key, b in net.named_buffers():
            if key.endswith("running_mean"): b.normal_(0, .1)
            elif key.endswith("running_var"): b.uniform_(.5, 1.5)
        for key, p in net.named_parameters():
            if float(p.abs().max()) == 0: p.normal_(0, .02)  # torchvision's ViT has a head of zeros
            if p.dim() == 1: p.add_(torch.randn_like(p) * .05)
            elif "pos" in key or "token" in key: p.normal_(0, .02)
        x, mask = torch.randn(2 if hf == 2 else 1, 3, size, size * 2 if hf == 2 else size), None
        if hf == 2:
            mask = torch.zeros(2, size, 2 * size, dtype=torch.bool)
            mask[1, 70:], mask[1, :, 130:] = True, True  # padding
            x[mask[:, None].expand_as(x)] = 0
        want = net(x, pixel_mask=(~mask).long()) if hf == 2 else net(x)
        boxes = want.pred_boxes if hf == 2 else None
        want = want.logits if hf else want
        with tempfile.TemporaryDirectory() as d:
            save_file({k: v.contiguous() for k, v in net.state_dict().items()}, d + "/w.safetensors")
            save_file({"x": x} if mask is None else {"x": x, "mask": mask.to(torch.uint8)}, d + "/x.safetensors")
            p = subprocess.run([sys.argv[1], "--model", name, "--weights", d + "/w.safetensors", "--names", names, "--input",
                                d + "/x.safetensors", "--out", d + "/y.safetensors"] + (["--size", "224"] if size == 224 else []),
                               capture_output=True, text=True)
            if p.returncode:
                print(f"{names}:{name}\tFAILED: {p.stderr.strip()[-300:]}")
                failed += 1
                continue
            y = load_file(d + "/y.safetensors")
            far = float((y["y" if boxes is None else "logits"] - want).abs().max() / want.abs().max())
            if boxes is not None: far = max(far, float((y["boxes"] - boxes).abs().max() / boxes.abs().max()))
            failed += not far <= 1e-4
            print(f"{names}:{name}\t{far:.2g}{'' if far <= 1e-4 else chr(9) + 'FAILED'}", flush=True)
sys.exit(failed > 0)
# MIT licence: see LICENSE.
