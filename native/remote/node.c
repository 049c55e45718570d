/* See node.h. */
#include "node.h"

static CUresult not_said(void) {
    return not_supported("reading the parameters of a node that this program did not create");
}

struct node *node_of(CUgraphNode handle) {
    struct handle_entry *entry = handle_entry((uint64_t)(uintptr_t)handle);
    return entry == NULL || wire_kind_of((uint64_t)(uintptr_t)handle) != KIND_graph_node
               ? NULL
               : entry->info;
}

/* Replaces what the program said before. */
static void said(CUgraphNode handle, struct node *node) {
    struct handle_entry *entry = handle_entry((uint64_t)(uintptr_t)handle);
    if (node == NULL || entry == NULL) {
        free(node);
        return;
    }
    free(entry->info);
    entry->info = node;
}

struct node *node_new(CUgraphNodeType type, size_t words) {
    struct node *node = calloc(1, sizeof *node + words * sizeof *node->words);
    if (node != NULL) node->type = type;
    return node;
}

CUresult node_done(const struct at *at, CUresult result, struct node *node) {
    bool keep = result == CUDA_SUCCESS && at->how != WIRE_NODE_SET_EXEC;
    if (keep) said(at->how == WIRE_NODE_ADD ? *at->out : at->node, node);
    if (!keep) free(node);
    return result;
}

/* ---- the call ---- */

/* Finds the handles that the call names, and makes one for a new node. */
static CUresult locate(struct call *call, const struct at *at, struct wire_node *message,
                       uint64_t before[WIRE_MAX_NODES]) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (at->how != WIRE_NODE_SET)
        result = call_handle(call, at->how == WIRE_NODE_ADD ? KIND_graph : KIND_graph_exec,
                             at->graph, &message->graph);
    if (result == CUDA_SUCCESS && at->how != WIRE_NODE_ADD)
        result = call_handle(call, KIND_graph_node, (uint64_t)(uintptr_t)at->node, &message->node);
    if (result == CUDA_SUCCESS && at->context != NULL)
        result =
            call_handle(call, KIND_context, (uint64_t)(uintptr_t)at->context, &message->context);
    if (result != CUDA_SUCCESS || at->how != WIRE_NODE_ADD) return result;
    if (at->out == NULL || (at->before == NULL && at->count != 0)) return CUDA_ERROR_INVALID_VALUE;
    result = call_handles(call, KIND_graph_node, at->before, at->count, before);
    return result == CUDA_SUCCESS ? call_new_handle(call, KIND_graph_node, &message->node) : result;
}

CUresult node_change(const struct at *at, CUgraphNodeType type, const struct parameters *parameters,
                     CUdeviceptr *address) {
    struct call call;
    call_start(&call, OP_GRAPH_NODE);
    struct wire_node message = {.type = type, .how = at->how};
    uint64_t before[WIRE_MAX_NODES];
    CUresult result = locate(&call, at, &message, before);
    if (result != CUDA_SUCCESS) return result;
    bool adds = at->how == WIRE_NODE_ADD;
    result = call_begin(&call,
                        sizeof message + padded(parameters->bytes) +
                            padded(parameters->more_bytes) + (adds ? 8 + at->count * 8 : 0),
                        CALL_WAITS);
    if (result == CUDA_SUCCESS) {
        put_bytes(&call.out, &message, sizeof message);
        put_bytes(&call.out, parameters->is, parameters->bytes);
        if (parameters->more_bytes) put_bytes(&call.out, parameters->more, parameters->more_bytes);
        if (adds) put_block(&call.out, before, at->count * 8);
        result = call_exchange(&call);
        if (result == CUDA_SUCCESS && address != NULL) *address = get_word(&call.in);
        if (result == CUDA_SUCCESS && address != NULL) result = call_checked(&call);
        call_end(&call);
    }
    if (adds && result != CUDA_SUCCESS) handle_drop(message.node);
    if (!adds || result != CUDA_SUCCESS) return result;
    *at->out = (CUgraphNode)(uintptr_t)handle_name(call.link, message.node);
    handle_belongs((uint64_t)(uintptr_t)*at->out, at->graph);
    return CUDA_SUCCESS;
}

/* ---- kernels ---- */

/* Keep the program's parameters, with a copy of the arguments. */
static struct node *kernel_kept(const CUDA_KERNEL_NODE_PARAMS *is, const struct function *function,
                                const void *buffer) {
    size_t arguments = padded(function->argument_bytes) / 8;
    struct node *node = node_new(CU_GRAPH_NODE_TYPE_KERNEL, arguments + function->parameter_count);
    if (node == NULL) return NULL;
    uint8_t *packed = (uint8_t *)node->words;
    void **pointers = (void **)(node->words + arguments);
    pack_arguments(function, is->kernelParams, buffer, packed);
    for (uint32_t i = 0; i < function->parameter_count; i++)
        pointers[i] = packed + function->parameters[i].offset;
    node->is.kernel = *is;
    node->is.kernel.kernelParams = pointers;
    node->is.kernel.extra = NULL;
    return node;
}

static CUresult kernel(struct at at, const CUDA_KERNEL_NODE_PARAMS *is) {
    struct link *link;
    struct function *function;
    const void *buffer;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (is == NULL) return CUDA_ERROR_INVALID_VALUE;
    uint64_t handle = (uint64_t)(uintptr_t)(is->func ? (void *)is->func : (void *)is->kern);
    result = function_of(handle, &function);
    if (result != CUDA_SUCCESS)
        return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : result;
    result = kernel_arguments(function, is->kernelParams, is->extra, &buffer);
    if (result != CUDA_SUCCESS) return result;
    struct wire_launch launch = {.function = wire_without_server(handle),
                                 .grid = {is->gridDimX, is->gridDimY, is->gridDimZ},
                                 .block = {is->blockDimX, is->blockDimY, is->blockDimZ},
                                 .shared_bytes = is->sharedMemBytes,
                                 .argument_bytes = function->argument_bytes};
    struct node *node = kernel_kept(is, function, buffer);
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    at.context = is->func == NULL ? is->ctx : NULL;
    const struct parameters parameters = {&launch, sizeof launch, node->words,
                                          launch.argument_bytes};
    return node_done(&at, node_change(&at, CU_GRAPH_NODE_TYPE_KERNEL, &parameters, NULL), node);
}

API CUresult cuGraphAddKernelNode_v2(WHERE, const CUDA_KERNEL_NODE_PARAMS *is) {
    return kernel((struct at)AT_NEW(NULL), is);
}
API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *is) {
    return kernel((struct at)AT_NODE(), is);
}
API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                               const CUDA_KERNEL_NODE_PARAMS *is) {
    return kernel((struct at)AT_EXEC(NULL), is);
}

/* CUDA 11's parameters are a prefix of today's. */
static const CUDA_KERNEL_NODE_PARAMS *newer(const CUDA_KERNEL_NODE_PARAMS_v1 *is,
                                            CUDA_KERNEL_NODE_PARAMS *full) {
    *full = (CUDA_KERNEL_NODE_PARAMS){0};
    if (is != NULL) memcpy(full, is, sizeof *is);
    return is == NULL ? NULL : full;
}

API CUresult cuGraphAddKernelNode(WHERE, const CUDA_KERNEL_NODE_PARAMS_v1 *is) {
    CUDA_KERNEL_NODE_PARAMS full;
    return kernel((struct at)AT_NEW(NULL), newer(is, &full));
}
API CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *is) {
    CUDA_KERNEL_NODE_PARAMS full;
    return kernel((struct at)AT_NODE(), newer(is, &full));
}
API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_KERNEL_NODE_PARAMS_v1 *is) {
    CUDA_KERNEL_NODE_PARAMS full;
    return kernel((struct at)AT_EXEC(NULL), newer(is, &full));
}

/* ---- fills ---- */

static CUresult fill(struct at at, const CUDA_MEMSET_NODE_PARAMS *is) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (is == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct node *node = node_new(CU_GRAPH_NODE_TYPE_MEMSET, 0);
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    node->is.fill = *is;
    const struct parameters parameters = {is, sizeof *is, NULL, 0};
    return node_done(&at, node_change(&at, CU_GRAPH_NODE_TYPE_MEMSET, &parameters, NULL), node);
}

API CUresult cuGraphAddMemsetNode(WHERE, const CUDA_MEMSET_NODE_PARAMS *is, CUcontext context) {
    return fill((struct at)AT_NEW(context), is);
}
API CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *is) {
    return fill((struct at)AT_NODE(), is);
}
API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_MEMSET_NODE_PARAMS *is, CUcontext context) {
    return fill((struct at)AT_EXEC(context), is);
}

/* ---- calls of the program ---- */

CUresult node_call_host(const struct at *at, CUhostFn function, void *data) {
    uint64_t owner = at->how == WIRE_NODE_SET ? (uint64_t)(uintptr_t)at->node : at->graph, id;
    if (handle_entry(owner) == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = callback_keep(links[wire_server(owner)], function, data, &id);
    const struct parameters parameters = {&id, sizeof id, NULL, 0};
    return result == CUDA_SUCCESS ? node_change(at, CU_GRAPH_NODE_TYPE_HOST, &parameters, NULL)
                                  : result;
}

static CUresult host(struct at at, const CUDA_HOST_NODE_PARAMS *is) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (is == NULL || is->fn == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct node *node = node_new(CU_GRAPH_NODE_TYPE_HOST, 0);
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    node->is.host = *is;
    return node_done(&at, node_call_host(&at, is->fn, is->userData), node);
}

API CUresult cuGraphAddHostNode(WHERE, const CUDA_HOST_NODE_PARAMS *is) {
    return host((struct at)AT_NEW(NULL), is);
}
API CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *is) {
    return host((struct at)AT_NODE(), is);
}
API CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                          const CUDA_HOST_NODE_PARAMS *is) {
    return host((struct at)AT_EXEC(NULL), is);
}

/* ---- queries of parameters ---- */

#define GET(name, kind, field, Params)                                      \
    API CUresult name(CUgraphNode handle, Params *out) {                    \
        CUgraphNodeType type;                                               \
        CUresult result = cuGraphNodeGetType(handle, &type);                \
        if (result != CUDA_SUCCESS) return result;                          \
        if (out == NULL || type != (kind)) return CUDA_ERROR_INVALID_VALUE; \
        const struct node *node = node_of(handle);                          \
        if (node == NULL) return not_said();                                \
        *out = node->is.field;                                              \
        return CUDA_SUCCESS;                                                \
    }
GET(cuGraphKernelNodeGetParams_v2, CU_GRAPH_NODE_TYPE_KERNEL, kernel, CUDA_KERNEL_NODE_PARAMS)
GET(cuGraphMemcpyNodeGetParams, CU_GRAPH_NODE_TYPE_MEMCPY, copy, CUDA_MEMCPY3D)
GET(cuGraphMemsetNodeGetParams, CU_GRAPH_NODE_TYPE_MEMSET, fill, CUDA_MEMSET_NODE_PARAMS)
GET(cuGraphHostNodeGetParams, CU_GRAPH_NODE_TYPE_HOST, host, CUDA_HOST_NODE_PARAMS)
GET(cuGraphMemAllocNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_ALLOC, memory, CUDA_MEM_ALLOC_NODE_PARAMS)

API CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *out) {
    CUDA_KERNEL_NODE_PARAMS full;
    CUresult result = cuGraphKernelNodeGetParams_v2(node, out == NULL ? NULL : &full);
    if (result == CUDA_SUCCESS) memcpy(out, &full, sizeof *out);
    return result;
}

API CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type) {
    CUresult result = forward_cuGraphNodeGetType(handle, type);
    const struct node *node = node_of(handle);
    if (result == CUDA_SUCCESS && type != NULL && node != NULL) *type = node->type;
    return result;
}
