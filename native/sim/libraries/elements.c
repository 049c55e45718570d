/* Elements of every type. */
#include "elements.h"

#include <string.h>

#include "ptx/internal.h"

double element(int type, const void *base, int64_t index) {
    switch (type) {
    case R_32F: return ((const float *)base)[index];
    case R_64F: return ((const double *)base)[index];
    case R_16F: return half_to_float(((const uint16_t *)base)[index]);
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
    default: ((uint16_t *)base)[index] = bfloat_from_double(value, ROUND_NEAREST);
    }
}
