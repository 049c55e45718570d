/* Stream capture: operations submitted to a captured stream become nodes of a graph. Events carry
 * captures from one stream to others and back.
 */
#include "graph.h"

#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all state of captures */
static struct capture *going_on;
static atomic_int going_on_count; /* read without the lock */
static _Atomic cuuint64_t next_id = 1;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static _Thread_local char thread_place; /* its address tells threads apart */

static uint64_t this_thread(void) { return (uint64_t)(uintptr_t)&thread_place; }

static void unref(struct capture *capture) {
    if (atomic_fetch_sub(&capture->refs, 1) == 1) free(capture);
}

CUstreamCaptureMode capture_exchange_mode(CUstreamCaptureMode mode) {
    CUstreamCaptureMode previous = thread_mode;
    thread_mode = mode;
    return previous;
}

CUresult capture_begin(struct stream *stream, CUstreamCaptureMode mode, struct graph *graph,
                       struct node *const *before, size_t count) {
    if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = calloc(1, sizeof *capture);
    if (!capture) return CUDA_ERROR_OUT_OF_MEMORY;
    capture->foreign = graph != NULL;
    capture->graph = graph ? graph : graph_create();
    bool fine = capture->graph != NULL;
    for (size_t i = 0; fine && i < count; i++) fine = nodes_add(&stream->captured, before[i]);
    if (!fine) {
        if (capture->graph && !capture->foreign) graph_destroy(capture->graph);
        nodes_clear(&stream->captured);
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->context = stream->context;
    capture->origin = stream;
    capture->mode = mode;
    capture->status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture->id = atomic_fetch_add(&next_id, 1);
    capture->thread = this_thread();
    atomic_store(&capture->refs, 1);
    pthread_mutex_lock(&lock);
    capture->next = going_on;
    going_on = capture;
    atomic_fetch_add(&going_on_count, 1);
    stream->capture = capture;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

/* Every end of the graph must lead back to the origin: otherwise a forked stream was not joined. */
static bool all_joined(const struct capture *capture, const struct stream *origin) {
    for (struct node *node = capture->graph->first; node; node = node->next) {
        bool is_end = true;
        for (struct node *other = capture->graph->first; other && is_end; other = other->next)
            is_end = !nodes_have(&other->before, node);
        if (is_end && !nodes_have(&origin->captured, node)) return false;
    }
    return true;
}

static void leave(struct stream *stream) {
    unref(stream->capture);
    stream->capture = NULL;
    nodes_clear(&stream->captured);
}

/* Remove a capture that has ended. */
static void unlist(const struct capture *capture) {
    for (struct capture **at = &going_on; *at; at = &(*at)->next)
        if (*at == capture) {
            *at = capture->next;
            atomic_fetch_sub(&going_on_count, 1);
            break;
        }
}

static void end_everywhere(struct capture *capture) {
    struct context *context = capture->context;
    pthread_mutex_lock(&context->lock);
    for (struct stream *stream = context->streams; stream; stream = stream->next)
        if (stream->capture == capture) leave(stream);
    pthread_mutex_unlock(&context->lock);
}

CUresult capture_end(struct stream *stream, struct graph **out) {
    struct capture *capture = stream->capture;
    *out = NULL;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread())
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    pthread_mutex_lock(&lock);
    unlist(capture);
    CUresult result = CUDA_SUCCESS;
    if (capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!all_joined(capture, stream))
        result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    capture->status = CU_STREAM_CAPTURE_STATUS_NONE;
    atomic_fetch_add(&capture->refs, 1);
    end_everywhere(capture);
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS)
        *out = capture->graph;
    else if (!capture->foreign)
        graph_destroy(capture->graph);
    capture->graph = NULL;
    unref(capture);
    return result;
}

CUresult capture_add(struct stream *stream, CUgraphNodeType type, struct op *op,
                     struct node **out) {
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    if (capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (op) op_free(op);
    } else {
        struct node *node =
            graph_add(capture->graph, type, stream->captured.list, stream->captured.count, op);
        if (node) {
            stream->captured.count = 0;
            result = nodes_add(&stream->captured, node) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
            if (out) *out = node;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUgraphNodeType type_of(const struct op *op) {
    switch (op->kind) {
    case OP_LAUNCH: return CU_GRAPH_NODE_TYPE_KERNEL;
    case OP_COPY: return CU_GRAPH_NODE_TYPE_MEMCPY;
    case OP_FILL: return CU_GRAPH_NODE_TYPE_MEMSET;
    case OP_HOST: return CU_GRAPH_NODE_TYPE_HOST;
    case OP_RECORD: return CU_GRAPH_NODE_TYPE_EVENT_RECORD;
    case OP_WAIT_EVENT: return CU_GRAPH_NODE_TYPE_WAIT_EVENT;
    case OP_GRAPH_ALLOC: return CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    case OP_GRAPH_FREE: return CU_GRAPH_NODE_TYPE_MEM_FREE;
    default: return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

CUresult capture_submit(struct stream *stream, struct op *op) {
    if (op->kind == OP_CALLBACK) { /* superseded by host functions; cannot be captured */
        op_free(op);
        return capture_forbids(stream);
    }
    struct node *node;
    CUdeviceptr freed = op->kind == OP_GRAPH_FREE ? op->graph_memory.address : 0;
    CUresult result = capture_add(stream, type_of(op), op, &node);
    if (result == CUDA_SUCCESS && freed) node->params.free = freed;
    return result;
}

CUresult capture_record(struct stream *stream, struct event *event) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    if (stream->capture->status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else {
        if (event->capture) unref(event->capture);
        nodes_clear(&event->captured);
        event->capture = stream->capture;
        atomic_fetch_add(&event->capture->refs, 1);
        if (!nodes_copy(&event->captured, &stream->captured)) result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult join(struct stream *stream, struct event *event) {
    struct capture *capture = event->capture;
    if (!capture) { /* work outside the capture: the graph could not wait for it */
        stream->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (capture->status == CU_STREAM_CAPTURE_STATUS_NONE) return CUDA_ERROR_CAPTURED_EVENT;
    if (capture->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->capture && stream->capture != capture) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    if (stream->legacy) {
        capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (!stream->capture) {
        stream->capture = capture;
        atomic_fetch_add(&capture->refs, 1);
    }
    return nodes_copy(&stream->captured, &event->captured) ? CUDA_SUCCESS
                                                           : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_wait(struct stream *stream, struct event *event) {
    pthread_mutex_lock(&lock);
    CUresult result = join(stream, event);
    pthread_mutex_unlock(&lock);
    return result;
}

void capture_forget_event(struct event *event) {
    if (!event->capture) return;
    pthread_mutex_lock(&lock);
    if (event->capture) unref(event->capture);
    event->capture = NULL;
    nodes_clear(&event->captured);
    pthread_mutex_unlock(&lock);
}

/* A capture ends when the stream on which it began is destroyed: nothing else could end it. */
void capture_forget_stream(struct stream *stream) {
    struct graph *graph = NULL;
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    if (capture && capture->origin == stream) {
        unlist(capture);
        capture->status = CU_STREAM_CAPTURE_STATUS_NONE;
        if (!capture->foreign) graph = capture->graph;
        capture->graph = NULL;
        atomic_fetch_add(&capture->refs, 1);
        end_everywhere(capture);
        unref(capture);
    } else if (capture) {
        leave(stream); /* the end of the capture checks that its work was joined */
    }
    pthread_mutex_unlock(&lock);
    if (graph) graph_destroy(graph);
}

bool capture_writes(const struct graph *graph) {
    if (!atomic_load(&going_on_count)) return false;
    pthread_mutex_lock(&lock);
    const struct capture *capture = going_on;
    while (capture && capture->graph != graph) capture = capture->next;
    pthread_mutex_unlock(&lock);
    return capture != NULL;
}

CUresult capture_allows(struct stream *stream) {
    if (!stream->legacy || !atomic_load(&going_on_count)) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct capture *capture = going_on; capture; capture = capture->next)
        if (capture->context == stream->context &&
            !(capture->origin->flags & CU_STREAM_NON_BLOCKING)) {
            capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult capture_forbids(struct stream *stream) {
    if (!stream->capture) return capture_allows(stream);
    pthread_mutex_lock(&lock);
    stream->capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    pthread_mutex_unlock(&lock);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Allocating, loading, querying events and the like may need to synchronise. They are forbidden
 * during captures whose mode says so. */
CUresult capture_unsafe_call(void) {
    if (!atomic_load(&going_on_count) || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct capture *capture = going_on; capture; capture = capture->next) {
        bool mine = capture->thread == this_thread();
        bool forbids = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                           ? mine || thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                           : capture->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && mine;
        if (!forbids) continue;
        capture->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&lock);
    return result;
}
