/* Texture and surface objects. Kernels get their numbers as parameters. */
#include "cuda_api.h"
#include "graph.h"

static struct texture *object(unsigned long long number) {
    return (struct texture *)(uintptr_t)number;
}

API CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource,
                               const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view) {
    NEED_CONTEXT(context);
    NEED(out && resource && how);
    struct texture *texture;
    CUresult result = texture_create(context, resource, how, view, &texture);
    if (result == CUDA_SUCCESS) *out = (uintptr_t)texture;
    return result;
}

API CUresult cuTexObjectDestroy(CUtexObject number) {
    NEED_CONTEXT(context);
    NEED_HANDLE(object(number), HANDLE_TEXTURE);
    CUresult allowed = capture_unsafe_call();
    return allowed == CUDA_SUCCESS ? texture_destroy(object(number)) : allowed;
}

API CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject number) {
    NEED_CONTEXT(context);
    NEED(out);
    NEED_HANDLE(object(number), HANDLE_TEXTURE);
    *out = object(number)->resource;
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject number) {
    NEED_CONTEXT(context);
    NEED(out);
    NEED_HANDLE(object(number), HANDLE_TEXTURE);
    *out = object(number)->how;
    return CUDA_SUCCESS;
}

API CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject number) {
    NEED_CONTEXT(context);
    NEED(out);
    NEED_HANDLE(object(number), HANDLE_TEXTURE);
    if (!object(number)->has_view) return CUDA_ERROR_INVALID_VALUE;
    *out = object(number)->view;
    return CUDA_SUCCESS;
}

API CUresult cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource) {
    NEED_CONTEXT(context);
    NEED(out && resource);
    struct texture *surface;
    CUresult result = surface_create(context, resource, &surface);
    if (result == CUDA_SUCCESS) *out = (uintptr_t)surface;
    return result;
}

API CUresult cuSurfObjectDestroy(CUsurfObject number) {
    NEED_CONTEXT(context);
    NEED_HANDLE(object(number), HANDLE_SURFACE);
    CUresult allowed = capture_unsafe_call();
    return allowed == CUDA_SUCCESS ? texture_destroy(object(number)) : allowed;
}

API CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject number) {
    NEED_CONTEXT(context);
    NEED(out);
    NEED_HANDLE(object(number), HANDLE_SURFACE);
    *out = object(number)->resource;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *out, CUarray_format format,
                                                unsigned channels, CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    if (array_format_bytes(format) == 0 || (channels != 1 && channels != 2 && channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    *out = (size_t)array_limit(CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH);
    return CUDA_SUCCESS;
}
