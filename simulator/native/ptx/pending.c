/* Asynchronous copies of a thread, and barriers in shared memory, at run time. */
#include "exec.h"

#include <stdlib.h>
#include <string.h>

/* ---- copies ---- */

static bool room_for_one(struct copies *c) {
    if (c->first + c->count < c->room) return true;
    if (c->first) {
        memmove(c->items, c->items + c->first, c->count * sizeof *c->items);
        c->first = 0;
        return true;
    }
    uint32_t room = c->room ? 2 * c->room : 16;
    struct copy *items = realloc(c->items, room * sizeof *items);
    if (!items) return false;
    c->items = items;
    c->room = room;
    return true;
}

/* Addresses are checked now: a fault is reported at its instruction. */
bool copy_begin(struct exec *x, struct thread *t, const union slot *R, const struct ins *at) {
    struct copies *c = &t->window->copies;
    uint32_t whole = at->aux, bytes = R[at->b].u32;
    if (bytes > whole) { /* undefined in PTX */
        x->status = EGPU_PTX_TRAP;
        return false;
    }
    void *to = shared_memory(x, R[at->a].u64 + (uint64_t)(int64_t)at->imm, whole, whole, true);
    const void *from = to;
    if (to && bytes)
        from = global_memory(x, R[at[1].a].u64 + (uint64_t)(int64_t)at[1].imm, bytes, whole, false);
    if (!to || !from) return false;
    if (!room_for_one(c)) {
        x->status = EGPU_PTX_NO_MEMORY;
        return false;
    }
    c->items[c->first + c->count++] = (struct copy){from, to, bytes, whole - bytes, c->group};
    return true;
}

static void copy_until(struct copies *c, uint32_t group) {
    for (; c->count && c->items[c->first].group < group; c->first++, c->count--) {
        const struct copy *one = &c->items[c->first];
        memcpy(one->to, one->from, one->bytes);
        memset((uint8_t *)one->to + one->bytes, 0, one->zeros);
    }
    if (c->count == 0) c->first = 0;
}

void copy_wait(struct thread *t, uint32_t pending_groups) {
    struct copies *c = &t->window->copies;
    if (c->group > pending_groups) copy_until(c, c->group - pending_groups);
}

void copy_wait_all(struct thread *t) { copy_until(&t->window->copies, UINT32_MAX); }

/* ---- barriers ---- */

/* PTX does not define the contents of the 64 bits; it does define the limits of the counts. */
struct state {
    uint64_t pending : 20, expected : 20, phase : 1;
    int64_t bytes : 22; /* that copies have yet to bring */
};
enum { MBARRIER_MOST = (1 << 20) - 1 };

static bool change(struct state *s, enum mbarrier_mode mode, uint32_t n) {
    bool arrives = mode == MBARRIER_ARRIVE || mode == MBARRIER_ARRIVE_DROP;
    if (arrives && (n == 0 || n > s->pending)) return false;
    if (!arrives && n > MBARRIER_MOST) return false;
    if (mode == MBARRIER_EXPECT || mode == MBARRIER_ARRIVE_EXPECT) {
        if (s->bytes + (int64_t)n > MBARRIER_MOST) return false;
        s->bytes += (int32_t)n;
    }
    if (mode == MBARRIER_COMPLETE) {
        if (s->bytes - (int64_t)n < -MBARRIER_MOST) return false;
        s->bytes -= (int32_t)n;
    }
    if (mode == MBARRIER_ARRIVE_DROP) s->expected = (s->expected - n) & MBARRIER_MOST;
    if (arrives) s->pending = (s->pending - n) & MBARRIER_MOST;
    if (mode == MBARRIER_ARRIVE_EXPECT) {
        if (s->pending == 0) return false;
        s->pending = (s->pending - 1u) & MBARRIER_MOST;
    }
    if (s->pending == 0 && s->bytes == 0) {
        s->phase ^= 1;
        s->pending = s->expected;
    }
    return true;
}

/* Cases that PTX leaves undefined (too many arrivals, a word that is no barrier) fail. */
bool mbarrier(struct exec *x, union slot *R, const struct ins *at) {
    enum mbarrier_mode mode = (enum mbarrier_mode)at->aux;
    uint64_t address = R[at->a].u64 + (uint64_t)(int64_t)at->imm;
    uint64_t *word = shared_memory(x, address, 8, 8, mode < MBARRIER_TEST);
    if (!word) return false;
    uint32_t n = R[at->b].u32;
    union {
        uint64_t word;
        struct state state;
    } b = {.word = *word}, seen = {.word = R[at->b].u64};
    if (mode == MBARRIER_INIT) {
        if (n == 0 || n > MBARRIER_MOST) goto undefined;
        b.word = 0;
        b.state.pending = b.state.expected = n & MBARRIER_MOST;
        *word = b.word;
        return true;
    }
    if (b.word == 0) goto undefined;
    switch (mode) {
    case MBARRIER_INVALIDATE: b.word = 0; break;
    case MBARRIER_TEST: R[at->d].u64 = seen.state.phase != b.state.phase; return true;
    case MBARRIER_TEST_PARITY: R[at->d].u64 = (n & 1) != b.state.phase; return true;
    default: {
        uint64_t before = b.word;
        if (!change(&b.state, mode, n)) goto undefined;
        R[at->d].u64 = before;
    }
    }
    *word = b.word;
    return true;
undefined:
    x->status = EGPU_PTX_TRAP;
    return false;
}
