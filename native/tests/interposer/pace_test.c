/* The interposer's compute control (bucket.c, compute) in virtual time; see pace_world.h.
 *
 *   pace_test [alone|contended|change|owed|forged|refused|seen|light]    a table on stdout; exit
 * status 1 when a share is out of bounds
 */
#include "pace_world.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void set_limit(int slice, uint32_t core_ppm) {
    live_limits[slice] = (struct limits){.memory_bytes = 1,
                                         .mode = EGPU_MODE_CAP,
                                         .core_ppm = core_ppm,
                                         .grant_ppm = core_ppm,
                                         .contention_ppm = EGPU_PPM};
}

/* Windows of one period, as an agent publishes them for a contended card. */
static void set_windows(const uint32_t *shares_ppm, int count, uint32_t period_us) {
    uint32_t start = 0;
    for (int i = 0; i < count; i++) {
        live_limits[i].window_epoch_ns = 1000;
        live_limits[i].window_period_us = period_us;
        live_limits[i].window_start_us = start;
        live_limits[i].window_length_us =
            (uint32_t)((uint64_t)shares_ppm[i] * period_us / EGPU_PPM);
        start += live_limits[i].window_length_us;
    }
}

static int failures;
static void judge(const char *what, double wanted, double got, double bound) {
    double error = got - wanted;
    bool bad = fabs(error) > bound;
    printf("%-58s %6.1f %7.2f %+7.2f%s\n", what, wanted, got, error, bad ? "  OUT OF BOUNDS" : "");
    failures += bad;
}

static const uint32_t caps[] = {10, 30, 50, 70, 90};
static const uint64_t kernels_us[] = {20, 100, 500, 5000};
static const uint64_t warm_ns = 500000000;

static void alone(void) {
    const uint64_t for_ns = 8000000000u;
    for (int graph = 0; graph < 2; graph++)
        for (int parts = 1; parts <= 4; parts += 3)
            for (unsigned k = 0; k < 4; k++)
                for (unsigned c = 0; c < 5; c++) {
                    char what[80];
                    /* ten of them are one launch of 50 ms */
                    if (graph && kernels_us[k] == 5000) continue;
                    world_reset(FIRST_COME);
                    set_limit(0, caps[c] * 10000);
                    for (int i = 0; i < parts; i++)
                        world_add((struct work_spec){.kernel_ns = kernels_us[k] * 1000,
                                                     .kernels = graph ? 10 : 1});
                    world_run(warm_ns + for_ns);
                    snprintf(what, sizeof what, "alone, %d process%s, %s of %llu us", parts,
                             parts > 1 ? "es" : "", graph ? "graphs of 10 kernels" : "kernels",
                             (unsigned long long)kernels_us[k]);
                    judge(what, caps[c], world_share(0, warm_ns, warm_ns + for_ns), 1.0);
                }
}

static void contended(void) {
    static const uint32_t mixes[][SLICES] = {
        {30, 70}, {10, 90}, {50, 50}, {25, 25, 25, 25}, {20, 30, 50}};
    const uint64_t for_ns = 4000000000u;
    for (int how = FIRST_COME; how <= TIME_SLICES; how++)
        for (unsigned m = 0; m < 5; m++)
            for (unsigned k = 0; k < 4; k++) {
                uint32_t ppm[SLICES] = {0};
                int count = 0;
                world_reset((enum arbitration)how);
                for (; count < SLICES && mixes[m][count] != 0; count++) {
                    ppm[count] = mixes[m][count] * 10000;
                    set_limit(count, ppm[count]);
                    world_add((struct work_spec){
                        .slice = count, .kernel_ns = kernels_us[k] * 1000, .kernels = 1});
                }
                /* several kernels fit into a window */
                set_windows(ppm, count, kernels_us[k] > 2000 ? 100000 : 20000);
                world_run(warm_ns + for_ns);
                for (int i = 0; i < count; i++) {
                    char what[80];
                    snprintf(what, sizeof what, "contended%s, slice %d of %d, kernels of %llu us",
                             how == TIME_SLICES ? ", time slices" : "", i + 1, count,
                             (unsigned long long)kernels_us[k]);
                    judge(what, mixes[m][i], world_share(i, warm_ns, warm_ns + for_ns), 3.0);
                }
            }
}

static uint32_t change_to;
static void change_limit(void) {
    if (world_elapsed_ns() >= 1000000000u && live_limits[0].core_ppm != change_to)
        set_limit(0, change_to);
}

static void change(void) {
    static const uint32_t steps[][2] = {{20, 60}, {80, 20}, {10, 90}};
    for (unsigned s = 0; s < 3; s++)
        for (unsigned k = 0; k < 4; k++) {
            char what[80];
            world_reset(FIRST_COME);
            set_limit(0, steps[s][0] * 10000);
            world_add((struct work_spec){.kernel_ns = kernels_us[k] * 1000, .kernels = 1});
            change_to = steps[s][1] * 10000;
            world_direct(change_limit, 1000000);
            world_run(2200000000u);
            snprintf(what, sizeof what, "200 ms after a change from %u %%, kernels of %llu us",
                     steps[s][0], (unsigned long long)kernels_us[k]);
            judge(what, steps[s][1], world_share(0, 1200000000u, 2200000000u), 2.0);
        }
}

static void take_back(void) {
    if (world_elapsed_ns() >= 1000000000u) live_limits[0].grant_ppm = live_limits[0].core_ppm;
}

/* Neither a pause of the program nor idle time that was granted is owed afterwards. */
static void owed(void) {
    for (unsigned k = 0; k < 4; k++) {
        char what[80];
        /* another number of launches is in the open batch each time */
        for (unsigned at = 0; at < 8; at++) {
            world_reset(FIRST_COME);
            set_limit(0, 700000);
            world_add((struct work_spec){.kernel_ns = kernels_us[k] * 1000,
                                         .kernels = 1,
                                         .pause_from_ns = 500000000 + at * 777000,
                                         .pause_to_ns = 1500000000});
            world_run(2500000000u);
            snprintf(what, sizeof what, "after a pause (%u), kernels of %llu us", at + 1,
                     (unsigned long long)kernels_us[k]);
            judge(what, 70, world_share(0, 1600000000u, 2500000000u), 2.0);
        }

        world_reset(FIRST_COME);
        set_limit(0, 300000);
        live_limits[0].mode = EGPU_MODE_SHARE;
        live_limits[0].grant_ppm = EGPU_PPM;
        world_add((struct work_spec){.kernel_ns = kernels_us[k] * 1000, .kernels = 1});
        world_direct(take_back, 10000000);
        world_run(2200000000u);
        snprintf(what, sizeof what, "200 ms after a grant of all, kernels of %llu us",
                 (unsigned long long)kernels_us[k]);
        judge(what, 30, world_share(0, 1200000000u, 2200000000u), 2.0);
    }
}

static void owes_nothing(void) { world_usage(0)->bucket_ns = (int64_t)1000000000; }

/* A limit holds for a process whatever its usage file says that its container owes. */
static void forged(void) {
    for (unsigned k = 0; k < 4; k++)
        for (unsigned c = 0; c < 5; c += 2) {
            char what[80];
            world_reset(FIRST_COME);
            set_limit(0, caps[c] * 10000);
            world_add((struct work_spec){.kernel_ns = kernels_us[k] * 1000, .kernels = 1});
            world_direct(owes_nothing, 1000000);
            world_run(4 * warm_ns);
            snprintf(what, sizeof what, "it owes nothing, it says, kernels of %llu us",
                     (unsigned long long)kernels_us[k]);
            judge(what, caps[c], world_share(0, 0, 4 * warm_ns), 3.0);
        }
}

/* What the driver refused to launch is not paid for; nor is what a context had when it ended, which
 * another thread may be launching in. */
static void refused(void) {
    static const uint32_t half[] = {500000};
    for (unsigned k = 0; k < 4; k++)
        for (int windows = 0; windows < 2; windows++) {
            char what[80];
            world_reset(FIRST_COME);
            set_limit(0, 500000);
            if (windows) set_windows(half, 1, 20000);
            world_add((struct work_spec){
                .kernel_ns = kernels_us[k] * 1000, .kernels = 1, .refused = windows ? 1 : 3});
            world_run(2500000000u);
            snprintf(what, sizeof what, "launches refused between others, kernels of %llu us%s",
                     (unsigned long long)kernels_us[k], windows ? ", in windows" : "");
            judge(what, 50, world_share(0, warm_ns, 2500000000u), 2.0);
        }
    world_reset(FIRST_COME);
    set_limit(0, 500000);
    world_add((struct work_spec){
        .kernel_ns = 100000, .kernels = 1, .refused = 1, .ends_context = true, .rest_ns = 1000000});
    world_run(500000000u);
    judge("contexts end while something is launched in them", 9, world_share(0, 0, 500000000u),
          2.0);
}

/* What NVML readers in the slice are shown is made of this. */
static double seen_ppm, seen_times;
static void look_on(void) {
    if (world_elapsed_ns() < warm_ns) return;
    struct egpu_usage_device *totals = world_usage(0);
    seen_ppm += (double)rate_ppm(&totals->rate, totals->gpu_ns, world_now_ns());
    seen_times++;
}

static void seen(void) {
    static const uint64_t programs_us[][2] = {{20, 0},    {100, 0},    {500, 0},     {5000, 0},
                                              {100, 900}, {500, 1500}, {2000, 18000}};
    const uint64_t for_ns = 4000000000u;
    for (unsigned p = 0; p < 7; p++)
        for (unsigned c = 0; c < 5; c += 2) {
            char what[80];
            uint64_t kernel_us = programs_us[p][0], rest_us = programs_us[p][1];
            world_reset(FIRST_COME);
            set_limit(0, caps[c] * 10000);
            world_add((struct work_spec){
                .kernel_ns = kernel_us * 1000, .kernels = 1, .rest_ns = rest_us * 1000});
            seen_ppm = seen_times = 0;
            world_direct(look_on, 37000000);
            world_run(warm_ns + for_ns);
            double got = world_share(0, warm_ns, warm_ns + for_ns);
            snprintf(what, sizeof what, "seen at %u %%, kernels of %llu us, resting %llu us",
                     caps[c], (unsigned long long)kernel_us, (unsigned long long)rest_us);
            judge(what, got, seen_ppm / seen_times / 10000, 2.0);
            /* it does not wait for them */
            double asked = 100.0 * (double)kernel_us / (double)(rest_us + LAUNCH_NS / 1000);
            if (rest_us != 0)
                judge("  who rests is not charged for resting", fmin(asked, caps[c]), got, 1.0);
        }
}

static const uint64_t light_ns = 2000000000u;
static uint64_t notice_ns; /* of a light load */

/* Percent of the GPU's time that a program uses which needs `load_percent` of it; `metered`: under
 * a cap of 30 %. */
static double lightly(struct work_spec spec, unsigned load_percent, bool metered) {
    uint64_t work_ns = spec.burst * (spec.kernel_ns + spec.copy_ns), took_ns = work_ns + 5000;
    uint64_t period_ns = spec.burst * spec.kernel_ns * 100 / load_percent;
    world_reset(FIRST_COME);
    world_command(2000);
    world_notice(notice_ns);
    set_limit(0, 300000);
    policy_unmetered = metered ? 0 : 1;
    spec.rest_ns = period_ns > took_ns ? period_ns - took_ns : 1000;
    world_add(spec);
    world_run(warm_ns + light_ns);
    return world_share(0, warm_ns, warm_ns + light_ns);
}

static void judge_light(const char *what, struct work_spec spec) {
    double free = lightly(spec, 22, false), held = lightly(spec, 22, true);
    double charged = 100 * (double)world_usage(0)->gpu_ns / (double)(warm_ns + light_ns);
    judge(what, 100, 100 * held / free, 5.0);
    judge("  and is charged what it used", 100, 100 * charged / held, 5.0);
}

/* Who needs less than its share is not slowed, however short its kernels are and whatever lies
 * between them. */
static void light(void) {
    static const uint64_t lengths_us[] = {5, 10, 20, 100, 500, 5000};
    static const unsigned bursts[] = {1, 3, 10};
    char what[80];
    for (unsigned k = 0; k < 6; k++)
        for (unsigned b = 0; b < 3; b++)
            for (unsigned copies = 0; copies < 3; copies++) {
                uint64_t kernel_ns = lengths_us[k] * 1000;
                /* more at once than can be saved up */
                if (kernel_ns * bursts[b] > 5000000) continue;
                snprintf(what, sizeof what, "light, %u kernels of %llu us, copies of %llu us",
                         bursts[b], (unsigned long long)lengths_us[k],
                         (unsigned long long)(copies * lengths_us[k]));
                judge_light(what, (struct work_spec){.kernel_ns = kernel_ns,
                                                     .kernels = 1,
                                                     .burst = bursts[b],
                                                     .waits = true,
                                                     .copy_ns = copies * kernel_ns});
            }
    for (unsigned k = 0; k < 4; k++) {
        uint64_t kernel_ns = lengths_us[k] * 1000;
        snprintf(what, sizeof what, "light, 3 kernels of %llu us, late by as much",
                 (unsigned long long)lengths_us[k]);
        judge_light(what, (struct work_spec){.kernel_ns = kernel_ns,
                                             .kernels = 1,
                                             .burst = 3,
                                             .waits = true,
                                             .gap_ns = 2 * kernel_ns});
        /* the pauses are over when anybody looks: the last kernel has just been launched */
        snprintf(what, sizeof what, "light, 3 kernels of %llu us, late but waited for at once",
                 (unsigned long long)lengths_us[k]);
        judge_light(what, (struct work_spec){.kernel_ns = kernel_ns,
                                             .kernels = 1,
                                             .burst = 3,
                                             .waits = true,
                                             .gap_ns = 4 * kernel_ns,
                                             .no_last_gap = true});
    }
    notice_ns = 30000;
    for (unsigned k = 0; k < 3; k++) {
        snprintf(what, sizeof what, "light, 3 kernels of %llu us, late, and seen to be over later",
                 (unsigned long long)lengths_us[k]);
        judge_light(what, (struct work_spec){.kernel_ns = lengths_us[k] * 1000,
                                             .kernels = 1,
                                             .burst = 3,
                                             .waits = true,
                                             .gap_ns = 4 * lengths_us[k] * 1000});
    }
    notice_ns = 0;
    static const unsigned held_up_every[] = {7, 100};
    for (unsigned h = 0; h < 2; h++)
        for (unsigned b = 1; b <= 50; b += 49) {
            snprintf(what, sizeof what, "light, %u kernels of 5 us, held up at each %u. launch", b,
                     held_up_every[h]);
            judge_light(what, (struct work_spec){.kernel_ns = 5000,
                                                 .kernels = 1,
                                                 .burst = b,
                                                 .waits = true,
                                                 .gap_ns = 20000,
                                                 .held_up_ns = 2000000,
                                                 .held_up_every = held_up_every[h]});
        }
}

int main(int count, char **arguments) {
    const char *only = count > 1 ? arguments[1] : "";
    printf("%-58s %6s %7s %7s\n", "percent of the GPU's time", "limit", "got", "error");
    if (*only == 0 || strcmp(only, "alone") == 0) alone();
    if (*only == 0 || strcmp(only, "contended") == 0) contended();
    if (*only == 0 || strcmp(only, "change") == 0) change();
    if (*only == 0 || strcmp(only, "owed") == 0) owed();
    if (*only == 0 || strcmp(only, "forged") == 0) forged();
    if (*only == 0 || strcmp(only, "refused") == 0) refused();
    if (*only == 0 || strcmp(only, "seen") == 0) seen();
    if (*only == 0 || strcmp(only, "light") == 0) light();
    return failures == 0 ? 0 : 1;
}
