/* Initialisation, device queries, and cuGetProcAddress. */
#include "cuda_api.h"
#include "driver_table.h"
#include "gate.h"
#include "common/export_table.h"
#include "common/runtime_remedy.h"
#include "not_supported.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* ---- the driver itself ---- */

API CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : engine_init(); }

/* It also answers before cuInit, so it reads the machine itself. */
UNGATED static int driver_version(void) {
    static _Atomic int known;
    int version = atomic_load(&known);
    if (version) return version;
    char directory[sizeof engine.machine.directory];
    struct machine machine;
    version = 13000;
    if (machine_library_directory((const void *)&engine, directory, sizeof directory) == 0 &&
        machine_open(&machine, directory) == 0) {
        version = (int)machine.header->cuda_version;
        machine_close(&machine);
    }
    atomic_store(&known, version);
    return version;
}

UNGATED API CUresult cuDriverGetVersion(int *version) {
    NEED(version);
    *version = driver_version();
    return CUDA_SUCCESS;
}

UNGATED API CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    if (table) *table = NULL;
    if (export_table_of_runtime(id)) {
        char remedy[2 * PATH_MAX];
        runtime_remedy(remedy, sizeof remedy);
        engine_lacks("NVIDIA's runtime library (cuGetExportTable), which only a real card has",
                     remedy);
    }
    return CUDA_ERROR_NOT_FOUND;
}

int egpu_driver_not_supported(const char *symbol) {
    return engine_unsupported(symbol, egpu_driver_remedy(symbol));
}

void *driver_entry(int id); /* cuda_entries.c */

UNGATED static CUresult look_up(const char *symbol, void **entry, int version, cuuint64_t flags,
                                CUdriverProcAddressQueryResult *status) {
    if (!symbol || !*symbol || !entry || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    egpu_driver_status found;
    const egpu_driver_fn *function =
        egpu_driver_answer(symbol, version, driver_version(),
                           flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &found);
    *entry = function ? driver_entry((int)(function - egpu_driver_functions)) : NULL;
    if (status) *status = (CUdriverProcAddressQueryResult)found;
    return function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

UNGATED API CUresult cuGetProcAddress(const char *symbol, void **entry, int version,
                                      cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    return look_up(symbol, entry, version, flags, status);
}

#undef cuGetProcAddress
API CUresult cuGetProcAddress(const char *symbol, void **entry, int version, cuuint64_t flags);
UNGATED API CUresult cuGetProcAddress(const char *symbol, void **entry, int version,
                                      cuuint64_t flags) {
    return look_up(symbol, entry, version, flags, NULL);
}

/* ---- devices ---- */

API CUresult cuDeviceGet(CUdevice *out, int ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    *out = device->ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
    NEED_INIT();
    NEED(count);
    *count = engine.device_count;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal) {
    NEED(name && length > 0);
    NEED_DEVICE(device, ordinal);
    snprintf(name, (size_t)length, "%s", device->card->name);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal) {
    NEED(uuid);
    NEED_DEVICE(device, ordinal);
    memcpy(uuid->bytes, device->card->uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

/* The first version ignores instances. */
#undef cuDeviceGetUuid
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal);
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal) {
    NEED(uuid);
    NEED_DEVICE(device, ordinal);
    memcpy(uuid->bytes, machine_board_of(&engine.machine, device->card)->uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem(size_t *bytes, CUdevice ordinal) {
    NEED(bytes);
    NEED_DEVICE(device, ordinal);
    *bytes = device->card->memory_bytes;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal) {
    NEED(major && minor);
    NEED_DEVICE(device, ordinal);
    *major = (int)device->card->cc_major;
    *minor = (int)device->card->cc_minor;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetProperties(CUdevprop *out, CUdevice ordinal) {
    NEED(out);
    NEED_DEVICE(device, ordinal);
    const struct sim_card *card = device->card;
    *out = (CUdevprop){.maxThreadsPerBlock = 1024,
                       .maxThreadsDim = {1024, 1024, 64},
                       .maxGridSize = {2147483647, 65535, 65535},
                       .sharedMemPerBlock = (int)card->shared_per_block,
                       .totalConstantMemory = 65536,
                       .SIMDWidth = 32,
                       .memPitch = 2147483647,
                       .regsPerBlock = 65536,
                       .clockRate = (int)card->sm_clock_mhz * 1000,
                       .textureAlign = 512};
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal) {
    NEED(text && length > 0);
    NEED_DEVICE(device, ordinal);
    const struct sim_card *card = device->card;
    char full[32];
    int needed = snprintf(full, sizeof full, "%04X:%02X:%02X.0", card->pci_domain, card->pci_bus,
                          card->pci_device);
    if (needed >= length) return CUDA_ERROR_INVALID_VALUE;
    memcpy(text, full, (size_t)needed + 1);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *text) {
    NEED(out && text);
    NEED_INIT();
    unsigned domain = 0, bus, slot;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < engine.device_count; i++) {
        const struct sim_card *card = engine.devices[i].card;
        if (card->pci_domain != domain || card->pci_bus != bus || card->pci_device != slot)
            continue;
        *out = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type,
                                            CUdevice ordinal) {
    (void)type;
    NEED(supported);
    NEED_DEVICE(device, ordinal);
    *supported = 0;
    return CUDA_SUCCESS;
}

/* Attributes that do not depend on the card. Those that are 0 on every simulated card are left out:
 * below CU_DEVICE_ATTRIBUTE_MAX, a missing attribute is unsupported and 0. */
static const struct {
    CUdevice_attribute attribute;
    int value;
} constant_attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, -1},
};

static int card_attribute(const struct sim_card *card, CUdevice_attribute attribute) {
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return (int)card->shared_per_block;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return (int)card->shared_per_block_optin;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return (int)card->shared_per_sm;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
        return card->cc_major >= 8 ? 1024 : 0;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return card->cc_major >= 9;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return (int)card->sm_clock_mhz * 1000;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return (int)mps_sm_count(card);
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
        return (int)atomic_load(
            &machine_board_of(&engine.machine, (struct sim_card *)card)->compute_mode);
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: return card->ecc == 1;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return (int)card->pci_bus;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: return (int)card->pci_device;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: return (int)card->pci_domain;
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID: return (int)card->pci_device_id;
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID: return (int)card->pci_subsystem_id;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return (int)card->memory_clock_mhz * 1000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return (int)card->memory_bus_bits;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return (int)card->l2_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return (int)card->max_threads_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return (int)card->max_blocks_per_sm;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return (int)card->async_engines;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return (int)card->cc_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return (int)card->cc_minor;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO: return (int)card->fp64_ratio;
    default: return array_limit(attribute);
    }
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal) {
    NEED(value);
    NEED_DEVICE(device, ordinal);
    if ((int)attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof constant_attributes / sizeof *constant_attributes; i++)
        if (constant_attributes[i].attribute == attribute) {
            *value = constant_attributes[i].value;
            return CUDA_SUCCESS;
        }
    *value = card_attribute(device->card, attribute);
    return CUDA_SUCCESS;
}

/* ---- peers ---- */

static bool linked(const struct device *a, const struct device *b) {
    return a != b && a->card->nvlink_to[b->card->index] > 0;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer_ordinal) {
    NEED(can);
    NEED_DEVICE(device, ordinal);
    struct device *peer = engine_device(peer_ordinal);
    if (!peer) return CUDA_ERROR_INVALID_DEVICE;
    *can = linked(device, peer);
    return CUDA_SUCCESS;
}

/* PTX's support for each (PTX ISA, "atom" and "red"): between linked cards all of it. */
static unsigned atomic_capabilities(CUatomicOperation operation) {
    const unsigned plain = CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_SCALAR_64,
                   counted = plain | CU_ATOMIC_CAPABILITY_REDUCTION;
    switch ((int)operation) {
    case CU_ATOMIC_OPERATION_INTEGER_ADD:
    case CU_ATOMIC_OPERATION_INTEGER_MIN:
    case CU_ATOMIC_OPERATION_INTEGER_MAX:
        return counted | CU_ATOMIC_CAPABILITY_SIGNED | CU_ATOMIC_CAPABILITY_UNSIGNED;
    case CU_ATOMIC_OPERATION_INTEGER_INCREMENT:
    case CU_ATOMIC_OPERATION_INTEGER_DECREMENT:
        return CU_ATOMIC_CAPABILITY_SCALAR_32 | CU_ATOMIC_CAPABILITY_REDUCTION |
               CU_ATOMIC_CAPABILITY_UNSIGNED;
    case CU_ATOMIC_OPERATION_AND:
    case CU_ATOMIC_OPERATION_OR:
    case CU_ATOMIC_OPERATION_XOR: return counted;
    case CU_ATOMIC_OPERATION_EXCHANGE:
    case CU_ATOMIC_OPERATION_CAS: return plain;
    case CU_ATOMIC_OPERATION_FLOAT_ADD: return counted | CU_ATOMIC_CAPABILITY_SIGNED;
    default: return 0; /* no minimum and maximum of floats */
    }
}

static CUresult capabilities_of(unsigned *out, const CUatomicOperation *operations, unsigned count,
                                bool native) {
    NEED(out && operations && count);
    for (unsigned i = 0; i < count; i++) NEED((unsigned)operations[i] < CU_ATOMIC_OPERATION_MAX);
    for (unsigned i = 0; i < count; i++) out[i] = native ? atomic_capabilities(operations[i]) : 0;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetP2PAtomicCapabilities(unsigned *out, const CUatomicOperation *operations,
                                              unsigned count, CUdevice ordinal,
                                              CUdevice peer_ordinal) {
    NEED_DEVICE(device, ordinal);
    struct device *peer = engine_device(peer_ordinal);
    if (!peer || peer == device) return CUDA_ERROR_INVALID_DEVICE;
    return capabilities_of(out, operations, count, linked(device, peer));
}

/* PCIe has none (CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED). */
API CUresult cuDeviceGetHostAtomicCapabilities(unsigned *out, const CUatomicOperation *operations,
                                               unsigned count, CUdevice ordinal) {
    NEED_DEVICE(device, ordinal);
    return capabilities_of(out, operations, count, false);
}

API CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice ordinal,
                                     CUdevice peer_ordinal) {
    NEED(value);
    NEED_DEVICE(device, ordinal);
    struct device *peer = engine_device(peer_ordinal);
    if (!peer || peer == device) return CUDA_ERROR_INVALID_DEVICE;
    switch ((int)attribute) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = linked(device, peer) ? 0 : 1; break;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = linked(device, peer); break;
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
    NEED_CONTEXT(context);
    struct context *peer;
    CUresult result = context_check(handle, &peer);
    if (result != CUDA_SUCCESS) return result;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (peer->device == context->device) return CUDA_ERROR_INVALID_DEVICE;
    if (!linked(context->device, peer->device)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint32_t bit = UINT32_C(1) << peer->device->ordinal;
    return atomic_fetch_or(&context->peers, bit) & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
                                                       : CUDA_SUCCESS;
}

API CUresult cuCtxDisablePeerAccess(CUcontext handle) {
    NEED_CONTEXT(context);
    struct context *peer;
    CUresult result = context_check(handle, &peer);
    if (result != CUDA_SUCCESS) return result;
    uint32_t bit = UINT32_C(1) << peer->device->ordinal;
    return atomic_fetch_and(&context->peers, ~bit) & bit ? CUDA_SUCCESS
                                                         : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

/* ---- our own: the clock of a machine made with clock="manual" ---- */

/* Nanoseconds; 0 before cuInit. */
API unsigned long long egpuSimClockNow(void);
UNGATED API unsigned long long egpuSimClockNow(void) { return engine_ready() ? sim_now() : 0; }

/* All processes of the machine see the change. -1: the clock is not manual. */
API int egpuSimClockAdvance(unsigned long long ns);
UNGATED API int egpuSimClockAdvance(unsigned long long ns) {
    return engine_ready() && sim_clock_advance(ns) ? 0 : -1;
}

API void egpuSimClockSleepUntil(unsigned long long ns);
UNGATED API void egpuSimClockSleepUntil(unsigned long long ns) {
    if (engine_ready()) sim_sleep_until(ns);
}
