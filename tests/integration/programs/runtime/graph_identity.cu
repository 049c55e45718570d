#include "check.h"
/* Which graph and which node: clones, numbers, where a node is, and nodes that go. */
#if CUDART_VERSION < 13010
extern "C" cudaError_t cudaGraphGetId(cudaGraph_t, unsigned *);
extern "C" cudaError_t cudaGraphExecGetId(cudaGraphExec_t, unsigned *);
extern "C" cudaError_t cudaGraphNodeGetContainingGraph(cudaGraphNode_t, cudaGraph_t *);
extern "C" cudaError_t cudaGraphNodeGetLocalId(cudaGraphNode_t, unsigned *);
extern "C" cudaError_t cudaGraphNodeGetToolsId(cudaGraphNode_t, unsigned long long *);
#endif
static cudaGraphNode_t fill(cudaGraph_t graph, const cudaGraphNode_t *after, int *at, unsigned value) {
    cudaMemsetParams with = {};
    with.dst = at, with.value = value, with.elementSize = 4, with.width = 4, with.height = 1;
    cudaGraphNode_t node;
    OK(cudaGraphAddMemsetNode(&node, graph, after, after != nullptr, &with));
    return node;
}
static void check_numbers(cudaGraph_t graph, cudaGraph_t copy, cudaGraphNode_t first,
                          cudaGraphNode_t second) {
    unsigned a = 0, b = 0, x = 0, y = 0;
    cudaGraph_t in = nullptr;
    SINCE(13010, cudaGraphGetId(graph, &a));
    SINCE(13010, cudaGraphGetId(copy, &b));
    CHECK((a != b) == driver_since(13010));
    SINCE(13010, cudaGraphNodeGetLocalId(first, &x));
    SINCE(13010, cudaGraphNodeGetLocalId(second, &y));
    CHECK((x != y) == driver_since(13010));
    SINCE(13010, cudaGraphNodeGetContainingGraph(second, &in));
    CHECK(in == (driver_since(13010) ? graph : nullptr));
    unsigned long long tools;
    FAILS(cudaErrorNotSupported, cudaGraphNodeGetToolsId(first, &tools)); /* there are no tools */
}
int main() {
    int *d, h[8];
    cudaGraph_t graph, copy;
    cudaGraphExec_t exec, other;
    cudaStream_t stream;
    OK(cudaMalloc(&d, sizeof h));
    OK(cudaMemset(d, 0, sizeof h));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamCreate(&stream));
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t first = fill(graph, nullptr, d, 1), second = fill(graph, &first, d + 4, 2), same;
    OK(cudaGraphClone(&copy, graph));
    OK(cudaGraphNodeFindInClone(&same, second, copy));
    CHECK(same != second);
    check_numbers(graph, copy, first, second);
    OK(cudaGraphDestroyNode(same));
    size_t nodes = 0;
    OK(cudaGraphGetNodes(copy, nullptr, &nodes));
    CHECK(nodes == 1);
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == 2);
    FAILS(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&same, second, copy));
    OK(cudaGraphInstantiateWithFlags(&exec, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    OK(cudaGraphInstantiate(&other, copy, 0));
    unsigned long long flags = 0;
    unsigned x = 0, y = 0, enabled = 0;
    OK(cudaGraphExecGetFlags(exec, &flags));
    CHECK(flags == cudaGraphInstantiateFlagAutoFreeOnLaunch);
    SINCE(13010, cudaGraphExecGetId(exec, &x));
    SINCE(13010, cudaGraphExecGetId(other, &y));
    CHECK((x != y) == driver_since(13010));
    OK(cudaGraphNodeGetEnabled(exec, first, &enabled));
    CHECK(enabled == 1);
    OK(cudaGraphNodeSetEnabled(exec, first, 0));
    OK(cudaGraphNodeGetEnabled(exec, first, &enabled));
    CHECK(enabled == 0);
    OK(cudaGraphUpload(exec, stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaMemcpyAsync(h, d, sizeof h, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(h[0] == 0 && h[4] == 2);
    OK(cudaGraphLaunch(other, stream));
    OK(cudaMemcpyAsync(h, d, sizeof h, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(h[0] == 1 && h[3] == 1 && h[4] == 2);
    for (cudaGraphExec_t each : {exec, other}) OK(cudaGraphExecDestroy(each));
    for (cudaGraph_t each : {graph, copy}) OK(cudaGraphDestroy(each));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(d));
    return 0;
}
