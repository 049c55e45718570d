/* Conditional nodes, and the values that kernels set for them. A handle is the value's address, in
 * memory that kernels reach (ptx/parse.c has the function that writes it). */
#include "graph.h"
#include "memory.h"

#include <stdlib.h>

enum { VALUE_BYTES = 4096, MOST_BODIES = 1024 };

struct condition {
    _Atomic int refs; /* graphs that have it: the program's, and copies of it */
    _Atomic uint32_t *value;
    uint32_t first; /* set at each launch of the graph if `reset` */
    bool reset, used;
};

struct conditions {
    struct conditions *next;
    struct condition *is;
};

static bool have(struct graph *graph, struct condition *condition) {
    struct conditions *entry = malloc(sizeof *entry);
    if (!entry) return false;
    *entry = (struct conditions){graph->conditions, condition};
    graph->conditions = entry;
    atomic_fetch_add(&condition->refs, 1);
    return true;
}

static void drop(struct condition *condition) {
    struct extent freed;
    if (atomic_fetch_sub(&condition->refs, 1) != 1) return;
    memory_host_free((void *)(uintptr_t)condition->value, EXTENT_PINNED, &freed);
    free(condition);
}

CUresult condition_create(struct graph *graph, uint32_t first, bool reset, uint64_t *handle) {
    struct condition *condition = calloc(1, sizeof *condition);
    void *value = NULL;
    if (!condition || memory_host_alloc(VALUE_BYTES, EXTENT_PINNED, 0, NULL, &value) != 0) {
        free(condition);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *condition = (struct condition){.refs = 1, .value = value, .first = first, .reset = reset};
    atomic_store(condition->value, reset ? first : 0);
    *handle = (uint64_t)(uintptr_t)value;
    bool kept = have(graph, condition);
    drop(condition);
    return kept ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool conditions_copy(struct graph *to, const struct graph *from) {
    for (const struct conditions *entry = from->conditions; entry; entry = entry->next)
        if (!have(to, entry->is)) return false;
    return true;
}

void conditions_clear(struct graph *graph) {
    while (graph->conditions) {
        struct conditions *entry = graph->conditions;
        graph->conditions = entry->next;
        drop(entry->is);
        free(entry);
    }
}

/* Find a handle of this graph, or of one that contains it. */
static struct condition *find(const struct graph *graph, uint64_t handle) {
    for (; graph; graph = graph->holder ? graph->holder->graph : NULL)
        for (const struct conditions *entry = graph->conditions; entry; entry = entry->next)
            if ((uint64_t)(uintptr_t)entry->is->value == handle) return entry->is;
    return NULL;
}

/* ---- nodes ---- */

static bool fits(CUgraphConditionalNodeType type, unsigned size) {
    switch ((int)type) {
    case CU_GRAPH_COND_TYPE_IF: return size == 1 || size == 2;
    case CU_GRAPH_COND_TYPE_WHILE: return size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH: return size > 0 && size <= MOST_BODIES;
    default: return false;
    }
}

static struct graph *adopt(struct graph *body, struct node *node) {
    if (body) body->owned = true, body->holder = node;
    return body;
}

CUresult condition_check(const struct graph *graph, const CUDA_CONDITIONAL_NODE_PARAMS *params) {
    const struct condition *condition = find(graph, params->handle);
    return condition && !condition->used && fits(params->type, params->size)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

bool condition_begin(struct node *node, CUDA_CONDITIONAL_NODE_PARAMS *params) {
    node->condition = find(node->graph, params->handle);
    node->bodies = calloc(params->size, sizeof *node->bodies);
    bool made = node->bodies != NULL;
    for (; made && node->body_count < params->size; node->body_count++)
        made = (node->bodies[node->body_count] = adopt(graph_create(), node)) != NULL;
    if (!made) return false;
    node->condition->used = true;
    params->phGraph_out = (CUgraph *)node->bodies;
    node->params.conditional = *params;
    return true;
}

bool condition_clone(struct node *to, const struct node *from) {
    if (!from->body_count) return true;
    to->condition = from->condition;
    to->bodies = calloc(from->body_count, sizeof *to->bodies);
    bool made = to->bodies != NULL;
    for (; made && to->body_count < from->body_count; to->body_count++)
        made = (to->bodies[to->body_count] =
                    adopt(graph_clone(from->bodies[to->body_count]), to)) != NULL;
    if (made) to->params.conditional.phGraph_out = (CUgraph *)to->bodies;
    return made;
}

void condition_end(struct node *node) {
    if (node->condition && !node->original) node->condition->used = false;
    for (unsigned i = 0; i < node->body_count; i++)
        if (node->bodies[i]) graph_destroy(node->bodies[i]);
    free(node->bodies);
}

bool graph_decides(const struct graph *graph) {
    for (const struct node *node = graph->first; node; node = node->next)
        if (node->condition || (node->child && graph_decides(node->child))) return true;
    return graph->conditions != NULL;
}

/* ---- instantiating and running ---- */

/* Return whether a graph has only nodes that a body may have, and uses all its handles. */
static bool is_body(const struct graph *graph) {
    for (const struct node *node = graph->first; node; node = node->next) {
        bool may =
            node->type == CU_GRAPH_NODE_TYPE_KERNEL || node->type == CU_GRAPH_NODE_TYPE_EMPTY ||
            node->type == CU_GRAPH_NODE_TYPE_GRAPH || node->type == CU_GRAPH_NODE_TYPE_MEMSET ||
            node->type == CU_GRAPH_NODE_TYPE_MEMCPY || node->type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
        if (!may || (node->child && !is_body(node->child))) return false;
    }
    return conditions_whole(graph);
}

bool conditions_whole(const struct graph *graph) {
    for (const struct conditions *entry = graph->conditions; entry; entry = entry->next)
        if (!entry->is->used) return false;
    for (const struct node *node = graph->first; node; node = node->next)
        for (unsigned i = 0; i < node->body_count; i++)
            if (!is_body(node->bodies[i])) return false;
    return true;
}

void conditions_reset(const struct graph *graph) {
    for (const struct conditions *entry = graph->conditions; entry; entry = entry->next)
        if (entry->is->reset) atomic_store(entry->is->value, entry->is->first);
    for (const struct node *node = graph->first; node; node = node->next)
        for (unsigned i = 0; i < node->body_count; i++) conditions_reset(node->bodies[i]);
}

struct graph *condition_next(const struct node *node, unsigned round) {
    uint32_t value = atomic_load(node->condition->value);
    switch ((int)node->params.conditional.type) {
    case CU_GRAPH_COND_TYPE_WHILE: return value ? node->bodies[0] : NULL;
    case CU_GRAPH_COND_TYPE_SWITCH:
        return round == 0 && value < node->body_count ? node->bodies[value] : NULL;
    default: /* if, and if with an else */
        if (round) return NULL;
        return value ? node->bodies[0] : node->body_count > 1 ? node->bodies[1] : NULL;
    }
}
