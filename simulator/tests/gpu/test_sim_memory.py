"""Memory of the simulated card beyond plain allocations: virtual addresses, pools, arrays, managed and shared memory."""
# ruff: noqa: E501  statements of the programs inside read better on one line

from pathlib import Path

from egpu_sim.machines.machine import Machine
from support.simulated_gpu import Program, machine, run

CARDS = ("T4", 2)

HELPERS = """
MIB = 1 << 20
free = lambda: ok(d.cuMemGetInfo())[0]
def properties(handles=0):
    p = d.CUmemAllocationProp()
    p.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    p.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    p.location.id = 0
    if handles: p.requestedHandleTypes = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    return p
def taken(handle): return ctypes.string_at(handle.getPtr(), 64)
def given(handle, data):
    ctypes.memmove(handle.getPtr(), data, 64)
    return handle
def access(flags=3):
    a = d.CUmemAccessDesc()
    a.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    a.location.id = 0
    a.flags = d.CUmemAccess_flags(flags)
    return a
"""


def test_memory_at_reserved_addresses(sim: Machine) -> None:
    """Two allocations side by side are one range; releasing the handle leaves the mapping; unmapping gives it back."""
    assert run(
        sim,
        HELPERS
        + """
ctx = context()
before = free()
grain = ok(d.cuMemGetAllocationGranularity(properties(), d.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
va = ok(d.cuMemAddressReserve(64 * MIB, 0, 0, 0))
a, b = ok(d.cuMemCreate(2 * MIB, properties(), 0)), ok(d.cuMemCreate(4 * MIB, properties(), 0))
charged = before - free()
ok(d.cuMemMap(va, 2 * MIB, 0, a, 0)); ok(d.cuMemMap(int(va) + 2 * MIB, 4 * MIB, 0, b, 0))
f = function(STORE.replace("DURATION", "1"), "store")
base = free()
data = np.arange(6 * MIB // 4, dtype=np.uint32)
early = name(d.cuMemcpyHtoD(va, data.ctypes.data, data.nbytes))
ok(d.cuMemSetAccess(va, 6 * MIB, [access()], 1))
ok(d.cuMemcpyHtoD(va, data.ctypes.data, data.nbytes))
same = bool((download(va, data) == data).all())
ok(launch(f, 1, 1, int(va) + 2 * MIB, (99, ctypes.c_uint32))); ok(d.cuCtxSynchronize())
stored = int(download(int(va) + 2 * MIB, np.zeros(1, np.uint32))[0])
again = ok(d.cuMemRetainAllocationHandle(int(va) + 3 * MIB))
retained = int(again) == int(b)
ok(d.cuMemRelease(b)); ok(d.cuMemRelease(again)); ok(d.cuMemRelease(a))
released = free() - base
refused = [name(d.cuMemUnmap(va, 4 * MIB)), name(d.cuMemAddressFree(va, 64 * MIB)), name(d.cuMemFree(va)), name(d.cuMemRelease(a)),
           name(d.cuMemCreate(3, properties(), 0)), name(d.cuMemMap(int(va) + 2 * MIB, 4 * MIB, 0, b, 0))]
ok(d.cuMemUnmap(va, 6 * MIB))
gone = name(d.cuMemcpyHtoD(va, data.ctypes.data, 4))
ok(d.cuMemAddressFree(va, 64 * MIB))
too_much = name(d.cuMemCreate(1 << 40, properties(), 0))
say([grain // MIB, charged // MIB, early, same, stored, retained, released, refused, gone, before - free() < 4 * MIB, too_much])
""",
    ) == [
        2, 6, "INVALID_VALUE", True, 99, True, 0,
        ["INVALID_VALUE"] * 6, "INVALID_VALUE", True, "OUT_OF_MEMORY",
    ]  # fmt: skip


def test_a_kernel_faults_where_it_has_no_access(sim: Machine) -> None:
    assert (
        run(
            sim,
            HELPERS
            + """
context()
va = ok(d.cuMemAddressReserve(2 * MIB, 0, 0, 0))
a = ok(d.cuMemCreate(2 * MIB, properties(), 0))
ok(d.cuMemMap(va, 2 * MIB, 0, a, 0))
f = function(STORE.replace("DURATION", "1"), "store")
ok(launch(f, 1, 1, va, (1, ctypes.c_uint32)))
say(name(d.cuCtxSynchronize()))
""",
        )
        == "ILLEGAL_ADDRESS"
    )


def test_what_is_freed_in_a_stream_without_work_counts_as_free_at_once(sim: Machine) -> None:
    """As CuPy's own tests expect of a card; behind work it counts when the stream gets there."""
    assert run(
        sim,
        HELPERS
        + """
context()
used = lambda: int(ok(d.cuMemPoolGetAttribute(ok(d.cuDeviceGetDefaultMemPool(0)),
                                              d.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)))
found = set()
for stream in (0, ok(d.cuStreamCreate(1))):
    for _ in range(200):
        ok(d.cuMemFreeAsync(ok(d.cuMemAllocAsync(MIB, stream)), stream))
        found.add(used())
slow = ok(d.cuStreamCreate(1))
ok(d.cuCtxSynchronize())
first = ok(d.cuMemAllocAsync(MIB, slow))
ok(launch(function(STORE.replace("DURATION", "300000"), "store"), 1, 1, first, (7, ctypes.c_uint32), stream=slow))
ok(d.cuMemFreeAsync(first, slow))
behind = used()
ok(d.cuStreamSynchronize(slow))
say([sorted(found), behind // MIB, used()])
""",
    ) == [[0], 1, 0]


def test_a_pool_keeps_what_it_may_and_reuses_it(sim: Machine) -> None:
    """Reserved (by 32 MiB) against used; released at a synchronisation above the threshold; trimmed; given up when others need it."""
    assert run(
        sim,
        HELPERS
        + """
context()
A = d.CUmemPool_attribute
pool = ok(d.cuDeviceGetDefaultMemPool(0))
get = lambda which: int(ok(d.cuMemPoolGetAttribute(pool, which)))
both = lambda: [get(A.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) // MIB, get(A.CU_MEMPOOL_ATTR_USED_MEM_CURRENT) // MIB]
before = free()
s = ok(d.cuStreamCreate(1))
one = ok(d.cuMemAllocAsync(8 * MIB, s)); during = both()
ok(d.cuMemFreeAsync(one, s)); ok(d.cuStreamSynchronize(s)); released = both()
ok(d.cuMemPoolSetAttribute(pool, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, d.cuuint64_t(1 << 40)))
two = ok(d.cuMemAllocAsync(8 * MIB, s)); ok(d.cuMemFreeAsync(two, s)); ok(d.cuStreamSynchronize(s)); kept = both(); held = (before - free()) // MIB
three = ok(d.cuMemAllocAsync(8 * MIB, s)); reused = [both(), int(three) == int(two)]; ok(d.cuMemFreeAsync(three, s)); ok(d.cuStreamSynchronize(s))
whole = ok(d.cuMemAlloc(before)); given_up = both(); ok(d.cuMemFree(whole))
for _ in range(100):  # in the order of one stream, memory is used again at once
    p = ok(d.cuMemAllocAsync(16 * MIB, s)); ok(d.cuMemFreeAsync(p, s))
high = get(A.CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) // MIB
ok(d.cuStreamSynchronize(s)); ok(d.cuMemPoolTrimTo(pool, 0)); trimmed = both()
say([during, released, kept, held, reused, given_up, high <= 64, trimmed])
""",
    ) == [[32, 8], [0, 0], [32, 0], 32, [[32, 8], True], [0, 0], True, [0, 0]]


def test_arrays_are_charged_and_hold_what_is_copied(sim: Machine) -> None:
    assert run(
        sim,
        HELPERS
        + """
context()
before = free()
desc = d.CUDA_ARRAY3D_DESCRIPTOR()
desc.Width, desc.Height, desc.Depth, desc.NumChannels = 1000, 600, 3, 4
desc.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT
array = ok(d.cuArray3DCreate(desc))
charged = before - free()
data = np.random.default_rng(2).random((3, 600, 1000, 4), dtype=np.float32)
def copy(to_array, host):
    c = d.CUDA_MEMCPY3D()
    H, R = d.CUmemorytype.CU_MEMORYTYPE_HOST, d.CUmemorytype.CU_MEMORYTYPE_ARRAY
    if to_array: c.srcMemoryType, c.srcHost, c.srcPitch, c.srcHeight, c.dstMemoryType, c.dstArray = H, host.ctypes.data, 16000, 600, R, array
    else: c.dstMemoryType, c.dstHost, c.dstPitch, c.dstHeight, c.srcMemoryType, c.srcArray = H, host.ctypes.data, 16000, 600, R, array
    c.WidthInBytes, c.Height, c.Depth = 16000, 600, 3
    return c
ok(d.cuMemcpy3D(copy(True, data)))
back = np.zeros_like(data)
ok(d.cuMemcpy3D(copy(False, back)))
beyond = copy(True, data); beyond.dstY = 1
line = d.CUDA_ARRAY_DESCRIPTOR(); line.Width, line.NumChannels, line.Format = 256, 1, d.CUarray_format.CU_AD_FORMAT_UNSIGNED_INT8
row = ok(d.cuArrayCreate(line)); bytes_ = np.arange(256, dtype=np.uint8); got = np.zeros(100, np.uint8)
ok(d.cuMemcpyHtoA(row, 0, bytes_.ctypes.data, 256)); ok(d.cuMemcpyAtoH(got.ctypes.data, row, 50, 100))
found = ok(d.cuArray3DGetDescriptor(array))
plain = name(d.cuArrayGetMemoryRequirements(array, 0))
ok(d.cuArrayDestroy(array))
stale = name(d.cuMemcpy3D(beyond))  # before another array may come to lie there
desc.Flags = d.CUDA_ARRAY3D_DEFERRED_MAPPING
deferred = ok(d.cuArray3DCreate(desc))
size = ok(d.cuArrayGetMemoryRequirements(deferred, 0)).size
desc.Flags, desc.Depth = 0, 0
mip = ok(d.cuMipmappedArrayCreate(desc, 4))
level = ok(d.cuArray3DGetDescriptor(ok(d.cuMipmappedArrayGetLevel(mip, 2))))
outside = name(d.cuMipmappedArrayGetLevel(mip, 4))
ok(d.cuMipmappedArrayDestroy(mip)); ok(d.cuArrayDestroy(row))
say([data.nbytes <= charged <= 1.1 * data.nbytes, bool((back == data).all()), stale, bool((got == bytes_[50:150]).all()),
     [found.Width, found.Height, found.Depth, found.NumChannels], plain, size >= data.nbytes, [level.Width, level.Height], outside,
     before == free(), name(d.cuArrayDestroy(row))])
""",
    ) == [
        True, True, "INVALID_HANDLE", True, [1000, 600, 3, 4], "INVALID_VALUE", True, [250, 150], "INVALID_VALUE", True, "INVALID_HANDLE",
    ]  # fmt: skip


def test_managed_memory_is_charged_and_gives_way(sim: Machine) -> None:
    """More than the card holds can be had; what is on the card makes room for others at once, in this process and another."""
    managed = """
context()
before = free()
everything = ok(d.cuMemAllocManaged(before + (1 << 30), 1))
full = free()
np.frombuffer((ctypes.c_char * 4096).from_address(int(everything)), np.uint8)[:] = 5
place = d.CUmemLocation(); place.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; place.id = 0
advised = [name(d.cuMemAdvise(everything, 4096, d.CUmem_advise.CU_MEM_ADVISE_SET_PREFERRED_LOCATION, place)),
           ok(d.cuMemRangeGetAttribute(4, d.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, everything, 4096)),
           name(d.cuMemPrefetchAsync(everything, 1 << 20, place, 0, 0))]
"""
    with Program(sim, HELPERS + managed + "say([full, advised]); wait(); say(before - free()); wait()") as holder:
        assert holder.hear() == [0, ["SUCCESS", 0, "SUCCESS"]]
        read = "context(); a = ok(d.cuMemAlloc(1 << 30)); download(a, np.zeros(1, np.uint8)); say('read')"
        assert run(sim, HELPERS + read) == "read"
        holder.go()
        assert holder.hear() < 15 << 30  # the gigabyte that the other had is free again
    assert run(
        sim,
        HELPERS
        + managed
        + "ok(d.cuMemFree(everything)); after = free(); say([before == after, name(d.cuMemAlloc(before))])",
    ) == [True, "SUCCESS"]


EXPORTER = """
context()
a = upload(np.arange(100, dtype=np.uint32))
handle = taken(ok(d.cuIpcGetMemHandle(a)))
event = ok(d.cuEventCreate(d.CUevent_flags.CU_EVENT_INTERPROCESS | d.CUevent_flags.CU_EVENT_DISABLE_TIMING))
event_handle = taken(ok(d.cuIpcGetEventHandle(event)))
s = ok(d.cuStreamCreate(1))
f = function(STORE.replace("DURATION", "300000"), "store")
ok(launch(f, 1, 1, a, (4711, ctypes.c_uint32), stream=s)); ok(d.cuEventRecord(event, s))
say([handle.hex(), event_handle.hex(), free()])
wait(); ok(d.cuCtxSynchronize()); say(int(download(a, np.zeros(2, np.uint32))[1])); wait()
"""

IMPORTER = """
context()
before = free()
h = given(d.CUipcMemHandle(), bytes.fromhex(MEMORY))
e = given(d.CUipcEventHandle(), bytes.fromhex(EVENT))
a = ok(d.cuIpcOpenMemHandle(h, 1))
charged = before - free()
event = ok(d.cuIpcOpenEventHandle(e))
ok(d.cuEventSynchronize(event))
seen = download(a, np.zeros(3, np.uint32)).tolist()
ok(d.cuMemcpyHtoD(int(a) + 4, np.array([8], np.uint32).ctypes.data, 4))
say([charged, seen])
wait()
left = download(a, np.zeros(3, np.uint32)).tolist()
ok(d.cuIpcCloseMemHandle(a))
say([left, free()])
wait()
"""


def test_memory_and_events_between_processes(sim: Machine) -> None:
    """Charged once; an event of another process orders the work; memory outlives a killed exporter while it is held."""
    whole = run(sim, HELPERS + "context(); say(free())")
    with Program(sim, HELPERS + EXPORTER) as exporter:
        memory, event, _ = exporter.hear()
        own = run(
            sim,
            HELPERS + "context(); h = given(d.CUipcMemHandle(), bytes(64)); say(name(d.cuIpcOpenMemHandle(h, 1)))",
        )
        assert own == "INVALID_HANDLE"
        with Program(sim, f"MEMORY, EVENT = {memory!r}, {event!r}\n" + HELPERS + IMPORTER) as importer:
            assert importer.hear() == [0, [4711, 1, 2]]
            exporter.go()
            assert exporter.hear() == 8
            exporter.kill()
            run(sim, HELPERS + "context(); b = ok(d.cuMemAlloc(64 * MIB)); ok(d.cuMemsetD8(b, 255, 64 * MIB)); say(0)")
            importer.go()
            left, after = importer.hear()
            assert left == [4711, 8, 2]
            assert after == whole


def test_an_event_of_a_killed_process_is_over(sim: Machine) -> None:
    forever = EXPORTER.replace("300000", "1000000000")
    with Program(sim, HELPERS + forever) as exporter:
        _, event, _ = exporter.hear()
        waiting = "context(); e = given(d.CUipcEventHandle(), bytes.fromhex(EVENT)); event = ok(d.cuIpcOpenEventHandle(e)); say(name(d.cuEventQuery(event))); say(name(d.cuEventSynchronize(event))); wait()"
        with Program(sim, f"EVENT = {event!r}\n" + HELPERS + waiting) as waiter:
            assert waiter.hear() == "NOT_READY"
            exporter.kill()
            assert waiter.hear() == "SUCCESS"


def test_memory_by_file_descriptor(sim: Machine) -> None:
    """Exported memory comes in again as an allocation and as external memory; the same memory each time, charged once."""
    assert run(
        sim,
        HELPERS
        + """
context()
P = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
plain = ok(d.cuMemCreate(2 * MIB, properties(), 0))
refused = name(d.cuMemExportToShareableHandle(plain, P, 0))
ok(d.cuMemRelease(plain))
before = free()
a = ok(d.cuMemCreate(4 * MIB, properties(1), 0))
fd = ok(d.cuMemExportToShareableHandle(a, P, 0))
b = ok(d.cuMemImportFromShareableHandle(fd, P))
charged = (before - free()) // MIB
va = ok(d.cuMemAddressReserve(4 * MIB, 0, 0, 0))
ok(d.cuMemMap(va, 4 * MIB, 0, b, 0)); ok(d.cuMemSetAccess(va, 4 * MIB, [access()], 1))
ok(d.cuMemsetD32(va, 77, 1000))
desc = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
desc.type = d.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
desc.handle.fd = int(fd); desc.size = 4 * MIB
external = ok(d.cuImportExternalMemory(desc))
buffer = d.CUDA_EXTERNAL_MEMORY_BUFFER_DESC(); buffer.offset, buffer.size = 4, MIB
mapped = ok(d.cuExternalMemoryGetMappedBuffer(external, buffer))
seen = int(download(mapped, np.zeros(1, np.uint32))[0])
ok(d.cuDestroyExternalMemory(external)); ok(d.cuMemFree(mapped)); ok(d.cuMemRelease(a)); ok(d.cuMemRelease(b)); ok(d.cuMemUnmap(va, 4 * MIB))
other = os.open("/dev/null", os.O_RDONLY)
say([refused, charged, seen, free() == before, name(d.cuMemImportFromShareableHandle(other, P))])
""",
    ) == ["INVALID_VALUE", 4, 77, True, "INVALID_VALUE"]


def test_what_a_killed_process_shared_is_given_back(sim: Machine) -> None:
    whole = run(sim, HELPERS + "context(); say(free())")
    with Program(
        sim,
        HELPERS
        + "context(); a = ok(d.cuMemAlloc(64 * MIB)); ok(d.cuIpcGetMemHandle(a)); m = ok(d.cuMemAllocManaged(64 * MIB, 1)); say(free()); wait()",
    ) as program:
        assert program.hear() == whole - (128 << 20)
        program.kill()
    assert run(sim, HELPERS + "context(); say(free())") == whole


def test_the_path_is_not_needed(tmp_path: Path) -> None:
    """Machines of different layouts never mix: a file of another version is refused by name."""
    with machine(tmp_path, "T4", 1) as made:
        with made.state.open("r+b") as file:
            file.seek(8)
            file.write((99).to_bytes(4, "little"))
        done = run(made, "say(name(d.cuInit(0)))", fails=True)
        assert "NO_DEVICE" in done.stdout
        assert "layout" in done.stderr


def test_what_no_call_allocates_is_on_the_card_too(sim: Machine) -> None:
    """Variables, heaps and local memory (40 × 1024 threads at one time), as cuMemGetInfo and NVML say."""
    assert run(
        sim,
        '''
        L, MIB = d.CUlimit, 1 << 20
        context(); n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0)
        def held():
            free, total = ok(d.cuMemGetInfo())
            listed = sum(p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h))
            said = {total - free, n.nvmlDeviceGetMemoryInfo(h).used, listed}
            assert len(said) == 1, said
            return said.pop() / MIB
        text = ".version 8.0\\n.target sm_70\\n.address_size 64\\n"
        text += f".global .b8 a[{3 << 30}];\\n.global .b8 b[{2 << 30}];\\n"
        module = ok(d.cuModuleLoadData(text.encode() + b"\\0"))
        said = [held()]
        ok(d.cuModuleUnload(module))
        said.append(held())
        ok(d.cuCtxSetLimit(L.CU_LIMIT_MALLOC_HEAP_SIZE, 108 * MIB)); said.append(held())
        ok(d.cuCtxSetLimit(L.CU_LIMIT_PRINTF_FIFO_SIZE, 11 * MIB)); said.append(held())
        ok(d.cuCtxSetLimit(L.CU_LIMIT_MALLOC_HEAP_SIZE, MIB)); said.append(held())
        ok(d.cuCtxSetLimit(L.CU_LIMIT_STACK_SIZE, 2048)); said.append(held() - 10)
        most = 512 * 1024
        said += [name(d.cuCtxSetLimit(L.CU_LIMIT_STACK_SIZE, size)) for size in (most, most + 1)] + [held() - 10]
        deep = function(""".version 8.0
            .target sm_70
            .address_size 64
            .visible .entry deep(.param .u64 at) { .local .b8 depot[4096]; .reg .b64 %d<3>;
              ld.param.u64 %d1, [at]; mov.u64 %d2, depot; st.local.u64 [%d2], %d1; ret; }""", "deep")
        ok(launch(deep, 1, 1, 0)); said.append(held() - 10)
        ok(d.cuCtxSetLimit(L.CU_LIMIT_STACK_SIZE, 1024)); said.append(held() - 10)
        ok(d.cuDevicePrimaryCtxReset(0))
        say(said + [held()])
        ''',
    ) == [5120, 0, 100, 110, 10, 40, "OUT_OF_MEMORY", "INVALID_VALUE", 40, 120, 120, 0]


def test_a_reset_leaves_nothing_of_what_other_threads_allocate_meanwhile(tmp_path: Path) -> None:
    code = """
import threading
ctx, over = context(), threading.Event()
def churn():
    ok(d.cuCtxSetCurrent(ctx))
    while not over.is_set(): d.cuMemAlloc(1 << 20)
threads = [threading.Thread(target=churn) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(60):
    time.sleep(0.002)
    ok(d.cuDevicePrimaryCtxReset(0))
over.set()
for thread in threads: thread.join()
ok(d.cuDevicePrimaryCtxReset(0))
say(ok(d.cuMemGetInfo()))
"""
    with machine(tmp_path, "A100-80G", 1) as on:
        assert run(on, code) == run(on, "context(); say(ok(d.cuMemGetInfo()))")
