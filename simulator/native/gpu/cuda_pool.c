/* Memory pools. Allocating from them is in cuda_streamed.c, their implementation in pool.c. */
#include "cuda_api.h"

#include <stdlib.h>

/* ---- finding pools ---- */

static struct pool_place *place_on_host(CUmemAllocationType type, int preferred) {
    if (type == CU_MEM_ALLOCATION_TYPE_PINNED)
        return preferred == MANAGED_HOST ? &engine.pinned_place : NULL;
    return preferred == MANAGED_HOST ? &engine.managed_host_place : &engine.managed_place;
}

/* NULL: no such memory. The host has no NUMA nodes. */
static struct pool_place *place_of(const CUmemLocation *location, CUmemAllocationType type) {
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)
        return NULL;
    struct device *device;
    switch ((int)location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        device = engine_device(location->id);
        if (!device) return NULL;
        return type == CU_MEM_ALLOCATION_TYPE_PINNED ? &device->memory_place
                                                     : &device->managed_place;
    case CU_MEM_LOCATION_TYPE_NONE: return place_on_host(type, MANAGED_NOWHERE);
    case CU_MEM_LOCATION_TYPE_HOST: return place_on_host(type, MANAGED_HOST);
    default: return NULL;
    }
}

static CUresult set_current(struct pool_place *place, CUmemoryPool handle) {
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = (struct pool *)handle;
    if (pool->place != place) return CUDA_ERROR_INVALID_DEVICE;
    place->current = pool;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    *out = (CUmemoryPool)device->memory_place.standard;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    *out = (CUmemoryPool)device->memory_place.current;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool handle) {
    NEED_DEVICE(device, ordinal);
    return set_current(&device->memory_place, handle);
}

#define NEED_PLACE(place, location, type)                \
    NEED_INIT();                                         \
    NEED(location);                                      \
    struct pool_place *place = place_of(location, type); \
    do {                                                 \
        if (!place) return CUDA_ERROR_INVALID_VALUE;     \
    } while (0)

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location,
                                    CUmemAllocationType type) {
    NEED(out);
    NEED_PLACE(place, location, type);
    *out = (CUmemoryPool)place->standard;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type) {
    NEED(out);
    NEED_PLACE(place, location, type);
    *out = (CUmemoryPool)place->current;
    return CUDA_SUCCESS;
}

API CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                             CUmemoryPool handle) {
    NEED_PLACE(place, location, type);
    return set_current(place, handle);
}

/* ---- pools ---- */

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties) {
    NEED(out && properties);
    NEED_PLACE(place, &properties->location, properties->allocType);
    NEED(place->kind != EXTENT_MANAGED || properties->maxSize == 0);
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        NEED(place->kind != EXTENT_MANAGED &&
             properties->location.type != CU_MEM_LOCATION_TYPE_HOST);
        return engine_unsupported("cuMemPoolCreate with an exportable pool",
                                  "share memory by cuIpcGetMemHandle or cuMemCreate");
    }
    *out = (CUmemoryPool)pool_create(place, properties->maxSize);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    NEED_INIT();
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = (struct pool *)handle;
    if (pool == pool->place->standard) return CUDA_ERROR_INVALID_VALUE;
    if (pool->place->current == pool) pool->place->current = pool->place->standard;
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

/* ---- access to their memory ---- */

/* Device memory: its own device always, others over NVLink. Pinned memory: the host always;
 * settings for devices are stored without effect. Managed memory: everyone, and this cannot be
 * changed. */
static CUresult set_access(struct pool *pool, const CUmemAccessDesc *wanted) {
    const struct device *home = pool->place->device;
    bool may = wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (pool->place->kind == EXTENT_MANAGED) return CUDA_ERROR_INVALID_VALUE;
    if (!home && managed_place(wanted->location) == MANAGED_HOST)
        return may ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    const struct device *device = wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE
                                      ? engine_device(wanted->location.id)
                                      : NULL;
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (device == home && wanted->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    if (home && device != home && device->card->nvlink_to[home->card->index] == 0)
        return CUDA_ERROR_INVALID_DEVICE;
    uint32_t bit = UINT32_C(1) << device->ordinal;
    pool->access = may ? pool->access | bit : pool->access & ~bit;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *list, size_t count) {
    NEED_INIT();
    NEED(list || !count);
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = set_access((struct pool *)handle, &list[i]);
    return result;
}

API CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle,
                                CUmemLocation *location) {
    NEED_INIT();
    NEED(flags && location);
    if (handle_kind_of(handle) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    const struct pool *pool = (const struct pool *)handle;
    int who = managed_place(*location);
    const struct device *device = engine_device(who), *home = pool->place->device;
    if (who == MANAGED_NOWHERE || (who == MANAGED_HOST && home)) return CUDA_ERROR_INVALID_VALUE;
    if (who != MANAGED_HOST && !device) return CUDA_ERROR_INVALID_DEVICE;
    bool may = pool->place->kind == EXTENT_MANAGED || device == home ||
               (device && pool->access >> device->ordinal & 1);
    *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}
