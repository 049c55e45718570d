/* The time in nanoseconds: since the machine started, or since 1970. */
#ifndef EGPU_COMMON_CLOCK_H
#define EGPU_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline uint64_t clock_now_ns(void) { return clock_read(CLOCK_MONOTONIC); }
static inline int64_t clock_now_ms(void) { return (int64_t)(clock_now_ns() / 1000000u); }
static inline uint64_t clock_unix_ns(void) { return clock_read(CLOCK_REALTIME); }

#endif
