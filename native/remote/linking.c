/* Linking. One input is its own image: the card's driver compiles it when the image is loaded. Only
 * that driver could link several, and no call carries them. */
#include "client.h"

#include <string.h>

#include "common/file.h"

/* Ours, never the executor's. */
struct linking {
    uint8_t *image; /* NULL: no input yet. A NUL follows it, which ends PTX. */
    size_t bytes;
    struct linking *next;
};

static struct linking *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct linking **place(CUlinkState state) {
    struct linking **at = &all;
    while (*at != NULL && *at != (struct linking *)state) at = &(*at)->next;
    return at;
}

static struct linking *find(CUlinkState state) {
    pthread_mutex_lock(&lock);
    struct linking *found = *place(state);
    pthread_mutex_unlock(&lock);
    return found;
}

API CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *names, void **values,
                             CUlinkState *out) {
    struct link *link;
    CUresult result = context_needed(&link);
    if (result != CUDA_SUCCESS) return result;
    if (out == NULL || (count != 0 && (names == NULL || values == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    struct linking *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    made->next = all;
    all = made;
    pthread_mutex_unlock(&lock);
    *out = (CUlinkState)made;
    return CUDA_SUCCESS;
}

API CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t bytes,
                              const char *name, unsigned int count, CUjit_option *names,
                              void **values) {
    (void)name, (void)count, (void)names, (void)values; /* names and hints for a compiler */
    struct linking *linking = find(state);
    if (linking == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (data == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_JIT_INPUT_PTX && type != CU_JIT_INPUT_CUBIN && type != CU_JIT_INPUT_FATBINARY)
        return not_supported("linking of objects, libraries and NVVM");
    if (linking->image != NULL) return not_supported("linking of several inputs");
    if ((linking->image = calloc(1, bytes + 1)) == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(linking->image, data, bytes);
    linking->bytes = bytes;
    return CUDA_SUCCESS;
}

API CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path,
                              unsigned int count, CUjit_option *names, void **values) {
    size_t bytes;
    if (path == NULL) return CUDA_ERROR_INVALID_VALUE;
    char *data = file_load(path, SIZE_MAX, &bytes);
    if (data == NULL) return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult result = cuLinkAddData_v2(state, type, data, bytes, path, count, names, values);
    free(data);
    return result;
}

API CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes) {
    const struct linking *linking = find(state);
    if (linking == NULL) return CUDA_ERROR_INVALID_HANDLE;
    if (image == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (linking->image == NULL) return CUDA_ERROR_INVALID_IMAGE;
    *image = linking->image;
    if (bytes != NULL) *bytes = linking->bytes + 1;
    return CUDA_SUCCESS;
}

API CUresult cuLinkDestroy(CUlinkState state) {
    pthread_mutex_lock(&lock);
    struct linking **at = place(state), *linking = *at;
    if (linking != NULL) *at = linking->next;
    pthread_mutex_unlock(&lock);
    if (linking == NULL) return CUDA_ERROR_INVALID_HANDLE;
    free(linking->image);
    free(linking);
    return CUDA_SUCCESS;
}
