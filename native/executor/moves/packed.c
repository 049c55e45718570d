/* Parts of fat binaries are packed: by nvcc 13 with Zstandard, by nvcc 12 as a block of LZ4. */
#include "executor/moves/images.h"

#include <dlfcn.h>

static size_t (*zstd_decompress)(void *, size_t, const void *, size_t);

/* The sandbox opens no libraries. Without this one, packed images stay. */
void images_prepare(void) {
    void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library != NULL)
        zstd_decompress = (__typeof__(zstd_decompress))dlsym(library, "ZSTD_decompress");
}

size_t unpack_zstd(uint8_t *to, size_t room, const uint8_t *from, size_t bytes) {
    size_t done = zstd_decompress != NULL ? zstd_decompress(to, room, from, bytes) : 0;
    return done <= room ? done : 0; /* errors are huge numbers */
}

/* A length whose first four bits are full goes on in the bytes that follow. */
static size_t length(size_t begins, const uint8_t **from, const uint8_t *end) {
    size_t all = begins;
    bool more = begins == 15;
    while (more && *from < end) {
        more = **from == 255;
        all += *(*from)++;
    }
    return all;
}

/* Literals, then a copy of what was unpacked before, and so on; the last has literals only. */
size_t unpack_lz4(uint8_t *to, size_t room, const uint8_t *from, size_t bytes) {
    const uint8_t *end = from + bytes;
    size_t done = 0;
    while (from < end) {
        unsigned token = *from++;
        size_t count = length(token >> 4, &from, end);
        if (count > (size_t)(end - from) || count > room - done) return 0;
        memcpy(to + done, from, count);
        done += count;
        from += count;
        if (from == end) return done;
        if (end - from < 2) return 0;
        size_t back = (size_t)(from[0] | from[1] << 8);
        from += 2;
        count = 4 + length(token & 15, &from, end);
        if (back == 0 || back > done || count > room - done) return 0;
        for (size_t i = 0; i < count; i++, done++) to[done] = to[done - back];
    }
    return 0;
}
