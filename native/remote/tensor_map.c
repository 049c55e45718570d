/* Tensor maps, by which kernels copy tiles (TMA). Only a driver knows their form, so that of a
 * server encodes them. The rest is values. */
#define _GNU_SOURCE
#include "client.h"

_Static_assert(sizeof(CUtensorMap) == WIRE_TENSOR_MAP_BYTES, "the wire has it whole");

#define COPY(to, from, count)                                               \
    do {                                                                    \
        if ((from) == NULL && (count) > 0) return CUDA_ERROR_INVALID_VALUE; \
        memcpy((to), (from), (count) * sizeof *(to));                       \
    } while (0)

static CUresult encode(CUtensorMap *map, const struct wire_tensor_map *ask) {
    struct call call;
    call_start(&call, OP_TENSOR_MAP);
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS && map == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) result = call_begin(&call, sizeof *ask, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, ask, sizeof *ask);
    result = call_exchange(&call);
    CUtensorMap made;
    if (result == CUDA_SUCCESS) get_bytes(&call.in, &made, sizeof made);
    if (result == CUDA_SUCCESS && call.in.bad) result = CUDA_ERROR_UNKNOWN;
    if (result == CUDA_SUCCESS) memcpy(map, &made, sizeof made);
    call_end(&call);
    return result;
}

/* What all forms have. */
static CUresult describe(struct wire_tensor_map *ask, const void *address, const cuuint64_t *sizes,
                         const cuuint64_t *strides, const cuuint32_t *steps) {
    if (ask->rank == 0 || ask->rank > WIRE_TENSOR_DIMENSIONS) return CUDA_ERROR_INVALID_VALUE;
    ask->address = (uint64_t)(uintptr_t)address;
    COPY(ask->sizes, sizes, ask->rank);
    COPY(ask->strides, strides, ask->rank - 1);
    COPY(ask->steps, steps, ask->rank);
    return CUDA_SUCCESS;
}

static CUresult pixels(struct wire_tensor_map *ask, const int *lower, const int *upper) {
    if (ask->rank < 3) return CUDA_ERROR_INVALID_VALUE;
    COPY(ask->lower, lower, ask->rank - 2);
    COPY(ask->upper, upper, ask->rank - 2);
    return CUDA_SUCCESS;
}

API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                    void *address, const cuuint64_t *sizes,
                                    const cuuint64_t *strides, const cuuint32_t *box,
                                    const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                    CUtensorMapFloatOOBfill fill) {
    struct wire_tensor_map ask = {.form = WIRE_TENSOR_TILED,
                                  .type = type,
                                  .rank = rank,
                                  .interleave = interleave,
                                  .swizzle = swizzle,
                                  .promotion = promotion,
                                  .fill = fill};
    CUresult result = describe(&ask, address, sizes, strides, steps);
    if (result != CUDA_SUCCESS) return result;
    COPY(ask.box, box, rank);
    return encode(map, &ask);
}

API CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                     void *address, const cuuint64_t *sizes,
                                     const cuuint64_t *strides, const int *lower, const int *upper,
                                     cuuint32_t channels, cuuint32_t columns,
                                     const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill) {
    struct wire_tensor_map ask = {.form = WIRE_TENSOR_IM2COL,
                                  .type = type,
                                  .rank = rank,
                                  .channels = channels,
                                  .pixels = columns,
                                  .interleave = interleave,
                                  .swizzle = swizzle,
                                  .promotion = promotion,
                                  .fill = fill};
    CUresult result = describe(&ask, address, sizes, strides, steps);
    if (result == CUDA_SUCCESS) result = pixels(&ask, lower, upper);
    return result == CUDA_SUCCESS ? encode(map, &ask) : result;
}

API CUresult cuTensorMapEncodeIm2colWide(CUtensorMap *map, CUtensorMapDataType type,
                                         cuuint32_t rank, void *address, const cuuint64_t *sizes,
                                         const cuuint64_t *strides, int lower, int upper,
                                         cuuint32_t channels, cuuint32_t columns,
                                         const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                         CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
                                         CUtensorMapL2promotion promotion,
                                         CUtensorMapFloatOOBfill fill) {
    struct wire_tensor_map ask = {.form = WIRE_TENSOR_IM2COL_WIDE,
                                  .type = type,
                                  .rank = rank,
                                  .lower = {lower},
                                  .upper = {upper},
                                  .channels = channels,
                                  .pixels = columns,
                                  .interleave = interleave,
                                  .mode = mode,
                                  .swizzle = swizzle,
                                  .promotion = promotion,
                                  .fill = fill};
    CUresult result = describe(&ask, address, sizes, strides, steps);
    return result == CUDA_SUCCESS ? encode(map, &ask) : result;
}

API CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address) {
    struct wire_tensor_map ask = {.form = WIRE_TENSOR_ADDRESS,
                                  .address = (uint64_t)(uintptr_t)address};
    if (map == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(ask.map, map, sizeof ask.map);
    return encode(map, &ask);
}
