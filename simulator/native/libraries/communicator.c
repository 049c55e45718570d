/* How ranks form a communicator: each takes its place in the clique and checks whether all have. */
#include "exchange.h"

struct communicator *communicator_new(bool blocking) {
    struct communicator *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->blocking = blocking;
    made->references = 1;
    pthread_mutex_init(&made->turn, NULL);
    return made;
}

void communicator_release(struct communicator *communicator) {
    if (atomic_fetch_sub(&communicator->references, 1) != 1) return;
    seat_leave(&communicator->seat);
    if (communicator->from != NULL) communicator_release(communicator->from);
    for (struct batch *batch; (batch = communicator->waiting) != NULL; free(batch))
        communicator->waiting = batch->next;
    pthread_mutex_destroy(&communicator->turn);
    free(communicator);
}

static int fails(struct communicator *communicator, int result) {
    int none = OK;
    atomic_compare_exchange_strong(&communicator->error, &none, result);
    return atomic_load(&communicator->error);
}

/* Return the id of another communicator, known to all ranks from the number of splits. */
struct clique_id communicator_next_id(const struct communicator *communicator, int color,
                                      unsigned first) {
    struct clique_id id = communicator->seat.clique->id;
    id.words[0] += (uint64_t)communicator->splits * UINT64_C(0x9e3779b97f4a7c15);
    id.words[1] ^= ((uint64_t)(uint32_t)color + 1) * UINT64_C(0xd1342543de82ef95);
    id.at = communicator->seat.clique->places[first];
    return id;
}

/* Ranks of one color, ordered by their keys and then by their old ranks. */
static int split_off(struct communicator *made) {
    struct communicator *from = made->from;
    struct clique *clique = from->seat.clique;
    unsigned rank = 0, ranks = 0, first = from->rank;
    for (unsigned i = 0; i < from->ranks; i++) {
        if (atomic_load(&clique->splits[i].turn) < made->split) return IN_PROGRESS;
        int key = atomic_load(&clique->splits[i].key);
        if (atomic_load(&clique->splits[i].color) != made->color) continue;
        if (i < first) first = i;
        rank += key < made->key || (key == made->key && i < from->rank);
        ranks++;
    }
    struct clique_id id = communicator_next_id(from, made->color, first);
    made->rank = rank;
    made->ranks = ranks;
    int result = seat_take(&made->seat, id, ranks, rank);
    made->from = NULL;
    communicator_release(from);
    return result;
}

static int look(struct communicator *communicator) {
    int error = atomic_load(&communicator->error);
    if (error != OK) return error;
    const struct seat *seat = &communicator->seat;
    if (communicator->from != NULL) {
        const struct seat *before = &communicator->from->seat;
        if (!seat_sees(before, (1u << communicator->from->ranks) - 1))
            return fails(communicator, REMOTE);
        int result = split_off(communicator);
        if (result == IN_PROGRESS) return IN_PROGRESS;
        if (result != OK) return fails(communicator, result);
    }
    int refused = atomic_load(&seat->clique->refused);
    if (refused != OK) return fails(communicator, refused);
    uint32_t all = (1u << communicator->ranks) - 1, joined = atomic_load(&seat->clique->joined);
    if (atomic_load(&seat->clique->failed) ||
        !seat_sees(seat, joined & ~atomic_load(&seat->clique->left)))
        return fails(communicator, REMOTE);
    return joined == all ? OK : IN_PROGRESS;
}

int communicator_progress(struct communicator *communicator) {
    for (struct batch *batch; (batch = communicator->waiting) != NULL; free(batch)) {
        communicator->waiting = batch->next;
        if (batch_queue(batch) != CUDA_SUCCESS) fails(communicator, UNHANDLED_CUDA);
    }
    return look(communicator);
}

int communicator_await(struct communicator *communicator) {
    for (;;) {
        struct communicator *of = communicator->from != NULL ? communicator->from : communicator;
        struct clique *clique = of->seat.clique;
        uint32_t changes = atomic_load(&clique->changes);
        int result = look(communicator);
        if (result != IN_PROGRESS || atomic_load(&communicator->aborted)) return result;
        clique_await(clique, changes);
    }
}

bool communicator_waits(struct communicator *communicator, uint32_t changes, uint32_t needed) {
    struct clique *clique = communicator->seat.clique;
    bool lost = !seat_sees(&communicator->seat, needed);
    if (lost && atomic_load(&clique->changes) != changes) return true; /* it left a message */
    if (lost) clique_fail(clique);
    if (atomic_load(&clique->failed)) fails(communicator, REMOTE);
    if (atomic_load(&communicator->aborted) || atomic_load(&communicator->error) != OK)
        return false;
    clique_await(clique, changes);
    return true;
}
