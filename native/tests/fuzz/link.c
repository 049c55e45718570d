/* Packets from a network and over a link. For any input only whole TCP segments between the two
 * addresses pass, and no byte beyond a packet is read. System calls are faked.
 *
 * Input: a byte, then pieces: source (low bit: link or network), length (two bytes), bytes.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint8_t *input;
static size_t left;

static ssize_t played_read(int fd, void *into, size_t room);
static ssize_t played_recv(int fd, void *into, size_t room, int flags);
static ssize_t played_write(int fd, const void *from, size_t bytes);
static ssize_t played_send(int fd, const void *from, size_t bytes, int flags);
static int played_close(int fd) { return fd < 0; }

#define read played_read
#define recv played_recv
#define write played_write
#define send played_send
#define close played_close
#define main link_main
#include "../../link/main.c"
#include "../../link/packet.c"
#undef read
#undef recv
#undef write
#undef send
#undef close
#undef main

enum { OWN = 0x0a000001, OTHER = 0x0a000002 };

bool device_open(struct device *at, int network, uint32_t address) {
    return at == NULL && network == 0 && address == 0;
}
bool guard_enter(void) { return false; }

/* A refusal comes from the packet's destination. */
static void check(const void *packet, size_t bytes, uint32_t from, uint32_t to) {
    struct segment segment;
    if (!packet_read(packet, bytes, &segment) || segment.to != to) abort();
    bool refusal = to == OWN && segment.resets && bytes == PACKET_HEADERS;
    if (segment.from != from && !refusal) abort();
}

static ssize_t taken(void *into, size_t room) {
    if (left == 0 || room == 0) return -1;
    size_t bytes = left < room ? left : room;
    memcpy(into, input, bytes);
    input += bytes;
    left -= bytes;
    errno = EAGAIN;
    return (ssize_t)bytes;
}

static ssize_t played_read(int fd, void *into, size_t room) {
    return taken(into, room * (fd == 7));
}
static ssize_t played_recv(int fd, void *into, size_t room, int flags) {
    return taken(into, room * (fd == 8 && flags != 0));
}

static ssize_t played_write(int fd, const void *from, size_t bytes) {
    if (fd == 7) check(from, bytes, OTHER, OWN);
    return (ssize_t)bytes;
}

static ssize_t played_send(int fd, const void *from, size_t bytes, int flags) {
    const uint8_t *at = from;
    if (fd != 8 || flags == 0) abort();
    for (size_t i = 0; i < bytes;) { /* all of it, as queued */
        size_t length = (size_t)at[i] << 8 | at[i + 1];
        if (length != 0) check(at + i + PREFIX, length, OWN, OTHER);
        i += PREFIX + length;
    }
    return (ssize_t)bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (struct peer *peer = peers; peer < peers + MAX_PEERS; peer++) {
        peer->address = 0;
        peer->stream = peer->next = -1;
    }
    own = OWN;
    dropped = 2; /* without messages */
    device = (struct device){7, -1};
    take(OTHER, 8, false);
    begin(peer_of(OTHER), 0);
    for (size_t at = 0; at + 3 <= size;) {
        size_t bytes = (size_t)data[at + 1] << 8 | data[at + 2];
        bool linked = data[at] & 1;
        at += 3;
        if (bytes > size - at) bytes = size - at;
        input = data + at;
        left = bytes;
        at += bytes;
        struct peer *peer = peer_of(OTHER);
        if (peer->stream < 0) break;
        if (!linked)
            out_of_network();
        else
            while (left > 0 && peer->stream >= 0) hear(peer);
        if (peer->stream >= 0) flush(peer);
    }
    return 0;
}
