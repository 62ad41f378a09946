# test_dlpack.py - memory that fl shares with NumPy and PyTorch, both ways, whoever dies first; and what is refused
import ctypes
import gc
import mmap

from check import check, done, load_fl, module

fl = load_fl()
np = module("numpy") if fl else None
torch = module("torch") if fl else None


def raises(kind, text, call, what):
    try:
        call()
    except kind as error:
        return check(text in str(error), f"{what}: {error}")
    check(False, f"{what}: nothing was raised")


def live():
    gc.collect()
    fl.Tensor.__dlpack__(fl.zeros(1))  # which takes back what was lent and not wanted
    return fl.lib.fl_live_tensors(), fl.lib.fl_mem_live_buffers()


def check_numpy():
    for kind in ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"):
        a = np.arange(12).reshape(3, 4).astype(kind)
        for view in (a, a[1:], a.T, a[:, ::-1], a[::-2, 1::2], a[0, 0], np.broadcast_to(a[0], (2, 4)), a[:0]):
            if not view.flags.writeable:
                continue
            t = fl.from_dlpack(view)
            check(t.shape == view.shape and t.tolist() == view.tolist(), f"{kind} {view.shape} {view.strides}")
        t = fl.from_dlpack(a)
        a[1, 2] = 0
        check(t[1, 2].item() == 0, f"{kind}: fl sees what NumPy writes")
        t[0, 1] = 1
        check(a[0, 1] == 1, f"{kind}: NumPy sees what fl writes")
        n = t.numpy()
        n[2, 3] = 0
        check(a[2, 3] == 0 and n.dtype == a.dtype, f"{kind}: and back again")
    del a, t, n, view
    base = live()
    a = np.full(1000, 3.0, "float32")
    t = fl.from_dlpack(a)
    del a
    gc.collect()
    np.full(1000, 7.0, "float32")
    check(t.sum().item() == 3000, "NumPy's array dies first")
    del t
    t = fl.full(1000, 2.0, "f32")
    n = t.numpy()
    del t
    gc.collect()
    fl.full(1000, 7.0, "f32")
    check(n.sum() == 2000, "fl's tensor dies first")
    x = fl.arange(0, 12, 1, "f32").reshape(3, 4)
    check(np.asarray(x.T).tolist() == x.T.tolist() and np.asarray(x, "int64").dtype == np.int64, "asarray")
    check(np.from_dlpack(x[1:, ::2]).tolist() == x[1:, ::2].tolist(), "NumPy's own from_dlpack")
    check(np.asarray(fl.tensor(3.0)).shape == () and fl.zeros(2, 0).numpy().shape == (2, 0), "0-d and empty")
    w = fl.tensor([1.0, 2.0], requires_grad=True)
    raises(BufferError, "t.detach()", w.numpy, "one that requires a gradient")
    loss = (w * w).sum()
    check(w.detach().numpy().tolist() == [1.0, 2.0], "detached")
    loss.backward()
    check(w.grad.tolist() == [2.0, 4.0], "sharing between forward and backward is no write")
    raises(BufferError, "no bf16", fl.zeros(2, dtype="bf16").numpy, "bf16")
    a = np.arange(3.0)
    a.flags.writeable = False
    raises(Exception, "only", lambda: fl.from_dlpack(a), "a read-only array")
    check(fl.tensor(a).tolist() == [0, 1, 2], "a read-only array is copied")
    del x, w, n, loss, a
    check(live() == base, "nothing is left")


def check_torch():
    base = live()
    for kind in ("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"):
        p = torch.arange(12).reshape(3, 4).to(getattr(torch, kind))
        t = fl.from_dlpack(p.T)
        check(t.shape == (4, 3) and t.cast("f32").tolist() == p.T.float().tolist(), kind)
        p[1, 2] = 0
        check(t[2, 1].item() == 0, f"{kind}: fl sees what PyTorch writes")
        q = torch.from_dlpack(t)
        q[0, 1] = 5
        check(p[1, 0].item() == 5 and q.dtype == p.dtype, f"{kind}: and back again")
        del p, q
        gc.collect()
        check(t[0, 1].item() == 5, f"{kind}: PyTorch's tensor dies first")
    t = fl.ones(1000)
    p = torch.from_dlpack(t)
    t[3] = 0.0
    del t
    gc.collect()
    fl.full(1000, 7.0, "f32")
    check(p.sum().item() == 999, "fl's tensor dies first")
    raises(Exception, "grad", lambda: fl.from_dlpack(torch.ones(2, requires_grad=True)), "one that requires a gradient")
    check(fl.tensor(torch.ones(2, 3)).shape == (2, 3), "a copy of PyTorch's")
    del p
    check(live() == base, "nothing is left")


# ---- made by hand -----------------------------------------------------------------------------------------

if fl:
    DELETER = fl.callback_type("fl_dlpack.deleter")


class Producer:
    """Something with __dlpack__ over 64 bytes; its deleter counts."""

    def __init__(self, shape=(4,), strides=None, type=(2, 32, 1), device=(1, 0), version=(1, 0), flags=0, offset=0,
                 data=True):
        self.deleted = 0
        self.bytes = (ctypes.c_float * 16)(*range(16))
        self.shape = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        self.strides = (ctypes.c_int64 * len(strides))(*strides) if strides else None
        self.delete = DELETER(self.count)
        d = self.managed = fl.struct("fl_dlpack")(*version, None, self.delete, flags)
        d.tensor.data = ctypes.addressof(self.bytes) if data else None
        d.tensor.device.type, d.tensor.device.id = device
        d.tensor.ndim, d.tensor.byte_offset = len(shape), offset
        d.tensor.type.code, d.tensor.type.bits, d.tensor.type.lanes = type
        d.tensor.shape = ctypes.addressof(self.shape)
        d.tensor.strides = ctypes.addressof(self.strides) if strides else None

    def count(self, p):
        self.deleted += 1

    def __dlpack__(self, max_version=None):
        return fl._capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)


def check_by_hand():
    base = live()
    p = Producer((2, 3), (-3, 1), offset=12 + 4)
    t = fl.from_dlpack(p)
    check(t.tolist() == [[4.0, 5.0, 6.0], [1.0, 2.0, 3.0]], "an offset in bytes, a negative stride")
    u = t[1]
    del t
    check(p.deleted == 0 and u.tolist() == [1.0, 2.0, 3.0], "a view holds the memory")
    del u
    check(p.deleted == 1, "the deleter is called once")
    p = Producer((3, 2), (0, 1))
    t = fl.from_dlpack(p)
    check(t.tolist() == [[0.0, 1.0]] * 3, "a stride of 0")
    raises(fl.Error, "is broadcast", lambda: fl.assign(t, 1.0), "a write to what is broadcast")
    del t
    for what, text, settings in (
        ("another major version", "got DLPack version 2.3, expected 1", dict(version=(2, 3))),
        ("read-only", "read-only: copy it first", dict(flags=1)),
        ("another device", "device 2:1, expected host memory", dict(device=(2, 1))),
        ("complex", "no dtype of code 5, 64 bits, 1 lanes", dict(type=(5, 64, 1))),
        ("four lanes", "no dtype of code 2, 32 bits, 4 lanes", dict(type=(2, 32, 4))),
        ("nine dims", "expected 0 to 8 dims with a shape, got 9", dict(shape=(1,) * 9)),
        ("a negative dim", "shape [-1] is not valid", dict(shape=(-1,))),
        ("too many elements", "is not valid", dict(shape=(2**40, 2**40))),
        ("strides too large", "the strides are too large", dict(shape=(3, 3), strides=(2**62, 2**62))),
        ("not aligned", "not aligned to 4 bytes", dict(offset=2)),
        ("no data", "data is NULL", dict(data=False)),
    ):
        p = Producer(**settings)
        raises(fl.Error, text, lambda: fl.from_dlpack(p), what)
        check(p.deleted == 0, f"{what}: it is the producer's still")
    p = Producer((0, 3), data=False)
    check(fl.from_dlpack(p).shape == (0, 3) and p.deleted == 1, "no elements, no data")
    p = Producer()
    capsule = p.__dlpack__()

    class Again:
        def __dlpack__(self, max_version=None):
            return capsule

    t = fl.from_dlpack(Again())
    raises(fl.Error, "used_dltensor_versioned", lambda: fl.from_dlpack(Again()), "a capsule that was used")
    del t
    check(p.deleted == 1, "once, too")
    p = Producer()
    fl.lib.fl_item(fl.lib.fv_value(fl.zeros(2)._p))  # leaves an error
    check(fl.from_dlpack(p).tolist() == [0.0, 1.0, 2.0, 3.0] and p.deleted == 1, "once after an error that nobody saw")
    x = fl.zeros(3)
    raises(BufferError, "device (2, 0)", lambda: x.__dlpack__(dl_device=(2, 0)), "for another device")
    x.__dlpack__(), x.__dlpack__(max_version=(1, 0))  # nobody wants them
    copied = fl.from_dlpack(type("Copy", (), dict(__dlpack__=lambda self, max_version=None: x.__dlpack__(copy=True)))())
    copied[0] = 1.0
    check(x.tolist() == [0.0, 0.0, 0.0], "copy=True")
    del x, copied
    check(live() == base, "nothing is left")


def check_guarded():
    """Elements that end where readable memory does, in front of a page that is none: no kernel reads behind them."""
    libc = ctypes.CDLL(None, use_errno=True)
    memory = mmap.mmap(-1, 64 * 4096)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if libc.mprotect(ctypes.c_void_p(start + 63 * 4096), 4096, 0):
        return
    for n, kind in ((1, "float32"), (7, "float32"), (33, "float32"), (150, "float32"), (5, "float64"), (50, "float64")):
        size = np.dtype(kind).itemsize
        a = np.frombuffer(memory, kind, n * n, 63 * 4096 - size * n * n).reshape(n, n)
        a[:] = np.arange(n * n).reshape(n, n) % 7
        x, y = fl.from_dlpack(a), fl.tensor(a)
        for f in (lambda t: t @ t, lambda t: t.T @ t, lambda t: t @ t.T, lambda t: fl.linear(t, t, t[-1]),
                  lambda t: t[:1] @ t, lambda t: t + t[0], lambda t: t.exp().sum(1), lambda t: t.softmax(1),
                  lambda t: t.sum(0), lambda t: t.cast("bf16"), lambda t: t.amax(0),
                  lambda t: fl.layer_norm(t, 1, t[0], t[0], 1e-5),
                  lambda t: fl.conv(t.reshape(1, 1, n, n), t[:1, :1].reshape(1, 1, 1, 1)), lambda t: t.sort(1)[0],
                  lambda t: fl.conv(t.reshape(1, 1, n, n), t.reshape(1, 1, n, n), pad=n // 2), lambda t: t.cumsum(1),
                  lambda t: fl.cross_entropy(t, fl.tensor([0] * n)), lambda t: fl.max_pool(t.reshape(1, 1, n, n), kernel=1)):
            if not check(f(x).tolist() == f(y).tolist(), "the same as of a tensor of fl's"):
                break
    globals()["kept"] = memory  # tensors may be left that show it


if fl and np:
    check_numpy()
    check_by_hand()
    check_guarded()
if fl and torch:
    check_torch()
done()
# MIT licence: see LICENSE.
