/* Variables of modules and libraries. The driver chooses their places, so the client cannot ask for
 * another one if the program has memory there. From the time when the program asks for an address
 * it is in the list of allocations, and reserved here if that is possible.
 *
 * Our runtime names variables in its copies. The program does not get their addresses, so its
 * session can move between two copies.
 */
#include "client.h"

API CUresult egpuVariableBegin(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                               const char *name);
API CUresult egpuVariableEnd(CUlibrary library);

static _Thread_local struct {
    uint64_t base, bytes;
} in_use; /* for the copy that our runtime makes in this thread */

bool variable_in_use(uint64_t pointer) { return pointer - in_use.base < in_use.bytes; }

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

/* The address holds until egpuVariableEnd. */
CUresult egpuVariableBegin(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                           const char *name) {
    struct call call;
    struct wire_variable ask;
    call_start(&call, OP_VARIABLE);
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS)
        result = call_handle(&call, KIND_library, (uint64_t)(uintptr_t)library, &ask.library);
    if (result == CUDA_SUCCESS)
        result = call_begin(&call, sizeof ask + 8 + padded(strlen(name) + 1), CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &ask, sizeof ask);
    put_string(&call.out, name);
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS) {
        *address = get_word(&call.in);
        *bytes = get_word(&call.in);
        result = call_checked(&call);
    }
    call_end(&call);
    if (result == CUDA_SUCCESS) {
        in_use.base = *address;
        in_use.bytes = *bytes;
    }
    return result;
}

CUresult egpuVariableEnd(CUlibrary library) {
    struct call call;
    uint64_t unused;
    in_use.bytes = 0;
    call_start(&call, OP_VARIABLE_DONE);
    CUresult result = call_handle(&call, KIND_library, (uint64_t)(uintptr_t)library, &unused);
    if (result == CUDA_SUCCESS) result = call_begin(&call, 0, CALL_POSTED);
    return result == CUDA_SUCCESS ? call_post(&call) : result;
}
