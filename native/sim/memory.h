/* What one process sees of device memory, and of host memory that the device may reach.
 *
 * Like a GPU's page tables: an allocation is 2 MiB chunks of the card, wherever they lie, mapped
 * side by side at a fresh address. Allocations of up to 512 KiB share one chunk per size class (a
 * slab). Addresses are the mapping's own addresses, so the kernel interpreter can use them directly
 * once `memory_find` says they are live.
 */
#ifndef EGPU_SIM_MEMORY_H
#define EGPU_SIM_MEMORY_H

#include "machine.h"

#define SLAB_CLASSES 11 /* 512 B … 512 KiB */
#define SLAB_MIN_SHIFT 9

struct block;

/* The memory of one context. */
struct memory {
    struct machine *machine;
    struct sim_card *card;
    void *owner; /* the context; only handed back in struct extent */
    pthread_mutex_t lock;
    struct block *blocks; /* all of them, doubly linked */
    struct block *partial[SLAB_CLASSES];
    /* of a pool */
    bool keep;           /* freed blocks stay here … */
    struct block *kept;  /* … and are given out again */
    struct block *spare; /* what it took of the card beyond its blocks: it grows in steps */
    /* bytes of the card that the pool has; may be NULL */
    _Atomic uint64_t *reserved, *reserved_high;
    uint64_t limit; /* of `reserved`; 0: none */
};

enum block_kind {
    BLOCK_ALLOCATION, /* made by memory_alloc, freed by memory_free */
    /* in a range that somebody reserved; only who was given access may touch it */
    BLOCK_MAPPED,
    BLOCK_GRAPH,   /* at a graph's own address */
    BLOCK_IMPORTED /* another process's, or an external memory's */
};

enum extent_kind { EXTENT_DEVICE, EXTENT_PINNED, EXTENT_REGISTERED, EXTENT_MANAGED };

/* A live allocation. */
struct extent {
    enum extent_kind kind;
    uint64_t base;
    uint64_t size; /* as asked for */
    unsigned flags;
    struct memory *memory; /* EXTENT_DEVICE */
    void *owner;
    struct block *block;        /* EXTENT_DEVICE */
    void *pool;                 /* what it is counted in, or NULL */
    enum block_kind block_kind; /* EXTENT_DEVICE */
    uint32_t access;            /* BLOCK_MAPPED: bit per ordinal */
    /* EXTENT_MANAGED: chunks of the card that it was charged when made, and what the program
     * advised */
    uint32_t charged;
    int preferred, prefetched; /* ordinals, or MANAGED_HOST, or MANAGED_NOWHERE */
    bool read_mostly;
    uint32_t accessed_by;
};

#define MANAGED_HOST (-1)
#define MANAGED_NOWHERE (-2)

void memory_init(struct memory *memory, struct machine *machine, struct sim_card *card,
                 void *owner);
void memory_clear(struct memory *memory); /* frees everything of this context */

/* 0, ENOMEM (the card is full) or ENOBUFS (this process cannot map more). */
int memory_alloc(struct memory *memory, uint64_t size, uint64_t *address);
/* EINVAL when `address` is not the start of a live device allocation. */
int memory_free(uint64_t address);

/* Memory that exists already, at an address: `at`, or a new one when that is 0. Takes a reference
 * of its own. */
struct physical;
int memory_map(struct memory *memory, struct physical *physical, uint64_t at, uint64_t size,
               enum block_kind kind, uint64_t *address);
/* EINVAL when no such block begins there. */
int memory_unmap(uint64_t address, enum block_kind kind);
void memory_set_access(uint64_t address, unsigned ordinal, bool may);
/* what lies under an address; NULL */
struct physical *memory_physical(uint64_t address, uint64_t *offset);

/* Give kept blocks back to the card until the pool has no more than this, as far as they go. */
void memory_trim(struct memory *memory, uint64_t keep_bytes);

/* Note which pool a live device allocation is counted in. */
void memory_set_pool(uint64_t address, void *pool);

/* Chunks that exist but have no address: what a context costs. */
int memory_reserve(struct memory *memory, uint32_t chunks);
/* The same, as many as are needed now: heaps and local memory. *held: NULL at first. */
int memory_hold(struct memory *memory, struct block **held, uint64_t bytes);

/* Host memory. `memory_host_alloc` maps pages of its own; `memory_host_register` notes somebody
 * else's. */
int memory_host_alloc(uint64_t size, enum extent_kind kind, unsigned flags, void *owner,
                      void **address);
/* `freed` may be NULL */
int memory_host_free(void *address, enum extent_kind kind, struct extent *freed);
/* Change what is noted about managed memory (everything but base and size). */
void memory_host_note(const struct extent *extent);
/* EEXIST: overlaps */
int memory_host_register(void *address, uint64_t size, unsigned flags, void *owner);
int memory_host_unregister(void *address);
/* `freed`, which may be NULL, is called for each that is not somebody else's */
void memory_host_clear(void *owner, void (*freed)(const struct extent *));
bool memory_find_host(uint64_t address, struct extent *extent);

/* The live allocation that holds this address. */
bool memory_find(uint64_t address, struct extent *extent);

/* Make [address, address+size) of a device allocation really there in /dev/shm, so that touching it
 * cannot raise SIGBUS. ENOSPC when /dev/shm is full. *window_base and *window_size receive a
 * surrounding range that is there as well. */
int memory_populate(const struct extent *extent, uint64_t address, uint64_t size,
                    uint64_t *window_base, uint64_t *window_size);

#endif
