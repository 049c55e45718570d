#include "check.h"
/* A graph made node by node: fill, then a kernel, then copies out and a call, which follow from
 * what comes before; and a child that is the same again. */
__device__ int step = 3;
__global__ void add(int *x, int by) { x[threadIdx.x] += by; }
static void CUDART_CB count_call(void *calls) { ++*(int *)calls; }
struct made {
    cudaGraph_t graph;
    cudaGraphNode_t fill, kernel, copy, call;
};
static made make(int *d, int *h, int *calls) {
    made m;
    int by = 1;
    void *arguments[] = {&d, &by};
    cudaMemsetParams fill = {};
    fill.dst = d, fill.value = 0, fill.elementSize = 4, fill.width = 32, fill.height = 1;
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)add, kernel.gridDim = dim3(1), kernel.blockDim = dim3(32);
    kernel.kernelParams = arguments;
    cudaHostNodeParams call = {count_call, calls};
    OK(cudaGraphCreate(&m.graph, 0));
    OK(cudaGraphAddMemsetNode(&m.fill, m.graph, nullptr, 0, &fill));
    OK(cudaGraphAddKernelNode(&m.kernel, m.graph, &m.fill, 1, &kernel));
    OK(cudaGraphAddMemcpyNode1D(&m.copy, m.graph, &m.kernel, 1, h, d, 128, cudaMemcpyDeviceToHost));
    OK(cudaGraphAddHostNode(&m.call, m.graph, nullptr, 0, &call));
    OK(cudaGraphAddDependencies(m.graph, &m.copy, &m.call, nullptr, 1));
    return m;
}
static void check_shape(const made &m, int *calls) {
    size_t nodes = 0, edges = 0, before = 1, after = 1;
    cudaGraphNode_t first, second;
    cudaGraphNodeType type;
    OK(cudaGraphGetNodes(m.graph, nullptr, &nodes));
    OK(cudaGraphGetEdges(m.graph, nullptr, nullptr, nullptr, &edges));
    CHECK(nodes == 4 && edges == 3);
    OK(cudaGraphNodeGetDependencies(m.kernel, &first, nullptr, &before));
    OK(cudaGraphNodeGetDependentNodes(m.kernel, &second, nullptr, &after));
    CHECK(before == 1 && first == m.fill && after == 1 && second == m.copy);
    OK(cudaGraphNodeGetType(m.copy, &type));
    CHECK(type == cudaGraphNodeTypeMemcpy);
    cudaKernelNodeParams kernel = {};
    OK(cudaGraphKernelNodeGetParams(m.kernel, &kernel));
    CHECK(kernel.func == (void *)add && kernel.blockDim.x == 32);
    CHECK(*(int *)kernel.kernelParams[1] == 1);
    cudaMemsetParams fill = {};
    OK(cudaGraphMemsetNodeGetParams(m.fill, &fill));
    CHECK(fill.width == 32 && fill.elementSize == 4);
    cudaMemcpy3DParms copy = {};
    OK(cudaGraphMemcpyNodeGetParams(m.copy, &copy));
    CHECK(copy.extent.width == 128 && copy.kind == cudaMemcpyDeviceToHost);
    cudaHostNodeParams call = {};
    OK(cudaGraphHostNodeGetParams(m.call, &call));
    CHECK(call.fn == count_call && call.userData == calls);
}
static void check_launch(cudaGraphExec_t exec, const int *h, int value, int *calls, int called) {
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 32; i++) CHECK(h[i] == value);
    CHECK(*calls == called);
}
static void check_changes(cudaGraphExec_t exec, const made &m, int *d, int *h, int *calls) {
    int by = 7;
    void *arguments[] = {&d, &by};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)add, kernel.gridDim = dim3(1), kernel.blockDim = dim3(32);
    kernel.kernelParams = arguments;
    OK(cudaGraphExecKernelNodeSetParams(exec, m.kernel, &kernel));
    check_launch(exec, h, 7, calls, 2);
    cudaMemsetParams fill = {};
    fill.dst = d, fill.value = 10, fill.elementSize = 4, fill.width = 32, fill.height = 1;
    OK(cudaGraphExecMemsetNodeSetParams(exec, m.fill, &fill));
    check_launch(exec, h, 17, calls, 3);
    OK(cudaGraphNodeSetEnabled(exec, m.kernel, 0));
    check_launch(exec, h, 10, calls, 4);
    OK(cudaGraphExecMemcpyNodeSetParamsFromSymbol(exec, m.copy, h, step, sizeof step, 0,
                                                  cudaMemcpyDeviceToHost));
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
    CHECK(h[0] == 3 && h[1] == 10 && *calls == 5);
    by = 5;
    OK(cudaGraphKernelNodeSetParams(m.kernel, &kernel)); /* in the graph, of which it is updated */
    cudaGraphExecUpdateResultInfo how;
    OK(cudaGraphExecUpdate(exec, m.graph, &how));
    CHECK(how.result == cudaGraphExecUpdateSuccess);
    check_launch(exec, h, 5, calls, 6);
}
int main() {
    int *d, *h, calls = 0;
    cudaGraph_t parent;
    cudaGraphNode_t empty, child;
    cudaGraphExec_t exec;
    OK(cudaMalloc(&d, 128));
    OK(cudaMallocHost(&h, 128));
    OK(cudaGraphCreate(&parent, 0));
    OK(cudaGraphAddEmptyNode(&empty, parent, nullptr, 0));
    made m = make(d, h, &calls);
    check_shape(m, &calls);
    OK(cudaGraphInstantiate(&exec, m.graph, 0));
    check_launch(exec, h, 1, &calls, 1);
    check_changes(exec, m, d, h, &calls);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphAddChildGraphNode(&child, parent, &empty, 1, m.graph));
    cudaGraphInstantiateParams asked = {};
    OK(cudaGraphInstantiateWithParams(&exec, parent, &asked));
    CHECK(asked.result_out == cudaGraphInstantiateSuccess);
    check_launch(exec, h, 5, &calls, 7);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphRemoveDependencies(parent, &empty, &child, nullptr, 1));
    FAILS(cudaErrorInvalidValue, cudaGraphRemoveDependencies(parent, &empty, &child, nullptr, 1));
    FAILS(cudaErrorInvalidValue, cudaGraphAddKernelNode(&child, parent, nullptr, 0, nullptr));
    OK(cudaGraphDestroy(parent));
    OK(cudaGraphDestroy(m.graph));
    return 0;
}
