#include "check.h"
__global__ void nothing() {}
int main() {
    nothing<<<1, 2048>>>();
    cudaError_t error = cudaGetLastError();
    CHECK(error == cudaErrorInvalidValue || error == cudaErrorInvalidConfiguration);
    OK(cudaGetLastError());
    void *arguments[1];
    CHECK(cudaLaunchKernel((const void *)main, dim3(1), dim3(1), arguments, 0, 0) != cudaSuccess);
    cudaGetLastError();
    nothing<<<1, 1>>>();
    OK(cudaDeviceSynchronize());
    return 0;
}
