"""What programs that call cuSOLVER begin with: matrices on the card, by columns and with room between them."""

from typing import Final

START: Final = """
    context()
    solver, stream = ctypes.CDLL("libcusolver.so.12"), ok(d.cuStreamCreate(1))
    pointer, long, answers, kept = lambda at: ctypes.c_void_p(int(at)), ctypes.c_int64, [], []
    random = np.random.default_rng(7)
    def call(name, *arguments, status=0):
        got = solver["cusolver" + name](*arguments)
        assert got == status, (name, got)
    def made(name, *arguments):
        object = ctypes.c_void_p()
        call(name, *arguments, ctypes.byref(object))
        return object
    def number(name, *arguments, kind=ctypes.c_int):
        found = kind(-1)
        call(name, *arguments, ctypes.byref(found))
        return found.value
    handle = made("DnCreate")
    call("DnSetStream", handle, pointer(stream))
    assert number("DnGetStream", handle, kind=ctypes.c_void_p) == int(stream)

    class Card:
        \"\"\"Matrices of one shape on the card, each `gap` rows higher than it is; what lies between them stays.\"\"\"
        def __init__(self, *matrices, gap=0):
            self.rows, columns = matrices[0].shape
            self.all = np.full((len(matrices), columns, self.rows + gap), 77, matrices[0].dtype)
            self.ld = max(self.rows + gap, 1)
            for each, matrix in zip(self.all, matrices):
                each[:, : self.rows] = matrix.T
            self.at = pointer(ok(d.cuMemAlloc(max(self.all.nbytes, 1))))
            ok(d.cuMemcpyHtoD(self.at.value, self.all.ctypes.data, self.all.nbytes))
            self.step = self.all[0].nbytes
        def get(self):
            ok(d.cuStreamSynchronize(stream))
            found = np.empty_like(self.all)
            ok(d.cuMemcpyDtoH(found.ctypes.data, self.at.value, found.nbytes))
            assert (found[:, :, self.rows :] == 77).all()
            answers.append(found.tobytes().hex())
            return [each[:, : self.rows].T.copy() for each in found]
        def one(self):
            return self.get()[0]
    def vector(count, kind):
        return room(kind, count, 1)
    def room(kind, rows, columns, count=1, gap=0):
        return Card(*[np.zeros((rows, columns), kind)] * count, gap=gap)
    def infos(count=1):
        return Card(np.full((count, 1), -9, np.int32))
    def addresses(of, count):
        return Card(np.array([[of.at.value + i * of.step] for i in range(count)], np.uint64))
    def lent(elements, kind):
        return pointer(ok(d.cuMemAlloc(max(elements * np.dtype(kind).itemsize, 1))))
    KINDS = (("S", np.float32, "sy", "or"), ("D", np.float64, "sy", "or"),
             ("C", np.complex64, "he", "un"), ("Z", np.complex128, "he", "un"))
    DATA = {"S": 0, "D": 1, "C": 4, "Z": 5}
    def numbers(kind, *shape):
        drawn = random.standard_normal(shape)
        return (drawn + 1j * random.standard_normal(shape) if np.dtype(kind).kind == "c" else drawn).astype(kind)
    def real(kind):
        return np.zeros(0, kind).real.dtype
    def wide(matrix):
        return matrix.astype(np.complex128 if matrix.dtype.kind == "c" else np.float64)
    def definite(kind, n):
        drawn = numbers(kind, n, n)
        return (drawn @ drawn.conj().T + n * np.eye(n)).astype(kind)
    def hermitian(kind, n):
        drawn = numbers(kind, n, n)
        return (drawn + drawn.conj().T) / 2
    def half(matrix, upper):
        \"\"\"That triangle, and something else in place of the other.\"\"\"
        there = np.triu(np.ones(matrix.shape, bool)) if upper else np.tril(np.ones(matrix.shape, bool))
        return np.where(there, matrix, matrix.dtype.type(55))
    def same(found, expected, like):
        within = 40 * np.finfo(like.dtype).eps * max(like.shape) * max(1, np.abs(wide(like)).max(initial=0))
        assert found.shape == expected.shape, (found.shape, expected.shape)
        assert np.abs(wide(found) - wide(expected)).max(initial=0) <= within, (found, expected)
    def unitary(matrix):
        same(wide(matrix).conj().T @ wide(matrix), np.eye(matrix.shape[1]), matrix)
"""
"""`Card`, whose contents are kept as bits in `answers`; the four types by letter; `same` within rounding of a type."""

LEAST_SQUARES: Final = (
    START
    + """
    blas, mine = ctypes.CDLL("libcublas.so.13"), ctypes.c_void_p()
    assert blas.cublasCreate_v2(ctypes.byref(mine)) == blas.cublasSetStream_v2(mine, pointer(stream)) == 0
    matrix, sides = numbers(np.float64, 40, 7), numbers(np.float64, 40, 2)
    a, b, tau, info, work = Card(matrix), Card(sides), vector(7, np.float64), infos(), lent(32 * 40, np.float64)
    call("DnDgeqrf", handle, 40, 7, a.at, 40, tau.at, work, 32 * 40, info.at)
    call("DnDormqr", handle, 0, 1, 40, 2, 7, a.at, 40, tau.at, b.at, 40, work, 32 * 40, info.at)
    one = ctypes.c_double(1)
    assert blas.cublasDtrsm_v2(mine, 0, 1, 0, 0, 7, 2, ctypes.byref(one), a.at, 40, b.at, 40) == 0
    same(b.one()[:7], np.linalg.lstsq(matrix, sides, rcond=None)[0], matrix)
    say(answers)
"""
)
"""A whole program: QR, its factor's transpose and a triangular system, with nobody waiting between them."""

END: Final = """
    call("DnDestroy", handle)
    say(answers)
"""
