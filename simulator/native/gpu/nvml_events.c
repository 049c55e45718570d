/* Faults of cards: error counters, and events for processes that wait. Faults come from
 * egpu_sim.machines.faults. */
#include "nvml_internal.h"

#include <stdlib.h>

#include "common/clock.h"

#define POLL_NS 2000000
#define SUPPORTED                                                      \
    (nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | \
     nvmlEventTypeXidCriticalError)

/* ---- counters ---- */

static nvmlReturn_t ecc_count(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                              unsigned long long *count) {
    NEED_CARD(device);
    NEED(count);
    if (card->ecc != 1) return NVML_ERROR_NOT_SUPPORTED;
    if (type != NVML_MEMORY_ERROR_TYPE_CORRECTED && type != NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = atomic_load(type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? &card->ecc_corrected
                                                                  : &card->ecc_uncorrected);
    return NVML_SUCCESS;
}

/* Rebooting a simulated machine resets nothing, so both kinds of counter are the same. */
API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t counter,
                                             unsigned long long *count) {
    (void)counter;
    return ecc_count(device, type, count);
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                                 nvmlEccCounterType_t counter,
                                                 nvmlMemoryLocation_t location,
                                                 unsigned long long *count) {
    (void)counter;
    nvmlReturn_t result = ecc_count(device, type, count);
    /* all errors are in its memory */
    if (result == NVML_SUCCESS && location != NVML_MEMORY_LOCATION_DRAM) *count = 0;
    return result;
}

/* ---- events ---- */

struct event_set {
    struct event_set *next;
    unsigned long long types[SIM_MAX_CARDS]; /* by index of the visible cards; 0: not registered */
    uint64_t seen[SIM_MAX_CARDS];            /* faults that were handled */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct event_set *sets;

static struct event_set *find_set(nvmlEventSet_t handle) {
    struct event_set *set = sets;
    while (set && (const void *)set != (const void *)handle) set = set->next;
    return set;
}

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out) {
    NEED_INIT();
    NEED(out);
    struct event_set *set = calloc(1, sizeof *set);
    if (!set) return NVML_ERROR_MEMORY;
    pthread_mutex_lock(&lock);
    set->next = sets;
    sets = set;
    pthread_mutex_unlock(&lock);
    *out = (nvmlEventSet_t)set;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t handle) {
    nvmlReturn_t result = NVML_ERROR_INVALID_ARGUMENT;
    NEED_INIT();
    pthread_mutex_lock(&lock);
    for (struct event_set **at = &sets; *at; at = &(*at)->next)
        if ((const void *)*at == (const void *)handle) {
            struct event_set *set = *at;
            *at = set->next;
            free(set);
            result = NVML_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return result;
}

API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    NEED_CARD(device);
    NEED(types);
    *types = card->ecc == 1 ? SUPPORTED : nvmlEventTypeXidCriticalError;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                          nvmlEventSet_t handle) {
    unsigned long long supported;
    nvmlReturn_t result = nvmlDeviceGetSupportedEventTypes(device, &supported);
    if (result != NVML_SUCCESS) return result;
    if (types & ~supported) return NVML_ERROR_NOT_SUPPORTED;
    const struct nvml_card *seen = find(device);
    pthread_mutex_lock(&lock);
    struct event_set *set = find_set(handle);
    if (set) {
        if (!set->types[seen->index])
            set->seen[seen->index] = atomic_load(&seen->card->fault_count);
        set->types[seen->index] |= types;
    }
    pthread_mutex_unlock(&lock);
    return set ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

static unsigned long long type_of(const struct sim_fault *fault) {
    switch (fault->kind) {
    case SIM_FAULT_XID: return nvmlEventTypeXidCriticalError;
    case SIM_FAULT_ECC_CORRECTED: return nvmlEventTypeSingleBitEccError;
    case SIM_FAULT_ECC_UNCORRECTED: return nvmlEventTypeDoubleBitEccError;
    default: return 0;
    }
}

/* Return the next event that the set is registered for. Events overwritten before a read are
 * lost. */
static bool take_event(struct event_set *set, nvmlEventData_t *data) {
    for (unsigned i = 0; i < card_count; i++) {
        if (!set->types[i]) continue;
        struct sim_card *card = cards[i].card;
        uint64_t count = atomic_load(&card->fault_count);
        if (count - set->seen[i] > SIM_MAX_FAULTS) set->seen[i] = count - SIM_MAX_FAULTS;
        while (set->seen[i] < count) {
            const struct sim_fault *fault = &card->faults[set->seen[i]++ % SIM_MAX_FAULTS];
            unsigned long long type = type_of(fault);
            if (!(type & set->types[i])) continue;
            *data = (nvmlEventData_t){.device = (nvmlDevice_t)&cards[i],
                                      .eventType = type,
                                      .eventData =
                                          type == nvmlEventTypeXidCriticalError ? fault->data : 0,
                                      .gpuInstanceId = UINT32_MAX,
                                      .computeInstanceId = UINT32_MAX};
            return true;
        }
    }
    return false;
}

/* Real time, also with a manual clock: a process that waits here observes the machine from
 * outside. */
API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t *data,
                                     unsigned int timeout_ms) {
    NEED_INIT();
    NEED(data);
    uint64_t deadline = clock_now_ns() + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        pthread_mutex_lock(&lock);
        struct event_set *set = init_count ? find_set(handle) : NULL;
        bool found = set && take_event(set, data);
        pthread_mutex_unlock(&lock);
        if (!set) return NVML_ERROR_INVALID_ARGUMENT;
        if (found) return NVML_SUCCESS;
        if (clock_now_ns() >= deadline) return NVML_ERROR_TIMEOUT;
        struct timespec nap = {.tv_nsec = POLL_NS};
        nanosleep(&nap, NULL);
    }
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data,
                                  unsigned int timeout_ms) {
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
