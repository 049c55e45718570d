"""The simulated driver, one process at a time, through NVIDIA's own cuda-bindings."""
# ruff: noqa: E501  statements of the programs inside read better on one line

from pathlib import Path

import pytest

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import run

CARDS = ("A100-80G", 2)
RUNTIME = "6bd5fb6c5bf4e74a8987d93912fd9df9"
"""The table of the driver that NVIDIA's runtime library looks for."""


def test_what_a_card_is(sim: Machine) -> None:
    said = run(
        sim,
        """
        context()
        A = d.CUdevice_attribute
        get = lambda a: ok(d.cuDeviceGetAttribute(a, 0))
        uuid = bytes(ok(d.cuDeviceGetUuid(0)).bytes).hex()
        say([ok(d.cuDeviceGetCount()), ok(d.cuDeviceGetName(64, 0)).split(b"\\0")[0].decode(), ok(d.cuDeviceTotalMem(0)),
             get(A.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), get(A.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
             get(A.CU_DEVICE_ATTRIBUTE_WARP_SIZE), get(A.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
             get(A.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE), get(A.CU_DEVICE_ATTRIBUTE_CLOCK_RATE), uuid,
             name(d.cuDeviceGet(2)), name(d.cuDeviceGetAttribute(A.CU_DEVICE_ATTRIBUTE_MAX, 0))])
        """,
    )
    uuid = sim.cards[0].uuid.removeprefix("GPU-").replace("-", "")
    assert said == [
        2, "NVIDIA A100-SXM4-80GB", 80 << 30, 108, 8, 32, 163 << 10, 40 << 20, 1410000, uuid, "INVALID_DEVICE", "INVALID_VALUE",
    ]  # fmt: skip


def test_calls_before_init_and_without_a_context(sim: Machine) -> None:
    assert run(
        sim,
        """
        before = [name(d.cuDeviceGetCount()), name(d.cuMemAlloc(4)), name(d.cuCtxGetCurrent()), name(d.cuInit(1))]
        ok(d.cuInit(0))
        say(before + [name(d.cuMemAlloc(4)), name(d.cuCtxSynchronize()), name(d.cuMemGetInfo()), int(ok(d.cuCtxGetCurrent()))])
        """,
    ) == ["NOT_INITIALIZED"] * 3 + ["INVALID_VALUE"] + ["INVALID_CONTEXT"] * 3 + [0]


def test_memory_has_contents_and_is_counted(sim: Machine) -> None:
    said = run(
        sim,
        """
        context()
        free, total = ok(d.cuMemGetInfo())
        data = np.random.default_rng(1).integers(0, 255, 5_000_001, dtype=np.uint8)
        a, b = upload(data), ok(d.cuMemAlloc(data.nbytes))
        ok(d.cuMemcpyDtoD(b, a, data.nbytes))
        same = bool((download(b, data) == data).all())
        inside = int(b) + 4_999_900
        part = np.zeros(101, np.uint8)
        ok(d.cuMemcpyDtoH(part.ctypes.data, inside, 101))
        used = free - ok(d.cuMemGetInfo())[0]
        base, size = ok(d.cuMemGetAddressRange(inside))
        small = [int(ok(d.cuMemAlloc(1))) for _ in range(5000)]
        for pointer in small: ok(d.cuMemFree(pointer))
        ok(d.cuMemFree(a)); ok(d.cuMemFree(b))
        say([same, bool((part == data[-101:]).all()), used, int(base) == int(b), size, len(set(small)),
             all(p % 256 == 0 for p in small), ok(d.cuMemGetInfo())[0] == free, total])
        """,
    )
    assert said == [True, True, 2 * (6 << 20), True, 5_000_001, 5000, True, True, 80 << 30]


def test_what_is_refused_about_memory(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        a = ok(d.cuMemAlloc(1000))
        big = ok(d.cuMemAlloc(3 << 20))
        buffer = np.zeros(5000, np.uint8)
        first = [name(d.cuMemAlloc(0)), name(d.cuMemAlloc(81 << 30)), name(d.cuMemFree(int(a) + 512)), name(d.cuMemFree(12345)),
                 name(d.cuMemcpyHtoD(a, buffer.ctypes.data, 1001)), name(d.cuMemcpyDtoH(buffer.ctypes.data, int(a) + 990, 11)),
                 name(d.cuMemcpyDtoH(buffer.ctypes.data, 0x1000, 4)), name(d.cuMemsetD32(int(a) + 2, 1, 1)),
                 name(d.cuMemsetD8(a, 1, 1001)), name(d.cuMemFree(0))]
        ok(d.cuMemFree(a)); ok(d.cuMemFree(big))
        say(first + [name(d.cuMemFree(a)), name(d.cuMemFree(big)), name(d.cuMemcpyDtoH(buffer.ctypes.data, big, 4))])
        """,
    ) == [
        "INVALID_VALUE", "OUT_OF_MEMORY", "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE",
        "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE", "SUCCESS", "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE",
    ]  # fmt: skip


def test_the_whole_card_can_be_allocated_even_in_pieces(sim: Machine) -> None:
    """Holes do not matter: memory is paged, as on a GPU."""
    assert run(
        sim,
        """
        context()
        pieces = [ok(d.cuMemAlloc(1 << 30)) for _ in range(80)]
        full = name(d.cuMemAlloc(1))
        for pointer in pieces[::2]: ok(d.cuMemFree(pointer))
        whole = ok(d.cuMemAlloc(40 << 30))
        marks = np.arange(40, dtype=np.uint64)
        for i in range(40): ok(d.cuMemcpyHtoD(int(whole) + (i << 30) + 123, marks[i:].ctypes.data, 8))
        read = np.zeros(40, np.uint64)
        for i in range(40): ok(d.cuMemcpyDtoH(read[i:].ctypes.data, int(whole) + (i << 30) + 123, 8))
        say([full, name(d.cuMemAlloc(1)), bool((read == marks).all())])
        """,
    ) == ["OUT_OF_MEMORY", "OUT_OF_MEMORY", True]


def test_fills_and_planes(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        a = ok(d.cuMemAlloc(4096))
        ok(d.cuMemsetD8(a, 1, 4096)); ok(d.cuMemsetD16(a, 0x0202, 4)); ok(d.cuMemsetD32(int(a) + 8, 0x03030303, 2))
        ok(d.cuMemsetD2D8(int(a) + 64, 32, 9, 2, 3))
        got = download(a, np.zeros(160, np.uint8)).tolist()
        pointer, pitch = ok(d.cuMemAllocPitch(100, 10, 4))
        data = np.arange(1000, dtype=np.uint8).reshape(10, 100)
        copy = d.CUDA_MEMCPY2D()
        copy.srcMemoryType = d.CUmemorytype.CU_MEMORYTYPE_HOST; copy.srcHost = data.ctypes.data; copy.srcPitch = 100
        copy.dstMemoryType = d.CUmemorytype.CU_MEMORYTYPE_DEVICE; copy.dstDevice = pointer; copy.dstPitch = pitch
        copy.WidthInBytes = 100; copy.Height = 10
        ok(d.cuMemcpy2D(copy))
        row = np.zeros(100, np.uint8)
        ok(d.cuMemcpyDtoH(row.ctypes.data, int(pointer) + 7 * pitch, 100))
        say([got[:17], [got[64 + 32 * r : 67 + 32 * r] for r in range(3)], bool((row == data[7]).all()), pitch % 512])
        """,
    ) == [[2] * 8 + [3] * 8 + [1], [[9, 9, 1]] * 3, True, 0]


def test_host_memory(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        p = ok(d.cuMemHostAlloc(4096, 0))
        device = int(ok(d.cuMemHostGetDevicePointer(p, 0)))
        mine = np.zeros(4096, np.uint8)
        register = lambda: name(d.cuMemHostRegister(mine.ctypes.data, 4096, 0))
        results = [register(), register(), name(d.cuMemHostUnregister(mine.ctypes.data)), name(d.cuMemHostUnregister(mine.ctypes.data))]
        m = ok(d.cuMemAllocManaged(1 << 20, 1))
        ctypes.memset(int(m), 5, 16)
        ok(d.cuMemsetD8(int(m) + 8, 6, 8))
        managed = list((ctypes.c_ubyte * 16).from_address(int(m)))
        T = d.CUpointer_attribute
        kinds = [int(ok(d.cuPointerGetAttribute(T.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x))) for x in (p, m, ok(d.cuMemAlloc(8)))]
        say([device == int(p), results, managed, kinds, name(d.cuMemFree(m)), name(d.cuMemFreeHost(p)), name(d.cuMemFreeHost(p))])
        """,
    ) == [
        True,
        ["SUCCESS", "HOST_MEMORY_ALREADY_REGISTERED", "SUCCESS", "HOST_MEMORY_NOT_REGISTERED"],
        [5] * 8 + [6] * 8,
        [1, 2, 2],
        "SUCCESS",
        "SUCCESS",
        "INVALID_VALUE",
    ]


def test_a_kernel_computes(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        f = function(VECTOR_ADD, "add")
        rng = np.random.default_rng(2)
        x, y = rng.random(10_000, np.float32), rng.random(10_000, np.float32)
        a, b, c = upload(x), upload(y), ok(d.cuMemAlloc(x.nbytes))
        result = launch(f, 79, 128, a, b, c, (10_000, ctypes.c_uint32))
        ok(d.cuCtxSynchronize())
        say([name(result), bool((download(c, x) == x + y).all())])
        """,
    ) == ["SUCCESS", True]


def test_kernels_of_a_library_and_globals_of_a_module(sim: Machine) -> None:
    assert run(
        sim,
        """
        ok(d.cuInit(0))
        library = ok(d.cuLibraryLoadData(STORE.replace("DURATION", "1").encode() + b"\\0", None, None, 0, None, None, 0))
        kernel = ok(d.cuLibraryGetKernel(library, b"store"))
        context()
        a = upload(np.zeros(1, np.uint32))
        first = name(launch(ok(d.cuKernelGetFunction(kernel)), 1, 1, a, (41, ctypes.c_uint32)))
        ok(d.cuCtxSynchronize())
        module = ok(d.cuLibraryGetModule(library))
        pointer, size = ok(d.cuModuleGetGlobal(module, b"counter"))
        say([first, download(a, np.zeros(1, np.uint32)).tolist(), download(pointer, np.zeros(1, np.uint32)).tolist(), size,
             name(d.cuLibraryGetKernel(library, b"nothing")), name(d.cuModuleGetFunction(module, b"nothing")),
             name(d.cuLibraryUnload(library)), name(d.cuKernelGetFunction(kernel))])
        """,
    ) == ["SUCCESS", [41], [7], 4, "NOT_FOUND", "NOT_FOUND", "SUCCESS", "INVALID_HANDLE"]


def test_what_a_launch_refuses(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        f = function(STORE.replace("DURATION", "1"), "store")
        a = upload(np.zeros(1, np.uint32))
        args = (a, (1, ctypes.c_uint32))
        say([name(launch(f, 0, 1, *args)), name(launch(f, 1, 1025, *args)), name(launch(f, 1, 0, *args)),
             name(launch(f, 1, 1, *args, shared=49153)), name(launch(f, 1, 1)), name(launch(d.CUfunction(4096), 1, 1, *args)),
             name(d.cuModuleLoadData(b"this is no PTX at all\\0")), name(d.cuModuleLoadData(b"\\x7fELF and so on\\0")),
             name(d.cuModuleLoadData(STORE.replace("sm_70", "sm_90").replace("DURATION", "1").encode() + b"\\0")),
             name(d.cuLaunchCooperativeKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0)), name(launch(f, 1, 1, *args))])
        """,
    ) == [
        "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE", "INVALID_VALUE", "INVALID_HANDLE",
        "INVALID_PTX", "NO_BINARY_FOR_GPU", "NO_BINARY_FOR_GPU", "INVALID_VALUE", "SUCCESS",
    ]  # fmt: skip


def test_an_illegal_address_stays(sim: Machine) -> None:
    assert run(
        sim,
        """
        ctx = context()
        f = function(STORE.replace("DURATION", "1"), "store")
        a = ok(d.cuMemAlloc(4))
        before = name(launch(f, 1, 1, int(a) + 4096, (1, ctypes.c_uint32)))
        after = [name(d.cuCtxSynchronize()), name(d.cuMemAlloc(4)), name(d.cuStreamSynchronize(0)), name(launch(f, 1, 1, a, (1, ctypes.c_uint32)))]
        ok(d.cuDevicePrimaryCtxReset(0))
        say([before] + after + [name(d.cuMemAlloc(4))])
        """,
    ) == ["SUCCESS"] + ["ILLEGAL_ADDRESS"] * 4 + ["SUCCESS"]


def test_events_measure_declared_durations(sim: Machine) -> None:
    took, wall, pending, unrecorded = run(
        sim,
        """
        context()
        f = function(STORE.replace("DURATION", "2000"), "store")
        a = upload(np.zeros(1, np.uint32))
        start, end = ok(d.cuEventCreate(0)), ok(d.cuEventCreate(0))
        unrecorded = name(d.cuEventElapsedTime(start, end))
        began = time.monotonic()
        ok(d.cuEventRecord(start, 0))
        for i in range(20): ok(launch(f, 1, 1, a, (i, ctypes.c_uint32)))
        ok(d.cuEventRecord(end, 0))
        pending = [name(d.cuEventQuery(end)), name(d.cuStreamQuery(0)), name(d.cuEventElapsedTime(start, end))]
        ok(d.cuEventSynchronize(end))
        wall = time.monotonic() - began
        say([ok(d.cuEventElapsedTime(start, end)), wall, pending, unrecorded])
        """,
    )
    assert took >= 39.9  # and more where the machine was late between two of them
    assert wall > 0.039
    assert pending == ["NOT_READY"] * 3
    assert unrecorded == "INVALID_HANDLE"


def test_an_event_of_an_idle_stream_is_reached_at_once(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        s, event = ok(d.cuStreamCreate(1)), ok(d.cuEventCreate(0))
        found = set()
        for _ in range(100):
            ok(d.cuEventRecord(event, s))
            found.add(name(d.cuEventQuery(event)))
        say([*found])
        """,
    ) == ["SUCCESS"]


def test_streams_keep_order_and_wait_for_events(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        slow, fast = function(STORE.replace("DURATION", "30000"), "store"), function(STORE.replace("DURATION", "1"), "store")
        a = upload(np.zeros(4, np.uint32))
        at = lambda i: int(a) + 4 * i
        s, t = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
        u32 = lambda v: (v, ctypes.c_uint32)
        event = ok(d.cuEventCreate(0))
        ok(launch(slow, 1, 1, at(0), u32(1), stream=s))
        ok(d.cuEventRecord(event, s))
        ok(d.cuStreamWaitEvent(t, event, 0))
        ok(launch(fast, 1, 1, at(0), u32(2), stream=t))     # after the slow one, through the event
        ok(d.cuStreamSynchronize(t))
        first = download(a, np.zeros(4, np.uint32)).tolist()
        ok(launch(slow, 1, 1, at(1), u32(3), stream=s))     # a non-blocking stream does not hold the default stream up
        ok(launch(fast, 1, 1, at(1), u32(4)))
        busy = name(d.cuStreamQuery(s))
        b = ok(d.cuStreamCreate(0))
        ok(launch(slow, 1, 1, at(2), u32(5), stream=b))     # a blocking one does
        ok(launch(fast, 1, 1, at(2), u32(6)))
        ok(launch(fast, 1, 1, at(3), u32(7), stream=b))
        ok(d.cuStreamSynchronize(b))
        second = download(a, np.zeros(4, np.uint32)).tolist()
        ok(d.cuStreamDestroy(s)); ok(d.cuStreamDestroy(b))
        ok(d.cuCtxSynchronize())
        say([first, second[2:], busy, name(d.cuStreamQuery(s)), name(d.cuStreamDestroy(s))])
        """,
    ) == [[2, 0, 0, 0], [6, 7], "NOT_READY", "INVALID_HANDLE", "INVALID_HANDLE"]


def test_host_functions_run_in_order(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        seen = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        calls = [kind(lambda _, i=i: seen.append(i)) for i in range(50)]
        f = function(STORE.replace("DURATION", "500"), "store")
        a = upload(np.zeros(1, np.uint32))
        for call in calls:
            ok(launch(f, 1, 1, a, (1, ctypes.c_uint32)))
            ok(d.cuLaunchHostFunc(0, ctypes.cast(call, ctypes.c_void_p).value, 0))
        early = len(seen)
        ok(d.cuCtxSynchronize())
        say([early < 50, seen == list(range(50))])
        """,
    ) == [True, True]


def test_memory_in_stream_order(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        f = function(STORE.replace("DURATION", "20000"), "store")
        free = ok(d.cuMemGetInfo())[0]
        s = ok(d.cuStreamCreate(1))
        p = ok(d.cuMemAllocAsync(8 << 20, s))
        ok(launch(f, 1, 1, p, (1, ctypes.c_uint32), stream=s))
        ok(d.cuMemFreeAsync(p, s))
        while_running = free - ok(d.cuMemGetInfo())[0]
        ok(d.cuStreamSynchronize(s))
        pool = ok(d.cuDeviceGetDefaultMemPool(0))
        attribute = d.CUmemPool_attribute
        used = [int(ok(d.cuMemPoolGetAttribute(pool, a))) for a in (attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT, attribute.CU_MEMPOOL_ATTR_USED_MEM_HIGH)]
        current = lambda p: int(ok(d.cuMemPoolGetAttribute(p, attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)))
        props = d.CUmemPoolProps()
        props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        own = ok(d.cuMemPoolCreate(props))
        small, large = ok(d.cuMemAllocFromPoolAsync(100, own, s)), ok(d.cuMemAllocFromPoolAsync(3 << 20, own, s))
        mine = [current(own), current(pool)]
        ok(d.cuMemFreeAsync(small, s)); ok(d.cuStreamSynchronize(s)); ok(d.cuMemFree(large))
        say([while_running, free - ok(d.cuMemGetInfo())[0], used, mine, current(own), current(pool)])
        """,
    ) == [32 << 20, 0, [0, 8 << 20], [(3 << 20) + 100, 0], 0, 0]


def test_contexts(sim: Machine) -> None:
    assert run(
        sim,
        """
        ok(d.cuInit(0))
        primary = ok(d.cuDevicePrimaryCtxRetain(0))
        again = ok(d.cuDevicePrimaryCtxRetain(0))
        own = ok(d.cuCtxCreate(None, 0, 1))
        device = int(ok(d.cuCtxGetDevice()))
        a = ok(d.cuMemAlloc(1 << 20))
        popped = ok(d.cuCtxPopCurrent())
        ok(d.cuCtxPushCurrent(primary))
        other = int(ok(d.cuCtxGetDevice()))
        ok(d.cuCtxDestroy(own))
        freed = name(d.cuMemFree(a))
        ok(d.cuDevicePrimaryCtxRelease(0))
        still = name(d.cuMemGetInfo())
        ok(d.cuDevicePrimaryCtxRelease(0))
        say([int(primary) == int(again), int(popped) == int(own), device, other, freed, still, name(d.cuMemGetInfo()),
             name(d.cuDevicePrimaryCtxRelease(0)), list(map(int, ok(d.cuDevicePrimaryCtxGetState(0)))), name(d.cuCtxDestroy(own))])
        """,
    ) == [
        True,
        True,
        1,
        0,
        "INVALID_VALUE",
        "SUCCESS",
        "CONTEXT_IS_DESTROYED",
        "INVALID_CONTEXT",
        [0, 0],
        "INVALID_CONTEXT",
    ]


def test_get_proc_address(sim: Machine) -> None:
    said = run(
        sim,
        """
        cuda = ctypes.CDLL("libcuda.so.1")
        def find(symbol, version, flags=0):
            pointer, status = ctypes.c_void_p(), ctypes.c_int(-1)
            result = cuda.cuGetProcAddress_v2(symbol, ctypes.byref(pointer), version, ctypes.c_uint64(flags), ctypes.byref(status))
            return result, pointer.value, status.value
        address = lambda symbol: ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value
        say([find(b"cuMemAlloc", 12000)[1] == address("cuMemAlloc_v2"),
             find(b"cuMemcpyHtoDAsync", 12000, 2)[1] == address("cuMemcpyHtoDAsync_v2_ptsz"),
             find(b"cuMemcpyHtoDAsync", 12000, 1)[1] == address("cuMemcpyHtoDAsync_v2"),
             find(b"cuCtxCreate", 11000)[1] == address("cuCtxCreate_v2"),
             find(b"cuNothing", 12000)[::2], find(b"cuLibraryLoadData", 11000)[::2], find(b"cuTexRefCreate", 12000)[1] is not None,
             cuda.cuTexRefCreate(None), cuda.cuGetExportTable(ctypes.byref(ctypes.c_void_p()), None)])
        """,
    )
    assert said == [True, True, True, True, [500, 1], [500, 2], True, 801, 500]


def test_the_per_thread_default_stream_is_another_stream(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        cuda = ctypes.CDLL("libcuda.so.1")
        f = function(STORE.replace("DURATION", "50000"), "store")
        a = upload(np.zeros(1, np.uint32))
        s = ok(d.cuStreamCreate(1))
        ok(launch(f, 1, 1, a, (1, ctypes.c_uint32), stream=2))
        say([name(d.cuStreamQuery(1)), name(d.cuStreamQuery(2)), cuda.cuStreamQuery(None), cuda.cuStreamQuery_ptsz(None),
             cuda.cuStreamSynchronize_ptsz(None), cuda.cuStreamQuery_ptsz(None)])
        """,
    ) == ["SUCCESS", "NOT_READY", 0, 600, 0, 0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("d.cuTexRefCreate()", "cuTexRefCreate is not simulated: use texture objects (cuTexObjectCreate)"),
        (
            "d.cuStreamWriteValue32(0, 0, 0, 0)",
            "cuStreamWriteValue32_v2 is not simulated: use events (cuEventRecord, cuStreamWaitEvent)",
        ),
        (
            "d.cuCtxGetExecAffinity(d.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT)",
            "cuCtxGetExecAffinity is not simulated",
        ),
        (
            "d.cuGraphInstantiate(ok(d.cuGraphCreate(0)), 4)",
            "cuGraphInstantiate for launches from the device is not simulated: launch the graph from the host",
        ),
    ],
)
def test_a_call_that_is_not_simulated_says_so_once(sim: Machine, call: str, said: str) -> None:
    code = f"""
        context()
        {call}
        say([name({call})])
    """
    done = run(sim, code, fails=True)
    assert "NOT_SUPPORTED" in done.stdout
    assert done.stderr == f"egpu-sim: {said}\n"
    assert run(sim, code, {"EGPU_SIM_VERBOSE": "0"}, fails=True).stderr == ""


def test_ptx_for_a_newer_card_says_how_to_build(sim: Machine) -> None:
    code = """
        context()
        say([name(d.cuModuleLoadData(STORE.replace("sm_70", "sm_90").replace("DURATION", "1").encode() + bytes(1)))])
    """
    done = run(sim, code, fails=True)
    assert "NO_BINARY_FOR_GPU" in done.stdout
    assert (
        "a card of sm_90 for its PTX, and this one is of sm_80: build with `nvcc -gencode arch=compute_80"
        in done.stderr
    )


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (f"table({RUNTIME!r})", "NVIDIA's runtime library"),
        (r"d.cuModuleLoadData(b'\x7fELF' + bytes(64))", "compiled kernels (a cubin)"),
        (r"d.cuLibraryLoadData(b'\x7fELF' + bytes(64), [], [], 0, [], [], 0)", "compiled kernels (a cubin)"),
        (r"d.cuModuleLoadFatBinary(b'\x50\xed\x55\xba' + bytes(64))", "compiled kernels (a fat binary)"),
    ],
    ids=["runtime", "cubin", "library", "fat binary"],
)
def test_a_program_that_needs_a_real_card_is_told_once(sim: Machine, call: str, named: str) -> None:
    code = f"""
        import ctypes
        cuda = ctypes.CDLL("libcuda.so.1")
        context()
        table = lambda uuid: cuda.cuGetExportTable(ctypes.byref(ctypes.c_void_p()), bytes.fromhex(uuid))
        {call}
        {call}
        say([])
    """
    said = run(sim, code, fails=True).stderr
    assert said.startswith(f"egpu-sim: this program needs {named}")
    assert said.count("\n") == 1
    assert run(sim, code, {"EGPU_SIM_VERBOSE": "0"}, fails=True).stderr == ""


@pytest.mark.parametrize(
    ("body", "call", "named"),
    [
        ("tcgen05.fence::before_thread_sync;", "d.cuModuleLoadData(image)", "cannot be loaded: line 5: unsupported instruction 'tcgen05.fence"),
        (".reg .b32 r; mov.u32 r, %envreg32;", "d.cuLibraryLoadData(image, [], [], 0, [], [], 0)", "cannot be loaded: line 5: unknown register '%envreg32'"),
        ("call elsewhere;", "d.cuModuleLoadData(image)", "cannot be loaded: line 5: 'elsewhere' is not a function"),
        ("st.global.u32 [64], 1;", "ok(launch(function(image[:-1].decode(), 'k'), 1, 1)); d.cuCtxSynchronize()", "k: illegal address at 0x40 (4 bytes, write), line 5"),
        ("bar.sync 0, 64;", "ok(launch(function(image[:-1].decode(), 'k'), 1, 1)); d.cuCtxSynchronize()", "k: deadlock"),
    ],
    ids=["instruction", "register", "function", "address", "deadlock"],
)  # fmt: skip
def test_why_a_kernel_does_not_load_or_run_is_said_once(sim: Machine, body: str, call: str, named: str) -> None:
    code = f"""
        context()
        image = b".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry k() {{\\n{body} ret; }}\\0"
        {call}
        d.cuModuleLoadData(image.replace(b"ret", b"frob"))
        say([])
    """
    said = run(sim, code, fails=True).stderr
    assert named in said
    assert said.startswith("egpu-sim: ")
    assert said.count("\n") == 1
    assert run(sim, code, {"EGPU_SIM_VERBOSE": "0"}, fails=True).stderr == ""


def test_who_does_without_a_table_is_told_nothing(sim: Machine) -> None:
    code = """
        import ctypes
        cuda, table = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(1)
        found = [cuda.cuGetExportTable(ctypes.byref(table), which) for which in (None, bytes(16))]
        say([found, table.value])
    """
    assert run(sim, code) == [[500, 500], None]
    assert run(sim, code, fails=True).stderr == ""


def test_a_forked_child_has_no_cuda(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        a = upload(np.arange(4, dtype=np.uint32))
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, json.dumps([name(d.cuInit(0)), name(d.cuMemAlloc(4)), name(d.cuDeviceGetCount())]).encode())
            os._exit(0)
        os.wait()
        say([json.loads(os.read(reader, 1000)), download(a, np.zeros(4, np.uint32)).tolist()])
        """,
    ) == [["NOT_INITIALIZED"] * 3, [0, 1, 2, 3]]


def test_functions_and_occupancy(sim: Machine) -> None:
    assert run(
        sim,
        """
        context()
        f = function(VECTOR_ADD, "add")
        F = d.CUfunction_attribute
        MAX = F.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        set_ = lambda v: name(d.cuFuncSetAttribute(f, MAX, v))
        say([ok(d.cuFuncGetAttribute(F.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f)), set_(100 << 10), set_(200 << 10),
             ok(d.cuFuncGetAttribute(MAX, f)), ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(f, 256, 0)),
             ok(d.cuOccupancyMaxActiveBlocksPerMultiprocessor(f, 1024, 0)), ok(d.cuFuncGetName(f)).decode(),
             [int(x) for x in ok(d.cuFuncGetParamInfo(f, 3))], name(d.cuFuncGetParamInfo(f, 4))])
        """,
    ) == [1024, "SUCCESS", "INVALID_VALUE", 100 << 10, 8, 2, "add", [24, 4], "INVALID_VALUE"]


def test_no_machine_no_device(sim: Machine, tmp_path: Path) -> None:
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        (tmp_path / name).symlink_to((sim.driver_dir / name).resolve())
    done = run(tmp_path, "say(name(d.cuInit(0)))", fails=True)
    assert "NO_DEVICE" in done.stdout
    assert "cannot open" in done.stderr
    (tmp_path / "machine").write_bytes(b"something else" * 1000)
    assert "machine is not of layout" in run(tmp_path, "say(name(d.cuInit(0)))", fails=True).stderr
