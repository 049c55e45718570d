/* Launches. Compiled twice, as copy.c is. */
#include <string.h>

#include "registration.h"

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define STREAM(stream) ((CUstream)stream_of(stream))
#define LAUNCH __cudaLaunchKernel_ptsz
#else
#define STREAM(stream) (stream)
#define LAUNCH __cudaLaunchKernel
#endif

/* The driver accepts a kernel's handle wherever it takes a function. */
static cudaError_t launch(CUkernel kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                          CUstream stream) {
    if (shared > 0xffffffffu) return runtime_error(cudaErrorInvalidConfiguration);
    CUresult result =
        driver.cuLaunchKernel((CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                              (unsigned int)shared, stream, arguments, NULL);
    return __builtin_expect(result == CUDA_SUCCESS, 1)
               ? cudaSuccess
               : runtime_launched(result, kernel, grid, block, shared);
}

API cudaError_t cudaLaunchKernel(const void *entry, dim3 grid, dim3 block, void **arguments,
                                 size_t shared, cudaStream_t stream) {
    CUkernel kernel;
    cudaError_t error = runtime_kernel(entry, &kernel);
    if (error != cudaSuccess) return runtime_error(error);
    return launch(kernel, grid, block, arguments, shared, STREAM(stream));
}

/* nvcc's output looks the kernel up once; if that failed it launches without a kernel. */
API cudaError_t LAUNCH(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                       cudaStream_t stream) {
    NEED_CONTEXT();
    if (!kernel) return runtime_error(runtime_load_failure());
    return launch((CUkernel)kernel, grid, block, arguments, shared, STREAM(stream));
}

API cudaError_t cudaLaunchCooperativeKernel(const void *entry, dim3 grid, dim3 block,
                                            void **arguments, size_t shared, cudaStream_t stream) {
    CUkernel kernel;
    cudaError_t error = runtime_kernel(entry, &kernel);
    if (error != cudaSuccess) return runtime_error(error);
    if (shared > 0xffffffffu) return runtime_error(cudaErrorInvalidConfiguration);
    CUresult result = driver.cuLaunchCooperativeKernel(
        (CUfunction)kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned int)shared,
        STREAM(stream), arguments);
    return runtime_launched(result, kernel, grid, block, shared);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *entry,
                                    void **arguments) {
    _Static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute),
                   "the attributes of both APIs are one structure");
    if (!config) return runtime_error(cudaErrorInvalidValue);
    CUkernel kernel;
    cudaError_t error = runtime_kernel(entry, &kernel);
    if (error != cudaSuccess) return runtime_error(error);
    if (config->dynamicSmemBytes > 0xffffffffu) return runtime_error(cudaErrorInvalidConfiguration);
    CUlaunchConfig asked = {
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned int)config->dynamicSmemBytes,
        .hStream = STREAM(config->stream),
        .attrs = (CUlaunchAttribute *)config->attrs,
        .numAttrs = config->numAttrs,
    };
    CUresult result = driver.cuLaunchKernelEx(&asked, (CUfunction)kernel, arguments, NULL);
    return runtime_launched(result, kernel, config->gridDim, config->blockDim,
                            config->dynamicSmemBytes);
}

API cudaError_t cudaLaunchHostFunc_v2(cudaStream_t stream, cudaHostFn_t function, void *data,
                                      unsigned int mode) {
    NEED_CONTEXT();
    return runtime_result(driver.cuLaunchHostFunc_v2(STREAM(stream), function, data, mode));
}

API cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t *exec, cudaGraph_t graph,
                                               cudaGraphInstantiateParams *params) {
    if (!params) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    CUDA_GRAPH_INSTANTIATE_PARAMS asked = {.flags = params->flags,
                                           .hUploadStream = STREAM(params->uploadStream)};
    CUresult result = driver.cuGraphInstantiateWithParams(exec, graph, &asked);
    params->errNode_out = asked.hErrNode_out;
    params->result_out = (cudaGraphInstantiateResult)asked.result_out;
    return runtime_result(result);
}

/* ---- finding the driver's functions ---- */

static cudaError_t entry_point(const char *symbol, void **function, unsigned int version,
                               unsigned long long flags,
                               enum cudaDriverEntryPointQueryResult *status) {
    if (!symbol || !function) return runtime_error(cudaErrorInvalidValue);
    NEED_DRIVER();
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    if (flags == cudaEnableDefault) flags = cudaEnablePerThreadDefaultStream;
#endif
    *function = NULL;
    CUresult result = driver.cuGetProcAddress(symbol, function, (int)version, flags, &found);
    if (status) *status = (enum cudaDriverEntryPointQueryResult)found;
    if (result == CUDA_ERROR_NOT_FOUND && status) return cudaSuccess; /* *status has the error */
    return runtime_result(result);
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                 unsigned int version, unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *status) {
    return entry_point(symbol, function, version, flags, status);
}

API cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function,
                                        unsigned long long flags,
                                        enum cudaDriverEntryPointQueryResult *status) {
    int version;
    cudaError_t error = cudaRuntimeGetVersion(&version);
    return error == cudaSuccess ? entry_point(symbol, function, (unsigned)version, flags, status)
                                : error;
}
