/* Threads, streams, events and captures on the simulated driver, for the sanitizers above all. Runs
 * with LD_LIBRARY_PATH naming a driver directory. It prints what it found, so that runs can be
 * compared. */
#include <cuda.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 4
#define ROUNDS 40
#define BYTES (1u << 20)

#define CHECK(call)                                                                           \
    do {                                                                                      \
        CUresult check_result = (call);                                                       \
        if (check_result != CUDA_SUCCESS) {                                                   \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)check_result); \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

static CUcontext context;
static unsigned long long sums[THREADS]; /* of what each thread found */

/* Each thread: memory in stream order, copies, fills, events to a second stream and back, a
 * captured graph. */
static void *work(void *argument) {
    unsigned number = (unsigned)(size_t)argument;
    CUstream first, second;
    CUevent fork, join;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned value = number * 1000 + round;
        unsigned found[2] = {0, 0};
        CUdeviceptr a, b;
        CUgraph graph;
        CUgraphExec exec;
        CHECK(cuMemAllocAsync(&a, BYTES, first));
        CHECK(cuMemAlloc(&b, BYTES));
        CHECK(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
        CHECK(cuMemsetD32Async(a, value, BYTES / 4, first));
        CHECK(cuEventRecord(fork, first));
        CHECK(cuStreamWaitEvent(second, fork, 0));
        CHECK(cuMemcpyDtoDAsync(b, a, BYTES, second));
        CHECK(cuEventRecord(join, second));
        CHECK(cuStreamWaitEvent(first, join, 0));
        CHECK(cuStreamEndCapture(first, &graph));
        CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        CHECK(cuGraphLaunch(exec, first));
        CHECK(cuEventRecord(fork, first));
        CHECK(cuStreamWaitEvent(second, fork, 0));
        CHECK(cuMemcpyDtoHAsync(found, b + BYTES - 8, 8, second));
        CHECK(cuStreamSynchronize(second));
        CHECK(cuMemFreeAsync(a, first));
        CHECK(cuGraphExecDestroy(exec));
        CHECK(cuGraphDestroy(graph));
        /* a thread's own stream, when it is built so */
        CHECK(cuMemsetD32Async(b, value + 1, 16, NULL));
        CHECK(cuMemcpyAsync(b + 4, b, 4, NULL));
        CHECK(cuMemcpyDtoH(&found[1], b + 4, 4));
        sums[number] = sums[number] * 31 + found[0] + 7ull * found[1];
        found[1]--;
        CHECK(cuMemFree(b));
        if (found[0] == value && found[1] == value) continue;
        fprintf(stderr, "thread %u, round %u: %u and %u\n", number, round, found[0], found[1]);
        exit(1);
    }
    CHECK(cuEventDestroy(fork));
    CHECK(cuEventDestroy(join));
    CHECK(cuStreamDestroy(first));
    CHECK(cuStreamDestroy(second));
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    size_t before, after, total;
    CUdevice device;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemGetInfo(&before, &total));
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemGetInfo(&after, &total));
    CHECK(cuDevicePrimaryCtxRelease(device));
    if (before != after) {
        fprintf(stderr, "%zu bytes stayed behind\n", before - after);
        return 1;
    }
    for (int i = 0; i < THREADS; i++) printf("thread %d: %llu\n", i, sums[i]);
    printf("%zu of %zu bytes free\n", after, total);
    puts("sim driver: ok");
    return 0;
}
