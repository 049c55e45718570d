/* Eigenvalues and eigenvectors of Hermitian matrices: by tridiagonal form and shifted QR steps, or
 * by Jacobi's method. Values ascend. */
#include "solver.h"

/* ---- rotations of columns ---- */

struct turn turn_of(double a, double b, scalar g) {
    double size = cabs(g);
    if (size == 0) return (struct turn){1, 0, 1};
    double ratio = (b - a) / (2 * size);
    double tangent = copysign(1, ratio) / (fabs(ratio) + hypot(ratio, 1));
    double cosine = 1 / hypot(tangent, 1);
    return (struct turn){cosine, tangent * cosine, conj(g) / size};
}

void turn_columns(int64_t rows, scalar *first, scalar *second, struct turn turn) {
    for (int64_t i = 0; i < rows; i++) {
        scalar one = first[i], two = second[i] * turn.phase;
        first[i] = turn.cosine * one - turn.sine * two;
        second[i] = turn.sine * one + turn.cosine * two;
    }
}

static void swap_columns(int64_t rows, scalar *one, scalar *two) {
    for (int64_t i = 0; i < rows; i++) {
        scalar kept = one[i];
        one[i] = two[i];
        two[i] = kept;
    }
}

static void sort_ascending(int64_t n, double *values, scalar *vectors) {
    for (int64_t i = 0; i < n; i++) {
        int64_t lowest = i;
        for (int64_t j = i + 1; j < n; j++)
            if (values[j] < values[lowest]) lowest = j;
        if (lowest == i) continue;
        double kept = values[i];
        values[i] = values[lowest];
        values[lowest] = kept;
        swap_columns(n, vectors + i * n, vectors + lowest * n);
    }
}

static void make_unit(int64_t n, scalar *a) {
    for (int64_t i = 0; i < n * n; i++) a[i] = i % (n + 1) == 0;
}

/* ---- tridiagonal matrices ---- */

static bool vanishes(double beside, double one, double two) {
    return !(fabs(beside) > DBL_EPSILON * (fabs(one) + fabs(two)) + DBL_MIN);
}

/* One QR step with Wilkinson's shift on rows `low` to `high`: rotations move the element outside of
 * the three diagonals down (Golub and Van Loan, section 8.3). */
static void step_down(int64_t n, int64_t low, int64_t high, double *diagonal, double *beside,
                      scalar *vectors) {
    double half = (diagonal[high - 1] - diagonal[high]) / 2, last = beside[high - 1];
    double shift = diagonal[high] - last * (last / (half + copysign(hypot(half, last), half)));
    double along = diagonal[low] - shift, out = beside[low];
    for (int64_t k = low; k < high; k++) {
        double length = hypot(along, out);
        double c = length > 0 ? along / length : 1, s = length > 0 ? out / length : 0;
        double a = diagonal[k], b = beside[k], d = diagonal[k + 1];
        if (k > low) beside[k - 1] = length;
        diagonal[k] = c * c * a + 2 * c * s * b + s * s * d;
        diagonal[k + 1] = s * s * a - 2 * c * s * b + c * c * d;
        beside[k] = c * s * (d - a) + (c * c - s * s) * b;
        if (k + 1 < high) {
            along = beside[k];
            out = s * beside[k + 1];
            beside[k + 1] *= c;
        }
        turn_columns(n, vectors + k * n, vectors + (k + 1) * n, (struct turn){c, -s, 1});
    }
}

/* Columns of `vectors` are rotated too. Return the number of elements left beside the diagonal. */
static int64_t diagonalize(int64_t n, double *diagonal, double *beside, scalar *vectors) {
    int64_t high = n - 1, steps = 40 * n;
    while (high > 0) {
        if (vanishes(beside[high - 1], diagonal[high - 1], diagonal[high])) {
            high--;
            continue;
        }
        int64_t low = high - 1;
        while (low > 0 && !vanishes(beside[low - 1], diagonal[low - 1], diagonal[low])) low--;
        if (steps-- == 0) return high;
        step_down(n, low, high, diagonal, beside, vectors);
    }
    return 0;
}

/* The Hermitian matrix is overwritten by its eigenvectors. `room`: n (n + 2). */
static int64_t eigen(int64_t n, scalar *a, double *values, scalar *room) {
    scalar *vectors = room, *factors = room + n * n;
    double *beside = (double *)(factors + n);
    if (!are_numbers(n * n, a)) {
        for (int64_t i = 0; i < n; i++) values[i] = NAN;
        return n;
    }
    double scale = rescale(n * n, a);
    tridiagonalize(n, a, values, beside, factors);
    make_unit(n, vectors);
    for (int64_t k = n - 2; k >= 0; k--) {
        int64_t at = k + 1 + (k + 1) * n;
        apply_reflection(n - k - 1, a + k + 1 + k * n, factors[k], n - k - 1, vectors + at, n);
    }
    int64_t info = diagonalize(n, values, beside, vectors);
    sort_ascending(n, values, vectors);
    for (int64_t i = 0; i < n; i++) values[i] /= scale;
    memcpy(a, vectors, (size_t)(n * n) * sizeof *a);
    return info;
}

static int solve_syevd(const struct problem *p, int64_t which, scalar *room) {
    int64_t n = p->n;
    double *values = (double *)(room + n * n);
    load_hermitian(&p->a, which, p->upper, room);
    int64_t info = eigen(n, room, values, room + n * n + n);
    store_reals(&p->x, which, values);
    if (p->vectors) store(&p->a, which, AS_IT_IS, room, n);
    return (int)info;
}
static int64_t room_of_eigen(const struct problem *p) { return p->n * (2 * p->n + 3); }
const struct method syevd = {solve_syevd, room_of_eigen};

/* ---- Jacobi's method ---- */

/* Return the norm of the elements off the diagonal, or of all. */
static double norm(int64_t n, const scalar *a, bool all) {
    double sum = 0;
    for (int64_t i = 0; i < n * n; i++)
        if (all || i % (n + 1) != 0) sum += creal(a[i] * conj(a[i]));
    return sqrt(sum);
}

static void turn_both(int64_t n, scalar *a, int64_t first, int64_t second, struct turn turn) {
    turn_columns(n, a + first * n, a + second * n, turn);
    for (int64_t column = 0; column < n; column++) {
        scalar *one = a + first + column * n, *two = a + second + column * n;
        scalar kept = *one, other = *two * conj(turn.phase);
        *one = turn.cosine * kept - turn.sine * other;
        *two = turn.sine * kept + turn.cosine * other;
    }
}

static int solve_syevj(const struct problem *p, int64_t which, scalar *room) {
    int64_t n = p->n;
    scalar *vectors = room + n * n;
    double *values = (double *)(vectors + n * n);
    double within = fmax(p->told.tolerance, DBL_EPSILON * (double)n);
    load_hermitian(&p->a, which, p->upper, room);
    make_unit(n, vectors);
    if (!are_numbers(n * n, room)) memcpy(vectors, room, (size_t)(n * n) * sizeof *room);
    double scale = rescale(n * n, room), whole = norm(n, room, true);
    int sweeps = 0;
    while (norm(n, room, false) > within * whole && sweeps < p->told.most_sweeps) {
        for (int64_t j = 1; j < n; j++)
            for (int64_t i = 0; i < j; i++) {
                struct turn turn =
                    turn_of(creal(room[i + i * n]), creal(room[j + j * n]), room[i + j * n]);
                turn_both(n, room, i, j, turn);
                room[i + j * n] = room[j + i * n] = 0; /* except for rounding */
                turn_columns(n, vectors + i * n, vectors + j * n, turn);
            }
        sweeps++;
    }
    double residual = norm(n, room, false);
    if (p->tells != NULL) {
        p->tells->sweeps = sweeps;
        p->tells->residual = residual / scale;
    }
    for (int64_t i = 0; i < n; i++) values[i] = creal(room[i + i * n]) / scale;
    sort_ascending(n, values, vectors);
    store_reals(&p->x, which, values);
    if (p->vectors) store(&p->a, which, AS_IT_IS, vectors, n);
    return residual <= within * whole ? 0 : (int)n + 1;
}
static int64_t two_squares_and_one(const struct problem *p) { return p->n * (2 * p->n + 1); }
const struct method syevj = {solve_syevj, two_squares_and_one};

/* ---- two matrices ---- */

/* c = l' c l for a Hermitian matrix c and a lower triangle l. */
static void multiply_around(int64_t n, const scalar *l, scalar *c, scalar *half) {
    for (int pass = 0; pass < 2; pass++) { /* c becomes (l' c)', twice */
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < n; i++) {
                scalar sum = 0;
                for (int64_t k = i; k < n; k++) sum += conj(l[k + i * n]) * c[k + j * n];
                half[i + j * n] = sum;
            }
        memcpy(c, half, (size_t)(n * n) * sizeof *c);
        adjoin(n, c);
    }
}

/* a x = λ b x, a b x = λ x or b a x = λ x, by b's factor l, which b becomes. */
static int solve_sygvd(const struct problem *p, int64_t which, scalar *room) {
    int64_t n = p->n, all = n * n;
    scalar *a = room, *l = a + all, *rest = l + all;
    double *values = (double *)(rest + all + 2 * n);
    load_lower(&p->b, which, p->upper, l);
    int64_t info = cholesky(n, l);
    store_lower(&p->b, which, p->upper, l);
    if (info != 0) return (int)(n + info);
    load_hermitian(&p->a, which, p->upper, a);
    if (p->kind == 1) {
        solve_triangle(n, n, l, 0, a);
        adjoin(n, a);
        solve_triangle(n, n, l, 0, a);
    } else
        multiply_around(n, l, a, rest);
    info = eigen(n, a, values, rest);
    store_reals(&p->x, which, values);
    if (!p->vectors) return (int)info;
    if (p->kind == 3) { /* l times the vectors */
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = n - 1; i >= 0; i--) {
                scalar sum = 0;
                for (int64_t k = 0; k <= i; k++) sum += l[i + k * n] * a[k + j * n];
                a[i + j * n] = sum;
            }
    } else
        solve_triangle(n, n, l, OF_ADJOINT, a);
    store(&p->a, which, AS_IT_IS, a, n);
    return (int)info;
}
static int64_t three_squares(const struct problem *p) { return p->n * (3 * p->n + 4); }
const struct method sygvd = {solve_sygvd, three_squares};
