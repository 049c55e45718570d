#include "check.h"
__global__ void fill(int *x, int v) { x[threadIdx.x] = v; }
int main() {
    cudaMemPool_t pool, own;
    cudaStream_t stream;
    int *a, *b, h[32];
    unsigned long long threshold = 1 << 20, read = 0;
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &read));
    CHECK(read == threshold);
    OK(cudaStreamCreate(&stream));
    OK(cudaMallocAsync(&a, sizeof h, stream));
    fill<<<1, 32, 0, stream>>>(a, 9);
    OK(cudaMemcpyAsync(h, a, sizeof h, cudaMemcpyDeviceToHost, stream));
    OK(cudaFreeAsync(a, stream));
    OK(cudaStreamSynchronize(stream));
    for (int x : h) CHECK(x == 9);
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    OK(cudaMemPoolCreate(&own, &props));
    OK(cudaMallocFromPoolAsync(&b, sizeof h, own, stream));
    OK(cudaFreeAsync(b, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemPoolTrimTo(own, 0));
    OK(cudaMemPoolDestroy(own));
    return 0;
}
