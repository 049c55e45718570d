/* Streams: a queue of operations and, while there are any, a thread that executes them in order.
 *
 * A stream has simulated time of its own: an operation starts when it was queued, when the previous
 * one ended, or when the card becomes free, whichever is last. So a worker that wakes up late does
 * not lengthen the measured time.
 */
#include "graph.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define IDLE_SECONDS 1 /* a worker without work ends after this long */
#define BEHIND_NS 5000 /* calls this close together have nothing in between */

/* ---- operations ---- */

struct op *op_new(enum op_kind kind) {
    struct op *op = calloc(1, sizeof *op);
    if (op) op->kind = kind;
    return op;
}

/* Clone an operation that a graph may hold, with everything that the original owns. */
struct op *op_clone(const struct op *op) {
    struct op *clone = malloc(sizeof *clone);
    if (!clone) return NULL;
    *clone = *op;
    clone->next = NULL;
    if (op->kind == OP_LAUNCH) {
        clone->launch.params = malloc(op->launch.param_bytes + 1);
        if (!clone->launch.params) {
            free(clone);
            return NULL;
        }
        memcpy(clone->launch.params, op->launch.params, op->launch.param_bytes);
    } else if (op->kind == OP_RECORD || op->kind == OP_WAIT_EVENT)
        atomic_fetch_add(&op->event.event->refs, 1);
    return clone;
}

void op_free(struct op *op) {
    switch (op->kind) {
    case OP_LAUNCH: free(op->launch.params); break;
    case OP_RECORD:
    case OP_WAIT_EVENT: event_unref(op->event.event); break;
    case OP_WAIT_STREAM: stream_unref(op->after.stream); break;
    case OP_GRAPH:
        plan_release(op->graph.plan);
        free(op->graph.records);
        break;
    default: break;
    }
    free(op->staged);
    free(op);
}

/* ---- life ---- */

CUresult stream_create(struct context *context, unsigned flags, int priority, bool legacy,
                       struct stream **out) {
    static _Atomic unsigned long long next_id = 1;
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream || !handle_add(stream, HANDLE_STREAM)) {
        free(stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->legacy = legacy;
    stream->attributes.policy = CU_SYNC_POLICY_AUTO;
    stream->attributes.domains.remote = 1; /* and the default one is 0 */
    stream->id = atomic_fetch_add(&next_id, 1);
    atomic_store(&stream->refs, 1);
    pthread_mutex_init(&stream->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&stream->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_lock(&context->lock);
    stream->next = context->streams;
    if (stream->next) stream->next->previous = stream;
    context->streams = stream;
    pthread_mutex_unlock(&context->lock);
    *out = stream;
    return CUDA_SUCCESS;
}

void stream_unref(struct stream *stream) {
    if (atomic_fetch_sub(&stream->refs, 1) != 1) return;
    pthread_cond_destroy(&stream->changed);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

/* Unlink it from the context only when it is drained: synchronising with the context must wait for
 * it as well. */
static void stream_unlink(struct stream *stream) {
    struct context *context = stream->context;
    pthread_mutex_lock(&context->lock);
    if (stream->previous)
        stream->previous->next = stream->next;
    else
        context->streams = stream->next;
    if (stream->next) stream->next->previous = stream->previous;
    pthread_mutex_unlock(&context->lock);
}

void stream_destroy(struct stream *stream) {
    capture_forget_stream(stream);
    atomic_fetch_add(&stream->refs, 1);
    handle_remove(stream);
    pthread_mutex_lock(&stream->lock);
    /* While a worker serves it, the worker unlinks it after the last operation. */
    bool unserved = !stream->closing && !stream->worker;
    stream->closing = true;
    pthread_cond_broadcast(&stream->changed);
    if (!atomic_load(&stream->context->alive))
        while (stream->worker) pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
    if (unserved) {
        stream_unlink(stream);
        stream_unref(stream);
    }
    stream_unref(stream);
}

/* ---- the worker ---- */

/* With the lock held. False: nothing came for a while, or the stream is closing and empty. */
static bool wait_for_work(struct stream *stream) {
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += IDLE_SECONDS;
    while (!stream->head && !stream->closing)
        if (pthread_cond_timedwait(&stream->changed, &stream->lock, &deadline) == ETIMEDOUT) break;
    return stream->head != NULL;
}

static void *work(void *argument) {
    struct stream *stream = argument;
    prctl(PR_SET_NAME, "egpu-sim-stream");
    /* simulated durations are microseconds; the default slack is 50 of them */
    prctl(PR_SET_TIMERSLACK, 1UL);
    pthread_mutex_lock(&stream->lock);
    while (wait_for_work(stream)) {
        struct op *op = stream->head;
        stream->head = op->next;
        if (!stream->head) stream->tail = NULL;
        pthread_mutex_unlock(&stream->lock);
        op_execute(stream, op);
        op_free(op);
        pthread_mutex_lock(&stream->lock);
        stream->queued--;
        stream->completed++;
        pthread_cond_broadcast(&stream->changed);
    }
    bool closing = stream->closing;
    if (closing) {
        pthread_mutex_unlock(&stream->lock);
        stream_unlink(stream);
        pthread_mutex_lock(&stream->lock);
    }
    stream->worker = false;
    pthread_cond_broadcast(&stream->changed);
    pthread_mutex_unlock(&stream->lock);
    if (closing) stream_unref(stream); /* the handle's */
    stream_unref(stream);
    return NULL;
}

static CUresult start_worker(struct stream *stream) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    atomic_fetch_add(&stream->refs, 1);
    stream->worker = true;
    /* The program's own threads handle signals. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, &attributes, work, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (!error) return CUDA_SUCCESS;
    stream->worker = false;
    atomic_fetch_sub(&stream->refs, 1);
    return CUDA_ERROR_OPERATING_SYSTEM;
}

/* ---- queueing ---- */

bool stream_pending(struct stream *stream, uint64_t *number) {
    pthread_mutex_lock(&stream->lock);
    bool pending = stream->completed < stream->submitted;
    if (pending && number) *number = stream->submitted;
    pthread_mutex_unlock(&stream->lock);
    return pending;
}

void stream_wait(struct stream *stream, uint64_t number) {
    pthread_mutex_lock(&stream->lock);
    while (stream->completed < number) pthread_cond_wait(&stream->changed, &stream->lock);
    pthread_mutex_unlock(&stream->lock);
}

/* A driver rings a doorbell where this code wakes a thread, which takes longer than a short kernel.
 * So the time of this thread's latest wake is subtracted from calls right behind it. */
static _Thread_local uint64_t waking_ns, woken_ns;

static uint64_t called_at(uint64_t now) {
    return now - woken_ns < BEHIND_NS ? now - waking_ns : now;
}

static CUresult push(struct stream *stream, struct op *op, uint64_t *number) {
    CUresult result = CUDA_SUCCESS;
    uint64_t began = sim_now();
    op->enqueued_ns = called_at(began);
    pthread_mutex_lock(&stream->lock);
    bool wakes = stream->queued == 0;
    while (stream->queued >= STREAM_DEPTH) pthread_cond_wait(&stream->changed, &stream->lock);
    if (!stream->worker) result = start_worker(stream);
    if (result == CUDA_SUCCESS) {
        if (stream->tail)
            stream->tail->next = op;
        else
            stream->head = op;
        stream->tail = op;
        stream->queued++;
        stream->submitted++;
        if (number) *number = stream->submitted;
        pthread_cond_broadcast(&stream->changed);
    }
    pthread_mutex_unlock(&stream->lock);
    if (wakes) {
        woken_ns = sim_now();
        waking_ns = woken_ns - began;
    }
    if (result != CUDA_SUCCESS) op_free(op);
    return result;
}

static CUresult push_wait(struct stream *stream, struct stream *before, uint64_t number) {
    struct op *op = op_new(OP_WAIT_STREAM);
    if (!op) {
        stream_unref(before);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->after.stream = before; /* takes the reference */
    op->after.number = number;
    return push(stream, op, NULL);
}

static bool blocking(const struct stream *stream) {
    return !(stream->flags & CU_STREAM_NON_BLOCKING);
}

/* Return whether an operation on `stream` comes after work queued on `other`, by the default
 * stream's rules. */
static bool follows(const struct stream *stream, const struct stream *other) {
    if (stream == other) return false;
    return stream->legacy ? blocking(other) : blocking(stream) && other->legacy;
}

struct before {
    struct stream *stream; /* referenced */
    uint64_t number;
};

/* Find up to `room` unfinished streams that `stream` comes after. */
static size_t collect_before(struct stream *stream, struct before *list, size_t room) {
    struct context *context = stream->context;
    size_t count = 0;
    pthread_mutex_lock(&context->lock);
    for (struct stream *other = context->streams; other && count < room; other = other->next) {
        if (!follows(stream, other) || !stream_pending(other, &list[count].number)) continue;
        atomic_fetch_add(&other->refs, 1);
        list[count++].stream = other;
    }
    pthread_mutex_unlock(&context->lock);
    return count;
}

/* more unfinished streams than this are waited for here, not in the queue */
#define BEFORE_ROOM 64

static void wait_for_most(struct stream *stream, struct before *list, size_t *count) {
    while ((*count = collect_before(stream, list, BEFORE_ROOM)) == BEFORE_ROOM)
        for (size_t i = 0; i < BEFORE_ROOM; i++) {
            stream_wait(list[i].stream, list[i].number);
            stream_unref(list[i].stream);
        }
}

/* An event on an idle stream is reached at once, as on a card: waking the worker takes longer than
 * a short kernel, and the event would measure that. */
static bool reach_now(struct stream *stream, const struct op *op) {
    pthread_mutex_lock(&stream->lock);
    bool idle = stream->completed == stream->submitted;
    if (idle) {
        uint64_t now = called_at(sim_now());
        if (now > stream->last_end_ns) stream->last_end_ns = now;
        event_reach(op->event.event, op->event.number, stream->last_end_ns);
    }
    pthread_mutex_unlock(&stream->lock);
    return idle;
}

/* Memory freed in an idle stream is free at once: a program sees that if it queries its pool
 * next. */
static bool free_now(struct stream *stream, const struct op *op) {
    pthread_mutex_lock(&stream->lock);
    bool idle = stream->completed == stream->submitted;
    pthread_mutex_unlock(&stream->lock);
    if (idle) execute_free(op);
    return idle;
}

static bool done_now(struct stream *stream, const struct op *op) {
    return (op->kind == OP_RECORD && reach_now(stream, op)) ||
           (op->kind == OP_FREE && free_now(stream, op));
}

bool stream_next_is_launch(struct stream *stream) {
    pthread_mutex_lock(&stream->lock);
    const struct op *op = stream->head;
    while (op && (op->kind == OP_RECORD || op->kind == OP_NOTHING || op->kind == OP_FREE))
        op = op->next;
    bool is = op && (op->kind == OP_LAUNCH || op->kind == OP_GRAPH);
    pthread_mutex_unlock(&stream->lock);
    return is;
}

bool stream_take_freed(struct stream *stream, const struct pool *pool, uint64_t size,
                       uint64_t *address) {
    bool found = false;
    pthread_mutex_lock(&stream->lock);
    for (struct op *op = stream->head; op && !found; op = op->next)
        if (op->kind == OP_FREE && op->release.pool == pool && op->release.size == size) {
            op->kind = OP_NOTHING;
            *address = op->release.address;
            found = true;
        }
    pthread_mutex_unlock(&stream->lock);
    return found;
}

CUresult stream_submit(struct stream *stream, struct op *op, uint64_t *number) {
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    if (number) *number = 0;
    if (stream->capture) return capture_submit(stream, op);
    CUresult allowed = capture_allows(stream);
    if (allowed != CUDA_SUCCESS) {
        op_free(op);
        return allowed;
    }
    struct before list[BEFORE_ROOM];
    size_t count;
    CUresult result = CUDA_SUCCESS;
    wait_for_most(stream, list, &count);
    for (size_t i = 0; i < count; i++) {
        if (result == CUDA_SUCCESS)
            result = push_wait(stream, list[i].stream, list[i].number);
        else
            stream_unref(list[i].stream);
    }
    bool done = count == 0 && done_now(stream, op);
    if (result == CUDA_SUCCESS && !done) return push(stream, op, number);
    op_free(op);
    return result;
}

void stream_settle(struct stream *stream) {
    struct before list[BEFORE_ROOM];
    size_t count;
    uint64_t number;
    wait_for_most(stream, list, &count);
    for (size_t i = 0; i < count; i++) {
        stream_wait(list[i].stream, list[i].number);
        stream_unref(list[i].stream);
    }
    if (stream_pending(stream, &number)) stream_wait(stream, number);
}

CUresult stream_synchronize(struct stream *stream) {
    CUresult allowed = capture_forbids(stream);
    if (allowed != CUDA_SUCCESS) return allowed;
    stream_settle(stream);
    print_flush(stream->context);
    pool_synchronized(stream->context->device);
    return (CUresult)atomic_load(&stream->context->error);
}

/* ---- which stream a handle means ---- */

/* A thread's own default streams, one per context; they live as long as the context. */
static _Thread_local struct own_stream {
    struct stream *stream;
    unsigned long long id;
    struct context *context;
} own[SIM_MAX_CARDS];

static CUresult own_stream(struct context *context, struct stream **out) {
    struct own_stream *place = NULL;
    for (int i = 0; i < SIM_MAX_CARDS; i++) {
        struct own_stream *entry = &own[i];
        bool live =
            handle_kind_of(entry->stream) == HANDLE_STREAM && entry->stream->id == entry->id;
        if (live && entry->context == context) {
            *out = entry->stream;
            return CUDA_SUCCESS;
        }
        if (!live && !place) place = entry;
    }
    if (!place) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = stream_create(context, CU_STREAM_DEFAULT, 0, false, out);
    if (result == CUDA_SUCCESS) *place = (struct own_stream){*out, (*out)->id, context};
    return result;
}

CUresult stream_resolve(CUstream handle, bool per_thread, struct context *context,
                        struct stream **out) {
    if (handle == CU_STREAM_LEGACY || (handle == NULL && !per_thread)) {
        *out = context->legacy;
        return CUDA_SUCCESS;
    }
    if (handle == CU_STREAM_PER_THREAD || handle == NULL) return own_stream(context, out);
    if (handle_kind_of(handle) != HANDLE_STREAM) return CUDA_ERROR_INVALID_HANDLE;
    *out = (struct stream *)handle;
    return CUDA_SUCCESS;
}
