/* Memory of the device and of the host. */
#include "runtime.h"

API cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    if (!pointer) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    *pointer = NULL;
    return bytes ? runtime_result(driver.cuMemAlloc((CUdeviceptr *)pointer, bytes)) : cudaSuccess;
}

API cudaError_t cudaFree(void *pointer) {
    NEED_CONTEXT(); /* programs initialise a device with cudaFree(0) */
    return pointer ? runtime_result(driver.cuMemFree((CUdeviceptr)pointer)) : cudaSuccess;
}

API cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    if (!pointer) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    *pointer = NULL;
    return bytes ? runtime_result(driver.cuMemAllocHost(pointer, bytes)) : cudaSuccess;
}

API cudaError_t cudaFreeHost(void *pointer) {
    NEED_CONTEXT();
    return pointer ? runtime_result(driver.cuMemFreeHost(pointer)) : cudaSuccess;
}

API cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    if (!pointer || !pitch) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    *pointer = NULL;
    *pitch = 0;
    if (width == 0 || height == 0) return cudaSuccess;
    const unsigned int element_bytes = 16; /* the widest element: the pitch suits all */
    return runtime_result(
        driver.cuMemAllocPitch((CUdeviceptr *)pointer, pitch, width, height, element_bytes));
}

API cudaError_t cudaMalloc3D(struct cudaPitchedPtr *made, struct cudaExtent extent) {
    if (!made) return runtime_error(cudaErrorInvalidValue);
    made->xsize = extent.width;
    made->ysize = extent.height;
    return cudaMallocPitch(&made->ptr, &made->pitch, extent.width, extent.height * extent.depth);
}

static enum cudaMemoryType memory_type(unsigned int type, unsigned int managed) {
    if (managed) return cudaMemoryTypeManaged;
    switch (type) {
    case CU_MEMORYTYPE_HOST: return cudaMemoryTypeHost;
    case CU_MEMORYTYPE_DEVICE: return cudaMemoryTypeDevice;
    default: return cudaMemoryTypeUnregistered;
    }
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer) {
    if (!out) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    unsigned int type = 0, managed = 0;
    int ordinal = -2; /* the device of unregistered memory */
    CUdeviceptr device = 0;
    void *host = NULL;
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
        CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *values[] = {&type, &managed, &ordinal, &device, &host};
    CUresult result = driver.cuPointerGetAttributes(sizeof names / sizeof *names, names, values,
                                                    (CUdeviceptr)pointer);
    if (result != CUDA_SUCCESS) return runtime_result(result);
    *out = (struct cudaPointerAttributes){.type = memory_type(type, managed), .device = ordinal};
    if (out->type == cudaMemoryTypeUnregistered) {
        out->device = -2;
        out->hostPointer = (void *)pointer;
        return cudaSuccess;
    }
    out->devicePointer = (void *)device;
    out->hostPointer = out->type == cudaMemoryTypeDevice ? NULL : host;
    return cudaSuccess;
}
