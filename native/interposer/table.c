/* Which pointer, handle or mapping holds how many bytes: open addressing in shards, constant time
 * at any size. */
#include "interposer.h"

#include <stdlib.h>

enum { SHARDS = 64, FIRST_CAPACITY = 64 };

static struct shard {
    egpu_lock lock;
    uint32_t capacity, count; /* capacity: a power of two, at most three quarters used */
    struct holding *entries;  /* references == 0: empty */
    uint64_t bytes;           /* that entries are charged, but for pools and graphs */
} __attribute__((aligned(64))) shards[SHARDS];

void table_forget(void) {
    for (int i = 0; i < SHARDS; i++) {
        shards[i].lock.word = 0;
        shards[i].count = 0;
        /* The entries may have been half-moved by another thread when the parent forked: leave them
         * behind. */
        shards[i].entries = NULL;
        shards[i].capacity = 0;
        shards[i].bytes = 0;
    }
}

static uint64_t hash_of(uint8_t kind, uint64_t key) {
    uint64_t hash = (key ^ (uint64_t)kind << 60) * 0x9E3779B97F4A7C15ull;
    return hash ^ hash >> 32;
}

static struct shard *shard_of(uint64_t hash) { return &shards[hash >> 58]; }

static void place(struct shard *shard, const struct holding *holding, uint64_t hash) {
    uint32_t mask = shard->capacity - 1, at = (uint32_t)hash & mask;
    while (shard->entries[at].references != 0) at = (at + 1) & mask;
    shard->entries[at] = *holding;
}

/* Adds what an entry is charged for to the shard's sum, or takes it off. */
static void sum(struct shard *shard, const struct holding *entry, bool comes) {
    static const uint32_t charged = HOLDINGS_OF_CONTEXT | 1u << HOLDING_HANDLE;
    if ((charged >> entry->kind & 1) == 0 || entry->class == EGPU_MEMORY_POOL || entry->device < 0)
        return;
    shard->bytes += comes ? entry->bytes : -entry->bytes;
}

static bool grow(struct shard *shard) {
    uint32_t old_capacity = shard->capacity,
             capacity = old_capacity == 0 ? FIRST_CAPACITY : old_capacity * 2;
    struct holding *old = shard->entries, *entries = calloc(capacity, sizeof *entries);
    if (entries == NULL) return false;
    shard->entries = entries;
    shard->capacity = capacity;
    for (uint32_t i = 0; i < old_capacity; i++)
        if (old[i].references != 0) place(shard, &old[i], hash_of(old[i].kind, old[i].key));
    free(old);
    return true;
}

bool table_add(const struct holding *holding) {
    uint64_t hash = hash_of(holding->kind, holding->key);
    struct shard *shard = shard_of(hash);
    lock_take(&shard->lock);
    bool room = (shard->count + 1) * 4 <= shard->capacity * 3 || grow(shard);
    if (room) {
        place(shard, holding, hash);
        sum(shard, holding, true);
        shard->count++;
    }
    lock_drop(&shard->lock);
    return room;
}

static const uint64_t ANY_OWNER = UINT64_MAX;

static struct holding *find_owned(const struct shard *shard, uint8_t kind, uint64_t key,
                                  uint64_t owner, uint64_t hash) {
    if (shard->count == 0) return NULL;
    uint32_t mask = shard->capacity - 1;
    for (uint32_t at = (uint32_t)hash & mask; shard->entries[at].references != 0;
         at = (at + 1) & mask)
        if (shard->entries[at].key == key && shard->entries[at].kind == kind &&
            (owner == ANY_OWNER || shard->entries[at].owner == owner))
            return &shard->entries[at];
    return NULL;
}

static struct holding *find(const struct shard *shard, uint8_t kind, uint64_t key, uint64_t hash) {
    return find_owned(shard, kind, key, ANY_OWNER, hash);
}

/* Closes the gap by moving back whatever probed past it, so that no tombstones gather. */
static void remove_at(struct shard *shard, struct holding *entry) {
    sum(shard, entry, false);
    uint32_t mask = shard->capacity - 1, gap = (uint32_t)(entry - shard->entries), at = gap;
    for (;;) {
        at = (at + 1) & mask;
        struct holding *next = &shard->entries[at];
        if (next->references == 0) break;
        uint32_t home = (uint32_t)hash_of(next->kind, next->key) & mask;
        if (((at - home) & mask) >= ((at - gap) & mask)) {
            shard->entries[gap] = *next;
            gap = at;
        }
    }
    shard->entries[gap].references = 0;
    shard->count--;
}

bool table_take(enum holding_kind kind, uint64_t key, struct holding *out) {
    uint64_t hash = hash_of((uint8_t)kind, key);
    struct shard *shard = shard_of(hash);
    lock_take(&shard->lock);
    struct holding *entry = find(shard, (uint8_t)kind, key, hash);
    if (entry != NULL) {
        *out = *entry;
        remove_at(shard, entry);
    }
    lock_drop(&shard->lock);
    return entry != NULL;
}

bool table_look(enum holding_kind kind, uint64_t key, struct holding *out) {
    return table_look_owned(kind, key, ANY_OWNER, out);
}

bool table_look_owned(enum holding_kind kind, uint64_t key, uint64_t owner, struct holding *out) {
    uint64_t hash = hash_of((uint8_t)kind, key);
    struct shard *shard = shard_of(hash);
    lock_take(&shard->lock);
    const struct holding *entry = find_owned(shard, (uint8_t)kind, key, owner, hash);
    if (entry != NULL) *out = *entry;
    lock_drop(&shard->lock);
    return entry != NULL;
}

bool table_refer(uint64_t handle, int change, struct holding *out) {
    uint64_t hash = hash_of(HOLDING_HANDLE, handle);
    struct shard *shard = shard_of(hash);
    lock_take(&shard->lock);
    struct holding *entry = find(shard, HOLDING_HANDLE, handle, hash);
    if (entry != NULL) {
        *out = *entry;
        out->references += (uint32_t)change;
        if (out->references == 0)
            remove_at(shard, entry);
        else
            entry->references = out->references;
    }
    lock_drop(&shard->lock);
    return entry != NULL;
}

static bool keep(struct holdings *holdings, const struct holding *one) {
    if (holdings->count == holdings->room) {
        unsigned room = holdings->room == 0 ? FIRST_CAPACITY : holdings->room * 2;
        struct holding *list = realloc(holdings->list, room * sizeof *list);
        if (list == NULL) return false;
        holdings->list = list;
        holdings->room = room;
    }
    holdings->list[holdings->count++] = *one;
    return true;
}

void table_take_owned(uint64_t owner, uint32_t kinds, struct holdings *out) {
    for (int i = 0; i < SHARDS; i++) {
        struct shard *shard = &shards[i];
        lock_take(&shard->lock);
        for (uint32_t at = 0; at < shard->capacity;) {
            const struct holding *entry = &shard->entries[at];
            if (entry->references == 0 || (kinds >> entry->kind & 1) == 0 ||
                entry->owner != owner || !keep(out, entry))
                at++;
            else /* another entry may move here: look again */
                remove_at(shard, &shard->entries[at]);
        }
        lock_drop(&shard->lock);
    }
}

void table_take_key(enum holding_kind kind, uint64_t key, struct holdings *out) {
    struct holding one;
    while (table_take(kind, key, &one)) {
        if (keep(out, &one)) continue;
        table_add(&one);
        return;
    }
}

void table_put_back(struct holdings *holdings) {
    for (unsigned i = 0; i < holdings->count; i++) table_add(&holdings->list[i]);
    free(holdings->list);
}

uint64_t table_bytes(void) {
    uint64_t bytes = 0;
    for (int i = 0; i < SHARDS; i++) {
        lock_take(&shards[i].lock);
        bytes += shards[i].bytes;
        lock_drop(&shards[i].lock);
    }
    return bytes;
}
