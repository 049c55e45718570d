/* A stand-in for one of NVIDIA's libraries: its functions are forwarded to the server that has the
 * card and run in that server's own library. Generated stubs use these declarations; client.c finds
 * the session; a file named after a library has what the tables cannot express. */
#ifndef EGPU_LIBRARIES_CLIENT_H
#define EGPU_LIBRARIES_CLIENT_H

#include "libraries_wire.h"
#include "remote/libraries.h"

#pragma GCC visibility push(hidden)

#define API __attribute__((visibility("default")))

/* An object's properties that the client keeps, to avoid queries. */
struct library_object {
    int pointer_mode, math_mode, scale_type, data_type, descriptor_type;
    void *stream;
    _Atomic uint64_t connected; /* ranks of other processes that it has talked to: a bit each */
    const void *home; /* the program's memory where it was made, if objects of its kind have such */
};

struct scalar {
    const void *at;
    uint64_t bytes; /* or SCALAR_ON_CARD */
};

/* Elements to send: as they are, or names of objects. */
struct elements_sent {
    struct elements are;
    const void *at; /* NULL: nothing is sent */
    uint64_t bytes, wanted;
    uint64_t names[LIBRARY_MOST_OBJECTS];
};

extern const struct library_facts library; /* of this library */
extern const struct library_calls *remote; /* NULL until the first call */

CUresult library_find(void);
/* Return the library's status for a driver's error; report what the server lacks. */
int library_failed(const char *function, CUresult result);
int library_refuse(const char *function);
/* Return whether to wait for the call: always until the server's library has answered once. */
bool library_waits(struct call *call, bool wanted);
/* Post the call, or wait for it; return the library's status. */
int library_finish(struct call *call, bool waits, const char *function);
int library_done(struct call *call, bool waits);

static inline CUresult library_ready(void) {
    CUresult result = remote == NULL ? library_find() : CUDA_SUCCESS;
    return result == CUDA_SUCCESS ? remote->ready() : result;
}

struct library_object *object_of(uint64_t handle);
uint64_t object_made(const struct call *call, uint64_t handle);
/* An object in memory of the program: its name is the first word there. If it is made again at the
 * same place, it is the same object. */
CUresult library_handle_held(struct call *call, unsigned kind, const void *at, uint64_t *handle,
                             uint64_t *made);
void object_held(const struct call *call, uint64_t handle, void *at);
CUresult library_streams(struct call *call, void *const *streams, int count, uint64_t *wire);
/* Prepare elements; report a refused attribute by number. */
CUresult elements_set(struct call *call, struct elements_sent *sent, const char *function,
                      struct elements are, const void *at, int64_t count);
CUresult elements_asked(struct call *call, struct elements_sent *sent, const char *function,
                        struct elements are, const void *at, int64_t count);
void put_elements(struct writer *out, const struct elements_sent *sent);
/* At most as many as exist: programs ask for the maximum, and have room for these. */
void elements_got(struct call *call, void *to, const struct elements_sent *sent, int64_t there);
/* Return the values in host memory that a pack has for a plan, in the pack's order. */
CUresult library_values(const char *function, const void *plan, const void *pack, uint8_t *values,
                        size_t *bytes);
bool scalar_from(struct scalar *scalar, const struct library_object *object, const void *at,
                 size_t bytes, bool last);

/* For a tensor of probabilities: its number of images; the number of their labels. */
uint64_t cudnn_batch(void *tensor);
uint64_t cudnn_labels(void *tensor, const void *lengths);

void cublasLtMatmulDescSetAttribute_noted(struct library_object *object, int attribute,
                                          const void *value, uint64_t bytes);

/* ---- macros for the stubs ---- */

#define READY(symbol)                       \
    static const char function[] = #symbol; \
    CUresult outcome = library_ready();     \
    if (outcome != CUDA_SUCCESS) return library_failed(function, outcome)
#define CALL_GROUPED(symbol) \
    READY(symbol);           \
    struct call call;        \
    call_start(&call, OP_##symbol)
#define CALL(symbol)   \
    uint64_t made = 0; \
    CALL_GROUPED(symbol)
#define TRY(step) \
    if ((outcome = step) != CUDA_SUCCESS) return library_failed(function, outcome)
#define INVALID_IF(condition) \
    if (condition) return library.statuses.invalid_value

/* The session's name for an object. */
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
#define OPTIONAL(kind, name, known_as) \
    uint64_t wire_##name = 0;          \
    if (name != NULL) TRY(remote->handle(&call, KIND_##kind, known_as, &wire_##name))
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
#define SCALE(name, of)                                                   \
    uint64_t bytes_##name = cudnn_factor_bytes(object_of(of)->data_type); \
    NOT_NULL(name)
#define SET(name, are, count)         \
    struct elements_sent wire_##name; \
    TRY(elements_set(&call, &wire_##name, function, are, name, count))
#define GOT(name, are, count)         \
    struct elements_sent wire_##name; \
    TRY(elements_asked(&call, &wire_##name, function, are, name, count))
#define VALUES(name, plan, pack)                  \
    uint8_t name[VALUES_MOST * VALUE_MOST_BYTES]; \
    size_t bytes_##name;                          \
    TRY(library_values(function, plan, pack, name, &bytes_##name))
#define CREATE(kind, name)                                    \
    uint64_t new_##name;                                      \
    TRY(remote->new_handle(&call, KIND_##kind, &new_##name)); \
    made = new_##name
#define CREATE_HELD(kind, name) \
    uint64_t new_##name;        \
    TRY(library_handle_held(&call, KIND_##kind, name, &new_##name, &made))

/* Get room for the payload; if that fails, new objects are not made. */
#define BEGIN(bytes, wanted)                                                 \
    const bool waits = library_waits(&call, wanted);                         \
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

/* ---- groups of calls: nccl.c ---- */

#define EVERYBODY (-1) /* takes the place of one peer */
/* Get room for a call: inside its group, if it belongs to one or is the first with this peer;
 * otherwise in a frame of its own. */
CUresult library_group_begin(struct call *call, size_t bytes, uint64_t object, int peer);
int library_group_add(struct call *call, const char *function);

#define GROUPED(bytes, object, peer) TRY(library_group_begin(&call, bytes, object, peer))

static inline void put_place(struct writer *out, const struct scalar *scalar) {
    put_word(out, scalar->bytes);
    if (scalar->bytes == SCALAR_ON_CARD) put_word(out, (uint64_t)(uintptr_t)scalar->at);
}

static inline void put_scalar(struct writer *out, const struct scalar *scalar) {
    put_place(out, scalar);
    if (scalar->bytes != SCALAR_ON_CARD) put_bytes(out, scalar->at, scalar->bytes);
}

static inline void put_factor(struct writer *out, const void *from, uint64_t bytes) {
    put_word(out, bytes);
    put_bytes(out, from, bytes);
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

/* Arguments are ignored, hence the empty parameter list: in the x86-64 and AArch64 C ABIs callers
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
