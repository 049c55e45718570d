/* What nvidia-cuda-mps-control (the simulated one) and whoever connects to it say to each other:
 * messages of one form, over a socket in the pipe directory.
 */
#ifndef EGPU_MPS_PROTOCOL_H
#define EGPU_MPS_PROTOCOL_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define MPS_PIPE_DIRECTORY "CUDA_MPS_PIPE_DIRECTORY"
#define MPS_SOCKET "control"
#define MPS_MAX_DEVICES 16
#define MPS_TEXT_BYTES 1024
#define MPS_NO_LIMIT UINT64_MAX

enum mps_kind {
    MPS_COMMAND = 1, /* `text`, in NVIDIA's words … */
    MPS_ANSWER,      /* … and what is said to it; `result` is not 0 where it was refused */
    MPS_JOIN,        /* a program becomes a client; the connection is its membership */
    MPS_WELCOME,     /* `result` is a CUresult, and the rest what the client is held to */
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

/* A descriptor connected to the daemon of this pipe directory; -1 and errno. */
int mps_connect(const char *pipe_directory);
/* Whole messages only. false: the other one is gone, or (errno EAGAIN) there is none yet. */
bool mps_send(int fd, const struct mps_message *message);
bool mps_receive(int fd, struct mps_message *message, int flags);

/* "1G", "512MB", "1024M", or bytes. */
bool mps_parse_bytes(const char *text, uint64_t *bytes);
/* Of one device in "0=1G,1=512MB", as CUDA_MPS_PINNED_DEVICE_MEM_LIMIT has it; MPS_NO_LIMIT where
 * it says nothing that can be read. */
uint64_t mps_limit_of(const char *list, int ordinal);

#pragma GCC visibility pop

#endif
