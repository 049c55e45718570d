/* cuSOLVER's functions for matrices of one type: four of each, named by a letter. Those with a
 * workspace have another function that returns its size. */
#include "cusolver.h"

/* ---- Cholesky ---- */

#define CHOLESKY(letter, type)                                                                    \
    API int cusolverDn##letter##potrf_bufferSize(struct handle *handle, int uplo, int n,          \
                                                 const void *a, int lda, int *lwork) {            \
        (void)uplo, (void)a;                                                                      \
        return tell_room(handle, n, n, lda, lwork);                                               \
    }                                                                                             \
    API int cusolverDn##letter##potrf(struct handle *handle, int uplo, int n, void *a, int lda,   \
                                      const void *work, int lwork, int *info) {                   \
        return solve(handle, lend(type, work, lwork), ask_potrf(type, uplo, n, a, lda, info));    \
    }                                                                                             \
    API int cusolverDn##letter##potri_bufferSize(struct handle *handle, int uplo, int n,          \
                                                 const void *a, int lda, int *lwork) {            \
        (void)uplo, (void)a;                                                                      \
        return tell_room(handle, n, n, lda, lwork);                                               \
    }                                                                                             \
    API int cusolverDn##letter##potri(struct handle *handle, int uplo, int n, void *a, int lda,   \
                                      const void *work, int lwork, int *info) {                   \
        struct problem p = ask_potrf(type, uplo, n, a, lda, info);                                \
        p.method = &potri;                                                                        \
        return solve(handle, lend(type, work, lwork), p);                                         \
    }                                                                                             \
    API int cusolverDn##letter##potrs(struct handle *handle, int uplo, int n, int columns,        \
                                      const void *a, int lda, void *b, int ldb, int *info) {      \
        return solve(handle, NOTHING_LENT,                                                        \
                     ask_potrs(type, uplo, n, columns, a, lda, b, ldb, info));                    \
    }                                                                                             \
    API int cusolverDn##letter##potrfBatched(struct handle *handle, int uplo, int n, void *a,     \
                                             int lda, int *info, int count) {                     \
        struct problem p = each_of(ask_potrf(type, uplo, n, a, lda, info), count);                \
        p.a.scattered = true;                                                                     \
        return solve(handle, NOTHING_LENT, p);                                                    \
    }                                                                                             \
    /* One right-hand side each, as in the original. A missing solution is not reported. */       \
    API int cusolverDn##letter##potrsBatched(struct handle *handle, int uplo, int n, int columns, \
                                             const void *a, int lda, void *b, int ldb, int *info, \
                                             int count) {                                         \
        struct problem p =                                                                        \
            each_of(ask_potrs(type, uplo, n, columns, a, lda, b, ldb, info), count);              \
        p.a.scattered = p.b.scattered = true;                                                     \
        p.info_of_each = 0;                                                                       \
        return columns == 1 ? solve(handle, NOTHING_LENT, p) : INVALID;                           \
    }
CHOLESKY(S, R_32F)
CHOLESKY(D, R_64F)
CHOLESKY(C, C_32F)
CHOLESKY(Z, C_64F)

/* ---- LU ---- */

#define LU(letter, type)                                                                           \
    API int cusolverDn##letter##getrf_bufferSize(struct handle *handle, int m, int n,              \
                                                 const void *a, int lda, int *lwork) {             \
        (void)a;                                                                                   \
        return lda < m ? INVALID : tell_room(handle, m, n, lda, lwork);                            \
    }                                                                                              \
    API int cusolverDn##letter##getrf(struct handle *handle, int m, int n, void *a, int lda,       \
                                      const void *work, int *pivots, int *info) {                  \
        struct lent lent = {.needed = true, .at = work};                                           \
        return solve(handle, lent, ask_getrf(type, m, n, a, lda, R_32I, pivots, info));            \
    }                                                                                              \
    API int cusolverDn##letter##getrs(struct handle *handle, int op, int n, int columns,           \
                                      const void *a, int lda, const int *pivots, void *b, int ldb, \
                                      int *info) {                                                 \
        return solve(handle, NOTHING_LENT,                                                         \
                     ask_getrs(type, op, n, columns, a, lda, R_32I, pivots, b, ldb, info));        \
    }
LU(S, R_32F)
LU(D, R_64F)
LU(C, C_32F)
LU(Z, C_64F)

/* ---- QR ---- */

/* Products of reflections, which are in the first k columns of a. */
static struct problem product(int type, int m, int n, int k, void *a, int lda, const void *factors,
                              int *info) {
    struct problem p = ask_geqrf(type, m, n, a, lda, (void *)(uintptr_t)factors, info);
    p.method = k <= n && n <= m ? &orgqr : NULL;
    p.k = k;
    p.x = vector(type, factors, k);
    return p;
}

static struct problem product_times(int type, int right, int op, int m, int n, int k, const void *a,
                                    int lda, const void *factors, void *c, int ldc, int *info) {
    int rows = right ? n : m;
    bool known = k <= rows && (op != TURNED || !is_complex(type));
    return (struct problem){.method = known ? &ormqr : NULL,
                            .m = m,
                            .n = n,
                            .k = k,
                            .count = 1,
                            .right = right,
                            .op = op,
                            .a = matrix(type, a, rows, k, lda),
                            .b = matrix(type, c, m, n, ldc),
                            .x = vector(type, factors, k),
                            .info = info};
}

#define QR(letter, type, or)                                                                      \
    API int cusolverDn##letter##geqrf_bufferSize(struct handle *handle, int m, int n,             \
                                                 const void *a, int lda, int *lwork) {            \
        (void)a;                                                                                  \
        return tell_room(handle, m, n, lda, lwork);                                               \
    }                                                                                             \
    API int cusolverDn##letter##geqrf(struct handle *handle, int m, int n, void *a, int lda,      \
                                      void *tau, const void *work, int lwork, int *info) {        \
        return solve(handle, lend(type, work, lwork), ask_geqrf(type, m, n, a, lda, tau, info));  \
    }                                                                                             \
    API int cusolverDn##letter##or##gqr_bufferSize(struct handle *handle, int m, int n, int k,    \
                                                   const void *a, int lda, const void *tau,       \
                                                   int *lwork) {                                  \
        (void)a, (void)tau;                                                                       \
        return n > m || k > n || k < 0 ? INVALID : tell_room(handle, m, n, lda, lwork);           \
    }                                                                                             \
    API int cusolverDn##letter##or##gqr(struct handle *handle, int m, int n, int k, void *a,      \
                                        int lda, const void *tau, const void *work, int lwork,    \
                                        int *info) {                                              \
        return solve(handle, lend(type, work, lwork), product(type, m, n, k, a, lda, tau, info)); \
    }                                                                                             \
    API int cusolverDn##letter##or##mqr_bufferSize(                                               \
        struct handle *handle, int side, int op, int m, int n, int k, const void *a, int lda,     \
        const void *tau, const void *c, int ldc, int *lwork) {                                    \
        (void)op, (void)a, (void)tau, (void)c;                                                    \
        if (ldc < m || lda < (side ? n : m) || k < 0) return INVALID;                             \
        return tell_room(handle, m, n, most(ldc, 1), lwork);                                      \
    }                                                                                             \
    API int cusolverDn##letter##or##mqr(struct handle *handle, int side, int op, int m, int n,    \
                                        int k, const void *a, int lda, const void *tau, void *c,  \
                                        int ldc, const void *work, int lwork, int *info) {        \
        return solve(handle, lend(type, work, lwork),                                             \
                     product_times(type, side, op, m, n, k, a, lda, tau, c, ldc, info));          \
    }
QR(S, R_32F, or)
QR(D, R_64F, or)
QR(C, C_32F, un)
QR(Z, C_64F, un)

/* ---- eigenvalues ---- */

static struct problem by_jacobi(struct problem p, struct jacobi *told) {
    if (p.method != NULL) p.method = &syevj;
    return as_told(p, told);
}

static struct problem of_two(struct problem p, int kind, void *b, int ldb) {
    if (p.method != NULL) p.method = kind >= 1 && kind <= 3 ? &sygvd : NULL;
    p.kind = kind;
    p.b = matrix(p.a.type, b, p.n, p.n, ldb);
    return p;
}

static struct problem tridiagonal(int type, int uplo, int n, void *a, int lda, void *diagonal,
                                  void *beside, void *tau, int *info) {
    struct problem p = ask_syevd(type, 0, uplo, n, a, lda, NULL, info);
    p.method = &sytrd;
    p.u = vector(real_of(type), diagonal, n);
    p.v = vector(real_of(type), beside, most(n - 1, 0));
    p.x = vector(type, tau, most(n - 1, 0));
    return p;
}

#define EIGEN(letter, type, sy)                                                                    \
    API int cusolverDn##letter##sy##evd_bufferSize(struct handle *handle, int jobz, int uplo,      \
                                                   int n, const void *a, int lda, const void *w,   \
                                                   int *lwork) {                                   \
        (void)jobz, (void)uplo, (void)a, (void)w;                                                  \
        return tell_room(handle, n, n, lda, lwork);                                                \
    }                                                                                              \
    API int cusolverDn##letter##sy##evd(struct handle *handle, int jobz, int uplo, int n, void *a, \
                                        int lda, void *w, const void *work, int lwork,             \
                                        int *info) {                                               \
        return solve(handle, lend(type, work, lwork),                                              \
                     ask_syevd(type, jobz, uplo, n, a, lda, w, info));                             \
    }                                                                                              \
    API int cusolverDn##letter##sy##evj_bufferSize(struct handle *handle, int jobz, int uplo,      \
                                                   int n, const void *a, int lda, const void *w,   \
                                                   int *lwork, const struct jacobi *told) {        \
        (void)jobz, (void)uplo, (void)a, (void)w, (void)told;                                      \
        return tell_room(handle, n, n, lda, lwork);                                                \
    }                                                                                              \
    API int cusolverDn##letter##sy##evj(struct handle *handle, int jobz, int uplo, int n, void *a, \
                                        int lda, void *w, const void *work, int lwork, int *info,  \
                                        struct jacobi *told) {                                     \
        return solve(handle, lend(type, work, lwork),                                              \
                     by_jacobi(ask_syevd(type, jobz, uplo, n, a, lda, w, info), told));            \
    }                                                                                              \
    API int cusolverDn##letter##sy##evjBatched_bufferSize(                                         \
        struct handle *handle, int jobz, int uplo, int n, const void *a, int lda, const void *w,   \
        int *lwork, const struct jacobi *told, int count) {                                        \
        (void)jobz, (void)uplo, (void)a, (void)w, (void)told;                                      \
        return count < 0 ? INVALID : tell_room(handle, n, n, lda, lwork);                          \
    }                                                                                              \
    API int cusolverDn##letter##sy##evjBatched(                                                    \
        struct handle *handle, int jobz, int uplo, int n, void *a, int lda, void *w,               \
        const void *work, int lwork, int *info, struct jacobi *told, int count) {                  \
        struct problem p = each_of(ask_syevd(type, jobz, uplo, n, a, lda, w, info), count);        \
        return solve(handle, lend(type, work, lwork), by_jacobi(p, told));                         \
    }                                                                                              \
    API int cusolverDn##letter##sy##gvd_bufferSize(                                                \
        struct handle *handle, int kind, int jobz, int uplo, int n, const void *a, int lda,        \
        const void *b, int ldb, const void *w, int *lwork) {                                       \
        (void)kind, (void)jobz, (void)uplo, (void)a, (void)b, (void)w;                             \
        return ldb < n ? INVALID : tell_room(handle, n, n, lda, lwork);                            \
    }                                                                                              \
    API int cusolverDn##letter##sy##gvd(struct handle *handle, int kind, int jobz, int uplo,       \
                                        int n, void *a, int lda, void *b, int ldb, void *w,        \
                                        const void *work, int lwork, int *info) {                  \
        struct problem p = ask_syevd(type, jobz, uplo, n, a, lda, w, info);                        \
        return solve(handle, lend(type, work, lwork), of_two(p, kind, b, ldb));                    \
    }                                                                                              \
    API int cusolverDn##letter##sy##trd_bufferSize(                                                \
        struct handle *handle, int uplo, int n, const void *a, int lda, const void *diagonal,      \
        const void *beside, const void *tau, int *lwork) {                                         \
        (void)uplo, (void)a, (void)diagonal, (void)beside, (void)tau;                              \
        return tell_room(handle, n, n, lda, lwork);                                                \
    }                                                                                              \
    API int cusolverDn##letter##sy##trd(struct handle *handle, int uplo, int n, void *a, int lda,  \
                                        void *diagonal, void *beside, void *tau, const void *work, \
                                        int lwork, int *info) {                                    \
        return solve(handle, lend(type, work, lwork),                                              \
                     tridiagonal(type, uplo, n, a, lda, diagonal, beside, tau, info));             \
    }
EIGEN(S, R_32F, sy)
EIGEN(D, R_64F, sy)
EIGEN(C, C_32F, he)
EIGEN(Z, C_64F, he)

/* ---- singular values ---- */

enum { MOST_BATCHED = 32 }; /* rows and columns of each in gesvdjBatched: cuSOLVER's own bound */

/* The first ones, for matrices with these distances; `residuals`: host memory. */
static struct problem approximate(struct problem p, long long a, long long s, long long u,
                                  long long v, double *residuals, int count) {
    p = each_of(p, count);
    p.a.stride = a;
    p.x.stride = s;
    p.u.stride = p.u.at == NULL ? 0 : u;
    p.v.stride = p.v.at == NULL ? 0 : v;
    p.residuals = residuals;
    return p;
}

/* Results in host memory must be there when the function returns. */
static int solve_and_wait(struct handle *handle, struct lent lent, struct problem p) {
    int status = solve(handle, lent, p);
    if (status != OK || p.residuals == NULL) return status;
    return cuStreamSynchronize(handle->stream) == CUDA_SUCCESS ? OK : FAILED;
}

#define SINGULAR(letter, type)                                                                    \
    API int cusolverDn##letter##gesvd_bufferSize(struct handle *handle, int m, int n,             \
                                                 int *lwork) {                                    \
        return tell_room(handle, m, n, most(m, 1), lwork);                                        \
    }                                                                                             \
    API int cusolverDn##letter##gesvd(struct handle *handle, signed char left, signed char right, \
                                      int m, int n, void *a, int lda, void *s, void *u, int ldu,  \
                                      void *v, int ldv, const void *work, int lwork, void *rwork, \
                                      int *info) {                                                \
        (void)rwork; /* for values that did not converge, which Jacobi's methods do not have */   \
        return solve(handle, lend(type, work, lwork),                                             \
                     ask_gesvd(type, left, right, m, n, a, lda, s, u, ldu, v, ldv, info));        \
    }                                                                                             \
    API int cusolverDn##letter##gesvdj_bufferSize(                                                \
        struct handle *handle, int jobz, int economic, int m, int n, const void *a, int lda,      \
        const void *s, const void *u, int ldu, const void *v, int ldv, int *lwork,                \
        const struct jacobi *told) {                                                              \
        (void)jobz, (void)economic, (void)a, (void)s, (void)u, (void)ldu, (void)v, (void)ldv;     \
        return told == NULL ? INVALID : tell_room(handle, m, n, lda, lwork);                      \
    }                                                                                             \
    API int cusolverDn##letter##gesvdj(struct handle *handle, int jobz, int economic, int m,      \
                                       int n, void *a, int lda, void *s, void *u, int ldu,        \
                                       void *v, int ldv, const void *work, int lwork, int *info,  \
                                       struct jacobi *told) {                                     \
        struct problem p = ask_gesvdj(type, jobz, economic != 0, least(m, n), m, n, a, lda, s, u, \
                                      ldu, v, ldv, info);                                         \
        return solve(handle, lend(type, work, lwork), as_told(p, told));                          \
    }                                                                                             \
    API int cusolverDn##letter##gesvdjBatched_bufferSize(                                         \
        struct handle *handle, int jobz, int m, int n, const void *a, int lda, const void *s,     \
        const void *u, int ldu, const void *v, int ldv, int *lwork, const struct jacobi *told,    \
        int count) {                                                                              \
        (void)jobz, (void)a, (void)s, (void)u, (void)ldu, (void)v, (void)ldv;                     \
        bool known = told != NULL && count >= 0 && m <= MOST_BATCHED && n <= MOST_BATCHED;        \
        return known ? tell_room(handle, m, n, lda, lwork) : INVALID;                             \
    }                                                                                             \
    API int cusolverDn##letter##gesvdjBatched(struct handle *handle, int jobz, int m, int n,      \
                                              void *a, int lda, void *s, void *u, int ldu,        \
                                              void *v, int ldv, const void *work, int lwork,      \
                                              int *info, struct jacobi *told, int count) {        \
        if (m > MOST_BATCHED || n > MOST_BATCHED) return INVALID;                                 \
        struct problem p =                                                                        \
            ask_gesvdj(type, jobz, false, least(m, n), m, n, a, lda, s, u, ldu, v, ldv, info);    \
        return solve(handle, lend(type, work, lwork), as_told(each_of(p, count), told));          \
    }                                                                                             \
    API int cusolverDn##letter##gesvdaStridedBatched_bufferSize(                                  \
        struct handle *handle, int jobz, int rank, int m, int n, const void *a, int lda,          \
        long long stride_a, const void *s, long long stride_s, const void *u, int ldu,            \
        long long stride_u, const void *v, int ldv, long long stride_v, int *lwork, int count) {  \
        (void)jobz, (void)a, (void)stride_a, (void)s, (void)stride_s, (void)u, (void)ldu;         \
        (void)stride_u, (void)v, (void)ldv, (void)stride_v;                                       \
        if (count < 0 || rank < 0 || rank > least(m, n)) return INVALID;                          \
        return tell_room(handle, m, n, lda, lwork);                                               \
    }                                                                                             \
    API int cusolverDn##letter##gesvdaStridedBatched(                                             \
        struct handle *handle, int jobz, int rank, int m, int n, void *a, int lda,                \
        long long stride_a, void *s, long long stride_s, void *u, int ldu, long long stride_u,    \
        void *v, int ldv, long long stride_v, const void *work, int lwork, int *info,             \
        double *residuals, int count) {                                                           \
        struct problem p =                                                                        \
            ask_gesvdj(type, jobz, true, rank, m, n, a, lda, s, u, ldu, v, ldv, info);            \
        p = approximate(p, stride_a, stride_s, stride_u, stride_v, residuals, count);             \
        return solve_and_wait(handle, lend(type, work, lwork), p);                                \
    }
SINGULAR(S, R_32F)
SINGULAR(D, R_64F)
SINGULAR(C, C_32F)
SINGULAR(Z, C_64F)
