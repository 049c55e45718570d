/* Simulated cuDNN: handles and descriptors. Numbers: cudnn_graph.h, cudnn_ops.h, cudnn_cnn.h. */
#include "dnn.h"

#include "libraries/cudnn_status.h"

#include <stdio.h>

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { VERSION = 92600, CUDART = 13000, MAJOR = 0, MINOR = 1 };

API size_t cudnnGetVersion(void) { return VERSION; }
API size_t cudnnGetCudartVersion(void) { return CUDART; }
API const char *cudnnGetErrorString(int status) { return cudnn_status_name(status); }
API void cudnnGetLastErrorString(char *message, size_t room) {
    if (message != NULL && room > 0) snprintf(message, room, "the simulated cuDNN keeps none");
}
API int cudnnGetProperty(int type, int *value) {
    NEEDS(value);
    *value = type == MAJOR ? VERSION / 10000 : type == MINOR ? VERSION / 100 % 100 : VERSION % 100;
    return OK;
}

API int cudnnCreate(struct handle **handle) {
    if (handle == NULL) return NULL_POINTER;
    *handle = calloc(1, sizeof **handle);
    return *handle == NULL ? NO_MEMORY : OK;
}
API int cudnnDestroy(struct handle *handle) {
    free(handle);
    return OK;
}
API int cudnnSetStream(struct handle *handle, CUstream stream) {
    NEEDS(handle);
    handle->stream = stream;
    return OK;
}
API int cudnnGetStream(struct handle *handle, CUstream *stream) {
    NEEDS(handle, stream);
    *stream = handle->stream;
    return OK;
}

/* Descriptors that only store what is set in them. */
#define DESCRIPTOR(name, type)                                 \
    API int cudnnCreate##name##Descriptor(type **made) {       \
        if (made == NULL) return NULL_POINTER;                 \
        *made = calloc(1, sizeof **made);                      \
        return *made == NULL ? NO_MEMORY : OK;                 \
    }                                                          \
    API int cudnnDestroy##name##Descriptor(type *descriptor) { \
        free(descriptor);                                      \
        return OK;                                             \
    }
DESCRIPTOR(Tensor, struct tensor)
DESCRIPTOR(Filter, struct tensor)
DESCRIPTOR(Activation, struct activation)

static int set_tensor(struct tensor *tensor, int type, int rank, const int *size,
                      const int *stride) {
    int64_t sizes[DIMENSIONS], strides[DIMENSIONS];
    if (tensor == NULL || size == NULL) return NULL_POINTER;
    for (int i = 0; i < rank && i < DIMENSIONS; i++) {
        sizes[i] = size[i];
        strides[i] = stride == NULL ? 0 : stride[i];
    }
    int status = tensor_set(tensor, type, rank, sizes, stride == NULL ? NULL : strides);
    return status == OK && !known_type(tensor->type) ? BAD_TYPE : status;
}

API int cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int rank, const int *size,
                                   const int *stride) {
    return stride == NULL ? NULL_POINTER : set_tensor(tensor, type, rank, size, stride);
}

/* Formats: 0, images, channels, places; 1: channels last. */
static int set_dense(struct tensor *tensor, int format, int type, int rank, const int *size) {
    int status = set_tensor(tensor, type, rank, size, NULL);
    if (status != OK || format == 0) return status;
    if (format != 1 || rank < 3) return NOT_SUPPORTED;
    int64_t channels = tensor->size[1];
    for (int i = 2; i < rank; i++) tensor->stride[i] *= channels;
    tensor->stride[1] = 1;
    return OK;
}
API int cudnnSetTensorNdDescriptorEx(struct tensor *tensor, int format, int type, int rank,
                                     const int *size) {
    return set_dense(tensor, format, type, rank, size);
}
API int cudnnSetTensor4dDescriptor(struct tensor *tensor, int format, int type, int n, int c, int h,
                                   int w) {
    return set_dense(tensor, format, type, 4, (int[]){n, c, h, w});
}
API int cudnnSetFilterNdDescriptor(struct tensor *filter, int type, int format, int rank,
                                   const int *size) {
    return set_dense(filter, format, type, rank, size);
}
API int cudnnSetFilter4dDescriptor(struct tensor *filter, int type, int format, int k, int c, int h,
                                   int w) {
    return set_dense(filter, format, type, 4, (int[]){k, c, h, w});
}

static int get_tensor(const struct tensor *tensor, int wanted, int *type, int *rank, int *size,
                      int *stride) {
    if (tensor == NULL || tensor->rank == 0) return BAD_PARAM;
    if (type != NULL) *type = tensor->data_type;
    if (rank != NULL) *rank = tensor->rank;
    for (int i = 0; i < wanted && i < tensor->rank; i++) {
        if (size != NULL) size[i] = (int)tensor->size[i];
        if (stride != NULL) stride[i] = (int)tensor->stride[i];
    }
    return OK;
}
API int cudnnGetTensorNdDescriptor(const struct tensor *tensor, int wanted, int *type, int *rank,
                                   int *size, int *stride) {
    return get_tensor(tensor, wanted, type, rank, size, stride);
}
API int cudnnGetFilterNdDescriptor(const struct tensor *filter, int wanted, int *type, int *format,
                                   int *rank, int *size) {
    if (format != NULL && filter != NULL) *format = filter->rank > 2 && filter->stride[1] == 1;
    return get_tensor(filter, wanted, type, rank, size, NULL);
}

/* CUDNN_ACTIVATION_SWISH is not supported. */
API int cudnnSetActivationDescriptor(struct activation *activation, int mode, int nan,
                                     double bound) {
    NEEDS(activation);
    (void)nan;
    if (mode < 0 || mode > 5) return NOT_SUPPORTED;
    *activation = (struct activation){mode, bound};
    return OK;
}
