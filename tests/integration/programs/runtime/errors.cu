#include "check.h"
#include <thread>
int main() {
    void *d;
    FAILS(cudaErrorInvalidDevice, cudaSetDevice(1000));
    FAILS(cudaErrorMemoryAllocation, cudaMalloc(&d, (size_t)1 << 60));
    FAILS(cudaErrorInvalidValue, cudaMalloc((void **)nullptr, 1));
    CHECK(cudaSetDevice(-1) == cudaErrorInvalidDevice);
    std::thread([] { CHECK(cudaGetLastError() == cudaSuccess); }).join();
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
    CHECK(!std::strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation"));
    CHECK(!std::strcmp(cudaGetErrorName(cudaSuccess), "cudaSuccess"));
    CHECK(std::strlen(cudaGetErrorString(cudaErrorInvalidValue)) > 0);
    CHECK(std::strcmp(cudaGetErrorString(cudaErrorInvalidValue), cudaGetErrorString(cudaErrorMemoryAllocation)));
    return 0;
}
