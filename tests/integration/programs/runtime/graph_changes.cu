#include "check.h"
/* Nodes that become others, in a graph and in what was made of it; nodes in another graph, and none any more. */
__device__ int variable = 3;
__global__ void set(int *x, int to) { *x = to; }
static void CUDART_CB count(void *calls) { ++*(int *)calls; }
struct Kernel {
    int *x, to;
    void *arguments[2];
    cudaKernelNodeParams params;
    Kernel(int *at, int value) : x(at), to(value), arguments{&x, &to}, params{} {
        params.func = (void *)set, params.gridDim = params.blockDim = dim3(1);
        params.kernelParams = arguments;
    }
};
static int *d;
static int read() {
    int h = -1;
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(&h, d, sizeof h, cudaMemcpyDeviceToHost));
    return h;
}
static int after(cudaGraphExec_t exec) {
    OK(cudaGraphLaunch(exec, 0));
    return read();
}
static cudaGraphExec_t made(cudaGraph_t graph) {
    cudaGraphExec_t exec;
    OK(cudaGraphInstantiate(&exec, graph, 0));
    return exec;
}
static void check_kernels() {
    Kernel four(d, 4), five(d, 5), six(d, 6);
    cudaGraph_t graph, clone;
    cudaGraphNode_t node, other, found;
    unsigned enabled = 2;
    unsigned long long flags = ~0ull;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &four.params));
    OK(cudaGraphAddKernelNode(&other, graph, &node, 1, &four.params));
    cudaKernelNodeAttrValue value = {}, got = {};
    value.priority = -1;
    if (HAS(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributePriority, &value))) {
        OK(cudaGraphKernelNodeCopyAttributes(other, node));
        OK(cudaGraphKernelNodeGetAttribute(other, cudaLaunchAttributePriority, &got));
        CHECK(got.priority == -1);
    }
    OK(cudaGraphClone(&clone, graph));
    OK(cudaGraphNodeFindInClone(&found, node, clone));
    CHECK(found != node);
    FAILS(cudaErrorInvalidValue, cudaGraphNodeFindInClone(&found, node, graph));
    OK(cudaGraphDestroyNode(other));
    cudaGraphNodeParams whole = {};
    whole.type = cudaGraphNodeTypeKernel;
    whole.kernel.func = (void *)set, whole.kernel.gridDim = whole.kernel.blockDim = dim3(1);
    whole.kernel.kernelParams = five.arguments;
    OK(cudaGraphNodeSetParams(node, &whole));
    cudaGraphExec_t exec = made(graph);
    CHECK(after(exec) == 5);
    whole.kernel.kernelParams = six.arguments;
    OK(cudaGraphExecNodeSetParams(exec, node, &whole));
    CHECK(after(exec) == 6);
    OK(cudaMemset(d, 0, sizeof *d));
    OK(cudaGraphNodeSetEnabled(exec, node, 0));
    OK(cudaGraphNodeGetEnabled(exec, node, &enabled));
    CHECK(enabled == 0 && after(exec) == 0);
    OK(cudaGraphExecGetFlags(exec, &flags));
    CHECK(flags == 0);
    OK(cudaGraphUpload(exec, 0));
    OK(cudaGraphExecDestroy(exec));
    exec = made(clone);
    CHECK(after(exec) == 4);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(clone));
    OK(cudaGraphDestroy(graph));
}
static void check_fills_and_calls() {
    cudaGraph_t graph, child, inner;
    cudaGraphNode_t fill, call, within, deep;
    cudaMemsetParams seven = {};
    seven.dst = d, seven.value = 7, seven.elementSize = 4, seven.width = seven.height = 1;
    int first = 0, second = 0;
    cudaHostNodeParams host = {count, &first};
    OK(cudaGraphCreate(&child, 0));
    OK(cudaGraphAddMemsetNode(&deep, child, nullptr, 0, &seven));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &seven));
    OK(cudaGraphAddHostNode(&call, graph, &fill, 1, &host));
    OK(cudaGraphAddChildGraphNode(&within, graph, &call, 1, child));
    OK(cudaGraphChildGraphNodeGetGraph(within, &inner));
    CHECK(inner != child);
    seven.value = 8;
    OK(cudaGraphMemsetNodeSetParams(fill, &seven));
    host.userData = &second;
    OK(cudaGraphHostNodeSetParams(call, &host));
    cudaGraphExec_t exec = made(graph);
    CHECK(after(exec) == 7 && first == 0 && second == 1); /* the child's is the last */
    host.userData = &first;
    OK(cudaGraphExecHostNodeSetParams(exec, call, &host));
    OK(cudaGraphMemsetNodeSetParams(deep, &seven));
    OK(cudaGraphExecChildGraphNodeSetParams(exec, within, child));
    CHECK(after(exec) == 8 && first == 1 && second == 1);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphDestroy(child));
}
static void check_copies() {
    int *symbol, h = 0;
    cudaGraph_t graph;
    cudaGraphNode_t to, from, copy;
    OK(cudaGetSymbolAddress((void **)&symbol, variable));
    OK(cudaMemset(d, 1, sizeof *d));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemcpyNodeToSymbol(&to, graph, nullptr, 0, variable, d, 4, 0, cudaMemcpyDeviceToDevice));
    OK(cudaGraphAddMemcpyNodeFromSymbol(&from, graph, &to, 1, d + 1, variable, 4, 0, cudaMemcpyDeviceToDevice));
    cudaMemcpy3DParms back = {};
    back.srcPtr = make_cudaPitchedPtr(d + 1, 4, 4, 1), back.dstPtr = make_cudaPitchedPtr(d, 4, 4, 1);
    back.extent = make_cudaExtent(4, 1, 1), back.kind = cudaMemcpyDeviceToDevice;
    OK(cudaGraphAddMemcpyNode(&copy, graph, &from, 1, &back));
    back.dstPtr.ptr = d + 2;
    OK(cudaGraphMemcpyNodeSetParams(copy, &back));
    OK(cudaGraphMemcpyNodeSetParamsToSymbol(to, variable, d + 3, 4, 0, cudaMemcpyDeviceToDevice));
    OK(cudaGraphMemcpyNodeSetParamsFromSymbol(from, d + 1, variable, 4, 0, cudaMemcpyDeviceToDevice));
    OK(cudaMemset(d + 3, 2, sizeof *d));
    cudaGraphExec_t exec = made(graph);
    CHECK(after(exec) == 0x01010101);
    OK(cudaMemcpy(&h, d + 2, sizeof h, cudaMemcpyDeviceToHost));
    CHECK(h == 0x02020202);
    back.dstPtr.ptr = d;
    OK(cudaGraphExecMemcpyNodeSetParams(exec, copy, &back));
    OK(cudaGraphExecMemcpyNodeSetParamsToSymbol(exec, to, variable, d, 4, 0, cudaMemcpyDeviceToDevice));
    OK(cudaGraphExecMemcpyNodeSetParamsFromSymbol(exec, from, d + 1, variable, 4, 0, cudaMemcpyDeviceToDevice));
    OK(cudaMemset(d, 9, sizeof *d));
    CHECK(after(exec) == 0x09090909);
    OK(cudaMemcpyFromSymbol(&h, variable, sizeof h));
    CHECK(h == 0x09090909);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}
int main() {
    cudaGraph_t graph;
    cudaGraphConditionalHandle handle;
    OK(cudaMalloc(&d, 4 * sizeof *d));
    check_kernels();
    check_fills_and_calls();
    check_copies();
    OK(cudaGraphCreate(&graph, 0));
    HAS(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(d));
    return 0;
}
