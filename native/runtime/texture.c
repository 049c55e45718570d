/* Texture and surface objects. Both APIs use the same numbers; the descriptors differ. Only members
 * of the runtime's that CUDA 12 has too are used: it has none that must be 0. */
#include "channel.h"

#include <stdbool.h>

static cudaError_t resource_of(const struct cudaResourceDesc *asked, CUDA_RESOURCE_DESC *resource) {
    struct channels channels;
    cudaError_t error = cudaSuccess;
    if (!asked) return cudaErrorInvalidValue;
    *resource = (CUDA_RESOURCE_DESC){.resType = (CUresourcetype)asked->resType};
    switch (asked->resType) {
    case cudaResourceTypeArray: resource->res.array.hArray = (CUarray)asked->res.array.array; break;
    case cudaResourceTypeMipmappedArray:
        resource->res.mipmap.hMipmappedArray = (CUmipmappedArray)asked->res.mipmap.mipmap;
        break;
    case cudaResourceTypeLinear:
        error = runtime_channels(&asked->res.linear.desc, &channels);
        if (error != cudaSuccess) return error;
        resource->res.linear.devPtr = (CUdeviceptr)asked->res.linear.devPtr;
        resource->res.linear.format = channels.format;
        resource->res.linear.numChannels = channels.count;
        resource->res.linear.sizeInBytes = asked->res.linear.sizeInBytes;
        break;
    case cudaResourceTypePitch2D:
        error = runtime_channels(&asked->res.pitch2D.desc, &channels);
        if (error != cudaSuccess) return error;
        resource->res.pitch2D.devPtr = (CUdeviceptr)asked->res.pitch2D.devPtr;
        resource->res.pitch2D.format = channels.format;
        resource->res.pitch2D.numChannels = channels.count;
        resource->res.pitch2D.width = asked->res.pitch2D.width;
        resource->res.pitch2D.height = asked->res.pitch2D.height;
        resource->res.pitch2D.pitchInBytes = asked->res.pitch2D.pitchInBytes;
        break;
    default: error = cudaErrorInvalidValue;
    }
    return error;
}

static void resource_asked(const CUDA_RESOURCE_DESC *resource, struct cudaResourceDesc *asked) {
    asked->resType = (enum cudaResourceType)resource->resType;
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        asked->res.array.array = (cudaArray_t)resource->res.array.hArray;
        break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        asked->res.mipmap.mipmap = (cudaMipmappedArray_t)resource->res.mipmap.hMipmappedArray;
        break;
    case CU_RESOURCE_TYPE_LINEAR:
        asked->res.linear.devPtr = (void *)resource->res.linear.devPtr;
        asked->res.linear.desc = runtime_channels_asked(
            (struct channels){resource->res.linear.format, resource->res.linear.numChannels});
        asked->res.linear.sizeInBytes = resource->res.linear.sizeInBytes;
        break;
    case CU_RESOURCE_TYPE_PITCH2D:
        asked->res.pitch2D.devPtr = (void *)resource->res.pitch2D.devPtr;
        asked->res.pitch2D.desc = runtime_channels_asked(
            (struct channels){resource->res.pitch2D.format, resource->res.pitch2D.numChannels});
        asked->res.pitch2D.width = resource->res.pitch2D.width;
        asked->res.pitch2D.height = resource->res.pitch2D.height;
        asked->res.pitch2D.pitchInBytes = resource->res.pitch2D.pitchInBytes;
    }
}

/* Members in the runtime are flags in the driver. */
static CUDA_TEXTURE_DESC reading_of(const struct cudaTextureDesc *asked) {
    CUDA_TEXTURE_DESC how = {
        .filterMode = (CUfilter_mode)asked->filterMode,
        .flags =
            (asked->readMode == cudaReadModeElementType ? CU_TRSF_READ_AS_INTEGER : 0u) |
            (asked->normalizedCoords ? CU_TRSF_NORMALIZED_COORDINATES : 0u) |
            (asked->sRGB ? CU_TRSF_SRGB : 0u) |
            (asked->disableTrilinearOptimization ? CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION : 0u) |
            (asked->seamlessCubemap ? CU_TRSF_SEAMLESS_CUBEMAP : 0u),
        .maxAnisotropy = asked->maxAnisotropy,
        .mipmapFilterMode = (CUfilter_mode)asked->mipmapFilterMode,
        .mipmapLevelBias = asked->mipmapLevelBias,
        .minMipmapLevelClamp = asked->minMipmapLevelClamp,
        .maxMipmapLevelClamp = asked->maxMipmapLevelClamp,
    };
    for (int i = 0; i < 3; i++) how.addressMode[i] = (CUaddress_mode)asked->addressMode[i];
    for (int i = 0; i < 4; i++) how.borderColor[i] = asked->borderColor[i];
    return how;
}

static struct cudaTextureDesc reading_asked(const CUDA_TEXTURE_DESC *how) {
    struct cudaTextureDesc asked = {
        .filterMode = (enum cudaTextureFilterMode)how->filterMode,
        .readMode = how->flags & CU_TRSF_READ_AS_INTEGER ? cudaReadModeElementType
                                                         : cudaReadModeNormalizedFloat,
        .sRGB = !!(how->flags & CU_TRSF_SRGB),
        .normalizedCoords = !!(how->flags & CU_TRSF_NORMALIZED_COORDINATES),
        .maxAnisotropy = how->maxAnisotropy,
        .mipmapFilterMode = (enum cudaTextureFilterMode)how->mipmapFilterMode,
        .mipmapLevelBias = how->mipmapLevelBias,
        .minMipmapLevelClamp = how->minMipmapLevelClamp,
        .maxMipmapLevelClamp = how->maxMipmapLevelClamp,
        .disableTrilinearOptimization = !!(how->flags & CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION),
        .seamlessCubemap = !!(how->flags & CU_TRSF_SEAMLESS_CUBEMAP),
    };
    for (int i = 0; i < 3; i++)
        asked.addressMode[i] = (enum cudaTextureAddressMode)how->addressMode[i];
    for (int i = 0; i < 4; i++) asked.borderColor[i] = how->borderColor[i];
    return asked;
}

static CUresult format_of(const CUDA_RESOURCE_DESC *resource, CUarray_format *format) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Format = CU_AD_FORMAT_FLOAT};
    CUarray array = resource->res.array.hArray;
    CUresult result = CUDA_SUCCESS;
    if (resource->resType == CU_RESOURCE_TYPE_LINEAR)
        descriptor.Format = resource->res.linear.format;
    else if (resource->resType == CU_RESOURCE_TYPE_PITCH2D)
        descriptor.Format = resource->res.pitch2D.format;
    else if (resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        result = driver.cuMipmappedArrayGetLevel(&array, resource->res.mipmap.hMipmappedArray, 0);
    if (array && result == CUDA_SUCCESS && resource->resType <= CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        result = driver.cuArray3DGetDescriptor(&descriptor, array);
    *format = descriptor.Format;
    return result;
}

/* The driver has no errors of its own for readings that the format does not allow. */
static cudaError_t check_reading(const CUDA_RESOURCE_DESC *resource,
                                 const struct cudaTextureDesc *asked) {
    CUarray_format format;
    CUresult result = format_of(resource, &format);
    if (result != CUDA_SUCCESS) return (cudaError_t)result;
    bool integer = format <= CU_AD_FORMAT_SIGNED_INT32;
    bool wide = format == CU_AD_FORMAT_UNSIGNED_INT32 || format == CU_AD_FORMAT_SIGNED_INT32;
    if (wide && asked->readMode == cudaReadModeNormalizedFloat) return cudaErrorInvalidNormSetting;
    if (integer && asked->readMode == cudaReadModeElementType &&
        asked->filterMode == cudaFilterModeLinear && resource->resType != CU_RESOURCE_TYPE_LINEAR)
        return cudaErrorInvalidFilterSetting;
    return cudaSuccess;
}

static CUDA_RESOURCE_VIEW_DESC view_of(const struct cudaResourceViewDesc *asked) {
    return (CUDA_RESOURCE_VIEW_DESC){
        .format = (CUresourceViewFormat)asked->format,
        .width = asked->width,
        .height = asked->height,
        .depth = asked->depth,
        .firstMipmapLevel = asked->firstMipmapLevel,
        .lastMipmapLevel = asked->lastMipmapLevel,
        .firstLayer = asked->firstLayer,
        .lastLayer = asked->lastLayer,
    };
}

API cudaError_t cudaCreateTextureObject(cudaTextureObject_t *texture,
                                        const struct cudaResourceDesc *asked_resource,
                                        const struct cudaTextureDesc *asked_reading,
                                        const struct cudaResourceViewDesc *asked_view) {
    CUDA_RESOURCE_DESC resource;
    CUDA_RESOURCE_VIEW_DESC view;
    if (!texture || !asked_reading) return runtime_error(cudaErrorInvalidValue);
    cudaError_t error = resource_of(asked_resource, &resource);
    if (error != cudaSuccess) return runtime_error(error);
    CUDA_TEXTURE_DESC how = reading_of(asked_reading);
    NEED_CONTEXT();
    if (asked_view) view = view_of(asked_view);
    if (!asked_view || asked_view->format == cudaResViewFormatNone)
        error = check_reading(&resource, asked_reading);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(
        driver.cuTexObjectCreate(texture, &resource, &how, asked_view ? &view : NULL));
}

API cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t *surface,
                                        const struct cudaResourceDesc *asked) {
    CUDA_RESOURCE_DESC resource;
    if (!surface) return runtime_error(cudaErrorInvalidValue);
    cudaError_t error = resource_of(asked, &resource);
    if (error != cudaSuccess) return runtime_error(error);
    if (resource.resType != CU_RESOURCE_TYPE_ARRAY) return runtime_error(cudaErrorInvalidValue);
    if (!resource.res.array.hArray) return runtime_error(cudaErrorInvalidResourceHandle);
    NEED_CONTEXT();
    return runtime_result(driver.cuSurfObjectCreate(surface, &resource));
}

/* ---- queries of objects ---- */

API cudaError_t cudaGetTextureObjectResourceDesc(struct cudaResourceDesc *out,
                                                 cudaTextureObject_t texture) {
    CUDA_RESOURCE_DESC resource;
    if (!out) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    CUresult result = driver.cuTexObjectGetResourceDesc(&resource, texture);
    if (result == CUDA_SUCCESS) resource_asked(&resource, out);
    return runtime_result(result);
}

API cudaError_t cudaGetSurfaceObjectResourceDesc(struct cudaResourceDesc *out,
                                                 cudaSurfaceObject_t surface) {
    CUDA_RESOURCE_DESC resource;
    if (!out) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    CUresult result = driver.cuSurfObjectGetResourceDesc(&resource, surface);
    if (result == CUDA_SUCCESS) resource_asked(&resource, out);
    return runtime_result(result);
}

API cudaError_t cudaGetTextureObjectTextureDesc(struct cudaTextureDesc *out,
                                                cudaTextureObject_t texture) {
    CUDA_TEXTURE_DESC how;
    if (!out) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    CUresult result = driver.cuTexObjectGetTextureDesc(&how, texture);
    if (result == CUDA_SUCCESS) *out = reading_asked(&how);
    return runtime_result(result);
}

API cudaError_t cudaGetTextureObjectResourceViewDesc(struct cudaResourceViewDesc *out,
                                                     cudaTextureObject_t texture) {
    CUDA_RESOURCE_VIEW_DESC view;
    if (!out) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    CUresult result = driver.cuTexObjectGetResourceViewDesc(&view, texture);
    if (result != CUDA_SUCCESS) return runtime_result(result);
    out->format = (enum cudaResourceViewFormat)view.format;
    out->width = view.width;
    out->height = view.height;
    out->depth = view.depth;
    out->firstMipmapLevel = view.firstMipmapLevel;
    out->lastMipmapLevel = view.lastMipmapLevel;
    out->firstLayer = view.firstLayer;
    out->lastLayer = view.lastLayer;
    return cudaSuccess;
}
