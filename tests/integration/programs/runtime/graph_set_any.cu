#include "check.h"
/* A node of whatever kind is changed by one call, in the graph and in what was instantiated. */
__global__ void add(int *x, int by) { x[threadIdx.x] += by; }
static void CUDART_CB count_call(void *calls) { ++*(int *)calls; }
static cudaGraphNodeParams of(cudaGraphNodeType type) {
    cudaGraphNodeParams params = {};
    params.type = type;
    return params;
}
static cudaGraphNodeParams filled(int *d, unsigned value) {
    cudaGraphNodeParams fill = of(cudaGraphNodeTypeMemset);
    fill.memset.dst = d, fill.memset.value = value, fill.memset.elementSize = 4;
    fill.memset.width = 32, fill.memset.height = 1;
    return fill;
}
static cudaGraphNodeParams copied(int *h, int *d, size_t bytes) {
    cudaGraphNodeParams copy = of(cudaGraphNodeTypeMemcpy);
    copy.memcpy.copyParams.srcPtr = make_cudaPitchedPtr(d, 128, 128, 1);
    copy.memcpy.copyParams.dstPtr = make_cudaPitchedPtr(h, 128, 128, 1);
    copy.memcpy.copyParams.extent = make_cudaExtent(bytes, 1, 1);
    copy.memcpy.copyParams.kind = cudaMemcpyDeviceToHost;
    return copy;
}
int main() {
    int *d, *h, by = 1, first = 0, second = 0;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t fill, kernel, copy, call;
    OK(cudaMalloc(&d, 128));
    OK(cudaMallocHost(&h, 128));
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNodeParams filling = filled(d, 10), copying = copied(h, d, 128);
    void *arguments[] = {&d, &by};
    cudaGraphNodeParams adding = of(cudaGraphNodeTypeKernel), calling = of(cudaGraphNodeTypeHost);
    adding.kernel.func = (void *)add, adding.kernel.kernelParams = arguments;
    adding.kernel.gridDim = dim3(1), adding.kernel.blockDim = dim3(32);
    calling.host.fn = count_call, calling.host.userData = &first;
    OK(cudaGraphAddNode(&fill, graph, nullptr, nullptr, 0, &filling));
    OK(cudaGraphAddNode(&kernel, graph, &fill, nullptr, 1, &adding));
    OK(cudaGraphAddNode(&copy, graph, &kernel, nullptr, 1, &copying));
    OK(cudaGraphAddNode(&call, graph, &copy, nullptr, 1, &calling));
    by = 2;
    filling = filled(d, 20);
    OK(cudaGraphNodeSetParams(fill, &filling));
    OK(cudaGraphNodeSetParams(kernel, &adding));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    std::memset(h, 0, 128);
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
    CHECK(h[0] == 22 && h[31] == 22 && first == 1);
    by = 5, filling = filled(d, 30), copying = copied(h, d, 64), calling.host.userData = &second;
    OK(cudaGraphExecNodeSetParams(exec, fill, &filling));
    OK(cudaGraphExecNodeSetParams(exec, kernel, &adding));
    OK(cudaGraphExecNodeSetParams(exec, copy, &copying));
    OK(cudaGraphExecNodeSetParams(exec, call, &calling));
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
    CHECK(h[0] == 35 && h[15] == 35 && h[16] == 22 && first == 1 && second == 1);
    FAILS(cudaErrorInvalidValue, cudaGraphNodeSetParams(fill, &adding)); /* of another kind */
    FAILS(cudaErrorInvalidValue, cudaGraphExecNodeSetParams(exec, kernel, &filling));
    FAILS(cudaErrorInvalidValue, cudaGraphNodeSetParams(fill, nullptr));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaFreeHost(h));
    OK(cudaFree(d));
    return 0;
}
