/* Fat binaries of a client that wants the reader to take much time or memory, or to fall over. */
#include "../../executor/moves/images.h"

#include "../check.h"

#define LZ4 0x2000u
#define DEEP 200000 /* fat binaries in one another */

enum { PTX = 1, ELF = 2 };

static const char code[] = ".version 8.0\n.target sm_75\n.address_size 64\n";

/* One card, of compute capability 7.5. */
static CUresult count(int *cards) {
    *cards = 1;
    return CUDA_SUCCESS;
}

static CUresult attribute(int *value, CUdevice_attribute which, CUdevice card) {
    (void)card;
    *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 7 : 5;
    return CUDA_SUCCESS;
}

driver_pointer driver_function(egpu_driver_id id) {
    return id == EGPU_FN_cuDeviceGetCount ? (driver_pointer)count : (driver_pointer)attribute;
}

struct made {
    uint8_t *bytes;
    size_t total, room;
};

static void put(struct made *to, const void *from, size_t bytes) {
    if (to->total + bytes > to->room) {
        to->room = 2 * to->room + bytes;
        to->bytes = realloc(to->bytes, to->room);
        CHECK(to->bytes != NULL);
    }
    if (bytes != 0) memcpy(to->bytes + to->total, from, bytes);
    to->total += bytes;
}

static void put_head(struct made *to, uint64_t rest) {
    uint32_t words[4] = {0xba55ed50, 1 | 16 << 16, (uint32_t)rest, (uint32_t)(rest >> 32)};
    put(to, words, sizeof words);
}

/* The head of a part with so many bytes. `plain`: how many it claims to unpack to; 0: it is not
 * packed. */
static void put_part(struct made *to, unsigned kind, uint64_t bytes, uint64_t plain) {
    uint32_t words[16] = {[0] = kind | 0x101 << 16,      [1] = 64,
                          [2] = (uint32_t)bytes,         [3] = (uint32_t)(bytes >> 32),
                          [4] = (uint32_t)bytes,         [7] = 75,
                          [10] = plain != 0 ? LZ4 : 0,   [14] = (uint32_t)plain,
                          [15] = (uint32_t)(plain >> 32)};
    put(to, words, sizeof words);
}

/* So many packed parts of the same bytes. */
static struct made packed(unsigned parts, const void *plain, uint8_t bytes, uint64_t claimed) {
    uint8_t length[2] = {0xf0, (uint8_t)(bytes - 15)}; /* literals alone */
    struct made to = {0};
    put_head(&to, parts * (64ull + sizeof length + bytes));
    for (unsigned part = 0; part < parts; part++) {
        put_part(&to, PTX, sizeof length + bytes, claimed);
        put(&to, length, sizeof length);
        put(&to, plain, bytes);
    }
    return to;
}

/* Gives the image back. */
static bool moves(struct made image) {
    bool moves = image_stays(image.bytes, image.total) == NULL;
    free(image.bytes);
    return moves;
}

static void reads_a_packed_part(void) { CHECK(moves(packed(1, code, sizeof code - 1, 1000))); }

static void unpacks_no_more_than_images_have(void) {
    CHECK(moves(packed(4, code, sizeof code - 1, WIRE_MAX_IMAGE)));
    CHECK(!moves(packed(5, code, sizeof code - 1, WIRE_MAX_IMAGE)));
    CHECK(!moves(packed(1, code, sizeof code - 1, (uint64_t)WIRE_MAX_IMAGE + 1)));
}

static void looks_into_no_fat_binary_in_another(void) {
    struct made inside = {0}, deep = {0};
    put_head(&inside, 0); /* that has no parts, so nothing in it stays */
    CHECK(image_stays(inside.bytes, inside.total) == NULL);
    CHECK(!moves(packed(1, inside.bytes, (uint8_t)inside.total, 1000)));
    free(inside.bytes);
    for (uint64_t left = DEEP; left-- > 0;) {
        put_head(&deep, left * 80 + 64);
        put_part(&deep, ELF, left * 80, 0);
    }
    CHECK(!moves(deep));
}

int main(void) {
    reads_a_packed_part();
    unpacks_no_more_than_images_have();
    looks_into_no_fat_binary_in_another();
    return 0;
}
