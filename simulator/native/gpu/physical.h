/* Memory of a card without an address: the result of cuMemCreate, and the base of every allocation.
 *
 * References count handles and mappings of this process. Exported memory is held through the
 * machine's table of shared things, so it lives as long as any process holds it.
 */
#ifndef EGPU_SIM_PHYSICAL_H
#define EGPU_SIM_PHYSICAL_H

#include "machine.h"

struct physical {
    struct machine *machine;
    struct sim_card *card; /* with the memory: of a compute instance, its GPU instance */
    struct chunk_run *runs;
    size_t run_count;
    uint32_t chunk_count;
    _Atomic uint32_t refs;
    _Atomic uint32_t handles; /* references that a program holds as a handle */
    bool shared;
    struct shared_ref ref; /* when shared */
    bool imported;
    uint32_t handle_types;           /* CUmemAllocationHandleType requested at creation */
    struct physical *next;           /* of the shared ones */
    struct physical *after, *before; /* of all that are not imported */
    struct saved_piece *saved;       /* contents, while a checkpoint has released the chunks */
};

/* Return 0, ENOMEM (the card is full), ENOBUFS (no host memory). */
int physical_create(struct machine *machine, struct sim_card *card, uint32_t chunks,
                    struct physical **out);
void physical_retain(struct physical *physical);
void physical_release(struct physical *physical);

/* Make it available to other processes. Return 0 or ENOSPC. */
int physical_share(struct physical *physical);
/* Return this process's only object for that memory, with a reference. 0, ENOENT, ENOBUFS. */
int physical_import(struct machine *machine, struct shared_ref ref, struct physical **out);

/* Map all of it at `address`, over any mapping there. Return 0 or ENOBUFS. */
int physical_map(const struct physical *physical, uint64_t address);
/* Populate these bytes in /dev/shm. Return 0, or an errno (ENOSPC). */
int physical_populate(const struct physical *physical, uint64_t offset, uint64_t bytes);

/* ---- for a checkpoint (saved.h) ---- */

/* Return the first of all that are not imported; `after` leads to the next. */
struct physical *physical_own(void);
/* Return whether another process may hold some memory of this one, or the other way round. */
bool physical_any_shared(void);
/* Give the chunks back to the card, and take as many of a card again. Return 0 or an errno. */
void physical_leave(struct physical *physical);
int physical_return(struct physical *physical, struct sim_card *card);

/* Reserve a chunk-aligned range of addresses without memory; 0: none free. `hint` may be 0. */
uint64_t address_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint);
/* unmaps the memory; the range stays reserved */
void address_clear(uint64_t address, uint64_t bytes);
void address_release(uint64_t address, uint64_t bytes); /* ends the reservation */

#endif
