/* Which packets a link accepts as TCP, and its answers. */
#include "../../link/packet.h"

#include <string.h>

#include "../check.h"

/* 10.0.0.1:4660 to 10.0.0.2:80, SYN and ACK. */
static const uint8_t whole[] = {
    0x45, 0,    0, 44, 0, 0, 0x40, 0, 64, 6, 0, 0, 10,   0,    0, 1, 10, 0, 0, 2, /* IP */
    0x12, 0x34, 0, 80, 0, 0, 1,    0, 0,  0, 2, 0, 0x60, 0x12, 4, 0, 0,  0, 0, 0, 2, 4, 5, 0xb4};

static bool passes(size_t at, uint8_t value, size_t bytes) {
    uint8_t packet[sizeof whole];
    struct segment segment;
    memcpy(packet, whole, sizeof whole);
    packet[at] = value;
    return packet_read(packet, bytes, &segment);
}

/* The ones' complement sum over everything covered is 0. */
static unsigned sum(const uint8_t *at, unsigned bytes, unsigned first) {
    for (unsigned i = 0; i < bytes; i += 2) first += (unsigned)at[i] << 8 | at[i + 1];
    return (first & 0xffff) + (first >> 16);
}

int main(void) {
    struct segment segment, answer;
    uint8_t packet[PACKET_HEADERS];
    CHECK(packet_read(whole, sizeof whole, &segment));
    CHECK(segment.from == 0x0a000001 && segment.to == 0x0a000002);
    CHECK(segment.from_port == 0x1234 && segment.to_port == 80 && segment.length == 1);
    CHECK(segment.sequence == 256 && segment.acknowledged == 512 && segment.acknowledges);
    for (size_t bytes = 0; bytes < sizeof whole; bytes++)
        CHECK(!packet_read(whole, bytes, &segment));
    CHECK(passes(0, 0x45, sizeof whole));
    CHECK(!passes(0, 0x65, sizeof whole));  /* IPv6 */
    CHECK(!passes(0, 0x46, sizeof whole));  /* IP options */
    CHECK(!passes(3, 45, sizeof whole));    /* longer than the packet */
    CHECK(!passes(6, 0x20, sizeof whole));  /* the first fragment */
    CHECK(!passes(7, 1, sizeof whole));     /* a later one */
    CHECK(!passes(9, 17, sizeof whole));    /* UDP */
    CHECK(!passes(9, 1, sizeof whole));     /* ICMP */
    CHECK(!passes(32, 0x40, sizeof whole)); /* shorter than a header */
    CHECK(!passes(32, 0x70, sizeof whole)); /* longer than the packet */

    packet_refuse(&segment, packet);
    CHECK(packet_read(packet, sizeof packet, &answer));
    CHECK(answer.from == segment.to && answer.to == segment.from && answer.resets);
    CHECK(answer.from_port == segment.to_port && answer.to_port == segment.from_port);
    CHECK(answer.sequence == segment.acknowledged && !answer.acknowledges);
    CHECK(sum(packet, 20, 0) == 0xffff);
    CHECK(sum(packet + 12, 28, 6 + 20) == 0xffff);
    segment.acknowledges = false;
    packet_refuse(&segment, packet);
    CHECK(packet_read(packet, sizeof packet, &answer));
    CHECK(answer.acknowledged == segment.sequence + 1 && answer.acknowledges && answer.resets);
    packet_ask(&segment, packet);
    CHECK(packet_read(packet, sizeof packet, &answer));
    CHECK(!answer.resets && !answer.acknowledges && answer.length == 1);
    return 0;
}
