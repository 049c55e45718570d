/* Discrete Fourier transforms of any length: by the factors of the length, prime ones by
 * definition. */
#include "fft.h"

#include <complex.h>
#include <math.h>

typedef double complex number;

/* A transform along one dimension: its length, its roots of unity, and room for as many. */
struct line {
    int64_t length;
    number *roots, *room;
};

static int64_t smallest_factor(int64_t n) {
    for (int64_t factor = 2; factor * factor <= n; factor++)
        if (n % factor == 0) return factor;
    return n;
}

/* Transform every `step`th of n elements into n elements. */
static void along(const struct line *line, int64_t n, const number *from, int64_t step,
                  number *to) {
    if (n == 1) {
        *to = *from;
        return;
    }
    int64_t parts = smallest_factor(n), of_part = n / parts, turn = line->length / n;
    for (int64_t part = 0; part < parts; part++)
        along(line, of_part, from + part * step, step * parts, to + part * of_part);
    for (int64_t k = 0; k < of_part; k++) {
        for (int64_t i = 0; i < parts; i++) {
            number sum = 0;
            int64_t angle = (i * of_part + k) * turn % line->length;
            for (int64_t part = 0, at = 0; part < parts; part++) {
                sum += to[part * of_part + k] * line->roots[at];
                at = (at + angle) % line->length;
            }
            line->room[i] = sum;
        }
        for (int64_t i = 0; i < parts; i++) to[i * of_part + k] = line->room[i];
    }
}

/* Transform all lines of one dimension: neighbours in it are `inner` elements apart. */
static bool dimension(number *array, int64_t elements, int64_t length, int64_t inner, int sign) {
    const double pi = acos(-1);
    number *memory = malloc((size_t)length * 3 * sizeof *memory);
    if (memory == NULL) return false;
    struct line line = {length, memory, memory + length};
    number *result = memory + 2 * length;
    for (int64_t i = 0; i < length; i++)
        line.roots[i] = cexp(sign * 2 * pi * I * (double)i / (double)length);
    for (int64_t outer = 0; outer < elements; outer += length * inner)
        for (int64_t first = outer; first < outer + inner; first++) {
            along(&line, length, array + first, inner, result);
            for (int64_t i = 0; i < length; i++) array[first + i * inner] = result[i];
        }
    free(memory);
    return true;
}

/* ---- elements ---- */

struct place {
    int64_t at[MOST_DIMENSIONS];
};

static struct place place_of(const struct transform *t, int64_t index) {
    struct place place;
    for (int i = t->rank - 1; i >= 0; index /= t->n[i], i--) place.at[i] = index % t->n[i];
    return place;
}

static int64_t offset_of(const struct transform *t, const struct layout *layout, int64_t batch,
                         const struct place *place) {
    int64_t row = 0;
    for (int i = 0; i < t->rank; i++) row = row * (i ? layout->embed[i] : 1) + place->at[i];
    return batch * layout->distance + row * layout->stride;
}

static number read_element(const struct transform *t, int64_t at) {
    if (t->in.real) return t->wide ? ((const double *)t->from)[at] : ((const float *)t->from)[at];
    return t->wide ? ((const number *)t->from)[at] : ((const float complex *)t->from)[at];
}

static void write_element(const struct transform *t, int64_t at, number value) {
    if (t->out.real && t->wide)
        ((double *)t->to)[at] = creal(value);
    else if (t->out.real)
        ((float *)t->to)[at] = (float)creal(value);
    else if (t->wide)
        ((number *)t->to)[at] = value;
    else
        ((float complex *)t->to)[at] = (float complex)value;
}

/* The missing part of a real signal's spectrum is the conjugate of its mirror image. */
static number spectrum(const struct transform *t, int64_t batch, struct place place) {
    bool mirrored = place.at[t->rank - 1] >= stored(t, &t->in);
    for (int i = 0; mirrored && i < t->rank; i++) place.at[i] = (t->n[i] - place.at[i]) % t->n[i];
    number value = read_element(t, offset_of(t, &t->in, batch, &place));
    return mirrored ? conj(value) : value;
}

void transform_now(void *transform) {
    const struct transform *t = transform;
    int64_t elements = elements_of(t);
    number *array = malloc((size_t)elements * sizeof *array);
    bool can = array != NULL;
    for (int64_t batch = 0; can && batch < t->count; batch++) {
        for (int64_t i = 0; i < elements; i++) array[i] = spectrum(t, batch, place_of(t, i));
        int64_t inner = 1;
        for (int i = t->rank - 1; can && i >= 0; inner *= t->n[i], i--)
            can = dimension(array, elements, t->n[i], inner, t->sign);
        for (int64_t i = 0; can && i < elements; i++) {
            struct place place = place_of(t, i);
            if (place.at[t->rank - 1] < stored(t, &t->out))
                write_element(t, offset_of(t, &t->out, batch, &place), array[i]);
        }
    }
    free(array);
}
