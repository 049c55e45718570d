/* This machine's cuBLAS and others, called for a client: what the generated decoders are written
 * in. They are loaded where they are first needed, into the session that has the memory. */
#ifndef EGPU_EXECUTOR_LIBRARIES_H
#define EGPU_EXECUTOR_LIBRARIES_H

#include <stdatomic.h>

#include "executor/executor.h"
#include "libraries_wire.h"
#include "executor/generated/library_ids.h"

extern const struct library_facts library_facts[LIBRARIES];

/* What is known of a kind of objects. */
struct library_kind {
    enum library_id of;
    bool stays;        /* outlives the context in which it was made */
    const char *mode;  /* the library's function that says an object's pointer mode, or NULL */
    int attribute;     /* as which of its attributes; -1: it says nothing else */
    const char *sizes; /* the library's function that says its dimensions, or NULL */
};
extern const struct library_kind library_kinds[KIND_COUNT];

/* The library's function, or NULL. */
void *library_function(enum library_id id, const char *symbol);
/* Why there is none. */
CUresult library_missing(enum library_id id);

/* A scalar of the client's: its value, or where on the card it is. */
struct library_scalar {
    uint64_t bytes; /* or SCALAR_ON_CARD */
    void *card;
    _Alignas(16) uint8_t value[SCALAR_MOST_BYTES];
};

/* Begins the reply: room for the library's status, which is 0 until library_failed. */
uint8_t *library_begin(struct task *task);
/* A posted call has nobody to say its status to: it becomes the driver's pending error. With
 * EGPU_REMOTE_VERBOSE=1 the log names function and status. */
CUresult library_failed(struct task *task, uint8_t *status, int result, enum library_id id);

void library_get_scalar(struct task *task, struct library_scalar *scalar, bool with_value);
void library_put_result(struct task *task, const struct library_scalar *scalar);
static inline void *library_scalar_at(struct library_scalar *scalar) {
    return scalar->bytes == SCALAR_ON_CARD ? scalar->card : scalar->value;
}
/* The pointer mode of an object as the library itself has it: an address from a client must never
 * be taken for one of ours. */
int library_pointer_mode(const struct library_kind *kind, void *object);

/* A factor: always a value. */
void library_get_factor(struct task *task, struct library_scalar *factor);

/* An object, or NULL. */
uint64_t library_optional(struct task *task, unsigned kind);

/* An array whose elements are of a type that a parameter says: data, or objects. */
struct library_elements {
    struct elements are;
    const void *sent;
    size_t bytes;
    uint64_t wanted;
    void *at; /* what the library is given */
    uint64_t values[LIBRARY_MOST_OBJECTS];
};
void library_get_elements(struct task *task, struct library_elements *elements);
void library_set_elements(struct task *task, struct library_elements *elements, struct elements are,
                          int64_t count);
void library_got_elements(struct task *task, struct library_elements *elements, struct elements are,
                          int64_t count);
/* Of objects that the library gave, the names. */
void library_name_elements(struct task *task, const struct library_elements *elements);

/* A variant pack with values in place of what its tensors by value had: nothing that a client says
 * is an address of ours. */
struct library_values {
    void *pack; /* the client's, where it has none */
    bool made;
    _Alignas(VALUE_MOST_BYTES) uint8_t values[VALUES_MOST * VALUE_MOST_BYTES];
};
CUresult library_values(struct library_values *values, void *plan, void *pack, const void *sent,
                        size_t bytes);
void library_values_end(const struct library_values *values);

/* Host memory that came along; NULL where the client has none. */
const void *library_get_host(struct task *task, size_t *bytes);
void library_check_host(struct task *task, const void *sent, size_t bytes, uint64_t expected);
/* The elements of arrays that came along: of more, the length in bytes has no place in 64 bits. */
static inline void library_check_count(struct task *task, int64_t count) {
    if (count < 0 || count > LIBRARY_MOST_BYTES) task->in.bad = true;
}
/* Streams that came along, and how many; -1: too many. */
int library_get_streams(struct task *task, void *streams[LIBRARY_MOST_STREAMS]);
/* Room in the reply for what the library writes; NULL where the client does not want it. */
void *library_room(struct task *task, bool wanted, uint64_t bytes);

/* ---- nccl.c ---- */

/* What a call has come to that may go on after it returned: until `function` of the library says
 * that it does no more, the object is to be ended, or the time is over. Within a group that is for
 * its end to find out. */
int library_settle(enum library_id id, const char *function, int going_on, void *object, int said);
#define LIBRARY_SETTLE_SECONDS 600 /* how long other programs are waited for */
#define LIBRARY_LOOK_US 500

/* ---- library_users.c ---- */

/* In a call with an object, which is not ended before all have left. False: it is being ended, or
 * was. */
bool library_enter(unsigned kind, void *object);
void library_leave(void *object);
bool library_ending(void *object); /* to whoever waits with it: it is time to leave */
/* To end it: all have left it, and nobody comes in before the end of that, however it went. False:
 * somebody else ends it, or a call with it does not return. */
bool library_end_begin(unsigned kind, void *object);
void library_end_done(void *object);

/* ---- library_memory.c ---- */

#define LIBRARY_MOST_HELD 512u /* bytes of an object that programs hold */
#define LIBRARY_MOST_SCRATCH (64u << 20)

/* Where an object is to be made: where the one of this handle is, or anew. NULL: no memory. */
void *library_memory(unsigned kind, uint64_t handle);
/* It was made. */
void library_hold(struct task *task, unsigned kind, uint64_t handle, void *memory);
void library_free(void *memory);
/* Host memory that the library alone uses, until the card has done the call. */
void *library_scratch(struct task *task, uint64_t bytes);
void library_scratch_end(uint64_t bytes);

/* Found once, by whichever thread comes first. The last one of a thread is named if it fails. */
extern _Thread_local const char *library_called;
#define REAL(library, symbol, type, ...)                                        \
    static void *_Atomic real_known;                                            \
    type (*real)(__VA_ARGS__);                                                  \
    library_called = #symbol;                                                   \
    void *real_found = atomic_load_explicit(&real_known, memory_order_acquire); \
    if (real_found == NULL) {                                                   \
        real_found = library_function(LIBRARY_##library, #symbol);              \
        atomic_store_explicit(&real_known, real_found, memory_order_release);   \
    }                                                                           \
    memcpy(&real, &real_found, sizeof real);
#define REFUSE(library)                          \
    CUresult refused = task_refused(task, true); \
    if (refused != CUDA_SUCCESS) return refused; \
    if (real == NULL) return library_missing(LIBRARY_##library)
#define PLACED(scalar, last)                                            \
    if (scalar_on_host(mode, last) != (scalar.bytes != SCALAR_ON_CARD)) \
    return CUDA_ERROR_INVALID_VALUE

#endif
