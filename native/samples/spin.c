/* Keeps the GPU busy with kernels of a known duration and prints the share of the time that it got.
 * On a simulated GPU a kernel takes as long as its .pragma says; a real one ignores the pragma, so
 * the length of the loop is measured first.
 */
#include "sample.h"

#include <stdio.h>
#include <time.h>

static cu_function kernel;
static cu_pointer sink;

static void launch(unsigned iterations) {
    void *params[] = {&sink, &iterations};
    CUDA(launch, kernel, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL);
}

/* The minimum of a few runs: other programs may interfere. Each follows a pause in which a capped
 * slice saves up time for a kernel: waiting for that would be measured too. */
static double measure_us(unsigned iterations) {
    const struct timespec pause = {0, 10000000};
    cu_event start, end;
    float ms, best = 1e30f;
    CUDA(event_create, &start, 0), CUDA(event_create, &end, 0);
    for (int i = 0; i < 5; i++) {
        nanosleep(&pause, NULL);
        CUDA(event_record, start, NULL);
        launch(iterations);
        CUDA(event_record, end, NULL);
        CUDA(event_wait, end);
        CUDA(event_elapsed, &ms, start, end);
        best = ms < best ? ms : best;
    }
    return best * 1000.0;
}

int main(int argc, char **argv) {
    uint64_t us = 1000, batch = 8;
    double seconds = 2;
    const struct flag flags[] = {
        {"us", "duration of a kernel in microseconds (1000)", FLAG_COUNT, {.count = &us}, 1000000},
        {"seconds", "seconds to run (2)", FLAG_SECONDS, {.seconds = &seconds}, 0},
        {"batch", "kernels launched at a time (8)", FLAG_COUNT, {.count = &batch}, 256},
        {0}};
    sample_begin(argc, argv, "spin",
                 "Keeps the GPU busy and prints the share of its time that it got.", flags, true);
    char ptx[1024];
    snprintf(ptx, sizeof ptx,
             PTX_HEADER
             ".visible .entry spin(.param .u64 out, .param .u32 n)\n"
             "{\n"
             "    .pragma \"egpu.duration_us %llu\";\n"
             "    .reg .pred %%p; .reg .b32 %%n, %%x; .reg .b64 %%out;\n"
             "    ld.param.u64 %%out, [out]; ld.param.u32 %%n, [n]; mov.u32 %%x, %%tid.x;\n"
             "LOOP:\n"
             "    mad.lo.u32 %%x, %%x, 1664525, 1013904223;\n"
             "    sub.u32 %%n, %%n, 1;\n"
             "    setp.ne.u32 %%p, %%n, 0;\n"
             "    @%%p bra LOOP;\n"
             "    st.global.u32 [%%out], %%x;\n"
             "    ret;\n"
             "}\n",
             (unsigned long long)us);
    kernel = sample_kernel(ptx, "spin");
    sink = sample_alloc(128);

    /* Linear in the iterations except for the cost of an empty kernel; a declared duration does not
     * depend on them. */
    unsigned iterations = 1;
    double each_us = measure_us(1);
    if (each_us < 0.7 * (double)us) {
        const unsigned probe = 100000;
        double slope = (measure_us(probe) - each_us) / probe;
        double want = slope > 0 ? ((double)us - each_us) / slope : 1;
        iterations = want > 4e9 ? 4000000000u : want < 1 ? 1 : (unsigned)want;
        each_us = measure_us(iterations);
    }

    cu_event done[2];
    CUDA(event_create, &done[0], 0), CUDA(event_create, &done[1], 0);
    CUDA(synchronize);
    double start = sample_seconds(), now = start;
    uint64_t kernels = 0;
    /* one batch runs while the next is launched */
    for (unsigned round = 0; now - start < seconds; round++) {
        for (uint64_t i = 0; i < batch; i++) launch(iterations);
        kernels += batch;
        CUDA(event_record, done[round & 1], NULL);
        if (round) CUDA(event_wait, done[(round & 1) ^ 1]);
        now = sample_seconds();
    }
    CUDA(synchronize);
    double wall = sample_seconds() - start,
           share = wall > 0 ? 100 * (double)kernels * each_us * 1e-6 / wall : 0;
    CUDA(release, sink);
    char fields[256];
    snprintf(fields, sizeof fields,
             "\"kernels\": %llu, \"kernel_us\": %.1f, \"seconds\": %.3f, \"share_percent\": %.2f",
             (unsigned long long)kernels, each_us, wall, share);
    return sample_end(true, fields, "%llu kernels of %.1f us in %.3f s on %s, %.1f %% of its time",
                      (unsigned long long)kernels, each_us, wall, sample_device_name, share);
}
