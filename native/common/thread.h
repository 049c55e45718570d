/* What a thread that waits, or that is alone, may do. */
#ifndef EGPU_COMMON_THREAD_H
#define EGPU_COMMON_THREAD_H

#include <stdbool.h>
#include <stddef.h>

/* What glibc itself says, since 2.32; of an older one: never. Looked up as the library is loaded,
 * because who refers to it does not load with an older one. */
extern const char *thread_single __attribute__((visibility("hidden")));

/* Whether this process has one thread, so that nothing needs a lock. */
static inline bool thread_alone(void) { return *thread_single; }

/* Between two looks at what another processor is about to write. */
static inline void thread_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif
