# test_bindings.py - fl.py is what the headers say, libfl.so has what they declare, and C lays structs out as fl.py does
import ctypes
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

from check import check, done, load_fl, skip

# Public functions that libfl.so cannot have, and why.
INLINE = {
    "fl_buffer_refs": "for autograd: references to a buffer but for those of deferred calls",
    "fl_call_begin": "for ops in C: fl_call_into",
    "fl_data": "an address: fl_map, or Tensor.numpy()",
    "fl_given": "a check of functions in C",
    "fl_text_pairs_find": "for tokenizers in C: fl_text_pairs_add",
    "fl_text_trie_step": "for tokenizers in C: fl_text_trie_longest",
    "fl_text_work_from": "for steps in C",
    "fl_text_work_spend": "for steps in C",
    "fl_text_work_to": "for steps in C",
    "fv_autocast": "for op writers in C: fv_autocast_operands",
    "fv_autocast_wide": "for op writers in C: fl_autocast_get_policy",
}


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


def check_current():
    out = run(sys.executable, "examples/python/generate", "--check")
    check(out.returncode == 0, f"fl.py is current: {out.stderr.strip()}")


def generator():
    loader = importlib.machinery.SourceFileLoader("generate", "examples/python/generate")
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("generate", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


def check_symbols(fl):
    out = run("nm", "-D", "--defined-only", os.environ["FL_LIBRARY"])
    if out.returncode:
        return skip("symbols of libfl.so without nm: apt-get install binutils")
    exported = {line.split()[-1].split("@")[0] for line in out.stdout.splitlines() if " A " not in line}  # A: a version
    declared = set(fl._FUNCTIONS) | set(fl._VARIABLES)
    tables = f"fl__tables_of_0x{fl.constant('FL_TABLE_VERSION'):08x}"  # by which programs know that they fit
    check(tables in exported, f"{tables} is exported")
    exported.discard(tables)
    check(len(declared) > 500, "functions are found")
    check(not declared - exported, f"declared, and not exported: {sorted(declared - exported)}")
    check(not exported - declared, f"exported, and not declared: {sorted(exported - declared)}")


def check_macros(fl, h):
    """Macros that look like functions have one of their own, and inline functions are known."""
    for name in sorted(m for m in h.macros if re.match(r"f[lv]_", m)):
        check(any(f"{name}{end}" in fl._FUNCTIONS for end in ("_opt", "_of")), f"the macro {name} has a function")
    check(set(h.inlines) == set(INLINE), f"inline functions: {sorted(h.inlines)}, known are {sorted(INLINE)}")


def check_layouts(fl):
    """Sizes and offsets by C's compiler and by ctypes."""
    lines, expected = [], {}
    for name in fl._STRUCTS:
        if name in ANONYMOUS:
            continue
        struct = fl.struct(name)
        expected[name] = ctypes.sizeof(struct)
        lines.append(f'    printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in struct._fields_:
            expected[f"{name}.{field}"] = getattr(struct, field).offset
            lines.append(f'    printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            expected[f"{name}.{field}:"] = getattr(struct, field).size
            lines.append(f'    printf("{name}.{field}: %zu\\n", sizeof((({name} *)0)->{field}));')
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/layout.c", "w") as f:
            f.write('#include "fl_all.h"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n')
            f.write("\n".join(lines) + "\n}\n")
        compiler = os.environ.get("CC", "cc")
        built = run(compiler, "-std=c11", "-I.", "-w", "-c", "-o", f"{folder}/layout.o", f"{folder}/layout.c")
        if not check(built.returncode == 0, f"layouts compile: {built.stderr[-500:]}"):
            return
        with open(f"{folder}/tables.c", "w") as f:  # what fl.h asks for, which libfl.so keeps to itself
            f.write(f"const char fl__tables_of_0x{fl.constant('FL_TABLE_VERSION'):08x} = 0;\n")
        program = f"{folder}/layout"
        built = run(compiler, "-w", "-o", program, f"{folder}/layout.o", f"{folder}/tables.c")
        if not check(built.returncode == 0, f"layouts link: {built.stderr[-500:]}"):
            return
        found = dict(line.split(" ") for line in run(program).stdout.splitlines())
    wrong = [f"{k}: C {found.get(k)}, fl.py {v}" for k, v in expected.items() if found.get(k) != str(v)]
    check(len(found) > 300 and not wrong, f"layouts differ: {wrong[:5]}")


def check_numbers(fl):
    with tempfile.TemporaryDirectory() as folder:
        names = [n for n, v in fl._CONSTANTS.items() if isinstance(v, int)]
        with open(f"{folder}/numbers.c", "w") as f:
            f.write('#include "fl_all.h"\n#define SAME(a, b) _Static_assert((a) == (b), #a)\n')
            f.writelines(f"SAME({n}, {fl._CONSTANTS[n]});\n" for n in names if abs(fl._CONSTANTS[n]) < 2**62)
        built = run(os.environ.get("CC", "cc"), "-std=c11", "-I.", "-w", "-fsyntax-only", f"{folder}/numbers.c")
        check(built.returncode == 0 and len(names) > 150, f"numbers: {built.stderr[-500:]}")


fl = load_fl()
if fl:
    h = generator().Headers()
    ANONYMOUS = h.nameless
    check_current()
    check_symbols(fl)
    check_macros(fl, h)
    check_layouts(fl)
    check_numbers(fl)
    for name in fl._FUNCTIONS:
        getattr(fl.lib, name)
    check(True, "every function can be prepared")
done()
# MIT licence: see LICENSE.
