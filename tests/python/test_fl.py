# test_fl.py - examples/python/fl.py: operators and indexing against NumPy, gradients against PyTorch, modules, sets from
# callables, errors as exceptions, memory over 10,000 steps
import gc
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import traceback

from check import check, done, load_fl, module

fl = load_fl()
np = module("numpy") if fl else None
torch = module("torch") if fl else None
SEED = int(os.environ.get("SEED") or random.randrange(10**6))
draw = random.Random(SEED)


def raises(kind, text, call, what):
    try:
        call()
    except kind as error:
        return check(text in str(error), f"{what}: {error}") and error
    check(False, f"{what}: nothing was raised")


def same(a, b, what, **close):
    if isinstance(a, fl.Tensor) and not check(a.shape == b.shape, f"{what} (SEED={SEED}): {a.shape} and not {b.shape}"):
        return
    a = np.array(a.tolist() if isinstance(a, fl.Tensor) else a, dtype=b.dtype).reshape(b.shape)
    close = close or dict(rtol=1e-5, atol=1e-6)
    check(np.allclose(a, b, equal_nan=True, **close), f"{what} (SEED={SEED}): {str(a)[:80]} and not {str(b)[:80]}")


# ---- NumPy ------------------------------------------------------------------------------------------------


def random_array(shape, kind):
    n = int(np.prod(shape))
    if kind == "float32":
        return np.array([draw.uniform(0.5, 4) * draw.choice((-1, 1)) for _ in range(n)], kind).reshape(shape)
    if kind == "bool":
        return np.array([draw.random() < 0.5 for _ in range(n)], kind).reshape(shape)
    return np.array([draw.choice((-1, 1)) * draw.randrange(1, 9) for _ in range(n)], kind).reshape(shape)


def check_operators():
    binary = ["+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">="]
    for _ in range(300):
        op, kind = draw.choice(binary + ["&", "|", "^"]), draw.choice(["float32", "int64"])
        if op in "&|^":
            kind = draw.choice(["bool", "int64"])
        shape = tuple(draw.randrange(1, 4) for _ in range(draw.randrange(4)))
        other = tuple(draw.choice((n, 1)) for n in shape[draw.randrange(len(shape) + 1) :])
        a, b = random_array(shape, kind), random_array(other, kind)
        if draw.random() < 0.3 and kind != "bool":
            b = draw.choice((2, -3)) if kind == "int64" else 2.5
        x, y = fl.tensor(a), fl.tensor(b) if isinstance(b, np.ndarray) else b
        same(eval(f"x {op} y"), np.asarray(eval(f"a {op} b")), f"{kind}{shape} {op} {other}")
        same(eval(f"y {op} x"), np.asarray(eval(f"b {op} a")), f"{other} {op} {kind}{shape}")
    x, a = fl.tensor([[1.0, 2], [3, 4]]), np.array([[1.0, 2], [3, 4]], "float32")
    same(x @ x, a @ a, "@")
    same(x**2, a**2, "**")
    same(2.0**x, 2.0**a, "reversed **")
    same(-abs(-x), -abs(-a), "neg, abs")
    same(~(x > 2), ~(a > 2), "~")
    same(x.T, a.T, "T")
    check((x == None) is False and (x != None) is True, "a tensor is not None")  # noqa: E711
    raises(TypeError, "unsupported operand", lambda: x + "text", "a text is no operand")


def random_index(shape):
    out, left = [], list(shape)
    while left and draw.random() < 0.8:
        n = left.pop(0)
        way = draw.randrange(6)
        if way == 0:
            out.append(draw.randrange(-n, n))
        elif way in (1, 2):
            ends = [draw.choice((None, draw.randrange(-n - 1, n + 2))) for _ in "ab"]
            out.append(slice(*ends, draw.choice((None, 1, 2, -1, -2))))
        elif way == 3 and len(shape) + sum(i is None for i in out) < 8:  # fl's most dims
            out.append(None)
            left.insert(0, n)
        elif way == 3:
            out.append(slice(None))
        elif way == 4:
            out.append([draw.randrange(-n, n) for _ in range(2)])
        else:
            out.append(np.array([draw.random() < 0.6 for _ in range(n)]))
        if sum(isinstance(i, (list, np.ndarray)) for i in out) > 1 and any(isinstance(i, np.ndarray) for i in out):
            out[-1] = slice(None)  # a mask and a list seldom broadcast
    if draw.random() < 0.3 and not any(i is ... for i in out):
        out.append(...)
    return tuple(out)


def check_indexing():
    for _ in range(400):
        shape = tuple(draw.randrange(1, 5) for _ in range(draw.randrange(1, 5)))
        a, index = random_array(shape, "float32"), random_index(shape)
        lists = [k for k, i in enumerate(index) if isinstance(i, (list, np.ndarray))]
        between = [i for i in index[lists[0] : lists[-1]] if isinstance(i, int) or i is None] if lists else []
        if between or lists and any(isinstance(i, int) for i in index):
            continue  # NumPy takes numbers among lists for lists
        same(fl.tensor(a)[index], a[index], f"{shape}[{index}]")
        new, x = a.copy(), fl.tensor(a)
        new[index] = 7
        x[index] = 7
        same(x, new, f"{shape}[{index}] = 7")
    x = fl.zeros(2, 3)
    raises(IndexError, "3 indices for a tensor of shape [2, 3]", lambda: x[0, 0, 0], "too many indices")
    raises(fl.Error, "2", lambda: x[2], "an index out of range")
    check(len(x) == 2 and [row.shape for row in x] == [(3,), (3,)], "len and iteration")
    raises(TypeError, "0-d", lambda: len(x.sum()), "len of 0-d")


def check_conversion():
    for kind in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"):
        a = np.arange(6).reshape(2, 3).astype(kind)
        x = fl.tensor(a)
        same(x, a, kind)
        check(fl.tensor(a.T).shape == (3, 2) and fl.zeros(2, dtype=a.dtype).dtype == x.dtype, f"{kind}: dtype")
        same(fl.tensor(a.T), a.T, f"{kind}, not contiguous")
    check(fl.tensor([1, 2]).dtype == "i64" and fl.tensor([1, 2.5]).dtype == "f32", "dtypes of lists")
    check(fl.tensor([True]).dtype == "b8" and fl.tensor(3.0).shape == (), "b8, 0-d")
    check(fl.tensor([[1, 2], [3, 4]], "f64").tolist() == [[1.0, 2.0], [3.0, 4.0]], "tolist")
    check(fl.zeros(2, 0, 3).tolist() == [[], []] and fl.tensor([]).shape == (0,), "empty ones")
    raises(ValueError, "not all of length 2", lambda: fl.tensor([[1, 2], [3]]), "ragged lists")
    raises(TypeError, "<c16", lambda: fl.tensor(np.zeros(2, complex)), "complex numbers")
    raises(OverflowError, "int", lambda: fl.tensor([2**70]), "an integer of 70 bits")
    raises(OverflowError, f"{2**70} does not fit", lambda: fl.zeros(2) + 2**70, "an operand of 70 bits")
    raises(OverflowError, f"{2**32} does not fit", lambda: fl.zeros(2).softmax(2**32), "an axis of 33 bits")
    raises(TypeError, "float", lambda: fl.zeros(2)[fl.tensor(1.0)], "a float as index")
    check([fl.zeros(1, dtype=d).dtype for d in (bool, int, float, np.int8, "bfloat16", "u16", np.dtype("f4"))] ==
          ["b8", "i64", "f32", "i8", "bf16", "u16", "f32"], "names of dtypes")
    raises(ValueError, "no 'f33'", lambda: fl.zeros(2, dtype="f33"), "an unknown dtype")
    read_only = np.arange(3)
    read_only.flags.writeable = False
    same(fl.tensor(read_only), np.arange(3), "a copy of what is read-only")


def check_errors():
    """One number is asked of one element; no call tells the error of an earlier one; arguments are named."""
    for x in (fl.tensor([1.0, 2.0]), fl.tensor([1, 2]), fl.tensor([True, False]), fl.zeros(0)):
        for convert in (bool, float, int, fl.Tensor.item):
            what = f"{convert.__name__} of {x.dtype} {list(x.shape)}"
            raises(fl.Error, f"has {x.numel()} elements, not one", lambda: convert(x), what)
            check(fl.lib.fl_error() is None, f"{what} leaves no error")
    check((bool(fl.tensor([[2.0]])), int(fl.tensor([3])), float(fl.tensor(1.5))) == (True, 3, 1.5), "of one element")

    class Own(fl.Module):
        def forward(self, x):
            return x * 2.0

    one, net, data = fl.ones(1), Own(), fl.data.tensors(fl.ones(2))
    for what, call in dict(
        function=lambda: fl.add(one, one), operator=lambda: one + 1.0, tensor=lambda: fl.tensor([1.0]), item=one.item,
        tolist=one.tolist, repr=lambda: repr(one), numpy=one.numpy, index=lambda: one[0], module=lambda: fl.nn.linear(2, 2),
        own=Own, forward=lambda: fl.nn.sequential(Own())(one), name=lambda: repr(net), train=net.train,
        sample=lambda: data[0], set=lambda: fl.Dataset(2, lambda i: i)[1], gradient=lambda: one.grad,
        cast=lambda: fl.autocast().__enter__(), freeze=lambda: setattr(one, "requires_grad", False),
        child=lambda: setattr(Own(), "part", fl.nn.relu()),
    ).items():  # fmt: skip
        fl.lib.fl_fail(b"left by another call")
        try:
            call()
        except fl.Error as error:
            check(False, f"{what} tells of another call: {error}")
    fl.lib.fl_autocast(0)
    x, part = fl.ones(2, 3), fl.struct("fl_data_named_tensor")(b"x")
    for kind, text, call in (
        (TypeError, "data_save_npz: argument 'tensors': expected fl_data_named_tensor*, got list",
         lambda: fl.data.save_npz("/no/such", [part], 1)),
        (TypeError, "argument 'tensors': expected fl_data_named_tensor*, got str", lambda: fl.data.save_npz("/no/such", "x", 1)),
        (TypeError, "data_save_csv: argument 'names': expected str", lambda: fl.data.save_csv("/no/such", [1, 2], x)),
        (TypeError, "nn_save: argument 'path': expected str", lambda: net.save(["a", "b"])),
        (TypeError, "data_concat: argument 'sets': expected fl_data_set*, got str", lambda: fl.data.concat(["a", "b"])),
        (TypeError, "nn_sequential: argument 'children': expected fl_nn_module*, got list", lambda: fl.nn.sequential([[net]])),
        (TypeError, "data_plot_svg: argument 'curves': expected fl_data_curves, got list", lambda: fl.data.plot_svg("f", [1])),
        (TypeError, "softmax: argument 'axis': 'float' object", lambda: x.softmax(1.5)),
        (TypeError, "nn_linear: argument 'in': 'str' object", lambda: fl.nn.linear("2", 3)),
        (TypeError, "conv: argument 'stride': 'str' object", lambda: fl.conv(x, x, stride="2")),
    ):
        raises(kind, text, call, text)
    check(net(one).item() == 2, "a module whose part could not be given is as it was")


# ---- PyTorch ----------------------------------------------------------------------------------------------


def check_autograd():
    w = np.array([[draw.uniform(-1, 1) for _ in range(3)] for _ in range(4)], "float32")
    v = np.array([[draw.uniform(-1, 1) for _ in range(2)] for _ in range(3)], "float32")
    x = np.array([[draw.uniform(-1, 1) for _ in range(4)] for _ in range(5)], "float32")
    y = [draw.randrange(2) for _ in range(5)]
    ours = [fl.tensor(a, requires_grad=True) for a in (w, v)]
    theirs = [torch.tensor(a, requires_grad=True) for a in (w, v)]
    optim, reference = fl.optim.adam(ours, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    for step in range(5):
        optim.zero_grad()
        reference.zero_grad()
        loss = fl.cross_entropy((fl.tensor(x) @ ours[0]).tanh() @ ours[1], fl.tensor(y))
        loss = loss + (ours[0] ** 2).sum() * 0.01
        other = torch.nn.functional.cross_entropy((torch.tensor(x) @ theirs[0]).tanh() @ theirs[1], torch.tensor(y))
        other = other + (theirs[0] ** 2).sum() * 0.01
        loss.backward()
        other.backward()
        same(loss, other.detach().numpy(), f"loss of step {step}")
        for a, b in zip(ours, theirs):
            same(a.grad, b.grad.numpy(), f"gradient of step {step}")
        optim.step()
        reference.step()
    a = fl.tensor([2.0, 3.0], requires_grad=True)
    (a**3).sum().backward(create_graph=True)
    check(a.grad.tolist() == [12.0, 27.0], "a gradient")
    check(fl.grad((a.grad * 1.0).sum(), a, False).tolist() == [12.0, 18.0], "a gradient of a gradient")
    a.grad = None
    check(a.grad is None and a.is_leaf and not a.detach().requires_grad, "grad, is_leaf, detach")
    with fl.no_grad():
        check(not (a * 2).requires_grad, "no_grad")
        a[0] = 5.0
    check((a * 2).requires_grad and a.tolist() == [5.0, 3.0], "after no_grad, and what was written")
    raises(fl.Error, "no_grad", lambda: a.__setitem__(0, 1.0), "a write to a leaf")
    raises(fl.Error, "fl_backward", lambda: (a * 2).backward(), "backward of two elements")
    check(fl.lib.fl_error() is None, "no error is left")
    b = fl.tensor([2.0, 3.0], requires_grad=True)
    copy = fl.clone(b)
    (copy * b.clone()).sum().backward()
    check(b.grad.tolist() == [4.0, 6.0] and not fl.clone(b.detach()).requires_grad, "clone has a gradient")
    with fl.no_grad():
        copy[0] = 9.0
    check(b.tolist() == [2.0, 3.0], "clone is a copy")
    (p, q) = fl.grads([(a * a).sum() + a[0] * 3.0], [a, a])
    check(p.tolist() == [13.0, 6.0] and q.tolist() == p.tolist(), "fl.grads")


# ---- fl ---------------------------------------------------------------------------------------------------


def check_functions():
    x = fl.arange(0, 12, 1, "f32").reshape(3, 4)
    values, index = x.topk(2, -1)
    check(values.tolist()[0] == [3.0, 2.0] and index.dtype == "i64", "topk gives two tensors")
    check([t.shape for t in x.split(1, 2)] == [(3, 2), (3, 2)] and len(x.unbind(0)) == 3, "split, unbind")
    check(x.sum(dim=1).tolist() == x.sum(1).tolist() == x.sum(axis=1).tolist() and x.sum(1, keepdim=True).shape == (3, 1),
          "names of axes")
    check(fl.concat([x, x], 1).shape == (3, 8) and fl.einsum("ij,kj->ik", x, x).shape == (3, 3), "lists")
    check(x.permute(1, 0).shape == x.permute((1, 0)).shape == (4, 3), "numbers for a list")
    check(fl.conv(fl.ones(1, 1, 5, 5), fl.ones(2, 1, 3, 3), None, stride=2, pad=1).shape == (1, 2, 3, 3), "options")
    check(abs(fl.cross_entropy(x, fl.tensor([0, 1, 2]), reduction="sum").item()) > 1, "words of enums")
    raises(AttributeError, "fl has no 'nothing'", lambda: fl.nothing, "no such function")
    raises(AttributeError, "Tensor has no 'nothing'", lambda: x.nothing, "no such method")
    raises(AttributeError, "fl.nn has no 'nothing'", lambda: fl.nn.nothing, "no such module")
    raises(TypeError, "conv: no option 'strid'; there are stride, pad", lambda: fl.conv(x, x, strid=2), "no such option")
    raises(TypeError, "too many arguments: 'int'", lambda: x.relu(1), "too many arguments")
    raises(TypeError, "softmax: argument 'axis' is missing", lambda: x.softmax(), "too few arguments")
    raises(ValueError, "reduction: 'men' is none of mean, sum, none", lambda: fl.mse_loss(x, x, "men"), "no such word")
    raises(ValueError, "9 dims", lambda: fl.zeros(*[1] * 9), "nine dims")
    error = raises(fl.Error, "shapes [3, 4] and [5]", lambda: x + fl.zeros(5), "shapes that differ")
    check(error and "test_fl.py" in "".join(traceback.format_exception(error)), "an error has Python's traceback")
    result = []
    thread = threading.Thread(target=lambda: result.append((x @ x.T).relu().sum().item()))
    thread.start()
    thread.join()
    check(result == [(x @ x.T).relu().sum().item()], "another thread")
    check("fl_conv_opts" in fl.conv.__doc__ and "relu" in repr(fl.relu) and "conv2d" in str(dir(fl.nn)), "help")
    check(repr(fl.tensor([1.0, 2.0], requires_grad=True)) == "tensor([1., 2.], requires_grad=True)", "repr")


def check_modules():
    fl.seed(3)
    net = fl.nn.sequential(fl.nn.linear(3, 4), fl.nn.relu(), fl.nn.linear(4, 2, no_bias=True))
    check([p.shape for p in net.parameters()] == [(4, 3), (4,), (2, 4)], "parameters")
    check("(2): Linear(in_features=4" in repr(net), "repr of a module")
    x = fl.ones(5, 3)
    with tempfile.TemporaryDirectory() as folder:
        net.save(f"{folder}/net.safetensors")
        other = fl.nn.sequential(fl.nn.linear(3, 4), fl.nn.relu(), fl.nn.linear(4, 2, no_bias=True))
        other.load(f"{folder}/net.safetensors")
        check(other(x).tolist() == net(x).tolist(), "saved and loaded")
        raises(fl.Error, "no/such", lambda: net.load("no/such"), "no such file")
    bias = net.find("0").get_param("bias")
    del net
    gc.collect()
    check(bias.shape == (4,) and bias.requires_grad, "a parameter outlives its net")

    class Twice(fl.Module):
        def __init__(self, n):
            super().__init__()
            self.inner = fl.nn.linear(n, n)
            self.factor = fl.tensor([2.0], requires_grad=True)

        def forward(self, x):
            return self.inner(x) * self.factor

    net = fl.nn.sequential(Twice(3), fl.nn.linear(3, 1))
    check(len(net.parameters()) == 5 and "Twice" in repr(net), "a module of one's own")
    net(x).sum().backward()
    check(all(p.grad is not None for p in net.parameters()), "its gradients")
    raises(fl.Error, "input [5, 7]", lambda: net(fl.ones(5, 7)), "an error in forward")
    first = fl.nn.relu()
    both = fl.nn.sequential(first)
    raises(ValueError, "this Module is part of another already", lambda: fl.nn.sequential(first), "a part of two")
    del both
    check(first(x).shape == (5, 3), "a part keeps the whole")
    optim = fl.optim.sgd(net.parameters(), lr=0.5)
    optim.lr = 0.25
    check(optim.lr == 0.25, "lr")
    optim.close()
    raises(ValueError, "this Optimizer is closed", optim.step, "a closed one")

    net = fl.nn.sequential(fl.nn.linear(3, 4), fl.nn.tanh(), fl.nn.linear(4, 1))
    for p in net.find("0").parameters():
        p.requires_grad = False
    check([p.requires_grad for p in net.parameters()] == [False, False, True, True], "frozen parameters")
    before = [p.tolist() for p in net.parameters()]
    optim = fl.optim.adamw(net.parameters(), lr=0.1)
    net(x).sum().backward()
    check([p.grad is None for p in net.parameters()] == [True, True, False, False], "they get no gradient")
    optim.step()
    check([p.tolist() == q for p, q in zip(net.parameters(), before)] == [True, True, False, False], "and do not change")
    for p in net.parameters():
        p.requires_grad = True
    net(x).sum().backward()
    check(all(p.grad is not None for p in net.parameters()), "and can be trained again")
    raises(fl.Error, "not a leaf", lambda: setattr(net(x), "requires_grad", False), "a result that is to be no variable")
    raises(fl.Error, "fv_param: ", lambda: setattr(fl.tensor([1]), "requires_grad", True), "integers have no gradient")

    class Wrong(fl.Module):
        def forward(self, x):
            raise KeyError("where")

    net = fl.nn.sequential(fl.nn.relu(), Wrong())
    error = raises(fl.Error, "Wrong: KeyError: 'where'", lambda: net(x), "a forward that raises")
    check(error and isinstance(error.__cause__, KeyError), "its exception is the cause")
    check(net.eval() is net and net.train() is net, "train, eval")


def check_speech():
    """Every preset makes features; where no gradient is asked for, those that have none too."""
    sound = fl.tensor([[draw.uniform(-0.5, 0.5) for _ in range(4000)] for _ in range(2)])
    for name in ("htk", "kaldi", "torchaudio", "librosa", "whisper"):
        conf = fl.struct("fl_speech_conf")()
        check(fl.speech_preset(conf, name, 16000), name)
        conf.pad_to = 0
        features = fl.speech_features_new(conf)
        x = fl.speech_features_compute(features, sound)
        check(x.ndim == 3 and x.shape[2] == fl.speech_features_dims(features) and x.isfinite().all().item(), f"{name}: {x.shape}")
        loud = fl.tensor(sound, requires_grad=True)
        if conf.range > 0:
            raises(fl.Error, "range", lambda: fl.speech_features_compute(features, loud), f"{name} with a gradient")
            with fl.no_grad():
                same(fl.speech_features_compute(features, loud), np.asarray(x), f"{name} under no_grad")
        else:
            check(fl.speech_features_compute(features, loud).requires_grad, f"{name} with a gradient")
        fl.lib.fl_speech_features_free(features)


def check_sets():
    x = fl.arange(0, 20, 1, "f32").reshape(10, 2)
    batches = fl.data.tensors(x, fl.arange(0, 10, 1, "i64")).shuffle(1).batch(4)
    seen = [y for _, label in batches for y in label.tolist()]
    check(len(batches) == 3 and sorted(seen) == list(range(10)) and seen != sorted(seen), "a set of tensors")
    batches.set_epoch(1)
    check([y for _, label in batches for y in label.tolist()] != seen, "another epoch")
    epochs = []
    mine = fl.Dataset(10, lambda i: (np.full((2,), i, "float32"), i), start=epochs.append)
    ready = mine.batch(5).transform(lambda a, b: (a * 2.0, b)).prefetch(2, 4)
    ready.set_epoch(3)
    check(epochs == [3], "start is told")
    for _ in range(3):
        check([b.tolist() for _, b in ready] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], "a set of a callable")
    check(ready[-1][0].tolist()[-1] == [18.0, 18.0], "an index from the end")
    raises(IndexError, "sample 2 of 2", lambda: ready[2], "no such sample")
    raises(ValueError, "part of another", lambda: mine.batch(2), "a set that has been wrapped")

    def get(i):
        if i == 3:
            raise KeyError("sample three")
        return float(i)

    for threads in (0, 2):
        bad = fl.Dataset(5, get)
        bad = bad.prefetch(threads, 2) if threads else bad
        check(bad[2][0].item() == 2, "before the one that raises")
        error = raises(fl.Error, "Dataset: KeyError: 'sample three'", lambda: bad[3], "a callable that raises")
        cause = error and error.__cause__
        check(isinstance(cause, KeyError) and cause.__traceback__.tb_frame.f_code.co_name != "get" and
              "sample three" in "".join(traceback.format_exception(error)), "its exception is the cause")
        check(bad[4][0].item() == 4 and fl.lib.fl_error() is None, "behind it")
    raises(fl.Error, "transform: ZeroDivisionError", lambda: fl.data.tensors(x).transform(lambda a: 1 / 0)[0],
           "a transform that raises")
    several = fl.Dataset(10, get, many=lambda index: np.array(index, "int64")).shuffle(1).batch(5)
    check(sorted(i for (b,) in several for i in b.tolist()) == list(range(10)), "many samples at once")
    wrong = fl.Dataset(10, get, many=lambda index: index[99]).batch(5)
    raises(fl.Error, "Dataset: IndexError: list index out of range", lambda: wrong[0], "many that raises")
    odd = fl.Dataset(10, lambda i: i).filter(lambda i: i % 2 == 1)
    check([i.item() for (i,) in odd] == [1, 3, 5, 7, 9], "filter")
    raises(fl.Error, "filter: ZeroDivisionError", lambda: len(fl.Dataset(3, lambda i: i).filter(lambda i: 1 // 0)),
           "a filter that raises")
    raises(fl.Error, "at most 8", lambda: fl.Dataset(1, lambda i: (0,) * 9)[0], "nine fields")
    raises(fl.Error, "sample 1 is", lambda: fl.Dataset(2, lambda i: np.zeros(i + 1)).batch(2)[0], "ragged samples")
    raises(fl.Error, "table", lambda: fl.Dataset(-1, get), "a negative size")


def check_memory():
    """10,000 training steps with every kind of object: as many tensors and bytes at the end as after the first ones."""
    fl.seed(1)
    net = fl.nn.sequential(fl.nn.linear(4, 8), fl.nn.tanh(), fl.nn.linear(8, 3))
    optim = fl.optim.adam(net.parameters(), lr=0.01)
    batches = fl.Dataset(10, lambda i: (np.full(4, i, "float32"), i % 3)).batch(5).prefetch(1, 2)
    for step in range(10000):
        if step % 1000 == 0:
            for x, y in batches:
                pass
        loss = fl.cross_entropy(net(x), y)
        optim.zero_grad()
        loss.backward()
        optim.step()
        if step % 100 == 0:
            try:
                net(loss)
            except fl.Error:
                pass
            fl.nn.sequential(fl.nn.linear(2, 2)), x[1:, None], x.numpy() if hasattr(x, "numpy") else None
        if step == 2000:
            gc.collect()
            before = fl.lib.fl_live_tensors(), fl.lib.fl_mem_live_buffers(), fl.lib.fl_scope_size()
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    gc.collect()
    check((fl.lib.fl_live_tensors(), fl.lib.fl_mem_live_buffers(), fl.lib.fl_scope_size()) == before, "tensors after 10,000 steps")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
    check(grown < 2048, f"memory grew by {grown} KiB in 8,000 steps")


def check_end():
    """Python ends in order while a worker of fl's is in a callable."""
    code = """if 1:
        import sys, time; sys.path.insert(0, 'examples/python'); import fl
        s = fl.Dataset(1000, lambda i: (time.sleep(0.01), float(i))[1]).prefetch(2, 8)
        print(s[0][0].item())"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    check((out.returncode, out.stdout, out.stderr) == (0, "0.0\n", ""), f"the end of Python: {out}")


def check_examples():
    """examples/python/mnist.py on bars in ten places, and the lines of docs/python.md."""
    with tempfile.TemporaryDirectory() as folder:
        for part, n in (("train", 2000), ("t10k", 300)):
            label = np.array([draw.randrange(10) for _ in range(n)], "uint8")
            image = np.array([[[draw.randrange(100) for _ in range(28)] for _ in range(28)]], "uint8").repeat(n, 0)
            for i, k in enumerate(label):
                image[i, 2 * k : 2 * k + 4] = 255
            for name, a, header in (("images-idx3", image, [2051, n, 28, 28]), ("labels-idx1", label, [2049, n])):
                with open(f"{folder}/{part}-{name}-ubyte", "wb") as f:
                    f.write(np.array(header, ">u4").tobytes() + a.tobytes())
        out = subprocess.run([sys.executable, "examples/python/mnist.py", folder, "2"], capture_output=True, text=True)
        lines = out.stdout.splitlines() or [out.stderr[-500:]]
        found = lines[-1].startswith("Test accuracy: ") and float(lines[-1].split()[2])
        check(out.returncode == 0 and found > 80, f"mnist.py: {lines[-1]}")
    with open("examples/python/mnist.py") as f:
        check(len(f.readlines()) <= 61, "mnist.py has at most 60 lines and the licence's")
    with open("docs/python.md") as f:
        code = f.read().split("```python\n")[1].split("```")[0]
    out = subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, 'examples/python')\n" + code],
                         capture_output=True, text=True)
    check(out.stdout == "tensor([0, 1, 1, 0])\n", f"the example of docs/python.md: {out.stdout}{out.stderr}")
    check(fl.__doc__.split("    import fl\n")[1].split("\n\n")[0].replace("    ", "", 1).strip() in
          code.replace("import fl\n", "").replace("\n", "\n    "), "fl.py shows the same example")


if fl and np:
    check_examples()
    check_operators()
    check_indexing()
    check_conversion()
    check_functions()
    check_errors()
    check_modules()
    check_speech()
    check_sets()
    check_memory()
    check_end()
if fl and np and torch:
    check_autograd()
done()
# MIT licence: see LICENSE.
