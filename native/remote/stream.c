/* Streams, events, and the program's functions that streams call. The functions run here, in a
 * thread of their own, while the stream on the executor waits for them. */
#define _GNU_SOURCE
#include "client.h"

#include <stdio.h>
#include <unistd.h>

/* A stream that waits for us must not fill up and block the executor: at most this many calls run
 * ahead. */
#define AHEAD_OF_CALLBACKS 256

struct callback {
    uint64_t id; /* of the call */
    bool kept;   /* in a graph, which calls it at each launch */
    CUhostFn function;
    CUstreamCallback with_status;
    CUstream stream;
    void *data;
    struct callback *next;
};

struct due {
    struct link *link;
    uint64_t number;
    struct callback *callback;
    CUresult status;
    struct due *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t something = PTHREAD_COND_INITIALIZER;
static struct callback *expected;
static struct due *due, **due_end = &due;
static uint64_t next_id = 1;
static bool runner_started, server_started;

void callback_arrived(struct link *link, uint64_t number, const struct wire_callback *said) {
    struct due *made = malloc(sizeof *made);
    pthread_mutex_lock(&lock);
    struct callback **at = &expected;
    while (*at != NULL && (*at)->id != said->id) at = &(*at)->next;
    if (made != NULL && *at != NULL) {
        *made = (struct due){link, number, *at, (CUresult)said->status, NULL};
        if (!(*at)->kept) *at = (*at)->next;
        *due_end = made;
        due_end = &made->next;
        pthread_cond_broadcast(&something);
    } else {
        free(made); /* came twice */
    }
    pthread_mutex_unlock(&lock);
}

static void *run_callbacks(void *nothing) {
    (void)nothing;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (due == NULL) pthread_cond_wait(&something, &lock);
        struct due *now = due;
        if ((due = now->next) == NULL) due_end = &due;
        pthread_mutex_unlock(&lock);
        struct callback *callback = now->callback;
        if (callback->function != NULL)
            callback->function(callback->data);
        else
            callback->with_status(callback->stream, now->status, callback->data);
        link_callback_done(now->link, now->number);
        if (!callback->kept) {
            atomic_fetch_sub(&now->link->callbacks, 1);
            free(callback);
        }
        free(now);
    }
    return NULL;
}

/* Functions of graphs may be called at any time, any number of times. */
static bool link_calls_back(struct link *link) {
    return (atomic_load(&link->callbacks) || atomic_load(&link->graphs_call)) &&
           !atomic_load(&link->dead);
}

/* Read while callbacks are outstanding: no other thread may be waiting for a reply. */
static void *serve(void *nothing) {
    (void)nothing;
    for (;;) {
        pthread_mutex_lock(&lock);
        for (;;) {
            bool outstanding = false;
            for (unsigned i = 0; i < link_count; i++) outstanding |= link_calls_back(links[i]);
            if (outstanding) break;
            pthread_cond_wait(&something, &lock);
        }
        pthread_mutex_unlock(&lock);
        for (unsigned i = 0; i < link_count; i++)
            if (link_calls_back(links[i])) link_serve(links[i]);
    }
    return NULL;
}

static bool start(bool *started, void *(*body)(void *)) {
    pthread_t thread;
    if (!*started && pthread_create(&thread, NULL, body, NULL) == 0) {
        pthread_detach(thread);
        *started = true;
    }
    return *started;
}

/* Register a callback, which the executor may name from now on. */
static CUresult expect(struct link *link, struct callback made, uint64_t *id) {
    struct callback *callback = malloc(sizeof *callback);
    if (callback == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    bool ready = start(&runner_started, run_callbacks) && start(&server_started, serve);
    made.id = *id = next_id++;
    made.next = expected;
    *callback = made;
    if (ready) {
        expected = callback;
        if (made.kept)
            atomic_store(&link->graphs_call, true);
        else
            atomic_fetch_add(&link->callbacks, 1);
        atomic_store(&link->concurrent, true);
        pthread_cond_broadcast(&something);
    }
    pthread_mutex_unlock(&lock);
    if (ready) return CUDA_SUCCESS;
    free(callback);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult callback_keep(struct link *link, CUhostFn function, void *data, uint64_t *id) {
    return expect(link, (struct callback){.kept = true, .function = function, .data = data}, id);
}

static CUresult enqueue(CUstream stream, CUhostFn function, CUstreamCallback with_status,
                        void *data) {
    struct call call;
    call_start(&call, OP_HOST_CALLBACK);
    struct wire_host_callback message = {.with_status = with_status != NULL};
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS)
        result = call_handle(&call, KIND_stream, (uint64_t)(uintptr_t)stream, &message.stream);
    if (result != CUDA_SUCCESS) return result;
    struct link *link = call.link;
    for (int64_t waited = 0;
         atomic_load(&link->callbacks) >= AHEAD_OF_CALLBACKS && !atomic_load(&link->dead); waited++)
        usleep(100);
    /* A captured callback stays: there is no event for the end of the last graph with it. From then
     * on a thread always reads. */
    struct callback made = {.kept = capturing(stream),
                            .function = function,
                            .with_status = with_status,
                            .stream = stream,
                            .data = data};
    if ((result = expect(link, made, &message.id)) != CUDA_SUCCESS) return result;
    result = call_begin(&call, sizeof message, CALL_POSTED);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &message, sizeof message);
    result = call_post(&call);
    link_flush(link);
    return result;
}

API CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
    if (function == NULL)
        return call_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    return enqueue(stream, function, NULL, data);
}

API CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *data,
                                 unsigned int mode) {
    if (mode > CU_HOST_TASK_SPINWAIT) return CUDA_ERROR_INVALID_VALUE; /* a hint for its thread */
    return cuLaunchHostFunc(stream, function, data);
}

API CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data,
                                 unsigned int flags) {
    if (callback == NULL || flags)
        return call_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    return enqueue(stream, NULL, callback, data);
}

/* ---- posted creations: errors of the driver are detected here ---- */

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (stream == NULL || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    return forward_cuStreamCreateWithPriority(stream, flags, priority);
}

API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (flags & CU_EVENT_INTERPROCESS)
        return not_supported("cuEventCreate with CU_EVENT_INTERPROCESS");
    if (event == NULL || flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    return forward_cuEventCreate(event, flags);
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    if (call_ready() == CUDA_SUCCESS && (uint64_t)(uintptr_t)stream <= 2)
        return CUDA_ERROR_INVALID_HANDLE;
    return forward_cuStreamDestroy_v2(stream);
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    if (call_ready() == CUDA_SUCCESS && flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    return forward_cuStreamWaitEvent(stream, event, flags);
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    const struct handle_entry *entry = handle_entry((uint64_t)(uintptr_t)event);
    uint64_t context = stream_context((uint64_t)(uintptr_t)stream);
    if (context != 0 && entry != NULL && entry->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    return forward_cuEventRecord(event, stream);
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    if (call_ready() == CUDA_SUCCESS && flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return CUDA_ERROR_INVALID_VALUE;
    return flags ? forward_cuEventRecordWithFlags(event, stream, flags)
                 : cuEventRecord(event, stream);
}

API CUresult cuStreamGetCtx(CUstream stream, CUcontext *context) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    uint64_t of = stream_context((uint64_t)(uintptr_t)stream);
    struct link *link;
    if ((uint64_t)(uintptr_t)stream <= 2)
        result = context_needed(&link);
    else if (of == 0)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result != CUDA_SUCCESS) return result;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)(uintptr_t)of;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetDevice(CUstream stream, CUdevice *device) {
    CUcontext context;
    CUresult result = cuStreamGetCtx(stream, &context);
    if (result == CUDA_SUCCESS && device == NULL) result = CUDA_ERROR_INVALID_VALUE;
    struct handle_entry *entry =
        result == CUDA_SUCCESS ? handle_entry((uint64_t)(uintptr_t)context) : NULL;
    if (entry != NULL && entry->info != NULL)
        *device = ((struct shadow_context *)entry->info)->ordinal;
    return result;
}
