/* One process's view of device memory, and of host memory that the device may access.
 *
 * Like a GPU's page tables: an allocation is 2 MiB chunks of the card, at any place, mapped side by
 * side at a fresh address. Allocations of up to 512 KiB share one chunk per size class (a slab).
 * The addresses are those of the mapping, so the kernel interpreter can use them directly once
 * `memory_find` says they are live.
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
    void *owner; /* the context; only returned in struct extent */
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
    /* in a range that a program reserved; only devices with access may use it */
    BLOCK_MAPPED,
    BLOCK_GRAPH,   /* at a graph's own address */
    BLOCK_IMPORTED /* another process's, or an external memory's */
};

enum extent_kind { EXTENT_DEVICE, EXTENT_PINNED, EXTENT_REGISTERED, EXTENT_MANAGED };

/* A live allocation. */
struct extent {
    enum extent_kind kind;
    uint64_t base;
    uint64_t size; /* as requested */
    unsigned flags;
    struct memory *memory; /* EXTENT_DEVICE */
    void *owner;
    struct block *block;        /* EXTENT_DEVICE */
    void *pool;                 /* the pool that counts it, or NULL */
    enum block_kind block_kind; /* EXTENT_DEVICE */
    uint32_t access;            /* BLOCK_MAPPED: bit per ordinal */
    /* EXTENT_MANAGED: chunks of the card charged when it was made, and the program's advice */
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

/* Return 0, ENOMEM (the card is full) or ENOBUFS (this process cannot map more). */
int memory_alloc(struct memory *memory, uint64_t size, uint64_t *address);
/* EINVAL if `address` is not the start of a live device allocation. */
int memory_free(uint64_t address);

/* Map existing memory at `at`, or at a new address if that is 0. Takes a reference of its own. */
struct physical;
int memory_map(struct memory *memory, struct physical *physical, uint64_t at, uint64_t size,
               enum block_kind kind, uint64_t *address);
/* EINVAL if no such block begins there. */
int memory_unmap(uint64_t address, enum block_kind kind);
void memory_set_access(uint64_t address, unsigned ordinal, bool may);
/* the memory at an address; NULL: none */
struct physical *memory_physical(uint64_t address, uint64_t *offset);

/* Return kept blocks to the card until the pool has at most this much, if possible. */
void memory_trim(struct memory *memory, uint64_t keep_bytes);

/* For a checkpoint: unmap all device memory of this process, whose addresses stay reserved, and map
 * it again with the chunks that it has then. Return 0 or an errno. */
void memory_unmap_all(void);
int memory_map_all(void);

/* Note the pool that counts a live device allocation. */
void memory_set_pool(uint64_t address, void *pool);

/* Take chunks without an address: the cost of a context. */
int memory_reserve(struct memory *memory, uint32_t chunks);
/* The same, with as many as are needed now: heaps and local memory. *held: NULL at first. */
int memory_hold(struct memory *memory, struct block **held, uint64_t bytes);

/* Host memory. `memory_host_alloc` maps new pages; `memory_host_register` notes existing ones. */
int memory_host_alloc(uint64_t size, enum extent_kind kind, unsigned flags, void *owner,
                      void **address);
/* `freed` may be NULL */
int memory_host_free(void *address, enum extent_kind kind, struct extent *freed);
/* Change the notes about managed memory (everything but base and size). */
void memory_host_note(const struct extent *extent);
/* EEXIST: overlaps */
int memory_host_register(void *address, uint64_t size, unsigned flags, void *owner);
int memory_host_unregister(void *address);
/* calls `freed`, which may be NULL, for each that was allocated here */
void memory_host_clear(void *owner, void (*freed)(const struct extent *));
bool memory_find_host(uint64_t address, struct extent *extent);
bool memory_host_any(enum extent_kind kind);

/* Find the live allocation that holds this address. */
bool memory_find(uint64_t address, struct extent *extent);

/* Populate [address, address+size) of a device allocation in /dev/shm, so accesses cannot raise
 * SIGBUS. ENOSPC: /dev/shm is full. *window_base and *window_size receive a surrounding range that
 * is populated too. */
int memory_populate(const struct extent *extent, uint64_t address, uint64_t size,
                    uint64_t *window_base, uint64_t *window_size);

#endif
