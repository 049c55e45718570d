"""native/libraries/*.yaml: each forwarded function of a library, and how each of its parameters travels.

A function is `NAME: [HOW;] FORM NAME, …` in the order of its parameters, HOW being one of the words below:

    char, int, long, size a value of 1, 4, 8 and 8 bytes
    float, double         a value of floating point
    count, wide           an int and a long that the library refuses below 0, and so does the client
    below N               an int that is refused from N on: a later version's attribute, which may be an address
    device                an address of the card
    among MASK            an int that is refused unless its bit is set: an attribute, likewise
    stream                a stream of the driver's
    bind|bound            one that the client remembers of the object, or answers from that
    streams COUNT         as many of them
    use|create|destroy K  an object of the library, of one of the table's kinds
    optional K            one that is used, or NULL
    in|out|inout BYTES    host memory; NULL stays NULL
    scalar|result|both BYTES
                          read, written, or both, where the pointer mode of the function's object says: host or card
    scale OBJECT          a factor in host memory: a double where this object's data are, otherwise a float
    set|got TYPE COUNT    host memory with so many elements; native/wire says what they are: data, objects, refused
    values PLAN PACK      none of the function's own: host memory that this pack has for what is by value in this plan
                          (native/wire/described.h)
    there                 a long in host memory: how many elements there are. No more of them are got
    scratch BYTES         host memory that only the library uses: the server's own takes its place
    keep|kept WHAT        an int that the client remembers of the object, or answers from that
    peer                  an int: the one of an object's other processes that the call is about
    residence             an int: 0 where the scalars are on the card, 1 where they are in host memory

`waits`: the client waits for the answer though nothing comes with it, or where the test holds, of the parameters and of
what it remembers of the first object. What gives something back waits anyway.
`beside`: it waits, and the executor does it in a thread of its own, since it may wait for other programs.
`grouped`: within a group of the thread it goes with all of them (native/libraries/nccl.c),
           and so does the first with a peer.
`gives size`: the function returns a constant of the library instead of a status. `gives nothing`: it returns nothing.

`wide` names functions that are another with `_64` after its name, where these `sizes` have 64 bits, and so have the
places of elements that they find (`result 4` of a name in `places`) and the elements of `arrays` in host memory.

A kind of objects is `NAME: TRAIT, …`:

    number                an int to programs, not an address
    held BYTES            what a program has as so many bytes of its own memory, and may make again there
    stays                 outlives the context in which it was made
    sizes FUNCTION        has dimensions, which this function of the library says
    mode FUNCTION [N]     has a pointer mode, which this function of the library says: as its attribute N
    described             is described by elements, which client and executor both follow (native/wire/described.h)
    settles FUNCTION N    has calls that go on after they returned N: until this function says something else
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

VALUES: Final = {
    "char": "signed char",
    "int": "int",
    "count": "int",
    "wide": "int64_t",
    "below": "int",
    "among": "int",
    "keep": "int",
    "peer": "int",
    "residence": "int",
    "long": "int64_t",
    "size": "uint64_t",
    "float": "float",
    "double": "double",
}
"""Forms that are a value, and their C types."""
BY_MODE: Final = frozenset({"scalar", "result", "both"})
"""Forms whose pointer is the host's or the card's, by the pointer mode."""
OBJECTS: Final = frozenset({"use", "optional", "create", "destroy"})
"""Forms that are an object of the library."""
NO_ATTRIBUTE: Final = -1
"""A function for a pointer mode has no other result."""
_FORMS: Final = (
    frozenset(VALUES)
    | BY_MODE
    | OBJECTS
    | {"device", "stream", "streams", "bind", "bound", "in", "out", "inout"}
    | {"scale", "set", "got", "there", "scratch", "kept", "values"}
)


@dataclass(frozen=True)
class Kind:
    """A kind of objects: its form in programs, its lifetime, and the source of its pointer mode."""

    name: str
    is_number: bool = False
    held_bytes: int = 0
    stays: bool = False
    mode: tuple[str, int] | None = None
    settles: tuple[str, int] | None = None
    sizes: str = ""
    described: bool = False

    @property
    def ctype(self) -> str:
        """Return the C type that a program holds."""
        return "int" if self.is_number else "void *"


@dataclass(frozen=True)
class Parameter:
    """One parameter: its way, with a kind, an expression for its bytes, or the remembered value."""

    form: str
    detail: str
    name: str
    kind: Kind | None = None

    @property
    def ctype(self) -> str:
        """Return its C type, as the caller of the original sees it, but for names of structures and enumerations."""
        match self.form:
            case "use" | "optional" | "destroy" if self.kind:
                return self.kind.ctype
            case "create" if self.kind and not self.kind.held_bytes:
                return f"{self.kind.ctype}*" if self.kind.ctype.endswith("*") else f"{self.kind.ctype} *"
            case "streams" | "bound":
                return "void **"
            case "kept":
                return "int *"
            case "scalar" | "in" | "scale" | "set":
                return "const void *"
            case form:
                return "int64_t *" if form == "there" else VALUES.get(form, "void *")


@dataclass(frozen=True)
class Function:
    """A forwarded function."""

    symbol: str
    parameters: tuple[Parameter, ...]
    waits: str
    """The condition in C under which the client waits for the answer; empty: never."""
    gives: str
    beside: bool = False
    grouped: bool = False

    @property
    def gives_size(self) -> bool:
        """Return whether it returns a number instead of a status."""
        return self.gives == "size"

    @property
    def returns(self) -> str:
        """Return its result type in C."""
        return {"size": "size_t", "nothing": "void"}.get(self.gives, "int")

    @property
    def own(self) -> tuple[Parameter, ...]:
        """Return the parameters that it has in C."""
        return tuple(p for p in self.parameters if p.form != "values")

    def having(self, *forms: str) -> tuple[Parameter, ...]:
        """Return its parameters of these forms."""
        return tuple(p for p in self.parameters if p.form in forms)

    @property
    def local(self) -> bool:
        """Return whether the client answers it alone."""
        return bool(self.having("kept", "bound"))

    @property
    def moded(self) -> Parameter | None:
        """Return the object with the pointer mode, or with the remembered value."""
        objects = self.having("use", "create")
        if self.having(*BY_MODE):
            objects = tuple(p for p in objects if p.kind is not None and p.kind.mode)
        remembers = self.having(*BY_MODE, "keep", "kept", "bind", "bound") or "object->" in self.waits
        return objects[0] if objects and remembers else None


@dataclass(frozen=True)
class Library:
    """One library: its file, its statuses, and its functions."""

    name: str
    soname: str
    statuses: dict[str, int]
    kinds: tuple[Kind, ...]
    functions: tuple[Function, ...]
    hand: tuple[str, ...]
    is_versioned: bool
    refused: dict[str, tuple[str, ...]]

    @property
    def exports(self) -> list[str]:
        """Return all names of the stand-in."""
        names = [f.symbol for f in self.functions] + list(self.hand)
        return sorted(names + [name for group in self.refused.values() for name in group])


def _kind(name: str, text: str | None) -> Kind:
    traits = {words[0]: words[1:] for words in (trait.split() for trait in (text or "").split(",")) if words}
    mode, held = traits.get("mode"), traits.get("held", ["0"])
    if not traits.keys() <= {"number", "held", "stays", "mode", "settles", "sizes", "described"}:
        raise ValueError(f"{name}: {text!r} are not traits: see scripts/library_codec/table.py")
    asked = (mode[0], int(mode[1]) if len(mode) > 1 else NO_ATTRIBUTE) if mode else None
    settles = traits.get("settles")
    goes_on = (settles[0], int(settles[1])) if settles else None
    sizes = traits.get("sizes", [""])[0]
    return Kind(name, "number" in traits, int(held[0]), "stays" in traits, asked, goes_on, sizes, "described" in traits)


def _parameter(where: str, text: str, kinds: dict[str, Kind]) -> Parameter:
    match = re.fullmatch(r"(\w+)(?: (.+))? (\w+)", text.strip())
    if match is None or match[1] not in _FORMS or (match[1] in OBJECTS and match[2] not in kinds):
        raise ValueError(f"{where}: {text!r} is not a parameter: see scripts/library_codec/table.py")
    return Parameter(match[1], match[2] or "", match[3], kinds[match[2]] if match[1] in OBJECTS else None)


def _function(symbol: str, text: str, kinds: dict[str, Kind]) -> Function:
    how, _, rest = text.rpartition(";")
    known = re.fullmatch(r"(?:(waits) ?(.*)|(beside)|(grouped)|gives (size|nothing))?", how)
    if known is None:
        raise ValueError(f"{symbol}: {how!r} is none of `waits`, `beside`, `grouped`, `gives size` and `gives nothing`")
    waiting, test, beside, grouped, returned = known.groups()
    # A comma may also be within the parentheses of an expression.
    parts = re.split(r",\s*(?![^()]*\))", rest.strip()) if rest.strip() else []
    parameters = tuple(_parameter(symbol, part, kinds) for part in parts)
    gives = returned or any(p.form in ("out", "inout", "got") for p in parameters)
    waits = "true" if gives or beside or (waiting and not test) else test or ""
    return Function(symbol, parameters, waits, returned or "", bool(beside), bool(grouped))


def _wide(said: dict[str, Any], kinds: dict[str, Kind]) -> list[Function]:
    """Return the functions whose sizes have 64 bits, each made from its twin's line."""
    wide: dict[str, list[str]] = said.get("wide", {"functions": []})
    made: list[Function] = []
    for symbol in wide["functions"]:
        twin = symbol.removesuffix("_64")
        if twin == symbol or twin not in said["functions"]:
            raise ValueError(f"{symbol}: no function is its narrow twin")
        text = said["functions"][twin]
        for size in wide["sizes"]:
            text = re.sub(rf"\bint {size}(?=,|$)", f"long {size}", text)
            text = re.sub(rf"\bcount {size}(?=,|$)", f"wide {size}", text)
        for array in wide["arrays"]:
            text = re.sub(rf"\bin 4 \* (\S+) {array}(?=,|$)", rf"in 8 * \1 {array}", text)
        if twin in wide["places"]:
            text = text.replace("result 4 ", "result 8 ")
        made.append(_function(symbol, text, kinds))
    return made


def read(path: Path) -> Library:
    """Read one table. Raises ValueError for an invalid kind or parameter, and for a name that is classified twice."""
    said: dict[str, Any] = yaml.safe_load(path.read_text())
    kinds = {name: _kind(name, text) for name, text in said["objects"].items()}
    functions = (
        *(_function(symbol, text, kinds) for symbol, text in said["functions"].items()),
        *_wide(said, kinds),
    )
    refused = {why: tuple(names) for why, names in said["refused"].items()}
    hand = tuple(said.get("hand", ()))
    library = Library(
        said["library"],
        said["soname"],
        said["statuses"],
        tuple(kinds.values()),
        functions,
        hand,
        said.get("versioned", True),
        refused,
    )
    twice = {name for name in library.exports if library.exports.count(name) > 1}
    if twice:
        raise ValueError(f"{path}: classified twice: {', '.join(sorted(twice))}")
    return library


def read_all(folder: Path) -> list[Library]:
    """All tables of a folder, in the order of their names."""
    return [read(path) for path in sorted(folder.glob("*.yaml"))]


def kinds(libraries: list[Library]) -> list[str]:
    """Return the kinds of objects, in the tables' order."""
    return [kind.name for x in libraries for kind in x.kinds]


def operations(libraries: list[Library]) -> list[str]:
    """Return the names with a number on the wire, in the tables' order."""
    return [f.symbol for x in libraries for f in x.functions if not f.local]


def declared(function: Function) -> str:
    """Return its parameters in C, with names."""
    return ", ".join(f"{p.ctype}{'' if p.ctype.endswith('*') else ' '}{p.name}" for p in function.own) or "void"


def types(function: Function) -> str:
    """Return its parameters in C, without names."""
    return ", ".join(p.ctype for p in function.own) or "void"
