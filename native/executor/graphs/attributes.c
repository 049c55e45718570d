/* Clusters of launches, and attributes of the kernel nodes of graphs. See special.h. */
#include "executor/executor.h"

#define REAL(symbol) ((__typeof__(symbol) *)driver_function(EGPU_FN_##symbol))

/* They hold events or handles of nodes, which are the client's. */
bool attribute_is_value(int which) {
    return which != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT &&
           which != CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT &&
           which != CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
}

CUresult clusters(struct task *task) {
    struct wire_clusters ask;
    CUlaunchAttribute attributes[WIRE_MAX_ARRAY];
    if (!begins(task, &ask, sizeof ask, false) || ask.attribute_count > WIRE_MAX_ARRAY)
        return violation(task);
    if (ask.attribute_count)
        get_bytes(&task->in, attributes, ask.attribute_count * sizeof *attributes);
    CUfunction function =
        (CUfunction)(uintptr_t)handle_value(KIND_function, ask.function, &task->bad);
    CUresult result = task_refused(task, true);
    if (result != CUDA_SUCCESS) return result;
    for (unsigned i = 0; i < ask.attribute_count; i++)
        if (!attribute_is_value((int)attributes[i].id)) return CUDA_ERROR_NOT_SUPPORTED;
    CUlaunchConfig config = {.gridDimX = ask.grid[0],
                             .gridDimY = ask.grid[1],
                             .gridDimZ = ask.grid[2],
                             .blockDimX = ask.block[0],
                             .blockDimY = ask.block[1],
                             .blockDimZ = ask.block[2],
                             .sharedMemBytes = ask.shared_bytes,
                             .attrs = attributes,
                             .numAttrs = ask.attribute_count};
    __typeof__(cuOccupancyMaxActiveClusters) *real =
        ask.largest ? REAL(cuOccupancyMaxPotentialClusterSize) : REAL(cuOccupancyMaxActiveClusters);
    int found = 0;
    result = real == NULL ? CUDA_ERROR_NOT_SUPPORTED : real(&found, function, &config);
    if (result == CUDA_SUCCESS) put_bytes(&task->out, &(uint64_t){(unsigned)found}, 8);
    return result;
}

CUresult node_attribute(struct task *task) {
    struct wire_node_attribute ask;
    CUlaunchAttributeValue value;
    if (!begins(task, &ask, sizeof ask, false)) return violation(task);
    CUgraphNode node = (CUgraphNode)(uintptr_t)handle_value(KIND_graph_node, ask.node, &task->bad);
    CUresult result = task_refused(task, true);
    if (result != CUDA_SUCCESS) return result;
    if (!attribute_is_value((int)ask.which) || REAL(cuGraphKernelNodeSetAttribute) == NULL ||
        REAL(cuGraphKernelNodeGetAttribute) == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    memcpy(&value, ask.value, sizeof value);
    if (ask.set)
        return REAL(cuGraphKernelNodeSetAttribute)(node, (CUkernelNodeAttrID)ask.which, &value);
    result = REAL(cuGraphKernelNodeGetAttribute)(node, (CUkernelNodeAttrID)ask.which, &value);
    if (result == CUDA_SUCCESS) put_bytes(&task->out, &value, sizeof value);
    return result;
}
