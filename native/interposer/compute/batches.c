/* Batches: launches that one pair of events times together. See compute.h. */
#include "compute.h"

CUstreamCaptureMode relax_capture(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return mode;
}

void restore_capture(CUstreamCaptureMode mode) {
    if (REAL(cuThreadExchangeStreamCaptureMode) != NULL)
        REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

static bool record(CUevent event, CUstream stream) {
    CUstreamCaptureMode mode = relax_capture();
    bool recorded = REAL(cuEventRecord)(event, stream) == CUDA_SUCCESS;
    restore_capture(mode);
    return recorded;
}

bool is_idle(CUstream stream) {
    CUstreamCaptureMode mode = relax_capture();
    bool idle = REAL(cuStreamQuery)(stream) != CUDA_ERROR_NOT_READY; /* it never waits */
    restore_capture(mode);
    return idle;
}

bool ran_dry(const struct batch *batch, uint64_t now) {
    if (now <= batch->dry_ns || is_in_flight(batch)) return false;
    if (now - batch->looked_ns > GAP_NS) return true;
    /* The last launch may run now, and hide that the stream was idle before it. */
    if (batch->launches > 1 && now - batch->dry_ns > batch->estimate_ns / GAP_PART) return true;
    /* The expectation says so. Ask the driver, unless that would break a capture. */
    if (__atomic_load_n(&capturing, __ATOMIC_ACQUIRE) != 0 || REAL(cuStreamQuery) == NULL)
        return true;
    return is_idle(batch->stream);
}

void drop_batch(struct lane *lane, struct batch *batch, uint64_t now) {
    charge_pay(lane->meter, batch->estimate_ns, batch->launches, now);
    __atomic_store_n(&batch->state, BATCH_FREE, __ATOMIC_RELEASE);
    lane->single_next = true;
}

void end_batch_and_drop_lock(struct lane *lane, uint64_t now) {
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
        charge_count(meter->device, batch->estimate_ns, batch->launches, now);
        __atomic_store_n(&batch->state, BATCH_FREE, __ATOMIC_RELEASE);
    }
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

/* Reserves a free batch of the meter; NULL when all are in use. Call it with the meter's lock. */
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

struct batch *new_batch(struct meter *meter, CUstream stream, uint64_t *now) {
    struct batch *batch = NULL;
    for (uint64_t began = *now; batch == NULL; *now = set_clock()) {
        lock_take(&meter->lock);
        if (*now - meter->polled_ns > POLL_NS) charge_ended(meter, *now);
        batch = free_batch(meter);
        if (batch == NULL) {
            charge_ended(meter, *now);
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

void measure_way(struct meter *meter, CUstream stream, uint64_t now) {
    struct batch *batch = new_batch(meter, stream, &now);
    if (batch == NULL) return;
    batch->closed_ns = now;
    __atomic_store_n(&batch->state, record(batch->end, stream) ? BATCH_ENDED : BATCH_FREE,
                     __ATOMIC_RELEASE);
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
