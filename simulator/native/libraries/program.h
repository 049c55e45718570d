/* The program of a graph of cuDNN's backend: steps over arrays, in an order in which each step's
 * inputs are ready. It refers to nothing outside, so it is queued as it is.
 *
 *   cudnn_backend.c    descriptors, and the functions
 *   cudnn_graph.c      from descriptors of operations to steps
 *   cudnn_attention.c  attention as one operation, from other steps
 *   cudnn_program.c    arrays, order, execution
 *   cudnn_steps.c      products, reductions, softmax, masks, normalisation
 *   cudnn_pointwise.c  functions of elements
 */
#ifndef EGPU_SIM_PROGRAM_H
#define EGPU_SIM_PROGRAM_H

#include "dnn.h"

#pragma GCC visibility push(hidden)

enum { MOST_SLOTS = 192, MOST_STEPS = 128, MOST_OPERANDS = 10, NONE = -1, VALUE_BYTES = 16 };
enum { HIDDEN = INT64_MIN }; /* takes the place of a tensor's identifier */

/* An array of a program. */
struct slot {
    struct tensor is;
    int64_t id;
    enum { ON_CARD, VIRTUAL, BY_VALUE, VIEW } kind;
    int view_of; /* the array of a view */
    /* The program's own strides. For a virtual array they only describe its reshaping: it has no
     * memory, and its elements may overlap. */
    int64_t said[DIMENSIONS];
    void *at; /* of a virtual one: set while the program runs */
    _Alignas(VALUE_BYTES) uint8_t value[VALUE_BYTES];
};

struct pointwise {
    int mode, axis;
    double lower, upper, slope, elu, softplus, swish;
};

struct program;

struct step {
    /* Its operands: results first, then the others. */
    void (*run)(const struct program *program, const struct step *step);
    int results, slots[MOST_OPERANDS]; /* NONE: no such operand */
    double alpha[2];
    int mode;
    struct pointwise pointwise;
    struct geometry geometry;
};

struct program {
    int status; /* the first error: nothing is added after it */
    int slots_used, steps_used;
    struct slot slots[MOST_SLOTS];
    struct step steps[MOST_STEPS];
};

/* ---- cudnn_program.c ---- */

/* Note an error; the first one counts. */
void failed(struct program *program, int status);
/* Report an unsupported operation by name. */
void not_here(struct program *program, const char *what);
int slot_add(struct program *program, const struct slot *slot);
int slot_find(const struct program *program, int64_t id);
/* A virtual, dense array of single precision. */
int slot_hidden(struct program *program, int rank, const int64_t *size);
/* Another layout of an array's elements. */
int slot_view(struct program *program, int of, int64_t id, const struct tensor *is);
void step_add(struct program *program, const struct step *step);
bool has(const struct step *step, int operand);
struct array operand(const struct program *program, const struct step *step, int operand);
/* Return the element that belongs to one of an array with other sizes: the same one, or that of the
 * group if this array has fewer. */
double spread(const struct array *array, const int64_t *at, const int64_t *size);
/* Return whether each of its sizes divides the other's. */
bool spreads(const struct tensor *tensor, const struct tensor *over);
/* Put each step after those that it reads from. */
void program_order(struct program *program);
int program_queue(CUstream stream, const struct program *program);

/* ---- cudnn_pointwise.c ---- */

enum { PW_ADD = 0, PW_MUL = 1, PW_IDENTITY = 21, PW_GEN_INDEX = 501, PW_SELECT = 601 };

/* Return the number of inputs; 0: not supported. */
int pointwise_inputs(int mode);
bool pointwise_is_backward(int mode);
double pointwise(const struct pointwise *p, double x, double b);

/* ---- cudnn_steps.c: operands in this order ---- */

enum { PW_Y, PW_X, PW_B, PW_T };
void run_pointwise(const struct program *program, const struct step *step);
enum { PRODUCT_C, PRODUCT_A, PRODUCT_B };
void run_product(const struct program *program, const struct step *step);
enum { REDUCED_Y, REDUCED_X };
void run_reduction(const struct program *program, const struct step *step);
bool reduction_is_here(int mode);
enum { SOFTMAX_Y, SOFTMAX_STATS, SOFTMAX_MAX, SOFTMAX_SUM, SOFTMAX_X, SOFTMAX_SINK };
void run_softmax(const struct program *program, const struct step *step);
enum { BAND_Y, BAND_X, BAND_OTHERWISE, BAND_LEFT, BAND_RIGHT, BAND_LENGTH_Q, BAND_LENGTH_KV };
void run_band(const struct program *program, const struct step *step);
enum { LAYER_NORM, INSTANCE_NORM, BATCH_NORM, RMS_NORM = 4 };
enum { NORM_Y, NORM_MEAN, NORM_INVERSE, NORM_X, NORM_SCALE, NORM_BIAS, NORM_EPSILON };
/* Check that the sizes of the statistics fit the mode. */
int norm_check(const struct program *program, const struct step *step, int x, int scale, int mean,
               int inverse);
void run_norm(const struct program *program, const struct step *step);
enum { BACK_DX, BACK_DSCALE, BACK_DBIAS, BACK_X, BACK_DY, BACK_SCALE, BACK_MEAN, BACK_INVERSE };
void run_norm_back(const struct program *program, const struct step *step);
enum { CONVOLVED, CONVOLVED_ONE, CONVOLVED_OTHER }; /* x, w, y in this order, without the result */
void run_convolution(const struct program *program, const struct step *step);
struct convolution convolution_of(const struct program *program, const struct step *step);

/* ---- descriptors: cudnn_backend.c ---- */

struct descriptor;
int type_of(const struct descriptor *descriptor);
bool is_final(const struct descriptor *descriptor);
bool is_set(struct descriptor *descriptor, int attribute);
/* Return the single descriptor of an attribute, or NULL; or one of several. */
struct descriptor *referred(struct descriptor *descriptor, int attribute);
struct descriptor *referred_of(struct descriptor *descriptor, int attribute, int64_t which);
/* Read 64-bit numbers, as many as there are; return how many. */
int numbers(struct descriptor *descriptor, int attribute, int64_t *to, int most);
int whole(struct descriptor *descriptor, int attribute, int otherwise);
bool flag(struct descriptor *descriptor, int attribute);
double real(struct descriptor *descriptor, int attribute, double otherwise);

/* ---- cudnn_graph.c ---- */

enum { GRAPH_OPERATIONS = 801, UNIQUE_ID = 906 };

int tensor_of(struct descriptor *descriptor, struct tensor *tensor);
int geometry_of(struct descriptor *descriptor, struct geometry *geometry);
bool is_operation(const struct descriptor *descriptor);
/* Return the array of an operation's attribute; NONE: not set. */
int slot_of(struct program *program, struct descriptor *operation, int attribute);
int slot_needed(struct program *program, struct descriptor *operation, int attribute);
void without(struct program *program, struct descriptor *operation, int attribute,
             const char *what);
void add_operation(struct program *program, struct descriptor *operation);
/* All operations of a graph. */
void add_operations(struct program *program, struct descriptor *graph);
/* Operations whose arrays are already known. */
void add_product_of(struct program *program, const struct step *step);
void add_softmax_of(struct program *program, struct descriptor *operation, int x, int y);
void softmax_add(struct program *program, struct step *step);

/* ---- cudnn_attention.c ---- */

void add_attention(struct program *program, struct descriptor *operation);

#pragma GCC visibility pop
#endif
