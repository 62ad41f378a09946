# test_install.py - what `make install` puts where, and that C, C++, CMake and Python programs use it
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from check import BUILD, check, done, skip

PROGRAM = """#include <fl.h>
#include <stdio.h>
int main(void) {
    fl_scope s = fl_scope_begin();
    fl_nn_module *net = fl_nn_linear(3, 2, .no_bias = true);
    fl_var *y = fl_nn_forward(net, fv_const(fl_ones(FL_SHAPE(4, 3), FL_F32)));
    printf("%d %d\\n", (int)fv_value(y)->shape[0], (int)fv_value(y)->shape[1]);
    fl_nn_free(net);
    fl_scope_end(&s);
    return 0;
}
"""
CMAKE = """cmake_minimum_required(VERSION 3.10)
project(uses_fl CXX)
find_package(fl REQUIRED)
add_executable(uses_fl main.cc)
set_property(TARGET uses_fl PROPERTY CXX_STANDARD 17)
target_link_libraries(uses_fl fl::fl)
"""
CC = os.environ.get("CC", "cc")


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


def make(*arguments):
    """make with the variables of the make that runs this, so that nothing is built again."""
    given = [w for w in shlex.split(os.environ.get("MAKEFLAGS", "")) if "=" in w and not w.startswith("-")]
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return run("make", "-s", f"CC={os.path.basename(BUILD)}", *given, *arguments, env=environment)


def files(folder):
    return sorted(os.path.relpath(os.path.join(d, f), folder) for d, _, names in os.walk(folder) for f in names)


def prints(out, what):
    check(out.returncode == 0 and out.stdout == "4 2\n", f"{what}: {out.stdout} {out.stderr[-800:]}")


def check_program(prefix, folder, name, compiler, *flags):
    path = f"{folder}/{name}"
    with open(path, "w") as f:
        f.write(PROGRAM)
    environment = dict(os.environ, PKG_CONFIG_PATH=f"{prefix}/lib/pkgconfig", LD_LIBRARY_PATH=f"{prefix}/lib")
    found = run("pkg-config", "--cflags", "--libs", "fl", env=environment)
    warnings = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]
    built = run(compiler, *flags, *warnings, "-o", f"{path}.out", path, *found.stdout.split())
    if check(built.returncode == 0, f"{name} builds: {built.stderr[-800:]}"):
        prints(run(f"{path}.out", env=environment), f"{name} with libfl.so")
    libs = run("pkg-config", "--static", "--libs-only-l", "fl", env=environment).stdout.split()
    libs = [f"{prefix}/lib/libfl.a" if lib == "-lfl" else lib for lib in libs]
    built = run(compiler, *flags, f"-I{prefix}/include/fl", "-o", f"{path}.static", path, *libs)
    if check(built.returncode == 0, f"{name} builds with libfl.a: {built.stderr[-800:]}"):
        prints(run(f"{path}.static"), f"{name} with libfl.a")


def check_cmake(prefix, folder):
    if not shutil.which("cmake") or not shutil.which("c++"):
        return skip("a CMake project without cmake and c++: apt-get install cmake g++")
    check(len(CMAKE.splitlines()) <= 10, "ten lines")
    for name, text in (("CMakeLists.txt", CMAKE), ("main.cc", PROGRAM)):
        with open(f"{folder}/{name}", "w") as f:
            f.write(text)
    out = run("cmake", "-S", folder, "-B", f"{folder}/build", f"-DCMAKE_PREFIX_PATH={prefix}")
    out = run("cmake", "--build", f"{folder}/build") if out.returncode == 0 else out
    if check(out.returncode == 0, f"the CMake project builds: {out.stdout[-500:]}{out.stderr[-500:]}"):
        prints(run(f"{folder}/build/uses_fl"), "the CMake project")


def check_library(prefix):
    """What the loader goes by: the SONAME, the symbols' version, and what makes memory errors harder to exploit."""
    library = f"{prefix}/lib/libfl.so"
    if not shutil.which("readelf"):
        return skip("SONAME and hardening of libfl.so without readelf: apt-get install binutils")
    dynamic = run("readelf", "-dW", library).stdout
    check("Library soname: [libfl.so.0.1]" in dynamic, f"SONAME: {dynamic[:800]}")
    symbols = run("readelf", "--dyn-syms", "-W", library).stdout
    exported = [line.split()[7] for line in symbols.splitlines() if re.search(r" (FUNC|OBJECT) +GLOBAL +DEFAULT +[0-9]", line)]
    check(len(exported) > 1000 and all(name.endswith("@@FL_0.1") for name in exported), f"versions: {exported[:5]}")
    if "HARDEN_LIBS" in open(f"{BUILD}/config.mk").read():
        check("BIND_NOW" in dynamic and "GNU_RELRO" in run("readelf", "-lW", library).stdout, "full RELRO")
    if "-fstack-protector-strong" in open(f"{BUILD}-shared/flags").read():
        check("__stack_chk_fail" in symbols, "stack protector")
    if "_FORTIFY_SOURCE=" in open(f"{BUILD}-shared/flags").read() and "GLIBC" in symbols:
        check("__snprintf_chk" in symbols and "__memcpy_chk" in symbols, "FORTIFY_SOURCE")


def check_install(folder):
    prefix = f"{folder}/fl"
    out = make("install", f"PREFIX={prefix}")
    if not check(out.returncode == 0, f"make install: {out.stderr[-800:]}"):
        return
    patterns = ["fl*.h", *(f"{folder}/**/*.{end}" for folder in ("fl", "kernels") for end in ("h", "inc"))]
    headers = [f for p in patterns for f in glob.glob(p, recursive=True) if not f.startswith("kernels/cuda/")]
    expected = [f"include/fl/{h}" for h in headers] + ["include/fl/build/calls.h"]
    expected += ["lib/libfl.a", "lib/libfl.so", "lib/libfl.so.0.1", "lib/libfl.so.0.1.0", "lib/pkgconfig/fl.pc", "lib/cmake/fl/fl-config.cmake"]
    expected += ["lib/python/fl.py", "lib/python/fl_decoder.py"]
    check(files(prefix) == sorted(expected), f"files: {set(files(prefix)) ^ set(expected)}")
    check_library(prefix)
    if shutil.which("pkg-config"):
        check_program(prefix, folder, "main.c", CC, "-std=c11")
        if shutil.which("c++"):
            check_program(prefix, folder, "main.cc", "c++", "-std=c++17")
    else:
        skip("programs by pkg-config: apt-get install pkg-config")
    os.mkdir(f"{folder}/project")
    check_cmake(prefix, f"{folder}/project")
    program = "import fl; print(*fl.nn.linear(3, 2)(fl.ones(4, 3)).shape)"
    plain = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "FL_LIBRARY", "PYTHONPATH")}
    out = run(sys.executable, "-c", program, cwd=folder, env=dict(plain, PYTHONPATH=f"{prefix}/lib/python"))
    prints(out, "Python with fl.py where it is installed")
    shutil.copy("examples/python/fl.py", folder)
    out = run(sys.executable, "-c", program, cwd=folder, env=dict(plain, LD_LIBRARY_PATH=f"{prefix}/lib"))
    prints(out, "Python with a copy of fl.py")
    with open(f"{prefix}/include/fl/mine.h", "w") as f:
        f.write("// not of fl")
    out = make("uninstall", f"PREFIX={prefix}")
    check(out.returncode == 0 and files(prefix) == ["include/fl/mine.h"], f"make uninstall leaves {files(prefix)[:5]}")
    out = make("install", "PREFIX=/opt/fl", f"DESTDIR={folder}/stage")
    staged = f"{folder}/stage/opt/fl"
    check(out.returncode == 0 and files(f"{folder}/stage") == sorted(f"opt/fl/{f}" for f in expected), "DESTDIR")
    with open(f"{staged}/lib/pkgconfig/fl.pc") as f:
        text = f.read()
    check("prefix=/opt/fl\n" in text and "stage" not in text and "@" not in text, f"fl.pc: {text}")


if not os.path.exists(f"{BUILD}-shared/libfl.so"):
    skip(f"make install without {BUILD}-shared/libfl.so: make shared")
else:
    with tempfile.TemporaryDirectory() as folder:
        check_install(folder)
done()
# MIT licence: see LICENSE.
