/* Creation of communicators, and groups: recorded like the functions of the table. */
#include "nccl_wire.h"

int ncclGroupStart(void) {
    record_begin("ncclGroupStart");
    record_end();
    return 0;
}

int ncclGroupEnd(void) {
    record_begin("ncclGroupEnd");
    record_end();
    return 0;
}

/* Record all but the library's own fields: they may have no pointer of a client. */
static void record_config(const struct nccl_config *config) {
    if (config->size != sizeof *config || config->magic != NCCL_CONFIG_MAGIC ||
        config->blocking != 0 || config->net_name != NULL || config->comm_name != NULL)
        abort();
    record_bytes(&config->cga_cluster_size, 3 * sizeof(int32_t));
}

int ncclCommInitRankConfig(void **comm, int ranks, nccl_id id, int rank,
                           struct nccl_config *config) {
    record_begin("ncclCommInitRankConfig");
    record_word((void *)(uintptr_t)(uint32_t)ranks);
    record_bytes(&id, sizeof id);
    record_word((void *)(uintptr_t)(uint32_t)rank);
    record_config(config);
    record_end();
    *comm = new_object();
    return 0;
}

int ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, const nccl_id *id,
                             struct nccl_config *config) {
    record_begin("ncclCommInitRankScalable");
    record_word((void *)(uintptr_t)(uint32_t)ranks);
    record_word((void *)(uintptr_t)(uint32_t)rank);
    record_bytes(id, (size_t)ids * sizeof *id);
    record_config(config);
    record_end();
    *comm = new_object();
    return 0;
}

int ncclCommInitAll(void **comms, int count, const int *devices) {
    record_begin("ncclCommInitAll");
    for (int i = 0; i < count; i++) record_word(comms[i] = new_object());
    record_bytes(devices, (size_t)count * sizeof *devices);
    record_end();
    return 0;
}

int ncclCommSplit(void *comm, int color, int key, void **made, struct nccl_config *config) {
    record_begin("ncclCommSplit");
    record_word(comm);
    record_word((void *)(uintptr_t)(uint32_t)color);
    record_word((void *)(uintptr_t)(uint32_t)key);
    record_config(config);
    record_end();
    *made = color < 0 ? NULL : new_object();
    return 0;
}

int ncclCommShrink(void *comm, int *excluded, int count, void **made, struct nccl_config *config,
                   int flags) {
    record_begin("ncclCommShrink");
    record_word(comm);
    record_bytes(excluded, (size_t)count * sizeof *excluded);
    record_word((void *)(uintptr_t)(uint32_t)flags);
    record_config(config);
    record_end();
    *made = new_object();
    return 0;
}
