"""numba-cuda gives the driver PTX, where it would have made machine code of it (`egpu.adapters.compilers`).

A simulated card runs PTX alone. numba-cuda has the PTX of each kernel and links it to a cubin before the driver sees
anything; here the link ends one step earlier. A real driver takes PTX as well.

This runs inside somebody's program, whose environment has numba and need not have Elastic GPU: it imports nothing of
ours. numba-cuda imports it before it makes its first context, as the module that NUMBA_CUDA_MEMORY_MANAGER names, which
is the one plug-in that it takes from the environment; memory stays with the manager that it has without us.
"""

import importlib
from typing import Any

_driver = importlib.import_module("numba.cuda.cudadrv.driver")
_numba_memory_manager = _driver.NumbaCUDAMemoryManager


def _complete(self: Any) -> Any:
    """What `_Linker.complete` of numba-cuda returns, a `cuda.core.ObjectCode`, but of PTX.

    Raises:
        RuntimeError: several pieces of code, which only nvJitLink can link.
    """
    codes: list[Any] = self._object_codes
    if self._has_ltoir:
        linked = self.get_linked_ptx()
    elif len(codes) == 1 and codes[0].code_type == "ptx":
        linked = codes[0].code
        self.linker, self._complete = codes, True  # as after a link that had nothing to say
        self._info_log = self._error_log = ""
    else:
        kinds = ", ".join(code.code_type for code in codes)
        raise RuntimeError(
            f"on simulated cards numba cannot link {kinds}; with nvidia-nvjitlink, @cuda.jit(lto=True) can"
        )
    object_code: Any = codes[0]
    return object_code.__class__.from_ptx(linked)


_driver._Linker.complete = _complete
