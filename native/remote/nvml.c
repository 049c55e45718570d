/* NVML for a program whose GPUs are on another machine: libnvidia-ml.so.1 beside the remote
 * libcuda.so.1, whose session it uses. So nvmlInit takes the lease, as cuInit does, and NVML shows
 * the slice: its cards, its memory, its processes with their pids on this side.
 *
 * Functions of the header that are not defined here return NVML_ERROR_NOT_SUPPORTED. With
 * EGPU_REMOTE_VERBOSE=1 they print their name.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <cuda.h>
#include <dlfcn.h>
#include <nvml.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "special.h"

#define API __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int users;
static int count;
static struct {
    CUresult (*egpuCardCount)(int *), (*cuDriverGetVersion)(int *),
        (*cuDeviceGetName)(char *, int, CUdevice), (*cuDeviceGetUuid_v2)(CUuuid *, CUdevice),
        (*cuDeviceGetPCIBusId)(char *, int, CUdevice),
        (*cuDeviceGetAttribute)(int *, CUdevice_attribute, CUdevice),
        (*egpuDeviceStatus)(CUdevice, struct wire_device_status *, struct wire_process *, uint32_t);
} cuda;

int nvml_not_supported(const char *name);
__attribute__((visibility("hidden"))) int nvml_not_supported(const char *name) {
    const char *verbose = getenv("EGPU_REMOTE_VERBOSE");
    if (verbose != NULL && *verbose == '1')
        fprintf(stderr, "egpu: %s is not supported on a remote GPU\n", name);
    return NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t told(CUresult result) {
    switch (result) {
    case CUDA_SUCCESS: return NVML_SUCCESS;
    case CUDA_ERROR_NOT_INITIALIZED: return NVML_ERROR_UNINITIALIZED;
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_VALUE: return NVML_ERROR_INVALID_ARGUMENT;
    case CUDA_ERROR_NOT_SUPPORTED: return NVML_ERROR_NOT_SUPPORTED;
    case CUDA_ERROR_DEVICE_UNAVAILABLE: return NVML_ERROR_GPU_IS_LOST;
    default: return NVML_ERROR_UNKNOWN;
    }
}

/* ---- initialisation ---- */

static nvmlReturn_t find_driver(void) {
    Dl_info here;
    char path[4096];
    if (cuda.egpuCardCount != NULL) return NVML_SUCCESS;
    if (dladdr((const void *)&cuda, &here) == 0) return NVML_ERROR_UNKNOWN;
    const char *slash = strrchr(here.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/libcuda.so.1", slash ? (int)(slash - here.dli_fname) : 1,
             slash ? here.dli_fname : ".");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return NVML_ERROR_DRIVER_NOT_LOADED;
#define FIND(name)                                                     \
    do {                                                               \
        void *symbol = dlsym(library, #name);                          \
        if (symbol == NULL) return NVML_ERROR_LIB_RM_VERSION_MISMATCH; \
        memcpy(&cuda.name, &symbol, sizeof symbol);                    \
    } while (0)
    FIND(egpuDeviceStatus);
    FIND(cuDriverGetVersion);
    FIND(cuDeviceGetName);
    FIND(cuDeviceGetUuid_v2);
    FIND(cuDeviceGetPCIBusId);
    FIND(cuDeviceGetAttribute);
    FIND(egpuCardCount);
#undef FIND
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    if (flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH))
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = find_driver();
    if (result == NVML_SUCCESS) {
        CUresult is = cuda.egpuCardCount(&count);
        result = is == CUDA_SUCCESS || is == CUDA_ERROR_DEVICE_UNAVAILABLE
                     ? told(is)
                     : NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (result == NVML_SUCCESS) users++;
    pthread_mutex_unlock(&lock);
    return result;
}
API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (users > 0) users--;
    pthread_mutex_unlock(&lock);
    return result;
}

#define NEED(condition)                                       \
    do {                                                      \
        if (users == 0) return NVML_ERROR_UNINITIALIZED;      \
        if (!(condition)) return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

static nvmlReturn_t text_out(char *out, unsigned room, const char *text) {
    if (strlen(text) >= room) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* ---- finding cards ---- */

/* Handles are ordinals from 1. */
static int ordinal(nvmlDevice_t device) {
    uintptr_t number = (uintptr_t)device;
    return number >= 1 && number <= (uintptr_t)count ? (int)number - 1 : -1;
}
/* The client's ordinal of a card, visible or not. */
static CUdevice card(int ordinal) { return ordinal + WIRE_EVERY_CARD; }
#define NEED_DEVICE(extra) NEED(ordinal(device) >= 0 && (extra))

static nvmlReturn_t uuid_of(int ordinal, char text[41]) {
    CUuuid is;
    CUresult result = cuda.cuDeviceGetUuid_v2(&is, card(ordinal));
    char *at = text + sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      (unsigned char)is.bytes[i]);
    return told(result);
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *number) {
    NEED(number);
    *number = (unsigned)count;
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetCount(unsigned int *number) { return nvmlDeviceGetCount_v2(number); }

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    NEED(device && index < (unsigned)count);
    *device = (nvmlDevice_t)(uintptr_t)(index + 1);
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    char text[41];
    NEED(uuid && device);
    for (int i = 0; i < count; i++)
        if (uuid_of(i, text) == NVML_SUCCESS && strcasecmp(text, uuid) == 0)
            return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
    return NVML_ERROR_NOT_FOUND;
}

static bool address(const char *text, unsigned part[4]) {
    return sscanf(text, "%x:%x:%x.%x", &part[0], &part[1], &part[2], &part[3]) >= 3;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device) {
    unsigned wanted[4] = {0}, is[4] = {0};
    char bus[32];
    NEED(text && device && address(text, wanted));
    for (int i = 0; i < count; i++)
        if (cuda.cuDeviceGetPCIBusId(bus, sizeof bus, card(i)) == CUDA_SUCCESS &&
            address(bus, is) && memcmp(is, wanted, 3 * sizeof *is) == 0)
            return nvmlDeviceGetHandleByIndex_v2((unsigned)i, device);
    return NVML_ERROR_NOT_FOUND;
}
API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

/* ---- properties ---- */

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    NEED_DEVICE(index);
    *index = (unsigned)ordinal(device);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int room) {
    char text[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
    NEED_DEVICE(name);
    CUresult result = cuda.cuDeviceGetName(text, sizeof text, card(ordinal(device)));
    return result == CUDA_SUCCESS ? text_out(name, room, text) : told(result);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int room) {
    char text[41];
    NEED_DEVICE(uuid);
    nvmlReturn_t result = uuid_of(ordinal(device), text);
    return result == NVML_SUCCESS ? text_out(uuid, room, text) : result;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    NEED_DEVICE(major && minor);
    CUresult result = cuda.cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                                card(ordinal(device)));
    if (result == CUDA_SUCCESS)
        result = cuda.cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                           card(ordinal(device)));
    return told(result);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    char bus[32];
    unsigned part[4] = {0};
    NEED_DEVICE(pci);
    CUresult result = cuda.cuDeviceGetPCIBusId(bus, sizeof bus, card(ordinal(device)));
    if (result != CUDA_SUCCESS) return told(result);
    if (!address(bus, part)) return NVML_ERROR_UNKNOWN;
    *pci = (nvmlPciInfo_t){.domain = part[0], .bus = part[1], .device = part[2]};
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.%X", part[0], part[1] & 0xff,
             part[2] & 0xff, part[3] & 0xf);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.%X", part[0] & 0xffff,
             part[1] & 0xff, part[2] & 0xff, part[3] & 0xf);
    return NVML_SUCCESS;
}
API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    NEED(version);
    return told(cuda.cuDriverGetVersion(version));
}
API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

/* ---- state ---- */

static nvmlReturn_t status_of(int ordinal, struct wire_device_status *status,
                              struct wire_process processes[WIRE_MAX_PROCESSES]) {
    return told(cuda.egpuDeviceStatus(card(ordinal), status, processes, WIRE_MAX_PROCESSES));
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int room) {
    struct wire_device_status status;
    struct wire_process processes[WIRE_MAX_PROCESSES];
    NEED(version && count > 0);
    nvmlReturn_t result = status_of(0, &status, processes);
    return result == NVML_SUCCESS ? text_out(version, room, status.driver) : result;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    struct wire_device_status status;
    struct wire_process processes[WIRE_MAX_PROCESSES];
    NEED_DEVICE(memory);
    nvmlReturn_t result = status_of(ordinal(device), &status, processes);
    if (result == NVML_SUCCESS)
        *memory = (nvmlMemory_t){.total = status.total, .free = status.free, .used = status.used};
    return result;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t is;
    NEED_DEVICE(memory);
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &is);
    if (result == NVML_SUCCESS)
        *memory = (nvmlMemory_v2_t){
            .version = nvmlMemory_v2, .total = is.total, .free = is.free, .used = is.used};
    return result;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
                                               nvmlUtilization_t *utilisation) {
    struct wire_device_status status;
    struct wire_process processes[WIRE_MAX_PROCESSES];
    NEED_DEVICE(utilisation);
    nvmlReturn_t result = status_of(ordinal(device), &status, processes);
    if (result == NVML_SUCCESS)
        *utilisation = (nvmlUtilization_t){status.gpu_percent, status.memory_percent};
    return result;
}

#define PROCESSES(symbol, type)                                                     \
    API nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *number, type *out) { \
        struct wire_device_status status;                                           \
        struct wire_process processes[WIRE_MAX_PROCESSES];                          \
        NEED_DEVICE(number && (*number == 0 || out));                               \
        nvmlReturn_t result = status_of(ordinal(device), &status, processes);       \
        if (result != NVML_SUCCESS) return result;                                  \
        unsigned room = *number;                                                    \
        *number = status.processes;                                                 \
        if (room < status.processes) return NVML_ERROR_INSUFFICIENT_SIZE;           \
        for (unsigned i = 0; i < status.processes; i++) {                           \
            memset(&out[i], 0xff, sizeof out[i]); /* no instances */                \
            out[i].pid = processes[i].pid;                                          \
            out[i].usedGpuMemory = processes[i].bytes;                              \
        }                                                                           \
        return NVML_SUCCESS;                                                        \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t)

#define NO_PROCESSES(symbol, type)                                                  \
    API nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *number, type *out) { \
        (void)out;                                                                  \
        NEED_DEVICE(number);                                                        \
        *number = 0;                                                                \
        return NVML_SUCCESS;                                                        \
    }
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)

/* The caller may be in another pid namespace than the program; then there is no name. */
API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int room) {
    char path[32], text[1024];
    NEED(name && room);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) return NVML_ERROR_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0;
    if (*text == 0) return NVML_ERROR_NOT_FOUND;
    snprintf(name, room, "%s", text);
    return NVML_SUCCESS;
}
