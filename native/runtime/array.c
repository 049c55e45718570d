/* Arrays and mipmaps. Both APIs use the same objects. */
#include "channel.h"

static cudaError_t descriptor_of(const struct cudaChannelFormatDesc *format,
                                 struct cudaExtent extent, unsigned flags,
                                 CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    struct channels channels;
    cudaError_t error = runtime_channels(format, &channels);
    if (error != cudaSuccess) return error;
    *descriptor = (CUDA_ARRAY3D_DESCRIPTOR){
        .Width = extent.width,
        .Height = extent.height,
        .Depth = extent.depth,
        .Format = channels.format,
        .NumChannels = channels.count,
        .Flags = flags,
    };
    return cudaSuccess;
}

API cudaError_t cudaMalloc3DArray(cudaArray_t *array, const struct cudaChannelFormatDesc *format,
                                  struct cudaExtent extent, unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    if (!array) return runtime_error(cudaErrorInvalidValue);
    cudaError_t error = descriptor_of(format, extent, flags, &descriptor);
    if (error != cudaSuccess) return runtime_error(error);
    NEED_CONTEXT();
    return runtime_result(driver.cuArray3DCreate((CUarray *)array, &descriptor));
}

API cudaError_t cudaMallocArray(cudaArray_t *array, const struct cudaChannelFormatDesc *format,
                                size_t width, size_t height, unsigned flags) {
    return cudaMalloc3DArray(array, format, (struct cudaExtent){width, height, 0}, flags);
}

API cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t *mipmap,
                                         const struct cudaChannelFormatDesc *format,
                                         struct cudaExtent extent, unsigned levels,
                                         unsigned flags) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    if (!mipmap) return runtime_error(cudaErrorInvalidValue);
    cudaError_t error = descriptor_of(format, extent, flags, &descriptor);
    if (error != cudaSuccess) return runtime_error(error);
    NEED_CONTEXT();
    return runtime_result(
        driver.cuMipmappedArrayCreate((CUmipmappedArray *)mipmap, &descriptor, levels));
}

API cudaError_t cudaFreeArray(cudaArray_t array) {
    NEED_CONTEXT();
    return array ? runtime_result(driver.cuArrayDestroy((CUarray)array)) : cudaSuccess;
}

API cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t mipmap) {
    NEED_CONTEXT();
    return mipmap ? runtime_result(driver.cuMipmappedArrayDestroy((CUmipmappedArray)mipmap))
                  : cudaSuccess;
}

API cudaError_t cudaArrayGetInfo(struct cudaChannelFormatDesc *format, struct cudaExtent *extent,
                                 unsigned *flags, cudaArray_t array) {
    CUDA_ARRAY3D_DESCRIPTOR found;
    NEED_CONTEXT();
    CUresult result = driver.cuArray3DGetDescriptor(&found, (CUarray)array);
    if (result != CUDA_SUCCESS) return runtime_result(result);
    if (format)
        *format = runtime_channels_asked((struct channels){found.Format, found.NumChannels});
    if (extent) *extent = (struct cudaExtent){found.Width, found.Height, found.Depth};
    if (flags) *flags = found.Flags;
    return cudaSuccess;
}

API cudaError_t cudaGetChannelDesc(struct cudaChannelFormatDesc *format, cudaArray_const_t array) {
    if (!format) return runtime_error(cudaErrorInvalidValue);
    return cudaArrayGetInfo(format, NULL, NULL, (cudaArray_t)array);
}

API cudaError_t cudaDeviceGetTexture1DLinearMaxWidth(size_t *width,
                                                     const struct cudaChannelFormatDesc *format,
                                                     int device) {
    struct channels channels;
    cudaError_t error = runtime_channels(format, &channels);
    if (error != cudaSuccess) return runtime_error(error);
    NEED_DRIVER();
    return runtime_result(
        driver.cuDeviceGetTexture1DLinearMaxWidth(width, channels.format, channels.count, device));
}
