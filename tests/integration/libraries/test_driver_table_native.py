"""The driver table in C: cuGetProcAddress's rules, and a library that exports everything and implements little."""

import os
import subprocess
import sys
from pathlib import Path

import generate_driver_table as tool
import pytest

ROOT = Path(__file__).resolve().parents[3]
DRIVER = ROOT / "native" / "driver"

WARNINGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]

# A libcuda that implements four functions, and notes in a file what it was asked for.
LIBRARY = r"""
#define _GNU_SOURCE
#include "driver_table.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int cuGetProcAddress_v2(const char *name, void **pfn, int version, unsigned long long flags, int *status)
{
    egpu_driver_status found;
    const egpu_driver_fn *fn = egpu_driver_query(name, version, (flags & 2) != 0, &found);
    FILE *log = fopen(getenv("ASKED"), "a");
    fprintf(log, "%s %d %d %s %d\n", name, version, (flags & 2) != 0, fn ? fn->symbol : "-", fn ? fn->version : 0);
    fclose(log);
    Dl_info self;
    dladdr((void *)&cuGetProcAddress_v2, &self);
    *pfn = fn ? dlsym(dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD), fn->symbol) : NULL;
    if (status)
        *status = (int)found;
    return fn ? 0 : 500;
}

EXPORTED int cuInit(unsigned flags)
{
    return flags ? 1 : 0;
}

EXPORTED int cuDriverGetVersion(int *version)
{
    *version = 13050;
    return 0;
}
"""


def compile_c(*arguments: str | Path) -> None:
    command = [os.environ.get("CC", "cc"), *WARNINGS, "-O1", f"-I{DRIVER}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    source = folder / "library.c"
    source.write_text(LIBRARY)
    built = folder / "libcuda.so.1"
    sources = [source, *(DRIVER / name for name in ("driver_table.c", "not_supported.c", "remedies.c"))]
    compile_c("-shared", "-fPIC", "-fvisibility=hidden", *sources, "-Wl,-soname,libcuda.so.1", "-o", built)
    return built


def run_python(code: str, library: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def test_known_answers(tmp_path: Path) -> None:
    program = tmp_path / "driver_table_test"
    compile_c(
        "-fsanitize=undefined", DRIVER / "tests" / "driver_table_test.c", DRIVER / "driver_table.c", "-o", program
    )
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all as expected" in done.stdout


# Declares everything a second time: C refuses a declaration that differs from the header's.
PROTOTYPES = r"""
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

/* Types of the graphics interfaces, whose headers are not ours to require. */
typedef unsigned GLuint, GLenum, VdpDevice, VdpVideoSurface, VdpOutputSurface;
typedef int EGLint, VdpGetProcAddress, CUGLDeviceList, CUeglResourceLocationFlags, CUoutput_mode;
typedef void *EGLImageKHR, *EGLStreamKHR, *EGLSyncKHR, *CUeglStreamConnection;
typedef struct frame CUeglFrame;
struct frame { int pitch; };

#define EGPU_DRIVER_FUNCTION(symbol, name, version, threads, interposer, remote, result, parameters, arguments) \
    result symbol parameters;
#include "generated/driver_table.inc"
"""


def test_prototypes_are_those_of_the_header(tmp_path: Path) -> None:
    include = tool.installed_include()
    source = tmp_path / "prototypes.c"
    source.write_text(PROTOTYPES)
    compile_c("-fsyntax-only", f"-I{include}", source)
    # That this can fail: one parameter less, in a table found before the real one.
    table = (DRIVER / "generated/driver_table.inc").read_text()
    wrong = table.replace("CUresult, (CUdeviceptr * dptr, size_t bytesize)", "CUresult, (size_t bytesize)", 1)
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated/driver_table.inc").write_text(wrong)
    with pytest.raises(AssertionError, match="conflicting types"):
        compile_c("-fsyntax-only", f"-I{include}", source)


def test_a_partial_library_exports_every_function_and_nothing_else(library: Path) -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    exported = {line.split()[2].partition("@")[0] for line in listed.stdout.splitlines()}
    table = (DRIVER / "generated/driver_table.inc").read_text().splitlines()
    symbols = {line.partition("(")[2].partition(",")[0] for line in table if line.startswith("EGPU_DRIVER_FUNCTION(")}
    assert exported == symbols


def test_what_is_missing_says_so_by_name_and_once(library: Path) -> None:
    code = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(7)\n"
        "print(cuda.cuInit(0), cuda.cuInit(1), cuda.cuDeviceGetCount(ctypes.byref(n)),"
        " cuda.cuDeviceGetCount(ctypes.byref(n)), cuda.cuMemAlloc_v2(0, 0), cuda.cuTexRefCreate(0), n.value)"
    )
    done = run_python(code, library)
    assert done.stdout.split() == ["0", "1", "801", "801", "801", "801", "7"]
    assert done.stderr.splitlines() == [
        "egpu: cuDeviceGetCount is not supported by this driver",
        "egpu: cuMemAlloc_v2 is not supported by this driver",
        "egpu: cuTexRefCreate is not supported by this driver: use texture objects (cuTexObjectCreate)",
    ]


@pytest.mark.parametrize("per_thread", ["0", "1"])
def test_every_function_that_nvidias_bindings_ask_for_is_found(library: Path, tmp_path: Path, per_thread: str) -> None:
    """An oracle that is not our parser: the bindings carry their own list of (name, version), one pair per ABI."""
    asked = tmp_path / "asked"
    code = (
        "from cuda.bindings import driver\n"
        "print(int(driver.cuInit(0)[0]), int(driver.cuDeviceGetCount()[0]), driver.cuDriverGetVersion()[1])"
    )
    done = run_python(
        code, library, ASKED=str(asked), CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM=per_thread, LD_PRELOAD=str(library)
    )
    assert done.stdout.split() == ["0", "801", "13050"], done.stderr
    answers = [line.split() for line in asked.read_text().splitlines()]
    assert len(answers) > 500
    assert [a for a in answers if a[3] == "-"] == []
    symbols = [a[3] for a in answers]
    assert [s for s in set(symbols) if symbols.count(s) > 1] == []
    # They name most ABIs by the version of the typedefs, a few by the later release that documented them.
    assert len([a for a in answers if a[1] == a[4]]) > 500
    assert [a for a in answers if int(a[1]) < int(a[4])] == []
    variants = [a[3] for a in answers if a[3].endswith(("_ptds", "_ptsz"))]
    assert len(variants) > 80 if per_thread == "1" else not variants
