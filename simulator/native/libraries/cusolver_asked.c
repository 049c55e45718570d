/* The problems of cuSOLVER's functions, for all its interfaces. */
#include "cusolver.h"

struct problem ask_potrf(int type, int uplo, int64_t n, void *a, int64_t lda, int *info) {
    return (struct problem){.method = &potrf,
                            .n = n,
                            .count = 1,
                            .upper = uplo,
                            .a = matrix(type, a, n, n, lda),
                            .info = info};
}

struct problem ask_potrs(int type, int uplo, int64_t n, int64_t columns, const void *a, int64_t lda,
                         void *b, int64_t ldb, int *info) {
    return (struct problem){.method = &potrs,
                            .n = n,
                            .count = 1,
                            .upper = uplo,
                            .a = matrix(type, a, n, n, lda),
                            .b = matrix(type, b, n, columns, ldb),
                            .info = info};
}

struct problem ask_getrf(int type, int64_t m, int64_t n, void *a, int64_t lda, int pivot_type,
                         void *pivots, int *info) {
    return (struct problem){.method = &getrf,
                            .m = m,
                            .n = n,
                            .count = 1,
                            .a = matrix(type, a, m, n, lda),
                            .pivots = vector(pivot_type, pivots, pivots ? least(m, n) : 0),
                            .info = info};
}

struct problem ask_getrs(int type, int op, int64_t n, int64_t columns, const void *a, int64_t lda,
                         int pivot_type, const void *pivots, void *b, int64_t ldb, int *info) {
    return (struct problem){.method = &getrs,
                            .n = n,
                            .count = 1,
                            .op = op,
                            .a = matrix(type, a, n, n, lda),
                            .b = matrix(type, b, n, columns, ldb),
                            .pivots = vector(pivot_type, pivots, pivots ? n : 0),
                            .info = info};
}

struct problem ask_geqrf(int type, int64_t m, int64_t n, void *a, int64_t lda, void *factors,
                         int *info) {
    return (struct problem){.method = &geqrf,
                            .m = m,
                            .n = n,
                            .count = 1,
                            .a = matrix(type, a, m, n, lda),
                            .x = vector(type, factors, least(m, n)),
                            .info = info};
}

struct problem ask_syevd(int type, int vectors, int uplo, int64_t n, void *a, int64_t lda,
                         void *values, int *info) {
    return (struct problem){.method = vectors == 0 || vectors == 1 ? &syevd : NULL,
                            .n = n,
                            .count = 1,
                            .upper = uplo,
                            .vectors = vectors,
                            .a = matrix(type, a, n, n, lda),
                            .x = vector(real_of(type), values, n),
                            .info = info};
}

/* From LAPACK's letters; negative: invalid. */
static int vectors_of(char job) {
    switch (job) {
    case 'N': return NO_VECTORS;
    case 'S': return ECONOMIC;
    case 'A': return FULL;
    case 'O': return IN_PLACE;
    default: return -1;
    }
}

struct problem ask_gesvd(int type, char left, char right, int64_t m, int64_t n, void *a,
                         int64_t lda, void *values, void *u, int64_t ldu, void *v, int64_t ldv,
                         int *info) {
    struct problem p = {.method = &gesvd,
                        .m = m,
                        .n = n,
                        .count = 1,
                        .vectors = vectors_of(left),
                        .right_vectors = vectors_of(right),
                        .adjoint = true,
                        .a = matrix(type, a, m, n, lda),
                        .x = vector(real_of(type), values, least(m, n)),
                        .told = {.most_sweeps = JACOBI_SWEEPS},
                        .info = info};
    if (p.vectors == ECONOMIC || p.vectors == FULL)
        p.u = matrix(type, u, m, p.vectors == FULL ? m : n, ldu);
    if (p.right_vectors == ECONOMIC || p.right_vectors == FULL) p.v = matrix(type, v, n, n, ldv);
    if (m < n || p.vectors < 0 || p.right_vectors < 0 || p.vectors + p.right_vectors > 2 * FULL ||
        (p.vectors == IN_PLACE && p.right_vectors == IN_PLACE))
        p.method = NULL; /* the original too requires at least as many rows as columns */
    return p;
}

struct problem ask_gesvdj(int type, int vectors, bool economic, int64_t wanted, int64_t m,
                          int64_t n, void *a, int64_t lda, void *values, void *u, int64_t ldu,
                          void *v, int64_t ldv, int *info) {
    int which = vectors == 0 ? NO_VECTORS : economic ? ECONOMIC : FULL;
    bool known = (vectors == 0 || vectors == 1) && wanted <= least(m, n);
    struct problem p = {.method = known ? &gesvd : NULL,
                        .m = m,
                        .n = n,
                        .count = 1,
                        .vectors = which,
                        .right_vectors = which,
                        .a = matrix(type, a, m, n, lda),
                        .x = vector(real_of(type), values, wanted),
                        .told = {.most_sweeps = JACOBI_SWEEPS},
                        .info = info};
    if (which != NO_VECTORS) {
        p.u = matrix(type, u, m, which == FULL ? m : wanted, ldu);
        p.v = matrix(type, v, n, which == FULL ? n : wanted, ldv);
    }
    return p;
}

struct problem each_of(struct problem problem, int64_t count) {
    struct array *arrays[] = {&problem.a, &problem.u, &problem.v, &problem.x};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        if (__builtin_mul_overflow(arrays[i]->pitch, arrays[i]->columns, &arrays[i]->stride))
            problem.method = NULL;
    problem.count = count;
    problem.info_of_each = 1;
    return problem;
}

struct problem as_told(struct problem problem, struct jacobi *jacobi) {
    if (jacobi == NULL) {
        problem.method = NULL;
        return problem;
    }
    jacobi->batch = problem.info_of_each;
    problem.told = *jacobi;
    problem.tells = jacobi->batch ? NULL : jacobi;
    return problem;
}
