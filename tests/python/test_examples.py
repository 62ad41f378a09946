# test_examples.py - what users of the vision programs see: names and numbers of classes, the images of a test, a rate
# that falls within --minutes
import json
import os
import re
import subprocess
import tempfile
import time

from check import BUILD, check, done, load_fl, skip

fl = load_fl()


def run(folder, program, *arguments):
    command = [os.path.abspath(f"{BUILD}/examples/{program}"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300)


def write_image(path, side, seed):
    pixels = bytes((seed * 7919 + i * i * (seed + 3)) % 251 for i in range(3 * side * side))
    with open(path, "wb") as f:
        f.write(b"P6 %d %d 255\n" % (side, side) + pixels)


def check_predict(folder):
    write_image(f"{folder}/x.ppm", 40, 1)
    fl.vision_model("mobilenet_v2", classes=4).save(f"{folder}/w.safetensors")
    files = ("--model", "mobilenet_v2", "--weights", "w.safetensors", "--image", "x.ppm", "--size", 32)
    out = run(folder, "vision_predict", *files)
    rows = [line.split("\t") for line in out.stdout.splitlines()]
    check(out.returncode == 0 and sorted(r[0] for r in rows) == ["0", "1", "2", "3"], f"four classes: {out}")
    check(abs(sum(float(r[1]) for r in rows) - 1) < 1e-4 and all(r[2] == f"class {r[0]}" for r in rows), f"{rows}")
    with open(f"{folder}/w.txt", "w") as f:
        f.write("n01\tbird\nn02\tcat\nn03\tdog, hound\nfrog\n")
    rows = [line.split("\t") for line in run(folder, "vision_predict", *files).stdout.splitlines()]
    names = ["bird", "cat", "dog, hound", "frog"]
    check([r[2] for r in rows] == [names[int(r[0])] for r in rows] and len(rows) == 4, f"names beside the weights: {rows}")
    with open(f"{folder}/names", "w") as f:
        f.write("a\nb\n")
    rows = run(folder, "vision_predict", *files, "--labels", "names").stdout
    check(all(f"\t{name}\n" in rows for name in ("a", "b", "class 2", "class 3")), f"--labels: {rows}")
    out = run(folder, "vision_predict", "--model", "resnet18", *files[2:])
    check(out.returncode == 1 and "fc.weight" in out.stderr, f"another network's weights: {out}")


def check_detect(folder):
    for part, n, categories in (("train", 3, (1, 2)), ("val", 2, (2,))):
        os.makedirs(f"{folder}/{part}")
        os.makedirs(f"{folder}/annotations", exist_ok=True)
        for i in range(n):
            write_image(f"{folder}/{part}/{i}.ppm", 32, i)
        images = [dict(id=i, width=32, height=32, file_name=f"{i}.ppm") for i in range(n)]
        objects = [dict(id=i, image_id=i, category_id=categories[i % len(categories)], bbox=[4, 4, 12, 12], area=144, iscrowd=0)
                   for i in range(n)]
        with open(f"{folder}/annotations/instances_{part}.json", "w") as f:
            json.dump(dict(images=images, annotations=objects, categories=[dict(id=1, name="disc"), dict(id=2, name="ring")]), f)
    out = run(folder, "vision_detect", "--data", ".", "--steps", 2, "--images", 2, "--size", 32, "--batch", 2)
    lines = out.stdout.splitlines() or [""]
    check(out.returncode == 0 and re.match(r"val, 2 images: AP [01]\.", lines[-1]), f"the test is on val: {out}")
    check(any(re.match(r"train, 2 images: AP [01]\.", line) for line in lines), "that of the training images has its name")
    check("AP ring\t" in out.stdout and "AP disc" not in out.stdout and "-1.0" not in out.stdout, "no rows of -1")
    with open(f"{folder}/detections.html") as f:
        check("val, 2 images" in f.read(), "detections.html says which images")


def check_minutes(folder):
    begin = time.monotonic()
    out = run(folder, "vision_cifar", "--minutes", 0.05, "--width", 1, "--epochs", 1000)
    rates = [float(r) for r in re.findall(r"^Epoch .*, rate ([0-9.e-]+)", out.stdout, flags=re.M)]
    check(out.returncode == 0 and rates and rates[-1] < 1e-3, f"the rate falls within the minutes: {rates[-3:]} {out.stderr}")
    check(time.monotonic() - begin < 60, "and training ends with them")
    for name, curve in (("cifar.svg", "loss"), ("cifar_accuracy.svg", "accuracy")):
        with open(f"{folder}/{name}") as f:
            text = f.read()
        check(curve in text and ("loss" in text) != ("accuracy" in text), f"{name} has one curve")


if fl:
    for program, checks in dict(vision_predict=check_predict, vision_detect=check_detect, vision_cifar=check_minutes).items():
        if os.path.exists(f"{BUILD}/examples/{program}"):
            with tempfile.TemporaryDirectory() as folder:
                checks(folder)
        else:
            skip(f"{program} is not built: make examples")
done()
# MIT licence: see LICENSE.
