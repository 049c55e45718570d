/* Calls that tell a mapping of ours from an allocation of the driver's: they answer as for the
 * latter. What would reach the memory past the driver keeps it on the card from then on. */
#include "parking.h"

bool mapping_around(CUdeviceptr pointer, struct managed *out) {
    CUdeviceptr base = 0;
    size_t size = 0;
    return __atomic_load_n(&gate_is_on, __ATOMIC_RELAXED) &&
           REAL(cuMemGetAddressRange_v2) != NULL &&
           REAL(cuMemGetAddressRange_v2)(&base, &size, pointer) == CUDA_SUCCESS &&
           managed_look(base, out);
}

/* What the driver says of a mapping and would not say of an allocation. */
static void show(CUpointer_attribute attribute, void *value, const struct managed *one) {
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = one->context; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)value = one->address; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)value = one->asked; break;
    default: break;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                      CUdeviceptr pointer) {
    struct managed one;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuPointerGetAttribute)(value, attribute, pointer);
    if (result == CUDA_SUCCESS && value != NULL && mapping_around(pointer, &one)) {
        show(attribute, value, &one);
        /* for another device that reads it by itself */
        if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) park_pin();
    }
    return result;
}

EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes,
                                       void **values, CUdeviceptr pointer) {
    struct managed one;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuPointerGetAttributes)(count, attributes, values, pointer);
    if (result == CUDA_SUCCESS && mapping_around(pointer, &one))
        for (unsigned i = 0; i < count; i++)
            if (values[i] != NULL) show(attributes[i], values[i], &one);
    return result;
}

EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                      CUdeviceptr pointer) {
    struct managed one;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuPointerSetAttribute)(value, attribute, pointer);
    /* said before memory is given to a network card (GPUDirect) */
    if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS &&
        mapping_around(pointer, &one))
        park_pin();
    return result;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    struct managed one;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemGetAddressRange_v2)(base, size, pointer);
    if (result == CUDA_SUCCESS && size != NULL && mapping_around(pointer, &one)) *size = one.asked;
    return result;
}

EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t size,
                                              CUmemRangeHandleType type, unsigned long long flags) {
    struct managed one;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemGetHandleForAddressRange)(handle, pointer, size, type, flags);
    if (result == CUDA_SUCCESS && mapping_around(pointer, &one)) park_pin();
    return result;
}

/* The driver makes such handles of its own allocations only. */
EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    struct managed one;
    if (!slice_open()) return REFUSED;
    if (mapping_around(pointer, &one)) return CUDA_ERROR_NOT_SUPPORTED;
    return REAL(cuIpcGetMemHandle)(handle, pointer);
}
