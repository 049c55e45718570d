/* Blocks of LZ4, as nvcc 12 packs the parts of fat binaries: whole, cut and wrong ones. */
#include "../../executor/moves/images.h"

#include "../check.h"

static const uint8_t block[] = {0x14, 'a', 1, 0, 0x50, 'b', 'c', 'd', 'e', 'f'};
static const char plain[] = "aaaaaaaaabcdef";
enum { PLAIN = sizeof plain - 1 };

static void unpacks_a_whole_block_alone(void) {
    uint8_t to[64];
    CHECK(unpack_lz4(to, sizeof to, block, sizeof block) == PLAIN);
    CHECK(memcmp(to, plain, PLAIN) == 0);
    CHECK(unpack_lz4(to, PLAIN - 1, block, sizeof block) == 0);
    for (size_t cut = 1; cut < sizeof block; cut++)
        if (cut != 2) CHECK(unpack_lz4(to, sizeof to, block, cut) == 0); /* 2: one literal */
}

static void refuses_what_lies_before_the_beginning(void) {
    uint8_t to[64];
    const uint8_t far[] = {0x10, 'a', 2, 0, 0x10, 'b'}, none[] = {0x10, 'a', 0, 0, 0x10, 'b'};
    CHECK(unpack_lz4(to, sizeof to, far, sizeof far) == 0);
    CHECK(unpack_lz4(to, sizeof to, none, sizeof none) == 0);
}

static void takes_long_lengths(void) {
    uint8_t from[400] = {0xf0, 255, 30}, to[400]; /* 15 + 255 + 30 literals */
    memset(from + 3, 'x', 300);
    CHECK(unpack_lz4(to, sizeof to, from, 303) == 300);
    CHECK(to[0] == 'x' && to[299] == 'x');
}

int main(void) {
    unpacks_a_whole_block_alone();
    refuses_what_lies_before_the_beginning();
    takes_long_lengths();
    return 0;
}
