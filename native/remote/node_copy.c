/* Nodes that copy. A copy from or to host memory that the executor cannot map is a graph of two
 * nodes in one: the copy, from or to room in the executor, and a call of ours that fills the room
 * before it or empties the room after it. */
#include "node.h"

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
    return node_change(at, CU_GRAPH_NODE_TYPE_MEMCPY, &parameters, NULL);
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
    result = in ? node_call_host(&begin, room_fill, volume) : copy_node(&begin, copy);
    if (result == CUDA_SUCCESS)
        result = in ? copy_node(&end, copy) : node_call_host(&end, room_empty, volume);
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
    return result == CUDA_SUCCESS ? node_call_host(&called, in ? room_fill : room_empty, volume)
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
    return node_done(&at, with_room ? roomy(&at, link, &copy) : copy_node(&at, &copy), node);
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
