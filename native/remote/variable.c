/* Variables of modules and libraries. The driver chooses their places, so the client cannot ask for
 * another one if the program has memory there. From the time when the program asks for an address
 * it is in the list of allocations, and reserved here if that is possible.
 */
#include "client.h"

static void note(uint64_t image, uint64_t context, CUdeviceptr address, size_t bytes) {
    struct link *link = links[wire_server(image)];
    struct allocation known;
    if (bytes == 0 || (allocation_find(link, address, &known) && known.image == image)) return;
    bool taken = addresses_take(link->index, address, bytes) == ADDRESSES_TAKEN;
    bool added = allocation_add((struct allocation){.base = address,
                                                    .bytes = bytes,
                                                    .context = context,
                                                    .link = link,
                                                    .kind = ALLOCATION_DEVICE,
                                                    .taken = taken,
                                                    .image = image});
    if (taken && !added) addresses_give(address, bytes);
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
                                  const char *name) {
    if (address == NULL) return forward_cuModuleGetGlobal_v2(address, bytes, module, name);
    size_t found;
    CUresult result = forward_cuModuleGetGlobal_v2(address, &found, module, name);
    if (result != CUDA_SUCCESS) return result;
    if (bytes != NULL) *bytes = found;
    uint64_t image = (uint64_t)(uintptr_t)module;
    struct handle_entry *entry = handle_entry(image);
    if (entry != NULL) note(image, entry->context, *address, found);
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                const char *name) {
    if (address == NULL) return forward_cuLibraryGetGlobal(address, bytes, library, name);
    size_t found;
    CUresult result = forward_cuLibraryGetGlobal(address, &found, library, name);
    if (result != CUDA_SUCCESS) return result;
    if (bytes != NULL) *bytes = found;
    note((uint64_t)(uintptr_t)library, context_current(), *address, found);
    return CUDA_SUCCESS;
}
