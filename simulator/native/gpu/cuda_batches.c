/* Copies in batches, and copies with attributes. Compiled twice, as cuda_streamed.c is. */
#include "common/batch.h"
#include "common/volumes.h"
#include "cuda_api.h"
#include "graph.h"

/* CUDA refuses batches in the legacy default stream. */
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define NEED_OTHER_THAN_LEGACY(handle) NEED((handle) != CU_STREAM_LEGACY)
#else
#define NEED_OTHER_THAN_LEGACY(handle) NEED((handle) && (handle) != CU_STREAM_LEGACY)
#endif

/* *failed: the index of the failed one, if known. */
static CUresult batch(const struct batch *batch, CUstream handle, size_t *failed) {
    NEED_STREAM(stream, handle);
    NEED_OTHER_THAN_LEGACY(handle);
    NEED(batch_is_whole(batch));
    for (size_t i = 0; i < batch->count; i++) {
        CUresult result = cuMemcpyAsync(batch->to[i], batch->from[i], batch->bytes[i], handle);
        *failed = i;
        if (result != CUDA_SUCCESS) return result;
    }
    bool at_once = batch_is_read_at_once(batch) && !stream->capture;
    return at_once ? cuStreamSynchronize(handle) : CUDA_SUCCESS;
}

API CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                                CUmemcpyAttributes *attributes, size_t *starts,
                                size_t attribute_count, CUstream stream) {
    size_t failed;
    return batch(&(struct batch){to, from, bytes, count, attributes, starts, attribute_count},
                 stream, &failed);
}

API CUresult cuMemcpyWithAttributesAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                         CUmemcpyAttributes *attributes, CUstream stream) {
    size_t start = 0, failed;
    return batch(&(struct batch){&to, &from, &bytes, 1, attributes, &start, 1}, stream, &failed);
}

static CUresult check_volume(const CUDA_MEMCPY3D_BATCH_OP *asked, const struct context *context,
                             CUDA_MEMCPY3D *volume) {
    struct copy copy;
    CUresult result = volume_copy(asked, volume);
    if (result == CUDA_SUCCESS) result = copy_of_volume(volume, &copy);
    return result == CUDA_SUCCESS ? copy_check(context, &copy) : result;
}

static CUresult volumes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count, unsigned long long flags,
                        CUstream handle, size_t *failed) {
    CUDA_MEMCPY3D volume;
    CUresult result = CUDA_SUCCESS;
    bool at_once = false;
    NEED_STREAM(stream, handle);
    NEED_OTHER_THAN_LEGACY(handle);
    NEED(list && count && !flags);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = check_volume(&list[i], stream->context, &volume);
        at_once |= list[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        *failed = i;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = volume_copy(&list[i], &volume);
        if (result == CUDA_SUCCESS) result = cuMemcpy3DAsync(&volume, handle);
        *failed = i;
    }
    return result == CUDA_SUCCESS && at_once && !stream->capture ? cuStreamSynchronize(handle)
                                                                 : result;
}

API CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *list,
                                  unsigned long long flags, CUstream stream) {
    size_t failed;
    return volumes(list, count, flags, stream, &failed);
}

API CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *copy, unsigned long long flags,
                                           CUstream stream) {
    size_t failed;
    return volumes(copy, 1, flags, stream, &failed);
}

/* ---- the CUDA 12 forms of these functions ---- */

#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz
#define cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz
#endif

#define EARLIER(declaration)  \
    API CUresult declaration; \
    API CUresult declaration

EARLIER(cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                           CUmemcpyAttributes *attributes, size_t *starts, size_t attribute_count,
                           size_t *failed, CUstream stream)) {
    size_t at = SIZE_MAX;
    CUresult result = batch(
        &(struct batch){to, from, bytes, count, attributes, starts, attribute_count}, stream, &at);
    if (failed && result != CUDA_SUCCESS) *failed = at;
    return result;
}

EARLIER(cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                             unsigned long long flags, CUstream stream)) {
    size_t at = SIZE_MAX;
    CUresult result = volumes(list, count, flags, stream, &at);
    if (failed && result != CUDA_SUCCESS) *failed = at;
    return result;
}
