/* Graph nodes whose parameters must be translated for the driver: kernels, copies and fills. */
#include "runtime.h"

#define WHERE cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *before, size_t count

/* ---- kernels ---- */

static cudaError_t kernel_of(const struct cudaKernelNodeParams *asked,
                             CUDA_KERNEL_NODE_PARAMS *kernel) {
    if (!asked) return cudaErrorInvalidValue;
    *kernel = (CUDA_KERNEL_NODE_PARAMS){
        .gridDimX = asked->gridDim.x,
        .gridDimY = asked->gridDim.y,
        .gridDimZ = asked->gridDim.z,
        .blockDimX = asked->blockDim.x,
        .blockDimY = asked->blockDim.y,
        .blockDimZ = asked->blockDim.z,
        .sharedMemBytes = asked->sharedMemBytes,
        .kernelParams = asked->kernelParams,
        .extra = asked->extra,
    };
    return runtime_kernel(asked->func, &kernel->kern);
}

API cudaError_t cudaGraphAddKernelNode(WHERE, const struct cudaKernelNodeParams *asked) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    cudaError_t error = kernel_of(asked, &kernel);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_used(driver.cuGraphAddKernelNode(node, graph, before, count, &kernel),
                        kernel.kern);
}

API cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *asked) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    cudaError_t error = kernel_of(asked, &kernel);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_used(driver.cuGraphKernelNodeSetParams(node, &kernel), kernel.kern);
}

API cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 const struct cudaKernelNodeParams *asked) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    cudaError_t error = kernel_of(asked, &kernel);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_used(driver.cuGraphExecKernelNodeSetParams(exec, node, &kernel), kernel.kern);
}

API cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                             struct cudaKernelNodeParams *out) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    if (!out) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    CUresult result = driver.cuGraphKernelNodeGetParams(node, &kernel);
    if (result != CUDA_SUCCESS) return runtime_result(result);
    *out = (struct cudaKernelNodeParams){
        .func = runtime_host(kernel.func, kernel.kern),
        .gridDim = {kernel.gridDimX, kernel.gridDimY, kernel.gridDimZ},
        .blockDim = {kernel.blockDimX, kernel.blockDimY, kernel.blockDimZ},
        .sharedMemBytes = kernel.sharedMemBytes,
        .kernelParams = kernel.kernelParams,
        .extra = kernel.extra,
    };
    return cudaSuccess;
}

/* ---- copies ---- */

static cudaError_t line_of(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                           CUDA_MEMCPY3D *copy) {
    const struct cudaMemcpy3DParms asked = {
        .srcPtr = {(void *)from, bytes, bytes, 1},
        .dstPtr = {to, bytes, bytes, 1},
        .extent = {bytes, 1, 1},
        .kind = kind,
    };
    return runtime_volume(&asked, copy);
}

static cudaError_t to_symbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                             enum cudaMemcpyKind kind, CUDA_MEMCPY3D *copy) {
    void *to;
    cudaError_t error = runtime_part_of(symbol, offset, bytes, &to);
    return error == cudaSuccess ? line_of(to, from, bytes, kind, copy) : error;
}

static cudaError_t from_symbol(void *to, const void *symbol, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind, CUDA_MEMCPY3D *copy) {
    void *from;
    cudaError_t error = runtime_part_of(symbol, offset, bytes, &from);
    return error == cudaSuccess ? line_of(to, from, bytes, kind, copy) : error;
}

static cudaError_t add_copy(WHERE, cudaError_t error, const CUDA_MEMCPY3D *copy) {
    CUcontext context;
    if (error == cudaSuccess) error = runtime_current(&context);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(driver.cuGraphAddMemcpyNode(node, graph, before, count, copy, context));
}

static cudaError_t set_copy(cudaGraphNode_t node, cudaError_t error, const CUDA_MEMCPY3D *copy) {
    if (error != cudaSuccess) return runtime_error(error);
    NEED_CONTEXT();
    return runtime_result(driver.cuGraphMemcpyNodeSetParams(node, copy));
}

static cudaError_t set_exec_copy(cudaGraphExec_t exec, cudaGraphNode_t node, cudaError_t error,
                                 const CUDA_MEMCPY3D *copy) {
    CUcontext context;
    if (error == cudaSuccess) error = runtime_current(&context);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(driver.cuGraphExecMemcpyNodeSetParams(exec, node, copy, context));
}

/* A copy is described in four ways and has three kinds of target. */
#define COPY(ending, parameters, described)                                        \
    API cudaError_t cudaGraphAddMemcpyNode##ending(WHERE, PARAMETERS parameters) { \
        CUDA_MEMCPY3D copy;                                                        \
        return add_copy(node, graph, before, count, described, &copy);             \
    }                                                                              \
    API cudaError_t cudaGraphMemcpyNodeSetParams##ending(cudaGraphNode_t node,     \
                                                         PARAMETERS parameters) {  \
        CUDA_MEMCPY3D copy;                                                        \
        return set_copy(node, described, &copy);                                   \
    }                                                                              \
    API cudaError_t cudaGraphExecMemcpyNodeSetParams##ending(                      \
        cudaGraphExec_t exec, cudaGraphNode_t node, PARAMETERS parameters) {       \
        CUDA_MEMCPY3D copy;                                                        \
        return set_exec_copy(exec, node, described, &copy);                        \
    }
#define PARAMETERS(...) __VA_ARGS__

COPY(, (const struct cudaMemcpy3DParms *asked), runtime_volume(asked, &copy))
COPY(1D, (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind),
     line_of(to, from, bytes, kind, &copy))
COPY(ToSymbol,
     (const void *symbol, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind),
     to_symbol(symbol, from, bytes, offset, kind, &copy))
COPY(FromSymbol,
     (void *to, const void *symbol, size_t bytes, size_t offset, enum cudaMemcpyKind kind),
     from_symbol(to, symbol, bytes, offset, kind, &copy))

API cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, struct cudaMemcpy3DParms *out) {
    CUDA_MEMCPY3D copy;
    if (!out) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    CUresult result = driver.cuGraphMemcpyNodeGetParams(node, &copy);
    if (result == CUDA_SUCCESS) *out = runtime_volume_asked(&copy);
    return runtime_result(result);
}

/* ---- fills ---- */

_Static_assert(sizeof(struct cudaMemsetParams) == sizeof(CUDA_MEMSET_NODE_PARAMS),
               "the fills of both APIs are one structure");

API cudaError_t cudaGraphAddMemsetNode(WHERE, const struct cudaMemsetParams *asked) {
    CUcontext context;
    cudaError_t error = runtime_current(&context);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(driver.cuGraphAddMemsetNode(
        node, graph, before, count, (const CUDA_MEMSET_NODE_PARAMS *)asked, context));
}

API cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                 const struct cudaMemsetParams *asked) {
    CUcontext context;
    cudaError_t error = runtime_current(&context);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(driver.cuGraphExecMemsetNodeSetParams(
        exec, node, (const CUDA_MEMSET_NODE_PARAMS *)asked, context));
}
