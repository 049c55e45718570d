/* Calls of forwarded libraries, beyond what their tables say (native/libraries): how scalars and
 * host memory are written, and how errors are named. */
#ifndef EGPU_WIRE_LIBRARIES_H
#define EGPU_WIRE_LIBRARIES_H

#include "described.h"
#include "scalars.h"
#include "wire.h"

#define LIBRARY_MOST_BYTES (64u << 10) /* of host memory that goes along with one call */
#define LIBRARY_MOST_STREAMS 8         /* of one call */
#define LIBRARY_MOST_OBJECTS 1024      /* in an array */

/* Whether a number is one of those whose bits are set. */
static inline bool is_among(int number, uint64_t bits) {
    return number >= 0 && number < 64 && (bits >> number & 1) != 0;
}

/* A scalar: its bytes and value, or SCALAR_ON_CARD and an address. */
#define SCALAR_ON_CARD UINT64_MAX
#define SCALAR_MOST_BYTES 40u /* the five parameters of a modified rotation */
#define SCALAR_ROOM (8 + SCALAR_MOST_BYTES)
/* In place of the length of host memory: there is none. */
#define HOST_IS_NULL UINT64_MAX

/* What calls of a library answer to what went wrong on the way: its statuses. */
struct library_statuses {
    int not_initialized, invalid_handle, out_of_memory, invalid_value, not_supported;
    int unknown;  /* anything else, where kernels ran */
    int category; /* as many follow each other and mean about the same; 0: none do */
};
struct library_facts {
    const char *soname;
    struct library_statuses statuses;
};

#endif
