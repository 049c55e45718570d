/* A failed assertion is an error after which the context answers nothing else. What it says is on standard error, where
 * the card is. */
#include "check.h"
#include <cassert>
__global__ void below(int n) { assert((int)threadIdx.x < n); }
int main() {
    below<<<1, 32>>>(32);
    OK(cudaDeviceSynchronize());
    below<<<1, 32>>>(31);
    const cudaError_t error = cudaDeviceSynchronize();
    CHECK(error == cudaErrorAssert);
    CHECK(cudaGetLastError() == error);
    void *d;
    CHECK(cudaMalloc(&d, 16) == error);
    OK(cudaDeviceReset());
    below<<<1, 32>>>(32);
    OK(cudaDeviceSynchronize());
    return 0;
}
