#include "check.h"
int main() {
    int *pinned, *mapped, *d, *seen;
    unsigned flags;
    OK(cudaMallocHost(&pinned, 4096));
    OK(cudaHostAlloc(&mapped, 4096, cudaHostAllocMapped));
    OK(cudaHostGetFlags(&flags, mapped));
    CHECK(flags & cudaHostAllocMapped);
    OK(cudaMalloc(&d, 4096));
    for (int i = 0; i < 1024; i++) pinned[i] = i;
    OK(cudaMemcpy(d, pinned, 4096, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(mapped, d, 4096, cudaMemcpyDeviceToHost));
    CHECK(!std::memcmp(pinned, mapped, 4096));
    cudaPointerAttributes a;
    OK(cudaPointerGetAttributes(&a, d));
    CHECK(a.type == cudaMemoryTypeDevice && a.device == 0 && a.devicePointer == d && !a.hostPointer);
    OK(cudaPointerGetAttributes(&a, pinned));
    CHECK(a.type == cudaMemoryTypeHost && a.hostPointer == pinned);
    int plain;
    OK(cudaPointerGetAttributes(&a, &plain));
    CHECK(a.type == cudaMemoryTypeUnregistered && !a.devicePointer);
    cudaError_t mapping = cudaHostGetDevicePointer(&seen, mapped, 0);
    if (mapping != cudaErrorNotSupported) OK(mapping); /* over a network there is no memory that both see */
    OK(cudaFreeHost(pinned));
    OK(cudaFreeHost(mapped));
    OK(cudaFreeHost(nullptr));
    return 0;
}
