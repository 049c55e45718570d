/* The PTX in a fat binary: what nvcc puts into programs, and what a runtime hands to the driver.
 *
 * A container is a header and its entries, each a header of its own and one image. Read are the
 * fields that say where an entry ends, what it is and for which architecture; they were learnt from
 * what nvcc writes. */
#include "engine.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define CONTAINER_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u /* FATBINC_MAGIC of fatbinary_section.h */
#define KIND_PTX 1
#define OLD_COMPRESSION 0x2000u     /* in an entry's flags */
#define ZSTD 0x8000u                /* likewise: one frame, as RFC 8878 has it */
#define MAX_BYTES ((size_t)4 << 30) /* of a container; more than any program has */
#define MAX_TEXT_BYTES ((size_t)512 << 20)

struct container {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of the entries */
};

struct entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;            /* of the image, with what fills it up */
    uint32_t compressed_bytes; /* 0: it is as it is */
    uint32_t unread[2];
    uint32_t target; /* 75 is sm_75 */
    uint64_t unread_too;
    uint64_t flags;
};

struct wrapper {
    uint32_t magic, version;
    const void *container;
};

const void *fatbin_unwrap(const void *image) {
    struct wrapper wrapper;
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic != WRAPPER_MAGIC) return image;
    memcpy(&wrapper, image, sizeof wrapper);
    return wrapper.container;
}

bool fatbin_is(const void *image) {
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    return magic == CONTAINER_MAGIC;
}

/* An entry of the container at `at`; false at its end. */
static bool next(const unsigned char **at, const unsigned char *end, struct entry *entry,
                 const unsigned char **image) {
    size_t left = (size_t)(end - *at);
    if (left < sizeof *entry) return false;
    memcpy(entry, *at, sizeof *entry);
    if (entry->header_bytes < sizeof *entry || entry->header_bytes > left ||
        entry->bytes > left - entry->header_bytes)
        return false;
    *image = *at + entry->header_bytes;
    *at = *image + entry->bytes;
    return true;
}

/* The text of a frame of Zstandard, where the machine has the library; NULL without it, or where
 * the frame is damaged. */
static char *decompress(const unsigned char *frame, size_t bytes) {
    void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return NULL;
    unsigned long long (*content_bytes)(const void *, size_t) =
        (__typeof__(content_bytes))dlsym(library, "ZSTD_getFrameContentSize");
    size_t (*decode)(void *, size_t, const void *, size_t) =
        (__typeof__(decode))dlsym(library, "ZSTD_decompress");
    unsigned long long room = content_bytes ? content_bytes(frame, bytes) : MAX_TEXT_BYTES + 1;
    char *text = decode && room <= MAX_TEXT_BYTES ? calloc(room + 1, 1) : NULL;
    if (text && decode(text, room, frame, bytes) != room) {
        free(text);
        text = NULL;
    }
    dlclose(library);
    return text;
}

static CUresult text_of(const struct entry *entry, const unsigned char *image, char **text) {
    if (!(entry->flags & (OLD_COMPRESSION | ZSTD))) {
        *text = strndup((const char *)image, entry->bytes);
        return *text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *text = entry->flags & ZSTD && entry->compressed_bytes <= entry->bytes
                ? decompress(image, entry->compressed_bytes)
                : NULL;
    if (*text) return CUDA_SUCCESS;
    engine_lacks(
        "compressed PTX that libzstd.so.1 of this machine cannot read (nvcc --compress-mode=none)");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult fatbin_ptx(const void *image, unsigned target, char **text) {
    const unsigned char *at = image, *found = NULL, *here;
    struct container container;
    struct entry entry, best = {.target = 0};
    memcpy(&container, at, sizeof container);
    at += sizeof container;
    if (container.bytes > MAX_BYTES) return CUDA_ERROR_INVALID_IMAGE;
    for (const unsigned char *end = at + container.bytes; next(&at, end, &entry, &here);) {
        if (entry.kind != KIND_PTX || entry.target > target) continue;
        if (!found || entry.target > best.target) best = entry, found = here;
    }
    if (found) return text_of(&best, found, text);
    engine_lacks("compiled kernels (a fat binary)");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}
