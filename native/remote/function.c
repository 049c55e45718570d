/* Functions of modules and kernels of libraries. */
#include "client.h"

void function_free(struct function *function) {
    if (function == NULL) return;
    free(function->name);
    free(function->parameters);
    free(function);
}

static void learn_limits(struct function *function, const struct wire_function *is) {
    if (is->max_threads == 0) return;
    if (is->clusters) atomic_store(&function->clusters, true);
    atomic_store(&function->max_threads, is->max_threads);
}

struct function *function_read(struct link *link, unsigned kind, struct reader *in) {
    struct wire_function is;
    get_bytes(in, &is, sizeof is);
    const char *name = get_string(in);
    const struct parameter *parameters =
        is.parameters > WIRE_MAX_PARAMETERS ? NULL : take(in, is.parameters * sizeof *parameters);
    if (in->bad || parameters == NULL) return NULL;
    struct function *function = calloc(1, sizeof *function);
    if (function == NULL) return NULL;
    function->handle = handle_found(link, kind, is.handle);
    function->name = strdup(name);
    function->max_threads = is.max_threads;
    function->clusters = is.clusters != 0;
    function->opaque = is.opaque != 0;
    function->parameter_count = is.parameters;
    function->parameters = malloc((is.parameters + 1) * sizeof *parameters);
    struct handle_entry *entry = handle_entry(function->handle);
    if (function->name == NULL || function->parameters == NULL || entry == NULL) {
        function_free(function);
        return NULL;
    }
    memcpy(function->parameters, parameters, is.parameters * sizeof *parameters);
    bool sane = true;
    for (uint32_t i = 0; i < is.parameters; i++) {
        uint64_t end = (uint64_t)parameters[i].offset + parameters[i].size;
        if (end > WIRE_MAX_ARGUMENTS)
            sane = false;
        else if (end > function->argument_bytes)
            function->argument_bytes = (uint32_t)end;
    }
    if (!sane || entry->info != NULL) { /* nonsense; or known already, and perhaps in use */
        function_free(function);
        if (sane) learn_limits(entry->info, &is);
        return sane ? entry->info : NULL;
    }
    entry->info = function;
    return function;
}

static struct module *module_of(uint64_t handle, unsigned kind) {
    struct handle_entry *entry = handle_entry(handle);
    return entry == NULL || wire_kind_of(handle) != kind ? NULL : entry->info;
}

static struct function *named(const struct module *module, const char *name) {
    for (uint32_t i = 0; i < module->count; i++) {
        struct handle_entry *entry = handle_entry(module->functions[i]);
        struct function *function = entry == NULL ? NULL : entry->info;
        if (function != NULL && strcmp(function->name, name) == 0) return function;
    }
    return NULL;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (function == NULL || name == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct module *module = module_of((uint64_t)(uintptr_t)handle, KIND_module);
    if (module == NULL || atomic_load(&link->dead))
        return forward_cuModuleGetFunction(function, handle, name);
    struct function *found = named(module, name);
    if (found == NULL)
        return module->complete ? CUDA_ERROR_NOT_FOUND
                                : forward_cuModuleGetFunction(function, handle, name);
    *function = (CUfunction)(uintptr_t)found->handle;
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name) {
    if (call_ready() == CUDA_SUCCESS && (kernel == NULL || name == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    struct module *module = module_of((uint64_t)(uintptr_t)handle, KIND_library);
    if (module == NULL) return forward_cuLibraryGetKernel(kernel, handle, name);
    struct function *found = named(module, name);
    if (found == NULL)
        return module->complete ? CUDA_ERROR_NOT_FOUND
                                : forward_cuLibraryGetKernel(kernel, handle, name);
    *kernel = (CUkernel)(uintptr_t)found->handle;
    return CUDA_SUCCESS;
}

static CUresult enumerate(uint64_t *handles, unsigned count, uint64_t handle, unsigned kind) {
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    if (handles == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (handle_entry(handle) == NULL || wire_kind_of(handle) != kind)
        return CUDA_ERROR_INVALID_HANDLE;
    struct module *module = module_of(handle, kind);
    if (module == NULL || !module->complete)
        return not_supported("enumerating the functions of a module of thousands");
    for (uint32_t i = 0; i < count && i < module->count; i++) handles[i] = module->functions[i];
    return CUDA_SUCCESS;
}

API CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count,
                                        CUmodule module) {
    return enumerate((uint64_t *)functions, count, (uint64_t)(uintptr_t)module, KIND_module);
}
API CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary library) {
    return enumerate((uint64_t *)kernels, count, (uint64_t)(uintptr_t)library, KIND_library);
}

void library_derives(uint64_t library, uint64_t handle) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct module *to = module_of(library, KIND_library);
    if (to == NULL) return;
    pthread_mutex_lock(&lock);
    uint32_t i = 0;
    while (i < to->derived_count && to->derived[i] != handle) i++;
    uint64_t *grown =
        i < to->derived_count ? to->derived : realloc(to->derived, (i + 1) * sizeof *grown);
    if (grown != NULL) {
        to->derived = grown;
        if (i == to->derived_count) to->derived[to->derived_count++] = handle;
    }
    pthread_mutex_unlock(&lock);
}

API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUresult result = forward_cuKernelGetFunction(function, kernel);
    struct handle_entry *entry =
        result == CUDA_SUCCESS ? handle_entry((uint64_t)(uintptr_t)kernel) : NULL;
    if (entry != NULL && entry->info != NULL && function != NULL)
        library_derives(((struct function *)entry->info)->library, (uint64_t)(uintptr_t)*function);
    return result;
}

API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library) {
    CUresult result = forward_cuLibraryGetModule(module, library);
    if (result == CUDA_SUCCESS && module != NULL)
        library_derives((uint64_t)(uintptr_t)library, (uint64_t)(uintptr_t)*module);
    return result;
}

static CUresult ask(uint64_t handle, struct function **function) {
    struct call call;
    call_start(&call, OP_FUNCTION_INFO);
    call.link = links[wire_server(handle)];
    struct wire_function_info which = {wire_without_server(handle)};
    CUresult result = call_begin(&call, sizeof which, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &which, sizeof which);
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS &&
        (*function = function_read(call.link, wire_kind_of(handle), &call.in)) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    call_end(&call);
    return result;
}

CUresult function_of(uint64_t handle, struct function **function) {
    struct handle_entry *entry = handle_entry(handle);
    unsigned kind = wire_kind_of(handle);
    if (entry == NULL || (kind != KIND_function && kind != KIND_kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((*function = entry->info) != NULL) return CUDA_SUCCESS;
    return ask(handle, function);
}

CUresult function_limits(uint64_t handle, struct function **function) {
    CUresult result = function_of(handle, function);
    if (result != CUDA_SUCCESS || atomic_load(&(*function)->max_threads) != 0) return result;
    return ask(handle, function);
}

/* Functions need a context, as with the driver; kernels do not for their names. */
static CUresult function_here(uint64_t handle, struct function **function) {
    struct link *link;
    CUresult result = context_needed(&link);
    return result == CUDA_SUCCESS ? function_of(handle, function) : result;
}

API CUresult cuFuncGetName(const char **name, CUfunction handle) {
    struct function *function;
    CUresult result = function_here((uint64_t)(uintptr_t)handle, &function);
    if (result == CUDA_SUCCESS && name == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *name = function->name;
    return result;
}

API CUresult cuKernelGetName(const char **name, CUkernel handle) {
    struct function *function;
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS) result = function_of((uint64_t)(uintptr_t)handle, &function);
    if (result == CUDA_SUCCESS && name == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *name = function->name;
    return result;
}

API CUresult cuFuncGetParamCount(CUfunction handle, size_t *count) {
    struct function *function;
    CUresult result = function_here((uint64_t)(uintptr_t)handle, &function);
    if (result == CUDA_SUCCESS && count == NULL) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *count = function->parameter_count;
    return result;
}

API CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size) {
    struct function *function;
    CUresult result = function_here((uint64_t)(uintptr_t)handle, &function);
    if (result != CUDA_SUCCESS) return result;
    if (index >= function->parameter_count) return CUDA_ERROR_INVALID_VALUE;
    if (offset != NULL) *offset = function->parameters[index].offset;
    if (size != NULL) *size = function->parameters[index].size;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetParamCount(CUkernel handle, size_t *count) {
    return cuFuncGetParamCount((CUfunction)handle, count);
}
API CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size) {
    return cuFuncGetParamInfo((CUfunction)handle, index, offset, size);
}

/* The function has attributes that decide whether a launch is right: set at once, for the driver's
 * answer. */
API CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    CUresult result = forward_cuFuncSetAttribute(handle, attribute, value);
    int now;
    if (result != CUDA_SUCCESS) return result;
    struct function *function = NULL;
    if (function_of((uint64_t)(uintptr_t)handle, &function) == CUDA_SUCCESS)
        atomic_store(&function->largest_shared, 0);
    if (attribute >= CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET &&
        attribute <= CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH && function != NULL)
        atomic_store(&function->clusters, true);
    struct link *link = links[wire_server((uint64_t)(uintptr_t)handle)];
    result = cuFuncGetAttribute(&now, attribute, handle);
    uint32_t pending = atomic_exchange(&link->pending_error, 0);
    return pending ? (CUresult)pending : result;
}
