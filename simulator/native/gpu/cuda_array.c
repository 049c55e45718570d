/* Creation and queries of arrays and mipmaps. */
#include "cuda_api.h"
#include "graph.h"

#include <string.h>

#define ARRAY_ALIGNMENT 65536u

API CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    NEED_CONTEXT(context);
    NEED(out && descriptor);
    CUresult allowed = capture_unsafe_call();
    if (allowed != CUDA_SUCCESS) return allowed;
    struct array *array;
    CUresult result = array_create(context, descriptor, &array);
    if (result == CUDA_SUCCESS) *out = (CUarray)array;
    return result;
}

API CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *descriptor) {
    NEED(descriptor);
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = descriptor->Width,
                                    .Height = descriptor->Height,
                                    .Format = descriptor->Format,
                                    .NumChannels = descriptor->NumChannels};
    return cuArray3DCreate(out, &full);
}

API CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle) {
    NEED_CONTEXT(context);
    NEED(out);
    NEED_HANDLE(handle, HANDLE_ARRAY);
    *out = ((const struct array *)handle)->descriptor;
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR *out, CUarray handle) {
    NEED_CONTEXT(context);
    NEED(out);
    NEED_HANDLE(handle, HANDLE_ARRAY);
    const CUDA_ARRAY3D_DESCRIPTOR *full = &((const struct array *)handle)->descriptor;
    *out = (CUDA_ARRAY_DESCRIPTOR){.Width = full->Width,
                                   .Height = full->Height,
                                   .Format = full->Format,
                                   .NumChannels = full->NumChannels};
    return CUDA_SUCCESS;
}

API CUresult cuArrayDestroy(CUarray handle) {
    NEED_CONTEXT(context);
    NEED_HANDLE(handle, HANDLE_ARRAY);
    struct array *array = (struct array *)handle;
    if (array->of_mipmap) return CUDA_ERROR_INVALID_HANDLE;
    CUresult allowed = capture_unsafe_call();
    if (allowed != CUDA_SUCCESS) return allowed;
    CUresult result = context_synchronize(array->context);
    array_destroy(array);
    return result;
}

/* Only for arrays whose memory is mapped later, as in the driver. */
static void requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, size_t bytes) {
    memset(out, 0, sizeof *out);
    out->size = (bytes + ARRAY_ALIGNMENT - 1) / ARRAY_ALIGNMENT * ARRAY_ALIGNMENT;
    out->alignment = ARRAY_ALIGNMENT;
}

API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle,
                                          CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    NEED_HANDLE(handle, HANDLE_ARRAY);
    const struct array *array = (const struct array *)handle;
    if (!(array->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING)) return CUDA_ERROR_INVALID_VALUE;
    requirements(out, array->bytes);
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out,
                                                   CUmipmappedArray handle, CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    NEED_HANDLE(handle, HANDLE_MIPMAP);
    const struct mipmap *mipmap = (const struct mipmap *)handle;
    if (!(mipmap->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING))
        return CUDA_ERROR_INVALID_VALUE;
    requirements(out, mipmap->bytes);
    return CUDA_SUCCESS;
}

/* For arrays with several planes; none are simulated. */
API CUresult cuArrayGetPlane(CUarray *out, CUarray handle, unsigned int plane) {
    (void)plane;
    NEED(out);
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_ARRAY);
    return CUDA_ERROR_INVALID_VALUE;
}

/* For sparse arrays; none are simulated. */
API CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray handle) {
    NEED(out);
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_ARRAY);
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out,
                                                 CUmipmappedArray handle) {
    NEED(out);
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_MIPMAP);
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out,
                                    const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                    unsigned int levels) {
    NEED_CONTEXT(context);
    NEED(out && descriptor);
    CUresult allowed = capture_unsafe_call();
    if (allowed != CUDA_SUCCESS) return allowed;
    struct mipmap *mipmap;
    CUresult result = mipmap_create(context, descriptor, levels, &mipmap);
    if (result == CUDA_SUCCESS) *out = (CUmipmappedArray)mipmap;
    return result;
}

API CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned int level) {
    NEED_CONTEXT(context);
    NEED(out);
    NEED_HANDLE(handle, HANDLE_MIPMAP);
    struct mipmap *mipmap = (struct mipmap *)handle;
    if (level >= mipmap->level_count) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUarray)&mipmap->levels[level];
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
    NEED_CONTEXT(context);
    NEED_HANDLE(handle, HANDLE_MIPMAP);
    CUresult allowed = capture_unsafe_call();
    if (allowed != CUDA_SUCCESS) return allowed;
    CUresult result = context_synchronize(((struct mipmap *)handle)->context);
    mipmap_destroy((struct mipmap *)handle);
    return result;
}
