"""cuBLAS and cuBLASLt, simulated: numpy's answers, the same in this process and carried to a server."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from egpu.adapters.native import path
from egpu.adapters.slices.pages import PPM, DevicePolicy, Mode, create_usage, write_policy
from egpu_sim.machines.machine import Machine
from support.remote_gpu import Transport, remote
from support.simulated_gpu import run

CARDS = ("A100-80G", 1)

START: Final = """
    context()
    blas, lt = ctypes.CDLL("libcublas.so.13"), ctypes.CDLL("libcublasLt.so.13")
    stream = ok(d.cuStreamCreate(1))
    handle = ctypes.c_void_p()
    long, pointer, real = ctypes.c_longlong, lambda at: ctypes.c_void_p(int(at)), ctypes.c_float
    def call(name, *arguments, of=blas, status=0):
        got = of[name](*arguments)
        assert got == status, (name, got)
    call("cublasCreate_v2", ctypes.byref(handle))
    call("cublasSetStream_v2", handle, pointer(stream))
    random, kept = np.random.default_rng(7), []
    def card(array):  # as columns, which is how cuBLAS counts
        kept.append(np.asfortranarray(array).ravel("K").copy())
        return pointer(upload(kept[-1]))
    def back(at, like):
        ok(d.cuStreamSynchronize(stream))
        return download(at.value, np.asfortranarray(like).ravel("K").copy()).reshape(like.shape, order="F")
    def by(value, kind=real):
        return ctypes.byref(kind(value))
    def floats(*shape, kind=np.float32):
        return random.standard_normal(shape).astype(kind)
    def near(got, expected, within=1e-5):
        assert np.allclose(got.astype(float), expected.astype(float), rtol=within, atol=within), (got, expected)
        answers.append(got.tobytes().hex())
    answers = []
"""

PRODUCTS: Final = """
    for letter, kind, c in (("S", np.float32, ctypes.c_float), ("D", np.float64, ctypes.c_double)):
        a, b, y = floats(5, 3, kind=kind), floats(4, 3, kind=kind), floats(5, 4, kind=kind)
        at = card(y)
        call(f"cublas{letter}gemm_v2", handle, 0, 1, 5, 4, 3, by(1.5, c), card(a), 5, card(b), 4, by(0.5, c), at, 5)
        near(back(at, y), 1.5 * a @ b.T + 0.5 * y)
        a, x, y = floats(4, 6, kind=kind), floats(8, kind=kind), floats(6, kind=kind)
        at = card(y)
        call(f"cublas{letter}gemv_v2", handle, 1, 4, 6, by(2, c), card(a), 4, card(x), 2, by(1, c), at, 1)
        near(back(at, y), 2 * a.T @ x[::2] + y)
        at = card(a)
        call(f"cublas{letter}ger_v2", handle, 4, 6, by(3, c), card(x), 2, card(y), 1, at, 4)
        near(back(at, a), a + 3 * np.outer(x[::2], y))
        a, b = floats(3, 2, 4, kind=kind), floats(3, 4, 2, kind=kind)
        at = card(np.full(3 * 4, np.nan, kind))  # what is not added may hold anything
        ca, cb = (card(each.transpose(0, 2, 1).ravel()) for each in (a, b))
        call(f"cublas{letter}gemmStridedBatched", handle, 0, 0, 2, 2, 4, by(1, c), ca, 2, long(8), cb, 4, long(8),
             by(0, c), at, 2, long(4), 3)
        near(back(at, np.zeros(12, kind)).reshape(3, 2, 2).transpose(0, 2, 1), a @ b)
        size = a.itemsize  # the same by addresses, in any order and with one that leads nowhere
        places = [np.array([each.value + step * i for i in (2, 0, 1)] + [64], np.uint64) for each, step in
                  ((ca, 8 * size), (cb, 8 * size), (at, 4 * size))]
        call(f"cublas{letter}gemmBatched", handle, 0, 0, 2, 2, 4, by(2, c), card(places[0]), 2, card(places[1]), 4,
             by(1, c), card(places[2]), 2, 4)
        near(back(at, np.zeros(12, kind)).reshape(3, 2, 2).transpose(0, 2, 1), 3 * (a @ b))
    a, b = floats(3, 4, kind=np.float16), floats(4, 2, kind=np.float16)
    at = card(np.zeros((3, 2), np.float32))
    call("cublasGemmEx", handle, 0, 0, 3, 2, 4, by(1), card(a), 2, 3, card(b), 2, 4, by(0), at, 0, 3, 68, -1)
    near(back(at, np.zeros((3, 2), np.float32)), a.astype(float) @ b.astype(float))
    lists = [card(np.array([each.value], np.uint64)) for each in (card(a), card(b), at)]
    call("cublasGemmBatchedEx", handle, 0, 0, 3, 2, 4, by(1), lists[0], 2, 3, lists[1], 2, 4, by(1), lists[2], 0, 3, 1,
         68, -1)
    near(back(at, np.zeros((3, 2), np.float32)), 2 * (a.astype(float) @ b.astype(float)))
"""

VECTORS: Final = """
    x, y, n = floats(9), floats(9), 9
    at, result = card(y), real()
    call("cublasSaxpy_v2", handle, n, by(0.5), card(x), 1, at, 1)
    near(back(at, y), 0.5 * x + y)
    call("cublasSscal_v2", handle, n, by(-2), at, 1)
    near(back(at, y), -2 * (0.5 * x + y))
    for name, expected in (("nrm2", np.sqrt(np.sum(x * x))), ("asum", np.sum(np.abs(x)))):
        call(f"cublasS{name}_v2", handle, n, card(x), 1, ctypes.byref(result))
        near(np.float32(result.value), expected)
    call("cublasSdot_v2", handle, n, card(x), 1, card(y), 1, ctypes.byref(result))
    near(np.float32(result.value), np.dot(x, y))
    where = ctypes.c_int()
    call("cublasIsamax_v2", handle, n, card(x), 1, ctypes.byref(where))
    assert where.value == int(np.argmax(np.abs(x))) + 1
    # by addresses: nothing is waited for
    mode = ctypes.c_int(7)
    call("cublasSetPointerMode_v2", handle, 1)
    call("cublasGetPointerMode_v2", handle, ctypes.byref(mode))
    assert mode.value == 1
    at, out = card(y), card(np.zeros(1, np.float32))
    call("cublasSaxpy_v2", handle, n, card(np.float32([4])), card(x), 1, at, 1)
    call("cublasSdot_v2", handle, n, card(x), 1, at, 1, out)
    near(back(out, np.zeros(1, np.float32)), np.dot(x, 4 * x + y)[None])
    call("cublasSetPointerMode_v2", handle, 0)
    # copies of rows
    full = np.arange(12, dtype=np.float32)
    at, got = card(np.zeros(6, np.float32)), np.zeros(6, np.float32)
    copied = (6, 4, pointer(full.ctypes.data), 2, at, 1, pointer(stream))
    call("cublasSetVectorAsync", *copied)
    call("cublasGetVectorAsync", 6, 4, at, 1, pointer(got.ctypes.data), 1, pointer(stream))
    ok(d.cuStreamSynchronize(stream))
    assert (got == full[::2]).all()
    call("cublasGetMatrixAsync", 2, 2, 4, at, 3, pointer(got.ctypes.data), 2, pointer(stream))
    ok(d.cuStreamSynchronize(stream))
    assert (got[:4] == full[::2][[0, 1, 3, 4]]).all()
"""

COPIES: Final = """
    full, got = np.arange(12, dtype=np.float32), np.zeros(6, np.float32)
    for wide, size in (("", ctypes.c_int), ("_64", long)):
        at = card(np.zeros(6, np.float32))
        host = lambda array: pointer(array.ctypes.data)
        call("cublasSetVector" + wide, size(6), size(4), host(full), size(2), at, size(1))
        call("cublasGetVector" + wide, size(3), size(4), at, size(2), host(got), size(1))  # there when it returns
        assert got[:3].tolist() == [0, 4, 8]
        call("cublasSetMatrix" + wide, size(2), size(2), size(4), host(full[5:]), size(3), at, size(3))
        call("cublasGetMatrix" + wide, size(2), size(2), size(4), at, size(3), host(got), size(2))
        assert got[:4].tolist() == [5, 6, 8, 9]
        call("cublasSetVector" + wide, size(-1), size(4), host(full), size(2), at, size(1), status=7)
"""

# The same with sizes of 64 bits: arguments are that wide, and so is a place that is found.
WIDE: Final = """
    def wide(name, *arguments, status=0):
        whole = [long(each) if isinstance(each, int) else each for each in arguments]
        call(f"cublas{name}_64", handle, *whole, status=status)
    for letter, kind, c in (("S", np.float32, ctypes.c_float), ("D", np.float64, ctypes.c_double)):
        a, b, y = floats(5, 3, kind=kind), floats(4, 3, kind=kind), floats(5, 4, kind=kind)
        at, op = card(y), ctypes.c_int
        wide(f"{letter}gemm_v2", op(0), op(1), 5, 4, 3, by(1.5, c), card(a), 5, card(b), 4, by(0.5, c), at, 5)
        near(back(at, y), 1.5 * a @ b.T + 0.5 * y)
        a, b = floats(3, 2, 4, kind=kind), floats(3, 4, 2, kind=kind)
        at, (ca, cb) = card(np.zeros(12, kind)), (card(each.transpose(0, 2, 1).ravel()) for each in (a, b))
        wide(f"{letter}gemmStridedBatched", op(0), op(0), 2, 2, 4, by(1, c), ca, 2, 8, cb, 4, 8, by(0, c), at, 2, 4, 3)
        near(back(at, np.zeros(12, kind)).reshape(3, 2, 2).transpose(0, 2, 1), a @ b)
        a, x, y = floats(4, 6, kind=kind), floats(8, kind=kind), floats(6, kind=kind)
        at = card(y)
        wide(f"{letter}gemv_v2", op(1), 4, 6, by(2, c), card(a), 4, card(x), 2, by(1, c), at, 1)
        near(back(at, y), 2 * a.T @ x[::2] + y)
        at = card(a)
        wide(f"{letter}ger_v2", 4, 6, by(3, c), card(x), 2, card(y), 1, at, 4)
        near(back(at, a), a + 3 * np.outer(x[::2], y))
        x, y, result = floats(9, kind=kind), floats(9, kind=kind), c()
        at, other = card(y), card(x)
        wide(f"{letter}axpy_v2", 9, by(0.5, c), other, 1, at, 1)
        wide(f"{letter}scal_v2", 9, by(-2, c), at, 1)
        wide(f"{letter}swap_v2", 9, at, 1, other, 1)
        near(back(at, y), x)
        wide(f"{letter}copy_v2", 9, other, 1, at, 1)
        near(back(at, y), -2 * (0.5 * x + y))
        for name, expected in (("nrm2", np.sqrt(np.sum(x * x))), ("asum", np.sum(np.abs(x)))):
            wide(f"{letter}{name}_v2", 9, card(x), 1, ctypes.byref(result))
            near(kind(result.value), expected)
        wide(f"{letter}dot_v2", 9, card(x), 1, card(y), 1, ctypes.byref(result))
        near(kind(result.value), np.dot(x, y))
        place = long(-1)
        wide(f"I{letter.lower()}amax_v2", 9, card(x), 1, ctypes.byref(place))
        assert place.value == int(np.argmax(np.abs(x))) + 1
    a, b = floats(3, 4, kind=np.float16), floats(4, 2, kind=np.float16)
    at = card(np.zeros((3, 2), np.float32))
    wide("GemmEx", op(0), op(0), 3, 2, 4, by(1), card(a), op(2), 3, card(b), op(2), 4, by(0), at, op(0), 3, op(68),
         op(-1))
    near(back(at, np.zeros((3, 2), np.float32)), a.astype(float) @ b.astype(float))
"""

# Such sizes that their products are no number.
HUGE: Final = (
    START
    + WIDE[: WIDE.index("    for letter")]
    + """
    x, op, most = card(floats(4)), ctypes.c_int, (1 << 62) + 1
    wide("Snrm2_v2", most, x, 4, ctypes.byref(real()), status=13)
    wide("Sgemm_v2", op(0), op(0), 2, most, 2, by(1), x, 2, x, 2, by(0), x, most, status=13)
    say(answers)
"""
)

EPILOGUE: Final = """
    m, n, k = 4, 3, 5
    a, b, bias = floats(k, m), floats(k, n), floats(m)
    def made(name, *arguments):
        object = ctypes.c_void_p()
        call(name, ctypes.byref(object), *arguments, of=lt)
        return object
    def layout(rows, columns):
        return made("cublasLtMatrixLayoutCreate", 0, ctypes.c_uint64(rows), ctypes.c_uint64(columns), long(rows))
    product = made("cublasLtMatmulDescCreate", 68, 0)
    def attribute(number, value):
        call("cublasLtMatmulDescSetAttribute", product, number, ctypes.byref(value), ctypes.sizeof(value), of=lt)
    preference = made("cublasLtMatmulPreferenceCreate")
    la, lb, lc = layout(k, m), layout(k, n), layout(m, n)
    attribute(3, ctypes.c_int(1))
    for epilogue, after in ((1, lambda v: v), (6, lambda v: np.maximum(v + bias[:, None], 0))):
        attribute(7, ctypes.c_int(epilogue))
        attribute(8, card(bias))
        answer, count = ctypes.create_string_buffer(96), ctypes.c_int()
        call("cublasLtMatmulAlgoGetHeuristic", handle, product, la, lb, lc, lc, preference, 1, answer,
             ctypes.byref(count), of=lt)
        assert count.value == 1
        at = card(np.zeros((m, n), np.float32))
        call("cublasLtMatmul", handle, product, by(2), card(a), la, card(b), lb, by(0), at, lc, at, lc, answer, None,
             ctypes.c_size_t(0), pointer(stream), of=lt)
        ok(d.cuStreamSynchronize(stream))
        near(back(at, np.zeros((m, n), np.float32)), after(2 * a.T @ b))
    attribute(3, ctypes.c_int(0))
    attribute(7, ctypes.c_int(1))
    a, b = floats(m, k), floats(k, n)
    def stored(matrix, by_rows):
        there = layout(*matrix.shape)
        for number, value in ((1, ctypes.c_int(by_rows)), (4, long(matrix.shape[by_rows]))):
            call("cublasLtMatrixLayoutSetAttribute", there, number, by(value.value, type(value)),
                 ctypes.c_size_t(ctypes.sizeof(value)), of=lt)
        return card(matrix.T if by_rows else matrix), there
    for first, second, result in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)):
        (A, la), (B, lb), (at, lc) = stored(a, first), stored(b, second), stored(np.zeros((m, n), np.float32), result)
        order, size = ctypes.c_int(), ctypes.c_size_t()
        call("cublasLtMatrixLayoutGetAttribute", la, 1, ctypes.byref(order), ctypes.c_size_t(4), ctypes.byref(size),
             of=lt)
        assert (order.value, size.value) == (first, 4)
        call("cublasLtMatmul", handle, product, by(1), A, la, B, lb, by(0), at, lc, at, lc, answer, None,
             ctypes.c_size_t(0), pointer(stream), of=lt)
        ok(d.cuStreamSynchronize(stream))
        near(back(at, np.zeros((n, m) if result else (m, n), np.float32)), (a @ b).T if result else a @ b)
    lt.cublasLtGetVersion.restype = ctypes.c_size_t
    assert lt.cublasLtGetVersion() == 130400
    call("cublasLtMatmulDescSetAttribute", product, 38, ctypes.byref(at), 8, of=lt,
         status=STATUS)
"""

# A layer, its derivative and a step, with the driver's copies between the library's calls and nobody waiting: what is
# out of order gives another loss.
TRAINING: Final = """
    n, inputs, hidden, rate = 8, 3, 5, 0.1
    x, target = floats(inputs, n), floats(1, n)
    w1, w2 = floats(hidden, inputs), floats(1, hidden)
    X, W1, W2 = card(x), card(w1), card(w2)
    H, Y, E = card(np.zeros((hidden, n), np.float32)), card(np.zeros((1, n), np.float32)), card(target)
    G, T = card(np.zeros((hidden, n), np.float32)), card(target)
    def gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        call("cublasSgemm_v2", handle, ta, tb, m, n, k, by(alpha), a, lda, b, ldb, by(beta), c, ldc)
    for _ in range(5):
        ok(d.cuMemcpyDtoDAsync(E.value, T.value, n * 4, stream))
        gemm(0, 0, hidden, n, inputs, 1, W1, hidden, X, inputs, 0, H, hidden)
        gemm(0, 0, 1, n, hidden, 1, W2, 1, H, hidden, -1, E, 1)
        gemm(1, 0, hidden, n, 1, 1, W2, 1, E, 1, 0, G, hidden)
        gemm(0, 1, 1, hidden, n, -rate / n, E, 1, H, hidden, 1, W2, 1)
        gemm(0, 1, hidden, inputs, n, -rate / n, G, hidden, X, inputs, 1, W1, hidden)
        error = w2 @ (w1 @ x) - target
        step1, step2 = (w2.T @ error) @ x.T, error @ (w1 @ x).T
        w1, w2 = w1 - rate / n * step1, w2 - rate / n * step2
    ok(d.cuStreamSynchronize(stream))
    near(back(W1, w1), w1, 1e-4)
    near(back(W2, w2), w2, 1e-4)
"""

END: Final = """
    call("cublasDestroy_v2", handle)
    say(answers)
"""


def program(status: int) -> str:
    return START + PRODUCTS + VECTORS + COPIES + WIDE + EPILOGUE.replace("STATUS", str(status)) + TRAINING + END


@pytest.fixture(scope="module")
def local(sim: Machine) -> list[str]:
    """What the program answers where the card is."""
    return run(sim, program(0))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_answers_are_right_and_the_same_from_afar(
    sim: Machine, local: list[str], tmp_path: Path, transport: Transport
) -> None:
    """But for an attribute that is an address of the caller's memory."""
    assert len(local) > 15
    with remote(sim, tmp_path, transport) as (client, _, _):
        assert run(client, program(15)) == local  # CUBLAS_STATUS_NOT_SUPPORTED


def test_sizes_that_no_memory_has_are_refused(sim: Machine) -> None:
    assert run(sim, HUGE) == []


LATE: Final = (
    START
    + """
    good, x = card(floats(4)), card(floats(4))
    call("cublasSgemm_v2", handle, 0, 0, -1, 2, 2, by(1), x, 2, x, 2, by(0), good, 2, status=7)  # seen at once
    call("cublasSgemm_v2", handle, 0, 0, 2, 2, 2, None, x, 2, x, 2, by(0), good, 2, status=7)
    call("cublasSgemm_v2", pointer(stream), 0, 0, 2, 2, 2, by(1), x, 2, x, 2, by(0), good, 2, status=1)
    call("cublasSgemm_v2", handle, 0, 0, 2, 2, 2, by(1), x, 1, x, 2, by(0), good, 2)  # lda: posted, and refused there
    late = name(d.cuStreamSynchronize(stream))
    say([late, name(d.cuStreamSynchronize(stream))])
"""
)


def test_what_the_server_refuses_is_said_by_the_next_call_that_waits(sim: Machine, tmp_path: Path) -> None:
    with remote(sim, tmp_path, "shm") as (client, _, _):
        assert run(client, LATE) == ["INVALID_VALUE", "SUCCESS"]


HANDLES: Final = """
    context()
    blas = ctypes.CDLL("libcublas.so.13")
    status = made = 0
    while status == 0:
        status = blas.cublasCreate_v2(ctypes.byref(ctypes.c_void_p()))
        made += status == 0
    say([made, status])
"""


def confined(sim: Machine) -> list[str]:
    """How an executor is held as far as can be here, and still sees the machine."""
    asked = [path("egpu-executor"), "--probe", "--driver", sim.driver_dir / "libcuda.so.1"]
    known = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    return [*(["--landlock"] if known["landlock"] else []), "--device", str(sim.driver_dir / "machine")]


def test_what_a_library_allocates_is_held_to_the_slice(sim: Machine, tmp_path: Path) -> None:
    """Each handle has 4 MiB of the card. The library is found although the executor is confined."""
    folder, card = tmp_path / "slice", sim.cards[0]
    folder.mkdir()
    limit = DevicePolicy(
        uuid=card.uuid, minor=card.minor, mode=Mode.UNLIMITED, core_ppm=PPM, memory_limit_bytes=64 << 20
    )
    write_policy(folder / "policy", [limit])
    create_usage(folder / "usage")
    shutil.copy(path("libegpu-interposer.so"), folder)
    with remote(sim, tmp_path, "shm", "--slice", str(folder), *confined(sim)) as (client, executor, _):
        assert run(client, HANDLES) == [16, 3], executor.stderr()  # CUBLAS_STATUS_ALLOC_FAILED
