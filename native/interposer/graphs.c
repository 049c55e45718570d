/* Arrays, and the memory nodes of graphs: both say how much they need before they take it. */
#include "interposer.h"

/* ---- arrays ---- */

static unsigned bytes_per_channel(CUarray_format format) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    default: return 4; /* 32 bits, and the most that any packed or compressed format needs */
    }
}

/* An upper estimate, for drivers that cannot be asked: lines of 64 bytes, tiles of 8 lines, a third
 * more with mipmaps. */
static uint64_t estimate(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
    uint64_t line = 0, area = 0, volume = 0, width = descriptor->Width, height = descriptor->Height,
             depth = descriptor->Depth;
    if (__builtin_mul_overflow(
            width, (uint64_t)bytes_per_channel(descriptor->Format) * descriptor->NumChannels,
            &line))
        return UINT64_MAX;
    if (height > 0) height = round_up(height, 8);
    if (__builtin_mul_overflow(round_up(line, 64), height > 0 ? height : 1, &area))
        return UINT64_MAX;
    if (__builtin_mul_overflow(area, depth > 0 ? depth : 1, &volume)) return UINT64_MAX;
    if (levels > 1 && __builtin_add_overflow(volume, volume, &volume)) return UINT64_MAX;
    return charge_of(volume);
}

/* others get theirs by mapping */
static bool takes_memory(const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    return (descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

/* What the driver says that such an array needs: asked of one that gets no memory. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels,
                            CUdevice ordinal) {
    CUDA_ARRAY3D_DESCRIPTOR deferred = *descriptor;
    CUDA_ARRAY_MEMORY_REQUIREMENTS needs = {0};
    deferred.Flags |= CUDA_ARRAY3D_DEFERRED_MAPPING;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;
    if (levels == 0) {
        CUarray probe;
        if (REAL(cuArrayGetMemoryRequirements) != NULL &&
            REAL(cuArray3DCreate_v2)(&probe, &deferred) == CUDA_SUCCESS) {
            result = REAL(cuArrayGetMemoryRequirements)(&needs, probe, ordinal);
            REAL(cuArrayDestroy)(probe);
        }
    } else {
        CUmipmappedArray probe;
        if (REAL(cuMipmappedArrayGetMemoryRequirements) != NULL &&
            REAL(cuMipmappedArrayCreate)(&probe, &deferred, levels) == CUDA_SUCCESS) {
            result = REAL(cuMipmappedArrayGetMemoryRequirements)(&needs, probe, ordinal);
            REAL(cuMipmappedArrayDestroy)(probe);
        }
    }
    return result == CUDA_SUCCESS && needs.size > 0 ? charge_of(needs.size)
                                                    : estimate(descriptor, levels);
}

/* CALL creates *ARRAY; DESTROY takes it back. LEVELS 0: not a mipmapped one. */
#define CREATE(ARRAY, DESCRIPTOR, LEVELS, DESTROY, CALL)                                          \
    do {                                                                                          \
        CUcontext context;                                                                        \
        CUdevice ordinal = 0;                                                                     \
        int device = device_current(&context);                                                    \
        if (context == NULL || (ARRAY) == NULL || !takes_memory(DESCRIPTOR)) return CALL;         \
        REAL(cuCtxGetDevice)(&ordinal);                                                           \
        uint64_t bytes = array_bytes((DESCRIPTOR), (LEVELS), ordinal);                            \
        if (!memory_reserve(device, EGPU_MEMORY_ARRAY, bytes)) {                                  \
            account_refused(device);                                                              \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                      \
        }                                                                                         \
        CUresult result = CALL;                                                                   \
        struct holding holding = {.key =                                                          \
                                      result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*(ARRAY) : 0, \
                                  .bytes = bytes,                                                 \
                                  .owner = (uint64_t)(uintptr_t)context,                          \
                                  .references = 1,                                                \
                                  .kind = HOLDING_ARRAY,                                          \
                                  .class = EGPU_MEMORY_ARRAY,                                     \
                                  .device = (int8_t)device};                                      \
        if (result == CUDA_SUCCESS && !table_add(&holding)) {                                     \
            DESTROY(*(ARRAY));                                                                    \
            result = CUDA_ERROR_OUT_OF_MEMORY;                                                    \
        }                                                                                         \
        if (result != CUDA_SUCCESS) account_release(device, EGPU_MEMORY_ARRAY, bytes);            \
        return result;                                                                            \
    } while (0)

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *plain) {
    if (!slice_open()) return REFUSED;
    if (plain == NULL) return REAL(cuArrayCreate_v2)(array, plain);
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = plain->Width,
                                          .Height = plain->Height,
                                          .Format = plain->Format,
                                          .NumChannels = plain->NumChannels};
    CREATE(array, &descriptor, 0, REAL(cuArrayDestroy), REAL(cuArrayCreate_v2)(array, plain));
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor) {
    if (!slice_open()) return REFUSED;
    if (descriptor == NULL) return REAL(cuArray3DCreate_v2)(array, descriptor);
    CREATE(array, descriptor, 0, REAL(cuArrayDestroy), REAL(cuArray3DCreate_v2)(array, descriptor));
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *array,
                                       const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
    if (!slice_open()) return REFUSED;
    if (descriptor == NULL) return REAL(cuMipmappedArrayCreate)(array, descriptor, levels);
    /* The driver makes one level of none. */
    CREATE(array, descriptor, levels ? levels : 1, REAL(cuMipmappedArrayDestroy),
           REAL(cuMipmappedArrayCreate)(array, descriptor, levels));
}

#define DESTROY_ARRAY(SYMBOL, TYPE)                                                   \
    EXPORT CUresult SYMBOL(TYPE array) {                                              \
        struct holding holding;                                                       \
        if (!slice_open()) return REFUSED;                                            \
        bool known = table_take(HOLDING_ARRAY, (uint64_t)(uintptr_t)array, &holding); \
        CUresult result = REAL(SYMBOL)(array);                                        \
        if (known && result != CUDA_SUCCESS) table_add(&holding);                     \
        if (known && result == CUDA_SUCCESS)                                          \
            account_release(holding.device, holding.class, holding.bytes);            \
        return result;                                                                \
    }
DESTROY_ARRAY(cuArrayDestroy, CUarray)
DESTROY_ARRAY(cuMipmappedArrayDestroy, CUmipmappedArray)

/* The first ABIs have 32-bit sizes; no 64-bit program is given them. */
EXPORT CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *descriptor) {
    (void)array, (void)descriptor;
    return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *descriptor) {
    (void)array, (void)descriptor;
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- memory nodes of graphs: one reserve per device, as the driver keeps it ---- */

static egpu_lock graphs_lock;
static struct reserve {
    CUdevice ordinal;
    uint32_t trims; /* since then a graph's memory has to be there anew */
    uint64_t charged, pending;
} reserves[EGPU_MAX_DEVICES];
static uint32_t memory_graphs; /* how many executable graphs have memory nodes */

void graphs_forget(void) {
    graphs_lock.word = 0;
    memory_graphs = 0;
    for (unsigned i = 0; i < EGPU_MAX_DEVICES; i++) reserves[i] = (struct reserve){0};
}

/* Sets the charge to what the driver holds. Under the lock. */
static void reconcile(int device) {
    struct reserve *reserve = &reserves[device];
    cuuint64_t held = 0;
    if (REAL(cuDeviceGetGraphMemAttribute) == NULL ||
        REAL(cuDeviceGetGraphMemAttribute)(reserve->ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                                           &held) != CUDA_SUCCESS)
        return; /* then what was charged before stays */
    held += reserve->pending;
    if (held < reserve->charged)
        account_release(device, EGPU_MEMORY_GRAPH, reserve->charged - held);
    /* More than the nodes asked for is the driver's rounding, and it is held already. */
    if (held > reserve->charged) account_force(device, EGPU_MEMORY_GRAPH, held - reserve->charged);
    reserve->charged = held;
}

static bool enter(int device, uint64_t bytes) {
    if (!memory_reserve(device, EGPU_MEMORY_GRAPH, bytes)) {
        account_refused(device);
        return false;
    }
    lock_take(&graphs_lock);
    reserves[device].charged += bytes;
    reserves[device].pending += bytes;
    lock_drop(&graphs_lock);
    return true;
}

static void leave(int device, uint64_t bytes) {
    lock_take(&graphs_lock);
    reserves[device].pending -= bytes;
    reconcile(device);
    lock_drop(&graphs_lock);
}

bool graphs_at_rest(int device) {
    lock_take(&graphs_lock);
    bool rest = reserves[device].pending == 0;
    lock_drop(&graphs_lock);
    return rest;
}

bool graph_admit(CUgraphExec graph, uint64_t *reserved, int *device) {
    struct holding holding;
    *reserved = 0;
    if (__atomic_load_n(&memory_graphs, __ATOMIC_RELAXED) == 0 ||
        !table_look(HOLDING_GRAPH, (uint64_t)(uintptr_t)graph, &holding))
        return true;
    *device = holding.device;
    if (holding.device < 0) return false;
    /* Once launched, its memory stays in the reserve until that is trimmed. */
    if (holding.owner == __atomic_load_n(&reserves[holding.device].trims, __ATOMIC_RELAXED) + 1)
        return true;
    if (!enter(holding.device, holding.bytes)) return false;
    *reserved = holding.bytes;
    return true;
}

void graph_settle(CUgraphExec graph, CUresult result, uint64_t reserved, int device) {
    struct holding holding;
    if (reserved == 0) return;
    uint64_t backed = __atomic_load_n(&reserves[device].trims, __ATOMIC_RELAXED) + 1ull;
    leave(device, reserved);
    if (result == CUDA_SUCCESS && table_take(HOLDING_GRAPH, (uint64_t)(uintptr_t)graph, &holding)) {
        holding.owner = backed;
        table_add(&holding);
    }
}

void graphs_reconcile(void) {
    lock_take(&graphs_lock);
    for (unsigned device = 0; device < slice_device_count(); device++)
        if (reserves[device].charged != 0) reconcile((int)device);
    lock_drop(&graphs_lock);
}

#define INSTANTIATE(CALL)                                                                         \
    do {                                                                                          \
        CUcontext context;                                                                        \
        CUdevice ordinal = 0;                                                                     \
        if (!slice_open()) return REFUSED;                                                        \
        int device = device_current(&context);                                                    \
        uint64_t bytes = exec == NULL || context == NULL                                          \
                             ? 0                                                                  \
                             : round_up(graph_peak_bytes(graph), PHYSICAL_PAGE);                  \
        if (bytes == 0) return CALL;                                                              \
        if (device < 0) return CUDA_ERROR_OUT_OF_MEMORY;                                          \
        REAL(cuCtxGetDevice)(&ordinal);                                                           \
        lock_take(&graphs_lock);                                                                  \
        reserves[device].ordinal = ordinal;                                                       \
        lock_drop(&graphs_lock);                                                                  \
        if (!enter(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;                               \
        CUresult result = CALL;                                                                   \
        leave(device, bytes);                                                                     \
        struct holding holding = {.key = result == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*exec : 0, \
                                  .bytes = bytes,                                                 \
                                  .references = 1,                                                \
                                  .kind = HOLDING_GRAPH,                                          \
                                  .class = EGPU_MEMORY_GRAPH,                                     \
                                  .device = (int8_t)device};                                      \
        if (result == CUDA_SUCCESS) {                                                             \
            if (!table_add(&holding)) {                                                           \
                REAL(cuGraphExecDestroy)(*exec);                                                  \
                return CUDA_ERROR_OUT_OF_MEMORY;                                                  \
            }                                                                                     \
            __atomic_fetch_add(&memory_graphs, 1, __ATOMIC_RELAXED);                              \
        }                                                                                         \
        return result;                                                                            \
    } while (0)

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                                   size_t size) {
    INSTANTIATE(REAL(cuGraphInstantiate)(exec, graph, error, log, size));
}
EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error,
                                      char *log, size_t size) {
    INSTANTIATE(REAL(cuGraphInstantiate_v2)(exec, graph, error, log, size));
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                            unsigned long long flags) {
    INSTANTIATE(REAL(cuGraphInstantiateWithFlags)(exec, graph, flags));
}
EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(REAL(cuGraphInstantiateWithParams)(exec, graph, parameters));
}
EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
    INSTANTIATE(REAL(cuGraphInstantiateWithParams_ptsz)(exec, graph, parameters));
}

#define UPLOAD(SUFFIX)                                                                \
    EXPORT CUresult cuGraphUpload##SUFFIX(CUgraphExec graph, CUstream stream) {       \
        uint64_t reserved;                                                            \
        int device;                                                                   \
        if (!slice_open()) return REFUSED;                                            \
        if (!graph_admit(graph, &reserved, &device)) return CUDA_ERROR_OUT_OF_MEMORY; \
        CUresult result = REAL(cuGraphUpload##SUFFIX)(graph, stream);                 \
        graph_settle(graph, result, reserved, device);                                \
        return result;                                                                \
    }
UPLOAD()
UPLOAD(_ptsz)

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) {
    struct holding holding;
    if (!slice_open()) return REFUSED;
    bool known = __atomic_load_n(&memory_graphs, __ATOMIC_RELAXED) != 0 &&
                 table_take(HOLDING_GRAPH, (uint64_t)(uintptr_t)graph, &holding);
    CUresult result = REAL(cuGraphExecDestroy)(graph);
    if (known && result != CUDA_SUCCESS)
        table_add(&holding);
    else if (known) {
        __atomic_fetch_sub(&memory_graphs, 1, __ATOMIC_RELAXED);
        graphs_reconcile();
    }
    return result;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
    if (!slice_open()) return REFUSED;
    CUresult result = REAL(cuDeviceGraphMemTrim)(ordinal);
    int device = device_of_ordinal(ordinal);
    if (device >= 0) __atomic_fetch_add(&reserves[device].trims, 1, __ATOMIC_RELAXED);
    graphs_reconcile();
    return result;
}
