/* Errors that the runtime's documentation names and the driver has under another number or name: one
 * row for each call and fault. */
#include "check.h"

__global__ void nothing() {}
__device__ int variable[4];
static int no_kernel;

struct row {
    const char *fault;
    cudaError_t error;
    cudaError_t (*call)();
};

static cudaError_t launched() { return cudaGetLastError(); }

static cudaLaunchConfig_t configured(dim3 grid, dim3 block, size_t shared = 0) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    return config;
}

static const void *const kernel = (const void *)nothing;

static const std::vector<row> launches = {
    {"threads", cudaErrorInvalidConfiguration, [] { return nothing<<<1, 2048>>>(), launched(); }},
    {"x", cudaErrorInvalidConfiguration, [] { return nothing<<<1, dim3(1025)>>>(), launched(); }},
    {"z", cudaErrorInvalidConfiguration, [] { return nothing<<<1, dim3(1, 1, 65)>>>(), launched(); }},
    {"no block", cudaErrorInvalidConfiguration, [] { return nothing<<<0, 1>>>(), launched(); }},
    {"no thread", cudaErrorInvalidConfiguration, [] { return nothing<<<1, 0>>>(), launched(); }},
    {"grid of y", cudaErrorInvalidConfiguration, [] { return nothing<<<dim3(1, 65536), 1>>>(), launched(); }},
    {"grid of z", cudaErrorInvalidConfiguration, [] { return nothing<<<dim3(1, 1, 65536), 1>>>(), launched(); }},
    {"shared", cudaErrorInvalidConfiguration, [] { return nothing<<<1, 1, 1 << 20>>>(), launched(); }},
    {"more shared than the kernel may", cudaErrorInvalidValue, [] { return nothing<<<1, 1, 49 << 10>>>(), launched(); }},
    {"cooperative", cudaErrorInvalidConfiguration,
     [] { return cudaLaunchCooperativeKernel(kernel, dim3(1), dim3(2048), nullptr, 0, 0); }},
    {"cooperative, too large at once", cudaErrorCooperativeLaunchTooLarge,
     [] { return cudaLaunchCooperativeKernel(kernel, dim3(1 << 20), dim3(1024), nullptr, 0, 0); }},
    {"configured", cudaErrorInvalidConfiguration,
     [] { auto config = configured(dim3(1), dim3(0)); return cudaLaunchKernelExC(&config, kernel, nullptr); }},
    {"configured, shared", cudaErrorInvalidConfiguration,
     [] { auto config = configured(dim3(1), dim3(1), 1ull << 33); return cudaLaunchKernelExC(&config, kernel, nullptr); }},
    {"called by name", cudaErrorInvalidConfiguration,
     [] { return cudaLaunchKernel(kernel, dim3(1), dim3(4096), nullptr, 0, 0); }},
    {"no kernel", cudaErrorInvalidDeviceFunction,
     [] { return cudaLaunchKernel(&no_kernel, dim3(1), dim3(1), nullptr, 0, 0); }},
    {"no kernel, cooperative", cudaErrorInvalidDeviceFunction,
     [] { return cudaLaunchCooperativeKernel(&no_kernel, dim3(1), dim3(1), nullptr, 0, 0); }},
    {"no kernel, configured", cudaErrorInvalidDeviceFunction,
     [] { auto config = configured(dim3(1), dim3(1)); return cudaLaunchKernelExC(&config, &no_kernel, nullptr); }},
    {"null", cudaErrorInvalidDeviceFunction,
     [] { return cudaLaunchKernel((const void *)nullptr, dim3(1), dim3(1), nullptr, 0, 0); }},
};

static const std::vector<row> functions = {
    {"attributes", cudaErrorInvalidDeviceFunction,
     [] { cudaFuncAttributes found; return cudaFuncGetAttributes(&found, (const void *)&no_kernel); }},
    {"attribute", cudaErrorInvalidDeviceFunction,
     [] { return cudaFuncSetAttribute((const void *)&no_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 0); }},
    {"cache", cudaErrorInvalidDeviceFunction,
     [] { return cudaFuncSetCacheConfig((const void *)&no_kernel, cudaFuncCachePreferL1); }},
    {"name", cudaErrorInvalidDeviceFunction,
     [] { const char *name; return cudaFuncGetName(&name, (const void *)&no_kernel); }},
    {"occupancy", cudaErrorInvalidDeviceFunction,
     [] { int blocks; return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)&no_kernel, 32, 0); }},
    {"free shared memory", cudaErrorInvalidDeviceFunction,
     [] { size_t bytes; return cudaOccupancyAvailableDynamicSMemPerBlock(&bytes, (const void *)&no_kernel, 1, 32); }},
    {"value", cudaErrorInvalidValue,
     [] { return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 30); }},
    {"node", cudaErrorInvalidDeviceFunction,
     [] {
         cudaGraph_t graph;
         cudaGraphNode_t node;
         cudaKernelNodeParams asked = {};
         asked.func = &no_kernel;
         asked.gridDim = asked.blockDim = dim3(1);
         OK(cudaGraphCreate(&graph, 0));
         cudaError_t error = cudaGraphAddKernelNode(&node, graph, nullptr, 0, &asked);
         OK(cudaGraphDestroy(graph));
         return error;
     }},
    {"address", cudaErrorInvalidSymbol, [] { void *at; return cudaGetSymbolAddress(&at, &no_kernel); }},
    {"size", cudaErrorInvalidSymbol, [] { size_t bytes; return cudaGetSymbolSize(&bytes, &no_kernel); }},
    {"to", cudaErrorInvalidSymbol, [] { int x = 0; return cudaMemcpyToSymbol(&no_kernel, &x, 4); }},
    {"from", cudaErrorInvalidSymbol, [] { int x; return cudaMemcpyFromSymbol(&x, &no_kernel, 4); }},
    {"beyond", cudaErrorInvalidValue, [] { int x[5] = {}; return cudaMemcpyToSymbol(variable, x, 20); }},
    {"direction to", cudaErrorInvalidMemcpyDirection,
     [] { int x = 0; return cudaMemcpyToSymbol(variable, &x, 4, 0, cudaMemcpyDeviceToHost); }},
    {"direction from", cudaErrorInvalidMemcpyDirection,
     [] { int x; return cudaMemcpyFromSymbol(&x, variable, 4, 0, cudaMemcpyHostToDevice); }},
};

static char host[64];
static char *device; /* of 64 bytes */
static const size_t too_large = (size_t)1 << 31;

static cudaMemcpy3DParms box(size_t from_pitch, size_t to_pitch, cudaMemcpyKind kind = cudaMemcpyHostToDevice) {
    cudaMemcpy3DParms asked = {};
    asked.srcPtr = make_cudaPitchedPtr(host, from_pitch, 8, 2);
    asked.dstPtr = make_cudaPitchedPtr(device, to_pitch, 8, 2);
    asked.extent = make_cudaExtent(8, 2, 2);
    asked.kind = kind;
    return asked;
}

static const cudaMemcpyKind no_kind = (cudaMemcpyKind)7;

static const std::vector<row> copies = {
    {"kind", cudaErrorInvalidMemcpyDirection, [] { return cudaMemcpy(device, host, 4, no_kind); }},
    {"kind, later", cudaErrorInvalidMemcpyDirection, [] { return cudaMemcpyAsync(device, host, 4, no_kind, 0); }},
    {"kind of 2D", cudaErrorInvalidMemcpyDirection, [] { return cudaMemcpy2D(device, 8, host, 8, 8, 2, no_kind); }},
    {"kind of 3D", cudaErrorInvalidMemcpyDirection, [] { auto asked = box(8, 8, no_kind); return cudaMemcpy3D(&asked); }},
    {"pitch", cudaErrorInvalidPitchValue,
     [] { return cudaMemcpy2D(device, 4, host, 8, 8, 2, cudaMemcpyHostToDevice); }},
    {"pitch, later", cudaErrorInvalidPitchValue,
     [] { return cudaMemcpy2DAsync(device, 8, host, 4, 8, 2, cudaMemcpyHostToDevice, 0); }},
    {"large pitch", cudaErrorInvalidPitchValue,
     [] { return cudaMemcpy2D(device, too_large, host, 8, 8, 2, cudaMemcpyHostToDevice); }},
    {"pitch of 3D", cudaErrorInvalidPitchValue, [] { auto asked = box(4, 8); return cudaMemcpy3D(&asked); }},
    {"large pitch of 3D", cudaErrorInvalidPitchValue,
     [] { auto asked = box(8, too_large); return cudaMemcpy3DAsync(&asked, 0); }},
    {"pitch between devices", cudaErrorInvalidPitchValue,
     [] {
         cudaMemcpy3DPeerParms asked = {};
         asked.srcPtr = make_cudaPitchedPtr(device, 4, 8, 2);
         asked.dstPtr = make_cudaPitchedPtr(device, 8, 8, 2);
         asked.extent = make_cudaExtent(8, 2, 2);
         return cudaMemcpy3DPeer(&asked);
     }},
    {"no device", cudaErrorInvalidDevice, [] { return cudaMemcpyPeer(device, 99, device, 0, 4); }},
    {"no address", cudaErrorInvalidValue, [] { return cudaMemcpy(nullptr, host, 4, cudaMemcpyDefault); }},
    {"fill", cudaErrorInvalidValue, [] { return cudaMemset2D(device, 4, 0, 8, 2); }},
    {"fill of 3D", cudaErrorInvalidValue,
     [] { return cudaMemset3D(make_cudaPitchedPtr(device, 4, 8, 2), 0, make_cudaExtent(8, 2, 2)); }},
    {"free", cudaErrorInvalidValue, [] { return cudaFree(host); }},
    {"free of the host's", cudaErrorInvalidValue, [] { return cudaFreeHost(host); }},
};

static cudaError_t textured(cudaChannelFormatDesc format, cudaTextureFilterMode filter, cudaTextureReadMode mode) {
    cudaArray_t array;
    OK(cudaMallocArray(&array, &format, 8, 8));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    cudaTextureDesc how = {};
    how.filterMode = filter;
    how.readMode = mode;
    cudaTextureObject_t texture = 0;
    cudaError_t error = cudaCreateTextureObject(&texture, &resource, &how, nullptr);
    if (error == cudaSuccess) OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeArray(array));
    return error;
}

static cudaError_t surfaced(cudaResourceType type) {
    cudaSurfaceObject_t surface;
    cudaResourceDesc resource = {};
    resource.resType = type;
    resource.res.linear.desc = cudaCreateChannelDesc<int>();
    resource.res.linear.devPtr = type == cudaResourceTypeLinear ? device : nullptr;
    resource.res.linear.sizeInBytes = 64;
    return cudaCreateSurfaceObject(&surface, &resource);
}

static const std::vector<row> objects = {
    {"filter", cudaErrorInvalidFilterSetting,
     [] { return textured(cudaCreateChannelDesc<int>(), cudaFilterModeLinear, cudaReadModeElementType); }},
    {"filter of bytes", cudaErrorInvalidFilterSetting,
     [] { return textured(cudaCreateChannelDesc<uchar4>(), cudaFilterModeLinear, cudaReadModeElementType); }},
    {"filter of float", cudaSuccess,
     [] { return textured(cudaCreateChannelDesc<float>(), cudaFilterModeLinear, cudaReadModeElementType); }},
    {"filter of normalized bytes", cudaSuccess,
     [] { return textured(cudaCreateChannelDesc<uchar4>(), cudaFilterModeLinear, cudaReadModeNormalizedFloat); }},
    {"normalized", cudaErrorInvalidNormSetting,
     [] { return textured(cudaCreateChannelDesc<int>(), cudaFilterModePoint, cudaReadModeNormalizedFloat); }},
    {"surface of memory", cudaErrorInvalidValue, [] { return surfaced(cudaResourceTypeLinear); }},
    {"surface of no array", cudaErrorInvalidResourceHandle, [] { return surfaced(cudaResourceTypeArray); }},
    {"channels", cudaErrorInvalidChannelDescriptor,
     [] {
         cudaArray_t array;
         auto format = cudaCreateChannelDesc(8, 16, 0, 0, cudaChannelFormatKindUnsigned);
         return cudaMallocArray(&array, &format, 8, 8);
     }},
    {"untimed event", cudaErrorInvalidResourceHandle,
     [] {
         cudaEvent_t event;
         float ms;
         OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
         OK(cudaEventRecord(event));
         cudaError_t error = cudaEventElapsedTime(&ms, event, event);
         OK(cudaEventDestroy(event));
         return error;
     }},
    {"flags of an event", cudaErrorInvalidValue,
     [] { cudaEvent_t event; return cudaEventCreateWithFlags(&event, 0x80); }},
    {"no device", cudaErrorInvalidDevice, [] { return cudaSetDevice(99); }},
    {"properties of no device", cudaErrorInvalidDevice, [] { cudaDeviceProp is; return cudaGetDeviceProperties(&is, 99); }},
    {"attribute", cudaErrorInvalidValue,
     [] { int value; return cudaDeviceGetAttribute(&value, (cudaDeviceAttr)9999, 0); }},
    {"limit", cudaErrorUnsupportedLimit, [] { size_t value; return cudaDeviceGetLimit(&value, (cudaLimit)99); }},
    {"peer", cudaErrorInvalidDevice, [] { return cudaDeviceEnablePeerAccess(99, 0); }},
};

static int failed;

static void check(const char *table, const std::vector<row> &rows) {
    for (const row &each : rows) {
        cudaError_t found = each.call();
        if (found != each.error)
            failed++, std::printf("%s, %s: %s in place of %s\n", table, each.fault, cudaGetErrorName(found),
                                  cudaGetErrorName(each.error));
        cudaGetLastError();
    }
}

int main() {
    OK(cudaMalloc(&device, 64));
    check("launches", launches);
    check("functions", functions);
    check("copies", copies);
    check("objects", objects);
    CHECK(!std::strcmp(cudaGetErrorString(cudaErrorInvalidConfiguration), "invalid configuration argument"));
    nothing<<<1, 1>>>();
    OK(cudaDeviceSynchronize());
    return failed != 0;
}
