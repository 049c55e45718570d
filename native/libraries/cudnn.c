/* Functions of cuDNN that the tables cannot express: names of statuses, and arrays whose length is
 * in a descriptor, for which the server is asked. */
#include "client.h"
#include "cudnn_status.h"

API const char *cudnnGetErrorString(int status);
const char *cudnnGetErrorString(int status) { return cudnn_status_name(status); }

API int cudnnGetTensorNdDescriptor(void *tensor, int wanted, void *type, void *rank, void *sizes,
                                   void *strides);

uint64_t cudnn_batch(void *tensor) {
    int type, rank, sizes[CUDNN_DIMENSIONS], strides[CUDNN_DIMENSIONS];
    int status = cudnnGetTensorNdDescriptor(tensor, CUDNN_DIMENSIONS, &type, &rank, sizes, strides);
    return status == 0 && rank > CUDNN_BATCH ? (uint64_t)sizes[CUDNN_BATCH] : 0;
}

uint64_t cudnn_labels(void *tensor, const void *lengths) {
    uint64_t batch = cudnn_batch(tensor);
    return batch > LIBRARY_MOST_BYTES ? UINT32_MAX : cudnn_sum(lengths, batch);
}
