#include "check.h"
__global__ void add(int *x, int by) { x[threadIdx.x] += by; }
int main() {
    cudaStream_t streams[4];
    int *d[4], h[32], least, greatest, priority;
    unsigned flags;
    unsigned long long first, second;
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    for (int s = 0; s < 4; s++) {
        OK(s % 2 ? cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking)
                 : cudaStreamCreateWithPriority(&streams[s], cudaStreamDefault, greatest));
        OK(cudaMalloc(&d[s], sizeof h));
        OK(cudaMemsetAsync(d[s], 0, sizeof h, streams[s]));
        for (int i = 0; i < 10; i++) add<<<1, 32, 0, streams[s]>>>(d[s], s + 1);
    }
    OK(cudaStreamGetFlags(streams[1], &flags));
    CHECK(flags == cudaStreamNonBlocking);
    OK(cudaStreamGetPriority(streams[0], &priority));
    CHECK(priority == greatest);
    OK(cudaStreamGetId(streams[0], &first));
    OK(cudaStreamGetId(streams[1], &second));
    CHECK(first != second);
    for (int s = 0; s < 4; s++) {
        OK(cudaStreamSynchronize(streams[s]));
        OK(cudaStreamQuery(streams[s]));
        OK(cudaMemcpy(h, d[s], sizeof h, cudaMemcpyDeviceToHost));
        for (int x : h) CHECK(x == 10 * (s + 1));
        OK(cudaStreamDestroy(streams[s]));
    }
    return 0;
}
