#include "check.h"
/* What an array needs and is made of; what only sparse arrays and those of several planes have, others are refused. */
int main() {
    const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    const cudaExtent all = make_cudaExtent(64, 32, 0);
    cudaArray_t array, plane;
    cudaMipmappedArray_t mipmap;
    cudaArrayMemoryRequirements needs = {};
    cudaArraySparseProperties sparse = {};
    OK(cudaMalloc3DArray(&array, &format, all, 0));
    FAILS(cudaErrorInvalidValue, cudaArrayGetSparseProperties(&sparse, array));
    FAILS(cudaErrorInvalidValue, cudaArrayGetPlane(&plane, array, 0));
    FAILS(cudaErrorInvalidValue, cudaArrayGetMemoryRequirements(&needs, array, 0));
    OK(cudaFreeArray(array));
    OK(cudaMallocMipmappedArray(&mipmap, &format, all, 3, 0));
    FAILS(cudaErrorInvalidValue, cudaMipmappedArrayGetSparseProperties(&sparse, mipmap));
    FAILS(cudaErrorInvalidValue, cudaMipmappedArrayGetMemoryRequirements(&needs, mipmap, 0));
    OK(cudaFreeMipmappedArray(mipmap));
    return 0;
}
