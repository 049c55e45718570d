/* How busy NVML says the device is: the slice. All of the share used is 100 %, whatever the others
 * do on the card.
 *
 * GPU time is counted when it is over, and averaged over an eighth to three eighths of a second, as
 * NVML does itself. A slice whose time is not limited is not measured either: it sees the card's
 * utilisation, and processes are not told apart. */
#include "interposer.h"

#include <time.h>

#include "common/clock.h"

static unsigned percent_of(uint64_t ppm, int device) {
    uint64_t share = LIMIT(device, core_ppm),
             percent = share == 0 ? 0 : (ppm * 100 + share / 2) / share;
    return percent > 100 ? 100 : (unsigned)percent; /* in `share`, what others leave comes on top */
}

static unsigned device_percent(int device) {
    struct egpu_usage_device *totals = &slice_usage()->devices[device];
    compute_collect();
    return percent_of(
        rate_ppm(&totals->rate, __atomic_load_n(&totals->gpu_ns, __ATOMIC_RELAXED), now_ns()),
        device);
}

static unsigned process_percent(struct egpu_usage_slot *slot, int device) {
    return percent_of(
        rate_ppm(&slot->rate, __atomic_load_n(&slot->gpu_ns, __ATOMIC_RELAXED), now_ns()), device);
}

/* Memory traffic is not measured by slice: as much of it is taken to be ours as of the card's busy
 * time. */
static unsigned memory_percent(unsigned percent, const nvmlUtilization_t *card) {
    unsigned traffic = card->gpu == 0 ? 0 : percent * card->memory / card->gpu;
    return traffic > 100 ? 100 : traffic;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t handle,
                                                  nvmlUtilization_t *utilization) {
    if (REAL(nvmlDeviceGetUtilizationRates) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!slice_open()) return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = REAL(nvmlDeviceGetUtilizationRates)(handle, utilization);
    if (result != NVML_SUCCESS || utilization == NULL) return result;
    int device = nvml_device(handle);
    if (device >= 0 && !is_metered(device)) return result;
    nvmlUtilization_t card = *utilization;
    utilization->gpu = device < 0 ? 0 : device_percent(device);
    utilization->memory = memory_percent(utilization->gpu, &card);
    return result;
}

struct sample {
    unsigned pid, percent, memory;
};

/* The slice's own processes. *count: room, then how many there are. */
static nvmlReturn_t sample(nvmlDevice_t handle, struct sample *out, unsigned *count) {
    nvmlUtilization_t card = {0};
    int device = nvml_device(handle);
    unsigned room = *count, found = 0;
    *count = 0;
    if (device < 0) return NVML_ERROR_NOT_FOUND;
    if (!is_metered(device)) return NVML_ERROR_NOT_SUPPORTED;
    if (REAL(nvmlDeviceGetUtilizationRates) != NULL)
        REAL(nvmlDeviceGetUtilizationRates)(handle, &card);
    compute_collect();
    account_reap(device);
    for (unsigned i = 0; i < EGPU_USAGE_SLOTS; i++) {
        struct egpu_usage_slot *slot = &slice_usage()->slots[i];
        if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != EGPU_SLOT_LIVE ||
            slot->device != (uint32_t)device)
            continue;
        if (found < room) {
            unsigned percent = process_percent(slot, device);
            out[found] = (struct sample){slot->pid, percent, memory_percent(percent, &card)};
        }
        found++;
    }
    *count = found;
    return found == 0     ? NVML_ERROR_NOT_FOUND
           : found > room ? NVML_ERROR_INSUFFICIENT_SIZE
                          : NVML_SUCCESS;
}

static bool is_the_drivers_own(nvmlReturn_t result) { /* lost GPU, bad handle, wrong version */
    return result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE &&
           result != NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t handle,
                                                    nvmlProcessUtilizationSample_t *list,
                                                    unsigned *count, unsigned long long last_seen) {
    struct sample samples[EGPU_USAGE_SLOTS];
    if (REAL(nvmlDeviceGetProcessUtilization) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!slice_open()) return NVML_ERROR_NO_PERMISSION;
    unsigned none = 0;
    nvmlReturn_t result = REAL(nvmlDeviceGetProcessUtilization)(
        handle, NULL, count == NULL ? NULL : &none, last_seen);
    if (is_the_drivers_own(result)) return result;
    if (count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned found = list == NULL ? 0 : *count < EGPU_USAGE_SLOTS ? *count : EGPU_USAGE_SLOTS;
    result = sample(handle, samples, &found);
    for (unsigned i = 0; result == NVML_SUCCESS && i < found; i++)
        list[i] = (nvmlProcessUtilizationSample_t){.pid = samples[i].pid,
                                                   .timeStamp = clock_unix_ns() / 1000,
                                                   .smUtil = samples[i].percent,
                                                   .memUtil = samples[i].memory};
    *count = found;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t handle,
                                                          nvmlProcessesUtilizationInfo_t *info) {
    struct sample samples[EGPU_USAGE_SLOTS];
    if (REAL(nvmlDeviceGetProcessesUtilizationInfo) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!slice_open()) return NVML_ERROR_NO_PERMISSION;
    if (info == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlProcessesUtilizationInfo_t none = {.version = info->version,
                                           .lastSeenTimeStamp = info->lastSeenTimeStamp};
    nvmlReturn_t result = REAL(nvmlDeviceGetProcessesUtilizationInfo)(handle, &none);
    if (is_the_drivers_own(result)) return result;
    unsigned room = info->procUtilArray == NULL ? 0 : info->processSamplesCount;
    unsigned found = room < EGPU_USAGE_SLOTS ? room : EGPU_USAGE_SLOTS;
    result = sample(handle, samples, &found);
    for (unsigned i = 0; result == NVML_SUCCESS && i < found; i++)
        info->procUtilArray[i] =
            (nvmlProcessUtilizationInfo_v1_t){.pid = samples[i].pid,
                                              .timeStamp = clock_unix_ns() / 1000,
                                              .smUtil = samples[i].percent,
                                              .memUtil = samples[i].memory};
    info->processSamplesCount = found;
    return result;
}

/* The card's samples, each as busy as the slice is now: what it was between two of them is not
 * kept. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t handle, nvmlSamplingType_t type,
                                         unsigned long long last_seen, nvmlValueType_t *value_type,
                                         unsigned *count, nvmlSample_t *samples) {
    if (REAL(nvmlDeviceGetSamples) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!slice_open()) return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result =
        REAL(nvmlDeviceGetSamples)(handle, type, last_seen, value_type, count, samples);
    if (result != NVML_SUCCESS || samples == NULL ||
        (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES))
        return result;
    nvmlUtilization_t shown = {0};
    result = nvmlDeviceGetUtilizationRates(handle, &shown);
    if (result != NVML_SUCCESS) return result;
    for (unsigned i = 0; i < *count; i++) {
        samples[i].sampleValue = (nvmlValue_t){0};
        samples[i].sampleValue.uiVal =
            type == NVML_GPU_UTILIZATION_SAMPLES ? shown.gpu : shown.memory;
    }
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    return result;
}
