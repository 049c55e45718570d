/* Simulated cuRAND, for tests and for trying programs. Its generators follow cuRAND's documentation
 * of seeds, offsets, ranges and distributions. Their numbers differ from the original's. Numbers of
 * constants: curand.h. */
#include "work.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

enum { OK = 0, NOT_INITIALIZED = 101, NO_MEMORY, WRONG_TYPE, OUT_OF_RANGE, NOT_MULTIPLE };
enum { LAUNCH_FAILURE = 201, INITIALIZATION_FAILED = 203, ARCH_MISMATCH };
enum { PSEUDO_DEFAULT = 100, PSEUDO_LAST = 199 }; /* later: quasirandom, not supported */
enum { VERSION = 10400 };

struct generator {
    CUstream stream;
    uint64_t seed, position; /* of the next number in the sequence */
};

enum distribution { BITS, UNIFORM, NORMAL, LOG_NORMAL, POISSON };

/* Queued work. */
struct drawing {
    enum distribution distribution;
    bool wide; /* double precision */
    void *to;
    size_t count;
    uint64_t seed, position;
    double mean, deviation; /* of a normal distribution; the mean also of Poisson's */
};

/* Return the number at a position of the sequence: splitmix64's function of its state. */
static uint64_t bits_at(uint64_t seed, uint64_t position) {
    uint64_t value = (seed ^ UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xd1342543de82ef95);
    value += (position + 1) * UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

/* Above 0, up to 1. */
static double uniform_at(uint64_t seed, uint64_t position) {
    return (double)((bits_at(seed, position) >> 11) + 1) * 0x1p-53;
}

/* Two numbers of the sequence make two normal ones (Box-Muller transform). */
static double normal_at(const struct drawing *d, size_t index) {
    uint64_t first = d->position + (index & ~(size_t)1);
    double radius = sqrt(-2 * log(uniform_at(d->seed, first)));
    double angle = 2 * acos(-1) * uniform_at(d->seed, first + 1);
    return d->mean + d->deviation * radius * (index & 1 ? sin(angle) : cos(angle));
}

/* A sum of Poisson numbers is Poisson: each part's mean is small enough for inversion. */
static unsigned poisson_at(const struct drawing *d, size_t index) {
    const double most = 32;
    uint64_t seed = bits_at(d->seed, d->position + index);
    unsigned parts = (unsigned)ceil(d->mean / most), count = 0;
    double mean = parts ? d->mean / parts : 0;
    for (unsigned part = 0; part < parts; part++) {
        double left = uniform_at(seed, part), chance = exp(-mean);
        for (unsigned k = 1; left > chance && chance > 0; k++, count++) {
            left -= chance;
            chance *= mean / k;
        }
    }
    return count;
}

static double real_at(const struct drawing *d, size_t index) {
    if (d->distribution == UNIFORM) return uniform_at(d->seed, d->position + index);
    double value = normal_at(d, index);
    return d->distribution == LOG_NORMAL ? exp(value) : value;
}

/* Round a positive number so that it stays positive. */
static float narrow(double value) {
    float rounded = (float)value;
    return rounded == 0 && value > 0 ? 0x1p-126F : rounded;
}

static void draw(void *data) {
    const struct drawing *d = data;
    for (size_t i = 0; i < d->count; i++) {
        if (d->distribution == BITS)
            ((unsigned *)d->to)[i] = (unsigned)(bits_at(d->seed, d->position + i) >> 32);
        else if (d->distribution == POISSON)
            ((unsigned *)d->to)[i] = poisson_at(d, i);
        else if (d->wide)
            ((double *)d->to)[i] = real_at(d, i);
        else
            ((float *)d->to)[i] = narrow(real_at(d, i));
    }
}

static int generate(struct generator *generator, struct drawing d) {
    if (generator == NULL) return NOT_INITIALIZED;
    bool in_pairs = d.distribution == NORMAL || d.distribution == LOG_NORMAL;
    if (in_pairs && d.count % 2 != 0) return NOT_MULTIPLE;
    if (d.count > (size_t)1 << 40 || !on_card(d.to, (int64_t)(d.count * (d.wide ? 8 : 4))))
        return LAUNCH_FAILURE;
    d.seed = generator->seed;
    d.position = generator->position;
    generator->position += d.count;
    return queue(generator->stream, draw, &d, sizeof d) == CUDA_SUCCESS ? OK : LAUNCH_FAILURE;
}

/* ---- the interface ---- */

API int curandCreateGenerator(struct generator **out, int type) {
    if (out == NULL || type < PSEUDO_DEFAULT) return WRONG_TYPE;
    if (type > PSEUDO_LAST) {
        static atomic_flag told = ATOMIC_FLAG_INIT;
        if (!atomic_flag_test_and_set(&told))
            fprintf(stderr, "egpu: the simulated library does not support quasirandom generators: "
                            "use CURAND_RNG_PSEUDO_DEFAULT\n");
        return ARCH_MISMATCH;
    }
    if (!open_context()) return INITIALIZATION_FAILED;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? NO_MEMORY : OK;
}

API int curandDestroyGenerator(struct generator *generator) {
    if (generator == NULL) return NOT_INITIALIZED;
    free(generator);
    return OK;
}

API int curandGetVersion(int *version) {
    if (version == NULL) return OUT_OF_RANGE;
    *version = VERSION;
    return OK;
}

API int curandSetStream(struct generator *generator, CUstream stream) {
    if (generator == NULL) return NOT_INITIALIZED;
    generator->stream = stream;
    return OK;
}

API int curandSetPseudoRandomGeneratorSeed(struct generator *generator, unsigned long long seed) {
    if (generator == NULL) return NOT_INITIALIZED;
    generator->seed = seed;
    generator->position = 0;
    return OK;
}

API int curandSetGeneratorOffset(struct generator *generator, unsigned long long offset) {
    if (generator == NULL) return NOT_INITIALIZED;
    generator->position = offset;
    return OK;
}

API int curandSetGeneratorOrdering(struct generator *generator, int order) {
    enum { FIRST = 100, LAST = 104 }; /* of pseudorandom results; all are equal here */
    if (generator == NULL) return NOT_INITIALIZED;
    return order < FIRST || order > LAST ? OUT_OF_RANGE : OK;
}

API int curandGenerateSeeds(struct generator *generator) {
    return generator == NULL ? NOT_INITIALIZED : OK; /* nothing to prepare */
}

#define DRAWS(is, is_wide, ...) \
    generate(generator,         \
             (struct drawing){  \
                 .distribution = is, .wide = is_wide, .to = to, .count = count, __VA_ARGS__})

API int curandGenerate(struct generator *generator, unsigned *to, size_t count) {
    return DRAWS(BITS, false);
}

API int curandGenerateLongLong(struct generator *generator, void *to, size_t count) {
    (void)to, (void)count;
    return generator == NULL ? NOT_INITIALIZED
                             : WRONG_TYPE; /* only 64-bit quasirandom ones support it */
}

API int curandGeneratePoisson(struct generator *generator, unsigned *to, size_t count,
                              double lambda) {
    if (!(lambda > 0 && lambda < 1e6)) return OUT_OF_RANGE;
    return DRAWS(POISSON, false, .mean = lambda);
}

#define REALS(suffix, real, is_wide)                                                             \
    API int curandGenerateUniform##suffix(struct generator *generator, real *to, size_t count) { \
        return DRAWS(UNIFORM, is_wide);                                                          \
    }                                                                                            \
    API int curandGenerateNormal##suffix(struct generator *generator, real *to, size_t count,    \
                                         real average, real spread) {                            \
        return DRAWS(NORMAL, is_wide, .mean = average, .deviation = spread);                     \
    }                                                                                            \
    API int curandGenerateLogNormal##suffix(struct generator *generator, real *to, size_t count, \
                                            real average, real spread) {                         \
        return DRAWS(LOG_NORMAL, is_wide, .mean = average, .deviation = spread);                 \
    }
REALS(, float, false)
REALS(Double, double, true)
