/* Threads, streams, events, captures and checkpoints on the simulated driver, mainly for the
 * sanitizers.
 * LD_LIBRARY_PATH names a driver directory. It prints its results, so that runs can be compared.
 * With the argument `timing` it only times a short kernel by events. */
#include <cuda.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
static unsigned long long sums[THREADS]; /* per thread */

/* Each thread: stream-ordered memory, copies, fills, events to a second stream and back, a captured
 * graph. */
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
        /* a thread's own stream, if built for it */
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

/* Return the shortest time of a 5 us kernel on an idle stream, in us. */
static float time_kernel(void) {
    static const char ptx[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n"
        ".visible .entry short()\n{\n.pragma \"egpu.duration_us 5\";\nret;\n}\n";
    CUmodule module;
    CUfunction function;
    CUstream stream;
    CUevent start, end;
    float least = 1e9f;
    CHECK(cuModuleLoadData(&module, ptx));
    CHECK(cuModuleGetFunction(&function, module, "short"));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&start, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    for (int i = 0; i < 200; i++) {
        float ms;
        usleep(1000); /* its thread also sleeps */
        CHECK(cuEventRecord(start, stream));
        CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
        CHECK(cuEventRecord(end, stream));
        CHECK(cuEventSynchronize(end));
        CHECK(cuEventElapsedTime(&ms, start, end));
        if (ms < least) least = ms;
    }
    return least * 1000;
}

static atomic_bool over;

/* Beside them: this process leaves its card and comes back. */
static void *leave_and_return(void *argument) {
    (void)argument;
    for (int pid = getpid(); !atomic_load(&over); usleep(1000)) {
        CUprocessState state;
        CHECK(cuCheckpointProcessLock(pid, NULL));
        CHECK(cuCheckpointProcessCheckpoint(pid, NULL));
        CHECK(cuCheckpointProcessGetState(pid, &state));
        if (state != CU_PROCESS_STATE_CHECKPOINTED) exit(1);
        CHECK(cuCheckpointProcessRestore(pid, NULL));
        CHECK(cuCheckpointProcessUnlock(pid, NULL));
    }
    return NULL;
}

int main(int count, char **arguments) {
    pthread_t threads[THREADS], leaving;
    size_t before, after, total;
    CUdevice device;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    if (count > 1 && strcmp(arguments[1], "timing") == 0) {
        printf("%.3f\n", (double)time_kernel());
        return 0;
    }
    CHECK(cuMemGetInfo(&before, &total));
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0) return 1;
    if (pthread_create(&leaving, NULL, leave_and_return, NULL) != 0) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    atomic_store(&over, true);
    pthread_join(leaving, NULL);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemGetInfo(&after, NULL));
    CHECK(cuMemGetInfo(NULL, &total));
    CHECK(cuMemGetInfo(NULL, NULL));
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
