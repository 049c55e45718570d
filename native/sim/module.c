/* Modules, libraries and kernels; the shape checks of a launch. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/fat_binary.h"

#define LOG_BYTES 4096

/* ---- loading ---- */

static bool allocate_global(void *argument, uint64_t size, uint64_t align, uint64_t *address,
                            void **host) {
    struct context *context = argument;
    struct extent extent;
    (void)align; /* allocations begin at 512 bytes or better; PTX asks for 256 at most */
    if (memory_alloc(&context->memory, size ? size : 1, address) != 0) return false;
    /* A slab is shared with what was freed before. Chunks of one's own come as zeros, and a large
     * array costs the machine only what of it is touched. */
    if (size < SIM_CHUNK_BYTES) {
        if (!memory_find(*address, &extent) ||
            memory_populate(&extent, *address, extent.size, NULL, NULL) != 0) {
            memory_free(*address);
            return false;
        }
        memset((void *)(uintptr_t)*address, 0, size);
    }
    *host = (void *)(uintptr_t)*address;
    return true;
}

static void release_global(void *argument, uint64_t address, uint64_t size) {
    (void)argument;
    (void)size;
    memory_free(address);
}

/* Compiled code cannot run here; say which kind it was. */
static const char *compiled_kind(const void *image) {
    static const unsigned char elf[4] = {0x7f, 'E', 'L', 'F'};
    static const unsigned char wrapper[4] = {0xb1, 0x43, 0x62, 0x46};
    if (memcmp(image, elf, 4) == 0) return "compiled kernels (a cubin)";
    if (memcmp(image, wrapper, 4) == 0) return "compiled kernels (a fat binary)";
    return NULL;
}

static void write_log(char *buffer, size_t size, const char *text) {
    if (!buffer || !size) return;
    size_t length = strlen(text);
    if (length >= size) length = size - 1;
    memcpy(buffer, text, length);
    buffer[length] = '\0';
}

static CUresult refuse(const struct module_options *options, CUresult result, const char *why) {
    if (options) write_log(options->error_log, options->error_log_size, why);
    if (engine_verbose()) engine_say("module refused: %s", why);
    return result;
}

static CUresult of_load(egpu_ptx_status status) {
    switch (status) {
    case EGPU_PTX_OK: return CUDA_SUCCESS;
    case EGPU_PTX_SYNTAX: return CUDA_ERROR_INVALID_PTX;
    case EGPU_PTX_UNSUPPORTED: return CUDA_ERROR_NOT_SUPPORTED;
    case EGPU_PTX_UNRESOLVED: return CUDA_ERROR_INVALID_PTX;
    default: return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

static CUresult check_target(const struct context *context, const egpu_ptx_module *ptx, char *why,
                             size_t size) {
    const struct sim_card *card = context->device->card;
    for (size_t i = 0; i < egpu_ptx_kernel_count(ptx); i++) {
        unsigned target = egpu_ptx_kernel_describe(egpu_ptx_kernel_at(ptx, i))->target;
        if (target <= card->cc_major * 10 + card->cc_minor) continue;
        snprintf(why, size, "PTX is for sm_%u, the card is sm_%u%u", target, card->cc_major,
                 card->cc_minor);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return CUDA_SUCCESS;
}

static CUresult load(struct context *context, const void *image,
                     const struct module_options *options, struct module **out) {
    char log[LOG_BYTES] = "";
    const char *kind = compiled_kind(image);
    if (kind) {
        engine_lacks(kind);
        snprintf(log, sizeof log, "%s: the simulated card runs PTX text only", kind);
        return refuse(options, CUDA_ERROR_NO_BINARY_FOR_GPU, log);
    }
    struct module *module = calloc(1, sizeof *module);
    if (!module) return CUDA_ERROR_OUT_OF_MEMORY;
    egpu_ptx_allocator allocator = {
        .ctx = context, .alloc = allocate_global, .release = release_global};
    CUresult result = of_load(egpu_ptx_load(image, 0, &allocator, log, sizeof log, &module->ptx));
    if (result == CUDA_SUCCESS) result = check_target(context, module->ptx, log, sizeof log);
    if (result == CUDA_SUCCESS) {
        module->context = context;
        module->function_count = egpu_ptx_kernel_count(module->ptx);
        module->functions = calloc(module->function_count + 1, sizeof *module->functions);
        if (!module->functions || !handle_add(module, HANDLE_MODULE))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; result == CUDA_SUCCESS && i < module->function_count; i++) {
        struct function *function = &module->functions[i];
        function->module = module;
        function->kernel = egpu_ptx_kernel_at(module->ptx, i);
        function->info = egpu_ptx_kernel_describe(function->kernel);
        /* Without the opt-in attribute a block's static and dynamic shared memory share the 48
         * KiB. */
        int limit =
            (int)context->device->card->shared_per_block - (int)function->info->static_shared_bytes;
        function->max_dynamic_shared = limit > 0 ? limit : 0;
        memcpy(function->required_cluster, function->info->required_cluster,
               sizeof function->required_cluster);
        function->carveout = -1;
        if (!handle_add(function, HANDLE_FUNCTION)) result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        handle_remove(module);
        for (size_t i = 0; module->functions && i < module->function_count; i++)
            handle_remove(&module->functions[i]);
        egpu_ptx_unload(module->ptx);
        free(module->functions);
        free(module);
        return refuse(options, result, log);
    }
    pthread_mutex_lock(&context->lock);
    module->next = context->modules;
    if (module->next) module->next->previous = module;
    context->modules = module;
    pthread_mutex_unlock(&context->lock);
    if (options) write_log(options->info_log, options->info_log_size, "");
    *out = module;
    return CUDA_SUCCESS;
}

static unsigned target_of(const struct sim_card *card) {
    return card->cc_major * 10 + card->cc_minor;
}

CUresult module_load(struct context *context, const void *image,
                     const struct module_options *options, struct module **out) {
    print_flush(context);
    if (!fat_binary_is(image)) return load(context, image, options, out);
    char *text;
    CUresult result = fatbin_ptx(image, target_of(context->device->card), &text);
    if (result != CUDA_SUCCESS)
        return refuse(options, result, "a fat binary without PTX that runs here");
    result = load(context, text, options, out);
    free(text);
    return result;
}

static void leave_library(struct module *module) {
    struct library *library = module->library;
    if (!library) return;
    pthread_mutex_lock(&library->lock);
    struct module **link = &library->modules;
    while (*link != module) link = &(*link)->sibling;
    *link = module->sibling;
    pthread_mutex_unlock(&library->lock);
}

void module_unload(struct module *module) {
    struct context *context = module->context;
    context_synchronize(context);
    leave_library(module);
    pthread_mutex_lock(&context->lock);
    if (module->previous)
        module->previous->next = module->next;
    else
        context->modules = module->next;
    if (module->next) module->next->previous = module->previous;
    pthread_mutex_unlock(&context->lock);
    handle_remove(module);
    for (size_t i = 0; i < module->function_count; i++) handle_remove(&module->functions[i]);
    egpu_ptx_unload(module->ptx);
    free(module->functions);
    free(module);
}

struct function *module_function(struct module *module, const char *name) {
    for (size_t i = 0; i < module->function_count; i++)
        if (strcmp(module->functions[i].info->name, name) == 0) return &module->functions[i];
    return NULL;
}

/* ---- libraries: modules that load themselves into whichever context needs them ---- */

/* Parsed once without a device, to know the kernels' names: a library is loaded before there is a
 * context. */
static bool scratch_alloc(void *argument, uint64_t size, uint64_t align, uint64_t *address,
                          void **host) {
    (void)argument, (void)align;
    void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return false;
    *host = pages;
    *address = (uint64_t)(uintptr_t)pages;
    return true;
}

static void scratch_release(void *argument, uint64_t address, uint64_t size) {
    (void)argument;
    munmap((void *)(uintptr_t)address, size);
}

static CUresult name_kernels(struct library *library) {
    egpu_ptx_allocator allocator = {.alloc = scratch_alloc, .release = scratch_release};
    egpu_ptx_module *ptx;
    char log[LOG_BYTES] = "";
    CUresult result = of_load(egpu_ptx_load(library->image, 0, &allocator, log, sizeof log, &ptx));
    if (result == CUDA_SUCCESS) {
        library->kernel_count = egpu_ptx_kernel_count(ptx);
        library->kernels = calloc(library->kernel_count + 1, sizeof *library->kernels);
        if (!library->kernels) result = CUDA_ERROR_OUT_OF_MEMORY;
        for (size_t i = 0; result == CUDA_SUCCESS && i < library->kernel_count; i++) {
            struct kernel *kernel = &library->kernels[i];
            kernel->library = library;
            kernel->name = strdup(egpu_ptx_kernel_describe(egpu_ptx_kernel_at(ptx, i))->name);
            if (!kernel->name || !handle_add(kernel, HANDLE_KERNEL))
                result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        egpu_ptx_unload(ptx);
    } else if (engine_verbose())
        engine_say("library refused: %s", log);
    return result;
}

static void library_free(struct library *library) {
    handle_remove(library);
    for (size_t i = 0; library->kernels && i < library->kernel_count; i++) {
        handle_remove(&library->kernels[i]);
        free(library->kernels[i].name);
    }
    free(library->kernels);
    free(library->image);
    free(library);
}

CUresult library_load(const void *image, struct library **out) {
    const char *kind = compiled_kind(image);
    if (kind) {
        engine_lacks(kind);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    struct library *library = calloc(1, sizeof *library);
    if (!library) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&library->lock, NULL);
    CUresult result = CUDA_SUCCESS;
    /* A library has one text for all cards: what suits the first of them. */
    if (fat_binary_is(image))
        result = fatbin_ptx(image, target_of(engine_device(0)->card), &library->image);
    else
        library->image = strdup(image);
    if (result == CUDA_SUCCESS)
        result = library->image && handle_add(library, HANDLE_LIBRARY) ? name_kernels(library)
                                                                       : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        library_free(library);
        return result;
    }
    *out = library;
    return CUDA_SUCCESS;
}

/* Its module of this context; the library's lock is held. */
static struct module *module_in(const struct library *library, const struct context *context) {
    struct module *module = library->modules;
    while (module && module->context != context) module = module->sibling;
    return module;
}

void library_unload(struct library *library) {
    while (library->modules) module_unload(library->modules);
    library_free(library);
}

CUresult library_module(struct library *library, struct context *context, struct module **out) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&library->lock);
    struct module *module = module_in(library, context);
    if (!module) {
        result = module_load(context, library->image, NULL, &module);
        if (result == CUDA_SUCCESS) {
            module->library = library;
            module->sibling = library->modules;
            library->modules = module;
        }
    }
    pthread_mutex_unlock(&library->lock);
    if (result == CUDA_SUCCESS) *out = module;
    return result;
}

CUresult kernel_function(struct kernel *kernel, struct context *context, struct function **out) {
    struct module *module;
    CUresult result = library_module(kernel->library, context, &module);
    if (result != CUDA_SUCCESS) return result;
    *out = module_function(module, kernel->name);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- launching ---- */

static CUresult check_shape(const struct function *function, const unsigned grid[3],
                            const unsigned block[3], unsigned shared_bytes) {
    static const unsigned max_grid[3] = {2147483647, 65535, 65535};
    static const unsigned max_block[3] = {1024, 1024, 64};
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (grid[i] == 0 || grid[i] > max_grid[i] || block[i] == 0 || block[i] > max_block[i])
            return CUDA_ERROR_INVALID_VALUE;
        if (function->info->required_block[0] && block[i] != function->info->required_block[i])
            return CUDA_ERROR_INVALID_VALUE;
        threads *= block[i];
    }
    if (threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    if (threads > function->info->max_threads) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (shared_bytes > (unsigned)function->max_dynamic_shared) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* All blocks of a cooperative launch are on the card at once, and here each has a thread of this
 * process. */
static CUresult check_cooperative(const struct function *function, const unsigned grid[3],
                                  const unsigned block[3], unsigned shared_bytes) {
    const struct sim_card *card = function->module->context->device->card;
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    int threads = (int)(block[0] * block[1] * block[2]);
    if (blocks > (uint64_t)occupancy_blocks_per_sm(card, function, threads, shared_bytes) *
                     mps_sm_count(card))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    if (blocks <= COOPERATIVE_BLOCKS) return CUDA_SUCCESS;
    engine_say("%s: a cooperative launch of %llu blocks is not simulated; %d is the most",
               function->info->name, (unsigned long long)blocks, COOPERATIVE_BLOCKS);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE; anything else in the list is a mistake. */
static CUresult unpack_extra(void **extra, const void **buffer, size_t *size) {
    *buffer = NULL;
    *size = 0;
    for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (i > 8) return CUDA_ERROR_INVALID_VALUE;
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            *buffer = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[i + 1])
            *size = *(const size_t *)extra[i + 1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult pack(const egpu_ptx_kernel_info *info, void **params, void **extra, char *packed) {
    if (extra) {
        const void *buffer;
        size_t size;
        CUresult result = unpack_extra(extra, &buffer, &size);
        if (result != CUDA_SUCCESS) return result;
        if (size < info->param_bytes || (size && !buffer)) return CUDA_ERROR_INVALID_VALUE;
        if (info->param_bytes) memcpy(packed, buffer, info->param_bytes);
        return CUDA_SUCCESS;
    }
    for (uint32_t i = 0; i < info->param_count; i++) {
        if (!params[i]) return CUDA_ERROR_INVALID_VALUE;
        memcpy(packed + info->params[i].offset, params[i], info->params[i].size);
    }
    return CUDA_SUCCESS;
}

CUresult launch_prepare(struct function *function, const unsigned grid[3], const unsigned block[3],
                        unsigned shared_bytes, const struct launch_how *how, void **params,
                        void **extra, struct op **out) {
    const egpu_ptx_kernel_info *info = function->info;
    CUresult result = check_shape(function, grid, block, shared_bytes);
    if (result == CUDA_SUCCESS) result = cluster_check(function, grid, block, shared_bytes, how);
    if (result == CUDA_SUCCESS && how->cooperative)
        result = check_cooperative(function, grid, block, shared_bytes);
    if (result != CUDA_SUCCESS) return result;
    if ((params && extra) || (info->param_count && !params && !extra))
        return CUDA_ERROR_INVALID_VALUE;
    result = context_need_local(function->module->context, info->local_bytes);
    if (result == CUDA_SUCCESS && info->prints) result = print_prepare(function->module->context);
    if (result != CUDA_SUCCESS) return result;
    struct op *op = op_new(OP_LAUNCH);
    if (!op) return CUDA_ERROR_OUT_OF_MEMORY;
    op->launch.function = function;
    memcpy(op->launch.grid, grid, sizeof op->launch.grid);
    memcpy(op->launch.block, block, sizeof op->launch.block);
    op->launch.shared_bytes = shared_bytes;
    op->launch.how = *how;
    op->launch.param_bytes = info->param_bytes;
    op->launch.params = calloc(1, info->param_bytes + 1);
    result =
        op->launch.params ? pack(info, params, extra, op->launch.params) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *out = op;
    else
        op_free(op);
    return result;
}

CUresult launch_submit(struct stream *stream, struct function *function, const unsigned grid[3],
                       const unsigned block[3], unsigned shared_bytes, const struct launch_how *how,
                       void **params, void **extra) {
    if (function->module->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    print_flush(stream->context);
    struct op *op;
    CUresult result = launch_prepare(function, grid, block, shared_bytes, how, params, extra, &op);
    if (result != CUDA_SUCCESS) return result;
    if (!how->has_priority) op->launch.how.priority = stream->priority;
    return stream_submit(stream, op, NULL);
}

int occupancy_blocks_per_sm(const struct sim_card *card, const struct function *function,
                            int block_size, size_t dynamic_shared) {
    const egpu_ptx_kernel_info *info = function->info;
    if (block_size <= 0 || (uint32_t)block_size > info->max_threads) return 0;
    uint32_t warps = ((uint32_t)block_size + 31) / 32;
    uint32_t blocks = card->max_blocks_per_sm;
    uint32_t by_threads = card->max_threads_per_sm / (warps * 32);
    if (by_threads < blocks) blocks = by_threads;
    uint32_t registers = (info->registers + 7) / 8 * 8; /* allocated per warp in units of 256 */
    if (registers) {
        uint32_t by_registers = 65536 / (registers * 32 * warps);
        if (by_registers < blocks) blocks = by_registers;
    }
    uint64_t reserved = card->cc_major >= 8 ? 1024 : 0;
    uint64_t shared = (info->static_shared_bytes + dynamic_shared + 127) / 128 * 128 + reserved;
    if (shared) {
        uint64_t by_shared = card->shared_per_sm / shared;
        if (by_shared < blocks) blocks = (uint32_t)by_shared;
    }
    return (int)blocks;
}
