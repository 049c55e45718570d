#include "check.h"
__global__ void fill(int *x, int value) { x[blockIdx.x * blockDim.x + threadIdx.x] = value; }
int main() {
    int *d, h[64], value = 7;
    OK(cudaMalloc(&d, sizeof h));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(2);
    config.blockDim = dim3(32);
    config.stream = stream;
    OK(cudaLaunchKernelEx(&config, fill, d, value));
    value = 8;
    d += 32;
    void *arguments[] = {&d, &value};
    config.gridDim = dim3(1);
    OK(cudaLaunchKernelExC(&config, (const void *)fill, arguments));
    d -= 32;
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) CHECK(h[i] == (i < 32 ? 7 : 8));
    OK(cudaStreamDestroy(stream));
    return 0;
}
