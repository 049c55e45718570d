/* The configuration of launches: what no card can run, and what stands between <<< and >>>. The
 * caller pushes the latter, then calls the kernel's host function, which pops it. */
#include <stdbool.h>

#include "registration.h"

static bool is_beyond(CUdevice_attribute limit, size_t asked) {
    CUdevice device;
    int most;
    return driver.cuCtxGetDevice(&device) == CUDA_SUCCESS &&
           driver.cuDeviceGetAttribute(&most, limit, device) == CUDA_SUCCESS &&
           asked > (size_t)most;
}

/* The driver has no error of its own for what the card can never run. */
static bool is_impossible(dim3 grid, dim3 block, size_t shared) {
    size_t blocks = (size_t)grid.x * grid.y * grid.z, threads = (size_t)block.x * block.y * block.z;
    const struct {
        CUdevice_attribute limit;
        size_t asked;
    } limits[] = {
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, grid.x},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, grid.y},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, grid.z},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, block.x},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, block.y},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, block.z},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, threads},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, shared},
    };
    if (blocks == 0 || threads == 0) return true;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (is_beyond(limits[i].limit, limits[i].asked)) return true;
    return false;
}

cudaError_t runtime_launched(CUresult result, CUkernel kernel, dim3 grid, dim3 block,
                             size_t shared) {
    if (result == CUDA_ERROR_INVALID_VALUE && is_impossible(grid, block, shared))
        return runtime_error(cudaErrorInvalidConfiguration);
    return runtime_used(result, kernel);
}

struct configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
};

/* An argument of a launch may contain a launch itself, and so on. */
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
