/* How much memory a graph has at one time: it may free and allocate again and again.
 *
 * When a node allocates, all that others allocated can be there, but for what is freed on every way
 * to it, and for what is allocated only behind it. The most that this comes to at any node is the
 * peak: exact for nodes in one line, an upper bound for branches. The driver says afterwards what
 * it keeps. Allocations that are never there together may have the same address.
 */
#include "interposer.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_DEPTH = 8, /* of graphs in graphs */
    /* of edges and nodes, for all nodes together; beyond, all allocations count */
    MAX_VISITS = 20000000,
};

struct node {
    uint64_t bytes;      /* that it allocates */
    CUdeviceptr address; /* … or frees, and where */
    size_t freed_by;     /* the node; itself: none */
    size_t level;        /* of the longest way to it: more than that of any node before it */
};

struct graph {
    size_t nodes, edges;
    CUgraphNode *handles;
    struct node *list;
    size_t *from, *to; /* edges, by numbers of nodes */
    uint8_t *reached;
};

static uint64_t peak(CUgraph graph, int depth);

static int by_handle(const void *a, const void *b) {
    uintptr_t one = *(const uintptr_t *)a, other = *(const uintptr_t *)b;
    return one < other ? -1 : one > other;
}

static bool list_nodes(struct graph *graph, CUgraph handle) {
    if (REAL(cuGraphGetNodes) == NULL ||
        REAL(cuGraphGetNodes)(handle, NULL, &graph->nodes) != CUDA_SUCCESS || graph->nodes == 0)
        return false;
    graph->handles = calloc(graph->nodes, sizeof *graph->handles);
    graph->list = calloc(graph->nodes, sizeof *graph->list);
    graph->reached = calloc(graph->nodes, sizeof *graph->reached);
    if (graph->handles == NULL || graph->list == NULL || graph->reached == NULL ||
        REAL(cuGraphGetNodes)(handle, graph->handles, &graph->nodes) != CUDA_SUCCESS)
        return false;
    qsort(graph->handles, graph->nodes, sizeof *graph->handles, by_handle);
    return true;
}

/* What a node has to do with memory. */
static void describe(struct node *node, CUgraphNode handle, int depth) {
    CUgraphNodeType type;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation;
    CUgraph child;
    if (REAL(cuGraphNodeGetType) == NULL || REAL(cuGraphNodeGetType)(handle, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && REAL(cuGraphMemAllocNodeGetParams) != NULL &&
        REAL(cuGraphMemAllocNodeGetParams)(handle, &allocation) == CUDA_SUCCESS) {
        node->bytes = charge_of(allocation.bytesize);
        node->address = allocation.dptr;
    } else if (type == CU_GRAPH_NODE_TYPE_MEM_FREE && REAL(cuGraphMemFreeNodeGetParams) != NULL) {
        REAL(cuGraphMemFreeNodeGetParams)(handle, &node->address);
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH && REAL(cuGraphChildGraphNodeGetGraph) != NULL &&
               REAL(cuGraphChildGraphNodeGetGraph)(handle, &child) == CUDA_SUCCESS) {
        node->bytes = peak(child, depth + 1);
    }
}

static size_t number_of(const struct graph *graph, CUgraphNode handle) {
    const CUgraphNode *found =
        bsearch(&handle, graph->handles, graph->nodes, sizeof *graph->handles, by_handle);
    return found == NULL ? 0 : (size_t)(found - graph->handles);
}

/* False: the driver does not say what comes after what. */
static bool list_edges(struct graph *graph, CUgraph handle) {
    size_t count = 0;
    if (REAL(cuGraphGetEdges_v2) == NULL ||
        REAL(cuGraphGetEdges_v2)(handle, NULL, NULL, NULL, &count) != CUDA_SUCCESS)
        return false;
    graph->edges = count;
    if (count == 0) return true;
    CUgraphNode *from = calloc(count, sizeof *from), *to = calloc(count, sizeof *to);
    CUgraphEdgeData *data = calloc(count, sizeof *data);
    graph->from = calloc(count, sizeof *graph->from);
    graph->to = calloc(count, sizeof *graph->to);
    bool listed = from != NULL && to != NULL && data != NULL && graph->from != NULL &&
                  graph->to != NULL &&
                  REAL(cuGraphGetEdges_v2)(handle, from, to, data, &count) == CUDA_SUCCESS;
    for (size_t i = 0; listed && i < graph->edges; i++) {
        graph->from[i] = number_of(graph, from[i]);
        graph->to[i] = number_of(graph, to[i]);
    }
    free(from);
    free(to);
    free(data);
    return listed;
}

/* Edges are mostly listed in some order, so they are gone through in both. */
static size_t edge_at(const struct graph *graph, size_t i) {
    return i < graph->edges ? i : 2 * graph->edges - 1 - i;
}

static void find_levels(struct graph *graph, uint64_t *visits) {
    for (bool more = true; more && *visits < MAX_VISITS;) {
        more = false;
        *visits += 2 * graph->edges;
        for (size_t i = 0; i < 2 * graph->edges; i++) {
            const struct node *before = &graph->list[graph->from[edge_at(graph, i)]];
            struct node *node = &graph->list[graph->to[edge_at(graph, i)]];
            if (node->level > before->level) continue;
            node->level = before->level + 1;
            more = true;
        }
    }
}

/* Of those that free the address, the next behind the node: the others are of allocations that have
 * the address before or after it. */
static void find_free(struct graph *graph, size_t of, uint64_t *visits) {
    struct node *node = &graph->list[of];
    node->freed_by = of;
    if (node->bytes == 0 || node->address == 0) return;
    *visits += graph->nodes;
    for (size_t i = 0; i < graph->nodes; i++) {
        const struct node *other = &graph->list[i];
        if (other->bytes == 0 && other->address == node->address && other->level > node->level &&
            (node->freed_by == of || other->level < graph->list[node->freed_by].level))
            node->freed_by = i;
    }
}

/* Marks what comes behind a node; with the edges turned round, what comes before it. */
static void reach(struct graph *graph, size_t start, const size_t *from, const size_t *to,
                  uint64_t *visits) {
    memset(graph->reached, 0, graph->nodes);
    *visits += graph->nodes;
    graph->reached[start] = 1;
    for (bool more = true; more && *visits < MAX_VISITS;) {
        more = false;
        *visits += 2 * graph->edges;
        for (size_t i = 0; i < 2 * graph->edges; i++) {
            size_t edge = edge_at(graph, i);
            if (graph->reached[from[edge]] && !graph->reached[to[edge]])
                graph->reached[to[edge]] = more = true;
        }
    }
}

static uint64_t alive_at(struct graph *graph, size_t at, uint64_t *visits) {
    uint64_t bytes = 0;
    reach(graph, at, graph->from, graph->to, visits);
    for (size_t i = 0; i < graph->nodes; i++)
        if (i == at || !graph->reached[i]) bytes = add_bytes(bytes, graph->list[i].bytes);
    reach(graph, at, graph->to, graph->from, visits);
    for (size_t i = 0; i < graph->nodes; i++)
        if (graph->list[i].freed_by != i && graph->reached[graph->list[i].freed_by])
            bytes -= graph->list[i].bytes;
    return bytes;
}

static uint64_t peak_of(struct graph *graph, bool ordered) {
    uint64_t all = 0, most = 0, visits = 0;
    for (size_t i = 0; i < graph->nodes; i++) all = add_bytes(all, graph->list[i].bytes);
    if (ordered) find_levels(graph, &visits);
    for (size_t i = 0; ordered && i < graph->nodes && visits < MAX_VISITS; i++)
        find_free(graph, i, &visits);
    for (size_t i = 0; ordered && i < graph->nodes && visits < MAX_VISITS; i++) {
        if (graph->list[i].bytes == 0) continue;
        uint64_t alive = alive_at(graph, i, &visits);
        if (alive > most) most = alive;
    }
    return ordered && visits < MAX_VISITS ? most : all;
}

static uint64_t peak(CUgraph handle, int depth) {
    struct graph graph = {0};
    uint64_t bytes = 0;
    if (depth <= MAX_DEPTH && list_nodes(&graph, handle)) {
        for (size_t i = 0; i < graph.nodes; i++) describe(&graph.list[i], graph.handles[i], depth);
        bytes = peak_of(&graph, list_edges(&graph, handle));
    }
    free(graph.handles);
    free(graph.list);
    free(graph.from);
    free(graph.to);
    free(graph.reached);
    return bytes;
}

uint64_t graph_peak_bytes(CUgraph graph) { return peak(graph, 0); }
