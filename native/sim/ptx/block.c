/* Launching: checks of the shape, and the schedule of one block's threads after another. */
#include "exec.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WARP_ROUNDS = 256 }; /* meetings of one warp before the others get their turn */

/* Shared memory is given out in units (%total_smem_size in the PTX ISA says so), and compilers read
 * a whole vector where less of it was asked for. This is the smallest unit of any card. */
enum { SHARED_UNIT = 128 };

struct barrier {
    uint32_t arrived;
    uint32_t expected; /* 0: every thread that still lives */
};

struct block {
    struct cluster *cluster;
    struct exec *x;
    struct thread *threads;
    uint32_t count, live;
    uint32_t position[3]; /* %ctaid */
    uint8_t *shared;
    struct barrier barriers[BARRIERS];
};

/* The blocks that run together; one, unless the launch has clusters. */
struct cluster {
    struct exec *x;
    struct block blocks[EGPU_PTX_CLUSTER_BLOCKS];
    uint8_t *shared[EGPU_PTX_CLUSTER_BLOCKS];
    uint32_t count;
    uint32_t phase;  /* how often all of its threads have come to its barrier */
    bool at_barrier; /* some have: it is looked at */
    struct window *free_windows;
};

/* ---- memory of threads ---- */

static struct window *window_new(const egpu_ptx_kernel *kernel) {
    size_t slots = kernel->stack_slots * sizeof(union slot),
           frames = kernel->stack_frames * sizeof(struct frame);
    size_t head = (sizeof(struct window) + 15) & ~(size_t)15;
    size_t local = ((size_t)kernel->stack_bytes + 15) & ~(size_t)15;
    unsigned char *memory = calloc(1, head + slots + frames + local);
    if (!memory) return NULL;
    struct window *w = (struct window *)memory;
    w->slots = (union slot *)(memory + head);
    w->local = memory + head + slots;
    w->frames = (struct frame *)(memory + head + slots + local);
    return w;
}

static bool start_thread(struct block *b, struct thread *t) {
    struct exec *x = b->x;
    const struct function *function = x->kernel->function;
    struct window *w = b->cluster->free_windows;
    if (w)
        b->cluster->free_windows = w->next;
    else if (!(w = window_new(x->kernel)))
        return false;
    t->window = w;
    t->depth = 0;
    t->pc = function->code;
    w->frames[0] = (struct frame){.function = function, .registers = w->slots};
    memcpy(w->slots, x->templates[function->index], function->const_count * sizeof(union slot));
    for (uint32_t i = 0; i < function->special_count; i++)
        w->slots[function->specials[i].slot].u64 =
            special_value(x, t->index, function->specials[i].which);
    return true;
}

static void window_free(struct window *w) {
    if (w) free(w->copies.items);
    free(w);
}

/* What it has not waited for is never copied. */
static void end_thread(struct block *b, struct thread *t) {
    struct copies *c = &t->window->copies;
    c->first = c->count = c->group = 0;
    t->window->next = b->cluster->free_windows;
    b->cluster->free_windows = t->window;
    t->window = NULL;
    b->live--;
}

/* ---- barriers ---- */

static void arrive(struct block *b, struct thread *t) {
    const struct ins *at = t->pc;
    const union slot *r = thread_registers(t);
    struct barrier *barrier = &b->barriers[r[at->a].u32 & (BARRIERS - 1)];
    t->barrier = r[at->a].u32 & (BARRIERS - 1);
    barrier->expected = at[1].imm ? r[at->b].u32 : 0;
    barrier->arrived++;
    if (at->aux == BAR_ARRIVE) {
        t->pc += 2;
        t->state = THREAD_READY;
    }
}

static void release(struct block *b, uint32_t id) {
    bool all = true;
    uint32_t set = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        struct thread *t = &b->threads[i];
        if (t->state == THREAD_AT_BARRIER && t->barrier == id && t->pc->aux >= BAR_AND) {
            bool vote = thread_registers(t)[t->pc->c].u64;
            all = all && vote;
            set += vote;
        }
    }
    for (uint32_t i = 0; i < b->count; i++) {
        struct thread *t = &b->threads[i];
        if (t->state != THREAD_AT_BARRIER || t->barrier != id) continue;
        if (t->pc->aux >= BAR_AND)
            thread_registers(t)[t->pc->d].u64 = t->pc->aux == BAR_AND  ? all
                                                : t->pc->aux == BAR_OR ? set != 0
                                                                       : set;
        t->pc += 2;
        t->state = THREAD_READY;
    }
    b->barriers[id] = (struct barrier){0};
    b->x->stats.barriers++;
}

static bool release_complete(struct block *b) {
    bool any = false;
    for (uint32_t id = 0; id < BARRIERS; id++) {
        struct barrier *barrier = &b->barriers[id];
        uint32_t expected = barrier->expected ? barrier->expected : b->live;
        if (barrier->arrived && barrier->arrived >= expected) {
            release(b, id);
            any = true;
        }
    }
    return any;
}

/* ---- the cluster's barrier ---- */

static void arrive_at_cluster(struct cluster *c, struct thread *t) {
    c->at_barrier = true;
    if (t->pc->aux != CLUSTER_ARRIVE) return;
    t->arrivals++;
    t->pc++;
    t->state = THREAD_READY;
}

/* All threads that still live have arrived: those that wait go on. */
static bool release_cluster(struct cluster *c) {
    bool all = true, any = false;
    for (uint32_t k = 0; k < c->count && all; k++)
        for (uint32_t i = 0; i < c->blocks[k].count && all; i++) {
            const struct thread *t = &c->blocks[k].threads[i];
            all = t->state == THREAD_EXITED || t->arrivals > c->phase;
        }
    if (all) c->phase++;
    for (uint32_t k = 0; k < c->count; k++)
        for (uint32_t i = 0; i < c->blocks[k].count; i++) {
            struct thread *t = &c->blocks[k].threads[i];
            if (t->state != THREAD_AT_CLUSTER || t->arrivals > c->phase) continue;
            t->pc++;
            t->state = THREAD_READY;
            any = true;
        }
    return any;
}

/* ---- the schedule ---- */

/* Whose instruction the fault is, and where it is written. */
static void blame(const struct block *b) {
    struct exec *x = b->x;
    const struct thread *t = &b->threads[x->failed_thread];
    const struct function *f = t->window->frames[t->depth].function;
    x->fault.line = f->lines[t->pc - f->code];
    x->fault.thread[0] = (uint32_t)special_value(x, t->index, SR_TID_X);
    x->fault.thread[1] = (uint32_t)special_value(x, t->index, SR_TID_Y);
    x->fault.thread[2] = (uint32_t)special_value(x, t->index, SR_TID_Z);
    memcpy(x->fault.block, x->block, sizeof x->block);
}

static bool run_one(struct block *b, struct thread *t) {
    struct exec *x = b->x;
    if (!t->window && !start_thread(b, t)) {
        x->status = EGPU_PTX_NO_MEMORY;
        return false;
    }
    switch (exec_thread(x, t)) {
    case THREAD_EXITED: end_thread(b, t); break;
    case THREAD_AT_BARRIER: arrive(b, t); break;
    case THREAD_AT_CLUSTER: arrive_at_cluster(b->cluster, t); break;
    case THREAD_READY:
    case THREAD_AT_WARP: break;
    case THREAD_FAILED: blame(b); return false;
    }
    if (x->fuel == 0 && b->live) {
        x->status = EGPU_PTX_TIMEOUT;
        return false;
    }
    if (x->launch->cancel && atomic_load(x->launch->cancel)) {
        x->status = EGPU_PTX_CANCELLED;
        return false;
    }
    return true;
}

/* Run a warp's threads until all of them have ended, wait for other warps, or have used their
 * slices. */
static bool run_warp(struct block *b, struct thread *threads, uint32_t count, bool *progress) {
    bool again = true;
    /* Bounded, because a warp may be waiting, vote after vote, for what another warp will write. */
    for (int round = 0; again && round < WARP_ROUNDS; round++) {
        bool met = false, sliced = false;
        for (uint32_t i = 0; i < count; i++) {
            struct thread *t = &threads[i];
            if (t->state == THREAD_READY) {
                if (!run_one(b, t)) return false;
                *progress = true;
                sliced = sliced || t->state == THREAD_READY;
            }
            met = met || t->state == THREAD_AT_WARP;
        }
        again = met && warp_resolve(b->x, threads, count, sliced);
        if (b->x->status != EGPU_PTX_OK) {
            blame(b);
            return false;
        }
        *progress = *progress || again;
    }
    return true;
}

static void begin_block(struct block *b) {
    for (uint32_t i = 0; i < b->count; i++) b->threads[i] = (struct thread){.index = i};
    b->live = b->count;
    memset(b->barriers, 0, sizeof b->barriers);
    memset(b->shared, 0, b->x->shared_bytes);
}

static void enter_block(struct block *b, uint32_t rank) {
    memcpy(b->x->block, b->position, sizeof b->position);
    b->x->shared = b->shared;
    b->x->rank = rank;
}

static bool run_block(struct block *b, bool *progress) {
    for (uint32_t first = 0; first < b->count; first += WARP_SIZE) {
        uint32_t count = b->count - first < WARP_SIZE ? b->count - first : WARP_SIZE;
        if (!run_warp(b, b->threads + first, count, progress)) return false;
    }
    if (release_complete(b)) *progress = true;
    return true;
}

/* Its blocks in turn, each as far as it comes. */
static bool run_cluster(struct cluster *c) {
    bool live = true;
    c->phase = 0;
    c->at_barrier = false;
    for (uint32_t k = 0; k < c->count; k++) begin_block(&c->blocks[k]);
    while (live) {
        bool progress = false;
        live = false;
        for (uint32_t k = 0; k < c->count; k++) {
            struct block *b = &c->blocks[k];
            if (!b->live) continue;
            enter_block(b, k);
            if (!run_block(b, &progress)) return false;
            live = live || b->live;
        }
        if (c->at_barrier && release_cluster(c)) progress = true;
        if (!progress && live) {
            c->x->status = EGPU_PTX_DEADLOCK;
            return false;
        }
    }
    return true;
}

/* ---- the launch ---- */

static void cluster_of(const egpu_ptx_kernel *kernel, const egpu_ptx_launch *launch,
                       uint32_t cluster[3]) {
    for (int i = 0; i < 3; i++)
        cluster[i] = launch->cluster[i]                 ? launch->cluster[i]
                     : kernel->info.required_cluster[i] ? kernel->info.required_cluster[i]
                                                        : 1;
}

static bool fits(const egpu_ptx_kernel *kernel, const egpu_ptx_launch *launch,
                 const uint32_t cluster[3], uint64_t *shared) {
    static const uint32_t grid_limit[3] = {INT32_MAX, 65535, 65535},
                          block_limit[3] = {1024, 1024, 64};
    const egpu_ptx_kernel_info *info = &kernel->info;
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (launch->grid[i] == 0 || launch->grid[i] > grid_limit[i] || launch->block[i] == 0 ||
            launch->block[i] > block_limit[i])
            return false;
        if (info->required_block[0] && launch->block[i] != info->required_block[i]) return false;
        threads *= launch->block[i];
        if (launch->grid[i] % cluster[i]) return false;
    }
    if ((uint64_t)cluster[0] * cluster[1] * cluster[2] > EGPU_PTX_CLUSTER_BLOCKS) return false;
    *shared = (uint64_t)info->static_shared_bytes + launch->dynamic_shared_bytes;
    uint32_t allowed = launch->max_shared_bytes ? launch->max_shared_bytes : 227 * 1024;
    return threads <= info->max_threads && *shared <= allowed &&
           (info->param_bytes == 0 || (launch->params && launch->param_bytes >= info->param_bytes));
}

/* The constants of every function that can run, with this kernel's places in shared memory. One
 * allocation. */
static union slot **make_templates(const egpu_ptx_kernel *kernel) {
    size_t slots = 0;
    for (uint32_t i = 0; i < kernel->reachable_count; i++)
        slots += kernel->reachable[i]->const_count;
    size_t head = (kernel->module->function_count * sizeof(union slot *) + 15) & ~(size_t)15;
    unsigned char *memory = calloc(1, head + slots * sizeof(union slot));
    if (!memory) return NULL;
    union slot **templates = (union slot **)memory, *next = (union slot *)(memory + head);
    for (uint32_t i = 0; i < kernel->reachable_count; i++) {
        const struct function *f = kernel->reachable[i];
        templates[f->index] = next;
        if (f->const_count) memcpy(next, f->constants, f->const_count * sizeof(union slot));
        for (uint32_t r = 0; r < f->reloc_count; r++) {
            const struct const_reloc *reloc = &f->relocs[r];
            if (reloc->target->kind != VAR_SHARED) continue;
            for (uint32_t v = 0; v < kernel->shared_count; v++)
                if (kernel->shared[v] == reloc->target)
                    next[reloc->slot].u64 = kernel->shared_offsets[v] + reloc->addend +
                                            (reloc->generic ? WINDOW_SHARED : 0);
        }
        next += f->const_count;
    }
    return templates;
}

/* Clusters follow each other as blocks do in a grid without them, and the blocks of each. */
static void place_blocks(struct cluster *c, const egpu_ptx_launch *launch, uint64_t index) {
    const uint32_t *size = c->x->cluster;
    uint32_t wide = launch->grid[0] / size[0], high = launch->grid[1] / size[1];
    uint32_t x = (uint32_t)(index % wide), y = (uint32_t)(index / wide % high),
             z = (uint32_t)(index / wide / high);
    for (uint32_t rank = 0; rank < c->count; rank++) {
        uint32_t *position = c->blocks[rank].position;
        position[0] = x * size[0] + rank % size[0];
        position[1] = y * size[1] + rank / size[0] % size[1];
        position[2] = z * size[2] + rank / size[0] / size[1];
    }
}

static void run_grid(struct cluster *c, const egpu_ptx_launch *launch) {
    uint64_t total = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    uint64_t last = launch->block_count && launch->block_count < total - launch->first_block
                        ? launch->first_block + launch->block_count
                        : total;
    for (uint64_t i = launch->first_block; i < last; i += c->count) {
        place_blocks(c, launch, i / c->count);
        if (!run_cluster(c)) return;
    }
}

/* False: no memory. What there is of it goes with the cluster. */
static bool make_cluster(struct cluster *c, const egpu_ptx_launch *launch, uint64_t shared) {
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    for (uint32_t k = 0; k < c->count; k++) {
        struct block *b = &c->blocks[k];
        *b = (struct block){.cluster = c, .x = c->x, .count = threads};
        b->threads = calloc(threads, sizeof *b->threads);
        b->shared = c->shared[k] = aligned_alloc(256, (shared + 256) & ~(uint64_t)255);
        if (!b->threads || !b->shared) return false;
    }
    c->x->shared_of = c->shared;
    return true;
}

static void free_cluster(struct cluster *c) {
    for (uint32_t k = 0; k < c->count; k++) {
        struct block *b = &c->blocks[k];
        for (uint32_t i = 0; b->threads && i < b->count; i++) window_free(b->threads[i].window);
        free(b->threads);
        free(b->shared);
    }
    for (struct window *w = c->free_windows, *next; w; w = next) {
        next = w->next;
        window_free(w);
    }
}

egpu_ptx_status egpu_ptx_run(const egpu_ptx_kernel *kernel, const egpu_ptx_launch *launch,
                             egpu_ptx_stats *stats, egpu_ptx_fault *fault) {
    uint64_t shared;
    uint32_t cluster[3];
    cluster_of(kernel, launch, cluster);
    if (!fits(kernel, launch, cluster, &shared) ||
        launch->first_block >= (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2])
        return EGPU_PTX_INVALID_LAUNCH;
    struct exec x = {
        .kernel = kernel,
        .launch = launch,
        .cluster = {cluster[0], cluster[1], cluster[2]},
        .shared_bytes = (shared + SHARED_UNIT - 1) / SHARED_UNIT * SHARED_UNIT,
        .fuel =
            launch->max_instructions ? launch->max_instructions : EGPU_PTX_DEFAULT_MAX_INSTRUCTIONS,
    };
    struct cluster c = {.x = &x, .count = cluster[0] * cluster[1] * cluster[2]};
    x.templates = make_templates(kernel);
    if (x.templates && make_cluster(&c, launch, shared))
        run_grid(&c, launch);
    else
        x.status = EGPU_PTX_NO_MEMORY;
    free_cluster(&c);
    free(x.templates);
    if (stats) {
        stats->instructions += x.stats.instructions;
        stats->loads += x.stats.loads;
        stats->stores += x.stats.stores;
        stats->atomics += x.stats.atomics;
        stats->barriers += x.stats.barriers;
    }
    if (fault && x.status != EGPU_PTX_OK) *fault = x.fault;
    return x.status;
}

const char *egpu_ptx_status_name(egpu_ptx_status status) {
    static const char *const names[] = {"ok",
                                        "syntax error",
                                        "unsupported",
                                        "unresolved symbol",
                                        "out of memory",
                                        "invalid launch",
                                        "illegal address",
                                        "misaligned address",
                                        "stack overflow",
                                        "trap",
                                        "failed assertion",
                                        "deadlock",
                                        "instruction limit reached",
                                        "cancelled"};
    return (size_t)status < sizeof names / sizeof *names ? names[status] : "unknown status";
}
