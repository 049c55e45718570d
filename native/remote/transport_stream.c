/* Frames over a socket, sent in batches from a private ring. The ring keeps what the executor has
 * not taken yet, so a new connection can continue where the old one broke. */
#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/descriptor.h"

#define RING_BYTES (4u << 20)
#define INPUT_BYTES (256u << 10)
#define BATCH_BYTES (32u << 10)
#define FIRST_BATCH_NS 20000 /* how long the first call after a rest waits for others */
#define BATCH_NS 50000       /* interval at which it looks for more calls */
#define IDLE_BATCHES 4

/* ---- the ring ---- */

/* Forget what has been taken. Under send_lock. */
static void trim(struct link *link) {
    struct stream_state *stream = &link->stream;
    uint64_t taken = atomic_load_explicit(&link->taken, memory_order_acquire);
    uint64_t sent = atomic_load_explicit(&stream->sent, memory_order_acquire);
    while (stream->acknowledged < sent) {
        const struct wire_header *header =
            (const void *)(link->ring + stream->acknowledged % RING_BYTES);
        if (header->seq > taken && header->op >= WIRE_SET_CONTEXT) return;
        uint64_t end = stream->acknowledged + sizeof *header + header->len;
        if (stream->external_first != stream->external_end) {
            struct external *external = &stream->externals[stream->external_first % MAX_EXTERNALS];
            if (external->start == stream->acknowledged) {
                end = external->end;
                if (end > sent || stream->external_sent == stream->external_first) return;
                stream->external_first++;
            }
        }
        if (end > sent) return; /* partly sent */
        stream->acknowledged = end;
    }
}

/* Return the next data outside the ring whose frame ends before `tail`, or NULL. */
static struct external *next_external(struct stream_state *stream, uint64_t tail) {
    if (stream->external_sent == atomic_load_explicit(&stream->external_end, memory_order_acquire))
        return NULL;
    struct external *external = &stream->externals[stream->external_sent % MAX_EXTERNALS];
    return external->end > tail ? NULL : external; /* written after the check */
}

/* Send everything that waits, and what is added meanwhile. Under feed_lock. False: it broke. */
static bool feed(struct link *link) {
    struct stream_state *stream = &link->stream;
    for (;;) {
        uint64_t tail = atomic_load_explicit(&link->tail, memory_order_acquire);
        uint64_t from = stream->sent;
        struct external *external = next_external(stream, tail);
        if (from == tail && external == NULL) return true;
        uint64_t until = external != NULL ? external->end : tail;
        struct iovec parts[2] = {{link->ring + from % RING_BYTES, until - from}};
        size_t count = 1;
        if (external != NULL) {
            parts[1] = (struct iovec){(void *)(uintptr_t)(external->data + stream->external_offset),
                                      external->bytes - stream->external_offset};
            count = 2;
        }
        ssize_t sent = descriptor_send(link->fd, parts, count, NULL, 0, 0);
        if (sent < 0 && errno == EINTR) continue;
        /* a copy from memory that does not exist: locally this is a segmentation fault */
        if (sent < 0 && errno == EFAULT) abort();
        if (sent <= 0) return false;
        size_t inside = (size_t)sent < parts[0].iov_len ? (size_t)sent : parts[0].iov_len;
        atomic_store_explicit(&stream->sent, from + inside, memory_order_release);
        if (external == NULL) continue;
        stream->external_offset += (size_t)sent - inside;
        if (stream->external_offset == external->bytes && from + inside == external->end) {
            stream->external_offset = 0;
            stream->external_sent++;
        }
    }
}

bool stream_resume(struct link *link) {
    struct stream_state *stream = &link->stream;
    trim(link);
    stream->sent = stream->acknowledged;
    stream->external_sent = stream->external_first;
    stream->external_offset = 0;
    stream->input_head = stream->input_tail = stream->skip = 0;
    atomic_store(&link->broken, false);
    return feed(link);
}

static bool unsent_bytes(struct link *link) {
    return link->stream.sent != link->tail ||
           link->stream.external_sent != link->stream.external_end;
}

/* Send all that is written. Do nothing if another thread is sending and `wait` is false: that
 * thread continues until nothing is left. */
static bool fed(struct link *link, bool wait) {
    if (wait)
        pthread_mutex_lock(&link->stream.feed_lock);
    else if (pthread_mutex_trylock(&link->stream.feed_lock) != 0)
        return true;
    bool good = !atomic_load(&link->broken) && feed(link);
    pthread_mutex_unlock(&link->stream.feed_lock);
    return good;
}

static bool stream_flush(struct link *link) { return fed(link, true); }

/* ---- the flusher ---- */

/* Sends posted calls after a moment if no other call follows them: sooner if the GPU may be
 * idle. */
static void *flusher(void *argument) {
    struct link *link = argument;
    struct stream_state *stream = &link->stream;
    prctl(PR_SET_NAME, "egpu-flush");
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (!atomic_load(&link->dead)) {
        while (atomic_load(&stream->unsent) == 0 && !atomic_load(&link->dead)) {
            struct timespec second = {1, 0};
            syscall(SYS_futex, &stream->unsent, FUTEX_WAIT_PRIVATE, 0, &second, NULL, 0);
        }
        /* Waking up has taken part of the time, often more. Another sleep for the rest would take
         * as long again. */
        while (clock_now_ns() < atomic_load_explicit(&stream->unsent_since, memory_order_relaxed) +
                                    FIRST_BATCH_NS &&
               unsent_bytes(link))
            thread_pause();
        struct timespec batch = {0, 0};
        /* stay awake while calls keep coming: waking up costs the program time */
        for (int idle = 0; idle < IDLE_BATCHES; idle++) {
            if (batch.tv_nsec) nanosleep(&batch, NULL);
            batch.tv_nsec = BATCH_NS;
            if (!unsent_bytes(link) || atomic_load(&link->dead)) continue;
            /* it broke: under the first lock the first thread reconnects */
            if (!fed(link, false)) link_flush(link);
            idle = 0;
        }
        link_lock(link); /* no thread has written after it saw this one awake */
        if (!unsent_bytes(link) || atomic_load(&link->dead)) atomic_store(&stream->unsent, 0);
        link_unlock(link);
    }
    return NULL;
}

static bool stream_open(struct link *link) {
    link->ring = doubled(RING_BYTES);
    link->ring_mask = RING_BYTES - 1;
    link->stream.input = doubled(INPUT_BYTES);
    pthread_t thread;
    if (link->ring == NULL || link->stream.input == NULL ||
        pthread_create(&thread, NULL, flusher, link) != 0)
        return false;
    pthread_detach(thread);
    return true;
}

/* ---- sending ---- */

/* Wait until the executor has taken some more. Under send_lock. False: the lease is lost. */
static bool await_taken(struct link *link) {
    uint64_t before = link->stream.acknowledged;
    trim(link);
    if (link->stream.acknowledged != before) return true;
    if (atomic_load(&link->dead)) return false;
    if (!stream_flush(link)) connection_recover(link);
    pthread_mutex_lock(&link->receive_lock);
    reading_take_part(link);
    pthread_mutex_unlock(&link->receive_lock);
    if (atomic_load(&link->broken) && !atomic_load(&link->dead)) connection_recover(link);
    return true;
}

/* When all calls have been taken, use the ring from its start again: that part is in the cache.
 * Under send_lock. */
static void begin_again(struct link *link) {
    struct stream_state *stream = &link->stream;
    uint64_t tail = link->tail;
    if (tail % RING_BYTES < BATCH_BYTES || stream->sent != tail ||
        stream->external_sent != stream->external_end)
        return;
    if (atomic_load_explicit(&link->taken, memory_order_acquire) != link->next_seq - 1 ||
        pthread_mutex_trylock(&stream->feed_lock) != 0)
        return;
    stream->acknowledged = (tail + RING_BYTES - 1) / RING_BYTES * RING_BYTES;
    stream->external_first = stream->external_end;
    atomic_store_explicit(&link->tail, stream->acknowledged, memory_order_relaxed);
    atomic_store_explicit(&stream->sent, stream->acknowledged, memory_order_relaxed);
    pthread_mutex_unlock(&stream->feed_lock);
}

static bool stream_make_room(struct link *link, size_t frame) {
    begin_again(link);
    while (link->tail + frame - link->stream.acknowledged > RING_BYTES)
        if (!await_taken(link)) return false;
    /* Less than all the room: after some more frames try again to start over. */
    uint64_t all = link->stream.acknowledged + RING_BYTES, some = link->tail + frame + BATCH_BYTES;
    link->limit = some < all ? some : all;
    return true;
}

/* Tell the executor which replies it may forget: all that have come, since an earlier call may wait
 * for the GPU for long. Under send_lock. False: the lease is lost. */
static bool tell_received(struct link *link) {
    uint64_t words[1 + WIRE_MAX_MISSING], before;
    size_t missing = 0;
    pthread_mutex_lock(&link->receive_lock);
    bool news = link->arrived != link->stream.arrived_told;
    link->stream.arrived_told = link->arrived;
    words[0] = link->last_reply;
    for (const struct call *call = link->waiting; call != NULL; call = call->next)
        if (call->done && call->seq > words[0]) words[0] = call->seq;
    before = words[0];
    for (const struct call *call = link->waiting; call != NULL; call = call->next) {
        if (call->done || call->seq > words[0]) continue;
        if (call->seq <= before) before = call->seq - 1;
        if (missing++ < WIRE_MAX_MISSING) words[missing] = call->seq;
    }
    pthread_mutex_unlock(&link->receive_lock);
    bool named = missing != 0 && missing <= WIRE_MAX_MISSING;
    return !news || call_control(link, WIRE_RECEIVED, before, words,
                                 named ? (1 + missing) * sizeof *words : 0);
}

static uint8_t *stream_place_waiting(struct link *link, size_t frame) {
    if (!tell_received(link)) return NULL;
    uint8_t *at = link_room(link, frame);
    link->limit = 0; /* once the reply is there, all may have been taken */
    return at;
}

/* The call's data follows its frame and is sent from where it is. */
static void attach(struct link *link, size_t frame, const struct call *call) {
    struct stream_state *stream = &link->stream;
    while (stream->external_end - stream->external_first >= MAX_EXTERNALS)
        if (!await_taken(link)) return; /* nothing is sent any more */
    unsigned end = stream->external_end;
    stream->externals[end % MAX_EXTERNALS] =
        (struct external){link->tail, link->tail + frame, call->external, call->external_bytes};
    atomic_store_explicit(&stream->external_end, end + 1, memory_order_release);
}

/* Mark the frame as ready to send; return its end. */
static inline uint64_t stream_advance(struct link *link, size_t frame) {
    uint64_t tail = atomic_load_explicit(&link->tail, memory_order_relaxed) + frame;
    atomic_store_explicit(&link->tail, tail, memory_order_release);
    return tail;
}

static void stream_publish(struct link *link, size_t frame, const struct call *call) {
    if (call != NULL && call->external != NULL) attach(link, frame, call);
    stream_advance(link, frame);
}

static void stream_post(struct link *link, size_t frame, const struct call *call) {
    struct stream_state *stream = &link->stream;
    bool good = true;
    if (call->external != NULL) {
        stream_publish(link, frame, call);
        good = fed(link, true);
    } else if (stream_advance(link, frame) - stream->sent >= BATCH_BYTES) {
        good = fed(link, false);
    } else if (atomic_load_explicit(&stream->unsent, memory_order_relaxed) == 0) {
        atomic_store_explicit(&stream->unsent_since, clock_now_ns(), memory_order_relaxed);
        atomic_store(&stream->unsent, 1);
        syscall(SYS_futex, &stream->unsent, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    if (!good) connection_recover(link);
}

static CUresult stream_exchange(struct call *call) {
    call_send(call);
    return call_wait(call);
}

/* ---- receiving ---- */

/* Receive a long reply straight into the program's memory. True if it did. */
static bool receive_into(struct link *link, const struct wire_header *header, bool *failed) {
    struct stream_state *stream = &link->stream;
    if (header->op != WIRE_REPLY || header->len <= sizeof(struct wire_reply)) return false;
    uint64_t have = stream->input_tail - stream->input_head;
    size_t prefix = sizeof *header + sizeof(struct wire_reply);
    if (have < prefix || have >= sizeof *header + header->len) return false;
    struct call *call = call_waiting(link, header->seq);
    size_t bytes = header->len - sizeof(struct wire_reply);
    if (call == NULL || call->into == NULL || bytes > call->into_bytes) return false;
    size_t here = have - prefix;
    struct wire_reply reply;
    memcpy(&reply, stream->input + (stream->input_head + sizeof *header) % INPUT_BYTES,
           sizeof reply);
    memcpy(call->into, stream->input + (stream->input_head + prefix) % INPUT_BYTES, here);
    stream->input_head = stream->input_tail;
    while (here < bytes) {
        ssize_t got = recv(link->fd, (uint8_t *)call->into + here, bytes - here, MSG_WAITALL);
        if (got < 0 && (errno == EINTR || errno == EAGAIN) && !atomic_load(&link->dead)) continue;
        if (got <= 0) {
            *failed = true;
            return true;
        }
        here += (size_t)got;
    }
    call_reply_noted(link, header->seq, reply.pending);
    pthread_mutex_lock(&link->receive_lock);
    call->result = (CUresult)reply.result;
    call->into_got = bytes;
    call_arrived(link, call);
    pthread_mutex_unlock(&link->receive_lock);
    return true;
}

/* Receive the frame at the start of the input. False: it is incomplete or invalid. */
static bool receive_frame(struct link *link, bool *failed) {
    struct stream_state *stream = &link->stream;
    uint64_t have = stream->input_tail - stream->input_head;
    struct wire_header header;
    if (have < sizeof header) return false;
    memcpy(&header, stream->input + stream->input_head % INPUT_BYTES, sizeof header);
    size_t frame = sizeof header + header.len;
    if (header.len > WIRE_MAX_PAYLOAD) *failed = true;
    if (*failed) return false;
    if (receive_into(link, &header, failed)) return !*failed;
    if (have < frame) {
        if (frame > INPUT_BYTES && have >= sizeof header + sizeof(struct wire_reply)) {
            /* A long reply that came again after a reconnect: no call waits for it any more. */
            stream->skip = frame - have;
            stream->input_head = stream->input_tail;
        }
        return false;
    }
    call_dispatch(link, &header, stream->input + (stream->input_head + sizeof header) % INPUT_BYTES,
                  NULL);
    stream->input_head += frame;
    return true;
}

static void stream_receive(struct link *link) {
    struct stream_state *stream = &link->stream;
    ssize_t got = recv(link->fd, stream->input + stream->input_tail % INPUT_BYTES,
                       INPUT_BYTES - (stream->input_tail - stream->input_head), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    bool failed = got <= 0;
    if (!failed) {
        uint64_t skipped = (uint64_t)got < stream->skip ? (uint64_t)got : stream->skip;
        stream->skip -= skipped;
        stream->input_head += skipped;
        stream->input_tail += (uint64_t)got;
    }
    for (bool more = !failed; more;) more = receive_frame(link, &failed);
    if (failed) atomic_store(&link->broken, true);
}

const struct transport transport_stream = {
    .open = stream_open,
    .make_room = stream_make_room,
    .place_waiting = stream_place_waiting,
    .publish = stream_publish,
    .post = stream_post,
    .flush = stream_flush,
    .exchange = stream_exchange,
    .receive = stream_receive,
    .copy_in = bulk_in_stream,
    .copy_out = bulk_out_stream,
};
