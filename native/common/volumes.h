/* Batches of copies of volumes in the driver's form, and each copy in cuMemcpy3D's. If one copy is
 * invalid in itself, none of the batch is done. */
#ifndef EGPU_COMMON_VOLUMES_H
#define EGPU_COMMON_VOLUMES_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* Return the bytes of an element of an array's channel; 0: it cannot be copied. Normalized formats
 * follow each other: 1, 2 and 4 channels with 8 bits, then with 16; unsigned, then signed.
 */
static inline size_t channel_bytes(CUarray_format format) {
    int normalized = (int)format - CU_AD_FORMAT_UNORM_INT8X1;
    if (normalized >= 0 && normalized < 12) return normalized / 3 % 2 ? 2 : 1;
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

/* Return the unit of an operand: an element of its array; unknown (0) for a pointer. */
static inline CUresult operand_unit(const CUmemcpy3DOperand *operand, size_t *unit) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    *unit = 0;
    if (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_SUCCESS;
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuArray3DGetDescriptor_v2(&descriptor, operand->op.array.array);
    if (result != CUDA_SUCCESS) return result;
    *unit = channel_bytes(descriptor.Format) * descriptor.NumChannels;
    return *unit ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static inline bool operand_is_wide_enough(const CUmemcpy3DOperand *operand,
                                          const CUextent3D *extent) {
    if (operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER) return true;
    size_t length = operand->op.ptr.rowLength, height = operand->op.ptr.layerHeight;
    return operand->op.ptr.ptr && (!length || length >= extent->width) &&
           (!height || height >= extent->height);
}

static inline CUresult volume_copy(const CUDA_MEMCPY3D_BATCH_OP *asked, CUDA_MEMCPY3D *copy) {
    size_t from, to;
    const CUextent3D *extent = &asked->extent;
    if ((int)asked->srcAccessOrder < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
        (int)asked->srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY || !extent->width ||
        !extent->height || !extent->depth || !operand_is_wide_enough(&asked->src, extent) ||
        !operand_is_wide_enough(&asked->dst, extent))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = operand_unit(&asked->src, &from);
    if (result == CUDA_SUCCESS) result = operand_unit(&asked->dst, &to);
    if (result != CUDA_SUCCESS) return result;
    if (from && to && from != to) return CUDA_ERROR_INVALID_VALUE;
    size_t unit = from ? from : to ? to : 1;
    *copy = (CUDA_MEMCPY3D){.WidthInBytes = extent->width * unit,
                            .Height = extent->height,
                            .Depth = extent->depth,
                            .srcMemoryType = from ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED,
                            .dstMemoryType = to ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED};
    if (from) {
        copy->srcArray = asked->src.op.array.array;
        copy->srcXInBytes = asked->src.op.array.offset.x * unit;
        copy->srcY = asked->src.op.array.offset.y;
        copy->srcZ = asked->src.op.array.offset.z;
    } else {
        size_t length = asked->src.op.ptr.rowLength, height = asked->src.op.ptr.layerHeight;
        copy->srcDevice = asked->src.op.ptr.ptr;
        copy->srcPitch = (length ? length : extent->width) * unit;
        copy->srcHeight = height ? height : extent->height;
    }
    if (to) {
        copy->dstArray = asked->dst.op.array.array;
        copy->dstXInBytes = asked->dst.op.array.offset.x * unit;
        copy->dstY = asked->dst.op.array.offset.y;
        copy->dstZ = asked->dst.op.array.offset.z;
    } else {
        size_t length = asked->dst.op.ptr.rowLength, height = asked->dst.op.ptr.layerHeight;
        copy->dstDevice = asked->dst.op.ptr.ptr;
        copy->dstPitch = (length ? length : extent->width) * unit;
        copy->dstHeight = height ? height : extent->height;
    }
    return CUDA_SUCCESS;
}

#endif
