/* What no table can say of cuBLAS: copies of vectors and matrices, which are the driver's copies of
 * rows, and the names of statuses. */
#include "client.h"
#include "cublas_status.h"

API const char *cublasGetStatusName(int status);
API const char *cublasGetStatusString(int status);
const char *cublasGetStatusName(int status) { return cublas_status_name(status); }
const char *cublasGetStatusString(int status) { return cublas_status_name(status); }

/* One side of a copy: where, and bytes from one row to the next. */
struct side {
    const void *at;
    int64_t pitch;
};

static int copy(const char *function, struct side from, struct side to, bool in, int64_t width,
                int64_t rows, void *stream) {
    CUresult result = library_ready();
    if (result != CUDA_SUCCESS) return library_failed(function, result);
    INVALID_IF(width < 0 || rows < 0 || from.pitch < width || to.pitch < width);
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
    result = remote->copy_rows(&plan, stream);
    return result == CUDA_SUCCESS ? 0 : library_failed(function, result);
}

/* A matrix is stored by columns: each is a row of the copy. A vector's elements are rows. */
#define MATRIX(symbol, in)                                                                       \
    API int symbol(int rows, int columns, int element, const void *a, int lda, void *b, int ldb, \
                   void *stream);                                                                \
    int symbol(int rows, int columns, int element, const void *a, int lda, void *b, int ldb,     \
               void *stream) {                                                                   \
        INVALID_IF(element <= 0);                                                                \
        struct side from = {a, (int64_t)lda * element}, to = {b, (int64_t)ldb * element};        \
        return copy(#symbol, from, to, in, (int64_t)rows * element, columns, stream);            \
    }
static int copy_vector(const char *function, bool in, int64_t n, int64_t element, struct side from,
                       struct side to, void *stream) {
    INVALID_IF(element <= 0 || n < 0);
    bool dense = from.pitch == element && to.pitch == element;
    if (dense) from.pitch = to.pitch = n * element;
    return copy(function, from, to, in, dense ? n * element : element, dense ? 1 : n, stream);
}
#define VECTOR(symbol, in)                                                                        \
    API int symbol(int n, int element, const void *x, int incx, void *y, int incy, void *stream); \
    int symbol(int n, int element, const void *x, int incx, void *y, int incy, void *stream) {    \
        struct side from = {x, (int64_t)incx * element}, to = {y, (int64_t)incy * element};       \
        return copy_vector(#symbol, in, n, element, from, to, stream);                            \
    }

MATRIX(cublasSetMatrixAsync, true)
MATRIX(cublasGetMatrixAsync, false)
VECTOR(cublasSetVectorAsync, true)
VECTOR(cublasGetVectorAsync, false)
