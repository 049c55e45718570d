#include "check.h"
__global__ void kernel(float *x) {
    __shared__ float held[64];
    held[threadIdx.x % 64] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = held[63 - threadIdx.x % 64];
}
int main() {
    cudaFuncAttributes a;
    int blocks, min_grid, block_size;
    size_t dynamic;
    const char *name;
    OK(cudaFuncGetAttributes(&a, kernel));
    CHECK(a.sharedSizeBytes == 256 && a.maxThreadsPerBlock > 0 && a.numRegs > 0 && a.ptxVersion >= 70);
    OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000));
    OK(cudaFuncGetAttributes(&a, kernel));
    CHECK(a.maxDynamicSharedSizeBytes == 60000);
    OK(cudaFuncSetCacheConfig(kernel, cudaFuncCachePreferL1));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 128, 0));
    CHECK(blocks >= 1);
    OK(cudaOccupancyMaxPotentialBlockSize(&min_grid, &block_size, kernel));
    CHECK(min_grid >= 1 && block_size >= 32);
    OK(cudaOccupancyAvailableDynamicSMemPerBlock(&dynamic, kernel, 1, 128));
    CHECK(dynamic > 0);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, kernel, 128, 0, cudaOccupancyDisableCachingOverride));
    CHECK(blocks >= 1);
    cudaKernel_t handle;
    OK(cudaGetKernel(&handle, (const void *)kernel));
    OK(cudaKernelSetAttributeForDevice(handle, cudaFuncAttributeMaxDynamicSharedMemorySize, 50000, 0));
    OK(cudaFuncGetAttributes(&a, (const void *)handle));
    CHECK(a.maxDynamicSharedSizeBytes == 50000);
    cudaFunction_t function;
    OK(cudaGetFuncBySymbol(&function, (const void *)kernel));
    OK(cudaFuncGetName(&name, (const void *)kernel));
    CHECK(std::strstr(name, "kernel"));
    return 0;
}
