/* What nvidia-smi sets of a real card by ways that are not public: NVML has no function for it, so
 * here it is one of ours, which our nvidia-smi looks for. */
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
