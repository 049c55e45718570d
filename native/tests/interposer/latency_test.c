/* Turns (native/turns, interposer/compute/turns.c) in virtual time: what latency work waits for,
 * what is left to others, and that nobody gains by lies. See pace_world.h.
 *
 *   latency_test [steps|guarantees|hostile]    a table on stdout; exit status 1 when a figure is
 * out of bounds
 */
#include "pace_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LATE_US = 50 }; /* the arbiter hears of a request */
static const uint64_t second_ns = 1000000000u;

static int failures;
static void judge(const char *what, double got, double least, double most) {
    bool bad = got < least || got > most;
    printf("%-64s %9.1f  %9.1f .. %9.1f%s\n", what, got, least, most, bad ? "  OUT OF BOUNDS" : "");
    failures += bad;
}

static void set_slice(int slice, uint32_t core_percent, enum egpu_work work) {
    live_limits[slice] = (struct limits){.memory_bytes = 1,
                                         .mode = EGPU_MODE_SHARE,
                                         .core_ppm = core_percent * 10000,
                                         .grant_ppm = EGPU_PPM,
                                         .contention_ppm = EGPU_PPM,
                                         .work = work};
    if (work == EGPU_WORK_LATENCY) live_limits[slice].grant_ppm = core_percent * 10000;
}

/* Windows of yielding slices fill their period: time that others hold is not part of it. */
static void set_window(int slice, uint32_t start_us, uint32_t length_us, uint32_t period_us) {
    live_limits[slice].window_epoch_ns = 1000;
    live_limits[slice].window_start_us = start_us;
    live_limits[slice].window_length_us = length_us;
    live_limits[slice].window_period_us = period_us;
}

static void begin(enum arbitration how) {
    world_reset(how);
    world_command(1000);
}

static void run(uint64_t for_ns) {
    world_arbiter(LATE_US * 1000);
    world_run(for_ns);
}

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

/* Of the first program, in microseconds; the first bursts are of works that were never timed. */
static double percentile(double percent) {
    const uint64_t *steps;
    unsigned count = world_steps(0, &steps), skipped = count / 20 + 2;
    uint64_t *sorted = malloc(count * sizeof *sorted);
    count -= skipped;
    memcpy(sorted, steps + skipped, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare);
    double found = (double)sorted[(unsigned)((count - 1) * percent / 100)] / 1000;
    free(sorted);
    return found;
}

static const struct work_spec programs[] = {
    {.kernel_ns = 200000,
     .kernels = 1,
     .burst = 25,
     .waits = true,
     .period_ns = 50000000,
     .jitter_ns = 20000000},
    {.kernel_ns = 200000,
     .kernels = 1,
     .burst = 1,
     .waits = true,
     .period_ns = 1000000,
     .jitter_ns = 300000},
};
static const char *const names[] = {"5 ms of 50", "0.2 ms of 1"};

/* A step waits for one kernel of the others, and the others get what it leaves. */
static void steps(void) {
    static const uint64_t kernels_us[] = {100, 2000, 20000};
    for (int how = FIRST_COME; how <= TIME_SLICES; how++)
        for (unsigned p = 0; p < 2; p++) {
            begin((enum arbitration)how);
            set_slice(0, 30, EGPU_WORK_PLAIN);
            world_add(programs[p]);
            run(second_ns);
            double alone = percentile(99);
            for (unsigned k = 0; k < 3; k++) {
                char what[96];
                begin((enum arbitration)how);
                set_slice(0, 30, EGPU_WORK_LATENCY);
                set_slice(1, 70, EGPU_WORK_YIELDING);
                world_add(programs[p]);
                world_add((struct work_spec){
                    .slice = 1, .kernel_ns = kernels_us[k] * 1000, .kernels = 1});
                run(3 * second_ns);
                int length = snprintf(what, sizeof what, "%s, %s, beside kernels of %llu us",
                                      names[p], how == TIME_SLICES ? "time slices" : "first come",
                                      (unsigned long long)kernels_us[k]);
                /* A driver that slices time lets kernels that others launch before they hear of the
                 * turn run before work that was launched first. */
                double late = how == TIME_SLICES ? LATE_US : 0;
                judge(what, percentile(99), 0, 1.15 * alone + (double)kernels_us[k] + late);
                double used = world_share(0, second_ns, 3 * second_ns),
                       left = world_share(1, second_ns, 3 * second_ns);
                snprintf(what + length, sizeof what - (size_t)length, ": left");
                judge(what, 100 * left / (100 - used), 95, 100.1);
            }
        }
}

/* Each slice's share of each 2 s. */
static void judge_shares(const char *name, const double *least, const double *most, int count,
                         uint64_t for_ns) {
    for (int i = 0; i < count; i++) {
        double low = 100, high = 0;
        char what[96];
        for (uint64_t from = 2 * second_ns; from + 2 * second_ns <= for_ns; from += second_ns / 4) {
            double share = world_share(i, from, from + 2 * second_ns);
            low = share < low ? share : low;
            high = share > high ? share : high;
        }
        snprintf(what, sizeof what, "%s, slice %d: least", name, i);
        judge(what, low, least[i], 101);
        snprintf(what, sizeof what, "%s, slice %d: most", name, i);
        judge(what, high, 0, most[i]);
    }
}

static const uint64_t long_ns = 7000000000u;

/* Latency work of 30 % that is never done, beside batch work of 30 and 40 %. */
static void guarantees(void) {
    static const uint64_t kernels_us[] = {100, 500, 5000};
    static const double least[] = {27, 27, 37}, most[] = {33, 40, 50};
    for (int how = FIRST_COME; how <= TIME_SLICES; how++)
        for (unsigned k = 0; k < 3; k++) {
            char what[96];
            uint32_t period_us = kernels_us[k] > 2000 ? 100000 : 20000;
            begin((enum arbitration)how);
            set_slice(0, 30, EGPU_WORK_LATENCY);
            set_slice(1, 30, EGPU_WORK_YIELDING);
            set_slice(2, 40, EGPU_WORK_YIELDING);
            set_window(1, 0, period_us * 3 / 7, period_us);
            set_window(2, period_us * 3 / 7, period_us * 4 / 7, period_us);
            for (int i = 0; i < 3; i++)
                world_add((struct work_spec){
                    .slice = i, .kernel_ns = kernels_us[k] * 1000, .kernels = 1});
            run(long_ns);
            snprintf(what, sizeof what, "%s, kernels of %llu us",
                     how == TIME_SLICES ? "time slices" : "first come",
                     (unsigned long long)kernels_us[k]);
            /* Turns are charged from when others' kernels should be over; with long kernels and a
             * driver that slices time, work that is never done gets less than its share. */
            bool less = how == TIME_SLICES && kernels_us[k] > 2000;
            judge_shares(what, less ? (double[]){20, 27, 37} : least,
                         less ? (double[]){33, 50, 57} : most, 3, long_ns);
        }
}

/* ---- lies ---- */

static void always_asks(void) {
    world_ask(0)->until_ns = world_now_ns() + 10 * second_ns;
    world_ask(0)->serial++;
    turn_wake(&world_ask(0)->serial);
}

static void never_owes(void) {
    world_usage(0)->bucket_ns = (int64_t)second_ns;
    world_ask(0)->until_ns = 0;
    world_ask(0)->serial++;
    turn_wake(&world_ask(0)->serial);
}

static void always_wants(void) {
    world_usage(1)->queued_until_ns = world_now_ns() + 10 * second_ns;
    world_ask(1)->wanted_ns = world_now_ns() + 10 * second_ns;
}

static void lie(const char *what, struct work_spec spec, void (*lies)(void), double most) {
    for (int how = FIRST_COME; how <= TIME_SLICES; how++) {
        char name[96];
        begin((enum arbitration)how);
        set_slice(0, 30, EGPU_WORK_LATENCY);
        set_slice(1, 70, EGPU_WORK_YIELDING);
        world_add(spec);
        world_add((struct work_spec){.slice = 1, .kernel_ns = 500000, .kernels = 1});
        if (lies != NULL) world_direct(lies, 1000000);
        run(long_ns);
        snprintf(name, sizeof name, "%s, %s", what,
                 how == TIME_SLICES ? "time slices" : "first come");
        judge_shares(name, (double[]){0, 97 - most}, (double[]){most, 101}, 2, long_ns);
    }
}

static void hostile(void) {
    struct work_spec greedy = {.kernel_ns = 200000, .kernels = 1};
    lie("it always asks, and does nothing",
        (struct work_spec){.kernel_ns = 1000, .kernels = 1, .rest_ns = second_ns}, always_asks, 33);
    lie("it always asks, and works", greedy, always_asks, 33);
    lie("it never says that it works, nor owes", greedy, never_owes, 33);
    lie("one long kernel after the other", (struct work_spec){.kernel_ns = 50000000, .kernels = 1},
        NULL, 33);
    lie("long kernels, and it never owes", (struct work_spec){.kernel_ns = 50000000, .kernels = 1},
        never_owes, 33);
    /* And batch work that lies gains nothing from latency work. */
    begin(FIRST_COME);
    set_slice(0, 30, EGPU_WORK_LATENCY);
    set_slice(1, 70, EGPU_WORK_YIELDING);
    world_add(greedy);
    world_add((struct work_spec){.slice = 1, .kernel_ns = 500000, .kernels = 1});
    world_direct(always_wants, 1000000);
    run(long_ns);
    judge_shares("batch work says that it is never done", (double[]){27, 0}, (double[]){101, 73}, 2,
                 long_ns);
}

int main(int count, char **arguments) {
    const char *only = count > 1 ? arguments[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (*only == 0 || strcmp(only, "steps") == 0) steps();
    if (*only == 0 || strcmp(only, "guarantees") == 0) guarantees();
    if (*only == 0 || strcmp(only, "hostile") == 0) hostile();
    return failures == 0 ? 0 : 1;
}
