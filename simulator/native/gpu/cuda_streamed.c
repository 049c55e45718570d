/* All functions whose meaning depends on the default stream. Compiled twice: as it is for the
 * legacy default stream, and with CUDA_API_PER_THREAD_DEFAULT_STREAM for the _ptds and _ptsz
 * symbols.
 */
#include "cuda_api.h"
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- copies ---- */

static CUresult copy_now(const struct copy *copy) {
    NEED_STREAM(stream, NULL);
    CUresult allowed = capture_forbids(stream);
    if (allowed != CUDA_SUCCESS) return allowed;
    CUresult result = copy_check(stream->context, copy);
    if (result != CUDA_SUCCESS) return result;
    stream_settle(stream);
    print_flush(stream->context);
    if ((result = (CUresult)atomic_load(&context->error)) != CUDA_SUCCESS) return result;
    return copy_run(stream->context, copy);
}

static bool pageable(uint64_t address) {
    struct extent extent;
    return !memory_find(address, &extent);
}

/* The caller may reuse pageable memory when the call returns: small sources are copied into the
 * operation, larger ones are waited for. */
static CUresult copy_later(const struct copy *copy, CUstream handle) {
    NEED_STREAM(stream, handle);
    CUresult result = copy_check(stream->context, copy);
    if (result != CUDA_SUCCESS) return result;
    struct op *op = op_new(OP_COPY);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->copy = *copy;
    /* host memory is read when the graph runs */
    if (stream->capture) return stream_submit(stream, op, NULL);
    bool wait = !copy->destination_device && pageable(copy->destination);
    if (!copy->source_device && pageable(copy->source)) {
        if (copy->rows == 1 && copy->slices == 1 && copy->width <= STAGED_BYTES &&
            (op->staged = malloc(copy->width + 1))) {
            memcpy(op->staged, (const void *)(uintptr_t)copy->source, copy->width);
            op->copy.source = (uint64_t)(uintptr_t)op->staged;
        } else
            wait = true;
    }
    uint64_t number;
    result = stream_submit(stream, op, &number);
    if (result == CUDA_SUCCESS && wait) {
        stream_wait(stream, number);
        result = (CUresult)atomic_load(&context->error);
    }
    return result;
}

static struct copy line(uint64_t to, bool to_device, uint64_t from, bool from_device,
                        size_t bytes) {
    return (struct copy){.destination = to,
                         .destination_device = to_device,
                         .source = from,
                         .source_device = from_device,
                         .width = bytes,
                         .rows = 1,
                         .slices = 1};
}

#define HOST(pointer) (uint64_t)(uintptr_t)(pointer)

API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    struct copy copy = line(to, false, from, false, bytes);
    return copy_now(&copy);
}

API CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) {
    struct copy copy = line(to, true, HOST(from), false, bytes);
    NEED(from || !bytes);
    return copy_now(&copy);
}

API CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) {
    struct copy copy = line(HOST(to), false, from, true, bytes);
    NEED(to || !bytes);
    return copy_now(&copy);
}

API CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    struct copy copy = line(to, true, from, true, bytes);
    return copy_now(&copy);
}

API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct copy copy = line(to, false, from, false, bytes);
    return copy_later(&copy, stream);
}

API CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    struct copy copy = line(to, true, HOST(from), false, bytes);
    NEED(from || !bytes);
    return copy_later(&copy, stream);
}

API CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct copy copy = line(HOST(to), false, from, true, bytes);
    NEED(to || !bytes);
    return copy_later(&copy, stream);
}

API CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    struct copy copy = line(to, true, from, true, bytes);
    return copy_later(&copy, stream);
}

static CUresult check_peers(CUcontext to, CUcontext from) {
    struct context *context;
    NEED_INIT();
    CUresult result = context_check(to, &context);
    return result == CUDA_SUCCESS ? context_check(from, &context) : result;
}

API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                          CUcontext from_context, size_t bytes) {
    CUresult result = check_peers(to_context, from_context);
    return result == CUDA_SUCCESS ? cuMemcpyDtoD(to, from, bytes) : result;
}

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                               CUcontext from_context, size_t bytes, CUstream stream) {
    CUresult result = check_peers(to_context, from_context);
    return result == CUDA_SUCCESS ? cuMemcpyDtoDAsync(to, from, bytes, stream) : result;
}

API CUresult cuMemcpy2D(const CUDA_MEMCPY2D *from) {
    struct copy copy;
    CUresult result = copy_of_plane(from, &copy);
    return result == CUDA_SUCCESS ? copy_now(&copy) : result;
}

API CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D *from) {
    struct copy copy;
    CUresult result = copy_of_plane(from, &copy);
    return result == CUDA_SUCCESS ? copy_now(&copy) : result;
}

API CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *from, CUstream stream) {
    struct copy copy;
    CUresult result = copy_of_plane(from, &copy);
    return result == CUDA_SUCCESS ? copy_later(&copy, stream) : result;
}

API CUresult cuMemcpy3D(const CUDA_MEMCPY3D *from) {
    struct copy copy;
    CUresult result = copy_of_volume(from, &copy);
    return result == CUDA_SUCCESS ? copy_now(&copy) : result;
}

API CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D *from, CUstream stream) {
    struct copy copy;
    CUresult result = copy_of_volume(from, &copy);
    return result == CUDA_SUCCESS ? copy_later(&copy, stream) : result;
}

static CUresult between_peers(const CUDA_MEMCPY3D_PEER *from, struct copy *copy) {
    NEED(from);
    CUDA_MEMCPY3D same = {.srcXInBytes = from->srcXInBytes,
                          .srcY = from->srcY,
                          .srcZ = from->srcZ,
                          .srcLOD = from->srcLOD,
                          .srcMemoryType = from->srcMemoryType,
                          .srcHost = from->srcHost,
                          .srcDevice = from->srcDevice,
                          .srcArray = from->srcArray,
                          .srcPitch = from->srcPitch,
                          .srcHeight = from->srcHeight,
                          .dstXInBytes = from->dstXInBytes,
                          .dstY = from->dstY,
                          .dstZ = from->dstZ,
                          .dstLOD = from->dstLOD,
                          .dstMemoryType = from->dstMemoryType,
                          .dstHost = from->dstHost,
                          .dstDevice = from->dstDevice,
                          .dstArray = from->dstArray,
                          .dstPitch = from->dstPitch,
                          .dstHeight = from->dstHeight,
                          .WidthInBytes = from->WidthInBytes,
                          .Height = from->Height,
                          .Depth = from->Depth};
    return copy_of_volume(&same, copy);
}

API CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *from) {
    struct copy copy;
    CUresult result = between_peers(from, &copy);
    return result == CUDA_SUCCESS ? copy_now(&copy) : result;
}

API CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *from, CUstream stream) {
    struct copy copy;
    CUresult result = between_peers(from, &copy);
    return result == CUDA_SUCCESS ? copy_later(&copy, stream) : result;
}

/* One-dimensional arrays: bytes from an offset. */
static CUresult in_array(CUarray handle, size_t offset, size_t bytes, uint64_t *address) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_ARRAY);
    const struct array *array = (const struct array *)handle;
    if (!array->address || array->rows != 1 || array->slices != 1 || offset > array->row_bytes ||
        bytes > array->row_bytes - offset)
        return CUDA_ERROR_INVALID_VALUE;
    *address = array->address + offset;
    return CUDA_SUCCESS;
}

#define ARRAY_COPY(handle, offset, bytes, to, to_device, from, from_device, how) \
    uint64_t at;                                                                 \
    CUresult result = in_array(handle, offset, bytes, &at);                      \
    if (result != CUDA_SUCCESS) return result;                                   \
    struct copy copy = line(to, to_device, from, from_device, bytes);            \
    return how

API CUresult cuMemcpyHtoA(CUarray array, size_t offset, const void *from, size_t bytes) {
    ARRAY_COPY(array, offset, bytes, at, true, HOST(from), false, copy_now(&copy));
}

API CUresult cuMemcpyAtoH(void *to, CUarray array, size_t offset, size_t bytes) {
    ARRAY_COPY(array, offset, bytes, HOST(to), false, at, true, copy_now(&copy));
}

API CUresult cuMemcpyDtoA(CUarray array, size_t offset, CUdeviceptr from, size_t bytes) {
    ARRAY_COPY(array, offset, bytes, at, true, from, true, copy_now(&copy));
}

API CUresult cuMemcpyAtoD(CUdeviceptr to, CUarray array, size_t offset, size_t bytes) {
    ARRAY_COPY(array, offset, bytes, to, true, at, true, copy_now(&copy));
}

API CUresult cuMemcpyAtoA(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                          size_t bytes) {
    uint64_t target;
    CUresult found = in_array(to, to_offset, bytes, &target);
    if (found != CUDA_SUCCESS) return found;
    ARRAY_COPY(from, from_offset, bytes, target, true, at, true, copy_now(&copy));
}

API CUresult cuMemcpyHtoAAsync(CUarray array, size_t offset, const void *from, size_t bytes,
                               CUstream stream) {
    ARRAY_COPY(array, offset, bytes, at, true, HOST(from), false, copy_later(&copy, stream));
}

API CUresult cuMemcpyAtoHAsync(void *to, CUarray array, size_t offset, size_t bytes,
                               CUstream stream) {
    ARRAY_COPY(array, offset, bytes, HOST(to), false, at, true, copy_later(&copy, stream));
}

/* ---- fills ---- */

static CUresult fill_later(CUdeviceptr to, size_t pitch, uint32_t value, unsigned element,
                           size_t width, size_t rows, CUstream handle) {
    NEED_STREAM(stream, handle);
    struct fill fill = {.destination = to,
                        .pitch = pitch,
                        .width = width,
                        .rows = rows,
                        .value = value,
                        .element = element};
    CUresult result = fill_check(stream->context, &fill);
    if (result != CUDA_SUCCESS) return result;
    struct op *op = op_new(OP_FILL);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->fill = fill;
    return stream_submit(stream, op, NULL);
}

static CUresult fill_now(CUdeviceptr to, size_t pitch, uint32_t value, unsigned element,
                         size_t width, size_t rows) {
    NEED_STREAM(stream, NULL);
    CUresult allowed = capture_forbids(stream);
    if (allowed != CUDA_SUCCESS) return allowed;
    struct fill fill = {.destination = to,
                        .pitch = pitch,
                        .width = width,
                        .rows = rows,
                        .value = value,
                        .element = element};
    CUresult result = fill_check(stream->context, &fill);
    if (result != CUDA_SUCCESS) return result;
    stream_settle(stream);
    if ((result = (CUresult)atomic_load(&context->error)) != CUDA_SUCCESS) return result;
    return fill_run(stream->context, &fill);
}

API CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
    return fill_now(to, 0, value, 1, count, 1);
}
API CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
    return fill_now(to, 0, value, 2, count, 1);
}
API CUresult cuMemsetD32(CUdeviceptr to, unsigned int value, size_t count) {
    return fill_now(to, 0, value, 4, count, 1);
}

API CUresult cuMemsetD2D8(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                          size_t height) {
    return fill_now(to, pitch, value, 1, width, height);
}

API CUresult cuMemsetD2D16(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                           size_t height) {
    return fill_now(to, pitch, value, 2, width, height);
}

API CUresult cuMemsetD2D32(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                           size_t height) {
    return fill_now(to, pitch, value, 4, width, height);
}

API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill_later(to, 0, value, 1, count, 1, stream);
}

API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return fill_later(to, 0, value, 2, count, 1, stream);
}

API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
    return fill_later(to, 0, value, 4, count, 1, stream);
}

API CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                               size_t height, CUstream stream) {
    return fill_later(to, pitch, value, 1, width, height, stream);
}

API CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width,
                                size_t height, CUstream stream) {
    return fill_later(to, pitch, value, 2, width, height, stream);
}

API CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                size_t height, CUstream stream) {
    return fill_later(to, pitch, value, 4, width, height, stream);
}

/* ---- stream-ordered memory ---- */

/* In a captured stream: an allocation that the graph will make, at an address that is known now. */
static CUresult capture_alloc(struct stream *stream, size_t bytes, CUdeviceptr *out) {
    struct device *device = stream->context->device;
    struct graph_memory *memory = graph_memory_create(device, bytes);
    struct op *op = op_new(OP_GRAPH_ALLOC);
    struct node *node;
    if (!memory || !op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->graph_memory.address = memory->address;
    op->graph_memory.size = bytes;
    CUresult result = capture_add(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, op, &node);
    if (result != CUDA_SUCCESS) {
        graph_memory_release(memory);
        return result;
    }
    node->memory = memory;
    node->params.alloc = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal}},
        .bytesize = bytes,
        .dptr = memory->address};
    *out = memory->address;
    return CUDA_SUCCESS;
}

static CUresult alloc_in(CUdeviceptr *out, size_t bytes, struct pool *pool, CUstream handle) {
    NEED(out);
    NEED_STREAM(stream, handle);
    if (!pool) pool = stream->context->device->memory_place.current;
    uint64_t address;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const struct device *device = pool->place->device;
    if (device && device != stream->context->device)
        return engine_unsupported("cuMemAllocFromPoolAsync of another device's pool",
                                  "use a stream of the pool's device");
    if (stream->capture && !device)
        return engine_unsupported("cuMemAllocFromPoolAsync of host memory in a capture",
                                  "allocate it before");
    if (stream->capture) return capture_alloc(stream, bytes, out);
    if (stream_take_freed(stream, pool, bytes, &address)) {
        *out = address;
        return CUDA_SUCCESS;
    }
    CUresult result = of_memory_error(pool_alloc(pool, stream->context, bytes, &address));
    if (result == CUDA_ERROR_OUT_OF_MEMORY && stream_pending(stream, NULL)) {
        /* Queued frees may make room. */
        stream_settle(stream);
        result = of_memory_error(pool_alloc(pool, stream->context, bytes, &address));
    }
    if (result != CUDA_SUCCESS) return result;
    if (!device) managed_charge(address, stream->context);
    *out = address;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
    return alloc_in(out, bytes, NULL, stream);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
                                     CUstream stream) {
    NEED_INIT();
    if (handle_kind_of(pool) != HANDLE_POOL) return CUDA_ERROR_INVALID_VALUE;
    return alloc_in(out, bytes, (struct pool *)pool, stream);
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
    NEED_STREAM(stream, handle);
    struct extent extent;
    struct op *op = op_new(OP_FREE);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    if (graph_memory_covers(pointer, 1) || (stream->capture && !memory_find(pointer, &extent))) {
        op->kind = OP_GRAPH_FREE;
        op->graph_memory.address = pointer;
        if (stream->capture) return stream_submit(stream, op, NULL);
        if (graph_memory_forget(pointer)) return stream_submit(stream, op, NULL);
        op_free(op);
        return CUDA_ERROR_INVALID_VALUE;
    }
    bool mine = memory_find(pointer, &extent) && extent.base == pointer &&
                (extent.kind == EXTENT_DEVICE ? extent.block_kind == BLOCK_ALLOCATION
                                              : extent.pool != NULL);
    if (!mine || stream->capture) { /* a graph frees the memory of graphs */
        op_free(op);
        return CUDA_ERROR_INVALID_VALUE;
    }
    op->release.address = pointer;
    op->release.pool = extent.pool;
    op->release.size = extent.size;
    return stream_submit(stream, op, NULL);
}

API CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t length,
                                    unsigned int flags) {
    (void)length;
    (void)flags;
    NEED_STREAM(stream, handle);
    struct extent extent;
    return memory_find(pointer, &extent) && extent.kind == EXTENT_MANAGED
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

/* ---- launches ---- */

static bool launches_block(void) {
    static _Atomic int known = -1;
    if (atomic_load(&known) < 0) {
        const char *value = getenv("CUDA_LAUNCH_BLOCKING");
        atomic_store(&known, value && atoi(value) != 0);
    }
    return atomic_load(&known);
}

static CUresult launch(const CUlaunchConfig *config, CUfunction handle,
                       const struct launch_how *how, void **params, void **extra) {
    NEED_STREAM(stream, config->hStream);
    struct function *function;
    CUresult result = function_of(handle, stream->context, &function);
    if (result != CUDA_SUCCESS) return result;
    const unsigned grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const unsigned block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    result =
        launch_submit(stream, function, grid, block, config->sharedMemBytes, how, params, extra);
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    bool waits = result == CUDA_SUCCESS && launches_block() &&
                 cuStreamIsCapturing(config->hStream, &capture) == CUDA_SUCCESS &&
                 capture == CU_STREAM_CAPTURE_STATUS_NONE;
    return waits ? cuStreamSynchronize(config->hStream) : result;
}

#define PLAIN_CONFIG                                                                      \
    (CUlaunchConfig) {                                                                    \
        .gridDimX = grid_x, .gridDimY = grid_y, .gridDimZ = grid_z, .blockDimX = block_x, \
        .blockDimY = block_y, .blockDimZ = block_z, .sharedMemBytes = shared_bytes,       \
        .hStream = stream                                                                 \
    }

API CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                            unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                            unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                            void **params, void **extra) {
    const struct launch_how how = {0};
    return launch(&PLAIN_CONFIG, function, &how, params, extra);
}

API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x,
                                       unsigned int grid_y, unsigned int grid_z,
                                       unsigned int block_x, unsigned int block_y,
                                       unsigned int block_z, unsigned int shared_bytes,
                                       CUstream stream, void **params) {
    const struct launch_how how = {.cooperative = true};
    return launch(&PLAIN_CONFIG, function, &how, params, NULL);
}

/* Attributes of launches that graph nodes do not have; they have no effect here. */
static bool of_launches_alone(int which) {
    return which == CU_LAUNCH_ATTRIBUTE_IGNORE ||
           which == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY ||
           which == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                              void **extra) {
    struct launch_how how = {0};
    NEED(config && (config->attrs || !config->numAttrs));
    for (unsigned i = 0; i < config->numAttrs; i++) {
        int which = (int)config->attrs[i].id;
        if (of_launches_alone(which)) continue;
        CUresult result = launch_attribute_set(&how, which, &config->attrs[i].value);
        if (result == CUDA_SUCCESS) continue;
        if (result != CUDA_ERROR_NOT_SUPPORTED) return result;
        if (engine_verbose()) engine_say("cuLaunchKernelEx: launch attribute %d", which);
        return engine_unsupported("cuLaunchKernelEx with such a launch attribute", NULL);
    }
    return launch(config, function, &how, params, extra);
}

API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    NEED_STREAM(stream, handle);
    NEED(function);
    struct op *op = op_new(OP_HOST);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->host.function = function;
    op->host.data = data;
    return stream_submit(stream, op, NULL);
}

/* A hint for the thread that waits for work; it has no effect here. */
API CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn function, void *data, unsigned mode) {
    NEED(mode <= CU_HOST_TASK_SPINWAIT);
    return cuLaunchHostFunc(stream, function, data);
}

/* ---- streams ---- */

API CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void *data,
                                 unsigned int flags) {
    NEED_STREAM(stream, handle);
    NEED(function && !flags);
    struct op *op = op_new(OP_CALLBACK);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->callback.function = function;
    op->callback.data = data;
    op->callback.handle = handle;
    return stream_submit(stream, op, NULL);
}

API CUresult cuStreamQuery(CUstream handle) {
    NEED_STREAM(stream, handle);
    CUresult allowed = capture_forbids(stream);
    if (allowed != CUDA_SUCCESS) return allowed;
    return stream_pending(stream, NULL) ? CUDA_ERROR_NOT_READY
                                        : (CUresult)atomic_load(&stream->context->error);
}

API CUresult cuStreamSynchronize(CUstream handle) {
    NEED_STREAM(stream, handle);
    return stream_synchronize(stream);
}

/* In a capture: a node that itself records or waits for the event whenever the graph runs. */
static CUresult external_event(struct stream *stream, enum op_kind kind, struct event *event) {
    struct op *op = op_new(kind);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_fetch_add(&event->refs, 1);
    op->event.event = event;
    return stream_submit(stream, op, NULL);
}

API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags) {
    NEED_STREAM(stream, handle);
    NEED_HANDLE(event, HANDLE_EVENT);
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (flags && !stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags) return external_event(stream, OP_WAIT_EVENT, (struct event *)event);
    return event_wait_in(stream, (struct event *)event);
}

API CUresult cuStreamGetPriority(CUstream handle, int *priority) {
    NEED_STREAM(stream, handle);
    NEED(priority);
    *priority = stream->priority;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags) {
    NEED_STREAM(stream, handle);
    NEED(flags);
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
    NEED_STREAM(stream, handle);
    NEED(id);
    *id = stream->id;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetCtx(CUstream handle, CUcontext *out) {
    NEED_STREAM(stream, handle);
    NEED(out);
    *out = (CUcontext)stream->context;
    return CUDA_SUCCESS;
}

API CUresult cuStreamGetDevice(CUstream handle, CUdevice *out) {
    NEED_STREAM(stream, handle);
    NEED(out);
    *out = stream->context->device->ordinal;
    return CUDA_SUCCESS;
}

/* ---- events ---- */

API CUresult cuEventRecord(CUevent event, CUstream handle) {
    NEED_STREAM(stream, handle);
    NEED_HANDLE(event, HANDLE_EVENT);
    if (((struct event *)event)->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    return event_record((struct event *)event, stream);
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned int flags) {
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (!(flags & CU_EVENT_RECORD_EXTERNAL)) return cuEventRecord(event, handle);
    NEED_STREAM(stream, handle);
    NEED_HANDLE(event, HANDLE_EVENT);
    return stream->capture ? external_event(stream, OP_RECORD, (struct event *)event)
                           : CUDA_ERROR_ILLEGAL_STATE;
}
