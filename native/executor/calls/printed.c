/* What the driver, and libraries beside it, write to the standard output of C: what kernels print.
 * It is the program's; so it is kept here until the client fetches it, which each reply says there
 * is to do. Who writes to the descriptor itself writes to our log.
 */
#define _GNU_SOURCE
#include "executor/executor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* Of more the oldest is lost. */
static char *ring; /* PRINTED_BYTES, once there is something */
static uint64_t head, tail;
static _Atomic bool any; /* head < tail */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t keep(void *nothing, const char *text, size_t bytes) {
    static bool told;
    (void)nothing;
    size_t last = bytes > PRINTED_BYTES ? PRINTED_BYTES : bytes;
    pthread_mutex_lock(&lock);
    if (ring == NULL && (ring = malloc(PRINTED_BYTES)) == NULL) last = 0;
    for (size_t i = bytes - last; i < bytes; i++) ring[tail++ % PRINTED_BYTES] = text[i];
    bool lost = last < bytes || tail - head > PRINTED_BYTES;
    if (tail - head > PRINTED_BYTES) head = tail - PRINTED_BYTES;
    atomic_store(&any, head < tail);
    bool tells = lost && !told;
    told = told || lost;
    pthread_mutex_unlock(&lock);
    if (tells) fprintf(stderr, "egpu-executor: kernels print more than is kept\n");
    return (ssize_t)bytes;
}

void printed_begin(void) {
    FILE *ours = fopencookie(NULL, "w", (cookie_io_functions_t){.write = keep});
    if (ours == NULL) return; /* then it goes to the log, too */
    setvbuf(ours, NULL, _IONBF, 0);
    stdout = ours;
}

size_t printed_copy(uint8_t *to) {
    pthread_mutex_lock(&lock);
    size_t count = tail - head;
    for (size_t i = 0; i < count; i++) to[i] = (uint8_t)ring[(head + i) % PRINTED_BYTES];
    pthread_mutex_unlock(&lock);
    return count;
}

void printed_add(const uint8_t *bytes, size_t count) { keep(NULL, (const char *)bytes, count); }

bool printed_any(void) { return atomic_load_explicit(&any, memory_order_relaxed); }

CUresult printed(struct task *task) {
    if (task->in.left) return violation(task);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < WIRE_MAX_PRINTED && head < tail; i++)
        *task->out.at++ = (uint8_t)ring[head++ % PRINTED_BYTES]; /* exactly: without padding */
    atomic_store(&any, head < tail);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
