/* Memory pools. Allocating from them is in cuda_streamed.c, how they work in pool.c. */
#include "cuda_api.h"

#include <stdlib.h>

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    *out = (CUmemoryPool)&device->default_pool;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    *out = (CUmemoryPool)device->current_pool;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
    NEED_DEVICE(device, ordinal);
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    if (((struct pool *)handle)->device != device) return CUDA_ERROR_INVALID_DEVICE;
    device->current_pool = (struct pool *)handle;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties) {
    NEED_INIT();
    NEED(out && properties);
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        if (engine_verbose())
            engine_say("cuMemPoolCreate: pools that can be exported are not simulated");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    struct device *device = engine_device(properties->location.id);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool || !pool_init(pool, device)) {
        free(pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->max_bytes = properties->maxSize;
    *out = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    NEED_INIT();
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = (struct pool *)handle;
    if (pool == &pool->device->default_pool) return CUDA_ERROR_INVALID_VALUE;
    if (pool->device->current_pool == pool)
        pool->device->current_pool = &pool->device->default_pool;
    pool_retire(pool);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    NEED_INIT();
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    pool_trim((struct pool *)handle, keep);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void *value) {
    NEED_INIT();
    NEED(value);
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = (struct pool *)handle;
    switch ((int)which) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = atomic_load(&pool->release_threshold);
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = atomic_load(&pool->reserved);
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(cuuint64_t *)value = atomic_load(&pool->used); break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = atomic_load(&pool->reserved_high);
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(cuuint64_t *)value = atomic_load(&pool->used_high); break;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = (int)(pool->reuse >> which & 1);
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void *value) {
    NEED_INIT();
    NEED(value);
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = (struct pool *)handle;
    switch ((int)which) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        atomic_store(&pool->release_threshold, *(const cuuint64_t *)value);
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        if (*(const cuuint64_t *)value != 0) return CUDA_ERROR_INVALID_VALUE;
        atomic_store(&pool->reserved_high, atomic_load(&pool->reserved));
        break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const cuuint64_t *)value != 0) return CUDA_ERROR_INVALID_VALUE;
        atomic_store(&pool->used_high, atomic_load(&pool->used));
        break;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse = (pool->reuse & ~(1u << which)) | (uint32_t)(*(const int *)value != 0)
                                                           << which;
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *list, size_t count) {
    NEED_INIT();
    NEED(list || !count);
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = (struct pool *)handle;
    for (size_t i = 0; i < count; i++) {
        struct device *device = list[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE
                                    ? engine_device(list[i].location.id)
                                    : NULL;
        if (!device) return CUDA_ERROR_INVALID_DEVICE;
        if (device == pool->device && list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
            return CUDA_ERROR_INVALID_VALUE;
        if (device != pool->device && device->card->nvlink_to[pool->device->card->index] == 0)
            return CUDA_ERROR_INVALID_DEVICE;
        uint32_t bit = UINT32_C(1) << device->ordinal;
        if (list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            pool->access |= bit;
        else
            pool->access &= ~bit;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                                CUmemLocation *location) {
    NEED_INIT();
    NEED(flags && location);
    if (handle_kind_of(handle) != HANDLE_POOL || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    const struct device *device = engine_device(location->id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    const struct pool *pool = (const struct pool *)handle;
    bool may = device == pool->device || pool->access >> device->ordinal & 1;
    *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* The same by location: only pinned memory of devices has pools. */
static CUresult pool_device(const CUmemLocation *location, CUmemAllocationType type,
                            struct device **out) {
    NEED_INIT();
    NEED(location);
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    *out = engine_device(location->id);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location,
                                    CUmemAllocationType type) {
    struct device *device;
    CUresult result = pool_device(location, type, &device);
    return result == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(out, device->ordinal) : result;
}

API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
    struct device *device;
    CUresult result = pool_device(location, type, &device);
    return result == CUDA_SUCCESS ? cuDeviceGetMemPool(out, device->ordinal) : result;
}

API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool) {
    struct device *device;
    CUresult result = pool_device(location, type, &device);
    return result == CUDA_SUCCESS ? cuDeviceSetMemPool(device->ordinal, pool) : result;
}
