/* Factors of square matrices, and solutions with them. Inner loops run over columns, which are
 * contiguous. */
#include "solver.h"

/* ---- triangles ---- */

void solve_triangle(int64_t n, int64_t columns, const scalar *t, int how, scalar *b) {
    bool upper = how & UPPER, adjoint = how & OF_ADJOINT, forward = upper == adjoint;
    for (int64_t column = 0; column < columns; column++, b += n)
        for (int64_t step = 0; step < n; step++) {
            int64_t j = forward ? step : n - 1 - step;
            int64_t first = upper ? 0 : j + 1, last = upper ? j : n;
            const scalar *along = t + j * n;
            scalar divisor = how & UNIT ? 1 : adjoint ? conj(along[j]) : along[j];
            if (adjoint) {
                for (int64_t i = first; i < last; i++) b[j] -= conj(along[i]) * b[i];
                b[j] /= divisor;
            } else {
                b[j] /= divisor;
                for (int64_t i = first; i < last; i++) b[i] -= along[i] * b[j];
            }
        }
}

void adjoin(int64_t n, scalar *a) {
    for (int64_t column = 0; column < n; column++)
        for (int64_t row = 0; row <= column; row++) {
            scalar above = a[row + column * n];
            a[row + column * n] = conj(a[column + row * n]);
            a[column + row * n] = conj(above);
        }
}

static void make_unit(int64_t n, scalar *a) {
    for (int64_t i = 0; i < n * n; i++) a[i] = i % (n + 1) == 0;
}

/* b = alpha b / op(a), or from the left. */
static int solve_trsm(const struct problem *p, int64_t which, scalar *room) {
    int64_t n = p->a.rows, columns = p->right ? p->m : p->n;
    scalar *t = room, *b = room + n * n, alpha = p->x.rows ? get(&p->x, which, 0, 0) : p->alpha;
    /* x op(a) = b is op(a)' x' = b': of the adjoint, since transposition alone has conjugated */
    int op = p->right ? (p->op == AS_IT_IS  ? ADJOINT
                         : p->op == ADJOINT ? AS_IT_IS
                                            : CONJUGATED)
                      : p->op;
    bool turned = op == TURNED || op == ADJOINT;
    load(&p->a, which, op, t);
    load(&p->b, which, p->right ? ADJOINT : AS_IT_IS, b);
    for (int64_t i = 0; i < n * columns; i++)
        b[i] = alpha == 0 ? 0 : b[i] * (p->right ? conj(alpha) : alpha);
    if (alpha != 0)
        solve_triangle(n, columns, t,
                       ((p->upper == 1) != turned ? UPPER : 0) | (p->unit ? UNIT : 0), b);
    store(&p->b, which, p->right ? ADJOINT : AS_IT_IS, b, n);
    return 0;
}
static int64_t with_b(const struct problem *p) {
    return p->a.rows * p->a.columns + p->b.rows * p->b.columns;
}
const struct method trsm = {solve_trsm, with_b};

/* ---- Cholesky ---- */

int64_t cholesky(int64_t n, scalar *a) {
    for (int64_t j = 0; j < n; j++) {
        for (int64_t k = 0; k < j; k++) {
            scalar factor = conj(a[j + k * n]);
            for (int64_t i = j; i < n; i++) a[i + j * n] -= a[i + k * n] * factor;
        }
        double square = creal(a[j + j * n]);
        if (!(square > 0)) return j + 1;
        a[j + j * n] = sqrt(square);
        for (int64_t i = j + 1; i < n; i++) a[i + j * n] /= sqrt(square);
    }
    return 0;
}

static int64_t one_square(const struct problem *p) { return p->n * p->n; }
static int64_t two_squares(const struct problem *p) { return 2 * p->n * p->n; }

static int solve_potrf(const struct problem *p, int64_t which, scalar *room) {
    load_lower(&p->a, which, p->upper, room);
    int64_t info = cholesky(p->n, room);
    store_lower(&p->a, which, p->upper, room);
    return (int)info;
}
const struct method potrf = {solve_potrf, one_square};

static int solve_potrs(const struct problem *p, int64_t which, scalar *room) {
    scalar *b = room + p->n * p->n;
    load_lower(&p->a, which, p->upper, room);
    load(&p->b, which, AS_IT_IS, b);
    solve_triangle(p->n, p->b.columns, room, 0, b);
    solve_triangle(p->n, p->b.columns, room, OF_ADJOINT, b);
    store(&p->b, which, AS_IT_IS, b, p->n);
    return 0;
}
const struct method potrs = {solve_potrs, with_b};

static int solve_potri(const struct problem *p, int64_t which, scalar *room) {
    scalar *inverse = room + p->n * p->n;
    load_lower(&p->a, which, p->upper, room);
    for (int64_t i = 0; i < p->n; i++)
        if (room[i + i * p->n] == 0) return (int)i + 1;
    make_unit(p->n, inverse);
    solve_triangle(p->n, p->n, room, 0, inverse);
    solve_triangle(p->n, p->n, room, OF_ADJOINT, inverse);
    store_lower(&p->a, which, p->upper, inverse);
    return 0;
}
const struct method potri = {solve_potri, two_squares};

/* ---- LU ---- */

static void swap_rows(int64_t rows, int64_t columns, scalar *a, int64_t one, int64_t two) {
    for (int64_t column = 0; one != two && column < columns; column++, a += rows) {
        scalar kept = a[one];
        a[one] = a[two];
        a[two] = kept;
    }
}

/* As LAPACK compares pivots. */
static double size_of(scalar value) { return fabs(creal(value)) + fabs(cimag(value)); }

/* Without pivots if the problem has no array for them. */
static int solve_getrf(const struct problem *p, int64_t which, scalar *a) {
    int64_t m = p->m, n = p->n, info = 0;
    load(&p->a, which, AS_IT_IS, a);
    for (int64_t j = 0; j < least(m, n); j++) {
        int64_t pivot = j;
        for (int64_t i = j + 1; i < m && p->pivots.rows > 0; i++)
            if (size_of(a[i + j * m]) > size_of(a[pivot + j * m])) pivot = i;
        if (p->pivots.rows > 0) put(&p->pivots, which, j, 0, (double)(pivot + 1));
        swap_rows(m, n, a, j, pivot);
        scalar divisor = a[j + j * m];
        if (divisor == 0) {
            if (info == 0) info = j + 1;
            continue;
        }
        for (int64_t i = j + 1; i < m; i++) a[i + j * m] /= divisor;
        for (int64_t column = j + 1; column < n; column++) {
            scalar factor = a[j + column * m];
            if (factor == 0) continue;
            for (int64_t i = j + 1; i < m; i++) a[i + column * m] -= a[i + j * m] * factor;
        }
    }
    store(&p->a, which, AS_IT_IS, a, m);
    return (int)info;
}
static int64_t of_a(const struct problem *p) { return p->a.rows * p->a.columns; }
const struct method getrf = {solve_getrf, of_a};

/* Exchange rows as the pivots say, or undo that. */
static void permute(const struct problem *p, int64_t which, bool back, int64_t columns, scalar *b) {
    for (int64_t step = 0; step < p->pivots.rows; step++) {
        int64_t i = back ? p->pivots.rows - 1 - step : step;
        int64_t pivot = (int64_t)creal(get(&p->pivots, which, i, 0)) - 1;
        if (pivot >= 0 && pivot < p->n) swap_rows(p->n, columns, b, i, pivot);
    }
}

static int solve_getrs(const struct problem *p, int64_t which, scalar *room) {
    int64_t n = p->n, columns = p->b.columns;
    scalar *b = room + n * n;
    load(&p->a, which, p->op == TURNED ? CONJUGATED : AS_IT_IS, room);
    load(&p->b, which, AS_IT_IS, b);
    if (p->op == AS_IT_IS) {
        permute(p, which, false, columns, b);
        solve_triangle(n, columns, room, UNIT, b);
        solve_triangle(n, columns, room, UPPER, b);
    } else {
        solve_triangle(n, columns, room, UPPER | OF_ADJOINT, b);
        solve_triangle(n, columns, room, UNIT | OF_ADJOINT, b);
        permute(p, which, true, columns, b);
    }
    store(&p->b, which, AS_IT_IS, b, n);
    return 0;
}
const struct method getrs = {solve_getrs, with_b};

/* b becomes the inverse of the matrix with the factors in a. */
static int solve_getri(const struct problem *p, int64_t which, scalar *room) {
    int64_t n = p->n;
    scalar *b = room + n * n;
    load(&p->a, which, AS_IT_IS, room);
    for (int64_t i = 0; i < n; i++)
        if (room[i + i * n] == 0) return (int)i + 1;
    make_unit(n, b);
    permute(p, which, false, n, b);
    solve_triangle(n, n, room, UNIT, b);
    solve_triangle(n, n, room, UPPER, b);
    store(&p->b, which, AS_IT_IS, b, n);
    return 0;
}
const struct method getri = {solve_getri, two_squares};
