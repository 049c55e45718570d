/* Operations with forms of their own: copies, images, launches, callbacks, shared host memory. See
 * special.h. */
#define _GNU_SOURCE
#include "executor.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

bool begins(struct task *task, void *message, size_t bytes, bool has_data) {
    get_bytes(&task->in, message, bytes);
    if (has_data && !task->in.bad) {
        task->data = task->in.at;
        task->data_bytes = task->in.left;
        task->in.left = 0;
    }
    return !task->in.bad;
}

CUresult violation(struct task *task) {
    task->violated = true;
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- copies ---- */

#define STAGE_BYTES WIRE_MAX_BULK

/* Pinned buffers that the GPU still reads when a posted copy has been carried out. Only where waits
 * must not hold others up. */
struct stage {
    struct stage *next;
    void *pages;
};
static struct stage *free_stages;
static pthread_mutex_t stage_lock = PTHREAD_MUTEX_INITIALIZER;

static void stage_done(void *data) {
    struct stage *stage = data;
    pthread_mutex_lock(&stage_lock);
    stage->next = free_stages;
    free_stages = stage;
    pthread_mutex_unlock(&stage_lock);
}

static CUresult copy_staged(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    pthread_mutex_lock(&stage_lock);
    struct stage *stage = free_stages;
    if (stage != NULL) free_stages = stage->next;
    pthread_mutex_unlock(&stage_lock);
    CUresult result = CUDA_SUCCESS;
    if (stage == NULL) {
        stage = calloc(1, sizeof *stage);
        if (stage == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
        result = DRIVER(cuMemHostAlloc, void **, size_t, unsigned)(&stage->pages, STAGE_BYTES, 0);
        if (result != CUDA_SUCCESS) {
            free(stage);
            return result;
        }
    }
    memcpy(stage->pages, from, bytes);
    result = DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t,
                    CUstream)(to, stage->pages, bytes, stream);
    if (result != CUDA_SUCCESS || DRIVER(cuLaunchHostFunc, CUstream, CUhostFn,
                                         void *)(stream, stage_done, stage) != CUDA_SUCCESS)
        stage_done(stage);
    return result;
}

bool captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return captures_begun() &&
           DRIVER(cuStreamIsCapturing, CUstream, CUstreamCaptureStatus *)(stream, &status) ==
               CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult to_device(struct task *task, CUdeviceptr to, const void *from, size_t bytes,
                          uint64_t stream_handle, bool wait) {
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, stream_handle, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (wait) return DRIVER(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)(to, from, bytes);
    if (captured(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    if (task->header.flags & WIRE_CONCURRENT && bytes > (32u << 10) && bytes <= STAGE_BYTES)
        return copy_staged(to, from, bytes, stream);
    /* From pageable memory: when it returns, the driver has no more use for it. */
    return DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t, CUstream)(to, from,
                                                                                     bytes, stream);
}

static CUresult from_device(struct task *task, void *to, CUdeviceptr from, size_t bytes,
                            uint64_t stream_handle, bool wait) {
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, stream_handle, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (wait) return DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)(to, from, bytes);
    if (captured(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    return DRIVER(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t, CUstream)(to, from, bytes,
                                                                               stream);
}

static CUresult copy_in(struct task *task) {
    struct wire_copy_in copy;
    if (!begins(task, &copy, sizeof copy, true) || copy.bytes > WIRE_MAX_BULK ||
        task->data_bytes < copy.bytes || task->data_bytes > padded(copy.bytes))
        return violation(task);
    return to_device(task, copy.to, task->data, copy.bytes, copy.stream, copy.wait);
}

/* Short data go into the reply; long ones get a buffer that the session keeps until the client has
 * them. */
void *room_for_data(struct task *task, size_t bytes) {
    if (bytes <= task->out.left && bytes <= 4096) return give(&task->out, bytes);
    task->large = session_reply_take(bytes);
    task->large_bytes = bytes;
    return task->large;
}

static CUresult copy_out(struct task *task) {
    struct wire_copy_out copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left || copy.bytes > WIRE_MAX_BULK)
        return violation(task);
    struct writer before = task->out;
    void *to = room_for_data(task, copy.bytes);
    if (to == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = from_device(task, to, copy.from, copy.bytes, copy.stream, copy.wait);
    if (task->large == NULL) {
        task->out = before;
        /* exactly: data have no padding here */
        if (result == CUDA_SUCCESS) task->out.at += copy.bytes;
    } else if (result != CUDA_SUCCESS) {
        session_reply_give(task->large, task->large_bytes);
        task->large = NULL;
    }
    return result;
}

static CUresult rows(struct task *task, const struct wire_copy_rows *copy, CUDA_MEMCPY2D *plan) {
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy->stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    plan->WidthInBytes = copy->width;
    plan->Height = copy->rows;
    if (copy->wait) return DRIVER(cuMemcpy2DUnaligned_v2, const CUDA_MEMCPY2D *)(plan);
    if (captured(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    return DRIVER(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *, CUstream)(plan, stream);
}

static CUresult copy_rect_in(struct task *task) {
    struct wire_copy_rows copy;
    if (!begins(task, &copy, sizeof copy, true)) return violation(task);
    uint64_t bytes = (uint64_t)copy.width * copy.rows;
    if (bytes > WIRE_MAX_BULK || task->data_bytes != padded(bytes)) return violation(task);
    CUDA_MEMCPY2D plan = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = task->data,
                          .srcPitch = copy.width,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = copy.device,
                          .dstPitch = copy.pitch};
    return rows(task, &copy, &plan);
}

static CUresult copy_rect_out(struct task *task) {
    struct wire_copy_rows copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left) return violation(task);
    uint64_t bytes = (uint64_t)copy.width * copy.rows;
    if (bytes > WIRE_MAX_BULK) return violation(task);
    task->large = session_reply_take(padded(bytes));
    if (task->large == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    task->large_bytes = padded(bytes);
    memset(task->large + bytes, 0, padded(bytes) - bytes);
    CUDA_MEMCPY2D plan = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = copy.device,
                          .srcPitch = copy.pitch,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = task->large,
                          .dstPitch = copy.width};
    CUresult result = rows(task, &copy, &plan);
    if (result == CUDA_SUCCESS) return result;
    session_reply_give(task->large, task->large_bytes);
    task->large = NULL;
    return result;
}

static CUresult copy_rect(struct task *task) {
    struct wire_copy_rect copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left) return violation(task);
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy.stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (copy.rows == 1) {
        if (copy.wait)
            return DRIVER(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, size_t)(copy.to, copy.from,
                                                                             copy.width);
        return DRIVER(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, size_t,
                      CUstream)(copy.to, copy.from, copy.width, stream);
    }
    CUDA_MEMCPY2D plan = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = copy.from,
                          .srcPitch = copy.from_pitch,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = copy.to,
                          .dstPitch = copy.to_pitch,
                          .WidthInBytes = copy.width,
                          .Height = copy.rows};
    if (copy.wait) return DRIVER(cuMemcpy2DUnaligned_v2, const CUDA_MEMCPY2D *)(&plan);
    return DRIVER(cuMemcpy2DAsync_v2, const CUDA_MEMCPY2D *, CUstream)(&plan, stream);
}

/* The area is pinned, so the driver returns before it has read it, or written it. */
static CUresult to_device_from_bulk(struct task *task, const struct wire_copy_shared *copy,
                                    const uint8_t *data) {
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy->stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (captured(stream)) return CUDA_ERROR_NOT_SUPPORTED;
    bool taken = bulk_take();
    if (!taken && task->header.flags & WIRE_CONCURRENT)
        return copy_staged(copy->device, data, copy->bytes, stream);
    return bulk_copy(copy->device, data, copy->bytes, stream, taken);
}

static CUresult from_device_to_bulk(struct task *task, const struct wire_copy_shared *copy,
                                    uint8_t *data) {
    CUresult result = from_device(task, data, copy->device, copy->bytes, copy->stream, copy->wait);
    if (result != CUDA_SUCCESS || copy->wait) return result;
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy->stream, &task->bad);
    return DRIVER(cuStreamSynchronize, CUstream)(stream);
}

static CUresult copy_shared(struct task *task, bool in) {
    struct wire_copy_shared copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left || copy.bytes > WIRE_MAX_BULK)
        return violation(task);
    uint8_t *data = session_bulk(copy.offset, copy.bytes);
    if (data == NULL) return violation(task);
    if (!in) return from_device_to_bulk(task, &copy, data);
    if (!copy.wait) return to_device_from_bulk(task, &copy, data);
    return to_device(task, copy.device, data, copy.bytes, copy.stream, true);
}
static CUresult copy_in_shared(struct task *task) { return copy_shared(task, true); }
static CUresult copy_out_shared(struct task *task) { return copy_shared(task, false); }

/* ---- host memory of both ---- */

#define HOST_MAPS 4096
#define HOST_BYTES (UINT64_C(64) << 30)

static struct wire_host_map host_maps[HOST_MAPS]; /* bytes 0: free */
static uint64_t host_bytes;
static pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;

bool within_host(uint64_t address, uint64_t bytes) {
    bool inside = false;
    pthread_mutex_lock(&host_lock);
    for (unsigned i = 0; i < HOST_MAPS && !inside; i++)
        inside = host_maps[i].bytes != 0 && bytes <= host_maps[i].bytes &&
                 address >= host_maps[i].address &&
                 address - host_maps[i].address <= host_maps[i].bytes - bytes;
    pthread_mutex_unlock(&host_lock);
    return inside;
}

static CUresult copy_host(struct task *task, bool in) {
    struct wire_copy_host copy;
    if (!begins(task, &copy, sizeof copy, false) || task->in.left) return violation(task);
    if (!within_host(copy.host, copy.bytes)) return CUDA_ERROR_INVALID_VALUE;
    void *host = (void *)(uintptr_t)copy.host;
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, copy.stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    if (!in) {
        if (copy.wait)
            return DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t)(host, copy.device,
                                                                        copy.bytes);
        return DRIVER(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, size_t,
                      CUstream)(host, copy.device, copy.bytes, stream);
    }
    if (copy.wait)
        return DRIVER(cuMemcpyHtoD_v2, CUdeviceptr, const void *, size_t)(copy.device, host,
                                                                          copy.bytes);
    return DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t,
                  CUstream)(copy.device, host, copy.bytes, stream);
}
static CUresult copy_host_in(struct task *task) { return copy_host(task, true); }
static CUresult copy_host_out(struct task *task) { return copy_host(task, false); }

static CUresult host_map(struct task *task) {
    struct wire_host_map map;
    if (!begins(task, &map, sizeof map, false) || task->in.left) return violation(task);
    int fd = session_receive_fd();
    if (fd < 0) return violation(task);
    struct stat status;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    bool sane = map.bytes != 0 && map.bytes % 4096 == 0 && map.address % 4096 == 0 &&
                map.address >= WIRE_HOST_LOWEST && map.bytes <= HOST_BYTES - host_bytes &&
                map.address <= WIRE_HOST_HIGHEST - map.bytes && fstat(fd, &status) == 0 &&
                (uint64_t)status.st_size >= map.bytes && fcntl(fd, F_GET_SEALS) >= 0 &&
                (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0;
    unsigned slot = 0;
    while (slot < HOST_MAPS && host_maps[slot].bytes != 0) slot++;
    if (sane && slot < HOST_MAPS) {
        void *pages = mmap((void *)(uintptr_t)map.address, map.bytes, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
        result = pages == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS)
            result = DRIVER(cuMemHostRegister_v2, void *, size_t, unsigned)(
                pages, map.bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
        if (result != CUDA_SUCCESS && pages != MAP_FAILED) munmap(pages, map.bytes);
    }
    close(fd);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&host_lock);
        host_maps[slot] = map;
        host_bytes += map.bytes;
        pthread_mutex_unlock(&host_lock);
    }
    return result;
}

static CUresult host_unmap(struct task *task) {
    struct wire_host_unmap unmap;
    if (!begins(task, &unmap, sizeof unmap, false) || task->in.left) return violation(task);
    struct wire_host_map found = {0};
    pthread_mutex_lock(&host_lock);
    for (unsigned i = 0; i < HOST_MAPS; i++)
        if (host_maps[i].bytes != 0 && host_maps[i].address == unmap.address) {
            found = host_maps[i];
            host_maps[i].bytes = 0;
            host_bytes -= found.bytes;
        }
    pthread_mutex_unlock(&host_lock);
    if (found.bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    DRIVER(cuMemHostUnregister, void *)((void *)(uintptr_t)found.address);
    munmap((void *)(uintptr_t)found.address, found.bytes);
    return CUDA_SUCCESS;
}

/* ---- modules ---- */

/* A function or kernel, as the client wants to know it. */
static void put_function(struct task *task, unsigned kind, uint64_t value, uint64_t parent) {
    const char *name = "";
    size_t offsets[WIRE_MAX_PARAMETERS], sizes[WIRE_MAX_PARAMETERS];
    struct wire_function is = {.handle = handle_of_child(kind, value, parent), .max_threads = 1024};
    int threads, clusters;
    if (kind == KIND_kernel) {
        CUkernel kernel = (CUkernel)(uintptr_t)value;
        if (driver_function(EGPU_FN_cuKernelGetName))
            DRIVER(cuKernelGetName, const char **, CUkernel)(&name, kernel);
        while (is.parameters < WIRE_MAX_PARAMETERS &&
               driver_function(EGPU_FN_cuKernelGetParamInfo) &&
               DRIVER(cuKernelGetParamInfo, CUkernel, size_t, size_t *,
                      size_t *)(kernel, is.parameters, &offsets[is.parameters],
                                &sizes[is.parameters]) == CUDA_SUCCESS)
            is.parameters++;
        CUdevice device;
        bool known = DRIVER(cuCtxGetDevice, CUdevice *)(&device) == CUDA_SUCCESS;
#define OF_KERNEL(which, value)                                                              \
    (known && DRIVER(cuKernelGetAttribute, int *, CUfunction_attribute, CUkernel, CUdevice)( \
                  &(value), CU_FUNC_ATTRIBUTE_##which, kernel, device) == CUDA_SUCCESS)
        if (OF_KERNEL(REQUIRED_CLUSTER_WIDTH, clusters) && clusters) is.clusters = 1;
        if (OF_KERNEL(CLUSTER_SIZE_MUST_BE_SET, clusters) && clusters) is.clusters = 1;
        if (OF_KERNEL(MAX_THREADS_PER_BLOCK, threads)) is.max_threads = (uint32_t)threads;
    } else {
        CUfunction function = (CUfunction)(uintptr_t)value;
        if (driver_function(EGPU_FN_cuFuncGetName))
            DRIVER(cuFuncGetName, const char **, CUfunction)(&name, function);
        while (is.parameters < WIRE_MAX_PARAMETERS && driver_function(EGPU_FN_cuFuncGetParamInfo) &&
               DRIVER(cuFuncGetParamInfo, CUfunction, size_t, size_t *,
                      size_t *)(function, is.parameters, &offsets[is.parameters],
                                &sizes[is.parameters]) == CUDA_SUCCESS)
            is.parameters++;
#define OF_FUNCTION(which, value)                            \
    (DRIVER(cuFuncGetAttribute, int *, CUfunction_attribute, \
            CUfunction)(&(value), CU_FUNC_ATTRIBUTE_##which, function) == CUDA_SUCCESS)
        if (OF_FUNCTION(REQUIRED_CLUSTER_WIDTH, clusters) && clusters) is.clusters = 1;
        if (OF_FUNCTION(CLUSTER_SIZE_MUST_BE_SET, clusters) && clusters) is.clusters = 1;
        if (OF_FUNCTION(MAX_THREADS_PER_BLOCK, threads)) is.max_threads = (uint32_t)threads;
    }
    put_bytes(&task->out, &is, sizeof is);
    put_string(&task->out, name);
    uint32_t *layout = give(&task->out, is.parameters * 8);
    for (uint32_t i = 0; layout != NULL && i < is.parameters; i++) {
        layout[2 * i] = (uint32_t)offsets[i];
        layout[2 * i + 1] = (uint32_t)sizes[i];
    }
}

static CUresult load(struct task *task, unsigned kind) {
    struct wire_load ask;
    if (!begins(task, &ask, sizeof ask, true) || ask.total == 0 || ask.total > WIRE_MAX_IMAGE ||
        ask.inline_bytes > WIRE_SMALL_IMAGE || task->data_bytes != padded(ask.inline_bytes) ||
        ask.log_bytes > 65536)
        return violation(task);
    if (ask.inline_bytes != 0 &&
        (ask.inline_bytes != ask.total ||
         !image_add(ask.digest, ask.total, 0, task->data, ask.inline_bytes)) &&
        !image_find(ask.digest))
        return violation(task);
    const struct image *image = image_known(ask.digest, ask.total);
    struct wire_loaded loaded = {0};
    struct writer start = task->out;
    if (image == NULL) {
        put_bytes(&task->out, &loaded, sizeof loaded);
        return CUDA_SUCCESS;
    }
    if (!image_is_whole(image)) return CUDA_ERROR_INVALID_IMAGE;
    char *logs = calloc(2, ask.log_bytes + 1);
    if (logs == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    CUjit_option options[4] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                               CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[4] = {logs, (void *)(uintptr_t)ask.log_bytes, logs + ask.log_bytes + 1,
                       (void *)(uintptr_t)ask.log_bytes};
    unsigned option_count = ask.log_bytes ? 4 : 0;
    uint64_t value = 0;
    CUresult result;
    if (kind == KIND_module) {
        CUmodule module = NULL;
        result = DRIVER(cuModuleLoadDataEx, CUmodule *, const void *, unsigned, CUjit_option *,
                        void **)(&module, image->bytes, option_count, options, values);
        value = (uint64_t)(uintptr_t)module;
    } else {
        CUlibrary library = NULL;
        CUresult (*real)(CUlibrary *, const void *, CUjit_option *, void **, unsigned,
                         CUlibraryOption *, void **, unsigned) =
            DRIVER(cuLibraryLoadData, CUlibrary *, const void *, CUjit_option *, void **, unsigned,
                   CUlibraryOption *, void **, unsigned);
        result = real == NULL
                     ? CUDA_ERROR_NOT_SUPPORTED
                     : real(&library, image->bytes, options, values, option_count, NULL, NULL, 0);
        value = (uint64_t)(uintptr_t)library;
    }
    loaded.known = 2; /* without a list of the functions */
    put_bytes(&task->out, &loaded, sizeof loaded);
    if (result == CUDA_SUCCESS) {
        handle_bind(task, kind, ask.handle, value);
        unsigned count = 0;
        uint64_t *functions = NULL;
        if (kind == KIND_module && driver_function(EGPU_FN_cuModuleEnumerateFunctions) &&
            DRIVER(cuModuleGetFunctionCount, unsigned *,
                   CUmodule)(&count, (CUmodule)(uintptr_t)value) == CUDA_SUCCESS &&
            count <= WIRE_MAX_FUNCTIONS &&
            (functions = calloc(count + 1, sizeof *functions)) != NULL &&
            DRIVER(cuModuleEnumerateFunctions, CUfunction *, unsigned, CUmodule)(
                (CUfunction *)functions, count, (CUmodule)(uintptr_t)value) == CUDA_SUCCESS)
            loaded.known = 1;
        if (kind == KIND_library && driver_function(EGPU_FN_cuLibraryEnumerateKernels) &&
            DRIVER(cuLibraryGetKernelCount, unsigned *,
                   CUlibrary)(&count, (CUlibrary)(uintptr_t)value) == CUDA_SUCCESS &&
            count <= WIRE_MAX_FUNCTIONS &&
            (functions = calloc(count + 1, sizeof *functions)) != NULL &&
            DRIVER(cuLibraryEnumerateKernels, CUkernel *, unsigned, CUlibrary)(
                (CUkernel *)functions, count, (CUlibrary)(uintptr_t)value) == CUDA_SUCCESS)
            loaded.known = 1;
        for (unsigned i = 0; loaded.known == 1 && i < count; i++) {
            struct writer before = task->out;
            put_function(task, kind == KIND_module ? KIND_function : KIND_kernel, functions[i],
                         ask.handle);
            /* no more room: the client asks one by one */
            if (task->out.bad || task->out.left < 2 * ask.log_bytes + 64) {
                task->out = before;
                loaded.known = 2;
                break;
            }
            loaded.functions++;
        }
        free(functions);
        memcpy(start.at, &loaded, sizeof loaded);
    }
    if (ask.log_bytes) {
        put_block(&task->out, logs, strnlen(logs, ask.log_bytes));
        put_block(&task->out, logs + ask.log_bytes + 1,
                  strnlen(logs + ask.log_bytes + 1, ask.log_bytes));
    }
    free(logs);
    return result;
}
static CUresult module_load(struct task *task) { return load(task, KIND_module); }
static CUresult library_load(struct task *task) { return load(task, KIND_library); }

static CUresult function_info(struct task *task) {
    struct wire_function_info ask;
    if (!begins(task, &ask, sizeof ask, false) || task->in.left) return violation(task);
    unsigned kind = wire_kind_of(ask.handle);
    if (kind != KIND_function && kind != KIND_kernel) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t value = handle_value(kind, ask.handle, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    put_function(task, kind, value, task->context);
    return CUDA_SUCCESS;
}

/* ---- launches ---- */

static CUresult launch(struct task *task) {
    struct wire_launch message;
    CUlaunchAttribute attributes[WIRE_MAX_ARRAY];
    if (!begins(task, &message, sizeof message, false) ||
        message.attribute_count > WIRE_MAX_ARRAY || message.argument_bytes > WIRE_MAX_ARGUMENTS)
        return violation(task);
    if (message.attribute_count)
        get_bytes(&task->in, attributes, message.attribute_count * sizeof *attributes);
    const void *arguments = take(&task->in, message.argument_bytes);
    CUfunction function =
        (CUfunction)(uintptr_t)handle_value(KIND_function, message.function, &task->bad);
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, message.stream, &task->bad);
    CUresult refused = task_refused(task, true);
    if (refused != CUDA_SUCCESS) return refused;
    for (unsigned i = 0; i < message.attribute_count; i++) /* no pointers of the client's */
        if (!attribute_is_value((int)attributes[i].id)) return CUDA_ERROR_NOT_SUPPORTED;
    size_t bytes = message.argument_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)arguments,
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    const uint32_t *grid = message.grid, *block = message.block;
    if (message.flags & (WIRE_LAUNCH_EX | WIRE_LAUNCH_COOPERATIVE)) {
        if (message.flags & WIRE_LAUNCH_COOPERATIVE) {
            attributes[0] =
                (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
            message.attribute_count = 1;
        }
        CUlaunchConfig config = {.gridDimX = grid[0],
                                 .gridDimY = grid[1],
                                 .gridDimZ = grid[2],
                                 .blockDimX = block[0],
                                 .blockDimY = block[1],
                                 .blockDimZ = block[2],
                                 .sharedMemBytes = message.shared_bytes,
                                 .hStream = stream,
                                 .attrs = attributes,
                                 .numAttrs = message.attribute_count};
        CUresult (*real)(const CUlaunchConfig *, CUfunction, void **, void **) =
            DRIVER(cuLaunchKernelEx, const CUlaunchConfig *, CUfunction, void **, void **);
        return real == NULL ? CUDA_ERROR_NOT_SUPPORTED
                            : real(&config, function, NULL, bytes ? extra : NULL);
    }
    return DRIVER(cuLaunchKernel, CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, unsigned, CUstream, void **,
                  void **)(function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                           message.shared_bytes, stream, NULL, bytes ? extra : NULL);
}

/* ---- primary contexts ---- */

/* Their handles, by device: calls that end or empty one name the device. The client keeps one
 * reference for all of the program's. */
static uint64_t primaries[WIRE_MAX_DEVICES];

static CUresult primary_retain(struct task *task) {
    uint64_t handle = 0;
    uint32_t device = WIRE_MAX_DEVICES;
    if (task->in.left >= 24) {
        memcpy(&handle, task->in.at + 8, sizeof handle);
        memcpy(&device, task->in.at + 16, sizeof device);
    }
    CUresult result = generated_operations[OP_cuDevicePrimaryCtxRetain].run(task);
    if (result == CUDA_SUCCESS && device < WIRE_MAX_DEVICES) primaries[device] = handle;
    return result;
}

static CUresult primary_ends(struct task *task, uint16_t op, bool itself) {
    uint32_t device = WIRE_MAX_DEVICES;
    if (task->in.left >= 8) memcpy(&device, task->in.at, sizeof device);
    CUresult result = generated_operations[op].run(task);
    if (result == CUDA_SUCCESS && device < WIRE_MAX_DEVICES && primaries[device] != 0) {
        handle_forget(primaries[device], itself);
        if (itself) primaries[device] = 0;
    }
    return result;
}
static CUresult primary_release(struct task *task) {
    return primary_ends(task, OP_cuDevicePrimaryCtxRelease_v2, true);
}
static CUresult primary_reset(struct task *task) {
    return primary_ends(task, OP_cuDevicePrimaryCtxReset_v2, false);
}

/* ---- libraries ---- */

/* What a library's kernels or modules give goes with the library, not with the context. The handle
 * is behind the mask of pointers. */
static CUresult of_library(struct task *task, uint16_t op, bool kernel) {
    uint64_t handle;
    if (task->in.left >= 16) {
        memcpy(&handle, task->in.at + 8, sizeof handle);
        uint64_t library = kernel ? handle_parent(handle) : handle;
        if (wire_kind_of(library) == KIND_library) task->context = library;
    }
    return generated_operations[op].run(task);
}
static CUresult kernel_function(struct task *task) {
    return of_library(task, OP_cuKernelGetFunction, true);
}
static CUresult library_module(struct task *task) {
    return of_library(task, OP_cuLibraryGetModule, false);
}

/* ---- callbacks and pointers ---- */

void call_client(void *data) { session_callback((uint64_t)(uintptr_t)data, CUDA_SUCCESS); }
static void CUDA_CB call_client_with_status(CUstream stream, CUresult status, void *data) {
    (void)stream;
    session_callback((uint64_t)(uintptr_t)data, status);
}

static CUresult host_callback(struct task *task) {
    struct wire_host_callback message;
    if (!begins(task, &message, sizeof message, false) || task->in.left) return violation(task);
    CUstream stream = (CUstream)(uintptr_t)handle_value(KIND_stream, message.stream, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    void *data = (void *)(uintptr_t)message.id;
    session_shares_output();
    if (message.with_status)
        return DRIVER(cuStreamAddCallback, CUstream, CUstreamCallback, void *,
                      unsigned)(stream, call_client_with_status, data, 0);
    return DRIVER(cuLaunchHostFunc, CUstream, CUhostFn, void *)(stream, call_client, data);
}

static CUresult pointer_attribute(struct task *task) {
    struct wire_pointer_attribute ask;
    uint64_t answer[2] = {0};
    if (!begins(task, &ask, sizeof ask, false) || task->in.left) return violation(task);
    switch ((int)ask.attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: break;
    default: return CUDA_ERROR_NOT_SUPPORTED; /* longer answers, and handles */
    }
    CUresult result = DRIVER(cuPointerGetAttribute, void *, CUpointer_attribute,
                             CUdeviceptr)(answer, (CUpointer_attribute)ask.attribute, ask.pointer);
    if (result == CUDA_SUCCESS) put_word(&task->out, answer[0]);
    return result;
}

static CUresult device_status(struct task *task) {
    struct wire_device_status_ask ask;
    if (!begins(task, &ask, sizeof ask, false) || task->in.left) return violation(task);
    return status_read(ask.device, &task->out);
}

const struct operation special_operations[OP_COUNT] = {
    [OP_COPY_IN] = {copy_in, OPERATION_BLOCKS},
    [OP_COPY_OUT] = {copy_out, OPERATION_BLOCKS},
    [OP_COPY_RECT_IN] = {copy_rect_in, OPERATION_BLOCKS},
    [OP_COPY_RECT_OUT] = {copy_rect_out, OPERATION_BLOCKS},
    [OP_COPY_RECT] = {copy_rect, OPERATION_BLOCKS},
    [OP_COPY_ARRAY] = {array_copy, OPERATION_BLOCKS},
    [OP_COPY_ARRAY_IN] = {array_copy_in, OPERATION_BLOCKS},
    [OP_COPY_ARRAY_OUT] = {array_copy_out, OPERATION_BLOCKS},
    [OP_cuMipmappedArrayGetLevel] = {array_level, 0},
    [OP_cuArrayGetPlane] = {array_plane, 0},
    [OP_COPY_IN_SHARED] = {copy_in_shared, OPERATION_BLOCKS},
    [OP_COPY_OUT_SHARED] = {copy_out_shared, OPERATION_BLOCKS},
    [OP_COPY_HOST_IN] = {copy_host_in, OPERATION_BLOCKS},
    [OP_COPY_HOST_OUT] = {copy_host_out, OPERATION_BLOCKS},
    [OP_HOST_MAP] = {host_map, 0},
    [OP_HOST_UNMAP] = {host_unmap, 0},
    [OP_cuStreamBeginCapture_v2] = {begin_capture, 0},
    [OP_cuStreamBeginCaptureToGraph] = {begin_capture, 0},
    [OP_cuStreamEndCapture] = {end_capture, 0},
    [OP_cuGraphDestroy] = {graph_destroy, 0},
    [OP_cuGraphDestroyNode] = {graph_destroy_node, 0},
    [OP_CAPTURE_INFO] = {capture_info, 0},
    [OP_GRAPH_NODE] = {graph_node, 0},
    [OP_GRAPH_UPDATE] = {graph_update, 0},
    [OP_ROOM] = {room_make, 0},
    [OP_ROOM_IN] = {room_in, 0},
    [OP_ROOM_OUT] = {room_out, 0},
    [OP_cuDevicePrimaryCtxRetain] = {primary_retain, 0},
    [OP_cuDevicePrimaryCtxRelease_v2] = {primary_release, OPERATION_BLOCKS},
    [OP_cuDevicePrimaryCtxReset_v2] = {primary_reset, OPERATION_BLOCKS},
    [OP_cuKernelGetFunction] = {kernel_function, 0},
    [OP_cuLibraryGetModule] = {library_module, 0},
    [OP_IMAGE] = {image_part, 0},
    [OP_MODULE_LOAD] = {module_load, 0},
    [OP_LIBRARY_LOAD] = {library_load, 0},
    [OP_FUNCTION_INFO] = {function_info, 0},
    [OP_LAUNCH] = {launch, 0},
    [OP_CLUSTERS] = {clusters, 0},
    [OP_NODE_ATTRIBUTE] = {node_attribute, 0},
    [OP_HOST_CALLBACK] = {host_callback, 0},
    [OP_POINTER_ATTRIBUTE] = {pointer_attribute, 0},
    [OP_DEVICE_STATUS] = {device_status, 0},
    [OP_PRINTED] = {printed, 0},
    [OP_LIBRARY_GROUP] = {library_group, OPERATION_BESIDE},
};
