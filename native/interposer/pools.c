/* Memory pools are charged what they reserve, which is what the card is short of, not what is
 * allocated from them.
 *
 * How much more an allocation makes a pool reserve is known only afterwards. So what the pool's
 * idle reserve cannot cover is charged before the call, and the charge is set to what the driver
 * says the pool reserves after it. Memory that was freed goes back to the card when streams are
 * synchronised: then pools in which something was freed are looked at.
 */
#include "interposer.h"

#include <stdlib.h>

struct pool {
    struct pool *next;
    egpu_lock lock;
    CUmemoryPool handle; /* NULL: destroyed, while allocations of it live */
    int device;
    bool outside; /* of host memory: not the slice's */
    bool freed;   /* something was, since we last looked */
    uint64_t charged, used, pending;
};
static struct pool *pools; /* new ones at the front; never taken out, but used again */
static egpu_lock pools_lock;
static uint32_t any_freed;

void pools_forget(void) {
    pools = NULL; /* perhaps half-changed by another thread of the parent: left behind */
    pools_lock.word = 0;
    any_freed = 0;
}

static int device_of_pool(CUmemoryPool handle, int current) {
    int count = 0;
    if (REAL(cuDeviceGetCount) == NULL || REAL(cuDeviceGetDefaultMemPool) == NULL ||
        REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS)
        return current;
    for (int ordinal = 0; ordinal < count; ordinal++) {
        CUmemoryPool one = NULL;
        if (REAL(cuDeviceGetDefaultMemPool)(&one, ordinal) == CUDA_SUCCESS && one == handle)
            return device_of_ordinal(ordinal);
    }
    return current;
}

static struct pool *pool_of(CUmemoryPool handle, int current, bool *is_new) {
    *is_new = false;
    for (struct pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); pool != NULL;
         pool = pool->next)
        if (__atomic_load_n(&pool->handle, __ATOMIC_ACQUIRE) == handle) return pool;
    int device = device_of_pool(handle, current);
    lock_take(&pools_lock);
    struct pool *found = NULL, *empty = NULL;
    for (struct pool *pool = pools; pool != NULL && found == NULL; pool = pool->next) {
        if (pool->handle == handle) found = pool;
        if (pool->handle == NULL && pool->charged == 0 && pool->used == 0) empty = pool;
    }
    if (found == NULL) {
        *is_new = true;
        found = empty != NULL ? empty : calloc(1, sizeof *found);
        if (found != NULL) {
            found->device = device;
            found->outside = found->freed = false;
            __atomic_store_n(&found->handle, handle, __ATOMIC_RELEASE);
            if (empty == NULL) {
                found->next = pools;
                __atomic_store_n(&pools, found, __ATOMIC_RELEASE);
            }
        }
    }
    lock_drop(&pools_lock);
    return found;
}

/* What the driver holds for the pool; false when it does not say. */
static bool reserved_by(CUmemoryPool handle, uint64_t *bytes) {
    cuuint64_t value = 0;
    if (handle == NULL || REAL(cuMemPoolGetAttribute) == NULL ||
        REAL(cuMemPoolGetAttribute)(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value) !=
            CUDA_SUCCESS)
        return false;
    *bytes = value;
    return true;
}

/* Sets the charge to what is held; false when that is more than there is room for (the charge stays
 * as it is). The pool's lock is held. */
static bool reconcile(struct pool *pool) {
    uint64_t held = 0;
    if (pool->handle == NULL) { /* destroyed: all of it until its last allocation is freed */
        if (pool->used != 0 || pool->pending != 0) return true;
    } else if (reserved_by(pool->handle, &held))
        held += pool->pending;
    else
        held = pool->used + pool->pending;
    if (held > pool->charged) {
        if (!account_reserve(pool->device, EGPU_MEMORY_POOL, held - pool->charged)) return false;
    } else if (held < pool->charged)
        account_release(pool->device, EGPU_MEMORY_POOL, pool->charged - held);
    pool->charged = held;
    return true;
}

/* Room for `bytes` more before the driver is asked. */
static bool pool_enter(struct pool *pool, uint64_t bytes) {
    lock_take(&pool->lock);
    uint64_t held, wanted = pool->used + pool->pending + bytes;
    if (reserved_by(pool->handle, &held)) wanted = round_up(wanted, PHYSICAL_PAGE);
    /* What a refused allocation has left with the pool may be beyond the limit: nothing comes out
     * of that, and asking for no byte more says so. */
    uint64_t more = wanted > pool->charged ? wanted - pool->charged : 0;
    bool room = account_reserve(pool->device, EGPU_MEMORY_POOL, more);
    if (room) {
        if (wanted > pool->charged) pool->charged = wanted;
        pool->pending += bytes;
    }
    lock_drop(&pool->lock);
    return room;
}

static bool pool_leave(struct pool *pool, uint64_t bytes, bool granted) {
    lock_take(&pool->lock);
    pool->pending -= bytes;
    if (granted) pool->used += bytes;
    bool fits = reconcile(pool);
    lock_drop(&pool->lock);
    return fits;
}

void pool_freed(const struct holding *holding, bool now) {
    struct pool *pool = (struct pool *)(uintptr_t)holding->owner;
    lock_take(&pool->lock);
    pool->used -= holding->bytes;
    uint64_t held;
    if (now || !reserved_by(pool->handle, &held))
        reconcile(pool);
    else {
        pool->freed = true;
        __atomic_store_n(&any_freed, 1, __ATOMIC_RELEASE);
    }
    lock_drop(&pool->lock);
}

void pools_settle(void) {
    if (__atomic_load_n(&any_freed, __ATOMIC_ACQUIRE) == 0) return;
    __atomic_store_n(&any_freed, 0, __ATOMIC_RELEASE);
    for (struct pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); pool != NULL;
         pool = pool->next) {
        lock_take(&pool->lock);
        if (pool->freed) {
            reconcile(pool);
            /* kept by the release threshold, or still in use by a stream: look again then */
            uint64_t held;
            pool->freed = reserved_by(pool->handle, &held) && held > pool->used;
            if (pool->freed) __atomic_store_n(&any_freed, 1, __ATOMIC_RELEASE);
        }
        lock_drop(&pool->lock);
    }
}

bool pools_reclaim(int device) {
    bool back = false;
    for (struct pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); pool != NULL;
         pool = pool->next) {
        lock_take(&pool->lock);
        if (pool->device == device && pool->charged > pool->used + pool->pending &&
            pool->handle != NULL) {
            uint64_t before = pool->charged;
            if (REAL(cuMemPoolTrimTo) != NULL) REAL(cuMemPoolTrimTo)(pool->handle, 0);
            reconcile(pool);
            back |= pool->charged < before;
        }
        lock_drop(&pool->lock);
    }
    return back;
}

bool pools_at_rest(int device) {
    bool rest = true;
    for (struct pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); pool != NULL;
         pool = pool->next) {
        if (pool->device != device || pool->outside) continue;
        lock_take(&pool->lock);
        rest &= pool->pending == 0 && reconcile(pool);
        lock_drop(&pool->lock);
    }
    return rest;
}

/* The device that a stream's allocations are on. */
static int device_of_stream(CUstream stream, int current) {
    CUdevice ordinal;
    if (slice_device_count() < 2 || stream == NULL || stream == CU_STREAM_LEGACY ||
        stream == CU_STREAM_PER_THREAD || REAL(cuStreamGetDevice) == NULL ||
        REAL(cuStreamGetDevice)(stream, &ordinal) != CUDA_SUCCESS)
        return current;
    return device_of_ordinal(ordinal);
}

/* An allocation of `size` bytes from `handle`: CALL is made between charging and booking. */
#define FROM_POOL(HANDLE, DEVICE, FREE, CALL)                                           \
    do {                                                                                \
        bool is_new;                                                                    \
        struct pool *pool = pool_of((HANDLE), (DEVICE), &is_new);                       \
        if (pool == NULL) return CUDA_ERROR_OUT_OF_MEMORY;                              \
        if (pool->outside) return CALL;                                                 \
        uint64_t bytes = charge_of(size);                                               \
        if (!pool_enter(pool, bytes) &&                                                 \
            !(pools_reclaim(pool->device) && pool_enter(pool, bytes))) {                \
            account_refused(pool->device);                                              \
            return CUDA_ERROR_OUT_OF_MEMORY;                                            \
        }                                                                               \
        CUresult result = CALL;                                                         \
        bool granted = result == CUDA_SUCCESS, fits = pool_leave(pool, bytes, granted); \
        struct holding holding = {.key = granted ? *pointer : 0,                        \
                                  .bytes = bytes,                                       \
                                  .owner = (uint64_t)(uintptr_t)pool,                   \
                                  .references = 1,                                      \
                                  .kind = HOLDING_POINTER,                              \
                                  .class = EGPU_MEMORY_POOL,                            \
                                  .device = (int8_t)pool->device};                      \
        if (!granted || (fits && table_add(&holding))) return result;                   \
        /* It made the pool reserve more than there is: give it back,                   \
         * and what cannot be, count. */                                                \
        FREE(*pointer, stream);                                                         \
        pool_freed(&holding, false);                                                    \
        settle_over(pool);                                                              \
        account_refused(pool->device);                                                  \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                \
    } while (0)

static void settle_over(struct pool *pool) {
    lock_take(&pool->lock);
    if (REAL(cuMemPoolTrimTo) != NULL) REAL(cuMemPoolTrimTo)(pool->handle, 0);
    uint64_t held = 0;
    if (!reconcile(pool) && reserved_by(pool->handle, &held) && held > pool->charged) {
        account_force(pool->device, EGPU_MEMORY_POOL, held - pool->charged);
        pool->charged = held;
    }
    lock_drop(&pool->lock);
}

#define ASYNC(SUFFIX, NONE)                                                                       \
    EXPORT CUresult cuMemAllocAsync##SUFFIX(CUdeviceptr *pointer, size_t size, CUstream stream) { \
        CUcontext context;                                                                        \
        CUmemoryPool handle = NULL;                                                               \
        if (!slice_open()) return REFUSED;                                                        \
        int current = device_current(&context);                                                   \
        if (context == NULL || pointer == NULL || size == 0 ||                                    \
            stream_is_captured(stream == NULL ? NONE : stream))                                   \
            return REAL(cuMemAllocAsync##SUFFIX)(pointer, size,                                   \
                                                 stream); /* a memory node: graphs.c */           \
        int device = device_of_stream(stream, current);                                           \
        CUdevice ordinal;                                                                         \
        if (device == current ? REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS                    \
                              : REAL(cuStreamGetDevice)(stream, &ordinal) != CUDA_SUCCESS)        \
            ordinal = 0;                                                                          \
        if (REAL(cuDeviceGetMemPool) == NULL ||                                                   \
            REAL(cuDeviceGetMemPool)(&handle, ordinal) != CUDA_SUCCESS)                           \
            handle = (CUmemoryPool) & unnamed_pools[device < 0 ? 0 : device];                     \
        FROM_POOL(handle, device, REAL(cuMemFreeAsync##SUFFIX),                                   \
                  REAL(cuMemAllocAsync##SUFFIX)(pointer, size, stream));                          \
    }                                                                                             \
    EXPORT CUresult cuMemAllocFromPoolAsync##SUFFIX(CUdeviceptr *pointer, size_t size,            \
                                                    CUmemoryPool handle, CUstream stream) {       \
        CUcontext context;                                                                        \
        if (!slice_open()) return REFUSED;                                                        \
        int current = device_current(&context);                                                   \
        if (context == NULL || pointer == NULL || size == 0 || handle == NULL ||                  \
            stream_is_captured(stream == NULL ? NONE : stream))                                   \
            return REAL(cuMemAllocFromPoolAsync##SUFFIX)(pointer, size, handle, stream);          \
        FROM_POOL(handle, current, REAL(cuMemFreeAsync##SUFFIX),                                  \
                  REAL(cuMemAllocFromPoolAsync##SUFFIX)(pointer, size, handle, stream));          \
    }

static char unnamed_pools[EGPU_MAX_DEVICES]; /* of drivers that have pools and do not show them */
ASYNC(, CU_STREAM_LEGACY)
ASYNC(_ptsz, CU_STREAM_PER_THREAD)

/* Notes where the pool's memory is. Pinned memory of the host is not the slice's; managed memory
 * may come to the device wherever it starts. False: no memory to note it in. */
static bool note_place(CUmemoryPool handle, const CUmemLocation *location,
                       CUmemAllocationType type) {
    bool is_new, on_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    CUcontext context;
    int device = on_device ? device_of_ordinal(location->id) : device_current(&context);
    struct pool *pool = pool_of(handle, device, &is_new);
    if (pool != NULL) pool->outside = !on_device && type == CU_MEM_ALLOCATION_TYPE_PINNED;
    return pool != NULL;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *properties) {
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemPoolCreate)(handle, properties);
    if (result != CUDA_SUCCESS || note_place(*handle, &properties->location, properties->allocType))
        return result;
    REAL(cuMemPoolDestroy)(*handle);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

#define POOL_OF_PLACE(FUNCTION)                                                           \
    EXPORT CUresult FUNCTION(CUmemoryPool *handle, CUmemLocation *location,               \
                             CUmemAllocationType type) {                                  \
        if (!slice_open()) return REFUSED;                                                \
        CUresult result = REAL(FUNCTION)(handle, location, type);                         \
        if (result != CUDA_SUCCESS || note_place(*handle, location, type)) return result; \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                  \
    }
POOL_OF_PLACE(cuMemGetDefaultMemPool)
POOL_OF_PLACE(cuMemGetMemPool)

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    if (!slice_open()) return REFUSED;
    struct pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE);
    while (pool != NULL && (handle == NULL || pool->handle != handle)) pool = pool->next;
    if (pool == NULL) return REAL(cuMemPoolDestroy)(handle);
    lock_take(&pool->lock); /* before the driver: afterwards another pool may have the handle */
    __atomic_store_n(&pool->handle, NULL, __ATOMIC_RELEASE);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    if (result != CUDA_SUCCESS) __atomic_store_n(&pool->handle, handle, __ATOMIC_RELEASE);
    reconcile(pool);
    lock_drop(&pool->lock);
    return result;
}

/* Calls that may make a pool give memory back. */
static void look_again(CUmemoryPool handle) {
    for (struct pool *pool = __atomic_load_n(&pools, __ATOMIC_ACQUIRE); pool != NULL;
         pool = pool->next) {
        if (handle == NULL || pool->handle != handle) continue;
        lock_take(&pool->lock);
        reconcile(pool);
        lock_drop(&pool->lock);
    }
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemPoolTrimTo)(handle, keep);
    look_again(handle);
    return result;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute,
                                      void *value) {
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemPoolSetAttribute)(handle, attribute, value);
    look_again(handle);
    return result;
}
