"""A library with the same functions that says what arrives, and answers with bytes that a test knows."""

from __future__ import annotations

from .client import MARK
from .table import NO_ATTRIBUTE, VALUES, Function, Library, Parameter, declared


def _record(p: Parameter, last: bool) -> str:
    n, on_host = p.name, f"on_host({str(last).lower()})"
    held = p.kind is not None and p.kind.held_bytes > 0
    match p.form:
        case "use" | "destroy":
            return f"record_word({f'*(void **){n}' if held else f'(void *)(uintptr_t){n}'});"
        case "create":
            made = f"*(void **){n} = new_object()" if held else f"*{n} = ({p.ctype[:-1]})(uintptr_t)new_object()"
            return f"record_word((void *)(uintptr_t)({made}));"
        case "in" | "streams":
            return f"record_bytes({n}, {p.detail if p.form == 'in' else f'8 * (size_t){p.detail}'});"
        case "inout":
            return f"record_bytes({n}, {p.detail});\n    fill({n}, {p.detail});"
        case "out":
            return f"fill({n}, {p.detail});"
        case "scratch":
            return f"touch({n}, {p.detail});"
        case "scalar":
            return f"record_scalar({n}, {p.detail}, {on_host});"
        case "both":
            return f"record_scalar({n}, {p.detail}, {on_host});\n    fill_scalar({n}, {p.detail}, {on_host});"
        case "result":
            return f"record_place({n}, {on_host});\n    fill_scalar({n}, {p.detail}, {on_host});"
        case "float" | "double":
            return f"record_bytes(&{n}, sizeof {n});"
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


def _mode(function: str, attribute: int) -> str:
    """What the executor asks the library itself."""
    if attribute == NO_ATTRIBUTE:
        return f"int {function}(void *of, int *mode) {{ return recorded_mode(of, mode); }}\n"
    asked = "void *of, int attribute, void *value, size_t bytes, size_t *written"
    return f"int {function}({asked}) {{ return recorded_attribute(of, attribute, value, bytes, written); }}\n"


def source(library: Library, noted: frozenset[str]) -> str:
    """native/tests/libraries/recording_<library>.h."""
    bodies = [_function(f, f.symbol in noted) for f in library.functions if not f.local]
    return "\n".join([MARK, *bodies, *(_mode(*kind.mode) for kind in library.kinds if kind.mode)])


def everything(libraries: list[Library]) -> str:
    """native/tests/libraries/recording_all.h: all of them, and their functions by name."""
    names = [f.symbol for x in libraries for f in x.functions if not f.local]
    names += [kind.mode[0] for x in libraries for kind in x.kinds if kind.mode]
    included = "".join(f'#include "recording_{x.name.lower()}.h"\n' for x in libraries)
    rows = "\n".join(f'    {{"{name}", (void *){name}}},' for name in names)
    return (
        f"{MARK}{included}\n"
        f"static const struct {{\n    const char *symbol;\n    void *function;\n}} recorded[] = {{\n{rows}\n}};\n"
    )
