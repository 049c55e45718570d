/* The fields of a card and of a process, each with its name from nvidia-smi's documentation. */
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MIB = 1024 * 1024 };

static void unknown(char text[TEXT]) { snprintf(text, TEXT, "[N/A]"); }

/* Define a reader: `condition` queries NVML; the rest is passed to printf if it succeeded. */
#define READER(name, declarations, condition, ...)                               \
    static void read_##name(nvmlDevice_t card, const nvmlProcessInfo_t *process, \
                            char text[TEXT]) {                                   \
        (void)card, (void)process;                                               \
        declarations;                                                            \
        if (condition)                                                           \
            snprintf(text, TEXT, __VA_ARGS__);                                   \
        else                                                                     \
            unknown(text);                                                       \
    }

READER(driver, char version[80], ASK(nvmlSystemGetDriverVersion, version, sizeof version), "%s",
       version)
READER(count, unsigned count, ASK(nvmlDeviceGetCount_v2, &count), "%u", count)
READER(index, unsigned index, ASK(nvmlDeviceGetIndex, card, &index), "%u", index)
READER(name, char name[96], ASK(nvmlDeviceGetName, card, name, sizeof name), "%s", name)
READER(uuid, char uuid[96], ASK(nvmlDeviceGetUUID, card, uuid, sizeof uuid), "%s", uuid)
READER(serial, char serial[32], ASK(nvmlDeviceGetSerial, card, serial, sizeof serial), "%s", serial)
READER(bus, nvmlPciInfo_t pci, ASK(nvmlDeviceGetPciInfo_v3, card, &pci), "%s", pci.busId)
READER(capability, int major; int minor,
                              ASK(nvmlDeviceGetCudaComputeCapability, card, &major, &minor),
                              "%d.%d", major, minor)
READER(total, nvmlMemory_t memory, ASK(nvmlDeviceGetMemoryInfo, card, &memory), "%llu",
       memory.total / MIB)
READER(used, nvmlMemory_t memory, ASK(nvmlDeviceGetMemoryInfo, card, &memory), "%llu",
       memory.used / MIB)
READER(free, nvmlMemory_t memory, ASK(nvmlDeviceGetMemoryInfo, card, &memory), "%llu",
       memory.free / MIB)
READER(reserved, nvmlMemory_v2_t memory = {.version = nvmlMemory_v2},
       ASK(nvmlDeviceGetMemoryInfo_v2, card, &memory), "%llu", memory.reserved / MIB)
READER(busy, nvmlUtilization_t rates, ASK(nvmlDeviceGetUtilizationRates, card, &rates), "%u",
       rates.gpu)
READER(memory_busy, nvmlUtilization_t rates, ASK(nvmlDeviceGetUtilizationRates, card, &rates), "%u",
       rates.memory)
READER(temperature, unsigned degrees,
       ASK(nvmlDeviceGetTemperature, card, NVML_TEMPERATURE_GPU, &degrees), "%u", degrees)
READER(state, nvmlPstates_t state, ASK(nvmlDeviceGetPerformanceState, card, &state), "P%d",
       (int)state)
READER(power, unsigned milliwatts, ASK(nvmlDeviceGetPowerUsage, card, &milliwatts), "%.2f",
       milliwatts / 1e3)
READER(power_limit, unsigned milliwatts, ASK(nvmlDeviceGetEnforcedPowerLimit, card, &milliwatts),
       "%.2f", milliwatts / 1e3)
READER(fan, unsigned percent, ASK(nvmlDeviceGetFanSpeed, card, &percent), "%u", percent)
READER(clock_sm, unsigned mhz, ASK(nvmlDeviceGetClockInfo, card, NVML_CLOCK_SM, &mhz), "%u", mhz)
READER(clock_graphics, unsigned mhz, ASK(nvmlDeviceGetClockInfo, card, NVML_CLOCK_GRAPHICS, &mhz),
       "%u", mhz)
READER(clock_memory, unsigned mhz, ASK(nvmlDeviceGetClockInfo, card, NVML_CLOCK_MEM, &mhz), "%u",
       mhz)
READER(clock_max_sm, unsigned mhz, ASK(nvmlDeviceGetMaxClockInfo, card, NVML_CLOCK_SM, &mhz), "%u",
       mhz)
READER(clock_max_memory, unsigned mhz, ASK(nvmlDeviceGetMaxClockInfo, card, NVML_CLOCK_MEM, &mhz),
       "%u", mhz)
READER(persistence, nvmlEnableState_t mode, ASK(nvmlDeviceGetPersistenceMode, card, &mode), "%s",
       mode ? "Enabled" : "Disabled")
READER(ecc, nvmlEnableState_t now; nvmlEnableState_t next,
                                   ASK(nvmlDeviceGetEccMode, card, &now, &next), "%s",
                                   now ? "Enabled" : "Disabled")
READER(mig, unsigned now; unsigned next, ASK(nvmlDeviceGetMigMode, card, &now, &next), "%s",
                          now ? "Enabled" : "Disabled")
READER(pid, , process, "%u", process->pid)
READER(process_name, char name[TEXT],
       process &&ASK(nvmlSystemGetProcessName, process->pid, name, sizeof name), "%s", name)
READER(process_memory, ,
       process && process->usedGpuMemory != (unsigned long long)NVML_VALUE_NOT_AVAILABLE, "%llu",
       process->usedGpuMemory / MIB)

static void read_compute_mode(nvmlDevice_t card, const nvmlProcessInfo_t *process,
                              char text[TEXT]) {
    static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited",
                                        "Exclusive_Process"};
    nvmlComputeMode_t mode;
    (void)process;
    if (ASK(nvmlDeviceGetComputeMode, card, &mode) && (unsigned)mode < sizeof names / sizeof *names)
        snprintf(text, TEXT, "%s", names[mode]);
    else
        unknown(text);
}

static void read_timestamp(nvmlDevice_t card, const nvmlProcessInfo_t *process, char text[TEXT]) {
    struct timespec now;
    struct tm local;
    (void)card, (void)process;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t length = strftime(text, TEXT, "%Y/%m/%d %H:%M:%S", &local);
    snprintf(text + length, TEXT - length, ".%03ld", now.tv_nsec / 1000000);
}

static const struct field of_cards[] = {
    {"timestamp", NULL, NULL, read_timestamp},
    {"driver_version", NULL, NULL, read_driver},
    {"count", NULL, NULL, read_count},
    {"index", NULL, NULL, read_index},
    {"name", "gpu_name", NULL, read_name},
    {"uuid", "gpu_uuid", NULL, read_uuid},
    {"serial", "gpu_serial", NULL, read_serial},
    {"pci.bus_id", "gpu_bus_id", NULL, read_bus},
    {"compute_cap", NULL, NULL, read_capability},
    {"memory.total", NULL, "MiB", read_total},
    {"memory.reserved", NULL, "MiB", read_reserved},
    {"memory.used", NULL, "MiB", read_used},
    {"memory.free", NULL, "MiB", read_free},
    {"utilization.gpu", NULL, "%", read_busy},
    {"utilization.memory", NULL, "%", read_memory_busy},
    {"temperature.gpu", NULL, NULL, read_temperature},
    {"pstate", NULL, NULL, read_state},
    {"power.draw", NULL, "W", read_power},
    {"power.limit", NULL, "W", read_power_limit},
    {"fan.speed", NULL, "%", read_fan},
    {"clocks.current.graphics", "clocks.gr", "MHz", read_clock_graphics},
    {"clocks.current.sm", "clocks.sm", "MHz", read_clock_sm},
    {"clocks.current.memory", "clocks.mem", "MHz", read_clock_memory},
    {"clocks.max.sm", NULL, "MHz", read_clock_max_sm},
    {"clocks.max.memory", "clocks.max.mem", "MHz", read_clock_max_memory},
    {"persistence_mode", NULL, NULL, read_persistence},
    {"compute_mode", NULL, NULL, read_compute_mode},
    {"ecc.mode.current", NULL, NULL, read_ecc},
    {"mig.mode.current", NULL, NULL, read_mig},
    {NULL, NULL, NULL, NULL},
};

static const struct field of_processes[] = {
    {"timestamp", NULL, NULL, read_timestamp},
    {"gpu_name", NULL, NULL, read_name},
    {"gpu_bus_id", NULL, NULL, read_bus},
    {"gpu_serial", NULL, NULL, read_serial},
    {"gpu_uuid", NULL, NULL, read_uuid},
    {"pid", NULL, NULL, read_pid},
    {"process_name", "name", NULL, read_process_name},
    {"used_gpu_memory", "used_memory", "MiB", read_process_memory},
    {NULL, NULL, NULL, NULL},
};

static const struct field *table(enum field_kind kind) {
    return kind == OF_CARDS ? of_cards : of_processes;
}

const struct field *field_find(enum field_kind kind, const char *name) {
    for (const struct field *field = table(kind); field->name; field++)
        if (strcmp(field->name, name) == 0 || (field->alias && strcmp(field->alias, name) == 0))
            return field;
    return NULL;
}

void field_list(enum field_kind kind) {
    for (const struct field *field = table(kind); field->name; field++)
        printf("%s%s%s\n", field->name, field->alias ? " or " : "",
               field->alias ? field->alias : "");
}

void field_text(enum field_kind kind, const char *name, nvmlDevice_t card,
                const nvmlProcessInfo_t *process, char text[TEXT]) {
    field_find(kind, name)->read(card, process, text);
}
