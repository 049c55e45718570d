/* Lanes and meters: finding them, and ending what is open on them. See compute.h. */
#include "compute.h"

#include <stdlib.h>
#include <string.h>

struct meter *meters[METERS];
static egpu_lock meters_lock;

static struct lane lanes[LANES];
static egpu_lock lanes_lock;
__thread struct lane *recent_lane __attribute__((tls_model("initial-exec")));
uint32_t capturing;

void compute_forget(void) {
    memset(meters, 0, sizeof meters); /* neither contexts nor events survive a fork */
    memset(lanes, 0, sizeof lanes);
    recent_lane = NULL;
    meters_lock.word = lanes_lock.word = 0;
    capturing = 0;
    turns_forget();
    bucket_forget();
}

static struct meter *meter_of(CUcontext context, int device) {
    struct meter *found = NULL;
    lock_take(&meters_lock);
    for (int i = 0; i < METERS && found == NULL; i++) {
        if (meters[i] == NULL) {
            struct meter *fresh = calloc(1, sizeof *fresh);
            if (fresh == NULL) break;
            __atomic_store_n(&meters[i], fresh, __ATOMIC_RELEASE);
        }
        if (meters[i]->context == context) found = meters[i];
    }
    for (int i = 0; i < METERS && found == NULL; i++)
        if (meters[i] != NULL && meters[i]->context == NULL) found = meters[i];
    if (found != NULL) {
        if (found->context != context) {
            found->device = device;
            found->way_ns = UINT64_MAX;
            found->empties = 0;
        }
        __atomic_store_n(&found->context, context, __ATOMIC_RELEASE);
    }
    lock_drop(&meters_lock);
    return found;
}

/* Where the search for a lane begins. */
static uint32_t place_of(CUcontext context, CUstream stream, const void *thread) {
    uint64_t hash = ((uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)context >> 4 ^
                     (uint64_t)(uintptr_t)thread) *
                    0x9E3779B97F4A7C15ull;
    return (uint32_t)(hash >> 56);
}

struct lane *find_lane(CUcontext context, CUstream stream, const void *thread, int device) {
    uint32_t place = place_of(context, stream, thread);
    lock_take(&lanes_lock);
    struct lane *found = NULL, *idle = NULL;
    for (uint32_t i = 0; i < LANES && found == NULL; i++) {
        struct lane *lane = &lanes[(place + i) % LANES];
        if (is_lane_of(lane, context, stream, thread)) found = lane;
        /* lanes are never freed one by one: beyond a free one all are free */
        if (lane->context == NULL) {
            if (idle == NULL || idle->context != NULL) idle = lane;
            break;
        }
        if (idle == NULL && __atomic_load_n(&lane->open, __ATOMIC_RELAXED) == NULL) idle = lane;
    }
    struct lane *lane = found != NULL ? found : idle;
    if (lane != NULL) lock_take(&lane->lock);
    if (found == NULL && lane != NULL) {
        if (lane->open != NULL) { /* another thread opened one meanwhile */
            lock_drop(&lane->lock);
            lane = NULL;
        } else {
            if (lane->owed_ns != 0) bucket_debit(lane->meter->device, (int64_t)lane->owed_ns);
            lane->owed_ns = lane->owed_launches = lane->untimed = 0;
            lane->single_next = false;
            lane->stream = stream;
            lane->thread = thread;
            lane->meter = meter_of(context, device);
            lane->context = context;
            if (lane->meter == NULL) {
                lane->context = NULL;
                lock_drop(&lane->lock);
                lane = NULL;
            }
        }
    }
    lock_drop(&lanes_lock);
    return lane;
}

/* The program waits for a few short launches, and timing each such round would slow it. Some rounds
 * pay by average instead. Their number varies, so that it cannot be in step with the program. */
static void skip_some(struct lane *lane, const struct batch *batch) {
    if (batch->idle && !batch->guessed && batch->estimate_ns < LOOK_NS)
        lane->untimed = 1 + (batch->serial * 2654435761u >> 16) % UNTIMED_SHORT;
}

void end_lanes(CUcontext context, bool only_overdue, uint64_t now) {
    for (int i = 0; i < LANES; i++) {
        struct lane *lane = &lanes[i];
        if (__atomic_load_n(&lane->open, __ATOMIC_RELAXED) == NULL ||
            __atomic_exchange_n(&lane->lock.word, 1, __ATOMIC_ACQUIRE) != 0)
            continue;
        struct batch *batch = lane->open;
        if (batch == NULL || lane->context != context || is_in_flight(batch) ||
            (only_overdue && now < batch->deadline_ns))
            lock_drop(&lane->lock);
        else if (ran_dry(batch, now)) {
            lane->open = NULL;
            drop_batch(lane, batch, now);
            lock_drop(&lane->lock);
        } else {
            skip_some(lane, batch);
            end_batch_and_drop_lock(lane, now);
        }
    }
}

void compute_flush(void) {
    CUcontext context;
    if (meters[0] == NULL) return;
    device_current(&context);
    if (context != NULL) end_lanes(context, false, now_ns());
}

void compute_pause(CUstream stream) {
    CUcontext context;
    if (meters[0] == NULL) return; /* no launch was ever timed */
    device_current(&context);
    if (context == NULL) return;
    const void *thread = thread_of(stream);
    uint32_t place = place_of(context, stream, thread);
    struct lane *lane = NULL;
    for (uint32_t i = 0; i < LANES; i++) {
        lane = &lanes[(place + i) % LANES];
        if (lane->context == NULL) return; /* beyond a free one all are free */
        if (is_lane_of(lane, context, stream, thread)) break;
    }
    if (__atomic_load_n(&lane->open, __ATOMIC_RELAXED) == NULL) return;
    lock_take(&lane->lock);
    struct batch *batch = lane->open;
    if (batch == NULL || is_in_flight(batch) || !is_lane_of(lane, context, stream, thread)) {
        lock_drop(&lane->lock);
        return;
    }
    uint64_t now = now_ns();
    if (!ran_dry(batch, now)) {
        end_batch_and_drop_lock(lane, now);
        return;
    }
    lane->open = NULL;
    drop_batch(lane, batch, now);
    lock_drop(&lane->lock);
}

void compute_forget_context(CUcontext context) {
    lock_take(&lanes_lock);
    for (int i = 0; i < LANES; i++) {
        if (lanes[i].context != context) continue;
        lock_take(&lanes[i].lock);
        lanes[i].open = NULL;
        /* the place stays taken, so that a search goes on to the lanes behind it */
        lanes[i].stream = (CUstream)&lanes[i];
        lock_drop(&lanes[i].lock);
    }
    lock_drop(&lanes_lock);
    for (int i = 0; i < METERS && meters[i] != NULL; i++) {
        struct meter *meter = meters[i];
        if (meter->context != context) continue;
        lock_take(&meter->lock);
        for (int j = 0; j < BATCHES; j++)
            if (meter->batches[j].state == BATCH_ENDED)
                charge_count(meter->device, meter->batches[j].estimate_ns,
                             meter->batches[j].launches, now_ns());
        memset(meter->batches, 0, sizeof meter->batches);
        memset(meter->works, 0, sizeof meter->works);
        meter->latest_end = NULL;
        meter->has_latest = false;
        meter->busy_until_ns = meter->polled_ns = 0;
        __atomic_store_n(&meter->context, NULL, __ATOMIC_RELEASE);
        lock_drop(&meter->lock);
    }
}
