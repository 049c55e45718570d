/* Handles of memory and events for other processes. */
#include "cuda_api.h"

#include <errno.h>
#include <string.h>

#define MEMORY_MAGIC UINT64_C(0x6d656d31757067e1)
#define EVENT_MAGIC UINT64_C(0x65766e31757067e1)

/* Fits into the 64 bytes of a handle. */
struct handle {
    uint64_t magic;
    uint64_t machine_created;
    struct shared_ref ref;
    uint64_t offset, size;
};

static_assert(sizeof(struct handle) <= CU_IPC_HANDLE_SIZE, "handle");

static bool from_here(const struct handle *handle, uint64_t magic) {
    return handle->magic == magic &&
           handle->machine_created == engine.machine.header->created_unix_ns;
}

API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr pointer) {
    NEED_CONTEXT(context);
    NEED(out);
    struct extent extent;
    struct handle handle = {.magic = MEMORY_MAGIC,
                            .machine_created = engine.machine.header->created_unix_ns};
    if (!memory_find(pointer, &extent) || extent.kind != EXTENT_DEVICE ||
        extent.block_kind != BLOCK_ALLOCATION || extent.pool)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = memory_physical(extent.base, &handle.offset);
    if (physical_share(physical) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    handle.ref = physical->ref;
    handle.size = extent.size;
    memset(out, 0, sizeof *out);
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

static CUresult open_memory(CUdeviceptr *out, CUipcMemHandle given, unsigned flags) {
    NEED_CONTEXT(context);
    NEED(out);
    struct handle handle;
    memcpy(&handle, &given, sizeof handle);
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    if (!from_here(&handle, MEMORY_MAGIC)) return CUDA_ERROR_INVALID_HANDLE;
    struct physical *physical;
    int error = physical_import(&engine.machine, handle.ref, &physical);
    if (error) return error == ENOENT ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = CUDA_SUCCESS;
    if (!physical->imported)
        result = CUDA_ERROR_INVALID_CONTEXT; /* from this process */
    else if (physical->card != machine_memory_of(&engine.machine, context->device->card))
        result = CUDA_ERROR_INVALID_DEVICE;
    uint64_t base;
    if (result == CUDA_SUCCESS)
        result = of_memory_error(memory_map(&context->memory, physical, 0,
                                            handle.offset + handle.size, BLOCK_IMPORTED, &base));
    physical_release(physical);
    if (result == CUDA_SUCCESS) *out = base + handle.offset;
    return result;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
    return open_memory(out, handle, flags);
}
#undef cuIpcOpenMemHandle
API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags);
API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
    return open_memory(out, handle, flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr pointer) {
    NEED_CONTEXT(context);
    struct extent extent;
    if (!memory_find(pointer, &extent) || extent.kind != EXTENT_DEVICE ||
        extent.block_kind != BLOCK_IMPORTED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = context_synchronize(extent.owner);
    memory_unmap(extent.base, BLOCK_IMPORTED);
    return result;
}

API CUresult cuIpcGetEventHandle(CUipcEventHandle *out, CUevent given) {
    NEED_INIT();
    NEED(out);
    NEED_HANDLE(given, HANDLE_EVENT);
    const struct event *event = (const struct event *)given;
    if (!event->shared) return CUDA_ERROR_INVALID_VALUE;
    struct handle handle = {.magic = EVENT_MAGIC,
                            .machine_created = engine.machine.header->created_unix_ns,
                            .ref = event->ref};
    memset(out, 0, sizeof *out);
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

API CUresult cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle given) {
    NEED_CONTEXT(context);
    NEED(out);
    struct handle handle;
    memcpy(&handle, &given, sizeof handle);
    if (!from_here(&handle, EVENT_MAGIC)) return CUDA_ERROR_INVALID_HANDLE;
    struct event *event;
    CUresult result = event_import(context, handle.ref, &event);
    if (result == CUDA_SUCCESS) *out = (CUevent)event;
    return result;
}
