/* Bytes between the program's memory and the card's.
 *
 * Small copies to a pointer that is known to be good are posted with their data. Longer ones go in
 * pieces of up to 1 MiB, from where the program has them (stream) or through the bulk area (shared
 * memory), several on the way at a time, and the last piece is waited for; so the program may reuse
 * its memory when a call returns. Pinned memory that the executor maps as well is not moved at all.
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

/* A graph reads host memory anew at every launch, so it needs memory that the executor maps. */
CUresult captured_copy(void) {
    return not_supported("a captured copy from or to host memory that the executor does not share");
}

static CUresult copy_in(CUdeviceptr to, const void *from, size_t bytes, CUstream stream,
                        bool wait) {
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
    if (written_down) return captured_copy();
    if (bytes > POSTED_BYTES && mapped_there(where.link, from, bytes))
        return host_copy(&where, OP_COPY_HOST_IN, to, from, bytes, known && !wait);
    if (bytes <= POSTED_BYTES) return in_small(&where, to, from, bytes, known);
    /* All pieces but the last are posted. Their errors come with the last one's answer and belong
     * to this call, unless an earlier call's error was pending already. */
    uint32_t before = atomic_load(&where.link->pending_error);
    result = where.link->transport->copy_in(&where, to, from, bytes);
    uint32_t posted = before ? 0 : atomic_exchange(&where.link->pending_error, 0);
    return result == CUDA_SUCCESS ? (CUresult)posted : result;
}

/* ---- device to host ---- */

static CUresult copy_out(void *to, CUdeviceptr from, size_t bytes, CUstream stream, bool wait) {
    struct where where;
    CUresult result = copy_place(stream, wait, &where);
    if (result != CUDA_SUCCESS) return result;
    if (to == NULL && bytes != 0) return CUDA_ERROR_INVALID_VALUE;
    struct allocation a;
    bool known = allocation_find(where.link, from, &a) && allocation_covers(&a, from, bytes);
    if (bytes != 0 && mapped_there(where.link, to, bytes))
        return host_copy(&where, OP_COPY_HOST_OUT, from, to, bytes, known && !wait);
    if (bytes != 0 && !wait && capturing(stream)) return captured_copy();
    /* none at all: the executor still says what is wrong with the pointer */
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
static CUresult rect(CUdeviceptr to, size_t to_pitch, CUdeviceptr from, size_t from_pitch,
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
    return rect(to, bytes, from, bytes, bytes, 1, NULL, true);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return rect(to, bytes, from, bytes, bytes, 1, stream, false);
}

bool on_device(CUdeviceptr pointer) {
    struct link *link;
    struct allocation a;
    if (context_needed(&link) != CUDA_SUCCESS) return false;
    /* One whose addresses could not be taken may have the program's memory at them. */
    if (allocation_find(link, pointer, &a))
        return a.kind == ALLOCATION_DEVICE && (a.taken || !addresses_of_program(pointer));
    if (addresses_of_program(pointer)) return false;
    unsigned type = 0; /* globals of modules, for instance */
    CUresult result = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pointer);
    return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

static CUresult between(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                        CUcontext from_context, size_t bytes, CUstream stream, bool wait);

/* What is done before a copy that the stream itself cannot wait for. */
static CUresult reach(CUstream stream) {
    return stream == NULL ? cuCtxSynchronize() : cuStreamSynchronize(stream);
}

/* One end at least is on a card of another server than that of the current context. */
static CUresult across(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                       CUcontext from_context, size_t bytes, CUstream stream) {
    CUcontext here, before;
    CUresult result = cuCtxGetCurrent(&here);
    if (to_context == NULL && on_device(to)) to_context = here;
    if (from_context == NULL && on_device(from)) from_context = here;
    if (result == CUDA_SUCCESS) result = reach(stream);
    if (result != CUDA_SUCCESS) return result;
    if (to_context != NULL && from_context != NULL)
        return between(to, to_context, from, from_context, bytes, NULL, true);
    result = cuCtxPushCurrent_v2(to_context != NULL ? to_context : from_context);
    if (result != CUDA_SUCCESS) return result;
    result = to_context != NULL ? copy_in(to, (const void *)(uintptr_t)from, bytes, NULL, true)
                                : copy_out((void *)(uintptr_t)to, from, bytes, NULL, true);
    cuCtxPopCurrent_v2(&before);
    return result;
}

/* Copies whose pointers say themselves where they point. */
static CUresult unified(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream,
                        bool wait) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    CUcontext to_other = allocation_elsewhere(link, to);
    CUcontext from_other = allocation_elsewhere(link, from);
    if (to_other != NULL || from_other != NULL)
        return across(to, to_other, from, from_other, bytes, stream);
    bool to_device = on_device(to), from_device = on_device(from);
    if (to_device && from_device) return rect(to, bytes, from, bytes, bytes, 1, stream, wait);
    if (to_device) return copy_in(to, (const void *)(uintptr_t)from, bytes, stream, wait);
    if (from_device) return copy_out((void *)(uintptr_t)to, from, bytes, stream, wait);
    if ((result = reach(stream)) == CUDA_SUCCESS)
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return result;
}

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return unified(to, from, bytes, NULL, true);
}
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return unified(to, from, bytes, stream, false);
}

static CUresult between(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                        CUcontext from_context, size_t bytes, CUstream stream, bool wait) {
    uint64_t a = (uint64_t)(uintptr_t)to_context, b = (uint64_t)(uintptr_t)from_context;
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (handle_entry(a) == NULL || handle_entry(b) == NULL || wire_kind_of(a) != KIND_context ||
        wire_kind_of(b) != KIND_context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (wire_server(a) == wire_server(b))
        return rect(to, bytes, from, bytes, bytes, 1, stream, wait);
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
    return between(to, to_context, from, from_context, bytes, NULL, true);
}
API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                               CUcontext from_context, size_t bytes, CUstream stream) {
    return between(to, to_context, from, from_context, bytes, stream, false);
}

/* ---- two and three dimensions ---- */

struct side {
    uint64_t address, pitch, slice;
    bool device;
};

static CUresult rows_in(const struct where *where, uint64_t to, uint64_t pitch, const uint8_t *from,
                        uint64_t from_pitch, size_t width, size_t rows) {
    size_t at_once = (POSTED_BYTES * 4) / width ? (POSTED_BYTES * 4) / width : 1;
    for (size_t row = 0; row < rows;) {
        size_t now = rows - row < at_once ? rows - row : at_once;
        struct call call;
        call_start(&call, OP_COPY_RECT_IN);
        call.link = where->link;
        struct wire_copy_rows copy = {to + row * pitch, where->stream, pitch, (uint32_t)width,
                                      (uint32_t)now,    where->wait,   0};
        CUresult result = call_begin(&call, sizeof copy + padded(now * width), CALL_WAITS);
        if (result != CUDA_SUCCESS) return result;
        put_bytes(&call.out, &copy, sizeof copy);
        uint8_t *packed = give(&call.out, now * width);
        for (size_t i = 0; i < now; i++)
            memcpy(packed + i * width, from + (row + i) * from_pitch, width);
        result = call_exchange(&call);
        call_end(&call);
        if (result != CUDA_SUCCESS) return result;
        row += now;
    }
    return CUDA_SUCCESS;
}

static CUresult rows_out(const struct where *where, uint8_t *to, uint64_t to_pitch, uint64_t from,
                         uint64_t pitch, size_t width, size_t rows) {
    size_t at_once = (POSTED_BYTES * 4) / width ? (POSTED_BYTES * 4) / width : 1;
    for (size_t row = 0; row < rows;) {
        size_t now = rows - row < at_once ? rows - row : at_once;
        struct call call;
        call_start(&call, OP_COPY_RECT_OUT);
        call.link = where->link;
        call.asked_bytes = now * width;
        struct wire_copy_rows copy = {from + row * pitch, where->stream, pitch, (uint32_t)width,
                                      (uint32_t)now,      where->wait,   0};
        CUresult result = call_begin(&call, sizeof copy, CALL_WAITS);
        if (result != CUDA_SUCCESS) return result;
        put_bytes(&call.out, &copy, sizeof copy);
        result = call_exchange(&call);
        const uint8_t *packed = result == CUDA_SUCCESS ? take(&call.in, now * width) : NULL;
        if (result == CUDA_SUCCESS && packed == NULL) result = CUDA_ERROR_UNKNOWN;
        for (size_t i = 0; result == CUDA_SUCCESS && i < now; i++)
            memcpy(to + (row + i) * to_pitch, packed + i * width, width);
        call_end(&call);
        if (result != CUDA_SUCCESS) return result;
        row += now;
    }
    return CUDA_SUCCESS;
}

static CUresult volume(struct side to, struct side from, size_t width, size_t rows, size_t slices,
                       CUstream stream, bool wait) {
    struct where where;
    CUresult result = copy_place(stream, wait, &where);
    if (result != CUDA_SUCCESS || width == 0 || rows == 0 || slices == 0) return result;
    if ((!to.device && to.address == 0) || (!from.device && from.address == 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (!wait && !(to.device && from.device) && capturing(stream)) return captured_copy();
    for (size_t z = 0; z < slices && result == CUDA_SUCCESS; z++) {
        uint64_t a = to.address + z * to.slice, b = from.address + z * from.slice;
        if (to.device && from.device)
            result = rect(a, to.pitch, b, from.pitch, width, rows, stream, wait);
        else if (!to.device && !from.device)
            for (size_t y = 0; y < rows && result == CUDA_SUCCESS; y++)
                result = unified(a + y * to.pitch, b + y * from.pitch, width, stream, wait);
        else if (width > POSTED_BYTES * 4) /* long rows one by one */
            for (size_t y = 0; y < rows && result == CUDA_SUCCESS; y++)
                result = to.device ? copy_in(a + y * to.pitch,
                                             (const void *)(uintptr_t)(b + y * from.pitch), width,
                                             stream, wait)
                                   : copy_out((void *)(uintptr_t)(a + y * to.pitch),
                                              b + y * from.pitch, width, stream, wait);
        else
            result = to.device ? rows_in(&where, a, to.pitch, (const uint8_t *)(uintptr_t)b,
                                         from.pitch, width, rows)
                               : rows_out(&where, (uint8_t *)(uintptr_t)a, to.pitch, b, from.pitch,
                                          width, rows);
    }
    return result;
}

static CUresult side(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y,
                     size_t z, size_t pitch, size_t height, struct side *side) {
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t base = type == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)host : device;
    *side = (struct side){base + x + y * pitch + z * pitch * height, pitch, pitch * height,
                          type == CU_MEMORYTYPE_DEVICE ||
                              (type == CU_MEMORYTYPE_UNIFIED && on_device(device))};
    return CUDA_SUCCESS;
}

static CUDA_MEMCPY3D array_plane(const CUDA_MEMCPY2D *copy) {
    return (CUDA_MEMCPY3D){
        .srcXInBytes = copy->srcXInBytes,
        .srcY = copy->srcY,
        .srcMemoryType = copy->srcMemoryType,
        .srcHost = copy->srcHost,
        .srcDevice = copy->srcDevice,
        .srcArray = copy->srcArray,
        .srcPitch = copy->srcPitch,
        .dstXInBytes = copy->dstXInBytes,
        .dstY = copy->dstY,
        .dstMemoryType = copy->dstMemoryType,
        .dstHost = copy->dstHost,
        .dstDevice = copy->dstDevice,
        .dstArray = copy->dstArray,
        .dstPitch = copy->dstPitch,
        .WidthInBytes = copy->WidthInBytes,
        .Height = copy->Height,
        .Depth = 1,
    };
}

static CUresult plane(const CUDA_MEMCPY2D *copy, CUstream stream, bool wait) {
    struct side to, from;
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || copy->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
        CUDA_MEMCPY3D full = array_plane(copy);
        return array_copy(&full, stream, wait);
    }
    size_t width = copy->WidthInBytes, from_pitch = copy->srcPitch ? copy->srcPitch : width,
           to_pitch = copy->dstPitch ? copy->dstPitch : width;
    if (copy->Height > 1 && (from_pitch < width || to_pitch < width))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = side(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes,
                           copy->srcY, 0, from_pitch, 0, &from);
    if (result == CUDA_SUCCESS)
        result = side(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstXInBytes,
                      copy->dstY, 0, to_pitch, 0, &to);
    return result == CUDA_SUCCESS ? volume(to, from, width, copy->Height, 1, stream, wait) : result;
}

API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy) { return plane(copy, NULL, true); }
API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy) { return plane(copy, NULL, true); }
API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) {
    return plane(copy, stream, false);
}

static CUresult space(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait) {
    struct side to, from;
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        return array_copy(copy, stream, wait);
    size_t width = copy->WidthInBytes, from_pitch = copy->srcPitch ? copy->srcPitch : width,
           to_pitch = copy->dstPitch ? copy->dstPitch : width;
    size_t from_height = copy->srcHeight ? copy->srcHeight : copy->Height,
           to_height = copy->dstHeight ? copy->dstHeight : copy->Height;
    if (from_pitch < width || to_pitch < width || from_height < copy->Height ||
        to_height < copy->Height)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = side(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes,
                           copy->srcY, copy->srcZ, from_pitch, from_height, &from);
    if (result == CUDA_SUCCESS)
        result = side(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstXInBytes,
                      copy->dstY, copy->dstZ, to_pitch, to_height, &to);
    return result == CUDA_SUCCESS ? volume(to, from, width, copy->Height, copy->Depth, stream, wait)
                                  : result;
}

API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy) { return space(copy, NULL, true); }
API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream) {
    return space(copy, stream, false);
}

/* Between cards of one server a volume is copied as within one; between servers row by row. */
static CUresult peers(const CUDA_MEMCPY3D_PEER *copy, CUstream stream, bool wait) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D same = {.srcXInBytes = copy->srcXInBytes,
                          .srcY = copy->srcY,
                          .srcZ = copy->srcZ,
                          .srcMemoryType = copy->srcMemoryType,
                          .srcHost = copy->srcHost,
                          .srcDevice = copy->srcDevice,
                          .srcPitch = copy->srcPitch,
                          .srcHeight = copy->srcHeight,
                          .dstXInBytes = copy->dstXInBytes,
                          .dstY = copy->dstY,
                          .dstZ = copy->dstZ,
                          .dstMemoryType = copy->dstMemoryType,
                          .dstHost = copy->dstHost,
                          .dstDevice = copy->dstDevice,
                          .dstPitch = copy->dstPitch,
                          .dstHeight = copy->dstHeight,
                          .WidthInBytes = copy->WidthInBytes,
                          .Height = copy->Height,
                          .Depth = copy->Depth};
    uint64_t to = (uint64_t)(uintptr_t)copy->dstContext;
    uint64_t from = (uint64_t)(uintptr_t)copy->srcContext;
    bool both_on_cards =
        copy->srcMemoryType == CU_MEMORYTYPE_DEVICE && copy->dstMemoryType == CU_MEMORYTYPE_DEVICE;
    if (!both_on_cards || wire_server(to) == wire_server(from)) return space(&same, stream, wait);
    struct side target, source;
    size_t height = copy->Height ? copy->Height : 1, depth = copy->Depth ? copy->Depth : 1;
    result = side(same.srcMemoryType, NULL, same.srcDevice, same.srcXInBytes, same.srcY, same.srcZ,
                  same.srcPitch, same.srcHeight, &source);
    if (result == CUDA_SUCCESS)
        result = side(same.dstMemoryType, NULL, same.dstDevice, same.dstXInBytes, same.dstY,
                      same.dstZ, same.dstPitch, same.dstHeight, &target);
    for (size_t i = 0; i < height * depth && result == CUDA_SUCCESS; i++) {
        size_t y = i % height, z = i / height;
        result = between(target.address + y * target.pitch + z * target.slice, copy->dstContext,
                         source.address + y * source.pitch + z * source.slice, copy->srcContext,
                         copy->WidthInBytes, stream, wait);
    }
    return result;
}

API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *copy) { return peers(copy, NULL, true); }
API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy, CUstream stream) {
    return peers(copy, stream, false);
}

/* ---- on the calling thread's own stream: the Async form there, and a wait where the plain form
 * waits ---- */

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
API CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *copy) {
    CUstream own = thread_stream(NULL);
    return settle(cuMemcpy2DAsync_v2(copy, own), own);
}
API CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *copy) {
    return cuMemcpy2D_v2_ptds(copy);
}
API CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *copy) {
    CUstream own = thread_stream(NULL);
    return settle(cuMemcpy3DAsync_v2(copy, own), own);
}
API CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *copy) {
    CUstream own = thread_stream(NULL);
    return settle(cuMemcpy3DPeerAsync(copy, own), own);
}
