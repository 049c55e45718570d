"""Facts of the runtime API from cuda_runtime_api.h, as the C preprocessor gives them to a program."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

SHIM = Path(__file__).resolve().parents[2] / "native" / "runtime" / "include"

_DECLARATION = re.compile(
    r"(cudaError_t|const char\s*\*|struct cudaChannelFormatDesc|void)\s*\b(cuda[A-Z]\w*)\s*\(([^;{}]*)\)\s*;"
)
_VERSION = re.compile(r"^\s*#\s*define\s+CUDART_VERSION\s+(\d+)", re.MULTILINE)
_ERROR = re.compile(r"\b(cuda(?:Success|Error\w+))\s*=\s*(\d+)")
_SUFFIX = re.compile(r"_pt[sd][zs]$")


class HeaderError(Exception):
    """The headers say something that the parser does not understand; the message names the function."""


@dataclass(frozen=True)
class Function:
    """One exported symbol of one major version."""

    symbol: str
    parameters: tuple[tuple[str, str], ...]
    """C type and name of each."""

    @property
    def name(self) -> str:
        """Return the name without the suffix of the per-thread default stream."""
        return _SUFFIX.sub("", self.symbol)


@dataclass(frozen=True)
class Headers:
    """The declarations of one release's headers."""

    version: int
    functions: dict[str, Function]
    errors: dict[str, int]


def read(include: Path, *, cc: str = "cc") -> Headers:
    """Read the headers in the folder `include`. Raises HeaderError when they cannot be read."""
    header = include / "cuda_runtime_api.h"
    version = _VERSION.search(header.read_text()) if header.exists() else None
    if version is None:
        raise HeaderError(f"{header}: no CUDART_VERSION")
    legacy = _preprocess(include, cc, ())
    text = legacy + _preprocess(include, cc, ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",))
    functions = {m[2]: Function(m[2], _parameters(m[3], m[2])) for m in _DECLARATION.finditer(text)}
    return Headers(int(version[1]), functions, {name: int(value) for name, value in _ERROR.findall(legacy)})


def _preprocess(include: Path, cc: str, options: tuple[str, ...]) -> str:
    command = [cc, "-E", "-P", *options, "-I", str(SHIM), "-I", str(include), "-x", "c", "-"]
    done = subprocess.run(command, input="#include <cuda_runtime_api.h>\n", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HeaderError(f"{cc} cannot preprocess the headers of {include}:\n{done.stderr}")
    return " ".join(done.stdout.split())


def _parameters(text: str, where: str) -> tuple[tuple[str, str], ...]:
    if text.strip() in ("", "void"):
        return ()
    found: list[tuple[str, str]] = []
    for part in text.split(","):
        m = re.fullmatch(r"\s*(.*?[\s*])(\w+)\s*((?:\[\w*\])?)\s*", part)
        if m is None:
            raise HeaderError(f"{where}: cannot read parameter '{part.strip()}'")
        found.append((m[1].strip() + (" *" if m[3] else ""), m[2]))
    return tuple(found)
