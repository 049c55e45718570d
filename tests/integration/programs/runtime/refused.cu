#include "check.h"
int main() {
    OK(cudaFree(nullptr));
    cudaExternalMemory_t memory;
    FAILS(cudaErrorNotSupported, cudaImportExternalMemory(&memory, nullptr));
    FAILS(cudaErrorNotSupported, cudaDestroyExternalMemory(nullptr));
    return 0;
}
