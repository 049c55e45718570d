/* Allocations, as far as the client knows them, and device memory. The list is enough to tell a
 * good pointer from a bad one without asking the executor, and host memory from device memory. */
#define _GNU_SOURCE
#include "client.h"

static struct allocation *allocations; /* sorted by base, then server */
static size_t allocation_count, allocation_room;
static pthread_rwlock_t allocation_lock = PTHREAD_RWLOCK_INITIALIZER;

/* Return the index of the first one above `pointer`. */
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

/* Return the allocation that contains `pointer`. Several servers may have given the same address:
 * then the one of `link`, if given. */
static struct allocation *find(const struct link *link, uint64_t pointer) {
    for (size_t i = above(pointer); i-- > 0;) {
        struct allocation *a = &allocations[i];
        if (pointer - a->base < a->bytes &&
            (link == NULL || a->link == link || a->kind != ALLOCATION_DEVICE))
            return a;
        /* allocations of one server do not overlap */
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
    if (link_count < 2 || variable_in_use(pointer) || allocation_find(link, pointer, &a) ||
        !allocation_find(NULL, pointer, &a) || a.kind != ALLOCATION_DEVICE)
        return NULL;
    return (CUcontext)(uintptr_t)a.context;
}

bool allocation_add(struct allocation made) {
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

void allocation_forget(const struct link *link, uint64_t base) {
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

typedef bool (*chosen)(const struct allocation *a, uint64_t of);

static void forget_all(chosen gone, uint64_t of) {
    pthread_rwlock_wrlock(&allocation_lock);
    size_t kept = 0;
    for (size_t i = 0; i < allocation_count; i++)
        if (!gone(&allocations[i], of))
            allocations[kept++] = allocations[i];
        else if (allocations[i].taken)
            addresses_give(allocations[i].base, allocations[i].bytes);
    allocation_count = kept;
    pthread_rwlock_unlock(&allocation_lock);
}

static bool in_context(const struct allocation *a, uint64_t context) {
    return a->context == context && a->kind == ALLOCATION_DEVICE;
}

static bool of_image(const struct allocation *a, uint64_t image) { return a->image == image; }

/* Forget a destroyed context's memory. */
void context_forget(uint64_t context) {
    forget_all(in_context, context);
    graph_memory_forget(context);
}

void variables_forget(uint64_t image) { forget_all(of_image, image); }

/* ---- device memory ---- */

#define ATTEMPTS 16
#define OF_ITS_OWN ((size_t)2 << 20) /* this large, it shares no chunk with other allocations */
#define MOST_DOUBLINGS 9             /* of the allocations that skip occupied addresses */

/* An allocation that may have to be repeated, because the program or another server's card has
 * memory at its addresses. A refused one is kept until the end: otherwise it would come again. */
struct attempts {
    bool ordered; /* in `stream`, which also frees it */
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

/* Another server's card may have memory at the following addresses, too: skip them with ever larger
 * allocations. In a stream that is captured this would be an error. */
static void pass_by(struct attempts *attempts) {
    unsigned doublings = attempts->count < MOST_DOUBLINGS ? attempts->count : MOST_DOUBLINGS;
    CUdeviceptr *past = &attempts->past[attempts->passed];
    if (!attempts->ordered && attempts->count > 1 &&
        forward_cuMemAlloc_v2(past, OF_ITS_OWN << doublings) == CUDA_SUCCESS)
        attempts->passed++;
}

/* Return whether to allocate once more. If not, `result` is the answer and a success is noted. */
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
        allocation_add((struct allocation){.base = *pointer,
                                           .bytes = bytes,
                                           .context = context,
                                           .link = links[wire_server(context)],
                                           .kind = ALLOCATION_DEVICE,
                                           .taken = where == ADDRESSES_TAKEN});
    if (*result == CUDA_SUCCESS && attempts->ordered && capturing(attempts->stream))
        graph_memory_take(wire_server(context), *pointer, bytes); /* beyond its end in the stream */
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
    if (result == CUDA_SUCCESS) allocation_forget(link, pointer);
    return result;
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
    struct link *link;
    struct allocation a;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (!allocation_find(link, pointer, &a) || a.base != pointer || a.kind != ALLOCATION_DEVICE ||
        a.image != 0)
        return CUDA_ERROR_INVALID_VALUE;
    result = forward_cuMemFreeAsync(pointer, stream);
    if (result == CUDA_SUCCESS) allocation_forget(link, pointer);
    return result;
}

API CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    (void)pointer, (void)bytes, (void)flags;
    return not_supported("cuMemAllocManaged (memory that the host and a remote GPU both see)");
}

/* Fills are posted if the pointer is known to be valid. If not, the driver is asked, for its own
 * answer. */
static bool good(CUdeviceptr pointer, size_t bytes) {
    struct link *link;
    struct allocation a;
    return context_needed(&link) == CUDA_SUCCESS && allocation_find(link, pointer, &a) &&
           allocation_covers(&a, pointer, bytes);
}

/* Return the result of a posted call whose pointer was not known to be valid. */
static CUresult settled(CUresult result, bool known) {
    struct link *link;
    if (result != CUDA_SUCCESS || known || context_needed(&link) != CUDA_SUCCESS) return result;
    uint32_t before = atomic_load(&link->pending_error);
    CUdevice device; /* any call with a reply brings the error */
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
