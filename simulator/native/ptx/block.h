/* Blocks while they run, between their schedule (block.c) and the launch (launch.c). */
#ifndef EGPU_PTX_BLOCK_H
#define EGPU_PTX_BLOCK_H

#include "exec.h"

struct barrier {
    uint32_t arrived;
    uint32_t expected; /* 0: every live thread */
};

struct block {
    struct cluster *cluster;
    struct exec *x;
    struct thread *threads;
    uint32_t count, live;
    uint32_t position[3]; /* %ctaid */
    uint8_t *shared;
    struct barrier barriers[BARRIERS];
};

/* A launch's cluster, or one block. */
struct cluster {
    struct exec *x;
    struct block blocks[EGPU_PTX_CLUSTER_BLOCKS];
    uint8_t *shared[EGPU_PTX_CLUSTER_BLOCKS];
    uint32_t count;
    uint32_t phase;  /* how often all its threads have reached its barrier */
    bool at_barrier; /* some threads have reached it */
    struct window *free_windows;
};

/* Run clusters to their end. They take turns, so they may wait for each other. False: the error is
 * in x. */
bool run_clusters(struct cluster *clusters, uint64_t count);

void window_free(struct window *window);

#endif
