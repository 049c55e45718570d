/* IPv4 packets, as far as a link inspects them: TCP between two addresses, and nothing else. */
#ifndef EGPU_LINK_PACKET_H
#define EGPU_LINK_PACKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PACKET_HEADERS 40 /* of IP and TCP, without options */

/* A TCP segment's addresses and ports, and the values needed for an answer. */
struct segment {
    uint32_t from, to; /* addresses */
    uint16_t from_port, to_port;
    uint32_t sequence, acknowledged;
    uint32_t length; /* in the space of sequence numbers: SYN and FIN count */
    bool acknowledges, resets;
};

/* False: not a whole TCP segment in one unfragmented packet without IP options. */
bool packet_read(const uint8_t *packet, size_t bytes, struct segment *segment);

/* The answer of a host without such a connection (RFC 9293, 3.10.7.1). */
void packet_refuse(const struct segment *segment, uint8_t packet[PACKET_HEADERS]);

/* A SYN, which no existing connection accepts: it answers with its state (RFC 5961, 4). */
void packet_ask(const struct segment *segment, uint8_t packet[PACKET_HEADERS]);

#endif
