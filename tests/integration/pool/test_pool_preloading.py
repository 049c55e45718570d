"""Packages that open NVIDIA's libraries one by one, by path, as PyTorch does when it is imported on a lease."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.local_pool import LocalPool, built, local_pool

pytestmark = pytest.mark.skipif(not built(), reason="the native parts are not built")

WHEELS: Final = {
    "libcublasLt.so.13": "int cublasLtCtxInit(void) { return 0; }",
    "libcublas.so.13": "int cublasLtCtxInit(void); int cublasPrivate(void) { return cublasLtCtxInit(); }",
    "libnvrtc.so.13": "int nvrtcPrivate(void) { return 0; }",
    "libnvrtc-builtins.so.13.0": "int builtinsPrivate(void) { return 0; }",
}
"""A package's libraries, in the order in which PyTorch opens them. cuBLAS calls a function of cuBLASLt that is in no
header, so no stand-in has it."""

PRELOAD: Final = """
import ctypes, json, sys
for path in sys.argv[1:]:
    ctypes.CDLL(path)
mapped = {line.split()[-1] for line in open("/proc/self/maps") if len(line.split()) > 5}
print(json.dumps([path for path in sys.argv[1:] if path in mapped]))
"""
"""What PyTorch's _preload_cuda_deps does. An error ends its list; PyTorch hides the error."""


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    with local_pool(tls=False) as made:
        made.broker()
        made.serve("one", 1)
        yield made


@pytest.fixture
def wheels(tmp_path: Path) -> dict[str, str]:
    """The libraries of WHEELS as files, by name."""
    for name, source in WHEELS.items():
        needs = ["-Wl,-z,now", "-L", tmp_path, "-l:libcublasLt.so.13"] if name == "libcublas.so.13" else []
        build = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", tmp_path / name, f"-Wl,-soname,{name}", *needs]
        subprocess.run(build, input=source, text=True, check=True)
    return {name: str(tmp_path / name) for name in WHEELS}


def test_a_list_of_libraries_goes_on_to_those_of_nvrtc(pool: LocalPool, wheels: dict[str, str]) -> None:
    """The lease's stand-ins take the place of cuBLAS and cuBLASLt, of which nothing is mapped beside them. What has no
    stand-in is opened."""
    done = pool.run([sys.executable, "-c", PRELOAD, *wheels.values()], "--no-ptx")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [wheels["libnvrtc.so.13"], wheels["libnvrtc-builtins.so.13.0"]]


def test_the_list_would_end_at_cublas(pool: LocalPool, wheels: dict[str, str]) -> None:
    """Python without the plug-in of leases (-S: no sitecustomize) shows what it is for."""
    done = pool.run([sys.executable, "-S", "-c", PRELOAD, *wheels.values()], "--no-ptx")
    assert "undefined symbol: cublasLtCtxInit" in done.stderr
