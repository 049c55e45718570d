#include "check.h"
#include <thread>
/* Threads that chose no device are given the first of these. */
static void check_valid(int count) {
    int list[] = {count - 1, 0}, device = -1;
    OK(cudaSetValidDevices(list, count > 1 ? 2 : 1));
    std::thread([&] {
        OK(cudaGetDevice(&device));
        CHECK(device == count - 1);
        void *d;
        OK(cudaMalloc(&d, 64)); /* now it has a context, there */
        cudaPointerAttributes is;
        OK(cudaPointerGetAttributes(&is, d));
        CHECK(is.device == count - 1);
        OK(cudaFree(d));
    }).join();
    list[0] = count;
    FAILS(cudaErrorInvalidDevice, cudaSetValidDevices(list, 1));
    FAILS(cudaErrorInvalidValue, cudaSetValidDevices(nullptr, 1));
    FAILS(cudaErrorInvalidValue, cudaSetValidDevices(list, count + 1));
    OK(cudaSetValidDevices(nullptr, 0));
    std::thread([&] { CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0); }).join();
}
int main() {
    int count, device, value, version, runtime;
    OK(cudaGetDeviceCount(&count));
    CHECK(count >= 1);
    OK(cudaInitDevice(0, 0, 0));
    check_valid(count);
    OK(cudaSetDevice(count - 1));
    OK(cudaGetDevice(&device));
    CHECK(device == count - 1);
    cudaDeviceProp p;
    OK(cudaGetDeviceProperties(&p, 0));
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    CHECK(value > 0 && value == p.multiProcessorCount);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK(value == p.major && p.major >= 7);
    CHECK(p.warpSize == 32 && p.maxThreadsPerBlock == 1024 && p.maxThreadsDim[2] == 64);
    CHECK(std::strlen(p.name) > 0 && p.totalGlobalMem > 0);
    size_t free_bytes, total;
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK(free_bytes <= total && total <= p.totalGlobalMem);
    OK(cudaDriverGetVersion(&version));
    OK(cudaRuntimeGetVersion(&runtime));
    CHECK(version >= 12000 && runtime / 1000 == CUDART_VERSION / 1000);
    char bus[32];
    OK(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    OK(cudaDeviceGetByPCIBusId(&device, bus));
    CHECK(device == 0);
    return 0;
}
