/* What went wrong: per thread, and for all threads where the context is lost. */
#include <stdatomic.h>
#include <stddef.h>

#include "runtime.h"

static _Thread_local int last;
static _Atomic int lost; /* an error after which the context answers nothing else */

static int is_sticky(int error) {
    return error == cudaErrorECCUncorrectable || error == cudaErrorIllegalAddress ||
           error == cudaErrorLaunchTimeout || error == cudaErrorAssert ||
           (error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure);
}

int runtime_error(int error) {
    if (error == 0) return 0;
    last = error;
    if (is_sticky(error)) atomic_store_explicit(&lost, error, memory_order_relaxed);
    return error;
}

void runtime_forget_errors(void) {
    last = 0;
    atomic_store_explicit(&lost, 0, memory_order_relaxed);
}

API cudaError_t cudaPeekAtLastError(void) {
    int sticky = atomic_load_explicit(&lost, memory_order_relaxed);
    return sticky ? sticky : last;
}

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = cudaPeekAtLastError();
    last = 0;
    return error;
}

API const char *cudaGetErrorName(cudaError_t error) {
    switch ((int)error) {
#define EGPU_RUNTIME_ERROR(name, value) \
    case value: return #name;
#include "runtime_table.inc"
    default: return "unrecognized error code";
    }
}

/* The driver has words for what both APIs know. */
API const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    if (error == cudaSuccess) return "no error";
    if (error == cudaErrorInsufficientDriver)
        return "no CUDA driver was found, or it is too old for the runtime";
    if (runtime_driver() == 0 && driver.cuGetErrorString((CUresult)error, &text) == CUDA_SUCCESS &&
        text)
        return text;
    return cudaGetErrorName(error);
}
