/* The thread that waits for the policy page to ask for parking: an idle program makes no calls. It
 * exists in parkable slices alone, from the first allocation on that can leave the card. */
#define _GNU_SOURCE
#include "parking.h"

#include <pthread.h>
#include <signal.h>

enum {
    LOOK_NS = 20000000,
    QUIET_NS = 20000000, /* without a call: less is a pause between two */
};
/* How long a request to park waits for such a moment. */
static const uint64_t IDLE_PATIENCE_NS = 2000000000u;
/* The most that calls wait for an attempt to park a busy program. */
static const uint64_t LONGEST_HOLD_NS = 10000000000u;

static uint32_t listening;

void asked_forget(void) { listening = 0; }

static enum egpu_park_answer park(void) {
    uint64_t hold = __atomic_load_n(&park_hold_ns, __ATOMIC_RELAXED);
    if (hold > LONGEST_HOLD_NS) hold = LONGEST_HOLD_NS;
    if (hold != 0) return park_try(now_ns() + hold, true);
    uint64_t deadline = now_ns() + IDLE_PATIENCE_NS;
    for (;;) {
        uint64_t calls = gate_calls();
        sleep_ns(QUIET_NS);
        enum egpu_park_answer answer =
            gate_calls() == calls ? park_try(deadline, false) : EGPU_PARK_BUSY;
        if ((answer != EGPU_PARK_BUSY && answer != EGPU_PARK_CAPTURING) || now_ns() >= deadline)
            return answer;
    }
}

static enum egpu_park_answer wake(void) {
    switch (park_wake()) {
    case CUDA_SUCCESS: return EGPU_PARK_WOKEN;
    case CUDA_ERROR_OUT_OF_MEMORY: return EGPU_PARK_NO_ROOM;
    default: return EGPU_PARK_FAILED;
    }
}

static uint64_t asked(void) {
    policy_look();
    return __atomic_load_n(&park_asked, __ATOMIC_ACQUIRE);
}

/* The arbiter parks those first that have been idle for longest. */
static void show_call(uint64_t *before) {
    uint64_t calls = gate_calls();
    struct egpu_usage_slot *slot = slot_of(0);
    if (slot != NULL && (calls != *before || gate_is_used()))
        __atomic_store_n(&slot->heartbeat_ns, now_ns(), __ATOMIC_RELAXED);
    *before = calls;
}

static void *listen(void *answered) {
    uint64_t last = (uint64_t)(uintptr_t)answered, calls = 0;
    for (;;) {
        uint64_t request = asked();
        show_call(&calls);
        if (request != last) park_answer(request, request & 1 ? park() : wake());
        last = request;
        sleep_ns(LOOK_NS);
    }
    return NULL;
}

/* The thread takes no signal of the program's. */
static bool start(void) {
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (__typeof__(create))process_symbol("pthread_create");
    int (*detach)(pthread_t) = (__typeof__(detach))process_symbol("pthread_detach");
    sigset_t all, before;
    pthread_t thread;
    if (create == NULL || detach == NULL) return false;
    sigfillset(&all);
    if (sigprocmask(SIG_BLOCK, &all, &before) != 0) return false;
    bool started = create(&thread, NULL, listen, (void *)(uintptr_t)asked()) == 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return started && detach(thread) == 0;
}

void asked_listen(void) {
    uint32_t not_yet = 0;
    if (__builtin_expect(__atomic_load_n(&listening, __ATOMIC_ACQUIRE), 1) ||
        !__atomic_compare_exchange_n(&listening, &not_yet, 1, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return;
    /* What was asked of others before is not asked of us. */
    if (!start()) park_pin();
}
