/* Memory pools. A pool's memory lies in one arena per context that allocates from it; freed blocks
 * stay in the arena and are given out again, until a synchronisation finds more than the pool's
 * release threshold.
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

bool pool_init(struct pool *pool, struct device *device) {
    if (!handle_add(pool, HANDLE_POOL)) return false;
    pool->device = device;
    pool->reuse = UINT32_MAX;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_mutex_lock(&engine.lock);
    pool->next = device->pools;
    device->pools = pool;
    pthread_mutex_unlock(&engine.lock);
    return true;
}

static struct arena *arena_of(struct pool *pool, struct context *context) {
    pthread_mutex_lock(&pool->lock);
    struct arena *arena = pool->arenas;
    while (arena && arena->context != context) arena = arena->next;
    if (!arena && (arena = calloc(1, sizeof *arena)) != NULL) {
        memory_init(&arena->memory, &engine.machine, pool->device->card, context);
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

/* What other pools keep without using it is given up before an allocation fails. */
static void trim_others(const struct pool *pool) {
    for (struct pool *other = pool->device->pools; other; other = other->next)
        if (other != pool) pool_trim(other, 0);
}

int pool_alloc(struct pool *pool, struct context *context, uint64_t size, uint64_t *address) {
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
    uint64_t used = atomic_fetch_add(&pool->used, size) + size;
    uint64_t high = atomic_load(&pool->used_high);
    while (used > high && !atomic_compare_exchange_weak(&pool->used_high, &high, used)) {
    }
    return 0;
}

int pool_free(struct pool *pool, uint64_t address, uint64_t size) {
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

void pool_trim(struct pool *pool, uint64_t keep_bytes) {
    pthread_mutex_lock(&pool->lock);
    for (struct arena *arena = pool->arenas; arena; arena = arena->next)
        memory_trim(&arena->memory, keep_bytes);
    pthread_mutex_unlock(&pool->lock);
}

/* The struct stays for allocations that are still out; the handle is dead. */
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
