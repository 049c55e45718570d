/* See library_sizes.h. */
#include "executor/libraries/library_sizes.h"

uint64_t library_batch(const struct task *task, void *tensor) {
    const struct library_kind *kind = &library_kinds[KIND_cudnn_tensor];
    int type = 0, rank = 0, sizes[CUDNN_DIMENSIONS] = {0}, strides[CUDNN_DIMENSIONS];
    int (*ask)(void *, int, int *, int *, int *, int *);
    if (task->bad != CUDA_SUCCESS || task->in.bad) return 0;
    void *found = library_function(kind->of, kind->sizes);
    if (found == NULL) return 0;
    memcpy(&ask, &found, sizeof ask);
    if (ask(tensor, CUDNN_DIMENSIONS, &type, &rank, sizes, strides) != 0) return 0;
    return rank > CUDNN_BATCH && sizes[CUDNN_BATCH] > 0 ? (uint64_t)sizes[CUDNN_BATCH] : 0;
}

uint64_t library_labels(const struct task *task, void *tensor, const void *lengths, size_t bytes) {
    uint64_t batch = library_batch(task, tensor);
    return bytes == batch * sizeof(int) ? cudnn_sum(lengths, batch) : 0; /* else it is refused */
}
