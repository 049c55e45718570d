/* The contents of a session's memory. Several pieces are on their way at a time: while one is sent,
 * the card writes the next ones, and at the target the card reads the last ones while more come.
 */
#include "executor/session/session.h"

#include <stdio.h>

#include "executor/moves/moves.h"

#define SLOTS 4 /* of MOVED_PART_BYTES each, in pinned memory */
#define SLOT_BYTES (MOVED_PART_BYTES)

static struct {
    uint8_t *pages; /* NULL: the driver gives none */
    uint64_t context;
    struct slot {
        struct moved_data data;
        CUevent done; /* behind the copy; NULL: the slot is free */
    } slots[SLOTS];
    unsigned next;
    CUresult failed; /* the first copy that did */
} pipe;

static uint8_t *bytes_of(const struct slot *slot) {
    return pipe.pages + (size_t)(slot - pipe.slots) * SLOT_BYTES;
}

/* Returns what the first copy has failed with, of all that were waited for. */
static CUresult await(struct slot *slot) {
    if (slot->done == NULL) return pipe.failed;
    CUresult result = DRIVER(cuEventSynchronize, CUevent)(slot->done);
    DRIVER(cuEventDestroy_v2, CUevent)(slot->done);
    slot->done = NULL;
    if (pipe.failed == CUDA_SUCCESS) pipe.failed = result;
    return pipe.failed;
}

/* Says that the slot's copy has begun in the current context. */
static CUresult begun(struct slot *slot) {
    CUresult result =
        DRIVER(cuEventCreate, CUevent *, unsigned)(&slot->done, CU_EVENT_DISABLE_TIMING);
    if (result != CUDA_SUCCESS) slot->done = NULL;
    return result == CUDA_SUCCESS
               ? DRIVER(cuEventRecord, CUevent, CUstream)(slot->done, CU_STREAM_PER_THREAD)
               : result;
}

static CUresult open_pipe(void) {
    if (pipe.pages != NULL) return CUDA_SUCCESS;
    pipe.next = 0;
    void *pages = NULL;
    CUresult result = DRIVER(cuMemHostAlloc, void **, size_t, unsigned)(&pages, SLOTS * SLOT_BYTES,
                                                                        CU_MEMHOSTALLOC_PORTABLE);
    if (result == CUDA_SUCCESS) pipe.pages = pages;
    return result;
}

static CUresult close_pipe(void) {
    for (unsigned i = 0; i < SLOTS; i++) await(&pipe.slots[i]);
    CUresult result = pipe.failed;
    pipe.failed = CUDA_SUCCESS;
    if (pipe.pages != NULL) DRIVER(cuMemFreeHost, void *)(pipe.pages);
    pipe.pages = NULL;
    return result;
}

/* ---- the source ---- */

static CUresult send(struct moved_stream *to, struct slot *slot) {
    bool full = slot->done != NULL;
    CUresult result = await(slot);
    if (full && result == CUDA_SUCCESS && !to->bad)
        moved_put(to, PART_DATA, &slot->data, sizeof slot->data, bytes_of(slot), slot->data.bytes);
    return result;
}

/* Sends the oldest piece, and has the card write this one in its place. */
static CUresult read_piece(struct moved_stream *to, uint64_t address, uint64_t bytes) {
    struct slot *slot = &pipe.slots[pipe.next++ % SLOTS];
    CUresult result = send(to, slot);
    slot->data = (struct moved_data){address, bytes};
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t,
                        CUstream)(bytes_of(slot), address, bytes, CU_STREAM_PER_THREAD);
    return result == CUDA_SUCCESS ? begun(slot) : result;
}

bool memory_put(struct moved_stream *to, char *why) {
    uint32_t count = arena_state().mappings;
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = 0; i < count && result == CUDA_SUCCESS && !to->bad; i++) {
        const struct arena_mapping *mapping = arena_mapping(i);
        driver_enter(mapping->context);
        result = open_pipe();
        for (uint64_t at = 0; at < mapping->bytes && result == CUDA_SUCCESS && !to->bad;) {
            uint64_t left = mapping->bytes - at;
            uint64_t bytes = left < MOVED_DATA_BYTES ? left : MOVED_DATA_BYTES;
            result = read_piece(to, mapping->base + at, bytes);
            at += bytes;
        }
    }
    for (unsigned i = 0; i < SLOTS && result == CUDA_SUCCESS; i++)
        result = send(to, &pipe.slots[(pipe.next + i) % SLOTS]);
    CUresult closed = close_pipe();
    if (result == CUDA_SUCCESS) result = closed;
    if (result != CUDA_SUCCESS)
        snprintf(why, MOVES_WHY_BYTES, "the memory cannot be read: error %d", (int)result);
    return result == CUDA_SUCCESS;
}

/* ---- the target ---- */

static bool written(CUresult result, char *why) {
    if (result != CUDA_SUCCESS && why[0] == 0)
        snprintf(why, MOVES_WHY_BYTES, "the target cannot write memory: error %d", (int)result);
    return result == CUDA_SUCCESS;
}

bool memory_take(const uint8_t *payload, size_t bytes, char *why) {
    struct moved_data is;
    struct arena_mapping mapping;
    if (bytes < sizeof is) return false;
    memcpy(&is, payload, sizeof is);
    if (is.bytes != bytes - sizeof is || !arena_covers(is.address, is.bytes, &mapping))
        return false;
    driver_enter(mapping.context);
    const uint8_t *from = payload + sizeof is;
    struct slot *slot = &pipe.slots[pipe.next % SLOTS];
    if (pipe.pages == NULL || payload != bytes_of(slot))
        return written(
            DRIVER(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)(is.address, from, is.bytes),
            why);
    CUresult result = DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t,
                             CUstream)(is.address, from, is.bytes, CU_STREAM_PER_THREAD);
    return written(result == CUDA_SUCCESS ? begun(slot) : result, why);
}

uint8_t *memory_room(uint8_t *plain) {
    if (open_pipe() != CUDA_SUCCESS) return plain; /* slower, and nothing else */
    struct slot *slot = &pipe.slots[++pipe.next % SLOTS];
    await(slot); /* memory_taken says how it went */
    return bytes_of(slot);
}

bool memory_taken(char *why) { return written(close_pipe(), why); }
