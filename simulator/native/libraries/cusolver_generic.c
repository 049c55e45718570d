/* cuSOLVER's 64-bit functions, for matrices of any type. */
#include "cusolver.h"

struct params;

/* Return whether all have the type of the computation, one of the four. */
static bool is_of(int type, int one, int two) {
    bool known = type == R_32F || type == R_64F || is_complex(type);
    return known && one == type && two == type;
}

static int tell_bytes(struct handle *handle, bool known, int type, int64_t m, int64_t n,
                      int64_t pitch, size_t *on_device, size_t *on_host) {
    if (handle == NULL) return NOT_INITIALIZED;
    if (!known) return NOT_SUPPORTED;
    if (m < 0 || n < 0 || pitch < most(m, 1) || on_device == NULL || on_host == NULL)
        return INVALID;
    if (most(m, n) > INT32_MAX) return INVALID; /* no card has room for such a matrix */
    *on_device = (size_t)to_lend(m, n) * type_bytes(type);
    *on_host = 0;
    return OK;
}

static int solve_lent(struct handle *handle, bool known, const void *work, size_t bytes,
                      struct problem p) {
    if (handle == NULL) return NOT_INITIALIZED;
    if (!known) return NOT_SUPPORTED;
    if (most(most(p.m, p.n), most(p.a.rows, p.a.columns)) > INT32_MAX) return INVALID;
    struct lent lent = {true, true, work, bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes};
    return solve(handle, lent, p);
}

#define ROOM size_t *on_device, size_t *on_host
#define LENT const void *work, size_t bytes, void *on_host, size_t bytes_on_host
#define UNUSED (void)params, (void)on_host, (void)bytes_on_host

/* ---- Cholesky and LU ---- */

API int cusolverDnXpotrf_bufferSize(struct handle *handle, struct params *params, int uplo,
                                    int64_t n, int type, const void *a, int64_t lda, int computed,
                                    ROOM) {
    (void)params, (void)uplo, (void)a;
    return tell_bytes(handle, is_of(type, type, computed), type, n, n, lda, on_device, on_host);
}

API int cusolverDnXpotrf(struct handle *handle, struct params *params, int uplo, int64_t n,
                         int type, void *a, int64_t lda, int computed, LENT, int *info) {
    UNUSED;
    return solve_lent(handle, is_of(type, type, computed), work, bytes,
                      ask_potrf(type, uplo, n, a, lda, info));
}

API int cusolverDnXpotrs(struct handle *handle, struct params *params, int uplo, int64_t n,
                         int64_t columns, int type, const void *a, int64_t lda, int type_b, void *b,
                         int64_t ldb, int *info) {
    (void)params;
    if (!is_of(type, type_b, type)) return handle == NULL ? NOT_INITIALIZED : NOT_SUPPORTED;
    return solve(handle, NOTHING_LENT, ask_potrs(type, uplo, n, columns, a, lda, b, ldb, info));
}

API int cusolverDnXgetrf_bufferSize(struct handle *handle, struct params *params, int64_t m,
                                    int64_t n, int type, const void *a, int64_t lda, int computed,
                                    ROOM) {
    (void)params, (void)a;
    return tell_bytes(handle, is_of(type, type, computed), type, m, n, lda, on_device, on_host);
}

API int cusolverDnXgetrf(struct handle *handle, struct params *params, int64_t m, int64_t n,
                         int type, void *a, int64_t lda, int64_t *pivots, int computed, LENT,
                         int *info) {
    UNUSED;
    return solve_lent(handle, is_of(type, type, computed), work, bytes,
                      ask_getrf(type, m, n, a, lda, R_64I, pivots, info));
}

API int cusolverDnXgetrs(struct handle *handle, struct params *params, int op, int64_t n,
                         int64_t columns, int type, const void *a, int64_t lda,
                         const int64_t *pivots, int type_b, void *b, int64_t ldb, int *info) {
    (void)params;
    if (!is_of(type, type_b, type)) return handle == NULL ? NOT_INITIALIZED : NOT_SUPPORTED;
    return solve(handle, NOTHING_LENT,
                 ask_getrs(type, op, n, columns, a, lda, R_64I, pivots, b, ldb, info));
}

/* ---- QR ---- */

API int cusolverDnXgeqrf_bufferSize(struct handle *handle, struct params *params, int64_t m,
                                    int64_t n, int type, const void *a, int64_t lda, int type_tau,
                                    const void *tau, int computed, ROOM) {
    (void)params, (void)a, (void)tau;
    return tell_bytes(handle, is_of(type, type_tau, computed), type, m, n, lda, on_device, on_host);
}

API int cusolverDnXgeqrf(struct handle *handle, struct params *params, int64_t m, int64_t n,
                         int type, void *a, int64_t lda, int type_tau, void *tau, int computed,
                         LENT, int *info) {
    UNUSED;
    return solve_lent(handle, is_of(type, type_tau, computed), work, bytes,
                      ask_geqrf(type, m, n, a, lda, tau, info));
}

/* ---- eigenvalues ---- */

API int cusolverDnXsyevd_bufferSize(struct handle *handle, struct params *params, int jobz,
                                    int uplo, int64_t n, int type, const void *a, int64_t lda,
                                    int type_w, const void *w, int computed, ROOM) {
    (void)params, (void)jobz, (void)uplo, (void)a, (void)w;
    bool known = is_of(type, type, computed) && type_w == real_of(type);
    return tell_bytes(handle, known, type, n, n, lda, on_device, on_host);
}

API int cusolverDnXsyevd(struct handle *handle, struct params *params, int jobz, int uplo,
                         int64_t n, int type, void *a, int64_t lda, int type_w, void *w,
                         int computed, LENT, int *info) {
    UNUSED;
    bool known = is_of(type, type, computed) && type_w == real_of(type);
    return solve_lent(handle, known, work, bytes, ask_syevd(type, jobz, uplo, n, a, lda, w, info));
}

API int cusolverDnXsyevBatched_bufferSize(struct handle *handle, struct params *params, int jobz,
                                          int uplo, int64_t n, int type, const void *a, int64_t lda,
                                          int type_w, const void *w, int computed, ROOM,
                                          int64_t count) {
    if (count < 0) return handle == NULL ? NOT_INITIALIZED : INVALID;
    return cusolverDnXsyevd_bufferSize(handle, params, jobz, uplo, n, type, a, lda, type_w, w,
                                       computed, on_device, on_host);
}

API int cusolverDnXsyevBatched(struct handle *handle, struct params *params, int jobz, int uplo,
                               int64_t n, int type, void *a, int64_t lda, int type_w, void *w,
                               int computed, LENT, int *info, int64_t count) {
    UNUSED;
    bool known = is_of(type, type, computed) && type_w == real_of(type);
    return solve_lent(handle, known, work, bytes,
                      each_of(ask_syevd(type, jobz, uplo, n, a, lda, w, info), count));
}

/* A real matrix has complex eigenvalues, or their real parts followed by the imaginary ones. */
static bool is_geev(int type, int type_w, int type_vl, int type_vr, int computed) {
    bool wide = type == R_64F || type == C_64F;
    return is_of(type, type_vl, type_vr) && computed == type &&
           (type_w == type || type_w == (wide ? C_64F : C_32F));
}

API int cusolverDnXgeev_bufferSize(struct handle *handle, struct params *params, int left,
                                   int right, int64_t n, int type, const void *a, int64_t lda,
                                   int type_w, const void *w, int type_vl, const void *vl,
                                   int64_t ldvl, int type_vr, const void *vr, int64_t ldvr,
                                   int computed, ROOM) {
    (void)params, (void)right, (void)a, (void)w, (void)vl, (void)ldvl, (void)vr, (void)ldvr;
    bool known = is_geev(type, type_w, type_vl, type_vr, computed) && left == 0;
    return tell_bytes(handle, known, type, n, n, lda, on_device, on_host);
}

API int cusolverDnXgeev(struct handle *handle, struct params *params, int left, int right,
                        int64_t n, int type, const void *a, int64_t lda, int type_w, void *w,
                        int type_vl, const void *vl, int64_t ldvl, int type_vr, void *vr,
                        int64_t ldvr, int computed, LENT, int *info) {
    UNUSED, (void)vl, (void)ldvl;
    bool known = is_geev(type, type_w, type_vl, type_vr, computed) && left == 0;
    if (n > INT32_MAX) return INVALID;
    struct problem p = {.method = right == 0 || right == 1 ? &geev : NULL,
                        .n = n,
                        .count = 1,
                        .vectors = right,
                        .a = matrix(type, a, n, n, lda),
                        .x = vector(type_w, w, is_complex(type_w) ? n : 2 * n),
                        .info = info};
    if (right == 1) p.u = matrix(type, vr, n, n, ldvr);
    return solve_lent(handle, known, work, bytes, p);
}

/* ---- singular values ---- */

API int cusolverDnXgesvd_bufferSize(struct handle *handle, struct params *params, signed char left,
                                    signed char right, int64_t m, int64_t n, int type,
                                    const void *a, int64_t lda, int type_s, const void *s,
                                    int type_u, const void *u, int64_t ldu, int type_v,
                                    const void *v, int64_t ldv, int computed, ROOM) {
    (void)params, (void)left, (void)right, (void)a, (void)s, (void)u, (void)ldu, (void)v, (void)ldv;
    bool known = is_of(type, type_u, type_v) && type_s == real_of(type) && computed == type;
    return tell_bytes(handle, known, type, m, n, lda, on_device, on_host);
}

API int cusolverDnXgesvd(struct handle *handle, struct params *params, signed char left,
                         signed char right, int64_t m, int64_t n, int type, void *a, int64_t lda,
                         int type_s, void *s, int type_u, void *u, int64_t ldu, int type_v, void *v,
                         int64_t ldv, int computed, LENT, int *info) {
    UNUSED;
    bool known = is_of(type, type_u, type_v) && type_s == real_of(type) && computed == type;
    return solve_lent(
        handle, known, work, bytes,
        ask_gesvd(type, (char)left, (char)right, m, n, a, lda, s, u, ldu, v, ldv, info));
}
