/* What /proc says of a process. */
#ifndef EGPU_COMMON_PROCESS_H
#define EGPU_COMMON_PROCESS_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { PROCESS_PARENT = 4, PROCESS_THREADS = 20, PROCESS_START_TIME = 22 }; /* proc(5) */

/* /proc/<pid>/stat from the third field on, which is the letter of its state; NULL: there is no
 * such process. In `text`, where it has to fit. */
const char *process_stat(uint32_t pid, char *text, size_t room);

/* A field of what process_stat returned, or 0. */
uint64_t process_field(const char *stat, int field);

#pragma GCC visibility pop

#endif
