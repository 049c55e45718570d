/* Many processes allocate through every path at once and are killed at random stores, again and
 * again.
 *
 *   storm ROUNDS WORKERS SEED     one line: rounds, bytes over the limit, what survivors hold, what
 *                                 their accounts say
 *
 * Half of the workers die at a store to the shared files of their own choice (the interposer is
 * built with kill points), the others whenever their parent feels like it. Two survivors hold known
 * amounts the whole time. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ledger.h"

enum { MAX_WORKERS = 32, SURVIVORS = 2, HELD = 24 };

static void *library;
#define CALL(symbol) ((__typeof__(&symbol))look_up(#symbol))

static void *look_up(const char *name) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) _exit(99);
    return symbol;
}

static unsigned state;
static unsigned draw(unsigned below) { /* xorshift */
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state % below;
}

static void use_device(void) {
    CUcontext context;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL || CALL(cuInit)(0) || CALL(cuDevicePrimaryCtxRetain)(&context, 0) ||
        CALL(cuCtxSetCurrent)(context))
        _exit(98);
}

struct held {
    enum { NOTHING, POINTER, ASYNC, HANDLE, ARRAY, POOL } kind;
    uint64_t value;
    uint64_t address, bytes; /* of a handle: where it is mapped, 0 for nowhere */
    unsigned references;     /* to a handle, the program's own */
    CUmemoryPool pool;
};

/* Physical memory behind a handle, a mapping, or several of both. */
static struct held physical(size_t size) {
    static uint64_t address = 1ull << 44;
    CUmemGenericAllocationHandle handle = 0, again = 0, shared = 0;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    if (CALL(cuMemCreate)(&handle, size, &properties, 0)) return (struct held){0};
    struct held held = {HANDLE, handle, 0, size, 1, NULL};
    if (draw(3) == 0) return held;
    if (CALL(cuMemMap)(address, size, 0, handle, 0)) _exit(96);
    held.address = address;
    address += 1ull << 24;
    if (draw(2) &&
        CALL(cuMemRetainAllocationHandle)(&again, (void *)(uintptr_t)held.address) == CUDA_SUCCESS)
        held.references++;
    if (draw(2) &&
        CALL(cuMemExportToShareableHandle)(
            &shared, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS &&
        CALL(cuMemImportFromShareableHandle)(
            &again, &shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS)
        held.references++;
    /* the mapping holds it */
    for (unsigned drop = draw(held.references + 1); drop > 0; drop--, held.references--)
        CALL(cuMemRelease)(handle);
    return held;
}

static struct held from_own_pool(size_t size) {
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    struct held held = {POOL, 0, 0, 0, 0, NULL};
    CUdeviceptr pointer = 0;
    if (CALL(cuMemPoolCreate)(&held.pool, &properties)) return (struct held){0};
    CUresult result = CALL(cuMemAllocFromPoolAsync)(&pointer, size, held.pool, NULL);
    held.value = pointer;
    if (result == CUDA_SUCCESS && draw(2)) return held;
    CALL(cuMemPoolDestroy)(held.pool); /* of a pool in use: the memory stays until it is freed */
    held.pool = NULL;
    return result == CUDA_SUCCESS ? held : (struct held){0};
}

static struct held allocate(void) {
    size_t size = 1 + draw(3 << 20), pitch;
    CUdeviceptr pointer = 0;
    CUarray array;
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = 64 + draw(512),
                                          .Height = 1 + draw(512),
                                          .Format = CU_AD_FORMAT_FLOAT,
                                          .NumChannels = 1};
    switch (draw(7)) {
    case 0:
        return CALL(cuMemAlloc_v2)(&pointer, size)
                   ? (struct held){0}
                   : (struct held){.kind = POINTER, .value = pointer};
    case 1:
        return CALL(cuMemAllocManaged)(&pointer, size, CU_MEM_ATTACH_GLOBAL)
                   ? (struct held){0}
                   : (struct held){.kind = POINTER, .value = pointer};
    case 2:
        return CALL(cuMemAllocAsync)(&pointer, size, NULL)
                   ? (struct held){0}
                   : (struct held){.kind = ASYNC, .value = pointer};
    case 3:
        return CALL(cuMemAllocPitch_v2)(&pointer, &pitch, 1 + draw(5000), 1 + draw(400), 4)
                   ? (struct held){0}
                   : (struct held){.kind = POINTER, .value = pointer};
    case 4: return physical(size);
    case 5: return from_own_pool(size);
    default:
        return CALL(cuArray3DCreate_v2)(&array, &descriptor)
                   ? (struct held){0}
                   : (struct held){.kind = ARRAY, .value = (uint64_t)(uintptr_t)array};
    }
}

static void release(struct held held) {
    switch (held.kind) {
    case NOTHING: break;
    case POINTER: CALL(cuMemFree_v2)(held.value); break;
    case ASYNC: CALL(cuMemFreeAsync)(held.value, NULL); break;
    case HANDLE:
        for (; held.references > 0; held.references--) CALL(cuMemRelease)(held.value);
        if (held.address != 0) CALL(cuMemUnmap)(held.address, held.bytes);
        break;
    case POOL:
        CALL(cuMemFreeAsync)(held.value, NULL);
        if (held.pool != NULL) CALL(cuMemPoolDestroy)(held.pool);
        break;
    case ARRAY: CALL(cuArrayDestroy)((CUarray)(uintptr_t)held.value); break;
    }
}

static void graph_once(void) {
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_MEM_ALLOC_NODE_PARAMS parameters = {.bytesize = 1 + draw(4 << 20)};
    CALL(cuGraphCreate)(&graph, 0);
    CALL(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &parameters);
    if (CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0) == CUDA_SUCCESS) {
        CALL(cuGraphLaunch)(exec, NULL);
        CALL(cuGraphExecDestroy)(exec);
    }
    CALL(cuGraphDestroy)(graph);
    if (draw(2)) CALL(cuDeviceGraphMemTrim)(0);
}

static void work(unsigned seed, int dies_at_a_store) {
    struct held held[HELD] = {{0}};
    state = seed | 1;
    void (*kill_after)(long) = (void (*)(long))dlsym(RTLD_DEFAULT, "egpu_kill_after");
    if (dies_at_a_store && kill_after != NULL) kill_after(1 + (long)draw(draw(4) == 0 ? 12 : 600));
    use_device();
    for (;;) {
        unsigned at = draw(HELD);
        if (held[at].kind == NOTHING)
            held[at] = allocate();
        else {
            release(held[at]);
            held[at].kind = NOTHING;
        }
        if (draw(40) == 0) graph_once();
        if (draw(30) == 0) CALL(cuCtxSynchronize)();
    }
}

static int survivor_in[SURVIVORS], survivor_out[SURVIVORS];

static pid_t survive(int number, uint64_t bytes) {
    int to[2], from[2];
    if (pipe(to) || pipe(from)) exit(3);
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr pointer;
        char byte;
        use_device();
        if (CALL(cuMemAlloc_v2)(&pointer, bytes)) _exit(97);
        while (read(to[0], &byte, 1) == 1) {
            size_t free_bytes = 0, total = 0;
            CALL(cuMemGetInfo_v2)(&free_bytes, &total);
            uint64_t used = total - free_bytes;
            if (write(from[1], &used, sizeof used) != sizeof used) break;
        }
        _exit(0);
    }
    survivor_in[number] = to[1];
    survivor_out[number] = from[0];
    return child;
}

static uint64_t ask(int number) {
    uint64_t used = 0;
    if (write(survivor_in[number], "?", 1) != 1 ||
        read(survivor_out[number], &used, sizeof used) != sizeof used)
        exit(5);
    return used;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int count, char **arguments) {
    long rounds = count > 1 ? atol(arguments[1]) : 100;
    int workers = count > 2 ? atoi(arguments[2]) : 8;
    unsigned random_seed = count > 3 ? (unsigned)atol(arguments[3]) : 1;
    pid_t children[MAX_WORKERS], survivors[SURVIVORS];
    if (workers > MAX_WORKERS) workers = MAX_WORKERS;
    int file = open(getenv("FAKE_LEDGER"), O_RDWR);
    struct ledger *ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint64_t kept = 0;
    for (int i = 0; i < SURVIVORS; i++) {
        uint64_t bytes = (uint64_t)(i + 1) << 20;
        survivors[i] = survive(i, bytes);
        kept += bytes;
        ask(i);
    }
    long done = 0, started = 0;
    for (int i = 0; i < workers; i++)
        if ((children[i] = fork()) == 0)
            work(random_seed + (unsigned)++started * 2654435761u, i % 2);
        else
            started++;
    state = random_seed * 7919 | 1;
    double deadline = now_s() + 60;
    while (done < rounds) {
        int status;
        pid_t gone = waitpid(-1, &status, WNOHANG);
        if (gone <= 0) {
            struct timespec pause = {0, 300000};
            if (now_s() > deadline) { /* nobody died by itself or was allowed to: a hang */
                printf("hang %ld\n", done);
                return 4;
            }
            if (draw(4) == 0) kill(children[draw((unsigned)workers)], SIGKILL);
            nanosleep(&pause, NULL);
            continue;
        }
        if (WIFEXITED(status)) {
            printf("exit %d\n", WEXITSTATUS(status));
            return 6;
        }
        if (WTERMSIG(status) != SIGKILL) {
            printf("signal %d\n", WTERMSIG(status));
            return 7;
        }
        done++;
        deadline = now_s() + 60;
        for (int i = 0; i < workers; i++)
            if (children[i] == gone && (children[i] = fork()) == 0)
                work(random_seed + (unsigned)++started * 2654435761u, i % 2);
        started++;
    }
    for (int i = 0; i < workers; i++) kill(children[i], SIGKILL);
    for (int i = 0; i < workers; i++) waitpid(children[i], NULL, 0);
    double gone_at = now_s(), exact_at = 0;
    uint64_t used = 0;
    while (exact_at == 0 && now_s() - gone_at < 60) {
        struct timespec pause = {0, 2000000};
        used = ask(draw(SURVIVORS));
        if (used == kept)
            exact_at = now_s();
        else
            nanosleep(&pause, NULL);
    }
    printf("storm %ld over %lld kept %llu accounts %llu exact_ms %.1f notes %llu\n", done,
           (long long)ledger->over, (unsigned long long)kept, (unsigned long long)used,
           exact_at == 0 ? -1.0 : (exact_at - gone_at) * 1e3, (unsigned long long)ledger->notes);
    for (int i = 0; i < SURVIVORS; i++) kill(survivors[i], SIGKILL);
    for (int i = 0; i < SURVIVORS; i++) waitpid(survivors[i], NULL, 0);
    return 0;
}
