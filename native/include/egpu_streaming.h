/* Copies of much data between memories. `rep movsb`, which memcpy uses for sizes between 2 KiB and
 * some 800 KiB on many processors, is several times slower on Zen 3 and 4 for certain relative
 * positions of source and destination. */
#ifndef EGPU_STREAMING_H
#define EGPU_STREAMING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define EGPU_STREAMING_BYTES (16u << 10) /* worthwhile from this size on */

#if defined(__SSE2__)
#define EGPU_COPY_LINES(store)                                                         \
    size_t head = -(uintptr_t)to & 63; /* to the start of a cache line */              \
    uint8_t *out = (uint8_t *)to + head;                                               \
    const uint8_t *in = (const uint8_t *)from + head;                                  \
    memcpy(to, from, head);                                                            \
    for (bytes -= head; bytes >= 64; out += 64, in += 64, bytes -= 64) {               \
        __m128i a = _mm_loadu_si128((const __m128i *)in),                              \
                b = _mm_loadu_si128((const __m128i *)(in + 16));                       \
        __m128i c = _mm_loadu_si128((const __m128i *)(in + 32)),                       \
                d = _mm_loadu_si128((const __m128i *)(in + 48));                       \
        store((__m128i *)out, a), store((__m128i *)(out + 16), b),                     \
            store((__m128i *)(out + 32), c), store((__m128i *)(out + 48), d);          \
        __asm__ volatile("" ::: "memory"); /* keeps it from becoming a memcpy again */ \
    }                                                                                  \
    to = out, from = in
#endif

/* Copy past the processor's caches: the destination is not read first, and useful lines stay, as
 * with a copy engine. For readers on another core, later. A thread that sees a later store sees the
 * copy too. */
static inline void copy_streaming(void *to, const void *from, size_t bytes) {
#if defined(__SSE2__)
    if (bytes >= EGPU_STREAMING_BYTES) {
        EGPU_COPY_LINES(_mm_stream_si128);
        _mm_sfence();
    }
#endif
    memcpy(to, from, bytes);
}

/* Copy into the caches: for data that is read next. */
static inline void copy_near(void *to, const void *from, size_t bytes) {
#if defined(__SSE2__)
    if (bytes >= EGPU_STREAMING_BYTES) {
        EGPU_COPY_LINES(_mm_store_si128);
    }
#endif
    memcpy(to, from, bytes);
}

#endif
