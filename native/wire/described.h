/* Tensors by value in cuDNN's graphs. For such a tensor a variant pack has an address in the
 * program's own memory. Descriptors refer to others, so a value passes from its tensor to the
 * operation, from there to the graph, and on to the graph's engines, configurations and plans.
 * Client and executor both follow this through the same calls: the client to know what to send, the
 * executor because it alone may decide which of its own memory the library reads. A descriptor's
 * name is the client's handle, or the library's own pointer in the executor. */
#ifndef EGPU_WIRE_DESCRIBED_H
#define EGPU_WIRE_DESCRIBED_H

#include "cudnn.h"

#pragma GCC visibility push(hidden)

enum { VALUE_MOST_BYTES = 16, VALUES_MOST = 64 /* per descriptor */ };

/* Note that an attribute was set. `at`: its elements, names where they are descriptors. */
void described_set(uint64_t name, const struct elements *are, int64_t count, const void *at);
/* Note that descriptors, which are parts of this one, were filled from it. */
void described_got(uint64_t name, const struct elements *are, int64_t count, const void *at);
void described_gone(uint64_t name);

/* A variant pack, bound to a plan. */
struct described_pack {
    void *workspace;
    uint64_t count;
    bool sendable; /* no value is too long, and none was too much to track */
    struct bound {
        int64_t id;
        void *at;
        unsigned bytes; /* of a value; 0: on the card */
    } of[];
};

/* Return NULL if the pack has no value for the plan, or without memory (`*lost`). The caller frees
 * it. */
struct described_pack *described_pack(uint64_t plan, uint64_t pack, bool *lost);

#pragma GCC visibility pop
#endif
