/* cuBLAS's solvers: triangular systems, and batches of LU and QR. */
#include "blas.h"
#include "solver.h"

static int solve(struct handle *handle, struct problem p) {
    if (handle == NULL) return NOT_INITIALIZED;
    switch (queue_problem(handle->stream, &p)) {
    case QUEUED: return OK;
    case BAD_VALUE: return INVALID;
    case NO_ROOM: return NO_MEMORY;
    default: return FAILED;
    }
}

static struct problem one_of(const struct method *method, int64_t m, int64_t n) {
    return (struct problem){.method = method, .m = m, .n = n, .count = 1};
}

/* Matrices whose addresses are on the card. */
static struct array scattered(int type, const void *at, int64_t rows, int64_t columns,
                              int64_t pitch) {
    struct array array = matrix(type, at, rows, columns, pitch);
    array.scattered = true;
    return array;
}

/* Pivots of a batch are contiguous. */
static struct array pivots_of(const int *at, int64_t n) {
    struct array array = vector(R_32I, at, at == NULL ? 0 : n);
    array.stride = n;
    return array;
}

/* ---- triangular systems ---- */

static int solve_triangles(struct handle *handle, int type, int side, int uplo, int op, int unit,
                           int64_t m, int64_t n, const void *alpha, struct array a, struct array b,
                           int64_t count) {
    if (handle == NULL) return NOT_INITIALIZED;
    if (alpha == NULL || unit < 0 || unit > 1) return INVALID;
    struct problem p = one_of(&trsm, m, n);
    p.count = count;
    p.right = side;
    p.upper = uplo;
    p.op = op;
    p.unit = unit;
    p.a = a;
    p.b = b;
    struct array factor = vector(type, alpha, 1);
    if (handle->pointer_mode == 0)
        p.alpha = get(&factor, 0, 0, 0);
    else
        p.x = factor;
    return solve(handle, p);
}

#define TRIANGLES(letter, type, wide, size)                                                        \
    API int cublas##letter##trsm_v2##wide(struct handle *handle, int side, int uplo, int op,       \
                                          int unit, size m, size n, const void *alpha,             \
                                          const void *a, size lda, void *b, size ldb) {            \
        int64_t order = side ? n : m;                                                              \
        return solve_triangles(handle, type, side, uplo, op, unit, m, n, alpha,                    \
                               matrix(type, a, order, order, lda), matrix(type, b, m, n, ldb), 1); \
    }                                                                                              \
    API int cublas##letter##trsmBatched##wide(                                                     \
        struct handle *handle, int side, int uplo, int op, int unit, size m, size n,               \
        const void *alpha, const void *a, size lda, const void *b, size ldb, size count) {         \
        int64_t order = side ? n : m;                                                              \
        return solve_triangles(handle, type, side, uplo, op, unit, m, n, alpha,                    \
                               scattered(type, a, order, order, lda),                              \
                               scattered(type, b, m, n, ldb), count);                              \
    }
#define OF_BOTH_SIZES(letter, type) \
    TRIANGLES(letter, type, , int)  \
    TRIANGLES(letter, type, _64, int64_t)
OF_BOTH_SIZES(S, R_32F)
OF_BOTH_SIZES(D, R_64F)
OF_BOTH_SIZES(C, C_32F)
OF_BOTH_SIZES(Z, C_64F)

/* ---- batches ---- */

/* LAPACK's errors in arguments are written to host memory at once: here a status suffices. */
static int told(int *info, int status) {
    if (info == NULL) return INVALID;
    *info = 0;
    return status;
}

#define BATCHES(letter, type)                                                                      \
    API int cublas##letter##getrfBatched(struct handle *handle, int n, const void *a, int lda,     \
                                         const int *pivots, int *info, int count) {                \
        struct problem p = one_of(&getrf, n, n);                                                   \
        p.count = count;                                                                           \
        p.a = scattered(type, a, n, n, lda);                                                       \
        p.pivots = pivots_of(pivots, n);                                                           \
        p.info = info;                                                                             \
        p.info_of_each = 1;                                                                        \
        return solve(handle, p);                                                                   \
    }                                                                                              \
    API int cublas##letter##getrsBatched(struct handle *handle, int op, int n, int columns,        \
                                         const void *a, int lda, const int *pivots, const void *b, \
                                         int ldb, int *info, int count) {                          \
        struct problem p = one_of(&getrs, n, n);                                                   \
        p.count = count;                                                                           \
        p.op = op;                                                                                 \
        p.a = scattered(type, a, n, n, lda);                                                       \
        p.b = scattered(type, b, n, columns, ldb);                                                 \
        p.pivots = pivots_of(pivots, n);                                                           \
        return told(info, solve(handle, p));                                                       \
    }                                                                                              \
    API int cublas##letter##getriBatched(struct handle *handle, int n, const void *a, int lda,     \
                                         const int *pivots, const void *inverse, int pitch,        \
                                         int *info, int count) {                                   \
        struct problem p = one_of(&getri, n, n);                                                   \
        p.count = count;                                                                           \
        p.a = scattered(type, a, n, n, lda);                                                       \
        p.b = scattered(type, inverse, n, n, pitch);                                               \
        p.pivots = pivots_of(pivots, n);                                                           \
        p.info = info;                                                                             \
        p.info_of_each = 1;                                                                        \
        return solve(handle, p);                                                                   \
    }                                                                                              \
    API int cublas##letter##geqrfBatched(struct handle *handle, int m, int n, const void *a,       \
                                         int lda, const void *factors, int *info, int count) {     \
        struct problem p = one_of(&geqrf, m, n);                                                   \
        p.count = count;                                                                           \
        p.a = scattered(type, a, m, n, lda);                                                       \
        p.x = scattered(type, factors, least(m, n), 1, least(m, n));                               \
        return told(info, solve(handle, p));                                                       \
    }
BATCHES(S, R_32F)
BATCHES(D, R_64F)
BATCHES(C, C_32F)
BATCHES(Z, C_64F)
