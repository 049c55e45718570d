#include "check.h"
__global__ void count(int *x) { atomicAdd(x, 1); }
int main() {
    int *d, h = 0;
    OK(cudaMalloc(&d, sizeof h));
    OK(cudaMemset(d, 0, sizeof h));
    void *arguments[] = {&d};
    OK(cudaLaunchCooperativeKernel((void *)count, dim3(4), dim3(64), arguments, 0, 0));
    OK(cudaMemcpy(&h, d, sizeof h, cudaMemcpyDeviceToHost));
    CHECK(h == 256);
    return 0;
}
