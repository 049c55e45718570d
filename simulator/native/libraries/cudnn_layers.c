/* Simulated cuDNN: activation, pooling, softmax. Numbers: cudnn_ops.h. */
#include "dnn.h"

#include <math.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define NOT_CONST(at) ((void *)(uintptr_t)(at))

enum { SIGMOID, RELU, TANH, CLIPPED_RELU, ELU };

double activated(const struct activation *a, double x) {
    switch (a->mode) {
    case SIGMOID: return 1 / (1 + exp(-x));
    case RELU: return x > 0 ? x : 0;
    case TANH: return tanh(x);
    case CLIPPED_RELU: return x < 0 ? 0 : x > a->bound ? a->bound : x;
    case ELU: return x > 0 ? x : a->bound * expm1(x);
    default: return x;
    }
}

/* Return the derivative, from input and output. */
static double slope(const struct activation *a, double x, double y) {
    switch (a->mode) {
    case SIGMOID: return y * (1 - y);
    case RELU: return x > 0;
    case TANH: return 1 - y * y;
    case CLIPPED_RELU: return x > 0 && x < a->bound;
    case ELU: return x > 0 ? 1 : y + a->bound;
    default: return 1;
    }
}

/* Queued work: x and y of a forward pass; also dx, the result, of a backward pass. */
struct layer {
    void (*run)(const struct layer *layer);
    struct array x, y, dy, dx;
    double alpha, beta;
    struct activation activation;
    struct pooling {
        int mode, window[2], padding[2], stride[2];
    } pooling;
    bool by_channel, log;
};

static void run_layer(void *data) {
    const struct layer *layer = data;
    layer->run(layer);
}

static int queue_layer(const struct handle *handle, struct layer *layer, const void *alpha,
                       const void *beta) {
    const struct array *all[] = {&layer->x, &layer->y, &layer->dy, &layer->dx};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->is.rank != 0 && !stands(all[i])) return FAILED;
    layer->alpha = factor(&layer->y.is, alpha);
    layer->beta = factor(&layer->y.is, beta);
    return queued(queue(handle->stream, run_layer, layer, sizeof *layer));
}

/* ---- activation ---- */

static void activate(const struct layer *l) {
    int64_t at[DIMENSIONS] = {0};
    do blend(&l->y, at, l->alpha, activated(&l->activation, get(&l->x, at)), l->beta);
    while (step(l->y.is.size, at, DIMENSIONS));
}

static void activate_back(const struct layer *l) {
    int64_t at[DIMENSIONS] = {0};
    do {
        double by = slope(&l->activation, get(&l->x, at), get(&l->y, at));
        blend(&l->dx, at, l->alpha, get(&l->dy, at) * by, l->beta);
    } while (step(l->dx.is.size, at, DIMENSIONS));
}

API int cudnnActivationForward(struct handle *handle, const struct activation *activation,
                               const void *alpha, const struct tensor *xd, const void *x,
                               const void *beta, const struct tensor *yd, void *y) {
    NEEDS(handle, activation, alpha, xd, beta, yd);
    struct layer l = {.run = activate, .x = {*xd, NOT_CONST(x)}, .y = {*yd, y}};
    l.activation = *activation;
    return same_size(xd, yd) ? queue_layer(handle, &l, alpha, beta) : SHAPE_MISMATCH;
}
API int cudnnActivationBackward(struct handle *handle, const struct activation *activation,
                                const void *alpha, const struct tensor *yd, const void *y,
                                const struct tensor *dyd, const void *dy, const struct tensor *xd,
                                const void *x, const void *beta, const struct tensor *dxd,
                                void *dx) {
    NEEDS(handle, activation, alpha, yd, dyd, xd, beta, dxd);
    struct layer l = {.run = activate_back, .x = {*xd, NOT_CONST(x)}, .y = {*yd, NOT_CONST(y)}};
    l.dy = (struct array){*dyd, NOT_CONST(dy)}, l.dx = (struct array){*dxd, dx};
    l.activation = *activation;
    if (!same_size(xd, yd) || !same_size(xd, dyd) || !same_size(xd, dxd)) return SHAPE_MISMATCH;
    return queue_layer(handle, &l, alpha, beta);
}

/* ---- pooling ---- */

enum { POOL_MAX = 0, POOL_WITH_PADDING = 1, POOL_WITHOUT_PADDING = 2, POOL_LAST = 3 };

API int cudnnCreatePoolingDescriptor(struct pooling **made) {
    NEEDS(made);
    *made = calloc(1, sizeof **made);
    return *made == NULL ? NO_MEMORY : OK;
}
API int cudnnDestroyPoolingDescriptor(struct pooling *pooling) {
    free(pooling);
    return OK;
}
API int cudnnSetPooling2dDescriptor(struct pooling *pooling, int mode, int nan, int height,
                                    int width, int padding_y, int padding_x, int stride_y,
                                    int stride_x) {
    NEEDS(pooling);
    (void)nan;
    bool good = mode >= POOL_MAX && mode <= POOL_LAST && height > 0 && width > 0 &&
                padding_y >= 0 && padding_x >= 0 && stride_y > 0 && stride_x > 0;
    *pooling =
        (struct pooling){mode, {height, width}, {padding_y, padding_x}, {stride_y, stride_x}};
    return good ? OK : BAD_PARAM;
}

static int64_t pooled_size(const struct pooling *p, int i, int64_t size) {
    return (size + 2 * p->padding[i] - p->window[i]) / p->stride[i] + 1;
}

static double pooled(const struct layer *l, const int64_t *out) {
    const struct pooling *p = &l->pooling;
    bool most = p->mode == POOL_MAX || p->mode == POOL_LAST;
    int64_t at[DIMENSIONS] = {out[0], out[1]}, window[2] = {p->window[0], p->window[1]};
    int64_t within[2] = {0}, seen = 0;
    double value = most ? -INFINITY : 0;
    do {
        at[2] = out[2] * p->stride[0] - p->padding[0] + within[0];
        at[3] = out[3] * p->stride[1] - p->padding[1] + within[1];
        if (at[2] < 0 || at[3] < 0 || at[2] >= l->x.is.size[2] || at[3] >= l->x.is.size[3])
            continue;
        double x = get(&l->x, at);
        value = most ? fmax(value, x) : value + x;
        seen++;
    } while (step(window, within, 2));
    if (most) return value;
    return value / (double)(p->mode == POOL_WITH_PADDING ? window[0] * window[1] : seen);
}

static void pool(const struct layer *l) {
    int64_t at[DIMENSIONS] = {0};
    do blend(&l->y, at, l->alpha, pooled(l, at), l->beta);
    while (step(l->y.is.size, at, DIMENSIONS));
}

API int cudnnPoolingForward(struct handle *handle, const struct pooling *pooling, const void *alpha,
                            const struct tensor *xd, const void *x, const void *beta,
                            const struct tensor *yd, void *y) {
    NEEDS(handle, pooling, alpha, xd, beta, yd);
    struct layer l = {.run = pool, .x = {*xd, NOT_CONST(x)}, .y = {*yd, y}, .pooling = *pooling};
    if (xd->rank != 4 || yd->rank != 4 || xd->size[0] != yd->size[0] ||
        xd->size[1] != yd->size[1] || pooling->stride[0] == 0)
        return BAD_PARAM;
    for (int i = 0; i < 2; i++)
        if (yd->size[2 + i] != pooled_size(pooling, i, xd->size[2 + i])) return SHAPE_MISMATCH;
    return queue_layer(handle, &l, alpha, beta);
}

/* ---- softmax ---- */

enum { SOFTMAX_LOG = 2, BY_CHANNEL = 1 };

/* Over the channels of one place, or over a whole image: `inner` are the sizes of that. */
static void softmax_sizes(const struct layer *l, int64_t *outer, int64_t *inner) {
    for (int i = 0; i < DIMENSIONS; i++) {
        bool within = l->by_channel ? i == 1 : i > 0;
        inner[i] = within ? l->y.is.size[i] : 1;
        outer[i] = within ? 1 : l->y.is.size[i];
    }
}

static void add(const int64_t *outer, const int64_t *inner, int64_t *at) {
    for (int i = 0; i < DIMENSIONS; i++) at[i] = outer[i] + inner[i];
}

static void softmax(const struct layer *l) {
    int64_t outer[DIMENSIONS], inner[DIMENSIONS], one[DIMENSIONS] = {0}, two[DIMENSIONS] = {0};
    int64_t at[DIMENSIONS];
    softmax_sizes(l, outer, inner);
    do {
        double most = -INFINITY, sum = 0;
        do add(one, two, at), most = fmax(most, get(&l->x, at));
        while (step(inner, two, DIMENSIONS));
        do add(one, two, at), sum += exp(get(&l->x, at) - most);
        while (step(inner, two, DIMENSIONS));
        do {
            add(one, two, at);
            double x = get(&l->x, at) - most;
            blend(&l->y, at, l->alpha, l->log ? x - log(sum) : exp(x) / sum, l->beta);
        } while (step(inner, two, DIMENSIONS));
    } while (step(outer, one, DIMENSIONS));
}

static void softmax_back(const struct layer *l) {
    int64_t outer[DIMENSIONS], inner[DIMENSIONS], one[DIMENSIONS] = {0}, two[DIMENSIONS] = {0};
    int64_t at[DIMENSIONS];
    softmax_sizes(l, outer, inner);
    do {
        double sum = 0;
        do add(one, two, at), sum += get(&l->dy, at) * (l->log ? 1 : get(&l->y, at));
        while (step(inner, two, DIMENSIONS));
        do {
            add(one, two, at);
            double y = get(&l->y, at), dy = get(&l->dy, at);
            blend(&l->dx, at, l->alpha, l->log ? dy - exp(y) * sum : y * (dy - sum), l->beta);
        } while (step(inner, two, DIMENSIONS));
    } while (step(outer, one, DIMENSIONS));
}

API int cudnnSoftmaxForward(struct handle *handle, int algorithm, int mode, const void *alpha,
                            const struct tensor *xd, const void *x, const void *beta,
                            const struct tensor *yd, void *y) {
    NEEDS(handle, alpha, xd, beta, yd);
    struct layer l = {.run = softmax, .x = {*xd, NOT_CONST(x)}, .y = {*yd, y}};
    l.by_channel = mode == BY_CHANNEL, l.log = algorithm == SOFTMAX_LOG;
    return same_size(xd, yd) ? queue_layer(handle, &l, alpha, beta) : SHAPE_MISMATCH;
}
API int cudnnSoftmaxBackward(struct handle *handle, int algorithm, int mode, const void *alpha,
                             const struct tensor *yd, const void *y, const struct tensor *dyd,
                             const void *dy, const void *beta, const struct tensor *dxd, void *dx) {
    NEEDS(handle, alpha, yd, dyd, beta, dxd);
    struct layer l = {.run = softmax_back, .y = {*yd, NOT_CONST(y)}, .dx = {*dxd, dx}};
    l.dy = (struct array){*dyd, NOT_CONST(dy)};
    l.by_channel = mode == BY_CHANNEL, l.log = algorithm == SOFTMAX_LOG;
    if (!same_size(yd, dyd) || !same_size(yd, dxd)) return SHAPE_MISMATCH;
    return queue_layer(handle, &l, alpha, beta);
}
