/* Opening memory and events of other processes. Both APIs have the same bytes as handles. */
#include <string.h>

#include "runtime.h"

API cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle,
                                     unsigned int flags) {
    CUipcMemHandle ours;
    _Static_assert(sizeof ours == sizeof handle, "the handles of both APIs are the same bytes");
    NEED_CONTEXT();
    memcpy(&ours, &handle, sizeof ours);
    return runtime_result(driver.cuIpcOpenMemHandle((CUdeviceptr *)pointer, ours, flags));
}

API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
    CUipcEventHandle ours;
    _Static_assert(sizeof ours == sizeof handle, "the handles of both APIs are the same bytes");
    NEED_CONTEXT();
    memcpy(&ours, &handle, sizeof ours);
    return runtime_result(driver.cuIpcOpenEventHandle(event, ours));
}
