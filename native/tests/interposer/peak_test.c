/* What peak.c says of graphs that exist only here: a list of nodes and the edges between them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../interposer/interposer.h"

enum { MOST = 20000, MIB = 1 << 20 };

struct CUgraphNode_st {
    CUdeviceptr allocates, frees;
    size_t bytes;
};
static struct CUgraphNode_st nodes[MOST];
static CUgraphNode from[MOST], to[MOST];
static size_t node_count, edge_count;

void *real_functions[REAL_COUNT];
void *real_function_slow(enum real_id id) {
    (void)id;
    return NULL;
}
uint64_t charge_of(uint64_t bytes) { return bytes; }

static CUresult get_nodes(CUgraph graph, CUgraphNode *list, size_t *count) {
    (void)graph;
    for (size_t i = 0; list != NULL && i < *count; i++) list[i] = &nodes[i];
    *count = node_count;
    return CUDA_SUCCESS;
}
static CUresult get_edges(CUgraph graph, CUgraphNode *before, CUgraphNode *after,
                          CUgraphEdgeData *data, size_t *count) {
    (void)graph, (void)data;
    for (size_t i = 0; before != NULL && i < *count; i++) before[i] = from[i], after[i] = to[i];
    *count = edge_count;
    return CUDA_SUCCESS;
}
static CUresult get_type(CUgraphNode node, CUgraphNodeType *type) {
    *type = node->frees != 0 ? CU_GRAPH_NODE_TYPE_MEM_FREE : CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    return CUDA_SUCCESS;
}
static CUresult get_allocation(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    parameters->bytesize = node->bytes;
    parameters->dptr = node->allocates;
    return CUDA_SUCCESS;
}
static CUresult get_free(CUgraphNode node, CUdeviceptr *pointer) {
    *pointer = node->frees;
    return CUDA_SUCCESS;
}

static void begin(void) {
    node_count = edge_count = 0;
    real_functions[REAL_cuGraphGetNodes] = (void *)get_nodes;
    real_functions[REAL_cuGraphGetEdges_v2] = (void *)get_edges;
    real_functions[REAL_cuGraphNodeGetType] = (void *)get_type;
    real_functions[REAL_cuGraphMemAllocNodeGetParams] = (void *)get_allocation;
    real_functions[REAL_cuGraphMemFreeNodeGetParams] = (void *)get_free;
}
static size_t allocate(CUdeviceptr at, size_t bytes) {
    nodes[node_count] = (struct CUgraphNode_st){.allocates = at, .bytes = bytes};
    return node_count++;
}
static size_t release(CUdeviceptr at) {
    nodes[node_count] = (struct CUgraphNode_st){.frees = at};
    return node_count++;
}
static void edge(size_t before, size_t after) {
    from[edge_count] = &nodes[before];
    to[edge_count++] = &nodes[after];
}

static int failures;
static void judge(const char *what, uint64_t wanted) {
    uint64_t got = graph_peak_bytes(NULL);
    bool bad = got != wanted;
    printf("%-60s %12llu %12llu%s\n", what, (unsigned long long)wanted, (unsigned long long)got,
           bad ? "  WRONG" : "");
    failures += bad;
}

/* Memory of the sizes, each freed before the next has its address; nodes in the order in which
 * they are listed, or the other way round. */
static void line(const size_t *sizes, size_t count, bool turned) {
    begin();
    for (size_t i = 0; i < count; i++) {
        size_t size = sizes[turned ? count - 1 - i : i];
        if (turned)
            release(4096), allocate(4096, size);
        else
            allocate(4096, size), release(4096);
    }
    for (size_t i = 1; i < node_count; i++)
        edge(turned ? node_count - i : i - 1, turned ? node_count - 1 - i : i);
}

int main(void) {
    static const size_t growing[] = {1 * MIB, 2 * MIB, 30 * MIB}, even[] = {5 * MIB, 5 * MIB};
    printf("%-60s %12s %12s\n", "bytes at one time", "wanted", "got");
    for (int turned = 0; turned < 2; turned++) {
        line(growing, 3, turned);
        judge("one address, given again to more and more", 30 * MIB);
        line(even, 2, turned);
        judge("one address, given again", 5 * MIB);
    }
    begin();
    size_t root = allocate(4096, 1 * MIB), one = allocate(8192, 2 * MIB),
           other = allocate(16384, 3 * MIB);
    edge(root, one), edge(root, other);
    judge("two branches have theirs beside each other", 6 * MIB);
    /* no edges: whatever is asked for each node is asked of all */
    begin();
    for (size_t i = 0; i < MOST; i++) allocate((i + 1) * 4096, 4096);
    judge("more nodes than are gone through", (uint64_t)MOST * 4096);
    return failures == 0 ? 0 : 1;
}
