/* A solver's problem: its validity, its order in the stream, and elements on the card. */
#include "solver.h"

/* An invalid address in a batch, as LAPACK reports it for its fourth argument. */
enum { NO_MATRIX = -4 };

/* ---- elements ---- */

struct array matrix(int type, const void *at, int64_t rows, int64_t columns, int64_t pitch) {
    return (struct array){.type = type,
                          .at = (void *)(uintptr_t)at,
                          .rows = rows,
                          .columns = columns,
                          .pitch = pitch};
}

struct array vector(int type, const void *at, int64_t rows) {
    return matrix(type, at, rows, 1, rows);
}

static void *matrix_at(const struct array *array, int64_t which) {
    if (array->scattered) return ((void **)array->at)[which];
    return (uint8_t *)array->at + which * array->stride * (int64_t)type_bytes(array->type);
}

static scalar read_at(int type, const void *at, int64_t index) {
    switch (type) {
    case C_32F: return ((const float complex *)at)[index];
    case C_64F: return ((const double complex *)at)[index];
    default: return element(type, at, index);
    }
}

static void write_at(int type, void *at, int64_t index, scalar value) {
    switch (type) {
    case C_32F: ((float complex *)at)[index] = (float complex)value; break;
    case C_64F: ((double complex *)at)[index] = value; break;
    default: set_element(type, at, index, creal(value));
    }
}

scalar get(const struct array *array, int64_t which, int64_t row, int64_t column) {
    return read_at(array->type, matrix_at(array, which), row + column * array->pitch);
}

void put(const struct array *array, int64_t which, int64_t row, int64_t column, scalar value) {
    write_at(array->type, matrix_at(array, which), row + column * array->pitch, value);
}

static bool transposes(int op) { return op == TURNED || op == ADJOINT; }
static bool conjugates(int op) { return op == ADJOINT || op == CONJUGATED; }

void load(const struct array *array, int64_t which, int op, scalar *to) {
    const void *at = matrix_at(array, which);
    for (int64_t column = 0; column < array->columns; column++)
        for (int64_t row = 0; row < array->rows; row++) {
            scalar value = read_at(array->type, at, row + column * array->pitch);
            int64_t place =
                transposes(op) ? column + row * array->columns : row + column * array->rows;
            to[place] = conjugates(op) ? conj(value) : value;
        }
}

void store(const struct array *array, int64_t which, int op, const scalar *from, int64_t pitch) {
    void *at = matrix_at(array, which);
    for (int64_t column = 0; column < array->columns; column++)
        for (int64_t row = 0; row < array->rows; row++) {
            scalar value = from[transposes(op) ? column + row * pitch : row + column * pitch];
            write_at(array->type, at, row + column * array->pitch,
                     conjugates(op) ? conj(value) : value);
        }
}

void load_lower(const struct array *array, int64_t which, bool upper, scalar *to) {
    int64_t n = array->rows;
    for (int64_t column = 0; column < n; column++)
        for (int64_t row = 0; row < n; row++)
            to[row + column * n] = row < column ? 0
                                   : upper      ? conj(get(array, which, column, row))
                                                : get(array, which, row, column);
}

void store_lower(const struct array *array, int64_t which, bool upper, const scalar *from) {
    int64_t n = array->rows;
    for (int64_t column = 0; column < n; column++)
        for (int64_t row = column; row < n; row++)
            if (upper)
                put(array, which, column, row, conj(from[row + column * n]));
            else
                put(array, which, row, column, from[row + column * n]);
}

void load_hermitian(const struct array *array, int64_t which, bool upper, scalar *to) {
    int64_t n = array->rows;
    load_lower(array, which, upper, to);
    for (int64_t column = 0; column < n; column++) {
        to[column + column * n] = creal(to[column + column * n]);
        for (int64_t row = 0; row < column; row++)
            to[row + column * n] = conj(to[column + row * n]);
    }
}

void store_reals(const struct array *array, int64_t which, const double *from) {
    for (int64_t row = 0; row < array->rows; row++) put(array, which, row, 0, from[row]);
}

bool are_numbers(int64_t n, scalar *a) {
    bool all = true;
    for (int64_t i = 0; i < n; i++) all = all && isfinite(creal(a[i])) && isfinite(cimag(a[i]));
    for (int64_t i = 0; i < n && !all; i++) a[i] = NAN;
    return all;
}

double rescale(int64_t n, scalar *a) {
    const int most_exponent = 1000;
    double greatest = 0;
    for (int64_t i = 0; i < n; i++)
        greatest = fmax(greatest, fmax(fabs(creal(a[i])), fabs(cimag(a[i]))));
    if (!(greatest > 0 && isfinite(greatest))) return 1;
    double scale = ldexp(1, (int)least(-ilogb(greatest), most_exponent));
    for (int64_t i = 0; i < n; i++) a[i] *= scale;
    return scale;
}

/* ---- arguments ---- */

static bool fits(const struct array *array) {
    return array->rows >= 0 && array->columns >= 0 && array->stride >= 0 &&
           (array->rows == 0 || array->pitch >= array->rows);
}

/* Return the bytes from the first of `count` matrices to the end of the last; negative, which no
 * memory has, on overflow. */
static int64_t span(const struct array *array, int64_t count) {
    const int64_t beyond = INT64_MAX / 64;
    int64_t last, others, all;
    if (__builtin_mul_overflow(array->columns - 1, array->pitch, &last) ||
        __builtin_mul_overflow(count - 1, array->stride, &others) ||
        __builtin_add_overflow(last, others, &all) || all > beyond || array->rows > beyond)
        return -1;
    return (all + array->rows) * (int64_t)type_bytes(array->type);
}

static bool stands(const struct array *array, int64_t count) {
    if (array->rows == 0 || array->columns == 0 || count == 0) return true;
    if (array->scattered)
        return span(array, 1) > 0 && on_card(array->at, count * (int64_t)sizeof(void *));
    return on_card(array->at, span(array, count));
}

/* Check a matrix whose address is on the card when its turn comes. */
static bool stands_now(const struct array *array, int64_t which) {
    if (!array->scattered || array->rows == 0 || array->columns == 0) return true;
    return on_card(matrix_at(array, which), span(array, 1));
}

enum { ARRAYS = 6 };
static const struct array *array_of(const struct problem *p, int number) {
    const struct array *arrays[ARRAYS] = {&p->a, &p->b, &p->u, &p->v, &p->x, &p->pivots};
    return arrays[number];
}

/* ---- the stream ---- */

struct queued {
    struct problem problem;
    _Alignas(sizeof(scalar)) scalar room[];
};

static void solve_now(void *data) {
    struct queued *queued = data;
    const struct problem *p = &queued->problem;
    for (int64_t i = 0; i < p->count; i++) {
        int info = 0;
        for (int k = 0; k < ARRAYS && info == 0; k++)
            if (!stands_now(array_of(p, k), i)) info = NO_MATRIX;
        if (info == 0) info = p->method->solve(p, i, queued->room);
        if (p->info != NULL && (p->info_of_each || i == 0 || info != 0))
            p->info[i * p->info_of_each] = info;
    }
}

enum outcome queue_problem(CUstream stream, const struct problem *p) {
    if (p->method == NULL || p->m < 0 || p->n < 0 || p->k < 0 || p->count < 0 || p->upper < 0 ||
        p->upper > 1 || p->op < 0 || p->op > ADJOINT || p->right < 0 || p->right > 1)
        return BAD_VALUE;
    for (int i = 0; i < ARRAYS; i++)
        if (!fits(array_of(p, i))) return BAD_VALUE;
    for (int i = 0; i < ARRAYS; i++)
        if (!stands(array_of(p, i), p->count)) return NOT_ON_CARD;
    if (p->info != NULL &&
        !on_card(p->info, (int64_t)sizeof(int) * (p->info_of_each ? most(p->count, 1) : 1)))
        return NOT_ON_CARD;
    struct queued queued = {.problem = *p};
    size_t room = (size_t)p->method->room(p) * sizeof(scalar);
    switch (queue_with_room(stream, solve_now, &queued, sizeof queued, room)) {
    case CUDA_SUCCESS: return QUEUED;
    case CUDA_ERROR_OUT_OF_MEMORY: return NO_ROOM;
    default: return NOT_QUEUED;
    }
}
