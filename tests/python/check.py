# check.py - counting for the scripts of this folder: module("numpy"), check(condition, what), done()
import importlib
import os
import sys

BUILD = os.environ.get("FL_BUILD", "build/gcc")
passed = failed = skipped = 0


def check(condition, what):
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        print("FAILED:", what)
    return condition


def skip(why):
    global skipped
    skipped += 1
    print("skipped:", why)


def module(name):
    """The module, or None after a line that says what is skipped without it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        skip(f"{os.path.basename(sys.argv[0])} without {name}: pip install {name.split('.')[0]}")


def load_fl():
    """examples/python/fl.py on the shared build beside BUILD; None after a line that says why not."""
    library = os.path.abspath(f"{BUILD}-shared/libfl.so")
    if not os.path.exists(library):
        return skip(f"{os.path.basename(sys.argv[0])} without {BUILD}-shared/libfl.so: make shared")
    os.environ["FL_LIBRARY"] = library
    sys.path.insert(0, "examples/python")
    return importlib.import_module("fl")


def done():
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(failed != 0)
# MIT licence: see LICENSE.
