/* Attributes of kernel nodes in graphs, and graphs as text. */
#include "cuda_api.h"
#include "graph.h"

static CUresult kernel_of(CUgraphNode handle, struct node **node) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_NODE);
    *node = (struct node *)handle;
    return (*node)->type == CU_GRAPH_NODE_TYPE_KERNEL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Check them as a launch would; a refused change has no effect. */
static CUresult change(struct node *node, const struct launch_how *how) {
    struct launch *launch = &node->op->launch;
    CUresult result =
        cluster_check(launch->function, launch->grid, launch->block, launch->shared_bytes, how);
    if (result == CUDA_SUCCESS) launch->how = *how;
    return result;
}

API CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID which,
                                           CUkernelNodeAttrValue *value) {
    struct node *node;
    CUresult result = kernel_of(handle, &node);
    if (result != CUDA_SUCCESS) return result;
    NEED(value);
    return launch_attribute_get(&node->op->launch.how, (int)which, value);
}

API CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID which,
                                           const CUkernelNodeAttrValue *value) {
    struct node *node;
    CUresult result = kernel_of(handle, &node);
    if (result != CUDA_SUCCESS) return result;
    NEED(value);
    struct launch_how how = node->op->launch.how;
    result = launch_attribute_set(&how, (int)which, value);
    if (result == CUDA_ERROR_NOT_SUPPORTED)
        return engine_unsupported("cuGraphKernelNodeSetAttribute with such an attribute", NULL);
    return result == CUDA_SUCCESS ? change(node, &how) : result;
}

API CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to_handle, CUgraphNode from_handle) {
    struct node *to, *from;
    CUresult result = kernel_of(to_handle, &to);
    if (result == CUDA_SUCCESS) result = kernel_of(from_handle, &from);
    return result == CUDA_SUCCESS ? change(to, &from->op->launch.how) : result;
}

API CUresult cuGraphDebugDotPrint(CUgraph handle, const char *path, unsigned int flags) {
    NEED_INIT();
    NEED(path);
    NEED_HANDLE(handle, HANDLE_GRAPH);
    return graph_write_dot((const struct graph *)handle, path, flags != 0);
}
