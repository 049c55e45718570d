/* Nodes of any kind by one function: each kind's own does the work. */
#include "cuda_api.h"
#include "graph.h"

#include <string.h>

#define WHERE CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count

static CUresult not_simulated(const char *function, CUgraphNodeType type) {
    if (engine_verbose()) engine_say("%s: nodes of type %d are not simulated", function, (int)type);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult add(WHERE, CUgraphNodeParams *params) {
    NEED(params);
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS kernel;
        memcpy(&kernel, &params->kernel, sizeof kernel);
        return cuGraphAddKernelNode(out, graph, before, count, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return cuGraphAddMemcpyNode(out, graph, before, count, &params->memcpy.copyParams, NULL);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill;
        memcpy(&fill, &params->memset, sizeof fill);
        return cuGraphAddMemsetNode(out, graph, before, count, &fill, NULL);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS host = {.fn = params->host.fn, .userData = params->host.userData};
        return cuGraphAddHostNode(out, graph, before, count, &host);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY: return cuGraphAddEmptyNode(out, graph, before, count);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        return cuGraphAddChildGraphNode(out, graph, before, count, params->graph.graph);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(out, graph, before, count, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(out, graph, before, count, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(out, graph, before, count, params->free.dptr);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS alloc = {.poolProps = params->alloc.poolProps,
                                            .bytesize = params->alloc.bytesize};
        CUresult result = cuGraphAddMemAllocNode(out, graph, before, count, &alloc);
        params->alloc.dptr = alloc.dptr;
        return result;
    }
    default: return not_simulated("cuGraphAddNode", params->type);
    }
}

API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                            const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params) {
    return edges_plain(edges, count) ? add(out, graph, before, count, params)
                                     : CUDA_ERROR_NOT_SUPPORTED;
}

/* A node of a graph, or, where there is one, of what was made of it. */
static CUresult set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params) {
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS kernel;
        memcpy(&kernel, &params->kernel, sizeof kernel);
        return exec ? cuGraphExecKernelNodeSetParams(exec, node, &kernel)
                    : cuGraphKernelNodeSetParams(node, &kernel);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: {
        const CUDA_MEMCPY3D *copy = &params->memcpy.copyParams;
        return exec ? cuGraphExecMemcpyNodeSetParams(exec, node, copy, NULL)
                    : cuGraphMemcpyNodeSetParams(node, copy);
    }
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS fill;
        memcpy(&fill, &params->memset, sizeof fill);
        return exec ? cuGraphExecMemsetNodeSetParams(exec, node, &fill, NULL)
                    : cuGraphMemsetNodeSetParams(node, &fill);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
        CUDA_HOST_NODE_PARAMS host = {.fn = params->host.fn, .userData = params->host.userData};
        return exec ? cuGraphExecHostNodeSetParams(exec, node, &host)
                    : cuGraphHostNodeSetParams(node, &host);
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return exec ? cuGraphExecEventRecordNodeSetEvent(exec, node, params->eventRecord.event)
                    : cuGraphEventRecordNodeSetEvent(node, params->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
        return exec ? cuGraphExecEventWaitNodeSetEvent(exec, node, params->eventWait.event)
                    : cuGraphEventWaitNodeSetEvent(node, params->eventWait.event);
    case CU_GRAPH_NODE_TYPE_GRAPH:
        if (exec) return cuGraphExecChildGraphNodeSetParams(exec, node, params->graph.graph);
        __attribute__((fallthrough)); /* a node's graph is changed node by node */
    default: return not_simulated("cuGraphNodeSetParams", params->type);
    }
}

API CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params) {
    NEED(params);
    return set(NULL, node, params);
}

API CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                      CUgraphNodeParams *params) {
    NEED(params && exec);
    return set(exec, node, params);
}
