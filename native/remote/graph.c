/* Graphs and their nodes: lists of nodes, and calls that the driver's table does not describe. */
#include "client.h"

/* ---- lists ---- */

CUresult too_many_nodes(void) { return not_supported("a list of more than 4096 graph nodes"); }

CUresult call_handles(struct call *call, unsigned kind, const void *handles, size_t count,
                      uint64_t wire[WIRE_MAX_NODES]) {
    if (count > WIRE_MAX_NODES) return too_many_nodes();
    for (size_t i = 0; i < count; i++) {
        uint64_t handle;
        memcpy(&handle, (const uint8_t *)handles + i * sizeof handle, sizeof handle);
        CUresult result = call_handle(call, kind, handle, &wire[i]);
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

void get_handles(struct call *call, unsigned kind, void *out, size_t room, size_t listed,
                 uint64_t owner) {
    for (size_t i = 0; i < room; i++) {
        uint64_t handle = 0;
        if (i < listed && i < WIRE_MAX_NODES)
            handle = handle_found(call->link, kind, get_word(&call->in));
        if (handle != 0 && owner != 0) handle_belongs(handle, owner);
        memcpy((uint8_t *)out + i * sizeof handle, &handle, sizeof handle);
    }
}

void get_edges(struct call *call, CUgraphEdgeData *out, size_t room, size_t listed) {
    size_t given = listed < room ? listed : room;
    if (given > WIRE_MAX_NODES) given = WIRE_MAX_NODES;
    if (given != 0) get_bytes(&call->in, out, given * sizeof *out);
}

/* ---- nodes of any kind, by one call ---- */

/* Only captures write edges with data. */
static bool plain(const CUgraphEdgeData *edges, size_t count) {
    for (size_t i = 0; edges != NULL && i < count; i++)
        if (edges[i].from_port || edges[i].to_port || edges[i].type) return false;
    return true;
}

static CUresult add_any(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                        CUgraphNodeParams *is) {
    if (is == NULL) return CUDA_ERROR_INVALID_VALUE;
    switch (is->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS kernel;
        memcpy(&kernel, &is->kernel, sizeof kernel);
        return cuGraphAddKernelNode_v2(out, graph, before, count, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(out, graph, before, count, &is->memcpy.copyParams,
                                    is->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill;
        memcpy(&fill, &is->memset, sizeof fill);
        return cuGraphAddMemsetNode(out, graph, before, count, &fill, is->memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        const CUDA_HOST_NODE_PARAMS host = {is->host.fn, is->host.userData};
        return cuGraphAddHostNode(out, graph, before, count, &host);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(out, graph, before, count);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphAddChildGraphNode(out, graph, before, count, is->graph.graph);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(out, graph, before, count, is->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(out, graph, before, count, is->eventWait.event);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(out, graph, before, count, is->free.dptr);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS memory;
        memcpy(&memory, &is->alloc, sizeof memory);
        CUresult result = cuGraphAddMemAllocNode(out, graph, before, count, &memory);
        if (result == CUDA_SUCCESS) is->alloc.dptr = memory.dptr;
        return result;
    }
    default: return not_supported("a conditional, semaphore or batch node in a graph");
    }
}

API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                            size_t count, CUgraphNodeParams *is) {
    return add_any(out, graph, before, count, is);
}
API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                               const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *is) {
    return plain(edges, count) ? add_any(out, graph, before, count, is)
                               : not_supported("a graph edge with data");
}

static CUresult set_any(CUgraphNode node, CUgraphNodeParams *is) {
    switch (is->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS kernel;
        memcpy(&kernel, &is->kernel, sizeof kernel);
        return cuGraphKernelNodeSetParams_v2(node, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: return cuGraphMemcpyNodeSetParams(node, &is->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill;
        memcpy(&fill, &is->memset, sizeof fill);
        return cuGraphMemsetNodeSetParams(node, &fill);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        const CUDA_HOST_NODE_PARAMS host = {is->host.fn, is->host.userData};
        return cuGraphHostNodeSetParams(node, &host);
    }
    default: return not_supported("changing a graph node without parameters");
    }
}

static CUresult set_any_exec(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *is) {
    switch (is->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS kernel;
        memcpy(&kernel, &is->kernel, sizeof kernel);
        return cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphExecMemcpyNodeSetParams(exec, node, &is->memcpy.copyParams,
                                              is->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill;
        memcpy(&fill, &is->memset, sizeof fill);
        return cuGraphExecMemsetNodeSetParams(exec, node, &fill, is->memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        const CUDA_HOST_NODE_PARAMS host = {is->host.fn, is->host.userData};
        return cuGraphExecHostNodeSetParams(exec, node, &host);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphExecChildGraphNodeSetParams(exec, node, is->graph.graph);
    default: return not_supported("changing a graph node without parameters");
    }
}

API CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *is) {
    return is == NULL ? CUDA_ERROR_INVALID_VALUE : set_any(node, is);
}
API CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *is) {
    return is == NULL ? CUDA_ERROR_INVALID_VALUE : set_any_exec(exec, node, is);
}

/* ---- instantiating, and updates ---- */

/* CUDA 11's form: an error names no node and has no text. */
API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
                                   size_t bytes) {
    if (node != NULL) *node = NULL;
    if (log != NULL && bytes != 0) *log = 0;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}
API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
                                size_t bytes) {
    return cuGraphInstantiate_v2(exec, graph, node, log, bytes);
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                          CUDA_GRAPH_INSTANTIATE_PARAMS *is) {
    const cuuint64_t upload = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    if (is == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuGraphInstantiateWithFlags(exec, graph, is->flags & ~upload);
    if (result == CUDA_SUCCESS && is->flags & upload)
        result = cuGraphUpload(*exec, is->hUploadStream);
    is->hErrNode_out = NULL;
    is->result_out = result == CUDA_SUCCESS               ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                     : result == CUDA_ERROR_INVALID_VALUE ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                          : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

API CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                  CUgraphExecUpdateResultInfo *how) {
    struct call call;
    struct wire_graph_update ask;
    call_start(&call, OP_GRAPH_UPDATE);
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS)
        result = call_handle(&call, KIND_graph, (uint64_t)(uintptr_t)graph, &ask.graph);
    if (result == CUDA_SUCCESS)
        result = call_handle(&call, KIND_graph_exec, (uint64_t)(uintptr_t)exec, &ask.exec);
    if (result == CUDA_SUCCESS && how == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) result = call_begin(&call, sizeof ask, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &ask, sizeof ask);
    result = call_exchange(&call);
    struct wire_graph_updated is;
    get_bytes(&call.in, &is, sizeof is);
    if (!call.in.bad) { /* also for a refused update */
        uint64_t node = handle_found(call.link, KIND_graph_node, is.node);
        uint64_t from = handle_found(call.link, KIND_graph_node, is.from_node);
        *how = (CUgraphExecUpdateResultInfo){.result = (CUgraphExecUpdateResult)is.result,
                                             .errorNode = (CUgraphNode)(uintptr_t)node,
                                             .errorFromNode = (CUgraphNode)(uintptr_t)from};
    } else if (result == CUDA_SUCCESS) {
        result = CUDA_ERROR_UNKNOWN;
    }
    call_end(&call);
    return result;
}

API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node,
                               CUgraphExecUpdateResult *result) {
    CUgraphExecUpdateResultInfo how = {0};
    if (node == NULL || result == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult done = cuGraphExecUpdate_v2(exec, graph, &how);
    *node = how.errorNode;
    *result = how.result;
    return done;
}
