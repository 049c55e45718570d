#include "check.h"
#include <dlfcn.h>
/* What only the runtime of CUDA 12 has: names that CUDA 13 gave to other forms, and some that it has no more. */
static void *older(const char *name) {
    static void *library = dlopen("libcudart.so.12", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    void *found = dlsym(library, name);
    CHECK(found != nullptr);
    return found;
}
/* A function of that name, with the parameters of one that CUDA 13 declares. */
#define OLDER(name, like) ((decltype(&like))older(#name))
static void check_threads() {
    auto get_limit = OLDER(cudaThreadGetLimit, cudaDeviceGetLimit);
    auto set_limit = OLDER(cudaThreadSetLimit, cudaDeviceSetLimit);
    auto get_cache = OLDER(cudaThreadGetCacheConfig, cudaDeviceGetCacheConfig);
    auto set_cache = OLDER(cudaThreadSetCacheConfig, cudaDeviceSetCacheConfig);
    size_t bytes = 0;
    cudaFuncCache cache;
    OK(set_limit(cudaLimitStackSize, 4096));
    OK(get_limit(&bytes, cudaLimitStackSize));
    CHECK(bytes >= 4096);
    OK(set_cache(cudaFuncCachePreferShared));
    OK(get_cache(&cache));
    CHECK(cache == cudaFuncCachePreferShared);
    OK(OLDER(cudaThreadSynchronize, cudaDeviceSynchronize)());
    double number = 1.5;
    using Double = cudaError_t (*)(double *);
    OK(((Double)older("cudaSetDoubleForDevice"))(&number));
    OK(((Double)older("cudaSetDoubleForHost"))(&number));
    CHECK(number == 1.5);
}
static void check_devices() {
    cudaDeviceProp properties;
    cudaEvent_t first, second;
    float apart = -1;
    static char room[4096]; /* the structure of CUDA 12 is another */
    OK(((cudaError_t (*)(void *, int))older("cudaGetDeviceProperties_v2"))(room, 0));
    OK(cudaGetDeviceProperties(&properties, 0));
    CHECK(std::strcmp(room, properties.name) == 0);
    OK(cudaEventCreate(&first));
    OK(cudaEventCreate(&second));
    OK(cudaEventRecord(first, 0));
    OK(cudaEventRecord(second, 0));
    OK(cudaEventSynchronize(second));
    OK(OLDER(cudaEventElapsedTime_v2, cudaEventElapsedTime)(&apart, first, second));
    CHECK(apart >= 0);
    OK(cudaEventDestroy(first));
    OK(cudaEventDestroy(second));
}
static void check_graphs() {
    cudaGraph_t graph;
    cudaGraphNode_t first, second, from[1], to[1];
    cudaGraphEdgeData edges[1];
    size_t count = 1;
    cudaGraphNodeParams empty = {};
    empty.type = cudaGraphNodeTypeEmpty;
    OK(cudaGraphCreate(&graph, 0));
    auto add = OLDER(cudaGraphAddNode_v2, cudaGraphAddNode);
    OK(add(&first, graph, nullptr, nullptr, 0, &empty));
    OK(add(&second, graph, nullptr, nullptr, 0, &empty));
    OK(OLDER(cudaGraphAddDependencies_v2, cudaGraphAddDependencies)(graph, &first, &second, nullptr, 1));
    OK(OLDER(cudaGraphGetEdges_v2, cudaGraphGetEdges)(graph, from, to, edges, &count));
    CHECK(count == 1 && from[0] == first && to[0] == second);
    OK(OLDER(cudaGraphNodeGetDependencies_v2, cudaGraphNodeGetDependencies)(second, from, edges, &count));
    CHECK(count == 1 && from[0] == first);
    OK(OLDER(cudaGraphNodeGetDependentNodes_v2, cudaGraphNodeGetDependentNodes)(first, to, edges, &count));
    CHECK(count == 1 && to[0] == second);
    OK(OLDER(cudaGraphRemoveDependencies_v2, cudaGraphRemoveDependencies)(graph, &first, &second, nullptr, 1));
    OK(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
    CHECK(count == 0);
    OK(cudaGraphDestroy(graph));
}
static void check_captures(int *d) {
    using Info = cudaError_t (*)(cudaStream_t, cudaStreamCaptureStatus *, unsigned long long *, cudaGraph_t *,
                                 const cudaGraphNode_t **, size_t *);
    auto info = OLDER(cudaStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo);
    auto update = OLDER(cudaStreamUpdateCaptureDependencies_v2, cudaStreamUpdateCaptureDependencies);
    cudaStream_t stream;
    cudaGraph_t graph, found;
    cudaStreamCaptureStatus status;
    const cudaGraphNode_t *waiting;
    const cudaGraphEdgeData *edges;
    unsigned long long id, again;
    size_t count = 0;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemsetAsync(d, 0, 4, stream));
    OK(((Info)older("cudaStreamGetCaptureInfo_v2"))(stream, &status, &id, &found, &waiting, &count));
    CHECK(status == cudaStreamCaptureStatusActive && count == 1);
    OK(info(stream, &status, &again, &found, &waiting, &edges, &count));
    CHECK(again == id && count == 1);
    cudaGraphNode_t last = waiting[0];
    OK(update(stream, nullptr, nullptr, 0, cudaStreamSetCaptureDependencies));
    OK(info(stream, &status, &again, &found, &waiting, &edges, &count));
    CHECK(count == 0);
    OK(update(stream, &last, nullptr, 1, cudaStreamSetCaptureDependencies));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
}
int main() {
    int *d;
    OK(cudaMalloc(&d, 64));
    check_threads();
    check_devices();
    check_graphs();
    check_captures(d);
    const cudaMemLocation here = {cudaMemLocationTypeDevice, 0};
    /* no managed memory */
    CHECK(OLDER(cudaMemAdvise_v2, cudaMemAdvise)(d, 64, cudaMemAdviseSetReadMostly, here) != cudaSuccess);
    CHECK(OLDER(cudaMemPrefetchAsync_v2, cudaMemPrefetchAsync)(d, 64, here, 0, 0) != cudaSuccess);
    OK(cudaFree(d));
    OK(((cudaError_t(*)())older("cudaThreadExit"))());
    return 0;
}
