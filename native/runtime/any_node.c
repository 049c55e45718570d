/* Generic calls for graph nodes of any kind: their parameters have the kind. */
#include <stdbool.h>
#include <string.h>

#include "graph.h"
#include "runtime.h"

_Static_assert(sizeof(struct cudaGraphNodeParams) == sizeof(CUgraphNodeParams) &&
                   sizeof(struct cudaMemsetParamsV2) == sizeof(CUDA_MEMSET_NODE_PARAMS_v2) &&
                   sizeof(struct cudaMemAllocNodeParamsV2) ==
                       sizeof(CUDA_MEM_ALLOC_NODE_PARAMS_v2) &&
                   sizeof(struct cudaConditionalNodeParams) == sizeof(CUDA_CONDITIONAL_NODE_PARAMS),
               "but for kernels and copies the parameters of both APIs are one structure");

static cudaError_t kernel_of(const struct cudaKernelNodeParamsV2 *asked,
                             CUDA_KERNEL_NODE_PARAMS_v3 *kernel) {
    *kernel = (CUDA_KERNEL_NODE_PARAMS_v3){
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
    if (asked->functionType == cudaKernelFunctionTypeFunction) {
        kernel->func = asked->cuFunc;
        return cudaSuccess;
    }
    return runtime_kernel(asked->func, &kernel->kern); /* a kernel's handle is accepted too */
}

/* No program can have an execution context: the functions that create one are refused. */
static cudaError_t node_of(const struct cudaGraphNodeParams *asked, CUgraphNodeParams *node) {
    CUcontext context;
    if (!asked) return cudaErrorInvalidValue;
    cudaError_t error = runtime_current(&context);
    if (error != cudaSuccess) return error;
    memcpy(node, asked, sizeof *node);
    switch ((int)asked->type) {
    case cudaGraphNodeTypeKernel: return kernel_of(&asked->kernel, &node->kernel);
    case cudaGraphNodeTypeMemcpy:
        node->memcpy.copyCtx = context;
        return runtime_volume(&asked->memcpy.copyParams, &node->memcpy.copyParams);
    case cudaGraphNodeTypeMemset: node->memset.ctx = context; return cudaSuccess;
    case cudaGraphNodeTypeConditional: node->conditional.ctx = context; return cudaSuccess;
    default: return cudaSuccess;
    }
}

static cudaError_t used(CUresult result, const CUgraphNodeParams *node) {
    bool has_kernel = node->type == CU_GRAPH_NODE_TYPE_KERNEL && !node->kernel.func;
    return has_kernel ? runtime_used(result, node->kernel.kern) : runtime_result(result);
}

int runtime_add_node(void *out, void *graph, const void *before, const void *edges, size_t count,
                     void *params) {
    struct cudaGraphNodeParams *asked = params;
    CUgraphNodeParams node;
    cudaError_t error = node_of(asked, &node);
    if (error != cudaSuccess) return runtime_error(error);
    CUresult result = driver.cuGraphAddNode(out, graph, before, edges, count, &node);
    if (result == CUDA_SUCCESS && asked->type == cudaGraphNodeTypeMemAlloc)
        asked->alloc.dptr = (void *)node.alloc.dptr;
    if (result == CUDA_SUCCESS && asked->type == cudaGraphNodeTypeConditional)
        asked->conditional.phGraph_out = node.conditional.phGraph_out;
    return used(result, &node);
}

API cudaError_t cudaGraphNodeSetParams(cudaGraphNode_t node, struct cudaGraphNodeParams *asked) {
    CUgraphNodeParams params;
    cudaError_t error = node_of(asked, &params);
    if (error != cudaSuccess) return runtime_error(error);
    return used(driver.cuGraphNodeSetParams(node, &params), &params);
}

API cudaError_t cudaGraphExecNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                           struct cudaGraphNodeParams *asked) {
    CUgraphNodeParams params;
    cudaError_t error = node_of(asked, &params);
    if (error != cudaSuccess) return runtime_error(error);
    return used(driver.cuGraphExecNodeSetParams(exec, node, &params), &params);
}

API cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle,
                                                 cudaGraph_t graph, unsigned int value,
                                                 unsigned int flags) {
    CUcontext context;
    cudaError_t error = runtime_current(&context);
    if (error != cudaSuccess) return runtime_error(error);
    return runtime_result(driver.cuGraphConditionalHandleCreate((CUgraphConditionalHandle *)handle,
                                                                graph, context, value, flags));
}

/* There are no execution contexts to pass. */
API cudaError_t cudaGraphConditionalHandleCreate_v2(cudaGraphConditionalHandle *handle,
                                                    cudaGraph_t graph, cudaExecutionContext_t where,
                                                    unsigned int value, unsigned int flags) {
    if (where) return runtime_error(cudaErrorInvalidValue);
    return cudaGraphConditionalHandleCreate(handle, graph, value, flags);
}

API cudaError_t cudaGraphNodeGetParams(cudaGraphNode_t node, struct cudaGraphNodeParams *out) {
    CUgraphNodeParams params;
    if (!out) return runtime_error(cudaErrorInvalidValue);
    NEED_CONTEXT();
    CUresult result = driver.cuGraphNodeGetParams(node, &params);
    if (result != CUDA_SUCCESS) return runtime_result(result);
    memcpy(out, &params, sizeof *out);
    if (params.type == CU_GRAPH_NODE_TYPE_MEMCPY)
        out->memcpy = (struct cudaMemcpyNodeParams){
            .copyParams = runtime_volume_asked(&params.memcpy.copyParams)};
    if (params.type == CU_GRAPH_NODE_TYPE_KERNEL)
        out->kernel = (struct cudaKernelNodeParamsV2){
            .func = runtime_host(params.kernel.func, params.kernel.kern),
            .gridDim = {params.kernel.gridDimX, params.kernel.gridDimY, params.kernel.gridDimZ},
            .blockDim = {params.kernel.blockDimX, params.kernel.blockDimY, params.kernel.blockDimZ},
            .sharedMemBytes = params.kernel.sharedMemBytes,
            .kernelParams = params.kernel.kernelParams,
            .extra = params.kernel.extra,
            .functionType = cudaKernelFunctionTypeDeviceEntry,
        };
    return cudaSuccess;
}
