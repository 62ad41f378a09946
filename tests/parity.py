#!/usr/bin/python3
"""parity.py - writes the golden files of tests/parity.c: what PyTorch gives for every op

usage: parity.py [--verify] [--list] [--out DIR] [op ...]
  (nothing)   writes DIR/<group>.golden, default tests/golden; with ops: only reports on those
  --verify    makes everything again and compares with the files byte for byte; exit status 1 if
              one differs
  --list      op names and numbers of cases

Needs PyTorch 1.13 and NumPy (Debian: apt-get install python3-torch). Seeded: the same bytes every
time on one kind of processor.

An op is one row: its name, a function of torch tensors and keyword arguments, and its cases, each a
tuple of tensors (a Python number is a weak 0-d one) and perhaps a dict of arguments. Arguments that
start with _ are settings of the case: _ref, the expected outputs where PyTorch is off; _grad, as
for the row. A row named op.variant is more cases of op.

Expected values: the function runs in double precision, on the same inputs, and the result is
rounded once to the dtype that PyTorch gives. Its run in the case's own precision must agree within
the tolerance: then the case says `torch`. Where it does not, or PyTorch 1.13 lacks the dtype, or
the semantics are ours (a reference beside the row), the case says `f64`. So it does where
PyTorch's own double precision falls short: `wide` beside the row is then a function that does not.

Gradients: of the sum of w * y over all float outputs y, where element i of output k has the weight
w = (2 ((7 i + 3 k + 3) mod 17) - 17) / 8. Second ones: of the sum of v * g over these gradients g,
v = (2 ((5 i + 3 k + 1) mod 13) - 13) / 8.

A golden file is text, then data. First line: "fl golden 1 CASES BYTES". Then a line for each case:
  OP torch|f64 tol=A/B/C [loose] [sign] [arg=value ...] in=... out=... [gN=... hN=...]
A value is a number, a word or a list [1,2]. A tensor is dtype[dims]@offset: row-major little-endian
bytes at that offset of the data, which follows the last line and has BYTES bytes; equal tensors
share theirs. `in=2.5` and `in=3` are weak numbers. gN is the gradient of input N, hN the second
one. Tolerances are in units in the last place of the dtype: A for outputs, B and C for the
gradients. Of an output that is not loose: of the value itself; of a loose one and of gradients: of
the largest value of the tensor, at least 1. sign: zeros have the right sign.
"""
import functools
import math
import os
import random
import sys
import warnings

os.environ.update(OPENBLAS_CORETYPE="Haswell", ATEN_CPU_CAPABILITY="default", OMP_NUM_THREADS="1")

import numpy as np
import torch
import torch.nn.functional as F

torch.set_num_threads(1)
warnings.filterwarnings("ignore", category=UserWarning)
INF, NAN = math.inf, math.nan

DTYPES = {"b8": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16,
    "i32": torch.int32, "i64": torch.int64, "f16": torch.float16, "bf16": torch.bfloat16,
    "f32": torch.float32, "f64": torch.float64}
NAMES = {v: k for k, v in DTYPES.items()}
EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
TINY = {"f16": 2.0**-24, "bf16": 2.0**-133, "f32": 2.0**-149, "f64": 2.0**-1074}
HALVES = ("f16", "bf16")


# --- inputs ---------------------------------------------------------------------------------------

class Gen:
    """Seeded inputs of one op. Reals keep 0.04 away from multiples of 1/2: kinks and jumps."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def real(self, lo, hi):
        while True:
            x = self.random.uniform(lo, hi)
            if abs(2 * x - round(2 * x)) >= 0.08:
                return x

    def f(self, *shape, lo=-2.0, hi=2.0, d="f32"):
        n = math.prod(shape)
        return torch.tensor([self.real(lo, hi) for _ in range(n)],
            dtype=torch.float64).reshape(shape).to(DTYPES[d])

    def i(self, *shape, lo=-9, hi=9, d="i64"):
        n = math.prod(shape)
        return torch.tensor([self.random.randint(lo, hi) for _ in range(n)],
            dtype=torch.int64).reshape(shape).to(DTYPES[d])

    def b(self, *shape):
        return self.i(*shape, lo=0, hi=1, d="b8")

    def distinct(self, *shape, d="f32", step=0.21):
        """No two equal: for order and extremes."""
        v = [(k - math.prod(shape) // 2) * step + 0.07 for k in range(math.prod(shape))]
        self.random.shuffle(v)
        return torch.tensor(v, dtype=torch.float64).reshape(shape).to(DTYPES[d])

    def positive_definite(self, *shape, d="f32"):
        a = self.f(*shape, d="f64")
        return (a @ a.mT + shape[-1] * torch.eye(shape[-1], dtype=torch.float64)).to(DTYPES[d])

    def regular(self, *shape, d="f32"):
        """Far from singular."""
        return (self.f(*shape, d="f64") + 3 * torch.eye(shape[-2], shape[-1],
            dtype=torch.float64)).to(DTYPES[d])


def T(values, d="f32"):
    return torch.tensor(values, dtype=DTYPES[d])


def any_of(g, d, *shape, lo=-2.0, hi=2.0):
    """Small values of any dtype, in the range as far as it can."""
    if d == "b8":
        return g.b(*shape)
    if d[0] in "ui":
        low = math.ceil(lo) if d[0] == "i" else max(math.ceil(lo), 0)
        return g.i(*shape, lo=low, hi=max(math.floor(hi), low), d=d)
    return g.f(*shape, lo=lo, hi=hi, d=d)


SPECIAL = [0.0, -0.0, INF, -INF, NAN, 1e-40, -1e-40, 1.17549435e-38, 1e30, -1e30, 3.4028235e38, 1.0,
    -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 88.0, -88.0, 1e-7, -1e-7, 16777217.0, 0.999999]
FEW = [0.0, -0.0, INF, -INF, NAN, 1.0, -2.5, 3.0, 1e-40, 1e30]
EXTREMES = {"u8": [0, 1, 2, 127, 128, 254, 255], "i8": [0, 1, -1, 2, 127, -127, -128],
    "i16": [0, 1, -1, 7, 32767, -32767, -32768], "i32": [0, 1, -1, 46341, 2**31 - 1, -2**31 + 1,
    -2**31], "i64": [0, 1, -1, 2**31, 2**63 - 1, -2**63 + 1, -2**63], "b8": [False, True]}


# --- rows -----------------------------------------------------------------------------------------

class Row:
    def __init__(self, group, name, fn, cases, tol=4, loose=False, sign=False, grad=2, diff=None,
        native=False, ref=None, wide=None):
        """tol: of outputs. grad: orders of gradients, 0 to 2. diff: inputs with gradients, default
        all float ones. native: the dtype's own run is the truth (nextafter). ref: expected outputs
        of every case, when PyTorch is off. wide: runs in double precision in fn's place, where fn
        or its gradients are less precise than that."""
        self.group, self.name, self.fn, self.cases = group, name, fn, cases
        self.tol, self.loose, self.sign, self.grad = tol, loose, sign, grad
        self.diff, self.native, self.ref, self.wide = diff, native, ref, wide or fn


ROWS = []
GROUP = ""


def group(name):
    global GROUP
    GROUP = name


def row(name, fn, cases, **options):
    """cases: list, or a function of a Gen that gives one."""
    assert all(r.name != name for r in ROWS), name
    ROWS.append(Row(GROUP, name, fn, cases, **options))


def loose(name, fn, cases, tol=16, **options):
    row(name, fn, cases, tol=tol, loose=True, **options)


def exact(name, fn, cases, **options):
    """Moves or compares values: not a bit may change."""
    row(name, fn, cases, **{"tol": 0, "sign": True, **options})


SHAPES = [(6,), (2, 3, 4), (), (0, 3), (1, 17)]


def unary(name, fn, lo=-2.0, hi=2.0, special=True, ints="i32 i64 u8 i8 i16 b8",
    floats="f64 f16 bf16", extremes=False, **o):
    """An element-wise function on [lo, hi]. ints: other dtypes; extremes: at their ends too."""
    def cases(g):
        out = [(g.f(*s, lo=lo, hi=hi),) for s in SHAPES]
        out += [(g.f(9, lo=lo, hi=hi, d=d),) for d in floats.split()]
        if special:
            out += [(T(SPECIAL), {"_grad": 0}), (T(SPECIAL, "f64"), {"_grad": 0})]
        out += [(any_of(g, d, 5, lo=lo, hi=hi),) for d in ints.split()]
        if extremes:
            out += [(T(EXTREMES[d], d),) for d in ints.split() if d != "b8"]
        return out
    row(name, fn, cases, **o)


PAIRS = [((5,), (5,)), ((2, 3), (3,)), ((2, 1, 3), (4, 1)), ((), (4,)), ((0, 3), (1, 3)),
    ((2, 2, 2), (2, 1, 2)), ((), ())]
MIXES = ["f64 f32", "f32 i64", "i32 i64", "u8 i8", "u8 i32", "b8 i64", "b8 f32", "f16 f32",
    "f16 bf16", "bf16 i64", "i16 i16", "b8 b8"]


def binary(name, fn, a=(-2.0, 2.0), b=(-2.0, 2.0), special=True, mixes=MIXES, weak=(1.75, 2),
    extremes="", floats="f64 f16 bf16", **o):
    """An element-wise function on the ranges a and b. mixes: dtypes; weak: numbers as b."""
    def cases(g):
        out = []
        if floats:
            out += [(g.f(*s, lo=a[0], hi=a[1]), g.f(*t, lo=b[0], hi=b[1])) for s, t in PAIRS]
            out += [(g.f(6, lo=a[0], hi=a[1], d=d), g.f(6, lo=b[0], hi=b[1], d=d))
                for d in floats.split()]
            out += [(g.f(4, lo=a[0], hi=a[1]), k) for k in weak]
        if special and floats:
            x, y = T(FEW), T(FEW)
            out += [(x.reshape(-1, 1).expand(-1, len(FEW)).contiguous(), y, {"_grad": 0})]
        for mix in mixes:
            c, d = mix.split()
            out += [(any_of(g, c, 2, 3, lo=a[0], hi=a[1]), any_of(g, d, 3, lo=b[0], hi=b[1]))]
        for d in extremes.split():
            e = T(EXTREMES[d], d)
            out += [(e.reshape(-1, 1), e)]
        return out
    row(name, fn, cases, **o)


def without(mixes, *dtypes):
    return [m for m in mixes if not any(d in m.split() for d in dtypes)]


INT_MIXES = ["i64 i64", "i32 i32", "u8 u8", "i8 i8", "i16 i16", "i32 i64", "u8 i8"]
AXES = [((6,), []), ((2, 3, 4), []), ((2, 3, 4), [0]), ((2, 3, 4), [1]), ((2, 3, 4), [-1]),
    ((2, 3, 4), [0, 2]), ((2, 3, 4), [2, 1]), ((1, 5), [0]), ((33, 3), [0]),
    ((2, 2, 2, 3), [0, 1, 3])]


def all_axes(x, axes):
    return axes if axes else list(range(x.dim()))


def reduction(name, fn, make=Gen.f, empty=True, special=True, dtypes="f64 f16 bf16",
    ints="i64 i32 u8 b8", args=({},), axes_of=AXES, **o):
    """fn(x, axes, keepdim, ...) over any axes; args: further arguments, a case for each."""
    def cases(g):
        out = []
        for extra in args:
            for k, (s, axes) in enumerate(axes_of):
                out += [(make(g, *s), dict(axes=axes, keepdim=k % 2, **extra))]
            out += [(make(g, 3, 4, d=d), dict(axes=[1], keepdim=0, **extra))
                for d in dtypes.split()]
            out += [(any_of(g, d, 3, 4, lo=-5, hi=5), dict(axes=[0], keepdim=1, **extra))
                for d in ints.split()]
        if empty:
            out += [(g.f(0), dict(axes=[], keepdim=0, **args[0])),
                (g.f(2, 0, 3), dict(axes=[1], keepdim=0, **args[0]))]
        if special:
            x = T([[1, INF, 2, 3], [-INF, 0, 5, 1], [NAN, 1, 2, -INF], [INF, -INF, 0, 1]])
            out += [(x, dict(axes=[1], keepdim=0, _grad=0, **args[0])),
                (x, dict(axes=[0], keepdim=0, _grad=0, **args[0]))]
        return out
    loose(name, fn, cases, **o)


LINES = [((6,), 0), ((3, 4), 1), ((3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), -3), ((1, 5), 0)]


def along(name, fn, make=Gen.f, dtypes="f64 f16 bf16", ints="", args=({},), special=(), lines=LINES,
    **o):
    """fn(x, axis, ...) along one axis."""
    def cases(g):
        out = []
        for extra in args:
            out += [(make(g, *s), dict(axis=a, **extra)) for s, a in lines]
            out += [(make(g, 3, 4, d=d), dict(axis=1, **extra)) for d in dtypes.split()]
            out += [(any_of(g, d, 3, 4, lo=-5, hi=5), dict(axis=0, **extra)) for d in ints.split()]
        out += [(T(v), dict(axis=0, _grad=0, **args[0])) for v in special]
        return out
    loose(name, fn, cases, **o)


MOVED = "f64 f16 bf16 i64 i32 i16 i8 u8 b8"


def moving(name, fn, cases, dtypes=MOVED, **o):
    """Values move unchanged. cases: (shapes, arguments); the first is repeated in every dtype."""
    def make(g):
        out = [tuple(g.f(*s) for s in shapes) + (args,) for shapes, args in cases]
        shapes, args = cases[0]
        out += [tuple(any_of(g, d, *s, lo=-9, hi=9) for s in shapes) + (args,)
            for d in dtypes.split()]
        return out
    exact(name, fn, make, **o)


def layer(name, fn, cases, dtypes="f64 bf16", **o):
    """Neural ops on random reals. cases: (shapes, arguments); a shape may be a function of a Gen.
    The first case is repeated in the other dtypes."""
    def tensors(g, shapes, d):
        out = []
        for s in shapes:
            t = s(g) if callable(s) else g.f(*s)
            out.append(t.to(DTYPES[d]) if d and t.is_floating_point() else t)
        return tuple(out)

    def make(g):
        out = [tensors(g, shapes, None) + (args,) for shapes, args in cases]
        return out + [tensors(g, *[cases[0][0]], d) + (cases[0][1],) for d in dtypes.split()]
    loose(name, fn, make, **o)


# --- where PyTorch's double precision falls short -------------------------------------------------

class Lgamma(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.lgamma(x)

    @staticmethod
    def backward(ctx, g):
        return g * Digamma.apply(*ctx.saved_tensors)


class Digamma(torch.autograd.Function):
    """PyTorch's trigamma is right to 1e-10: here it is the recurrence up to x + 20, then the
    asymptotic series, for x > 0."""
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.digamma(x)

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        z = x + 20
        series = sum(b / z ** k for b, k in ((1, 1), (1 / 2, 2), (1 / 6, 3), (-1 / 30, 5),
            (1 / 42, 7), (-1 / 30, 9), (5 / 66, 11)))
        return g * (series + sum((x + k) ** -2 for k in reversed(range(20))))


class Erfinv(torch.autograd.Function):
    """PyTorch takes erf(x) - y near 1, which is right to 1e-12 at 1 - 1e-6: two steps with erfc
    mend that."""
    @staticmethod
    def forward(ctx, y):
        ctx.save_for_backward(y)
        y = y.double()
        x = torch.erfinv(y)
        for _ in range(2):
            size = x.abs()
            off = (torch.erfc(size) - (1 - y.abs())) * math.sqrt(math.pi) / 2 * torch.exp(size ** 2)
            x = torch.where((y.abs() > 0.5) & (y.abs() < 1), x + off * x.sign(), x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * math.sqrt(math.pi) / 2 * torch.exp(Erfinv.apply(*ctx.saved_tensors) ** 2)


def entropy_of_bits(p, y, reduction):
    """The second gradient of PyTorch's has 1e-12 added to p and to 1 - p."""
    return whole(-(y * p.log() + (1 - y) * (-p).log1p()), reduction)


def whole(x, reduction):
    return x.mean() if reduction == "mean" else x.sum() if reduction == "sum" else x


# --- element-wise ---------------------------------------------------------------------------------

group("create")
SIZES = [dict(shape=s) for s in ([], [0], [5], [2, 3], [2, 0, 3], [2, 1, 2, 2])]
TYPED = [(dict(c, dtype=d),) for d in ("f32", "i64", "f64", "b8", "i32", "u8", "bf16")
    for c in SIZES[:4]]
exact("zeros", lambda shape, dtype: torch.zeros(shape, dtype=DTYPES[dtype]), TYPED)
exact("ones", lambda shape, dtype: torch.ones(shape, dtype=DTYPES[dtype]), TYPED)
exact("full", lambda shape, value, dtype: torch.full(shape, value, dtype=DTYPES[dtype]),
    [(dict(shape=s, value=v, dtype=d),) for s in ([], [2, 3], [0])
    for v, d in [(1.1, "f32"), (-0.0, "f32"), (INF, "f64"), (-3.0, "i64"), (7.0, "i32"),
    (255.0, "u8"), (1.0, "b8"), (0.3, "f16")]])
exact("full_like", torch.full_like, lambda g: [(g.f(2, 3), dict(fill_value=2.5, _grad=0)),
    (g.i(4), dict(fill_value=3)), (g.f(3, d="f64"), dict(fill_value=NAN, _grad=0)),
    (g.f(0), dict(fill_value=1.0, _grad=0))])
row("arange", lambda start, stop, step, dtype: torch.arange(start, stop, step, dtype=DTYPES[dtype]),
    [(dict(start=float(a), stop=float(b), step=float(c), dtype=d),)
    for a, b, c, d in [(0, 5, 1, "i64"), (2, 11, 3, "i64"), (5, -4, -2, "i64"), (0, 1, 0.1, "f32"),
    (1, 0, -0.25, "f64"), (0, 5, 1, "f32"), (0, 10, 4, "i32"), (3, 4, 5, "i64"),
    (0.5, 3.6, 0.7, "f32"), (0, 5, 1, "f16")]])
row("linspace", lambda start, stop, n, dtype: torch.linspace(start, stop, n, dtype=DTYPES[dtype]),
    [(dict(start=a, stop=b, n=n, dtype=d),) for a, b, n, d in [(0.0, 1.0, 5, "f32"),
    (3.0, -10.0, 7, "f32"), (2.0, 5.0, 1, "f32"), (0.0, 1.0, 0, "f32"), (0.0, 10.0, 11, "f64"),
    (1.0, 1.0, 4, "f32"), (-1.0, 1.0, 33, "f32"), (0.0, 1.0, 2, "bf16")]], loose=True)
row("logspace", lambda start, stop, n, base, dtype: torch.logspace(start, stop, n, base,
    dtype=DTYPES[dtype]), [(dict(start=a, stop=b, n=n, base=c, dtype=d),)
    for a, b, n, c, d in [(0.0, 2.0, 5, 10.0, "f32"), (-1.0, 1.0, 4, 2.0, "f32"),
    (0.0, 3.0, 7, 2.0, "f64"), (1.0, 1.0, 3, 10.0, "f32"), (0.0, 1.0, 0, 10.0, "f32")]], tol=32)
exact("eye", lambda n, m, dtype: torch.eye(n, m, dtype=DTYPES[dtype]),
    [(dict(n=n, m=m, dtype=d),) for n, m, d in [(3, 3, "f32"), (2, 4, "f32"), (4, 2, "i64"),
    (1, 1, "f64"), (0, 3, "f32"), (3, 3, "b8"), (3, 2, "u8")]])
exact("tri", lambda n, m, k, dtype: torch.ones(n, m, dtype=DTYPES[dtype]).tril(k),
    [(dict(n=n, m=m, k=k, dtype=d),) for n, m, k, d in [(3, 3, 0, "f32"), (2, 4, 1, "f32"),
    (4, 2, -1, "i64"), (3, 3, 5, "f32"), (3, 3, -5, "b8")]])
exact("meshgrid", lambda *x: torch.meshgrid(*x, indexing="ij"),
    lambda g: [(g.f(3), g.f(2)), (g.f(2), g.f(3), g.f(4)), (g.f(1), g.f(5)), (g.i(2), g.i(2))])
for window in ("hann", "hamming", "blackman", "bartlett"):
    loose(window + "_window", lambda n, periodic, fn=getattr(torch, window + "_window"): fn(n,
        periodic=bool(periodic)), [(dict(n=n, periodic=p),) for n in (1, 2, 7, 16) for p in (0, 1)],
        tol=8)

group("unary")
ALL_INTS = "i64 i32 i16 i8 u8"
unary("neg", torch.neg, ints=ALL_INTS, extremes=True, sign=True)
unary("abs", torch.abs, ints=ALL_INTS, extremes=True, sign=True)
unary("exp", torch.exp, -5, 5)
unary("log", torch.log, 0.05, 9)
unary("log1p", torch.log1p, -0.9, 9)
unary("expm1", torch.expm1, -4, 4, sign=True)
unary("sqrt", torch.sqrt, 0.05, 9, sign=True)
unary("sin", torch.sin, -9, 9, sign=True)
unary("cos", torch.cos, -9, 9)
unary("tanh", torch.tanh, -4, 4, sign=True)
unary("erf", torch.erf, -3, 3, sign=True)
unary("floor", torch.floor, -5, 5, ints=ALL_INTS, sign=True)
unary("rint", torch.round, -5, 5, ints=ALL_INTS, sign=True)
unary("square", torch.square, -5, 5, ints=ALL_INTS, extremes=True)
unary("reciprocal", torch.reciprocal, 0.1, 4, sign=True)
unary("rsqrt", torch.rsqrt, 0.1, 9)
unary("sign", torch.sign, ints=ALL_INTS, extremes=True)
unary("isnan", torch.isnan, ints="i64")
unary("logical_not", torch.logical_not, ints="i64 i32 u8 b8")
row("bitwise_not", torch.bitwise_not, lambda g: [(any_of(g, d, *s, lo=-9, hi=9),)
    for d in (ALL_INTS + " b8").split() for s in ((5,), (2, 3))] +
    [(T(EXTREMES[d], d),) for d in ALL_INTS.split()])
unary("exp2", torch.exp2, -5, 5)
unary("log2", torch.log2, 0.05, 9)
unary("log10", torch.log10, 0.05, 9)
unary("tan", torch.tan, -1.4, 1.4, sign=True, special=False)
unary("asin", torch.asin, -0.9, 0.9, sign=True)
unary("acos", torch.acos, -0.9, 0.9)
unary("atan", torch.atan, -5, 5, sign=True)
unary("sinh", torch.sinh, -4, 4, sign=True)
unary("cosh", torch.cosh, -4, 4)
unary("asinh", torch.asinh, -5, 5, sign=True)
unary("acosh", torch.acosh, 1.2, 9)
unary("atanh", torch.atanh, -0.9, 0.9, sign=True)
unary("ceil", torch.ceil, -5, 5, ints=ALL_INTS, sign=True)
unary("trunc", torch.trunc, -5, 5, ints=ALL_INTS, sign=True)
unary("frac", torch.frac, -5, 5, ints="", special=False)
row("round_decimals", lambda x, decimals: torch.round(x, decimals=decimals),
    lambda g: [(g.f(5, lo=-50, hi=50), dict(decimals=k)) for k in (0, 1, 2, -1)] +
    [(g.f(5, d="f64"), dict(decimals=3))], tol=2, grad=0)
unary("erfc", torch.erfc, -3, 3, special=False, tol=16)
unary("erfinv", torch.erfinv, -0.95, 0.95, sign=True, tol=8, wide=Erfinv.apply)
unary("lgamma", torch.lgamma, 0.1, 9, loose=True, tol=8, wide=Lgamma.apply)
unary("digamma", torch.digamma, 0.1, 9, special=False, loose=True, tol=16, wide=Digamma.apply)
unary("sinc", torch.sinc, -3, 3, loose=True)
unary("i0", torch.i0, -5, 5, special=False, tol=16, grad=1)
unary("logit", torch.logit, 0.05, 0.95, special=False, loose=True)
unary("deg2rad", torch.deg2rad, -180, 180)
unary("rad2deg", torch.rad2deg, -3, 3)
unary("isinf", torch.isinf, ints="i64")
unary("isfinite", torch.isfinite, ints="i64")
unary("isposinf", torch.isposinf, ints="i64")
unary("isneginf", torch.isneginf, ints="i64")
unary("signbit", torch.signbit, ints="i64 i32", extremes=True)
unary("positive", torch.positive, ints=ALL_INTS)
unary("nan_to_num", torch.nan_to_num, ints="i64", native=True)
row("nan_to_num_with", lambda x, nan, posinf, neginf: torch.nan_to_num(x, nan, posinf, neginf),
    lambda g: [(T(SPECIAL, d), dict(nan=0.5, posinf=9.0, neginf=-7.0, _grad=0))
    for d in ("f32", "f64", "bf16")] + [(g.f(5), dict(nan=1.0, posinf=2.0, neginf=3.0))])
unary("ndtr", torch.special.ndtr, -3, 3, special=False, tol=32)
unary("log_ndtr", torch.special.log_ndtr, -3, 3, special=False, loose=True, tol=32)
unary("entr", torch.special.entr, 0.05, 4, loose=True)
CASTS = ["f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "b8"]


def saturate(x, dtype):
    """The cast of DESIGN 4.1: float to integer saturates, NaN gives 0."""
    if not (x.is_floating_point() and dtype[0] in "iu"):
        return None
    info = torch.iinfo(DTYPES[dtype])
    out = [0 if math.isnan(v) else min(max(v, info.min), info.max) for v in x.double().tolist()]
    return torch.tensor([int(v) for v in out], dtype=DTYPES[dtype])


CAST_FROM = {"f32": SPECIAL + [300.7, -300.7, 3e9], "f64": SPECIAL + [1e300, 0.1], "f16": FEW[:8] +
    [300.5], "bf16": FEW[:8] + [1e10]}
exact("cast", lambda x, dtype: x.to(DTYPES[dtype]), lambda g: [(x,
    dict(dtype=d, _grad=0, _ref=saturate(x, d))) for s in CASTS for d in CASTS
    for x in [T(CAST_FROM.get(s) or EXTREMES[s], s)]])

group("activation")
unary("relu", torch.relu, ints=ALL_INTS, extremes=True)
unary("sigmoid", torch.sigmoid, -5, 5)
unary("silu", F.silu, -5, 5, ints="", loose=True)
unary("softplus", F.softplus, -5, 5, ints="", special=False, loose=True)
unary("gelu", F.gelu, -5, 5, ints="", special=False, loose=True)
unary("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), -5, 5, ints="", special=False,
    loose=True)
unary("log_sigmoid", F.logsigmoid, -5, 5, ints="", special=False, loose=True)
unary("relu6", F.relu6, -3, 9, ints="")
# F.hardsigmoid's derivative is the f32 nearest 1/6 in f64 too
unary("hardsigmoid", lambda x: F.relu6(x + 3) / 6, -5, 5, ints="", special=False, loose=True,
    grad=1)
unary("hardswish", F.hardswish, -5, 5, ints="", special=False, loose=True)
unary("selu", F.selu, -5, 5, ints="", special=False, loose=True)
unary("softsign", F.softsign, -5, 5, ints="", special=False)
unary("tanhshrink", F.tanhshrink, -5, 5, ints="", special=False, loose=True)
unary("mish", F.mish, -5, 5, ints="", special=False, loose=True)


def activation(name, fn, args, **o):
    """With arguments: a case of each shape and dtype for each dict."""
    loose(name, fn, lambda g: [(g.f(*s, lo=-5, hi=5), a) for a in args
        for s in ((7,), (2, 3, 4), ())] + [(g.f(9, lo=-5, hi=5, d=d), args[0])
        for d in ("f64", "f16", "bf16")], tol=8, **o)


activation("elu", lambda x, alpha: F.elu(x, alpha), [dict(alpha=1.0), dict(alpha=0.5)])
activation("celu", lambda x, alpha: F.celu(x, alpha), [dict(alpha=1.0), dict(alpha=2.0)])
activation("leaky_relu", lambda x, slope: F.leaky_relu(x, slope),
    [dict(slope=0.01), dict(slope=0.3)])
activation("hardtanh", lambda x, low, high: F.hardtanh(x, low, high),
    [dict(low=-1.0, high=1.0), dict(low=-2.0, high=0.5)])
activation("hardshrink", lambda x, lambd: F.hardshrink(x, lambd),
    [dict(lambd=0.5), dict(lambd=1.5)])
activation("softshrink", lambda x, lambd: F.softshrink(x, lambd),
    [dict(lambd=0.5), dict(lambd=1.5)])
activation("threshold", lambda x, threshold, value: F.threshold(x, threshold, value),
    [dict(threshold=1.0, value=-3.0), dict(threshold=0.0, value=0.0)])
activation("softplus_beta", lambda x, beta, threshold: F.softplus(x, beta, threshold),
    [dict(beta=2.0, threshold=20.0), dict(beta=0.5, threshold=1.0)])
activation("swish", lambda x, beta: x * torch.sigmoid(beta * x), [dict(beta=1.0), dict(beta=2.0)])
activation("clip", lambda x, low, high: torch.clip(x, low, high),
    [dict(low=-1.0, high=1.0), dict(low=-INF, high=0.5), dict(low=0.2, high=INF)])
exact("clip.special", lambda x, low, high: torch.clip(x, low, high),
    [(T(SPECIAL, d), dict(low=a, high=b, _grad=0)) for d in ("f32", "f64")
    for a, b in ((-1.5, 2.0), (0.0, INF), (-INF, 0.0))], sign=False)
exact("clip.int", lambda x, low, high: torch.clip(x, low, high),
    [(T(EXTREMES[d], d), dict(low=1.0, high=100.0)) for d in ALL_INTS.split()])
loose("prelu", F.prelu, lambda g: [(g.f(2, 3, 4), g.f(1)), (g.f(2, 3, 4), g.f(3)),
    (g.f(2, 3), g.f(3)), (g.f(2, 3, d="f64"), g.f(3, d="f64"))], tol=8)
loose("glu", lambda x, axis: F.glu(x, axis), lambda g: [(g.f(*s, d=d), dict(axis=a))
    for s, a, d in [((6,), 0, "f32"), ((3, 4), 1, "f32"), ((4, 3), 0, "f32"),
    ((2, 6, 2), -2, "f32"), ((2, 4), -1, "f64"), ((2, 4), -1, "bf16")]])
along("softmax", lambda x, axis: x.softmax(axis), special=[[1000.0, 1001.0, 999.0],
    [-INF, 0.0, 1.0], [NAN, 0.0, 1.0], [88.0, -88.0, 1e-40]])
along("log_softmax", lambda x, axis: x.log_softmax(axis), special=[[1000.0, 1001.0, 999.0],
    [-INF, 0.0, 1.0], [NAN, 0.0, 1.0], [88.0, -88.0, 1e-40]])
along("softmin", lambda x, axis: F.softmin(x, axis))

group("binary")
binary("add", torch.add, extremes=ALL_INTS, sign=True)
binary("sub", torch.sub, extremes=ALL_INTS, sign=True, mixes=without(MIXES, "b8"))
binary("mul", torch.mul, extremes=ALL_INTS, sign=True)
binary("div", torch.div, b=(0.3, 3), sign=True, mixes=["f64 f32", "f32 f16"])
row("div.int", torch.div, lambda g: [(g.i(5, d=c), g.i(5, lo=1, d=d))
    for c, d in [("i64", "i64"), ("i32", "i64"), ("u8", "u8"), ("b8", "i64"), ("i64", "f32")]])
binary("pow", torch.pow, a=(0.1, 3), mixes=["f64 f32", "i64 f32", "f16 bf16"],
    weak=(2, 0.5, -1.5, 3.0))
row("pow.int", torch.pow, lambda g: [(g.i(6, d=d), g.i(6, lo=0, hi=5, d=d))
    for d in ("i64", "i32", "i8", "i16")] + [(g.i(4), 2), (g.i(4), 0)])
binary("remainder", torch.remainder, a=(-9, 9), b=(0.6, 3), special=False, mixes=["f64 f32"],
    loose=True)
row("remainder.special", torch.remainder, [(T([5.0, -5.0, 5.0, -5.0, 0.0, -0.0, 7.5, INF, 3.0, NAN,
    1.0]), T([3.0, 3.0, -3.0, -3.0, 2.0, 2.0, -2.5, 2.0, INF, 1.0, 0.0]), dict(_grad=0))])
row("remainder.int", torch.remainder, lambda g: [(g.i(6, lo=-9, d=d), T([2, 3, -4, 5, -1, 7], d))
    for d in ("i64", "i32", "i16", "i8")] + [(T(EXTREMES["i64"], "i64"), T([3], "i64"))])
row("floor_divide.int", lambda a, b: torch.div(a, b, rounding_mode="floor"),
    lambda g: [(g.i(6, d=d), T([2, 3, -4, 5, -1, 7], d)) for d in ("i64", "i32", "i16", "i8")])
binary("floor_divide", torch.floor_divide, a=(-9, 9), b=(0.6, 3), special=False, mixes=["f64 f32"],
    grad=0)
binary("fmod", torch.fmod, a=(-9, 9), b=(0.6, 3), special=False, mixes=["f64 f32"], loose=True)
row("fmod.int", torch.fmod, lambda g: [(g.i(6, d=d), T([2, 3, -4, 5, -1, 7], d))
    for d in ("i64", "i32", "i16", "i8")])
for name in ("maximum", "minimum"):
    binary(name, getattr(torch, name), extremes=ALL_INTS)
    exact(name + ".ties", getattr(torch, name), [(T([1.0, 2.0, -1.0, 0.5]),
        T([1.0, 3.0, -1.0, 0.5]), dict(_grad=1))], sign=False)
binary("fmax", torch.fmax, extremes="i64")
binary("fmin", torch.fmin, extremes="i64")
for name in ("eq", "ne", "lt", "le", "gt", "ge"):
    binary(name, getattr(torch, name), extremes=ALL_INTS)
for name in ("logical_and", "logical_or", "logical_xor"):
    binary(name, getattr(torch, name), mixes=["i64 i64", "b8 b8", "f32 i64", "u8 b8"])
for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    binary(name, getattr(torch, name), floats="", mixes=INT_MIXES + ["b8 b8", "b8 i64"],
        extremes=ALL_INTS)


def shifts(fn, n):
    """Shift by at least the width leaves nothing, but of a negative number to the right its sign."""
    def case(d):
        bits = torch.iinfo(DTYPES[d]).bits
        x = T([v for v in EXTREMES[d][1:] for _ in range(4)], d)
        k = T([1, 3, bits - 1, bits] * (len(EXTREMES[d]) - 1), d)
        mask = (1 << bits) - 1
        signed = lambda v: v - (1 << bits) if d[0] == "i" and v >> (bits - 1) else v
        ref = [v >> s if n == "right" else signed((v << s) & mask)
            for v, s in zip(x.tolist(), k.tolist())]
        return x, k, dict(_ref=T(ref, d))
    return lambda g: [case(d) for d in ALL_INTS.split()] + [(g.i(2, 3, lo=0), g.i(3, lo=0, hi=9)),
        (g.i(4, lo=0), 2)]


row("shift_left", torch.bitwise_left_shift, shifts(torch.bitwise_left_shift, "left"))
row("shift_right", torch.bitwise_right_shift, shifts(torch.bitwise_right_shift, "right"))
binary("atan2", torch.atan2, sign=True, mixes=["f64 f32", "i64 i64"])
binary("hypot", torch.hypot, mixes=["f64 f32"], floats="f64 bf16")
binary("logaddexp", torch.logaddexp, mixes=["f64 f32"], floats="f64", loose=True)
binary("logaddexp2", torch.logaddexp2, mixes=["f64 f32"], floats="f64", loose=True, grad=1)
binary("copysign", torch.copysign, mixes=["f64 f32", "i64 i64", "f32 i64"], sign=True)
binary("nextafter", torch.nextafter, mixes=[], floats="f64", weak=(), native=True, grad=0, tol=0,
    sign=True)
binary("heaviside", torch.heaviside, mixes=["i64 i64"], floats="f64", weak=(), grad=0)
binary("xlogy", torch.xlogy, b=(0.2, 3), mixes=["f64 f32"], floats="f64 bf16", loose=True)
binary("xlog1py", torch.special.xlog1py, b=(0.2, 3), mixes=["f64 f32"], floats="f64", loose=True)
binary("float_power", torch.float_power, a=(0.1, 3), mixes=["i64 i64"], special=False)
row("ldexp", torch.ldexp, lambda g: [(g.f(5), g.i(5)), (g.f(2, 3), g.i(3)),
    (g.f(4, d="f64"), g.i(4))], diff=[0])
row("gcd", torch.gcd, lambda g: [(g.i(6, lo=-90, hi=90, d=d), g.i(6, lo=-90, hi=90, d=d))
    for d in ("i64", "i32", "i16")] + [(g.i(2, 3), g.i(3)),
    (T([0, 0, 4], "i64"), T([0, 5, 0], "i64"))])
row("lcm", torch.lcm, lambda g: [(g.i(6, lo=-20, hi=20, d=d), g.i(6, lo=-20, hi=20, d=d))
    for d in ("i64", "i32")] + [(g.i(2, 3), g.i(3))])
row("isclose", lambda a, b, rtol, atol, equal_nan: torch.isclose(a, b, rtol, atol, bool(equal_nan)),
    lambda g: [(T([1.0, 1.0, INF, -INF, NAN, 0.0, 100.0]), T([1.0 + 1e-6, 1.01, INF, INF, NAN, 1e-9,
    100.5]), dict(rtol=r, atol=a, equal_nan=n)) for r, a, n in [(1e-5, 1e-8, 0), (1e-5, 1e-8, 1),
    (0.0, 0.02, 0), (0.01, 0.0, 0)]] + [(g.i(2, 3), g.i(3), dict(rtol=0.0, atol=1.0, equal_nan=0))],
    native=True)
CONDITION = [((4,), (4,), (4,)), ((2, 3), (3,), (2, 1)), ((2, 1, 3), (2, 3), ()), ((), (3,), (3,)),
    ((0, 2), (2,), (1, 2))]
exact("where", torch.where, lambda g: [(g.b(*c), g.f(*a), g.f(*b)) for c, a, b in CONDITION] +
    [(g.b(5), any_of(g, c, 5), any_of(g, d, 5)) for c, d in [("f64", "f64"), ("i64", "i64"),
    ("b8", "b8"), ("f32", "i64"), ("u8", "u8"), ("i32", "i32"), ("bf16", "bf16")]] +
    [(g.b(12), T(SPECIAL[:12]), T(SPECIAL[12:]), dict(_grad=0))])
TRIPLE = [((4,), (4,), (4,)), ((2, 3), (3,), (2, 1)), ((2, 1, 3), (2, 3), (1,)), ((), (3,), (3,))]


def three(g, **o):
    return [tuple(g.f(*s, **o) for s in shapes) for shapes in TRIPLE] + [tuple(g.f(4, d=d)
        for _ in "abc") for d in ("f64", "bf16")]


loose("lerp", torch.lerp, lambda g: [(g.f(*a), g.f(*b), g.f(*c))
    for a, b, c in [((4,), (4,), (4,)), ((2, 3), (3,), (3,)), ((2, 1, 3), (2, 3), (1,))]] +
    [(g.f(4), g.f(4), 0.3), (g.f(4, d="f64"), g.f(4, d="f64"), g.f(4, d="f64"))], tol=8)
loose("addcmul", lambda x, a, b, value: torch.addcmul(x, a, b, value=value),
    lambda g: [t + (dict(value=v),) for t in three(g) for v in (1.0, -0.5)], tol=8)
loose("addcdiv", lambda x, a, b, value: torch.addcdiv(x, a, b, value=value),
    lambda g: [t + (dict(value=v),) for t in three(g, lo=0.3) for v in (1.0, -0.5)][:8], tol=8)
exact("clip_tensor", torch.clip, lambda g: [(g.f(*x), g.f(*a, lo=-1.5, hi=0.0),
    g.f(*b, lo=0.1, hi=1.5)) for x, a, b in [((6,), (6,), (6,)), ((2, 3), (3,), (3,)),
    ((2, 3, 2), (1,), (2,))]] + [(g.i(6), T([-3], "i64"), T([4], "i64"))], grad=1)
loose("squared_difference", lambda a, b: (a - b).square(), lambda g: [(g.f(*s), g.f(*t))
    for s, t in PAIRS] + [(g.f(6, d="f64"), g.f(6, d="f64"))], tol=8)

group("reduce")


def reduced(fn):
    return lambda x, axes, keepdim, **k: fn(x, all_axes(x, axes), bool(keepdim), **k)


def one_by_one(fn):
    """For reductions that PyTorch has along one axis only."""
    def run(x, axes, keepdim):
        for a in sorted([a % max(x.dim(), 1) for a in all_axes(x, axes)], reverse=True):
            x = fn(x, a, keepdim)
        return x
    return reduced(run)


def correction_var(fn):
    return lambda x, axes, keepdim, correction: fn(x, dim=all_axes(x, axes), correction=correction,
        keepdim=bool(keepdim))


NO_INTS = dict(ints="")
reduction("sum", reduced(torch.sum), ints="i64 i32 i16 i8 u8 b8")
reduction("prod", one_by_one(torch.prod), ints="i64 i32 u8 b8")
reduction("mean", reduced(torch.mean), **NO_INTS)
reduction("amax", reduced(torch.amax), Gen.distinct, empty=False, tol=0)
reduction("amin", reduced(torch.amin), Gen.distinct, empty=False, tol=0)
exact("amax.ties", reduced(torch.amax), [(T([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]),
    dict(axes=[1], keepdim=0, _grad=1))], sign=False)
exact("amin.ties", reduced(torch.amin), [(T([[1.0, 1.0, 3.0], [2.0, 2.0, 2.0]]),
    dict(axes=[1], keepdim=0, _grad=1))], sign=False)
reduction("all", one_by_one(lambda x, a, k: x.bool().all(a, k)), ints="i64 b8 u8 i32", grad=0)
reduction("any", one_by_one(lambda x, a, k: x.bool().any(a, k)), ints="i64 b8 u8 i32", grad=0)
reduction("logsumexp", reduced(torch.logsumexp), empty=False, **NO_INTS)
reduction("variance", correction_var(torch.var), empty=False, special=False,
    args=[dict(correction=1), dict(correction=0)], **NO_INTS)
# the deviation of one element has infinite derivatives
reduction("std", correction_var(torch.std), axes_of=AXES[:6] + AXES[8:], empty=False, special=False,
    args=[dict(correction=1), dict(correction=0)], **NO_INTS)
reduction("norm", lambda x, axes, keepdim, p: torch.linalg.vector_norm(x, p, all_axes(x, axes),
    bool(keepdim)), Gen.distinct, empty=False, args=[dict(p=2.0), dict(p=1.0), dict(p=3.0),
    dict(p=INF), dict(p=-INF), dict(p=0.0)], grad=1, **NO_INTS)
reduction("norm.orders", lambda x, axes, keepdim, p: torch.linalg.vector_norm(x, p, all_axes(x, axes),
    bool(keepdim)), Gen.distinct, empty=False, args=[dict(p=0.5), dict(p=-1.0), dict(p=-2.0), dict(p=4.0),
    dict(p=2.5)], grad=1, axes_of=AXES[:5], **NO_INTS)
reduction("count_nonzero", lambda x, axes, keepdim: (lambda a: (x != 0).sum(a,
    bool(keepdim)))(all_axes(x, axes)), grad=0)
reduction("nansum", reduced(torch.nansum), **NO_INTS)
reduction("nanmean", reduced(torch.nanmean), **NO_INTS)


def axis_fn(fn):
    return lambda x, axis, keepdim: fn(x, axis, bool(keepdim))


KEEP = (dict(keepdim=0), dict(keepdim=1))
NANS = [[1.0, NAN, 3.0], [2.0, 2.0, 1.0], [INF, -INF, 0.0], [0.0, -0.0, 0.0]]


def first_of(fn):
    """PyTorch leaves the index among equal elements open; ours is the first, as NumPy's."""
    def run(x, axis, keepdim):
        v = x.double().numpy() if x.is_floating_point() else x.numpy()
        return torch.from_numpy(np.asarray(fn(v, axis, keepdims=bool(keepdim))))
    return run


for name, fn in (("argmax", np.argmax), ("argmin", np.argmin)):
    along(name, axis_fn(getattr(torch, name)), Gen.distinct, ints="i64 i32 u8", args=KEEP,
        special=NANS, grad=0, ref=first_of(fn))
along("max_along", axis_fn(lambda x, a, k: tuple(torch.max(x, a, k))), Gen.distinct, args=KEEP)
along("min_along", axis_fn(lambda x, a, k: tuple(torch.min(x, a, k))), Gen.distinct, args=KEEP)
along("median", axis_fn(lambda x, a, k: torch.median(x, a, k)[0]), Gen.distinct, dtypes="f64",
    args=KEEP, grad=1)
along("nanmedian", axis_fn(lambda x, a, k: torch.nanmedian(x, a, k)[0]), Gen.distinct, dtypes="f64",
    args=KEEP, special=NANS[:1], grad=1)
along("quantile", lambda x, axis, keepdim, q, method: torch.quantile(x, q, axis, bool(keepdim),
    interpolation=method), Gen.distinct, dtypes="f64", args=[dict(keepdim=0, q=q, method=m)
    for q, m in [(0.5, "linear"), (0.0, "linear"), (1.0, "linear"), (0.3, "linear"), (0.3, "lower"),
    (0.3, "higher"), (0.3, "nearest"), (0.3, "midpoint")]], grad=1)
along("nanquantile", lambda x, axis, keepdim, q: torch.nanquantile(x, q, axis, bool(keepdim)),
    Gen.distinct, dtypes="f64", args=[dict(keepdim=1, q=0.4)], special=NANS[:1], grad=1)
along("cumsum", lambda x, axis: x.cumsum(axis), ints="i64 i32 u8 b8", special=NANS)
along("cumprod", lambda x, axis: x.cumprod(axis), ints="i64 i32 u8", special=NANS)
along("cummax", lambda x, axis: tuple(x.cummax(axis)), Gen.distinct, dtypes="f64", ints="i64",
    special=NANS[:1])
along("cummin", lambda x, axis: tuple(x.cummin(axis)), Gen.distinct, dtypes="f64", ints="i64",
    special=NANS[:1])
along("logcumsumexp", lambda x, axis: x.logcumsumexp(axis), dtypes="f64", grad=1)
along("diff", lambda x, axis: x.diff(dim=axis), ints="i64")
along("kthvalue", lambda x, axis, k: tuple(x.kthvalue(k, axis)), Gen.distinct, dtypes="f64",
    args=[dict(k=1)])
along("trapezoid", lambda x, axis: torch.trapezoid(x, dim=axis), dtypes="f64")
loose("trapezoid_x", lambda y, x, axis: torch.trapezoid(y, x, dim=axis), lambda g: [(g.f(*s), g.f(*t),
    dict(axis=a)) for s, t, a in (((5,), (5,), 0), ((3, 4), (4,), 1), ((3, 4), (3,), 0), ((3, 4), (3, 4), -1),
    ((2, 3, 4), (3, 1), 1), ((2, 3, 4), (2, 3, 4), 0), ((2, 1), (1,), 1), ((3, 0), (0,), 1))] +
    [(g.f(3, 4, d="f64"), g.f(4, d="f64"), dict(axis=1))])
along("cumulative_trapezoid", lambda x, axis: torch.cumulative_trapezoid(x, dim=axis), dtypes="f64")
loose("cumulative_trapezoid_x", lambda y, x, axis: torch.cumulative_trapezoid(y, x, dim=axis), lambda g: [
    (g.f(*s), g.f(*t), dict(axis=a)) for s, t, a in (((5,), (5,), 0), ((3, 4), (3,), 0),
    ((2, 3, 4), (3, 1), 1), ((2, 3, 4), (2, 3, 4), -1), ((2, 1), (1,), 1))])
exact("histogram", lambda x, bins, low, high: torch.histc(x, bins, low, high),
    lambda g: [(g.f(n, lo=-3, hi=3), dict(bins=b, low=l, high=h)) for n in (0, 7, 60)
    for b, l, h in ((4, -2.0, 2.0), (10, 0.0, 1.0), (3, -3.0, 3.0))], grad=0)
exact("bincount", lambda x, minlength: torch.bincount(x, minlength=minlength),
    lambda g: [(g.i(n, lo=0, hi=6), dict(minlength=m)) for n in (0, 1, 20) for m in (0, 4, 9)])
loose("bincount_weights", lambda x, w, minlength: torch.bincount(x, w, minlength),
    lambda g: [(g.i(n, lo=0, hi=6), g.f(n), dict(minlength=m)) for n in (1, 20) for m in (0, 9)],
    grad=0)

# --- movement and indexing ------------------------------------------------------------------------

group("move")
moving("reshape", lambda x, shape: x.reshape(shape), [([(2, 3, 4)], dict(shape=s))
    for s in ([6, 4], [24], [-1, 2], [4, 3, 2], [1, 24, 1])] +
    [([(0, 3)], dict(shape=[3, 0])), ([()], dict(shape=[1]))])
moving("permute", lambda x, axes: x.permute(axes), [([(2, 3, 4)], dict(axes=a))
    for a in ([2, 0, 1], [0, 1, 2], [1, 0, 2], [-1, 1, 0])] +
    [([(2, 1, 2, 3, 2)], dict(axes=[4, 2, 0, 3, 1])), ([(3, 0)], dict(axes=[1, 0]))])
moving("transpose", lambda x, a, b: x.transpose(a, b), [([(2, 3, 4)], dict(a=a, b=b))
    for a, b in ((0, 1), (0, 2), (-1, -2), (1, 1))])
moving("movedim", lambda x, a, b: x.movedim(a, b), [([(2, 3, 4)], dict(a=a, b=b))
    for a, b in ((0, 2), (2, 0), (-1, 1), (1, 1))])
moving("expand", lambda x, shape: x.expand(shape), [([(3, 1)], dict(shape=[3, 4])),
    ([(3, 1)], dict(shape=[2, 3, 4])), ([(3,)], dict(shape=[2, 3])), ([(1,)], dict(shape=[0])),
    ([()], dict(shape=[2, 2])), ([(3, 1)], dict(shape=[2, -1, 2]))])
SLICES = [(0, 1, 2, 1), (1, 0, 3, 2), (2, 1, 4, 1), (-1, 0, 4, 3), (0, 2, 2, 1), (1, -2, 3, 1),
    (2, 0, -1, 1)]
moving("slice", lambda x, axis, start, stop, step: x[(slice(None),) * (axis % x.dim()) +
    (slice(start, stop, step),)], [([(2, 3, 4)], dict(axis=a, start=b, stop=c, step=d))
    for a, b, c, d in SLICES])


def slice_back(x, axis, start, stop, step):
    """NumPy's slice with a negative step, by indices; the gradients come with it."""
    return x.index_select(axis, torch.tensor(range(x.shape[axis])[start:stop:step],
        dtype=torch.int64))


moving("slice.negative", slice_back, [([(2, 3, 5)], dict(axis=a, start=b, stop=c, step=d))
    for a, b, c, d in ((2, 4, 0, -1), (2, -1, 0, -2), (1, 2, 0, -1), (0, 0, 1, -1))])
moving("select", lambda x, axis, index: x.select(axis, index),
    [([(2, 3, 4)], dict(axis=a, index=i)) for a, i in ((0, 1), (1, 0), (2, 3), (-1, -1))] +
    [([(5,)], dict(axis=0, index=2))])
moving("narrow", lambda x, axis, start, length: x.narrow(axis, start, length),
    [([(2, 3, 4)], dict(axis=a, start=s, length=n)) for a, s, n in ((0, 0, 1), (1, 1, 2),
    (-1, 2, 0), (2, 0, 4))])
moving("flip", lambda x, axes: x.flip(axes), [([(2, 3, 4)], dict(axes=a))
    for a in ([0], [1, 2], [-1], [0, 1, 2])] + [([(0, 2)], dict(axes=[0]))])
moving("roll", lambda x, shifts, axes: x.roll(shifts, axes),
    [([(2, 3, 4)], dict(shifts=s, axes=a)) for s, a in (([1], [0]), ([-1, 5], [1, 2]), ([0], [1]),
    ([7], [2]))])
moving("rot90", lambda x, k, a, b: x.rot90(k, (a, b)), [([(2, 3)], dict(k=k, a=a, b=b))
    for k, a, b in ((1, 0, 1), (2, 0, 1), (3, 0, 1), (-1, 1, 0))])
moving("squeeze", lambda x, axis: x.squeeze(axis), [([(2, 1, 3, 1)], dict(axis=a))
    for a in (1, 3, -1, -3)])
moving("unsqueeze", lambda x, axis: x.unsqueeze(axis), [([(2, 3)], dict(axis=a))
    for a in (0, 1, 2, -1, -3)] + [([()], dict(axis=0))])
moving("flatten", lambda x, first, last: x.flatten(first, last),
    [([(2, 3, 4)], dict(first=a, last=b)) for a, b in ((0, 2), (1, 2), (0, 1), (0, -1), (1, 1))])
moving("unflatten", lambda x, axis, shape: x.unflatten(axis, shape),
    [([(2, 12)], dict(axis=1, shape=s)) for s in ([3, 4], [2, -1], [2, 3, 2])] +
    [([(6,)], dict(axis=0, shape=[2, 3]))])
moving("concat", lambda *x, axis: torch.cat(x, axis), [([(2, 3), (2, 1), (2, 4)], dict(axis=1)),
    ([(2, 3), (1, 3)], dict(axis=0)), ([(3,)], dict(axis=0)),
    ([(2, 0, 2), (2, 3, 2)], dict(axis=-2))])
exact("concat.mixed", lambda *x, axis: torch.cat(x, axis), lambda g: [(any_of(g, c, 2),
    any_of(g, d, 3), dict(axis=0)) for c, d in [("f32", "i64"), ("i64", "i32"), ("b8", "f32"),
    ("f64", "f32"), ("u8", "i8"), ("f16", "bf16")]])
moving("stack", lambda *x, axis: torch.stack(x, axis), [([(2, 3)] * n, dict(axis=a))
    for n, a in ((2, 0), (3, 1), (2, -1), (1, 0))] + [([(), ()], dict(axis=0))])
moving("split", lambda x, size, axis: x.split(size, axis), [([(7, 2)], dict(size=s, axis=0))
    for s in (2, 3, 7, 9)] + [([(2, 4)], dict(size=1, axis=1))])
moving("chunk", lambda x, n, axis: x.chunk(n, axis), [([(7, 2)], dict(n=n, axis=0))
    for n in (1, 2, 3, 4)] + [([(2, 6)], dict(n=3, axis=-1))])
moving("tile", lambda x, reps: x.tile(reps), [([(2, 3)], dict(reps=r))
    for r in ([2, 2], [3], [1, 2], [2, 1, 2], [0, 1])])
moving("repeat", lambda x, reps: x.repeat(reps), [([(2, 3)], dict(reps=r))
    for r in ([2, 2], [1, 3], [2, 1, 2])])
moving("repeat_interleave", lambda x, n, axis: x.repeat_interleave(n, axis),
    [([(2, 3)], dict(n=n, axis=a)) for n, a in ((2, 0), (3, 1), (1, 1), (2, -1))])
PADS = [([(1, 2, 6)], dict(pads=[1, 2])), ([(1, 2, 6)], dict(pads=[3, 0])),
    ([(2, 2, 3, 4)], dict(pads=[1, 2, 2, 1])), ([(1, 1, 4, 3)], dict(pads=[0, 1, 2, 0]))]
moving("pad_constant", lambda x, pads, value: F.pad(x, pads, value=value),
    [(s, dict(a, value=v)) for s, a in PADS for v in (0.0, 2.0)] +
    [([(5,)], dict(pads=[-1, 2], value=1.0)), ([(2, 3)], dict(pads=[-1, -1], value=0.0))])


def padded_by(mode):
    """F.pad of the last axes, by indices, as numpy.pad has its modes."""
    def run(x, pads):
        for k in range(len(pads) // 2):
            axis = x.dim() - 1 - k
            index = np.pad(np.arange(x.shape[axis]), (pads[2 * k], pads[2 * k + 1]), mode=mode)
            x = x.index_select(axis, torch.from_numpy(index))
        return x
    return run


def padded(mode):
    """PyTorch's own; by indices in the dtypes it does not pad."""
    def run(x, pads):
        return F.pad(x, pads, mode=mode) if x.dtype in (torch.float32,
            torch.float64) else padded_by({"replicate": "edge", "reflect": "reflect",
            "circular": "wrap"}[mode])(x, pads)
    return run


moving("pad_edge", padded("replicate"), PADS, grad=1)
moving("pad_reflect", padded("reflect"), PADS[:1] + PADS[2:], grad=1)
moving("pad_circular", padded("circular"), PADS, grad=1)
moving("pad_symmetric", padded_by("symmetric"), PADS, grad=1)
moving("pad_circular.negative", lambda x, pads: F.pad(x, pads, mode="circular"), [([(1, 2, 6)],
    dict(pads=[-1, 2])), ([(1, 2, 6)], dict(pads=[3, -2])), ([(1, 2, 6)], dict(pads=[-2, -1])),
    ([(1, 1, 4, 3)], dict(pads=[-1, 1, 2, -1]))], dtypes="f64", grad=1)
exact("repeat_interleave_each", lambda x, times, axis: x.repeat_interleave(times.long(), axis),
    lambda g: [(g.f(*s), T(n, d), dict(axis=a)) for s, a, n, d in (((3, 2), 0, [1, 0, 2], "i64"),
    ((2, 3), 1, [0, 0, 3], "i32"), ((2, 3), -1, [2], "u8"), ((2, 2, 2), 1, [3, 1], "i64"), ((4,), 0,
    [0, 2, 0, 0], "i64"), ((2,), 0, [0, 0], "i64"), ((0, 2), 0, [], "i64"))] +
    [(g.i(3), T([2, 0, 1], "i64"), dict(axis=0))])
moving("sliding_windows", lambda x, axis, size, step: x.unfold(axis, size, step),
    [([(7,)], dict(axis=0, size=3, step=1)), ([(2, 6)], dict(axis=1, size=2, step=2)),
    ([(5, 2)], dict(axis=0, size=3, step=2)), ([(2, 6)], dict(axis=-1, size=6, step=1))])
moving("pixel_shuffle", F.pixel_shuffle, [([(1, 4, 2, 3)], dict(upscale_factor=2)),
    ([(2, 9, 1, 2)], dict(upscale_factor=3))], dtypes="f64 i64")
moving("pixel_unshuffle", F.pixel_unshuffle, [([(1, 1, 4, 6)], dict(downscale_factor=2)),
    ([(2, 2, 3, 3)], dict(downscale_factor=3))], dtypes="f64")
moving("channel_shuffle", lambda x, groups: x.reshape(x.shape[0], groups, -1,
    *x.shape[2:]).transpose(1, 2).reshape(x.shape), [([(1, 4, 2, 2)], dict(groups=2)),
    ([(1, 6, 3)], dict(groups=3))], dtypes="f64")
moving("swap_axes_contiguous", lambda x: x.transpose(0, -1).contiguous(),
    [([(2, 3)], {}), ([(2, 3, 4)], {}), ([(5,)], {})])
moving("broadcast_tensors", lambda *x: tuple(t.clone() for t in torch.broadcast_tensors(*x)),
    [([(2, 1), (3,)], {}), ([(2, 3), ()], {}), ([(1, 3), (4, 1, 1)], {})], dtypes="f64 i64")


def written(fn):
    """In-place writes into a view of a copy: fn(view, ...) on x[axis, start:stop:step]."""
    def run(x, src, axis, start, stop, step):
        y = x.clone()
        fn(slice_view(y, axis, start, stop, step), src)
        return y
    return run


def slice_view(x, axis, start, stop, step):
    return x[(slice(None),) * (axis % x.dim()) + (slice(start, stop, step),)]


WRITES = [([(4, 3), (2, 3)], dict(axis=0, start=1, stop=3, step=1)),
    ([(4, 3), (3,)], dict(axis=0, start=0, stop=4, step=2)),
    ([(4, 3), (4, 1)], dict(axis=1, start=0, stop=3, step=1)),
    ([(4, 3), ()], dict(axis=1, start=1, stop=2, step=1))]
moving("assign_slice", written(lambda v, s: v.copy_(s)), WRITES, grad=0)
moving("add_into_slice", written(lambda v, s: v.add_(s)), WRITES, grad=0, dtypes="f64 i64 i32",
    tol=1)
moving("diagonal", lambda x, offset, a, b: x.diagonal(offset, a, b),
    [([(3, 4)], dict(offset=k, a=0, b=1)) for k in (0, 1, -1, 3)] +
    [([(2, 3, 3)], dict(offset=0, a=-2, b=-1)), ([(2, 3, 4)], dict(offset=1, a=0, b=2))])
moving("diag_embed", lambda x, offset: x.diag_embed(offset),
    [([(3,)], dict(offset=k)) for k in (0, 1, -2)] + [([(2, 3)], dict(offset=0))])
moving("tril", lambda x, k: x.tril(k), [([(3, 4)], dict(k=k)) for k in (0, 1, -1, 9)] +
    [([(2, 3, 3)], dict(k=0)), ([(4, 2)], dict(k=-2))], dtypes="f64 i64 i32 b8")
moving("triu", lambda x, k: x.triu(k), [([(3, 4)], dict(k=k)) for k in (0, 1, -1, 9)] +
    [([(2, 3, 3)], dict(k=0)), ([(4, 2)], dict(k=-2))], dtypes="f64 i64 i32 b8")

group("index")


def indexed(name, fn, cases, sources=0, dtypes="f64 bf16 i64 i32 b8", **o):
    """cases: (shape of x, axis, shape of the index, its end); sources: tensors like the index."""
    def make(g):
        out = []
        for k, (shape, axis, at, end) in enumerate(cases):
            for d in ["f32"] + (dtypes.split() if k == 0 else []):
                src = [any_of(g, d, *at) for _ in range(sources)]
                out += [(any_of(g, d, *shape), g.i(*at, lo=0, hi=end - 1)) + tuple(src) +
                    (dict(axis=axis),)]
        return out
    exact(name, fn, make, **o)


AT = [((4, 3), 0, (2, 3), 4), ((4, 3), 1, (4, 2), 3), ((5,), 0, (7,), 5),
    ((2, 3, 4), 1, (2, 2, 4), 3), ((4, 3), -1, (2, 1), 3), ((3, 2), 0, (0, 2), 3)]
indexed("gather", lambda x, index, axis: x.gather(axis, index), AT)
exact("take_along", lambda x, index, axis: x.take_along_dim(index, axis),
    lambda g: [(g.f(*s), g.i(*at, lo=0, hi=e - 1), dict(axis=a))
    for s, a, at, e in [((4, 3), 0, (2, 3), 4), ((4, 3), 1, (4, 5), 3), ((5,), 0, (7,), 5),
    ((2, 3, 4), 1, (2, 2, 4), 3)]])
exact("take", lambda x, index: x.take(index), lambda g: [(g.f(3, 4), g.i(5, lo=0, hi=11)),
    (g.f(3, 4), g.i(2, 2, lo=-12, hi=11)), (g.i(6), g.i(4, lo=0, hi=5))])
FULL = [((4, 3), 0, (2, 3), 4), ((4, 3), 1, (4, 2), 3), ((5,), 0, (7,), 5),
    ((2, 3, 4), 1, (2, 2, 4), 3)]
indexed("scatter_add", lambda x, index, src, axis: x.scatter_add(axis, index, src), FULL, sources=1,
    dtypes="f64 i64", tol=4, loose=True)


def scattered(g):
    """Indices without repeats: with them PyTorch leaves the order open."""
    out = []
    for shape, axis, at in [((4, 3), 0, (2, 3)), ((4, 3), 1, (4, 2)), ((2, 3, 4), 2, (2, 3, 3)),
        ((5,), 0, (3,))]:
        n, moved = shape[axis], [k for d, k in enumerate(at) if d != axis]
        rows = [g.random.sample(range(n), at[axis]) for _ in range(math.prod(moved))]
        index = torch.tensor(rows, dtype=torch.int64).reshape(*moved, at[axis]).movedim(-1, axis)
        out += [(any_of(g, d, *shape), index.contiguous(), any_of(g, d, *at), dict(axis=axis))
            for d in ("f32", "f64", "i64")]
    return out


exact("scatter", lambda x, index, src, axis: x.scatter(axis, index, src), scattered)
exact("scatter.repeated", lambda x, index, src, axis: x.scatter(axis, index, src),
    lambda g: [(T([0.0] * 4), T([1, 1, 2, 1], "i64"), T([1.0, 2.0, 3.0, 4.0]),
    dict(axis=0, _grad=0, _ref=T([0.0, 4.0, 3.0, 0.0])))])
exact("index_select", lambda x, index, axis: x.index_select(axis, index),
    lambda g: [(any_of(g, d, *s), g.i(n, lo=0, hi=s[a] - 1), dict(axis=a)) for d in ("f32", "i64")
    for s, a, n in [((4, 3), 0, 5), ((4, 3), 1, 2), ((2, 3, 4), -1, 3), ((5,), 0, 0)]] +
    [(any_of(g, d, 4), g.i(3, lo=0, hi=3), dict(axis=0)) for d in ("f64", "bf16", "u8", "b8")])
loose("index_add", lambda x, index, src, axis, alpha: x.index_add(axis, index, src, alpha=alpha),
    lambda g: [(g.f(*s), g.i(n, lo=0, hi=s[a] - 1), g.f(*(s[:a] + (n,) + s[a + 1:])),
    dict(axis=a, alpha=k)) for s, a, n in [((4, 3), 0, 6), ((4, 3), 1, 2), ((5,), 0, 7)]
    for k in (1.0, -0.5)], tol=4)
exact("index_copy", lambda x, index, src, axis: x.index_copy(axis, index, src),
    lambda g: [(g.f(4, 3), T([2, 0], "i64"), g.f(2, 3), dict(axis=0)),
    (g.f(4, 3), T([1], "i64"), g.f(4, 1), dict(axis=1)), (g.i(5), T([4, 1], "i64"), g.i(2),
    dict(axis=0))])
exact("index_fill", lambda x, index, axis, value: x.index_fill(axis, index, value),
    lambda g: [(g.f(4, 3), T([2, 0, 2], "i64"), dict(axis=0, value=1.5)),
    (g.f(4, 3), T([1], "i64"), dict(axis=1, value=0.0)), (g.i(5), T([4, 1], "i64"),
    dict(axis=0, value=3))])
# coordinates: x[i, j] with i, j of one shape; Cartesian: x[i][:, j]
COORDS = lambda g: [(g.f(4, 3), g.i(5, lo=0, hi=3), g.i(5, lo=0, hi=2)),
    (g.f(4, 3, 2), g.i(2, 2, lo=0, hi=3), g.i(2, 2, lo=0, hi=2)),
    (g.f(4, 3), g.i(2, 1, lo=0, hi=3), g.i(3, lo=0, hi=2)),
    (g.i(4, 3), g.i(5, lo=-4, hi=3), g.i(5, lo=-3, hi=2))]
exact("index_coords", lambda x, i, j: x[i, j], COORDS)
exact("index_cartesian", lambda x, i, j: x[i][:, j], lambda g: [(g.f(4, 3), g.i(5, lo=0, hi=3),
    g.i(2, lo=0, hi=2)), (g.f(4, 3, 2), g.i(2, lo=0, hi=3), g.i(4, lo=0, hi=2)),
    (g.i(4, 3), g.i(3, lo=0, hi=3), g.i(3, lo=0, hi=2))])
exact("index_put", lambda x, i, j, v: x.index_put((i, j), v),
    lambda g: [(g.f(4, 3), T([0, 3, 2], "i64"), T([1, 1, 0], "i64"), g.f(3)),
    (g.f(4, 3), T([1, 2], "i64"), T([0, 0], "i64"), g.f()),
    (g.f(3, 2, 2), T([0, 2], "i64"), T([1, 0], "i64"), g.f(2, 2)),
    (g.i(4, 3), T([0, 3], "i64"), T([1, 1], "i64"), g.i(2))])
loose("index_put_add", lambda x, i, j, v: x.index_put((i, j), v, accumulate=True),
    lambda g: [(g.f(4, 3), T([0, 3, 0, 0], "i64"), T([1, 1, 1, 2], "i64"), g.f(4)),
    (g.f(3, 2, 2), T([2, 2], "i64"), T([0, 0], "i64"), g.f(2, 2)),
    (g.i(4, 3), T([0, 0], "i64"), T([1, 1], "i64"), g.i(2))], tol=4)
MASKS = [((4,), (4,)), ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 2, 2), (2, 1))]
exact("masked_select", torch.masked_select, lambda g: [(any_of(g, d, *s), g.b(*m))
    for d in ("f32", "i64") for s, m in MASKS] + [(g.f(0), g.b(0)), (g.f(3), T([0, 0, 0], "b8"))])
exact("masked_fill", lambda x, mask, value: x.masked_fill(mask, value),
    lambda g: [(any_of(g, d, *s), g.b(*m), dict(value=2.0 if d == "f32" else 2))
    for d in ("f32", "i64") for s, m in MASKS] + [(g.f(3), g.b(3), dict(value=-INF, _grad=1)),
    (g.f(4, d="bf16"), g.b(4), dict(value=0.0))])
exact("masked_scatter", torch.masked_scatter, lambda g: [(g.f(*s), g.b(*m), g.f(9))
    for s, m in MASKS] + [(g.i(5), g.b(5), g.i(5))])
exact("one_hot", lambda x, classes: F.one_hot(x, classes),
    lambda g: [(g.i(*s, lo=0, hi=c - 1), dict(classes=c)) for s, c in (((5,), 4), ((2, 3), 3),
    ((), 2), ((0,), 3), ((2, 1, 2), 6))])
ORDER = [dict(descending=0), dict(descending=1)]
TIES = [[3.0, 1.0, NAN, 1.0, -INF, 3.0, 0.0, -0.0, INF], [2.0, 2.0, 2.0]]


def stable(x, axis, descending):
    return x.sort(stable=True, dim=axis, descending=bool(descending))


along("sort", lambda x, axis, descending: tuple(stable(x, axis, descending)), Gen.distinct,
    dtypes="f64 bf16", ints="i64 i32 u8", args=ORDER, special=TIES, tol=0)
along("argsort", lambda x, axis, descending: stable(x, axis, descending)[1], Gen.distinct,
    dtypes="f64 bf16", ints="i64 i32 u8", args=ORDER, special=TIES, grad=0)
along("topk", lambda x, axis, k, largest: tuple(x.topk(k, axis, bool(largest))), Gen.distinct,
    dtypes="f64 bf16", args=[dict(k=1, largest=1), dict(k=2, largest=1), dict(k=2, largest=0)],
    lines=LINES[:5], tol=0)
exact("unique", lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    lambda g: [(g.i(n, lo=0, hi=5, d=d),) for n in (0, 1, 12) for d in ("i64", "i32", "u8")] +
    [(T([2.5, -1.0, 2.5, 0.0, -1.0]),), (g.i(3, 4, lo=0, hi=3),)], grad=0)
exact("unique_consecutive", lambda x: torch.unique_consecutive(x, return_inverse=True,
    return_counts=True), lambda g: [(g.i(n, lo=0, hi=2),) for n in (1, 12)] +
    [(T([1.0, 1.0, 2.0, 1.0]),)], grad=0)
exact("nonzero", torch.nonzero, lambda g: [(any_of(g, d, *s, lo=-1, hi=1),)
    for d in ("i64", "b8", "i32") for s in ((6,), (3, 4), (2, 2, 2))] +
    [(T([0.0, -0.0, NAN, 1e-45, 2.0]),), (g.f(0),), (T([0.0, 0.0]),)], grad=0)
exact("searchsorted", lambda s, v, right: torch.searchsorted(s, v, right=bool(right)),
    lambda g: [(T([1.0, 2.0, 2.0, 5.0]), T(v), dict(right=r)) for r in (0, 1)
    for v in ([0.0, 1.0, 2.0, 3.0, 9.0], [[2.0, 5.0], [-1.0, 5.5]])] +
    [(T([1, 3, 3], "i64"), T([3, 0, 4], "i64"), dict(right=0)),
    (T([[1.0, 2.0], [0.0, 3.0]]), T([[1.5], [3.0]]), dict(right=1))], grad=0)
exact("searchsorted.sorter", lambda s, v, sorter, right: torch.searchsorted(s, v, right=bool(right),
    sorter=sorter.long()), lambda g: [(T([5.0, 1.0, 2.0, 2.0]), T(v), T([1, 2, 3, 0], d), dict(right=r))
    for r in (0, 1) for d in ("i64", "i32") for v in ([0.0, 1.0, 2.0, 9.0], [[2.0, 5.0], [-1.0, 5.5]])] +
    [(T([[2.0, 1.0], [0.0, 3.0]]), T([[1.5], [3.0]]), T([[1, 0], [0, 1]], "i64"), dict(right=1))], grad=0)
exact("isin", torch.isin, lambda g: [(g.i(6), g.i(4)), (g.i(2, 3), g.i(5)),
    (T([1.0, 2.5, -0.0]), T([0.0, 2.5]))], grad=0)

# --- linear algebra -------------------------------------------------------------------------------

group("linear")
MATMULS = [((3, 4), (4, 2)), ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (4, 2)),
    ((2, 3, 4), (2, 4, 2)), ((2, 1, 3, 4), (3, 4, 2)), ((3, 0), (0, 2)), ((1, 1), (1, 1)),
    ((0, 4), (4, 2)), ((17, 33), (33, 9))]


def products(name, fn, pairs, dtypes="f64 f16 bf16", ints="", **o):
    loose(name, fn, lambda g: [(g.f(*a), g.f(*b)) for a, b in pairs] +
        [(g.f(*pairs[0][0], d=d), g.f(*pairs[0][1], d=d)) for d in dtypes.split()] +
        [(g.i(*pairs[0][0], d=d), g.i(*pairs[0][1], d=d)) for d in ints.split()], **o)


products("matmul", torch.matmul, MATMULS, ints="i64 i32")
loose("matmul_transposed", lambda a, b: a.mT @ b.mT, lambda g: [(g.f(4, 3), g.f(2, 4)),
    (g.f(2, 4, 3), g.f(2, 4)), (g.f(4, 3, d="f64"), g.f(2, 4, d="f64"))])
products("dot", torch.dot, [((5,), (5,)), ((1,), (1,)), ((0,), (0,)), ((33,), (33,))], ints="i64")
products("outer", torch.outer, [((3,), (4,)), ((1,), (5,)), ((2,), (0,))], ints="i64", tol=4)
products("kron", torch.kron, [((2, 3), (3, 2)), ((2,), (3,)), ((1, 2), (2, 1))], dtypes="f64",
    tol=4)
loose("cross", lambda a, b, axis: torch.linalg.cross(a, b, dim=axis),
    lambda g: [(g.f(*s), g.f(*s), dict(axis=a)) for s, a in (((3,), 0), ((2, 3), 1), ((3, 4), 0),
    ((2, 3, 2), -2))], tol=8)
EINSUMS = [("ij,jk->ik", (2, 3), (3, 4)), ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)),
    ("i,j->ij", (3,), (4,)), ("ij,ij->", (2, 3), (2, 3)), ("ij,j->i", (2, 3), (3,)),
    ("bhid,bhjd->bhij", (1, 2, 3, 2), (1, 2, 4, 2)), ("ijk,kl->lij", (2, 3, 2), (2, 3)),
    ("...ij,...jk->...ik", (2, 2, 3), (3, 2)), ("ij,kl->ijkl", (2, 2), (1, 3)),
    ("ij,jk", (2, 3), (3, 2))]
loose("einsum", lambda *x, equation: torch.einsum(equation, *x),
    lambda g: [(g.f(*a), g.f(*b), dict(equation=e)) for e, a, b in EINSUMS] +
    [(g.f(*s), dict(equation=e)) for e, s in (("ii->i", (3, 3)), ("ij->ji", (2, 3)),
    ("ij->", (2, 3)), ("ii", (3, 3)), ("ijk->ki", (2, 3, 2)))] +
    [(g.f(2, 3), g.f(3, 4), g.f(4, 2), dict(equation="ij,jk,kl->il"))])
loose("tensordot", lambda a, b, axes: torch.tensordot(a, b, axes),
    lambda g: [(g.f(2, 3, 4), g.f(3, 4, 2), dict(axes=2)), (g.f(2, 3), g.f(3, 2), dict(axes=1)),
    (g.f(2), g.f(3), dict(axes=0)), (g.f(2, 1), g.f(3, 2), dict(axes=1)),
    (g.f(2, 3, 1), g.f(1, 4, 2), dict(axes=2))])
loose("trace", torch.trace, lambda g: [(g.f(3, 3),), (g.f(2, 4),), (g.i(3, 3),),
    (g.f(4, 4, d="f64"),)])
loose("matrix_power", lambda x, n: torch.linalg.matrix_power(x, n),
    lambda g: [(g.regular(3, 3), dict(n=n)) for n in (0, 1, 2, 3, -1)], tol=256)
loose("addmm", lambda c, a, b, beta, alpha: torch.addmm(c, a, b, beta=beta, alpha=alpha),
    lambda g: [(g.f(*c), g.f(2, 3), g.f(3, 4), dict(beta=x, alpha=y)) for c in ((2, 4), (4,))
    for x, y in ((1.0, 1.0), (0.5, -2.0))])
loose("cdist", lambda a, b, p: torch.cdist(a, b, p), lambda g: [(g.f(3, 2), g.f(4, 2), dict(p=p))
    for p in (2.0, 1.0)] + [(g.f(2, 3, 2), g.f(2, 2, 2), dict(p=2.0))], grad=1)
REGULAR = [(3, 3), (1, 1), (5, 5), (2, 3, 3)]


def solver(name, fn, make, shapes, tol=256, **o):
    loose(name, fn, lambda g: [tuple(m(g, *s) for m, s in zip(make, shape)) for shape in shapes] +
        [tuple(m(g, *s, d="f64") for m, s in zip(make, shapes[0]))], tol=tol, **o)


solver("solve", torch.linalg.solve, (Gen.regular, Gen.f), [((3, 3), (3, 2)), ((3, 3), (3,)),
    ((1, 1), (1, 1)), ((2, 4, 4), (2, 4, 1))])
solver("cholesky", torch.linalg.cholesky, (Gen.positive_definite,), [[s] for s in REGULAR])
solver("inverse", torch.linalg.inv, (Gen.regular,), [[s] for s in REGULAR])
solver("det", torch.linalg.det, (Gen.regular,), [[s] for s in REGULAR])
loose("matrix_exp", torch.linalg.matrix_exp, lambda g:
    [(g.f(*s),) for s in ((3, 3), (1, 1), (2, 4, 4), (0, 0))] + [(m * g.f(3, 3, d="f64"),) for m in (1e-3, 1, 4)] + [(g.regular(3, 3),)], tol=512)
solver("slogdet", lambda x: tuple(torch.linalg.slogdet(x)), (Gen.regular,), [[s] for s in REGULAR],
    grad=1)
solver("solve_triangular", lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False),
    (Gen.regular, Gen.f), [((3, 3), (3, 2)), ((4, 4), (4, 1)), ((2, 2, 2), (2, 2, 3))])
solver("lu", lambda x: (lambda p, l, u: (l, u, p.detach()))(*torch.linalg.lu(x)), (Gen.f,),
    [[(3, 3)], [(4, 2)], [(2, 4)], [(2, 3, 3)], [(1, 1)]])
# up to signs: abs(r) and q r; singular values and u diag(s) vt; eigenvalues and v diag(w) vt
solver("qr", lambda x: (lambda q, r: (r.abs(), q @ r))(*torch.linalg.qr(x)), (Gen.regular,),
    [[(3, 3)], [(4, 2)], [(2, 3, 3)]], grad=0)
solver("svd", lambda x: (lambda u, s, vt: (s, (u * s.unsqueeze(-2)) @ vt))(*torch.linalg.svd(x,
    full_matrices=False)), (Gen.regular,), [[(3, 3)], [(4, 2)], [(2, 4)], [(2, 3, 3)]], grad=0)
solver("svdvals", torch.linalg.svdvals, (Gen.regular,), [[(3, 3)], [(4, 2)]], grad=1)
loose("matrix_norm", lambda x, p: torch.linalg.matrix_norm(x, "fro" if p == 0 else p), lambda g:
    [(g.distinct(*s, d=d), dict(p=p)) for s, d in (((3, 4), "f32"), ((2, 4, 3), "f64"))
    for p in (0.0, 1.0, -1.0, 2.0, -2.0, INF, -INF)], tol=32, grad=1)
loose("nuclear_norm", lambda x: torch.linalg.matrix_norm(x, "nuc"), lambda g: [(g.regular(3, 3),),
    (g.regular(4, 2, d="f64"),), (g.regular(2, 3, 3),)], tol=32, grad=1)
solver("cholesky_solve", lambda l, b: torch.cholesky_solve(b, l.tril()), (Gen.regular, Gen.f),
    [((3, 3), (3, 2)), ((2, 4, 4), (2, 4, 1))], tol=1024)
def cond(x, p):
    """torch.linalg.cond, whose gradient fails but for p = 2 and -2"""
    if abs(p) == 2:
        return torch.linalg.cond(x, p)
    p = "fro" if p == 0 else p
    return torch.linalg.matrix_norm(x, p) * torch.linalg.matrix_norm(torch.linalg.inv(x), p)


loose("cond", cond, lambda g:
    [(g.regular(*s, d=d), dict(p=p)) for s, d in (((3, 3), "f32"), ((2, 4, 4), "f64"))
    for p in (0.0, 1.0, -1.0, 2.0, -2.0, INF, -INF)], tol=1024, grad=1)
exact("matrix_rank", lambda x, atol, rtol: torch.linalg.matrix_rank(x, atol=atol or None, rtol=rtol or None),
    lambda g: [(x, dict(atol=a, rtol=r)) for a, r in ((0.0, 0.0), (0.5, 0.0), (0.0, 0.1), (2.0, 0.25))
    for x in (g.f(4, 3), g.f(4, 2) @ g.f(2, 5), g.f(2, 3, 1, d="f64") @ g.f(2, 1, 4, d="f64"))])
solver("eigh", lambda x: (lambda w, v: (w, (v * w.unsqueeze(-2)) @ v.mT))(*torch.linalg.eigh(x)),
    (Gen.positive_definite,), [[(3, 3)], [(1, 1)], [(2, 4, 4)]], grad=0)
solver("eig", lambda x: (lambda w, v: (w.real, w.imag, v.real**2 + v.imag**2))(*torch.linalg.eig(x)),
    (Gen.f,), [[(3, 3)], [(1, 1)], [(2, 4, 4)], [(5, 5)]], grad=1)
solver("eigvalsh", lambda x: torch.linalg.eigvalsh((x + x.mT) / 2), (Gen.regular,),
    [[(3, 3)], [(4, 4)]], grad=1)
solver("lstsq", lambda a, b: torch.linalg.lstsq(a, b, driver="gels").solution, (Gen.regular, Gen.f),
    [((5, 3), (5, 2)), ((3, 3), (3, 1))], grad=0)
solver("pinv", torch.linalg.pinv, (Gen.regular,), [[(3, 3)], [(4, 2)]], grad=0)
loose("linear", F.linear, lambda g: [(g.f(*x), g.f(4, 3), g.f(4))
    for x in ((3,), (2, 3), (2, 2, 3), (0, 3))] + [(g.f(2, 3), g.f(4, 3)),
    (g.f(2, 3, d="f64"), g.f(4, 3, d="f64"), g.f(4, d="f64")),
    (g.f(2, 3, d="bf16"), g.f(4, 3, d="bf16"), g.f(4, d="bf16"))])
loose("bilinear", F.bilinear, lambda g: [(g.f(2, 3), g.f(2, 4), g.f(5, 3, 4), g.f(5)),
    (g.f(2, 2), g.f(2, 2), g.f(1, 2, 2), g.f(1))])


def pairs(fn):
    """A complex function on real tensors whose last axis holds (re, im)."""
    return lambda x, **k: torch.view_as_real(fn(torch.view_as_complex(x.contiguous()), **k))


def spectra(name, fn, shapes, d=("f32", "f64")):
    loose(name, fn, lambda g: [(g.f(*s, d=t),) for t in d for s in shapes], tol=32)


COMPLEX = [(8, 2), (7, 2), (1, 2), (2, 6, 2), (3, 16, 2)]
spectra("fft", pairs(torch.fft.fft), COMPLEX)
spectra("ifft", pairs(torch.fft.ifft), COMPLEX)
spectra("fft2", pairs(torch.fft.fft2), [(4, 4, 2), (3, 5, 2), (2, 4, 2, 2)])
spectra("ifft2", pairs(torch.fft.ifft2), [(4, 4, 2), (3, 5, 2)])
spectra("rfft", lambda x: torch.view_as_real(torch.fft.rfft(x)),
    [(8,), (7,), (1,), (2, 12), (3, 16)])
loose("irfft", lambda x, n: torch.fft.irfft(torch.view_as_complex(x.contiguous()), n),
    lambda g: [(g.f(*s, 2, d=d), dict(n=n)) for d in ("f32", "f64")
    for s, n in (((5,), 8), ((4,), 7), ((2, 4), 6))], grad=1)

# --- neural ---------------------------------------------------------------------------------------

group("neural")


def conv_cases(dims, transposed=False):
    """Strides, padding, dilation, groups and bias, of 1 to 3 dims. The bias may be absent."""
    big = {1: (9,), 2: (6, 7), 3: (4, 4, 3)}[dims]
    one, two = (3,) * dims, (2,) * dims

    def case(n, c, o, kernel, size=big, bias=True, groups=1, **k):
        args = dict(stride=[1] * dims, pad=[0] * dims, dilation=[1] * dims, groups=groups)
        args.update({name: v if isinstance(v, list) else [v] * dims for name, v in k.items()})
        w = (c, o // groups) + kernel if transposed else (o, c // groups) + kernel
        return ([(n, c) + size, w] + ([(o,)] if bias else []), args)
    out = [case(1, 2, 3, one), case(2, 1, 2, two, bias=False), case(1, 2, 2, one, pad=1),
        case(1, 1, 1, two, stride=2), case(1, 2, 4, two, groups=2),
        case(1, 2, 2, two, groups=2, stride=2, pad=1, bias=False), case(1, 1, 2, two, dilation=2),
        case(1, 1, 1, (1,) * dims), case(2, 3, 3, one, groups=3, pad=1),
        case(1, 1, 1, one, stride=2, pad=1, dilation=2 if dims < 3 else 1)]
    if dims > 1:
        out += [case(1, 1, 2, (3, 2) + (1,) * (dims - 2), stride=[2, 1] + [1] * (dims - 2),
            pad=[1, 0] + [0] * (dims - 2))]
    if transposed:
        out += [case(1, 2, 2, two, stride=2, output_pad=1),
            case(1, 1, 2, one, stride=2, pad=1, output_pad=1)]
        for shapes, args in out:
            args.setdefault("output_pad", [0] * dims)
    return out


def convolution(fn):
    def run(x, w, bias=None, *, stride, pad, dilation, groups, output_pad=None):
        if output_pad is None:
            return fn(x, w, bias, stride, pad, dilation, groups)
        return fn(x, w, bias, stride, pad, output_pad, groups, dilation)
    return run


for d in (1, 2, 3):
    layer(f"conv{d}d", convolution(getattr(F, f"conv{d}d")), conv_cases(d), tol=32)
    layer(f"conv_transpose{d}d", convolution(getattr(F, f"conv_transpose{d}d")),
        conv_cases(d, True), tol=32)
SAME = [((1, 2, 7, 6), 3, 1), ((1, 1, 5, 5), 2, 1), ((2, 1, 6, 7), 3, 1), ((1, 1, 4, 4), 4, 1)]
layer("conv2d_same", lambda x, w: F.conv2d(x, w, padding="same"),
    [([s, (2, s[1], k, k)], {}) for s, k, _ in SAME], tol=32)
layer("unfold", lambda x, kernel, stride, pad, dilation: F.unfold(x, kernel, dilation, pad, stride),
    [([(1, 2, 4, 5)], dict(kernel=[2, 2], stride=[1, 1], pad=[0, 0], dilation=[1, 1])),
    ([(2, 1, 5, 5)], dict(kernel=[3, 2], stride=[2, 1], pad=[1, 0], dilation=[1, 2]))], tol=4)
layer("fold", lambda x, size, kernel, stride, pad, dilation: F.fold(x, size, kernel, dilation, pad,
    stride), [([(1, 8, 12)], dict(size=[4, 5], kernel=[2, 2], stride=[1, 1], pad=[0, 0],
    dilation=[1, 1])), ([(1, 4, 9)], dict(size=[4, 4], kernel=[2, 2], stride=[2, 2], pad=[1, 1],
    dilation=[1, 1]))], tol=8)


def pool_cases(dims, pads=True):
    big = {1: (9,), 2: (6, 7), 3: (4, 5, 4)}[dims]
    shapes = [(1, 2) + big, (2, 1) + big]
    settings = [(2, 2, 0), (3, 1, 0), (3, 2, 1), (2, 3, 0), (2, 1, 1)]
    return [(s, dict(kernel=[k] * dims, stride=[t] * dims, pad=[p] * dims)) for s in shapes
        for k, t, p in settings if not (dims == 3 and s[0] == 2)]


def pooled(name, fn, dims, **o):
    def cases(g):
        out = [(g.distinct(*s), a) for s, a in pool_cases(dims)]
        return out + [(g.distinct(*pool_cases(dims)[0][0], d=d), pool_cases(dims)[0][1])
            for d in ("f64", "bf16")]
    loose(name, fn, cases, **o)


for d in (1, 2, 3):
    pooled(f"max_pool{d}d", lambda x, kernel, stride, pad, fn=getattr(F, f"max_pool{d}d"): fn(x,
        kernel, stride, pad, return_indices=True), d)
    pooled(f"avg_pool{d}d", lambda x, kernel, stride, pad, fn=getattr(F, f"avg_pool{d}d"): fn(x,
        kernel, stride, pad), d)
    pooled(f"avg_pool{d}d_inside", lambda x, kernel, stride, pad, fn=getattr(F,
        f"avg_pool{d}d"): fn(x, kernel, stride, pad, count_include_pad=False), d)
    big = {1: (7,), 2: (5, 6), 3: (3, 4, 4)}[d]
    for kind in ("avg", "max"):
        fn = getattr(F, f"adaptive_{kind}_pool{d}d")
        loose(f"adaptive_{kind}_pool{d}d", lambda x, size, fn=fn: fn(x, size),
            lambda g, big=big, d=d: [(g.distinct(1, 2, *big), dict(size=[k] * d))
            for k in (1, 2, 3)] + [(g.distinct(2, 1, *big, d="f64"), dict(size=[2] * d))], grad=1
            if kind == "max" else 2)
layer("lp_pool2d", lambda x, p, kernel, stride: F.lp_pool2d(x, p, kernel, stride),
    [([lambda g: g.f(1, 2, 4, 4, lo=0.2)], dict(p=2.0, kernel=[2, 2], stride=[2, 2])),
    ([lambda g: g.f(1, 1, 5, 5, lo=0.2)], dict(p=3.0, kernel=[3, 3], stride=[1, 1]))])


def stats(g, c):
    return g.f(c, lo=-0.4, hi=0.4), g.f(c, lo=0.6, hi=1.4)


def batch_norm_cases(g):
    """x, weight, bias, running mean and variance."""
    out = []
    for s in [(4, 3), (3, 2, 5), (2, 3, 2, 2), (2, 1, 2, 2, 2)]:
        for train in (0, 1):
            out += [(g.f(*s), g.f(s[1]), g.f(s[1])) + stats(g, s[1]) +
                (dict(train=train, momentum=m, eps=e),) for m, e in ((0.1, 1e-5), (0.3, 0.1))]
    return out


def batch_norm(x, w, b, mean, var, train, momentum, eps):
    mean, var = mean.clone(), var.clone()
    return F.batch_norm(x, mean, var, w, b, bool(train), momentum, eps), mean, var


loose("batch_norm", batch_norm, batch_norm_cases, diff=[0, 1, 2], tol=32)
layer("layer_norm", lambda x, w, b, eps: F.layer_norm(x, w.shape, w, b, eps),
    [([(*s, *n), n, n], dict(eps=e)) for e in (1e-5, 0.1) for s, n in (((3,), (4,)), ((2, 3), (5,)),
    ((2,), (3, 2)), ((), (6,)))], tol=32)
layer("layer_norm_plain", lambda x, n, eps: F.layer_norm(x, x.shape[x.dim() - n:], eps=eps),
    [([(3, 4)], dict(n=1, eps=1e-5)), ([(2, 3, 2)], dict(n=2, eps=1e-5))], tol=32)
layer("group_norm", lambda x, w, b, groups, eps: F.group_norm(x, groups, w, b, eps),
    [([(2, 4, *s), (4,), (4,)], dict(groups=k, eps=1e-5)) for s in ((3,), (2, 2)) for k in (1, 2, 4)
    if k < 4 or s], tol=32)
layer("instance_norm", lambda x, w, b, eps: F.instance_norm(x, weight=w, bias=b, eps=eps),
    [([(2, 3, *s), (3,), (3,)], dict(eps=1e-5)) for s in ((5,), (2, 3))], tol=32)
layer("rms_norm", lambda x, w, eps: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w,
    [([s, (s[-1],)], dict(eps=e)) for s in ((3, 4), (2, 3, 5), (6,)) for e in (1e-6, 0.1)], tol=32)
layer("local_response_norm", lambda x, size, alpha, beta, k: F.local_response_norm(x, size, alpha,
    beta, k), [([(2, 5, 3)], dict(size=3, alpha=0.1, beta=0.75, k=1.0)),
    ([(1, 4, 2, 2)], dict(size=2, alpha=1e-4, beta=0.5, k=2.0))])
layer("normalize", lambda x, p, axis, eps: F.normalize(x, p, axis, eps),
    [([(3, 4)], dict(p=p, axis=a, eps=1e-12)) for p in (2.0, 1.0, 3.0) for a in (1, 0)], grad=1)
layer("weight_norm", lambda v, g, axis: v * (g / v.norm(2, [d for d in range(v.dim()) if d != axis],
    keepdim=True)), [([(4, 3), (4, 1)], dict(axis=0)), ([(4, 3, 2), (1, 3, 1)], dict(axis=1))])
layer("cosine_similarity", lambda a, b, axis, eps: F.cosine_similarity(a, b, axis, eps),
    [([(3, 4), (3, 4)], dict(axis=a, eps=1e-8)) for a in (1, 0)], grad=1)
layer("pairwise_distance", lambda a, b, p: F.pairwise_distance(a, b, p),
    [([(3, 4), (3, 4)], dict(p=p)) for p in (2.0, 1.0)], grad=1, tol=32)
layer("embedding", lambda index, w: F.embedding(index, w), [([lambda g, s=s: g.i(*s, lo=0, hi=4),
    (5, 3)], {}) for s in ((4,), (2, 3), (), (2, 2, 2))], tol=2)
layer("embedding_padding", lambda index, w, padding: F.embedding(index, w, padding),
    [([lambda g: g.i(6, lo=0, hi=2), (5, 3)], dict(padding=1))], tol=2, grad=1)
layer("embedding_bag", lambda index, w, mode: F.embedding_bag(index, w, mode=mode),
    [([lambda g: g.i(3, 4, lo=0, hi=4), (5, 3)], dict(mode=m)) for m in ("sum", "mean")], grad=1,
    dtypes="f64")
SIZES1, SIZES2 = [(5, 8), (6, 3), (4, 4), (1, 3)], [((3, 4), (6, 8)), ((4, 5), (2, 3)),
    ((3, 3), (5, 4)), ((4, 4), (4, 4))]
layer("interpolate_nearest1d", lambda x, size: F.interpolate(x, size),
    [([(1, 2, a)], dict(size=[b])) for a, b in SIZES1], dtypes="f64", tol=2)
layer("interpolate_linear1d", lambda x, size, align: F.interpolate(x, size, mode="linear",
    align_corners=bool(align)), [([(1, 2, a)], dict(size=[b], align=k)) for a, b in SIZES1
    for k in (0, 1)], dtypes="f64")
layer("interpolate_nearest", lambda x, size: F.interpolate(x, size),
    [([(1, 2) + a], dict(size=list(b))) for a, b in SIZES2], dtypes="f64", tol=2)
layer("interpolate_bilinear", lambda x, size, align: F.interpolate(x, size, mode="bilinear",
    align_corners=bool(align)), [([(1, 2) + a], dict(size=list(b), align=k)) for a, b in SIZES2
    for k in (0, 1)], dtypes="f64")
layer("interpolate_bicubic", lambda x, size, align: F.interpolate(x, size, mode="bicubic",
    align_corners=bool(align)), [([(1, 2) + a], dict(size=list(b), align=k)) for a, b in SIZES2
    for k in (0, 1)], dtypes="f64", tol=32)
layer("interpolate_area", lambda x, size: F.interpolate(x, size, mode="area"),
    [([(1, 2) + a], dict(size=list(b))) for a, b in SIZES2], dtypes="f64")
layer("interpolate_trilinear", lambda x, size, align: F.interpolate(x, size, mode="trilinear",
    align_corners=bool(align)), [([(1, 1, 2, 3, 2)], dict(size=[3, 4, 4], align=k))
    for k in (0, 1)], dtypes="f64")
GRIDS = [dict(mode=m, padding=p, align=a) for m in ("bilinear", "nearest")
    for p in ("zeros", "border", "reflection") for a in (0, 1)]
layer("grid_sample", lambda x, grid, mode, padding, align: F.grid_sample(x, grid, mode, padding,
    bool(align)), [([(1, 2, 4, 5), lambda g: g.f(1, 3, 4, 2, lo=-1.3, hi=1.3)], a) for a in GRIDS],
    dtypes="f64", tol=256, grad=1)
layer("affine_grid", lambda theta, size, align: F.affine_grid(theta, size, bool(align)),
    [([(2, 2, 3)], dict(size=[2, 1, 3, 4], align=k)) for k in (0, 1)], dtypes="f64")
layer("dropout_off", lambda x, p: F.dropout(x, p, training=False),
    [([(3, 4)], dict(p=0.5)), ([(5,)], dict(p=0.0))], tol=0)


def attend(q, k, v, mask=None, *, causal, scale):
    """softmax(q k^T scale, masked) v; mask b8: true takes part; scale 0: 1 / sqrt(d)."""
    s = q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1]))
    if causal:
        mask = torch.ones(s.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        s = s.masked_fill(~mask, -INF) if mask.dtype == torch.bool else s + mask
    return s.softmax(-1) @ v


ATTENTION = [([(2, 3, 4), (2, 5, 4), (2, 5, 3)], dict(causal=0, scale=0.0)),
    ([(1, 2, 4, 4), (1, 2, 4, 4), (1, 2, 4, 4)], dict(causal=1, scale=0.0)),
    ([(1, 2, 3, 2), (1, 2, 3, 2), (1, 2, 3, 5)], dict(causal=0, scale=0.5)),
    ([(2, 3, 4), (2, 5, 4), (2, 5, 3), (3, 5)], dict(causal=0, scale=0.0)),
    ([(2, 3, 4), (2, 4, 4), (2, 4, 3), lambda g: torch.cat([T([[1]] * 3, "b8"), g.b(3, 3)], 1)],
    dict(causal=0, scale=0.0))]
layer("attention", attend, ATTENTION)


def attend_as(q, k, v, mask=None, *, causal, offset, window, softcap):
    """Query i stands at offset + i; heads of k and v serve as many neighbours of q's; window as Mistral's,
    softcap as Gemma 2's."""
    k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if softcap:
        s = softcap * (s / softcap).tanh()
    far = torch.arange(s.shape[-1]) - (torch.arange(s.shape[-2]) + offset)[:, None]
    sees = far <= 0 if causal else far < (window or INF)
    if window:
        sees = sees & (far > -window)
    if mask is not None:
        s = s.masked_fill(~mask, -INF) if mask.dtype == torch.bool else s + mask
    return s.masked_fill(~sees, -INF).softmax(-1) @ v


layer("attention_options", attend_as, [([(2, 4, 3, 4), (2, 2, 6, 4), (2, 2, 6, 3)],
    dict(causal=1, offset=2, window=0, softcap=0.0)),
    ([(1, 2, 4, 2), (1, 2, 6, 2), (1, 2, 6, 2)], dict(causal=1, offset=2, window=3, softcap=1.5)),
    ([(1, 2, 4, 2), (1, 2, 6, 2), (1, 2, 6, 2)], dict(causal=0, offset=1, window=2, softcap=0.0)),
    ([(1, 3, 1, 4), (1, 3, 7, 4), (1, 3, 7, 5)], dict(causal=1, offset=5, window=0, softcap=0.5)),
    ([(2, 4, 1, 4), (2, 2, 5, 4), (2, 2, 5, 2), (4, 1, 5)], dict(causal=0, offset=0, window=0, softcap=0.0))])


def rotary(x, base, offset, scale, dim, interleaved):
    """RoFormer's; pairs by halves as GPT-NeoX and Hugging Face, interleaved as GPT-J and Llama."""
    d = dim or x.shape[-1]
    place = (torch.arange(x.shape[-2], dtype=torch.float64) + offset) * scale
    angle = place[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = (x[..., 0:d:2], x[..., 1:d:2]) if interleaved else (x[..., :d // 2], x[..., d // 2:d])
    pair = a * c - b * s, a * s + b * c
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([turned, x[..., d:]], -1)


layer("rotary", rotary, [([(2, 3, 4)], dict(base=10000.0, offset=0, scale=1.0, dim=0, interleaved=0)),
    ([(1, 2, 3, 6)], dict(base=100.0, offset=7, scale=0.25, dim=0, interleaved=1)),
    ([(3, 7)], dict(base=10000.0, offset=1000, scale=1.0, dim=4, interleaved=0)),
    ([(2, 6)], dict(base=500000.0, offset=1, scale=1.0, dim=4, interleaved=1))])


def relative_scores(q, table, m, offset):
    c = table.shape[0] // 2
    far = torch.arange(m) - (torch.arange(q.shape[-2]) + offset)[:, None]
    return torch.einsum("...nd,nmd->...nm", q, table[far.clamp(-c, c) + c])


layer("relative_scores", relative_scores, [([(2, 3, 4), (5, 4)], dict(m=3, offset=0)),
    ([(1, 2, 2, 3), (3, 3)], dict(m=6, offset=4)), ([(2, 2), (21, 2)], dict(m=4, offset=1))])


def relative_buckets(n, m, offset, buckets, most, causal):
    """T5's relative_position_bucket."""
    far, bucket = torch.arange(m) - (torch.arange(n) + offset)[:, None], 0
    if causal:
        far = -far.clamp(max=0)
    else:
        buckets //= 2
        bucket, far = (far > 0).long() * buckets, far.abs()
    exact = buckets // 2
    large = exact + (torch.log(far.float() / exact) / math.log(most / exact) * (buckets - exact)).long()
    return bucket + torch.where(far < exact, far, large.clamp(max=buckets - 1))


row("relative_buckets", relative_buckets, lambda g: [(dict(n=n, m=m, offset=o, buckets=b, most=t, causal=c),)
    for n, m, o, b, t, c in ((5, 5, 0, 8, 16, 0), (1, 140, 139, 32, 128, 1), (3, 200, 60, 32, 128, 0), (4, 9, 5, 6, 7, 1))],
    grad=0)


def alibi(heads, n, m, offset):
    """The slopes of the paper's code."""
    def slopes(k):
        even = 2 ** math.floor(math.log2(k))
        return [2 ** (-8 * (i + 1) / even) for i in range(even)] + (slopes(2 * even)[::2][:k - even] if k > even else [])
    far = (torch.arange(m) - (torch.arange(n) + offset)[:, None]).abs()
    return -torch.tensor(slopes(heads), dtype=torch.float64)[:, None, None] * far


row("alibi", lambda **a: alibi(**a).float(), lambda g: [(dict(heads=h, n=n, m=m, offset=o),)
    for h, n, m, o in ((8, 3, 3, 0), (6, 2, 5, 3), (1, 1, 2, 0))], grad=0)


def cell(fn, gates):
    def cases(g):
        out = []
        for d, (n, i, h) in [("f32", (2, 3, 4)), ("f32", (1, 1, 1)), ("f32", (3, 5, 2)),
            ("f64", (2, 3, 4)), ("bf16", (2, 3, 2))]:
            state = [g.f(n, h, d=d) for _ in range(2 if fn is torch.lstm_cell else 1)]
            out += [(g.f(n, i, d=d), *state, g.f(gates * h, i, d=d), g.f(gates * h, h, d=d),
                g.f(gates * h, d=d), g.f(gates * h, d=d))]
        return out
    return cases


loose("rnn_tanh_cell", torch.rnn_tanh_cell, cell(torch.rnn_tanh_cell, 1))
loose("rnn_relu_cell", torch.rnn_relu_cell, cell(torch.rnn_relu_cell, 1))
loose("gru_cell", torch.gru_cell, cell(torch.gru_cell, 3))
loose("lstm_cell", lambda x, h, c, *w: torch.lstm_cell(x, (h, c), *w), cell(torch.lstm_cell, 4))


def recurrent(kind, gates, states):
    """Inputs: x [steps, batch, in], h0 (c0), w_ih, w_hh, b_ih, b_hh by layer and direction."""
    def run(x, *rest, layers, bidirectional):
        fn = {"rnn": torch.rnn_tanh, "gru": torch.gru, "lstm": torch.lstm}[kind]
        hx = rest[:states] if states == 2 else rest[0]
        return tuple(fn(x, hx, rest[states:], True, layers, 0.0, False, bool(bidirectional), False))

    def cases(g):
        out = []
        for t, n, i, h, layers, both in [(3, 2, 3, 2, 1, 0), (2, 1, 2, 3, 2, 0), (3, 1, 2, 2, 1, 1),
            (2, 2, 2, 2, 2, 1)]:
            ways, w = 1 + both, []
            for k in range(layers):
                for _ in range(ways):
                    w += [g.f(gates * h, i if k == 0 else ways * h), g.f(gates * h, h),
                        g.f(gates * h), g.f(gates * h)]
            out += [(g.f(t, n, i), *[g.f(layers * ways, n, h) for _ in range(states)], *w,
                dict(layers=layers, bidirectional=both))]
        return out
    loose(kind, run, cases, tol=32, grad=1)


recurrent("rnn", 1, 1)
recurrent("gru", 3, 1)
recurrent("lstm", 4, 2)

group("recurrent")
GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def run_packed(kind, x, lengths, hx, params, layers, both, relu):
    """y, the last states; x [n, t, in], lengths None: all of them whole."""
    fn = {"lstm": torch.lstm, "gru": torch.gru, "rnn": torch.rnn_relu if relu else torch.rnn_tanh}[kind]
    biased = any(p.dim() == 1 for p in params)
    if lengths is None:
        return fn(x, hx, params, biased, layers, 0.0, False, both, True)
    p = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
    order = lambda h, index: h.index_select(1, index)
    hx = tuple(order(h, p.sorted_indices) for h in hx) if kind == "lstm" else order(hx, p.sorted_indices)
    y, *last = fn(p.data, p.batch_sizes, hx, params, biased, layers, 0.0, False, both)
    y = torch.nn.utils.rnn.PackedSequence(y, p.batch_sizes, p.sorted_indices, p.unsorted_indices)
    y = torch.nn.utils.rnn.pad_packed_sequence(y, True, total_length=x.shape[1])[0]
    return (y, *(order(h, p.unsorted_indices) for h in last))


def recurrent_module(kind, states):
    """Inputs: x, the states if given, lengths if packed, the parameters in the modules' order."""
    def run(x, *rest, hidden, proj, layers, both, time_first, given, packed, relu):
        x = x.transpose(0, 1) if time_first else x
        rest, ways = list(rest), 1 + both
        hx = [rest.pop(0) for _ in range(states * given)] or [x.new_zeros(layers * ways, x.shape[0], k)
            for k in (proj, hidden)[:states]]
        lengths = rest.pop(0) if packed else None
        hx = hx if states == 2 else hx[0]
        y, *last = run_packed(kind, x, lengths, hx, rest, layers, bool(both), relu)
        return (y.transpose(0, 1) if time_first else y, *last)

    def cases(g):
        #  t, n, in, hidden, out, layers, both, bias, time_first, given, packed, relu, dtype
        made = [(4, 3, 2, 3, 3, 1, 0, 1, 0, 0, 0, 0, "f32"), (4, 3, 2, 3, 3, 2, 1, 1, 0, 1, 1, 0, "f32"),
            (5, 4, 3, 2, 2, 1, 1, 0, 1, 0, 1, 0, "f32"), (3, 2, 2, 3, 3, 2, 0, 1, 1, 1, 0, 0, "f64"),
            (5, 4, 3, 2, 2, 2, 1, 1, 0, 1, 1, 0, "f64")]
        if kind == "lstm":
            made += [(4, 3, 2, 5, 3, 2, 1, 1, 0, 1, 1, 0, "f32"),
                (3, 2, 2, 4, 2, 1, 0, 0, 1, 0, 0, 0, "f64")]
        if kind == "rnn":
            made += [(4, 3, 2, 3, 3, 2, 1, 1, 0, 1, 1, 1, "f32")]
        made = [m for m in made if m[3] == m[4] or kind == "lstm"]
        return [recurrent_case(g, kind, states, *m) for m in made]
    loose("nn_" + kind, run, cases, tol=64, grad=1)


def recurrent_parameters(g, kind, n, hidden, out, layers, both, bias, d):
    w, rows, ways = [], GATES[kind] * hidden, 1 + both
    for k in range(layers * ways):
        w += [g.f(rows, n if k < ways else ways * out, d=d), g.f(rows, out, d=d)]
        w += [g.f(rows, d=d), g.f(rows, d=d)] if bias else []
        w += [g.f(out, hidden, d=d)] if out < hidden else []
    return w


def recurrent_case(g, kind, states, t, n, i, hidden, out, layers, both, bias, time_first, given, packed,
    relu, d):
    x = g.f(*((t, n, i) if time_first else (n, t, i)), d=d)
    hx = [g.f(layers * (1 + both), n, k, d=d) for k in (out, hidden)[:states * given]]
    lengths = [T([1 + (k * 5 + 2) % t for k in range(n)], "i64")] if packed else []
    return (x, *hx, *lengths, *recurrent_parameters(g, kind, i, hidden, out, layers, both, bias, d),
        dict(hidden=hidden, proj=out, layers=layers, both=both, time_first=time_first, given=given,
            packed=packed, relu=relu))


recurrent_module("rnn", 1)
recurrent_module("gru", 1)
recurrent_module("lstm", 2)


def recurrent_curve(x, lengths, target, w, b, *params, steps, lr):
    """Losses of steps of SGD with momentum 0.9 of an LSTM in both directions over packed sequences, whose
    mean over all steps goes through a linear layer."""
    params = [torch.nn.Parameter(p.detach().clone()) for p in (w, b, *params)]
    optim, losses, hidden = torch.optim.SGD(params, lr, 0.9), [], params[3].shape[1]
    for _ in range(steps):
        hx = (x.new_zeros(2, x.shape[0], hidden), x.new_zeros(2, x.shape[0], hidden))
        y = run_packed("lstm", x, lengths, hx, params[2:], 1, True, False)[0]
        loss = F.cross_entropy(F.linear(y.mean(1), params[0], params[1]), target)
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.detach())
    return torch.stack(losses)


loose("lstm_curve", recurrent_curve, lambda g: [(g.f(4, 6, 3, d=d), T([6, 2, 1, 4], "i64"),
    T([0, 1, 2, 1], "i64"), g.f(3, 10, d=d), g.f(3, d=d),
    *recurrent_parameters(g, "lstm", 3, 5, 5, 1, 1, 1, d), dict(steps=10, lr=0.3))
    for d in ("f32", "f64")], grad=0, tol=256)

group("loss")
WAYS = [dict(reduction=r) for r in ("mean", "sum", "none")]


def loss(name, fn, make, args=({},), shapes=((5,), (2, 3)), dtypes="f64 bf16", **o):
    """make(g, shape, dtype) gives the inputs; a case of each reduction, shape and argument."""
    def cases(g):
        out = [make(g, s, "f32") + (dict(w, **a),) for a in args for w in WAYS for s in shapes]
        return out + [make(g, shapes[-1], d) + (dict(WAYS[0], **args[0]),) for d in dtypes.split()]
    loose(name, fn, cases, **{"diff": [0, 1], **o})


def two_reals(g, s, d):
    return g.f(*s, d=d), g.f(*s, d=d)


def signs(g, *s, d="f32"):
    return (2 * g.i(*s, lo=0, hi=1) - 1).to(DTYPES[d])


loss("mse", F.mse_loss, two_reals)
loss("l1", F.l1_loss, two_reals)
loss("huber", lambda x, y, reduction, delta: F.huber_loss(x, y, reduction, delta), two_reals,
    [dict(delta=1.0), dict(delta=0.3)])
loss("smooth_l1", lambda x, y, reduction, beta: F.smooth_l1_loss(x, y, reduction=reduction,
    beta=beta), two_reals, [dict(beta=1.0), dict(beta=0.4)])
loss("binary_cross_entropy", lambda p, y, reduction: F.binary_cross_entropy(p, y,
    reduction=reduction), lambda g, s, d: (g.f(*s, lo=0.05, hi=0.95, d=d),
    g.f(*s, lo=0.05, hi=0.95, d=d)), diff=[0], wide=entropy_of_bits)
loss("binary_cross_entropy_logits", lambda x, y, reduction: F.binary_cross_entropy_with_logits(x, y,
    reduction=reduction), lambda g, s, d: (g.f(*s, d=d), g.f(*s, lo=0.05, hi=0.95, d=d)), diff=[0])
loss("kl_div", lambda x, y, reduction: F.kl_div(x, y, reduction=reduction),
    lambda g, s, d: (g.f(*s, lo=-3, hi=-0.1, d=d), g.f(*s, lo=0.05, hi=0.95, d=d)), diff=[0])
loss("poisson_nll", lambda x, y, reduction, log_input: F.poisson_nll_loss(x, y,
    log_input=bool(log_input), reduction=reduction), lambda g, s, d: (g.f(*s, lo=0.2, d=d),
    g.f(*s, lo=0.1, hi=4, d=d)), [dict(log_input=1), dict(log_input=0)], diff=[0])
loss("gaussian_nll", lambda x, y, v, reduction: F.gaussian_nll_loss(x, y, v, reduction=reduction),
    lambda g, s, d: two_reals(g, s, d) + (g.f(*s, lo=0.2, d=d),), diff=[0], grad=1, dtypes="f64")
loss("soft_margin", lambda x, y, reduction: F.soft_margin_loss(x, y, reduction=reduction),
    lambda g, s, d: (g.f(*s, d=d), signs(g, *s, d=d)), diff=[0])
loss("hinge_embedding", lambda x, y, reduction, margin: F.hinge_embedding_loss(x, y, margin,
    reduction=reduction), lambda g, s, d: (g.f(*s, d=d), signs(g, *s, d=d)), [dict(margin=1.0)],
    diff=[0])
loss("margin_ranking", lambda a, b, y, reduction, margin: F.margin_ranking_loss(a, b, y, margin,
    reduction=reduction), lambda g, s, d: two_reals(g, s, d) + (signs(g, *s, d=d),),
    [dict(margin=0.0), dict(margin=0.6)])
loss("cosine_embedding", lambda a, b, y, reduction, margin: F.cosine_embedding_loss(a, b, y, margin,
    reduction=reduction), lambda g, s, d: (g.f(*s, d=d), g.f(*s, d=d), signs(g, s[0], d=d)),
    [dict(margin=0.1)], shapes=((2, 3), (4, 2)), grad=1)
loss("triplet_margin", lambda a, p, n, reduction, margin: F.triplet_margin_loss(a, p, n, margin,
    reduction=reduction), lambda g, s, d: two_reals(g, s, d) + (g.f(*s, d=d),), [dict(margin=1.0)],
    shapes=((2, 3),), diff=[0, 1, 2], grad=1, tol=32)
loss("multi_margin", lambda x, y, reduction, margin: F.multi_margin_loss(x, y, 1, margin,
    reduction=reduction), lambda g, s, d: (g.f(*s, d=d), g.i(s[0], lo=0, hi=s[1] - 1)),
    [dict(margin=1.0)], shapes=((2, 3), (4, 5)), dtypes="f64", diff=[0], grad=1)
loss("kl_div.log_target", lambda x, y, reduction, log_target: F.kl_div(x, y, log_target=True,
    reduction=reduction), lambda g, s, d: (g.f(*s, lo=-3, hi=-0.1, d=d), g.f(*s, lo=-3, hi=-0.1, d=d)),
    [dict(log_target=1)])
loose("kl_div.batch_mean", lambda x, y, reduction, batch_mean, log_target: F.kl_div(x, y,
    log_target=bool(log_target), reduction="batchmean"), lambda g: [(g.f(*s, lo=-3, hi=-0.1),
    g.f(*s, lo=0.05, hi=0.95), dict(reduction="mean", batch_mean=1, log_target=t))
    for s in ((2, 3), (5,), (3, 2, 2), ()) for t in (0, 1)], diff=[0, 1])
loss("poisson_nll.full", lambda x, y, reduction, log_input, full, eps: F.poisson_nll_loss(x, y,
    log_input=bool(log_input), full=True, eps=eps, reduction=reduction), lambda g, s, d: (g.f(*s, lo=0.2,
    d=d), g.f(*s, lo=0.1, hi=4, d=d)), [dict(log_input=1, full=1, eps=1e-8), dict(log_input=0, full=1,
    eps=0.125)])
loss("gaussian_nll.full", lambda x, y, v, reduction, full, eps: F.gaussian_nll_loss(x, y, v, full=True,
    eps=eps, reduction=reduction), lambda g, s, d: two_reals(g, s, d) + (g.f(*s, lo=0.3, d=d),),
    [dict(full=1, eps=0.25)], diff=[0, 1, 2], dtypes="f64")
loss("triplet_margin.options", lambda a, p, n, reduction, margin, p_norm, swap, eps:
    F.triplet_margin_loss(a, p, n, margin, p_norm, eps, bool(swap), reduction=reduction),
    lambda g, s, d: two_reals(g, s, d) + (g.f(*s, d=d),), [dict(margin=3.0, p_norm=p, swap=w, eps=e)
    for p, w, e in ((2.0, 1, 1e-6), (1.0, 0, 1e-6), (3.0, 1, 0.125))], shapes=((2, 3), (4, 2)),
    diff=[0, 1, 2], grad=1, tol=32, dtypes="f64")
loss("multi_margin.options", lambda x, y, weight, reduction, margin, p: F.multi_margin_loss(x, y, int(p),
    margin, weight, reduction=reduction), lambda g, s, d: (g.f(*s, d=d), g.i(s[0], lo=0, hi=s[1] - 1),
    g.f(s[1], lo=0.2, d=d)), [dict(margin=1.0, p=2), dict(margin=0.5, p=1)], shapes=((2, 3), (4, 5)),
    dtypes="f64", diff=[0], grad=1)
CLASSES = ((3, 4), (2, 3, 2), (1, 2, 2, 2))


def classified(g, s, d, log=False):
    x = g.f(*s, d=d)
    return (x.double().log_softmax(1).to(x.dtype) if log else x), g.i(s[0], *s[2:], lo=0,
        hi=s[1] - 1)


IGNORE = [dict(ignore_index=-100), dict(ignore_index=1)]
loss("nll", lambda x, y, reduction, ignore_index: F.nll_loss(x, y, reduction=reduction,
    ignore_index=ignore_index), lambda g, s, d: classified(g, s, d, True), IGNORE, shapes=CLASSES,
    diff=[0])
loss("cross_entropy", lambda x, y, reduction, ignore_index, label_smoothing: F.cross_entropy(x, y,
    reduction=reduction, ignore_index=ignore_index, label_smoothing=label_smoothing), classified,
    [dict(i, label_smoothing=l) for i in IGNORE for l in (0.0, 0.1)], shapes=CLASSES, diff=[0])


def ctc_inputs(g, s, d):
    """Log probabilities [steps, batch, classes], targets [batch, longest], lengths of both."""
    t, n, c = s
    return (g.f(*s, d=d).double().log_softmax(2).to(DTYPES[d]), g.i(n, 3, lo=1, hi=c - 1),
        g.i(n, lo=t - 1, hi=t), g.i(n, lo=1, hi=3))


loss("ctc", lambda x, y, xn, yn, reduction: F.ctc_loss(x, y, xn, yn, reduction=reduction),
    ctc_inputs, shapes=((8, 2, 4), (10, 3, 5)), dtypes="f64", diff=[0], grad=1)

# --- options, and ops beside those above: one group, which leaves the others' files as they are ---

group("options")


def with_weights(g, s, d, log=False):
    return classified(g, s, d, log) + (g.f(s[1], lo=0.2, d=d),)


def softly(g, s, d):
    return g.f(*s, d=d), g.f(*s, d="f64").softmax(1).to(DTYPES[d])


def entropy(x, y, w=None, *, reduction, ignore_index, label_smoothing):
    y = y if y.dtype.is_floating_point else y.long()
    return F.cross_entropy(x, y, w, reduction=reduction, ignore_index=ignore_index,
        label_smoothing=label_smoothing)


SMOOTH = [dict(ignore_index=-100, label_smoothing=k) for k in (0.0, 0.1)]
loss("nll.weight", lambda x, y, w, reduction, ignore_index: F.nll_loss(x, y, w, reduction=reduction,
    ignore_index=ignore_index), lambda g, s, d: with_weights(g, s, d, True), IGNORE +
    [dict(ignore_index=0)], shapes=CLASSES, diff=[0])
loss("nll.u8", lambda x, y, reduction, ignore_index: F.nll_loss(x, y.long(), reduction=reduction,
    ignore_index=ignore_index), lambda g, s, d: (g.f(*s, d=d), g.i(s[0], *s[2:], lo=0, hi=s[1] - 1,
    d="u8")), IGNORE[1:], shapes=CLASSES[:1], diff=[0])
loss("cross_entropy.weight", entropy, with_weights, [dict(i, label_smoothing=k) for i in IGNORE
    for k in (0.0, 0.1)], shapes=CLASSES, diff=[0])
loss("cross_entropy.soft", entropy, softly, SMOOTH, shapes=CLASSES, diff=[0])
loss("cross_entropy.soft_weight", entropy, lambda g, s, d: softly(g, s, d) + (g.f(s[1], lo=0.2, d=d),),
    SMOOTH, shapes=CLASSES[:2], diff=[0])
for d in ("i32", "u8", "i16"):
    loss(f"cross_entropy.{d}", entropy, lambda g, s, f, d=d: (g.f(*s, d=f), g.i(s[0], *s[2:], lo=0,
        hi=s[1] - 1, d=d)), SMOOTH, shapes=CLASSES[:2], dtypes="", diff=[0])
loss("binary_cross_entropy.weight", lambda p, y, w, reduction: F.binary_cross_entropy(p, y, w,
    reduction=reduction), lambda g, s, d: (g.f(*s, lo=0.05, hi=0.95, d=d), g.f(*s, lo=0.05, hi=0.95,
    d=d), g.f(s[-1], lo=0.2, d=d)), diff=[0], wide=lambda p, y, w, reduction: whole(w *
    entropy_of_bits(p, y, "none"), reduction))
loss("binary_cross_entropy_logits.weight", lambda x, y, w, p, reduction:
    F.binary_cross_entropy_with_logits(x, y, w, reduction=reduction, pos_weight=p),
    lambda g, s, d: (g.f(*s, d=d), g.f(*s, lo=0.05, hi=0.95, d=d), g.f(s[-1], lo=0.2, d=d),
    g.f(s[-1], lo=0.2, d=d)), diff=[0])


def settings(d, kernel, stride, pad, ceil=0, dilation=1, inside=0, divisor=0):
    return dict(kernel=[kernel] * d, stride=[stride] * d, pad=[pad] * d, pad_hi=[pad] * d, ceil=ceil,
        dilation=[dilation] * d, inside=inside, divisor=divisor)


def max_pool(x, kernel, stride, pad, pad_hi, ceil, dilation, inside, divisor):
    fn = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.dim() - 3]
    if pad == pad_hi:
        return fn(x, kernel, stride, pad, dilation, bool(ceil), True)
    ends = [n for pair in list(zip(pad, pad_hi))[::-1] for n in pair]
    return fn(F.pad(x, ends, value=-INF), kernel, stride, 0, dilation, bool(ceil))


def avg_pool(x, kernel, stride, pad, pad_hi, ceil, dilation, inside, divisor):
    d = x.dim() - 2
    if pad != pad_hi:
        x, pad = F.pad(x, [n for pair in list(zip(pad, pad_hi))[::-1] for n in pair]), 0
    if d == 1:
        return F.avg_pool1d(x, kernel, stride, pad, bool(ceil), not inside)
    fn = (F.avg_pool2d, F.avg_pool3d)[d - 2]
    return fn(x, kernel, stride, pad, bool(ceil), not inside, divisor or None)


IMAGES = {1: [(1, 2, 7), (2, 1, 6)], 2: [(1, 2, 5, 6), (1, 1, 7, 4)], 3: [(1, 1, 4, 5, 3)]}
UNEVEN = [(d, dict(settings(d, 3, 2, 0), pad=[0] * d, pad_hi=[1] * d)) for d in (1, 2, 3)]
loose("max_pool_options", max_pool, lambda g: [(g.distinct(*s), a) for d in (1, 2, 3)
    for a in [settings(d, k, t, p, 1) for k, t, p in ((2, 2, 0), (3, 2, 1), (2, 3, 1), (3, 3, 0))] +
    [settings(d, 2, t, p, c, dilation=2) for t, p, c in ((1, 0, 0), (2, 1, 1))]
    for s in IMAGES[d]] + [(g.distinct(1, 2, 5, 6, d=d), settings(2, 3, 2, 1, 1))
    for d in ("f64", "bf16")])
loose("max_pool_options.uneven", max_pool, lambda g: [(g.distinct(*s), a) for d, a in UNEVEN
    for s in IMAGES[d]])
loose("avg_pool_options", avg_pool, lambda g: [(g.f(*s), a) for d in (1, 2, 3)
    for a in [settings(d, k, t, p, 1, inside=i) for i in (0, 1)
        for k, t, p in ((2, 2, 0), (3, 2, 1), (2, 3, 1), (3, 3, 0))] +
    [settings(d, 3, 2, p, c, divisor=k, inside=i) for p, c, k, i in ((1, 0, 5, 0), (1, 1, 2, 1),
        (0, 1, 7, 0)) if d > 1] for s in IMAGES[d]] +
    [(g.f(1, 2, 5, 6, d=d), settings(2, 3, 2, 1, 1)) for d in ("f64", "bf16")])
loose("avg_pool_options.uneven", avg_pool, lambda g: [(g.f(*s), a) for d, a in UNEVEN
    for s in IMAGES[d]])


def unpool(x, index, size):
    fn = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[x.dim() - 3]
    return fn(x, index, 2, 2, output_size=size)


def places(x):
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.dim() - 3](x, 2, 2, return_indices=True)[1]


exact("max_unpool", unpool, lambda g: [(g.f(*i.shape, d=d), i, dict(size=list(s[2:])))
    for d in ("f32", "f64", "bf16") for s in ((1, 2, 7), (2, 1, 4, 6), (1, 2, 5, 4), (1, 1, 4, 2, 4))
    for i in [places(g.f(*s))]])


def interpolate(x, mode, size, tenths, align, antialias):
    d = x.dim() - 2
    name = {"nearest": "nearest", "exact": "nearest-exact", "area": "area", "cubic": "bicubic",
        "linear": ("linear", "bilinear", "trilinear")[d - 1]}[mode]
    centred = bool(align) if mode in ("linear", "cubic") else None
    return F.interpolate(x, size or None, [k / 10 for k in tenths] or None, name, centred,
        antialias=bool(antialias))


def resized(mode, size=(), tenths=(), align=0, antialias=0):
    return dict(mode=mode, size=list(size), tenths=list(tenths), align=align, antialias=antialias)


loose("interpolate_options", interpolate, lambda g: [(g.f(1, 2, 5), resized(m, tenths=[k]))
    for m in ("nearest", "exact", "linear", "area") for k in (20, 7, 13, 30)] +
    [(g.f(1, 2, 4, 5), resized(m, tenths=t, align=a)) for m in ("nearest", "exact", "linear", "cubic")
    for t in ([20, 20], [15, 6], [25, 11 if m == "linear" else 12]) for a in (0, 1) if not a or m in ("linear", "cubic")] +
    [(g.f(1, 1, 3, 2, 4), resized(m, tenths=[15, 20, 6])) for m in ("nearest", "exact", "linear")] +
    [(g.f(*s), resized("exact", size=t)) for s, t in (((1, 2, 5), [3]), ((1, 1, 4, 5), [7, 2]))] +
    [(g.f(1, 2, 7, 9, d=d), resized(m, size=t, align=a, antialias=1)) for m in ("linear", "cubic")
    for t in ([3, 4], [9, 2], [14, 18]) for a in (0, 1) for d in ("f32", "f64")] +
    [(g.f(1, 1, 6, 9), resized(m, tenths=[5, 4], antialias=1)) for m in ("linear", "cubic")], tol=64)
layer("grid_sample.volume", lambda x, grid, mode, padding, align: F.grid_sample(x, grid, mode, padding,
    bool(align)), [([(1, 2, 3, 4, 2), lambda g: g.f(1, 2, 1, 3, 3, lo=-1.3, hi=1.3)], a) for a in GRIDS],
    dtypes="f64", tol=256, grad=1)
layer("grid_sample.cubic", lambda x, grid, mode, padding, align: F.grid_sample(x, grid, mode, padding,
    bool(align)), [([(1, 2, 4, 5), lambda g: g.f(1, 3, 4, 2, lo=-1.3, hi=1.3)], dict(a, mode="bicubic"))
    for a in GRIDS[:6]], dtypes="f64", tol=256, grad=1)
layer("affine_grid.volume", lambda theta, size, align: F.affine_grid(theta, size, bool(align)),
    [([(2, 3, 4)], dict(size=[2, 1, 2, 3, 4], align=k)) for k in (0, 1)], dtypes="f64")
exact("one_hot.ints", lambda x, classes: F.one_hot(x.long(), classes),
    lambda g: [(g.i(2, 3, lo=0, hi=4, d=d), dict(classes=5)) for d in ("u8", "i8", "i16", "i32")])



def spectrum(x, kind, n, axis, norm):
    fn = getattr(torch.fft, kind)
    if kind != "rfft":
        x = torch.view_as_complex(x.contiguous())
    y = fn(x, n or None, axis, norm)
    return torch.view_as_real(y) if y.is_complex() else y


loose("fft_options", spectrum, lambda g: [(g.f(2, 6, 2), dict(kind=k, n=n, axis=a, norm=m))
    for k in ("fft", "ifft") for n, a in ((0, -1), (4, 1), (9, 0)) for m in ("backward", "ortho", "forward")] +
    [(g.f(3, 6), dict(kind="rfft", n=n, axis=a, norm=m)) for n, a in ((0, -1), (5, 1), (8, 0))
    for m in ("backward", "ortho", "forward")] +
    [(g.f(4, 5, 2, d=d), dict(kind="irfft", n=n, axis=-1, norm=m)) for n in (8, 7)
    for m in ("ortho", "forward") for d in ("f32", "f64")], tol=32, grad=1)


def spectrum_nd(x, kind, axes, s, norm):
    if kind[0] != "r":
        x = torch.view_as_complex(x.contiguous())
    y = getattr(torch.fft, kind)(x, s=s or None, norm=norm, **(dict(dim=axes) if axes else {}))
    return torch.view_as_real(y) if y.is_complex() else y


loose("fftn_options", spectrum_nd, lambda g: [(g.f(3, 4, 5, 2, d=d), dict(kind=k, axes=a, s=s, norm=m))
    for k in ("fftn", "ifftn", "irfftn", "irfft2") for a, s, m, d in (([], [], "backward", "f64"),
    ([0, 2], [], "ortho", "f32"), ([2, 0], [4, 3], "backward", "f64"), ([], [6, 7], "forward", "f32"),
    ([-1, 1], [3, 8], "forward", "f64"))] + [(g.f(3, 4, 5, d=d), dict(kind=k, axes=a, s=s, norm=m))
    for k in ("rfftn", "rfft2") for a, s, m, d in (([], [], "backward", "f64"),
    ([0, 2], [], "ortho", "f32"), ([2, 0], [4, 3], "forward", "f64"), ([], [2, 8], "ortho", "f64"))],
    tol=32, grad=1)


def stft(x, w=None, *, n_fft, hop, win, center, normalized, onesided, length):
    y = torch.stft(x, n_fft, hop or None, win or None, w, bool(center), "reflect", bool(normalized),
        bool(onesided), True)
    return torch.view_as_real(y)


def istft(x, w=None, *, n_fft, hop, win, center, normalized, onesided, length):
    return torch.istft(torch.view_as_complex(x.contiguous()), n_fft, hop or None, win or None, w,
        bool(center), bool(normalized), bool(onesided), length or None)


def frames(n_fft, hop=0, win=0, center=1, normalized=0, onesided=1, length=0):
    return dict(n_fft=n_fft, hop=hop, win=win, center=center, normalized=normalized,
        onesided=onesided, length=length)


loose("stft", stft, lambda g: [(g.f(20), frames(8)), (g.f(2, 20), g.f(8), frames(8, 3)),
    (g.f(2, 20), g.f(6), frames(8, 2, 6)), (g.f(20), g.f(5), frames(7, 2, 5, normalized=1)),
    (g.f(3, 16), g.f(4), frames(4, 4, center=0, onesided=0)), (g.f(20, d="f64"), g.f(8, d="f64"),
    frames(8, 4, normalized=1))], tol=32, diff=[0])
loose("istft", istft, lambda g: [(g.f(5, 4, 2), frames(8)), (g.f(2, 5, 4, 2), g.f(8, lo=0.5),
    frames(8, 3)), (g.f(2, 5, 5, 2), g.f(6, lo=0.5), frames(8, 2, 6)), (g.f(4, 6, 2), g.f(7, lo=0.5),
    frames(7, 2, normalized=1, length=9)), (g.f(3, 4, 5, 2), g.f(4, lo=0.5), frames(4, 4, center=0,
    onesided=0)), (g.f(5, 4, 2, d="f64"), g.f(8, lo=0.5, d="f64"), frames(8, 4, length=10))], tol=64,
    diff=[0])
exact("split_with_sizes", lambda x, sizes, axis: x.split(sizes, axis), lambda g: [(any_of(g, d, 7, 3),
    dict(sizes=s, axis=0)) for d in ("f32", "i64") for s in ([1, 4, 2], [0, 7], [7])] +
    [(g.f(2, 5), dict(sizes=[2, 3], axis=-1))])
loose("scatter_reduce", lambda x, index, src, axis, way, self: x.scatter_reduce(axis, index, src, way,
    include_self=bool(self)), lambda g: [(g.f(*s), g.i(*at, lo=0, hi=e - 1), g.f(*at),
    dict(axis=a, way=w, self=k)) for w in ("sum", "prod", "mean", "amax", "amin") for k in (0, 1)
    for s, a, at, e in FULL] + [(any_of(g, d, 5), g.i(9, lo=0, hi=4), any_of(g, d, 9), dict(axis=0,
    way=w, self=k)) for d in ("f64", "i64", "i32", "bf16") for k in (0, 1)
    for w in ("sum", "prod", "mean", "amax", "amin")], tol=16, grad=1)
loose("scatter_reduce.ties", lambda x, index, src, axis, way, self: x.scatter_reduce(axis, index, src,
    way, include_self=bool(self)), lambda g: [(T([2.0, 5.0, 1.0]), T([0, 0, 2, 0, 2], "i64"),
    T([2.0, 2.0, 1.0, 1.0, 1.0]), dict(axis=0, way=w, self=1)) for w in ("amax", "amin")], grad=1)
exact("unique_dim", lambda x, axis: torch.unique(x, return_inverse=True, return_counts=True, dim=axis),
    lambda g: [(any_of(g, d, *s, lo=0, hi=1.9), dict(axis=a)) for d in ("i64", "i32", "u8")
    for s, a in (((7, 2), 0), ((2, 7), 1), ((9,), 0), ((5, 2, 2), 0), ((2, 6, 2), -2))] +
    [(T([[2.5, -1.0], [2.5, -2.0], [2.5, -1.0], [0.0, 3.0]]), dict(axis=0))], grad=0)


exact("unique_consecutive_dim", lambda x, axis: torch.unique_consecutive(x, return_inverse=True,
    return_counts=True, dim=axis), lambda g: [(any_of(g, d, *s, lo=0, hi=1.2), dict(axis=a))
    for d in ("i64", "i32", "u8") for s, a in (((9, 1), 0), ((2, 7), 1), ((9,), 0), ((5, 1, 2), 0), ((2, 6, 1), -2),
    ((0, 2), 0))] + [(T([[2.5, -1.0], [2.5, -1.0], [0.0, 3.0], [2.5, -1.0]]), dict(axis=0))], grad=0)


def middle(x, axes, keepdim):
    axes = [a % x.dim() for a in axes] or list(range(x.dim()))
    rest = [a for a in range(x.dim()) if a not in axes]
    y = x.permute(rest + axes).reshape([x.shape[a] for a in rest] + [-1]).median(-1)[0]
    return y.reshape([1 if a in axes else x.shape[a] for a in range(x.dim())]) if keepdim else y


exact("median_axes", middle, lambda g: [(g.distinct(2, 3, 4, d=d), dict(axes=a, keepdim=k))
    for d in ("f32", "f64", "bf16") for a in ([0, 2], [-1, 1], [], [1]) for k in (0, 1)] +
    [(g.i(3, 4), dict(axes=[0, 1], keepdim=0))])
row("trunc_divide", lambda a, b: torch.div(a, b, rounding_mode="trunc"), lambda g: [(any_of(g, d, 9,
    lo=-9, hi=9), g.i(9, lo=1, hi=4, d=d) * (1 if d == "u8" else -1)) for d in ("i64", "i32", "i8",
    "u8")] + [(T([7, -7, 7, -7, 0], "i64"), T([2, 2, -2, -2, 3], "i64")),
    (T([2**62 + 1, -2**63, 2**63 - 1], "i64"), T([3, 7, -2], "i64")), (g.f(6, lo=-9, hi=9),
    g.f(6, lo=0.6, hi=3)), (g.f(6, d="f64"), g.f(6, lo=0.6, d="f64")), (g.i(5), 3), (g.f(5), 0.7),
    (g.i(4), g.f(4, lo=0.6))], grad=0)


def quantize(x, scale, zero, axis, dtype):
    """In f32: its integers leave no room for rounding."""
    x, scale, to = x.float(), scale.float(), getattr(torch, {"u8": "quint8", "i8": "qint8",
        "i32": "qint32"}[dtype])
    q = (torch.quantize_per_tensor(x, float(scale), int(zero), to) if scale.dim() == 0 else
        torch.quantize_per_channel(x, scale, zero, axis, to))
    return q.int_repr(), q.dequantize()


def fake_quantize(x, scale, zero, axis, low, high):
    """PyTorch's is of f32 alone: the formula, which agrees with it there."""
    along = [-1 if scale.dim() and k == axis % x.dim() else 1 for k in range(x.dim())]
    s, z = scale.reshape(along), zero.reshape(along)
    q = (x.detach() * (1 / s)).round() + z
    y = (q.clamp(low, high) - z) * s
    if x.dtype == torch.float32:
        torch_y = (torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero), low, high)
            if scale.dim() == 0 else torch.fake_quantize_per_channel_affine(x, scale, zero.int(),
            axis, low, high))
        assert torch.allclose(torch_y, y)
    return torch.where((q >= low) & (q <= high), x + (y - x).detach(), y)


PER_TENSOR = lambda g: (g.f(3, 5, lo=-4, hi=4), T(0.0371), T(3, "i64"))
PER_CHANNEL = lambda g, axis: (g.f(3, 4, lo=-4, hi=4), g.f((3, 4)[axis], lo=0.02, hi=0.06),
    g.i((3, 4)[axis], lo=-3, hi=9))
row("quantize", quantize, lambda g: [PER_TENSOR(g) + (dict(axis=0, dtype=d),) for d in ("u8", "i8", "i32")] +
    [PER_CHANNEL(g, a) + (dict(axis=a, dtype="i8"),) for a in (0, 1)], grad=0)
loose("fake_quantize", fake_quantize, lambda g: [PER_TENSOR(g) + (dict(axis=0, low=l, high=h),)
    for l, h in ((0, 255), (-128, 127), (0, 15))] + [PER_CHANNEL(g, a) + (dict(axis=a, low=-20, high=40),)
    for a in (0, 1)], diff=[0], tol=4)

# --- layers of fl/nn ---------------------------------------------------------------------

group("layers")


def conv1d(x, w, b=None, *, stride, pad, dilation, groups):
    return F.conv1d(x, w, b, stride, pad, dilation, groups)


layer("nn_conv1d", conv1d, [([(2, 4, 9), (6, 4, 3), (6,)], dict(stride=2, pad=1, dilation=1, groups=1)),
    ([(1, 4, 7), (4, 2, 2)], dict(stride=1, pad=0, dilation=2, groups=2))], dtypes="f64", tol=32)
layer("nn_adaptive_avg_pool2d", lambda x, h, w: F.adaptive_avg_pool2d(x, (h, w)),
    [([(2, 3, 5, 4)], dict(h=2, w=3)), ([(1, 2, 7, 7)], dict(h=1, w=1))])
layer("nn_glu", lambda x, axis: F.glu(x, axis), [([(2, 4, 3)], dict(axis=1)),
    ([(2, 6)], dict(axis=-1))], tol=32)
layer("nn_rms_norm", lambda x, w, eps: x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * w,
    [([(2, 3, 4), (4,)], dict(eps=e)) for e in (1e-5, 0.1)], dtypes="f64", tol=32)
layer("nn_group_norm", lambda x, w, b, groups, eps: F.group_norm(x, groups, w, b, eps),
    [([(2, 6, 3), (6,), (6,)], dict(groups=g, eps=1e-5)) for g in (2, 3)], dtypes="f64", tol=64)
layer("nn_embedding", lambda i, w, padding: F.embedding(i, w, None if padding < 0 else padding),
    [([lambda g: g.i(2, 3, lo=0, hi=4), (5, 3)], dict(padding=p)) for p in (-1, 0, 2)],
    dtypes="f64", diff=[1])


def sinusoid(x, scale):
    t, d = x.shape[1:]
    angle = torch.arange(t, dtype=torch.float64)[:, None] * torch.exp(
        torch.arange(0, d, 2, dtype=torch.float64) * (-math.log(10000.0) / d))
    return x * scale + torch.stack([angle.sin(), angle.cos()], -1).reshape(t, -1)[:, :d].to(x.dtype)


layer("nn_sinusoid", sinusoid, [([(2, 5, d)], dict(scale=s)) for d, s in ((6, 1.0), (5, 2.5))],
    dtypes="f64")


def attention_layer(*x, inputs, heads, causal):
    mask = x[inputs - 1] if inputs in (2, 4) else None
    q, k, v = x[:3] if inputs > 2 else x[:1] * 3
    p = x[inputs:]
    w, b, ow, ob = p if len(p) == 4 else (p[0], None, p[1], None)
    if causal:
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
    elif mask is not None:
        mask = (mask.expand(q.shape[0], heads, q.shape[1], k.shape[1])
            .reshape(-1, q.shape[1], k.shape[1]))
    y = F.multi_head_attention_forward(*(t.transpose(0, 1) for t in (q, k, v)), q.shape[2], heads,
        w, b, None, None, False, 0.0, ow, ob, need_weights=False, attn_mask=mask)[0]
    return y.transpose(0, 1)


PARTS = [(12, 4), (12,), (4, 4), (4,)]
layer("nn_attention", attention_layer, [([(2, 3, 4)] + PARTS, dict(inputs=1, heads=2, causal=0)),
    ([(1, 5, 4), (12, 4), (4, 4)], dict(inputs=1, heads=4, causal=1)),
    ([(2, 3, 4), (2, 1, 1, 3)] + PARTS, dict(inputs=2, heads=2, causal=0)),
    ([(2, 3, 4), (2, 5, 4), (2, 5, 4)] + PARTS, dict(inputs=3, heads=2, causal=0)),
    ([(2, 3, 4), (2, 2, 4), (2, 2, 4), (3, 2)] + PARTS, dict(inputs=4, heads=1, causal=0))],
    dtypes="f64", tol=64, grad=1)


def attention_more(*x, inputs, heads, causal, kdim, vdim, bias_kv, zero_attn):
    """Masks are PyTorch's added ones, of all heads alike."""
    q, k, v = x[:3] if inputs > 2 else x[:1] * 3
    m = torch.nn.MultiheadAttention(q.shape[2], heads, kdim=kdim, vdim=vdim, add_bias_kv=bool(bias_kv),
        add_zero_attn=bool(zero_attn), batch_first=True).to(q.dtype)
    names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"] if kdim != q.shape[2] or vdim != q.shape[2] \
        else ["in_proj_weight"]
    names += ["in_proj_bias"] + ["bias_k", "bias_v"] * bias_kv + ["out_proj.weight", "out_proj.bias"]
    mask = x[3] if inputs == 4 else torch.full((q.shape[1], k.shape[1]), -INF, dtype=q.dtype).triu(1) if causal else None
    return torch.nn.utils.stateless.functional_call(m, dict(zip(names, x[inputs:])), (q, k, v),
        dict(attn_mask=mask, need_weights=False))[0]


OUT, BIAS_KV = [(4, 4), (4,)], [(1, 1, 4), (1, 1, 4)]
layer("nn_attention_more", attention_more, [([(2, 3, 4), (2, 5, 6), (2, 5, 3), (4, 4), (4, 6), (4, 3), (12,)] + OUT,
    dict(inputs=3, heads=2, causal=0, kdim=6, vdim=3, bias_kv=0, zero_attn=0)),
    ([(2, 3, 4), (12, 4), (12,)] + BIAS_KV + OUT, dict(inputs=1, heads=2, causal=1, kdim=4, vdim=4, bias_kv=1, zero_attn=0)),
    ([(2, 3, 4), (12, 4), (12,)] + OUT, dict(inputs=1, heads=2, causal=1, kdim=4, vdim=4, bias_kv=0, zero_attn=1)),
    ([(2, 3, 4), (2, 5, 4), (2, 5, 6), (3, 5), (4, 4), (4, 4), (4, 6), (12,)] + BIAS_KV + OUT,
    dict(inputs=4, heads=4, causal=0, kdim=4, vdim=6, bias_kv=1, zero_attn=1))], dtypes="f64", tol=128, grad=1)


def transformer(x, *p, heads, norm_first, gelu):
    act = F.gelu if gelu else F.relu
    a = lambda z: attention_layer(z, *p[:4], inputs=1, heads=heads, causal=False)
    h = lambda z: F.linear(act(F.linear(z, p[4], p[5])), p[6], p[7])
    n1, n2 = (lambda z, i=i: F.layer_norm(z, z.shape[-1:], p[i], p[i + 1]) for i in (8, 10))
    if norm_first:
        x = x + a(n1(x))
        return x + h(n2(x))
    x = n1(x + a(x))
    return n2(x + h(x))


layer("nn_transformer", transformer, [([(2, 3, 4)] + PARTS + [(6, 4), (6,), (4, 6), (4,)] + [(4,)] * 4,
    dict(heads=2, norm_first=f, gelu=a)) for f, a in ((0, 0), (1, 1))], dtypes="f64", tol=256, grad=1)


def decoder_layer(x, memory, *p, heads, norm_first, causal):
    m = torch.nn.TransformerDecoderLayer(x.shape[2], heads, p[8].shape[0], 0.0, batch_first=True,
        norm_first=bool(norm_first)).to(x.dtype)
    names = [f"{a}.{b}" for a in ("self_attn", "multihead_attn")
        for b in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")]
    names += [f"{a}.{b}" for a in ("linear1", "linear2", "norm1", "norm2", "norm3") for b in ("weight", "bias")]
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1) if causal else None
    return torch.nn.utils.stateless.functional_call(m, dict(zip(names, p)), (x, memory, hidden))


layer("nn_transformer_decoder", decoder_layer, [([(2, 3, 4), (2, 2, 4)] + 2 * PARTS + [(6, 4), (6,), (4, 6), (4,)] +
    [(4,)] * 6, dict(heads=2, norm_first=f, causal=c)) for f, c in ((0, 0), (1, 1))], dtypes="f64", tol=256, grad=1)


def adaptive_softmax(x, words, *w, cutoffs, divide):
    m = torch.nn.AdaptiveLogSoftmaxWithLoss(x.shape[1], cutoffs[-1], cutoffs[:-1], divide)
    names = ["head.weight", "tail.0.0.weight", "tail.0.1.weight", "tail.1.0.weight",
        "tail.1.1.weight"]
    return torch.nn.utils.stateless.functional_call(m.to(x.dtype), dict(zip(names, w)),
        (x, words)).output


layer("nn_adaptive_softmax", adaptive_softmax, [([(6, 8), lambda g: torch.tensor([0, 7, 3, 2, 9, 8]),
    (5, 8), (4, 8), (4, 4), (2, 8), (3, 2)], dict(cutoffs=[3, 7, 10], divide=2)),
    ([(2, 4), lambda g: torch.tensor([1, 0]), (4, 4), (1, 4), (2, 1)], dict(cutoffs=[3, 5], divide=4))],
    dtypes="f64", tol=64, grad=1)


def adaptive_embedding(words, e0, w0, e1, w1, cutoffs, divide):
    low = words < cutoffs[0]
    return torch.where(low[..., None], F.linear(F.embedding(words * low, e0), w0),
        F.linear(F.embedding((words - cutoffs[0]) * ~low, e1), w1))


layer("nn_adaptive_embedding", adaptive_embedding, [([lambda g: g.i(2, 4, lo=0, hi=6), (3, 4), (4, 4),
    (4, 2), (4, 2)], dict(cutoffs=[3, 7], divide=2))], dtypes="f64", diff=[1, 2, 3, 4], tol=32)


def squash(x):
    n = x.square().sum(-1, keepdim=True)
    return x * n / (1 + n) / n.sqrt()


def capsules(x, w, rounds):
    u = torch.einsum("nik,ijdk->nijd", x, w)
    b = torch.zeros_like(u[..., :1])
    for r in range(rounds):
        v = squash((b.softmax(2) * u).sum(1))
        b = b + (u * v[:, None]).sum(-1, keepdim=True)
    return v


layer("nn_capsules", capsules, [([(2, 3, 2), (3, 4, 5, 2)], dict(rounds=r)) for r in (1, 3)],
    dtypes="f64", tol=64, grad=1)
layer("nn_ctc", lambda x, y, xn, yn, reduction, blank: F.ctc_loss(x.log_softmax(2).transpose(0, 1), y,
    xn, yn, blank, reduction), [([(2, 8, 4), lambda g: g.i(2, 3, lo=0, hi=2),
    lambda g: torch.tensor([8, 7]), lambda g: torch.tensor([3, 1])], dict(reduction=r, blank=3))
    for r in ("mean", "sum")], dtypes="f64", diff=[0], tol=64, grad=1)

# --- more layers of fl/nn -------------------------------------------------------------------------

group("modules")
PAD_MODES = ["constant", "replicate", "reflect", "symmetric", "circular"]


def around(x, low, high, mode):
    """F.pad over the last dims, of which low and high have an entry each."""
    pads = [n for pair in reversed(list(zip(low, high))) for n in pair]
    return F.pad(x, pads, mode=PAD_MODES[mode])


def any_conv(x, w, b=None, *, transposed, stride, pad, end, dilation, output_pad, groups, mode):
    d = x.dim() - 2
    if transposed:
        return getattr(F, f"conv_transpose{d}d")(x, w, b, stride, pad, output_pad, groups, dilation)
    return getattr(F, f"conv{d}d")(around(x, pad, end, mode), w, b, stride, 0, dilation, groups)


def conv_case(x, w, bias=1, groups=1, **k):
    d = len(x) - 2
    args = dict(transposed=0, stride=1, pad=0, end=None, dilation=1, output_pad=0, groups=groups, mode=0)
    args.update(k)
    if args["end"] is None:
        args["end"] = args["pad"]
    for name in ("stride", "pad", "end", "dilation", "output_pad"):
        args[name] = args[name] if isinstance(args[name], list) else [args[name]] * d
    out = w[1] * groups if args["transposed"] else w[0]
    return [x, w] + ([(out,)] if bias else []), args


layer("nn_conv", any_conv, [
    conv_case((2, 2, 7), (3, 2, 3), pad=4, end=0, dilation=2), # causal
    conv_case((2, 2, 7), (2, 2, 3), pad=1, end=3, stride=2, bias=0),
    conv_case((1, 2, 7), (4, 1, 3), pad=2, mode=2, groups=2),
    conv_case((1, 2, 5, 4), (2, 2, 3, 2), pad=[2, 1], stride=[2, 1], mode=4),
    conv_case((1, 2, 5, 4), (2, 2, 3, 3), pad=1, mode=1),
    conv_case((1, 2, 4, 3, 5), (2, 2, 2, 1, 3), pad=[1, 0, 1], stride=[1, 2, 2]),
    conv_case((1, 2, 3, 3, 3), (4, 1, 2, 2, 2), groups=2, dilation=2, bias=0, pad=1),
    conv_case((2, 3, 5), (3, 2, 3), transposed=1, stride=2, pad=1, output_pad=1),
    conv_case((1, 4, 3, 4), (4, 2, 3, 2), transposed=1, stride=[2, 3], pad=[1, 0], output_pad=[1, 2],
        groups=2),
    conv_case((1, 2, 3, 3), (2, 3, 2, 2), transposed=1, dilation=2, bias=0),
    conv_case((1, 2, 2, 3, 2), (2, 2, 2, 2, 3), transposed=1, stride=[1, 2, 2], output_pad=[0, 1, 0])],
    dtypes="f64", tol=32)


def any_pool(x, kernel, stride, pad, average, ignore_pad, norm, dilation, ceil_mode, divisor):
    d = x.dim() - 2
    if norm:  # F.lp_pool1d and 2d take no padding, and there is no 3d
        ones = torch.ones(1, 1, *kernel, dtype=x.dtype)
        each = x.reshape(-1, 1, *x.shape[2:]) ** norm
        y = getattr(F, f"conv{d}d")(each, ones, None, stride, pad) ** (1 / norm)
        return y.reshape(*x.shape[:2], *y.shape[2:])
    if average:
        return getattr(F, f"avg_pool{d}d")(x, kernel, stride, pad, bool(ceil_mode), not ignore_pad,
            *([divisor] if divisor else []))
    return getattr(F, f"max_pool{d}d")(x, kernel, stride, pad, dilation, bool(ceil_mode))


def pool_case(shape, kernel, stride, pad, average=0, ignore_pad=0, norm=0.0, dilation=None, ceil_mode=0,
    divisor=0):
    return (lambda g: g.distinct(*shape) if not norm else g.f(*shape, lo=0.2),), dict(kernel=kernel,
        stride=stride, pad=pad, average=average, ignore_pad=ignore_pad, norm=norm,
        dilation=dilation or [1] * len(kernel), ceil_mode=ceil_mode, divisor=divisor)


layer("nn_pool", any_pool, [pool_case((2, 2, 7), [3], [2], [1]), pool_case((1, 2, 7), [2], [2], [0], 1),
    pool_case((1, 2, 5), [3], [1], [1], 1, 1), pool_case((1, 2, 6, 5), [3, 2], [2, 1], [1, 0]),
    pool_case((1, 2, 4, 4), [2, 2], [2, 2], [1, 1], 1, 1), pool_case((1, 1, 4, 5, 4), [2, 3, 2], [2, 1, 2],
    [1, 0, 1]), pool_case((1, 2, 4, 4, 4), [2, 2, 2], [2, 2, 2], [0, 0, 0], 1),
    pool_case((2, 2, 6), [2], [2], [0], norm=2.0), pool_case((1, 2, 4, 5), [2, 3], [2, 1], [0, 0], norm=3.0),
    pool_case((1, 2, 6, 7), [2, 2], [2, 2], [0, 0], dilation=[1, 2], ceil_mode=1),
    pool_case((1, 2, 5, 5), [2, 2], [2, 2], [1, 1], 1, ceil_mode=1, divisor=3)],
    dtypes="f64", tol=64)
layer("nn_pool_indices", lambda x, kernel, stride, pad: getattr(F, f"max_pool{len(kernel)}d")(x, kernel, stride, pad,
    return_indices=True), [((lambda g, s=s: g.distinct(*s),), dict(kernel=k, stride=t, pad=p)) for s, k, t, p in
    (((2, 2, 7), [3], [2], [1]), ((1, 2, 6, 5), [3, 2], [2, 1], [1, 0]), ((1, 1, 4, 5, 4), [2, 3, 2], [2, 1, 2],
    [1, 0, 1]))], dtypes="f64", diff=[0])
layer("nn_adaptive_pool", lambda x, size, largest: getattr(F, f"adaptive_{'max' if largest else 'avg'}_pool"
    f"{len(size)}d")(x, size), [((lambda g, s=s: g.distinct(*s),), dict(size=n, largest=m)) for s, n in
    (((2, 2, 7), [3]), ((1, 2, 5, 4), [2, 3]), ((1, 2, 3, 4, 5), [2, 2, 3])) for m in (0, 1)], dtypes="f64")


def frozen_or_not(x, w, b, mean, var, train, momentum, eps, frozen):
    return batch_norm(x, w, b, mean, var, train and not frozen, momentum, eps)


loose("nn_batch_norm", frozen_or_not, lambda g: [(*c[:-1], dict(c[-1], frozen=0)) for c in batch_norm_cases(g)
    if c[0].dim() != 4], diff=[0, 1, 2], tol=32)
loose("nn_batch_norm.frozen", frozen_or_not, lambda g: [(*c[:-1], dict(c[-1], frozen=1))
    for c in batch_norm_cases(g)], diff=[0], tol=32)
layer("nn_instance_norm", lambda x, w=None, b=None, *, eps: F.instance_norm(x, weight=w, bias=b, eps=eps),
    [([(2, 3, 5)], dict(eps=1e-5)), ([(1, 2, 3, 4), (2,), (2,)], dict(eps=0.1)),
    ([(1, 2, 2, 3, 2)], dict(eps=1e-5))], dtypes="f64", tol=64)
def tracked_instance(x, w, b, mean, var, train, momentum, eps):
    m = getattr(torch.nn, f"InstanceNorm{x.dim() - 2}d")(x.shape[1], eps, momentum, True, True).to(x.dtype)
    m.running_mean.copy_(mean), m.running_var.copy_(var)
    y = torch.nn.utils.stateless.functional_call(m.train(bool(train)), {"weight": w, "bias": b}, (x,))
    return y, m.running_mean.clone(), m.running_var.clone()


loose("nn_instance_norm.tracked", tracked_instance, lambda g: [(g.f(*s, d="f64"), g.f(s[1], d="f64"), g.f(s[1], d="f64"),
    g.f(s[1], d="f64"), g.f(s[1], lo=0.5, hi=2, d="f64"), dict(train=t, momentum=m, eps=e)) for s, m, e in
    (((2, 3, 5), 0.1, 1e-5), ((3, 2, 3, 4), 0.25, 0.1), ((1, 2, 2, 3, 2), 1.0, 1e-5)) for t in (0, 1)],
    diff=[0, 1, 2], tol=64)
layer("nn_rms_norm_default", lambda x, w: x * (x.square().mean(-1, keepdim=True) +
    torch.finfo(x.dtype).eps).rsqrt() * w, [([(2, 4), (4,)], {})], dtypes="f32", tol=32)
layer("nn_bilinear", lambda x, y, w, b=None: F.bilinear(x, y, w, b), [([(3, 2), (3, 4), (5, 2, 4), (5,)], {}),
    ([(2, 3, 2), (2, 3, 1), (3, 2, 1)], {})], dtypes="f64", tol=32)


def plain_activation(x, kind, a, b):
    n = torch.nn
    made = {"relu": n.ReLU, "relu6": n.ReLU6, "gelu": n.GELU, "gelu_tanh": lambda: n.GELU("tanh"),
        "tanh": n.Tanh, "sigmoid": n.Sigmoid, "silu": n.SiLU, "mish": n.Mish, "selu": n.SELU,
        "softsign": n.Softsign, "logsigmoid": n.LogSigmoid, "tanhshrink": n.Tanhshrink,
        "hardsigmoid": n.Hardsigmoid, "hardswish": n.Hardswish, "leaky_relu": n.LeakyReLU, "elu": n.ELU,
        "celu": n.CELU, "swish": lambda b=1.0: lambda x: x * torch.sigmoid(b * x), "hardshrink": n.Hardshrink,
        "softshrink": n.Softshrink, "softplus": n.Softplus, "threshold": n.Threshold, "hardtanh": n.Hardtanh,
        "softmax": n.Softmax, "softmin": n.Softmin, "log_softmax": n.LogSoftmax, "glu": n.GLU,
        "rrelu": lambda *a: n.RReLU(*a).eval()}[kind]
    return made(*([] if a == 0 else [a] if b == 0 else [a, b]))(x)


ACTIVATIONS = [(kind, 0, 0) for kind in ("relu relu6 gelu gelu_tanh tanh sigmoid silu mish selu softsign "
    "logsigmoid tanhshrink hardsigmoid hardswish leaky_relu elu celu swish hardshrink softshrink softplus "
    "hardtanh rrelu").split()] + [("leaky_relu", 0.2, 0), ("elu", 0.7, 0), ("celu", 0.6, 0),
    ("swish", 1.7, 0), ("hardshrink", 0.3, 0), ("softshrink", 0.3, 0), ("softplus", 2.0, 1.0), ("threshold", 0.2, -3.0),
    ("hardtanh", -0.6, 1.2), ("rrelu", 0.1, 0.5), ("softmax", 1, 0), ("softmax", -1, 0), ("softmin", 1, 0),
    ("log_softmax", 1, 0), ("glu", 1, 0)]
layer("nn_activation", plain_activation, [([(2, 4, 3)], dict(kind=k, a=a, b=b)) for k, a, b in ACTIVATIONS],
    dtypes="f64", tol=32, grad=1)
layer("nn_prelu", F.prelu, [([(2, 3, 4), (1,)], {}), ([(2, 3, 4), (3,)], {}), ([(5,), (1,)], {})],
    dtypes="f64")


def normalized(x, axes, p, eps, value):
    return value * x / torch.linalg.vector_norm(x, p, axes, keepdim=True).clamp_min(eps)


layer("nn_normalize", normalized, [([(2, 3, 4)], dict(axes=a, p=p, eps=e, value=v)) for a, p, e, v in
    (([1], 2.0, 1e-12, 1.0), ([0, 2], 2.0, 1e-12, 3.0), ([-1], 3.0, 1e-12, 1.0), ([1], 1.0, 50.0, 1.0))],
    dtypes="f64", tol=32)


def weight_normed(x, v, g, b, axis):
    # torch._weight_norm's second derivative is wrong in 1.13
    w = v * (g / v.norm(2, [d for d in range(v.dim()) if d != axis], keepdim=True))
    return F.linear(x, w, b) if x.dim() == 2 else F.conv2d(x, w, b)


layer("nn_weight_norm", weight_normed, [([(2, 3), (4, 3), (4, 1), (4,)], dict(axis=0)),
    ([(2, 3), (4, 3), (1, 3), (4,)], dict(axis=1)),
    ([(1, 2, 4, 4), (3, 2, 2, 3), (3, 1, 1, 1), (3,)], dict(axis=0))], dtypes="f64", tol=32)


def residual(x, w0, b0, w1, b1, p, pb):
    first = F.linear(x, w0, b0)
    second = F.linear(first.relu() + x, w1, b1)  # the input comes before stage "second"
    return second + F.linear(first, p, pb)       # "first" goes to the result, projected


layer("nn_residual", residual, [([(2, 3), (3, 3), (3,), (4, 3), (4,), (4, 3), (4,)], {})],
    dtypes="f64", tol=32)
layer("nn_pad", lambda x, low, high, mode, value: around(x, low, high, mode) if mode else F.pad(x,
    [n for pair in reversed(list(zip(low, high))) for n in pair], value=value),
    [([(1, 2, 4, 3)], dict(low=[1, 2], high=[0, 1], mode=m, value=0.0)) for m in (0, 1, 2, 4)] +
    [([(2, 4)], dict(low=[2], high=[1], mode=0, value=1.5))], dtypes="f64")

# --- training -------------------------------------------------------------------------------------

group("train")
loose("nn_linear", F.linear, lambda g: [(g.f(*x), g.f(4, 3), g.f(4)) for x in ((2, 3), (2, 2, 3))] +
    [(g.f(2, 3), g.f(4, 3))] + [(g.f(2, 3, d="f64"), g.f(4, 3, d="f64"), g.f(4, d="f64"))])
layer("nn_conv2d", convolution(F.conv2d), [c for c in conv_cases(2) if c[0][1][2] == c[0][1][3]],
    dtypes="f64", tol=32)
loose("nn_batch_norm2d", batch_norm, lambda g: [c for c in batch_norm_cases(g) if c[0].dim() == 4],
    diff=[0, 1, 2], tol=32)
layer("nn_layer_norm", lambda x, w, b, eps: F.layer_norm(x, w.shape, w, b, eps),
    [([(*s, *n), n, n], dict(eps=e)) for e in (1e-5, 0.1) for s, n in (((3,), (4,)),
    ((2,), (3, 2)))], dtypes="f64", tol=32)


def bounds(fill, mean, bound=None, std=None):
    """What C measures of a filled tensor: largest value, smallest, mean, deviation."""
    torch.manual_seed(0)
    w = fill(torch.empty(SHAPE_OF_INIT, dtype=torch.float64))
    expect = torch.tensor([mean + bound, mean - bound, mean, bound / math.sqrt(3)]
        if bound else [NAN, NAN, mean, std], dtype=torch.float64)
    got = torch.tensor([w.max(), w.min(), w.mean(), w.std()], dtype=torch.float64)
    known = ~expect.isnan()
    assert ((got - expect)[known].abs() < 0.02 * max(1.0,
        mean) * expect[known].abs().max()).all(), (got, expect)
    return expect.float()


SHAPE_OF_INIT = (80, 50, 5, 2)
FAN_IN, FAN_OUT = 50 * 10, 80 * 10
INIT = torch.nn.init


def initialiser(name, cases):
    """Expected: largest, smallest (NaN: any), mean, deviation; tolerance 2 % of the range."""
    loose(name, lambda **k: None, [(dict(k, shape=list(SHAPE_OF_INIT), _ref=ref),)
        for k, ref in cases], tol=2.0**18, grad=0)


initialiser("init_uniform", [(dict(low=a, high=b), bounds(lambda w: INIT.uniform_(w, a, b),
    (a + b) / 2, bound=(b - a) / 2)) for a, b in ((-1.0, 1.0), (0.0, 2.0), (-0.5, 0.5))])
initialiser("init_normal", [(dict(mean=m, std=s), bounds(lambda w: INIT.normal_(w, m, s), m, std=s))
    for m, s in ((0.0, 1.0), (1.0, 0.5), (-2.0, 2.0))])
initialiser("init_kaiming_uniform", [(dict(a=a), bounds(lambda w: INIT.kaiming_uniform_(w, a), 0,
    bound=math.sqrt(6 / (1 + a * a) / FAN_IN))) for a in (0.0, 0.2, math.sqrt(5))])
initialiser("init_kaiming_normal", [(dict(a=a), bounds(lambda w: INIT.kaiming_normal_(w, a), 0,
    std=math.sqrt(2 / (1 + a * a) / FAN_IN))) for a in (0.0, 0.2, 1.0)])
initialiser("init_glorot_uniform", [(dict(gain=k), bounds(lambda w: INIT.xavier_uniform_(w, k), 0,
    bound=k * math.sqrt(6 / (FAN_IN + FAN_OUT)))) for k in (1.0, 2.0)])
initialiser("init_glorot_normal", [(dict(gain=k), bounds(lambda w: INIT.xavier_normal_(w, k), 0,
    std=k * math.sqrt(2 / (FAN_IN + FAN_OUT)))) for k in (1.0, 2.0)])
initialiser("init_constant", [(dict(value=v), torch.tensor([v, v, v, 0.0])) for v in (0.0, -1.5)])
initialiser("init_truncated_normal", [(dict(mean=0.0, std=1.0, low=-2.0, high=2.0),
    torch.tensor([2.0, -2.0, 0.0, 0.8796]))])
initialiser("init_default_linear", [({}, torch.tensor([1, -1, 0,
    1 / math.sqrt(3)]) / math.sqrt(FAN_IN))])
initialiser("init_default_conv2d", [({}, torch.tensor([1, -1, 0,
    1 / math.sqrt(3)]) / math.sqrt(FAN_IN))])


def cnn_curve(x, target, *p):
    """Losses of ten steps of a network with most kinds of layers; p in the order of its parameters."""
    p = [q.detach().clone().requires_grad_() for q in p]
    optim, out = torch.optim.SGD(p, 0.1, 0.9), []
    for _ in range(10):
        h = F.max_pool2d(F.relu(F.group_norm(F.conv2d(x, p[0], p[1], padding=1), 2, p[2], p[3])), 2)
        h = F.batch_norm(F.conv2d(h, p[4], padding=1, groups=2), None, None, p[5], p[6], True)
        h = F.conv_transpose2d(F.prelu(h, p[7]), p[8], p[9], 2, 1, 1)
        h = F.adaptive_avg_pool2d(F.celu(F.instance_norm(h, weight=p[10], bias=p[11])), 2)
        w = torch._weight_norm(p[12], p[14], 0)
        loss = F.cross_entropy(F.linear(h.flatten(1), w, p[13]), target)
        optim.zero_grad()
        loss.backward()
        optim.step()
        out.append(loss.detach())
    return torch.stack(out)


CNN = [(4, 2, 3, 3), (4,), (4,), (4,), (6, 2, 3, 3), (6,), (6,), (1,), (6, 3, 3, 3), (3,), (3,), (3,),
    (5, 12), (5,), (5, 1)]
loose("train_cnn", cnn_curve, lambda g: [(g.f(4, 2, 8, 8, d=d), torch.tensor([0, 3, 1, 4]),
    *[g.f(*s, lo=-0.5, hi=0.5, d=d) for s in CNN]) for d in ("f64", "f32")], grad=0, tol=4096)


def trajectory(make):
    """Inputs: the parameter, a gradient for every step; output: the parameter after each."""
    def run(p, grads, **k):
        narrow = p.dtype in (torch.bfloat16, torch.float16)  # with a master in f32
        grads, out = (grads.float() if narrow else grads), []
        p = torch.nn.Parameter((p.float() if narrow else p).detach().clone())
        optim = make([p], **k)
        for g in grads:
            p.grad = g.clone()
            optim.step()
            out.append(p.detach().clone().to(torch.bfloat16 if narrow else p.dtype))
        return torch.stack(out)
    return run


def optimizer(name, make, args, tol=32, shape=(5,)):
    loose(name, trajectory(make), lambda g: [(g.f(*shape, d=d), g.f(10, *shape, d=d), a) for a in args
        for d in ("f32", "f64", "bf16")], grad=0, tol=tol)


class Formula(torch.optim.Optimizer):
    """An optimizer that PyTorch 1.13 lacks: update(p, g, state, t) returns the new parameter."""
    def __init__(self, params, update):
        super().__init__(params, {})
        self.update = update

    def step(self):
        for p in self.param_groups[0]["params"]:
            s = self.state[p]
            s["t"] = s.get("t", 0) + 1
            p.data = self.update(p.data, p.grad, s, s["t"])


def zeros(s, name, p):
    return s.get(name, torch.zeros_like(p))


def lion(lr, beta1, beta2, decay):
    def update(p, g, s, t):
        m = zeros(s, "m", p)
        s["m"] = beta2 * m + (1 - beta2) * g
        return p * (1 - lr * decay) - lr * torch.sign(beta1 * m + (1 - beta1) * g)
    return update


def lamb(lr, beta1, beta2, eps, decay):
    def update(p, g, s, t):
        m = s["m"] = beta1 * zeros(s, "m", p) + (1 - beta1) * g
        v = s["v"] = beta2 * zeros(s, "v", p) + (1 - beta2) * g * g
        r = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + eps) + decay * p
        a, b = p.norm(), r.norm()
        return p - lr * (float(a / b) if a > 0 and b > 0 else 1.0) * r
    return update


def novograd(lr, beta1, beta2, eps, decay):
    def update(p, g, s, t):
        gg = g.double().square().sum()
        s["v"] = gg if t == 1 else beta2 * s["v"] + (1 - beta2) * gg
        s["m"] = beta1 * zeros(s, "m", p) + (g / (float(s["v"].sqrt()) + eps) + decay * p)
        return p - lr * s["m"]
    return update


def nadam(lr, beta1, beta2, eps, decay):  # PyTorch's since 2.0: 1.13 takes u_t twice in the second product
    def update(p, g, s, t):
        g = g + decay * p
        m = s["m"] = beta1 * zeros(s, "m", p) + (1 - beta1) * g
        v = s["v"] = beta2 * zeros(s, "v", p) + (1 - beta2) * g * g
        u, after = (beta1 * (1 - 0.5 * 0.96**(n * 0.004)) for n in (t, t + 1))
        s["all"] = s.get("all", 1.0) * u
        return p - lr * ((1 - u) / (1 - s["all"]) * g + after / (1 - s["all"] * after) * m) / (
            v.sqrt() / math.sqrt(1 - beta2**t) + eps)
    return update


def adafactor(lr, decay2, eps1, eps2, d, decay):
    def update(p, g, s, t):
        def mean(name, x):
            s[name] = zeros(s, name, x) + (t**decay2) * (x - zeros(s, name, x))
            return s[name]
        gg = g * g
        if p.dim() > 1:
            row, col = mean("row", gg.mean(-1, keepdim=True)), mean("col", gg.mean(-2, keepdim=True))
            v = row @ col / row.mean(-2, keepdim=True).clamp(min=eps1)
        else:
            v = mean("v", gg)
        u = g / v.clamp(min=eps1 * eps1).sqrt()
        size, n = max(eps2, float(p.norm()) / math.sqrt(p.numel())), math.sqrt(p.numel())
        return p * (1 - lr * decay) - min(lr, t**-0.5) * size / max(1.0, float(u.norm()) / (n * d)) * u
    return update


def muon(lr, momentum, decay, nesterov, match):
    def update(p, g, s, t):
        m = s["m"] = zeros(s, "m", p).lerp(g, 1 - momentum)
        x = g.lerp(m, momentum) if nesterov else m
        x = x.T if p.shape[0] > p.shape[1] else x
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            y = x @ x.T
            x = 3.4445 * x + (-4.775 * y + 2.0315 * y @ y) @ x
        x = x.T if p.shape[0] > p.shape[1] else x
        rows, columns = p.shape
        size = 0.2 * math.sqrt(max(rows, columns)) if match else math.sqrt(max(1, rows / columns))
        return p * (1 - lr * decay) - lr * size * x
    return update


OPT = torch.optim
optimizer("sgd", lambda p, lr, momentum, dampening, decay, nesterov: OPT.SGD(p, lr, momentum,
    dampening, decay, bool(nesterov)), [dict(lr=0.1, momentum=m, dampening=d, decay=w, nesterov=n)
    for m, d, w, n in [(0.0, 0.0, 0.0, 0), (0.9, 0.0, 0.0, 0), (0.9, 0.1, 0.0, 0),
    (0.9, 0.0, 0.01, 0), (0.9, 0.0, 0.0, 1), (0.8, 0.0, 0.1, 1)]])
ADAMS = [dict(lr=l, beta1=a, beta2=b, eps=e, decay=w) for l, a, b, e, w in [(0.01, 0.9, 0.999, 1e-8,
    0.0), (0.1, 0.8, 0.99, 1e-4, 0.0), (0.01, 0.9, 0.999, 1e-8, 0.1), (0.001, 0.0, 0.9, 1e-8, 0.0)]]
for name, kind in (("adam", OPT.Adam), ("adamw", OPT.AdamW), ("adamax", OPT.Adamax), ("radam", OPT.RAdam)):
    optimizer(name, lambda p, lr, beta1, beta2, eps, decay, kind=kind: kind(p, lr, (beta1, beta2), eps,
        decay), ADAMS, tol=256)
optimizer("amsgrad", lambda p, lr, beta1, beta2, eps, decay: OPT.Adam(p, lr, (beta1, beta2), eps,
    decay, True), ADAMS[:3], tol=256)
optimizer("rmsprop", lambda p, lr, alpha, eps, decay, momentum, centered: OPT.RMSprop(p, lr, alpha,
    eps, decay, momentum, bool(centered)), [dict(lr=0.01, alpha=a, eps=1e-8, decay=w, momentum=m,
    centered=c) for a, w, m, c in [(0.99, 0.0, 0.0, 0), (0.9, 0.1, 0.0, 0), (0.9, 0.0, 0.9, 0),
    (0.9, 0.0, 0.0, 1)]], tol=256)
optimizer("adagrad", lambda p, lr, lr_decay, decay, eps: OPT.Adagrad(p, lr, lr_decay, decay, 0,
    eps), [dict(lr=0.1, lr_decay=a, decay=w, eps=1e-10) for a, w in [(0.0, 0.0), (0.1, 0.0),
    (0.0, 0.1)]], tol=256)
optimizer("adadelta", lambda p, lr, rho, eps, decay: OPT.Adadelta(p, lr, rho, eps, decay),
    [dict(lr=1.0, rho=r, eps=1e-6, decay=w) for r, w in [(0.9, 0.0), (0.5, 0.1)]], tol=256)

optimizer("rprop", lambda p, lr, minus, plus, least, most, maximize: OPT.Rprop(p, lr, (minus, plus),
    (least, most), maximize=bool(maximize)), [dict(lr=0.01, minus=a, plus=b, least=c, most=d, maximize=m)
    for a, b, c, d, m in [(0.5, 1.2, 1e-6, 50.0, 0), (0.3, 2.0, 0.004, 0.03, 1)]])
optimizer("asgd", lambda p, lr, lambd, alpha, t0, decay, maximize: OPT.ASGD(p, lr, lambd, alpha, t0,
    decay, maximize=bool(maximize)), [dict(lr=0.1, lambd=a, alpha=b, t0=c, decay=w, maximize=m)
    for a, b, c, w, m in [(1e-4, 0.75, 1e6, 0.0, 0), (0.2, 0.5, 3.0, 0.1, 1)]])

for name, rule, args in (("lion", lion, [dict(lr=0.01, beta1=a, beta2=b, decay=w)
        for a, b, w in [(0.9, 0.99, 0.0), (0.8, 0.9, 0.1)]]),
    ("nadam", nadam, ADAMS), ("lamb", lamb, [dict(a) for a in ADAMS[:3]]), ("novograd", novograd, [dict(a) for a in ADAMS[:3]])):
    optimizer(name, lambda p, rule=rule, **k: Formula(p, rule(**k)), args, tol=256)
for shape in ((5,), (3, 4), (2, 3, 2)):
    optimizer(f"adafactor.{len(shape)}", lambda p, **k: Formula(p, adafactor(**k)), [dict(lr=l, decay2=-0.8,
        eps1=1e-4, eps2=1e-3, d=d, decay=w) for l, d, w in [(0.01, 1.0, 0.0), (0.4, 1.2, 0.1)]], tol=512,
        shape=shape)
for shape in ((3, 5), (6, 2)):
    optimizer(f"muon.{shape[0]}", lambda p, **k: Formula(p, muon(**k)), [dict(lr=0.02, momentum=0.95,
        decay=w, nesterov=n, match=k) for w, n, k in [(0.1, 1, 0), (0.0, 0, 1)]], tol=4096, shape=shape)


def rosenbrock(p):
    return (100 * (p[1:] - p[:-1]**2)**2 + (1 - p[:-1])**2).sum()


def lbfgs(p, lr, iters, evals, history, wolfe, steps):
    """The parameter and the first loss of each step."""
    p, out = torch.nn.Parameter(p.detach().clone()), []
    optim = OPT.LBFGS([p], lr, iters, evals, history_size=history, line_search_fn="strong_wolfe" if wolfe else None)

    def closure():
        optim.zero_grad()
        loss = rosenbrock(p)
        loss.backward()
        return loss
    for _ in range(steps):
        loss = optim.step(closure)
        out.append(torch.cat([p.detach(), loss.detach().reshape(1)]))
    return torch.stack(out)


loose("lbfgs", lbfgs, lambda g: [(g.f(n, d="f64"), dict(lr=l, iters=i, evals=e, history=h, wolfe=w, steps=s))
    for n, l, i, e, h, w, s in [(2, 1.0, 20, 25, 100, 1, 3), (6, 0.5, 5, 40, 3, 1, 8), (4, 2.0, 4, 5, 10, 1, 10),
    (5, 1e-3, 7, 100, 100, 0, 4), (3, 0.01, 4, 3, 2, 0, 12)]], grad=0, tol=4096)


def clipped(*g, max_norm):
    ps = [torch.nn.Parameter(torch.zeros_like(x)) for x in g]
    for p, x in zip(ps, g):
        p.grad = x.detach().clone()
    norm = torch.nn.utils.clip_grad_norm_(ps, max_norm)
    return (norm,) + tuple(p.grad for p in ps)


loose("clip_grad_norm", clipped, lambda g: [(g.f(5), g.f(2, 3), dict(max_norm=m))
    for m in (0.5, 1.0, 100.0)] + [(g.f(4, d="f64"), dict(max_norm=1.0))], grad=0)


def rates(make, number="lr"):
    def run(lr, steps, **k):
        optim = OPT.SGD([torch.nn.Parameter(torch.zeros(1))], lr, momentum=0.5)
        schedule, out = make(optim, **k), []
        for _ in range(steps):
            out.append(optim.param_groups[0][number])
            optim.step()
            schedule.step()
        return torch.tensor(out, dtype=torch.float64)
    return run


SCHEDULE = OPT.lr_scheduler
loose("lr_step", rates(lambda o, every, gamma: SCHEDULE.StepLR(o, every, gamma)),
    [(dict(lr=0.1, steps=10, every=e, gamma=g),) for e, g in ((3, 0.1), (1, 0.9), (4, 0.5))],
    tol=32)
loose("lr_cosine", rates(lambda o, total, low: SCHEDULE.CosineAnnealingLR(o, total, low)),
    [(dict(lr=0.1, steps=n, total=n - 1, low=l),) for n, l in ((9, 0.0), (13, 0.01))], tol=256)
loose("lr_warmup", rates(lambda o, warmup: SCHEDULE.LambdaLR(o,
    lambda t: min(1.0, (t + 1) / warmup))), [(dict(lr=0.2, steps=8, warmup=w),) for w in (1, 4, 5)],
    tol=8)
loose("lr_multi_step", rates(lambda o, a, b, gamma: SCHEDULE.MultiStepLR(o, [a, b], gamma)),
    [(dict(lr=0.1, steps=12, a=3, b=7, gamma=0.5),)], tol=32)
loose("lr_exponential", rates(lambda o, gamma: SCHEDULE.ExponentialLR(o, gamma)),
    [(dict(lr=0.1, steps=12, gamma=0.9),)], tol=64)
loose("lr_polynomial", rates(lambda o, total, power: SCHEDULE.PolynomialLR(o, total, power)),
    [(dict(lr=0.1, steps=12, total=9, power=p),) for p in (1.0, 2.0, 0.5)], tol=256)
loose("lr_cosine_restarts", rates(lambda o, every, grow, low: SCHEDULE.CosineAnnealingWarmRestarts(o,
    every, grow, low)), [(dict(lr=0.1, steps=30, every=4, grow=k, low=0.01),) for k in (1, 2)], tol=256)
loose("lr_inverse_sqrt", rates(lambda o, warmup: SCHEDULE.LambdaLR(o, lambda t: min((t + 1) / warmup,
    math.sqrt(warmup / (t + 1))))), [(dict(lr=0.2, steps=16, warmup=w),) for w in (1, 5)], tol=16)
loose("lr_wsd", rates(lambda o, warmup, decay, total, low: SCHEDULE.LambdaLR(o, lambda t:
    (low + (0.2 - low) * max(total - t, 0) / decay) / 0.2 if t >= total - decay
    else min(1, (t + 1) / warmup))), [(dict(lr=0.2, steps=20, warmup=4, decay=5, total=17, low=0.02),)],
    tol=64)
loose("lr_one_cycle", rates(lambda o, total, rise: SCHEDULE.OneCycleLR(o, o.param_groups[0]["lr"],
    total_steps=total, pct_start=rise, cycle_momentum=False)),
    [(dict(lr=0.1, steps=n, total=n + 1, rise=r),) for n, r in ((20, 0.3), (30, 0.5))], tol=4096)
loose("momentum_one_cycle", rates(lambda o, total, rise, low, high: SCHEDULE.OneCycleLR(o, 0.1,
    total_steps=total, pct_start=rise, base_momentum=low, max_momentum=high), "momentum"),
    [(dict(lr=0.1, steps=20, total=21, rise=0.3, low=0.85, high=0.95),)], tol=64)


def plateau(lr, steps, gamma, patience, cooldown, low, maximize):
    optim, out = OPT.SGD([torch.nn.Parameter(torch.zeros(1))], lr), []
    schedule = SCHEDULE.ReduceLROnPlateau(optim, "max" if maximize else "min", gamma, patience,
        cooldown=cooldown, min_lr=low, eps=0)
    for t in range(steps):
        out.append(optim.param_groups[0]["lr"])
        schedule.step((math.cos(0.7 * t) + 2) * (1 if maximize else 1 + 1 / (t + 1)))
    return torch.tensor(out, dtype=torch.float64)


loose("lr_plateau", plateau, [(dict(lr=0.1, steps=30, gamma=0.5, patience=p, cooldown=c, low=0.01,
    maximize=m),) for p, c, m in ((2, 0, 0), (1, 2, 0), (3, 1, 1))], tol=32)


group("passes")


def wgan(real, noise, mix, *p, lr, penalty):
    """A Wasserstein GAN with gradient penalty: losses of critic and generator, step by step."""
    def net(x, p):
        return torch.tanh(x @ p[0].T + p[1]) @ p[2].T + p[3]
    p = [torch.nn.Parameter(q.detach().clone()) for q in p]
    critic, generator, out = p[:4], p[4:], []
    optims = [OPT.Adam(q, lr, (0.5, 0.9)) for q in (critic, generator)]
    for r, z, e in zip(real, noise, mix):
        fake = net(z, generator).detach()
        between = (e * r + (1 - e) * fake).requires_grad_()
        g, = torch.autograd.grad(net(between, critic).sum(), between, create_graph=True)
        apart = net(fake, critic).mean() - net(r, critic).mean()
        out.append(apart + penalty * ((g.norm(2, 1) - 1) ** 2).mean())
        optims[0].zero_grad()
        out[-1].backward()
        optims[0].step()
        out.append(-net(net(z, generator), critic).mean())
        optims[1].zero_grad()
        out[-1].backward()
        optims[1].step()
    return torch.stack(out).detach()


loose("wgan_penalty", wgan, lambda g: [tuple(g.f(*s, d="f64", **k) for s, k in [((10, 8, 2), {}),
    ((10, 8, 3), {}), ((10, 8, 1), dict(lo=0.0, hi=1.0))] + [(s, {}) for s in ((6, 2), (6,), (1, 6),
    (1,), (6, 3), (6,), (2, 6), (2,))]) + (dict(lr=0.02, penalty=10.0),)], grad=0, tol=64)
moving("unbind", lambda x, axis: x.unbind(axis), [([(3, 4)], dict(axis=0)), ([(2, 3, 4)],
    dict(axis=-2)), ([(3, 0)], dict(axis=0)), ([(1,)], dict(axis=0))], dtypes="f64 i64 bf16")


# --- evaluation -----------------------------------------------------------------------------------

def in_double(x):
    if torch.is_tensor(x):
        return x.double() if x.is_floating_point() else x
    return torch.tensor(x)


def as_tuple(y):
    return y if isinstance(y, (tuple, list)) else (y,)


def weights(t, order, k):
    i = torch.arange(t.numel())
    v = 2 * ((7 * i + 3 * k + 3) % 17) - 17 if order == 1 else 2 * ((5 * i + 3 * k + 1) % 13) - 13
    return (v.to(t.dtype) / 8).reshape(t.shape)


def weighted(ts, order):
    return sum((weights(t, order, k) * t).sum() for k, t in enumerate(ts))


def gradients(fn, ins, args, diff, order):
    """Values and first and second gradients in the dtype of ins; None where there are none."""
    xs = [x.detach().clone().requires_grad_(k in diff) for k, x in enumerate(ins)]
    ys = as_tuple(fn(*xs, **args))
    flowing = [y for y in ys if y.is_floating_point()]
    leaves = [xs[k] for k in diff]
    if not order or not leaves or not any(y.requires_grad for y in flowing):
        return ys, None, None
    def all_of(root, again):
        g = torch.autograd.grad(root, leaves, create_graph=again, allow_unused=True)
        return [torch.zeros_like(x) if d is None else d for d, x in zip(g, leaves)]
    first = all_of(weighted(flowing, 1), order > 1)
    root = weighted(first, 2) if order > 1 else None
    second = all_of(root, False) if root is not None and root.requires_grad else None
    return ys, [d.detach() for d in first], [d.detach() for d in second] if second else None


def error(got, want, loose):
    """Largest difference in units in the last place of the dtype, as parity.c measures it."""
    name = NAMES[want.dtype]
    if name not in EPS:
        return 0.0 if torch.equal(got, want) else INF
    a, b = got.double().flatten(), want.double().flatten()
    same = (a == b) | (a.isnan() & b.isnan())
    scale = b.abs()
    if loose:
        finite = scale[scale.isfinite()]
        scale = torch.full_like(b, max(1.0, float(finite.max()) if len(finite) else 0.0))
    unit = (2.0 ** torch.frexp(scale)[1].double() / 2 * EPS[name]).clamp(min=TINY[name])
    unit[scale == 0] = TINY[name]
    off = torch.where(same, torch.zeros_like(a), ((a - b).abs() / unit).nan_to_num(INF, INF))
    return float(off.max()) if len(off) else 0.0


class Case:
    def __init__(self, row, ins, args):
        settings = {k: args.pop(k) for k in list(args) if k.startswith("_")}
        self.row, self.ins, self.args = row, ins, args
        self.loose = row.loose
        self.half = any(torch.is_tensor(x) and NAMES[x.dtype] in HALVES for x in ins)
        self.tols = self.tolerances(self.half)
        tensors = [x if torch.is_tensor(x) else torch.tensor(x) for x in ins]
        diff = [k for k, x in enumerate(ins) if torch.is_tensor(x) and x.is_floating_point()]
        self.diff = [k for k in diff if row.diff is None or k in row.diff]
        order = settings.get("_grad", row.grad)
        self.evaluate(tensors, order, settings)

    def tolerances(self, half):
        a = self.row.tol
        if half and a:
            a = max(2, a / 8) if self.row.loose else a
        b = max(16, 2 * self.row.tol) if not half else 16
        return [a, b, 2 * b]

    def evaluate(self, tensors, order, settings):
        row, ref = self.row, settings.get("_ref")
        try:
            own = gradients(row.fn, tensors, self.args, self.diff, order) if ref is None else None
        except RuntimeError:
            if not self.half:
                raise
            own = None  # PyTorch 1.13 lacks many ops of f16 and bf16 on the CPU
        if ref is None and row.ref:
            ref = row.ref(*tensors, **self.args)
        if ref is not None:
            self.outs, self.first, self.second = as_tuple(ref), None, None
            self.source = "torch" if self.same_by_torch(tensors) else "f64"
            return
        torch.set_default_dtype(torch.float64)
        wide = gradients(row.wide, [in_double(x) for x in self.ins], self.args, self.diff, order)
        torch.set_default_dtype(torch.float32)
        types = self.types_of(own, tensors)
        self.outs = own[0] if row.native else [y.to(t) if y.is_floating_point() else y
            if own is None else o for y, t, o in zip(wide[0], types, own[0] if own else wide[0])]
        self.outs = [y.detach() for y in self.outs]
        cast = lambda ds: ds and [d.to(self.ins[k].dtype) for d, k in zip(ds, self.diff)]
        self.first, self.second = cast(wide[1]), cast(wide[2])
        self.source = "torch" if own and self.agrees(own) else "f64"

    def same_by_torch(self, tensors):
        """PyTorch gives exactly the reference."""
        try:
            ys = as_tuple(self.row.fn(*tensors, **self.args))
        except RuntimeError:
            return False
        return all(y is not None and y.dtype == r.dtype and torch.equal(y, r)
            for y, r in zip(ys, self.outs))

    def types_of(self, own, tensors):
        """Dtypes of the outputs; where PyTorch cannot run, those of f32 with the half put back."""
        if own:
            return [y.dtype for y in own[0]]
        half = functools.reduce(torch.promote_types, [x.dtype for x in tensors
            if x.is_floating_point()])
        ys = as_tuple(self.row.fn(*[x.float() if x.is_floating_point() else x for x in tensors],
            **self.args))
        return [half if y.dtype == torch.float32 else y.dtype for y in ys]

    def agrees(self, own):
        a, b, c = self.tols
        return all(error(x, y, loose) <= tol for xs, ys, tol, loose in ((own[0], self.outs, a,
            self.loose), (own[1], self.first, b, True), (own[2], self.second, c, True)) if xs and ys
            for x, y in zip(xs, ys))


# --- files ----------------------------------------------------------------------------------------

def raw(t):
    """Row-major bytes; every NaN the same."""
    t = t.detach().contiguous()
    if t.is_floating_point():
        t = torch.where(t.isnan(), torch.tensor(NAN, dtype=t.dtype), t)
    return (t.view(torch.int16) if t.dtype == torch.bfloat16 else t).numpy().tobytes()


def value_text(v):
    if isinstance(v, bool):
        return str(int(v))
    return "[" + ",".join(map(value_text, v)) + "]" if isinstance(v,
        (list, tuple)) else repr(v) if isinstance(v, (int, float)) else v


class File:
    def __init__(self):
        self.lines, self.data, self.places = [], bytearray(), {}

    def tensor(self, t):
        if not torch.is_tensor(t):
            return repr(t)
        b = raw(t)
        if b not in self.places:
            self.data.extend(bytes(-len(self.data) % 8))
            self.places[b] = len(self.data)
            self.data.extend(b)
        return f"{NAMES[t.dtype]}[{','.join(map(str, t.shape))}]@{self.places[b]}"

    def add(self, c):
        words = [c.row.name, c.source, "tol=" + "/".join(f"{t:g}" for t in c.tols)]
        words += ["loose"] * c.loose + ["sign"] * c.row.sign + [f"{k}={value_text(v)}"
            for k, v in c.args.items()]
        words += ["in=" + self.tensor(x) for x in c.ins] + ["out=" + self.tensor(y) for y in c.outs]
        for letter, grads in (("g", c.first), ("h", c.second)):
            words += [f"{letter}{k}=" + self.tensor(d) for k, d in zip(c.diff, grads or [])]
        self.lines.append(" ".join(words))

    def bytes(self):
        return "\n".join([f"fl golden 1 {len(self.lines)} {len(self.data)}"] + self.lines +
            [""]).encode() + bytes(self.data)


def cases_of(row):
    """The cases of a row: a function of a generator seeded by its name, or a list."""
    made = row.cases(Gen(row.name)) if callable(row.cases) else row.cases
    for case in made:
        args = dict(case[-1]) if isinstance(case[-1], dict) else {}
        try:
            yield Case(row, case[:-1] if isinstance(case[-1], dict) else case, args)
        except Exception as e:
            shapes = [f"{x.dtype}{list(x.shape)}" if torch.is_tensor(x) else x for x in case]
            raise RuntimeError(f"{row.name} {shapes}: {e}") from e


def make(names):
    """Bytes of every file; by op, cases that are torch, f64, with gradients, with second ones."""
    files, counts = {}, {}
    for r in ROWS:
        op = r.name.split(".")[0]
        if names and op not in names:
            continue
        f = files.setdefault(r.group + ".golden", File())
        for c in cases_of(r):
            f.add(c)
            n = counts.setdefault(op, [0, 0, 0, 0])
            n[0 if c.source == "torch" else 1] += 1
            n[2] += bool(c.first)
            n[3] += bool(c.second)
    return {name: f.bytes() for name, f in files.items()}, counts


def compare(folder, files):
    """--verify: names the first line that differs."""
    bad = 0
    for name, want in files.items():
        path = os.path.join(folder, name)
        got = open(path, "rb").read() if os.path.exists(path) else b""
        if got != want:
            bad += 1
            lines = zip(got.split(b"\n"), want.split(b"\n"))
            first = next((k + 1 for k, (a, b) in enumerate(lines) if a != b), 0)
            print(f"{path}: differs{f' first in line {first}' if got else ': it is missing'}")
    for name in sorted(set(n for n in os.listdir(folder) if n.endswith(".golden")) - set(files)):
        bad += 1
        print(f"{os.path.join(folder, name)}: no such group")
    return bad


def main(argv):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")
    if "--out" in argv:
        k = argv.index("--out")
        folder = argv[k + 1]
        del argv[k:k + 2]
    names = [a for a in argv if not a.startswith("-")]
    unknown = set(names) - {r.name.split(".")[0] for r in ROWS}
    if unknown:
        sys.exit("parity.py: no op " + ", ".join(sorted(unknown)))
    files, counts = make(names)
    if "--list" in argv or names:
        for op, n in counts.items():
            print(f"{op:24} {n[0] + n[1]:4} cases, {describe(n)}")
    if "--verify" in argv:
        bad = compare(folder, files)
        print(f"{len(files)} files made again, {bad} differ")
        return 1 if bad else 0
    if not names and "--list" not in argv:
        os.makedirs(folder, exist_ok=True)
        for name, b in files.items():
            with open(os.path.join(folder, name), "wb") as f:
                f.write(b)
    total = [sum(n[k] for n in counts.values()) for k in range(4)]
    size = sum(map(len, files.values()))
    print(f"{len(counts)} ops, {total[0] + total[1]} cases, {describe(total)}; {size} bytes")
    return 0


def describe(n):
    return f"{n[0]} torch, {n[1]} f64, {n[2]} with gradients, {n[3]} with second ones"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
# MIT licence: see LICENSE.
