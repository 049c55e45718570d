/* Compute: a share of the card's *time*, whatever the shape of the kernels.
 *
 * The cost of a launch is known only afterwards. So launches are timed in batches on their stream,
 * by a pair of events. Each launch adds the average of its work (function and grid) to the
 * expected cost of its batch. When a batch ends, the container's bucket pays the expected cost;
 * when the events are over, the bucket is corrected. A batch begins only while the bucket is not
 * empty, so a container is some batches ahead at most, and never in the long run.
 *
 *   clock.h     a cheap clock
 *   lanes.c     finds lanes (a stream of a context, with its open batch) and meters (a context: its
 *               batches, the averages of its works, how its GPU's clock relates to ours)
 *   batches.c   opens and ends batches; captures
 *   charges.c   turns timed batches into charges and averages
 *   launches.c  one launch: waits for its turn, joins or opens a batch
 *   turns.c     the turns of latency work, and work that yields to it
 *
 * If a stream ran out of work between two launches, its batch also timed our idleness: the batch is
 * dropped and pays what was expected. The next launch is timed alone, and some after it are not
 * timed. Time that several streams or processes use at once is charged once (coverage_add). Nothing
 * is recorded while this process captures anything.
 */
#ifndef EGPU_COMPUTE_H
#define EGPU_COMPUTE_H

#include "clock.h"

enum {
    BATCH_LAUNCHES = 256, /* many: the events of a batch cost little beside its launches */
    BATCH_NS = 2000000,   /* the bound of batches of longer launches, */
    YIELDING_NS = 50000,  /* and of those that stop for latency work */
    BATCHES = 8,
    METERS = 32, /* contexts that are timed; others are limited by averages alone */
    LANES = 256,
    WORKS = 1024,
    TRUST_AFTER = 2, /* timings of a work alone, before it is batched */
    SIBLINGS = 3,    /* processes whose turns may be part of one timing */
    EARLY = 16,      /* among so many first samples, the least is nearer to the truth */
    POLL_NS = 50000,
    LONGEST_SLEEP_NS = 2000000, /* so that a new limit takes effect soon */
    BACKLOG_WAIT_NS = 20000000, /* for one of BATCHES to end; after that the launch is not timed */
    UNKNOWN_WORK_NS = 20000,    /* expected cost of a work that was never timed */
    UNTIMED = 15,               /* launches that are not timed after a stream ran out of work */
    UNTIMED_SHORT = 5,          /* at most, after a short batch that the program waits for */
    OWED_NS = 200000,           /* of untimed launches, before the bucket pays */
    BORROWED_NS = 8000000,      /* most to queue, of time that others left */
    CLOCK_DRIFT_PPM = 200,
    LOOK_EVERY = 4,   /* launches of a batch between two looks at the clock, */
    LOOK_NS = 100000, /* while the batch has less work: a few long kernels are a long time */
    GAP_NS = 500000,  /* since the last look; after a longer gap, an idle stream would not show */
    GAP_PART = 8,     /* a batch had a gap if it is late by this part of its expected cost */
    EMPTIES = 4,      /* empty intervals that are measured in a context */
    LONGEST_WAY_NS = 50000, /* from an event to its kernel; a longer interval had another cause */
};

/* Many threads read and write averages without a lock. Each word is right by itself, and an old
 * value is good enough. */
#define PEEK(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define POKE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

struct work {
    uint64_t key;
    uint32_t average_ns, samples; /* samples 0: never timed */
    bool pending;                 /* launched and not timed yet */
};

enum batch_state { BATCH_FREE, BATCH_OPEN, BATCH_CLOSING, BATCH_ENDED };
struct batch {
    CUevent start, end;
    CUstream stream;
    uint32_t state, serial, launches;
    const void *owner;  /* the thread that opened it, and alone adds to it */
    uint32_t in_flight; /* its owner is between launch_begin and launch_end */
    bool single;        /* full after one launch */
    bool guessed;       /* contains work that was never timed */
    bool idle;          /* its stream was idle when it began */
    bool first;         /* of its window: leftovers of others may run before it */
    uint32_t most_ns;   /* of expected cost, then it is full */
    struct lane *lane;
    uint64_t deadline_ns, dry_ns; /* when it must end; when its stream should be done with it */
    uint64_t until_ns;            /* when the container's window or turn ends */
    bool queues;                  /* its window is one for all processes: see queue_add */
    uint64_t looked_ns;           /* the last look at the clock */
    uint64_t opened_ns, closed_ns, estimate_ns;
    uint64_t host_ns; /* from before the record of its start until after that of its end */
    uint16_t works[BATCH_LAUNCHES];
    uint32_t estimates_ns[BATCH_LAUNCHES]; /* as expected then: averages move */
};

struct meter {
    egpu_lock lock;
    CUcontext context; /* NULL: free */
    int device;
    struct batch batches[BATCHES];
    CUevent latest_end; /* of the batch that ended last: GPU times count from it */
    bool has_latest;
    double latest_ns; /* the GPU's time then, from an unknown start */
    double offset_ns; /* from the GPU's time to ours, as far as we know */
    uint64_t offset_at_ns;
    uint64_t window_ns; /* when the window of the latest batch closes */
    /* The least distance of two events on an idle stream. It is the way from an event to the kernel
     * behind it, which is part of each timing that began on an idle stream. */
    uint64_t way_ns;
    uint32_t empties;
    /* the latest charged batch took much longer than expected, and did not pay for that */
    bool forgiven;
    /* when the GPU should be done with everything launched */
    uint64_t polled_ns, busy_until_ns;
    struct work works[WORKS];
};

struct lane {
    egpu_lock lock;
    CUcontext context; /* NULL: free */
    CUstream stream;
    const void *thread; /* of CU_STREAM_PER_THREAD, else NULL */
    struct meter *meter;
    struct batch *open;
    bool single_next;
    uint32_t untimed; /* the next launches that are not timed */
    uint64_t owed_ns;
    uint32_t owed_launches;
};

#pragma GCC visibility push(hidden)
extern struct meter *meters[METERS];
extern __thread struct lane *recent_lane __attribute__((tls_model("initial-exec")));
extern uint32_t capturing; /* captures between begin and end, of all threads */

/* ---- lanes.c ---- */
/* The lane, locked; NULL when all are in use. */
struct lane *find_lane(CUcontext context, CUstream stream, const void *thread, int device);
/* Ends the open batches of the context's lanes, or only those past their deadline. */
void end_lanes(CUcontext context, bool only_overdue, uint64_t now);

/* ---- batches.c ---- */
/* Our own calls are not part of any capture: a capture in global mode that begins between our look
 * at `capturing` and the call stays valid. */
CUstreamCaptureMode relax_capture(void);
void restore_capture(CUstreamCaptureMode mode);
/* Return whether the driver says that the stream is idle. No thread may be capturing. */
bool is_idle(CUstream stream);
/* Return whether the stream of an open batch is idle: the time that passes now is not the
 * batch's. */
bool ran_dry(const struct batch *batch, uint64_t now);
/* Call it with the lane's lock; the batch is no longer open there. */
void drop_batch(struct lane *lane, struct batch *batch, uint64_t now);
/* Ends the lane's open batch. Drops the lane's lock, because recording may wait for room in the
 * stream. */
void end_batch_and_drop_lock(struct lane *lane, uint64_t now);
/* A batch for `stream` with its start recorded; NULL: do not time the launch. Call it without a
 * lock. */
struct batch *new_batch(struct meter *meter, CUstream stream, uint64_t *now);
/* Measures an interval with nothing in it. */
void measure_way(struct meter *meter, CUstream stream, uint64_t now);

/* ---- charges.c ---- */
void charge_count(int device, uint64_t gpu_ns, uint32_t launches, uint64_t now);
void charge_throttled(int device, uint64_t duration_ns);
void charge_pay(struct meter *meter, uint64_t cost_ns, uint32_t launches, uint64_t now);
/* Charges the batches that are over. Call it with the meter's lock. */
void charge_ended(struct meter *meter, uint64_t now);

/* ---- turns.c ---- */
/* Of a slice of latency work: how long it must wait before it may queue so much more work; 0: it
 * may, and what it queues is to be over at *until. */
uint64_t turn_wait_ns(int device, uint64_t now, uint64_t busy_until, uint64_t expected_ns,
                      uint64_t *until);
void turns_forget(void);
/* Nothing that it launched runs any more. */
void turn_done(int device, uint64_t now);
/* Of a slice that yields: how long it must wait before it may start so much work. */
uint64_t yield_wait_ns(struct meter *meter, uint64_t now, uint64_t expected_ns);
/* Sleeps for at most so long. */
void turn_pause(int device, uint64_t wait_ns);
/* What a timing costs of which others' turns may be a part, and what it says of the work: so much,
 * or at most so much. */
struct turn_cost {
    uint64_t cost_ns, sample_ns;
    bool upper;
};
struct turn_cost turn_cost(const struct batch *batch, uint64_t start_ns, uint64_t end_ns,
                           uint64_t cost_ns);
#pragma GCC visibility pop

static inline bool is_lane_of(const struct lane *lane, CUcontext context, CUstream stream,
                              const void *thread) {
    return lane->context == context && lane->stream == stream && lane->thread == thread;
}

/* CU_STREAM_PER_THREAD is a different stream in each thread. */
static inline const void *thread_of(CUstream stream) {
    return stream == CU_STREAM_PER_THREAD ? &recent_lane : NULL;
}

static inline struct lane *take_lane(CUcontext context, CUstream stream, int device) {
    const void *thread = thread_of(stream);
    struct lane *lane = recent_lane;
    if (__builtin_expect(lane != NULL, 1)) {
        lock_take(&lane->lock);
        if (__builtin_expect(is_lane_of(lane, context, stream, thread), 1)) return lane;
        lock_drop(&lane->lock);
    }
    lane = find_lane(context, stream, thread, device);
    if (lane != NULL) recent_lane = lane;
    return lane;
}

static inline struct work *work_of(struct meter *meter, uint64_t key) {
    struct work *work = &meter->works[(key * 0x9E3779B97F4A7C15ull) >> 54];
    if (__builtin_expect(PEEK(work->key) != key, 0)) {
        POKE(work->samples, 0);
        POKE(work->average_ns, 0);
        POKE(work->pending, false);
        POKE(work->key, key);
    }
    return work;
}

/* Return whether no timed batch is outstanding. */
static inline bool is_through(struct meter *meter) {
    for (int i = 0; i < BATCHES; i++)
        if (__atomic_load_n(&meter->batches[i].state, __ATOMIC_ACQUIRE) != BATCH_FREE) return false;
    return true;
}

static inline bool has_free_batch(struct meter *meter) {
    for (int i = 0; i < BATCHES; i++)
        if (__atomic_load_n(&meter->batches[i].state, __ATOMIC_ACQUIRE) == BATCH_FREE) return true;
    return false;
}

static inline bool is_in_flight(const struct batch *batch) {
    return __atomic_load_n(&batch->in_flight, __ATOMIC_ACQUIRE) != 0;
}

#endif
