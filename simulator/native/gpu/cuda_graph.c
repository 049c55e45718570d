/* Building, instantiating and changing graphs. Capturing and launching: cuda_captured.c. */
#include "cuda_api.h"
#include "graph.h"

#include <stdlib.h>
#include <string.h>

#define NEED_GRAPH(name, handle)                                                 \
    NEED_INIT();                                                                 \
    if (handle_kind_of(handle) != HANDLE_GRAPH) return CUDA_ERROR_INVALID_VALUE; \
    struct graph *name = (struct graph *)(handle)
#define NEED_NODE(name, handle)                                                 \
    NEED_INIT();                                                                \
    if (handle_kind_of(handle) != HANDLE_NODE) return CUDA_ERROR_INVALID_VALUE; \
    struct node *name = (struct node *)(handle)

/* ---- graphs ---- */

API CUresult cuGraphCreate(CUgraph *out, unsigned int flags) {
    NEED_INIT();
    NEED(out && !flags);
    *out = (CUgraph)graph_create();
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuGraphDestroy(CUgraph handle) {
    NEED_GRAPH(graph, handle);
    if (graph->owned || capture_writes(graph)) return CUDA_ERROR_INVALID_VALUE;
    graph_destroy(graph);
    return CUDA_SUCCESS;
}

API CUresult cuGraphClone(CUgraph *out, CUgraph handle) {
    NEED(out);
    NEED_GRAPH(graph, handle);
    if (graph_has_memory(graph) || graph_decides(graph)) return CUDA_ERROR_NOT_SUPPORTED;
    *out = (CUgraph)graph_clone(graph);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph handle) {
    NEED(out);
    NEED_GRAPH(graph, handle);
    NEED_NODE(wanted, original);
    for (struct node *node = graph->first; node; node = node->next)
        if (node->original == wanted) {
            *out = (CUgraphNode)node;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuGraphGetId(CUgraph handle, unsigned int *id) {
    NEED(id);
    NEED_GRAPH(graph, handle);
    *id = graph->id;
    return CUDA_SUCCESS;
}

/* Lists come in two steps: the count, then the nodes. Nodes that do not fit are left out; missing
 * ones are NULL. */
struct listing {
    CUgraphNode *out, *to;
    size_t room, found;
};

static void list_pair(struct listing *listing, const struct node *from, const struct node *to) {
    if (listing->found < listing->room) {
        if (listing->out) listing->out[listing->found] = (CUgraphNode)from;
        if (listing->to) listing->to[listing->found] = (CUgraphNode)to;
    }
    listing->found++;
}

static CUresult listed(struct listing *listing, CUgraphEdgeData *edges, size_t *count) {
    size_t given = listing->out || listing->to
                       ? (listing->found < listing->room ? listing->found : listing->room)
                       : 0;
    for (size_t i = listing->found; (listing->out || listing->to) && i < listing->room; i++) {
        if (listing->out) listing->out[i] = NULL;
        if (listing->to) listing->to[i] = NULL;
    }
    if (edges) memset(edges, 0, given * sizeof *edges);
    *count = listing->found;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *out, size_t *count) {
    NEED(count);
    NEED_GRAPH(graph, handle);
    struct listing listing = {out, NULL, *count, 0};
    for (struct node *node = graph->first; node; node = node->next) list_pair(&listing, node, NULL);
    return listed(&listing, NULL, count);
}

API CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode *out, size_t *count) {
    NEED(count);
    NEED_GRAPH(graph, handle);
    struct listing listing = {out, NULL, *count, 0};
    for (struct node *node = graph->first; node; node = node->next)
        if (node->before.count == 0) list_pair(&listing, node, NULL);
    return listed(&listing, NULL, count);
}

static CUresult get_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to,
                          CUgraphEdgeData *edges, size_t *count) {
    NEED(count);
    NEED_GRAPH(graph, handle);
    struct listing listing = {from, to, *count, 0};
    for (struct node *node = graph->first; node; node = node->next)
        for (size_t i = 0; i < node->before.count; i++)
            list_pair(&listing, node->before.list[i], node);
    return listed(&listing, edges, count);
}

static CUresult get_before(CUgraphNode handle, CUgraphNode *out, CUgraphEdgeData *edges,
                           size_t *count) {
    NEED(count);
    NEED_NODE(node, handle);
    struct listing listing = {out, NULL, *count, 0};
    for (size_t i = 0; i < node->before.count; i++) list_pair(&listing, node->before.list[i], NULL);
    return listed(&listing, edges, count);
}

static CUresult get_after(CUgraphNode handle, CUgraphNode *out, CUgraphEdgeData *edges,
                          size_t *count) {
    NEED(count);
    NEED_NODE(node, handle);
    struct listing listing = {out, NULL, *count, 0};
    for (struct node *other = node->graph->first; other; other = other->next)
        if (nodes_have(&other->before, node)) list_pair(&listing, other, NULL);
    return listed(&listing, edges, count);
}

static CUresult change_edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                             size_t count, bool add) {
    NEED_GRAPH(graph, handle);
    NEED((from && to) || !count);
    for (size_t i = 0; i < count; i++) {
        if (handle_kind_of(from[i]) != HANDLE_NODE || handle_kind_of(to[i]) != HANDLE_NODE)
            return CUDA_ERROR_INVALID_VALUE;
        const struct node *first = (const struct node *)from[i];
        const struct node *second = (const struct node *)to[i];
        if (first->graph != graph || second->graph != graph || first == second)
            return CUDA_ERROR_INVALID_VALUE;
        if (nodes_have(&second->before, first) == add) return CUDA_ERROR_INVALID_VALUE;
    }
    if (!add && count && graph_has_memory(graph)) return CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < count; i++) {
        struct node *second = (struct node *)to[i];
        if (!add)
            nodes_remove(&second->before, (const struct node *)from[i]);
        else if (!nodes_add(&second->before, (struct node *)from[i]))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* Return whether edges have no data but their two ends. */
API CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                             CUgraphEdgeData *edges, size_t *count) {
    return get_edges(graph, from, to, edges, count);
}
API CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *out, CUgraphEdgeData *edges,
                                        size_t *count) {
    return get_before(node, out, edges, count);
}
API CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *out,
                                          CUgraphEdgeData *edges, size_t *count) {
    return get_after(node, out, edges, count);
}
API CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                    const CUgraphEdgeData *edges, size_t count) {
    CUresult result = edges_check(edges, count);
    return result == CUDA_SUCCESS ? change_edges(graph, from, to, count, true) : result;
}
API CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from,
                                       const CUgraphNode *to, const CUgraphEdgeData *edges,
                                       size_t count) {
    CUresult result = edges_check(edges, count);
    return result == CUDA_SUCCESS ? change_edges(graph, from, to, count, false) : result;
}

API CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type) {
    NEED(type);
    NEED_NODE(node, handle);
    *type = node->type;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetContainingGraph(CUgraphNode handle, CUgraph *out) {
    NEED(out);
    NEED_NODE(node, handle);
    *out = (CUgraph)node->graph;
    return CUDA_SUCCESS;
}

API CUresult cuGraphNodeGetLocalId(CUgraphNode handle, unsigned int *id) {
    NEED(id);
    NEED_NODE(node, handle);
    *id = node->id;
    return CUDA_SUCCESS;
}

API CUresult cuGraphDestroyNode(CUgraphNode handle) {
    NEED_NODE(node, handle);
    if (graph_has_memory(node->graph)) return CUDA_ERROR_NOT_SUPPORTED;
    if (capture_writes(node->graph)) return CUDA_ERROR_INVALID_VALUE;
    graph_remove(node);
    return CUDA_SUCCESS;
}

/* ---- operations from the driver's descriptions of nodes ---- */

static CUresult kernel_op(const CUDA_KERNEL_NODE_PARAMS *params, const struct launch_how *how,
                          struct op **out) {
    NEED_CONTEXT(context);
    NEED(params);
    struct function *function;
    CUfunction handle = params->func ? params->func : (CUfunction)params->kern;
    CUresult result = function_of(handle, context, &function);
    if (result != CUDA_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
    const unsigned grid[3] = {params->gridDimX, params->gridDimY, params->gridDimZ};
    const unsigned block[3] = {params->blockDimX, params->blockDimY, params->blockDimZ};
    return launch_prepare(function, grid, block, params->sharedMemBytes, how, params->kernelParams,
                          params->extra, out);
}

static CUresult copy_op(const CUDA_MEMCPY3D *params, struct op **out) {
    NEED_INIT();
    struct copy copy;
    CUresult result = copy_of_volume(params, &copy);
    if (result != CUDA_SUCCESS) return result;
    struct op *op = op_new(OP_COPY);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->copy = copy;
    *out = op;
    return CUDA_SUCCESS;
}

static CUresult fill_op(const CUDA_MEMSET_NODE_PARAMS *params, struct op **out) {
    NEED_INIT();
    NEED(params);
    if (params->elementSize != 1 && params->elementSize != 2 && params->elementSize != 4)
        return CUDA_ERROR_INVALID_VALUE;
    struct op *op = op_new(OP_FILL);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->fill = (struct fill){.destination = params->dst,
                             .pitch = params->pitch,
                             .width = params->width,
                             .rows = params->height,
                             .value = params->value,
                             .element = params->elementSize};
    *out = op;
    return CUDA_SUCCESS;
}

static CUresult host_op(const CUDA_HOST_NODE_PARAMS *params, struct op **out) {
    NEED_INIT();
    NEED(params && params->fn);
    struct op *op = op_new(OP_HOST);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->host.function = params->fn;
    op->host.data = params->userData;
    *out = op;
    return CUDA_SUCCESS;
}

static CUresult event_op(enum op_kind kind, CUevent handle, struct op **out) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_EVENT);
    struct op *op = op_new(kind);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->event.event = (struct event *)handle;
    atomic_fetch_add(&op->event.event->refs, 1);
    *out = op;
    return CUDA_SUCCESS;
}

static CUresult alloc_op(const CUDA_MEM_ALLOC_NODE_PARAMS *params, struct op **out,
                         struct graph_memory **memory) {
    NEED_INIT();
    NEED(params && params->bytesize);
    if (params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct device *device = engine_device(params->poolProps.location.id);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    struct op *op = op_new(OP_GRAPH_ALLOC);
    *memory = op ? graph_memory_create(device, params->bytesize) : NULL;
    if (!*memory) {
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->graph_memory.address = (*memory)->address;
    op->graph_memory.size = params->bytesize;
    *out = op;
    return CUDA_SUCCESS;
}

static CUresult free_op(CUdeviceptr pointer, struct op **out) {
    NEED_INIT();
    NEED(pointer);
    struct op *op = op_new(OP_GRAPH_FREE);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->graph_memory.address = pointer;
    *out = op;
    return CUDA_SUCCESS;
}

static CUresult check_place(CUgraph handle, const CUgraphNode *before, size_t count) {
    NEED_GRAPH(graph, handle);
    NEED(before || !count);
    for (size_t i = 0; i < count; i++)
        if (handle_kind_of(before[i]) != HANDLE_NODE || ((struct node *)before[i])->graph != graph)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                    CUgraphNodeType type, struct op *op, struct node **added) {
    struct node *node =
        graph_add((struct graph *)graph, type, (struct node *const *)before, count, op);
    if (!node) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (CUgraphNode)node;
    *added = node;
    return CUDA_SUCCESS;
}

/* Keep the parameters as packed: the program's own pointers may end. */
static CUresult note_kernel(struct node *node, const CUDA_KERNEL_NODE_PARAMS *params) {
    const struct launch *launch = &node->op->launch;
    void **pointers = calloc(launch->function->info->param_count + 1, sizeof *pointers);
    if (!pointers) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < launch->function->info->param_count; i++)
        pointers[i] = (char *)launch->params + launch->function->info->params[i].offset;
    free(node->param_pointers);
    node->param_pointers = pointers;
    node->params.kernel = *params;
    node->params.kernel.func = (CUfunction)launch->function;
    node->params.kernel.kernelParams = pointers;
    node->params.kernel.extra = NULL;
    return CUDA_SUCCESS;
}

/* Add a node with the operation from `make`; `note` runs with the new node as `node`. */
#define ADD(type, make, note)                                                             \
    NEED(out);                                                                            \
    CUresult result = check_place(graph, before, count);                                  \
    struct op *op = NULL;                                                                 \
    if (result == CUDA_SUCCESS) result = make;                                            \
    struct node *node;                                                                    \
    if (result == CUDA_SUCCESS) result = add(out, graph, before, count, type, op, &node); \
    if (result != CUDA_SUCCESS) return result;                                            \
    note;                                                                                 \
    return CUDA_SUCCESS
#define WHERE CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count

API CUresult cuGraphAddKernelNode(WHERE, const CUDA_KERNEL_NODE_PARAMS *params) {
    ADD(CU_GRAPH_NODE_TYPE_KERNEL, kernel_op(params, &(struct launch_how){0}, &op),
        return note_kernel(node, params));
}
API CUresult cuGraphAddMemcpyNode(WHERE, const CUDA_MEMCPY3D *params, CUcontext context) {
    (void)context;
    ADD(CU_GRAPH_NODE_TYPE_MEMCPY, copy_op(params, &op), node->params.copy = *params);
}
API CUresult cuGraphAddMemsetNode(WHERE, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    (void)context;
    ADD(CU_GRAPH_NODE_TYPE_MEMSET, fill_op(params, &op), node->params.fill = *params);
}
API CUresult cuGraphAddHostNode(WHERE, const CUDA_HOST_NODE_PARAMS *params) {
    ADD(CU_GRAPH_NODE_TYPE_HOST, host_op(params, &op), node->params.host = *params);
}
API CUresult cuGraphAddEmptyNode(WHERE) { ADD(CU_GRAPH_NODE_TYPE_EMPTY, CUDA_SUCCESS, ); }
API CUresult cuGraphAddEventRecordNode(WHERE, CUevent event) {
    ADD(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_op(OP_RECORD, event, &op),
        node->params.event = event);
}
API CUresult cuGraphAddEventWaitNode(WHERE, CUevent event) {
    ADD(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_op(OP_WAIT_EVENT, event, &op),
        node->params.event = event);
}
API CUresult cuGraphAddMemFreeNode(WHERE, CUdeviceptr pointer) {
    ADD(CU_GRAPH_NODE_TYPE_MEM_FREE, free_op(pointer, &op), node->params.free = pointer);
}

API CUresult cuGraphAddMemAllocNode(WHERE, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    struct graph_memory *memory = NULL;
    ADD(CU_GRAPH_NODE_TYPE_MEM_ALLOC, alloc_op(params, &op, &memory), {
        node->memory = memory;
        params->dptr = memory->address;
        node->params.alloc = *params;
    });
}

API CUresult cuGraphAddChildGraphNode(WHERE, CUgraph child) {
    NEED_GRAPH(original, child);
    if (graph_has_memory(original) || graph_decides(original)) return CUDA_ERROR_NOT_SUPPORTED;
    struct graph *clone = NULL;
    ADD(CU_GRAPH_NODE_TYPE_GRAPH,
        (clone = graph_clone(original)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, {
            node->child = clone;
            clone->owned = true;
        });
}

API CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph handle,
                                            CUcontext context_handle, unsigned int first,
                                            unsigned int flags) {
    NEED(out && !(flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT));
    NEED_GRAPH(graph, handle);
    struct context *context;
    CUresult result = context_handle ? context_check(context_handle, &context)
                                     : context_current_checked(&context);
    uint64_t made;
    if (result == CUDA_SUCCESS) result = condition_create(graph, first, flags != 0, &made);
    if (result == CUDA_SUCCESS) *out = made;
    return result;
}

CUresult graph_add_conditional(WHERE, CUDA_CONDITIONAL_NODE_PARAMS *params) {
    NEED_GRAPH(into, graph);
    ADD(
        CU_GRAPH_NODE_TYPE_CONDITIONAL, condition_check(into, params),
        if (!condition_begin(node, params)) {
            graph_remove(node);
            return CUDA_ERROR_OUT_OF_MEMORY;
        });
}

API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *out) {
    NEED(out);
    NEED_NODE(node, handle);
    NEED(node->child);
    *out = (CUgraph)node->child;
    return CUDA_SUCCESS;
}

/* ---- reading and changing nodes ---- */

#define GET(name, kind, field, Params)                             \
    API CUresult name(CUgraphNode handle, Params *params) {        \
        NEED(params);                                              \
        NEED_NODE(node, handle);                                   \
        if (node->type != (kind)) return CUDA_ERROR_INVALID_VALUE; \
        *params = node->params.field;                              \
        return CUDA_SUCCESS;                                       \
    }

GET(cuGraphKernelNodeGetParams, CU_GRAPH_NODE_TYPE_KERNEL, kernel, CUDA_KERNEL_NODE_PARAMS)
GET(cuGraphMemcpyNodeGetParams, CU_GRAPH_NODE_TYPE_MEMCPY, copy, CUDA_MEMCPY3D)
GET(cuGraphMemsetNodeGetParams, CU_GRAPH_NODE_TYPE_MEMSET, fill, CUDA_MEMSET_NODE_PARAMS)
GET(cuGraphHostNodeGetParams, CU_GRAPH_NODE_TYPE_HOST, host, CUDA_HOST_NODE_PARAMS)
GET(cuGraphMemAllocNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_ALLOC, alloc, CUDA_MEM_ALLOC_NODE_PARAMS)
GET(cuGraphMemFreeNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_FREE, free, CUdeviceptr)
GET(cuGraphEventRecordNodeGetEvent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, CUevent)
GET(cuGraphEventWaitNodeGetEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, CUevent)

static CUresult replace(struct node *node, CUgraphNodeType type, struct op *op) {
    if (node->type != type) {
        op_free(op);
        return CUDA_ERROR_INVALID_VALUE;
    }
    op_free(node->op);
    node->op = op;
    return CUDA_SUCCESS;
}

static CUresult set_kernel(struct node *node, const CUDA_KERNEL_NODE_PARAMS *params) {
    struct op *op = NULL;
    if (node->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = kernel_op(params, &node->op->launch.how, &op); /* attributes stay */
    if (result == CUDA_SUCCESS) result = replace(node, CU_GRAPH_NODE_TYPE_KERNEL, op);
    return result == CUDA_SUCCESS ? note_kernel(node, params) : result;
}

#define SET(name, kind, make, field, Params)                        \
    static CUresult name(struct node *node, const Params *params) { \
        struct op *op = NULL;                                       \
        CUresult made = make(params, &op);                          \
        if (made == CUDA_SUCCESS) made = replace(node, kind, op);   \
        if (made == CUDA_SUCCESS) node->params.field = *params;     \
        return made;                                                \
    }

SET(set_copy, CU_GRAPH_NODE_TYPE_MEMCPY, copy_op, copy, CUDA_MEMCPY3D)
SET(set_fill, CU_GRAPH_NODE_TYPE_MEMSET, fill_op, fill, CUDA_MEMSET_NODE_PARAMS)
SET(set_host, CU_GRAPH_NODE_TYPE_HOST, host_op, host, CUDA_HOST_NODE_PARAMS)

static CUresult set_event(struct node *node, CUgraphNodeType type, enum op_kind kind,
                          CUevent event) {
    struct op *op = NULL;
    CUresult result = event_op(kind, event, &op);
    if (result == CUDA_SUCCESS) result = replace(node, type, op);
    if (result == CUDA_SUCCESS) node->params.event = event;
    return result;
}

API CUresult cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS *params) {
    NEED_NODE(node, handle);
    return set_kernel(node, params);
}
API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D *params) {
    NEED_NODE(node, handle);
    return set_copy(node, params);
}
API CUresult cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS *params) {
    NEED_NODE(node, handle);
    return set_fill(node, params);
}
API CUresult cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS *params) {
    NEED_NODE(node, handle);
    return set_host(node, params);
}

API CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode handle, CUevent event) {
    NEED_NODE(node, handle);
    return set_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, OP_RECORD, event);
}
API CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode handle, CUevent event) {
    NEED_NODE(node, handle);
    return set_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, OP_WAIT_EVENT, event);
}

/* ---- instantiated graphs ---- */

/* A graph with memory or conditions has one executable graph at a time
 * (cuGraphInstantiateWithFlags, CUgraphNodeType). */
static CUresult instances_begin(struct graph *graph, struct instances **out) {
    if (!graph->instances && (graph->instances = calloc(1, sizeof *graph->instances)))
        atomic_store(&graph->instances->refs, 1);
    if (!graph->instances) return CUDA_ERROR_OUT_OF_MEMORY;
    bool one = graph_has_memory(graph) || graph_decides(graph);
    if (atomic_fetch_add(&graph->instances->live, 1) && one) {
        atomic_fetch_sub(&graph->instances->live, 1);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    atomic_fetch_add(&graph->instances->refs, 1);
    *out = graph->instances;
    return CUDA_SUCCESS;
}

static void instances_end(struct instances *instances) {
    atomic_fetch_sub(&instances->live, 1);
    instances_drop(instances);
}

CUresult graph_instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
    static _Atomic unsigned next_id = 1;
    NEED(out);
    NEED_GRAPH(graph, handle);
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
        return engine_unsupported("cuGraphInstantiate for launches from the device",
                                  "launch the graph from the host");
    }
    if (flags & ~(unsigned long long)(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                      CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
        return CUDA_ERROR_INVALID_VALUE;
    struct exec *exec = calloc(1, sizeof *exec);
    if (!exec) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = instances_begin(graph, &exec->instances);
    if (result != CUDA_SUCCESS) {
        free(exec);
        return result;
    }
    exec->plan = plan_create(graph, &result);
    if (exec->plan && !handle_add(exec, HANDLE_EXEC)) {
        plan_release(exec->plan);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        instances_end(exec->instances);
        free(exec);
        return result;
    }
    pthread_mutex_init(&exec->lock, NULL);
    exec->flags = flags;
    exec->id = atomic_fetch_add(&next_id, 1);
    *out = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph,
                                         unsigned long long flags) {
    return graph_instantiate(out, graph, flags);
}

API CUresult cuGraphExecDestroy(CUgraphExec handle) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_EXEC);
    struct exec *exec = (struct exec *)handle;
    handle_remove(exec);
    plan_release(exec->plan);
    instances_end(exec->instances);
    pthread_mutex_destroy(&exec->lock);
    free(exec);
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags) {
    NEED_INIT();
    NEED(flags);
    NEED_HANDLE(handle, HANDLE_EXEC);
    *flags = ((struct exec *)handle)->flags;
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecGetId(CUgraphExec handle, unsigned int *id) {
    NEED_INIT();
    NEED(id);
    NEED_HANDLE(handle, HANDLE_EXEC);
    *id = ((struct exec *)handle)->id;
    return CUDA_SUCCESS;
}

/* Compare node by node in the order of creation: same kinds, after the same nodes. */
static CUgraphExecUpdateResult compare(const struct graph *before, const struct graph *graph,
                                       const struct node **at) {
    if (before->count != graph->count) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (const struct node *node = graph->first; node; node = node->next) {
        const struct node *old = NULL;
        for (const struct node *other = before->first; other && !old; other = other->next)
            if (other->id == node->id) old = other;
        *at = node;
        if (!old || old->before.count != node->before.count)
            return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        if (old->type != node->type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        for (size_t i = 0; i < node->before.count; i++) {
            bool same = false;
            for (size_t j = 0; j < old->before.count; j++)
                same |= old->before.list[j]->id == node->before.list[i]->id;
            if (!same) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        }
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
            return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    }
    *at = NULL;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUresult set_child(struct node *node, CUgraph handle) {
    NEED_GRAPH(graph, handle);
    const struct node *at;
    if (node->type != CU_GRAPH_NODE_TYPE_GRAPH ||
        compare(node->child, graph, &at) != CU_GRAPH_EXEC_UPDATE_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    struct graph *clone = graph_clone(graph);
    if (!clone) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!graph_sort(clone)) {
        graph_destroy(clone);
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph_destroy(node->child);
    node->child = clone;
    clone->owned = true;
    return CUDA_SUCCESS;
}

/* Change the plan's node for a node of the program's graph. Queued launches keep their plan. */
#define IN_EXEC(change)                                                               \
    NEED_INIT();                                                                      \
    NEED_HANDLE(handle, HANDLE_EXEC);                                                 \
    struct exec *exec = (struct exec *)handle;                                        \
    pthread_mutex_lock(&exec->lock);                                                  \
    CUresult result = exec_own_plan(exec);                                            \
    struct node *node =                                                               \
        result == CUDA_SUCCESS ? exec_node(exec, (const struct node *)wanted) : NULL; \
    if (result == CUDA_SUCCESS) result = node ? (change) : CUDA_ERROR_INVALID_VALUE;  \
    pthread_mutex_unlock(&exec->lock);                                                \
    return result

API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec handle, CUgraphNode wanted,
                                            const CUDA_KERNEL_NODE_PARAMS *params) {
    IN_EXEC(set_kernel(node, params));
}
API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec handle, CUgraphNode wanted,
                                            const CUDA_MEMCPY3D *params, CUcontext context) {
    (void)context;
    IN_EXEC(set_copy(node, params));
}
API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec handle, CUgraphNode wanted,
                                            const CUDA_MEMSET_NODE_PARAMS *params,
                                            CUcontext context) {
    (void)context;
    IN_EXEC(set_fill(node, params));
}
API CUresult cuGraphExecHostNodeSetParams(CUgraphExec handle, CUgraphNode wanted,
                                          const CUDA_HOST_NODE_PARAMS *params) {
    IN_EXEC(set_host(node, params));
}
API CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec handle, CUgraphNode wanted,
                                                CUevent event) {
    IN_EXEC(set_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, OP_RECORD, event));
}
API CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec handle, CUgraphNode wanted,
                                              CUevent event) {
    IN_EXEC(set_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, OP_WAIT_EVENT, event));
}
API CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec handle, CUgraphNode wanted,
                                                CUgraph child) {
    IN_EXEC(set_child(node, child));
}
API CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode wanted, unsigned int enabled) {
    IN_EXEC((node->enabled = enabled != 0, CUDA_SUCCESS));
}
API CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode wanted, unsigned int *enabled) {
    NEED(enabled);
    IN_EXEC((*enabled = node->enabled, CUDA_SUCCESS));
}

static CUresult update(CUgraphExec handle, CUgraph graph_handle, CUgraphNode *at,
                       CUgraphExecUpdateResult *how) {
    NEED_GRAPH(graph, graph_handle);
    NEED_HANDLE(handle, HANDLE_EXEC);
    struct exec *exec = (struct exec *)handle;
    const struct node *node = NULL;
    CUresult result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    pthread_mutex_lock(&exec->lock);
    *how = compare(exec->plan->graph, graph, &node);
    if (*how == CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        struct plan *plan = plan_create(graph, &result);
        if (plan) {
            /* it still stands for the first graph's node */
            for (struct node *fresh = plan->graph->first; fresh; fresh = fresh->next)
                for (struct node *old = exec->plan->graph->first; old; old = old->next)
                    if (old->id == fresh->id) fresh->original = old->original;
            plan_release(exec->plan);
            exec->plan = plan;
        }
    }
    pthread_mutex_unlock(&exec->lock);
    *at = (CUgraphNode)node;
    return result;
}

API CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    NEED(info);
    info->errorFromNode = NULL;
    return update(exec, graph, &info->errorNode, &info->result);
}

/* ---- memory of graphs ---- */

API CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    return CUDA_SUCCESS; /* graphs keep no unused memory */
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute which,
                                          void *value) {
    NEED(value);
    NEED_DEVICE(device, ordinal);
    switch ((int)which) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = atomic_load(&device->graph_used);
        break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = atomic_load(&device->graph_used_high);
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = atomic_load(&device->graph_reserved);
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = atomic_load(&device->graph_reserved_high);
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute which,
                                          void *value) {
    NEED(value);
    NEED_DEVICE(device, ordinal);
    if (*(const cuuint64_t *)value != 0) return CUDA_ERROR_INVALID_VALUE;
    switch ((int)which) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        atomic_store(&device->graph_used_high, atomic_load(&device->graph_used));
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        atomic_store(&device->graph_reserved_high, atomic_load(&device->graph_reserved));
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* ---- forms of these functions in earlier releases ---- */

#undef cuGraphInstantiate
#undef cuGraphExecUpdate
#undef cuGraphAddKernelNode
#undef cuGraphKernelNodeGetParams
#undef cuGraphKernelNodeSetParams
#undef cuGraphExecKernelNodeSetParams
#undef cuGraphGetEdges
#undef cuGraphNodeGetDependencies
#undef cuGraphNodeGetDependentNodes
#undef cuGraphAddDependencies
#undef cuGraphRemoveDependencies
#undef cuGraphAddNode

#define EARLIER(declaration)  \
    API CUresult declaration; \
    API CUresult declaration

static CUDA_KERNEL_NODE_PARAMS newer(const CUDA_KERNEL_NODE_PARAMS_v1 *params) {
    return (CUDA_KERNEL_NODE_PARAMS){.func = params->func,
                                     .gridDimX = params->gridDimX,
                                     .gridDimY = params->gridDimY,
                                     .gridDimZ = params->gridDimZ,
                                     .blockDimX = params->blockDimX,
                                     .blockDimY = params->blockDimY,
                                     .blockDimZ = params->blockDimZ,
                                     .sharedMemBytes = params->sharedMemBytes,
                                     .kernelParams = params->kernelParams,
                                     .extra = params->extra};
}

EARLIER(cuGraphAddKernelNode(WHERE, const CUDA_KERNEL_NODE_PARAMS_v1 *params)) {
    NEED(params);
    CUDA_KERNEL_NODE_PARAMS full = newer(params);
    return cuGraphAddKernelNode_v2(out, graph, before, count, &full);
}
EARLIER(cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *params)) {
    CUDA_KERNEL_NODE_PARAMS full;
    NEED(params);
    CUresult result = cuGraphKernelNodeGetParams_v2(node, &full);
    /* a prefix of the newer form */
    if (result == CUDA_SUCCESS) memcpy(params, &full, sizeof *params);
    return result;
}
EARLIER(cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params)) {
    NEED(params);
    CUDA_KERNEL_NODE_PARAMS full = newer(params);
    return cuGraphKernelNodeSetParams_v2(node, &full);
}
EARLIER(cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                       const CUDA_KERNEL_NODE_PARAMS_v1 *params)) {
    NEED(params);
    CUDA_KERNEL_NODE_PARAMS full = newer(params);
    return cuGraphExecKernelNodeSetParams_v2(exec, node, &full);
}
EARLIER(cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)) {
    return get_edges(graph, from, to, NULL, count);
}
EARLIER(cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *out, size_t *count)) {
    return get_before(node, out, NULL, count);
}
EARLIER(cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *out, size_t *count)) {
    return get_after(node, out, NULL, count);
}
EARLIER(cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                               size_t count)) {
    return change_edges(graph, from, to, count, true);
}
EARLIER(cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                  size_t count)) {
    return change_edges(graph, from, to, count, false);
}
EARLIER(cuGraphAddNode(WHERE, CUgraphNodeParams *params)) {
    return graph_add_any(out, graph, before, count, params);
}
EARLIER(cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *at, char *log,
                           size_t size)) {
    if (at) *at = NULL;
    if (log && size) *log = '\0';
    return graph_instantiate(out, graph, 0);
}
EARLIER(cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *at, char *log,
                              size_t size)) {
    if (at) *at = NULL;
    if (log && size) *log = '\0';
    return graph_instantiate(out, graph, 0);
}
EARLIER(cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *at,
                          CUgraphExecUpdateResult *how)) {
    NEED(at && how);
    return update(exec, graph, at, how);
}
