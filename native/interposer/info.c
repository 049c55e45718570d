/* What a program can ask about memory: the slice, wherever it looks. Never negative, never more
 * than there is. */
#include "interposer.h"

#include <string.h>

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    CUcontext context;
    size_t real_free = 0, real_total = 0;
    if (!slice_open()) return REFUSED;
    if (free_bytes == NULL || total_bytes == NULL)
        return REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
    CUresult result = REAL(cuMemGetInfo_v2)(&real_free, &real_total);
    if (result != CUDA_SUCCESS) return result;
    int device = device_current(&context);
    uint64_t total = least(memory_limit(device), real_total),
             used = least(account_used(device), total);
    *total_bytes = total;
    *free_bytes = least(total - used, real_free);
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuDeviceTotalMem_v2)(bytes, ordinal);
    if (result == CUDA_SUCCESS && bytes != NULL)
        *bytes = least(*bytes, memory_limit(device_of_ordinal(ordinal)));
    return result;
}

/* The first ABI counts in 32 bits: what does not fit is shown as the most that does. */
EXPORT CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes) {
    size_t free_now = 0, total = 0;
    if (free_bytes == NULL || total_bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuMemGetInfo_v2(&free_now, &total);
    if (result != CUDA_SUCCESS) return result;
    *free_bytes = (unsigned)least(free_now, UINT32_MAX);
    *total_bytes = (unsigned)least(total, UINT32_MAX);
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice ordinal) {
    size_t total = 0;
    if (bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuDeviceTotalMem_v2(&total, ordinal);
    if (result == CUDA_SUCCESS) *bytes = (unsigned)least(total, UINT32_MAX);
    return result;
}

/* ---- NVML ---- */

int nvml_device(nvmlDevice_t handle) {
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    if (REAL(nvmlDeviceGetUUID) == NULL ||
        REAL(nvmlDeviceGetUUID)(handle, uuid, sizeof uuid) != NVML_SUCCESS)
        return DEVICE_NONE;
    return slice_device_by_uuid(uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    if (REAL(nvmlDeviceGetMemoryInfo) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!slice_open()) return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(handle, memory);
    if (result != NVML_SUCCESS || memory == NULL) return result;
    int device = nvml_device(handle);
    memory->total = least(memory->total, memory_limit(device));
    memory->used = least(account_used(device), memory->total);
    memory->free = memory->total - memory->used;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
    if (REAL(nvmlDeviceGetMemoryInfo_v2) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!slice_open()) return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(handle, memory);
    if (result != NVML_SUCCESS || memory == NULL) return result;
    int device = nvml_device(handle);
    memory->total = least(memory->total, memory_limit(device));
    memory->reserved = 0; /* the driver's own share lies outside the slice */
    memory->used = least(account_used(device), memory->total);
    memory->free = memory->total - memory->used;
    return result;
}

/* The container's own processes, as the usage file has them: in their own pids, with their own
 * bytes. The real list names everybody's processes, in pids of the host. Kinds of process (compute,
 * graphics) are not told apart: all are compute. */
#define PROCESS_LIST(SYMBOL, TYPE, FILL)                                                           \
    EXPORT nvmlReturn_t SYMBOL(nvmlDevice_t handle, unsigned *count, TYPE *list) {                 \
        if (REAL(SYMBOL) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;                            \
        if (!slice_open()) return NVML_ERROR_NO_PERMISSION;                                        \
        unsigned none = 0;                                                                         \
        nvmlReturn_t result =                                                                      \
            REAL(SYMBOL)(handle, &none, NULL); /* lost GPU, bad handle: the driver's own answer */ \
        if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) return result;       \
        if (count == NULL || (*count > 0 && list == NULL)) return NVML_ERROR_INVALID_ARGUMENT;     \
        int device = nvml_device(handle);                                                          \
        unsigned room = *count, found = 0;                                                         \
        if (device >= 0 && (FILL)) account_reap(device);                                           \
        for (unsigned i = 0; device >= 0 && (FILL) && i < EGPU_USAGE_SLOTS; i++) {                 \
            struct egpu_usage_slot slot = slice_usage()->slots[i];                                 \
            if (slot.state != EGPU_SLOT_LIVE || slot.device != (uint32_t)device) continue;         \
            if (found < room) {                                                                    \
                memset(&list[found], 0xff, sizeof list[found]); /* MIG ids: not applicable */      \
                list[found].pid = slot.pid;                                                        \
                list[found].usedGpuMemory = slot_bytes(&slot);                                     \
            }                                                                                      \
            found++;                                                                               \
        }                                                                                          \
        *count = found;                                                                            \
        return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;                         \
    }

static unsigned long long slot_bytes(const struct egpu_usage_slot *slot) {
    uint64_t held = 0;
    for (int class = 0; class < EGPU_MEMORY_CLASSES; class++)
        held += slot->reserved_bytes[class] - slot->released_bytes[class];
    return held;
}

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, true)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, false)
