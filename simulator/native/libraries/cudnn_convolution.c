/* Simulated cuDNN: convolutions as functions. There is one algorithm, and it needs no workspace.
 * Numbers: cudnn_cnn.h. */
#include "dnn.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

struct settings {
    struct geometry geometry;
    int groups, math;
};

API int cudnnCreateConvolutionDescriptor(struct settings **made) {
    NEEDS(made);
    *made = calloc(1, sizeof **made);
    if (*made == NULL) return NO_MEMORY;
    (*made)->groups = 1;
    return OK;
}
API int cudnnDestroyConvolutionDescriptor(struct settings *settings) {
    free(settings);
    return OK;
}
API int cudnnSetConvolutionNdDescriptor(struct settings *settings, int rank, const int *padding,
                                        const int *stride, const int *dilation, int mode,
                                        int type) {
    NEEDS(settings);
    struct geometry *g = &settings->geometry;
    (void)type; /* sums have double precision */
    if (rank < 1 || padding == NULL || stride == NULL || dilation == NULL) return BAD_PARAM;
    if (rank > SPATIAL) return NOT_SUPPORTED;
    *g = (struct geometry){.rank = rank, .is_convolution = mode == 0};
    for (int i = 0; i < rank; i++) {
        g->before[i] = g->after[i] = padding[i];
        g->stride[i] = stride[i];
        g->dilation[i] = dilation[i];
    }
    return OK;
}
API int cudnnSetConvolutionGroupCount(struct settings *settings, int groups) {
    NEEDS(settings);
    settings->groups = groups;
    return groups < 1 ? BAD_PARAM : OK;
}
API int cudnnSetConvolutionMathType(struct settings *settings, int math) {
    NEEDS(settings);
    settings->math = math;
    return OK;
}

/* ---- parts of a convolution ---- */

static struct convolution described(enum pass pass, const struct settings *settings,
                                    const struct tensor *x, const struct tensor *w,
                                    const struct tensor *y) {
    return (struct convolution){
        .pass = pass, .geometry = settings->geometry, .x.is = *x, .w.is = *w, .y.is = *y};
}

static int check(const struct convolution *c, const struct settings *settings) {
    if (c->x.is.size[1] != c->w.is.size[1] * settings->groups) return SHAPE_MISMATCH;
    return convolution_check(c);
}

static int convolve(const struct handle *handle, const struct settings *settings,
                    struct convolution *c, const void *alpha, const void *beta) {
    int status = check(c, settings);
    if (status != OK) return status;
    c->alpha = factor(&c->x.is, alpha);
    c->beta = factor(&c->x.is, beta);
    return convolution_queue(handle->stream, c);
}

#define NOT_CONST(at) ((void *)(uintptr_t)(at))

API int cudnnConvolutionForward(struct handle *handle, const void *alpha, const struct tensor *xd,
                                const void *x, const struct tensor *wd, const void *w,
                                const struct settings *settings, int algorithm, void *room,
                                size_t bytes, const void *beta, const struct tensor *yd, void *y) {
    NEEDS(handle, alpha, xd, wd, settings, beta, yd);
    struct convolution c = described(FORWARD, settings, xd, wd, yd);
    (void)algorithm, (void)room, (void)bytes;
    c.x.at = NOT_CONST(x), c.w.at = NOT_CONST(w), c.y.at = y;
    return convolve(handle, settings, &c, alpha, beta);
}
API int cudnnConvolutionBackwardData(struct handle *handle, const void *alpha,
                                     const struct tensor *wd, const void *w,
                                     const struct tensor *dyd, const void *dy,
                                     const struct settings *settings, int algorithm, void *room,
                                     size_t bytes, const void *beta, const struct tensor *dxd,
                                     void *dx) {
    NEEDS(handle, alpha, wd, dyd, settings, beta, dxd);
    struct convolution c = described(BACKWARD_DATA, settings, dxd, wd, dyd);
    (void)algorithm, (void)room, (void)bytes;
    c.x.at = dx, c.w.at = NOT_CONST(w), c.y.at = NOT_CONST(dy);
    return convolve(handle, settings, &c, alpha, beta);
}
API int cudnnConvolutionBackwardFilter(struct handle *handle, const void *alpha,
                                       const struct tensor *xd, const void *x,
                                       const struct tensor *dyd, const void *dy,
                                       const struct settings *settings, int algorithm, void *room,
                                       size_t bytes, const void *beta, const struct tensor *dwd,
                                       void *dw) {
    NEEDS(handle, alpha, xd, dyd, settings, beta, dwd);
    struct convolution c = described(BACKWARD_FILTER, settings, xd, dwd, dyd);
    (void)algorithm, (void)room, (void)bytes;
    c.x.at = NOT_CONST(x), c.w.at = dw, c.y.at = NOT_CONST(dy);
    return convolve(handle, settings, &c, alpha, beta);
}

API int cudnnConvolutionBiasActivationForward(
    struct handle *handle, const void *alpha, const struct tensor *xd, const void *x,
    const struct tensor *wd, const void *w, const struct settings *settings, int algorithm,
    void *room, size_t bytes, const void *z_factor, const struct tensor *zd, const void *z,
    const struct tensor *biasd, const void *bias, const struct activation *activation,
    const struct tensor *yd, void *y) {
    NEEDS(handle, alpha, xd, wd, settings, z_factor, zd, biasd, activation, yd);
    enum { RELU = 1, IDENTITY = 5 };
    struct convolution c = described(FORWARD, settings, xd, wd, yd);
    (void)algorithm, (void)room, (void)bytes;
    if (activation->mode != RELU && activation->mode != IDENTITY) return NOT_SUPPORTED;
    if (!same_size(zd, yd) || biasd->size[1] != yd->size[1]) return SHAPE_MISMATCH;
    c.x.at = NOT_CONST(x), c.w.at = NOT_CONST(w), c.y.at = y;
    c.has_epilogue = true, c.relu = activation->mode == RELU;
    c.z = (struct array){*zd, NOT_CONST(z)}, c.bias = (struct array){*biasd, NOT_CONST(bias)};
    c.z_factor = factor(xd, z_factor);
    return convolve(handle, settings, &c, alpha, alpha);
}

/* ---- choice of an algorithm ---- */

struct performance { /* cudnnConvolutionFwdAlgoPerf_t and the like */
    int algorithm, status;
    float milliseconds;
    size_t bytes;
    int deterministic, math, reserved[3];
};

static int one_algorithm(const struct convolution *c, const struct settings *settings, int wanted,
                         int *count, struct performance *found) {
    int status = check(c, settings);
    if (status != OK) return status;
    if (wanted < 1 || count == NULL || found == NULL) return BAD_PARAM;
    *found = (struct performance){.algorithm = 1, .deterministic = 1, .math = settings->math};
    *count = 1;
    return OK;
}
static int no_room(const struct convolution *c, const struct settings *settings, size_t *bytes) {
    *bytes = 0;
    return check(c, settings);
}

#define ALGORITHMS(name, PASS, first, second, last, x, w, y)                                    \
    API int cudnnGetConvolution##name##Algorithm_v7(                                            \
        struct handle *handle, const struct tensor *first, const struct tensor *second,         \
        const struct settings *settings, const struct tensor *last, int wanted, int *count,     \
        struct performance *found) {                                                            \
        NEEDS(first, second, settings, last);                                                   \
        struct convolution c = described(PASS, settings, x, w, y);                              \
        return (void)handle, one_algorithm(&c, settings, wanted, count, found);                 \
    }                                                                                           \
    API int cudnnFindConvolution##name##AlgorithmEx(                                            \
        struct handle *handle, const struct tensor *first, const void *a,                       \
        const struct tensor *second, const void *b, const struct settings *settings,            \
        const struct tensor *last, void *to, int wanted, int *count, struct performance *found, \
        void *room, size_t bytes) {                                                             \
        NEEDS(first, second, settings, last);                                                   \
        struct convolution c = described(PASS, settings, x, w, y);                              \
        (void)handle, (void)a, (void)b, (void)to, (void)room, (void)bytes;                      \
        return one_algorithm(&c, settings, wanted, count, found);                               \
    }                                                                                           \
    API int cudnnGetConvolution##name##WorkspaceSize(                                           \
        struct handle *handle, const struct tensor *first, const struct tensor *second,         \
        const struct settings *settings, const struct tensor *last, int algorithm,              \
        size_t *bytes) {                                                                        \
        NEEDS(first, second, settings, last, bytes);                                            \
        struct convolution c = described(PASS, settings, x, w, y);                              \
        return (void)handle, (void)algorithm, no_room(&c, settings, bytes);                     \
    }
ALGORITHMS(Forward, FORWARD, xd, wd, yd, xd, wd, yd)
ALGORITHMS(BackwardData, BACKWARD_DATA, wd, dyd, dxd, dxd, wd, dyd)
ALGORITHMS(BackwardFilter, BACKWARD_FILTER, xd, dyd, dwd, xd, dwd, dyd)
