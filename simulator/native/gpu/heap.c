/* A context's heap, from which its kernels allocate (malloc, new). Source: "Dynamic Global Memory
 * Allocation" in the CUDA C++ Programming Guide: a size that is fixed once a kernel has used it,
 * addresses that are multiples of 16, and contents that stay until any kernel frees them.
 *
 * The limit has charged the card for the memory. Bits say which units of 16 bytes are in use. They
 * are outside the heap, so a kernel that writes beyond its block cannot change them.
 */
#include "engine.h"

#include <stdlib.h>

#define UNIT 16u

struct heap { /* under its lock */
    pthread_mutex_t lock;
    void *memory;
    uint64_t units, cursor;  /* the search starts behind the last block */
    uint64_t *used, *starts; /* a bit per unit: in a block; the first of a block */
};

static bool bit(const uint64_t *bits, uint64_t at) { return bits[at / 64] >> at % 64 & 1; }
static void flip(uint64_t *bits, uint64_t at) { bits[at / 64] ^= UINT64_C(1) << at % 64; }

static void heap_free(struct heap *heap) {
    if (!heap) return;
    if (heap->memory) memory_host_free(heap->memory, EXTENT_PINNED, NULL);
    free(heap->used);
    free(heap->starts);
    free(heap);
}

static struct heap *heap_new(struct context *context) {
    struct heap *heap = calloc(1, sizeof *heap);
    if (!heap) return NULL;
    heap->units = context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] / UNIT;
    heap->used = calloc(heap->units / 64 + 1, sizeof *heap->used);
    heap->starts = calloc(heap->units / 64 + 1, sizeof *heap->starts);
    bool made = heap->used && heap->starts &&
                memory_host_alloc(heap->units * UNIT + UNIT, EXTENT_PINNED, 0, context,
                                  &heap->memory) == 0; /* uses memory when touched */
    if (!made) {
        heap_free(heap);
        return NULL;
    }
    pthread_mutex_init(&heap->lock, NULL);
    return heap;
}

CUresult heap_prepare(struct context *context) {
    if (atomic_load_explicit(&context->heap, memory_order_acquire)) return CUDA_SUCCESS;
    pthread_mutex_lock(&context->lock);
    if (!atomic_load(&context->heap))
        atomic_store_explicit(&context->heap, heap_new(context), memory_order_release);
    bool ready = atomic_load(&context->heap) != NULL;
    pthread_mutex_unlock(&context->lock);
    return ready ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Return the first of `count` free units from `from` on, before `end`, at a multiple of `align`; or
 * `end`. */
static uint64_t find_units(const struct heap *heap, uint64_t from, uint64_t end, uint64_t count,
                           uint64_t align) {
    uint64_t free_units = 0;
    for (uint64_t at = (from + align - 1) & ~(align - 1); at + count <= end;) {
        while (free_units < count && !bit(heap->used, at + free_units)) free_units++;
        if (free_units == count) return at;
        at = (at + free_units + align) & ~(align - 1);
        free_units = 0;
    }
    return end;
}

static uint64_t allocate(void *argument, uint64_t size, uint64_t align) {
    struct context *context = argument;
    struct heap *heap = atomic_load(&context->heap);
    uint64_t count = size / UNIT + (size % UNIT || !size), apart = align > UNIT ? align / UNIT : 1;
    if (count > heap->units || align > 4096) return 0; /* the memory starts at a page */
    pthread_mutex_lock(&heap->lock);
    uint64_t at = find_units(heap, heap->cursor, heap->units, count, apart);
    if (at == heap->units) at = find_units(heap, 0, heap->units, count, apart);
    bool found = at != heap->units;
    for (uint64_t i = 0; found && i < count; i++) flip(heap->used, at + i);
    if (found) {
        flip(heap->starts, at);
        heap->cursor = at + count;
    }
    pthread_mutex_unlock(&heap->lock);
    return found ? (uint64_t)(uintptr_t)heap->memory + at * UNIT : 0;
}

static bool release(void *argument, uint64_t address) {
    struct context *context = argument;
    struct heap *heap = atomic_load(&context->heap);
    uint64_t offset = address - (uint64_t)(uintptr_t)heap->memory, at = offset / UNIT;
    if (offset % UNIT || at >= heap->units) return false;
    pthread_mutex_lock(&heap->lock);
    bool allocated = bit(heap->starts, at);
    if (allocated) {
        flip(heap->starts, at);
        do flip(heap->used, at++);
        while (at < heap->units && bit(heap->used, at) && !bit(heap->starts, at));
    }
    pthread_mutex_unlock(&heap->lock);
    return allocated;
}

const egpu_ptx_heap heap_calls = {allocate, release};

void heap_context_gone(struct context *context) {
    heap_free(atomic_exchange(&context->heap, NULL));
}
