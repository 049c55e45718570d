"""Servers whose libraries of NVIDIA are elsewhere than beside the driver, by real processes."""

import sys
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import DRIVER, Machine
from support.local_pool import built, local_pool

pytestmark = pytest.mark.skipif(not built(), reason="the native parts are not built")

CARDS = ("A100-80G", 1)
ASK: Final = """
import ctypes
handle = ctypes.c_void_p()
print([ctypes.CDLL(name)[call](ctypes.byref(handle)) for name, call in (
    ("libcublas.so.13", "cublasCreate_v2"), ("libcudnn.so.9", "cudnnCreate"))])
"""
NOT_INITIALIZED: Final = 1001
"""CUDNN_STATUS_NOT_INITIALIZED"""


def test_executors_use_libraries_of_named_folders_and_differences_are_told(sim: Machine, tmp_path: Path) -> None:
    """A driver whose folder has nothing but the driver, a folder with cuBLAS, and a program with another cuBLAS."""
    driver, named, packages = tmp_path / "driver", tmp_path / "named", tmp_path / "env/lib/python3/site-packages"
    for folder in (driver, named, packages / "nvidia/cu13/lib", packages / "nvidia_cublas-13.1.0.3.dist-info"):
        folder.mkdir(parents=True)
    for name in (*DRIVER, "machine", "dev"):
        (driver / name).symlink_to((sim.driver_dir / name).resolve())
    (named / "libcublas.so.13.0.2").write_bytes((sim.driver_dir / "libcublas.so.13").read_bytes())
    (named / "libcublas.so.13").symlink_to("libcublas.so.13.0.2")
    (packages / "nvidia/cu13/lib/libcublas.so.13").touch()
    (tmp_path / "env/bin").mkdir()
    (python := tmp_path / "env/bin/python").symlink_to(sys.executable)
    with local_pool(tls=False) as pool:
        pool.broker()
        pool.serve("one", 1, "--driver-dir", str(driver), "--library-path", str(named))
        assert [one["libraries"] for one in pool.servers()] == [{"cublas": "13.0.2"}]
        assert '"libraries": {"cublas": "13.0.2"}' in (pool.directory / "one.log").read_text()
        done = pool.run([str(python), "-c", ASK], "--no-ptx")
    assert done.stdout.strip() == str([0, NOT_INITIALIZED]), done.stderr
    told = "libraries of one differ from the command's packages: cublas 13.0.2 (here 13.1.0.3)"
    assert done.stderr.count(told) == 1, done.stderr
