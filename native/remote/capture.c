/* Captures: whether a stream is part of one is asked of the executor; which one, the client knows
 * by itself, as far as it can. */
#include "client.h"

#include <pthread.h>

/* Begun and not ended, the latest first. */
struct capture {
    CUstream stream; /* that it was begun on */
    uint64_t id;     /* a number of ours */
    struct capture *next;
};

static pthread_mutex_t captures_lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *latest;
static _Atomic unsigned captures; /* as long as there are none, nobody is asked */

static bool capture_begins(CUstream stream) {
    static uint64_t ids;
    struct capture *capture = malloc(sizeof *capture);
    if (capture == NULL) return false;
    pthread_mutex_lock(&captures_lock);
    *capture = (struct capture){.stream = stream, .id = ++ids, .next = latest};
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

/* Of the capture that the stream is part of. 0: it has joined one, by an event, and there are
 * several, of which only the executor's driver knows which it is. */
static uint64_t capture_id(CUstream stream) {
    uint64_t id = 0;
    pthread_mutex_lock(&captures_lock);
    for (struct capture *each = latest; each != NULL && id == 0; each = each->next)
        if (each->stream == stream) id = each->id;
    if (id == 0 && latest != NULL && latest->next == NULL) id = latest->id;
    pthread_mutex_unlock(&captures_lock);
    return id;
}

bool capturing(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return atomic_load_explicit(&captures, memory_order_relaxed) != 0 &&
           cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    if (!capture_begins(stream)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = forward_cuStreamBeginCapture_v2(stream, mode);
    if (result != CUDA_SUCCESS) capture_ended(stream);
    return result;
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

API CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
                                       cuuint64_t *id, CUgraph *graph,
                                       const CUgraphNode **dependencies,
                                       const CUgraphEdgeData **edges, size_t *count) {
    CUresult result = cuStreamIsCapturing(stream, status);
    if (result != CUDA_SUCCESS) return result;
    bool active = status != NULL && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (active && (graph != NULL || dependencies != NULL || edges != NULL || count != NULL))
        return not_supported("cuStreamGetCaptureInfo for the graph of a capture");
    uint64_t of = active ? capture_id(stream) : 0;
    if (active && of == 0)
        return not_supported("cuStreamGetCaptureInfo where several captures are going on");
    if (id != NULL) *id = of;
    if (graph != NULL) *graph = NULL;
    if (dependencies != NULL) *dependencies = NULL;
    if (edges != NULL) *edges = NULL;
    if (count != NULL) *count = 0;
    return CUDA_SUCCESS;
}

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    static _Thread_local CUstreamCaptureMode mine = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (mode == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = mine;
    mine = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
