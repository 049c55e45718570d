/* NVML on the shared machine. It reads and never joins: a program that only uses NVML is no GPU
 * process.
 *
 * Functions of the header that are not defined here return NVML_ERROR_NOT_SUPPORTED (generated at
 * build time).
 */
#include "nvml_internal.h"

#include "clock.h"
#include "common/clock.h"
#include "common/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct machine machine;
struct nvml_card cards[SIM_MAX_CARDS];
unsigned card_count;
int init_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- initialisation ---- */

static nvmlReturn_t open_machine(void) {
    char directory[sizeof machine.directory];
    if (machine_library_directory((const void *)&machine, directory, sizeof directory) != 0)
        return NVML_ERROR_UNKNOWN;
    if (machine_open(&machine, directory) != 0) return NVML_ERROR_DRIVER_NOT_LOADED;
    card_count = 0;
    for (uint32_t i = 0; i < machine.header->card_count; i++)
        if (machine_card_visible(&machine, &machine.cards[i])) {
            cards[card_count] = (struct nvml_card){&machine.cards[i], card_count};
            card_count++;
        }
    return NVML_SUCCESS;
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    static bool fork_handler;
    nvmlReturn_t result = NVML_SUCCESS;
    if (flags & ~(unsigned)(NVML_INIT_FLAG_NO_GPUS | NVML_INIT_FLAG_NO_ATTACH))
        return NVML_ERROR_INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    if (!fork_handler) pthread_atfork(before_fork, after_fork, after_fork);
    fork_handler = true;
    if (init_count == 0) result = open_machine();
    if (result == NVML_SUCCESS) init_count++;
    pthread_mutex_unlock(&lock);
    return result;
}

API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (init_count == 0)
        result = NVML_ERROR_UNINITIALIZED;
    else if (--init_count == 0)
        machine_close(&machine);
    pthread_mutex_unlock(&lock);
    return result;
}

const struct nvml_card *find(nvmlDevice_t device) {
    for (unsigned i = 0; i < card_count; i++)
        if ((const void *)device == (const void *)&cards[i]) return &cards[i];
    return NULL;
}

nvmlReturn_t text_out(char *out, unsigned length, const char *text) {
    NEED(out && length);
    if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

/* ---- the system ---- */

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    NEED_INIT();
    return text_out(version, length, machine.header->driver_version);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    char text[96];
    NEED_INIT();
    snprintf(text, sizeof text, "%u.%s", machine.header->cuda_version / 1000,
             machine.header->driver_version);
    return text_out(version, length, text);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    NEED_INIT();
    NEED(version);
    *version = (int)machine.header->cuda_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    char path[32];
    char text[1024];
    NEED_INIT();
    NEED(name && length);
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    if (file_read(path, text, sizeof text) <= 0 || !*text) return NVML_ERROR_NOT_FOUND;
    snprintf(name, length, "%s", text);
    return NVML_SUCCESS;
}

/* ---- finding cards ---- */

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    NEED_INIT();
    NEED(count);
    *count = card_count;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return nvmlDeviceGetCount_v2(count); }

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    NEED_INIT();
    NEED(device);
    if (index >= card_count) return NVML_ERROR_INVALID_ARGUMENT;
    if (atomic_load(&cards[index].card->lost) & 1) return NVML_ERROR_GPU_IS_LOST;
    *device = (nvmlDevice_t)&cards[index];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    NEED_INIT();
    NEED(uuid && device);
    for (unsigned i = 0; i < card_count; i++) {
        char text[SIM_UUID_TEXT];
        machine_uuid_text(cards[i].card, text);
        if (strcasecmp(text, uuid) != 0) continue;
        *device = (nvmlDevice_t)&cards[i];
        return NVML_SUCCESS;
    }
    return mig_by_uuid(uuid, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    NEED_INIT();
    NEED(uuid && device);
    if (uuid->version != nvmlUUID_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (uuid->type == NVML_UUID_TYPE_ASCII)
        return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
    if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < card_count; i++)
        if (memcmp(cards[i].card->uuid, uuid->value.bytes, 16) == 0) {
            *device = (nvmlDevice_t)&cards[i];
            return NVML_SUCCESS;
        }
    char text[SIM_UUID_TEXT];
    struct sim_card wanted = {.instance = SIM_INSTANCE_COMPUTE};
    memcpy(wanted.uuid, uuid->value.bytes, sizeof wanted.uuid);
    machine_uuid_text(&wanted, text);
    return mig_by_uuid(text, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device) {
    unsigned domain = 0, bus, slot;
    NEED_INIT();
    NEED(text && device);
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < card_count; i++) {
        const struct sim_card *card = cards[i].card;
        if (card->pci_domain != domain || card->pci_bus != bus || card->pci_device != slot)
            continue;
        *device = (nvmlDevice_t)&cards[i];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

/* ---- properties ---- */

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    NEED_DEVICE(device);
    return text_out(name, length, card->name);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    char text[SIM_UUID_TEXT];
    NEED_DEVICE(device);
    machine_uuid_text(card, text);
    return text_out(uuid, length, text);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    char text[16];
    NEED_CARD(device);
    snprintf(text, sizeof text, "%013u",
             (unsigned)(card->uuid[0] << 16 | card->uuid[1] << 8 | card->uuid[2]));
    return text_out(serial, length, text);
}

/* Return an unsigned number about the card. */
#define NUMBER(function, value)                                         \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned int *out) { \
        NEED_CARD(device);                                              \
        NEED(out);                                                      \
        *out = (unsigned)(value);                                       \
        return NVML_SUCCESS;                                            \
    }

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    NEED_DEVICE(device);
    NEED(index);
    *index = seen->index;
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetMinorNumber, card->minor)
NUMBER(nvmlDeviceGetBoardId, card->pci_bus << 8)
NUMBER(nvmlDeviceGetNumGpuCores, card->sm_count * card->cores_per_sm)
NUMBER(nvmlDeviceGetMemoryBusWidth, card->memory_bus_bits)
NUMBER(nvmlDeviceGetMultiGpuBoard, 0)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, card->pcie_generation)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, card->pcie_generation)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, card->pcie_width)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, card->pcie_width)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, card->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementLimit, card->power_limit_mw)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, card->power_limit_mw)

API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node) {
    NEED_CARD(device);
    NEED(node);
    if (card->numa_node < 0) return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned)card->numa_node;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand) {
    NEED_CARD(device);
    NEED(brand);
    *brand = (nvmlBrandType_t)card->brand;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device,
                                           nvmlDeviceArchitecture_t *architecture) {
    NEED_CARD(device);
    NEED(architecture);
    *architecture = card->architecture;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    NEED_DEVICE(device);
    NEED(major && minor);
    *major = (int)card->cc_major;
    *minor = (int)card->cc_minor;
    return NVML_SUCCESS;
}

static void pci_of(const struct sim_card *card, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    pci->domain = card->pci_domain;
    pci->bus = card->pci_bus;
    pci->device = card->pci_device;
    pci->pciDeviceId = card->pci_device_id;
    pci->pciSubSystemId = card->pci_subsystem_id;
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", card->pci_domain,
             card->pci_bus & 0xff, card->pci_device & 0xff);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0",
             card->pci_domain & 0xffff, card->pci_bus & 0xff, card->pci_device & 0xff);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    NEED_CARD(device);
    NEED(pci);
    pci_of(card, pci);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

/* ---- modes ---- */

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current,
                                      nvmlEnableState_t *pending) {
    NEED_CARD(device);
    NEED(current && pending);
    if (card->ecc == 2) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = card->ecc ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *mode) {
    NEED_CARD(device);
    NEED(mode);
    *mode = (nvmlComputeMode_t)atomic_load(&card->compute_mode);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, nvmlComputeMode_t mode) {
    NEED_CARD(device);
    if (mode >= NVML_COMPUTEMODE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    if (mode == NVML_COMPUTEMODE_EXCLUSIVE_THREAD) return NVML_ERROR_NOT_SUPPORTED;
    atomic_store(&card->compute_mode, (uint32_t)mode);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    NEED_CARD(device);
    NEED(mode);
    *mode = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *active) {
    NEED_CARD(device);
    NEED(active);
    *active = NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *active) {
    return nvmlDeviceGetDisplayActive(device, active);
}

/* ---- memory ---- */

static void memory_of(struct sim_card *card, unsigned long long *total,
                      unsigned long long *free_bytes) {
    uint32_t limit = machine_limit_chunks(&machine, card);
    *total = limit < card->chunk_count ? (unsigned long long)limit * SIM_CHUNK_BYTES
                                       : card->memory_bytes;
    *total += card->driver_bytes;
    *free_bytes = (unsigned long long)machine_free_chunks(&machine, card) * SIM_CHUNK_BYTES;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    NEED_DEVICE(device);
    NEED(memory);
    memory_of(card, &memory->total, &memory->free);
    memory->used = memory->total - memory->free;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    NEED_DEVICE(device);
    NEED(memory);
    if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memory_of(card, &memory->total, &memory->free);
    memory->reserved = card->driver_bytes;
    memory->used = memory->total - memory->free - memory->reserved; /* version 1 includes it */
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    NEED_CARD(device);
    NEED(memory);
    memory->bar1Total = 1;
    while (memory->bar1Total < card->memory_bytes) memory->bar1Total *= 2;
    memory->bar1Used = 2 << 20;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return NVML_SUCCESS;
}

/* ---- utilisation ---- */

static unsigned percent(const struct sim_busy *busy, uint64_t from, uint64_t to) {
    uint64_t window;
    uint64_t ns = machine_busy_in(busy, from, to, &window);
    uint64_t value = window ? (ns * 100 + window / 2) / window : 0;
    return value > 100 ? 100 : (unsigned)value;
}

/* Return the period over which utilisation is averaged. */
static uint64_t window_ns(const struct sim_card *card) {
    return (uint64_t)(card->utilization_window_ms ? card->utilization_window_ms : 170) * 1000000u;
}

/* A card in MIG mode is as busy as its instances, weighted by their multiprocessors. */
static unsigned busy_percent(const struct sim_card *card) {
    uint64_t now = sim_now();
    uint64_t window = window_ns(card);
    uint64_t from = now > window ? now - window : 0;
    if (!atomic_load(&card->mig_enabled)) return percent(&card->busy, from, now);
    unsigned sum = 0;
    for (unsigned place = 0; place < SIM_MAX_INSTANCES; place++) {
        const struct sim_card *instance =
            machine_instance(&machine, card, SIM_INSTANCE_COMPUTE, place);
        if (instance) sum += percent(&instance->busy, from, now) * instance->sm_count;
    }
    return sum / card->sm_count;
}

/* NVML does not report the utilisation of a card in MIG mode, nor of a MIG device. */
#define NEED_WHOLE_CARD(device) \
    NEED_CARD(device);          \
    if (atomic_load(&card->mig_enabled)) return NVML_ERROR_NOT_SUPPORTED

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
                                               nvmlUtilization_t *utilization) {
    NEED_WHOLE_CARD(device);
    NEED(utilization);
    utilization->gpu = busy_percent(card);
    /* memory traffic is not simulated; half busy while kernels run */
    utilization->memory = utilization->gpu / 2;
    return NVML_SUCCESS;
}

static nvmlReturn_t idle_engine(nvmlDevice_t device, unsigned *utilization, unsigned *period_us) {
    NEED_WHOLE_CARD(device);
    NEED(utilization && period_us);
    *utilization = 0;
    *period_us = (unsigned)(window_ns(card) / 1000);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                                 unsigned int *period_us) {
    return idle_engine(device, utilization, period_us);
}

API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization,
                                                 unsigned int *period_us) {
    return idle_engine(device, utilization, period_us);
}

/* Microseconds since the epoch. A manual clock counts on from the machine's creation. */
static uint64_t unix_us(void) {
    if (machine.header->flags & SIM_FLAG_MANUAL_CLOCK)
        return (machine.header->created_unix_ns + sim_now()) / 1000;
    return clock_unix_ns() / 1000;
}

/* Return a process's use of a card, of an instance, or of a card's instances; NULL: none. */
static const struct sim_usage *usage_of(const struct sim_card *card, int slot) {
    const struct sim_process *process = &machine.processes[slot];
    bool on_instance = process->instance && (process->instance == card->index ||
                                             machine.cards[process->instance].board == card->index);
    const struct sim_usage *usage = on_instance                   ? &process->cards[SIM_MAX_CARDS]
                                    : card->index < SIM_MAX_CARDS ? &process->cards[card->index]
                                                                  : NULL;
    return usage && atomic_load(&usage->contexts) ? usage : NULL;
}

/* Find the slots of live processes with a context on this card. */
static unsigned processes_on(const struct sim_card *card, int slots[SIM_MAX_PROCESSES]) {
    unsigned count = 0;
    machine_reap(&machine);
    for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++) {
        if (atomic_load(&machine.header->process_state[slot]) == SIM_PROCESS_FREE) continue;
        if (!usage_of(card, slot)) continue;
        slots[count++] = slot;
    }
    return count;
}

/* From lastSeen (µs since the epoch; 0: all of the history) to now, one sample per process that was
 * busy. */
static uint64_t sample_start(uint64_t now, unsigned long long last_seen_us) {
    uint64_t wall = unix_us();
    uint64_t back = (uint64_t)SIM_HISTORY << SIM_BUCKET_SHIFT;
    if (last_seen_us && last_seen_us < wall && (wall - last_seen_us) * 1000 < back)
        back = (wall - last_seen_us) * 1000;
    uint64_t least = UINT64_C(2) << SIM_BUCKET_SHIFT;
    if (back < least) back = least;
    return back < now ? now - back : 0;
}

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                 nvmlProcessUtilizationSample_t *samples,
                                                 unsigned int *count,
                                                 unsigned long long last_seen_us) {
    int slots[SIM_MAX_PROCESSES];
    NEED_WHOLE_CARD(device);
    NEED(count);
    uint64_t now = sim_now();
    uint64_t from = sample_start(now, last_seen_us);
    unsigned found = processes_on(card, slots);
    unsigned room = samples ? *count : 0;
    unsigned filled = 0;
    *count = found;
    if (found == 0) return NVML_ERROR_NOT_FOUND;
    if (room < found) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        struct sim_process *process = &machine.processes[slots[i]];
        unsigned busy = percent(&process->cards[card->index].busy, from, now);
        samples[filled++] = (nvmlProcessUtilizationSample_t){
            .pid = process->pid, .timeStamp = unix_us(), .smUtil = busy, .memUtil = busy / 2};
    }
    *count = filled;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                       nvmlProcessesUtilizationInfo_t *info) {
    int slots[SIM_MAX_PROCESSES];
    NEED_WHOLE_CARD(device);
    NEED(info);
    if (info->version != nvmlProcessesUtilizationInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint64_t now = sim_now();
    uint64_t from = sample_start(now, info->lastSeenTimeStamp);
    unsigned found = processes_on(card, slots);
    unsigned room = info->procUtilArray ? info->processSamplesCount : 0;
    info->processSamplesCount = found;
    if (found == 0) return NVML_ERROR_NOT_FOUND;
    if (room < found) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++) {
        struct sim_process *process = &machine.processes[slots[i]];
        unsigned busy = percent(&process->cards[card->index].busy, from, now);
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            .pid = process->pid, .timeStamp = unix_us(), .smUtil = busy, .memUtil = busy / 2};
    }
    return NVML_SUCCESS;
}

/* ---- processes ---- */

static nvmlReturn_t list_processes(nvmlDevice_t device, unsigned *count, void *out, size_t stride) {
    int slots[SIM_MAX_PROCESSES];
    NEED_DEVICE(device);
    NEED(count);
    unsigned room = *count;
    unsigned found = processes_on(card, slots);
    *count = found;
    if (found > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (found && !out) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < found; i++) {
        const struct sim_process *process = &machine.processes[slots[i]];
        const struct sim_usage *usage = usage_of(card, slots[i]);
        const struct sim_card *instance =
            process->instance ? &machine.cards[process->instance] : NULL;
        nvmlProcessInfo_t entry = {
            .pid = process->pid,
            .usedGpuMemory = usage
                                 ? (unsigned long long)atomic_load(&usage->chunks) * SIM_CHUNK_BYTES
                                 : 0, /* it has just ended */
            .gpuInstanceId = instance ? machine.cards[instance->memory_record].instance_id
                                      : NVML_GPU_INSTANCE_ID_ANY,
            .computeInstanceId = instance ? instance->instance_id : NVML_COMPUTE_INSTANCE_ID_ANY,
        };
        /* version 1 is a prefix of the later ones */
        memcpy((char *)out + i * stride, &entry, stride);
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                      nvmlProcessInfo_v1_t *out) {
    return list_processes(device, count, out, sizeof *out);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_v2_t *out) {
    return list_processes(device, count, out, sizeof *out);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_t *out) {
    return list_processes(device, count, out, sizeof *out);
}

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count) {
    NEED_DEVICE(device);
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

#define NO_PROCESSES(function, type)                                                 \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned int *count, type *out) { \
        (void)out;                                                                   \
        return no_processes(device, count);                                          \
    }

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* ---- power, temperature, clocks: derived from how busy the card is ---- */

static unsigned between(unsigned low, unsigned high, unsigned share) {
    return low + (unsigned)((uint64_t)(high - low) * share / 100);
}

NUMBER(nvmlDeviceGetPowerUsage,
       between(card->power_idle_mw, card->power_limit_mw * 9 / 10, busy_percent(card)))

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device,
                                                              unsigned int *low,
                                                              unsigned int *high) {
    NEED_CARD(device);
    NEED(low && high);
    *low = card->power_min_mw;
    *high = card->power_limit_mw;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, nvmlEnableState_t *mode) {
    return nvmlDeviceGetPersistenceMode(device, mode);
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device,
                                                     unsigned long long *millijoules) {
    NEED_CARD(device);
    NEED(millijoules);
    uint64_t seconds = sim_now() / 1000000000u;
    uint64_t busy_ms = atomic_load(&card->busy.total_ns) / 1000000u;
    *millijoules = seconds * card->power_idle_mw +
                   busy_ms * (card->power_limit_mw - card->power_idle_mw) / 1000;
    return NVML_SUCCESS;
}

static unsigned temperature(const struct sim_card *card) {
    return between(card->temperature_idle_c, card->temperature_slowdown_c - 15, busy_percent(card));
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
                                          unsigned int *celsius) {
    NEED_CARD(device);
    NEED(celsius && sensor == NVML_TEMPERATURE_GPU);
    *celsius = temperature(card);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out) {
    NEED_CARD(device);
    NEED(out);
    if (out->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    NEED(out->sensorType == NVML_TEMPERATURE_GPU);
    out->temperature = (int)temperature(card);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device,
                                                   nvmlTemperatureThresholds_t which,
                                                   unsigned int *celsius) {
    NEED_CARD(device);
    NEED(celsius);
    switch ((int)which) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: *celsius = card->temperature_slowdown_c + 5; break;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: *celsius = card->temperature_slowdown_c; break;
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX: *celsius = card->temperature_slowdown_c - 5; break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *state) {
    NEED_CARD(device);
    NEED(state);
    *state = busy_percent(card) ? NVML_PSTATE_0 : NVML_PSTATE_8;
    return NVML_SUCCESS;
}

static nvmlReturn_t clock_mhz(nvmlDevice_t device, nvmlClockType_t type, unsigned *mhz) {
    NEED_CARD(device);
    NEED(mhz);
    switch ((int)type) {
    case NVML_CLOCK_GRAPHICS:
    case NVML_CLOCK_SM: *mhz = card->sm_clock_mhz; break;
    case NVML_CLOCK_MEM: *mhz = card->memory_clock_mhz; break;
    case NVML_CLOCK_VIDEO: *mhz = card->sm_clock_mhz * 9 / 10; break;
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                           unsigned int *mhz) {
    return clock_mhz(device, type, mhz);
}

API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type,
                                                unsigned int *mhz) {
    return clock_mhz(device, type, mhz);
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type,
                                        unsigned int *mhz) {
    nvmlReturn_t result = clock_mhz(device, type, mhz);
    const struct nvml_card *seen = find(device);
    if (result == NVML_SUCCESS && type != NVML_CLOCK_MEM && busy_percent(seen->card) == 0)
        *mhz /= 4;
    return result;
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t which,
                                    unsigned int *mhz) {
    return which == NVML_CLOCK_ID_CURRENT ? nvmlDeviceGetClockInfo(device, type, mhz)
                                          : clock_mhz(device, type, mhz);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device,
                                                        unsigned long long *reasons) {
    NEED_CARD(device);
    NEED(reasons);
    *reasons = busy_percent(card) ? nvmlClocksEventReasonNone : nvmlClocksEventReasonGpuIdle;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device,
                                                           unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                             unsigned int *kilobytes) {
    (void)counter;
    NEED_CARD(device);
    NEED(kilobytes);
    *kilobytes = 0;
    return NVML_SUCCESS;
}

/* ---- links and topology ---- */

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other,
                                                     nvmlGpuTopologyLevel_t *level) {
    NEED_CARD(device);
    const struct nvml_card *second = find(other);
    NEED(second && level);
    if (second == seen)
        *level = NVML_TOPOLOGY_INTERNAL;
    else
        *level =
            second->card->numa_node == card->numa_node ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *same) {
    NEED_CARD(device);
    const struct nvml_card *second = find(other);
    NEED(second && same);
    *same = second == seen;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other,
                                        nvmlGpuP2PCapsIndex_t which, nvmlGpuP2PStatus_t *status) {
    (void)which;
    NEED_CARD(device);
    const struct nvml_card *second = find(other);
    NEED(second && status);
    *status =
        card->nvlink_to[second->card->index] ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

/* Return the card at the far end of a link: links are assigned in the order of the cards. NULL: the
 * link is down. */
static const struct sim_card *link_end(const struct sim_card *card, unsigned link) {
    for (uint32_t i = 0; i < machine.header->card_count; i++) {
        if (link < card->nvlink_to[i]) return &machine.cards[i];
        link -= card->nvlink_to[i];
    }
    return NULL;
}

#define NEED_LINK(device, link)                                     \
    NEED_CARD(device);                                              \
    if (card->nvlink_version == 0) return NVML_ERROR_NOT_SUPPORTED; \
    if ((link) >= card->nvlink_count) return NVML_ERROR_INVALID_ARGUMENT

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                          nvmlEnableState_t *active) {
    NEED_LINK(device, link);
    NEED(active);
    *active = link_end(card, link) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link,
                                            unsigned int *version) {
    NEED_LINK(device, link);
    NEED(version);
    *version = card->nvlink_version;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                               nvmlNvLinkCapability_t capability,
                                               unsigned int *value) {
    NEED_LINK(device, link);
    NEED(value);
    *value =
        capability == NVML_NVLINK_CAP_P2P_SUPPORTED || capability == NVML_NVLINK_CAP_P2P_ATOMICS;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                     nvmlPciInfo_t *pci) {
    NEED_LINK(device, link);
    NEED(pci);
    const struct sim_card *end = link_end(card, link);
    if (!end) return NVML_ERROR_INVALID_STATE;
    pci_of(end, pci);
    return NVML_SUCCESS;
}
