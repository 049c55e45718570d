#include "check.h"
int main() {
    void *d;
    size_t before, after, total;
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc(&d, (size_t)64 << 20));
    OK(cudaDeviceReset());
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after == before);
    OK(cudaMalloc(&d, 4096));
    OK(cudaFree(d));
    return 0;
}
