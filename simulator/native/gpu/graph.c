#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- lists of nodes ---- */

bool nodes_have(const struct nodes *nodes, const struct node *node) {
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->list[i] == node) return true;
    return false;
}

bool nodes_add(struct nodes *nodes, struct node *node) {
    if (nodes_have(nodes, node)) return true;
    if (nodes->count == nodes->room) {
        size_t room = nodes->room ? nodes->room * 2 : 4;
        struct node **list = realloc(nodes->list, room * sizeof *list);
        if (!list) return false;
        nodes->list = list;
        nodes->room = room;
    }
    nodes->list[nodes->count++] = node;
    return true;
}

bool nodes_copy(struct nodes *to, const struct nodes *from) {
    for (size_t i = 0; i < from->count; i++)
        if (!nodes_add(to, from->list[i])) return false;
    return true;
}

void nodes_remove(struct nodes *nodes, const struct node *node) {
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->list[i] == node) {
            memmove(&nodes->list[i], &nodes->list[i + 1],
                    (nodes->count - i - 1) * sizeof *nodes->list);
            nodes->count--;
            return;
        }
}

void nodes_clear(struct nodes *nodes) {
    free(nodes->list);
    *nodes = (struct nodes){0};
}

/* ---- graphs ---- */

static _Atomic unsigned next_id = 1;

struct graph *graph_create(void) {
    struct graph *graph = calloc(1, sizeof *graph);
    if (!graph || !handle_add(graph, HANDLE_GRAPH)) {
        free(graph);
        return NULL;
    }
    graph->id = atomic_fetch_add(&next_id, 1);
    return graph;
}

static void append(struct graph *graph, struct node *node) {
    node->next = NULL;
    node->previous = graph->last;
    if (graph->last)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
}

static void node_free(struct node *node) {
    handle_remove(node);
    nodes_clear(&node->before);
    if (node->op) op_free(node->op);
    if (node->child) graph_destroy(node->child);
    condition_end(node);
    if (node->memory) graph_memory_release(node->memory);
    free(node->param_pointers);
    free(node);
}

struct node *graph_add(struct graph *graph, CUgraphNodeType type, struct node *const *before,
                       size_t count, struct op *op) {
    struct node *node = calloc(1, sizeof *node);
    bool fine = node && handle_add(node, HANDLE_NODE);
    for (size_t i = 0; fine && i < count; i++) fine = nodes_add(&node->before, before[i]);
    if (!fine) {
        if (node) {
            handle_remove(node);
            nodes_clear(&node->before);
        }
        free(node);
        if (op) op_free(op);
        return NULL;
    }
    node->type = type;
    node->graph = graph;
    node->op = op;
    node->enabled = true;
    node->id = graph->next_node_id++;
    append(graph, node);
    graph->count++;
    return node;
}

void graph_remove(struct node *node) {
    struct graph *graph = node->graph;
    for (struct node *other = graph->first; other; other = other->next)
        nodes_remove(&other->before, node);
    if (node->previous)
        node->previous->next = node->next;
    else
        graph->first = node->next;
    if (node->next)
        node->next->previous = node->previous;
    else
        graph->last = node->previous;
    graph->count--;
    node_free(node);
}

void instances_drop(struct instances *instances) {
    if (instances && atomic_fetch_sub(&instances->refs, 1) == 1) free(instances);
}

void graph_destroy(struct graph *graph) {
    handle_remove(graph);
    while (graph->first) {
        struct node *node = graph->first;
        graph->first = node->next;
        node_free(node);
    }
    graph_keep_nothing(graph);
    conditions_clear(graph);
    instances_drop(graph->instances);
    free(graph);
}

bool graph_has_memory(const struct graph *graph) {
    for (const struct node *node = graph->first; node; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
            node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
            (node->child && graph_has_memory(node->child)))
            return true;
    return false;
}

static struct node *clone_of(const struct graph *clone, const struct node *original) {
    for (struct node *node = clone->first; node; node = node->next)
        if (node->original == original) return node;
    return NULL;
}

static bool copy_pointers(struct node *to, const struct node *from) {
    if (!from->param_pointers) return true;
    uint32_t count = from->op->launch.function->info->param_count;
    to->param_pointers = calloc(count + 1, sizeof *to->param_pointers);
    if (!to->param_pointers) return false;
    for (uint32_t i = 0; i < count; i++)
        to->param_pointers[i] =
            (char *)to->op->launch.params + from->op->launch.function->info->params[i].offset;
    to->params.kernel.kernelParams = to->param_pointers;
    return true;
}

static bool clone_node(struct graph *into, struct node *node) {
    struct op *op = node->op ? op_clone(node->op) : NULL;
    if (node->op && !op) return false;
    struct node *clone = graph_add(into, node->type, NULL, 0, op);
    if (!clone) return false;
    clone->original = node;
    clone->enabled = node->enabled;
    clone->params = node->params;
    clone->id = node->id;
    clone->memory = node->memory;
    if (clone->memory) atomic_fetch_add(&clone->memory->refs, 1);
    if (!copy_pointers(clone, node)) return false;
    if (node->child) {
        clone->child = graph_clone(node->child);
        if (!clone->child) return false;
        clone->child->owned = true;
    }
    return condition_clone(clone, node);
}

struct graph *graph_clone(struct graph *graph) {
    struct graph *clone = graph_create();
    if (!clone) return NULL;
    bool fine = graph_keep_the_same(clone, graph) && conditions_copy(clone, graph);
    clone->original = graph;
    for (struct node *node = graph->first; node && fine; node = node->next)
        fine = clone_node(clone, node);
    struct node *copy = clone->first;
    for (struct node *node = graph->first; node && fine; node = node->next, copy = copy->next)
        for (size_t i = 0; i < node->before.count && fine; i++)
            fine = nodes_add(&copy->before, clone_of(clone, node->before.list[i]));
    if (fine) return clone;
    graph_destroy(clone);
    return NULL;
}

/* Depth first; 1: on the way down, 2: placed. */
static bool place(struct graph *graph, struct node *node) {
    if (node->mark == 2) return true;
    if (node->mark == 1) return false;
    node->mark = 1;
    for (size_t i = 0; i < node->before.count; i++)
        if (!place(graph, node->before.list[i])) return false;
    node->mark = 2;
    append(graph, node);
    return true;
}

bool graph_sort(struct graph *graph) {
    size_t count = 0;
    struct node **all = calloc(graph->count + 1, sizeof *all);
    if (!all) return false;
    bool fine = true;
    for (struct node *node = graph->first; node; node = node->next) {
        node->mark = 0;
        all[count++] = node;
        if (node->child && !graph_sort(node->child)) fine = false;
        for (unsigned i = 0; i < node->body_count; i++)
            if (!graph_sort(node->bodies[i])) fine = false;
    }
    graph->first = graph->last = NULL;
    for (size_t i = 0; i < count && fine; i++) fine = place(graph, all[i]);
    if (!fine) { /* unchanged: the caller may still use it */
        graph->first = graph->last = NULL;
        for (size_t i = 0; i < count; i++) append(graph, all[i]);
    }
    free(all);
    return fine;
}

/* ---- plans ---- */

static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;
static struct graph_memory *memories;

static struct graph_memory *memory_at(uint64_t address) {
    struct graph_memory *memory = memories;
    while (memory && memory->address != address) memory = memory->next;
    return memory;
}

/* Memory that one allocation of a plan has freed is used by the next: compute what each takes
 * beyond that. *left: bytes that were freed and not used again so far. With the lock. */
static void reuse(const struct plan *plan, const struct graph *graph, uint64_t *left) {
    for (struct node *node = graph->first; node; node = node->next) {
        struct graph_memory *memory = node->memory;
        if (node->child) reuse(plan, node->child, left);
        if (!node->op) continue;
        if (node->op->kind == OP_GRAPH_ALLOC) {
            uint64_t used = memory->bytes < *left ? memory->bytes : *left;
            if (memory->launches == 0) memory->fresh_bytes = memory->bytes - used;
            memory->plan = plan;
            *left -= used;
        } else if (node->op->kind == OP_GRAPH_FREE) {
            memory = memory_at(node->op->graph_memory.address);
            if (memory && memory->plan == plan) *left += memory->bytes;
        }
    }
}

struct plan *plan_create(struct graph *graph, CUresult *why) {
    *why = CUDA_ERROR_OUT_OF_MEMORY;
    struct plan *plan = calloc(1, sizeof *plan);
    if (!plan) return NULL;
    plan->graph = graph_clone(graph);
    if (plan->graph && (!graph_sort(plan->graph) || !conditions_whole(plan->graph))) {
        *why = CUDA_ERROR_INVALID_VALUE;
        graph_destroy(plan->graph);
        plan->graph = NULL;
    }
    if (!plan->graph) {
        free(plan);
        return NULL;
    }
    handle_remove(plan->graph);
    atomic_store(&plan->refs, 1);
    uint64_t left = 0;
    pthread_mutex_lock(&memory_lock);
    reuse(plan, plan->graph, &left);
    pthread_mutex_unlock(&memory_lock);
    *why = CUDA_SUCCESS;
    return plan;
}

void plan_release(struct plan *plan) {
    if (atomic_fetch_sub(&plan->refs, 1) != 1) return;
    graph_destroy(plan->graph);
    free(plan);
}

/* The nodes of a new plan stand for the same nodes of the program's graph as the old ones. */
CUresult exec_own_plan(struct exec *exec) {
    if (atomic_load(&exec->plan->refs) == 1) return CUDA_SUCCESS;
    CUresult result;
    struct plan *own = plan_create(exec->plan->graph, &result);
    if (!own) return result;
    for (struct node *node = own->graph->first; node; node = node->next)
        node->original = node->original->original;
    plan_release(exec->plan);
    exec->plan = own;
    return CUDA_SUCCESS;
}

struct node *exec_node(struct exec *exec, const struct node *original) {
    return clone_of(exec->plan->graph, original);
}

static bool of_event(const struct node *node) {
    return node->op && node->enabled &&
           (node->op->kind == OP_RECORD || node->op->kind == OP_WAIT_EVENT);
}

static size_t count_of_events(const struct graph *graph) {
    size_t count = 0;
    for (const struct node *node = graph->first; node; node = node->next)
        count += node->child ? count_of_events(node->child) : of_event(node);
    return count;
}

static uint64_t *count_records(const struct graph *graph, uint64_t *at) {
    for (const struct node *node = graph->first; node; node = node->next) {
        if (node->child) at = count_records(node->child, at);
        if (!of_event(node)) continue;
        struct event *event = node->op->event.event;
        *at++ = node->op->kind == OP_RECORD ? event_next(event) : event_recorded(event);
    }
    return at;
}

CUresult plan_count_records(struct op *op) {
    size_t count = count_of_events(op->graph.plan->graph);
    if (count == 0) return CUDA_SUCCESS;
    op->graph.records = calloc(count, sizeof *op->graph.records);
    if (!op->graph.records) return CUDA_ERROR_OUT_OF_MEMORY;
    count_records(op->graph.plan->graph, op->graph.records);
    return CUDA_SUCCESS;
}

static const uint64_t *run_graph(struct stream *stream, struct graph *graph, const uint64_t *at);

/* Bodies have no events. */
static void run_bodies(struct stream *stream, const struct node *node) {
    struct context *context = stream->context;
    struct graph *body;
    for (unsigned round = 0; (body = condition_next(node, round)) != NULL; round += round == 0) {
        if (atomic_load(&context->error) || atomic_load(&context->cancel)) return;
        run_graph(stream, body, NULL);
    }
}

static const uint64_t *run_graph(struct stream *stream, struct graph *graph, const uint64_t *at) {
    for (struct node *node = graph->first; node; node = node->next) {
        if (node->child) at = run_graph(stream, node->child, at);
        if (node->condition && node->enabled) run_bodies(stream, node);
        if (of_event(node)) {
            struct op op = *node->op;
            op.event.number = *at++;
            op_execute(stream, &op);
        } else if (node->op && node->enabled)
            op_execute(stream, node->op);
    }
    return at;
}

static const uint64_t *skip_graph(const struct graph *graph, const uint64_t *at) {
    for (const struct node *node = graph->first; node; node = node->next) {
        if (node->child) at = skip_graph(node->child, at);
        if (!of_event(node)) continue;
        if (node->op->kind == OP_RECORD) event_reach(node->op->event.event, *at, sim_now());
        at++;
    }
    return at;
}

void plan_skip(const struct op *op) {
    if (op->graph.records) skip_graph(op->graph.plan->graph, op->graph.records);
}

static void free_all(struct context *context, const struct graph *graph) {
    for (struct node *node = graph->first; node; node = node->next) {
        if (node->child) free_all(context, node->child);
        if (node->op && node->enabled && node->op->kind == OP_GRAPH_ALLOC)
            graph_memory_free(context, node->op->graph_memory.address);
    }
}

void plan_run(struct stream *stream, const struct op *op) {
    struct graph *graph = op->graph.plan->graph;
    if (op->graph.auto_free) free_all(stream->context, graph);
    conditions_reset(graph);
    run_graph(stream, graph, op->graph.records);
}

/* The driver has a graph's memory ready when a launch returns, long before the stream reaches it.
 * Memory that is still on the card afterwards counts in full. With the lock. */
static uint64_t reserved_for(const struct graph_memory *memory) {
    return memory->launches ? memory->fresh_bytes : memory->mapped ? memory->bytes : 0;
}

static void change(struct graph_memory *memory, int launches, bool mapped) {
    struct device *device = memory->device;
    uint64_t before = reserved_for(memory);
    memory->launches += launches;
    memory->mapped = mapped;
    uint64_t more = reserved_for(memory) - before; /* modular */
    uint64_t now = atomic_fetch_add(&device->graph_reserved, more) + more;
    uint64_t high = atomic_load(&device->graph_reserved_high);
    while (now > high && !atomic_compare_exchange_weak(&device->graph_reserved_high, &high, now)) {
    }
}

static void change_launches(struct graph_memory *memory, int launches) {
    pthread_mutex_lock(&memory_lock);
    change(memory, launches, memory->mapped);
    pthread_mutex_unlock(&memory_lock);
}

static void let_go_all(struct graph *graph) {
    for (struct node *node = graph->first; node; node = node->next) {
        if (node->child) let_go_all(node->child);
        if (node->op && node->op->kind == OP_GRAPH_ALLOC) change_launches(node->memory, -1);
    }
}

void plan_over(struct plan *plan) { let_go_all(plan->graph); }

static CUresult account(struct graph *graph, bool auto_free, bool dry) {
    for (struct node *node = graph->first; node; node = node->next) {
        if (node->child) {
            CUresult result = account(node->child, auto_free, dry);
            if (result != CUDA_SUCCESS) return result;
        }
        if (!node->op) continue;
        if (node->op->kind == OP_GRAPH_ALLOC) {
            if (dry && !auto_free && atomic_load(&node->memory->allocated))
                return CUDA_ERROR_INVALID_VALUE;
            if (!dry) {
                atomic_store(&node->memory->allocated, true);
                change_launches(node->memory, 1);
            }
        } else if (node->op->kind == OP_GRAPH_FREE && !dry)
            graph_memory_forget(node->op->graph_memory.address);
    }
    return CUDA_SUCCESS;
}

CUresult plan_account(struct plan *plan, bool auto_free) {
    CUresult result = account(plan->graph, auto_free, true);
    return result == CUDA_SUCCESS ? account(plan->graph, auto_free, false) : result;
}

/* ---- memory of graphs ---- */

struct graph_memory *graph_memory_create(struct device *device, uint64_t bytes) {
    struct graph_memory *memory = calloc(1, sizeof *memory);
    if (!memory) return NULL;
    memory->asked = bytes;
    memory->bytes = (bytes + SIM_CHUNK_BYTES - 1) / SIM_CHUNK_BYTES * SIM_CHUNK_BYTES;
    memory->device = device;
    atomic_store(&memory->refs, 1);
    memory->address = address_reserve(memory->bytes, 0, 0);
    if (!memory->address) {
        free(memory);
        return NULL;
    }
    pthread_mutex_lock(&memory_lock);
    memory->next = memories;
    memories = memory;
    pthread_mutex_unlock(&memory_lock);
    return memory;
}

/* Its graphs have ended. Memory that is still allocated stays until it is freed, so its addresses
 * are never used again. */
void graph_memory_release(struct graph_memory *memory) {
    pthread_mutex_lock(&memory_lock);
    bool last = atomic_fetch_sub(&memory->refs, 1) == 1;
    bool unused =
        last && !atomic_load(&memory->allocated) && memory->launches == 0 && !memory->mapped;
    if (unused) {
        struct graph_memory **at = &memories;
        while (*at != memory) at = &(*at)->next;
        *at = memory->next;
    }
    pthread_mutex_unlock(&memory_lock);
    struct extent extent;
    if (!unused) return;
    if (!memory_find(memory->address, &extent)) address_release(memory->address, memory->bytes);
    free(memory);
}

bool graph_memory_covers(uint64_t address, uint64_t bytes) {
    bool found = false;
    pthread_mutex_lock(&memory_lock);
    for (struct graph_memory *memory = memories; memory && !found; memory = memory->next)
        found = address - memory->address < memory->asked &&
                bytes <= memory->asked - (address - memory->address);
    pthread_mutex_unlock(&memory_lock);
    return found;
}

bool graph_memory_forget(uint64_t address) {
    bool was = false;
    pthread_mutex_lock(&memory_lock);
    for (struct graph_memory *memory = memories; memory && !was; memory = memory->next)
        if (memory->address == address) was = atomic_exchange(&memory->allocated, false);
    pthread_mutex_unlock(&memory_lock);
    return was;
}

void graph_memory_mapped(uint64_t address) {
    pthread_mutex_lock(&memory_lock);
    struct graph_memory *memory = memory_at(address);
    if (memory) change(memory, 0, true);
    pthread_mutex_unlock(&memory_lock);
}

/* With the lock. */
static void unmap(struct context *context, struct graph_memory *memory) {
    struct extent extent;
    if (!memory_find(memory->address, &extent) || extent.block_kind != BLOCK_GRAPH) return;
    if (memory_unmap(memory->address, BLOCK_GRAPH) != 0) return;
    atomic_fetch_sub(&context->device->graph_used, extent.size);
    change(memory, 0, false);
}

void graph_memory_free(struct context *context, uint64_t address) {
    pthread_mutex_lock(&memory_lock);
    struct graph_memory *memory = memory_at(address);
    if (memory) unmap(context, memory);
    pthread_mutex_unlock(&memory_lock);
}

void graph_memory_context_gone(struct context *context) {
    struct extent extent;
    pthread_mutex_lock(&memory_lock);
    for (struct graph_memory *memory = memories; memory; memory = memory->next)
        if (memory_find(memory->address, &extent) && extent.owner == context) {
            atomic_store(&memory->allocated, false);
            unmap(context, memory);
        }
    pthread_mutex_unlock(&memory_lock);
}
