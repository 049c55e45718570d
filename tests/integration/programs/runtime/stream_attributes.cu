#include "check.h"
/* What a stream is asked to heed, and hands on to another. */
int main() {
    cudaStream_t first, second;
    cudaStreamAttrValue value = {}, got = {};
    int device = -1, *d;
    OK(cudaStreamCreate(&first));
    OK(cudaStreamCreate(&second));
    OK(cudaStreamGetDevice(first, &device));
    CHECK(device == 0);
    value.syncPolicy = cudaSyncPolicyYield;
    OK(cudaStreamSetAttribute(first, cudaLaunchAttributeSynchronizationPolicy, &value));
    OK(cudaStreamCopyAttributes(second, first));
    OK(cudaStreamGetAttribute(second, cudaLaunchAttributeSynchronizationPolicy, &got));
    CHECK(got.syncPolicy == cudaSyncPolicyYield);
    OK(cudaMalloc(&d, 64));
    cudaError_t attached = cudaStreamAttachMemAsync(first, d); /* no managed memory, and told so now or later */
    if (attached == cudaSuccess) attached = cudaStreamSynchronize(first);
    CHECK(attached != cudaSuccess);
    cudaGetLastError();
    OK(cudaStreamSynchronize(first));
    OK(cudaStreamDestroy(first));
    OK(cudaStreamDestroy(second));
    OK(cudaFree(d));
    return 0;
}
