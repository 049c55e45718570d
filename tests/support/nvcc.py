"""Compile programs of the CUDA runtime, linked to our library: the compiler's own may be older than what is called."""

import shutil
import subprocess
from pathlib import Path

import pytest

from egpu.adapters.native import path
from support.waiting import DEADLINE_SECONDS


def compile_program(source: Path, program: Path, *flags: str) -> Path:
    """Return the program. Without a compiler the test is skipped."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    library = ["-cudart", "none", "-Xlinker", str(path("runtime/libcudart.so.13"))]
    command = [nvcc, *flags, "-o", str(program), str(source), *library]
    subprocess.run(command, check=True, timeout=DEADLINE_SECONDS * 4)
    return program
