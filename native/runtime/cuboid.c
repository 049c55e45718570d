/* Three-dimensional fills, and such copies between devices. Compiled twice. */
#include "default_stream.h"

/* Slices without gaps between them are one tall plane. */
static int is_one_plane(const struct cudaPitchedPtr *to, const struct cudaExtent *extent) {
    return extent->depth == 1 || extent->height == to->ysize;
}

#define FILL(to, value, extent, fill)                                       \
    do {                                                                    \
        if (extent.width == 0 || extent.height == 0 || extent.depth == 0)   \
            return runtime_error(cudaSuccess);                              \
        if (extent.width > to.pitch && extent.height * extent.depth > 1)    \
            return runtime_error(cudaErrorInvalidValue);                    \
        NEED_CONTEXT();                                                     \
        size_t planes = is_one_plane(&to, &extent) ? 1 : extent.depth;      \
        size_t rows = extent.height * extent.depth / planes;                \
        CUresult result = CUDA_SUCCESS;                                     \
        for (size_t z = 0; z < planes && result == CUDA_SUCCESS; z++) {     \
            CUdeviceptr at = (CUdeviceptr)to.ptr + z * to.pitch * to.ysize; \
            result = fill;                                                  \
        }                                                                   \
        return runtime_result(result);                                      \
    } while (0)

API cudaError_t cudaMemset3D(struct cudaPitchedPtr to, int value, struct cudaExtent extent) {
    FILL(to, value, extent,
         SYNCHRONOUS(cuMemsetD2D8, at, to.pitch, (unsigned char)value, extent.width, rows));
}

API cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr to, int value, struct cudaExtent extent,
                                  cudaStream_t stream) {
    FILL(to, value, extent,
         driver.cuMemsetD2D8Async(at, to.pitch, (unsigned char)value, extent.width, rows,
                                  STREAM(stream)));
}

static cudaError_t between(const struct cudaMemcpy3DPeerParms *asked, CUDA_MEMCPY3D_PEER *copy) {
    CUcontext target, source;
    if (!asked) return cudaErrorInvalidValue;
    if (asked->srcArray || asked->dstArray)
        return runtime_refuse("cudaMemcpy3DPeer with arrays", "arrays, textures and surfaces");
    if (!runtime_is_pitch(asked->srcPtr.pitch, asked->srcPos.x + asked->extent.width) ||
        !runtime_is_pitch(asked->dstPtr.pitch, asked->dstPos.x + asked->extent.width))
        return cudaErrorInvalidPitchValue;
    int error = runtime_context();
    if (!error) error = runtime_primary(asked->dstDevice, &target);
    if (!error) error = runtime_primary(asked->srcDevice, &source);
    if (error) return (cudaError_t)error;
    *copy = (CUDA_MEMCPY3D_PEER){
        .srcXInBytes = asked->srcPos.x,
        .srcY = asked->srcPos.y,
        .srcZ = asked->srcPos.z,
        .srcMemoryType = CU_MEMORYTYPE_DEVICE,
        .srcDevice = (CUdeviceptr)asked->srcPtr.ptr,
        .srcContext = source,
        .srcPitch = asked->srcPtr.pitch,
        .srcHeight = asked->srcPtr.ysize,
        .dstXInBytes = asked->dstPos.x,
        .dstY = asked->dstPos.y,
        .dstZ = asked->dstPos.z,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
        .dstDevice = (CUdeviceptr)asked->dstPtr.ptr,
        .dstContext = target,
        .dstPitch = asked->dstPtr.pitch,
        .dstHeight = asked->dstPtr.ysize,
        .WidthInBytes = asked->extent.width,
        .Height = asked->extent.height,
        .Depth = asked->extent.depth,
    };
    return cudaSuccess;
}

API cudaError_t cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms *asked) {
    CUDA_MEMCPY3D_PEER copy;
    cudaError_t error = between(asked, &copy);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(SYNCHRONOUS(cuMemcpy3DPeer, &copy));
}

API cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms *asked,
                                      cudaStream_t stream) {
    CUDA_MEMCPY3D_PEER copy;
    cudaError_t error = between(asked, &copy);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(driver.cuMemcpy3DPeerAsync(&copy, STREAM(stream)));
}
