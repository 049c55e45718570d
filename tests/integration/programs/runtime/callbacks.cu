#include "check.h"
#include <atomic>
#if CUDART_VERSION < 13010
extern "C" cudaError_t cudaLaunchHostFunc_v2(cudaStream_t, cudaHostFn_t, void *, unsigned);
#endif
static std::atomic<int> told;
static void CUDART_CB host(void *by) { told += *(int *)by; }
static void CUDART_CB old(cudaStream_t, cudaError_t error, void *by) { if (error == cudaSuccess) told += *(int *)by; }
int main() {
    cudaStream_t stream;
    int one = 1, ten = 10;
    OK(cudaStreamCreate(&stream));
    OK(cudaLaunchHostFunc(stream, host, &one));
    OK(cudaStreamAddCallback(stream, old, &ten, 0));
    OK(cudaStreamSynchronize(stream));
    CHECK(told == 11);
    SINCE(13010, cudaLaunchHostFunc_v2(stream, host, &one, 1));
    OK(cudaStreamSynchronize(stream));
    CHECK(told == (driver_since(13010) ? 12 : 11));
    const auto refused = driver_since(13010) ? cudaErrorInvalidValue : cudaErrorNotSupported;
    FAILS(refused, cudaLaunchHostFunc_v2(stream, host, &one, 2));
    return 0;
}
