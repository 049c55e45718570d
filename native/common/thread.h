/* What a thread that waits, or that is alone, may do. */
#ifndef EGPU_COMMON_THREAD_H
#define EGPU_COMMON_THREAD_H

#include <stdbool.h>
#include <stddef.h>

extern char __libc_single_threaded __attribute__((weak)); /* glibc 2.32 and later */

/* Whether this process has one thread, so that nothing needs a lock. */
static inline bool thread_alone(void) {
    return &__libc_single_threaded != NULL && __libc_single_threaded;
}

/* Between two looks at what another processor is about to write. */
static inline void thread_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif
