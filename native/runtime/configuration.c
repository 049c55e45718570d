/* What stands between <<< and >>>: the caller pushes it, and the kernel's host function, called
 * next, pops it. */
#include "registration.h"

struct configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};

/* An argument of a launch may be computed by a launch, and so on. */
enum { MAX_NESTED = 16 };

static _Thread_local struct configuration pushed[MAX_NESTED];
static _Thread_local int depth;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    if (depth == MAX_NESTED) return runtime_error(cudaErrorInvalidConfiguration);
    pushed[depth++] =
        (struct configuration){.grid = grid, .block = block, .shared = shared, .stream = stream};
    return cudaSuccess;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (depth == 0) return runtime_error(cudaErrorMissingConfiguration);
    const struct configuration *top = &pushed[--depth];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    *(void **)stream = top->stream;
    return cudaSuccess;
}
