/* Translates descriptors of operations into steps. An operation's attributes have consecutive
 * numbers: cudnn_graph.h. */
#include "program.h"

#include <math.h>

enum { CONVOLUTION = 1, FORWARD_OPERATION = 10, FILTER_OPERATION, DATA_OPERATION };
enum { POINTWISE_OPERATION = 13, TENSOR = 17, PRODUCT_OPERATION = 19, REDUCTION_OPERATION = 22 };
enum { NORM_OPERATION = 29, NORM_BACK_OPERATION, RESHAPE_OPERATION };
enum { ATTENTION_OPERATION = 41, BAND_OPERATION = 44, SOFTMAX_OPERATION, TRANSPOSE_OPERATION };
enum { DATA_TYPE = 901, SIZES, STEPS, IS_VIRTUAL = 907, IS_BY_VALUE };

/* ---- tensors ---- */

int tensor_of(struct descriptor *d, struct tensor *tensor) {
    int64_t size[DIMENSIONS], stride[DIMENSIONS];
    if (d == NULL || type_of(d) != TENSOR) return BAD_PARAM;
    int rank = numbers(d, SIZES, size, DIMENSIONS);
    if (rank == 0 || numbers(d, STEPS, stride, DIMENSIONS) != rank) return BAD_PARAM;
    return tensor_set(tensor, whole(d, DATA_TYPE, 0), rank, size, stride);
}

/* A copy: an array that is assigned to is cleared first. */
static struct tensor sizes_of(const struct tensor *tensor) { return *tensor; }

static int slot_for(struct program *p, struct descriptor *tensor) {
    struct slot slot = {.id = 0, .kind = ON_CARD, .view_of = NONE};
    if (flag(tensor, IS_VIRTUAL)) slot.kind = VIRTUAL;
    if (flag(tensor, IS_BY_VALUE)) slot.kind = BY_VALUE;
    numbers(tensor, UNIQUE_ID, &slot.id, 1);
    int known = slot_find(p, slot.id);
    if (known != NONE) return known;
    failed(p, tensor_of(tensor, &slot.is));
    memcpy(slot.said, slot.is.stride, sizeof slot.said);
    if (p->status == OK && slot.kind == VIRTUAL)
        tensor_set(&slot.is, slot.is.data_type, slot.is.rank, sizes_of(&slot.is).size, NULL);
    if (p->status == OK && slot.kind == BY_VALUE && tensor_reach(&slot.is) != 1)
        not_here(p, "tensors by value with several elements");
    return slot_add(p, &slot);
}

int slot_of(struct program *p, struct descriptor *operation, int attribute) {
    if (!is_set(operation, attribute)) return NONE;
    struct descriptor *tensor = referred(operation, attribute);
    if (tensor == NULL || !is_final(tensor)) failed(p, NOT_FINALIZED);
    return p->status == OK ? slot_for(p, tensor) : NONE;
}

int slot_needed(struct program *p, struct descriptor *operation, int attribute) {
    int slot = slot_of(p, operation, attribute);
    if (slot == NONE) failed(p, BAD_PARAM);
    return slot;
}

void without(struct program *p, struct descriptor *operation, int attribute, const char *what) {
    if (is_set(operation, attribute)) not_here(p, what);
}

static const struct tensor *shape(const struct program *p, const struct step *step, int which) {
    return &p->slots[step->slots[which]].is;
}

/* Check that an operand's sizes fit another's, which may have more. */
static void fits(struct program *p, const struct step *step, int which, int over) {
    if (p->status != OK || !has(step, which)) return;
    if (!spreads(shape(p, step, which), shape(p, step, over))) failed(p, SHAPE_MISMATCH);
}

static void alike(struct program *p, const struct step *step, int which, int other) {
    if (p->status == OK && !same_size(shape(p, step, which), shape(p, step, other)))
        failed(p, SHAPE_MISMATCH);
}

#define STEP(function, count)                                                 \
    (struct step) {                                                           \
        .run = function, .results = count, .alpha = {1, 1},                   \
        .slots = {NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE} \
    }

/* ---- operations ---- */

int geometry_of(struct descriptor *d, struct geometry *g) {
    enum { MODE = 101, DILATIONS, STRIDES, AFTER, BEFORE, SPATIAL_DIMS, CROSS_CORRELATION = 1 };
    int64_t rank = 0;
    if (d == NULL || type_of(d) != CONVOLUTION) return BAD_PARAM;
    if (numbers(d, SPATIAL_DIMS, &rank, 1) != 1 || rank < 1) return BAD_PARAM;
    if (rank > SPATIAL) return NOT_SUPPORTED;
    *g = (struct geometry){.rank = (int)rank};
    g->is_convolution = whole(d, MODE, CROSS_CORRELATION) != CROSS_CORRELATION;
    bool all = numbers(d, DILATIONS, g->dilation, SPATIAL) == rank &&
               numbers(d, STRIDES, g->stride, SPATIAL) == rank &&
               numbers(d, BEFORE, g->before, SPATIAL) == rank &&
               numbers(d, AFTER, g->after, SPATIAL) == rank;
    return all ? OK : BAD_PARAM;
}

/* alpha, beta, the convolution, w, x and y. The result is the last of a forward pass, the one
 * before it of a data gradient, and so on. */
static void add_convolution(struct program *p, struct descriptor *d) {
    static const struct {
        int type, first, result, one, other; /* the attributes of x, w and y in this order */
        enum pass pass;
    } passes[] = {{FORWARD_OPERATION, 700, 705, 704, 703, FORWARD},
                  {DATA_OPERATION, 706, 710, 709, 711, BACKWARD_DATA},
                  {FILTER_OPERATION, 712, 715, 716, 717, BACKWARD_FILTER}};
    for (unsigned i = 0; i < sizeof passes / sizeof *passes; i++) {
        if (passes[i].type != type_of(d)) continue;
        struct step s = STEP(run_convolution, 1);
        s.mode = passes[i].pass;
        s.alpha[0] = real(d, passes[i].first, 1);
        s.alpha[1] = real(d, passes[i].first + 1, 0);
        failed(p, geometry_of(referred(d, passes[i].first + 2), &s.geometry));
        s.slots[CONVOLVED] = slot_needed(p, d, passes[i].result);
        s.slots[CONVOLVED_ONE] = slot_needed(p, d, passes[i].one);
        s.slots[CONVOLVED_OTHER] = slot_needed(p, d, passes[i].other);
        struct convolution c;
        if (p->status == OK) {
            c = convolution_of(p, &s);
            failed(p, convolution_check(&c));
        }
        step_add(p, &s);
    }
}

static void add_pointwise(struct program *p, struct descriptor *d) {
    enum { HOW = 750, X, B, Y, ALPHA1, ALPHA2, DX, DY, T };
    enum { MODE = 0, LOWER = 3, UPPER, SLOPE, ELU, SOFTPLUS, SWISH, AXIS };
    struct step s = STEP(run_pointwise, 1);
    struct descriptor *how = referred(d, HOW);
    int64_t axis = 0;
    if (how == NULL) failed(p, BAD_PARAM);
    numbers(how, AXIS, &axis, 1);
    s.pointwise = (struct pointwise){.mode = whole(how, MODE, 0),
                                     .axis = (int)axis,
                                     .lower = real(how, LOWER, 0),
                                     .upper = real(how, UPPER, INFINITY),
                                     .slope = real(how, SLOPE, 0),
                                     .elu = real(how, ELU, 1),
                                     .softplus = real(how, SOFTPLUS, 1),
                                     .swish = real(how, SWISH, 1)};
    int inputs = pointwise_inputs(s.pointwise.mode);
    bool backward = pointwise_is_backward(s.pointwise.mode);
    if (inputs == 0) not_here(p, "this mode of pointwise operation");
    if (axis < 0 || axis >= DIMENSIONS) failed(p, BAD_PARAM);
    s.alpha[0] = real(d, ALPHA1, 1);
    s.alpha[1] = real(d, ALPHA2, 1);
    s.slots[PW_Y] = slot_needed(p, d, backward ? DX : Y);
    s.slots[PW_X] = slot_needed(p, d, X);
    if (inputs > 1) s.slots[PW_B] = slot_needed(p, d, backward ? DY : B);
    if (inputs > 2) s.slots[PW_T] = slot_needed(p, d, T);
    for (int i = PW_X; i <= PW_T; i++) fits(p, &s, i, PW_Y);
    step_add(p, &s);
}

static void add_product(struct program *p, struct descriptor *d) {
    enum { A = 1520, B, C, HOW, M_OVERRIDE = 1525, N_OVERRIDE, K_OVERRIDE };
    struct step s = STEP(run_product, 1);
    for (int i = M_OVERRIDE; i <= K_OVERRIDE; i++) without(p, d, i, "products of part of a matrix");
    s.slots[PRODUCT_C] = slot_needed(p, d, C);
    s.slots[PRODUCT_A] = slot_needed(p, d, A);
    s.slots[PRODUCT_B] = slot_needed(p, d, B);
    if (referred(d, HOW) == NULL) failed(p, BAD_PARAM);
    add_product_of(p, &s);
}

void add_product_of(struct program *p, const struct step *s) {
    if (p->status != OK) return;
    const struct tensor *a = shape(p, s, PRODUCT_A), *b = shape(p, s, PRODUCT_B);
    const struct tensor *c = shape(p, s, PRODUCT_C);
    int row = c->rank - 2, column = c->rank - 1;
    if (row < 0 || a->rank != c->rank || b->rank != c->rank || a->size[row] != c->size[row] ||
        b->size[column] != c->size[column] || a->size[column] != b->size[row])
        failed(p, SHAPE_MISMATCH);
    for (int i = 0; i < row; i++)
        if (c->size[i] % a->size[i] != 0 || c->size[i] % b->size[i] != 0) failed(p, SHAPE_MISMATCH);
    step_add(p, s);
}

static void add_reduction(struct program *p, struct descriptor *d) {
    enum { X = 1610, Y, HOW, GROUPS, MODE = 1600 };
    struct step s = STEP(run_reduction, 1);
    s.mode = whole(referred(d, HOW), MODE, NONE);
    without(p, d, GROUPS, "grouped reductions");
    if (!reduction_is_here(s.mode)) not_here(p, "this kind of reduction");
    s.slots[REDUCED_Y] = slot_needed(p, d, Y);
    s.slots[REDUCED_X] = slot_needed(p, d, X);
    fits(p, &s, REDUCED_Y, REDUCED_X);
    step_add(p, &s);
}

static int norm_kind(struct program *p, struct descriptor *d, int attribute) {
    int kind = whole(d, attribute, NONE);
    if (kind < LAYER_NORM || kind > RMS_NORM || kind == BATCH_NORM + 1)
        not_here(p, "this kind of normalisation");
    return kind;
}

static void add_norm(struct program *p, struct descriptor *d) {
    enum { MODE = 2000, PHASE, X, MEAN, INVERSE, SCALE, BIAS, EPSILON, AVERAGE, LAST = 2012 };
    enum { Y = 2013, PEERS, TRAINING = 1 };
    struct step s = STEP(run_norm, 3);
    s.mode = norm_kind(p, d, MODE);
    for (int i = AVERAGE; i <= LAST; i++) without(p, d, i, "running statistics in graphs");
    without(p, d, PEERS, "normalisation over several cards");
    bool inference = whole(d, PHASE, TRAINING) != TRAINING;
    if (inference && (s.mode == BATCH_NORM || is_set(d, MEAN)))
        not_here(p, "normalisation by given statistics in graphs");
    s.slots[NORM_Y] = slot_needed(p, d, Y);
    s.slots[NORM_X] = slot_needed(p, d, X);
    s.slots[NORM_SCALE] = slot_needed(p, d, SCALE);
    s.slots[NORM_BIAS] = slot_of(p, d, BIAS);
    s.slots[NORM_EPSILON] = slot_needed(p, d, EPSILON);
    s.slots[NORM_MEAN] = slot_of(p, d, MEAN);
    s.slots[NORM_INVERSE] = slot_of(p, d, INVERSE);
    if (p->status == OK) alike(p, &s, NORM_Y, NORM_X);
    for (int i = NORM_MEAN; i <= NORM_EPSILON; i++) fits(p, &s, i, NORM_X);
    if (p->status == OK) failed(p, norm_check(p, &s, NORM_X, NORM_SCALE, NORM_MEAN, NORM_INVERSE));
    step_add(p, &s);
}

static void add_norm_back(struct program *p, struct descriptor *d) {
    enum { MODE = 2100, X, MEAN, INVERSE, DY, SCALE, EPSILON, DSCALE, DBIAS, DX, PEERS };
    struct step s = STEP(run_norm_back, 3);
    s.mode = norm_kind(p, d, MODE);
    without(p, d, PEERS, "normalisation over several cards");
    s.slots[BACK_DX] = slot_needed(p, d, DX);
    s.slots[BACK_DSCALE] = slot_of(p, d, DSCALE);
    s.slots[BACK_DBIAS] = slot_of(p, d, DBIAS);
    s.slots[BACK_X] = slot_needed(p, d, X);
    s.slots[BACK_DY] = slot_needed(p, d, DY);
    s.slots[BACK_SCALE] = slot_needed(p, d, SCALE);
    s.slots[BACK_MEAN] = s.mode == RMS_NORM ? NONE : slot_needed(p, d, MEAN);
    s.slots[BACK_INVERSE] = slot_needed(p, d, INVERSE);
    if (p->status == OK) alike(p, &s, BACK_DX, BACK_X);
    if (p->status == OK) alike(p, &s, BACK_DY, BACK_X);
    for (int i = BACK_DSCALE; i <= BACK_INVERSE; i++) fits(p, &s, i, BACK_X);
    if (p->status == OK) failed(p, norm_check(p, &s, BACK_X, BACK_SCALE, BACK_MEAN, BACK_INVERSE));
    step_add(p, &s);
}

static void add_band(struct program *p, struct descriptor *d) {
    enum { X = 3000, LENGTH_KV, LENGTH_Q, LEFT, RIGHT, OTHERWISE, Y, COMPARISON, SUM_KV, SUM_Q };
    struct step s = STEP(run_band, 1);
    s.mode = whole(d, COMPARISON, NONE);
    if (pointwise_inputs(s.mode) != 2) failed(p, BAD_PARAM);
    without(p, d, SUM_KV, "sequences of different lengths");
    without(p, d, SUM_Q, "sequences of different lengths");
    s.slots[BAND_Y] = slot_needed(p, d, Y);
    s.slots[BAND_X] = slot_needed(p, d, X);
    s.slots[BAND_OTHERWISE] = slot_of(p, d, OTHERWISE);
    s.slots[BAND_LEFT] = slot_of(p, d, LEFT);
    s.slots[BAND_RIGHT] = slot_of(p, d, RIGHT);
    s.slots[BAND_LENGTH_Q] = slot_of(p, d, LENGTH_Q);
    s.slots[BAND_LENGTH_KV] = slot_of(p, d, LENGTH_KV);
    if (p->status == OK) alike(p, &s, BAND_Y, BAND_X);
    if (p->status == OK && shape(p, &s, BAND_Y)->rank < 2) failed(p, SHAPE_MISMATCH);
    for (int i = BAND_OTHERWISE; i <= BAND_LENGTH_KV; i++) fits(p, &s, i, BAND_Y);
    step_add(p, &s);
}

void add_softmax_of(struct program *p, struct descriptor *d, int x, int y) {
    enum { STATS = 3102, MAX, SUM, SINK, LOG2 };
    struct step s = STEP(run_softmax, 4);
    s.slots[SOFTMAX_Y] = y;
    s.slots[SOFTMAX_X] = x;
    if (d != NULL) {
        without(p, d, LOG2, "base-2 statistics");
        s.slots[SOFTMAX_STATS] = slot_of(p, d, STATS);
        s.slots[SOFTMAX_MAX] = slot_of(p, d, MAX);
        s.slots[SOFTMAX_SUM] = slot_of(p, d, SUM);
        s.slots[SOFTMAX_SINK] = slot_of(p, d, SINK);
    }
    softmax_add(p, &s);
}

void softmax_add(struct program *p, struct step *s) {
    if (p->status == OK) alike(p, s, SOFTMAX_Y, SOFTMAX_X);
    for (int i = SOFTMAX_STATS; p->status == OK && i <= SOFTMAX_SUM; i++) {
        if (!has(s, i)) continue;
        struct tensor rows = *shape(p, s, SOFTMAX_X);
        rows.size[rows.rank - 1] = 1;
        if (!same_size(shape(p, s, i), &rows)) failed(p, SHAPE_MISMATCH);
    }
    fits(p, s, SOFTMAX_SINK, SOFTMAX_X);
    step_add(p, s);
}

static void add_softmax(struct program *p, struct descriptor *d) {
    enum { X = 3100, Y };
    int x = slot_needed(p, d, X), y = slot_needed(p, d, Y);
    add_softmax_of(p, d, x, y);
}

/* The result is another array with another layout. */
static void add_copy(struct program *p, int view, int y) {
    struct step s = STEP(run_pointwise, 1);
    s.pointwise.mode = PW_IDENTITY;
    s.slots[PW_Y] = y;
    s.slots[PW_X] = view;
    step_add(p, &s);
}

/* A view of a virtual array: dimensions in another order, found by their sizes and strides. */
static bool reordered(const struct slot *from, const struct slot *to, struct tensor *view) {
    bool taken[DIMENSIONS] = {false};
    if (from->is.rank != to->is.rank) return false;
    for (int i = 0; i < to->is.rank; i++) {
        int which = 0;
        while (which < from->is.rank && (taken[which] || from->is.size[which] != to->is.size[i] ||
                                         (from->said[which] != to->said[i] && to->is.size[i] != 1)))
            which++;
        if (which == from->is.rank) return false;
        taken[which] = true;
        view->stride[i] = from->is.stride[which];
    }
    return true;
}

/* Return whether its strides are those of a dense array in the order of its dimensions. */
static bool in_order(const struct slot *slot) {
    int64_t dense = 1;
    for (int i = slot->is.rank - 1; i >= 0; dense *= slot->is.size[i--])
        if (slot->is.size[i] != 1 && slot->said[i] != dense) return false;
    return true;
}

static void add_reshape(struct program *p, struct descriptor *d) {
    enum { X = 2200, Y, MODE, VIEW_ONLY = 0 };
    int x = slot_needed(p, d, X), y = slot_needed(p, d, Y);
    if (p->status != OK) return;
    const struct slot *from = &p->slots[x], *to = &p->slots[y];
    struct tensor is = to->is;
    if (tensor_count(&is) != tensor_count(&from->is)) failed(p, SHAPE_MISMATCH);
    bool view = whole(d, MODE, VIEW_ONLY) == VIEW_ONLY;
    if (view && from->kind == ON_CARD) {
        memcpy(is.stride, to->said, sizeof is.stride);
    } else if (!view || !reordered(from, to, &is)) { /* in the order of the dimensions */
        bool whole_memory = tensor_reach(&from->is) == tensor_count(&from->is);
        if (!whole_memory || (view && (!in_order(from) || !in_order(to))))
            not_here(p, "this kind of reshaping");
        failed(p, tensor_set(&is, is.data_type, is.rank, to->is.size, NULL));
    }
    add_copy(p, slot_view(p, x, HIDDEN, &is), y);
}

static void add_transpose(struct program *p, struct descriptor *d) {
    enum { X = 3200, Y, ORDER };
    int64_t order[DIMENSIONS];
    int x = slot_needed(p, d, X), y = slot_needed(p, d, Y);
    if (p->status != OK) return;
    const struct tensor *from = &p->slots[x].is;
    struct tensor is = *from;
    if (numbers(d, ORDER, order, DIMENSIONS) != from->rank) failed(p, BAD_PARAM);
    for (int i = 0; p->status == OK && i < from->rank; i++) {
        if (order[i] < 0 || order[i] >= from->rank) {
            failed(p, BAD_PARAM);
            return;
        }
        is.size[i] = from->size[order[i]];
        is.stride[i] = from->stride[order[i]];
    }
    if (p->status == OK && !same_size(&is, &p->slots[y].is)) failed(p, SHAPE_MISMATCH);
    add_copy(p, slot_view(p, x, HIDDEN, &is), y);
}

/* ---- all of them ---- */

static const struct {
    int type;
    void (*add)(struct program *program, struct descriptor *operation);
} operations[] = {
    {FORWARD_OPERATION, add_convolution}, {FILTER_OPERATION, add_convolution},
    {DATA_OPERATION, add_convolution},    {POINTWISE_OPERATION, add_pointwise},
    {PRODUCT_OPERATION, add_product},     {REDUCTION_OPERATION, add_reduction},
    {NORM_OPERATION, add_norm},           {NORM_BACK_OPERATION, add_norm_back},
    {RESHAPE_OPERATION, add_reshape},     {TRANSPOSE_OPERATION, add_transpose},
    {SOFTMAX_OPERATION, add_softmax},     {BAND_OPERATION, add_band},
    {ATTENTION_OPERATION, add_attention},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };

bool is_operation(const struct descriptor *d) {
    for (int i = 0; d != NULL && i < OPERATIONS; i++)
        if (operations[i].type == type_of(d)) return true;
    return false;
}

void add_operation(struct program *p, struct descriptor *d) {
    for (int i = 0; i < OPERATIONS; i++)
        if (operations[i].type == type_of(d)) operations[i].add(p, d);
}

void add_operations(struct program *p, struct descriptor *graph) {
    struct descriptor *operation;
    if (referred_of(graph, GRAPH_OPERATIONS, 0) == NULL) failed(p, BAD_PARAM);
    for (int64_t i = 0; (operation = referred_of(graph, GRAPH_OPERATIONS, i)) != NULL; i++) {
        if (!is_operation(operation)) failed(p, BAD_PATTERN);
        if (!is_final(operation)) failed(p, NOT_FINALIZED);
        if (p->status == OK) add_operation(p, operation);
    }
}
