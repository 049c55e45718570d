/* Requests of one process for another's restore thread. Any process of the machine may ask, also
 * one without a context. One caller at a time holds the lock of the asked process. If the caller
 * dies, its request is still carried out, and the next caller waits for that.
 */
#include "requests.h"

#include "machine_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 50000000 /* between two looks whether the asked process lives */

static void await_change(_Atomic uint32_t *word, uint32_t seen, const struct timespec *most) {
    syscall(SYS_futex, word, FUTEX_WAIT, seen, most, NULL, 0);
}

static void tell(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

struct sim_checkpoint *requests_of(struct machine *machine, int slot) {
    return &machine->processes[slot].checkpoint;
}

int requests_find(struct machine *machine, int pid) {
    for (int slot = 0; slot < SIM_MAX_PROCESSES; slot++) {
        const struct sim_process *process = &machine->processes[slot];
        if (atomic_load(&machine->header->process_state[slot]) == SIM_PROCESS_FREE) continue;
        if (process->pid == (uint32_t)pid && process->pid_namespace == machine->pid_namespace &&
            machine_process_alive(machine, slot) &&
            atomic_load(&process->checkpoint.restore_thread))
            return slot;
    }
    return -1;
}

/* Return false if the process has ended. */
static bool await_answer(struct machine *machine, int slot, uint64_t start_ticks) {
    static const struct timespec most = {.tv_nsec = LOOK_NS};
    struct sim_checkpoint *desk = requests_of(machine, slot);
    for (;;) {
        uint32_t answered = atomic_load(&desk->answered);
        if (machine->processes[slot].start_ticks != start_ticks) return false;
        if (answered == atomic_load(&desk->asked)) return true;
        if (!machine_process_alive(machine, slot)) return false;
        await_change(&desk->answered, answered, &most);
    }
}

int requests_ask(struct machine *machine, int slot, const struct sim_checkpoint *request,
                 uint32_t *result) {
    static pthread_mutex_t callers =
        PTHREAD_MUTEX_INITIALIZER; /* the other lock is the process's */
    struct sim_checkpoint *desk = requests_of(machine, slot);
    uint64_t start_ticks = machine->processes[slot].start_ticks;
    pthread_mutex_lock(&callers);
    int error = machine_ofd_lock(machine->fd, F_OFD_SETLKW, F_WRLCK, SIM_LOCK_CHECKPOINT + slot);
    if (!error) {
        bool alive = await_answer(machine, slot, start_ticks);
        if (alive) {
            desk->step = request->step;
            desk->timeout_ms = request->timeout_ms;
            desk->pair_count = request->pair_count;
            for (uint32_t i = 0; i < request->pair_count; i++) desk->pairs[i] = request->pairs[i];
            atomic_fetch_add(&desk->asked, 1);
            tell(&desk->asked);
            alive = await_answer(machine, slot, start_ticks);
        }
        *result = desk->result;
        error = alive ? 0 : ESRCH;
        machine_ofd_lock(machine->fd, F_OFD_SETLK, F_UNLCK, SIM_LOCK_CHECKPOINT + slot);
    }
    pthread_mutex_unlock(&callers);
    return error;
}

void requests_await(struct sim_checkpoint *desk) {
    for (;;) {
        uint32_t asked = atomic_load(&desk->asked);
        if (asked != atomic_load(&desk->answered)) return;
        await_change(&desk->asked, asked, NULL);
    }
}

void requests_answer(struct sim_checkpoint *desk, uint32_t result) {
    desk->result = result;
    atomic_fetch_add(&desk->answered, 1);
    tell(&desk->answered);
}
