"""The interposer over the simulated driver: programs of every family of memory, inside a slice. Their answers are right, the
limit is exact, and everybody who can be asked about memory says the same."""
# ruff: noqa: E501  statements of the programs inside read better on one line

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from egpu.adapters import native
from egpu.adapters.slices.pages import DevicePolicy, Mode, create_usage, write_policy
from egpu_sim.machines.machine import Machine
from support.simulated_gpu import Program, run, variables

CARDS = ("A100-40G", 1)

LIMIT = 64 << 20
LIBRARY = "libegpu-interposer.so"

PRELUDE = (
    f"LIMIT = {LIMIT}\n"
    + '''
MIB = 1 << 20
n.nvmlInit()
H = n.nvmlDeviceGetHandleByIndex(0)
A, G = d.CUmemPool_attribute, d.CUgraphMem_attribute
RELAXED = d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
FD = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

def used():
    """Of the slice. The driver, NVML and the list of processes have to agree."""
    left, total = ok(d.cuMemGetInfo())
    one, two = n.nvmlDeviceGetMemoryInfo(H), n.nvmlDeviceGetMemoryInfo(H, version=n.nvmlMemory_v2)
    held = sum(p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(H))
    said = [total - left, one.used, two.used, held]
    assert said == [held] * 4, said
    assert [total, ok(d.cuDeviceTotalMem(0)), one.total, two.total] == [LIMIT] * 4
    return held

def exact():
    """Just what is left can be had, and not a byte more."""
    rest = LIMIT - used()
    pointer = ok(d.cuMemAlloc(rest)) if rest else 0
    said = [name(d.cuMemAlloc(1)), used() == LIMIT]
    ok(d.cuMemFree(pointer)) if rest else None
    return said == ["OUT_OF_MEMORY", True] and used() == LIMIT - rest

def fill(allocate):
    """How often that can be done."""
    made = []
    while True:
        result = allocate()
        if int(result[0]) != 0: return name(result), made
        made.append(result[1])

def works(at, stream=0):
    """A kernel reads and writes there."""
    data = np.arange(1000, dtype=np.float32)
    ok(d.cuMemcpyHtoD(at, data.ctypes.data, data.nbytes))
    ok(launch(ADD, 8, 128, at, at, int(at) + 8192, (1000, ctypes.c_uint32), stream=stream))
    ok(d.cuStreamSynchronize(stream))
    return bool((download(int(at) + 8192, data) == data + data).all())

def properties():
    p = d.CUmemAllocationProp()
    p.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    p.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    p.location.id = 0
    p.requestedHandleTypes = FD
    return p

def access():
    a = d.CUmemAccessDesc()
    a.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    a.location.id = 0
    a.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return a

def image(width, height, depth=0, flags=0):
    a = d.CUDA_ARRAY3D_DESCRIPTOR()
    a.Width, a.Height, a.Depth, a.NumChannels, a.Flags = width, height, depth, 4, flags
    a.Format = d.CUarray_format.CU_AD_FORMAT_FLOAT
    return a

context()
ADD = function(VECTOR_ADD, "add")
'''
)


@dataclass
class Inside:
    """A slice of the one card of a machine."""

    machine: Machine
    directory: Path
    core_ppm: int = 1_000_000
    programs: list[Program] = field(default_factory=list[Program])

    def __post_init__(self) -> None:
        (self.directory / LIBRARY).symlink_to(native.path(LIBRARY))
        card = self.machine.cards[0]
        policy = DevicePolicy(
            uuid=card.uuid, minor=card.minor, mode=Mode.CAP, core_ppm=self.core_ppm, memory_limit_bytes=LIMIT
        )
        write_policy(self.directory / "policy", [policy])
        create_usage(self.directory / "usage")

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.directory / LIBRARY)}

    def run(self, code: str) -> Any:
        return run(self.machine, PRELUDE + textwrap.dedent(code), self.environment)

    def start(self, code: str) -> Program:
        self.programs.append(Program(self.machine, PRELUDE + textwrap.dedent(code), self.environment))
        return self.programs[-1]


@pytest.fixture
def inside(sim: Machine, tmp_path: Path) -> Iterator[Inside]:
    box = Inside(sim, tmp_path)
    yield box
    for program in box.programs:
        program.__exit__()
    outside = "n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); say([n.nvmlDeviceGetMemoryInfo(h).used, len(n.nvmlDeviceGetComputeRunningProcesses(h))])"
    assert run(sim, outside) == [0, 0], "nothing is left on the card"


def test_memory_at_reserved_addresses(inside: Inside) -> None:
    """Charged once, however many handles and mappings there are, until the last of them is gone."""
    assert inside.run(
        """
        va = ok(d.cuMemAddressReserve(64 * MIB, 0, 0, 0))
        a, b = ok(d.cuMemCreate(2 * MIB, properties(), 0)), ok(d.cuMemCreate(4 * MIB, properties(), 0))
        ok(d.cuMemMap(va, 2 * MIB, 0, a, 0)); ok(d.cuMemMap(int(va) + 2 * MIB, 4 * MIB, 0, b, 0))
        ok(d.cuMemSetAccess(va, 6 * MIB, [access()], 1))
        again = ok(d.cuMemImportFromShareableHandle(ok(d.cuMemExportToShareableHandle(a, FD, 0)), FD))
        retained = ok(d.cuMemRetainAllocationHandle(int(va) + 3 * MIB))
        said = [used(), exact(), works(int(va) + 2 * MIB - 6144), used()]
        for handle in (a, b, again, retained): ok(d.cuMemRelease(handle))
        said.append(used())
        ok(d.cuMemUnmap(va, 6 * MIB)); ok(d.cuMemAddressFree(va, 64 * MIB))
        said.append(used())
        why, made = fill(lambda: d.cuMemCreate(2 * MIB, properties(), 0))
        said += [why, len(made), used(), name(d.cuMemAlloc(1))]
        for handle in made: ok(d.cuMemRelease(handle))
        say(said + [used(), exact()])
        """
    ) == [6 << 20, True, True, 6 << 20, 6 << 20, 0, "OUT_OF_MEMORY", 32, LIMIT, "OUT_OF_MEMORY", 0, True]


def test_pools(inside: Inside) -> None:
    """What a pool reserves is charged, not what of it is in use; a pool's idle memory is no reason to refuse."""
    assert inside.run(
        """
        s = ok(d.cuStreamCreate(1))
        usual = ok(d.cuDeviceGetDefaultMemPool(0))
        props = d.CUmemPoolProps()
        props.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type, props.location.id = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
        own = ok(d.cuMemPoolCreate(props))
        reserved = lambda: sum(int(ok(d.cuMemPoolGetAttribute(p, A.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT))) for p in (usual, own))
        a, b = ok(d.cuMemAllocAsync(3 * MIB, s)), ok(d.cuMemAllocFromPoolAsync(5 * MIB + 1, own, s))
        said = [used() == reserved() >= 8 * MIB + 1, exact(), works(a, s), works(b, s)]
        ok(d.cuMemFreeAsync(a, s)); ok(d.cuMemFreeAsync(b, s)); ok(d.cuStreamSynchronize(s))
        said.append(used())
        ok(d.cuMemPoolSetAttribute(own, A.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, d.cuuint64_t(1 << 40)))
        c = ok(d.cuMemAllocFromPoolAsync(6 * MIB, own, s)); ok(d.cuMemFreeAsync(c, s)); ok(d.cuStreamSynchronize(s))
        said += [used() == reserved() == 32 * MIB, name(d.cuMemAlloc(LIMIT + 1))]
        whole = ok(d.cuMemAlloc(LIMIT)); said += [used() == LIMIT, reserved()]; ok(d.cuMemFree(whole))
        why, made = fill(lambda: d.cuMemAllocAsync(2 * MIB, s))
        said += [why, len(made), used()]
        for pointer in made: ok(d.cuMemFreeAsync(pointer, s))
        ok(d.cuStreamSynchronize(s)); ok(d.cuMemPoolDestroy(own))
        say(said + [used(), exact()])
        """
    ) == [True, True, True, True, 0, True, "OUT_OF_MEMORY", True, 0, "OUT_OF_MEMORY", 32, LIMIT, 0, True]


def test_pools_of_the_host_s_memory(inside: Inside) -> None:
    """Pinned memory is not the card's, whoever made its pool; managed memory is charged while it is allocated."""
    assert inside.run(
        """
        s = ok(d.cuStreamCreate(1))
        kinds, host = d.CUmemAllocationType, d.CUmemLocation()
        host.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
        def made(kind):
            props = d.CUmemPoolProps()
            props.allocType, props.location = kind, host
            return ok(d.cuMemPoolCreate(props))
        def charged(pool):
            at = ok(d.cuMemAllocFromPoolAsync(6 * MIB, pool, s))
            said = [used() // MIB, works(at, s)]
            ok(d.cuMemFreeAsync(at, s)); ok(d.cuStreamSynchronize(s))
            return [*said, used()]
        pinned, managed = kinds.CU_MEM_ALLOCATION_TYPE_PINNED, kinds.CU_MEM_ALLOCATION_TYPE_MANAGED
        usual = [ask(host, pinned) for ask in (d.cuMemGetDefaultMemPool, d.cuMemGetMemPool)]
        pools = [*map(ok, usual), made(pinned), made(managed), ok(d.cuMemGetMemPool(host, managed))]
        beyond = ok(d.cuMemAllocFromPoolAsync(LIMIT + 1, pools[0], s)); ok(d.cuMemFreeAsync(beyond, s))
        say([*map(charged, pools), name(d.cuMemAllocFromPoolAsync(LIMIT + 1, pools[3], s)), exact()])
        """
    ) == [*[[0, True, 0]] * 3, *[[6, True, 0]] * 2, "OUT_OF_MEMORY", True]


def test_graphs_that_allocate(inside: Inside) -> None:
    """Charged from the launch on, before the stream has come to it; what the graph frees is no longer charged once that is known."""
    assert inside.run(
        """
        s = ok(d.cuStreamCreate(1))
        out = upload(np.zeros(1000, np.float32)); one = upload(np.arange(1000, dtype=np.float32))
        slow = function(STORE.replace("DURATION", "200000"), "store")
        base = used()
        def captured(free):
            ok(d.cuStreamBeginCapture(s, RELAXED))
            ok(launch(slow, 1, 1, out, (1, ctypes.c_uint32), stream=s))
            p = ok(d.cuMemAllocAsync(8 * MIB, s))
            ok(launch(ADD, 8, 128, one, one, p, (1000, ctypes.c_uint32), stream=s)); ok(d.cuMemcpyDtoDAsync(out, p, 4000, s))
            if free: ok(d.cuMemFreeAsync(p, s))
            return ok(d.cuStreamEndCapture(s)), p
        def right(): return bool((download(out, np.zeros(1000, np.float32)) == 2 * np.arange(1000)).all())
        graph, _ = captured(True)
        e = ok(d.cuGraphInstantiate(graph, 0))
        said = [used() - base]
        for _ in range(2): ok(d.cuGraphLaunch(e, s))
        said += [used() - base, name(d.cuMemAlloc(LIMIT - base))]
        ok(d.cuStreamSynchronize(s)); said.append(right()); ok(d.cuGraphExecDestroy(e)); said.append(used() - base)
        graph, p = captured(False)
        e = ok(d.cuGraphInstantiate(graph, 0)); ok(d.cuGraphLaunch(e, s)); ok(d.cuStreamSynchronize(s))
        said += [used() - base, right(), exact(), works(p)]
        ok(d.cuMemFree(p)); ok(d.cuGraphExecDestroy(e)); ok(d.cuDeviceGraphMemTrim(0))
        said += [used() - base, exact()]
        held = ok(d.cuMemAlloc(LIMIT - base - 4 * MIB))
        say(said + [name(d.cuGraphInstantiate(graph, 0)), used() == LIMIT - 4 * MIB])
        """
    ) == [0, 8 << 20, "OUT_OF_MEMORY", True, 0, 8 << 20, True, True, True, 0, True, "OUT_OF_MEMORY", True]


def test_a_graph_that_waits_for_its_turn_holds_no_memory_yet(sim: Machine, tmp_path: Path) -> None:
    """Others of the slice could use it meanwhile; and while modules are measured, it would be taken for theirs."""
    half = Inside(sim, tmp_path, core_ppm=20_000)
    assert half.run(
        """
        import threading, time
        s = ok(d.cuStreamCreate(1)); c = ok(d.cuCtxGetCurrent())
        slow = function(STORE.replace("DURATION", "100000"), "store")
        ok(d.cuStreamBeginCapture(s, RELAXED)); p = ok(d.cuMemAllocAsync(8 * MIB, s)); ok(d.cuMemFreeAsync(p, s))
        e = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(s)), 0))
        out = upload(np.zeros(1000, np.float32)); base = used()
        for _ in range(2):  # the second shows how long it is, and leaves the slice in debt
            ok(launch(slow, 1, 1, out, (1, ctypes.c_uint32), stream=s)); ok(d.cuStreamSynchronize(s))
        def wait_and_launch(): ok(d.cuCtxSetCurrent(c)); ok(d.cuGraphLaunch(e, s)); done.set()
        done = threading.Event(); other = threading.Thread(target=wait_and_launch); other.start()
        time.sleep(0.3)
        said = [done.is_set(), used() - base]
        done.wait(60)
        said.append(used() - base)
        other.join(); say(said)
        """
    ) == [False, 0, 8 << 20]


def test_a_graph_that_frees_and_allocates_again_is_charged_what_it_has_at_one_time(inside: Inside) -> None:
    """Thirty times 20 MiB, one after the other, in a slice of 64; but not what two branches have beside each other."""
    assert inside.run(
        """
        s, t = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
        fork, join = (ok(d.cuEventCreate(2)) for _ in range(2))
        slow = function(STORE.replace("DURATION", "100000"), "store")
        def some(size, stream):
            p = ok(d.cuMemAllocAsync(size, stream))
            ok(launch(slow, 1, 1, p, (7, ctypes.c_uint32), stream=stream))
            ok(d.cuMemFreeAsync(p, stream))
        def captured(body):
            ok(d.cuStreamBeginCapture(s, RELAXED)); body()
            return ok(d.cuStreamEndCapture(s))
        def line():
            for _ in range(30): some(20 * MIB, s)
        def branches():
            ok(d.cuEventRecord(fork, s)); ok(d.cuStreamWaitEvent(t, fork, 0))
            some(40 * MIB, s); some(40 * MIB, t)
            ok(d.cuEventRecord(join, t)); ok(d.cuStreamWaitEvent(s, join, 0))
        base = used()
        e = ok(d.cuGraphInstantiate(captured(line), 0)); ok(d.cuGraphLaunch(e, s))
        said = [used() - base]
        ok(d.cuStreamSynchronize(s)); ok(d.cuGraphExecDestroy(e)); ok(d.cuDeviceGraphMemTrim(0))
        say(said + [exact(), name(d.cuGraphInstantiate(captured(branches), 0)), used() - base])
        """
    ) == [20 << 20, True, "OUT_OF_MEMORY", 0]


def test_managed_memory(inside: Inside) -> None:
    assert inside.run(
        """
        place = d.CUmemLocation(); place.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE; place.id = 0
        m = ok(d.cuMemAllocManaged(3 * MIB + 1, 1))
        said = [used(), exact(), works(m)]
        ok(d.cuMemPrefetchAsync(m, 3 * MIB, place, 0, 0)); ok(d.cuCtxSynchronize())
        np.frombuffer((ctypes.c_char * 4).from_address(int(m)), np.uint32)[:] = 77
        said += [used(), int(download(m, np.zeros(1, np.uint32))[0])]
        why, made = fill(lambda: d.cuMemAllocManaged(4 * MIB, 1))
        said += [why, len(made), exact()]
        for pointer in [m, *made]: ok(d.cuMemFree(pointer))
        say(said + [used()])
        """
    ) == [(3 << 20) + 512, True, True, (3 << 20) + 512, 77, "OUT_OF_MEMORY", 15, True, 0]


def test_arrays_and_mipmaps(inside: Inside) -> None:
    """Charged what the driver says that they need."""
    assert inside.run(
        """
        def needs(width, height, depth=0):
            probe = ok(d.cuArray3DCreate(image(width, height, depth, d.CUDA_ARRAY3D_DEFERRED_MAPPING)))
            said = ok(d.cuArrayGetMemoryRequirements(probe, 0)).size
            ok(d.cuArrayDestroy(probe))
            return said
        data = np.random.default_rng(3).random((300, 500, 4), dtype=np.float32)
        array = ok(d.cuArray3DCreate(image(500, 300)))
        said = [used() == -(-needs(500, 300) // 512) * 512 >= data.nbytes, exact()]
        def copy(to_array, host):
            c = d.CUDA_MEMCPY2D()
            HOST, ARRAY = d.CUmemorytype.CU_MEMORYTYPE_HOST, d.CUmemorytype.CU_MEMORYTYPE_ARRAY
            if to_array: c.srcMemoryType, c.srcHost, c.srcPitch, c.dstMemoryType, c.dstArray = HOST, host.ctypes.data, 8000, ARRAY, array
            else: c.dstMemoryType, c.dstHost, c.dstPitch, c.srcMemoryType, c.srcArray = HOST, host.ctypes.data, 8000, ARRAY, array
            c.WidthInBytes, c.Height = 8000, 300
            ok(d.cuMemcpy2D(c))
        back = np.zeros_like(data)
        copy(True, data); copy(False, back)
        said.append(bool((back == data).all()))
        mip = ok(d.cuMipmappedArrayCreate(image(512, 512), 4))
        said += [used() >= data.nbytes + 512 * 512 * 16 * 4 // 3 - 65536, exact()]
        ok(d.cuMipmappedArrayDestroy(mip)); ok(d.cuArrayDestroy(array))
        said.append(used())
        why, made = fill(lambda: d.cuArray3DCreate(image(512, 512)))
        said += [why, len(made) == LIMIT // needs(512, 512), exact()]
        for one in made: ok(d.cuArrayDestroy(one))
        why, made = fill(lambda: d.cuMipmappedArrayCreate(image(512, 512), 0))
        said += [why, len(made) == LIMIT // needs(512, 512), exact()]
        for one in made: ok(d.cuMipmappedArrayDestroy(one))
        say(said + [used()])
        """
    ) == [True, True, True, True, True, 0, "OUT_OF_MEMORY", True, True, "OUT_OF_MEMORY", True, True, 0]


EXPORTER = """
a = ok(d.cuMemAlloc(3 * MIB))
said = works(a)
handle = ctypes.string_at(ok(d.cuIpcGetMemHandle(a)).getPtr(), 64)
v = ok(d.cuMemCreate(2 * MIB, properties(), 0))
say([handle.hex(), said, used()]); wait()
ok(d.cuMemRelease(v)); ok(d.cuMemFree(a)); say(used()); wait()
"""

IMPORTER = """
before = used()
h = d.CUipcMemHandle(); ctypes.memmove(h.getPtr(), bytes.fromhex(HANDLE), 64)
a = ok(d.cuIpcOpenMemHandle(h, 1))
said = [before, used(), download(int(a) + 8192, np.zeros(3, np.float32)).tolist(), works(a), exact()]
m = ok(d.cuMemAllocManaged(MIB, 1)); said.append(used())
say(said); wait()
ok(d.cuIpcCloseMemHandle(a)); say(used()); wait()
"""


def test_memory_between_two_processes_of_a_slice(inside: Inside) -> None:
    """Both are inside one limit; what one opens of the other is charged once; the dead leave nothing charged."""
    exporter = inside.start(EXPORTER)
    handle, worked, held = exporter.hear()
    assert (worked, held) == (True, 5 << 20)
    importer = inside.start(f"HANDLE = {handle!r}\n" + IMPORTER)
    assert importer.hear() == [held, held, [0, 2, 4], True, True, held + (1 << 20)]
    importer.go()
    assert importer.hear() == held + (1 << 20)
    importer.kill()
    exporter.go()
    assert exporter.hear() == 0


def test_every_family_at_once_up_to_the_last_byte(inside: Inside) -> None:
    assert inside.run(
        """
        s = ok(d.cuStreamCreate(1))
        plain = ok(d.cuMemAlloc(5 * MIB + 3))
        pitched, pitch = ok(d.cuMemAllocPitch(1000, 1000, 4))
        managed = ok(d.cuMemAllocManaged(2 * MIB + 700, 1))
        pooled = ok(d.cuMemAllocAsync(3 * MIB, s))
        handle = ok(d.cuMemCreate(4 * MIB, properties(), 0))
        array = ok(d.cuArray3DCreate(image(300, 200)))
        said = [used(), exact(), all(map(works, (plain, pitched, managed, pooled)))]
        rest = ok(d.cuMemAlloc(LIMIT - used()))
        said.append([name(r) for r in (d.cuMemAlloc(1), d.cuMemAllocPitch(1, 1, 4), d.cuMemAllocManaged(1, 1), d.cuMemAllocAsync(30 * MIB, s),
                     d.cuMemCreate(2 * MIB, properties(), 0), d.cuArray3DCreate(image(8, 8)))])
        for pointer in (plain, pitched, managed, rest): ok(d.cuMemFree(pointer))
        ok(d.cuMemFreeAsync(pooled, s)); ok(d.cuMemRelease(handle)); ok(d.cuArrayDestroy(array)); ok(d.cuStreamSynchronize(s))
        say(said[1:] + [said[0] < LIMIT, used(), exact()])
        """
    ) == [True, True, ["OUT_OF_MEMORY"] * 6, True, 0, True]


LOADS = """
import tempfile
def of_module(ptx): return d.cuModuleLoadData(ptx)
def of_library(ptx): return d.cuLibraryLoadData(ptx, None, None, 0, None, None, 0)
def of_path(path): return d.cuLibraryLoadFromFile(path, None, None, 0, None, None, 0)
def in_file(load):
    def of_file(ptx):
        with tempfile.NamedTemporaryFile() as file:
            file.write(ptx.rstrip(bytes(1))); file.flush()
            return load(file.name.encode())
    return of_file
def with_options(ptx):
    options = [d.CUjit_option.CU_JIT_ERROR_LOG_BUFFER, d.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    return d.cuModuleLoadDataEx(ptx, 2, options, [bytearray(64), 64])
WAYS = {
    "cuModuleLoadData": (of_module, d.cuModuleUnload),
    "cuModuleLoadDataEx": (with_options, d.cuModuleUnload),
    "cuModuleLoad": (in_file(d.cuModuleLoad), d.cuModuleUnload),
    "cuLibraryLoadData": (of_library, d.cuLibraryUnload),
    "cuLibraryLoadFromFile": (in_file(of_path), d.cuLibraryUnload),
}
"""


@pytest.mark.parametrize(
    "way", ["cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoad", "cuLibraryLoadData", "cuLibraryLoadFromFile"]
)
def test_variables_of_modules_are_charged_when_they_load(inside: Inside, way: str) -> None:
    """What was 5 GiB through a limit of 1 GiB, by every call that loads an image."""
    sizes = {"fits": 40 << 20, "small": 3 << 20, "great": 5 << 30}
    images = {name: variables(size) + "\0" for name, size in sizes.items()}
    assert inside.run(
        LOADS
        + f"IMAGES = {images!r}\nload, unload = WAYS[{way!r}]\n"
        + textwrap.dedent("""
            said = [name(load(IMAGES["great"].encode())), used()]
            one = ok(load(IMAGES["fits"].encode()))
            said += [used(), exact(), name(load(IMAGES["fits"].encode())), used()]
            two = ok(load(IMAGES["small"].encode()))
            said += [used(), exact()]
            is_module = unload is d.cuModuleUnload
            found = ok((d.cuModuleGetFunction if is_module else d.cuLibraryGetKernel)(one, b"touch"))
            ok(launch(found if is_module else ok(d.cuKernelGetFunction(found)), 1, 1)); ok(d.cuCtxSynchronize())
            ok(unload(one))
            said += [used(), exact()]
            ok(unload(two))
            say(said + [used(), n.nvmlDeviceGetMemoryInfo(H).used])
        """)
    ) == ["OUT_OF_MEMORY", 0, 40 << 20, True, "OUT_OF_MEMORY", 40 << 20, 44 << 20, True, 4 << 20, True, 0, 0]


@pytest.mark.parametrize("says_its_size", [True, False])
def test_a_library_that_is_loaded_before_there_is_a_context_is_charged_when_it_is_used(
    inside: Inside, says_its_size: bool
) -> None:
    """Before it is on the card, where its image tells its size; else it is unloaded again, and not to be used."""
    image = variables(5 << 30) + "\0"
    if not says_its_size:
        image = re.sub(r"\[(\d+)\]", r"[\1U]", image)
    assert inside.run(
        f"IMAGE = {image!r}.encode()\n"
        + textwrap.dedent("""
            ctx = ok(d.cuCtxGetCurrent())
            ok(d.cuCtxSetCurrent(0))
            library = ok(d.cuLibraryLoadData(IMAGE, None, None, 0, None, None, 0))
            kernel = ok(d.cuLibraryGetKernel(library, b"touch"))
            ok(d.cuCtxSetCurrent(ctx))
            tried = launch(kernel, 1, 1), d.cuKernelGetFunction(kernel), d.cuLibraryGetGlobal(library, b"great")
            said = [name(one) for one in tried]
            small = d.cuMemAlloc(1); ok(d.cuMemFree(small[1]))
            said += [name(small), used()]
            ok(d.cuLibraryUnload(library))
            say(said + [used(), exact()])
        """)
    ) == ["OUT_OF_MEMORY"] * 3 + ["SUCCESS", 0, 0, True]


def test_a_context_takes_its_modules_and_heaps_with_it(inside: Inside) -> None:
    image = variables(30 << 20) + "\0"
    assert inside.run(
        f"IMAGE = {image!r}.encode()\n"
        + textwrap.dedent("""
            ok(d.cuModuleLoadData(IMAGE)); library = ok(d.cuLibraryLoadData(IMAGE, None, None, 0, None, None, 0))
            ok(d.cuCtxSetLimit(d.CUlimit.CU_LIMIT_PRINTF_FIFO_SIZE, 3 * MIB))
            said = [used()]
            ok(d.cuDevicePrimaryCtxReset(0))
            said += [used(), exact()]
            ok(d.cuLibraryGetModule(library))
            said += [used(), exact()]
            ok(d.cuLibraryUnload(library))
            say(said + [used()])
        """)
    ) == [62 << 20, 0, True, 30 << 20, True, 0]


def test_heaps_and_local_memory_are_charged_when_they_are_set(inside: Inside) -> None:
    """Threads that can be resident on an A100: 108 × 2048."""
    assert inside.run(
        """
        names = "MALLOC_HEAP_SIZE", "PRINTF_FIFO_SIZE", "STACK_SIZE"
        HEAP, FIFO, STACK = (getattr(d.CUlimit, "CU_LIMIT_" + each) for each in names)
        def real(): return n.nvmlDeviceGetMemoryInfo(H).used
        much = (HEAP, 5 << 30), (FIFO, 5 << 30), (STACK, 32 << 10)
        said = [name(d.cuCtxSetLimit(*each)) for each in much] + [used()]
        ok(d.cuCtxSetLimit(HEAP, 18 * MIB)); ok(d.cuCtxSetLimit(FIFO, 3 * MIB)); ok(d.cuCtxSetLimit(STACK, 1024 + 128))
        said += [used() - 108 * 2048 * 128, exact()]
        ok(d.cuCtxSetLimit(HEAP, 8 * MIB)); ok(d.cuCtxSetLimit(FIFO, 4096)); ok(d.cuCtxSetLimit(STACK, 512))
        say(said + [used(), exact()])
        """
    ) == [*["OUT_OF_MEMORY"] * 3, 0, 12 << 20, True, 0, True]


def test_a_kernel_s_local_memory_is_charged_when_it_is_looked_up(inside: Inside) -> None:
    kernel = """
        .version 8.0
        .target sm_70
        .address_size 64
        .visible .entry deep(.param .u64 at) {
            .local .align 8 .b8 depot[SIZE];
            .reg .b64 %d<3>;
            ld.param.u64 %d1, [at];
            mov.u64 %d2, depot;
            st.local.u64 [%d2], %d1;
            ret;
        }
    """
    each = 108 * 2048
    assert inside.run(
        f"KERNEL, EACH = {kernel!r}, {each}\n"
        + textwrap.dedent("""
            def loaded(size): return ok(d.cuModuleLoadData(KERNEL.replace("SIZE", str(size)).encode() + bytes(1)))
            def deep(size): return d.cuModuleGetFunction(loaded(size), b"deep")
            said = [name(deep(1024)), used(), name(deep(64 << 10)), used()]
            f = ok(deep(1024 + 64))
            said += [used() == 64 * EACH, name(deep(1024 + 32)), used() == 64 * EACH, exact()]
            ok(launch(f, 1, 1, 0)); ok(d.cuCtxSynchronize())
            say(said + [name(d.cuModuleEnumerateFunctions(1, loaded(64 << 10))), used() == 64 * EACH])
        """)
    ) == ["SUCCESS", 0, "OUT_OF_MEMORY", 0, True, "SUCCESS", True, True, "OUT_OF_MEMORY", True]


def test_what_others_write_into_the_account_does_not_lift_a_process_s_limit(inside: Inside) -> None:
    """Eight bytes of its usage file, the total, set back to nothing again and again, and its own slot's too."""
    said = inside.run(
        f"""
        import mmap
        with open({str(inside.directory / "usage")!r}, "r+b") as file: usage = mmap.mmap(file.fileno(), 0)
        got, result = 0, "SUCCESS"
        while result == "SUCCESS" and got < 1000:
            usage[64:72] = bytes(8)
            result = name(d.cuMemAlloc(MIB))
            got += result == "SUCCESS"
        usage[20480:] = bytes(len(usage) - 20480)
        say([got, result, name(d.cuMemAlloc(MIB))])
        """
    )
    assert said == [LIMIT >> 20, "OUT_OF_MEMORY", "OUT_OF_MEMORY"]


DEEP = """
.version 8.0
.target sm_70
.address_size 64
.visible .entry deep(.param .u64 at, .param .u32 more) {
    .local .align 8 .b8 depot[1088];
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [at];
    mov.u64 %d2, depot;
    st.local.u64 [%d2], %d1;
    ret;
}
"""
"""A kernel with 64 bytes more of local memory for each thread than a context begins with."""


def test_questions_about_a_library_s_kernels_load_and_charge_nothing(inside: Inside) -> None:
    """A program, and an executor for it, ask for names and parameters of all kernels of an image."""
    assert inside.run(
        f"DEEP, EACH = {DEEP!r}, {108 * 2048}\n"
        + textwrap.dedent("""
            library = ok(d.cuLibraryLoadData(DEEP.encode() + bytes(1), [], [], 0, [], [], 0))
            kernel = ok(d.cuLibraryGetKernel(library, b"deep"))
            function = d.CUfunction(int(kernel))
            said = [ok(d.cuKernelGetName(kernel)).decode(), int(ok(d.cuKernelGetLibrary(kernel))) == int(library),
                    int(ok(d.cuKernelGetParamInfo(kernel, 1))[0])]
            [d.cuFuncGetName(function), d.cuFuncGetParamInfo(function, 0), d.cuFuncIsLoaded(function)]
            say([*said, used(), ok(launch(function, 1, 1, 0, (1, ctypes.c_uint32))), used() == 64 * EACH])
        """)
    ) == ["deep", True, 8, 0, None, True]
