/* Parts of a written-down session on a descriptor: {what u32, head u32, bytes u64} and as many
 * bytes. The digest finds damage. It is no seal: whoever carries the bytes may read them. */
#define _GNU_SOURCE
#include "executor/moves/moves.h"

#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/descriptor.h"

#define BUFFER_BYTES (64u << 10)
#define STALLED_MS 30000

struct part_header {
    uint32_t what, head; /* so many of the bytes are digested first */
    uint64_t bytes;
};

static uint64_t mixed(uint64_t state, uint64_t word) {
    state = (state ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return state ^ state >> 32;
}

/* Of memory, in lanes: a processor works on them at the same time. */
static void mix_blocks(uint64_t lanes[MOVED_LANES], const uint8_t *bytes, size_t blocks) {
    uint64_t words[MOVED_LANES];
    for (; blocks != 0; bytes += sizeof words, blocks--) {
        memcpy(words, bytes, sizeof words);
        for (unsigned i = 0; i < MOVED_LANES; i++) lanes[i] = mixed(lanes[i], words[i]);
    }
}

void moved_digest(const uint8_t *bytes, uint64_t count, uint64_t lanes[MOVED_LANES]) {
    for (unsigned i = 0; i < MOVED_LANES; i++) lanes[i] = i;
    mix_blocks(lanes, bytes, count / (MOVED_LANES * sizeof *lanes));
}

static uint64_t long_digest(uint64_t state, const uint8_t *bytes, size_t blocks) {
    uint64_t lanes[MOVED_LANES] = {state, state ^ 1, state ^ 2, state ^ 3};
    mix_blocks(lanes, bytes, blocks);
    for (unsigned i = 1; i < MOVED_LANES; i++) lanes[0] = mixed(lanes[0], lanes[i]);
    return lanes[0];
}

static uint64_t digest(uint64_t state, const uint8_t *bytes, size_t count) {
    uint64_t word;
    size_t blocks = count / (4 * sizeof word);
    if (blocks > 4) {
        state = long_digest(state, bytes, blocks);
        bytes += blocks * 4 * sizeof word;
        count -= blocks * 4 * sizeof word;
    }
    for (; count >= sizeof word; bytes += sizeof word, count -= sizeof word) {
        memcpy(&word, bytes, sizeof word);
        state = mixed(state, word);
    }
    word = count;
    for (size_t i = 0; i < count; i++) word = word << 8 | bytes[i];
    return count == 0 ? state : (state ^ word) * UINT64_C(0xff51afd7ed558ccd);
}

static void send_bytes(struct moved_stream *to, const void *bytes, size_t count) {
    struct iovec part = {(void *)(uintptr_t)bytes, count};
    if (!to->bad && count != 0) to->bad = !descriptor_send_all(to->descriptor, &part, 1, -1, 0);
}

bool moved_flush(struct moved_stream *to) {
    send_bytes(to, to->buffer, to->have);
    to->have = 0;
    return !to->bad;
}

static void put(struct moved_stream *to, const void *bytes, size_t count) {
    if (to->buffer == NULL && (to->buffer = malloc(BUFFER_BYTES)) == NULL) to->bad = true;
    if (to->bad || count == 0) return;
    if (to->have + count > BUFFER_BYTES) moved_flush(to);
    if (count > BUFFER_BYTES / 2) {
        moved_flush(to);
        send_bytes(to, bytes, count);
        return;
    }
    memcpy(to->buffer + to->have, bytes, count);
    to->have += count;
}

void moved_put(struct moved_stream *to, enum moved_part part, const void *head, size_t head_bytes,
               const void *data, size_t bytes) {
    struct part_header header = {part, (uint32_t)head_bytes, head_bytes + bytes};
    uint64_t end = to->digest;
    if (part == PART_END) {
        header.bytes = sizeof end;
        head = &end;
        head_bytes = sizeof end;
    }
    to->digest = digest(to->digest, (const uint8_t *)&header, sizeof header);
    to->digest = digest(to->digest, head, head_bytes);
    to->digest = digest(to->digest, data, bytes);
    to->bytes += sizeof header + head_bytes + bytes;
    put(to, &header, sizeof header);
    put(to, head, head_bytes);
    put(to, data, bytes);
}

void moved_put_image(struct moved_stream *to, const uint8_t digest[32], const uint8_t *bytes,
                     uint64_t total) {
    for (uint64_t at = 0; at < total && !to->bad; at += WIRE_MAX_BULK) {
        uint64_t left = total - at;
        struct wire_image part = {.total = total,
                                  .offset = at,
                                  .bytes = left < WIRE_MAX_BULK ? (uint32_t)left : WIRE_MAX_BULK};
        memcpy(part.digest, digest, sizeof part.digest);
        moved_put(to, PART_IMAGE, &part, sizeof part, bytes + at, part.bytes);
    }
}

void moved_put_descriptor(struct moved_stream *to, enum moved_part part, const void *head,
                          size_t head_bytes, int descriptor) {
    struct part_header header = {part, (uint32_t)head_bytes, head_bytes};
    to->digest = digest(to->digest, (const uint8_t *)&header, sizeof header);
    to->digest = digest(to->digest, head, head_bytes);
    to->bytes += sizeof header + head_bytes;
    struct iovec parts[] = {{&header, sizeof header}, {(void *)(uintptr_t)head, head_bytes}};
    if (moved_flush(to) &&
        !descriptor_send_all(to->descriptor, parts, head_bytes != 0 ? 2 : 1, descriptor, 0))
        to->bad = true;
}

static bool receive(struct moved_stream *from, void *to, size_t bytes) {
    return bytes == 0 ||
           descriptor_receive_all(from->descriptor, to, bytes, NULL, clock_now_ms() + STALLED_MS);
}

bool moved_get(struct moved_stream *from, enum moved_part *part, uint8_t *payload, size_t *bytes) {
    struct part_header header;
    uint64_t before = from->digest, end;
    if (from->passed >= 0) close(from->passed);
    if (!descriptor_receive_all(from->descriptor, &header, sizeof header, &from->passed,
                                clock_now_ms() + STALLED_MS) ||
        header.bytes > MOVED_PART_BYTES || header.what == 0 || header.what > PART_END ||
        header.head > header.bytes || !receive(from, payload, header.bytes))
        return false;
    *part = (enum moved_part)header.what;
    *bytes = header.bytes;
    from->digest = digest(before, (const uint8_t *)&header, sizeof header);
    from->digest = digest(from->digest, payload, header.head);
    from->digest = digest(from->digest, payload + header.head, header.bytes - header.head);
    from->bytes += sizeof header + header.bytes;
    if (*part != PART_END) return true;
    memcpy(&end, payload, sizeof end);
    return header.bytes == sizeof end && end == before;
}
