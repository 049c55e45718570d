/* The protocol between nvidia-cuda-mps-control (the simulated one) and its connections: messages of
 * one form, over two sockets in the pipe directory: one for the programs of any user, and one for
 * the commands of the daemon's own user.
 */
#ifndef EGPU_MPS_PROTOCOL_H
#define EGPU_MPS_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define MPS_PIPE_DIRECTORY "CUDA_MPS_PIPE_DIRECTORY"
#define MPS_SOCKET "control"
#define MPS_COMMAND_SOCKET "control_privileged"
#define MPS_MAX_DEVICES 16
#define MPS_TEXT_BYTES 1024
#define MPS_NO_LIMIT UINT64_MAX

enum mps_kind {
    MPS_COMMAND = 1, /* `text`, in NVIDIA's words … */
    MPS_ANSWER,      /* … and the reply; `result` is not 0 if it was refused */
    MPS_JOIN,        /* a program becomes a client, for as long as the connection lasts */
    MPS_WELCOME,     /* `result` is a CUresult; the rest are the client's limits */
    MPS_FAULT,       /* `result` is the CUresult: from a client, and to all others */
};

struct mps_message {
    uint32_t kind;
    int32_t result;
    uint32_t server; /* its pid */
    float percentage;
    uint64_t limit_bytes[MPS_MAX_DEVICES]; /* by ordinal; MPS_NO_LIMIT: none */
    char text[MPS_TEXT_BYTES];
};

/* Return a descriptor connected to this socket of a pipe directory's daemon; -1 and errno. */
int mps_connect(const char *pipe_directory, const char *name);
/* Whole messages only. False: the peer has ended, or (errno EAGAIN) there is none yet. */
bool mps_send(int fd, const struct mps_message *message);
bool mps_receive(int fd, struct mps_message *message, int flags);

/* "1G", "512MB", "1024M", or bytes. */
bool mps_parse_bytes(const char *text, uint64_t *bytes);
/* Return a device's limit in "0=1G,1=512MB" (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT); MPS_NO_LIMIT
 * without a valid one. */
uint64_t mps_limit_of(const char *list, int ordinal);

#pragma GCC visibility pop

#endif
