#include "check.h"
/* Events in graphs: recorded and waited for by nodes, and exchanged in the graph and in what was
 * instantiated. */
__global__ void add(int *x, int by) { x[threadIdx.x] += by; }
static cudaGraphNode_t kernel_after(cudaGraph_t graph, cudaGraphNode_t before, int *d, int by) {
    void *arguments[] = {&d, &by};
    cudaKernelNodeParams kernel = {};
    kernel.func = (void *)add, kernel.gridDim = dim3(1), kernel.blockDim = dim3(32);
    kernel.kernelParams = arguments;
    cudaGraphNode_t node;
    OK(cudaGraphAddKernelNode(&node, graph, &before, 1, &kernel));
    return node;
}
int main() {
    int *d, h[32];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t wait, kernel, record;
    cudaEvent_t early, late, other, got;
    cudaStream_t stream;
    OK(cudaMalloc(&d, sizeof h));
    OK(cudaMemset(d, 0, sizeof h));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaEventCreate(&early));
    OK(cudaEventCreate(&late));
    OK(cudaEventCreate(&other));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddEventWaitNode(&wait, graph, nullptr, 0, early));
    kernel = kernel_after(graph, wait, d, 1);
    OK(cudaGraphAddEventRecordNode(&record, graph, &kernel, 1, other));
    OK(cudaGraphEventWaitNodeGetEvent(wait, &got));
    CHECK(got == early);
    OK(cudaGraphEventRecordNodeGetEvent(record, &got));
    CHECK(got == other);
    OK(cudaGraphEventRecordNodeSetEvent(record, late));
    OK(cudaGraphEventRecordNodeGetEvent(record, &got));
    CHECK(got == late);
    OK(cudaGraphEventWaitNodeSetEvent(wait, other));
    OK(cudaGraphEventWaitNodeGetEvent(wait, &got));
    CHECK(got == other);
    OK(cudaGraphEventWaitNodeSetEvent(wait, early));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaEventRecord(early, stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaEventSynchronize(late)); /* which the graph recorded */
    float ms = -1;
    OK(cudaEventElapsedTime(&ms, early, late));
    CHECK(ms >= 0);
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int x : h) CHECK(x == 1);
    OK(cudaGraphExecEventRecordNodeSetEvent(exec, record, other));
    OK(cudaGraphExecEventWaitNodeSetEvent(exec, wait, late));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaEventSynchronize(other));
    OK(cudaEventElapsedTime(&ms, late, other));
    CHECK(ms >= 0);
    OK(cudaGraphEventRecordNodeGetEvent(record, &got)); /* the graph itself is as it was */
    CHECK(got == late);
    FAILS(cudaErrorInvalidValue, cudaGraphEventWaitNodeGetEvent(kernel, &got));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    for (cudaEvent_t each : {early, late, other}) OK(cudaEventDestroy(each));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(d));
    return 0;
}
