/* Captures: graphs that streams write. The client knows only whether there are any; the executor
 * answers everything else. */
#include "client.h"

#include <pthread.h>

/* Begun and not ended, the latest first. */
struct capture {
    CUstream stream; /* where it began */
    struct capture *next;
};

static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *latest;
static _Atomic unsigned captures; /* at 0 the executor is not asked */

static bool capture_begins(CUstream stream) {
    struct capture *capture = malloc(sizeof *capture);
    if (capture == NULL) return false;
    pthread_mutex_lock(&captures_lock);
    *capture = (struct capture){.stream = stream, .next = latest};
    latest = capture;
    atomic_fetch_add(&captures, 1);
    pthread_mutex_unlock(&captures_lock);
    return true;
}

static void capture_ended(CUstream stream) {
    pthread_mutex_lock(&captures_lock);
    struct capture **at = &latest;
    while (*at != NULL && (*at)->stream != stream) at = &(*at)->next;
    struct capture *capture = *at;
    if (capture != NULL) {
        *at = capture->next;
        atomic_fetch_sub(&captures, 1);
    }
    pthread_mutex_unlock(&captures_lock);
    free(capture);
}

bool capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return atomic_load_explicit(&captures, memory_order_relaxed) != 0 &&
           cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult begun(CUstream stream, CUresult result) {
    if (result != CUDA_SUCCESS) capture_ended(stream);
    return result;
}

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    if (!capture_begins(stream)) return CUDA_ERROR_OUT_OF_MEMORY;
    return begun(stream, forward_cuStreamBeginCapture_v2(stream, mode));
}

API CUresult cuStreamBeginCapture(CUstream stream) {
    return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

API CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                         const CUgraphEdgeData *edges, size_t count,
                                         CUstreamCaptureMode mode) {
    if (!capture_begins(stream)) return CUDA_ERROR_OUT_OF_MEMORY;
    return begun(stream,
                 forward_cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, count, mode));
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    bool begun = cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
                 status != CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = forward_cuStreamEndCapture(stream, graph);
    if (begun && cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
        status == CU_STREAM_CAPTURE_STATUS_NONE)
        capture_ended(stream);
    return result;
}

/* ---- a stream's capture ---- */

/* Keep the nodes that the next operation will depend on, until the next call about the stream:
 * first the stream's own, then the edges. */
static CUresult keep_nodes(CUstream stream, struct call *call, const struct wire_captured *is,
                           const CUgraphNode **nodes, const CUgraphEdgeData **edges) {
    struct handle_entry *entry = handle_entry((uint64_t)(uintptr_t)stream);
    size_t each = sizeof **nodes + sizeof **edges;
    uint8_t *kept = malloc((size_t)is->nodes * each + 1);
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t graph = handle_name(call->link, is->graph);
    get_handles(call, KIND_graph_node, kept, is->nodes, is->nodes, graph);
    CUgraphEdgeData *kinds = (CUgraphEdgeData *)(kept + is->nodes * sizeof **nodes);
    get_edges(call, kinds, is->nodes, is->nodes);
    bool plain = true;
    for (uint32_t i = 0; i < is->nodes; i++)
        plain &= kinds[i].from_port == 0 && kinds[i].to_port == 0 && kinds[i].type == 0;
    if (entry == NULL || (edges == NULL && nodes != NULL && !plain)) {
        free(kept);
        return entry == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_LOSSY_QUERY;
    }
    pthread_mutex_lock(&call->link->handle_lock);
    free(entry->info);
    entry->info = kept;
    pthread_mutex_unlock(&call->link->handle_lock);
    if (nodes != NULL) *nodes = (const CUgraphNode *)kept;
    if (edges != NULL) *edges = kinds;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                       cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                                       const CUgraphEdgeData **edges, size_t *count) {
    struct call call;
    struct wire_capture_info ask;
    call_start(&call, OP_CAPTURE_INFO);
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS)
        result = call_handle(&call, KIND_stream, (uint64_t)(uintptr_t)stream, &ask.stream);
    if (result == CUDA_SUCCESS && status == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) result = call_begin(&call, sizeof ask, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &ask, sizeof ask);
    struct wire_captured is = {0};
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS) {
        get_bytes(&call.in, &is, sizeof is);
        if (is.nodes > WIRE_MAX_NODES) call.in.bad = true;
        uint64_t found = handle_found(call.link, KIND_graph, is.graph);
        result = call_checked(&call);
        if (result == CUDA_SUCCESS && found != 0)
            result = keep_nodes(stream, &call, &is, nodes, edges);
        if (result == CUDA_SUCCESS) {
            *status = (CUstreamCaptureStatus)is.status;
            if (id != NULL) *id = is.id;
            if (graph != NULL) *graph = (CUgraph)(uintptr_t)found;
            if (nodes != NULL && found == 0) *nodes = NULL;
            if (edges != NULL && found == 0) *edges = NULL;
            if (count != NULL) *count = is.nodes;
        }
    }
    call_end(&call);
    return result;
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                       cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                                       size_t *count) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, nodes, NULL, count);
}

API CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status,
                                    cuuint64_t *id) {
    return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

/* The executor cannot read the program's memory when it runs the graph: the node that does is made
 * as in a graph that the program builds, and put where the stream is. */
CUresult captured_copy(CUstream stream, const CUDA_MEMCPY3D *copy) {
    CUstreamCaptureStatus status;
    CUgraph graph;
    const CUgraphNode *before;
    size_t count;
    CUcontext context;
    CUgraphNode node;
    CUresult result =
        cuStreamGetCaptureInfo_v3(stream, &status, NULL, &graph, &before, NULL, &count);
    if (result == CUDA_SUCCESS) result = cuCtxGetCurrent(&context);
    if (result == CUDA_SUCCESS)
        result = cuGraphAddMemcpyNode(&node, graph, before, count, copy, context);
    if (result != CUDA_SUCCESS) return result;
    return cuStreamUpdateCaptureDependencies(stream, &node, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
}

/* ---- modes of threads during captures ---- */

_Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
_Atomic bool capture_modes;

/* The next call of this thread tells the executor. */
API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    atomic_store(&capture_modes, true);
    return CUDA_SUCCESS;
}

/* Posted where a stream runs it. In a capture the driver may refuse: a graph with memory of its own
 * cannot become part of another. */
API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    if (!capturing(stream)) return forward_cuGraphLaunch(exec, stream);
    struct call call;
    uint64_t wire_exec, wire_stream;
    call_start(&call, OP_cuGraphLaunch);
    CUresult result = call_handle(&call, KIND_graph_exec, (uint64_t)(uintptr_t)exec, &wire_exec);
    if (result == CUDA_SUCCESS)
        result = call_handle(&call, KIND_stream, (uint64_t)(uintptr_t)stream, &wire_stream);
    if (result == CUDA_SUCCESS) result = call_begin(&call, 2 * sizeof(uint64_t), CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_word(&call.out, wire_exec);
    put_word(&call.out, wire_stream);
    return call_ask(&call);
}
