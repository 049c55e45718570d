/* Copies in batches and copies with attributes: done one after the other. */
#include "client.h"

#include "common/batch.h"
#include "common/volumes.h"

/* CUDA refuses batches in the legacy default stream. */
static bool is_legacy(CUstream stream) { return stream == NULL || stream == CU_STREAM_LEGACY; }

static CUresult batch(const struct batch *batch, CUstream stream, size_t *failed) {
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS && (is_legacy(stream) || !batch_is_whole(batch)))
        result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < batch->count && result == CUDA_SUCCESS; i++) {
        result = cuMemcpyAsync(batch->to[i], batch->from[i], batch->bytes[i], stream);
        *failed = i;
    }
    bool at_once = result == CUDA_SUCCESS && batch_is_read_at_once(batch) && !capturing(stream);
    return at_once ? cuStreamSynchronize(stream) : result;
}

API CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                   CUmemcpyAttributes *attributes, size_t *starts,
                                   size_t attribute_count, CUstream stream) {
    size_t failed;
    return batch(&(struct batch){to, from, bytes, count, attributes, starts, attribute_count},
                 stream, &failed);
}
API CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                CUmemcpyAttributes *attributes, size_t *starts,
                                size_t attribute_count, size_t *failed, CUstream stream) {
    size_t at = SIZE_MAX;
    CUresult result = batch(
        &(struct batch){to, from, bytes, count, attributes, starts, attribute_count}, stream, &at);
    if (failed != NULL && result != CUDA_SUCCESS) *failed = at;
    return result;
}
API CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                         CUmemcpyAttributes *attributes, CUstream stream) {
    size_t start = 0, failed;
    return batch(&(struct batch){&to, &from, &bytes, 1, attributes, &start, 1}, stream, &failed);
}

static CUresult volumes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count, unsigned long long flags,
                        CUstream stream, size_t *failed) {
    CUDA_MEMCPY3D copy;
    CUresult result = call_ready();
    bool at_once = false;
    if (result == CUDA_SUCCESS && (list == NULL || count == 0 || flags || is_legacy(stream)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = volume_copy(&list[i], &copy);
        at_once |= list[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        *failed = i;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = volume_copy(&list[i], &copy);
        if (result == CUDA_SUCCESS) result = cuMemcpy3DAsync_v2(&copy, stream);
        *failed = i;
    }
    return result == CUDA_SUCCESS && at_once && !capturing(stream) ? cuStreamSynchronize(stream)
                                                                   : result;
}

API CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *list,
                                     unsigned long long flags, CUstream stream) {
    size_t failed;
    return volumes(list, count, flags, stream, &failed);
}
API CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                                  unsigned long long flags, CUstream stream) {
    size_t at = SIZE_MAX;
    CUresult result = volumes(list, count, flags, stream, &at);
    if (failed != NULL && result != CUDA_SUCCESS) *failed = at;
    return result;
}
API CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *copy, unsigned long long flags,
                                           CUstream stream) {
    size_t failed;
    return volumes(copy, 1, flags, stream, &failed);
}
