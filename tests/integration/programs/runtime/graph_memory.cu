#include "check.h"
/* Memory that a graph has while it runs, node by node, and what a device says of all of it. */
static unsigned long long said(cudaGraphMemAttributeType which) {
    unsigned long long value = ~0ull;
    OK(cudaDeviceGetGraphMemAttribute(0, which, &value));
    return value;
}
int main() {
    const size_t bytes = 1 << 20;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t make, fill, copy, release;
    unsigned char *h;
    OK(cudaMallocHost(&h, bytes));
    OK(cudaGraphCreate(&graph, 0));
    cudaMemAllocNodeParams asked = {};
    asked.poolProps.allocType = cudaMemAllocationTypePinned;
    asked.poolProps.location.type = cudaMemLocationTypeDevice;
    asked.bytesize = bytes;
    OK(cudaGraphAddMemAllocNode(&make, graph, nullptr, 0, &asked));
    CHECK(asked.dptr != nullptr);
    cudaMemsetParams with = {};
    with.dst = asked.dptr, with.value = 0x5a, with.elementSize = 1, with.width = bytes;
    with.height = 1;
    OK(cudaGraphAddMemsetNode(&fill, graph, &make, 1, &with));
    OK(cudaGraphAddMemcpyNode1D(&copy, graph, &fill, 1, h, asked.dptr, bytes,
                                cudaMemcpyDeviceToHost));
    OK(cudaGraphAddMemFreeNode(&release, graph, &copy, 1, asked.dptr));
    cudaMemAllocNodeParams got = {};
    void *freed = nullptr;
    OK(cudaGraphMemAllocNodeGetParams(make, &got));
    OK(cudaGraphMemFreeNodeGetParams(release, &freed));
    CHECK(got.bytesize == bytes && got.dptr == asked.dptr && freed == asked.dptr);
    FAILS(cudaErrorInvalidValue, cudaGraphMemFreeNodeGetParams(fill, &freed));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    cudaGraphExec_t second; /* of a graph with memory there is one at a time */
    CHECK(cudaGraphInstantiate(&second, graph, 0) != cudaSuccess);
    CHECK(cudaGetLastError() != cudaSuccess);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        std::memset(h, 0, bytes);
        OK(cudaGraphLaunch(exec, 0));
        OK(cudaDeviceSynchronize());
        CHECK(h[0] == 0x5a && h[bytes - 1] == 0x5a);
    }
    CHECK(said(cudaGraphMemAttrUsedMemCurrent) == 0);
    CHECK(said(cudaGraphMemAttrUsedMemHigh) >= bytes);
    CHECK(said(cudaGraphMemAttrReservedMemHigh) >= bytes);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceGraphMemTrim(0));
    CHECK(said(cudaGraphMemAttrReservedMemCurrent) == 0);
    unsigned long long none = 0, some = 1;
    OK(cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &none));
    CHECK(said(cudaGraphMemAttrUsedMemHigh) == 0);
    FAILS(cudaErrorInvalidValue, cudaDeviceSetGraphMemAttribute(0, cudaGraphMemAttrUsedMemHigh, &some));
    OK(cudaFreeHost(h));
    return 0;
}
