/* Memory that both processes map: a control page, two rings of frames and a bulk area. Each ring is
 * mapped twice in a row, so nothing in it ever wraps. docs/internals/wire.md describes the layout.
 */
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

/* Fields that different processes write are two cache lines apart: processors also fetch the
 * neighbouring line. */
#define SHARED_APART _Alignas(128)

/* A writer's position. If its last frame is short, a copy is here as well, so a waiting reader
 * needs one cache line instead of two. */
#define SHARED_SHORT_WORDS 6
#define SHARED_SHORT_BYTES (8 * SHARED_SHORT_WORDS)
struct shared_tail {
    SHARED_APART _Atomic uint64_t at;
    _Atomic uint64_t beside; /* the tail that `frame` belongs to; 0 while it changes */
    _Atomic uint64_t frame[SHARED_SHORT_WORDS];
};

/* What a writer must know about the reader of its ring. */
struct shared_reader {
    SHARED_APART _Atomic uint32_t sleeps; /* futex: wake the reader */
    /* the reader runs membarrier before it sleeps, so its writer needs no fence */
    _Atomic uint32_t barriers;
};

struct shared_control {
    uint64_t magic;
    struct shared_tail requests;
    SHARED_APART _Atomic uint64_t request_head;
    _Atomic uint64_t taken;        /* seq of the last call that was started */
    _Atomic uint32_t bulk_held;    /* bit per slot that copies to the card still read */
    struct shared_reader executor; /* reads requests */
    struct shared_tail replies;
    SHARED_APART _Atomic uint64_t reply_head;
    struct shared_reader client; /* reads replies */
};

struct shared {
    struct shared_control *control;
    uint8_t *requests, *replies; /* SHARED_RING_BYTES each, mapped twice */
    uint8_t *bulk;
};

/* Return a new sealed memfd of SHARED_BYTES, or -1 (errno). */
int shared_create(void);

/* Map it. Return false if it is invalid or memory is short. */
bool shared_map(struct shared *shared, int fd);
void shared_unmap(struct shared *shared);

/* Return `bytes` (a multiple of the page size), mapped twice in a row; NULL: no memory. */
uint8_t *doubled(uint32_t bytes);

/* Let this process write without fences (membarrier). With several threads registration takes about
 * 10 ms; it is skipped then, and each call has its fence. shared_map also calls this. */
void shared_register(void);
/* A ring's reader calls this before its writer starts. */
void shared_reader_init(struct shared_reader *reader);
/* Return the bytes that a frame takes in a ring. */
static inline uint64_t shared_frame(uint64_t payload_bytes) {
    return (sizeof(struct wire_header) + payload_bytes + 15) & ~UINT64_C(15);
}

/* Set the tail to `end`: everything written before it can be read. */
static inline void shared_publish(struct shared_tail *tail, uint64_t end) {
    atomic_store_explicit(&tail->at, end, memory_order_release);
}
/* The same with a short frame of `bytes` that is not in the ring yet; copies it to `slot`, its
 * place. */
void shared_publish_short(struct shared_tail *tail, uint64_t end,
                          const uint64_t frame[SHARED_SHORT_WORDS], size_t bytes, uint8_t *slot);
/* Copy the frame from `start` to `end` if it is the short one beside the tail; otherwise false. */
bool shared_beside(struct shared_tail *tail, uint64_t start, uint64_t end,
                   uint64_t frame[SHARED_SHORT_WORDS]);

/* Wait until the tail differs from `seen`, spinning first; false after `milliseconds`. */
bool shared_wait(struct shared_tail *tail, uint64_t seen, struct shared_reader *reader,
                 int milliseconds);
/* Wake the reader if it sleeps. Call it after the tail was stored. */
void shared_wake(struct shared_reader *reader);

#pragma GCC visibility pop

#endif
