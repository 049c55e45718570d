/* Addresses of memory that graphs allocate. A driver fixes them when the node is made, and each
 * launch uses them again, whatever the program has freed meanwhile. So they are reserved as long as
 * the context that was current: a driver gives those of a graph that is gone to the next one.
 */
#include "node.h"

#define ATTEMPTS 16

static struct range {
    struct range *next;
    uint64_t context, base, bytes;
} *ranges;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool lies_in(const struct range *inner, const struct range *outer) {
    return inner->context == outer->context && inner->base >= outer->base &&
           inner->base + inner->bytes <= outer->base + outer->bytes;
}

static bool is_of(const struct range *range, const struct range *of) {
    return range->context == of->context;
}

static void forget_all(bool (*gone)(const struct range *, const struct range *),
                       const struct range *of) {
    for (struct range **at = &ranges; *at != NULL;) {
        struct range *one = *at;
        if (!gone(one, of)) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        addresses_give(one->base, one->bytes);
        free(one);
    }
}

enum addresses graph_memory_take(unsigned server, uint64_t base, uint64_t bytes) {
    struct range is = {NULL, context_current(), base, bytes}, *made = malloc(sizeof *made);
    if (made == NULL) return ADDRESSES_UNKNOWN;
    pthread_mutex_lock(&lock);
    const struct range *known = ranges;
    while (known != NULL && !lies_in(&is, known)) known = known->next;
    enum addresses where = known != NULL ? ADDRESSES_TAKEN : addresses_take(server, base, bytes);
    if (known == NULL && where == ADDRESSES_TAKEN) {
        forget_all(lies_in, &is);
        *made = is;
        made->next = ranges;
        ranges = made;
        made = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(made);
    return where;
}

void graph_memory_forget(uint64_t context) {
    struct range of = {.context = context};
    pthread_mutex_lock(&lock);
    forget_all(is_of, &of);
    pthread_mutex_unlock(&lock);
}

/* ---- nodes ---- */

static CUresult add(struct at at, CUDA_MEM_ALLOC_NODE_PARAMS *is, unsigned *server) {
    struct call call; /* only its server is used */
    call_start(&call, OP_GRAPH_NODE);
    uint64_t wire;
    CUresult result = call_handle(&call, KIND_graph, at.graph, &wire);
    if (result != CUDA_SUCCESS) return result;
    if (is == NULL || is->accessDescCount > WIRE_MAX_ARRAY ||
        (is->accessDescCount != 0 && is->accessDescs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    *server = call.link->index;
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
    const struct parameters parameters = {&message, sizeof message, accesses,
                                          is->accessDescCount * sizeof *accesses};
    if (result == CUDA_SUCCESS)
        result = node_change(&at, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &parameters, &is->dptr);
    if (result == CUDA_SUCCESS) node->is.memory = *is;
    return node_done(&at, result, node);
}

/* Nodes with memory cannot be taken out of a graph again: memory where the program has its own is
 * freed by a node of its own, and there is another one. */
API CUresult cuGraphAddMemAllocNode(WHERE, CUDA_MEM_ALLOC_NODE_PARAMS *is) {
    CUresult result = call_ready();
    unsigned server;
    for (unsigned attempt = 0; result == CUDA_SUCCESS && attempt < ATTEMPTS; attempt++) {
        result = add((struct at)AT_NEW(NULL), is, &server);
        if (result != CUDA_SUCCESS ||
            graph_memory_take(server, is->dptr, is->bytesize) != ADDRESSES_OF_OTHERS)
            return result;
        CUgraphNode freed;
        result = cuGraphAddMemFreeNode(&freed, graph, out, 1, is->dptr);
    }
    return result != CUDA_SUCCESS
               ? result
               : not_supported("memory of a graph at addresses that the program uses");
}
