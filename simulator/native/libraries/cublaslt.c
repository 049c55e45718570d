/* The interface of cuBLASLt: products with an epilogue. Numbers of attributes: cublasLt.h. */
#include "blas.h"

#include "libraries/cublas_status.h"

#define VERSION 130400
#define ATTRIBUTES 48

/* A descriptor is its attributes, each of 8 bytes at most. */
struct descriptor {
    uint64_t attributes[ATTRIBUTES];
};
enum { DESC_COMPUTE_TYPE = 0, DESC_SCALE_TYPE, DESC_POINTER_MODE, DESC_TRANSA, DESC_TRANSB };
enum { DESC_EPILOGUE = 7, DESC_BIAS = 8, DESC_BIAS_TYPE = 26 };
enum {
    LAYOUT_TYPE = 0,
    LAYOUT_ORDER,
    LAYOUT_ROWS,
    LAYOUT_COLUMNS,
    LAYOUT_PITCH,
    LAYOUT_COUNT,
    LAYOUT_STRIDE
};
enum { ORDER_COL, ORDER_ROW };

struct algorithm {
    uint64_t data[8];
};
struct answer { /* cublasLtMatmulHeuristicResult_t */
    struct algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct answer) == 96, "as cublasLt.h has it");

API size_t cublasLtGetVersion(void) { return VERSION; }
API const char *cublasLtGetStatusName(int status) { return cublas_status_name(status); }
API const char *cublasLtGetStatusString(int status) { return cublas_status_name(status); }

API int cublasLtCreate(void **out) {
    if (out == NULL) return INVALID;
    return (*out = calloc(1, 8)) == NULL ? NO_MEMORY : OK;
}
API int cublasLtDestroy(void *handle) {
    free(handle);
    return OK;
}

/* ---- descriptors ---- */

static int make(struct descriptor **out) {
    if (out == NULL) return INVALID;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? NO_MEMORY : OK;
}

static int end(struct descriptor *descriptor) {
    free(descriptor);
    return OK;
}

static int set(struct descriptor *descriptor, int attribute, const void *value, size_t bytes) {
    if (descriptor == NULL || value == NULL || bytes > 8 || attribute < 0 ||
        attribute >= ATTRIBUTES)
        return INVALID;
    descriptor->attributes[attribute] = 0;
    memcpy(&descriptor->attributes[attribute], value, bytes);
    return OK;
}

static int get(struct descriptor *descriptor, int attribute, void *value, size_t bytes,
               size_t *written) {
    if (descriptor == NULL || value == NULL || bytes > 8 || attribute < 0 ||
        attribute >= ATTRIBUTES)
        return INVALID;
    memcpy(value, &descriptor->attributes[attribute], bytes);
    if (written != NULL) *written = bytes;
    return OK;
}

API int cublasLtMatmulDescCreate(struct descriptor **out, int compute, int scale) {
    int status = make(out);
    if (status != OK) return status;
    (*out)->attributes[DESC_COMPUTE_TYPE] = (uint64_t)compute;
    (*out)->attributes[DESC_SCALE_TYPE] = (uint64_t)scale;
    (*out)->attributes[DESC_EPILOGUE] = 1;
    (*out)->attributes[DESC_BIAS_TYPE] = UINT64_MAX; /* same as the result's */
    return OK;
}
API int cublasLtMatrixLayoutCreate(struct descriptor **out, int type, uint64_t rows,
                                   uint64_t columns, int64_t pitch) {
    int status = make(out);
    if (status != OK) return status;
    uint64_t attributes[] = {(uint64_t)type, 0, rows, columns, (uint64_t)pitch, 1, 0};
    memcpy((*out)->attributes, attributes, sizeof attributes);
    return OK;
}
API int cublasLtMatmulPreferenceCreate(struct descriptor **out) { return make(out); }

#define DESCRIPTOR(name)                                                                       \
    API int cublasLt##name##Destroy(struct descriptor *descriptor) { return end(descriptor); } \
    API int cublasLt##name##SetAttribute(struct descriptor *descriptor, int attribute,         \
                                         const void *value, size_t bytes) {                    \
        return set(descriptor, attribute, value, bytes);                                       \
    }                                                                                          \
    API int cublasLt##name##GetAttribute(struct descriptor *descriptor, int attribute,         \
                                         void *value, size_t bytes, size_t *written) {         \
        return get(descriptor, attribute, value, bytes, written);                              \
    }
DESCRIPTOR(MatmulDesc)
DESCRIPTOR(MatrixLayout)
DESCRIPTOR(MatmulPreference)

/* ---- products ---- */

/* A matrix stored by rows is the transpose of one stored by columns. */
static struct matrix matrix(const struct descriptor *layout, const void *at, bool transposed) {
    const uint64_t *is = layout->attributes;
    bool by_rows = is[LAYOUT_ORDER] == ORDER_ROW;
    return (struct matrix){.type = (int)is[LAYOUT_TYPE],
                           .transposed = transposed != by_rows,
                           .at = (void *)(uintptr_t)at,
                           .rows = (int64_t)is[by_rows ? LAYOUT_COLUMNS : LAYOUT_ROWS],
                           .columns = (int64_t)is[by_rows ? LAYOUT_ROWS : LAYOUT_COLUMNS],
                           .pitch = (int64_t)is[LAYOUT_PITCH],
                           .stride = (int64_t)is[LAYOUT_STRIDE]};
}

/* There is one algorithm: the heuristic always returns the same. */
API int cublasLtMatmulAlgoGetHeuristic(void *handle, const struct descriptor *product,
                                       const struct descriptor *a, const struct descriptor *b,
                                       const struct descriptor *c, const struct descriptor *d,
                                       const struct descriptor *preference, int wanted,
                                       struct answer *answers, int *given) {
    if (handle == NULL) return NOT_INITIALIZED;
    if (product == NULL || a == NULL || b == NULL || c == NULL || d == NULL || preference == NULL ||
        wanted < 1 || answers == NULL || given == NULL)
        return INVALID;
    answers[0] = (struct answer){.status = OK, .waves = 1};
    *given = 1;
    return OK;
}

API int cublasLtMatmul(void *handle, const struct descriptor *product, const void *alpha,
                       const void *a, const struct descriptor *a_is, const void *b,
                       const struct descriptor *b_is, const void *beta, const void *c,
                       const struct descriptor *c_is, void *d, const struct descriptor *d_is,
                       const struct algorithm *algorithm, void *workspace, size_t workspace_bytes,
                       CUstream stream) {
    (void)algorithm, (void)workspace, (void)workspace_bytes;
    if (handle == NULL) return NOT_INITIALIZED;
    if (product == NULL || a_is == NULL || b_is == NULL || c_is == NULL || d_is == NULL ||
        alpha == NULL || beta == NULL)
        return INVALID;
    const uint64_t *is = product->attributes;
    int epilogue = (int)is[DESC_EPILOGUE] & ~1, mode = (int)is[DESC_POINTER_MODE];
    int known = EPILOGUE_RELU | EPILOGUE_BIAS | EPILOGUE_GELU, scale = (int)is[DESC_SCALE_TYPE];
    uint64_t orders = a_is->attributes[LAYOUT_ORDER] | b_is->attributes[LAYOUT_ORDER] |
                      c_is->attributes[LAYOUT_ORDER] | d_is->attributes[LAYOUT_ORDER];
    if (epilogue & ~known || mode > 1 || orders > ORDER_ROW || !known_type(scale))
        return NOT_SUPPORTED;
    struct product p = {.a = matrix(a_is, a, is[DESC_TRANSA] != PLAIN),
                        .b = matrix(b_is, b, is[DESC_TRANSB] != PLAIN),
                        .c = matrix(c_is, c, false),
                        .d = matrix(d_is, d, false),
                        .alpha = factor_of(scale, alpha, mode == 0),
                        .beta = factor_of(scale, beta, mode == 0),
                        .epilogue = epilogue,
                        .bias = (void *)(uintptr_t)is[DESC_BIAS]};
    p.bias_type = is[DESC_BIAS_TYPE] == UINT64_MAX ? p.d.type : (int)is[DESC_BIAS_TYPE];
    p.m = (int)d_is->attributes[LAYOUT_ROWS];
    p.n = (int)d_is->attributes[LAYOUT_COLUMNS];
    p.k = (int)a_is->attributes[is[DESC_TRANSA] != PLAIN ? LAYOUT_ROWS : LAYOUT_COLUMNS];
    p.count = (int)d_is->attributes[LAYOUT_COUNT];
    return queue_product(stream, &p);
}
