/* Allocations: reserve first, ask the driver second, so that no moment exists at which more is held
 * than reserved. */
#include "interposer.h"

#include "parking/parking.h"

#include <stdlib.h>
#include <string.h>

uint64_t charge_of(uint64_t bytes) { return round_up(bytes, EGPU_ALLOCATION_GRANULARITY); }

bool memory_reserve(int device, enum egpu_memory_class class, uint64_t bytes) {
    /* Pools may hold memory that nothing uses: the driver, too, takes it back before it says no. */
    if (__builtin_expect(!account_reserve(device, class, bytes), 0) &&
        !(device >= 0 && pools_reclaim(device) && account_reserve(device, class, bytes)))
        return false;
    if (__builtin_expect(!room_is_shared(), 1) || room_admit(bytes)) return true;
    account_release(device, class, bytes);
    return false;
}

/* Books what the driver gave, or gives the reservation back. */
static CUresult settle(CUresult result, const struct holding *holding, void (*undo)(uint64_t key)) {
    if (result == CUDA_SUCCESS && !table_add(holding)) {
        undo(holding->key);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) account_release(holding->device, holding->class, holding->bytes);
    return result;
}

/* Of the driver's, or a mapping of ours. */
static CUresult free_pointer(CUdeviceptr pointer) {
    CUresult result;
    return gate_is_on && managed_free(pointer, &result) ? result : REAL(cuMemFree_v2)(pointer);
}

static void undo_pointer(uint64_t key) { free_pointer((CUdeviceptr)key); }
static void undo_handle(uint64_t key) { REAL(cuMemRelease)((CUmemGenericAllocationHandle)key); }

static struct holding pointer_to(CUdeviceptr pointer, uint64_t bytes, CUcontext context,
                                 enum egpu_memory_class class, int device) {
    return (struct holding){.key = pointer,
                            .bytes = bytes,
                            .owner = (uint64_t)(uintptr_t)context,
                            .references = 1,
                            .kind = HOLDING_POINTER,
                            .class = (uint8_t)class,
                            .device = (int8_t)device};
}

/* Allocates managed memory instead when the limit is reached and the policy allows spilling. */
static CUresult spill(CUdeviceptr *pointer, uint64_t bytes, unsigned flags, CUcontext context,
                      int device) {
    uint64_t charged = charge_of(bytes);
    if (device < 0 || LIMIT(device, spill_bytes) == 0 || REAL(cuMemAllocManaged) == NULL ||
        !account_reserve(device, EGPU_MEMORY_SPILL, charged)) {
        account_refused(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = REAL(cuMemAllocManaged)(pointer, bytes, flags);
    struct holding holding = pointer_to(result == CUDA_SUCCESS ? *pointer : 0, charged, context,
                                        EGPU_MEMORY_SPILL, device);
    return settle(result, &holding, undo_pointer);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    CUcontext context;
    if (!slice_open()) return REFUSED;
    int device = device_current(&context);
    /* it has the right error */
    if (context == NULL || pointer == NULL || size == 0) return REAL(cuMemAlloc_v2)(pointer, size);
    uint64_t charged = charge_of(size);
    CUresult managed = gate_is_on ? managed_alloc(pointer, size, context, device, &charged)
                                  : CUDA_ERROR_NOT_SUPPORTED;
    if (managed == CUDA_SUCCESS) {
        struct holding mapped = pointer_to(*pointer, charged, context, EGPU_MEMORY_DEVICE, device);
        return settle(CUDA_SUCCESS, &mapped, undo_pointer);
    }
    /* It has waited for room already. */
    bool waited = managed == CUDA_ERROR_OUT_OF_MEMORY && room_is_shared();
    if (waited || !memory_reserve(device, EGPU_MEMORY_DEVICE, charged))
        return spill(pointer, size, CU_MEM_ATTACH_GLOBAL, context, device);
    CUresult result = REAL(cuMemAlloc_v2)(pointer, size);
    struct holding holding = pointer_to(result == CUDA_SUCCESS ? *pointer : 0, charged, context,
                                        EGPU_MEMORY_DEVICE, device);
    return settle(result, &holding, undo_pointer);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags) {
    CUcontext context;
    if (!slice_open()) return REFUSED;
    int device = device_current(&context);
    if (context == NULL || pointer == NULL || size == 0)
        return REAL(cuMemAllocManaged)(pointer, size, flags);
    uint64_t charged = charge_of(size);
    if (!memory_reserve(device, EGPU_MEMORY_MANAGED, charged))
        return spill(pointer, size, flags, context, device);
    CUresult result = REAL(cuMemAllocManaged)(pointer, size, flags);
    struct holding holding = pointer_to(result == CUDA_SUCCESS ? *pointer : 0, charged, context,
                                        EGPU_MEMORY_MANAGED, device);
    return settle(result, &holding, undo_pointer);
}

/* Taken out before the driver frees: afterwards another thread may be given the same pointer. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct holding holding;
    if (!slice_open()) return REFUSED;
    bool known = table_take(HOLDING_POINTER, pointer, &holding);
    CUresult result = free_pointer(pointer);
    if (!known) return result;
    if (result != CUDA_SUCCESS)
        table_add(&holding);
    else if (holding.class == EGPU_MEMORY_POOL)
        pool_freed(&holding, true);
    else
        account_release(holding.device, holding.class, holding.bytes);
    return result;
}

#define FREE_ASYNC(SUFFIX)                                                         \
    EXPORT CUresult cuMemFreeAsync##SUFFIX(CUdeviceptr pointer, CUstream stream) { \
        struct holding holding;                                                    \
        if (!slice_open()) return REFUSED;                                         \
        bool known = table_take(HOLDING_POINTER, pointer, &holding);               \
        CUresult result;                                                           \
        if (!gate_is_on || !managed_free(pointer, &result))                        \
            result = REAL(cuMemFreeAsync##SUFFIX)(pointer, stream);                \
        if (!known) return result;                                                 \
        if (result != CUDA_SUCCESS)                                                \
            table_add(&holding);                                                   \
        else if (holding.class == EGPU_MEMORY_POOL)                                \
            pool_freed(&holding, false);                                           \
        else                                                                       \
            account_release(holding.device, holding.class, holding.bytes);         \
        return result;                                                             \
    }
FREE_ASYNC()
FREE_ASYNC(_ptsz)

/* The driver chooses the pitch: what the usual one needs is charged before, and set right when it
 * has chosen. */
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                   unsigned element) {
    enum { USUAL_PITCH = 512 }; /* what every device is content with */
    CUcontext context;
    if (!slice_open()) return REFUSED;
    int device = device_current(&context);
    if (context == NULL || pointer == NULL || pitch == NULL || width == 0 || height == 0)
        return REAL(cuMemAllocPitch_v2)(pointer, pitch, width, height, element);
    uint64_t area = 0;
    if (__builtin_mul_overflow(round_up(width, USUAL_PITCH), (uint64_t)height, &area))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t charged = charge_of(area);
    CUdeviceptr given = 0;
    size_t given_pitch = 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    bool fits = memory_reserve(device, EGPU_MEMORY_DEVICE, charged);
    if (fits) {
        result = REAL(cuMemAllocPitch_v2)(&given, &given_pitch, width, height, element);
        uint64_t whole =
            result == CUDA_SUCCESS ? charge_of((uint64_t)given_pitch * height) : charged;
        if (whole > charged && !memory_reserve(device, EGPU_MEMORY_DEVICE, whole - charged)) {
            REAL(cuMemFree_v2)(given);
            account_release(device, EGPU_MEMORY_DEVICE, charged);
            fits = false;
        } else {
            if (whole < charged) account_release(device, EGPU_MEMORY_DEVICE, charged - whole);
            struct holding holding = pointer_to(given, whole, context, EGPU_MEMORY_DEVICE, device);
            result = settle(result, &holding, undo_pointer);
        }
    }
    if (!fits) {
        given_pitch = round_up(width, USUAL_PITCH);
        result = spill(&given, area, CU_MEM_ATTACH_GLOBAL, context, device);
    }
    if (result == CUDA_SUCCESS) {
        *pointer = given;
        *pitch = given_pitch;
    }
    return result;
}

/* The first ABI has 32-bit pointers, which no 64-bit program can use. */
EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned size) {
    (void)pointer, (void)size;
    return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width,
                                unsigned height, unsigned element) {
    (void)pointer, (void)pitch, (void)width, (void)height, (void)element;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- physical memory: held while a handle or a mapping refers to it ---- */

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                            const CUmemAllocationProp *properties, unsigned long long flags) {
    CUresult result;
    if (!slice_open()) return REFUSED;
    if (handle == NULL || properties == NULL || size == 0 ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return REAL(cuMemCreate)(handle, size, properties,
                                 flags); /* host memory is not the slice's */
    int device = device_of_ordinal(properties->location.id);
    uint64_t charged = charge_of(size);
    if (!memory_reserve(device, EGPU_MEMORY_PHYSICAL, charged)) {
        account_refused(device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = REAL(cuMemCreate)(handle, size, properties, flags);
    struct holding holding = {.key = result == CUDA_SUCCESS ? *handle : 0,
                              .bytes = charged,
                              .references = 1,
                              .kind = HOLDING_HANDLE,
                              .class = EGPU_MEMORY_PHYSICAL,
                              .device = (int8_t)device};
    return settle(result, &holding, undo_handle);
}

static void drop_reference(uint64_t handle) {
    struct holding holding;
    if (table_refer(handle, -1, &holding) && holding.references == 0)
        account_release(holding.device, holding.class, holding.bytes);
}

/* Dropped before the driver does: afterwards another thread may be given the same handle. The bytes
 * go last. */
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct holding holding;
    if (!slice_open()) return REFUSED;
    bool known = table_refer(handle, -1, &holding);
    CUresult result = REAL(cuMemRelease)(handle);
    if (!known) return result;
    if (result != CUDA_SUCCESS) {
        struct holding again = holding;
        again.references = 1;
        if (holding.references == 0)
            table_add(&again);
        else
            table_refer(handle, 1, &holding);
    } else if (holding.references == 0)
        account_release(holding.device, holding.class, holding.bytes);
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    struct holding holding;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemRetainAllocationHandle)(handle, address);
    struct managed one;
    if (result == CUDA_SUCCESS && mapping_around((CUdeviceptr)(uintptr_t)address, &one)) park_pin();
    if (result == CUDA_SUCCESS) table_refer(*handle, 1, &holding);
    return result;
}

/* Memory that another process made is charged there; what comes back to its maker is one reference
 * more. */
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
                                               CUmemAllocationHandleType type) {
    struct holding holding;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemImportFromShareableHandle)(handle, shared, type);
    if (result == CUDA_SUCCESS) table_refer(*handle, 1, &holding);
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct holding holding;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemMap)(pointer, size, offset, handle, flags);
    if (result == CUDA_SUCCESS && table_refer(handle, 1, &holding)) {
        struct holding mapping = {.key = pointer,
                                  .bytes = size,
                                  .owner = handle,
                                  .references = 1,
                                  .kind = HOLDING_MAPPING};
        if (!table_add(&mapping)) {
            REAL(cuMemUnmap)(pointer, size);
            drop_reference(handle);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return result;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
    struct holding mapping;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemUnmap)(pointer, size);
    /* One call may take down several neighbouring mappings. */
    for (CUdeviceptr at = pointer; result == CUDA_SUCCESS && at < pointer + size;
         at += mapping.bytes) {
        if (!table_take(HOLDING_MAPPING, at, &mapping) || mapping.bytes == 0) break;
        drop_reference(mapping.owner);
    }
    return result;
}
