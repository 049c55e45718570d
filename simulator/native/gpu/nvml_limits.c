/* Memory limits of control groups, as in drivers of CUDA 13.4. */
#include "nvml_internal.h"

#include <errno.h>

static nvmlReturn_t of_error(int error) {
    switch (error) {
    case 0: return NVML_SUCCESS;
    case ENOENT: return NVML_ERROR_NOT_FOUND;
    case EACCES:
    case EPERM: return NVML_ERROR_NO_PERMISSION;
    default: return NVML_ERROR_OPERATING_SYSTEM;
    }
}

API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device,
                                              nvmlSetMemoryLimits_v1_t *limits) {
    NEED_CARD(device);
    NEED(limits && limits->nameSpace);
    uint64_t group;
    if (limits_group(limits->nameSpace, &group) != 0) return NVML_ERROR_OPERATING_SYSTEM;
    if (atomic_load(&card->mig_enabled)) return NVML_ERROR_NOT_SUPPORTED;
    uint64_t all = card->memory_bytes + card->driver_bytes;
    if (limits->softLimit > limits->hardLimit) return NVML_ERROR_INVALID_ARGUMENT;
    if (limits->hardLimit != NVML_DEVICE_MEMORY_LIMIT_MAX && limits->hardLimit > all)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct sim_limits set = {.soft = limits->softLimit, .hard = limits->hardLimit};
    return of_error(limits_write(limits->nameSpace, card, &set));
}

API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device,
                                              nvmlGetMemoryLimits_v1_t *limits) {
    NEED_CARD(device);
    NEED(limits && limits->nameSpace);
    uint64_t group;
    if (limits_group(limits->nameSpace, &group) != 0) return NVML_ERROR_OPERATING_SYSTEM;
    if (atomic_load(&card->mig_enabled)) return NVML_ERROR_NOT_SUPPORTED;
    struct sim_limits set;
    int error = limits_read(limits->nameSpace, card, &set);
    if (error) return of_error(error);
    machine_reap(&machine);
    limits->softLimit = set.soft;
    limits->hardLimit = set.hard;
    limits->currentUsed =
        (unsigned long long)machine_group_chunks(&machine, card, group) * SIM_CHUNK_BYTES;
    return NVML_SUCCESS;
}
