/* A small nvidia-smi: the page, -L, -q and the CSV queries that people and scripts use, for slices
 * and containers without NVIDIA's. Output for programs (-L, --query-…) has the form that they
 * expect; the first line of pages for people names this program.
 */
#ifndef EGPU_SMI_H
#define EGPU_SMI_H

#include <nvml.h>
#include <stdbool.h>
#include <stddef.h>

/* Exit codes from NVIDIA's documentation. */
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

/* In the simulated NVML only: NVIDIA's has no public function. */
nvmlReturn_t egpuSimSetTimeslice(nvmlDevice_t device, unsigned length);
nvmlReturn_t egpuSimGetTimeslice(nvmlDevice_t device, unsigned *length);

/* NVML's functions; a null pointer if the library has none of that name. */
struct nvml {
#define MEMBER(name) __typeof__(&(name)) name;
    NVML_FUNCTIONS(MEMBER)
#undef MEMBER
};
extern struct nvml nvml;

/* Return whether NVML has this function and it succeeded: only then are its results valid. */
#define ASK(name, ...) (nvml.name && nvml.name(__VA_ARGS__) == NVML_SUCCESS)

/* Load and initialise NVML. On failure end the program with a message and NVIDIA's exit code. */
void nvml_begin(void);

/* The cards to show, in NVML's order. At most this many are in any machine. */
enum { CARDS = 64, PROCESSES = 1024 };
struct cards {
    nvmlDevice_t list[CARDS];
    unsigned count;
};

/* Return all cards, or the one named by `which` (index, UUID or bus id). Without such a card end
 * the program. */
struct cards nvml_cards(const char *which);

/* List the processes on a card; return how many. */
unsigned nvml_processes(nvmlDevice_t card, nvmlProcessInfo_t list[PROCESSES]);

/* A value as text, with its unit after a space; "[N/A]" if NVML has none. */
enum { TEXT = 128 };
typedef void field_reader(nvmlDevice_t card, const nvmlProcessInfo_t *process, char text[TEXT]);
struct field {
    const char *name, *alias;
    const char *unit; /* in the heading and after the value; NULL: none */
    field_reader *read;
};
enum field_kind { OF_CARDS, OF_PROCESSES };

/* Return the field of that name or alias, or NULL. */
const struct field *field_find(enum field_kind kind, const char *name);
void field_list(enum field_kind kind);

/* Read a field's value without its unit, by name; the name must exist. */
void field_text(enum field_kind kind, const char *name, nvmlDevice_t card,
                const nvmlProcessInfo_t *process, char text[TEXT]);

/* For people. */
void page_print(const struct cards *cards);
void page_details(const struct cards *cards);

/* Run the command compute-policy; return its exit code. */
int policy_main(int argc, char **argv);

#endif
