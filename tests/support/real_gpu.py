"""The real GPU of this machine, if there is one, and slices of it."""

import ctypes
import sys


def no_gpu() -> str:
    """Why nothing can be tried on a real GPU here; "" where it can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver on this machine"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the NVIDIA driver of this machine has no GPU"
    return ""


def in_slice(core: int, memory: str, *where: str) -> list[str]:
    """What comes before a command that is to run in a slice; `where` says of what, if not of this machine's card."""
    return [sys.executable, "-m", "egpu", "run", *where, "--core", str(core), "--memory", memory, "--"]
