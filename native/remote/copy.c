/* Copies between the program's memory and the card's.
 *
 * Small copies to a pointer that is known to be valid are posted with their data. Longer ones go in
 * pieces of up to 1 MiB, straight from the program's memory (stream) or through the bulk area
 * (shared memory), several at a time. The last piece is waited for, so the program may reuse its
 * memory when a call returns. Pinned memory that the executor also maps is not moved at all.
 */
#define _GNU_SOURCE
#include "client.h"

CUresult copy_place(CUstream stream, bool wait, struct where *where) {
    struct call probe;
    call_start(&probe, 0);
    CUresult result = context_needed(&where->link);
    if (result == CUDA_SUCCESS)
        result = call_handle(&probe, KIND_stream, (uint64_t)(uintptr_t)stream, &where->stream);
    if (result == CUDA_SUCCESS && probe.link != where->link) result = CUDA_ERROR_INVALID_HANDLE;
    where->wait = wait;
    return result;
}

/* ---- host to device ---- */

static CUresult in_small(const struct where *where, uint64_t to, const void *from, size_t bytes,
                         bool known) {
    struct call call;
    call_start(&call, OP_COPY_IN);
    call.link = where->link;
    struct wire_copy_in copy = {to, where->stream, (uint32_t)bytes, where->wait};
    CUresult result =
        call_begin(&call, sizeof copy + padded(bytes), known ? CALL_POSTED : CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &copy, sizeof copy);
    put_bytes(&call.out, from, bytes);
    if (known) return call_post(&call);
    result = call_exchange(&call);
    call_end(&call);
    return result;
}

/* From or to memory that the executor maps. */
static CUresult host_copy(const struct where *where, uint16_t op, uint64_t device, const void *host,
                          size_t bytes, bool posted) {
    struct call call;
    call_start(&call, op);
    call.link = where->link;
    struct wire_copy_host copy = {
        device, (uint64_t)(uintptr_t)host, bytes, where->stream, where->wait, 0};
    CUresult result = call_begin(&call, sizeof copy, posted ? CALL_POSTED : CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &copy, sizeof copy);
    if (posted) return call_post(&call);
    result = call_exchange(&call);
    call_end(&call);
    return result;
}

bool mapped_there(const struct link *link, const void *host, size_t bytes) {
    struct allocation a;
    return allocation_find(NULL, (uint64_t)(uintptr_t)host, &a) && a.shared && a.link == link &&
           allocation_covers(&a, (uint64_t)(uintptr_t)host, bytes);
}

CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream, bool wait) {
    struct where where;
    CUresult result = copy_place(stream, wait, &where);
    if (result != CUDA_SUCCESS) return result;
    if (from == NULL && bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    struct allocation a;
    bool known = allocation_find(where.link, to, &a) && allocation_covers(&a, to, bytes);
    if (bytes == 0 && known) return CUDA_SUCCESS;
    bool written_down = !wait && capturing(stream);
    if (written_down && mapped_there(where.link, from, bytes))
        return host_copy(&where, OP_COPY_HOST_IN, to, from, bytes, false);
    if (written_down)
        return captured_copy(stream, &(CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                                                      .srcHost = from,
                                                      .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                                      .dstDevice = to,
                                                      .WidthInBytes = bytes,
                                                      .Height = 1,
                                                      .Depth = 1});
    if (bytes > POSTED_BYTES && mapped_there(where.link, from, bytes))
        return host_copy(&where, OP_COPY_HOST_IN, to, from, bytes, known && !wait);
    if (bytes <= POSTED_BYTES) return in_small(&where, to, from, bytes, known);
    /* All pieces but the last are posted. Their errors come with the last one's reply and belong to
     * this call, unless an earlier call's error was already pending. */
    uint32_t before = atomic_load(&where.link->pending_error);
    result = where.link->transport->copy_in(&where, to, from, bytes);
    uint32_t posted = before ? 0 : atomic_exchange(&where.link->pending_error, 0);
    return result == CUDA_SUCCESS ? (CUresult)posted : result;
}

/* ---- device to host ---- */

CUresult copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait) {
    struct where where;
    CUresult result = copy_place(stream, wait, &where);
    if (result != CUDA_SUCCESS) return result;
    if (to == NULL && bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    struct allocation a;
    bool known = allocation_find(where.link, from, &a) && allocation_covers(&a, from, bytes);
    if (bytes != 0 && mapped_there(where.link, to, bytes))
        return host_copy(&where, OP_COPY_HOST_OUT, from, to, bytes, known && !wait);
    if (bytes != 0 && !wait && capturing(stream))
        return captured_copy(stream, &(CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                                      .srcDevice = from,
                                                      .dstMemoryType = CU_MEMORYTYPE_HOST,
                                                      .dstHost = to,
                                                      .WidthInBytes = bytes,
                                                      .Height = 1,
                                                      .Depth = 1});
    /* no bytes: the executor still checks the pointer */
    if (bytes == 0) return bulk_out_stream(&where, to, from, bytes);
    return where.link->transport->copy_out(&where, to, from, bytes);
}

/* ---- the API ---- */

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy_in(to, from, bytes, NULL, true);
}
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy_out(to, from, bytes, NULL, true);
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy_in(to, from, bytes, stream, false);
}
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_out(to, from, bytes, stream, false);
}

/* Within a card: posted when both ranges are known to be good. */
CUresult copy_rect(CUdeviceptr to, size_t to_pitch, CUdeviceptr from, size_t from_pitch,
                   size_t width, size_t rows, CUstream stream, bool wait) {
    struct where where;
    CUresult result = copy_place(stream, wait, &where);
    if (result != CUDA_SUCCESS) return result;
    struct allocation a, b;
    bool known = rows == 1 && allocation_find(where.link, to, &a) &&
                 allocation_covers(&a, to, width) && allocation_find(where.link, from, &b) &&
                 allocation_covers(&b, from, width);
    struct call call;
    call_start(&call, OP_COPY_RECT);
    call.link = where.link;
    struct wire_copy_rect copy = {to,   to_pitch,     from, from_pitch, width,
                                  rows, where.stream, wait, 0};
    if ((result = call_begin(&call, sizeof copy, known ? CALL_POSTED : CALL_WAITS)) != CUDA_SUCCESS)
        return result;
    put_bytes(&call.out, &copy, sizeof copy);
    if (known) return call_post(&call);
    result = call_exchange(&call);
    call_end(&call);
    return result;
}

API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_rect(to, bytes, from, bytes, bytes, 1, NULL, true);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_rect(to, bytes, from, bytes, bytes, 1, stream, false);
}

bool on_device(CUdeviceptr pointer) {
    struct link *link;
    struct allocation a;
    if (context_needed(&link) != CUDA_SUCCESS) return false;
    if (variable_in_use(pointer)) return true;
    /* If its addresses could not be reserved the program may have memory at them. A variable has no
     * other place. The program has asked for its address, so its few bytes are rather the
     * variable's. */
    if (allocation_find(link, pointer, &a))
        return a.kind == ALLOCATION_DEVICE &&
               (a.taken || a.image != 0 || !addresses_of_program(pointer));
    if (addresses_of_program(pointer)) return false;
    unsigned type = 0; /* for instance memory that graphs allocate */
    CUresult result = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
    return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

/* What is done before a copy that the stream itself cannot wait for. */
static CUresult reach(CUstream stream) {
    return stream == NULL ? cuCtxSynchronize() : cuStreamSynchronize(stream);
}

/* At least one end is on a card of another server than the current context's. */
static CUresult across(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                       CUcontext from_context, size_t bytes, CUstream stream) {
    CUcontext here, before;
    CUresult result = cuCtxGetCurrent(&here);
    if (to_context == NULL && on_device(to)) to_context = here;
    if (from_context == NULL && on_device(from)) from_context = here;
    if (result == CUDA_SUCCESS) result = reach(stream);
    if (result != CUDA_SUCCESS) return result;
    if (to_context != NULL && from_context != NULL)
        return copy_between(to, to_context, from, from_context, bytes, NULL, true);
    result = cuCtxPushCurrent_v2(to_context != NULL ? to_context : from_context);
    if (result != CUDA_SUCCESS) return result;
    result = to_context != NULL ? copy_in(to, (const void *)(uintptr_t)from, bytes, NULL, true)
                                : copy_out((void *)(uintptr_t)to, from, bytes, NULL, true);
    cuCtxPopCurrent_v2(&before);
    return result;
}

/* Copies whose pointers say themselves where they point. */
CUresult copy_unified(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    CUcontext to_other = allocation_elsewhere(link, to);
    CUcontext from_other = allocation_elsewhere(link, from);
    if (to_other != NULL || from_other != NULL)
        return across(to, to_other, from, from_other, bytes, stream);
    bool to_device = on_device(to), from_device = on_device(from);
    if (to_device && from_device) return copy_rect(to, bytes, from, bytes, bytes, 1, stream, wait);
    if (to_device) return copy_in(to, (const void *)(uintptr_t)from, bytes, stream, wait);
    if (from_device) return copy_out((void *)(uintptr_t)to, from, bytes, stream, wait);
    if ((to == 0 || from == 0) && bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((result = reach(stream)) == CUDA_SUCCESS)
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return result;
}

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_unified(to, from, bytes, NULL, true);
}
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_unified(to, from, bytes, stream, false);
}

CUresult copy_between(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes, CUstream stream, bool wait) {
    uint64_t a = (uint64_t)(uintptr_t)to_context, b = (uint64_t)(uintptr_t)from_context;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (handle_entry(a) == NULL || handle_entry(b) == NULL || wire_kind_of(a) != KIND_context ||
        wire_kind_of(b) != KIND_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (wire_server(a) == wire_server(b))
        return copy_rect(to, bytes, from, bytes, bytes, 1, stream, wait);
    /* Two servers have nothing in common but this process. */
    if (stream != NULL && (result = cuStreamSynchronize(stream)) != CUDA_SUCCESS) return result;
    CUcontext before;
    uint8_t *through = malloc(bytes ? bytes : 1);
    if (through == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    result = cuCtxPushCurrent_v2(from_context);
    if (result == CUDA_SUCCESS) {
        result = copy_out(through, from, bytes, NULL, true);
        cuCtxPopCurrent_v2(&before);
    }
    if (result == CUDA_SUCCESS && (result = cuCtxPushCurrent_v2(to_context)) == CUDA_SUCCESS) {
        result = copy_in(to, through, bytes, NULL, true);
        cuCtxPopCurrent_v2(&before);
    }
    free(through);
    return result;
}

API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                          CUcontext from_context, size_t bytes) {
    return copy_between(to, to_context, from, from_context, bytes, NULL, true);
}
API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                               CUcontext from_context, size_t bytes, CUstream stream) {
    return copy_between(to, to_context, from, from_context, bytes, stream, false);
}

/* ---- on the calling thread's own stream: the Async form, and a wait if the plain form waits
 * ---- */

static CUresult settle(CUresult result, CUstream stream) {
    return result == CUDA_SUCCESS ? cuStreamSynchronize(stream) : result;
}

API CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes) {
    CUstream own = thread_stream(NULL);
    return settle(cuMemcpyHtoDAsync_v2(to, from, bytes, own), own);
}
API CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) {
    CUstream own = thread_stream(NULL);
    return settle(cuMemcpyDtoHAsync_v2(to, from, bytes, own), own);
}
API CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, thread_stream(NULL));
}
API CUresult cuMemcpy_ptds(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    CUstream own = thread_stream(NULL);
    return settle(cuMemcpyAsync(to, from, bytes, own), own);
}
API CUresult cuMemcpyPeer_ptds(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                               CUcontext from_context, size_t bytes) {
    CUstream own = thread_stream(NULL);
    return settle(cuMemcpyPeerAsync(to, to_context, from, from_context, bytes, own), own);
}
