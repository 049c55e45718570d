/* Operations of a warp's threads together: shuffles, votes, matches, reductions, bar.warp.sync.
 * Every thread runs alone until it reaches such an instruction and waits there. The group named by
 * a member mask is complete when each of its live threads waits with that same mask at the same
 * kind of instruction. Then it is executed for all of them at once.
 */
#include "exec.h"

#include <string.h>

struct warp {
    struct thread *lanes;
    uint32_t count;
};

static bool waits(const struct warp *w, unsigned lane) {
    return w->lanes[lane].state == THREAD_AT_WARP;
}

static union slot *slot_of(const struct warp *w, unsigned lane, uint16_t slot) {
    return &thread_registers(&w->lanes[lane])[slot];
}

static uint32_t member_mask(const struct warp *w, unsigned lane) {
    return slot_of(w, lane, w->lanes[lane].pc[1].a)->u32; /* the following ext word */
}

static void shuffle(const struct warp *w, uint32_t group) {
    uint32_t value[WARP_SIZE];
    for (unsigned lane = 0; lane < w->count; lane++)
        if (group >> lane & 1) value[lane] = slot_of(w, lane, w->lanes[lane].pc->a)->u32;
    for (unsigned lane = 0; lane < w->count; lane++) {
        if (!(group >> lane & 1)) continue;
        const struct ins *at = w->lanes[lane].pc;
        int b = (int)(slot_of(w, lane, at->b)->u32 & 31), c = (int)slot_of(w, lane, at->c)->u32;
        int clamp = c & 31, segment = c >> 8 & 31;
        int top = ((int)lane & segment) | (clamp & ~segment), bottom = (int)lane & segment;
        int from = (int)lane;
        bool inside = false;
        switch ((enum shfl_mode)at->aux) {
        case SHFL_UP: from = (int)lane - b, inside = from >= top; break;
        case SHFL_DOWN: from = (int)lane + b, inside = from <= top; break;
        case SHFL_BFLY: from = (int)lane ^ b, inside = from <= top; break;
        case SHFL_IDX: from = bottom | (b & ~segment), inside = from <= top; break;
        }
        if (!inside) from = (int)lane;
        /* A source outside the group is undefined in PTX; here its reader gets its own value. */
        uint32_t result = group >> from & 1 ? value[from] : value[lane];
        slot_of(w, lane, at->d)->u64 = result;
        if (at[1].imm) slot_of(w, lane, at[1].d)->u64 = inside;
    }
}

static void vote(const struct warp *w, uint32_t group, enum vote_mode mode) {
    uint32_t ballot = 0;
    for (unsigned lane = 0; lane < w->count; lane++)
        if (group >> lane & 1 && slot_of(w, lane, w->lanes[lane].pc->a)->u64)
            ballot |= UINT32_C(1) << lane;
    uint32_t result = mode == VOTE_ALL   ? ballot == group
                      : mode == VOTE_ANY ? ballot != 0
                      : mode == VOTE_UNI ? ballot == group || ballot == 0
                                         : ballot;
    for (unsigned lane = 0; lane < w->count; lane++)
        if (group >> lane & 1) slot_of(w, lane, w->lanes[lane].pc->d)->u64 = result;
}

/* aux: the width in bits of the compared values. */
static void match(const struct warp *w, uint32_t group, bool all) {
    uint64_t value[WARP_SIZE] = {0};
    for (unsigned lane = 0; lane < w->count; lane++)
        if (group >> lane & 1) {
            const union slot *s = slot_of(w, lane, w->lanes[lane].pc->a);
            value[lane] = w->lanes[lane].pc->aux == 32 ? s->u32 : s->u64;
        }
    uint32_t same[WARP_SIZE] = {0};
    for (unsigned lane = 0; lane < w->count; lane++)
        for (unsigned other = 0; other < w->count; other++)
            if (group >> lane & 1 && group >> other & 1 && value[lane] == value[other])
                same[lane] |= UINT32_C(1) << other;
    for (unsigned lane = 0; lane < w->count; lane++) {
        if (!(group >> lane & 1)) continue;
        const struct ins *at = w->lanes[lane].pc;
        slot_of(w, lane, at->d)->u64 = all && same[lane] != group ? 0 : same[lane];
        if (all && at[1].imm) slot_of(w, lane, at[1].d)->u64 = same[lane] == group;
    }
}

static uint32_t combine(enum redux_mode mode, uint32_t a, uint32_t b) {
    switch (mode) {
    case REDUX_ADD: return a + b;
    case REDUX_MIN_S: return (int32_t)a < (int32_t)b ? a : b;
    case REDUX_MIN_U: return a < b ? a : b;
    case REDUX_MAX_S: return (int32_t)a > (int32_t)b ? a : b;
    case REDUX_MAX_U: return a > b ? a : b;
    case REDUX_AND: return a & b;
    case REDUX_OR: return a | b;
    default: return a ^ b;
    }
}

static void redux(const struct warp *w, uint32_t group, enum redux_mode mode) {
    unsigned first = (unsigned)__builtin_ctz(group);
    uint32_t result = slot_of(w, first, w->lanes[first].pc->a)->u32;
    for (unsigned lane = first + 1; lane < w->count; lane++)
        if (group >> lane & 1)
            result = combine(mode, result, slot_of(w, lane, w->lanes[lane].pc->a)->u32);
    for (unsigned lane = 0; lane < w->count; lane++)
        if (group >> lane & 1) slot_of(w, lane, w->lanes[lane].pc->d)->u64 = result;
}

static void elect(const struct warp *w, uint32_t group) {
    unsigned leader = (unsigned)__builtin_ctz(group);
    for (unsigned lane = 0; lane < w->count; lane++)
        if (group >> lane & 1) {
            const struct ins *at = w->lanes[lane].pc;
            slot_of(w, lane, at->d)->u64 = leader;
            slot_of(w, lane, at[1].d)->u64 = lane == leader;
        }
}

/* A matrix is in the registers of a whole warp: PTX leaves fewer threads undefined. */
static bool matrices(struct exec *x, const struct warp *w, uint32_t group, enum op op) {
    if (group != UINT32_MAX) {
        x->status = EGPU_PTX_TRAP;
        x->failed_thread = w->lanes[__builtin_ctz(group)].index;
        return false;
    }
    switch (op) {
    case OP_mma: matrix_multiply(w->lanes); return true;
    case OP_wmma: fragment_multiply(w->lanes); return true;
    case OP_wgmma: return warpgroup_multiply(x, w->lanes);
    case OP_wmma_load:
    case OP_wmma_store: return fragment_move(x, w->lanes);
    default: return matrix_move(x, w->lanes);
    }
}

static unsigned matrix_words(const struct ins *at) {
    enum op op = (enum op)at->op;
    return op == OP_mma                                ? MMA_WORDS
           : op == OP_wgmma                            ? wgmma_words(at)
           : op == OP_wmma                             ? WMMA_WORDS
           : op == OP_wmma_load || op == OP_wmma_store ? FRAGMENT_WORDS
                                                       : MATRIX_WORDS;
}

static bool carry_out(struct exec *x, const struct warp *w, uint32_t group) {
    const struct ins *at = w->lanes[__builtin_ctz(group)].pc;
    unsigned words = 2;
    switch ((enum op)at->op) {
    case OP_shfl: shuffle(w, group); break;
    case OP_vote: vote(w, group, (enum vote_mode)at->aux); break;
    case OP_match_any: match(w, group, false); break;
    case OP_match_all: match(w, group, true); break;
    case OP_redux: redux(w, group, (enum redux_mode)at->aux); break;
    case OP_elect: elect(w, group); break;
    case OP_activemask:
        for (unsigned lane = 0; lane < w->count; lane++)
            if (group >> lane & 1) slot_of(w, lane, w->lanes[lane].pc->d)->u64 = group;
        break;
    case OP_mma:
    case OP_ldmatrix:
    case OP_stmatrix:
    case OP_wmma:
    case OP_wmma_load:
    case OP_wmma_store:
    case OP_wgmma:
        words = matrix_words(at);
        if (!matrices(x, w, group, (enum op)at->op)) return false;
        break;
    default: break; /* warp_sync: meeting is its only effect */
    }
    for (unsigned lane = 0; lane < w->count; lane++)
        if (group >> lane & 1) {
            w->lanes[lane].pc += words;
            w->lanes[lane].state = THREAD_READY;
        }
    return true;
}

/* Return whether two threads are at the same instruction, through the same calls. */
static bool same_place(const struct thread *a, const struct thread *b) {
    if (a->pc != b->pc || a->depth != b->depth) return false;
    for (uint32_t i = 1; i <= a->depth; i++)
        if (a->window->frames[i].call != b->window->frames[i].call) return false;
    return true;
}

/* activemask has no member mask: its group is the threads at the same place once no thread of the
 * warp can run further (or at once, if forced). This is as converged as the program allows.
 */
static uint32_t active_group(const struct warp *w, unsigned lane, bool forced) {
    uint32_t group = 0;
    for (unsigned other = 0; other < w->count; other++) {
        if (w->lanes[other].state == THREAD_READY && !forced) return 0;
        if (waits(w, other) && same_place(&w->lanes[other], &w->lanes[lane]))
            group |= UINT32_C(1) << other;
    }
    return group;
}

static uint32_t complete_group(const struct warp *w, unsigned lane) {
    const struct ins *at = w->lanes[lane].pc;
    uint32_t mask = member_mask(w, lane) | UINT32_C(1) << lane, group = 0;
    for (unsigned other = 0; other < w->count; other++) {
        if (!(mask >> other & 1) || w->lanes[other].state == THREAD_EXITED) continue;
        /* One instruction may be at several places in the code, but it is the same for all threads
         * that meet. */
        if (!waits(w, other) || w->lanes[other].pc->op != at->op ||
            w->lanes[other].pc->aux != at->aux ||
            (member_mask(w, other) | UINT32_C(1) << other) != mask)
            return 0;
        group |= UINT32_C(1) << other;
    }
    return group;
}

bool warp_resolve(struct exec *x, struct thread *threads, uint32_t count, bool forced) {
    struct warp w = {threads, count};
    bool released = false;
    for (unsigned lane = 0; lane < count; lane++) {
        if (!waits(&w, lane)) continue;
        bool active = w.lanes[lane].pc->op == OP_activemask;
        uint32_t group = active ? active_group(&w, lane, forced) : complete_group(&w, lane);
        if (group) {
            if (!carry_out(x, &w, group)) return true;
            released = true;
        }
    }
    return released;
}
