/* Virtual memory management: addresses, memory and mappings. */
#include "cuda_api.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- reserved addresses: a list, changed rarely ---- */

struct range {
    uint64_t base, size;
    struct range *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;

static bool reserved(uint64_t address, size_t size) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct range *range = ranges; range && !found; range = range->next)
        found = address >= range->base && address - range->base < range->size &&
                size <= range->size - (address - range->base);
    pthread_mutex_unlock(&lock);
    return found;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr hint,
                                 unsigned long long flags) {
    NEED_INIT();
    NEED(out && size && !flags);
    if (size % SIM_CHUNK_BYTES || (alignment & (alignment - 1))) return CUDA_ERROR_INVALID_VALUE;
    struct range *range = calloc(1, sizeof *range);
    if (!range) return CUDA_ERROR_OUT_OF_MEMORY;
    range->size = size;
    range->base = address_reserve(size, alignment, hint);
    if (!range->base) {
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    range->next = ranges;
    ranges = range;
    pthread_mutex_unlock(&lock);
    *out = range->base;
    return CUDA_SUCCESS;
}

static bool anything_mapped(uint64_t address, size_t size) {
    struct extent extent;
    for (uint64_t at = address; at < address + size; at += SIM_CHUNK_BYTES)
        if (memory_find(at, &extent)) return true;
    return false;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    NEED_INIT();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct range **at = &ranges; *at; at = &(*at)->next)
        if ((*at)->base == address && (*at)->size == size && !anything_mapped(address, size)) {
            struct range *range = *at;
            *at = range->next;
            address_release(address, size);
            free(range);
            result = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- memory ---- */

#define OTHER_HANDLES " with handles of fabrics or other systems"
#define FILES "use CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR"

static CUresult check_properties(const CUmemAllocationProp *properties, struct device **device) {
    NEED(properties);
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return engine_unsupported("cuMemCreate with memory that is not on a device",
                                  "use cuMemAllocHost");
    }
    if (properties->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return engine_unsupported("cuMemCreate" OTHER_HANDLES, FILES);
    *device = engine_device(properties->location.id);
    return *device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity,
                                           const CUmemAllocationProp *properties,
                                           CUmemAllocationGranularity_flags option) {
    NEED_INIT();
    NEED(granularity);
    struct device *device;
    CUresult result = check_properties(properties, &device);
    if (result != CUDA_SUCCESS) return result;
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
        option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = SIM_CHUNK_BYTES;
    return CUDA_SUCCESS;
}

/* A handle that a program holds counts as one of the memory's references. */
static CUresult hand_out(struct physical *physical, CUmemGenericAllocationHandle *out) {
    if (atomic_fetch_add(&physical->handles, 1) == 0 && !handle_add(physical, HANDLE_PHYSICAL)) {
        atomic_fetch_sub(&physical->handles, 1);
        physical_release(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUmemGenericAllocationHandle)(uintptr_t)physical;
    return CUDA_SUCCESS;
}

static CUresult physical_of(CUmemGenericAllocationHandle handle, struct physical **out) {
    NEED_INIT();
    *out = (struct physical *)(uintptr_t)handle;
    return handle_kind_of(*out) == HANDLE_PHYSICAL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
                         const CUmemAllocationProp *properties, unsigned long long flags) {
    NEED_INIT();
    NEED(out && size && !flags);
    struct device *device;
    CUresult result = check_properties(properties, &device);
    if (result != CUDA_SUCCESS) return result;
    if (size % SIM_CHUNK_BYTES) return CUDA_ERROR_INVALID_VALUE;
    if (size / SIM_CHUNK_BYTES > device->card->chunk_count) return CUDA_ERROR_OUT_OF_MEMORY;
    struct physical *physical;
    uint32_t chunks = (uint32_t)(size / SIM_CHUNK_BYTES);
    int error = physical_create(&engine.machine, device->card, chunks, &physical);
    if (error == ENOMEM) {
        for (struct pool *pool = device->pools; pool; pool = pool->next) pool_trim(pool, 0);
        error = physical_create(&engine.machine, device->card, chunks, &physical);
    }
    if (error) return CUDA_ERROR_OUT_OF_MEMORY;
    physical->handle_types = properties->requestedHandleTypes;
    return hand_out(physical, out);
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct physical *physical;
    CUresult result = physical_of(handle, &physical);
    if (result != CUDA_SUCCESS) return result;
    if (atomic_fetch_sub(&physical->handles, 1) == 1) handle_remove(physical);
    physical_release(physical);
    return CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
    NEED_INIT();
    NEED(out);
    struct extent extent;
    uint64_t offset;
    uint64_t at = (uint64_t)(uintptr_t)address;
    if (!memory_find(at, &extent) || extent.kind != EXTENT_DEVICE ||
        extent.block_kind != BLOCK_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = memory_physical(at, &offset);
    physical_retain(physical);
    return hand_out(physical, out);
}

/* Return the device of a card. */
static struct device *device_of(const struct sim_card *card) {
    for (int i = 0; i < engine.device_count; i++)
        if (machine_memory_of(&engine.machine, engine.devices[i].card) == card)
            return &engine.devices[i];
    return NULL;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out,
                                                    CUmemGenericAllocationHandle handle) {
    NEED(out);
    struct physical *physical;
    CUresult result = physical_of(handle, &physical);
    if (result != CUDA_SUCCESS) return result;
    *out = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = physical->handle_types,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                                              .id = device_of(physical->card)->ordinal}};
    return CUDA_SUCCESS;
}

/* ---- mapping ---- */

API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct physical *physical;
    CUresult result = physical_of(handle, &physical);
    if (result != CUDA_SUCCESS) return result;
    NEED(address && size && !flags);
    /* Whole allocations only, as in today's driver. */
    if (offset || size != (uint64_t)physical->chunk_count * SIM_CHUNK_BYTES ||
        address % SIM_CHUNK_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    if (!reserved(address, size) || anything_mapped(address, size)) return CUDA_ERROR_INVALID_VALUE;
    struct device *device = device_of(physical->card);
    uint64_t at;
    return of_memory_error(memory_map(&device->mapped, physical, address, size, BLOCK_MAPPED, &at));
}

/* Return whether whole mappings fill this range. */
static bool whole_mappings(uint64_t address, size_t size) {
    uint64_t end = address + size;
    while (address < end) {
        struct extent extent;
        if (!memory_find(address, &extent) || extent.kind != EXTENT_DEVICE ||
            extent.block_kind != BLOCK_MAPPED)
            return false;
        if (extent.base != address || extent.size > end - address) return false;
        address += extent.size;
    }
    return true;
}

API CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    NEED_INIT();
    if (!size || !whole_mappings(address, size)) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < engine.device_count; i++) /* queued work may still use it */
        if (engine.devices[i].primary && atomic_load(&engine.devices[i].primary->alive))
            context_synchronize(engine.devices[i].primary);
    for (uint64_t at = address; at < address + size;) {
        struct extent extent;
        /* another thread was faster */
        if (!memory_find(at, &extent)) return CUDA_ERROR_INVALID_VALUE;
        memory_unmap(at, BLOCK_MAPPED);
        at += extent.size;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *list,
                            size_t count) {
    NEED_INIT();
    NEED(size && list && count);
    if (!whole_mappings(address, size)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (list[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return engine_unsupported("cuMemSetAccess for the host", "use cuMemAllocHost");
        if (!engine_device(list[i].location.id)) return CUDA_ERROR_INVALID_DEVICE;
        if (list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
            return engine_unsupported("cuMemSetAccess for reading alone",
                                      "use CU_MEM_ACCESS_FLAGS_PROT_READWRITE");
    }
    for (uint64_t at = address; at < address + size;) {
        struct extent extent;
        if (!memory_find(at, &extent)) return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < count; i++)
            memory_set_access(at, (unsigned)list[i].location.id,
                              list[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        at += extent.size;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                            CUdeviceptr address) {
    NEED_INIT();
    NEED(flags && location);
    struct extent extent;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !engine_device(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    if (!memory_find(address, &extent) || extent.kind != EXTENT_DEVICE ||
        extent.block_kind != BLOCK_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = extent.access >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                               : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

/* ---- between processes: a file descriptor that names the memory ---- */

#define EXPORT_MAGIC "EGPUMEM1"

struct exported {
    char magic[8];
    struct shared_ref ref;
    uint64_t machine_created; /* the same machine, not just the same layout */
};

API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
    struct physical *physical;
    CUresult result = physical_of(handle, &physical);
    if (result != CUDA_SUCCESS) return result;
    NEED(out && !flags);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return engine_unsupported("cuMemExportToShareableHandle" OTHER_HANDLES, FILES);
    if (!(physical->handle_types & type)) return CUDA_ERROR_INVALID_VALUE;
    if (physical_share(physical) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    struct exported said = {.ref = physical->ref,
                            .machine_created = engine.machine.header->created_unix_ns};
    memcpy(said.magic, EXPORT_MAGIC, sizeof said.magic);
    int fd = memfd_create("egpu-sim-memory", MFD_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    if (write(fd, &said, sizeof said) != (ssize_t)sizeof said) {
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

static CUresult import_fd(int fd, struct physical **out) {
    struct exported said;
    if (pread(fd, &said, sizeof said, 0) != (ssize_t)sizeof said ||
        memcmp(said.magic, EXPORT_MAGIC, sizeof said.magic) != 0 ||
        said.machine_created != engine.machine.header->created_unix_ns)
        return CUDA_ERROR_INVALID_VALUE;
    int error = physical_import(&engine.machine, said.ref, out);
    if (error) return error == ENOENT ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    if (device_of((*out)->card)) return CUDA_SUCCESS;
    physical_release(*out); /* this process does not see the card */
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle,
                                            CUmemAllocationHandleType type) {
    NEED_INIT();
    NEED(out);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return engine_unsupported("cuMemImportFromShareableHandle" OTHER_HANDLES, FILES);
    struct physical *physical;
    CUresult result = import_fd((int)(intptr_t)handle, &physical);
    if (result != CUDA_SUCCESS) return result;
    physical->handle_types = type;
    return hand_out(physical, out);
}

/* ---- external memory: the same descriptors, from another API ---- */

struct external {
    struct physical *physical;
    uint64_t size;
};

API CUresult cuImportExternalMemory(CUexternalMemory *out,
                                    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description) {
    NEED_CONTEXT(context);
    NEED(out && description);
    if (description->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) {
        return engine_unsupported("cuImportExternalMemory from another handle",
                                  "use CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD");
    }
    struct external *external = calloc(1, sizeof *external);
    if (!external) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = import_fd(description->handle.fd, &external->physical);
    if (result == CUDA_SUCCESS &&
        description->size > (uint64_t)external->physical->chunk_count * SIM_CHUNK_BYTES) {
        physical_release(external->physical);
        result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS && !handle_add(external, HANDLE_EXTERNAL)) {
        physical_release(external->physical);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        free(external);
        return result;
    }
    external->size = description->size;
    close(description->handle.fd); /* the driver owns it now */
    *out = (CUexternalMemory)external;
    return CUDA_SUCCESS;
}

API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory handle,
                                             const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *buffer) {
    NEED_CONTEXT(context);
    NEED(out && buffer && !buffer->flags);
    NEED_HANDLE(handle, HANDLE_EXTERNAL);
    struct external *external = (struct external *)handle;
    if (buffer->offset >= external->size || buffer->size == 0 ||
        buffer->size > external->size - buffer->offset)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t base;
    int error = memory_map(&context->memory, external->physical, 0, buffer->offset + buffer->size,
                           BLOCK_IMPORTED, &base);
    if (error) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = base + buffer->offset;
    return CUDA_SUCCESS;
}

/* cuMemFree unmaps buffers, before or after this. */
API CUresult cuDestroyExternalMemory(CUexternalMemory handle) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_EXTERNAL);
    handle_remove(handle);
    physical_release(((struct external *)handle)->physical);
    free(handle);
    return CUDA_SUCCESS;
}
