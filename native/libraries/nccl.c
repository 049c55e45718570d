/* Functions of NCCL that the tables cannot express: groups of calls, creation of communicators, and
 * names of results. Numbers: nccl.h. */
#include "nccl_wire.h"
#include "client.h"
#include "nccl_result.h"

#include <stdio.h>

enum { OK = 0, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

/* The calls of a thread's group, as they will be sent. A single call that must wait for other ranks
 * is a group of its own. */
static _Thread_local struct group {
    unsigned depth;
    bool waits;
    uint8_t *bytes; /* NULL: there is none */
    size_t used;
    struct link *link;
    unsigned made;
    struct {
        uint64_t handle;
        void **at;
    } makes[NCCL_MOST_MADE];
} group;

/* ---- groups ---- */

static void group_clear(void) {
    free(group.bytes);
    group = (struct group){.depth = group.depth};
}

/* Send all of it in one frame; if that fails, nothing has been made. */
static int group_send(const char *function) {
    struct call call;
    call_start(&call, OP_LIBRARY_GROUP);
    call.link = group.link;
    CUresult result = remote->begin(&call, group.used, group.waits ? CALL_WAITS : CALL_POSTED);
    int status = result == CUDA_SUCCESS ? OK : library_failed(function, result);
    if (status == OK) {
        put_bytes(&call.out, group.bytes, group.used);
        status = library_finish(&call, group.waits, function);
        if (status == OK) status = library_done(&call, group.waits);
    }
    for (unsigned i = 0; status != OK && i < group.made; i++) {
        remote->drop(group.makes[i].handle);
        *group.makes[i].at = NULL;
    }
    group_clear();
    return status;
}

/* Get room for one more call. */
static CUresult entry_begin(struct call *call, size_t bytes, bool waits) {
    size_t taken = sizeof(struct wire_group_entry) + bytes;
    CUresult result = CUDA_SUCCESS;
    if (group.bytes == NULL) group.bytes = malloc(LIBRARY_MOST_GROUPED);
    if (group.bytes == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else if (taken > LIBRARY_MOST_GROUPED - group.used)
        result = CUDA_ERROR_INVALID_VALUE;
    else if (group.link != NULL && group.link != call->link)
        result = CUDA_ERROR_NOT_SUPPORTED; /* ranks on several servers */
    if (result == CUDA_SUCCESS) {
        group.link = call->link;
        group.waits |= waits;
        uint8_t *at = group.bytes + group.used + sizeof(struct wire_group_entry);
        call->out = (struct writer){at, bytes, false};
    } else if (group.depth == 0) {
        group_clear();
    }
    return result;
}

CUresult library_group_begin(struct call *call, size_t bytes, uint64_t object, int peer) {
    struct library_object *rank = object_of(object);
    uint64_t bit = peer == EVERYBODY ? UINT64_C(1) << 63 : 0;
    if (peer >= 0 && peer < 63) bit = UINT64_C(1) << peer;
    bool waits = (atomic_fetch_or(&rank->connected, bit) & bit) == 0;
    if (group.depth == 0 && !waits) return remote->begin(call, bytes, CALL_POSTED);
    return entry_begin(call, bytes, waits);
}

int library_group_add(struct call *call, const char *function) {
    if (group.bytes == NULL) {
        remote->post(call);
        return OK;
    }
    uint8_t *at = group.bytes + group.used;
    size_t bytes = (size_t)(call->out.at - at) - sizeof(struct wire_group_entry);
    struct wire_group_entry entry = {.context = wire_without_server(remote->context()),
                                     .op = call->op,
                                     .bytes = (uint32_t)bytes};
    memcpy(at, &entry, sizeof entry);
    group.used += sizeof entry + bytes;
    return group.depth == 0 ? group_send(function) : OK;
}

API int ncclGroupStart(void);
int ncclGroupStart(void) {
    group.depth++;
    return OK;
}

API int ncclGroupEnd(void);
int ncclGroupEnd(void) {
    if (group.depth == 0) return INVALID_USAGE;
    if (--group.depth > 0 || group.bytes == NULL) return OK;
    return group_send("ncclGroupEnd");
}

/* ---- communicators ---- */

/* Begin a call that makes `count` communicators. */
static CUresult make(struct call *call, void **comms, unsigned count, size_t bytes,
                     uint64_t handles[]) {
    if (count > NCCL_MOST_MADE - group.made) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    unsigned made = 0;
    while (result == CUDA_SUCCESS && made < count) {
        result = remote->new_handle(call, KIND_nccl_comm, &handles[made]);
        if (result == CUDA_SUCCESS) made++;
    }
    if (result == CUDA_SUCCESS) result = entry_begin(call, bytes, true);
    for (unsigned i = 0; i < made; i++) {
        if (result != CUDA_SUCCESS) {
            remote->drop(handles[i]);
            continue;
        }
        comms[i] = (void *)(uintptr_t)object_made(call, handles[i]);
        group.makes[group.made].handle = (uint64_t)(uintptr_t)comms[i];
        group.makes[group.made++].at = &comms[i];
    }
    return result;
}

#define MAKE(symbol, operation) \
    READY(symbol);              \
    struct call call;           \
    call_start(&call, OP_##operation)

/* Copy the program's settings. The server chooses NCCL's network, and a name is only for messages.
 * False: the configuration is invalid. */
static bool config_from(struct nccl_config *config, const struct nccl_config *said) {
    *config = nccl_config_none();
    if (said == NULL) return true;
    if (said->magic != NCCL_CONFIG_MAGIC || said->size < offsetof(struct nccl_config, blocking))
        return false;
    uint64_t size = said->size < sizeof *config ? said->size : sizeof *config;
    memcpy(config, said, size);
    config->size = sizeof *config;
    config->net_name = config->comm_name = NULL;
    return true;
}

API int ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, const nccl_id *id,
                                 const struct nccl_config *config);
int ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, const nccl_id *id,
                             const struct nccl_config *config) {
    struct wire_nccl_init init = {.ranks = ranks, .rank = rank, .ids = (uint32_t)ids};
    struct nccl_config said;
    MAKE(ncclCommInitRankScalable, NCCL_INIT);
    if (comm == NULL || id == NULL || ids < 1 || ids > (int)NCCL_MOST_IDS || rank < 0 ||
        rank >= ranks || !config_from(&said, config))
        return INVALID_ARGUMENT;
    size_t bytes = (size_t)ids * sizeof *id;
    TRY(make(&call, comm, 1, sizeof init + bytes + sizeof said, &init.made));
    put_bytes(&call.out, &init, sizeof init);
    put_bytes(&call.out, id, bytes);
    put_bytes(&call.out, &said, sizeof said);
    return library_group_add(&call, function);
}

API int ncclCommInitRankConfig(void **comm, int ranks, nccl_id id, int rank,
                               const struct nccl_config *config);
int ncclCommInitRankConfig(void **comm, int ranks, nccl_id id, int rank,
                           const struct nccl_config *config) {
    return ncclCommInitRankScalable(comm, ranks, rank, 1, &id, config);
}

API int ncclCommInitRank(void **comm, int ranks, nccl_id id, int rank);
int ncclCommInitRank(void **comm, int ranks, nccl_id id, int rank) {
    return ncclCommInitRankScalable(comm, ranks, rank, 1, &id, NULL);
}

API int ncclCommInitAll(void **comms, int count, const int *devices);
int ncclCommInitAll(void **comms, int count, const int *devices) {
    uint64_t handles[NCCL_MOST_MADE], at[NCCL_MOST_MADE];
    MAKE(ncclCommInitAll, NCCL_INIT_ALL);
    if (comms == NULL || count < 1 || count > (int)NCCL_MOST_MADE) return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        struct link *link;
        int device = remote->device(devices == NULL ? i : devices[i], &link);
        if (device < 0) return INVALID_ARGUMENT;
        if (call.link != NULL && call.link != link) TRY(CUDA_ERROR_NOT_SUPPORTED);
        call.link = link;
        at[i] = (uint64_t)device;
    }
    struct wire_nccl_init_all all = {.count = (uint32_t)count};
    TRY(make(&call, comms, all.count, sizeof all + 16 * (size_t)count, handles));
    put_bytes(&call.out, &all, sizeof all);
    for (int i = 0; i < count; i++) {
        put_word(&call.out, handles[i]);
        put_word(&call.out, at[i]);
    }
    return library_group_add(&call, function);
}

API int ncclCommSplit(void *comm, int color, int key, void **made,
                      const struct nccl_config *config);
int ncclCommSplit(void *comm, int color, int key, void **made, const struct nccl_config *config) {
    struct wire_nccl_split split = {.color = color, .key = key};
    struct nccl_config said;
    MAKE(ncclCommSplit, NCCL_SPLIT);
    if (made == NULL || color < NCCL_NO_COLOR || !config_from(&said, config))
        return INVALID_ARGUMENT;
    *made = NULL;
    TRY(remote->handle(&call, KIND_nccl_comm, NAMED(comm), &split.from));
    unsigned count = color == NCCL_NO_COLOR ? 0 : 1; /* a rank without a color gets none */
    TRY(make(&call, made, count, sizeof split + sizeof said, &split.made));
    put_bytes(&call.out, &split, sizeof split);
    put_bytes(&call.out, &said, sizeof said);
    return library_group_add(&call, function);
}

API int ncclCommShrink(void *comm, const int *excluded, int count, void **made,
                       const struct nccl_config *config, int flags);
int ncclCommShrink(void *comm, const int *excluded, int count, void **made,
                   const struct nccl_config *config, int flags) {
    struct wire_nccl_shrink shrink = {.flags = flags, .excluded = (uint32_t)count};
    struct nccl_config said;
    MAKE(ncclCommShrink, NCCL_SHRINK);
    if (made == NULL || excluded == NULL || count < 1 || count > (int)NCCL_MOST_EXCLUDED ||
        !config_from(&said, config))
        return INVALID_ARGUMENT;
    size_t bytes = (size_t)count * sizeof *excluded;
    TRY(remote->handle(&call, KIND_nccl_comm, NAMED(comm), &shrink.from));
    TRY(make(&call, made, 1, sizeof shrink + padded(bytes) + sizeof said, &shrink.made));
    put_bytes(&call.out, &shrink, sizeof shrink);
    put_bytes(&call.out, excluded, bytes);
    put_bytes(&call.out, &said, sizeof said);
    return library_group_add(&call, function);
}

/* ---- memory: the driver's, which every library accepts ---- */

API int ncclMemAlloc(CUdeviceptr *at, size_t bytes);
int ncclMemAlloc(CUdeviceptr *at, size_t bytes) {
    READY(ncclMemAlloc);
    INVALID_IF(at == NULL);
    TRY(remote->allocate(at, bytes));
    return OK;
}

API int ncclMemFree(CUdeviceptr at);
int ncclMemFree(CUdeviceptr at) {
    READY(ncclMemFree);
    TRY(at == 0 ? CUDA_SUCCESS : remote->release(at));
    return OK;
}

/* ---- names ---- */

API const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result) { return nccl_result_text(result); }

API const char *ncclGetLastError(const void *comm);
const char *ncclGetLastError(const void *comm) {
    (void)comm;
    return "see the messages of this GPU's server";
}
