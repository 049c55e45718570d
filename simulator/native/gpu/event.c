/* Events, of one process and between processes (their state is in the machine's file). */
#include "graph.h"

#include <stdlib.h>
#include <time.h>

#define POLL_NS 50000
#define POLLS_PER_REAP 200 /* a process that died will never reach it */

static struct event *new_event(struct context *context, unsigned flags) {
    struct event *event = calloc(1, sizeof *event);
    if (!event || !handle_add(event, HANDLE_EVENT)) {
        free(event);
        return NULL;
    }
    event->flags = flags;
    event->context = context;
    atomic_store(&event->refs, 1);
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, NULL);
    return event;
}

CUresult event_create(struct context *context, unsigned flags, struct event **out) {
    struct event *event = new_event(context, flags);
    if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
    if (flags & CU_EVENT_INTERPROCESS) {
        if (machine_share_event(&engine.machine, context->device->card, flags, &event->ref) != 0) {
            handle_remove(event);
            event_unref(event);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        event->shared = machine_shared(&engine.machine, event->ref);
    }
    *out = event;
    return CUDA_SUCCESS;
}

CUresult event_import(struct context *context, struct shared_ref ref, struct event **out) {
    if (machine_hold_event(&engine.machine, ref) != 0) return CUDA_ERROR_INVALID_HANDLE;
    struct sim_shared *shared = machine_shared(&engine.machine, ref);
    struct event *event = new_event(context, shared->event_flags);
    if (!event) {
        machine_drop_shared(&engine.machine, ref);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->shared = shared;
    event->ref = ref;
    *out = event;
    return CUDA_SUCCESS;
}

void event_unref(struct event *event) {
    if (atomic_fetch_sub(&event->refs, 1) != 1) return;
    if (event->shared) machine_drop_shared(&engine.machine, event->ref);
    capture_forget_event(event);
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

uint64_t event_recorded(struct event *event) {
    if (event->shared) return atomic_load(&event->shared->recorded);
    pthread_mutex_lock(&event->lock);
    uint64_t number = event->recorded;
    pthread_mutex_unlock(&event->lock);
    return number;
}

static bool reached(struct event *event, uint64_t number) {
    if (event->shared) return atomic_load(&event->shared->done) >= number;
    pthread_mutex_lock(&event->lock);
    bool done = event->done >= number;
    pthread_mutex_unlock(&event->lock);
    return done;
}

bool event_done(struct event *event) { return reached(event, event_recorded(event)); }

static void wait_shared(struct event *event, uint64_t number) {
    for (unsigned polls = 1; !reached(event, number); polls++) {
        struct timespec nap = {.tv_nsec = POLL_NS};
        nanosleep(&nap, NULL);
        if (polls % POLLS_PER_REAP == 0) machine_reap(&engine.machine);
    }
}

void event_wait(struct event *event, uint64_t number) {
    if (event->shared) {
        wait_shared(event, number);
        return;
    }
    pthread_mutex_lock(&event->lock);
    while (event->done < number) pthread_cond_wait(&event->changed, &event->lock);
    pthread_mutex_unlock(&event->lock);
}

uint64_t event_timestamp(struct event *event) {
    if (event->shared) return atomic_load(&event->shared->timestamp_ns);
    pthread_mutex_lock(&event->lock);
    uint64_t timestamp = event->timestamp_ns;
    pthread_mutex_unlock(&event->lock);
    return timestamp;
}

void event_reach(struct event *event, uint64_t number, uint64_t now) {
    if (event->shared) {
        uint64_t done = atomic_load(&event->shared->done);
        atomic_store(&event->shared->timestamp_ns, now);
        while (number > done &&
               !atomic_compare_exchange_weak(&event->shared->done, &done, number)) {
        }
        return;
    }
    pthread_mutex_lock(&event->lock);
    if (number > event->done) {
        event->done = number;
        event->timestamp_ns = now;
    }
    pthread_cond_broadcast(&event->changed);
    pthread_mutex_unlock(&event->lock);
}

uint64_t event_next(struct event *event) {
    if (event->shared) {
        atomic_store(&event->shared->recorder, (uint32_t)engine.machine.slot + 1);
        return atomic_fetch_add(&event->shared->recorded, 1) + 1;
    }
    pthread_mutex_lock(&event->lock);
    uint64_t number = ++event->recorded;
    pthread_mutex_unlock(&event->lock);
    return number;
}

CUresult event_record(struct event *event, struct stream *stream) {
    if (stream->capture) return capture_record(stream, event);
    struct op *op = op_new(OP_RECORD);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    capture_forget_event(event);
    atomic_fetch_add(&event->refs, 1);
    op->event.event = event;
    op->event.number = event_next(event);
    return stream_submit(stream, op, NULL);
}

CUresult event_wait_in(struct stream *stream, struct event *event) {
    if (stream->capture || event->capture) return capture_wait(stream, event);
    struct op *op = op_new(OP_WAIT_EVENT);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_fetch_add(&event->refs, 1);
    op->event.event = event;
    /* later records change nothing for this wait */
    op->event.number = event_recorded(event);
    return stream_submit(stream, op, NULL);
}
