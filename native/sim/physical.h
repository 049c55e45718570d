/* Memory of a card without an address: what cuMemCreate makes, and what lies under every
 * allocation.
 *
 * References are counted: handles and mappings of this process. Memory that was exported is held
 * through the machine's table of shared things, so that it lives as long as any process holds it.
 */
#ifndef EGPU_SIM_PHYSICAL_H
#define EGPU_SIM_PHYSICAL_H

#include "machine.h"

struct physical {
    struct machine *machine;
    struct sim_card *card; /* that has the memory: of a compute instance, its GPU instance */
    struct chunk_run *runs;
    size_t run_count;
    uint32_t chunk_count;
    _Atomic uint32_t refs;
    _Atomic uint32_t handles; /* references that a program holds as a handle */
    bool shared;
    struct shared_ref ref; /* when shared */
    bool imported;
    uint32_t handle_types; /* CUmemAllocationHandleType asked for at creation */
    struct physical *next; /* of the shared ones */
};

/* 0, ENOMEM (the card is full), ENOBUFS (no host memory). */
int physical_create(struct machine *machine, struct sim_card *card, uint32_t chunks,
                    struct physical **out);
void physical_retain(struct physical *physical);
void physical_release(struct physical *physical);

/* Make it known to other processes. 0, ENOSPC. */
int physical_share(struct physical *physical);
/* The one object of this process for that memory, with a reference. 0, ENOENT, ENOBUFS. */
int physical_import(struct machine *machine, struct shared_ref ref, struct physical **out);

/* Map all of it at `address`, over whatever is there. 0, ENOBUFS. */
int physical_map(const struct physical *physical, uint64_t address);
/* Make bytes really there in /dev/shm. 0, or an errno (ENOSPC). */
int physical_populate(const struct physical *physical, uint64_t offset, uint64_t bytes);

/* A chunk-aligned range of addresses with nothing behind it; 0: none to be had. `hint` may be 0. */
uint64_t address_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint);
/* nothing behind it any more, still reserved */
void address_clear(uint64_t address, uint64_t bytes);
void address_release(uint64_t address, uint64_t bytes); /* no longer reserved */

#endif
