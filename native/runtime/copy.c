/* Copies and fills. Compiled twice. */
#include "default_stream.h"

API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    if (!runtime_is_kind(kind)) return runtime_error(cudaErrorInvalidMemcpyDirection);
    NEED_CONTEXT();
    if (bytes == 0) return cudaSuccess;
    return runtime_result(SYNCHRONOUS(cuMemcpy, (CUdeviceptr)to, (CUdeviceptr)from, bytes));
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                cudaStream_t stream) {
    if (!runtime_is_kind(kind)) return runtime_error(cudaErrorInvalidMemcpyDirection);
    NEED_CONTEXT();
    if (bytes == 0) return cudaSuccess;
    return runtime_result(
        driver.cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, STREAM(stream)));
}

/* ---- two and three dimensions ---- */

struct plane {
    CUdeviceptr address;
    size_t pitch;
};

static CUDA_MEMCPY2D rectangle(struct plane to, struct plane from, size_t width, size_t height,
                               enum cudaMemcpyKind kind) {
    return (CUDA_MEMCPY2D){
        .srcMemoryType = runtime_source_type(kind),
        .srcHost = (const void *)from.address,
        .srcDevice = from.address,
        .srcPitch = from.pitch,
        .dstMemoryType = runtime_target_type(kind),
        .dstHost = (void *)to.address,
        .dstDevice = to.address,
        .dstPitch = to.pitch,
        .WidthInBytes = width,
        .Height = height,
    };
}

static cudaError_t check_2d(size_t to_pitch, size_t from_pitch, size_t width,
                            enum cudaMemcpyKind kind) {
    if (!runtime_is_kind(kind)) return cudaErrorInvalidMemcpyDirection;
    return runtime_is_pitch(to_pitch, width) && runtime_is_pitch(from_pitch, width)
               ? cudaSuccess
               : cudaErrorInvalidPitchValue;
}

API cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                             size_t width, size_t height, enum cudaMemcpyKind kind) {
    cudaError_t error = check_2d(to_pitch, from_pitch, width, kind);
    if (error != cudaSuccess) return runtime_error(error);
    NEED_CONTEXT();
    if (width == 0 || height == 0) return cudaSuccess;
    CUDA_MEMCPY2D copy =
        rectangle((struct plane){(CUdeviceptr)to, to_pitch},
                  (struct plane){(CUdeviceptr)from, from_pitch}, width, height, kind);
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    return runtime_result(waited(driver.cuMemcpy2DAsync(&copy, CU_STREAM_PER_THREAD)));
#else
    return runtime_result(driver.cuMemcpy2DUnaligned(&copy)); /* the runtime takes every pitch */
#endif
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                  size_t width, size_t height, enum cudaMemcpyKind kind,
                                  cudaStream_t stream) {
    cudaError_t error = check_2d(to_pitch, from_pitch, width, kind);
    if (error != cudaSuccess) return runtime_error(error);
    NEED_CONTEXT();
    if (width == 0 || height == 0) return cudaSuccess;
    CUDA_MEMCPY2D copy =
        rectangle((struct plane){(CUdeviceptr)to, to_pitch},
                  (struct plane){(CUdeviceptr)from, from_pitch}, width, height, kind);
    return runtime_result(driver.cuMemcpy2DAsync(&copy, STREAM(stream)));
}

API cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms *asked) {
    CUDA_MEMCPY3D copy;
    cudaError_t error = runtime_volume(asked, &copy);
    if (error != cudaSuccess) return runtime_error(error);
    NEED_CONTEXT();
    return runtime_result(SYNCHRONOUS(cuMemcpy3D, &copy));
}

API cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *asked, cudaStream_t stream) {
    CUDA_MEMCPY3D copy;
    cudaError_t error = runtime_volume(asked, &copy);
    if (error != cudaSuccess) return runtime_error(error);
    NEED_CONTEXT();
    return runtime_result(driver.cuMemcpy3DAsync(&copy, STREAM(stream)));
}

/* ---- variables: they are on the device, so only some kinds are allowed ---- */

static cudaError_t to_variable(const void *symbol, size_t offset, size_t bytes,
                               enum cudaMemcpyKind kind, void **to) {
    if (!runtime_is_kind(kind) || runtime_target_type(kind) == CU_MEMORYTYPE_HOST)
        return cudaErrorInvalidMemcpyDirection;
    return runtime_variable_begin(symbol, offset, bytes, to);
}

static cudaError_t from_variable(const void *symbol, size_t offset, size_t bytes,
                                 enum cudaMemcpyKind kind, void **from) {
    if (!runtime_is_kind(kind) || runtime_source_type(kind) == CU_MEMORYTYPE_HOST)
        return cudaErrorInvalidMemcpyDirection;
    return runtime_variable_begin(symbol, offset, bytes, from);
}

static cudaError_t copied(const void *symbol, cudaError_t error) {
    runtime_variable_end(symbol);
    return error;
}

API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes,
                                   size_t offset, enum cudaMemcpyKind kind) {
    void *to;
    cudaError_t error = to_variable(symbol, offset, bytes, kind, &to);
    return error == cudaSuccess ? copied(symbol, cudaMemcpy(to, from, bytes, kind))
                                : runtime_error(error);
}

API cudaError_t cudaMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset,
                                     enum cudaMemcpyKind kind) {
    void *from;
    cudaError_t error = from_variable(symbol, offset, bytes, kind, &from);
    return error == cudaSuccess ? copied(symbol, cudaMemcpy(to, from, bytes, kind))
                                : runtime_error(error);
}

API cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes,
                                        size_t offset, enum cudaMemcpyKind kind,
                                        cudaStream_t stream) {
    void *to;
    cudaError_t error = to_variable(symbol, offset, bytes, kind, &to);
    return error == cudaSuccess ? copied(symbol, cudaMemcpyAsync(to, from, bytes, kind, stream))
                                : runtime_error(error);
}

API cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset,
                                          enum cudaMemcpyKind kind, cudaStream_t stream) {
    void *from;
    cudaError_t error = from_variable(symbol, offset, bytes, kind, &from);
    return error == cudaSuccess ? copied(symbol, cudaMemcpyAsync(to, from, bytes, kind, stream))
                                : runtime_error(error);
}

/* ---- fills ---- */

API cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    NEED_CONTEXT();
    if (bytes == 0) return cudaSuccess;
    return runtime_result(SYNCHRONOUS(cuMemsetD8, (CUdeviceptr)to, (unsigned char)value, bytes));
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    NEED_CONTEXT();
    if (bytes == 0) return cudaSuccess;
    return runtime_result(
        driver.cuMemsetD8Async((CUdeviceptr)to, (unsigned char)value, bytes, STREAM(stream)));
}

API cudaError_t cudaMemset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
    NEED_CONTEXT();
    if (width == 0 || height == 0) return cudaSuccess;
    if (width > pitch && height > 1) return runtime_error(cudaErrorInvalidValue);
    return runtime_result(
        SYNCHRONOUS(cuMemsetD2D8, (CUdeviceptr)to, pitch, (unsigned char)value, width, height));
}

API cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height,
                                  cudaStream_t stream) {
    NEED_CONTEXT();
    if (width == 0 || height == 0) return cudaSuccess;
    if (width > pitch && height > 1) return runtime_error(cudaErrorInvalidValue);
    return runtime_result(driver.cuMemsetD2D8Async((CUdeviceptr)to, pitch, (unsigned char)value,
                                                   width, height, STREAM(stream)));
}
