/* Singular values by one-sided Jacobi rotations: they make a matrix's columns orthogonal, and the
 * columns' lengths are the values. Values descend. */
#include "solver.h"

static double square_of(int64_t n, const scalar *x) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += creal(x[i] * conj(x[i]));
    return sum;
}

/* One sweep of rotations of w's rows × columns elements, and of v. Return the greatest cosine found
 * between two columns. Columns shorter than `nothing` have no direction. */
static double sweep(int64_t rows, int64_t columns, scalar *w, scalar *v, double within,
                    double nothing) {
    double greatest = 0;
    for (int64_t j = 1; j < columns; j++)
        for (int64_t i = 0; i < j; i++) {
            scalar *one = w + i * rows, *two = w + j * rows, product = 0;
            double a = square_of(rows, one), b = square_of(rows, two);
            for (int64_t k = 0; k < rows; k++) product += conj(one[k]) * two[k];
            if (!(a > nothing * nothing && b > nothing * nothing)) continue;
            double cosine = cabs(product) / sqrt(a) / sqrt(b);
            greatest = fmax(greatest, cosine);
            if (!(cosine > within)) continue;
            struct turn turn = turn_of(a, b, product);
            turn_columns(rows, one, two, turn);
            turn_columns(columns, v + i * columns, v + j * columns, turn);
        }
    return greatest;
}

/* Return the places of values, the greatest first; NaNs come before them. */
static void order(int64_t n, const double *values, int64_t *places) {
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i;
        for (; at > 0 && !(values[i] <= values[places[at - 1]]); at--) places[at] = places[at - 1];
        places[at] = i;
    }
}

/* Results for rows × columns, with no more columns than rows. */
struct found {
    double *values;       /* as many as columns */
    scalar *left, *right; /* rows × rows, with as many columns as wanted; columns² */
    int64_t *places;      /* of columns in order */
};

/* Compute the left vectors in w, in order. Those of zero values, and wanted ones beyond, are
 * completed. */
static void find_left(int64_t rows, int64_t columns, int64_t wanted, scalar *w, double nothing,
                      const struct found *found, scalar *room) {
    int64_t good = 0;
    for (int64_t j = 0; j < columns; j++) {
        int64_t from = found->places[j];
        double length = sqrt(square_of(rows, w + from * rows));
        if (length <= nothing) break;
        for (int64_t i = 0; i < rows; i++) found->left[i + j * rows] = w[i + from * rows] / length;
        good++;
    }
    complete(rows, good, wanted, found->left, room);
}

static int64_t wanted_columns(const struct problem *p) {
    bool left = p->m >= p->n;
    int vectors = left ? p->vectors : p->right_vectors;
    return vectors == FULL ? most(p->m, p->n) : least(p->m, p->n);
}

static void store_vectors(const struct problem *p, int64_t which, const struct found *found,
                          int64_t rows, int64_t columns) {
    bool tall = p->m >= p->n;
    const scalar *left = tall ? found->left : found->right;
    const scalar *right = tall ? found->right : found->left;
    int64_t left_pitch = tall ? rows : columns, right_pitch = tall ? columns : rows;
    if (p->vectors == IN_PLACE)
        store(&p->a, which, AS_IT_IS, left, left_pitch);
    else if (p->vectors != NO_VECTORS)
        store(&p->u, which, AS_IT_IS, left, left_pitch);
    if (p->right_vectors == IN_PLACE) {
        struct array first = p->a; /* its first rows */
        first.rows = columns;
        store(&first, which, ADJOINT, right, right_pitch);
    } else if (p->right_vectors != NO_VECTORS)
        store(&p->v, which, p->adjoint ? ADJOINT : AS_IT_IS, right, right_pitch);
}

static int solve_gesvd(const struct problem *p, int64_t which, scalar *room) {
    bool tall = p->m >= p->n;
    int64_t rows = most(p->m, p->n), columns = least(p->m, p->n), wanted = wanted_columns(p);
    scalar *w = room, *v = w + rows * columns, *sorted = v + columns * columns;
    struct found found = {.right = sorted, .left = sorted + columns * columns};
    scalar *scratch = found.left + rows * wanted;
    found.values = (double *)(scratch + rows * columns + columns);
    found.places = (int64_t *)(found.values + columns);
    double within = fmax(p->told.tolerance, DBL_EPSILON * (double)rows);
    int sweeps = 0;

    load(&p->a, which, tall ? AS_IT_IS : ADJOINT, w);
    double greatest = columns > 1 ? 1 : 0;
    if (!are_numbers(rows * columns, w)) greatest = NAN;
    double scale = rescale(rows * columns, w), whole = sqrt(square_of(rows * columns, w)),
           nothing = whole * DBL_EPSILON;
    for (int64_t i = 0; i < columns * columns; i++)
        v[i] = isnan(greatest) ? NAN : i % (columns + 1) == 0;
    while (greatest > within && sweeps < p->told.most_sweeps) {
        greatest = sweep(rows, columns, w, v, within, nothing);
        sweeps++;
    }
    for (int64_t j = 0; j < columns; j++)
        found.values[j] = sqrt(square_of(rows, w + j * rows)) / scale;
    order(columns, found.values, found.places);
    for (int64_t j = 0; j < columns; j++)
        memcpy(found.right + j * columns, v + found.places[j] * columns,
               (size_t)columns * sizeof *v);
    find_left(rows, columns, wanted, w, nothing, &found, scratch);
    double beyond = 0; /* remainder of the matrix without the unwanted values */
    for (int64_t j = 0; j < columns; j++) {
        double value = found.values[found.places[j]];
        if (j < p->x.rows)
            put(&p->x, which, j, 0, value);
        else
            beyond += value * value;
    }
    store_vectors(p, which, &found, rows, columns);
    if (p->residuals != NULL) p->residuals[which] = sqrt(beyond);
    if (p->tells != NULL) {
        p->tells->sweeps = sweeps;
        p->tells->residual = greatest * whole / scale;
    }
    return greatest <= within ? 0 : (int)columns + 1;
}
static int64_t room_of_gesvd(const struct problem *p) {
    int64_t rows = most(p->m, p->n), columns = least(p->m, p->n);
    return rows * (2 * columns + wanted_columns(p)) + columns * (2 * columns + 2);
}
const struct method gesvd = {solve_gesvd, room_of_gesvd};
