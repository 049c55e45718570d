/* Copies of two and three dimensions, but those of arrays: as rows of copy.c. */
#include "client.h"

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

static CUresult captured_volume(struct side to, struct side from, size_t width, size_t rows,
                                size_t slices, CUstream stream) {
    const CUDA_MEMCPY3D copy = {
        .srcMemoryType = from.device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
        .srcHost = (const void *)(uintptr_t)from.address,
        .srcDevice = from.address,
        .srcPitch = from.pitch,
        .srcHeight = from.pitch ? from.slice / from.pitch : rows,
        .dstMemoryType = to.device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST,
        .dstHost = (void *)(uintptr_t)to.address,
        .dstDevice = to.address,
        .dstPitch = to.pitch,
        .dstHeight = to.pitch ? to.slice / to.pitch : rows,
        .WidthInBytes = width,
        .Height = rows,
        .Depth = slices,
    };
    return captured_copy(stream, &copy);
}

static CUresult volume(struct side to, struct side from, size_t width, size_t rows, size_t slices,
                       CUstream stream, bool wait) {
    struct where where;
    CUresult result = copy_place(stream, wait, &where);
    if (result != CUDA_SUCCESS || width == 0 || rows == 0 || slices == 0) return result;
    if ((!to.device && to.address == 0) || (!from.device && from.address == 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (!wait && !(to.device && from.device) && capturing(stream))
        return captured_volume(to, from, width, rows, slices, stream);
    for (size_t z = 0; z < slices && result == CUDA_SUCCESS; z++) {
        uint64_t a = to.address + z * to.slice, b = from.address + z * from.slice;
        if (to.device && from.device)
            result = copy_rect(a, to.pitch, b, from.pitch, width, rows, stream, wait);
        else if (!to.device && !from.device)
            for (size_t y = 0; y < rows && result == CUDA_SUCCESS; y++)
                result = copy_unified(a + y * to.pitch, b + y * from.pitch, width, stream, wait);
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
        result =
            copy_between(target.address + y * target.pitch + z * target.slice, copy->dstContext,
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
