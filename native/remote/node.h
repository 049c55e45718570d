/* Nodes of graphs whose parameters have pointers or handles in them. The client keeps the
 * parameters of a node beside its handle, for a program that asks for them. */
#ifndef EGPU_REMOTE_NODE_H
#define EGPU_REMOTE_NODE_H

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

/* The place of a new node, or which node it is. */
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

struct parameters {
    const void *is;
    size_t bytes;
    const void *more;
    size_t more_bytes;
};

/* The parameters that the program gave; NULL: it did not make the node itself. */
struct node *node_of(CUgraphNode handle);
struct node *node_new(CUgraphNodeType type, size_t words);
/* Keeps the parameters of a new node, or of one that is changed in its graph. */
CUresult node_done(const struct at *at, CUresult result, struct node *node);
CUresult node_change(const struct at *at, CUgraphNodeType type, const struct parameters *parameters,
                     CUdeviceptr *address);
/* A node that calls the program. */
CUresult node_call_host(const struct at *at, CUhostFn function, void *data);

#endif
