#include "check.h"
int main() {
    int count, can, *a, *b, h[16] = {1, 2, 3}, back[16] = {};
    OK(cudaGetDeviceCount(&count));
    if (count < 2) return 0;
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&a, sizeof h));
    OK(cudaMemcpy(a, h, sizeof h, cudaMemcpyHostToDevice));
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&b, sizeof h));
    OK(cudaMemcpyPeer(b, 1, a, 0, sizeof h));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(back, b, sizeof h, cudaMemcpyDeviceToHost));
    CHECK(!std::memcmp(h, back, sizeof h));
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemset(b, 0, sizeof h));
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpyPeerAsync(b, 1, a, 0, sizeof h, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(back, b, sizeof h, cudaMemcpyDeviceToHost));
    CHECK(!std::memcmp(h, back, sizeof h));
    if (can) {
        OK(cudaDeviceEnablePeerAccess(0, 0));
        FAILS(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(0, 0));
        OK(cudaDeviceDisablePeerAccess(0));
    }
    return 0;
}
