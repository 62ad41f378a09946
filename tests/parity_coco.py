#!/usr/bin/python3
"""parity_coco.py - average precision and masks beside pycocotools

usage: parity_coco.py PROGRAM [N]    PROGRAM: build/<variant>/examples/vision_eval; N generated sets

Sets have crowds, ties, empty images and classes, areas at the edges, more than 100 detections. All arrays are compared.
Prints the number of sets and the largest difference."""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

try:
    from pycocotools import mask as M
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval
except ImportError as e:
    print("skipped:", e)
    sys.exit(0)

n = int(sys.argv[2]) if len(sys.argv) > 2 else 300
worst, tables = 0.0, 0


def box(r, w, h):
    x, y = r.uniform(0, w * .8), r.uniform(0, h * .8)
    return [round(float(v), 2) for v in (x, y, r.uniform(1, w - x), r.uniform(1, h - y))]


def shape(r, w, h, crowd):
    if crowd or r.random() < .3:
        m = np.zeros((h, w), np.uint8, order="F")
        y, x = int(r.integers(0, h - 1)), int(r.integers(0, w - 1))
        m[y:y + int(r.integers(1, h)), x:x + int(r.integers(1, w))] = 1
        m ^= (r.random((h, w)) < .02).astype(np.uint8)
        rle = M.encode(m)
        if crowd:
            runs, last, k = [], 0, 0
            for v in m.flatten("F"):
                if v != last: runs.append(k); k, last = 0, v
                k += 1
            return {"size": [h, w], "counts": runs + [k]}
        return {"size": [h, w], "counts": rle["counts"].decode()}
    polygons = []
    for _ in range(int(r.integers(1, 3))):
        c, k = r.uniform(0, 1, 2) * (w, h), int(r.integers(3, 9))
        a = np.sort(r.uniform(0, 6.283, k))
        p = c + np.stack([np.cos(a), np.sin(a)], 1) * r.uniform(1, min(w, h) / 2, (k, 1))
        polygons.append([round(float(v), 2) for v in p.flatten()])
    return polygons


with tempfile.TemporaryDirectory() as d:
    for seed in range(n):
        r = np.random.default_rng(seed)
        masks = seed % 3 == 2
        images = [{"id": int(i), "width": int(r.integers(20, 200)), "height": int(r.integers(20, 200)), "file_name": f"{i}.jpg"}
                  for i in r.permutation(40)[:int(r.integers(1, 12))]]
        classes = [{"id": int(k), "name": f"class {k}"} for k in r.permutation(30)[:int(r.integers(1, 6))]]
        truth, found = [], []
        for m in images:
            if r.random() < .15: continue
            w, h = m["width"], m["height"]
            for _ in range(int(r.integers(0, 8))):
                b, crowd = box(r, w, h), bool(r.random() < .12)
                area = float(r.choice([1024, 9216, 1024.5, b[2] * b[3], b[2] * b[3]]))
                truth.append(dict(id=len(truth) + 1, image_id=m["id"], category_id=int(r.choice(classes)["id"]), bbox=b,
                                  area=area, iscrowd=int(crowd), segmentation=shape(r, w, h, crowd)))
            for _ in range(int(r.choice([0, 3, 10, 130 if seed % 5 == 0 else 10]))):
                same = [t for t in truth if t["image_id"] == m["id"]]
                t = same[int(r.integers(len(same)))] if same and r.random() < .7 else None
                b = [float(v + r.normal(0, 2)) for v in t["bbox"]] if t else box(r, w, h)
                b[2:] = [max(v, .5) for v in b[2:]]
                if r.random() < .05: b[2 + int(r.integers(2))] *= -1  # of a detector without limits
                e = dict(image_id=m["id"], category_id=t["category_id"] if t and r.random() < .9 else int(r.choice(classes)["id"]),
                         score=float(round(r.random(), int(r.choice([1, 2, 6])))))
                if masks:
                    s = t["segmentation"] if t and r.random() < .4 else shape(r, w, h, False)
                    if isinstance(s, list): s = M.merge(M.frPyObjects(s, h, w))
                    elif isinstance(s["counts"], list): s = M.frPyObjects(s, h, w)
                    c = s["counts"]
                    e["segmentation"] = {"size": [h, w], "counts": c.decode() if isinstance(c, bytes) else c}
                else: e["bbox"] = b
                found.append(e)
        if not found: continue
        files = [d + "/gt", d + "/dt"]
        for f, v in zip(files, (dict(images=images, annotations=truth, categories=classes), found)):
            with open(f, "w") as o: json.dump(v, o)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            gt = COCO(files[0])
            ev = COCOeval(gt, gt.loadRes(files[1]), "segm" if masks else "bbox")
            ev.evaluate(), ev.accumulate()
        with contextlib.redirect_stdout(io.StringIO()) as said: ev.summarize()
        p = subprocess.run([sys.argv[1], "--gt", files[0], "--dt", files[1], "--type", "segm" if masks else "bbox", "--arrays", d + "/out"],
                           capture_output=True, text=True)
        if p.returncode: sys.exit(f"seed {seed}: {p.stderr}")
        got, k = np.fromfile(d + "/out"), len(classes)
        cells = 10 * k * 4 * 3
        precision, score, recall = np.split(got, [cells * 101, cells * 202])
        for name, mine in (("precision", precision), ("scores", score), ("recall", recall)):
            diff = float(np.abs(mine - ev.eval[name].flatten()).max())
            worst = max(worst, diff)
            if diff > 1e-9: print("seed", seed, "masks" if masks else "boxes", name, diff)
        if "".join(p.stdout.splitlines(True)[:12]).split() != said.getvalue().split(): print("seed", seed, "the twelve lines differ")
        tables += 1
print(f"{tables} sets, largest difference {worst:.3g}")
sys.exit(worst > 1e-9)
# MIT licence: see LICENSE.
