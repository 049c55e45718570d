#include "check.h"
#include <thread>
__global__ void stray(int *x) { *x = 1; }
int main() {
    OK(cudaFree(nullptr));
    stray<<<1, 1>>>((int *)16);
    cudaError_t error = cudaDeviceSynchronize();
    CHECK(error == cudaErrorIllegalAddress);
    CHECK(cudaGetLastError() == error);
    CHECK(cudaGetLastError() == error);
    std::thread([=] { CHECK(cudaPeekAtLastError() == error); }).join();
    void *d;
    CHECK(cudaMalloc(&d, 16) == error);
    OK(cudaDeviceReset());
    OK(cudaGetLastError());
    OK(cudaMalloc(&d, 16));
    return 0;
}
