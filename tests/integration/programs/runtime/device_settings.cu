#include "check.h"
/* What a program asks for of a device and a kernel, and what it is told of both and of a stream. */
#if CUDART_VERSION < 13010
extern "C" cudaError_t cudaFuncGetParamCount(const void *, size_t *);
#endif
__global__ void three(int *a, int b, double c) { *a = b + (int)c; }
static void check_device() {
    unsigned flags = 0;
    cudaFuncCache cache = cudaFuncCachePreferNone;
    OK(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));
    OK(cudaFree(nullptr));
    OK(cudaGetDeviceFlags(&flags));
    CHECK((flags & cudaDeviceScheduleMask) == cudaDeviceScheduleBlockingSync);
    OK(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
    OK(cudaDeviceGetCacheConfig(&cache));
    CHECK(cache == cudaFuncCachePreferL1);
    OK(cudaDeviceSetCacheConfig(cudaFuncCachePreferNone));
    OK(cudaCtxResetPersistingL2Cache());
    int count = 0, value = -1, reach = 0;
    OK(cudaGetDeviceCount(&count));
    if (count > 1) {
        OK(cudaDeviceCanAccessPeer(&reach, 0, 1));
        OK(cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 0, 1));
        CHECK(value == reach);
    }
    FAILS(cudaErrorInvalidDevice,
          cudaDeviceGetP2PAttribute(&value, cudaDevP2PAttrAccessSupported, 0, 0));
}
static void check_kernel() {
    size_t count = 0;
    SINCE(13020, cudaFuncGetParamCount((const void *)three, &count));
    CHECK(count == (driver_since(13020) ? 3 : 0));
    OK(cudaFuncSetSharedMemConfig((const void *)three, cudaSharedMemBankSizeFourByte));
}
static void check_stream() {
    cudaStream_t stream;
    int device = -1;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamGetDevice(stream, &device));
    CHECK(device == 0);
    OK(cudaStreamDestroy(stream));
}
int main() {
    check_device();
    check_kernel();
    check_stream();
    return 0;
}
