/* Kernels. Arguments are packed as the kernel declares them. Errors that can be detected here are
 * returned at once. */
#define _GNU_SOURCE
#include "client.h"

#include <stdio.h>

static CUresult check_shape(struct link *link, const uint32_t grid[3], const uint32_t block[3]) {
    uint64_t context = context_current();
    struct handle_entry *entry = handle_entry(context);
    if (entry == NULL || entry->info == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    unsigned local;
    if (link_of_device(((struct shadow_context *)entry->info)->ordinal, &local) != link)
        return CUDA_ERROR_INVALID_CONTEXT;
    const int32_t *attributes = link->devices[local].attributes;
    for (int i = 0; i < 3; i++) {
        if (grid[i] == 0 || grid[i] > (uint32_t)attributes[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i])
            return CUDA_ERROR_INVALID_VALUE;
        if (block[i] == 0 ||
            block[i] > (uint32_t)attributes[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i])
            return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    return threads > (uint64_t)attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK]
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_SUCCESS;
}

/* `extra` is a list of a buffer and its size. */
static CUresult from_extra(void **extra, const void **buffer, size_t *bytes) {
    *buffer = NULL;
    *bytes = 0;
    for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (i > 8) return CUDA_ERROR_INVALID_VALUE;
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *buffer = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            *bytes = *(const size_t *)extra[i + 1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Without the layout a launch would carry no arguments. */
static CUresult opaque(const struct function *function) {
    fprintf(
        stderr,
        "egpu: the driver of this GPU's server does not tell the parameters of kernel %s, so a "
        "remote GPU cannot run it; that needs a driver of CUDA 12.4 or newer, and a kernel that "
        "was compiled by CUDA 12 or newer\n",
        function->name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult kernel_arguments(const struct function *function, void **params, void **extra,
                          const void **buffer) {
    size_t bytes = 0;
    *buffer = NULL;
    if (function->opaque && (params != NULL || extra != NULL)) return opaque(function);
    if ((params != NULL && extra != NULL) ||
        (function->parameter_count != 0 && params == NULL && extra == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    if (extra != NULL) {
        CUresult result = from_extra(extra, buffer, &bytes);
        if (result != CUDA_SUCCESS) return result;
        return bytes < function->argument_bytes || (bytes && *buffer == NULL)
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_SUCCESS;
    }
    for (uint32_t i = 0; i < function->parameter_count; i++)
        if (params[i] == NULL) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

void pack_arguments(const struct function *function, void **params, const void *buffer,
                    uint8_t *to) {
    if (buffer != NULL)
        memcpy(to, buffer, function->argument_bytes);
    else
        for (uint32_t i = 0; i < function->parameter_count; i++)
            memcpy(to + function->parameters[i].offset, params[i], function->parameters[i].size);
}

static CUresult submit(const CUlaunchConfig *config, uint32_t flags, CUfunction handle,
                       void **params, void **extra) {
    struct call call;
    call_start(&call, OP_LAUNCH);
    struct wire_launch message = {
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared_bytes = config->sharedMemBytes,
        .flags = flags,
        .attribute_count = config->numAttrs};
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if ((result = call_handle(&call, KIND_stream, (uint64_t)(uintptr_t)config->hStream,
                              &message.stream)) != CUDA_SUCCESS)
        return result;
    if ((result = call_handle(&call, KIND_function, (uint64_t)(uintptr_t)handle,
                              &message.function)) != CUDA_SUCCESS)
        return result;
    struct function *function;
    if ((result = function_limits((uint64_t)(uintptr_t)handle, &function)) != CUDA_SUCCESS)
        return result;
    /* A kernel runs in any context, a function only in its module's. */
    if (wire_kind_of((uint64_t)(uintptr_t)handle) == KIND_function &&
        handle_entry((uint64_t)(uintptr_t)handle)->context !=
            stream_context((uint64_t)(uintptr_t)config->hStream))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((result = check_shape(link, message.grid, message.block)) != CUDA_SUCCESS) return result;
    const void *buffer;
    if ((result = kernel_arguments(function, params, extra, &buffer)) != CUDA_SUCCESS)
        return result;
    message.argument_bytes = function->argument_bytes;
    uint64_t threads = (uint64_t)message.block[0] * message.block[1] * message.block[2];
    /* Posted only if the driver cannot refuse it. With more threads, shared memory or attributes
     * than are known to work, the reply is waited for. */
    bool sure = threads <= function->max_threads && !atomic_load(&function->clusters) &&
                message.attribute_count == 0 && flags == 0 &&
                message.shared_bytes <=
                    atomic_load_explicit(&function->largest_shared, memory_order_relaxed);
    size_t attribute_bytes = message.attribute_count * sizeof(CUlaunchAttribute);
    result =
        call_begin(&call, sizeof message + padded(attribute_bytes) + padded(message.argument_bytes),
                   sure ? CALL_POSTED : CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &message, sizeof message);
    if (attribute_bytes) put_bytes(&call.out, config->attrs, attribute_bytes);
    pack_arguments(function, params, buffer, give(&call.out, message.argument_bytes));
    if (sure) return call_post(&call);
    result = call_exchange(&call);
    call_end(&call);
    if (result == CUDA_SUCCESS && message.shared_bytes > atomic_load(&function->largest_shared))
        atomic_store(&function->largest_shared, message.shared_bytes);
    return result;
}

static bool launches_block; /* CUDA_LAUNCH_BLOCKING */

void launches_choose(void) {
    const char *value = getenv("CUDA_LAUNCH_BLOCKING");
    launches_block = value != NULL && atoi(value) != 0;
}

static CUresult launch(const CUlaunchConfig *config, uint32_t flags, CUfunction handle,
                       void **params, void **extra) {
    CUresult result = submit(config, flags, handle, params, extra);
    bool waits = result == CUDA_SUCCESS && launches_block && !capturing(config->hStream);
    return waits ? cuStreamSynchronize(config->hStream) : result;
}

API CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                            unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                            CUstream stream, void **params, void **extra) {
    CUlaunchConfig config = {.gridDimX = gx,
                             .gridDimY = gy,
                             .gridDimZ = gz,
                             .blockDimX = bx,
                             .blockDimY = by,
                             .blockDimZ = bz,
                             .sharedMemBytes = shared,
                             .hStream = stream};
    return launch(&config, 0, function, params, extra);
}

API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int gx, unsigned int gy,
                                       unsigned int gz, unsigned int bx, unsigned int by,
                                       unsigned int bz, unsigned int shared, CUstream stream,
                                       void **params) {
    CUlaunchConfig config = {.gridDimX = gx,
                             .gridDimY = gy,
                             .gridDimZ = gz,
                             .blockDimX = bx,
                             .blockDimY = by,
                             .blockDimZ = bz,
                             .sharedMemBytes = shared,
                             .hStream = stream};
    return launch(&config, WIRE_LAUNCH_COOPERATIVE, function, params, NULL);
}

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params,
                              void **extra) {
    if (config == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (config->numAttrs > WIRE_MAX_ARRAY || (config->numAttrs && config->attrs == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    /* these contain events or device-side graph nodes */
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
            config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT ||
            config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
            return not_supported("cuLaunchKernelEx with an event or an updatable node");
    return launch(config, WIRE_LAUNCH_EX, function, params, extra);
}
