/* Simulated cuBLAS and cuBLASLt: correct results over the simulated driver, for tests and for
 * trying programs, computed by this machine's processor in the order of the stream. They are small;
 * unsupported functions print their name.
 *
 *   work.c      work queued in a stream
 *   elements.c  elements of every type
 *   product.c   matrix products
 *   cublas.c, cublaslt.c   the interfaces
 *   cublas_solvers.c       cuBLAS's own solvers, by the simulated cuSOLVER's methods (solver.h)
 */
#ifndef EGPU_SIM_BLAS_H
#define EGPU_SIM_BLAS_H

#include <math.h>

#include "elements.h"
#include "scalars.h"
#include "work.h"

#pragma GCC visibility push(hidden)

/* cublasStatus_t, cublasOperation_t: the ones used here. */
enum { OK = 0, NOT_INITIALIZED = 1, NO_MEMORY = 3, INVALID = 7, FAILED = 13, NOT_SUPPORTED = 15 };
enum { PLAIN = 0, TRANSPOSED = 1 };

struct handle {
    CUstream stream;
    int pointer_mode, math_mode;
    CUdeviceptr workspace;
};

/* A factor: its value, or the address on the card that has it when the work is done. */
struct factor {
    int type;
    double value;
    const void *card; /* NULL: `value` */
};
static inline struct factor factor_of(int type, const void *at, bool host) {
    return host ? (struct factor){type, element(type, at, 0), NULL} : (struct factor){type, 0, at};
}
static inline double factor_now(const struct factor *factor) {
    return factor->card == NULL ? factor->value : element(factor->type, factor->card, 0);
}

/* Return `more` elements after the last of `count` places with distance `step`; negative, which no
 * memory has, on overflow. */
static inline int64_t reach(int64_t count, int64_t step, int64_t more) {
    int64_t far;
    bool beyond = __builtin_mul_overflow(count - 1, step, &far);
    return beyond || __builtin_add_overflow(far, more, &far) || far > INT64_MAX / 16 ? -1 : far;
}

/* Queue `run` with a copy of `what`. */
static inline int queue_work(CUstream stream, void (*run)(void *), const void *what, size_t bytes) {
    CUresult result = queue(stream, run, what, bytes);
    if (result == CUDA_SUCCESS) return OK;
    return result == CUDA_ERROR_OUT_OF_MEMORY ? NO_MEMORY : FAILED;
}

/* ---- product.c ---- */

struct matrix {
    int type;
    bool transposed;
    void *at;
    int64_t rows, columns; /* as stored */
    int64_t pitch, stride; /* in elements: to the next column, to the next one of a batch */
    bool scattered;        /* `at` has the addresses of a batch, read when the work is done */
};

enum { EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_GELU = 32 };

/* d = alpha a b + beta c, m × n, k terms each. */
struct product {
    int64_t m, n, k, count;
    struct matrix a, b, c, d;
    struct factor alpha, beta;
    int epilogue;
    int bias_type;
    void *bias; /* m elements, one per row */
};

int queue_product(CUstream stream, const struct product *product);

#pragma GCC visibility pop
#endif
