/* Operations with forms of their own (special.h): launches, primary contexts, callbacks; and the
 * table of all of them. */
#include "executor/executor.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

bool begins(struct task *task, void *message, size_t bytes, bool has_data) {
    get_bytes(&task->in, message, bytes);
    if (has_data && !task->in.bad) {
        task->data = task->in.at;
        task->data_bytes = task->in.left;
        task->in.left = 0;
    }
    return !task->in.bad;
}

CUresult violation(struct task *task) {
    task->violated = true;
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- launches ---- */

static CUresult launch(struct task *task) {
    struct wire_launch message;
    CUlaunchAttribute attributes[WIRE_MAX_ARRAY];
    if (!begins(task, &message, sizeof message, false) ||
        message.attribute_count > WIRE_MAX_ARRAY || message.argument_bytes > WIRE_MAX_ARGUMENTS)
        return violation(task);
    if (message.attribute_count)
        get_bytes(&task->in, attributes, message.attribute_count * sizeof *attributes);
    const void *arguments = take(&task->in, message.argument_bytes);
    CUfunction function =
        (CUfunction)(uintptr_t)handle_value(KIND_function, message.function, &task->bad);
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, message.stream, &task->bad);
    CUresult refused = task_refused(task, true);
    if (refused != CUDA_SUCCESS) return refused;
    for (unsigned i = 0; i < message.attribute_count; i++) /* no pointers of the client's */
        if (!attribute_is_value((int)attributes[i].id)) return CUDA_ERROR_NOT_SUPPORTED;
    size_t bytes = message.argument_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)arguments,
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    const uint32_t *grid = message.grid, *block = message.block;
    if (message.flags & (WIRE_LAUNCH_EX | WIRE_LAUNCH_COOPERATIVE)) {
        if (message.flags & WIRE_LAUNCH_COOPERATIVE) {
            attributes[0] =
                (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
            message.attribute_count = 1;
        }
        CUlaunchConfig config = {.gridDimX = grid[0],
                                 .gridDimY = grid[1],
                                 .gridDimZ = grid[2],
                                 .blockDimX = block[0],
                                 .blockDimY = block[1],
                                 .blockDimZ = block[2],
                                 .sharedMemBytes = message.shared_bytes,
                                 .hStream = stream,
                                 .attrs = attributes,
                                 .numAttrs = message.attribute_count};
        CUresult (*real)(const CUlaunchConfig *, CUfunction, void **, void **) =
            DRIVER(cuLaunchKernelEx, const CUlaunchConfig *, CUfunction, void **, void **);
        return real == NULL ? CUDA_ERROR_NOT_SUPPORTED
                            : real(&config, function, NULL, bytes ? extra : NULL);
    }
    return DRIVER(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, unsigned, CUstream, void **,
                  void **)(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                           message.shared_bytes, stream, NULL, bytes ? extra : NULL);
}

/* ---- primary contexts ---- */

/* Their handles, by device: calls that end or empty one name the device. The client keeps one
 * reference for all of the program's. */
static uint64_t primaries[WIRE_MAX_DEVICES];

static CUresult primary_retain(struct task *task) {
    uint64_t handle = 0;
    uint32_t device = WIRE_MAX_DEVICES;
    if (task->in.left >= 24) {
        memcpy(&handle, task->in.at + 8, sizeof handle);
        memcpy(&device, task->in.at + 16, sizeof device);
    }
    CUresult result = generated_operations[OP_cuDevicePrimaryCtxRetain].run(task);
    if (result == CUDA_SUCCESS && device < WIRE_MAX_DEVICES) primaries[device] = handle;
    return result;
}

static CUresult primary_ends(struct task *task, uint16_t op, bool itself) {
    uint32_t device = WIRE_MAX_DEVICES;
    if (task->in.left >= 8) memcpy(&device, task->in.at, sizeof device);
    CUresult result = generated_operations[op].run(task);
    if (result == CUDA_SUCCESS && device < WIRE_MAX_DEVICES && primaries[device] != 0) {
        handle_forget(primaries[device], itself);
        if (itself) primaries[device] = 0;
    }
    return result;
}
static CUresult primary_release(struct task *task) {
    return primary_ends(task, OP_cuDevicePrimaryCtxRelease_v2, true);
}
static CUresult primary_reset(struct task *task) {
    return primary_ends(task, OP_cuDevicePrimaryCtxReset_v2, false);
}

/* ---- libraries ---- */

/* What a library's kernels or modules give goes with the library, not with the context. The handle
 * is behind the mask of pointers. */
static CUresult of_library(struct task *task, uint16_t op, bool kernel) {
    uint64_t handle;
    if (task->in.left >= 16) {
        memcpy(&handle, task->in.at + 8, sizeof handle);
        uint64_t library = kernel ? handle_parent(handle) : handle;
        if (wire_kind_of(library) == KIND_library) task->context = library;
    }
    return generated_operations[op].run(task);
}
static CUresult kernel_function(struct task *task) {
    return of_library(task, OP_cuKernelGetFunction, true);
}
static CUresult library_module(struct task *task) {
    return of_library(task, OP_cuLibraryGetModule, false);
}

/* ---- callbacks and pointers ---- */

void call_client(void *data) { session_callback((uint64_t)(uintptr_t)data, CUDA_SUCCESS); }
static void CUDA_CB call_client_with_status(CUstream stream, CUresult status, void *data) {
    (void)stream;
    session_callback((uint64_t)(uintptr_t)data, status);
}

static CUresult host_callback(struct task *task) {
    struct wire_host_callback message;
    if (!begins(task, &message, sizeof message, false) || task->in.left) return violation(task);
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, message.stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    void *data = (void *)(uintptr_t)message.id;
    session_shares_output();
    if (message.with_status)
        return DRIVER(cuStreamAddCallback, CUstream, CUstreamCallback, void *,
                      unsigned)(stream, call_client_with_status, data, 0);
    return DRIVER(cuLaunchHostFunc, CUstream, CUhostFn, void *)(stream, call_client, data);
}

static CUresult pointer_attribute(struct task *task) {
    struct wire_pointer_attribute ask;
    uint64_t answer[2] = {0};
    if (!begins(task, &ask, sizeof ask, false) || task->in.left) return violation(task);
    switch ((int)ask.attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: break;
    default: return CUDA_ERROR_NOT_SUPPORTED; /* longer answers, and handles */
    }
    CUresult result = DRIVER(cuPointerGetAttribute, void *, CUpointer_attribute,
                             CUdeviceptr)(answer, (CUpointer_attribute)ask.attribute, ask.pointer);
    if (result == CUDA_SUCCESS) put_word(&task->out, answer[0]);
    return result;
}

static CUresult device_status(struct task *task) {
    struct wire_device_status_ask ask;
    if (!begins(task, &ask, sizeof ask, false) || task->in.left) return violation(task);
    return status_read(ask.device, &task->out);
}

const struct operation special_operations[OP_COUNT] = {
    [OP_COPY_IN] = {copy_in, OPERATION_BLOCKS},
    [OP_COPY_OUT] = {copy_out, OPERATION_BLOCKS},
    [OP_COPY_RECT_IN] = {copy_rect_in, OPERATION_BLOCKS},
    [OP_COPY_RECT_OUT] = {copy_rect_out, OPERATION_BLOCKS},
    [OP_COPY_RECT] = {copy_rect, OPERATION_BLOCKS},
    [OP_COPY_ARRAY] = {array_copy, OPERATION_BLOCKS},
    [OP_COPY_ARRAY_IN] = {array_copy_in, OPERATION_BLOCKS},
    [OP_COPY_ARRAY_OUT] = {array_copy_out, OPERATION_BLOCKS},
    [OP_cuMipmappedArrayGetLevel] = {array_level, 0},
    [OP_cuArrayGetPlane] = {array_plane, 0},
    [OP_COPY_IN_SHARED] = {copy_in_shared, OPERATION_BLOCKS},
    [OP_COPY_OUT_SHARED] = {copy_out_shared, OPERATION_BLOCKS},
    [OP_COPY_HOST_IN] = {copy_host_in, OPERATION_BLOCKS},
    [OP_COPY_HOST_OUT] = {copy_host_out, OPERATION_BLOCKS},
    [OP_HOST_MAP] = {host_map, 0},
    [OP_HOST_UNMAP] = {host_unmap, 0},
    [OP_cuStreamBeginCapture_v2] = {begin_capture, 0},
    [OP_cuStreamBeginCaptureToGraph] = {begin_capture, 0},
    [OP_cuStreamEndCapture] = {end_capture, 0},
    [OP_cuGraphDestroy] = {graph_destroy, 0},
    [OP_cuGraphDestroyNode] = {graph_destroy_node, 0},
    [OP_CAPTURE_INFO] = {capture_info, 0},
    [OP_GRAPH_NODE] = {graph_node, 0},
    [OP_GRAPH_UPDATE] = {graph_update, 0},
    [OP_ROOM] = {room_make, 0},
    [OP_ROOM_IN] = {room_in, 0},
    [OP_ROOM_OUT] = {room_out, 0},
    [OP_cuDevicePrimaryCtxRetain] = {primary_retain, 0},
    [OP_cuDevicePrimaryCtxRelease_v2] = {primary_release, OPERATION_BLOCKS},
    [OP_cuDevicePrimaryCtxReset_v2] = {primary_reset, OPERATION_BLOCKS},
    [OP_cuKernelGetFunction] = {kernel_function, 0},
    [OP_cuLibraryGetModule] = {library_module, 0},
    [OP_IMAGE] = {image_part, 0},
    [OP_MODULE_LOAD] = {module_load, 0},
    [OP_LIBRARY_LOAD] = {library_load, 0},
    [OP_FUNCTION_INFO] = {function_info, 0},
    [OP_LAUNCH] = {launch, 0},
    [OP_CLUSTERS] = {clusters, 0},
    [OP_TENSOR_MAP] = {tensor_map, 0},
    [OP_VARIABLE] = {variable, 0},
    [OP_VARIABLE_DONE] = {variable_done, 0},
    [OP_NODE_ATTRIBUTE] = {node_attribute, 0},
    [OP_HOST_CALLBACK] = {host_callback, 0},
    [OP_POINTER_ATTRIBUTE] = {pointer_attribute, 0},
    [OP_DEVICE_STATUS] = {device_status, 0},
    [OP_PRINTED] = {printed, 0},
    [OP_LIBRARY_GROUP] = {library_group, OPERATION_BESIDE},
};
