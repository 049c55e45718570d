/* Copies between devices. The header has no per-thread form of the synchronous one. */
#include "runtime.h"

static cudaError_t contexts(int to, int from, CUcontext *to_context, CUcontext *from_context) {
    int error = runtime_context();
    if (!error) error = runtime_primary(to, to_context);
    return error ? (cudaError_t)error : runtime_primary(from, from_context);
}

API cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device,
                               size_t bytes) {
    CUcontext target, source;
    cudaError_t error = contexts(to_device, from_device, &target, &source);
    if (error != cudaSuccess || bytes == 0) return runtime_error(error);
    return runtime_result(
        driver.cuMemcpyPeer((CUdeviceptr)to, target, (CUdeviceptr)from, source, bytes));
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                    size_t bytes, cudaStream_t stream) {
    CUcontext target, source;
    cudaError_t error = contexts(to_device, from_device, &target, &source);
    if (error != cudaSuccess || bytes == 0) return runtime_error(error);
    return runtime_result(driver.cuMemcpyPeerAsync((CUdeviceptr)to, target, (CUdeviceptr)from,
                                                   source, bytes, stream));
}
