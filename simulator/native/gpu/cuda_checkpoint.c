/* cuCheckpointProcess*: the caller's side. Another process, or this one, is asked; its restore
 * thread does the work (checkpoint.c). These calls do not pass the gate: a process may unlock
 * itself. The caller needs no cuInit, because simulated cards have persistence mode. Checkpoints to
 * custom storage are not simulated. */
#include "cuda_api.h"
#include "requests.h"

#include <string.h>

/* The machine, which a caller without cuInit opens for one call. */
static struct machine *open_machine(struct machine *own) {
    char directory[sizeof own->directory];
    if (engine_ready()) return &engine.machine;
    if (machine_library_directory((const void *)&engine, directory, sizeof directory) != 0)
        return NULL;
    return machine_open(own, directory) == 0 ? own : NULL;
}

static void close_machine(struct machine *machine) {
    if (machine != &engine.machine) machine_close(machine);
}

static bool all_zero(const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (((const char *)bytes)[i]) return false;
    return true;
}

/* Return what the process says of itself in *said. */
static CUresult look(int pid, struct sim_checkpoint *said) {
    struct machine own, *machine = open_machine(&own);
    if (!machine) return CUDA_ERROR_NOT_INITIALIZED;
    int slot = requests_find(machine, pid);
    if (slot >= 0) {
        const struct sim_checkpoint *desk = requests_of(machine, slot);
        atomic_store(&said->restore_thread, atomic_load(&desk->restore_thread));
        atomic_store(&said->state, atomic_load(&desk->state));
    }
    close_machine(machine);
    return slot < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult ask(int pid, const struct sim_checkpoint *request) {
    uint32_t result;
    struct machine own, *machine = open_machine(&own);
    if (!machine) return CUDA_ERROR_NOT_INITIALIZED;
    int slot = requests_find(machine, pid);
    int error = slot < 0 ? 0 : requests_ask(machine, slot, request, &result);
    close_machine(machine);
    if (slot < 0) return CUDA_ERROR_INVALID_VALUE;
    return error ? CUDA_ERROR_OPERATING_SYSTEM : (CUresult)result;
}

static CUresult custom_storage(void) {
    return engine_unsupported("a checkpoint to custom storage", NULL);
}

API CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
    NEED(tid);
    struct sim_checkpoint said;
    CUresult result = look(pid, &said);
    if (result == CUDA_SUCCESS) *tid = (int)atomic_load(&said.restore_thread);
    return result;
}

API CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
    NEED(state);
    struct sim_checkpoint said;
    CUresult result = look(pid, &said);
    if (result == CUDA_SUCCESS) *state = (CUprocessState)atomic_load(&said.state);
    return result;
}

API CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    struct sim_checkpoint request = {.step = SIM_STEP_LOCK};
    if (args) {
        NEED(!args->reserved0 && all_zero(args->reserved1, sizeof args->reserved1));
        request.timeout_ms = args->timeoutMs;
    }
    return ask(pid, &request);
}

API CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
    const struct sim_checkpoint request = {.step = SIM_STEP_SAVE};
    if (args) {
        NEED(all_zero(args->reserved, sizeof args->reserved));
        if (args->customStorageInfo_out) return custom_storage();
    }
    return ask(pid, &request);
}

API CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    struct sim_checkpoint request = {.step = SIM_STEP_RESTORE};
    if (args) {
        NEED(all_zero(args->reserved, sizeof args->reserved));
        if (args->customStorageInfo_out) return custom_storage();
        NEED(args->gpuPairsCount <= SIM_MAX_CARDS && (args->gpuPairs || !args->gpuPairsCount));
        request.pair_count = args->gpuPairsCount;
        for (uint32_t i = 0; i < request.pair_count; i++) {
            memcpy(request.pairs[i].from, args->gpuPairs[i].oldUuid.bytes, 16);
            memcpy(request.pairs[i].to, args->gpuPairs[i].newUuid.bytes, 16);
        }
    }
    return ask(pid, &request);
}

API CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
    const struct sim_checkpoint request = {.step = SIM_STEP_UNLOCK};
    NEED(!args || all_zero(args, sizeof *args));
    return ask(pid, &request);
}
