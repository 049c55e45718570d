/* The contents of this process's memory on the cards, kept on the host by a checkpoint. */
#include "saved.h"

#include "physical.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* A part of the contents that is not only zeros. */
struct saved_piece {
    struct saved_piece *next;
    uint64_t offset; /* within the physical memory */
    size_t bytes;
    uint8_t data[];
};

/* Return where an offset is in the machine's file, and how much follows there without a gap. */
static off_t place(const struct physical *physical, uint64_t offset, uint64_t *bytes) {
    size_t run = 0;
    while (offset >= (uint64_t)physical->runs[run].count * SIM_CHUNK_BYTES)
        offset -= (uint64_t)physical->runs[run++].count * SIM_CHUNK_BYTES;
    *bytes = (uint64_t)physical->runs[run].count * SIM_CHUNK_BYTES - offset;
    return (off_t)(physical->card->memory_offset +
                   (uint64_t)physical->runs[run].first * SIM_CHUNK_BYTES + offset);
}

static int save_piece(struct physical *physical, uint64_t offset, off_t at, size_t bytes) {
    struct saved_piece *piece = malloc(sizeof *piece + bytes);
    if (!piece) return ENOMEM;
    *piece = (struct saved_piece){physical->saved, offset, bytes};
    physical->saved = piece;
    for (size_t done = 0; done < bytes;) {
        ssize_t got =
            pread(physical->machine->fd, piece->data + done, bytes - done, at + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return EIO;
        done += (size_t)got;
    }
    return 0;
}

/* Holes of the machine's file are zeros. */
static int save(struct physical *physical) {
    const uint64_t end = (uint64_t)physical->chunk_count * SIM_CHUNK_BYTES;
    uint64_t there;
    for (uint64_t offset = 0; offset < end; offset += there) {
        off_t first = place(physical, offset, &there), limit = first + (off_t)there;
        for (off_t at = first; at < limit;) {
            off_t data = lseek(physical->machine->fd, at, SEEK_DATA);
            if (data < 0 || data >= limit) break;
            off_t hole = lseek(physical->machine->fd, data, SEEK_HOLE);
            at = hole < 0 || hole > limit ? limit : hole;
            int error =
                save_piece(physical, offset + (uint64_t)(data - first), data, (size_t)(at - data));
            if (error) return error;
        }
    }
    return 0;
}

static int fill(struct physical *physical) {
    while (physical->saved) {
        struct saved_piece *piece = physical->saved;
        for (size_t done = 0; done < piece->bytes;) {
            uint64_t there;
            off_t at = place(physical, piece->offset + done, &there);
            size_t rest = piece->bytes - done;
            ssize_t put = pwrite(physical->machine->fd, piece->data + done,
                                 rest < there ? rest : (size_t)there, at);
            if (put < 0 && errno == EINTR) continue;
            if (put <= 0) return put < 0 ? errno : EIO;
            done += (size_t)put;
        }
        physical->saved = piece->next;
        free(piece);
    }
    return 0;
}

uint64_t saved_bytes(void) {
    uint64_t chunks = 0;
    for (const struct physical *at = physical_own(); at; at = at->after) chunks += at->chunk_count;
    return chunks * SIM_CHUNK_BYTES;
}

int saved_leave(void) {
    int error = 0;
    for (struct physical *at = physical_own(); at && !error; at = at->after) error = save(at);
    for (struct physical *at = physical_own(); at && !error; at = at->after) physical_leave(at);
    return error;
}

int saved_return(struct sim_card *(*moved)(struct sim_card *)) {
    int error = 0;
    for (struct physical *at = physical_own(); at && !error; at = at->after)
        error = physical_return(at, moved(at->card));
    for (struct physical *at = physical_own(); at && error; at = at->after) physical_leave(at);
    return error;
}

int saved_fill(void) {
    int error = 0;
    for (struct physical *at = physical_own(); at && !error; at = at->after) error = fill(at);
    return error;
}
