/* The interface of cuSOLVER: shared by its files. */
#ifndef EGPU_SIM_CUSOLVER_H
#define EGPU_SIM_CUSOLVER_H

#include "solver.h"

#pragma GCC visibility push(hidden)

/* cusolverStatus_t: the ones used here. */
enum { OK = 0, NOT_INITIALIZED = 1, NO_MEMORY = 2, INVALID = 3, FAILED = 6, NOT_SUPPORTED = 9 };

struct handle {
    CUstream stream;
    int deterministic, math_mode;
};

/* ---- cusolver.c ---- */

/* A program's workspace on the card. It is not used, but its size is checked as in the original. */
struct lent {
    bool needed, measured; /* `measured`: the program passes its size */
    const void *at;
    int64_t bytes;
};
static inline struct lent lend(int type, const void *at, int64_t elements) {
    int64_t bytes = 0;
    if (elements > 0 && __builtin_mul_overflow(elements, type_bytes(type), &bytes)) bytes = 0;
    return (struct lent){true, true, at, bytes};
}
#define NOTHING_LENT ((struct lent){0})

/* Return its elements for matrices of up to this many rows or columns: a block of columns. */
static inline int64_t to_lend(int64_t m, int64_t n) { return 32 * most(most(m, n), 1); }

int solve(struct handle *handle, struct lent lent, struct problem problem);
int tell_room(struct handle *handle, int64_t m, int64_t n, int64_t pitch, int *elements);

/* ---- cusolver_asked.c ---- */

struct problem ask_potrf(int type, int uplo, int64_t n, void *a, int64_t lda, int *info);
struct problem ask_potrs(int type, int uplo, int64_t n, int64_t columns, const void *a, int64_t lda,
                         void *b, int64_t ldb, int *info);
struct problem ask_getrf(int type, int64_t m, int64_t n, void *a, int64_t lda, int pivot_type,
                         void *pivots, int *info);
struct problem ask_getrs(int type, int op, int64_t n, int64_t columns, const void *a, int64_t lda,
                         int pivot_type, const void *pivots, void *b, int64_t ldb, int *info);
struct problem ask_geqrf(int type, int64_t m, int64_t n, void *a, int64_t lda, void *factors,
                         int *info);
struct problem ask_syevd(int type, int vectors, int uplo, int64_t n, void *a, int64_t lda,
                         void *values, int *info);
struct problem ask_gesvd(int type, char left, char right, int64_t m, int64_t n, void *a,
                         int64_t lda, void *values, void *u, int64_t ldu, void *v, int64_t ldv,
                         int *info);
/* `wanted`: values and, unless it is all of them, vectors. */
struct problem ask_gesvdj(int type, int vectors, bool economic, int64_t wanted, int64_t m,
                          int64_t n, void *a, int64_t lda, void *values, void *u, int64_t ldu,
                          void *v, int64_t ldv, int *info);
/* The same for each of a batch, whose matrices follow each other. */
struct problem each_of(struct problem problem, int64_t count);
/* The same, solved with the settings for Jacobi's method. */
struct problem as_told(struct problem problem, struct jacobi *jacobi);

#pragma GCC visibility pop
#endif
