/* One launch: waiting for the container's turn, and the books of the launch. See compute.h. */
#include "compute.h"

/* The expected cost of everything that was launched and, as far as we know, is not over. */
static uint64_t queued_ns(struct meter *meter) {
    uint64_t queued = 0;
    for (int i = 0; i < BATCHES; i++)
        if (__atomic_load_n(&meter->batches[i].state, __ATOMIC_ACQUIRE) == BATCH_ENDED)
            queued += PEEK(meter->batches[i].estimate_ns);
    return queued;
}

/* Return when the GPU should be done with everything launched. Others' work may have come in
 * between, unexpected: then the rest began when the last finished batch ended. */
static uint64_t through_at(struct meter *meter, uint64_t now) {
    lock_take(&meter->lock);
    if (now - meter->polled_ns > POLL_NS) charge_ended(meter, now);
    uint64_t busy_until = PEEK(meter->busy_until_ns), queued = queued_ns(meter);
    uint64_t ended = meter->has_latest ? (uint64_t)(meter->latest_ns + meter->offset_ns) : 0;
    lock_drop(&meter->lock);
    return queued != 0 && ended + queued > busy_until ? ended + queued : busy_until;
}

/* Return whether too much is queued in others' time: they may come back for it. */
static bool borrows_too_much(struct meter *meter) {
    return LIMIT(meter->device, grant_ppm) > LIMIT(meter->device, core_ppm) &&
           LIMIT(meter->device, window_period_us) == 0 && queued_ns(meter) > BORROWED_NS;
}

/* Return how long work of a slice that takes turns must wait. What is not timed is not known to be
 * queued: latency work would launch more than its turn has room for. */
static uint64_t wait_for_others_ns(struct meter *meter, uint64_t now, uint64_t expected_ns,
                                   uint64_t *until) {
    if (LIMIT(meter->device, work) != EGPU_WORK_LATENCY)
        return yield_wait_ns(meter, now, expected_ns);
    uint64_t busy_until = through_at(meter, now), queued = queued_ns(meter);
    if (queued > BACKLOG_WAIT_NS && !has_free_batch(meter)) return queued / BATCHES;
    return turn_wait_ns(meter->device, now, busy_until, expected_ns, until);
}

/* Delays the calling thread until the container may start `expected_ns` of work. Returns the time,
 * and in `until` when the window closes. Call it without a lock. */
static uint64_t wait_for_turn(struct meter *meter, uint64_t expected_ns, uint64_t now,
                              uint64_t *until) {
    uint64_t reported = now;
    bool waited = false;
    for (;;) {
        uint64_t wait = bucket_wait_ns(meter->device, now),
                 opens = window_wait_ns(meter->device, now, until);
        if (opens > wait) wait = opens;
        uint64_t busy_until = *until == UINT64_MAX ? 0 : through_at(meter, now);
        /* Queued work must be done when the window closes. Work that is longer than a window starts
         * with the window. */
        if (wait == 0 && *until != UINT64_MAX && busy_until > now &&
            busy_until + expected_ns / 2 > *until)
            wait = (busy_until < *until ? busy_until : *until) - now;
        bool window = *until != UINT64_MAX,
             turns = wait == 0 && LIMIT(meter->device, work) != EGPU_WORK_PLAIN;
        if (turns) wait = wait_for_others_ns(meter, now, expected_ns, until);
        if (wait == 0 && window) /* last: it counts the work */
            wait = queue_wait_ns(meter->device, now, expected_ns, *until);
        bool full =
            wait == 0 && LIMIT(meter->device, work) == EGPU_WORK_PLAIN && borrows_too_much(meter);
        if (full) wait = BORROWED_NS / 16;
        if (wait == 0) break;
        if (!waited || now - __atomic_load_n(&meter->polled_ns, __ATOMIC_RELAXED) > POLL_NS) {
            end_lanes(meter->context, !waited, now); /* or they would time our sleep */
            lock_take(&meter->lock);
            charge_ended(meter, now);
            /* Everything is timed. If more was expected, others' turns were part of a timing. */
            if (is_through(meter)) __atomic_store_n(&meter->busy_until_ns, now, __ATOMIC_RELAXED);
            lock_drop(&meter->lock);
        }
        waited = true;
        if (wait > LONGEST_SLEEP_NS) wait = LONGEST_SLEEP_NS;
        if (turns)
            turn_pause(meter->device, wait);
        else
            sleep_ns(wait < 20000 ? 20000 : wait);
        now = set_clock();
        /* in each round: the agent reads it */
        if (!full) charge_throttled(meter->device, now - reported);
        reported = now;
    }
    return now;
}

/* A work that was launched once and never timed may be very long: wait for its first timing before
 * the next launch. */
static uint64_t wait_for_first_timing(struct meter *meter, const struct work *work, uint64_t now) {
    uint64_t most =
        LIMIT(meter->device, work) == EGPU_WORK_LATENCY ? LATENCY_BURST_NS : BACKLOG_WAIT_NS;
    for (uint64_t began = now;
         PEEK(work->samples) == 0 && PEEK(work->pending) && now - began < most; now = set_clock()) {
        bool outstanding = false;
        lock_take(&meter->lock);
        charge_ended(meter, now);
        for (int i = 0; i < BATCHES; i++)
            outstanding |=
                __atomic_load_n(&meter->batches[i].state, __ATOMIC_ACQUIRE) == BATCH_ENDED;
        lock_drop(&meter->lock);
        if (!outstanding) break;
        sleep_ns(POLL_NS);
    }
    return now;
}

/* Sets until when, and with how much work, the batch may grow. */
static void bound_batch(struct batch *batch, uint64_t now, uint64_t until, uint32_t turns) {
    batch->most_ns = turns == EGPU_WORK_YIELDING ? YIELDING_NS : BATCH_NS;
    batch->deadline_ns = until - now < BATCH_NS ? until : now + BATCH_NS;
    batch->until_ns = until;
    batch->queues = until != UINT64_MAX && turns != EGPU_WORK_LATENCY;
}

/* The launch cannot join a batch of the lane: waits for the turn and opens one. Returns with the
 * lane locked, or NULL. */
static __attribute__((noinline)) struct lane *
begin_batch(struct lane *lane, CUcontext context, CUstream stream, int device, uint64_t key) {
    struct meter *meter = lane->meter;
    struct batch *batch = lane->open;
    bool dry = false;
    uint64_t now = set_clock(), until;
    /* another thread is launching here: do not time this launch */
    if (batch != NULL && is_in_flight(batch)) return lane;
    if (batch != NULL) {
        dry = ran_dry(batch, now);
        if (dry) {
            lane->open = NULL;
            drop_batch(lane, batch, now);
            lock_drop(&lane->lock);
        } else
            end_batch_and_drop_lock(lane, now);
    } else {
        if (lane->owed_ns != 0) charge_pay(meter, lane->owed_ns, lane->owed_launches, now);
        lane->owed_ns = lane->owed_launches = 0;
        lock_drop(&lane->lock);
    }

    struct work *work = work_of(meter, key);
    bool known = PEEK(work->samples) >= TRUST_AFTER;
    now = wait_for_first_timing(meter, work, now);
    now = wait_for_turn(meter, PEEK(work->samples) > 0 ? PEEK(work->average_ns) : UNKNOWN_WORK_NS,
                        now, &until);
    uint32_t turns = LIMIT(device, work);
    if (dry && known && turns == EGPU_WORK_PLAIN) {
        lane = take_lane(context, stream, device);
        if (lane != NULL && lane->open == NULL && lane->untimed == 0) lane->untimed = UNTIMED;
        return lane;
    }
    bool captures = __atomic_load_n(&capturing, __ATOMIC_ACQUIRE) != 0, idle = false;
    if (!captures && REAL(cuStreamQuery) != NULL &&
        __atomic_load_n(&meter->busy_until_ns, __ATOMIC_RELAXED) <= now)
        idle = is_idle(stream);
    if (idle && __atomic_fetch_add(&meter->empties, 1, __ATOMIC_RELAXED) < EMPTIES)
        measure_way(meter, stream, now);
    batch = captures ? NULL : new_batch(meter, stream, &now);
    lane = take_lane(context, stream, device);
    if (batch == NULL) return lane;
    /* another thread opened a batch on this stream first */
    if (lane == NULL || lane->open != NULL || lane->meter != meter) {
        __atomic_store_n(&batch->state, BATCH_FREE, __ATOMIC_RELEASE);
        return lane;
    }
    uint64_t busy = __atomic_load_n(&meter->busy_until_ns, __ATOMIC_RELAXED);
    batch->single = lane->single_next || !known;
    batch->idle = idle;
    bound_batch(batch, now, until, turns);
    batch->dry_ns = busy > now ? busy : now;
    batch->looked_ns = now;
    batch->first = until != UINT64_MAX && until != PEEK(meter->window_ns);
    POKE(meter->window_ns, until);
    batch->lane = lane;
    lane->single_next = false;
    lane->open = batch;
    return lane;
}

/* More streams or contexts than can be timed: each launch waits for its turn and pays a fixed
 * price. */
static __attribute__((noinline)) CUresult launch_unmetered(int device) {
    uint64_t now = now_ns(), until;
    for (;;) {
        uint64_t wait = bucket_wait_ns(device, now), opens = window_wait_ns(device, now, &until);
        if (opens > wait) wait = opens;
        if (wait == 0) break;
        sleep_ns(wait > LONGEST_SLEEP_NS ? LONGEST_SLEEP_NS : wait);
        uint64_t later = now_ns();
        charge_throttled(device, later - now);
        now = later;
    }
    bucket_debit(device, UNKNOWN_WORK_NS);
    charge_count(device, UNKNOWN_WORK_NS, 1, now);
    return CUDA_SUCCESS;
}

static inline bool joins(struct batch *batch) {
    if (batch->queues && queue_is_full(batch->lane->meter->device, batch->until_ns)) return false;
    if (batch->owner != &recent_lane || batch->single || batch->launches >= BATCH_LAUNCHES ||
        batch->estimate_ns >= batch->most_ns || batch->dry_ns >= batch->until_ns)
        return false;
    /* Reading the clock costs time, and it is enough to see a gap some launches later. */
    if (batch->launches % LOOK_EVERY != 0 && batch->estimate_ns < LOOK_NS) return true;
    uint64_t now = fast_now_ns();
    if (now > batch->dry_ns || now >= batch->deadline_ns) return false;
    batch->looked_ns = now;
    return true;
}

CUresult launch_begin(struct launch *launch, uint64_t key, CUstream stream) {
    CUcontext context;
    launch->batch = NULL;
    launch->owes = NULL;
    if (!slice_open()) return REFUSED;
    int device = device_current(&context);
    /* the driver returns the right error */
    if (__builtin_expect(context == NULL, 0)) return CUDA_SUCCESS;
    if (__builtin_expect(device < 0, 0)) return REFUSED;
    if (__builtin_expect(!is_metered(device), 0)) return CUDA_SUCCESS;
    /* the launch of the graph counts it */
    if (__builtin_expect(__atomic_load_n(&capturing, __ATOMIC_ACQUIRE) != 0, 0) &&
        stream_is_captured(stream))
        return CUDA_SUCCESS;

    struct lane *lane = take_lane(context, stream, device);
    if (__builtin_expect(lane == NULL, 0)) return launch_unmetered(device);
    struct batch *batch = lane->open;
    if (__builtin_expect(batch == NULL || !joins(batch), 0)) {
        if (batch != NULL || lane->untimed == 0 || lane->owed_ns >= OWED_NS) {
            lane = begin_batch(lane, context, stream, device, key);
            if (lane == NULL) return launch_unmetered(device);
        }
        batch = lane->open;
        if (batch != NULL && (batch->owner != &recent_lane || is_in_flight(batch))) batch = NULL;
    }
    struct work *work = work_of(lane->meter, key);
    uint32_t estimate = PEEK(work->average_ns);
    if (__builtin_expect(PEEK(work->samples) == 0, 0)) {
        estimate = UNKNOWN_WORK_NS;
        POKE(work->pending, true);
        if (batch != NULL) batch->guessed = true;
    }
    /* `wait_for_turn` added the first */
    if (batch != NULL && batch->queues && batch->launches > 0) queue_add(device, (int64_t)estimate);
    if (__builtin_expect(batch != NULL, 1)) {
        batch->works[batch->launches] = (uint16_t)(work - lane->meter->works);
        batch->estimates_ns[batch->launches++] = estimate;
        batch->estimate_ns += estimate;
        batch->dry_ns += estimate;
        /* Only an expectation: other streams of this process may keep the GPU busy as well. */
        __atomic_store_n(&lane->meter->busy_until_ns, batch->dry_ns, __ATOMIC_RELAXED);
        __atomic_store_n(&batch->in_flight, 1, __ATOMIC_RELAXED);
        launch->batch = batch;
        launch->estimate_ns = estimate;
    } else {
        lane->owed_ns += estimate;
        lane->owed_launches++;
        launch->owes = lane;
        launch->estimate_ns = estimate;
        if (lane->untimed > 0 && --lane->untimed == 0) lane->single_next = true;
    }
    lock_drop(&lane->lock);
    return CUDA_SUCCESS;
}

/* The latest launch of a batch failed: undo its books. */
static void take_back(struct batch *batch, uint64_t estimate_ns) {
    batch->estimate_ns -= estimate_ns;
    batch->dry_ns -= estimate_ns;
    if (batch->launches > 0) batch->launches--;
    if (batch->queues) queue_add(batch->lane->meter->device, -(int64_t)estimate_ns);
}

static __attribute__((noinline)) void launch_end_slow(struct launch *launch, CUresult result) {
    struct batch *batch = launch->batch;
    struct lane *lane = batch->lane;
    if (lane == NULL) return; /* its context ended meanwhile */
    lock_take(&lane->lock);
    if (lane->open == batch && batch->owner == &recent_lane) {
        if (result != CUDA_SUCCESS) take_back(batch, launch->estimate_ns);
        __atomic_store_n(&batch->in_flight, 0, __ATOMIC_RELEASE);
        if (batch->launches > 0 && (batch->single || batch->launches >= BATCH_LAUNCHES ||
                                    batch->estimate_ns >= batch->most_ns)) {
            uint64_t now = fast_now_ns();
            if (batch->single || !ran_dry(batch, now)) {
                end_batch_and_drop_lock(lane, now);
                return;
            }
            lane->open = NULL; /* its last launches came after a pause */
            drop_batch(lane, batch, now);
        }
    }
    lock_drop(&lane->lock);
}

/* Takes back what a failed launch owes, unless another thread has paid it. */
static __attribute__((noinline)) void owe_less(struct lane *lane, uint64_t estimate_ns) {
    lock_take(&lane->lock);
    if (lane->owed_launches > 0 && lane->owed_ns >= estimate_ns) {
        lane->owed_ns -= estimate_ns;
        lane->owed_launches--;
    }
    lock_drop(&lane->lock);
}

void launch_end(struct launch *launch, CUresult result) {
    struct batch *batch = launch->batch;
    if (batch == NULL) {
        if (result != CUDA_SUCCESS && launch->owes != NULL)
            owe_less(launch->owes, launch->estimate_ns);
        return;
    }
    /* No thread ends a batch whose owner is launching: what we read here does not change. */
    if (__builtin_expect(result == CUDA_SUCCESS && !batch->single &&
                             batch->launches < BATCH_LAUNCHES &&
                             batch->estimate_ns < batch->most_ns,
                         1))
        __atomic_store_n(&batch->in_flight, 0, __ATOMIC_RELEASE);
    else
        launch_end_slow(launch, result);
}
