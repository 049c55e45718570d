"""Measure what parking a program costs on this card, by two documented mechanisms; one JSON line.

Needs only libcuda.so.1.

1. The driver's checkpoint (cuCheckpointProcess*): a child holds memory. It is locked, checkpointed, restored and
   unlocked, and checks its memory.
2. Mapped memory (cuMemCreate, cuMemMap): copied to pinned host memory, unmapped and released, made again at the same
   address, copied back.
"""

import ctypes as c
import json
import subprocess
import sys
import time

GIB = 1 << 30
PATTERN = 0x5EED1234
cuda = c.CDLL("libcuda.so.1")
u64, void = c.c_uint64, c.c_void_p


class Location(c.Structure):
    _fields_ = [("type", c.c_int), ("id", c.c_int)]


class Prop(c.Structure):
    _fields_ = [
        ("type", c.c_int),
        ("handles", c.c_int),
        ("location", Location),
        ("win32", void),
        ("flags", c.c_ubyte * 8),
    ]


class Access(c.Structure):
    _fields_ = [("location", Location), ("flags", c.c_int)]


def call(name: str, *arguments: object) -> None:
    result = getattr(cuda, name)(*arguments)
    if result:
        raise RuntimeError(f"{name}: {result}")


def context() -> None:
    call("cuInit", 0)
    held = void()
    call("cuDevicePrimaryCtxRetain", c.byref(held), 0)
    call("cuCtxSetCurrent", held)


def fill(pointer: u64, size: int) -> None:
    call("cuMemsetD32_v2", pointer, PATTERN, c.c_size_t(size // 4))
    call("cuCtxSynchronize")


def right(pointer: u64, size: int) -> bool:
    word = c.c_uint32()
    for at in (0, size // 2, size - 4):
        call("cuMemcpyDtoH_v2", c.byref(word), u64(pointer.value + at), c.c_size_t(4))
        if word.value != PATTERN:
            return False
    return True


def free_bytes() -> int:
    free, total = c.c_size_t(), c.c_size_t()
    call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
    return free.value


def map_at(address: u64, size: int) -> u64:
    handle = u64()
    prop = Prop(type=1, location=Location(1, 0))
    call("cuMemCreate", c.byref(handle), c.c_size_t(size), c.byref(prop), u64(0))
    call("cuMemMap", address, c.c_size_t(size), c.c_size_t(0), handle, u64(0))
    access = Access(Location(1, 0), 3)
    call("cuMemSetAccess", address, c.c_size_t(size), c.byref(access), c.c_size_t(1))
    return handle


def child(size: int) -> None:
    context()
    pointer = u64()
    call("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(size))
    fill(pointer, size)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    print(
        json.dumps({"right": right(pointer, size), "first_call_ms": round((time.monotonic() - began) * 1e3, 2)}),
        flush=True,
    )


def checkpoint(size: int) -> dict:
    context()
    program = subprocess.Popen(
        [sys.executable, __file__, "child", str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, object] = {"gib": size / GIB}
    try:
        assert program.stdin
        assert program.stdout
        if program.stdout.readline().strip() != "ready":
            return {**found, "error": "the child did not start"}
        before = free_bytes()
        lock = (c.c_uint32 * 32)(10000)
        for step, name, arguments in (
            ("lock", "cuCheckpointProcessLock", lock),
            ("checkpoint", "cuCheckpointProcessCheckpoint", None),
            ("restore", "cuCheckpointProcessRestore", None),
            ("unlock", "cuCheckpointProcessUnlock", None),
        ):
            if not hasattr(cuda, name):
                return {**found, "error": f"this driver has no {name}"}
            began = time.monotonic()
            result = getattr(cuda, name)(program.pid, arguments)
            found[f"{step}_ms"] = round((time.monotonic() - began) * 1e3, 1)
            if result:
                return {**found, "error": f"{name}: {result}"}
            if step == "checkpoint":
                found["freed_mib"] = (free_bytes() - before) >> 20
        program.stdin.write("\n")
        program.stdin.flush()
        return {**found, **json.loads(program.stdout.readline())}
    finally:
        program.kill()
        program.wait()


def mapped(size: int) -> dict:
    context()
    address, host = u64(), void()
    call("cuMemAddressReserve", c.byref(address), c.c_size_t(size), c.c_size_t(0), u64(0), u64(0))
    handle = map_at(address, size)
    fill(address, size)
    call("cuMemAllocHost_v2", c.byref(host), c.c_size_t(size))
    found: dict[str, object] = {"gib": size / GIB}
    before, began = free_bytes(), time.monotonic()
    call("cuMemcpyDtoH_v2", host, address, c.c_size_t(size))
    copied = time.monotonic()
    call("cuMemUnmap", address, c.c_size_t(size))
    call("cuMemRelease", handle)
    parked = time.monotonic()
    found |= {
        "park_ms": round((parked - began) * 1e3, 1),
        "of_which_copy_ms": round((copied - began) * 1e3, 1),
        "freed_mib": (free_bytes() - before) >> 20,
    }
    began = time.monotonic()
    handle = map_at(address, size)
    made = time.monotonic()
    call("cuMemcpyHtoD_v2", address, host, c.c_size_t(size))
    call("cuCtxSynchronize")
    found |= {
        "wake_ms": round((time.monotonic() - began) * 1e3, 1),
        "of_which_mapping_ms": round((made - began) * 1e3, 1),
        "right": right(address, size),
    }
    return found


def tried(function, size: int) -> dict:
    try:
        return function(size)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(int(sys.argv[2]))
    else:
        size = int(float(sys.argv[1]) * GIB)
        print(json.dumps({"checkpoint": tried(checkpoint, size), "mapped": tried(mapped, size)}))
