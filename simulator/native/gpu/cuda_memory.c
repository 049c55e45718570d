/* Allocations, host memory and pointer queries. Copies and fills: cuda_streamed.c. */
#include "cuda_api.h"
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define PITCH_BYTES 512

/* ---- device memory ---- */

/* A program may leave out either amount, as llama.cpp and OptiX do. */
API CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) {
    NEED_CONTEXT(context);
    struct sim_card *card = context->device->card;
    if (free_bytes != NULL)
        *free_bytes = (size_t)machine_free_chunks(&engine.machine, card) * SIM_CHUNK_BYTES;
    if (total == NULL) return CUDA_SUCCESS;
    uint32_t limit = machine_limit_chunks(&engine.machine, card);
    *total =
        limit < card->chunk_count ? (size_t)limit * SIM_CHUNK_BYTES : (size_t)card->memory_bytes;
    return CUDA_SUCCESS;
}

/* Unused memory of pools makes room first. */
static int allocate(struct memory *memory, size_t bytes, uint64_t *address) {
    int error = memory_alloc(memory, bytes, address);
    if (error == 0) return 0;
    for (int i = 0; i < engine.device_count; i++)
        for (struct pool *pool = engine.devices[i].pools; pool; pool = pool->next)
            pool_trim(pool, 0);
    return memory_alloc(memory, bytes, address);
}

API CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes) {
    NEED_CONTEXT(context);
    NEED(out && bytes);
    CUresult allowed = capture_unsafe_call();
    if (allowed != CUDA_SUCCESS) return allowed;
    uint64_t address;
    CUresult result = of_memory_error(allocate(&context->memory, bytes, &address));
    if (result == CUDA_SUCCESS) *out = address;
    return result;
}

API CUresult cuMemAllocPitch(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                             unsigned int element) {
    NEED_CONTEXT(context);
    NEED(out && pitch && width && height);
    if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
    size_t bytes;
    if (row < width || __builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cuMemAlloc(out, bytes);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

/* Managed memory is on the card as far as there is room and otherwise on the host. Any other need
 * for the card comes first. */
void managed_charge(uint64_t address, struct context *context) {
    struct extent extent;
    if (!memory_find_host(address, &extent) || extent.kind != EXTENT_MANAGED) return;
    uint32_t chunks = (uint32_t)((extent.size + SIM_CHUNK_BYTES - 1) >> SIM_CHUNK_SHIFT);
    if (extent.owner != context || extent.charged >= chunks) return;
    extent.charged +=
        machine_hold_evictable(&engine.machine, context->device->card, chunks - extent.charged);
    memory_host_note(&extent);
}

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned int flags) {
    NEED_CONTEXT(context);
    NEED(out && bytes);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    void *pages;
    CUresult result =
        of_memory_error(memory_host_alloc(bytes, EXTENT_MANAGED, flags, context, &pages));
    if (result != CUDA_SUCCESS) return result;
    managed_charge((uint64_t)(uintptr_t)pages, context);
    *out = (CUdeviceptr)(uintptr_t)pages;
    return CUDA_SUCCESS;
}

static CUresult free_managed(CUdeviceptr pointer) {
    struct extent freed;
    if (memory_host_free((void *)(uintptr_t)pointer, EXTENT_MANAGED, &freed) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    host_memory_gone(&freed);
    return CUDA_SUCCESS;
}

API CUresult cuMemFree(CUdeviceptr pointer) {
    NEED_CONTEXT(context);
    if (pointer == 0) return CUDA_SUCCESS;
    CUresult allowed = capture_unsafe_call();
    if (allowed != CUDA_SUCCESS) return allowed;
    if (graph_memory_forget(pointer)) {
        CUresult done = context_synchronize(context);
        graph_memory_free(context, pointer);
        return done;
    }
    struct extent extent;
    if (!memory_find(pointer, &extent)) return CUDA_ERROR_INVALID_VALUE;
    /* a buffer of an external memory */
    if (extent.kind == EXTENT_DEVICE && extent.block_kind == BLOCK_IMPORTED) {
        CUresult done = context_synchronize(extent.owner);
        memory_unmap(extent.base, BLOCK_IMPORTED);
        return done;
    }
    if (extent.base != pointer) return CUDA_ERROR_INVALID_VALUE;
    if (extent.kind != EXTENT_DEVICE && extent.kind != EXTENT_MANAGED && !extent.pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (extent.kind == EXTENT_DEVICE && extent.block_kind != BLOCK_ALLOCATION)
        return CUDA_ERROR_INVALID_VALUE;
    /* Queued work may still use it: freeing waits, as in the real driver. */
    CUresult result = context_synchronize(extent.owner);
    if (result != CUDA_SUCCESS) return result;
    if (extent.kind == EXTENT_MANAGED) return free_managed(pointer);
    int error = extent.pool ? pool_free(extent.pool, pointer, extent.size) : memory_free(pointer);
    if (extent.pool) pool_synchronized(((const struct context *)extent.owner)->device);
    return error ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    NEED_CONTEXT(context);
    struct extent extent;
    if (!memory_find(pointer, &extent)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = extent.base;
    if (size) *size = extent.size;
    return CUDA_SUCCESS;
}

/* ---- host memory ---- */

#define HOST_ALLOC_FLAGS \
    (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define HOST_REGISTER_FLAGS                                                                     \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | \
     CU_MEMHOSTREGISTER_READ_ONLY)

API CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags) {
    NEED_CONTEXT(context);
    NEED(out && bytes);
    if (flags & ~(unsigned)HOST_ALLOC_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    return of_memory_error(memory_host_alloc(bytes, EXTENT_PINNED, flags, context, out));
}

API CUresult cuMemAllocHost(void **out, size_t bytes) { return cuMemHostAlloc(out, bytes, 0); }

API CUresult cuMemFreeHost(void *pointer) {
    NEED_CONTEXT(context);
    struct extent extent;
    if (!pointer) return CUDA_SUCCESS;
    if (!memory_find((uint64_t)(uintptr_t)pointer, &extent) || extent.kind != EXTENT_PINNED ||
        extent.pool)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = context_synchronize(extent.owner);
    if (result != CUDA_SUCCESS) return result;
    return memory_host_free(pointer, EXTENT_PINNED, NULL) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags) {
    NEED_CONTEXT(context);
    NEED(pointer && bytes);
    if (flags & ~(unsigned)HOST_REGISTER_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    int error = memory_host_register(pointer, bytes, flags, context);
    return error == 0                              ? CUDA_SUCCESS
           : error > 0 && error == 17 /* EEXIST */ ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                                   : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemHostUnregister(void *pointer) {
    NEED_CONTEXT(context);
    NEED(pointer);
    CUresult result = context_synchronize(context);
    if (result != CUDA_SUCCESS) return result;
    return memory_host_unregister(pointer) ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer(CUdeviceptr *out, void *pointer, unsigned int flags) {
    NEED_CONTEXT(context);
    struct extent extent;
    NEED(out && !flags);
    if (!memory_find((uint64_t)(uintptr_t)pointer, &extent) || extent.kind == EXTENT_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned int *flags, void *pointer) {
    NEED_CONTEXT(context);
    struct extent extent;
    NEED(flags);
    if (!memory_find((uint64_t)(uintptr_t)pointer, &extent) || extent.kind == EXTENT_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = extent.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

/* ---- pointer queries ---- */

static int mapped_on(const struct extent *extent) {
    for (int i = 0; i < engine.device_count; i++)
        if (extent->memory == &engine.devices[i].mapped) return i;
    return -1;
}

static CUresult attribute(const struct extent *extent, CUpointer_attribute which,
                          CUdeviceptr pointer, void *out) {
    const struct context *context = extent->owner;
    switch ((int)which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = extent->owner; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = extent->kind == EXTENT_PINNED || extent->kind == EXTENT_REGISTERED
                               ? CU_MEMORYTYPE_HOST
                               : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = pointer; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (extent->kind == EXTENT_DEVICE) return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = (void *)(uintptr_t)pointer;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)out = 0; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)out = extent->base; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)out = extent->kind == EXTENT_MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = context ? context->device->ordinal : mapped_on(extent);
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned *)out = extent->kind == EXTENT_DEVICE &&
                           extent->block_kind == BLOCK_ALLOCATION && !extent->pool;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)out = (CUmemoryPool)extent->pool;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = extent->base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = extent->size; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)out = 1; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr pointer) {
    NEED_INIT();
    NEED(out);
    struct extent extent;
    if (!memory_find(pointer, &extent)) return CUDA_ERROR_INVALID_VALUE;
    return attribute(&extent, which, pointer, out);
}

/* An unknown pointer reads as zeros, which is no error. */
static void unknown_pointer(CUpointer_attribute which, void *out) {
    switch ((int)which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: memset(out, 0, 8); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = -2; break;
    default: memset(out, 0, 4);
    }
}

API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *which, void **out,
                                    CUdeviceptr pointer) {
    NEED_INIT();
    NEED(which && out && count);
    struct extent extent;
    bool known = memory_find(pointer, &extent);
    for (unsigned i = 0; i < count; i++) {
        NEED(out[i]);
        if (!known || attribute(&extent, which[i], pointer, out[i]) != CUDA_SUCCESS)
            unknown_pointer(which[i], out[i]);
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute which,
                                   CUdeviceptr pointer) {
    NEED_INIT();
    struct extent extent;
    NEED(value);
    if (which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !memory_find(pointer, &extent))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* copies are synchronous towards every observer already */
}

/* ---- managed memory: advice is stored without effect ---- */

static bool find_managed(CUdeviceptr pointer, size_t bytes, struct extent *extent) {
    return bytes && memory_find(pointer, extent) && extent->kind == EXTENT_MANAGED &&
           bytes <= extent->size - (pointer - extent->base);
}

static CUresult advise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, int place) {
    NEED_INIT();
    struct extent extent;
    if (!find_managed(pointer, bytes, &extent)) return CUDA_ERROR_INVALID_VALUE;
    if (place != MANAGED_HOST && !engine_device(place)) return CUDA_ERROR_INVALID_DEVICE;
    uint32_t bit = place >= 0 ? UINT32_C(1) << place : UINT32_C(1) << 31;
    switch ((int)advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY: extent.read_mostly = true; break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: extent.read_mostly = false; break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: extent.preferred = place; break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: extent.preferred = MANAGED_NOWHERE; break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY: extent.accessed_by |= bit; break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: extent.accessed_by &= ~bit; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    memory_host_note(&extent);
    return CUDA_SUCCESS;
}

int managed_place(CUmemLocation location) {
    switch ((int)location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return location.id;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return MANAGED_HOST;
    default: return MANAGED_NOWHERE;
    }
}

API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                         CUmemLocation location) {
    return advise(pointer, bytes, advice, managed_place(location));
}
#undef cuMemAdvise
API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device);
API CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device) {
    return advise(pointer, bytes, advice, device == CU_DEVICE_CPU ? MANAGED_HOST : device);
}

API CUresult cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attribute,
                                    CUdeviceptr pointer, size_t bytes) {
    NEED_INIT();
    NEED(data && size >= 4);
    struct extent extent;
    if (!find_managed(pointer, bytes, &extent)) return CUDA_ERROR_INVALID_VALUE;
    int *out = data;
    switch ((int)attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *out = extent.read_mostly; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: *out = extent.preferred; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: *out = extent.prefetched; break;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
        size_t room = size / sizeof *out;
        size_t used = 0;
        for (int i = 0; i < engine.device_count && used < room; i++)
            if (extent.accessed_by >> i & 1) out[used++] = i;
        if (extent.accessed_by >> 31 && used < room) out[used++] = CU_DEVICE_CPU;
        while (used < room) out[used++] = CU_DEVICE_INVALID;
        break;
    }
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attributes,
                                     size_t count, CUdeviceptr pointer, size_t bytes) {
    NEED(data && sizes && attributes && count);
    for (size_t i = 0; i < count; i++) {
        CUresult result = cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], pointer, bytes);
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

/* Its location is its last prefetch, as a whole; before that the host. */
API CUresult cuMemGetLocationInfo(CUdeviceptr pointer, size_t bytes, size_t summary,
                                  size_t sampling, CUmemLocation *out) {
    NEED_INIT();
    NEED(out && summary && summary <= bytes && sampling <= summary);
    struct extent extent;
    if (!find_managed(pointer, bytes, &extent)) return CUDA_ERROR_INVALID_VALUE;
    bool on_card = extent.prefetched >= 0;
    for (size_t i = 0; i < (bytes + summary - 1) / summary; i++)
        out[i] = (CUmemLocation){.type = on_card ? CU_MEM_LOCATION_TYPE_DEVICE
                                                 : CU_MEM_LOCATION_TYPE_HOST,
                                 .id = on_card ? extent.prefetched : 0};
    return CUDA_SUCCESS;
}
