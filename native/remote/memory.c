/* Allocations, as far as the client knows them: enough to tell a good pointer from a bad one
 * without asking, to know host memory from device memory, and to answer what pointers are.
 *
 * Pinned host memory. Over shared memory it is a memfd that both processes map at one address, so
 * the GPU reaches it and copies need no detour. Over a stream it is plain memory of this process:
 * copies from it work, kernels cannot see it (CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY is 0).
 */
#define _GNU_SOURCE
#include "client.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/descriptor.h"
#include "common/kernel.h"

static struct allocation *allocations; /* sorted by base, then server */
static size_t allocation_count, allocation_room;
static pthread_rwlock_t allocation_lock = PTHREAD_RWLOCK_INITIALIZER;

/* Index of the first one above `pointer`. */
static size_t above(uint64_t pointer) {
    size_t low = 0, high = allocation_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (allocations[middle].base <= pointer)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The one with `pointer` in it; several servers may have given the same address: theirs is the one
 * of `link`, if given. */
static struct allocation *find(const struct link *link, uint64_t pointer) {
    for (size_t i = above(pointer); i-- > 0;) {
        struct allocation *a = &allocations[i];
        if (pointer - a->base < a->bytes &&
            (link == NULL || a->link == link || a->kind != ALLOCATION_DEVICE))
            return a;
        /* one server's do not overlap */
        if (link_count < 2 && pointer - a->base >= a->bytes) return NULL;
        if (pointer - a->base > UINT64_C(1) << 48) return NULL;
    }
    return NULL;
}

bool allocation_find(const struct link *link, uint64_t pointer, struct allocation *out) {
    pthread_rwlock_rdlock(&allocation_lock);
    struct allocation *a = find(link, pointer);
    if (a != NULL) *out = *a;
    pthread_rwlock_unlock(&allocation_lock);
    return a != NULL;
}

CUcontext allocation_elsewhere(const struct link *link, uint64_t pointer) {
    struct allocation a;
    if (link_count < 2 || allocation_find(link, pointer, &a) ||
        !allocation_find(NULL, pointer, &a) || a.kind != ALLOCATION_DEVICE)
        return NULL;
    return (CUcontext)(uintptr_t)a.context;
}

static bool add(struct allocation made) {
    pthread_rwlock_wrlock(&allocation_lock);
    bool room = allocation_count < allocation_room;
    if (!room) {
        size_t wanted = allocation_room ? allocation_room * 2 : 256;
        struct allocation *grown = realloc(allocations, wanted * sizeof *grown);
        if (grown != NULL) {
            allocations = grown;
            allocation_room = wanted;
            room = true;
        }
    }
    if (room) {
        size_t at = above(made.base);
        memmove(&allocations[at + 1], &allocations[at],
                (allocation_count - at) * sizeof *allocations);
        allocations[at] = made;
        allocation_count++;
    }
    pthread_rwlock_unlock(&allocation_lock);
    return room;
}

static void forget(const struct link *link, uint64_t base) {
    pthread_rwlock_wrlock(&allocation_lock);
    for (size_t i = above(base); i-- > 0 && allocations[i].base == base;)
        if (allocations[i].link == link) {
            if (allocations[i].taken) addresses_give(base, allocations[i].bytes);
            memmove(&allocations[i], &allocations[i + 1],
                    (allocation_count - i - 1) * sizeof *allocations);
            allocation_count--;
            break;
        }
    pthread_rwlock_unlock(&allocation_lock);
}

/* A context is gone, and its memory with it. */
void context_forget(uint64_t context) {
    pthread_rwlock_wrlock(&allocation_lock);
    size_t kept = 0;
    for (size_t i = 0; i < allocation_count; i++)
        if (allocations[i].context != context || allocations[i].kind != ALLOCATION_DEVICE)
            allocations[kept++] = allocations[i];
        else if (allocations[i].taken)
            addresses_give(allocations[i].base, allocations[i].bytes);
    allocation_count = kept;
    pthread_rwlock_unlock(&allocation_lock);
}

/* ---- device memory ---- */

#define ATTEMPTS 16
#define OF_ITS_OWN ((size_t)2 << 20) /* so much is not put beside other allocations */
#define MOST_DOUBLINGS 9             /* of what is allocated to get past somebody's addresses */

/* An allocation that may have to be made again, because the program has memory at its addresses, or
 * a card of another server. What was refused so is kept until the end: it would come again. */
struct attempts {
    bool ordered; /* in `stream`: freed there, too */
    CUstream stream;
    unsigned count, passed;
    CUdeviceptr refused[ATTEMPTS], past[ATTEMPTS];
};

static size_t bytes_to_ask(const struct attempts *attempts, size_t bytes) {
    return attempts->count != 0 && bytes != 0 && bytes < OF_ITS_OWN ? OF_ITS_OWN : bytes;
}

static CUresult end_attempts(struct attempts *attempts, CUresult result) {
    while (attempts->passed != 0) forward_cuMemFree_v2(attempts->past[--attempts->passed]);
    while (attempts->count != 0) {
        CUdeviceptr refused = attempts->refused[--attempts->count];
        if (attempts->ordered)
            forward_cuMemFreeAsync(refused, attempts->stream);
        else
            forward_cuMemFree_v2(refused);
    }
    return result;
}

/* Another server's card may hold as much as it has at the addresses that come next: fill them up,
 * with ever more. In a stream that is captured it would be an error. */
static void pass_by(struct attempts *attempts) {
    unsigned doublings = attempts->count < MOST_DOUBLINGS ? attempts->count : MOST_DOUBLINGS;
    CUdeviceptr *past = &attempts->past[attempts->passed];
    if (!attempts->ordered && attempts->count > 1 &&
        forward_cuMemAlloc_v2(past, OF_ITS_OWN << doublings) == CUDA_SUCCESS)
        attempts->passed++;
}

/* Whether to allocate once more; if not, `result` is the answer, and a good one written down. */
static bool again(struct attempts *attempts, CUresult *result, CUdeviceptr *pointer, size_t bytes) {
    uint64_t context = context_current();
    enum addresses where = ADDRESSES_UNKNOWN;
    if (pointer == NULL) return false;
    if (*result == CUDA_SUCCESS) where = addresses_take(wire_server(context), *pointer, bytes);
    if (where == ADDRESSES_OF_OTHERS) {
        attempts->refused[attempts->count++] = *pointer;
        if (attempts->count < ATTEMPTS) {
            pass_by(attempts);
            return true;
        }
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (*result == CUDA_ERROR_OUT_OF_MEMORY && attempts->count != 0) {
        *pointer = attempts->refused[--attempts->count]; /* the card has no other place for it */
        where = ADDRESSES_UNKNOWN;
        *result = CUDA_SUCCESS;
    }
    if (*result == CUDA_SUCCESS)
        add((struct allocation){.base = *pointer,
                                .bytes = bytes,
                                .context = context,
                                .link = links[wire_server(context)],
                                .kind = ALLOCATION_DEVICE,
                                .taken = where == ADDRESSES_TAKEN});
    *result = end_attempts(attempts, *result);
    return false;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    struct attempts attempts = {.count = 0};
    CUresult result;
    do result = forward_cuMemAlloc_v2(pointer, bytes_to_ask(&attempts, bytes));
    while (again(&attempts, &result, pointer, bytes));
    return result;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                                unsigned int element) {
    struct attempts attempts = {.count = 0};
    CUresult result;
    do result = forward_cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    while (pitch != NULL &&
           again(&attempts, &result, pointer, result == CUDA_SUCCESS ? *pitch * height : 0));
    return result;
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    struct attempts attempts = {.ordered = true, .stream = stream};
    CUresult result;
    do result = forward_cuMemAllocAsync(pointer, bytes_to_ask(&attempts, bytes), stream);
    while (again(&attempts, &result, pointer, bytes));
    return result;
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                     CUstream stream) {
    struct attempts attempts = {.ordered = true, .stream = stream};
    CUresult result;
    do
        result =
            forward_cuMemAllocFromPoolAsync(pointer, bytes_to_ask(&attempts, bytes), pool, stream);
    while (again(&attempts, &result, pointer, bytes));
    return result;
}

API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    CUcontext elsewhere = allocation_elsewhere(link, pointer), before;
    if (elsewhere != NULL) {
        if ((result = cuCtxPushCurrent_v2(elsewhere)) != CUDA_SUCCESS) return result;
        result = cuMemFree_v2(pointer);
        cuCtxPopCurrent_v2(&before);
        return result;
    }
    result = forward_cuMemFree_v2(pointer);
    if (result == CUDA_SUCCESS) forget(link, pointer);
    return result;
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    struct link *link;
    struct allocation a;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (!allocation_find(link, pointer, &a) || a.base != pointer || a.kind != ALLOCATION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    result = forward_cuMemFreeAsync(pointer, stream);
    if (result == CUDA_SUCCESS) forget(link, pointer);
    return result;
}

API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    (void)pointer, (void)bytes, (void)flags;
    return not_supported("cuMemAllocManaged (memory that the host and a remote GPU both see)");
}

/* Fills are posted where the pointer is known to be good; where it is not, the driver is asked, for
 * its very answer. */
static bool good(CUdeviceptr pointer, size_t bytes) {
    struct link *link;
    struct allocation a;
    return context_needed(&link) == CUDA_SUCCESS && allocation_find(link, pointer, &a) &&
           allocation_covers(&a, pointer, bytes);
}

/* After a posted call whose pointer was not known: what became of it. */
static CUresult settled(CUresult result, bool known) {
    struct link *link;
    if (result != CUDA_SUCCESS || known || context_needed(&link) != CUDA_SUCCESS) return result;
    uint32_t before = atomic_load(&link->pending_error);
    CUdevice device; /* any call with a reply brings the error along */
    unsigned flags;
    int active;
    if (cuCtxGetDevice(&device) == CUDA_SUCCESS)
        cuDevicePrimaryCtxGetState(device, &flags, &active);
    return before ? result : (CUresult)atomic_exchange(&link->pending_error, 0);
}

#define FILL(symbol, type, bytes_of)                                                               \
    API CUresult symbol(CUdeviceptr to, type value, size_t count) {                                \
        struct link *link;                                                                         \
        CUresult result = context_needed(&link);                                                   \
        if (result != CUDA_SUCCESS) return result;                                                 \
        if (to % sizeof(type) || count > SIZE_MAX / sizeof(type)) return CUDA_ERROR_INVALID_VALUE; \
        bool known = good(to, count * sizeof(type));                                               \
        return settled(forward_##symbol(to, value, count), known);                                 \
    }                                                                                              \
    API CUresult bytes_of(CUdeviceptr to, type value, size_t count, CUstream stream) {             \
        bool known = count <= SIZE_MAX / sizeof(type) && good(to, count * sizeof(type));           \
        if (known && to % sizeof(type)) return CUDA_ERROR_INVALID_VALUE;                           \
        return settled(forward_##bytes_of(to, value, count, stream), known);                       \
    }
FILL(cuMemsetD8_v2, unsigned char, cuMemsetD8Async)
FILL(cuMemsetD16_v2, unsigned short, cuMemsetD16Async)
FILL(cuMemsetD32_v2, unsigned int, cuMemsetD32Async)

#define FILL2D(symbol, type, async)                                                              \
    API CUresult symbol(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) { \
        struct link *link;                                                                       \
        CUresult result = context_needed(&link);                                                 \
        return result == CUDA_SUCCESS                                                            \
                   ? settled(forward_##symbol(to, pitch, value, width, height), false)           \
                   : result;                                                                     \
    }                                                                                            \
    API CUresult async(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height,    \
                       CUstream stream) {                                                        \
        bool sane = height && width <= pitch / sizeof(type) &&                                   \
                    (height == 1 || pitch <= SIZE_MAX / height);                                 \
        bool known = sane && to % sizeof(type) == 0 && pitch % sizeof(type) == 0 &&              \
                     good(to, pitch * (height - 1) + width * sizeof(type));                      \
        return settled(forward_##async(to, pitch, value, width, height, stream), known);         \
    }
FILL2D(cuMemsetD2D8_v2, unsigned char, cuMemsetD2D8Async)
FILL2D(cuMemsetD2D16_v2, unsigned short, cuMemsetD2D16Async)
FILL2D(cuMemsetD2D32_v2, unsigned int, cuMemsetD2D32Async)

#define FILL_PER_THREAD(symbol, type, async)                            \
    API CUresult symbol(CUdeviceptr to, type value, size_t count) {     \
        CUresult result = async(to, value, count, thread_stream(NULL)); \
        return result;                                                  \
    }
FILL_PER_THREAD(cuMemsetD8_v2_ptds, unsigned char, cuMemsetD8Async)
FILL_PER_THREAD(cuMemsetD16_v2_ptds, unsigned short, cuMemsetD16Async)
FILL_PER_THREAD(cuMemsetD32_v2_ptds, unsigned int, cuMemsetD32Async)
#define FILL2D_PER_THREAD(symbol, type, async)                                                   \
    API CUresult symbol(CUdeviceptr to, size_t pitch, type value, size_t width, size_t height) { \
        return async(to, pitch, value, width, height, thread_stream(NULL));                      \
    }
FILL2D_PER_THREAD(cuMemsetD2D8_v2_ptds, unsigned char, cuMemsetD2D8Async)
FILL2D_PER_THREAD(cuMemsetD2D16_v2_ptds, unsigned short, cuMemsetD2D16Async)
FILL2D_PER_THREAD(cuMemsetD2D32_v2_ptds, unsigned int, cuMemsetD2D32Async)

/* ---- pinned host memory ---- */

static bool map_there(struct link *link, void *pages, size_t bytes, int fd, unsigned flags) {
    struct call call;
    call_start(&call, OP_HOST_MAP);
    call.link = link;
    struct wire_host_map map = {(uint64_t)(uintptr_t)pages, bytes, flags, 0};
    if (call_begin(&call, sizeof map, CALL_WAITS) != CUDA_SUCCESS) return false;
    put_bytes(&call.out, &map, sizeof map);
    /* Should it not arrive: the frame has its number already, so it goes, and is refused there. */
    struct iovec mark = {&(char){'F'}, 1};
    descriptor_send_all(link->fd, &mark, 1, fd, 0);
    CUresult result = call_exchange(&call);
    call_end(&call);
    return result == CUDA_SUCCESS;
}

static void *pages_shared(struct link *link, size_t bytes, unsigned flags) {
    static _Atomic uint64_t next = WIRE_HOST_LOWEST;
    int fd = kernel_memfd("egpu-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return NULL;
    uint64_t at = atomic_fetch_add(&next, bytes + (1u << 21));
    void *pages = MAP_FAILED;
    if (ftruncate(fd, (off_t)bytes) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        pages = mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    if (pages != MAP_FAILED && !map_there(link, pages, bytes, fd, flags)) {
        munmap(pages, bytes);
        pages = MAP_FAILED;
    }
    close(fd);
    return pages == MAP_FAILED ? NULL : pages;
}

#define HOST_FLAGS \
    (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)

API CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0 || flags & ~(unsigned)HOST_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    size_t whole = (bytes + 4095) & ~(size_t)4095;
    if (whole < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    void *pages = link->transport->maps_host_memory ? pages_shared(link, whole, flags) : NULL;
    bool shared = pages != NULL;
    if (pages == NULL)
        pages = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    add((struct allocation){.base = (uint64_t)(uintptr_t)pages,
                            .bytes = bytes,
                            .context = context_current(),
                            .link = link,
                            .kind = ALLOCATION_PINNED,
                            .flags = flags,
                            .shared = shared});
    *pointer = pages;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

API CUresult cuMemFreeHost(void *pointer) {
    struct link *link;
    struct allocation a;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS || pointer == NULL) return result;
    if (!allocation_find(NULL, (uint64_t)(uintptr_t)pointer, &a) || a.kind != ALLOCATION_PINNED ||
        a.base != (uint64_t)(uintptr_t)pointer)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = cuCtxSynchronize()) != CUDA_SUCCESS) return result;
    if (a.shared) {
        struct call call;
        call_start(&call, OP_HOST_UNMAP);
        call.link = a.link;
        struct wire_host_unmap unmap = {a.base};
        if (call_begin(&call, sizeof unmap, CALL_WAITS) == CUDA_SUCCESS) {
            put_bytes(&call.out, &unmap, sizeof unmap);
            call_exchange(&call);
            call_end(&call);
        }
    }
    forget(a.link, a.base);
    munmap(pointer, (a.bytes + 4095) & ~(size_t)4095);
    return CUDA_SUCCESS;
}

#define REGISTER_FLAGS                                                                          \
    (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | \
     CU_MEMHOSTREGISTER_READ_ONLY)

/* Registered memory stays the program's own: copies work as from any memory, the GPU does not see
 * it. */
API CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags) {
    struct link *link;
    struct allocation a;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0 || flags & ~(unsigned)REGISTER_FLAGS)
        return CUDA_ERROR_INVALID_VALUE;
    if (allocation_find(NULL, (uint64_t)(uintptr_t)pointer, &a))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    add((struct allocation){.base = (uint64_t)(uintptr_t)pointer,
                            .bytes = bytes,
                            .context = context_current(),
                            .link = link,
                            .kind = ALLOCATION_REGISTERED,
                            .flags = flags});
    return CUDA_SUCCESS;
}

API CUresult cuMemHostUnregister(void *pointer) {
    struct link *link;
    struct allocation a;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!allocation_find(NULL, (uint64_t)(uintptr_t)pointer, &a) ||
        a.kind != ALLOCATION_REGISTERED || a.base != (uint64_t)(uintptr_t)pointer)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    result = cuCtxSynchronize();
    if (result == CUDA_SUCCESS) forget(a.link, a.base);
    return result;
}

static CUresult host_allocation(const void *pointer, struct allocation *a) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    return allocation_find(NULL, (uint64_t)(uintptr_t)pointer, a) && a->kind != ALLOCATION_DEVICE
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned int flags) {
    struct allocation a;
    CUresult result = host_allocation(pointer, &a);
    if (result != CUDA_SUCCESS) return result;
    if (device == NULL || flags) return CUDA_ERROR_INVALID_VALUE;
    if (!a.shared)
        return not_supported(
            "cuMemHostGetDevicePointer (of memory that the GPU's host does not share)");
    *device = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned int *flags, void *pointer) {
    struct allocation a;
    CUresult result = host_allocation(pointer, &a);
    if (result != CUDA_SUCCESS) return result;
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = a.flags | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

/* ---- what is this pointer? ---- */

static CUresult ask(void *data, CUpointer_attribute attribute, CUdeviceptr pointer, size_t bytes) {
    struct call call;
    call_start(&call, OP_POINTER_ATTRIBUTE);
    struct wire_pointer_attribute question = {pointer, (uint32_t)attribute, 0};
    CUresult result = call_begin(&call, sizeof question, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &question, sizeof question);
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS) get_bytes(&call.in, data, bytes);
    call_end(&call);
    return result;
}

/* Of memory that nobody allocated by name, such as a module's variable: where the card is that the
 * current context's server has it on. */
static CUresult ask_ordinal(int *ordinal, CUdeviceptr pointer) {
    struct handle_entry *current = handle_entry(context_current());
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = ask(ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer, sizeof *ordinal);
    if (result == CUDA_SUCCESS)
        *ordinal += (int)links[wire_server(context_current())]->first_ordinal;
    return result;
}

/* Its context is the current one, if that is of its card. */
static CUresult ask_context(uint64_t *context, CUdeviceptr pointer) {
    int ordinal;
    CUresult result = ask_ordinal(&ordinal, pointer);
    if (result != CUDA_SUCCESS) return result;
    const struct shadow_context *current = handle_entry(context_current())->info;
    if (current == NULL || current->ordinal != ordinal) return CUDA_ERROR_INVALID_VALUE;
    *context = context_current();
    return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    struct allocation a;
    struct link *link = NULL;
    if (context_current()) link = links[wire_server(context_current())];
    bool known = allocation_find(link, pointer, &a) || allocation_find(NULL, pointer, &a);
    bool host = known && a.kind != ALLOCATION_DEVICE;
    struct handle_entry *context = known ? handle_entry(a.context) : NULL;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (!known) return ask_context(data, pointer);
        *(uint64_t *)data = a.context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        if (!known) return ask(data, attribute, pointer, 4);
        *(unsigned *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host) return CUDA_ERROR_INVALID_VALUE;
        *(uint64_t *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        if (!known) return ask_ordinal(data, pointer);
        if (context == NULL || context->info == NULL) return CUDA_ERROR_INVALID_VALUE;
        *(int *)data = ((struct shadow_context *)context->info)->ordinal;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (!known) return ask(data, attribute, pointer, 8);
        *(uint64_t *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        if (!known) return ask(data, attribute, pointer, 8);
        *(uint64_t *)data = a.base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        if (!host && (!known || a.link == link)) return ask(data, attribute, pointer, 8);
        *(size_t *)data = a.bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        if (!known) return ask(data, attribute, pointer, 4);
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        if (!known) return ask(data, attribute, pointer, 4);
        *(unsigned *)data = 1;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    return data == NULL ? CUDA_ERROR_INVALID_VALUE : pointer_attribute(data, attribute, pointer);
}

API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                    void **data, CUdeviceptr pointer) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (count == 0 || attributes == NULL || data == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (data[i] == NULL) return CUDA_ERROR_INVALID_VALUE;
        if (pointer_attribute(data[i], attributes[i], pointer) == CUDA_SUCCESS) continue;
        switch ((int)attributes[i]) { /* nobody's pointer: zeros, and that is no error */
        case CU_POINTER_ATTRIBUTE_CONTEXT:
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: memset(data[i], 0, 8); break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data[i] = -2; break;
        default: memset(data[i], 0, 4);
        }
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                   CUdeviceptr pointer) {
    struct allocation a;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
        !allocation_find(NULL, pointer, &a))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* copies are synchronous towards every observer already */
}
