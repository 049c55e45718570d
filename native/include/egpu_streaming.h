/* Copies of much data from one memory to another, past the processor's caches: what is written is not read first, and nothing useful is
 * driven out. A copy engine of a GPU does no different. Besides, `rep movsb`, which memcpy takes for sizes between 2 KiB and some 800 KiB
 * on many processors, is several times slower on Zen 3 and 4 where source and destination lie in a certain way to each other. */
#ifndef EGPU_STREAMING_H
#define EGPU_STREAMING_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define EGPU_STREAMING_BYTES (16u << 10) /* from this size on it is worth while */

/* Like memcpy. Whoever sees something that is stored afterwards sees the copy as well. */
static inline void copy_streaming(void *to, const void *from, size_t bytes) {
#if defined(__SSE2__)
    if (bytes >= EGPU_STREAMING_BYTES) {
        uint8_t *out = to;
        const uint8_t *in = from;
        size_t head = -(uintptr_t)out & 63; /* to the beginning of a cache line */
        memcpy(out, in, head);
        out += head, in += head, bytes -= head;
        for (; bytes >= 64; out += 64, in += 64, bytes -= 64) {
            __m128i a = _mm_loadu_si128((const __m128i *)in), b = _mm_loadu_si128((const __m128i *)(in + 16));
            __m128i c = _mm_loadu_si128((const __m128i *)(in + 32)), d = _mm_loadu_si128((const __m128i *)(in + 48));
            _mm_stream_si128((__m128i *)out, a);
            _mm_stream_si128((__m128i *)(out + 16), b);
            _mm_stream_si128((__m128i *)(out + 32), c);
            _mm_stream_si128((__m128i *)(out + 48), d);
        }
        _mm_sfence();
        to = out, from = in;
    }
#endif
    memcpy(to, from, bytes);
}

#endif
