/* Charges: what timed batches cost their container, and what that says of their works. See
 * compute.h. */
#include "compute.h"

void charge_count(int device, uint64_t gpu_ns, uint32_t launches, uint64_t now) {
    struct egpu_usage_slot *slot = slot_of(device);
    struct egpu_usage_device *totals = &slice_usage()->devices[device];
    rate_note(&totals->rate, __atomic_add_fetch(&totals->gpu_ns, gpu_ns, __ATOMIC_RELAXED), now);
    __atomic_fetch_add(&totals->launches, launches, __ATOMIC_RELAXED);
    if (slot == NULL) return;
    rate_note(&slot->rate, __atomic_add_fetch(&slot->gpu_ns, gpu_ns, __ATOMIC_RELAXED), now);
    __atomic_fetch_add(&slot->launches, launches, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->heartbeat_ns, now, __ATOMIC_RELAXED);
}

void charge_throttled(int device, uint64_t duration_ns) {
    struct egpu_usage_slot *slot = slot_of(device);
    __atomic_fetch_add(&slice_usage()->devices[device].throttled_ns, duration_ns, __ATOMIC_RELAXED);
    if (slot != NULL) __atomic_fetch_add(&slot->throttled_ns, duration_ns, __ATOMIC_RELAXED);
}

void charge_pay(struct meter *meter, uint64_t cost_ns, uint32_t launches, uint64_t now) {
    bucket_debit(meter->device, (int64_t)cost_ns);
    charge_count(meter->device, cost_ns, launches, now);
}

/* `upper`: others had turns meanwhile, so the true cost may be less. */
static void learn(struct meter *meter, struct batch *batch, uint64_t measured_ns, bool upper) {
    uint64_t each = measured_ns / batch->launches;
    for (uint32_t i = 0; i < batch->launches; i++) {
        struct work *work = &meter->works[batch->works[i]];
        uint32_t samples = PEEK(work->samples), average = PEEK(work->average_ns);
        /* In a mixed batch each work takes its proportion of the error. */
        uint64_t sample = batch->estimate_ns == 0 || samples == 0
                              ? each
                              : (uint64_t)((double)batch->estimates_ns[i] * (double)measured_ns /
                                           (double)batch->estimate_ns);
        if (upper && samples >= TRUST_AFTER && sample > average) sample = average;
        if (sample > UINT32_MAX / 2) sample = UINT32_MAX / 2;
        /* a first timing may be mostly others' work, from before there were windows */
        bool replaces = samples == 0 || (samples < EARLY && sample < average / 2);
        POKE(work->average_ns,
             replaces ? (uint32_t)sample : (uint32_t)((average * 7ull + sample) / 8));
        if (samples < UINT32_MAX) POKE(work->samples, samples + 1);
        POKE(work->pending, false);
    }
}

/* Return when the batch's end was reached, by our clock. The distance of two events is exact, but
 * in a clock of their own. No event is reached before the call that recorded it, and many are
 * reached right then: the largest offset that this ever showed is the offset of the clocks. No
 * event that was reached is in the future. */
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
    /* it ended later than the latest, so it becomes the latest */
    if (!meter->has_latest || since > 0) {
        CUevent event = meter->latest_end;
        meter->latest_end = batch->end;
        batch->end = event;
        meter->latest_ns = at;
        meter->has_latest = true;
    }
    return at + offset;
}

/* Return whether the GPU may have waited for the host between the two events: while it launched and
 * recorded, which takes long on a busy processor. */
static bool is_host_bound(const struct batch *batch, double length) {
    uint64_t last = batch->launches > 1 ? batch->estimate_ns / batch->launches : 0;
    return batch->idle && length <= (double)(batch->host_ns + last);
}

static void charge_batch(struct meter *meter, struct batch *batch, uint64_t now) {
    float milliseconds = 0;
    if (REAL(cuEventElapsedTime)(&milliseconds, batch->start, batch->end) != CUDA_SUCCESS ||
        milliseconds < 0) {
        charge_count(meter->device, batch->estimate_ns, batch->launches, now);
        return;
    }
    double length = (double)milliseconds * 1e6;
    if (batch->launches == 0) { /* of measure_way */
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
    /* Others' work is part of the timing when they came back after our launch, and when they ran
     * over their window into ours. Then our work costs what was expected. But a batch that is late
     * twice in a row is long. */
    bool overtaken = batch->until_ns == UINT64_MAX && LIMIT(meter->device, window_period_us) != 0 &&
                     cost > batch->estimate_ns;
    bool late = batch->first && !meter->forgiven && cost / 2 > batch->estimate_ns;
    bool turns = LIMIT(meter->device, work) != EGPU_WORK_PLAIN;
    struct turn_cost turn = {0};
    if (turns) {
        turn = turn_cost(batch, (uint64_t)(end - length), (uint64_t)end, cost);
        cost = turn.cost_ns;
        overtaken = late = false;
    }
    bool mixed =
        !batch->guessed && (overtaken || late || (host_bound && whole > batch->estimate_ns));
    meter->forgiven = !batch->guessed && late && !overtaken;
    if (mixed) cost = batch->estimate_ns;
    bucket_debit(meter->device, (int64_t)cost - (int64_t)batch->estimate_ns);
    if (batch->queues) queue_add(meter->device, (int64_t)cost - (int64_t)batch->estimate_ns);
    charge_count(meter->device, cost, batch->launches, now);
    if (mixed) return;
    if (turns) {
        learn(meter, batch, turn.sample_ns, turn.upper);
        return;
    }
    /* Expectations should add up to charges, so learn from `cost`: siblings' work may be part of
     * `length`. But a process that always reports second is charged next to nothing, and must not
     * learn that its work is free. */
    uint64_t least = whole / SIBLINGS;
    /* the coverage counts in grains: ignore a smaller difference */
    if (cost + EGPU_COVERAGE_GRAIN_NS > whole && cost < whole + EGPU_COVERAGE_GRAIN_NS)
        cost = whole;
    learn(meter, batch, cost > least ? cost : least, end > (double)batch->until_ns);
}

void charge_ended(struct meter *meter, uint64_t now) {
    meter->polled_ns = now;
    /* queries would break a capture elsewhere */
    if (__atomic_load_n(&capturing, __ATOMIC_ACQUIRE) != 0) return;
    CUstreamCaptureMode mode = relax_capture();
    for (int round = 0; round < BATCHES;
         round++) { /* oldest first: times count from the one before */
        struct batch *oldest = NULL;
        for (int i = 0; i < BATCHES; i++)
            if (__atomic_load_n(&meter->batches[i].state, __ATOMIC_ACQUIRE) == BATCH_ENDED &&
                (oldest == NULL || (int32_t)(meter->batches[i].serial - oldest->serial) < 0))
                oldest = &meter->batches[i];
        if (oldest == NULL || REAL(cuEventQuery)(oldest->end) == CUDA_ERROR_NOT_READY) break;
        charge_batch(meter, oldest, now);
        __atomic_store_n(&oldest->state, BATCH_FREE, __ATOMIC_RELEASE);
    }
    restore_capture(mode);
}

void compute_collect(void) {
    for (int i = 0; i < METERS; i++) {
        struct meter *meter = __atomic_load_n(&meters[i], __ATOMIC_ACQUIRE);
        if (meter == NULL) break;
        if (__atomic_load_n(&meter->context, __ATOMIC_ACQUIRE) == NULL) continue;
        lock_take(&meter->lock);
        charge_ended(meter, now_ns());
        lock_drop(&meter->lock);
        if (is_through(meter)) turn_done(meter->device, now_ns());
    }
}
