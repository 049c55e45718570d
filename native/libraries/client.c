/* Access of a stand-in to the session of the remote driver beside it. */
#define _GNU_SOURCE
#include "client.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

const struct library_calls *remote;

/* Load the driver beside this file, as installed there. With another driver, loaded earlier, the
 * calls of the two would have no common order. */
CUresult library_find(void) {
    Dl_info here;
    char path[4096];
    if (dladdr((const void *)&remote, &here) == 0) return CUDA_ERROR_NOT_INITIALIZED;
    const char *slash = strrchr(here.dli_fname, '/');
    snprintf(path, sizeof path, "%.*s/libcuda.so.1", slash ? (int)(slash - here.dli_fname) : 1,
             slash ? here.dli_fname : ".");
    void *driver = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct library_calls *found = driver == NULL ? NULL : dlsym(driver, "egpuLibraryCalls");
    if (found == NULL || found->table != EGPU_WIRE_TABLE_HASH) {
        fprintf(stderr, "egpu: %s: found no libcuda.so.1 of the same build beside it\n",
                library.soname);
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    remote = found;
    return CUDA_SUCCESS;
}

int library_failed(const char *function, CUresult result) {
    static _Atomic bool told;
    switch (result) {
    case CUDA_ERROR_SHARED_OBJECT_INIT_FAILED:
        if (!atomic_exchange(&told, true))
            fprintf(stderr, "egpu: the server of this GPU has no %s; install it there\n",
                    library.soname);
        return library.statuses.not_initialized;
    case CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND:
        fprintf(stderr, "egpu: the %s of this GPU's server has no %s: too old\n", library.soname,
                function);
        return library.statuses.not_supported;
    case CUDA_ERROR_NOT_PERMITTED:
        fprintf(stderr, "egpu: %s is not allowed on the server of this GPU\n", function);
        return library.statuses.not_supported;
    case CUDA_ERROR_NOT_SUPPORTED: return library.statuses.not_supported;
    case CUDA_ERROR_INVALID_VALUE: return library.statuses.invalid_value;
    case CUDA_ERROR_OUT_OF_MEMORY: return library.statuses.out_of_memory;
    case CUDA_ERROR_INVALID_HANDLE: return library.statuses.invalid_handle;
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_NOT_INITIALIZED: return library.statuses.not_initialized;
    default: return library.statuses.unknown;
    }
}

int library_refuse(const char *function) {
    fprintf(stderr, "egpu: %s is not supported on a remote GPU\n", function);
    return library.statuses.not_supported;
}

/* Servers whose library has answered, a bit each. A missing library is then reported by the call
 * that needs it, not by the next call that happens to wait. */
static _Atomic unsigned there;

bool library_waits(struct call *call, bool wanted) {
    if (call->link == NULL) call->link = remote->link();
    return wanted || (there >> call->link->index & 1) == 0;
}

static void tell(const char *function, int status) {
    const char *verbose = getenv("EGPU_REMOTE_VERBOSE");
    if (verbose != NULL && *verbose == '1')
        fprintf(stderr, "egpu: %s: status %d\n", function, status);
}

int library_finish(struct call *call, bool waits, const char *function) {
    if (!waits) {
        remote->post(call); /* it can only fail as a launch can */
        return 0;
    }
    CUresult result = remote->exchange(call);
    int status = result == CUDA_SUCCESS ? (int)get_word(&call->in) : 0;
    if (result == CUDA_SUCCESS) there |= 1u << call->link->index;
    if (result == CUDA_SUCCESS && call->in.bad) result = CUDA_ERROR_UNKNOWN;
    if (result != CUDA_SUCCESS) status = library_failed(function, result);
    if (status != 0) {
        remote->end(call);
        tell(function, status);
    }
    return status;
}

int library_done(struct call *call, bool waits) {
    if (!waits) return 0;
    bool bad = call->in.bad;
    remote->end(call);
    return bad ? library.statuses.unknown : 0;
}

/* ---- objects ---- */

struct library_object *object_of(uint64_t handle) {
    static struct library_object unknown;
    void **info = remote->info(handle);
    return info == NULL || *info == NULL ? &unknown : *info;
}

uint64_t object_made(const struct call *call, uint64_t handle) {
    uint64_t name = wire_with_server(handle, call->link->index);
    void **info = remote->info(name);
    if (info != NULL && *info == NULL)
        *info = calloc(1, sizeof(struct library_object)); /* freed with the handle */
    return name;
}

CUresult library_handle_held(struct call *call, unsigned kind, const void *at, uint64_t *handle,
                             uint64_t *made) {
    uint64_t known = HELD(at);
    if (wire_kind_of(known) == kind && object_of(known)->home == at)
        return remote->handle(call, kind, known, handle);
    CUresult result = remote->new_handle(call, kind, handle);
    if (result == CUDA_SUCCESS) *made = *handle;
    return result;
}

void object_held(const struct call *call, uint64_t handle, void *at) {
    uint64_t name = object_made(call, handle);
    void **info = remote->info(name);
    if (info != NULL && *info != NULL) ((struct library_object *)*info)->home = at;
    memcpy(at, &name, sizeof name);
}

CUresult library_streams(struct call *call, void *const *streams, int count, uint64_t *wire) {
    if (count < 0 || count > LIBRARY_MOST_STREAMS || (count > 0 && streams == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < count; i++) {
        CUresult result = remote->handle(call, KIND_stream, NAMED(streams[i]), &wire[i]);
        if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
}

bool scalar_from(struct scalar *scalar, const struct library_object *object, const void *at,
                 size_t bytes, bool last) {
    bool host = scalar_on_host(object->pointer_mode, last);
    *scalar = (struct scalar){at, host ? bytes : SCALAR_ON_CARD};
    return !host || at != NULL;
}

/* ---- elements ---- */

static CUresult elements_refused(const char *function, const struct elements *are) {
    static _Atomic bool told;
    if (!atomic_exchange(&told, true))
        fprintf(stderr, "egpu: %s of attribute %d, type %d, is not supported on a remote GPU\n",
                function, are->attribute, are->type);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* For objects send the names. Those that a program queries it has made, to be filled. */
static CUresult elements_named(struct call *call, struct elements_sent *sent, int64_t count) {
    if (sent->at == NULL || sent->are.kind == 0) return CUDA_SUCCESS;
    if (count > LIBRARY_MOST_OBJECTS) return CUDA_ERROR_INVALID_VALUE;
    for (int64_t i = 0; i < count; i++) {
        uint64_t name;
        memcpy(&name, (const uint8_t *)sent->at + i * 8, sizeof name);
        CUresult result = remote->handle(call, sent->are.kind, name, &sent->names[i]);
        if (result != CUDA_SUCCESS) return result;
    }
    sent->at = sent->names;
    return CUDA_SUCCESS;
}

CUresult elements_set(struct call *call, struct elements_sent *sent, const char *function,
                      struct elements are, const void *at, int64_t count) {
    sent->are = are;
    sent->wanted = 0;
    if (are.bytes == 0 || are.only_read) return elements_refused(function, &are);
    if (count < 0 || count > LIBRARY_MOST_BYTES / are.bytes) return CUDA_ERROR_INVALID_VALUE;
    sent->at = at;
    sent->bytes = at == NULL ? 0 : (uint64_t)count * are.bytes;
    return elements_named(call, sent, count);
}

CUresult elements_asked(struct call *call, struct elements_sent *sent, const char *function,
                        struct elements are, const void *at, int64_t count) {
    bool filled = at != NULL && are.filled;
    are.only_read = false;
    CUresult result = elements_set(call, sent, function, are, filled ? at : NULL, count);
    sent->wanted = at != NULL && !filled ? (uint64_t)count * are.bytes : 0;
    return result;
}

void put_elements(struct writer *out, const struct elements_sent *sent) {
    put_word(out, sent->wanted);
    put_host(out, sent->at, sent->bytes);
}

void elements_got(struct call *call, void *to, const struct elements_sent *sent, int64_t there) {
    uint64_t bytes = sent->wanted;
    if (there >= 0 && (uint64_t)there < bytes / sent->are.bytes)
        bytes = (uint64_t)there * sent->are.bytes;
    if (bytes > 0) get_bytes(&call->in, to, bytes);
    for (uint64_t i = 0; sent->are.kind != 0 && i < bytes; i += 8) {
        uint64_t name;
        memcpy(&name, (uint8_t *)to + i, sizeof name);
        if (name != 0) name = wire_with_server(name, call->link->index);
        memcpy((uint8_t *)to + i, &name, sizeof name);
    }
}

CUresult library_values(const char *function, const void *plan, const void *pack, uint8_t *values,
                        size_t *bytes) {
    bool lost;
    struct described_pack *bound = described_pack(NAMED(plan), NAMED(pack), &lost);
    CUresult result = lost ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    *bytes = 0;
    if (bound == NULL) return result;
    if (!bound->sendable) {
        fprintf(stderr,
                "egpu: %s: a remote GPU supports at most %d tensors by value, of at most %d bytes "
                "each\n",
                function, VALUES_MOST, VALUE_MOST_BYTES);
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    for (uint64_t i = 0; result == CUDA_SUCCESS && i < bound->count; i++) {
        if (bound->of[i].bytes == 0) continue;
        if (bound->of[i].at == NULL || *bytes == VALUES_MOST * VALUE_MOST_BYTES) {
            result = CUDA_ERROR_INVALID_VALUE;
            continue;
        }
        memset(values + *bytes, 0, VALUE_MOST_BYTES);
        memcpy(values + *bytes, bound->of[i].at, bound->of[i].bytes);
        *bytes += VALUE_MOST_BYTES;
    }
    free(bound);
    return result;
}
