/* Images, modules and libraries. A load brings the layout of all functions along, so that asking
 * for a function and launching it needs no further round trip. */
#define _GNU_SOURCE
#include "client.h"

#include <elf.h>
#include <stdio.h>

#include "common/fat_binary.h"
#include "common/file.h"
#include "sha256.h"

void module_free(struct module *module) {
    if (module == NULL) return;
    /* also frees the function */
    for (uint32_t i = 0; i < module->count; i++) handle_drop(module->functions[i]);
    for (uint32_t i = 0; i < module->derived_count; i++) handle_drop(module->derived[i]);
    free(module->derived);
    free(module->functions);
    free(module);
}

/* ---- images ---- */

/* Return the bytes of an image: PTX text with its NUL, a cubin, or a fat binary. 0: none of
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
    if (fat_wrapper_is(image)) return 0; /* it has a pointer, which the caller resolves */
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
    fprintf(stderr, "egpu: an image of %llu bytes is too large for a remote GPU: over %u MiB\n",
            (unsigned long long)total, WIRE_MAX_IMAGE >> 20);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* Reads the functions of what was loaded; NULL: no memory. */
static struct module *read_module(struct call *call, unsigned kind, const struct wire_load *ask,
                                  const struct wire_loaded *loaded) {
    struct module *module = calloc(1, sizeof *module);
    if (module == NULL || loaded->functions > WIRE_MAX_FUNCTIONS) return module;
    module->functions = calloc(loaded->functions + 1, sizeof *module->functions);
    module->complete = loaded->known == 1;
    for (uint32_t i = 0; module->functions != NULL && i < loaded->functions; i++) {
        struct function *function =
            function_read(call->link, kind == KIND_module ? KIND_function : KIND_kernel, &call->in);
        if (function == NULL) {
            module->complete = false;
            break;
        }
        module->functions[module->count++] = function->handle;
        if (kind == KIND_library) function->library = handle_name(call->link, ask->handle);
    }
    return module;
}

/* A newer card runs it, and a simulated one runs nothing else. */
#define ADD_PTX                                                                             \
    "build it with PTX of the card's architecture or an older one, such as `nvcc -gencode " \
    "arch=compute_80,code=compute_80`"

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
        /* The logs also come with failures, so this reply has content whatever the result. */
        get_bytes(&call.in, &loaded, sizeof loaded);
        if (result == CUDA_SUCCESS && !call.in.bad && !loaded.known && attempt == 0) {
            call_end(&call);
            call_start(&call, op);
            call.link = link;
            if ((result = send_image(link, ask.digest, image, total)) != CUDA_SUCCESS) break;
            continue;
        }
        struct module *module =
            result == CUDA_SUCCESS ? read_module(&call, kind, &ask, &loaded) : NULL;
        if (logs != NULL && ask.log_bytes && !call.in.bad) {
            read_log(&call.in, logs->info, logs->info_bytes);
            read_log(&call.in, logs->error, logs->error_bytes);
        }
        call_end(&call);
        if (result != CUDA_SUCCESS) break;
        *made = handle_name(link, ask.handle);
        handle_entry(*made)->info = module;
        return CUDA_SUCCESS;
    }
    handle_drop(handle_name(link, ask.handle));
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU)
        say_once("this program", "has no kernels for the remote GPU: " ADD_PTX);
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

/* Read a file of the program's machine and add a NUL. */
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
