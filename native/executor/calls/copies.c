/* Copies between the card and the payload of a call, or the bulk area. See special.h. */
#include "executor/executor.h"

#include <pthread.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define STAGE_BYTES WIRE_MAX_BULK

/* A pinned buffer: the GPU may read it after the call that posted the copy. Used only by sessions
 * whose waits must not delay others. */
struct stage {
    struct stage *next;
    void *pages;
};
static struct stage *free_stages;
static pthread_mutex_t stage_lock = PTHREAD_MUTEX_INITIALIZER;

static void stage_done(void *data) {
    struct stage *stage = data;
    pthread_mutex_lock(&stage_lock);
    stage->next = free_stages;
    free_stages = stage;
    pthread_mutex_unlock(&stage_lock);
}

static CUresult copy_staged(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    pthread_mutex_lock(&stage_lock);
    struct stage *stage = free_stages;
    if (stage != NULL) free_stages = stage->next;
    pthread_mutex_unlock(&stage_lock);
    CUresult result = CUDA_SUCCESS;
    if (stage == NULL) {
        stage = calloc(1, sizeof *stage);
        if (stage == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
        result = DRIVER(cuMemHostAlloc, void **, size_t, unsigned)(&stage->pages, STAGE_BYTES, 0);
        if (result != CUDA_SUCCESS) {
            free(stage);
            return result;
        }
    }
    memcpy(stage->pages, from, bytes);
    result = DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t,
                    CUstream)(to, stage->pages, bytes, stream);
    if (result != CUDA_SUCCESS || DRIVER(cuLaunchHostFunc, CUstream, CUhostFn,
                                         void *)(stream, stage_done, stage) != CUDA_SUCCESS)
        stage_done(stage);
    return result;
}

bool captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return captures_begun() &&
           DRIVER(cuStreamIsCapturing, CUstream, CUstreamCaptureStatus *)(stream, &status) ==
               CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult to_device(struct task *task, CUdeviceptr to, const void *from, size_t bytes,
                          uint64_t stream_handle, bool wait) {
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, stream_handle, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (wait) return DRIVER(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)(to, from, bytes);
    if (captured(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    if (task->header.flags & WIRE_CONCURRENT && bytes > (32u << 10) && bytes <= STAGE_BYTES)
        return copy_staged(to, from, bytes, stream);
    /* From pageable memory: the driver has read it all when it returns. */
    return DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t, CUstream)(to, from,
                                                                                     bytes, stream);
}

static CUresult from_device(struct task *task, void *to, CUdeviceptr from, size_t bytes,
                            uint64_t stream_handle, bool wait) {
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, stream_handle, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (wait) return DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)(to, from, bytes);
    if (captured(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    return DRIVER(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t, CUstream)(to, from, bytes,
                                                                               stream);
}

CUresult copy_in(struct task *task) {
    struct wire_copy_in copy;
    if (!begins(task, &copy, sizeof copy, true) || copy.bytes > WIRE_MAX_BULK ||
        task->data_bytes < copy.bytes || task->data_bytes > padded(copy.bytes))
        return violation(task);
    return to_device(task, copy.to, task->data, copy.bytes, copy.stream, copy.wait);
}

/* Short data go into the reply. Long data get a buffer, which the session keeps until the client
 * has them. */
void *room_for_data(struct task *task, size_t bytes) {
    if (bytes <= task->out.left && bytes <= 4096) return give(&task->out, bytes);
    task->large = session_reply_take(bytes);
    task->large_bytes = bytes;
    return task->large;
}

CUresult copy_out(struct task *task) {
    struct wire_copy_out copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left || copy.bytes > WIRE_MAX_BULK)
        return violation(task);
    struct writer before = task->out;
    void *to = room_for_data(task, copy.bytes);
    if (to == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = from_device(task, to, copy.from, copy.bytes, copy.stream, copy.wait);
    if (task->large == NULL) {
        task->out = before;
        /* exactly: data have no padding here */
        if (result == CUDA_SUCCESS) task->out.at += copy.bytes;
    } else if (result != CUDA_SUCCESS) {
        session_reply_give(task->large, task->large_bytes);
        task->large = NULL;
    }
    return result;
}

static CUresult rows(struct task *task, const struct wire_copy_rows *copy, CUDA_MEMCPY2D *plan) {
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy->stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    plan->WidthInBytes = copy->width;
    plan->Height = copy->rows;
    if (copy->wait) return DRIVER(cuMemcpy2DUnaligned_v2, const CUDA_MEMCPY2D *)(plan);
    if (captured(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    return DRIVER(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *, CUstream)(plan, stream);
}

CUresult copy_rect_in(struct task *task) {
    struct wire_copy_rows copy;
    if (!begins(task, &copy, sizeof copy, true)) return violation(task);
    uint64_t bytes = (uint64_t)copy.width * copy.rows;
    if (bytes > WIRE_MAX_BULK || task->data_bytes != padded(bytes)) return violation(task);
    CUDA_MEMCPY2D plan = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = task->data,
                          .srcPitch = copy.width,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = copy.device,
                          .dstPitch = copy.pitch};
    return rows(task, &copy, &plan);
}

CUresult copy_rect_out(struct task *task) {
    struct wire_copy_rows copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left) return violation(task);
    uint64_t bytes = (uint64_t)copy.width * copy.rows;
    if (bytes > WIRE_MAX_BULK) return violation(task);
    task->large = session_reply_take(padded(bytes));
    if (task->large == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    task->large_bytes = padded(bytes);
    memset(task->large + bytes, 0, padded(bytes) - bytes);
    CUDA_MEMCPY2D plan = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = copy.device,
                          .srcPitch = copy.pitch,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = task->large,
                          .dstPitch = copy.width};
    CUresult result = rows(task, &copy, &plan);
    if (result == CUDA_SUCCESS) return result;
    session_reply_give(task->large, task->large_bytes);
    task->large = NULL;
    return result;
}

CUresult copy_rect(struct task *task) {
    struct wire_copy_rect copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left) return violation(task);
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy.stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (copy.rows == 1) {
        if (copy.wait)
            return DRIVER(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, size_t)(copy.to, copy.from,
                                                                             copy.width);
        return DRIVER(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, size_t,
                      CUstream)(copy.to, copy.from, copy.width, stream);
    }
    CUDA_MEMCPY2D plan = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = copy.from,
                          .srcPitch = copy.from_pitch,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = copy.to,
                          .dstPitch = copy.to_pitch,
                          .WidthInBytes = copy.width,
                          .Height = copy.rows};
    if (copy.wait) return DRIVER(cuMemcpy2DUnaligned_v2, const CUDA_MEMCPY2D *)(&plan);
    return DRIVER(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *, CUstream)(&plan, stream);
}

/* The area is pinned, so the driver returns before it has read or written it. */
static CUresult to_device_from_bulk(struct task *task, const struct wire_copy_shared *copy,
                                    const uint8_t *data) {
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy->stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (captured(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    bool taken = bulk_take();
    if (!taken && task->header.flags & WIRE_CONCURRENT)
        return copy_staged(copy->device, data, copy->bytes, stream);
    return bulk_copy(copy->device, data, copy->bytes, stream, taken);
}

static CUresult from_device_to_bulk(struct task *task, const struct wire_copy_shared *copy,
                                    uint8_t *data) {
    CUresult result = from_device(task, data, copy->device, copy->bytes, copy->stream, copy->wait);
    if (result != CUDA_SUCCESS || copy->wait) return result;
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy->stream, &task->bad);
    return DRIVER(cuStreamSynchronize, CUstream)(stream);
}

static CUresult copy_shared(struct task *task, bool in) {
    struct wire_copy_shared copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left || copy.bytes > WIRE_MAX_BULK)
        return violation(task);
    uint8_t *data = session_bulk(copy.offset, copy.bytes);
    if (data == NULL) return violation(task);
    if (!in) return from_device_to_bulk(task, &copy, data);
    if (!copy.wait) return to_device_from_bulk(task, &copy, data);
    return to_device(task, copy.device, data, copy.bytes, copy.stream, true);
}
CUresult copy_in_shared(struct task *task) { return copy_shared(task, true); }
CUresult copy_out_shared(struct task *task) { return copy_shared(task, false); }
