/* The parts of a fat binary. Of those for a card the driver chooses one, and we do not ask which:
 * all of them must be able to move. The target's card is the same model and its driver the same
 * version, so it chooses the same part again.
 *
 * The heads of parts are not documented. What is read here is what `fatbinary` of CUDA 11 to 13
 * writes. A part that says anything else is not understood. */
#include "executor/moves/images.h"

#include "common/fat_binary.h"

/* A client may claim anything. So a part that is unpacked is no longer than an image, all of them
 * have a limit, and no part is a fat binary again. */
#define MOST_UNPACKED ((uint64_t)4 * WIRE_MAX_IMAGE)

struct part {
    uint16_t kind, version;
    uint32_t head_bytes;
    uint64_t bytes;
    uint32_t packed_bytes, unread[2], architecture;
    uint32_t name[2];
    uint64_t flags, zero, plain_bytes;
};
enum { PART_PTX = 1, PART_ELF = 2 };
#define PACKED_LZ4 0x2000u
#define PACKED_ZSTD 0x8000u

static const char unknown[] = "it is a fat binary with parts that are not understood";
static const char packed[] = "it is a fat binary that is packed in a way that is not understood";

/* `left`: how much may still be unpacked of this image. */
static const char *unpacked_stays(const struct part *is, const uint8_t *bytes, uint64_t *left,
                                  const struct image_seer *seer) {
    if (is->plain_bytes == 0 || is->plain_bytes > WIRE_MAX_IMAGE || is->packed_bytes > is->bytes)
        return unknown;
    if (is->plain_bytes > *left) return "it is a fat binary with too much in it";
    *left -= is->plain_bytes;
    uint8_t *plain = malloc(is->plain_bytes + 1);
    if (plain == NULL) return "no memory to read it";
    bool zstd = is->flags & PACKED_ZSTD;
    size_t count =
        (zstd ? unpack_zstd : unpack_lz4)(plain, is->plain_bytes, bytes, is->packed_bytes);
    plain[count] = 0;
    const char *why = count == 0 ? packed : image_code_stays(plain, count, seer);
    free(plain);
    return why;
}

static const char *part_stays(const struct part *is, const uint8_t *bytes, uint64_t *left,
                              const struct image_seer *seer) {
    if (is->kind != PART_PTX && is->kind != PART_ELF) return unknown;
    if (!image_fits(is->kind == PART_ELF, is->architecture)) return NULL;
    if (is->flags & (PACKED_LZ4 | PACKED_ZSTD)) return unpacked_stays(is, bytes, left, seer);
    if (is->kind == PART_ELF) return image_code_stays(bytes, is->bytes, seer);
    char *text = strndup((const char *)bytes, is->bytes); /* it need not have an end */
    const char *why = text == NULL ? "no memory to read it"
                                   : image_code_stays((const uint8_t *)text, strlen(text), seer);
    free(text);
    return why;
}

const char *fat_stays(const uint8_t *bytes, size_t total, const struct image_seer *seer) {
    size_t at = sizeof(struct fat_binary);
    uint64_t rest = fat_binary_rest_bytes(bytes), left = MOST_UNPACKED;
    if (rest > total - at) return unknown;
    for (size_t end = at + rest; at < end;) {
        struct part is;
        if (end - at < sizeof is) return unknown;
        memcpy(&is, bytes + at, sizeof is);
        if (is.head_bytes < sizeof is || is.head_bytes > end - at ||
            is.bytes > end - at - is.head_bytes)
            return unknown;
        const char *why = part_stays(&is, bytes + at + is.head_bytes, &left, seer);
        if (why != NULL) return why;
        at += is.head_bytes + is.bytes;
    }
    return NULL;
}
