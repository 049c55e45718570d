"""The executor's side: reads every parameter, checks every length and object, calls the server's library."""

from __future__ import annotations

from typing import Final

from .client import MARK, filled, followed, statuses
from .table import BY_MODE, Function, Kind, Library, Parameter, types

_OBJECT: Final = "{ctype} {name} = ({ctype})(uintptr_t)task_handle(task, KIND_{detail}, %d);"
_STREAM: Final = "void *{name} = (void *)(uintptr_t)task_handle(task, KIND_stream, 0);"
_ELEMENTS: Final = "struct library_elements {name};\n    library_get_elements(task, &{name});"
_SCALAR: Final = "struct library_scalar {name};\n    library_get_scalar(task, &{name}, %s);"
_HOST: Final = "size_t bytes_{name};\n    const void *sent_{name} = library_get_host(task, &bytes_{name});"
_READS: Final = {
    "use": _OBJECT % 0,
    "destroy": _OBJECT % 1,
    "optional": "{ctype} {name} = ({ctype})(uintptr_t)library_optional(task, KIND_{detail});",
    "stream": _STREAM,
    "bind": _STREAM,
    "streams": "void *{name}[LIBRARY_MOST_STREAMS];\n    int count_{name} = library_get_streams(task, {name});",
    "device": "void *{name} = (void *)(uintptr_t)get_word(&task->in);",
    "scalar": _SCALAR % "true",
    "both": _SCALAR % "true",
    "result": _SCALAR % "false",
    "scale": "struct library_scalar {name};\n    library_get_factor(task, &{name});",
    "set": _ELEMENTS,
    "got": _ELEMENTS,
    "values": _HOST,
    "in": _HOST,
    "inout": _HOST,
    "out": "bool wanted_{name} = get_word(&task->in) != 0;",
    "scratch": "void *{name} = NULL;",
}


def _read(p: Parameter) -> str:
    if p.form != "create" or p.kind is None:
        return filled(_READS.get(p.form, "{ctype} {name} = 0;\n    get_bytes(&task->in, &{name}, sizeof {name});"), p)
    memory = f"library_memory(KIND_{p.detail}, id_{p.name})" if p.kind.held_bytes else "0"
    return f"uint64_t id_{p.name} = get_word(&task->in);\n    {p.kind.ctype} {p.name} = {memory};"


def _prepared(p: Parameter) -> list[str]:
    """Return the code that depends on the values of other parameters."""
    n = p.name
    match p.form:
        case "in":
            return [f"library_check_host(task, sent_{n}, bytes_{n}, {p.detail});"]
        case "inout":
            return [
                f"library_check_host(task, sent_{n}, bytes_{n}, {p.detail});",
                f"void *{n} = library_room(task, sent_{n} != NULL, {p.detail});",
                f"if ({n} != NULL && sent_{n} != NULL) memcpy({n}, sent_{n}, bytes_{n});",
            ]
        case "there":
            return [f"int64_t *{n} = library_room(task, true, 8);"]
        case "set" | "got":
            return [filled(f"library_{p.form}_elements(task, &{{name}}, {{elements}});", p)]
        case "below":
            return [f"if ({n} >= {p.detail} || {n} < 0) task->bad = CUDA_ERROR_NOT_SUPPORTED;"]
        case "scratch":
            return [f"{n} = library_scratch(task, {p.detail});"]
        case "among":
            return [f"if (!is_among({n}, {p.detail})) task->bad = CUDA_ERROR_NOT_SUPPORTED;"]
        case "streams":
            return [f"if (count_{n} != {p.detail}) task->bad = CUDA_ERROR_INVALID_VALUE;"]
        case "create" if p.kind and p.kind.held_bytes:
            return [f"if ({n} == NULL) task->bad = CUDA_ERROR_OUT_OF_MEMORY;"]
        case "out":
            return [f"void *{n} = library_room(task, wanted_{n}, {p.detail});"]
        case _:
            return []


def _argument(p: Parameter) -> str:
    match p.form:
        case "create" if p.kind and not p.kind.held_bytes:
            return f"&{p.name}"
        case "scalar" | "result" | "both":
            return f"library_scalar_at(&{p.name})"
        case "scale":
            return f"{p.name}.value"
        case "set" | "got":
            return f"{p.name}.at"
        case "in":
            return f"sent_{p.name}"
        case _:
            return p.name


def _done(function: Function, p: Parameter) -> list[str]:
    match p.form:
        case "create" if p.kind and p.kind.held_bytes:
            return [f"library_hold(task, KIND_{p.detail}, id_{p.name}, {p.name});"]
        case "create":
            return [f"handle_bind(task, KIND_{p.detail}, id_{p.name}, (uint64_t)(uintptr_t){p.name});"]
        case "destroy":
            freed = [f"library_free({p.name});"] if p.kind and p.kind.held_bytes else []
            gone = [f"described_gone((uint64_t)(uintptr_t){p.name});"] if p.kind and p.kind.described else []
            return [f"handle_unbind(task, KIND_{p.detail});", *gone, *freed]
        case "set":
            return [followed(function, p, f"&{p.name}.are", f"{p.name}.at")]
        case "got":
            taken = followed(function, p, f"&{p.name}.are", f"{p.name}.at")
            return [taken, f"library_name_elements(task, &{p.name});"]
        case "result" | "both":
            return [f"library_put_result(task, &{p.name});"]
        case _:
            return []


def _decoder(library: Library, function: Function) -> str:
    out = [f"static CUresult decode_{function.symbol}(struct task *task) {{"]
    out.append(f"    REAL({library.name}, {function.symbol}, {function.returns}, {types(function)});")
    out.append(f"    {'' if function.gives else 'uint8_t *status = '}library_begin(task);")
    out += [f"    {_read(p)}" for p in function.parameters if p.form != "there"]
    lengths = [p.detail for p in function.having("in", "inout", "out")]
    counts = [p.name for p in function.having("wide") if any(f"(uint64_t){p.name}" in text for text in lengths)]
    out += [f"    library_check_count(task, {name});" for name in counts]
    out += [f"    {line}" for p in function.parameters for line in _prepared(p)]
    out.append(f"    REFUSE({library.name});")
    scalars = function.having(*BY_MODE)
    if function.moded is not None and scalars:
        out.append(
            f"    int mode = library_pointer_mode(&library_kinds[KIND_{function.moded.detail}], {function.moded.name});"
        )
    out += [f"    int mode = {p.name} == 0;" for p in function.having("residence")]
    out += [f"    PLACED({p.name}, {str(p is scalars[-1]).lower()});" for p in scalars]
    call = f"real({', '.join(_argument(p) for p in function.own)})"
    if function.gives:
        said = f"put_word(&task->out, {call})" if function.gives_size else call
        out.append(f"    {said};\n    return CUDA_SUCCESS;\n}}\n")
        return "\n".join(out)
    ends = [p for p in function.having("destroy") if p.kind and p.kind.settles]
    uses = [p for p in function.having("use") if p.kind and p.kind.settles]
    for p, enters in (*((p, "library_end_begin") for p in ends), *((p, "library_enter") for p in uses)):
        out.append(f"    if (!{enters}(KIND_{p.detail}, {p.name})) return CUDA_ERROR_INVALID_HANDLE;")
    for p in function.having("values"):
        plan, pack = p.detail.split(" ")
        values = f"library_values(&{p.name}, {plan}, {pack}, sent_{p.name}, bytes_{p.name})"
        out.append(f"    struct library_values {p.name};\n    CUresult is_{p.name} = {values};")
        out.append(f"    if (is_{p.name} != CUDA_SUCCESS) return is_{p.name};")
        call = call.replace(pack, f"{p.name}.pack")
    out.append(f"    int said = {call};")
    out += [
        f"    said = library_settle(LIBRARY_{library.name},"
        f' "{p.kind.settles[0]}", {p.kind.settles[1]}, {p.name}, said);'
        for p in uses
        if p.kind and p.kind.settles and function.symbol != p.kind.settles[0]
    ]
    out += [f"    library_leave({p.name});" for p in uses]
    out += [f"    library_scratch_end({p.detail});" for p in function.having("scratch")]
    out += [f"    library_values_end(&{p.name});" for p in function.having("values")]
    out += [f"    if (said == 0) handle_unbind(task, KIND_{p.detail});" for p in ends]
    out += [f"    library_end_done({p.name});" for p in ends]
    out.append(f"    if (said != 0) return library_failed(task, status, said, LIBRARY_{library.name});")
    out += [f"    {line}" for p in function.parameters if p not in ends for line in _done(function, p)]
    out.append("    return CUDA_SUCCESS;\n}\n")
    return "\n".join(out)


def _kind(library: Library, kind: Kind) -> str:
    """Return a struct library_kind."""
    fields = [f".of = LIBRARY_{library.name}", f".stays = {str(kind.stays).lower()}"]
    if kind.mode is not None:
        fields += [f'.mode = "{kind.mode[0]}"', f".attribute = {kind.mode[1]}"]
    if kind.sizes:
        fields.append(f'.sizes = "{kind.sizes}"')
    return f"    [KIND_{kind.name}] = {{{', '.join(fields)}}},"


def identities(libraries: list[Library]) -> str:
    """Return native/executor/generated/library_ids.h: the list of libraries."""
    return f"{MARK}enum library_id {{ {', '.join(f'LIBRARY_{x.name}' for x in libraries)}, LIBRARIES }};\n"


def _flags(function: Function) -> str:
    return "OPERATION_BESIDE" if function.beside else "OPERATION_GROUPED" if function.grouped else "0"


def source(libraries: list[Library]) -> str:
    """Return native/executor/generated/library_decoders.c."""
    functions = [(x, f) for x in libraries for f in x.functions if not f.local]
    bodies = "\n".join(_decoder(x, f) for x, f in functions)
    rows = "\n".join(f"    [OP_{f.symbol}] = {{decode_{f.symbol}, {_flags(f)}}}," for _, f in functions)
    about = "\n".join(f'    [LIBRARY_{x.name}] = {{"{x.soname}", {statuses(x)}}},' for x in libraries)
    kinds = "\n".join(_kind(x, kind) for x in libraries for kind in x.kinds)
    return (
        f'{MARK}#include "executor/libraries/library_sizes.h"\n\n'
        f"const struct library_facts library_facts[LIBRARIES] = {{\n{about}\n}};\n"
        f"const struct library_kind library_kinds[KIND_COUNT] = {{\n{kinds}\n}};\n\n{bodies}\n"
        f"const struct operation library_operations[OP_COUNT] = {{\n{rows}\n}};\n"
    )
