#include "internal.h"

#include <math.h>

/*
 * Round a double to a binary float of `mantissa` stored bits and `exponent` bits. Doubles hold
 * every product of two halves and every float exactly, so one rounding is the only one.
 */
static uint16_t narrow(double value, int mantissa, int exponent, enum round mode) {
    int bias = (1 << (exponent - 1)) - 1;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)(((1 << exponent) - 1) << mantissa);
    if (isnan(value)) return 0x7fff; /* the canonical NaN of PTX */
    if (isinf(value)) return sign | infinity;
    double magnitude = fabs(value);
    if (magnitude == 0) return sign;

    int power;
    frexp(magnitude, &power); /* magnitude = m · 2^power, m in [0.5, 1) */
    int scale = power - 1;
    if (scale < 1 - bias) scale = 1 - bias; /* subnormal: fixed point */
    double units = ldexp(magnitude, mantissa - scale), whole = floor(units), rest = units - whole;
    bool up = false;
    switch (mode) {
    case ROUND_NEAREST: up = rest > 0.5 || (rest == 0.5 && fmod(whole, 2) != 0); break;
    case ROUND_ZERO: break;
    case ROUND_DOWN: up = sign && rest > 0; break;
    case ROUND_UP: up = !sign && rest > 0; break;
    }
    /* A carry out of the mantissa moves into the exponent by itself. */
    int64_t bits = (int64_t)whole + up + ((int64_t)(scale + bias - 1) << mantissa);
    if (bits >= infinity) {
        bool to_infinity =
            mode == ROUND_NEAREST || (mode == ROUND_DOWN && sign) || (mode == ROUND_UP && !sign);
        return (uint16_t)(sign | (to_infinity ? infinity : infinity - 1));
    }
    return (uint16_t)(sign | bits);
}

uint16_t half_from_double(double value, enum round mode) { return narrow(value, 10, 5, mode); }
uint16_t bfloat_from_double(double value, enum round mode) { return narrow(value, 7, 8, mode); }

float half_to_float(uint16_t bits) {
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    float magnitude = exponent == 31  ? (mantissa ? NAN : INFINITY)
                      : exponent == 0 ? ldexpf((float)mantissa, -24)
                                      : ldexpf((float)(mantissa | 1024), exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}
