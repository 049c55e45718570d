/* A cheap clock: the processor's counter, which set_clock compares with the kernel's clock at every
 * batch. */
#ifndef EGPU_COMPUTE_CLOCK_H
#define EGPU_COMPUTE_CLOCK_H

#include "../interposer.h"

uint64_t set_clock(void); /* returns the kernel's time */

#if defined(__x86_64__) && !defined(EGPU_VIRTUAL_TIME)
#include <x86intrin.h>

extern struct clock_anchor {
    uint64_t ticks, ns, scale; /* ns per tick << 32; 0: unknown, or the counter is not a clock */
    uint32_t version;          /* odd while it is being set */
} clock_anchor __attribute__((visibility("hidden")));

static inline uint64_t fast_now_ns(void) {
    uint32_t version = __atomic_load_n(&clock_anchor.version, __ATOMIC_ACQUIRE);
    uint64_t scale = __atomic_load_n(&clock_anchor.scale, __ATOMIC_RELAXED),
             ticks = __atomic_load_n(&clock_anchor.ticks, __ATOMIC_RELAXED);
    uint64_t ns = __atomic_load_n(&clock_anchor.ns, __ATOMIC_RELAXED), now = __rdtsc();
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (scale == 0 || version & 1 || now < ticks || now - ticks > 1ull << 31 ||
        __atomic_load_n(&clock_anchor.version, __ATOMIC_RELAXED) != version)
        return now_ns();
    return ns + ((now - ticks) * scale >> 32);
}

#else
static inline uint64_t fast_now_ns(void) { return now_ns(); }
#endif

#endif
