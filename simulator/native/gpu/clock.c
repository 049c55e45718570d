#include "clock.h"
#include "sim_machine.h"

#include <errno.h>
#include <stdatomic.h>
#include <limits.h>
#include <stddef.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"

static void wall_sleep_until(uint64_t deadline) {
    struct timespec t = {.tv_sec = (time_t)(deadline / 1000000000u),
                         .tv_nsec = (long)(deadline % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

static const struct sim_clock wall = {clock_now_ns, wall_sleep_until};
static _Atomic(const struct sim_clock *) current = &wall;

const struct sim_clock *sim_clock_get(void) {
    return atomic_load_explicit(&current, memory_order_acquire);
}

void sim_clock_set(const struct sim_clock *clock) { atomic_store(&current, clock ? clock : &wall); }

/* ---- the manual clock ---- */

#define LOOK_AGAIN_NS 20000000 /* in case a killed process has not given a wake-up */

static _Atomic(struct sim_header *) machine_clock;

static uint64_t manual_now(void) {
    struct sim_header *header = atomic_load_explicit(&machine_clock, memory_order_acquire);
    return header ? atomic_load(&header->clock_ns) : 0;
}

static void manual_sleep_until(uint64_t deadline) {
    struct sim_header *header = atomic_load(&machine_clock);
    if (!header || atomic_load(&header->clock_ns) >= deadline) return;
    atomic_fetch_add(&header->clock_sleepers, 1);
    for (;;) {
        uint32_t seen = atomic_load(&header->clock_changes);
        if (atomic_load(&machine_clock) != header || atomic_load(&header->clock_ns) >= deadline)
            break;
        struct timespec wait = {.tv_nsec = LOOK_AGAIN_NS};
        syscall(SYS_futex, &header->clock_changes, FUTEX_WAIT, seen, &wait, NULL, 0);
    }
    atomic_fetch_sub(&header->clock_sleepers, 1);
}

static const struct sim_clock manual = {manual_now, manual_sleep_until};

void sim_clock_manual(struct sim_header *header) {
    atomic_store(&machine_clock, header);
    sim_clock_set(&manual);
}

void sim_clock_manual_end(const struct sim_header *header) {
    if (header && atomic_load(&machine_clock) == header) sim_clock_set(NULL);
}

bool sim_clock_advance(uint64_t ns) {
    if (sim_clock_get() != &manual) return false;
    struct sim_header *header = atomic_load(&machine_clock);
    atomic_fetch_add(&header->clock_ns, ns);
    atomic_fetch_add(&header->clock_changes, 1);
    syscall(SYS_futex, &header->clock_changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return true;
}
