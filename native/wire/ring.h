/* Memory that both processes map: a control page, two rings of frames, a bulk area; and rings that are mapped twice in a row,
 * so that nothing in them ever wraps. The layout is in docs/wire.md. */
#ifndef EGPU_WIRE_RING_H
#define EGPU_WIRE_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define SHARED_MAGIC UINT64_C(0x314d485355504745) /* "EGPUSHM1" */
#define SHARED_RING_BYTES (1u << 20)
#define SHARED_BULK_BYTES (4u << 20) /* small: what one side has written is still in a cache when the other one reads it */
#define SHARED_BULK_SLOT (128u << 10)
#define SHARED_BULK_SLOTS (SHARED_BULK_BYTES / SHARED_BULK_SLOT)
#define SHARED_BYTES (4096u + 2 * SHARED_RING_BYTES + SHARED_BULK_BYTES)

struct shared_control {
    uint64_t magic;
    uint64_t spare0[7];
    _Atomic uint64_t request_tail;
    uint64_t spare1[7];
    _Atomic uint64_t request_head;
    _Atomic uint64_t taken; /* seq of the last call that was begun */
    uint64_t spare2[6];
    _Atomic uint32_t executor_sleeps;
    uint32_t spare3[15];
    _Atomic uint64_t reply_tail;
    uint64_t spare4[7];
    _Atomic uint64_t reply_head;
    uint64_t spare5[7];
    _Atomic uint32_t client_sleeps;
    uint32_t spare6[15];
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

/* Waits until *tail differs from `seen`, spinning first; false after `milliseconds`. `sleeps` is where the writer looks. */
bool shared_wait(_Atomic uint64_t *tail, uint64_t seen, _Atomic uint32_t *sleeps, int milliseconds);
/* After *tail was stored: wakes the reader if it sleeps. */
void shared_wake(_Atomic uint32_t *sleeps);

#pragma GCC visibility pop

#endif
