/* egpu-link: connects a network of executors with those of the same caller on other servers.
 *
 *     egpu-link CONTROL NETWORK ADDRESS
 *
 * CONTROL is the number of a unix SOCK_SEQPACKET socket, NETWORK that of the network's descriptor,
 * ADDRESS the network's own (hexadecimal, in 10.0.0.0/8). It sends R on CONTROL when the network
 * has its device. A message there is a letter, the address of another network (u32, big-endian) and
 * a descriptor, a stream to that network's link. L: we speak first; A: we answer, and say nothing
 * before. A daemon decides which peer that may be, and the stream's carrier makes it safe. When
 * CONTROL closes the program ends; the device stays.
 *
 * On a stream the length of each packet comes before it (u16, big-endian); 0 is a beat, one a
 * second. Only TCP between the two addresses passes. If a link is lost (closed, or silent for
 * SILENT_MS) all its connections are reset, since TCP by itself would wait forever: a packet to a
 * network without a link is refused, and idle connections are probed, so that they send one. A new
 * stream is used when none of them is left.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/descriptor.h"
#include "link.h"
#include "packet.h"

#define MAX_PEERS 64
#define BEAT_MS 1000
#define SILENT_MS 5000
#define RESET_MS 2000 /* how long a new stream waits for old connections */
#define LOOK_MS 20    /* interval of checks of these connections */
#define PREFIX 2
#define WAITING_BYTES (256u << 10)
#define AT_ONCE 64 /* packets, before other sources get a turn */

struct peer {
    uint32_t address;       /* 0: none */
    bool answers, heard_of; /* says nothing before it hears something */
    int stream, next; /* -1: none; `next` waits until its predecessor's connections have ended */
    int64_t heard, moved, since; /* ms; `since`: when `next` came */
    size_t got, start, end;
    uint8_t in[PREFIX + LINK_MTU], out[WAITING_BYTES];
};

static struct peer peers[MAX_PEERS];
static struct device device;
static uint32_t own;
static uint64_t dropped;

static void drop(void) {
    dropped++;
    if ((dropped & (dropped - 1)) == 0) /* each time the number doubles */
        fprintf(stderr, "egpu-link: dropped %llu packets: not TCP between linked networks\n",
                (unsigned long long)dropped);
}

static struct peer *peer_of(uint32_t address) {
    for (struct peer *peer = peers; peer < peers + MAX_PEERS; peer++)
        if (peer->address == address) return peer;
    return NULL;
}

static bool is_up(const struct peer *peer) {
    return peer->stream >= 0 && (peer->heard_of || !peer->answers);
}

static void into_network(const uint8_t *packet, size_t bytes) {
    if (write(device.tun, packet, bytes) < 0 && errno != EAGAIN) drop();
}

static void lose(struct peer *peer, const char *why) {
    fprintf(stderr, "egpu-link: lost a link: %s\n", why);
    close(peer->stream);
    peer->stream = -1;
}

/* ---- connections without a link ---- */

/* Probe each: its answer is refused. Return how many of them are `of` this network. */
static unsigned ask_unlinked(uint32_t of) {
    static char list[1u << 20];
    ssize_t bytes = 0, got;
    while ((size_t)bytes < sizeof list - 1 &&
           (got = pread(device.connections, list + bytes, sizeof list - 1 - (size_t)bytes, bytes)) >
               0)
        bytes += got;
    list[bytes] = '\0';
    unsigned count = 0;
    for (char *line = strchr(list, '\n'); line != NULL && line[1] != '\0';
         line = strchr(line + 1, '\n')) {
        unsigned from, to, from_port, to_port, state;
        if (sscanf(line, " %*u: %8x:%4x %8x:%4x %2x", &from, &from_port, &to, &to_port, &state) !=
            5)
            continue;
        from = be32toh(from), to = be32toh(to);
        bool waits =
            state == 2 || state == 3 || state == 6 || state == 10; /* SYN_SENT, …, LISTEN */
        if (waits || from != own || to == own || (to & LINK_MASK) != LINK_NETWORK) continue;
        const struct peer *peer = peer_of(to);
        if (peer != NULL && is_up(peer)) continue;
        struct segment segment = {
            .from = from, .to = to, .from_port = (uint16_t)from_port, .to_port = (uint16_t)to_port};
        uint8_t packet[PACKET_HEADERS];
        packet_ask(&segment, packet);
        into_network(packet, sizeof packet);
        count += to == of;
    }
    return count;
}

/* ---- out of the network ---- */

static bool has_room(const struct peer *peer) {
    return peer->stream < 0 || sizeof peer->out - (peer->end - peer->start) >= PREFIX + LINK_MTU;
}

static void flush(struct peer *peer) {
    while (peer->start != peer->end) {
        ssize_t sent = send(peer->stream, peer->out + peer->start, peer->end - peer->start,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (sent <= 0) return lose(peer, "the peer accepts no data");
        peer->start += (size_t)sent;
        peer->moved = clock_now_ms();
    }
    peer->start = peer->end = 0;
}

/* There must be room. */
static void queue(struct peer *peer, const uint8_t *packet, size_t bytes) {
    if (sizeof peer->out - peer->end < PREFIX + bytes) {
        memmove(peer->out, peer->out + peer->start, peer->end - peer->start);
        peer->end -= peer->start;
        peer->start = 0;
    }
    if (peer->end == 0) peer->moved = clock_now_ms();
    peer->out[peer->end++] = (uint8_t)(bytes >> 8);
    peer->out[peer->end++] = (uint8_t)bytes;
    if (bytes > 0) memcpy(peer->out + peer->end, packet, bytes);
    peer->end += bytes;
}

static void out_of_network(void) {
    static uint8_t packet[LINK_MTU];
    for (unsigned i = 0; i < AT_ONCE; i++) {
        struct segment segment;
        for (struct peer *peer = peers; peer < peers + MAX_PEERS; peer++)
            if (!has_room(peer)) return;
        ssize_t got = read(device.tun, packet, sizeof packet);
        if (got <= 0) return;
        if (!packet_read(packet, (size_t)got, &segment) || segment.from != own ||
            (segment.to & LINK_MASK) != LINK_NETWORK || segment.to == own) {
            drop();
            continue;
        }
        struct peer *peer = peer_of(segment.to);
        if (peer != NULL && is_up(peer)) {
            queue(peer, packet, (size_t)got);
        } else if (!segment.resets) {
            uint8_t refusal[PACKET_HEADERS];
            packet_refuse(&segment, refusal);
            into_network(refusal, sizeof refusal);
        }
    }
}

/* ---- into the network ---- */

/* Deliver complete packets. False: the peer is not a link of ours. */
static bool deliver(struct peer *peer) {
    size_t at = 0;
    while (peer->got - at >= PREFIX) {
        size_t bytes = (size_t)peer->in[at] << 8 | peer->in[at + 1];
        if (bytes > LINK_MTU) return false;
        if (peer->got - at < PREFIX + bytes) break;
        struct segment segment;
        const uint8_t *packet = peer->in + at + PREFIX;
        at += PREFIX + bytes;
        if (bytes == 0) continue;
        if (packet_read(packet, bytes, &segment) && segment.from == peer->address &&
            segment.to == own)
            into_network(packet, bytes);
        else
            drop();
    }
    peer->got -= at;
    memmove(peer->in, peer->in + at, peer->got);
    return true;
}

static void hear(struct peer *peer) {
    ssize_t got =
        recv(peer->stream, peer->in + peer->got, sizeof peer->in - peer->got, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return lose(peer, "the peer closed it");
    peer->got += (size_t)got;
    peer->heard = clock_now_ms();
    peer->heard_of = true;
    if (!deliver(peer)) lose(peer, "the peer sent an invalid frame");
}

/* ---- links ---- */

/* Return a place for the address: its own, a free one, or one whose link has ended. */
static struct peer *place_for(uint32_t address) {
    struct peer *found = peer_of(address);
    for (struct peer *peer = peers; found == NULL && peer < peers + MAX_PEERS; peer++)
        if (peer->address == 0 || (peer->stream < 0 && peer->next < 0)) found = peer;
    return found;
}

static void take(uint32_t address, int stream, bool answers) {
    struct peer *peer = place_for(address);
    if (peer == NULL || (address & LINK_MASK) != LINK_NETWORK || address == own) {
        fprintf(stderr, "egpu-link: refused a link: there are %d, the maximum\n", MAX_PEERS);
        close(stream);
        return;
    }
    if (peer->stream >= 0) lose(peer, "a new connection replaced it");
    if (peer->next >= 0) close(peer->next);
    peer->address = address;
    peer->next = stream;
    peer->answers = answers;
    peer->since = clock_now_ms();
}

static void begin(struct peer *peer, int64_t now) {
    peer->stream = peer->next;
    peer->next = -1;
    peer->got = peer->start = peer->end = 0;
    peer->heard = peer->moved = now;
    peer->heard_of = false;
    if (!peer->answers) queue(peer, NULL, 0);
}

/* False: CONTROL has closed. */
static bool obey(int control) {
    uint8_t said[5];
    int stream;
    size_t count;
    ssize_t got = descriptor_receive(control, said, sizeof said, &stream, 1, &count, MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    if (count == 1 && got == sizeof said && (said[0] == 'L' || said[0] == 'A'))
        take((uint32_t)said[1] << 24 | (uint32_t)said[2] << 16 | (uint32_t)said[3] << 8 | said[4],
             stream, said[0] == 'A');
    else if (count == 1)
        close(stream);
    return true;
}

/* Handle timers. Return the ms until the next one. */
static int keep_time(void) {
    static int64_t beat, look;
    int64_t now = clock_now_ms();
    bool beats = now >= beat, waits = false;
    if (beats) beat = now + BEAT_MS;
    for (struct peer *peer = peers; peer < peers + MAX_PEERS; peer++) {
        if (peer->stream >= 0 && now - peer->heard > SILENT_MS) lose(peer, "the peer is silent");
        if (peer->stream >= 0 && peer->start != peer->end && now - peer->moved > SILENT_MS)
            lose(peer, "the peer reads nothing");
        if (is_up(peer) && beats && has_room(peer)) queue(peer, NULL, 0);
        waits |= peer->next >= 0;
    }
    if (!beats && !(waits && now >= look)) return LOOK_MS;
    look = now + LOOK_MS;
    if (!waits) ask_unlinked(0);
    for (struct peer *peer = peers; waits && peer < peers + MAX_PEERS; peer++)
        if (peer->next >= 0 && (ask_unlinked(peer->address) == 0 || now - peer->since > RESET_MS))
            begin(peer, now);
    return LOOK_MS;
}

static void carry(int control) {
    for (;;) {
        struct pollfd ready[2 + MAX_PEERS] = {{.fd = control, .events = POLLIN},
                                              {.fd = device.tun, .events = POLLIN}};
        int wait_ms = keep_time();
        for (unsigned i = 0; i < MAX_PEERS; i++) {
            struct peer *peer = &peers[i];
            if (peer->stream >= 0) flush(peer);
            if (!has_room(peer)) ready[1].events = 0;
            short out = peer->start != peer->end ? POLLOUT : 0;
            ready[2 + i] = (struct pollfd){.fd = peer->stream, .events = (short)(POLLIN | out)};
        }
        if (poll(ready, 2 + MAX_PEERS, wait_ms) < 0 && errno != EINTR) return;
        if (ready[0].revents != 0 && !obey(control)) return;
        for (unsigned i = 0; i < MAX_PEERS; i++)
            if (ready[2 + i].revents != 0 && peers[i].stream == ready[2 + i].fd) hear(&peers[i]);
        if (ready[1].revents & POLLIN) out_of_network();
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: egpu-link CONTROL NETWORK ADDRESS\n");
        return 2;
    }
    int control = atoi(argv[1]);
    const struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_DUMPABLE, 0);
    /* a terminal's, here and below: our daemon closes CONTROL when it has ended */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGQUIT, SIG_IGN);
    own = (uint32_t)strtoul(argv[3], NULL, 16);
    for (struct peer *peer = peers; peer < peers + MAX_PEERS; peer++)
        peer->stream = peer->next = -1;
    if (!device_open(&device, atoi(argv[2]), own)) return 3;
    close(atoi(argv[2]));
    if (!guard_enter()) return 4;
    if (send(control, "R", 1, MSG_NOSIGNAL) == 1) carry(control);
    return 0;
}
