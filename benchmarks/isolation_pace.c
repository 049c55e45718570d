/* Shares in virtual time, with the agent's code and the slices' real files
 * (../native/tests/interposer/pace_world.h).
 *
 *   isolation_pace fifo|timeslice MILLISECONDS TICK_MS
 *   DIRECTORY:KERNEL_NS:KERNELS:PROCESSES:PAUSE_FROM_MS:PAUSE_TO_MS[:BURST:PERIOD_US:JITTER_US]...
 *
 * A directory holds the policy and usage of a slice of the one GPU. Every TICK_MS (0: never) the
 * usage is written to its file, "tick NANOSECONDS" to stdout, and when a line comes back the
 * policies are read again. In the end a line per slice: GPU time in each 10 ms of the run, in
 * nanoseconds. A slice with a burst waits for so many launches in each period, and has a second
 * line: how long each took, in nanoseconds. It must be the first.
 */
#include "../native/tests/interposer/pace_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    int policy, usage;
} files[SLICES];
enum { ARBITER_LATE_NS = 50000 };
static int slice_count, steps_of = -1;

static void check(bool good, const char *what) {
    if (good) return;
    perror(what);
    exit(1);
}

static void read_policies(void) {
    for (int i = 0; i < slice_count; i++) {
        struct egpu_policy page;
        check(pread(files[i].policy, &page, sizeof page, 0) == sizeof page, "policy");
        const struct egpu_policy_bank *bank = &page.banks[page.generation & 1];
        check(bank->checksum == egpu_policy_checksum(bank), "checksum of a policy");
        const struct egpu_policy_device *device = &bank->devices[0];
        bool shares = device->mode == EGPU_MODE_SHARE && device->grant_ppm > device->core_ppm;
        live_limits[i] = (struct limits){
            .memory_bytes = 1,
            .mode = device->mode,
            .core_ppm = device->core_ppm,
            .grant_ppm = shares ? device->grant_ppm : device->core_ppm,
            .contention_ppm = device->contention_ppm,
            .window_epoch_ns = device->window_epoch_ns,
            .window_period_us = device->window_period_us,
            .window_start_us = device->window_start_us,
            .window_length_us = device->window_length_us,
            .work = device->work,
        };
        policy_unmetered |= (device->mode == EGPU_MODE_UNLIMITED) << i;
    }
}

static void tick(void) {
    char answer[16];
    for (int i = 0; i < slice_count; i++)
        check(pwrite(files[i].usage, world_usage(i), sizeof(struct egpu_usage_device),
                     offsetof(struct egpu_usage, devices)) > 0,
              "usage");
    printf("tick %llu\n", (unsigned long long)world_now_ns());
    fflush(stdout);
    if (fgets(answer, sizeof answer, stdin) == NULL) exit(1);
    read_policies();
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    uint64_t for_ns = strtoull(arguments[2], NULL, 10) * 1000000,
             tick_ns = strtoull(arguments[3], NULL, 10) * 1000000;
    world_reset(strcmp(arguments[1], "fifo") == 0 ? FIRST_COME : TIME_SLICES);
    for (int i = 4; i < count && slice_count < SLICES; i++, slice_count++) {
        char path[4096];
        char *directory = strtok(arguments[i], ":"), *number[5];
        for (int k = 0; k < 5; k++) {
            number[k] = strtok(NULL, ":");
            if (number[k] == NULL) return 2;
        }
        snprintf(path, sizeof path, "%s/policy", directory);
        files[slice_count].policy = open(path, O_RDONLY);
        check(files[slice_count].policy >= 0, path);
        snprintf(path, sizeof path, "%s/usage", directory);
        files[slice_count].usage = open(path, O_RDWR);
        check(files[slice_count].usage >= 0, path);
        char *burst = strtok(NULL, ":"), *period = strtok(NULL, ":"), *jitter = strtok(NULL, ":");
        if (jitter != NULL) steps_of = slice_count;
        for (int k = 0; k < atoi(number[2]); k++)
            world_add((struct work_spec){
                .slice = slice_count,
                .kernel_ns = strtoull(number[0], NULL, 10),
                .kernels = (unsigned)atoi(number[1]),
                .pause_from_ns = strtoull(number[3], NULL, 10) * 1000000,
                .pause_to_ns = strtoull(number[4], NULL, 10) * 1000000,
                .burst = jitter == NULL ? 0 : (unsigned)atoi(burst),
                .waits = jitter != NULL,
                .period_ns = jitter == NULL ? 0 : strtoull(period, NULL, 10) * 1000,
                .jitter_ns = jitter == NULL ? 0 : strtoull(jitter, NULL, 10) * 1000,
            });
    }
    read_policies();
    if (tick_ns != 0) world_direct(tick, tick_ns);
    world_arbiter(ARBITER_LATE_NS);
    world_run(for_ns);
    for (int i = 0; i < slice_count; i++) {
        printf("busy");
        for (unsigned bucket = 0; bucket < for_ns / BUCKET_NS; bucket++)
            printf(" %llu", (unsigned long long)world_busy_ns(i, bucket));
        printf("\n");
    }
    if (steps_of == 0) {
        const uint64_t *steps;
        unsigned steps_count = world_steps(0, &steps);
        printf("steps");
        for (unsigned i = 0; i < steps_count; i++) printf(" %llu", (unsigned long long)steps[i]);
        printf("\n");
    }
    return 0;
}
