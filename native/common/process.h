/* Information about a process from /proc. */
#ifndef EGPU_COMMON_PROCESS_H
#define EGPU_COMMON_PROCESS_H

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

enum { PROCESS_PARENT = 4, PROCESS_THREADS = 20, PROCESS_START_TIME = 22 }; /* proc(5) */

/* Return /proc/<pid>/stat from its third field on, the letter of its state; NULL: no such process.
 * It must fit into `text`. */
const char *process_stat(uint32_t pid, char *text, size_t room);

/* Return a field of process_stat's result, or 0. */
uint64_t process_field(const char *stat, int field);

#pragma GCC visibility pop

#endif
