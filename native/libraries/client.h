/* A stand-in for one of NVIDIA's libraries: the same functions, carried to the server that has the
 * card, where they are that server's own library's. What is here is what the generated stubs are
 * written in; client.c finds the session, and a file of a library's name is what no table can say
 * of it. */
#ifndef EGPU_LIBRARIES_CLIENT_H
#define EGPU_LIBRARIES_CLIENT_H

#include "libraries_wire.h"
#include "remote/libraries.h"

#pragma GCC visibility push(hidden)

#define API __attribute__((visibility("default")))

/* What the client remembers of an object, so that it need not ask. */
struct library_object {
    int pointer_mode, math_mode, scale_type;
    const void *home; /* the program's memory that it was made in, where it is such an object */
};

struct scalar {
    const void *at;
    uint64_t bytes; /* or SCALAR_ON_CARD */
};

extern const struct library_facts library; /* which one this is */
extern const struct library_calls *remote; /* NULL until the first call */

CUresult library_find(void);
/* What the library answers instead of a driver's error. Says what the server lacks. */
int library_failed(const char *function, CUresult result);
int library_refuse(const char *function);
/* Posts the call, or waits for it: the library's status. */
int library_finish(struct call *call, bool waits, const char *function);
int library_done(struct call *call, bool waits);

static inline CUresult library_ready(void) {
    CUresult result = remote == NULL ? library_find() : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? remote->ready() : result;
}

struct library_object *object_of(uint64_t handle);
uint64_t object_made(const struct call *call, uint64_t handle);
/* An object that programs hold in memory of their own: its name is the first word there. Made again
 * at the same place, it is the same one. */
CUresult library_handle_held(struct call *call, unsigned kind, const void *at, uint64_t *handle,
                             uint64_t *made);
void object_held(const struct call *call, uint64_t handle, void *at);
CUresult library_streams(struct call *call, void *const *streams, int count, uint64_t *wire);
bool scalar_from(struct scalar *scalar, const struct library_object *object, const void *at,
                 size_t bytes, bool last);

void cublasLtMatmulDescSetAttribute_noted(struct library_object *object, int attribute,
                                          const void *value, uint64_t bytes);

/* ---- what stubs are written in ---- */

#define READY(symbol)                       \
    static const char function[] = #symbol; \
    CUresult outcome = library_ready();     \
    if (outcome != CUDA_SUCCESS) return library_failed(function, outcome)
#define CALL(symbol)   \
    READY(symbol);     \
    struct call call;  \
    uint64_t made = 0; \
    call_start(&call, OP_##symbol)
#define TRY(step) \
    if ((outcome = step) != CUDA_SUCCESS) return library_failed(function, outcome)
#define INVALID_IF(condition) \
    if (condition) return library.statuses.invalid_value

/* What the session knows an object by. */
#define NAMED(object) ((uint64_t)(uintptr_t)(object))
#define NUMBERED(object) remote->numbered(object)
#define HELD(object) held_name(object)
static inline uint64_t held_name(const void *object) {
    uint64_t name = 0;
    if (object != NULL) memcpy(&name, object, sizeof name);
    return name;
}

#define OBJECT(kind, name, known_as) \
    uint64_t wire_##name;            \
    TRY(remote->handle(&call, KIND_##kind, known_as, &wire_##name))
#define KNOWN(handle) \
    if (remote->info(handle) == NULL) return library.statuses.invalid_handle
#define STREAM(name) OBJECT(stream, name, NAMED(name))
#define NOT_BELOW_ZERO(name) INVALID_IF(name < 0)
#define BELOW(name, end) \
    if (name < 0 || name >= end) return library.statuses.not_supported
#define AMONG(name, bits) \
    if (!is_among(name, bits)) return library.statuses.not_supported
#define STREAMS(name, count)                    \
    uint64_t wire_##name[LIBRARY_MOST_STREAMS]; \
    TRY(library_streams(&call, name, count, wire_##name))
#define NOT_NULL(name) INVALID_IF(name == NULL)
#define HOST(name, expression)            \
    uint64_t bytes_##name = (expression); \
    INVALID_IF(name != NULL && bytes_##name > LIBRARY_MOST_BYTES)
#define SCALAR(name, expression, last) \
    struct scalar wire_##name;         \
    INVALID_IF(!scalar_from(&wire_##name, object, name, expression, last))
#define CREATE(kind, name)                                    \
    uint64_t new_##name;                                      \
    TRY(remote->new_handle(&call, KIND_##kind, &new_##name)); \
    made = new_##name
#define CREATE_HELD(kind, name) \
    uint64_t new_##name;        \
    TRY(library_handle_held(&call, KIND_##kind, name, &new_##name, &made))

/* Room for the payload; where this fails, what was to be made is not. */
#define BEGIN(bytes, wanted)                                                 \
    const bool waits = wanted;                                               \
    outcome = remote->begin(&call, bytes, waits ? CALL_WAITS : CALL_POSTED); \
    if (outcome != CUDA_SUCCESS) {                                           \
        if (made != 0) remote->drop(made);                                   \
        return library_failed(function, outcome);                            \
    }
#define FINISH()                                         \
    int status = library_finish(&call, waits, function); \
    if (status != 0) {                                   \
        if (made != 0) remote->drop(made);               \
        return status;                                   \
    }
#define DONE() library_done(&call, waits)

static inline void put_place(struct writer *out, const struct scalar *scalar) {
    put_word(out, scalar->bytes);
    if (scalar->bytes == SCALAR_ON_CARD) put_word(out, (uint64_t)(uintptr_t)scalar->at);
}

static inline void put_scalar(struct writer *out, const struct scalar *scalar) {
    put_place(out, scalar);
    if (scalar->bytes != SCALAR_ON_CARD) put_bytes(out, scalar->at, scalar->bytes);
}

static inline void get_result(struct reader *in, void *to, const struct scalar *scalar) {
    if (scalar->bytes != SCALAR_ON_CARD) get_bytes(in, to, scalar->bytes);
}

static inline void put_host(struct writer *out, const void *from, uint64_t bytes) {
    if (from == NULL)
        put_word(out, HOST_IS_NULL);
    else
        put_block(out, from, bytes);
}

/* Arguments are ignored, hence the empty parameter list: callers of the x86-64 and AArch64 C ABIs
 * clean up their own. */
#define REFUSED(symbol)                                                          \
    API int symbol(void);                                                        \
    int symbol(void) {                                                           \
        static _Atomic bool told;                                                \
        if (atomic_exchange(&told, true)) return library.statuses.not_supported; \
        return library_refuse(#symbol);                                          \
    }

#pragma GCC visibility pop
#endif
