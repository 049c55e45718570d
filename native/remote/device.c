/* Device queries, answered from the snapshot that came with the welcome. */
#define _GNU_SOURCE
#include "client.h"

#include <stdio.h>

/* Of one of the program's devices, or of any card that our NVML asks for. */
static struct link *link_of(CUdevice ordinal, unsigned *local) {
    return ordinal >= WIRE_EVERY_CARD ? link_of_card((unsigned)(ordinal - WIRE_EVERY_CARD), local)
                                      : link_of_device(ordinal, local);
}

static CUresult device_of(CUdevice ordinal, const struct device **device) {
    unsigned local;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    struct link *link = link_of(ordinal, &local);
    if (link == NULL) return CUDA_ERROR_INVALID_DEVICE;
    *device = &link->devices[local];
    return atomic_load_explicit(&link->dead, memory_order_relaxed) ? CUDA_ERROR_DEVICE_UNAVAILABLE
                                                                   : CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = (int)visible_count();
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    const struct device *is;
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(ordinal, &is);
    if (result == CUDA_SUCCESS && ordinal >= WIRE_EVERY_CARD) result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS) *device = ordinal;
    return result;
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal) {
    const struct device *is;
    if (name == NULL || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(ordinal, &is);
    if (result == CUDA_SUCCESS) snprintf(name, (size_t)length, "%s", is->is.name);
    return result;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal) {
    const struct device *is;
    if (uuid == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(ordinal, &is);
    if (result == CUDA_SUCCESS) memcpy(uuid->bytes, is->is.uuid, sizeof uuid->bytes);
    return result;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal) {
    return cuDeviceGetUuid_v2(uuid, ordinal);
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal) {
    const struct device *is;
    if (major == NULL || minor == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(ordinal, &is);
    if (result == CUDA_SUCCESS) *major = (int)is->is.major, *minor = (int)is->is.minor;
    return result;
}

API CUresult cuDeviceGetPCIBusId(char *id, int length, CUdevice ordinal) {
    const struct device *is;
    if (id == NULL || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(ordinal, &is);
    if (result != CUDA_SUCCESS) return result;
    if (strlen(is->is.pci) >= (size_t)length) return CUDA_ERROR_INVALID_VALUE;
    memcpy(id, is->is.pci, strlen(is->is.pci) + 1);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    unsigned domain = 0, bus, slot, other_domain, other_bus, other_slot;
    if (device == NULL || id == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(id, "%x:%x", &bus, &slot) != 2) return CUDA_ERROR_INVALID_VALUE;
    }
    for (int ordinal = 0; ordinal < (int)visible_count(); ordinal++) {
        unsigned local;
        const struct link *link = link_of_device(ordinal, &local);
        if (sscanf(link->devices[local].is.pci, "%x:%x:%x", &other_domain, &other_bus,
                   &other_slot) != 3)
            continue;
        if (other_domain != domain || other_bus != bus || other_slot != slot) continue;
        *device = ordinal;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* Attributes that differ from the card's because the program's memory is on another machine. */
static bool differs(const struct link *link, CUdevice_attribute attribute, int *value) {
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: *value = 0; return true;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        if (link->transport->maps_host_memory) return false;
        *value = 0;
        return true;
    default: return false;
    }
}

API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal) {
    const struct device *is;
    unsigned local;
    if (value == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(ordinal, &is);
    if (result != CUDA_SUCCESS) return result;
    if ((int)attribute < 1 || (unsigned)attribute >= WIRE_ATTRIBUTES ||
        is->attributes[attribute] == WIRE_NO_ATTRIBUTE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!differs(link_of(ordinal, &local), attribute, value)) *value = is->attributes[attribute];
    return CUDA_SUCCESS;
}

/* Cards of two servers cannot access each other. */
API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    unsigned local;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    struct link *a = link_of_device(device, &local), *b = link_of_device(peer, &local);
    if (can == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (a == NULL || b == NULL) return CUDA_ERROR_INVALID_DEVICE;
    if (a == b) return forward_cuDeviceCanAccessPeer(can, device, peer);
    *can = 0;
    return CUDA_SUCCESS;
}

/* Used by our NVML in the same folder: the server's NVML view of a card, limited to the slice. */
API CUresult egpuDeviceStatus(CUdevice ordinal, struct wire_device_status *status,
                              struct wire_process *processes, uint32_t room);
CUresult egpuDeviceStatus(CUdevice ordinal, struct wire_device_status *status,
                          struct wire_process *processes, uint32_t room) {
    unsigned local;
    struct call call;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    call_start(&call, OP_DEVICE_STATUS);
    if ((call.link = link_of(ordinal, &local)) == NULL) return CUDA_ERROR_INVALID_DEVICE;
    struct wire_device_status_ask ask = {local, 0};
    if ((result = call_begin(&call, sizeof ask, CALL_WAITS)) != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &ask, sizeof ask);
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS) {
        get_bytes(&call.in, status, sizeof *status);
        if (status->processes > room) status->processes = room;
        for (uint32_t i = 0; i < status->processes; i++)
            get_bytes(&call.in, &processes[i], sizeof *processes);
        status->driver[sizeof status->driver - 1] = 0;
        result = call_checked(&call);
    }
    call_end(&call);
    return result;
}
