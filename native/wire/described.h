/* Tensors by value of cuDNN's graphs: where a variant pack has an address for one, it is one of the
 * program's own memory. Which they are follows from how descriptors were described, each by others:
 * what is by value in a tensor is so in the operation that has it, and in the graph of that, and in
 * the engines, configurations and plans of the graph. Client and executor both follow it, by the
 * same calls: the client to know what to send, the executor since nobody else may say what of its
 * own memory the library reads. Descriptors go by names: a client's handles, the library's own
 * pointers. */
#ifndef EGPU_WIRE_DESCRIBED_H
#define EGPU_WIRE_DESCRIBED_H

#include "cudnn.h"

#pragma GCC visibility push(hidden)

enum { VALUE_MOST_BYTES = 16, VALUES_MOST = 64 /* of one descriptor */ };

/* An attribute of it was set; `at`: its elements, of descriptors their names. */
void described_set(uint64_t name, const struct elements *are, int64_t count, const void *at);
/* Descriptors that were filled from it: parts of it. */
void described_got(uint64_t name, const struct elements *are, int64_t count, const void *at);
void described_gone(uint64_t name);

/* A variant pack as it is for a plan. */
struct described_pack {
    void *workspace;
    uint64_t count;
    bool sendable; /* no value is too long, and none was too much to follow */
    struct bound {
        int64_t id;
        void *at;
        unsigned bytes; /* of a value; 0: on the card */
    } of[];
};

/* NULL: none of the plan's tensors in the pack is a value, or there is no memory (`*lost`). To be
 * freed. */
struct described_pack *described_pack(uint64_t plan, uint64_t pack, bool *lost);

#pragma GCC visibility pop
#endif
