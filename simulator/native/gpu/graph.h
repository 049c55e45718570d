/* Graphs: nodes and their dependencies; plans, which are graphs in an order for launching;
 * captures, which write graphs. */
#ifndef EGPU_SIM_GRAPH_H
#define EGPU_SIM_GRAPH_H

#include "engine.h"

/* An address that a graph's allocation gets at each launch. */
struct graph_memory {
    struct device *device;
    uint64_t address, bytes, asked;
    _Atomic int refs;      /* nodes, in graphs and in plans */
    atomic_bool allocated; /* as requested so far, in the order of the calls */
    /* The part of `bytes` that earlier, freed allocations of its plan do not cover. */
    uint64_t fresh_bytes;
    const struct plan *plan; /* of the last computation */
    int launches;            /* not over yet */
    bool mapped;             /* on the card now */
    struct graph_memory *next;
};

struct node {
    CUgraphNodeType type;
    struct graph *graph;
    /* of the graph, in the order of creation; of a plan, in the order of execution */
    struct node *next, *previous;
    struct nodes before; /* its dependencies */
    struct op *op;       /* its operation; NULL: none, or a child graph */
    struct graph *child;
    /* of a conditional node: its handle, and the graphs to choose from */
    struct condition *condition;
    struct graph **bodies;
    unsigned body_count;
    struct graph_memory *memory; /* an allocation's */
    struct node *original;       /* of a clone */
    unsigned id;
    bool enabled;
    int mark;
    /* As given, for queries. */
    union {
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS fill;
        CUDA_HOST_NODE_PARAMS host;
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUdeviceptr free;
        CUevent event;
        CUDA_CONDITIONAL_NODE_PARAMS conditional;
    } params;
    void **param_pointers; /* of kernels: into op->launch.params */
};

struct graph {
    struct node *first, *last;
    size_t count;
    unsigned id, next_node_id;
    struct graph *original;
    bool owned;        /* a child: it ends with its node */
    struct kept *kept; /* user objects */
    struct conditions *conditions;
    struct node *holder;         /* of a body: its conditional node */
    struct instances *instances; /* executable graphs made from it */
};

/* A graph with memory or conditions has one executable graph at a time, which may outlive it. */
struct instances {
    _Atomic int refs, live;
};

struct plan {
    struct graph *graph;
    _Atomic int refs;
};

void instances_drop(struct instances *instances);

struct exec {
    pthread_mutex_t lock;
    struct plan *plan;
    unsigned long long flags;
    unsigned id;
    struct instances *instances; /* of the graph from which it was made */
};

/* false: no memory; adding again has no effect */
bool nodes_add(struct nodes *nodes, struct node *node);
bool nodes_copy(struct nodes *to, const struct nodes *from);
bool nodes_have(const struct nodes *nodes, const struct node *node);
void nodes_remove(struct nodes *nodes, const struct node *node);
void nodes_clear(struct nodes *nodes);

/* cuGraphAddNode with edges that have no data */
CUresult graph_add_any(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                       CUgraphNodeParams *params);
/* Refuses edges with data; NULL has none. */
CUresult edges_check(const CUgraphEdgeData *edges, size_t count);

struct graph *graph_create(void);
void graph_destroy(struct graph *graph);
struct graph *graph_clone(struct graph *graph);
/* Add a node. Takes the operation, also on failure (NULL). */
struct node *graph_add(struct graph *graph, CUgraphNodeType type, struct node *const *before,
                       size_t count, struct op *op);
void graph_remove(struct node *node);
/* Return whether it allocates or frees: then no node may be removed, and it may not be copied. */
bool graph_has_memory(const struct graph *graph);
/* Sort all nodes after their dependencies. False: there is a cycle. */
bool graph_sort(struct graph *graph);

struct plan *plan_create(struct graph *graph, CUresult *why);
void plan_release(struct plan *plan);
/* Give it a plan of its own, which may be changed: queued launches keep theirs. */
CUresult exec_own_plan(struct exec *exec);
struct node *exec_node(struct exec *exec, const struct node *original);
void plan_run(struct stream *stream, const struct op *op);
void plan_skip(const struct op *op); /* its context has failed: only reach its events */
/* Count what the launch will record and wait for. */
CUresult plan_count_records(struct op *op);
/* Note the graph's allocations and frees. CUDA_ERROR_INVALID_VALUE: an allocation of an earlier
 * launch was not freed. */
CUresult plan_account(struct plan *plan, bool auto_free);
void plan_over(struct plan *plan); /* an accounted launch is over or never began */

/* ---- user objects ---- */

struct user_object;
struct user_object *user_object_create(void *value, CUhostFn destroy, unsigned refs);
void user_object_retain(struct user_object *object, unsigned count);
/* False: the program has fewer references. The last reference calls the destructor. */
bool user_object_release(struct user_object *object, unsigned count);
/* Move: the program's references become the graph's; CUDA_ERROR_INVALID_VALUE if it has fewer. */
CUresult graph_keep(struct graph *graph, struct user_object *object, unsigned count, bool move);
/* False: the graph has fewer. */
bool graph_unkeep(struct graph *graph, struct user_object *object, unsigned count);
bool graph_keep_the_same(struct graph *graph, const struct graph *other); /* false: no memory */
void graph_keep_nothing(struct graph *graph);

/* ---- memory of graphs ---- */

struct graph_memory *graph_memory_create(struct device *device, uint64_t bytes);
void graph_memory_release(struct graph_memory *memory);
/* Return whether it is a graph's, allocated now or not. */
bool graph_memory_covers(uint64_t address, uint64_t bytes);
/* Return whether a graph allocated this address and no one freed it. If so, note that it is
 * freed. */
bool graph_memory_forget(uint64_t address);
void graph_memory_mapped(uint64_t address);                        /* on the card from now on */
void graph_memory_free(struct context *context, uint64_t address); /* now */
void graph_memory_context_gone(struct context *context);

/* ---- captures ---- */

struct capture {
    struct graph *graph;
    struct context *context;
    struct stream *origin;
    CUstreamCaptureMode mode;
    CUstreamCaptureStatus status; /* NONE: it has ended */
    cuuint64_t id;
    uint64_t thread;
    bool foreign;         /* the program owns the graph */
    _Atomic int refs;     /* streams and events */
    struct capture *next; /* of the active ones */
};

CUresult capture_begin(struct stream *stream, CUstreamCaptureMode mode, struct graph *graph,
                       struct node *const *before, size_t count);
CUresult capture_end(struct stream *stream, struct graph **out);
CUresult capture_submit(struct stream *stream, struct op *op); /* takes the operation */
CUresult capture_add(struct stream *stream, CUgraphNodeType type, struct op *op, struct node **out);
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event);
void capture_forget_event(struct event *event);
void capture_forget_stream(struct stream *stream); /* the stream is destroyed */
/* Return whether an active capture writes this graph: then it and its nodes must stay. */
bool capture_writes(const struct graph *graph);
/* Check whether this stream, which is not captured, may run an operation. The default stream may
 * not while streams that follow it are captured. */
CUresult capture_allows(struct stream *stream);
/* For calls that cannot be captured: those that synchronise or would make captured streams wait. */
CUresult capture_forbids(struct stream *stream);
CUresult capture_unsafe_call(void);
CUstreamCaptureMode capture_exchange_mode(CUstreamCaptureMode mode);

CUresult graph_add_conditional(CUgraphNode *out, CUgraph graph, const CUgraphNode *before,
                               size_t count, CUDA_CONDITIONAL_NODE_PARAMS *params);

/* ---- condition.c: conditional nodes ---- */

CUresult condition_create(struct graph *graph, uint32_t first, bool reset, uint64_t *handle);
bool conditions_copy(struct graph *to, const struct graph *from);
void conditions_clear(struct graph *graph);
CUresult condition_check(const struct graph *graph, const CUDA_CONDITIONAL_NODE_PARAMS *params);
/* Make the bodies of a new node, or of a clone. False: no memory; they are freed with the node. */
bool condition_begin(struct node *node, CUDA_CONDITIONAL_NODE_PARAMS *params);
bool condition_clone(struct node *to, const struct node *from);
void condition_end(struct node *node);
/* Return whether it has conditional nodes, or handles for them. */
bool graph_decides(const struct graph *graph);
/* Return whether every handle has its node, and every body only allowed nodes. */
bool conditions_whole(const struct graph *graph);
void conditions_reset(const struct graph *graph); /* at a graph's launch */
/* Return the body of this round, from 0; NULL: no more. */
struct graph *condition_next(const struct node *node, unsigned round);

/* graph_dot.c; all: with the nodes' operations. */
CUresult graph_write_dot(const struct graph *graph, const char *path, bool all);

#endif
