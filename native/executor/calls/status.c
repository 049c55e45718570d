/* What NVML says of a card, as the slice sees it: the interposer is in this process, so memory,
 * utilisation and processes are the lease's. NVML is loaded when somebody asks for the first time.
 */
#define _GNU_SOURCE
#include "executor/executor.h"

#include <dlfcn.h>
#include <nvml.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

static const struct settings *settings;
static const struct roster *roster;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool tried, ready;
static struct {
    nvmlReturn_t (*nvmlInit_v2)(void), (*nvmlSystemGetDriverVersion)(char *, unsigned),
        (*nvmlDeviceGetHandleByUUID)(const char *, nvmlDevice_t *),
        (*nvmlDeviceGetMemoryInfo)(nvmlDevice_t, nvmlMemory_t *),
        (*nvmlDeviceGetUtilizationRates)(nvmlDevice_t, nvmlUtilization_t *),
        (*nvmlDeviceGetComputeRunningProcesses_v3)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
} nvml;

void status_init(const struct settings *given) {
    settings = given;
    void *mapped = given->roster < 0
                       ? MAP_FAILED
                       : mmap(NULL, sizeof *roster, PROT_READ, MAP_SHARED, given->roster, 0);
    roster = mapped == MAP_FAILED ? NULL : mapped;
}

static bool load(void) {
    char path[4096] = "libnvidia-ml.so.1";
    /* a simulated machine's is beside its driver */
    const char *slash = strrchr(settings->driver, '/');
    if (slash != NULL)
        snprintf(path, sizeof path, "%.*s/libnvidia-ml.so.1", (int)(slash - settings->driver),
                 settings->driver);
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL) {
        fprintf(stderr, "egpu-executor: %s\n", dlerror());
        return false;
    }
#define FIND(name)                                  \
    do {                                            \
        void *symbol = dlsym(library, #name);       \
        if (symbol == NULL) return false;           \
        memcpy(&nvml.name, &symbol, sizeof symbol); \
    } while (0)
    FIND(nvmlInit_v2);
    FIND(nvmlSystemGetDriverVersion);
    FIND(nvmlDeviceGetHandleByUUID);
    FIND(nvmlDeviceGetMemoryInfo);
    FIND(nvmlDeviceGetUtilizationRates);
    FIND(nvmlDeviceGetComputeRunningProcesses_v3);
#undef FIND
    return nvml.nvmlInit_v2() == NVML_SUCCESS;
}

static bool find(uint32_t ordinal, nvmlDevice_t *device) {
    CUuuid is;
    CUdevice card;
    CUresult (*get)(CUdevice *, int) =
        (CUresult (*)(CUdevice *, int))driver_function(EGPU_FN_cuDeviceGet);
    CUresult (*identify)(CUuuid *, CUdevice) =
        (CUresult (*)(CUuuid *, CUdevice))driver_function(EGPU_FN_cuDeviceGetUuid_v2);
    if (identify == NULL)
        identify = (CUresult (*)(CUuuid *, CUdevice))driver_function(EGPU_FN_cuDeviceGetUuid);
    if (get(&card, (int)ordinal) != CUDA_SUCCESS || identify(&is, card) != CUDA_SUCCESS)
        return false;
    char text[41] = "GPU-", *at = text + 4;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) *at++ = '-';
        at += sprintf(at, "%02x", (unsigned char)is.bytes[i]);
    }
    return nvml.nvmlDeviceGetHandleByUUID(text, device) == NVML_SUCCESS;
}

/* The client whose session a process is; 0: none of this lease. */
static uint32_t client_of(uint32_t pid) {
    for (unsigned i = 0; roster != NULL && i < MAX_SESSIONS; i++)
        if (roster->sessions[i].pid == pid) return roster->sessions[i].client;
    return 0;
}

CUresult status_read(uint32_t ordinal, struct writer *out) {
    nvmlDevice_t device;
    nvmlMemory_t memory;
    nvmlUtilization_t utilisation = {0};
    nvmlProcessInfo_t list[WIRE_MAX_PROCESSES];
    unsigned count = WIRE_MAX_PROCESSES;
    pthread_mutex_lock(&lock);
    if (!tried) ready = load();
    tried = true;
    pthread_mutex_unlock(&lock);
    if (!ready) return CUDA_ERROR_NOT_SUPPORTED;
    if (!find(ordinal, &device)) return CUDA_ERROR_INVALID_DEVICE;
    if (nvml.nvmlDeviceGetMemoryInfo(device, &memory) != NVML_SUCCESS)
        return CUDA_ERROR_NOT_SUPPORTED;
    /* cards that do not measure it show nothing */
    nvml.nvmlDeviceGetUtilizationRates(device, &utilisation);
    if (nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list) != NVML_SUCCESS)
        count = 0;
    struct wire_device_status status = {
        memory.total, memory.free, memory.used, utilisation.gpu, utilisation.memory, "", 0, 0};
    nvml.nvmlSystemGetDriverVersion(status.driver, sizeof status.driver);
    for (unsigned i = 0; i < count; i++)
        if (client_of(list[i].pid) != 0) list[status.processes++] = list[i];
    put_bytes(out, &status, sizeof status);
    for (unsigned i = 0; i < status.processes; i++) {
        struct wire_process process = {client_of(list[i].pid), 0, list[i].usedGpuMemory};
        put_bytes(out, &process, sizeof process);
    }
    return CUDA_SUCCESS;
}
