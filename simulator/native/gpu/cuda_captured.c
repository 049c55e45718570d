/* Stream capture, graph launches, and other functions of graphs and managed memory that depend on
 * the default stream. Compiled twice, as cuda_streamed.c is.
 */
#include "cuda_api.h"
#include "graph.h"

static CUresult check_nodes(const struct graph *graph, const CUgraphNode *list, size_t count) {
    NEED(list || !count);
    for (size_t i = 0; i < count; i++)
        if (handle_kind_of(list[i]) != HANDLE_NODE || ((struct node *)list[i])->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    NEED_STREAM(stream, handle);
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    return capture_begin(stream, mode, NULL, NULL, 0);
}

API CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph, const CUgraphNode *before,
                                         const CUgraphEdgeData *edges, size_t count,
                                         CUstreamCaptureMode mode) {
    (void)edges;
    NEED_STREAM(stream, handle);
    if (handle_kind_of(graph) != HANDLE_GRAPH || (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_nodes((struct graph *)graph, before, count);
    if (result != CUDA_SUCCESS) return result;
    return capture_begin(stream, mode, (struct graph *)graph, (struct node *const *)before, count);
}

API CUresult cuStreamEndCapture(CUstream handle, CUgraph *out) {
    NEED_STREAM(stream, handle);
    struct capture *capture = stream->capture;
    NEED(out || (capture && capture->foreign)); /* the program has that graph already */
    struct graph *graph;
    CUresult result = capture_end(stream, &graph);
    if (out) *out = (CUgraph)graph;
    return result;
}

API CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    NEED_STREAM(stream, handle);
    NEED(status);
    CUresult allowed = stream->capture ? CUDA_SUCCESS : capture_allows(stream);
    *status = stream->capture ? stream->capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
    return allowed;
}

static CUresult capture_info(struct stream *stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                             CUgraph *graph, const CUgraphNode **before, size_t *count) {
    NEED(status);
    const struct capture *capture = stream->capture;
    *status = capture ? capture->status : CU_STREAM_CAPTURE_STATUS_NONE;
    if (id) *id = capture ? capture->id : 0;
    if (graph) *graph = capture ? (CUgraph)capture->graph : NULL;
    if (before) *before = capture ? (const CUgraphNode *)stream->captured.list : NULL;
    if (count) *count = capture ? stream->captured.count : 0;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                    CUgraph *graph, const CUgraphNode **before,
                                    const CUgraphEdgeData **edges, size_t *count) {
    NEED_STREAM(stream, handle);
    if (edges) *edges = NULL; /* all are plain dependencies */
    return capture_info(stream, status, id, graph, before, count);
}

static CUresult update_dependencies(struct stream *stream, const CUgraphNode *list, size_t count,
                                    unsigned flags) {
    if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check_nodes(stream->capture->graph, list, count);
    if (result != CUDA_SUCCESS) return result;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->captured.count = 0;
    for (size_t i = 0; i < count; i++)
        if (!nodes_add(&stream->captured, (struct node *)list[i])) return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

API CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *list,
                                               const CUgraphEdgeData *edges, size_t count,
                                               unsigned int flags) {
    (void)edges;
    NEED_STREAM(stream, handle);
    return update_dependencies(stream, list, count, flags);
}

/* ---- launching ---- */

API CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    NEED_STREAM(stream, stream_handle);
    NEED_HANDLE(handle, HANDLE_EXEC);
    struct exec *exec = (struct exec *)handle;
    if (stream->capture) { /* its graph becomes a node */
        if (graph_has_memory(exec->plan->graph)) return CUDA_ERROR_NOT_SUPPORTED;
        struct graph *child = graph_clone(exec->plan->graph);
        struct node *node;
        if (!child) return CUDA_ERROR_OUT_OF_MEMORY;
        CUresult captured = capture_add(stream, CU_GRAPH_NODE_TYPE_GRAPH, NULL, &node);
        if (captured == CUDA_SUCCESS)
            node->child = child;
        else
            graph_destroy(child);
        return captured;
    }
    struct op *op = op_new(OP_GRAPH);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&exec->lock);
    struct plan *plan = exec->plan;
    op->graph.plan = plan;
    op->graph.auto_free = exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    atomic_fetch_add(&plan->refs, 2); /* the operation's and ours */
    CUresult result = capture_allows(stream);
    if (result == CUDA_SUCCESS) result = plan_account(plan, op->graph.auto_free);
    if (result == CUDA_SUCCESS && (result = plan_count_records(op)) != CUDA_SUCCESS)
        plan_over(plan);
    pthread_mutex_unlock(&exec->lock);
    if (result != CUDA_SUCCESS)
        op_free(op);
    else if ((result = stream_submit(stream, op, NULL)) != CUDA_SUCCESS)
        plan_over(plan);
    plan_release(plan);
    return result;
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream handle) {
    NEED_STREAM(stream, handle);
    NEED_HANDLE(exec, HANDLE_EXEC);
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
                                          CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    NEED(params);
    CUresult result = graph_instantiate(
        out, graph, params->flags & ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    params->hErrNode_out = NULL;
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                         : result == CUDA_ERROR_INVALID_VALUE
                             ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                             : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

/* ---- managed memory ---- */

/* Return whether `bytes` from there on are managed and of one allocation. */
static CUresult find_managed(CUdeviceptr pointer, size_t bytes, struct extent *extent) {
    if (!bytes || !memory_find(pointer, extent) || extent->kind != EXTENT_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    return bytes > extent->size - (pointer - extent->base) ? CUDA_ERROR_INVALID_VALUE
                                                           : CUDA_SUCCESS;
}

static CUresult prefetch(CUdeviceptr pointer, size_t bytes, int place, struct stream *stream) {
    struct extent extent;
    CUresult result = find_managed(pointer, bytes, &extent);
    if (result != CUDA_SUCCESS) return result;
    if (place != MANAGED_HOST && !engine_device(place)) return CUDA_ERROR_INVALID_DEVICE;
    extent.prefetched = place;
    memory_host_note(&extent);
    if (place == stream->context->device->ordinal) managed_charge(pointer, stream->context);
    return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                                unsigned int flags, CUstream handle) {
    NEED_STREAM(stream, handle);
    NEED(!flags);
    return prefetch(pointer, bytes, managed_place(location), stream);
}

/* If any part of a batch is invalid, none of it is done. */
static CUresult check_ranges(const CUdeviceptr *pointers, const size_t *sizes, size_t count,
                             unsigned long long flags, CUstream handle) {
    NEED(pointers && sizes && count && !flags && handle != CU_STREAM_LEGACY);
#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM
    NEED(handle);
#endif
    struct extent extent;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = find_managed(pointers[i], sizes[i], &extent);
    return result;
}

/* Each place applies to the ranges from its first one on. */
static CUresult check_places(CUmemLocation *places, const size_t *firsts, size_t place_count,
                             size_t count) {
    NEED(places && firsts && place_count && place_count <= count && firsts[0] == 0);
    for (size_t i = 0; i < place_count; i++) {
        NEED(firsts[i] < count && (i == 0 || firsts[i] > firsts[i - 1]));
        int place = managed_place(places[i]);
        if (place != MANAGED_HOST && !engine_device(place)) return CUDA_ERROR_INVALID_DEVICE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count,
                                     CUmemLocation *places, size_t *firsts, size_t place_count,
                                     unsigned long long flags, CUstream handle) {
    NEED_STREAM(stream, handle);
    CUresult result = check_ranges(pointers, sizes, count, flags, handle);
    if (result == CUDA_SUCCESS) result = check_places(places, firsts, place_count, count);
    for (size_t i = 0, at = 0; i < count && result == CUDA_SUCCESS; i++) {
        if (at + 1 < place_count && firsts[at + 1] == i) at++;
        result = prefetch(pointers[i], sizes[i], managed_place(places[at]), stream);
    }
    return result;
}

/* The contents of a discarded range are undefined until it is written: here they stay. */
API CUresult cuMemDiscardBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count,
                                    unsigned long long flags, CUstream handle) {
    NEED_STREAM(stream, handle);
    (void)stream;
    return check_ranges(pointers, sizes, count, flags, handle);
}

API CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *pointers, size_t *sizes, size_t count,
                                               CUmemLocation *places, size_t *firsts,
                                               size_t place_count, unsigned long long flags,
                                               CUstream handle) {
    return cuMemPrefetchBatchAsync(pointers, sizes, count, places, firsts, place_count, flags,
                                   handle);
}

/* ---- forms of these functions in earlier releases ---- */

#undef cuMemPrefetchAsync
#undef cuStreamBeginCapture
#undef cuStreamGetCaptureInfo
#undef cuStreamUpdateCaptureDependencies
#undef cuStreamGetCaptureInfo_v2

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define EARLIER(name) name##_ptsz
#else
#define EARLIER(name) name
#endif

API CUresult EARLIER(cuMemPrefetchAsync)(CUdeviceptr pointer, size_t bytes, CUdevice device,
                                         CUstream handle);
API CUresult EARLIER(cuMemPrefetchAsync)(CUdeviceptr pointer, size_t bytes, CUdevice device,
                                         CUstream handle) {
    NEED_STREAM(stream, handle);
    return prefetch(pointer, bytes, device == CU_DEVICE_CPU ? MANAGED_HOST : device, stream);
}

API CUresult EARLIER(cuStreamBeginCapture)(CUstream handle);
API CUresult EARLIER(cuStreamBeginCapture)(CUstream handle) {
    NEED_STREAM(stream, handle);
    return capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0);
}

API CUresult EARLIER(cuStreamGetCaptureInfo)(CUstream handle, CUstreamCaptureStatus *status,
                                             cuuint64_t *id);
API CUresult EARLIER(cuStreamGetCaptureInfo)(CUstream handle, CUstreamCaptureStatus *status,
                                             cuuint64_t *id) {
    NEED_STREAM(stream, handle);
    return capture_info(stream, status, id, NULL, NULL, NULL);
}

API CUresult EARLIER(cuStreamGetCaptureInfo_v2)(CUstream handle, CUstreamCaptureStatus *status,
                                                cuuint64_t *id, CUgraph *graph,
                                                const CUgraphNode **before, size_t *count);
API CUresult EARLIER(cuStreamGetCaptureInfo_v2)(CUstream handle, CUstreamCaptureStatus *status,
                                                cuuint64_t *id, CUgraph *graph,
                                                const CUgraphNode **before, size_t *count) {
    NEED_STREAM(stream, handle);
    return capture_info(stream, status, id, graph, before, count);
}

API CUresult EARLIER(cuStreamUpdateCaptureDependencies)(CUstream handle, CUgraphNode *list,
                                                        size_t count, unsigned int flags);
API CUresult EARLIER(cuStreamUpdateCaptureDependencies)(CUstream handle, CUgraphNode *list,
                                                        size_t count, unsigned int flags) {
    NEED_STREAM(stream, handle);
    return update_dependencies(stream, list, count, flags);
}
