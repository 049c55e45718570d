/* Lock, checkpoint, restore and unlock of this process (cuCheckpointProcess…). As in NVIDIA's
 * driver, a thread of the process itself does the work, whoever asks.
 *
 * It is as strict and as late as the documentation says: a checkpoint that meets memory that it
 * does not support leaves the process failed, and a restore without room leaves it checkpointed for
 * good (NVIDIA/cuda-checkpoint#44).
 */
#include "engine.h"
#include "gate.h"
#include "requests.h"
#include "saved.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"

#define LOOK_NS 200000 /* between two looks whether all work has ended */

static struct sim_card *target[SIM_MAX_CARDS]; /* of a restore, by ordinal */
static bool stuck;                             /* a restore ran out of memory */

/* ---- lock ---- */

static bool context_busy(struct context *context) {
    bool busy = false;
    pthread_mutex_lock(&context->lock);
    for (struct stream *stream = context->streams; stream && !busy; stream = stream->next)
        busy = stream_pending(stream, NULL);
    pthread_mutex_unlock(&context->lock);
    return busy;
}

/* Call for each live context, until one answers true. */
static bool any_context(bool (*answers)(struct context *)) {
    bool any = false;
    void **contexts = handle_all(HANDLE_CONTEXT);
    for (size_t i = 0; contexts && contexts[i] && !any; i++) {
        struct context *context = contexts[i];
        any = atomic_load(&context->alive) && answers(context);
    }
    free(contexts);
    return any;
}

/* New calls wait; calls and work that began before end first. */
static CUresult lock(uint32_t timeout_ms) {
    const struct timespec look = {.tv_nsec = LOOK_NS};
    uint64_t end = clock_now_ns() + (uint64_t)timeout_ms * 1000000;
    gate_close();
    while (!gate_quiet() || any_context(context_busy)) {
        if (timeout_ms && clock_now_ns() >= end) {
            gate_open();
            return CUDA_ERROR_NOT_READY;
        }
        nanosleep(&look, NULL);
    }
    return CUDA_SUCCESS;
}

/* ---- checkpoint ---- */

static bool context_leaves(struct context *context) {
    machine_remove_context(&engine.machine, context->device->card);
    return false;
}

/* The copies take the time of the link. */
static void pass_link(void) {
    double rate = (double)engine.devices[0].card->pcie_bandwidth;
    if (rate > 0) sim_sleep_until(sim_now() + (uint64_t)((double)saved_bytes() / rate * 1e9));
}

static bool supported(void) {
    for (int i = 0; i < engine.device_count; i++)
        if (atomic_load(&engine.devices[i].card->instance)) return false;
    return !engine.machine.server && !memory_host_any(EXTENT_MANAGED) && !physical_any_shared();
}

static CUresult save(void) {
    if (!supported()) return CUDA_ERROR_NOT_SUPPORTED;
    pass_link();
    if (saved_leave() != 0) return CUDA_ERROR_OPERATING_SYSTEM;
    memory_unmap_all();
    any_context(context_leaves);
    return CUDA_SUCCESS;
}

/* ---- restore ---- */

static struct sim_card *card_of(const uint8_t uuid[16]) {
    for (uint32_t i = 0; i < engine.machine.header->card_count; i++)
        if (memcmp(engine.machine.cards[i].uuid, uuid, 16) == 0) return &engine.machine.cards[i];
    return NULL;
}

static bool same_chip(const struct sim_card *one, const struct sim_card *other) {
    return strcmp(one->name, other->name) == 0 && one->cc_major == other->cc_major &&
           one->cc_minor == other->cc_minor;
}

/* Find the card of each device of this process. Pairs must name every one that it saw. */
static CUresult choose_targets(const struct sim_checkpoint *desk) {
    for (int i = 0; i < engine.device_count; i++) {
        struct sim_card *old = engine.devices[i].card, *chosen = desk->pair_count ? NULL : old;
        for (uint32_t pair = 0; pair < desk->pair_count && !chosen; pair++)
            if (memcmp(desk->pairs[pair].from, old->uuid, 16) == 0)
                chosen = card_of(desk->pairs[pair].to);
        if (!chosen || !same_chip(old, chosen)) return CUDA_ERROR_INVALID_VALUE;
        if (!machine_card_visible(&engine.machine, chosen)) return CUDA_ERROR_INVALID_VALUE;
        for (int before = 0; before < i; before++)
            if (target[before] == chosen) return CUDA_ERROR_INVALID_VALUE;
        target[i] = chosen;
    }
    return CUDA_SUCCESS;
}

static struct sim_card *moved(struct sim_card *card) {
    for (int i = 0; i < engine.device_count; i++)
        if (engine.devices[i].card == card) return target[i];
    return card;
}

static bool context_moves(struct context *context) {
    const struct sim_card *card = context->device->card;
    if (context->memory.card == card) return false;
    context->memory.card = context->device->card;
    context->lost_seen = atomic_load(&card->lost);
    context->ecc_seen = atomic_load(&card->ecc_uncorrected);
    return false;
}

static void move_devices(void) {
    for (int i = 0; i < engine.device_count; i++) {
        struct device *device = &engine.devices[i];
        device->card = device->mapped.card = target[i];
        pool_moved(device);
    }
    any_context(context_moves);
}

static bool context_fails_to_return(struct context *context) {
    return machine_add_context(&engine.machine, context->device->card) != 0;
}

static CUresult restore(const struct sim_checkpoint *desk) {
    if (stuck) return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result = choose_targets(desk);
    if (result != CUDA_SUCCESS) return result;
    int error = saved_return(moved);
    if (error) {
        stuck = true;
        return error == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
    }
    move_devices();
    error = memory_map_all();
    if (!error) error = saved_fill();
    if (error || any_context(context_fails_to_return)) return CUDA_ERROR_UNKNOWN;
    pass_link();
    return CUDA_SUCCESS;
}

/* ---- states ---- */

/* Return whether this error leaves the process in the state that it had. */
static bool leaves_state(CUresult error) {
    return error == CUDA_ERROR_ILLEGAL_STATE || error == CUDA_ERROR_NOT_READY ||
           error == CUDA_ERROR_INVALID_VALUE || stuck;
}

static const struct {
    CUprocessState from, to;
} steps[] = {
    [SIM_STEP_LOCK] = {CU_PROCESS_STATE_RUNNING, CU_PROCESS_STATE_LOCKED},
    [SIM_STEP_SAVE] = {CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_CHECKPOINTED},
    [SIM_STEP_RESTORE] = {CU_PROCESS_STATE_CHECKPOINTED, CU_PROCESS_STATE_LOCKED},
    [SIM_STEP_UNLOCK] = {CU_PROCESS_STATE_LOCKED, CU_PROCESS_STATE_RUNNING},
};

static CUresult take(const struct sim_checkpoint *desk) {
    switch ((enum sim_checkpoint_step)desk->step) {
    case SIM_STEP_LOCK: return lock(desk->timeout_ms);
    case SIM_STEP_SAVE: return save();
    case SIM_STEP_RESTORE: return restore(desk);
    case SIM_STEP_UNLOCK: gate_open(); return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult carry_out(struct sim_checkpoint *desk) {
    if (desk->step >= sizeof steps / sizeof *steps) return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&desk->state) != steps[desk->step].from) return CUDA_ERROR_ILLEGAL_STATE;
    if (desk->pair_count > SIM_MAX_CARDS) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = take(desk);
    if (result == CUDA_SUCCESS)
        atomic_store(&desk->state, steps[desk->step].to);
    else if (!leaves_state(result))
        atomic_store(&desk->state, CU_PROCESS_STATE_FAILED);
    return result;
}

static void *serve(void *unused) {
    struct sim_checkpoint *desk = requests_of(&engine.machine, engine.machine.slot);
    (void)unused;
    atomic_store(&desk->restore_thread, (uint32_t)syscall(SYS_gettid));
    for (;;) {
        requests_await(desk);
        requests_answer(desk, carry_out(desk));
    }
    return NULL;
}

CUresult checkpoint_start(void) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, serve, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) return CUDA_ERROR_OPERATING_SYSTEM;
    pthread_detach(thread);
    while (!atomic_load(&requests_of(&engine.machine, engine.machine.slot)->restore_thread))
        sched_yield();
    return CUDA_SUCCESS;
}
