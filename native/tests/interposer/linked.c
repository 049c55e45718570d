/* A library that names the driver as one it needs, as extension modules of Python do. */
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

int linked_total(size_t *bytes) {
    CUdevice device;
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS) result = cuDeviceGet(&device, 0);
    return result == CUDA_SUCCESS ? cuDeviceTotalMem_v2(bytes, device) : result;
}
