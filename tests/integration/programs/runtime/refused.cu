#include "check.h"
int main() {
    OK(cudaFree(nullptr));
    cudaTextureObject_t texture;
    FAILS(cudaErrorNotSupported, cudaCreateTextureObject(&texture, nullptr, nullptr, nullptr));
    FAILS(cudaErrorNotSupported, cudaDestroyTextureObject(0));
    return 0;
}
