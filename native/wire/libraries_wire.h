/* Calls of forwarded libraries, beyond their tables (native/libraries): the encoding of scalars and
 * host memory, and the names of errors. */
#ifndef EGPU_WIRE_LIBRARIES_H
#define EGPU_WIRE_LIBRARIES_H

#include "described.h"
#include "scalars.h"
#include "wire.h"

#define LIBRARY_MOST_BYTES (64u << 10) /* of host memory that one call sends along */
#define LIBRARY_MOST_STREAMS 8         /* per call */
#define LIBRARY_MOST_OBJECTS 1024      /* per array */

/* Return whether the bit of a number is set. */
static inline bool is_among(int number, uint64_t bits) {
    return number >= 0 && number < 64 && (bits >> number & 1) != 0;
}

/* A scalar: its bytes and value, or SCALAR_ON_CARD and an address. */
#define SCALAR_ON_CARD UINT64_MAX
#define SCALAR_MOST_BYTES 40u /* the five parameters of a modified rotation */
#define SCALAR_ROOM (8 + SCALAR_MOST_BYTES)
/* Takes the place of the length of host memory that is NULL. */
#define HOST_IS_NULL UINT64_MAX

/* The library's own statuses for errors that occur between program and library. */
struct library_statuses {
    int not_initialized, invalid_handle, out_of_memory, invalid_value, not_supported;
    int unknown;  /* any other error where kernels ran */
    int category; /* size of a range of statuses with similar meaning; 0: no range */
};
struct library_facts {
    const char *soname;
    struct library_statuses statuses;
};

#endif
