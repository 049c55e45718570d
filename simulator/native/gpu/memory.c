#include "memory.h"
#include "physical.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define POOL_STEP (32u << 20) /* bytes that a pool grows by */
#define GRANULE_SHIFT 17      /* 128 KiB: populated at once */
#define GRANULES_PER_CHUNK (1u << (SIM_CHUNK_SHIFT - GRANULE_SHIFT))
#define ALL_GRANULES ((1u << GRANULES_PER_CHUNK) - 1)

struct block {
    struct memory *memory;
    struct block *next, *previous;                 /* of memory->blocks */
    struct block *next_partial, *previous_partial; /* of memory->partial[] */
    struct block *next_placed, *previous_placed;   /* of `placed` */
    uint64_t base;
    uint64_t size; /* as requested; a slab's is its chunk */
    void *pool;    /* of the one allocation */
    struct physical *physical;
    uint32_t chunk_count;
    enum block_kind kind;
    uint32_t access;            /* BLOCK_MAPPED: bit per ordinal with access */
    _Atomic uint32_t *granules; /* per chunk: which of its 16 granules are populated */
    _Atomic uint32_t full_chunks;
    /* slabs */
    int slab_class; /* -1: a single allocation */
    uint32_t slot_count;
    uint32_t free_count;
    uint32_t *slot_size; /* as requested; 0 free */
    uint16_t *free_slots;
    void **slot_pool; /* NULL until a slot is counted in a pool */
};

/* ---- which block holds an address: two levels over 47 address bits, lock-free to read ---- */

#define LEAF_BITS 13
#define LEAF_SIZE (1u << LEAF_BITS)

typedef _Atomic(struct block *) leaf_cell;
static _Atomic(leaf_cell *) directory[LEAF_SIZE];

static leaf_cell *directory_cell(uint64_t address, bool create) {
    uint64_t page = address >> SIM_CHUNK_SHIFT;
    if (page >> (2 * LEAF_BITS)) return NULL;
    _Atomic(leaf_cell *) *root = &directory[page >> LEAF_BITS];
    leaf_cell *leaf = atomic_load_explicit(root, memory_order_acquire);
    if (!leaf && create) {
        leaf_cell *fresh = calloc(LEAF_SIZE, sizeof *fresh);
        if (!fresh) return NULL;
        if (atomic_compare_exchange_strong(root, &leaf, fresh))
            leaf = fresh;
        else
            free(fresh);
    }
    return leaf ? &leaf[page & (LEAF_SIZE - 1)] : NULL;
}

static void directory_clear(const struct block *block, uint32_t chunks) {
    for (uint32_t i = 0; i < chunks; i++) {
        leaf_cell *cell = directory_cell(block->base + i * SIM_CHUNK_BYTES, false);
        if (cell) atomic_store_explicit(cell, NULL, memory_order_release);
    }
}

static bool directory_set(struct block *block) {
    for (uint32_t i = 0; i < block->chunk_count; i++) {
        leaf_cell *cell = directory_cell(block->base + i * SIM_CHUNK_BYTES, true);
        if (!cell) {
            directory_clear(block, i);
            return false;
        }
        atomic_store_explicit(cell, block, memory_order_release);
    }
    return true;
}

/* ---- blocks ---- */

static void link_block(struct block *block) {
    struct memory *memory = block->memory;
    block->previous = NULL;
    block->next = memory->blocks;
    if (block->next) block->next->previous = block;
    memory->blocks = block;
}

static void unlink_block(struct block *block) {
    if (block->previous)
        block->previous->next = block->next;
    else
        block->memory->blocks = block->next;
    if (block->next) block->next->previous = block->previous;
}

/* All blocks with an address, also those that a pool keeps. */
static pthread_mutex_t placed_lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *placed;

static void link_placed(struct block *block) {
    pthread_mutex_lock(&placed_lock);
    block->next_placed = placed;
    if (placed) placed->previous_placed = block;
    placed = block;
    pthread_mutex_unlock(&placed_lock);
}

static void unlink_placed(const struct block *block) {
    pthread_mutex_lock(&placed_lock);
    if (block->previous_placed)
        block->previous_placed->next_placed = block->next_placed;
    else
        placed = block->next_placed;
    if (block->next_placed) block->next_placed->previous_placed = block->previous_placed;
    pthread_mutex_unlock(&placed_lock);
}

static void destroy_block(struct block *block) {
    uint64_t bytes = (uint64_t)block->chunk_count * SIM_CHUNK_BYTES;
    if (block->base) {
        unlink_placed(block);
        directory_clear(block, block->chunk_count);
        if (block->kind == BLOCK_MAPPED || block->kind == BLOCK_GRAPH)
            address_clear(block->base, bytes);
        else
            address_release(block->base, bytes);
    }
    if (block->memory->reserved) atomic_fetch_sub(block->memory->reserved, bytes);
    physical_release(block->physical);
    free((void *)block->granules);
    free(block->slot_size);
    free(block->free_slots);
    free(block->slot_pool);
    free(block);
}

static struct block *new_block(struct memory *memory, struct physical *physical, uint64_t size,
                               enum block_kind kind) {
    struct block *block = calloc(1, sizeof *block);
    if (!block) return NULL;
    block->memory = memory;
    block->size = size;
    block->slab_class = -1;
    block->kind = kind;
    block->physical = physical;
    block->chunk_count = physical->chunk_count;
    if (memory->reserved) {
        uint64_t bytes = (uint64_t)block->chunk_count * SIM_CHUNK_BYTES;
        uint64_t now = atomic_fetch_add(memory->reserved, bytes) + bytes;
        uint64_t high = atomic_load(memory->reserved_high);
        while (now > high && !atomic_compare_exchange_weak(memory->reserved_high, &high, now)) {
        }
    }
    return block;
}

/* Map the block at an address; at a new one if `at` is 0. */
static int place_block(struct block *block, uint64_t at) {
    block->granules = calloc(block->chunk_count, sizeof *block->granules);
    if (!block->granules) return ENOBUFS;
    block->base = at ? at : address_reserve((uint64_t)block->chunk_count * SIM_CHUNK_BYTES, 0, 0);
    if (!block->base) return ENOBUFS;
    link_placed(block);
    int error = physical_map(block->physical, block->base);
    return error ? error : directory_set(block) ? 0 : ENOBUFS;
}

static int create_block(struct memory *memory, uint64_t size, bool mapped, struct block **out) {
    uint64_t chunks = (size >> SIM_CHUNK_SHIFT) + ((size & (SIM_CHUNK_BYTES - 1)) != 0);
    if (chunks > memory->card->chunk_count) return ENOMEM;
    if (memory->limit && atomic_load(memory->reserved) + chunks * SIM_CHUNK_BYTES > memory->limit)
        return ENOMEM;
    struct physical *physical;
    int error = physical_create(memory->machine, memory->card, (uint32_t)chunks, &physical);
    if (error) return error;
    struct block *block = new_block(memory, physical, size, BLOCK_ALLOCATION);
    if (!block) {
        physical_release(physical);
        return ENOBUFS;
    }
    if (mapped && (error = place_block(block, 0)) != 0) {
        destroy_block(block);
        return error;
    }
    link_block(block);
    *out = block;
    return 0;
}

/* ---- blocks kept by a pool ---- */

static void keep_or_destroy(struct block *block) {
    struct memory *memory = block->memory;
    unlink_block(block);
    if (!memory->keep) {
        destroy_block(block);
        return;
    }
    directory_clear(block, block->chunk_count); /* without owner until it is used again */
    block->next = memory->kept;
    memory->kept = block;
}

/* Return the smallest kept block that is large enough, unless half of it would be wasted. */
static struct block *take_kept(struct memory *memory, uint64_t size) {
    uint64_t chunks = (size + SIM_CHUNK_BYTES - 1) >> SIM_CHUNK_SHIFT;
    struct block **best = NULL;
    for (struct block **at = &memory->kept; *at; at = &(*at)->next)
        if ((*at)->chunk_count >= chunks && (*at)->chunk_count <= 2 * chunks &&
            (!best || (*at)->chunk_count < (*best)->chunk_count))
            best = at;
    if (!best) return NULL;
    struct block *block = *best;
    *best = block->next;
    if (!directory_set(block)) {
        destroy_block(block);
        return NULL;
    }
    block->size = size;
    block->pool = NULL;
    link_block(block);
    return block;
}

static void trim_kept(struct memory *memory, uint64_t keep_bytes) {
    while (memory->kept && atomic_load(memory->reserved) > keep_bytes) {
        struct block *block = memory->kept;
        memory->kept = block->next;
        destroy_block(block);
    }
}

static uint64_t blocks_bytes(const struct memory *memory) {
    uint64_t bytes = 0;
    for (const struct block *block = memory->blocks; block; block = block->next)
        if (block != memory->spare) bytes += (uint64_t)block->chunk_count * SIM_CHUNK_BYTES;
    for (const struct block *block = memory->kept; block; block = block->next)
        bytes += (uint64_t)block->chunk_count * SIM_CHUNK_BYTES;
    return bytes;
}

static void drop_spare(struct memory *memory) {
    if (!memory->spare) return;
    unlink_block(memory->spare);
    destroy_block(memory->spare);
    memory->spare = NULL;
}

/* A pool's memory is whole steps, as far as its limit allows. */
static int fill_step(struct memory *memory) {
    drop_spare(memory);
    uint64_t bytes = (POOL_STEP - blocks_bytes(memory) % POOL_STEP) % POOL_STEP;
    uint64_t reserved = atomic_load(memory->reserved);
    if (memory->limit && reserved + bytes > memory->limit)
        bytes = (memory->limit - reserved) / SIM_CHUNK_BYTES * SIM_CHUNK_BYTES;
    return bytes ? create_block(memory, bytes, false, &memory->spare) : 0;
}

void memory_trim(struct memory *memory, uint64_t keep_bytes) {
    pthread_mutex_lock(&memory->lock);
    trim_kept(memory, keep_bytes);
    fill_step(memory);
    pthread_mutex_unlock(&memory->lock);
}

static int grow_pool(struct memory *memory, uint64_t size, struct block **out) {
    drop_spare(memory);
    int error = create_block(memory, size, true, out);
    if (!error && (error = fill_step(memory)) != 0) {
        unlink_block(*out);
        destroy_block(*out);
    }
    if (error) fill_step(memory);
    return error;
}

static int obtain_block(struct memory *memory, uint64_t size, struct block **out) {
    if (!memory->keep) return create_block(memory, size, true, out);
    if ((*out = take_kept(memory, size)) != NULL) return 0;
    int error = grow_pool(memory, size, out);
    if (error == ENOMEM && memory->kept) {
        trim_kept(memory, 0);
        error = grow_pool(memory, size, out);
    }
    return error;
}

/* ---- slabs ---- */

static int class_of(uint64_t size) {
    for (int c = 0; c < SLAB_CLASSES; c++)
        if (size <= UINT64_C(1) << (SLAB_MIN_SHIFT + c)) return c;
    return -1;
}

static void link_partial(struct block *slab) {
    struct block **head = &slab->memory->partial[slab->slab_class];
    slab->previous_partial = NULL;
    slab->next_partial = *head;
    if (*head) (*head)->previous_partial = slab;
    *head = slab;
}

static void unlink_partial(struct block *slab) {
    if (slab->previous_partial)
        slab->previous_partial->next_partial = slab->next_partial;
    else
        slab->memory->partial[slab->slab_class] = slab->next_partial;
    if (slab->next_partial) slab->next_partial->previous_partial = slab->previous_partial;
}

static int create_slab(struct memory *memory, int slab_class, struct block **out) {
    struct block *slab;
    int error = obtain_block(memory, SIM_CHUNK_BYTES, &slab);
    if (error) return error;
    slab->slot_count = (uint32_t)(SIM_CHUNK_BYTES >> (SLAB_MIN_SHIFT + slab_class));
    slab->slot_size = calloc(slab->slot_count, sizeof *slab->slot_size);
    slab->free_slots = malloc(slab->slot_count * sizeof *slab->free_slots);
    if (!slab->slot_size || !slab->free_slots) {
        unlink_block(slab);
        destroy_block(slab);
        return ENOBUFS;
    }
    for (uint32_t i = 0; i < slab->slot_count; i++)
        slab->free_slots[i] = (uint16_t)(slab->slot_count - 1 - i);
    slab->free_count = slab->slot_count;
    slab->slab_class = slab_class;
    link_partial(slab);
    *out = slab;
    return 0;
}

/* ---- the interface ---- */

void memory_init(struct memory *memory, struct machine *machine, struct sim_card *card,
                 void *owner) {
    memset(memory, 0, sizeof *memory);
    memory->machine = machine;
    memory->card = card;
    memory->owner = owner;
    pthread_mutex_init(&memory->lock, NULL);
}

void memory_clear(struct memory *memory) {
    pthread_mutex_lock(&memory->lock);
    while (memory->blocks) {
        struct block *block = memory->blocks;
        unlink_block(block);
        destroy_block(block);
    }
    memset(memory->partial, 0, sizeof memory->partial);
    memory->spare = NULL; /* it was one of the blocks */
    while (memory->kept) {
        struct block *block = memory->kept;
        memory->kept = block->next;
        destroy_block(block);
    }
    pthread_mutex_unlock(&memory->lock);
}

int memory_reserve(struct memory *memory, uint32_t chunks) {
    struct block *block;
    if (chunks == 0) return 0;
    pthread_mutex_lock(&memory->lock);
    int error = create_block(memory, (uint64_t)chunks << SIM_CHUNK_SHIFT, false, &block);
    pthread_mutex_unlock(&memory->lock);
    return error;
}

int memory_hold(struct memory *memory, struct block **held, uint64_t bytes) {
    struct block *before = *held;
    int error = 0;
    pthread_mutex_lock(&memory->lock);
    uint64_t had = before ? before->size : 0;
    if (before) {
        unlink_block(before);
        destroy_block(before);
        *held = NULL;
    }
    if (bytes) error = create_block(memory, bytes, false, held);
    if (error && had && create_block(memory, had, false, held) != 0) *held = NULL;
    pthread_mutex_unlock(&memory->lock);
    return error;
}

int memory_alloc(struct memory *memory, uint64_t size, uint64_t *address) {
    int slab_class = class_of(size);
    struct block *block = NULL;
    int error = 0;
    pthread_mutex_lock(&memory->lock);
    if (slab_class < 0) {
        error = obtain_block(memory, size, &block);
        if (!error) *address = block->base;
    } else {
        block = memory->partial[slab_class];
        if (!block) error = create_slab(memory, slab_class, &block);
        if (!error) {
            uint32_t slot = block->free_slots[--block->free_count];
            block->slot_size[slot] = (uint32_t)size;
            *address = block->base + ((uint64_t)slot << (SLAB_MIN_SHIFT + slab_class));
            if (block->free_count == 0) unlink_partial(block);
        }
    }
    pthread_mutex_unlock(&memory->lock);
    return error;
}

static struct block *block_at(uint64_t address) {
    leaf_cell *cell = directory_cell(address, false);
    return cell ? atomic_load_explicit(cell, memory_order_acquire) : NULL;
}

static void free_slot(struct block *slab, uint32_t slot) {
    slab->slot_size[slot] = 0;
    if (slab->slot_pool) slab->slot_pool[slot] = NULL;
    slab->free_slots[slab->free_count++] = (uint16_t)slot;
    if (slab->free_count == 1) link_partial(slab);
    if (slab->free_count == slab->slot_count) {
        unlink_partial(slab);
        slab->slab_class = -1;
        free(slab->slot_size);
        free(slab->free_slots);
        free(slab->slot_pool);
        slab->slot_size = NULL;
        slab->free_slots = NULL;
        slab->slot_pool = NULL;
        keep_or_destroy(slab);
    }
}

int memory_free(uint64_t address) {
    struct block *block = block_at(address);
    if (!block) return EINVAL;
    struct memory *memory = block->memory;
    int error = 0;
    pthread_mutex_lock(&memory->lock);
    if (block_at(address) != block || block->kind != BLOCK_ALLOCATION) {
        error = EINVAL; /* another thread was faster */
    } else if (block->slab_class < 0) {
        if (address != block->base)
            error = EINVAL;
        else
            keep_or_destroy(block);
    } else {
        uint64_t offset = address - block->base;
        int shift = SLAB_MIN_SHIFT + block->slab_class;
        uint32_t slot = (uint32_t)(offset >> shift);
        if (offset != (uint64_t)slot << shift || block->slot_size[slot] == 0)
            error = EINVAL;
        else
            free_slot(block, slot);
    }
    pthread_mutex_unlock(&memory->lock);
    return error;
}

static bool find_device(uint64_t address, struct extent *extent) {
    struct block *block = block_at(address);
    if (!block) return false;
    *extent = (struct extent){.kind = EXTENT_DEVICE,
                              .base = block->base,
                              .size = block->size,
                              .memory = block->memory,
                              .owner = block->memory->owner,
                              .block = block,
                              .pool = block->pool,
                              .block_kind = block->kind,
                              .access = block->access};
    if (block->slab_class >= 0) {
        int shift = SLAB_MIN_SHIFT + block->slab_class;
        uint32_t slot = (uint32_t)((address - block->base) >> shift);
        extent->base = block->base + ((uint64_t)slot << shift);
        extent->size = block->slot_size[slot];
        extent->pool = block->slot_pool ? block->slot_pool[slot] : NULL;
    }
    return address - extent->base < extent->size;
}

void memory_set_pool(uint64_t address, void *pool) {
    struct block *block = block_at(address);
    pthread_mutex_lock(&block->memory->lock);
    if (block->slab_class < 0)
        block->pool = pool;
    else {
        if (!block->slot_pool)
            block->slot_pool = calloc(block->slot_count, sizeof *block->slot_pool);
        if (block->slot_pool)
            block->slot_pool[(address - block->base) >> (SLAB_MIN_SHIFT + block->slab_class)] =
                pool;
    }
    pthread_mutex_unlock(&block->memory->lock);
}

/* ---- populating ---- */

static bool granule_there(const struct block *block, uint64_t granule) {
    uint32_t bits =
        atomic_load_explicit(&block->granules[granule / GRANULES_PER_CHUNK], memory_order_acquire);
    return bits >> (granule % GRANULES_PER_CHUNK) & 1;
}

static void granule_done(struct block *block, uint64_t granule) {
    uint32_t bit = 1u << (granule % GRANULES_PER_CHUNK);
    uint32_t before = atomic_fetch_or(&block->granules[granule / GRANULES_PER_CHUNK], bit);
    if (!(before & bit) && (before | bit) == ALL_GRANULES) atomic_fetch_add(&block->full_chunks, 1);
}

int memory_populate(const struct extent *extent, uint64_t address, uint64_t size,
                    uint64_t *window_base, uint64_t *window_size) {
    struct block *block = extent->block;
    if (atomic_load_explicit(&block->full_chunks, memory_order_acquire) < block->chunk_count &&
        size) {
        uint64_t first = (address - block->base) >> GRANULE_SHIFT;
        uint64_t last = (address + size - 1 - block->base) >> GRANULE_SHIFT;
        for (uint64_t granule = first; granule <= last;) {
            if (granule_there(block, granule)) {
                granule++;
                continue;
            }
            uint64_t end = granule + 1;
            /* at most 1 GiB per call */
            while (end <= last && !granule_there(block, end) && end - granule < 8192) end++;
            int error = physical_populate(block->physical, granule << GRANULE_SHIFT,
                                          (end - granule) << GRANULE_SHIFT);
            if (error) return error;
            for (; granule < end; granule++) granule_done(block, granule);
        }
        if (window_base && atomic_load(&block->full_chunks) < block->chunk_count) {
            uint64_t low = block->base + (first << GRANULE_SHIFT);
            uint64_t high = block->base + ((last + 1) << GRANULE_SHIFT);
            uint64_t end = extent->base + extent->size;
            *window_base = low > extent->base ? low : extent->base;
            *window_size = (high < end ? high : end) - *window_base;
            return 0;
        }
    }
    if (window_base) {
        *window_base = extent->base;
        *window_size = extent->size;
    }
    return 0;
}

void memory_unmap_all(void) {
    for (struct block *block = placed; block; block = block->next_placed)
        address_clear(block->base, (uint64_t)block->chunk_count * SIM_CHUNK_BYTES);
}

static int populate_again(const struct block *block) {
    for (uint64_t granule = 0; granule < (uint64_t)block->chunk_count * GRANULES_PER_CHUNK;) {
        uint64_t end = granule;
        while (end < (uint64_t)block->chunk_count * GRANULES_PER_CHUNK && granule_there(block, end))
            end++;
        int error = end == granule ? 0
                                   : physical_populate(block->physical, granule << GRANULE_SHIFT,
                                                       (end - granule) << GRANULE_SHIFT);
        if (error) return error;
        granule = end + 1;
    }
    return 0;
}

int memory_map_all(void) {
    int error = 0;
    for (struct block *block = placed; block && !error; block = block->next_placed) {
        error = physical_map(block->physical, block->base);
        if (!error) error = populate_again(block);
    }
    return error;
}

bool memory_find(uint64_t address, struct extent *extent) {
    return find_device(address, extent) || memory_find_host(address, extent);
}

/* ---- memory at addresses of its own ---- */

int memory_map(struct memory *memory, struct physical *physical, uint64_t at, uint64_t size,
               enum block_kind kind, uint64_t *address) {
    struct block *block = new_block(memory, physical, size, kind);
    if (!block) return ENOBUFS;
    physical_retain(physical);
    int error = place_block(block, at);
    pthread_mutex_lock(&memory->lock);
    if (error)
        destroy_block(block);
    else {
        link_block(block);
        *address = block->base;
    }
    pthread_mutex_unlock(&memory->lock);
    return error;
}

int memory_unmap(uint64_t address, enum block_kind kind) {
    struct block *block = block_at(address);
    if (!block) return EINVAL;
    struct memory *memory = block->memory;
    int error = EINVAL;
    pthread_mutex_lock(&memory->lock);
    if (block_at(address) == block && block->kind == kind && block->base == address) {
        unlink_block(block);
        destroy_block(block);
        error = 0;
    }
    pthread_mutex_unlock(&memory->lock);
    return error;
}

void memory_set_access(uint64_t address, unsigned ordinal, bool may) {
    struct block *block = block_at(address);
    if (!block) return;
    if (may)
        block->access |= 1u << ordinal;
    else
        block->access &= ~(1u << ordinal);
}

struct physical *memory_physical(uint64_t address, uint64_t *offset) {
    struct block *block = block_at(address);
    if (!block) return NULL;
    *offset = address - block->base;
    return block->physical;
}
