/* Modules and libraries: loading an image, and what the client learns about its functions. See
 * special.h. */
#include "executor/executor.h"
#include "executor/moves/moves.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* ---- one function ---- */

typedef CUresult (*parameter_of)(void *, size_t, size_t *, size_t *);

/* What the driver has for kernels of libraries, and for functions of modules. */
static const struct questions {
    egpu_driver_id name, parameter, count;
} questions[] = {
    {EGPU_FN_cuFuncGetName, EGPU_FN_cuFuncGetParamInfo, EGPU_FN_cuFuncGetParamCount},
    {EGPU_FN_cuKernelGetName, EGPU_FN_cuKernelGetParamInfo, EGPU_FN_cuKernelGetParamCount},
};

/* Find the places of a function's parameters. They are opaque if the driver lists fewer than it
 * counts, or fails otherwise than after the last one. */
static void find_parameters(const struct questions *ask, void *function, struct wire_function *is,
                            uint32_t *layout) {
    parameter_of parameter = (parameter_of)driver_function(ask->parameter);
    CUresult (*counts)(void *, size_t *) =
        (CUresult (*)(void *, size_t *))driver_function(ask->count);
    size_t offset, size, count;
    CUresult result = CUDA_SUCCESS;
    while (parameter != NULL && is->parameters < WIRE_MAX_PARAMETERS &&
           (result = parameter(function, is->parameters, &offset, &size)) == CUDA_SUCCESS) {
        layout[2 * is->parameters] = (uint32_t)offset;
        layout[2 * is->parameters + 1] = (uint32_t)size;
        is->parameters++;
    }
    if (counts != NULL && counts(function, &count) == CUDA_SUCCESS)
        is->opaque = count != is->parameters;
    else
        is->opaque = parameter == NULL || result != CUDA_ERROR_INVALID_VALUE;
}

static bool attribute_of(bool kernel, void *function, CUfunction_attribute which, int *value) {
    CUdevice device;
    if (!kernel)
        return DRIVER(cuFuncGetAttribute, int *, CUfunction_attribute,
                      CUfunction)(value, which, function) == CUDA_SUCCESS;
    return DRIVER(cuCtxGetDevice, CUdevice *)(&device) == CUDA_SUCCESS &&
           DRIVER(cuKernelGetAttribute, int *, CUfunction_attribute, CUkernel,
                  CUdevice)(value, which, function, device) == CUDA_SUCCESS;
}

static void find_limits(bool kernel, void *function, struct wire_function *is) {
    int value;
    is->max_threads = 1024;
    if (attribute_of(kernel, function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, &value) && value)
        is->clusters = 1;
    if (attribute_of(kernel, function, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, &value) && value)
        is->clusters = 1;
    if (attribute_of(kernel, function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, &value))
        is->max_threads = (uint32_t)value;
}

/* Describe a function or kernel to the client. */
static void put_function(struct task *task, unsigned kind, uint64_t value, uint64_t parent,
                         bool limits) {
    const char *name = "";
    bool kernel = kind == KIND_kernel;
    void *function = (void *)(uintptr_t)value;
    uint32_t layout[2 * WIRE_MAX_PARAMETERS];
    struct wire_function is = {.handle = handle_of_child(kind, value, parent)};
    CUresult (*names)(const char **, void *) =
        (CUresult (*)(const char **, void *))driver_function(questions[kernel].name);
    if (names != NULL) names(&name, function);
    find_parameters(&questions[kernel], function, &is, layout);
    if (limits) find_limits(kernel, function, &is);
    put_bytes(&task->out, &is, sizeof is);
    put_string(&task->out, name);
    put_bytes(&task->out, layout, is.parameters * 8);
}

/* ---- images ---- */

CUresult image_load(const struct image *image, unsigned kind, char *logs, size_t log_bytes,
                    uint64_t *value) {
    CUjit_option options[4] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                               CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[4] = {logs, (void *)(uintptr_t)log_bytes, logs + log_bytes + 1,
                       (void *)(uintptr_t)log_bytes};
    unsigned option_count = log_bytes ? 4 : 0;
    if (kind == KIND_module) {
        CUmodule module = NULL;
        CUresult result =
            DRIVER(cuModuleLoadDataEx, CUmodule *, const void *, unsigned, CUjit_option *,
                   void **)(&module, image->bytes, option_count, options, values);
        *value = (uint64_t)(uintptr_t)module;
        return result;
    }
    CUresult (*real)(CUlibrary *, const void *, CUjit_option *, void **, unsigned,
                     CUlibraryOption *, void **, unsigned) =
        DRIVER(cuLibraryLoadData, CUlibrary *, const void *, CUjit_option *, void **, unsigned,
               CUlibraryOption *, void **, unsigned);
    if (real == NULL) return CUDA_ERROR_NOT_SUPPORTED;
    CUlibrary library = NULL;
    CUresult result = real(&library, image->bytes, options, values, option_count, NULL, NULL, 0);
    *value = (uint64_t)(uintptr_t)library;
    return result;
}

/* The functions of a module or the kernels of a library, for the caller to free; NULL: this driver
 * cannot list them, or they are too many. */
static uint64_t *enumerate(unsigned kind, uint64_t value, unsigned *count) {
    uint64_t *functions = NULL;
    bool listed = false;
    if (kind == KIND_module) {
        CUmodule module = (CUmodule)(uintptr_t)value;
        listed =
            driver_function(EGPU_FN_cuModuleEnumerateFunctions) &&
            DRIVER(cuModuleGetFunctionCount, unsigned *, CUmodule)(count, module) == CUDA_SUCCESS &&
            *count <= WIRE_MAX_FUNCTIONS &&
            (functions = calloc(*count + 1, sizeof *functions)) != NULL &&
            DRIVER(cuModuleEnumerateFunctions, CUfunction *, unsigned,
                   CUmodule)((CUfunction *)functions, *count, module) == CUDA_SUCCESS;
    } else {
        CUlibrary library = (CUlibrary)(uintptr_t)value;
        listed = driver_function(EGPU_FN_cuLibraryEnumerateKernels) &&
                 DRIVER(cuLibraryGetKernelCount, unsigned *, CUlibrary)(count, library) ==
                     CUDA_SUCCESS &&
                 *count <= WIRE_MAX_FUNCTIONS &&
                 (functions = calloc(*count + 1, sizeof *functions)) != NULL &&
                 DRIVER(cuLibraryEnumerateKernels, CUkernel *, unsigned,
                        CUlibrary)((CUkernel *)functions, *count, library) == CUDA_SUCCESS;
    }
    if (listed) return functions;
    free(functions);
    return NULL;
}

/* Write the list of functions into the reply, with the head `loaded` before it. */
static void put_functions(struct task *task, unsigned kind, uint64_t value,
                          const struct wire_load *ask) {
    struct wire_loaded loaded = {.known = 2}; /* without a list of the functions */
    uint8_t *head = task->out.at;
    put_bytes(&task->out, &loaded, sizeof loaded);
    unsigned count = 0;
    uint64_t *functions = enumerate(kind, value, &count);
    if (functions != NULL) loaded.known = 1;
    /* A small program uses what it loads, and starts without one more round trip. */
    bool limits = count <= WIRE_FEW_FUNCTIONS;
    for (unsigned i = 0; loaded.known == 1 && i < count; i++) {
        struct writer before = task->out;
        put_function(task, kind == KIND_module ? KIND_function : KIND_kernel, functions[i],
                     ask->handle, limits);
        if (task->out.bad || task->out.left < 2 * ask->log_bytes + 64) {
            task->out = before; /* no more room: the client asks one by one */
            loaded.known = 2;
            break;
        }
        loaded.functions++;
    }
    free(functions);
    memcpy(head, &loaded, sizeof loaded);
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
    struct wire_loaded none = {0};
    if (image == NULL) {
        put_bytes(&task->out, &none, sizeof none);
        return CUDA_SUCCESS;
    }
    if (!image_is_whole(image)) return CUDA_ERROR_INVALID_IMAGE;
    char *logs = calloc(2, ask.log_bytes + 1);
    if (logs == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t value = 0;
    bool ahead = loads_find(&ask, kind, &value);
    CUresult result = ahead ? CUDA_SUCCESS : image_load(image, kind, logs, ask.log_bytes, &value);
    if (result == CUDA_SUCCESS) {
        figures_image();
        handle_bind(task, kind, ask.handle, value);
        if (moves_on && !ahead) task->stays = image_stays(image->bytes, image->total);
        put_functions(task, kind, value, &ask);
    } else {
        none.known = 2;
        put_bytes(&task->out, &none, sizeof none);
    }
    if (ask.log_bytes) {
        put_block(&task->out, logs, strnlen(logs, ask.log_bytes));
        put_block(&task->out, logs + ask.log_bytes + 1,
                  strnlen(logs + ask.log_bytes + 1, ask.log_bytes));
    }
    free(logs);
    return result;
}
CUresult module_load(struct task *task) { return load(task, KIND_module); }
CUresult library_load(struct task *task) { return load(task, KIND_library); }

CUresult function_info(struct task *task) {
    struct wire_function_info ask;
    if (!begins(task, &ask, sizeof ask, false) || task->in.left) return violation(task);
    unsigned kind = wire_kind_of(ask.handle);
    if (kind != KIND_function && kind != KIND_kernel) return CUDA_ERROR_INVALID_HANDLE;
    uint64_t value = handle_value(kind, ask.handle, &task->bad);
    if (task->bad != CUDA_SUCCESS) return task->bad;
    put_function(task, kind, value, task->context, true);
    return CUDA_SUCCESS;
}
