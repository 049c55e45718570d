/* The only source of simulated time: CLOCK_MONOTONIC, the machine's manual clock, or a clock that a
 * test sets. */
#ifndef EGPU_SIM_CLOCK_H
#define EGPU_SIM_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

struct sim_header;

struct sim_clock {
    uint64_t (*now_ns)(void);
    void (*sleep_until_ns)(uint64_t deadline);
};

const struct sim_clock *sim_clock_get(void);
void sim_clock_set(const struct sim_clock *clock); /* NULL: back to the wall clock */

/* Use the time in this machine's file. It moves when a process advances it. */
void sim_clock_manual(struct sim_header *header);
void sim_clock_manual_end(const struct sim_header *header); /* call before the file is unmapped */
bool sim_clock_advance(uint64_t ns);                        /* false: the clock is not manual */

static inline uint64_t sim_now(void) { return sim_clock_get()->now_ns(); }
static inline void sim_sleep_until(uint64_t deadline) { sim_clock_get()->sleep_until_ns(deadline); }

#endif
