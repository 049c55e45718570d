"""Which functions of the driver table can be carried by generated code, and how each of their parameters travels."""
# ruff: noqa: E501, PLR0912  one case per form of parameter, and lines of C read better unbroken

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

# Structs without pointers and handles in them (or with ones that the client clears): their bytes are their meaning.
PLAIN_STRUCTS: Final = frozenset({
    "CUDA_ARRAY_DESCRIPTOR", "CUDA_ARRAY3D_DESCRIPTOR", "CUDA_ARRAY_MEMORY_REQUIREMENTS", "CUDA_ARRAY_SPARSE_PROPERTIES",
    "CUuuid", "CUdevprop", "CUmemLocation", "CUmemAllocationProp", "CUmemAccessDesc", "CUmemPoolProps",
    "CUstreamAttrValue", "CUexecAffinityParam",
})  # fmt: skip

# Structs that name a device: the client translates its ordinal and learns the server from it.
LOCATED_STRUCTS: Final = frozenset({"CUmemLocation", "CUmemAllocationProp", "CUmemAccessDesc", "CUmemPoolProps"})

# Superseded ABIs whose pointers and sizes have 32 bits.
OLD_TYPES: Final = re.compile(r"\w+_v1\b|CUdeviceptr_v1")
OLD_SYMBOLS: Final = frozenset({
    "cuMemAlloc", "cuMemAllocPitch", "cuMemFree", "cuMemGetInfo", "cuMemGetAddressRange", "cuMemHostGetDevicePointer",
    "cuModuleGetGlobal", "cuDeviceTotalMem", "cuMemAllocHost", "cuCtxCreate", "cuCtxAttach", "cuCtxDetach", "cuCtxDestroy",
    "cuEventDestroy", "cuStreamDestroy", "cuStreamBeginCapture", "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync",
    "cuFuncSetBlockShape", "cuFuncSetSharedSize", "cuParamSetSize", "cuParamSetf", "cuParamSeti", "cuParamSetv", "cuParamSetTexRef",
    "cuStreamGetCaptureInfo", "cuStreamWaitValue32", "cuStreamWaitValue64", "cuStreamWriteValue32", "cuStreamWriteValue64",
})  # fmt: skip

# These may wait for the GPU: with other threads about, the executor runs them beside its loop.
BLOCKING: Final = frozenset({
    "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuCtxSynchronize_v2", "cuMemFree_v2", "cuCtxDestroy_v2",
    "cuModuleUnload", "cuLibraryUnload", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2",
})  # fmt: skip

# Carried by nobody: they name files or host memory, which are the client's, and whose meaning would change over there.
CLIENT_ONLY: Final = frozenset({"cuModuleLoad", "cuMemcpy", "cuMemcpyAsync", "cuLibraryLoadFromFile"})

# Local by class, but asked of the executor all the same: rare, and only the driver knows.
ASKED: Final = frozenset({
    "cuCtxGetFlags", "cuCtxGetCacheConfig", "cuCtxGetSharedMemConfig", "cuCtxGetApiVersion", "cuCtxGetId", "cuStreamGetFlags",
    "cuStreamGetPriority", "cuMemGetAddressRange_v2",
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
        """Whether the client waits for a reply."""
        return self.remote != "async"

    @property
    def has_pointers(self) -> bool:
        """Whether the payload begins with the mask of the pointers that are not NULL."""
        return any(p.form in POINTER_FORMS for p in self.parameters)


POINTER_FORMS: Final = frozenset(
    {"out_value", "in_struct", "out_struct", "out_devptr", "create", "found", "out_attribute"}
)


def parameter(ctype: str, name: str, direction: str) -> Parameter | None:
    """How a parameter travels, or None if generated code cannot carry it."""
    handle = HANDLE.search(direction)
    if OLD_TYPES.search(ctype) or "array handle" in direction:
        return None
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
        case "in struct" if made.pointee in PLAIN_STRUCTS:
            return Parameter(ctype, name, "in_struct", made.pointee)
        case "out struct" if made.pointee in PLAIN_STRUCTS:
            return Parameter(ctype, name, "out_struct", made.pointee)
        case _:
            array = re.fullmatch(r"in array struct len=(\w+)", direction)
            if array and made.pointee in PLAIN_STRUCTS:
                return Parameter(ctype, name, "in_array", made.pointee, array[1])
            return None


def carried(table: list[dict[str, Any]]) -> list[Function]:
    """The functions that generated code carries, in the table's order: one per symbol for the legacy default stream."""
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
    """The kinds of handles there are, in the table's order."""
    found: dict[str, None] = {}
    for row in table:
        for _, _, direction in row["parameters"]:
            if match := HANDLE.search(direction):
                found[match[1]] = None
    return list(found)
