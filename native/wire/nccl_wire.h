/* Groups of library calls, and the creation of NCCL communicators. Source of names and numbers: the
 * public header nccl.h. */
#ifndef EGPU_WIRE_NCCL_H
#define EGPU_WIRE_NCCL_H

#include "libraries_wire.h"

/* LIBRARY_GROUP: calls that belong together, in their order, each with the context that was
 * current. The padded payload of each follows it. */
struct wire_group_entry {
    uint64_t context;
    uint32_t op, bytes;
};
#define LIBRARY_MOST_GROUPED (192u << 10) /* bytes of a whole group */
#define NCCL_MOST_MADE 64u                /* communicators per group */

#define NCCL_ID_BYTES 128u
#define NCCL_MOST_IDS 64u
#define NCCL_MOST_EXCLUDED 1024u
#define NCCL_NO_COLOR (-1)
#define NCCL_IN_PROGRESS 7

typedef struct nccl_id {
    char bytes[NCCL_ID_BYTES];
} nccl_id;

#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_UNDEFINED INT32_MIN

/* ncclConfig_t of 2.30. A library reads as much of it as it knows, by size and version. */
struct nccl_config {
    uint64_t size;
    uint32_t magic, version;
    int32_t blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int32_t split_share, traffic_class;
    const char *comm_name;
    int32_t collnet_enable, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer,
        nvlink_centric, graph_usage, rma_contexts, most_p2p_peers, graph_stream_ordering;
};
#define NCCL_CONFIG_VERSION 23007u

static inline struct nccl_config nccl_config_none(void) {
    struct nccl_config none;
    memset(&none, 0, sizeof none);
    for (int32_t *at = &none.blocking; at <= &none.max_ctas; at++) *at = NCCL_UNDEFINED;
    none.split_share = none.traffic_class = NCCL_UNDEFINED;
    for (int32_t *at = &none.collnet_enable; at <= &none.graph_stream_ordering; at++)
        *at = NCCL_UNDEFINED;
    none.size = sizeof none;
    none.magic = NCCL_CONFIG_MAGIC;
    none.version = NCCL_CONFIG_VERSION;
    return none;
}

/* NCCL_INIT: `ids` unique ids and a config follow. */
struct wire_nccl_init {
    uint64_t made;
    int32_t ranks, rank;
    uint32_t ids, zero;
};
/* NCCL_INIT_ALL: handle and device of each communicator follow, as words. */
struct wire_nccl_init_all {
    uint32_t count, zero;
};
/* NCCL_SPLIT: a config follows. `made` is 0 for a rank that takes no part. */
struct wire_nccl_split {
    uint64_t from, made;
    int32_t color, key;
};
/* NCCL_SHRINK: `excluded` ranks as ints, and a config follow. */
struct wire_nccl_shrink {
    uint64_t from, made;
    int32_t flags;
    uint32_t excluded;
};

#endif
