#include "internal.h"

#include <stdlib.h>

struct chunk {
    struct chunk *next;
    _Alignas(16) unsigned char bytes[];
};

struct arena {
    struct chunk *chunks;
    size_t used, size; /* of the newest chunk */
};

enum { CHUNK_BYTES = 64 * 1024 };

struct arena *arena_new(void) { return calloc(1, sizeof(struct arena)); }

void *arena_alloc(struct arena *arena, size_t size) {
    if (size > SIZE_MAX / 4) return NULL;
    size = (size + 15) & ~(size_t)15;
    if (!arena->chunks || arena->size - arena->used < size) {
        size_t want = size > CHUNK_BYTES ? size : CHUNK_BYTES;
        struct chunk *chunk = calloc(1, sizeof *chunk + want);
        if (!chunk) return NULL;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
        arena->used = 0;
        arena->size = want;
    }
    void *memory = arena->chunks->bytes + arena->used;
    arena->used += size;
    return memory;
}

void arena_free(struct arena *arena) {
    if (!arena) return;
    for (struct chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(arena);
}
