/*
 * A small nvidia-smi: the page, -L, -q and the CSV queries that people and scripts use, for slices
 * and containers that have none of NVIDIA's. What it prints for programs (-L, --query-…) has the
 * form that those programs expect; what it prints for people says in its first line whose it is.
 */
#ifndef EGPU_SMI_H
#define EGPU_SMI_H

#include <nvml.h>
#include <stdbool.h>
#include <stddef.h>

/* Exit codes, as NVIDIA's documents them. */
enum {
    EXIT_USAGE = 2,
    EXIT_NOT_FOUND = 6,
    EXIT_NO_DRIVER = 9,
    EXIT_NO_LIBRARY = 12,
    EXIT_OTHER = 255
};

#define NVML_FUNCTIONS(F)                      \
    F(nvmlInit_v2)                             \
    F(nvmlErrorString)                         \
    F(nvmlSystemGetDriverVersion)              \
    F(nvmlSystemGetCudaDriverVersion_v2)       \
    F(nvmlSystemGetProcessName)                \
    F(nvmlDeviceGetCount_v2)                   \
    F(nvmlDeviceGetHandleByIndex_v2)           \
    F(nvmlDeviceGetHandleByUUID)               \
    F(nvmlDeviceGetHandleByPciBusId_v2)        \
    F(nvmlDeviceGetIndex)                      \
    F(nvmlDeviceGetName)                       \
    F(nvmlDeviceGetUUID)                       \
    F(nvmlDeviceGetSerial)                     \
    F(nvmlDeviceGetPciInfo_v3)                 \
    F(nvmlDeviceGetCudaComputeCapability)      \
    F(nvmlDeviceGetMemoryInfo)                 \
    F(nvmlDeviceGetMemoryInfo_v2)              \
    F(nvmlDeviceGetUtilizationRates)           \
    F(nvmlDeviceGetTemperature)                \
    F(nvmlDeviceGetPerformanceState)           \
    F(nvmlDeviceGetPowerUsage)                 \
    F(nvmlDeviceGetEnforcedPowerLimit)         \
    F(nvmlDeviceGetFanSpeed)                   \
    F(nvmlDeviceGetClockInfo)                  \
    F(nvmlDeviceGetMaxClockInfo)               \
    F(nvmlDeviceGetPersistenceMode)            \
    F(nvmlDeviceGetComputeMode)                \
    F(nvmlDeviceGetEccMode)                    \
    F(nvmlDeviceGetMigMode)                    \
    F(nvmlDeviceGetMaxMigDeviceCount)          \
    F(nvmlDeviceGetMigDeviceHandleByIndex)     \
    F(nvmlDeviceGetComputeRunningProcesses_v3) \
    F(egpuSimSetTimeslice)                     \
    F(egpuSimGetTimeslice)

/* Of the simulated NVML, which has them where NVIDIA's has nothing that is public. */
nvmlReturn_t egpuSimSetTimeslice(nvmlDevice_t device, unsigned length);
nvmlReturn_t egpuSimGetTimeslice(nvmlDevice_t device, unsigned *length);

/* NVML's functions; a null pointer where this library has none of that name. */
struct nvml {
#define MEMBER(name) __typeof__(&(name)) name;
    NVML_FUNCTIONS(MEMBER)
#undef MEMBER
};
extern struct nvml nvml;

/* Whether NVML has this function and it succeeded: what it says is right. */
#define ASK(name, ...) (nvml.name && nvml.name(__VA_ARGS__) == NVML_SUCCESS)

/* Loads NVML and starts it; ends the program with a sentence and NVIDIA's exit code where that
 * cannot be. */
void nvml_begin(void);

/* The cards to show, in NVML's order. At most this many are in any machine. */
enum { CARDS = 64, PROCESSES = 1024 };
struct cards {
    nvmlDevice_t list[CARDS];
    unsigned count;
};

/* All cards, or the one that `which` names (index, UUID or bus id). Ends the program if there is no
 * such card. */
struct cards nvml_cards(const char *which);

/* Who computes on a card; how many. */
unsigned nvml_processes(nvmlDevice_t card, nvmlProcessInfo_t list[PROCESSES]);

/* A value as text, with its unit after a space; what NVML does not say is "[N/A]". */
enum { TEXT = 128 };
typedef void field_reader(nvmlDevice_t card, const nvmlProcessInfo_t *process, char text[TEXT]);
struct field {
    const char *name, *alias;
    const char *unit; /* in the heading and after the value, NULL: none */
    field_reader *read;
};
enum field_kind { OF_CARDS, OF_PROCESSES };

/* The field of that name or alias, or NULL. */
const struct field *field_find(enum field_kind kind, const char *name);
void field_list(enum field_kind kind);

/* A field's value without its unit, by name; the name must exist. */
void field_text(enum field_kind kind, const char *name, nvmlDevice_t card,
                const nvmlProcessInfo_t *process, char text[TEXT]);

/* For people. */
void page_print(const struct cards *cards);
void page_details(const struct cards *cards);

/* The command compute-policy; its exit code. */
int policy_main(int argc, char **argv);

#endif
