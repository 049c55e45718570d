/* Frames through memory that the executor also maps: they are written where it reads them. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"

#define SPINS 200 /* checks of a full ring before sleeping between them */
#define FULL_US 20

static bool shared_open(struct link *link) {
    link->ring = link->shared.memory.requests;
    link->ring_mask = SHARED_RING_BYTES - 1;
    link->limit = SHARED_RING_BYTES;
    return true;
}

/* The socket carries only descriptors: its end means that the executor has ended. */
void shared_look_at_socket(struct link *link) {
    char byte;
    ssize_t got = recv(link->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        link_die(link, "the executor has ended");
}

static bool shared_make_room(struct link *link, size_t frame) {
    struct shared_control *control = link->shared.memory.control;
    size_t whole = shared_frame(frame - sizeof(struct wire_header));
    int64_t next_look = 0;
    for (unsigned spins = 0;; spins++) {
        uint64_t head = atomic_load_explicit(&control->request_head, memory_order_acquire);
        link->limit = head + SHARED_RING_BYTES;
        if (link->tail + whole - head <= SHARED_RING_BYTES) return true;
        if (atomic_load(&link->dead)) return false;
        if (spins < SPINS) continue;
        usleep(FULL_US);
        if (next_look == 0) next_look = clock_now_ms() + LOOK_MS;
        if (clock_now_ms() < next_look) continue;
        next_look = clock_now_ms() + LOOK_MS;
        shared_look_at_socket(link);
    }
}

/* A short frame is passed beside the tail, see shared_publish_short. */
static uint8_t *shared_place_waiting(struct link *link, size_t frame) {
    uint8_t *at = link_room(link, frame);
    bool is_short = at != NULL && frame <= sizeof link->shared.short_frame;
    return is_short ? (uint8_t *)link->shared.short_frame : at;
}

/* Place the next `frame` bytes in the ring; return their end. */
static inline uint64_t shared_advance(struct link *link, size_t frame) {
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed) +
                    shared_frame(frame - sizeof(struct wire_header));
    atomic_store_explicit(&link->tail, tail, memory_order_relaxed);
    return tail;
}

static void shared_post(struct link *link, size_t frame, const struct call *call) {
    (void)call;
    struct shared_control *control = link->shared.memory.control;
    shared_publish(&control->requests, shared_advance(link, frame));
    shared_wake(&control->executor);
}

static void shared_publish_frame(struct link *link, size_t frame, const struct call *call) {
    uint64_t *short_frame = link->shared.short_frame;
    if (call == NULL || (const void *)call->header != short_frame) {
        shared_post(link, frame, call);
        return;
    }
    struct shared_control *control = link->shared.memory.control;
    uint8_t *slot = link->ring + (link->tail & link->ring_mask);
    shared_publish_short(&control->requests, shared_advance(link, frame), short_frame, frame, slot);
    shared_wake(&control->executor);
}

static bool shared_flush(struct link *link) {
    (void)link; /* published frames are readable at once */
    return true;
}

/* Read one frame, or return after a while without one. */
static void receive(struct link *link, struct call *mine) {
    struct shared_control *control = link->shared.memory.control;
    uint64_t head = atomic_load_explicit(&control->reply_head, memory_order_relaxed);
    if (!shared_wait(&control->replies, head, &control->client, LOOK_MS)) {
        shared_look_at_socket(link);
        return;
    }
    struct wire_header header;
    uint64_t last[SHARED_SHORT_WORDS];
    uint64_t tail = atomic_load_explicit(&control->replies.at, memory_order_acquire);
    const uint8_t *at = link->shared.memory.replies + head % SHARED_RING_BYTES;
    if (shared_beside(&control->replies, head, tail, last)) at = (const uint8_t *)last;
    memcpy(&header, at, sizeof header);
    uint64_t frame = shared_frame(header.len), ready = tail - head;
    /* unchecked, frames would be left to read long after its end */
    if (ready > SHARED_RING_BYTES || frame > ready) {
        link_die(link, "the executor sent an invalid frame");
        return;
    }
    call_dispatch(link, &header, at + sizeof header, mine);
    atomic_store_explicit(&control->reply_head, head + frame, memory_order_release);
}

static void shared_receive(struct link *link) { receive(link, NULL); }

static CUresult shared_exchange(struct call *call) {
    struct link *link = call->link;
    /* A reply often comes within a microsecond: a thread that is the reader before its call is sent
     * receives the reply itself. */
    if (!reading_start(link)) {
        call_send(call);
        return call_wait(call);
    }
    call_publish(call);
    link_unlock(link);
    while (!call->done && !atomic_load_explicit(&link->dead, memory_order_relaxed))
        receive(link, call);
    reading_stop(link);
    return call_concluded(call);
}

const struct transport transport_shared = {
    .maps_host_memory = true,
    .open = shared_open,
    .make_room = shared_make_room,
    .place_waiting = shared_place_waiting,
    .publish = shared_publish_frame,
    .post = shared_post,
    .flush = shared_flush,
    .exchange = shared_exchange,
    .receive = shared_receive,
    .copy_in = bulk_in_shared,
    .copy_out = bulk_out_shared,
};
