"""What devices, contexts, modules, libraries and functions say of themselves, and the names of all errors."""

import ctypes
import sys
import tempfile
from pathlib import Path

import numpy as np
from telling import IMAGE, U32, d, launch, look, say

# What there cannot be without one address space, and is therefore said not to be there (docs/internals/wire.md).
NOT_FROM_AFAR = {
    "MANAGED_MEMORY",
    "CONCURRENT_MANAGED_ACCESS",
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
    "HOST_REGISTER_SUPPORTED",
    "CAN_MAP_HOST_MEMORY",
    "HOST_MEMORY_POOLS_SUPPORTED",
    "HOST_NUMA_MEMORY_POOLS_SUPPORTED",
}

say("# before anything")
d.cuDeviceGetCount()
d.cuCtxGetCurrent()
d.cuMemAlloc(4)
d.cuStreamCreate(0)
d.cuModuleLoadData(IMAGE)
d.cuInit(3)
for code in d.CUresult:
    d.cuGetErrorName(code)
    d.cuGetErrorString(code)

say("# devices")
d.cuInit(0)
d.cuDriverGetVersion()
count = d.cuDeviceGetCount()
d.cuDeviceGet(count)
d.cuDeviceGet(-1)
for ordinal in range(count):
    device = d.cuDeviceGet(ordinal)
    d.cuDeviceGetName(64, device)
    d.cuDeviceGetName(5, device)
    d.cuDeviceTotalMem(device)
    say(bytes(d.cuDeviceGetUuid(device).bytes).hex())
    bus = d.cuDeviceGetPCIBusId(32, device)
    found = d.cuDeviceGetByPCIBusId(bus)
    say("found", int(found))
    for attribute in d.CUdevice_attribute:
        if attribute.name.removeprefix("CU_DEVICE_ATTRIBUTE_") not in NOT_FROM_AFAR:
            say(attribute.name)
            d.cuDeviceGetAttribute(attribute, device)
    for exec_type in d.CUexecAffinityType:
        d.cuDeviceGetExecAffinitySupport(exec_type, device)
    d.cuDeviceComputeCapability(device)
    d.cuDevicePrimaryCtxGetState(device)
d.cuDeviceGetByPCIBusId(b"9999:00:00.0")
for first, second in ((0, 1), (1, 0), (0, 0), (0, 7)):
    d.cuDeviceCanAccessPeer(first, second)
    for attribute in d.CUdevice_P2PAttribute:
        say(attribute.name)
        d.cuDeviceGetP2PAttribute(attribute, first, second)
d.cuDeviceTotalMem(9)

say("# contexts")
d.cuMemAlloc(4)
d.cuCtxSynchronize()
d.cuCtxGetDevice()
d.cuCtxPopCurrent()
d.cuDevicePrimaryCtxSetFlags(0, 4)
d.cuDevicePrimaryCtxGetState(0)
d.cuDevicePrimaryCtxRelease(0)
primary = d.cuDevicePrimaryCtxRetain(0)
again = d.cuDevicePrimaryCtxRetain(0)
say("the same", int(primary) == int(again))
d.cuCtxSetCurrent(primary)
d.cuCtxGetFlags()
d.cuCtxSetFlags(8)
d.cuCtxGetFlags()
d.cuCtxGetApiVersion(primary)
d.cuDevicePrimaryCtxGetState(0)
d.cuCtxCreate(None, 0, 9)
d.cuCtxCreate(None, 1 << 20, 0)
own = d.cuCtxCreate(None, 1, 1)
say("device", int(d.cuCtxGetDevice()))
d.cuCtxGetFlags()
for limit in d.CUlimit:
    say(limit.name)
    d.cuCtxGetLimit(limit)
d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE, 4096)
d.cuCtxGetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE)
d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_MAX, 1)
d.cuCtxGetCacheConfig()
d.cuCtxSetCacheConfig(d.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1)
d.cuCtxGetCacheConfig()
d.cuCtxGetSharedMemConfig()
d.cuCtxGetStreamPriorityRange()
d.cuCtxResetPersistingL2Cache()
for pushed in (primary, own, primary):
    d.cuCtxPushCurrent(pushed)
for wanted in (primary, own, primary, own):
    say("popped the right one", int(d.cuCtxPopCurrent() or 0) == int(wanted))
say("none left", int(d.cuCtxGetCurrent() or 0) in (0, int(primary)))
d.cuCtxSetCurrent(own)
mine = d.cuMemAlloc(1 << 20)
d.cuCtxSetCurrent(primary)
d.cuCtxDestroy(own)
d.cuCtxDestroy(own)
d.cuCtxDestroy(primary)
d.cuCtxSetCurrent(own)
d.cuCtxPushCurrent(own)
d.cuMemFree(mine)
d.cuMemsetD8(mine, 0, 16)
d.cuCtxSetCurrent(d.CUcontext(0x7654320))
d.cuCtxGetDevice()

say("# modules")
module = d.cuModuleLoadData(IMAGE)
d.cuModuleGetLoadingMode()
d.cuModuleGetFunctionCount(module)
listed = d.cuModuleEnumerateFunctions(4, module)
names = [d.cuFuncGetName(one) for one in listed or []]
add, fill, count_, scale = (d.cuModuleGetFunction(module, name) for name in (b"add", b"fill", b"count", b"scale"))
say("the same", sorted(names), sorted(map(int, listed or [])) == sorted(map(int, (add, fill, count_, scale))))
d.cuModuleGetFunction(module, b"nothing")
d.cuModuleGetFunction(module, b"")
d.cuModuleGetFunction(d.CUmodule(0x7654320), b"add")
counter, size = d.cuModuleGetGlobal(module, b"counter")
factors, _ = d.cuModuleGetGlobal(module, b"factors")
A = d.CUpointer_attribute
for which in (A.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, A.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL):
    d.cuPointerGetAttribute(which, counter)
whose = d.cuPointerGetAttribute(A.CU_POINTER_ATTRIBUTE_CONTEXT, int(factors) + 4)
say("in the current context", int(whose) == int(d.cuCtxGetCurrent()))
look("counter", counter, 1, np.uint32)
look("factors", factors, 4, np.uint32)
for _ in range(5):
    launch(count_, 2, 3)
d.cuMemsetD32(int(factors) + 4, 30, 1)
d.cuCtxSynchronize()
look("counter", counter, 1, np.uint32)
values = d.cuMemAlloc(64)
d.cuMemsetD32(values, 1, 16)
launch(scale, 1, 16, values)
look("scaled", values, 16, np.uint32)
d.cuMemcpyDtoD(values, counter, 4)
d.cuMemcpy(int(values) + 8, factors, 8)
look("copied", values, 16, np.uint32)
d.cuModuleGetGlobal(module, b"nothing")
d.cuModuleGetGlobal(module, b"add")
d.cuMemFree(counter)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "image.ptx")
    path.write_bytes(IMAGE[:-1])
    from_file = d.cuModuleLoad(str(path).encode())
    library_file = d.cuLibraryLoadFromFile(str(path).encode(), None, None, 0, None, None, 0)
d.cuModuleLoad(b"/there/is/no/such/file")
theirs = d.cuModuleGetGlobal(from_file, b"counter")
look("a counter of its own", theirs[0], 1, np.uint32)
d.cuModuleUnload(from_file)
d.cuModuleUnload(from_file)
d.cuModuleGetGlobal(from_file, b"counter")
d.cuLibraryUnload(library_file)
d.cuModuleLoadData(b"this is no image\0")
d.cuModuleLoadData(b"\0")
d.cuModuleLoadData(IMAGE.replace(b"sm_70", b"sm_90"))
d.cuModuleLoadData(IMAGE.replace(b"atom.global", b"atom.nowhere"))
d.cuModuleLoadData(b"\x7fELF\0")
J = d.CUjit_option
log = bytearray(4000)
d.cuModuleLoadDataEx(IMAGE, 2, [J.CU_JIT_INFO_LOG_BUFFER, J.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES], [log, 4000])

say("# functions")
F = d.CUfunction_attribute
for function in (add, fill, scale):
    for attribute in F:
        say(attribute.name)
        d.cuFuncGetAttribute(attribute, function)
    for index in range(5):
        d.cuFuncGetParamInfo(function, index)
    d.cuFuncIsLoaded(function)
    d.cuFuncLoad(function)
    say("its module", int(d.cuFuncGetModule(function) or 0) == int(module))
    for block in (1, 64, 256, 1000, 1024, 1025, 0, -1):
        for shared in (0, 10_000, 49_152, 100_000):
            d.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, block, shared)
            d.cuOccupancyAvailableDynamicSMemPerBlock(function, 2, block)
        d.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(function, block, 0, 1)
MAX = F.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
launch(add, 1, 1, values, (1, U32), shared=60_000)
for value in (60_000, 10_000_000, -1):
    d.cuFuncSetAttribute(add, MAX, value)
    d.cuFuncGetAttribute(MAX, add)
launch(add, 1, 1, values, (1, U32), shared=60_000)
launch(add, 1, 1, values, (1, U32), shared=60_001)
d.cuFuncSetAttribute(add, F.CU_FUNC_ATTRIBUTE_BINARY_VERSION, 3)
d.cuFuncSetAttribute(add, F.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 50)
d.cuFuncSetCacheConfig(add, d.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED)
d.cuFuncSetCacheConfig(d.CUfunction(0x7654320), d.CUfunc_cache.CU_FUNC_CACHE_PREFER_SHARED)
d.cuFuncGetAttribute(MAX, d.CUfunction(0x7654320))
d.cuFuncGetName(d.CUfunction(0x7654320))
d.cuFuncGetParamInfo(d.CUfunction(0x7654320), 0)
d.cuCtxSynchronize()

say("# launches")
config = d.CUlaunchConfig()
config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
config.blockDimX = 4
arguments = ((int(values), 2), (ctypes.c_uint64, U32))
d.cuLaunchKernelEx(config, add, arguments, 0)
attribute = d.CUlaunchAttribute()
attribute.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
attribute.value.cooperative = 1
config.attrs, config.numAttrs = [attribute], 1
d.cuLaunchKernelEx(config, add, arguments, 0)
d.cuLaunchCooperativeKernel(add, 2, 1, 1, 4, 1, 1, 0, 0, arguments)
d.cuLaunchCooperativeKernel(add, 100_000, 1, 1, 1024, 1, 1, 0, 0, arguments)
packed = ctypes.create_string_buffer(int(values).to_bytes(8, "little") + (5).to_bytes(4, "little"), 12)
length = ctypes.c_size_t(12)
extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(packed), 2, ctypes.addressof(length), 0)
d.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, 0, 0, ctypes.addressof(extra))
length.value = 3
d.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, 0, 0, ctypes.addressof(extra))
d.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
d.cuLaunchKernel(add, 1, 1, 65_536, 1, 1, 1, 0, 0, arguments, 0)
d.cuLaunchKernel(add, 1, 1, 1, 1, 1, 65, 0, 0, arguments, 0)
d.cuLaunchKernel(add, 1, 1, 1, 33, 32, 1, 0, 0, arguments, 0)
d.cuLaunchKernel(d.CUfunction(0), 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0)
d.cuLaunchKernel(d.CUfunction(0x7654320), 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0)
look("launched", values, 16, np.uint32)

say("# libraries")
library = d.cuLibraryLoadData(IMAGE, None, None, 0, None, None, 0)
d.cuLibraryGetKernelCount(library)
kernels = d.cuLibraryEnumerateKernels(4, library)
say(sorted(d.cuKernelGetName(one) for one in kernels or []))
kernel = d.cuLibraryGetKernel(library, b"add")
d.cuLibraryGetKernel(library, b"nothing")
for attribute in F:
    say(attribute.name)
    d.cuKernelGetAttribute(attribute, kernel, 0)
d.cuKernelSetAttribute(MAX, 70_000, kernel, 0)
d.cuKernelSetAttribute(MAX, 10_000_000, kernel, 0)
d.cuKernelSetAttribute(MAX, 70_000, kernel, 9)
d.cuKernelGetAttribute(MAX, kernel, 0)
for index in range(4):
    d.cuKernelGetParamInfo(kernel, index)
say("its library", int(d.cuKernelGetLibrary(kernel) or 0) == int(library))
launch(d.CUfunction(int(kernel)), 1, 1, values, (100, U32))
function = d.cuKernelGetFunction(kernel)
launch(function, 1, 1, values, (100, U32))
d.cuKernelSetCacheConfig(kernel, d.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1, 0)
pointer, size = d.cuLibraryGetGlobal(library, b"counter")
look("its counter", pointer, 1, np.uint32)
d.cuLibraryGetGlobal(library, b"nothing")
inside = d.cuLibraryGetModule(library)
d.cuModuleGetFunctionCount(inside)
d.cuModuleUnload(inside)
look("launched", values, 1, np.uint32)
d.cuLibraryUnload(library)
d.cuLibraryUnload(library)
d.cuLibraryGetKernel(library, b"add")
d.cuKernelGetFunction(kernel)
launch(function, 1, 1, values, (1, U32))
d.cuKernelGetName(kernel)
d.cuLibraryLoadData(b"nonsense\0", None, None, 0, None, None, 0)

say("# the end")
d.cuMemFree(values)
d.cuModuleUnload(module)
launch(add, 1, 1, values, (1, U32))
d.cuFuncGetName(add)
d.cuProfilerStart()
d.cuProfilerStop()
d.cuDevicePrimaryCtxRelease(0)
d.cuDevicePrimaryCtxRelease(0)
d.cuDevicePrimaryCtxRelease(0)
d.cuCtxGetDevice()
d.cuCtxSynchronize()
d.cuStreamCreate(0)
d.cuEventCreate(0)
d.cuModuleLoadData(IMAGE)
d.cuMemsetD8(values, 0, 4)
d.cuMemcpyDtoD(values, values, 4)
d.cuMemGetInfo()
d.cuProfilerStart()
d.cuMemHostAlloc(16, 0)
d.cuStreamQuery(d.CUstream(0))
d.cuStreamGetCtx(d.CUstream(0))
d.cuCtxGetLimit(d.CUlimit.CU_LIMIT_STACK_SIZE)
d.cuCtxGetFlags()
for _ in range(200):  # a primary context that comes and goes
    again = d.cuDevicePrimaryCtxRetain(0)
    d.cuCtxSetCurrent(again)
    for stream in [d.cuStreamCreate(1) for _ in range(3)][:2]:
        d.cuStreamDestroy(stream)
    d.cuDevicePrimaryCtxRelease(0)
sys.exit(7)
