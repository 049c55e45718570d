"""native/libraries/*.yaml: each forwarded function of a library, and how each of its parameters travels.

A function is `NAME: [waits;|gives size;] FORM NAME, …` in the order of its parameters:

    int, long, size       a value of 4, 8 and 8 bytes
    count                 an int that the library refuses below 0, and so does the client
    below N               an int that is refused from N on: a later version's attribute, which may be an address
    device                an address of the card
    stream                a stream of the driver's
    use|create|destroy K  an object of the library, of the kind K on the wire
    in|out|inout BYTES    host memory; NULL stays NULL
    scalar|result|both BYTES
                          read, written, or both, where the pointer mode of the function's object says: host or card
    keep|kept WHAT        an int that the client remembers of the object, or answers from that

`waits`: the client waits for the answer though nothing comes with it. What gives something back waits anyway.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

VALUES: Final = {"int": "int", "count": "int", "below": "int", "keep": "int", "long": "int64_t", "size": "uint64_t"}
"""Forms that are a value, and their C types."""
BY_MODE: Final = frozenset({"scalar", "result", "both"})
"""Forms whose pointer is the host's or the card's, as the pointer mode says."""
WITH_MODE: Final = ("cublas", "cublaslt_matmul")
"""Kinds that have a pointer mode."""
_FORMS: Final = (
    frozenset(VALUES) | BY_MODE | {"device", "stream", "use", "create", "destroy", "in", "out", "inout", "kept"}
)


@dataclass(frozen=True)
class Parameter:
    """One parameter: how it travels, and with what: a kind, an expression for its bytes, or what is remembered."""

    form: str
    detail: str
    name: str

    @property
    def ctype(self) -> str:
        """Its C type, as the caller of the original sees it but for names of structures and enumerations."""
        match self.form:
            case "create":
                return "void **"
            case "kept":
                return "int *"
            case "scalar" | "in":
                return "const void *"
            case form:
                return VALUES.get(form, "void *")


@dataclass(frozen=True)
class Function:
    """A forwarded function."""

    symbol: str
    parameters: tuple[Parameter, ...]
    waits: bool
    gives_size: bool

    def having(self, *forms: str) -> tuple[Parameter, ...]:
        """Its parameters of these forms."""
        return tuple(p for p in self.parameters if p.form in forms)

    @property
    def local(self) -> bool:
        """Whether the client answers it alone."""
        return bool(self.having("kept"))

    @property
    def moded(self) -> Parameter | None:
        """The object whose pointer mode counts, or of which something is remembered."""
        objects = [p for p in self.having("use", "create") if p.detail in WITH_MODE]
        return objects[0] if objects and self.having(*BY_MODE, "keep", "kept") else None


@dataclass(frozen=True)
class Library:
    """One library: its file, how it says what went wrong, and what is done of it."""

    name: str
    soname: str
    statuses: dict[str, int]
    functions: tuple[Function, ...]
    hand: tuple[str, ...]
    refused: dict[str, tuple[str, ...]]

    @property
    def exports(self) -> list[str]:
        """All that the stand-in has."""
        names = [f.symbol for f in self.functions] + list(self.hand)
        return sorted(names + [name for group in self.refused.values() for name in group])


def _parameter(where: str, text: str) -> Parameter:
    match = re.fullmatch(r"(\w+)(?: (.+))? (\w+)", text.strip())
    if match is None or match[1] not in _FORMS:
        raise ValueError(f"{where}: {text!r} is no parameter: see scripts/library_codec/table.py")
    return Parameter(match[1], match[2] or "", match[3])


def _function(symbol: str, text: str) -> Function:
    how, semicolon, rest = text.rpartition(";")
    if semicolon and how not in ("waits", "gives size"):
        raise ValueError(f"{symbol}: {how!r} is neither `waits` nor `gives size`")
    # a comma also stands within the parentheses of an expression
    parts = re.split(r",\s*(?![^()]*\))", rest.strip()) if rest.strip() else []
    parameters = tuple(_parameter(symbol, part) for part in parts)
    gives = any(p.form in ("out", "inout") for p in parameters)
    return Function(symbol, parameters, bool(semicolon) or gives, how == "gives size")


def read(path: Path) -> Library:
    """Read one table. Raises ValueError for what is no parameter, and for a name that is classified twice."""
    said: dict[str, Any] = yaml.safe_load(path.read_text())
    functions = tuple(_function(symbol, text) for symbol, text in said["functions"].items())
    refused = {why: tuple(names) for why, names in said["refused"].items()}
    library = Library(said["library"], said["soname"], said["statuses"], functions, tuple(said["hand"]), refused)
    twice = {name for name in library.exports if library.exports.count(name) > 1}
    if twice:
        raise ValueError(f"{path}: classified twice: {', '.join(sorted(twice))}")
    return library


def read_all(folder: Path) -> list[Library]:
    """All tables of a folder, in the order of their names."""
    return [read(path) for path in sorted(folder.glob("*.yaml"))]


def kinds(libraries: list[Library]) -> list[str]:
    """The kinds of objects there are, in the tables' order."""
    return list(dict.fromkeys(p.detail for x in libraries for f in x.functions for p in f.having("use", "create")))


def operations(libraries: list[Library]) -> list[str]:
    """What has a number on the wire, in the tables' order."""
    return [f.symbol for x in libraries for f in x.functions if not f.local]


def declared(function: Function) -> str:
    """Its parameters in C, with names."""
    return ", ".join(f"{p.ctype}{'' if p.ctype.endswith('*') else ' '}{p.name}" for p in function.parameters) or "void"


def types(function: Function) -> str:
    """Its parameters in C, without."""
    return ", ".join(p.ctype for p in function.parameters) or "void"
