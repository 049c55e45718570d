#include "packet.h"

#include <string.h>

enum { IP_HEADER = 20, TCP_HEADER = 20, TCP = 6 };
enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };

static uint32_t get(const uint8_t *at, unsigned bytes) {
    uint32_t value = 0;
    while (bytes-- > 0) value = value << 8 | *at++;
    return value;
}

static void put(uint8_t *at, unsigned bytes, uint32_t value) {
    while (bytes-- > 0) {
        at[bytes] = (uint8_t)value;
        value >>= 8;
    }
}

bool packet_read(const uint8_t *packet, size_t bytes, struct segment *segment) {
    if (bytes < IP_HEADER + TCP_HEADER || packet[0] != 0x45 || get(packet + 2, 2) != bytes ||
        (get(packet + 6, 2) & 0x3fff) != 0 || packet[9] != TCP)
        return false;
    const uint8_t *tcp = packet + IP_HEADER;
    size_t header = (size_t)(tcp[12] >> 4) * 4;
    if (header < TCP_HEADER || IP_HEADER + header > bytes) return false;
    uint8_t flags = tcp[13];
    *segment = (struct segment){
        .from = get(packet + 12, 4),
        .to = get(packet + 16, 4),
        .from_port = (uint16_t)get(tcp, 2),
        .to_port = (uint16_t)get(tcp + 2, 2),
        .sequence = get(tcp + 4, 4),
        .acknowledged = get(tcp + 8, 4),
        .length = (uint32_t)(bytes - IP_HEADER - header) + !!(flags & SYN) + !!(flags & FIN),
        .acknowledges = flags & ACK,
        .resets = flags & RST,
    };
    return true;
}

/* RFC 1071. */
static uint16_t checksum(uint32_t sum, const uint8_t *at, unsigned bytes) {
    for (unsigned i = 0; i < bytes; i += 2) sum += get(at + i, 2);
    while (sum >> 16 != 0) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

/* From the segment's destination to its source. */
static void answer(const struct segment *segment, uint8_t packet[PACKET_HEADERS], uint32_t sequence,
                   uint32_t acknowledged, uint8_t flags) {
    uint8_t *tcp = packet + IP_HEADER;
    memset(packet, 0, PACKET_HEADERS);
    packet[0] = 0x45;
    put(packet + 2, 2, PACKET_HEADERS);
    packet[8] = 64; /* time to live */
    packet[9] = TCP;
    put(packet + 12, 4, segment->to);
    put(packet + 16, 4, segment->from);
    put(packet + 10, 2, checksum(0, packet, IP_HEADER));
    put(tcp, 2, segment->to_port);
    put(tcp + 2, 2, segment->from_port);
    put(tcp + 4, 4, sequence);
    put(tcp + 8, 4, acknowledged);
    tcp[12] = TCP_HEADER / 4 << 4;
    tcp[13] = flags;
    put(tcp + 14, 2, 1024); /* window */
    uint32_t pseudo = TCP + TCP_HEADER;
    for (unsigned i = 12; i < IP_HEADER; i += 2) pseudo += get(packet + i, 2);
    put(tcp + 16, 2, checksum(pseudo, tcp, TCP_HEADER));
}

void packet_refuse(const struct segment *segment, uint8_t packet[PACKET_HEADERS]) {
    if (segment->acknowledges)
        answer(segment, packet, segment->acknowledged, 0, RST);
    else
        answer(segment, packet, 0, segment->sequence + segment->length, RST | ACK);
}

void packet_ask(const struct segment *segment, uint8_t packet[PACKET_HEADERS]) {
    answer(segment, packet, 0, 0, SYN);
}
