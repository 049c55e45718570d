/* The contents of a session's memory. Several pieces are on their way at a time: while one is sent,
 * the card writes the next ones, and at the target the card reads the last ones while more come.
 *
 * A session's memory is sent once before it stops, as it is then. When it has stopped, each piece
 * is read again, and is sent again if it has another digest. So a pause takes as long as reading
 * all memory, and as moving what has changed since.
 */
#include "executor/session/session.h"

#include <stdio.h>

#include "executor/moves/mappings.h"

#define SLOTS 4 /* of MOVED_PART_BYTES each, in pinned memory */
#define SLOT_BYTES (MOVED_PART_BYTES)
#define PIECE_MS 1000 /* a longer call is not waited for: its session's memory moves later */

static struct {
    uint8_t *pages; /* NULL: the driver gives none */
    uint64_t context;
    struct slot {
        struct moved_data data;
        const struct piece *sent; /* ahead, of the same mapping; or NULL */
        CUevent done;             /* behind the copy; NULL: the slot is free */
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

/* ---- the source, before the session stops ---- */

static struct piece {
    struct arena_mapping of;
    uint64_t at, bytes, lanes[MOVED_LANES];
} *pieces;
static uint32_t piece_count, piece_room;

void memory_forget(void) {
    free(pieces);
    pieces = NULL;
    piece_count = piece_room = 0;
}

static const struct piece *piece_sent(const struct arena_mapping *of, uint64_t at) {
    uint32_t low = 0, high = piece_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (pieces[middle].of.base + pieces[middle].at < of->base + at)
            low = middle + 1;
        else
            high = middle;
    }
    const struct piece *found = low < piece_count ? &pieces[low] : NULL;
    return found != NULL && found->at == at && mapping_same(&found->of, of) ? found : NULL;
}

static uint64_t piece_bytes(const struct arena_mapping *of, uint64_t at) {
    return of->bytes - at < MOVED_DATA_BYTES ? of->bytes - at : MOVED_DATA_BYTES;
}

/* Beside the work of the program, which the copy does not wait for. */
static bool copy_beside(const struct piece *piece, uint8_t *to) {
    CUstream beside = NULL;
    driver_enter(piece->of.context);
    bool good = DRIVER(cuStreamCreate, CUstream *, unsigned)(&beside, CU_STREAM_NON_BLOCKING) ==
                CUDA_SUCCESS;
    good = good && DRIVER(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t, CUstream)(
                       to, piece->of.base + piece->at, piece->bytes, beside) == CUDA_SUCCESS;
    good = good && DRIVER(cuStreamSynchronize, CUstream)(beside) == CUDA_SUCCESS;
    if (beside != NULL) DRIVER(cuStreamDestroy_v2, CUstream)(beside);
    driver_leave();
    return good;
}

/* No call runs meanwhile, and the mapping stays. */
static bool copy_ahead(const struct piece *piece, uint8_t *to, bool *pauses) {
    *pauses = gate_pause(PIECE_MS);
    if (!*pauses) return false;
    bool good = arena_hold(&piece->of);
    if (good) {
        good = copy_beside(piece, to);
        arena_give();
    }
    gate_open();
    return good;
}

bool memory_put_ahead(struct moved_stream *to, const struct arena_mapping *mapping) {
    uint8_t *stage = malloc(MOVED_DATA_BYTES);
    bool good = stage != NULL, pauses = true;
    for (uint64_t at = 0; good && at < mapping->bytes && !to->bad;) {
        struct piece piece = {*mapping, at, piece_bytes(mapping, at), {0}};
        struct moved_data data = {mapping->base + at, piece.bytes};
        good = moves_grow((void **)&pieces, piece_count, &piece_room, sizeof *pieces) &&
               copy_ahead(&piece, stage, &pauses);
        if (!good) break;
        moved_digest(stage, piece.bytes, piece.lanes);
        moved_put(to, PART_DATA, &data, sizeof data, stage, piece.bytes);
        pieces[piece_count++] = piece;
        at += piece.bytes;
    }
    free(stage);
    return pauses;
}

/* ---- the source ---- */

static bool is_there(const struct slot *slot) {
    uint64_t lanes[MOVED_LANES];
    if (slot->sent == NULL) return false;
    moved_digest(bytes_of(slot), slot->data.bytes, lanes);
    return memcmp(lanes, slot->sent->lanes, sizeof lanes) == 0;
}

static CUresult send(struct moved_stream *to, struct slot *slot) {
    bool full = slot->done != NULL;
    CUresult result = await(slot);
    if (!full || result != CUDA_SUCCESS || to->bad) return result;
    if (is_there(slot))
        moved_put(to, PART_SAME, &slot->data, sizeof slot->data, NULL, 0);
    else
        moved_put(to, PART_DATA, &slot->data, sizeof slot->data, bytes_of(slot), slot->data.bytes);
    return result;
}

/* Sends the oldest piece, and has the card write this one in its place. */
static CUresult read_piece(struct moved_stream *to, const struct arena_mapping *of, uint64_t at) {
    struct slot *slot = &pipe.slots[pipe.next++ % SLOTS];
    CUresult result = send(to, slot);
    uint64_t address = of->base + at, bytes = piece_bytes(of, at);
    slot->data = (struct moved_data){address, bytes};
    slot->sent = piece_sent(of, at);
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
            result = read_piece(to, mapping, at);
            at += piece_bytes(mapping, at);
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

static bool enter_ahead(const struct arena_mapping *mapping, char *why) {
    bool good = contexts_enter((unsigned)mapping->device);
    if (!good) snprintf(why, MOVES_WHY_BYTES, "the target has no context of the card");
    return good;
}

bool memory_take_same(const uint8_t *payload, size_t bytes, char *why) {
    struct moved_data is;
    if (bytes != sizeof is) return false;
    memcpy(&is, payload, sizeof is);
    bool filled = mapping_filled(is.address, is.bytes);
    if (!filled) snprintf(why, MOVES_WHY_BYTES, "the target has not kept the memory");
    return filled;
}

bool memory_take(const uint8_t *payload, size_t bytes, bool ahead, char *why) {
    struct moved_data is;
    struct arena_mapping mapping;
    if (bytes < sizeof is) return false;
    memcpy(&is, payload, sizeof is);
    if (is.bytes != bytes - sizeof is ||
        !(ahead ? mapping_fill : arena_covers)(is.address, is.bytes, &mapping))
        return false;
    if (!ahead)
        driver_enter(mapping.context);
    else if (!enter_ahead(&mapping, why))
        return false;
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
