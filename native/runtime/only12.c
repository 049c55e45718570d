/* Functions that only CUDA 12 has, or that it has with other parameters. The runtime's header is
 * not included: it declares those of CUDA 13. */
#include <stdint.h>

#include "driver.h"
#include "major.h"

#define FUNCTION(name, parameters) \
    API int name parameters;       \
    int name parameters

#if EGPU_CUDART_MAJOR == 12

int cudaDeviceReset(void);
FUNCTION(cudaThreadExit, (void)) { return cudaDeviceReset(); }

/* For devices without double precision, which no longer exist. */
FUNCTION(cudaSetDoubleForDevice, (double *number)) { return (void)number, 0; }
FUNCTION(cudaSetDoubleForHost, (double *number)) { return (void)number, 0; }

/* From the first to the second: CUDA 13 swaps them, as the driver does. */
FUNCTION(cudaGraphKernelNodeCopyAttributes, (CUgraphNode from, CUgraphNode to)) {
    NEED_CONTEXT();
    return runtime_result(driver.cuGraphKernelNodeCopyAttributes(to, from));
}

/* It also returned the failed copy's index, which is not known here. */
static int volumes(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                   unsigned long long flags, CUstream stream) {
    NEED_CONTEXT();
    if (failed) *failed = SIZE_MAX;
    return runtime_result(driver.cuMemcpy3DBatchAsync(count, list, flags, stream));
}

FUNCTION(cudaMemcpy3DBatchAsync, (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                                  unsigned long long flags, CUstream stream)) {
    return volumes(count, list, failed, flags, stream);
}
FUNCTION(cudaMemcpy3DBatchAsync_ptsz, (size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                                       unsigned long long flags, CUstream stream)) {
    return volumes(count, list, failed, flags, (CUstream)stream_of(stream));
}

static int batch(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                 CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                 size_t *failed, CUstream stream) {
    NEED_CONTEXT();
    if (failed) *failed = SIZE_MAX;
    return runtime_result(driver.cuMemcpyBatchAsync(to, from, bytes, count, attributes, starts,
                                                    attribute_count, stream));
}

#define BATCH                                                                                   \
    CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,                            \
        CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count, size_t *failed, \
        CUstream stream

FUNCTION(cudaMemcpyBatchAsync, (BATCH)) {
    return batch(to, from, bytes, count, attributes, starts, attribute_count, failed, stream);
}
FUNCTION(cudaMemcpyBatchAsync_ptsz, (BATCH)) {
    return batch(to, from, bytes, count, attributes, starts, attribute_count, failed,
                 (CUstream)stream_of(stream));
}

#endif
