/* Current contexts of each thread, primary contexts, and the stream that each thread has to
 * itself. */
#define _GNU_SOURCE
#include "client.h"

#define STACK 32

static _Thread_local struct {
    uint64_t stack[STACK];
    int depth;
} current;

struct own_stream {
    uint64_t context;
    CUstream stream;
    struct own_stream *next;
};
static _Thread_local struct own_stream *own_streams;
static pthread_key_t own_streams_key;
static pthread_once_t own_streams_once = PTHREAD_ONCE_INIT;

_Thread_local uint64_t context_now;

/* Set how many contexts are on this thread's stack. */
static void set_depth(int depth) {
    current.depth = depth;
    context_now = depth ? current.stack[depth - 1] : 0;
}

CUresult context_needed(struct link **link) {
    uint64_t context = context_current();
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (context == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (handle_entry(context) == NULL) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *link = links[wire_server(context)];
    return CUDA_SUCCESS;
}

static struct shadow_context *current_shadow(void) {
    struct handle_entry *entry = handle_entry(context_current());
    return entry == NULL ? NULL : entry->info;
}

CUresult context_error(void) {
    struct shadow_context *shadow = current_shadow();
    return shadow == NULL ? CUDA_SUCCESS
                          : (CUresult)atomic_load_explicit(&shadow->error, memory_order_relaxed);
}

void context_failed(CUresult result) {
    /* the driver documents that these errors make the process's context unusable */
    switch ((int)result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ECC_UNCORRECTABLE: break;
    default: return;
    }
    struct shadow_context *shadow = current_shadow();
    if (shadow != NULL) atomic_store(&shadow->error, (int)result);
}

/* ---- devices ---- */

CUresult call_device(struct call *call, CUdevice ordinal, uint64_t *wire) {
    unsigned local;
    struct link *link = link_of_device(ordinal, &local);
    if (link == NULL || (call->link != NULL && call->link != link))
        return CUDA_ERROR_INVALID_DEVICE;
    call->link = link;
    *wire = local;
    return CUDA_SUCCESS;
}

static CUresult locate(struct call *call, CUmemLocation *location) {
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_SUCCESS;
    uint64_t local = 0;
    if (call_device(call, location->id, &local) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
    location->id = (int)local;
    return CUDA_SUCCESS;
}

CUresult call_locate_CUmemLocation(struct call *call, const CUmemLocation *from,
                                   CUmemLocation *to) {
    *to = *from;
    return locate(call, to);
}

CUresult call_locate_CUmemAllocationProp(struct call *call, const CUmemAllocationProp *from,
                                         CUmemAllocationProp *to) {
    *to = *from;
    to->win32HandleMetaData = NULL;
    return locate(call, &to->location);
}

CUresult call_locate_CUmemAccessDesc(struct call *call, const CUmemAccessDesc *from,
                                     CUmemAccessDesc *to) {
    *to = *from;
    return locate(call, &to->location);
}

CUresult call_locate_CUmemPoolProps(struct call *call, const CUmemPoolProps *from,
                                    CUmemPoolProps *to) {
    *to = *from;
    to->win32SecurityAttributes = NULL;
    return locate(call, &to->location);
}

/* ---- contexts ---- */

static CUresult check(CUcontext context) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    uint64_t handle = (uint64_t)(uintptr_t)context;
    return wire_kind_of(handle) == KIND_context && handle_entry(handle) != NULL
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult push(uint64_t context) {
    if (current.depth == STACK) return CUDA_ERROR_INVALID_VALUE;
    current.stack[current.depth] = context;
    set_depth(current.depth + 1);
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CUresult result = check(context);
    return result == CUDA_SUCCESS ? push((uint64_t)(uintptr_t)context) : result;
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (current.depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t popped = context_now;
    set_depth(current.depth - 1);
    if (context != NULL) *context = (CUcontext)(uintptr_t)popped;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (context == NULL) {
        if (current.depth) set_depth(current.depth - 1);
        return CUDA_SUCCESS;
    }
    if ((result = check(context)) != CUDA_SUCCESS) return result;
    int depth = current.depth ? current.depth : 1;
    current.stack[depth - 1] = (uint64_t)(uintptr_t)context;
    set_depth(depth);
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)(uintptr_t)context_current();
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = context == NULL ? context_current() : (uint64_t)(uintptr_t)context;
    struct handle_entry *entry = handle_entry(handle);
    if (entry == NULL && context == NULL && handle != 0) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (entry == NULL || wire_kind_of(handle) != KIND_context || entry->info == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = ((struct shadow_context *)entry->info)->ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) { return cuCtxGetDevice_v2(device, NULL); }

static CUresult remember(CUcontext context, CUdevice ordinal) {
    struct handle_entry *entry = handle_entry((uint64_t)(uintptr_t)context);
    if (entry == NULL) return CUDA_ERROR_CONTEXT_IS_DESTROYED; /* destroyed by another thread */
    struct shadow_context *shadow = malloc(sizeof *shadow);
    if (shadow == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *shadow = (struct shadow_context){.ordinal = ordinal};
    entry->info = shadow;
    return CUDA_SUCCESS;
}

API CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice ordinal) {
    /* if it cannot become current it is not made: the program could not destroy it */
    if (call_ready() == CUDA_SUCCESS &&
        (current.depth == STACK || flags & ~(unsigned)CU_CTX_FLAGS_MASK))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = forward_cuCtxCreate_v2(context, flags, ordinal);
    if (result == CUDA_SUCCESS) result = remember(*context, ordinal);
    return result == CUDA_SUCCESS ? push((uint64_t)(uintptr_t)*context) : result;
}

API CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *parameters, int count,
                            unsigned int flags, CUdevice ordinal) {
    if (parameters != NULL || count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return cuCtxCreate_v2(context, flags, ordinal);
}

API CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned int flags,
                            CUdevice ordinal) {
    if (parameters != NULL && (parameters->numExecAffinityParams || parameters->cigParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuCtxCreate_v2(context, flags, ordinal);
}

/* Primary contexts are counted here: the executor holds one reference for the whole program. */
static struct {
    CUcontext context;
    unsigned references;
} primary[MAX_SERVERS * WIRE_MAX_DEVICES];
static pthread_mutex_t primary_lock = PTHREAD_MUTEX_INITIALIZER;

API CUresult cuCtxDestroy_v2(CUcontext context) {
    CUresult result = check(context);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&primary_lock);
    for (unsigned i = 0; i < MAX_SERVERS * WIRE_MAX_DEVICES; i++)
        if (primary[i].context == context && primary[i].references)
            result = CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_unlock(&primary_lock);
    if (result != CUDA_SUCCESS) return result;
    if (context_current() == (uint64_t)(uintptr_t)context) set_depth(current.depth - 1);
    result = forward_cuCtxDestroy_v2(context);
    if (result == CUDA_SUCCESS) {
        context_forget((uint64_t)(uintptr_t)context);
        handles_end((uint64_t)(uintptr_t)context);
    }
    return result;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
    unsigned local;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (link_of_device(ordinal, &local) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary_lock);
    if (primary[ordinal].references == 0) {
        result = forward_cuDevicePrimaryCtxRetain(&primary[ordinal].context, ordinal);
        if (result == CUDA_SUCCESS) result = remember(primary[ordinal].context, ordinal);
    }
    if (result == CUDA_SUCCESS) {
        primary[ordinal].references++;
        *context = primary[ordinal].context;
    }
    pthread_mutex_unlock(&primary_lock);
    return result;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    unsigned local;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (link_of_device(ordinal, &local) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&primary_lock);
    if (primary[ordinal].references == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else if (--primary[ordinal].references == 0) {
        result = forward_cuDevicePrimaryCtxRelease_v2(ordinal);
        uint64_t context = (uint64_t)(uintptr_t)primary[ordinal].context;
        context_forget(context);
        handles_end(context);
        handle_drop(context);
    }
    pthread_mutex_unlock(&primary_lock);
    return result;
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    CUresult result = forward_cuDevicePrimaryCtxReset_v2(ordinal);
    pthread_mutex_lock(&primary_lock);
    if (result == CUDA_SUCCESS && primary[ordinal].references) {
        uint64_t context = (uint64_t)(uintptr_t)primary[ordinal].context;
        unsigned local;
        context_forget(context);
        handles_end(context);
        struct shadow_context *shadow = handle_entry(context) ? handle_entry(context)->info : NULL;
        if (shadow != NULL) atomic_store(&shadow->error, 0);
        struct link *link = link_of_device(ordinal, &local);
        if (link != NULL) atomic_store(&link->pending_error, 0);
    }
    pthread_mutex_unlock(&primary_lock);
    return result;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    return cuDevicePrimaryCtxRelease_v2(ordinal);
}
API CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
    return cuDevicePrimaryCtxReset_v2(ordinal);
}
API CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags) {
    return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

/* ---- per-thread default streams ---- */

static void drop_streams(void *list) {
    for (struct own_stream *own = list, *next; own != NULL; own = next) {
        next = own->next;
        if (handle_entry(own->context) != NULL &&
            handle_entry((uint64_t)(uintptr_t)own->stream) != NULL)
            forward_cuStreamDestroy_v2(own->stream);
        free(own);
    }
}

static void make_key(void) { pthread_key_create(&own_streams_key, drop_streams); }

CUstream thread_stream(CUstream stream) {
    uint64_t handle = (uint64_t)(uintptr_t)stream, context = context_current();
    if (handle != 0 && handle != 2) return stream;
    if (context == 0) return NULL;
    for (struct own_stream *own = own_streams; own != NULL; own = own->next)
        if (own->context == context && handle_entry((uint64_t)(uintptr_t)own->stream) != NULL)
            return own->stream;
    struct own_stream *own = malloc(sizeof *own);
    if (own == NULL || forward_cuStreamCreate(&own->stream, CU_STREAM_DEFAULT) != CUDA_SUCCESS) {
        free(own);
        return NULL;
    }
    own->context = context;
    own->next = own_streams;
    own_streams = own;
    pthread_once(&own_streams_once, make_key);
    pthread_setspecific(own_streams_key, own_streams);
    return own->stream;
}
