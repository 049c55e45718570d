/* Frames over a socket. What the client may not have got is kept, for a connection that comes after
 * this one. */
#define _GNU_SOURCE
#include "executor/session/session.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/descriptor.h"
#include "executor/moves/moves.h"

#define INPUT_BYTES (4u << 20)
#define OUTPUT_BYTES (256u << 10)
#define KEPT_REPLIES 1024
#define TELL_BYTES (1u << 20)
#define TELL_CALLS 512

static uint8_t *input;
static uint64_t input_head, input_tail;
static uint64_t told; /* that the client knows to be taken */
static size_t bytes_since_told;

/* Under session.out_lock. */
static uint8_t output[OUTPUT_BYTES];
static size_t output_bytes;
static struct reply kept[KEPT_REPLIES];
static unsigned kept_count;

/* ---- sending ---- */

/* Should it fail, the loop finds out, and what is kept is sent again. */
static void send_parts(struct iovec *parts, size_t count) {
    if (session.connection >= 0) descriptor_send_all(session.connection, parts, count, -1, 0);
}

static void stream_flush(void) {
    if (output_bytes == 0) return;
    struct iovec part = {output, output_bytes};
    output_bytes = 0;
    send_parts(&part, 1);
}

static void stream_emit(const struct wire_header *header, const void *head, size_t head_bytes,
                        const void *data, size_t bytes) {
    size_t whole = sizeof *header + head_bytes + bytes;
    if (whole > OUTPUT_BYTES / 4) {
        stream_flush();
        struct iovec parts[] = {{(void *)(uintptr_t)header, sizeof *header},
                                {(void *)(uintptr_t)head, head_bytes},
                                {(void *)(uintptr_t)data, bytes}};
        send_parts(parts, 3);
        return;
    }
    if (output_bytes + whole > OUTPUT_BYTES) stream_flush();
    memcpy(output + output_bytes, header, sizeof *header);
    if (head_bytes) memcpy(output + output_bytes + sizeof *header, head, head_bytes);
    if (bytes) memcpy(output + output_bytes + sizeof *header + head_bytes, data, bytes);
    output_bytes += whole;
}

static void emit_reply(const struct reply *reply) {
    struct wire_header header = reply_header(reply);
    stream_emit(&header, &reply->head, sizeof reply->head, reply->data, reply->bytes);
}

static void stream_reply(struct reply *reply, bool beside) {
    /* a client that never says what it got */
    if (kept_count == KEPT_REPLIES) session_end(EXIT_VIOLATION);
    if (!reply->owned) {
        uint8_t *copy = reply->bytes ? session_reply_take(reply->bytes) : NULL;
        if (reply->bytes && copy == NULL) session_end(EXIT_VIOLATION);
        if (reply->bytes) memcpy(copy, reply->data, reply->bytes);
        reply->data = copy;
    }
    kept[kept_count++] = *reply;
    emit_reply(reply);
    if (beside) {
        stream_flush();
    } else {
        told = session.taken; /* a reply says so as well */
        bytes_since_told = 0;
    }
}

static bool named(uint64_t seq, const uint64_t *missing, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (missing[i] == seq) return true;
    return false;
}

void stream_forget(uint64_t received, uint64_t until, const uint64_t *missing, size_t count) {
    pthread_mutex_lock(&session.out_lock);
    unsigned left = 0;
    for (unsigned i = 0; i < kept_count; i++)
        if (kept[i].seq <= received ||
            (kept[i].seq <= until && !named(kept[i].seq, missing, count)))
            session_reply_give(kept[i].data, kept[i].bytes);
        else
            kept[left++] = kept[i];
    kept_count = left;
    pthread_mutex_unlock(&session.out_lock);
}

/* ---- connections ---- */

bool stream_open(void) { return (input = doubled(INPUT_BYTES)) != NULL; }

void stream_reset(void) {
    output_bytes = 0;
    input_head = input_tail = 0;
}

void stream_resume(uint64_t received) {
    stream_forget(received, received, NULL, 0);
    pthread_mutex_lock(&session.out_lock);
    for (unsigned i = 0; i < kept_count; i++) emit_reply(&kept[i]);
    callbacks_again();
    stream_flush();
    pthread_mutex_unlock(&session.out_lock);
}

const struct reply *stream_kept(unsigned index) { return index < kept_count ? &kept[index] : NULL; }

bool stream_keep(const struct reply *reply) {
    if (kept_count == KEPT_REPLIES) return false;
    kept[kept_count] = *reply;
    kept[kept_count].owned = true;
    kept[kept_count].data = reply->bytes != 0 ? session_reply_take(reply->bytes) : NULL;
    if (reply->bytes != 0 && kept[kept_count].data == NULL) return false;
    if (reply->bytes != 0) memcpy(kept[kept_count].data, reply->data, reply->bytes);
    kept_count++;
    return true;
}

/* ---- receiving ---- */

/* Has the frames carried out that are there. */
static void carry_out(void) {
    while (input_tail - input_head >= sizeof(struct wire_header)) {
        struct wire_header header;
        memcpy(&header, input + input_head % INPUT_BYTES, sizeof header);
        if (header.len > WIRE_MAX_PAYLOAD) session_violation("a frame is too long");
        if (input_tail - input_head < sizeof header + header.len) return;
        gate_look();
        session_frame(&header, input + (input_head + sizeof header) % INPUT_BYTES);
        input_head += sizeof header + header.len;
        bytes_since_told += sizeof header + header.len;
    }
}

/* How far we are, so that the client may forget what it sent. Under session.out_lock. */
static void tell_progress(void) {
    if (session.taken == told) return;
    if (bytes_since_told < TELL_BYTES && session.taken - told < TELL_CALLS) return;
    struct wire_header header = {.op = WIRE_PROGRESS, .seq = session.taken};
    stream_emit(&header, NULL, 0, NULL, 0);
    told = session.taken;
    bytes_since_told = 0;
}

static void stream_serve(void) {
    for (;;) {
        gate_enter();
        carry_out();
        gate_leave();
        if (input_head == input_tail) input_head = input_tail = 0; /* where the cache is warm */
        pthread_mutex_lock(&session.out_lock);
        tell_progress();
        stream_flush();
        pthread_mutex_unlock(&session.out_lock);
        ssize_t got = recv(session.connection, input + input_tail % INPUT_BYTES,
                           INPUT_BYTES - (input_tail - input_head), 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            connection_await();
        else
            input_tail += (uint64_t)got;
    }
}

const struct transport transport_stream = {
    .emit = stream_emit,
    .reply = stream_reply,
    .flush = stream_flush,
    .serve = stream_serve,
};
