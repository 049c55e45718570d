/* Counts open descriptors: unwanted ones from a socket must be closed. */
#ifndef EGPU_FUZZ_DESCRIPTORS_H
#define EGPU_FUZZ_DESCRIPTORS_H

#include <fcntl.h>

static inline unsigned open_descriptors(void) {
    enum { HIGHEST = 64 };
    unsigned count = 0;
    for (int fd = 0; fd < HIGHEST; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

#endif
