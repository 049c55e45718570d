/* Memory that libraries are lent: for objects that programs hold in memory of their own, where
 * nothing of a library's must ever be believed, and room that only the library uses. */
#include "executor/libraries/libraries.h"

/* An object stays where it is while it is there. Blocks are kept for the next one. */
struct block {
    struct block *next_free, *next; /* of all that there are */
    _Alignas(16) uint8_t data[LIBRARY_MOST_HELD];
};
static struct block *blocks, *free_blocks;

static bool grow(void) {
    struct block *made = calloc(1, sizeof *made);
    if (made == NULL) return false;
    made->next = blocks;
    blocks = free_blocks = made;
    return true;
}

void *library_memory(unsigned kind, uint64_t handle) {
    CUresult unknown = CUDA_SUCCESS;
    uint64_t there = handle_value(kind, handle, &unknown);
    if (unknown == CUDA_SUCCESS) return (void *)(uintptr_t)there;
    if (free_blocks == NULL && !grow()) return NULL;
    memset(free_blocks->data, 0, sizeof free_blocks->data);
    return free_blocks->data;
}

void library_hold(struct task *task, unsigned kind, uint64_t handle, void *memory) {
    if (free_blocks == NULL || memory != free_blocks->data) return; /* it was there already */
    free_blocks = free_blocks->next_free;
    handle_bind(task, kind, handle, (uint64_t)(uintptr_t)memory);
}

void library_free(void *memory) {
    struct block *block = (struct block *)((uint8_t *)memory - offsetof(struct block, data));
    block->next_free = free_blocks;
    free_blocks = block;
}

/* One for all calls: who used it has waited for the card. */
void *library_scratch(struct task *task, uint64_t bytes) {
    static void *scratch;
    static uint64_t room;
    if (bytes > room && bytes <= LIBRARY_MOST_SCRATCH) {
        void *grown = realloc(scratch, bytes);
        if (grown != NULL) {
            scratch = grown;
            room = bytes;
        }
    }
    if (bytes > room) task->bad = CUDA_ERROR_OUT_OF_MEMORY;
    return bytes == 0 || bytes > room ? NULL : scratch;
}

void library_scratch_end(uint64_t bytes) {
    if (bytes > 0) DRIVER(cuCtxSynchronize, void)();
}
