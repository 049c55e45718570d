/* Elements of every type. */
#include "elements.h"

#include <string.h>

#include "ptx/internal.h"

double element(int type, const void *base, int64_t index) {
    switch (type) {
    case R_32F: return ((const float *)base)[index];
    case R_64F: return ((const double *)base)[index];
    case R_16F: return half_to_float(((const uint16_t *)base)[index]);
    case R_8I: return ((const int8_t *)base)[index];
    case R_8U: return ((const uint8_t *)base)[index];
    case R_32I: return ((const int32_t *)base)[index];
    case R_64I: return (double)((const int64_t *)base)[index];
    default: {
        uint32_t bits = (uint32_t)((const uint16_t *)base)[index] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    }
}

void set_element(int type, void *base, int64_t index, double value) {
    switch (type) {
    case R_32F: ((float *)base)[index] = (float)value; break;
    case R_64F: ((double *)base)[index] = value; break;
    case R_16F: ((uint16_t *)base)[index] = half_from_double(value, ROUND_NEAREST); break;
    case R_8I: ((int8_t *)base)[index] = (int8_t)value; break;
    case R_8U: ((uint8_t *)base)[index] = (uint8_t)value; break;
    case R_32I: ((int32_t *)base)[index] = (int32_t)value; break;
    case R_64I: ((int64_t *)base)[index] = (int64_t)value; break;
    default: ((uint16_t *)base)[index] = bfloat_from_double(value, ROUND_NEAREST);
    }
}
