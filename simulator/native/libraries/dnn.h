/* Simulated cuDNN: correct results over the simulated driver, for tests and for trying programs,
 * computed by this machine's processor in the order of the stream, in the simplest way. It is
 * small; unsupported functions print their name.
 *
 *   tensors.c        strided arrays of up to five dimensions
 *   convolution.c    convolutions and their gradients
 *   cudnn.c          handles, descriptors
 *   cudnn_convolution.c  convolutions as functions
 *   cudnn_layers.c   activation, pooling, softmax
 *   cudnn_norm.c     batch normalisation, dropout states
 *   program.h        graphs of the backend
 */
#ifndef EGPU_SIM_DNN_H
#define EGPU_SIM_DNN_H

#include "elements.h"
#include "work.h"

#pragma GCC visibility push(hidden)

/* cudnnStatus_t: the ones used here. */
enum { OK = 0, BAD_PARAM = 2000, NULL_POINTER = 2002, NOT_FINALIZED = 2004, SHAPE_MISMATCH = 2008 };
enum { NOT_SUPPORTED = 3000, BAD_PATTERN, BAD_SHAPE, BAD_TYPE, NO_MEMORY = 4003, FAILED = 5000 };

/* Return from a function unless all of these pointers are set. */
#define NEEDS(...)                                                  \
    do {                                                            \
        const void *needed[] = {__VA_ARGS__};                       \
        for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) \
            if (needed[i] == NULL) return NULL_POINTER;             \
    } while (0)

struct handle {
    CUstream stream;
};

struct activation {
    int mode;
    double bound; /* of clipped or exponential ones */
};
double activated(const struct activation *activation, double value);

static inline int queued(CUresult result) {
    if (result == CUDA_SUCCESS) return OK;
    return result == CUDA_ERROR_OUT_OF_MEMORY ? NO_MEMORY : FAILED;
}

/* ---- tensors.c ---- */

enum { DIMENSIONS = 5, SPATIAL = 3 }; /* images or output channels, channels, and places */

struct tensor {
    int data_type; /* cudnnDataType_t */
    int type;      /* of its elements */
    int rank;
    int64_t size[DIMENSIONS], stride[DIMENSIONS]; /* 1 and 0 beyond the rank */
};

/* A tensor and its address. */
struct array {
    struct tensor is;
    void *at;
};

int tensor_set(struct tensor *tensor, int data_type, int rank, const int64_t *size,
               const int64_t *stride);
int64_t tensor_count(const struct tensor *tensor);
bool same_size(const struct tensor *one, const struct tensor *other);
/* Return the elements from the first to the last one in memory; on overflow an impossible number.
 */
int64_t tensor_reach(const struct tensor *tensor);
int64_t element_bytes(int type);
/* Return whether all of it is memory of the card. */
bool stands(const struct array *array);
/* Go to the next element, in the order of dimensions; false after the last one. */
bool step(const int64_t *size, int64_t *at, int count);
double get(const struct array *array, const int64_t *at);
void put(const struct array *array, const int64_t *at, double value);
/* Read a program's factor for an array. */
double factor(const struct tensor *tensor, const void *at);
/* Write alpha value + beta array; the array is not read if beta is 0. */
void blend(const struct array *array, const int64_t *at, double alpha, double value, double beta);

/* ---- convolution.c ---- */

struct geometry {
    int rank;            /* spatial dimensions */
    bool is_convolution; /* the filter is reversed; otherwise cross-correlation */
    int64_t before[SPATIAL], after[SPATIAL], stride[SPATIAL], dilation[SPATIAL];
};

enum pass { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };

struct convolution {
    enum pass pass;
    struct geometry geometry;
    struct array x, w, y; /* one of which is the result */
    double alpha, beta;
    /* In a forward pass: + z, + bias, and ReLU. */
    bool has_epilogue, relu;
    double z_factor;
    struct array z, bias;
};

int64_t convolved_size(const struct geometry *geometry, int dimension, int64_t size,
                       int64_t filter);
/* Check that the sizes fit each other. */
int convolution_check(const struct convolution *convolution);
void convolution_run(void *convolution);
int convolution_queue(CUstream stream, const struct convolution *convolution);

#pragma GCC visibility pop
#endif
