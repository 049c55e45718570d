/* Functions of the remote driver for the stand-ins of libraries beside it (native/libraries). Their
 * calls go through the session that has the memory, in one order with the driver's own. */
#ifndef EGPU_REMOTE_LIBRARIES_H
#define EGPU_REMOTE_LIBRARIES_H

#include "link.h"

struct library_calls {
    uint64_t table; /* EGPU_WIRE_TABLE_HASH: both must be of one build */
    /* Connect and get a context: the thread's, or the first device's primary one. */
    CUresult (*ready)(void);
    struct link *(*link)(void); /* of the context's server */
    CUresult (*handle)(struct call *call, unsigned kind, uint64_t handle, uint64_t *wire);
    CUresult (*new_handle)(struct call *call, unsigned kind, uint64_t *handle);
    void (*drop)(uint64_t handle);
    void **(*info)(uint64_t handle); /* the data beside a handle; NULL: no such handle */
    /* A handle as a positive number, for objects that are an int to programs, and back; 0: none. */
    int (*number)(uint64_t handle);
    uint64_t (*numbered)(int number);
    CUresult (*begin)(struct call *call, size_t bytes, enum call_mode mode);
    CUresult (*post)(struct call *call);
    CUresult (*exchange)(struct call *call);
    void (*end)(struct call *call);
    CUresult (*copy_rows)(const CUDA_MEMCPY2D *copy, CUstream stream);
    CUresult (*wait)(CUstream stream);
    CUresult (*allocate)(CUdeviceptr *at, size_t bytes);
    CUresult (*release)(CUdeviceptr at);
    uint64_t (*context)(void); /* the current one */
    /* A device's number on its server, and that server; -1: no such device. */
    int (*device)(int device, struct link **link);
};

#endif
