#include "sha256.h"

#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotated(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void block(uint32_t state[8], const uint8_t *data) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)data[4 * i] << 24 | (uint32_t)data[4 * i + 1] << 16 |
               (uint32_t)data[4 * i + 2] << 8 | data[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    uint32_t v[8];
    memcpy(v, state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotated(v[4], 6) ^ rotated(v[4], 11) ^ rotated(v[4], 25);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + round_constants[i] + w[i];
        uint32_t s0 = rotated(v[0], 2) ^ rotated(v[0], 13) ^ rotated(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) state[i] += v[i];
}

static void blocks_anywhere(uint32_t state[8], const uint8_t *data, size_t count) {
    for (; count != 0; data += 64, count--) block(state, data);
}

#if defined(__x86_64__)
/* The processor's own rounds, two at a time. The state is in words a b e f and c d g h, from the
 * top: Intel's Software Developer's Manual, SHA256RNDS2, SHA256MSG1 and SHA256MSG2. */
__attribute__((target("sha,sse4.1"))) static void blocks_here(uint32_t state[8],
                                                              const uint8_t *data, size_t count) {
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const uint32_t *s = state;
    __m128i abef = _mm_set_epi32((int)s[0], (int)s[1], (int)s[4], (int)s[5]);
    __m128i cdgh = _mm_set_epi32((int)s[2], (int)s[3], (int)s[6], (int)s[7]);
    for (; count != 0; data += 64, count--) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4]; /* the next 16 words */
        for (int i = 0; i < 4; i++)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), big_endian);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i k = _mm_loadu_si128((const __m128i *)(round_constants + 4 * i));
            __m128i wk = _mm_add_epi32(w[0], k);
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
            __m128i sum =
                _mm_add_epi32(_mm_sha256msg1_epu32(w[0], w[1]), _mm_alignr_epi8(w[3], w[2], 4));
            __m128i next = _mm_sha256msg2_epu32(sum, w[3]);
            w[0] = w[1], w[1] = w[2], w[2] = w[3], w[3] = next;
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    uint32_t at[8]; /* f e b a, h g d c */
    _mm_storeu_si128((__m128i *)at, abef);
    _mm_storeu_si128((__m128i *)(at + 4), cdgh);
    const uint32_t now[8] = {at[3], at[2], at[7], at[6], at[1], at[0], at[5], at[4]};
    memcpy(state, now, sizeof now);
}

static bool has_rounds(void) {
    unsigned eax, ebx, ecx, edx;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_SSE4_1)) return false;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && ebx & bit_SHA;
}
#else
static bool has_rounds(void) { return false; }
#define blocks_here blocks_anywhere
#endif

void egpu_sha256(const void *data, size_t bytes, uint8_t digest[32]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    void (*blocks)(uint32_t *, const uint8_t *, size_t) =
        has_rounds() ? blocks_here : blocks_anywhere;
    size_t left = bytes % 64;
    const uint8_t *at = (const uint8_t *)data + (bytes - left);
    blocks(state, data, bytes / 64);
    uint8_t tail[128] = {0};
    memcpy(tail, at, left);
    tail[left] = 0x80;
    size_t size = left < 56 ? 64 : 128;
    for (int i = 0; i < 8; i++) tail[size - 1 - i] = (uint8_t)((uint64_t)bytes * 8 >> 8 * i);
    blocks(state, tail, size / 64);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(state[i / 4] >> (24 - i % 4 * 8));
}
