/* Pinned memory for copies of graphs whose host memory only the client has: before or after the
 * copy a call of the client's moves the data. */
#include "executor/executor.h"

#include <pthread.h>

static struct {
    uint8_t *pages;
    uint64_t bytes;
} rooms[WIRE_ROOMS];
static uint64_t rooms_made, room_bytes; /* by the serving thread alone */

uint8_t *room_of(uint64_t room, uint64_t bytes) {
    return room - 1 < rooms_made && bytes <= rooms[room - 1].bytes ? rooms[room - 1].pages : NULL;
}

CUresult room_make(struct task *task) {
    struct wire_room message;
    if (!begins(task, &message, sizeof message, false) || task->in.left || message.bytes == 0)
        return violation(task);
    if (rooms_made == WIRE_ROOMS || message.bytes > WIRE_ROOM_BYTES - room_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *pages = NULL;
    CUresult result = DRIVER(cuMemHostAlloc, void **, size_t, unsigned)(&pages, message.bytes, 0);
    if (result != CUDA_SUCCESS) return result;
    memset(pages, 0, message.bytes);
    room_bytes += message.bytes;
    rooms[rooms_made].pages = pages;
    rooms[rooms_made].bytes = message.bytes;
    put_word(&task->out, ++rooms_made);
    return CUDA_SUCCESS;
}

static uint8_t *part(struct task *task, bool has_data, struct wire_room_part *is) {
    if (!begins(task, is, sizeof *is, has_data) || task->in.left || is->bytes > WIRE_MAX_BULK ||
        is->offset > WIRE_ROOM_BYTES || (has_data && task->data_bytes != padded(is->bytes))) {
        violation(task);
        return NULL;
    }
    uint8_t *pages = room_of(is->room, is->offset + is->bytes);
    return pages == NULL ? NULL : pages + is->offset;
}

CUresult room_in(struct task *task) {
    struct wire_room_part is;
    uint8_t *to = part(task, true, &is);
    if (to == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(to, task->data, is.bytes);
    return CUDA_SUCCESS;
}

CUresult room_out(struct task *task) {
    struct wire_room_part is;
    const uint8_t *from = part(task, false, &is);
    if (from == NULL) return CUDA_ERROR_INVALID_VALUE;
    uint8_t *to = room_for_data(task, padded(is.bytes));
    if (to == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(to, 0, padded(is.bytes));
    memcpy(to, from, is.bytes);
    return CUDA_SUCCESS;
}
