/* The container's GPU time on one device: the bucket that launches are paid from, the window in
 * which they may start, and the ring that counts overlapping work once. All of it lies in the usage
 * file, shared by the container's processes. */
#include "interposer.h"

#include <string.h>

enum {
    BURST_NS = 20000000,
    DEBT_NS = 2000000000, /* no debt lasts longer: a damaged usage file must not stop us for good */
    REFILL_NS = 1000,
    WINDOW_LENIENCE = 32,
};

uint64_t share_of(uint64_t time_ns, uint32_t ppm) {
    return (uint64_t)((unsigned __int128)time_ns * ppm / EGPU_PPM);
}

struct bucket {
    int64_t *tokens_ns;
    uint64_t *time_ns;
};

static struct bucket shared_bucket(int device) {
    struct egpu_usage_device *totals = &slice_usage()->devices[device];
    return (struct bucket){&totals->bucket_ns, &totals->bucket_time_ns};
}

/* What this process itself has used: the usage file may say anything. */
static struct {
    int64_t tokens_ns;
    uint64_t time_ns;
} own[EGPU_MAX_DEVICES];

static struct bucket own_bucket(int device) {
    return (struct bucket){&own[device].tokens_ns, &own[device].time_ns};
}

void bucket_debit(int device, int64_t cost_ns) {
    if (cost_ns == 0) return;
    __atomic_fetch_sub(shared_bucket(device).tokens_ns, cost_ns, __ATOMIC_ACQ_REL);
    __atomic_fetch_sub(own_bucket(device).tokens_ns, cost_ns, __ATOMIC_ACQ_REL);
}

void bucket_forget(void) { memset(own, 0, sizeof own); }

static int64_t refill(struct bucket bucket, uint32_t rate_ppm, uint64_t burst_ns, uint64_t now) {
    uint64_t last = __atomic_load_n(bucket.time_ns, __ATOMIC_RELAXED);
    if (last == 0 || now <= last || now - last >= REFILL_NS) {
        if (__atomic_compare_exchange_n(bucket.time_ns, &last, now, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED)) {
            uint64_t elapsed =
                last == 0 || now < last || now - last > DEBT_NS ? burst_ns : now - last;
            int64_t after = __atomic_add_fetch(
                bucket.tokens_ns, (int64_t)share_of(elapsed, rate_ppm), __ATOMIC_ACQ_REL);
            int64_t burst = (int64_t)share_of(burst_ns, rate_ppm),
                    floor = -(int64_t)share_of(DEBT_NS, rate_ppm);
            int64_t bounded = after > burst ? burst : after < floor ? floor : after;
            if (bounded != after)
                __atomic_compare_exchange_n(bucket.tokens_ns, &after, bounded, false,
                                            __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
        }
    }
    return __atomic_load_n(bucket.tokens_ns, __ATOMIC_ACQUIRE);
}

/* All of it may be used, so nothing is owed when there is less again. */
static void forgive(struct bucket bucket, uint64_t now) {
    int64_t tokens = refill(bucket, EGPU_PPM, BURST_NS, now);
    if (tokens < 0)
        __atomic_compare_exchange_n(bucket.tokens_ns, &tokens, 0, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED);
}

uint64_t bucket_wait_ns(int device, uint64_t now) {
    policy_look();
    uint32_t rate_ppm = LIMIT(device, grant_ppm);
    bool latency = LIMIT(device, work) == EGPU_WORK_LATENCY;
    if (!is_metered(device) || rate_ppm == 0) return 0;
    if (rate_ppm >= EGPU_PPM) {
        forgive(shared_bucket(device), now);
        forgive(own_bucket(device), now);
        return 0;
    }
    /* With a window it is the window that limits; the bucket only sees to it that what runs over is
     * paid back. */
    uint64_t period_ns = LIMIT(device, window_period_us) * 1000ull;
    if (period_ns != 0) rate_ppm += rate_ppm / WINDOW_LENIENCE;
    uint64_t burst_ns = latency ? LATENCY_BURST_NS : period_ns > BURST_NS ? period_ns : BURST_NS;
    int64_t tokens = refill(shared_bucket(device), rate_ppm, burst_ns, now),
            mine = refill(own_bucket(device), rate_ppm, burst_ns, now);
    if (mine < tokens) tokens = mine;
    if (tokens > 0) return 0;
    /* of a damaged file that was not refilled now */
    int64_t floor = -(int64_t)share_of(DEBT_NS, rate_ppm);
    return (uint64_t)((double)(1 - (tokens < floor ? floor : tokens)) * EGPU_PPM / rate_ppm);
}

/* The clock of windows: it stands still while slices of latency work have the card. */
static uint64_t unheld(int device, uint64_t now) {
    const struct egpu_policy_turn *turn = &policy_turns[device];
    if (LIMIT(device, work) != EGPU_WORK_YIELDING) return now;
    uint64_t until = __atomic_load_n(&turn->until_ns, __ATOMIC_RELAXED);
    return (now > until ? now : until) - __atomic_load_n(&turn->held_ns, __ATOMIC_RELAXED);
}

uint64_t window_wait_ns(int device, uint64_t now, uint64_t *until) {
    uint64_t period = LIMIT(device, window_period_us) * 1000ull,
             epoch = LIMIT(device, window_epoch_ns);
    uint64_t start = LIMIT(device, window_start_us) * 1000ull,
             length = LIMIT(device, window_length_us) * 1000ull;
    *until = UINT64_MAX;
    if (period == 0 || length == 0 || length >= period) return 0;
    /* since our window began */
    uint64_t phase = (unheld(device, now) - epoch + period - start % period) % period;
    if (phase < length) {
        *until = now + (length - phase);
        return 0;
    }
    return period - phase;
}

/* What was queued so far; what is longer than two periods is of a damaged file. */
static uint64_t queued_until(uint64_t word, int device, uint64_t now) {
    uint64_t period = LIMIT(device, window_period_us) * 1000ull;
    return word < now || word - now > 2 * period ? now : word;
}

void queue_add(int device, int64_t work_ns) {
    uint64_t *word = &slice_usage()->devices[device].queued_until_ns;
    __atomic_fetch_add(word, (uint64_t)work_ns, __ATOMIC_ACQ_REL);
}

bool queue_is_full(int device, uint64_t until) {
    return __atomic_load_n(&slice_usage()->devices[device].queued_until_ns, __ATOMIC_ACQUIRE) >=
           until;
}

uint64_t queue_wait_ns(int device, uint64_t now, uint64_t work_ns, uint64_t until) {
    uint64_t *word = &slice_usage()->devices[device].queued_until_ns;
    uint64_t before = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    for (;;) {
        uint64_t queued = queued_until(before, device, now);
        if (queued > now && queued + work_ns / 2 > until)
            return (queued < until ? queued : until) - now;
        if (__atomic_compare_exchange_n(word, &before, queued + work_ns, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
            return 0;
    }
}

/* ---- what overlaps is counted once ---- */

enum { WORD_BITS = 48 };

/* Sets `bits` of one word; returns how many were not set before. */
static unsigned mark(uint64_t *word, uint64_t round, uint64_t bits) {
    uint64_t before = __atomic_load_n(word, __ATOMIC_RELAXED), tag = round << WORD_BITS;
    for (;;) {
        uint64_t set =
            before >> WORD_BITS == tag >> WORD_BITS ? before & ((1ull << WORD_BITS) - 1) : 0;
        if (__atomic_compare_exchange_n(word, &before, tag | set | bits, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return (unsigned)__builtin_popcountll(bits & ~set);
    }
}

uint64_t coverage_add(int device, uint64_t start_ns, uint64_t end_ns) {
    struct egpu_usage_coverage *coverage = &slice_usage()->coverage[device];
    enum { GRAINS = WORD_BITS * EGPU_COVERAGE_WORDS };
    /* To the nearest grain: of many intervals as much is lost as is won. */
    uint64_t from = (start_ns + EGPU_COVERAGE_GRAIN_NS / 2) / EGPU_COVERAGE_GRAIN_NS,
             to = (end_ns + EGPU_COVERAGE_GRAIN_NS / 2) / EGPU_COVERAGE_GRAIN_NS;
    if (to <= from) return 0;
    uint64_t fresh = to - from > GRAINS ? to - from - GRAINS : 0;
    for (from += fresh; from < to;) {
        uint64_t word = from / WORD_BITS, first = from % WORD_BITS, count = WORD_BITS - first;
        if (count > to - from) count = to - from;
        fresh += mark(&coverage->words[word % EGPU_COVERAGE_WORDS],
                      word / EGPU_COVERAGE_WORDS & 0xffff, ((1ull << count) - 1) << first);
        from += count;
    }
    return fresh * EGPU_COVERAGE_GRAIN_NS;
}

/* ---- how busy it is now ---- */

enum { RATE_NS = 250000000 };

static uint64_t ppm_of(uint64_t busy_ns, uint64_t span_ns) {
    uint64_t ppm = span_ns == 0 ? 0 : (uint64_t)((unsigned __int128)busy_ns * EGPU_PPM / span_ns);
    return ppm > EGPU_PPM ? EGPU_PPM : ppm;
}

void rate_note(struct egpu_usage_rate *rate, uint64_t gpu_ns, uint64_t now) {
    uint64_t since = __atomic_load_n(&rate->since_ns, __ATOMIC_ACQUIRE),
             from = __atomic_load_n(&rate->since_gpu_ns, __ATOMIC_RELAXED);
    if (now >= since && now - since < RATE_NS) return;
    if (!__atomic_compare_exchange_n(&rate->since_ns, &since, now, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    __atomic_store_n(
        &rate->last_ppm,
        since == 0 || now < since || gpu_ns < from ? 0 : ppm_of(gpu_ns - from, now - since),
        __ATOMIC_RELAXED);
    __atomic_store_n(&rate->since_gpu_ns, gpu_ns, __ATOMIC_RELAXED);
}

uint64_t rate_ppm(struct egpu_usage_rate *rate, uint64_t gpu_ns, uint64_t now) {
    rate_note(rate, gpu_ns, now);
    uint64_t since = __atomic_load_n(&rate->since_ns, __ATOMIC_ACQUIRE),
             from = __atomic_load_n(&rate->since_gpu_ns, __ATOMIC_RELAXED);
    if (now < since + RATE_NS / 2 || gpu_ns < from)
        return __atomic_load_n(&rate->last_ppm, __ATOMIC_RELAXED);
    return ppm_of(gpu_ns - from, now - since);
}
