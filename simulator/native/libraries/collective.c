/* The data that each operation passes between ranks. A rank passes pieces to all ranks that want
 * them before it takes any, so no two ranks wait for each other. */
#include "exchange.h"

#include <stdalign.h>

/* Senders, receivers and contents: the same for every piece. */
struct plan {
    uint32_t to, from;                   /* a bit per rank; this rank's own is among them */
    bool from_parts, to_parts, combines; /* memory has a part per rank; parts are combined */
};

static struct plan plan_of(const struct operation *o, unsigned rank, unsigned ranks) {
    uint32_t all = (1u << ranks) - 1, me = 1u << rank, root = 1u << o->peer;
    uint32_t at_root = rank == o->peer ? all : 0;
    switch (o->form) {
    case ALL_REDUCE: return (struct plan){all, all, false, false, true};
    case REDUCE: return (struct plan){root, at_root, false, false, true};
    case BROADCAST: return (struct plan){at_root, root, false, false, false};
    case ALL_GATHER: return (struct plan){all, all, false, true, false};
    case REDUCE_SCATTER: return (struct plan){all, all, true, false, true};
    case ALL_TO_ALL: return (struct plan){all, all, true, true, false};
    case GATHER: return (struct plan){root, at_root, false, true, false};
    case SCATTER: return (struct plan){at_root, root, true, false, false};
    default: return (struct plan){me, me, false, false, false};
    }
}

/* Prepare a piece for `rank`; return its length. */
static size_t piece(const struct operation *o, const struct plan *plan, unsigned rank, size_t at,
                    size_t count, void *into) {
    size_t width = type_width(o->type), first = at + (plan->from_parts ? rank * o->count : 0);
    memcpy(into, (const uint8_t *)o->from + first * width, count * width);
    if (o->factor.used) multiply(o->type, into, count, &o->factor);
    return count * width;
}

/* Pass on what others want of this piece, and wait until theirs has come. False: a rank was
 * lost. */
static bool pass(struct communicator *c, const struct operation *o, const struct plan *plan,
                 size_t at, size_t count) {
    struct clique *clique = c->seat.clique;
    uint32_t me = 1u << c->rank, to = plan->to & ~me, from = plan->from & ~me;
    alignas(16) uint8_t data[PIECE_BYTES];
    for (;;) {
        uint32_t changes = atomic_load(&clique->changes);
        bool moved = false;
        for (unsigned rank = 0; rank < c->ranks; rank++) {
            struct channel *out = &clique->out[rank];
            if (to >> rank & 1 && !atomic_load(&out->full)) {
                clique_put(clique, rank, data, piece(o, plan, rank, at, count, data));
                to &= ~(1u << rank);
                moved = true;
            }
            if (atomic_load(&clique->in[rank].full)) from &= ~(1u << rank);
        }
        if ((to | from) == 0) return true;
        if (!moved && !communicator_waits(c, changes, to | from)) return false;
    }
}

/* Move received parts and our own to their places. */
static bool take(struct communicator *c, const struct operation *o, const struct plan *plan,
                 size_t at, size_t count) {
    struct clique *clique = c->seat.clique;
    size_t width = type_width(o->type), bytes = count * width;
    alignas(16) uint8_t own[PIECE_BYTES];
    const void *parts[MOST_RANKS];
    uint8_t *to = (uint8_t *)o->to + at * width;
    if (plan->from == 0) return true;
    if (plan->from >> c->rank & 1) piece(o, plan, c->rank, at, count, own);
    for (unsigned rank = 0; rank < c->ranks; rank++) {
        struct channel *in = &clique->in[rank];
        parts[rank] = rank == c->rank ? own : in->data;
        if ((plan->from >> rank & 1) == 0) continue;
        if (rank != c->rank && atomic_load(&in->bytes) != bytes)
            return false; /* another operation */
        if (!plan->combines)
            memcpy(to + (plan->to_parts ? rank * o->count * width : 0), parts[rank], bytes);
    }
    if (plan->combines) combine(o->type, o->op, to, parts, c->ranks, count);
    for (unsigned rank = 0; rank < c->ranks; rank++)
        if (rank != c->rank && plan->from >> rank & 1) clique_taken(clique, rank);
    return true;
}

static bool run_collective(struct communicator *c, const struct operation *o) {
    struct plan plan = plan_of(o, c->rank, c->ranks);
    size_t most = PIECE_BYTES / type_width(o->type);
    for (size_t at = 0; at < o->count; at += most) {
        size_t count = o->count - at < most ? o->count - at : most;
        if (!pass(c, o, &plan, at, count)) return false;
        if (take(c, o, &plan, at, count)) continue;
        clique_fail(c->seat.clique);
        return false;
    }
    return true;
}

/* ---- between two ranks ---- */

/* Pass one piece, if possible now. */
static bool move(struct communicator *c, const struct operation *o, size_t *done) {
    struct clique *clique = c->seat.clique;
    bool sends = o->form == SEND;
    struct channel *channel = sends ? &clique->out[o->peer] : &clique->in[o->peer];
    size_t left = o->count * type_width(o->type) - *done;
    if (atomic_load(&channel->full) == sends) return false;
    size_t bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
    if (sends) {
        clique_put(clique, o->peer, (const uint8_t *)o->from + *done, bytes);
    } else {
        if (atomic_load(&channel->bytes) != bytes) clique_fail(clique);
        memcpy((uint8_t *)o->to + *done, channel->data, bytes);
        clique_taken(clique, o->peer);
    }
    *done += bytes;
    return true;
}

/* All at once, since each may wait for another; those with one peer in their order. */
static bool run_pairs(struct communicator *c, const struct batch *batch) {
    size_t *done = calloc(batch->count, sizeof *done);
    bool good = done != NULL, left = true;
    while (good && left) {
        uint32_t changes = atomic_load(&c->seat.clique->changes), waited[2] = {0, 0};
        bool moved = left = false;
        for (unsigned i = 0; i < batch->count; i++) {
            const struct operation *o = &batch->at[i];
            uint32_t peer = 1u << o->peer, *of = &waited[o->form == SEND];
            if (o->form < SEND || done[i] == o->count * type_width(o->type) || *of & peer) continue;
            left = true;
            if (move(c, o, &done[i])) moved = true;
            *of |= peer;
        }
        if (left && !moved) good = communicator_waits(c, changes, waited[0] | waited[1]);
    }
    free(done);
    return good;
}

/* Work of a stream. ncclCommGetAsyncError reports its errors. */
static void run_batch(void *data) {
    const struct batch *batch = data;
    struct communicator *c = batch->communicator;
    pthread_mutex_lock(&c->turn);
    bool good = communicator_await(c) == OK;
    for (unsigned i = 0; good && i < batch->count; i++)
        if (batch->at[i].form < SEND) good = run_collective(c, &batch->at[i]);
    if (good) run_pairs(c, batch);
    pthread_mutex_unlock(&c->turn);
    if (!batch->again) communicator_release(c);
}

size_t batch_bytes(unsigned count) {
    return sizeof(struct batch) + count * sizeof(struct operation);
}

CUresult batch_queue(const struct batch *batch) {
    CUcontext before = NULL;
    cuCtxGetCurrent(&before);
    cuCtxSetCurrent(batch->context);
    atomic_fetch_add(&batch->communicator->references, 1); /* the work's reference */
    CUresult result = queue(batch->stream, run_batch, batch, batch_bytes(batch->count));
    if (result != CUDA_SUCCESS) communicator_release(batch->communicator);
    cuCtxSetCurrent(before);
    return result;
}
