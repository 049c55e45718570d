/* Linking: several PTX texts become one image. The image is the texts one after the other, as
 * modules read them (ptx/parse.c): each begins with its .version. */
#include "cuda_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fat_binary.h"
#include "common/file.h"

enum { LOG_BYTES = 4096, MAX_TEXT_BYTES = 1 << 30 };

struct link {
    struct module_options options; /* the program keeps its buffers until the end */
    char *text;
    size_t bytes; /* without the NUL */
};

API CUresult cuLinkCreate(unsigned int count, CUjit_option *names, void **values,
                          CUlinkState *out) {
    NEED_CONTEXT(context);
    NEED(out);
    struct link *link = calloc(1, sizeof *link);
    if (!link) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = module_options_read(count, names, values, &link->options);
    if (result == CUDA_SUCCESS && !handle_add(link, HANDLE_LINK)) result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *out = (CUlinkState)link;
    else
        free(link);
    return result;
}

/* Report an input that is no PTX, or whose PTX cannot run here. What it uses of other inputs is
 * known only at the end. */
static CUresult check(const struct link *link, const char *text, const char *name, bool whole) {
    char why[LOG_BYTES] = "", line[LOG_BYTES + 256];
    egpu_ptx_module *ptx = NULL;
    egpu_ptx_status status = scratch_load(text, why, sizeof why, &ptx);
    egpu_ptx_unload(ptx);
    if (status == EGPU_PTX_OK || (status == EGPU_PTX_UNRESOLVED && !whole)) return CUDA_SUCCESS;
    snprintf(line, sizeof line, "%s: %s", name, why);
    return module_refuse(&link->options, module_status(status), line);
}

static CUresult append(struct link *link, const char *text, const char *name) {
    size_t bytes = strlen(text);
    CUresult result = check(link, text, name, false);
    if (result != CUDA_SUCCESS) return result;
    if (bytes > MAX_TEXT_BYTES - link->bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    char *longer = realloc(link->text, link->bytes + bytes + 2);
    if (!longer) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(longer + link->bytes, text, bytes);
    link->text = longer;
    link->bytes += bytes;
    longer[link->bytes++] = '\n';
    longer[link->bytes] = '\0';
    return CUDA_SUCCESS;
}

static CUresult append_fat_binary(const struct context *context, struct link *link,
                                  const void *image, const char *name) {
    const struct sim_card *card = context->device->card;
    char *text;
    if (!fat_binary_is(image)) return CUDA_ERROR_INVALID_IMAGE;
    CUresult result = fatbin_text(image, card->cc_major * 10 + card->cc_minor, false, &text);
    if (result != CUDA_SUCCESS)
        return module_refuse(&link->options, result, "a fat binary without PTX for this card");
    result = append(link, text, name);
    free(text);
    return result;
}

API CUresult cuLinkAddData(CUlinkState handle, CUjitInputType type, void *data, size_t bytes,
                           const char *name, unsigned int count, CUjit_option *names,
                           void **values) {
    NEED_CONTEXT(context);
    NEED(data && bytes);
    NEED_HANDLE(handle, HANDLE_LINK);
    struct link *link = (struct link *)handle;
    struct module_options of_input; /* hints for a compiler; the link's own buffers get the log */
    CUresult result = module_options_read(count, names, values, &of_input);
    if (result != CUDA_SUCCESS) return result;
    if (!name) name = "<unnamed>";
    if (type == CU_JIT_INPUT_FATBINARY) return append_fat_binary(context, link, data, name);
    if (type != CU_JIT_INPUT_PTX) {
        engine_needs_compiled("an object or a library to link");
        return module_refuse(&link->options, CUDA_ERROR_NO_BINARY_FOR_GPU,
                             "a simulated card links only PTX");
    }
    char *text = strndup(data, bytes);
    if (!text) return CUDA_ERROR_OUT_OF_MEMORY;
    result = append(link, text, name);
    free(text);
    return result;
}

API CUresult cuLinkAddFile(CUlinkState handle, CUjitInputType type, const char *path,
                           unsigned int count, CUjit_option *names, void **values) {
    NEED_CONTEXT(context);
    NEED(path);
    NEED_HANDLE(handle, HANDLE_LINK);
    size_t bytes;
    char *data = file_load(path, SIZE_MAX, &bytes);
    if (!data) return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = bytes < sizeof(struct fat_binary)
                          ? CUDA_ERROR_INVALID_IMAGE
                          : cuLinkAddData(handle, type, data, bytes, path, count, names, values);
    free(data);
    return result;
}

API CUresult cuLinkComplete(CUlinkState handle, void **image, size_t *bytes) {
    NEED_CONTEXT(context);
    NEED(image);
    NEED_HANDLE(handle, HANDLE_LINK);
    struct link *link = (struct link *)handle;
    if (!link->text) return CUDA_ERROR_INVALID_IMAGE;
    CUresult result = check(link, link->text, "linking", true);
    if (result != CUDA_SUCCESS) return result;
    *image = link->text;
    if (bytes) *bytes = link->bytes + 1; /* programs copy this many: a module ends with its NUL */
    return CUDA_SUCCESS;
}

API CUresult cuLinkDestroy(CUlinkState handle) {
    NEED_INIT();
    NEED_HANDLE(handle, HANDLE_LINK);
    struct link *link = (struct link *)handle;
    handle_remove(link);
    free(link->text);
    free(link);
    return CUDA_SUCCESS;
}
