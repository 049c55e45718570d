/* Functions of streams and events that are more than the driver's own. */
#include "runtime.h"

API cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    NEED_CONTEXT();
    return runtime_result(driver.cuStreamCreate(stream, CU_STREAM_DEFAULT));
}

API cudaError_t cudaEventCreate(cudaEvent_t *event) {
    NEED_CONTEXT();
    return runtime_result(driver.cuEventCreate(event, CU_EVENT_DEFAULT));
}

/* Without a profiler there is nothing to start. */
API cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }

API cudaError_t cudaProfilerStop(void);
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }
