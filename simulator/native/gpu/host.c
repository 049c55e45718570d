/* Host memory that the device may access: pinned, registered and managed. */
#include "memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A sorted list; reads are far more frequent than changes. */
static pthread_rwlock_t host_lock = PTHREAD_RWLOCK_INITIALIZER;
static struct extent *host_list;
static size_t host_count, host_room;

/* Return the index of the first extent whose base is above the address. */
static size_t host_after(uint64_t address) {
    size_t low = 0;
    size_t high = host_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (host_list[middle].base > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static int host_insert(const struct extent *extent) {
    int error = 0;
    pthread_rwlock_wrlock(&host_lock);
    size_t at = host_after(extent->base);
    if ((at > 0 && host_list[at - 1].base + host_list[at - 1].size > extent->base) ||
        (at < host_count && extent->base + extent->size > host_list[at].base))
        error = EEXIST;
    else if (host_count == host_room) {
        size_t bigger = host_room ? host_room * 2 : 64;
        struct extent *grown = realloc(host_list, bigger * sizeof *grown);
        if (!grown)
            error = ENOBUFS;
        else {
            host_list = grown;
            host_room = bigger;
        }
    }
    if (!error) {
        memmove(&host_list[at + 1], &host_list[at], (host_count - at) * sizeof *host_list);
        host_list[at] = *extent;
        host_count++;
    }
    pthread_rwlock_unlock(&host_lock);
    return error;
}

static void host_remove_at(size_t at, struct extent *removed) {
    *removed = host_list[at];
    memmove(&host_list[at], &host_list[at + 1], (host_count - at - 1) * sizeof *host_list);
    host_count--;
}

static int host_remove(uint64_t base, enum extent_kind kind, struct extent *removed) {
    int error = EINVAL;
    pthread_rwlock_wrlock(&host_lock);
    size_t at = host_after(base);
    if (at > 0 && host_list[at - 1].base == base && host_list[at - 1].kind == kind) {
        host_remove_at(at - 1, removed);
        error = 0;
    }
    pthread_rwlock_unlock(&host_lock);
    return error;
}

int memory_host_alloc(uint64_t size, enum extent_kind kind, unsigned flags, void *owner,
                      void **address) {
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return ENOMEM;
    struct extent extent = {.kind = kind,
                            .base = (uint64_t)(uintptr_t)pages,
                            .size = size,
                            .flags = flags,
                            .owner = owner,
                            .preferred = MANAGED_NOWHERE,
                            .prefetched = MANAGED_NOWHERE};
    int error = host_insert(&extent);
    if (error)
        munmap(pages, size);
    else
        *address = pages;
    return error;
}

void memory_host_note(const struct extent *extent) {
    pthread_rwlock_wrlock(&host_lock);
    size_t at = host_after(extent->base);
    if (at > 0 && host_list[at - 1].base == extent->base && host_list[at - 1].kind == extent->kind)
        host_list[at - 1] = *extent;
    pthread_rwlock_unlock(&host_lock);
}

int memory_host_free(void *address, enum extent_kind kind, struct extent *freed) {
    struct extent extent;
    int error = host_remove((uint64_t)(uintptr_t)address, kind, &extent);
    if (!error) munmap(address, extent.size);
    if (!error && freed) *freed = extent;
    return error;
}

int memory_host_register(void *address, uint64_t size, unsigned flags, void *owner) {
    struct extent extent = {.kind = EXTENT_REGISTERED,
                            .base = (uint64_t)(uintptr_t)address,
                            .size = size,
                            .flags = flags,
                            .owner = owner};
    return host_insert(&extent);
}

int memory_host_unregister(void *address) {
    struct extent extent;
    return host_remove((uint64_t)(uintptr_t)address, EXTENT_REGISTERED, &extent);
}

void memory_host_clear(void *owner, void (*freed)(const struct extent *)) {
    pthread_rwlock_wrlock(&host_lock);
    for (size_t i = host_count; i-- > 0;) {
        if (host_list[i].owner != owner) continue;
        struct extent extent;
        host_remove_at(i, &extent);
        if (extent.kind == EXTENT_REGISTERED) continue;
        if (freed) freed(&extent);
        munmap((void *)(uintptr_t)extent.base, extent.size);
    }
    pthread_rwlock_unlock(&host_lock);
}

bool memory_find_host(uint64_t address, struct extent *extent) {
    pthread_rwlock_rdlock(&host_lock);
    size_t at = host_after(address);
    bool found = at > 0 && address - host_list[at - 1].base < host_list[at - 1].size;
    if (found) *extent = host_list[at - 1];
    pthread_rwlock_unlock(&host_lock);
    return found;
}

bool memory_host_any(enum extent_kind kind) {
    bool any = false;
    pthread_rwlock_rdlock(&host_lock);
    for (size_t i = 0; i < host_count && !any; i++) any = host_list[i].kind == kind;
    pthread_rwlock_unlock(&host_lock);
    return any;
}
