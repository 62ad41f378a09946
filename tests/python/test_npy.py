# test_npy.py - NumPy reads the npy and npz files that fl writes, and fl those of NumPy, in every form that NumPy writes
import os
import subprocess
import sys
import tempfile
import zipfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check

program = os.path.join(check.BUILD, "tests", "test_formats")


def copy(source, target, max_bytes=0):
    """The error of `test_formats copy`, "" if there was none."""
    run = subprocess.run([program, "copy", source, target, str(max_bytes)], stdout=subprocess.PIPE, universal_newlines=True)
    return "" if run.returncode == 0 else run.stdout.strip() or "died"


def same(np, a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def arrays(np):
    dtypes = ["f2", "f4", "f8", "?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8"]
    for shape in [(), (0,), (5,), (2, 3), (3, 0, 2), (2, 3, 4), (1, 2, 1, 2, 1, 1, 2, 1)]:
        for dtype in dtypes:
            yield (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 7).astype(dtype)


class Pipe:
    """A file that cannot be gone back in."""

    def __init__(self, f):
        self.f = f

    def write(self, data):
        return self.f.write(data)

    def flush(self):
        self.f.flush()


def main():
    np = check.module("numpy")
    if np is None or not os.path.exists(program):
        return np is None or check.skip(program + " is not built")
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "a.npy"), os.path.join(folder, "b.npy")
        for a in arrays(np):
            for form in [a, np.asfortranarray(a), a.astype(a.dtype.newbyteorder(">"))]:
                for version in [(1, 0), (2, 0), (3, 0)]:
                    with open(source, "wb") as f:
                        np.lib.format.write_array(f, form, version=version)
                    error = copy(source, target)
                    if check.check(not error, f"{form.dtype} {form.shape} {version}: {error}"):
                        check.check(same(np, np.load(target), a.reshape(form.shape)), f"{form.dtype} {form.shape} {version}")
        for a, word in [(np.zeros(2, "c8"), "complex"), (np.array(["a"]), "text"), (np.array([None]), "objects"),
                        (np.zeros(1, [("x", "f4")]), "records"), (np.zeros(1, "M8[s]"), "no dtype")]:
            np.save(source, a, allow_pickle=True)
            check.check(word in copy(source, target), f"{a.dtype} is refused as {word}")

        named = {f"folder/{i}": a for i, a in enumerate(list(arrays(np))[:60])}
        source = os.path.join(folder, "a.npz")
        for save in [np.savez, np.savez_compressed]:
            save(source, **named)
            for end in ["b.npz", "b.deflated.npz"]:
                target = os.path.join(folder, end)
                error = copy(source, target)
                if "without zlib" in error:
                    check.skip("deflated npz: built without zlib")
                    continue
                if not check.check(not error, f"{save.__name__}: {error}"):
                    continue
                with np.load(target) as f:
                    check.check(f.files == list(named), f"names after {save.__name__}, {end}")
                    check.check(all(same(np, f[k], a) for k, a in named.items()), f"{save.__name__}, {end}")
                with zipfile.ZipFile(target) as z:
                    check.check(z.testzip() is None, f"sums of {end}")
        with open(source, "wb") as f:  # sums and sizes behind the data, as in a pipe, and a comment
            with zipfile.ZipFile(Pipe(f), "w", zipfile.ZIP_STORED) as z:
                for k, a in named.items():
                    with z.open(k + ".npy", "w") as member:
                        np.lib.format.write_array(member, a)
                z.comment = b"a comment PK\5\6"
        error = copy(source, target)
        if check.check(not error or "without zlib" in error, f"from a pipe: {error}") and not error:
            with np.load(target) as f:
                check.check(all(same(np, f[k], a) for k, a in named.items()), "from a pipe")
        big = {"a": np.zeros((1000, 1000), "f4"), "b": np.arange(1000.0)}  # a ratio of 1000 : 1
        np.savez_compressed(source, **big)
        error = copy(source, target)
        check.check(".max_bytes," in error or "without zlib" in error, f"4 MB from 5 KB by default: {error}")
        error = copy(source, os.path.join(folder, "b.npz"), 5000000)
        check.check(not error or "without zlib" in error, f"zeros: {error}")
        np.savez(source, a=np.zeros(1, "c8"))
        check.check("complex" in copy(source, target), "complex numbers in npz are refused")


main()
check.done()
# MIT licence: see LICENSE.
