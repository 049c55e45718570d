"""A library with the same functions that records its calls, and answers with bytes that a test knows."""

from __future__ import annotations

from typing import Final

from .client import MARK, filled
from .table import NO_ATTRIBUTE, OBJECTS, VALUES, Function, Library, Parameter, declared

_RECORDS: Final = {
    "in": "record_bytes({name}, {detail});",
    "streams": "record_bytes({name}, 8 * (size_t){detail});",
    "inout": "record_bytes({name}, {detail});\n    fill({name}, {detail});",
    "out": "fill({name}, {detail});",
    "there": "fill({name}, 8);",
    "scratch": "touch({name}, {detail});",
    "scale": "record_factor({name});",
    "set": "record_elements({name}, {elements}, false);",
    "got": "record_elements({name}, {elements}, true);",
    "scalar": "record_scalar({name}, {detail}, {on_host});",
    "both": "record_scalar({name}, {detail}, {on_host});\n    fill_scalar({name}, {detail}, {on_host});",
    "result": "record_place({name}, {on_host});\n    fill_scalar({name}, {detail}, {on_host});",
    "float": "record_bytes(&{name}, sizeof {name});",
    "double": "record_bytes(&{name}, sizeof {name});",
}

BY_HAND: Final = {
    "nccl": (
        "ncclCommInitAll", "ncclCommInitRankConfig", "ncclCommInitRankScalable", "ncclCommShrink", "ncclCommSplit",
        "ncclGroupEnd", "ncclGroupStart",
    ),
}  # fmt: skip
"""The functions that the executor calls beyond the table, by library, in native/tests/libraries/by_hand_*.h."""


def _record(p: Parameter, last: bool) -> str:
    n = p.name
    held = p.kind is not None and p.kind.held_bytes > 0
    match p.form:
        case form if form in _RECORDS:
            return filled(_RECORDS[form], p, on_host=f"on_host({str(last).lower()})")
        case "create":
            made = f"*(void **){n} = new_object()" if held else f"*{n} = ({p.ctype[:-1]})(uintptr_t)new_object()"
            return f"record_word((void *)(uintptr_t)({made}));"
        case form if form in OBJECTS:
            return f"record_word({f'*(void **){n}' if held else f'(void *)(uintptr_t){n}'});"
        case form if form in VALUES:
            return f"record_word((void *)(uintptr_t){'(uint32_t)' if VALUES[form] == 'int' else ''}{n});"
        case _:
            return f"record_word({n});"


def _function(function: Function, noted: bool, says_sizes: bool, mode: int | None = None) -> str:
    """Return a function. `mode`: its answer as an object's pointer mode, which the executor asks for, too."""
    scalars = function.having("scalar", "result", "both")
    lines = [_record(p, bool(scalars) and p is scalars[-1]) for p in function.own]
    lines = [f"kept.pointer_mode = {p.name} == 0;" for p in function.having("residence")] + lines
    lines += [f"kept.{p.detail} = {p.name};" for p in function.having("keep")]
    if noted:
        lines.append("note(attr, buf, sizeInBytes);")
    out = [f"{function.returns} {function.symbol}({declared(function)}) {{"]
    if says_sizes:
        _, wanted, _, rank, sizes, _ = (p.name for p in function.parameters)
        out.append(f"    if (recorded_sizes({wanted}, {rank}, {sizes})) return 0;")
    if mode is not None:
        of, attribute, *value = (p.name for p in function.own)
        asked = ", ".join([of, attribute, *value])
        out.append(f"    if ({attribute} == {mode}) return recorded_attribute({asked});")
    out += [f'    record_begin("{function.symbol}");', *(f"    {line}" for line in lines), "    record_end();"]
    returned = {"size": "    return recorded_size;\n", "nothing": ""}.get(function.gives, "    return 0;\n")
    return "\n".join([*out, f"{returned}}}\n"])


def _mode(function: str, attribute: int) -> str:
    """Return the function that the executor itself asks."""
    if attribute == NO_ATTRIBUTE:
        return f"int {function}(void *of, int *mode) {{ return recorded_mode(of, mode); }}\n"
    asked = "void *of, int attribute, void *value, size_t bytes, size_t *written"
    return f"int {function}({asked}) {{ return recorded_attribute(of, attribute, value, bytes, written); }}\n"


def source(library: Library, noted: frozenset[str]) -> str:
    """Return native/tests/libraries/generated/recording_<library>.h."""
    sizes = {kind.sizes for kind in library.kinds}
    modes = dict(kind.mode for kind in library.kinds if kind.mode)
    carried = [f for f in library.functions if not f.local]
    bodies = [_function(f, f.symbol in noted, f.symbol in sizes, modes.get(f.symbol)) for f in carried]
    asked = [_mode(*mode) for mode in modes.items() if mode[0] not in {f.symbol for f in carried}]
    by_hand = [f'#include "../by_hand_{library.name}.h"\n'] if library.name in BY_HAND else []
    return "\n".join([MARK, *by_hand, *bodies, *asked])


def everything(libraries: list[Library]) -> str:
    """Return native/tests/libraries/generated/recording_all.h: all of them, and their functions by name."""
    names = [f.symbol for x in libraries for f in x.functions if not f.local]
    names += [name for x in libraries for name in BY_HAND.get(x.name, ())]
    names += [kind.mode[0] for x in libraries for kind in x.kinds if kind.mode and kind.mode[0] not in names]
    included = "".join(f'#include "recording_{x.name.lower()}.h"\n' for x in libraries)
    rows = "\n".join(f'    {{"{name}", (void *){name}}},' for name in names)
    return (
        f"{MARK}{included}\n"
        f"static const struct {{\n    const char *symbol;\n    void *function;\n}} recorded[] = {{\n{rows}\n}};\n"
    )
