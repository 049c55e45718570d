#include "check.h"
/* What people see of a graph, and what programs are told of a node by one call. */
#if CUDART_VERSION < 13020
extern "C" cudaError_t cudaGraphNodeGetParams(cudaGraphNode_t, cudaGraphNodeParams *);
#endif
__global__ void shown(int *to, int value) { *to = value; }
static void check_text(cudaGraph_t graph) {
    char path[64], text[4096] = {};
    std::snprintf(path, sizeof path, "/tmp/egpu-graph-%d.dot", (int)getpid());
    REFUSED(cudaGraphDebugDotPrint(graph, path, cudaGraphDebugDotFlagsVerbose));
    FILE *file = std::fopen(path, "r");
    CHECK(file && std::fread(text, 1, sizeof text - 1, file) > 0);
    std::fclose(file);
    unlink(path);
    CHECK(std::strncmp(text, "digraph", 7) == 0 && std::strstr(text, "shown"));
    CHECK(std::strstr(text, "MEMSET") && std::strstr(text, " -> "));
    CHECK(cudaGraphDebugDotPrint(graph, "/tmp/no/such/folder/graph", 0) != cudaSuccess);
    (void)cudaGetLastError();
    FAILS(cudaErrorInvalidValue, cudaGraphDebugDotPrint(graph, nullptr, 0));
}
int main() {
    int *d, value = 3;
    cudaGraph_t graph;
    cudaGraphNode_t fill, kernel, copy;
    OK(cudaMalloc(&d, 64));
    OK(cudaGraphCreate(&graph, 0));
    cudaMemsetParams memset = {};
    memset.dst = d, memset.value = 7, memset.elementSize = 4, memset.width = 4, memset.height = 1;
    OK(cudaGraphAddMemsetNode(&fill, graph, nullptr, 0, &memset));
    void *arguments[] = {&d, &value};
    cudaKernelNodeParams launch = {};
    launch.func = (void *)shown, launch.gridDim = dim3(2), launch.blockDim = dim3(3);
    launch.kernelParams = arguments;
    OK(cudaGraphAddKernelNode(&kernel, graph, &fill, 1, &launch));
    OK(cudaGraphAddMemcpyNode1D(&copy, graph, &kernel, 1, d + 4, d, 16, cudaMemcpyDeviceToDevice));
    check_text(graph);
    cudaGraphNodeParams params = {};
    if (!driver_since(13020)) {
        FAILS(cudaErrorNotSupported, cudaGraphNodeGetParams(fill, &params));
        return 0;
    }
    OK(cudaGraphNodeGetParams(fill, &params));
    CHECK(params.type == cudaGraphNodeTypeMemset && params.memset.dst == d && params.memset.value == 7);
    OK(cudaGraphNodeGetParams(kernel, &params));
    CHECK(params.type == cudaGraphNodeTypeKernel && params.kernel.func == (void *)shown);
    CHECK(params.kernel.gridDim.x == 2 && *(int *)params.kernel.kernelParams[1] == 3);
    OK(cudaGraphNodeGetParams(copy, &params));
    CHECK(params.type == cudaGraphNodeTypeMemcpy && params.memcpy.copyParams.extent.width == 16);
    CHECK(params.memcpy.copyParams.dstPtr.ptr == d + 4);
    FAILS(cudaErrorInvalidValue, cudaGraphNodeGetParams(copy, nullptr));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(d));
    return 0;
}
