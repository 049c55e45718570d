/* Modules, libraries and kernels, and the checks of a launch's shape. */
#include "engine.h"
#include "outline.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fat_binary.h"

#define LOG_BYTES 4096
#define MAX_CUBIN_BYTES ((size_t)1 << 30)

/* ---- loading ---- */

static bool allocate_global(void *argument, uint64_t size, uint64_t align, uint64_t *address,
                            void **host) {
    struct context *context = argument;
    struct extent extent;
    (void)align; /* allocations begin at 512 bytes or better; PTX asks for 256 at most */
    if (memory_alloc(&context->memory, size ? size : 1, address) != 0) return false;
    /* A slab reuses memory that was freed. Whole chunks come as zeros, and only the touched part of
     * a large array costs the machine memory. */
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

static unsigned target_of(const struct sim_card *card) {
    return card->cc_major * 10 + card->cc_minor;
}

static CUresult outline_cubin(const char *cubin, unsigned target, char **text) {
    size_t bytes = outline_cubin_bytes(cubin, MAX_CUBIN_BYTES);
    if (!bytes) return CUDA_ERROR_INVALID_IMAGE;
    if (!outline_fits(cubin, target)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *text = outline_of(cubin, bytes);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Return an image as text to be freed: PTX, or the outline of compiled kernels where these are
 * skipped. Compiled code cannot run here; *why says so. */
static CUresult text_of(const char *image, const struct sim_card *card, char **text,
                        const char **why) {
    bool skips = engine.machine.header->flags & SIM_FLAG_SKIP_COMPILED;
    *why = "no memory for it";
    if (fat_binary_is(image)) {
        *why = "the fat binary has no PTX that runs on this card";
        return fatbin_text(image, target_of(card), skips, text);
    }
    bool cubin = memcmp(image, ELFMAG, SELFMAG) == 0;
    if (cubin && skips) {
        *why = "the cubin is not for this card";
        return outline_cubin(image, target_of(card), text);
    }
    if (cubin || fat_wrapper_is(image)) {
        *why = "compiled kernels: a simulated card runs only PTX text";
        engine_needs_compiled(cubin ? "a cubin" : "a fat binary");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    *text = strdup(image);
    return *text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void write_log(const struct module_log *log, const char *text) {
    size_t length = strlen(text);
    if (length >= log->size) length = log->size ? log->size - 1 : 0;
    if (log->buffer && log->size) {
        memcpy(log->buffer, text, length);
        log->buffer[length] = '\0';
    }
    if (log->filled) *log->filled = (void *)(uintptr_t)length;
}

CUresult module_refuse(const struct module_options *options, CUresult result, const char *why) {
    if (options) write_log(&options->error, why);
    engine_explain("a kernel of this program cannot be loaded: %s", why);
    return result;
}

CUresult module_status(egpu_ptx_status status) {
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
        engine_needs_newer(target, card->cc_major * 10 + card->cc_minor);
        snprintf(why, size, "the PTX targets sm_%u, the card is sm_%u%u", target, card->cc_major,
                 card->cc_minor);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return CUDA_SUCCESS;
}

/* Say once per process why its results are wrong. */
static void say_skipped(void) {
    static atomic_flag told = ATOMIC_FLAG_INIT;
    bool zeros = engine.machine.header->flags & SIM_FLAG_ZERO_RESULTS;
    if (!atomic_flag_test_and_set(&told))
        engine_say("this machine skips compiled kernels: they fill their results with %s",
                   zeros ? "zeros" : "0xff bytes");
}

static CUresult load(struct context *context, const char *text,
                     const struct module_options *options, struct module **out) {
    char log[LOG_BYTES] = "";
    struct module *module = calloc(1, sizeof *module);
    if (!module) return CUDA_ERROR_OUT_OF_MEMORY;
    egpu_ptx_allocator allocator = {
        .ctx = context, .alloc = allocate_global, .release = release_global};
    CUresult result =
        module_status(egpu_ptx_load(text, 0, &allocator, log, sizeof log, &module->ptx));
    if (result == CUDA_SUCCESS) result = check_target(context, module->ptx, log, sizeof log);
    if (result == CUDA_SUCCESS) {
        module->context = context;
        module->skipped = outline_is(text);
        if (module->skipped) say_skipped();
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
        /* Without the opt-in attribute a block's static and dynamic shared memory share 48 KiB. */
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
        return module_refuse(options, result, log);
    }
    pthread_mutex_lock(&context->lock);
    module->next = context->modules;
    if (module->next) module->next->previous = module;
    context->modules = module;
    pthread_mutex_unlock(&context->lock);
    if (options) write_log(&options->info, "");
    *out = module;
    return CUDA_SUCCESS;
}

CUresult module_load(struct context *context, const void *image,
                     const struct module_options *options, struct module **out) {
    print_flush(context);
    char *text;
    const char *why;
    CUresult result = text_of(image, context->device->card, &text, &why);
    if (result != CUDA_SUCCESS) return module_refuse(options, result, why);
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

/* ---- libraries: modules that load into each context that needs them ---- */

/* A library is loaded before there is a context. */
static CUresult name_kernels(struct library *library) {
    egpu_ptx_module *ptx;
    char log[LOG_BYTES] = "";
    CUresult result = module_status(scratch_load(library->image, log, sizeof log, &ptx));
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
    } else {
        engine_explain("a kernel of this program cannot be loaded: %s", log);
    }
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
    struct library *library = calloc(1, sizeof *library);
    if (!library) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&library->lock, NULL);
    /* A library has one text for all cards: the best for the first card. */
    const char *why;
    CUresult result = text_of(image, engine_device(0)->card, &library->image, &why);
    if (result == CUDA_SUCCESS)
        result =
            handle_add(library, HANDLE_LIBRARY) ? name_kernels(library) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        library_free(library);
        return result;
    }
    *out = library;
    return CUDA_SUCCESS;
}

/* Return its module in this context; the library's lock is held. */
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

/* All blocks of a cooperative launch are on the card at once. */
static CUresult check_cooperative(const struct function *function, const unsigned grid[3],
                                  const unsigned block[3], unsigned shared_bytes) {
    const struct sim_card *card = function->module->context->device->card;
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    int threads = (int)(block[0] * block[1] * block[2]);
    if (blocks > (uint64_t)occupancy_blocks_per_sm(card, function, threads, shared_bytes) *
                     mps_sm_count(card))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return CUDA_SUCCESS;
}

/* CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE; anything else in the list is an error. */
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
    if (result == CUDA_SUCCESS && info->allocates) result = heap_prepare(function->module->context);
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
