/* cuBLAS's copies of vectors and matrices, as the driver's copies of rows. The including file has
 * `copy_rows`, which makes one and returns a status, and `copies_done`, which waits for those of
 * the default stream; it exports the functions defined here. */
#ifndef EGPU_LIBRARIES_CUBLAS_COPIES_H
#define EGPU_LIBRARIES_CUBLAS_COPIES_H

enum { COPY_INVALID = 7 }; /* CUBLAS_STATUS_INVALID_VALUE */

static int copy_rows(const char *function, const CUDA_MEMCPY2D *plan, CUstream stream);
static int copies_done(const char *function);

/* One side of a copy: its address, and the bytes from one row to the next. */
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

/* Return the bytes; on overflow a negative number, which no copy accepts. */
static int64_t bytes_of(int64_t elements, int64_t element) {
    int64_t bytes;
    return __builtin_mul_overflow(elements, element, &bytes) ? -1 : bytes;
}

static int copy_matrix(const char *function, bool in, int64_t rows, int64_t columns,
                       int64_t element, struct side from, struct side to, void *stream) {
    if (element <= 0) return COPY_INVALID;
    return copy(function, from, to, in, bytes_of(rows, element), columns, stream);
}
static int copy_vector(const char *function, bool in, int64_t n, int64_t element, struct side from,
                       struct side to, void *stream) {
    if (element <= 0 || n < 0) return COPY_INVALID;
    bool dense = from.pitch == element && to.pitch == element;
    if (dense) from.pitch = to.pitch = bytes_of(n, element);
    return copy(function, from, to, in, dense ? from.pitch : element, dense ? 1 : n, stream);
}

/* A matrix is stored by columns: each is a row of the copy. A vector's elements are rows. */
#define COPY_MATRIX(symbol, in, size)                                                             \
    API int symbol(size rows, size columns, size element, const void *a, size lda, void *b,       \
                   size ldb, void *stream);                                                       \
    int symbol(size rows, size columns, size element, const void *a, size lda, void *b, size ldb, \
               void *stream) {                                                                    \
        struct side from = {a, bytes_of(lda, element)}, to = {b, bytes_of(ldb, element)};         \
        return copy_matrix(#symbol, in, rows, columns, element, from, to, stream);                \
    }
#define COPY_VECTOR(symbol, in, size)                                                              \
    API int symbol(size n, size element, const void *x, size incx, void *y, size incy,             \
                   void *stream);                                                                  \
    int symbol(size n, size element, const void *x, size incx, void *y, size incy, void *stream) { \
        struct side from = {x, bytes_of(incx, element)}, to = {y, bytes_of(incy, element)};        \
        return copy_vector(#symbol, in, n, element, from, to, stream);                             \
    }

/* A function that returns when the copy is done. */
#define AND_WAIT_MATRIX(symbol, async, size)                                                \
    API int symbol(size rows, size columns, size element, const void *a, size lda, void *b, \
                   size ldb);                                                               \
    int symbol(size rows, size columns, size element, const void *a, size lda, void *b,     \
               size ldb) {                                                                  \
        int status = async(rows, columns, element, a, lda, b, ldb, NULL);                   \
        return status == 0 ? copies_done(#symbol) : status;                                 \
    }
#define AND_WAIT_VECTOR(symbol, async, size)                                            \
    API int symbol(size n, size element, const void *x, size incx, void *y, size incy); \
    int symbol(size n, size element, const void *x, size incx, void *y, size incy) {    \
        int status = async(n, element, x, incx, y, incy, NULL);                         \
        return status == 0 ? copies_done(#symbol) : status;                             \
    }

COPY_MATRIX(cublasSetMatrixAsync, true, int)
COPY_MATRIX(cublasGetMatrixAsync, false, int)
COPY_VECTOR(cublasSetVectorAsync, true, int)
COPY_VECTOR(cublasGetVectorAsync, false, int)
COPY_MATRIX(cublasSetMatrixAsync_64, true, int64_t)
COPY_MATRIX(cublasGetMatrixAsync_64, false, int64_t)
COPY_VECTOR(cublasSetVectorAsync_64, true, int64_t)
COPY_VECTOR(cublasGetVectorAsync_64, false, int64_t)
AND_WAIT_MATRIX(cublasSetMatrix, cublasSetMatrixAsync, int)
AND_WAIT_MATRIX(cublasGetMatrix, cublasGetMatrixAsync, int)
AND_WAIT_VECTOR(cublasSetVector, cublasSetVectorAsync, int)
AND_WAIT_VECTOR(cublasGetVector, cublasGetVectorAsync, int)
AND_WAIT_MATRIX(cublasSetMatrix_64, cublasSetMatrixAsync_64, int64_t)
AND_WAIT_MATRIX(cublasGetMatrix_64, cublasGetMatrixAsync_64, int64_t)
AND_WAIT_VECTOR(cublasSetVector_64, cublasSetVectorAsync_64, int64_t)
AND_WAIT_VECTOR(cublasGetVector_64, cublasGetVectorAsync_64, int64_t)

#endif
