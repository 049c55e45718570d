#include "check.h"
#include <thread>
__global__ void fill(int *x, int v) { x[threadIdx.x] = v; }
int main() {
    int count;
    OK(cudaGetDeviceCount(&count));
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([=] {
            int *d, h[32], device;
            OK(cudaSetDevice(t % count));
            OK(cudaMalloc(&d, sizeof h));
            for (int i = 0; i < 20; i++) {
                fill<<<1, 32>>>(d, t * 100 + i);
                OK(cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost));
                for (int x : h) CHECK(x == t * 100 + i);
            }
            OK(cudaGetDevice(&device));
            CHECK(device == t % count);
            OK(cudaFree(d));
        });
    for (auto &thread : threads) thread.join();
    return 0;
}
