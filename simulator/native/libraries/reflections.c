/* Householder's reflections, as in LAPACK: 1 - factor v v', where v's first element is 1 and not
 * stored. */
#include "solver.h"

static double norm(int64_t n, const scalar *x) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += creal(x[i] * conj(x[i]));
    return sqrt(sum);
}

scalar reflect(int64_t n, scalar *x) {
    if (n < 1) return 0;
    double rest = norm(n - 1, x + 1);
    if (rest == 0 && cimag(x[0]) == 0) return 0;
    double beta = -copysign(hypot(cabs(x[0]), rest), creal(x[0]));
    scalar factor = (beta - x[0]) / beta, divisor = x[0] - beta;
    for (int64_t i = 1; i < n; i++) x[i] /= divisor;
    x[0] = beta;
    return factor;
}

void apply_reflection(int64_t n, const scalar *v, scalar factor, int64_t columns, scalar *c,
                      int64_t pitch) {
    if (factor == 0 || n < 1) return;
    for (int64_t column = 0; column < columns; column++, c += pitch) {
        scalar sum = c[0];
        for (int64_t i = 1; i < n; i++) sum += conj(v[i]) * c[i];
        sum *= factor;
        c[0] -= sum;
        for (int64_t i = 1; i < n; i++) c[i] -= v[i] * sum;
    }
}

/* ---- QR ---- */

static void factor_by_reflections(int64_t m, int64_t n, scalar *a, scalar *factors) {
    for (int64_t j = 0; j < least(m, n); j++) {
        scalar *v = a + j + j * m;
        factors[j] = reflect(m - j, v);
        apply_reflection(m - j, v, conj(factors[j]), n - j - 1, v + m, m);
    }
}

void complete(int64_t rows, int64_t first, int64_t columns, scalar *u, scalar *room) {
    scalar *factors = room + rows * first;
    memcpy(room, u, (size_t)(rows * first) * sizeof *u);
    factor_by_reflections(rows, first, room, factors);
    for (int64_t column = first; column < columns; column++) {
        scalar *c = u + column * rows;
        for (int64_t i = 0; i < rows; i++) c[i] = i == column;
        for (int64_t j = first - 1; j >= 0; j--)
            apply_reflection(rows - j, room + j + j * rows, factors[j], 1, c + j, rows);
    }
}

static int solve_geqrf(const struct problem *p, int64_t which, scalar *room) {
    scalar *factors = room + p->m * p->n;
    load(&p->a, which, AS_IT_IS, room);
    factor_by_reflections(p->m, p->n, room, factors);
    store(&p->a, which, AS_IT_IS, room, p->m);
    store(&p->x, which, AS_IT_IS, factors, p->x.rows);
    return 0;
}
static int64_t a_and_x(const struct problem *p) { return p->m * p->n + p->x.rows; }
const struct method geqrf = {solve_geqrf, a_and_x};

/* a's first k columns have reflections; it becomes as many columns of their product as it has. */
static int solve_orgqr(const struct problem *p, int64_t which, scalar *room) {
    int64_t m = p->m, n = p->n;
    scalar *q = room + m * n;
    load(&p->a, which, AS_IT_IS, room);
    for (int64_t i = 0; i < m * n; i++) q[i] = i % m == i / m;
    for (int64_t j = p->k - 1; j >= 0; j--)
        apply_reflection(m - j, room + j + j * m, get(&p->x, which, j, 0), n - j, q + j + j * m, m);
    store(&p->a, which, AS_IT_IS, q, m);
    return 0;
}
static int64_t two_of_a(const struct problem *p) { return 2 * p->m * p->n; }
const struct method orgqr = {solve_orgqr, two_of_a};

/* b = op(q) b, or b op(q), which is (op(q)' b')'. */
static int solve_ormqr(const struct problem *p, int64_t which, scalar *room) {
    int64_t rows = p->a.rows, columns = p->right ? p->m : p->n;
    int op = p->right ? ADJOINT : AS_IT_IS;
    scalar *b = room + rows * p->k;
    bool adjoint = (p->op != AS_IT_IS) != (p->right == 1);
    load(&p->a, which, AS_IT_IS, room);
    load(&p->b, which, op, b);
    for (int64_t step = 0; step < p->k; step++) {
        int64_t j = adjoint ? step : p->k - 1 - step;
        scalar factor = get(&p->x, which, j, 0);
        apply_reflection(rows - j, room + j + j * rows, adjoint ? conj(factor) : factor, columns,
                         b + j, rows);
    }
    store(&p->b, which, op, b, rows);
    return 0;
}
static int64_t a_and_b(const struct problem *p) {
    return p->a.rows * p->a.columns + p->b.rows * p->b.columns;
}
const struct method ormqr = {solve_ormqr, a_and_b};

/* ---- tridiagonal form ---- */

void tridiagonalize(int64_t n, scalar *a, double *diagonal, double *beside, scalar *factors) {
    for (int64_t k = 0; k < n; k++) {
        int64_t rest = n - k - 1;
        scalar *v = a + k + 1 + k * n, *below = v + n, *w = factors + k + 1, dot = 0;
        diagonal[k] = creal(a[k + k * n]);
        if (rest == 0) break;
        scalar factor = reflect(rest, v);
        beside[k] = creal(v[0]);
        v[0] = 1; /* until it is used: w has room where later factors go */
        for (int64_t i = 0; i < rest; i++) w[i] = 0;
        for (int64_t j = 0; j < rest; j++)
            for (int64_t i = 0; i < rest; i++) w[i] += below[i + j * n] * (factor * v[j]);
        for (int64_t i = 0; i < rest; i++) dot += conj(w[i]) * v[i];
        for (int64_t i = 0; i < rest; i++) w[i] -= factor * dot / 2 * v[i];
        for (int64_t j = 0; j < rest; j++)
            for (int64_t i = 0; i < rest; i++)
                below[i + j * n] -= v[i] * conj(w[j]) + w[i] * conj(v[j]);
        v[0] = beside[k];
        factors[k] = factor;
    }
}

/* For an upper triangle LAPACK starts at the end: the same, with rows and columns reversed. */
static int solve_sytrd(const struct problem *p, int64_t which, scalar *room) {
    int64_t n = p->n;
    scalar *factors = room + n * n;
    double *diagonal = (double *)(factors + n), *beside = diagonal + n;
    for (int64_t column = 0; column < n; column++)
        for (int64_t row = column; row < n; row++) {
            scalar value = p->upper ? get(&p->a, which, n - 1 - row, n - 1 - column)
                                    : get(&p->a, which, row, column);
            room[row + column * n] = row == column ? creal(value) : value;
            room[column + row * n] = row == column ? creal(value) : conj(value);
        }
    tridiagonalize(n, room, diagonal, beside, factors);
    for (int64_t column = 0; column < n; column++) {
        int64_t to = p->upper ? n - 1 - column : column, next = p->upper ? to - 1 : to;
        put(&p->u, which, to, 0, diagonal[column]);
        put(&p->a, which, to, to, diagonal[column]);
        if (column == n - 1) break;
        put(&p->v, which, next, 0, beside[column]);
        put(&p->x, which, next, 0, factors[column]);
        for (int64_t row = column + 1; row < n; row++)
            put(&p->a, which, p->upper ? n - 1 - row : row, to, room[row + column * n]);
    }
    return 0;
}
static int64_t square_and_two(const struct problem *p) { return p->n * (p->n + 2); }
const struct method sytrd = {solve_sytrd, square_and_two};
