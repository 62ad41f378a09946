# test_safetensors.py - the package safetensors reads what fl writes, in one file and in shards, and fl what it writes
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check

program = os.path.join(check.BUILD, "tests", "test_formats")


def copy(source, target):
    """What `test_formats copy` says of it: "" if it went well."""
    run = subprocess.run([program, "copy", source, target], stdout=subprocess.PIPE, universal_newlines=True)
    return "" if run.returncode == 0 else run.stdout.strip() or "died"


def same(a, b):
    return list(a) == list(b) and all(a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and
                                      a[k].tobytes() == b[k].tobytes() for k in a)


def load_shards(load_file, index):
    """As transformers does: every tensor from the file that the index names."""
    folder = os.path.dirname(index)
    with open(index) as f:
        text = json.load(f)
    files = {name: load_file(os.path.join(folder, name)) for name in set(text["weight_map"].values())}
    return {k: files[name][k] for k, name in text["weight_map"].items()}, text, files


def main():
    np, package = check.module("numpy"), check.module("safetensors.numpy")
    if np is None or package is None:
        return
    if not os.path.exists(program):
        return check.skip(program + " is not built")
    tensors = {}
    for dtype in ["f2", "f4", "f8", "?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]:
        for shape in [(), (0,), (5,), (2, 3), (4, 1, 3)]:
            tensors[f"{dtype} \"{len(shape)}\" \u00e9 {shape}"] = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "a.safetensors"), os.path.join(folder, "b.safetensors")
        index = os.path.join(folder, "c.safetensors.index.json")
        package.save_file(tensors, source, metadata={"note": "a \"quoted\" \u00e9\n"})
        tensors = package.load_file(source)  # in the order of the file
        error = copy(source, target)
        if check.check(not error, error):
            loaded = package.load_file(target)
            check.check(sorted(loaded) == sorted(tensors) and same({k: loaded[k] for k in tensors}, tensors), "one file")
        for version in [1, 2]:
            error = copy(source, index)
            if not check.check(not error, error):
                return
            loaded, text, files = load_shards(package.load_file, index)
            check.check(sorted(loaded) == sorted(tensors) and same({k: loaded[k] for k in tensors}, tensors), "shards")
            check.check(len(files) > 3 and sum(map(len, files.values())) == len(tensors), "each tensor in one shard")
            check.check(text["metadata"] == {"total_size": sum(a.nbytes for a in tensors.values()), "format": "pt"}, "metadata")
            check.check(all(f"-v{version}-" in name for name in files), "names of shards")
            check.check(len(os.listdir(folder)) == len(files) + 3, "no old shards")
        # Shards as others write them: names without a version, numbers in the metadata.
        names = list(tensors)
        parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for name, keys in parts.items():
            package.save_file({k: tensors[k] for k in keys}, os.path.join(folder, name))
        index = os.path.join(folder, "model.safetensors.index.json")
        with open(index, "w") as f:
            json.dump({"metadata": {"total_size": 12.5, "more": [{}]},
                       "weight_map": {k: name for name, keys in parts.items() for k in keys}}, f, indent=2, sort_keys=True)
        error = copy(index, target)
        if check.check(not error, error):
            loaded = package.load_file(target)
            check.check(sorted(loaded) == sorted(tensors) and same({k: loaded[k] for k in tensors}, tensors), "others' shards")
        os.remove(os.path.join(folder, "model-00002-of-00002.safetensors"))
        check.check("model-00002-of-00002.safetensors: cannot open" in copy(index, target), "a shard is missing")


main()
check.done()
# MIT licence: see LICENSE.
