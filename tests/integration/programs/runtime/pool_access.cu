#include "check.h"
/* Which pool a device takes memory from, and who else may use it. */
int main() {
    cudaMemPool_t first, own, found;
    cudaMemPoolProps asked = {};
    cudaMemLocation here = {}, there = {};
    cudaMemAccessFlags may = cudaMemAccessFlagsProtNone;
    int *d, devices = 0;
    OK(cudaGetDeviceCount(&devices));
    here.type = there.type = cudaMemLocationTypeDevice;
    there.id = 1;
    OK(cudaDeviceGetMemPool(&first, 0));
    OK(cudaMemGetDefaultMemPool(&found, &here, cudaMemAllocationTypePinned));
    CHECK(found == first);
    asked.allocType = cudaMemAllocationTypePinned, asked.location = here;
    OK(cudaMemPoolCreate(&own, &asked));
    OK(cudaDeviceSetMemPool(0, own));
    OK(cudaMemGetMemPool(&found, &here, cudaMemAllocationTypePinned));
    CHECK(found == own);
    OK(cudaMallocAsync(&d, 64, 0));
    OK(cudaFreeAsync(d, 0));
    OK(cudaStreamSynchronize(0));
    OK(cudaMemSetMemPool(&here, cudaMemAllocationTypePinned, first));
    OK(cudaDeviceGetMemPool(&found, 0));
    CHECK(found == first);
    OK(cudaMemPoolGetAccess(&may, own, &here));
    CHECK(may == cudaMemAccessFlagsProtReadWrite);
    if (devices > 1) {
        cudaMemAccessDesc both = {there, cudaMemAccessFlagsProtReadWrite};
        OK(cudaMemPoolGetAccess(&may, own, &there));
        CHECK(may == cudaMemAccessFlagsProtNone);
        OK(cudaMemPoolSetAccess(own, &both, 1));
        OK(cudaMemPoolGetAccess(&may, own, &there));
        CHECK(may == cudaMemAccessFlagsProtReadWrite);
    }
    OK(cudaMemPoolDestroy(own));
    return 0;
}
