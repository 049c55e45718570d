/* Memory that both processes map: a control page, two rings of frames, a bulk area; and rings that
 * are mapped twice in a row, so that nothing in them ever wraps. The layout is in docs/wire.md. */
#ifndef EGPU_WIRE_RING_H
#define EGPU_WIRE_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

#pragma GCC visibility push(hidden)

#define SHARED_MAGIC UINT64_C(0x334d485355504745) /* "EGPUSHM3" */
#define SHARED_RING_BYTES (1u << 20)
#define SHARED_BULK_BYTES (4u << 20)
#define SHARED_BULK_SLOT (512u << 10)
#define SHARED_BULK_SLOTS (SHARED_BULK_BYTES / SHARED_BULK_SLOT)
#define SHARED_BULK_HELD (SHARED_BULK_SLOTS - 1) /* the most that copies to the card may hold */
#define SHARED_BYTES (4096u + 2 * SHARED_RING_BYTES + SHARED_BULK_BYTES)

/* What is written by different processes is two cache lines apart: processors fetch the neighbour
 * of a line as well. */
#define SHARED_APART _Alignas(128)

/* How far a writer has got. If its last frame is short, a copy stands here as well, so that whoever
 * waits for it needs one cache line instead of two. */
#define SHARED_SHORT_WORDS 6
#define SHARED_SHORT_BYTES (8 * SHARED_SHORT_WORDS)
struct shared_tail {
    SHARED_APART _Atomic uint64_t at;
    _Atomic uint64_t beside; /* the tail that `frame` belongs to; 0 while it changes */
    _Atomic uint64_t frame[SHARED_SHORT_WORDS];
};

/* What a writer has to know of the reader of its ring. */
struct shared_reader {
    SHARED_APART _Atomic uint32_t sleeps; /* futex: to be woken */
    /* the reader runs membarrier before it sleeps, so its writer needs no fence */
    _Atomic uint32_t barriers;
};

struct shared_control {
    uint64_t magic;
    struct shared_tail requests;
    SHARED_APART _Atomic uint64_t request_head;
    _Atomic uint64_t taken;        /* seq of the last call that was begun */
    _Atomic uint32_t bulk_held;    /* slots that copies to the card still read, a bit for each */
    struct shared_reader executor; /* of the requests */
    struct shared_tail replies;
    SHARED_APART _Atomic uint64_t reply_head;
    struct shared_reader client; /* of the replies */
};

struct shared {
    struct shared_control *control;
    uint8_t *requests, *replies; /* SHARED_RING_BYTES each, mapped twice */
    uint8_t *bulk;
};

/* A new sealed memfd of SHARED_BYTES, or -1 (errno). */
int shared_create(void);

/* Maps it; false if it is not what it should be, or there is no room. */
bool shared_map(struct shared *shared, int fd);
void shared_unmap(struct shared *shared);

/* `bytes` (a multiple of the page size) of memory, mapped twice in a row. NULL without room. */
uint8_t *doubled(uint32_t bytes);

/* Lets this process write without fences (membarrier). Registering takes some 10 ms once there are
 * several threads; then it is not done, and each call has its fence. shared_map does it as well. */
void shared_register(void);
/* To be called by the reader of a ring before its writer begins. */
void shared_reader_init(struct shared_reader *reader);
/* What a frame takes in a ring. */
static inline uint64_t shared_frame(uint64_t payload_bytes) {
    return (sizeof(struct wire_header) + payload_bytes + 15) & ~UINT64_C(15);
}

/* The tail is now `end`: what was written into the ring before can be read. */
static inline void shared_publish(struct shared_tail *tail, uint64_t end) {
    atomic_store_explicit(&tail->at, end, memory_order_release);
}
/* The same with a short frame of `bytes`, which has not been written into the ring: that is done
 * here, `slot` is its place. */
void shared_publish_short(struct shared_tail *tail, uint64_t end,
                          const uint64_t frame[SHARED_SHORT_WORDS], size_t bytes, uint8_t *slot);
/* Copies the frame from `start` to `end` if it is the short one beside the tail; else false. */
bool shared_beside(struct shared_tail *tail, uint64_t start, uint64_t end,
                   uint64_t frame[SHARED_SHORT_WORDS]);

/* Waits until the tail differs from `seen`, spinning first; false after `milliseconds`. */
bool shared_wait(struct shared_tail *tail, uint64_t seen, struct shared_reader *reader,
                 int milliseconds);
/* After the tail was stored: wakes the reader if it sleeps. */
void shared_wake(struct shared_reader *reader);

#pragma GCC visibility pop

#endif
