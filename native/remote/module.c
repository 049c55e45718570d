/* Images, modules and libraries, functions and kernels. A load brings the layout of all functions
 * along, so that asking for a function and launching it needs no further round trip. */
#define _GNU_SOURCE
#include "client.h"

#include <elf.h>
#include <stdio.h>

#include "common/fat_binary.h"
#include "common/file.h"
#include "sha256.h"

void function_free(struct function *function) {
    if (function == NULL) return;
    free(function->name);
    free(function->parameters);
    free(function);
}

void module_free(struct module *module) {
    if (module == NULL) return;
    /* frees the function, too */
    for (uint32_t i = 0; i < module->count; i++) handle_drop(module->functions[i]);
    for (uint32_t i = 0; i < module->derived_count; i++) handle_drop(module->derived[i]);
    free(module->derived);
    free(module->functions);
    free(module);
}

/* ---- images ---- */

/* Bytes of what a program hands over: PTX text with its NUL, a cubin, or a fat binary. 0: none of
 * these. */
static size_t image_bytes(const void *image) {
    const uint8_t *bytes = image;
    if (memcmp(bytes, ELFMAG, SELFMAG) == 0 && bytes[EI_CLASS] == ELFCLASS64 &&
        bytes[EI_VERSION] == EV_CURRENT) {
        const Elf64_Ehdr *elf = image;
        size_t end = elf->e_shoff + (size_t)elf->e_shentsize * elf->e_shnum;
        size_t segments = elf->e_phoff + (size_t)elf->e_phentsize * elf->e_phnum;
        return end > segments ? end : segments;
    }
    if (fat_binary_is(image)) return sizeof(struct fat_binary) + fat_binary_rest_bytes(image);
    if (fat_wrapper_is(image)) return 0; /* it has a pointer: resolved by the caller */
    return strlen(image) + 1;
}

static CUresult send_image(struct link *link, const uint8_t digest[32], const uint8_t *image,
                           size_t total) {
    for (size_t done = 0; done < total;) {
        size_t piece = total - done < WIRE_SMALL_IMAGE * 4 ? total - done : WIRE_SMALL_IMAGE * 4;
        struct call call;
        call_start(&call, OP_IMAGE);
        call.link = link;
        struct wire_image part = {.total = total, .offset = done, .bytes = (uint32_t)piece};
        memcpy(part.digest, digest, 32);
        CUresult result = call_begin(&call, sizeof part + padded(piece), CALL_POSTED);
        if (result != CUDA_SUCCESS) return result;
        put_bytes(&call.out, &part, sizeof part);
        put_bytes(&call.out, image + done, piece);
        call_post(&call);
        done += piece;
    }
    return CUDA_SUCCESS;
}

/* One function of a reply. */
static struct function *read_function(struct link *link, unsigned kind, struct reader *in) {
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
        return sane ? entry->info : NULL;
    }
    entry->info = function;
    return function;
}

struct logs {
    char *info, *error;
    size_t info_bytes, error_bytes;
    size_t *info_filled, *error_filled;
};

static void read_log(struct reader *in, char *to, size_t room) {
    size_t bytes;
    const char *text = get_span(in, &bytes);
    if (to == NULL || room == 0 || text == NULL) return;
    if (bytes >= room) bytes = room - 1;
    memcpy(to, text, bytes);
    to[bytes] = 0;
}

static CUresult too_large(uint64_t total) {
    fprintf(stderr, "egpu: an image of %llu bytes is not carried: at most %u MiB are\n",
            (unsigned long long)total, WIRE_MAX_IMAGE >> 20);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Loads; on success *made is the handle of the module or library. */
static CUresult load(uint16_t op, unsigned kind, const void *image, struct logs *logs,
                     uint64_t *made) {
    struct call call;
    call_start(&call, op);
    CUresult result = call_ready();
    if (result != CUDA_SUCCESS) return result;
    size_t total = image_bytes(image);
    if (total == 0) return CUDA_ERROR_INVALID_IMAGE;
    if (total > WIRE_MAX_IMAGE) return too_large(total);
    struct wire_load ask = {.total = total,
                            .log_bytes = logs != NULL && (logs->info || logs->error) ? 16384 : 0};
    egpu_sha256(image, total, ask.digest);
    ask.inline_bytes = total <= WIRE_SMALL_IMAGE ? (uint32_t)total : 0;
    if ((result = call_new_handle(&call, kind, &ask.handle)) != CUDA_SUCCESS) return result;
    struct link *link = call.link;
    for (int attempt = 0; attempt < 2; attempt++) {
        result = call_begin(&call, sizeof ask + padded(ask.inline_bytes), CALL_WAITS);
        if (result != CUDA_SUCCESS) break;
        put_bytes(&call.out, &ask, sizeof ask);
        put_bytes(&call.out, image, ask.inline_bytes);
        result = call_exchange(&call);
        struct wire_loaded loaded = {0};
        /* The logs come with failures, too, so this reply has content whatever the result is. */
        get_bytes(&call.in, &loaded, sizeof loaded);
        if (result == CUDA_SUCCESS && !call.in.bad && !loaded.known && attempt == 0) {
            call_end(&call);
            call_start(&call, op);
            call.link = link;
            if ((result = send_image(link, ask.digest, image, total)) != CUDA_SUCCESS) break;
            continue;
        }
        struct module *module = calloc(1, sizeof *module);
        if (result == CUDA_SUCCESS && module != NULL && loaded.functions <= WIRE_MAX_FUNCTIONS) {
            module->functions = calloc(loaded.functions + 1, sizeof *module->functions);
            module->complete = loaded.known == 1;
            for (uint32_t i = 0; module->functions != NULL && i < loaded.functions; i++) {
                struct function *function = read_function(
                    link, kind == KIND_module ? KIND_function : KIND_kernel, &call.in);
                if (function == NULL) {
                    module->complete = false;
                    break;
                }
                module->functions[module->count++] = function->handle;
                if (kind == KIND_library) function->library = handle_name(link, ask.handle);
            }
        }
        if (logs != NULL && ask.log_bytes && !call.in.bad) {
            read_log(&call.in, logs->info, logs->info_bytes);
            read_log(&call.in, logs->error, logs->error_bytes);
        }
        call_end(&call);
        if (result != CUDA_SUCCESS) {
            free(module);
            break;
        }
        *made = handle_name(link, ask.handle);
        handle_entry(*made)->info = module;
        return CUDA_SUCCESS;
    }
    handle_drop(handle_name(link, ask.handle));
    return result;
}

static struct logs read_options(unsigned count, const CUjit_option *names, void **values) {
    struct logs logs = {0};
    for (unsigned i = 0; names != NULL && values != NULL && i < count; i++) switch ((int)names[i]) {
        case CU_JIT_INFO_LOG_BUFFER: logs.info = values[i]; break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            logs.info_bytes = (size_t)(uintptr_t)values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER: logs.error = values[i]; break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            logs.error_bytes = (size_t)(uintptr_t)values[i];
            break;
        default: break;
        }
    return logs;
}

API CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                                CUjit_option *names, void **values) {
    struct link *link;
    uint64_t made;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (module == NULL || image == NULL || (count && (names == NULL || values == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    struct logs logs = read_options(count, names, values);
    result = load(OP_MODULE_LOAD, KIND_module, image, &logs, &made);
    if (result == CUDA_SUCCESS) *module = (CUmodule)(uintptr_t)made;
    return result;
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    return cuModuleLoadDataEx(module, image, 0, NULL, NULL);
}

API CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) {
    if (image == NULL) return CUDA_ERROR_INVALID_VALUE;
    return cuModuleLoadData(module, fat_binary_unwrapped(image));
}

/* A file of the program's machine, with a NUL behind it. */
static CUresult load_image(const char *path, char **image) {
    if (path == NULL) return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = 0;
    *image = file_load(path, WIRE_MAX_IMAGE, &bytes);
    if (*image == NULL && bytes > WIRE_MAX_IMAGE) return too_large(bytes);
    if (*image == NULL) return CUDA_ERROR_FILE_NOT_FOUND;
    if (bytes >= 4) return CUDA_SUCCESS;
    free(*image);
    return CUDA_ERROR_INVALID_IMAGE;
}

API CUresult cuModuleLoad(CUmodule *module, const char *path) {
    struct link *link;
    char *image;
    CUresult result = context_needed(&link);
    if (result == CUDA_SUCCESS && (result = load_image(path, &image)) == CUDA_SUCCESS) {
        result = cuModuleLoadData(module, image);
        free(image);
    }
    return result;
}

API CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *names,
                               void **values, unsigned int count, CUlibraryOption *library_names,
                               void **library_values, unsigned int library_count) {
    (void)library_names, (void)library_values, (void)library_count;
    uint64_t made;
    if (library == NULL || code == NULL)
        return call_ready() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    struct logs logs = read_options(count, names, values);
    CUresult result = load(OP_LIBRARY_LOAD, KIND_library, code, &logs, &made);
    if (result == CUDA_SUCCESS) *library = (CUlibrary)(uintptr_t)made;
    return result;
}

API CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *names,
                                   void **values, unsigned int count,
                                   CUlibraryOption *library_names, void **library_values,
                                   unsigned int library_count) {
    char *image;
    CUresult result = call_ready();
    if (result == CUDA_SUCCESS && (result = load_image(path, &image)) == CUDA_SUCCESS) {
        result = cuLibraryLoadData(library, image, names, values, count, library_names,
                                   library_values, library_count);
        free(image);
    }
    return result;
}

/* ---- functions ---- */

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

API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    CUresult result = forward_cuKernelGetFunction(function, kernel);
    struct handle_entry *entry =
        result == CUDA_SUCCESS ? handle_entry((uint64_t)(uintptr_t)kernel) : NULL;
    struct module *library =
        entry == NULL || entry->info == NULL
            ? NULL
            : module_of(((struct function *)entry->info)->library, KIND_library);
    if (library == NULL || function == NULL) return result;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    uint64_t handle = (uint64_t)(uintptr_t)*function;
    uint32_t i = 0;
    while (i < library->derived_count && library->derived[i] != handle) i++;
    uint64_t *grown = i < library->derived_count
                          ? library->derived
                          : realloc(library->derived, (i + 1) * sizeof *grown);
    if (grown != NULL) {
        library->derived = grown;
        if (i == library->derived_count) library->derived[library->derived_count++] = handle;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult function_of(uint64_t handle, struct function **function) {
    struct handle_entry *entry = handle_entry(handle);
    unsigned kind = wire_kind_of(handle);
    if (entry == NULL || (kind != KIND_function && kind != KIND_kernel))
        return CUDA_ERROR_INVALID_HANDLE;
    if ((*function = entry->info) != NULL) return CUDA_SUCCESS;
    struct call call;
    call_start(&call, OP_FUNCTION_INFO);
    call.link = links[wire_server(handle)];
    struct wire_function_info ask = {wire_without_server(handle)};
    CUresult result = call_begin(&call, sizeof ask, CALL_WAITS);
    if (result != CUDA_SUCCESS) return result;
    put_bytes(&call.out, &ask, sizeof ask);
    result = call_exchange(&call);
    if (result == CUDA_SUCCESS && (*function = read_function(call.link, kind, &call.in)) == NULL)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    call_end(&call);
    return result;
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
