/* Output of a context's kernels that was not written yet. Source: "Formatted Output" in the CUDA
 * C++ Programming Guide: a ring of a fixed size, which loses its oldest entries if more is printed
 * than fits, and which is written when the host synchronises.
 *
 * A thread's call is one entry: its length, then its text. Entries are lost whole.
 */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ON_ERROR (UINT32_C(1) << 31) /* in an entry's length: text of a failed assertion */

struct printed { /* under the context's print_lock */
    size_t size;
    uint64_t head, tail; /* bounds of its contents; bytes since the start */
    char bytes[];
};

CUresult print_prepare(struct context *context) {
    if (atomic_load_explicit(&context->printed, memory_order_acquire)) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&context->print_lock);
    if (!atomic_load(&context->printed)) {
        size_t size = context->limits[CU_LIMIT_PRINTF_FIFO_SIZE];
        struct printed *ring = NULL;
        if (size <= SIZE_MAX / 2) ring = malloc(sizeof *ring + size); /* uses memory when touched */
        if (ring) {
            ring->size = size;
            ring->head = ring->tail = 0;
            atomic_store_explicit(&context->printed, ring, memory_order_release);
        } else
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&context->print_lock);
    return result;
}

static void put(struct printed *ring, const void *from, size_t count) {
    size_t at = (size_t)(ring->tail % ring->size), first = ring->size - at;
    if (first > count) first = count;
    memcpy(ring->bytes + at, from, first);
    memcpy(ring->bytes, (const char *)from + first, count - first);
    ring->tail += count;
}

static uint32_t length_at(const struct printed *ring, uint64_t position) {
    unsigned char bytes[sizeof(uint32_t)];
    uint32_t length;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)ring->bytes[(position + i) % ring->size];
    memcpy(&length, bytes, sizeof length);
    return length;
}

bool print_text(void *argument, const char *text, size_t length, bool error) {
    struct context *context = argument;
    uint32_t head = (uint32_t)length | (error ? ON_ERROR : 0);
    size_t whole = sizeof head + length;
    pthread_mutex_lock(&context->print_lock);
    struct printed *ring = atomic_load(&context->printed);
    bool fits = ring && whole <= ring->size;
    if (fits && length) {
        while (ring->size - (ring->tail - ring->head) < whole)
            ring->head += sizeof head + (length_at(ring, ring->head) & ~ON_ERROR);
        put(ring, &head, sizeof head);
        put(ring, text, length);
    }
    pthread_mutex_unlock(&context->print_lock);
    return fits;
}

/* Write the oldest entry to its stream. */
static void show_one(struct printed *ring) {
    uint32_t head = length_at(ring, ring->head), length = head & ~ON_ERROR;
    FILE *to = head & ON_ERROR ? stderr : stdout;
    ring->head += sizeof head;
    size_t at = (size_t)(ring->head % ring->size), first = ring->size - at;
    if (first > length) first = length;
    fwrite(ring->bytes + at, 1, first, to);
    fwrite(ring->bytes, 1, length - first, to);
    ring->head += length;
}

/* No thread prints until this is done, so the output stays in order. */
void print_flush(struct context *context) {
    if (!atomic_load_explicit(&context->printed, memory_order_acquire)) return;
    pthread_mutex_lock(&context->print_lock);
    struct printed *ring = atomic_load(&context->printed);
    bool any = ring && ring->head < ring->tail;
    while (ring && ring->head < ring->tail) show_one(ring);
    if (any) fflush(stdout);
    pthread_mutex_unlock(&context->print_lock);
}

void print_context_gone(struct context *context) {
    pthread_mutex_lock(&context->print_lock);
    free(atomic_exchange(&context->printed, NULL));
    pthread_mutex_unlock(&context->print_lock);
}
