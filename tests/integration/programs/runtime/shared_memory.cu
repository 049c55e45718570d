#include "check.h"
__global__ void reverse(int *x) {
    extern __shared__ int held[];
    held[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = held[blockDim.x - 1 - threadIdx.x];
}
int main() {
    int *d, h[128];
    for (int i = 0; i < 128; i++) h[i] = i;
    OK(cudaMalloc(&d, sizeof h));
    OK(cudaMemcpy(d, h, sizeof h, cudaMemcpyHostToDevice));
    reverse<<<1, 128, sizeof h>>>(d);
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 128; i++) CHECK(h[i] == 127 - i);
    return 0;
}
