/* Pointwise functions and the derivatives of some. Numbers: cudnnPointwiseMode_t. */
#include "program.h"

#include <math.h>

enum { ADD, MUL, MIN, MAX, SQRT, ADD_SQUARE, DIV, MOD, POW, SUB, ABS, CEIL, COS, EXP, FLOOR, LOG };
enum { NEG = 16, RSQRT, SIN, TAN, ERF, IDENTITY, RECIPROCAL, ATAN2, FLOOR_MOD };
enum { RELU = 100, TANH, SIGMOID, ELU, GELU, SOFTPLUS, SWISH, GELU_TANH };
enum { BACKWARD = 100 /* offset of a derivative's number */ };
enum { EQ = 300, NEQ, GT, GE, LT, LE, AND = 400, OR, NOT };

int pointwise_inputs(int mode) {
    if (mode == PW_SELECT) return 3;
    if (mode == PW_GEN_INDEX || mode == NOT) return 1;
    if ((mode >= EQ && mode <= LE) || mode == AND || mode == OR) return 2;
    if (pointwise_is_backward(mode)) return 2;
    if (mode >= RELU && mode <= GELU_TANH) return 1;
    switch (mode) {
    case ADD:
    case MUL:
    case MIN:
    case MAX:
    case ADD_SQUARE:
    case DIV:
    case MOD:
    case POW:
    case SUB:
    case ATAN2:
    case FLOOR_MOD: return 2;
    default: return mode >= 0 && mode <= FLOOR_MOD ? 1 : 0;
    }
}

bool pointwise_is_backward(int mode) {
    return mode >= RELU + BACKWARD && mode <= GELU_TANH + BACKWARD;
}

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static const double root_half = 0.70710678118654752440;
static const double root_two_over_pi = 0.79788456080286535588;

/* The inner function of GELU's approximation by tanh. */
static double inner(double x) { return root_two_over_pi * (x + 0.044715 * x * x * x); }

static double activation(const struct pointwise *p, int mode, double x) {
    switch (mode) {
    case RELU:
        if (x < p->lower) return p->lower + p->slope * (x - p->lower);
        return x > p->upper ? p->upper : x;
    case TANH: return tanh(x);
    case SIGMOID: return sigmoid(x);
    case ELU: return x < 0 ? p->elu * expm1(x) : x;
    case GELU: return 0.5 * x * (1 + erf(x * root_half));
    case SOFTPLUS: return log1p(exp(p->softplus * x)) / p->softplus;
    case SWISH: return x * sigmoid(p->swish * x);
    default: return 0.5 * x * (1 + tanh(inner(x)));
    }
}

static double derivative(const struct pointwise *p, int mode, double x) {
    double y = tanh(mode == GELU_TANH ? inner(x) : x);
    double s = sigmoid(mode == SOFTPLUS ? p->softplus * x : mode == SWISH ? p->swish * x : x);
    switch (mode) {
    case RELU: return x > p->upper ? 0 : x > p->lower ? 1 : p->slope;
    case TANH: return 1 - y * y;
    case SIGMOID: return s * (1 - s);
    case ELU: return x < 0 ? p->elu * exp(x) : 1;
    case GELU: return 0.5 * (1 + erf(x * root_half)) + x * exp(-0.5 * x * x) * root_two_over_pi / 2;
    case SOFTPLUS: return s;
    case SWISH: return s + p->swish * x * s * (1 - s);
    default:
        return 0.5 * (1 + y) +
               0.5 * x * (1 - y * y) * root_two_over_pi * (1 + 3 * 0.044715 * x * x);
    }
}

static double compared(int mode, double x, double b) {
    switch (mode) {
    case EQ: return x == b;
    case NEQ: return x != b;
    case GT: return x > b;
    case GE: return x >= b;
    case LT: return x < b;
    case LE: return x <= b;
    case AND: return x != 0 && b != 0;
    case OR: return x != 0 || b != 0;
    default: return x == 0;
    }
}

double pointwise(const struct pointwise *p, double x, double b) {
    if (pointwise_is_backward(p->mode)) return b * derivative(p, p->mode - BACKWARD, x);
    if (p->mode >= RELU && p->mode <= GELU_TANH) return activation(p, p->mode, x);
    switch (p->mode) {
    case ADD: return x + b;
    case MUL: return x * b;
    case MIN: return x < b ? x : b;
    case MAX: return x > b ? x : b;
    case SQRT: return sqrt(x);
    case ADD_SQUARE: return x + b * b;
    case DIV: return x / b;
    case MOD: return fmod(x, b);
    case POW: return pow(x, b);
    case SUB: return x - b;
    case ABS: return fabs(x);
    case CEIL: return ceil(x);
    case COS: return cos(x);
    case EXP: return exp(x);
    case FLOOR: return floor(x);
    case LOG: return log(x);
    case NEG: return -x;
    case RSQRT: return 1 / sqrt(x);
    case SIN: return sin(x);
    case TAN: return tan(x);
    case ERF: return erf(x);
    case IDENTITY: return x;
    case RECIPROCAL: return 1 / x;
    case ATAN2: return atan2(x, b);
    case FLOOR_MOD: return x - floor(x / b) * b;
    default: return compared(p->mode, x, b);
    }
}
