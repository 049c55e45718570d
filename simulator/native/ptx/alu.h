/* Arithmetic that needs more than a C expression: used by ops.def. Semantics from the PTX ISA
 * reference. */
#ifndef EGPU_PTX_ALU_H
#define EGPU_PTX_ALU_H

#include "internal.h"

#include <fenv.h>
#include <math.h>

static const int host_rounding[] = {[ROUND_NEAREST] = FE_TONEAREST,
                                    [ROUND_ZERO] = FE_TOWARDZERO,
                                    [ROUND_DOWN] = FE_DOWNWARD,
                                    [ROUND_UP] = FE_UPWARD};

static inline int64_t clamp_s64(int64_t v, int64_t low, int64_t high) {
    return v < low ? low : v > high ? high : v;
}
static inline uint64_t pair(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }
static inline int64_t sign24(uint32_t v) { return (int32_t)(v << 8) >> 8; }

static inline int64_t div_s64(int64_t a, int64_t b) {
    if (b == 0) return -1;
    /* the most negative number divided by -1 wraps */
    return b == -1 ? (int64_t)-(uint64_t)a : a / b;
}

static inline int64_t rem_s64(int64_t a, int64_t b) { return b == 0 ? a : b == -1 ? 0 : a % b; }

/* Two 16-bit numbers in each operand. */
static inline uint32_t pair_16(uint32_t a, uint32_t b, unsigned aux) {
    uint32_t d = 0;
    for (int i = 0; i < 32; i += 16) {
        bool is_signed = aux & PAIR_SIGNED;
        int32_t x = is_signed ? (int16_t)(a >> i) : (uint16_t)(a >> i);
        int32_t y = is_signed ? (int16_t)(b >> i) : (uint16_t)(b >> i);
        unsigned which = aux & PAIR_OP;
        int32_t v = which == PAIR_ADD ? x + y : (which == PAIR_MIN) == (x < y) ? x : y;
        if (aux & PAIR_RELU && v < 0) v = 0;
        d |= (uint32_t)(uint16_t)v << i;
    }
    return d;
}

/* aux: bit 0 set if a's bytes are signed, bit 1 if b's are. */
static inline uint32_t dp4a(uint32_t a, uint32_t b, uint32_t c, unsigned aux) {
    for (int i = 0; i < 32; i += 8) {
        int32_t x = aux & 1 ? (int8_t)(a >> i) : (uint8_t)(a >> i);
        int32_t y = aux & 2 ? (int8_t)(b >> i) : (uint8_t)(b >> i);
        c += (uint32_t)(x * y);
    }
    return c;
}

/* aux: as above, and bit 2 set for the upper two bytes of b. */
static inline uint32_t dp2a(uint32_t a, uint32_t b, uint32_t c, unsigned aux) {
    b >>= aux & 4 ? 16 : 0;
    for (int i = 0; i < 2; i++) {
        int64_t x = aux & 1 ? (int16_t)(a >> 16 * i) : (uint16_t)(a >> 16 * i);
        int64_t y = aux & 2 ? (int8_t)(b >> 8 * i) : (uint8_t)(b >> 8 * i);
        c += (uint32_t)(x * y);
    }
    return c;
}

static inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, unsigned table) {
    uint32_t d = 0;
    for (unsigned row = 0; row < 8; row++)
        if (table >> row & 1) d |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    return d;
}

/* Position and length are taken modulo 256. */
static inline uint64_t bfe_unsigned(uint64_t a, uint32_t position, uint32_t length) {
    position &= 255, length &= 255;
    if (position > 63 || length == 0) return 0;
    a >>= position;
    return length > 63 ? a : a & ((UINT64_C(1) << length) - 1);
}

static inline int64_t bfe_signed(int64_t a, uint32_t position, uint32_t length, uint32_t width) {
    position &= 255, length &= 255;
    if (length == 0) return 0;
    if (position >= width) return a < 0 ? -1 : 0;
    a >>= position; /* arithmetic: bits beyond the top are the sign */
    return length >= width ? a : (int64_t)((uint64_t)a << (64 - length)) >> (64 - length);
}

static inline uint64_t bfi(uint64_t a, uint64_t b, uint32_t position, uint32_t length,
                           uint32_t width) {
    position &= 255, length &= 255;
    if (position >= width || length == 0) return b;
    uint64_t mask = (length > 63 ? UINT64_MAX : (UINT64_C(1) << length) - 1) << position;
    return (b & ~mask) | (a << position & mask);
}

/* Return ones at `width` bits from a position; those beyond the top are lost. */
static inline uint32_t bit_mask(uint32_t position, uint32_t width) {
    if (position > 31) return 0;
    uint64_t ones = width > 31 ? UINT32_MAX : (UINT64_C(1) << width) - 1;
    return (uint32_t)(ones << position);
}

/* Return the low `width` bits, extended to 32. */
static inline uint32_t extended(uint32_t a, uint32_t width, bool is_signed) {
    if (width > 31) return a;
    uint32_t upper = UINT32_MAX << width;
    bool negative = is_signed && width && a >> (width - 1) & 1;
    return negative ? a | upper : a & ~upper;
}

/* Return the position of the n-th set bit from `base`: upward, or downward if n is negative. For n
 * = 0 the bit at `base` itself must be set. All ones: there is none. */
static inline uint32_t nth_set(uint32_t mask, uint32_t base, int32_t n) {
    if (n == 0) return base < 32 && mask >> base & 1 ? base : UINT32_MAX;
    int64_t left = n < 0 ? -(int64_t)n : n;
    for (uint32_t at = base; at < 32; at += n < 0 ? UINT32_MAX : 1)
        if (mask >> at & 1 && --left == 0) return at;
    return UINT32_MAX;
}

static inline uint64_t reverse(uint64_t v) {
    v = (v >> 1 & UINT64_C(0x5555555555555555)) | (v & UINT64_C(0x5555555555555555)) << 1;
    v = (v >> 2 & UINT64_C(0x3333333333333333)) | (v & UINT64_C(0x3333333333333333)) << 2;
    v = (v >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f)) | (v & UINT64_C(0x0f0f0f0f0f0f0f0f)) << 4;
    return __builtin_bswap64(v);
}

/* Return the position of the highest set bit, or with shiftamt its distance to the top; all ones if
 * none is set. */
static inline uint32_t bfind(uint64_t v, unsigned shiftamt, unsigned width) {
    if (!v) return UINT32_MAX;
    unsigned position = 63 - (unsigned)__builtin_clzll(v);
    return shiftamt ? width - 1 - position : position;
}

static inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector, unsigned mode) {
    uint64_t bytes = pair(a, b);
    uint32_t d = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned k = selector & 3, pick = 0;
        bool replicate_sign = false;
        switch (mode) {
        case PRMT_PLAIN:
            pick = selector >> 4 * i & 7;
            replicate_sign = selector >> 4 * i & 8;
            break;
        case PRMT_F4E: pick = k + i; break;
        case PRMT_B4E: pick = (k - i) & 7; break;
        case PRMT_RC8: pick = k; break;
        case PRMT_ECL: pick = i < k ? k : i; break;
        case PRMT_ECR: pick = i < k ? i : k; break;
        case PRMT_RC16: pick = (k & 1) * 2 + (i & 1); break;
        }
        uint8_t byte = (uint8_t)(bytes >> 8 * pick);
        if (replicate_sign) byte = byte & 0x80 ? 0xff : 0;
        d |= (uint32_t)byte << 8 * i;
    }
    return d;
}

/* A number is chosen over a NaN; -0 is less than +0. */
static inline float min_f32(float a, float b) {
    if (isnan(a) && isnan(b)) return NAN;
    if (a == b) return signbit(a) ? a : b;
    return isnan(b) || a < b ? a : b;
}
static inline float max_f32(float a, float b) {
    if (isnan(a) && isnan(b)) return NAN;
    if (a == b) return signbit(a) ? b : a;
    return isnan(b) || a > b ? a : b;
}
static inline double min_f64(double a, double b) {
    if (isnan(a) && isnan(b)) return NAN;
    if (a == b) return signbit(a) ? a : b;
    return isnan(b) || a < b ? a : b;
}
static inline double max_f64(double a, double b) {
    if (isnan(a) && isnan(b)) return NAN;
    if (a == b) return signbit(a) ? b : a;
    return isnan(b) || a > b ? a : b;
}

/* Keep ten bits of mantissa, in the upper bits of a float; ties round away from zero on request. */
static inline uint32_t to_tf32(uint32_t bits, bool away) {
    if ((bits & 0x7f800000u) == 0x7f800000u) return bits & 0x7fffffu ? 0x7fffffffu : bits;
    return (bits + (away || (bits & 0x2000) ? 0x1000 : 0x0fff)) & ~0x1fffu;
}

static inline double round_to(double v, unsigned mode) {
    switch (mode) {
    case ROUND_ZERO: return trunc(v);
    case ROUND_DOWN: return floor(v);
    case ROUND_UP: return ceil(v);
    default: return nearbyint(v);
    }
}

static inline int64_t to_signed(double v, unsigned mode, unsigned bits) {
    if (isnan(v)) return 0;
    v = round_to(v, mode);
    double limit = ldexp(1.0, (int)bits - 1); /* a power of two, so exact */
    int64_t lowest = (int64_t)(UINT64_MAX << (bits - 1));
    return v >= limit ? ~lowest : v < -limit ? lowest : (int64_t)v;
}

static inline uint64_t to_unsigned(double v, unsigned mode, unsigned bits) {
    if (isnan(v)) return 0;
    v = round_to(v, mode);
    return v >= ldexp(1.0, (int)bits) ? UINT64_MAX >> (64 - bits) : v <= 0 ? 0 : (uint64_t)v;
}

/* aux: width in bits of the destination; +1 if it is signed. */
static inline uint64_t saturate_signed(int64_t v, unsigned aux) {
    unsigned bits = aux & ~1u;
    if (aux & 1) {
        int64_t lowest = (int64_t)(UINT64_MAX << (bits - 1));
        v = clamp_s64(v, lowest, ~lowest);
        return bits < 64 ? (uint32_t)v : (uint64_t)v;
    }
    uint64_t top = UINT64_MAX >> (64 - bits);
    return v < 0 ? 0 : (uint64_t)v > top ? top : (uint64_t)v;
}

static inline uint64_t saturate_unsigned(uint64_t v, unsigned aux) {
    uint64_t top = UINT64_MAX >> (64 - (aux & ~1u) + (aux & 1));
    return v > top ? top : v;
}

/* Pack a and b, saturated to aux / 2 bits (signed if bit 0 is set), into the low bits; c has the
 * others, from its lowest on. */
static inline uint32_t pack(int32_t a, int32_t b, uint32_t c, unsigned aux) {
    unsigned bits = aux / 2;
    int64_t low = aux & 1 ? -(INT64_C(1) << (bits - 1)) : 0;
    int64_t high = (INT64_C(1) << (aux & 1 ? bits - 1 : bits)) - 1;
    uint64_t ones = (UINT64_C(1) << bits) - 1;
    uint64_t upper = (uint64_t)clamp_s64(a, low, high) & ones;
    uint64_t lower = (uint64_t)clamp_s64(b, low, high) & ones;
    return (uint32_t)((uint64_t)c << 2 * bits | upper << bits | lower);
}

enum {
    TESTP_FINITE,
    TESTP_INFINITE,
    TESTP_NUMBER,
    TESTP_NOTANUMBER,
    TESTP_NORMAL,
    TESTP_SUBNORMAL
};

static inline bool testp(int class, unsigned which) {
    switch (which) {
    case TESTP_FINITE: return class != FP_NAN && class != FP_INFINITE;
    case TESTP_INFINITE: return class == FP_INFINITE;
    case TESTP_NUMBER: return class != FP_NAN;
    case TESTP_NOTANUMBER: return class == FP_NAN;
    case TESTP_NORMAL: return class == FP_NORMAL;
    default: return class == FP_SUBNORMAL;
    }
}

static inline uint32_t sum_f32(uint32_t bits, float v) {
    union slot s = {.u32 = bits};
    s.f32 += v;
    return s.u32;
}
static inline uint64_t sum_f64(uint64_t bits, double v) {
    union slot s = {.u64 = bits};
    s.f64 += v;
    return s.u64;
}

#endif
