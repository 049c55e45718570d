/* Files that are read at once. */
#ifndef EGPU_COMMON_FILE_H
#define EGPU_COMMON_FILE_H

#include <stddef.h>
#include <sys/types.h>

#pragma GCC visibility push(hidden)

/* Read at most `room` - 1 bytes of a file and add a NUL. Return how many, or -1 with errno. */
ssize_t file_read(const char *path, char *to, size_t room);

/* Read all of a file of at most `most` bytes and add a NUL; the caller frees it. NULL: it is
 * longer, cannot be read, or there is no memory. */
char *file_load(const char *path, size_t most, size_t *bytes);

#pragma GCC visibility pop

#endif
