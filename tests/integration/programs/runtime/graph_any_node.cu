#include "check.h"
/* The same as graph_nodes by one call, and memory that a graph has only while it runs. */
__device__ int factor = 6;
__global__ void multiply(int *x, const int *by) { x[threadIdx.x] *= *by; }
static void CUDART_CB note(void *called) { *(bool *)called = true; }
static cudaGraphNode_t add(cudaGraph_t graph, cudaGraphNode_t after, cudaGraphNodeParams *params) {
    cudaGraphNode_t node;
    OK(cudaGraphAddNode(&node, graph, after ? &after : nullptr, nullptr, after ? 1 : 0, params));
    return node;
}
static cudaGraphNodeParams of(cudaGraphNodeType type) {
    cudaGraphNodeParams params = {};
    params.type = type;
    return params;
}
int main() {
    int device, *h;
    bool called = false;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t node;
    OK(cudaGetDevice(&device));
    OK(cudaMallocHost(&h, 128));
    OK(cudaGraphCreate(&graph, 0));
    cudaGraphNodeParams empty = of(cudaGraphNodeTypeEmpty);
    OK(cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, &empty));
    cudaGraphNodeParams memory = of(cudaGraphNodeTypeMemAlloc);
    memory.alloc.poolProps.allocType = cudaMemAllocationTypePinned;
    memory.alloc.poolProps.location.type = cudaMemLocationTypeDevice;
    memory.alloc.poolProps.location.id = device;
    memory.alloc.bytesize = 128;
    node = add(graph, node, &memory);
    int *d = (int *)memory.alloc.dptr;
    CHECK(d != nullptr);
    cudaGraphNodeParams fill = of(cudaGraphNodeTypeMemset);
    fill.memset.dst = d, fill.memset.value = 7, fill.memset.elementSize = 4;
    fill.memset.width = 32, fill.memset.height = 1;
    node = add(graph, node, &fill);
    int *by;
    OK(cudaGetSymbolAddress((void **)&by, factor));
    void *arguments[] = {&d, &by};
    cudaGraphNodeParams kernel = of(cudaGraphNodeTypeKernel);
    kernel.kernel.func = (void *)multiply;
    kernel.kernel.gridDim = dim3(1), kernel.kernel.blockDim = dim3(32);
    kernel.kernel.kernelParams = arguments;
    node = add(graph, node, &kernel);
    cudaGraphNodeParams copy = of(cudaGraphNodeTypeMemcpy);
    copy.memcpy.copyParams.srcPtr = make_cudaPitchedPtr(d, 128, 128, 1);
    copy.memcpy.copyParams.dstPtr = make_cudaPitchedPtr(h, 128, 128, 1);
    copy.memcpy.copyParams.extent = make_cudaExtent(128, 1, 1);
    copy.memcpy.copyParams.kind = cudaMemcpyDeviceToHost;
    node = add(graph, node, &copy);
    cudaGraphNodeParams release = of(cudaGraphNodeTypeMemFree);
    release.free.dptr = d;
    node = add(graph, node, &release);
    cudaGraphNodeParams call = of(cudaGraphNodeTypeHost);
    call.host.fn = note, call.host.userData = &called;
    add(graph, node, &call);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        OK(cudaGraphLaunch(exec, 0));
        OK(cudaDeviceSynchronize());
        for (int j = 0; j < 32; j++) CHECK(h[j] == 42);
    }
    CHECK(called);
    FAILS(cudaErrorInvalidValue, cudaGraphAddNode(&node, graph, nullptr, nullptr, 0, nullptr));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    return 0;
}
