/* An NCCL of one rank for tests: a reduction runs until it is aborted, and use of a destroyed
 * communicator ends the process. */
#include "nccl_wire.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { OK, END_US = 200000 };

struct communicator {
    _Atomic bool goes_on, gone;
};

static struct communicator *there(struct communicator *comm) {
    if (atomic_load(&comm->gone)) _exit(3);
    return comm;
}

API int ncclGroupStart(void) { return OK; }
API int ncclGroupEnd(void) { return OK; }

API int ncclCommInitRankConfig(struct communicator **comm, int ranks, nccl_id id, int rank,
                               struct nccl_config *config) {
    (void)ranks, (void)id, (void)rank, (void)config;
    *comm = calloc(1, sizeof **comm); /* kept, to detect later use */
    return *comm == NULL;
}

API int ncclCommGetAsyncError(struct communicator *comm, int *error) {
    *error = atomic_load(&there(comm)->goes_on) ? NCCL_IN_PROGRESS : OK;
    return OK;
}

API int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
                      struct communicator *comm, void *stream) {
    (void)from, (void)to, (void)count, (void)type, (void)op, (void)stream;
    atomic_store(&there(comm)->goes_on, true);
    return NCCL_IN_PROGRESS;
}

/* Long enough for other calls to come in between. */
static int end(struct communicator *comm) {
    there(comm);
    usleep(END_US);
    if (atomic_exchange(&comm->gone, true)) _exit(3);
    return OK;
}

API int ncclCommAbort(struct communicator *comm) { return end(comm); }
API int ncclCommDestroy(struct communicator *comm) { return end(comm); }
