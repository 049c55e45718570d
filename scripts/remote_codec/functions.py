"""The functions of the driver table that generated code can carry, and the way of each of their parameters."""
# ruff: noqa: E501, PLR0912  one case per form of parameter, and lines of C read better unbroken

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

# Structs without pointers and handles (or with some that the client clears): only their bytes count.
PLAIN_STRUCTS: Final = frozenset({
    "CUDA_ARRAY_DESCRIPTOR", "CUDA_ARRAY3D_DESCRIPTOR", "CUDA_ARRAY_MEMORY_REQUIREMENTS", "CUDA_ARRAY_SPARSE_PROPERTIES",
    "CUuuid", "CUdevprop", "CUmemLocation", "CUmemAllocationProp", "CUmemAccessDesc", "CUmemPoolProps",
    "CUstreamAttrValue", "CUexecAffinityParam", "CUDA_TEXTURE_DESC", "CUDA_RESOURCE_VIEW_DESC",
})  # fmt: skip

# Structs that name a device: the client translates its ordinal and learns the server from it.
LOCATED_STRUCTS: Final = frozenset({"CUmemLocation", "CUmemAllocationProp", "CUmemAccessDesc", "CUmemPoolProps"})

# Structs with handles in them: each side translates them.
HANDLE_STRUCTS: Final = frozenset({"CUDA_RESOURCE_DESC"})

# Objects that kernels know by number: a program has the server's own number, and the executor knows all of them.
NUMBERED_KINDS: Final = frozenset({"texture_object", "surface_object"})

# Superseded ABIs whose pointers and sizes have 32 bits.
OLD_TYPES: Final = re.compile(r"\w+_v1\b|CUdeviceptr_v1")
OLD_SYMBOLS: Final = frozenset({
    "cuMemAlloc", "cuMemAllocPitch", "cuMemFree", "cuMemGetInfo", "cuMemGetAddressRange", "cuMemHostGetDevicePointer",
    "cuModuleGetGlobal", "cuDeviceTotalMem", "cuMemAllocHost", "cuCtxCreate", "cuCtxAttach", "cuCtxDetach", "cuCtxDestroy",
    "cuEventDestroy", "cuStreamDestroy", "cuStreamBeginCapture", "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync",
    "cuFuncSetBlockShape", "cuFuncSetSharedSize", "cuParamSetSize", "cuParamSetf", "cuParamSeti", "cuParamSetv", "cuParamSetTexRef",
    "cuStreamGetCaptureInfo", "cuStreamWaitValue32", "cuStreamWaitValue64", "cuStreamWriteValue32", "cuStreamWriteValue64",
})  # fmt: skip

# These may wait for the GPU: with other threads present, the executor runs them beside its loop.
BLOCKING: Final = frozenset({
    "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuCtxSynchronize_v2", "cuMemFree_v2", "cuCtxDestroy_v2",
    "cuArrayDestroy", "cuMipmappedArrayDestroy", "cuTexObjectDestroy", "cuSurfObjectDestroy",
    "cuModuleUnload", "cuLibraryUnload", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2",
})  # fmt: skip

# Never carried: they name files or host memory of the client, whose meaning would change on the server.
CLIENT_ONLY: Final = frozenset({"cuModuleLoad", "cuMemcpy", "cuMemcpyAsync", "cuLibraryLoadFromFile"})

# Local by class, but sent to the executor all the same: they are rare, and only the driver knows.
ASKED: Final = frozenset({
    "cuCtxGetFlags", "cuCtxGetCacheConfig", "cuCtxGetSharedMemConfig", "cuCtxGetApiVersion", "cuCtxGetId", "cuStreamGetFlags",
    "cuStreamGetPriority", "cuMemGetAddressRange_v2", "cuTexObjectGetResourceDesc", "cuTexObjectGetTextureDesc",
    "cuTexObjectGetResourceViewDesc", "cuSurfObjectGetResourceDesc",
})  # fmt: skip

HANDLE: Final = re.compile(r"handle\((\w+),(create|use|destroy)\)")


@dataclass(frozen=True)
class Parameter:
    """One parameter: its C type, its name, and how it travels (`form`), with the kind of handle or the struct's name."""

    ctype: str
    name: str
    form: str
    detail: str = ""
    count: str = ""

    @property
    def pointee(self) -> str:
        """The type that a pointer parameter points to, without const."""
        return self.ctype.rstrip("* ").replace("const ", "").strip() if self.ctype.endswith("*") else self.ctype


@dataclass(frozen=True)
class Function:
    """A symbol that generated code carries."""

    symbol: str
    remote: str
    parameters: tuple[Parameter, ...]

    @property
    def waits(self) -> bool:
        """Return whether the client waits for a reply."""
        return self.remote != "async"

    @property
    def has_pointers(self) -> bool:
        """Return whether the payload begins with the mask of the pointers that are not NULL."""
        return any(p.form in POINTER_FORMS for p in self.parameters)

    @property
    def owner(self) -> Parameter | None:
        """Return the argument that owns what it makes or finds: the graph of nodes, or the node of a graph."""
        made = any(
            p.form in MADE and p.detail in OWNERS and (p.form, p.detail) != ("create", "graph") for p in self.parameters
        )
        given = [p for p in self.parameters if p.form == "use" and p.detail in OWNERS]
        return min(given, key=lambda p: p.detail) if made and given else None


POINTER_FORMS: Final = frozenset({
    "out_value", "in_struct", "out_struct", "out_devptr", "create", "found", "number", "out_attribute",
    "found_list", "out_edges", "listed",
})  # fmt: skip

MADE: Final = frozenset({"create", "found", "found_list"})

# Nodes belong to their graph, and a node's graph belongs to the node.
OWNERS: Final = frozenset({"graph", "graph_node"})


def list_of_handles(ctype: str, name: str, direction: str) -> Parameter | None:
    """Return a list of handles, sent with their number, or with room for so many."""
    match = re.fullmatch(r"(in|out) array handle\((\w+),use\) len=(\*?)(\w+)", direction)
    if match and ctype.count("*") == 1 and (match[1] == "out") == bool(match[3]):
        return Parameter(ctype, name, "in_handles" if match[1] == "in" else "found_list", match[2], match[4])
    return None


def parameter(ctype: str, name: str, direction: str) -> Parameter | None:
    """Return a parameter's way, or None if generated code cannot carry it."""
    handle = HANDLE.search(direction)
    if OLD_TYPES.search(ctype):
        return None
    if "array handle" in direction:
        return list_of_handles(ctype, name, direction)
    if handle and handle[1] in NUMBERED_KINDS:
        if "*" in ctype:
            return Parameter(ctype, name, "number", handle[1])
        return Parameter(ctype, name, "end_number" if handle[2] == "destroy" else "use_number", handle[1])
    if handle and direction.startswith("out") and ctype.count("*") == 1:
        return Parameter(ctype, name, "create" if handle[2] == "create" else "found", handle[1])
    if handle and direction.startswith("in ") and "*" not in ctype:
        return Parameter(ctype, name, "destroy" if handle[2] == "destroy" else "use", handle[1])
    made = Parameter(ctype, name, "")
    match direction:
        case "in value" if ctype == "CUdevice":
            return Parameter(ctype, name, "device")
        case "in value" if "*" not in ctype:
            return Parameter(ctype, name, "in_value")
        case "out value" if ctype.count("*") == 1 and made.pointee != "CUdevice":
            return Parameter(ctype, name, "out_value")
        case "in devptr" if "*" not in ctype or ctype == "void *":
            return Parameter(ctype, name, "devptr")
        case "out devptr" if ctype == "CUdeviceptr *":
            return Parameter(ctype, name, "out_devptr")
        case "in string":
            return Parameter(ctype, name, "string")
        case "out attribute":
            return Parameter(ctype, name, "out_attribute")
        case "in attribute":
            return Parameter(ctype, name, "in_attribute")
        case "inout value" if ctype == "size_t *":
            return Parameter(ctype, name, "listed")
        case "in struct" if made.pointee in PLAIN_STRUCTS | HANDLE_STRUCTS:
            return Parameter(ctype, name, "in_struct", made.pointee)
        case "out struct" if made.pointee in PLAIN_STRUCTS | HANDLE_STRUCTS:
            return Parameter(ctype, name, "out_struct", made.pointee)
        case _:
            array = re.fullmatch(r"in array struct len=(\w+)", direction)
            if array and made.pointee == "CUgraphEdgeData":
                return Parameter(ctype, name, "in_edges", count=array[1])
            if array and made.pointee in PLAIN_STRUCTS:
                return Parameter(ctype, name, "in_array", made.pointee, array[1])
            edges = re.fullmatch(r"out array struct len=\*(\w+)", direction)
            if edges and ctype == "CUgraphEdgeData *":
                return Parameter(ctype, name, "out_edges", count=edges[1])
            return None


def carried(table: list[dict[str, Any]]) -> list[Function]:
    """Return the functions that generated code carries, in the table's order: one per symbol for the legacy stream."""
    functions: list[Function] = []
    for row in table:
        if (
            row["remote"] == "deny"
            or row["threads"] != "legacy"
            or row["symbol"] in OLD_SYMBOLS | CLIENT_ONLY
            or row["result"] != "CUresult"
        ):
            continue
        if row["remote"] == "local" and row["symbol"] not in ASKED and not row["symbol"].startswith("cuOccupancy"):
            continue
        parameters = [parameter(*p) for p in row["parameters"]]
        if all(p is not None for p in parameters):
            functions.append(Function(row["symbol"], row["remote"], tuple(p for p in parameters if p)))
    return functions


def kinds(table: list[dict[str, Any]]) -> list[str]:
    """Return the kinds of handles, in the table's order."""
    found: dict[str, None] = {}
    for row in table:
        for _, _, direction in row["parameters"]:
            if match := HANDLE.search(direction):
                found[match[1]] = None
    return list(found)
