/* Copies with an array at one end at least. Within a card each is one call. Copies from and to the
 * program's memory go in pieces of rows, and each piece is waited for. */
#define _GNU_SOURCE
#include "client.h"

#define PIECE_BYTES (POSTED_BYTES * 4)

struct end {
    CUarray array; /* NULL: memory */
    uint64_t wire;
    bool host;
    uint64_t address, pitch, height;
    size_t x, y, z; /* of an array; the address of memory has them */
};

static CUresult end_of(CUmemorytype type, const void *host, CUdeviceptr device, CUarray array,
                       size_t x, size_t y, size_t z, size_t pitch, size_t height, struct call *call,
                       struct end *end) {
    *end = (struct end){.pitch = pitch, .height = height};
    switch (type) {
    case CU_MEMORYTYPE_ARRAY:
        *end = (struct end){.array = array, .x = x, .y = y, .z = z};
        return call_handle(call, KIND_array, (uint64_t)(uintptr_t)array, &end->wire);
    case CU_MEMORYTYPE_HOST:
        end->host = true;
        end->address = (uint64_t)(uintptr_t)host;
        break;
    case CU_MEMORYTYPE_UNIFIED:
        end->host = !on_device(device);
        end->address = device;
        break;
    case CU_MEMORYTYPE_DEVICE: end->address = device; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (end->host && end->address == 0) return CUDA_ERROR_INVALID_VALUE;
    end->address += x + y * pitch + z * pitch * height;
    return CUDA_SUCCESS;
}

/* ---- within a card ---- */

static struct wire_end wire_end_of(const struct end *end) {
    return (struct wire_end){end->wire, end->address, end->pitch, end->height,
                             end->x,    end->y,       end->z};
}

static CUresult within(const struct where *where, const struct end *to, const struct end *from,
                       const CUDA_MEMCPY3D *asked) {
    struct call call;
    call_start(&call, OP_COPY_ARRAY);
    call.link = where->link;
    struct wire_copy_array copy = {.to = wire_end_of(to),
                                   .from = wire_end_of(from),
                                   .width = asked->WidthInBytes,
                                   .rows = asked->Height,
                                   .slices = asked->Depth,
                                   .stream = where->stream,
                                   .wait = where->wait};
    CUresult result = call_begin(&call, sizeof copy, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &copy, sizeof copy);
    result = call_exchange(&call);
    call_end(&call);
    return result;
}

/* ---- to and from the program's memory ---- */

/* Rows of one slice, or part of a row. */
struct piece {
    size_t x, y, z; /* relative to the start of the copy */
    size_t width, rows;
};

static struct wire_copy_array_rows rows_of(const struct where *where, const struct end *array,
                                           const struct piece *piece) {
    return (struct wire_copy_array_rows){.array = array->wire,
                                         .stream = where->stream,
                                         .x = array->x + piece->x,
                                         .y = array->y + piece->y,
                                         .z = array->z + piece->z,
                                         .width = (uint32_t)piece->width,
                                         .rows = (uint32_t)piece->rows,
                                         .wait = where->wait};
}

static uint8_t *row_of(const struct end *memory, const struct piece *piece, size_t row) {
    uint64_t slice = memory->pitch * memory->height;
    return (uint8_t *)(uintptr_t)(memory->address + piece->x + (piece->y + row) * memory->pitch +
                                  piece->z * slice);
}

static CUresult piece_in(const struct where *where, const struct end *array,
                         const struct end *memory, const struct piece *piece) {
    struct call call;
    call_start(&call, OP_COPY_ARRAY_IN);
    call.link = where->link;
    struct wire_copy_array_rows copy = rows_of(where, array, piece);
    size_t bytes = piece->width * piece->rows;
    CUresult result = call_begin(&call, sizeof copy + padded(bytes), CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &copy, sizeof copy);
    uint8_t *packed = give(&call.out, bytes);
    for (size_t i = 0; i < piece->rows; i++)
        memcpy(packed + i * piece->width, row_of(memory, piece, i), piece->width);
    result = call_exchange(&call);
    call_end(&call);
    return result;
}

static CUresult piece_out(const struct where *where, const struct end *array,
                          const struct end *memory, const struct piece *piece) {
    struct call call;
    call_start(&call, OP_COPY_ARRAY_OUT);
    call.link = where->link;
    struct wire_copy_array_rows copy = rows_of(where, array, piece);
    size_t bytes = piece->width * piece->rows;
    call.asked_bytes = bytes;
    CUresult result = call_begin(&call, sizeof copy, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &copy, sizeof copy);
    result = call_exchange(&call);
    const uint8_t *packed = result == CUDA_SUCCESS ? take(&call.in, bytes) : NULL;
    if (result == CUDA_SUCCESS && packed == NULL) result = CUDA_ERROR_UNKNOWN;
    for (size_t i = 0; result == CUDA_SUCCESS && i < piece->rows; i++)
        memcpy(row_of(memory, piece, i), packed + i * piece->width, piece->width);
    call_end(&call);
    return result;
}

static CUresult in_pieces(const struct where *where, const struct end *to, const struct end *from,
                          const CUDA_MEMCPY3D *asked) {
    size_t width = asked->WidthInBytes < PIECE_BYTES ? asked->WidthInBytes : PIECE_BYTES;
    size_t rows = width == asked->WidthInBytes ? PIECE_BYTES / width : 1;
    CUresult result = CUDA_SUCCESS;
    struct piece piece = {0};
    for (piece.z = 0; piece.z < asked->Depth; piece.z++)
        for (piece.y = 0; piece.y < asked->Height; piece.y += piece.rows) {
            piece.rows = asked->Height - piece.y < rows ? asked->Height - piece.y : rows;
            for (piece.x = 0; piece.x < asked->WidthInBytes; piece.x += piece.width) {
                size_t left = asked->WidthInBytes - piece.x;
                piece.width = left < width ? left : width;
                result = to->host ? piece_out(where, from, to, &piece)
                                  : piece_in(where, to, from, &piece);
                if (result != CUDA_SUCCESS) return result;
            }
        }
    return result;
}

/* ---- the API ---- */

static size_t given(size_t value, size_t otherwise) { return value ? value : otherwise; }

CUresult array_copy(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait) {
    struct where where;
    struct end to, from;
    struct call probe; /* has the server of the arrays */
    size_t width = copy->WidthInBytes;
    CUresult result = copy_place(stream, wait, &where);
    if (result != CUDA_SUCCESS) return result;
    call_start(&probe, 0);
    probe.link = where.link;
    result = end_of(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcArray,
                    copy->srcXInBytes, copy->srcY, copy->srcZ, given(copy->srcPitch, width),
                    given(copy->srcHeight, copy->Height), &probe, &from);
    if (result == CUDA_SUCCESS)
        result = end_of(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstArray,
                        copy->dstXInBytes, copy->dstY, copy->dstZ, given(copy->dstPitch, width),
                        given(copy->dstHeight, copy->Height), &probe, &to);
    if (result != CUDA_SUCCESS || width == 0 || copy->Height == 0 || copy->Depth == 0)
        return result;
    const struct end *memory = to.array ? &from : &to;
    if (!memory->array && ((copy->Height > 1 && memory->pitch < width) ||
                           (copy->Depth > 1 && memory->height < copy->Height)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!to.host && !from.host) return within(&where, &to, &from, copy);
    if (!wait && capturing(stream)) return captured_copy(stream, copy);
    return in_pieces(&where, &to, &from, copy);
}

static CUresult line_in(CUarray to, size_t offset, const void *from, size_t bytes, CUstream stream,
                        bool wait) {
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = from,
                                .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                .dstArray = to,
                                .dstXInBytes = offset,
                                .WidthInBytes = bytes,
                                .Height = 1,
                                .Depth = 1};
    return array_copy(&copy, stream, wait);
}

static CUresult line_out(void *to, CUarray from, size_t offset, size_t bytes, CUstream stream,
                         bool wait) {
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                .srcArray = from,
                                .srcXInBytes = offset,
                                .dstMemoryType = CU_MEMORYTYPE_HOST,
                                .dstHost = to,
                                .WidthInBytes = bytes,
                                .Height = 1,
                                .Depth = 1};
    return array_copy(&copy, stream, wait);
}

API CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t bytes) {
    return line_in(to, offset, from, bytes, NULL, true);
}
API CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t bytes) {
    return line_out(to, from, offset, bytes, NULL, true);
}
API CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t bytes,
                                  CUstream stream) {
    return line_in(to, offset, from, bytes, stream, false);
}
API CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes,
                                  CUstream stream) {
    return line_out(to, from, offset, bytes, stream, false);
}

/* ---- on the calling thread's own stream ---- */

static CUresult on_own_stream(const CUDA_MEMCPY3D *copy) {
    CUstream own = thread_stream(NULL);
    CUresult result = array_copy(copy, own, false);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(own) : result;
}

API CUresult cuMemcpyHtoA_v2_ptds(CUarray to, size_t offset, const void *from, size_t bytes) {
    CUstream own = thread_stream(NULL);
    CUresult result = line_in(to, offset, from, bytes, own, false);
    return result == CUDA_SUCCESS ? cuStreamSynchronize(own) : result;
}
API CUresult cuMemcpyAtoH_v2_ptds(void *to, CUarray from, size_t offset, size_t bytes) {
    return line_out(to, from, offset, bytes, thread_stream(NULL), false);
}
API CUresult cuMemcpyDtoA_v2_ptds(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = from,
                                .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                .dstArray = to,
                                .dstXInBytes = offset,
                                .WidthInBytes = bytes,
                                .Height = 1,
                                .Depth = 1};
    return on_own_stream(&copy);
}
API CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                .srcArray = from,
                                .srcXInBytes = offset,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = to,
                                .WidthInBytes = bytes,
                                .Height = 1,
                                .Depth = 1};
    return on_own_stream(&copy);
}
API CUresult cuMemcpyAtoA_v2_ptds(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                                  size_t bytes) {
    const CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                .srcArray = from,
                                .srcXInBytes = from_offset,
                                .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                .dstArray = to,
                                .dstXInBytes = to_offset,
                                .WidthInBytes = bytes,
                                .Height = 1,
                                .Depth = 1};
    return on_own_stream(&copy);
}
