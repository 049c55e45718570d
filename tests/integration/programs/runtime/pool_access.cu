#include "check.h"
/* Which pool a device allocates from when it is not said, and who may reach what is in one. */
int main() {
    cudaMemPool_t standard, same, own;
    cudaMemLocation here = {};
    here.type = cudaMemLocationTypeDevice, here.id = 0;
    OK(cudaDeviceGetDefaultMemPool(&standard, 0));
    OK(cudaDeviceGetMemPool(&same, 0));
    CHECK(same == standard);
    OK(cudaMemGetDefaultMemPool(&same, &here, cudaMemAllocationTypePinned));
    CHECK(same == standard);
    cudaMemPoolProps props = {};
    props.allocType = cudaMemAllocationTypePinned, props.location = here;
    OK(cudaMemPoolCreate(&own, &props));
    OK(cudaDeviceSetMemPool(0, own));
    OK(cudaMemGetMemPool(&same, &here, cudaMemAllocationTypePinned));
    CHECK(same == own);
    void *d;
    unsigned long long used = 0;
    OK(cudaMallocAsync(&d, 4096, 0));
    OK(cudaMemPoolGetAttribute(own, cudaMemPoolAttrUsedMemCurrent, &used));
    CHECK(used >= 4096);
    OK(cudaFreeAsync(d, 0));
    OK(cudaDeviceSynchronize());
    OK(cudaMemSetMemPool(&here, cudaMemAllocationTypePinned, standard));
    OK(cudaDeviceGetMemPool(&same, 0));
    CHECK(same == standard);
    cudaMemAccessFlags flags = cudaMemAccessFlagsProtNone;
    OK(cudaMemPoolGetAccess(&flags, own, &here));
    CHECK(flags == cudaMemAccessFlagsProtReadWrite);
    cudaMemAccessDesc access = {};
    access.location = here, access.flags = cudaMemAccessFlagsProtReadWrite;
    OK(cudaMemPoolSetAccess(own, &access, 1));
    access.flags = cudaMemAccessFlagsProtNone; /* not of the device whose memory it is */
    FAILS(cudaErrorInvalidValue, cudaMemPoolSetAccess(own, &access, 1));
    int count = 0, reach = 0;
    OK(cudaGetDeviceCount(&count));
    if (count > 1) OK(cudaDeviceCanAccessPeer(&reach, 1, 0));
    if (reach) {
        access.location.id = 1, access.flags = cudaMemAccessFlagsProtReadWrite;
        OK(cudaMemPoolSetAccess(own, &access, 1));
        OK(cudaMemPoolGetAccess(&flags, own, &access.location));
        CHECK(flags == cudaMemAccessFlagsProtReadWrite);
    }
    OK(cudaMemPoolDestroy(own));
    return 0;
}
