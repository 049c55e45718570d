#include <cooperative_groups.h>

#include "check.h"
/* Clusters of blocks: their barrier, the shared memory of each other, how large they may be. A card
 * without them says so. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define CLUSTERS_ARE_THERE 1
#endif
/* Each block reads what the next one of its cluster has written, and counts up what that has. */
__global__ void ring(int *out) {
#ifdef CLUSTERS_ARE_THERE
    __shared__ int mine[32], visits;
    auto cluster = cooperative_groups::this_cluster();
    mine[threadIdx.x] = blockIdx.x * 100 + threadIdx.x;
    if (threadIdx.x == 0) visits = 0;
    cluster.sync();
    unsigned next = (cluster.block_rank() + 1) % cluster.num_blocks();
    int *there = cluster.map_shared_rank(mine, next);
    out[blockIdx.x * 32 + threadIdx.x] = there[threadIdx.x];
    atomicAdd(cluster.map_shared_rank(&visits, next), 1);
    if (cluster.query_shared_rank(there) != next || cluster.block_index().x != blockIdx.x % cluster.num_blocks())
        asm volatile("trap;");
    cluster.sync();
    if (threadIdx.x == 0) out[gridDim.x * 32 + blockIdx.x] = visits;
#endif
}
#ifdef CLUSTERS_ARE_THERE
__global__ void __cluster_dims__(2, 1, 1) pairs(int *out) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) out[blockIdx.x] = (int)(__clusterIdx().x * 10 + __clusterRelativeBlockRank());
#endif
}
#else
__global__ void pairs(int *out);
#endif
/* Beyond its own shared memory and that of the cluster there is nothing. */
__global__ void beyond(int *out) {
#ifdef CLUSTERS_ARE_THERE
    __shared__ int mine;
    mine = 0;
    auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    *out = *cluster.map_shared_rank(&mine, cluster.num_blocks());
#endif
}
static cudaLaunchConfig_t with(cudaLaunchAttribute *attributes, unsigned blocks, unsigned cluster) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks), config.blockDim = dim3(32);
    config.attrs = attributes, config.numAttrs = 1;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    return config;
}
static void check_launches(int *d) {
    int h[12 * 33];
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = with(attributes, 12, 4);
    OK(cudaLaunchKernelEx(&config, ring, d));
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int b = 0; b < 12; b++) {
        int next = b / 4 * 4 + (b + 1) % 4;
        for (int i = 0; i < 32; i++) CHECK(h[b * 32 + i] == next * 100 + i);
        CHECK(h[12 * 32 + b] == 32);
    }
    pairs<<<6, 32>>>(d);
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int b = 0; b < 6; b++) CHECK(h[b] == b / 2 * 10 + b % 2);
    const auto wrong = cudaErrorInvalidClusterSize;
    pairs<<<5, 32>>>(d);
    CHECK(cudaGetLastError() == wrong);
    config = with(attributes, 12, 5);
    FAILS(wrong, cudaLaunchKernelEx(&config, ring, d));
    config = with(attributes, 16, 16);
    FAILS(wrong, cudaLaunchKernelEx(&config, ring, d));
    OK(cudaFuncSetAttribute((const void *)ring, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    OK(cudaLaunchKernelEx(&config, ring, d));
    OK(cudaDeviceSynchronize());
    config = with(attributes, 32, 32);
    FAILS(wrong, cudaLaunchKernelEx(&config, ring, d));
    /* together, and all at once */
    config = with(attributes, 12, 4);
    attributes[1].id = cudaLaunchAttributeCooperative, attributes[1].val.cooperative = 1;
    config.numAttrs = 2;
    OK(cudaLaunchKernelEx(&config, ring, d));
    OK(cudaDeviceSynchronize());
}
static void check_occupancy() {
    int size = 0, count = 0;
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = with(&attribute, 12, 4);
    OK(cudaFuncSetAttribute((const void *)ring, cudaFuncAttributeNonPortableClusterSizeAllowed, 0));
    OK(cudaOccupancyMaxPotentialClusterSize(&size, (const void *)ring, &config));
    CHECK(size == 8);
    OK(cudaFuncSetAttribute((const void *)ring, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    OK(cudaOccupancyMaxPotentialClusterSize(&size, (const void *)ring, &config));
    CHECK(size == 16);
    config.blockDim = dim3(1024);
    config.gridDim = dim3(16);
    attribute.val.clusterDim.x = 16;
    OK(cudaOccupancyMaxActiveClusters(&count, (const void *)ring, &config));
    CHECK(count == 16); /* of an H100: 8 GPCs with 16 or 18 multiprocessors, and 2 blocks on each */
    FAILS(cudaErrorInvalidValue, cudaOccupancyMaxActiveClusters(&count, (const void *)ring, nullptr));
}
static void check_graph(int *d) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStream_t stream;
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = with(&attribute, 4, 2);
    cudaGraphNode_t node;
    size_t count = 1;
    OK(cudaStreamCreate(&stream));
    config.stream = stream;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    OK(cudaLaunchKernelEx(&config, ring, d));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphGetNodes(graph, &node, &count));
    cudaLaunchAttributeValue value = {};
    OK(cudaGraphKernelNodeGetAttribute(node, cudaLaunchAttributeClusterDimension, &value));
    CHECK(value.clusterDim.x == 2 && value.clusterDim.z == 1);
    value.clusterDim.x = 4;
    OK(cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeClusterDimension, &value));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    int first = -1;
    OK(cudaMemcpy(&first, d + 3 * 32, sizeof first, cudaMemcpyDeviceToHost));
    CHECK(first == 0); /* the last block of four has the first one behind it */
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
}
int main() {
    int *d, has = -1;
    OK(cudaMalloc(&d, 16 * 33 * sizeof *d));
    OK(cudaDeviceGetAttribute(&has, cudaDevAttrClusterLaunch, 0));
    if (!has) {
        cudaLaunchAttribute attribute;
        cudaLaunchConfig_t config = with(&attribute, 12, 4);
        FAILS(cudaErrorNotSupported, cudaLaunchKernelEx(&config, ring, d));
        return 0;
    }
    check_launches(d);
    check_occupancy();
    check_graph(d);
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = with(&attribute, 2, 2);
    OK(cudaLaunchKernelEx(&config, beyond, d));
    CHECK(cudaDeviceSynchronize() == cudaErrorIllegalAddress);
    return 0;
}
