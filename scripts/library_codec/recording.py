"""A library with the same functions that says what arrives, and answers with bytes that a test knows."""

from __future__ import annotations

from .client import MARK
from .table import VALUES, Function, Library, Parameter, declared


def _record(p: Parameter, last: bool) -> str:
    n, on_host = p.name, f"on_host({str(last).lower()})"
    match p.form:
        case "create":
            return f"record_word(*{n} = new_object());"
        case "in":
            return f"record_bytes({n}, {p.detail});"
        case "inout":
            return f"record_bytes({n}, {p.detail});\n    fill({n}, {p.detail});"
        case "out":
            return f"fill({n}, {p.detail});"
        case "scalar":
            return f"record_scalar({n}, {p.detail}, {on_host});"
        case "both":
            return f"record_scalar({n}, {p.detail}, {on_host});\n    fill_scalar({n}, {p.detail}, {on_host});"
        case "result":
            return f"record_place({n}, {on_host});\n    fill_scalar({n}, {p.detail}, {on_host});"
        case form if form in VALUES:
            return f"record_word((void *)(uintptr_t){'(uint32_t)' if VALUES[form] == 'int' else ''}{n});"
        case _:
            return f"record_word({n});"


def _function(function: Function, noted: bool) -> str:
    scalars = function.having("scalar", "result", "both")
    lines = [_record(p, bool(scalars) and p is scalars[-1]) for p in function.parameters]
    lines += [f"kept.{p.detail} = {p.name};" for p in function.having("keep")]
    if noted:
        lines.append("note(attr, buf, sizeInBytes);")
    out = [f"{'size_t' if function.gives_size else 'int'} {function.symbol}({declared(function)}) {{"]
    out += [f'    record_begin("{function.symbol}");', *(f"    {line}" for line in lines), "    record_end();"]
    return "\n".join([*out, f"    return {'recorded_size' if function.gives_size else '0'};\n}}\n"])


def source(library: Library, noted: frozenset[str]) -> str:
    """native/tests/libraries/recording_<library>.h."""
    bodies = "\n".join(_function(f, f.symbol in noted) for f in library.functions if not f.local)
    return f"{MARK}{bodies}\n"


def names(libraries: list[Library]) -> str:
    """native/tests/libraries/recording_names.h: RECORDED(symbol) for each."""
    return MARK + "".join(f"RECORDED({f.symbol})\n" for x in libraries for f in x.functions if not f.local)
