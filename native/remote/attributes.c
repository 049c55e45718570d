/* Clusters of launches and attributes of kernel nodes in graphs: the server's driver answers. */
#define _GNU_SOURCE
#include "client.h"

static CUresult clusters(int *out, CUfunction handle, const CUlaunchConfig *config, bool largest) {
    struct call call;
    call_start(&call, OP_CLUSTERS);
    CUresult result = context_needed(&call.link);
    if (result != CUDA_SUCCESS) return result;
    if (out == NULL || config == NULL || config->numAttrs > WIRE_MAX_ARRAY ||
        (config->numAttrs && config->attrs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    struct wire_clusters ask = {
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared_bytes = config->sharedMemBytes,
        .attribute_count = config->numAttrs,
        .largest = largest,
    };
    result = call_handle(&call, KIND_function, (uint64_t)(uintptr_t)handle, &ask.function);
    size_t bytes = config->numAttrs * sizeof(CUlaunchAttribute);
    if (result == CUDA_SUCCESS) result = call_begin(&call, sizeof ask + padded(bytes), CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &ask, sizeof ask);
    if (bytes) put_bytes(&call.out, config->attrs, bytes);
    result = call_exchange(&call);
    uint64_t found = 0;
    if (result == CUDA_SUCCESS) get_bytes(&call.in, &found, sizeof found);
    if (result == CUDA_SUCCESS && call.in.bad) result = CUDA_ERROR_UNKNOWN;
    if (result == CUDA_SUCCESS) *out = (int)found;
    call_end(&call);
    return result;
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function,
                                                const CUlaunchConfig *config) {
    return clusters(size, function, config, true);
}
API CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function,
                                          const CUlaunchConfig *config) {
    return clusters(count, function, config, false);
}

/* ---- nodes ---- */

_Static_assert(sizeof(CUlaunchAttributeValue) == WIRE_ATTRIBUTE_BYTES, "the wire has them whole");

static CUresult attribute(CUgraphNode node, int which, CUlaunchAttributeValue *get,
                          const CUlaunchAttributeValue *set) {
    struct call call;
    struct wire_node_attribute ask = {.which = (uint32_t)which, .set = set != NULL};
    call_start(&call, OP_NODE_ATTRIBUTE);
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS)
        result = call_handle(&call, KIND_graph_node, (uint64_t)(uintptr_t)node, &ask.node);
    if (result == CUDA_SUCCESS && get == NULL && set == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) return result;
    if (which == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
        return not_supported("a graph node that kernels can update");
    if (set != NULL) memcpy(ask.value, set, sizeof ask.value);
    if ((result = call_begin(&call, sizeof ask, CALL_WAITS)) != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &ask, sizeof ask);
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS && get != NULL) {
        get_bytes(&call.in, get, sizeof *get);
        if (call.in.bad) result = CUDA_ERROR_UNKNOWN;
    }
    call_end(&call);
    return result;
}

API CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID which,
                                           CUkernelNodeAttrValue *value) {
    return attribute(node, (int)which, value, NULL);
}
API CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID which,
                                           const CUkernelNodeAttrValue *value) {
    return attribute(node, (int)which, NULL, value);
}
