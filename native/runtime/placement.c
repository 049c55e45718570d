/* Preferred places of managed memory. CUDA 13 takes a location, CUDA 12 a device under the same
 * names. The runtime's header is not included: it declares one version. */
#include "driver.h"
#include "major.h"

#define FUNCTION(name, parameters) \
    API int name parameters;       \
    int name parameters

static int advise(const void *pointer, size_t bytes, int advice, CUmemLocation location) {
    NEED_CONTEXT();
    return runtime_result(
        driver.cuMemAdvise((CUdeviceptr)pointer, bytes, (CUmem_advise)advice, location));
}

static int prefetch(const void *pointer, size_t bytes, CUmemLocation location, unsigned int flags,
                    void *stream) {
    NEED_CONTEXT();
    return runtime_result(
        driver.cuMemPrefetchAsync((CUdeviceptr)pointer, bytes, location, flags, (CUstream)stream));
}

#define ADVISE(name)                                                                          \
    FUNCTION(name, (const void *pointer, size_t bytes, int advice, CUmemLocation location)) { \
        return advise(pointer, bytes, advice, location);                                      \
    }
#define PREFETCH(name, stream_passed)                                                              \
    FUNCTION(name, (const void *pointer, size_t bytes, CUmemLocation location, unsigned int flags, \
                    void *stream)) {                                                               \
        return prefetch(pointer, bytes, location, flags, stream_passed);                           \
    }

IF_13(ADVISE(cudaMemAdvise))
IF_13(PREFETCH(cudaMemPrefetchAsync, stream))
IF_13(PREFETCH(cudaMemPrefetchAsync_ptsz, stream_of(stream)))
IF_12(ADVISE(cudaMemAdvise_v2))
IF_12(PREFETCH(cudaMemPrefetchAsync_v2, stream))
IF_12(PREFETCH(cudaMemPrefetchAsync_v2_ptsz, stream_of(stream)))

#if EGPU_CUDART_MAJOR == 12

static CUmemLocation place(int device) {
    if (device == CU_DEVICE_CPU) return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST};
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

FUNCTION(cudaMemAdvise, (const void *pointer, size_t bytes, int advice, int device)) {
    return advise(pointer, bytes, advice, place(device));
}

FUNCTION(cudaMemPrefetchAsync, (const void *pointer, size_t bytes, int device, void *stream)) {
    return prefetch(pointer, bytes, place(device), 0, stream);
}

FUNCTION(cudaMemPrefetchAsync_ptsz, (const void *pointer, size_t bytes, int device, void *stream)) {
    return prefetch(pointer, bytes, place(device), 0, stream_of(stream));
}

#endif
