"""Runs inside a container: what it sees of its GPUs, through CUDA alone, as one line of JSON. No package is needed."""

import ctypes
import json


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise SystemExit(f"{name}: CUDA error {code}")

    count = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    cards: list[dict[str, object]] = []
    for ordinal in range(count.value):
        device, context, identity = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_ubyte * 16)()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        call("cuDeviceGet", ctypes.byref(device), ordinal)
        call("cuDeviceGetUuid", ctypes.byref(identity), device)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        digits = bytes(identity).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        cards.append(
            {"uuid": "GPU-" + "-".join(parts), "total_mib": total.value // 2**20, "limit": holds(cuda, total.value)}
        )
    print(json.dumps(cards))


def holds(cuda: ctypes.CDLL, total_bytes: int) -> bool:
    """Whether nearly all that is shown can be had, and no more than it."""
    pointer, beyond = ctypes.c_void_p(), ctypes.c_void_p()
    nearly = max(total_bytes - 512 * 2**20, total_bytes // 2)
    if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(nearly)):
        return False
    refused = bool(cuda.cuMemAlloc_v2(ctypes.byref(beyond), ctypes.c_size_t(total_bytes - nearly + 2**21)))
    cuda.cuMemFree_v2(pointer)
    return refused


main()
