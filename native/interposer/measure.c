/* What the card holds beyond what the slice has counted: how much a load takes is the driver's
 * secret, and the difference of two such readings tells it.
 *
 * Count and card have to be read at one moment. An operation that is half-way has changed the one
 * and not yet the other: it has reserved what is not in the table yet, or taken out of the table
 * what is not released yet. So a reading is good when what is held is what is in the table, and
 * nothing has changed meanwhile. Nobody of this process begins anything for that moment.
 */
#include "interposer.h"

#include <unistd.h>

enum {
    PATIENCE_NS =
        100000000, /* for operations that are half-way, before a reading that may be off */
    LONG_PATIENCE_NS = 1000000000,
    LOOK_NS = 20000,
    MAX_PROCESSES = 128, /* of a card's list: with more, none is read */
};

static const int64_t UNKNOWN = INT64_MIN;

egpu_lock loading;

static bool at_rest(int device, uint64_t in_hand, uint64_t *sequence) {
    return pools_at_rest(device) && graphs_at_rest(device) &&
           account_held(sequence) == table_bytes() + in_hand;
}

static int64_t used_by_driver(int device) {
    (void)device; /* the current context's */
    size_t left = 0, total = 0;
    return REAL(cuMemGetInfo_v2) != NULL && REAL(cuMemGetInfo_v2)(&left, &total) == CUDA_SUCCESS
               ? (int64_t)(total - left)
               : UNKNOWN;
}

static int64_t used_by_nvml(int device) {
    nvmlDevice_t card;
    nvmlMemory_t memory;
    return REAL(nvmlDeviceGetHandleByUUID)(slice_device_uuid(device), &card) == NVML_SUCCESS &&
                   REAL(nvmlDeviceGetMemoryInfo)(card, &memory) == NVML_SUCCESS
               ? (int64_t)memory.used
               : UNKNOWN;
}

/* What is used beyond what is counted, read while nothing is half-way. */
static int64_t uncounted(int64_t (*used)(int device), int device, uint64_t in_hand) {
    uint64_t deadline = now_ns() + PATIENCE_NS;
    slice_pause();
    for (;;) {
        uint64_t before = 0, after = 1;
        bool rest = at_rest(device, in_hand, &before);
        int64_t bytes = used(device);
        if (bytes != UNKNOWN) bytes -= (int64_t)account_counted(device);
        rest = rest && at_rest(device, in_hand, &after) && before == after;
        if (rest || now_ns() >= deadline) {
            slice_resume();
            return bytes;
        }
        sleep_ns(LOOK_NS);
    }
}

int64_t measure_uncounted(int device, uint64_t in_hand) {
    return uncounted(used_by_driver, device, in_hand);
}

int64_t measure_card(int device, uint64_t in_hand) {
    return uncounted(used_by_nvml, device, in_hand);
}

int64_t measure_own(int device) {
    nvmlDevice_t card;
    nvmlProcessInfo_t list[MAX_PROCESSES];
    unsigned count = MAX_PROCESSES;
    if (REAL(nvmlDeviceGetComputeRunningProcesses_v3) == NULL ||
        REAL(nvmlDeviceGetHandleByUUID)(slice_device_uuid(device), &card) != NVML_SUCCESS ||
        REAL(nvmlDeviceGetComputeRunningProcesses_v3)(card, &count, list) != NVML_SUCCESS)
        return UNKNOWN;
    for (unsigned i = 0; i < count; i++)
        if (list[i].pid == (unsigned)getpid())
            return list[i].usedGpuMemory > INT64_MAX ? UNKNOWN : (int64_t)list[i].usedGpuMemory;
    return 0;
}

uint64_t measure_grown(int64_t before, int64_t after) {
    bool known = before != UNKNOWN && after != UNKNOWN;
    return known && after > before ? charge_of((uint64_t)(after - before)) : 0;
}

bool measure_open(void) {
    return nvml_load() && REAL(nvmlInit_v2) != NULL && REAL(nvmlShutdown) != NULL &&
           REAL(nvmlDeviceGetHandleByUUID) != NULL && REAL(nvmlDeviceGetMemoryInfo) != NULL &&
           REAL(nvmlInit_v2)() == NVML_SUCCESS;
}

void measure_close(void) { REAL(nvmlShutdown)(); }

void measure_wait_for_rest(void) {
    uint64_t deadline = now_ns() + LONG_PATIENCE_NS, sequence;
    for (unsigned device = 0; device < slice_device_count(); device++)
        while (!at_rest((int)device, 0, &sequence) && now_ns() < deadline) sleep_ns(LOOK_NS);
}
