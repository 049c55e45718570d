"""Let Python packages use the CUDA libraries that are loaded already, although they name others by their paths.

PyTorch, JAX and others open the libraries of NVIDIA's wheels one by one, by path and before anything else. The loader
compares paths, not names. So it would map them (cuBLASLt has 540 MB) beside the preloaded ones of the same names, whose
private functions they miss: the list ends there, and what follows it is never loaded, for example NVRTC's built-ins.

This runs inside a user's program, whose environment need not have Elastic GPU, so it imports nothing of ours. Python
imports it before anything else, and only one module of this name: the next one of the path, which may be the user's
own, is run from here.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from typing import Any

_CARRIED = re.compile(
    r"lib(cublas|cublasLt|cudart|cudnn|cufft|cupti|curand|cusolver|cusparse|cusparseLt|nccl)\.so(\.\d+)+"
)


def _use_loaded_libraries() -> None:
    """Let `ctypes` answer with a loaded CUDA library of the same name, and otherwise open the path as before."""
    try:
        module: Any = importlib.import_module("_ctypes")  # ctypes itself would cost each program ten milliseconds
    except ImportError:  # a Python without it
        return
    original = module.dlopen

    def dlopen(name: Any, mode: int = os.RTLD_LOCAL) -> int:
        base = os.path.basename(os.fsdecode(name)) if isinstance(name, str | bytes) else ""
        if _CARRIED.fullmatch(base):
            try:
                return original(base, mode | os.RTLD_NOLOAD)
            except OSError:  # none is loaded
                pass
        return original(name, mode)

    module.dlopen = dlopen


def _run_next() -> None:
    """Run the module that Python would have found without this folder."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec(__name__, path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[__name__] = module
    spec.loader.exec_module(module)


_use_loaded_libraries()
_run_next()
