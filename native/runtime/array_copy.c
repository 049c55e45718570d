/* Copies from and to arrays: of rectangles, and of bytes across rows. Compiled twice, as copy.c
 * is. */
#include "channel.h"

#include <stdbool.h>

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define STREAM(stream) ((CUstream)stream_of(stream))
static CUresult copy_now(const CUDA_MEMCPY2D *copy) {
    CUresult result = driver.cuMemcpy2DAsync(copy, CU_STREAM_PER_THREAD);
    return result == CUDA_SUCCESS ? driver.cuStreamSynchronize(CU_STREAM_PER_THREAD) : result;
}
#else
#define STREAM(stream) (stream)
static CUresult copy_now(const CUDA_MEMCPY2D *copy) { return driver.cuMemcpy2DUnaligned(copy); }
#endif

/* One end of a copy. */
struct end {
    CUmemorytype type;
    void *memory; /* if it is not an array */
    CUarray array;
    size_t x, y; /* bytes, rows */
    size_t pitch;
};

static struct end in_array(cudaArray_const_t array, size_t x, size_t y) {
    return (struct end){.type = CU_MEMORYTYPE_ARRAY, .array = (CUarray)array, .x = x, .y = y};
}

static struct end in_memory(const void *memory, size_t pitch, CUmemorytype type) {
    return (struct end){.type = type, .memory = (void *)memory, .pitch = pitch};
}

static CUDA_MEMCPY2D rectangle(struct end to, struct end from, size_t width, size_t height) {
    return (CUDA_MEMCPY2D){
        .srcXInBytes = from.x,
        .srcY = from.y,
        .srcMemoryType = from.type,
        .srcHost = from.memory,
        .srcDevice = (CUdeviceptr)from.memory,
        .srcArray = from.array,
        .srcPitch = from.pitch,
        .dstXInBytes = to.x,
        .dstY = to.y,
        .dstMemoryType = to.type,
        .dstHost = to.memory,
        .dstDevice = (CUdeviceptr)to.memory,
        .dstArray = to.array,
        .dstPitch = to.pitch,
        .WidthInBytes = width,
        .Height = height,
    };
}

/* An array is on the device: the copy kind must not place that end on the host. */
static cudaError_t check(const struct end *to, const struct end *from, size_t width,
                         enum cudaMemcpyKind kind) {
    if (!runtime_is_kind(kind) ||
        (from->array && runtime_source_type(kind) == CU_MEMORYTYPE_HOST) ||
        (to->array && runtime_target_type(kind) == CU_MEMORYTYPE_HOST))
        return cudaErrorInvalidMemcpyDirection;
    bool fits = (from->array || runtime_is_pitch(from->pitch, width)) &&
                (to->array || runtime_is_pitch(to->pitch, width));
    return fits ? cudaSuccess : cudaErrorInvalidPitchValue;
}

/* `stream` NULL: the call waits. */
static cudaError_t copy_2d(struct end to, struct end from, size_t width, size_t height,
                           enum cudaMemcpyKind kind, const cudaStream_t *stream) {
    cudaError_t error = check(&to, &from, width, kind);
    if (error != cudaSuccess) return runtime_error(error);
    NEED_CONTEXT();
    if (width == 0 || height == 0) return cudaSuccess;
    CUDA_MEMCPY2D copy = rectangle(to, from, width, height);
    return runtime_result(stream ? driver.cuMemcpy2DAsync(&copy, STREAM(*stream))
                                 : copy_now(&copy));
}

API cudaError_t cudaMemcpy2DToArray(cudaArray_t to, size_t x, size_t y, const void *from,
                                    size_t pitch, size_t width, size_t height,
                                    enum cudaMemcpyKind kind) {
    return copy_2d(in_array(to, x, y), in_memory(from, pitch, runtime_source_type(kind)), width,
                   height, kind, NULL);
}

API cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x, size_t y, const void *from,
                                         size_t pitch, size_t width, size_t height,
                                         enum cudaMemcpyKind kind, cudaStream_t stream) {
    return copy_2d(in_array(to, x, y), in_memory(from, pitch, runtime_source_type(kind)), width,
                   height, kind, &stream);
}

API cudaError_t cudaMemcpy2DFromArray(void *to, size_t pitch, cudaArray_const_t from, size_t x,
                                      size_t y, size_t width, size_t height,
                                      enum cudaMemcpyKind kind) {
    return copy_2d(in_memory(to, pitch, runtime_target_type(kind)), in_array(from, x, y), width,
                   height, kind, NULL);
}

API cudaError_t cudaMemcpy2DFromArrayAsync(void *to, size_t pitch, cudaArray_const_t from, size_t x,
                                           size_t y, size_t width, size_t height,
                                           enum cudaMemcpyKind kind, cudaStream_t stream) {
    return copy_2d(in_memory(to, pitch, runtime_target_type(kind)), in_array(from, x, y), width,
                   height, kind, &stream);
}

API cudaError_t cudaMemcpy2DArrayToArray(cudaArray_t to, size_t to_x, size_t to_y,
                                         cudaArray_const_t from, size_t from_x, size_t from_y,
                                         size_t width, size_t height, enum cudaMemcpyKind kind) {
    return copy_2d(in_array(to, to_x, to_y), in_array(from, from_x, from_y), width, height, kind,
                   NULL);
}

/* ---- bytes across rows ---- */

static cudaError_t row_bytes(CUarray array, size_t *bytes) {
    struct cudaExtent extent;
    cudaError_t error = cudaArrayGetInfo(NULL, &extent, NULL, (cudaArray_t)array);
    if (error == cudaSuccess) error = runtime_element_bytes((cudaArray_const_t)array, bytes);
    *bytes *= extent.width;
    return error;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void go_on(struct end *end, size_t row, size_t bytes) {
    if (end->array) {
        end->y += (end->x + bytes) / row;
        end->x = (end->x + bytes) % row;
    } else {
        end->memory = (char *)end->memory + bytes;
    }
}

/* In rectangles, as large as possible: memory is divided into rows of the array's length. */
static cudaError_t copy_bytes(struct end to, struct end from, size_t bytes,
                              enum cudaMemcpyKind kind, const cudaStream_t *stream) {
    size_t to_row = 0, from_row = 0;
    cudaError_t error = cudaSuccess;
    if (to.array) error = row_bytes(to.array, &to_row);
    if (from.array && error == cudaSuccess) error = row_bytes(from.array, &from_row);
    if (error != cudaSuccess) return runtime_error(error);
    if (!to.array) to.pitch = to_row = from_row;
    if (!from.array) from.pitch = from_row = to_row;
    while (bytes && error == cudaSuccess) {
        size_t width = least(least(to_row - to.x, from_row - from.x), bytes), rows = 1;
        if (to_row == from_row && width == to_row) rows = bytes / to_row;
        if (width == 0) return runtime_error(cudaErrorInvalidValue); /* it starts beyond a row */
        error = copy_2d(to, from, width, rows, kind, stream);
        go_on(&to, to_row, width * rows);
        go_on(&from, from_row, width * rows);
        bytes -= width * rows;
    }
    return error;
}

API cudaError_t cudaMemcpyToArray(cudaArray_t to, size_t x, size_t y, const void *from,
                                  size_t bytes, enum cudaMemcpyKind kind) {
    return copy_bytes(in_array(to, x, y), in_memory(from, 0, runtime_source_type(kind)), bytes,
                      kind, NULL);
}

API cudaError_t cudaMemcpyToArrayAsync(cudaArray_t to, size_t x, size_t y, const void *from,
                                       size_t bytes, enum cudaMemcpyKind kind,
                                       cudaStream_t stream) {
    return copy_bytes(in_array(to, x, y), in_memory(from, 0, runtime_source_type(kind)), bytes,
                      kind, &stream);
}

API cudaError_t cudaMemcpyFromArray(void *to, cudaArray_const_t from, size_t x, size_t y,
                                    size_t bytes, enum cudaMemcpyKind kind) {
    return copy_bytes(in_memory(to, 0, runtime_target_type(kind)), in_array(from, x, y), bytes,
                      kind, NULL);
}

API cudaError_t cudaMemcpyFromArrayAsync(void *to, cudaArray_const_t from, size_t x, size_t y,
                                         size_t bytes, enum cudaMemcpyKind kind,
                                         cudaStream_t stream) {
    return copy_bytes(in_memory(to, 0, runtime_target_type(kind)), in_array(from, x, y), bytes,
                      kind, &stream);
}

API cudaError_t cudaMemcpyArrayToArray(cudaArray_t to, size_t to_x, size_t to_y,
                                       cudaArray_const_t from, size_t from_x, size_t from_y,
                                       size_t bytes, enum cudaMemcpyKind kind) {
    return copy_bytes(in_array(to, to_x, to_y), in_array(from, from_x, from_y), bytes, kind, NULL);
}
