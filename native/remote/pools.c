/* Memory pools of the card are the executor's. Pools of pinned and managed memory would be on its
 * machine, where the program cannot reach them. */
#include "client.h"
#include "generated/stubs.h"

static bool on_the_card(const CUmemLocation *location, CUmemAllocationType type) {
    return location == NULL ||
           (location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED);
}

#define SEEN_BY_BOTH " (memory that the host and a remote GPU both see)"

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (properties != NULL && !on_the_card(&properties->location, properties->allocType))
        return not_supported("cuMemPoolCreate" SEEN_BY_BOTH);
    return forward_cuMemPoolCreate(pool, properties);
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                    CUmemAllocationType type) {
    if (!on_the_card(location, type)) return not_supported("cuMemGetDefaultMemPool" SEEN_BY_BOTH);
    return forward_cuMemGetDefaultMemPool(pool, location, type);
}

API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                             CUmemAllocationType type) {
    if (!on_the_card(location, type)) return not_supported("cuMemGetMemPool" SEEN_BY_BOTH);
    return forward_cuMemGetMemPool(pool, location, type);
}
