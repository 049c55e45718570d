/* Eigenvalues and right eigenvectors of non-symmetric matrices: Hessenberg form, then shifted QR
 * steps to a triangle (Golub and Van Loan, section 7.5). Real matrices stay real: a step combines
 * two shifts, and a pair of conjugates stays a block of two rows on the diagonal. */
#include "solver.h"

/* Multiply columns of c by 1 - factor (1, v) (1, v)'. */
static void apply_behind(int64_t rows, int64_t n, const scalar *v, scalar factor, scalar *c,
                         int64_t pitch) {
    for (int64_t i = 0; i < rows; i++) {
        scalar sum = c[i];
        for (int64_t k = 1; k < n; k++) sum += c[i + k * pitch] * v[k];
        sum *= factor;
        c[i] -= sum;
        for (int64_t k = 1; k < n; k++) c[i + k * pitch] -= sum * conj(v[k]);
    }
}

/* State of the steps: h = q' a q, all n × n. */
struct form {
    int64_t n;
    bool real;
    double whole; /* a's norm */
    scalar *h, *q;
};

static scalar *at(const struct form *f, int64_t row, int64_t column) {
    return f->h + row + column * f->n;
}

/* Reflect rows and columns from k on; their first `rows` rows are not 0. */
static void reflect_both(const struct form *f, int64_t k, int64_t count, const scalar *v,
                         scalar factor, int64_t rows) {
    apply_reflection(count, v, conj(factor), f->n - k, at(f, k, k), f->n);
    apply_behind(rows, count, v, factor, at(f, 0, k), f->n);
    apply_behind(f->n, count, v, factor, f->q + k * f->n, f->n);
}

static void to_hessenberg(const struct form *f, scalar *v) {
    for (int64_t k = 0; k + 2 < f->n; k++) {
        int64_t count = f->n - k - 1;
        memcpy(v, at(f, k + 1, k), (size_t)count * sizeof *v);
        scalar factor = reflect(count, v);
        memset(at(f, k + 1, k), 0, (size_t)count * sizeof *v);
        *at(f, k + 1, k) = v[0];
        reflect_both(f, k + 1, count, v, factor, f->n);
    }
}

static bool vanishes(const struct form *f, int64_t row) {
    double beside = cabs(*at(f, row - 1, row - 1)) + cabs(*at(f, row, row));
    return cabs(*at(f, row, row - 1)) <= DBL_EPSILON * (beside > 0 ? beside : f->whole);
}

/* Half the difference of a block's diagonal, and the square of half that of its eigenvalues. */
static scalar half_of(const struct form *f, int64_t row) {
    return (*at(f, row, row) - *at(f, row + 1, row + 1)) / 2;
}
static scalar square_of(const struct form *f, int64_t row) {
    return half_of(f, row) * half_of(f, row) + *at(f, row, row + 1) * *at(f, row + 1, row);
}

/* The first column of h minus its shifts; every tenth round uses other shifts. */
static void begin_step(const struct form *f, int64_t low, int64_t high, int rounds, scalar *x) {
    scalar first = *at(f, low, low), below = *at(f, low + 1, low), last = *at(f, high, high);
    double beside = cabs(*at(f, high, high - 1));
    bool unusual = rounds % 10 == 0;
    if (f->real) {
        scalar before = *at(f, high - 1, high - 1);
        scalar sum = unusual ? 1.5 * beside : before + last;
        scalar product = unusual ? beside * beside
                                 : before * last - *at(f, high - 1, high) * *at(f, high, high - 1);
        x[0] = first * first + *at(f, low, low + 1) * below - sum * first + product;
        x[1] = below * (first + *at(f, low + 1, low + 1) - sum);
        x[2] = below * *at(f, low + 2, low + 1);
    } else {
        scalar half = half_of(f, high - 1), root = csqrt(square_of(f, high - 1));
        scalar nearer = cabs(half + root) < cabs(half - root) ? half + root : half - root;
        x[0] = first - last - (unusual ? 0.75 * beside : nearer);
        x[1] = below;
    }
}

static void step(const struct form *f, int64_t low, int64_t high, int rounds) {
    int64_t size = f->real ? 3 : 2;
    scalar x[3];
    begin_step(f, low, high, rounds, x);
    for (int64_t k = low; k < high; k++) {
        int64_t count = least(size, high - k + 1);
        if (k > low) memcpy(x, at(f, k, k - 1), (size_t)count * sizeof *x);
        scalar factor = reflect(count, x);
        if (k > low) {
            memset(at(f, k, k - 1), 0, (size_t)count * sizeof *x);
            *at(f, k, k - 1) = x[0];
        }
        reflect_both(f, k, count, x, factor, least(high, k + size) + 1);
    }
}

/* A real block of two rows becomes a triangle if its eigenvalues are real. */
static void split(const struct form *f, int64_t row) {
    double half = creal(half_of(f, row)), square = creal(square_of(f, row));
    if (square < 0) return;
    scalar x[2] = {half + copysign(sqrt(square), half), *at(f, row + 1, row)};
    scalar factor = reflect(2, x);
    reflect_both(f, row, 2, x, factor, row + 2);
    *at(f, row + 1, row) = 0;
}

/* Return how many of the first rows are not in that form yet. */
static int64_t to_triangle(const struct form *f) {
    int64_t high = f->n - 1;
    for (int rounds = 1; high > 0; rounds++) {
        int64_t low = high;
        while (low > 0 && !vanishes(f, low)) low--;
        if (low > 0) *at(f, low, low - 1) = 0;
        if (low == high) {
            high--;
            rounds = 0;
        } else if (f->real && low == high - 1) {
            split(f, low);
            high -= 2;
            rounds = 0;
        } else if (rounds > 60)
            return high + 1;
        else
            step(f, low, high, rounds);
    }
    return 0;
}

static bool is_pair(const struct form *f, int64_t row) {
    return row + 1 < f->n && *at(f, row + 1, row) != 0;
}

static void find_values(const struct form *f, scalar *values) {
    for (int64_t k = 0; k < f->n; k++) {
        values[k] = *at(f, k, k);
        if (!is_pair(f, k)) continue;
        values[k] -= half_of(f, k);
        values[k] += csqrt(square_of(f, k)); /* of a negative number */
        values[k + 1] = conj(values[k]);
        k++;
    }
}

/* ---- vectors ---- */

/* Keep it away from 0. */
static scalar divisor(const struct form *f, scalar value) {
    double little = fmax(DBL_EPSILON * f->whole, DBL_MIN);
    return cabs(value) < little ? little : value;
}

/* Compute x's elements above `row` from those from there to `last`. */
static void substitute(const struct form *f, int64_t row, int64_t last, scalar value, scalar *x) {
    for (int64_t i = row - 1; i >= 0; i--) {
        scalar sum = 0, before = 0;
        bool pair = i > 0 && is_pair(f, i - 1);
        for (int64_t j = i + 1; j <= last; j++) {
            sum -= *at(f, i, j) * x[j];
            if (pair) before -= *at(f, i - 1, j) * x[j];
        }
        scalar d = *at(f, i, i) - value;
        if (pair) {
            scalar a = *at(f, i - 1, i - 1) - value, b = *at(f, i - 1, i), c = *at(f, i, i - 1);
            scalar determinant = divisor(f, a * d - b * c);
            x[i] = (a * sum - c * before) / determinant;
            x[i - 1] = (d * before - b * sum) / determinant;
        } else
            x[i] = sum / divisor(f, d);
        double size = fmax(cabs(x[i]), pair ? cabs(x[i - 1]) : 0);
        if (pair) i--;
        for (int64_t j = i; size > 0x1p300 && j <= last; j++) x[j] /= size;
    }
}

/* v = q x, of length 1 and with a real greatest element. */
static void find_vector(const struct form *f, int64_t last, const scalar *x, scalar *v) {
    scalar greatest = 0;
    double sum = 0;
    for (int64_t i = 0; i < f->n; i++) v[i] = 0;
    for (int64_t j = 0; j <= last; j++)
        for (int64_t i = 0; i < f->n; i++) v[i] += f->q[i + j * f->n] * x[j];
    for (int64_t i = 0; i < f->n; i++) {
        if (cabs(v[i]) > cabs(greatest)) greatest = v[i];
        sum += creal(v[i] * conj(v[i]));
    }
    scalar by = greatest == 0 ? 1 : conj(greatest) / cabs(greatest) / sqrt(sum);
    for (int64_t i = 0; i < f->n; i++) v[i] *= by;
}

/* The second of a pair is the first's conjugate: for real types both parts are written. */
static void put_vectors(const struct problem *p, int64_t which, int64_t k, bool pair,
                        const scalar *v) {
    for (int64_t i = 0; i < p->n; i++) {
        put(&p->u, which, i, k, v[i]);
        if (pair) put(&p->u, which, i, k + 1, is_complex(p->u.type) ? conj(v[i]) : cimag(v[i]));
    }
}

static void find_vectors(const struct problem *p, int64_t which, const struct form *f,
                         const scalar *values, scalar *x, scalar *v) {
    for (int64_t k = 0; k < f->n; k++) {
        bool pair = is_pair(f, k);
        x[k] = pair ? *at(f, k, k + 1) : 1;
        if (pair) x[k + 1] = values[k] - *at(f, k, k);
        substitute(f, k, k + pair, values[k], x);
        find_vector(f, k + pair, x, v);
        put_vectors(p, which, k, pair, v);
        k += pair;
    }
}

/* ---- the method ---- */

static int solve_geev(const struct problem *p, int64_t which, scalar *room) {
    int64_t n = p->n, all = n * n, left = n;
    struct form f = {.n = n, .real = !is_complex(p->a.type), .h = room, .q = room + all};
    scalar *values = f.q + all, *x = values + n, *v = x + n;
    double sum = 0;
    load(&p->a, which, AS_IT_IS, f.h);
    double scale = rescale(all, f.h);
    for (int64_t i = 0; i < all; i++) {
        f.q[i] = i % (n + 1) == 0;
        sum += creal(f.h[i] * conj(f.h[i]));
    }
    f.whole = sqrt(sum);
    if (are_numbers(all, f.h)) {
        to_hessenberg(&f, v);
        left = to_triangle(&f);
    }
    find_values(&f, values);
    for (int64_t k = 0; k < n; k++) {
        put(&p->x, which, k, 0, values[k] / scale);
        if (p->x.rows > n) put(&p->x, which, n + k, 0, cimag(values[k]) / scale);
    }
    if (p->vectors && left == 0) find_vectors(p, which, &f, values, x, v);
    return (int)left;
}
static int64_t room_of_geev(const struct problem *p) { return p->n * (2 * p->n + 3); }
const struct method geev = {solve_geev, room_of_geev};
