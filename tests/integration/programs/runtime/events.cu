#include "check.h"
__global__ void spin(int *x) { for (int i = 0; i < 1000; i++) atomicAdd(x, 1); }
int main() {
    cudaEvent_t begin, end, bare;
    cudaStream_t a, b;
    int *d, h;
    float ms = -1;
    OK(cudaMalloc(&d, sizeof h));
    OK(cudaMemset(d, 0, sizeof h));
    OK(cudaDeviceSynchronize());
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaEventCreateWithFlags(&bare, cudaEventDisableTiming));
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventRecord(begin, a));
    spin<<<1, 1, 0, a>>>(d);
    OK(cudaEventRecordWithFlags(end, a, cudaEventRecordDefault));
    OK(cudaStreamWaitEvent(b, end, 0));
    OK(cudaMemcpyAsync(&h, d, sizeof h, cudaMemcpyDeviceToHost, b));
    OK(cudaEventRecord(bare, b));
    OK(cudaEventSynchronize(bare));
    CHECK(h == 1000);
    OK(cudaEventQuery(end));
    OK(cudaEventElapsedTime(&ms, begin, end));
    CHECK(ms >= 0);
    FAILS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, begin, bare));
    OK(cudaEventDestroy(begin));
    OK(cudaEventDestroy(end));
    OK(cudaEventDestroy(bare));
    return 0;
}
