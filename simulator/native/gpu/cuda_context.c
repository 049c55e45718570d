/* Primary contexts and cuCtx*. */
#include "cuda_api.h"

#define CONTEXT_FLAGS (CU_CTX_FLAGS_MASK)

/* ---- primary contexts ---- */

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    struct context *context;
    CUresult result = primary_retain(device, &context);
    if (result == CUDA_SUCCESS) *out = (CUcontext)context;
    return result;
}

static CUresult release_primary(CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    return primary_release(device);
}

static CUresult reset_primary(CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    return primary_reset(device);
}

static CUresult set_primary_flags(CUdevice ordinal, unsigned flags) {
    NEED_DEVICE(device, ordinal);
    if (flags & ~(unsigned)CONTEXT_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    device->primary_flags = flags;
    if (device->primary) device->primary->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) { return release_primary(ordinal); }
API CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) { return reset_primary(ordinal); }
API CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags) {
    return set_primary_flags(ordinal, flags);
}
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuDevicePrimaryCtxSetFlags
API CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal);
API CUresult cuDevicePrimaryCtxReset(CUdevice ordinal);
API CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags);
API CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) { return release_primary(ordinal); }
API CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) { return reset_primary(ordinal); }
API CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags) {
    return set_primary_flags(ordinal, flags);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active) {
    NEED(flags && active);
    NEED_DEVICE(device, ordinal);
    *flags = device->primary_flags;
    *active = device->primary_refs > 0;
    return CUDA_SUCCESS;
}

/* ---- other contexts ---- */

static CUresult create(CUcontext *out, unsigned flags, CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    if (flags & ~(unsigned)CONTEXT_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    struct context *context;
    CUresult result = context_create(device, flags, false, &context);
    if (result != CUDA_SUCCESS) return result;
    if ((result = context_push(context)) != CUDA_SUCCESS) {
        context_destroy(context);
        return result;
    }
    *out = (CUcontext)context;
    return CUDA_SUCCESS;
}

API CUresult cuCtxCreate(CUcontext *out, CUctxCreateParams *params, unsigned int flags,
                         CUdevice ordinal) {
    if (params && (params->numExecAffinityParams || params->cigParams))
        return engine_unsupported("cuCtxCreate with an affinity or for graphics",
                                  "create a plain context");
    return create(out, flags, ordinal);
}

API CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *params, int count,
                            unsigned int flags, CUdevice ordinal);
API CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *params, int count,
                            unsigned int flags, CUdevice ordinal) {
    if (params || count) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(out, flags, ordinal);
}

API CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice ordinal);
API CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice ordinal) {
    return create(out, flags, ordinal);
}

API CUresult cuCtxDestroy(CUcontext handle) {
    NEED_INIT();
    struct context *context;
    CUresult result = context_check(handle, &context);
    if (result != CUDA_SUCCESS) return result;
    if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (context == context_current()) {
        struct context *popped;
        context_pop(&popped);
    }
    result = context_destroy(context);
    if (result == CUDA_SUCCESS) handle_remove(context);
    return result;
}

API CUresult cuCtxPushCurrent(CUcontext handle) {
    NEED_INIT();
    struct context *context;
    CUresult result = context_check(handle, &context);
    return result == CUDA_SUCCESS ? context_push(context) : result;
}

API CUresult cuCtxPopCurrent(CUcontext *out) {
    NEED_INIT();
    struct context *context;
    CUresult result = context_pop(&context);
    if (result == CUDA_SUCCESS && out) *out = (CUcontext)context;
    return result;
}

API CUresult cuCtxSetCurrent(CUcontext handle) {
    NEED_INIT();
    struct context *context = NULL;
    if (handle) {
        CUresult result = context_check(handle, &context);
        if (result != CUDA_SUCCESS) return result;
    }
    context_set(context);
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *out) {
    NEED_INIT();
    NEED(out);
    *out = (CUcontext)context_current();
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *out) {
    NEED_INIT();
    NEED(out);
    struct context *context = context_current();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!atomic_load(&context->alive)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = context->device->ordinal;
    return CUDA_SUCCESS;
}

/* NULL means the current context. */
static CUresult context_or_current(CUcontext handle, struct context **out) {
    NEED_INIT();
    if (handle) return context_check(handle, out);
    *out = context_current();
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext handle) {
    NEED(out);
    struct context *context;
    CUresult result = context_or_current(handle, &context);
    if (result == CUDA_SUCCESS) *out = context->device->ordinal;
    return result;
}

API CUresult cuProfilerStart(void) {
    NEED_CONTEXT(context);
    (void)context;
    return CUDA_SUCCESS;
}

API CUresult cuProfilerStop(void) { return cuProfilerStart(); }

API CUresult cuCtxSynchronize(void) {
    NEED_CONTEXT(context);
    return context_synchronize(context);
}

API CUresult cuCtxSynchronize_v2(CUcontext handle) {
    struct context *context;
    CUresult result = context_or_current(handle, &context);
    return result == CUDA_SUCCESS ? context_synchronize(context) : result;
}

API CUresult cuCtxGetFlags(unsigned int *flags) {
    NEED_CONTEXT(context);
    NEED(flags);
    *flags = context->flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetFlags(unsigned int flags) {
    NEED_CONTEXT(context);
    if (flags & ~(unsigned)CONTEXT_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    context->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
    NEED(id);
    struct context *context;
    CUresult result = context_or_current(handle, &context);
    if (result == CUDA_SUCCESS) *id = context->id;
    return result;
}

API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
    NEED(version);
    struct context *context;
    CUresult result = context_or_current(handle, &context);
    if (result == CUDA_SUCCESS) *version = 3020;
    return result;
}

/* ---- limits, and settings that are stored without effect ---- */

API CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
    NEED_CONTEXT(context);
    NEED(value);
    if ((unsigned)limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
    NEED_CONTEXT(context);
    if ((unsigned)limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    return context_set_limit(context, limit, value);
}

API CUresult cuCtxGetCacheConfig(CUfunc_cache *config) {
    NEED_CONTEXT(context);
    NEED(config);
    *config = context->cache_config;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
    NEED_CONTEXT(context);
    context->cache_config = config;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config) {
    NEED_CONTEXT(context);
    NEED(config);
    *config =
        context->shared_config ? context->shared_config : CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
    NEED_CONTEXT(context);
    context->shared_config = config;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    NEED_CONTEXT(context);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

API CUresult cuCtxResetPersistingL2Cache(void) {
    NEED_CONTEXT(context);
    return CUDA_SUCCESS;
}
