/* Functions of graphs and captures that have edge data in CUDA 13, and none in CUDA 12 under the
 * same names. The runtime's header is not included: it declares one version. */
#include "driver.h"
#include "graph.h"
#include "major.h"

#define FUNCTION(name, parameters) \
    API int name parameters;       \
    int name parameters

#define ADD_NODE(name)                                                                            \
    FUNCTION(name, (void *node, void *graph, const void *before, const void *edges, size_t count, \
                    void *params)) {                                                              \
        return runtime_add_node(node, graph, before, edges, count, params);                       \
    }
IF_12(ADD_NODE(cudaGraphAddNode_v2))
IF_13(ADD_NODE(cudaGraphAddNode))

#if EGPU_CUDART_MAJOR == 12

FUNCTION(cudaGraphAddNode,
         (void *node, void *graph, const void *before, size_t count, void *params)) {
    return runtime_add_node(node, graph, before, NULL, count, params);
}

FUNCTION(cudaGraphAddDependencies,
         (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)) {
    NEED_CONTEXT();
    return runtime_result(driver.cuGraphAddDependencies(graph, from, to, NULL, count));
}

FUNCTION(cudaGraphRemoveDependencies,
         (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)) {
    NEED_CONTEXT();
    return runtime_result(driver.cuGraphRemoveDependencies(graph, from, to, NULL, count));
}

FUNCTION(cudaGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)) {
    NEED_CONTEXT();
    return runtime_result(driver.cuGraphGetEdges(graph, from, to, NULL, count));
}

FUNCTION(cudaGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode *before, size_t *count)) {
    NEED_CONTEXT();
    return runtime_result(driver.cuGraphNodeGetDependencies(node, before, NULL, count));
}

FUNCTION(cudaGraphNodeGetDependentNodes, (CUgraphNode node, CUgraphNode *after, size_t *count)) {
    NEED_CONTEXT();
    return runtime_result(driver.cuGraphNodeGetDependentNodes(node, after, NULL, count));
}

/* ---- captures, also with the thread's own default stream ---- */

#define BOTH(name, parameters, stream, call)  \
    FUNCTION(name, parameters) {              \
        NEED_CONTEXT();                       \
        return runtime_result(call);          \
    }                                         \
    FUNCTION(name##_ptsz, parameters) {       \
        NEED_CONTEXT();                       \
        stream = (CUstream)stream_of(stream); \
        return runtime_result(call);          \
    }

BOTH(cudaStreamGetCaptureInfo_v2,
     (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
      const CUgraphNode **before, size_t *count),
     stream, driver.cuStreamGetCaptureInfo(stream, status, id, graph, before, NULL, count))
BOTH(cudaStreamUpdateCaptureDependencies,
     (CUstream stream, CUgraphNode *before, size_t count, unsigned int flags), stream,
     driver.cuStreamUpdateCaptureDependencies(stream, before, NULL, count, flags))

#endif
