/* See clock.h. */
#include "clock.h"

#if defined(__x86_64__) && !defined(EGPU_VIRTUAL_TIME)
#include <cpuid.h>

struct clock_anchor clock_anchor;
static uint64_t first_ticks, first_ns;

static bool counter_is_a_clock(void) {
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d >> 8 & 1);
}

/* Call it with or without a lock: of two threads, the one that loses the race does nothing. */
uint64_t set_clock(void) {
    uint64_t now = now_ns(), ticks = __rdtsc();
    uint32_t version = __atomic_load_n(&clock_anchor.version, __ATOMIC_RELAXED);
    if (version & 1 || !__atomic_compare_exchange_n(&clock_anchor.version, &version, version + 1,
                                                    false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return now;
    if (first_ns == 0) {
        first_ns = counter_is_a_clock() ? now : UINT64_MAX;
        first_ticks = ticks;
    } else if (now > first_ns && now - first_ns > 1000000 && ticks > first_ticks) {
        __atomic_store_n(
            &clock_anchor.scale,
            (uint64_t)(((unsigned __int128)(now - first_ns) << 32) / (ticks - first_ticks)),
            __ATOMIC_RELAXED);
        __atomic_store_n(&clock_anchor.ticks, ticks, __ATOMIC_RELAXED);
        __atomic_store_n(&clock_anchor.ns, now, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&clock_anchor.version, version + 2, __ATOMIC_RELEASE);
    return now;
}

#else
uint64_t set_clock(void) { return now_ns(); }
#endif
