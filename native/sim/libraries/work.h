/* What simulated libraries have in common: their work is done by this machine's processor, in the
 * order of the stream. */
#ifndef EGPU_SIM_WORK_H
#define EGPU_SIM_WORK_H

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(hidden)

#define API __attribute__((visibility("default")))

/* For who makes a handle: CUDA is there, and the calling thread has a context, its own or the first
 * device's primary one. */
bool open_context(void);

/* Whether all of these bytes are memory of the card: what is not would end this process. */
bool on_card(const void *at, int64_t bytes);

/* Queues `run` with a copy of `what`. */
CUresult queue(CUstream stream, void (*run)(void *), const void *what, size_t bytes);
/* The same, with so many bytes behind the copy. */
CUresult queue_with_room(CUstream stream, void (*run)(void *), const void *what, size_t bytes,
                         size_t room);

#pragma GCC visibility pop
#endif
