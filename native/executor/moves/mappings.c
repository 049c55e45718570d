/* The mappings that hold a session's memory. See mappings.h. */
#include "executor/moves/mappings.h"

struct mapping **mappings;
uint32_t mapping_count;
uint64_t mapping_bytes;
static uint32_t mapping_room;

bool moves_grow(void **list, uint32_t count, uint32_t *room, size_t size) {
    if (count < *room) return true;
    uint32_t wanted = *room != 0 ? 2 * *room : 64;
    void *grown = realloc(*list, wanted * size);
    if (grown == NULL) return false;
    *list = grown;
    *room = wanted;
    return true;
}

CUmemAllocationProp mapping_properties(int32_t device) {
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

uint32_t mapping_index(uint64_t base) {
    uint32_t low = 0, high = mapping_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (mappings[middle]->is.base < base)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static CUresult map(struct mapping *made) {
    CUmemAllocationProp properties = mapping_properties(made->is.device);
    CUmemAccessDesc access = {.location = properties.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result =
        DRIVER(cuMemCreate, CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
               unsigned long long)(&made->handle, made->is.bytes, &properties, 0);
    if (result != CUDA_SUCCESS) return result;
    result = DRIVER(cuMemMap, CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                    unsigned long long)(made->is.base, made->is.bytes, 0, made->handle, 0);
    if (result == CUDA_SUCCESS) {
        result = DRIVER(cuMemSetAccess, CUdeviceptr, size_t, const CUmemAccessDesc *,
                        size_t)(made->is.base, made->is.bytes, &access, 1);
        if (result != CUDA_SUCCESS)
            DRIVER(cuMemUnmap, CUdeviceptr, size_t)(made->is.base, made->is.bytes);
    }
    if (result != CUDA_SUCCESS) DRIVER(cuMemRelease, CUmemGenericAllocationHandle)(made->handle);
    return result;
}

CUresult mapping_add(const struct arena_mapping *is, struct mapping **added) {
    uint32_t at = mapping_index(is->base);
    struct mapping *made = calloc(1, sizeof *made);
    if (made == NULL ||
        !moves_grow((void **)&mappings, mapping_count, &mapping_room, sizeof *mappings)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->is = *is;
    made->free_units = is->shared ? ARENA_UNITS : 0;
    CUresult result = map(made);
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    memmove(&mappings[at + 1], &mappings[at], (mapping_count - at) * sizeof *mappings);
    mappings[at] = *added = made;
    mapping_count++;
    mapping_bytes += is->bytes;
    return CUDA_SUCCESS;
}

CUresult mapping_remove(uint32_t at) {
    struct mapping *gone = mappings[at];
    CUresult result = DRIVER(cuMemUnmap, CUdeviceptr, size_t)(gone->is.base, gone->is.bytes);
    if (result != CUDA_SUCCESS) return result;
    DRIVER(cuMemRelease, CUmemGenericAllocationHandle)(gone->handle);
    mapping_bytes -= gone->is.bytes;
    mapping_count--;
    memmove(&mappings[at], &mappings[at + 1], (mapping_count - at) * sizeof *mappings);
    free(gone);
    return CUDA_SUCCESS;
}

bool mapping_same(const struct arena_mapping *one, const struct arena_mapping *other) {
    return one->base == other->base && one->bytes == other->bytes && one->device == other->device &&
           one->shared == other->shared;
}

bool mapping_adopt(const struct arena_mapping *is) {
    uint32_t at = mapping_index(is->base);
    if (at != 0 && is->base - mappings[at - 1]->is.base < mappings[at - 1]->is.bytes) at--;
    while (at < mapping_count && mappings[at]->ahead &&
           mappings[at]->is.base < is->base + is->bytes) {
        struct mapping *found = mappings[at];
        if (mapping_same(&found->is, is)) {
            found->is.context = is->context;
            return !(found->ahead = false);
        }
        if (mapping_remove(at) != CUDA_SUCCESS) return false;
    }
    return false;
}

bool mappings_drop_ahead(void) {
    bool any = false;
    for (uint32_t at = mapping_count; at-- > 0;)
        if (mappings[at]->ahead) any |= mapping_remove(at) == CUDA_SUCCESS;
    return any;
}

struct mapping *mapping_at(uint64_t address) {
    uint32_t at = mapping_index(address + 1);
    if (at == 0) return NULL;
    struct mapping *found = mappings[at - 1];
    return address - found->is.base < found->is.bytes ? found : NULL;
}

struct mapping *mapping_of(uint64_t address) {
    struct mapping *found = mapping_at(address);
    return found != NULL && !found->ahead ? found : NULL;
}

bool mapping_fill(uint64_t address, uint64_t bytes, struct arena_mapping *is) {
    struct mapping *mapping = mapping_at(address);
    if (mapping == NULL || !mapping->ahead || address - mapping->is.base != mapping->filled ||
        bytes > mapping->is.bytes - mapping->filled)
        return false;
    mapping->filled += bytes;
    *is = mapping->is;
    return true;
}

bool mapping_filled(uint64_t address, uint64_t bytes) {
    const struct mapping *mapping = mapping_of(address);
    return mapping != NULL && address - mapping->is.base <= mapping->filled &&
           bytes <= mapping->filled - (address - mapping->is.base);
}

uint64_t mapping_place(uint64_t range_base, uint64_t range_bytes, uint64_t bytes) {
    uint64_t at = range_base;
    for (uint32_t i = 0; i < mapping_count; i++) {
        if (mappings[i]->is.base - at >= bytes) return at;
        at = mappings[i]->is.base + mappings[i]->is.bytes;
    }
    return range_base + range_bytes - at >= bytes ? at : 0;
}

uint64_t mapping_units(uint64_t bytes) { return (bytes + ARENA_UNIT - 1) / ARENA_UNIT; }

bool mapping_unit_used(const struct mapping *mapping, uint64_t unit) {
    return mapping->used[unit / 64] >> unit % 64 & 1;
}

void mapping_mark(struct mapping *mapping, uint64_t address, uint64_t bytes, bool used) {
    uint64_t first = (address - mapping->is.base) / ARENA_UNIT, count = mapping_units(bytes);
    for (uint64_t unit = first; unit < first + count; unit++)
        if (used)
            mapping->used[unit / 64] |= UINT64_C(1) << unit % 64;
        else
            mapping->used[unit / 64] &= ~(UINT64_C(1) << unit % 64);
    mapping->free_units += used ? -count : count;
}

uint64_t mapping_find_units(const struct mapping *mapping, uint64_t count) {
    uint64_t run = 0;
    for (uint64_t unit = 0; unit < ARENA_UNITS; unit++) {
        run = mapping_unit_used(mapping, unit) ? 0 : run + 1;
        if (run == count) return unit + 1 - count;
    }
    return ARENA_UNITS;
}
