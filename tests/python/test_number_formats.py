# test_number_formats.py - dtypes of examples/research/formats.h: ml_dtypes and posits, bit for bit
import os
import subprocess
import sys
import tempfile
from fractions import Fraction

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__))]
import check

PROGRAM = os.path.join(check.BUILD, "examples/research/formats")


def numbers(np, kinds):
    """f32: all numbers of all formats, the half-way points between neighbours and what is just beside them,
    powers of two and their neighbours, random bits, infinities and NaN; a multiple of 32 in random order."""
    parts = [np.array([0.0, np.inf, np.nan, 3.4028235e38, 1e-45], np.float32)]
    for kind in kinds + ["posit"]:
        some = np.array([posit_exact(c, es) for es in (1, 2) for c in range(1, 1 << 15)], float) \
            if kind == "posit" else all_codes(np, kind)[1].astype(float)
        some = np.unique(np.abs(some[np.isfinite(some)]))
        middle = ((some[1:] + some[:-1]) / 2).astype(np.float32)
        some = np.concatenate([some, middle, 1.1 * some[-1:]]).astype(np.float32)
        parts += [some, np.nextafter(some, np.float32(np.inf)), np.nextafter(some, np.float32(0))]
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    rng = np.random.default_rng(1)
    parts += [powers, np.nextafter(powers, np.float32(0)), np.float32(1.5) * powers[:-1]]
    parts.append(rng.integers(0, 1 << 32, 200000, np.uint32).view(np.float32))
    parts.append((rng.normal(size=200000) * np.exp(8 * rng.normal(size=200000))).astype(np.float32))
    x = np.concatenate(parts)
    x = rng.permutation(np.concatenate([x, -x]))
    plain = rng.normal(size=320000) * np.repeat(np.exp(20 * rng.normal(size=10000)), 32)  # blocks
    return np.concatenate([x[:len(x) // 32 * 32], plain.astype(np.float32)])


def all_codes(np, kind):
    import ml_dtypes
    dtype = np.dtype(getattr(ml_dtypes, kind))
    codes = np.arange(1 << (8 * dtype.itemsize), dtype=np.uint8 if dtype.itemsize == 1 else np.uint16)
    codes = codes[:1 << ml_dtypes.finfo(dtype).bits]
    return codes, codes.view(dtype).astype(np.float32)


def blocks(np, x, kind):
    """Bytes of MX blocks by ml_dtypes: a scale with the exponent of the largest number, elements, clamped. A
    block with an infinity or NaN is NaN, which the specification leaves open."""
    import ml_dtypes
    dtype = np.dtype(getattr(ml_dtypes, kind))
    info = ml_dtypes.finfo(dtype)
    top = float(info.max)
    x = x.reshape(-1, 32)
    most = np.abs(x).max(1).astype(np.float64)
    good = np.isfinite(most)
    e = np.frexp(np.where(good & (most > 0), most, 1))[1] - 1 - (np.frexp(top)[1] - 1)
    e = np.where(most > 0, np.maximum(e, -127), -127)
    scale = np.where(good, np.ldexp(1.0, e), np.nan).astype(np.float32).astype(ml_dtypes.float8_e8m0fnu)
    scaled = np.where(good[:, None], x, 0).astype(np.float64) / np.ldexp(1.0, e)[:, None]
    codes = np.clip(scaled, -top, top).astype(np.float32).astype(dtype).view(np.uint8)
    bits = (codes[:, :, None] >> np.arange(info.bits)) & 1
    packed = np.packbits(bits.reshape(len(x), -1).astype(np.uint8), axis=1, bitorder="little")
    with np.errstate(invalid="ignore"):
        values = codes.view(dtype).astype(np.float32) * scale.astype(np.float32)[:, None]
    return np.concatenate([scale.view(np.uint8)[:, None], packed], 1), values


def posit_exact(code, es, bits=16):
    """The Fraction of a positive code, by the definition of the standard."""
    text = format(code, f"0{bits - 1}b")
    run = len(text) - len(text.lstrip(text[0]))
    k = run - 1 if text[0] == "1" else -run
    rest = text[run + 1:] + "0" * 16
    part = Fraction(int(rest[es:], 2), 2 ** len(rest[es:]))
    return Fraction(2) ** (k * 2 ** es + int(rest[:es], 2)) * (1 + part)


def posits(np, x, es):
    """Codes of x: the nearest of 16 bits, where the limit between two codes is the posit of 17 bits between
    them, and of two the even one; never 0 or NaR for a number."""
    limits = np.array([float(posit_exact(2 * c + 1, es, 17)) for c in range(1, 0x7fff)])  # exact in f64
    size = np.abs(x).astype(np.float64)
    code = np.searchsorted(limits, size, "left") + 1
    tie = (code < 0x7fff) & (limits[np.minimum(code, 0x7ffe) - 1] == size)
    code = np.where(tie & (code % 2 == 1), code + 1, code)
    code = np.where(size == 0, 0, np.where(x < 0, 0x10000 - code, code))
    return np.where(np.isfinite(x), code, 0x8000).astype(np.uint16)


def compare(np, x, path, lines):
    import ml_dtypes
    data, at = open(path, "rb").read(), 0

    def take(count, dtype):
        nonlocal at
        at += count * np.dtype(dtype).itemsize
        return np.frombuffer(data, dtype, count, at - count * np.dtype(dtype).itemsize)

    mx = {"mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2", "mxfp6_e2m3": "float6_e2m3fn",
          "mxfp6_e3m2": "float6_e3m2fn", "mxfp4_e2m1": "float4_e2m1fn"}
    for line in lines:
        name, block, size = line.split()[0], int(line.split()[1]), int(line.split()[2])
        if block > 1:
            got, values = take(len(x) // block * size, np.uint8).reshape(-1, size), take(len(x), np.float32)
            want, numbers_of = blocks(np, x, mx[name])
            bad = got[:, 0] == 255
            check.check(np.array_equal(got[~bad], want[~bad]) and np.array_equal(bad, want[:, 0] == 255),
                        f"blocks of {name}")
            check.check(values.reshape(-1, 32)[~bad].tobytes() == numbers_of[~bad].tobytes() and
                        np.isnan(values.reshape(-1, 32)[bad]).all(), f"{name} in f32")
            continue
        width = np.uint8 if size == 1 else np.uint16
        codes, values = take(len(x), width), take(1 << 8 * size, np.float32)
        if name.startswith("posit"):
            es = 1 if name.endswith("es1") else 2
            exact = np.array([float(posit_exact(c, es)) for c in range(1, 0x8000)], np.float32)
            want = np.concatenate([[0], exact, [np.nan], -exact[::-1]])
            check.check(np.array_equal(values, want, equal_nan=True), f"{name}: codes to f32")
            check.check(np.array_equal(codes, posits(np, x, es)), f"{name}: f32 to codes")
        elif name == "bfloat16_stochastic":
            bits = x.view(np.uint32)[np.isfinite(x)]
            step, part = codes[np.isfinite(x)].astype(np.int64) - (bits >> 16), (bits & 0xffff) / 65536
            check.check(np.isin(step, (0, 1)).all() and not step[part == 0].any(),
                        "bfloat16_stochastic: a neighbour")
            check.check(abs((step - part).sum()) < 5 * np.sqrt((part * (1 - part)).sum()),
                        "bfloat16_stochastic: the mean")
        else:
            all_of, want = all_codes(np, name)
            check.check(values[:len(want)].tobytes() == want.tobytes(), f"{name}: codes to f32")
            to = x.astype(getattr(ml_dtypes, name)).view(width)
            check.check(np.array_equal(codes, to), f"{name}: f32 to codes")
            if not np.array_equal(codes, to):
                i = np.flatnonzero(codes != to)
                print(len(i), [(x[k], hex(x.view(np.uint32)[k]), hex(codes[k]), hex(to[k])) for k in i[:4]])
    check.check(at == len(data), "nothing is left over")


def softposit(np, x, path, lines):
    """posit16_es1 is the posit16 of SoftPosit."""
    soft = check.module("softposit")
    if soft is None:
        return
    some = x[np.isfinite(x)][:100000]
    got = posits(np, some, 1)
    want = [soft.convertDoubleToP16(float(v)).v for v in some]
    check.check(np.array_equal(got, np.array(want, np.int64) & 0xffff), "SoftPosit's posit16")


def main():
    np, ml_dtypes = check.module("numpy"), check.module("ml_dtypes")
    if np is None or ml_dtypes is None:
        return
    if not os.path.exists(PROGRAM):
        return check.skip(f"test_number_formats.py without {PROGRAM}")
    kinds = ["float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz",
             "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn",
             "float4_e2m1fn", "bfloat16"]
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        path, x = os.path.join(folder, "numbers"), numbers(np, kinds)
        x.tofile(path)
        done = subprocess.run([PROGRAM, "--convert", path], capture_output=True, text=True)
        if check.check(done.returncode == 0, f"{PROGRAM}: {done.stderr}"):
            lines = done.stdout.splitlines()
            check.check(len(lines) == 20, f"20 dtypes, got {len(lines)}")
            compare(np, x, path + ".out", lines)
            softposit(np, x, path, lines)


main()
check.done()
# MIT licence: see LICENSE.
