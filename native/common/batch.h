/* Batches of copies in the driver's form, done one copy after the other. */
#ifndef EGPU_COMMON_BATCH_H
#define EGPU_COMMON_BATCH_H

#include <cuda.h>
#include <stdbool.h>

struct batch {
    const CUdeviceptr *to, *from;
    const size_t *bytes;
    size_t count;
    const CUmemcpyAttributes *attributes;
    const size_t *starts; /* index of the first copy for each attribute */
    size_t attribute_count;
};

static inline bool batch_is_whole(const struct batch *batch) {
    if (batch->count == 0 || !batch->to || !batch->from || !batch->bytes) return false;
    if (batch->attribute_count == 0 || batch->attribute_count > batch->count ||
        !batch->attributes || !batch->starts || batch->starts[0] != 0)
        return false;
    for (size_t i = 0; i < batch->attribute_count; i++) {
        int order = (int)batch->attributes[i].srcAccessOrder;
        if (order < CU_MEMCPY_SRC_ACCESS_ORDER_STREAM || order > CU_MEMCPY_SRC_ACCESS_ORDER_ANY ||
            batch->starts[i] >= batch->count ||
            (i != 0 && batch->starts[i] <= batch->starts[i - 1]))
            return false;
    }
    return true;
}

/* Return whether any source must have been read when the call returns. */
static inline bool batch_is_read_at_once(const struct batch *batch) {
    for (size_t i = 0; i < batch->attribute_count; i++)
        if (batch->attributes[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)
            return true;
    return false;
}

#endif
