/* Matrix products, one sum after the other. */
#include "blas.h"

static int64_t place(const struct matrix *matrix, int64_t row, int64_t column) {
    return matrix->transposed ? column + row * matrix->pitch : row + column * matrix->pitch;
}

static double activated(double value, int epilogue) {
    if (epilogue & EPILOGUE_RELU) return value > 0 ? value : 0;
    if (epilogue & EPILOGUE_GELU) /* the tanh form: cublasLt.h */
        return 0.5 * value *
               (1 + tanh(0.7978845608028654 * (value + 0.044715 * value * value * value)));
    return value;
}

/* For one product of a batch; `row` and `column` of d. */
static double sum(const struct product *p, int64_t a, int64_t b, int64_t row, int64_t column) {
    double total = 0;
    for (int64_t i = 0; i < p->k; i++)
        total += element(p->a.type, p->a.at, a + place(&p->a, row, i)) *
                 element(p->b.type, p->b.at, b + place(&p->b, i, column));
    return total;
}

/* One product of a batch. */
static void multiply_one(const struct product *p, int64_t i, double alpha, double beta) {
    for (int64_t column = 0; column < p->n; column++)
        for (int64_t row = 0; row < p->m; row++) {
            double value = alpha * sum(p, i * p->a.stride, i * p->b.stride, row, column);
            if (beta != 0) /* otherwise c may hold anything */
                value +=
                    beta * element(p->c.type, p->c.at, i * p->c.stride + place(&p->c, row, column));
            if (p->epilogue & EPILOGUE_BIAS) value += element(p->bias_type, p->bias, row);
            set_element(p->d.type, p->d.at, i * p->d.stride + place(&p->d, row, column),
                        activated(value, p->epilogue));
        }
}

/* Return whether a matrix's whole batch is on the card. */
static bool stands(const struct matrix *matrix, int64_t rows, int64_t columns, int64_t count) {
    int64_t stored_rows = matrix->transposed ? columns : rows;
    int64_t stored_columns = matrix->transposed ? rows : columns;
    if (rows == 0 || columns == 0 || count == 0) return true;
    if (matrix->stride < 0) return false;
    int64_t elements = reach(stored_columns, matrix->pitch, stored_rows);
    if (elements >= 0) elements = reach(count, matrix->stride, elements);
    return on_card(matrix->at, elements * (int64_t)type_bytes(matrix->type));
}

static void multiply(void *data) {
    const struct product *p = data;
    double alpha = factor_now(&p->alpha), beta = factor_now(&p->beta);
    for (int64_t i = 0; i < p->count; i++) {
        struct product one = *p;
        if (p->a.scattered) {
            one.a.at = ((void **)p->a.at)[i];
            one.b.at = ((void **)p->b.at)[i];
            one.c.at = one.d.at = ((void **)p->d.at)[i];
            /* No status is left for what the addresses lead to: such a product stays undone. */
            if (!stands(&one.a, p->m, p->k, 1) || !stands(&one.b, p->k, p->n, 1) ||
                !stands(&one.d, p->m, p->n, 1))
                continue;
        }
        multiply_one(&one, i, alpha, beta);
    }
}

static bool fits(const struct matrix *matrix, int64_t rows, int64_t columns) {
    int64_t stored_rows = matrix->transposed ? columns : rows;
    return matrix->pitch >= (stored_rows > 1 ? stored_rows : 1);
}

int queue_product(CUstream stream, const struct product *p) {
    if (p->m < 0 || p->n < 0 || p->k < 0 || p->count < 0) return INVALID;
    if (!fits(&p->a, p->m, p->k) || !fits(&p->b, p->k, p->n) || !fits(&p->c, p->m, p->n) ||
        !fits(&p->d, p->m, p->n))
        return INVALID;
    if (!known_type(p->a.type) || !known_type(p->b.type) || !known_type(p->d.type) ||
        !known_type(p->c.type) || !known_type(p->alpha.type))
        return NOT_SUPPORTED;
    bool adds = p->beta.card != NULL || p->beta.value != 0;
    if (p->a.scattered) {
        int64_t bytes = p->count * (int64_t)sizeof(void *);
        if (!on_card(p->a.at, bytes) || !on_card(p->b.at, bytes) || !on_card(p->d.at, bytes))
            return FAILED;
        return queue_work(stream, multiply, p, sizeof *p);
    }
    if (!stands(&p->a, p->m, p->k, p->count) || !stands(&p->b, p->k, p->n, p->count) ||
        !stands(&p->d, p->m, p->n, p->count) || (adds && !stands(&p->c, p->m, p->n, p->count)))
        return FAILED;
    if (p->epilogue & EPILOGUE_BIAS &&
        !on_card(p->bias, reach(p->m, 1, 1) * (int64_t)type_bytes(p->bias_type)))
        return FAILED;
    return queue_work(stream, multiply, p, sizeof *p);
}
