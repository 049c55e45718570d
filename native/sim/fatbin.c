/* The PTX in a fat binary: what nvcc puts into programs, and what a runtime hands to the driver.
 *
 * Of what is in it nothing is known (common/fat_binary.h); it is found by what it says of itself:
 * PTX begins with its version and names its target, and nvcc 13 packs it as a frame of Zstandard
 * (RFC 8878). Whatever else there is, compiled kernels above all, is passed over. */
#include "engine.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "common/fat_binary.h"

#define MAX_BYTES ((uint64_t)4 << 30) /* of a fat binary; more than any program has */
#define MAX_TEXT_BYTES ((size_t)512 << 20)

static const char FRAME[] = "\x28\xb5\x2f\xfd", PTX[] = ".version ", TARGET[] = ".target sm_";

struct best {
    char *text; /* NULL: none yet */
    unsigned target;
};

struct unpacker {
    void *library; /* NULL where the machine has none */
    unsigned long long (*content_bytes)(const void *, size_t);
    size_t (*frame_bytes)(const void *, size_t);
    size_t (*decode)(void *, size_t, const void *, size_t);
    bool missed; /* a frame that could not be read */
};

static void unpacker_open(struct unpacker *unpacker) {
    void *library = unpacker->library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    unpacker->content_bytes =
        (__typeof__(unpacker->content_bytes))dlsym(library, "ZSTD_getFrameContentSize");
    unpacker->frame_bytes =
        (__typeof__(unpacker->frame_bytes))dlsym(library, "ZSTD_findFrameCompressedSize");
    unpacker->decode = (__typeof__(unpacker->decode))dlsym(library, "ZSTD_decompress");
}

/* The text of the frame at `at`, and how long the frame is; NULL where it cannot be read, or is
 * none: four bytes can stand anywhere. */
static char *unpack(struct unpacker *unpacker, const char *at, size_t left, size_t *length) {
    if (!unpacker->decode || !unpacker->content_bytes || !unpacker->frame_bytes) {
        unpacker->missed = true;
        return NULL;
    }
    unsigned long long room = unpacker->content_bytes(at, left); /* huge: an error */
    size_t bytes = unpacker->frame_bytes(at, left);
    if (room > MAX_TEXT_BYTES || bytes > left) return NULL;
    char *text = calloc(room + 1, 1);
    if (text && unpacker->decode(text, room, at, bytes) == room) {
        *length = bytes;
        return text;
    }
    free(text);
    return NULL;
}

/* How many bytes at `at` are text: what follows it in a container begins with none. */
static size_t text_bytes(const char *at, size_t left) {
    size_t length = 0;
    while (length < left &&
           (isprint((unsigned char)at[length]) || isspace((unsigned char)at[length])))
        length++;
    return length;
}

/* Takes `text`: keeps it if it is PTX for at most `limit`, and for more than the best so far. */
static void consider(struct best *best, char *text, unsigned limit) {
    unsigned target = 0;
    const char *named = strstr(text, PTX) ? strstr(text, TARGET) : NULL;
    if (named) target = (unsigned)strtoul(named + sizeof TARGET - 1, NULL, 10);
    if (target > best->target && target <= limit) {
        free(best->text);
        *best = (struct best){text, target};
    } else {
        free(text);
    }
}

CUresult fatbin_ptx(const void *image, unsigned target, char **text) {
    uint64_t bytes = fat_binary_rest_bytes(image);
    if (bytes > MAX_BYTES) return CUDA_ERROR_INVALID_IMAGE;
    struct best best = {0};
    struct unpacker unpacker = {0};
    unpacker_open(&unpacker);
    const char *at = (const char *)image + sizeof(struct fat_binary), *end = at + bytes;
    for (size_t length; end - at >= (ptrdiff_t)sizeof PTX; at += length) {
        size_t left = (size_t)(end - at);
        char *found = NULL;
        length = 1;
        if (memcmp(at, FRAME, sizeof FRAME - 1) == 0) {
            found = unpack(&unpacker, at, left, &length);
        } else if (memcmp(at, PTX, sizeof PTX - 1) == 0) {
            length = text_bytes(at, left);
            found = strndup(at, length);
        }
        if (found) consider(&best, found, target);
    }
    if (unpacker.library) dlclose(unpacker.library);
    *text = best.text;
    if (best.text) return CUDA_SUCCESS;
    engine_lacks(unpacker.missed ? "PTX that nvcc has packed and only libzstd.so.1 can read "
                                   "(install it, or nvcc --compress-mode=none)"
                                 : "compiled kernels (a fat binary)");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}
