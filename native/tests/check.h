/* A test in C ends at the first condition that does not hold, and names it. */
#ifndef EGPU_CHECK_H
#define EGPU_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            fprintf(stderr, "%s:%d: not: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                             \
        }                                                                        \
    } while (0)

#endif
