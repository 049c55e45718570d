"""Tensor maps (TMA) on a remote GPU: the server's driver encodes them, with all that the program said."""

from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.remote_gpu import remote
from support.repository import ROOT
from support.simulated_gpu import run
from support.wrapped_driver import WrappedDriver, wrap

CARDS = ("H100-80G", 1)
SOURCE: Final = ROOT / "tests/integration/programs/tensor_map_driver.c"

MAKE: Final = """
context()
cuda = ctypes.CDLL("libcuda.so.1")
class Map(ctypes.Structure): _fields_ = [("words", ctypes.c_uint64 * 16)]
u64, u32, i32, A = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p(0x7f0000001000)
longs, words, ints = (lambda *these, kind=kind: (kind * len(these))(*these) for kind in (u64, u32, i32))
sizes, strides = longs(64, 32, 16, 8, 4), longs(1 << 33, 256, 512, 1024)
box, steps, lower, upper = words(1, 2, 3, 4, 5), words(6, 7, 8, 1, 2), ints(-1, -2, -3), ints(1, 2, 3)
buffer = ctypes.create_string_buffer(256)
map = Map.from_buffer(buffer, -ctypes.addressof(buffer) % 64)
def made(call, *arguments):
    status = cuda[call](ctypes.byref(map), *arguments)
    return status or [each for each in map.words]
"""


@pytest.fixture
def far(sim: Machine, tmp_path: Path) -> WrappedDriver:
    return wrap(sim, tmp_path / "wrapped", SOURCE)


def made(driver: WrappedDriver, folder: Path, *calls: str) -> list[list[int] | int]:
    with remote(driver, folder, "shm") as (client, _, _):
        return run(client, MAKE + f"say([{', '.join(calls)}])")


def test_a_map_is_made_of_all_that_the_program_said(far: WrappedDriver, tmp_path: Path) -> None:
    address = 0x7F00_0000_1000

    def two(low: int, high: int) -> int:
        return low & 0xFFFF_FFFF | (high & 0xFFFF_FFFF) << 32

    found = made(
        far,
        tmp_path,
        "made('cuTensorMapEncodeTiled', 6, 5, A, sizes, strides, box, steps, 1, 2, 3, 1)",
        "made('cuTensorMapReplaceAddress', ctypes.c_void_p(4096))",
        "made('cuTensorMapEncodeIm2col', 7, 5, A, sizes, strides, lower, upper, 9, 10, steps, 2, 1, 0, 1)",
        "made('cuTensorMapEncodeIm2colWide', 8, 4, A, sizes, strides, -5, 6, 9, 10, steps, 1, 2, 3, 1, 0)",
    )
    tiled = [6, 5, address, 64, 4, 1 << 33, 1024, two(1, 5), two(6, 2), two(1, 2), two(3, 1)]
    im2col = [7, 5, address, 64, 4, 1 << 33, 1024, two(-1, -3), two(1, 3), two(9, 10), two(6, 2), two(2, 1), two(0, 1)]
    wide = [8, 4, address, 64, 8, 1 << 33, 512, two(-5, 6), two(9, 10), two(6, 1), two(1, 2), two(3, 1), 0]
    moved = [*tiled[:2], 4096, *tiled[3:]]
    assert found == [each + [0] * (16 - len(each)) for each in (tiled, moved, im2col, wide)]


def test_what_no_driver_encodes_is_an_error(far: WrappedDriver, tmp_path: Path) -> None:
    """The driver's own, and for dimensions that no map has the client's."""
    tiled = "made('cuTensorMapEncodeTiled', 6, RANK, A, sizes, strides, BOX, steps, 1, SWIZZLE, 3, 1)"
    asked = [("5", "box", "99"), ("0", "box", "2"), ("6", "box", "2"), ("5", "None", "2")]
    calls = [tiled.replace("RANK", rank).replace("BOX", box).replace("SWIZZLE", way) for rank, box, way in asked]
    assert made(far, tmp_path, *calls) == [1, 1, 1, 1]  # CUDA_ERROR_INVALID_VALUE
