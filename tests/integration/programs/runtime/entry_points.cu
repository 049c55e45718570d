#include "check.h"
int main() {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult status;
    OK(cudaGetDriverEntryPointByVersion("cuDriverGetVersion", &function, 12000, cudaEnableDefault, &status));
    CHECK(status == cudaDriverEntryPointSuccess && function);
    int version = 0;
    CHECK(((int (*)(int *))function)(&version) == 0 && version >= 12000);
    OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 12000, cudaEnableDefault, &status));
    CHECK(status == cudaDriverEntryPointSymbolNotFound && !function);
    OK(cudaGetDriverEntryPoint("cuDeviceGetCount", &function, cudaEnableDefault, &status));
    CHECK(status == cudaDriverEntryPointSuccess && function);
    return 0;
}
