/* Allocations that we map ourselves: addresses, physical memory and access, each by its own call of
 * the driver. The physical memory can go while the addresses stay, so whatever the program keeps (a
 * pointer, a graph, a texture) is right again when there is memory behind them.
 *
 * Memory below a page of the card (PHYSICAL_PAGE) stays an allocation of the driver's: a mapping
 * would take a page for each. So does what is allocated during a capture, where the driver has its
 * own rules.
 */
#include "parking.h"

#include <stdlib.h>
#include <sys/mman.h>

struct managed *managed_all[MANAGED_BUCKETS];
static egpu_lock lock;
static struct managed *unwanted; /* freed during a capture, when nobody can wait for the device */

void managed_forget(void) {
    lock.word = 0;
    unwanted = NULL;
    for (unsigned i = 0; i < MANAGED_BUCKETS; i++) managed_all[i] = NULL; /* left behind */
}

static struct managed **bucket_of(CUdeviceptr address) {
    return &managed_all[address / PHYSICAL_PAGE % MANAGED_BUCKETS];
}

static void put(struct managed *one) {
    lock_take(&lock);
    struct managed **bucket = bucket_of(one->address);
    one->next = *bucket;
    *bucket = one;
    lock_drop(&lock);
}

static struct managed *take(CUdeviceptr address) {
    lock_take(&lock);
    struct managed **link = bucket_of(address);
    while (*link != NULL && (*link)->address != address) link = &(*link)->next;
    struct managed *one = *link;
    if (one != NULL) *link = one->next;
    lock_drop(&lock);
    return one;
}

bool managed_look(CUdeviceptr base, struct managed *out) {
    lock_take(&lock);
    const struct managed *one = *bucket_of(base);
    while (one != NULL && one->address != base) one = one->next;
    if (one != NULL) *out = *one;
    lock_drop(&lock);
    return one != NULL;
}

unsigned managed_contexts(CUcontext *list, unsigned most) {
    unsigned count = 0;
    lock_take(&lock);
    MANAGED_EACH(one) {
        unsigned i = 0;
        while (i < count && list[i] != one->context) i++;
        if (i < count || count > most) continue;
        if (count < most) list[count] = one->context;
        count++;
    }
    lock_drop(&lock);
    return count;
}

static CUmemAllocationProp properties_of(CUdevice ordinal) {
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
    };
}

CUresult managed_create(struct managed *one) {
    CUmemAllocationProp properties = properties_of(one->ordinal);
    CUresult result = REAL(cuMemCreate)(&one->handle, one->bytes, &properties, 0);
    if (result != CUDA_SUCCESS) one->handle = 0;
    return result;
}

CUresult managed_map(struct managed *one) {
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = one->ordinal},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result = REAL(cuMemMap)(one->address, one->bytes, 0, one->handle, 0);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuMemSetAccess)(one->address, one->bytes, &access, 1);
    if (result != CUDA_SUCCESS) REAL(cuMemUnmap)(one->address, one->bytes);
    return result;
}

CUresult managed_unmap(struct managed *one) {
    CUresult result = REAL(cuMemUnmap)(one->address, one->bytes);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuMemRelease)(one->handle);
    one->handle = 0;
    return result;
}

/* The device's page, or 0 where it cannot map memory. */
static size_t page_of(CUdevice ordinal) {
    int able = 0;
    size_t page = 0;
    CUmemAllocationProp properties = properties_of(ordinal);
    if (REAL(cuMemCreate) == NULL || REAL(cuMemAddressReserve) == NULL ||
        REAL(cuDeviceGetAttribute)(&able, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                   ordinal) != CUDA_SUCCESS ||
        !able ||
        REAL(cuMemGetAllocationGranularity)(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
            CUDA_SUCCESS)
        return 0;
    return page;
}

static CUresult make(struct managed *one) {
    CUresult result = REAL(cuMemAddressReserve)(&one->address, one->bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS) return result;
    result = managed_create(one);
    if (result == CUDA_SUCCESS) {
        result = managed_map(one);
        if (result != CUDA_SUCCESS) REAL(cuMemRelease)(one->handle);
    }
    if (result != CUDA_SUCCESS) REAL(cuMemAddressFree)(one->address, one->bytes);
    return result;
}

/* The slice has the room, and the card does not yet: others are leaving it. */
static CUresult make_later(struct managed *one) {
    struct room_wait wait;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    room_begin(&wait, one->bytes);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && room_pause(&wait)) {
        if (!room_claim(&wait)) continue;
        result = make(one);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) room_unclaim(&wait);
    }
    if (room_end(&wait) || result != CUDA_SUCCESS) return result;
    /* Parked meanwhile, and it does not wake. */
    managed_unmap(one);
    REAL(cuMemAddressFree)(one->address, one->bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Gives everything back; the device is through with it. */
static CUresult unmake(struct managed *one) {
    CUresult result = one->handle != 0 ? managed_unmap(one) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) return result;
    if (one->copy != NULL) munmap(one->copy, one->bytes);
    REAL(cuMemAddressFree)(one->address, one->bytes);
    free(one);
    return CUDA_SUCCESS;
}

static bool is_capturing(void) { return __atomic_load_n(&capturing, __ATOMIC_ACQUIRE) != 0; }

/* The driver's own way to free waits for the device, too. */
static CUresult synchronize(CUcontext context) {
    CUresult result = REAL(cuCtxPushCurrent_v2)(context);
    if (result != CUDA_SUCCESS) return result;
    result = REAL(cuCtxSynchronize)();
    REAL(cuCtxPopCurrent_v2)(&context);
    return result;
}

/* After a capture: what was freed during it. */
static void settle_unwanted(void) {
    if (__atomic_load_n(&unwanted, __ATOMIC_ACQUIRE) == NULL || is_capturing()) return;
    lock_take(&lock);
    struct managed *list = unwanted;
    __atomic_store_n(&unwanted, NULL, __ATOMIC_RELEASE);
    lock_drop(&lock);
    while (list != NULL) {
        struct managed *one = list;
        list = one->next;
        uint64_t bytes = one->bytes;
        int device = one->device;
        if (synchronize(one->context) == CUDA_SUCCESS && unmake(one) == CUDA_SUCCESS)
            account_release(device, EGPU_MEMORY_DEVICE, bytes);
    }
}

CUresult managed_alloc(CUdeviceptr *pointer, uint64_t bytes, CUcontext context, int device,
                       uint64_t *charged) {
    CUdevice ordinal;
    settle_unwanted();
    if (bytes < PHYSICAL_PAGE || device < 0 || is_capturing() || REAL(cuCtxGetDevice) == NULL ||
        REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS)
        return CUDA_ERROR_NOT_SUPPORTED;
    size_t page = page_of(ordinal);
    if (page == 0) return CUDA_ERROR_NOT_SUPPORTED;
    struct managed *one = malloc(sizeof *one);
    if (one == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *one = (struct managed){.bytes = round_up(bytes, page),
                            .asked = bytes,
                            .context = context,
                            .ordinal = ordinal,
                            .device = device};
    *charged = one->bytes;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    asked_listen(); /* whoever waits for room can be parked */
    if (memory_reserve(device, EGPU_MEMORY_DEVICE, one->bytes)) {
        result = make(one);
        if (result == CUDA_ERROR_OUT_OF_MEMORY && room_is_shared()) result = make_later(one);
        if (result == CUDA_SUCCESS) {
            *pointer = one->address;
            put(one);
            return CUDA_SUCCESS;
        }
        account_release(device, EGPU_MEMORY_DEVICE, one->bytes);
    }
    free(one);
    return result;
}

bool managed_free(CUdeviceptr pointer, CUresult *result) {
    settle_unwanted();
    struct managed *one = take(pointer);
    if (one == NULL) return false;
    if (is_capturing()) {
        lock_take(&lock);
        one->next = unwanted;
        __atomic_store_n(&unwanted, one, __ATOMIC_RELEASE);
        lock_drop(&lock);
        /* Charged until it is gone: the caller is about to release it. */
        account_force(one->device, EGPU_MEMORY_DEVICE, one->bytes);
        *result = CUDA_SUCCESS;
        return true;
    }
    *result = synchronize(one->context);
    if (*result == CUDA_SUCCESS) *result = unmake(one);
    if (*result != CUDA_SUCCESS) put(one);
    return true;
}

void managed_context_gone(CUcontext context) {
    lock_take(&lock);
    struct managed *gone = NULL;
    for (unsigned i = 0; i < MANAGED_BUCKETS; i++)
        for (struct managed **link = &managed_all[i]; *link != NULL;) {
            struct managed *one = *link;
            if (one->context != context) {
                link = &one->next;
                continue;
            }
            *link = one->next;
            one->next = gone;
            gone = one;
        }
    lock_drop(&lock);
    while (gone != NULL) {
        struct managed *one = gone;
        gone = one->next;
        unmake(one);
    }
}
