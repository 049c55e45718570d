/* The remote NVML, with the remote driver linked beside it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

static void *fuzz_symbol(const char *name);
#define dlopen(path, flags) ((void)(path), (void *)"this program")
#define dlsym(library, name) ((void)(library), fuzz_symbol(name))
#include "../../remote/nvml.c"

CUresult egpuDeviceStatus(CUdevice ordinal, struct wire_device_status *status,
                          struct wire_process *processes, uint32_t room);

static void *fuzz_symbol(const char *name) {
#define KNOWN(symbol) \
    if (strcmp(name, #symbol) == 0) return (void *)symbol;
    KNOWN(egpuDeviceStatus)
    KNOWN(cuDeviceGetCount)
    KNOWN(cuDriverGetVersion)
    KNOWN(cuDeviceGetName)
    KNOWN(cuDeviceGetUuid_v2)
    KNOWN(cuDeviceGetPCIBusId)
    KNOWN(cuDeviceGetAttribute)
    KNOWN(cuInit)
#undef KNOWN
    return NULL;
}

void ask_nvml(unsigned which);

/* The queries of a monitoring program; replies go into buffers of the documented sizes, or of one
 * entry. */
void ask_nvml(unsigned which) {
    char text[96], short_text[4];
    unsigned number = which % 4;
    int major, minor;
    nvmlDevice_t device;
    nvmlPciInfo_t pci;
    nvmlMemory_t memory;
    nvmlMemory_v2_t memory_v2 = {.version = nvmlMemory_v2};
    nvmlUtilization_t utilisation;
    nvmlProcessInfo_t processes[3];
    nvmlProcessInfo_v1_t processes_v1[3];
    if (nvmlInit_v2() != NVML_SUCCESS) return;
    if (nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_SUCCESS) switch (which / 4 % 8) {
        case 0: nvmlDeviceGetComputeRunningProcesses_v3(device, &number, processes); break;
        case 1: nvmlDeviceGetComputeRunningProcesses(device, &number, processes_v1); break;
        case 2: nvmlDeviceGetMemoryInfo(device, &memory); break;
        case 3: nvmlDeviceGetMemoryInfo_v2(device, &memory_v2); break;
        case 4: nvmlDeviceGetUtilizationRates(device, &utilisation); break;
        case 5:
            nvmlSystemGetDriverVersion(text, sizeof text);
            nvmlSystemGetDriverVersion(short_text, sizeof short_text);
            break;
        default:
            nvmlDeviceGetName(device, text, sizeof text);
            nvmlDeviceGetName(device, short_text, sizeof short_text);
            nvmlDeviceGetUUID(device, text, sizeof text);
            nvmlDeviceGetPciInfo_v3(device, &pci);
            nvmlDeviceGetCudaComputeCapability(device, &major, &minor);
            nvmlDeviceGetHandleByPciBusId_v2("0000:01:00.0", &device);
            nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000", &device);
        }
    nvmlShutdown();
}
