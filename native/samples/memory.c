/* Allocates until that fails: shows the limit of a slice, and a program's view of it. */
#include "sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv) {
    uint64_t chunk = 64 << 20, smallest = 1 << 20;
    double hold = 0;
    const struct flag flags[] = {{"chunk",
                                  "bytes of the first allocations; halved when one fails (64MiB)",
                                  FLAG_BYTES,
                                  {.count = &chunk},
                                  0},
                                 {"smallest",
                                  "stop when this much cannot be allocated (1MiB)",
                                  FLAG_BYTES,
                                  {.count = &smallest},
                                  0},
                                 {"hold",
                                  "seconds to keep the memory before the end (0)",
                                  FLAG_SECONDS,
                                  {.seconds = &hold},
                                  0},
                                 {0}};
    sample_begin(argc, argv, "memory",
                 "Allocates GPU memory until that fails, and prints how much it got.", flags, true);
    size_t available, total, left, same;
    CUDA(memory_info, &available, &total);

    enum { MOST = 1 << 20 }; /* a bound on the number of allocations */
    cu_pointer *given = malloc(MOST * sizeof *given);
    uint64_t bytes = 0, count = 0;
    cu_result refusal = CU_SUCCESS;
    if (!given) return EXIT_CUDA;
    for (uint64_t size = chunk; count < MOST;) {
        refusal = cuda.alloc(&given[count], size);
        if (refusal == CU_SUCCESS) {
            count++;
            bytes += size;
        } else if (refusal == CU_OUT_OF_MEMORY && size / 2 >= smallest) {
            size /= 2;
        } else {
            break;
        }
    }
    const char *name = cuda_error_name(refusal);
    CUDA(memory_info, &left, &same);
    if (hold > 0) {
        struct timespec pause = {(time_t)hold, (long)((hold - (double)(time_t)hold) * 1e9)};
        nanosleep(&pause, NULL);
    }
    for (uint64_t i = 0; i < count; i++) CUDA(release, given[i]);
    char fields[320];
    snprintf(
        fields, sizeof fields,
        "\"given_bytes\": %llu, \"allocations\": %llu, \"error\": \"%s\", \"free_before\": %zu, \"free_after\": %zu, "
        "\"total\": %zu",
        (unsigned long long)bytes, (unsigned long long)count, name, available, left, total);
    return sample_end(
        refusal == CU_OUT_OF_MEMORY, fields,
        "allocated %llu bytes (%llu MiB) in %llu allocations on %s, then %s; cuMemGetInfo: free %zu, then %zu, of %zu",
        (unsigned long long)bytes, (unsigned long long)bytes >> 20, (unsigned long long)count,
        sample_device_name, name, available, left, total);
}
