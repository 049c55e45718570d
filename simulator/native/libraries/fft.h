/* Simulated cuFFT: correct results over the simulated driver, for tests and for trying programs,
 * computed by this machine's processor in double precision. It supports all plans of one card in
 * single and double precision, without callbacks.
 *
 *   transform.c   the transforms
 *   cufft.c       the interface: plans and their layouts
 */
#ifndef EGPU_SIM_FFT_H
#define EGPU_SIM_FFT_H

#include "work.h"

#pragma GCC visibility push(hidden)

enum { MOST_DIMENSIONS = 3 };

/* Layout of elements: element (x, y, z) of a batch's transform is number b distance + ((x embed[1]
 * + y) embed[2] + z) stride. */
struct layout {
    int64_t embed[MOST_DIMENSIONS], stride, distance;
    bool real; /* otherwise complex; between the two types, half of the last dimension */
};

struct transform {
    int rank;
    int64_t n[MOST_DIMENSIONS], count;
    bool wide; /* double precision */
    int sign;  /* of the exponent: -1 forward, 1 inverse; there is no scaling */
    struct layout in, out;
    const void *from;
    void *to;
};

/* Return the stored elements of the last dimension. */
static inline int64_t stored(const struct transform *t, const struct layout *layout) {
    int64_t last = t->n[t->rank - 1];
    return !layout->real && (t->in.real || t->out.real) ? last / 2 + 1 : last;
}

static inline int64_t elements_of(const struct transform *t) {
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) count *= t->n[i];
    return count;
}

/* Run the queued transform. Memory was checked; if this process has no memory left for it, the
 * result is not written. */
void transform_now(void *transform);

#pragma GCC visibility pop
#endif
