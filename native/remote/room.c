/* Host memory of graph copies that the executor cannot map. The executor has a room for it; a
 * function of the graph fills the room before the copy, or empties it after. */
#include "client.h"

static struct room {
    const struct link *link;
    const uint8_t *host;
    uint64_t bytes, number;
    struct room *next;
} *rooms;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult make(struct link *link, uint64_t bytes, uint64_t *number) {
    struct call call;
    call_start(&call, OP_ROOM);
    call.link = link;
    const struct wire_room room = {bytes};
    CUresult result = call_begin(&call, sizeof room, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &room, sizeof room);
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS) {
        *number = get_word(&call.in);
        result = call_checked(&call);
    }
    call_end(&call);
    return result;
}

CUresult room_take(struct host_volume *volume) {
    uint64_t bytes = volume->width * volume->rows * volume->slices;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct room *room = rooms;
    while (room != NULL &&
           (room->link != volume->link || room->host != volume->host || room->bytes < bytes))
        room = room->next;
    if (room == NULL && (room = calloc(1, sizeof *room)) == NULL) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && room->number == 0) {
        result = make(volume->link, bytes, &room->number);
        if (result == CUDA_SUCCESS) {
            *room = (struct room){volume->link, volume->host, bytes, room->number, rooms};
            rooms = room;
        } else {
            free(room);
        }
    }
    if (result == CUDA_SUCCESS) volume->room = room->number;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Copy some rows, which are packed in the room. */
static CUresult move(const struct host_volume *volume, uint64_t offset, uint8_t *packed,
                     uint64_t bytes, bool in) {
    struct call call;
    call_start(&call, in ? OP_ROOM_IN : OP_ROOM_OUT);
    call.link = volume->link;
    if (!in) call.asked_bytes = bytes;
    const struct wire_room_part part = {volume->room, offset, bytes};
    CUresult result = call_begin(&call, sizeof part + (in ? padded(bytes) : 0), CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &part, sizeof part);
    if (in) put_bytes(&call.out, packed, bytes);
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS && !in) {
        get_bytes(&call.in, packed, bytes);
        result = call_checked(&call);
    }
    call_end(&call);
    return result;
}

#define PIECE (128u << 10) /* per call */

/* All rows of all slices; long rows in pieces. An error here means that the lease is lost. */
static void each_row(const struct host_volume *volume, bool in) {
    uint64_t offset = 0;
    for (uint64_t z = 0; z < volume->slices; z++)
        for (uint64_t y = 0; y < volume->rows; y++)
            for (uint64_t x = 0; x < volume->width; x += PIECE) {
                uint64_t left = volume->width - x, bytes = left < PIECE ? left : PIECE;
                uint8_t *at = volume->host + (z * volume->height + y) * volume->pitch + x;
                if (move(volume, offset, at, bytes, in) != CUDA_SUCCESS) return;
                offset += bytes;
            }
}

void CUDA_CB room_fill(void *volume) { each_row(volume, true); }
void CUDA_CB room_empty(void *volume) { each_row(volume, false); }
