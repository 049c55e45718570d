"""cuSOLVER and cuBLAS's solvers, simulated: numpy's answers, of every type, here and carried to a server."""

from pathlib import Path
from typing import Final

import pytest

from egpu_sim.machines.machine import Machine
from support.remote_gpu import remote
from support.simulated_gpu import run
from support.solver_programs import END, START

CARDS = ("A100-80G", 1)

CHOLESKY: Final = """
    for letter, kind, *_ in KINDS:
        for n, upper, gap in ((0, 0, 0), (1, 0, 2), (5, 0, 0), (7, 1, 3), (33, 0, 1)):
            matrix, sides = definite(kind, n), numbers(kind, n, 3)
            a, b, info = Card(half(matrix, upper), gap=gap), Card(sides, gap=2), infos()
            size = number(f"Dn{letter}potrf_bufferSize", handle, upper, n, a.at, a.ld)
            work = lent(size, kind)
            call(f"Dn{letter}potrf", handle, upper, n, a.at, a.ld, work, size, info.at)
            found = a.one()
            factor = np.triu(found).conj().T if upper else np.tril(found)
            same(wide(factor) @ wide(factor).conj().T, matrix, matrix)
            assert (np.tril(found, -1) if upper else np.triu(found, 1)).sum() == 55 * (n * (n - 1) // 2)
            call(f"Dn{letter}potrs", handle, upper, n, 3, a.at, a.ld, b.at, b.ld, info.at)
            same(wide(matrix) @ wide(b.one()), sides, matrix)
            call(f"Dn{letter}potri", handle, upper, n, a.at, a.ld, work, size, info.at)
            found = wide(np.triu(a.one()).conj().T if upper else np.tril(a.one()))
            same((found + np.tril(found, -1).conj().T) @ wide(matrix), np.eye(n), matrix)
            assert info.one().tolist() == [[0]]
        # the order of the first minor that is not positive, of each of a batch
        matrices = [definite(kind, 4) for _ in range(3)]
        matrices[1][2, 2] = -1
        a, b = Card(*map(lambda each: half(each, 0), matrices), gap=1), Card(*(numbers(kind, 4, 1) for _ in range(3)))
        sides, info = b.get(), infos(3)
        call(f"Dn{letter}potrfBatched", handle, 0, 4, addresses(a, 3).at, a.ld, info.at, 3)
        assert info.one().ravel().tolist() == [0, 3, 0]
        same(wide(np.tril(a.get()[2])) @ wide(np.tril(a.get()[2])).conj().T, matrices[2], matrices[2])
        some = infos()
        call(f"Dn{letter}potrsBatched", handle, 0, 4, 1, addresses(a, 3).at, a.ld, addresses(b, 3).at, b.ld, some.at, 3)
        for i in (0, 2):
            same(wide(matrices[i]) @ wide(b.get()[i]), sides[i], matrices[i])
        assert some.one().tolist() == [[0]]
        nowhere = Card(np.array([[a.at.value], [0x1000], [a.at.value + 2 * a.step]], np.uint64))
        call(f"Dn{letter}potrfBatched", handle, 0, 4, nowhere.at, a.ld, info.at, 3)
        assert info.one().ravel().tolist() == [0, -4, 0]  # LAPACK's word for a wrong fourth argument
"""

LU: Final = """
    for letter, kind, *_ in KINDS:
        for m, n, gap in ((0, 0, 0), (1, 1, 1), (5, 5, 0), (7, 4, 2), (4, 6, 0), (31, 31, 3)):
            matrix = numbers(kind, m, n)
            a, pivots, info = Card(matrix, gap=gap), Card(np.zeros((min(m, n), 1), np.int32)), infos()
            size = number(f"Dn{letter}getrf_bufferSize", handle, m, n, a.at, a.ld)
            call(f"Dn{letter}getrf", handle, m, n, a.at, a.ld, lent(size, kind), pivots.at, info.at)
            def factors(found):
                count = min(m, n)
                return np.tril(found, -1)[:, :count] + np.eye(m, count), np.triu(found)[:count]
            (lower, upper), order = factors(wide(a.one())), np.arange(m)
            for i, pivot in enumerate(pivots.one().ravel()):
                order[[i, pivot - 1]] = order[[pivot - 1, i]]
            same(lower @ upper, matrix[order], matrix)
            assert np.abs(lower).max(initial=0) < 1.5
            if m == n:
                for op, turned in enumerate((matrix, matrix.T, matrix.conj().T)):
                    sides = numbers(kind, n, 2)
                    b = Card(sides, gap=1)
                    call(f"Dn{letter}getrs", handle, op, n, 2, a.at, a.ld, pivots.at, b.at, b.ld, info.at)
                    same(wide(turned) @ wide(b.one()), sides, matrix)
            assert info.one().tolist() == [[0]]
            # without a place for pivots rows stay where they are
            easy = matrix + 10 * np.eye(m, n, dtype=kind)
            a = Card(easy, gap=gap)
            call(f"Dn{letter}getrf", handle, m, n, a.at, a.ld, lent(size, kind), None, info.at)
            lower, upper = factors(wide(a.one()))
            same(lower @ upper, easy, easy)
        singular = numbers(kind, 4, 4)
        singular[:, 2] = 0
        a, pivots, info = Card(singular), Card(np.zeros((4, 1), np.int32)), infos()
        call(f"Dn{letter}getrf", handle, 4, 4, a.at, a.ld, lent(size, kind), pivots.at, info.at)
        assert info.one().tolist() == [[3]]
"""

QR: Final = """
    for letter, kind, _, un in KINDS:
        for m, n, gap in ((0, 0, 0), (1, 1, 0), (6, 6, 1), (9, 4, 0), (4, 7, 2), (40, 13, 0)):
            matrix, count = numbers(kind, m, n), min(m, n)
            a, tau, info = Card(matrix, gap=gap), vector(count, kind), infos()
            size = number(f"Dn{letter}geqrf_bufferSize", handle, m, n, a.at, a.ld)
            work = lent(max(size, 32 * 40), kind)
            call(f"Dn{letter}geqrf", handle, m, n, a.at, a.ld, tau.at, work, size, info.at)
            r = np.triu(a.one())
            assert (np.diag(r).imag == 0).all()
            c = Card(np.vstack([r, np.zeros((m, n), kind)])[:m], gap=1)
            size = number(f"Dn{letter}{un}mqr_bufferSize", handle, 0, 0, m, n, count, a.at, a.ld, tau.at, c.at, c.ld)
            call(f"Dn{letter}{un}mqr", handle, 0, 0, m, n, count, a.at, a.ld, tau.at, c.at, c.ld, work, size, info.at)
            same(c.one(), matrix, matrix)
            across = numbers(kind, 3, m)
            q, all_ = Card(np.eye(m, dtype=kind)), (count, a.at, a.ld, tau.at)
            call(f"Dn{letter}{un}mqr", handle, 0, 0, m, m, *all_, q.at, q.ld, work, 32 * 40, info.at)
            full = wide(q.one())
            unitary(full.astype(kind))
            for side, op, expected in ((0, 2, full.conj().T @ across.T), (1, 0, across @ full),
                                       (1, 2, across @ full.conj().T)):
                c = Card(across.T if side == 0 else across, gap=1)
                shape = c.one().shape
                call(f"Dn{letter}{un}mqr", handle, side, op, *shape, *all_, c.at, c.ld, work, 32 * 40, info.at)
                same(c.one(), expected, across)
            if m >= n:
                size = number(f"Dn{letter}{un}gqr_bufferSize", handle, m, n, n, a.at, a.ld, tau.at)
                call(f"Dn{letter}{un}gqr", handle, m, n, n, a.at, a.ld, tau.at, work, size, info.at)
                same(a.one(), full[:, :n], matrix)
            assert info.one().tolist() == [[0]]
"""

EIGEN: Final = """
    told = made("DnCreateSyevjInfo")
    call("DnXsyevjSetTolerance", told, ctypes.c_double(1e-14))
    call("DnXsyevjSetMaxSweeps", told, 30)
    call("DnXsyevjSetSortEig", told, 1)
    def good(matrix, values, vectors=None):
        same(values.ravel(), np.linalg.eigvalsh(wide(matrix)), matrix)
        if vectors is not None:
            same(wide(matrix) @ wide(vectors), wide(vectors) * values.ravel(), matrix)
            unitary(vectors)
    for letter, kind, sy, un in KINDS:
        for n, upper, gap in ((0, 0, 0), (1, 1, 1), (2, 0, 0), (6, 1, 2), (37, 0, 0)):
            matrix = hermitian(kind, n)
            if n == 6:  # the same value three times
                basis = np.linalg.qr(wide(matrix))[0]
                matrix = ((basis * np.array([2, 2, 2, -1, 0, 5])) @ basis.conj().T).astype(kind)
            for how, more in (("evd", ()), ("evj", (told,))):
                a, w, info = Card(half(matrix, upper), gap=gap), vector(n, real(kind)), infos()
                size = number(f"Dn{letter}{sy}evd_bufferSize", handle, 1, upper, n, a.at, a.ld, w.at)
                work = lent(size, kind)
                call(f"Dn{letter}{sy}{how}", handle, 1, upper, n, a.at, a.ld, w.at, work, size, info.at, *more)
                good(matrix, w.one(), a.one())
                a = Card(half(matrix, upper), gap=gap)
                call(f"Dn{letter}{sy}{how}", handle, 0, upper, n, a.at, a.ld, w.at, work, size, info.at, *more)
                good(matrix, w.one())
                assert info.one().tolist() == [[0]]
            sweeps = number("DnXsyevjGetSweeps", handle, told)
            assert 0 < sweeps < 15 if n > 1 else sweeps == 0
            assert number("DnXsyevjGetResidual", handle, told, kind=ctypes.c_double) <= 1e-13 * max(n, 1) ** 2
            # what two-sided reflections come to
            a, parts = Card(half(matrix, upper), gap=gap), [vector(n, real(kind)), vector(max(n - 1, 0), real(kind)),
                                                            vector(max(n - 1, 0), kind)]
            where = [each.at for each in parts]
            assert number(f"Dn{letter}{sy}trd_bufferSize", handle, upper, n, a.at, a.ld, *where) == size
            call(f"Dn{letter}{sy}trd", handle, upper, n, a.at, a.ld, *where, work, size, info.at)
            diagonal, beside, tau = (wide(each.one().ravel()) for each in parts)
            found, q = wide(a.one()), np.eye(n, dtype=np.complex128)
            for i in range(n - 1):  # as LAPACK writes them down
                v = np.zeros(n, np.complex128)
                if upper:
                    v[i], v[:i] = 1, found[:i, i + 1]
                else:
                    v[i + 1], v[i + 2 :] = 1, found[i + 2 :, i]
                turn = np.eye(n) - tau[i] * np.outer(v, v.conj())
                q = turn @ q if upper else q @ turn
            middle = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1) if n else np.zeros((0, 0))
            same((q @ middle @ q.conj().T).astype(np.complex128), wide(matrix).astype(np.complex128), matrix)
            # of two matrices
            for which in (1, 2, 3):
                second = definite(kind, n)
                second /= max(n, 1)
                a, b = Card(half(matrix, upper), gap=gap), Card(half(second, upper), gap=1)
                where = (handle, which, 1, upper, n, a.at, a.ld, b.at, b.ld, w.at)
                assert number(f"Dn{letter}{sy}gvd_bufferSize", *where) == size
                call(f"Dn{letter}{sy}gvd", *where, work, size, info.at)
                x, values, a_, b_ = wide(a.one()), w.one().ravel(), wide(matrix), wide(second)
                left, right = {1: (a_ @ x, b_ @ x), 2: (a_ @ b_ @ x, x), 3: (b_ @ a_ @ x, x)}[which]
                same(left.astype(kind), (right * values).astype(kind), 10 * second + matrix)
                assert info.one().tolist() == [[0]]
        bad = np.diag([1, -1, 1]).astype(kind)
        a, b, w, info = Card(bad), Card(bad), vector(3, real(kind)), infos()
        call(f"Dn{letter}{sy}gvd", handle, 1, 1, 0, 3, a.at, 3, b.at, 3, w.at, work, size, info.at)
        assert info.one().tolist() == [[3 + 2]]
        # batches, one after the other in memory
        matrices = [hermitian(kind, 5) for _ in range(4)]
        a, w, info = Card(*matrices, gap=1), room(real(kind), 5, 1, 4), infos(4)
        call(f"Dn{letter}{sy}evjBatched", handle, 1, 0, 5, a.at, a.ld, w.at, work, size, info.at, told, 4)
        for matrix, values, vectors in zip(matrices, w.get(), a.get()):
            good(matrix, values, vectors)
        assert info.one().ravel().tolist() == [0] * 4
        call("DnXsyevjGetSweeps", handle, told, ctypes.byref(ctypes.c_int()), status=9)  # of no batch
    # a matrix that one sweep is not enough for says so
    call("DnXsyevjSetMaxSweeps", told, 1)
    a, w, info = Card(hermitian(np.float64, 9)), vector(9, np.float64), infos()
    call("DnDsyevj", handle, 1, 0, 9, a.at, 9, w.at, work, size, info.at, told)
    assert info.one().tolist() == [[10]]
    call("DnDestroySyevjInfo", told)
"""

SINGULAR: Final = """
    told = made("DnCreateGesvdjInfo")
    call("DnXgesvdjSetTolerance", told, ctypes.c_double(1e-15))
    call("DnXgesvdjSetMaxSweeps", told, 40)
    call("DnXgesvdjSetSortEig", told, 1)
    def flat(kind, m, n, rank):
        return (numbers(kind, m, rank) @ numbers(kind, rank, n)).astype(kind)
    def good(matrix, s, u=None, v=None):
        s = s.ravel()
        same(s, np.linalg.svd(wide(matrix), compute_uv=False)[: len(s)].astype(s.dtype), matrix)
        if u is not None:
            count = min(*matrix.shape, u.shape[1], v.shape[1])
            same((wide(u)[:, :count] * s[:count]) @ wide(v)[:, :count].conj().T, matrix, matrix)
            unitary(u)
            unitary(v)
    for letter, kind, *_ in KINDS:
        for m, n, rank in ((0, 0, 0), (1, 1, 1), (5, 5, 5), (7, 4, 4), (6, 6, 3), (9, 5, 0), (31, 17, 17), (4, 7, 4)):
            matrix, least = flat(kind, m, n, rank), min(m, n)
            s, info = vector(least, real(kind)), infos()
            size = number(f"Dn{letter}gesvd_bufferSize", handle, m, n) if m >= n else 32 * 40
            work = lent(max(size, 32 * 40), kind)
            for left, right in ("AA", "SS", "NN", "OS", "SO") if m >= n else ():
                a, u, v = Card(matrix, gap=1), room(kind, m, m if left == "A" else n), room(kind, n, n, gap=2)
                call(f"Dn{letter}gesvd", handle, ord(left), ord(right), m, n, a.at, a.ld, s.at, u.at, u.ld, v.at, v.ld,
                     work, size, None, info.at)
                left_ones = a.one() if left == "O" else u.one()
                right_ones = a.one()[:n] if right == "O" else v.one()
                good(matrix, s.one(), *(() if left == "N" else (left_ones, right_ones.conj().T)))
            for job, economic in ((1, 0), (1, 1), (0, 0)):
                a = Card(matrix, gap=1)
                u, v = room(kind, m, least if economic else m, gap=1), room(kind, n, least if economic else n)
                where = (a.at, a.ld, s.at, u.at, u.ld, v.at, v.ld)
                size = number(f"Dn{letter}gesvd_bufferSize", handle, m, n)
                call(f"Dn{letter}gesvdj", handle, job, economic, m, n, *where, work, size, info.at, told)
                good(matrix, s.one(), *((u.one(), v.one()) if job else ()))
            assert info.one().tolist() == [[0]]
            assert number("DnXgesvdjGetSweeps", handle, told) < 15
        # batches: one after the other, and as far apart as one likes
        for m, n in ((6, 4), (3, 5)):
            matrices = [flat(kind, m, n, k) for k in (3, 1, 2)]
            a, u, v = Card(*matrices, gap=1), room(kind, m, m, 3, gap=1), room(kind, n, n, 3, gap=2)
            s, info = room(real(kind), min(m, n), 1, 3), infos(3)
            call(f"Dn{letter}gesvdjBatched", handle, 1, m, n, a.at, a.ld, s.at, u.at, u.ld, v.at, v.ld, work, size,
                 info.at, told, 3)
            for each in zip(matrices, s.get(), u.get(), v.get()):
                good(*each)
            rank, residuals = 2, (ctypes.c_double * 3)()
            a, u, v = Card(*matrices, gap=1), room(kind, m, rank, 3, gap=1), room(kind, n, rank, 3)
            s = room(real(kind), rank, 1, 3, gap=2)
            steps = [long(each.all[0].size) for each in (a, s, u, v)]
            call(f"Dn{letter}gesvdaStridedBatched", handle, 1, rank, m, n, a.at, a.ld, steps[0], s.at, steps[1], u.at,
                 u.ld, steps[2], v.at, v.ld, steps[3], work, size, info.at, residuals, 3)
            for k, (matrix, values, left, right) in enumerate(zip(matrices, s.get(), u.get(), v.get())):
                exact = np.linalg.svd(wide(matrix), compute_uv=False)
                same(values.ravel(), exact[:rank].astype(real(kind)), matrix)
                assert abs(residuals[k] - np.sqrt((exact[rank:] ** 2).sum())) < 1e-5
                product = (wide(left) * values.ravel()) @ wide(right).conj().T
                assert abs(np.linalg.norm(product - wide(matrix)) - residuals[k]) < 1e-4
                unitary(left)
                unitary(right)
            assert info.one().ravel().tolist() == [0] * 3
    # lengths whose squares are no numbers
    a, s, info = Card(np.diag([1e200, 1e-200])), vector(2, np.float64), infos()
    call("DnDgesvdj", handle, 0, 0, 2, 2, a.at, 2, s.at, None, 2, None, 2, work, size, info.at, told)
    assert np.allclose(s.one().ravel(), [1e200, 0], atol=1e190) and info.one().tolist() == [[0]]
    # what is no number stays none, and ends
    for each in (np.nan, np.inf):
        a = Card(np.array([[1, each], [2, 3.0]]))
        call("DnDgesvdj", handle, 0, 0, 2, 2, a.at, 2, s.at, None, 2, None, 2, work, size, info.at, told)
        assert np.isnan(s.one()).all() and info.one().tolist() == [[3]]
        for how, more, said in (("evd", (), 2), ("evj", (made("DnCreateSyevjInfo"),), 3)):
            a = Card(np.array([[1, each], [each, 3.0]]))
            call("DnDsy" + how, handle, 1, 0, 2, a.at, 2, s.at, work, size, info.at, *more)
            assert np.isnan(s.one()).all() and np.isnan(a.one()).all() and info.one().tolist() == [[said]]
    call("DnDestroyGesvdjInfo", told)
"""

# The same with sizes of 64 bits, of a type that is an argument; pivots are of 64 bits, too.
GENERIC: Final = """
    chosen = made("DnCreateParams")
    call("DnSetAdvOptions", chosen, 0, 1)
    def generic(name, *arguments, lent_=True, after=(), only_there=()):
        \"\"\"With what is to be lent; arguments that are whole numbers are of 64 bits, those in lists of 32.\"\"\"
        given = [ctypes.c_int(*each) if isinstance(each, list) else long(each) if isinstance(each, int) else each
                 for each in arguments]
        info = infos(after[0].value if after else 1)
        if lent_:
            sizes = ctypes.c_size_t(1), ctypes.c_size_t(1)
            sized = [each for each in given if each is not only_there]
            call(f"DnX{name}_bufferSize", handle, params, *sized, *map(ctypes.byref, sizes), *after)
            work = pointer(ok(d.cuMemAlloc(sizes[0].value)))
            assert sizes[1].value == 0
            given += [work, sizes[0], None, sizes[1]]
        call("DnX" + name, handle, params, *given, info.at, *after)
        return info.one().ravel().tolist()
    for letter, kind, *_ in KINDS:
        params = chosen if letter in "SC" else None  # the default algorithms, as PyTorch asks for them
        type, of_reals = [DATA[letter]], [DATA[letter] & 1]
        matrix, sides = definite(kind, 6), numbers(kind, 6, 2)
        a, b = Card(half(matrix, 1), gap=1), Card(sides, gap=1)
        assert generic("potrf", [1], 6, type, a.at, a.ld, type) == [0]
        assert generic("potrs", [1], 6, 2, type, a.at, a.ld, type, b.at, b.ld, lent_=False) == [0]
        same(wide(matrix) @ wide(b.one()), sides, matrix)
        matrix = numbers(kind, 6, 6)
        a, b, pivots = Card(matrix, gap=1), Card(sides), Card(np.zeros((6, 1), np.int64))
        assert generic("getrf", 6, 6, type, a.at, a.ld, pivots.at, type, only_there=pivots.at) == [0]
        assert set(pivots.one().ravel()) <= set(range(1, 7))
        assert generic("getrs", [2], 6, 2, type, a.at, a.ld, pivots.at, type, b.at, b.ld, lent_=False) == [0]
        same(wide(matrix).conj().T @ wide(b.one()), sides, matrix)
        a, tau = Card(matrix), vector(6, kind)
        assert generic("geqrf", 6, 6, type, a.at, a.ld, type, tau.at, type) == [0]
        same(np.abs(np.diag(a.one())), np.abs(np.diag(np.linalg.qr(wide(matrix))[1])).astype(real(kind)), matrix)
        matrix = hermitian(kind, 6)
        a, w = Card(matrix), vector(6, real(kind))
        assert generic("syevd", [1], [0], 6, type, a.at, a.ld, of_reals, w.at, type) == [0]
        same(wide(matrix) @ wide(a.one()), wide(a.one()) * w.one().ravel(), matrix)
        matrices = [hermitian(kind, 4) for _ in range(3)]
        a, w = Card(*matrices, gap=1), room(real(kind), 4, 1, 3)
        done = generic("syevBatched", [1], [1], 4, type, a.at, a.ld, of_reals, w.at, type, after=(long(3),))
        assert done == [0] * 3
        for each, values, vectors in zip(matrices, w.get(), a.get()):
            same(wide(each) @ wide(vectors), wide(vectors) * values.ravel(), each)
        matrix = numbers(kind, 6, 3)
        a, s, u, v = Card(matrix), vector(3, real(kind)), Card(np.zeros((6, 3), kind)), Card(np.zeros((3, 3), kind))
        job = ctypes.c_byte(ord("S"))
        both = type, u.at, 6, type, v.at, 3, type
        assert generic("gesvd", job, job, 6, 3, type, a.at, 6, of_reals, s.at, *both) == [0]
        same((wide(u.one()) * s.one().ravel()) @ wide(v.one()), matrix, matrix)
        # of no symmetry: eigenvalues complex, or as two parts; of a real matrix vectors are, too
        defective = np.diag(np.full(4, 2)) + np.diag(np.ones(3), 1)
        turned = np.kron(np.diag([1, 3]), np.array([[0, 1], [-1, 0]])) + np.diag([1, 1, 0, 0])
        several = [numbers(kind, n, n) for n in (0, 1, 2, 5, 12, 31)]
        for matrix in (*several, defective.astype(kind), turned.astype(kind), np.zeros((3, 3), kind)):
            n = len(matrix)
            for whole in (True, False) if letter in "SD" else (True,):
                w = vector(n if whole else 2 * n, np.result_type(kind, np.complex64) if whole else kind)
                a, v, type_w = Card(matrix, gap=1), room(kind, n, n, gap=2), [DATA[letter] & 1 | 4] if whole else type
                both = type, None, 1, type, v.at, v.ld
                assert generic("geev", [0], [1], n, type, a.at, a.ld, type_w, w.at, *both, type) == [0]
                values, vectors = w.one().ravel(), wide(v.one()).astype(np.complex128)
                values = wide(values) if whole else values[:n] + 1j * values[n:]
                if letter in "SD":
                    for k in np.flatnonzero(values.imag > 0):  # the first of two
                        assert values[k + 1] == values[k].conj()
                        vectors[:, k] += 1j * vectors[:, k + 1]
                        vectors[:, k + 1] = vectors[:, k].conj()
                same((wide(matrix) @ vectors).astype(w.all.dtype), (vectors * values).astype(w.all.dtype), matrix)
                assert np.allclose(np.linalg.norm(vectors, axis=0), 1, atol=1e-5)
                greatest = vectors[np.abs(vectors).argmax(0), np.arange(n)] if n else np.zeros(0)
                assert np.abs(greatest.imag).max(initial=0) < 1e-5
                same(np.array([values.sum()]), np.array([np.trace(wide(matrix))]), matrix)
                if n != 4:
                    exact = list(np.linalg.eigvals(wide(matrix)))
                    for value in values:
                        nearest = min(exact, key=lambda each: abs(each - value))
                        exact.remove(nearest)
                        assert abs(nearest - value) < (1e-3 if letter in "SC" else 1e-10)
        a, w = Card(np.array([[1, np.nan], [2, 3]], kind)), vector(2, np.result_type(kind, np.complex64))
        type_w = [DATA[letter] & 1 | 4]
        assert generic("geev", [0], [0], 2, type, a.at, 2, type_w, w.at, type, None, 1, type, None, 1, type) == [2]
        assert np.isnan(w.one()).all()
    call("DnDestroyParams", chosen)
"""

# What cuBLAS has of solvers.
BLAS: Final = """
    blas, mine = ctypes.CDLL("libcublas.so.13"), ctypes.c_void_p()
    def blas_call(name, *arguments, status=0):
        got = blas["cublas" + name](*arguments)
        assert got == status, (name, got)
    blas_call("Create_v2", ctypes.byref(mine))
    blas_call("SetStream_v2", mine, pointer(stream))
    for letter, kind, *_ in KINDS:
        m, n, alpha = 5, 3, numbers(kind, 1, 1)
        host = pointer(alpha.ctypes.data)
        for side in (0, 1):
            order = n if side else m
            for upper in (0, 1):
                for op in (0, 1, 2):
                    for unit in (0, 1):
                        matrix = numbers(kind, order, order) / 4 + 2 * np.eye(order, dtype=kind)
                        sides = numbers(kind, m, n)
                        whole = (np.triu(matrix) if upper else np.tril(matrix)).astype(kind)
                        if unit:
                            whole[np.diag_indices(order)] = 1
                        turned = wide((whole, whole.T, whole.conj().T)[op])
                        given = half(matrix, upper)
                        if unit:
                            given[np.diag_indices(order)] = 0  # not looked at
                        a, b = Card(given, gap=1), Card(sides, gap=2)
                        blas_call(f"{letter}trsm_v2", mine, side, upper, op, unit, m, n, host, a.at, a.ld, b.at, b.ld)
                        found = wide(b.one())
                        same(found @ turned if side else turned @ found, wide(sides) * wide(alpha)[0, 0], sides)
                        b = Card(sides, gap=2)
                        blas_call(f"{letter}trsm_v2_64", mine, side, upper, op, unit, long(m), long(n), host, a.at,
                                  long(a.ld), b.at, long(b.ld))
                        assert (wide(b.one()) == found).all()
        # by an address, of several whose addresses are on the card; nothing times what is no number is nothing
        matrices = [numbers(kind, 4, 4) + 3 * np.eye(4, dtype=kind) for _ in range(3)]
        sides = [numbers(kind, 4, 2) for _ in range(3)]
        a, b, there = Card(*matrices, gap=1), Card(*sides), Card(alpha)
        blas_call("SetPointerMode_v2", mine, 1)
        blas_call(f"{letter}trsmBatched", mine, 0, 1, 0, 0, 4, 2, there.at, addresses(a, 3).at, a.ld,
                  addresses(b, 3).at, b.ld, 3)
        for matrix, one, found in zip(matrices, sides, b.get()):
            same(wide(np.triu(matrix)) @ wide(found), wide(one) * wide(alpha)[0, 0], one)
        nothing = Card(np.zeros((1, 1), kind))
        b = Card(np.full((4, 2), np.nan, kind))
        blas_call(f"{letter}trsm_v2", mine, 0, 1, 0, 0, 4, 2, nothing.at, a.at, a.ld, b.at, b.ld)
        assert (b.one() == 0).all()
        blas_call("SetPointerMode_v2", mine, 0)
        # batches of LU: factors, solutions, inverses
        matrices[1][:, 3] = matrices[1][:, 2]
        matrices[1][3] = matrices[1][2]
        a, b, info, host_info = Card(*matrices, gap=1), Card(*sides, gap=1), infos(3), ctypes.c_int(-9)
        pivots, inverse = room(np.int32, 4, 1, 3), room(kind, 4, 4, 3, gap=2)
        blas_call(f"{letter}getrfBatched", mine, 4, addresses(a, 3).at, a.ld, pivots.at, info.at, 3)
        assert info.one().ravel().tolist() == [0, 4, 0]
        for op in (0, 1, 2):
            b = Card(*sides, gap=1)
            blas_call(f"{letter}getrsBatched", mine, op, 4, 2, addresses(a, 3).at, a.ld, pivots.at, addresses(b, 3).at,
                      b.ld, ctypes.byref(host_info), 3)
            assert host_info.value == 0
            for i in (0, 2):
                turned = (matrices[i], matrices[i].T, matrices[i].conj().T)[op]
                same(wide(turned) @ wide(b.get()[i]), sides[i], matrices[i])
        blas_call(f"{letter}getriBatched", mine, 4, addresses(a, 3).at, a.ld, pivots.at, addresses(inverse, 3).at,
                  inverse.ld, info.at, 3)
        assert info.one().ravel().tolist() == [0, 4, 0]
        for i in (0, 2):
            same(wide(matrices[i]) @ wide(inverse.get()[i]), np.eye(4), matrices[i])
        # and of QR: as one by one
        matrices = [numbers(kind, 5, 3) for _ in range(3)]
        a, tau = Card(*matrices, gap=1), room(kind, 3, 1, 3)
        blas_call(f"{letter}geqrfBatched", mine, 5, 3, addresses(a, 3).at, a.ld, addresses(tau, 3).at,
                  ctypes.byref(host_info), 3)
        for matrix, found, factors in zip(matrices, a.get(), tau.get()):
            one, its = Card(matrix), vector(3, kind)
            call(f"Dn{letter}geqrf", handle, 5, 3, one.at, one.ld, its.at, lent(32 * 5, kind), 32 * 5, infos().at)
            assert (one.one() == found).all() and (its.one() == factors).all()
    blas_call("Destroy_v2", mine)
"""

# NOT_INITIALIZED 1, INVALID_VALUE 3, EXECUTION_FAILED 6, NOT_SUPPORTED 9
WRONG: Final = """
    a, info, out, none = Card(np.eye(4)), infos(), ctypes.byref(ctypes.c_int()), pointer(0)
    size = number("DnDpotrf_bufferSize", handle, 0, 4, a.at, 4)
    work = lent(size, np.float64)
    def potrf(status, uplo=0, n=4, at=a.at, ld=4, work=work, size=size, info=info.at):
        call("DnDpotrf", handle, uplo, n, at, ld, work, size, info, status=status)
        assert name(d.cuCtxSynchronize()) == "SUCCESS"
    potrf(0)
    potrf(3, uplo=2)
    potrf(3, n=-1)
    potrf(3, ld=3)
    potrf(3, size=size - 1)
    potrf(6, at=pointer(0x1000))
    potrf(6, ld=1 << 20)
    potrf(6, work=pointer(0x1000))
    potrf(6, info=pointer(0x1000))
    call("DnDpotrf_bufferSize", handle, 0, 4, a.at, 3, out, status=3)
    call("DnDpotrf_bufferSize", handle, 0, -1, a.at, 4, out, status=3)
    call("DnDpotrf_bufferSize", handle, 0, 1 << 30, a.at, 1 << 30, out, status=3)  # more than an int counts
    call("DnDgetrs", handle, 3, 4, 1, a.at, 4, None, a.at, 4, info.at, status=3)
    call("DnDorgqr", handle, 4, 4, 5, a.at, 4, a.at, work, size, info.at, status=3)
    call("DnZunmqr", handle, 0, 1, 2, 2, 2, a.at, 2, a.at, a.at, 2, work, 64, info.at, status=3)  # but not transposed
    call("DnDsyevd", handle, 2, 0, 4, a.at, 4, a.at, work, size, info.at, status=3)
    call("DnDsygvd", handle, 4, 1, 0, 4, a.at, 4, a.at, 4, a.at, work, size, info.at, status=3)
    for left, right, m in (("A", "A", 2), ("O", "O", 4), ("X", "N", 4)):
        call("DnDgesvd", handle, ord(left), ord(right), m, 4, a.at, 4, a.at, a.at, 4, a.at, 4, work, size, None,
             info.at, status=3)
    call("DnDsyevj", handle, 1, 0, 4, a.at, 4, a.at, work, size, info.at, None, status=3)
    call("DnDpotrsBatched", handle, 0, 4, 2, a.at, 4, a.at, 4, info.at, 1, status=3)
    call("DnDpotrf", none, 0, 4, a.at, 4, work, size, info.at, status=1)
    sizes = ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_size_t())
    params = None  # the default algorithms, as PyTorch asks for them
    wide_ = (handle, params, 0, long(4))
    call("DnXpotrf_bufferSize", *wide_, 1, a.at, long(4), 1, *sizes)
    call("DnXpotrf_bufferSize", *wide_, 2, a.at, long(4), 2, *sizes, status=9)  # of 16 bits
    call("DnXpotrf_bufferSize", *wide_, 1, a.at, long(4), 0, *sizes, status=9)  # computed in another type
    call("DnXpotrf", *wide_, 1, a.at, long(4), 1, work, ctypes.c_size_t(8), None, ctypes.c_size_t(0), info.at, status=3)
    for left, kind in ((1, 1), (0, 0), (0, 2)):  # no vectors on the left, no eigenvalues of another precision
        call("DnXgeev_bufferSize", handle, params, left, 0, long(4), 1, a.at, long(4), kind, a.at, 1, None, long(1), 1,
             None, long(1), 1, *sizes, status=9)
    # cuBLAS: INVALID_VALUE 7, EXECUTION_FAILED 13
    blas, mine, one = ctypes.CDLL("libcublas.so.13"), ctypes.c_void_p(), ctypes.byref(ctypes.c_double(1))
    assert blas.cublasCreate_v2(ctypes.byref(mine)) == 0
    def trsm(side, uplo, op, unit, m=4, n=4, alpha=one, at=a.at, ld=4):
        return blas.cublasDtrsm_v2(mine, side, uplo, op, unit, m, n, alpha, at, ld, a.at, 4)
    wrong = (2, 0, 0, 0), (0, 2, 0, 0), (0, 0, 3, 0), (0, 0, 0, 2), (0, 0, 0, 0, -1), (0, 0, 0, 0, 4, 4, None)
    assert [trsm(*each) for each in wrong] == [7] * 6
    assert (trsm(0, 0, 0, 0, ld=3), trsm(0, 0, 0, 0, at=pointer(0x1000)), trsm(0, 0, 0, 0)) == (7, 13, 0)
    huge, few = long(1 << 40), long(1)  # matrices that no memory has room for
    assert blas.cublasDtrsmBatched_64(mine, 0, 0, 0, 0, huge, few, one, a.at, huge, a.at, huge, few) == 13
    for what in ("DeterministicMode", "MathMode"):
        call("DnSet" + what, handle, 2)
        assert number("DnGet" + what, handle) == 2
    assert number("GetVersion") == 12003
    mine = ctypes.c_void_p()
    call("DnGetStream", handle, ctypes.byref(mine))
    assert mine.value == int(stream)
"""

# Nothing waits but the end: what is out of order factors something else. A graph does it again, with its own room.
ORDER: Final = """
    matrices = [definite(np.float64, 6) for _ in range(3)]
    sources, a, kept, info = [Card(each) for each in matrices], Card(matrices[0]), Card(matrices[0]), infos()
    size = number("DnDpotrf_bufferSize", handle, 0, 6, a.at, 6)
    work = lent(size, np.float64)
    def factor():
        call("DnDpotrf", handle, 0, 6, a.at, 6, work, size, info.at)
    for each in sources:
        ok(d.cuMemcpyDtoDAsync(a.at.value, each.at.value, each.step, stream))
        factor()
        ok(d.cuMemcpyDtoDAsync(each.at.value, a.at.value, each.step, stream))
    for matrix, each in zip(matrices, sources):
        same(np.tril(each.one()), np.linalg.cholesky(matrix), matrix)
    ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    factor()
    graph = ok(d.cuStreamEndCapture(stream))
    graph = ok(d.cuGraphInstantiate(graph, 0))
    # what a graph does is told to nobody: it may outlive who asked
    told, w = made("DnCreateSyevjInfo"), vector(6, np.float64)
    def values(n):
        call("DnDsyevj", handle, 0, 0, n, a.at, 6, w.at, work, size, info.at, told)
    values(6)
    sweeps = number("DnXsyevjGetSweeps", handle, told)
    assert sweeps > 0
    ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    values(1)
    alone = ok(d.cuGraphInstantiate(ok(d.cuStreamEndCapture(stream)), 0))
    ok(d.cuGraphLaunch(alone, stream))
    assert number("DnXsyevjGetSweeps", handle, told) == sweeps
    for matrix in matrices:
        each = np.asfortranarray(matrix)
        ok(d.cuMemcpyHtoD(a.at.value, each.ctypes.data, each.nbytes))
        ok(d.cuGraphLaunch(graph, stream))
        same(np.tril(a.one()), np.linalg.cholesky(matrix), matrix)
"""

PROGRAMS: Final = {
    "cholesky": CHOLESKY, "lu": LU, "qr": QR, "eigen": EIGEN, "singular": SINGULAR, "generic": GENERIC,
    "cublas": BLAS,
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_answers_are_right_and_the_same_from_afar(sim: Machine, tmp_path: Path, program: str) -> None:
    local = run(sim, START + program + END)
    assert len(local) > 20
    with remote(sim, tmp_path, "shm") as (client, _, _):
        assert run(client, START + program + END) == local


def test_wrong_arguments_have_the_documented_status(sim: Machine) -> None:
    run(sim, START + WRONG + END)


def test_solvers_keep_the_order_of_their_stream_and_may_be_captured(sim: Machine) -> None:
    run(sim, START + ORDER + END)
