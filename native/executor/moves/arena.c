/* The memory of a session that can be moved: mapped by us, in one range of addresses that was
 * reserved when the session began, at a place that the target can have as well. Small allocations
 * share mappings of a page.
 *
 * Memory that is not ours stays the driver's and prevents a move: pools, what is allocated while a
 * stream captures, and everything on a machine whose driver gives us no such range.
 */
#include "executor/moves/mappings.h"

#include <pthread.h>
#include <stdio.h>

#define PITCH_BYTES ((size_t)512)
#define RANGE_BYTES (UINT64_C(1) << 40)
#define RANGES 32
#define FIRST_RANGE (UINT64_C(1) << 45) /* away from libraries, stacks and shared host memory */

/* All under the lock, by address; the mappings as well (mappings.c). */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct arena_allocation *allocations;
static uint32_t allocation_count, allocation_room;
static uint64_t range_base, range_bytes, numbers;
static CUdeviceptr *unwanted; /* freed during a capture */
static uint32_t unwanted_count, unwanted_room;
static struct {
    CUdeviceptr address;
    const char *how;
} *strangers;
static uint32_t stranger_count, stranger_room;

static CUresult (*real_alloc)(CUdeviceptr *, size_t);
static CUresult (*real_pitch)(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
static CUresult (*real_async)(CUdeviceptr *, size_t, CUstream);
static CUresult (*real_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
static CUresult (*real_free)(CUdeviceptr);
static CUresult (*real_free_async)(CUdeviceptr, CUstream);

/* ---- what is the driver's ---- */

static CUresult stranger(CUresult result, const CUdeviceptr *address, const char *how) {
    if (result != CUDA_SUCCESS || address == NULL) return result;
    pthread_mutex_lock(&lock);
    if (moves_grow((void **)&strangers, stranger_count, &stranger_room, sizeof *strangers)) {
        strangers[stranger_count].address = *address;
        strangers[stranger_count++].how = how;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void stranger_gone(CUdeviceptr address) {
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < stranger_count; i++)
        if (strangers[i].address == address) {
            strangers[i] = strangers[--stranger_count];
            break;
        }
    pthread_mutex_unlock(&lock);
}

bool arena_prevents(char *why) {
    pthread_mutex_lock(&lock);
    bool prevents = stranger_count != 0;
    if (prevents) snprintf(why, MOVES_WHY_BYTES, "%s: memory of the driver's", strangers[0].how);
    pthread_mutex_unlock(&lock);
    return prevents;
}

/* ---- allocations ---- */

static uint32_t place_of_allocation(uint64_t base) {
    uint32_t low = 0, high = allocation_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (allocations[middle].base < base)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static CUresult find_small(uint64_t bytes, uint64_t context, int32_t device, uint64_t *base) {
    uint64_t count = mapping_units(bytes);
    for (uint32_t i = 0; i < mapping_count; i++) {
        struct mapping *mapping = mappings[i];
        if (!mapping->is.shared || mapping->is.context != context || mapping->free_units < count)
            continue;
        uint64_t unit = mapping_find_units(mapping, count);
        if (unit == ARENA_UNITS) continue;
        *base = mapping->is.base + unit * ARENA_UNIT;
        return CUDA_SUCCESS;
    }
    struct arena_mapping is = {mapping_place(range_base, range_bytes, ARENA_PAGE), ARENA_PAGE,
                               context, device, true};
    struct mapping *made;
    *base = is.base;
    return is.base == 0 ? CUDA_ERROR_OUT_OF_MEMORY : mapping_add(&is, &made);
}

static CUresult find_large(uint64_t bytes, uint64_t context, int32_t device, uint64_t *base) {
    uint64_t whole = (bytes + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
    struct arena_mapping is = {0, whole, context, device, false};
    struct mapping *made;
    if (whole < bytes || (is.base = mapping_place(range_base, range_bytes, whole)) == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *base = is.base;
    return mapping_add(&is, &made);
}

static bool note(uint64_t base, uint64_t bytes, uint64_t number) {
    uint32_t at = place_of_allocation(base);
    if (!moves_grow((void **)&allocations, allocation_count, &allocation_room, sizeof *allocations))
        return false;
    memmove(&allocations[at + 1], &allocations[at], (allocation_count - at) * sizeof *allocations);
    allocations[at] = (struct arena_allocation){base, bytes, number};
    allocation_count++;
    struct mapping *mapping = mapping_of(base);
    if (mapping->is.shared) mapping_mark(mapping, base, bytes, true);
    return true;
}

/* Whether more than this one shared mapping of the context is empty: one is kept for what comes. */
static bool another_is_empty(const struct mapping *empty) {
    for (uint32_t i = 0; i < mapping_count; i++)
        if (mappings[i] != empty && mappings[i]->free_units == ARENA_UNITS &&
            mappings[i]->is.context == empty->is.context)
            return true;
    return false;
}

static CUresult forget(uint32_t at) {
    struct arena_allocation gone = allocations[at];
    struct mapping *mapping = mapping_of(gone.base);
    if (mapping->is.shared) mapping_mark(mapping, gone.base, gone.bytes, false);
    if (!mapping->is.shared || (mapping->free_units == ARENA_UNITS && another_is_empty(mapping))) {
        CUresult result = mapping_remove(mapping_index(mapping->is.base));
        if (result != CUDA_SUCCESS) return result;
    }
    allocation_count--;
    memmove(&allocations[at], &allocations[at + 1], (allocation_count - at) * sizeof *allocations);
    return CUDA_SUCCESS;
}

/* Under the lock: what was freed while a stream captured. */
static void free_unwanted(void) {
    if (unwanted_count == 0 || captures_run()) return;
    DRIVER(cuCtxSynchronize, void)();
    while (unwanted_count != 0) {
        uint32_t at = place_of_allocation(unwanted[--unwanted_count]);
        if (at < allocation_count && allocations[at].base == unwanted[unwanted_count]) forget(at);
    }
}

/* ---- in place of the driver's functions ---- */

static CUresult arena_alloc(CUdeviceptr *address, size_t bytes) {
    uint64_t context = driver_context(), base = 0;
    CUdevice device;
    if (address == NULL || bytes == 0 || context == 0 || range_bytes == 0 || captures_run() ||
        DRIVER(cuCtxGetDevice, CUdevice *)(&device) != CUDA_SUCCESS)
        return stranger(real_alloc(address, bytes), address, "cuMemAlloc");
    pthread_mutex_lock(&lock);
    free_unwanted();
    CUresult result =
        (bytes <= ARENA_PAGE / 2 ? find_small : find_large)(bytes, context, device, &base);
    if (result == CUDA_SUCCESS && !note(base, bytes, ++numbers)) result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS) *address = base;
    return result;
}

static CUresult arena_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
    size_t row = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES, bytes;
    bool plain = address != NULL && pitch != NULL && width != 0 && height != 0 && row >= width &&
                 (element == 4 || element == 8 || element == 16) &&
                 !__builtin_mul_overflow(row, height, &bytes);
    if (!plain || range_bytes == 0)
        return stranger(real_pitch(address, pitch, width, height, element), address,
                        "cuMemAllocPitch");
    CUresult result = arena_alloc(address, bytes);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

static CUresult pool_async(CUdeviceptr *address, size_t bytes, CUstream stream) {
    return stranger(real_async(address, bytes, stream), address, "cuMemAllocAsync");
}
static CUresult pool_from(CUdeviceptr *address, size_t bytes, CUmemoryPool pool, CUstream stream) {
    return stranger(real_pool(address, bytes, pool, stream), address, "cuMemAllocFromPoolAsync");
}

/* As the driver's own, it waits for all work of the memory's context. */
static CUresult wait_for(uint64_t context) {
    CUresult bad = CUDA_SUCCESS;
    CUcontext value = (CUcontext)(uintptr_t)handle_value(KIND_context, context, &bad);
    if (bad != CUDA_SUCCESS) return CUDA_SUCCESS; /* gone, with its work */
    CUresult result = DRIVER(cuCtxPushCurrent_v2, CUcontext)(value);
    if (result != CUDA_SUCCESS) return result;
    result = DRIVER(cuCtxSynchronize, void)();
    DRIVER(cuCtxPopCurrent_v2, CUcontext *)(&value);
    return result;
}

/* False: the memory is not ours. */
static bool free_ours(CUdeviceptr address, CUresult *result) {
    pthread_mutex_lock(&lock);
    uint32_t at = place_of_allocation(address);
    bool ours = at < allocation_count && allocations[at].base == address;
    uint64_t context = ours ? mapping_of(address)->is.context : 0;
    bool later = ours && captures_run() &&
                 moves_grow((void **)&unwanted, unwanted_count, &unwanted_room, sizeof *unwanted);
    if (later) unwanted[unwanted_count++] = address;
    pthread_mutex_unlock(&lock);
    if (!ours) return false;
    *result = later ? CUDA_SUCCESS : wait_for(context);
    if (later || *result != CUDA_SUCCESS) return true;
    pthread_mutex_lock(&lock);
    free_unwanted();
    at = place_of_allocation(address);
    *result = at < allocation_count && allocations[at].base == address ? forget(at)
                                                                       : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return true;
}

static CUresult arena_free(CUdeviceptr address) {
    CUresult result;
    if (free_ours(address, &result)) return result;
    result = real_free(address);
    if (result == CUDA_SUCCESS) stranger_gone(address);
    return result;
}

static CUresult arena_free_async(CUdeviceptr address, CUstream stream) {
    CUresult result;
    if (free_ours(address, &result)) return result;
    result = real_free_async(address, stream);
    if (result == CUDA_SUCCESS) stranger_gone(address);
    return result;
}

void arena_context_gone(uint64_t context) {
    pthread_mutex_lock(&lock);
    for (uint32_t i = allocation_count; i-- > 0;)
        if (mapping_of(allocations[i].base)->is.context == context) forget(i);
    for (uint32_t i = mapping_count; i-- > 0;)
        if (mappings[i]->is.context == context) mapping_remove(i);
    pthread_mutex_unlock(&lock);
}

/* ---- the range ---- */

bool arena_reserve(uint64_t base, uint64_t bytes, uint64_t first_number) {
    CUdeviceptr got = 0;
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long) =
        DRIVER(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    if (range_bytes != 0 && base == range_base && bytes == range_bytes) {
        numbers = first_number;
        return true;
    }
    if (reserve == NULL || bytes != RANGE_BYTES || base % ARENA_PAGE != 0 || range_bytes != 0 ||
        reserve(&got, bytes, ARENA_PAGE, base, 0) != CUDA_SUCCESS)
        return false;
    if (got != base) {
        DRIVER(cuMemAddressFree, CUdeviceptr, size_t)(got, bytes);
        return false;
    }
    range_base = base;
    range_bytes = bytes;
    numbers = first_number;
    return true;
}

/* A driver that has none goes on to have none. */
#define TAKE(real, symbol, ours)                   \
    if (driver_function(EGPU_FN_##symbol) != NULL) \
    real = (__typeof__(real))driver_replace(EGPU_FN_##symbol, (driver_pointer)(ours))

void arena_begin(const uint8_t *seed) {
    CUmemAllocationProp properties = mapping_properties(0);
    size_t page = 0;
    CUresult (*granularity)(size_t *, const CUmemAllocationProp *,
                            CUmemAllocationGranularity_flags) =
        DRIVER(cuMemGetAllocationGranularity, size_t *, const CUmemAllocationProp *,
               CUmemAllocationGranularity_flags);
    bool able = granularity != NULL &&
                granularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
                page != 0 && ARENA_PAGE % page == 0;
    for (unsigned i = 0; seed != NULL && able && range_bytes == 0 && i < RANGES; i++)
        arena_reserve(FIRST_RANGE + (seed[0] + i) % RANGES * RANGE_BYTES, RANGE_BYTES, 0);
    TAKE(real_alloc, cuMemAlloc_v2, arena_alloc);
    TAKE(real_pitch, cuMemAllocPitch_v2, arena_pitch);
    TAKE(real_async, cuMemAllocAsync, pool_async);
    TAKE(real_pool, cuMemAllocFromPoolAsync, pool_from);
    TAKE(real_free, cuMemFree_v2, arena_free);
    TAKE(real_free_async, cuMemFreeAsync, arena_free_async);
    pointers_begin();
}

/* ---- for moves, and what the driver says of pointers ---- */

bool arena_find(uint64_t address, struct arena_allocation *found) {
    pthread_mutex_lock(&lock);
    uint32_t at = place_of_allocation(address + 1);
    bool inside = at != 0 && address - allocations[at - 1].base < allocations[at - 1].bytes;
    if (inside) *found = allocations[at - 1];
    pthread_mutex_unlock(&lock);
    return inside;
}

uint64_t arena_bytes(void) {
    pthread_mutex_lock(&lock);
    uint64_t bytes = mapping_bytes;
    pthread_mutex_unlock(&lock);
    return bytes;
}

struct arena_state arena_state(void) {
    return (struct arena_state){range_base, range_bytes, numbers, mapping_count, allocation_count};
}
const struct arena_mapping *arena_mapping(uint32_t index) { return &mappings[index]->is; }
struct arena_mapping *arena_mappings(uint32_t *count) {
    pthread_mutex_lock(&lock);
    struct arena_mapping *copy = malloc((mapping_count + 1) * sizeof *copy);
    *count = copy == NULL ? 0 : mapping_count;
    for (uint32_t i = 0; i < *count; i++) copy[i] = mappings[i]->is;
    pthread_mutex_unlock(&lock);
    return copy;
}
const struct arena_allocation *arena_allocation(uint32_t index) { return &allocations[index]; }

CUresult arena_map(const struct arena_mapping *is, bool ahead) {
    struct mapping *made;
    uint64_t end = is->base + is->bytes;
    if (is->bytes == 0 || is->bytes % ARENA_PAGE != 0 || is->base % ARENA_PAGE != 0 ||
        is->base < range_base || end < is->base || end > range_base + range_bytes ||
        is->shared > 1 || (is->shared && is->bytes != ARENA_PAGE))
        return CUDA_ERROR_INVALID_VALUE;
    if (!ahead && mapping_adopt(is)) return CUDA_SUCCESS;
    uint32_t next = mapping_index(is->base);
    if (next < mapping_count && mappings[next]->is.base < end) return CUDA_ERROR_INVALID_VALUE;
    if (next != 0 && is->base - mappings[next - 1]->is.base < mappings[next - 1]->is.bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = mapping_add(is, &made);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !ahead && mappings_drop_ahead())
        result = mapping_add(is, &made);
    if (result == CUDA_SUCCESS) made->ahead = ahead;
    return result;
}

void arena_drop_ahead(void) { mappings_drop_ahead(); }

bool arena_hold(const struct arena_mapping *is) {
    pthread_mutex_lock(&lock);
    struct mapping *mapping = mapping_of(is->base);
    if (mapping != NULL && mapping_same(&mapping->is, is)) return true;
    pthread_mutex_unlock(&lock);
    return false;
}

void arena_give(void) { pthread_mutex_unlock(&lock); }

bool arena_allocate(const struct arena_allocation *is) {
    struct mapping *mapping = mapping_of(is->base);
    if (mapping == NULL || is->bytes == 0 || is->number > numbers ||
        is->bytes > mapping->is.bytes - (is->base - mapping->is.base))
        return false;
    uint32_t next = place_of_allocation(is->base);
    if (next < allocation_count && allocations[next].base - is->base < is->bytes) return false;
    if (next != 0 && is->base - allocations[next - 1].base < allocations[next - 1].bytes)
        return false;
    uint64_t offset = is->base - mapping->is.base;
    if (mapping->is.shared ? offset % ARENA_UNIT != 0 : offset != 0) return false;
    for (uint64_t i = 0; mapping->is.shared && i < mapping_units(is->bytes); i++)
        if (mapping_unit_used(mapping, offset / ARENA_UNIT + i)) return false;
    return note(is->base, is->bytes, is->number);
}

bool arena_covers(uint64_t address, uint64_t bytes, struct arena_mapping *is) {
    const struct mapping *mapping = mapping_of(address);
    if (mapping == NULL || bytes > mapping->is.bytes - (address - mapping->is.base)) return false;
    *is = mapping->is;
    return true;
}
