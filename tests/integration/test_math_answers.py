"""cuFFT, simulated: numpy's answers, here and carried to a server."""

from pathlib import Path
from typing import Final

import pytest

from egpu.adapters.simulator.machine import Machine
from support.remote_gpu import remote
from support.simulated_gpu import run

CARDS = ("A100-80G", 1)

START: Final = """
    context()
    stream = ok(d.cuStreamCreate(1))
    long, pointer, answers = ctypes.c_longlong, lambda at: ctypes.c_void_p(int(at)), []
    random, kept = np.random.default_rng(7), []
    def card(array):
        kept.append(np.ascontiguousarray(array))
        return pointer(upload(kept[-1]))
    def back(at, like):
        ok(d.cuStreamSynchronize(stream))
        return download(at.value, np.ascontiguousarray(like))
"""

FFT: Final = (
    START
    + """
    fft = ctypes.CDLL("libcufft.so.12")
    def call(name, *arguments, status=0):
        got = fft[name](*arguments)
        assert got == status, (name, got)
    def longs(*values):
        return (ctypes.c_longlong * len(values))(*values)
    def near(got, expected, within):
        assert np.allclose(got, expected, rtol=within, atol=within * max(1, np.abs(expected).max())), (got, expected)
        answers.append(got.tobytes().hex())
    def signal(*shape):
        return random.standard_normal(shape) + 1j * random.standard_normal(shape)
    C2C, R2C, C2R, Z2Z, D2Z, Z2D = 0x29, 0x2A, 0x2C, 0x69, 0x6A, 0x6C
    R32, R64, C32, C64 = 0, 1, 4, 5

    # rows of every kind of length: powers, composites, a prime; forward and back; nothing is scaled
    for n in (1, 8, 60, 101):
        for kind, complex_of, name, within in ((C2C, np.complex64, "C2C", 1e-5), (Z2Z, np.complex128, "Z2Z", 1e-12)):
            plan = ctypes.c_int(-1)
            call("cufftPlan1d", ctypes.byref(plan), n, kind, 3)
            assert plan.value > 0
            call("cufftSetStream", plan, pointer(stream))
            x = signal(3, n).astype(complex_of)
            at, to = card(x), card(np.zeros_like(x))
            call("cufftExec" + name, plan, at, to, -1)
            near(back(to, x), np.fft.fft(x), within)
            call("cufftExec" + name, plan, to, to, 1)
            near(back(to, x), n * x, within)
            call("cufftDestroy", plan)
    call("cufftDestroy", plan, status=1)  # CUFFT_INVALID_PLAN
    call("cufftDestroy", -1, status=1)

    # as torch.fft does it: a plan with its own room for work, real signals and their spectra, batches, strides
    for real, complex_of, one, two, within in ((np.float32, np.complex64, R32, C32, 1e-5),
                                               (np.float64, np.complex128, R64, C64, 1e-12)):
        x = random.standard_normal((4, 5, 6)).astype(real)
        for from_, to_, types, inverse in ((x, np.fft.rfft2(x), (one, two), 0),
                                           (np.fft.rfft2(x).astype(complex_of), 30 * x, (two, one), 1)):
            plan, room = ctypes.c_int(), ctypes.c_size_t()
            call("cufftCreate", ctypes.byref(plan))
            call("cufftSetAutoAllocation", plan, 0)
            call("cufftXtMakePlanMany", plan, 2, longs(5, 6), longs(*from_.shape[1:]), long(1),
                 long(from_[0].size), types[0], longs(*to_.shape[1:]), long(1), long(to_[0].size), types[1], long(4),
                 ctypes.byref(room), two)
            work = pointer(ok(d.cuMemAlloc(max(room.value, 1))))
            call("cufftSetWorkArea", plan, work)
            call("cufftSetStream", plan, pointer(stream))
            like = np.zeros(to_.shape, real if inverse else complex_of)
            at, to = card(from_), card(like)
            call("cufftXtExec", plan, at, to, 1 if inverse else -1)
            near(back(to, like), to_, within)
            call("cufftDestroy", plan)
    # columns of a matrix: elements that do not follow each other
    x = signal(7, 3)
    plan = ctypes.c_int()
    n = (ctypes.c_int * 1)(7)
    call("cufftPlanMany", ctypes.byref(plan), 1, n, n, 3, 1, n, 3, 1, Z2Z, 3)
    at = card(x)
    call("cufftExecZ2Z", plan, at, at, -1)
    near(back(at, x), np.fft.fft(x, axis=0), 1e-12)
    # of a real signal in place: its rows are padded
    x = random.standard_normal((4, 6))
    padded = np.zeros((4, 8))
    padded[:, :6] = x
    call("cufftPlan2d", ctypes.byref(plan), 4, 6, D2Z)
    at = card(padded)
    call("cufftExecD2Z", plan, at, at)
    near(back(at, padded).view(np.complex128), np.fft.rfft2(x), 1e-12)
    call("cufftPlan2d", ctypes.byref(plan), 4, 6, Z2D)
    call("cufftExecZ2D", plan, at, at)
    near(back(at, padded)[:, :6], 24 * x, 1e-12)
    # in three dimensions
    x = signal(2, 3, 4)
    call("cufftPlan3d", ctypes.byref(plan), 2, 3, 4, Z2Z)
    at = card(x)
    call("cufftExecZ2Z", plan, at, at, -1)
    near(back(at, x), np.fft.fftn(x), 1e-12)
    say(answers)
"""
)

@pytest.mark.parametrize("program", [FFT], ids=["cufft"])
def test_answers_are_right_and_the_same_from_afar(sim: Machine, tmp_path: Path, program: str) -> None:
    local = run(sim, program)
    assert len(local) > 10
    with remote(sim, tmp_path, "shm") as (client, _, _):
        assert run(client, program) == local


LATE: Final = """
    context()
    fft, plan, nowhere, said = ctypes.CDLL("libcufft.so.12"), ctypes.c_int(), ctypes.c_void_p(0x1000), []
    said.append(fft.cufftPlan1d(ctypes.byref(plan), -4, 0x29, 1))
    assert fft.cufftPlan1d(ctypes.byref(plan), 8, 0x29, 1) == 0
    assert fft.cufftExecC2C(plan, nowhere, nowhere, -1) == 0  # posted, and refused there
    said.append(name(d.cuCtxSynchronize()))
    said.append(fft.cufftExecC2C(plan.value + 1, nowhere, nowhere, -1))  # no plan: seen at once
    say(said)
"""


def test_errors_are_the_librarys_own_or_come_with_the_next_call_that_waits(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "shm") as (client, _, _):
        # CUFFT_INVALID_SIZE, CUFFT_INVALID_PLAN
        assert run(client, LATE) == [8, "UNKNOWN", 1]
