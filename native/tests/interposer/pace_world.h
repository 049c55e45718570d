/* A GPU, a clock and processes that exist only here, for the interposer's compute control
 * (bucket.c, compute): shares are exact or not, whatever else the computer does. Threads stand
 * for processes; one runs at a time, and time passes when all of them sleep. A slice is a device
 * index of one usage file; one stream per process.
 */
#ifndef EGPU_PACE_WORLD_H
#define EGPU_PACE_WORLD_H

#include "../../interposer/interposer.h"

enum { SLICES = 8, BUCKET_NS = 10000000, BUCKETS = 4096 };

/* Between processes: kernels whole in the order of their launches, or slices of SLICE_NS in turn
 * (an event interval then includes the turns of others), as on cards that run the work of several
 * processes. */
enum arbitration { FIRST_COME, TIME_SLICES };
enum { SLICE_NS = 2000000, LAUNCH_NS = 3000 };

struct work_spec {
    int slice;
    uint64_t kernel_ns;
    unsigned kernels; /* per launch: more than one is a graph */
    /* between two launches, beyond the LAUNCH_NS that launching takes */
    uint64_t rest_ns;
    /* since the start: it launches nothing; both 0: it never stops */
    uint64_t pause_from_ns, pause_to_ns;
    /* launches before it rests (0: one), what it does after each (and after the last, or not), and
     * whether it waits for them first */
    unsigned burst;
    uint64_t gap_ns;
    bool no_last_gap;
    bool waits;
    /* now and then, right after a launch: somebody else has the processor */
    uint64_t held_up_ns;
    unsigned held_up_every;
    /* from the start of a burst to that of the next, plus up to jitter_ns; 0: as above */
    uint64_t period_ns, jitter_ns;
    /* before each launch, of a copy that leaves the kernels' part of the GPU idle */
    uint64_t copy_ns;
    /* between two launches: so many that the driver refuses, in a context that the program ends
     * meanwhile or not */
    unsigned refused;
    bool ends_context;
};

extern struct limits live_limits[EGPU_MAX_DEVICES];
extern uint32_t policy_unmetered;

void world_reset(enum arbitration arbitration);
void world_add(struct work_spec spec);
/* What the GPU takes to begin a launch or to note an event, where it is not behind with them
 * anyway. */
void world_command(uint64_t ns);
/* What it takes until a program can see that its stream has nothing more to do. */
void world_notice(uint64_t ns);
/* Called every `period_ns` of the world's time, as an agent looks at its containers. */
void world_direct(void (*director)(void), uint64_t period_ns);
/* An arbiter of turns (native/turns) for all slices, which hears of a request so much later. */
void world_arbiter(uint64_t late_ns);
void world_run(uint64_t for_ns);
/* How long each burst took until it was over, of the world's programs that wait for them: in the
 * order in which they were added. */
unsigned world_steps(int program, const uint64_t **steps_ns);
uint64_t world_now_ns(void);     /* the clock that the interposer reads */
uint64_t world_elapsed_ns(void); /* since the start of the run */
struct egpu_usage_device *world_usage(int slice);
struct egpu_usage_ask *world_ask(int slice);

/* GPU time that a slice really got from `from_ns` to `to_ns` of the run, in percent of it; bounds
 * to the nearest BUCKET_NS. */
double world_share(int slice, uint64_t from_ns, uint64_t to_ns);
uint64_t world_busy_ns(int slice, unsigned bucket);

#endif
