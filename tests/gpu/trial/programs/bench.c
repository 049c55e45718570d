/* bench MODE [ARGUMENT...]: small measurements on the CUDA driver API; one JSON line on stdout.
 *
 *   info                                  device, driver, memory as the program sees it
 *   rate US SECONDS eager|graph LOOPS     kernels of US microseconds, as many as go; LOOPS 0:
 * measure out the kernel first paced US PAUSE_US SECONDS LOOPS       one such kernel, then the host
 * "computes" for PAUSE_US; waits for the GPU every 50 copymix MIB US SECONDS LOOPS          on one
 * stream: a copy to the card from pinned memory, then a kernel waits US SECONDS LOOPS two streams;
 * each kernel waits for the other stream's last one launch                                ns per
 * empty launch, us per launch with synchronisation alloc                                 ns per
 * allocation with its release copy MIB                              GB/s to and from the card,
 * pageable and pinned, and on the card limit plain|async|vmm|array MIB       allocates pieces of
 * MIB until it is refused, halves them down to 1 MiB hold MIB SECONDS                      says
 * {"ready": true}, keeps the memory (0: only the context), then ends race SECONDS one thread
 * launches, another captures graphs in global mode graphmem COUNT MIB                    a graph
 * that allocates and frees MIB, COUNT times, one after the other
 *
 * Needs no headers and links nothing: the same file runs bare, in a slice, on the pool and on the
 * simulated GPU.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int R;
typedef unsigned long long P;
typedef void *H;

/* clang-format off */
#define FUNCTIONS(X) \
    X(cuInit, (unsigned)) \
    X(cuDriverGetVersion, (int *)) \
    X(cuDeviceGet, (int *, int)) \
    X(cuDeviceGetName, (char *, int, int)) \
    X(cuDeviceTotalMem_v2, (size_t *, int)) \
    X(cuDevicePrimaryCtxRetain, (H *, int)) \
    X(cuCtxSetCurrent, (H)) \
    X(cuCtxSynchronize, (void)) \
    X(cuMemGetInfo_v2, (size_t *, size_t *)) \
    X(cuGetErrorName, (R, const char **)) \
    X(cuModuleLoadData, (H *, const void *)) \
    X(cuModuleGetFunction, (H *, H, const char *)) \
    X(cuLaunchKernel, (H, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, H, \
                       void **, void **)) \
    X(cuMemAlloc_v2, (P *, size_t)) \
    X(cuMemFree_v2, (P)) \
    X(cuMemAllocAsync, (P *, size_t, H)) \
    X(cuMemFreeAsync, (P, H)) \
    X(cuMemHostAlloc, (void **, size_t, unsigned)) \
    X(cuMemFreeHost, (void *)) \
    X(cuMemcpyHtoD_v2, (P, const void *, size_t)) \
    X(cuMemcpyDtoH_v2, (void *, P, size_t)) \
    X(cuMemcpyHtoDAsync_v2, (P, const void *, size_t, H)) \
    X(cuMemcpyDtoDAsync_v2, (P, P, size_t, H)) \
    X(cuStreamCreate, (H *, unsigned)) \
    X(cuStreamSynchronize, (H)) \
    X(cuStreamWaitEvent, (H, H, unsigned)) \
    X(cuStreamBeginCapture_v2, (H, int)) \
    X(cuStreamEndCapture, (H, H *)) \
    X(cuGraphInstantiateWithFlags, (H *, H, unsigned long long)) \
    X(cuGraphLaunch, (H, H)) \
    X(cuGraphExecDestroy, (H)) \
    X(cuGraphDestroy, (H)) \
    X(cuEventCreate, (H *, unsigned)) \
    X(cuEventRecord, (H, H)) \
    X(cuEventSynchronize, (H)) \
    X(cuEventElapsedTime, (float *, H, H)) \
    X(cuMemCreate, (P *, size_t, const void *, unsigned long long)) \
    X(cuMemRelease, (P)) \
    X(cuArrayCreate_v2, (H *, const void *)) \
    X(cuArrayDestroy, (H))
/* clang-format on */
#define DECLARE(name, parameters) static R(*name) parameters;
FUNCTIONS(DECLARE)

static const char *mode = "?";

static const char *error_name(R result) {
    static __thread char number[32];
    const char *name = NULL;
    if (cuGetErrorName != NULL && cuGetErrorName(result, &name) == 0 && name != NULL) return name;
    snprintf(number, sizeof number, "error %d", result);
    return number;
}

static void must(R result, const char *what) {
    if (result == 0) return;
    printf("{\"mode\": \"%s\", \"ok\": false, \"call\": \"%s\", \"error\": \"%s\"}\n", mode, what,
           error_name(result));
    fflush(stdout);
    _exit(1);
}
#define CU(name, ...) must(name(__VA_ARGS__), #name)

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static H context;
static void begin(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        printf("{\"mode\": \"%s\", \"ok\": false, \"call\": \"dlopen\", \"error\": \"%s\"}\n", mode,
               dlerror());
        exit(1);
    }
#define FIND(name, parameters) *(void **)&name = dlsym(library, #name);
    FUNCTIONS(FIND)
    int device;
    CU(cuInit, 0);
    CU(cuDeviceGet, &device, 0);
    CU(cuDevicePrimaryCtxRetain, &context, device);
    CU(cuCtxSetCurrent, context);
}

/* ---- a kernel of a known length: a chain of multiplications; the pragma is for simulated GPUs
 * ---- */

static H kernel, empty;
static P sink;
static unsigned loops = 1;

static void launch(H stream) {
    void *parameters[] = {&sink, &loops};
    CU(cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static double measure_us(unsigned count, H stream) {
    H start, end;
    float ms, best = 1e30f;
    unsigned before = loops;
    loops = count;
    CU(cuEventCreate, &start, 0);
    CU(cuEventCreate, &end, 0);
    for (int i = 0; i < 7; i++) {
        usleep(10000);
        CU(cuEventRecord, start, stream);
        launch(stream);
        CU(cuEventRecord, end, stream);
        CU(cuEventSynchronize, end);
        CU(cuEventElapsedTime, &ms, start, end);
        if (ms < best) best = ms;
    }
    loops = before;
    return best * 1000.0;
}

static double kernel_us; /* as measured now; 0 where the loops were given */
static void make_kernel(double us, unsigned given, H stream) {
    char ptx[2048];
    H module;
    snprintf(ptx, sizeof ptx,
             ".version 7.0\n.target sm_70\n.address_size 64\n"
             ".visible .entry spin(.param .u64 out, .param .u32 n)\n{\n"
             "    .pragma \"egpu.duration_us %u\";\n"
             "    .reg .pred %%p; .reg .b32 %%n, %%x; .reg .b64 %%out;\n"
             "    ld.param.u64 %%out, [out]; ld.param.u32 %%n, [n]; mov.u32 %%x, %%tid.x;\n"
             "LOOP:\n    mad.lo.u32 %%x, %%x, 1664525, 1013904223;\n    sub.u32 %%n, %%n, 1;\n"
             "    setp.ne.u32 %%p, %%n, 0;\n    @%%p bra LOOP;\n"
             "    st.global.u32 [%%out], %%x;\n    ret;\n}\n"
             ".visible .entry empty()\n{\n    ret;\n}\n",
             us < 1 ? 1 : (unsigned)us);
    CU(cuModuleLoadData, &module, ptx);
    CU(cuModuleGetFunction, &kernel, module, "spin");
    CU(cuModuleGetFunction, &empty, module, "empty");
    CU(cuMemAlloc_v2, &sink, 128);
    if (given != 0) {
        loops = given;
        return;
    }
    /* The clock comes up first: what is measured on an idle card is too long. */
    loops = 200000;
    for (double until = now() + 0.3; now() < until;) {
        launch(stream);
        CU(cuStreamSynchronize, stream);
    }
    loops = 1;
    double least = measure_us(1, stream);
    kernel_us = least;
    if (least < 0.7 * us) {
        double slope = (measure_us(400000, stream) - least) / 400000,
               want = slope > 0 ? (us - least) / slope : 1;
        loops = want > 4e9 ? 4000000000u : want < 1 ? 1 : (unsigned)want;
        kernel_us = measure_us(loops, stream);
    }
}

static H a_stream(void) {
    H stream;
    CU(cuStreamCreate, &stream, 1 /* non-blocking */);
    return stream;
}

/* ---- modes ---- */

static int info(void) {
    char name[128] = "";
    size_t total = 0, available = 0, all = 0;
    int version = 0;
    CU(cuDeviceGetName, name, sizeof name, 0);
    CU(cuDeviceTotalMem_v2, &total, 0);
    CU(cuMemGetInfo_v2, &available, &all);
    CU(cuDriverGetVersion, &version);
    printf("{\"mode\": \"info\", \"ok\": true, \"name\": \"%s\", \"driver\": %d, \"total\": %zu, "
           "\"info_total\": %zu, \"info_free\": %zu}\n",
           name, version, total, all, available);
    return 0;
}

static int rate(double us, double seconds, const char *how, unsigned given) {
    enum { IN_GRAPH = 10 };
    H stream = a_stream(), done[2], graph = NULL, exec = NULL;
    int graphs = strcmp(how, "graph") == 0;
    make_kernel(us, given, stream);
    unsigned batch = us >= 2000 ? 1 : us <= 8 ? 256 : (unsigned)(2000 / us);
    if (graphs) {
        CU(cuStreamBeginCapture_v2, stream, 0);
        for (int i = 0; i < IN_GRAPH; i++) launch(stream);
        CU(cuStreamEndCapture, stream, &graph);
        CU(cuGraphInstantiateWithFlags, &exec, graph, 0);
        batch = batch / IN_GRAPH == 0 ? 1 : batch / IN_GRAPH;
    }
    CU(cuEventCreate, &done[0], 0);
    CU(cuEventCreate, &done[1], 0);
    double began = now(), counted_from = began, t = began;
    unsigned long long kernels = 0;
    int warm = 0;
    for (unsigned round = 0; t - counted_from < seconds || !warm; round++) {
        for (unsigned i = 0; i < batch; i++) {
            if (graphs)
                CU(cuGraphLaunch, exec, stream);
            else
                launch(stream);
        }
        kernels += batch * (graphs ? IN_GRAPH : 1);
        CU(cuEventRecord, done[round & 1], stream);
        if (round) CU(cuEventSynchronize, done[(round & 1) ^ 1]);
        t = now();
        if (!warm && t - began > 0.7) { /* what was saved up, and first timings, are not counted */
            warm = 1;
            kernels = 0;
            counted_from = t;
        }
    }
    CU(cuStreamSynchronize, stream);
    double wall = now() - counted_from;
    printf("{\"mode\": \"rate\", \"ok\": true, \"us\": %g, \"how\": \"%s\", \"loops\": %u, "
           "\"kernel_us\": %.2f, \"kernels\": %llu, \"seconds\": %.3f, \"per_second\": %.2f}\n",
           us, how, loops, kernel_us, kernels, wall, (double)kernels / wall);
    return 0;
}

static int paced(double us, double pause_us, double seconds, unsigned given) {
    H stream = a_stream();
    make_kernel(us, given, stream);
    double began = now();
    unsigned long long kernels = 0;
    while (now() - began < seconds) {
        for (int i = 0; i < 50; i++) {
            launch(stream);
            for (double until = now() + pause_us * 1e-6; now() < until;) {
            }
        }
        CU(cuStreamSynchronize, stream);
        kernels += 50;
    }
    double wall = now() - began;
    printf("{\"mode\": \"paced\", \"ok\": true, \"us\": %g, \"pause_us\": %g, \"loops\": %u, "
           "\"kernel_us\": %.2f, \"kernels\": %llu, \"seconds\": %.3f, \"per_second\": %.2f}\n",
           us, pause_us, loops, kernel_us, kernels, wall, (double)kernels / wall);
    return 0;
}

static int copymix(size_t mib, double us, double seconds, unsigned given) {
    H stream = a_stream();
    void *host;
    P device;
    make_kernel(us, given, stream);
    CU(cuMemHostAlloc, &host, mib << 20, 0);
    CU(cuMemAlloc_v2, &device, mib << 20);
    double began = now();
    unsigned long long rounds = 0;
    while (now() - began < seconds) {
        for (int i = 0; i < 8; i++) {
            CU(cuMemcpyHtoDAsync_v2, device, host, mib << 20, stream);
            launch(stream);
        }
        CU(cuStreamSynchronize, stream);
        rounds += 8;
    }
    double wall = now() - began;
    printf("{\"mode\": \"copymix\", \"ok\": true, \"mib\": %zu, \"us\": %g, \"loops\": %u, "
           "\"kernel_us\": %.2f, \"rounds\": %llu, \"seconds\": %.3f, \"per_second\": %.2f}\n",
           mib, us, loops, kernel_us, rounds, wall, (double)rounds / wall);
    return 0;
}

static int waits(double us, double seconds, unsigned given) {
    H stream[2] = {a_stream(), a_stream()}, event[2];
    make_kernel(us, given, stream[0]);
    CU(cuEventCreate, &event[0], 2 /* no timing */);
    CU(cuEventCreate, &event[1], 2);
    double began = now();
    unsigned long long kernels = 0;
    while (now() - began < seconds) {
        for (int i = 0; i < 16; i++) {
            int s = i & 1;
            CU(cuStreamWaitEvent, stream[s], event[!s], 0);
            launch(stream[s]);
            CU(cuEventRecord, event[s], stream[s]);
        }
        CU(cuCtxSynchronize);
        kernels += 16;
    }
    double wall = now() - began;
    printf("{\"mode\": \"waits\", \"ok\": true, \"us\": %g, \"loops\": %u, \"kernel_us\": %.2f, "
           "\"kernels\": %llu, \"seconds\": %.3f, \"per_second\": %.2f}\n",
           us, loops, kernel_us, kernels, wall, (double)kernels / wall);
    return 0;
}

static int launches(void) {
    H stream = a_stream();
    make_kernel(1, 1, stream);
    double best = 1e9, trip = 1e9;
    for (int round = 0; round < 30; round++) {
        CU(cuStreamSynchronize, stream);
        double t = now();
        for (int i = 0; i < 500; i++)
            CU(cuLaunchKernel, empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
        double each = (now() - t) / 500;
        if (each < best) best = each;
    }
    for (int round = 0; round < 20; round++) {
        double t = now();
        for (int i = 0; i < 50; i++) {
            CU(cuLaunchKernel, empty, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
            CU(cuStreamSynchronize, stream);
        }
        double each = (now() - t) / 50;
        if (each < trip) trip = each;
    }
    printf("{\"mode\": \"launch\", \"ok\": true, \"launch_ns\": %.0f, \"round_trip_us\": %.2f}\n",
           best * 1e9, trip * 1e6);
    return 0;
}

static int allocs(void) {
    double best[2] = {1e9, 1e9};
    for (int size = 0; size < 2; size++)
        for (int round = 0; round < 10; round++) {
            int count = size ? 20 : 500;
            P p;
            double t = now();
            for (int i = 0; i < count; i++) {
                CU(cuMemAlloc_v2, &p, size ? (size_t)64 << 20 : 4096);
                CU(cuMemFree_v2, p);
            }
            double each = (now() - t) / count;
            if (each < best[size]) best[size] = each;
        }
    printf("{\"mode\": \"alloc\", \"ok\": true, \"ns_4k\": %.0f, \"ns_64m\": %.0f}\n",
           best[0] * 1e9, best[1] * 1e9);
    return 0;
}

static int copies(size_t mib) {
    size_t bytes = mib << 20;
    void *pinned, *plain = malloc(bytes);
    P device, other;
    H stream = a_stream();
    memset(plain, 1, bytes);
    CU(cuMemAlloc_v2, &device, bytes);
    CU(cuMemAlloc_v2, &other, bytes);
    CU(cuMemHostAlloc, &pinned, bytes, 0);
    memset(pinned, 2, bytes);
    double best[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
    for (int round = 0; round < 6; round++)
        for (int way = 0; way < 5; way++) {
            double t = now();
            switch (way) {
            case 0: CU(cuMemcpyHtoD_v2, device, plain, bytes); break;
            case 1: CU(cuMemcpyDtoH_v2, plain, device, bytes); break;
            case 2: CU(cuMemcpyHtoD_v2, device, pinned, bytes); break;
            case 3: CU(cuMemcpyDtoH_v2, pinned, device, bytes); break;
            default:
                CU(cuMemcpyDtoDAsync_v2, other, device, bytes, stream);
                CU(cuStreamSynchronize, stream);
            }
            t = now() - t;
            if (t < best[way]) best[way] = t;
        }
    double g = (double)bytes / 1e9;
    /* What came back is what went there. */
    memset(plain, 0x5a, bytes);
    CU(cuMemcpyHtoD_v2, device, plain, bytes);
    memset(pinned, 0, bytes);
    CU(cuMemcpyDtoH_v2, pinned, device, bytes);
    int same = memcmp(plain, pinned, bytes) == 0;
    printf("{\"mode\": \"copy\", \"ok\": %s, \"mib\": %zu, \"to_pageable\": %.2f, "
           "\"from_pageable\": %.2f, \"to_pinned\": %.2f, \"from_pinned\": %.2f, "
           "\"on_card\": %.1f}\n",
           same ? "true" : "false", mib, g / best[0], g / best[1], g / best[2], g / best[3],
           g / best[4]);
    return same ? 0 : 1;
}

struct property { /* CUmemAllocationProp */
    int type, handle_types, location_type, location_id;
    void *win32;
    unsigned char rest[8];
};
struct array { /* CUDA_ARRAY_DESCRIPTOR */
    size_t width, height;
    int format;
    unsigned channels;
};

static int limit(const char *kind, size_t mib) {
    enum { MOST = 1 << 17 };
    P *given = malloc(MOST * sizeof *given);
    size_t before = 0, total = 0, after = 0, count = 0, bytes = 0, smallest = 1 << 20;
    R refusal = 0;
    H stream = a_stream();
    if (strcmp(kind, "vmm") == 0) smallest = 2 << 20;
    CU(cuMemGetInfo_v2, &before, &total);
    for (size_t size = mib << 20; count < MOST;) {
        if (strcmp(kind, "async") == 0) {
            refusal = cuMemAllocAsync(&given[count], size, stream);
            if (refusal == 0) refusal = cuStreamSynchronize(stream);
        } else if (strcmp(kind, "vmm") == 0) {
            struct property property = {1, 0, 1, 0, NULL, {0}};
            refusal = cuMemCreate(&given[count], size, &property, 0);
        } else if (strcmp(kind, "array") == 0) {
            struct array array = {1024, size / 4096, 0x20 /* float */, 1};
            H made = NULL;
            refusal = cuArrayCreate_v2(&made, &array);
            given[count] = (P)(uintptr_t)made;
        } else {
            refusal = cuMemAlloc_v2(&given[count], size);
        }
        if (refusal == 0) {
            count++;
            bytes += size;
        } else if (refusal == 2 && size / 2 >= smallest) {
            size /= 2;
        } else {
            break;
        }
    }
    CU(cuMemGetInfo_v2, &after, &total);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(kind, "async") == 0)
            CU(cuMemFreeAsync, given[i], stream);
        else if (strcmp(kind, "vmm") == 0)
            CU(cuMemRelease, given[i]);
        else if (strcmp(kind, "array") == 0)
            CU(cuArrayDestroy, (H)(uintptr_t)given[i]);
        else
            CU(cuMemFree_v2, given[i]);
    }
    CU(cuCtxSynchronize);
    P again = 0;
    R back = cuMemAlloc_v2(&again, bytes / 2); /* what was freed can be had again */
    printf("{\"mode\": \"limit\", \"ok\": %s, \"kind\": \"%s\", \"given\": %zu, \"pieces\": %zu, "
           "\"error\": \"%s\", \"free_before\": %zu, \"free_after\": %zu, \"total\": %zu, "
           "\"again\": \"%s\"}\n",
           refusal == 2 ? "true" : "false", kind, bytes, count, error_name(refusal), before, after,
           total, error_name(back));
    return 0;
}

static int hold(size_t mib, double seconds) {
    P p;
    if (mib) CU(cuMemAlloc_v2, &p, mib << 20);
    printf("{\"mode\": \"hold\", \"ok\": true, \"ready\": true, \"pid\": %d}\n", (int)getpid());
    fflush(stdout);
    usleep((useconds_t)(seconds * 1e6));
    return 0;
}

static double race_until;
static void *launcher(void *count) {
    CU(cuCtxSetCurrent, context);
    H stream = a_stream();
    unsigned long long *launched = count;
    while (now() < race_until) {
        for (int i = 0; i < 8; i++) launch(stream);
        *launched += 8;
        usleep(
            200); /* no synchronisation: that is forbidden while somebody captures in global mode */
    }
    return NULL;
}

static int race(double seconds) {
    H stream = a_stream();
    pthread_t thread;
    unsigned long long launched = 0, captures = 0, failures = 0;
    char first[64] = "", where[64] = "";
    make_kernel(50, 0, stream);
    race_until = now() + seconds;
    pthread_create(&thread, NULL, launcher, &launched);
    while (now() < race_until) {
        H graph = NULL, exec = NULL;
        const char *at = "cuStreamBeginCapture";
        R result = cuStreamBeginCapture_v2(stream, 0 /* global */);
        if (result == 0) {
            void *parameters[] = {&sink, &loops};
            at = "cuLaunchKernel";
            for (int i = 0; i < 5 && result == 0; i++) {
                result = cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
                usleep(100);
            }
            R ended = cuStreamEndCapture(stream, &graph);
            if (result == 0) {
                at = "cuStreamEndCapture";
                result = ended;
            }
        }
        if (result == 0) {
            at = "cuGraphInstantiate";
            result = cuGraphInstantiateWithFlags(&exec, graph, 0);
        }
        if (result == 0) {
            at = "cuGraphLaunch";
            result = cuGraphLaunch(exec, stream);
        }
        captures++;
        if (result != 0 && failures++ == 0) {
            snprintf(first, sizeof first, "%s", error_name(result));
            snprintf(where, sizeof where, "%s", at);
        }
        cuStreamSynchronize(stream);
        if (exec != NULL) cuGraphExecDestroy(exec);
        if (graph != NULL) cuGraphDestroy(graph);
    }
    pthread_join(thread, NULL);
    printf("{\"mode\": \"race\", \"ok\": %s, \"captures\": %llu, \"failures\": %llu, "
           "\"first\": \"%s\", \"at\": \"%s\", \"launched\": %llu}\n",
           failures ? "false" : "true", captures, failures, first, where, launched);
    return failures ? 1 : 0;
}

static int graphmem(int count, size_t mib) {
    H stream = a_stream(), graph = NULL, exec = NULL;
    const char *at = "cuStreamBeginCapture";
    R result = cuStreamBeginCapture_v2(stream, 1);
    for (int i = 0; i < count && result == 0; i++) {
        P p;
        at = "cuMemAllocAsync";
        result = cuMemAllocAsync(&p, mib << 20, stream);
        if (result == 0) {
            at = "cuMemFreeAsync";
            result = cuMemFreeAsync(p, stream);
        }
    }
    R ended = cuStreamEndCapture(stream, &graph);
    if (result == 0) at = "cuStreamEndCapture", result = ended;
    if (result == 0)
        at = "cuGraphInstantiate", result = cuGraphInstantiateWithFlags(&exec, graph, 0);
    if (result == 0) at = "cuGraphLaunch", result = cuGraphLaunch(exec, stream);
    if (result == 0) at = "cuStreamSynchronize", result = cuStreamSynchronize(stream);
    size_t available = 0, total = 0;
    CU(cuMemGetInfo_v2, &available, &total);
    printf("{\"mode\": \"graphmem\", \"ok\": %s, \"count\": %d, \"mib\": %zu, \"at\": \"%s\", "
           "\"error\": \"%s\", \"free\": %zu, \"total\": %zu}\n",
           result == 0 ? "true" : "false", count, mib, at, error_name(result), available, total);
    return result != 0;
}

int main(int count, char **a) {
    if (count < 2) return fprintf(stderr, "bench MODE [ARGUMENT...]: see the top of bench.c\n"), 2;
    mode = a[1];
#define N(i) (count > (i) ? atof(a[i]) : 0)
    begin();
    if (!strcmp(mode, "info")) return info();
    if (!strcmp(mode, "rate")) return rate(N(2), N(3), count > 4 ? a[4] : "eager", (unsigned)N(5));
    if (!strcmp(mode, "paced")) return paced(N(2), N(3), N(4), (unsigned)N(5));
    if (!strcmp(mode, "copymix")) return copymix((size_t)N(2), N(3), N(4), (unsigned)N(5));
    if (!strcmp(mode, "waits")) return waits(N(2), N(3), (unsigned)N(4));
    if (!strcmp(mode, "launch")) return launches();
    if (!strcmp(mode, "alloc")) return allocs();
    if (!strcmp(mode, "copy")) return copies((size_t)N(2));
    if (!strcmp(mode, "limit")) return limit(count > 2 ? a[2] : "plain", (size_t)N(3));
    if (!strcmp(mode, "hold")) return hold((size_t)N(2), N(3));
    if (!strcmp(mode, "race")) return race(N(2));
    if (!strcmp(mode, "graphmem")) return graphmem((int)N(2), (size_t)N(3));
    return fprintf(stderr, "bench: no mode %s\n", mode), 2;
}
