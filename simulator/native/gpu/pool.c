/* Memory pools. A device's pool has its memory in one arena per context that allocates from it.
 * Freed blocks stay in the arena and are used again, until a synchronisation finds more than the
 * pool's release threshold. Pools of pinned and managed memory keep nothing.
 */
#include "engine.h"

#include <errno.h>
#include <stdlib.h>

struct arena {
    struct memory memory;
    struct context *context;
    _Atomic uint64_t used;
    struct arena *next;
};

struct pool *pool_create(struct pool_place *place, uint64_t max_bytes) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool || !handle_add(pool, HANDLE_POOL)) {
        free(pool);
        return NULL;
    }
    pool->place = place;
    pool->max_bytes = max_bytes;
    pool->reuse = UINT32_MAX;
    pthread_mutex_init(&pool->lock, NULL);
    if (place->device) {
        pthread_mutex_lock(&engine.lock);
        pool->next = place->device->pools;
        place->device->pools = pool;
        pthread_mutex_unlock(&engine.lock);
    }
    return pool;
}

bool pool_place_init(struct pool_place *place) {
    place->standard = place->current = pool_create(place, 0);
    return place->standard != NULL;
}

static void count(_Atomic uint64_t *now, _Atomic uint64_t *high, uint64_t more) {
    uint64_t value = atomic_fetch_add(now, more) + more;
    uint64_t seen = atomic_load(high);
    while (value > seen && !atomic_compare_exchange_weak(high, &seen, value)) {
    }
}

/* ---- on a device ---- */

static struct arena *arena_of(struct pool *pool, struct context *context) {
    pthread_mutex_lock(&pool->lock);
    struct arena *arena = pool->arenas;
    while (arena && arena->context != context) arena = arena->next;
    if (!arena && (arena = calloc(1, sizeof *arena)) != NULL) {
        memory_init(&arena->memory, &engine.machine, pool->place->device->card, context);
        arena->memory.keep = true;
        arena->memory.reserved = &pool->reserved;
        arena->memory.reserved_high = &pool->reserved_high;
        arena->memory.limit = pool->max_bytes;
        arena->context = context;
        arena->next = pool->arenas;
        pool->arenas = arena;
    }
    pthread_mutex_unlock(&pool->lock);
    return arena;
}

/* Unused memory of other pools is released before an allocation fails. */
static void trim_others(const struct pool *pool) {
    for (struct pool *other = pool->place->device->pools; other; other = other->next)
        if (other != pool) pool_trim(other, 0);
}

static int device_alloc(struct pool *pool, struct context *context, uint64_t size,
                        uint64_t *address) {
    struct arena *arena = arena_of(pool, context);
    if (!arena) return ENOBUFS;
    int error = memory_alloc(&arena->memory, size, address);
    if (error == ENOMEM) {
        trim_others(pool);
        error = memory_alloc(&arena->memory, size, address);
    }
    if (error) return error;
    memory_set_pool(*address, pool);
    atomic_fetch_add(&arena->used, size);
    count(&pool->used, &pool->used_high, size);
    return 0;
}

static int device_free(struct pool *pool, uint64_t address, uint64_t size) {
    struct extent extent;
    if (!memory_find(address, &extent)) return EINVAL;
    struct arena *arena = (struct arena *)extent.memory; /* its first member */
    int error = memory_free(address);
    if (error) return error;
    atomic_fetch_sub(&arena->used, size);
    atomic_fetch_sub(&pool->used, size);
    if (atomic_load(&pool->destroyed)) pool_trim(pool, 0);
    return 0;
}

/* ---- on the host ---- */

static int host_alloc(struct pool *pool, struct context *context, uint64_t size,
                      uint64_t *address) {
    const struct pool_place *place = pool->place;
    void *pages;
    pthread_mutex_lock(&pool->lock);
    bool full = pool->max_bytes && size > pool->max_bytes - atomic_load(&pool->used);
    int error = full ? ENOMEM : memory_host_alloc(size, place->kind, 0, context, &pages);
    struct extent extent;
    if (!error && memory_find_host((uint64_t)(uintptr_t)pages, &extent)) {
        extent.pool = pool;
        if (place->kind == EXTENT_MANAGED) {
            extent.flags = CU_MEM_ATTACH_GLOBAL;
            extent.preferred = place->preferred;
        }
        memory_host_note(&extent);
        count(&pool->used, &pool->used_high, size);
        count(&pool->reserved, &pool->reserved_high, size);
        *address = extent.base;
    }
    pthread_mutex_unlock(&pool->lock);
    return error;
}

void host_memory_gone(const struct extent *extent) {
    const struct context *context = extent->owner;
    struct pool *pool = extent->pool;
    if (extent->charged)
        machine_drop_evictable(&engine.machine, context->device->card, extent->charged);
    if (!pool) return;
    atomic_fetch_sub(&pool->used, extent->size);
    atomic_fetch_sub(&pool->reserved, extent->size);
}

static int host_free(const struct pool *pool, uint64_t address) {
    struct extent freed;
    int error = memory_host_free((void *)(uintptr_t)address, pool->place->kind, &freed);
    if (!error) host_memory_gone(&freed);
    return error;
}

/* ---- on device or host ---- */

int pool_alloc(struct pool *pool, struct context *context, uint64_t size, uint64_t *address) {
    return pool->place->device ? device_alloc(pool, context, size, address)
                               : host_alloc(pool, context, size, address);
}

int pool_free(struct pool *pool, uint64_t address, uint64_t size) {
    return pool->place->device ? device_free(pool, address, size) : host_free(pool, address);
}

void pool_trim(struct pool *pool, uint64_t keep_bytes) {
    pthread_mutex_lock(&pool->lock);
    for (struct arena *arena = pool->arenas; arena; arena = arena->next)
        memory_trim(&arena->memory, keep_bytes);
    pthread_mutex_unlock(&pool->lock);
}

/* The struct stays for live allocations; the handle is dead. */
void pool_retire(struct pool *pool) {
    handle_remove(pool);
    atomic_store(&pool->destroyed, true);
    pool_trim(pool, 0);
}

void pool_synchronized(struct device *device) {
    for (struct pool *pool = device->pools; pool; pool = pool->next) {
        uint64_t threshold = atomic_load(&pool->release_threshold);
        if (atomic_load(&pool->reserved) > threshold) pool_trim(pool, threshold);
    }
}

void pool_context_gone(struct context *context) {
    for (struct pool *pool = context->device->pools; pool; pool = pool->next) {
        pthread_mutex_lock(&pool->lock);
        for (struct arena *arena = pool->arenas; arena; arena = arena->next) {
            if (arena->context != context) continue;
            memory_clear(&arena->memory);
            atomic_fetch_sub(&pool->used, atomic_exchange(&arena->used, 0));
        }
        pthread_mutex_unlock(&pool->lock);
    }
}

void pool_moved(const struct device *device) {
    for (struct pool *pool = device->pools; pool; pool = pool->next)
        for (struct arena *arena = pool->arenas; arena; arena = arena->next)
            arena->memory.card = device->card;
}
