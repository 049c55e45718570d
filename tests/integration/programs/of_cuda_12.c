/* Functions that CUDA 12's runtime alone has, or has under these names: declared by hand, as the
 * headers of CUDA 13 have none of them. It prints what is wrong, and fails by its exit status. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
struct location {
    int type, id;
};

int cudaMalloc(void **, size_t), cudaFree(void *), cudaGetLastError(void);
int cudaStreamCreate(handle *), cudaStreamSynchronize(handle), cudaStreamDestroy(handle);
int cudaStreamBeginCapture(handle, int), cudaStreamEndCapture(handle, handle *);
int cudaMemsetAsync(void *, int, size_t, handle), cudaMemcpy(void *, const void *, size_t, int);
int cudaEventCreate(handle *), cudaEventRecord(handle, handle), cudaEventDestroy(handle);
int cudaGraphCreate(handle *, unsigned), cudaGraphDestroy(handle);
int cudaGraphAddEmptyNode(handle *, handle, const handle *, size_t);
int cudaDeviceGetAttribute(int *, int, int), cudaGetDeviceProperties_v2(void *, int);
int cudaEventElapsedTime_v2(float *, handle, handle);
int cudaGraphAddDependencies_v2(handle, const handle *, const handle *, const void *, size_t);
int cudaGraphRemoveDependencies_v2(handle, const handle *, const handle *, const void *, size_t);
int cudaGraphGetEdges_v2(handle, handle *, handle *, void *, size_t *);
int cudaGraphNodeGetDependencies_v2(handle, handle *, void *, size_t *);
int cudaGraphNodeGetDependentNodes_v2(handle, handle *, void *, size_t *);
int cudaGraphAddNode_v2(handle *, handle, const handle *, const void *, size_t, void *);
int cudaMemAdvise_v2(const void *, size_t, int, struct location);
int cudaMemPrefetchAsync_v2(const void *, size_t, struct location, unsigned, handle);
int cudaSetDoubleForDevice(double *), cudaSetDoubleForHost(double *);
int cudaStreamGetCaptureInfo_v2(handle, int *, unsigned long long *, handle *, const handle **,
                                size_t *);
int cudaStreamGetCaptureInfo_v3(handle, int *, unsigned long long *, handle *, const handle **,
                                const void **, size_t *);
int cudaStreamUpdateCaptureDependencies_v2(handle, handle *, const void *, size_t, unsigned);
int cudaLibraryLoadData(handle *, const void *, const int *, void **, unsigned, const int *,
                        void **, unsigned);
int cudaLibraryGetKernel(handle *, handle, const char *), cudaLibraryUnload(handle);
int cudaGraphAddKernelNode(handle *, handle, const handle *, size_t, const void *);
int cudaGraphKernelNodeSetAttribute(handle, int, const void *);
int cudaGraphKernelNodeGetAttribute(handle, int, void *);
int cudaGraphKernelNodeCopyAttributes(handle, handle);
int cudaThreadExit(void), cudaThreadSynchronize(void);
struct operand {
    int type;
    void *memory;
    size_t row, rows;
    struct location hint;
};
struct volume {
    struct operand from, to;
    size_t width, height, depth;
    int order;
    unsigned flags;
};
int cudaMemcpy3DBatchAsync(size_t, struct volume *, size_t *, unsigned long long, handle);
int cudaMemcpyBatchAsync(void **, void **, size_t *, size_t, void *, size_t *, size_t, size_t *,
                         handle);
int cudaThreadGetCacheConfig(int *), cudaThreadSetCacheConfig(int);
int cudaThreadGetLimit(size_t *, int), cudaThreadSetLimit(int, size_t);

enum { DEVICE = 1, PREFER_L1 = 2 };
enum { STACK_SIZE = 0, READ_MOSTLY = 1, EMPTY_NODE = 5, ACTIVE = 1, SET = 1 };
enum { POINTER = 1, IN_STREAM = 1, PRIORITY = 8 };

#define CHECK(condition)                                           \
    do {                                                           \
        if (!(condition)) {                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                               \
        }                                                          \
    } while (0)
#define OK(call) CHECK((call) == 0)

static const char nothing[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n";

/* From the first node to the second: CUDA 13 has it the other way round. */
static void check_attributes(void) {
    handle graph, library, first, second;
    struct {
        handle kernel;
        unsigned grid[3], block[3], shared;
        void **arguments, **extra;
    } node = {.grid = {1, 1, 1}, .block = {1, 1, 1}};
    int value[16] = {-2};
    OK(cudaLibraryLoadData(&library, nothing, NULL, NULL, 0, NULL, NULL, 0));
    OK(cudaLibraryGetKernel(&node.kernel, library, "nothing"));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddKernelNode(&first, graph, NULL, 0, &node));
    OK(cudaGraphAddKernelNode(&second, graph, NULL, 0, &node));
    OK(cudaGraphKernelNodeSetAttribute(first, PRIORITY, value));
    OK(cudaGraphKernelNodeCopyAttributes(first, second));
    value[0] = 0;
    OK(cudaGraphKernelNodeGetAttribute(second, PRIORITY, value));
    CHECK(value[0] == -2);
    OK(cudaGraphDestroy(graph));
    OK(cudaLibraryUnload(library));
}

static void check_edges(void) {
    handle graph, first, second, third, from[2] = {0}, to[2] = {0}, found = NULL;
    int kind[64] = {EMPTY_NODE}; /* cudaGraphNodeParams has 256 bytes */
    size_t count = 2;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddEmptyNode(&first, graph, NULL, 0));
    OK(cudaGraphAddEmptyNode(&second, graph, NULL, 0));
    OK(cudaGraphAddNode_v2(&third, graph, &second, NULL, 1, kind));
    OK(cudaGraphAddDependencies_v2(graph, &first, &second, NULL, 1));
    OK(cudaGraphGetEdges_v2(graph, from, to, NULL, &count));
    CHECK(count == 2);
    count = 1;
    OK(cudaGraphNodeGetDependencies_v2(second, &found, NULL, &count));
    CHECK(count == 1 && found == first);
    OK(cudaGraphNodeGetDependentNodes_v2(second, &found, NULL, &count));
    CHECK(count == 1 && found == third);
    OK(cudaGraphRemoveDependencies_v2(graph, &first, &second, NULL, 1));
    OK(cudaGraphGetEdges_v2(graph, NULL, NULL, NULL, &count));
    CHECK(count == 1);
    OK(cudaGraphDestroy(graph));
}

static void check_capture(void *d) {
    handle stream, graph = NULL, seen = NULL, other = NULL;
    const handle *before = NULL;
    const void *edges = &stream;
    unsigned long long id = 0, again = 0;
    size_t count = 9;
    int status = 0;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, 0));
    OK(cudaMemsetAsync(d, 7, 64, stream));
    OK(cudaStreamGetCaptureInfo_v2(stream, &status, &id, &seen, &before, &count));
    CHECK(status == ACTIVE && count == 1 && before);
    OK(cudaStreamGetCaptureInfo_v3(stream, &status, &again, &other, &before, &edges, &count));
    CHECK(again == id && other == seen && count == 1);
    handle fill = before[0]; /* what comes next comes after it alone, as it would anyway */
    OK(cudaStreamUpdateCaptureDependencies_v2(stream, &fill, NULL, 1, SET));
    OK(cudaStreamGetCaptureInfo_v2(stream, &status, &id, &seen, &before, &count));
    CHECK(count == 1 && before[0] == fill);
    OK(cudaStreamEndCapture(stream, &graph));
    CHECK(graph == seen);
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
}

static void check_threads(void) {
    size_t bytes = 0;
    int cache = 0;
    double number = 0.1;
    OK(cudaThreadSetLimit(STACK_SIZE, 2048));
    OK(cudaThreadGetLimit(&bytes, STACK_SIZE));
    CHECK(bytes == 2048);
    OK(cudaThreadSetCacheConfig(PREFER_L1));
    OK(cudaThreadGetCacheConfig(&cache));
    CHECK(cache == PREFER_L1);
    OK(cudaThreadSynchronize());
    OK(cudaSetDoubleForDevice(&number));
    OK(cudaSetDoubleForHost(&number));
    CHECK(number == 0.1);
}

/* CUDA 12 asks which copy failed. */
static void check_batches(void *d) {
    char h[8] = "abcdefg", back[2][4] = {{0}};
    handle stream;
    size_t failed = 9;
    const struct operand card = {.type = POINTER, .memory = d, .row = 4};
    const struct operand host = {.type = POINTER, .memory = back, .row = 4};
    struct volume volume = {card, host, 2, 2, 1, IN_STREAM, 0};
    OK(cudaStreamCreate(&stream));
    OK(cudaMemcpy(d, h, 8, 1));
    OK(cudaMemcpy3DBatchAsync(1, &volume, &failed, 0, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(memcmp(back, "ab\0\0ef\0\0", 8) == 0);
    volume.depth = 0;
    CHECK(cudaMemcpy3DBatchAsync(1, &volume, &failed, 0, stream) == 1 && cudaGetLastError() == 1);
    CHECK(failed == (size_t)-1);
    failed = 9;
    CHECK(cudaMemcpyBatchAsync(NULL, NULL, NULL, 0, NULL, NULL, 0, &failed, stream) == 1);
    CHECK(cudaGetLastError() == 1 && failed == (size_t)-1);
    OK(cudaStreamDestroy(stream));
}

int main(void) {
    void *d;
    handle start, end;
    float ms = -1;
    char properties[2048];
    const struct location card = {.type = DEVICE, .id = 0};
    OK(cudaGetDeviceProperties_v2(properties, 0));
    CHECK(strlen(properties) > 0);
    OK(cudaMalloc(&d, 64));
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(start, NULL));
    OK(cudaEventRecord(end, NULL));
    OK(cudaThreadSynchronize());
    OK(cudaEventElapsedTime_v2(&ms, start, end));
    CHECK(ms >= 0);
    /* of memory that is not managed there is nothing to advise, and nowhere to fetch it */
    CHECK(cudaMemPrefetchAsync_v2(d, 64, card, 0, NULL) != 0 && cudaGetLastError() != 0);
    CHECK(cudaMemAdvise_v2(d, 64, READ_MOSTLY, card) != 0 && cudaGetLastError() != 0);
    check_batches(d);
    check_attributes();
    check_edges();
    check_capture(d);
    check_threads();
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
    OK(cudaFree(d));
    OK(cudaThreadExit());
    return 0;
}
