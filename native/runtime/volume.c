/* Translation of the runtime API's copies for the driver. */
#include <limits.h>

#include "channel.h"

int runtime_is_kind(enum cudaMemcpyKind kind) {
    return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

int runtime_is_pitch(size_t pitch, size_t width) { return width <= pitch && pitch <= INT_MAX; }

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

/* Positions in arrays, and a width next to an array, count its elements; all others count bytes. */
struct units {
    size_t from, to, width;
};

static cudaError_t units_of(cudaArray_const_t from, cudaArray_const_t to, struct units *units) {
    cudaError_t error = cudaSuccess;
    *units = (struct units){1, 1, 1};
    if (from) error = runtime_element_bytes(from, &units->from);
    if (to && error == cudaSuccess) error = runtime_element_bytes(to, &units->to);
    if (error == cudaSuccess && from && to && units->from != units->to)
        error = cudaErrorInvalidValue;
    units->width = units->from > units->to ? units->from : units->to;
    return error;
}

/* A pitch of 0 means that there is one row. */
static int is_pitched(const struct cudaPitchedPtr *memory, size_t x, size_t width) {
    return !memory->ptr || !memory->pitch || runtime_is_pitch(memory->pitch, x + width);
}

cudaError_t runtime_volume(const struct cudaMemcpy3DParms *asked, CUDA_MEMCPY3D *copy) {
    struct units units;
    if (!asked) return cudaErrorInvalidValue;
    CUmemorytype from = runtime_source_type(asked->kind), to = runtime_target_type(asked->kind);
    if (!runtime_is_kind(asked->kind) || (asked->srcArray && from == CU_MEMORYTYPE_HOST) ||
        (asked->dstArray && to == CU_MEMORYTYPE_HOST))
        return cudaErrorInvalidMemcpyDirection;
    if ((asked->srcArray && asked->srcPtr.ptr) || (asked->dstArray && asked->dstPtr.ptr))
        return cudaErrorInvalidValue;
    cudaError_t error = units_of(asked->srcArray, asked->dstArray, &units);
    if (error != cudaSuccess) return error;
    if (!is_pitched(&asked->srcPtr, asked->srcPos.x, asked->extent.width * units.width) ||
        !is_pitched(&asked->dstPtr, asked->dstPos.x, asked->extent.width * units.width))
        return cudaErrorInvalidPitchValue;
    *copy = (CUDA_MEMCPY3D){
        .srcXInBytes = asked->srcPos.x * units.from,
        .srcY = asked->srcPos.y,
        .srcZ = asked->srcPos.z,
        .srcMemoryType = asked->srcArray ? CU_MEMORYTYPE_ARRAY : from,
        .srcArray = (CUarray)asked->srcArray,
        .srcHost = asked->srcPtr.ptr,
        .srcDevice = (CUdeviceptr)asked->srcPtr.ptr,
        .srcPitch = asked->srcPtr.pitch,
        .srcHeight = asked->srcPtr.ysize,
        .dstXInBytes = asked->dstPos.x * units.to,
        .dstY = asked->dstPos.y,
        .dstZ = asked->dstPos.z,
        .dstMemoryType = asked->dstArray ? CU_MEMORYTYPE_ARRAY : to,
        .dstArray = (CUarray)asked->dstArray,
        .dstHost = asked->dstPtr.ptr,
        .dstDevice = (CUdeviceptr)asked->dstPtr.ptr,
        .dstPitch = asked->dstPtr.pitch,
        .dstHeight = asked->dstPtr.ysize,
        .WidthInBytes = asked->extent.width * units.width,
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

/* Return memory in the runtime's form; for an array it stays empty. */
static struct cudaPitchedPtr memory_asked(CUmemorytype type, const void *host, CUdeviceptr device,
                                          size_t pitch, size_t width, size_t height) {
    if (type == CU_MEMORYTYPE_ARRAY) return (struct cudaPitchedPtr){0};
    void *memory = type == CU_MEMORYTYPE_HOST ? (void *)host : (void *)device;
    return (struct cudaPitchedPtr){memory, pitch, width, height};
}

struct cudaMemcpy3DParms runtime_volume_asked(const CUDA_MEMCPY3D *copy) {
    CUmemorytype from = copy->srcMemoryType, to = copy->dstMemoryType;
    cudaArray_t from_array = from == CU_MEMORYTYPE_ARRAY ? (cudaArray_t)copy->srcArray : NULL;
    cudaArray_t to_array = to == CU_MEMORYTYPE_ARRAY ? (cudaArray_t)copy->dstArray : NULL;
    struct units units;
    units_of(from_array, to_array, &units);
    return (struct cudaMemcpy3DParms){
        .srcArray = from_array,
        .srcPos = {copy->srcXInBytes / units.from, copy->srcY, copy->srcZ},
        .srcPtr = memory_asked(from, copy->srcHost, copy->srcDevice, copy->srcPitch,
                               copy->WidthInBytes, copy->srcHeight),
        .dstArray = to_array,
        .dstPos = {copy->dstXInBytes / units.to, copy->dstY, copy->dstZ},
        .dstPtr = memory_asked(to, copy->dstHost, copy->dstDevice, copy->dstPitch,
                               copy->WidthInBytes, copy->dstHeight),
        .extent = {copy->WidthInBytes / units.width, copy->Height, copy->Depth},
        .kind = kind_of(from, to),
    };
}
