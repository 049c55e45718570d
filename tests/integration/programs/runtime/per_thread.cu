#include "check.h"
#include <thread>
/* What -default-stream per-thread makes of these calls. */
extern "C" cudaError_t cudaMemcpy_ptds(void *, const void *, size_t, cudaMemcpyKind);
extern "C" cudaError_t cudaMemset_ptds(void *, int, size_t);
extern "C" cudaError_t cudaMemcpy2D_ptds(void *, size_t, const void *, size_t, size_t, size_t, cudaMemcpyKind);
extern "C" cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t);
extern "C" cudaError_t cudaLaunchKernel_ptsz(const void *, dim3, dim3, void **, size_t, cudaStream_t);
__global__ void add(int *x) { x[threadIdx.x] += (int)threadIdx.x; }
static void work() {
    int *d, h[64], flat[64];
    OK(cudaMalloc(&d, sizeof h));
    void *arguments[] = {&d};
    OK(cudaMemset_ptds(d, 0, sizeof h));
    for (int i = 0; i < 3; i++) OK(cudaLaunchKernel_ptsz((const void *)add, dim3(1), dim3(64), arguments, 0, nullptr));
    OK(cudaMemcpy_ptds(h, d, sizeof h, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 64; i++) CHECK(h[i] == 3 * i);
    OK(cudaStreamSynchronize_ptsz(nullptr));
    OK(cudaMemcpy2D_ptds(flat, 32, d, 64, 32, 4, cudaMemcpyDeviceToHost));
    CHECK(flat[8] == h[16]);
    OK(cudaFree(d));
}
int main() {
    std::thread other(work);
    work();
    other.join();
    return 0;
}
