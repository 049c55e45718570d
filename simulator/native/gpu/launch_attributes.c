/* Attributes of launches and of kernel nodes in graphs. Those without effect are stored and
 * returned as given. */
#include "engine.h"

#include <string.h>

static bool multiple_of_cluster(const struct launch_how *how) {
    for (int i = 0; i < 3; i++)
        if (how->cluster[i] && how->preferred[i] % how->cluster[i]) return false;
    return true;
}

static CUresult set_dimensions(unsigned to[3], unsigned x, unsigned y, unsigned z) {
    if (!x != !y || !x != !z) return CUDA_ERROR_INVALID_VALUE;
    to[0] = x, to[1] = y, to[2] = z;
    return CUDA_SUCCESS;
}

static CUresult keep(int *to, int value, int least, int most) {
    if (value < least || value > most) return CUDA_ERROR_INVALID_VALUE;
    *to = value;
    return CUDA_SUCCESS;
}

CUresult launch_attribute_set(struct launch_how *how, int which,
                              const CUlaunchAttributeValue *value) {
    CUresult result = CUDA_SUCCESS;
    switch (which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: how->window = value->accessPolicyWindow; break;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: how->cooperative = value->cooperative != 0; break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        return set_dimensions(how->cluster, value->clusterDim.x, value->clusterDim.y,
                              value->clusterDim.z);
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        result = set_dimensions(how->preferred, value->preferredClusterDim.x,
                                value->preferredClusterDim.y, value->preferredClusterDim.z);
        return result == CUDA_SUCCESS && !multiple_of_cluster(how) ? CUDA_ERROR_INVALID_VALUE
                                                                   : result;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        return keep(&how->scheduling, (int)value->clusterSchedulingPolicyPreference,
                    CU_CLUSTER_SCHEDULING_POLICY_DEFAULT,
                    CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING);
    case CU_LAUNCH_ATTRIBUTE_PORTABLE_CLUSTER_SIZE_MODE:
        return keep(&how->portable, (int)value->portableClusterSizeMode,
                    CU_LAUNCH_PORTABLE_CLUSTER_MODE_DEFAULT,
                    CU_LAUNCH_PORTABLE_CLUSTER_MODE_ALLOW_NON_PORTABLE);
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        how->priority = value->priority;
        how->has_priority = true;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: how->domains = value->memSyncDomainMap; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        return keep(&how->domain, (int)value->memSyncDomain, CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT,
                    CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return keep(&how->carveout, (int)value->sharedMemCarveout, -1, 100);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUresult launch_attribute_get(const struct launch_how *how, int which,
                              CUlaunchAttributeValue *value) {
    *value = (CUlaunchAttributeValue){0};
    switch (which) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: value->accessPolicyWindow = how->window; break;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: value->cooperative = how->cooperative; break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        memcpy(&value->clusterDim, how->cluster, sizeof how->cluster);
        break;
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        memcpy(&value->preferredClusterDim, how->preferred, sizeof how->preferred);
        break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        value->clusterSchedulingPolicyPreference = (CUclusterSchedulingPolicy)how->scheduling;
        break;
    case CU_LAUNCH_ATTRIBUTE_PORTABLE_CLUSTER_SIZE_MODE:
        value->portableClusterSizeMode = (CUlaunchAttributePortableClusterMode)how->portable;
        break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: value->priority = how->priority; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: value->memSyncDomainMap = how->domains; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        value->memSyncDomain = (CUlaunchMemSyncDomain)how->domain;
        break;
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        value->sharedMemCarveout = (unsigned)how->carveout;
        break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
