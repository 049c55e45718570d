/* Simulated cuSOLVER: correct results over the simulated driver, for tests and for trying programs,
 * computed by this machine's processor in complex double precision, for any type, and rounded once.
 * It has dense solvers; unsupported functions print their name.
 *
 *   problem.c      a problem: its validity, its order in the stream, elements on the card
 *   factors.c      Cholesky, LU, triangular systems
 *   reflections.c  Householder's reflections: QR, tridiagonal form
 *   eigen.c        eigenvalues of Hermitian matrices
 *   general.c      eigenvalues of other matrices
 *   singular.c     singular values
 *   cusolver.c     the interface's handles and other objects
 *   cusolver_typed.c, cusolver_generic.c   its functions of one type, and of 64 bits
 *   cusolver_asked.c   the problems of both
 */
#ifndef EGPU_SIM_SOLVER_H
#define EGPU_SIM_SOLVER_H

#include "elements.h"
#include "scalars.h"
#include "work.h"

#include <complex.h>
#include <float.h>
#include <math.h>

#pragma GCC visibility push(hidden)

typedef double complex scalar;

enum { C_32F = 4, C_64F = 5 }; /* cudaDataType: those missing in elements.h */
static inline bool is_complex(int type) { return type == C_32F || type == C_64F; }
static inline int real_of(int type) { return type == C_32F ? R_32F : type == C_64F ? R_64F : type; }

static inline int64_t least(int64_t one, int64_t two) { return one < two ? one : two; }
static inline int64_t most(int64_t one, int64_t two) { return one > two ? one : two; }

/* ---- problem.c ---- */

/* Matrices on the card, by columns; a vector is one column. */
struct array {
    int type;
    void *at;
    int64_t rows, columns;
    int64_t pitch, stride; /* in elements: to the next column, to the next of a batch */
    bool scattered;        /* `at` has their addresses */
};

enum { JACOBI_SWEEPS = 100 }; /* the default maximum */

struct array matrix(int type, const void *at, int64_t rows, int64_t columns, int64_t pitch);
struct array vector(int type, const void *at, int64_t rows);

/* Settings and results of Jacobi's methods. */
struct jacobi {
    double tolerance; /* smaller than double precision: that precision */
    int most_sweeps;
    bool batch; /* the last problem was a batch: the rest is not returned */
    int sweeps;
    double residual;
};

enum which_vectors { NO_VECTORS, ECONOMIC, FULL, IN_PLACE };

struct problem {
    const struct method *method;
    int64_t m, n, k, count; /* `count`: of a batch */
    int upper, op, right;   /* cublasFillMode_t, cublasOperation_t, cublasSideMode_t */
    bool unit;              /* triangles with an implicit diagonal of 1 */
    int vectors;            /* of eigenvalues: whether; of singular values: the left ones */
    int right_vectors;      /* enum which_vectors */
    bool adjoint;           /* v has the right ones' adjoint */
    int kind;               /* cusolverEigType_t */
    scalar alpha;
    struct array a, b, u, v; /* v also: a diagonal's neighbours */
    struct array x;          /* eigenvalues, singular values, factors of reflections, or alpha */
    struct array pivots;
    struct jacobi told;
    struct jacobi *tells; /* NULL: none */
    double *residuals;    /* host memory */
    int *info;            /* per member of a batch */
    int info_of_each;     /* 0: one for all */
};

/* How a problem is solved: returns LAPACK's info; `room` holds that many scalars. */
struct method {
    int (*solve)(const struct problem *, int64_t which, scalar *room);
    int64_t (*room)(const struct problem *);
};

/* `method` NULL: the arguments are invalid. */
enum outcome { QUEUED, BAD_VALUE, NOT_ON_CARD, NO_ROOM, NOT_QUEUED };
enum outcome queue_problem(CUstream stream, const struct problem *problem);

scalar get(const struct array *array, int64_t which, int64_t row, int64_t column);
void put(const struct array *array, int64_t which, int64_t row, int64_t column, scalar value);

/* Read a matrix as op(matrix), numbered as in cublasOperation_t; 0: without transposition. */
enum { AS_IT_IS, TURNED, ADJOINT, CONJUGATED };
void load(const struct array *array, int64_t which, int op, scalar *to);
/* Write op of the first rows and columns of `from`, whose pitch is given, to the matrix. */
void store(const struct array *array, int64_t which, int op, const scalar *from, int64_t pitch);
/* Read the lower triangle, or the upper one's adjoint; the rest is 0. */
void load_lower(const struct array *array, int64_t which, bool upper, scalar *to);
void store_lower(const struct array *array, int64_t which, bool upper, const scalar *from);
/* Read a whole Hermitian matrix from one triangle. */
void load_hermitian(const struct array *array, int64_t which, bool upper, scalar *to);
/* Return whether all are finite. Otherwise results from them are not numbers, so all become NaN. */
bool are_numbers(int64_t n, scalar *a);
/* Multiply all by a power of 2 so that their squares neither overflow nor vanish; return it. */
double rescale(int64_t n, scalar *a);
void store_reals(const struct array *array, int64_t which, const double *from);

/* ---- factors.c ---- */

/* The lower triangle becomes its factor; return the first order without one, or 0. */
int64_t cholesky(int64_t n, scalar *a);
/* Columns of b become those of op(t) x = b. */
enum { UPPER = 1, UNIT = 2, OF_ADJOINT = 4 };
void solve_triangle(int64_t n, int64_t columns, const scalar *t, int how, scalar *b);
void adjoin(int64_t n, scalar *a);

extern const struct method potrf, potrs, potri, getrf, getrs, trsm, getri;

/* ---- reflections.c ---- */

/* x becomes (beta, v): 1 - factor' (1, v) (1, v)' maps it to (beta, 0). Return the factor. */
scalar reflect(int64_t n, scalar *x);
/* Columns of c, of that pitch, become (1 - factor (1, v) (1, v)') c. */
void apply_reflection(int64_t n, const scalar *v, scalar factor, int64_t columns, scalar *c,
                      int64_t pitch);
/* Columns before `first` are orthonormal; make the rest orthonormal to all. */
void complete(int64_t rows, int64_t first, int64_t columns, scalar *u, scalar *room);
/* A Hermitian matrix becomes reflections, below its first lower diagonal; their product transforms
 * it to tridiagonal form. */
void tridiagonalize(int64_t n, scalar *a, double *diagonal, double *beside, scalar *factors);

extern const struct method geqrf, orgqr, ormqr, sytrd;

/* ---- eigen.c ---- */

/* The rotation of two columns that diagonalises ((a, g), (g', b)): first = c first - s second,
 * second = s' first + c' second, where the latter two have modulus c and s. */
struct turn {
    double cosine, sine;
    scalar phase;
};
struct turn turn_of(double a, double b, scalar g);
void turn_columns(int64_t rows, scalar *first, scalar *second, struct turn turn);

extern const struct method syevd, syevj, sygvd;

/* ---- general.c ---- */

extern const struct method geev;

/* ---- singular.c ---- */

extern const struct method gesvd;

#pragma GCC visibility pop
#endif
