/* This machine's NCCL, beyond what its table says: groups, and what makes communicators. They are
 * made without blocking, which is the one way in which NCCL lets go of ranks that never come. */
#include "nccl_wire.h"
#include "executor/libraries/libraries.h"

#include <unistd.h>

#include "common/clock.h"

/* What a group makes, and which communicators it uses: they are not ended before it is over. The
 * library writes one that is made until it is said to be there. */
struct making {
    unsigned count, used;
    struct {
        uint64_t handle;
        void *comm;
    } at[NCCL_MOST_MADE];
    struct {
        void *comm;
        bool settles; /* what is done with it goes on; not of one that others are made from */
    } users[NCCL_MOST_MADE];
};
static _Thread_local struct making *group; /* that is being called; NULL: none */

/* False: there are too many, or somebody ends it. */
static bool uses(struct making *making, void *comm, bool settles) {
    unsigned i = 0;
    while (i < making->used && making->users[i].comm != comm) i++;
    if (i == NCCL_MOST_MADE || (i == making->used && !library_enter(KIND_nccl_comm, comm)))
        return false;
    if (i == making->used) making->used++;
    making->users[i].comm = comm;
    making->users[i].settles |= settles;
    return true;
}

static bool gives_up(const struct making *making, void *object) {
    bool ending = library_ending(object);
    for (unsigned i = 0; making != NULL && !ending && i < making->used; i++)
        ending = library_ending(making->users[i].comm);
    return ending;
}

static int settle_all(enum library_id id, const char *function, int going_on,
                      const struct making *making, void *object, int said) {
    void *found = library_function(id, function);
    int (*ask)(void *, int *);
    memcpy(&ask, &found, sizeof ask);
    int64_t until = clock_now_ms() + LIBRARY_SETTLE_SECONDS * INT64_C(1000);
    while (said == going_on && ask != NULL) {
        if (ask(object, &said) != 0 || clock_now_ms() > until)
            return library_facts[id].statuses.unknown;
        if (said == going_on && gives_up(making, object)) return library_facts[id].statuses.unknown;
        if (said == going_on) usleep(LIBRARY_LOOK_US);
    }
    return said;
}

int library_settle(enum library_id id, const char *function, int going_on, void *object, int said) {
    if (group == NULL) return settle_all(id, function, going_on, NULL, object, said);
    return uses(group, object, true) ? said : library_facts[id].statuses.unknown;
}

static int settle(const struct making *making, void *comm, int said) {
    return settle_all(LIBRARY_nccl, "ncclCommGetAsyncError", NCCL_IN_PROGRESS, making, comm, said);
}

/* Room for one more, or NULL. */
static void **made(struct task *task, struct making *making, uint64_t handle) {
    if (making->count == NCCL_MOST_MADE) {
        task->violated = true;
        return NULL;
    }
    making->at[making->count] = (typeof(making->at[0])){.handle = handle};
    return &making->at[making->count++].comm;
}

/* As the client has set it, but for what is ours: no address is the client's. */
static struct nccl_config get_config(struct task *task) {
    struct nccl_config config;
    get_bytes(&task->in, &config, sizeof config);
    config.size = sizeof config;
    config.magic = NCCL_CONFIG_MAGIC;
    config.net_name = config.comm_name = NULL;
    config.blocking = 0;
    return config;
}

/* ---- what makes communicators ---- */

static CUresult init_scalable(const struct wire_nccl_init *init, const nccl_id *ids,
                              struct nccl_config *config, void **comm, int *status) {
    REAL(nccl, ncclCommInitRankScalable, int, void **, int, int, int, const nccl_id *,
         struct nccl_config *);
    if (real == NULL) return library_missing(LIBRARY_nccl);
    *status = real(comm, init->ranks, init->rank, (int)init->ids, ids, config);
    return CUDA_SUCCESS;
}

static CUresult init(struct task *task, struct making *making, int *status) {
    REAL(nccl, ncclCommInitRankConfig, int, void **, int, nccl_id, int, struct nccl_config *);
    struct wire_nccl_init said;
    nccl_id ids[NCCL_MOST_IDS];
    get_bytes(&task->in, &said, sizeof said);
    if (said.ids < 1 || said.ids > NCCL_MOST_IDS) task->in.bad = true;
    if (!task->in.bad) get_bytes(&task->in, ids, said.ids * sizeof *ids);
    struct nccl_config config = get_config(task);
    REFUSE(nccl);
    void **comm = made(task, making, said.made);
    if (comm == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (said.ids > 1) return init_scalable(&said, ids, &config, comm, status);
    *status = real(comm, said.ranks, ids[0], said.rank, &config);
    return CUDA_SUCCESS;
}

static CUresult init_all(struct task *task, struct making *making, int *status) {
    REAL(nccl, ncclCommInitAll, int, void **, int, const int *);
    struct wire_nccl_init_all said;
    void *comms[NCCL_MOST_MADE] = {NULL}, **at[NCCL_MOST_MADE] = {NULL};
    int devices[NCCL_MOST_MADE] = {0};
    get_bytes(&task->in, &said, sizeof said);
    if (said.count < 1 || said.count > NCCL_MOST_MADE) task->in.bad = true;
    for (unsigned i = 0; !task->in.bad && i < said.count; i++) {
        at[i] = made(task, making, get_word(&task->in));
        devices[i] = (int)get_word(&task->in);
        if (at[i] == NULL) return CUDA_ERROR_INVALID_VALUE;
    }
    REFUSE(nccl);
    *status = real(comms, (int)said.count, devices);
    for (unsigned i = 0; i < said.count; i++) *at[i] = comms[i];
    return CUDA_SUCCESS;
}

static CUresult split(struct task *task, struct making *making, int *status) {
    REAL(nccl, ncclCommSplit, int, void *, int, int, void **, struct nccl_config *);
    struct wire_nccl_split said;
    static void *nobody;
    get_bytes(&task->in, &said, sizeof said);
    struct nccl_config config = get_config(task);
    void *from = (void *)(uintptr_t)handle_value(KIND_nccl_comm, said.from, &task->bad);
    REFUSE(nccl);
    if (!uses(making, from, false)) return CUDA_ERROR_INVALID_HANDLE;
    void **comm = said.made == 0 ? &nobody : made(task, making, said.made);
    if (comm == NULL) return CUDA_ERROR_INVALID_VALUE;
    *status = real(from, said.color, said.key, comm, &config);
    return CUDA_SUCCESS;
}

static CUresult shrink(struct task *task, struct making *making, int *status) {
    REAL(nccl, ncclCommShrink, int, void *, int *, int, void **, struct nccl_config *, int);
    struct wire_nccl_shrink said;
    int excluded[NCCL_MOST_EXCLUDED];
    get_bytes(&task->in, &said, sizeof said);
    if (said.excluded < 1 || said.excluded > NCCL_MOST_EXCLUDED) task->in.bad = true;
    if (!task->in.bad) get_bytes(&task->in, excluded, said.excluded * sizeof *excluded);
    struct nccl_config config = get_config(task);
    void *from = (void *)(uintptr_t)handle_value(KIND_nccl_comm, said.from, &task->bad);
    REFUSE(nccl);
    if (!uses(making, from, false)) return CUDA_ERROR_INVALID_HANDLE;
    void **comm = made(task, making, said.made);
    if (comm == NULL) return CUDA_ERROR_INVALID_VALUE;
    *status = real(from, excluded, (int)said.excluded, comm, &config, said.flags);
    return CUDA_SUCCESS;
}

/* ---- groups ---- */

static CUresult grouped(const struct operation *operation, struct task *task, int *status) {
    uint8_t room[64] = {0};
    task->out = (struct writer){room, sizeof room, false};
    CUresult result = operation->run(task);
    memcpy(status, room, sizeof *status);
    return result;
}

static CUresult run_entry(uint32_t op, struct task *task, struct making *making, int *status) {
    bool makes =
        op == OP_NCCL_INIT || op == OP_NCCL_INIT_ALL || op == OP_NCCL_SPLIT || op == OP_NCCL_SHRINK;
    if (makes && !session_has_network()) return CUDA_ERROR_NOT_PERMITTED;
    switch (op) {
    case OP_NCCL_INIT: return init(task, making, status);
    case OP_NCCL_INIT_ALL: return init_all(task, making, status);
    case OP_NCCL_SPLIT: return split(task, making, status);
    case OP_NCCL_SHRINK: return shrink(task, making, status);
    default:
        if (op < OP_COUNT && library_operations[op].flags & OPERATION_GROUPED)
            return grouped(&library_operations[op], task, status);
        task->violated = true;
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* One call, in the context in which the client made it. */
static CUresult next_entry(struct task *task, struct making *making, int *status) {
    struct wire_group_entry entry;
    get_bytes(&task->in, &entry, sizeof entry);
    const void *payload = take(&task->in, entry.bytes);
    if (payload == NULL) {
        task->violated = true;
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct task part = {.in = {payload, entry.bytes, false},
                        .header = {.flags = WIRE_REPLY_WANTED},
                        .context = entry.context};
    CUresult result = CUDA_SUCCESS;
    uint64_t context = handle_value(KIND_context, entry.context, &result);
    if (result == CUDA_SUCCESS)
        result = DRIVER(cuCtxSetCurrent, CUcontext)((CUcontext)(uintptr_t)context);
    if (result == CUDA_SUCCESS) result = run_entry(entry.op, &part, making, status);
    task->violated |= part.violated;
    return result;
}

/* All that was made is there and known to the client, or none of it is. */
static int finish(struct task *task, struct making *making, int status) {
    REAL(nccl, ncclCommAbort, int, void *);
    int settled = status;
    if (status == NCCL_IN_PROGRESS) status = 0;
    for (unsigned i = 0; status == 0 && i < making->count; i++) {
        if (making->at[i].comm == NULL)
            status = library_facts[LIBRARY_nccl].statuses.unknown;
        else
            status = settle(making, making->at[i].comm, settled);
    }
    for (unsigned i = 0; status == 0 && i < making->used; i++)
        if (making->users[i].settles) status = settle(making, making->users[i].comm, settled);
    for (unsigned i = 0; i < making->count; i++)
        if (status == 0)
            handle_bind(task, KIND_nccl_comm, making->at[i].handle,
                        (uint64_t)(uintptr_t)making->at[i].comm);
        else if (making->at[i].comm != NULL && real != NULL)
            real(making->at[i].comm);
    for (unsigned i = 0; i < making->used; i++) library_leave(making->users[i].comm);
    return status;
}

static CUresult run_group(struct task *task, struct making *making, int *status) {
    REAL(nccl, ncclGroupEnd, int, void);
    CUresult result = CUDA_SUCCESS;
    group = making;
    while (*status == 0 && result == CUDA_SUCCESS && task->in.left != 0 && !task->violated)
        result = next_entry(task, making, status);
    group = NULL;
    int ended = real();
    if (*status == 0) *status = ended;
    return result;
}

CUresult library_group(struct task *task) {
    REAL(nccl, ncclGroupStart, int, void);
    if (real == NULL) return library_missing(LIBRARY_nccl);
    struct making *making = calloc(1, sizeof *making);
    if (making == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    uint8_t *reply = library_begin(task);
    CUcontext before = NULL;
    DRIVER(cuCtxGetCurrent, CUcontext *)(&before);
    int status = real();
    CUresult result = CUDA_SUCCESS;
    if (status == 0) result = run_group(task, making, &status);
    if (result != CUDA_SUCCESS && status == 0)
        status = library_facts[LIBRARY_nccl].statuses.unknown;
    status = finish(task, making, status);
    DRIVER(cuCtxSetCurrent, CUcontext)(before);
    free(making);
    if (result != CUDA_SUCCESS || status == 0) return result;
    return library_failed(task, reply, status, LIBRARY_nccl);
}
