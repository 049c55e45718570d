"""Memory: fills, copies of all kinds and shapes, pools, pinned memory, addresses, and what is refused about them."""
# ruff: noqa: E501  calls of the driver read better on one line

import ctypes
import zlib
from typing import Any

import numpy as np
from telling import address, context, d, look, say

ctx = context()
H, D = d.CUmemorytype.CU_MEMORYTYPE_HOST, d.CUmemorytype.CU_MEMORYTYPE_DEVICE
stream = d.cuStreamCreate(1)
free = d.cuMemGetInfo()

say("# fills")
a = d.cuMemAlloc(4096)
d.cuMemsetD8(a, 1, 4096)
d.cuMemsetD16(int(a) + 2, 0x0203, 3)
d.cuMemsetD32(int(a) + 8, 0x04050607, 2)
d.cuMemsetD2D8(int(a) + 16, 8, 9, 3, 3)
d.cuMemsetD2D16(int(a) + 40, 8, 0x0A0B, 1, 2)
d.cuMemsetD2D32(int(a) + 56, 8, 0x0C0D0E0F, 1, 1)
look("fills", a, 64)
d.cuMemsetD8Async(a, 17, 5, stream)
d.cuMemsetD16Async(int(a) + 6, 0x1213, 2, stream)
d.cuMemsetD32Async(int(a) + 12, 0x14151617, 3, stream)
d.cuMemsetD2D8Async(int(a) + 24, 6, 24, 2, 2, stream)
d.cuMemsetD2D16Async(int(a) + 36, 10, 0x1920, 2, 2, stream)
d.cuMemsetD2D32Async(int(a) + 52, 8, 0x21222324, 1, 1, stream)
d.cuStreamSynchronize(stream)
look("fills in a stream", a, 64)
d.cuMemsetD8(a, 0, 0)
d.cuMemsetD2D8(a, 16, 0, 0, 4)
d.cuMemsetD8(a, 1, 4097)
d.cuMemsetD16(int(a) + 1, 1, 1)
d.cuMemsetD32(int(a) + 2, 1, 1)
d.cuMemsetD32(0, 1, 1)
d.cuMemsetD32(a, 1, 1 << 62)
d.cuMemsetD16Async(a, 1, 1 << 63, stream)
d.cuMemsetD2D8Async(a, 1 << 60, 1, 1, 1 << 10, stream)
d.cuMemsetD2D8(a, 4, 1, 8, 4)
d.cuMemsetD2D32(a, 4096, 1, 1, 2)
d.cuMemsetD8Async(a, 1, 1, d.CUstream(0x1234560))

say("# copies in a row")
data = np.random.default_rng(7).integers(0, 255, 3_000_017, dtype=np.uint8)
b, c = d.cuMemAlloc(data.nbytes), d.cuMemAlloc(data.nbytes)
d.cuMemcpyHtoD(b, address(data), data.nbytes)
d.cuMemcpyDtoD(c, b, data.nbytes)
look("through the card", c, data.nbytes)
d.cuMemcpy(int(b) + 100, int(c) + 200, 1000)
d.cuMemcpyAsync(int(b) + 5000, int(c) + 300, 1001, stream)
d.cuMemcpyDtoDAsync(int(b) + 9000, int(c) + 7, 13, stream)
part = np.zeros(2_000_001, np.uint8)
d.cuMemcpyDtoHAsync(address(part), int(b) + 11, part.nbytes, stream)
d.cuStreamSynchronize(stream)
say("part", f"{zlib.crc32(part.tobytes()):08x}")
d.cuMemcpyHtoDAsync(int(c) + 1, address(part), part.nbytes, stream)
d.cuStreamSynchronize(stream)
look("there again", c, data.nbytes)
d.cuMemcpyHtoD(b, address(data), 0)
d.cuMemcpyHtoD(b, address(data), data.nbytes + 1)
d.cuMemcpyHtoDAsync(int(b) + 4, address(data), data.nbytes, stream)
d.cuStreamSynchronize(stream)
d.cuMemcpyHtoD(0x10, address(data), data.nbytes)
d.cuCtxSynchronize()
d.cuMemcpyHtoD(0, address(data), 4)
d.cuMemcpyHtoD(b, 0, 4)
d.cuMemcpyDtoH(0, b, 4)
d.cuMemcpyDtoH(address(part), int(b) + data.nbytes - 3, 4)
d.cuMemcpyDtoD(b, int(c) + data.nbytes, 1)
d.cuMemcpyDtoHAsync(address(part), b, 4, d.CUstream(0x1234560))
d.cuMemcpy(b, address(data), 512)
look("a copy that finds out what is what", b, 64)

say("# planes")


def plane(source: tuple[Any, Any, int], target: tuple[Any, Any, int], width: int, height: int, **more: int) -> Any:
    made = d.CUDA_MEMCPY2D()
    for side, (kind, at, pitch) in (("src", source), ("dst", target)):
        setattr(made, f"{side}MemoryType", kind)
        setattr(made, f"{side}Host" if kind == H else f"{side}Device", at)
        setattr(made, f"{side}Pitch", pitch)
    made.WidthInBytes, made.Height = width, height
    for field, value in more.items():
        setattr(made, field, value)
    return made


p, pitch = d.cuMemAllocPitch(100, 20, 4)
q, _ = d.cuMemAllocPitch(333, 20, 16)
d.cuMemAllocPitch(100, 20, 5)
d.cuMemAllocPitch(0, 20, 4)
rows = np.arange(2000, dtype=np.uint16).astype(np.uint8).reshape(20, 100)
back = np.zeros((20, 100), np.uint8)
d.cuMemsetD8(q, 0, 20 * pitch)
d.cuMemcpy2D(plane((H, address(rows), 100), (D, p, pitch), 100, 20))
d.cuMemcpy2D(plane((D, p, pitch), (D, q, pitch), 60, 10, srcXInBytes=7, srcY=3, dstXInBytes=5, dstY=2))
d.cuMemcpy2DAsync(plane((D, q, pitch), (H, address(back), 100), 80, 15, dstXInBytes=9, dstY=1), stream)
d.cuStreamSynchronize(stream)
say("back", f"{zlib.crc32(back.tobytes()):08x}", back[4].tolist())
d.cuMemcpy2DUnaligned(plane((D, int(p) + 3, 129), (H, address(back), 100), 31, 5))
say("unaligned", back[:5, :31].tolist())
other = np.zeros_like(back)
d.cuMemcpy2D(plane((H, address(back), 100), (H, address(other), 100), 100, 20))
say("in the host", bool((other == back).all()))
d.cuMemcpy2D(plane((H, address(rows), 50), (D, p, pitch), 100, 20))
d.cuMemcpy2D(plane((H, address(rows), 100), (D, p, 64), 100, 20))
d.cuMemcpy2D(plane((H, address(rows), 100), (D, p, pitch), 100, 20, dstY=2))
d.cuMemcpy2D(plane((H, address(rows), 100), (D, 0, pitch), 100, 20))
d.cuMemcpy2D(plane((H, address(rows), 100), (D, p, pitch), 0, 20))
d.cuMemcpy2D(plane((H, address(rows), 100), (D, p, pitch), 100, 0))

say("# boxes")
box = np.random.default_rng(3).integers(0, 255, (4, 6, 32), dtype=np.uint8)
room = d.cuMemAlloc(4 * 8 * 64)
d.cuMemsetD8(room, 0, 4 * 8 * 64)
copy = d.CUDA_MEMCPY3D()
copy.srcMemoryType, copy.srcHost, copy.srcPitch, copy.srcHeight = H, address(box), 32, 6
copy.dstMemoryType, copy.dstDevice, copy.dstPitch, copy.dstHeight = D, room, 64, 8
copy.WidthInBytes, copy.Height, copy.Depth = 20, 5, 3
copy.srcXInBytes, copy.srcY, copy.srcZ, copy.dstXInBytes, copy.dstY, copy.dstZ = 2, 1, 1, 4, 2, 1
d.cuMemcpy3D(copy)
look("box", room, 4 * 8 * 64)
copy.srcMemoryType, copy.srcDevice, copy.srcPitch, copy.srcHeight = D, room, 64, 8
taken = np.zeros_like(box)
copy.dstMemoryType, copy.dstHost, copy.dstPitch, copy.dstHeight = H, address(taken), 32, 6
copy.srcXInBytes, copy.srcY, copy.srcZ, copy.dstXInBytes, copy.dstY, copy.dstZ = 4, 2, 1, 0, 0, 0
d.cuMemcpy3DAsync(copy, stream)
d.cuStreamSynchronize(stream)
say("taken", f"{zlib.crc32(taken.tobytes()):08x}", bool((taken[:3, :5, :20] == box[1:, 1:, 2:22]).all()))
copy.Depth = 9
d.cuMemcpy3D(copy)

say("# two cards")
d.cuDeviceCanAccessPeer(0, 1)
second = d.cuDevicePrimaryCtxRetain(1)
d.cuCtxSetCurrent(second)
far = d.cuMemAlloc(4096)
d.cuMemsetD8(far, 77, 4096)
d.cuCtxSetCurrent(ctx)
d.cuMemcpyPeer(a, ctx, far, second, 32)
d.cuMemcpyPeerAsync(int(a) + 40, ctx, far, second, 8, stream)
d.cuStreamSynchronize(stream)
look("from the other card", a, 64)
d.cuMemcpyPeer(a, ctx, far, second, 5000)
d.cuCtxEnablePeerAccess(second, 0)
d.cuCtxEnablePeerAccess(second, 0)
d.cuCtxEnablePeerAccess(ctx, 0)
d.cuMemcpyDtoD(a, far, 16)
look("peer", a, 32)
d.cuCtxDisablePeerAccess(second)
d.cuCtxDisablePeerAccess(second)
d.cuMemFree(far)

say("# what is known of addresses")
A = d.CUpointer_attribute
for pointer in (a, int(a) + 5):
    for which in (A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, A.CU_POINTER_ATTRIBUTE_IS_MANAGED,
                  A.CU_POINTER_ATTRIBUTE_RANGE_SIZE, A.CU_POINTER_ATTRIBUTE_MAPPED):  # fmt: skip
        say(which.name)
        d.cuPointerGetAttribute(which, pointer)
start, size = d.cuMemGetAddressRange(int(a) + 5)
say("range", int(start) == int(a), size)
d.cuMemGetAddressRange(0x10)
d.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x10)
pinned = d.cuMemHostAlloc(70_000, 0)
d.cuMemHostGetFlags(pinned)
d.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pinned)
ctypes.memset(int(pinned), 3, 70_000)
d.cuMemcpyHtoDAsync(b, pinned, 70_000, stream)
d.cuMemsetD8Async(int(b) + 10, 4, 10, stream)
d.cuMemcpyDtoHAsync(int(pinned) + 35_000, b, 35_000, stream)
d.cuStreamSynchronize(stream)
say("pinned", f"{zlib.crc32(ctypes.string_at(int(pinned), 70_000)):08x}")
portable = d.cuMemHostAlloc(100, 1)
d.cuMemHostGetFlags(portable)
d.cuMemHostAlloc(0, 0)
d.cuMemHostAlloc(100, 1 << 20)
d.cuMemFreeHost(portable)
d.cuMemFreeHost(portable)
d.cuMemFreeHost(pinned)
d.cuMemHostRegister(address(part), part.nbytes, 0)
d.cuMemHostRegister(address(part), part.nbytes, 0)
d.cuMemcpyHtoDAsync(b, address(part), part.nbytes, stream)
d.cuStreamSynchronize(stream)
look("registered", b, part.nbytes)
d.cuMemHostUnregister(address(part))
d.cuMemHostUnregister(address(part))

say("# pools")
P = d.CUmemPool_attribute
NUMBERS = (P.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, P.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, P.CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
           P.CU_MEMPOOL_ATTR_USED_MEM_HIGH, P.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)  # fmt: skip


def numbers(pool: Any) -> None:
    say("pool", [int(d.cuMemPoolGetAttribute(pool, which)) for which in NUMBERS])


default = d.cuDeviceGetDefaultMemPool(0)
current = d.cuDeviceGetMemPool(0)
say("the default is current", int(default) == int(current))
numbers(default)
one, two = d.cuMemAllocAsync(8 << 20, stream), d.cuMemAllocAsync(100, stream)
numbers(default)
d.cuMemsetD8Async(one, 5, 8 << 20, stream)
d.cuMemFreeAsync(one, stream)
d.cuStreamSynchronize(stream)
numbers(default)
props = d.CUmemPoolProps()
props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
props.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
own = d.cuMemPoolCreate(props)
for which in (P.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, P.CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC):
    say(int(d.cuMemPoolGetAttribute(own, which)))
d.cuMemPoolSetAttribute(own, P.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, d.cuuint64_t(64 << 20))
d.cuDeviceSetMemPool(0, own)
three, four = d.cuMemAllocFromPoolAsync(3 << 20, own, stream), d.cuMemAllocAsync(5 << 20, stream)
d.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, three)
numbers(own)
d.cuMemFreeAsync(three, stream)
d.cuMemFree(four)
d.cuCtxSynchronize()
numbers(own)
d.cuMemPoolTrimTo(own, 0)
numbers(own)
d.cuMemPoolSetAttribute(own, P.CU_MEMPOOL_ATTR_USED_MEM_HIGH, d.cuuint64_t(0))
d.cuMemPoolSetAttribute(own, P.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, d.cuuint64_t(0))
where = d.CUmemLocation()
where.type, where.id = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
d.cuMemPoolGetAccess(own, where)
d.cuDeviceSetMemPool(0, default)
d.cuMemPoolDestroy(own)
d.cuMemPoolDestroy(default)
d.cuMemFreeAsync(two, stream)
d.cuMemFreeAsync(0x10, stream)
d.cuMemAllocAsync(0, stream)
d.cuMemAllocAsync(1 << 50, stream)
d.cuStreamSynchronize(stream)

say("# virtual addresses")
prop = d.CUmemAllocationProp()
prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type, prop.location.id = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
for which in d.CUmemAllocationGranularity_flags:
    d.cuMemGetAllocationGranularity(prop, which)
va = d.cuMemAddressReserve(8 << 20, 0, 0, 0)
handle = d.cuMemCreate(4 << 20, prop, 0)
d.cuMemMap(va, 4 << 20, 0, handle, 0)
d.cuMemsetD8(va, 1, 16)
access = d.CUmemAccessDesc()
access.location.type, access.location.id = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
d.cuMemSetAccess(va, 4 << 20, [access], 1)
d.cuMemGetAccess(where, va)
d.cuMemsetD8(va, 1, 16)
look("mapped", va, 16)
retained = d.cuMemRetainAllocationHandle(va)
found = d.cuMemGetAllocationPropertiesFromHandle(retained)
say("properties", found.type, found.location.type, found.location.id)
d.cuMemRelease(retained)
d.cuMemRelease(handle)
d.cuMemUnmap(va, 2 << 20)
d.cuMemUnmap(va, 4 << 20)
d.cuMemAddressFree(va, 4 << 20)
d.cuMemAddressFree(va, 8 << 20)
d.cuMemCreate(3, prop, 0)
d.cuMemCreate(1 << 50, prop, 0)

say("# refused, and given back")
d.cuMemAlloc(0)
d.cuMemAlloc(1 << 50)
d.cuMemFree(int(a) + 256)
d.cuMemFree(0x10)
d.cuMemFree(0)
for pointer in (a, b, c, p, q, room):
    d.cuMemFree(pointer)
d.cuMemFree(a)
d.cuStreamDestroy(stream)
say("all came back", d.cuMemGetInfo() == free)
d.cuDevicePrimaryCtxRelease(1)
d.cuDevicePrimaryCtxRelease(0)
d.cuMemAlloc(16)
