"""What is at a pointer of a remote program is the card's or the program's, never both."""

import textwrap
from pathlib import Path

import pytest

from egpu.adapters.simulator.machine import Machine
from support.remote_gpu import remote
from support.simulated_gpu import run

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


def test_memory_of_the_program_is_not_looked_for_on_the_card(sim: Machine, tmp_path: Path) -> None:
    """The address of a module's variable, in the program's own hands."""
    program = """
    module = ok(d.cuModuleLoadData(IMAGE))
    cell, size = ok(d.cuModuleGetGlobal(module, b"cell"))
    ok(d.cuMemsetD8(cell, 1, size))
    host = here(cell, 1 << 20)
    ctypes.memset(host, 7, 1 << 20)
    device = ok(d.cuMemAlloc(4096))
    ok(d.cuMemcpy(device, cell, 4096))
    back = np.zeros(4096, np.uint8)
    ok(d.cuMemcpyDtoH(back.ctypes.data, device, 4096))
    say([int(back.min()), int(back.max())])
    """
    with remote(sim, tmp_path, "tcp") as (client, _, _):
        assert run(client, MAPPING + textwrap.dedent(program)) == [7, 7]
