/* The interface of cuFFT. Numbers: cufft.h and library_types.h. */
#include "fft.h"

#include <pthread.h>

enum { OK = 0, INVALID_PLAN, NO_MEMORY, INVALID_TYPE, INVALID, FAILED = 6, SETUP_FAILED };
enum { INVALID_SIZE = 8, NOT_SUPPORTED = 16 };
enum { R_32F = 0, R_64F = 1, C_32F = 4, C_64F = 5 };
enum { FORWARD = -1, INVERSE = 1 };
enum { VERSION = 12400, MOST_PLANS = 4096 };
#define MOST_BYTES (INT64_C(1) << 40) /* per side of a transform */

struct plan {
    bool made, leaves_allocation;
    CUstream stream;
    CUdeviceptr work;
    struct transform transform;
    bool basic; /* rows follow each other; in place, a real signal's rows are padded */
};

static struct plan *plans[MOST_PLANS]; /* numbers start at 1 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct plan *plan_of(int number) {
    return number > 0 && number < MOST_PLANS ? plans[number] : NULL;
}

API int cufftCreate(int *number) {
    if (number == NULL) return INVALID;
    if (!open_context()) return SETUP_FAILED;
    pthread_mutex_lock(&lock);
    int free_one = 1;
    while (free_one < MOST_PLANS && plans[free_one] != NULL) free_one++;
    struct plan *plan = free_one < MOST_PLANS ? calloc(1, sizeof *plan) : NULL;
    if (plan != NULL) plans[ *number = free_one] = plan;
    pthread_mutex_unlock(&lock);
    return plan == NULL ? NO_MEMORY : OK;
}

API int cufftDestroy(int number) {
    pthread_mutex_lock(&lock);
    struct plan *plan = plan_of(number);
    if (plan != NULL) plans[number] = NULL;
    pthread_mutex_unlock(&lock);
    if (plan == NULL) return INVALID_PLAN;
    cuStreamSynchronize(plan->stream);
    if (plan->work != 0) cuMemFree(plan->work);
    free(plan);
    return OK;
}

API int cufftSetStream(int number, CUstream stream) {
    struct plan *plan = plan_of(number);
    if (plan == NULL) return INVALID_PLAN;
    plan->stream = stream;
    return OK;
}

API int cufftSetAutoAllocation(int number, int allocates) {
    struct plan *plan = plan_of(number);
    if (plan == NULL) return INVALID_PLAN;
    plan->leaves_allocation = !allocates;
    return OK;
}

API int cufftGetVersion(int *version) {
    if (version == NULL) return INVALID;
    *version = VERSION;
    return OK;
}

/* ---- plans ---- */

static int64_t element_bytes(const struct transform *t, bool real) {
    return (t->wide ? 8 : 4) * (real ? 1 : 2);
}

/* The default layout of a plan for n elements. `padded`: a real signal in place, whose spectrum
 * takes more room. */
static void lay_out_basic(const struct transform *t, struct layout *layout, bool padded) {
    int64_t last = padded ? 2 * (t->n[t->rank - 1] / 2 + 1) : stored(t, layout);
    layout->stride = 1;
    layout->distance = last;
    for (int i = 0; i < t->rank; i++) {
        layout->embed[i] = i == t->rank - 1 ? last : t->n[i];
        if (i < t->rank - 1) layout->distance *= t->n[i];
    }
}

/* Return the bytes from the first element to the last; -1: none, or too many. */
static int64_t span(const struct transform *t, const struct layout *layout) {
    double last = 0; /* as a double, it does not overflow before the check */
    for (int i = 0; i < t->rank; i++) {
        int64_t n = i == t->rank - 1 ? stored(t, layout) : t->n[i];
        if (i > 0 && layout->embed[i] < n) return -1;
        last = last * (i ? (double)layout->embed[i] : 1) + (double)(n - 1);
    }
    if (layout->stride < 1 || layout->distance < 0) return -1;
    last = last * (double)layout->stride + (double)(t->count - 1) * (double)layout->distance;
    double bytes = (last + 1) * (double)element_bytes(t, layout->real);
    return bytes > MOST_BYTES ? -1 : (int64_t)bytes;
}

/* Set the types of both sides. */
static int set_types(struct transform *t, int in, int out, int computed) {
    bool known = in == R_32F || in == R_64F || in == C_32F || in == C_64F;
    if (!known) return NOT_SUPPORTED; /* of 16 bits */
    t->wide = in == R_64F || in == C_64F;
    t->in.real = in == R_32F || in == R_64F;
    t->out.real = out == R_32F || out == R_64F;
    bool paired = out == (t->wide ? C_64F : C_32F) || out == (t->wide ? R_64F : R_32F);
    if (!paired || (t->in.real && t->out.real) || computed != (t->wide ? C_64F : C_32F))
        return INVALID_TYPE;
    return OK;
}

/* Set the types of both sides from a cufftType. */
static int set_type(struct transform *t, int type) {
    bool wide = type & 0x40;
    int real = wide ? R_64F : R_32F, pair = wide ? C_64F : C_32F;
    switch (type & ~0x40) {
    case 0x29: return set_types(t, pair, pair, pair);
    case 0x2a: return set_types(t, real, pair, pair);
    case 0x2c: return set_types(t, pair, real, pair);
    default: return INVALID_TYPE;
    }
}

/* The caller's layout of one side; `embed` NULL: rows follow each other. */
struct side {
    const int64_t *embed;
    int64_t stride, distance;
};

static int set_sizes(struct transform *t, int rank, const int64_t *n, int64_t count) {
    double elements = (double)count;
    if (rank < 1 || rank > MOST_DIMENSIONS || n == NULL) return INVALID;
    if (count < 1) return INVALID_SIZE;
    t->rank = rank;
    t->count = count;
    for (int i = 0; i < rank; i++) {
        if (n[i] < 1) return INVALID_SIZE;
        elements *= (double)(t->n[i] = n[i]);
    }
    return elements > (double)(MOST_BYTES / 16) ? INVALID_SIZE : OK;
}

static void lay_out(const struct transform *t, struct layout *layout, struct side side) {
    layout->stride = side.stride;
    layout->distance = side.distance;
    for (int i = 0; i < t->rank; i++) layout->embed[i] = side.embed ? side.embed[i] : t->n[i];
}

/* `t` has its types. The original needs a work area; this reports one of the same size. */
static int make(int number, struct transform t, int rank, const int64_t *n, struct side in,
                struct side out, int64_t count, size_t *work_bytes) {
    struct plan *plan = plan_of(number);
    if (plan == NULL || plan->made) return INVALID_PLAN;
    int status = set_sizes(&t, rank, n, count);
    if (status != OK) return status;
    bool basic = in.embed == NULL && out.embed == NULL;
    if (basic) {
        lay_out_basic(&t, &t.in, false);
        lay_out_basic(&t, &t.out, false);
    } else {
        lay_out(&t, &t.in, in);
        lay_out(&t, &t.out, out);
    }
    if (span(&t, &t.in) < 0 || span(&t, &t.out) < 0) return INVALID_SIZE;
    size_t bytes = (size_t)(elements_of(&t) * count * element_bytes(&t, false));
    if (!plan->leaves_allocation && cuMemAlloc(&plan->work, bytes) != CUDA_SUCCESS)
        return NO_MEMORY;
    plan->transform = t;
    plan->basic = basic;
    plan->made = true;
    if (work_bytes != NULL) *work_bytes = bytes;
    return OK;
}

API int cufftXtMakePlanMany(int number, int rank, long long *n, long long *in_embed,
                            long long in_stride, long long in_distance, int in_type,
                            long long *out_embed, long long out_stride, long long out_distance,
                            int out_type, long long count, size_t *work, int computed) {
    struct transform t = {0};
    int status = set_types(&t, in_type, out_type, computed);
    if (status != OK) return status;
    struct side in = {(int64_t *)in_embed, in_stride, in_distance};
    struct side out = {(int64_t *)out_embed, out_stride, out_distance};
    return make(number, t, rank, (int64_t *)n, in, out, count, work);
}

API int cufftMakePlanMany64(int number, int rank, long long *n, long long *in_embed,
                            long long in_stride, long long in_distance, long long *out_embed,
                            long long out_stride, long long out_distance, int type, long long count,
                            size_t *work) {
    struct transform t = {0};
    int status = set_type(&t, type);
    if (status != OK) return status;
    struct side in = {(int64_t *)in_embed, in_stride, in_distance};
    struct side out = {(int64_t *)out_embed, out_stride, out_distance};
    return make(number, t, rank, (int64_t *)n, in, out, count, work);
}

/* Return a rank's numbers as 64-bit ones; NULL stays NULL. */
static long long *widened(int rank, const int *from, long long room[MOST_DIMENSIONS]) {
    if (from == NULL) return NULL;
    for (int i = 0; i < rank && i < MOST_DIMENSIONS; i++) room[i] = from[i];
    return room;
}

API int cufftMakePlanMany(int number, int rank, int *n, int *in_embed, int in_stride,
                          int in_distance, int *out_embed, int out_stride, int out_distance,
                          int type, int count, size_t *work) {
    long long room[3][MOST_DIMENSIONS];
    return cufftMakePlanMany64(number, rank, widened(rank, n, room[0]),
                               widened(rank, in_embed, room[1]), in_stride, in_distance,
                               widened(rank, out_embed, room[2]), out_stride, out_distance, type,
                               count, work);
}

API int cufftMakePlan1d(int number, int nx, int type, int count, size_t *work) {
    return cufftMakePlanMany(number, 1, &nx, NULL, 1, 0, NULL, 1, 0, type, count, work);
}
API int cufftMakePlan2d(int number, int nx, int ny, int type, size_t *work) {
    int n[] = {nx, ny};
    return cufftMakePlanMany(number, 2, n, NULL, 1, 0, NULL, 1, 0, type, 1, work);
}
API int cufftMakePlan3d(int number, int nx, int ny, int nz, int type, size_t *work) {
    int n[] = {nx, ny, nz};
    return cufftMakePlanMany(number, 3, n, NULL, 1, 0, NULL, 1, 0, type, 1, work);
}

/* Create a plan in one call. */
API int cufftPlanMany(int *number, int rank, int *n, int *in_embed, int in_stride, int in_distance,
                      int *out_embed, int out_stride, int out_distance, int type, int count) {
    int status = cufftCreate(number);
    if (status != OK) return status;
    status = cufftMakePlanMany(*number, rank, n, in_embed, in_stride, in_distance, out_embed,
                               out_stride, out_distance, type, count, NULL);
    if (status != OK) cufftDestroy(*number);
    return status;
}
API int cufftPlan1d(int *number, int nx, int type, int count) {
    return cufftPlanMany(number, 1, &nx, NULL, 1, 0, NULL, 1, 0, type, count);
}
API int cufftPlan2d(int *number, int nx, int ny, int type) {
    int n[] = {nx, ny};
    return cufftPlanMany(number, 2, n, NULL, 1, 0, NULL, 1, 0, type, 1);
}
API int cufftPlan3d(int *number, int nx, int ny, int nz, int type) {
    int n[] = {nx, ny, nz};
    return cufftPlanMany(number, 3, n, NULL, 1, 0, NULL, 1, 0, type, 1);
}

static int64_t work_bytes(const struct plan *plan) {
    const struct transform *t = &plan->transform;
    return plan->made ? elements_of(t) * t->count * element_bytes(t, false) : 0;
}

API int cufftGetSize(int number, size_t *bytes) {
    struct plan *plan = plan_of(number);
    if (plan == NULL) return INVALID_PLAN;
    if (bytes == NULL) return INVALID;
    *bytes = (size_t)work_bytes(plan);
    return OK;
}

API int cufftSetWorkArea(int number, void *work) {
    struct plan *plan = plan_of(number);
    if (plan == NULL) return INVALID_PLAN;
    if (work != NULL && !on_card(work, work_bytes(plan))) return INVALID;
    if (plan->work != 0) cuMemFree(plan->work);
    plan->work = 0;
    return OK;
}

/* ---- transforms ---- */

/* `wanted` has the types of the called function. */
static int execute(int number, const struct transform *wanted, void *from, void *to, int sign) {
    const struct plan *plan = plan_of(number);
    if (plan == NULL || !plan->made) return INVALID_PLAN;
    struct transform t = plan->transform;
    if (wanted != NULL &&
        (wanted->wide != t.wide || wanted->in.real != t.in.real || wanted->out.real != t.out.real))
        return INVALID_TYPE;
    if (sign != FORWARD && sign != INVERSE) return INVALID;
    t.sign = t.in.real ? FORWARD : t.out.real ? INVERSE : sign;
    t.from = from;
    t.to = to;
    if (from == to && plan->basic && t.in.real) lay_out_basic(&t, &t.in, true);
    if (from == to && plan->basic && t.out.real) lay_out_basic(&t, &t.out, true);
    if (!on_card(from, span(&t, &t.in)) || !on_card(to, span(&t, &t.out))) return FAILED;
    return queue(plan->stream, transform_now, &t, sizeof t) == CUDA_SUCCESS ? OK : FAILED;
}

API int cufftXtExec(int number, void *from, void *to, int direction) {
    return execute(number, NULL, from, to, direction);
}

#define COMPLEX(symbol, is_wide)                                                           \
    API int symbol(int number, void *from, void *to, int direction) {                      \
        return execute(number, &(struct transform){.wide = is_wide}, from, to, direction); \
    }
#define REAL(symbol, is_wide, side, direction)                          \
    API int symbol(int number, void *from, void *to) {                  \
        struct transform wanted = {.wide = is_wide, .side.real = true}; \
        return execute(number, &wanted, from, to, direction);           \
    }
COMPLEX(cufftExecC2C, false)
COMPLEX(cufftExecZ2Z, true)
REAL(cufftExecR2C, false, in, FORWARD)
REAL(cufftExecD2Z, true, in, FORWARD)
REAL(cufftExecC2R, false, out, INVERSE)
REAL(cufftExecZ2D, true, out, INVERSE)
