/* cuBLAS's copies of vectors and matrices, which are the driver's copies of rows. Who includes this
 * has `copy_rows`, which makes one and says a status, and exports what is defined here. */
#ifndef EGPU_LIBRARIES_CUBLAS_COPIES_H
#define EGPU_LIBRARIES_CUBLAS_COPIES_H

enum { COPY_INVALID = 7 }; /* CUBLAS_STATUS_INVALID_VALUE */

static int copy_rows(const char *function, const CUDA_MEMCPY2D *plan, CUstream stream);

/* One side of a copy: where, and bytes from one row to the next. */
struct side {
    const void *at;
    int64_t pitch;
};

static int copy(const char *function, struct side from, struct side to, bool in, int64_t width,
                int64_t rows, void *stream) {
    if (width < 0 || rows < 0 || from.pitch < width || to.pitch < width) return COPY_INVALID;
    if (width == 0 || rows == 0) return 0;
    CUDA_MEMCPY2D plan = {.WidthInBytes = (size_t)width,
                          .Height = (size_t)rows,
                          .srcPitch = (size_t)from.pitch,
                          .dstPitch = (size_t)to.pitch};
    plan.srcMemoryType = in ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    plan.dstMemoryType = in ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    if (in) {
        plan.srcHost = from.at;
        plan.dstDevice = (CUdeviceptr)(uintptr_t)to.at;
    } else {
        plan.srcDevice = (CUdeviceptr)(uintptr_t)from.at;
        plan.dstHost = (void *)(uintptr_t)to.at;
    }
    return copy_rows(function, &plan, stream);
}

/* A matrix is stored by columns: each is a row of the copy. A vector's elements are rows. */
#define COPY_MATRIX(symbol, in)                                                                  \
    API int symbol(int rows, int columns, int element, const void *a, int lda, void *b, int ldb, \
                   void *stream);                                                                \
    int symbol(int rows, int columns, int element, const void *a, int lda, void *b, int ldb,     \
               void *stream) {                                                                   \
        if (element <= 0) return COPY_INVALID;                                                   \
        struct side from = {a, (int64_t)lda * element}, to = {b, (int64_t)ldb * element};        \
        return copy(#symbol, from, to, in, (int64_t)rows * element, columns, stream);            \
    }
static int copy_vector(const char *function, bool in, int64_t n, int64_t element, struct side from,
                       struct side to, void *stream) {
    if (element <= 0 || n < 0) return COPY_INVALID;
    bool dense = from.pitch == element && to.pitch == element;
    if (dense) from.pitch = to.pitch = n * element;
    return copy(function, from, to, in, dense ? n * element : element, dense ? 1 : n, stream);
}
#define COPY_VECTOR(symbol, in)                                                                   \
    API int symbol(int n, int element, const void *x, int incx, void *y, int incy, void *stream); \
    int symbol(int n, int element, const void *x, int incx, void *y, int incy, void *stream) {    \
        struct side from = {x, (int64_t)incx * element}, to = {y, (int64_t)incy * element};       \
        return copy_vector(#symbol, in, n, element, from, to, stream);                            \
    }

COPY_MATRIX(cublasSetMatrixAsync, true)
COPY_MATRIX(cublasGetMatrixAsync, false)
COPY_VECTOR(cublasSetVectorAsync, true)
COPY_VECTOR(cublasGetVectorAsync, false)

#endif
