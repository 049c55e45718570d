/* 16-bit and 8-bit floats: conversion, and arithmetic of one half or of two in a register. */
#include "internal.h"

#include <math.h>

static uint64_t bits_of(double value) {
    union slot v = {.f64 = value};
    return v.u64;
}

/* Return a finite magnitude as a binary float of `mantissa` stored bits and `exponent` bits,
 * without its sign. If it is too large, the number is past the greatest. Doubles hold every product
 * of two halves and every float exactly, so there is only one rounding.
 */
static uint32_t round_magnitude(double value, int mantissa, int exponent, enum round mode) {
    int bias = (1 << (exponent - 1)) - 1;
    uint64_t bits = bits_of(value), fraction = bits & ((UINT64_C(1) << 52) - 1);
    bool negative = bits >> 63;
    int power = (int)(bits >> 52 & 2047);
    if (power == 0) return (fraction && mode == (negative ? ROUND_DOWN : ROUND_UP)) ? 1 : 0;
    fraction |= UINT64_C(1) << 52;
    power -= 1023;
    int scale = power < 1 - bias ? 1 - bias : power; /* subnormal: fixed point */
    int shift = 52 - mantissa + scale - power;
    if (shift > 62) shift = 62; /* all of it is below half a unit */
    uint64_t whole = fraction >> shift, rest = fraction & ((UINT64_C(1) << shift) - 1);
    uint64_t half = UINT64_C(1) << (shift - 1);
    bool up = false;
    switch (mode) {
    case ROUND_NEAREST: up = rest > half || (rest == half && (whole & 1)); break;
    case ROUND_ZERO: break;
    case ROUND_DOWN: up = negative && rest; break;
    case ROUND_UP: up = !negative && rest; break;
    }
    /* A carry from the mantissa moves into the exponent by itself. */
    return (uint32_t)(whole + up) + ((uint32_t)(scale + bias - 1) << mantissa);
}

static uint16_t narrow(double value, int mantissa, int exponent, enum round mode) {
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    uint32_t infinity = ((1u << exponent) - 1) << mantissa;
    if (isnan(value)) return 0x7fff; /* the canonical NaN of PTX */
    if (isinf(value)) return (uint16_t)(sign | infinity);
    uint32_t bits = round_magnitude(value, mantissa, exponent, mode);
    if (bits >= infinity) {
        bool to_infinity =
            mode == ROUND_NEAREST || (mode == ROUND_DOWN && sign) || (mode == ROUND_UP && !sign);
        return (uint16_t)(sign | (to_infinity ? infinity : infinity - 1));
    }
    return (uint16_t)(sign | bits);
}

uint16_t half_from_double(double value, enum round mode) { return narrow(value, 10, 5, mode); }
uint16_t bfloat_from_double(double value, enum round mode) { return narrow(value, 7, 8, mode); }

/* ---- 8 bits ---- */

/* Saturates: larger values become the greatest number. */
uint8_t quarter_from_double(double value, bool e4m3) {
    if (isnan(value)) return 0x7f;
    uint32_t greatest = e4m3 ? 0x7e : 0x7b;
    uint32_t bits =
        isinf(value) ? greatest : round_magnitude(value, e4m3 ? 3 : 2, e4m3 ? 4 : 5, ROUND_NEAREST);
    return (uint8_t)((bits > greatest ? greatest : bits) | (signbit(value) ? 0x80 : 0));
}

float quarter_to_float(uint8_t bits, bool e4m3) {
    if (!e4m3) return half_to_float((uint16_t)(bits << 8)); /* e5m2 is the upper half of a half */
    if ((bits & 0x7f) == 0x7f) return NAN;
    union slot v = {.u32 = (uint32_t)(bits & 0x7f) << 20};
    v.f32 *= 0x1p120f;
    v.u32 |= (uint32_t)(bits & 0x80) << 24;
    return v.f32;
}

/* ---- arithmetic ---- */

/* a·b + c of halves with one rounding: an inexact sum is made odd as a double, so the second
 * rounding has no bias. */
static double fma_odd(double a, double b, double c) {
    double product = a * b, sum = product + c, back = sum - product;
    double error = (product - (sum - back)) + (c - back);
    union slot v = {.f64 = sum};
    if (isfinite(sum) && error != 0 && !(v.u64 & 1)) v.u64 += (error > 0) == (sum > 0) ? 1 : -1ull;
    return v.f64;
}

static double least(double a, double b, bool nan) {
    if (isnan(a) || isnan(b)) return nan || (isnan(a) && isnan(b)) ? NAN : isnan(a) ? b : a;
    return a == b ? (signbit(a) ? a : b) : a < b ? a : b;
}

static float value_of(uint16_t bits, unsigned aux) {
    bool bfloat = aux & HALF_BFLOAT;
    if (aux & HALF_FTZ && !(bits & (bfloat ? 0x7f80 : 0x7c00))) bits &= 0x8000;
    return bfloat ? bfloat_to_float(bits) : half_to_float(bits);
}

static uint16_t one(uint16_t a_bits, uint16_t b_bits, uint16_t c_bits, unsigned aux) {
    double a = value_of(a_bits, aux), b = value_of(b_bits, aux), v = 0;
    bool bfloat = aux & HALF_BFLOAT;
    switch ((enum half_op)(aux & HALF_OP)) {
    case HALF_ADD: v = a + b; break;
    case HALF_SUB: v = a - b; break;
    case HALF_MUL: v = a * b; break;
    case HALF_FMA: v = fma_odd(a, b, value_of(c_bits, aux)); break;
    case HALF_MIN: v = least(a, b, false); break;
    case HALF_MAX: v = -least(-a, -b, false); break;
    case HALF_MIN_NAN: v = least(a, b, true); break;
    case HALF_MAX_NAN: v = -least(-a, -b, true); break;
    case HALF_EX2: v = exp2(a); break;
    case HALF_TANH: v = tanh(a); break;
    case HALF_ABS: v = fabs(a); break;
    case HALF_NEG: v = -a; break;
    }
    if (aux & HALF_SAT) v = !(v > 0) ? 0 : v > 1 ? 1 : v;
    if (aux & HALF_RELU && v <= 0) v = 0;
    uint16_t bits =
        bfloat ? bfloat_from_double(v, ROUND_NEAREST) : half_from_double(v, ROUND_NEAREST);
    if (aux & HALF_FTZ && !(bits & (bfloat ? 0x7f80 : 0x7c00))) bits &= 0x8000;
    return bits;
}

uint32_t half_arithmetic(uint32_t a, uint32_t b, uint32_t c, unsigned aux) {
    uint32_t low = one((uint16_t)a, (uint16_t)b, (uint16_t)c, aux);
    if (!(aux & HALF_PACKED)) return low;
    return low | (uint32_t)one((uint16_t)(a >> 16), (uint16_t)(b >> 16), (uint16_t)(c >> 16), aux)
                     << 16;
}

static bool holds(float a, float b, enum comparison which) {
    bool unordered = isnan(a) || isnan(b);
    switch (which) {
    case COMPARE_EQ: return a == b;
    case COMPARE_NE: return !unordered && a != b;
    case COMPARE_LT: return a < b;
    case COMPARE_LE: return a <= b;
    case COMPARE_GT: return a > b;
    case COMPARE_GE: return a >= b;
    case COMPARE_EQU: return unordered || a == b;
    case COMPARE_NEU: return unordered || a != b;
    case COMPARE_LTU: return unordered || a < b;
    case COMPARE_LEU: return unordered || a <= b;
    case COMPARE_GTU: return unordered || a > b;
    case COMPARE_GEU: return unordered || a >= b;
    case COMPARE_NUM: return !unordered;
    case COMPARE_NAN: return unordered;
    default: return false; /* only for unsigned numbers */
    }
}

uint32_t half_comparison(uint32_t a, uint32_t b, unsigned aux) {
    enum comparison which = (enum comparison)(aux & HALF_OP);
    bool low = holds(value_of((uint16_t)a, aux), value_of((uint16_t)b, aux), which);
    bool high =
        holds(value_of((uint16_t)(a >> 16), aux), value_of((uint16_t)(b >> 16), aux), which);
    return low | (uint32_t)high << 1;
}
