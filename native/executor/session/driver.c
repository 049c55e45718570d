/* The driver of this session: its functions, what a client is told of its cards, and which context
 * is current in which of our threads. */
#define _GNU_SOURCE
#include "executor/session/session.h"

#include <dlfcn.h>
#include <stdio.h>

static driver_pointer functions[EGPU_DRIVER_FUNCTIONS];
static _Thread_local uint64_t thread_context; /* what this thread has made current */
static _Thread_local bool context_gone;       /* it is no more: nothing is current in its place */
static _Atomic unsigned contexts_ended; /* then what other threads have made current may be gone */
static _Thread_local unsigned ended_seen;

driver_pointer driver_function(egpu_driver_id id) { return functions[id]; }
driver_pointer driver_replace(egpu_driver_id id, driver_pointer ours) {
    driver_pointer drivers = functions[id];
    functions[id] = ours;
    return drivers;
}
uint64_t driver_context(void) { return thread_context; }
const char *driver_path(void) { return session.settings->driver; }

bool driver_load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        fprintf(stderr, "egpu-executor: %s\n", dlerror());
        return false;
    }
    for (int id = 0; id < EGPU_DRIVER_FUNCTIONS; id++) {
        /* the interposer's, where it has one */
        void *symbol = dlsym(library, egpu_driver_functions[id].symbol);
        memcpy(&functions[id], &symbol, sizeof symbol);
    }
    CUresult result =
        functions[EGPU_FN_cuInit] == NULL ? CUDA_ERROR_NOT_FOUND : DRIVER(cuInit, unsigned)(0);
    if (result != CUDA_SUCCESS)
        fprintf(stderr, "egpu-executor: cuInit of %s: error %d\n", path, (int)result);
    return result == CUDA_SUCCESS;
}

static void put_device(struct writer *out, CUdevice ordinal) {
    struct wire_device device = {.attribute_count = WIRE_ATTRIBUTES};
    int32_t attributes[WIRE_ATTRIBUTES];
    CUuuid uuid = {{0}};
    size_t total = 0;
    DRIVER(cuDeviceTotalMem_v2, size_t *, CUdevice)(&total, ordinal);
    if (functions[EGPU_FN_cuDeviceGetUuid_v2])
        DRIVER(cuDeviceGetUuid_v2, CUuuid *, CUdevice)(&uuid, ordinal);
    else
        DRIVER(cuDeviceGetUuid, CUuuid *, CUdevice)(&uuid, ordinal);
    DRIVER(cuDeviceGetName, char *, int, CUdevice)(device.name, sizeof device.name, ordinal);
    DRIVER(cuDeviceGetPCIBusId, char *, int, CUdevice)(device.pci, sizeof device.pci, ordinal);
    CUresult (*attribute)(int *, CUdevice_attribute, CUdevice) =
        DRIVER(cuDeviceGetAttribute, int *, CUdevice_attribute, CUdevice);
    for (int a = 0; a < (int)WIRE_ATTRIBUTES; a++) {
        int value;
        bool known = a != 0 && attribute(&value, (CUdevice_attribute)a, ordinal) == CUDA_SUCCESS;
        attributes[a] = known ? value : WIRE_NO_ATTRIBUTE;
    }
    device.total_bytes = total;
    memcpy(device.uuid, uuid.bytes, sizeof device.uuid);
    device.major = (uint32_t)attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    device.minor = (uint32_t)attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    put_bytes(out, &device, sizeof device);
    put_bytes(out, attributes, sizeof attributes);
}

bool driver_snapshot(struct writer *out) {
    struct wire_snapshot is = {0};
    int count = 0, version = 0;
    if (DRIVER(cuDeviceGetCount, int *)(&count) != CUDA_SUCCESS ||
        DRIVER(cuDriverGetVersion, int *)(&version) != CUDA_SUCCESS)
        return false;
    is.device_count = count > (int)WIRE_MAX_DEVICES ? WIRE_MAX_DEVICES : (uint32_t)count;
    is.driver_version = (uint32_t)version;
    put_bytes(out, &is, sizeof is);
    for (int i = 0; i < (int)is.device_count; i++) put_device(out, i);
    return !out->bad;
}

/* Empties this thread's stack of contexts. Setting none takes away the uppermost only, and the one
 * below would serve calls that have none. */
static void no_context(void) {
    CUcontext context = NULL;
    while (DRIVER(cuCtxGetCurrent, CUcontext *)(&context) == CUDA_SUCCESS && context != NULL)
        if (DRIVER(cuCtxPopCurrent_v2, CUcontext *)(&context) != CUDA_SUCCESS) break;
    thread_context = 0;
    context_gone = false;
}

static void make_current(uint64_t handle) {
    unsigned ended = atomic_load_explicit(&contexts_ended, memory_order_relaxed);
    if (thread_context == handle && ended_seen == ended) return;
    ended_seen = ended;
    CUresult bad = CUDA_SUCCESS;
    CUcontext context = (CUcontext)(uintptr_t)handle_value(KIND_context, handle, &bad);
    if (DRIVER(cuCtxSetCurrent, CUcontext)(bad == CUDA_SUCCESS ? context : NULL) != CUDA_SUCCESS)
        DRIVER(cuCtxSetCurrent, CUcontext)(NULL);
    thread_context = handle;
    context_gone = handle != 0 && bad != CUDA_SUCCESS;
}

/* What a thread may do while streams capture goes by the program's thread, not by ours. */
static void take_mode(CUstreamCaptureMode mode) {
    static _Thread_local CUstreamCaptureMode mine = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstreamCaptureMode before = mode;
    if (mode == mine || !driver_function(EGPU_FN_cuThreadExchangeStreamCaptureMode)) return;
    if (DRIVER(cuThreadExchangeStreamCaptureMode, CUstreamCaptureMode *)(&before) == CUDA_SUCCESS)
        mine = mode;
}

void driver_enter(uint64_t context) {
    make_current(context);
    take_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
}
void driver_leave(void) { no_context(); }

CUresult driver_run(const struct operation *operation, struct task *task) {
    make_current(task->context);
    take_mode(task->mode);
    driver_cool_before(task->header.op);
    CUresult result = operation->run(task);
    driver_cool_after(task->header.op);
    if (result == CUDA_ERROR_INVALID_CONTEXT && context_gone)
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED; /* there was one */
    switch (task->header.op) {                    /* these change what is current */
    case OP_cuCtxDestroy_v2:
    case OP_cuDevicePrimaryCtxRelease_v2:
        atomic_fetch_add(&contexts_ended, 1);
        bulk_context_ended(); /* fall through */
    case OP_cuCtxCreate_v2:
    case OP_cuCtxCreate_v3: no_context(); break;
    default: break;
    }
    return result;
}
