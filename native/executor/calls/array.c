/* Arrays: copies from and to them, whose bounds are the driver's to check, and the resources that
 * textures and surfaces are made of. */
#define _GNU_SOURCE
#include "executor/executor.h"

/* ---- copies ---- */

static CUarray array_of(struct task *task, uint64_t handle) {
    return (CUarray)(uintptr_t)handle_value(KIND_array, handle, &task->bad);
}

static CUresult carry_out(struct task *task, const CUDA_MEMCPY3D *plan, uint64_t stream_handle,
                          bool wait, bool ours) {
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, stream_handle, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (wait) return DRIVER(cuMemcpy3D_v2, const CUDA_MEMCPY3D *)(plan);
    if (ours && captured(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    return DRIVER(cuMemcpy3DAsync_v2, const CUDA_MEMCPY3D *, CUstream)(plan, stream);
}

static CUmemorytype type_of(const struct wire_end *end) {
    return end->array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_DEVICE;
}

CUresult array_copy(struct task *task) {
    struct wire_copy_array copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left) return violation(task);
    CUDA_MEMCPY3D plan = {.srcXInBytes = copy.from.x,
                          .srcY = copy.from.y,
                          .srcZ = copy.from.z,
                          .srcMemoryType = type_of(&copy.from),
                          .srcDevice = copy.from.address,
                          .srcPitch = copy.from.pitch,
                          .srcHeight = copy.from.row_count,
                          .dstXInBytes = copy.to.x,
                          .dstY = copy.to.y,
                          .dstZ = copy.to.z,
                          .dstMemoryType = type_of(&copy.to),
                          .dstDevice = copy.to.address,
                          .dstPitch = copy.to.pitch,
                          .dstHeight = copy.to.row_count,
                          .WidthInBytes = copy.width,
                          .Height = copy.rows,
                          .Depth = copy.slices};
    if (copy.from.array) plan.srcArray = array_of(task, copy.from.array);
    if (copy.to.array) plan.dstArray = array_of(task, copy.to.array);
    return carry_out(task, &plan, copy.stream, copy.wait, false);
}

CUresult array_copy_in(struct task *task) {
    struct wire_copy_array_rows copy;
    if (!begins(task, &copy, sizeof copy, true)) return violation(task);
    uint64_t bytes = (uint64_t)copy.width * copy.rows;
    if (bytes > WIRE_MAX_BULK || task->data_bytes != padded(bytes)) return violation(task);
    CUDA_MEMCPY3D plan = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = task->data,
                          .srcPitch = copy.width,
                          .srcHeight = copy.rows,
                          .dstXInBytes = copy.x,
                          .dstY = copy.y,
                          .dstZ = copy.z,
                          .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                          .dstArray = array_of(task, copy.array),
                          .WidthInBytes = copy.width,
                          .Height = copy.rows,
                          .Depth = 1};
    return carry_out(task, &plan, copy.stream, copy.wait, true);
}

CUresult array_copy_out(struct task *task) {
    struct wire_copy_array_rows copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left) return violation(task);
    uint64_t bytes = (uint64_t)copy.width * copy.rows;
    if (bytes > WIRE_MAX_BULK) return violation(task);
    task->large = session_reply_take(padded(bytes));
    if (task->large == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    task->large_bytes = padded(bytes);
    memset(task->large + bytes, 0, padded(bytes) - bytes);
    CUDA_MEMCPY3D plan = {.srcXInBytes = copy.x,
                          .srcY = copy.y,
                          .srcZ = copy.z,
                          .srcMemoryType = CU_MEMORYTYPE_ARRAY,
                          .srcArray = array_of(task, copy.array),
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = task->large,
                          .dstPitch = copy.width,
                          .dstHeight = copy.rows,
                          .WidthInBytes = copy.width,
                          .Height = copy.rows,
                          .Depth = 1};
    CUresult result = carry_out(task, &plan, copy.stream, copy.wait, true);
    if (result == CUDA_SUCCESS) return result;
    session_reply_give(task->large, task->large_bytes);
    task->large = NULL;
    return result;
}

/* ---- what goes with an array ---- */

/* A level goes with its mipmap, a plane with its array: that is whose child it becomes, in place of
 * the context's. The handle is behind the mask of pointers. */
static CUresult part_of(struct task *task, uint16_t op) {
    if (task->in.left >= 16) memcpy(&task->context, task->in.at + 8, sizeof task->context);
    return generated_operations[op].run(task);
}
CUresult array_level(struct task *task) { return part_of(task, OP_cuMipmappedArrayGetLevel); }
CUresult array_plane(struct task *task) { return part_of(task, OP_cuArrayGetPlane); }

/* ---- resources ---- */

void task_locate_CUDA_RESOURCE_DESC(struct task *task, CUDA_RESOURCE_DESC *resource) {
    switch (resource->resType) {
    case CU_RESOURCE_TYPE_ARRAY:
        resource->res.array.hArray =
            array_of(task, (uint64_t)(uintptr_t)resource->res.array.hArray);
        break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
        resource->res.mipmap.hMipmappedArray = (CUmipmappedArray)(uintptr_t)handle_value(
            KIND_mipmapped_array, (uint64_t)(uintptr_t)resource->res.mipmap.hMipmappedArray,
            &task->bad);
        break;
    case CU_RESOURCE_TYPE_LINEAR:
    case CU_RESOURCE_TYPE_PITCH2D: break;
    default: /* nobody knows which of its words are handles */
        if (task->bad == CUDA_SUCCESS) task->bad = CUDA_ERROR_INVALID_VALUE;
    }
}

void task_found_CUDA_RESOURCE_DESC(struct task *task, CUDA_RESOURCE_DESC *resource) {
    if (resource->resType == CU_RESOURCE_TYPE_ARRAY)
        resource->res.array.hArray = (CUarray)(uintptr_t)handle_of(
            task, KIND_array, (uint64_t)(uintptr_t)resource->res.array.hArray);
    if (resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        resource->res.mipmap.hMipmappedArray = (CUmipmappedArray)(uintptr_t)handle_of(
            task, KIND_mipmapped_array, (uint64_t)(uintptr_t)resource->res.mipmap.hMipmappedArray);
}
