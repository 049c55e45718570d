/* An NVML of two cards on which a stranger works: what it says must not reach a slice. A handle is
 * the card's ordinal and one. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#include <stdio.h>
#include <string.h>

enum { STRANGER = 4242, BUSY = 90 };

static unsigned ordinal_of(nvmlDevice_t device) { return (unsigned)(unsigned long)device - 1; }

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    unsigned digit = ordinal_of(device) + 1;
    snprintf(uuid, length, "GPU-%08u-%04u-%04u-%04u-%012llu", digit * 11111111, digit * 1111,
             digit * 1111, digit * 1111, digit * 111111111111ull);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    (void)device;
    *memory = (nvmlMemory_t){.total = 16ull << 30, .used = 5ull << 30, .free = 11ull << 30};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
    (void)device;
    *utilization = (nvmlUtilization_t){.gpu = BUSY, .memory = BUSY};
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                        nvmlProcessInfo_t *list) {
    (void)device;
    unsigned room = *count;
    *count = 1;
    if (room == 0) return NVML_ERROR_INSUFFICIENT_SIZE;
    list[0].pid = STRANGER;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_t *list) {
    (void)device;
    unsigned room = list->procArray == NULL ? 0 : list->numProcArrayEntries;
    list->numProcArrayEntries = 1;
    if (room == 0) return NVML_ERROR_INSUFFICIENT_SIZE;
    list->procArray[0].pid = STRANGER;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type,
                                  unsigned long long last_seen, nvmlValueType_t *value_type,
                                  unsigned *count, nvmlSample_t *samples) {
    (void)device, (void)type, (void)last_seen;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (samples != NULL) samples[0].sampleValue.uiVal = BUSY;
    *count = 1;
    return NVML_SUCCESS;
}
