#include "check.h"
#include <dlfcn.h>
/* What a program prefers of devices and kernels, and asks of them. */
__global__ void three(int a, double b, char c) {
    if (b == 0) asm volatile("trap;");
}
int main() {
    unsigned flags = 0;
    int blocks = 0, access = -1, devices = 0, *h;
    size_t count = 0;
    cudaFuncCache cache;
    OK(cudaSetDeviceFlags(cudaDeviceScheduleYield));
    OK(cudaGetDeviceFlags(&flags));
    CHECK((flags & cudaDeviceScheduleMask) == cudaDeviceScheduleYield);
    FAILS(cudaErrorInvalidValue, cudaSetDeviceFlags(~0u));
    OK(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
    OK(cudaDeviceGetCacheConfig(&cache));
    CHECK(cache == cudaFuncCachePreferL1);
    OK(cudaCtxResetPersistingL2Cache());
    void *younger = dlsym(RTLD_DEFAULT, "cudaFuncGetParamCount"); /* of CUDA 13.1 */
    CHECK(younger != nullptr);
    if (HAS(((cudaError_t(*)(const void *, size_t *))younger)((const void *)three, &count)))
        CHECK(count == 3);
    OK(cudaFuncSetSharedMemConfig((const void *)three, cudaSharedMemBankSizeFourByte));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)three, 256, 0));
    CHECK(blocks > 0);
    OK(cudaGetDeviceCount(&devices));
    if (devices > 1) OK(cudaDeviceGetP2PAttribute(&access, cudaDevP2PAttrAccessSupported, 0, 1));
    CHECK(access >= 0 || devices == 1);
    FAILS(cudaErrorInvalidDevice, cudaDeviceGetP2PAttribute(&access, cudaDevP2PAttrAccessSupported, 0, 99));
    OK(cudaMallocHost((void **)&h, 64));
    int read_mostly = 1;
    void *data[] = {&read_mostly};
    size_t bytes[] = {sizeof read_mostly};
    cudaMemRangeAttribute which[] = {cudaMemRangeAttributeReadMostly};
    CHECK(cudaMemRangeGetAttributes(data, bytes, which, 1, h, 64) != cudaSuccess); /* no managed memory */
    cudaGetLastError();
    OK(cudaFreeHost(h));
    return 0;
}
