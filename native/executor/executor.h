/* The executor: a parent that accepts connections (main.c, parent.c), and for each client process a
 * child with a GPU address space of its own:
 *
 *   session      the child's life: connection, frames, calls, the driver
 *   calls        operations with forms of their own: copies, host memory, loads, launches, arrays;
 *                handles.c: what the client's handles stand for; status.c: NVML of the slice
 *   images       images of modules; store.c: the process that keeps them for later sessions
 *   graphs       captures, nodes of graphs and their attributes, memory for their copies
 *   libraries    calls of cuBLAS and others, into this machine's own; nccl.c: groups of such calls
 *   generated    decoders of all other operations, and of library calls
 *   moves        what a session keeps to be moved, and how it is written down and rebuilt
 *   confinement  limits parent and children: a user without privileges, a view of the files,
 *                Landlock, a network; sandbox.c: what a child may do once it has its GPU
 *
 * Whatever comes from the client is hostile until checked: a wrong length, an unknown number or a
 * gap ends the session; a wrong handle is an error of the call.
 */
#ifndef EGPU_EXECUTOR_H
#define EGPU_EXECUTOR_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <stdlib.h>

#include "driver_table.h"
#include "special.h"

#define EXIT_NO_DRIVER 5
#define EXIT_GRACE 10
#define EXIT_VIOLATION 11
#define EXIT_GONE 12

struct settings {
    const char *driver, *lease;
    int grace_seconds;
    int roster; /* descriptor of a struct roster, or -1 */
    int rules;  /* of Landlock, or -1 */
    int store;  /* this session's channel to the keeper of images, or -1 */
    bool network;
    bool movable;
};

/* Who the sessions of the lease are: written by the parent, mapped by its children, who cannot
 * write it. */
#define MAX_SESSIONS 256
struct roster {
    struct {
        uint32_t pid;    /* of the session's process; 0: free */
        uint32_t client; /* as the client calls itself */
    } sessions[MAX_SESSIONS];
};

/* One call being decoded and carried out. */
struct task {
    struct reader in;
    struct writer out;
    struct wire_header header;
    CUresult bad;             /* a handle that is none: the answer, instead of a call */
    bool violated;            /* the session ends */
    uint64_t context;         /* the wire's */
    CUstreamCaptureMode mode; /* of the program's thread */
    uint64_t destroyed;       /* handle to be forgotten when the call succeeds */
    uint64_t bound, found; /* the last handles that the call made, and found for the first time */
    const char *stays;     /* why the code that it loaded cannot be moved, or NULL */
    const uint8_t *data;   /* what is left of the payload: data of a copy */
    size_t data_bytes;
    uint8_t *large; /* a reply too long for `out`: the session's to free */
    size_t large_bytes;
};

#define OPERATION_BLOCKS 1  /* may wait for the GPU */
#define OPERATION_BESIDE 2  /* may wait for other programs: never in the thread that serves */
#define OPERATION_GROUPED 4 /* may be one of a LIBRARY_GROUP */

struct operation {
    CUresult (*run)(struct task *task);
    int flags;
};
extern const struct operation generated_operations[OP_COUNT];
extern const struct operation special_operations[OP_COUNT];
extern const struct operation library_operations[OP_COUNT];
static inline const struct operation *operation_of(uint16_t op) {
    if (op >= OP_COUNT) return NULL;
    const struct operation *operation =
        special_operations[op].run ? &special_operations[op] : &generated_operations[op];
    if (operation->run == NULL) operation = &library_operations[op];
    return operation->run ? operation : NULL;
}

/* ---- session.c, driver.c ---- */

typedef void (*driver_pointer)(void);
driver_pointer driver_function(egpu_driver_id id); /* NULL: this driver has none */
/* Has ours called in its place; returns the driver's. */
driver_pointer driver_replace(egpu_driver_id id, driver_pointer ours);
uint64_t driver_context(void); /* the wire's, that is current in this thread */
const char *driver_path(void); /* the file, as we were told it */
/* The driver's function with these parameters. */
#define DRIVER(symbol, ...) ((CUresult (*)(__VA_ARGS__))driver_function(EGPU_FN_##symbol))
int session_run(const struct settings *settings, int control);
void figures_image(void); /* one more is loaded: figures.c */
/* from the loop, before something that ends in the next: other threads send, too */
void session_shares_output(void);
/* from a thread of the driver: tells the client and waits for it */
void session_callback(uint64_t id, CUresult status);
/* a descriptor that came over the socket, or -1 */
int session_receive_fd(void);
uint8_t *session_bulk(uint64_t offset, size_t bytes); /* in the shared area, or NULL */
int session_store(void);        /* the channel to the keeper of images, or -1 */
bool session_has_network(void); /* one of its own, where other ranks may be met */
/* Room for a reply, or NULL; all replies that the client has not got are bounded (session.h). */
uint8_t *session_reply_take(size_t bytes);
void session_reply_give(uint8_t *data, size_t bytes);

/* Everything is decoded: whether to go on with the call. */
static inline CUresult task_refused(struct task *task, bool known) {
    if (task->in.bad || task->in.left != 0) {
        task->violated = true;
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (task->bad != CUDA_SUCCESS) return task->bad;
    return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* Memory that a client may ask for is a card's: what is elsewhere is this machine's, for whoever
 * else is on it. */
static inline void task_on_card(struct task *task, const CUmemLocation *where,
                                CUmemAllocationType type) {
    unsigned place = where->type, kind = type; /* 0 is for the driver to refuse */
    bool here = place <= CU_MEM_LOCATION_TYPE_DEVICE && kind <= CU_MEM_ALLOCATION_TYPE_PINNED;
    if (!here && task->bad == CUDA_SUCCESS) task->bad = CUDA_ERROR_NOT_SUPPORTED;
}

/* ---- handles.c ---- */

bool handles_init(void);
uint64_t task_handle(struct task *task, unsigned kind, int destroy);
/* The same of a graph or a node, whose own is what the call makes or finds. */
uint64_t task_owner(struct task *task, unsigned kind);
/* As many as there are, at most WIRE_MAX_NODES. */
size_t task_handles(struct task *task, unsigned kind, void *values);
uint64_t handle_value(unsigned kind, uint64_t handle, CUresult *bad);
void handle_bind(struct task *task, unsigned kind, uint64_t handle, uint64_t value);
void handle_unbind(struct task *task, unsigned kind);
void handle_forget(uint64_t handle, bool itself); /* what belongs to it, and perhaps itself */
void handle_release_children(uint64_t handle);    /* they are no more gone when it is */
/* The handle for something that the driver found: the client's own, or one that is chosen now.
 * `task->destroyed` may name its parent. */
uint64_t handle_of(struct task *task, unsigned kind, uint64_t value);
uint64_t handle_of_child(unsigned kind, uint64_t value, uint64_t parent);

/* Whether something of this kind has this value. */
bool handle_is_bound(unsigned kind, uint64_t value);

/* A number that the driver gave for an object of this kind, if it is one of this session's. */
uint64_t task_number(struct task *task, unsigned kind, int destroy);

/* A list of them. */
void put_handles(struct task *task, unsigned kind, const void *values, size_t count);

/* the context, module, library, graph or node that it goes with; 0: none */
uint64_t handle_parent(uint64_t handle);

/* array.c: handles in it for what they stand for, and the other way. */
void task_locate_CUDA_RESOURCE_DESC(struct task *task, CUDA_RESOURCE_DESC *resource);
void task_found_CUDA_RESOURCE_DESC(struct task *task, CUDA_RESOURCE_DESC *resource);
CUresult array_copy(struct task *task);
CUresult array_copy_in(struct task *task);
CUresult array_copy_out(struct task *task);
CUresult array_level(struct task *task);
CUresult array_plane(struct task *task);

/* ---- bulk.c ---- */

/* `shown` is where the client sees which slots are held. */
void bulk_open(uint8_t *bulk, _Atomic uint32_t *shown);
void bulk_context_ended(void);
bool bulk_take(void); /* whether one more slot may be held, for the copy that follows */
/* Returns when the copy is on its way and its slot held, if one was taken for it; else when it is
 * done. */
CUresult bulk_copy(CUdeviceptr to, const uint8_t *from, size_t bytes, CUstream stream, bool taken);
bool bulk_look(void); /* gives back the slots of copies that are done; whether others are held */

/* ---- calls.c ---- */

/* Reads the struct at the beginning of the payload; with `has_data`, the rest becomes the task's
 * data. */
bool begins(struct task *task, void *message, size_t bytes, bool has_data);
CUresult violation(struct task *task); /* the client broke the rules: the session ends */
void call_client(void *data);          /* a function of the program's */

/* ---- copies.c ---- */

/* Return whether the stream is captured: a graph would use memory of ours after the call. */
bool captured(CUstream stream);
void *room_for_data(struct task *task, size_t bytes); /* in the reply, or as a long one */
CUresult copy_in(struct task *task);
CUresult copy_out(struct task *task);
CUresult copy_rect_in(struct task *task);
CUresult copy_rect_out(struct task *task);
CUresult copy_rect(struct task *task);
CUresult copy_in_shared(struct task *task);
CUresult copy_out_shared(struct task *task);

/* ---- host.c ---- */

bool within_host(uint64_t address, uint64_t bytes); /* memory that both have mapped */
CUresult copy_host_in(struct task *task);
CUresult copy_host_out(struct task *task);
CUresult host_map(struct task *task);
CUresult host_unmap(struct task *task);

/* ---- loads.c ---- */

CUresult module_load(struct task *task);
CUresult library_load(struct task *task);
CUresult function_info(struct task *task);
CUresult tensor_map(struct task *task);

/* ---- variables.c ---- */

bool variables_are_used(void); /* the client has addresses of some, for a moment */
CUresult variable(struct task *task);
CUresult variable_done(struct task *task);

/* ---- images.c ---- */

struct image {
    uint8_t digest[32];
    uint8_t *bytes; /* and a NUL */
    uint64_t total, have;
    bool complete;
    bool mapped; /* the store's file */
    uint64_t used;
};
/* Takes a part. False: what was sent does not have the digest, or parts do not follow each
 * other. */
bool image_add(const uint8_t digest[32], uint64_t total, uint64_t offset, const uint8_t *bytes,
               uint64_t count);
struct image *image_find(const uint8_t digest[32]); /* whole, or what has come of it */
/* Whole, the session's or the store's; NULL: it has to be sent. */
const struct image *image_known(const uint8_t digest[32], uint64_t total);
/* A fat binary says how long it is, and a driver believes it: it has no other word. */
bool image_is_whole(const struct image *image);
CUresult image_part(struct task *task);
bool images_are_coming(void); /* of one at least not all parts have come */

/* ---- graphs.c ---- */

bool captures_begun(void); /* this session has begun one */
bool captures_run(void);   /* perhaps: one may be running now */
CUresult begin_capture(struct task *task);
CUresult end_capture(struct task *task);
CUresult graph_destroy(struct task *task);
CUresult graph_destroy_node(struct task *task);
CUresult capture_info(struct task *task);
CUresult graph_update(struct task *task);

/* attributes.c */
bool attribute_is_value(int which);
CUresult clusters(struct task *task);
CUresult node_attribute(struct task *task);

/* ---- nodes.c, rooms.c ---- */

CUresult graph_node(struct task *task);
uint8_t *room_of(uint64_t room, uint64_t bytes); /* NULL: it is none, or smaller */
CUresult room_make(struct task *task);
CUresult room_in(struct task *task);
CUresult room_out(struct task *task);

/* ---- status.c ---- */

void status_init(const struct settings *settings);
CUresult status_read(uint32_t device, struct writer *out);

/* ---- printed.c ---- */

#define PRINTED_BYTES (4u << 20) /* of what is kept until the client asks */
void printed_begin(void);        /* from now on C's standard output is kept */
bool printed_any(void);
/* For a move: what is kept, into room for PRINTED_BYTES; and what was. */
size_t printed_copy(uint8_t *to);
void printed_add(const uint8_t *bytes, size_t count);
CUresult printed(struct task *task);

/* ---- nccl.c ---- */

CUresult library_group(struct task *task); /* calls that go together */

/* ---- sandbox.c ---- */

bool sandbox_enter(void);

#endif
