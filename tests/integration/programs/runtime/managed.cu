#include "check.h"
__global__ void add(int *x) { x[threadIdx.x] += 1; }
int main() {
    int *m, device_has_it;
    OK(cudaDeviceGetAttribute(&device_has_it, cudaDevAttrManagedMemory, 0));
    cudaError_t error = cudaMallocManaged(&m, 128);
    if (error == cudaErrorNotSupported) return 0; /* over a network there is no memory that both see */
    OK(error);
    for (int i = 0; i < 32; i++) m[i] = i;
    add<<<1, 32>>>(m);
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 32; i++) CHECK(m[i] == i + 1);
    OK(cudaFree(m));
    return 0;
}
