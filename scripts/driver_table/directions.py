"""The direction of each parameter, for carrying a call to another process.

A direction is a short text: a way (`in`, `out`, `inout`), then what it is:

- `value`: as many bytes as its type has; `struct`: the same, but it may hold handles and pointers;
- `string`, `devptr`, `handle(kind,use|create|destroy)`;
- `array [element] len=PARAM`, and `bytes=PARAM`: host memory of that many bytes. `*PARAM` is read through a pointer;
- `attribute`: its size goes by the attribute asked for; `image`: a module, whose size is in its format;
- `jit`: option values; `kernel_arguments`; `callback`, and the `user_data` that is handed to it unread.

`opaque` means that the type alone does not tell. Only functions that are forwarded must be free of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from driver_table.headers import Function, Parameter

OPAQUE = "opaque"

# Handle types and our words for them.
HANDLES = {
    "CUarray": "array",
    "CUasyncCallbackHandle": "notification",
    "CUcontext": "context",
    "CUevent": "event",
    "CUexternalMemory": "external_memory",
    "CUexternalSemaphore": "external_semaphore",
    "CUfunction": "function",
    "CUgraph": "graph",
    "CUgraphDeviceNode": "graph_device_node",
    "CUgraphExec": "graph_exec",
    "CUgraphNode": "graph_node",
    "CUgraphicsResource": "graphics_resource",
    "CUgreenCtx": "green_context",
    "CUkernel": "kernel",
    "CUlibrary": "library",
    "CUlinkState": "link",
    "CUmemGenericAllocationHandle": "allocation",
    "CUmemoryPool": "pool",
    "CUmipmappedArray": "mipmapped_array",
    "CUmodule": "module",
    "CUstream": "stream",
    "CUsurfObject": "surface_object",
    "CUsurfref": "surface_reference",
    "CUtexObject": "texture_object",
    "CUtexref": "texture_reference",
    "CUuserObject": "user_object",
    "CUgraphConditionalHandle": "conditional",
    "CUdevResourceDesc": "resource_description",
}
CALLBACKS = {
    "CUasyncCallback",
    "CUcoredumpStatusCallback",
    "CUgraphRecaptureCallback",
    "CUhostFn",
    "CUlogsCallback",
    "CUoccupancyB2DSize",
    "CUstreamCallback",
}
# Functions that return something existing, rather than make it.
_FINDS = re.compile(r"cu\w*(Get|Pop|Find|Enumerate|EndCapture)")
# Types of NVIDIA's that are no structures: the device ordinal and the enumerations that functions store.
_SCALARS = re.compile(r"CUdevice|CU\w*(Status|State|Mode|Type|Result|AllocClass|_flags|_attribute|_cache|sharedconfig)")
_ENDS = re.compile(r"cu\w*(Destroy|Unload|Release|Close)(Node|MemHandle|ExternalMemory|ExternalSemaphore)?")


def derive(function: Function, overrides: Mapping[str, str]) -> tuple[str, ...]:
    """Return one direction per parameter; `overrides` (by parameter name) win."""
    return tuple(
        overrides.get(parameter.name) or _derive(function, parameter, first=index == 0)
        for index, parameter in enumerate(function.parameters)
    )


def _derive(function: Function, parameter: Parameter, *, first: bool) -> str:
    base, star, more = parameter.type.partition(" *")
    constant = base.startswith("const ")
    plain = re.sub(r"_v\d+$", "", base.removeprefix("const "))
    if not star:
        return _by_value(function, plain, first=first)
    if more:  # pointers to pointers: their targets depend on the function
        return OPAQUE
    if plain == "void":
        return OPAQUE
    if plain == "char":
        return "in string" if constant else OPAQUE
    if plain in HANDLES:
        return (
            OPAQUE if constant else f"out handle({HANDLES[plain]},{'use' if _FINDS.match(function.name) else 'create'})"
        )
    if plain == "CUdeviceptr":
        return "out devptr"
    kind = "struct" if plain.startswith("CU") and not _SCALARS.fullmatch(plain) else "value"
    return f"{'in' if constant else 'out'} {kind}"


def _by_value(function: Function, plain: str, *, first: bool) -> str:
    if plain in HANDLES:
        use = "destroy" if first and _ENDS.match(function.name) else "use"
        return f"in handle({HANDLES[plain]},{use})"
    if plain == "CUdeviceptr":
        return "in devptr"
    if plain in CALLBACKS:
        return "in callback"
    return "in value"


def returns_data(direction: str) -> bool:
    """Return whether the caller must wait for the call's answer to have its result.

    A created handle need not be waited for (the client names it), nor host memory that an asynchronous copy fills.
    """
    return (
        direction.startswith(("out", "inout"))
        and not direction.startswith("out bytes=")
        and ",create)" not in direction
    )
