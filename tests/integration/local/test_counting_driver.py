"""The driver that counts calls for scripts/wheel_walks.py, in a program and below the interposer of a slice."""

import sys

import pytest
from wheel_walks import bare, in_a_slice

from egpu.adapters import native

PROGRAM = str(native.path("samples/egpu-sample-vectoradd"))
EXPECTED = {"cuMemAlloc_v2": 3, "cuMemcpyHtoD_v2": 2, "cuMemcpyDtoH_v2": 1, "cuLaunchKernel": 1, "kernels": 1}
KILLED = "import ctypes, os; ctypes.CDLL('libcuda.so.1').cuInit(0); os.kill(os.getpid(), 9)"


@pytest.mark.parametrize("place", [bare, in_a_slice])
def test_calls_are_counted_by_function(place: type) -> None:
    with place() as run:
        first, second = run([PROGRAM]), run([PROGRAM])
    for walk in (first, second):
        assert {name: walk.calls[name] for name in EXPECTED} == EXPECTED
    made_by_the_slice = first.calls["cuFuncGetAttribute"]
    assert bool(made_by_the_slice) == (place is in_a_slice)


def test_counts_outlive_a_killed_program() -> None:
    with bare() as run:
        assert run([sys.executable, "-c", KILLED]).calls["cuInit"] == 1
