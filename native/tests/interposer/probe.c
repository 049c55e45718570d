/* A CUDA program as the interposer meets them: it opens libcuda.so.1 itself and looks names up with
 * dlsym.
 *
 *   probe COMMAND [NUMBER]...     one line per command on stdout: name and what came out
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *library;
#define CALL(symbol) ((__typeof__(&symbol))look_up(#symbol))

static void *look_up(const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        printf("missing %s\n", name);
        exit(3);
    }
    return symbol;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void use_device(int ordinal) {
    CUdevice device;
    CUcontext context;
    CUresult result = CALL(cuInit)(0);
    if (result == CUDA_SUCCESS) result = CALL(cuDeviceGet)(&device, ordinal);
    if (result == CUDA_SUCCESS) result = CALL(cuDevicePrimaryCtxRetain)(&context, device);
    if (result == CUDA_SUCCESS) result = CALL(cuCtxSetCurrent)(context);
    if (result != CUDA_SUCCESS) {
        printf("init %d\n", result);
        exit(2);
    }
}

static void print_info(void) {
    size_t free_bytes = 0, total = 0, device_total = 0;
    CALL(cuMemGetInfo_v2)(&free_bytes, &total);
    CALL(cuDeviceTotalMem_v2)(&device_total, 0);
    printf("info %zu %zu %zu\n", free_bytes, total, device_total);
}

/* The same by calls that leave out one amount. */
static void print_halves(void) {
    size_t free_bytes = 0, total = 0, neither = CALL(cuMemGetInfo_v2)(NULL, NULL);
    CALL(cuMemGetInfo_v2)(&free_bytes, NULL);
    CALL(cuMemGetInfo_v2)(NULL, &total);
    printf("halves %zu %zu %zu\n", free_bytes, total, neither);
}

static int fill(size_t step) { /* allocates until refused */
    CUdeviceptr pointer;
    size_t held = 0;
    CUresult result;
    while ((result = CALL(cuMemAlloc_v2)(&pointer, step)) == CUDA_SUCCESS && held < (size_t)8 << 30)
        held += step;
    printf("fill %zu %d\n", held, result);
    return 0;
}

/* One module that takes so much, while a neighbour takes that. */
static int load(size_t bytes, size_t neighbour) {
    char image[64];
    CUmodule module;
    snprintf(image, sizeof image, "%zu %zu", bytes, neighbour);
    CUresult result = CALL(cuModuleLoadData)(&module, image);
    printf("load %d\n", result);
    print_info();
    if (result == CUDA_SUCCESS) CALL(cuModuleUnload)(module);
    print_info();
    return 0;
}

static int every_path(void) { /* each family: allocate, look, free, look */
    CUdeviceptr p = 0;
    size_t pitch = 0, f0, f1, f2, total;
#define STEP(NAME, ALLOC, FREE)            \
    CALL(cuMemGetInfo_v2)(&f0, &total);    \
    if ((ALLOC) != CUDA_SUCCESS) return 4; \
    CALL(cuMemGetInfo_v2)(&f1, &total);    \
    if ((FREE) != CUDA_SUCCESS) return 5;  \
    CALL(cuMemGetInfo_v2)(&f2, &total);    \
    printf("%s %zu %zu\n", NAME, f0 - f1, f2 - f1);
    STEP("alloc", CALL(cuMemAlloc_v2)(&p, 1), CALL(cuMemFree_v2)(p))
    STEP("managed", CALL(cuMemAllocManaged)(&p, 1000, CU_MEM_ATTACH_GLOBAL), CALL(cuMemFree_v2)(p))
    STEP("async", CALL(cuMemAllocAsync)(&p, 4096, NULL),
         CALL(cuMemFreeAsync)(p, NULL) || CALL(cuCtxSynchronize)())
    CUmemoryPool pool;
    CUmemPoolProps own = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CALL(cuMemPoolCreate)(&pool, &own);
    STEP("kept", CALL(cuMemAllocFromPoolAsync)(&p, 3 << 20, pool, NULL),
         CALL(cuMemFreeAsync)(p, NULL))
    STEP("trimmed", CALL(cuCtxSynchronize)(), CALL(cuMemPoolTrimTo)(pool, 0))
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {
        .Width = 100, .Height = 100, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    STEP("array", CALL(cuArray3DCreate_v2)(&array, &descriptor), CALL(cuArrayDestroy)(array))
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = {.bytesize = 3 << 20};
    CALL(cuGraphCreate)(&graph, 0);
    CALL(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &allocation);
    STEP("graph",
         CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0) || CALL(cuGraphLaunch)(exec, NULL) ||
             CALL(cuGraphLaunch)(exec, NULL),
         CALL(cuGraphExecDestroy)(exec) || CALL(cuDeviceGraphMemTrim)(0))
    STEP("captured",
         CALL(cuStreamBeginCapture_v2)(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL) ||
             CALL(cuMemAllocAsync)(&p, 8 << 20, NULL),
         CALL(cuStreamEndCapture)(NULL, &graph))
    STEP("pitch", CALL(cuMemAllocPitch_v2)(&p, &pitch, 100, 10, 4), CALL(cuMemFree_v2)(p))
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    STEP("create", CALL(cuMemCreate)(&handle, 2 << 20, &properties, 0), CALL(cuMemRelease)(handle))
    /* the mapping alone keeps the memory alive */
    STEP("mapped", CALL(cuMemCreate)(&handle, 4 << 20, &properties, 0),
         CALL(cuMemMap)(0x700000000000, 2 << 20, 0, handle, 0) ||
             CALL(cuMemMap)(0x700000200000, 2 << 20, 2 << 20, handle, 0) ||
             CALL(cuMemRelease)(handle))
    CALL(cuMemGetInfo_v2)(&f0, &total);
    CALL(cuMemUnmap)(0x700000000000, 4 << 20);
    CALL(cuMemGetInfo_v2)(&f1, &total);
    printf("unmapped %zu\n", f1 - f0);
    printf("unknown %d\n", CALL(cuMemFree_v2)(0xdead));
    CALL(cuMemAlloc_v2)(&p, 1 << 20);
    CALL(cuDevicePrimaryCtxReset_v2)(0);
    CALL(cuMemGetInfo_v2)(&f0, &total);
    printf("reset %zu\n", total - f0);
    return 0;
}

static int through_proc_address(void) {
    CUdriverProcAddressQueryResult status;
    void *alloc = NULL, *get = NULL, *other = NULL;
    CUresult (*ask)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *) =
        CALL(cuGetProcAddress_v2);
    ask("cuMemAlloc", &alloc, 12000, 0, &status);
    ask("cuGetProcAddress", &get, 12000, 0, &status);
    ask("cuCtxSynchronize", &other, 12000, 0, &status);
    CUresult unknown = ask("cuNoSuchThing", &other, 12000, 0, &status);
    CUdeviceptr p;
    size_t free_bytes, total;
    CUresult result = ((__typeof__(&cuMemAlloc_v2))alloc)(&p, 1 << 20);
    CALL(cuMemGetInfo_v2)(&free_bytes, &total);
    printf("proc %d %zu %d %d %d\n", result, total - free_bytes, get == (void *)ask, unknown,
           status);
    return 0;
}

/* Kernels of so many microseconds for so long, several queued at a time; prints the GPU time
 * obtained per second. */
static int burn(unsigned kernel_us, double seconds, int streams) {
    unsigned long launches = 0;
    double start = now_s();
    __typeof__(&cuLaunchKernel) launch = CALL(cuLaunchKernel);
    while (now_s() - start < seconds) {
        if (launch((CUfunction)0x1000, kernel_us, 1, 1, 32, 1, 1, 0,
                   (CUstream)(uintptr_t)(0x10 + launches % (unsigned)streams), NULL, NULL))
            return 4;
        launches++;
    }
    CALL(cuCtxSynchronize)();
    printf("burn %.4f %lu\n", (double)launches * kernel_us / 1e6 / (now_s() - start), launches);
    return 0;
}

/* The same of fills and copies within the card, one by one, in a batch and as a volume. */
static int transfer(unsigned us, double seconds) {
    unsigned long transfers = 0;
    double start = now_s();
    CUdeviceptr to[] = {0x1000, 0x1800}, from[] = {0x2000, 0x2800};
    size_t bytes[] = {us / 2, us - us / 2};
    const CUDA_MEMCPY3D_PEER volume = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                       .srcDevice = 0x1000,
                                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                       .dstDevice = 0x2000,
                                       .WidthInBytes = us,
                                       .Height = 1,
                                       .Depth = 1};
    for (; now_s() - start < seconds; transfers += 4)
        if (CALL(cuMemsetD8Async)(0x1000, 0, us, (CUstream)0x10) ||
            CALL(cuMemcpyDtoDAsync_v2)(0x1000, 0x2000, us, (CUstream)0x10) ||
            CALL(cuMemcpyBatchAsync_v2)(to, from, bytes, 2, NULL, NULL, 0, (CUstream)0x10) ||
            CALL(cuMemcpy3DPeerAsync)(&volume, (CUstream)0x10))
            return 4;
    CALL(cuCtxSynchronize)();
    printf("burn %.4f %lu\n", (double)transfers * us / 1e6 / (now_s() - start), transfers);
    return 0;
}

/* So many kernels, with a copy from the host before each that takes four times as long. */
static int feed(unsigned kernels) {
    static const char host[800];
    for (unsigned i = 0; i < kernels; i++)
        if (CALL(cuMemcpyHtoDAsync_v2)(0x1000, host, sizeof host, (CUstream)0x10) ||
            CALL(cuLaunchKernel)((CUfunction)0x1000, 200, 1, 1, 32, 1, 1, 0, (CUstream)0x10, NULL,
                                 NULL))
            return 4;
    return CALL(cuCtxSynchronize)();
}

/* the parent's bytes stay the parent's; the child has its own account */
static int with_fork(void) {
    CUdeviceptr p;
    CALL(cuMemAlloc_v2)(&p, 1 << 20);
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr mine;
        int result = CALL(cuMemAlloc_v2)(&mine, 2 << 20);
        print_info();
        fflush(stdout);
        _exit(result);
    }
    waitpid(child, NULL, 0);
    print_info();
    return 0;
}

static int captured(void) {
    CUgraph graph;
    if (burn(100, 0.05, 1)) return 4;
    CALL(cuStreamBeginCapture_v2)((CUstream)0x10, CU_STREAM_CAPTURE_MODE_GLOBAL);
    for (int i = 0; i < 100; i++)
        CALL(cuLaunchKernel)((CUfunction)0x1000, 100, 1, 1, 32, 1, 1, 0, (CUstream)0x10, NULL,
                             NULL);
    CALL(cuStreamEndCapture)((CUstream)0x10, &graph);
    return burn(100, 0.05, 1);
}

static CUcontext shared_context;
static int stop;

static void *free_beside(void *pointer) {
    struct timespec soon = {.tv_nsec = 100000000}; /* until the load has begun */
    nanosleep(&soon, NULL);
    CALL(cuMemFree_v2)((CUdeviceptr)(uintptr_t)pointer);
    return NULL;
}

/* A module is loaded, and in the middle of that something freed. */
static int load_beside_free(size_t bytes) {
    char image[32];
    CUdeviceptr pointer;
    CUmodule module;
    pthread_t thread;
    snprintf(image, sizeof image, "%zu", bytes);
    CUresult result = CALL(cuMemAlloc_v2)(&pointer, bytes);
    if (result != CUDA_SUCCESS) return 1;
    pthread_create(&thread, NULL, free_beside, (void *)(uintptr_t)pointer);
    result = CALL(cuModuleLoadData)(&module, image);
    pthread_join(thread, NULL);
    printf("load %d\n", result);
    print_info();
    return 0;
}

enum { RESET_HALF_MS = 200 }; /* what FAKE_RESET_MS is */

static void *allocate_beside(void *milliseconds) {
    struct timespec moment = {.tv_nsec = (long)(intptr_t)milliseconds * 1000000};
    CUdeviceptr pointer;
    CALL(cuCtxSetCurrent)(shared_context);
    nanosleep(&moment, NULL);
    CUresult result = CALL(cuMemAlloc_v2)(&pointer, 3 << 20);
    return (void *)(intptr_t)result;
}

/* The primary context is reset, and others allocate before and after its memory goes. */
static int reset_beside_allocations(void) {
    pthread_t before, after;
    size_t free_bytes, total;
    CUdeviceptr pointer;
    size_t (*held)(CUdevice) = (size_t (*)(CUdevice))look_up("fake_held");
    CALL(cuCtxGetCurrent)(&shared_context);
    CALL(cuMemAlloc_v2)(&pointer, 16 << 20);
    pthread_create(&before, NULL, allocate_beside, (void *)(intptr_t)(RESET_HALF_MS / 2));
    pthread_create(&after, NULL, allocate_beside, (void *)(intptr_t)(RESET_HALF_MS * 3 / 2));
    CUresult result = CALL(cuDevicePrimaryCtxReset_v2)(0);
    void *first, *second;
    pthread_join(before, &first);
    pthread_join(after, &second);
    CALL(cuMemGetInfo_v2)(&free_bytes, &total);
    printf("reset %d %d %d\n", result, (int)(intptr_t)first, (int)(intptr_t)second);
    printf("counted %zu\nheld %zu\n", total - free_bytes, held(0));
    return 0;
}

static void *busy_thread(void *seed) {
    CUdeviceptr held[512] = {0};
    unsigned state = (unsigned)(uintptr_t)seed;
    __typeof__(&cuMemAlloc_v2) alloc = CALL(cuMemAlloc_v2);
    __typeof__(&cuMemFree_v2) release = CALL(cuMemFree_v2);
    __typeof__(&cuLaunchKernel) launch = CALL(cuLaunchKernel);
    CALL(cuCtxSetCurrent)(shared_context);
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
        CUdeviceptr *place = &held[rand_r(&state) % 512];
        if (*place != 0) {
            release(*place);
            *place = 0;
        } else if (alloc(place, 1 + (size_t)rand_r(&state) % 100000) != CUDA_SUCCESS) {
            *place = 0;
        }
        if (rand_r(&state) % 2048 == 0)
            launch((CUfunction)0x1000, 1 + (unsigned)rand_r(&state) % 50, 1, 1, 32, 1, 1, 0,
                   (CUstream)seed, NULL, NULL);
    }
    for (int i = 0; i < 512; i++)
        if (held[i] != 0) release(held[i]);
    return NULL;
}

/* Threads that allocate, free and launch, while the main thread forks children that ask and are
 * refused. */
static int threads(int count, int forks) {
    pthread_t thread[16];
    CALL(cuCtxGetCurrent)(&shared_context);
    for (int i = 0; i < count; i++)
        pthread_create(&thread[i], NULL, busy_thread, (void *)(uintptr_t)(0x100 + i));
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0) {
            CUdeviceptr p;
            size_t free_bytes, total;
            alarm(20);
            CALL(cuMemGetInfo_v2)(&free_bytes, &total);
            for (CUdeviceptr unknown = 1; unknown < 512; unknown++) /* every shard of the table */
                if (CALL(cuMemFree_v2)(unknown) == CUDA_SUCCESS) _exit(1);
            _exit(CALL(cuMemAlloc_v2)(&p, (size_t)1 << 40) == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 1);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0) return 6;
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < count; i++) pthread_join(thread[i], NULL);
    print_info();
    return 0;
}

/* ns per alloc+free with so many live allocations: the best of many short rounds */
static int cost(unsigned long live) {
    enum { ROUNDS = 400, AT_ONCE = 1000 };
    CUdeviceptr p;
    double best = 1e9;
    __typeof__(&cuMemAlloc_v2) alloc = CALL(cuMemAlloc_v2);
    __typeof__(&cuMemFree_v2) release = CALL(cuMemFree_v2);
    for (unsigned long i = 0; i < live; i++) alloc(&p, 512);
    for (int round = 0; round < ROUNDS; round++) {
        double start = now_s();
        for (int i = 0; i < AT_ONCE; i++) {
            alloc(&p, 512);
            release(p);
        }
        double each = (now_s() - start) * 1e9 / AT_ONCE;
        if (each < best) best = each; /* whatever else the computer does only adds to it */
    }
    printf("cost %.1f\n", best);
    return 0;
}

/* ns per launch while the GPU is kept busy: some launches at a time, the waiting in between not
 * counted. */
static int launch_cost(unsigned kernel_us) {
    enum { ROUNDS = 60, AT_ONCE = 200 };
    double best = 1e9;
    __typeof__(&cuLaunchKernel) launch = CALL(cuLaunchKernel);
    for (int round = 0; round < ROUNDS; round++) {
        struct timespec pause = {0, 15000000};
        double start = now_s();
        for (int i = 0; i < AT_ONCE; i++)
            launch((CUfunction)0x1000, kernel_us, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
        double each = (now_s() - start) * 1e9 / AT_ONCE;
        if (each < best) best = each; /* whatever else the computer does only adds to it */
        CALL(cuCtxSynchronize)();
        nanosleep(&pause, NULL);
    }
    printf("launch_cost %.1f\n", best);
    return 0;
}

/* The driver is opened, used and closed: is it there still, where the interposer knows it? */
static int closed(void) {
    library = dlopen("libcuda.so.1", RTLD_NOW);
    use_device(0);
    dlclose(library);
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    puts(library != NULL ? "closed there" : "closed gone");
    return 0;
}

/* A library that is linked with the driver, loaded for itself alone: nobody has asked dlsym. */
static int linked(void) {
    void *needs_driver = dlopen("liblinked.so", RTLD_NOW | RTLD_LOCAL);
    if (needs_driver == NULL) return puts(dlerror()), 3;
    int (*total)(size_t *) = (int (*)(size_t *))dlsym(needs_driver, "linked_total");
    size_t bytes = 0;
    int result = total(&bytes);
    printf("linked %d %zu\n", result, bytes);
    return 0;
}

int main(int count, char **arguments) {
    const char *command = count > 1 ? arguments[1] : "info";
    double number = count > 2 ? atof(arguments[2]) : 0, second = count > 3 ? atof(arguments[3]) : 0;
    int ordinal = getenv("PROBE_DEVICE") != NULL ? atoi(getenv("PROBE_DEVICE")) : 0, result = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(command, "next") == 0) { /* RTLD_NEXT is relative to us, not to the hook */
        void *next = dlsym(RTLD_NEXT, "malloc"), *all = dlsym(RTLD_DEFAULT, "malloc");
        printf("next %d %d %s\n", next != NULL, next == all,
               dlsym(RTLD_DEFAULT, "cuInit") == NULL ? "absent" : "present");
        return 0;
    }
    if (strcmp(command, "closed") == 0) return closed();
    if (strcmp(command, "linked") == 0) return linked();
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        puts(dlerror());
        return 3;
    }
    use_device(ordinal);
    if (strcmp(command, "info") == 0) print_info();
    if (strcmp(command, "halves") == 0) print_halves();
    if (strcmp(command, "fill") == 0) result = fill((size_t)number);
    if (strcmp(command, "load") == 0) result = load((size_t)number, (size_t)second);
    if (strcmp(command, "paths") == 0) result = every_path();
    if (strcmp(command, "proc") == 0) result = through_proc_address();
    if (strcmp(command, "burn") == 0)
        result = burn((unsigned)number, second, count > 4 ? atoi(arguments[4]) : 1);
    if (strcmp(command, "transfer") == 0) result = transfer((unsigned)number, second);
    if (strcmp(command, "feed") == 0) result = feed((unsigned)number);
    if (strcmp(command, "fork") == 0) result = with_fork();
    if (strcmp(command, "captured") == 0) result = captured();
    if (strcmp(command, "load-beside-free") == 0) result = load_beside_free((size_t)number);
    if (strcmp(command, "reset-beside") == 0) result = reset_beside_allocations();
    if (strcmp(command, "threads") == 0) result = threads((int)number, (int)second);
    if (strcmp(command, "cost") == 0) result = cost((unsigned long)number);
    if (strcmp(command, "launch_cost") == 0)
        result = launch_cost(number > 0 ? (unsigned)number : 20);
    if (strcmp(command, "hold") == 0) { /* allocate so much, say so, and wait to be killed */
        CUdeviceptr p;
        printf("hold %d\n", CALL(cuMemAlloc_v2)(&p, (size_t)number));
        for (;;) pause();
    }
    if (strcmp(command, "exec") == 0) { /* allocate, then become another program */
        CUdeviceptr p;
        CALL(cuMemAlloc_v2)(&p, (size_t)number);
        execl(arguments[0], arguments[0], "fill", "1048576", NULL);
    }
    if (strcmp(command, "fillhold") == 0) {
        fill((size_t)number);
        for (;;) pause();
    }
    if (strcmp(command, "churn") == 0) /* allocate and free until killed */
        for (CUdeviceptr p[16];;) {
            int held = 0;
            while (held < 16 && CALL(cuMemAlloc_v2)(&p[held], (size_t)number) == CUDA_SUCCESS)
                held++;
            while (held > 0) CALL(cuMemFree_v2)(p[--held]);
        }
    return result;
}
