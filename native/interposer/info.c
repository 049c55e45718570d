/* What a program can ask about memory: the slice, wherever it looks. Never negative, never more
 * than there is. */
#include "interposer.h"

#include <string.h>

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A program may leave out either amount, as llama.cpp and OptiX do. */
EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    CUcontext context;
    size_t real_free = 0, real_total = 0;
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuMemGetInfo_v2)(&real_free, &real_total);
    if (result != CUDA_SUCCESS) return result;
    int device = device_current(&context);
    uint64_t total = least(memory_limit(device), real_total),
             used = least(account_used(device), total);
    if (total_bytes != NULL) *total_bytes = total;
    if (free_bytes != NULL) *free_bytes = least(total - used, real_free);
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
    CUresult result = cuMemGetInfo_v2(&free_now, &total);
    if (result != CUDA_SUCCESS) return result;
    if (free_bytes != NULL) *free_bytes = (unsigned)least(free_now, UINT32_MAX);
    if (total_bytes != NULL) *total_bytes = (unsigned)least(total, UINT32_MAX);
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

/* A card that is not the slice's is full: its size is no secret, who uses it is, and a tool that
 * divides by the size is not to divide by nothing. */
static uint64_t shown_total(int device, uint64_t total) {
    return device < 0 ? total : least(total, memory_limit(device));
}

static uint64_t shown_used(int device, uint64_t total) {
    return device < 0 ? total : least(account_used(device), total);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t handle, nvmlMemory_t *memory) {
    if (REAL(nvmlDeviceGetMemoryInfo) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!slice_open()) return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo)(handle, memory);
    if (result != NVML_SUCCESS || memory == NULL) return result;
    int device = nvml_device(handle);
    memory->total = shown_total(device, memory->total);
    memory->used = shown_used(device, memory->total);
    memory->free = memory->total - memory->used;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t handle, nvmlMemory_v2_t *memory) {
    if (REAL(nvmlDeviceGetMemoryInfo_v2) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!slice_open()) return NVML_ERROR_NO_PERMISSION;
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2)(handle, memory);
    if (result != NVML_SUCCESS || memory == NULL) return result;
    int device = nvml_device(handle);
    memory->total = shown_total(device, memory->total);
    memory->reserved = 0; /* the driver's own share lies outside the slice */
    memory->used = shown_used(device, memory->total);
    memory->free = memory->total - memory->used;
    return result;
}

/* The container's own processes, as the usage file has them: in their own pids, with their own
 * bytes. The real lists name everybody's processes, in pids of the host. Kinds of process (compute,
 * graphics, MPS) are not told apart: all are compute. */

static unsigned long long slot_bytes(const struct egpu_usage_slot *slot) {
    uint64_t held = 0;
    for (int class = 0; class < EGPU_MEMORY_CLASSES; class++)
        held += slot->reserved_bytes[class] - slot->released_bytes[class];
    return held;
}

/* The next live one of a device from `*at` on; false: there is none. */
static bool next_process(int device, unsigned *at, struct egpu_usage_slot *slot) {
    while (*at < EGPU_USAGE_SLOTS) {
        *slot = slice_usage()->slots[(*at)++];
        if (slot->state == EGPU_SLOT_LIVE && slot->device == (uint32_t)device) return true;
    }
    return false;
}

#define PROCESS_LIST(SYMBOL, TYPE, FILL)                                                           \
    EXPORT nvmlReturn_t SYMBOL(nvmlDevice_t handle, unsigned *count, TYPE *list) {                 \
        struct egpu_usage_slot slot;                                                               \
        if (REAL(SYMBOL) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;                            \
        if (!slice_open()) return NVML_ERROR_NO_PERMISSION;                                        \
        unsigned none = 0;                                                                         \
        nvmlReturn_t result =                                                                      \
            REAL(SYMBOL)(handle, &none, NULL); /* lost GPU, bad handle: the driver's own answer */ \
        if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) return result;       \
        if (count == NULL || (*count > 0 && list == NULL)) return NVML_ERROR_INVALID_ARGUMENT;     \
        int device = (FILL) ? nvml_device(handle) : DEVICE_NONE;                                   \
        unsigned room = *count, found = 0, at = 0;                                                 \
        if (device >= 0) account_reap(device);                                                     \
        for (; device >= 0 && next_process(device, &at, &slot); found++) {                         \
            if (found >= room) continue;                                                           \
            memset(&list[found], 0xff, sizeof list[found]); /* MIG ids: not applicable */          \
            list[found].pid = slot.pid;                                                            \
            list[found].usedGpuMemory = slot_bytes(&slot);                                         \
        }                                                                                          \
        *count = found;                                                                            \
        return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;                         \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, true)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, true)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, true)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, false)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, false)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, false)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, false)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, false)

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t handle,
                                                          nvmlProcessDetailList_t *list) {
    struct egpu_usage_slot slot;
    if (REAL(nvmlDeviceGetRunningProcessDetailList) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    if (!slice_open()) return NVML_ERROR_NO_PERMISSION;
    if (list == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    nvmlProcessDetailList_t none = {.version = list->version, .mode = list->mode};
    nvmlReturn_t result = REAL(nvmlDeviceGetRunningProcessDetailList)(handle, &none);
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) return result;
    bool lists = list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == NVML_PROCESS_MODE_ALL;
    int device = lists ? nvml_device(handle) : DEVICE_NONE;
    unsigned room = list->procArray == NULL ? 0 : list->numProcArrayEntries, found = 0, at = 0;
    if (device >= 0) account_reap(device);
    for (; device >= 0 && next_process(device, &at, &slot); found++)
        if (found < room)
            list->procArray[found] = (nvmlProcessDetail_v1_t){.pid = slot.pid,
                                                              .usedGpuMemory = slot_bytes(&slot),
                                                              .gpuInstanceId = UINT32_MAX,
                                                              .computeInstanceId = UINT32_MAX};
    list->numProcArrayEntries = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
