/* Generic calls for graph nodes of any kind: their parameters name the kind, and that kind's
 * function does the work. */
#include "cuda_api.h"
#include "graph.h"

#include <string.h>

#define WHERE CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count

static CUresult unknown(const char *call, CUgraphNodeType type) {
    if (engine_verbose()) engine_say("%s: a node of type %d", call, (int)type);
    return engine_unsupported("a graph node for semaphores or batches of memory operations",
                              "use events (cuGraphAddEventWaitNode)");
}

/* The newest kernel parameters begin with the older ones and add fields. */
static CUDA_KERNEL_NODE_PARAMS kernel_of(const CUgraphNodeParams *params) {
    CUDA_KERNEL_NODE_PARAMS kernel;
    memcpy(&kernel, &params->kernel, sizeof kernel);
    return kernel;
}

static CUDA_MEMSET_NODE_PARAMS fill_of(const CUgraphNodeParams *params) {
    CUDA_MEMSET_NODE_PARAMS fill;
    memcpy(&fill, &params->memset, sizeof fill);
    return fill;
}

static CUDA_HOST_NODE_PARAMS host_of(const CUgraphNodeParams *params) {
    return (CUDA_HOST_NODE_PARAMS){.fn = params->host.fn, .userData = params->host.userData};
}

CUresult graph_add_any(WHERE, CUgraphNodeParams *params) {
    NEED(params);
    const CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(params);
    const CUDA_MEMSET_NODE_PARAMS fill = fill_of(params);
    const CUDA_HOST_NODE_PARAMS host = host_of(params);
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphAddKernelNode(out, graph, before, count, &kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(out, graph, before, count, &params->memcpy.copyParams, NULL);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return cuGraphAddMemsetNode(out, graph, before, count, &fill, NULL);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphAddHostNode(out, graph, before, count, &host);
    case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(out, graph, before, count);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphAddChildGraphNode(out, graph, before, count, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(out, graph, before, count, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(out, graph, before, count, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(out, graph, before, count, params->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return graph_add_conditional(out, graph, before, count, &params->conditional);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = params->alloc.poolProps,
                                            .bytesize = params->alloc.bytesize};
        CUresult result = cuGraphAddMemAllocNode(out, graph, before, count, &alloc);
        params->alloc.dptr = alloc.dptr;
        return result;
    }
    default: return unknown("cuGraphAddNode", params->type);
    }
}

CUresult edges_check(const CUgraphEdgeData *edges, size_t count) {
    for (size_t i = 0; edges && i < count; i++)
        if (edges[i].from_port || edges[i].to_port || edges[i].type)
            return engine_unsupported("an edge between kernels of a graph that may overlap",
                                      "use an edge without data");
    return CUDA_SUCCESS;
}

API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                            const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    CUresult result = edges_check(edges, count);
    return result == CUDA_SUCCESS ? graph_add_any(out, graph, before, count, params) : result;
}

API CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params) {
    NEED(params);
    const CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(params);
    const CUDA_MEMSET_NODE_PARAMS fill = fill_of(params);
    const CUDA_HOST_NODE_PARAMS host = host_of(params);
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphKernelNodeSetParams(node, &kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphMemcpyNodeSetParams(node, &params->memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET: return cuGraphMemsetNodeSetParams(node, &fill);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphHostNodeSetParams(node, &host);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphEventRecordNodeSetEvent(node, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphEventWaitNodeSetEvent(node, params->eventWait.event);
    default: return unknown("cuGraphNodeSetParams", params->type);
    }
}

API CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                      CUgraphNodeParams *params) {
    NEED(params);
    const CUDA_KERNEL_NODE_PARAMS kernel = kernel_of(params);
    const CUDA_MEMSET_NODE_PARAMS fill = fill_of(params);
    const CUDA_HOST_NODE_PARAMS host = host_of(params);
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return cuGraphExecKernelNodeSetParams(exec, node, &kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphExecMemcpyNodeSetParams(exec, node, &params->memcpy.copyParams, NULL);
    case CU_GRAPH_NODE_TYPE_MEMSET: return cuGraphExecMemsetNodeSetParams(exec, node, &fill, NULL);
    case CU_GRAPH_NODE_TYPE_HOST: return cuGraphExecHostNodeSetParams(exec, node, &host);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphExecChildGraphNodeSetParams(exec, node, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphExecEventRecordNodeSetEvent(exec, node, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphExecEventWaitNodeSetEvent(exec, node, params->eventWait.event);
    default: return unknown("cuGraphExecNodeSetParams", params->type);
    }
}

/* Return the parameters as cuGraphAddNode took them, in their newest form. */
API CUresult cuGraphNodeGetParams(CUgraphNode handle, CUgraphNodeParams *params) {
    NEED_INIT();
    NEED(params);
    NEED_HANDLE(handle, HANDLE_NODE);
    const struct node *node = (const struct node *)handle;
    *params = (CUgraphNodeParams){.type = node->type};
    switch ((int)node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        memcpy(&params->kernel, &node->params.kernel, sizeof node->params.kernel);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: params->memcpy.copyParams = node->params.copy; break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        memcpy(&params->memset, &node->params.fill, sizeof node->params.fill);
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        params->host.fn = node->params.host.fn;
        params->host.userData = node->params.host.userData;
        break;
    case CU_GRAPH_NODE_TYPE_GRAPH: params->graph.graph = (CUgraph)node->child; break;
    case CU_GRAPH_NODE_TYPE_EMPTY: break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: params->eventRecord.event = node->params.event; break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: params->eventWait.event = node->params.event; break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: params->conditional = node->params.conditional; break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE: params->free.dptr = node->params.free; break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        params->alloc.poolProps = node->params.alloc.poolProps;
        params->alloc.bytesize = node->params.alloc.bytesize;
        params->alloc.dptr = node->params.alloc.dptr;
        break;
    default: return unknown("cuGraphNodeGetParams", node->type);
    }
    return CUDA_SUCCESS;
}
