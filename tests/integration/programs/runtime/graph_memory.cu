#include "check.h"
/* Memory that a graph has only while it runs, and what a device keeps of it. */
static cudaMemAllocNodeParams of_device(int device, size_t bytes) {
    cudaMemAllocNodeParams params = {};
    params.poolProps.allocType = cudaMemAllocationTypePinned;
    params.poolProps.location.type = cudaMemLocationTypeDevice;
    params.poolProps.location.id = device;
    params.bytesize = bytes;
    return params;
}
static unsigned long long attribute(cudaGraphMemAttributeType which) {
    unsigned long long value = ~0ull;
    OK(cudaDeviceGetGraphMemAttribute(0, which, &value));
    return value;
}
int main() {
    const size_t bytes = 1 << 20;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t taken, filled, copied, given;
    cudaMemAllocNodeParams asked = of_device(0, bytes), said = {};
    int *h;
    void *freed = nullptr;
    unsigned long long none = 0;
    OK(cudaMallocHost(&h, sizeof *h));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemAllocNode(&taken, graph, nullptr, 0, &asked));
    CHECK(asked.dptr != nullptr);
    cudaMemsetParams fill = {};
    fill.dst = asked.dptr, fill.value = 5, fill.elementSize = 4, fill.width = bytes / 4, fill.height = 1;
    OK(cudaGraphAddMemsetNode(&filled, graph, &taken, 1, &fill));
    OK(cudaGraphAddMemcpyNode1D(&copied, graph, &filled, 1, h, (int *)asked.dptr + 7, sizeof *h,
                                cudaMemcpyDeviceToHost));
    OK(cudaGraphAddMemFreeNode(&given, graph, &copied, 1, asked.dptr));
    OK(cudaGraphMemAllocNodeGetParams(taken, &said));
    CHECK(said.bytesize == bytes && said.dptr == asked.dptr && said.poolProps.location.id == 0);
    OK(cudaGraphMemFreeNodeGetParams(given, &freed));
    CHECK(freed == asked.dptr);
    FAILS(cudaErrorInvalidValue, cudaGraphMemFreeNodeGetParams(taken, &freed));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) {
        *h = 0;
        OK(cudaGraphLaunch(exec, 0));
        OK(cudaDeviceSynchronize());
        CHECK(*h == 5);
    }
    CHECK(attribute(cudaGraphMemAttrUsedMemHigh) >= bytes);
    CHECK(attribute(cudaGraphMemAttrReservedMemHigh) >= attribute(cudaGraphMemAttrUsedMemHigh));
    OK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &none));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceGraphMemTrim(0));
    CHECK(attribute(cudaGraphMemAttrUsedMemCurrent) == 0);
    CHECK(attribute(cudaGraphMemAttrReservedMemCurrent) == 0);
    OK(cudaFreeHost(h));
    return 0;
}
