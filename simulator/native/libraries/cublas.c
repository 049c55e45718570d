/* The interface of cuBLAS, as much as a small network uses. */
#include "blas.h"
#include "handles.h"

#include "libraries/cublas_copies.h"
#include "libraries/cublas_status.h"

#define WORKSPACE_BYTES (4u << 20) /* the original has some too */
#define VERSION 130400

API int cublasCreate_v2(struct handle **out) {
    if (out == NULL) return INVALID;
    if (!open_context()) return NOT_INITIALIZED;
    struct handle *handle = calloc(1, sizeof *handle);
    if (handle == NULL || cuMemAlloc(&handle->workspace, WORKSPACE_BYTES) != CUDA_SUCCESS) {
        free(handle);
        return NO_MEMORY;
    }
    *out = handle;
    return OK;
}

API int cublasDestroy_v2(struct handle *handle) {
    if (handle == NULL) return NOT_INITIALIZED;
    cuCtxSynchronize();
    cuMemFree(handle->workspace);
    free(handle);
    return OK;
}

SETS(cublasSetStream_v2, CUstream, stream)
GETS(cublasGetStream_v2, CUstream, stream)
SETS(cublasSetPointerMode_v2, int, pointer_mode)
GETS(cublasGetPointerMode_v2, int, pointer_mode)
SETS(cublasSetMathMode, int, math_mode)
GETS(cublasGetMathMode, int, math_mode)

API int cublasSetWorkspace_v2(struct handle *handle, void *workspace, size_t bytes) {
    if (handle == NULL) return NOT_INITIALIZED;
    return on_card(workspace, (int64_t)bytes) ? OK : INVALID;
}

API int cublasGetVersion_v2(struct handle *handle, int *version) {
    (void)handle;
    if (version == NULL) return INVALID;
    *version = VERSION;
    return OK;
}

API const char *cublasGetStatusName(int status) { return cublas_status_name(status); }
API const char *cublasGetStatusString(int status) { return cublas_status_name(status); }

static int copy_rows(const char *function, const CUDA_MEMCPY2D *plan, CUstream stream) {
    (void)function;
    return cuMemcpy2DAsync(plan, stream) == CUDA_SUCCESS ? OK : FAILED;
}

static int copies_done(const char *function) {
    (void)function;
    return cuStreamSynchronize(NULL) == CUDA_SUCCESS ? OK : FAILED;
}

/* ---- matrices ---- */

static int multiply(struct handle *handle, int factors, int transa, int transb, struct product p,
                    const void *alpha, const void *beta) {
    if (handle == NULL) return NOT_INITIALIZED;
    if (alpha == NULL || beta == NULL || transa < 0 || transa > 2 || transb < 0 || transb > 2)
        return INVALID;
    bool host = handle->pointer_mode == 0;
    p.a.transposed = transa != PLAIN; /* for real elements both kinds of transposition are equal */
    p.b.transposed = transb != PLAIN;
    p.alpha = factor_of(factors, alpha, host);
    p.beta = factor_of(factors, beta, host);
    p.d = p.c;
    return queue_product(handle->stream, &p);
}

static struct matrix matrix(int type, const void *at, int64_t pitch, int64_t stride) {
    return (struct matrix){
        .type = type, .at = (void *)(uintptr_t)at, .pitch = pitch, .stride = stride};
}

static struct matrix scattered(int type, const void *at, int64_t pitch) {
    return (struct matrix){
        .type = type, .at = (void *)(uintptr_t)at, .pitch = pitch, .scattered = true};
}

#define PRODUCTS(letter, real, type, wide, size)                                                   \
    API int cublas##letter##gemmBatched##wide(                                                     \
        struct handle *handle, int transa, int transb, size m, size n, size k, const real *alpha,  \
        const void *a, size lda, const void *b, size ldb, const real *beta, const void *c,         \
        size ldc, size count) {                                                                    \
        struct product p = {.m = m,                                                                \
                            .n = n,                                                                \
                            .k = k,                                                                \
                            .count = count,                                                        \
                            .a = scattered(type, a, lda),                                          \
                            .b = scattered(type, b, ldb),                                          \
                            .c = scattered(type, c, ldc)};                                         \
        return multiply(handle, type, transa, transb, p, alpha, beta);                             \
    }                                                                                              \
    API int cublas##letter##gemmStridedBatched##wide(                                              \
        struct handle *handle, int transa, int transb, size m, size n, size k, const real *alpha,  \
        const real *a, size lda, long long stride_a, const real *b, size ldb, long long stride_b,  \
        const real *beta, real *c, size ldc, long long stride_c, size count) {                     \
        struct product p = {.m = m,                                                                \
                            .n = n,                                                                \
                            .k = k,                                                                \
                            .count = count,                                                        \
                            .a = matrix(type, a, lda, stride_a),                                   \
                            .b = matrix(type, b, ldb, stride_b),                                   \
                            .c = matrix(type, c, ldc, stride_c)};                                  \
        return multiply(handle, type, transa, transb, p, alpha, beta);                             \
    }                                                                                              \
    API int cublas##letter##gemm_v2##wide(                                                         \
        struct handle *handle, int transa, int transb, size m, size n, size k, const real *alpha,  \
        const real *a, size lda, const real *b, size ldb, const real *beta, real *c, size ldc) {   \
        return cublas##letter##gemmStridedBatched##wide(handle, transa, transb, m, n, k, alpha, a, \
                                                        lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);    \
    }                                                                                              \
    /* A product with one column. */                                                               \
    API int cublas##letter##gemv_v2##wide(                                                         \
        struct handle *handle, int trans, size m, size n, const real *alpha, const real *a,        \
        size lda, const real *x, size incx, const real *beta, real *y, size incy) {                \
        if (incx <= 0 || incy <= 0) return incx == 0 || incy == 0 ? INVALID : NOT_SUPPORTED;       \
        struct product p = {.m = trans == PLAIN ? m : n,                                           \
                            .n = 1,                                                                \
                            .k = trans == PLAIN ? n : m,                                           \
                            .count = 1,                                                            \
                            .a = matrix(type, a, lda, 0)};                                         \
        /* steps between elements are those between columns of their transposes */                 \
        p.b = matrix(type, x, incx, 0);                                                            \
        p.c = matrix(type, y, incy, 0);                                                            \
        p.c.transposed = true;                                                                     \
        return multiply(handle, type, trans, TRANSPOSED, p, alpha, beta);                          \
    }                                                                                              \
    /* a += alpha x y, of all pairs */                                                             \
    API int cublas##letter##ger_v2##wide(struct handle *handle, size m, size n, const real *alpha, \
                                         const real *x, size incx, const real *y, size incy,       \
                                         real *a, size lda) {                                      \
        static const real one = 1;                                                                 \
        if (incx <= 0 || incy <= 0) return incx == 0 || incy == 0 ? INVALID : NOT_SUPPORTED;       \
        if (handle == NULL) return NOT_INITIALIZED;                                                \
        if (handle->pointer_mode != 0) return NOT_SUPPORTED;                                       \
        struct product p = {.m = m,                                                                \
                            .n = n,                                                                \
                            .k = 1,                                                                \
                            .count = 1,                                                            \
                            .a = matrix(type, x, incx, 0),                                         \
                            .b = matrix(type, y, incy, 0),                                         \
                            .c = matrix(type, a, lda, 0)};                                         \
        return multiply(handle, type, TRANSPOSED, PLAIN, p, alpha, &one);                          \
    }
/* Each in two forms: `wide` has 64-bit sizes. */
PRODUCTS(S, float, R_32F, , int)
PRODUCTS(D, double, R_64F, , int)
PRODUCTS(S, float, R_32F, _64, int64_t)
PRODUCTS(D, double, R_64F, _64, int64_t)

/* Return the type of alpha and beta; -1: not supported. */
static int factor_type(int compute) {
    switch (scale_bytes(compute, R_32F)) {
    case 8: return R_64F;
    case 2: return R_16F;
    default: return compute == 72 || compute == 73 ? -1 : R_32F; /* no integers */
    }
}

#define PRODUCTS_OF_ANY(wide, size)                                                                \
    API int cublasGemmBatchedEx##wide(struct handle *handle, int transa, int transb, size m,       \
                                      size n, size k, const void *alpha, const void *a,            \
                                      int type_a, size lda, const void *b, int type_b, size ldb,   \
                                      const void *beta, const void *c, int type_c, size ldc,       \
                                      size count, int compute, int algo) {                         \
        (void)algo;                                                                                \
        if (factor_type(compute) < 0) return NOT_SUPPORTED;                                        \
        struct product p = {.m = m,                                                                \
                            .n = n,                                                                \
                            .k = k,                                                                \
                            .count = count,                                                        \
                            .a = scattered(type_a, a, lda),                                        \
                            .b = scattered(type_b, b, ldb),                                        \
                            .c = scattered(type_c, c, ldc)};                                       \
        return multiply(handle, factor_type(compute), transa, transb, p, alpha, beta);             \
    }                                                                                              \
    API int cublasGemmStridedBatchedEx##wide(                                                      \
        struct handle *handle, int transa, int transb, size m, size n, size k, const void *alpha,  \
        const void *a, int type_a, size lda, long long stride_a, const void *b, int type_b,        \
        size ldb, long long stride_b, const void *beta, void *c, int type_c, size ldc,             \
        long long stride_c, size count, int compute, int algo) {                                   \
        (void)algo;                                                                                \
        if (factor_type(compute) < 0) return NOT_SUPPORTED;                                        \
        struct product p = {.m = m,                                                                \
                            .n = n,                                                                \
                            .k = k,                                                                \
                            .count = count,                                                        \
                            .a = matrix(type_a, a, lda, stride_a),                                 \
                            .b = matrix(type_b, b, ldb, stride_b),                                 \
                            .c = matrix(type_c, c, ldc, stride_c)};                                \
        return multiply(handle, factor_type(compute), transa, transb, p, alpha, beta);             \
    }                                                                                              \
    API int cublasGemmEx##wide(struct handle *handle, int transa, int transb, size m, size n,      \
                               size k, const void *alpha, const void *a, int type_a, size lda,     \
                               const void *b, int type_b, size ldb, const void *beta, void *c,     \
                               int type_c, size ldc, int compute, int algo) {                      \
        return cublasGemmStridedBatchedEx##wide(handle, transa, transb, m, n, k, alpha, a, type_a, \
                                                lda, 0, b, type_b, ldb, 0, beta, c, type_c, ldc,   \
                                                0, 1, compute, algo);                              \
    }
PRODUCTS_OF_ANY(, int)
PRODUCTS_OF_ANY(_64, int64_t)

/* ---- vectors ---- */

enum vector_operation { AXPY, COPY, SCAL, SWAP, DOT, NRM2, ASUM, IAMAX };

struct vectors {
    enum vector_operation is;
    int type;
    bool wide; /* a position has 64 bits */
    int64_t n, incx, incy;
    void *x, *y, *result;
    struct factor alpha;
};

static void reduce(const struct vectors *v) {
    double total = 0, most = -1;
    int64_t at = 0;
    for (int64_t i = 0; i < v->n; i++) {
        double x = element(v->type, v->x, i * v->incx);
        if (v->is == DOT) total += x * element(v->type, v->y, i * v->incy);
        if (v->is == NRM2) total += x * x;
        if (v->is == ASUM) total += fabs(x);
        if (v->is == IAMAX && fabs(x) > most) {
            most = fabs(x);
            at = i + 1; /* counted from 1 */
        }
    }
    if (v->is == IAMAX && v->wide)
        *(int64_t *)v->result = at;
    else if (v->is == IAMAX)
        *(int *)v->result = (int)at;
    else
        set_element(v->type, v->result, 0, v->is == NRM2 ? sqrt(total) : total);
}

static void transform(void *data) {
    const struct vectors *v = data;
    if (v->is >= DOT) {
        reduce(v);
        return;
    }
    double alpha = v->is == AXPY || v->is == SCAL ? factor_now(&v->alpha) : 1;
    for (int64_t i = 0; i < v->n; i++) {
        int64_t x_at = i * v->incx, y_at = i * v->incy;
        double x = element(v->type, v->x, x_at), y = 0;
        if (v->is == AXPY || v->is == SWAP) y = element(v->type, v->y, y_at);
        if (v->is == SCAL) set_element(v->type, v->x, x_at, alpha * x);
        if (v->is == SWAP) set_element(v->type, v->x, x_at, y);
        if (v->is != SCAL) set_element(v->type, v->y, y_at, v->is == AXPY ? alpha * x + y : x);
    }
}

static int vectors(struct handle *handle, struct vectors v, const void *alpha) {
    if (handle == NULL) return NOT_INITIALIZED;
    bool gives = v.is >= DOT, two = v.y != NULL, host = handle->pointer_mode == 0;
    if ((gives && v.result == NULL) || ((v.is == AXPY || v.is == SCAL) && alpha == NULL))
        return INVALID;
    if (v.incx < 0 || v.incy < 0) return NOT_SUPPORTED;
    int64_t bytes = (int64_t)type_bytes(v.type);
    if (v.n > 0 && (!on_card(v.x, reach(v.n, v.incx, 1) * bytes) ||
                    (two && !on_card(v.y, reach(v.n, v.incy, 1) * bytes))))
        return FAILED;
    if (gives && !host && !on_card(v.result, v.is == IAMAX ? (v.wide ? 8 : 4) : bytes))
        return FAILED;
    if (alpha != NULL) v.alpha = factor_of(v.type, alpha, host);
    int status = queue_work(handle->stream, transform, &v, sizeof v);
    if (status == OK && gives && host && cuStreamSynchronize(handle->stream) != CUDA_SUCCESS)
        return FAILED;
    return status;
}

#define VECTOR(factor, ...)                                                                 \
    vectors(handle,                                                                         \
            (struct vectors){.n = n, .incx = incx, .x = (void *)(uintptr_t)x, __VA_ARGS__}, \
            factor)
#define OF_TWO .incy = incy, .y = (void *)(uintptr_t)y
#define VECTORS(letter, real, kind, width, size)                                                   \
    API int cublas##letter##axpy_v2##width(struct handle *handle, size n, const real *alpha,       \
                                           const real *x, size incx, real *y, size incy) {         \
        return VECTOR(alpha, .is = AXPY, .type = kind, OF_TWO);                                    \
    }                                                                                              \
    API int cublas##letter##copy_v2##width(struct handle *handle, size n, const real *x,           \
                                           size incx, real *y, size incy) {                        \
        return VECTOR(NULL, .is = COPY, .type = kind, OF_TWO);                                     \
    }                                                                                              \
    API int cublas##letter##swap_v2##width(struct handle *handle, size n, real *x, size incx,      \
                                           real *y, size incy) {                                   \
        return VECTOR(NULL, .is = SWAP, .type = kind, OF_TWO);                                     \
    }                                                                                              \
    API int cublas##letter##scal_v2##width(struct handle *handle, size n, const real *alpha,       \
                                           real *x, size incx) {                                   \
        return VECTOR(alpha, .is = SCAL, .type = kind);                                            \
    }                                                                                              \
    API int cublas##letter##dot_v2##width(struct handle *handle, size n, const real *x, size incx, \
                                          const real *y, size incy, real *result) {                \
        return VECTOR(NULL, .is = DOT, .type = kind, OF_TWO, .result = result);                    \
    }                                                                                              \
    API int cublas##letter##nrm2_v2##width(struct handle *handle, size n, const real *x,           \
                                           size incx, real *result) {                              \
        return VECTOR(NULL, .is = NRM2, .type = kind, .result = result);                           \
    }                                                                                              \
    API int cublas##letter##asum_v2##width(struct handle *handle, size n, const real *x,           \
                                           size incx, real *result) {                              \
        return VECTOR(NULL, .is = ASUM, .type = kind, .result = result);                           \
    }
VECTORS(S, float, R_32F, , int)
VECTORS(D, double, R_64F, , int)
VECTORS(S, float, R_32F, _64, int64_t)
VECTORS(D, double, R_64F, _64, int64_t)

#define PLACES(letter, real, kind, width, size)                                           \
    API int cublasI##letter##amax_v2##width(struct handle *handle, size n, const real *x, \
                                            size incx, size *result) {                    \
        return VECTOR(NULL, .is = IAMAX, .type = kind, .wide = sizeof(size) == 8,         \
                      .result = result);                                                  \
    }
PLACES(s, float, R_32F, , int)
PLACES(d, double, R_64F, , int)
PLACES(s, float, R_32F, _64, int64_t)
PLACES(d, double, R_64F, _64, int64_t)
