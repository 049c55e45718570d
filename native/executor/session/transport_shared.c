/* Frames through memory that the client maps as well. Whatever is in it can change at any time:
 * frames are copied once, and what is checked is what is used. */
#define _GNU_SOURCE
#include "executor/session/session.h"

#include <unistd.h>

#include "executor/moves/moves.h"

#define HEAD_BYTES (SHARED_RING_BYTES / 16) /* the client is told of room at least this often */
#define FULL_US 50
#define BULK_LOOK_MS \
    1 /* how often, while copies read the bulk area and the client asks for nothing */

static uint8_t *private_payload;

/* Ours, and the client's as last seen: looking there costs a cache line. Under session.out_lock. */
static uint64_t reply_tail, reply_head;

bool shared_prepare(void) { return (private_payload = malloc(SHARED_RING_BYTES)) != NULL; }

bool shared_open(int memory) {
    if (!shared_map(&session.shared, memory)) return false;
    shared_reader_init(&session.shared.control->executor);
    session.shared.control->magic = SHARED_MAGIC;
    bulk_open(session.shared.bulk, &session.shared.control->bulk_held);
    session.transport = &transport_shared;
    return true;
}

bool shared_adopt(int memory, int connection) {
    if (!shared_map(&session.shared, memory)) return false;
    session.transport = &transport_shared;
    session.connection = connection;
    session.over_unix = true;
    return true;
}

void shared_begin(void) {
    struct shared_control *control = session.shared.control;
    reply_tail = atomic_load(&control->replies.at);
    reply_head = atomic_load(&control->reply_head);
    bulk_open(session.shared.bulk, &control->bulk_held);
    shared_reader_init(&control->executor);
}

static void shared_emit(const struct wire_header *header, const void *head, size_t head_bytes,
                        const void *data, size_t bytes) {
    size_t whole = sizeof *header + head_bytes + bytes;
    struct shared_control *control = session.shared.control;
    size_t frame = shared_frame(whole - sizeof *header);
    if (frame > SHARED_RING_BYTES) session_end(EXIT_VIOLATION);
    while (reply_tail + frame - reply_head > SHARED_RING_BYTES) {
        reply_head = atomic_load_explicit(&control->reply_head, memory_order_acquire);
        /* a client that does not read keeps nobody waiting but itself */
        if (reply_tail + frame - reply_head > SHARED_RING_BYTES) usleep(FULL_US);
    }
    uint64_t last[SHARED_SHORT_WORDS] = {0}; /* what pads a frame says nothing of us */
    uint8_t *slot = session.shared.replies + reply_tail % SHARED_RING_BYTES;
    uint8_t *at = frame <= sizeof last ? (uint8_t *)last : slot;
    put_header(at, header->op, header->flags, header->len, header->seq);
    if (head_bytes == sizeof(struct wire_reply)) /* a size that is known: no call of memcpy */
        memcpy(at + sizeof *header, head, sizeof(struct wire_reply));
    else if (head_bytes)
        memcpy(at + sizeof *header, head, head_bytes);
    if (bytes) memcpy(at + sizeof *header + head_bytes, data, bytes);
    reply_tail += frame;
    if (at != slot)
        shared_publish_short(&control->replies, reply_tail, last, whole, slot);
    else
        shared_publish(&control->replies, reply_tail);
    shared_wake(&control->client);
}

static void shared_reply(struct reply *reply, bool beside) {
    (void)beside;
    struct wire_header header = reply_header(reply);
    shared_emit(&header, &reply->head, sizeof reply->head, reply->data, reply->bytes);
    if (reply->owned) session_reply_give(reply->data, reply->bytes);
}

static void shared_flush(void) {} /* what is emitted can be read */

static void shared_serve(void) {
    struct shared_control *control = session.shared.control;
    /* Of a session that was moved, what it has taken already comes once more, with its number. */
    uint64_t head = atomic_load(&control->request_head), tail = head, said = head;
    gate_enter();
    for (;;) {
        gate_look();
        /* What has been seen is done; looking at the client's words costs cache lines, so not after
         * each call. */
        if (head == tail) {
            if (said != head)
                atomic_store_explicit(&control->request_head, said = head, memory_order_release);
            tail = atomic_load_explicit(&control->requests.at, memory_order_acquire);
            if (tail == head) {
                bool reads = bulk_look();
                gate_leave();
                shared_wait(&control->requests, head, &control->executor,
                            reads ? BULK_LOOK_MS : 1000);
                gate_enter();
                continue;
            }
        }
        if (tail - head > SHARED_RING_BYTES || tail - head < sizeof(struct wire_header))
            session_violation("the ring is out of order");
        struct wire_header header;
        uint64_t last[SHARED_SHORT_WORDS];
        bool beside = shared_beside(&control->requests, head, tail, last);
        const uint8_t *at =
            beside ? (const uint8_t *)last : session.shared.requests + head % SHARED_RING_BYTES;
        memcpy(&header, at, sizeof header);
        size_t frame = shared_frame(header.len);
        if (frame > tail - head) session_violation("a frame is longer than the ring says");
        if (!beside) memcpy(private_payload, at + sizeof header, header.len);
        head += frame;
        if (header.flags & WIRE_REPLY_WANTED || head - said >= HEAD_BYTES)
            atomic_store_explicit(&control->request_head, said = head, memory_order_release);
        session_frame(&header, beside ? at + sizeof header : private_payload);
        atomic_store_explicit(&control->taken, session.taken, memory_order_release);
    }
}

uint8_t *session_bulk(uint64_t offset, size_t bytes) {
    bool inside = offset <= SHARED_BULK_BYTES && bytes <= SHARED_BULK_BYTES - offset;
    return session.shared.bulk != NULL && inside ? session.shared.bulk + offset : NULL;
}

const struct transport transport_shared = {
    .emit = shared_emit,
    .reply = shared_reply,
    .flush = shared_flush,
    .serve = shared_serve,
};
