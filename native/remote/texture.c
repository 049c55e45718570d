/* Texture and surface objects. Their numbers are the server's own: kernels get them as parameters,
 * as they get addresses. */
#define _GNU_SOURCE
#include "client.h"

CUresult call_locate_CUDA_RESOURCE_DESC(struct call *call, const CUDA_RESOURCE_DESC *from,
                                        CUDA_RESOURCE_DESC *to) {
    uint64_t wire;
    CUresult result = CUDA_SUCCESS;
    *to = *from;
    if (from->resType == CU_RESOURCE_TYPE_ARRAY) {
        result = call_handle(call, KIND_array, (uint64_t)(uintptr_t)from->res.array.hArray, &wire);
        to->res.array.hArray = (CUarray)(uintptr_t)wire;
    } else if (from->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
        result = call_handle(call, KIND_mipmapped_array,
                             (uint64_t)(uintptr_t)from->res.mipmap.hMipmappedArray, &wire);
        to->res.mipmap.hMipmappedArray = (CUmipmappedArray)(uintptr_t)wire;
    }
    return result;
}

void call_found_CUDA_RESOURCE_DESC(const struct call *call, CUDA_RESOURCE_DESC *resource) {
    if (resource->resType == CU_RESOURCE_TYPE_ARRAY)
        resource->res.array.hArray = (CUarray)(uintptr_t)handle_found(
            call->link, KIND_array, (uint64_t)(uintptr_t)resource->res.array.hArray);
    if (resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        resource->res.mipmap.hMipmappedArray = (CUmipmappedArray)(uintptr_t)handle_found(
            call->link, KIND_mipmapped_array,
            (uint64_t)(uintptr_t)resource->res.mipmap.hMipmappedArray);
}
