"""A driver that tells: each call is a line with its name, its result and every value that is a value.

Handles and addresses differ from run to run and are shown as their type alone; so are the integers of the functions
that return addresses of the host.
"""

import ctypes
import enum
import importlib
import sys
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

driver: Any = importlib.import_module("cuda.bindings.driver")
"""Compiled, and without types."""

ADDRESSES = {"cuMemHostAlloc", "cuMemAllocHost", "cuMemHostGetDevicePointer", "cuMemGetAddressRange"}
U32 = ctypes.c_uint32

PTX = r"""
.version 8.0
.target sm_70
.address_size 64
.global .align 4 .u32 counter = 7;
.const .align 4 .u32 factors[4] = {2, 3, 5, 8};
.visible .entry add(.param .u64 at, .param .u32 value)
{
    .pragma "egpu.duration_us 20";
    .reg .b32 %r<3>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [value];
    atom.global.add.u32 %r2, [%d1], %r1;
    ret;
}
.visible .entry fill(.param .u64 at, .param .u32 count, .param .f32 value, .param .u32 bias)
{
    .reg .pred %p;
    .reg .b32 %r<8>;
    .reg .f32 %f<4>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [count];
    ld.param.f32 %f1, [value];
    ld.param.u32 %r6, [bias];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra DONE;
    add.u32 %r6, %r6, %r5;
    cvt.rn.f32.u32 %f2, %r6;
    mul.f32 %f3, %f1, %f2;
    mul.wide.u32 %d2, %r5, 4;
    add.u64 %d3, %d1, %d2;
    st.global.f32 [%d3], %f3;
DONE:
    ret;
}
.visible .entry count()
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    mov.u64 %d1, counter;
    atom.global.add.u32 %r1, [%d1], 1;
    ret;
}
.visible .entry scale(.param .u64 at)
{
    .shared .align 4 .b8 cells[256];
    .reg .b32 %r<6>;
    .reg .b64 %d<6>;
    ld.param.u64 %d1, [at];
    mov.u32 %r1, %tid.x;
    and.b32 %r2, %r1, 3;
    mul.wide.u32 %d2, %r2, 4;
    mov.u64 %d3, factors;
    add.u64 %d3, %d3, %d2;
    ld.const.u32 %r3, [%d3];
    mul.wide.u32 %d4, %r1, 4;
    add.u64 %d5, %d1, %d4;
    ld.global.u32 %r4, [%d5];
    mul.lo.u32 %r5, %r4, %r3;
    st.global.u32 [%d5], %r5;
    ret;
}
"""
IMAGE = PTX.encode() + b"\0"


def shown(value: Any) -> str:
    """What of a value is the same in every run."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool | float | bytes | str) or value is None:
        return repr(value)
    if isinstance(value, int | np.integer | driver.cuuint64_t):
        return str(int(value))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(shown(one) for one in value) + "]"
    return type(value).__name__


def say(*words: Any) -> None:
    print(*(word if isinstance(word, str) else shown(word) for word in words), flush=True)


class Telling:
    """`cuda.bindings.driver` whose calls are told; they give their values: one, a tuple, or None."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(driver, name)
        if not name.startswith("cu") or isinstance(found, type):
            return found
        return lambda *arguments: self.call(name, found, arguments)

    def call(self, name: str, function: Callable[..., tuple[Any, ...]], arguments: tuple[Any, ...]) -> Any:
        result, *values = function(*arguments)
        good = int(result) == 0
        hidden = name in ADDRESSES
        told = [type(one).__name__ if hidden else shown(one) for one in values] if good else []
        say(name, result.name, *told)
        if not good or not values:
            return None
        return values[0] if len(values) == 1 else tuple(values)


d = Telling()


def context(ordinal: int = 0) -> Any:
    d.cuInit(0)
    made = d.cuDevicePrimaryCtxRetain(d.cuDeviceGet(ordinal))
    d.cuCtxSetCurrent(made)
    return made


def look(what: str, pointer: Any, count: int, kind: Any = np.uint8) -> Any:
    """Tells what lies there: all of it when it is short, its checksum otherwise."""
    data = np.zeros(count, kind)
    result = driver.cuMemcpyDtoH(data.ctypes.data, pointer, data.nbytes)[0]
    say("look", what, result.name, data.tolist() if count <= 64 else f"{zlib.crc32(data.tobytes()):08x}")
    return data


def launch(function: Any, grid: int, block: int, *arguments: Any, stream: Any = 0, shared: int = 0) -> None:
    """Arguments: pointers, or pairs of value and ctypes type."""
    values = tuple(a[0] if isinstance(a, tuple) else int(a) for a in arguments)
    types = tuple(a[1] if isinstance(a, tuple) else ctypes.c_uint64 for a in arguments)
    d.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, (values, types) if arguments else 0, 0)


def address(array: Any) -> int:
    return int(array.ctypes.data)


def end(code: int = 0) -> None:
    sys.stdout.flush()
    raise SystemExit(code)
