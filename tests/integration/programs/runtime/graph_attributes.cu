#include "check.h"
/* Attributes of the kernels of a graph, and nodes that decide: no card that programs get here has
 * them, and each of them says so by itself. */
__global__ void nothing() {}
int main() {
    cudaGraph_t graph;
    cudaGraphNode_t node, other;
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)nothing, kernel.gridDim = dim3(1), kernel.blockDim = dim3(1);
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &kernel));
    OK(cudaGraphAddKernelNode(&other, graph, nullptr, 0, &kernel));
    cudaLaunchAttributeValue value = {};
    value.cooperative = 1;
    FAILS(cudaErrorNotSupported,
          cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeCooperative, &value));
    FAILS(cudaErrorNotSupported,
          cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeCooperative, &value));
    FAILS(cudaErrorNotSupported, cudaGraphKernelNodeCopyAttributes(node, other));
    cudaGraphConditionalHandle handle;
    FAILS(cudaErrorNotSupported, cudaGraphConditionalHandleCreate(&handle, graph, 1, 0));
    OK(cudaGraphDestroy(graph));
    return 0;
}
