#include "check.h"
/* What memory an array would take that gets its own later; planes and tiles, which none has here. */
int main() {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaExtent extent = make_cudaExtent(64, 32, 0);
    cudaArray_t array, later, plane;
    cudaMipmappedArray_t levels;
    cudaArrayMemoryRequirements needs = {};
    cudaArraySparseProperties tiles;
    OK(cudaMalloc3DArray(&array, &format, extent, 0));
    FAILS(cudaErrorInvalidValue, cudaArrayGetMemoryRequirements(&needs, array, 0));
    OK(cudaMalloc3DArray(&later, &format, extent, cudaArrayDeferredMapping));
    OK(cudaArrayGetMemoryRequirements(&needs, later, 0));
    CHECK(needs.size >= 64 * 32 * 4 && needs.alignment && needs.size % needs.alignment == 0);
    OK(cudaMallocMipmappedArray(&levels, &format, extent, 3, cudaArrayDeferredMapping));
    OK(cudaMipmappedArrayGetMemoryRequirements(&needs, levels, 0));
    CHECK(needs.size >= 64 * 32 * 4 + 32 * 16 * 4 + 16 * 8 * 4);
    FAILS(cudaErrorInvalidValue, cudaArrayGetPlane(&plane, array, 0));
    FAILS(cudaErrorInvalidValue, cudaArrayGetSparseProperties(&tiles, array));
    FAILS(cudaErrorInvalidValue, cudaMipmappedArrayGetSparseProperties(&tiles, levels));
    OK(cudaFreeMipmappedArray(levels));
    OK(cudaFreeArray(later));
    OK(cudaFreeArray(array));
    return 0;
}
