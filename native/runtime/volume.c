/* What a copy of the runtime's API is to the driver. */
#include "runtime.h"

int runtime_is_kind(enum cudaMemcpyKind kind) {
    return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

CUmemorytype runtime_source_type(enum cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return CU_MEMORYTYPE_UNIFIED;
    return kind == cudaMemcpyHostToHost || kind == cudaMemcpyHostToDevice ? CU_MEMORYTYPE_HOST
                                                                          : CU_MEMORYTYPE_DEVICE;
}

CUmemorytype runtime_target_type(enum cudaMemcpyKind kind) {
    if (kind == cudaMemcpyDefault) return CU_MEMORYTYPE_UNIFIED;
    return kind == cudaMemcpyHostToHost || kind == cudaMemcpyDeviceToHost ? CU_MEMORYTYPE_HOST
                                                                          : CU_MEMORYTYPE_DEVICE;
}

cudaError_t runtime_volume(const struct cudaMemcpy3DParms *asked, CUDA_MEMCPY3D *copy) {
    if (!asked) return cudaErrorInvalidValue;
    if (!runtime_is_kind(asked->kind)) return cudaErrorInvalidMemcpyDirection;
    if (asked->srcArray || asked->dstArray)
        return runtime_refuse("cudaMemcpy3D with arrays", "arrays, textures and surfaces");
    *copy = (CUDA_MEMCPY3D){
        .srcXInBytes = asked->srcPos.x,
        .srcY = asked->srcPos.y,
        .srcZ = asked->srcPos.z,
        .srcMemoryType = runtime_source_type(asked->kind),
        .srcHost = asked->srcPtr.ptr,
        .srcDevice = (CUdeviceptr)asked->srcPtr.ptr,
        .srcPitch = asked->srcPtr.pitch,
        .srcHeight = asked->srcPtr.ysize,
        .dstXInBytes = asked->dstPos.x,
        .dstY = asked->dstPos.y,
        .dstZ = asked->dstPos.z,
        .dstMemoryType = runtime_target_type(asked->kind),
        .dstHost = asked->dstPtr.ptr,
        .dstDevice = (CUdeviceptr)asked->dstPtr.ptr,
        .dstPitch = asked->dstPtr.pitch,
        .dstHeight = asked->dstPtr.ysize,
        .WidthInBytes = asked->extent.width,
        .Height = asked->extent.height,
        .Depth = asked->extent.depth,
    };
    return cudaSuccess;
}

static enum cudaMemcpyKind kind_of(CUmemorytype from, CUmemorytype to) {
    if (from == CU_MEMORYTYPE_UNIFIED || to == CU_MEMORYTYPE_UNIFIED) return cudaMemcpyDefault;
    if (from == CU_MEMORYTYPE_HOST)
        return to == CU_MEMORYTYPE_HOST ? cudaMemcpyHostToHost : cudaMemcpyHostToDevice;
    return to == CU_MEMORYTYPE_HOST ? cudaMemcpyDeviceToHost : cudaMemcpyDeviceToDevice;
}

struct cudaMemcpy3DParms runtime_volume_asked(const CUDA_MEMCPY3D *copy) {
    const void *from =
        copy->srcMemoryType == CU_MEMORYTYPE_HOST ? copy->srcHost : (const void *)copy->srcDevice;
    void *to = copy->dstMemoryType == CU_MEMORYTYPE_HOST ? copy->dstHost : (void *)copy->dstDevice;
    return (struct cudaMemcpy3DParms){
        .srcPos = {copy->srcXInBytes, copy->srcY, copy->srcZ},
        .srcPtr = {(void *)from, copy->srcPitch, copy->WidthInBytes, copy->srcHeight},
        .dstPos = {copy->dstXInBytes, copy->dstY, copy->dstZ},
        .dstPtr = {to, copy->dstPitch, copy->WidthInBytes, copy->dstHeight},
        .extent = {copy->WidthInBytes, copy->Height, copy->Depth},
        .kind = kind_of(copy->srcMemoryType, copy->dstMemoryType),
    };
}
