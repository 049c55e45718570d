/* The smallest libcuda that the interposer can be tested on: two devices of 1 GiB, a GPU that is
 * busy for gridDimX microseconds per kernel on one timeline, and counters of what is really
 * allocated. The simulated driver is the real counterpart; this one can be told to fail, and has
 * nothing of ours in it.
 *
 * FAKE_LEDGER names a file in which all processes note what they hold of device 0: after every
 * allocation what the living hold is summed up, and the most that it was over the limit in there is
 * kept. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ledger.h"

enum { DEVICES = 2, DEVICE_BYTES = 1 << 30 };

struct CUctx_st {
    int device;
};
struct CUevent_st {
    double at_us;
};

CUresult cuMemFree_v2(CUdeviceptr pointer);

static struct CUctx_st contexts[DEVICES] = {{0}, {1}};
static __thread CUcontext current;
static size_t allocated[DEVICES];
/* when it is through with everything, in ns; FAKE_GPU names a file where all see it */
static uint64_t own_gpu, *gpu = &own_gpu;
static int capturing;
static __thread CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* A call that a capture in global mode forbids to every thread whose mode is not relaxed. With
 * FAKE_CAPTURES, as if somebody always began one just now. */
static void check_capture(void) {
    if (capturing)
        abort(); /* nothing of the interposer's belongs into a capture that it knows of */
    if (getenv("FAKE_CAPTURES") != NULL && capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) abort();
}
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

/* FAKE_MEETING: the first load lasts until something has been freed, and that call until somebody
 * has asked how much is left since. */
enum { NOBODY_WAITS, LOAD_WAITS, FREE_WAITS, BOTH_MET };
static int meeting;

static void meet(int here, int there) {
    struct timespec soon = {.tv_nsec = 100000};
    __atomic_store_n(&meeting, here, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 100000 && __atomic_load_n(&meeting, __ATOMIC_SEQ_CST) != there; i++)
        nanosleep(&soon, NULL);
}
static bool meeting_is(int stage) { return __atomic_load_n(&meeting, __ATOMIC_SEQ_CST) == stage; }

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double busy_until(void) { return (double)__atomic_load_n(gpu, __ATOMIC_ACQUIRE) / 1e3; }

CUresult cuInit(unsigned flags) {
    int file = getenv("FAKE_GPU") == NULL || gpu != &own_gpu
                   ? -1
                   : open(getenv("FAKE_GPU"), O_RDWR | O_CLOEXEC);
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map != MAP_FAILED) gpu = map;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int *count) {
    *count = DEVICES;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    if (ordinal < 0 || ordinal >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    /* FAKE_SWAP stands for CUDA_VISIBLE_DEVICES=1,0 */
    memset(uuid, getenv("FAKE_SWAP") != NULL ? 0x22 - 0x11 * device : 0x11 + 0x11 * device,
           sizeof *uuid);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = &contexts[device];
    return CUDA_SUCCESS;
}
/* FAKE_RESET_MS: a reset takes so long before the memory goes, and so long afterwards. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    const char *lasts = getenv("FAKE_RESET_MS");
    struct timespec half = {.tv_nsec = lasts == NULL ? 0 : atol(lasts) * 1000000};
    nanosleep(&half, NULL);
    pthread_mutex_lock(&mutex);
    allocated[device] = 0;
    pthread_mutex_unlock(&mutex);
    nanosleep(&half, NULL);
    return CUDA_SUCCESS;
}
/* What is really held, past whoever answers for the driver. */
size_t fake_held(CUdevice device) { return allocated[device]; }
CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice *device) {
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current->device;
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = DEVICE_BYTES;
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    *total = DEVICE_BYTES;
    *free_bytes = DEVICE_BYTES - allocated[current->device];
    if (meeting_is(FREE_WAITS)) __atomic_store_n(&meeting, BOTH_MET, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

/* An image says in words how many bytes it takes, and how many a neighbour takes of the card while
 * it is loaded for the first time. */
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    static int loads;
    char *rest;
    size_t bytes = strtoull(image, &rest, 10);
    if (loads++ == 0) allocated[current->device] += strtoull(rest, NULL, 10);
    allocated[current->device] += bytes;
    if (getenv("FAKE_MEETING") != NULL && meeting_is(NOBODY_WAITS)) meet(LOAD_WAITS, FREE_WAITS);
    *module = (CUmodule)bytes;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module, (void)name;
    *function = (CUfunction)0x1000; /* any will do */
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
    allocated[current->device] -= (size_t)module;
    return CUDA_SUCCESS;
}

/* ---- what is held, by all processes ---- */

static struct ledger *ledger;
static struct ledger_entry *entry;
static int ledger_file = -1;

static int is_gone(uint32_t pid) {
    char path[64], text[512];
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return 1;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 1;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    text[size > 0 ? size : 0] = 0;
    char *end = strrchr(text, ')');
    return end == NULL || end[2] == 'Z' || end[2] == 'X';
}

static void note(int device, int64_t change) {
    static const char *name = "?"; /* asked once: this driver is measured, too */
    if (name != NULL && name[0] == '?') name = getenv("FAKE_LEDGER");
    if (device != 0 || name == NULL) return;
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (ledger == NULL) {
        ledger_file = open(name, O_RDWR | O_CLOEXEC);
        ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED, ledger_file, 0);
        if (ledger == MAP_FAILED) abort();
    }
    while (fcntl(ledger_file, F_OFD_SETLKW, &whole) != 0) {
    }
    for (int i = 0; i < LEDGER_ENTRIES && entry == NULL; i++)
        if (ledger->entries[i].pid == 0 || is_gone(ledger->entries[i].pid)) {
            entry = &ledger->entries[i];
            *entry = (struct ledger_entry){(uint32_t)getpid(), 0};
        }
    if (entry == NULL) abort();
    entry->bytes += change;
    for (int pass = 0; pass < 2; pass++) {
        int64_t sum = 0;
        for (int i = 0; i < LEDGER_ENTRIES; i++) sum += ledger->entries[i].bytes;
        if (sum <= ledger->limit) break;
        if (pass == 1 && sum - ledger->limit > ledger->over) ledger->over = sum - ledger->limit;
        for (int i = 0; i < LEDGER_ENTRIES; i++)
            if (ledger->entries[i].bytes != 0 && is_gone(ledger->entries[i].pid))
                ledger->entries[i] = (struct ledger_entry){0, 0};
    }
    ledger->notes++;
    whole.l_type = F_UNLCK;
    fcntl(ledger_file, F_OFD_SETLK, &whole);
}

static int hold(int device, int64_t bytes) { /* under the mutex */
    if (bytes > 0 && allocated[device] + (size_t)bytes > DEVICE_BYTES) return 0;
    allocated[device] += (size_t)bytes;
    note(device, bytes);
    return 1;
}

struct pool {
    size_t used, reserved;
    int device, keeps, destroyed;
};
static struct pool default_pools[DEVICES] = {{.device = 0}, {.device = 1}};

struct block {
    size_t size;
    int device;
    struct pool *pool;
    int references; /* of physical memory: handles and mappings */
};
static CUresult take(CUdeviceptr *pointer, size_t size) {
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (pointer == NULL || size == 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mutex);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (hold(current->device, (int64_t)((size + 511) / 512 * 512))) {
        struct block *block = malloc(sizeof *block);
        *block = (struct block){(size + 511) / 512 * 512, current->device, NULL, 1};
        *pointer = (CUdeviceptr)(uintptr_t)block;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}

/* ---- pools: grow by 2 MiB, shrink at a synchronisation ---- */

static size_t pages(size_t bytes) { return (bytes + (2 << 20) - 1) >> 21 << 21; }
static void shrink(struct pool *pool) {
    size_t needed = pages(pool->used);
    if (pool->reserved > needed) {
        hold(pool->device, -(int64_t)(pool->reserved - needed));
        pool->reserved = needed;
    }
}
CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    *pool = (CUmemoryPool)&default_pools[device];
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    return cuDeviceGetMemPool(pool, device);
}
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    struct pool *made = calloc(1, sizeof *made);
    made->device = properties->location.id;
    *pool = (CUmemoryPool)made;
    return CUDA_SUCCESS;
}
/* It goes, with all that it reserves, when nothing of it is in use any more. */
static void end_pool(struct pool *pool) {
    if (!pool->destroyed || pool->used != 0) return;
    shrink(pool);
    free(pool);
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    pthread_mutex_lock(&mutex);
    ((struct pool *)pool)->destroyed = 1;
    end_pool((struct pool *)pool);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    (void)keep;
    pthread_mutex_lock(&mutex);
    shrink((struct pool *)pool);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        ((struct pool *)pool)->keeps = *(cuuint64_t *)value > 0;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    if (attribute != CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) return CUDA_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&mutex);
    *(cuuint64_t *)value = ((struct pool *)pool)->reserved;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool handle,
                                 CUstream stream) {
    struct pool *pool = (struct pool *)handle;
    (void)stream;
    if (capturing) { /* a node: nothing is held until the graph is launched */
        *pointer = 0x7000;
        return CUDA_SUCCESS;
    }
    size = (size + 511) / 512 * 512;
    pthread_mutex_lock(&mutex);
    size_t needed = pages(pool->used + size),
           more = needed > pool->reserved ? needed - pool->reserved : 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (more == 0 || hold(pool->device, (int64_t)more)) {
        struct block *block = malloc(sizeof *block);
        *block = (struct block){size, pool->device, pool, 1};
        pool->used += size;
        pool->reserved += more;
        *pointer = (CUdeviceptr)(uintptr_t)block;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream) {
    return cuMemAllocFromPoolAsync(pointer, size, (CUmemoryPool)&default_pools[current->device],
                                   stream);
}

/* ---- arrays ---- */

static size_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    size_t bytes =
        d->Width * (d->Height ? d->Height : 1) * (d->Depth ? d->Depth : 1) * d->NumChannels * 4;
    return (bytes + 65535) / 65536 * 65536;
}
struct array {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    CUdeviceptr memory;
};
CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    struct array *made = calloc(1, sizeof *made);
    made->descriptor = *descriptor;
    CUresult result = descriptor->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING
                          ? CUDA_SUCCESS
                          : take(&made->memory, array_size(descriptor));
    *array = (CUarray)made;
    return result;
}
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray array,
                                      CUdevice device) {
    (void)device;
    if (!(((struct array *)array)->descriptor.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING))
        return CUDA_ERROR_INVALID_VALUE;
    needs->size = array_size(&((struct array *)array)->descriptor);
    return CUDA_SUCCESS;
}
CUresult cuArrayDestroy(CUarray array) {
    CUdeviceptr memory = ((struct array *)array)->memory;
    free(array);
    return memory == 0 ? CUDA_SUCCESS : cuMemFree_v2(memory);
}

/* ---- graphs: nodes that allocate and nodes that run for so many microseconds ---- */

struct graph {
    size_t bytes, nodes;
    unsigned microseconds;
};
struct exec {
    size_t bytes;
    unsigned microseconds;
    int backed;
};
static size_t graph_reserve;
CUresult cuGraphCreate(CUgraph *graph, unsigned flags) {
    (void)flags;
    *graph = calloc(1, sizeof(struct graph));
    return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
    free(graph);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    (void)before;
    (void)count;
    ((struct graph *)graph)->bytes += parameters->bytesize;
    ((struct graph *)graph)->nodes = 1;
    *node = (CUgraphNode)graph;
    return CUDA_SUCCESS;
}
CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *before,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS_v2 *parameters) {
    (void)before;
    (void)count;
    ((struct graph *)graph)->microseconds += parameters->gridDimX;
    *node = (CUgraphNode)graph;
    return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    if (nodes != NULL && ((struct graph *)graph)->nodes) nodes[0] = (CUgraphNode)graph;
    *count = ((struct graph *)graph)->nodes;
    return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type) {
    (void)node;
    *type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    return CUDA_SUCCESS;
}
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    parameters->bytesize = ((struct graph *)node)->bytes;
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    (void)flags;
    struct exec *made = calloc(1, sizeof *made);
    *made = (struct exec){((struct graph *)graph)->bytes, ((struct graph *)graph)->microseconds, 0};
    *exec = (CUgraphExec)made;
    return CUDA_SUCCESS;
}
/* its memory stays in the reserve */
CUresult cuGraphExecDestroy(CUgraphExec exec) {
    free(exec);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGraphMemTrim(CUdevice device) {
    pthread_mutex_lock(&mutex);
    hold(device, -(int64_t)graph_reserve);
    graph_reserve = 0;
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute,
                                      void *value) {
    (void)device;
    (void)attribute;
    *(cuuint64_t *)value = graph_reserve;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) { return take(pointer, size); }
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags) {
    (void)flags;
    return take(pointer, size);
}
CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned element) {
    (void)element;
    *pitch = (width + 511) / 512 * 512;
    return take(pointer, *pitch * height);
}
CUresult cuMemFree_v2(CUdeviceptr pointer) {
    if (pointer < 0x10000) return CUDA_ERROR_INVALID_VALUE; /* nothing of ours is that low */
    struct block *block = (struct block *)(uintptr_t)pointer;
    pthread_mutex_lock(&mutex);
    int last = --block->references == 0;
    if (last && block->pool != NULL) {
        block->pool->used -= block->size;
        end_pool(block->pool);
    } else if (last)
        hold(block->device, -(int64_t)block->size);
    pthread_mutex_unlock(&mutex);
    if (last) free(block);
    if (meeting_is(LOAD_WAITS)) meet(FREE_WAITS, BOTH_MET);
    return CUDA_SUCCESS;
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    (void)stream;
    return cuMemFree_v2(pointer);
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
    CUcontext before = current;
    (void)flags;
    current = &contexts[properties->location.id];
    CUdeviceptr pointer = 0;
    CUresult result = take(&pointer, size);
    current = before;
    *handle = pointer;
    return result;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return cuMemFree_v2(handle); }

static struct mapping {
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    struct mapping *next;
} *mappings;
static CUresult refer(CUmemGenericAllocationHandle handle) { /* under the mutex */
    ((struct block *)(uintptr_t)handle)->references++;
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    struct mapping *mapping = malloc(sizeof *mapping);
    (void)size;
    (void)offset;
    (void)flags;
    pthread_mutex_lock(&mutex);
    *mapping = (struct mapping){at, handle, mappings};
    mappings = mapping;
    refer(handle);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
    struct mapping *gone = NULL;
    pthread_mutex_lock(&mutex);
    for (struct mapping **link = &mappings; *link != NULL;) {
        struct mapping *mapping = *link;
        if (mapping->at < at || mapping->at >= at + size) {
            link = &mapping->next;
            continue;
        }
        *link = mapping->next;
        mapping->next = gone;
        gone = mapping;
    }
    pthread_mutex_unlock(&mutex);
    for (struct mapping *next; gone != NULL; gone = next) {
        next = gone->next;
        cuMemRelease(gone->handle);
        free(gone);
    }
    return CUDA_SUCCESS;
}
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    pthread_mutex_lock(&mutex);
    struct mapping *found = mappings;
    while (found != NULL && found->at != (CUdeviceptr)(uintptr_t)address) found = found->next;
    if (found != NULL) {
        *handle = found->handle;
        refer(found->handle);
    }
    pthread_mutex_unlock(&mutex);
    return found == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
/* What is shared here comes back to the process that made it. */
CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
    (void)type;
    (void)flags;
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared,
                                        CUmemAllocationHandleType type) {
    (void)type;
    memcpy(handle, shared, sizeof *handle);
    pthread_mutex_lock(&mutex);
    refer(*handle);
    pthread_mutex_unlock(&mutex);
    return CUDA_SUCCESS;
}

static CUresult run(unsigned microseconds) {
    if (capturing) return CUDA_SUCCESS;
    /* what the interposer changed for its own calls is not the program's */
    if (capture_mode != CU_STREAM_CAPTURE_MODE_GLOBAL) abort();
    double now = now_us(), end;
    uint64_t before = __atomic_load_n(gpu, __ATOMIC_RELAXED);
    do end = (now > (double)before / 1e3 ? now : (double)before / 1e3) + microseconds;
    while (!__atomic_compare_exchange_n(gpu, &before, (uint64_t)(end * 1e3), false,
                                        __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
    double backlog = end - now;
    if (backlog > 50000) { /* a queue is finite */
        struct timespec t = {0, (long)((backlog - 50000) * 1e3)};
        nanosleep(&t, NULL);
    }
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void **parameters, void **extra) {
    (void)f;
    (void)gy;
    (void)gz;
    (void)by;
    (void)bz;
    (void)shared;
    (void)stream;
    (void)parameters;
    (void)extra;
    return bx == 0 ? CUDA_ERROR_INVALID_VALUE : run(gx);
}
CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
    struct exec *exec = (struct exec *)handle;
    (void)stream;
    if (!exec->backed && exec->bytes > 0) {
        pthread_mutex_lock(&mutex);
        int fits = hold(0, (int64_t)pages(exec->bytes));
        if (fits) graph_reserve += pages(exec->bytes);
        pthread_mutex_unlock(&mutex);
        if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;
        exec->backed = 1;
    }
    return run(exec->microseconds);
}
/* Fills and copies take a microsecond a byte, in the order of the launches. */
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    (void)to, (void)value, (void)stream;
    return run((unsigned)bytes);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    (void)to, (void)from, (void)stream;
    return run((unsigned)bytes);
}
CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr pointer) {
    (void)pointer;
    if (attribute != CU_POINTER_ATTRIBUTE_MEMORY_TYPE) return CUDA_ERROR_NOT_SUPPORTED;
    *(unsigned *)out = CU_MEMORYTYPE_DEVICE;
    return CUDA_SUCCESS;
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *starts, size_t hows,
                               CUstream stream) {
    (void)to, (void)from, (void)attributes, (void)starts, (void)hows, (void)stream;
    size_t all = 0;
    for (size_t i = 0; i < count; i++) all += bytes[i];
    return run((unsigned)all);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy, CUstream stream) {
    (void)stream;
    return run((unsigned)(copy->WidthInBytes * copy->Height * copy->Depth));
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    (void)to, (void)from, (void)stream;
    return run((unsigned)bytes);
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUstreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
static CUresult synchronize(void) {
    for (;;) {
        pthread_mutex_lock(&mutex);
        double left = busy_until() - now_us();
        for (int i = 0; left <= 0 && i < DEVICES; i++) shrink(&default_pools[i]);
        pthread_mutex_unlock(&mutex);
        if (left <= 0) return CUDA_SUCCESS;
        struct timespec t = {0, (long)(left * 1e3) % 1000000000};
        nanosleep(&t, NULL);
    }
}
CUresult cuCtxSynchronize(void) { return synchronize(); }
CUresult cuStreamSynchronize(CUstream stream) {
    (void)stream;
    return synchronize();
}
CUresult cuStreamQuery(CUstream stream) {
    (void)stream;
    check_capture();
    return busy_until() > now_us() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent *event, unsigned flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
    (void)stream;
    if (capturing) abort(); /* nothing of the interposer's belongs into a capture */
    double now = now_us(), busy = busy_until();
    event->at_us = now > busy ? now : busy;
    return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) {
    check_capture();
    return now_us() >= event->at_us ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    *ms = (float)((end->at_us - start->at_us) / 1e3);
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    (void)stream;
    (void)mode;
    capturing = 1;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    (void)stream;
    *graph = (CUgraph)1;
    capturing = 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    (void)stream;
    *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
/* What the driver does not offer by version it does not have: an unknown name is an error with a
 * status. */
CUresult cuGetProcAddress_v2(const char *symbol, void **pointer, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status) {
    (void)flags;
    *pointer = NULL;
    if (strcmp(symbol, "cuMemAlloc") == 0 && version >= 3020) *pointer = (void *)cuMemAlloc_v2;
    if (strcmp(symbol, "cuMemGetInfo") == 0 && version >= 3020) *pointer = (void *)cuMemGetInfo_v2;
    if (strcmp(symbol, "cuGetProcAddress") == 0) *pointer = (void *)cuGetProcAddress_v2;
    if (strcmp(symbol, "cuCtxSynchronize") == 0) *pointer = (void *)cuCtxSynchronize;
    if (status != NULL)
        *status =
            *pointer != NULL ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *pointer != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
