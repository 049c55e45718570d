/* Functions of streams and events that do not depend on the default stream: creation, destruction,
 * queries. */
#include "cuda_api.h"
#include "graph.h"

#define LEAST_PRIORITY 0
#define GREATEST_PRIORITY (-5)

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    NEED_CONTEXT(context);
    NEED(out);
    if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    if (priority > LEAST_PRIORITY) priority = LEAST_PRIORITY;
    if (priority < GREATEST_PRIORITY) priority = GREATEST_PRIORITY;
    struct stream *stream;
    CUresult result = stream_create(context, flags, priority, false, &stream);
    if (result == CUDA_SUCCESS) *out = (CUstream)stream;
    return result;
}

API CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
    return cuStreamCreateWithPriority(out, flags, 0);
}

API CUresult cuStreamDestroy(CUstream handle) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_STREAM);
    struct stream *stream = (struct stream *)handle;
    if (stream->legacy) return CUDA_ERROR_INVALID_HANDLE;
    stream_destroy(stream);
    return CUDA_SUCCESS;
}

/* ---- attributes ---- */

static CUresult stream_of(CUstream handle, struct stream **out) {
    NEED_CONTEXT(context);
    return stream_resolve(handle, false, context, out);
}

API CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID which,
                                  const CUstreamAttrValue *value) {
    NEED(value);
    struct stream *stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    struct stream_attributes *is = &stream->attributes;
    pthread_mutex_lock(&stream->lock);
    switch ((int)which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: is->window = value->accessPolicyWindow; break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        if (value->syncPolicy < CU_SYNC_POLICY_AUTO ||
            value->syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            is->policy = value->syncPolicy;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: is->domain = value->memSyncDomain; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: is->domains = value->memSyncDomainMap; break;
    default: result = CUDA_ERROR_INVALID_VALUE; /* only for kernels */
    }
    pthread_mutex_unlock(&stream->lock);
    return result;
}

API CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID which, CUstreamAttrValue *out) {
    NEED(out);
    struct stream *stream;
    CUresult result = stream_of(handle, &stream);
    if (result != CUDA_SUCCESS) return result;
    const struct stream_attributes *is = &stream->attributes;
    pthread_mutex_lock(&stream->lock);
    switch ((int)which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: out->accessPolicyWindow = is->window; break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY: out->syncPolicy = is->policy; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: out->memSyncDomain = is->domain; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: out->memSyncDomainMap = is->domains; break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: out->priority = stream->priority; break;
    default: result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&stream->lock);
    return result;
}

API CUresult cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle) {
    struct stream *to, *from;
    CUresult result = stream_of(to_handle, &to);
    if (result == CUDA_SUCCESS) result = stream_of(from_handle, &from);
    if (result != CUDA_SUCCESS) return result;
    NEED(to->context == from->context);
    pthread_mutex_lock(&from->lock);
    const struct stream_attributes copy = from->attributes;
    pthread_mutex_unlock(&from->lock);
    pthread_mutex_lock(&to->lock);
    to->attributes = copy;
    pthread_mutex_unlock(&to->lock);
    return CUDA_SUCCESS;
}

/* ---- capturing, and events ---- */

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    NEED_INIT();
    NEED(mode && (unsigned)*mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
    *mode = capture_exchange_mode(*mode);
    return CUDA_SUCCESS;
}

API CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    NEED_CONTEXT(context);
    NEED(out);
    if (flags &
        ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event;
    CUresult result = event_create(context, flags, &event);
    if (result == CUDA_SUCCESS) *out = (CUevent)event;
    return result;
}

API CUresult cuEventDestroy(CUevent handle) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_EVENT);
    handle_remove(handle);
    event_unref((struct event *)handle);
    return CUDA_SUCCESS;
}

API CUresult cuEventQuery(CUevent handle) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_EVENT);
    struct event *event = (struct event *)handle;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    CUresult allowed = capture_unsafe_call();
    if (allowed != CUDA_SUCCESS) return allowed;
    context_look(event->context);
    int error = atomic_load(&event->context->error);
    if (error != CUDA_SUCCESS) return (CUresult)error;
    return event_done(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API CUresult cuEventSynchronize(CUevent handle) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_EVENT);
    struct event *event = (struct event *)handle;
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    event_wait(event, event_recorded(event));
    print_flush(event->context);
    pool_synchronized(event->context->device);
    return (CUresult)atomic_load(&event->context->error);
}

static CUresult elapsed(float *milliseconds, CUevent first, CUevent second) {
    NEED_INIT();
    NEED(milliseconds);
    NEED_HANDLE(first, HANDLE_EVENT);
    NEED_HANDLE(second, HANDLE_EVENT);
    struct event *start = (struct event *)first;
    struct event *end = (struct event *)second;
    int error = atomic_load(&start->context->error);
    if (error != CUDA_SUCCESS) return (CUresult)error;
    if ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
    if (event_recorded(start) == 0 || event_recorded(end) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (!event_done(start) || !event_done(end)) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(event_timestamp(end) - event_timestamp(start)) / 1e6);
    return CUDA_SUCCESS;
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return elapsed(milliseconds, start, end);
}
#undef cuEventElapsedTime
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end);
API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return elapsed(milliseconds, start, end);
}
