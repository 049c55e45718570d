/* cudaGetDeviceProperties, with one structure per major version, and the version itself. */
#include <string.h>

#include "major.h"
#include "properties12.h"
#include "runtime.h"

IF_12(typedef struct device_properties_12 properties;
      API cudaError_t cudaGetDeviceProperties_v2(properties * out, int device);)
IF_13(typedef struct cudaDeviceProp properties;)

_Static_assert(sizeof(properties) == IF_12(1032) IF_13(1008),
               "the structure of that major version");

/* The release from which the table was made. */
enum { VERSION = IF_12(12090) IF_13(13050) };

API cudaError_t cudaRuntimeGetVersion(int *version) {
    if (!version) return runtime_error(cudaErrorInvalidValue);
    *version = VERSION;
    return cudaSuccess;
}

static int attribute(CUdevice_attribute name, int device) {
    int value = 0;
    return driver.cuDeviceGetAttribute(&value, name, device) == CUDA_SUCCESS ? value : 0;
}

static cudaError_t read_properties(properties *out, int device) {
    if (!out) return runtime_error(cudaErrorInvalidValue);
    NEED_DRIVER();
    memset(out, 0, sizeof *out);
    CUresult result = driver.cuDeviceGetName(out->name, sizeof out->name, device);
    if (result == CUDA_SUCCESS) result = driver.cuDeviceGetUuid((CUuuid *)&out->uuid, device);
    if (result == CUDA_SUCCESS) result = driver.cuDeviceTotalMem(&out->totalGlobalMem, device);
    if (result != CUDA_SUCCESS) return runtime_result(result);
#define PROPERTY(field, name) \
    out->field = (__typeof__(out->field))attribute(CU_DEVICE_ATTRIBUTE_##name, device);
#include "properties.def"
    return cudaSuccess;
}

IF_12(API cudaError_t cudaGetDeviceProperties_v2(properties *out, int device) {
    return read_properties(out, device);
})
IF_13(API cudaError_t cudaGetDeviceProperties(properties *out, int device) {
    return read_properties(out, device);
})

/* Return how many of the wanted properties a device has; 0 means not wanted. */
static int merits(const properties *is, const properties *wanted) {
    int version = is->major * 1000 + is->minor, asked = wanted->major * 1000 + wanted->minor;
    return (version >= asked) + (is->totalGlobalMem >= wanted->totalGlobalMem) +
           (is->sharedMemPerBlock >= wanted->sharedMemPerBlock) +
           (is->regsPerBlock >= wanted->regsPerBlock) +
           (is->maxThreadsPerBlock >= wanted->maxThreadsPerBlock) +
           (is->multiProcessorCount >= wanted->multiProcessorCount);
}

/* Return the first device with the most of them. */
API cudaError_t cudaChooseDevice(int *device, const struct cudaDeviceProp *wanted) {
    int count, best = -1;
    if (!device || !wanted) return runtime_error(cudaErrorInvalidValue);
    cudaError_t error = cudaGetDeviceCount(&count);
    for (int i = 0; i < count && error == cudaSuccess; i++) {
        properties is;
        error = read_properties(&is, i);
        int found = error == cudaSuccess ? merits(&is, (const void *)wanted) : -1;
        if (found > best) *device = i;
        if (found > best) best = found;
    }
    return error;
}
