/* Moves the memory of this process to the host, and back to the same addresses.
 *
 * The device must be through with everything, and nothing may be put on it meanwhile. So the gate
 * is tried first (the next call ends the attempt, and nobody waits), then the driver is asked to
 * synchronise, which may last as long as a kernel does, and only then the gate is closed.
 *
 * To wake, all physical memory is made before any of it is used: two programs that wake at the same
 * time on a card with room for one never hold half of it each.
 */
#define _GNU_SOURCE
#include "parking.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/file.h"

enum {
    MOST_CONTEXTS = 16,
    SPARE_HOST_BYTES = 64 << 20, /* of the host's memory, left to others */
    WAIT_LOOK_NS = 100000,
};

uint32_t park_asks;
static uint32_t pinned;
static egpu_lock moving; /* one thread moves memory */
static uint64_t parks, wakes, wait_ns;

void park_forget(void) {
    moving.word = 0;
    park_asks = pinned = 0;
    parks = wakes = wait_ns = 0;
}

void park_pin(void) { __atomic_store_n(&pinned, 1, __ATOMIC_RELEASE); }

void park_wait_slow(void) {
    while (__atomic_load_n(&park_asks, __ATOMIC_SEQ_CST) != 0) sleep_ns(WAIT_LOOK_NS);
}

static uint64_t parked_bytes(void) {
    uint64_t bytes = 0;
    MANAGED_EACH(one)
    if (one->copy != NULL) bytes += one->bytes;
    return bytes;
}

#define SHOW(word, value) __atomic_store_n(&(word), (value), __ATOMIC_RELEASE)

/* The slice has one device: a condition of the gate. */
static void show(void) {
    struct egpu_usage_slot *slot = slot_of(0);
    if (slot == NULL) return;
    room_show_parked(parked_bytes());
    SHOW(slot->parks, (uint32_t)parks);
    SHOW(slot->wakes, (uint32_t)wakes);
    SHOW(slot->wake_wait_ns, wait_ns);
}

static CUresult synchronize(const CUcontext *contexts, unsigned count) {
    CUresult result = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        CUcontext popped;
        result = REAL(cuCtxPushCurrent_v2)(contexts[i]);
        if (result != CUDA_SUCCESS) return result;
        result = REAL(cuCtxSynchronize)();
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    return result;
}

/* ---- room on the host ---- */

/* A number in a file, after the word; UINT64_MAX where there is none ("max", too). */
static uint64_t number_in(const char *path, const char *word) {
    char text[4096];
    if (file_read(path, text, sizeof text) <= 0) return UINT64_MAX;
    const char *at = strstr(text, word);
    if (at == NULL) return UINT64_MAX;
    at += strlen(word);
    while (*at == ' ') at++;
    return *at >= '0' && *at <= '9' ? strtoull(at, NULL, 10) : UINT64_MAX;
}

/* Asked before, because memory that is short afterwards ends programs. */
static bool host_has_room(uint64_t bytes) {
    uint64_t available = number_in("/proc/meminfo", "MemAvailable:");
    if (available != UINT64_MAX) available *= 1024;
    /* of the container, where it sees its own control group (version 2, or 1) */
    uint64_t most = number_in("/sys/fs/cgroup/memory.max", ""),
             used = number_in("/sys/fs/cgroup/memory.current", "");
    if (most == UINT64_MAX || used == UINT64_MAX) {
        most = number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "");
        used = number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes", "");
    }
    if (most != UINT64_MAX && used != UINT64_MAX) {
        uint64_t left = most > used ? most - used : 0;
        if (left < available) available = left;
    }
    return available == UINT64_MAX || available >= add_bytes(bytes, SPARE_HOST_BYTES);
}

/* ---- away ---- */

static enum egpu_park_answer move_away(struct managed *one) {
    CUcontext popped;
    void *copy = mmap(NULL, one->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return EGPU_PARK_NO_HOST_MEMORY;
    madvise(copy, one->bytes, MADV_DONTFORK);
    CUresult result = REAL(cuCtxPushCurrent_v2)(one->context);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuMemcpyDtoH_v2)(copy, one->address, one->bytes);
        if (result == CUDA_SUCCESS) result = managed_unmap(one);
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    if (one->handle != 0) { /* it is where it was */
        munmap(copy, one->bytes);
        return EGPU_PARK_FAILED;
    }
    one->copy = copy;
    return EGPU_PARK_DONE;
}

static enum egpu_park_answer move_all_away(void) {
    uint64_t bytes = 0;
    MANAGED_EACH(one)
    bytes += one->bytes;
    if (!host_has_room(bytes)) return EGPU_PARK_NO_HOST_MEMORY;
    enum egpu_park_answer answer = EGPU_PARK_DONE;
    MANAGED_EACH(one)
    if (answer == EGPU_PARK_DONE) answer = move_away(one);
    if (parked_bytes() != 0) parks++;
    show();
    return answer;
}

/* True: the device is idle, nobody puts anything on it, and calls wait from now on. */
static enum egpu_park_answer hold_idle(uint64_t deadline, bool hold) {
    CUcontext contexts[MOST_CONTEXTS];
    if (!gate_try(hold ? deadline : 0)) return EGPU_PARK_BUSY;
    enum egpu_park_answer answer = EGPU_PARK_BUSY;
    /* Whoever begins a capture or ends a context ends the attempt first, and then waits for this.
     */
    __atomic_store_n(&park_asks, 1, __ATOMIC_SEQ_CST);
    if (!gate_is_trying()) {
        /* somebody came */
    } else if (__atomic_load_n(&capturing, __ATOMIC_SEQ_CST) != 0) {
        answer = EGPU_PARK_CAPTURING;
    } else {
        unsigned count = managed_contexts(contexts, MOST_CONTEXTS);
        if (count == 0)
            answer = EGPU_PARK_NOTHING;
        else if (count > MOST_CONTEXTS)
            answer = EGPU_PARK_NOT_POSSIBLE;
        else if (synchronize(contexts, count) != CUDA_SUCCESS)
            answer = EGPU_PARK_FAILED;
        else if (now_ns() < deadline)
            answer = EGPU_PARK_DONE;
    }
    __atomic_store_n(&park_asks, 0, __ATOMIC_SEQ_CST);
    if (answer == EGPU_PARK_DONE) return gate_hold() ? EGPU_PARK_DONE : EGPU_PARK_BUSY;
    if (gate_hold()) gate_release(GATE_LETS_IN);
    return answer;
}

enum egpu_park_answer park_try(uint64_t deadline, bool hold) {
    if (!gate_can_close()) return EGPU_PARK_NOT_POSSIBLE;
    if (__atomic_load_n(&pinned, __ATOMIC_ACQUIRE)) return EGPU_PARK_PINNED;
    /* Somebody wakes it, and may wait for room: that is its answer, too. */
    if (__atomic_exchange_n(&moving.word, 1, __ATOMIC_ACQUIRE) != 0) return EGPU_PARK_BUSY;
    enum egpu_park_answer answer = EGPU_PARK_DONE;
    if (__atomic_load_n(&gate_state, __ATOMIC_ACQUIRE) != GATE_PARKED) {
        answer = hold_idle(deadline, hold);
        if (answer == EGPU_PARK_DONE) {
            answer = move_all_away();
            gate_release(parked_bytes() != 0 ? GATE_PARKED : GATE_LETS_IN);
        }
    }
    lock_drop(&moving);
    return answer;
}

/* ---- back ---- */

static void drop_unused(void) {
    MANAGED_EACH(one)
    if (one->copy != NULL && one->handle != 0) {
        REAL(cuMemRelease)(one->handle);
        one->handle = 0;
    }
}

/* Physical memory for all that is away, or for none of it. */
static CUresult make_room(void) {
    MANAGED_EACH(one) {
        CUresult result = one->copy != NULL ? managed_create(one) : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS) continue;
        drop_unused();
        return result;
    }
    return CUDA_SUCCESS;
}

static CUresult wait_for_room(void) {
    struct room_wait wait;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    room_begin(&wait, 0);
    do {
        if (!room_claim(&wait)) continue;
        result = make_room();
        if (result != CUDA_SUCCESS) room_unclaim(&wait);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY && room_pause(&wait));
    room_end(&wait);
    return result;
}

static CUresult move_back(struct managed *one) {
    CUcontext popped;
    CUresult result = REAL(cuCtxPushCurrent_v2)(one->context);
    if (result != CUDA_SUCCESS) return result;
    result = managed_map(one);
    if (result == CUDA_SUCCESS) {
        result = REAL(cuMemcpyHtoD_v2)(one->address, one->copy, one->bytes);
        /* The host's copy may be gone before the device has it otherwise. */
        if (result == CUDA_SUCCESS) result = REAL(cuCtxSynchronize)();
        if (result != CUDA_SUCCESS) REAL(cuMemUnmap)(one->address, one->bytes);
    }
    REAL(cuCtxPopCurrent_v2)(&popped);
    if (result != CUDA_SUCCESS) return result;
    munmap(one->copy, one->bytes);
    one->copy = NULL;
    return CUDA_SUCCESS;
}

static CUresult move_all_back(uint64_t began) {
    CUresult result = wait_for_room();
    MANAGED_EACH(one)
    if (one->copy != NULL && result == CUDA_SUCCESS) result = move_back(one);
    if (result == CUDA_SUCCESS)
        wakes++;
    else
        drop_unused();
    wait_ns += now_ns() - began;
    show();
    return result;
}

CUresult park_wake(void) {
    CUresult result = CUDA_SUCCESS;
    uint64_t began = now_ns();
    lock_take(&moving);
    if (__atomic_load_n(&gate_state, __ATOMIC_ACQUIRE) == GATE_PARKED) {
        gate_release(GATE_MOVES);
        result = move_all_back(began);
        gate_release(result == CUDA_SUCCESS ? GATE_LETS_IN : GATE_PARKED);
    }
    lock_drop(&moving);
    return result;
}

bool park_keep(void) {
    if (__atomic_load_n(&gate_state, __ATOMIC_ACQUIRE) != GATE_PARKED) return false;
    lock_take(&moving);
    if (__atomic_load_n(&gate_state, __ATOMIC_ACQUIRE) == GATE_PARKED) return true;
    lock_drop(&moving);
    return false;
}

void park_kept(void) {
    if (parked_bytes() == 0) gate_release(GATE_LETS_IN);
    show();
    lock_drop(&moving);
}

void park_answer(uint64_t request, enum egpu_park_answer answer) {
    struct egpu_usage_slot *slot = slot_of(0);
    if (slot == NULL) return;
    SHOW(slot->park_answer, answer);
    SHOW(slot->park_answered, request);
}
