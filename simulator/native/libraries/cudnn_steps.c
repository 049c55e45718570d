/* The steps of programs: products, reductions, softmax, masks, normalisation. Sums have double
 * precision and are rounded once. */
#include "program.h"

#include <math.h>

void run_pointwise(const struct program *p, const struct step *s) {
    struct array y = operand(p, s, PW_Y), x = operand(p, s, PW_X), b = x, t = x;
    const struct pointwise *how = &s->pointwise;
    int64_t at[DIMENSIONS] = {0};
    if (has(s, PW_B)) b = operand(p, s, PW_B);
    if (has(s, PW_T)) t = operand(p, s, PW_T);
    do {
        double first = s->alpha[0] * spread(&x, at, y.is.size), value;
        double second = has(s, PW_B) ? s->alpha[1] * spread(&b, at, y.is.size) : 0;
        if (how->mode == PW_GEN_INDEX)
            value = (double)at[how->axis];
        else if (how->mode == PW_SELECT)
            value = spread(&t, at, y.is.size) != 0 ? first : second;
        else
            value = pointwise(how, first, second);
        put(&y, at, value);
    } while (step(y.is.size, at, DIMENSIONS));
}

void run_product(const struct program *p, const struct step *s) {
    struct array a = operand(p, s, PRODUCT_A), b = operand(p, s, PRODUCT_B);
    struct array c = operand(p, s, PRODUCT_C);
    int row = c.is.rank - 2, column = c.is.rank - 1;
    int64_t at[DIMENSIONS] = {0};
    do {
        int64_t of_a[DIMENSIONS], of_b[DIMENSIONS];
        double sum = 0;
        for (int i = 0; i < DIMENSIONS; i++) {
            of_a[i] = i == row ? at[i] : at[i] * a.is.size[i] / c.is.size[i];
            of_b[i] = i == column ? at[i] : at[i] * b.is.size[i] / c.is.size[i];
        }
        for (int64_t k = 0; k < a.is.size[column]; k++) {
            of_a[column] = of_b[row] = k;
            sum += get(&a, of_a) * get(&b, of_b);
        }
        put(&c, at, sum);
    } while (step(c.is.size, at, DIMENSIONS));
}

/* ---- reductions: cudnnReduceTensorOp_t ---- */

enum { ADD, MUL, MIN, MAX, AMAX, AVG, NORM1, NORM2, MUL_NO_ZEROS };

bool reduction_is_here(int mode) { return mode >= ADD && mode <= MUL_NO_ZEROS; }

static double reduced(int mode, double sum, double value) {
    switch (mode) {
    case MUL: return sum * value;
    case MUL_NO_ZEROS: return value == 0 ? sum : sum * value;
    case MIN: return value < sum ? value : sum;
    case MAX: return value > sum ? value : sum;
    case AMAX: return fabs(value) > sum ? fabs(value) : sum;
    case NORM1: return sum + fabs(value);
    case NORM2: return sum + value * value;
    default: return sum + value;
    }
}

static double neutral(int mode) {
    if (mode == MUL || mode == MUL_NO_ZEROS) return 1;
    return mode == MIN ? INFINITY : mode == MAX ? -INFINITY : 0;
}

void run_reduction(const struct program *p, const struct step *s) {
    struct array y = operand(p, s, REDUCED_Y), x = operand(p, s, REDUCED_X);
    int64_t at[DIMENSIONS] = {0}, each = 1;
    int64_t many[DIMENSIONS];
    for (int i = 0; i < DIMENSIONS; i++) each *= many[i] = x.is.size[i] / y.is.size[i];
    do {
        double sum = neutral(s->mode);
        int64_t within[DIMENSIONS] = {0}, from[DIMENSIONS];
        do {
            for (int i = 0; i < DIMENSIONS; i++) from[i] = at[i] * many[i] + within[i];
            sum = reduced(s->mode, sum, get(&x, from));
        } while (step(many, within, DIMENSIONS));
        put(&y, at, s->mode == AVG ? sum / (double)each : s->mode == NORM2 ? sqrt(sum) : sum);
    } while (step(y.is.size, at, DIMENSIONS));
}

/* ---- softmax, along the last dimension ---- */

static void put_if(const struct program *p, const struct step *s, int which, const int64_t *at,
                   double value) {
    if (!has(s, which)) return;
    struct array array = operand(p, s, which);
    put(&array, at, value);
}

void run_softmax(const struct program *p, const struct step *s) {
    struct array y = operand(p, s, SOFTMAX_Y), x = operand(p, s, SOFTMAX_X), sink = x;
    int64_t at[DIMENSIONS] = {0}, rows[DIMENSIONS];
    int last = x.is.rank - 1;
    memcpy(rows, x.is.size, sizeof rows);
    rows[last] = 1;
    if (has(s, SOFTMAX_SINK)) sink = operand(p, s, SOFTMAX_SINK);
    do {
        double most = has(s, SOFTMAX_SINK) ? spread(&sink, at, rows) : -INFINITY;
        double extra = most, sum = 0, from;
        for (at[last] = 0; at[last] < x.is.size[last]; at[last]++) most = fmax(most, get(&x, at));
        from = isinf(most) && most < 0 ? 0 : most; /* a row with all elements masked is 0 */
        if (has(s, SOFTMAX_SINK)) sum = exp(extra - from);
        for (at[last] = 0; at[last] < x.is.size[last]; at[last]++) sum += exp(get(&x, at) - from);
        for (at[last] = 0; at[last] < x.is.size[last]; at[last]++)
            put(&y, at, sum == 0 ? 0 : exp(get(&x, at) - from) / sum);
        at[last] = 0;
        put_if(p, s, SOFTMAX_STATS, at, most + log(sum));
        put_if(p, s, SOFTMAX_MAX, at, most);
        put_if(p, s, SOFTMAX_SUM, at, sum);
    } while (step(rows, at, DIMENSIONS));
}

/* ---- a band along the diagonal ---- */

static double value_or(const struct program *p, const struct step *s, int which, const int64_t *at,
                       const int64_t *size, double otherwise) {
    if (!has(s, which)) return otherwise;
    struct array array = operand(p, s, which);
    return spread(&array, at, size);
}

/* Keep elements where the comparison of the shifted row with the column holds, or with a left bound
 * that of the shifted column with the row. Lengths move the diagonal to the lower right corner. */
void run_band(const struct program *p, const struct step *s) {
    struct array y = operand(p, s, BAND_Y), x = operand(p, s, BAND_X);
    int64_t at[DIMENSIONS] = {0};
    struct pointwise compare = {.mode = s->mode};
    do {
        double q = value_or(p, s, BAND_LENGTH_Q, at, y.is.size, 0);
        double kv = value_or(p, s, BAND_LENGTH_KV, at, y.is.size, 0);
        double row = (double)at[y.is.rank - 2], column = (double)at[y.is.rank - 1];
        bool kept;
        if (has(s, BAND_LEFT)) {
            column += value_or(p, s, BAND_LEFT, at, y.is.size, 0) - kv + q;
            kept = pointwise(&compare, column, row) != 0;
        } else {
            row += value_or(p, s, BAND_RIGHT, at, y.is.size, 0) + kv - q;
            kept = pointwise(&compare, row, column) != 0;
        }
        put(&y, at, kept ? get(&x, at) : value_or(p, s, BAND_OTHERWISE, at, y.is.size, -INFINITY));
    } while (step(y.is.size, at, DIMENSIONS));
}

/* ---- normalisation ---- */

/* The range of one mean: sizes of the statistics, and of the elements of each. */
struct groups {
    int64_t size[DIMENSIONS], within[DIMENSIONS], each;
};

static struct groups groups_of(int mode, const struct tensor *x, const struct tensor *scale) {
    struct groups g = {.each = 1};
    for (int i = 0; i < DIMENSIONS; i++) {
        bool kept = mode == INSTANCE_NORM ? i < 2
                    : mode == BATCH_NORM  ? i == 1
                                          : scale->size[i] == 1;
        g.size[i] = kept ? x->size[i] : 1;
        g.within[i] = x->size[i] / g.size[i];
        g.each *= g.within[i];
    }
    return g;
}

int norm_check(const struct program *p, const struct step *s, int x, int scale, int mean,
               int inverse) {
    const struct tensor *input = &p->slots[s->slots[x]].is;
    struct groups g = groups_of(s->mode, input, &p->slots[s->slots[scale]].is);
    int statistics[] = {mean, inverse};
    for (int i = 0; i < 2; i++)
        if (has(s, statistics[i]) &&
            memcmp(p->slots[s->slots[statistics[i]]].is.size, g.size, sizeof g.size) != 0)
            return SHAPE_MISMATCH;
    return OK;
}

static void place(const struct groups *g, const int64_t *at, const int64_t *within, int64_t *to) {
    for (int i = 0; i < DIMENSIONS; i++) to[i] = g->within[i] == 1 ? at[i] : within[i];
}

static void normalise(const struct program *p, const struct step *s, const struct groups *g,
                      const int64_t *at) {
    struct array y = operand(p, s, NORM_Y), x = operand(p, s, NORM_X);
    struct array scale = operand(p, s, NORM_SCALE);
    double epsilon = value_or(p, s, NORM_EPSILON, at, g->size, 0);
    double mean = 0, squares = 0, inverse, count = (double)g->each;
    int64_t within[DIMENSIONS] = {0}, from[DIMENSIONS];
    do {
        place(g, at, within, from);
        mean += get(&x, from) / count;
    } while (step(g->within, within, DIMENSIONS));
    if (s->mode == RMS_NORM) mean = 0;
    do {
        place(g, at, within, from);
        squares += (get(&x, from) - mean) * (get(&x, from) - mean);
    } while (step(g->within, within, DIMENSIONS));
    inverse = 1 / sqrt(squares / count + epsilon);
    do {
        place(g, at, within, from);
        double bias = value_or(p, s, NORM_BIAS, from, x.is.size, 0);
        put(&y, from, (get(&x, from) - mean) * inverse * spread(&scale, from, x.is.size) + bias);
    } while (step(g->within, within, DIMENSIONS));
    put_if(p, s, NORM_MEAN, at, mean);
    put_if(p, s, NORM_INVERSE, at, inverse);
}

void run_norm(const struct program *p, const struct step *s) {
    struct array x = operand(p, s, NORM_X), scale = operand(p, s, NORM_SCALE);
    struct groups g = groups_of(s->mode, &x.is, &scale.is);
    int64_t at[DIMENSIONS] = {0};
    do normalise(p, s, &g, at);
    while (step(g.size, at, DIMENSIONS));
}

/* Inputs of a backward pass: the normalised input and its gradient. */
struct back {
    struct array x, dy, scale, mean, inverse;
    bool has_mean;
};

static double normal(const struct back *b, const int64_t *at) {
    double mean = b->has_mean ? spread(&b->mean, at, b->x.is.size) : 0;
    return (get(&b->x, at) - mean) * spread(&b->inverse, at, b->x.is.size);
}

static void through(const struct back *b, const struct array *dx, const struct groups *g,
                    const int64_t *at) {
    double sum = 0, product = 0, count = (double)g->each;
    int64_t within[DIMENSIONS] = {0}, from[DIMENSIONS];
    do {
        place(g, at, within, from);
        double slope = get(&b->dy, from) * spread(&b->scale, from, b->x.is.size);
        sum += b->has_mean ? slope / count : 0;
        product += slope * normal(b, from) / count;
    } while (step(g->within, within, DIMENSIONS));
    do {
        place(g, at, within, from);
        double slope = get(&b->dy, from) * spread(&b->scale, from, b->x.is.size);
        put(dx, from,
            spread(&b->inverse, from, b->x.is.size) * (slope - sum - normal(b, from) * product));
    } while (step(g->within, within, DIMENSIONS));
}

static void sum_up(const struct program *p, const struct step *s, int which, const struct back *b,
                   bool by_normal) {
    if (!has(s, which)) return;
    struct array to = operand(p, s, which);
    int64_t at[DIMENSIONS] = {0}, many[DIMENSIONS];
    for (int i = 0; i < DIMENSIONS; i++) many[i] = b->x.is.size[i] / to.is.size[i];
    do {
        int64_t within[DIMENSIONS] = {0}, from[DIMENSIONS];
        double sum = 0;
        do {
            for (int i = 0; i < DIMENSIONS; i++) from[i] = at[i] * many[i] + within[i];
            sum += get(&b->dy, from) * (by_normal ? normal(b, from) : 1);
        } while (step(many, within, DIMENSIONS));
        put(&to, at, sum);
    } while (step(to.is.size, at, DIMENSIONS));
}

void run_norm_back(const struct program *p, const struct step *s) {
    struct array dx = operand(p, s, BACK_DX);
    struct back b = {.x = operand(p, s, BACK_X),
                     .dy = operand(p, s, BACK_DY),
                     .scale = operand(p, s, BACK_SCALE),
                     .inverse = operand(p, s, BACK_INVERSE),
                     .has_mean = has(s, BACK_MEAN) && s->mode != RMS_NORM};
    if (b.has_mean) b.mean = operand(p, s, BACK_MEAN);
    struct groups g = groups_of(s->mode, &b.x.is, &b.scale.is);
    int64_t at[DIMENSIONS] = {0};
    do through(&b, &dx, &g, at);
    while (step(g.size, at, DIMENSIONS));
    sum_up(p, s, BACK_DSCALE, &b, true);
    sum_up(p, s, BACK_DBIAS, &b, false);
}

/* ---- convolution ---- */

struct convolution convolution_of(const struct program *p, const struct step *s) {
    struct convolution c = {.pass = (enum pass)s->mode, .geometry = s->geometry};
    struct array *of[] = {&c.x, &c.w, &c.y};
    int result = c.pass == FORWARD ? 2 : c.pass == BACKWARD_DATA ? 0 : 1, next = CONVOLVED_ONE;
    for (int i = 0; i < 3; i++) *of[i] = operand(p, s, i == result ? CONVOLVED : next++);
    c.alpha = s->alpha[0];
    c.beta = s->alpha[1];
    return c;
}

void run_convolution(const struct program *p, const struct step *s) {
    struct convolution c = convolution_of(p, s);
    convolution_run(&c);
}
