/* Graphs: nodes and what they come after; plans, which are graphs put in order for launching;
 * captures, which write graphs. */
#ifndef EGPU_SIM_GRAPH_H
#define EGPU_SIM_GRAPH_H

#include "engine.h"

/* An address that a graph's allocation will have each time it is launched. */
struct graph_memory {
    struct device *device;
    uint64_t address, bytes, asked;
    _Atomic int refs;      /* nodes, in graphs and in plans */
    atomic_bool allocated; /* as far as has been asked for, in the order of the calls */
    /* Of `bytes`, what its plan's earlier allocations have not left when they were freed. */
    uint64_t fresh_bytes;
    const struct plan *plan; /* that this was last found out for */
    int launches;            /* that are not over */
    bool mapped;             /* on the card */
    struct graph_memory *next;
};

struct node {
    CUgraphNodeType type;
    struct graph *graph;
    /* of the graph, in the order of creation; of a plan, in the order of execution */
    struct node *next, *previous;
    struct nodes before; /* what it comes after */
    struct op *op;       /* what it does; NULL: nothing, or a child graph */
    struct graph *child;
    /* of a conditional node: what it decides by, and among which graphs */
    struct condition *condition;
    struct graph **bodies;
    unsigned body_count;
    struct graph_memory *memory; /* an allocation's */
    struct node *original;       /* in a clone */
    unsigned id;
    bool enabled;
    int mark;
    /* As given, for those who ask. */
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
    void **param_pointers; /* kernels: into op->launch.params */
};

struct graph {
    struct node *first, *last;
    size_t count;
    unsigned id, next_node_id;
    struct graph *original;
    bool owned;        /* a child: it goes with its node */
    struct kept *kept; /* user objects */
    struct conditions *conditions;
    struct node *holder;         /* a body: of this conditional node */
    struct instances *instances; /* what it was instantiated as */
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
    struct instances *instances; /* of the graph that it was made of */
};

/* false: no memory; a second time changes nothing */
bool nodes_add(struct nodes *nodes, struct node *node);
bool nodes_copy(struct nodes *to, const struct nodes *from);
bool nodes_have(const struct nodes *nodes, const struct node *node);
void nodes_remove(struct nodes *nodes, const struct node *node);
void nodes_clear(struct nodes *nodes);

/* cuGraphAddNode without edges that carry anything */
CUresult graph_add_any(CUgraphNode *out, CUgraph graph, const CUgraphNode *before, size_t count,
                       CUgraphNodeParams *params);
bool edges_plain(const CUgraphEdgeData *edges, size_t count); /* NULL is, too */

struct graph *graph_create(void);
void graph_destroy(struct graph *graph);
struct graph *graph_clone(struct graph *graph);
/* Takes the operation, also when it fails (NULL). */
struct node *graph_add(struct graph *graph, CUgraphNodeType type, struct node *const *before,
                       size_t count, struct op *op);
void graph_remove(struct node *node);
/* Whether it allocates or frees: then nothing of it may be removed, and it may not be copied. */
bool graph_has_memory(const struct graph *graph);
/* Into an order in which everything comes after what it depends on. False: there is a cycle. */
bool graph_sort(struct graph *graph);

struct plan *plan_create(struct graph *graph, CUresult *why);
void plan_release(struct plan *plan);
/* A plan that nobody else has, so that it may be changed: queued launches keep the one they were
 * made with. */
CUresult exec_own_plan(struct exec *exec);
struct node *exec_node(struct exec *exec, const struct node *original);
void plan_run(struct stream *stream, const struct op *op);
void plan_skip(const struct op *op); /* its context has failed: only its events are reached */
/* Counts what the launch will record, and what it waits for. */
CUresult plan_count_records(struct op *op);
/* Notes what the graph allocates and frees. CUDA_ERROR_INVALID_VALUE: an allocation of an earlier
 * launch was not freed. */
CUresult plan_account(struct plan *plan, bool auto_free);
void plan_over(struct plan *plan); /* a launch that was accounted is over, or never began */

/* ---- user objects ---- */

struct user_object;
struct user_object *user_object_create(void *value, CUhostFn destroy, unsigned refs);
void user_object_retain(struct user_object *object, unsigned count);
/* False: the program has not as many references. The last one calls the destructor. */
bool user_object_release(struct user_object *object, unsigned count);
/* Move: the program's references become the graph's; CUDA_ERROR_INVALID_VALUE when it has not as
 * many. */
CUresult graph_keep(struct graph *graph, struct user_object *object, unsigned count, bool move);
/* False: the graph has not as many. */
bool graph_unkeep(struct graph *graph, struct user_object *object, unsigned count);
bool graph_keep_the_same(struct graph *graph, const struct graph *other); /* false: no memory */
void graph_keep_nothing(struct graph *graph);

/* ---- memory of graphs ---- */

struct graph_memory *graph_memory_create(struct device *device, uint64_t bytes);
void graph_memory_release(struct graph_memory *memory);
/* Is it a graph's, allocated now or not? */
bool graph_memory_covers(uint64_t address, uint64_t bytes);
/* Is this an address that a graph allocated and nobody freed? If so note that it is freed from now
 * on. */
bool graph_memory_forget(uint64_t address);
void graph_memory_mapped(uint64_t address);                        /* it is on the card now */
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
    bool foreign;         /* the graph is the program's own */
    _Atomic int refs;     /* streams and events */
    struct capture *next; /* of those that go on */
};

CUresult capture_begin(struct stream *stream, CUstreamCaptureMode mode, struct graph *graph,
                       struct node *const *before, size_t count);
CUresult capture_end(struct stream *stream, struct graph **out);
CUresult capture_submit(struct stream *stream, struct op *op); /* takes the operation */
CUresult capture_add(struct stream *stream, CUgraphNodeType type, struct op *op, struct node **out);
CUresult capture_record(struct stream *stream, struct event *event);
CUresult capture_wait(struct stream *stream, struct event *event);
void capture_forget_event(struct event *event);
void capture_forget_stream(struct stream *stream); /* it is destroyed */
/* Whether a capture goes on that writes this graph: neither it nor nodes of it may go away. */
bool capture_writes(const struct graph *graph);
/* May this stream, which is not captured, do something now? The default stream may not while
 * streams that follow it are. */
CUresult capture_allows(struct stream *stream);
/* For calls that cannot be captured: synchronising, and what would make captured streams wait. */
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
/* The bodies of a new node, and of a clone; false: no memory, and what is there goes with the
 * node. */
bool condition_begin(struct node *node, CUDA_CONDITIONAL_NODE_PARAMS *params);
bool condition_clone(struct node *to, const struct node *from);
void condition_end(struct node *node);
/* It has conditional nodes, or handles for them. */
bool graph_decides(const struct graph *graph);
/* Every handle has its node, and every body has what it may have. */
bool conditions_whole(const struct graph *graph);
void conditions_reset(const struct graph *graph); /* the graph is launched */
/* The body to run in this round, from 0; NULL: none any more. */
struct graph *condition_next(const struct node *node, unsigned round);

/* graph_dot.c; all: with what the nodes do. */
CUresult graph_write_dot(const struct graph *graph, const char *path, bool all);

#endif
