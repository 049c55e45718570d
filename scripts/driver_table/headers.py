"""Facts of the driver API from `cuda.h` and `cudaTypedefs.h`.

The C preprocessor does the hard part: with `__CUDA_API_VERSION_INTERNAL` defined the headers declare every exported
symbol, old ABIs and per-thread-stream variants included, and the typedefs header names each ABI's CUDA version
(`PFN_cuMemAlloc_v3020`). The n-th ABI of a function is the n-th version of its typedefs.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

# Interop headers declare driver functions too; a wheel may lack some of them.
DECLARING = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
VERSIONING = (
    "cudaTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
    "cudaProfilerTypedefs.h",
)
# Headers those include and whose content does not matter: declarations are read, not compiled.
ABSENT = (
    "stdlib.h",
    "stdint.h",
    "stddef.h",
    "GL/gl.h",
    "EGL/egl.h",
    "EGL/eglext.h",
    "vdpau/vdpau.h",
    "cudaProfiler.h",
)

LEGACY = "legacy"
PER_THREAD = "per_thread"

_DECLARATION = re.compile(r"(?<![\w*])([A-Za-z_]\w*)\s+(cu[A-Z]\w*)\s*\(([^;{}]*)\)\s*;")
_TYPEDEF = re.compile(r"typedef\s+(\w+)\s*\(\s*\*\s*PFN_(cu\w+?)_v(\d+)(_ptds|_ptsz)?\s*\)\s*\(([^;]*)\)\s*;")
_SYMBOL = re.compile(r"(cu\w+?)(?:_v(\d+))?(_ptds|_ptsz)?")
_VERSION = re.compile(r"^\s*#\s*define\s+CUDA_VERSION\s+(\d+)", re.MULTILINE)
_RENAMED = re.compile(r"^#define (cu[A-Z]\w*) (cu[A-Z]\w*)$", re.MULTILINE)


class HeaderError(Exception):
    """The headers say something that the parser does not understand; the message names the function."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: C type (single spaces, `*` last) and name."""

    type: str
    name: str


@dataclass(frozen=True)
class Function:
    """One exported symbol, that is one ABI of one function."""

    symbol: str  # cuMemAlloc_v2
    name: str  # cuMemAlloc: the name for cuGetProcAddress
    version: int  # 3020: the CUDA version from which cuGetProcAddress answers with this symbol
    threads: str  # LEGACY or PER_THREAD default stream
    result: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Headers:
    """The declarations of one CUDA release's headers."""

    version: int  # CUDA_VERSION: 13050 is 13.5
    functions: dict[str, Function]  # by symbol
    renamed: dict[str, str]  # the link name of a program compiled with these headers: cuMemAlloc -> cuMemAlloc_v2


def read(include: Path, *, cc: str = "cc") -> Headers:
    """Read the headers of the folder `include`. Raises HeaderError when versions and symbols do not line up."""
    version = _VERSION.search((include / "cuda.h").read_text())
    if version is None:
        raise HeaderError(f"{include / 'cuda.h'}: no CUDA_VERSION")
    declarations = _declarations(_preprocess(include, DECLARING, cc, ("-P",)))
    versions = _versions(_preprocess(include, VERSIONING, cc, ("-P",)))
    # The profiler functions ship without their header; their typedefs are enough, as they have one ABI each.
    for name, found in versions.items():
        if name.startswith("cuProfiler") and name not in declarations and len(found) == 1:
            declarations[name] = (found[0].result, found[0].parameters)
    return Headers(int(version[1]), _functions(declarations, versions), _renames(include, cc))


@dataclass(frozen=True)
class _Typedef:
    version: int
    per_thread: bool
    result: str
    parameters: tuple[Parameter, ...]


def _preprocess(include: Path, headers: tuple[str, ...], cc: str, options: tuple[str, ...]) -> str:
    text = "".join(f"#include <{header}>\n" for header in headers if (include / header).exists())
    with tempfile.TemporaryDirectory() as empty:
        for header in ABSENT:
            path = Path(empty, header)
            path.parent.mkdir(exist_ok=True)
            path.touch()
        command = [cc, "-E", *options, "-nostdinc", "-I", str(include), "-I", empty, "-x", "c", "-"]
        internal = [] if "-dM" in options else ["-D__CUDA_API_VERSION_INTERNAL"]
        done = subprocess.run([*command, *internal], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HeaderError(f"{cc} cannot preprocess {', '.join(headers)} of {include}:\n{done.stderr}")
    return done.stdout


def _declarations(text: str) -> dict[str, tuple[str, tuple[Parameter, ...]]]:
    return {m[2]: (m[1], parameters(m[3], m[2])) for m in _DECLARATION.finditer(text)}


def _versions(text: str) -> dict[str, list[_Typedef]]:
    found: dict[str, list[_Typedef]] = defaultdict(list)
    for m in _TYPEDEF.finditer(text):
        found[m[2]].append(_Typedef(int(m[3]), m[4] is not None, m[1], parameters(m[5], m[2])))
    return found


def _renames(include: Path, cc: str) -> dict[str, str]:
    macros = _preprocess(include, DECLARING[:1], cc, ("-dM",))
    # Macros of the default mode still wrap the names of functions that have a per-thread variant.
    unwrapped = re.sub(r"__CUDA_API_PT(?:DS|SZ)\((\w+)\)", r"\1", macros)
    return {m[1]: m[2] for m in _RENAMED.finditer(unwrapped) if m[1] != m[2]}


def _functions(
    declarations: dict[str, tuple[str, tuple[Parameter, ...]]], versions: dict[str, list[_Typedef]]
) -> dict[str, Function]:
    abis: dict[tuple[str, bool], list[tuple[int, str]]] = defaultdict(list)
    for symbol in declarations:
        m = _SYMBOL.fullmatch(symbol)
        if m is None:
            raise HeaderError(f"{symbol}: not a driver function's name")
        abis[m[1], m[3] is not None].append((int(m[2] or 1), symbol))
    functions: dict[str, Function] = {}
    for (name, per_thread), symbols in abis.items():
        typedefs = sorted((t for t in versions.get(name, []) if t.per_thread == per_thread), key=lambda t: t.version)
        if len(typedefs) != len(symbols):
            listed = ", ".join(symbol for _, symbol in sorted(symbols))
            found = ", ".join(str(t.version) for t in typedefs) or "none"
            raise HeaderError(f"{name}: symbols {listed}, but the typedefs give versions {found}")
        for (_, symbol), typedef in zip(sorted(symbols), typedefs, strict=True):
            result, params = declarations[symbol]
            _agree(symbol, typedef, params)
            threads = PER_THREAD if per_thread else LEGACY
            functions[symbol] = Function(symbol, name, typedef.version, threads, result, params)
    declared = {name for name, _ in abis}
    for name in versions:
        if name not in declared:
            raise HeaderError(f"{name}: has a version but no declaration")
    return dict(sorted(functions.items()))


def _agree(symbol: str, typedef: _Typedef, params: tuple[Parameter, ...]) -> None:
    """Check the pairing: the order of versions is only a convention, but differing signatures prove it wrong."""
    ours = [signature_type(p.type) for p in params]
    theirs = [signature_type(p.type) for p in typedef.parameters]
    if ours != theirs:
        raise HeaderError(f"{symbol}: declared ({', '.join(ours)}), but version {typedef.version} is {theirs}")


def signature_type(type_: str) -> str:
    """Return a parameter's type, as far as two declarations of one ABI must agree on it."""
    # The typedefs spell out the version of a structure (CUdevice_v1) where the declaration uses its current alias.
    # A `const` of a value parameter is no part of the signature.
    plain = re.sub(r"_v\d+\b", "", type_)
    return plain if "*" in plain else plain.removeprefix("const ")


def parameters(text: str, where: str) -> tuple[Parameter, ...]:
    """Return the parameters of a C declaration, which are never function pointers or variadic in the driver API."""
    text = " ".join(text.split())
    if text in ("", "void"):
        return ()
    found: list[Parameter] = []
    for part in text.split(","):
        m = re.fullmatch(r"(.*?[\s*])(\w+)\s*((?:\[\w*\])*)", part.strip())
        if m is None:
            raise HeaderError(f"{where}: cannot read parameter '{part.strip()}'")
        stars = "*" * m[3].count("[")
        found.append(Parameter(_type(m[1] + stars), m[2]))
    return tuple(found)


def _type(text: str) -> str:
    words = " ".join(re.sub(r"\*", " * ", text).split())
    return re.sub(r"\*\s+(?=\*)", "*", words)
