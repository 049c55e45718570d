/* What a pointer is: answered from the list of allocations, or by the executor. */
#include "client.h"

static CUresult ask(void *data, CUpointer_attribute attribute, CUdeviceptr pointer, size_t bytes) {
    struct call call;
    call_start(&call, OP_POINTER_ATTRIBUTE);
    struct wire_pointer_attribute question = {pointer, (uint32_t)attribute, 0};
    CUresult result = call_begin(&call, sizeof question, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &question, sizeof question);
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS) get_bytes(&call.in, data, bytes);
    call_end(&call);
    return result;
}

/* The ordinal of the card that holds a pointer which is not in the list, such as a module's
 * variable, on the current context's server. */
static CUresult ask_ordinal(int *ordinal, CUdeviceptr pointer) {
    struct handle_entry *current = handle_entry(context_current());
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = ask(ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer, sizeof *ordinal);
    if (result == CUDA_SUCCESS)
        *ordinal = ordinal_of(links[wire_server(context_current())], (unsigned)*ordinal);
    return result;
}

/* The context of such a pointer is the current one, if that is on the same card. */
static CUresult ask_context(uint64_t *context, CUdeviceptr pointer) {
    int ordinal;
    CUresult result = ask_ordinal(&ordinal, pointer);
    if (result != CUDA_SUCCESS) return result;
    const struct shadow_context *current = handle_entry(context_current())->info;
    if (current == NULL || current->ordinal != ordinal) return CUDA_ERROR_INVALID_VALUE;
    *context = context_current();
    return CUDA_SUCCESS;
}

static CUresult pointer_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    struct allocation a;
    struct link *link = NULL;
    if (context_current()) link = links[wire_server(context_current())];
    bool known = allocation_find(link, pointer, &a) || allocation_find(NULL, pointer, &a);
    bool host = known && a.kind != ALLOCATION_DEVICE;
    struct handle_entry *context = known ? handle_entry(a.context) : NULL;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        if (!known) return ask_context(data, pointer);
        *(uint64_t *)data = a.context;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        if (!known) return ask(data, attribute, pointer, 4);
        *(unsigned *)data = host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host) return CUDA_ERROR_INVALID_VALUE;
        *(uint64_t *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        if (!known) return ask_ordinal(data, pointer);
        if (context == NULL || context->info == NULL) return CUDA_ERROR_INVALID_VALUE;
        *(int *)data = ((struct shadow_context *)context->info)->ordinal;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (!known) return ask(data, attribute, pointer, 8);
        *(uint64_t *)data = pointer;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        if (!known) return ask(data, attribute, pointer, 8);
        *(uint64_t *)data = a.base;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        if (!host && (!known || a.link == link)) return ask(data, attribute, pointer, 8);
        *(size_t *)data = a.bytes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        if (!known) return ask(data, attribute, pointer, 4);
        *(unsigned *)data = 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        if (!known) return ask(data, attribute, pointer, 4);
        *(unsigned *)data = 1;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    return data == NULL ? CUDA_ERROR_INVALID_VALUE : pointer_attribute(data, attribute, pointer);
}

API CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                    void **data, CUdeviceptr pointer) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (count == 0 || attributes == NULL || data == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        if (data[i] == NULL) return CUDA_ERROR_INVALID_VALUE;
        if (pointer_attribute(data[i], attributes[i], pointer) == CUDA_SUCCESS) continue;
        switch ((int)attributes[i]) { /* nobody's pointer: zeros, and that is no error */
        case CU_POINTER_ATTRIBUTE_CONTEXT:
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: memset(data[i], 0, 8); break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data[i] = -2; break;
        default: memset(data[i], 0, 4);
        }
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                   CUdeviceptr pointer) {
    struct allocation a;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
        !allocation_find(NULL, pointer, &a))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* copies are synchronous towards every observer already */
}
