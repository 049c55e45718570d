#include "check.h"
__global__ void add(int *x, int n, int by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += i * by;
}
int main() {
    const int n = 1000;
    int *d, h[n];
    OK(cudaMalloc(&d, sizeof h));
    OK(cudaMemset(d, 0, sizeof h));
    add<<<(n + 255) / 256, 256>>>(d, n, 1);
    OK(cudaGetLastError());
    int by = 2, count = n;
    void *arguments[] = {&d, &count, &by};
    OK(cudaLaunchKernel((const void *)add, dim3(4), dim3(256), arguments, 0, 0));
    OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) CHECK(h[i] == 3 * i);
    OK(cudaFree(d));
    OK(cudaFree(nullptr));
    return 0;
}
