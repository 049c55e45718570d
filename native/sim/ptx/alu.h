/* Arithmetic that is more than a C expression: what ops.def calls. Semantics from the PTX ISA
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

/* aux: bit 0 set when a's bytes are signed, bit 1 when b's are. */
static inline uint32_t dp4a(uint32_t a, uint32_t b, uint32_t c, unsigned aux) {
    for (int i = 0; i < 32; i += 8) {
        int32_t x = aux & 1 ? (int8_t)(a >> i) : (uint8_t)(a >> i);
        int32_t y = aux & 2 ? (int8_t)(b >> i) : (uint8_t)(b >> i);
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

static inline uint64_t reverse(uint64_t v) {
    v = (v >> 1 & UINT64_C(0x5555555555555555)) | (v & UINT64_C(0x5555555555555555)) << 1;
    v = (v >> 2 & UINT64_C(0x3333333333333333)) | (v & UINT64_C(0x3333333333333333)) << 2;
    v = (v >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f)) | (v & UINT64_C(0x0f0f0f0f0f0f0f0f)) << 4;
    return __builtin_bswap64(v);
}

/* The position of the highest set bit, or with shiftamt how far to shift it to the top; all ones
 * when none is set. */
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

/* A number wins against a NaN; -0 is less than +0. */
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

/* Ten bits of mantissa, in the upper bits of a float; ties go away from zero if asked. */
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

/* aux: width in bits of the destination; +1 when it is signed. */
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
