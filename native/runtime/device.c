/* Device queries, one attribute at a time. Attributes have the same numbers in both APIs. */
#include "runtime.h"

API cudaError_t cudaDriverGetVersion(int *version) {
    if (!version) return runtime_error(cudaErrorInvalidValue);
    *version = 0; /* a missing driver is an answer, not an error */
    return runtime_driver() == cudaErrorInsufficientDriver
               ? cudaSuccess
               : (cudaError_t)runtime_result(driver.cuDriverGetVersion(version));
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    NEED_DRIVER();
    return runtime_result(
        driver.cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}
