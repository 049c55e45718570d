/* Kernels as functions: their attributes and occupancy. */
#include <stdbool.h>

#include "registration.h"

cudaError_t runtime_used(CUresult result, CUkernel kernel) {
    CUfunction function;
    bool invalid = result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE;
    if (invalid && /* the kernel, or another argument */
        driver.cuKernelGetFunction(&function, kernel) != CUDA_SUCCESS)
        return runtime_error(cudaErrorInvalidDeviceFunction);
    return runtime_result(result);
}

cudaError_t runtime_function(const void *entry, CUfunction *function) {
    CUkernel kernel;
    cudaError_t error = runtime_kernel(entry, &kernel);
    if (error != cudaSuccess) return error;
    return runtime_used(driver.cuKernelGetFunction(function, kernel), kernel);
}

#define NEED_FUNCTION(function, entry)                           \
    CUfunction function;                                         \
    do {                                                         \
        cudaError_t error_ = runtime_function(entry, &function); \
        if (error_ != cudaSuccess) return runtime_error(error_); \
    } while (0)

API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    return runtime_error(runtime_kernel(host, (CUkernel *)kernel));
}

API cudaError_t cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    return kernel ? __cudaGetKernel(kernel, host)
                  : (cudaError_t)runtime_error(cudaErrorInvalidValue);
}

API cudaError_t cudaGetFuncBySymbol(cudaFunction_t *out, const void *entry) {
    NEED_FUNCTION(function, entry);
    *out = function;
    return cudaSuccess;
}

API cudaError_t cudaFuncGetName(const char **name, const void *entry) {
    NEED_FUNCTION(function, entry);
    return runtime_result(driver.cuFuncGetName(name, function));
}

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *entry) {
    NEED_FUNCTION(function, entry);
    int shared = 0, constant = 0, local = 0;
    *out = (struct cudaFuncAttributes){0};
    const struct {
        CUfunction_attribute name;
        int *value;
    } asked[] = {
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, &shared},
        {CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, &constant},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, &local},
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &out->maxThreadsPerBlock},
        {CU_FUNC_ATTRIBUTE_NUM_REGS, &out->numRegs},
        {CU_FUNC_ATTRIBUTE_PTX_VERSION, &out->ptxVersion},
        {CU_FUNC_ATTRIBUTE_BINARY_VERSION, &out->binaryVersion},
        {CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, &out->cacheModeCA},
        {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, &out->maxDynamicSharedSizeBytes},
        {CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, &out->preferredShmemCarveout},
        {CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, &out->clusterDimMustBeSet},
        {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, &out->requiredClusterWidth},
        {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT, &out->requiredClusterHeight},
        {CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH, &out->requiredClusterDepth},
        {CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, &out->nonPortableClusterSizeAllowed},
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        CUresult result = driver.cuFuncGetAttribute(asked[i].value, asked[i].name, function);
        if (result != CUDA_SUCCESS) return runtime_result(result);
    }
    out->sharedSizeBytes = (size_t)shared;
    out->constSizeBytes = (size_t)constant;
    out->localSizeBytes = (size_t)local;
    return cudaSuccess;
}

/* Attributes have the same numbers in both APIs. A launch names the kernel, occupancy the context's
 * function, and CUDA does not document that the two share attributes: set both. */
API cudaError_t cudaFuncSetAttribute(const void *entry, enum cudaFuncAttribute attribute,
                                     int value) {
    CUkernel kernel;
    CUdevice device = 0;
    NEED_FUNCTION(function, entry);
    CUfunction_attribute same = (CUfunction_attribute)attribute;
    CUresult result = driver.cuFuncSetAttribute(function, same, value);
    if (result == CUDA_SUCCESS) result = driver.cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS && runtime_kernel(entry, &kernel) == cudaSuccess)
        result = driver.cuKernelSetAttribute(same, value, kernel, device);
    return runtime_result(result);
}

API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel,
                                                enum cudaFuncAttribute attribute, int value,
                                                int device) {
    NEED_CONTEXT();
    CUresult result = driver.cuKernelSetAttribute((CUfunction_attribute)attribute, value,
                                                  (CUkernel)kernel, device);
    return runtime_used(result, (CUkernel)kernel);
}

API cudaError_t cudaFuncSetCacheConfig(const void *entry, enum cudaFuncCache config) {
    NEED_FUNCTION(function, entry);
    return runtime_result(driver.cuFuncSetCacheConfig(function, (CUfunc_cache)config));
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int *blocks, const void *entry, int block_size, size_t shared, unsigned int flags) {
    NEED_FUNCTION(function, entry);
    return runtime_result(driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks, function, block_size, shared, flags));
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *entry,
                                                              int block_size, size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, entry, block_size, shared,
                                                                  cudaOccupancyDefault);
}

API cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *shared, const void *entry,
                                                          int blocks, int block_size) {
    NEED_FUNCTION(function, entry);
    return runtime_result(
        driver.cuOccupancyAvailableDynamicSMemPerBlock(shared, function, blocks, block_size));
}

/* Return how many clusters of such a launch run at once; or the most blocks of a cluster. */
static CUlaunchConfig as_driver_has(const cudaLaunchConfig_t *config) {
    return (CUlaunchConfig){
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned int)config->dynamicSmemBytes,
        .attrs = (CUlaunchAttribute *)config->attrs,
        .numAttrs = config->numAttrs,
    };
}

API cudaError_t cudaOccupancyMaxActiveClusters(int *count, const void *entry,
                                               const cudaLaunchConfig_t *config) {
    if (!config) return runtime_error(cudaErrorInvalidValue);
    NEED_FUNCTION(function, entry);
    CUlaunchConfig asked = as_driver_has(config);
    return runtime_result(driver.cuOccupancyMaxActiveClusters(count, function, &asked));
}

API cudaError_t cudaOccupancyMaxPotentialClusterSize(int *size, const void *entry,
                                                     const cudaLaunchConfig_t *config) {
    if (!config) return runtime_error(cudaErrorInvalidValue);
    NEED_FUNCTION(function, entry);
    CUlaunchConfig asked = as_driver_has(config);
    return runtime_result(driver.cuOccupancyMaxPotentialClusterSize(size, function, &asked));
}

API cudaError_t cudaFuncGetParamInfo(const void *entry, size_t index, size_t *offset,
                                     size_t *bytes) {
    NEED_FUNCTION(function, entry);
    return runtime_result(driver.cuFuncGetParamInfo(function, index, offset, bytes));
}

API cudaError_t cudaFuncGetParamCount(const void *entry, size_t *count) {
    NEED_FUNCTION(function, entry);
    return runtime_result(driver.cuFuncGetParamCount(function, count));
}

API cudaError_t cudaFuncSetSharedMemConfig(const void *entry, enum cudaSharedMemConfig config) {
    NEED_FUNCTION(function, entry);
    return runtime_result(driver.cuFuncSetSharedMemConfig(function, (CUsharedconfig)config));
}
