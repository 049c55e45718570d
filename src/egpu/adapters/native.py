"""Where the native libraries and programs are: in the installed package, or in the build folder of a source tree."""

from functools import cache
from pathlib import Path
from typing import Final

import egpu
from egpu.errors import NativeMissing

_PACKAGE: Final = Path(egpu.__file__).resolve().parent


@cache
def directories() -> tuple[Path, ...]:
    """The folders that are searched, first match wins. An editable install has its parts beside the sources' copy of
    the package, so every folder of the package is looked into."""
    installed = (Path(folder) / "_native" for folder in egpu.__path__)
    return (*installed, _PACKAGE.parent.parent / "build" / "native")


def search_path(others: str) -> str:
    """A PATH with our programs for slices and containers first (the samples, a small nvidia-smi), then `others`."""
    programs = [directory / name for name in ("tools", "samples") for directory in directories()]
    ours = [str(directory) for directory in programs if directory.is_dir()]
    return ":".join([*ours, *(each for each in others.split(":") if each not in ours)])


def path(name: str) -> Path:
    """Absolute path of a native artefact, such as ``libegpu-interposer.so``, ``egpu-enter`` or ``sim/libcuda.so.1``.

    Raises:
        NativeMissing: it is in none of the folders; the message says how to build it.
    """
    for directory in directories():
        candidate = directory / name
        if candidate.exists():
            return candidate
    searched = " or ".join(str(directory) for directory in directories())
    raise NativeMissing(
        f"{name} was not found in {searched}; install the package again, or in a source tree run: "
        "cmake -S native -B build/native -G Ninja && cmake --build build/native"
    )
