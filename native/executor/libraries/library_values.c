/* Tensors by value of cuDNN's graphs: the program's own memory to it, ours to the library. See
 * described.h. */
#include "executor/libraries/libraries.h"

#include <stdlib.h>

static int create(void **pack) {
    REAL(cudnn, cudnnBackendCreateDescriptor, int, int, void **);
    *pack = NULL;
    return real == NULL ? -1 : real(CUDNN_VARIANT_PACK, pack);
}

static int set(void *pack, int attribute, int type, int64_t count, const void *elements) {
    REAL(cudnn, cudnnBackendSetAttribute, int, void *, int, int, int64_t, const void *);
    return real == NULL ? -1 : real(pack, attribute, type, count, elements);
}

static int finalize(void *pack) {
    REAL(cudnn, cudnnBackendFinalize, int, void *);
    return real == NULL ? -1 : real(pack);
}

static void destroy(void *pack) {
    REAL(cudnn, cudnnBackendDestroyDescriptor, int, void *);
    if (real != NULL) real(pack);
}

/* Where each of the pack's tensors is, once values are here: false where others were sent. */
static bool place(struct library_values *values, const struct described_pack *bound,
                  const uint8_t *sent, size_t bytes, int64_t *ids, void **at) {
    size_t taken = 0;
    for (uint64_t i = 0; i < bound->count; i++) {
        ids[i] = bound->of[i].id;
        at[i] = bound->of[i].at;
        if (bound->of[i].bytes == 0) continue;
        if (bytes - taken < VALUE_MOST_BYTES) return false;
        memcpy(values->values + taken, sent + taken, VALUE_MOST_BYTES);
        at[i] = values->values + taken;
        taken += VALUE_MOST_BYTES;
    }
    return taken == bytes;
}

static CUresult make(struct library_values *values, const struct described_pack *bound,
                     const int64_t *ids, void *const *at) {
    enum { IDS = 1000, POINTERS, WORKSPACE = 1003, INT64 = 3, VOID_PTR = 6 };
    int64_t count = (int64_t)bound->count;
    if (create(&values->pack) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    values->made = true;
    if (set(values->pack, IDS, INT64, count, ids) == 0 &&
        set(values->pack, POINTERS, VOID_PTR, count, at) == 0 &&
        set(values->pack, WORKSPACE, VOID_PTR, 1, &bound->workspace) == 0 &&
        finalize(values->pack) == 0)
        return CUDA_SUCCESS;
    library_values_end(values);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult library_values(struct library_values *values, void *plan, void *pack, const void *sent,
                        size_t bytes) {
    bool lost;
    values->pack = pack;
    values->made = false;
    struct described_pack *bound =
        described_pack((uint64_t)(uintptr_t)plan, (uint64_t)(uintptr_t)pack, &lost);
    if (bound == NULL) return lost ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    CUresult result = lost ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    int64_t *ids = calloc(bound->count + 1, sizeof *ids);
    void **at = calloc(bound->count + 1, sizeof *at);
    bool fits = bound->sendable && bytes <= sizeof values->values && ids != NULL && at != NULL;
    if (!lost && fits && place(values, bound, sent, bytes, ids, at))
        result = make(values, bound, ids, at);
    free(ids);
    free(at);
    free(bound);
    return result;
}

void library_values_end(const struct library_values *values) {
    if (values->made) destroy(values->pack);
}
