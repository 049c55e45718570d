/* Clusters: blocks that run together on one GPU processing cluster (GPC) of a card.
 *
 * Published facts: all blocks of a cluster are on one GPC; 8 blocks are portable among cards of
 * compute capability 9.0 and later, 16 are the most of an H100 (CUDA C++ Programming Guide, "Thread
 * Block Clusters"; NVIDIA Hopper Tuning Guide). A GPC of GH100 has up to 18 multiprocessors, in
 * pairs, and an H100 has 132 of them in 8 GPCs (NVIDIA H100 Tensor Core GPU Architecture). How many
 * each GPC of a card has is not published: they are spread as evenly as pairs allow. For later
 * cards 20 per GPC are assumed.
 */
#include "engine.h"

enum { PORTABLE_BLOCKS = 8 };

void cluster_shape(const struct function *function, const struct launch_how *how,
                   unsigned cluster[3]) {
    for (int i = 0; i < 3; i++)
        cluster[i] = how->cluster[0] ? how->cluster[i] : function->required_cluster[i];
}

static bool none(const unsigned cluster[3]) { return !cluster[0] && !cluster[1] && !cluster[2]; }

unsigned cluster_limit(const struct sim_card *card, const struct function *function,
                       const struct launch_how *how) {
    bool large = how->portable == CU_LAUNCH_PORTABLE_CLUSTER_MODE_DEFAULT
                     ? function->large_clusters
                     : how->portable == CU_LAUNCH_PORTABLE_CLUSTER_MODE_ALLOW_NON_PORTABLE;
    if (card->cc_major < 9) return 1;
    return large ? EGPU_PTX_CLUSTER_BLOCKS : PORTABLE_BLOCKS;
}

int cluster_occupancy(const struct sim_card *card, const struct function *function, int block_size,
                      size_t dynamic_shared, unsigned blocks) {
    unsigned pairs = mps_sm_count(card) / 2, most = card->cc_major == 9 ? 9 : 10;
    unsigned gpcs = (pairs + most - 1) / most;
    int each = occupancy_blocks_per_sm(card, function, block_size, dynamic_shared), clusters = 0;
    for (unsigned i = 0; i < gpcs && blocks; i++) {
        unsigned here = pairs / gpcs + (i < pairs % gpcs);
        clusters += (int)(here * 2 * (unsigned)each / blocks);
    }
    return clusters;
}

CUresult cluster_check(const struct function *function, const unsigned grid[3],
                       const unsigned block[3], unsigned shared_bytes,
                       const struct launch_how *how) {
    const struct sim_card *card = function->module->context->device->card;
    unsigned cluster[3];
    uint64_t blocks = 1;
    cluster_shape(function, how, cluster);
    if (none(cluster))
        return function->info->explicit_cluster ? CUDA_ERROR_INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
    for (int i = 0; i < 3; i++) {
        if (cluster[i] == 0 || grid[i] % cluster[i] ||
            (function->required_cluster[0] && cluster[i] != function->required_cluster[i]))
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        blocks *= cluster[i];
        if (blocks > INT32_MAX) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    if (card->cc_major < 9) return blocks == 1 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
    int threads = (int)(block[0] * block[1] * block[2]);
    return blocks <= cluster_limit(card, function, how) &&
                   cluster_occupancy(card, function, threads, shared_bytes, (unsigned)blocks)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_CLUSTER_SIZE;
}
