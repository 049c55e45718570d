"""Whether the kernel of this machine has NVIDIA's driver, and when a container must begin again to get its libraries.

A runtime puts the driver's libraries into a container when it creates it. So a container that started before the driver
can never use it. It ends instead, and kubelet creates it again. A driver's libraries may come after its kernel module
(GPU Operator), so a container that began with the module and lacks the libraries ends, too, but rarely: kubelet's
back-off is over by then, and nobody sees a pod that ends again and again."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from egpu_base.runtime.beats import rest

VERSION: Final = Path("/proc/driver/nvidia/version")
"""The kernel shows this file in every container."""
LOOK_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 600.0
"""Between two beginnings with the module and without the libraries."""
_FOLDERS: Final = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
_CUDA: Final = "libcuda.so.1"


def loaded(version: Path = VERSION) -> bool:
    """Return whether the kernel has the driver."""
    return version.exists()


def has_libraries(folders: Iterable[str] = _FOLDERS) -> bool:
    """Return whether a runtime has put the driver's libraries into this container, without loading any."""
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    return any((Path(folder) / _CUDA).exists() for folder in (*named, *folders) if folder)


async def container_is_too_old(
    lacks: Callable[[], bool], *, version: Path = VERSION, look: float = LOOK_SECONDS, again: float = AGAIN_SECONDS
) -> None:
    """Return when this container must begin again to get the driver. `lacks`: whether it lacks the libraries."""
    patience = again if loaded(version) else 0.0
    waited = 0.0
    while True:
        await rest(look)
        waited = waited + look if loaded(version) and lacks() else 0.0
        if waited > patience:
            return
