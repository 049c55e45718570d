/* The schedule of a block's threads, and of the blocks that run together. */
#include "block.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { WARP_ROUNDS = 256 }; /* meetings of one warp before others get their turn */

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

void window_free(struct window *w) {
    if (w) free(w->copies.items);
    free(w);
}

/* Copies that it has not waited for are never done. */
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

/* If all live threads have arrived, release those that wait. */
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

/* Note the faulting instruction, and its line. */
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

/* Run a warp's threads until all have ended, wait for other warps, or have used their slices. */
static bool run_warp(struct block *b, struct thread *threads, uint32_t count, bool *progress) {
    bool again = true;
    /* Bounded: a warp may wait, vote after vote, for a write of another warp. */
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
    b->x->shared_of = b->cluster->shared;
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

static void begin_cluster(struct cluster *c) {
    c->phase = 0;
    c->at_barrier = false;
    for (uint32_t k = 0; k < c->count; k++) begin_block(&c->blocks[k]);
}

/* Run its blocks in turn, each as far as it can go. */
static bool run_turn(struct cluster *c, bool *progress, bool *live) {
    for (uint32_t k = 0; k < c->count; k++) {
        struct block *b = &c->blocks[k];
        if (!b->live) continue;
        enter_block(b, k);
        if (!run_block(b, progress)) return false;
        *live = *live || b->live;
    }
    if (c->at_barrier && release_cluster(c)) *progress = true;
    return true;
}

bool run_clusters(struct cluster *clusters, uint64_t count) {
    bool live = true;
    for (uint64_t i = 0; i < count; i++) begin_cluster(&clusters[i]);
    while (live) {
        bool progress = false;
        live = false;
        for (uint64_t i = 0; i < count; i++)
            if (!run_turn(&clusters[i], &progress, &live)) return false;
        if (!progress && live) {
            clusters->x->status = EGPU_PTX_DEADLOCK;
            return false;
        }
    }
    return true;
}
