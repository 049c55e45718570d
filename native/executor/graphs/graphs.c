/* Captures, and updates of instantiated graphs. See special.h. */
#include "executor/executor.h"

#include <stdatomic.h>

static _Atomic bool begun;
static _Atomic unsigned running; /* at most too many: of a stream that is destroyed nobody counts */

bool captures_begun(void) { return begun; }
bool captures_run(void) { return atomic_load(&running) != 0; }

/* The stream's handle is the `which`-th word. */
static uint64_t peek(const struct task *task, unsigned which) {
    uint64_t handle = 0;
    size_t at = which * sizeof handle;
    if (task->in.left >= at + sizeof handle) memcpy(&handle, task->in.at + at, sizeof handle);
    return handle;
}

/* Drivers before 12.3 know no edges that carry anything. */
static CUresult ask(CUstream stream, struct wire_captured *is, CUgraph *graph,
                    const CUgraphNode **nodes, const CUgraphEdgeData **edges) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    size_t count = 0;
    *graph = NULL;
    *edges = NULL;
    CUresult result;
    if (driver_function(EGPU_FN_cuStreamGetCaptureInfo_v3))
        result = DRIVER(cuStreamGetCaptureInfo_v3, CUstream, CUstreamCaptureStatus *, cuuint64_t *,
                        CUgraph *, const CUgraphNode **, const CUgraphEdgeData **,
                        size_t *)(stream, &status, &id, graph, nodes, edges, &count);
    else if (driver_function(EGPU_FN_cuStreamGetCaptureInfo_v2))
        result = DRIVER(cuStreamGetCaptureInfo_v2, CUstream, CUstreamCaptureStatus *, cuuint64_t *,
                        CUgraph *, const CUgraphNode **,
                        size_t *)(stream, &status, &id, graph, nodes, &count);
    else
        result = CUDA_ERROR_NOT_SUPPORTED;
    bool active = result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (active && count > WIRE_MAX_NODES) return CUDA_ERROR_NOT_SUPPORTED;
    if (!active) *graph = NULL; /* of one that was invalidated nothing is left to be known */
    *is = (struct wire_captured){
        .status = (uint32_t)status, .nodes = active ? (uint32_t)count : 0, .id = active ? id : 0};
    return result;
}

/* A graph that is being written goes with its stream, until the capture has ended well: the driver
 * destroys that of one that has not. */
CUresult begin_capture(struct task *task) {
    uint64_t stream = peek(task, 0);
    struct wire_captured is;
    CUgraph graph;
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    begun = true;
    CUresult result = generated_operations[task->header.op].run(task), unknown = CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) atomic_fetch_add(&running, 1);
    CUstream value = (CUstream)(uintptr_t)handle_value(KIND_stream, stream, &unknown);
    if (result == CUDA_SUCCESS && task->header.op == OP_cuStreamBeginCapture_v2 &&
        ask(value, &is, &graph, &nodes, &edges) == CUDA_SUCCESS)
        handle_of_child(KIND_graph, (uint64_t)(uintptr_t)graph, stream);
    return result;
}

CUresult end_capture(struct task *task) {
    uint64_t stream = peek(task, 1); /* behind the mask */
    CUresult result = generated_operations[OP_cuStreamEndCapture].run(task);
    CUresult unknown = task->violated ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    CUstream value = (CUstream)(uintptr_t)handle_value(KIND_stream, stream, &unknown);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (result == CUDA_SUCCESS && atomic_load(&running) != 0) atomic_fetch_sub(&running, 1);
    if (unknown != CUDA_SUCCESS || stream == 0) return result;
    if (result == CUDA_SUCCESS)
        handle_release_children(stream);
    else if (DRIVER(cuStreamIsCapturing, CUstream, CUstreamCaptureStatus *)(value, &status) ==
                 CUDA_SUCCESS &&
             status == CU_STREAM_CAPTURE_STATUS_NONE)
        handle_forget(stream, false);
    return result;
}

static bool is_written(uint64_t graph) { return wire_kind_of(handle_parent(graph)) == KIND_stream; }

/* What may not be done with a graph while a stream writes it: drivers do not look. */
CUresult graph_destroy(struct task *task) {
    if (is_written(peek(task, 0))) return CUDA_ERROR_INVALID_VALUE;
    return generated_operations[OP_cuGraphDestroy].run(task);
}
CUresult graph_destroy_node(struct task *task) {
    if (is_written(handle_parent(peek(task, 0)))) return CUDA_ERROR_INVALID_VALUE;
    return generated_operations[OP_cuGraphDestroyNode].run(task);
}

CUresult capture_info(struct task *task) {
    struct wire_capture_info message;
    get_bytes(&task->in, &message, sizeof message);
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, message.stream, &task->bad);
    CUresult result = task_refused(task, true);
    struct wire_captured is;
    CUgraph graph;
    const CUgraphNode *nodes = NULL;
    const CUgraphEdgeData *edges;
    if (result == CUDA_SUCCESS) result = ask(stream, &is, &graph, &nodes, &edges);
    if (result != CUDA_SUCCESS) return result;
    is.graph = handle_of(task, KIND_graph, (uint64_t)(uintptr_t)graph);
    put_bytes(&task->out, &is, sizeof is);
    if (is.nodes == 0) return CUDA_SUCCESS;
    task->context = is.graph;
    put_handles(task, KIND_graph_node, nodes, is.nodes);
    void *kinds = give(&task->out, is.nodes * sizeof *edges);
    if (kinds != NULL && edges != NULL) memcpy(kinds, edges, is.nodes * sizeof *edges);
    if (kinds != NULL && edges == NULL) memset(kinds, 0, is.nodes * sizeof *edges);
    return CUDA_SUCCESS;
}

CUresult graph_update(struct task *task) {
    struct wire_graph_update message;
    get_bytes(&task->in, &message, sizeof message);
    CUgraphExec exec =
        (CUgraphExec)(uintptr_t)handle_value(KIND_graph_exec, message.exec, &task->bad);
    CUgraph graph = (CUgraph)(uintptr_t)handle_value(KIND_graph, message.graph, &task->bad);
    CUresult result = task_refused(task, true);
    if (result != CUDA_SUCCESS) return result;
    CUgraphExecUpdateResultInfo_v1 how = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    if (driver_function(EGPU_FN_cuGraphExecUpdate_v2))
        result = DRIVER(cuGraphExecUpdate_v2, CUgraphExec, CUgraph,
                        CUgraphExecUpdateResultInfo_v1 *)(exec, graph, &how);
    else
        result = DRIVER(cuGraphExecUpdate, CUgraphExec, CUgraph, CUgraphNode *,
                        CUgraphExecUpdateResult *)(exec, graph, &how.errorNode, &how.result);
    task->context = message.graph;
    struct wire_graph_updated said = {
        (uint32_t)how.result, 0,
        handle_of(task, KIND_graph_node, (uint64_t)(uintptr_t)how.errorNode),
        handle_of(task, KIND_graph_node, (uint64_t)(uintptr_t)how.errorFromNode)};
    put_bytes(&task->out, &said, sizeof said);
    return result;
}
