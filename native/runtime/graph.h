/* Functions that both major versions have under one name with different parameters: only pointers
 * and handles, as in the ABI. */
#ifndef EGPU_RUNTIME_GRAPH_H
#define EGPU_RUNTIME_GRAPH_H

#include <stddef.h>

#pragma GCC visibility push(hidden)

/* Add a node to a graph; `edges` has the data of each dependency, or is NULL. */
int runtime_add_node(void *out, void *graph, const void *before, const void *edges, size_t count,
                     void *params);

#pragma GCC visibility pop

#endif
