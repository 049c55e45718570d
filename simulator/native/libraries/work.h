/* Shared by the simulated libraries: this machine's processor does their work, in the order of the
 * stream. */
#ifndef EGPU_SIM_WORK_H
#define EGPU_SIM_WORK_H

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(hidden)

#define API __attribute__((visibility("default")))

/* For creating a handle: make sure that CUDA works and the calling thread has a context, its own or
 * the first device's primary one. */
bool open_context(void);

/* Return whether all these bytes are memory of the card: others would crash this process. */
bool on_card(const void *at, int64_t bytes);

/* Queue `run` with a copy of `what`. */
CUresult queue(CUstream stream, void (*run)(void *), const void *what, size_t bytes);
/* The same, with `room` bytes after the copy. */
CUresult queue_with_room(CUstream stream, void (*run)(void *), const void *what, size_t bytes,
                         size_t room);

#pragma GCC visibility pop
#endif
