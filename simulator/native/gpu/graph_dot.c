/* Graphs in Graphviz's language (DOT), for people. */
#include "graph.h"

#include <stdio.h>

static const char *kind_of(const struct node *node) {
    switch ((int)node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return "KERNEL";
    case CU_GRAPH_NODE_TYPE_MEMCPY: return "MEMCPY";
    case CU_GRAPH_NODE_TYPE_MEMSET: return "MEMSET";
    case CU_GRAPH_NODE_TYPE_HOST: return "HOST";
    case CU_GRAPH_NODE_TYPE_GRAPH: return "GRAPH";
    case CU_GRAPH_NODE_TYPE_EMPTY: return "EMPTY";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return "EVENT_WAIT";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return "EVENT_RECORD";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return "MEM_ALLOC";
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return "MEM_FREE";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return "CONDITIONAL";
    default: return "OTHER";
    }
}

static void say(FILE *file, const struct node *node, bool all) {
    const struct op *op = node->op;
    fprintf(file, "  graph_%u_node_%u [label=\"%u\\n%s", node->graph->id, node->id, node->id,
            kind_of(node));
    if (node->type == CU_GRAPH_NODE_TYPE_KERNEL)
        fprintf(file, "\\n%s", op->launch.function->info->name);
    if (all && node->type == CU_GRAPH_NODE_TYPE_KERNEL)
        fprintf(file, "\\n<<<(%u,%u,%u),(%u,%u,%u),%u>>>", op->launch.grid[0], op->launch.grid[1],
                op->launch.grid[2], op->launch.block[0], op->launch.block[1], op->launch.block[2],
                op->launch.shared_bytes);
    if (all && node->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        fprintf(file, "\\n%zu x %zu x %zu bytes", op->copy.width, op->copy.rows, op->copy.slices);
    if (all && node->type == CU_GRAPH_NODE_TYPE_MEMSET)
        fprintf(file, "\\n%u, %zu x %zu", op->fill.value, op->fill.width, op->fill.rows);
    fprintf(file, "\"];\n");
    for (size_t i = 0; i < node->before.count; i++)
        fprintf(file, "  graph_%u_node_%u -> graph_%u_node_%u;\n", node->graph->id,
                node->before.list[i]->id, node->graph->id, node->id);
}

static void say_graph(FILE *file, const struct graph *graph, bool all) {
    fprintf(file, "  subgraph cluster_%u {\n  label=\"graph_%u\";\n", graph->id, graph->id);
    for (const struct node *node = graph->first; node; node = node->next) {
        say(file, node, all);
        if (node->child) say_graph(file, node->child, all);
    }
    fprintf(file, "  }\n");
}

CUresult graph_write_dot(const struct graph *graph, const char *path, bool all) {
    FILE *file = fopen(path, "we");
    if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph dot {\n");
    say_graph(file, graph, all);
    fprintf(file, "}\n");
    bool whole = !ferror(file);
    return fclose(file) == 0 && whole ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
