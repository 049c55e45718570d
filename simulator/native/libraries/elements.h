/* Elements of every type, read as double and rounded once: results are at least as exact as a
 * card's. */
#ifndef EGPU_SIM_ELEMENTS_H
#define EGPU_SIM_ELEMENTS_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 }; /* cudaDataType: the ones used here */

static inline bool known_type(int type) {
    return type == R_32F || type == R_64F || type == R_16F || type == R_16BF;
}
/* Integers, which some arrays also hold. */
enum { R_8I = 3, R_8U = 8, R_32I = 10, R_64I = 24 };
double element(int type, const void *base, int64_t index);
void set_element(int type, void *base, int64_t index, double value);

#pragma GCC visibility pop
#endif
