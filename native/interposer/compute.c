/* Compute: a share of the card's *time*, whatever the shape of the kernels.
 *
 * What a launch costs is known only afterwards. So launches are timed in batches on their stream,
 * by a pair of events, and each adds the average of its work (function and grid) to what its batch
 * is expected to cost. When a batch ends that is taken from the container's bucket, and corrected
 * when the truth is in. A batch begins only while the bucket has something in it, so a container is
 * at most some batches ahead, never in the long run.
 *
 *   lane    a stream of a context, and the batch that is open on it
 *   meter   a context: its batches, the averages of its works, and how its GPU's clock relates to
 *           ours
 *
 * A batch whose stream ran dry between two launches times our idleness, too: it is dropped, the
 * expectation stands, and the next launch is timed by itself; after that some are not timed at all.
 * What streams or processes do at the same time is charged once (coverage_add). Nothing is recorded
 * while anything of this process is being captured.
 */
#include "interposer.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) && !defined(EGPU_VIRTUAL_TIME)
#include <cpuid.h>
#include <x86intrin.h>
#endif

enum {
    /* so that the events of a batch cost little beside its launches, however short they are; */
    BATCH_LAUNCHES = 256,
    BATCH_NS = 2000000, /* of longer ones this is the bound */
    BATCHES = 8,
    METERS = 32, /* contexts that are timed; one more is limited by averages alone */
    LANES = 256,
    WORKS = 1024,
    TRUST_AFTER = 2, /* single timings of a work before it is batched */
    SIBLINGS = 3,    /* so many processes at once may have had their turns in a timing */
    EARLY = 16,      /* of which the least is nearer to the truth than the average */
    POLL_NS = 50000,
    LONGEST_SLEEP_NS = 2000000, /* so that a new limit is seen soon */
    BACKLOG_WAIT_NS = 20000000, /* for one of BATCHES to end; then the launch goes untimed */
    UNKNOWN_WORK_NS = 20000,    /* expected of work never timed */
    UNTIMED = 15,               /* launches that are not timed after a stream was found dry */
    UNTIMED_SHORT = 5,          /* at most, after a short batch that its program waits for */
    OWED_NS = 200000,           /* of untimed launches, before it is debited */
    BORROWED_NS = 8000000,      /* queued at most, of time that others left */
    CLOCK_DRIFT_PPM = 200,
    LOOK_EVERY = 4, /* launches of a batch between two looks at the clock, */
    /* until so much work is in it: with long kernels a few launches are a long time */
    LOOK_NS = 100000,
    /* between two looks: more than that, and the launches since then hide an idle stream */
    GAP_NS = 500000,
    GAP_PART = 8, /* of what is expected of a batch: so late, it had a gap */
    EMPTIES = 4,  /* intervals with nothing in them that are measured in a context */
    /* of the way from an event to its kernel; what is longer was something else */
    LONGEST_WAY_NS = 50000,
};

/* Averages are read and written by many threads without a lock: each word by itself is right, and
 * old is good enough. */
#define PEEK(word) __atomic_load_n(&(word), __ATOMIC_RELAXED)
#define POKE(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELAXED)

struct work {
    uint64_t key;
    uint32_t average_ns, samples; /* samples 0: never timed */
    bool pending;                 /* launched, and not timed yet */
};

enum batch_state { BATCH_FREE, BATCH_OPEN, BATCH_CLOSING, BATCH_ENDED };
struct batch {
    CUevent start, end;
    CUstream stream;
    uint32_t state, serial, launches;
    const void *owner;  /* the thread that opened it: nobody else adds to it */
    uint32_t in_flight; /* its owner is between launch_begin and launch_end */
    bool single;        /* full after one launch */
    bool guessed;       /* has work in it that was never timed */
    bool idle;          /* its stream had nothing to do when it began */
    /* of its window: what others left over may run before it */
    bool first;
    struct lane *lane;
    /* when it has to end, and when its stream should be through with it */
    uint64_t deadline_ns, dry_ns;
    uint64_t until_ns;  /* when the container's window closes */
    uint64_t looked_ns; /* the last look at the clock */
    uint64_t opened_ns, closed_ns, estimate_ns;
    uint64_t host_ns; /* from before its start was recorded until its end was */
    uint16_t works[BATCH_LAUNCHES];
    uint32_t estimates_ns[BATCH_LAUNCHES]; /* as expected; the averages may have moved since */
};

struct meter {
    egpu_lock lock;
    CUcontext context; /* NULL: free */
    int device;
    struct batch batches[BATCHES];
    CUevent latest_end; /* of the batch that ended last: what GPU times are counted from */
    bool has_latest;
    double latest_ns; /* the GPU's time then, since whenever */
    double offset_ns; /* from the GPU's time to ours, as close as we know */
    uint64_t offset_at_ns;
    uint64_t window_ns; /* when the window of the latest batch closes */
    /* The least that two events are apart on a stream that has nothing to do: so long is the way
     * from an event to the kernel behind it, which a batch that began on such a stream is timed
     * with. */
    uint64_t way_ns;
    uint32_t empties;
    /* the latest batch that was charged took much longer than expected, and was not charged for
     * it */
    bool forgiven;
    /* when the GPU should be through with all that was launched */
    uint64_t polled_ns, busy_until_ns;
    struct work works[WORKS];
};
static struct meter *meters[METERS];
static egpu_lock meters_lock;

static struct lane {
    egpu_lock lock;
    CUcontext context; /* NULL: free */
    CUstream stream;
    const void *thread; /* of CU_STREAM_PER_THREAD, which is another stream in each */
    struct meter *meter;
    struct batch *open;
    bool single_next;
    uint32_t untimed; /* launches that will not be timed */
    uint64_t owed_ns;
    uint32_t owed_launches;
} lanes[LANES];
static egpu_lock lanes_lock;
static __thread struct lane *recent_lane __attribute__((tls_model("initial-exec")));
static uint32_t capturing; /* captures between begin and end, all threads */

void compute_forget(void) {
    memset(meters, 0, sizeof meters); /* contexts do not survive a fork, nor do their events */
    memset(lanes, 0, sizeof lanes);
    recent_lane = NULL;
    meters_lock.word = lanes_lock.word = 0;
    capturing = 0;
}

/* ---- a clock that costs little: the processor's counter, set by the kernel's at every batch
 * ---- */

#if defined(__x86_64__) && !defined(EGPU_VIRTUAL_TIME)
static struct {
    uint64_t ticks, ns, scale; /* ns per tick << 32; 0: not known yet, or the counter is no clock */
    uint32_t version;          /* odd while it is set */
} anchor;
static uint64_t first_ticks, first_ns;

static bool counter_is_a_clock(void) {
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
}

/* Under any lock or none: whoever loses the race leaves it to the other. */
static uint64_t set_clock(void) {
    uint64_t now = now_ns(), ticks = __rdtsc();
    uint32_t version = __atomic_load_n(&anchor.version, __ATOMIC_RELAXED);
    if (version & 1 || !__atomic_compare_exchange_n(&anchor.version, &version, version + 1, false,
                                                    __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return now;
    if (first_ns == 0) {
        first_ns = counter_is_a_clock() ? now : UINT64_MAX;
        first_ticks = ticks;
    } else if (now > first_ns && now - first_ns > 1000000 && ticks > first_ticks) {
        __atomic_store_n(
            &anchor.scale,
            (uint64_t)(((unsigned __int128)(now - first_ns) << 32) / (ticks - first_ticks)),
            __ATOMIC_RELAXED);
        __atomic_store_n(&anchor.ticks, ticks, __ATOMIC_RELAXED);
        __atomic_store_n(&anchor.ns, now, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&anchor.version, version + 2, __ATOMIC_RELEASE);
    return now;
}

static inline uint64_t fast_now_ns(void) {
    uint32_t version = __atomic_load_n(&anchor.version, __ATOMIC_ACQUIRE);
    uint64_t scale = __atomic_load_n(&anchor.scale, __ATOMIC_RELAXED),
             ticks = __atomic_load_n(&anchor.ticks, __ATOMIC_RELAXED);
    uint64_t ns = __atomic_load_n(&anchor.ns, __ATOMIC_RELAXED), now = __rdtsc();
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (scale == 0 || version & 1 || now < ticks || now - ticks > 1ull << 31 ||
        __atomic_load_n(&anchor.version, __ATOMIC_RELAXED) != version)
        return now_ns();
    return ns + ((now - ticks) * scale >> 32);
}
#else
static uint64_t set_clock(void) { return now_ns(); }
static inline uint64_t fast_now_ns(void) { return now_ns(); }
#endif

/* ---- accounts ---- */

static void count(int device, uint64_t gpu_ns, uint32_t launches, uint64_t now) {
    struct egpu_usage_slot *slot = slot_of(device);
    struct egpu_usage_device *totals = &slice_usage()->devices[device];
    rate_note(&totals->rate, __atomic_add_fetch(&totals->gpu_ns, gpu_ns, __ATOMIC_RELAXED), now);
    __atomic_fetch_add(&totals->launches, launches, __ATOMIC_RELAXED);
    if (slot == NULL) return;
    rate_note(&slot->rate, __atomic_add_fetch(&slot->gpu_ns, gpu_ns, __ATOMIC_RELAXED), now);
    __atomic_fetch_add(&slot->launches, launches, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->heartbeat_ns, now, __ATOMIC_RELAXED);
}

static void count_throttled(int device, uint64_t duration_ns) {
    struct egpu_usage_slot *slot = slot_of(device);
    __atomic_fetch_add(&slice_usage()->devices[device].throttled_ns, duration_ns, __ATOMIC_RELAXED);
    if (slot != NULL) __atomic_fetch_add(&slot->throttled_ns, duration_ns, __ATOMIC_RELAXED);
}

/* ---- meters and lanes: finding them ---- */

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

static inline bool is_lane_of(const struct lane *lane, CUcontext context, CUstream stream,
                              const void *thread) {
    return lane->context == context && lane->stream == stream && lane->thread == thread;
}

/* CU_STREAM_PER_THREAD is another stream in each thread. */
static inline const void *thread_of(CUstream stream) {
    return stream == CU_STREAM_PER_THREAD ? &recent_lane : NULL;
}

/* Where the search for a lane begins. */
static uint32_t place_of(CUcontext context, CUstream stream, const void *thread) {
    uint64_t hash = ((uint64_t)(uintptr_t)stream ^ (uint64_t)(uintptr_t)context >> 4 ^
                     (uint64_t)(uintptr_t)thread) *
                    0x9E3779B97F4A7C15ull;
    return (uint32_t)(hash >> 56);
}

/* The lane, locked; NULL when all are in use. */
static struct lane *find_lane(CUcontext context, CUstream stream, const void *thread, int device) {
    uint32_t place = place_of(context, stream, thread);
    lock_take(&lanes_lock);
    struct lane *found = NULL, *idle = NULL;
    for (uint32_t i = 0; i < LANES && found == NULL; i++) {
        struct lane *lane = &lanes[(place + i) % LANES];
        if (is_lane_of(lane, context, stream, thread)) found = lane;
        /* lanes are never taken out one by one: beyond a free one there is none */
        if (lane->context == NULL) {
            if (idle == NULL || idle->context != NULL) idle = lane;
            break;
        }
        if (idle == NULL && __atomic_load_n(&lane->open, __ATOMIC_RELAXED) == NULL) idle = lane;
    }
    struct lane *lane = found != NULL ? found : idle;
    if (lane != NULL) lock_take(&lane->lock);
    if (found == NULL && lane != NULL) {
        if (lane->open != NULL) { /* it was idle when we looked */
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

/* ---- batches ---- */

/* Our own calls are no part of what any thread captures: a capture in global mode that begins
 * between our look at `capturing` and the call is not spoilt by it. */
static CUstreamCaptureMode relax_capture(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

static void restore_capture(CUstreamCaptureMode mode) {
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static bool record(CUevent event, CUstream stream) {
    CUstreamCaptureMode mode = relax_capture();
    bool recorded = REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS;
    restore_capture(mode);
    return recorded;
}

static void pay(struct meter *meter, uint64_t cost_ns, uint32_t launches, uint64_t now) {
    bucket_debit(meter->device, (int64_t)cost_ns);
    count(meter->device, cost_ns, launches, now);
}

static inline bool is_in_flight(const struct batch *batch) {
    return __atomic_load_n(&batch->in_flight, __ATOMIC_ACQUIRE) != 0;
}

/* Whether the stream has nothing to do, as the driver knows; nobody may be capturing. */
static bool is_idle(CUstream stream) {
    CUstreamCaptureMode mode = relax_capture();
    bool idle = REAL(cuStreamQuery)(stream) != CUDA_ERROR_NOT_READY; /* it never waits */
    restore_capture(mode);
    return idle;
}

/* The stream has nothing to do, although there is an open batch: what passes now is not the batch's
 * time. */
static bool ran_dry(const struct batch *batch, uint64_t now) {
    if (now <= batch->dry_ns || is_in_flight(batch)) return false;
    if (now - batch->looked_ns > GAP_NS) return true;
    /* What was launched last may run now, and hide that the stream had nothing to do before it. */
    if (batch->launches > 1 && now - batch->dry_ns > batch->estimate_ns / GAP_PART) return true;
    /* The expectation says so; the driver knows, unless asking would break a capture. */
    if (__atomic_load_n(&capturing, __ATOMIC_ACQUIRE) != 0 || REAL(cuStreamQuery) == NULL)
        return true;
    return is_idle(batch->stream);
}

/* The lane's lock is held, and the batch is no longer open there. */
static void drop_batch(struct lane *lane, struct batch *batch, uint64_t now) {
    pay(lane->meter, batch->estimate_ns, batch->launches, now);
    __atomic_store_n(&batch->state, BATCH_FREE, __ATOMIC_RELEASE);
    lane->single_next = true;
}

/* The program waits for a few short launches, and timing each such round would slow it: some rounds
 * go by what is known. How many is no constant, which could be in step with what the program does.
 */
static void skip_some(struct lane *lane, const struct batch *batch) {
    if (batch->idle && !batch->guessed && batch->estimate_ns < LOOK_NS)
        lane->untimed = 1 + (batch->serial * 2654435761u >> 16) % UNTIMED_SHORT;
}

/* Ends the lane's open batch; drops the lane's lock, because recording may wait for room in the
 * stream. */
static void end_batch_and_drop_lock(struct lane *lane, uint64_t now) {
    struct batch *batch = lane->open;
    lane->open = NULL;
    if (batch->launches == 0 || is_in_flight(batch) ||
        __atomic_load_n(&capturing, __ATOMIC_ACQUIRE) != 0) {
        drop_batch(lane, batch, now);
        lock_drop(&lane->lock);
        return;
    }
    struct meter *meter = lane->meter;
    batch->state = BATCH_CLOSING;
    batch->closed_ns = now;
    lock_drop(&lane->lock);
    bucket_debit(meter->device, (int64_t)batch->estimate_ns);
    if (record(batch->end, batch->stream)) {
        batch->host_ns = set_clock() - batch->opened_ns;
        __atomic_store_n(&batch->state, BATCH_ENDED, __ATOMIC_RELEASE);
    } else {
        count(meter->device, batch->estimate_ns, batch->launches, now);
        __atomic_store_n(&batch->state, BATCH_FREE, __ATOMIC_RELEASE);
    }
}

/* `upper`: the truth may be less, others had their turns meanwhile. */
static void learn(struct meter *meter, struct batch *batch, uint64_t measured_ns, bool upper) {
    uint64_t each = measured_ns / batch->launches;
    for (uint32_t i = 0; i < batch->launches; i++) {
        struct work *work = &meter->works[batch->works[i]];
        uint32_t samples = PEEK(work->samples), average = PEEK(work->average_ns);
        /* Of a mixed batch each work takes its proportion of the error. */
        uint64_t sample = batch->estimate_ns == 0 || samples == 0
                              ? each
                              : (uint64_t)((double)batch->estimates_ns[i] * (double)measured_ns /
                                           (double)batch->estimate_ns);
        if (upper && samples >= TRUST_AFTER && sample > average) sample = average;
        if (sample > UINT32_MAX / 2) sample = UINT32_MAX / 2;
        /* a first timing may be mostly others' work, before anybody had a window */
        bool replaces = samples == 0 || (samples < EARLY && sample < average / 2);
        POKE(work->average_ns,
             replaces ? (uint32_t)sample : (uint32_t)((average * 7ull + sample) / 8));
        if (samples < UINT32_MAX) POKE(work->samples, samples + 1);
        POKE(work->pending, false);
    }
}

/* When, by our clock, the batch's end was reached. Events are told apart exactly, but by a clock of
 * their own. Neither end of a batch is before the call that recorded it, and often right then: the
 * most that this ever moved the two clocks apart is how far they are apart. And nothing that was
 * reached is in the future. */
static double end_on_our_clock(struct meter *meter, struct batch *batch, double length,
                               uint64_t now) {
    float since = 0;
    if (!meter->has_latest ||
        REAL(cuEventElapsedTime)(&since, meter->latest_end, batch->end) != CUDA_SUCCESS) {
        meter->has_latest = false;
        since = 0;
    }
    double at = meter->has_latest ? meter->latest_ns + (double)since * 1e6 : 0;
    double by_start = (double)batch->opened_ns - (at - length),
           offset = (double)batch->closed_ns - at;
    if (by_start > offset) offset = by_start;
    if (meter->has_latest) {
        double known =
            meter->offset_ns - (double)(now - meter->offset_at_ns) * CLOCK_DRIFT_PPM / 1e6;
        if (known > offset) offset = known;
    }
    if (offset > (double)now - at) offset = (double)now - at;
    meter->offset_ns = offset;
    meter->offset_at_ns = now;
    /* it ended later than the latest: now it is the latest */
    if (!meter->has_latest || since > 0) {
        CUevent event = meter->latest_end;
        meter->latest_end = batch->end;
        batch->end = event;
        meter->latest_ns = at;
        meter->has_latest = true;
    }
    return at + offset;
}

/* Between the events was the time that it took to launch this and to record them: the GPU may have
 * waited for that, with a busy processor for long. It took as much at most. */
static bool is_host_bound(const struct batch *batch, double length) {
    uint64_t last = batch->launches > 1 ? batch->estimate_ns / batch->launches : 0;
    return batch->idle && length <= (double)(batch->host_ns + last);
}

static void charge(struct meter *meter, struct batch *batch, uint64_t now) {
    float milliseconds = 0;
    if (REAL(cuEventElapsedTime)(&milliseconds, batch->start, batch->end) != CUDA_SUCCESS ||
        milliseconds < 0) {
        count(meter->device, batch->estimate_ns, batch->launches, now);
        return;
    }
    double length = (double)milliseconds * 1e6;
    if (batch->launches == 0) { /* it was opened for this */
        if (length < (double)meter->way_ns) meter->way_ns = (uint64_t)length;
        return;
    }
    double end = end_on_our_clock(meter, batch, length, now);
    bool host_bound = is_host_bound(batch, length);
    if (batch->idle) {
        double way = meter->way_ns > LONGEST_WAY_NS ? 0 : (double)meter->way_ns;
        length -= way < length / 2 ? way : length / 2;
    }
    uint32_t contention = LIMIT(meter->device, contention_ppm);
    if (contention == 0) contention = EGPU_PPM;
    uint64_t whole = share_of((uint64_t)length, contention);
    uint64_t cost =
        share_of(coverage_add(meter->device, (uint64_t)(end - length), (uint64_t)end), contention);
    /* Work of others is in between when they came back after it was launched, and when they ran
     * over their window into ours. Then of ours there is what was expected; but who is long twice
     * in a row is long. */
    bool overtaken = batch->until_ns == UINT64_MAX && LIMIT(meter->device, window_period_us) != 0 &&
                     cost > batch->estimate_ns;
    bool late = batch->first && !meter->forgiven && cost / 2 > batch->estimate_ns;
    bool mixed =
        !batch->guessed && (overtaken || late || (host_bound && whole > batch->estimate_ns));
    meter->forgiven = !batch->guessed && late && !overtaken;
    if (mixed) cost = batch->estimate_ns;
    bucket_debit(meter->device, (int64_t)cost - (int64_t)batch->estimate_ns);
    if (batch->until_ns != UINT64_MAX)
        queue_add(meter->device, (int64_t)cost - (int64_t)batch->estimate_ns);
    count(meter->device, cost, batch->launches, now);
    if (mixed) return;
    /* What is expected should add up to what is charged, so not `length`, which siblings' work may
     * be part of; but who is always second to report is charged next to nothing, and is not to
     * think that its work costs nothing. */
    uint64_t least = whole / SIBLINGS;
    /* the coverage is in grains: a difference of less than one is none */
    if (cost + EGPU_COVERAGE_GRAIN_NS > whole && cost < whole + EGPU_COVERAGE_GRAIN_NS)
        cost = whole;
    learn(meter, batch, cost > least ? cost : least, end > (double)batch->until_ns);
}

/* The meter's lock is held. */
static void collect(struct meter *meter, uint64_t now) {
    meter->polled_ns = now;
    /* queries would break a capture elsewhere */
    if (__atomic_load_n(&capturing, __ATOMIC_ACQUIRE) != 0) return;
    CUstreamCaptureMode mode = relax_capture();
    for (int round = 0; round < BATCHES; round++) { /* oldest first, as the differences want it */
        struct batch *oldest = NULL;
        for (int i = 0; i < BATCHES; i++)
            if (__atomic_load_n(&meter->batches[i].state, __ATOMIC_ACQUIRE) == BATCH_ENDED &&
                (oldest == NULL || (int32_t)(meter->batches[i].serial - oldest->serial) < 0))
                oldest = &meter->batches[i];
        if (oldest == NULL || REAL(cuEventQuery)(oldest->end) == CUDA_ERROR_NOT_READY) break;
        charge(meter, oldest, now);
        __atomic_store_n(&oldest->state, BATCH_FREE, __ATOMIC_RELEASE);
    }
    restore_capture(mode);
}

/* Nothing that was timed is outstanding. */
static bool is_through(struct meter *meter) {
    for (int i = 0; i < BATCHES; i++)
        if (__atomic_load_n(&meter->batches[i].state, __ATOMIC_ACQUIRE) != BATCH_FREE) return false;
    return true;
}

static bool make_events(struct batch *batch) {
    if (batch->start != NULL && batch->end != NULL) return true;
    CUstreamCaptureMode mode = relax_capture();
    if (batch->start == NULL &&
        REAL(cuEventCreate)(&batch->start, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        batch->start = NULL;
    if (batch->end == NULL && REAL(cuEventCreate)(&batch->end, CU_EVENT_DEFAULT) != CUDA_SUCCESS)
        batch->end = NULL;
    restore_capture(mode);
    return batch->start != NULL && batch->end != NULL;
}

/* A free batch of the meter, reserved; NULL when all are in use. The meter's lock is held. */
static struct batch *free_batch(struct meter *meter) {
    static uint32_t serials;
    for (int i = 0; i < BATCHES; i++) {
        struct batch *batch = &meter->batches[i];
        if (__atomic_load_n(&batch->state, __ATOMIC_ACQUIRE) != BATCH_FREE) continue;
        batch->state = BATCH_OPEN;
        batch->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
        batch->launches = batch->in_flight = 0;
        batch->guessed = batch->idle = false;
        batch->estimate_ns = 0;
        batch->owner = &recent_lane;
        return batch;
    }
    return NULL;
}

/* A batch for `stream`, its start recorded; NULL: the launch is not timed. No lock is held. */
static struct batch *new_batch(struct meter *meter, CUstream stream, uint64_t *now) {
    struct batch *batch = NULL;
    for (uint64_t began = *now; batch == NULL; *now = set_clock()) {
        lock_take(&meter->lock);
        if (*now - meter->polled_ns > POLL_NS) collect(meter, *now);
        batch = free_batch(meter);
        if (batch == NULL) {
            collect(meter, *now);
            batch = free_batch(meter);
        }
        lock_drop(&meter->lock);
        if (batch != NULL || *now - began > BACKLOG_WAIT_NS) break;
        sleep_ns(POLL_NS);
    }
    if (batch == NULL) return NULL;
    batch->stream = stream;
    batch->opened_ns = *now;
    if (make_events(batch) && record(batch->start, stream)) return batch;
    __atomic_store_n(&batch->state, BATCH_FREE, __ATOMIC_RELEASE);
    return NULL;
}

/* Measures an interval with nothing in it. */
static void measure_way(struct meter *meter, CUstream stream, uint64_t now) {
    struct batch *batch = new_batch(meter, stream, &now);
    if (batch == NULL) return;
    batch->closed_ns = now;
    __atomic_store_n(&batch->state, record(batch->end, stream) ? BATCH_ENDED : BATCH_FREE,
                     __ATOMIC_RELEASE);
}

static void end_lanes(CUcontext context, bool only_overdue, uint64_t now) {
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
    if (meters[0] == NULL) return; /* nothing was ever timed */
    device_current(&context);
    if (context == NULL) return;
    const void *thread = thread_of(stream);
    uint32_t place = place_of(context, stream, thread);
    struct lane *lane = NULL;
    for (uint32_t i = 0; i < LANES; i++) {
        lane = &lanes[(place + i) % LANES];
        if (lane->context == NULL) return; /* beyond a free one there is none */
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

void compute_collect(void) {
    for (int i = 0; i < METERS; i++) {
        struct meter *meter = __atomic_load_n(&meters[i], __ATOMIC_ACQUIRE);
        if (meter == NULL) break;
        if (__atomic_load_n(&meter->context, __ATOMIC_ACQUIRE) == NULL) continue;
        lock_take(&meter->lock);
        collect(meter, now_ns());
        lock_drop(&meter->lock);
    }
}

void compute_forget_context(CUcontext context) {
    lock_take(&lanes_lock);
    for (int i = 0; i < LANES; i++) {
        if (lanes[i].context != context) continue;
        lock_take(&lanes[i].lock);
        lanes[i].open = NULL;
        /* nobody's: the place stays taken, for the ones that come after it */
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
                count(meter->device, meter->batches[j].estimate_ns, meter->batches[j].launches,
                      now_ns());
        memset(meter->batches, 0, sizeof meter->batches);
        memset(meter->works, 0, sizeof meter->works);
        meter->latest_end = NULL;
        meter->has_latest = false;
        meter->busy_until_ns = meter->polled_ns = 0;
        __atomic_store_n(&meter->context, NULL, __ATOMIC_RELEASE);
        lock_drop(&meter->lock);
    }
}

void capture_began(void) { __atomic_fetch_add(&capturing, 1, __ATOMIC_ACQ_REL); }

void capture_ended(void) {
    uint32_t now = __atomic_load_n(&capturing, __ATOMIC_ACQUIRE);
    while (now > 0 && !__atomic_compare_exchange_n(&capturing, &now, now - 1, false,
                                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}

bool stream_is_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (__atomic_load_n(&capturing, __ATOMIC_ACQUIRE) == 0 || REAL(cuStreamIsCapturing) == NULL)
        return false;
    return REAL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* ---- one launch ---- */

/* What was launched and is not over, as far as we know. */
static uint64_t queued_ns(struct meter *meter) {
    uint64_t queued = 0;
    for (int i = 0; i < BATCHES; i++)
        if (__atomic_load_n(&meter->batches[i].state, __ATOMIC_ACQUIRE) == BATCH_ENDED)
            queued += PEEK(meter->batches[i].estimate_ns);
    return queued;
}

/* When the GPU should be through with what was launched. Others' work may have come in between,
 * which the expectation does not know: what is left begins when the last that is over ended. */
static uint64_t through_at(struct meter *meter, uint64_t now) {
    lock_take(&meter->lock);
    if (now - meter->polled_ns > POLL_NS) collect(meter, now);
    uint64_t busy_until = PEEK(meter->busy_until_ns), queued = queued_ns(meter);
    uint64_t ended = meter->has_latest ? (uint64_t)(meter->latest_ns + meter->offset_ns) : 0;
    lock_drop(&meter->lock);
    return queued != 0 && ended + queued > busy_until ? ended + queued : busy_until;
}

/* Time that is others' is not queued far ahead: they may come back for it. */
static bool borrows_too_much(struct meter *meter) {
    return LIMIT(meter->device, grant_ppm) > LIMIT(meter->device, core_ppm) &&
           LIMIT(meter->device, window_period_us) == 0 && queued_ns(meter) > BORROWED_NS;
}

/* Holds the calling thread back until the container may start `expected_ns` of work; returns the
 * time it is then, and until when it may go on. No lock is held. */
static uint64_t wait_for_turn(struct meter *meter, uint64_t expected_ns, uint64_t now,
                              uint64_t *until) {
    uint64_t reported = now;
    bool waited = false;
    for (;;) {
        uint64_t wait = bucket_wait_ns(meter->device, now),
                 opens = window_wait_ns(meter->device, now, until);
        if (opens > wait) wait = opens;
        uint64_t busy_until = *until == UINT64_MAX ? 0 : through_at(meter, now);
        /* What is queued has to be through when the window closes; what is longer than a window
         * starts with it. */
        if (wait == 0 && *until != UINT64_MAX && busy_until > now &&
            busy_until + expected_ns / 2 > *until)
            wait = (busy_until < *until ? busy_until : *until) - now;
        if (wait == 0 && *until != UINT64_MAX)
            wait = queue_wait_ns(meter->device, now, expected_ns, *until);
        bool full = wait == 0 && borrows_too_much(meter);
        if (full) wait = BORROWED_NS / 16;
        if (wait == 0) break;
        if (!waited || now - __atomic_load_n(&meter->polled_ns, __ATOMIC_RELAXED) > POLL_NS) {
            end_lanes(meter->context, !waited, now); /* or they would time our sleep */
            lock_take(&meter->lock);
            collect(meter, now);
            /* All is timed: what was expected beyond that (a timing that others' turns were part
             * of) is not there. */
            if (is_through(meter)) __atomic_store_n(&meter->busy_until_ns, now, __ATOMIC_RELAXED);
            lock_drop(&meter->lock);
        }
        waited = true;
        sleep_ns(wait > LONGEST_SLEEP_NS ? LONGEST_SLEEP_NS : wait < 20000 ? 20000 : wait);
        now = set_clock();
        /* as it grows: the agent looks at it */
        if (!full) count_throttled(meter->device, now - reported);
        reported = now;
    }
    return now;
}

/* A work that was launched once and not timed yet may be very long: it is not launched again on the
 * same expectation. */
static uint64_t wait_for_first_timing(struct meter *meter, const struct work *work, uint64_t now) {
    for (uint64_t began = now;
         PEEK(work->samples) == 0 && PEEK(work->pending) && now - began < BACKLOG_WAIT_NS;
         now = set_clock()) {
        bool outstanding = false;
        lock_take(&meter->lock);
        collect(meter, now);
        for (int i = 0; i < BATCHES; i++)
            outstanding |=
                __atomic_load_n(&meter->batches[i].state, __ATOMIC_ACQUIRE) == BATCH_ENDED;
        lock_drop(&meter->lock);
        if (!outstanding) break;
        sleep_ns(POLL_NS);
    }
    return now;
}

/* The lane has no batch that this launch could join: waits for the turn, opens one; returns with
 * the lane locked, or NULL. */
static __attribute__((noinline)) struct lane *
begin_batch(struct lane *lane, CUcontext context, CUstream stream, int device, uint64_t key) {
    struct meter *meter = lane->meter;
    struct batch *batch = lane->open;
    bool dry = false;
    uint64_t now = set_clock(), until;
    /* another thread is just launching here: this one goes untimed */
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
        if (lane->owed_ns != 0) pay(meter, lane->owed_ns, lane->owed_launches, now);
        lane->owed_ns = lane->owed_launches = 0;
        lock_drop(&lane->lock);
    }

    struct work *work = work_of(meter, key);
    bool known = PEEK(work->samples) >= TRUST_AFTER;
    now = wait_for_first_timing(meter, work, now);
    now = wait_for_turn(meter, PEEK(work->samples) > 0 ? PEEK(work->average_ns) : UNKNOWN_WORK_NS,
                        now, &until);
    if (dry && known) {
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
    /* another thread was quicker on this stream */
    if (lane == NULL || lane->open != NULL || lane->meter != meter) {
        __atomic_store_n(&batch->state, BATCH_FREE, __ATOMIC_RELEASE);
        return lane;
    }
    uint64_t busy = __atomic_load_n(&meter->busy_until_ns, __ATOMIC_RELAXED);
    batch->single = lane->single_next || !known;
    batch->idle = idle;
    batch->deadline_ns = until - now < BATCH_NS ? until : now + BATCH_NS;
    batch->dry_ns = busy > now ? busy : now;
    batch->until_ns = until;
    batch->looked_ns = now;
    batch->first = until != UINT64_MAX && until != PEEK(meter->window_ns);
    POKE(meter->window_ns, until);
    batch->lane = lane;
    lane->single_next = false;
    lane->open = batch;
    return lane;
}

/* More streams or contexts than can be timed: each launch waits for its turn and pays a flat
 * price. */
static __attribute__((noinline)) CUresult launch_unmetered(int device) {
    uint64_t now = now_ns(), until;
    for (;;) {
        uint64_t wait = bucket_wait_ns(device, now), opens = window_wait_ns(device, now, &until);
        if (opens > wait) wait = opens;
        if (wait == 0) break;
        sleep_ns(wait > LONGEST_SLEEP_NS ? LONGEST_SLEEP_NS : wait);
        uint64_t later = now_ns();
        count_throttled(device, later - now);
        now = later;
    }
    bucket_debit(device, UNKNOWN_WORK_NS);
    count(device, UNKNOWN_WORK_NS, 1, now);
    return CUDA_SUCCESS;
}

static inline bool joins(struct batch *batch) {
    if (batch->until_ns != UINT64_MAX && queue_is_full(batch->lane->meter->device, batch->until_ns))
        return false;
    if (batch->owner != &recent_lane || batch->single || batch->launches >= BATCH_LAUNCHES ||
        batch->estimate_ns >= BATCH_NS || batch->dry_ns >= batch->until_ns)
        return false;
    /* The clock is not free of cost, and a gap that is seen some launches later is seen in time. */
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
    /* the driver has the right error */
    if (__builtin_expect(context == NULL, 0)) return CUDA_SUCCESS;
    if (__builtin_expect(device < 0, 0)) return REFUSED;
    if (__builtin_expect(!is_metered(device), 0)) return CUDA_SUCCESS;
    /* counted when the graph is launched */
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
    /* of the first, `wait_for_turn` has */
    if (batch != NULL && batch->until_ns != UINT64_MAX && batch->launches > 0)
        queue_add(device, (int64_t)estimate);
    if (__builtin_expect(batch != NULL, 1)) {
        batch->works[batch->launches] = (uint16_t)(work - lane->meter->works);
        batch->estimates_ns[batch->launches++] = estimate;
        batch->estimate_ns += estimate;
        batch->dry_ns += estimate;
        /* Other streams of this process may keep the GPU busy as well: an expectation, nothing
         * more. */
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

/* Of the latest launch of a batch nothing ran: as if it had not been asked for. */
static void take_back(struct batch *batch, uint64_t estimate_ns) {
    batch->estimate_ns -= estimate_ns;
    batch->dry_ns -= estimate_ns;
    if (batch->launches > 0) batch->launches--;
    if (batch->until_ns != UINT64_MAX) queue_add(batch->lane->meter->device, -(int64_t)estimate_ns);
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
                                    batch->estimate_ns >= BATCH_NS)) {
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

/* Unless another thread has paid it already. */
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
    /* Nobody ends a batch whose owner is launching: what is read here does not move. */
    if (__builtin_expect(result == CUDA_SUCCESS && !batch->single &&
                             batch->launches < BATCH_LAUNCHES && batch->estimate_ns < BATCH_NS,
                         1))
        __atomic_store_n(&batch->in_flight, 0, __ATOMIC_RELEASE);
    else
        launch_end_slow(launch, result);
}
