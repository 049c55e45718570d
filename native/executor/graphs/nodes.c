/* Nodes of graphs whose parameters have pointers or handles in them. See special.h. */
#include "executor/executor.h"

/* What is asked, and where the node goes or is. */
struct asked {
    struct wire_node is;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    CUcontext context;
    CUgraphNode before[WIRE_MAX_NODES];
    size_t count;
};

#define HOST_BYTES (UINT64_C(1) << 46)

/* Adds it, or changes it in the graph or in what was instantiated: the driver's function for each,
 * with the parameters that all of them take, and what the first and the last take besides. */
#define DO(asked, Add, Set, SetExec, ...)                                                          \
    ((asked)->is.how == WIRE_NODE_ADD ? KNOWN(Add, (&(asked)->node, (asked)->graph,                \
                                                    (asked)->before, (asked)->count, __VA_ARGS__)) \
     : (asked)->is.how == WIRE_NODE_SET                                                            \
         ? KNOWN(Set, ((asked)->node, FIRST(__VA_ARGS__, )))                                       \
         : KNOWN(SetExec, ((asked)->exec, (asked)->node, __VA_ARGS__)))
#define FIRST(first, ...) first
#define REAL(symbol) ((__typeof__(symbol) *)driver_function(EGPU_FN_##symbol))
#define KNOWN(symbol, arguments) \
    (REAL(symbol) == NULL ? CUDA_ERROR_NOT_SUPPORTED : REAL(symbol) arguments)

/* The end of every message: what the node comes after. */
static CUresult whole(struct task *task, struct asked *asked) {
    if (asked->is.how == WIRE_NODE_ADD)
        asked->count = task_handles(task, KIND_graph_node, asked->before);
    return task_refused(task, true);
}

static CUresult kernel(struct task *task, struct asked *asked) {
    struct wire_launch launch;
    get_bytes(&task->in, &launch, sizeof launch);
    if (launch.argument_bytes > WIRE_MAX_ARGUMENTS) task->in.bad = true;
    const void *arguments = take(&task->in, launch.argument_bytes);
    uint64_t function = handle_value(KIND_function, launch.function, &task->bad);
    CUresult result = whole(task, asked);
    if (result != CUDA_SUCCESS) return result;
    bool of_library = wire_kind_of(launch.function) == KIND_kernel;
    size_t bytes = launch.argument_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)arguments,
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    const CUDA_KERNEL_NODE_PARAMS is = {
        .func = of_library ? NULL : (CUfunction)(uintptr_t)function,
        .kern = of_library ? (CUkernel)(uintptr_t)function : NULL,
        .gridDimX = launch.grid[0],
        .gridDimY = launch.grid[1],
        .gridDimZ = launch.grid[2],
        .blockDimX = launch.block[0],
        .blockDimY = launch.block[1],
        .blockDimZ = launch.block[2],
        .sharedMemBytes = launch.shared_bytes,
        .extra = bytes ? extra : NULL,
        .ctx = asked->context,
    };
    return DO(asked, cuGraphAddKernelNode_v2, cuGraphKernelNodeSetParams_v2,
              cuGraphExecKernelNodeSetParams_v2, &is);
}

/* From the first byte of a volume to behind its last; 0: more than there can be, or what means
 * something of its own to a driver: a pitch or a height of 0 is as wide, or as high, as the copy.
 */
static uint64_t extent(const struct wire_node_copy *copy, uint64_t pitch, uint64_t height) {
    uint64_t rows, bytes;
    if (copy->width > HOST_BYTES || pitch > HOST_BYTES || height > HOST_BYTES ||
        copy->slices > HOST_BYTES || copy->rows > HOST_BYTES || copy->slices == 0 ||
        copy->rows == 0 || pitch == 0 || height == 0 ||
        __builtin_mul_overflow(copy->slices - 1, height, &rows) ||
        __builtin_add_overflow(rows, copy->rows - 1, &rows) ||
        __builtin_mul_overflow(rows, pitch, &bytes) ||
        __builtin_add_overflow(bytes, copy->width, &bytes))
        return 0;
    return bytes;
}

/* The address of the side that is host memory, if we have it. */
static uint64_t host_side(const struct wire_node_copy *copy, uint64_t address, uint64_t pitch,
                          uint64_t height) {
    uint64_t bytes = extent(copy, pitch, height);
    if (bytes == 0) return 0;
    if (copy->room == 0) return within_host(address, bytes) ? address : 0;
    bool packed = pitch == copy->width && height == copy->rows;
    return packed ? (uint64_t)(uintptr_t)room_of(copy->room, bytes) : 0;
}

static CUresult copy(struct task *task, struct asked *asked) {
    struct wire_node_copy copy;
    get_bytes(&task->in, &copy, sizeof copy);
    CUresult result = whole(task, asked);
    if (result != CUDA_SUCCESS) return result;
    if (copy.from_host) copy.from = host_side(&copy, copy.from, copy.from_pitch, copy.from_height);
    if (copy.to_host) copy.to = host_side(&copy, copy.to, copy.to_pitch, copy.to_height);
    if ((copy.from_host && copy.from == 0) || (copy.to_host && copy.to == 0) ||
        (copy.room != 0 && copy.from_host && copy.to_host))
        return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY3D is = {
        .srcMemoryType = copy.from_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .srcHost = (const void *)(uintptr_t)copy.from,
        .srcDevice = copy.from,
        .srcPitch = copy.from_pitch,
        .srcHeight = copy.from_height,
        .dstMemoryType = copy.to_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .dstHost = (void *)(uintptr_t)copy.to,
        .dstDevice = copy.to,
        .dstPitch = copy.to_pitch,
        .dstHeight = copy.to_height,
        .WidthInBytes = copy.width,
        .Height = copy.rows,
        .Depth = copy.slices,
    };
    return DO(asked, cuGraphAddMemcpyNode, cuGraphMemcpyNodeSetParams,
              cuGraphExecMemcpyNodeSetParams, &is, asked->context);
}

static CUresult fill(struct task *task, struct asked *asked) {
    CUDA_MEMSET_NODE_PARAMS is;
    get_bytes(&task->in, &is, sizeof is);
    CUresult result = whole(task, asked);
    if (result != CUDA_SUCCESS) return result;
    return DO(asked, cuGraphAddMemsetNode, cuGraphMemsetNodeSetParams,
              cuGraphExecMemsetNodeSetParams, &is, asked->context);
}

static CUresult host(struct task *task, struct asked *asked) {
    const CUDA_HOST_NODE_PARAMS is = {call_client, (void *)(uintptr_t)get_word(&task->in)};
    CUresult result = whole(task, asked);
    if (result != CUDA_SUCCESS) return result;
    session_shares_output();
    return DO(asked, cuGraphAddHostNode, cuGraphHostNodeSetParams, cuGraphExecHostNodeSetParams,
              &is);
}

static CUresult memory(struct task *task, struct asked *asked, CUdeviceptr *address) {
    struct wire_node_alloc alloc;
    CUmemAccessDesc accesses[WIRE_MAX_ARRAY];
    CUDA_MEM_ALLOC_NODE_PARAMS is = {0};
    get_bytes(&task->in, &alloc, sizeof alloc);
    get_bytes(&task->in, &is.poolProps, sizeof is.poolProps);
    if (alloc.accesses > WIRE_MAX_ARRAY || asked->is.how != WIRE_NODE_ADD) task->in.bad = true;
    if (!task->in.bad) get_bytes(&task->in, accesses, alloc.accesses * sizeof *accesses);
    task_on_card(task, &is.poolProps.location, is.poolProps.allocType);
    CUresult result = whole(task, asked);
    if (result != CUDA_SUCCESS) return result;
    is.poolProps.win32SecurityAttributes = NULL;
    is.accessDescs = alloc.accesses ? accesses : NULL;
    is.accessDescCount = alloc.accesses;
    is.bytesize = alloc.bytes;
    result = KNOWN(cuGraphAddMemAllocNode,
                   (&asked->node, asked->graph, asked->before, asked->count, &is));
    *address = is.dptr;
    return result;
}

/* Which graph and which node, as far as they are there already. */
static void place(struct task *task, struct asked *asked) {
    const struct wire_node *is = &asked->is;
    if (is->how > WIRE_NODE_SET_EXEC) task->in.bad = true;
    asked->context = (CUcontext)(uintptr_t)handle_value(KIND_context, is->context, &task->bad);
    if (is->how == WIRE_NODE_ADD)
        asked->graph = (CUgraph)(uintptr_t)handle_value(KIND_graph, is->graph, &task->bad);
    else
        asked->node = (CUgraphNode)(uintptr_t)handle_value(KIND_graph_node, is->node, &task->bad);
    if (is->how == WIRE_NODE_SET_EXEC)
        asked->exec = (CUgraphExec)(uintptr_t)handle_value(KIND_graph_exec, is->graph, &task->bad);
}

CUresult graph_node(struct task *task) {
    struct asked asked = {0};
    get_bytes(&task->in, &asked.is, sizeof asked.is);
    place(task, &asked);
    CUdeviceptr address = 0;
    CUresult result;
    switch (asked.is.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: result = kernel(task, &asked); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: result = copy(task, &asked); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: result = fill(task, &asked); break;
    case CU_GRAPH_NODE_TYPE_HOST: result = host(task, &asked); break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: result = memory(task, &asked, &address); break;
    default: return violation(task);
    }
    if (result != CUDA_SUCCESS || asked.is.how != WIRE_NODE_ADD) return result;
    task->context = asked.is.graph;
    handle_bind(task, KIND_graph_node, asked.is.node, (uint64_t)(uintptr_t)asked.node);
    if (asked.is.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) put_word(&task->out, address);
    return CUDA_SUCCESS;
}
