/* What both major versions have under one name with other parameters: pointers and handles only, as
 * the ABI passes them. */
#ifndef EGPU_RUNTIME_GRAPH_H
#define EGPU_RUNTIME_GRAPH_H

#include <stddef.h>

#pragma GCC visibility push(hidden)

/* Adds a node to a graph; `edges` says of each that comes before it how, or is NULL. */
int runtime_add_node(void *out, void *graph, const void *before, const void *edges, size_t count,
                     void *params);

#pragma GCC visibility pop

#endif
