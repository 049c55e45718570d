/* Simulated NCCL: its interface, and groups. Numbers: nccl.h. See exchange.h. */
#include <limits.h>
#include <stdio.h>
#include <sys/random.h>

#include "exchange.h"
#include "libraries/nccl_result.h"
#include "nccl_wire.h"

enum { VERSION = 23007 };

/* Operations of a thread since ncclGroupStart. */
struct collected {
    struct communicator *communicator;
    CUstream stream;
    CUcontext context;
    bool taken;
    struct operation operation;
};
static _Thread_local struct {
    unsigned depth, count, room, made;
    struct collected *at;
    struct communicator *makes[NCCL_MOST_MADE];
} group;

/* ---- operations ---- */

/* Submit all operations of one communicator and stream, from this one on. */
static int submit(unsigned first) {
    struct collected *one = &group.at[first];
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    struct batch *batch = calloc(1, batch_bytes(group.count - first));
    if (batch == NULL) return SYSTEM;
    batch->communicator = one->communicator;
    for (unsigned i = first; i < group.count; i++) {
        struct collected *other = &group.at[i];
        if (other->communicator != one->communicator || other->stream != one->stream) continue;
        other->taken = true;
        batch->at[batch->count++] = other->operation;
    }
    batch->stream = one->stream;
    batch->context = one->context;
    batch->again = cuStreamIsCapturing(one->stream, &capture) == CUDA_SUCCESS &&
                   capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (!one->communicator->blocking) {
        batch->next = one->communicator->waiting; /* of another stream */
        one->communicator->waiting = batch;
        return IN_PROGRESS;
    }
    CUresult result = batch_queue(batch);
    free(batch);
    return result == CUDA_SUCCESS ? OK : UNHANDLED_CUDA;
}

static int group_end(void) {
    int result = OK;
    for (unsigned i = 0; i < group.made; i++) {
        int each = group.makes[i]->blocking ? communicator_await(group.makes[i])
                                            : communicator_progress(group.makes[i]);
        if (result == OK || result == IN_PROGRESS) result = each == OK ? result : each;
    }
    for (unsigned i = 0; i < group.count; i++)
        if (group.at[i].communicator->waiting != NULL) result = INVALID_USAGE; /* in progress */
    for (unsigned i = 0; result != INVALID_USAGE && i < group.count; i++) {
        int each = group.at[i].taken ? OK : submit(i);
        if (result == OK || result == IN_PROGRESS) result = each == OK ? result : each;
    }
    free(group.at);
    group.at = NULL;
    group.count = group.room = group.made = 0;
    return result;
}

API int ncclGroupStart(void) {
    group.depth++;
    return OK;
}

API int ncclGroupEnd(void) {
    if (group.depth == 0) return INVALID_USAGE;
    return --group.depth > 0 ? OK : group_end();
}

static int collect(struct communicator *communicator, CUstream stream, struct operation operation) {
    if (group.count == group.room) {
        unsigned room = group.room ? 2 * group.room : 16;
        struct collected *grown = realloc(group.at, room * sizeof *grown);
        if (grown == NULL) return SYSTEM;
        group.at = grown;
        group.room = room;
    }
    struct collected *one = &group.at[group.count++];
    *one = (struct collected){communicator, stream, NULL, false, operation};
    cuCtxGetCurrent(&one->context);
    return group.depth > 0 ? OK : group_end();
}

/* `sent` and `got`: this rank reads and writes that many times `count` elements. */
static int operate(struct communicator *c, CUstream stream, struct operation o, unsigned sent,
                   unsigned got) {
    size_t width = type_width(o.type), most = (size_t)1 << 40;
    if (c == NULL || width == 0 || o.peer >= c->ranks || o.count > most) return INVALID_ARGUMENT;
    if (atomic_load(&c->error) != OK) return atomic_load(&c->error);
    int64_t bytes = (int64_t)(o.count * width);
    if (!on_card(o.from, bytes * sent) || !on_card(o.to, bytes * got)) return INVALID_ARGUMENT;
    bool reduces = o.form == ALL_REDUCE || o.form == REDUCE || o.form == REDUCE_SCATTER;
    if (reduces && o.op >= OPS) {
        unsigned which = (unsigned)o.op - OPS;
        if (which >= MOST_FACTORS || !c->factors[which].used || c->factors[which].type != o.type)
            return INVALID_ARGUMENT;
        o.factor = c->factors[which];
        o.op = SUM;
    }
    if (o.op < 0) return INVALID_ARGUMENT;
    return collect(c, stream, o);
}

#define OPERATION(is, of_root, ...)                  \
    ((struct operation){.form = is,                  \
                        .type = type,                \
                        .peer = (unsigned)(of_root), \
                        .from = from,                \
                        .to = to,                    \
                        .count = count,              \
                        __VA_ARGS__})

API int ncclAllReduce(const void *from, void *to, size_t count, int type, int op,
                      struct communicator *c, CUstream stream) {
    return operate(c, stream, OPERATION(ALL_REDUCE, 0, .op = op), 1, 1);
}

API int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op,
                          struct communicator *c, CUstream stream) {
    return operate(c, stream, OPERATION(REDUCE_SCATTER, 0, .op = op), c ? c->ranks : 0, 1);
}

API int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root,
                   struct communicator *c, CUstream stream) {
    bool here = c != NULL && (int)c->rank == root;
    return operate(c, stream, OPERATION(REDUCE, root, .op = op), 1, here);
}

API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root,
                      struct communicator *c, CUstream stream) {
    bool here = c != NULL && (int)c->rank == root;
    return operate(c, stream, OPERATION(BROADCAST, root, .op = 0), here, 1);
}

API int ncclBcast(void *to, size_t count, int type, int root, struct communicator *c,
                  CUstream stream) {
    return ncclBroadcast(to, to, count, type, root, c, stream);
}

API int ncclAllGather(const void *from, void *to, size_t count, int type, struct communicator *c,
                      CUstream stream) {
    return operate(c, stream, OPERATION(ALL_GATHER, 0, .op = 0), 1, c ? c->ranks : 0);
}

API int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct communicator *c,
                     CUstream stream) {
    unsigned ranks = c ? c->ranks : 0;
    return operate(c, stream, OPERATION(ALL_TO_ALL, 0, .op = 0), ranks, ranks);
}

API int ncclGather(const void *from, void *to, size_t count, int type, int root,
                   struct communicator *c, CUstream stream) {
    bool here = c != NULL && (int)c->rank == root;
    return operate(c, stream, OPERATION(GATHER, root, .op = 0), 1, here ? c->ranks : 0);
}

API int ncclScatter(const void *from, void *to, size_t count, int type, int root,
                    struct communicator *c, CUstream stream) {
    bool here = c != NULL && (int)c->rank == root;
    return operate(c, stream, OPERATION(SCATTER, root, .op = 0), here ? c->ranks : 0, 1);
}

API int ncclSend(const void *from, size_t count, int type, int peer, struct communicator *c,
                 CUstream stream) {
    void *to = NULL;
    return operate(c, stream, OPERATION(SEND, peer, .op = 0), 1, 0);
}

API int ncclRecv(void *to, size_t count, int type, int peer, struct communicator *c,
                 CUstream stream) {
    const void *from = NULL;
    return operate(c, stream, OPERATION(RECEIVE, peer, .op = 0), 0, 1);
}

API int ncclRedOpCreatePreMulSum(int *op, const void *scalar, int type, int residence,
                                 struct communicator *c) {
    if (op == NULL || scalar == NULL || c == NULL || type_width(type) == 0) return INVALID_ARGUMENT;
    for (int i = 0; i < MOST_FACTORS; i++) {
        struct factor *factor = &c->factors[i];
        if (factor->used) continue;
        *factor = (struct factor){.used = true, .type = type, .card = residence ? NULL : scalar};
        if (residence) memcpy(&factor->value, scalar, type_width(type));
        *op = OPS + i;
        return OK;
    }
    return INVALID_USAGE;
}

API int ncclRedOpDestroy(int op, struct communicator *c) {
    if (c == NULL || op < OPS || op >= OPS + MOST_FACTORS || !c->factors[op - OPS].used)
        return INVALID_ARGUMENT;
    c->factors[op - OPS].used = false;
    return OK;
}

/* ---- communicators ---- */

static bool is_blocking(const struct nccl_config *config) {
    return config == NULL || config->blocking != 0;
}

/* In a group it is waited for only at the end: other members may be this thread's. */
static int made(struct communicator **out, struct communicator *communicator, int result) {
    if (result != OK || group.made == NCCL_MOST_MADE) {
        communicator_release(communicator);
        return result != OK ? result : INVALID_USAGE;
    }
    *out = communicator;
    group.makes[group.made++] = communicator;
    return group.depth > 0 ? OK : group_end();
}

API int ncclGetUniqueId(nccl_id *id) {
    struct clique_id made = {0};
    if (id == NULL) return INVALID_ARGUMENT;
    if (getrandom(made.words, sizeof made.words, 0) != sizeof made.words ||
        !station_place(&made.at))
        return SYSTEM;
    memset(id, 0, sizeof *id);
    memcpy(id, &made, sizeof made);
    return OK;
}

API int ncclCommInitRankScalable(struct communicator **out, int ranks, int rank, int ids,
                                 const nccl_id *id, const struct nccl_config *config) {
    struct clique_id said;
    if (out == NULL || id == NULL || ids < 1 || ranks < 1 || ranks > MOST_RANKS || rank < 0 ||
        rank >= ranks || cuInit(0) != CUDA_SUCCESS)
        return INVALID_ARGUMENT;
    *out = NULL;
    struct communicator *communicator = communicator_new(is_blocking(config));
    if (communicator == NULL) return SYSTEM;
    memcpy(&said, id, sizeof said);
    communicator->rank = (unsigned)rank;
    communicator->ranks = (unsigned)ranks;
    int result = seat_take(&communicator->seat, said, communicator->ranks, communicator->rank);
    return made(out, communicator, result);
}

API int ncclCommInitRankConfig(struct communicator **out, int ranks, nccl_id id, int rank,
                               const struct nccl_config *config) {
    return ncclCommInitRankScalable(out, ranks, rank, 1, &id, config);
}

API int ncclCommInitRank(struct communicator **out, int ranks, nccl_id id, int rank) {
    return ncclCommInitRankScalable(out, ranks, rank, 1, &id, NULL);
}

API int ncclCommInitAll(struct communicator **out, int count, const int *devices) {
    nccl_id id;
    (void)devices; /* it passes on data in memory that every card sees */
    int result = ncclGetUniqueId(&id);
    ncclGroupStart();
    for (int rank = 0; result == OK && rank < count; rank++)
        result = ncclCommInitRank(&out[rank], count, id, rank);
    int ended = ncclGroupEnd();
    return result == OK ? ended : result;
}

API int ncclCommSplit(struct communicator *c, int color, int key, struct communicator **out,
                      const struct nccl_config *config) {
    if (c == NULL || out == NULL || color < NCCL_NO_COLOR) return INVALID_ARGUMENT;
    *out = NULL;
    uint32_t split = ++c->splits;
    clique_split(c->seat.clique, split, color, key);
    if (color == NCCL_NO_COLOR) return OK;
    struct communicator *communicator = communicator_new(is_blocking(config));
    if (communicator == NULL) return SYSTEM;
    atomic_fetch_add(&c->references, 1);
    communicator->from = c;
    communicator->split = split;
    communicator->color = color;
    communicator->key = key;
    return made(out, communicator, OK);
}

API int ncclCommShrink(struct communicator *c, const int *excluded, int count,
                       struct communicator **out, const struct nccl_config *config, int flags) {
    (void)flags;
    if (c == NULL || out == NULL || excluded == NULL) return INVALID_ARGUMENT;
    uint32_t without = 0;
    for (int i = 0; i < count; i++) without |= 1u << ((unsigned)excluded[i] % MOST_RANKS);
    if (without >> c->rank & 1) return INVALID_ARGUMENT;
    *out = NULL;
    struct communicator *communicator = communicator_new(is_blocking(config));
    if (communicator == NULL) return SYSTEM;
    unsigned first = (unsigned)__builtin_ctz(~without);
    for (unsigned rank = 0; rank < c->ranks; rank++) {
        bool stays = (without >> rank & 1) == 0;
        communicator->ranks += stays;
        communicator->rank += stays && rank < c->rank;
    }
    c->splits++;
    return made(out, communicator,
                seat_take(&communicator->seat, communicator_next_id(c, INT_MAX, first),
                          communicator->ranks, communicator->rank));
}

/* Queued work continues with it until it is done. */
API int ncclCommDestroy(struct communicator *c) {
    if (c == NULL) return INVALID_ARGUMENT;
    communicator_release(c);
    return OK;
}

API int ncclCommAbort(struct communicator *c) {
    if (c == NULL) return INVALID_ARGUMENT;
    atomic_store(&c->aborted, true);
    if (c->seat.clique != NULL) clique_fail(c->seat.clique);
    communicator_release(c);
    return OK;
}

API int ncclCommFinalize(struct communicator *c) { return c == NULL ? INVALID_ARGUMENT : OK; }

API int ncclCommGetAsyncError(struct communicator *c, int *error) {
    if (c == NULL || error == NULL) return INVALID_ARGUMENT;
    *error = communicator_progress(c);
    return OK;
}

API int ncclCommCount(const struct communicator *c, int *count) {
    if (c == NULL || count == NULL) return INVALID_ARGUMENT;
    *count = (int)c->ranks;
    return OK;
}

API int ncclCommUserRank(const struct communicator *c, int *rank) {
    if (c == NULL || rank == NULL) return INVALID_ARGUMENT;
    *rank = (int)c->rank;
    return OK;
}

/* All memory is accessed directly. */
API int ncclCommRegister(struct communicator *c, const void *at, size_t bytes, void **handle) {
    if (c == NULL || handle == NULL || !on_card(at, (int64_t)bytes)) return INVALID_ARGUMENT;
    *handle = c;
    return OK;
}

API int ncclCommDeregister(struct communicator *c, const void *handle) {
    return c == NULL || handle != c ? INVALID_ARGUMENT : OK;
}

API int ncclGetVersion(int *version) {
    if (version == NULL) return INVALID_ARGUMENT;
    *version = VERSION;
    return OK;
}

API int ncclMemAlloc(CUdeviceptr *at, size_t bytes) {
    if (at == NULL) return INVALID_ARGUMENT;
    return cuMemAlloc(at, bytes) == CUDA_SUCCESS ? OK : UNHANDLED_CUDA;
}

API int ncclMemFree(CUdeviceptr at) {
    return at == 0 || cuMemFree(at) == CUDA_SUCCESS ? OK : UNHANDLED_CUDA;
}

API const char *ncclGetErrorString(int result) { return nccl_result_text(result); }

API const char *ncclGetLastError(const void *c) { return (void)c, "not kept by this NCCL"; }
