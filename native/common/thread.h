/* Helpers for a thread that waits or is the only one. */
#ifndef EGPU_COMMON_THREAD_H
#define EGPU_COMMON_THREAD_H

#include <stdbool.h>
#include <stddef.h>

/* glibc's own answer, since 2.32; with an older one: never. Looked up when the library is loaded,
 * since a direct reference would not load with an older one. */
extern const char *thread_single __attribute__((visibility("hidden")));

/* Return whether this process has only one thread, so no lock is needed. */
static inline bool thread_alone(void) { return *thread_single; }

/* Pause between two checks of memory that another processor is about to write. */
static inline void thread_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif
