/* Convolutions and their gradients: every product of matching input, weight and output elements is
 * added to the requested one of the three. */
#include "dnn.h"

int64_t convolved_size(const struct geometry *g, int dimension, int64_t size, int64_t filter) {
    int64_t reach = g->dilation[dimension] * (filter - 1) + 1;
    return (size + g->before[dimension] + g->after[dimension] - reach) / g->stride[dimension] + 1;
}

static const struct array *result_of(const struct convolution *c) {
    return c->pass == FORWARD ? &c->y : c->pass == BACKWARD_DATA ? &c->x : &c->w;
}

static bool among(int64_t value, int64_t least) { return value >= least && value <= INT32_MAX; }

int convolution_check(const struct convolution *c) {
    const struct tensor *x = &c->x.is, *w = &c->w.is, *y = &c->y.is;
    const struct geometry *g = &c->geometry;
    if (x->rank != g->rank + 2 || w->rank != x->rank || y->rank != x->rank) return SHAPE_MISMATCH;
    if (!known_type(x->type) || !known_type(y->type) || x->type != w->type) return BAD_TYPE;
    int64_t groups = x->size[1] / w->size[1];
    if (x->size[0] != y->size[0] || w->size[0] != y->size[1] || x->size[1] % w->size[1] != 0 ||
        w->size[0] % groups != 0)
        return SHAPE_MISMATCH;
    for (int i = 0; i < g->rank; i++) {
        if (!among(g->before[i], 0) || !among(g->after[i], 0) || !among(g->stride[i], 1) ||
            !among(g->dilation[i], 1))
            return BAD_PARAM;
        if (y->size[i + 2] != convolved_size(g, i, x->size[i + 2], w->size[i + 2]))
            return SHAPE_MISMATCH;
    }
    return OK;
}

/* Find the input of an output and a weight; false: it is padding. `at`: image, output channel,
 * channel of the group, places of the output, places of the filter. */
static bool belong(const struct convolution *c, const int64_t *at, int64_t *x, int64_t *w,
                   int64_t *y) {
    int64_t channels = c->w.is.size[1], groups = c->x.is.size[1] / channels;
    int64_t group = at[1] / (c->w.is.size[0] / groups);
    x[0] = y[0] = at[0];
    w[0] = y[1] = at[1];
    w[1] = at[2];
    x[1] = group * channels + at[2];
    for (int i = 0; i < SPATIAL; i++) {
        int64_t out = at[3 + i], tap = at[3 + SPATIAL + i];
        bool used = i < c->geometry.rank;
        x[2 + i] = used ? out * c->geometry.stride[i] + tap * c->geometry.dilation[i] -
                              c->geometry.before[i]
                        : 0;
        w[2 + i] = c->geometry.is_convolution ? c->w.is.size[2 + i] - 1 - tap : tap;
        y[2 + i] = out;
        if (x[2 + i] < 0 || x[2 + i] >= c->x.is.size[2 + i]) return false;
    }
    return true;
}

static int64_t row_major(const struct tensor *tensor, const int64_t *at) {
    int64_t index = 0;
    for (int i = 0; i < DIMENSIONS; i++) index = index * tensor->size[i] + at[i];
    return index;
}

static void add_products(const struct convolution *c, double *sums) {
    int64_t size[3 + 2 * SPATIAL] = {c->x.is.size[0], c->w.is.size[0], c->w.is.size[1]};
    int64_t at[3 + 2 * SPATIAL] = {0}, x[DIMENSIONS], w[DIMENSIONS], y[DIMENSIONS];
    memcpy(size + 3, c->y.is.size + 2, SPATIAL * sizeof *size);
    memcpy(size + 3 + SPATIAL, c->w.is.size + 2, SPATIAL * sizeof *size);
    do {
        if (!belong(c, at, x, w, y)) continue;
        if (c->pass == FORWARD)
            sums[row_major(&c->y.is, y)] += get(&c->x, x) * get(&c->w, w);
        else if (c->pass == BACKWARD_DATA)
            sums[row_major(&c->x.is, x)] += get(&c->y, y) * get(&c->w, w);
        else
            sums[row_major(&c->w.is, w)] += get(&c->x, x) * get(&c->y, y);
    } while (step(size, at, 3 + 2 * SPATIAL));
}

static double with_epilogue(const struct convolution *c, const int64_t *at, double value) {
    int64_t channel[DIMENSIONS] = {0, at[1]};
    if (c->z_factor != 0) value += c->z_factor * get(&c->z, at);
    value += get(&c->bias, channel);
    return c->relu && value < 0 ? 0 : value;
}

void convolution_run(void *data) {
    const struct convolution *c = data;
    const struct array *result = result_of(c);
    int64_t at[DIMENSIONS] = {0};
    double *sums = calloc((size_t)tensor_count(&result->is), sizeof *sums), *sum = sums;
    if (sums == NULL) abort(); /* otherwise the result would be wrong without an error */
    add_products(c, sums);
    do {
        if (c->has_epilogue)
            put(result, at, with_epilogue(c, at, c->alpha * *sum++));
        else
            blend(result, at, c->alpha, *sum++, c->beta);
    } while (step(result->is.size, at, DIMENSIONS));
    free(sums);
}

int convolution_queue(CUstream stream, const struct convolution *c) {
    int status = convolution_check(c);
    if (status != OK) return status;
    if (!stands(&c->x) || !stands(&c->w) || !stands(&c->y)) return FAILED;
    if (c->has_epilogue && (!stands(&c->bias) || (c->z_factor != 0 && !stands(&c->z))))
        return FAILED;
    return queued(queue(stream, convolution_run, c, sizeof *c));
}
