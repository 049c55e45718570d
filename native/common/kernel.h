/* System calls for which older C libraries have no function: fstat came with glibc 2.33 (before
 * that it was an inline function), memfd_create with 2.27, getrandom with 2.25. */
#ifndef EGPU_COMMON_KERNEL_H
#define EGPU_COMMON_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* On 64-bit machines the kernel's structure is the library's. */
static inline int kernel_fstat(int fd, struct stat *status) {
    return (int)syscall(SYS_fstat, fd, status);
}

static inline int kernel_memfd(const char *name, unsigned flags) {
    return (int)syscall(SYS_memfd_create, name, flags);
}

/* Get all of the bytes, or none. */
static inline bool kernel_random(void *to, size_t bytes) {
    return syscall(SYS_getrandom, to, bytes, 0) == (long)bytes;
}

#endif
