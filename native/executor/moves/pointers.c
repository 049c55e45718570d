/* What the driver says of memory that we have mapped is what it would say of its own allocations.
 */
#include "executor/moves/moves.h"

static CUresult (*real_attribute)(void *, CUpointer_attribute, CUdeviceptr);
static CUresult (*real_range)(CUdeviceptr *, size_t *, CUdeviceptr);
static CUresult (*real_retain)(CUmemGenericAllocationHandle *, void *);

static CUresult attribute(void *value, CUpointer_attribute which, CUdeviceptr address) {
    struct arena_allocation found;
    if (value == NULL || !arena_find(address, &found)) return real_attribute(value, which, address);
    switch (which) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = found.base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = found.bytes; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(uint64_t *)value = UINT64_C(1) << 62 | found.number;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(bool *)value = true; break;
    default: return real_attribute(value, which, address);
    }
    return CUDA_SUCCESS;
}

static CUresult range(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    struct arena_allocation found;
    if (!arena_find(address, &found)) return real_range(base, bytes, address);
    if (base != NULL) *base = found.base;
    if (bytes != NULL) *bytes = found.bytes;
    return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *handle, void *address) {
    struct arena_allocation found;
    if (arena_find((uintptr_t)address, &found)) return CUDA_ERROR_INVALID_VALUE;
    return real_retain(handle, address);
}

/* A driver that has none goes on to have none. */
#define TAKE(real, symbol, ours)                   \
    if (driver_function(EGPU_FN_##symbol) != NULL) \
    real = (__typeof__(real))driver_replace(EGPU_FN_##symbol, (driver_pointer)(ours))

void pointers_begin(void) {
    TAKE(real_attribute, cuPointerGetAttribute, attribute);
    TAKE(real_range, cuMemGetAddressRange_v2, range);
    TAKE(real_retain, cuMemRetainAllocationHandle, retain);
}
