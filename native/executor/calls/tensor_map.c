/* Tensor maps: the driver encodes what a client asks for, and the map is the reply. */
#include "executor/executor.h"

static CUresult tiled(const struct wire_tensor_map *ask, CUtensorMap *map) {
    CUresult (*real)(CUtensorMap *, int, uint32_t, uint64_t, const uint64_t *, const uint64_t *,
                     const uint32_t *, const uint32_t *, int, int, int, int) =
        DRIVER(cuTensorMapEncodeTiled, CUtensorMap *, int, uint32_t, uint64_t, const uint64_t *,
               const uint64_t *, const uint32_t *, const uint32_t *, int, int, int, int);
    if (real == NULL) return CUDA_ERROR_NOT_SUPPORTED;
    return real(map, (int)ask->type, ask->rank, ask->address, ask->sizes, ask->strides, ask->box,
                ask->steps, (int)ask->interleave, (int)ask->swizzle, (int)ask->promotion,
                (int)ask->fill);
}

static CUresult im2col(const struct wire_tensor_map *ask, CUtensorMap *map) {
    CUresult (*real)(CUtensorMap *, int, uint32_t, uint64_t, const uint64_t *, const uint64_t *,
                     const int *, const int *, uint32_t, uint32_t, const uint32_t *, int, int, int,
                     int) = DRIVER(cuTensorMapEncodeIm2col, CUtensorMap *, int, uint32_t, uint64_t,
                                   const uint64_t *, const uint64_t *, const int *, const int *,
                                   uint32_t, uint32_t, const uint32_t *, int, int, int, int);
    if (real == NULL) return CUDA_ERROR_NOT_SUPPORTED;
    return real(map, (int)ask->type, ask->rank, ask->address, ask->sizes, ask->strides, ask->lower,
                ask->upper, ask->channels, ask->pixels, ask->steps, (int)ask->interleave,
                (int)ask->swizzle, (int)ask->promotion, (int)ask->fill);
}

static CUresult im2col_wide(const struct wire_tensor_map *ask, CUtensorMap *map) {
    CUresult (*real)(CUtensorMap *, int, uint32_t, uint64_t, const uint64_t *, const uint64_t *,
                     int, int, uint32_t, uint32_t, const uint32_t *, int, int, int, int, int) =
        DRIVER(cuTensorMapEncodeIm2colWide, CUtensorMap *, int, uint32_t, uint64_t,
               const uint64_t *, const uint64_t *, int, int, uint32_t, uint32_t, const uint32_t *,
               int, int, int, int, int);
    if (real == NULL) return CUDA_ERROR_NOT_SUPPORTED;
    return real(map, (int)ask->type, ask->rank, ask->address, ask->sizes, ask->strides,
                ask->lower[0], ask->upper[0], ask->channels, ask->pixels, ask->steps,
                (int)ask->interleave, (int)ask->mode, (int)ask->swizzle, (int)ask->promotion,
                (int)ask->fill);
}

static CUresult replace_address(const struct wire_tensor_map *ask, CUtensorMap *map) {
    CUresult (*real)(CUtensorMap *, uint64_t) =
        DRIVER(cuTensorMapReplaceAddress, CUtensorMap *, uint64_t);
    if (real == NULL) return CUDA_ERROR_NOT_SUPPORTED;
    memcpy(map, ask->map, sizeof ask->map);
    return real(map, ask->address);
}

CUresult tensor_map(struct task *task) {
    struct wire_tensor_map ask;
    CUtensorMap map = {0};
    CUresult result;
    if (!begins(task, &ask, sizeof ask, false) || task->in.left) return violation(task);
    bool encodes = ask.form != WIRE_TENSOR_ADDRESS;
    if (encodes && (ask.rank == 0 || ask.rank > WIRE_TENSOR_DIMENSIONS)) return violation(task);
    switch (ask.form) {
    case WIRE_TENSOR_TILED: result = tiled(&ask, &map); break;
    case WIRE_TENSOR_IM2COL: result = im2col(&ask, &map); break;
    case WIRE_TENSOR_IM2COL_WIDE: result = im2col_wide(&ask, &map); break;
    case WIRE_TENSOR_ADDRESS: result = replace_address(&ask, &map); break;
    default: return violation(task);
    }
    if (result == CUDA_SUCCESS) put_bytes(&task->out, &map, sizeof map);
    return result;
}
