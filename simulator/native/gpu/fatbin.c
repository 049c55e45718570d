/* The PTX in a fat binary, which nvcc puts into programs and a runtime passes to the driver.
 *
 * Its format is not documented (common/fat_binary.h), so PTX is found by its own marks: it begins
 * with its version and names its target, and nvcc 13 packs it as a Zstandard frame (RFC 8878).
 * Cubins count only where their outline is asked for, and there is no PTX. */
#include "engine.h"
#include "outline.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "common/fat_binary.h"

#define MAX_BYTES ((uint64_t)4 << 30) /* per fat binary; more than any program has */
#define MAX_TEXT_BYTES ((size_t)512 << 20)

static const char FRAME[] = "\x28\xb5\x2f\xfd", PTX[] = ".version ", TARGET[] = ".target sm_";

struct best {
    char *text; /* NULL: none yet */
    unsigned target;
    bool outlines;     /* of cubins are wanted, too */
    char *outline;     /* of the best cubin; NULL: none yet */
    unsigned compiled; /* its architecture */
    unsigned newer;    /* the lowest target that is too high; 0: none */
};

struct unpacker {
    void *library; /* NULL: not on this machine */
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

/* Return the text of the frame at `at` and the frame's length. NULL: it cannot be read or is no
 * frame, since these four bytes can occur anywhere. */
static char *unpack(struct unpacker *unpacker, const char *at, size_t left, size_t *length,
                    size_t *room) {
    if (!unpacker->decode || !unpacker->content_bytes || !unpacker->frame_bytes) {
        unpacker->missed = true;
        return NULL;
    }
    unsigned long long size = unpacker->content_bytes(at, left); /* an error is a huge number */
    size_t bytes = unpacker->frame_bytes(at, left);
    if (size > MAX_TEXT_BYTES || bytes > left) return NULL;
    char *text = calloc(size + 1, 1);
    if (text && unpacker->decode(text, size, at, bytes) == size) {
        *length = bytes;
        *room = size;
        return text;
    }
    free(text);
    return NULL;
}

/* Return the bytes of text at `at`: the next entry of a container does not begin with text. */
static size_t text_bytes(const char *at, size_t left) {
    size_t length = 0;
    while (length < left &&
           (isprint((unsigned char)at[length]) || isspace((unsigned char)at[length])))
        length++;
    return length;
}

/* Take `text`: keep it if its target is at most `limit`, and higher than the best so far. */
static void consider(struct best *best, char *text, unsigned limit) {
    unsigned target = 0;
    const char *named = strstr(text, PTX) ? strstr(text, TARGET) : NULL;
    if (named) target = (unsigned)strtoul(named + sizeof TARGET - 1, NULL, 10);
    if (target > best->target && target <= limit) {
        free(best->text);
        best->text = text;
        best->target = target;
    } else {
        if (target > limit && (!best->newer || target < best->newer)) best->newer = target;
        free(text);
    }
}

/* Keep the outline of a cubin in the same way. */
static void consider_cubin(struct best *best, const char *cubin, size_t bytes, unsigned limit) {
    if (!best->outlines || !outline_fits(cubin, limit) || outline_target(cubin) <= best->compiled)
        return;
    char *outline = outline_of(cubin, bytes);
    if (!outline) return;
    free(best->outline);
    best->outline = outline;
    best->compiled = outline_target(cubin);
}

static void consider_unpacked(struct best *best, char *content, size_t bytes, unsigned limit) {
    size_t cubin = outline_cubin_bytes(content, bytes);
    if (!cubin) return consider(best, content, limit);
    consider_cubin(best, content, cubin, limit);
    free(content);
}

/* Take what begins at `at`. Return its length; 1 if nothing is known to begin there. */
static size_t take(struct best *best, struct unpacker *unpacker, const char *at, size_t left,
                   unsigned limit) {
    size_t length = 1, room;
    if (memcmp(at, FRAME, sizeof FRAME - 1) == 0) {
        char *content = unpack(unpacker, at, left, &length, &room);
        if (content) consider_unpacked(best, content, room, limit);
    } else if (memcmp(at, PTX, sizeof PTX - 1) == 0) {
        length = text_bytes(at, left);
        char *text = strndup(at, length);
        if (text) consider(best, text, limit);
    } else if ((room = outline_cubin_bytes(at, left)) > 0) {
        length = room;
        consider_cubin(best, at, room, limit);
    }
    return length;
}

CUresult fatbin_text(const void *image, unsigned target, bool outlines, char **text) {
    uint64_t bytes = fat_binary_rest_bytes(image);
    if (bytes > MAX_BYTES) return CUDA_ERROR_INVALID_IMAGE;
    struct best best = {.outlines = outlines};
    struct unpacker unpacker = {0};
    unpacker_open(&unpacker);
    const char *at = (const char *)image + sizeof(struct fat_binary), *end = at + bytes;
    while (end - at >= (ptrdiff_t)sizeof PTX)
        at += take(&best, &unpacker, at, (size_t)(end - at), target);
    if (unpacker.library) dlclose(unpacker.library);
    *text = best.text ? best.text : best.outline;
    if (best.text) free(best.outline);
    if (*text) return CUDA_SUCCESS;
    if (unpacker.missed)
        engine_lacks("libzstd.so.1, to read PTX that nvcc has packed",
                     "install it, or build with `nvcc --compress-mode=none`");
    else if (best.newer)
        engine_needs_newer(best.newer, target);
    else
        engine_needs_compiled("a fat binary");
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}
