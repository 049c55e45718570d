/* Simulated cuDNN: batch normalisation over all but the channels, and dropout states. Numbers:
 * cudnn_ops.h. */
#include "dnn.h"

#include <math.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define NOT_CONST(at) ((void *)(uintptr_t)(at))

enum { PER_ACTIVATION = 0, OPS_ALONE = 0 };

/* Queued work. Per channel: factors, their statistics, and the results. */
struct norm {
    struct array x, y, dy;
    struct tensor channels;
    void *scale, *bias, *mean, *variance, *saved_mean, *saved_inverse, *dscale, *dbias;
    double alpha, beta, param_alpha, param_beta, share, epsilon;
};

static struct array per_channel(const struct norm *n, void *at) {
    return (struct array){n->channels, at};
}

static bool channel_step(const struct norm *n, int64_t *at, int64_t channel) {
    int64_t size[DIMENSIONS];
    memcpy(size, n->x.is.size, sizeof size);
    size[1] = 1;
    at[1] = 0;
    bool more = step(size, at, DIMENSIONS);
    at[1] = channel;
    return more;
}

static void set_channel(const struct norm *n, void *at, int64_t channel, double value) {
    int64_t place[DIMENSIONS] = {0, channel};
    struct array array = per_channel(n, at);
    if (at != NULL) put(&array, place, value);
}

static double get_channel(const struct norm *n, void *at, int64_t channel) {
    int64_t place[DIMENSIONS] = {0, channel};
    struct array array = per_channel(n, at);
    return get(&array, place);
}

static double elements_of_channel(const struct norm *n) {
    return (double)(tensor_count(&n->x.is) / n->x.is.size[1]);
}

static void statistics(const struct norm *n, int64_t c, double *mean, double *variance) {
    int64_t at[DIMENSIONS] = {0, c};
    double sum = 0, squares = 0;
    do sum += get(&n->x, at);
    while (channel_step(n, at, c));
    *mean = sum / elements_of_channel(n);
    do {
        double off = get(&n->x, at) - *mean;
        squares += off * off;
    } while (channel_step(n, at, c));
    *variance = squares / elements_of_channel(n);
}

static void write_channel(const struct norm *n, int64_t c, double mean, double inverse) {
    int64_t at[DIMENSIONS] = {0, c};
    double scale = get_channel(n, n->scale, c), bias = get_channel(n, n->bias, c);
    do blend(&n->y, at, n->alpha, (get(&n->x, at) - mean) * inverse * scale + bias, n->beta);
    while (channel_step(n, at, c));
}

static void train(void *data) {
    const struct norm *n = data;
    double count = elements_of_channel(n), mean, variance;
    for (int64_t c = 0; c < n->x.is.size[1]; c++) {
        statistics(n, c, &mean, &variance);
        double inverse = 1 / sqrt(variance + n->epsilon);
        double unbiased = count > 1 ? variance * count / (count - 1) : variance;
        write_channel(n, c, mean, inverse);
        set_channel(n, n->saved_mean, c, mean);
        set_channel(n, n->saved_inverse, c, inverse);
        if (n->mean == NULL) continue;
        double was = n->share == 1 ? 0 : get_channel(n, n->mean, c);
        set_channel(n, n->mean, c, was * (1 - n->share) + mean * n->share);
        was = n->share == 1 ? 0 : get_channel(n, n->variance, c);
        set_channel(n, n->variance, c, was * (1 - n->share) + unbiased * n->share);
    }
}

static void infer(void *data) {
    const struct norm *n = data;
    for (int64_t c = 0; c < n->x.is.size[1]; c++)
        write_channel(n, c, get_channel(n, n->mean, c),
                      1 / sqrt(get_channel(n, n->variance, c) + n->epsilon));
}

static void back(void *data) {
    const struct norm *n = data;
    for (int64_t c = 0; c < n->x.is.size[1]; c++) {
        int64_t at[DIMENSIONS] = {0, c};
        double mean, variance, sum = 0, product = 0, count = elements_of_channel(n);
        statistics(n, c, &mean, &variance);
        double inverse = 1 / sqrt(variance + n->epsilon);
        if (n->saved_mean != NULL) mean = get_channel(n, n->saved_mean, c);
        if (n->saved_mean != NULL) inverse = get_channel(n, n->saved_inverse, c);
        do {
            sum += get(&n->dy, at);
            product += get(&n->dy, at) * (get(&n->x, at) - mean) * inverse;
        } while (channel_step(n, at, c));
        double scale = get_channel(n, n->scale, c);
        do {
            double normal = (get(&n->x, at) - mean) * inverse;
            double dx = scale * inverse * (get(&n->dy, at) - (sum + normal * product) / count);
            blend(&n->y, at, n->alpha, dx, n->beta);
        } while (channel_step(n, at, c));
        struct array dscale = per_channel(n, n->dscale), dbias = per_channel(n, n->dbias);
        blend(&dscale, (int64_t[DIMENSIONS]){0, c}, n->param_alpha, product, n->param_beta);
        blend(&dbias, (int64_t[DIMENSIONS]){0, c}, n->param_alpha, sum, n->param_beta);
    }
}

static int queue_norm(const struct handle *handle, int mode, void (*run)(void *), struct norm *n) {
    void *channels[] = {n->scale,      n->bias,          n->mean,   n->variance,
                        n->saved_mean, n->saved_inverse, n->dscale, n->dbias};
    if (mode == PER_ACTIVATION) return NOT_SUPPORTED;
    if (!same_size(&n->x.is, &n->y.is) || n->channels.size[1] != n->x.is.size[1])
        return SHAPE_MISMATCH;
    if ((n->mean == NULL) != (n->variance == NULL)) return BAD_PARAM;
    if (!stands(&n->x) || !stands(&n->y) || (n->dy.at != NULL && !stands(&n->dy))) return FAILED;
    for (unsigned i = 0; i < sizeof channels / sizeof *channels; i++) {
        struct array array = per_channel(n, channels[i]);
        if (channels[i] != NULL && !stands(&array)) return FAILED;
    }
    return queued(queue(handle->stream, run, n, sizeof *n));
}

API int cudnnBatchNormalizationForwardTraining(struct handle *handle, int mode, const void *alpha,
                                               const void *beta, const struct tensor *xd,
                                               const void *x, const struct tensor *yd, void *y,
                                               const struct tensor *channels, const void *scale,
                                               const void *bias, double share, void *mean,
                                               void *variance, double epsilon, void *saved_mean,
                                               void *saved_inverse) {
    NEEDS(handle, alpha, beta, xd, yd, channels, scale, bias);
    struct norm n = {.x = {*xd, NOT_CONST(x)}, .y = {*yd, y}, .channels = *channels};
    n.scale = NOT_CONST(scale), n.bias = NOT_CONST(bias), n.mean = mean, n.variance = variance;
    n.saved_mean = saved_mean, n.saved_inverse = saved_inverse;
    n.share = share, n.epsilon = epsilon;
    n.alpha = factor(xd, alpha), n.beta = factor(xd, beta);
    return queue_norm(handle, mode, train, &n);
}
API int cudnnBatchNormalizationForwardInference(struct handle *handle, int mode, const void *alpha,
                                                const void *beta, const struct tensor *xd,
                                                const void *x, const struct tensor *yd, void *y,
                                                const struct tensor *channels, const void *scale,
                                                const void *bias, const void *mean,
                                                const void *variance, double epsilon) {
    NEEDS(handle, alpha, beta, xd, yd, channels, scale, bias, mean, variance);
    struct norm n = {.x = {*xd, NOT_CONST(x)}, .y = {*yd, y}, .channels = *channels};
    n.scale = NOT_CONST(scale), n.bias = NOT_CONST(bias), n.epsilon = epsilon;
    n.mean = NOT_CONST(mean), n.variance = NOT_CONST(variance);
    n.alpha = factor(xd, alpha), n.beta = factor(xd, beta);
    return queue_norm(handle, mode, infer, &n);
}
API int cudnnBatchNormalizationBackward(struct handle *handle, int mode, const void *alpha,
                                        const void *beta, const void *param_alpha,
                                        const void *param_beta, const struct tensor *xd,
                                        const void *x, const struct tensor *dyd, const void *dy,
                                        const struct tensor *dxd, void *dx,
                                        const struct tensor *channels, const void *scale,
                                        void *dscale, void *dbias, double epsilon,
                                        const void *saved_mean, const void *saved_inverse) {
    NEEDS(handle, alpha, beta, param_alpha, param_beta, xd, dyd, dy, dxd, channels, scale, dscale,
          dbias);
    struct norm n = {.x = {*xd, NOT_CONST(x)}, .y = {*dxd, dx}, .dy = {*dyd, NOT_CONST(dy)}};
    if (!same_size(xd, dyd)) return SHAPE_MISMATCH;
    if ((saved_mean == NULL) != (saved_inverse == NULL)) return BAD_PARAM;
    n.channels = *channels, n.scale = NOT_CONST(scale), n.dscale = dscale, n.dbias = dbias;
    n.saved_mean = NOT_CONST(saved_mean), n.saved_inverse = NOT_CONST(saved_inverse);
    n.alpha = factor(xd, alpha), n.beta = factor(xd, beta), n.epsilon = epsilon;
    n.param_alpha = factor(xd, param_alpha), n.param_beta = factor(xd, param_beta);
    return queue_norm(handle, mode, back, &n);
}

/* The same with an activation, which is not supported. */
API int cudnnBatchNormalizationForwardTrainingEx(
    struct handle *handle, int mode, int operations, const void *alpha, const void *beta,
    const struct tensor *xd, const void *x, const struct tensor *zd, const void *z,
    const struct tensor *yd, void *y, const struct tensor *channels, const void *scale,
    const void *bias, double share, void *mean, void *variance, double epsilon, void *saved_mean,
    void *saved_inverse, const struct activation *activation, void *room, size_t bytes,
    void *reserve, size_t reserved) {
    (void)zd, (void)z, (void)activation, (void)room, (void)bytes, (void)reserve, (void)reserved;
    if (operations != OPS_ALONE) return NOT_SUPPORTED;
    return cudnnBatchNormalizationForwardTraining(handle, mode, alpha, beta, xd, x, yd, y, channels,
                                                  scale, bias, share, mean, variance, epsilon,
                                                  saved_mean, saved_inverse);
}
API int cudnnBatchNormalizationBackwardEx(
    struct handle *handle, int mode, int operations, const void *alpha, const void *beta,
    const void *param_alpha, const void *param_beta, const struct tensor *xd, const void *x,
    const struct tensor *yd, const void *y, const struct tensor *dyd, const void *dy,
    const struct tensor *dzd, void *dz, const struct tensor *dxd, void *dx,
    const struct tensor *channels, const void *scale, const void *bias, void *dscale, void *dbias,
    double epsilon, const void *saved_mean, const void *saved_inverse,
    const struct activation *activation, void *room, size_t bytes, void *reserve, size_t reserved) {
    (void)yd, (void)y, (void)dzd, (void)dz, (void)bias, (void)activation;
    (void)room, (void)bytes, (void)reserve, (void)reserved;
    if (operations != OPS_ALONE) return NOT_SUPPORTED;
    return cudnnBatchNormalizationBackward(handle, mode, alpha, beta, param_alpha, param_beta, xd,
                                           x, dyd, dy, dxd, dx, channels, scale, dscale, dbias,
                                           epsilon, saved_mean, saved_inverse);
}

/* Their workspace and reserve space are empty. The last parameter returns that. */
API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(struct handle *handle, int mode,
                                                                 int operations, void *xd, void *zd,
                                                                 void *yd, void *channels,
                                                                 void *activation, size_t *bytes) {
    NEEDS(bytes);
    (void)handle, (void)mode, (void)xd, (void)zd, (void)yd, (void)channels, (void)activation;
    *bytes = 0;
    return operations == OPS_ALONE ? OK : NOT_SUPPORTED;
}
API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(struct handle *handle, int mode,
                                                          int operations, void *xd, void *yd,
                                                          void *dyd, void *dzd, void *dxd,
                                                          void *channels, void *activation,
                                                          size_t *bytes) {
    NEEDS(bytes);
    (void)handle, (void)mode, (void)xd, (void)yd, (void)dyd, (void)dzd, (void)dxd;
    (void)channels, (void)activation;
    *bytes = 0;
    return operations == OPS_ALONE ? OK : NOT_SUPPORTED;
}
API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(struct handle *handle, int mode,
                                                             int operations, void *activation,
                                                             void *xd, size_t *bytes) {
    NEEDS(bytes);
    (void)handle, (void)mode, (void)activation, (void)xd;
    *bytes = 0;
    return operations == OPS_ALONE ? OK : NOT_SUPPORTED;
}

/* ---- dropout: states are stored, but nothing is dropped ---- */

struct dropout {
    float share;
    void *states;
    unsigned long long seed;
};

enum { STATES_BYTES = 1 << 16 };

API int cudnnCreateDropoutDescriptor(struct dropout **made) {
    NEEDS(made);
    *made = calloc(1, sizeof **made);
    return *made == NULL ? NO_MEMORY : OK;
}
API int cudnnDestroyDropoutDescriptor(struct dropout *dropout) {
    free(dropout);
    return OK;
}
API int cudnnDropoutGetStatesSize(struct handle *handle, size_t *bytes) {
    NEEDS(bytes);
    (void)handle;
    *bytes = STATES_BYTES;
    return OK;
}
static int set_dropout(struct dropout *dropout, float share, void *states, size_t bytes,
                       unsigned long long seed) {
    NEEDS(dropout);
    if (share < 0 || share > 1) return BAD_PARAM;
    if (states != NULL && bytes < STATES_BYTES) return BAD_PARAM;
    if (states != NULL && !on_card(states, STATES_BYTES)) return FAILED;
    *dropout = (struct dropout){share, states, seed};
    return OK;
}
API int cudnnSetDropoutDescriptor(struct dropout *dropout, struct handle *handle, float share,
                                  void *states, size_t bytes, unsigned long long seed) {
    return (void)handle, set_dropout(dropout, share, states, bytes, seed);
}
API int cudnnRestoreDropoutDescriptor(struct dropout *dropout, struct handle *handle, float share,
                                      void *states, size_t bytes, unsigned long long seed) {
    return (void)handle, set_dropout(dropout, share, states, bytes, seed);
}
API int cudnnGetDropoutDescriptor(struct dropout *dropout, struct handle *handle, float *share,
                                  void **states, unsigned long long *seed) {
    NEEDS(dropout, share, states, seed);
    (void)handle;
    *share = dropout->share;
    *states = dropout->states;
    *seed = dropout->seed;
    return OK;
}
