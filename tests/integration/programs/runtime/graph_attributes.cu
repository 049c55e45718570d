#include "check.h"
/* Attributes of the kernels of a graph, of launches, and what becomes of the one in the other. */
__global__ void nothing() {}
static cudaGraphNode_t add(cudaGraph_t graph, unsigned blocks) {
    cudaKernelNodeParams kernel = {};
    cudaGraphNode_t node;
    kernel.func = (void *)nothing, kernel.gridDim = dim3(blocks), kernel.blockDim = dim3(1);
    OK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &kernel));
    return node;
}
static int priority_of(cudaGraphNode_t node) {
    cudaLaunchAttributeValue value = {};
    OK(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributePriority, &value));
    return value.priority;
}
static void check_nodes() {
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t node = add(graph, 2), other = add(graph, 2), empty;
    cudaLaunchAttributeValue value = {};
    OK(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeCooperative, &value));
    CHECK(value.cooperative == 0);
    value.cooperative = 1;
    OK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeCooperative, &value));
    value = {};
    value.priority = -3;
    OK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributePriority, &value));
    CHECK(priority_of(node) == -3 && priority_of(other) == 0);
    OK(cudaGraphKernelNodeCopyAttributes(other, node));
    CHECK(priority_of(other) == -3);
    OK(cudaGraphKernelNodeGetAttribute(other, cudaLaunchAttributeCooperative, &value));
    CHECK(value.cooperative == 1);
    /* other parameters, the same attributes; and a copy has them */
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)nothing, kernel.gridDim = dim3(3), kernel.blockDim = dim3(1);
    OK(cudaGraphKernelNodeSetParams(node, &kernel));
    CHECK(priority_of(node) == -3);
    cudaGraph_t clone;
    cudaGraphNode_t there;
    OK(cudaGraphClone(&clone, graph));
    OK(cudaGraphNodeFindInClone(&there, node, clone));
    CHECK(priority_of(there) == -3);
    value = {};
    value.clusterDim.x = 5, value.clusterDim.y = value.clusterDim.z = 1; /* not of a grid of 3 */
    CHECK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeClusterDimension, &value) !=
          cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess);
    OK(cudaGraphAddEmptyNode(&empty, graph, nullptr, 0));
    FAILS(cudaErrorInvalidValue,
          cudaGraphKernelNodeGetAttribute(empty, cudaLaunchAttributePriority, &value));
    OK(cudaGraphDestroy(clone));
    OK(cudaGraphDestroy(graph));
}
static void check_captured() {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphNode_t nodes[2];
    size_t count = 2;
    int least, greatest;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributePriority, attributes[1].val.priority = least - 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = config.blockDim = dim3(1);
    config.stream = stream, config.attrs = attributes, config.numAttrs = 2;
    OK(cudaLaunchKernelEx(&config, nothing));
    OK(cudaStreamSynchronize(stream));
    config.numAttrs = 1; /* what the nodes of graphs have as edges is not there */
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    nothing<<<1, 1, 0, stream>>>();
    config.attrs = &attributes[1];
    OK(cudaLaunchKernelEx(&config, nothing));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphGetNodes(graph, nodes, &count));
    CHECK(count == 2 && priority_of(nodes[0]) == greatest && priority_of(nodes[1]) == least - 1);
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
}
int main() {
    check_nodes();
    check_captured();
    return 0;
}
