"""What is at a pointer of a remote program is the card's or the program's, never both."""

import contextlib
import ctypes
import subprocess
import textwrap
from collections.abc import Generator
from pathlib import Path

import pytest

from egpu_sim.machines.machine import Machine
from support.nvcc import compile_program
from support.remote_gpu import Executor, client_dir, remote
from support.simulated_gpu import environment, machine, run
from support.waiting import DEADLINE_SECONDS

CARDS = ("T4", 1)

MAPPING = """
IMAGE = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.global .u32 cell[4096];\\n\\0"
context()
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
PRIVATE, NOREPLACE = 0x22, 0x100000
def here(at, size):
    '''Memory of this program there, and nowhere else; None: the place is taken.'''
    at = int(at) & ~4095
    mapped = libc.mmap(at, size, 3, PRIVATE | NOREPLACE, -1, 0)
    return mapped if mapped == at else None
"""


@pytest.mark.parametrize("size", [4096, 5 << 20])
def test_device_memory_is_where_the_program_has_none(sim: Machine, tmp_path: Path, size: int) -> None:
    program = f"""
    size = {size}
    before = ok(d.cuMemAlloc(size)); ok(d.cuMemFree(before))
    free = ok(d.cuMemGetInfo())[0]
    host = here(before, size)
    ctypes.memset(host, 7, size)
    device = ok(d.cuMemAlloc(size))
    ok(d.cuMemcpy(device, host, size))
    back = np.zeros(size, np.uint8)
    ok(d.cuMemcpy(back.ctypes.data, device, size))
    apart = int(device) + size <= host or host + size <= int(device)
    ok(d.cuMemFree(device))
    say([apart, int(back.min()), int(back.max()), ok(d.cuMemGetInfo())[0] == free])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, MAPPING + textwrap.dedent(program)) == [True, 7, 7, True]


def test_the_program_gets_no_memory_where_device_memory_is_and_may_have_it_afterwards(
    sim: Machine, tmp_path: Path
) -> None:
    program = """
    one, other = ok(d.cuMemAlloc(4096)), ok(d.cuMemAlloc(3 << 20))
    taken = [here(one, 4096), here(other, 4096), here(int(other) + (2 << 20), 4096)]
    ok(d.cuMemFree(one)); ok(d.cuMemFree(other))
    stream = ok(d.cuStreamCreate(1))
    pooled = ok(d.cuMemAllocAsync(8 << 20, stream))
    taken.append(here(pooled, 4096))
    ok(d.cuMemFreeAsync(pooled, stream))
    say([taken, here(other, 4096) is not None])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, MAPPING + textwrap.dedent(program)) == [[None] * 4, True]


LOADED = """
    def load():
        if how == "module": return ok(d.cuModuleLoadData(IMAGE))
        return ok(d.cuLibraryLoadData(IMAGE, [], [], 0, [], [], 0))
    def of(image): return ok(d.cuLibraryGetModule(image)) if how == "module of a library" else image
    def find(image): return ok((d.cuLibraryGetGlobal if how == "library" else d.cuModuleGetGlobal)(of(image), b"cell"))
    def unload(image): ok((d.cuModuleUnload if how == "module" else d.cuLibraryUnload)(image))
    def copied(to, start, size):
        ok(d.cuMemcpy(to, start, size))
        back = np.zeros(size, np.uint8)
        ok(d.cuMemcpyDtoH(back.ctypes.data, to, size))
        return [int(back.min()), int(back.max())]
    device = ok(d.cuMemAlloc(4096))
"""
FORMS = ["module", "library", "module of a library"]


@pytest.mark.parametrize("how", FORMS)
def test_the_program_gets_no_memory_where_a_variable_is_and_may_have_it_afterwards(
    sim: Machine, tmp_path: Path, how: str
) -> None:
    """Memory of the program is not looked for on the card, even if a variable was there."""
    program = """
    image = load()
    cell, size = find(image)
    again = find(image)[0]
    taken = here(cell, 4096)
    unload(image)
    host = here(cell, 1 << 20)
    ctypes.memset(host, 7, 1 << 20)
    say([int(again) == int(cell), taken, copied(device, cell, 4096)])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, f"{MAPPING}\nhow = {how!r}\n" + textwrap.dedent(LOADED + program)) == [True, None, [7, 7]]


@pytest.mark.parametrize("how", FORMS)
def test_copies_find_a_variable_even_where_the_program_has_memory(sim: Machine, tmp_path: Path, how: str) -> None:
    """The driver chooses its place. A client's address space has room for few such accidents, but it is random."""
    program = """
    image = load()
    cell, size = find(image)
    unload(image)
    host = here(cell, 1 << 20)
    ctypes.memset(host, 7, 1 << 20)
    image = load()
    again, size = find(image)
    ok(d.cuMemsetD8(again, 1, size))
    found = copied(device, again, 4096)
    values = np.full(4096, 3, np.uint8)
    ok(d.cuMemcpy(again, values.ctypes.data, 4096))
    apart = ctypes.string_at(host, 4096) == bytes([7]) * 4096
    say([int(again) == int(cell), found, copied(device, again, 4096), apart])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, f"{MAPPING}\nhow = {how!r}\n" + textwrap.dedent(LOADED + program)) == [
            True,
            [1, 1],
            [3, 3],
            True,
        ]


def test_copies_by_name_find_a_variable_even_where_the_program_has_memory(sim: Machine, tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "programs" / "variable_places.cu"
    program = compile_program(source, tmp_path / "program", "-gencode=arch=compute_75,code=compute_75")
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        ran = subprocess.run(
            [program], env=environment(client), capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False
        )
    assert ran.stdout == "41 5 7\n"


def test_a_context_takes_its_variables_along(sim: Machine, tmp_path: Path) -> None:
    program = """
    own = ok(d.cuCtxCreate(None, 0, 0))
    cell, size = ok(d.cuModuleGetGlobal(ok(d.cuModuleLoadData(IMAGE)), b"cell"))
    taken = here(cell, 4096)
    ok(d.cuCtxDestroy(own))
    say([taken, here(cell, 4096) is not None])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, MAPPING + textwrap.dedent(program)) == [None, True]


ADDR_NO_RANDOMIZE = 0x0040000
PERSONALITY_ASKED = 0xFFFFFFFF


@contextlib.contextmanager
def where_all_others_are() -> Generator[None]:
    """Processes that are started here have what they map at equal addresses."""
    libc = ctypes.CDLL(None)
    before = libc.personality(PERSONALITY_ASKED)
    libc.personality(before | ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        libc.personality(before)


@contextlib.contextmanager
def two_servers(folder: Path) -> Generator[Path]:
    """A client of two servers that give equal addresses."""
    client = client_dir(folder / "client")
    with machine(folder / "0", "T4", node="a") as one, machine(folder / "1", "T4", node="b") as two:
        with where_all_others_are():
            executors = [
                Executor(made, folder / f"executor{i}", "--listen", str(client / f"lease{i}.sock"))
                for i, made in enumerate((one, two))
            ]
        try:
            yield client
        finally:
            for executor in executors:
                executor.stop()


TWO = """
ok(d.cuInit(0))
contexts = [ok(d.cuDevicePrimaryCtxRetain(i)) for i in range(2)]
SIZES = [4096, 4096, 3 << 20, 40 << 20]
def on(i): ok(d.cuCtxSetCurrent(contexts[i]))
def apart(memory):
    ends = sorted((int(at), int(at) + size) for at, size in memory)
    return all(end <= start for (_, end), (start, _) in zip(ends, ends[1:]))
"""


@pytest.mark.parametrize("how", ["plain", "ordered", "pitched"])
def test_memory_of_two_servers_is_apart(tmp_path: Path, how: str) -> None:
    program = f"""
    how, memory, free = {how!r}, [], []
    def allocate(size, stream):
        if how == "plain": return ok(d.cuMemAlloc(size))
        if how == "pitched": return ok(d.cuMemAllocPitch(4096, size // 4096, 4))[0]
        return ok(d.cuMemAllocAsync(size, stream))
    for i in range(2):
        on(i)
        stream = ok(d.cuStreamCreate(1))
        memory += [(allocate(size, stream), size) for size in SIZES]
        ok(d.cuStreamSynchronize(stream))
    kinds = []
    for i, (at, size) in enumerate(memory):
        kinds.append(int(ok(d.cuPointerGetAttribute(d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at))))
    say([apart(memory), kinds])
    """
    with two_servers(tmp_path) as client:
        assert run(client, TWO + textwrap.dedent(program)) == [True, [0] * 4 + [1] * 4]


def test_a_pointer_says_which_server_s_card_it_means(tmp_path: Path) -> None:
    """Whichever context is current: to copy from and to, and to free."""
    program = """
    on(0)
    free = ok(d.cuMemGetInfo())[0]
    first, back = ok(d.cuMemAlloc(1 << 20)), np.zeros(1 << 20, np.uint8)
    on(1)
    other = ok(d.cuMemAlloc(1 << 20))
    ok(d.cuMemsetD8(other, 7, 1 << 20))
    stream = ok(d.cuStreamCreate(1))
    ok(d.cuMemcpyAsync(first, other, 1 << 20, stream))
    ok(d.cuMemcpy(back.ctypes.data, first, 1 << 20))
    came = [int(back.min()), int(back.max())]
    back[:] = 9
    on(0)
    ok(d.cuMemcpy(other, back.ctypes.data, 1 << 20))
    back[:] = 0
    ok(d.cuMemcpy(back.ctypes.data, other, 1 << 20))
    on(1)
    ok(d.cuMemFree(first))
    on(0)
    say([came, [int(back.min()), int(back.max())], ok(d.cuMemGetInfo())[0] == free])
    """
    with two_servers(tmp_path) as client:
        assert run(client, TWO + textwrap.dedent(program)) == [[7, 7], [9, 9], True]


def test_ranges_of_two_servers_are_apart_and_free_again(tmp_path: Path) -> None:
    program = """
    size, ranges = 4 << 20, []
    for i in range(2):
        on(i)
        ranges += [(ok(d.cuMemAddressReserve(size, 0, 0, 0)), size) for _ in range(3)]
    held = [here(at, 4096) for at, _ in ranges]
    for i, (at, _) in enumerate(ranges):
        on(i // 3)
        ok(d.cuMemAddressFree(at, size))
    say([apart(ranges), held, all(here(at, 4096) for at, _ in ranges)])
    """
    with two_servers(tmp_path) as client:
        assert run(client, MAPPING.replace("context()", "") + TWO + textwrap.dedent(program)) == [
            True,
            [None] * 6,
            True,
        ]


def test_what_was_refused_in_a_stream_is_freed_in_its_order(sim: Machine, tmp_path: Path) -> None:
    """In a stream that is captured nothing else is allowed."""
    program = """
    size, own = 5 << 20, ok(d.cuCtxCreate(None, 0, 0))
    def capture():
        stream = ok(d.cuStreamCreate(1))
        ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        at = ok(d.cuMemAllocAsync(size, stream))
        ok(d.cuMemFreeAsync(at, stream))
        result = d.cuStreamEndCapture(stream)
        return at, name(result), result[1]
    before, ended, graph = capture()
    ok(d.cuGraphDestroy(graph))
    ok(d.cuCtxDestroy(own))
    host = here(before, size)
    at, again, _ = capture()
    say([host is not None, ended, again, int(at) + size <= host or host + size <= int(at)])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, MAPPING + textwrap.dedent(program)) == [True, "SUCCESS", "SUCCESS", True]


GRAPH_MEMORY = """
size = 5 << 20
def count(graph): return ok(d.cuGraphGetNodes(graph, 64))[1]
def asked():
    is_ = d.CUDA_MEM_ALLOC_NODE_PARAMS()
    is_.poolProps.allocType = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    is_.poolProps.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    is_.poolProps.location.id = 0
    is_.bytesize = size
    return is_
def by_node():
    graph = ok(d.cuGraphCreate(0))
    node = ok(d.cuGraphAddMemAllocNode(graph, [], 0, is_ := asked()))
    at = ok(d.cuGraphMemAllocNodeGetParams(node)).dptr
    assert int(at) == int(is_.dptr)
    ok(d.cuGraphAddMemFreeNode(graph, [node], 1, at))
    return int(at), graph
def captured():
    stream = ok(d.cuStreamCreate(1))
    ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    at = ok(d.cuMemAllocAsync(size, stream))
    ok(d.cuMemFreeAsync(at, stream))
    return int(at), ok(d.cuStreamEndCapture(stream))
"""


@pytest.mark.parametrize("how", ["by_node", "captured"])
def test_the_program_gets_no_memory_where_a_graph_has_it_until_the_context_ends(
    sim: Machine, tmp_path: Path, how: str
) -> None:
    """Each launch of the graph uses the addresses again, although they are freed in it."""
    program = f"""
    own = ok(d.cuCtxCreate(None, 0, 0))
    at, graph = {how}()
    runs = ok(d.cuGraphInstantiate(graph, 0))
    taken = [here(at, 4096), here(at + (4 << 20), 4096)]
    ok(d.cuGraphLaunch(runs, 0)); ok(d.cuCtxSynchronize())
    taken.append(here(at, 4096))
    ok(d.cuGraphExecDestroy(runs)); ok(d.cuGraphDestroy(graph)); ok(d.cuCtxDestroy(own))
    say([taken, here(at, 4096) is not None])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, MAPPING + GRAPH_MEMORY + textwrap.dedent(program)) == [[None] * 3, True]


def test_memory_of_a_graph_is_where_the_program_has_none(sim: Machine, tmp_path: Path) -> None:
    """The program's own memory stays what it is, and copies by pointers alone find the card's."""
    program = """
    own = ok(d.cuCtxCreate(None, 0, 0))
    at, graph = by_node()
    plain = count(graph)
    ok(d.cuGraphDestroy(graph)); ok(d.cuCtxDestroy(own))
    host = here(at, size)
    ctypes.memset(host, 7, size)
    graph = ok(d.cuGraphCreate(0))
    node = ok(d.cuGraphAddMemAllocNode(graph, [], 0, is_ := asked()))
    memory = int(is_.dptr)
    nodes = count(graph)
    runs = ok(d.cuGraphInstantiate(graph, 0))
    ok(d.cuGraphLaunch(runs, 0)); ok(d.cuCtxSynchronize())
    back = np.zeros(size, np.uint8)
    ok(d.cuMemcpy(memory, host, size)); ok(d.cuMemcpy(back.ctypes.data, memory, size))
    apart = memory + size <= host or host + size <= memory
    say([host == at, plain, nodes, apart, int(back.min()), int(back.max())])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, MAPPING + GRAPH_MEMORY + textwrap.dedent(program)) == [True, 2, 3, True, 7, 7]
