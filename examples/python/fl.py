"""fl.py - fl from Python: this file, ctypes and libfl.so (`make shared`); nothing is compiled for it

    import fl
    net = fl.nn.sequential(fl.nn.linear(2, 16), fl.nn.tanh(), fl.nn.linear(16, 2))
    optim = fl.optim.adam(net.parameters(), lr=0.05)
    x, y = fl.tensor([[0, 0], [0, 1], [1, 0], [1, 1]], "f32"), fl.tensor([0, 1, 1, 0])
    for step in range(200):
        loss = fl.cross_entropy(net(x), y)
        optim.zero_grad()
        loss.backward()
        optim.step()
    print(net(x).argmax(1))

Names     A function of the headers is here under its name without fl_ or fv_, _opt and _of: fl.relu, fl.nn.conv2d,
          fl.optim.sgd, fl.data.tensors; those that take a tensor first are its methods too: x.relu(). What a header
          says about it holds. Options are keywords, and 0 means 0 for the fractional ones. `lib` has the C functions
          as they are, `constant` the numbers, `struct` the structs, `callback_type` the types of callbacks.
Tensor    One class: a fl_var, which is a constant or, with requires_grad=True, takes part in autograd.
Arguments Dtypes are words, "f32"; other enums and ops too: reduction="sum", act="relu". Shapes and axes are numbers
          or tuples. Where a tensor is wanted numbers, lists and arrays will do, which are copied.
Results   What C returns through pointers comes in a tuple: values, index = x.topk(5, -1).
Life time Every object holds its part; scopes stay inside. Sets and modules that become part of another belong to it.
Errors    fl.Error with fl's text. What a callback raised is its cause.
Threads   A call that may take long releases Python's lock. A callback may run in a thread of fl's.
Library   FL_LIBRARY, else build/*-shared/libfl.so of the tree that this file is in (the newest), else lib/libfl.so of the
          prefix that it is installed under, else the system's."""
import array
import atexit
import contextlib
import ctypes
import functools
import glob
import operator
import os
import re
import sys
import types
import weakref


class Error(RuntimeError):
    """What fl says went wrong."""


# ---- C ----------------------------------------------------------------------------------------------------

_PLAIN = {
    "void": None, "bool": ctypes.c_bool, "char": ctypes.c_char, "int": ctypes.c_int, "unsigned": ctypes.c_uint,
    "float": ctypes.c_float, "double": ctypes.c_double, "size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64, "uint8_t": ctypes.c_uint8, "uint16_t": ctypes.c_uint16, "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64, "char*": ctypes.c_char_p, "fl_op": ctypes.c_int, "count": ctypes.c_int,
    "count64": ctypes.c_int64,
}  # fmt: skip


def _ctype(text):
    """The ctypes type of a type of the tables: pointers are addresses."""
    if text in _PLAIN:
        return _PLAIN[text]
    if text in _ENUMS:
        return ctypes.c_int
    if text in _CALLBACKS:
        return callback_type(text)
    return ctypes.c_void_p if text.endswith(("*", "]")) else struct(text)


@functools.lru_cache(None)
def callback_type(name):
    result, arguments = _signature(_CALLBACKS[name])
    return ctypes.CFUNCTYPE(_ctype(result), *(_ctype(kind) for kind, _ in arguments))


@functools.lru_cache(None)
def struct(name):
    """The ctypes.Structure of that name, which knows the C types of its fields as `kinds`."""
    fields, kinds = [], {}
    for field in _STRUCTS[name].split("; "):
        kind, field, sizes = re.match(r"(.*) (\w+)(.*)", field).groups()
        kinds[field] = kind
        kind = _ctype(kind)
        for size in reversed(re.findall(r"\d+", sizes)):
            kind *= int(size)
        fields.append((field, kind))
    return type(name, (ctypes.Structure,), {"_fields_": fields, "kinds": kinds})


def _signature(text):
    """result, [(type, name)] of "result (type name, ...)"."""
    result, arguments = text[:-1].split(" (", 1)
    arguments = [a for a in arguments.split(", ") if a not in ("", "...")]
    return result, [(a + " ").split(" ")[:2] for a in arguments]


# Functions that are over before another thread could have Python's lock: it stays held.
_BRIEF = set("""fl_error fl_error_clear fl_scope_begin fl_scope_end fl_obj_keep fl_scope_adopt fl_dtype_name fl_int fv_num fv_const
                fv_value fv_keep fv_drop fl_from_dlpack fl_from_dlpack_old fl_to_dlpack fl_to_dlpack_old""".split())


class _Library:
    """The C functions, prepared when one is asked for first. No error stops or jumps: handlers return."""

    def __init__(self):
        self._dll = ctypes.CDLL(self._find())
        self._brief = ctypes.PyDLL(self._find())
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)(lambda text, user: None)
        self._dll.fl_set_error_handler(self._handler, None)

    def _find(self):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        built = sorted(glob.glob(f"{root}/build/*-shared/libfl.so"), key=os.path.getmtime)
        built = built or glob.glob(f"{root}/lib/libfl.so")
        return os.environ.get("FL_LIBRARY") or (built[-1] if built else "libfl.so")

    def __getattr__(self, name):
        result, arguments = _signature(_FUNCTIONS[name])
        function = getattr(self._brief if name in _BRIEF else self._dll, name)
        function.restype = _ctype(result)
        function.argtypes = [ctypes.c_void_p if kind in _CALLBACKS else _ctype(kind) for kind, _ in arguments]
        setattr(self, name, function)
        return function


try:
    lib = _Library()
except OSError as _error:
    raise ImportError(f"fl: no libfl.so: `make shared`, or set FL_LIBRARY ({_error})") from None


def constant(name):
    """The number that the headers give a name: constant("FL_MAX_DIMS")."""
    return _CONSTANTS[name]


_raised = {}  # what callbacks raised lately, by the texts that fl has of it


def _note(where):
    """In a callback's except: its exception becomes an error of fl's."""
    error = sys.exc_info()[1]
    while error.__cause__ and isinstance(error, Error):
        error = error.__cause__
    text = f"{where}: {type(error).__name__}: {error}".replace("\0", " ")[:800]
    while len(_raised) > 15:
        _raised.pop(next(iter(_raised)), None)
    _raised[text] = error
    lib.fl_fail(b"%s", text.encode())


def _guarded(where, kind, body):
    """A callback of that type; 0 after an exception of body."""

    def run(*arguments):
        try:
            return body(*arguments)
        except BaseException:
            _note(where)
            return None if kind == "fl_nn_activation.fn" else 0

    return callback_type(kind)(run)


def _check():
    text = lib.fl_error()
    if text is not None:
        lib.fl_error_clear()
        text = text.decode(errors="replace")
        raise Error(text) from next((_raised.pop(t, None) for t in list(_raised) if t in text), None)


class _scope:
    """with _scope(): a scope of fl's; its error, if there is one, is raised at the end. The outermost one of a thread
    forgets what an earlier call left (`lib`, which does not raise); inner ones are callbacks of a call that may fail."""

    __slots__ = ("scope",)

    def __enter__(self):
        self.scope = lib.fl_scope_begin()
        if self.scope.depth_ == 1:
            lib.fl_error_clear()

    def __exit__(self, kind, *_):
        lib.fl_scope_end(ctypes.byref(self.scope))
        if kind is None and lib.fl_error():
            _check()


# ---- arguments and results ----------------------------------------------------------------------------------


def _sequence(x):
    return x if isinstance(x, (list, tuple)) else (x,)


def _array(ctype, values):
    return (ctype * max(len(values), 1))(*values)


def _var(x):
    """A fl_var of the innermost scope, or of x's."""
    if isinstance(x, Tensor):
        return x._p
    if x is None:
        return None
    if isinstance(x, float):
        return lib.fv_num(x)
    if isinstance(x, int):
        return lib.fv_const(lib.fl_int(_int64(x)))
    copied = tensor(x)
    return lib.fv_const(lib.fv_value(copied._p))


def _value(x):
    return None if x is None else lib.fv_value(_var(x))


def _shape(x):
    x = [_int64(n) for n in _sequence(x)]
    if len(x) > _CONSTANTS["FL_MAX_DIMS"]:
        raise ValueError(f"{len(x)} dims, at most {_CONSTANTS['FL_MAX_DIMS']}")
    return struct("fl_shape")(len(x), tuple(x))


def _axes(x, keepdim=False):
    shape = _shape(() if x is None else x)
    return struct("fl_axes")(shape.ndim, tuple(shape.dim), keepdim)


_DTYPES = {"bool": "b8", "bool_": "b8", "int": "i64", "float": "f32", "bfloat16": "bf16"}


def _dtype(x):
    """Of "f32", "float32", NumPy's dtypes, or a type of Python's."""
    name = x if isinstance(x, str) else getattr(x, "name", getattr(x, "__name__", str(x)))
    word = _DTYPES.get(name) or re.sub(r"^(float|uint|int)(?=\d)", lambda kind: kind[1][0], name)
    return _ENUMS["fl_dtype"][word] if word in _ENUMS["fl_dtype"] else _named("fl_dtype_by_name", name)


def _named(function, name):
    found = getattr(lib, function)(name.encode())
    if not found:
        raise ValueError(f"{function[3:-6]}: no {name!r}")
    return found


def _word(enum, x):
    if isinstance(x, str) and x not in _ENUMS[enum]:
        raise ValueError(f"{enum[3:]}: {x!r} is none of {', '.join(_ENUMS[enum])}")
    return _ENUMS[enum][x] if isinstance(x, str) else operator.index(x)


def _vars(x):
    x = [_var(v) for v in _sequence(x)]
    return struct("fl_vars")(len(x), tuple(x))


def _list(x):
    """A fv_list, which keeps what it points to."""
    pointers = _array(ctypes.c_void_p, [_var(v) for v in _sequence(x)])
    out = struct("fv_list")(len(_sequence(x)), ctypes.addressof(pointers))
    out.pointers = pointers
    return out


def _integer(ctype):
    """The conversion to an integer of that type; "same" is the padding of that name."""

    def convert(x):
        x = _CONSTANTS["FL_SAME"] if isinstance(x, str) and x == "same" else operator.index(x)
        if ctype(x).value != x:
            raise OverflowError(f"{x} does not fit into {ctype.__name__[2:]}")
        return x

    return convert


_int64 = _integer(ctypes.c_int64)


def _options(kind, given):
    """The struct of options with these keywords."""
    out = struct(kind)()
    for name, value in given.items():
        field = out.kinds.get(name, "char")
        if field == "char" or name.endswith("_"):
            known = [k for k in out.kinds if not k.startswith("_") and not k.endswith("_")]
            raise TypeError(f"no option {name!r}; there are {', '.join(known)}")
        old = getattr(out, name)
        if isinstance(old, ctypes.Array):
            value = tuple(_argument(name, field, v) for v in _sequence(value))
        elif field == "double" and value == 0:
            value = -0.0  # FL_ZERO: 0 stands for the default
        elif isinstance(old, ctypes.Structure) and isinstance(value, dict):
            value = _options(field, value)
        else:
            value = _argument(name, field, value)
        setattr(out, name, value)
    return out


_CONVERT = {
    "fl_var*": _var, "fl_tensor*": _value, "fl_shape": _shape, "fl_axes": _axes, "fl_dtype": _dtype, "fl_vars": _vars,
    "fv_list": _list, "char*": lambda x: os.fsencode(x) if x is not None else None, "bool": bool,
    "fl_op": lambda x: x if isinstance(x, int) else _named("fl_op_by_name", x), "double": float,
}  # fmt: skip
for _kind in ("int", "int64_t", "uint64_t", "size_t", "unsigned", "uint32_t", "int32_t", "uint8_t"):
    _CONVERT[_kind] = _integer(_PLAIN[_kind])


def _convert(kind, x):
    if kind in _CONVERT:
        return _CONVERT[kind](x)
    if kind.endswith("[]"):
        return _array(_ctype(kind[:-2]), [_convert(kind[:-2], v) for v in _sequence(x)])
    if kind in _ENUMS:
        return _word(kind, x)
    if isinstance(x, _Object):
        return x._address()
    if isinstance(x, ctypes.Structure) and kind.endswith("*"):
        return ctypes.addressof(x)
    wanted = ctypes.c_void_p if kind in _CALLBACKS else _ctype(kind)
    try:
        if isinstance(x, str):  # which ctypes would take for the address of wide characters
            raise TypeError
        wanted.from_param(x)
    except TypeError:
        raise TypeError(f"expected {kind}, got {type(x).__name__}") from None
    return x


def _argument(name, kind, x):
    """_convert, whose errors name the argument."""
    try:
        return _convert(kind, x)
    except (TypeError, ValueError, OverflowError) as error:
        plain = next(e for e in (TypeError, OverflowError, ValueError) if isinstance(error, e))
        raise plain(f"argument {name!r}: {error}") from None


def _result(kind, x):
    """A Python object for a result of the innermost scope."""
    if kind == "fl_var*" or kind == "fl_tensor*":
        x = lib.fv_const(x) if kind == "fl_tensor*" and x else x
        return Tensor._of(x) if x else None
    if kind in _CLASSES:
        return _CLASSES[kind]._of(x) if x else None
    if kind == "fl_shape":
        return tuple(x.dim[: x.ndim])
    if kind == "fv_list":
        return [Tensor._of(p) for p in (ctypes.c_void_p * x.n).from_address(x.v)] if x.n else []
    if kind == "fl_vars":
        out = tuple(Tensor._of(p) for p in x.v[: x.n])
        return out[0] if len(out) == 1 else out
    if kind == "fl_dtype":
        return lib.fl_dtype_name(x).decode()
    return x.decode(errors="replace") if isinstance(x, bytes) else x


_LISTS = ("fl_shape", "fl_axes", "fv_list", "fl_vars")  # and all arrays: the arguments that are left will do
_OWNED = ("fl_nn_module*", "fl_data_set*")  # makers own those that they are given
_BORROWED = ("fl_nn_find", "fl_nn_add", "fl_data_inner")  # their results belong to the first argument
_MANY = 4096  # results of split and its like


class _Function:
    """A C function as a Python one."""

    def __init__(self, name):
        self.name, self.call = name, getattr(lib, name)
        self.kind, self.arguments = _signature(_FUNCTIONS[name])
        self.maker = self.kind in _OWNED and name not in _BORROWED
        kinds = [kind for kind, _ in self.arguments]
        self.direct = [_CONVERT[k] for k in kinds] if all(k in _CONVERT and k not in _LISTS for k in kinds) else None
        self.__name__ = re.sub(r"^f[lv]_|_(opt|of)$", "", name)
        self.__doc__ = f"{name}: {_FUNCTIONS[name]}" + "".join(
            f"\n{kind}: {_STRUCTS[kind]}" for kind, _ in self.arguments if kind.endswith("_opts")
        )

    def __repr__(self):
        return f"<{self.__doc__}>"

    def __call__(self, *given, **options):
        with _scope():
            held = list(options.values())  # until the call is over, as given is
            if self.direct and len(given) == len(self.direct) and not options:
                try:
                    values = [convert(x) for convert, x in zip(self.direct, given)]
                except (TypeError, ValueError, OverflowError):
                    pass  # _bind names the argument
                else:
                    return _result(self.kind, self.call(*values))
            try:
                values, outputs, taken, kept = self._bind(list(given), options)
            except (TypeError, ValueError, OverflowError) as error:
                raise type(error)(f"{self.__name__}: {error}") from None
            out = self.call(*values)
            del held
            failed = lib.fl_error() is not None
            for object in taken:
                object._p = None if failed else object._p
            if failed:
                _check()
            out = _result(self.kind, out)
            if isinstance(out, _Object):
                out._take(taken, kept, given[0] if self.name in _BORROWED else None)
            if not outputs:
                return out
            if self.kind == "int":
                return tuple(_result(k, p) for k, holder in outputs for p in holder[:out])
            parts = tuple(_result(k, p) for k, holder in outputs for p in holder)
            return parts if self.kind == "bool" else (out, *parts)

    def _bind(self, given, options):
        """The C arguments; (type, holder) of those for results; objects that fl owns now, and others."""
        values, outputs, taken, kept, length, counts = [], [], [], [], 1, []
        for kind, name in self.arguments:
            if kind.startswith("count"):
                counts.append(len(values))
                values.append(0)
            elif kind in ("fl_tensor**", "fl_var**"):
                wanted = options.pop(name, not re.search("pool|unique", self.name))
                holder = (ctypes.c_void_p * (_MANY if self.kind == "int" else length if self.kind == "bool" else 1))()
                values.append(holder if wanted else None)
                if wanted:
                    outputs.append((kind[:-1], holder))
            elif name == "max" and outputs:
                values.append(_MANY)
            elif kind.endswith("_opts"):
                values.append(_options(kind, options))
                options = {}
            else:
                value = self._given(kind, name, given, options, first=not values)
                if kind == "fl_axes":
                    values.append(_axes(value, options.pop("keepdim", False)))
                elif value is not None or kind in _CONVERT:
                    values.append(_argument(name, kind, value))
                else:
                    values.append(None)
                if kind.endswith("[]") or kind == "fv_list":
                    length = len(_sequence(value))
                objects = [x for x in _sequence(value) if isinstance(x, _Object) or kind in _CALLBACKS]
                own = kind.replace("[]", "") == self.kind and self.maker or name in ("child", "projection")
                (taken if own else kept).extend(objects)
        for i in counts:
            values[i] = length
        if given or options:
            raise TypeError(f"too many arguments: {', '.join([repr(type(x).__name__) for x in given] + list(options))}")
        for object in taken:
            object._free_to_take()
        return values, outputs, taken, kept

    def _given(self, kind, name, given, options, first):
        """The Python argument for one of C."""
        if given:
            value = given.pop(0)
            if (kind in _LISTS or kind.endswith("[]")) and not isinstance(value, (list, tuple)) and value is not None:
                number = isinstance(value, int)
                value = [value]
                while given and isinstance(given[0], int) == number:
                    value.append(given.pop(0))
            return value
        for key in (name, "axis", "dim") if name in ("axis", "axes") else (name,):
            if key in options:
                return options.pop(key)
        if kind in ("bool", "fl_dtype") or kind in _ENUMS:
            return 0 if kind != "fl_dtype" else "dtype_none"
        if kind == "fl_axes" or kind.endswith("*") and kind != "char*" and not first:
            return None
        if self.kind in _OWNED and kind in ("double", "int64_t"):
            return 0
        raise TypeError(f"argument {name!r} is missing: {_FUNCTIONS[self.name]}")


@functools.lru_cache(None)
def _function(name, prefix=""):
    """fl_<prefix><name> or its like; fv_ is preferred. None if none."""
    for full in (f"{p}{prefix}{name}{end}" for end in ("", "_opt", "_of") for p in ("fv_", "fl_")):
        if full in _FUNCTIONS and full != "fv_grad":  # which only reads: Tensor.grad
            return _Function(full)


def __getattr__(name):
    function = None if name.startswith("_") else _function(name)
    if not function:
        raise AttributeError(f"fl has no {name!r}")
    return function


class _Room(types.SimpleNamespace):
    """fl.nn, fl.optim, fl.data: functions by their names there."""

    def __getattr__(self, name):
        function = None if name.startswith("_") else _function(name, self.prefix)
        if not function:
            raise AttributeError(f"fl.{self.prefix[:-1]} has no {name!r}")
        return function

    def __dir__(self):
        return sorted(n[3 + len(self.prefix) :] for n in _FUNCTIONS if n.startswith("fl_" + self.prefix))


nn, optim, data = _Room(prefix="nn_"), _Room(prefix="optim_"), _Room(prefix="data_")

# ---- tensors ------------------------------------------------------------------------------------------------

_CODES = {"b8": "?", "u8": "B", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u16": "H", "u32": "I", "u64": "Q",
          "f32": "f", "f64": "d"}  # fmt: skip
_TYPESTR = {"b8": "|b1", "u8": "|u1", "i8": "|i1", "f16": "<f2", "bf16": None} | {
    f"{c}{8 * n}": f"<{c}{n}" for c in "iuf" for n in (2, 4, 8) if (c, n) != ("f", 2)
}


def tensor(data, dtype=None, requires_grad=False):
    """A copy of a number, nested lists, an array or a tensor."""
    with _scope():
        if isinstance(data, Tensor):
            value = lib.fl_clone(_value(data))
        elif hasattr(data, "__array_interface__"):
            value = _from_array(data)
        elif hasattr(data, "__dlpack__"):
            shared = from_dlpack(data)
            value = lib.fl_clone(_value(shared))
        else:
            value = _from_lists(data, dtype)
        if value and dtype is not None:
            value = lib.fl_cast(value, _dtype(dtype))
        _check()
        return Tensor._of((lib.fv_param if requires_grad else lib.fv_const)(value))


def _from_array(data):
    about = data.__array_interface__
    name = next((d for d, text in _TYPESTR.items() if text == about["typestr"]), None)
    if name is None:
        raise TypeError(f"tensor: no dtype for an array of {about['typestr']}")
    if about.get("strides"):
        data = data.copy(order="C")
        about = data.__array_interface__
    return lib.fl_from_host(about["data"][0], _shape(about["shape"]), _dtype(name))


def _from_lists(data, dtype):
    shape, flat = [], [data]
    while flat and isinstance(flat[0], (list, tuple)):
        shape.append(len(flat[0]))
        if any(not isinstance(x, (list, tuple)) or len(x) != shape[-1] for x in flat):
            raise ValueError(f"tensor: the lists of level {len(shape)} are not all of length {shape[-1]}")
        flat = [x for row in flat for x in row]
    kind = "f32" if not flat else "b8" if all(isinstance(x, bool) for x in flat) else "i64"
    if any(isinstance(x, float) for x in flat):
        kind = "f64" if dtype is not None and _dtype(dtype) == _ENUMS["fl_dtype"]["f64"] else "f32"
    numbers = array.array({"b8": "B", "i64": "q", "f32": "f", "f64": "d"}[kind], flat or [0])
    return lib.fl_from_host(numbers.buffer_info()[0], _shape(shape), _dtype(kind))


# Capsules that __dlpack__ gave out, until a consumer renames them: then it has what they hold. Others, that nobody but
# this list has any more, were not wanted. A destructor in Python would run with the consumer's error pending.
_lent = []


def _api(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_capsule = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_capsule_name = _api("PyCapsule_GetName", ctypes.c_char_p, ctypes.py_object)
_capsule_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_capsule_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_KINDS = {b"dltensor_versioned": ("fl_dlpack", b"used_dltensor_versioned"), b"dltensor": ("fl_dlpack_old", b"used_dltensor")}


def _take_back():
    """Releases what was lent and not wanted."""
    for i in reversed(range(len(_lent))):
        name = _capsule_name(_lent[i])
        if name in _KINDS and sys.getrefcount(_lent[i]) == 2:
            _release(_KINDS[name][0], _capsule_pointer(_lent[i], name))
            del _lent[i]
        elif name not in _KINDS:
            del _lent[i]


def _release(kind, pointer):
    struct(kind).from_address(pointer).deleter(pointer)


def from_dlpack(x):
    """A tensor that shares the memory of an array of NumPy, a tensor of PyTorch, or another that has __dlpack__."""
    try:
        capsule = x.__dlpack__(max_version=(constant("FL_DLPACK_MAJOR"), constant("FL_DLPACK_MINOR")))
    except TypeError:  # from before DLPack 1.0
        capsule = x.__dlpack__()
    name = _capsule_name(capsule)
    if name not in _KINDS:
        raise Error(f"from_dlpack: a capsule of {name.decode()!r}: it was used, or is none of DLPack's")
    kind, used = _KINDS[name]
    with _scope():
        value = getattr(lib, kind.replace("fl_", "fl_from_"))(_capsule_pointer(capsule, name))
        if value:  # which has the memory now, whatever comes
            _capsule_rename(capsule, used)
        return Tensor._of(lib.fv_const(value))


class _Loan:
    """The memory of a tensor for NumPy, which writes it too."""

    def __init__(self, t):
        if t.requires_grad:
            raise BufferError("a tensor that requires a gradient is shared as t.detach()")
        with _scope():
            self._p = lib.fl_to_dlpack(_value(t))
        about = struct("fl_dlpack").from_address(self._p).tensor
        size, n = about.type.bits // 8, range(about.ndim)
        if not _TYPESTR[t.dtype]:
            raise BufferError(f"NumPy has no {t.dtype}: cast it first")
        self.__array_interface__ = dict(
            version=3, typestr=_TYPESTR[t.dtype], data=(about.data, False), shape=t.shape,
            strides=tuple(size * (ctypes.c_int64 * len(n)).from_address(about.strides)[i] for i in n),
        )  # fmt: skip

    def __del__(self, release=_release):
        if getattr(self, "_p", None):
            release("fl_dlpack", self._p)


class Tensor:
    """Numbers with a shape; see the headers for what can be done with them."""

    __slots__ = ("_p", "__weakref__")

    @classmethod
    def _of(cls, p):
        """Holds the fl_var at p."""
        if not p:
            _check()
        self = object.__new__(cls)
        self._p = lib.fv_keep(p)
        return self

    def __init__(self):
        raise TypeError("Tensor: made by fl.tensor, fl.zeros and other functions")

    def __del__(self, lib=lib):
        lib.fv_drop(self._p)

    def __getattr__(self, name):
        function = None if name.startswith("_") else _function(name)
        if not function or not function.arguments or function.arguments[0][0] not in ("fl_var*", "fl_tensor*"):
            raise AttributeError(f"Tensor has no {name!r}")
        return types.MethodType(function, self)

    _about = property(lambda self: struct("fl_tensor").from_address(lib.fv_value(self._p)))
    shape = property(lambda self: (lambda t: tuple(t.shape[: t.ndim]))(self._about))
    ndim = property(lambda self: self._about.ndim)
    dtype = property(lambda self: lib.fl_dtype_name(self._about.dtype).decode())
    T = property(lambda self: self.permute(*reversed(range(self.ndim))))
    is_leaf = property(lambda self: not struct("fl_var").from_address(self._p).node)

    @property
    def requires_grad(self):
        return struct("fl_var").from_address(self._p).requires_grad

    @requires_grad.setter
    def requires_grad(self, on):
        """Of a leaf, for all that share it: net.parameters() are those of the net."""
        on = bool(on)
        if on != self.requires_grad and not self.is_leaf:
            raise Error("requires_grad: the result of an operation, not a leaf: t.detach()")
        with _scope():
            if not on or lib.fv_param(lib.fv_value(self._p)):  # which refuses dtypes without a gradient
                struct("fl_var").from_address(self._p).requires_grad = on

    @property
    def grad(self):
        p = struct("fl_var").from_address(self._p).grad
        return Tensor._of(p) if p else None

    @grad.setter
    def grad(self, g):
        if g is None:
            return self.zero_grad()
        self.set_grad(g)

    def backward(self, gradient=None, retain_graph=False, create_graph=False):
        _function("backward")(self, grad=gradient, retain_graph=retain_graph, create_graph=create_graph)

    def item(self):
        """The only element."""
        dtype = self.dtype
        with _scope():
            number = (lib.fl_item if dtype[0] in "fb" and dtype != "b8" else lib.fl_item_int)(_value(self))
        return bool(number) if dtype == "b8" else number

    def tolist(self):
        kind = self.dtype if self.dtype in _CODES else "f32"
        flat = array.array("B" if kind == "b8" else _CODES[kind])
        with _scope():
            flat.frombytes(bytes(self.numel() * flat.itemsize))
            lib.fl_to_host(lib.fl_cast(_value(self), _dtype(kind)), flat.buffer_info()[0], len(flat) * flat.itemsize)
        numbers = iter(map(bool, flat) if kind == "b8" else flat)

        def nest(shape):
            return [nest(shape[1:]) for _ in range(shape[0])] if shape else next(numbers)

        return nest(self.shape)

    def numpy(self):
        """An array that shares the memory of this tensor."""
        import numpy

        return numpy.asarray(_Loan(self))

    def __array__(self, dtype=None, copy=None):
        out = self.numpy()
        return out.astype(dtype or out.dtype, copy=bool(copy))

    def __dlpack__(self, stream=None, max_version=None, dl_device=None, copy=None):
        _take_back()
        if self.requires_grad:
            raise BufferError("a tensor that requires a gradient is shared as t.detach()")
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"device {dl_device}: this tensor is in the processor's memory")
        name = b"dltensor_versioned" if max_version and max_version[0] >= 1 else b"dltensor"
        kind = _KINDS[name][0]
        with _scope():
            value = lib.fl_clone(_value(self)) if copy else _value(self)
            pointer = getattr(lib, kind.replace("fl_", "fl_to_"))(value)
            _check()
            _lent.append(_capsule(pointer, name, None))
            return _lent[-1]

    def __dlpack_device__(self):
        return 1, 0

    def __repr__(self):
        with _scope():
            size = lib.fl_format(_value(self), None, 0) + 1
            text = ctypes.create_string_buffer(size)
            lib.fl_format(_value(self), text, size)
        text = text.value.decode()
        return text[:-1] + ", requires_grad=True)" if self.requires_grad else text

    def __len__(self):
        if not self.ndim:
            raise TypeError("a 0-d tensor has no len()")
        return self.shape[0]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __bool__(self):
        return bool(self.item())

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __index__(self):
        return operator.index(self.item())

    __hash__ = object.__hash__

    def __getitem__(self, index):
        """NumPy's indexing: numbers, slices, None, ..., masks, and tensors of indices."""
        index = list(index) if isinstance(index, tuple) else [index]
        index = [tensor(i) if isinstance(i, list) or hasattr(i, "__array_interface__") else i for i in index]
        used = sum(0 if i is None or i is ... else i.ndim if _is_mask(i) else 1 for i in index)
        if any(i is ... for i in index):
            at = next(k for k, i in enumerate(index) if i is ...)
            index[at : at + 1] = [slice(None)] * (self.ndim - used)
        if used > self.ndim:
            raise IndexError(f"{used} indices for a tensor of shape {list(self.shape)}")
        x, axis, picked = self, 0, []
        for i in index:
            if isinstance(i, Tensor) and i.ndim == 0 and not _is_mask(i):
                i = operator.index(i)
            if i is None:
                x = x.unsqueeze(axis)
            elif isinstance(i, Tensor):
                picked += [(axis + k, p) for k, p in enumerate(i.nonzero().unbind(1) if _is_mask(i) else [i])]
                axis += max(i.ndim, 1) - 1 if _is_mask(i) else 0
            elif isinstance(i, slice):
                x = x._sliced(axis, i)
            else:
                x = x.select(axis, i)
                continue
            axis += 1
        return _pick(x, picked) if picked else x

    def _sliced(self, axis, s):
        start, stop, step = s.indices(self.shape[axis])
        if not range(start, stop, step):
            start, stop, step = 0, 0, 1
        return self.slice(axis, start, constant("FL_SLICE_END") if stop < 0 else stop, step)

    def __setitem__(self, index, value):
        """Writes in place: for tensors without a gradient, and others under no_grad()."""
        if self.requires_grad and lib.fl_grad_enabled():
            raise Error("a tensor that requires a gradient is written in place under fl.no_grad() only")
        with no_grad():
            part = self.detach()[index]
            if any(_is_list(i) for i in _sequence(index)):
                where = _function("arange")(0, self.numel(), 1, "i64").reshape(self.shape)[index].flatten(0, -1)
                value = (part * 0 + value).cast(self.dtype).flatten(0, -1)
                part, value = self, self.flatten(0, -1).index_copy(0, where, value).reshape(self.shape)
            _function("assign")(part, value)


def _is_mask(i):
    return isinstance(i, Tensor) and i.dtype == "b8"


def _is_list(i):
    return isinstance(i, (Tensor, list)) or hasattr(i, "__array_interface__")


def _pick(x, picked):
    """x at tensors of indices for some axes: their own axes come where the first was if they are neighbours, else first."""
    axes, index = [a for a, _ in picked], [i for _, i in picked]
    rest = [a for a in range(x.ndim) if a not in axes]
    out = _function("index")(x.permute(axes + rest), index)
    if axes[0] == 0 or axes != list(range(axes[0], axes[0] + len(axes))):
        return out
    new = out.ndim - len(rest)
    return out.permute([*range(new, new + axes[0]), *range(new), *range(new + axes[0], out.ndim)])


def _operator(name, function, reverse=False):
    def method(a, b):
        if b is None or isinstance(b, (str, bytes, dict)):
            return NotImplemented
        return _function(function)(b, a) if reverse else _function(function)(a, b)

    setattr(Tensor, f"__{'r' * reverse}{name}__", method)


for _name, _fl in dict(add="add", sub="sub", mul="mul", truediv="div", floordiv="floor_divide", mod="remainder",
                       pow="pow", matmul="matmul", lshift="shift_left", rshift="shift_right", and_="bitwise_and",
                       or_="bitwise_or", xor="bitwise_xor").items():  # fmt: skip
    _operator(_name.rstrip("_"), _fl)
    _operator(_name.rstrip("_"), _fl, reverse=True)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _operator(_name, _name)
for _name, _fl in dict(neg="neg", abs="abs", invert="bitwise_not").items():
    setattr(Tensor, f"__{_name}__", lambda x, f=_fl: _function(f)(x))


@contextlib.contextmanager
def no_grad():
    """with no_grad(): nothing is recorded. Also a decorator."""
    before = lib.fl_no_grad(True)
    try:
        yield
    finally:
        lib.fl_no_grad(before)


@contextlib.contextmanager
def autocast(dtype="bf16"):
    """with autocast("bf16"): products in that dtype (fl/ops/autocast.h)."""
    before = lib.fl_autocast_dtype()
    with _scope():
        lib.fl_autocast(_dtype(dtype))
    try:
        yield
    finally:
        lib.fl_autocast(before)


# ---- modules, optimizers, sets ------------------------------------------------------------------------------


class _Object:
    """A plain object of fl's, with the functions of its prefix as methods."""

    _p, _owner, _prefix, _free = None, None, "", ""

    @classmethod
    def _of(cls, p):
        self = cls.__new__(cls)
        self._hold(p)
        return self

    def _hold(self, p):
        self.__dict__.update(_p=p, _keep=[], _owner=None)

    def _take(self, taken, kept, owner):
        """Owns the objects in taken, needs those kept alive, and is a part of owner."""
        self.__dict__["_owner"] = owner
        self._keep.extend(kept if owner is None else [])
        for x in taken:
            self._keep.extend(x._keep)
            x._keep, x._owner = [], self

    def _free_to_take(self):
        self._address()
        if self._owner is not None:
            raise ValueError(f"this {type(self).__name__} is part of another already")

    def _address(self):
        if not self._p:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._p

    def close(self):
        p, self.__dict__["_p"] = self._p, None
        if p and self._owner is None:
            getattr(lib, self._free)(p)

    __del__ = close

    def __getattr__(self, name):
        function = None if name.startswith("_") else _function(name, self._prefix)
        if not function:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return types.MethodType(function, self)


class Module(_Object):
    """A module of fl's; or, subclassed with __init__ and forward(self, x), one of yours. In __init__ modules and
    tensors that require a gradient become its children and parameters when they are assigned."""

    _prefix, _free = "nn_", "fl_nn_free"
    _names = {}  # C keeps the addresses of names

    def __init__(self):
        name = type(self).__name__
        kind = Module._names.setdefault(name, ctypes.create_string_buffer(name.encode()))

        def forward(x):
            y = self.forward(Tensor._of(x))
            return _hand_over(y._p)

        run = _guarded(name, "fl_nn_activation.fn", forward)
        with _scope():
            self._hold(lib.fl_nn_activation(kind, run))
        self._keep.append(run)

    def __call__(self, *x):
        if hasattr(type(self), "forward"):
            return self.forward(*x)
        return _function("forward_vars", "nn_")(self, x)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        if isinstance(value, Module) and not name.startswith("_"):
            self.add(name, value)
        elif isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
            self.add_param(name, value)

    def add(self, name, child):
        """Adds a child under that name, or its number, and returns it."""
        child._free_to_take()
        with _scope():
            added = lib.fl_nn_add(self._address(), None if name is None else name.encode(), child._address())
            child.__dict__["_p"] = added
        self._take([child], [], self._owner)
        return child

    def train(self, on=True):
        lib.fl_nn_train(self._address(), on)
        return self

    def eval(self):
        return self.train(False)

    def __repr__(self):
        with _scope():
            size = lib.fl_nn_format(self._address(), None, 0) + 1
            text = ctypes.create_string_buffer(size)
            lib.fl_nn_format(self._address(), text, size)
        return text.value.decode()


def _hand_over(p):
    """Gives the innermost scope a reference of its own to an object; p."""
    lib.fl_obj_keep(p)
    return p if lib.fl_scope_adopt(p) else None


class Optimizer(_Object):
    _prefix, _free = "optim_", "fl_optim_free"
    lr = property(lambda self: lib.fl_optim_lr(self._address()), lambda self, lr: self.set_lr(lr))

    __setattr__ = object.__setattr__


class Scaler(_Object):
    _prefix, _free = "optim_scaler_", "fl_optim_scaler_free"


class Average(_Object):
    _prefix, _free = "optim_ema_", "fl_optim_ema_free"


class Cache(_Object):
    _prefix, _free = "nn_cache_", "fl_nn_cache_free"


class File(_Object):
    _prefix, _free = "data_", "fl_data_close"


class Dataset(_Object):
    """A set of samples, each a tuple of tensors. Dataset(size, get) is one of yours: get(i) returns a tensor or array,
    or a tuple of them, maybe in several threads at once below prefetch. If they are given, many([i, ...]) returns these
    samples stacked, for batch, which is faster; and start(epoch) is told about epochs."""

    _prefix, _free = "data_", "fl_data_free"
    _live = weakref.WeakSet()

    def __init__(self, size, get, many=None, start=None):
        def get_many(self, index, n, out):
            return _fill(out, many((ctypes.c_int64 * n).from_address(index)[:]))

        table = struct("fl_data_set")(size=operator.index(size))
        table.get = _guarded("Dataset", "fl_data_set.get", lambda _, i, out: _fill(out, get(i)))
        if many:
            table.many = _guarded("Dataset", "fl_data_set.many", get_many)
        if start:
            table.start = _guarded("Dataset", "fl_data_set.start", lambda _, epoch: start(epoch) or True)
        with _scope():
            self._hold(lib.fl_data_set_new(ctypes.byref(table), None, 0))
        self._keep.append(table)

    def _hold(self, p):
        super()._hold(p)
        Dataset._live.add(self)

    def transform(self, fn):
        """Samples become what fn(*tensors) returns."""
        run = _guarded("transform", "fl_data_fn", lambda sample, *_: _fill(sample, fn(*_fields(sample))))
        return _function("transform", "data_")(self, run)

    def filter(self, keep):
        """The samples for which keep(*tensors) is true."""
        run = _guarded("filter", "fl_data_keep_fn", lambda sample, _: bool(keep(*_fields(sample))))
        return _function("filter", "data_")(self, run)

    def __len__(self):
        return lib.fl_data_size(self._address())

    def __getitem__(self, i):
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"sample {i} of {n}")
        with _scope():
            out = struct("fl_data_sample")()
            lib.fl_data_get(self._address(), i + n * (i < 0), ctypes.addressof(out))
            _check()
            return _fields(ctypes.addressof(out))

    def __iter__(self):
        return (self[i] for i in range(len(self)))


def _fields(address):
    sample = struct("fl_data_sample").from_address(address)
    return tuple(_result("fl_tensor*", t) for t in sample.t[: sample.n])


def _fill(address, fields):
    """Writes what a callback returned into the fl_data_sample there, for the innermost scope."""
    fields = [x if isinstance(x, Tensor) else tensor(x) for x in _sequence(fields)]
    out = struct("fl_data_sample").from_address(address)
    if len(fields) > len(out.t):
        raise ValueError(f"{len(fields)} fields, at most {len(out.t)}")
    out.n = len(fields)
    for k, x in enumerate(fields):
        out.t[k] = _hand_over(lib.fv_value(x._p))
    return True


@atexit.register
def _close_sets():
    """Threads that may run callbacks end before Python does."""
    for x in list(Dataset._live):
        x.close()


_CLASSES = {
    "fl_nn_module*": Module, "fl_optim*": Optimizer, "fl_data_set*": Dataset, "fl_data_file*": File,
    "fl_nn_cache*": Cache, "fl_optim_ema*": Average, "fl_optim_scaler*": Scaler,
}  # fmt: skip
nn.Module, data.Dataset = Module, Dataset

# ---- what the headers declare -------------------------------------------------------------------------------

# >>generated by examples/python/generate from the headers: do not edit
_STRUCTS = {  # fields, in their order
    "fl_var": "fl_obj obj; fl_tensor* value; fl_var* grad; fl_node* node; bool requires_grad; fv_hooks* hooks_; fl_node* sink_",
    "fv_list": "int n; fl_var** v",
    "fv_record_opts": "fl_op op; char* name; fl_back_fn back; fv_list in; fv_list saved; unsigned blocked; fv_record_opts.recompute recompute; int n_recompute_only; void* args; size_t bytes; fv_record_opts.free_args free_args",
    "fl_backward_opts": "fl_opts_guard guard_; fl_tensor* grad; bool retain_graph; bool create_graph; char _end",
    "fl_grads_opts": "fl_opts_guard guard_; fv_list given; bool retain_graph; bool create_graph; bool allow_unused; char _end",
    "fv_watcher": "fv_watcher.leaf_ready leaf_ready; fv_watcher.end end; void* user; fv_watcher* next_",
    "fl_op_info": "char* name; size_t args_size; char* uses; fl_compose_fn compose; fl_op_info.gradient gradient; size_t rng_end; fl_op_info.macs macs; int arity; fl_op_class cls; bool required; char* formula; char* grad[2]",
    "fl_no_args": "char _",
    "fl_fill_args": "double f64; int64_t i64",
    "fl_iota_args": "double f_start; double f_step; int64_t i_start; int64_t i_step",
    "fl_random_args": "int64_t dist; double a; double b; int64_t ia; int64_t ib; fl_rng rng",
    "fl_reduce_args": "uint32_t axes; uint32_t keepdim",
    "fl_axis_args": "int axis",
    "fl_sort_args": "int axis; int descending",
    "fl_conv2d_args": "int64_t stride[2]; int64_t pad_lo[2]; int64_t pad_hi[2]; int64_t dilation[2]; int64_t groups; int64_t relu",
    "fl_grad_args": "fl_op op",
    "fl_call": "fl_op op; int n_out; int n_in; fl_tensor* out[4]; fl_tensor* in[8]; void* args",
    "fl_call_hooks": "fl_call_hook_fn before; fl_call_hook_fn after; void* user",
    "fl_call_watcher": "fl_call_hook_fn before; fl_call_hook_fn after; void* user; bool recorded; fl_call_watcher* next_",
    "fl_taker": "fl_taker.call call; fl_taker.make make; fl_taker.map map; fl_taker.end end; void* user",
    "fl_replay": "fl_replay.run run; void* user; fl_rng from; uint64_t draws",
    "fl_backend": "char* name; void* user; fl_backend.place place; fl_backend.make make; fl_backend.drop drop; fl_backend.map map; fl_backend.unmap unmap; fl_backend.view view; fl_backend.move move; fl_backend.sync sync; fl_backend.replay replay; fl_slot op[512]; uint8_t flags[512]; bool no_grad[116]; bool shipped_; bool overridden_",
    "fl_shape": "int ndim; int64_t dim[8]",
    "fl_axes": "int n; int axis[8]; bool keepdim",
    "fl_obj": "int refs_; uint32_t size_; fl_obj.drop_ drop_",
    "fl_tensor": "fl_obj obj; fl_dtype dtype; uint8_t backend; bool weak; bool copied; int ndim; int64_t shape[8]; int64_t stride[8]; int64_t offset; fl_buffer* buffer; void* impl; double f64; int64_t i64; uint32_t version_; fl_tensor* base_",
    "fl_scope": "int64_t depth_",
    "fl_call_frame": "fl_error_context at; int64_t number",
    "fl_provenance": "fl_obj obj; char text[232]",
    "fl_rng": "uint64_t key; uint64_t counter",
    "fl_number": "bool real; double f; int64_t i",
    "fl_str200": "char s[200]",
    "fl_tape_opts": "fl_opts_guard guard_; fl_tape_name_fn name; void* user; char _end",
    "fl_data_batches_opts": "fl_opts_guard guard_; int64_t size; bool drop_last; int64_t* sizes; int64_t n_sizes; int64_t budget; bool sum; bool pad; double pad_value[8]; unsigned lengths; unsigned masks; fl_data_collate_fn join; void* user; char _end",
    "fl_data_csv": "char** name; char** field; int64_t n; int64_t row; int64_t line; bool ended; fl_data_stream f_; char* window_; char* p_; char* end_; int64_t at_; int64_t line_; int64_t cap_; fl_data_text text_; fl_data_arena names_; char delimiter_",
    "fl_data_csv_opts": "fl_opts_guard guard_; char delimiter; bool no_header; char _end",
    "fl_dlpack_device": "int32_t type; int32_t id",
    "fl_dlpack_type": "uint8_t code; uint8_t bits; uint16_t lanes",
    "fl_dlpack_tensor": "void* data; fl_dlpack_device device; int32_t ndim; fl_dlpack_type type; int64_t* shape; int64_t* strides; uint64_t byte_offset",
    "fl_dlpack": "uint32_t major; uint32_t minor; void* manager; fl_dlpack.deleter deleter; uint64_t flags; fl_dlpack_tensor tensor",
    "fl_dlpack_old": "fl_dlpack_tensor tensor; void* manager; fl_dlpack_old.deleter deleter",
    "fl_data_edits": "int64_t tokens; int64_t substitutions; int64_t insertions; int64_t deletions",
    "fl_data_aligned": "int64_t guess; int64_t target",
    "fl_data_io": "void* user; fl_data_io.open open; fl_data_io.read read; fl_data_io.write write; fl_data_io.size size; fl_data_io.sync sync; fl_data_io.close close; fl_data_io.rename rename; fl_data_io.remove remove; fl_data_io.sync_dir sync_dir; fl_data_io.list list; fl_data_io.map map; fl_data_io.unmap unmap",
    "fl_data_stream": "fl_data_io io; void* file; char* who; char* path; int64_t size",
    "fl_data_replacement": "fl_data_stream f; char* path",
    "fl_data_json": "fl_data_json_event event; char* text; int64_t n; int depth; int64_t at; int64_t line; fl_data_stream f_; char* window_; char* start_; char* p_; char* end_; int64_t start_at_; int64_t left_; int64_t line_; int64_t max_text_; int max_depth_; int expects_; uint64_t arrays_[16]; fl_data_text text_; bool c_strings_; bool many_; bool broken_",
    "fl_data_json_opts": "fl_opts_guard guard_; int max_depth; int64_t max_text; bool c_strings; bool many; char* who; char* name; char _end",
    "fl_data_list_entry": "char* path; int n; char** field; int64_t line; int64_t label",
    "fl_data_list_opts": "fl_opts_guard guard_; void* user; char* root; char separator; int columns; int path; int length; char _end",
    "fl_data_folder_opts": "fl_opts_guard guard_; void* user; char* extensions; bool flat; bool classes; char _end",
    "fl_data_host_view": "int64_t n; double* f; int64_t* i; fl_tensor* tensor_; fl_scope scope_",
    "fl_data_average": "double mean; double weight; double squares_; double weight2_",
    "fl_data_counts": "int64_t count[16]",
    "fl_data_timer": "int64_t units; double sum_; double since_; bool running_",
    "fl_data_progress": "FILE* out; double every; char* label_; int64_t total_; int64_t done_; double started_; double shown_; int width_; bool terminal_",
    "fl_data_named_tensor": "char* name; fl_tensor* tensor",
    "fl_data_key_value": "char* key; char* value",
    "fl_data_entry": "char* name; fl_dtype dtype; fl_shape shape; int64_t begin; int64_t end; uint32_t crc; int part",
    "fl_data_file": "fl_data_stream f; fl_data_entry* entry; fl_data_key_value* meta; int64_t n; int64_t n_meta; fl_data_arena texts; fl_data_file.fill fill; fl_data_file.read read; fl_data_file.close close; void* user; fl_data_entry** sorted_; int64_t cap_; int64_t meta_cap_",
    "fl_data_source": "fl_data_stream* f; fl_data_packing packing; int64_t at; int64_t in_at_; int64_t in_end_; void* unpacker_",
    "fl_data_unpack_opts": "fl_opts_guard guard_; int64_t max_bytes; char _end",
    "fl_data_piece": "void* bytes; size_t n",
    "fl_data_curve": "char* name; int n; double x[512]; double y[512]; int64_t stride_; int64_t have_",
    "fl_data_curves": "int n; fl_data_curve* v[16]",
    "fl_data_plot_opts": "fl_opts_guard guard_; char* title; char* x_label; char* y_label; bool log_x; bool log_y; bool ascii; int width; int height; char _end",
    "fl_data_frame_error": "int64_t wrong; int64_t total",
    "fl_data_confusion": "int64_t classes; int64_t* count",
    "fl_data_f1": "double precision; double recall; double f1; int64_t support",
    "fl_data_roc": "int64_t n; int64_t positives; int64_t cap_; fl_data_roc_point* point_",
    "fl_data_calibration": "int bins; int64_t total; int64_t n[100]; int64_t right[100]; double confidence[100]",
    "fl_data_sample": "int n; fl_tensor* t[8]",
    "fl_data_set": "int64_t size; fl_data_set.get get; fl_data_set.start start; fl_data_set.close close; void* user; fl_data_set.arrange arrange; fl_data_set.id id; fl_data_set.length length; fl_data_set.many many; int64_t epoch_; bool started_; bool inside_; int n_inner_; fl_data_set** inner_",
    "fl_data_settings": "fl_data_key_value* v; int64_t n; int64_t cap; fl_data_arena texts; char* path; int64_t names_",
    "fl_data_text": "char* p; int64_t n; int64_t cap_",
    "fl_data_arena": "void* block_; size_t left_",
    "fl_data_member": "char* name; int64_t size; int64_t packed; int64_t at; int64_t limit; uint32_t crc; bool deflated",
    "fl_data_archive": "fl_data_member* member; int64_t n; int64_t cap_; fl_data_arena names_",
    "fl_dist_init_opts": "fl_opts_guard guard_; char* impl; int rank; int size; char* store; fl_dist_store* own_store; char* token; char* iface; double timeout; double heartbeat; char _end",
    "fl_dist_opts": "fl_opts_guard guard_; fl_dist_reduction op; double scale; fl_dist_work** work; char _end",
    "fl_dist_call": "fl_dist_kind kind; fl_dist_reduction reduction; fl_dtype dtype; int root; int64_t count; double scale; uint64_t number; uint64_t tag; void* in; void* out; double deadline; void* stream; void* ready",
    "fl_dist_store": "fl_dist_store.set set; fl_dist_store.get get; void* user",
    "fl_dist_rendezvous": "int rank; int size; char* address; char* prefix; fl_dist_store* store; double deadline; uint8_t* secret; int local_rank",
    "fl_dist_device": "fl_dist_device.backend backend; fl_dist_device.take take; fl_dist_device.release release; fl_dist_device.check check",
    "fl_dist_impl": "char* name; fl_dist_impl.open open; fl_dist_impl.exchange exchange; fl_dist_impl.abort abort; fl_dist_impl.close close; fl_dist_impl.run run; bool prompt; fl_dist_device* device",
    "fl_dist_failure_info": "fl_dist_failure_kind kind; int rank; uint64_t call; char text[512]",
    "fl_dist_data_parallel_opts": "fl_opts_guard guard_; int64_t bucket_bytes; int64_t first_bucket_bytes; bool shard; char _end",
    "fl_export_opts": "fl_opts_guard guard_; fl_nn_state* state; fl_data_named_tensor* inputs; int n_inputs; fl_data_named_tensor* outputs; int n_outputs; bool embed; fl_graph* other; fl_data_named_tensor* other_inputs; fl_data_named_tensor* other_outputs; char* sizes; char _end",
    "fl_compile_counts": "int64_t programs; int64_t compiled; int64_t cached; int64_t failed; int64_t runs; double seconds",
    "fl_graph_value": "fl_buffer* buffer; fl_graph_role role; int64_t bytes; int first; int last; int writes; bool made; bool constant; bool failed; bool read_only; int64_t offset; fl_buffer* planned; fl_device* device; void* stream; fl_tensor* handle",
    "fl_graph_call": "fl_call call; int value[12]; char* file; int line; bool fixed_rng; uint64_t state; fl_graph_call.fn fn; void* user; void* place; char* composed",
    "fl_graph_list": "fl_graph_call* call; fl_graph_value* value; int64_t n; int64_t n_values",
    "fl_plan_value": "int64_t bytes; int first; int last; int64_t offset",
    "fl_buffer": "void* ptr; size_t bytes; fl_mem_manager* manager; fl_device* device; void* stream; uint32_t version; bool pageable; bool tight; fl_buffer_state state; fl_buffer.restore restore; void* tag; uint64_t last_use; uint64_t frozen_; fl__cache_entry* cache_; int refs_; int pins_; int64_t slot_; fl_buffer* next_",
    "fl_mem_info": "fl_device* device; void* stream; char* op; int64_t step; int ndim; int64_t* shape; int lifetime",
    "fl_opts_guard": "char _",
    "fl_device": "char* name; fl_device.get get; fl_device.put put; fl_device.copy copy; fl_device.limit limit; fl_device.wait wait; fl_mem_manager* manager; bool host",
    "fl_dtype_info": "char* name; size_t size; int block; fl_dtype_info.unpack unpack; fl_dtype_info.pack pack",
    "fl_error_context": "char* fn; void* of; fl_error_context.describe describe; char* backward",
    "fl_site": "char* file; int line",
    "fl_mem_stats": "int64_t in_use; int64_t peak_in_use; int64_t reserved; int64_t peak_reserved; int64_t gets; int64_t puts; int64_t reuses; int64_t device_gets; int64_t largest_free; int64_t free_blocks",
    "fl_mem_manager": "char* name; fl_mem_manager.get get; fl_mem_manager.put put; fl_mem_manager.trim trim; fl_mem_manager.stats stats; fl_mem_manager.reset_peak reset_peak; fl_mem_manager.close close; void* user",
    "fl_strbuf": "char* buf; size_t size; int64_t n; void* file; bool failed",
    "fl_nn_prelu_opts": "fl_opts_guard guard_; double init; fl_dtype dtype; char _end",
    "fl_nn_attention_opts": "fl_opts_guard guard_; double dropout; bool causal; bool no_bias; bool in_bias; bool cross; int64_t n_kv_heads; int64_t window; double softcap; double scale; bool rotary; fl_rotary_opts rope; int64_t relative; int64_t buckets; int64_t max_distance; int64_t kdim; int64_t vdim; bool bias_kv; bool zero_attn; bool alibi; fl_dtype dtype; fl_rng* rng; char _end",
    "fl_nn_cache_opts": "fl_opts_guard guard_; fl_dtype dtype; char _end",
    "fl_nn_capsules_opts": "fl_opts_guard guard_; int64_t rounds; fl_dtype dtype; fl_rng* rng; char _end",
    "fl_nn_conv_opts": "fl_opts_guard guard_; int64_t kernel_h; int64_t kernel_w; int64_t stride; int64_t stride_h; int64_t stride_w; int64_t pad; int64_t pad_h; int64_t pad_w; int64_t dilation; int64_t dilation_h; int64_t dilation_w; int64_t output_pad; int64_t output_pad_h; int64_t output_pad_w; int64_t pad_end; bool causal; fl_pad_mode pad_mode; int64_t groups; bool no_bias; fl_dtype dtype; fl_rng* rng; char _end",
    "fl_nn_dropout_opts": "fl_opts_guard guard_; fl_rng* rng; char _end",
    "fl_nn_embedding_opts": "fl_opts_guard guard_; double std; int64_t padding; fl_dtype dtype; fl_rng* rng; char _end",
    "fl_nn_position_opts": "fl_opts_guard guard_; double std; fl_dtype dtype; fl_rng* rng; char _end",
    "fl_nn_linear_opts": "fl_opts_guard guard_; bool no_bias; fl_op act; fl_dtype dtype; fl_rng* rng; char _end",
    "fl_vars": "int n; fl_var* v[8]",
    "fl_nn_type": "char* name; char* maker; int inputs; fl_nn_forward_fn forward; fl_nn_type.release release; fl_nn_type.describe describe; fl_nn_type.state state; bool wide",
    "fl_nn_param": "char name[64]; fl_var* var",
    "fl_nn_buffer": "char name[64]; fl_tensor* tensor",
    "fl_nn_module": "fl_nn_type* type; char* kind; char name[64]; bool train; void* data; fl_nn_module* parent; fl_nn_module** child; fl_nn_param* param; fl_nn_buffer* buffer; int64_t n_child; int64_t n_param; int64_t n_buffer; int64_t child_cap_; int64_t param_cap_; int64_t buffer_cap_; int64_t list_n_; int64_t list_cap_; fl_var** list_",
    "fl_nn_call_hook": "fl_nn_call_hook.fn fn; void* user",
    "fl_nn_text": "char* buf; size_t size; int64_t n",
    "fl_nn_batch_norm_opts": "fl_opts_guard guard_; double momentum; bool cumulative; double eps; bool no_affine; bool no_track; bool frozen; bool relu; fl_dtype dtype; char _end",
    "fl_nn_layer_norm_opts": "fl_opts_guard guard_; double eps; bool no_affine; bool no_bias; fl_dtype dtype; char _end",
    "fl_nn_instance_norm_opts": "fl_opts_guard guard_; double eps; bool affine; bool track; double momentum; fl_dtype dtype; char _end",
    "fl_nn_normalize_opts": "fl_opts_guard guard_; double p; double eps; double value; char _end",
    "fl_nn_pool_opts": "fl_opts_guard guard_; int64_t kernel_h; int64_t kernel_w; int64_t stride; int64_t stride_h; int64_t stride_w; int64_t pad; int64_t pad_h; int64_t pad_w; int64_t dilation; int64_t dilation_h; int64_t dilation_w; bool ceil_mode; bool average; bool ignore_pad; int64_t divisor_override; double norm; bool return_indices; char _end",
    "fl_nn_rnn_opts": "fl_opts_guard guard_; int layers; bool bidirectional; double dropout; int64_t projection; bool relu; bool time_first; bool output_only; bool no_bias; fl_dtype dtype; fl_rng* rng; char _end",
    "fl_nn_load_opts": "fl_opts_guard guard_; bool partial; bool cast; char* prefix; char* ignore; char _end",
    "fl_nn_state_item": "char* name; fl_tensor* tensor; void* host; bool fixed; fl_tensor* loaded_",
    "fl_nn_state": "fl_nn_state_item* item; int64_t n; int64_t cap_",
    "fl_nn_summary_opts": "fl_opts_guard guard_; fl_dtype dtype; FILE* out; char _end",
    "fl_nn_transformer_opts": "fl_opts_guard guard_; double dropout; double drop_path; double eps; fl_nn_transformer_opts.activation activation; bool rms; bool gated; bool norm_first; bool causal; bool no_bias; fl_nn_attention_opts attention; fl_dtype dtype; fl_rng* rng; char _end",
    "fl_nn_adaptive_opts": "fl_opts_guard guard_; int64_t divide; fl_dtype dtype; fl_rng* rng; char _end",
    "fl_attention_opts": "fl_opts_guard guard_; fl_tensor* mask; bool causal; int64_t offset; int64_t window; double softcap; double scale; double dropout; fl_rng* rng; char _end",
    "fv_attention_opts": "fl_opts_guard guard_; fl_var* mask; bool causal; int64_t offset; int64_t window; double softcap; double scale; double dropout; fl_rng* rng; char _end",
    "fl_conv_opts": "fl_opts_guard guard_; int64_t stride[3]; int64_t pad[3]; int64_t dilation[3]; int64_t output_pad[3]; int64_t groups; bool relu; char _end",
    "fl_ctc_loss_opts": "fl_opts_guard guard_; int64_t blank; fl_reduction reduction; bool zero_infinity; char _end",
    "fl_fft_opts": "fl_opts_guard guard_; int64_t n; fl_fft_norm norm; char _end",
    "fl_fftn_opts": "fl_opts_guard guard_; fl_axes axes; fl_shape s; fl_fft_norm norm; char _end",
    "fl_stft_opts": "fl_opts_guard guard_; int64_t hop; int64_t win_length; fl_tensor* window; bool no_center; bool normalized; bool two_sided; int64_t length; char _end",
    "fl_interpolate_opts": "fl_opts_guard guard_; double scale[3]; bool antialias; char _end",
    "fl_unfold_opts": "fl_opts_guard guard_; int64_t kernel[3]; int64_t stride[3]; int64_t dilation[3]; int64_t pad[3]; char _end",
    "fl_grid_opts": "fl_opts_guard guard_; bool nearest; bool cubic; bool align; fl_grid_padding outside; char _end",
    "fl_binary_cross_entropy_opts": "fl_opts_guard guard_; fl_tensor* weight; fl_tensor* pos_weight; char _end",
    "fl_kl_div_opts": "fl_opts_guard guard_; bool log_target; bool batch_mean; char _end",
    "fl_poisson_nll_loss_opts": "fl_opts_guard guard_; bool full; double eps; char _end",
    "fl_gaussian_nll_loss_opts": "fl_opts_guard guard_; bool full; double eps; char _end",
    "fl_triplet_margin_loss_opts": "fl_opts_guard guard_; double p; double eps; bool swap; char _end",
    "fl_multi_margin_loss_opts": "fl_opts_guard guard_; int p; fl_tensor* weight; char _end",
    "fl_nll_loss_opts": "fl_opts_guard guard_; fl_reduction reduction; int64_t ignore; fl_tensor* weight; char _end",
    "fl_cross_entropy_opts": "fl_opts_guard guard_; fl_reduction reduction; int64_t ignore; double smoothing; fl_tensor* weight; char _end",
    "fl_pad_opts": "fl_opts_guard guard_; int64_t low[8]; int64_t high[8]; fl_pad_mode mode; double value; char _end",
    "fl_batch_norm_opts": "fl_opts_guard guard_; fl_tensor* mean; fl_tensor* var; bool train; fl_tensor* batches; double momentum; double eps; bool relu; fl_batch_norm_opts.reduce reduce; void* reduce_user; char _end",
    "fl_searchsorted_opts": "fl_opts_guard guard_; fl_tensor* sorter; char _end",
    "fl_pool_opts": "fl_opts_guard guard_; int64_t kernel[3]; int64_t stride[3]; int64_t pad[3]; bool ignore_pad; int64_t pad_hi[3]; int64_t dilation[3]; bool ceil_mode; int64_t divisor_override; char _end",
    "fl_rotary_opts": "fl_opts_guard guard_; double base; int64_t offset; double scale; fl_rotary_kind kind; double low; double high; int64_t trained; int64_t dim; bool interleaved; char _end",
    "fl_rnn_opts": "fl_opts_guard guard_; fl_tensor* h0; fl_tensor* c0; fl_tensor* lengths; int layers; bool bidirectional; bool batch_first; bool projected; double dropout; fl_rng* rng; fl_tensor** h_out; fl_tensor** c_out; char _end",
    "fv_rnn_opts": "fl_opts_guard guard_; fl_var* h0; fl_var* c0; fl_tensor* lengths; int layers; bool bidirectional; bool batch_first; bool projected; double dropout; fl_rng* rng; fl_var** h_out; fl_var** c_out; char _end",
    "fl_step_rule": "char* reads; char* writes; char* numbers; char* formula; fl_step_args args; bool known",
    "fl_optim_adafactor_opts": "fl_opts_guard guard_; double lr; double beta2_decay; double eps1; double eps2; double d; double weight_decay; bool master; bool maximize; char _end",
    "fl_optim_adam_opts": "fl_opts_guard guard_; double lr; double beta1; double beta2; double eps; double weight_decay; bool amsgrad; bool master; bool maximize; char _end",
    "fl_optim_adadelta_opts": "fl_opts_guard guard_; double lr; double rho; double eps; double weight_decay; bool master; bool maximize; char _end",
    "fl_optim_adagrad_opts": "fl_opts_guard guard_; double lr; double lr_decay; double eps; double weight_decay; bool master; bool maximize; char _end",
    "fl_optim_rmsprop_opts": "fl_opts_guard guard_; double lr; double alpha; double eps; double momentum; double weight_decay; bool centered; bool master; bool maximize; char _end",
    "fl_optim_rprop_opts": "fl_opts_guard guard_; double lr; double etaminus; double etaplus; double step_min; double step_max; bool master; bool maximize; char _end",
    "fl_optim_progress": "int64_t step; int64_t epoch; int64_t position",
    "fl_optim_checkpoint_optim": "fl_optim* optim; char prefix[48]",
    "fl_optim_checkpoint": "fl_nn_state state; fl_optim_progress* at; fl_optim_checkpoint_optim optim[8]; int n",
    "fl_optim_ema": "fv_list params; fl_tensor** average; fl_tensor* decay; bool swapped",
    "fl_optim_lamb_opts": "fl_opts_guard guard_; double lr; double beta1; double beta2; double eps; double weight_decay; bool master; bool maximize; char _end",
    "fl_optim_novograd_opts": "fl_opts_guard guard_; double lr; double beta1; double beta2; double eps; double weight_decay; bool master; bool maximize; char _end",
    "fl_optim_lbfgs_opts": "fl_opts_guard guard_; double lr; int64_t max_iter; int64_t max_eval; double tolerance_grad; double tolerance_change; int64_t history; bool strong_wolfe; bool master; bool maximize; char _end",
    "fl_optim_lion_opts": "fl_opts_guard guard_; double lr; double beta1; double beta2; double weight_decay; bool master; bool maximize; char _end",
    "fl_optim_muon_opts": "fl_opts_guard guard_; double lr; double weight_decay; double momentum; double eps; int64_t steps; bool no_nesterov; bool match_adamw; bool master; bool maximize; char _end",
    "fl_optim_group": "double lr_scale; double hyper[8]; fl_tensor* numbers; double sent[9]",
    "fl_optim_slot": "fl_var* param; fl_tensor* master; fl_tensor* state[8]; fl_tensor* steps; fl_optim_group* group; fl_tensor* grad; fl_tensor* update; fl_tensor* number[2]; fl_tensor* made[2]; bool early",
    "fl_optim_type": "char* name; char* state[8]; char* hyper[8]; char* limits; fl_step_rule* rule; unsigned apart; fl_optim_type.init init; fl_optim_type.prepare prepare; fl_optim_type.step step; fl_optim_type.minimize minimize; fl_optim_type.destroy destroy",
    "fl_optim": "fl_optim_type* type; void* user; double lr; fl_optim_group group[16]; int n_groups; fl_optim_slot* slot; int64_t n; fl_tensor* steps; fl_tensor* factor; fl_tensor* sign; fv_watcher early; int64_t last_early",
    "fl_optim_group_opts": "fl_opts_guard guard_; double lr; double weight_decay; char _end",
    "fl_optim_scaler": "double growth; double backoff; double least; int64_t interval; fl_tensor* scale; fl_tensor* good; fl_tensor* sum; int64_t updates",
    "fl_optim_scaler_opts": "fl_opts_guard guard_; double growth; double backoff; int64_t interval; double least; char _end",
    "fl_optim_schedule": "fl_optim_schedule_kind kind; double lr; double low; double gamma; double power; double rise; double momentum_low; double momentum_high; double threshold; int64_t every; int64_t total; int64_t grow; int64_t warmup; int64_t decay; int64_t patience; int64_t cooldown; int64_t milestone[8]; bool maximize; fl_optim* optim; int64_t t; int64_t bad; int64_t waits; double best",
    "fl_optim_sgd_opts": "fl_opts_guard guard_; double lr; double momentum; double dampening; double weight_decay; bool nesterov; bool decoupled; bool master; bool maximize; char _end",
    "fl_optim_asgd_opts": "fl_opts_guard guard_; double lr; double lambd; double alpha; double t0; double weight_decay; bool master; bool maximize; char _end",
    "fl_attention_args": "double scale; int64_t causal; int64_t offset; int64_t window; double softcap; double p; fl_rng rng",
    "fl_ctc_args": "int64_t blank",
    "fl_triangle_args": "bool upper; bool unit",
    "fl_fft_args": "int axis; int inverse",
    "fl_formula_args": "fl_formula program; uint8_t call[64][3]",
    "fl_resample_args": "int64_t axis; int64_t size; int64_t adjoint",
    "fl_linear_args": "fl_op act",
    "fl_cross_entropy_args": "double smoothing; int64_t ignore",
    "fl_norm_args": "int64_t dims; double eps; int64_t rms",
    "fl_add_norm_args": "fl_norm_args norm; double p; fl_rng rng",
    "fl_batch_norm_args": "double eps; int64_t relu; int64_t groups; double momentum; double unbiased",
    "fl_pool2d_args": "int64_t kernel[2]; int64_t stride[2]; int64_t pad_lo[2]; int64_t pad_hi[2]; int count_pad; int in_window",
    "fl_dropout_args": "double p; fl_rng rng",
    "fl_rnn_args": "fl_rnn_mode mode; int gates; int ways; int batch_first; int64_t biased; int64_t hidden; int64_t out",
    "fl_step_args": "int n_reads; int n_writes; int64_t skips; fl_formula program",
    "fl_speech_span": "int64_t token; int64_t begin; int64_t end; double confidence",
    "fl_speech_align_opts": "fl_opts_guard guard_; int64_t blank; bool asg; float* transitions; char _end",
    "fl_speech_attend_opts": "fl_opts_guard guard_; char* attention; int64_t attention_dim; int64_t channels; int64_t kernel; int64_t heads; bool transformer; bool attend_last; int64_t rounds; int64_t layers; int64_t distances; double dropout; bool input_feeding; int64_t eos; double smoothing; char* window; bool window_always; double width; double rate; double offset; double min_frames; double max_frames; double min_rate; double max_rate; int64_t left; int64_t right; char* sampling; double replaced; double temperature; fl_rng* rng; char _end",
    "fl_speech_sound": "int64_t rate; int64_t channels; int64_t frames; fl_speech_coding coding",
    "fl_speech_audio_opts": "fl_opts_guard guard_; int64_t rate; int64_t want_rate; int channel; fl_speech_sound raw; fl_speech_sound* info; int64_t max_samples; char _end",
    "fl_speech_spec_augment_opts": "fl_opts_guard guard_; int64_t warp; int64_t band_width; int64_t bands; int64_t frame_width; int64_t frames; double share; bool mean; char _end",
    "fl_speech_criterion_opts": "fl_opts_guard guard_; fl_speech_scale_mode scale; fl_speech_too_long too_long; double diagonal; bool linseg_by_frames; int64_t hidden; int64_t context; double ctc_weight; fl_speech_attend_opts attend; fl_rng* rng; char _end",
    "fl_speech_decoder_opts": "fl_opts_guard guard_; int64_t beam; int64_t tokens; double threshold; bool log_add; double lm_weight; double word_score; double sil_score; double unknown_score; bool unknown_words; bool open; int64_t unknown; fl_text_scorer* lm; bool token_lm; int64_t blank; bool asg; float* transitions; int64_t separator; bool flashlight; char _end",
    "fl_speech_endpoint_opts": "fl_opts_guard guard_; double frame; double nothing; double trailing; double longest; char _end",
    "fl_speech_echo_opts": "fl_opts_guard guard_; double initial; double rt60; double first_delay; int64_t repeat; double jitter; char _end",
    "fl_speech_wave_augment_opts": "fl_opts_guard guard_; double rate; double low; double high; int64_t bins; int64_t band_width; int64_t bands; int64_t width; int64_t masks; double share; char _end",
    "fl_speech_chain_opts": "fl_opts_guard guard_; char* root; int64_t rate; int64_t max_list_bytes; char _end",
    "fl_speech_conf": "fl_speech_kind kind; double rate; double gain; double dither; uint64_t seed; int64_t window_length; int64_t hop; int64_t n_fft; fl_speech_window window; double blackman; fl_speech_edges edges; bool drop_last; int64_t pad_to; bool remove_mean; double preemphasis; bool magnitude; fl_speech_scale scale; bool mel_slopes; bool slaney_norm; bool below_nyquist; bool htk_bins; double low; double high; double vtln_warp; double vtln_low; double vtln_high; bool vtln_htk; int64_t bands; int64_t cepstra; double lifter; bool orthonormal; bool c0_last; bool no_c0; int64_t lpc_order; double compress; double cepstral_scale; fl_speech_log log; double floor; fl_speech_energy energy; bool energy_beside; bool raw_energy; double energy_floor; bool energy_normalize; double energy_scale; double energy_range; bool subtract_mean; double range; bool whisper; int64_t delta_window; int64_t deltas; int64_t acc_window; int64_t max_numbers",
    "fl_speech_normalize_opts": "fl_opts_guard guard_; int64_t left; int64_t right; bool by_column; bool no_variance; int64_t least; char _end",
    "fl_lattice_args": "bool full",
    "fl_lattice_opts": "fl_opts_guard guard_; int64_t blank; fl_reduction reduction; bool zero_infinity; int64_t cells; char _end",
    "fl_speech_lexicon_opts": "fl_opts_guard guard_; bool skip; int64_t* skipped; char _end",
    "fl_speech_node": "int32_t token; int32_t child; int32_t children; int32_t word; int32_t words; float smeared",
    "fl_speech_arch_opts": "fl_opts_guard guard_; fl_rng* rng; int64_t max_parameters; int64_t max_layers; char _end",
    "fl_speech_arch_stream_opts": "fl_opts_guard guard_; int64_t frames; char _end",
    "fl_speech_whisper_opts": "fl_opts_guard guard_; int64_t* prompt; int64_t n_prompt; int64_t most; bool times; int64_t first_time; double latest; int64_t* suppressed; int64_t* suppressed_first; int64_t n_suppressed; int64_t n_suppressed_first; double least; double repeated; double silent; int64_t no_speech; int64_t previous; uint64_t seed; char _end",
    "fl_speech_whisper_result": "double mean; double temperature; double repeated; double no_speech; bool silence",
    "fl_speech_whisper_segment": "double begin; double end; int64_t* token; int64_t n; fl_speech_whisper_result window",
    "fl_speech_resample_opts": "fl_opts_guard guard_; int64_t crossings; double rolloff; bool kaiser; double beta; char _end",
    "fl_speech_predictor": "void* self; int64_t classes; int64_t end; bool transducer; fl_speech_predictor.extend extend; fl_speech_predictor.scores scores; fl_speech_predictor.free free",
    "fl_speech_search_opts": "fl_opts_guard guard_; int64_t beam; int64_t tokens; int64_t most; double threshold; bool log_add; double lm_weight; double word_score; double end_score; fl_text_scorer* lm; bool token_lm; char _end",
    "fl_speech_word": "int64_t word; int64_t begin; int64_t end; double confidence",
    "fl_speech_result": "double score; double acoustic; double lm; int64_t words; fl_speech_word* word",
    "fl_spectrum_args": "int64_t hop; int64_t n_fft; int64_t remove_mean; double preemphasis; int magnitude; int bands; int cosine; int log; double floor; double log_scale; fl_energy energy; int energy_replaces; int64_t energy_at; double energy_floor",
    "fl_speech_list_entry": "char* id; char* path; char* transcript; double ms; int64_t line",
    "fl_speech_target_opts": "fl_opts_guard guard_; fl_speech_lexicon* lexicon; char* separator; bool pieces; char* surround; int64_t replabels; bool asg; char* eos; double sample; fl_rng* rng; bool skip; int64_t* skipped; char _end",
    "fl_speech_segment": "int64_t begin; int64_t end",
    "fl_speech_segments_opts": "fl_opts_guard guard_; double on; double off; double speech; double silence; double pad; char _end",
    "fl_formula_step": "uint8_t primitive; uint8_t logical; uint8_t to; uint8_t in[3]",
    "fl_formula": "uint8_t n_in; uint8_t n_out; uint8_t n_steps; uint8_t n_constants; uint8_t n_registers; uint32_t reads; uint32_t conditions; uint8_t logical; uint8_t out[4]; fl_formula_step step[64]; double constant[16]",
    "fl_formula_builder": "fl_formula* f; char* error; bool logical[128]; int at[128]; int failed",
    "fl_formula_vtable": "fl_formula_vtable.number number; fl_formula_vtable.step step; void* user",
    "fl_memo": "int most; size_t size; fl_memo_entry** slot; int n",
    "fl_text_tokens_opts": "fl_opts_guard guard_; char* tokenizer; int64_t vocabulary; bool raw; char _end",
    "fl_text_blocks_opts": "fl_opts_guard guard_; int64_t begin; int64_t end; bool drop_last; bool random; int64_t size; uint64_t seed; char _end",
    "fl_text_mask_opts": "fl_opts_guard guard_; int64_t vocabulary; int64_t mask; bool* special; double part; double masked; double random; uint64_t seed; char _end",
    "fl_text_dictionary_opts": "fl_opts_guard guard_; bool counts; int64_t min_count; int64_t max_size; char _end",
    "fl_text_decoder_opts": "fl_opts_guard guard_; int64_t length; bool uncached; char _end",
    "fl_text_sampler": "fl_opts_guard guard_; double temperature; int64_t top_k; double top_p; double min_p; double repetition; char _end",
    "fl_text_candidate": "float score; int32_t id",
    "fl_text_sequence": "int64_t* id; int64_t n; double score; int64_t cap_",
    "fl_text_generate_opts": "fl_opts_guard guard_; int64_t most; fl_text_sampler sampler; uint64_t seed; int64_t* stop; int64_t n_stop; bool slide; fl_text_generate_opts.each each; void* user; int64_t beams; double length_penalty; char _end",
    "fl_text_gguf_pair": "char* key; char* text; double number; fl_dtype dtype; void* array; int64_t n",
    "fl_text_load_opts": "fl_opts_guard guard_; bool stored; int64_t context; char _end",
    "fl_text_save_opts": "fl_opts_guard guard_; fl_text_tokenizer* tokenizer; fl_dtype dtype; char _end",
    "fl_text_lora_opts": "fl_opts_guard guard_; int64_t rank; double alpha; char* targets; fl_rng* rng; char _end",
    "fl_text_lm_opts": "fl_opts_guard guard_; fl_text_lm_kind kind; int64_t layers; int64_t dim; int64_t heads; int64_t kv_heads; int64_t hidden; int64_t context; fl_text_lm_position place; fl_rotary_opts rope; double embedding_scale; int64_t window; bool rms; bool gated; bool post_norm; bool bidirectional; fl_text_lm_opts.activation activation; bool no_bias; bool qkv_bias; int64_t types; bool embedding_norm; bool masked_head; bool untied; fl_shape cutoffs; int64_t kernel; double eps; double dropout; double std; fl_shape bos; fl_shape eos; fl_rng* rng; char _end",
    "fl_text_loss_sum": "double nats; int64_t tokens",
    "fl_text_evaluate_opts": "fl_opts_guard guard_; int64_t begin; int64_t end; int64_t context; int64_t stride; int64_t batch; fl_dtype dtype; char _end",
    "fl_text_training": "fl_nn_module* model; fl_optim* optim; fl_optim_schedule* schedule; fl_optim_scaler* scaler; fl_text_lora* lora; fl_data_set* set; fl_dtype dtype; int64_t accumulate; double clip; fl_optim_progress at; int64_t tokens; double best",
    "fl_text_ngram_sum": "double log10; double log10_unknown; int64_t words; int64_t unknown; int64_t sentences",
    "fl_text_ngram_entry": "float prob; float backoff; bool left",
    "fl_text_ngram_state": "uint64_t begin; uint64_t end",
    "fl_text_ngram": "int order; int64_t count[8]; int32_t begin; int32_t end; void* self; fl_text_ngram.find find; fl_text_ngram.look look; fl_text_ngram.close close",
    "fl_text_ngram_opts": "fl_opts_guard guard_; int order; fl_text_dictionary* words; int64_t prune[8]; char _end",
    "fl_text_pair": "int32_t left; int32_t right; uint32_t rank; int32_t id",
    "fl_text_pairs": "fl_text_pair* slot; int64_t n; int64_t mask; uint64_t seed",
    "fl_text_state": "int32_t n; int32_t word[7]; float backoff[7]",
    "fl_text_scorer": "void* self; fl_text_scorer.start start; fl_text_scorer.score score; fl_text_scorer.batch batch; fl_text_scorer.finish finish; fl_text_scorer.free free",
    "fl_text_merge": "int32_t left; int32_t right",
    "fl_text_bpe_opts": "fl_opts_guard guard_; fl_text_merge* merge; int64_t n_merges; float* score; bool by_id; bool bytes; bool byte_fallback; bool fuse_unk; bool ignore_merges; char* unk; char* prefix; char* suffix; char* where; char _end",
    "fl_text_train_opts": "fl_opts_guard guard_; int64_t size; int64_t min_count; char** special; int n_special; char* split; bool cased; char _end",
    "fl_text_gguf_vocab": "fl_text_gguf_pair pair[24]; int n; char** token_; char** merge_; float* score_; int32_t* kind_; char* charsmap_; fl_data_arena text_",
    "fl_text_matches": "fl_text_pattern* pattern; char* s; int64_t n; int64_t at; int64_t* left; int64_t begin; int64_t end; int64_t first_; int64_t valid_; int64_t place_; void* data_; void* context_",
    "fl_text_pieces_opts": "fl_opts_guard guard_; bool bpe; bool byte_fallback; bool no_prefix; bool keep_spaces; bool plain_spaces; bool suffix; char* charsmap; int64_t n_charsmap; int64_t bos; int64_t eos; char* where; char _end",
    "fl_text_piece": "uint32_t begin; uint32_t end; int32_t id",
    "fl_text_token": "int32_t id; uint32_t begin; uint32_t end",
    "fl_text_changed": "char* p; uint32_t* from; uint32_t* to; int64_t n; int64_t cap_; int64_t from_cap_; int64_t to_cap_",
    "fl_text_work": "char* p; int64_t n; uint32_t* from; uint32_t* to; uint32_t base; bool mapped; bool first; bool last; fl_text_piece* piece; int64_t n_pieces; int64_t at; fl_text_token* token; int64_t n_tokens; void* memo; void* cache; int64_t memo_bytes; double sum; char* original; int64_t most; int64_t left; fl_text_changed text_[2]; fl_text_piece* pieces_[2]; int64_t n_next_; int64_t piece_cap_[2]; int64_t token_cap_; int text_at_; int piece_at_",
    "fl_text_kind": "char* type; fl_text_kind.run run; fl_text_piece_fn cut; fl_text_piece_fn write; fl_text_kind.make make; int64_t value",
    "fl_text_step": "fl_text_kind* kind; fl_text_tree* options; fl_text_pattern* pattern; void* data; int64_t value",
    "fl_text_steps": "fl_text_step* v; int64_t n; int64_t cap_",
    "fl_text_encoding": "int64_t n; int32_t* id; int64_t* begin; int64_t* end; uint8_t* type; uint8_t* special; uint8_t* mask; int64_t replaced; fl_text_encoding* overflow; int64_t n_overflow; int64_t cap_[6]; int64_t overflow_cap_",
    "fl_text_encode_opts": "fl_opts_guard guard_; char* pair; int64_t n_pair; bool plain; bool strict; char _end",
    "fl_text_stream": "fl_text_tokenizer* tokenizer; bool keep_special; int32_t* id_; int64_t n_; int64_t cap_; int64_t prefix_; int64_t given_; fl_data_text text_",
    "fl_text_added_token": "char* text; int64_t n; int32_t id; bool special; bool single_word; bool lstrip; bool rstrip; bool normalized; bool unreachable",
    "fl_text_truncation": "int64_t max_length; int64_t stride; fl_text_truncate strategy; bool left",
    "fl_text_padding": "bool on; int64_t length; int64_t multiple; bool left; int32_t id; uint8_t type; char* token",
    "fl_text_model": "char* type; fl_text_dictionary* vocab; bool cached; fl_text_model.encode encode; fl_text_model.put put; fl_text_model.free free; fl_text_model.memo_free memo_free",
    "fl_text_parts": "fl_text_tree* pipeline; fl_text_tree* options; fl_text_dictionary* vocab; fl_text_merge* merge; int64_t n_merges; double* score; fl_text_added_token* added; int64_t n_added; bool bytes; int64_t merge_cap_; int64_t score_cap_; int64_t added_cap_; fl_data_arena text_",
    "fl_text_tree": "fl_data_json_event event; char* key; char* text; int64_t n; fl_text_tree* first; fl_text_tree* next",
    "fl_text_key": "char* text; int64_t n; int32_t value",
    "fl_text_trie_node": "int32_t base; int32_t check; int32_t value",
    "fl_text_trie": "fl_text_trie_node* node; int64_t n; int64_t cap_",
    "fl_text_unigram_opts": "fl_opts_guard guard_; int64_t size; double coverage; bool byte_fallback; char _end",
    "fl_cost": "int64_t macs; int64_t flops; int64_t bytes",
    "fl_cost_counter": "int64_t macs; int64_t mark_[64]; int nested_; fl_cost_counter.before_ before_; fl_cost_counter.after_ after_; void* user_",
    "fl_gradcheck_opts": "fl_opts_guard guard_; double eps; double atol; double rtol; void* user; char _end",
    "fl_profile_opts": "fl_opts_guard guard_; double peak_flops; double peak_bytes; bool sync; fl_profile_opts.now now; void* user; char _end",
    "fl_vision_rle": "int64_t h; int64_t w; int64_t n; uint32_t* run",
    "fl_vision_object": "int64_t id; int64_t image; int64_t category; double box[4]; double area; double score; bool crowd; int64_t seg; int64_t n_seg; char* rle; int32_t h; int32_t w",
    "fl_vision_coco_image": "int64_t id; int64_t h; int64_t w; char* file",
    "fl_vision_category": "int64_t id; char* name",
    "fl_vision_coco": "fl_vision_coco_image* image; fl_vision_category* category; fl_vision_object* object; int64_t n_image; int64_t n_category; int64_t n_object; double* number; int64_t n_number; int64_t cap_[4]; fl_data_arena text_",
    "fl_vision_ap": "double figure[12]; int64_t n_category; double* precision; double* score; double* recall",
    "fl_vision_voc_opts": "fl_opts_guard guard_; bool inclusive; char _end",
    "fl_deform_args": "int64_t kernel[2]; int64_t stride[2]; int64_t pad[2]; int64_t dilation[2]; int64_t groups; int64_t masked",
    "fl_vision_deform_opts": "fl_opts_guard guard_; int64_t stride[2]; int64_t dilation[2]; int64_t pad[2]; char _end",
    "fl_vision_targets": "fl_tensor* labels; fl_tensor* boxes; int64_t* count; int64_t n",
    "fl_vision_losses": "fl_var* total; double ce; double l1; double giou; double class_error",
    "fl_vision_criterion_opts": "fl_opts_guard guard_; double nothing; double objects; bool last_only; char _end",
    "fl_vision_detections": "fl_tensor* scores; fl_tensor* labels; fl_tensor* boxes",
    "fl_vision_draw_opts": "fl_opts_guard guard_; char** labels; uint8_t* colours; int64_t width; int64_t scale; double alpha; char _end",
    "fl_vision_read_opts": "fl_opts_guard guard_; fl_vision_mode mode; int depth; bool as_stored; bool partial; int eighths; int64_t y; int64_t x; int64_t h; int64_t w; int64_t max_pixels; char* name; char _end",
    "fl_vision_info": "char* format; int64_t h; int64_t w; int channels; int depth; int orientation",
    "fl_vision_pixels": "uint8_t* p; int64_t c; int64_t h; int64_t w; int64_t row",
    "fl_vision_model_opts": "fl_opts_guard guard_; int64_t classes; int64_t channels; int64_t size; int64_t patch; double dropout; double drop_path; bool frozen; int64_t divide; int64_t blocks; bool dilated; char _end",
    "fl_vision_detr_opts": "fl_opts_guard guard_; int64_t classes; int64_t queries; int64_t dim; int64_t heads; int64_t hidden; int64_t layers; double dropout; int64_t divide; int64_t blocks; bool dilated; bool live; char _end",
    "fl_roi_align_args": "int adjoint; int aligned; int64_t images; int64_t h; int64_t w; int64_t rows; int64_t columns; int64_t sampling_ratio; double scale",
    "fl_vision_roi_opts": "fl_opts_guard guard_; double scale; int64_t sampling_ratio; bool aligned; char _end",
    "fl_vision_arrays": "fl_tensor* image; fl_tensor* label",
    "fl_vision_cifar_opts": "fl_opts_guard guard_; bool hundred; bool coarse; char _end",
    "fl_vision_objects_opts": "fl_opts_guard guard_; bool masks; int64_t max_pixels; char _end",
    "fl_vision_item": "fl_tensor* image; fl_tensor* boxes; fl_tensor* labels; fl_tensor* masks; fl_tensor* area",
    "fl_vision_transform": "char* name; fl_vision_transform_fn apply; double p; double a[8]; int64_t n[8]; fl_vision_transform* inner; int n_inner",
    "fl_vision_resize_opts": "fl_opts_guard guard_; fl_vision_filter filter; double box[4]; char _end",
    "fl_vision_adjust_opts": "fl_opts_guard guard_; bool bilinear; double fill[4]; int size; char _end",
    "fl_vision_batch_opts": "fl_opts_guard guard_; fl_vision_transform* steps; int n_steps; uint64_t seed; bool drop_last; bool region; bool u8; bool objects; bool skip_bad; double mean[4]; double std[4]; int64_t max_pixels; char _end",
    "fl_vision_mixup_opts": "fl_opts_guard guard_; double mixup; double cutmix; double p; double cut; double smoothing; uint64_t seed; char _end",
}
_CALLBACKS = {  # pointers to functions: types, fields and arguments
    "fv_hook_fn": "void (fl_var* x, void* user)",
    "fl_back_fn": "void (fl_node* n, fl_var* dy)",
    "fv_record_opts.recompute": "fl_tensor* (fl_node* n)",
    "fv_record_opts.free_args": "void (void* args)",
    "fv_part_fn": "fl_tensor* (fl_node* n, fl_tensor* whole)",
    "fv_watcher.leaf_ready": "void (fv_watcher* w, fl_var* x)",
    "fv_watcher.end": "void (fv_watcher* w, char* error)",
    "fl_compose_fn": "bool (fl_call* c, fl_tensor** value)",
    "fl_op_info.gradient": "void (fl_node* n, fl_var* dy)",
    "fl_op_info.macs": "int64_t (fl_call* c)",
    "fl_call_hook_fn": "void (fl_call* c, void* user)",
    "fl_taker.call": "fl_taken (fl_call* c, void* user)",
    "fl_taker.make": "fl_taken (fl_tensor* t, size_t bytes, fl_mem_info* info, void* user)",
    "fl_taker.map": "bool (fl_tensor* t, int access, void* user)",
    "fl_taker.end": "void (void* user)",
    "fl_replay.run": "bool (void* user)",
    "fl_slot": "bool (fl_backend* self, fl_call* c)",
    "fl_backend.place": "bool (fl_backend* self, fl_mem_info* info)",
    "fl_backend.make": "bool (fl_backend* self, fl_tensor* out, fl_mem_info* info)",
    "fl_backend.drop": "void (fl_backend* self, fl_tensor* t)",
    "fl_backend.map": "void* (fl_backend* self, fl_tensor* t, int access)",
    "fl_backend.unmap": "void (fl_backend* self, fl_tensor* t, int access)",
    "fl_backend.view": "bool (fl_backend* self, fl_tensor* out, fl_tensor* in)",
    "fl_backend.move": "bool (fl_backend* self, fl_tensor* dst, fl_tensor* src)",
    "fl_backend.sync": "bool (fl_backend* self)",
    "fl_backend.replay": "bool (fl_backend* self, void** memo, fl_replay* r)",
    "fl_cpu_loop.loop": "void (void*[] p, count64 n, void* arg)",
    "fl_obj.drop_": "void (fl_obj* self)",
    "fl_obj_new.drop": "void (fl_obj* self)",
    "fl_scope_in.describe": "void (void* of, char* buf, size_t size)",
    "fl_tape_name_fn": "void (fl_var* leaf, void* user, char* buf, size_t size)",
    "fl_data_collate_fn": "bool (fl_data_sample* samples, int64_t n, fl_data_sample* out, void* user)",
    "fl_dlpack.deleter": "void (fl_dlpack* self)",
    "fl_dlpack_old.deleter": "void (fl_dlpack_old* self)",
    "fl_data_name_fn": "bool (void* arg, char* name, bool folder)",
    "fl_data_io.open": "void* (void* user, char* path, fl_data_mode mode)",
    "fl_data_io.read": "int64_t (void* user, void* file, void* dst, size_t n, int64_t at)",
    "fl_data_io.write": "int64_t (void* user, void* file, void* src, size_t n, int64_t at)",
    "fl_data_io.size": "int64_t (void* user, void* file)",
    "fl_data_io.sync": "int (void* user, void* file)",
    "fl_data_io.close": "int (void* user, void* file)",
    "fl_data_io.rename": "int (void* user, char* from, char* to)",
    "fl_data_io.remove": "int (void* user, char* path)",
    "fl_data_io.sync_dir": "int (void* user, char* path)",
    "fl_data_io.list": "int (void* user, char* path, fl_data_name_fn each, void* arg)",
    "fl_data_io.map": "void* (void* user, void* file, int64_t n)",
    "fl_data_io.unmap": "void (void* user, void* p, int64_t n)",
    "fl_data_read_fn": "bool (fl_data_list_entry* e, fl_data_sample* out, void* user)",
    "fl_data_file.fill": "bool (fl_data_file* self, fl_data_entry* e, void* dst)",
    "fl_data_file.read": "fl_tensor* (fl_data_file* self, fl_data_entry* e)",
    "fl_data_file.close": "void (fl_data_file* self)",
    "fl_data_file_map.verify": "bool (fl_data_file* f, fl_data_entry* e, char* bytes)",
    "fl_data_set.get": "bool (fl_data_set* self, int64_t i, fl_data_sample* out)",
    "fl_data_set.start": "bool (fl_data_set* self, int64_t epoch)",
    "fl_data_set.close": "void (fl_data_set* self)",
    "fl_data_set.arrange": "bool (fl_data_set* self, int64_t epoch)",
    "fl_data_set.id": "int64_t (fl_data_set* self, int64_t i)",
    "fl_data_set.length": "int64_t (fl_data_set* self, int64_t i)",
    "fl_data_set.many": "bool (fl_data_set* self, int64_t* index, int64_t n, fl_data_sample* out)",
    "fl_data_get_fn": "bool (int64_t i, fl_data_sample* out, void* user)",
    "fl_data_keep_fn": "bool (fl_data_sample* sample, void* user)",
    "fl_data_fn": "bool (fl_data_sample* sample, fl_rng* rng, void* user)",
    "fl_dist_store.set": "bool (fl_dist_store* self, char* key, void* bytes, size_t n)",
    "fl_dist_store.get": "int64_t (fl_dist_store* self, char* key, void* bytes, size_t size, double deadline)",
    "fl_dist_device.backend": "char* (void* self)",
    "fl_dist_device.take": "bool (void* self, fl_dist_call* c, fl_buffer*[] b)",
    "fl_dist_device.release": "bool (fl_dist_call* c, fl_buffer*[] b)",
    "fl_dist_device.check": "bool (void* self)",
    "fl_dist_impl.open": "void* (fl_dist_rendezvous* distance)",
    "fl_dist_impl.exchange": "bool (void* self, int to, void* out, size_t out_bytes, int from, void* in, size_t in_bytes, uint64_t tag, double deadline)",
    "fl_dist_impl.abort": "void (void* self)",
    "fl_dist_impl.close": "void (void* self)",
    "fl_dist_impl.run": "fl_dist_answer (void* self, fl_dist_call* c)",
    "fl_graph_pass": "bool (fl_graph_list* l, void* user)",
    "fl_graph_host.fn": "bool (void* user)",
    "fl_graph_call.fn": "bool (void* user)",
    "fl_buffer.restore": "bool (fl_buffer* self)",
    "fl_buffer_new_lazy.restore": "bool (fl_buffer*)",
    "fl_device.get": "void* (fl_device* self, size_t bytes, size_t align)",
    "fl_device.put": "void (fl_device* self, void* ptr, size_t bytes)",
    "fl_device.copy": "bool (fl_device* self, void* dst, void* src, size_t bytes)",
    "fl_device.limit": "size_t (fl_device* self)",
    "fl_device.wait": "bool (fl_device* self, void* stream, void* before)",
    "fl_dtype_info.unpack": "void (void* blocks, float* numbers, int64_t n)",
    "fl_dtype_info.pack": "void (float* numbers, void* blocks, int64_t n)",
    "fl_error_fn": "void (char* text, void* user)",
    "fl_error_context.describe": "void (void* of, char* buf, size_t size)",
    "fl_heap_fn": "void* (void* user, void* p, size_t bytes)",
    "fl_log_fn": "void (fl_log_level level, char* text, void* user)",
    "fl_mem_manager.get": "bool (fl_mem_manager* self, fl_buffer* b, fl_mem_info* info)",
    "fl_mem_manager.put": "void (fl_mem_manager* self, fl_buffer* b)",
    "fl_mem_manager.trim": "size_t (fl_mem_manager* self)",
    "fl_mem_manager.stats": "void (fl_mem_manager* self, fl_mem_stats* out)",
    "fl_mem_manager.reset_peak": "void (fl_mem_manager* self)",
    "fl_mem_manager.close": "void (fl_mem_manager* self)",
    "fl_write_file_atomic.put": "void (fl_strbuf* t, void* user)",
    "fl_task": "void (void* arg, int64_t begin, int64_t end)",
    "fl_nn_activation.fn": "fl_var* (fl_var* x)",
    "fl_nn_activation_axis.fn": "fl_var* (fl_var* x, int axis)",
    "fl_nn_activation_1.fn": "fl_var* (fl_var* x, double a)",
    "fl_nn_activation_2.fn": "fl_var* (fl_var* x, double a, double b)",
    "fl_nn_activation_fn": "fl_var* (fl_var* x)",
    "fl_nn_forward_fn": "fl_vars (fl_nn_module* m, fl_vars in)",
    "fl_nn_type.release": "void (void* data)",
    "fl_nn_type.describe": "void (fl_nn_module* m, char* buf, size_t size)",
    "fl_nn_type.state": "void* (fl_nn_module* m, size_t* bytes)",
    "fl_nn_function.release": "void (void* user)",
    "fl_nn_call_hook.fn": "void (fl_nn_module* m, fl_vars* out, void* user)",
    "fl_nn_visit_fn": "bool (char* path, fl_var* param, fl_tensor* buffer, void* user)",
    "fl_nn_visit_modules_fn": "bool (fl_nn_module* m, char* prefix, void* user)",
    "fl_nn_batch_norm_reduce.reduce": "bool (fl_tensor* sums, void* user)",
    "fl_nn_transformer_opts.activation": "fl_var* (fl_var* x)",
    "fv_linear_act_of.fn": "fl_var* (fl_var* x)",
    "fl_batch_norm_opts.reduce": "bool (fl_tensor* sums, void* user)",
    "fl_optim_closure": "fl_var* (void* user)",
    "fl_optim_type.init": "fl_tensor* (fl_optim* o, fl_tensor* param, int k)",
    "fl_optim_type.prepare": "bool (fl_optim* o, fl_optim_slot* p)",
    "fl_optim_type.step": "bool (fl_optim* o, fl_optim_slot* p)",
    "fl_optim_type.minimize": "bool (fl_optim* o, fl_optim_closure closure, void* user, double* loss)",
    "fl_optim_type.destroy": "void (fl_optim* o)",
    "fl_speech_whisper_each": "bool (fl_speech_whisper_segment* s, void* user)",
    "fl_speech_predictor.extend": "bool (fl_speech_predictor* p, int64_t n, int32_t* from, int32_t* token, int32_t* to)",
    "fl_speech_predictor.scores": "bool (fl_speech_predictor* p, int64_t frame, int64_t n, int32_t* at, float* out)",
    "fl_speech_predictor.free": "void (fl_speech_predictor* p)",
    "fl_formula_vtable.number": "void* (double value, void* user)",
    "fl_formula_vtable.step": "void* (fl_primitive primitive, void*[] operand, void* user)",
    "fl_text_generate_opts.each": "bool (int64_t text, int64_t id, void* user)",
    "fl_text_gguf_fn": "bool (char* text, int64_t n, double number, void* user)",
    "fl_text_lm_opts.activation": "fl_var* (fl_var* x)",
    "fl_text_ngram.find": "int32_t (fl_text_ngram* m, char* word, int64_t n)",
    "fl_text_ngram.look": "bool (fl_text_ngram* m, int k, int32_t word, fl_text_ngram_state* at, fl_text_ngram_entry* out)",
    "fl_text_ngram.close": "void (fl_text_ngram* m)",
    "fl_text_scorer.start": "bool (fl_text_scorer* s, fl_text_state* out)",
    "fl_text_scorer.score": "bool (fl_text_scorer* s, fl_text_state* from, int64_t token, fl_text_state* to, double* score)",
    "fl_text_scorer.batch": "bool (fl_text_scorer* s, fl_text_state* state, int64_t n)",
    "fl_text_scorer.finish": "bool (fl_text_scorer* s, fl_text_state* from, double* score)",
    "fl_text_scorer.free": "void (fl_text_scorer* s)",
    "fl_text_piece_fn": "bool (fl_text_step* s, fl_text_work* w, fl_text_piece p)",
    "fl_text_kind.run": "bool (fl_text_step* s, fl_text_work* w)",
    "fl_text_kind.make": "bool (fl_text_step* s, char* where)",
    "fl_text_model.encode": "bool (fl_text_model* m, fl_text_work* w, uint32_t begin, uint32_t end)",
    "fl_text_model.put": "bool (fl_text_model* m, bool bytes, fl_data_text* out)",
    "fl_text_model.free": "void (fl_text_model* m)",
    "fl_text_model.memo_free": "void (void* memo)",
    "fl_cost_counter.before_": "void (fl_call* c, void* user)",
    "fl_cost_counter.after_": "void (fl_call* c, void* user)",
    "fl_gradcheck_fn": "fl_var* (fl_var*[] x, void* user)",
    "fl_profile_opts.now": "int64_t (void* user)",
    "fl_vision_transform_fn": "bool (fl_vision_transform* s, fl_vision_item* item, fl_rng* rng)",
}
_ENUMS = {  # their words, as arguments take them
    "fl_op_class": {"none": 0, "float": 1, "num": 2, "any": 3, "int": 4, "cmp": 5, "bool": 6},
    "fl_program": {"y": 0, "da": 1, "db": 2, "da_db": 3},
    "fl_random_kind": {"uniform": 0, "normal": 1, "integer": 2},
    "fl_taken": {"declined": 0, "taken": 1, "failed": 2},
    "fl_access": {"read": 1, "write": 2, "on_device": 4},
    "fl_data_mode": {"read": 0, "replace": 1, "append": 2},
    "fl_data_json_event": {"error": 0, "end": 1, "object": 2, "object_end": 3, "array": 4, "array_end": 5, "key": 6, "string": 7, "number": 8, "true": 9, "false": 10, "null": 11},
    "fl_data_packing": {"plain": 0, "gzip": 1, "deflate": 2},
    "fl_dist_kind": {"none": 0, "all_reduce": 1, "all_gather": 2, "reduce_scatter": 3, "broadcast": 4, "reduce": 5, "gather": 6, "scatter": 7, "all_to_all": 8, "send": 9, "recv": 10, "barrier": 11, "kinds": 12},
    "fl_dist_reduction": {"sum": 0, "avg": 1, "min": 2, "max": 3, "and": 4, "or": 5, "reductions": 6},
    "fl_dist_answer": {"failed": 0, "done": 1, "scaled": 2, "declined": 3},
    "fl_dist_failure_kind": {"ok": 0, "death": 1, "stall": 2, "mismatch": 3, "error": 4, "left": 5, "timeout": 6, "broken": 7},
    "fl_compile_mode": {"never": 0, "later": 1, "now": 2},
    "fl_graph_role": {"input": 0, "parameter": 1, "state": 2, "constant": 3, "output": 4, "temporary": 5},
    "fl_buffer_state": {"resident": 0, "evicted": 1, "lazy": 2},
    "fl_dtype": {"dtype_none": 0, "b8": 1, "u8": 2, "i8": 3, "i16": 4, "i32": 5, "i64": 6, "u16": 7, "u32": 8, "u64": 9, "f16": 10, "bf16": 11, "f32": 12, "f64": 13, "dtype_count": 14},
    "fl_log_level": {"debug": 0, "info": 1, "warn": 2, "error": 3, "off": 4},
    "fl_autocast_policy": {"none": 0, "narrow": 1, "wide": 2, "widest": 3},
    "fl_fft_norm": {"backward": 0, "ortho": 1, "forward": 2},
    "fl_interpolation": {"nearest": 0, "linear": 1, "cubic": 2, "area": 3, "nearest_exact": 4},
    "fl_grid_padding": {"zeros": 0, "border": 1, "reflect": 2},
    "fl_scatter_mode": {"sum": 0, "prod": 1, "mean": 2, "amax": 3, "amin": 4},
    "fl_reduction": {"mean": 0, "sum": 1, "none": 2},
    "fl_pad_mode": {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3, "circular": 4},
    "fl_rotary_kind": {"linear": 0, "llama3": 1, "yarn": 2},
    "fl_quantile_method": {"linear": 0, "lower": 1, "higher": 2, "nearest": 3, "midpoint": 4},
    "fl_optim_schedule_kind": {"constant": 0, "step": 1, "multi_step": 2, "exponential": 3, "polynomial": 4, "cosine": 5, "cosine_restarts": 6, "inverse_sqrt": 7, "wsd": 8, "one_cycle": 9, "plateau": 10},
    "fl_rnn_mode": {"rnn_tanh": 0, "rnn_relu": 1, "gru": 2, "lstm": 3},
    "fl_speech_coding": {"s16": 0, "u8": 1, "s24": 2, "s32": 3, "f32": 4, "f64": 5, "mulaw": 6, "alaw": 7, "s16_big": 8, "s24_big": 9, "s32_big": 10, "s8": 11, "ms_adpcm": 12, "ima_adpcm": 13, "other": 14},
    "fl_speech_scale_mode": {"none": 0, "input": 1, "input_sqrt": 2, "target": 3, "target_sqrt": 4},
    "fl_speech_too_long": {"too_long": 0, "cut": 1, "skip": 2},
    "fl_speech_kind": {"spectrogram": 0, "fbank": 1, "mfcc": 2, "plp": 3},
    "fl_speech_window": {"hamming": 0, "hann": 1, "povey": 2, "rectangular": 3, "blackman": 4, "hann_periodic": 5},
    "fl_speech_edges": {"snip": 0, "mirror": 1, "zeros": 2, "reflect": 3},
    "fl_speech_scale": {"mel": 0, "mel_1127": 1, "slaney": 2, "linear": 3, "log10": 4},
    "fl_speech_log": {"no_log": 0, "ln": 1, "lg": 2, "db": 3},
    "fl_speech_energy": {"no_energy": 0, "energy_first": 1, "energy_last": 2},
    "fl_speech_smear": {"no_smearing": 0, "smear_max": 1, "smear_logadd": 2},
    "fl_energy": {"none": 0, "raw": 1, "windowed": 2},
    "fl_primitive": {"add": 0, "sub": 1, "mul": 2, "div": 3, "neg": 4, "abs": 5, "exp": 6, "log": 7, "log1p": 8, "expm1": 9, "sqrt": 10, "sin": 11, "cos": 12, "tanh": 13, "erf": 14, "atan2": 15, "pow": 16, "remainder": 17, "maximum": 18, "minimum": 19, "floor": 20, "rint": 21, "lt": 22, "le": 23, "eq": 24, "bitwise_and": 25, "bitwise_or": 26, "bitwise_xor": 27, "bitwise_not": 28, "shift_left": 29, "shift_right": 30, "where": 31, "count": 32},
    "fl_text_lm_kind": {"transformer": 0, "gcnn": 1, "lstm": 2},
    "fl_text_lm_position": {"learned": 0, "rotary": 1, "sinusoid": 2, "no_position": 3},
    "fl_text_piece_kind": {"normal": 1, "unknown": 2, "control": 3, "user": 4, "unused": 5, "byte": 6},
    "fl_text_truncate": {"longest_first": 0, "only_first": 1, "only_second": 2},
    "fl_vision_box_format": {"xyxy": 0, "xywh": 1, "cxcywh": 2},
    "fl_vision_mode": {"rgb": 0, "grey": 1, "rgba": 2, "asis": 3},
    "fl_vision_names": {"torchvision": 0, "timm": 1, "hugging_face": 2},
    "fl_vision_filter": {"bilinear": 0, "bicubic": 1, "box": 2, "lanczos": 3},
    "fl_vision_adjustment": {"identity": 0, "brightness": 1, "contrast": 2, "saturation": 3, "sharpness": 4, "hue": 5, "grayscale": 6, "posterize": 7, "solarize": 8, "solarize_add": 9, "autocontrast": 10, "equalize": 11, "invert": 12, "rotate": 13, "shear_x": 14, "shear_y": 15, "translate_x": 16, "translate_y": 17, "blur": 18},
}
_CONSTANTS = {  # numbers
    "FV_MAX": 8,
    "FL_TABLE_VERSION": 302144672,
    "FL_MAX_DIMS": 8,
    "FL_ANY_BACKEND": 255,
    "FL_AUTOCAST_FLAGS": 65280,
    "FL_SHAPES_ONLY": 2199023255552,
    "FL_ZERO": -0.0,
    "FL_I0": -2147483648,
    "FL_SAME": -1,
    "FL_DATA_MAX_EDIT": 68719476736,
    "FL_DATA_MAX_ALIGN": 268435456,
    "FL_DATA_COUNTS": 16,
    "FL_DATA_DEFLATE_LIMIT": 1032,
    "FL_DATA_CURVE": 512,
    "FL_DATA_CURVES_MAX": 16,
    "FL_DATA_MAX_HEADER": 100000000,
    "FL_DATA_MAX_NAME": 4096,
    "FL_DATA_BINS": 100,
    "FL_DATA_FIELDS": 8,
    "FL_ALIGN": 64,
    "FL_VERSION_MAJOR": 0,
    "FL_VERSION_MINOR": 1,
    "FL_VERSION_PATCH": 0,
    "FL_NN_NAME": 64,
    "FL_NN_PATH": 512,
    "FL_VARS_MAX": 8,
    "FL_NN_SHAPE": 192,
    "FL_OPTIM_CHECKPOINT_VERSION": 1,
    "FL_SLICE_END": 9223372036854775807,
    "FL_TEXT_NGRAM_MOST": 8,
    "FL_TEXT_TREE_MAX": 1000,
    "FL_TEXT_LETTERS": 62,
    "FL_TEXT_MARKS": 448,
    "FL_TEXT_NUMBERS": 3584,
    "FL_TEXT_PUNCTUATION": 520192,
    "FL_TEXT_PARTS": 18,
    "FL_VISION_MAX_SIDE": 65500,
    "FL_VISION_MAX_PIXELS": 178956970,
    "FL_OP_neg": 1,
    "FL_OP_abs": 2,
    "FL_OP_exp": 3,
    "FL_OP_log": 4,
    "FL_OP_log1p": 5,
    "FL_OP_expm1": 6,
    "FL_OP_sqrt": 7,
    "FL_OP_sin": 8,
    "FL_OP_cos": 9,
    "FL_OP_tanh": 10,
    "FL_OP_erf": 11,
    "FL_OP_floor": 12,
    "FL_OP_rint": 13,
    "FL_OP_bitwise_not": 14,
    "FL_OP_ceil": 15,
    "FL_OP_trunc": 16,
    "FL_OP_frac": 17,
    "FL_OP_square": 18,
    "FL_OP_reciprocal": 19,
    "FL_OP_rsqrt": 20,
    "FL_OP_sign": 21,
    "FL_OP_deg2rad": 22,
    "FL_OP_rad2deg": 23,
    "FL_OP_exp2": 24,
    "FL_OP_log2": 25,
    "FL_OP_log10": 26,
    "FL_OP_tan": 27,
    "FL_OP_asin": 28,
    "FL_OP_acos": 29,
    "FL_OP_atan": 30,
    "FL_OP_sinh": 31,
    "FL_OP_cosh": 32,
    "FL_OP_asinh": 33,
    "FL_OP_acosh": 34,
    "FL_OP_atanh": 35,
    "FL_OP_sinc": 36,
    "FL_OP_logit": 37,
    "FL_OP_relu": 38,
    "FL_OP_sigmoid": 39,
    "FL_OP_silu": 40,
    "FL_OP_softplus": 41,
    "FL_OP_gelu": 42,
    "FL_OP_gelu_tanh": 43,
    "FL_OP_relu6": 44,
    "FL_OP_hardsigmoid": 45,
    "FL_OP_hardswish": 46,
    "FL_OP_mish": 47,
    "FL_OP_selu": 48,
    "FL_OP_softsign": 49,
    "FL_OP_logsigmoid": 50,
    "FL_OP_tanhshrink": 51,
    "FL_OP_isnan": 52,
    "FL_OP_isfinite": 53,
    "FL_OP_isinf": 54,
    "FL_OP_isposinf": 55,
    "FL_OP_isneginf": 56,
    "FL_OP_signbit": 57,
    "FL_OP_logical_not": 58,
    "FL_OP_add": 59,
    "FL_OP_sub": 60,
    "FL_OP_mul": 61,
    "FL_OP_div": 62,
    "FL_OP_pow": 63,
    "FL_OP_remainder": 64,
    "FL_OP_atan2": 65,
    "FL_OP_maximum": 66,
    "FL_OP_minimum": 67,
    "FL_OP_eq": 68,
    "FL_OP_lt": 69,
    "FL_OP_le": 70,
    "FL_OP_bitwise_and": 71,
    "FL_OP_bitwise_or": 72,
    "FL_OP_bitwise_xor": 73,
    "FL_OP_shift_left": 74,
    "FL_OP_shift_right": 75,
    "FL_OP_fmod": 76,
    "FL_OP_fmax": 77,
    "FL_OP_fmin": 78,
    "FL_OP_copysign": 79,
    "FL_OP_heaviside": 80,
    "FL_OP_ldexp": 81,
    "FL_OP_xlogy": 82,
    "FL_OP_logaddexp": 83,
    "FL_OP_logaddexp2": 84,
    "FL_OP_prelu": 85,
    "FL_OP_ne": 86,
    "FL_OP_gt": 87,
    "FL_OP_ge": 88,
    "FL_OP_logical_and": 89,
    "FL_OP_logical_or": 90,
    "FL_OP_logical_xor": 91,
    "FL_OP_copy": 92,
    "FL_OP_fill": 93,
    "FL_OP_iota": 94,
    "FL_OP_random": 95,
    "FL_OP_where": 96,
    "FL_OP_sum": 97,
    "FL_OP_prod": 98,
    "FL_OP_amax": 99,
    "FL_OP_amin": 100,
    "FL_OP_argmax": 101,
    "FL_OP_argmin": 102,
    "FL_OP_cumsum": 103,
    "FL_OP_cumprod": 104,
    "FL_OP_gather": 105,
    "FL_OP_scatter_add": 106,
    "FL_OP_scatter": 107,
    "FL_OP_sort": 108,
    "FL_OP_nonzero": 109,
    "FL_OP_matmul": 110,
    "FL_OP_conv2d": 111,
    "FL_OP_conv2d_grad_input": 112,
    "FL_OP_conv2d_grad_weight": 113,
    "FL_OP_grad1": 114,
    "FL_OP_grad2": 115,
    "FL_TABLE_OPS": 116,
    "FL_MAX_OPS": 512,
    "FL_CLASS_NONE": 0,
    "FL_CLASS_FLOAT": 1,
    "FL_CLASS_NUM": 2,
    "FL_CLASS_ANY": 3,
    "FL_CLASS_INT": 4,
    "FL_CLASS_CMP": 5,
    "FL_CLASS_BOOL": 6,
    "FL_PROGRAM_Y": 0,
    "FL_PROGRAM_DA": 1,
    "FL_PROGRAM_DB": 2,
    "FL_PROGRAM_DA_DB": 3,
    "FL_UNIFORM": 0,
    "FL_NORMAL": 1,
    "FL_INTEGER": 2,
    "FL_DECLINED": 0,
    "FL_TAKEN": 1,
    "FL_FAILED": 2,
    "FL_SLOT_CONTIGUOUS": 1,
    "FL_SLOT_NARROW": 2,
    "FL_SLOT_BLOCKS": 4,
    "FL_OP_NONE": 0,
    "FL_READ": 1,
    "FL_WRITE": 2,
    "FL_ON_DEVICE": 4,
    "FL_DLPACK_MAJOR": 1,
    "FL_DLPACK_MINOR": 0,
    "FL_DLPACK_READ_ONLY": 1,
    "FL_DATA_READ": 0,
    "FL_DATA_REPLACE": 1,
    "FL_DATA_APPEND": 2,
    "FL_DATA_JSON_ERROR": 0,
    "FL_DATA_JSON_END": 1,
    "FL_DATA_JSON_OBJECT": 2,
    "FL_DATA_JSON_OBJECT_END": 3,
    "FL_DATA_JSON_ARRAY": 4,
    "FL_DATA_JSON_ARRAY_END": 5,
    "FL_DATA_JSON_KEY": 6,
    "FL_DATA_JSON_STRING": 7,
    "FL_DATA_JSON_NUMBER": 8,
    "FL_DATA_JSON_TRUE": 9,
    "FL_DATA_JSON_FALSE": 10,
    "FL_DATA_JSON_NULL": 11,
    "FL_DATA_PLAIN": 0,
    "FL_DATA_GZIP": 1,
    "FL_DATA_DEFLATE": 2,
    "FL_DIST_NONE": 0,
    "FL_DIST_ALL_REDUCE": 1,
    "FL_DIST_ALL_GATHER": 2,
    "FL_DIST_REDUCE_SCATTER": 3,
    "FL_DIST_BROADCAST": 4,
    "FL_DIST_REDUCE": 5,
    "FL_DIST_GATHER": 6,
    "FL_DIST_SCATTER": 7,
    "FL_DIST_ALL_TO_ALL": 8,
    "FL_DIST_SEND": 9,
    "FL_DIST_RECV": 10,
    "FL_DIST_BARRIER": 11,
    "FL_DIST_KINDS": 12,
    "FL_DIST_SUM": 0,
    "FL_DIST_AVG": 1,
    "FL_DIST_MIN": 2,
    "FL_DIST_MAX": 3,
    "FL_DIST_AND": 4,
    "FL_DIST_OR": 5,
    "FL_DIST_REDUCTIONS": 6,
    "FL_DIST_FAILED": 0,
    "FL_DIST_DONE": 1,
    "FL_DIST_SCALED": 2,
    "FL_DIST_DECLINED": 3,
    "FL_DIST_SHORT": 262144,
    "FL_DIST_OK": 0,
    "FL_DIST_DEATH": 1,
    "FL_DIST_STALL": 2,
    "FL_DIST_MISMATCH": 3,
    "FL_DIST_ERROR": 4,
    "FL_DIST_LEFT": 5,
    "FL_DIST_TIMEOUT": 6,
    "FL_DIST_BROKEN": 7,
    "FL_COMPILE_NEVER": 0,
    "FL_COMPILE_LATER": 1,
    "FL_COMPILE_NOW": 2,
    "FL_GRAPH_INPUT": 0,
    "FL_GRAPH_PARAMETER": 1,
    "FL_GRAPH_STATE": 2,
    "FL_GRAPH_CONSTANT": 3,
    "FL_GRAPH_OUTPUT": 4,
    "FL_GRAPH_TEMPORARY": 5,
    "FL_RESIDENT": 0,
    "FL_EVICTED": 1,
    "FL_LAZY": 2,
    "FL_DTYPE_NONE": 0,
    "FL_B8": 1,
    "FL_U8": 2,
    "FL_I8": 3,
    "FL_I16": 4,
    "FL_I32": 5,
    "FL_I64": 6,
    "FL_U16": 7,
    "FL_U32": 8,
    "FL_U64": 9,
    "FL_F16": 10,
    "FL_BF16": 11,
    "FL_F32": 12,
    "FL_F64": 13,
    "FL_DTYPE_COUNT": 14,
    "FL_LOG_DEBUG": 0,
    "FL_LOG_INFO": 1,
    "FL_LOG_WARN": 2,
    "FL_LOG_ERROR": 3,
    "FL_LOG_OFF": 4,
    "FL_AUTOCAST_NONE": 0,
    "FL_AUTOCAST_NARROW": 1,
    "FL_AUTOCAST_WIDE": 2,
    "FL_AUTOCAST_WIDEST": 3,
    "FL_FFT_BACKWARD": 0,
    "FL_FFT_ORTHO": 1,
    "FL_FFT_FORWARD": 2,
    "FL_NEAREST": 0,
    "FL_LINEAR": 1,
    "FL_CUBIC": 2,
    "FL_AREA": 3,
    "FL_NEAREST_EXACT": 4,
    "FL_GRID_ZEROS": 0,
    "FL_GRID_BORDER": 1,
    "FL_GRID_REFLECT": 2,
    "FL_SCATTER_SUM": 0,
    "FL_SCATTER_PROD": 1,
    "FL_SCATTER_MEAN": 2,
    "FL_SCATTER_AMAX": 3,
    "FL_SCATTER_AMIN": 4,
    "FL_MEAN": 0,
    "FL_SUM": 1,
    "FL_NONE": 2,
    "FL_PAD_CONSTANT": 0,
    "FL_PAD_EDGE": 1,
    "FL_PAD_REFLECT": 2,
    "FL_PAD_SYMMETRIC": 3,
    "FL_PAD_CIRCULAR": 4,
    "FL_ROTARY_LINEAR": 0,
    "FL_ROTARY_LLAMA3": 1,
    "FL_ROTARY_YARN": 2,
    "FL_QUANTILE_LINEAR": 0,
    "FL_QUANTILE_LOWER": 1,
    "FL_QUANTILE_HIGHER": 2,
    "FL_QUANTILE_NEAREST": 3,
    "FL_QUANTILE_MIDPOINT": 4,
    "FL_OPTIM_STATES": 8,
    "FL_OPTIM_HYPERS": 8,
    "FL_OPTIM_GROUPS": 16,
    "FL_LR_CONSTANT": 0,
    "FL_LR_STEP": 1,
    "FL_LR_MULTI_STEP": 2,
    "FL_LR_EXPONENTIAL": 3,
    "FL_LR_POLYNOMIAL": 4,
    "FL_LR_COSINE": 5,
    "FL_LR_COSINE_RESTARTS": 6,
    "FL_LR_INVERSE_SQRT": 7,
    "FL_LR_WSD": 8,
    "FL_LR_ONE_CYCLE": 9,
    "FL_LR_PLATEAU": 10,
    "FL_RNN_TANH": 0,
    "FL_RNN_RELU": 1,
    "FL_GRU": 2,
    "FL_LSTM": 3,
    "FL_SPEECH_S16": 0,
    "FL_SPEECH_U8": 1,
    "FL_SPEECH_S24": 2,
    "FL_SPEECH_S32": 3,
    "FL_SPEECH_F32": 4,
    "FL_SPEECH_F64": 5,
    "FL_SPEECH_MULAW": 6,
    "FL_SPEECH_ALAW": 7,
    "FL_SPEECH_S16_BIG": 8,
    "FL_SPEECH_S24_BIG": 9,
    "FL_SPEECH_S32_BIG": 10,
    "FL_SPEECH_S8": 11,
    "FL_SPEECH_MS_ADPCM": 12,
    "FL_SPEECH_IMA_ADPCM": 13,
    "FL_SPEECH_OTHER": 14,
    "FL_SPEECH_SCALE_NONE": 0,
    "FL_SPEECH_SCALE_INPUT": 1,
    "FL_SPEECH_SCALE_INPUT_SQRT": 2,
    "FL_SPEECH_SCALE_TARGET": 3,
    "FL_SPEECH_SCALE_TARGET_SQRT": 4,
    "FL_SPEECH_TOO_LONG": 0,
    "FL_SPEECH_CUT": 1,
    "FL_SPEECH_SKIP": 2,
    "FL_SPEECH_SPECTROGRAM": 0,
    "FL_SPEECH_FBANK": 1,
    "FL_SPEECH_MFCC": 2,
    "FL_SPEECH_PLP": 3,
    "FL_SPEECH_HAMMING": 0,
    "FL_SPEECH_HANN": 1,
    "FL_SPEECH_POVEY": 2,
    "FL_SPEECH_RECTANGULAR": 3,
    "FL_SPEECH_BLACKMAN": 4,
    "FL_SPEECH_HANN_PERIODIC": 5,
    "FL_SPEECH_SNIP": 0,
    "FL_SPEECH_MIRROR": 1,
    "FL_SPEECH_ZEROS": 2,
    "FL_SPEECH_REFLECT": 3,
    "FL_SPEECH_MEL": 0,
    "FL_SPEECH_MEL_1127": 1,
    "FL_SPEECH_SLANEY": 2,
    "FL_SPEECH_LINEAR": 3,
    "FL_SPEECH_LOG10": 4,
    "FL_SPEECH_NO_LOG": 0,
    "FL_SPEECH_LN": 1,
    "FL_SPEECH_LG": 2,
    "FL_SPEECH_DB": 3,
    "FL_SPEECH_NO_ENERGY": 0,
    "FL_SPEECH_ENERGY_FIRST": 1,
    "FL_SPEECH_ENERGY_LAST": 2,
    "FL_SPEECH_NO_SMEARING": 0,
    "FL_SPEECH_SMEAR_MAX": 1,
    "FL_SPEECH_SMEAR_LOGADD": 2,
    "FL_ENERGY_NONE": 0,
    "FL_ENERGY_RAW": 1,
    "FL_ENERGY_WINDOWED": 2,
    "FL_SPEECH_VAD_RATE": 16000,
    "FL_SPEECH_VAD_CHUNK": 512,
    "FL_PRIMITIVE_add": 0,
    "FL_PRIMITIVE_sub": 1,
    "FL_PRIMITIVE_mul": 2,
    "FL_PRIMITIVE_div": 3,
    "FL_PRIMITIVE_neg": 4,
    "FL_PRIMITIVE_abs": 5,
    "FL_PRIMITIVE_exp": 6,
    "FL_PRIMITIVE_log": 7,
    "FL_PRIMITIVE_log1p": 8,
    "FL_PRIMITIVE_expm1": 9,
    "FL_PRIMITIVE_sqrt": 10,
    "FL_PRIMITIVE_sin": 11,
    "FL_PRIMITIVE_cos": 12,
    "FL_PRIMITIVE_tanh": 13,
    "FL_PRIMITIVE_erf": 14,
    "FL_PRIMITIVE_atan2": 15,
    "FL_PRIMITIVE_pow": 16,
    "FL_PRIMITIVE_remainder": 17,
    "FL_PRIMITIVE_maximum": 18,
    "FL_PRIMITIVE_minimum": 19,
    "FL_PRIMITIVE_floor": 20,
    "FL_PRIMITIVE_rint": 21,
    "FL_PRIMITIVE_lt": 22,
    "FL_PRIMITIVE_le": 23,
    "FL_PRIMITIVE_eq": 24,
    "FL_PRIMITIVE_bitwise_and": 25,
    "FL_PRIMITIVE_bitwise_or": 26,
    "FL_PRIMITIVE_bitwise_xor": 27,
    "FL_PRIMITIVE_bitwise_not": 28,
    "FL_PRIMITIVE_shift_left": 29,
    "FL_PRIMITIVE_shift_right": 30,
    "FL_PRIMITIVE_where": 31,
    "FL_PRIMITIVE_COUNT": 32,
    "FL_FORMULA_INPUTS": 20,
    "FL_FORMULA_OUTPUTS": 4,
    "FL_FORMULA_REGISTERS": 12,
    "FL_FORMULA_CONSTANTS": 16,
    "FL_FORMULA_STEPS": 64,
    "FL_FORMULA_LETS": 4,
    "FL_FORMULA_REGISTER": 20,
    "FL_FORMULA_OUTPUT": 32,
    "FL_FORMULA_CONSTANT": 36,
    "FL_FORMULA_OPERANDS": 52,
    "FL_FORMULA_VALUE": 64,
    "FL_FORMULA_VALUES": 128,
    "FL_LM_TRANSFORMER": 0,
    "FL_LM_GCNN": 1,
    "FL_LM_LSTM": 2,
    "FL_LM_LEARNED": 0,
    "FL_LM_ROTARY": 1,
    "FL_LM_SINUSOID": 2,
    "FL_LM_NO_POSITION": 3,
    "FL_TEXT_GGUF_KEYS": 24,
    "FL_TEXT_NORMAL": 1,
    "FL_TEXT_UNKNOWN": 2,
    "FL_TEXT_CONTROL": 3,
    "FL_TEXT_USER": 4,
    "FL_TEXT_UNUSED": 5,
    "FL_TEXT_BYTE": 6,
    "FL_TEXT_LONGEST_FIRST": 0,
    "FL_TEXT_ONLY_FIRST": 1,
    "FL_TEXT_ONLY_SECOND": 2,
    "FL_TEXT_CN": 0,
    "FL_TEXT_LU": 1,
    "FL_TEXT_LL": 2,
    "FL_TEXT_LT": 3,
    "FL_TEXT_LM": 4,
    "FL_TEXT_LO": 5,
    "FL_TEXT_MN": 6,
    "FL_TEXT_MC": 7,
    "FL_TEXT_ME": 8,
    "FL_TEXT_ND": 9,
    "FL_TEXT_NL": 10,
    "FL_TEXT_NO": 11,
    "FL_TEXT_PC": 12,
    "FL_TEXT_PD": 13,
    "FL_TEXT_PS": 14,
    "FL_TEXT_PE": 15,
    "FL_TEXT_PI": 16,
    "FL_TEXT_PF": 17,
    "FL_TEXT_PO": 18,
    "FL_TEXT_SM": 19,
    "FL_TEXT_SC": 20,
    "FL_TEXT_SK": 21,
    "FL_TEXT_SO": 22,
    "FL_TEXT_ZS": 23,
    "FL_TEXT_ZL": 24,
    "FL_TEXT_ZP": 25,
    "FL_TEXT_CC": 26,
    "FL_TEXT_CF": 27,
    "FL_TEXT_CS": 28,
    "FL_TEXT_CO": 29,
    "FL_TEXT_WHITE_SPACE": 32,
    "FL_ANOMALY_NAN": 1,
    "FL_ANOMALY_INF": 2,
    "FL_COST_NESTED": 64,
    "FL_VISION_IOUS": 10,
    "FL_VISION_RECALLS": 101,
    "FL_VISION_AREAS": 4,
    "FL_VISION_LIMITS": 3,
    "FL_VISION_XYXY": 0,
    "FL_VISION_XYWH": 1,
    "FL_VISION_CXCYWH": 2,
    "FL_VISION_RGB": 0,
    "FL_VISION_GREY": 1,
    "FL_VISION_RGBA": 2,
    "FL_VISION_ASIS": 3,
    "FL_VISION_TORCHVISION": 0,
    "FL_VISION_TIMM": 1,
    "FL_VISION_HUGGING_FACE": 2,
    "FL_VISION_TRANSFORM_PARAMS": 8,
    "FL_VISION_BILINEAR": 0,
    "FL_VISION_BICUBIC": 1,
    "FL_VISION_BOX": 2,
    "FL_VISION_LANCZOS": 3,
    "FL_VISION_IDENTITY": 0,
    "FL_VISION_BRIGHTNESS": 1,
    "FL_VISION_CONTRAST": 2,
    "FL_VISION_SATURATION": 3,
    "FL_VISION_SHARPNESS": 4,
    "FL_VISION_HUE": 5,
    "FL_VISION_GRAYSCALE": 6,
    "FL_VISION_POSTERIZE": 7,
    "FL_VISION_SOLARIZE": 8,
    "FL_VISION_SOLARIZE_ADD": 9,
    "FL_VISION_AUTOCONTRAST": 10,
    "FL_VISION_EQUALIZE": 11,
    "FL_VISION_INVERT": 12,
    "FL_VISION_ROTATE": 13,
    "FL_VISION_SHEAR_X": 14,
    "FL_VISION_SHEAR_Y": 15,
    "FL_VISION_TRANSLATE_X": 16,
    "FL_VISION_TRANSLATE_Y": 17,
    "FL_VISION_BLUR": 18,
}
_VARIABLES = {  # public variables
    "fl_op_glu": "fl_op",
    "fl_op_glu_grad": "fl_op",
    "fl_op_attention": "fl_op",
    "fl_op_attention_grad": "fl_op",
    "fl_op_conv2d_bias": "fl_op",
    "fl_op_concat": "fl_op",
    "fl_op_ctc": "fl_op",
    "fl_op_ctc_grad": "fl_op",
    "fl_op_lu_factor": "fl_op",
    "fl_op_solve": "fl_op",
    "fl_op_solve_triangular": "fl_op",
    "fl_op_cholesky": "fl_op",
    "fl_op_qr": "fl_op",
    "fl_op_svd": "fl_op",
    "fl_op_eigh": "fl_op",
    "fl_op_eig": "fl_op",
    "fl_op_fft": "fl_op",
    "fl_op_formula": "fl_op",
    "fl_op_resample": "fl_op",
    "fl_op_linear": "fl_op",
    "fl_op_linear_grad": "fl_op",
    "fl_op_linear_packed": "fl_op",
    "fl_op_cross_entropy": "fl_op",
    "fl_op_cross_entropy_grad": "fl_op",
    "fl_op_layer_norm": "fl_op",
    "fl_op_layer_norm_grad": "fl_op",
    "fl_op_batch_norm": "fl_op",
    "fl_op_batch_norm_grad": "fl_op",
    "fl_op_batch_statistics": "fl_op",
    "fl_op_group_norm": "fl_op",
    "fl_op_group_norm_grad": "fl_op",
    "fl_op_add_layer_norm": "fl_op",
    "fl_op_max_pool2d": "fl_op",
    "fl_op_max_pool2d_grad": "fl_op",
    "fl_op_avg_pool2d": "fl_op",
    "fl_op_avg_pool2d_grad": "fl_op",
    "fl_op_dropout": "fl_op",
    "fl_op_rnn": "fl_op",
    "fl_op_rnn_grad": "fl_op",
    "fl_op_softmax": "fl_op",
    "fl_op_softmax_grad": "fl_op",
    "fl_op_log_softmax": "fl_op",
    "fl_op_log_softmax_grad": "fl_op",
    "fl_op_step": "fl_op",
    "fl_op_sum_squares": "fl_op",
    "fl_op_asg": "fl_op",
    "fl_op_asg_grad": "fl_op",
    "fl_op_transducer": "fl_op",
    "fl_op_transducer_grad": "fl_op",
    "fl_op_spectrum": "fl_op",
    "fl_op_deform_columns": "fl_op",
    "fl_op_deform_columns_grad": "fl_op",
    "fl_op_roi_align": "fl_op",
}
_FUNCTIONS = {  # result and arguments
    "fv_const": "fl_var* (fl_tensor* t)",
    "fv_param": "fl_var* (fl_tensor* t)",
    "fv_num": "fl_var* (double value)",
    "fv_value": "fl_tensor* (fl_var* x)",
    "fv_grad": "fl_tensor* (fl_var* x)",
    "fv_detach": "fl_var* (fl_var* x)",
    "fv_keep": "fl_var* (fl_var* x)",
    "fv_drop": "void (fl_var* x)",
    "fv_scope_return": "fl_var* (fl_scope* s, fl_var* x)",
    "fv_zero_grad": "void (fl_var* x)",
    "fv_set_grad": "bool (fl_var* x, fl_var* g)",
    "fv_hook": "int (fl_var* x, fv_hook_fn fn, void* user)",
    "fv_unhook": "void (fl_var* x, int hook)",
    "fv_list_of": "fv_list (count n, fl_var*[] v)",
    "fv_check_list": "bool (char* fn, char* what, fv_list list)",
    "fv_record": "fl_var* (fl_tensor* value, fl_back_fn back, fv_list in, fv_list saved)",
    "fv_record_args": "fl_var* (char* name, fl_tensor* value, fl_back_fn back, fv_list in, fv_list saved, void* args, size_t bytes)",
    "fv_record_opt": "fl_var* (fl_tensor* value, fv_record_opts* o)",
    "fv_record_several": "bool (count n, fl_tensor*[] value, fl_var** y, fv_record_opts* o)",
    "fv_recomputed": "bool (fl_var* x)",
    "fv_record_op": "fl_var* (fl_op op, fl_tensor* value, fv_list in, fv_list saved, void* args)",
    "fv_record_formula": "fl_var* (fl_op op, fl_var* x, fl_tensor* value)",
    "fv_formula_reads_x": "bool (fl_op op)",
    "fv_saved": "fl_var* (fl_node* n, int i)",
    "fv_args": "void* (fl_node* n)",
    "fv_in_count": "int (fl_node* n)",
    "fv_saved_count": "int (fl_node* n)",
    "fv_op": "fl_op (fl_node* n)",
    "fv_needs": "bool (fl_node* n, int i)",
    "fv_in_shape": "fl_shape (fl_node* n, int i)",
    "fv_grad_of": "fl_var* (fl_node* n, int k)",
    "fv_own_grad": "fl_tensor* (fl_node* n, fl_var* dy)",
    "fv_add_grad": "void (fl_node* n, int i, fl_var* g)",
    "fv_add_grad_part": "bool (fl_node* n, int i, fl_var* g, fv_part_fn part)",
    "fv_node_name": "char* (fl_node* n)",
    "fv_in_node": "fl_node* (fl_node* n, int i)",
    "fv_leaf_of": "fl_var* (fl_node* n)",
    "fv_node_provenance": "char* (fl_node* n)",
    "fl_backward_opt": "bool (fl_var* root, fl_backward_opts o)",
    "fl_grad": "fl_var* (fl_var* root, fl_var* x, bool create_graph)",
    "fl_grads_opt": "bool (fv_list outputs, fv_list inputs, fl_var** grads, fl_grads_opts o)",
    "fv_watch": "void (fv_watcher* w)",
    "fv_unwatch": "void (fv_watcher* w)",
    "fl_no_grad": "bool (bool on)",
    "fl_grad_enabled": "bool ()",
    "fl_set_recompute": "int64_t (int64_t bytes)",
    "fl_op_register": "fl_op (fl_op_info* info)",
    "fl_op_count": "int ()",
    "fl_op_get_info": "fl_op_info* (fl_op op)",
    "fl_op_by_name": "fl_op (char* name)",
    "fl_op_uses": "bool (fl_op op, fl_op part)",
    "fl_op_grad_uses": "bool (fl_op op, int i, fl_op part)",
    "fl_op_grad_steps": "int (fl_op op, int i)",
    "fl_op_rng": "fl_rng* (fl_op op, void* args)",
    "fl_op_program": "fl_formula* (fl_op op, fl_program which)",
    "fl_primitive_op": "fl_op (fl_primitive primitive)",
    "fl_call_run": "bool (fl_call* c)",
    "fl_out_on": "fl_tensor* (int backend, fl_shape shape, fl_dtype dtype)",
    "fl_call_hook": "fl_call_hooks (fl_call_hook_fn before, fl_call_hook_fn after, void* user)",
    "fl_watch_calls": "void (fl_call_watcher* w)",
    "fl_unwatch_calls": "void (fl_call_watcher* w)",
    "fl_take_calls": "fl_taker* (fl_taker* t)",
    "fl_call_run_taken": "bool (fl_call* c, uint64_t state)",
    "fl_call_state": "uint64_t ()",
    "fl_backend_cpu": "fl_backend* ()",
    "fl_backend_use": "bool (fl_backend* b, fl_backend* old)",
    "fl_backend_set": "bool (fl_backend* b, fl_op op, fl_slot slot, unsigned flags)",
    "fl_backend_override": "bool (fl_backend* b, fl_op op, fl_slot slot)",
    "fl_backend_at": "fl_backend* (int backend)",
    "fl_out_make": "bool (fl_tensor* out)",
    "fl_cpu_loop": "bool (fl_call* c, fl_cpu_loop.loop loop, void* arg)",
    "fl_same_backend": "bool (char* fn, fl_tensor* a, fl_tensor* b)",
    "fl_axis_of": "int (char* fn, fl_tensor* t, int axis)",
    "fl_own_axis_of": "int (char* fn, fl_tensor* t, int axis)",
    "fl_compute_dtype": "fl_dtype (fl_op_class cls, fl_dtype d)",
    "fl_is_narrow": "bool (fl_tensor* t)",
    "fl_operand": "fl_tensor* (fl_tensor* t, fl_dtype d)",
    "fl_materialise": "fl_tensor* (fl_tensor* t)",
    "fl_constant": "fl_tensor* (double value)",
    "fl_out_like": "fl_tensor* (fl_tensor* t, fl_dtype dtype)",
    "fl_out_layout_like": "fl_tensor* (fl_tensor* out, fl_tensor* t)",
    "fl_out_order_as": "fl_tensor* (fl_tensor* out, fl_tensor* t)",
    "fl_axes_by_stride": "void (fl_tensor* t, int* order)",
    "fl_view_of": "fl_tensor* (fl_tensor* t, fl_shape shape, int64_t[] stride, int64_t offset)",
    "fl_out_allocate": "bool (fl_tensor* t)",
    "fl_call_result": "fl_tensor* (fl_call* c)",
    "fl_call_into": "fl_tensor* (fl_op op, fl_tensor* y, fl_tensor* a, fl_tensor* b, void* args)",
    "fl_call_compose": "bool (fl_call* c)",
    "fl_unary_op": "fl_tensor* (fl_op op, fl_tensor* x)",
    "fl_binary_op": "fl_tensor* (fl_op op, fl_tensor* a, fl_tensor* b)",
    "fl_formula_value": "fl_tensor* (fl_formula* f, fl_tensor*[] in)",
    "fl_out_new": "fl_tensor* (char* fn, fl_shape shape, fl_dtype dtype, fl_dtype otherwise)",
    "fl_cuda_slot": "bool (fl_backend* self, fl_call* c, fl_slot body)",
    "fl_cuda_set": "bool (fl_op op, fl_slot slot, unsigned flags)",
    "fl_cuda_stream": "void* ()",
    "fl_cuda_launched": "bool (fl_call* c, int error)",
    "fl_cuda_launch": "bool (fl_call* c, char* source, char* name, int64_t blocks, int threads, void** args)",
    "fl_shape_numel": "int64_t (fl_shape s)",
    "fl_shape_text": "char* (fl_shape s, char* buf, size_t size)",
    "fl_shape_of": "fl_shape (fl_tensor* t)",
    "fl_numel": "int64_t (fl_tensor* t)",
    "fl_is_contiguous": "bool (fl_tensor* t)",
    "fl_is_channels_last": "bool (fl_tensor* t)",
    "fl_is_dense": "bool (fl_tensor* t)",
    "fl_backend_name": "char* (fl_tensor* t)",
    "fl_version_of": "uint32_t (fl_tensor* t)",
    "fl_keep": "fl_tensor* (fl_tensor* t)",
    "fl_drop": "void (fl_tensor* t)",
    "fl_live_tensors": "int64_t ()",
    "fl_obj_new": "void* (size_t size, fl_obj_new.drop drop)",
    "fl_obj_free": "void (fl_obj* o)",
    "fl_obj_keep": "void (fl_obj* o)",
    "fl_obj_drop": "void (fl_obj* o)",
    "fl_obj_steal": "void (fl_obj* o)",
    "fl_scope_adopt": "bool (fl_obj* o)",
    "fl_scope_begin": "fl_scope ()",
    "fl_scope_end": "void (fl_scope* s)",
    "fl_scope_return": "fl_tensor* (fl_scope* s, fl_tensor* t)",
    "fl_scope_escape": "void* (fl_scope* s, void* o)",
    "fl_scope_size": "int64_t ()",
    "fl_scope_depth": "int64_t ()",
    "fl_scope_of": "fl_scope (char* fn)",
    "fl_scope_in": "fl_scope (void* of, fl_scope_in.describe describe)",
    "fl_scope_at": "fl_scope (fl_error_context* place)",
    "fl_call_stack": "int (fl_call_frame* places, int most)",
    "fl_provenance_enable": "void (int delta)",
    "fl_provenance_here": "fl_provenance* ()",
    "fl_persistent": "bool (bool on)",
    "fl_flags": "uint64_t ()",
    "fl_set_flags": "void (uint64_t flags)",
    "fl_stream": "int (int n)",
    "fl_option": "double (double value, double otherwise)",
    "fl_option_int": "int64_t (int64_t value, int64_t otherwise)",
    "fl_empty": "fl_tensor* (fl_shape shape, fl_dtype dtype)",
    "fl_empty_on": "fl_tensor* (char* backend, fl_shape shape, fl_dtype dtype)",
    "fl_full": "fl_tensor* (fl_shape shape, double value, fl_dtype dtype)",
    "fl_zeros": "fl_tensor* (fl_shape shape, fl_dtype dtype)",
    "fl_ones": "fl_tensor* (fl_shape shape, fl_dtype dtype)",
    "fl_empty_like": "fl_tensor* (fl_tensor* t)",
    "fl_full_like": "fl_tensor* (fl_tensor* t, double value)",
    "fl_new_full": "fl_tensor* (fl_tensor* t, fl_shape shape, double value)",
    "fl_from_host": "fl_tensor* (void* data, fl_shape shape, fl_dtype dtype)",
    "fl_num": "fl_tensor* (double value)",
    "fl_int": "fl_tensor* (int64_t value)",
    "fl_to": "fl_tensor* (fl_tensor* t, char* backend)",
    "fl_map": "void* (fl_tensor* t, int access)",
    "fl_unmap": "void (fl_tensor* t, int access)",
    "fl_host_reads": "int64_t ()",
    "fl_to_host": "bool (fl_tensor* t, void* dst, size_t bytes)",
    "fl_set_host": "bool (fl_tensor* t, void* src, size_t bytes)",
    "fl_item": "double (fl_tensor* t)",
    "fl_item_int": "int64_t (fl_tensor* t)",
    "fl_number_load": "fl_number (fl_dtype d, void* p)",
    "fl_number_store": "void (fl_dtype d, void* p, fl_number v)",
    "fl_cpu_level": "char* ()",
    "fl_backend_strict": "bool (bool on)",
    "fl_backend_fallbacks": "int64_t ()",
    "fl_backend_set_default": "bool (char* name)",
    "fl_backend_default": "int ()",
    "fl_backend_index": "int (char* name)",
    "fl_backend_name_of": "char* (int i)",
    "fl_backend_has": "bool (int backend, fl_op op)",
    "fl_op_name": "char* (fl_op op)",
    "fl_sync": "bool (fl_tensor* t)",
    "fl_is_async": "bool (fl_tensor* t)",
    "fl_text_of_shape": "fl_str200 (fl_shape s)",
    "fl_is_null_arg": "bool (char* fn, void* p)",
    "fl_is_dropped": "bool (char* fn, void* p)",
    "fl_is_writable": "bool (char* fn, fl_tensor* t)",
    "fl_same_shape": "bool (fl_tensor* a, fl_tensor* b)",
    "fl_shape_is": "bool (fl_tensor* t, fl_shape s)",
    "fl_broadcast_shape": "bool (fl_shape* s, fl_tensor* t)",
    "fl_result_type": "fl_dtype (count n, fl_tensor*[] t)",
    "fv_cast": "fl_var* (fl_var* x, fl_dtype dtype)",
    "fv_expand": "fl_var* (fl_var* x, fl_shape shape)",
    "fv_sum_to": "fl_var* (fl_var* x, fl_shape shape)",
    "fl_jvp": "fl_var* (fl_var* y, fl_var* x, fl_var* v, bool create_graph)",
    "fl_jvps": "bool (fv_list y, fv_list x, fv_list v, fl_var** jv, bool create_graph)",
    "fl_tape_format_opt": "int64_t (fl_var* y, char* buf, size_t size, fl_tape_opts o)",
    "fl_tape_save_opt": "bool (fl_var* y, char* path, fl_tape_opts o)",
    "fl_data_batch": "fl_data_set* (fl_data_set* set, int64_t size, bool drop_last)",
    "fl_data_batches_opt": "fl_data_set* (fl_data_set* set, fl_data_batches_opts o)",
    "fl_data_save_blob": "bool (char* path, fl_data_set* set)",
    "fl_data_open_blob": "fl_data_set* (char* path)",
    "fl_data_blob_of": "fl_data_set* (void* bytes, size_t n)",
    "fl_data_crc32c": "uint32_t (uint32_t crc, void* bytes, size_t n)",
    "fl_data_crc32": "uint32_t (uint32_t crc, void* bytes, size_t n)",
    "fl_data_csv_open_opt": "fl_data_csv* (char* path, fl_data_csv_opts o)",
    "fl_data_csv_close": "void (fl_data_csv* c)",
    "fl_data_csv_next": "bool (fl_data_csv* c)",
    "fl_data_csv_column": "int64_t (fl_data_csv* c, char* name)",
    "fl_data_csv_double": "bool (fl_data_csv* c, int64_t column, double* out)",
    "fl_data_csv_int": "bool (fl_data_csv* c, int64_t column, int64_t* out)",
    "fl_data_csv_tensor": "fl_tensor* (fl_data_csv* c, int64_t[] column, count n, fl_dtype dtype)",
    "fl_data_csv_put": "bool (fl_data_text* t, char*[] field, count64 n, char delimiter)",
    "fl_data_save_csv": "bool (char* path, char*[] names, fl_tensor* t)",
    "fl_to_dlpack": "fl_dlpack* (fl_tensor* t)",
    "fl_to_dlpack_old": "fl_dlpack_old* (fl_tensor* t)",
    "fl_from_dlpack": "fl_tensor* (fl_dlpack* d)",
    "fl_from_dlpack_old": "fl_tensor* (fl_dlpack_old* d)",
    "fl_data_edits_add": "bool (fl_data_edits* m, int64_t[] guess, count64 n, int64_t[] target, int64_t n_target)",
    "fl_data_edits_add_tensor": "bool (fl_data_edits* m, fl_tensor* guess, fl_tensor* target)",
    "fl_data_edits_merge": "void (fl_data_edits* m, fl_data_edits* other)",
    "fl_data_edits_percent": "double (fl_data_edits* m)",
    "fl_data_align": "int64_t (int64_t[] guess, count64 n, int64_t[] target, int64_t n_target, fl_data_aligned* out)",
    "fl_data_io_system": "fl_data_io* ()",
    "fl_data_io_use": "void (fl_data_io* io)",
    "fl_data_stream_open": "bool (fl_data_stream* f, char* who, char* path, fl_data_mode mode)",
    "fl_data_stream_read": "bool (fl_data_stream* f, void* dst, size_t n, int64_t at)",
    "fl_data_stream_write": "bool (fl_data_stream* f, void* src, size_t n, int64_t at)",
    "fl_data_exists": "int (char* who, char* path)",
    "fl_data_ends": "bool (char* name, char* end)",
    "fl_data_path_inside": "bool (char* path, size_t n)",
    "fl_data_remove": "void (char* path)",
    "fl_data_stream_fail": "bool (fl_data_stream* f, char* what)",
    "fl_data_folder_names": "bool (char* who, char* path, fl_data_name_fn each, void* arg)",
    "fl_data_replace_begin": "bool (fl_data_replacement* r, char* who, char* path)",
    "fl_data_replace_end": "bool (fl_data_replacement* r, bool written)",
    "fl_data_replace": "bool (char* who, char* path, void* bytes, size_t n)",
    "fl_data_host_tensor": "fl_tensor* (fl_shape shape, fl_dtype dtype)",
    "fl_data_swap_bytes": "void (void* bytes, size_t n, size_t size)",
    "fl_data_load_idx_opt": "fl_tensor* (char* path, fl_data_unpack_opts o)",
    "fl_data_json_open_opt": "fl_data_json* (char* path, fl_data_json_opts o)",
    "fl_data_json_of_opt": "fl_data_json* (void* bytes, size_t n, fl_data_json_opts o)",
    "fl_data_json_in": "fl_data_json* (fl_data_stream* f, int64_t at, int64_t n, fl_data_json_opts o)",
    "fl_data_json_close": "void (fl_data_json* j)",
    "fl_data_json_next": "fl_data_json_event (fl_data_json* j)",
    "fl_data_json_more": "bool (fl_data_json* j)",
    "fl_data_json_expect": "bool (fl_data_json* j, fl_data_json_event e)",
    "fl_data_json_string": "char* (fl_data_json* j)",
    "fl_data_json_int": "bool (fl_data_json* j, int64_t* out)",
    "fl_data_json_double": "bool (fl_data_json* j, double* out)",
    "fl_data_json_bool": "bool (fl_data_json* j, bool* out)",
    "fl_data_json_as_int": "bool (fl_data_json* j, int64_t* out)",
    "fl_data_json_as_double": "bool (fl_data_json* j, double* out)",
    "fl_data_json_skip": "bool (fl_data_json* j)",
    "fl_data_json_fail": "bool (fl_data_json* j, char* format, ...)",
    "fl_data_json_put_string": "bool (fl_data_text* t, char* text, size_t n)",
    "fl_data_json_put_double": "bool (fl_data_text* t, double x)",
    "fl_data_utf8": "size_t (char* s, size_t n)",
    "fl_data_parse_double": "bool (char* s, size_t n, double* out)",
    "fl_data_list_opt": "fl_data_set* (char* path, fl_data_read_fn read, fl_data_list_opts o)",
    "fl_data_folder_opt": "fl_data_set* (char* path, fl_data_read_fn read, fl_data_folder_opts o)",
    "fl_data_class_name": "char* (fl_data_set* folder, int64_t k)",
    "fl_data_listed_path": "bool (fl_data_set* set, int64_t i, char* buf, size_t size)",
    "fl_data_log_open": "fl_data_log* (char* path)",
    "fl_data_log_add": "bool (fl_data_log* log, int64_t step, char* name, double value)",
    "fl_data_log_text": "bool (fl_data_log* log, int64_t step, char* name, char* text)",
    "fl_data_log_histogram": "bool (fl_data_log* log, int64_t step, char* name, fl_tensor* t)",
    "fl_data_log_close": "bool (fl_data_log* log)",
    "fl_data_host_begin": "bool (fl_data_host_view* h, fl_tensor* t, fl_dtype dtype)",
    "fl_data_host_end": "void (fl_data_host_view* h)",
    "fl_data_average_add": "void (fl_data_average* m, double value, double weight)",
    "fl_data_average_add_tensor": "bool (fl_data_average* m, fl_tensor* t)",
    "fl_data_average_add_squares": "bool (fl_data_average* m, fl_tensor* a, fl_tensor* b)",
    "fl_data_average_merge": "void (fl_data_average* m, fl_data_average* other)",
    "fl_data_average_variance": "double (fl_data_average* m)",
    "fl_data_counts_add": "bool (fl_data_counts* m, int index, int64_t n)",
    "fl_data_counts_merge": "bool (fl_data_counts* m, fl_data_counts* other)",
    "fl_data_timer_start": "void (fl_data_timer* m)",
    "fl_data_timer_stop": "void (fl_data_timer* m)",
    "fl_data_timer_seconds": "double (fl_data_timer* m)",
    "fl_data_timer_per_unit": "double (fl_data_timer* m)",
    "fl_data_timer_merge": "void (fl_data_timer* m, fl_data_timer* other)",
    "fl_data_now": "double ()",
    "fl_data_progress_begin": "fl_data_progress (FILE* out, char* label, int64_t total)",
    "fl_data_progress_step": "void (fl_data_progress* p, int64_t done, char* format, ...)",
    "fl_data_progress_end": "void (fl_data_progress* p)",
    "fl_data_close": "void (fl_data_file* f)",
    "fl_data_count": "int64_t (fl_data_file* f)",
    "fl_data_name": "char* (fl_data_file* f, int64_t i)",
    "fl_data_dtype": "fl_dtype (fl_data_file* f, int64_t i)",
    "fl_data_shape": "fl_shape (fl_data_file* f, int64_t i)",
    "fl_data_find": "int64_t (fl_data_file* f, char* name)",
    "fl_data_read": "fl_tensor* (fl_data_file* f, char* name)",
    "fl_data_meta": "char* (fl_data_file* f, char* key)",
    "fl_data_file_new": "fl_data_file* (char* who, char* path)",
    "fl_data_file_add": "fl_data_entry* (fl_data_file* f, char* name, int64_t n)",
    "fl_data_file_add_meta": "bool (fl_data_file* f, char* key, char* value)",
    "fl_data_file_ready": "bool (fl_data_file* f)",
    "fl_data_file_clear": "void (fl_data_file* f)",
    "fl_data_entry_fits": "bool (fl_data_entry* e)",
    "fl_data_entry_read": "fl_tensor* (fl_data_file* f, fl_data_entry* e)",
    "fl_data_file_map": "bool (fl_data_file* f, fl_data_file_map.verify verify)",
    "fl_data_load_npy": "fl_tensor* (char* path)",
    "fl_data_save_npy": "bool (char* path, fl_tensor* t)",
    "fl_data_open_npz_opt": "fl_data_file* (char* path, fl_data_unpack_opts o)",
    "fl_data_save_npz": "bool (char* path, fl_data_named_tensor* tensors, int n, bool deflate)",
    "fl_data_source_begin": "bool (fl_data_source* s, fl_data_stream* f, int64_t at, int64_t n, fl_data_packing packing)",
    "fl_data_source_read": "bool (fl_data_source* s, void* dst, size_t n)",
    "fl_data_source_finish": "bool (fl_data_source* s)",
    "fl_data_source_end": "void (fl_data_source* s)",
    "fl_data_may_unpack": "bool (fl_data_stream* f, int64_t bytes, fl_data_unpack_opts* o)",
    "fl_data_deflate": "int64_t (fl_data_stream* f, int64_t at, fl_data_piece* piece, int n)",
    "fl_data_curve_add": "void (fl_data_curve* c, double x, double y)",
    "fl_data_plot_print_opt": "bool (FILE* out, fl_data_curves curves, fl_data_plot_opts o)",
    "fl_data_plot_svg_opt": "bool (char* path, fl_data_curves curves, fl_data_plot_opts o)",
    "fl_data_prefetch": "fl_data_set* (fl_data_set* set, int threads, int depth)",
    "fl_data_save_safetensors": "bool (char* path, fl_data_named_tensor* tensors, int n, fl_data_key_value* meta, int n_meta)",
    "fl_data_open_safetensors": "fl_data_file* (char* path)",
    "fl_data_map_safetensors": "fl_data_file* (char* path, bool verify)",
    "fl_data_frame_error_add": "bool (fl_data_frame_error* m, fl_tensor* scores, fl_tensor* target)",
    "fl_data_top_k_add": "bool (fl_data_frame_error* m, fl_tensor* scores, fl_tensor* target, int64_t k)",
    "fl_data_frame_error_percent": "double (fl_data_frame_error* m)",
    "fl_data_accuracy_percent": "double (fl_data_frame_error* m)",
    "fl_data_frame_error_merge": "void (fl_data_frame_error* m, fl_data_frame_error* other)",
    "fl_data_confusion_add": "bool (fl_data_confusion* m, fl_tensor* scores, fl_tensor* target)",
    "fl_data_confusion_merge": "bool (fl_data_confusion* m, fl_data_confusion* other)",
    "fl_data_confusion_free": "void (fl_data_confusion* m)",
    "fl_data_confusion_class": "fl_data_f1 (fl_data_confusion* m, int64_t c)",
    "fl_data_confusion_macro": "fl_data_f1 (fl_data_confusion* m)",
    "fl_data_confusion_micro": "fl_data_f1 (fl_data_confusion* m)",
    "fl_data_roc_add": "bool (fl_data_roc* m, fl_tensor* scores, fl_tensor* target)",
    "fl_data_roc_merge": "bool (fl_data_roc* m, fl_data_roc* other)",
    "fl_data_roc_free": "void (fl_data_roc* m)",
    "fl_data_roc_auc": "double (fl_data_roc* m)",
    "fl_data_roc_average_precision": "double (fl_data_roc* m)",
    "fl_data_calibration_add": "bool (fl_data_calibration* m, fl_tensor* probabilities, fl_tensor* target)",
    "fl_data_calibration_merge": "bool (fl_data_calibration* m, fl_data_calibration* other)",
    "fl_data_calibration_error": "double (fl_data_calibration* m)",
    "fl_data_calibration_max": "double (fl_data_calibration* m)",
    "fl_data_set_new": "fl_data_set* (fl_data_set* table, fl_data_set*[] inner, count n)",
    "fl_data_inner": "fl_data_set* (fl_data_set* set, int k)",
    "fl_data_free": "void (fl_data_set* set)",
    "fl_data_size": "int64_t (fl_data_set* set)",
    "fl_data_get": "bool (fl_data_set* set, int64_t i, fl_data_sample* out)",
    "fl_data_get_many": "bool (fl_data_set* set, int64_t* index, int64_t n, fl_data_sample* out)",
    "fl_data_set_epoch": "bool (fl_data_set* set, int64_t epoch)",
    "fl_data_next": "bool (fl_data_set* set, int64_t* epoch, int64_t* index, fl_data_sample* out)",
    "fl_data_id": "int64_t (fl_data_set* set, int64_t i)",
    "fl_data_length": "int64_t (fl_data_set* set, int64_t i)",
    "fl_data_rng": "fl_rng (uint64_t seed, int64_t epoch, int64_t index)",
    "fl_data_tensors": "fl_data_set* (fl_tensor*[] tensors, count n)",
    "fl_data_callback": "fl_data_set* (int64_t size, fl_data_get_fn fn, void* user)",
    "fl_data_slice": "fl_data_set* (fl_data_set* set, int64_t offset, int64_t length)",
    "fl_data_subset": "fl_data_set* (fl_data_set* set, int64_t[] index, count64 n)",
    "fl_data_filter": "fl_data_set* (fl_data_set* set, fl_data_keep_fn keep, void* user)",
    "fl_data_shuffle": "fl_data_set* (fl_data_set* set, uint64_t seed)",
    "fl_data_sort_by_length": "fl_data_set* (fl_data_set* set, int64_t window)",
    "fl_data_shard": "fl_data_set* (fl_data_set* set, int rank, int ranks)",
    "fl_data_repeat": "fl_data_set* (fl_data_set* set, int64_t times)",
    "fl_data_concat": "fl_data_set* (fl_data_set*[] sets, count n)",
    "fl_data_zip": "fl_data_set* (fl_data_set*[] sets, count n)",
    "fl_data_lengths": "fl_data_set* (fl_data_set* set, int64_t[] length, count64 n)",
    "fl_data_transform": "fl_data_set* (fl_data_set* set, fl_data_fn fn, void* user)",
    "fl_data_to": "fl_data_set* (fl_data_set* set, char* backend)",
    "fl_data_settings_read": "bool (fl_data_settings* s, char* path, char* who)",
    "fl_data_settings_add": "bool (fl_data_settings* s, char* name, char* text)",
    "fl_data_settings_text": "char* (fl_data_settings* s, char* name)",
    "fl_data_settings_number": "double (fl_data_settings* s, char* name, double otherwise)",
    "fl_data_settings_size": "int64_t (fl_data_settings* s, char* name, int64_t otherwise)",
    "fl_data_settings_free": "void (fl_data_settings* s)",
    "fl_data_open_sharded": "fl_data_file* (char* path, bool map, bool verify)",
    "fl_data_save_sharded": "bool (char* path, fl_data_named_tensor* tensors, int n, fl_data_key_value* meta, int n_meta, int64_t max_shard)",
    "fl_data_text_put": "bool (fl_data_text* t, void* bytes, size_t n)",
    "fl_data_text_print": "bool (fl_data_text* t, char* format, ...)",
    "fl_data_arena_add": "char* (fl_data_arena* a, char* text, size_t n)",
    "fl_data_arena_free": "void (fl_data_arena* a)",
    "fl_data_archive_open": "bool (fl_data_archive* z, fl_data_stream* f)",
    "fl_data_archive_source": "bool (fl_data_member* m, fl_data_stream* f, fl_data_source* s)",
    "fl_data_archive_put": "bool (fl_data_archive* z, fl_data_stream* f, int64_t* at, char* name, fl_data_piece* piece, int n, bool deflate)",
    "fl_data_archive_finish": "bool (fl_data_archive* z, fl_data_stream* f, int64_t at)",
    "fl_data_archive_free": "void (fl_data_archive* z)",
    "fl_dist_init_opt": "fl_dist_group* (fl_dist_init_opts o)",
    "fl_dist_close": "void (fl_dist_group* d)",
    "fl_dist_rank": "int (fl_dist_group* d)",
    "fl_dist_size": "int (fl_dist_group* d)",
    "fl_dist_local_rank": "int (fl_dist_group* d)",
    "fl_dist_impl_name": "char* (fl_dist_group* d)",
    "fl_dist_split": "fl_dist_group* (fl_dist_group* d, int color, int key)",
    "fl_dist_failure": "fl_dist_failure_info (fl_dist_group* d)",
    "fl_dist_abort": "void (fl_dist_group* d, char* text)",
    "fl_dist_wait": "bool (fl_dist_work* w)",
    "fl_dist_all_reduce_opt": "bool (fl_dist_group* d, fl_tensor* t, fl_dist_opts o)",
    "fl_dist_all_reduce_multiple_opt": "bool (fl_dist_group* d, fl_tensor*[] t, count n, fl_dist_opts o)",
    "fl_dist_all_gather_opt": "bool (fl_dist_group* d, fl_tensor* out, fl_tensor* in, fl_dist_opts o)",
    "fl_dist_reduce_scatter_opt": "bool (fl_dist_group* d, fl_tensor* out, fl_tensor* in, fl_dist_opts o)",
    "fl_dist_broadcast_opt": "bool (fl_dist_group* d, fl_tensor* t, int root, fl_dist_opts o)",
    "fl_dist_reduce_opt": "bool (fl_dist_group* d, fl_tensor* t, int root, fl_dist_opts o)",
    "fl_dist_gather_opt": "bool (fl_dist_group* d, fl_tensor* out, fl_tensor* in, int root, fl_dist_opts o)",
    "fl_dist_scatter_opt": "bool (fl_dist_group* d, fl_tensor* out, fl_tensor* in, int root, fl_dist_opts o)",
    "fl_dist_all_to_all_opt": "bool (fl_dist_group* d, fl_tensor* out, fl_tensor* in, fl_dist_opts o)",
    "fl_dist_send_opt": "bool (fl_dist_group* d, fl_tensor* t, int to, fl_dist_opts o)",
    "fl_dist_recv_opt": "bool (fl_dist_group* d, fl_tensor* t, int from, fl_dist_opts o)",
    "fl_dist_barrier": "bool (fl_dist_group* d)",
    "fl_dist_sync": "bool (fl_dist_group* d)",
    "fl_dist_impl_use": "bool (fl_dist_impl* impl)",
    "fl_dist_impl_named": "fl_dist_impl* (char* name)",
    "fl_dist_now": "double ()",
    "fl_dist_kind_name": "char* (fl_dist_kind kind)",
    "fl_dist_accumulate": "void (fl_dist_reduction reduction, fl_dtype dtype, void* acc, void* in, int64_t n)",
    "fl_dist_run": "bool (fl_dist_impl* impl, void* self, int rank, int size, fl_dist_call* c)",
    "fl_dist_listen": "int (char* address, int* port)",
    "fl_dist_accept": "int (int listener, double deadline)",
    "fl_dist_connect": "int (char* address, int port, double deadline)",
    "fl_dist_socket_io": "bool (int fd, bool write, void* bytes, size_t n, double deadline)",
    "fl_dist_socket_close": "void (int fd)",
    "fl_dist_address_of": "bool (char* name, char* out, size_t size)",
    "fl_dist_connect_ranks": "bool (fl_dist_rendezvous* place, int* fd)",
    "fl_dist_data_parallel_opt": "fl_dist_model* (fl_dist_group* d, fl_nn_module* net, fl_dist_data_parallel_opts o)",
    "fl_dist_model_free": "void (fl_dist_model* m)",
    "fl_dist_no_sync": "bool (fl_dist_model* m, bool on)",
    "fl_dist_parameters": "fv_list (fl_dist_model* m)",
    "fl_dist_step": "bool (fl_dist_model* m, fl_optim* o, double max_norm)",
    "fl_dist_sync_batch_norm": "bool (fl_dist_group* d, fl_nn_module* net)",
    "fl_dist_rng_per_rank": "void (fl_dist_group* d)",
    "fl_dist_save_checkpoint": "bool (fl_dist_model* m, char* path, fl_optim* o, fl_optim_progress* at)",
    "fl_dist_load_checkpoint": "bool (fl_dist_model* m, char* path, fl_optim* o, fl_optim_progress* at)",
    "fl_graph_save_c_opt": "bool (fl_graph* g, char* path, fl_export_opts o)",
    "fl_graph_save_onnx_opt": "bool (fl_graph* g, char* path, fl_export_opts o)",
    "fl_graph_save_stablehlo_opt": "bool (fl_graph* g, char* path, fl_export_opts o)",
    "fl_compile": "fl_compile_mode (fl_compile_mode mode)",
    "fl_compile_wait": "bool ()",
    "fl_compile_stats": "fl_compile_counts ()",
    "fl_compile_print": "bool (FILE* to)",
    "fl_graph_new": "fl_graph* ()",
    "fl_graph_free": "void (fl_graph* g)",
    "fl_graph_begin": "bool (fl_graph* g)",
    "fl_graph_end": "bool (fl_graph* g)",
    "fl_graph_ready": "bool (fl_graph* g)",
    "fl_graph_reason": "char* (fl_graph* g)",
    "fl_graph_replay": "bool (fl_graph* g)",
    "fl_graph_calls": "fl_graph_list (fl_graph* g)",
    "fl_graph_print": "bool (fl_graph* g, FILE* f)",
    "fl_lazy": "bool (bool on)",
    "fl_eval": "bool ()",
    "fl_lazy_calls": "fl_graph_list ()",
    "fl_graph_use": "bool (fl_graph_pass* passes, void*[] users, count n)",
    "fl_graph_host": "bool (fl_graph_host.fn fn, void* user)",
    "fl_graph_list_print": "bool (fl_graph_list* l, FILE* f)",
    "fl_graph_call_text": "char* (fl_graph_call* c, char* buf, size_t size)",
    "fl_graph_open": "fl_graph* (fl_graph* g, char* kept)",
    "fl_graph_save_dot": "bool (fl_graph* g, char* path)",
    "fl_plan_memory": "int64_t (fl_plan_value* value, int n)",
    "fl_buffer_new": "fl_buffer* (size_t bytes, fl_mem_info* info)",
    "fl_buffer_from": "fl_buffer* (fl_mem_manager* m, size_t bytes, fl_mem_info* info)",
    "fl_buffer_new_lazy": "fl_buffer* (size_t bytes, fl_device* device, fl_buffer_new_lazy.restore restore, void* tag)",
    "fl_buffer_fill": "bool (fl_buffer* b, fl_mem_info* info)",
    "fl_buffer_keep": "fl_buffer* (fl_buffer* b)",
    "fl_buffer_drop": "void (fl_buffer* b)",
    "fl_buffer_swap": "bool (fl_buffer* a, fl_buffer* b)",
    "fl_buffer_freeze": "bool (fl_buffer* b, bool on)",
    "fl_buffer_is_frozen": "bool (fl_buffer* b)",
    "fl_buffer_cache_get": "fl_buffer* (fl_buffer* b, void* key, size_t size)",
    "fl_buffer_cache_add": "bool (fl_buffer* b, void* key, size_t size, fl_buffer* made)",
    "fl_buffer_map": "void* (fl_buffer* b)",
    "fl_buffer_unmap": "void (fl_buffer* b)",
    "fl_buffer_use": "bool (fl_buffer* b, void* stream)",
    "fl_buffer_claim": "bool (fl_buffer* b)",
    "fl_buffer_resident": "void (fl_buffer* b)",
    "fl_mem_live_buffers": "int64_t ()",
    "fl_version": "char* ()",
    "fl_mem_caching": "fl_mem_manager* ()",
    "fl_device_host": "fl_device* ()",
    "fl_dtype_register": "fl_dtype (fl_dtype_info* info)",
    "fl_dtype_registered": "fl_dtype_info* (fl_dtype d)",
    "fl_dtype_size": "size_t (fl_dtype d)",
    "fl_dtype_name": "char* (fl_dtype d)",
    "fl_dtype_by_name": "fl_dtype (char* name)",
    "fl_dtype_is_float": "bool (fl_dtype d)",
    "fl_dtype_wide": "fl_dtype (fl_dtype d)",
    "fl_fail": "bool (char* format, ...)",
    "fl_raise": "void* ()",
    "fl_err_null": "void* (char* format, ...)",
    "fl_err_false": "bool (char* format, ...)",
    "fl_is_freed": "bool (void* p, char* fn, char* what)",
    "fl_error": "char* ()",
    "fl_error_clear": "void ()",
    "fl_set_error_handler": "void (fl_error_fn fn, void* user)",
    "fl_quiet": "void (int delta)",
    "fl_site_now": "fl_site ()",
    "fl_site_push": "void (char* file, int line)",
    "fl_site_pop": "void* (void* result)",
    "fl_call_stack_text": "char* (char* buf, size_t size)",
    "fl_mem_failing": "fl_mem_manager* (fl_mem_manager* inner, int64_t n, bool keep_failing)",
    "fl_heap_use": "void (fl_heap_fn fn, void* user)",
    "fl_heap_alloc": "void* (size_t bytes)",
    "fl_heap_realloc": "void* (void* p, size_t bytes)",
    "fl_heap_free": "void (void* p)",
    "fl_object_free": "void (void* p, char* kind, char* name)",
    "fl_heap_grow": "bool (void* array, int64_t* cap, int64_t need, size_t size)",
    "fl_log_message": "void (fl_log_level level, char* format, ...)",
    "fl_log_set_sink": "void (fl_log_fn fn, void* user, fl_log_level threshold)",
    "fl_mem_set_current": "fl_mem_manager* (fl_mem_manager* m)",
    "fl_mem_current": "fl_mem_manager* ()",
    "fl_mem_native": "fl_mem_manager* ()",
    "fl_mem_close": "void (fl_mem_manager* m)",
    "fl_mem_stats_of": "fl_mem_stats (fl_mem_manager* m)",
    "fl_mem_stats_reset_peak": "void (fl_mem_manager* m)",
    "fl_mem_report": "void (fl_mem_manager* m, fl_log_level level)",
    "fl_mem_trim": "size_t ()",
    "fl_mem_step": "int64_t ()",
    "fl_mem_step_now": "int64_t ()",
    "fl_mem_delegate": "bool (fl_mem_manager* self, fl_mem_manager* inner, fl_buffer* b, fl_mem_info* info)",
    "fl_strbuf_printf": "void (fl_strbuf* t, char* format, ...)",
    "fl_strbuf_vprintf": "void (fl_strbuf* t, char* format, void* args)",
    "fl_strbuf_put_json": "void (fl_strbuf* t, char* text)",
    "fl_write_file_atomic": "bool (char* fn, char* path, fl_write_file_atomic.put put, void* user)",
    "fl_parallel": "void (int64_t n, int64_t grain, fl_task task, void* arg)",
    "fl_in_parallel": "bool ()",
    "fl_threads": "int ()",
    "fl_set_threads": "bool (int n)",
    "fl_mem_trace_begin": "bool (int64_t max_events)",
    "fl_mem_trace_save": "bool (char* path)",
    "fl_nn_activation": "fl_nn_module* (char* kind, fl_nn_activation.fn fn)",
    "fl_nn_activation_axis": "fl_nn_module* (char* kind, fl_nn_activation_axis.fn fn, int axis)",
    "fl_nn_activation_1": "fl_nn_module* (char* kind, char* names, fl_nn_activation_1.fn fn, double a)",
    "fl_nn_activation_2": "fl_nn_module* (char* kind, char* names, fl_nn_activation_2.fn fn, double a, double b)",
    "fl_nn_activation_of": "fl_nn_activation_fn (fl_nn_module* m)",
    "fl_nn_relu": "fl_nn_module* ()",
    "fl_nn_relu6": "fl_nn_module* ()",
    "fl_nn_gelu": "fl_nn_module* ()",
    "fl_nn_gelu_tanh": "fl_nn_module* ()",
    "fl_nn_tanh": "fl_nn_module* ()",
    "fl_nn_sigmoid": "fl_nn_module* ()",
    "fl_nn_silu": "fl_nn_module* ()",
    "fl_nn_mish": "fl_nn_module* ()",
    "fl_nn_selu": "fl_nn_module* ()",
    "fl_nn_softsign": "fl_nn_module* ()",
    "fl_nn_logsigmoid": "fl_nn_module* ()",
    "fl_nn_tanhshrink": "fl_nn_module* ()",
    "fl_nn_hardsigmoid": "fl_nn_module* ()",
    "fl_nn_hardswish": "fl_nn_module* ()",
    "fl_nn_leaky_relu": "fl_nn_module* (double slope)",
    "fl_nn_elu": "fl_nn_module* (double alpha)",
    "fl_nn_celu": "fl_nn_module* (double alpha)",
    "fl_nn_swish": "fl_nn_module* (double beta)",
    "fl_nn_hardshrink": "fl_nn_module* (double lambda)",
    "fl_nn_softshrink": "fl_nn_module* (double lambda)",
    "fl_nn_softplus": "fl_nn_module* (double beta, double threshold)",
    "fl_nn_threshold": "fl_nn_module* (double threshold, double value)",
    "fl_nn_hardtanh": "fl_nn_module* (double low, double high)",
    "fl_nn_softmax": "fl_nn_module* (int axis)",
    "fl_nn_softmin": "fl_nn_module* (int axis)",
    "fl_nn_log_softmax": "fl_nn_module* (int axis)",
    "fl_nn_glu": "fl_nn_module* (int axis)",
    "fl_nn_prelu_opt": "fl_nn_module* (int64_t n, fl_nn_prelu_opts o)",
    "fl_nn_rrelu": "fl_nn_module* (double low, double high, fl_rng* rng)",
    "fl_nn_attention_opt": "fl_nn_module* (int64_t dim, int64_t heads, fl_nn_attention_opts o)",
    "fl_nn_cache_new_opt": "fl_nn_cache* (fl_nn_module* m, int64_t n, int64_t length, fl_nn_cache_opts o)",
    "fl_nn_cache_free": "void (fl_nn_cache* c)",
    "fl_nn_forward_cached": "fl_vars (fl_nn_module* m, fl_vars in, fl_nn_cache* c)",
    "fl_nn_cache_position": "int64_t (fl_nn_cache* c)",
    "fl_nn_cached_position": "int64_t ()",
    "fl_nn_cache_rewind": "bool (fl_nn_cache* c, int64_t position)",
    "fl_nn_cache_reset": "bool (fl_nn_cache* c)",
    "fl_nn_cache_reorder": "bool (fl_nn_cache* c, fl_tensor* index)",
    "fl_nn_squash": "fl_var* (fl_var* x)",
    "fl_nn_capsules_opt": "fl_nn_module* (int64_t in, int64_t in_dim, int64_t out, int64_t out_dim, fl_nn_capsules_opts o)",
    "fl_nn_sequential_of": "fl_nn_module* (count n, fl_nn_module*[] children)",
    "fl_nn_is_sequential": "bool (fl_nn_module* m)",
    "fl_nn_run_sequence": "fl_vars (fl_nn_module*[] m, count64 n, fl_vars in)",
    "fl_nn_module_list_of": "fl_nn_module* (count n, fl_nn_module*[] children)",
    "fl_nn_residual_of": "fl_nn_module* (count n, fl_nn_module*[] children)",
    "fl_nn_shortcut": "bool (fl_nn_module* m, char* from, char* to, char* name, fl_nn_module* projection)",
    "fl_nn_conv1d_opt": "fl_nn_module* (int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o)",
    "fl_nn_conv2d_opt": "fl_nn_module* (int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o)",
    "fl_nn_conv3d_opt": "fl_nn_module* (int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o)",
    "fl_nn_conv_transpose1d_opt": "fl_nn_module* (int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o)",
    "fl_nn_conv_transpose2d_opt": "fl_nn_module* (int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o)",
    "fl_nn_conv_transpose3d_opt": "fl_nn_module* (int64_t in, int64_t out, int64_t kernel, fl_nn_conv_opts o)",
    "fl_nn_channels_last": "bool (fl_nn_module* m)",
    "fl_nn_cast": "bool (fl_nn_module* m, fl_dtype dtype)",
    "fl_nn_to": "bool (fl_nn_module* m, char* backend)",
    "fl_nn_store": "bool (fl_nn_module* m, fl_dtype dtype)",
    "fl_nn_freeze": "bool (fl_nn_module* m, bool on)",
    "fl_nn_dropout_opt": "fl_nn_module* (double p, fl_nn_dropout_opts o)",
    "fl_nn_dropout_of": "double (fl_nn_module* m, fl_rng** rng)",
    "fl_nn_layer_drop_opt": "fl_nn_module* (double p, fl_nn_dropout_opts o)",
    "fl_nn_drop_path_opt": "fl_nn_module* (double p, fl_nn_dropout_opts o)",
    "fl_nn_embedding_opt": "fl_nn_module* (int64_t n, int64_t dim, fl_nn_embedding_opts o)",
    "fl_nn_position_opt": "fl_nn_module* (int64_t steps, int64_t dim, fl_nn_position_opts o)",
    "fl_nn_sinusoid": "fl_nn_module* (int64_t dim, double scale)",
    "fl_nn_init_constant": "bool (fl_var* p, double value)",
    "fl_nn_init_uniform": "bool (fl_var* p, double low, double high, fl_rng* rng)",
    "fl_nn_init_normal": "bool (fl_var* p, double mean, double std, fl_rng* rng)",
    "fl_nn_fan": "bool (fl_var* p, int64_t* fan_in, int64_t* fan_out)",
    "fl_nn_init_kaiming_uniform": "bool (fl_var* p, double a, fl_rng* rng)",
    "fl_nn_init_kaiming_normal": "bool (fl_var* p, double a, fl_rng* rng)",
    "fl_nn_init_glorot_uniform": "bool (fl_var* p, double gain, fl_rng* rng)",
    "fl_nn_init_glorot_normal": "bool (fl_var* p, double gain, fl_rng* rng)",
    "fl_nn_identity": "fl_nn_module* ()",
    "fl_nn_view": "fl_nn_module* (fl_shape shape)",
    "fl_nn_flatten": "fl_nn_module* (int first, int last)",
    "fl_nn_transpose": "fl_nn_module* (int a, int b)",
    "fl_nn_permute": "fl_nn_module* (fl_axes axes)",
    "fl_nn_pad_opt": "fl_nn_module* (fl_pad_mode mode, fl_pad_opts o)",
    "fl_nn_precision_cast": "fl_nn_module* (fl_dtype dtype)",
    "fl_nn_linear_opt": "fl_nn_module* (int64_t in, int64_t out, fl_nn_linear_opts o)",
    "fl_nn_bilinear_opt": "fl_nn_module* (int64_t in1, int64_t in2, int64_t out, fl_nn_linear_opts o)",
    "fl_nn_new": "fl_nn_module* (fl_nn_type* type, void* data, size_t bytes)",
    "fl_nn_function": "fl_nn_module* (char* kind, fl_nn_forward_fn forward, void* user, fl_nn_function.release release)",
    "fl_nn_user": "void* (fl_nn_module* m)",
    "fl_nn_add": "fl_nn_module* (fl_nn_module* parent, char* name, fl_nn_module* child)",
    "fl_nn_add_param": "fl_var* (fl_nn_module* m, char* name, fl_var* p)",
    "fl_nn_add_buffer": "fl_tensor* (fl_nn_module* m, char* name, fl_tensor* t)",
    "fl_nn_free": "void (fl_nn_module* m)",
    "fl_nn_forward_vars": "fl_vars (fl_nn_module* m, fl_vars in)",
    "fl_nn_forward": "fl_var* (fl_nn_module* m, fl_var* x)",
    "fl_nn_set_call_hook": "fl_nn_call_hook (fl_nn_call_hook watch)",
    "fl_nn_parameters": "fv_list (fl_nn_module* m)",
    "fl_nn_count": "int64_t (fl_nn_module* m)",
    "fl_nn_train": "void (fl_nn_module* m, bool on)",
    "fl_nn_zero_grad": "void (fl_nn_module* m)",
    "fl_nn_find": "fl_nn_module* (fl_nn_module* m, char* path)",
    "fl_nn_get_param": "fl_var* (fl_nn_module* m, char* path)",
    "fl_nn_get_buffer": "fl_tensor* (fl_nn_module* m, char* path)",
    "fl_nn_param_path": "void (fl_var* param, void* m, char* buf, size_t size)",
    "fl_nn_visit_tensors": "bool (fl_nn_module* m, fl_nn_visit_fn fn, void* user)",
    "fl_nn_format": "int64_t (fl_nn_module* m, char* buf, size_t size)",
    "fl_nn_print": "bool (fl_nn_module* m)",
    "fl_nn_fail": "fl_vars (fl_nn_module* m, char* format, ...)",
    "fl_nn_dtype_ok": "bool (char* fn, fl_dtype dtype)",
    "fl_nn_sequence_ok": "bool (fl_nn_module* m, fl_var* x, int64_t dim, int64_t steps)",
    "fl_nn_param_at": "fl_var* (fl_nn_module* m, int64_t i)",
    "fl_nn_add_affine": "bool (fl_nn_module* m, fl_shape shape, bool no_bias, fl_dtype dtype)",
    "fl_nn_add_uniform": "bool (fl_nn_module* m, fl_shape weight, int64_t bias, double bound, fl_dtype dtype, fl_rng* rng)",
    "fl_nn_per_dim": "fl_shape (int64_t[] list, int dims, int64_t otherwise)",
    "fl_nn_finish": "fl_nn_module* (fl_nn_module* m, bool ok)",
    "fl_nn_finish_with_weights": "fl_nn_module* (fl_nn_module* m, fl_shape w, bool no_bias, fl_dtype dtype, fl_rng* rng)",
    "fl_nn_visit_modules": "bool (fl_nn_module* m, fl_nn_visit_modules_fn fn, void* user)",
    "fl_nn_put": "void (fl_nn_text* t, char* format, ...)",
    "fl_nn_put_shape": "void (fl_nn_text* t, fl_shape* s)",
    "fl_nn_put_pair": "void (fl_nn_text* t, char* name, int64_t a, int64_t b)",
    "fl_nn_shape_text": "char* (fl_var* x, char* buf)",
    "fl_nn_batch_norm1d_opt": "fl_nn_module* (int64_t channels, fl_nn_batch_norm_opts o)",
    "fl_nn_batch_norm2d_opt": "fl_nn_module* (int64_t channels, fl_nn_batch_norm_opts o)",
    "fl_nn_batch_norm3d_opt": "fl_nn_module* (int64_t channels, fl_nn_batch_norm_opts o)",
    "fl_nn_batch_norm_reduce": "bool (fl_nn_module* m, fl_nn_batch_norm_reduce.reduce reduce, void* user)",
    "fl_nn_layer_norm_opt": "fl_nn_module* (fl_shape shape, fl_nn_layer_norm_opts o)",
    "fl_nn_rms_norm_opt": "fl_nn_module* (fl_shape shape, fl_nn_layer_norm_opts o)",
    "fl_nn_add_norm": "fl_var* (fl_nn_module* norm, fl_nn_module* dropout, fl_nn_module* drop_path, fl_var* branch, fl_var** x)",
    "fl_nn_group_norm_opt": "fl_nn_module* (int64_t groups, int64_t channels, fl_nn_layer_norm_opts o)",
    "fl_nn_instance_norm_opt": "fl_nn_module* (int64_t channels, fl_nn_instance_norm_opts o)",
    "fl_nn_normalize_opt": "fl_nn_module* (fl_axes axes, fl_nn_normalize_opts o)",
    "fl_nn_pool1d_opt": "fl_nn_module* (int64_t kernel, fl_nn_pool_opts o)",
    "fl_nn_pool2d_opt": "fl_nn_module* (int64_t kernel, fl_nn_pool_opts o)",
    "fl_nn_pool3d_opt": "fl_nn_module* (int64_t kernel, fl_nn_pool_opts o)",
    "fl_nn_adaptive_avg_pool": "fl_nn_module* (fl_shape size)",
    "fl_nn_adaptive_max_pool": "fl_nn_module* (fl_shape size)",
    "fl_nn_adaptive_avg_pool2d": "fl_nn_module* (int64_t h, int64_t w)",
    "fl_nn_pool_before_relu": "bool (fl_nn_module* m)",
    "fl_nn_rnn_opt": "fl_nn_module* (int64_t in, int64_t hidden, fl_nn_rnn_opts o)",
    "fl_nn_lstm_opt": "fl_nn_module* (int64_t in, int64_t hidden, fl_nn_rnn_opts o)",
    "fl_nn_gru_opt": "fl_nn_module* (int64_t in, int64_t hidden, fl_nn_rnn_opts o)",
    "fl_nn_save": "bool (fl_nn_module* m, char* path)",
    "fl_nn_load_opt": "bool (fl_nn_module* m, char* path, fl_nn_load_opts o)",
    "fl_nn_state_add": "bool (fl_nn_state* s, char* prefix, char* name, fl_tensor* t)",
    "fl_nn_state_add_host": "bool (fl_nn_state* s, char* prefix, char* name, void* host, fl_shape shape, fl_dtype dtype)",
    "fl_nn_state_add_module": "bool (fl_nn_state* s, char* prefix, fl_nn_module* m)",
    "fl_nn_state_add_number": "bool (fl_nn_state* s, char* prefix, char* name, double* number)",
    "fl_nn_state_add_integer": "bool (fl_nn_state* s, char* prefix, char* name, int64_t* number)",
    "fl_nn_state_add_rng": "bool (fl_nn_state* s, char* prefix, char* name, fl_rng* rng)",
    "fl_nn_state_add_fixed": "bool (fl_nn_state* s, char* prefix, char* name, int64_t number)",
    "fl_nn_state_save": "bool (fl_nn_state* s, char* path, fl_data_key_value* meta, int n_meta)",
    "fl_nn_state_read": "bool (fl_nn_state* s, fl_data_file* f, char* what, char* prefix, bool partial)",
    "fl_nn_state_commit": "bool (fl_nn_state* s)",
    "fl_nn_state_free": "void (fl_nn_state* s)",
    "fl_nn_summary_opt": "bool (fl_nn_module* m, fl_shape shape, fl_nn_summary_opts o)",
    "fl_nn_summary_text": "char* (fl_nn_module* m, fl_vars in)",
    "fl_nn_transformer_opt": "fl_nn_module* (int64_t dim, int64_t heads, int64_t hidden, fl_nn_transformer_opts o)",
    "fl_nn_transformer_decoder_opt": "fl_nn_module* (int64_t dim, int64_t heads, int64_t hidden, fl_nn_transformer_opts o)",
    "fl_nn_adaptive_embedding_opt": "fl_nn_module* (int64_t dim, fl_shape cutoffs, fl_nn_adaptive_opts o)",
    "fl_nn_adaptive_softmax_opt": "fl_nn_module* (int64_t dim, fl_shape cutoffs, fl_nn_adaptive_opts o)",
    "fl_nn_weight_norm": "fl_nn_module* (fl_nn_module* m, char* name, int axis)",
    "fl_elu": "fl_tensor* (fl_tensor* x, double alpha)",
    "fv_elu": "fl_var* (fl_var* x, double alpha)",
    "fl_celu": "fl_tensor* (fl_tensor* x, double alpha)",
    "fv_celu": "fl_var* (fl_var* x, double alpha)",
    "fl_leaky_relu": "fl_tensor* (fl_tensor* x, double slope)",
    "fv_leaky_relu": "fl_var* (fl_var* x, double slope)",
    "fl_prelu_channels": "fl_tensor* (fl_tensor* x, fl_tensor* w)",
    "fv_prelu_channels": "fl_var* (fl_var* x, fl_var* w)",
    "fl_threshold": "fl_tensor* (fl_tensor* x, double limit, double value)",
    "fv_threshold": "fl_var* (fl_var* x, double limit, double value)",
    "fl_hardshrink": "fl_tensor* (fl_tensor* x, double lambda)",
    "fv_hardshrink": "fl_var* (fl_var* x, double lambda)",
    "fl_softshrink": "fl_tensor* (fl_tensor* x, double lambda)",
    "fv_softshrink": "fl_var* (fl_var* x, double lambda)",
    "fl_swish": "fl_tensor* (fl_tensor* x, double beta)",
    "fv_swish": "fl_var* (fl_var* x, double beta)",
    "fl_glu": "fl_tensor* (fl_tensor* x, int axis)",
    "fv_glu": "fl_var* (fl_var* x, int axis)",
    "fl_maxout": "fl_tensor* (fl_tensor* x, int64_t pieces, int axis)",
    "fv_maxout": "fl_var* (fl_var* x, int64_t pieces, int axis)",
    "fl_softplus_beta": "fl_tensor* (fl_tensor* x, double beta, double threshold)",
    "fv_softplus_beta": "fl_var* (fl_var* x, double beta, double threshold)",
    "fl_apply": "fl_tensor* (char* text, fl_tensor*[] in, count n)",
    "fv_apply": "fl_var* (char* text, fl_var*[] in, count n)",
    "fl_attention_opt": "fl_tensor* (fl_tensor* q, fl_tensor* k, fl_tensor* v, fl_attention_opts o)",
    "fv_attention_opt": "fl_var* (fl_var* q, fl_var* k, fl_var* v, fv_attention_opts o)",
    "fl_attention_packed_opt": "fl_tensor* (fl_tensor* qkv, fl_attention_opts o)",
    "fv_attention_packed_opt": "fl_var* (fl_var* qkv, fv_attention_opts o)",
    "fl_autocast": "bool (fl_dtype d)",
    "fl_autocast_dtype": "fl_dtype ()",
    "fl_autocast_get_policy": "fl_autocast_policy (fl_op op)",
    "fl_autocast_set_policy": "bool (fl_op op, fl_autocast_policy p)",
    "fv_autocast_operands": "bool (fl_op op, fl_var** x, int n)",
    "fl_conv_opt": "fl_tensor* (fl_tensor* x, fl_tensor* w, fl_tensor* bias, fl_conv_opts o)",
    "fv_conv_opt": "fl_var* (fl_var* x, fl_var* w, fl_var* bias, fl_conv_opts o)",
    "fl_conv_transpose_opt": "fl_tensor* (fl_tensor* x, fl_tensor* w, fl_tensor* bias, fl_conv_opts o)",
    "fv_conv_transpose_opt": "fl_var* (fl_var* x, fl_var* w, fl_var* bias, fl_conv_opts o)",
    "fl_conv2d_run": "fl_tensor* (fl_tensor* x, fl_tensor* w, fl_tensor* bias, fl_conv2d_args a)",
    "fv_conv2d_run": "fl_var* (fl_var* x, fl_var* w, fl_var* bias, fl_conv2d_args a)",
    "fl_conv2d_grad_input": "fl_tensor* (fl_tensor* dy, fl_tensor* w, fl_shape x_shape, fl_conv2d_args a)",
    "fv_conv2d_grad_input": "fl_var* (fl_var* dy, fl_var* w, fl_shape x_shape, fl_conv2d_args a)",
    "fl_conv2d_grad_weight": "fl_tensor* (fl_tensor* x, fl_tensor* dy, fl_shape w_shape, fl_conv2d_args a)",
    "fl_concat": "fl_tensor* (fl_tensor*[] ts, count n, int axis)",
    "fv_concat": "fl_var* (fl_var*[] xs, count n, int axis)",
    "fl_stack": "fl_tensor* (fl_tensor*[] ts, count n, int axis)",
    "fv_stack": "fl_var* (fl_var*[] xs, count n, int axis)",
    "fv_contiguous": "fl_var* (fl_var* x)",
    "fv_clone": "fl_var* (fl_var* x)",
    "fl_accumulate": "fl_tensor* (fl_tensor* dst, fl_tensor* src)",
    "fl_arange": "fl_tensor* (double start, double stop, double step, fl_dtype dtype)",
    "fl_new_arange": "fl_tensor* (fl_tensor* t, double start, double stop, double step, fl_dtype dtype)",
    "fl_eye": "fl_tensor* (int64_t n, int64_t m, fl_dtype dtype)",
    "fl_zeros_like": "fl_tensor* (fl_tensor* t)",
    "fl_ones_like": "fl_tensor* (fl_tensor* t)",
    "fl_linspace": "fl_tensor* (double start, double stop, int64_t n, fl_dtype dtype)",
    "fl_logspace": "fl_tensor* (double start, double stop, int64_t n, double base, fl_dtype dtype)",
    "fl_tri": "fl_tensor* (int64_t n, int64_t m, int64_t k, fl_dtype dtype)",
    "fl_hann_window": "fl_tensor* (int64_t n, bool periodic, fl_dtype dtype)",
    "fl_hamming_window": "fl_tensor* (int64_t n, bool periodic, fl_dtype dtype)",
    "fl_blackman_window": "fl_tensor* (int64_t n, bool periodic, fl_dtype dtype)",
    "fl_bartlett_window": "fl_tensor* (int64_t n, bool periodic, fl_dtype dtype)",
    "fl_ctc_loss_opt": "fl_tensor* (fl_tensor* logp, fl_tensor* target, fl_tensor* steps, fl_tensor* lengths, fl_ctc_loss_opts o)",
    "fv_ctc_loss_opt": "fl_var* (fl_var* logp, fl_tensor* target, fl_tensor* steps, fl_tensor* lengths, fl_ctc_loss_opts o)",
    "fl_cosine_similarity": "fl_tensor* (fl_tensor* a, fl_tensor* b, int axis, double eps)",
    "fv_cosine_similarity": "fl_var* (fl_var* a, fl_var* b, int axis, double eps)",
    "fl_pairwise_distance": "fl_tensor* (fl_tensor* a, fl_tensor* b, double p, double eps)",
    "fv_pairwise_distance": "fl_var* (fl_var* a, fl_var* b, double p, double eps)",
    "fl_neg": "fl_tensor* (fl_tensor* x)",
    "fv_neg": "fl_var* (fl_var* x)",
    "fl_abs": "fl_tensor* (fl_tensor* x)",
    "fv_abs": "fl_var* (fl_var* x)",
    "fl_exp": "fl_tensor* (fl_tensor* x)",
    "fv_exp": "fl_var* (fl_var* x)",
    "fl_log": "fl_tensor* (fl_tensor* x)",
    "fv_log": "fl_var* (fl_var* x)",
    "fl_log1p": "fl_tensor* (fl_tensor* x)",
    "fv_log1p": "fl_var* (fl_var* x)",
    "fl_expm1": "fl_tensor* (fl_tensor* x)",
    "fv_expm1": "fl_var* (fl_var* x)",
    "fl_sqrt": "fl_tensor* (fl_tensor* x)",
    "fv_sqrt": "fl_var* (fl_var* x)",
    "fl_sin": "fl_tensor* (fl_tensor* x)",
    "fv_sin": "fl_var* (fl_var* x)",
    "fl_cos": "fl_tensor* (fl_tensor* x)",
    "fv_cos": "fl_var* (fl_var* x)",
    "fl_tanh": "fl_tensor* (fl_tensor* x)",
    "fv_tanh": "fl_var* (fl_var* x)",
    "fl_erf": "fl_tensor* (fl_tensor* x)",
    "fv_erf": "fl_var* (fl_var* x)",
    "fl_floor": "fl_tensor* (fl_tensor* x)",
    "fv_floor": "fl_var* (fl_var* x)",
    "fl_rint": "fl_tensor* (fl_tensor* x)",
    "fv_rint": "fl_var* (fl_var* x)",
    "fl_bitwise_not": "fl_tensor* (fl_tensor* x)",
    "fv_bitwise_not": "fl_var* (fl_var* x)",
    "fl_ceil": "fl_tensor* (fl_tensor* x)",
    "fv_ceil": "fl_var* (fl_var* x)",
    "fl_trunc": "fl_tensor* (fl_tensor* x)",
    "fv_trunc": "fl_var* (fl_var* x)",
    "fl_frac": "fl_tensor* (fl_tensor* x)",
    "fv_frac": "fl_var* (fl_var* x)",
    "fl_square": "fl_tensor* (fl_tensor* x)",
    "fv_square": "fl_var* (fl_var* x)",
    "fl_reciprocal": "fl_tensor* (fl_tensor* x)",
    "fv_reciprocal": "fl_var* (fl_var* x)",
    "fl_rsqrt": "fl_tensor* (fl_tensor* x)",
    "fv_rsqrt": "fl_var* (fl_var* x)",
    "fl_sign": "fl_tensor* (fl_tensor* x)",
    "fv_sign": "fl_var* (fl_var* x)",
    "fl_deg2rad": "fl_tensor* (fl_tensor* x)",
    "fv_deg2rad": "fl_var* (fl_var* x)",
    "fl_rad2deg": "fl_tensor* (fl_tensor* x)",
    "fv_rad2deg": "fl_var* (fl_var* x)",
    "fl_exp2": "fl_tensor* (fl_tensor* x)",
    "fv_exp2": "fl_var* (fl_var* x)",
    "fl_log2": "fl_tensor* (fl_tensor* x)",
    "fv_log2": "fl_var* (fl_var* x)",
    "fl_log10": "fl_tensor* (fl_tensor* x)",
    "fv_log10": "fl_var* (fl_var* x)",
    "fl_tan": "fl_tensor* (fl_tensor* x)",
    "fv_tan": "fl_var* (fl_var* x)",
    "fl_asin": "fl_tensor* (fl_tensor* x)",
    "fv_asin": "fl_var* (fl_var* x)",
    "fl_acos": "fl_tensor* (fl_tensor* x)",
    "fv_acos": "fl_var* (fl_var* x)",
    "fl_atan": "fl_tensor* (fl_tensor* x)",
    "fv_atan": "fl_var* (fl_var* x)",
    "fl_sinh": "fl_tensor* (fl_tensor* x)",
    "fv_sinh": "fl_var* (fl_var* x)",
    "fl_cosh": "fl_tensor* (fl_tensor* x)",
    "fv_cosh": "fl_var* (fl_var* x)",
    "fl_asinh": "fl_tensor* (fl_tensor* x)",
    "fv_asinh": "fl_var* (fl_var* x)",
    "fl_acosh": "fl_tensor* (fl_tensor* x)",
    "fv_acosh": "fl_var* (fl_var* x)",
    "fl_atanh": "fl_tensor* (fl_tensor* x)",
    "fv_atanh": "fl_var* (fl_var* x)",
    "fl_sinc": "fl_tensor* (fl_tensor* x)",
    "fv_sinc": "fl_var* (fl_var* x)",
    "fl_logit": "fl_tensor* (fl_tensor* x)",
    "fv_logit": "fl_var* (fl_var* x)",
    "fl_relu": "fl_tensor* (fl_tensor* x)",
    "fv_relu": "fl_var* (fl_var* x)",
    "fl_sigmoid": "fl_tensor* (fl_tensor* x)",
    "fv_sigmoid": "fl_var* (fl_var* x)",
    "fl_silu": "fl_tensor* (fl_tensor* x)",
    "fv_silu": "fl_var* (fl_var* x)",
    "fl_softplus": "fl_tensor* (fl_tensor* x)",
    "fv_softplus": "fl_var* (fl_var* x)",
    "fl_gelu": "fl_tensor* (fl_tensor* x)",
    "fv_gelu": "fl_var* (fl_var* x)",
    "fl_gelu_tanh": "fl_tensor* (fl_tensor* x)",
    "fv_gelu_tanh": "fl_var* (fl_var* x)",
    "fl_relu6": "fl_tensor* (fl_tensor* x)",
    "fv_relu6": "fl_var* (fl_var* x)",
    "fl_hardsigmoid": "fl_tensor* (fl_tensor* x)",
    "fv_hardsigmoid": "fl_var* (fl_var* x)",
    "fl_hardswish": "fl_tensor* (fl_tensor* x)",
    "fv_hardswish": "fl_var* (fl_var* x)",
    "fl_mish": "fl_tensor* (fl_tensor* x)",
    "fv_mish": "fl_var* (fl_var* x)",
    "fl_selu": "fl_tensor* (fl_tensor* x)",
    "fv_selu": "fl_var* (fl_var* x)",
    "fl_softsign": "fl_tensor* (fl_tensor* x)",
    "fv_softsign": "fl_var* (fl_var* x)",
    "fl_logsigmoid": "fl_tensor* (fl_tensor* x)",
    "fv_logsigmoid": "fl_var* (fl_var* x)",
    "fl_tanhshrink": "fl_tensor* (fl_tensor* x)",
    "fv_tanhshrink": "fl_var* (fl_var* x)",
    "fl_isnan": "fl_tensor* (fl_tensor* x)",
    "fv_isnan": "fl_var* (fl_var* x)",
    "fl_isfinite": "fl_tensor* (fl_tensor* x)",
    "fv_isfinite": "fl_var* (fl_var* x)",
    "fl_isinf": "fl_tensor* (fl_tensor* x)",
    "fv_isinf": "fl_var* (fl_var* x)",
    "fl_isposinf": "fl_tensor* (fl_tensor* x)",
    "fv_isposinf": "fl_var* (fl_var* x)",
    "fl_isneginf": "fl_tensor* (fl_tensor* x)",
    "fv_isneginf": "fl_var* (fl_var* x)",
    "fl_signbit": "fl_tensor* (fl_tensor* x)",
    "fv_signbit": "fl_var* (fl_var* x)",
    "fl_logical_not": "fl_tensor* (fl_tensor* x)",
    "fv_logical_not": "fl_var* (fl_var* x)",
    "fl_add": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_add": "fl_var* (fl_var* a, fl_var* b)",
    "fl_sub": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_sub": "fl_var* (fl_var* a, fl_var* b)",
    "fl_mul": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_mul": "fl_var* (fl_var* a, fl_var* b)",
    "fl_div": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_div": "fl_var* (fl_var* a, fl_var* b)",
    "fl_pow": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_pow": "fl_var* (fl_var* a, fl_var* b)",
    "fl_remainder": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_remainder": "fl_var* (fl_var* a, fl_var* b)",
    "fl_atan2": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_atan2": "fl_var* (fl_var* a, fl_var* b)",
    "fl_maximum": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_maximum": "fl_var* (fl_var* a, fl_var* b)",
    "fl_minimum": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_minimum": "fl_var* (fl_var* a, fl_var* b)",
    "fl_eq": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_eq": "fl_var* (fl_var* a, fl_var* b)",
    "fl_ne": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_ne": "fl_var* (fl_var* a, fl_var* b)",
    "fl_lt": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_lt": "fl_var* (fl_var* a, fl_var* b)",
    "fl_le": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_le": "fl_var* (fl_var* a, fl_var* b)",
    "fl_gt": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_gt": "fl_var* (fl_var* a, fl_var* b)",
    "fl_ge": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_ge": "fl_var* (fl_var* a, fl_var* b)",
    "fl_bitwise_and": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_bitwise_and": "fl_var* (fl_var* a, fl_var* b)",
    "fl_bitwise_or": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_bitwise_or": "fl_var* (fl_var* a, fl_var* b)",
    "fl_bitwise_xor": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_bitwise_xor": "fl_var* (fl_var* a, fl_var* b)",
    "fl_shift_left": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_shift_left": "fl_var* (fl_var* a, fl_var* b)",
    "fl_shift_right": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_shift_right": "fl_var* (fl_var* a, fl_var* b)",
    "fl_fmod": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_fmod": "fl_var* (fl_var* a, fl_var* b)",
    "fl_fmax": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_fmax": "fl_var* (fl_var* a, fl_var* b)",
    "fl_fmin": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_fmin": "fl_var* (fl_var* a, fl_var* b)",
    "fl_copysign": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_copysign": "fl_var* (fl_var* a, fl_var* b)",
    "fl_heaviside": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_heaviside": "fl_var* (fl_var* a, fl_var* b)",
    "fl_ldexp": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_ldexp": "fl_var* (fl_var* a, fl_var* b)",
    "fl_xlogy": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_xlogy": "fl_var* (fl_var* a, fl_var* b)",
    "fl_logaddexp": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_logaddexp": "fl_var* (fl_var* a, fl_var* b)",
    "fl_logaddexp2": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_logaddexp2": "fl_var* (fl_var* a, fl_var* b)",
    "fl_prelu": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_prelu": "fl_var* (fl_var* a, fl_var* b)",
    "fl_logical_and": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_logical_and": "fl_var* (fl_var* a, fl_var* b)",
    "fl_logical_or": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_logical_or": "fl_var* (fl_var* a, fl_var* b)",
    "fl_logical_xor": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_logical_xor": "fl_var* (fl_var* a, fl_var* b)",
    "fv_where": "fl_var* (fl_var* c, fl_var* a, fl_var* b)",
    "fl_clamp": "fl_tensor* (fl_tensor* x, fl_tensor* low, fl_tensor* high)",
    "fv_clamp": "fl_var* (fl_var* x, fl_var* low, fl_var* high)",
    "fl_grad1": "fl_tensor* (fl_op op, fl_tensor* x, fl_tensor* y, fl_tensor* dy, fl_tensor* out)",
    "fl_grad2": "bool (fl_op op, int want, fl_tensor* a, fl_tensor* b, fl_tensor* y, fl_tensor* dy, fl_tensor** da, fl_tensor** db)",
    "fv_primitive": "void* (fl_primitive primitive, void*[] x, void* user)",
    "fl_embedding": "fl_tensor* (fl_tensor* index, fl_tensor* weight, int64_t padding)",
    "fv_embedding": "fl_var* (fl_tensor* index, fl_var* weight, int64_t padding)",
    "fl_embedding_bag": "fl_tensor* (fl_tensor* index, fl_tensor* weight, bool mean)",
    "fv_embedding_bag": "fl_var* (fl_tensor* index, fl_var* weight, bool mean)",
    "fl_solve": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_solve": "fl_var* (fl_var* a, fl_var* b)",
    "fl_solve_triangular": "fl_tensor* (fl_tensor* a, fl_tensor* b, bool upper, bool unit)",
    "fv_solve_triangular": "fl_var* (fl_var* a, fl_var* b, bool upper, bool unit)",
    "fl_inverse": "fl_tensor* (fl_tensor* x)",
    "fv_inverse": "fl_var* (fl_var* x)",
    "fl_matrix_power": "fl_tensor* (fl_tensor* x, int64_t n)",
    "fv_matrix_power": "fl_var* (fl_var* x, int64_t n)",
    "fl_matrix_exp": "fl_tensor* (fl_tensor* x)",
    "fv_matrix_exp": "fl_var* (fl_var* x)",
    "fl_lu_factor": "fl_tensor* (fl_tensor* x, fl_tensor** pivot)",
    "fl_lu": "fl_tensor* (fl_tensor* x, fl_tensor** u, fl_tensor** p)",
    "fv_lu": "fl_var* (fl_var* x, fl_var** u, fl_tensor** p)",
    "fl_det": "fl_tensor* (fl_tensor* x)",
    "fv_det": "fl_var* (fl_var* x)",
    "fl_slogdet": "fl_tensor* (fl_tensor* x, fl_tensor** sign)",
    "fv_slogdet": "fl_var* (fl_var* x, fl_tensor** sign)",
    "fl_cholesky": "fl_tensor* (fl_tensor* x)",
    "fv_cholesky": "fl_var* (fl_var* x)",
    "fl_cholesky_solve": "fl_tensor* (fl_tensor* l, fl_tensor* b)",
    "fv_cholesky_solve": "fl_var* (fl_var* l, fl_var* b)",
    "fl_qr": "fl_tensor* (fl_tensor* x, fl_tensor** r)",
    "fv_qr": "fl_var* (fl_var* x, fl_var** r)",
    "fl_svd": "fl_tensor* (fl_tensor* x, fl_tensor** s, fl_tensor** vt)",
    "fv_svd": "fl_var* (fl_var* x, fl_var** s, fl_var** vt)",
    "fl_svdvals": "fl_tensor* (fl_tensor* x)",
    "fv_svdvals": "fl_var* (fl_var* x)",
    "fl_matrix_norm": "fl_tensor* (fl_tensor* x, double p)",
    "fv_matrix_norm": "fl_var* (fl_var* x, double p)",
    "fl_nuclear_norm": "fl_tensor* (fl_tensor* x)",
    "fv_nuclear_norm": "fl_var* (fl_var* x)",
    "fl_cond": "fl_tensor* (fl_tensor* x, double p)",
    "fv_cond": "fl_var* (fl_var* x, double p)",
    "fl_matrix_rank": "fl_tensor* (fl_tensor* x, double atol, double rtol)",
    "fl_eigh": "fl_tensor* (fl_tensor* x, fl_tensor** v)",
    "fv_eigh": "fl_var* (fl_var* x, fl_var** v)",
    "fl_eig": "fl_tensor* (fl_tensor* x, fl_tensor** w_im, fl_tensor** v, fl_tensor** v_im)",
    "fv_eig": "fl_var* (fl_var* x, fl_var** w_im, fl_var** v, fl_var** v_im)",
    "fl_eigvals": "fl_tensor* (fl_tensor* x, fl_tensor** w_im)",
    "fv_eigvals": "fl_var* (fl_var* x, fl_var** w_im)",
    "fl_lstsq": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_lstsq": "fl_var* (fl_var* a, fl_var* b)",
    "fl_pinv": "fl_tensor* (fl_tensor* x, double rcond)",
    "fv_pinv": "fl_var* (fl_var* x, double rcond)",
    "fl_fft_opt": "fl_tensor* (fl_tensor* x, int axis, fl_fft_opts o)",
    "fv_fft_opt": "fl_var* (fl_var* x, int axis, fl_fft_opts o)",
    "fl_ifft_opt": "fl_tensor* (fl_tensor* x, int axis, fl_fft_opts o)",
    "fv_ifft_opt": "fl_var* (fl_var* x, int axis, fl_fft_opts o)",
    "fl_fft2_opt": "fl_tensor* (fl_tensor* x, fl_fft_opts o)",
    "fv_fft2_opt": "fl_var* (fl_var* x, fl_fft_opts o)",
    "fl_ifft2_opt": "fl_tensor* (fl_tensor* x, fl_fft_opts o)",
    "fv_ifft2_opt": "fl_var* (fl_var* x, fl_fft_opts o)",
    "fl_rfft_opt": "fl_tensor* (fl_tensor* x, int axis, fl_fft_opts o)",
    "fv_rfft_opt": "fl_var* (fl_var* x, int axis, fl_fft_opts o)",
    "fl_irfft_opt": "fl_tensor* (fl_tensor* x, int64_t n, int axis, fl_fft_opts o)",
    "fv_irfft_opt": "fl_var* (fl_var* x, int64_t n, int axis, fl_fft_opts o)",
    "fl_fftn_opt": "fl_tensor* (fl_tensor* x, fl_fftn_opts o)",
    "fv_fftn_opt": "fl_var* (fl_var* x, fl_fftn_opts o)",
    "fl_ifftn_opt": "fl_tensor* (fl_tensor* x, fl_fftn_opts o)",
    "fv_ifftn_opt": "fl_var* (fl_var* x, fl_fftn_opts o)",
    "fl_rfftn_opt": "fl_tensor* (fl_tensor* x, fl_fftn_opts o)",
    "fv_rfftn_opt": "fl_var* (fl_var* x, fl_fftn_opts o)",
    "fl_rfft2_opt": "fl_tensor* (fl_tensor* x, fl_fftn_opts o)",
    "fv_rfft2_opt": "fl_var* (fl_var* x, fl_fftn_opts o)",
    "fl_irfftn_opt": "fl_tensor* (fl_tensor* x, fl_fftn_opts o)",
    "fv_irfftn_opt": "fl_var* (fl_var* x, fl_fftn_opts o)",
    "fl_irfft2_opt": "fl_tensor* (fl_tensor* x, fl_fftn_opts o)",
    "fv_irfft2_opt": "fl_var* (fl_var* x, fl_fftn_opts o)",
    "fl_stft_opt": "fl_tensor* (fl_tensor* x, int64_t n_fft, fl_stft_opts o)",
    "fv_stft_opt": "fl_var* (fl_var* x, int64_t n_fft, fl_stft_opts o)",
    "fl_istft_opt": "fl_tensor* (fl_tensor* x, int64_t n_fft, fl_stft_opts o)",
    "fv_istft_opt": "fl_var* (fl_var* x, int64_t n_fft, fl_stft_opts o)",
    "fl_resample": "fl_tensor* (fl_tensor* x, fl_tensor* at, fl_tensor* weight, fl_tensor* inside, fl_resample_args a)",
    "fv_resample": "fl_var* (fl_var* x, fl_tensor* at, fl_tensor* weight, fl_tensor* inside, fl_resample_args a)",
    "fl_interpolate_opt": "fl_tensor* (fl_tensor* x, fl_shape size, fl_interpolation mode, bool align, fl_interpolate_opts o)",
    "fv_interpolate_opt": "fl_var* (fl_var* x, fl_shape size, fl_interpolation mode, bool align, fl_interpolate_opts o)",
    "fl_unfold_opt": "fl_tensor* (fl_tensor* x, fl_unfold_opts o)",
    "fv_unfold_opt": "fl_var* (fl_var* x, fl_unfold_opts o)",
    "fl_fold_opt": "fl_tensor* (fl_tensor* x, fl_shape size, fl_unfold_opts o)",
    "fv_fold_opt": "fl_var* (fl_var* x, fl_shape size, fl_unfold_opts o)",
    "fl_grid_sample_opt": "fl_tensor* (fl_tensor* x, fl_tensor* grid, fl_grid_opts o)",
    "fv_grid_sample_opt": "fl_var* (fl_var* x, fl_var* grid, fl_grid_opts o)",
    "fl_affine_grid": "fl_tensor* (fl_tensor* theta, fl_shape size, bool align)",
    "fv_affine_grid": "fl_var* (fl_var* theta, fl_shape size, bool align)",
    "fl_gather": "fl_tensor* (fl_tensor* x, int axis, fl_tensor* index)",
    "fv_gather": "fl_var* (fl_var* x, int axis, fl_tensor* index)",
    "fl_scatter_add": "fl_tensor* (fl_tensor* x, int axis, fl_tensor* index, fl_tensor* src)",
    "fv_scatter_add": "fl_var* (fl_var* x, int axis, fl_tensor* index, fl_var* src)",
    "fl_scatter": "fl_tensor* (fl_tensor* x, int axis, fl_tensor* index, fl_tensor* src)",
    "fv_scatter": "fl_var* (fl_var* x, int axis, fl_tensor* index, fl_var* src)",
    "fl_scatter_reduce": "fl_tensor* (fl_tensor* x, int axis, fl_tensor* index, fl_tensor* src, fl_scatter_mode mode, bool include_self)",
    "fv_scatter_reduce": "fl_var* (fl_var* x, int axis, fl_tensor* index, fl_var* src, fl_scatter_mode mode, bool include_self)",
    "fl_index_select": "fl_tensor* (fl_tensor* x, int axis, fl_tensor* index)",
    "fv_index_select": "fl_var* (fl_var* x, int axis, fl_tensor* index)",
    "fl_one_hot": "fl_tensor* (fl_tensor* index, int64_t classes)",
    "fl_take": "fl_tensor* (fl_tensor* x, fl_tensor* index)",
    "fv_take": "fl_var* (fl_var* x, fl_tensor* index)",
    "fl_take_along": "fl_tensor* (fl_tensor* x, fl_tensor* index, int axis)",
    "fv_take_along": "fl_var* (fl_var* x, fl_tensor* index, int axis)",
    "fl_index": "fl_tensor* (fl_tensor* x, fl_tensor*[] index, count n)",
    "fv_index": "fl_var* (fl_var* x, fl_tensor*[] index, count n)",
    "fl_index_put": "fl_tensor* (fl_tensor* x, fl_tensor*[] index, count n, fl_tensor* values, bool accumulate)",
    "fv_index_put": "fl_var* (fl_var* x, fl_tensor*[] index, count n, fl_var* values, bool accumulate)",
    "fl_ix": "bool (fl_tensor*[] index, count n, fl_tensor** grid)",
    "fl_index_add": "fl_tensor* (fl_tensor* x, int axis, fl_tensor* index, fl_tensor* src, double alpha)",
    "fv_index_add": "fl_var* (fl_var* x, int axis, fl_tensor* index, fl_var* src, double alpha)",
    "fl_index_copy": "fl_tensor* (fl_tensor* x, int axis, fl_tensor* index, fl_tensor* src)",
    "fv_index_copy": "fl_var* (fl_var* x, int axis, fl_tensor* index, fl_var* src)",
    "fl_index_fill": "fl_tensor* (fl_tensor* x, int axis, fl_tensor* index, double value)",
    "fv_index_fill": "fl_var* (fl_var* x, int axis, fl_tensor* index, double value)",
    "fl_masked_fill": "fl_tensor* (fl_tensor* x, fl_tensor* mask, double value)",
    "fv_masked_fill": "fl_var* (fl_var* x, fl_tensor* mask, double value)",
    "fl_masked_select": "fl_tensor* (fl_tensor* x, fl_tensor* mask)",
    "fv_masked_select": "fl_var* (fl_var* x, fl_tensor* mask)",
    "fl_masked_scatter": "fl_tensor* (fl_tensor* x, fl_tensor* mask, fl_tensor* src)",
    "fv_masked_scatter": "fl_var* (fl_var* x, fl_tensor* mask, fl_var* src)",
    "fl_bincount": "fl_tensor* (fl_tensor* x, fl_tensor* weights, int64_t min_length)",
    "fv_bincount": "fl_var* (fl_tensor* x, fl_var* weights, int64_t min_length)",
    "fl_histc": "fl_tensor* (fl_tensor* x, int64_t bins, double low, double high)",
    "fl_matmul": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_matmul": "fl_var* (fl_var* a, fl_var* b)",
    "fl_dot": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_dot": "fl_var* (fl_var* a, fl_var* b)",
    "fl_outer": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_outer": "fl_var* (fl_var* a, fl_var* b)",
    "fl_kron": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_kron": "fl_var* (fl_var* a, fl_var* b)",
    "fl_cross": "fl_tensor* (fl_tensor* a, fl_tensor* b, int axis)",
    "fv_cross": "fl_var* (fl_var* a, fl_var* b, int axis)",
    "fl_tensordot": "fl_tensor* (fl_tensor* a, fl_tensor* b, count n, int[] axes_a, int[] axes_b)",
    "fv_tensordot": "fl_var* (fl_var* a, fl_var* b, count n, int[] axes_a, int[] axes_b)",
    "fl_einsum": "fl_tensor* (char* equation, fl_tensor*[] xs, count n)",
    "fv_einsum": "fl_var* (char* equation, fl_var*[] xs, count n)",
    "fl_trace": "fl_tensor* (fl_tensor* x)",
    "fv_trace": "fl_var* (fl_var* x)",
    "fl_addmm": "fl_tensor* (fl_tensor* c, fl_tensor* a, fl_tensor* b, double beta, double alpha)",
    "fv_addmm": "fl_var* (fl_var* c, fl_var* a, fl_var* b, double beta, double alpha)",
    "fl_cdist": "fl_tensor* (fl_tensor* a, fl_tensor* b, double p)",
    "fv_cdist": "fl_var* (fl_var* a, fl_var* b, double p)",
    "fl_linear": "fl_tensor* (fl_tensor* x, fl_tensor* w, fl_tensor* bias)",
    "fv_linear": "fl_var* (fl_var* x, fl_var* w, fl_var* bias)",
    "fl_linear_act": "fl_tensor* (fl_tensor* x, fl_tensor* w, fl_tensor* bias, fl_op act)",
    "fv_linear_act": "fl_var* (fl_var* x, fl_var* w, fl_var* bias, fl_op act)",
    "fl_linear_has_act": "bool (fl_op act)",
    "fv_linear_act_of": "fl_op (fv_linear_act_of.fn fn)",
    "fl_bilinear": "fl_tensor* (fl_tensor* a, fl_tensor* b, fl_tensor* w, fl_tensor* bias)",
    "fv_bilinear": "fl_var* (fl_var* a, fl_var* b, fl_var* w, fl_var* bias)",
    "fl_mse_loss": "fl_tensor* (fl_tensor* x, fl_tensor* y, fl_reduction r)",
    "fv_mse_loss": "fl_var* (fl_var* x, fl_var* y, fl_reduction r)",
    "fl_l1_loss": "fl_tensor* (fl_tensor* x, fl_tensor* y, fl_reduction r)",
    "fv_l1_loss": "fl_var* (fl_var* x, fl_var* y, fl_reduction r)",
    "fl_huber_loss": "fl_tensor* (fl_tensor* x, fl_tensor* y, double delta, fl_reduction r)",
    "fv_huber_loss": "fl_var* (fl_var* x, fl_var* y, double delta, fl_reduction r)",
    "fl_smooth_l1_loss": "fl_tensor* (fl_tensor* x, fl_tensor* y, double beta, fl_reduction r)",
    "fv_smooth_l1_loss": "fl_var* (fl_var* x, fl_var* y, double beta, fl_reduction r)",
    "fl_binary_cross_entropy_opt": "fl_tensor* (fl_tensor* p, fl_tensor* y, fl_reduction r, fl_binary_cross_entropy_opts o)",
    "fv_binary_cross_entropy_opt": "fl_var* (fl_var* p, fl_var* y, fl_reduction r, fl_binary_cross_entropy_opts o)",
    "fl_binary_cross_entropy_with_logits_opt": "fl_tensor* (fl_tensor* x, fl_tensor* y, fl_reduction r, fl_binary_cross_entropy_opts o)",
    "fv_binary_cross_entropy_with_logits_opt": "fl_var* (fl_var* x, fl_var* y, fl_reduction r, fl_binary_cross_entropy_opts o)",
    "fl_kl_div_opt": "fl_tensor* (fl_tensor* x, fl_tensor* y, fl_reduction r, fl_kl_div_opts o)",
    "fv_kl_div_opt": "fl_var* (fl_var* x, fl_var* y, fl_reduction r, fl_kl_div_opts o)",
    "fl_poisson_nll_loss_opt": "fl_tensor* (fl_tensor* x, fl_tensor* y, bool log_input, fl_reduction r, fl_poisson_nll_loss_opts o)",
    "fv_poisson_nll_loss_opt": "fl_var* (fl_var* x, fl_var* y, bool log_input, fl_reduction r, fl_poisson_nll_loss_opts o)",
    "fl_gaussian_nll_loss_opt": "fl_tensor* (fl_tensor* x, fl_tensor* y, fl_tensor* var, fl_reduction r, fl_gaussian_nll_loss_opts o)",
    "fv_gaussian_nll_loss_opt": "fl_var* (fl_var* x, fl_var* y, fl_var* var, fl_reduction r, fl_gaussian_nll_loss_opts o)",
    "fl_soft_margin_loss": "fl_tensor* (fl_tensor* x, fl_tensor* y, fl_reduction r)",
    "fv_soft_margin_loss": "fl_var* (fl_var* x, fl_var* y, fl_reduction r)",
    "fl_hinge_embedding_loss": "fl_tensor* (fl_tensor* x, fl_tensor* y, double margin, fl_reduction r)",
    "fv_hinge_embedding_loss": "fl_var* (fl_var* x, fl_var* y, double margin, fl_reduction r)",
    "fl_margin_ranking_loss": "fl_tensor* (fl_tensor* a, fl_tensor* b, fl_tensor* y, double margin, fl_reduction r)",
    "fv_margin_ranking_loss": "fl_var* (fl_var* a, fl_var* b, fl_var* y, double margin, fl_reduction r)",
    "fl_cosine_embedding_loss": "fl_tensor* (fl_tensor* a, fl_tensor* b, fl_tensor* y, double margin, fl_reduction r)",
    "fv_cosine_embedding_loss": "fl_var* (fl_var* a, fl_var* b, fl_var* y, double margin, fl_reduction r)",
    "fl_triplet_margin_loss_opt": "fl_tensor* (fl_tensor* anchor, fl_tensor* positive, fl_tensor* negative, double margin, fl_reduction r, fl_triplet_margin_loss_opts o)",
    "fv_triplet_margin_loss_opt": "fl_var* (fl_var* anchor, fl_var* positive, fl_var* negative, double margin, fl_reduction r, fl_triplet_margin_loss_opts o)",
    "fl_multi_margin_loss_opt": "fl_tensor* (fl_tensor* x, fl_tensor* target, double margin, fl_reduction r, fl_multi_margin_loss_opts o)",
    "fv_multi_margin_loss_opt": "fl_var* (fl_var* x, fl_tensor* target, double margin, fl_reduction r, fl_multi_margin_loss_opts o)",
    "fl_nll_loss_opt": "fl_tensor* (fl_tensor* logp, fl_tensor* target, fl_nll_loss_opts o)",
    "fv_nll_loss_opt": "fl_var* (fl_var* logp, fl_tensor* target, fl_nll_loss_opts o)",
    "fl_cross_entropy_opt": "fl_tensor* (fl_tensor* logits, fl_tensor* target, fl_cross_entropy_opts o)",
    "fv_cross_entropy_opt": "fl_var* (fl_var* logits, fl_tensor* target, fl_cross_entropy_opts o)",
    "fl_movedim": "fl_tensor* (fl_tensor* x, int from, int to)",
    "fv_movedim": "fl_var* (fl_var* x, int from, int to)",
    "fl_narrow": "fl_tensor* (fl_tensor* x, int axis, int64_t start, int64_t length)",
    "fv_narrow": "fl_var* (fl_var* x, int axis, int64_t start, int64_t length)",
    "fl_flip": "fl_tensor* (fl_tensor* x, count naxes, int[] axes)",
    "fv_flip": "fl_var* (fl_var* x, count naxes, int[] axes)",
    "fl_roll": "fl_tensor* (fl_tensor* x, int64_t shift, int axis)",
    "fv_roll": "fl_var* (fl_var* x, int64_t shift, int axis)",
    "fl_rot90": "fl_tensor* (fl_tensor* x, int64_t k, int a, int b)",
    "fv_rot90": "fl_var* (fl_var* x, int64_t k, int a, int b)",
    "fl_unflatten": "fl_tensor* (fl_tensor* x, int axis, fl_shape shape)",
    "fv_unflatten": "fl_var* (fl_var* x, int axis, fl_shape shape)",
    "fl_split": "int (fl_tensor* x, int axis, int64_t size, fl_tensor** out, int max)",
    "fv_split": "int (fl_var* x, int axis, int64_t size, fl_var** out, int max)",
    "fl_chunk": "int (fl_tensor* x, int axis, int n, fl_tensor** out)",
    "fv_chunk": "int (fl_var* x, int axis, int n, fl_var** out)",
    "fl_split_with_sizes": "int (fl_tensor* x, int axis, int64_t[] sizes, count n, fl_tensor** out)",
    "fv_split_with_sizes": "int (fl_var* x, int axis, int64_t[] sizes, count n, fl_var** out)",
    "fl_unbind": "int (fl_tensor* x, int axis, fl_tensor** out, int max)",
    "fv_unbind": "int (fl_var* x, int axis, fl_var** out, int max)",
    "fl_tile": "fl_tensor* (fl_tensor* x, fl_shape reps)",
    "fv_tile": "fl_var* (fl_var* x, fl_shape reps)",
    "fl_repeat": "fl_tensor* (fl_tensor* x, fl_shape reps)",
    "fv_repeat": "fl_var* (fl_var* x, fl_shape reps)",
    "fl_repeat_interleave": "fl_tensor* (fl_tensor* x, int64_t n, int axis)",
    "fv_repeat_interleave": "fl_var* (fl_var* x, int64_t n, int axis)",
    "fl_repeat_interleave_each": "fl_tensor* (fl_tensor* x, fl_tensor* times, int axis)",
    "fv_repeat_interleave_each": "fl_var* (fl_var* x, fl_tensor* times, int axis)",
    "fl_pad_opt": "fl_tensor* (fl_tensor* x, fl_pad_opts o)",
    "fv_pad_opt": "fl_var* (fl_var* x, fl_pad_opts o)",
    "fl_sliding_windows": "fl_tensor* (fl_tensor* x, int axis, int64_t size, int64_t step, int64_t dilation)",
    "fv_sliding_windows": "fl_var* (fl_var* x, int axis, int64_t size, int64_t step, int64_t dilation)",
    "fl_pixel_shuffle": "fl_tensor* (fl_tensor* x, int64_t r)",
    "fv_pixel_shuffle": "fl_var* (fl_var* x, int64_t r)",
    "fl_pixel_unshuffle": "fl_tensor* (fl_tensor* x, int64_t r)",
    "fv_pixel_unshuffle": "fl_var* (fl_var* x, int64_t r)",
    "fl_channel_shuffle": "fl_tensor* (fl_tensor* x, int64_t groups)",
    "fv_channel_shuffle": "fl_var* (fl_var* x, int64_t groups)",
    "fl_channels_last": "fl_tensor* (fl_tensor* x)",
    "fv_channels_last": "fl_var* (fl_var* x)",
    "fl_broadcast_tensors": "bool (fl_tensor*[] xs, count n, fl_tensor** out)",
    "fv_broadcast_tensors": "bool (fl_var*[] xs, count n, fl_var** out)",
    "fl_meshgrid": "bool (fl_tensor*[] xs, count n, fl_tensor** out)",
    "fv_meshgrid": "bool (fl_var*[] xs, count n, fl_var** out)",
    "fl_diagonal": "fl_tensor* (fl_tensor* x, int64_t offset, int a, int b)",
    "fv_diagonal": "fl_var* (fl_var* x, int64_t offset, int a, int b)",
    "fl_diag_embed": "fl_tensor* (fl_tensor* x, int64_t offset)",
    "fv_diag_embed": "fl_var* (fl_var* x, int64_t offset)",
    "fl_tril": "fl_tensor* (fl_tensor* x, int64_t k)",
    "fv_tril": "fl_var* (fl_var* x, int64_t k)",
    "fl_triu": "fl_tensor* (fl_tensor* x, int64_t k)",
    "fv_triu": "fl_var* (fl_var* x, int64_t k)",
    "fl_layer_norm": "fl_tensor* (fl_tensor* x, int dims, fl_tensor* weight, fl_tensor* bias, double eps)",
    "fv_layer_norm": "fl_var* (fl_var* x, int dims, fl_var* weight, fl_var* bias, double eps)",
    "fl_rms_norm": "fl_tensor* (fl_tensor* x, int dims, fl_tensor* weight, double eps)",
    "fv_rms_norm": "fl_var* (fl_var* x, int dims, fl_var* weight, double eps)",
    "fl_add_layer_norm": "fl_tensor* (fl_tensor* x, fl_tensor* add, fl_tensor* weight, fl_tensor* bias, fl_norm_args a, double p, fl_rng* rng, fl_tensor** sum)",
    "fv_add_layer_norm": "fl_var* (fl_var* x, fl_var* add, fl_var* weight, fl_var* bias, fl_norm_args a, double p, fl_rng* rng, fl_var** sum)",
    "fl_group_norm": "fl_tensor* (fl_tensor* x, int64_t groups, fl_tensor* weight, fl_tensor* bias, double eps)",
    "fv_group_norm": "fl_var* (fl_var* x, int64_t groups, fl_var* weight, fl_var* bias, double eps)",
    "fl_instance_norm": "fl_tensor* (fl_tensor* x, fl_tensor* weight, fl_tensor* bias, double eps)",
    "fv_instance_norm": "fl_var* (fl_var* x, fl_var* weight, fl_var* bias, double eps)",
    "fl_batch_norm_opt": "fl_tensor* (fl_tensor* x, fl_tensor* weight, fl_tensor* bias, fl_batch_norm_opts o)",
    "fv_batch_norm_opt": "fl_var* (fl_var* x, fl_var* weight, fl_var* bias, fl_batch_norm_opts o)",
    "fl_batch_norm_add_opt": "fl_tensor* (fl_tensor* x, fl_tensor* weight, fl_tensor* bias, fl_tensor* y, fl_batch_norm_opts o)",
    "fv_batch_norm_add_opt": "fl_var* (fl_var* x, fl_var* weight, fl_var* bias, fl_var* y, fl_batch_norm_opts o)",
    "fl_local_response_norm": "fl_tensor* (fl_tensor* x, int64_t size, double alpha, double beta, double k)",
    "fv_local_response_norm": "fl_var* (fl_var* x, int64_t size, double alpha, double beta, double k)",
    "fl_normalize": "fl_tensor* (fl_tensor* x, double p, int axis, double eps)",
    "fv_normalize": "fl_var* (fl_var* x, double p, int axis, double eps)",
    "fl_weight_norm": "fl_tensor* (fl_tensor* v, fl_tensor* g, int axis)",
    "fv_weight_norm": "fl_var* (fl_var* v, fl_var* g, int axis)",
    "fl_sort": "fl_tensor* (fl_tensor* x, int axis, bool descending, fl_tensor** index)",
    "fv_sort": "fl_var* (fl_var* x, int axis, bool descending, fl_tensor** index)",
    "fl_argsort": "fl_tensor* (fl_tensor* x, int axis, bool descending)",
    "fl_topk": "fl_tensor* (fl_tensor* x, int64_t k, int axis, bool smallest, fl_tensor** index)",
    "fv_topk": "fl_var* (fl_var* x, int64_t k, int axis, bool smallest, fl_tensor** index)",
    "fl_nonzero": "fl_tensor* (fl_tensor* x)",
    "fl_unique": "fl_tensor* (fl_tensor* x, fl_tensor** inverse, fl_tensor** counts)",
    "fl_unique_consecutive": "fl_tensor* (fl_tensor* x, fl_tensor** inverse, fl_tensor** counts)",
    "fl_unique_dim": "fl_tensor* (fl_tensor* x, int axis, fl_tensor** inverse, fl_tensor** counts)",
    "fl_unique_consecutive_dim": "fl_tensor* (fl_tensor* x, int axis, fl_tensor** inverse, fl_tensor** counts)",
    "fl_searchsorted_opt": "fl_tensor* (fl_tensor* sorted, fl_tensor* v, bool right, fl_searchsorted_opts o)",
    "fl_isin": "fl_tensor* (fl_tensor* x, fl_tensor* among)",
    "fl_max_pool_opt": "fl_tensor* (fl_tensor* x, fl_tensor** index, fl_pool_opts o)",
    "fv_max_pool_opt": "fl_var* (fl_var* x, fl_tensor** index, fl_pool_opts o)",
    "fl_avg_pool_opt": "fl_tensor* (fl_tensor* x, fl_pool_opts o)",
    "fv_avg_pool_opt": "fl_var* (fl_var* x, fl_pool_opts o)",
    "fl_lp_pool_opt": "fl_tensor* (fl_tensor* x, double p, fl_pool_opts o)",
    "fv_lp_pool_opt": "fl_var* (fl_var* x, double p, fl_pool_opts o)",
    "fl_max_unpool": "fl_tensor* (fl_tensor* x, fl_tensor* index, fl_shape size)",
    "fv_max_unpool": "fl_var* (fl_var* x, fl_tensor* index, fl_shape size)",
    "fl_adaptive_max_pool": "fl_tensor* (fl_tensor* x, fl_shape size, fl_tensor** index)",
    "fv_adaptive_max_pool": "fl_var* (fl_var* x, fl_shape size, fl_tensor** index)",
    "fl_adaptive_avg_pool": "fl_tensor* (fl_tensor* x, fl_shape size)",
    "fv_adaptive_avg_pool": "fl_var* (fl_var* x, fl_shape size)",
    "fl_avg_pool2d_run": "fl_tensor* (fl_tensor* x, fl_pool2d_args a)",
    "fv_avg_pool2d_run": "fl_var* (fl_var* x, fl_pool2d_args a)",
    "fl_avg_pool2d_grad": "fl_tensor* (fl_tensor* dy, fl_shape x_shape, fl_pool2d_args a)",
    "fl_max_pool2d_grad": "fl_tensor* (fl_tensor* dy, fl_tensor* index, fl_shape x_shape)",
    "fl_rotary_opt": "fl_tensor* (fl_tensor* x, fl_rotary_opts o)",
    "fv_rotary_opt": "fl_var* (fl_var* x, fl_rotary_opts o)",
    "fl_rotary_frequency": "double (fl_rotary_opts* o, int64_t j)",
    "fl_rotary_attention_factor": "double (fl_rotary_opts* o)",
    "fl_length_mask": "fl_tensor* (fl_tensor* lengths, int64_t m)",
    "fl_alibi": "fl_tensor* (int64_t heads, int64_t n, int64_t m, int64_t offset)",
    "fl_relative_buckets": "fl_tensor* (int64_t n, int64_t m, int64_t offset, int64_t buckets, int64_t max_distance, bool causal)",
    "fl_relative_scores": "fl_tensor* (fl_tensor* q, fl_tensor* table, int64_t m, int64_t offset)",
    "fv_relative_scores": "fl_var* (fl_var* q, fl_var* table, int64_t m, int64_t offset)",
    "fl_quantize": "fl_tensor* (fl_tensor* x, fl_tensor* scale, fl_tensor* zero_point, int axis, fl_dtype dtype)",
    "fl_dequantize": "fl_tensor* (fl_tensor* q, fl_tensor* scale, fl_tensor* zero_point, int axis)",
    "fl_fake_quantize": "fl_tensor* (fl_tensor* x, fl_tensor* scale, fl_tensor* zero_point, int axis, int64_t low, int64_t high)",
    "fv_fake_quantize": "fl_var* (fl_var* x, fl_tensor* scale, fl_tensor* zero_point, int axis, int64_t low, int64_t high)",
    "fl_uniform": "fl_tensor* (fl_shape shape, double low, double high, fl_dtype dtype, fl_rng* rng)",
    "fl_normal": "fl_tensor* (fl_shape shape, double mean, double std, fl_dtype dtype, fl_rng* rng)",
    "fl_randint": "fl_tensor* (fl_shape shape, int64_t low, int64_t high, fl_rng* rng)",
    "fl_dropout": "fl_tensor* (fl_tensor* x, double p, fl_rng* rng)",
    "fv_dropout": "fl_var* (fl_var* x, double p, fl_rng* rng)",
    "fl_dropout_at": "fl_tensor* (fl_tensor* x, double p, fl_rng state)",
    "fl_bernoulli": "fl_tensor* (fl_tensor* p, fl_rng* rng)",
    "fl_permutation": "fl_tensor* (int64_t n, fl_rng* rng)",
    "fl_multinomial": "fl_tensor* (fl_tensor* weights, int64_t n, bool replacement, fl_rng* rng)",
    "fl_truncated_normal": "fl_tensor* (fl_shape shape, double mean, double std, double low, double high, fl_dtype dtype, fl_rng* rng)",
    "fl_rnn_tanh_cell": "fl_tensor* (fl_tensor* x, fl_tensor* h, fl_tensor*[] w)",
    "fv_rnn_tanh_cell": "fl_var* (fl_var* x, fl_var* h, fl_var*[] w)",
    "fl_rnn_relu_cell": "fl_tensor* (fl_tensor* x, fl_tensor* h, fl_tensor*[] w)",
    "fv_rnn_relu_cell": "fl_var* (fl_var* x, fl_var* h, fl_var*[] w)",
    "fl_gru_cell": "fl_tensor* (fl_tensor* x, fl_tensor* h, fl_tensor*[] w)",
    "fv_gru_cell": "fl_var* (fl_var* x, fl_var* h, fl_var*[] w)",
    "fl_lstm_cell": "fl_tensor* (fl_tensor* x, fl_tensor* h, fl_tensor* c, fl_tensor*[] w, fl_tensor** c_out)",
    "fv_lstm_cell": "fl_var* (fl_var* x, fl_var* h, fl_var* c, fl_var*[] w, fl_var** c_out)",
    "fl_rnn_opt": "fl_tensor* (fl_rnn_mode mode, fl_tensor* x, fl_tensor*[] w, fl_rnn_opts o)",
    "fv_rnn_opt": "fl_var* (fl_rnn_mode mode, fl_var* x, fl_var*[] w, fv_rnn_opts o)",
    "fl_sum": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fv_sum": "fl_var* (fl_var* x, fl_axes axes)",
    "fl_prod": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fv_prod": "fl_var* (fl_var* x, fl_axes axes)",
    "fl_mean": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fv_mean": "fl_var* (fl_var* x, fl_axes axes)",
    "fl_variance": "fl_tensor* (fl_tensor* x, fl_axes axes, int64_t correction)",
    "fv_variance": "fl_var* (fl_var* x, fl_axes axes, int64_t correction)",
    "fl_std": "fl_tensor* (fl_tensor* x, fl_axes axes, int64_t correction)",
    "fv_std": "fl_var* (fl_var* x, fl_axes axes, int64_t correction)",
    "fl_amax": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fv_amax": "fl_var* (fl_var* x, fl_axes axes)",
    "fl_amin": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fv_amin": "fl_var* (fl_var* x, fl_axes axes)",
    "fl_argmax": "fl_tensor* (fl_tensor* x, int axis, bool keepdim)",
    "fl_argmin": "fl_tensor* (fl_tensor* x, int axis, bool keepdim)",
    "fl_max_along": "fl_tensor* (fl_tensor* x, int axis, bool keepdim, fl_tensor** index)",
    "fv_max_along": "fl_var* (fl_var* x, int axis, bool keepdim, fl_tensor** index)",
    "fl_min_along": "fl_tensor* (fl_tensor* x, int axis, bool keepdim, fl_tensor** index)",
    "fv_min_along": "fl_var* (fl_var* x, int axis, bool keepdim, fl_tensor** index)",
    "fl_all": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fl_any": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fl_count_nonzero": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fl_logsumexp": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fv_logsumexp": "fl_var* (fl_var* x, fl_axes axes)",
    "fl_norm": "fl_tensor* (fl_tensor* x, double p, fl_axes axes)",
    "fv_norm": "fl_var* (fl_var* x, double p, fl_axes axes)",
    "fl_nansum": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fv_nansum": "fl_var* (fl_var* x, fl_axes axes)",
    "fl_nanmean": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fv_nanmean": "fl_var* (fl_var* x, fl_axes axes)",
    "fl_trapezoid": "fl_tensor* (fl_tensor* y, double dx, int axis)",
    "fv_trapezoid": "fl_var* (fl_var* y, double dx, int axis)",
    "fl_trapezoid_x": "fl_tensor* (fl_tensor* y, fl_tensor* x, int axis)",
    "fv_trapezoid_x": "fl_var* (fl_var* y, fl_var* x, int axis)",
    "fl_cumulative_trapezoid": "fl_tensor* (fl_tensor* y, double dx, int axis)",
    "fv_cumulative_trapezoid": "fl_var* (fl_var* y, double dx, int axis)",
    "fl_cumulative_trapezoid_x": "fl_tensor* (fl_tensor* y, fl_tensor* x, int axis)",
    "fv_cumulative_trapezoid_x": "fl_var* (fl_var* y, fl_var* x, int axis)",
    "fl_kthvalue": "fl_tensor* (fl_tensor* x, int64_t k, int axis, bool keepdim, fl_tensor** index)",
    "fv_kthvalue": "fl_var* (fl_var* x, int64_t k, int axis, bool keepdim, fl_tensor** index)",
    "fl_median": "fl_tensor* (fl_tensor* x, int axis, bool keepdim, fl_tensor** index)",
    "fv_median": "fl_var* (fl_var* x, int axis, bool keepdim, fl_tensor** index)",
    "fl_nanmedian": "fl_tensor* (fl_tensor* x, int axis, bool keepdim, fl_tensor** index)",
    "fv_nanmedian": "fl_var* (fl_var* x, int axis, bool keepdim, fl_tensor** index)",
    "fl_median_axes": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fv_median_axes": "fl_var* (fl_var* x, fl_axes axes)",
    "fl_quantile": "fl_tensor* (fl_tensor* x, double q, int axis, bool keepdim, fl_quantile_method method)",
    "fv_quantile": "fl_var* (fl_var* x, double q, int axis, bool keepdim, fl_quantile_method method)",
    "fl_nanquantile": "fl_tensor* (fl_tensor* x, double q, int axis, bool keepdim, fl_quantile_method method)",
    "fv_nanquantile": "fl_var* (fl_var* x, double q, int axis, bool keepdim, fl_quantile_method method)",
    "fl_cumsum": "fl_tensor* (fl_tensor* x, int axis)",
    "fv_cumsum": "fl_var* (fl_var* x, int axis)",
    "fl_cumprod": "fl_tensor* (fl_tensor* x, int axis)",
    "fv_cumprod": "fl_var* (fl_var* x, int axis)",
    "fl_cummax": "fl_tensor* (fl_tensor* x, int axis, fl_tensor** index)",
    "fv_cummax": "fl_var* (fl_var* x, int axis, fl_tensor** index)",
    "fl_cummin": "fl_tensor* (fl_tensor* x, int axis, fl_tensor** index)",
    "fv_cummin": "fl_var* (fl_var* x, int axis, fl_tensor** index)",
    "fl_logcumsumexp": "fl_tensor* (fl_tensor* x, int axis)",
    "fv_logcumsumexp": "fl_var* (fl_var* x, int axis)",
    "fl_diff": "fl_tensor* (fl_tensor* x, int axis)",
    "fv_diff": "fl_var* (fl_var* x, int axis)",
    "fl_softmax": "fl_tensor* (fl_tensor* x, int axis)",
    "fv_softmax": "fl_var* (fl_var* x, int axis)",
    "fl_log_softmax": "fl_tensor* (fl_tensor* x, int axis)",
    "fv_log_softmax": "fl_var* (fl_var* x, int axis)",
    "fl_softmax_grad": "fl_tensor* (fl_tensor* y, fl_tensor* dy, int axis)",
    "fl_log_softmax_grad": "fl_tensor* (fl_tensor* y, fl_tensor* dy, int axis)",
    "fl_stable_max": "fl_tensor* (fl_tensor* x, fl_axes axes)",
    "fl_round": "fl_tensor* (fl_tensor* x, int decimals)",
    "fv_round": "fl_var* (fl_var* x, int decimals)",
    "fl_nan_to_num": "fl_tensor* (fl_tensor* x, double nan, double above, double below)",
    "fv_nan_to_num": "fl_var* (fl_var* x, double nan, double above, double below)",
    "fl_hypot": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_hypot": "fl_var* (fl_var* a, fl_var* b)",
    "fl_lerp": "fl_tensor* (fl_tensor* a, fl_tensor* b, fl_tensor* w)",
    "fv_lerp": "fl_var* (fl_var* a, fl_var* b, fl_var* w)",
    "fl_addcmul": "fl_tensor* (fl_tensor* x, fl_tensor* a, fl_tensor* b, double value)",
    "fv_addcmul": "fl_var* (fl_var* x, fl_var* a, fl_var* b, double value)",
    "fl_addcdiv": "fl_tensor* (fl_tensor* x, fl_tensor* a, fl_tensor* b, double value)",
    "fv_addcdiv": "fl_var* (fl_var* x, fl_var* a, fl_var* b, double value)",
    "fl_xlog1py": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_xlog1py": "fl_var* (fl_var* a, fl_var* b)",
    "fl_float_power": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_float_power": "fl_var* (fl_var* a, fl_var* b)",
    "fl_entr": "fl_tensor* (fl_tensor* x)",
    "fv_entr": "fl_var* (fl_var* x)",
    "fl_ndtr": "fl_tensor* (fl_tensor* x)",
    "fv_ndtr": "fl_var* (fl_var* x)",
    "fl_log_ndtr": "fl_tensor* (fl_tensor* x)",
    "fv_log_ndtr": "fl_var* (fl_var* x)",
    "fl_i0": "fl_tensor* (fl_tensor* x)",
    "fv_i0": "fl_var* (fl_var* x)",
    "fl_lgamma": "fl_tensor* (fl_tensor* x)",
    "fv_lgamma": "fl_var* (fl_var* x)",
    "fl_digamma": "fl_tensor* (fl_tensor* x)",
    "fv_digamma": "fl_var* (fl_var* x)",
    "fl_erfc": "fl_tensor* (fl_tensor* x)",
    "fv_erfc": "fl_var* (fl_var* x)",
    "fl_erfinv": "fl_tensor* (fl_tensor* y)",
    "fv_erfinv": "fl_var* (fl_var* y)",
    "fl_floor_divide": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_floor_divide": "fl_var* (fl_var* a, fl_var* b)",
    "fl_trunc_divide": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fv_trunc_divide": "fl_var* (fl_var* a, fl_var* b)",
    "fl_gcd": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fl_lcm": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fl_nextafter": "fl_tensor* (fl_tensor* a, fl_tensor* b)",
    "fl_isclose": "fl_tensor* (fl_tensor* a, fl_tensor* b, double rtol, double atol, bool equal_nan)",
    "fl_step": "bool (fl_step_rule* rule, fl_tensor*[] tensor, int n_numbers, fl_tensor*[] number, fl_tensor* narrow)",
    "fl_sum_squares": "fl_tensor* (fl_tensor* t)",
    "fl_add_squares": "fl_tensor* (fl_tensor* sum, fl_tensor* t)",
    "fl_step_program": "fl_formula* (fl_step_rule* rule)",
    "fv_reshape": "fl_var* (fl_var* x, fl_shape shape)",
    "fv_permute": "fl_var* (fl_var* x, count naxes, int[] axes)",
    "fv_transpose": "fl_var* (fl_var* x, int a, int b)",
    "fv_slice": "fl_var* (fl_var* x, int axis, int64_t start, int64_t stop, int64_t step)",
    "fv_select": "fl_var* (fl_var* x, int axis, int64_t i)",
    "fv_squeeze": "fl_var* (fl_var* x, int axis)",
    "fv_unsqueeze": "fl_var* (fl_var* x, int axis)",
    "fv_flatten": "fl_var* (fl_var* x, int first, int last)",
    "fl_optim_adafactor_opt": "fl_optim* (fv_list params, fl_optim_adafactor_opts o)",
    "fl_optim_adam_opt": "fl_optim* (fv_list params, fl_optim_adam_opts o)",
    "fl_optim_adamw_opt": "fl_optim* (fv_list params, fl_optim_adam_opts o)",
    "fl_optim_adamax_opt": "fl_optim* (fv_list params, fl_optim_adam_opts o)",
    "fl_optim_nadam_opt": "fl_optim* (fv_list params, fl_optim_adam_opts o)",
    "fl_optim_radam_opt": "fl_optim* (fv_list params, fl_optim_adam_opts o)",
    "fl_optim_adadelta_opt": "fl_optim* (fv_list params, fl_optim_adadelta_opts o)",
    "fl_optim_adagrad_opt": "fl_optim* (fv_list params, fl_optim_adagrad_opts o)",
    "fl_optim_rmsprop_opt": "fl_optim* (fv_list params, fl_optim_rmsprop_opts o)",
    "fl_optim_rprop_opt": "fl_optim* (fv_list params, fl_optim_rprop_opts o)",
    "fl_optim_save_checkpoint": "bool (char* path, fl_nn_module* m, fl_optim* o, fl_optim_progress* at)",
    "fl_optim_load_checkpoint": "bool (char* path, fl_nn_module* m, fl_optim* o, fl_optim_progress* at)",
    "fl_optim_state": "bool (fl_optim* o, char* prefix, fl_nn_state* state)",
    "fl_optim_checkpoint_add": "bool (fl_optim_checkpoint* c, char* prefix, fl_optim* o)",
    "fl_optim_checkpoint_save": "bool (fl_optim_checkpoint* c, char* path)",
    "fl_optim_checkpoint_load": "bool (fl_optim_checkpoint* c, char* path)",
    "fl_optim_checkpoint_free": "void (fl_optim_checkpoint* c)",
    "fl_optim_grad_norm": "fl_tensor* (fv_list params)",
    "fl_optim_clip_grad_norm": "fl_tensor* (fv_list params, double max_norm)",
    "fl_optim_clip": "fl_tensor* (fl_optim* o, double max_norm)",
    "fl_optim_clip_grad_value": "bool (fv_list params, double most)",
    "fl_optim_ema_new": "fl_optim_ema* (fv_list params, double decay)",
    "fl_optim_ema_free": "void (fl_optim_ema* e)",
    "fl_optim_ema_update": "bool (fl_optim_ema* e)",
    "fl_optim_ema_swap": "bool (fl_optim_ema* e)",
    "fl_optim_ema_state": "bool (fl_optim_ema* e, char* prefix, fl_nn_state* state)",
    "fl_optim_lamb_opt": "fl_optim* (fv_list params, fl_optim_lamb_opts o)",
    "fl_optim_novograd_opt": "fl_optim* (fv_list params, fl_optim_novograd_opts o)",
    "fl_optim_lbfgs_opt": "fl_optim* (fv_list params, fl_optim_lbfgs_opts o)",
    "fl_optim_lion_opt": "fl_optim* (fv_list params, fl_optim_lion_opts o)",
    "fl_optim_muon_opt": "fl_optim* (fv_list params, fl_optim_muon_opts o)",
    "fl_optim_new": "fl_optim* (fl_optim_type* type, fv_list params, double lr, double[] hyper)",
    "fl_optim_free": "void (fl_optim* o)",
    "fl_optim_use_masters": "bool (fl_optim* o)",
    "fl_optim_maximize": "bool (fl_optim* o, bool on)",
    "fl_optim_step": "bool (fl_optim* o)",
    "fl_optim_zero_grad": "void (fl_optim* o)",
    "fl_optim_step_closure": "bool (fl_optim* o, fl_optim_closure closure, void* user, double* loss)",
    "fl_optim_step_in_backward": "bool (fl_optim* o, bool on)",
    "fl_optim_lr": "double (fl_optim* o)",
    "fl_optim_set_lr": "bool (fl_optim* o, double lr)",
    "fl_optim_scale": "bool (fl_optim* o, fl_tensor* factor)",
    "fl_optim_group_of_opt": "int (fl_optim* o, fl_nn_module* m, char* pattern, fl_optim_group_opts opts)",
    "fl_optim_set": "bool (fl_optim* o, int group, char* name, double value)",
    "fl_optim_apply": "bool (fl_optim* o, fl_optim_slot* p, fl_step_rule* rule)",
    "fl_optim_factor": "fl_tensor* (fl_optim* o)",
    "fl_optim_scaler_new_opt": "fl_optim_scaler* (double init, fl_optim_scaler_opts o)",
    "fl_optim_scaler_free": "void (fl_optim_scaler* s)",
    "fl_optim_scaler_scale": "fl_var* (fl_optim_scaler* s, fl_var* loss)",
    "fl_optim_scaler_unscale": "bool (fl_optim_scaler* s, fl_optim* o)",
    "fl_optim_scaler_update": "bool (fl_optim_scaler* s)",
    "fl_optim_scaler_state": "bool (fl_optim_scaler* s, char* prefix, fl_nn_state* state)",
    "fl_optim_lr_step": "double (double lr, int64_t t, int64_t every, double gamma)",
    "fl_optim_lr_multi_step": "double (double lr, int64_t t, count n, int64_t[] steps, double gamma)",
    "fl_optim_lr_exponential": "double (double lr, int64_t t, double gamma)",
    "fl_optim_lr_polynomial": "double (double lr, int64_t t, int64_t total, double power)",
    "fl_optim_lr_cosine": "double (double lr, double low, int64_t t, int64_t total)",
    "fl_optim_lr_cosine_restarts": "double (double lr, double low, int64_t t, int64_t period, int64_t grow)",
    "fl_optim_lr_warmup": "double (double lr, int64_t t, int64_t steps)",
    "fl_optim_lr_inverse_sqrt": "double (double lr, int64_t t, int64_t steps)",
    "fl_optim_lr_wsd": "double (double lr, double low, int64_t t, int64_t warmup, int64_t decay, int64_t total)",
    "fl_optim_lr_one_cycle": "double (double lr, int64_t t, int64_t total, double rise)",
    "fl_optim_momentum_one_cycle": "double (double low, double high, int64_t t, int64_t total, double rise)",
    "fl_optim_schedule_at": "double (fl_optim_schedule* s, int64_t t)",
    "fl_optim_schedule_start": "bool (fl_optim_schedule* s, fl_optim* o)",
    "fl_optim_schedule_step": "bool (fl_optim_schedule* s)",
    "fl_optim_schedule_metric": "bool (fl_optim_schedule* s, double metric)",
    "fl_optim_schedule_state": "bool (fl_optim_schedule* s, char* prefix, fl_nn_state* state)",
    "fl_optim_sgd_opt": "fl_optim* (fv_list params, fl_optim_sgd_opts o)",
    "fl_optim_asgd_opt": "fl_optim* (fv_list params, fl_optim_asgd_opts o)",
    "fl_formula_args_of": "fl_formula_args* (fl_call* c, fl_dtype* numbers)",
    "fl_matmul_precision": "fl_dtype ()",
    "fl_set_matmul_precision": "bool (fl_dtype d)",
    "fl_rnn_part": "int64_t (fl_rnn_args* a, int64_t in, int part, fl_shape* s)",
    "fl_rnn_reserve": "int64_t (fl_rnn_args* a, int64_t rows)",
    "fl_step_args_of": "fl_step_args* (fl_call* c)",
    "fl_speech_align_opt": "double (float* scores, int64_t frames, int64_t classes, int64_t[] tokens, count64 n, fl_speech_span* out, int64_t* path, fl_speech_align_opts o)",
    "fl_speech_attend_opt": "fl_nn_module* (int64_t hidden, int64_t classes, fl_speech_attend_opts o)",
    "fl_speech_attend_scores": "fl_var* (fl_nn_module* m, fl_var* x, fl_tensor* steps, fl_tensor* target, fl_var** weights)",
    "fl_speech_attend_loss": "fl_var* (fl_nn_module* m, fl_var* x, fl_tensor* steps, fl_tensor* target, fl_tensor* lengths)",
    "fl_speech_attend_warmup": "bool (fl_nn_module* m, double share)",
    "fl_speech_decoder_state_new": "fl_speech_decoder_state* (fl_nn_module* m, fl_tensor* x, int64_t n, int64_t most)",
    "fl_speech_decoder_state_free": "void (fl_speech_decoder_state* s)",
    "fl_speech_decoder_state_next": "fl_tensor* (fl_speech_decoder_state* s, fl_tensor* tokens)",
    "fl_speech_decoder_state_reorder": "bool (fl_speech_decoder_state* s, fl_tensor* from)",
    "fl_speech_decoder_state_weights": "fl_tensor* (fl_speech_decoder_state* s)",
    "fl_speech_attend_greedy": "int64_t (fl_nn_module* m, fl_tensor* x, int64_t* out, int64_t most)",
    "fl_speech_load_audio_opt": "fl_tensor* (char* path, fl_speech_audio_opts o)",
    "fl_speech_read_audio": "fl_tensor* (char* name, void* bytes, int64_t n, fl_speech_audio_opts o)",
    "fl_speech_save_audio": "bool (char* path, fl_tensor* x, int64_t rate, fl_speech_coding coding)",
    "fl_speech_mulaw_decode": "int (uint8_t byte)",
    "fl_speech_alaw_decode": "int (uint8_t byte)",
    "fl_speech_mulaw_encode": "uint8_t (int sample)",
    "fl_speech_alaw_encode": "uint8_t (int sample)",
    "fl_speech_spec_augment_opt": "fl_tensor* (fl_tensor* x, fl_rng* rng, fl_speech_spec_augment_opts o)",
    "fl_speech_draw": "int64_t (fl_rng* rng, int64_t low, int64_t high)",
    "fl_speech_between": "double (fl_rng* rng, double low, double high)",
    "fl_speech_criterion_opt": "fl_nn_module* (char* kind, int64_t dim, int64_t classes, fl_speech_criterion_opts o)",
    "fl_speech_criterion_loss": "fl_var* (fl_nn_module* m, fl_var* x, fl_tensor* steps, fl_tensor* target, fl_tensor* lengths)",
    "fl_speech_criterion_warmup": "bool (fl_nn_module* m, double share)",
    "fl_speech_criterion_best": "int64_t (fl_nn_module* m, fl_tensor* x, int64_t* out, int64_t most)",
    "fl_speech_criterion_align": "double (fl_nn_module* m, fl_tensor* x, int64_t[] tokens, count64 n, fl_speech_span* out)",
    "fl_speech_criterion_predictor": "fl_speech_predictor* (fl_nn_module* m, fl_tensor* x, int64_t beam, int64_t most)",
    "fl_speech_criterion_name": "char* (fl_nn_module* m)",
    "fl_speech_criterion_transitions": "fl_var* (fl_nn_module* m)",
    "fl_speech_criterion_decoder": "fl_nn_module* (fl_nn_module* m)",
    "fl_speech_decoder_new_opt": "fl_speech_decoder* (int64_t classes, fl_speech_lexicon* lexicon, fl_speech_decoder_opts o)",
    "fl_speech_decoder_free": "void (fl_speech_decoder* d)",
    "fl_speech_decoder_begin": "bool (fl_speech_decoder* d)",
    "fl_speech_decoder_step": "bool (fl_speech_decoder* d, float* scores, int64_t frames)",
    "fl_speech_decoder_end": "bool (fl_speech_decoder* d)",
    "fl_speech_decoder_best": "int64_t (fl_speech_decoder* d, int64_t n, fl_speech_result* out)",
    "fl_speech_decoder_tokens": "bool (fl_speech_decoder* d, int32_t* token)",
    "fl_speech_decoder_prune": "int64_t (fl_speech_decoder* d, fl_speech_word** out)",
    "fl_speech_decoder_frames": "int64_t (fl_speech_decoder* d)",
    "fl_speech_decoder_endpoint_opt": "int (fl_speech_decoder* d, fl_speech_endpoint_opts o)",
    "fl_speech_hot_words": "fl_text_scorer* (fl_text_scorer* lm, int64_t[] word, double[] bonus, count64 n)",
    "fl_speech_add_noise": "fl_tensor* (fl_tensor* x, fl_tensor* noise, int64_t start, double snr)",
    "fl_speech_convolve": "fl_tensor* (fl_tensor* x, fl_tensor* h, int64_t at)",
    "fl_speech_reverb": "fl_tensor* (fl_tensor* x, fl_tensor* response)",
    "fl_speech_speed": "fl_tensor* (fl_tensor* x, double factor)",
    "fl_speech_tempo": "fl_tensor* (fl_tensor* x, double rate, double factor)",
    "fl_speech_telephone": "fl_tensor* (fl_tensor* x, int64_t rate, fl_speech_coding coding)",
    "fl_speech_echo": "fl_tensor* (fl_tensor* x, double rate, fl_rng* rng, fl_speech_echo_opts o)",
    "fl_speech_wave_augment_opt": "fl_tensor* (fl_tensor* x, fl_rng* rng, fl_speech_wave_augment_opts o)",
    "fl_speech_chain_load_opt": "fl_speech_chain* (char* path, fl_speech_chain_opts o)",
    "fl_speech_chain_free": "void (fl_speech_chain* c)",
    "fl_speech_chain_apply": "fl_tensor* (fl_speech_chain* c, fl_tensor* x, fl_rng* rng)",
    "fl_speech_preset": "bool (fl_speech_conf* c, char* name, double rate)",
    "fl_speech_conf_set": "bool (fl_speech_conf* c, char* name, char* value)",
    "fl_speech_conf_load": "bool (fl_speech_conf* c, char* path)",
    "fl_speech_window_new": "fl_tensor* (fl_speech_window w, int64_t n)",
    "fl_speech_to_scale": "double (fl_speech_scale s, double hertz)",
    "fl_speech_to_hertz": "double (fl_speech_scale s, double value)",
    "fl_speech_filter_bank": "fl_tensor* (fl_speech_conf* c)",
    "fl_speech_dct_matrix": "fl_tensor* (fl_speech_conf* c)",
    "fl_speech_deltas": "fl_tensor* (fl_tensor* x, int64_t window, int64_t orders)",
    "fl_speech_normalize_opt": "fl_tensor* (fl_tensor* x, fl_speech_normalize_opts o)",
    "fl_speech_features_new": "fl_speech_features* (fl_speech_conf* c)",
    "fl_speech_features_free": "void (fl_speech_features* f)",
    "fl_speech_features_dims": "int64_t (fl_speech_features* f)",
    "fl_speech_features_conf": "fl_speech_conf* (fl_speech_features* f)",
    "fl_speech_features_compute": "fl_tensor* (fl_speech_features* f, fl_tensor* x)",
    "fv_speech_features_compute": "fl_var* (fl_speech_features* f, fl_var* x)",
    "fl_speech_stream_new": "fl_speech_stream* (fl_speech_features* f)",
    "fl_speech_stream_free": "void (fl_speech_stream* s)",
    "fl_speech_stream_push": "fl_tensor* (fl_speech_stream* s, float* x, int64_t n, bool end)",
    "fl_asg_full": "fl_tensor* (fl_tensor* x, fl_tensor* w, fl_tensor* steps)",
    "fv_asg_full": "fl_var* (fl_var* x, fl_var* w, fl_tensor* steps)",
    "fl_asg_forced": "fl_tensor* (fl_tensor* x, fl_tensor* w, fl_tensor* target, fl_tensor* steps, fl_tensor* lengths)",
    "fv_asg_forced": "fl_var* (fl_var* x, fl_var* w, fl_tensor* target, fl_tensor* steps, fl_tensor* lengths)",
    "fl_asg_loss_opt": "fl_tensor* (fl_tensor* x, fl_tensor* w, fl_tensor* target, fl_tensor* steps, fl_tensor* lengths, fl_lattice_opts o)",
    "fv_asg_loss_opt": "fl_var* (fl_var* x, fl_var* w, fl_tensor* target, fl_tensor* steps, fl_tensor* lengths, fl_lattice_opts o)",
    "fl_transducer_loss_opt": "fl_tensor* (fl_tensor* x, fl_tensor* target, fl_tensor* steps, fl_tensor* lengths, fl_lattice_opts o)",
    "fv_transducer_loss_opt": "fl_var* (fl_var* x, fl_tensor* target, fl_tensor* steps, fl_tensor* lengths, fl_lattice_opts o)",
    "fv_transducer_joint_opt": "fl_var* (fl_var* a, fl_var* b, fl_var* weight, fl_var* bias, fl_tensor* target, fl_lattice_opts o)",
    "fl_transducer_joint_loss": "fl_tensor* (fl_tensor* joint, fl_tensor* steps, fl_tensor* lengths, fl_lattice_opts o)",
    "fv_transducer_joint_loss": "fl_var* (fl_var* joint, fl_tensor* steps, fl_tensor* lengths, fl_lattice_opts o)",
    "fl_lattice_register": "bool ()",
    "fl_speech_lexicon_new": "fl_speech_lexicon* ()",
    "fl_speech_lexicon_free": "void (fl_speech_lexicon* l)",
    "fl_speech_lexicon_add": "int64_t (fl_speech_lexicon* l, char* word, int32_t* tokens, int64_t n)",
    "fl_speech_lexicon_load_opt": "fl_speech_lexicon* (char* path, fl_text_dictionary* tokens, fl_speech_lexicon_opts o)",
    "fl_speech_lexicon_spelling": "int32_t* (fl_speech_lexicon* l, int64_t word, int64_t k, int64_t* n)",
    "fl_speech_lexicon_words": "fl_text_dictionary* (fl_speech_lexicon* l)",
    "fl_speech_lexicon_finish": "bool (fl_speech_lexicon* l, fl_speech_smear how, fl_text_scorer* lm, bool flashlight)",
    "fl_speech_lexicon_nodes": "fl_speech_node* (fl_speech_lexicon* l, int64_t* n)",
    "fl_speech_lexicon_list": "int32_t* (fl_speech_lexicon* l)",
    "fl_speech_node_child": "int32_t (fl_speech_node* nodes, int32_t node, int32_t token)",
    "fl_speech_lexicon_fits": "bool (char* fn, fl_speech_lexicon* l, int64_t classes)",
    "fl_speech_arch_opt": "fl_nn_module* (char* path, int64_t features, int64_t labels, fl_speech_arch_opts o)",
    "fl_speech_arch_parse": "fl_nn_module* (char* name, char* text, int64_t n, int64_t features, int64_t labels, fl_speech_arch_opts o)",
    "fl_speech_arch_forward": "fl_var* (fl_nn_module* m, fl_var* x, fl_tensor* steps, fl_tensor** steps_out)",
    "fl_speech_arch_stream_new_opt": "fl_speech_arch_stream* (fl_nn_module* m, fl_speech_arch_stream_opts o)",
    "fl_speech_arch_stream_free": "void (fl_speech_arch_stream* s)",
    "fl_speech_arch_stream_ahead": "int64_t (fl_speech_arch_stream* s)",
    "fl_speech_arch_stream_push": "bool (fl_speech_arch_stream* s, fl_tensor* x, bool end, fl_tensor** y)",
    "fl_speech_pretrained": "fl_nn_module* (char* folder)",
    "fl_speech_pretrained_save": "bool (fl_nn_module* m, char* folder)",
    "fl_speech_wav2vec2_labels": "bool (fl_nn_module* m, int64_t labels, fl_rng* rng)",
    "fl_speech_wav2vec2": "fl_var* (fl_nn_module* m, fl_var* x, bool raw)",
    "fl_speech_whisper_encode": "fl_var* (fl_nn_module* m, fl_var* x)",
    "fl_speech_whisper_scores": "fl_var* (fl_nn_module* m, fl_var* memory, fl_tensor* tokens)",
    "fl_speech_whisper_opt": "int64_t (fl_nn_module* m, fl_tensor* x, int64_t* out, int64_t room, fl_speech_whisper_result* result, fl_speech_whisper_opts o)",
    "fl_speech_whisper_long_opt": "bool (fl_nn_module* m, fl_tensor* x, fl_speech_whisper_each each, void* user, fl_speech_whisper_opts o)",
    "fl_speech_resample_opt": "fl_tensor* (fl_tensor* x, int64_t from, int64_t to, fl_speech_resample_opts o)",
    "fl_speech_resampler_new_opt": "fl_speech_resampler* (int64_t from, int64_t to, fl_speech_resample_opts o)",
    "fl_speech_resampler_free": "void (fl_speech_resampler* r)",
    "fl_speech_resampler_push": "int64_t (fl_speech_resampler* r, float* x, int64_t n, bool end, float** y)",
    "fl_speech_predictor_free": "void (fl_speech_predictor* p)",
    "fl_speech_search_new_opt": "fl_speech_search* (fl_speech_predictor* p, fl_speech_lexicon* lexicon, fl_speech_search_opts o)",
    "fl_speech_search_free": "void (fl_speech_search* s)",
    "fl_speech_search_begin": "bool (fl_speech_search* s)",
    "fl_speech_search_step": "bool (fl_speech_search* s, int64_t steps)",
    "fl_speech_search_end": "bool (fl_speech_search* s)",
    "fl_speech_search_best": "int64_t (fl_speech_search* s, int64_t n, fl_speech_result* out)",
    "fl_speech_search_tokens": "int64_t (fl_speech_search* s, int64_t i, int64_t* out, int64_t most)",
    "fl_speech_confidences": "void (fl_speech_result* r, int64_t n, fl_speech_word* word)",
    "fl_speech_rescore": "bool (fl_speech_result* r, int64_t n, fl_text_scorer* lm, double weight, double old_weight)",
    "fl_spectrum": "fl_tensor* (fl_tensor* x, fl_tensor* window, fl_tensor* bands, fl_tensor* first, fl_tensor* cosine, fl_spectrum_args a)",
    "fv_spectrum": "fl_var* (fl_var* x, fl_tensor* window, fl_tensor* bands, fl_tensor* first, fl_tensor* cosine, fl_spectrum_args a)",
    "fl_speech_preemphasis": "fl_tensor* (fl_tensor* x, double coefficient)",
    "fv_speech_preemphasis": "fl_var* (fl_var* x, double coefficient)",
    "fl_spectrum_register": "bool ()",
    "fl_speech_list_load": "fl_speech_list* (char* path, char* root)",
    "fl_speech_list_free": "void (fl_speech_list* l)",
    "fl_speech_list_size": "int64_t (fl_speech_list* l)",
    "fl_speech_list_get": "fl_speech_list_entry* (fl_speech_list* l, int64_t i)",
    "fl_speech_list_sounds": "fl_data_set* (fl_speech_list* l, int64_t rate)",
    "fl_speech_target_opt": "int64_t (fl_text_dictionary* tokens, char* text, int64_t** out, int64_t* cap, fl_speech_target_opts o)",
    "fl_speech_collapse": "int64_t (int64_t[] path, count64 n, int64_t blank, int64_t* out)",
    "fl_speech_target_text_opt": "bool (fl_text_dictionary* tokens, int64_t[] token, count64 n, fl_data_text* text, fl_speech_target_opts o)",
    "fl_speech_scores_new": "fl_speech_scores* ()",
    "fl_speech_scores_free": "void (fl_speech_scores* s)",
    "fl_speech_scores_add": "bool (fl_speech_scores* s, char* speaker, char* guess, char* target)",
    "fl_speech_scores_of": "bool (fl_speech_scores* s, char* speaker, fl_data_edits* word, fl_data_edits* letter)",
    "fl_speech_scores_table": "bool (fl_speech_scores* s, fl_data_text* out)",
    "fl_speech_save_trn": "bool (char* path, char*[] id, char*[] text, count64 n)",
    "fl_speech_vad_load": "fl_speech_vad* (char* path)",
    "fl_speech_vad_free": "void (fl_speech_vad* v)",
    "fl_speech_vad_push": "int64_t (fl_speech_vad* v, float* x, int64_t n, bool end, float** p)",
    "fl_speech_segments_opt": "int64_t (float* p, int64_t n, fl_speech_segment* out, fl_speech_segments_opts o)",
    "fl_q8": "fl_dtype ()",
    "fl_q4": "fl_dtype ()",
    "fl_q4_1": "fl_dtype ()",
    "fl_q5_0": "fl_dtype ()",
    "fl_q5_1": "fl_dtype ()",
    "fl_q2_k": "fl_dtype ()",
    "fl_q3_k": "fl_dtype ()",
    "fl_q4_k": "fl_dtype ()",
    "fl_q5_k": "fl_dtype ()",
    "fl_q6_k": "fl_dtype ()",
    "fl_q8_k": "fl_dtype ()",
    "fl_iq4_nl": "fl_dtype ()",
    "fl_iq4_xs": "fl_dtype ()",
    "fl_mxfp4": "fl_dtype ()",
    "fl_cast": "fl_tensor* (fl_tensor* t, fl_dtype dtype)",
    "fl_contiguous": "fl_tensor* (fl_tensor* t)",
    "fl_clone": "fl_tensor* (fl_tensor* t)",
    "fl_assign": "fl_tensor* (fl_tensor* dst, fl_tensor* src)",
    "fl_move_into": "fl_tensor* (fl_tensor* dst, fl_tensor* src)",
    "fl_assign_op": "fl_tensor* (fl_tensor* dst, fl_op op, fl_tensor* a, fl_tensor* b)",
    "fl_formula_parse": "bool (fl_formula* f, char* text, char* inputs)",
    "fl_primitive_operands": "int (fl_primitive primitive)",
    "fl_formula_has": "bool (fl_formula* f, fl_primitive primitive)",
    "fl_formula_build": "bool (fl_formula_builder* b, fl_formula* f, int n_in, uint32_t conditions)",
    "fl_formula_build_number": "int (fl_formula_builder* b, double value)",
    "fl_formula_build_step": "int (fl_formula_builder* b, fl_primitive primitive, int[] operand)",
    "fl_formula_build_end": "bool (fl_formula_builder* b, int n_out, int[] out)",
    "fl_formula_run": "bool (fl_formula* f, fl_formula_vtable* m, void*[] in, void** out)",
    "fl_formula_number": "bool (char* s, size_t n, double* value)",
    "fl_memo_find": "void* (fl_memo* m, void* key, size_t bytes, uint64_t tag)",
    "fl_memo_add": "void* (fl_memo* m, void* key, size_t bytes, uint64_t tag, void* value)",
    "fl_seed": "void (uint64_t key)",
    "fl_rng_take": "fl_rng (fl_rng* rng, int64_t n)",
    "fl_rng_uniform": "double (fl_rng* rng)",
    "fl_rng_state": "fl_rng ()",
    "fl_rng_set_state": "void (fl_rng r)",
    "fl_reshape": "fl_tensor* (fl_tensor* t, fl_shape shape)",
    "fl_permute": "fl_tensor* (fl_tensor* t, count naxes, int[] axes)",
    "fl_transpose": "fl_tensor* (fl_tensor* t, int a, int b)",
    "fl_expand": "fl_tensor* (fl_tensor* t, fl_shape shape)",
    "fl_slice": "fl_tensor* (fl_tensor* t, int axis, int64_t start, int64_t stop, int64_t step)",
    "fl_select": "fl_tensor* (fl_tensor* t, int axis, int64_t i)",
    "fl_squeeze": "fl_tensor* (fl_tensor* t, int axis)",
    "fl_unsqueeze": "fl_tensor* (fl_tensor* t, int axis)",
    "fl_flatten": "fl_tensor* (fl_tensor* t, int first, int last)",
    "fl_as_strided": "fl_tensor* (fl_tensor* t, fl_shape shape, int64_t[] stride, int64_t offset)",
    "fl_from_buffer": "fl_tensor* (fl_buffer* b, fl_dtype dtype, fl_shape shape, int64_t[] stride, int64_t offset)",
    "fl_where": "fl_tensor* (fl_tensor* c, fl_tensor* a, fl_tensor* b)",
    "fl_text_tokens_open_opt": "fl_text_tokens* (char* path, fl_text_tokens_opts o)",
    "fl_text_tokens_of": "fl_text_tokens* (fl_tensor* tokens, fl_tensor* starts, int64_t vocabulary)",
    "fl_text_tokens_free": "void (fl_text_tokens* t)",
    "fl_text_tokens_save": "bool (char* path, fl_tensor* tokens, fl_tensor* starts, char* tokenizer)",
    "fl_text_tokens_count": "int64_t (fl_text_tokens* t)",
    "fl_text_tokens_documents": "int64_t (fl_text_tokens* t)",
    "fl_text_tokens_read": "bool (fl_text_tokens* t, int64_t begin, int64_t n, int64_t* out)",
    "fl_text_tokens_span": "bool (fl_text_tokens* t, int64_t i, int64_t* begin, int64_t* end)",
    "fl_text_tokens_shard": "bool (fl_text_tokens* t, int64_t rank, int64_t ranks, int64_t* begin, int64_t* end)",
    "fl_text_blocks_opt": "fl_data_set* (fl_text_tokens* t, int64_t length, fl_text_blocks_opts o)",
    "fl_text_documents": "fl_data_set* (fl_text_tokens* t, int64_t eos)",
    "fl_text_mask_opt": "fl_data_set* (fl_data_set* set, fl_text_mask_opts o)",
    "fl_text_dictionary_new": "fl_text_dictionary* ()",
    "fl_text_dictionary_free": "void (fl_text_dictionary* d)",
    "fl_text_dictionary_or_free": "fl_text_dictionary* (fl_text_dictionary* d, bool ok)",
    "fl_text_dictionary_add": "int64_t (fl_text_dictionary* d, char* entry, int64_t n)",
    "fl_text_dictionary_add_at": "bool (fl_text_dictionary* d, char* entry, int64_t n, int64_t index)",
    "fl_text_dictionary_add_all": "bool (fl_text_dictionary* d, char*[] entry, count64 n)",
    "fl_text_dictionary_reserve": "bool (fl_text_dictionary* d, int64_t entries)",
    "fl_text_dictionary_count": "int64_t (fl_text_dictionary* d, char* entry, int64_t n, int64_t times)",
    "fl_text_dictionary_find": "int64_t (fl_text_dictionary* d, char* entry, int64_t n)",
    "fl_text_dictionary_index": "int64_t (fl_text_dictionary* d, char* entry, int64_t n)",
    "fl_text_dictionary_set_default": "bool (fl_text_dictionary* d, int64_t index)",
    "fl_text_dictionary_default": "int64_t (fl_text_dictionary* d)",
    "fl_text_dictionary_entry": "char* (fl_text_dictionary* d, int64_t index, int64_t* n)",
    "fl_text_dictionary_count_of": "int64_t (fl_text_dictionary* d, int64_t index)",
    "fl_text_dictionary_size": "int64_t (fl_text_dictionary* d)",
    "fl_text_dictionary_entries": "int64_t (fl_text_dictionary* d)",
    "fl_text_dictionary_contiguous": "bool (fl_text_dictionary* d)",
    "fl_text_dictionary_spelling": "char* (fl_text_dictionary* d, int64_t k, int64_t* n, int64_t* index)",
    "fl_text_dictionary_pruned": "fl_text_dictionary* (fl_text_dictionary* d, int64_t keep, int64_t min_count, int64_t max_size)",
    "fl_text_dictionary_load_opt": "fl_text_dictionary* (char* path, fl_text_dictionary_opts o)",
    "fl_text_dictionary_save": "bool (fl_text_dictionary* d, char* path, bool counts)",
    "fl_text_field": "char* (char** p, char* end, int64_t* n)",
    "fl_text_line": "char* (char** p, char* end, int64_t* n)",
    "fl_text_hash": "uint64_t (char* s, int64_t n)",
    "fl_text_seeded_hash": "uint64_t (char* s, int64_t n)",
    "fl_text_read_file": "char* (char* fn, char* path, int64_t* n)",
    "fl_text_lines": "fl_data_set* (char* path, fl_text_tokenizer* t, int64_t eos)",
    "fl_text_decoder_new_opt": "fl_text_decoder* (fl_nn_module* m, int64_t n, fl_text_decoder_opts o)",
    "fl_text_decoder_free": "void (fl_text_decoder* d)",
    "fl_text_decoder_read": "bool (fl_text_decoder* d, int64_t rows, int64_t[] of, int64_t[] id)",
    "fl_text_decoder_scores": "float* (fl_text_decoder* d, int64_t i)",
    "fl_text_decoder_position": "int64_t (fl_text_decoder* d, int64_t i)",
    "fl_text_decoder_vocabulary": "int64_t (fl_text_decoder* d)",
    "fl_text_decoder_sequences": "int64_t (fl_text_decoder* d)",
    "fl_text_decoder_length": "int64_t (fl_text_decoder* d)",
    "fl_text_decoder_rewind": "bool (fl_text_decoder* d, int64_t i, int64_t position)",
    "fl_text_decoder_copy": "bool (fl_text_decoder* d, int64_t to, int64_t from)",
    "fl_text_sample": "int64_t (float* scores, int64_t n, fl_text_sampler* s, int64_t[] seen, int64_t n_seen, fl_rng* rng, fl_text_candidate* scratch)",
    "fl_text_sequence_add": "bool (fl_text_sequence* s, int64_t[] id, count64 n)",
    "fl_text_sequence_free": "void (fl_text_sequence* s)",
    "fl_text_generate_opt": "bool (fl_text_decoder* d, fl_text_sequence* texts, int64_t n, fl_text_generate_opts o)",
    "fl_text_beam_search_opt": "bool (fl_text_decoder* d, fl_text_sequence* texts, int64_t n, fl_text_generate_opts o)",
    "fl_text_open_gguf": "fl_data_file* (char* path)",
    "fl_text_gguf_array": "int64_t (fl_data_file* f, char* key, fl_text_gguf_fn each, void* user)",
    "fl_text_save_gguf": "bool (char* path, fl_data_named_tensor* tensors, int n, fl_text_gguf_pair* meta, int n_meta)",
    "fl_text_lm_scorer": "fl_text_scorer* (fl_text_decoder* r, int64_t start, int64_t end)",
    "fl_text_load_opt": "fl_nn_module* (char* path, fl_text_load_opts o)",
    "fl_text_save_opt": "bool (fl_nn_module* m, char* path, fl_text_save_opts o)",
    "fl_text_lora_new_opt": "fl_text_lora* (fl_nn_module* m, fl_text_lora_opts o)",
    "fl_text_lora_free": "void (fl_text_lora* l)",
    "fl_text_lora_parameters": "fv_list (fl_text_lora* l)",
    "fl_text_lora_begin": "bool (fl_text_lora* l)",
    "fl_text_lora_end": "void (fl_text_lora* l)",
    "fl_text_lora_merge": "bool (fl_text_lora* l)",
    "fl_text_lora_save": "bool (fl_text_lora* l, char* folder)",
    "fl_text_lora_load": "bool (fl_text_lora* l, char* folder)",
    "fl_text_lm_opt": "fl_nn_module* (int64_t vocabulary, fl_text_lm_opts o)",
    "fl_text_lm_info": "fl_text_lm_opts* (fl_nn_module* m, int64_t* vocabulary)",
    "fl_text_embed": "fl_var* (fl_nn_module* m, fl_var* tokens)",
    "fl_text_features": "fl_var* (fl_nn_module* m, fl_vars in)",
    "fl_text_scores": "fl_var* (fl_nn_module* m, fl_var* x)",
    "fl_text_loss": "fl_var* (fl_nn_module* m, fl_vars in, fl_tensor* targets, fl_reduction reduction)",
    "fl_text_evaluate_opt": "bool (fl_nn_module* m, fl_text_tokens* t, fl_text_loss_sum* out, fl_text_evaluate_opts o)",
    "fl_text_evaluate_set": "bool (fl_nn_module* m, fl_data_set* set, fl_text_loss_sum* out, fl_dtype dtype)",
    "fl_text_training_step": "bool (fl_text_training* t, double* loss)",
    "fl_text_training_save": "bool (fl_text_training* t, char* path)",
    "fl_text_training_load": "bool (fl_text_training* t, char* path)",
    "fl_text_kenlm_is": "int (char* path)",
    "fl_text_kenlm_load": "fl_text_ngram* (char* path)",
    "fl_text_ngram_load": "fl_text_ngram* (char* path)",
    "fl_text_ngram_free": "void (fl_text_ngram* m)",
    "fl_text_ngram_order": "int (fl_text_ngram* m)",
    "fl_text_ngram_word": "int32_t (fl_text_ngram* m, char* word, int64_t n)",
    "fl_text_ngram_start": "void (fl_text_ngram* m, bool sentence, fl_text_state* out)",
    "fl_text_ngram_score": "double (fl_text_ngram* m, fl_text_state* from, int32_t word, fl_text_state* to)",
    "fl_text_ngram_score_text": "void (fl_text_ngram* m, char* text, int64_t n, fl_text_ngram_sum* sum)",
    "fl_text_ngram_scorer": "fl_text_scorer* (fl_text_ngram* m, fl_text_dictionary* tokens)",
    "fl_text_ngram_key": "uint64_t (uint64_t key, int32_t word)",
    "fl_text_ngram_probe": "char* (char* slots, uint64_t n, size_t size, uint64_t key)",
    "fl_text_ngram_train_opt": "bool (char* text, int64_t n, char* path, fl_text_ngram_opts o)",
    "fl_text_pairs_reserve": "bool (fl_text_pairs* t, int64_t pairs)",
    "fl_text_pairs_add": "fl_text_pair* (fl_text_pairs* t, int32_t left, int32_t right)",
    "fl_text_state_equal": "bool (fl_text_state* a, fl_text_state* b)",
    "fl_text_scorer_free": "void (fl_text_scorer* s)",
    "fl_text_bpe_opt": "fl_text_model* (fl_text_dictionary* vocab, fl_text_bpe_opts o)",
    "fl_text_byte_tokenizer": "fl_text_tokenizer* ()",
    "fl_text_bpe_train_opt": "fl_text_tokenizer* (char* text, int64_t n, fl_text_train_opts o)",
    "fl_text_count_pieces": "bool (fl_text_dictionary* d, char* pipeline, char* text, int64_t n, char* where)",
    "fl_text_learn_merges": "bool (fl_text_dictionary* vocab, fl_text_dictionary* pieces, char* prefix, int64_t size, int64_t min_count, fl_text_merge** merge, int64_t* n_merges)",
    "fl_text_byte_char": "int32_t (uint8_t b)",
    "fl_text_char_byte": "int (int32_t c)",
    "fl_text_bytes_put": "bool (fl_data_text* out, char* bytes, int64_t n)",
    "fl_text_bytes_get": "int64_t (char* chars, int64_t n, char* raw)",
    "fl_text_base64_get": "int64_t (char* text, int64_t n, char* raw)",
    "fl_text_decoders_of": "bool (fl_text_steps* out, fl_text_tree* t, bool bytes, char* where)",
    "fl_text_gguf_tokenizer_load": "fl_text_tokenizer* (char* path)",
    "fl_text_gguf_vocab_of": "bool (fl_text_tokenizer* t, int64_t size, int64_t bos, int64_t eos, char* where, fl_text_gguf_vocab* out)",
    "fl_text_gguf_vocab_free": "void (fl_text_gguf_vocab* v)",
    "fl_text_gpt2_load": "fl_text_tokenizer* (char* vocab, char* merges)",
    "fl_text_tiktoken_load": "fl_text_tokenizer* (char* path, char* split, fl_text_added_token* special, int64_t n)",
    "fl_text_bytes_pipeline": "bool (fl_data_text* out, char* split)",
    "fl_text_normalizers_of": "bool (fl_text_steps* out, fl_text_tree* t, char* where)",
    "fl_text_pattern_new": "fl_text_pattern* (char* text, int64_t n, bool literal, char* where)",
    "fl_text_pattern_of": "fl_text_pattern* (fl_text_tree* t, char* where)",
    "fl_text_pattern_free": "void (fl_text_pattern* p)",
    "fl_text_matches_next": "int (fl_text_matches* m)",
    "fl_text_matches_end": "void (fl_text_matches* m)",
    "fl_text_work_exceeded": "bool ()",
    "fl_text_pieces": "fl_text_tokenizer* (fl_text_dictionary* vocab, float* score, int32_t* kind, fl_text_pieces_opts o)",
    "fl_text_sentencepiece_load": "fl_text_tokenizer* (char* path)",
    "fl_text_llama2c_load": "fl_text_tokenizer* (char* path, int64_t n)",
    "fl_text_splits_of": "bool (fl_text_steps* out, fl_text_tree* t, char* where)",
    "fl_text_work_limit": "void (fl_text_work* w, int64_t n)",
    "fl_text_work_begin": "void (fl_text_work* w, int64_t n)",
    "fl_text_work_reserve": "bool (void* array, int64_t* cap, int64_t need, size_t size)",
    "fl_text_work_put": "bool (fl_text_work* w, char* bytes, int64_t n, uint32_t from, uint32_t to)",
    "fl_text_work_copy": "bool (fl_text_work* w, int64_t begin, int64_t end)",
    "fl_text_work_keep": "void (fl_text_work* w, int64_t begin, int64_t end)",
    "fl_text_work_swap": "void (fl_text_work* w)",
    "fl_text_work_next": "int64_t (fl_text_work* w)",
    "fl_text_work_cut": "bool (fl_text_work* w, int64_t begin, int64_t end, int32_t id)",
    "fl_text_work_swap_pieces": "void (fl_text_work* w)",
    "fl_text_work_token": "bool (fl_text_work* w, int32_t id, int64_t begin, int64_t end)",
    "fl_text_work_each": "bool (fl_text_step* s, fl_text_work* w, bool writes, fl_text_piece_fn one)",
    "fl_text_work_unknown": "bool (fl_text_work* w, uint32_t at)",
    "fl_text_work_bytes": "int64_t (fl_text_work* w)",
    "fl_text_work_release": "void (fl_text_work* w)",
    "fl_text_work_free": "void (fl_text_work* w)",
    "fl_text_steps_of": "bool (fl_text_steps* out, fl_text_tree* t, char* list, fl_text_kind* kind, char* where)",
    "fl_text_steps_run": "bool (fl_text_steps* s, fl_text_work* w)",
    "fl_text_steps_free": "void (fl_text_steps* s)",
    "fl_text_encoding_free": "void (fl_text_encoding* e)",
    "fl_text_encode_opt": "bool (fl_text_tokenizer* t, char* text, int64_t n, fl_text_encoding* out, fl_text_encode_opts o)",
    "fl_text_encode_batch": "bool (fl_text_tokenizer* t, char*[] text, int64_t[] n, int64_t count, fl_text_encoding* out, fl_text_encode_opts o)",
    "fl_text_decode": "bool (fl_text_tokenizer* t, int32_t* id, int64_t n, bool keep_special, fl_data_text* out)",
    "fl_text_stream_add": "char* (fl_text_stream* s, int32_t id, int64_t* n)",
    "fl_text_stream_end": "char* (fl_text_stream* s, int64_t* n)",
    "fl_text_stream_free": "void (fl_text_stream* s)",
    "fl_text_vocab_size": "int64_t (fl_text_tokenizer* t)",
    "fl_text_token_of": "char* (fl_text_tokenizer* t, int32_t id, int64_t* n)",
    "fl_text_id_of": "int32_t (fl_text_tokenizer* t, char* token, int64_t n)",
    "fl_text_is_special": "bool (fl_text_tokenizer* t, int32_t id)",
    "fl_text_tokenizer_hash": "uint64_t (fl_text_tokenizer* t)",
    "fl_text_added_of": "fl_text_added_token (fl_text_tree* e, int64_t* id)",
    "fl_text_tokenizer_add": "bool (fl_text_tokenizer* t, fl_text_added_token* added, int64_t n)",
    "fl_text_tokenizer_truncate": "bool (fl_text_tokenizer* t, fl_text_truncation o)",
    "fl_text_tokenizer_pad": "bool (fl_text_tokenizer* t, fl_text_padding o)",
    "fl_text_model_new": "void* (size_t size, fl_text_model m)",
    "fl_text_model_free": "void (fl_text_model* m)",
    "fl_text_tokenizer_new": "fl_text_tokenizer* (fl_text_model* m, char* json, fl_text_added_token* added, int64_t n_added, char* where)",
    "fl_text_tokenizer_of": "fl_text_tokenizer* (fl_text_model* m, fl_text_tree* pipeline, fl_text_added_token* added, int64_t n_added, char* where)",
    "fl_text_tokenizer_free": "void (fl_text_tokenizer* t)",
    "fl_text_pipeline_bytes": "bool (fl_text_tree* pipeline)",
    "fl_text_tokenizer_json": "bool (fl_text_tokenizer* t, fl_data_text* out)",
    "fl_text_tokenizer_save": "bool (fl_text_tokenizer* t, char* path)",
    "fl_text_tokenizer_load": "fl_text_tokenizer* (char* path)",
    "fl_text_tokenizer_open": "fl_text_tokenizer* (char* path)",
    "fl_text_parts_of": "bool (fl_text_tokenizer* t, fl_text_parts* out)",
    "fl_text_parts_free": "void (fl_text_parts* p)",
    "fl_text_tree_read": "fl_text_tree* (fl_data_json* j)",
    "fl_text_tree_free": "void (fl_text_tree* t)",
    "fl_text_tree_put": "bool (fl_data_text* out, fl_text_tree* t)",
    "fl_text_tree_at": "fl_text_tree* (fl_text_tree* t, char* key)",
    "fl_text_tree_string": "char* (fl_text_tree* t, char* key, int64_t* n, char* other)",
    "fl_text_tree_true": "bool (fl_text_tree* t, char* key, bool other)",
    "fl_text_tree_int": "int64_t (fl_text_tree* t, char* key, int64_t other)",
    "fl_text_trie_build": "bool (fl_text_trie* t, fl_text_key* key, int64_t n)",
    "fl_text_trie_free": "void (fl_text_trie* t)",
    "fl_text_trie_longest": "int32_t (fl_text_trie* t, char* s, int64_t n, int64_t* len, int64_t* left)",
    "fl_text_unigram": "fl_text_model* (fl_text_dictionary* vocab, double[] score, int64_t unk, bool byte_fallback, bool float32, char* where)",
    "fl_text_unigram_train_opt": "fl_text_tokenizer* (char* text, int64_t n, fl_text_unigram_opts o)",
    "fl_text_put_token": "bool (char* text, int64_t n, bool bytes, fl_data_text* out)",
    "fl_text_put_vocab": "bool (fl_text_dictionary* d, bool bytes, fl_data_text* out)",
    "fl_text_read_vocab": "bool (fl_data_json* j, bool bytes, int64_t most, fl_text_dictionary* d)",
    "fl_text_token_bytes": "char* (char* text, int64_t* n, bool bytes, fl_data_text* raw)",
    "fl_text_put_template": "bool (fl_text_dictionary* d, int64_t bos, int64_t eos, fl_data_text* out)",
    "fl_text_wordpiece": "fl_text_model* (fl_text_dictionary* vocab, char* unk, char* prefix, int64_t most, char* where)",
    "fl_text_bert_pipeline": "bool (fl_data_text* out, bool cased, int64_t cls, int64_t sep)",
    "fl_text_wordpiece_load": "fl_text_tokenizer* (char* path, bool cased)",
    "fl_text_wordpiece_train_opt": "fl_text_tokenizer* (char* text, int64_t n, fl_text_train_opts o)",
    "fl_text_word_model": "fl_text_model* (fl_text_dictionary* vocab, int64_t unk)",
    "fl_text_word_tokenizer": "fl_text_tokenizer* (fl_text_dictionary* vocab)",
    "fl_text_char_tokenizer": "fl_text_tokenizer* (char* text, int64_t n)",
    "fl_text_count_words": "bool (fl_text_dictionary* d, char* text, int64_t n)",
    "fl_text_classes": "uint8_t* ()",
    "fl_text_script": "char* (int32_t c)",
    "fl_text_lower": "int (int32_t c, int32_t* out)",
    "fl_text_combining": "int (int32_t c)",
    "fl_text_decompose": "int (int32_t c, bool compatible, int32_t* out)",
    "fl_text_compose": "int32_t (int32_t a, int32_t b)",
    "fl_text_utf8_decode": "int32_t (char* s, int64_t n, int* len)",
    "fl_text_utf8_encode": "int (char* d, int32_t c)",
    "fl_text_utf8_valid_length": "int64_t (char* s, int64_t n)",
    "fl_text_utf8_count": "int64_t (char* s, int64_t n)",
    "fl_text_utf8_append": "bool (fl_data_text* t, char* s, int64_t n, int64_t* replaced)",
    "fl_alive_begin": "bool ()",
    "fl_alive_end": "void ()",
    "fl_alive_format": "int64_t (char* buf, size_t size)",
    "fl_alive_print": "bool ()",
    "fl_detect_anomaly": "int (int what)",
    "fl_call_cost": "fl_cost (fl_call* c)",
    "fl_cost_begin": "void (fl_cost_counter* counter)",
    "fl_cost_end": "void (fl_cost_counter* counter)",
    "fl_jacobian": "bool (fl_var* y, fv_list x, double*[] j)",
    "fl_gradcheck_opt": "bool (fl_gradcheck_fn fn, fv_list x, fl_gradcheck_opts o)",
    "fl_gradgradcheck_opt": "bool (fl_gradcheck_fn fn, fv_list x, fl_gradcheck_opts o)",
    "fl_format": "int64_t (fl_tensor* t, char* buf, size_t size)",
    "fl_print": "bool (fl_tensor* t)",
    "fl_profile_begin_opt": "bool (int64_t max_events, fl_profile_opts o)",
    "fl_profile_end": "void ()",
    "fl_profile_format": "int64_t (char* buf, size_t size)",
    "fl_profile_print": "bool ()",
    "fl_profile_save": "bool (char* path)",
    "fl_profile_add": "bool (char* track, char* name, int64_t begin, int64_t end)",
    "fl_vision_rle_parse": "bool (char* text, size_t n, int64_t h, int64_t w, fl_vision_rle* out)",
    "fl_vision_rle_put": "bool (fl_data_text* t, fl_vision_rle* r)",
    "fl_vision_rle_encode": "bool (uint8_t* mask, int64_t h, int64_t w, fl_vision_rle* out)",
    "fl_vision_rle_decode": "void (fl_vision_rle* r, uint8_t* mask)",
    "fl_vision_rle_polygon": "bool (double[] xy, count64 n, int64_t h, int64_t w, fl_vision_rle* out)",
    "fl_vision_rle_merge": "bool (fl_vision_rle* r, int64_t n, bool intersect, fl_vision_rle* out)",
    "fl_vision_rle_area": "int64_t (fl_vision_rle* r)",
    "fl_vision_rle_box": "void (fl_vision_rle* r, double* box)",
    "fl_vision_rle_iou": "double (fl_vision_rle* a, fl_vision_rle* b, bool crowd)",
    "fl_vision_coco_load": "bool (char* path, fl_vision_coco* out)",
    "fl_vision_coco_results": "bool (char* path, fl_vision_coco* truth, fl_vision_coco* out)",
    "fl_vision_coco_free": "void (fl_vision_coco* c)",
    "fl_vision_coco_find": "int64_t (fl_vision_coco* c, int64_t image)",
    "fl_vision_coco_mask": "bool (fl_vision_coco* c, fl_vision_object* o, fl_vision_rle* out)",
    "fl_vision_evaluate": "bool (fl_vision_coco* truth, fl_vision_coco* found, bool masks, fl_vision_ap* out)",
    "fl_vision_ap_free": "void (fl_vision_ap* a)",
    "fl_vision_ap_class": "double (fl_vision_ap* a, int64_t k)",
    "fl_vision_ap_put": "bool (fl_data_text* t, fl_vision_ap* a, fl_vision_coco* truth)",
    "fl_vision_voc_opt": "double (fl_vision_coco* truth, fl_vision_coco* found, int64_t k, double iou, int points, fl_vision_voc_opts o)",
    "fl_vision_deform_conv2d_opt": "fl_tensor* (fl_tensor* x, fl_tensor* offset, fl_tensor* weight, fl_tensor* bias, fl_tensor* mask, fl_vision_deform_opts o)",
    "fv_vision_deform_conv2d_opt": "fl_var* (fl_var* x, fl_var* offset, fl_var* weight, fl_var* bias, fl_var* mask, fl_vision_deform_opts o)",
    "fl_deform_register": "bool ()",
    "fl_vision_box_convert": "fl_tensor* (fl_tensor* boxes, fl_vision_box_format from, fl_vision_box_format to)",
    "fv_vision_box_convert": "fl_var* (fl_var* boxes, fl_vision_box_format from, fl_vision_box_format to)",
    "fl_vision_box_area": "fl_tensor* (fl_tensor* boxes)",
    "fl_vision_box_iou": "fl_tensor* (fl_tensor* a, fl_tensor* b, bool generalized)",
    "fv_vision_box_iou": "fl_var* (fl_var* a, fl_var* b, bool generalized)",
    "fl_vision_nms": "fl_tensor* (fl_tensor* boxes, fl_tensor* scores, fl_tensor* group, double threshold)",
    "fl_vision_box_clip": "fl_tensor* (fl_tensor* boxes, int64_t h, int64_t w)",
    "fl_vision_masks_to_boxes": "fl_tensor* (fl_tensor* masks)",
    "fl_vision_linear_assignment": "bool (double[] cost, int64_t rows, int64_t columns, int64_t* column)",
    "fl_vision_match": "fl_tensor* (fl_tensor* logits, fl_tensor* boxes, fl_vision_targets* t)",
    "fl_vision_criterion_opt": "bool (fl_vars y, fl_vision_targets* t, fl_vision_losses* out, fl_vision_criterion_opts o)",
    "fl_vision_detr_postprocess": "bool (fl_tensor* logits, fl_tensor* boxes, fl_tensor* sizes, fl_vision_detections* out)",
    "fl_vision_colour": "void (int64_t k, uint8_t* rgb)",
    "fl_vision_draw_boxes_opt": "fl_tensor* (fl_tensor* image, fl_tensor* boxes, fl_vision_draw_opts o)",
    "fl_vision_draw_masks_opt": "fl_tensor* (fl_tensor* image, fl_tensor* masks, fl_vision_draw_opts o)",
    "fl_vision_draw_text": "void (fl_vision_pixels* to, int64_t y, int64_t x, char* text, uint8_t[] rgb, int64_t scale)",
    "fl_vision_read_opt": "fl_tensor* (char* path, fl_vision_read_opts o)",
    "fl_vision_decode_opt": "fl_tensor* (void* bytes, size_t n, fl_vision_read_opts o)",
    "fl_vision_inspect": "bool (void* bytes, size_t n, bool as_stored, fl_vision_info* out)",
    "fl_vision_read_bytes": "fl_tensor* (char* path)",
    "fl_vision_write_png": "bool (char* path, fl_tensor* image)",
    "fl_vision_encode_png": "bool (fl_data_text* out, fl_tensor* image)",
    "fl_vision_pixels_of": "bool (fl_tensor** t, fl_vision_pixels* out)",
    "fl_vision_image": "fl_tensor* (int64_t c, int64_t h, int64_t w, fl_vision_pixels* out)",
    "fl_vision_model_opt": "fl_nn_module* (char* name, fl_vision_model_opts o)",
    "fl_vision_model_name": "char* (int i)",
    "fl_vision_detr_opt": "fl_nn_module* (int depth, fl_vision_detr_opts o)",
    "fl_vision_load": "bool (fl_nn_module* m, char* path, fl_vision_names names)",
    "fl_vision_classes": "int64_t (fl_nn_module* m, char* path, fl_vision_names names)",
    "fl_vision_roi_align_opt": "fl_tensor* (fl_tensor* x, fl_tensor* boxes, int64_t rows, int64_t columns, fl_vision_roi_opts o)",
    "fv_vision_roi_align_opt": "fl_var* (fl_var* x, fl_tensor* boxes, int64_t rows, int64_t columns, fl_vision_roi_opts o)",
    "fl_roi_align_register": "bool ()",
    "fl_vision_cifar_opt": "bool (char* folder, char* part, fl_vision_arrays* out, fl_vision_cifar_opts o)",
    "fl_vision_folder": "fl_data_set* (char* path)",
    "fl_vision_imagenet": "fl_data_set* (char* path, char* table)",
    "fl_vision_synset": "char* (fl_data_set* imagenet, int64_t k)",
    "fl_vision_list": "fl_data_set* (char* path, char* root)",
    "fl_vision_sample_name": "void (fl_data_set* set, int64_t i, char* buf, size_t size)",
    "fl_vision_objects_opt": "fl_data_set* (fl_vision_coco* coco, char* folder, fl_vision_objects_opts o)",
    "fl_vision_shards": "fl_data_set* (char*[] paths, count n)",
    "fl_vision_pack": "int64_t (fl_data_set* set, char* prefix, int64_t each)",
    "fl_vision_apply": "bool (fl_vision_transform* steps, int n, fl_vision_item* item, fl_rng* rng)",
    "fl_vision_resize_image_opt": "fl_tensor* (fl_tensor* image, int64_t h, int64_t w, fl_vision_resize_opts o)",
    "fl_vision_resize": "fl_vision_transform (int64_t size, int64_t most, fl_vision_filter filter)",
    "fl_vision_resize_to": "fl_vision_transform (int64_t h, int64_t w, fl_vision_filter filter)",
    "fl_vision_center_crop": "fl_vision_transform (int64_t size)",
    "fl_vision_random_crop": "fl_vision_transform (int64_t size, int64_t pad)",
    "fl_vision_random_resized_crop": "fl_vision_transform (int64_t size, double low, double high, fl_vision_filter filter)",
    "fl_vision_random_horizontal_flip": "fl_vision_transform (double p)",
    "fl_vision_random_vertical_flip": "fl_vision_transform (double p)",
    "fl_vision_pad": "fl_vision_transform (int64_t top, int64_t left, int64_t bottom, int64_t right, double value)",
    "fl_vision_random_choice": "fl_vision_transform (fl_vision_transform* steps, int n)",
    "fl_vision_random_apply": "fl_vision_transform (fl_vision_transform* steps, int n, double p)",
    "fl_vision_adjust_opt": "fl_tensor* (fl_tensor* image, fl_vision_adjustment how, double v, fl_vision_adjust_opts o)",
    "fl_vision_affine": "fl_tensor* (fl_tensor* image, double[] m, fl_vision_adjust_opts o)",
    "fl_vision_random_adjust": "fl_vision_transform (fl_vision_adjustment how, double low, double high, double p)",
    "fl_vision_color_jitter": "fl_vision_transform (double brightness, double contrast, double saturation, double hue)",
    "fl_vision_random_affine": "fl_vision_transform (double degrees, double translate_x, double translate_y, double low, double high)",
    "fl_vision_random_erasing": "fl_vision_transform (double p, double value)",
    "fl_vision_cutout": "fl_vision_transform (int64_t side, double value)",
    "fl_vision_rand_augment": "fl_vision_transform (int64_t changes, int64_t magnitude)",
    "fl_vision_trivial_augment_wide": "fl_vision_transform ()",
    "fl_vision_deit_augment": "fl_vision_transform ()",
    "fl_vision_auto_augment": "fl_vision_transform ()",
    "fl_vision_random_size_crop": "fl_vision_transform (int64_t low, int64_t high)",
    "fl_vision_detr_augment": "fl_vision_transform ()",
    "fl_vision_batch_opt": "fl_data_set* (fl_data_set* set, int64_t size, fl_vision_batch_opts o)",
    "fl_vision_skipped_samples": "int64_t (fl_data_set* batches)",
    "fl_vision_mixup_opt": "fl_data_set* (fl_data_set* set, int64_t classes, fl_vision_mixup_opts o)",
    "fl_vision_repeated_augmentation": "fl_data_set* (fl_data_set* set, int64_t times, uint64_t seed, int rank, int ranks)",
    "fl_cpu_set_bf16": "bool (char* way)",
    "fl_cpu_bf16": "char* ()",
    "fl_cpu_bf16_used": "char* ()",
    "fl_cpu_force_algorithm": "bool (char* algorithm)",
}
# <<generated
# MIT licence: see LICENSE.
