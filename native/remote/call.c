/* Calls and their replies, over any transport. A thread that waits for a reply reads for all
 * threads and hands other replies over. */
#define _GNU_SOURCE
#include "client.h"

#define MOST_BYTES (256u << 10) /* per call, except for data that stays in the program's memory */

/* ---- the reader ---- */

bool reading_start(struct link *link) {
    bool nobody = false;
    if (!thread_alone()) return atomic_compare_exchange_strong(&link->reading, &nobody, true);
    if (atomic_load_explicit(&link->reading, memory_order_relaxed)) return false;
    atomic_store_explicit(&link->reading, true, memory_order_relaxed);
    return true;
}

void reading_stop(struct link *link) {
    atomic_store_explicit(&link->reading, false,
                          thread_alone() ? memory_order_relaxed : memory_order_seq_cst);
    if (atomic_load(&link->sleeping) == 0) return;
    pthread_mutex_lock(&link->receive_lock);
    pthread_cond_broadcast(&link->received);
    pthread_mutex_unlock(&link->receive_lock);
}

void reading_await(struct link *link) {
    atomic_fetch_add(&link->sleeping, 1);
    if (atomic_load(&link->reading)) pthread_cond_wait(&link->received, &link->receive_lock);
    atomic_fetch_sub(&link->sleeping, 1);
}

void reading_take_part(struct link *link) {
    if (!reading_start(link)) {
        reading_await(link);
        return;
    }
    pthread_mutex_unlock(&link->receive_lock);
    link->transport->receive(link);
    reading_stop(link);
    pthread_mutex_lock(&link->receive_lock);
}

/* ---- replies ---- */

uint64_t call_received(struct link *link) {
    pthread_mutex_lock(&link->receive_lock);
    uint64_t received = link->last_reply;
    for (const struct call *call = link->waiting; call != NULL; call = call->next)
        if (call->seq <= received) received = call->seq - 1;
    pthread_mutex_unlock(&link->receive_lock);
    return received;
}

/* Under receive_lock. */
static struct call *find_waiting(struct link *link, uint64_t seq) {
    struct call *call = link->waiting;
    while (call != NULL && call->seq != seq) call = call->next;
    return call;
}

struct call *call_waiting(struct link *link, uint64_t seq) {
    pthread_mutex_lock(&link->receive_lock);
    struct call *call = find_waiting(link, seq);
    pthread_mutex_unlock(&link->receive_lock);
    return call;
}

void call_reply_noted(struct link *link, uint64_t seq, uint32_t pending) {
    if (seq > atomic_load(&link->taken)) atomic_store(&link->taken, seq); /* calls start in order */
    uint32_t none = 0;
    if (pending & WIRE_PRINTED) atomic_store(&link->printed, true);
    pending &= ~WIRE_PRINTED;
    if (pending != 0) atomic_compare_exchange_strong(&link->pending_error, &none, pending);
}

static void deliver(struct call *call, const struct wire_reply *reply, const uint8_t *data,
                    size_t bytes) {
    call->result = (CUresult)reply->result;
    if (call->into != NULL) {
        call->into_got = bytes < call->into_bytes ? bytes : call->into_bytes;
        memcpy(call->into, data, call->into_got);
    } else {
        call->reply = bytes <= sizeof call->small ? call->small : malloc(bytes);
        call->reply_bytes = call->reply == NULL ? 0 : bytes;
        if (call->reply_bytes) memcpy(call->reply, data, bytes);
        call->in = (struct reader){call->reply, call->reply_bytes, false};
    }
}

void call_arrived(struct link *link, struct call *call) {
    if (call->done) return;
    call->done = true;
    link->arrived++;
    link->outstanding -= call->asked_bytes;
}

void call_dispatch(struct link *link, const struct wire_header *header, const uint8_t *payload,
                   struct call *mine) {
    if (header->op == WIRE_CALLBACK && header->len == sizeof(struct wire_callback)) {
        struct wire_callback callback;
        memcpy(&callback, payload, sizeof callback);
        callback_arrived(link, header->seq, &callback);
        return;
    }
    if (header->op == WIRE_PROGRESS) {
        call_reply_noted(link, header->seq, 0);
        return;
    }
    if (header->op != WIRE_REPLY || header->len < sizeof(struct wire_reply)) return;
    struct wire_reply reply;
    memcpy(&reply, payload, sizeof reply);
    call_reply_noted(link, header->seq, reply.pending);
    size_t bytes = header->len - sizeof reply;
    const uint8_t *data = payload + sizeof reply;
    if (mine != NULL && mine->seq == header->seq) {
        deliver(mine, &reply, data, bytes);
        mine->done = true;
        return;
    }
    pthread_mutex_lock(&link->receive_lock);
    struct call *call = find_waiting(link, header->seq);
    if (call != NULL && call->done) call = NULL; /* answered twice: the first reply counts */
    if (call != NULL) {
        deliver(call, &reply, data, bytes);
        call_arrived(link, call);
    }
    if (call != NULL && atomic_load(&link->sleeping)) /* this thread may go on reading for long */
        pthread_cond_broadcast(&link->received);
    pthread_mutex_unlock(&link->receive_lock);
}

/* ---- calls ---- */

bool call_control(struct link *link, uint16_t op, uint64_t seq, const void *payload, size_t bytes) {
    size_t frame = sizeof(struct wire_header) + bytes;
    uint8_t *at = link_room(link, frame);
    if (at == NULL) return false;
    put_header(at, op, 0, (uint32_t)bytes, seq);
    if (bytes) memcpy(at + sizeof(struct wire_header), payload, bytes);
    link->transport->publish(link, frame, NULL);
    return true;
}

/* The executor runs calls in the context that was set last. */
static bool set_context(struct link *link, uint64_t context) {
    uint64_t wanted =
        context && links[wire_server(context)] == link ? wire_without_server(context) : 0;
    if (wanted == link->wire_context) return true;
    if (!call_control(link, WIRE_SET_CONTEXT, link->next_seq, &wanted, sizeof wanted)) return false;
    link->next_seq++;
    link->wire_context = wanted;
    return true;
}

/* The same for the capture mode of the program's thread. */
static bool set_mode(struct link *link) {
    uint64_t wanted = capture_mode;
    if (wanted == link->wire_mode) return true;
    if (!call_control(link, OP_CAPTURE_MODE, link->next_seq, &wanted, sizeof wanted)) return false;
    link->next_seq++;
    link->wire_mode = wanted;
    return true;
}

/* Wait until a stream's executor may be asked for this much more: what it keeps for us is bounded.
 */
static void await_window(struct link *link, size_t bytes) {
    pthread_mutex_lock(&link->receive_lock);
    while (link->outstanding != 0 && link->outstanding + bytes > WIRE_REPLY_WINDOW &&
           !atomic_load_explicit(&link->dead, memory_order_relaxed)) {
        if (!atomic_load_explicit(&link->broken, memory_order_relaxed)) {
            reading_take_part(link);
            continue;
        }
        pthread_mutex_unlock(&link->receive_lock);
        connection_mend(link);
        pthread_mutex_lock(&link->receive_lock);
    }
    link->outstanding += bytes;
    pthread_mutex_unlock(&link->receive_lock);
}

CUresult call_begin(struct call *call, size_t bytes, enum call_mode mode) {
    uint64_t context = context_current();
    if (call->link == NULL) call->link = context ? links[wire_server(context)] : links[0];
    struct link *link = call->link;
    if (bytes > MOST_BYTES) return CUDA_ERROR_INVALID_VALUE;
    if (mode == CALL_POSTED) {
        CUresult error = context_error();
        if (error != CUDA_SUCCESS) return error;
    }
    if (link->transport != &transport_stream) call->asked_bytes = 0;
    if (call->asked_bytes != 0) await_window(link, call->asked_bytes);
    link_lock(link);
    if (!pthread_equal(link->owner, pthread_self()))
        atomic_store_explicit(&link->concurrent, true, memory_order_relaxed);
    size_t frame = sizeof(struct wire_header) + bytes;
    uint8_t *at = NULL;
    if (!atomic_load_explicit(&link->dead, memory_order_relaxed) && set_context(link, context) &&
        (!atomic_load_explicit(&capture_modes, memory_order_relaxed) || set_mode(link)))
        at = mode == CALL_WAITS ? link->transport->place_waiting(link, frame)
                                : link_room(link, frame);
    if (at == NULL) {
        link_unlock(link);
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    }
    call->header = (void *)at;
    call->out = (struct writer){at + sizeof(struct wire_header), bytes, false};
    call->seq = link->next_seq++;
    call->waits = mode == CALL_WAITS;
    return CUDA_SUCCESS;
}

/* Write the header; return the size of the frame. */
static inline size_t seal(struct call *call) {
    size_t inside = (size_t)(call->out.at - (uint8_t *)(call->header + 1));
    bool concurrent = atomic_load_explicit(&call->link->concurrent, memory_order_relaxed);
    put_header(call->header, call->op,
               (call->waits ? WIRE_REPLY_WANTED : 0) | (concurrent ? WIRE_CONCURRENT : 0),
               (uint32_t)(inside + call->external_bytes), call->seq);
    return sizeof(struct wire_header) + inside;
}

void call_publish(struct call *call) {
    call->link->transport->publish(call->link, seal(call), call);
}

CUresult call_post(struct call *call) {
    struct link *link = call->link;
    link->transport->post(link, seal(call), call);
    link_unlock(link);
    return CUDA_SUCCESS;
}

CUresult call_send(struct call *call) {
    struct link *link = call->link;
    pthread_mutex_lock(&link->receive_lock);
    call->next = link->waiting;
    link->waiting = call;
    pthread_mutex_unlock(&link->receive_lock);
    call_publish(call);
    if (!link->transport->flush(link)) connection_recover(link);
    link_unlock(link);
    return CUDA_SUCCESS;
}

/* Return whether the call reports errors of earlier ones. */
static bool synchronises(uint16_t op) {
    switch (op) {
    case OP_cuCtxSynchronize:
    case OP_cuCtxSynchronize_v2:
    case OP_cuStreamSynchronize:
    case OP_cuStreamQuery:
    case OP_cuEventSynchronize:
    case OP_cuEventQuery:
    case OP_COPY_OUT:
    case OP_COPY_OUT_SHARED:
    case OP_COPY_HOST_OUT:
    case OP_COPY_RECT_OUT:
    case OP_COPY_ARRAY_OUT: return true;
    default: return false;
    }
}

CUresult call_concluded(struct call *call) {
    struct link *link = call->link;
    if (!call->done) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (call->result == CUDA_SUCCESS && synchronises(call->op) &&
        atomic_load_explicit(&link->pending_error, memory_order_relaxed))
        call->result = (CUresult)atomic_exchange(&link->pending_error, 0);
    if (call->result != CUDA_SUCCESS) context_failed(call->result);
    if (atomic_load_explicit(&link->printed, memory_order_relaxed) && call->op != OP_PRINTED)
        printed_show(link);
    return call->result;
}

CUresult call_wait(struct call *call) {
    struct link *link = call->link;
    pthread_mutex_lock(&link->receive_lock);
    while (!call->done && !atomic_load_explicit(&link->dead, memory_order_relaxed)) {
        if (!atomic_load_explicit(&link->broken, memory_order_relaxed)) {
            reading_take_part(link);
            continue;
        }
        pthread_mutex_unlock(&link->receive_lock);
        connection_mend(link);
        pthread_mutex_lock(&link->receive_lock);
    }
    struct call **at = &link->waiting;
    while (*at != call) at = &(*at)->next;
    *at = call->next;
    if (call->seq > link->last_reply) link->last_reply = call->seq;
    pthread_mutex_unlock(&link->receive_lock);
    return call_concluded(call);
}

CUresult call_exchange(struct call *call) { return call->link->transport->exchange(call); }

void call_end(struct call *call) {
    if (call->reply != NULL && call->reply != call->small) free(call->reply);
    call->reply = NULL;
}

CUresult call_ask(struct call *call) {
    CUresult result = call_exchange(call);
    call_end(call);
    return result;
}
