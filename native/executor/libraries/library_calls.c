/* Parameters and replies of library calls. See libraries.h. */
#include "executor/libraries/libraries.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- replies ---- */

uint8_t *library_begin(struct task *task) {
    uint8_t *status = task->out.at;
    put_word(&task->out, 0);
    return status;
}

static CUresult meaning(const struct library_statuses *is, int result) {
    if (result == is->not_initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if (result == is->invalid_value) return CUDA_ERROR_INVALID_VALUE;
    if (result == is->invalid_handle) return CUDA_ERROR_INVALID_HANDLE;
    if (result == is->out_of_memory) return CUDA_ERROR_OUT_OF_MEMORY;
    return result == is->not_supported ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_UNKNOWN;
}

_Thread_local const char *library_called = "a library";

static void tell(int result) {
    const char *verbose = getenv("EGPU_REMOTE_VERBOSE");
    if (verbose != NULL && *verbose == '1')
        fprintf(stderr, "egpu-executor: %s: status %d\n", library_called, result);
}

CUresult library_failed(struct task *task, uint8_t *status, int result, enum library_id id) {
    uint64_t word = (uint32_t)result;
    tell(result);
    memcpy(status, &word, sizeof word);
    task->out.left += (size_t)(task->out.at - (status + sizeof word));
    task->out.at = status + sizeof word;
    if (task->header.flags & WIRE_REPLY_WANTED) return CUDA_SUCCESS;
    const struct library_statuses *is = &library_facts[id].statuses;
    CUresult means = meaning(is, result);
    if (means == CUDA_ERROR_UNKNOWN && is->category != 0)
        means = meaning(is, result / is->category * is->category);
    return means;
}

/* ---- parameters ---- */

void library_get_scalar(struct task *task, struct library_scalar *scalar, bool with_value) {
    *scalar = (struct library_scalar){.bytes = get_word(&task->in)};
    if (scalar->bytes == SCALAR_ON_CARD)
        scalar->card = (void *)(uintptr_t)get_word(&task->in);
    else if (scalar->bytes > SCALAR_MOST_BYTES)
        task->in.bad = true;
    else if (with_value)
        get_bytes(&task->in, scalar->value, scalar->bytes);
}

void library_get_factor(struct task *task, struct library_scalar *factor) {
    library_get_scalar(task, factor, true);
    if (factor->bytes == SCALAR_ON_CARD) task->in.bad = true;
}

void library_put_result(struct task *task, const struct library_scalar *scalar) {
    if (scalar->bytes != SCALAR_ON_CARD) put_bytes(&task->out, scalar->value, scalar->bytes);
}

int library_pointer_mode(const struct library_kind *kind, void *object) {
    int mode = 0;
    size_t written;
    void *found = library_function(kind->of, kind->mode);
    if (found == NULL) return -1;
    if (kind->attribute < 0) {
        int (*ask)(void *, int *);
        memcpy(&ask, &found, sizeof ask);
        return ask(object, &mode) ? -1 : mode;
    }
    int (*ask)(void *, int, void *, size_t, size_t *);
    memcpy(&ask, &found, sizeof ask);
    return ask(object, kind->attribute, &mode, sizeof mode, &written) ? -1 : mode;
}

const void *library_get_host(struct task *task, size_t *bytes) {
    uint64_t length = get_word(&task->in);
    *bytes = 0;
    if (length == HOST_IS_NULL) return NULL;
    const void *sent = length > LIBRARY_MOST_BYTES ? NULL : take(&task->in, length);
    if (sent == NULL) task->in.bad = true;
    *bytes = length;
    return sent;
}

void library_check_host(struct task *task, const void *sent, size_t bytes, uint64_t expected) {
    if (sent != NULL && bytes != expected) task->in.bad = true;
}

uint64_t library_optional(struct task *task, unsigned kind) {
    uint64_t handle = get_word(&task->in);
    return handle == 0 ? 0 : handle_value(kind, handle, &task->bad);
}

void library_get_elements(struct task *task, struct library_elements *elements) {
    elements->wanted = get_word(&task->in);
    elements->sent = library_get_host(task, &elements->bytes);
    elements->at = NULL;
}

void library_set_elements(struct task *task, struct library_elements *elements, struct elements are,
                          int64_t count) {
    elements->are = are;
    if (are.bytes == 0 || are.only_read) {
        task->bad = CUDA_ERROR_NOT_SUPPORTED;
        return;
    }
    if (elements->sent == NULL) return;
    bool many = count < 0 || (uint64_t)count > LIBRARY_MOST_BYTES;
    if (many || elements->bytes != (uint64_t)count * are.bytes ||
        (are.kind != 0 && count > LIBRARY_MOST_OBJECTS)) {
        task->in.bad = true;
        return;
    }
    elements->at = elements->values;
    if (are.kind == 0) elements->at = (void *)(uintptr_t)elements->sent; /* it is only read */
    for (int64_t i = 0; are.kind != 0 && i < count; i++) {
        uint64_t handle;
        memcpy(&handle, (const uint8_t *)elements->sent + i * 8, sizeof handle);
        elements->values[i] = handle_value(are.kind, handle, &task->bad);
    }
}

void library_got_elements(struct task *task, struct library_elements *elements, struct elements are,
                          int64_t count) {
    are.only_read = false;
    if (are.filled) {
        library_set_elements(task, elements, are, count);
        return;
    }
    elements->are = are;
    if (are.bytes == 0)
        task->bad = CUDA_ERROR_NOT_SUPPORTED;
    else if (elements->wanted / are.bytes != (uint64_t)count || elements->wanted % are.bytes != 0)
        task->in.bad = elements->wanted != 0;
    else
        elements->at = library_room(task, elements->wanted != 0, elements->wanted);
}

void library_name_elements(struct task *task, const struct library_elements *elements) {
    if (elements->are.filled || elements->are.kind == 0) return;
    for (uint64_t i = 0; elements->at != NULL && i < elements->wanted; i += 8) {
        uint64_t value;
        memcpy(&value, (uint8_t *)elements->at + i, sizeof value);
        value = handle_of(task, elements->are.kind, value);
        memcpy((uint8_t *)elements->at + i, &value, sizeof value);
    }
}

int library_get_streams(struct task *task, void *streams[LIBRARY_MOST_STREAMS]) {
    size_t bytes;
    const void *sent = library_get_host(task, &bytes);
    size_t count = bytes / sizeof(uint64_t);
    if (sent == NULL || count > LIBRARY_MOST_STREAMS) return -1;
    for (size_t i = 0; i < count; i++) {
        uint64_t handle;
        memcpy(&handle, (const uint8_t *)sent + i * sizeof handle, sizeof handle);
        streams[i] = (void *)(uintptr_t)handle_value(KIND_stream, handle, &task->bad);
    }
    return (int)count;
}

void *library_room(struct task *task, bool wanted, uint64_t bytes) {
    if (!wanted) return NULL;
    uint8_t *room = bytes > LIBRARY_MOST_BYTES ? NULL : give(&task->out, bytes);
    if (room == NULL)
        task->bad = CUDA_ERROR_INVALID_VALUE;
    else
        memset(room, 0, bytes);
    return room;
}
