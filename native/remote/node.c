/* Nodes of graphs whose parameters have pointers or handles in them. What the program says of a
 * node is kept beside its handle, for when it asks.
 *
 * A copy from or to host memory that the executor cannot map is a graph of two nodes in one: the
 * copy, of room over there, and a call of ours that fills the room before or empties it after. */
#include "client.h"

struct node {
    CUgraphNodeType type;
    bool roomy, in; /* a copy that is two nodes, and its direction */
    union {
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS fill;
        CUDA_HOST_NODE_PARAMS host;
        CUDA_MEM_ALLOC_NODE_PARAMS memory;
    } is;
    uint64_t words[]; /* a kernel's arguments, then pointers to them */
};

/* Where a node is to be, or which it is. */
struct at {
    enum wire_node_how how;
    uint64_t graph; /* or what was instantiated */
    CUgraphNode node;
    CUgraphNode *out;
    const CUgraphNode *before;
    size_t count;
    CUcontext context;
};
#define AT_NEW(context) {WIRE_NODE_ADD, (uintptr_t)graph, NULL, out, before, count, context}
#define AT_NODE() {WIRE_NODE_SET, 0, node, NULL, NULL, 0, NULL}
#define AT_EXEC(context) {WIRE_NODE_SET_EXEC, (uintptr_t)exec, node, NULL, NULL, 0, context}
#define WHERE CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count

static CUresult not_said(void) {
    return not_supported("asking for parameters of a node that the program did not make itself");
}

static struct node *node_of(CUgraphNode handle) {
    struct handle_entry *entry = handle_entry((uint64_t)(uintptr_t)handle);
    return entry == NULL || wire_kind_of((uint64_t)(uintptr_t)handle) != KIND_graph_node
               ? NULL
               : entry->info;
}

/* In place of what was said before. */
static void said(CUgraphNode handle, struct node *node) {
    struct handle_entry *entry = handle_entry((uint64_t)(uintptr_t)handle);
    if (node == NULL || entry == NULL) {
        free(node);
        return;
    }
    free(entry->info);
    entry->info = node;
}

static struct node *node_new(CUgraphNodeType type, size_t words) {
    struct node *node = calloc(1, sizeof *node + words * sizeof *node->words);
    if (node != NULL) node->type = type;
    return node;
}

/* What is said of a new node, or of one that is changed in its graph. */
static CUresult done(const struct at *at, CUresult result, struct node *node) {
    bool keep = result == CUDA_SUCCESS && at->how != WIRE_NODE_SET_EXEC;
    if (keep) said(at->how == WIRE_NODE_ADD ? *at->out : at->node, node);
    if (!keep) free(node);
    return result;
}

/* ---- the call ---- */

struct parameters {
    const void *is;
    size_t bytes;
    const void *more;
    size_t more_bytes;
};

/* The handles that it names, and one for what is new. */
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

static CUresult change(const struct at *at, CUgraphNodeType type,
                       const struct parameters *parameters, CUdeviceptr *address) {
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

/* As the program gave it, but that arguments are copied. */
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
    return done(&at, change(&at, CU_GRAPH_NODE_TYPE_KERNEL, &parameters, NULL), node);
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

/* CUDA 11's parameters are the beginning of those of today. */
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
    return done(&at, change(&at, CU_GRAPH_NODE_TYPE_MEMSET, &parameters, NULL), node);
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

static CUresult call_host(const struct at *at, CUhostFn function, void *data) {
    uint64_t owner = at->how == WIRE_NODE_SET ? (uint64_t)(uintptr_t)at->node : at->graph, id;
    if (handle_entry(owner) == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = callback_keep(links[wire_server(owner)], function, data, &id);
    const struct parameters parameters = {&id, sizeof id, NULL, 0};
    return result == CUDA_SUCCESS ? change(at, CU_GRAPH_NODE_TYPE_HOST, &parameters, NULL) : result;
}

static CUresult host(struct at at, const CUDA_HOST_NODE_PARAMS *is) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (is == NULL || is->fn == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct node *node = node_new(CU_GRAPH_NODE_TYPE_HOST, 0);
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    node->is.host = *is;
    return done(&at, call_host(&at, is->fn, is->userData), node);
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

/* ---- memory ---- */

API CUresult cuGraphAddMemAllocNode(WHERE, CUDA_MEM_ALLOC_NODE_PARAMS *is) {
    struct call call; /* of which nothing but the server is wanted */
    call_start(&call, OP_GRAPH_NODE);
    uint64_t wire;
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS)
        result = call_handle(&call, KIND_graph, (uint64_t)(uintptr_t)graph, &wire);
    if (result != CUDA_SUCCESS) return result;
    if (is == NULL || is->accessDescCount > WIRE_MAX_ARRAY ||
        (is->accessDescCount != 0 && is->accessDescs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    struct {
        struct wire_node_alloc alloc;
        CUmemPoolProps pool;
    } message = {{is->bytesize, (uint32_t)is->accessDescCount, 0}, {0}};
    CUmemAccessDesc accesses[WIRE_MAX_ARRAY];
    result = call_locate_CUmemPoolProps(&call, &is->poolProps, &message.pool);
    for (size_t i = 0; i < is->accessDescCount && result == CUDA_SUCCESS; i++)
        result = call_locate_CUmemAccessDesc(&call, &is->accessDescs[i], &accesses[i]);
    struct node *node = node_new(CU_GRAPH_NODE_TYPE_MEM_ALLOC, 0);
    if (result == CUDA_SUCCESS && node == NULL) result = CUDA_ERROR_OUT_OF_MEMORY;
    struct at at = AT_NEW(NULL);
    const struct parameters parameters = {&message, sizeof message, accesses,
                                          is->accessDescCount * sizeof *accesses};
    if (result == CUDA_SUCCESS)
        result = change(&at, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &parameters, &is->dptr);
    if (result == CUDA_SUCCESS) node->is.memory = *is;
    return done(&at, result, node);
}

/* ---- copies ---- */

static uint64_t first_byte(uint64_t base, size_t x, size_t y, size_t z, uint64_t pitch,
                           uint64_t height) {
    return base + x + (y + z * height) * pitch;
}

/* In the wire's words; what pointers of unified memory mean is known here. */
static CUresult describe(const CUDA_MEMCPY3D *is, struct wire_node_copy *copy) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (is == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (is->srcMemoryType == CU_MEMORYTYPE_ARRAY || is->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        return not_supported("a graph's copy to or from an array");
    bool from_host = is->srcMemoryType == CU_MEMORYTYPE_HOST ||
                     (is->srcMemoryType == CU_MEMORYTYPE_UNIFIED && !on_device(is->srcDevice));
    bool to_host = is->dstMemoryType == CU_MEMORYTYPE_HOST ||
                   (is->dstMemoryType == CU_MEMORYTYPE_UNIFIED && !on_device(is->dstDevice));
    *copy = (struct wire_node_copy){
        .from_pitch = is->srcPitch ? is->srcPitch : is->WidthInBytes,
        .from_height = is->srcHeight ? is->srcHeight : is->Height,
        .to_pitch = is->dstPitch ? is->dstPitch : is->WidthInBytes,
        .to_height = is->dstHeight ? is->dstHeight : is->Height,
        .width = is->WidthInBytes,
        .rows = is->Height,
        .slices = is->Depth,
        .from_host = from_host,
        .to_host = to_host,
    };
    if (copy->from_pitch < copy->width || copy->to_pitch < copy->width || copy->width == 0 ||
        copy->rows == 0 || copy->slices == 0)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t from =
        is->srcMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)is->srcHost : is->srcDevice;
    uint64_t to =
        is->dstMemoryType == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)is->dstHost : is->dstDevice;
    copy->from =
        first_byte(from, is->srcXInBytes, is->srcY, is->srcZ, copy->from_pitch, copy->from_height);
    copy->to = first_byte(to, is->dstXInBytes, is->dstY, is->dstZ, copy->to_pitch, copy->to_height);
    return from_host && to_host ? not_supported("a graph's copy within host memory") : CUDA_SUCCESS;
}

static bool needs_room(const struct link *link, const struct wire_node_copy *copy) {
    if (!copy->from_host && !copy->to_host) return false;
    uint64_t pitch = copy->from_host ? copy->from_pitch : copy->to_pitch;
    uint64_t height = copy->from_host ? copy->from_height : copy->to_height;
    uint64_t bytes = ((copy->slices - 1) * height + copy->rows - 1) * pitch + copy->width;
    uint64_t host = copy->from_host ? copy->from : copy->to;
    return !mapped_there(link, (const void *)(uintptr_t)host, bytes);
}

/* The program's memory of a copy; the copy itself is between the card and the room. */
static struct host_volume *take_room(struct link *link, struct wire_node_copy *copy,
                                     CUresult *result) {
    struct host_volume *volume = calloc(1, sizeof *volume);
    *result = volume == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    if (volume == NULL) return NULL;
    bool in = copy->from_host;
    *volume = (struct host_volume){link,
                                   (uint8_t *)(uintptr_t)(in ? copy->from : copy->to),
                                   in ? copy->from_pitch : copy->to_pitch,
                                   in ? copy->from_height : copy->to_height,
                                   copy->width,
                                   copy->rows,
                                   copy->slices,
                                   0};
    if (volume->pitch == copy->width && (copy->slices == 1 || volume->height == copy->rows)) {
        volume->width = copy->width * copy->rows * copy->slices; /* one long row */
        volume->rows = volume->slices = 1;
    }
    *result = room_take(volume);
    if (*result != CUDA_SUCCESS) {
        free(volume);
        return NULL;
    }
    *(in ? &copy->from_pitch : &copy->to_pitch) = copy->width;
    *(in ? &copy->from_height : &copy->to_height) = copy->rows;
    copy->room = volume->room;
    return volume; /* as long as there may be a graph with it */
}

static CUresult copy_node(const struct at *at, const struct wire_node_copy *copy) {
    const struct parameters parameters = {copy, sizeof *copy, NULL, 0};
    return change(at, CU_GRAPH_NODE_TYPE_MEMCPY, &parameters, NULL);
}

/* The two nodes, one after the other, in a graph of their own. */
static CUresult roomy_graph(CUgraph *graph, struct link *link, struct wire_node_copy *copy,
                            CUcontext context) {
    CUresult result;
    CUgraphNode first, second;
    bool in = copy->from_host;
    struct host_volume *volume = take_room(link, copy, &result);
    if (volume == NULL || (result = cuGraphCreate(graph, 0)) != CUDA_SUCCESS) return result;
    uint64_t owner = (uint64_t)(uintptr_t)*graph;
    const struct at begin = {WIRE_NODE_ADD, owner, NULL, &first, NULL, 0, context};
    const struct at end = {WIRE_NODE_ADD, owner, NULL, &second, &first, 1, context};
    result = in ? call_host(&begin, room_fill, volume) : copy_node(&begin, copy);
    if (result == CUDA_SUCCESS)
        result = in ? copy_node(&end, copy) : call_host(&end, room_empty, volume);
    if (result != CUDA_SUCCESS) cuGraphDestroy(*graph);
    return result;
}

/* The same two nodes with other parameters. */
static CUresult set_roomy(CUgraphNode node, struct link *link, struct wire_node_copy *copy) {
    CUgraph graph;
    CUgraphNode nodes[2];
    size_t count = 2;
    bool in = copy->from_host;
    CUresult result;
    struct host_volume *volume = take_room(link, copy, &result);
    if (result == CUDA_SUCCESS) result = cuGraphChildGraphNodeGetGraph(node, &graph);
    if (result == CUDA_SUCCESS) result = cuGraphGetNodes(graph, nodes, &count);
    if (result != CUDA_SUCCESS) return result;
    const struct at moved = {WIRE_NODE_SET, 0, nodes[in ? 1 : 0], NULL, NULL, 0, NULL};
    const struct at called = {WIRE_NODE_SET, 0, nodes[in ? 0 : 1], NULL, NULL, 0, NULL};
    result = copy_node(&moved, copy);
    return result == CUDA_SUCCESS ? call_host(&called, in ? room_fill : room_empty, volume)
                                  : result;
}

static CUresult roomy(const struct at *at, struct link *link, struct wire_node_copy *copy) {
    if (at->how == WIRE_NODE_SET) return set_roomy(at->node, link, copy);
    CUgraph own;
    CUresult result = roomy_graph(&own, link, copy, at->context);
    if (result != CUDA_SUCCESS) return result;
    result =
        at->how == WIRE_NODE_ADD
            ? cuGraphAddChildGraphNode(at->out, (CUgraph)(uintptr_t)at->graph, at->before,
                                       at->count, own)
            : cuGraphExecChildGraphNodeSetParams((CUgraphExec)(uintptr_t)at->graph, at->node, own);
    cuGraphDestroy(own);
    return result;
}

static CUresult copy(struct at at, const CUDA_MEMCPY3D *is) {
    struct link *link;
    struct wire_node_copy copy;
    CUresult result = describe(is, &copy);
    if (result == CUDA_SUCCESS) result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    const struct node *old = at.how == WIRE_NODE_ADD ? NULL : node_of(at.node);
    bool with_room = old == NULL ? needs_room(link, &copy) : old->roomy;
    if (old != NULL && (old->roomy ? old->in != copy.from_host || copy.from_host == copy.to_host
                                   : needs_room(link, &copy)))
        return not_supported("changing between what memory a graph copies");
    struct node *node = node_new(CU_GRAPH_NODE_TYPE_MEMCPY, 0);
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    node->roomy = with_room;
    node->in = copy.from_host;
    node->is.copy = *is;
    return done(&at, with_room ? roomy(&at, link, &copy) : copy_node(&at, &copy), node);
}

API CUresult cuGraphAddMemcpyNode(WHERE, const CUDA_MEMCPY3D *is, CUcontext context) {
    return copy((struct at)AT_NEW(context), is);
}
API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *is) {
    return copy((struct at)AT_NODE(), is);
}
API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_MEMCPY3D *is, CUcontext context) {
    return copy((struct at)AT_EXEC(context), is);
}

/* ---- what the program said ---- */

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
