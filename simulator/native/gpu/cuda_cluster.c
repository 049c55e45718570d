/* Clusters in the C ABI: see cluster.c. */
#include "cuda_api.h"

struct clusters {
    struct function *function;
    struct launch_how how;
    int block_size;
};

static CUresult asked_of(struct context *context, CUfunction handle, const CUlaunchConfig *config,
                         struct clusters *asked) {
    NEED(config && (config->attrs || !config->numAttrs));
    CUresult result = function_of(handle, context, &asked->function);
    for (unsigned i = 0; i < config->numAttrs && result == CUDA_SUCCESS; i++)
        if (launch_attribute_set(&asked->how, (int)config->attrs[i].id, &config->attrs[i].value) ==
            CUDA_ERROR_INVALID_VALUE)
            result = CUDA_ERROR_INVALID_VALUE;
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (result == CUDA_SUCCESS && (threads == 0 || threads > 1024)) return CUDA_ERROR_INVALID_VALUE;
    asked->block_size = (int)threads;
    return result;
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction handle,
                                                const CUlaunchConfig *config) {
    struct clusters asked = {0};
    NEED_CONTEXT(context);
    NEED(size);
    const struct sim_card *card = context->device->card;
    CUresult result = asked_of(context, handle, config, &asked);
    if (result != CUDA_SUCCESS) return result;
    if (card->cc_major < 9) return CUDA_ERROR_NOT_SUPPORTED;
    int blocks = (int)cluster_limit(card, asked.function, &asked.how);
    while (blocks && !cluster_occupancy(card, asked.function, asked.block_size,
                                        config->sharedMemBytes, (unsigned)blocks))
        blocks--;
    *size = blocks;
    return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction handle,
                                          const CUlaunchConfig *config) {
    struct clusters asked = {0};
    unsigned cluster[3];
    NEED_CONTEXT(context);
    NEED(count);
    const struct sim_card *card = context->device->card;
    CUresult result = asked_of(context, handle, config, &asked);
    if (result != CUDA_SUCCESS) return result;
    if (card->cc_major < 9) return CUDA_ERROR_NOT_SUPPORTED;
    cluster_shape(asked.function, &asked.how, cluster);
    uint64_t blocks = (uint64_t)cluster[0] * cluster[1] * cluster[2];
    if (!blocks) blocks = 1;
    if (blocks > cluster_limit(card, asked.function, &asked.how))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    *count = cluster_occupancy(card, asked.function, asked.block_size, config->sharedMemBytes,
                               (unsigned)blocks);
    return CUDA_SUCCESS;
}
