/* Long copies, in several pieces at a time: straight from the program's memory (stream), or through
 * the bulk area (shared memory). */
#define _GNU_SOURCE
#include "client.h"

#include <sched.h>
#include <unistd.h>

#include "common/clock.h"
#include "egpu_streaming.h"

#define IN_PIECE (1u << 20)
/* the executor sends data while it is still in the cache from the card's copy */
#define OUT_PIECE (480u << 10)
#define SLOT_LOOKS 1000
#define SLOT_US 50
#define OUT_AHEAD 3 /* pieces requested before the first has come */

/* ---- host to device ---- */

CUresult bulk_in_stream(const struct where *where, uint64_t to, const uint8_t *from, size_t bytes) {
    for (size_t done = 0;;) {
        size_t piece = bytes - done < IN_PIECE ? bytes - done : IN_PIECE;
        bool last = done + piece == bytes;
        struct call call;
        call_start(&call, OP_COPY_IN);
        call.link = where->link;
        call.external = from + done;
        call.external_bytes = piece;
        struct wire_copy_in copy = {to + done, where->stream, (uint32_t)piece, where->wait};
        CUresult result = call_begin(&call, sizeof copy, last ? CALL_WAITS : CALL_POSTED);
        if (result != CUDA_SUCCESS) return result;
        put_bytes(&call.out, &copy, sizeof copy);
        if (!last) {
            call_post(&call);
            done += piece;
            continue;
        }
        result = call_exchange(&call);
        call_end(&call);
        return result;
    }
}

static bool carried_out(const struct link *link, uint64_t seq) {
    return atomic_load_explicit(&link->shared.memory.control->taken, memory_order_acquire) >= seq;
}

/* A copy that was executed may still be in progress. */
static bool held(const struct link *link, unsigned slot) {
    const struct shared_control *control = link->shared.memory.control;
    return atomic_load_explicit(&control->bulk_held, memory_order_acquire) & 1u << slot;
}

/* Return a free slot of the bulk area, usable until the call whose number slot_used gets is done.
 * The first free one is taken, so few slots are used, again and again. */
static unsigned slot_take(struct link *link) {
    int64_t next_look = 0;
    pthread_mutex_lock(&link->shared.slot_lock);
    for (unsigned looks = 0;; looks++) {
        for (unsigned slot = 0; slot < SHARED_BULK_SLOTS; slot++) {
            if (link->shared.slot_seq[slot] == UINT64_MAX ||
                !carried_out(link, link->shared.slot_seq[slot]) || held(link, slot))
                continue;
            link->shared.slot_seq[slot] = UINT64_MAX; /* ours, without a number yet */
            pthread_mutex_unlock(&link->shared.slot_lock);
            return slot;
        }
        if (atomic_load(&link->dead)) break;
        pthread_mutex_unlock(&link->shared.slot_lock);
        if (looks < SLOT_LOOKS)
            sched_yield();
        else if (clock_now_ms() >= next_look) { /* no other thread may be checking the executor */
            shared_look_at_socket(link);
            next_look = clock_now_ms() + LOOK_MS;
        } else /* queued behind the card's earlier work */
            usleep(SLOT_US);
        pthread_mutex_lock(&link->shared.slot_lock);
    }
    pthread_mutex_unlock(&link->shared.slot_lock);
    return SHARED_BULK_SLOTS;
}

static void slot_used(struct link *link, unsigned slot, uint64_t seq) {
    pthread_mutex_lock(&link->shared.slot_lock);
    link->shared.slot_seq[slot] = seq;
    pthread_mutex_unlock(&link->shared.slot_lock);
}

/* Both sides copy at the same time, so use several pieces, but no more than can be on the way at
 * once, if possible. */
static size_t in_piece(size_t bytes) {
    size_t least = SHARED_BULK_SLOT / 4, even = bytes / SHARED_BULK_HELD + 1;
    if (even > SHARED_BULK_SLOT) return SHARED_BULK_SLOT;
    return even < least ? least : (even + 4095) & ~(size_t)4095;
}

CUresult bulk_in_shared(const struct where *where, uint64_t to, const uint8_t *from, size_t bytes) {
    struct link *link = where->link;
    size_t most = in_piece(bytes);
    for (size_t done = 0;;) {
        size_t piece = bytes - done < most ? bytes - done : most;
        bool last = done + piece == bytes;
        unsigned slot = slot_take(link);
        if (slot == SHARED_BULK_SLOTS) return CUDA_ERROR_DEVICE_UNAVAILABLE;
        copy_streaming(link->shared.memory.bulk + (size_t)slot * SHARED_BULK_SLOT, from + done,
                       piece);
        struct call call;
        call_start(&call, OP_COPY_IN_SHARED);
        call.link = link;
        struct wire_copy_shared copy = {to + done, where->stream, (uint32_t)piece, where->wait,
                                        (uint64_t)slot * SHARED_BULK_SLOT};
        CUresult result = call_begin(&call, sizeof copy, last ? CALL_WAITS : CALL_POSTED);
        if (result != CUDA_SUCCESS) {
            slot_used(link, slot, 0);
            return result;
        }
        put_bytes(&call.out, &copy, sizeof copy);
        uint64_t seq = call.seq;
        if (last) {
            result = call_exchange(&call);
            call_end(&call);
            slot_used(link, slot, 0);
            return result;
        }
        call_post(&call);
        slot_used(link, slot, seq);
        done += piece;
    }
}

/* ---- device to host ---- */

CUresult bulk_out_shared(const struct where *where, uint8_t *to, uint64_t from, size_t bytes) {
    struct link *link = where->link;
    struct call calls[OUT_AHEAD];
    unsigned slots[OUT_AHEAD];
    size_t sizes[OUT_AHEAD], asked = 0, got = 0;
    uint64_t first = 0, end = 0;
    CUresult result = CUDA_SUCCESS;
    size_t most = bytes >= 4 * SHARED_BULK_SLOT ? SHARED_BULK_SLOT : SHARED_BULK_SLOT / 4;
    while (got < bytes && result == CUDA_SUCCESS) {
        for (; asked < bytes && end - first < OUT_AHEAD; end++) {
            struct call *call = &calls[end % OUT_AHEAD];
            size_t piece = bytes - asked < most ? bytes - asked : most;
            unsigned slot = slot_take(link);
            if (slot == SHARED_BULK_SLOTS) { /* outstanding calls start here: to the end */
                result = CUDA_ERROR_DEVICE_UNAVAILABLE;
                break;
            }
            call_start(call, OP_COPY_OUT_SHARED);
            call->link = link;
            struct wire_copy_shared copy = {from + asked, where->stream, (uint32_t)piece,
                                            where->wait, (uint64_t)slot * SHARED_BULK_SLOT};
            if ((result = call_begin(call, sizeof copy, CALL_WAITS)) != CUDA_SUCCESS) {
                slot_used(link, slot, 0);
                break;
            }
            put_bytes(&call->out, &copy, sizeof copy);
            call_send(call);
            slots[end % OUT_AHEAD] = slot;
            sizes[end % OUT_AHEAD] = piece;
            asked += piece;
        }
        if (first == end) break;
        CUresult came = call_wait(&calls[first % OUT_AHEAD]);
        call_end(&calls[first % OUT_AHEAD]);
        unsigned slot = slots[first % OUT_AHEAD];
        if (came == CUDA_SUCCESS)
            copy_streaming(to + got, link->shared.memory.bulk + (size_t)slot * SHARED_BULK_SLOT,
                           sizes[first % OUT_AHEAD]);
        slot_used(link, slot, 0);
        got += sizes[first % OUT_AHEAD];
        first++;
        if (result == CUDA_SUCCESS) result = came;
    }
    for (; first != end; first++) {
        call_wait(&calls[first % OUT_AHEAD]);
        call_end(&calls[first % OUT_AHEAD]);
        slot_used(link, slots[first % OUT_AHEAD], 0);
    }
    return result;
}

CUresult bulk_out_stream(const struct where *where, uint8_t *to, uint64_t from, size_t bytes) {
    struct call calls[OUT_AHEAD];
    uint64_t first = 0, end = 0;
    size_t asked = 0;
    CUresult result = CUDA_SUCCESS;
    do {
        for (; (asked < bytes || bytes == 0) && end - first < OUT_AHEAD && result == CUDA_SUCCESS;
             end++) {
            struct call *call = &calls[end % OUT_AHEAD];
            size_t piece = bytes - asked < OUT_PIECE ? bytes - asked : OUT_PIECE;
            call_start(call, OP_COPY_OUT);
            call->link = where->link;
            call->into = to + asked;
            call->into_bytes = call->asked_bytes = piece;
            struct wire_copy_out copy = {from + asked, where->stream, (uint32_t)piece, where->wait};
            if ((result = call_begin(call, sizeof copy, CALL_WAITS)) != CUDA_SUCCESS) break;
            put_bytes(&call->out, &copy, sizeof copy);
            call_send(call);
            asked += piece;
            if (bytes == 0) {
                end++;
                break;
            }
        }
        if (first == end) break;
        CUresult came = call_wait(&calls[first % OUT_AHEAD]);
        if (came == CUDA_SUCCESS &&
            calls[first % OUT_AHEAD].into_got != calls[first % OUT_AHEAD].into_bytes)
            came = CUDA_ERROR_UNKNOWN;
        call_end(&calls[first % OUT_AHEAD]);
        first++;
        if (result == CUDA_SUCCESS) result = came;
    } while (first != end || (asked < bytes && result == CUDA_SUCCESS));
    return result;
}
