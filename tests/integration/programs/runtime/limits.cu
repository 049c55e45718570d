#include "check.h"
int main() {
    size_t stack = 0;
    cudaFuncCache config;
    OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
    CHECK(stack > 0);
    OK(cudaDeviceSetLimit(cudaLimitStackSize, 4096));
    OK(cudaDeviceGetLimit(&stack, cudaLimitStackSize));
    CHECK(stack == 4096);
    OK(cudaDeviceGetCacheConfig(&config));
    return 0;
}
