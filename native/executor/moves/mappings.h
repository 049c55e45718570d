/* The mappings that hold a session's memory: all by address, under the lock of arena.c. */
#ifndef EGPU_EXECUTOR_MAPPINGS_H
#define EGPU_EXECUTOR_MAPPINGS_H

#include "executor/moves/moves.h"

struct mapping {
    struct arena_mapping is;
    bool ahead;      /* it is nobody's yet */
    uint64_t filled; /* the first bytes came ahead */
    CUmemGenericAllocationHandle handle;
    uint64_t free_units;
    uint64_t used[ARENA_UNITS / 64]; /* of a shared one */
};
extern struct mapping **mappings;
extern uint32_t mapping_count;
extern uint64_t mapping_bytes;

/* Room for one more in a list; false: there is no memory. */
bool moves_grow(void **list, uint32_t count, uint32_t *room, size_t size);

CUmemAllocationProp mapping_properties(int32_t device);
CUresult mapping_add(const struct arena_mapping *is, struct mapping **added);
CUresult mapping_remove(uint32_t index);
/* True: it was mapped ahead. What else was, and is in its way, goes. */
bool mapping_adopt(const struct arena_mapping *is);
bool mappings_drop_ahead(void);               /* false: there are none */
uint32_t mapping_index(uint64_t base);        /* of the first one that does not begin below */
struct mapping *mapping_of(uint64_t address); /* that has the address, or NULL */
struct mapping *mapping_at(uint64_t address); /* the same, also of what was mapped ahead */
/* Memory comes there ahead: false, if it does not follow what came before. */
bool mapping_fill(uint64_t address, uint64_t bytes, struct arena_mapping *is);
bool mapping_filled(uint64_t address, uint64_t bytes);
/* But for the context, which one that was mapped ahead does not have. */
bool mapping_same(const struct arena_mapping *one, const struct arena_mapping *other);
/* The first addresses of the range that are free; 0: there are none. */
uint64_t mapping_place(uint64_t range_base, uint64_t range_bytes, uint64_t bytes);

uint64_t mapping_units(uint64_t bytes);
bool mapping_unit_used(const struct mapping *mapping, uint64_t unit);
void mapping_mark(struct mapping *mapping, uint64_t address, uint64_t bytes, bool used);
/* So many free units in a row; ARENA_UNITS: there are none. */
uint64_t mapping_find_units(const struct mapping *mapping, uint64_t count);

#endif
