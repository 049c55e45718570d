/* Settings that NVIDIA's nvidia-smi makes by ways that are not public. NVML has no function for
 * them, so this file has one of ours, which our nvidia-smi uses. */
#include "nvml_internal.h"

API nvmlReturn_t egpuSimSetTimeslice(nvmlDevice_t device, unsigned length);
API nvmlReturn_t egpuSimSetTimeslice(nvmlDevice_t device, unsigned length) {
    NEED_CARD(device);
    if (length > SIM_TIMESLICE_LONG) return NVML_ERROR_INVALID_ARGUMENT;
    atomic_store(&card->timeslice, length);
    return NVML_SUCCESS;
}

API nvmlReturn_t egpuSimGetTimeslice(nvmlDevice_t device, unsigned *length);
API nvmlReturn_t egpuSimGetTimeslice(nvmlDevice_t device, unsigned *length) {
    NEED_CARD(device);
    NEED(length);
    *length = atomic_load(&card->timeslice);
    return NVML_SUCCESS;
}
