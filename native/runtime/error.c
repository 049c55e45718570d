/* Errors: per thread, and for all threads once the context is lost. */
#include <stdatomic.h>
#include <stddef.h>

#include "runtime.h"

static _Thread_local int last;
static _Atomic int lost; /* an error after which the context only returns errors */

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
#include "generated/runtime_table.inc"
    default: return "unrecognized error code";
    }
}

static const struct {
    cudaError_t error;
    const char *text;
} of_the_runtime[] = {
    {cudaSuccess, "no error"},
    {cudaErrorInvalidConfiguration, "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "invalid pitch argument"},
    {cudaErrorInvalidSymbol, "invalid device symbol"},
    {cudaErrorInvalidChannelDescriptor, "invalid channel descriptor"},
    {cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"},
    {cudaErrorInvalidFilterSetting, "linear filtering of integers is not supported"},
    {cudaErrorInvalidNormSetting, "32-bit integers cannot be read as normalized float"},
    {cudaErrorInsufficientDriver, "no CUDA driver was found, or it is too old for the runtime"},
    {cudaErrorMissingConfiguration, "the launch has no configuration"},
    {cudaErrorInvalidDeviceFunction, "invalid device function"},
};

/* The driver has texts for errors that both APIs know. */
API const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    for (size_t i = 0; i < sizeof of_the_runtime / sizeof *of_the_runtime; i++)
        if (of_the_runtime[i].error == error) return of_the_runtime[i].text;
    if (runtime_driver() == 0 && driver.cuGetErrorString((CUresult)error, &text) == CUDA_SUCCESS &&
        text)
        return text;
    return cudaGetErrorName(error);
}
