#include "check.h"
/* Nodes of copies, fills, calls and child graphs, changed in the graph before it is instantiated
 * and in what was instantiated of it. */
__device__ int table[4];
static void CUDART_CB count_call(void *calls) { ++*(int *)calls; }
static cudaMemcpy3DParms volume(void *to, void *from, size_t bytes, cudaMemcpyKind kind) {
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(from, bytes, bytes, 1);
    copy.dstPtr = make_cudaPitchedPtr(to, bytes, bytes, 1);
    copy.extent = make_cudaExtent(bytes, 1, 1), copy.kind = kind;
    return copy;
}
static void run(cudaGraphExec_t exec) {
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
}
/* Into the table and out of it. */
static void check_symbols(int *d, int *h) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t in, out;
    int start[4] = {1, 2, 3, 4};
    OK(cudaMemcpy(d, start, sizeof start, cudaMemcpyHostToDevice));
    OK(cudaMemset(d + 4, 0, sizeof start));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemcpyNodeToSymbol(&in, graph, nullptr, 0, table, d, 16, 0,
                                      cudaMemcpyDeviceToDevice));
    OK(cudaGraphAddMemcpyNodeFromSymbol(&out, graph, &in, 1, h, table, 16, 0,
                                        cudaMemcpyDeviceToHost));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    run(exec);
    CHECK(h[0] == 1 && h[3] == 4);
    OK(cudaGraphExecMemcpyNodeSetParamsToSymbol(exec, in, table, d + 1, 16, 0,
                                                cudaMemcpyDeviceToDevice));
    run(exec);
    CHECK(h[0] == 2 && h[2] == 4 && h[3] == 0);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphMemcpyNodeSetParamsToSymbol(in, table, d, 8, 8, cudaMemcpyDeviceToDevice));
    OK(cudaGraphMemcpyNodeSetParamsFromSymbol(out, h, table, 8, 8, cudaMemcpyDeviceToHost));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    h[0] = h[1] = h[2] = -1;
    run(exec);
    CHECK(h[0] == 1 && h[1] == 2 && h[2] == -1);
    FAILS(cudaErrorInvalidValue,
          cudaGraphMemcpyNodeSetParamsToSymbol(in, table, d, 16, 8, cudaMemcpyDeviceToDevice));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}
static void check_copies(int *d, int *h) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t fill, copy, call;
    int first = 0, second = 0;
    cudaMemsetParams with = {};
    with.dst = d, with.value = 3, with.elementSize = 4, with.width = 8, with.height = 1;
    cudaMemcpy3DParms one = volume(h, d, 16, cudaMemcpyDeviceToHost);
    cudaMemcpy3DParms two = volume(h + 4, d, 16, cudaMemcpyDeviceToHost);
    cudaHostNodeParams whom = {count_call, &first};
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &with));
    OK(cudaGraphAddMemcpyNode(&copy, graph, &fill, 1, &one));
    OK(cudaGraphAddHostNode(&call, graph, &copy, 1, &whom));
    with.value = 5;
    OK(cudaGraphMemsetNodeSetParams(fill, &with));
    OK(cudaGraphMemcpyNodeSetParams(copy, &two));
    whom.userData = &second;
    OK(cudaGraphHostNodeSetParams(call, &whom));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    std::memset(h, 0, 32);
    run(exec);
    CHECK(h[0] == 0 && h[4] == 5 && h[7] == 5 && first == 0 && second == 1);
    OK(cudaGraphExecMemcpyNodeSetParams(exec, copy, &one));
    whom.userData = &first;
    OK(cudaGraphExecHostNodeSetParams(exec, call, &whom));
    run(exec);
    CHECK(h[0] == 5 && first == 1 && second == 1);
    OK(cudaGraphMemcpyNodeSetParams1D(copy, h, d, 4, cudaMemcpyDeviceToHost));
    cudaMemcpy3DParms said = {};
    OK(cudaGraphMemcpyNodeGetParams(copy, &said));
    CHECK(said.extent.width == 4);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}
static cudaGraph_t filling(int *d, unsigned value) {
    cudaGraph_t graph;
    cudaGraphNode_t fill;
    cudaMemsetParams with = {};
    with.dst = d, with.value = value, with.elementSize = 4, with.width = 8, with.height = 1;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &with));
    return graph;
}
static void check_child(int *d, int *h) {
    cudaGraph_t graph, one = filling(d, 8), other = filling(d, 9), inside = nullptr;
    cudaGraphExec_t exec;
    cudaGraphNode_t child;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddChildGraphNode(&child, graph, nullptr, 0, one));
    OK(cudaGraphChildGraphNodeGetGraph(child, &inside));
    size_t nodes = 0;
    OK(cudaGraphGetNodes(inside, nullptr, &nodes));
    CHECK(inside != one && nodes == 1);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    run(exec);
    OK(cudaMemcpy(h, d, 32, cudaMemcpyDeviceToHost));
    CHECK(h[0] == 8 && h[7] == 8);
    OK(cudaGraphExecChildGraphNodeSetParams(exec, child, other));
    run(exec);
    OK(cudaMemcpy(h, d, 32, cudaMemcpyDeviceToHost));
    CHECK(h[0] == 9 && h[7] == 9);
    OK(cudaGraphExecDestroy(exec));
    for (cudaGraph_t each : {graph, one, other}) OK(cudaGraphDestroy(each));
}
int main() {
    int *d, *h;
    OK(cudaMalloc(&d, 32));
    OK(cudaMallocHost(&h, 32));
    check_symbols(d, h);
    check_copies(d, h);
    check_child(d, h);
    OK(cudaFreeHost(h));
    OK(cudaFree(d));
    return 0;
}
