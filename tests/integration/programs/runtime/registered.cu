#include "check.h"
int main() {
    void *page = std::aligned_alloc(4096, 8192);
    int *d;
    OK(cudaHostRegister(page, 8192, cudaHostRegisterDefault));
    OK(cudaMalloc(&d, 8192));
    std::memset(page, 3, 8192);
    OK(cudaMemcpy(d, page, 8192, cudaMemcpyHostToDevice));
    std::memset(page, 0, 8192);
    OK(cudaMemcpy(page, d, 8192, cudaMemcpyDeviceToHost));
    CHECK(((char *)page)[8191] == 3);
    OK(cudaHostUnregister(page));
    FAILS(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(page));
    return 0;
}
