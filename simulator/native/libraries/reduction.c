/* Combines the ranks' contributions. Reals are computed in double and rounded once, integers in 64
 * bits. */
#include "elements.h"
#include "exchange.h"

static const int real_types[] = {R_16F, R_32F, R_64F, R_16BF}; /* starting at FLOAT16 */

size_t type_width(int type) {
    static const uint8_t widths[TYPES] = {
        [INT8] = 1,   [UINT8] = 1,   [INT32] = 4,   [UINT32] = 4,  [INT64] = 8,
        [UINT64] = 8, [FLOAT16] = 2, [FLOAT32] = 4, [FLOAT64] = 8, [BFLOAT16] = 2,
    };
    return type < 0 || type >= TYPES ? 0 : widths[type];
}

static bool is_real(int type) { return type >= FLOAT16; }

static double real_at(int type, const void *base, size_t index) {
    return element(real_types[type - FLOAT16], base, (int64_t)index);
}

static void set_real(int type, void *base, size_t index, double value) {
    set_element(real_types[type - FLOAT16], base, (int64_t)index, value);
}

static bool is_signed(int type) { return type == INT8 || type == INT32 || type == INT64; }

/* Extend to 64 bits, with the sign if it has one. */
static uint64_t integer_at(int type, const void *base, size_t index) {
    switch (type) {
    case INT8: return (uint64_t)(int64_t)((const int8_t *)base)[index];
    case UINT8: return ((const uint8_t *)base)[index];
    case INT32: return (uint64_t)(int64_t)((const int32_t *)base)[index];
    case UINT32: return ((const uint32_t *)base)[index];
    default: return ((const uint64_t *)base)[index];
    }
}

static void set_integer(int type, void *base, size_t index, uint64_t value) {
    switch (type_width(type)) {
    case 1: ((uint8_t *)base)[index] = (uint8_t)value; break;
    case 4: ((uint32_t *)base)[index] = (uint32_t)value; break;
    default: ((uint64_t *)base)[index] = value;
    }
}

static double fold_reals(int op, double a, double b) {
    switch (op) {
    case PROD: return a * b;
    case MAX: return a > b || a != a ? a : b;
    case MIN: return a < b || a != a ? a : b;
    default: return a + b;
    }
}

static uint64_t fold_integers(int op, bool with_sign, uint64_t a, uint64_t b) {
    bool less = with_sign ? (int64_t)a < (int64_t)b : a < b;
    switch (op) {
    case PROD: return a * b;
    case MAX: return less ? b : a;
    case MIN: return less ? a : b;
    default: return a + b;
    }
}

static uint64_t divide(bool with_sign, uint64_t sum, unsigned ranks) {
    return with_sign ? (uint64_t)((int64_t)sum / (int64_t)ranks) : sum / ranks;
}

void combine(int type, int op, void *to, const void *const *from, unsigned ranks, size_t count) {
    bool with_sign = is_signed(type);
    for (size_t i = 0; i < count; i++) {
        if (is_real(type)) {
            double value = real_at(type, from[0], i);
            for (unsigned rank = 1; rank < ranks; rank++)
                value = fold_reals(op, value, real_at(type, from[rank], i));
            set_real(type, to, i, op == AVG ? value / ranks : value);
            continue;
        }
        uint64_t value = integer_at(type, from[0], i);
        for (unsigned rank = 1; rank < ranks; rank++)
            value = fold_integers(op, with_sign, value, integer_at(type, from[rank], i));
        set_integer(type, to, i, op == AVG ? divide(with_sign, value, ranks) : value);
    }
}

void multiply(int type, void *values, size_t count, const struct factor *factor) {
    const void *by = factor->card != NULL ? factor->card : &factor->value;
    for (size_t i = 0; i < count; i++)
        if (is_real(type))
            set_real(type, values, i, real_at(type, values, i) * real_at(type, by, 0));
        else
            set_integer(type, values, i, integer_at(type, values, i) * integer_at(type, by, 0));
}
