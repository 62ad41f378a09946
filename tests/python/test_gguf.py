# test_gguf.py - blocks of GGUF files to f32 and back, as the package gguf has them, bit for bit
import os
import sys
import tempfile

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), "tests"]
import check


def compare(fl, path, types, made):
    """What fl_cast makes of blocks, and of numbers, beside what the file says."""
    f = fl.text_open_gguf(path)
    for name in types:
        got = fl.cast(fl.data_read(f, name), "f32").numpy()
        want = fl.data_read(f, name + ".f32").numpy()
        check.check(got.shape == want.shape and got.tobytes() == want.tobytes(), f"{name} in f32")
    for name in made:
        want = fl.data_read(f, name + ".made")
        got = fl.cast(fl.cast(fl.data_read(f, "made"), want.dtype), "f32")
        same = fl.eq(got, fl.cast(want, "f32")).numpy()
        check.check(same.all(), f"{name} of f32")


def written(fl, np, package, path):
    """A model that fl saves, read by the package: keys, types, and numbers as fl reads them."""
    m = fl.text_lm(40, layers=2, dim=256, heads=4, hidden=512, place=fl.constant("FL_LM_ROTARY"), rms=True,
                   gated=True, no_bias=True, untied=True, eos=[3])
    for dtype, kind in [(None, "F32"), ("f16", "F16"), ("q8", "Q8_0"), ("q4", "Q4_0"), ("q4_k", "Q4_K"),
                        ("q6_k", "Q6_K")]:
        fl.text_save(m, path, **{"dtype": dtype} if dtype else {})
        theirs, ours = package.GGUFReader(path), fl.text_open_gguf(path)
        for t in theirs.tensors:
            want = "F32" if len(t.shape) == 1 else kind
            numbers = fl.cast(fl.data_read(ours, t.name), "f32").numpy()
            got = package.quants.dequantize(t.data, t.tensor_type)
            check.check(t.tensor_type.name == want and np.array_equal(got.astype(np.float32), numbers),
                        f"{t.name} as {kind}, got {t.tensor_type.name}")
        check.check(theirs.fields["llama.block_count"].contents() == 2 and
                    theirs.fields["general.architecture"].contents() == "llama" and
                    theirs.fields["tokenizer.ggml.eos_token_id"].contents() == 3, "keys")
        check.check(len(theirs.tensors) == fl.data_count(ours) == 21, "tensors")


def main():
    np, package = check.module("numpy"), check.module("gguf")
    fl = check.load_fl() if np is not None and package is not None else None
    if fl is None:
        return
    import gguf_blocks
    with tempfile.TemporaryDirectory() as folder, np.errstate(over="ignore"):
        path = os.path.join(folder, "blocks.gguf")
        gguf_blocks.write(path, gguf_blocks.HALVES, 16, 64, np.random.default_rng(7))
        compare(fl, path, gguf_blocks.HALVES, gguf_blocks.MADE)
        written(fl, np, package, path)


main()
check.done()
# MIT licence: see LICENSE.
