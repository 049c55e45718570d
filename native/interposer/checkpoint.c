/* Checkpoints of whole processes by the driver (cuCheckpointProcess…), from inside a slice.
 *
 * A process may checkpoint processes of its own slice only. The kernel says which these are: they
 * have mapped the same usage file. Memory that a checkpoint took off the card is not charged, and a
 * restore is charged before the driver is asked. The account could not follow moves to other cards,
 * nor custom storage, which maps the memory in the caller: both are refused. A parkable slice has
 * the other mechanism (parking/parking.h), which keeps its memory charged.
 */
#define _GNU_SOURCE
#include "checkpoint.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "parking/parking.h"

#define TURN_PATIENCE_NS 60000000000u /* a checkpoint of a whole card takes some seconds */
#define TURN_LOOK_NS 1000000u

struct mapping {
    unsigned long start, end, inode;
    unsigned major, minor;
};

/* Look through a process's mappings for one that `wanted` describes: an address (`start`), or a
 * file. */
static bool find_mapping(const char *process, struct mapping *wanted) {
    char path[64], *line = NULL;
    size_t room = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%s/maps", process);
    FILE *maps = fopen(path, "re");
    while (maps != NULL && !found && getline(&line, &room, maps) > 0) {
        struct mapping seen;
        if (sscanf(line, "%lx-%lx %*s %*x %x:%x %lu", &seen.start, &seen.end, &seen.major,
                   &seen.minor, &seen.inode) != 5)
            continue;
        found = wanted->inode == 0 ? wanted->start >= seen.start && wanted->start < seen.end
                                   : wanted->inode == seen.inode && wanted->major == seen.major &&
                                         wanted->minor == seen.minor;
        if (found) *wanted = seen;
    }
    free(line);
    if (maps != NULL) fclose(maps);
    return found;
}

static CUresult admit(int pid) {
    char process[16];
    struct mapping usage = {.start = 0};
    if (!slice_open()) return REFUSED;
    if (REAL(cuCheckpointProcessGetState) == NULL) return CUDA_ERROR_NOT_SUPPORTED; /* older */
    usage.start = (unsigned long)(uintptr_t)slice_usage();
    if (pid == getpid()) return CUDA_SUCCESS;
    snprintf(process, sizeof process, "%d", pid);
    return find_mapping("self", &usage) && usage.inode != 0 && find_mapping(process, &usage)
               ? CUDA_SUCCESS
               : REFUSED;
}

static CUresult admit_change(int pid) {
    CUresult result = admit(pid);
    if (result != CUDA_SUCCESS) return result;
    return gate_is_on ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* One process of the slice at a time: the account and the driver have to agree. Returns the file
 * to end the turn with, or -1. */
static int turn_take(void) {
    char path[PATH_MAX];
    const char *policy = slice_path("policy", path, sizeof path);
    int file = policy == NULL ? -1 : open(policy, O_RDONLY | O_CLOEXEC);
    uint64_t deadline = now_ns() + TURN_PATIENCE_NS;
    while (file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0) {
        if (now_ns() >= deadline) {
            close(file);
            return -1;
        }
        sleep_ns(TURN_LOOK_NS);
    }
    return file;
}

static void turn_end(int file) {
    flock(file, LOCK_UN); /* a child that was forked meanwhile has the file, too */
    close(file);
}

static bool changes_card(const CUcheckpointRestoreArgs *args) {
    for (unsigned i = 0; args->gpuPairs != NULL && i < args->gpuPairsCount; i++)
        if (memcmp(&args->gpuPairs[i].oldUuid, &args->gpuPairs[i].newUuid, sizeof(CUuuid)) != 0)
            return true;
    return false;
}

EXPORT CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
    CUresult result = admit(pid);
    return result == CUDA_SUCCESS ? REAL(cuCheckpointProcessGetState)(pid, state) : result;
}

EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
    CUresult result = admit(pid);
    return result == CUDA_SUCCESS ? REAL(cuCheckpointProcessGetRestoreThreadId)(pid, tid) : result;
}

EXPORT CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    CUresult result = admit_change(pid);
    return result == CUDA_SUCCESS ? REAL(cuCheckpointProcessLock)(pid, args) : result;
}

EXPORT CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
    CUresult result = admit_change(pid);
    return result == CUDA_SUCCESS ? REAL(cuCheckpointProcessUnlock)(pid, args) : result;
}

EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
    CUresult result = admit_change(pid);
    if (result != CUDA_SUCCESS) return result;
    if (args != NULL && args->customStorageInfo_out != NULL) return CUDA_ERROR_NOT_SUPPORTED;
    int turn = turn_take();
    if (turn < 0) return CUDA_ERROR_NOT_READY;
    result = REAL(cuCheckpointProcessCheckpoint)(pid, args);
    if (result == CUDA_SUCCESS) account_checkpointed(pid);
    turn_end(turn);
    return result;
}

EXPORT CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    CUresult result = admit_change(pid);
    if (result != CUDA_SUCCESS) return result;
    if (args != NULL && (args->customStorageInfo_out != NULL || changes_card(args)))
        return CUDA_ERROR_NOT_SUPPORTED;
    int turn = turn_take();
    if (turn < 0) return CUDA_ERROR_NOT_READY;
    CUprocessState state = CU_PROCESS_STATE_FAILED;
    result = CUDA_ERROR_OUT_OF_MEMORY;
    if (account_restored(pid)) {
        result = REAL(cuCheckpointProcessRestore)(pid, args);
        if (result != CUDA_SUCCESS) REAL(cuCheckpointProcessGetState)(pid, &state);
        if (state == CU_PROCESS_STATE_CHECKPOINTED) account_checkpointed(pid); /* again */
    }
    turn_end(turn);
    return result;
}
