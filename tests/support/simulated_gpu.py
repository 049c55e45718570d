"""A simulated machine, and programs on it: NVIDIA's own bindings, in a process of their own."""

import contextlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from egpu_sim.machines.machine import Machine, create_machine, destroy
from support.sanitizers import preloaded

PRELUDE = '''
import ctypes, json, os, sys, time
import numpy as np
from cuda.bindings import driver as d
import pynvml as n

def ok(result):
    """The values of a driver call that must succeed."""
    if int(result[0]) != 0:
        raise SystemExit(f"driver call failed: {result[0].name}")
    values = result[1:]
    return None if not values else values[0] if len(values) == 1 else values

def name(result):
    """How a driver call ended."""
    return result[0].name.removeprefix("CUDA_ERROR_").removeprefix("CUDA_")

def context(ordinal=0):
    ok(d.cuInit(0))
    ctx = ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(ordinal))))
    ok(d.cuCtxSetCurrent(ctx))
    return ctx

def upload(array):
    pointer = ok(d.cuMemAlloc(array.nbytes))
    ok(d.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
    return pointer

def download(pointer, like):
    out = np.zeros_like(like)
    ok(d.cuMemcpyDtoH(out.ctypes.data, pointer, out.nbytes))
    return out

def function(ptx, entry):
    module = ok(d.cuModuleLoadData(ptx.encode() + b"\\0"))
    return ok(d.cuModuleGetFunction(module, entry.encode()))

def launch(f, grid, block, *args, stream=0, shared=0):
    """args: (value, ctypes type) pairs; device pointers are plain."""
    values = tuple(a[0] if isinstance(a, tuple) else int(a) for a in args)
    types = tuple(a[1] if isinstance(a, tuple) else ctypes.c_uint64 for a in args)
    return d.cuLaunchKernel(f, grid, 1, 1, block, 1, 1, shared, stream, (values, types) if args else 0, 0)

def say(value):
    print(json.dumps(value), flush=True)

def wait():
    sys.stdin.readline()
'''

VECTOR_ADD = r"""
.version 8.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [b];
    ld.param.u64 %d3, [c];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p bra DONE;
    mul.wide.u32 %d4, %r5, 4;
    add.u64 %d5, %d1, %d4;
    add.u64 %d6, %d2, %d4;
    add.u64 %d7, %d3, %d4;
    ld.global.f32 %f1, [%d5];
    ld.global.f32 %f2, [%d6];
    add.f32 %f3, %f1, %f2;
    st.global.f32 [%d7], %f3;
DONE:
    ret;
}
"""

# What a compiler hands to its assembler: a kernel that stores 7.
STORE_SEVEN = """.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 at)
{
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [at];
    st.global.u32 [%d1], 7;
    ret;
}
"""

# A kernel that stores its argument and takes a declared time.
STORE = r"""
.version 8.0
.target sm_70
.address_size 64
.global .align 4 .u32 counter = 7;
.visible .entry store(.param .u64 at, .param .u32 value)
{
    .pragma "egpu.duration_us DURATION";
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [value];
    st.global.u32 [%d1], %r1;
    ret;
}
"""


def store(duration_us: float) -> str:
    return STORE.replace("DURATION", str(duration_us))


def variables(size: int) -> str:
    """A module that is nothing but variables of `size` bytes together and a kernel that writes into one of them."""
    more = "".join(f".global .b8 more{i}[{1 << 30}];\n" for i in range((size - 1) >> 30))
    size -= (size - 1) >> 30 << 30
    return f"""
.version 8.0
.target sm_70
.address_size 64
{more}.visible .global .align 16 .b8 great[{size}];
.visible .entry touch()
{{
    .reg .b32 %r;
    .reg .b64 %d;
    mov.u64 %d, great;
    mov.u32 %r, 7;
    st.global.u8 [%d+{size - 1}], %r;
    ret;
}}
"""


@contextlib.contextmanager
def machine(
    directory: Path,
    profile: str | Sequence[str] = "A100-80G",
    count: int | None = 1,
    node: str = "test",
    **options: Any,
) -> Generator[Machine]:
    made = create_machine(directory / "machine", profile, count, node, **options)
    try:
        yield made
    finally:
        destroy(made)


def environment(driver_dir: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "EGPU_", "LD_"))}
    return {**kept, **preloaded(), "LD_LIBRARY_PATH": str(driver_dir), **(extra or {})}


def source(code: str) -> str:
    constants = f"VECTOR_ADD = {VECTOR_ADD!r}\nSTORE = {STORE!r}\n"
    return PRELUDE + constants + textwrap.dedent(code)


def run(on: Machine | Path, code: str, env: Mapping[str, str] | None = None, *, fails: bool = False) -> Any:
    """Run a program to its end; what it said last (`say`), or the finished process where it is expected to fail."""
    driver_dir = on if isinstance(on, Path) else on.driver_dir
    done = subprocess.run(
        [sys.executable, "-c", source(code)],
        env=environment(driver_dir, env),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if fails:
        return done
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


class Program:
    """A program that goes on: it says things and waits for a line."""

    def __init__(self, on: Machine | Path, code: str, env: Mapping[str, str] | None = None) -> None:
        driver_dir = on if isinstance(on, Path) else on.driver_dir
        self.process = subprocess.Popen(
            [sys.executable, "-c", source(code)],
            env=environment(driver_dir, env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the program ended with {self.process.wait(30)}"
        return json.loads(line)

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):  # words for a program that had ended
                    pipe.close()
