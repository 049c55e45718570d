#include "check.h"
/* Which atomic operations the links of a card carry; writes of other devices over PCIe. */
int main() {
    const cudaAtomicOperation asked[] = {cudaAtomicOperationIntegerAdd, cudaAtomicOperationFloatMax};
    unsigned found[2] = {99, 99};
    REFUSED(cudaDeviceGetHostAtomicCapabilities(found, asked, 2, 0));
    int native = -1;
    OK(cudaDeviceGetAttribute(&native, cudaDevAttrHostNativeAtomicSupported, 0));
    CHECK((found[0] != 0) == (native != 0));
    int cards = 0;
    OK(cudaGetDeviceCount(&cards));
    native = 0;
    if (cards > 1) {
        OK(cudaDeviceGetP2PAtomicCapabilities(found, asked, 2, 0, 1));
        OK(cudaDeviceGetP2PAttribute(&native, cudaDevP2PAttrNativeAtomicSupported, 0, 1));
        CHECK((found[0] != 0) == (native != 0) && found[1] == 0);
    }
    CHECK(!native || (found[0] & cudaAtomicCapabilitySigned && found[0] & cudaAtomicCapabilityScalar64));
    const auto wrong = cudaErrorInvalidValue;
    FAILS(wrong, cudaDeviceGetHostAtomicCapabilities(found, asked, 0, 0));
    FAILS(wrong, cudaDeviceGetHostAtomicCapabilities(nullptr, asked, 2, 0));
    const auto none = (cudaAtomicOperation)999;
    FAILS(wrong, cudaDeviceGetHostAtomicCapabilities(found, &none, 1, 0));
    FAILS(cudaErrorInvalidDevice, cudaDeviceGetP2PAtomicCapabilities(found, asked, 2, 0, 0));
    /* there is nothing to flush, as cudaDevAttrGPUDirectRDMAFlushWritesOptions says */
    int options = -1;
    OK(cudaDeviceGetAttribute(&options, cudaDevAttrGPUDirectRDMAFlushWritesOptions, 0));
    CHECK(options == 0);
    FAILS(cudaErrorNotSupported,
          cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                             cudaFlushGPUDirectRDMAWritesToOwner));
    return 0;
}
