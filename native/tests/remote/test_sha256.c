/* The digest: FIPS 180-4's examples, and equality of the processor's rounds with ours. */
#include "../../wire/sha256.c"

#include <stdio.h>
#include <stdlib.h>

static const uint8_t of_abc[32] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40,
                                   0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17,
                                   0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};

int main(void) {
    static uint8_t data[64 * 40 + 1];
    uint8_t digest[32];
    egpu_sha256("abc", 3, digest);
    if (memcmp(digest, of_abc, sizeof digest) != 0) return fputs("abc is wrong\n", stderr), 1;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * i * 31 >> 3 ^ i);
    if (!has_rounds()) puts("this processor has no rounds of its own: ours are compared with ours");
    for (size_t count = 0; count <= 39; count++) {
        uint32_t here[8], anywhere[8];
        for (uint32_t i = 0; i < 8; i++) here[i] = anywhere[i] = 0x9e3779b9u * (i + 1);
        blocks_anywhere(anywhere, data + count % 2, count);
        (has_rounds() ? blocks_here : blocks_anywhere)(here, data + count % 2, count);
        if (memcmp(here, anywhere, sizeof here) != 0)
            return fprintf(stderr, "%zu blocks differ\n", count), 1;
    }
    return 0;
}
