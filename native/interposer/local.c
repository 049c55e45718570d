/* Heaps and local memory, which a context keeps until it ends.
 *
 * The driver takes them when a kernel first needs them. They are charged by its rule when a limit
 * is set, when a function is looked up, and when a library's kernel is first launched. Local memory
 * is there for all threads that can be resident, and as much for each as the stack limit says or
 * the most demanding kernel ever needed, whichever is more.
 */
#include "interposer.h"

#include <stdlib.h>

enum {
    LIMITS = CU_LIMIT_MALLOC_HEAP_SIZE + 1, /* those that take memory are the first */
    HANDLE_BITS = 56,                       /* of a table key; above them lies the limit */
};

/* Of each context whose limit was set or of which a function was seen. Under the lock of loads. */
static struct kept {
    struct kept *next;
    CUcontext context;
    size_t first[LIMITS]; /* what a context begins with is part of what it costs */
    size_t largest_local; /* bytes of a thread that a kernel of it needs */
} *all_kept;

void local_forget(void) { all_kept = NULL; /* perhaps half-changed: left behind */ }

static struct kept *kept_of(CUcontext context) {
    struct kept *kept = all_kept;
    while (kept != NULL && kept->context != context) kept = kept->next;
    if (kept != NULL || (kept = calloc(1, sizeof *kept)) == NULL) return kept;
    kept->context = context;
    for (int limit = 0; limit < LIMITS; limit++)
        REAL(cuCtxGetLimit)(&kept->first[limit], (CUlimit)limit);
    kept->next = all_kept;
    return all_kept = kept;
}

void local_context_gone(CUcontext context) {
    struct kept **link = &all_kept;
    while (*link != NULL && (*link)->context != context) link = &(*link)->next;
    struct kept *gone = *link;
    if (gone == NULL) return;
    *link = gone->next;
    free(gone);
}

/* All threads that the current device can have at one time. */
static uint64_t resident_threads(void) {
    CUdevice ordinal;
    int processors = 0, threads = 0;
    if (REAL(cuCtxGetDevice) == NULL || REAL(cuDeviceGetAttribute) == NULL ||
        REAL(cuCtxGetDevice)(&ordinal) != CUDA_SUCCESS ||
        REAL(cuDeviceGetAttribute)(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                   ordinal) != CUDA_SUCCESS ||
        REAL(cuDeviceGetAttribute)(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
                                   ordinal) != CUDA_SUCCESS)
        return 0;
    return (uint64_t)processors * (uint64_t)threads;
}

/* Bytes of the card that one byte of a limit stands for; 0: none. */
static uint64_t bytes_per(CUlimit limit) {
    switch ((int)limit) {
    case CU_LIMIT_STACK_SIZE: return resident_threads();
    case CU_LIMIT_PRINTF_FIFO_SIZE:
    case CU_LIMIT_MALLOC_HEAP_SIZE: return 1;
    default: return 0;
    }
}

/* What a limit of this value takes of the card. */
static uint64_t bytes_at(const struct kept *kept, CUlimit limit, size_t value) {
    if (limit == CU_LIMIT_STACK_SIZE && value < kept->largest_local) value = kept->largest_local;
    size_t first = kept->first[limit];
    return value > first ? charge_of(multiply_bytes(value - first, bytes_per(limit))) : 0;
}

/* Charges the context this much for the limit, neither more nor less. False: there is no room for
 * it, which is no matter when it is held already. */
static bool charge(const struct kept *kept, int device, CUlimit limit, uint64_t bytes,
                   bool is_held) {
    struct holding holding;
    uint64_t key = (uint64_t)(uintptr_t)kept->context | (uint64_t)limit << HANDLE_BITS;
    uint64_t before = table_look(HOLDING_CONTEXT, key, &holding) ? holding.bytes : 0;
    if (bytes == before) return true;
    if (bytes > before && !module_reserve(device, bytes - before)) {
        if (!is_held) return false;
        account_force(device, EGPU_MEMORY_MODULE, bytes - before);
    }
    table_take(HOLDING_CONTEXT, key, &holding);
    if (bytes < before) account_release(device, EGPU_MEMORY_MODULE, before - bytes);
    return bytes == 0 || module_book(HOLDING_CONTEXT, key, bytes, kept->context, device);
}

EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    CUcontext context;
    size_t before = 0, now = 0;
    if (!slice_open()) return REFUSED;
    int device = device_current(&context);
    if (context == NULL || bytes_per(limit) == 0 || REAL(cuCtxGetLimit) == NULL)
        return REAL(cuCtxSetLimit)(limit, value);
    lock_take(&loading);
    const struct kept *kept = device < 0 ? NULL : kept_of(context);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (kept != NULL && REAL(cuCtxGetLimit)(&before, limit) == CUDA_SUCCESS &&
        charge(kept, device, limit, bytes_at(kept, limit, value > before ? value : before),
               false)) {
        result = REAL(cuCtxSetLimit)(limit, value);
        /* it may be refused, or rounded */
        if (REAL(cuCtxGetLimit)(&now, limit) == CUDA_SUCCESS)
            charge(kept, device, limit, bytes_at(kept, limit, now), true);
    }
    lock_drop(&loading);
    return result;
}

CUresult local_settle(CUfunction function) {
    CUcontext context;
    int bytes = 0, device = device_current(&context);
    size_t stack = 0;
    if (context == NULL || REAL(cuFuncGetAttribute) == NULL || REAL(cuCtxGetLimit) == NULL ||
        REAL(cuFuncGetAttribute)(&bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function) !=
            CUDA_SUCCESS ||
        REAL(cuCtxGetLimit)(&stack, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS || bytes <= 0)
        return CUDA_SUCCESS;
    if (device < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    lock_take(&loading);
    struct kept *kept = kept_of(context);
    size_t largest = kept == NULL ? 0 : kept->largest_local;
    bool fits = kept != NULL;
    if (fits && (size_t)bytes > largest) {
        kept->largest_local = (size_t)bytes;
        fits = charge(kept, device, CU_LIMIT_STACK_SIZE, bytes_at(kept, CU_LIMIT_STACK_SIZE, stack),
                      false);
        if (!fits) kept->largest_local = largest;
    }
    lock_drop(&loading);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuModuleGetFunction)(function, module, name);
    return result == CUDA_SUCCESS ? local_settle(*function) : result;
}

EXPORT CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module) {
    if (!slice_open()) return REFUSED;
    unsigned all = 0;
    CUresult result = REAL(cuModuleEnumerateFunctions)(functions, count, module);
    if (result == CUDA_SUCCESS && REAL(cuModuleGetFunctionCount) != NULL)
        result = REAL(cuModuleGetFunctionCount)(&all, module);
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count && i < all; i++)
        result = local_settle(functions[i]);
    return result;
}
