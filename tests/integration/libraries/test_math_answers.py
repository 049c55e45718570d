"""cuFFT and cuRAND, simulated: numpy's answers and documented distributions, here and carried to a server."""

import json
from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
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

RANDOM: Final = (
    START
    + """
    rand = ctypes.CDLL("libcurand.so.10")
    def call(name, *arguments, status=0):
        got = rand[name](*arguments)
        assert got == status, (name, got)
    generator, n = ctypes.c_void_p(), 40_000
    call("curandCreateGenerator", ctypes.byref(generator), 100)
    call("curandSetStream", generator, pointer(stream))
    def seeded(seed, offset=0):
        call("curandSetPseudoRandomGeneratorSeed", generator, ctypes.c_ulonglong(seed))
        call("curandSetGeneratorOffset", generator, ctypes.c_ulonglong(offset))
    def drawn(name, kind, count, *parameters):
        like = np.zeros(count, kind)
        at = card(like)
        call("curandGenerate" + name, generator, at, ctypes.c_size_t(count), *parameters)
        got = back(at, like)
        answers.append(got[:16].tobytes().hex())
        return got
    def like(got, mean, deviation):
        # five standard errors of the mean, and of the deviation of what is nearly normal or less spread
        assert abs(got.mean() - mean) < 5 * deviation / n**0.5, got.mean()
        assert abs(got.std() - deviation) < 0.05 * deviation, got.std()

    # one sequence for one seed: drawn at once, in parts, and from an offset on
    seeded(11)
    whole = drawn("", np.uint32, 100)
    seeded(11)
    parts = [drawn("", np.uint32, 60), drawn("", np.uint32, 40)]
    seeded(11, offset=60)
    assert (np.concatenate(parts) == whole).all() and (drawn("", np.uint32, 40) == whole[60:]).all()
    seeded(12)
    assert (drawn("", np.uint32, 100) != whole).any()

    bits = drawn("", np.uint32, n)
    assert all(abs((bits >> k & 1).mean() - 0.5) < 0.0125 for k in range(32))
    for suffix, real, number in (("", np.float32, ctypes.c_float), ("Double", np.float64, ctypes.c_double)):
        got = drawn("Uniform" + suffix, real, n)
        assert got.min() > 0 and got.max() <= 1
        like(got, 0.5, 12**-0.5)
        parts, _ = np.histogram(got, 20, (0, 1))
        assert ((parts - n / 20) ** 2 / (n / 20)).sum() < 60  # chi-squared of 19 degrees
        got = drawn("Normal" + suffix, real, n, number(3), number(2))
        like(got, 3, 2)
        assert abs((np.abs(got - 3) < 2).mean() - 0.6827) < 0.012
        assert abs(np.corrcoef(got[::2], got[1::2])[0, 1]) < 0.035
        like(np.log(drawn("LogNormal" + suffix, real, n, number(1), number(0.5))), 1, 0.5)
    for mean in (0.5, 20.0, 300.0):
        like(drawn("Poisson", np.uint32, n, ctypes.c_double(mean)).astype(float), mean, mean**0.5)
    call("curandDestroyGenerator", generator)
    call("curandCreateGenerator", ctypes.byref(generator), 201, status=204)  # quasirandom: not here
    say(answers)
"""
)


@pytest.mark.parametrize("program", [FFT, RANDOM], ids=["cufft", "curand"])
def test_answers_are_right_and_the_same_from_afar(sim: Machine, tmp_path: Path, program: str) -> None:
    local = run(sim, program)
    assert len(local) > 10
    with remote(sim, tmp_path, "shm") as (client, _, _):
        assert run(client, program) == local


def test_a_refused_generator_is_named_once(sim: Machine) -> None:
    program = """
    context()
    rand, generator = ctypes.CDLL("libcurand.so.10"), ctypes.c_void_p()
    say([rand.curandCreateGenerator(ctypes.byref(generator), kind) for kind in (201, 202)])
    """
    done = run(sim, program, fails=True)
    assert json.loads(done.stdout) == [204, 204]
    assert (
        done.stderr.count("egpu: the simulated library does not support quasirandom generators: use CURAND_RNG_") == 1
    )


LATE: Final = """
    context()
    fft, rand = ctypes.CDLL("libcufft.so.12"), ctypes.CDLL("libcurand.so.10")
    plan, generator, nowhere, said = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(0x1000), []
    said.append(fft.cufftPlan1d(ctypes.byref(plan), -4, 0x29, 1))
    assert fft.cufftPlan1d(ctypes.byref(plan), 8, 0x29, 1) == 0
    assert fft.cufftExecC2C(plan, nowhere, nowhere, -1) == 0  # posted, and refused there
    said.append(name(d.cuCtxSynchronize()))
    said.append(fft.cufftExecC2C(plan.value + 1, nowhere, nowhere, -1))  # no plan: seen at once
    assert rand.curandCreateGenerator(ctypes.byref(generator), 100) == 0
    assert rand.curandGenerateNormal(generator, nowhere, ctypes.c_size_t(3), ctypes.c_float(), ctypes.c_float(1)) == 0
    said.append(name(d.cuCtxSynchronize()))
    said.append(rand.curandGenerateUniform(plan, nowhere, ctypes.c_size_t(4)))
    said.append(name(d.cuCtxSynchronize()))
    say(said)
"""


def test_errors_are_the_librarys_own_or_come_with_the_next_call_that_waits(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "shm") as (client, _, _):
        # CUFFT_INVALID_SIZE, CUFFT_INVALID_PLAN, CURAND_STATUS_NOT_INITIALIZED
        assert run(client, LATE) == [8, "UNKNOWN", 1, "UNKNOWN", 101, "SUCCESS"]
