#include "check.h"
__device__ int table[16];
__constant__ int factor;
__global__ void scale() { table[threadIdx.x] *= factor; }
int main() {
    int h[16], three = 3;
    for (int i = 0; i < 16; i++) h[i] = i;
    OK(cudaMemcpyToSymbol(table, h, sizeof h));
    OK(cudaMemcpyToSymbol(factor, &three, sizeof three));
    scale<<<1, 16>>>();
    OK(cudaMemcpyFromSymbol(h, table, sizeof h));
    for (int i = 0; i < 16; i++) CHECK(h[i] == 3 * i);
    void *address;
    size_t bytes;
    OK(cudaGetSymbolAddress(&address, table));
    OK(cudaGetSymbolSize(&bytes, table));
    CHECK(bytes == sizeof h);
    OK(cudaMemcpy(h, (int *)address + 4, sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(h[0] == 12);
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    int five = 5, back = 0;
    OK(cudaMemcpyToSymbolAsync(table, &five, sizeof five, 8, cudaMemcpyHostToDevice, stream));
    OK(cudaMemcpyFromSymbolAsync(&back, table, sizeof back, 8, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(back == 5);
    FAILS(cudaErrorInvalidValue, cudaMemcpyToSymbol(table, h, sizeof h, 4, cudaMemcpyHostToDevice));
    FAILS(cudaErrorInvalidSymbol, cudaGetSymbolSize(&bytes, (const void *)main));
    return 0;
}
