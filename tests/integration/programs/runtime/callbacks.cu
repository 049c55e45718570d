#include "check.h"
#include <atomic>
static std::atomic<int> told;
static void CUDART_CB host(void *by) { told += *(int *)by; }
static void CUDART_CB old(cudaStream_t, cudaError_t error, void *by) { if (error == cudaSuccess) told += *(int *)by; }
int main() {
    cudaStream_t stream;
    int one = 1, ten = 10;
    OK(cudaStreamCreate(&stream));
    OK(cudaLaunchHostFunc(stream, host, &one));
    OK(cudaStreamAddCallback(stream, old, &ten, 0));
    OK(cudaStreamSynchronize(stream));
    CHECK(told == 11);
    return 0;
}
