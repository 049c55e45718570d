"""Let numba give the driver PTX instead of machine code (`egpu_base.compilers`).

A simulated card runs only PTX. numba links each kernel's PTX to a cubin before the driver sees it; here the link ends
one step earlier. A real driver takes PTX as well. Both CUDA targets are known: the package numba-cuda, and the older
one inside numba, which links with the driver's cuLink functions.

This runs inside a user's program, whose environment has numba and need not have Elastic GPU, so it imports nothing of
ours. numba imports it before its first context, as the module that NUMBA_CUDA_MEMORY_MANAGER names, its only plug-in
from the environment; the memory manager stays its own.
"""

import importlib
from typing import Any

_driver = importlib.import_module("numba.cuda.cudadrv.driver")
_numba_memory_manager = _driver.NumbaCUDAMemoryManager


def _complete(self: Any) -> Any:
    """Return the result of numba-cuda's `_Linker.complete`, a `cuda.core.ObjectCode`, but with PTX.

    Raises:
        RuntimeError: only nvJitLink can link several pieces of code.
    """
    codes: list[Any] = self._object_codes
    if self._has_ltoir:
        linked = self.get_linked_ptx()
    elif len(codes) == 1 and codes[0].code_type == "ptx":
        linked = codes[0].code
        self.linker, self._complete = codes, True  # as after a link without messages
        self._info_log = self._error_log = ""
    else:
        kinds = ", ".join(code.code_type for code in codes)
        raise RuntimeError(
            f"numba cannot link {kinds} on simulated cards; install nvidia-nvjitlink and use @cuda.jit(lto=True)"
        )
    object_code: Any = codes[0]
    return object_code.__class__.from_ptx(linked)


def _built_in_linker() -> type:
    """Return the linker for the target inside numba. It passes on the one PTX of a kernel."""

    class PtxLinker(_driver.Linker):
        info_log = error_log = ""

        def __init__(self, **_settings: object) -> None:
            self.lto = False
            self._codes: list[bytes] = []

        def add_ptx(self, ptx: bytes, name: str = "") -> None:
            self._codes.append(ptx)
            if len(self._codes) > 1:
                self.add_file(name or "PTX", "")

        def add_file(self, path: str, kind: object) -> None:
            raise _driver.LinkerError(
                f"numba's built-in CUDA target cannot link {path} on simulated cards; "
                "install numba-cuda and nvidia-nvjitlink, and use @cuda.jit(lto=True)"
            )

        def complete(self) -> bytes:
            return self._codes[0]

    return PtxLinker


if hasattr(_driver, "_Linker"):
    _driver._Linker.complete = _complete
else:
    _driver.Linker.new = _built_in_linker()  # one of numba's linkers, by its settings
