/* Modules, libraries, functions, occupancy. */
#include "cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fat_binary.h"
#include "common/file.h"

CUresult function_of(CUfunction handle, struct context *context, struct function **out) {
    switch (handle_kind_of(handle)) {
    case HANDLE_FUNCTION: *out = (struct function *)handle; return CUDA_SUCCESS;
    case HANDLE_KERNEL: return kernel_function((struct kernel *)handle, context, out);
    default: return CUDA_ERROR_INVALID_HANDLE;
    }
}

/* ---- modules ---- */

CUresult module_options_read(unsigned count, const CUjit_option *names, void **values,
                             struct module_options *out) {
    memset(out, 0, sizeof *out);
    if (count && (!names || !values)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        bool of_errors =
            names[i] == CU_JIT_ERROR_LOG_BUFFER || names[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
        struct module_log *log = of_errors ? &out->error : &out->info;
        switch ((int)names[i]) {
        case CU_JIT_INFO_LOG_BUFFER:
        case CU_JIT_ERROR_LOG_BUFFER: log->buffer = values[i]; break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            log->size = (size_t)(uintptr_t)values[i];
            log->filled = &values[i];
            break;
        default: break; /* hints for a compiler that does not exist */
        }
    }
    return CUDA_SUCCESS;
}

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count,
                                CUjit_option *names, void **values) {
    NEED_CONTEXT(context);
    NEED(out && image);
    struct module_options options;
    struct module *module;
    CUresult result = module_options_read(count, names, values, &options);
    if (result == CUDA_SUCCESS) result = module_load(context, image, &options, &module);
    if (result == CUDA_SUCCESS) *out = (CUmodule)module;
    return result;
}

API CUresult cuModuleLoadData(CUmodule *out, const void *image) {
    return cuModuleLoadDataEx(out, image, 0, NULL, NULL);
}

API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) {
    NEED_CONTEXT(context);
    NEED(out && image);
    return cuModuleLoadData(out, fat_binary_unwrapped(image));
}

/* Read the whole file and add a NUL; the caller frees it. */
static CUresult load_file(const char *path, char **text) {
    size_t bytes;
    *text = file_load(path, SIZE_MAX, &bytes);
    if (!*text) return CUDA_ERROR_FILE_NOT_FOUND;
    if (bytes >= 4) return CUDA_SUCCESS;
    free(*text);
    return CUDA_ERROR_INVALID_IMAGE;
}

API CUresult cuModuleLoad(CUmodule *out, const char *path) {
    NEED_CONTEXT(context);
    NEED(out && path);
    char *text;
    CUresult result = load_file(path, &text);
    if (result != CUDA_SUCCESS) return result;
    result = cuModuleLoadData(out, text);
    free(text);
    return result;
}

API CUresult cuModuleUnload(CUmodule handle) {
    NEED_CONTEXT(context);
    NEED_HANDLE(handle, HANDLE_MODULE);
    module_unload((struct module *)handle);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode) {
    NEED_INIT();
    NEED(mode);
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
    NEED_CONTEXT(context);
    NEED(out && name);
    NEED_HANDLE(handle, HANDLE_MODULE);
    struct function *function = module_function((struct module *)handle, name);
    if (!function) return CUDA_ERROR_NOT_FOUND;
    *out = (CUfunction)function;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule handle) {
    NEED_INIT();
    NEED(count);
    NEED_HANDLE(handle, HANDLE_MODULE);
    *count = (unsigned)((struct module *)handle)->function_count;
    return CUDA_SUCCESS;
}

API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned int count, CUmodule handle) {
    NEED_INIT();
    NEED(out);
    NEED_HANDLE(handle, HANDLE_MODULE);
    struct module *module = (struct module *)handle;
    for (size_t i = 0; i < module->function_count && i < count; i++)
        out[i] = (CUfunction)&module->functions[i];
    return CUDA_SUCCESS;
}

static CUresult find_global(const struct module *module, const char *name, CUdeviceptr *pointer,
                            size_t *bytes) {
    const egpu_ptx_global *global = egpu_ptx_find_global(module->ptx, name);
    if (!global) return CUDA_ERROR_NOT_FOUND;
    if (pointer) *pointer = global->address;
    if (bytes) *bytes = global->size;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUmodule handle,
                               const char *name) {
    NEED_CONTEXT(context);
    NEED(name && (pointer || bytes));
    NEED_HANDLE(handle, HANDLE_MODULE);
    return find_global((struct module *)handle, name, pointer, bytes);
}

/* ---- libraries ---- */

API CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *names, void **values,
                               unsigned int count, CUlibraryOption *library_names,
                               void **library_values, unsigned int library_count) {
    (void)names, (void)values, (void)count, (void)library_names, (void)library_values,
        (void)library_count;
    NEED_INIT();
    NEED(out && code);
    struct library *library;
    CUresult result = library_load(code, &library);
    if (result == CUDA_SUCCESS) *out = (CUlibrary)library;
    return result;
}

API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *names,
                                   void **values, unsigned int count,
                                   CUlibraryOption *library_names, void **library_values,
                                   unsigned int library_count) {
    NEED_INIT();
    NEED(out && path);
    char *text;
    CUresult result = load_file(path, &text);
    if (result != CUDA_SUCCESS) return result;
    result = cuLibraryLoadData(out, text, names, values, count, library_names, library_values,
                               library_count);
    free(text);
    return result;
}

API CUresult cuLibraryUnload(CUlibrary handle) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_LIBRARY);
    library_unload((struct library *)handle);
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name) {
    NEED_INIT();
    NEED(out && name);
    NEED_HANDLE(handle, HANDLE_LIBRARY);
    struct library *library = (struct library *)handle;
    for (size_t i = 0; i < library->kernel_count; i++)
        if (strcmp(library->kernels[i].name, name) == 0) {
            *out = (CUkernel)&library->kernels[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

API CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary handle) {
    NEED_INIT();
    NEED(count);
    NEED_HANDLE(handle, HANDLE_LIBRARY);
    *count = (unsigned)((struct library *)handle)->kernel_count;
    return CUDA_SUCCESS;
}

API CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned int count, CUlibrary handle) {
    NEED_INIT();
    NEED(out);
    NEED_HANDLE(handle, HANDLE_LIBRARY);
    struct library *library = (struct library *)handle;
    for (size_t i = 0; i < library->kernel_count && i < count; i++)
        out[i] = (CUkernel)&library->kernels[i];
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary handle) {
    NEED_CONTEXT(context);
    NEED(out);
    NEED_HANDLE(handle, HANDLE_LIBRARY);
    struct module *module;
    CUresult result = library_module((struct library *)handle, context, &module);
    if (result == CUDA_SUCCESS) *out = (CUmodule)module;
    return result;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary handle,
                                const char *name) {
    NEED_CONTEXT(context);
    NEED(name && (pointer || bytes));
    NEED_HANDLE(handle, HANDLE_LIBRARY);
    struct module *module;
    CUresult result = library_module((struct library *)handle, context, &module);
    return result == CUDA_SUCCESS ? find_global(module, name, pointer, bytes) : result;
}

API CUresult cuKernelGetFunction(CUfunction *out, CUkernel handle) {
    NEED_CONTEXT(context);
    NEED(out);
    NEED_HANDLE(handle, HANDLE_KERNEL);
    struct function *function;
    CUresult result = kernel_function((struct kernel *)handle, context, &function);
    if (result == CUDA_SUCCESS) *out = (CUfunction)function;
    return result;
}

API CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel handle) {
    NEED_INIT();
    NEED(out);
    NEED_HANDLE(handle, HANDLE_KERNEL);
    *out = (CUlibrary)((struct kernel *)handle)->library;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetName(const char **name, CUkernel handle) {
    NEED_INIT();
    NEED(name);
    NEED_HANDLE(handle, HANDLE_KERNEL);
    *name = ((struct kernel *)handle)->name;
    return CUDA_SUCCESS;
}

/* ---- functions ---- */

static CUresult get_attribute(const struct function *function, CUfunction_attribute attribute,
                              int *value) {
    const egpu_ptx_kernel_info *info = function->info;
    const struct sim_card *card = function->module->context->device->card;
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)info->max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)info->static_shared_bytes; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = (int)info->const_bytes; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)info->local_bytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = (int)info->registers; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        *value = (int)info->target;
        break; /* of its target architecture */
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = (int)(card->cc_major * 10 + card->cc_minor);
        break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->max_dynamic_shared;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = function->carveout; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: *value = info->explicit_cluster; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
        *value = (int)function->required_cluster[0];
        break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
        *value = (int)function->required_cluster[1];
        break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        *value = (int)function->required_cluster[2];
        break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        *value = function->large_clusters;
        break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        *value = function->cluster_scheduling;
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(struct function *function, CUfunction_attribute attribute,
                              int value) {
    const struct sim_card *card = function->module->context->device->card;
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 ||
            (uint64_t)value + function->info->static_shared_bytes > card->shared_per_block_optin)
            return CUDA_ERROR_INVALID_VALUE;
        function->max_dynamic_shared = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
        function->carveout = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        if (function->info->required_cluster[0]) return CUDA_ERROR_NOT_PERMITTED;
        if (value < 0) return CUDA_ERROR_INVALID_VALUE;
        function->required_cluster[attribute - CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] =
            (unsigned)value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        if (value != 0 && value != 1) return CUDA_ERROR_INVALID_VALUE;
        function->large_clusters = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        if (value < CU_CLUSTER_SCHEDULING_POLICY_DEFAULT ||
            value > CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING)
            return CUDA_ERROR_INVALID_VALUE;
        function->cluster_scheduling = value;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
    NEED_CONTEXT(context);
    NEED(value);
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    return result == CUDA_SUCCESS ? get_attribute(function, attribute, value) : result;
}

API CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    NEED_CONTEXT(context);
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    return result == CUDA_SUCCESS ? set_attribute(function, attribute, value) : result;
}

/* A kernel's attributes are per device: those of its function in the device's context. */
static CUresult kernel_on(CUkernel handle, CUdevice ordinal, struct function **out) {
    NEED_CONTEXT(context);
    NEED_HANDLE(handle, HANDLE_KERNEL);
    if (!engine_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    if (context->device->ordinal != ordinal)
        return engine_unsupported("the attributes of a kernel on a device that is not current",
                                  "make a context of the device current");
    return kernel_function((struct kernel *)handle, context, out);
}

API CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle,
                                  CUdevice ordinal) {
    NEED(value);
    struct function *function;
    CUresult result = kernel_on(handle, ordinal, &function);
    return result == CUDA_SUCCESS ? get_attribute(function, attribute, value) : result;
}

API CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                                  CUdevice ordinal) {
    struct function *function;
    CUresult result = kernel_on(handle, ordinal, &function);
    return result == CUDA_SUCCESS ? set_attribute(function, attribute, value) : result;
}

API CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config) {
    (void)config;
    NEED_CONTEXT(context);
    struct function *function;
    return function_of(handle, context, &function);
}

API CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config) {
    (void)config; /* banks have one width on all cards since CUDA 5 */
    NEED_CONTEXT(context);
    struct function *function;
    return function_of(handle, context, &function);
}

API CUresult cuFuncGetModule(CUmodule *out, CUfunction handle) {
    NEED_CONTEXT(context);
    NEED(out);
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    if (result == CUDA_SUCCESS) *out = (CUmodule)function->module;
    return result;
}

API CUresult cuFuncGetName(const char **name, CUfunction handle) {
    NEED_CONTEXT(context);
    NEED(name);
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    if (result == CUDA_SUCCESS) *name = function->info->name;
    return result;
}

static CUresult param_info(const struct function *function, size_t index, size_t *offset,
                           size_t *size) {
    if (index >= function->info->param_count) return CUDA_ERROR_INVALID_VALUE;
    if (offset) *offset = function->info->params[index].offset;
    if (size) *size = function->info->params[index].size;
    return CUDA_SUCCESS;
}

API CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size) {
    NEED_CONTEXT(context);
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    return result == CUDA_SUCCESS ? param_info(function, index, offset, size) : result;
}

API CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size) {
    NEED_CONTEXT(context);
    NEED_HANDLE(handle, HANDLE_KERNEL);
    struct function *function;
    CUresult result = kernel_function((struct kernel *)handle, context, &function);
    return result == CUDA_SUCCESS ? param_info(function, index, offset, size) : result;
}

API CUresult cuFuncGetParamCount(CUfunction handle, size_t *count) {
    NEED_CONTEXT(context);
    NEED(count);
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    if (result == CUDA_SUCCESS) *count = function->info->param_count;
    return result;
}

API CUresult cuKernelGetParamCount(CUkernel handle, size_t *count) {
    return cuFuncGetParamCount((CUfunction)handle, count);
}

API CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle) {
    NEED_CONTEXT(context);
    NEED(state);
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    if (result == CUDA_SUCCESS) *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return result;
}

API CUresult cuFuncLoad(CUfunction handle) {
    NEED_CONTEXT(context);
    struct function *function;
    return function_of(handle, context, &function);
}

/* Our own: set the duration of a launch of this kernel on the simulated card, whatever it does. 0
 * restores the derived duration. */
API CUresult egpuSimSetDuration(CUfunction handle, unsigned long long duration_ns);
API CUresult egpuSimSetDuration(CUfunction handle, unsigned long long duration_ns) {
    NEED_CONTEXT(context);
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    if (result == CUDA_SUCCESS) atomic_store(&function->duration_ns, duration_ns);
    return result;
}

/* ---- occupancy ---- */

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle,
                                                                  int block_size, size_t shared,
                                                                  unsigned int flags) {
    NEED_CONTEXT(context);
    NEED(blocks);
    if (flags & ~1u || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    if (result == CUDA_SUCCESS)
        *blocks = occupancy_blocks_per_sm(context->device->card, function, block_size, shared);
    return result;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
                                                         int block_size, size_t shared) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                shared, 0);
}

API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *min_grid, int *block_size,
                                                       CUfunction handle,
                                                       CUoccupancyB2DSize shared_of, size_t shared,
                                                       int limit, unsigned int flags) {
    NEED_CONTEXT(context);
    NEED(min_grid && block_size);
    if (flags & ~1u) return CUDA_ERROR_INVALID_VALUE;
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    if (result != CUDA_SUCCESS) return result;
    const struct sim_card *card = context->device->card;
    int largest = (int)function->info->max_threads;
    if (limit > 0 && limit < largest) largest = limit;
    int best_threads = 0;
    for (int size = largest; size > 0; size -= size % 32 ? size % 32 : 32) {
        int blocks =
            occupancy_blocks_per_sm(card, function, size, shared_of ? shared_of(size) : shared);
        if (blocks * size <= best_threads) continue;
        best_threads = blocks * size;
        *block_size = size;
        *min_grid = blocks * (int)mps_sm_count(card);
    }
    return best_threads ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API CUresult cuOccupancyMaxPotentialBlockSize(int *min_grid, int *block_size, CUfunction function,
                                              CUoccupancyB2DSize shared_of, size_t shared,
                                              int limit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid, block_size, function, shared_of,
                                                     shared, limit, 0);
}

API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *shared, CUfunction handle, int blocks,
                                                     int block_size) {
    NEED_CONTEXT(context);
    NEED(shared && blocks > 0 && block_size > 0);
    struct function *function;
    CUresult result = function_of(handle, context, &function);
    if (result != CUDA_SUCCESS) return result;
    const struct sim_card *card = context->device->card;
    if (occupancy_blocks_per_sm(card, function, block_size, 0) < blocks)
        return CUDA_ERROR_INVALID_VALUE;
    size_t fixed = function->info->static_shared_bytes + (card->cc_major >= 8 ? 1024 : 0);
    size_t each = card->shared_per_sm / (size_t)blocks;
    size_t free_bytes = each > fixed ? each - fixed : 0;
    *shared = free_bytes < (size_t)function->max_dynamic_shared
                  ? free_bytes
                  : (size_t)function->max_dynamic_shared;
    return CUDA_SUCCESS;
}
