#include "check.h"
__global__ void nothing() {}
int main() {
    nothing<<<1, 2048>>>();
    FAILS(cudaErrorInvalidConfiguration, cudaPeekAtLastError());
    void *arguments[1];
    CHECK(cudaLaunchKernel((const void *)main, dim3(1), dim3(1), arguments, 0, 0) != cudaSuccess);
    cudaGetLastError();
    nothing<<<1, 1>>>();
    OK(cudaDeviceSynchronize());
    return 0;
}
