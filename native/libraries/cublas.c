/* Functions of cuBLAS that the tables cannot express: copies, and names of statuses. */
#include "client.h"
#include "cublas_copies.h"
#include "cublas_status.h"

API const char *cublasGetStatusName(int status);
API const char *cublasGetStatusString(int status);
const char *cublasGetStatusName(int status) { return cublas_status_name(status); }
const char *cublasGetStatusString(int status) { return cublas_status_name(status); }

static int copy_rows(const char *function, const CUDA_MEMCPY2D *plan, CUstream stream) {
    CUresult result = library_ready();
    if (result == CUDA_SUCCESS) result = remote->copy_rows(plan, stream);
    return result == CUDA_SUCCESS ? 0 : library_failed(function, result);
}

static int copies_done(const char *function) {
    CUresult result = remote->wait(NULL);
    return result == CUDA_SUCCESS ? 0 : library_failed(function, result);
}
